"""The shared language: one Arrow schema a kind of event, with units and nulls.

Every kind starts with the same columns. Times are int64 nanoseconds, intervals are half-open, a missing value is null
(never -1), names are dictionary-encoded, and the metadata of a field names its unit. Facts without a column stay in
``args``, one JSON object a row.
"""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa

from profilers.trace.arrays import MISSING, arrow_array, text_array

#: Whole numbers of smaller magnitude fit int64 and differ from `MISSING`.
_WIDE = 1 << 63
_NAME = pa.dictionary(pa.int32(), pa.string())


def _fields(type_: pa.DataType, *names: str, unit: str = "", nullable: bool = True) -> tuple[pa.Field, ...]:
    """Return columns of one type and unit."""
    metadata = {"unit": unit} if unit else None
    return tuple(pa.field(name, type_, nullable=nullable, metadata=metadata) for name in names)


def _ids(*names: str) -> tuple[pa.Field, ...]:
    """Return columns of ids and other numbers that have no unit."""
    return _fields(pa.int64(), *names)


#: Rank of the rows of a recording that states no rank, until the recordings are assembled.
OWN_RANK = -1

#: Columns of every kind of event.
_COMMON: tuple[pa.Field, ...] = (
    *_fields(pa.int64(), "id", nullable=False),
    *_fields(pa.int32(), "rank", nullable=False),
    *_fields(_NAME, "name", nullable=False),
    *_fields(pa.int64(), "start_ns", unit="ns", nullable=False),
    *_fields(pa.int64(), "dur_ns", unit="ns"),
    *_fields(pa.int32(), "iteration"),
)
_ARGS = _fields(_NAME, "args", unit="JSON object")
_HOST = _ids("process", "thread")
_DEVICE = (*_fields(pa.int32(), "device"), *_ids("stream", "queue"))
_CAUSE = _ids("correlation", "launch_id", "op_id")

_EXTRA: dict[str, tuple[pa.Field, ...]] = {
    # An operator of the framework on the host (aten::mm, an autograd function).
    "ops": (
        *_HOST,
        *_ids("external_id", "sequence_number", "forward_thread", "record_function_id", "event_index"),
        *_fields(_NAME, "shapes", "dtypes", "strides", "concrete_inputs", unit="JSON array"),
    ),
    # A call of the CUDA or HIP runtime or driver.
    "launches": (*_HOST, *_fields(_NAME, "api"), *_ids("correlation", "external_id", "op_id")),
    # A kernel on the device, the communication kernels included.
    "kernels": (
        *_DEVICE,
        *_CAUSE,
        *_ids("external_id"),
        *_fields(pa.int64(), "workgroups", unit="1"),
        *_fields(pa.int32(), "workgroup_size", unit="work-items"),
        *_fields(pa.int32(), "registers", unit="per work-item"),
        *_fields(pa.int64(), "lds_bytes", unit="B"),
        *_fields(pa.float32(), "occupancy", unit="%"),
        *_ids("graph_node", "collective_id"),
    ),
    # A memory copy or fill.
    "copies": (
        *_DEVICE,
        *_CAUSE,
        *_ids("external_id"),
        *_fields(pa.int64(), "bytes", unit="B"),
        *_fields(_NAME, "direction"),
    ),
    # A collective operation; its time is that of its kernel where it has one.
    "collectives": (
        *_ids("kernel_id", "op_id"),
        *_fields(_NAME, "collective"),
        *_fields(pa.int64(), "elements_in", "elements_out", unit="1"),
        *_fields(_NAME, "dtype"),
        *_fields(pa.int64(), "bytes", unit="B"),
        *_fields(_NAME, "group_name"),
        *_fields(pa.int32(), "group_size", unit="ranks"),
        *_fields(pa.string(), "group_ranks", unit="JSON array"),
        *_fields(pa.int32(), "sequence", unit="order in the group on this rank"),
        *_fields(pa.int64(), "match_id", unit="the same number on every rank that takes part"),
    ),
    # A synchronisation as the profiler saw it (cuda_sync).
    "syncs": (
        *_fields(_NAME, "sync"),
        *_fields(pa.int32(), "device"),
        *_ids("stream", "wait_on_stream", "event", "event_correlation", "correlation", "launch_id"),
    ),
    # Whatever else has a name and a duration: annotations, Python functions, overhead.
    "ranges": (
        *_HOST,
        *_fields(_NAME, "category"),
        *_fields(pa.int32(), "device"),
        *_ids("stream", "external_id", "record_function_id", "event_index"),
        *_ids("python_id", "python_parent_id", "python_module_id"),
    ),
    # A value at an instant, or of a kernel.
    "counters": (
        *_HOST,
        *_fields(_NAME, "category"),
        *_fields(pa.float64(), "value"),
        *_fields(_NAME, "unit"),
        *_ids("kernel_id"),
    ),
}

#: One row an iteration and rank; ``found_by`` says how its limits and its length were found.
_ITERATIONS = (
    *_fields(pa.int32(), "rank", "iteration", nullable=False),
    *_fields(pa.string(), "name", nullable=False),
    *_fields(pa.int64(), "start_ns", "dur_ns", unit="ns", nullable=False),
    *_fields(_NAME, "found_by", nullable=False),
    *_fields(pa.int64(), "sequence_length", unit="tokens"),
    *_fields(_NAME, "length_found_by"),
    *_fields(pa.int64(), "batch", unit="sequences"),
    # The file among separate recordings of one rank, in the order of time; null if the rank has one recording.
    *_fields(pa.int32(), "recording"),
)

#: The kinds of event, in the order in which they are stored.
KINDS: tuple[str, ...] = tuple(_EXTRA)

#: Every table of a trace: the kinds of event, and ``iterations``.
SCHEMAS: Mapping[str, pa.Schema] = MappingProxyType(
    {kind: pa.schema([*_COMMON, *extra, *_ARGS]) for kind, extra in _EXTRA.items()}
    | {"iterations": pa.schema(_ITERATIONS)}
)


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
    types = {type(value) for value in values} - {type(None)}
    if types == {str}:
        return text_array(values)
    if types == {int} and all(value is None or -_WIDE < value < _WIDE for value in values):
        numbers = np.array([MISSING if value is None else value for value in values], np.int64)
        return arrow_array(numbers, numbers == MISSING)
    return values if types else pa.nulls(len(values), type_)
