"""Operations on whole columns: groups, ranks, matches, combinations.

Texts made from the distinct combinations of integers in a batch, each made once.

Integer columns of one file, whether they lie in tables or in a compact form, gone through a part at a time.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from profilers.trace.arrays import MISSING, Ints, arrow_array, integers, numbers, text_array
from profilers.trace.compiled import compiled

_REMEMBERED = 100_000


class Spelling:
    """Turns rows of integers into texts.

    Parameters
    ----------
    spell : callable
        From the integers of a row, None where missing, to its text, or None for no text.

    Examples
    --------
    >>> Spelling(lambda row: "-".join(map(str, row))).encode([np.array([1, 2, 1]), np.array([5, 5, 5])]).to_pylist()
    ['1-5', '2-5', '1-5']
    """

    def __init__(self, spell: Callable[[tuple[int | None, ...]], str | None]) -> None:
        self._spell = spell
        self._texts: dict[tuple[int, ...], str | None] = {}

    def encode(self, columns: Sequence[Ints]) -> pa.DictionaryArray:
        """Return the texts of rows, which are given as columns."""
        codes, firsts = combinations(np.stack(columns))
        if len(self._texts) > _REMEMBERED:
            self._texts.clear()
        # A loop over distinct combinations, 0.1 us for one that is known.
        rows = zip(*(column[firsts].tolist() for column in columns), strict=True)
        return encoded(codes, text_array([self._text(row) for row in rows]))

    def _text(self, row: tuple[int, ...]) -> str | None:
        if row not in self._texts:
            self._texts[row] = self._spell(tuple(None if value == MISSING else value for value in row))
        return self._texts[row]


def text_codes(texts: pa.ChunkedArray, codes: dict[str | None, int]) -> Ints:
    """Return a number for each text, the same in all batches; `codes` takes the new ones."""
    column = texts.combine_chunks()
    values = [codes.setdefault(text, len(codes)) for text in [*column.dictionary.to_pylist(), None]]
    found: Ints = np.array(values)[numbers(column.indices, len(values) - 1)]
    return found


def constant(text: str, rows: int) -> pa.DictionaryArray:
    """Return a column that holds the same text in every row."""
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array([text]))


def taken(values: Any, rows: npt.NDArray[np.intp]) -> Any:
    """Return rows of a column, which is a NumPy or an Arrow array."""
    return values[rows] if isinstance(values, np.ndarray) else values.take(pa.array(rows))


def encoded(codes: npt.NDArray[np.int32], texts: pa.Array) -> pa.DictionaryArray:
    """Return the texts that codes stand for, each distinct one once; a null text gives null."""
    distinct = texts.dictionary_encode()
    return pa.DictionaryArray.from_arrays(distinct.indices.take(arrow_array(codes)), distinct.dictionary)


def combinations(rows: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int32], Ints]:
    """Return a code for each row, equal where rows are equal, and the first row of each code.

    Parameters
    ----------
    rows : array of int64, shape (columns, rows)
    """
    count = rows.shape[1]
    codes = np.empty(count, dtype=np.int32)
    firsts = np.empty(count, dtype=np.int64)
    table = np.full(1 << max(4, (2 * count).bit_length()), -1, dtype=np.int32)
    salt = np.uint64(int.from_bytes(os.urandom(8), "little"))  # no file can know which rows share a slot
    found = _number(np.ascontiguousarray(rows), table, codes, firsts, salt)
    return codes, firsts[:found]


@compiled
def _number(rows, table, codes, firsts, salt):  # type: ignore[no-untyped-def]
    """Give each distinct row the next number, through a hash table with open addressing."""
    mask = len(table) - 1
    found = 0
    for row in range(rows.shape[1]):
        key = salt
        for column in range(rows.shape[0]):
            key = (key ^ np.uint64(rows[column, row])) * np.uint64(0x9E3779B97F4A7C15)
            key ^= key >> np.uint64(29)
        slot = np.int64(key & np.uint64(mask))
        while table[slot] >= 0 and not _same(rows, firsts[table[slot]], row):
            slot = (slot + 1) & mask
        if table[slot] < 0:
            table[slot] = found
            firsts[found] = row
            found += 1
        codes[row] = table[slot]
    return found


@compiled
def _same(rows, one, other):  # type: ignore[no-untyped-def]
    for column in range(rows.shape[0]):  # noqa: SIM110 - numba compiles no generator
        if rows[column, one] != rows[column, other]:
            return False
    return True


#: A column that tables do not have: one small number for each thread of a process of a rank, of kernels for each
#: stream of a device of a rank.
LANE = "lane"
#: Rows that are gone through at a time.
_PART = 1 << 18


class Columns(Protocol):
    """Integer columns of one file by kind and name, null as `MISSING`; the rows of a kind count from 0.

    Of ``ops``: id, rank, start_ns, dur_ns, lane, external_id; of ``launches``: id, rank, start_ns, lane,
    correlation; of ``kernels`` and ``copies``: rank, start_ns, correlation, external_id, of kernels also dur_ns and
    lane (here one number for each stream of a device of a rank); of ``syncs``: rank, correlation.
    """

    def count(self, kind: str) -> int:
        """Return how many rows a kind has."""
        ...

    def part(self, kind: str, name: str, rows: slice) -> Ints:
        """Return some rows of a column."""
        ...

    def take(self, kind: str, name: str, rows: npt.NDArray[Any]) -> Ints:
        """Return the rows of a column that are asked for."""
        ...

    def raw(self, kind: str, name: str) -> npt.NDArray[Any]:
        """Return a column in the width it is held in, null as the least number of that width."""
        ...

    def forget(self, kind: str, name: str) -> None:
        """Take note that a column is not asked for again."""
        ...


def parts(count: int) -> Iterator[slice]:
    """Yield the slices in which so many rows are gone through."""
    for first in range(0, count, _PART):
        yield slice(first, min(first + _PART, count))


def at(columns: Columns, kind: str, name: str, rows: npt.NDArray[Any]) -> Ints:
    """Return a column at rows, `MISSING` where the row is -1."""
    hit = rows >= 0
    if hit.all():
        return columns.take(kind, name, rows)
    result = np.full(len(rows), MISSING)
    if hit.any():
        result[hit] = columns.take(kind, name, rows[hit])
    return result


def lookup(keys: Ints, values: Ints, wanted: Ints) -> Ints:
    """Return for every wanted key its value, the first where a key repeats; `MISSING` where there is none."""
    if not len(keys):
        return np.full(len(wanted), MISSING)
    if keys[0] <= keys[-1] and (np.diff(keys) == 1).all():
        found = wanted - keys[0]
        hit = (wanted >= keys[0]) & (wanted <= keys[-1])
        return np.where(hit, values[np.where(hit, found, 0)], MISSING)
    order = sorting(keys)
    position = np.minimum(np.searchsorted(keys, wanted, sorter=order), len(keys) - 1)
    found = position if order is None else order[position]
    hit = (keys[found] == wanted) & (wanted != MISSING)
    return np.where(hit, values[found], MISSING)


def sorting(values: Ints) -> npt.NDArray[np.intp] | None:
    """Return the order that sorts `values`, ties as they stand; None where they are sorted already."""
    return None if (values[1:] >= values[:-1]).all() else np.argsort(values, kind="stable")


class Lanes:
    """Gives each combination of integers, such as rank, process and thread, a small number, the same in all batches.

    Examples
    --------
    >>> lanes = Lanes()
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


