"""CSV files of ROCm's tools, read in blocks of whole lines in bounded memory.

Arrow parses a block. A block with a line that does not fit the header is parsed again line by line, so that damage
costs only the lines that it touches.
"""

import csv
import io
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
from pyarrow import csv as arrow_csv

from profilers.readers.common.csv_rows import distinct
from profilers.readers.common.reader import Sink
from profilers.readers.common.recording import Block, text_list
from profilers.readers.common.source import open_source

_BLOCK = 4 << 20
#: Bytes of the longest line; a longer one is damage, such as a file without line ends.
_LONGEST_LINE = 1 << 20
_BOM = b"\xef\xbb\xbf"


def blocks(path: Path, sink: Sink, counts: Counter[str]) -> Iterator[Block]:
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
    for lines in _lines(path, sink, counts):
        text = _decoded(lines, counts)
        if not names:
            first, _, text = text.partition(b"\n")
            names = distinct(name.strip() for name in _fields(first.decode()) or [""])
        block = _parsed(text, names) or _line_by_line(text, names, counts)
        if block.rows:
            yield block


def _lines(path: Path, sink: Sink, counts: Counter[str]) -> Iterator[bytes]:
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


def _parsed(text: bytes, names: Sequence[str]) -> Block | None:
    """Return lines as Arrow parses them; None if a line does not fit the header or spans several lines."""
    types = dict.fromkeys(names, pa.string())
    count = text.count(b"\n") + (not text.endswith(b"\n"))
    if not text.strip():
        return Block({})
    try:
        table = arrow_csv.read_csv(
            io.BytesIO(text),
            arrow_csv.ReadOptions(column_names=list(names), block_size=len(text) + 1, use_threads=False),
            convert_options=arrow_csv.ConvertOptions(column_types=types, strings_can_be_null=False),
        )
    except pa.ArrowException:
        return None
    return Block({name: table[name].combine_chunks() for name in names}) if table.num_rows == count else None


def _line_by_line(text: bytes, names: Sequence[str], counts: Counter[str]) -> Block:
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
    return Block({name: text_list(values) for name, values in zip(names, columns, strict=True)})


def _fields(line: str) -> list[str] | None:
    """Return the fields of one line; None if the line is no CSV."""
    try:
        return next(csv.reader([line.rstrip("\r")], strict=True), None)
    except csv.Error:
        return None
