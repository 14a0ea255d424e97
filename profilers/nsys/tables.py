"""The tables of an export, wherever they lie: in a SQLite file, or one a file in a folder."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from profilers.arrays import MISSING, Ints
from profilers.errors import BrokenFileError, NotFoundError

__all__ = ["SUFFIXES", "TableFolder", "Tables", "until_damage", "whole_numbers"]

#: What ``nsys export --type parquetdir`` and ``arrowdir`` write.
SUFFIXES = (".parquet", ".arrow", ".arrows")
_BATCH = 65536
_BUFFER_BYTES = 1 << 18
_FAILURES = (pa.ArrowException, OSError, ValueError)


class Tables(Protocol):
    """Tables by name, read column by column; `profilers.database.Database` is one."""

    @property
    def path(self) -> Path:
        """What the user named, for messages."""
        ...

    @property
    def tables(self) -> Mapping[str, tuple[str, ...]]:
        """The names of the columns of each table."""
        ...

    def read(self, table: str, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Yield batches of columns, as `profilers.database.Database.read`."""
        ...


class TableFolder:
    """A folder with one Parquet or Arrow file a table.

    Parameters
    ----------
    path : Path
    limit_bytes : int
        What the Parquet files may unpack to.

    Raises
    ------
    BrokenFileError
        The schema of a table cannot be read, or the tables unpack to more than the limit.
    """

    def __init__(self, path: Path, limit_bytes: int) -> None:
        self.path = path
        self._limit = limit_bytes
        self._files = {file.stem: file for file in _listed(path) if file.suffix in SUFFIXES}
        self.tables: Mapping[str, tuple[str, ...]] = MappingProxyType(
            {table: tuple(self._schema(file).names) for table, file in self._files.items()}
        )

    def _schema(self, file: Path) -> pa.Schema:
        try:
            if file.suffix != ".parquet":
                with pa.OSFile(str(file)) as raw:
                    return _open_arrow(raw).schema
            with pq.ParquetFile(file) as parquet:
                groups = range(parquet.num_row_groups)
                self._limit -= sum(parquet.metadata.row_group(group).total_byte_size for group in groups)
                if self._limit < 0:
                    raise BrokenFileError(f"{self.path}: unpacks to more than the limit; raise it if you trust it")
                return parquet.schema_arrow
        except _FAILURES as error:
            raise BrokenFileError(f"{file}: no readable table ({_line(error)}); export it again") from error

    def read(self, table: str, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Yield batches of columns, as `profilers.database.Database.read`."""
        if table not in self.tables:
            raise BrokenFileError(f"{self.path}: has no table {table}")
        present = [name for name in columns if name in self.tables[table]]
        try:
            for batch in self._batches(self._files[table], present):
                found = {name: _values(batch.column(name)) for name in present}
                yield {name: found.get(name, np.full(batch.num_rows, MISSING)) for name in columns}
        except _FAILURES as error:
            raise BrokenFileError(f"{self._files[table]}: the table is damaged ({_line(error)})") from error

    def _batches(self, file: Path, columns: list[str]) -> Iterator[pa.RecordBatch]:
        if file.suffix == ".parquet":
            with pq.ParquetFile(file, buffer_size=_BUFFER_BYTES) as parquet:
                for group in range(parquet.num_row_groups):  # asked for all of them, Arrow holds on to what it read
                    yield from parquet.iter_batches(_BATCH, row_groups=[group], columns=columns, use_threads=False)
            return
        with pa.OSFile(str(file)) as raw:
            opened = _open_arrow(raw)
            stored = (
                opened
                if isinstance(opened, pa.RecordBatchStreamReader)
                else map(opened.get_batch, range(opened.num_record_batches))
            )
            for batch in stored:
                batch.validate(full=True)  # Arrow's own reader trusts the offsets in a file
                for first in range(0, batch.num_rows, _BATCH):
                    yield batch.slice(first, _BATCH)


def _listed(path: Path) -> list[Path]:
    try:
        return sorted(file for file in path.iterdir() if file.is_file())
    except OSError as error:
        raise NotFoundError(f"{path}: cannot be read ({error.strerror}); check its rights") from error


def _open_arrow(raw: Any) -> Any:
    """Open an Arrow file, which may be in the file format or in the stream format."""
    try:
        return pa.ipc.open_file(raw)
    except pa.ArrowInvalid:
        raw.seek(0)
        return pa.ipc.open_stream(raw)


def _line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _values(column: Any) -> Any:
    """Return a column as `profilers.database.Database.read` gives it."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_integer(column.type) or pa.types.is_boolean(column.type) or pa.types.is_null(column.type):
        return pc.fill_null(column.cast(pa.int64(), safe=False), int(MISSING)).to_numpy(zero_copy_only=False)
    if pa.types.is_floating(column.type):
        return column.cast(pa.float64())
    if pa.types.is_timestamp(column.type) or pa.types.is_duration(column.type):
        return pc.fill_null(column.cast(pa.int64()), int(MISSING)).to_numpy(zero_copy_only=False)
    return column.cast(pa.string())


def until_damage(batches: Iterator[dict[str, Any]], counts: Counter[str] | None = None) -> Iterator[dict[str, Any]]:
    """Yield the batches of a table that come before its damage, which is counted as ``damaged_tables``."""
    try:
        yield from batches
    except BrokenFileError:
        if counts is not None:
            counts["damaged_tables"] += 1


def whole_numbers(values: Any) -> Ints:
    """Return a column as int64, `MISSING` where it holds no integer."""
    if isinstance(values, np.ndarray):
        return values
    if not pa.types.is_floating(values.type):
        return np.full(len(values), MISSING)
    reals = values.to_numpy(zero_copy_only=False)
    fits = (np.abs(reals) < 1 << 53) & (np.trunc(reals) == reals)  # what float64 counts exactly
    return np.where(fits, np.where(fits, reals, 0).astype(np.int64), MISSING)
