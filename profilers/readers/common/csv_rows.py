"""CSV files, row by row or in blocks of columns, and batches of events for a sink.

A file may be packed, truncated or damaged; losses are counted. `csv_rows` yields its rows. `blocks` yields columns,
which Arrow parses from blocks of whole lines; a block with a line that does not fit the header is parsed again line by
line, so that damage costs only the lines that it touches.

`Batches` takes events one at a time and writes them to a sink column by column. `CountedKernels` writes kernels with
their counters.
"""

import csv
import io
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
from pyarrow import csv as arrow_csv

from profilers.readers.common.reader import Sink
from profilers.readers.common.recording import RowBlock, text_list
from profilers.readers.common.source import open_source, require_events
from profilers.trace.schema import SCHEMAS

#: A longer line is damage: a quote that is never closed, or bytes that are no text.
_LONGEST_LINE = 1 << 20
_BOM = b"\xef\xbb\xbf"
_BATCH_ROWS = 65536
_BATCH_BYTES = 32 << 20


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
            A row with an integer that its column cannot hold is counted as ``dropped_broken``.
        """
        self._rows.setdefault(kind, []).append(row)
        self._count += 1
        self._bytes += len(row["name"]) + len(row.get("args") or "") + len(row.get("shapes") or "")
        if self._count >= _BATCH_ROWS or self._bytes >= _BATCH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write the events that are not written yet; call it after the last event."""
        for kind, rows in self._rows.items():
            fitting = _fitting(kind, rows)
            self._counts["dropped_broken"] += len(rows) - len(fitting)
            if fitting:
                columns = {name: [row[name] for row in fitting] for name in fitting[0]}
                self._counts["kept"] += len(self._sink.write(kind, columns))
        self._rows = {}
        self._count = self._bytes = 0