def by_lane(lanes: Callable[[], Iterator[Ints]]) -> list[npt.NDArray[np.int32]]:
    """Return the rows of each lane, in their order.

    Parameters
    ----------
    lanes : callable
        Yields the lane of every row, a part at a time.
    """
    counts = np.zeros(0, np.int64)
    for part in lanes():
        own = np.bincount(part, minlength=len(counts))
        own[: len(counts)] += counts
        counts = own
    ends = np.cumsum(counts)
    order, following = np.empty(int(counts.sum()), np.int32), ends - counts
    first = 0
    for part in lanes():
        _place(order, following, part, first)
        first += len(part)
    return np.split(order, ends[:-1])


@compiled
def _place(order: Any, following: Any, lanes: Any, first: Any) -> None:
    """Put each row, from `first` on, at the next place of its lane."""
    for i in range(len(lanes)):
        order[following[lanes[i]]] = first + i
        following[lanes[i]] += 1


class TableColumns:
    """The columns of tables that are in memory."""

    def __init__(self, tables: Mapping[str, pa.Table]) -> None:
        self._tables = tables
        self._columns: dict[tuple[str, str], Ints] = {}
        host, device = ("ops", "launches"), ("kernels",)
        for kinds, names in ((host, ("rank", "process", "thread")), (device, ("rank", "device", "stream"))):
            chosen = [tables[kind] for kind in kinds if kind in tables]
            for kind, lanes in zip(kinds, _lanes(chosen, names), strict=False):
                self._columns[kind, LANE] = lanes

    def count(self, kind: str) -> int:
        """Return how many rows a kind has."""
        return self._tables[kind].num_rows if kind in self._tables else 0

    def part(self, kind: str, name: str, rows: slice) -> Ints:
        """Return some rows of a column."""
        return self.raw(kind, name)[rows]

    def take(self, kind: str, name: str, rows: npt.NDArray[Any]) -> Ints:
        """Return the rows of a column that are asked for."""
        taken: Ints = self.raw(kind, name)[rows]
        return taken

    def raw(self, kind: str, name: str) -> Ints:
        """Return a column."""
        if (kind, name) not in self._columns:
            own = kind in self._tables
            self._columns[kind, name] = integers(self._tables[kind], name) if own else np.zeros(0, np.int64)
        return self._columns[kind, name]

    def forget(self, kind: str, name: str) -> None:
        """Let go of a column."""
        self._columns.pop((kind, name), None)


def _lanes(tables: Sequence[pa.Table], names: Sequence[str]) -> list[Ints]:
    """Return a small number for each row, the same in all tables for the same values of the columns named."""
    lanes = Lanes()
    return [lanes.of([integers(table, name) for name in names]) for table in tables]
