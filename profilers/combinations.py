"""Texts made from the distinct combinations of integers in a batch, each made once."""

import os
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from profilers.arrays import MISSING, Ints, arrow_array, text_array
from profilers.compiled import compiled

__all__ = ["Spelling", "combinations", "encoded"]

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
