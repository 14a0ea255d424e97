"""Tables of a recording: Parquet files with columns of known types, within bounds; what is not is named by row."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from profilers.errors import InvalidInputError, NotFoundError

__all__ = ["Column", "read_rows"]

#: Of a file, and of its rows: a plan of ten minutes has some ten thousand.
_BYTES, _ROWS = 2**28, 1_000_000
_TEXT = 300


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


def read_rows(file: Path, columns: Sequence[Column]) -> list[dict[str, Any]]:
    """Return the rows of a Parquet file, of these columns only.

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
    table = _table(file, [column.name for column in columns])
    found = {column.name: _values(file, table, column) for column in columns}
    # One pass over the rows, some us each.
    return [dict(zip(found, values, strict=True)) for values in zip(*found.values(), strict=True)]


def _table(file: Path, names: Sequence[str]) -> pa.Table:
    if not file.is_file():
        raise NotFoundError(f"{file}: no such file; a recording has works.parquet, alone.parquet and together.parquet")
    if file.stat().st_size > _BYTES:
        raise InvalidInputError(f"{file}: larger than {_BYTES} bytes, so no table of a recording")
    try:
        parquet = pq.ParquetFile(file)
        have = parquet.schema_arrow.names
        for name in names:
            if have.count(name) != 1:
                what = "no column" if name not in have else "more than one column"
                raise InvalidInputError(f"{file}: {what} {name!r}; needed once each are {', '.join(names)}")
        if not 0 < parquet.metadata.num_rows <= _ROWS:
            raise InvalidInputError(f"{file}: {parquet.metadata.num_rows} rows; a table has 1 to {_ROWS}")
        return parquet.read(columns=list(names))
    except (pa.ArrowException, OSError, UnicodeDecodeError, ValueError) as error:
        raise InvalidInputError(f"{file}: cannot be read as Parquet ({str(error)[:_TEXT]})") from error


def _values(file: Path, table: pa.Table, column: Column) -> list[Any]:
    wanted = pa.string() if column.low is None else pa.int64()
    try:
        type_ = table.schema.field(column.name).type
        if column.low is not None and not (pa.types.is_integer(type_) or pa.types.is_null(type_)):
            raise pa.ArrowInvalid(f"it is {type_}, not whole numbers")
        values = table[column.name].cast(wanted).to_pylist()
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise InvalidInputError(f"{file}: column {column.name} is no {wanted} ({str(error)[:_TEXT]})") from error
    # A comparison a value, about 0.1 us each.
    for row, value in enumerate(values):
        if not _fine(value, column):
            raise InvalidInputError(f"{file}: row {row + 1}: {column.name} is {value!r:.60}; {_rule(column)}")
    return list(values)


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