def _fitting(kind: str, rows: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the rows whose integers all fit their columns."""
    fields = [field for field in SCHEMAS[kind] if pa.types.is_integer(field.type) and field.name in rows[0]]
    for field in fields:  # a loop over rows, 0.05 us each
        name, limit = field.name, 1 << (field.type.bit_width - 1)
        rows = [row for row in rows if not isinstance(row[name], int) or abs(row[name]) < limit]
    return rows


@contextmanager
def csv_rows(path: Path, sink: Sink, counts: Counter[str], delimiter: str = ",") -> Iterator[Iterator[list[str]]]:
    """Open a CSV file and yield its rows, with the header as the first; empty lines are skipped.

    Parameters
    ----------
    path : Path
        A file in UTF-8, plain or packed (gzip, zstd and others).
    sink : Sink
        Its `limit_bytes` limits the size of the unpacked file.
    counts : Counter
        Counts of the reader. Lines that cannot be decoded are added to ``events`` and ``dropped_broken``.
    delimiter : str
        Character between two cells.

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
        yield _rows(_lines(buffered, counts), counts, delimiter)
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
        text = line.removeprefix(_BOM if first else b"")
        first = False
        try:
            yield text.decode("utf-8")
        except UnicodeDecodeError:
            counts["repaired_utf8"] = 1
            yield text.decode("utf-8", "replace")


def _rows(lines: Iterable[str], counts: Counter[str], delimiter: str) -> Iterator[list[str]]:
    """Yield the rows of CSV lines.

    A quote that is never closed would swallow the lines after it: to the end of the file, or until the field has
    128 KB. Its line is counted and dropped, and reading continues with the next line.
    """
    source, again, record = iter(lines), deque[str](), list[str]()

    def feed() -> Iterator[str]:
        while (line := again.popleft() if again else next(source, "")) != "":
            record.append(line)
            yield line
        record.append("")

    reader = csv.reader(feed(), delimiter=delimiter)
    while True:
        record.clear()
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error:
            is_unclosed = True
        else:
            # The file ends before the quote does. In the last line, only that line is its content.
            is_unclosed = record[-1] == "" and len(record) > 2
        if is_unclosed:
            counts["events"] += 1
            counts["dropped_broken"] += 1
            again.extendleft(reversed([line for line in record[1:] if line]))
            reader = csv.reader(feed(), delimiter=delimiter)
        elif row:
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
        No event was kept; the message gives the reason.
    """
    require_events(path, counts, if_empty="has a header and no row", advice="see that it is whole", rows="rows")


class CountedKernels:
    """Kernels with the counters that were measured of them, given to a sink in batches.

    Parameters
    ----------
    sink : Sink
        Takes the events.
    counts : Counter
        Counts of the reader; events that were written are added to ``kept``.
    """

    def __init__(self, sink: Sink, counts: Counter[str]) -> None:
        self._sink = sink
        self._counts = counts
        self._kernels: list[dict[str, Any]] = []
        self._counters: list[tuple[int, Mapping[str, Any]]] = []
        self._bytes = 0

    def add_counter(self, counter: Mapping[str, Any]) -> None:
        """Add the name, value and unit of a counter of the next kernel."""
        self._counters.append((len(self._kernels), counter))

    def add(self, kernel: dict[str, Any]) -> None:
        """Add a kernel: the same columns for all, with ``rank``, ``start_ns``, ``name`` and ``args`` among them."""
        self._kernels.append(kernel)
        self._bytes += len(kernel["name"]) + len(kernel["args"] or "")
        if len(self._counters) + len(self._kernels) >= _BATCH_ROWS or self._bytes >= _BATCH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write the events that are not written yet; call it after the last kernel."""
        if not self._kernels:
            return
        kernels = self._kernels
        ids = self._sink.write("kernels", {name: [kernel[name] for kernel in kernels] for name in kernels[0]})
        self._counts["kept"] += len(ids)
        batches = Batches(self._sink, self._counts)
        for row, counter in self._counters:
            start = {"rank": kernels[row]["rank"], "start_ns": kernels[row]["start_ns"]}
            batches.add("counters", {**start, **counter, "kernel_id": int(ids[row])})
        batches.flush()
        self._kernels, self._counters, self._bytes = [], [], 0


_BLOCK = 4 << 20


def blocks(path: Path, sink: Sink, counts: Counter[str]) -> Iterator[RowBlock]:
    """Yield the rows of a CSV file as columns of texts, named by its first line.

    A line with more or fewer fields than the header is counted as ``dropped_broken``. If it is the last line and has
    no line end, the file was cut off, which is counted too.

    Parameters
    ----------
    path : Path
        The file, plain or packed.
    sink : Sink
        Receives the progress of reading; its limit bounds the unpacked size.
    counts : Counter
        Counts of lost lines, updated.

    Raises
    ------
    NotFoundError, BrokenFileError
        As `profilers.readers.common.source.open_source` and its stream.
    """
    names: list[str] = []
    for lines in _whole_lines(path, sink, counts):
        text = _decoded(lines, counts)
        if not names:
            first, _, text = text.partition(b"\n")
            names = distinct(name.strip() for name in _fields(first.decode()) or [""])
        block = _parsed(text, names) or _line_by_line(text, names, counts)
        if block.rows:
            yield block


def _whole_lines(path: Path, sink: Sink, counts: Counter[str]) -> Iterator[bytes]:
    """Yield the file in pieces of whole lines; only the last piece may lack its line end."""
    rest = b""
    with open_source(path, sink.limit_bytes) as raw, io.BufferedReader(raw, 1 << 20) as stream:
        first = True
        while piece := stream.read(_BLOCK):
            piece = rest + (piece.removeprefix(_BOM) if first else piece)
            first = False
            end = piece.rfind(b"\n") + 1
            rest = piece[end:]
            if len(rest) > _LONGEST_LINE:
                counts["events"] += 1
                counts["dropped_broken"] += 1
                rest = b""
            if end:
                yield piece[:end]
            sink.advance(raw.tell())
        counts["truncated_files"] += bool(getattr(raw, "truncated", False))
    if rest:
        yield rest


def _decoded(lines: bytes, counts: Counter[str]) -> bytes:
    """Return lines as valid UTF-8; invalid bytes are replaced, which is counted."""
    try:
        lines.decode()
    except UnicodeDecodeError:
        counts["repaired_utf8"] = 1
        return lines.decode("utf-8", "replace").encode()
    return lines


def _parsed(text: bytes, names: Sequence[str]) -> RowBlock | None:
    """Return lines as Arrow parses them; None if a line does not fit the header or spans several lines."""
    types = dict.fromkeys(names, pa.string())
    count = text.count(b"\n") + (not text.endswith(b"\n"))
    if not text.strip():
        return RowBlock({})
    try:
        table = arrow_csv.read_csv(
            io.BytesIO(text),
            arrow_csv.ReadOptions(column_names=list(names), block_size=len(text) + 1, use_threads=False),
            convert_options=arrow_csv.ConvertOptions(column_types=types, strings_can_be_null=False),
        )
    except pa.ArrowException:
        return None
    return RowBlock({name: table[name].combine_chunks() for name in names}) if table.num_rows == count else None


def _line_by_line(text: bytes, names: Sequence[str], counts: Counter[str]) -> RowBlock:
    """Return the lines that fit the header; a Python loop over the lines of a damaged block, 2 us each."""
    rows = []
    lines = text.decode().split("\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        cells = _fields(line)
        if cells is not None and len(cells) == len(names):
            rows.append(cells)
            continue
        counts["events"] += 1
        counts["dropped_broken"] += 1
        counts["truncated_files"] += number == len(lines)
    columns = zip(*rows, strict=True) if rows else ((),) * len(names)
    return RowBlock({name: text_list(values) for name, values in zip(names, columns, strict=True)})


def _fields(line: str) -> list[str] | None:
    """Return the fields of one line; None if the line is no CSV."""
    try:
        return next(csv.reader([line.rstrip("\r")], strict=True), None)
    except csv.Error:
        return None
