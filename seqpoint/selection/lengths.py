"""The log of one epoch grouped by sequence length: what every selector and estimate reads."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["LengthTable", "exact_sums", "length_table", "nearest_iterations", "parts", "some_nearest_iterations"]

Codes = NDArray[np.signedinteger[Any]]

#: Rows that are gone through at a time.
_PART = 1 << 20
#: Whole lengths are counted where their range is so many times their number, and no more than this.
_SPARSE, _WIDEST = 4, 1 << 26


@dataclass(frozen=True, slots=True, eq=False)
class LengthTable:
    """One row a distinct sequence length, in ascending order.

    Attributes
    ----------
    lengths : ndarray of float64, shape (n_lengths,)
        Distinct padded sequence lengths, strictly increasing.
    counts : ndarray of int64, shape (n_lengths,)
        Iterations of that length.
    means : ndarray of float64, shape (n_lengths,)
        Mean statistic of those iterations, the paper's ``s(u)``, in the unit of the statistic.
    of_iteration : ndarray of int, shape (n_iterations,)
        The row of this table that each iteration belongs to.
    """

    lengths: NDArray[np.float64]
    counts: NDArray[np.int64]
    means: NDArray[np.float64]
    of_iteration: Codes


def length_table(lengths: NDArray[np.float64], statistic: NDArray[np.float64]) -> LengthTable:
    """Group the iterations of an epoch by sequence length.

    Sums are exact (`exact_sums`), so shuffled rows give the same means to the last bit. Whole lengths that lie
    close together are counted, in time linear in the iterations; others are sorted.

    Parameters
    ----------
    lengths : ndarray of float64, shape (n_iterations,)
        Padded sequence length of each iteration, finite.
    statistic : ndarray of float64, shape (n_iterations,)
        Any statistic of each iteration, finite.

    Returns
    -------
    LengthTable
        One row a distinct length.

    Examples
    --------
    >>> table = length_table(np.array([7.0, 3.0, 7.0]), np.array([10.0, 4.0, 12.0]))
    >>> table.lengths.tolist(), table.counts.tolist(), table.means.tolist(), table.of_iteration.tolist()
    ([3.0, 7.0], [1, 2], [4.0, 11.0], [1, 0, 1])
    """
    distinct, of_iteration = _counted(lengths) or np.unique(lengths, return_inverse=True)
    counts = np.zeros(distinct.size, np.int64)
    for rows in parts(lengths.size):
        counts += np.bincount(of_iteration[rows], minlength=distinct.size)
    means = exact_sums(of_iteration, statistic, distinct.size) / counts
    return LengthTable(distinct, counts, means, of_iteration)


def parts(size: int) -> Iterator[slice]:
    """Yield the slices in which so many rows are gone through, so that what is computed of them stays small."""
    for first in range(0, size, _PART):
        yield slice(first, min(first + _PART, size))


def _counted(lengths: NDArray[np.float64]) -> tuple[NDArray[np.float64], Codes] | None:
    """Return the distinct lengths and the place of each row's, None where the lengths are not whole or spread wide."""
    low, high = float(lengths.min()), float(lengths.max())
    if high - low > min(_SPARSE * lengths.size + 1024, _WIDEST):
        return None
    present = np.zeros(int(high - low) + 1, bool)
    codes = np.empty(lengths.size, np.int32)
    for rows in parts(lengths.size):
        above = lengths[rows] - low
        codes[rows] = above
        if (codes[rows] != above).any():
            return None
        present[codes[rows]] = True
    place = (np.cumsum(present) - 1).astype(np.int32)
    for rows in parts(lengths.size):
        codes[rows] = place[codes[rows]]
    distinct: NDArray[np.float64] = np.flatnonzero(present).astype(np.float64) + low
    return distinct, codes


