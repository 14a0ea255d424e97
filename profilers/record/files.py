"""Where the rows of a log go: a CSV file that grows, or a Parquet file that is written at the end."""

import io
import os
from array import array
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Protocol

from profilers.atomic import written_whole
from profilers.errors import InvalidInputError, NotFoundError

__all__ = ["CsvRows", "ParquetRows", "RowFile", "row_file"]

Row = tuple[int | float, ...]
#: Names of the columns, each with whether it holds whole numbers.
Columns = tuple[tuple[str, bool], ...]


class RowFile(Protocol):
    """Takes rows.

    To write the same rows at the same place again changes nothing, so that a write which was interrupted before
    its caller noted it can be repeated.
    """

    def write(self, columns: Columns, rows: Sequence[Row], at: int) -> int:
        """Take rows that begin at `at`, 0 for the first, and return where the next ones begin."""

    def finish(self, columns: Columns) -> None:
        """Put the file in its place, whole."""


def row_file(path: Path) -> RowFile:
    """Return what writes `path`, by its suffix; nothing is written yet.

    Raises
    ------
    InvalidInputError, NotFoundError
        The suffix is neither .csv nor .parquet, or the folder is missing or may not be written.

    Examples
    --------
    >>> type(row_file(Path("log.csv"))).__name__
    'CsvRows'
    """
    kinds: dict[str, type[CsvRows] | type[ParquetRows]] = {".csv": CsvRows, ".parquet": ParquetRows}
    kind = kinds.get(path.suffix.lower())
    if kind is None:
        raise InvalidInputError(f"{path}: a log is a .csv or a .parquet file; change its name")
    if not path.parent.is_dir():
        raise NotFoundError(f"{path}: its folder does not exist; make it first")
    if path.is_dir() or not os.access(path.parent, os.W_OK | os.X_OK):
        raise InvalidInputError(f"{path}: cannot be written (it is a folder, or lies in one that is read-only)")
    return kind(path)


class CsvRows:
    """A CSV file: its first rows replace what was there, whole; later ones are appended, whole lines at a time.

    Parameters
    ----------
    path : Path
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, columns: Columns, rows: Sequence[Row], at: int) -> int:
        """Put rows at the byte `at`, and return the byte after them."""
        lines = [",".join(map(repr, row)) for row in rows]
        text = "".join(f"{line}\n" for line in lines).encode()
        if at == 0:
            text = ",".join(name for name, _ in columns).encode() + b"\n" + text
            with written_whole(self._path) as stream:
                stream.write(text)
        else:
            self._append(text, at)
        return at + len(text)

    def _append(self, text: bytes, at: int) -> None:
        try:
            with self._path.open("r+b", buffering=0) as stream:
                try:
                    if os.pwrite(stream.fileno(), text, at) != len(text):
                        raise OSError(0, "the disk took only a part")
                except OSError:
                    stream.truncate(at)  # no half line stays
                    raise
        except OSError as error:
            raise InvalidInputError(f"{self._path}: cannot be written ({error.strerror})") from error

    def finish(self, columns: Columns) -> None:
        """Do nothing: the rows are there."""


class ParquetRows:
    """A Parquet file: rows wait in memory, 8 bytes a value, until `finish`.

    Parameters
    ----------
    path : Path
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._values: list[array[int] | array[float]] = []

    def write(self, columns: Columns, rows: Sequence[Row], at: int) -> int:
        """Keep rows from the row `at` on, and return the row after them."""
        if not self._values:
            self._values = [array("q" if is_whole else "d") for _, is_whole in columns]
        for values, new in zip(self._values, zip(*rows, strict=True), strict=bool(rows)):
            values[at:] = array(values.typecode, new)
        return at + len(rows)

    def finish(self, columns: Columns) -> None:
        """Write the file."""
        pa, pq = import_module("pyarrow"), import_module("pyarrow.parquet")
        types = [pa.int64() if is_whole else pa.float64() for _, is_whole in columns]
        arrays = [pa.array(held, type=type_) for held, type_ in zip(self._values, types, strict=True)]
        sink = io.BytesIO()
        pq.write_table(pa.table(arrays, names=[name for name, _ in columns]), sink)
        with written_whole(self._path) as stream:
            stream.write(sink.getbuffer())
