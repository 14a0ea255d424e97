"""Arrow columns as NumPy arrays, and back, without loading pandas.

`integers`, `strings` and `numbers` read columns, and `arrow_array`, `text_array` and `put` write them. Null is
`MISSING` in between. `Growing`, `Narrowed` and `Runs` are columns that take rows at their end without a second copy of
themselves in memory. `union_length` measures half-open intervals.
"""

from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

#: Stands for null inside an int64 array while one is computed; it never reaches a table.
MISSING = np.iinfo(np.int64).min

#: Arrays of whole numbers, of real numbers and of flags.
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


def integers(table: pa.Table, column: str) -> Ints:
    """Return an integer column as int64, with `MISSING` for null; a view if the column has no null."""
    return numbers(table[column], int(MISSING)).astype(np.int64, copy=False)


def integers_or_missing(table: pa.Table, column: str) -> Ints:
    """Return an integer column; `MISSING` throughout if the table lacks it."""
    return integers(table, column) if column in table.schema.names else np.full(table.num_rows, MISSING)


def numbers(values: pa.ChunkedArray | pa.Array, null: float) -> npt.NDArray[Any]:
    """Return a column of numbers as a NumPy array, with the number `null` for null; a view of one chunk without nulls.

    ``to_numpy`` and ``fill_null`` do the same, but load pandas, which takes a tenth of a second.

    Parameters
    ----------
    values : ChunkedArray or Array
        A column of whole or other numbers.
    null : int or float
        The number for null; a column of whole numbers with nulls becomes int64.
    """
    pieces = [values] if isinstance(values, pa.Array) else values.chunks
    views = [_view(piece, null) for piece in pieces]
    if len(views) == 1:
        return views[0]
    return np.concatenate(views) if views else np.zeros(0, np.int64)


def _view(piece: pa.Array, null: float) -> npt.NDArray[Any]:
    if not len(piece):
        return np.zeros(0, np.int64)
    valid, data = piece.buffers()
    width = piece.type.bit_width // 8
    view = np.frombuffer(data, piece.type.to_pandas_dtype(), len(piece), piece.offset * width)
    if not piece.null_count:
        return view
    bits = np.unpackbits(np.frombuffer(valid, np.uint8), count=piece.offset + len(piece), bitorder="little")
    return np.where(bits[piece.offset :], view if view.dtype.kind == "f" else view.astype(np.int64, copy=False), null)


def ends(table: pa.Table) -> Ints:
    """Return the end of every event in ns; an event without a duration ends at its start."""
    duration = integers(table, "dur_ns")
    return np.asarray(integers(table, "start_ns") + np.where(duration == MISSING, 0, duration), dtype=np.int64)


def strings(table: pa.Table, column: str) -> npt.NDArray[np.object_]:
    """Return a text column as an object array, with None for null."""
    values = table[column]
    plain = values.cast(pa.string()) if pa.types.is_dictionary(values.type) else values
    texts = np.empty(len(plain), object)
    texts[:] = plain.to_pylist()
    return texts


def encode_text(column: pa.ChunkedArray) -> tuple[Ints, npt.NDArray[np.object_]]:
    """Return a text column as codes, -1 for null, and the text of each code.

    Parameters
    ----------
    column : ChunkedArray
        Texts, dictionary-encoded or plain.

    Examples
    --------
    >>> codes, texts = encode_text(pa.chunked_array([["mm", None, "add", "mm"]]))
    >>> codes.tolist(), texts.tolist()
    ([0, -1, 1, 0], ['mm', 'add'])
    """
    if not len(column):
        return np.zeros(0, np.int64), np.empty(0, object)
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    unified = column.unify_dictionaries()
    texts = unified.chunk(0).dictionary.to_pylist()
    codes = integers(pa.table({"code": pa.chunked_array([chunk.indices for chunk in unified.chunks])}), "code")
    values = np.empty(len(texts), object)
    values[:] = texts
    return np.where(codes == MISSING, -1, codes), values


def text_codes(texts: pa.ChunkedArray, codes: dict[str | None, int]) -> Ints:
    """Return a number for each text of a dictionary-encoded column, the same number in all tables.

    Parameters
    ----------
    texts : ChunkedArray
        A dictionary-encoded column; null has a number too.
    codes : dict of str to int
        The number of each text; takes the texts that are new.

    Examples
    --------
    >>> codes = {}
    >>> text_codes(pa.chunked_array([pa.array(["mm", "add", "mm"]).dictionary_encode()]), codes).tolist()
    [0, 1, 0]
    """
    column = texts.combine_chunks()
    numbers_of = [codes.setdefault(text, len(codes)) for text in [*column.dictionary.to_pylist(), None]]
    result: Ints = np.array(numbers_of)[numbers(column.indices, len(numbers_of) - 1)]
    return result


