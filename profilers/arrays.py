"""NumPy views of Arrow columns, with nulls made explicit."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["MISSING", "arrow_array", "dense_keys", "ends", "integers", "numbers", "put", "strings", "text_array"]

#: Stands for null inside an int64 array while one is computed; it never reaches a table.
MISSING = np.iinfo(np.int64).min

Ints = npt.NDArray[np.int64]


def integers(table: pa.Table, column: str) -> Ints:
    """Return an integer column as int64, null as `MISSING`; a view where the column has no null."""
    return numbers(table[column], int(MISSING)).astype(np.int64, copy=False)


def numbers(values: pa.ChunkedArray | pa.Array, null: int) -> npt.NDArray[Any]:
    """Return whole numbers as NumPy's, `null` for null and then int64; a view of one piece without nulls.

    ``to_numpy`` and ``fill_null`` do the same and load pandas, as ``pyarrow.array`` does: a tenth of a second.
    """
    pieces = [values] if isinstance(values, pa.Array) else values.chunks
    views = [_view(piece, null) for piece in pieces]
    if len(views) == 1:
        return views[0]
    return np.concatenate(views) if views else np.zeros(0, np.int64)


def _view(piece: pa.Array, null: int) -> npt.NDArray[Any]:
    if not len(piece):
        return np.zeros(0, np.int64)
    valid, data = piece.buffers()
    width = piece.type.bit_width // 8
    view = np.frombuffer(data, piece.type.to_pandas_dtype(), len(piece), piece.offset * width)
    if not piece.null_count:
        return view
    bits = np.unpackbits(np.frombuffer(valid, np.uint8), count=piece.offset + len(piece), bitorder="little")
    return np.where(bits[piece.offset :], view.astype(np.int64, copy=False), null)


def ends(table: pa.Table) -> Ints:
    """Return the end of every row in ns; a row without a duration ends where it starts."""
    duration = integers(table, "dur_ns")
    return np.asarray(integers(table, "start_ns") + np.where(duration == MISSING, 0, duration), dtype=np.int64)


def strings(table: pa.Table, column: str) -> npt.NDArray[np.object_]:
    """Return a text column as an object array, null as None."""
    values = table[column]
    plain = values.cast(pa.string()) if pa.types.is_dictionary(values.type) else values
    texts = np.empty(len(plain), object)
    texts[:] = plain.to_pylist()
    return texts


def arrow_array(values: npt.NDArray[Any], missing: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    """Return an Arrow array of the same numbers or flags, null where `missing`; without a copy of the numbers.

    ``pyarrow.array`` does the same and loads pandas to see whether it is given a series, a tenth of a second.
    """
    valid = None
    if missing is not None and missing.any():
        valid = pa.py_buffer(np.packbits(~missing, bitorder="little"))
    if values.dtype == np.bool_:
        bits = pa.py_buffer(np.packbits(values, bitorder="little"))
        return pa.Array.from_buffers(pa.bool_(), len(values), [valid, bits])
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


def text_array(texts: Sequence[str | None]) -> pa.Array:
    """Return an Arrow array of texts; as `arrow_array`, without loading pandas."""
    encoded = [b"" if text is None else text.encode() for text in texts]
    offsets = np.zeros(len(encoded) + 1, np.int32)
    np.cumsum([len(raw) for raw in encoded], out=offsets[1:])
    valid = np.packbits([text is not None for text in texts], bitorder="little") if None in texts else None
    buffers = [pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded)), None if valid is None else pa.py_buffer(valid)]
    return pa.StringArray.from_buffers(len(encoded), *buffers)
