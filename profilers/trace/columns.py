"""Operations on whole integer columns: lookups, lanes, distinct combinations.

`lookup` finds values by key. `combinations` numbers the distinct rows of several columns, `LaneNumbers` does so across
batches, and `Spelling` makes one text for each. `overhead_rows` finds the overhead in a table of ranges, `user_ranges`
what the program wrote.
"""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from profilers.trace.arrays import MISSING, Ints, arrow_array, encode_text, strings, text_array
from profilers.trace.compiled import compiled
from profilers.trace.schema import ANNOTATIONS, OVERHEAD, QUEUE_FULL

_REMEMBERED = 100_000


class Spelling:
    """An encoder of rows of integers as texts.

    Parameters
    ----------
    spell : callable
        Returns the text of a row of integers, in which None stands for null, or None for a null text.

    Examples
    --------
    >>> Spelling(lambda row: "-".join(map(str, row))).encode([np.array([1, 2, 1]), np.array([5, 5, 5])]).to_pylist()
    ['1-5', '2-5', '1-5']
    """

    def __init__(self, spell: Callable[[tuple[int | None, ...]], str | None]) -> None:
        self._spell = spell
        self._texts: dict[tuple[int, ...], str | None] = {}

    def encode(self, columns: Sequence[Ints]) -> pa.DictionaryArray:
        """Return the text of each row of some columns."""
        codes, firsts = combinations(np.stack(columns))
        if len(self._texts) > _REMEMBERED:
            self._texts.clear()
        # A Python loop over distinct combinations, 0.1 us for each that is remembered.
        rows = zip(*(column[firsts].tolist() for column in columns), strict=True)
        return encoded(codes, text_array([self._text(row) for row in rows]))

    def _text(self, row: tuple[int, ...]) -> str | None:
        if row not in self._texts:
            self._texts[row] = self._spell(tuple(None if value == MISSING else value for value in row))
        return self._texts[row]


def constant(text: str, rows: int) -> pa.DictionaryArray:
    """Return a column that holds the same text in every row."""
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array([text]))


def taken(values: Any, rows: npt.NDArray[np.intp]) -> Any:
    """Return rows of a column, which is a NumPy or an Arrow array."""
    return values[rows] if isinstance(values, np.ndarray) else values.take(pa.array(rows))


def encoded(codes: npt.NDArray[np.int32], texts: pa.Array) -> pa.DictionaryArray:
    """Return a dictionary-encoded column with the text of each code; a null text gives null.

    Parameters
    ----------
    codes : array of int32
        Positions in `texts`.
    texts : Array
        Texts, which may repeat.
    """
    distinct = texts.dictionary_encode()
    return pa.DictionaryArray.from_arrays(distinct.indices.take(arrow_array(codes)), distinct.dictionary)


def combinations(rows: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int32], Ints]:
    """Return a code for each row, equal where rows are equal, and the first row of each code.

    Parameters
    ----------
    rows : array of int64, shape (columns, rows)
        The columns.
    """
    count = rows.shape[1]
    codes = np.empty(count, dtype=np.int32)
    firsts = np.empty(count, dtype=np.int64)
    table = np.full(1 << max(4, (2 * count).bit_length()), -1, dtype=np.int32)
    salt = np.uint64(int.from_bytes(os.urandom(8), "little"))  # so that no file can be made to collide
    distinct = _number(np.ascontiguousarray(rows), table, codes, firsts, salt)
    return codes, firsts[:distinct]


def row_groups(*columns: Ints) -> list[Ints]:
    """Return the rows of each combination of values, in the order of the values; rows of one keep their order.

    Unlike `combinations` it compiles nothing, and sorts.

    Parameters
    ----------
    *columns : array of int64, shape (n,)
        At least one column.

    Examples
    --------
    >>> [rows.tolist() for rows in row_groups(np.array([5, 4, 5]), np.array([0, 0, 0]))]
    [[1], [0, 2]]
    """
    if not len(columns[0]):
        return []
    order = np.lexsort(columns[::-1])
    changes = np.logical_or.reduce([np.diff(column[order]) != 0 for column in columns])
    return np.split(order, np.flatnonzero(changes) + 1)


@compiled
def _number(rows, table, codes, firsts, salt):  # type: ignore[no-untyped-def]
    """Give each distinct row the next number, through a hash table with open addressing."""
    mask = len(table) - 1
    distinct = 0
    for row in range(rows.shape[1]):
        key = salt
        for column in range(rows.shape[0]):
            key = (key ^ np.uint64(rows[column, row])) * np.uint64(0x9E3779B97F4A7C15)
            key ^= key >> np.uint64(29)
        slot = np.int64(key & np.uint64(mask))
        while table[slot] >= 0 and not _same(rows, firsts[table[slot]], row):
            slot = (slot + 1) & mask
        if table[slot] < 0:
            table[slot] = distinct
            firsts[distinct] = row
            distinct += 1
        codes[row] = table[slot]
    return distinct


