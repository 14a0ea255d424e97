"""A log of iterations, and selections that are fitted to one.

The log of one epoch grouped by sequence length: what every selector and estimate reads.

What all selectors share: how they check an epoch, and how they remember what they chose.

What is known of an epoch once its points are chosen: the cheap log, the points and their weights.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_non_negative, validate_data

from profilers.errors import InvalidInputError

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


class FittedSelector(Protocol):
    """The attributes that every fitted selector has.

    Attributes
    ----------
    representatives_ : ndarray of int64, shape (n_points,)
        Iterations to profile, as row indices of the fitted epoch, by ascending length (`PriorSelector`: in
        the order of the epoch).
    weights_ : ndarray of float64, shape (n_points,)
        Iterations that each representative stands for; they sum to the number of iterations.
    labels_ : ndarray of int64, shape (n_iterations,)
        Bin of each iteration.
    bin_edges_ : ndarray of float64, shape (n_bins, 2)
        Lower and upper sequence length of each bin that holds an iteration; of two bins that touch, the
        upper one holds the edge.
    sequence_lengths_ : ndarray of float64, shape (n_points,)
        Sequence length of each representative.
    projected_total_ : float
        The total statistic of the epoch as the selection gives it.
    relative_error_ : float
        ``|projected - measured| / measured`` of the total on the fitted epoch itself. It can be tiny by
        cancellation: judge a selection on a configuration that it was not fitted on.
    converged_ : bool
        Was the tolerance met; always True for a selector that has none.
    n_features_in_ : int
        Columns of the fitted `X`.
    """

    representatives_: NDArray[np.int64]
    weights_: NDArray[np.float64]
    labels_: NDArray[np.int64]
    bin_edges_: NDArray[np.float64]
    sequence_lengths_: NDArray[np.float64]
    projected_total_: float
    relative_error_: float
    converged_: bool
    n_features_in_: int


@dataclass(frozen=True, slots=True, eq=False)
class Epoch:
    """A checked epoch: lengths and statistic, each of shape (n_iterations,), and both by length."""

    lengths: NDArray[np.float64]
    statistic: NDArray[np.float64]
    table: LengthTable

    @property
    def total(self) -> float:
        """The measured total, summed in an order that does not depend on the order of the rows."""
        return float(self.table.counts @ self.table.means)


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """What a selector decided; the fields are the fitted attributes of the same names."""

    representatives: NDArray[np.int64]
    weights: NDArray[np.float64]
    labels: NDArray[np.int64]
    bin_edges: NDArray[np.float64]
    projected_total: float
    converged: bool

    @classmethod
    def of_one_bin(
        cls, epoch: Epoch, representatives: NDArray[np.int64], *, projected_total: float | None = None
    ) -> Self:
        """Return a choice in which some iterations have equal weights and share one bin.

        Parameters
        ----------
        epoch : Epoch
            The epoch to choose from.
        representatives : ndarray of int64, shape (n_points,)
            Rows of the epoch to profile, distinct.
        projected_total : float, optional
            Total that the choice gives; by default the weighted sum of the chosen iterations.
        """
        n = epoch.lengths.size
        if projected_total is None:
            projected_total = n * float(epoch.statistic[representatives].mean())
        return cls(
            representatives=representatives,
            weights=np.full(representatives.size, n / representatives.size),
            labels=np.zeros(n, dtype=np.int64),
            bin_edges=epoch.table.lengths[None, [0, -1]],
            projected_total=projected_total,
            converged=True,
        )


def read_epoch(selector: FittedSelector, X: ArrayLike, y: ArrayLike) -> Epoch:
    """Check the arguments of a `fit` and group them by length.

    Parameters
    ----------
    selector : FittedSelector
        The selector that is being fitted; gets `n_features_in_` (and the names of the columns, if any).
    X : array-like, shape (n_iterations, n_features)
        The first column is the padded sequence length, zero or more; the others are not read.
    y : array-like, shape (n_iterations,)
        Any statistic, zero or more, in any unit.

    Returns
    -------
    Epoch
        The checked columns.

    Raises
    ------
    ValueError
        scikit-learn's message for shapes that differ, missing or infinite values, no rows, text, a negative
        length.
    InvalidInputError
        A statistic is negative, or all are zero.
    """
    features, statistic = validate_data(selector, X, y, dtype=np.float64, y_numeric=True)
    check_non_negative(features, f"{type(selector).__name__} (sequence lengths)")
    statistic = np.asarray(statistic, dtype=np.float64)
    if (negative := np.flatnonzero(statistic < 0)).size:
        row = int(negative[0])
        raise InvalidInputError(
            f"y[{row}] is {statistic[row]:g}; a statistic to sum over an epoch is zero or more: drop the row "
            "or give another statistic"
        )
    if not statistic.any():
        raise InvalidInputError("every y is zero, so no share of the total exists; give a statistic that varies")
    lengths = np.ascontiguousarray(features[:, 0])
    return Epoch(lengths, statistic, length_table(lengths, statistic))


def remember(selector: FittedSelector, epoch: Epoch, choice: Choice) -> None:
    """Set the fitted attributes of a selector, which its `fit` then returns."""
    selector.representatives_ = choice.representatives
    selector.weights_ = choice.weights
    selector.labels_ = choice.labels
    selector.bin_edges_ = choice.bin_edges
    selector.sequence_lengths_ = epoch.lengths[choice.representatives]
    selector.projected_total_ = choice.projected_total
    selector.relative_error_ = abs(choice.projected_total - epoch.total) / epoch.total
    selector.converged_ = choice.converged


def require_at_least(name: str, value: float, least: float) -> None:
    """Raise `InvalidInputError` unless a parameter is a finite number and not below its least value."""
    if not least <= value < np.inf:
        raise InvalidInputError(f"{name} is {value!r}; it must be a finite number, {least:g} or more")


def one_length(tags: Any) -> Any:
    """Mark scikit-learn's tags of a selector: it needs `y`, and neither `X` nor `y` may be negative."""
    tags.input_tags.positive_only = True
    tags.target_tags.required = True
    tags.target_tags.positive_only = True
    return tags


