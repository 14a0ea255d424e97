"""Rows of CSV files, and batches of events for a sink.

`csv_rows` reads a file that may be packed, truncated or damaged, and counts what is lost. `exact_ns` reads a time
without rounding twice. `Batches` takes events one at a time and writes them to a sink column by column.
"""

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

#: A longer line is damage: a quote that is never closed, or bytes that are no text.
_LONGEST_LINE = 1 << 20
_BATCH_ROWS = 65536
_BATCH_BYTES = 32 << 20
#: Wide enough for every digit of a time, so that it is rounded once: to the nanosecond.
_EXACT = Context(prec=400, Emin=-9999, Emax=9999)


def distinct(names: Iterable[str]) -> list[str]:
    """Return column names without repetition: a name that was used before gets the number of its column.

    Examples
    --------
    >>> distinct(["a", "b", "a"])
    ['a', 'b', 'a.3']
    """
    columns: dict[str, None] = {}
    for number, name in enumerate(names, 1):
        while name in columns:
            name = f"{name}.{number}"
        columns[name] = None
    return list(columns)


def exact_ns(text: str, power: int) -> int | None:
    """Return a decimal number times a power of ten in whole nanoseconds; None if `text` is no time.

    Parameters
    ----------
    text : str
        A decimal number, with or without an exponent.
    power : int
        Exponent of ten of the unit in nanoseconds: 3 for microseconds, 6 for milliseconds, 9 for seconds.

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
    """Events that are added one at a time and written to a sink in batches.

    Parameters
    ----------
    sink : Sink
        Takes the batches.
    counts : Counter
        Counts of the reader; events that were written are added to ``kept``.
    """

    def __init__(self, sink: Sink, counts: Counter[str]) -> None:
        self._sink = sink
        self._counts = counts
        self._rows: dict[str, list[Mapping[str, Any]]] = {}
        self._count = self._bytes = 0

    def add(self, kind: str, row: Mapping[str, Any]) -> None:
        """Add an event.

        Parameters
        ----------
        kind : str
            Kind of the event, such as ``"kernels"``.
        row : mapping of str to value
            Value of each column, None for null. All rows of a kind have the same columns; ``name`` is one of them.
        """
        self._rows.setdefault(kind, []).append(row)
        self._count += 1
        self._bytes += len(row["name"]) + len(row.get("args") or "")
        if self._count >= _BATCH_ROWS or self._bytes >= _BATCH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write the events that are not written yet; call it after the last event."""
        for kind, rows in self._rows.items():
            columns = {name: [row[name] for row in rows] for name in rows[0]}
            self._counts["kept"] += len(self._sink.write(kind, columns))
        self._rows = {}
        self._count = self._bytes = 0


@contextmanager
def csv_rows(path: Path, sink: Sink, counts: Counter[str]) -> Iterator[Iterator[list[str]]]:
    """Open a CSV file and yield its rows, with the header as the first; empty lines are skipped.

    Parameters
    ----------
    path : Path
        A file in UTF-8, plain or packed (gzip, zstd and others).
    sink : Sink
        Its `limit_bytes` limits the size of the unpacked file.
    counts : Counter
        Counts of the reader. Lines that cannot be decoded are added to ``events`` and ``dropped_broken``.

    Yields
    ------
    iterator of list of str
        The cells of each row, as text.

    Raises
    ------
    NotFoundError, BrokenFileError
        As `profilers.readers.common.source.open_source` and its stream.
    """
    with open_source(path, sink.limit_bytes) as stream, io.BufferedReader(stream, 1 << 20) as buffered:
        yield _rows(_lines(buffered, counts), counts)
        counts["truncated_files"] |= int(getattr(stream, "truncated", False))


def _lines(stream: BinaryIO, counts: Counter[str]) -> Iterator[str]:
    """Yield lines; a line that is too long is counted and dropped."""
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
            # A field over 128 KB, as after a quote that is never closed. Reading goes on with the next line.
            counts["events"] += 1
            counts["dropped_broken"] += 1
            continue
        if row:
            yield row


def check_not_empty(path: Path, counts: Counter[str]) -> None:
    """Raise an error if no event of a file was kept.

    Parameters
    ----------
    path : Path
        The file, for the message.
    counts : Counter
        Counts of the reader; ``events`` and ``kept`` are needed, all others are listed in the message.

    Raises
    ------
    BrokenFileError
        No event was kept; the message says why.
    """
    if counts["kept"]:
        return
    if not counts["events"]:
        raise BrokenFileError(f"{path}: has a header and no row; was anything recorded?")
    reasons = ", ".join(f"{n} {name}" for name, n in sorted(counts.items()) if n and name not in ("events", "kept"))
    raise BrokenFileError(f"{path}: none of its {counts['events']} rows can be used ({reasons})")
