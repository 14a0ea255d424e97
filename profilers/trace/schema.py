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


def _field(name: str, type_: pa.DataType, unit: str = "", *, nullable: bool = True) -> pa.Field:
    return pa.field(name, type_, nullable=nullable, metadata={"unit": unit} if unit else None)


def _ns(name: str, *, nullable: bool = True) -> pa.Field:
    return _field(name, pa.int64(), "ns", nullable=nullable)


#: Rank of the rows of a recording that states none, until the recordings are assembled.
OWN_RANK = -1

#: Columns of every kind of event.
COMMON: tuple[pa.Field, ...] = (
    _field("id", pa.int64(), nullable=False),
    _field("rank", pa.int32(), nullable=False),
    _field("name", _NAME, nullable=False),
    _ns("start_ns", nullable=False),
    _ns("dur_ns"),
    _field("iteration", pa.int32()),
)
_ARGS = _field("args", _NAME, "JSON object")
_HOST = (_field("process", pa.int64()), _field("thread", pa.int64()))
_DEVICE = (_field("device", pa.int32()), _field("stream", pa.int64()), _field("queue", pa.int64()))
_CAUSE = (_field("correlation", pa.int64()), _field("launch_id", pa.int64()), _field("op_id", pa.int64()))

_EXTRA: dict[str, tuple[pa.Field, ...]] = {
    # An operator of the framework on the host (aten::mm, an autograd function).
    "ops": (
        *_HOST,
        _field("external_id", pa.int64()),
        _field("sequence_number", pa.int64()),
        _field("forward_thread", pa.int64()),
        _field("record_function_id", pa.int64()),
        _field("event_index", pa.int64()),
        _field("shapes", _NAME, "JSON array"),
        _field("dtypes", _NAME, "JSON array"),
        _field("strides", _NAME, "JSON array"),
        _field("concrete_inputs", _NAME, "JSON array"),
    ),
    # A call of the CUDA or HIP runtime or driver.
    "launches": (
        *_HOST,
        _field("api", _NAME),
        _field("correlation", pa.int64()),
        _field("external_id", pa.int64()),
        _field("op_id", pa.int64()),
    ),
    # A kernel on the device, the communication kernels included.
    "kernels": (
        *_DEVICE,
        *_CAUSE,
        _field("external_id", pa.int64()),
        _field("workgroups", pa.int64(), "1"),
        _field("workgroup_size", pa.int32(), "work-items"),
        _field("registers", pa.int32(), "per work-item"),
        _field("lds_bytes", pa.int64(), "B"),
        _field("occupancy", pa.float32(), "%"),
        _field("graph_node", pa.int64()),
        _field("collective_id", pa.int64()),
    ),
    # A memory copy or fill.
    "copies": (
        *_DEVICE,
        *_CAUSE,
        _field("external_id", pa.int64()),
        _field("bytes", pa.int64(), "B"),
        _field("direction", _NAME),
    ),
    # A collective operation; its time is that of its kernel where it has one.
    "collectives": (
        _field("kernel_id", pa.int64()),
        _field("op_id", pa.int64()),
        _field("collective", _NAME),
        _field("elements_in", pa.int64(), "1"),
        _field("elements_out", pa.int64(), "1"),
        _field("dtype", _NAME),
        _field("bytes", pa.int64(), "B"),
        _field("group_name", _NAME),
        _field("group_size", pa.int32(), "ranks"),
        _field("group_ranks", pa.string(), "JSON array"),
        _field("sequence", pa.int32(), "order in the group on this rank"),
        _field("match_id", pa.int64(), "the same number on every rank that takes part"),
    ),
    # A synchronisation as the profiler saw it (cuda_sync).
    "syncs": (
        _field("sync", _NAME),
        _field("device", pa.int32()),
        _field("stream", pa.int64()),
        _field("wait_on_stream", pa.int64()),
        _field("event", pa.int64()),
        _field("event_correlation", pa.int64()),
        _field("correlation", pa.int64()),
        _field("launch_id", pa.int64()),
    ),
    # Whatever else has a name and a duration: annotations, Python functions, overhead.
    "ranges": (
        *_HOST,
        _field("category", _NAME),
        _field("device", pa.int32()),
        _field("stream", pa.int64()),
        _field("external_id", pa.int64()),
        _field("record_function_id", pa.int64()),
        _field("event_index", pa.int64()),
        _field("python_id", pa.int64()),
        _field("python_parent_id", pa.int64()),
        _field("python_module_id", pa.int64()),
    ),
    # A value at an instant, or of a kernel.
    "counters": (
        *_HOST,
        _field("category", _NAME),
        _field("value", pa.float64()),
        _field("unit", _NAME),
        _field("kernel_id", pa.int64()),
    ),
}

#: One row an iteration and rank; ``found_by`` says how its limits and its length were found.
_ITERATIONS = pa.schema(
    [
        _field("rank", pa.int32(), nullable=False),
        _field("iteration", pa.int32(), nullable=False),
        _field("name", pa.string(), nullable=False),
        _ns("start_ns", nullable=False),
        _ns("dur_ns", nullable=False),
        _field("found_by", _NAME, nullable=False),
        _field("sequence_length", pa.int64(), "tokens"),
        _field("length_found_by", _NAME),
        _field("batch", pa.int64(), "sequences"),
    ]
)

#: The kinds of event, in the order in which they are stored.
KINDS: tuple[str, ...] = tuple(_EXTRA)

#: Every table of a trace: the kinds of event, and ``iterations``.
SCHEMAS: Mapping[str, pa.Schema] = MappingProxyType(
    {kind: pa.schema([*COMMON, *extra, _ARGS]) for kind, extra in _EXTRA.items()} | {"iterations": _ITERATIONS}
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
        Tables with the same columns, or none.
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


def fill_table(kind: str, table: pa.Table) -> pa.Table:
    """Return `table` with every column of its kind; columns that it lacks are null."""
    present = set(table.schema.names)
    arrays = [
        table[field.name] if field.name in present else pa.nulls(table.num_rows, field.type) for field in SCHEMAS[kind]
    ]
    return pa.Table.from_arrays(arrays, schema=SCHEMAS[kind])


def _column(values: Any, type_: pa.DataType) -> Any:
    if isinstance(values, np.ndarray) and values.dtype == np.int64:
        values = arrow_array(values, values == MISSING)
    if isinstance(values, list):
        values = _listed(values, type_)
    if isinstance(values, pa.Array | pa.ChunkedArray) and values.type == type_:
        return values
    if pa.types.is_dictionary(type_):
        plain = values if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values, type_.value_type)
        return plain.cast(type_.value_type).dictionary_encode().cast(type_)
    return values.cast(type_) if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values, type_)


def _listed(values: list[Any], type_: pa.DataType) -> Any:
    """Return a list of texts or whole numbers as an Arrow array, and any other list as it is."""
    types = {type(value) for value in values} - {type(None)}
    if types == {str}:
        return text_array(values)
    if types == {int} and all(value is None or -_WIDE < value < _WIDE for value in values):
        numbers = np.array([MISSING if value is None else value for value in values], np.int64)
        return arrow_array(numbers, numbers == MISSING)
    return values if types else pa.nulls(len(values), type_)
