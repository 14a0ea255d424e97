"""NumPy views of Arrow columns, with nulls made explicit."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["MISSING", "arrow_array", "dense_keys", "ends", "integers", "put", "strings", "text_array"]

#: Stands for null inside an int64 array while one is computed; it never reaches a table.
MISSING = np.iinfo(np.int64).min

Ints = npt.NDArray[np.int64]


def integers(table: pa.Table, column: str) -> Ints:
    """Return an integer column as int64, null as `MISSING`; a view where the column has no null."""
    values = table[column]
    if values.null_count:
        values = pc.fill_null(values.cast(pa.int64()), int(MISSING))
    return np.asarray(values.to_numpy()).astype(np.int64, copy=False)


def ends(table: pa.Table) -> Ints:
    """Return the end of every row in ns; a row without a duration ends where it starts."""
    duration = integers(table, "dur_ns")
    return np.asarray(integers(table, "start_ns") + np.where(duration == MISSING, 0, duration), dtype=np.int64)


def strings(table: pa.Table, column: str) -> npt.NDArray[np.object_]:
    """Return a text column as an object array, null as None."""
    values = table[column]
    plain = values.cast(pa.string()) if pa.types.is_dictionary(values.type) else values
    return np.asarray(plain.to_numpy(zero_copy_only=False), dtype=object)


def arrow_array(values: npt.NDArray[Any], missing: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    """Return an Arrow array of the same numbers, null where `missing`; without a copy of the numbers.

    ``pyarrow.array`` does the same and loads pandas to see whether it is given a series, a tenth of a second.
    """
    valid = None
    if missing is not None and missing.any():
        valid = pa.py_buffer(np.packbits(~missing, bitorder="little"))
    values = np.ascontiguousarray(values)
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [valid, pa.py_buffer(values)])


def put(table: pa.Table, column: str, values: npt.NDArray[Any]) -> pa.Table:
    """Return `table` with an integer column replaced; `MISSING` becomes null."""
    index = table.schema.get_field_index(column)
    field = table.schema.field(index)
    array = arrow_array(values.astype(np.int64, copy=False), values == MISSING).cast(field.type)
    return table.set_column(index, field, array)


def dense_keys(*pairs: tuple[Ints, Ints]) -> list[Ints]:
    """Return for each pair of arrays one key a row, such that equal pairs of values have equal keys everywhere.

    The keys are dense, so that they fit int64 whatever the values.
    """
    first, second = (np.concatenate([pair[side] for pair in pairs]) for side in (0, 1))
    if len(first) and (first == first[0]).all():
        keys = second
    else:
        distinct, dense = np.unique(second, return_inverse=True)
        keys = np.unique(first, return_inverse=True)[1] * max(len(distinct), 1) + dense
    return np.split(keys, np.cumsum([len(pair[0]) for pair in pairs])[:-1])


def text_array(texts: Sequence[str]) -> pa.Array:
    """Return an Arrow array of texts; as `arrow_array`, without loading pandas."""
    encoded = [text.encode() for text in texts]
    offsets = np.zeros(len(encoded) + 1, np.int32)
    np.cumsum([len(raw) for raw in encoded], out=offsets[1:])
    return pa.StringArray.from_buffers(len(encoded), pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded)))
