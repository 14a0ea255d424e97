"""The shared language: one Arrow schema a kind of event, with units and nulls.

Every kind starts with the same columns. Times are int64 nanoseconds, intervals are half-open, a missing value is null
(never -1), names are dictionary-encoded, and the metadata of a field names its unit. Facts without a column stay in
``args``, one JSON object a row. The columns of each kind are in `datasets/schema.toml`.
"""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from profilers.files import dataset_path, read_toml, typed_table
from profilers.trace.arrays import MISSING, arrow_array, text_array

#: Whole numbers of smaller magnitude fit int64 and differ from `MISSING`.
_WIDE = 1 << 63
_NAME = pa.dictionary(pa.int32(), pa.string())


#: Rank of the rows of a recording that states no rank, until the recordings are assembled.
OWN_RANK = -1
#: Categories of ranges: functions of Python, overhead of the profiler or the driver, and what the program wrote.
PYTHON_FUNCTION, OVERHEAD, ANNOTATIONS = "python_function", "overhead", "user_annotation"
#: Part of the name of the overhead of a full launch queue, in lower case (CUPTI: "Command Buffer Full").
QUEUE_FULL = "command buffer full"
#: Values of ``found_by`` without marks: no iteration was found, or a period of the kernels.
WHOLE_TRACE, KERNEL_SEQUENCE = "whole trace", "kernel sequence"


class _Column(msgspec.Struct, forbid_unknown_fields=True):
    """A column of a table."""

    type: str
    unit: str = ""
    nullable: bool = True


_Columns = dict[str, _Column]


class _Schemas(msgspec.Struct, forbid_unknown_fields=True):
    """The content of `datasets/schema.toml`, whose head explains its keys."""

    common: _Columns
    rest: _Columns
    events: dict[str, _Columns]
    iterations: _Columns


def _schema(columns: _Columns) -> pa.Schema:
    fields = []
    for name, column in columns.items():
        type_ = _NAME if column.type == "name" else pa.type_for_alias(column.type)
        metadata = {"unit": column.unit} if column.unit else None
        fields.append(pa.field(name, type_, nullable=column.nullable, metadata=metadata))
    return pa.schema(fields)


def _read_schemas() -> Mapping[str, pa.Schema]:
    file = dataset_path("schema.toml")
    content = typed_table(read_toml(file, "columns of events"), _Schemas, str(file))
    events = {kind: _schema(content.common | extra | content.rest) for kind, extra in content.events.items()}
    return MappingProxyType({**events, "iterations": _schema(content.iterations)})


#: Every table of a trace: the kinds of event, and ``iterations``.
SCHEMAS: Mapping[str, pa.Schema] = _read_schemas()

#: The kinds of event, in the order in which they are stored.
KINDS: tuple[str, ...] = tuple(kind for kind in SCHEMAS if kind != "iterations")


def empty_table(kind: str) -> pa.Table:
    """Return a table of `kind` without rows; as the schema's own method, without loading pandas."""
    return pa.Table.from_batches([], SCHEMAS[kind])


def concatenate(kind: str, tables: Iterable[pa.Table], columns: Sequence[str] | None = None) -> pa.Table:
    """Return tables of one kind as one table in one chunk.

    Parameters
    ----------
    kind : str
        One of `KINDS`, or ``"iterations"``.
    tables : iterable of Table
        Tables with the same columns.
    columns : sequence of str, optional
        The columns of the tables; by default all of the kind.
    """
    empty = empty_table(kind) if columns is None else empty_table(kind).select(columns)
    return pa.concat_tables([empty, *tables]).unify_dictionaries().combine_chunks()


def make_table(kind: str, columns: Mapping[str, Any]) -> pa.Table:
    """Return a table of `kind` from columns; columns that are left out are null.

    Parameters
    ----------
    kind : str
        One of `KINDS`, or ``"iterations"``.
    columns : mapping of str to sequence
        Equally long sequences or Arrow arrays by column name.

    Raises
    ------
    KeyError
        A name is no column of this kind.

    Examples
    --------
    >>> make_table("counters", {"id": [1], "rank": [0], "name": ["Power"], "start_ns": [5]}).num_rows
    1
    """
    return fill_table(kind, narrow_table(kind, columns))


def narrow_table(kind: str, columns: Mapping[str, Any]) -> pa.Table:
    """Return a table of `kind` with only these columns, in the order of the schema.

    Parameters
    ----------
    kind : str
        One of `KINDS`, or ``"iterations"``.
    columns : mapping of str to sequence
        Equally long sequences or Arrow arrays by column name.

    Raises
    ------
    KeyError
        A name is no column of this kind.
    """
    if unknown := set(columns) - set(SCHEMAS[kind].names):
        raise KeyError(f"no column {sorted(unknown)} in {kind}")
    fields = [field for field in SCHEMAS[kind] if field.name in columns]
    return pa.Table.from_arrays([_column(columns[f.name], f.type) for f in fields], schema=pa.schema(fields))


def fill_table(kind: str, table: pa.Table, columns: Sequence[str] | None = None) -> pa.Table:
    """Return columns of a kind in the types of its schema; columns that `table` lacks are null.

    Parameters
    ----------
    kind : str
        One of `KINDS`, or ``"iterations"``.
    table : Table
        Rows with some columns of the kind.
    columns : sequence of str, optional
        The columns to return; by default all of the kind.
    """
    schema = SCHEMAS[kind] if columns is None else pa.schema([SCHEMAS[kind].field(name) for name in columns])
    present = set(table.schema.names)
    arrays = []
    for field in schema:
        array = table[field.name] if field.name in present else pa.nulls(table.num_rows, field.type)
        arrays.append(array if array.type == field.type else array.cast(field.type))
    return pa.Table.from_arrays(arrays, schema=schema)


def _column(values: Any, type_: pa.DataType) -> Any:
    """Return values as an Arrow array of a type."""
    if isinstance(values, np.ndarray) and values.dtype == np.int64:
        values = arrow_array(values, values == MISSING)
    if isinstance(values, list):
        values = _listed(values, type_)
    plain_type = type_.value_type if pa.types.is_dictionary(type_) else type_
    if not isinstance(values, pa.Array | pa.ChunkedArray):
        values = pa.array(values, plain_type)
    if values.type == type_:
        return values
    plain = values.cast(plain_type)
    return plain.dictionary_encode().cast(type_) if pa.types.is_dictionary(type_) else plain


def _listed(values: list[Any], type_: pa.DataType) -> Any:
    """Return a list of texts or whole numbers as an Arrow array, and any other list as it is."""
    types = set(map(type, values))
    has_nulls = type(None) in types
    types.discard(type(None))
    if types == {str}:
        return text_array(values)
    if types == {int}:
        known = [value for value in values if value is not None] if has_nulls else values
        if min(known) > -_WIDE and max(known) < _WIDE:
            filled = [MISSING if value is None else value for value in values] if has_nulls else values
            numbers = np.array(filled, np.int64)
            return arrow_array(numbers, numbers == MISSING)
    return values if types else pa.nulls(len(values), type_)
