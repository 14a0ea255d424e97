"""Rows from decoded Kineto events, and the table of arguments that have a column of their own.

`KIND_OF` and `ARGUMENTS` hold for both ways of reading: the scanner's and that of `Rows`, which takes the events that
the standard library decodes, one at a time. Rows are not linked yet.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import numpy as np

from profilers.files import shipped_table
from profilers.readers.common.numbers import (
    IN_WORK_ITEMS,
    INT32_LIMIT,
    TIMES_NS,
    Grids,
    exact_ns,
    finite_float,
    integer,
    plain_text,
)
from profilers.trace.arrays import MISSING
from profilers.trace.schema import OWN_RANK

#: Kinds whose events have a process and a thread.
HOST_KINDS = frozenset({"ops", "launches", "ranges", "counters"})

#: Columns of synchronisations in which -1 stands for null.
SYNC_COLUMNS = ("stream", "wait_on_stream", "event", "event_correlation")


class Argument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An argument of an event that has a column of its own.

    Parameters
    ----------
    keys : tuple of str
        Spellings of the argument; the first that an event has counts.
    what : str
        Type of the column: ``"integer"``, ``"narrow"`` (32 bits), ``"float"`` or ``"json"``.
    """

    keys: tuple[str, ...]
    what: str = "integer"


class _KinetoFormat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Content of `datasets/formats/kineto.toml`."""

    categories: dict[str, str]
    columns: dict[str, tuple[str, ...]]
    arguments: dict[str, Argument]


_FORMAT = shipped_table("formats/kineto.toml", "Kineto's events", _KinetoFormat)
#: Kind of event by category in lower case. Events of any other category with a duration become ranges.
KIND_OF: Mapping[str, str] = _FORMAT.categories
#: Arguments by kind and column.
ARGUMENTS: Mapping[str, Mapping[str, Argument]] = {
    kind: {column: _FORMAT.arguments[column] for column in columns} for kind, columns in _FORMAT.columns.items()
}

Event = dict[str, Any]

_FLOW = frozenset("stfMNDO")
_INSTANT = frozenset("iIRn")


def _json(value: Any) -> str | None:
    """Return `value` as JSON, or None if it is missing or nested deeper than Python's stack."""
    try:
        return None if value is None else _ENCODER.encode(value)
    except RecursionError:
        return None


def _number_or_text(value: Any) -> float | str:
    number = finite_float(value)
    return str(value) if number is None else number


_ENCODER = json.JSONEncoder(default=_number_or_text, separators=(",", ":"))


def _narrow(value: Any) -> int | None:
    """Return an integer of 32 bits, or None."""
    number = integer(value)
    return number if number is not None and -INT32_LIMIT <= number < INT32_LIMIT else None


_CONVERSIONS: Mapping[str, Callable[[Any], Any]] = {
    "integer": integer,
    "narrow": _narrow,
    "float": finite_float,
    "json": _json,
}


