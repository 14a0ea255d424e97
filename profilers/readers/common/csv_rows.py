"""Rows of CSV files, damaged ones included, and batches of rows for a sink."""

import csv
import io
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from decimal import ROUND_HALF_EVEN, Context, Decimal, InvalidOperation
from pathlib import Path
from typing import Any, BinaryIO

from profilers.errors import BrokenFileError
from profilers.readers.common.numbers import TIMES_NS
from profilers.readers.common.reader import Sink
from profilers.readers.common.source import open_source

#: A longer line, and a longer field, is damage: a quote that is never closed, or no text at all.
_LONGEST_LINE = 1 << 20
_BATCH_ROWS = 65536
_BATCH_BYTES = 32 << 20
#: Wide enough for every digit of a time, so that it is rounded once: to the nanosecond.
_EXACT = Context(prec=400, Emin=-9999, Emax=9999)


def distinct(names: Iterable[str]) -> list[str]:
    """Return the names of columns; one that comes again gets its number, so that nothing is lost.

    Examples
    --------
    >>> distinct(["a", "b", "a"])
    ['a', 'b', 'a.3']
    """
    found: dict[str, int] = {}
    for i, given in enumerate(names, 1):
        name = given
        while name in found:
            name = f"{name}.{i}"
        found[name] = i
    return list(found)


def exact_ns(text: str, power: int) -> int | None:
    """Return a decimal number times a power of ten as whole nanoseconds; None where it is no time.

    Examples
    --------
    >>> exact_ns("1700000000.123456789", 9), exact_ns("2.5", 3), exact_ns("", 0)
    (1700000000123456789, 2500, None)
    """
    try:
        number = Decimal(text)
    except InvalidOperation:
        return None
    if not number.is_finite() or number.adjusted() >= 19:
        return None
    result = int(number.scaleb(power, _EXACT).to_integral_value(ROUND_HALF_EVEN))
    return result if result in TIMES_NS else None


class Batches:
    """Gives rows to a sink in batches of equal columns.

    Parameters
    ----------
    sink : Sink
    counts : Counter
        Where what is written is counted as kept.
    """

    def __init__(self, sink: Sink, counts: Counter[str]) -> None:
        self._sink = sink
        self._counts = counts
        self._rows: dict[str, list[Mapping[str, Any]]] = {}
        self._count = self._bytes = 0

    def add(self, kind: str, row: Mapping[str, Any]) -> None:
        """Take one row; all of a kind have the same columns."""
        self._rows.setdefault(kind, []).append(row)
        self._count += 1
        self._bytes += len(row["name"]) + len(row.get("args") or "")
        if self._count >= _BATCH_ROWS or self._bytes >= _BATCH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Give what was taken to the sink."""
        for kind, rows in self._rows.items():
            columns = {name: [row[name] for row in rows] for name in rows[0]}
            self._counts["kept"] += len(self._sink.write(kind, columns))
        self._rows = {}
        self._count = self._bytes = 0


@contextmanager
def csv_rows(path: Path, sink: Sink, counts: Counter[str]) -> Iterator[Iterator[list[str]]]:
    """Open a CSV file and give its rows, the header as the first, one at a time; empty lines are no rows.

    Raises
    ------
    NotFoundError, BrokenFileError
        As `profilers.readers.common.source.open_source` and its stream.
    """
    with open_source(path, sink.limit_bytes) as stream, io.BufferedReader(stream, 1 << 20) as buffered:
        yield _rows(_lines(buffered, counts), counts)
        counts["truncated_files"] |= int(getattr(stream, "truncated", False))


def _lines(stream: BinaryIO, counts: Counter[str]) -> Iterator[str]:
    """Yield lines; one that is too long is lost."""
    first = True
    while line := stream.readline(_LONGEST_LINE):
        if len(line) == _LONGEST_LINE and not line.endswith(b"\n"):
            while (rest := stream.readline(_LONGEST_LINE)) and not rest.endswith(b"\n"):
                pass
            counts["events"] += 1
            counts["dropped_broken"] += 1
            continue
        text = line.removeprefix(b"\xef\xbb\xbf" if first else b"")
        first = False
        try:
            yield text.decode("utf-8")
        except UnicodeDecodeError:
            counts["repaired_utf8"] = 1
            yield text.decode("utf-8", "replace")


def _rows(lines: Iterable[str], counts: Counter[str]) -> Iterator[list[str]]:
    reader = csv.reader(lines)
    while True:
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error:
            # A field larger than 128 KB, as behind a quote that is never closed; reading goes on with the next line.
            counts["events"] += 1
            counts["dropped_broken"] += 1
            continue
        if row:
            yield row


def check_not_empty(path: Path, counts: Counter[str]) -> None:
    """Raise where no row was kept, and say why.

    Raises
    ------
    BrokenFileError
        Nothing was kept.
    """
    if counts["kept"]:
        return
    if not counts["events"]:
        raise BrokenFileError(f"{path}: has a header and no row; was anything recorded?")
    lost = ", ".join(f"{n} {name}" for name, n in sorted(counts.items()) if n and name not in ("events", "kept"))
    raise BrokenFileError(f"{path}: none of its {counts['events']} rows can be used ({lost})")