def arrow_array(values: npt.NDArray[Any], missing: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    """Return an Arrow array that shares the memory of a NumPy array; flags are copied.

    ``pyarrow.array`` does the same, but loads pandas, which takes a tenth of a second.

    Parameters
    ----------
    values : array of int, float or bool
        The values.
    missing : array of bool, optional
        Rows that are null.
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
    """Return one key a row for each pair of arrays; equal pairs of values have equal keys in all of them.

    The keys fit int64 whatever the values.

    Parameters
    ----------
    *pairs : tuple of (array of int64, array of int64)
        Two columns of equal length.
    """
    first, second = (np.concatenate([pair[side] for pair in pairs]) for side in (0, 1))
    if len(first) and (first == first[0]).all():
        keys = second
    else:
        distinct, dense = np.unique(second, return_inverse=True)
        keys = np.unique(first, return_inverse=True)[1] * max(len(distinct), 1) + dense
    return np.split(keys, np.cumsum([len(pair[0]) for pair in pairs])[:-1])


def row_keys(*columns: Ints) -> Ints:
    """Return one key a row, equal for rows with equal values in all columns.

    Parameters
    ----------
    *columns : array of int64
        Columns of equal length.

    Examples
    --------
    >>> row_keys(np.array([7, 8, 7]), np.array([0, 0, 1]), np.array([2, 2, 2])).tolist()
    [0, 2, 1]
    """
    return reduce(lambda first, second: dense_keys((first, second))[0], columns)


def text_array(texts: Sequence[str | None]) -> pa.Array:
    """Return an Arrow array of texts, with null for None, without loading pandas."""
    encoded = [b"" if text is None else text.encode() for text in texts]
    offsets = np.zeros(len(encoded) + 1, np.int32)
    np.cumsum([len(raw) for raw in encoded], out=offsets[1:])
    valid = np.packbits([text is not None for text in texts], bitorder="little") if None in texts else None
    buffers = [pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded)), None if valid is None else pa.py_buffer(valid)]
    return pa.StringArray.from_buffers(len(encoded), *buffers)


def union_length(start: npt.NDArray[Any], end: npt.NDArray[Any]) -> float:
    """Return the length of the union of intervals.

    Parameters
    ----------
    start, end : array, shape (n,)
        Intervals in one unit, with ``end >= start``.

    Examples
    --------
    >>> union_length(np.array([0.0, 5.0, 20.0]), np.array([10.0, 12.0, 21.0]))
    13.0
    """
    if not len(start):
        return 0.0
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    reach = np.maximum.accumulate(end)
    fresh = np.maximum(start[1:], reach[:-1])
    return float(end[0] - start[0] + np.maximum(reach[1:] - fresh, 0).sum())


#: Rows of the first block, and the most rows that it grows by; growing moves pages, not bytes.
_FIRST, _STEP = 1 << 14, 1 << 18
_WIDTHS = tuple(np.dtype(f"int{bits}") for bits in (8, 16, 32, 64))


class Growing:
    """A growing array of one type in one block of memory, which the system can enlarge in place.

    A list of small arrays would fragment the memory, so that it is not returned to the system.

    Parameters
    ----------
    dtype : dtype
        Type of the values.

    Examples
    --------
    >>> column = Growing(np.int64)
    >>> column.append(np.arange(3))
    >>> column.append(np.arange(2))
    >>> column.values()
    array([0, 1, 2, 0, 1])
    """

    def __init__(self, dtype: Any) -> None:
        self._values: npt.NDArray[Any] = np.empty(_FIRST, dtype)
        self._count = 0

    def append(self, values: npt.NDArray[Any]) -> None:
        """Add values at the end; arrays that `values` returned before are no longer valid."""
        count = self._count + len(values)
        if count > len(self._values):
            self._values.resize(max(count, len(self._values) + min(len(self._values), _STEP)), refcheck=False)
        self._values[self._count : count] = values
        self._count = count

    def values(self) -> npt.NDArray[Any]:
        """Return all values as a view, which is valid until more are appended."""
        return self._values[: self._count]


class Narrowed:
    """A growing column of integers in the fewest bits that hold them all, 8 to 64; null is `MISSING`.

    Parameters
    ----------
    least : dtype
        The narrowest type to use.

    Examples
    --------
    >>> column = Narrowed()
    >>> column.append(np.array([3, MISSING]))
    >>> column.append(np.array([1 << 40]))
    >>> column.take(slice(None)).tolist() == [3, MISSING, 1 << 40]
    True
    """

    def __init__(self, least: Any = np.int8) -> None:
        self._block = Growing(least)

    def append(self, values: npt.NDArray[Any]) -> None:
        """Add values at the end."""
        if not len(values):
            return
        missing = values == MISSING
        some = bool(missing.any())
        dtype = self._fitting(values[~missing] if some else values)
        if dtype != self.raw().dtype:
            wider = Growing(dtype)
            for first in range(0, len(self.raw()), _STEP):
                wider.append(_narrow(self.take(slice(first, first + _STEP)), dtype))
            self._block = wider
        self._block.append(_narrow(values, dtype) if some else values)

    def _fitting(self, present: npt.NDArray[Any]) -> Any:
        """Return the narrowest type that holds the numbers and leaves its least number free."""
        current = self.raw().dtype
        low, high = (int(present.min()), int(present.max())) if len(present) else (0, 0)
        fits = (
            w for w in _WIDTHS if w.itemsize >= current.itemsize and np.iinfo(w).min < low and high <= np.iinfo(w).max
        )
        return next(fits, _WIDTHS[-1])

    def raw(self) -> npt.NDArray[Any]:
        """Return all values in their current width, with its least number for null; a view not to be changed."""
        return self._block.values()

    def take(self, rows: slice | npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """Return the values of some rows, in the order of `rows`; not to be changed."""
        return _wide(self.raw()[rows])


def _narrow(values: npt.NDArray[np.int64], dtype: Any) -> npt.NDArray[Any]:
    return np.where(values == MISSING, np.iinfo(dtype).min, values).astype(dtype, copy=False)


def _wide(values: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    if values.dtype == np.int64:
        return values
    wide = values.astype(np.int64)
    wide[values == np.iinfo(values.dtype).min] = MISSING
    return wide


class Runs:
    """A growing column of integers that rise by one or stay equal over long runs, as ids do; it keeps only the runs.

    Examples
    --------
    >>> ids = Runs()
    >>> ids.append(np.array([4, 5, 6, 9, 9]))
    >>> ids.append(np.array([9, 10]))
    >>> ids.take(np.arange(7)).tolist()
    [4, 5, 6, 9, 9, 9, 10]
    """

    def __init__(self) -> None:
        self._count = 0
        self._firsts = Growing(np.int64)
        self._starts = Growing(np.int64)
        self._steps = Growing(np.int64)

    def append(self, values: npt.NDArray[Any]) -> None:
        """Add values at the end."""
        if not len(values):
            return
        step = np.diff(values)
        plain = (step == 0) | (step == 1)
        cuts = np.flatnonzero(~plain | np.append(False, step[1:] != step[:-1])[: len(step)]) + 1
        starts = np.append(0, cuts)
        steps = np.zeros(len(starts), np.int64)
        within = starts < len(step)
        steps[within] = np.where(plain[starts[within]], step[starts[within]], 0)
        self._firsts.append(starts + self._count)
        self._starts.append(values[starts])
        self._steps.append(steps)
        self._count += len(values)

    def raw(self) -> npt.NDArray[np.int64]:
        """Return all values."""
        return self.take(slice(None))

    def take(self, rows: slice | npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """Return the values of some rows, in the order of `rows`."""
        if isinstance(rows, slice):
            rows = np.arange(*rows.indices(self._count))
        firsts = self._firsts.values()
        run = np.searchsorted(firsts, rows, "right") - 1
        taken: npt.NDArray[np.int64] = self._starts.values()[run] + self._steps.values()[run] * (rows - firsts[run])
        return taken


#: Rows of a block.
_BLOCK_ROWS = 1 << 20


def row_blocks(size: int) -> Iterator[slice]:
    """Yield slices that cover `size` rows in blocks, so that temporary arrays stay small."""
    for start in range(0, size, _BLOCK_ROWS):
        yield slice(start, min(start + _BLOCK_ROWS, size))
