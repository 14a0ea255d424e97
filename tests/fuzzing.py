"""Damage files as disks, networks, editors and attackers do; the tests and the long run in benchmarks share it."""

import io
import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from profilers.errors import SeqPointError
from profilers.ingest.stage import Stage
from profilers.readers.common.json_documents import Document
from profilers.readers.kineto.reader import read_stream
from profilers.readers.kineto.rows import EventRows, file_lanes

__all__ = ["Outcome", "damage", "disagreement", "read", "read_plainly"]


@dataclass(frozen=True)
class Outcome:
    """What a reader made of a file: rows, counts, or the one line why it made nothing."""

    rows: Counter[tuple[object, ...]]
    counts: Counter[str]
    error: str = ""


_NUMBERS = (
    b"1e999",
    b"-0",
    b"9" * 40,
    b"0.1e-400",
    b"NaN",
    b"-Infinity",
    b"01",
    b"1.",
    b"null",
    b'"7"',
    b"1E5",
    b"1.0000000005",
)
_TEXTS = (
    b'"',
    b"\\",
    b'\\"',
    b"\\u12",
    b"\\ud83d",
    b"\xff\xfe",
    b"\x00",
    b"\n",
    b"\x1b[2J",
    b"}",
    b"]",
    b",",
    b"{",
    b'"ph"',
)


def _truncate(data: bytes, dice: random.Random) -> bytes:
    return data[: dice.randrange(len(data))]


def _flip(data: bytes, dice: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(dice.randrange(1, 6)):
        changed[dice.randrange(len(changed))] ^= 1 << dice.randrange(8)
    return bytes(changed)


def _splice(data: bytes, dice: random.Random) -> bytes:
    """Put a piece of the file somewhere else in it, over what is there or between."""
    start, size, to = dice.randrange(len(data)), dice.randrange(1, 300), dice.randrange(len(data))
    piece = data[start : start + size]
    return data[:to] + piece + data[to + (len(piece) if dice.random() < 0.5 else 0) :]


def _drop(data: bytes, dice: random.Random) -> bytes:
    start = dice.randrange(len(data))
    return data[:start] + data[start + dice.randrange(1, 200) :]


def _insert(data: bytes, dice: random.Random) -> bytes:
    at = dice.randrange(len(data))
    return data[:at] + dice.choice(_TEXTS + _NUMBERS) + data[at:]


def _number(data: bytes, dice: random.Random) -> bytes:
    """Replace a number by a strange one."""
    places = [i for i in range(1, len(data)) if data[i : i + 1].isdigit() and not data[i - 1 : i].isdigit()]
    if not places:
        return data
    at = dice.choice(places)
    end = at
    while end < len(data) and data[end : end + 1] in b"0123456789.":
        end += 1
    return data[:at] + dice.choice(_NUMBERS) + data[end:]


def _repeat(data: bytes, dice: random.Random) -> bytes:
    """Repeat a member of an object, or a line of a table."""
    mark = b"," if b"{" in data else b"\n"
    parts = data.split(mark)
    at = dice.randrange(len(parts))
    return mark.join([*parts[:at], parts[at], *parts[at:]])


def _nest(data: bytes, dice: random.Random) -> bytes:
    depth = dice.choice((40, 61, 70, 2000, 100_000))
    opening, closing = dice.choice(((b"[", b"]"), (b'{"a":', b"}")))
    nested = opening * depth + b"1" + closing * dice.choice((depth, depth - 1, 0))
    colons = [i for i in range(len(data)) if data[i : i + 1] in b":,"] or [0]
    at = dice.choice(colons) + 1
    return data[:at] + nested + data[at:]


_WAYS: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    *(_truncate, _flip, _splice, _drop, _insert, _number, _repeat, _nest),
)


def damage(data: bytes, seed: int) -> bytes:
    """Return `data` damaged in one to three ways; the same for the same seed."""
    dice = random.Random(seed)
    for _ in range(dice.choice((1, 1, 1, 2, 3))):
        if data:
            data = dice.choice(_WAYS)(data, dice)
    return data


def read(data: bytes) -> Outcome:
    """Return what the scanner makes of a Kineto file."""
    stage = Stage()
    try:
        content = read_stream(io.BytesIO(data), "x.json", stage, file_lanes(lambda: io.BytesIO(data)))
    except SeqPointError as error:
        return Outcome(Counter(), Counter(), str(error))
    return Outcome(_rows(stage), content.counts)


def read_plainly(data: bytes) -> Outcome:
    """Return what the standard library makes of it, decoding the whole text: what the scanner must agree with."""
    document, stage = Document(data.decode("utf-8-sig", "replace"), "x.json"), Stage()
    rows = EventRows(file_lanes(lambda: io.BytesIO(data)))
    try:
        for event in document:
            rows.add(event)
        rows.pair()
    except SeqPointError as error:
        return Outcome(Counter(), Counter(), str(error))
    for kind, columns in rows.columns.items():
        stage.write(kind, columns)
    return Outcome(_rows(stage), document.counts + rows.counts)


def _rows(stage: Stage) -> Counter[tuple[object, ...]]:
    found: Counter[tuple[object, ...]] = Counter()
    for kind, table in stage.tables().items():
        columns = [table[name].to_pylist() for name in ("name", "start_ns", "dur_ns", "rank", "args")]
        for name, start, dur, rank, args in zip(*columns, strict=True):
            found[kind, name, start, dur, rank, frozenset(json.loads(args)) if args else None] += 1
    return found


def disagreement(one: Outcome, other: Outcome) -> str:
    """Return how what the scanner read differs from what it must agree with; nothing where it does not.

    Where the frame around the events is damaged, the scanner may find more of them.
    """
    if one.error != other.error and not one.rows:
        return f"{one.error!r} instead of {other.error!r}"
    framed = not other.counts["truncated_files"] and not other.error
    if other.rows - one.rows:
        return f"lacks {next(iter(other.rows - one.rows))}"
    if framed and one.rows - other.rows:
        return f"adds {next(iter(one.rows - other.rows))}"
    names = [name for name in {*one.counts, *other.counts} if name.startswith(("events", "kept", "dropped", "skipped"))]
    wrong = [name for name in names if framed and one.counts[name] != other.counts[name]]
    return f"counts {wrong} {dict(one.counts)} {dict(other.counts)}" if wrong else ""
