"""CSV files of AMD's tools in blocks of columns of texts, in bounded memory; lines that do not fit are counted."""

import codecs
import io
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import csv

from profilers.errors import BrokenFileError
from profilers.reader import Head, Sink
from profilers.source import open_source

__all__ = ["blocks"]

_BLOCK = 4 << 20


def blocks(path: Path, sink: Sink, counts: Counter[str]) -> Iterator[dict[str, pa.Array]]:
    """Yield the columns of a CSV file with a header, block by block, as strings.

    Raises
    ------
    BrokenFileError
        It is no CSV file.
    """
    names = Head.of(path).columns

    def passed_over(row: csv.InvalidRow) -> str:
        counts["events"] += 1
        counts["dropped_broken"] += 1
        return "skip"

    parse = csv.ParseOptions(newlines_in_values=True, invalid_row_handler=passed_over)
    types = dict.fromkeys(names, pa.string())
    convert = csv.ConvertOptions(column_types=types, strings_can_be_null=False)
    raw = open_source(path, sink.limit_bytes)
    try:
        with raw, io.BufferedReader(_Text(raw, counts), _BLOCK) as stream:
            reader = csv.open_csv(stream, csv.ReadOptions(block_size=_BLOCK), parse, convert)
            for batch in reader:
                yield {name: batch.column(i).cast(pa.string()) for i, name in enumerate(batch.schema.names)}
    except pa.ArrowException as error:
        if not counts["events"]:
            raise BrokenFileError(
                f"{path}: no CSV file that can be read ({str(error).splitlines()[0][:150]})"
            ) from error
        counts["truncated_files"] = 1
    counts["truncated_files"] |= getattr(raw, "truncated", False)


class _Text(io.RawIOBase):
    """A stream in which bytes that are no UTF-8 are replaced, and counted once."""

    def __init__(self, raw: Any, counts: Counter[str]) -> None:
        self._raw, self._counts = raw, counts
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        while not self._rest:
            block = bytearray(_BLOCK)
            count = self._raw.readinto(block) or 0
            text = self._decoder.decode(bytes(block[:count]), final=not count)
            self._counts["repaired_utf8"] |= "\ufffd" in text
            self._rest = text.encode()
            if not count:
                break
        count = min(len(view), len(self._rest))
        view[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count