def exact_sums(codes: Codes, values: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    """Return the sum of the values of each code, the same in any order of the rows.

    Parameters
    ----------
    codes : ndarray of int, shape (n,)
        From 0 to `size` - 1.
    values : ndarray of float64, shape (n,)
        Finite, zero or more.
    size : int

    Notes
    -----
    Values are split into multiples of a quantum that is large enough for all sums of it to be exact, and what is
    left, which is split again until nothing is (Demmel and Nguyen, Fast Reproducible Floating-Point Summation, ARITH
    2013).

    Examples
    --------
    >>> exact_sums(np.array([0, 1, 0, 0]), np.array([1e16, 2.0, 1.0, 1.0]), 2).tolist()
    [1.0000000000000002e+16, 2.0]
    """
    total = np.zeros(size)
    largest = float(values.max(initial=0.0))
    rest = values
    while largest > 0:  # once for whole numbers, three times for others, more where values differ by powers of ten
        # Adding and taking away 1.5 * 2**e rounds to a multiple of 2**(e - 52); n of these stay below 2**e.
        quantum = 1.5 * 2.0 ** min(np.ceil(np.log2(largest)) + np.ceil(np.log2(values.size + 1)) + 1, 1022)
        level, rest, largest = _split_sums(codes, rest, size, quantum)
        total = total + level
    return total


def _split_sums(
    codes: Codes, values: NDArray[np.float64], size: int, quantum: float
) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
    """Return the sums of the values rounded to a quantum, what is left of the values, and the largest of that."""
    sums, largest = np.zeros(size), 0.0
    rest = values
    for rows in parts(values.size):
        rounded = (values[rows] + quantum) - quantum
        sums += np.bincount(codes[rows], rounded, minlength=size)
        left = values[rows] - rounded
        if left.any():
            rest = np.zeros(values.size) if rest is values else rest
            rest[rows] = left
            largest = max(largest, float(np.abs(left).max()))
    return sums, rest, largest


def nearest_iterations(
    table: LengthTable, statistic: NDArray[np.float64], rows: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the one iteration to profile for each chosen length.

    It is the iteration whose own statistic is nearest the mean of its length; of several, the earliest.

    Parameters
    ----------
    table : LengthTable
        The epoch, by length.
    statistic : ndarray of float64, shape (n_iterations,)
        The statistic that the table was made from.
    rows : ndarray of int64, shape (n_points,)
        Chosen rows of `table`, distinct and ascending.

    Returns
    -------
    ndarray of int64, shape (n_points,)
        Index of an iteration for each chosen row.

    Examples
    --------
    >>> statistic = np.array([9.0, 11.0, 16.0])
    >>> table = length_table(np.array([5.0, 5.0, 5.0]), statistic)
    >>> nearest_iterations(table, statistic, np.array([0])).tolist()
    [1]
    """
    nearest = np.full(rows.size, -1)
    least = np.full(rows.size, np.inf)
    place = np.full(table.lengths.size, -1, np.int32)
    place[rows] = np.arange(rows.size)
    for part in parts(statistic.size):
        of_chosen = place[table.of_iteration[part]]
        found = np.flatnonzero(of_chosen >= 0)
        group = of_chosen[found]
        distance = np.abs(statistic[part][found] - table.means[rows[group]])
        smallest = np.full(rows.size, np.inf)
        np.minimum.at(smallest, group, distance)
        hit = np.flatnonzero(distance == smallest[group])
        chosen, first = np.unique(group[hit], return_index=True)
        better = smallest[chosen] < least[chosen]
        nearest[chosen[better]] = part.start + found[hit[first[better]]]
        least[chosen[better]] = smallest[chosen[better]]
    return nearest


def some_nearest_iterations(
    table: LengthTable, statistic: NDArray[np.float64], rows: NDArray[np.int64], wanted: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the iterations of each chosen length whose statistic is nearest the mean; of equal ones, the earliest.

    Parameters
    ----------
    table, statistic, rows
        As in `nearest_iterations`.
    wanted : ndarray of int64, shape (n_points,)
        Iterations of each length, 1 to as many as it has.

    Returns
    -------
    ndarray of int64, shape (sum of `wanted`,)
        By length, nearest first.

    Examples
    --------
    >>> statistic = np.array([9.0, 11.0, 16.0])
    >>> table = length_table(np.array([5.0, 5.0, 5.0]), statistic)
    >>> some_nearest_iterations(table, statistic, np.array([0]), np.array([2])).tolist()
    [1, 0]
    """
    found = []
    for row, count in zip(rows.tolist(), wanted.tolist(), strict=True):
        of_length = np.flatnonzero(table.of_iteration == row)
        distance = np.abs(statistic[of_length] - table.means[row])
        found.append(of_length[np.argsort(distance, kind="stable")[:count]])
    return np.concatenate(found)