class Rows:
    """Events collected as columns, by kind; an event that names no rank gets `OWN_RANK`."""

    def __init__(self) -> None:
        #: Columns by kind and name.
        self.columns: dict[str, dict[str, list[Any]]] = defaultdict(lambda: defaultdict(list))
        self._extents: dict[str, list[list[int]]] = {"kernels": [], "launches": []}
        self.counts: Counter[str] = Counter()

    def add(self, event: Event) -> None:
        """Add one event, or count the reason for leaving it out."""
        phase = plain_text(event.get("ph", "X"))
        args = event.get("args")
        args = args if isinstance(args, dict) else {}
        kind = self._kind(event, phase, args)
        if kind is None:
            return
        start, duration = exact_ns(event.get("ts")), exact_ns(event.get("dur"))
        if start is not None and duration is not None and start + duration not in TIMES_NS:
            duration = None
        if start is None or (start == 0 and duration == 0):
            self.counts["dropped_no_time"] += 1
        elif duration is not None and duration < 0:
            self.counts["dropped_negative"] += 1
        else:
            if duration is None and kind != "counters":
                self.counts["missing_duration"] += 1
            self._append(kind, event, args, (start, duration))

    def _kind(self, event: Event, phase: str, args: Event) -> str | None:
        category = plain_text(event.get("cat")).lower()
        if phase == "C" or (phase in _INSTANT and args):
            return "counters"
        if phase in _INSTANT or category == "trace" or phase == "E":
            self.counts["skipped_marker"] += 1
            return None
        if phase in _FLOW:
            self.counts["skipped_flow"] += 1
            return None
        return KIND_OF.get(category, "ranges")

    def _append(self, kind: str, event: Event, args: Event, time: tuple[int, int | None]) -> None:
        columns = self.columns[kind]
        rank = _narrow(args.get("rank"))
        columns["rank"].append(OWN_RANK if rank is None or rank < 0 else rank)
        columns["name"].append(plain_text(event.get("name")))
        columns["start_ns"].append(time[0])
        columns["dur_ns"].append(time[1])
        self.counts["kept"] += 1
        if kind in HOST_KINDS:
            columns["process"].append(integer(event.get("pid")))
            columns["thread"].append(integer(event.get("tid")))
        typed: set[str] = set()  # arguments that a column holds without loss
        for column, argument in ARGUMENTS[kind].items():
            key = next((k for k in argument.keys if k in args), "")
            value = _CONVERSIONS[argument.what](args[key]) if key else None
            columns[column].append(value)
            if value is not None:
                typed.add(key)
        rest = {key: value for key, value in args.items() if key not in typed} or None
        columns["args"].append(_json(rest))
        self.counts["lost_arguments"] += rest is not None and columns["args"][-1] is None
        _add_special(kind, columns, event, args)
        if kind in self._extents:
            self._extents[kind].append(geometry(args))

    def add_grids(self, grids: Grids) -> None:
        """Add the grids of the kernels and launches collected to `grids`."""
        for kind, rows in self._extents.items():
            if not rows:
                continue
            columns = self.columns[kind]
            rank = np.array(columns["rank"], dtype=np.int64)
            numbers = [MISSING if n is None else n for n in columns["correlation"]]
            correlation = np.array(numbers, dtype=np.int64)
            extents = np.array(rows, dtype=np.int64)
            if kind == "kernels":
                grids.add_kernels(rank, correlation, extents)
            else:
                grids.add_launches(rank, correlation, extents, np.array(columns["name"]) == IN_WORK_ITEMS)


def geometry(args: Event) -> list[int]:
    """Return the three extents of grid and of block, six times `MISSING` if either is absent or not valid."""
    grid, block = (_axes(args.get(key)) for key in ("grid", "block"))
    return [MISSING] * 6 if grid is None or block is None else grid + block


def _axes(value: Any) -> list[int] | None:
    if not isinstance(value, list) or not 1 <= len(value) <= 3:
        return None
    numbers = [n for n in map(integer, value) if n is not None and n > 0]
    return [*numbers, *[1] * (3 - len(value))] if len(numbers) == len(value) else None


def direction(name: str, args: Event) -> str:
    """Return the direction of a copy, such as ``HtoD``, or ``memset``.

    Parameters
    ----------
    name : str
        Name of the event, such as ``Memcpy HtoD (Pinned -> Device)``.
    args : dict of str to Any
        Arguments of the event; ``kind`` states the direction if the name does not.
    """
    if name.startswith("Memset"):
        return "memset"
    words = name.split()
    kind = words[1] if len(words) > 1 and words[0] == "Memcpy" else plain_text(args.get("kind"))
    return kind or "unknown"


def _add_special(kind: str, columns: dict[str, list[Any]], event: Event, args: Event) -> None:
    """Add the columns of `kind` that hold no argument as it is."""
    if kind in ("launches", "ranges", "counters"):
        columns["api" if kind == "launches" else "category"].append(plain_text(event.get("cat")).lower())
    elif kind == "copies":
        columns["direction"].append(direction(plain_text(event.get("name")), args))
    elif kind == "syncs":
        columns["sync"].append(plain_text(args.get("cuda_sync_kind", event.get("name"))))
        for column in SYNC_COLUMNS:
            if columns[column][-1] == -1:
                columns[column][-1] = None