@compiled
def _same(rows, first, second):  # type: ignore[no-untyped-def]
    for column in range(rows.shape[0]):  # noqa: SIM110 - numba compiles no generator
        if rows[column, first] != rows[column, second]:
            return False
    return True


#: Name of a computed column: a number for each thread of a process of a rank, and for kernels of each stream of a
#: device of a rank.
LANE = "lane"
#: Rows of a block.
_BLOCK = 1 << 18


def row_slices(count: int) -> Iterator[slice]:
    """Yield the slices of blocks that cover `count` rows."""
    for first in range(0, count, _BLOCK):
        yield slice(first, min(first + _BLOCK, count))


def lookup(keys: Ints, values: Ints, sought: Ints) -> Ints:
    """Return the value of every sought key, or `MISSING`; the first value if a key repeats.

    Parameters
    ----------
    keys, values : array of int64, shape (n,)
        Keys and their values.
    sought : array of int64
        Keys to look up; `MISSING` has no value.
    """
    if not len(keys):
        return np.full(len(sought), MISSING)
    if keys[0] <= keys[-1] and (np.diff(keys) == 1).all():
        row = sought - keys[0]
        hit = (sought >= keys[0]) & (sought <= keys[-1])
        return np.where(hit, values[np.where(hit, row, 0)], MISSING)
    order = sorting(keys)
    position = np.minimum(np.searchsorted(keys, sought, sorter=order), len(keys) - 1)
    row = position if order is None else order[position]
    hit = (keys[row] == sought) & (sought != MISSING)
    return np.where(hit, values[row], MISSING)


def sorting(values: Ints) -> npt.NDArray[np.intp] | None:
    """Return the stable order that sorts `values`, or None if they are sorted."""
    return None if (values[1:] >= values[:-1]).all() else np.argsort(values, kind="stable")


class LaneNumbers:
    """A numbering of combinations of integers, such as (rank, process, thread), across batches.

    Examples
    --------
    >>> lanes = LaneNumbers()
    >>> lanes.of([np.array([0, 0, 1]), np.array([7, 7, 7])]).tolist(), lanes.of([np.array([1]), np.array([7])]).tolist()
    ([0, 0, 1], [1])
    """

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, ...], int] = {}

    def of(self, columns: Sequence[Ints]) -> Ints:
        """Return the number of each row."""
        codes, firsts = combinations(np.stack(columns))
        rows = zip(*(column[firsts].tolist() for column in columns), strict=True)
        numbers = [self._numbers.setdefault(row, len(self._numbers)) for row in rows]
        return np.array(numbers, np.int64)[codes]

    def distinct(self) -> list[tuple[int, ...]]:
        """Return the combinations in the order of their numbers."""
        return list(self._numbers)


def by_lane(lanes: Callable[[], Iterator[Ints]]) -> list[npt.NDArray[np.int32]]:
    """Return the rows of each lane, in their order.

    Parameters
    ----------
    lanes : callable
        Yields the lane of every row, a block of rows at a time; called twice.
    """
    counts = np.zeros(0, np.int64)
    for block in lanes():
        total = np.bincount(block, minlength=len(counts))
        total[: len(counts)] += counts
        counts = total
    ends = np.cumsum(counts)
    order, following = np.empty(int(counts.sum()), np.int32), ends - counts
    first = 0
    for block in lanes():
        _append(order, following, block, first)
        first += len(block)
    return np.split(order, ends[:-1])


@compiled
def _append(order: Any, following: Any, lanes: Any, first: Any) -> None:
    """Put each row, from `first` on, behind the rows of its lane."""
    for i in range(len(lanes)):
        order[following[lanes[i]]] = first + i
        following[lanes[i]] += 1


def overhead_rows(ranges: pa.Table) -> tuple[Ints, Ints]:
    """Return the rows of the records of a full launch queue, and of the profiler's own overhead.

    Parameters
    ----------
    ranges : Table
        Ranges of a trace.
    """
    rows = np.flatnonzero(strings(ranges, "category") == OVERHEAD)
    names = strings(ranges.select(["name"]).take(arrow_array(rows)), "name")
    is_full = np.array([QUEUE_FULL in str(name).lower() for name in names], dtype=bool)
    return rows[is_full], rows[~is_full]


#: Names of functions of libraries that write a range for each call.
_LIBRARY = re.compile(r"(?:nccl|rccl)[A-Z]|(?:cu|hip|roc)(?:blas|dnn|fft|rand|solver|sparse|tensor)|nvshmem|MPI_")


def user_ranges(ranges: pa.Table) -> Ints:
    """Return the rows of the ranges that a program or its framework wrote, without the calls of libraries.

    Parameters
    ----------
    ranges : Table
        Ranges of a trace.
    """
    codes, names = encode_text(ranges["name"])
    is_call = np.array([*(_LIBRARY.match(str(name)) is not None for name in names), True], dtype=bool)
    return np.flatnonzero((strings(ranges, "category") == ANNOTATIONS) & ~is_call[codes])
