"""Tables of a recording: Parquet files with columns of known types, within bounds; what is not is named by row."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from profilers.errors import InvalidInputError, NotFoundError

__all__ = ["Column", "read_rows", "regular_file"]

#: Of a file, of what its columns unpack to, and of its rows: a plan of ten minutes has some twenty thousand.
_BYTES, _UNPACKED, _ROWS = 2**28, 2**28, 400_000
_TEXT = 300
#: Rows that are read at a time.
_BATCH = 2**16


@dataclass(frozen=True)
class Column:
    """What a column may hold.

    Parameters
    ----------
    name : str
    low, high : int, optional
        Of whole numbers; without them, it is text.
    optional : bool
        Whether null may stand for what is not known.
    """

    name: str
    low: int | None = None
    high: int | None = None
    optional: bool = False


def read_rows(file: Path, columns: Sequence[Column]) -> Iterator[dict[str, Any]]:
    """Yield the rows of a Parquet file, of these columns only.

    Parameters
    ----------
    file : Path
    columns : sequence of Column

    Raises
    ------
    NotFoundError
        There is no such file.
    InvalidInputError
        It is no Parquet, too large, without a row, lacks a column, has it twice or as another type; or a value is out
        of bounds: file and row (from 1) are named.
    """
    names, first = [column.name for column in columns], 1
    # One pass over the rows, some us each.
    for batch in _batches(file, columns):
        values = [_values(file, batch.column(column.name), column, first) for column in columns]
        yield from (dict(zip(names, row, strict=True)) for row in zip(*values, strict=True))
        first += batch.num_rows


def regular_file(file: Path, what: str) -> None:
    """Refuse what is no regular file; `what` is said where there is nothing at all.

    Raises
    ------
    NotFoundError, InvalidInputError
        There is nothing; or a folder, a pipe or a device.
    """
    if file.is_file():
        return
    if file.exists():
        raise InvalidInputError(f"{file}: is no regular file")
    raise NotFoundError(f"{file}: no such file; {what}")


def _batches(file: Path, columns: Sequence[Column]) -> Iterator[pa.RecordBatch]:
    regular_file(file, "a recording has works.parquet, alone.parquet and together.parquet")
    if file.stat().st_size > _BYTES:
        raise InvalidInputError(f"{file}: larger than {_BYTES} bytes, so no table of a recording")
    names = [column.name for column in columns]
    try:
        with pq.ParquetFile(file) as parquet:
            metadata = parquet.metadata
            _check_columns(file, parquet.schema_arrow, columns)
            _check_size(file, metadata, names)
        # A text that many rows have is then in memory once, however long it is.
        texts = [column.name for column in columns if column.low is None]
        with pq.ParquetFile(file, metadata=metadata, read_dictionary=texts) as parquet:
            yield from parquet.iter_batches(_BATCH, columns=names)
    except (pa.ArrowException, OSError, UnicodeDecodeError, MemoryError, ValueError) as error:
        raise InvalidInputError(f"{file}: cannot be read as Parquet ({str(error)[:_TEXT]})") from error


def _check_columns(file: Path, schema: pa.Schema, columns: Sequence[Column]) -> None:
    names = [column.name for column in columns]
    for column in columns:
        if schema.names.count(column.name) != 1:
            what = "no column" if column.name not in schema.names else "more than one column"
            raise InvalidInputError(f"{file}: {what} {column.name!r}; needed once each are {', '.join(names)}")
        type_ = schema.field(column.name).type
        held = type_.value_type if pa.types.is_dictionary(type_) else type_
        fine, wanted = pa.types.is_integer(type_), "whole numbers"
        if column.low is None:
            fine, wanted = pa.types.is_string(held) or pa.types.is_large_string(held), "text"
        # A column of nulls alone has no other type.
        if not (fine or pa.types.is_null(held)):
            raise InvalidInputError(f"{file}: column {column.name} is {str(type_)[:_TEXT]}, not {wanted}")


def _check_size(file: Path, metadata: pq.FileMetaData, names: Sequence[str]) -> None:
    """Refuse what a small file may unpack to, before it does."""
    if not 0 < metadata.num_rows <= _ROWS:
        raise InvalidInputError(f"{file}: {metadata.num_rows} rows; a table has 1 to {_ROWS}")
    unpacked = 0
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        chunks = map(group.column, range(group.num_columns))
        unpacked += sum(one.total_uncompressed_size for one in chunks if one.path_in_schema in names)
    if unpacked > _UNPACKED:
        raise InvalidInputError(f"{file}: unpacks to {unpacked} bytes; a table of a recording has at most {_UNPACKED}")


def _values(file: Path, found: pa.Array, column: Column, first: int) -> list[Any]:
    """Return the values of a column; `first` is the number of its first row."""
    try:
        values = found.cast(pa.int64()).to_pylist() if column.low is not None else _texts(found)
    except (pa.ArrowException, UnicodeDecodeError) as error:
        wanted = "text" if column.low is None else "whole numbers"
        raise InvalidInputError(f"{file}: column {column.name} is no {wanted} ({str(error)[:_TEXT]})") from error
    # A comparison a value, about 0.1 us each.
    for row, value in enumerate(values, first):
        if not _fine(value, column):
            raise InvalidInputError(f"{file}: row {row}: {column.name} is {value!r:.60}; {_rule(column)}")
    return list(values)


def _texts(found: pa.Array) -> list[str | None]:
    if not pa.types.is_dictionary(found.type):
        return list(found.cast(pa.string()).to_pylist())
    texts = found.dictionary.to_pylist()
    return [None if place is None else texts[place] for place in found.indices.to_pylist()]


def _fine(value: Any, column: Column) -> bool:
    if value is None:
        return column.optional
    if column.low is None or column.high is None:
        return len(value) <= _TEXT
    return bool(column.low <= value <= column.high)


def _rule(column: Column) -> str:
    null = ", or null where it is not known" if column.optional else ""
    if column.low is None:
        return f"it must be a text of at most {_TEXT} characters{null}"
    return f"it must be {column.low} to {column.high}{null}"