@dataclass(frozen=True, slots=True, eq=False, init=False)
class SelectionLog:
    """The log of an epoch and the points chosen from it, as plain arrays.

    Parameters
    ----------
    lengths : array-like, shape (n_iterations,)
        Sequence length of each logged iteration, zero or more.
    statistic : array-like, shape (n_iterations,)
        Statistic of each logged iteration, zero or more and not all zero, in the unit of the log.
    representatives : array-like of int, shape (n_points,)
        Rows of the log that are profiled, distinct.
    weights : array-like, shape (n_points,)
        Iterations that each representative stands for, at least 1 each; they sum to `n_iterations`.

    Raises
    ------
    InvalidInputError
        An array has another shape, or values that are out of range.

    Examples
    --------
    >>> log = SelectionLog([5, 9, 5], [10, 40, 12], representatives=[0, 1], weights=[2, 1])
    >>> log.weights.tolist()
    [2.0, 1.0]
    """

    lengths: NDArray[np.float64]
    statistic: NDArray[np.float64]
    representatives: NDArray[np.int64]
    weights: NDArray[np.float64]

    def __init__(
        self, lengths: ArrayLike, statistic: ArrayLike, *, representatives: ArrayLike, weights: ArrayLike
    ) -> None:
        checked = finite_column("lengths", lengths)
        rows = np.asarray(representatives)
        if not np.any(statistic):
            raise InvalidInputError("every statistic is zero: nothing can be scaled; give a log that varies")
        object.__setattr__(self, "lengths", checked)
        object.__setattr__(self, "statistic", finite_column("statistic", statistic, size=checked.size))
        object.__setattr__(self, "representatives", _distinct_rows(rows, checked.size))
        object.__setattr__(self, "weights", _weights(weights, rows.size, n_iterations=checked.size))

    @classmethod
    def of(cls, selector: FittedSelector, X: ArrayLike, y: ArrayLike) -> Self:
        """Take the points of a fitted selector, and the `X` and `y` that it was fitted on.

        Examples
        --------
        >>> from seqpoint.selection import SeqPointSelector
        >>> X, y = [[5], [9], [5]], [10, 40, 12]
        >>> SelectionLog.of(SeqPointSelector().fit(X, y), X, y).representatives.tolist()
        [0, 1]
        """
        features = np.asarray(X)
        return cls(
            features[:, 0] if features.ndim == 2 else features,
            y,
            representatives=selector.representatives_,
            weights=selector.weights_,
        )


def finite_column(name: str, values: ArrayLike, *, size: int | None = None) -> NDArray[np.float64]:
    """Return numbers as float64 of shape (n,), or say what is wrong: shape, size, NaN, infinity, sign."""
    column = np.asarray(values, dtype=np.float64)
    if column.ndim != 1 or column.size == 0 or (size is not None and column.size != size):
        wanted = "(n,) with n > 0" if size is None else f"({size},)"
        raise InvalidInputError(f"{name} has shape {column.shape}; it must have shape {wanted}")
    if (bad := np.flatnonzero(~((column >= 0) & (column < np.inf)))).size:
        row = int(bad[0])
        raise InvalidInputError(f"{name}[{row}] is {column[row]:g}; it must be finite, and zero or more")
    return column


def _distinct_rows(rows: NDArray[np.generic], n_iterations: int) -> NDArray[np.int64]:
    if rows.ndim != 1 or rows.size == 0 or not np.issubdtype(rows.dtype, np.integer):
        raise InvalidInputError(
            f"representatives have shape {rows.shape} and type {rows.dtype}; give row indices of shape (n,)"
        )
    indices = rows.astype(np.int64)
    if indices.min() < 0 or indices.max() >= n_iterations or np.unique(indices).size != indices.size:
        raise InvalidInputError(
            f"representatives must be distinct rows of the log, 0 to {n_iterations - 1}; "
            f"got {indices.size} rows from {indices.min()} to {indices.max()}"
        )
    return indices


def _weights(weights: ArrayLike, n_points: int, *, n_iterations: int) -> NDArray[np.float64]:
    column = finite_column("weights", weights, size=n_points)
    if column.min() < 1 - 1e-9 or not np.isclose(column.sum(), n_iterations, rtol=1e-9):
        raise InvalidInputError(
            f"the smallest weight is {column.min():g} and their sum {column.sum():g}; each must be 1 or more "
            f"and the sum {n_iterations}, the iterations of the log"
        )
    return column
