"""The log of an epoch, and what selectors and estimates read of it.

A log holds the sequence length and a statistic of every iteration of an epoch. The module has four layers:

- `LengthTable`: the log grouped by length, with exact sums, and the iterations nearest the mean of a length.
- `Epoch`: the arguments of a `fit`, checked and grouped.
- `Choice`, `remember` and `FittedSelector`: the decision of a selector, and the fitted attributes that it sets.
- `SelectionLog`: the log with the selected points and their weights, as the estimates take it.

A log of 1e8 iterations is gone through in blocks of rows, so that temporary arrays stay small.
"""

from dataclasses import dataclass, fields
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted, check_non_negative, validate_data

from profilers.errors import InvalidInputError
from profilers.trace.arrays import Floats, Ints, row_blocks

Codes = NDArray[np.signedinteger[Any]]

#: Whole lengths are counted instead of sorted if their range is at most this many times the number of rows, ...
_MAX_SPARSITY = 4
#: ... and at most this wide.
_MAX_RANGE = 1 << 26


@dataclass(frozen=True, slots=True, eq=False)
class LengthTable:
    """The log of an epoch grouped by sequence length: one row for each distinct length, ascending.

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

    lengths: Floats
    counts: Ints
    means: Floats
    of_iteration: Codes


def length_table(lengths: Floats, statistic: Floats) -> LengthTable:
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
        One row for each distinct length.

    Examples
    --------
    >>> table = length_table(np.array([7.0, 3.0, 7.0]), np.array([10.0, 4.0, 12.0]))
    >>> table.lengths.tolist(), table.counts.tolist(), table.means.tolist(), table.of_iteration.tolist()
    ([3.0, 7.0], [1, 2], [4.0, 11.0], [1, 0, 1])
    """
    distinct, of_iteration = _count_whole_lengths(lengths) or np.unique(lengths, return_inverse=True)
    counts = np.zeros(distinct.size, np.int64)
    for rows in row_blocks(lengths.size):
        counts += np.bincount(of_iteration[rows], minlength=distinct.size)
    means = exact_sums(of_iteration, statistic, distinct.size) / counts
    return LengthTable(distinct, counts, means, of_iteration)


def _count_whole_lengths(lengths: Floats) -> tuple[Floats, Codes] | None:
    """Return the distinct lengths and the index of each row's, or None if lengths are not whole or spread wide."""
    low, high = float(lengths.min()), float(lengths.max())
    if high - low > min(_MAX_SPARSITY * lengths.size + 1024, _MAX_RANGE):
        return None
    present = np.zeros(int(high - low) + 1, bool)
    codes = np.empty(lengths.size, np.int32)
    for rows in row_blocks(lengths.size):
        offset = lengths[rows] - low
        codes[rows] = offset
        if (codes[rows] != offset).any():
            return None
        present[codes[rows]] = True
    index_of_offset = (np.cumsum(present) - 1).astype(np.int32)
    for rows in row_blocks(lengths.size):
        codes[rows] = index_of_offset[codes[rows]]
    distinct: Floats = np.flatnonzero(present).astype(np.float64) + low
    return distinct, codes


def exact_sums(codes: Codes, values: Floats, size: int) -> Floats:
    """Sum the values of each group, with the same result in any order of the rows.

    Parameters
    ----------
    codes : ndarray of int, shape (n,)
        Group of each value, from 0 to `size` - 1.
    values : ndarray of float64, shape (n,)
        Numbers to sum, finite, zero or more.
    size : int
        Number of groups.

    Returns
    -------
    ndarray of float64, shape (size,)
        The sum of each group.

    Notes
    -----
    Each value is split into a multiple of a quantum and a remainder. The quantum is so large that sums of its multiples
    are exact. The remainders are split again until they are zero (Demmel and Nguyen, Fast Reproducible Floating-Point
    Summation, ARITH 2013).

    Examples
    --------
    >>> exact_sums(np.array([0, 1, 0, 0]), np.array([1e16, 2.0, 1.0, 1.0]), 2).tolist()
    [1.0000000000000002e+16, 2.0]
    """
    total = np.zeros(size)
    largest = float(values.max(initial=0.0))
    remainders = values
    while largest > 0:  # once for whole numbers, three times for others, more if values differ by powers of ten
        # Adding and taking away 1.5 * 2**e rounds to a multiple of 2**(e - 52); n of these stay below 2**e.
        quantum = 1.5 * 2.0 ** min(np.ceil(np.log2(largest)) + np.ceil(np.log2(values.size + 1)) + 1, 1022)
        sums, remainders, largest = _split_sums(codes, remainders, size, quantum)
        total = total + sums
    return total


def _split_sums(codes: Codes, values: Floats, size: int, quantum: float) -> tuple[Floats, Floats, float]:
    """Return the sums of the values rounded to a quantum, the remainders, and the largest remainder."""
    sums, largest = np.zeros(size), 0.0
    remainders = values
    for rows in row_blocks(values.size):
        rounded = (values[rows] + quantum) - quantum
        sums += np.bincount(codes[rows], rounded, minlength=size)
        remainder = values[rows] - rounded
        if remainder.any():
            remainders = np.zeros(values.size) if remainders is values else remainders
            remainders[rows] = remainder
            largest = max(largest, float(np.abs(remainder).max()))
    return sums, remainders, largest


def nearest_iterations(table: LengthTable, statistic: Floats, rows: Ints, counts: Ints | None = None) -> Ints:
    """Return iterations to profile of each chosen length: those with the statistic nearest the length's mean.

    Of several iterations at the same distance the earliest come first.

    Parameters
    ----------
    table : LengthTable
        The epoch, by length.
    statistic : ndarray of float64, shape (n_iterations,)
        The statistic that the table was made from.
    rows : ndarray of int64, shape (n_points,)
        Chosen rows of `table`, distinct and ascending.
    counts : ndarray of int64, shape (n_points,), optional
        Iterations to return for each length, from 1 to as many as it has; by default 1.

    Returns
    -------
    ndarray of int64, shape (sum of `counts`,)
        Indices of iterations, by length, nearest first.

    Examples
    --------
    >>> statistic = np.array([9.0, 11.0, 16.0])
    >>> table = length_table(np.array([5.0, 5.0, 5.0]), statistic)
    >>> nearest_iterations(table, statistic, np.array([0])).tolist()
    [1]
    >>> nearest_iterations(table, statistic, np.array([0]), np.array([2])).tolist()
    [1, 0]
    """
    nearest = []
    samples = np.ones(rows.size, np.int64) if counts is None else counts
    for row, count in zip(rows.tolist(), samples.tolist(), strict=True):  # a pass over the epoch for each point
        iterations = np.flatnonzero(table.of_iteration == row)
        distance = np.abs(statistic[iterations] - table.means[row])
        first = [distance.argmin()] if count == 1 else np.argsort(distance, kind="stable")[:count]
        nearest.append(iterations[first])
    return np.concatenate(nearest)


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
        Lower and upper sequence length of each bin that holds an iteration. If two bins touch, the upper one holds
        the edge.
    sequence_lengths_ : ndarray of float64, shape (n_points,)
        Sequence length of each representative.
    projected_total_ : float
        Total statistic of the epoch, estimated from the points.
    relative_error_ : float
        ``|projected - measured| / measured`` of the total on the fitted epoch itself. It can be tiny by
        cancellation: judge a selection on a configuration that it was not fitted on.
    converged_ : bool
        Whether the tolerance was met; always True for a selector without a tolerance.
    n_features_in_ : int
        Number of columns of the fitted `X`.
    """

    representatives_: Ints
    weights_: Floats
    labels_: Ints
    bin_edges_: Floats
    sequence_lengths_: Floats
    projected_total_: float
    relative_error_: float
    converged_: bool
    n_features_in_: int


@dataclass(frozen=True, slots=True, eq=False)
class Epoch:
    """A checked epoch.

    Attributes
    ----------
    lengths, statistic : ndarray of float64, shape (n_iterations,)
        Sequence length and statistic of each iteration.
    table : LengthTable
        The same, grouped by length.
    """

    lengths: Floats
    statistic: Floats
    table: LengthTable

    @property
    def total(self) -> float:
        """Total of the statistic, the same in any order of the rows."""
        return float(self.table.counts @ self.table.means)


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """The decision of a selector; the fields are the attributes of `FittedSelector` of the same names."""

    representatives: Ints
    weights: Floats
    labels: Ints
    bin_edges: Floats
    projected_total: float
    converged: bool

    @classmethod
    def of_one_bin(cls, epoch: Epoch, representatives: Ints, *, projected_total: float | None = None) -> Self:
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
        The selector to fit; its `n_features_in_` is set, and the names of the columns if `X` has them.
    X : array-like, shape (n_iterations, n_features)
        The first column is the padded sequence length, zero or more; the others are not read.
    y : array-like, shape (n_iterations,)
        Any statistic, zero or more, in any unit.

    Returns
    -------
    Epoch
        The checked columns, and the same by length.

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
    for field in fields(choice):
        setattr(selector, f"{field.name}_", getattr(choice, field.name))
    selector.sequence_lengths_ = epoch.lengths[choice.representatives]
    selector.relative_error_ = abs(choice.projected_total - epoch.total) / epoch.total


def require_at_least(name: str, value: float, least: float) -> None:
    """Raise `InvalidInputError` unless a parameter is a finite number and not below its least value."""
    if not least <= value < np.inf:
        raise InvalidInputError(f"{name} is {value!r}; it must be a finite number, {least:g} or more")


def require_confidence(confidence: float) -> None:
    """Raise `InvalidInputError` unless a confidence level lies between 0 and 1."""
    if not 0 < confidence < 1:
        raise InvalidInputError(f"confidence is {confidence!r}; it must lie between 0 and 1, such as 0.95")


class Selector(BaseEstimator):  # type: ignore[misc]
    """Base of the selectors: scikit-learn's estimator, marked to need a `y` and to take no negative `X` or `y`."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.positive_only = True
        tags.target_tags.required = True
        tags.target_tags.positive_only = True
        return tags

    def _features(self, X: ArrayLike) -> Floats:
        """Return the features of another epoch, checked against those of `fit`."""
        check_is_fitted(self)
        return np.asarray(validate_data(self, X, dtype=np.float64, reset=False), dtype=np.float64)


@dataclass(frozen=True, slots=True, eq=False, init=False)
class SelectionLog:
    """The log of an epoch and the points selected from it, as plain arrays.

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

    lengths: Floats
    statistic: Floats
    representatives: Ints
    weights: Floats

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
        """Return the log of a fitted selector.

        Parameters
        ----------
        selector : FittedSelector
            Gives the points and their weights.
        X : array-like, shape (n_iterations, n_features) or (n_iterations,)
            The `X` that it was fitted on; the first column is the sequence length.
        y : array-like, shape (n_iterations,)
            The `y` that it was fitted on.

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


def finite_pair(values_a: ArrayLike, values_b: ArrayLike, size: int) -> tuple[Floats, Floats]:
    """Return the arguments `values_a` and `values_b` of a speed-up, both checked as `finite_column` does."""
    return finite_column("values_a", values_a, size=size), finite_column("values_b", values_b, size=size)


def finite_column(name: str, values: ArrayLike, *, size: int | None = None) -> Floats:
    """Return numbers as float64 of shape (n,).

    Parameters
    ----------
    name : str
        Name of the argument, for messages.
    values : array-like
        Numbers, finite, zero or more.
    size : int, optional
        Number of values to require; by default any above 0.

    Raises
    ------
    InvalidInputError
        The shape or size is wrong, or a value is NaN, infinite or negative.
    """
    column = np.asarray(values, dtype=np.float64)
    if column.ndim != 1 or column.size == 0 or (size is not None and column.size != size):
        shape = "(n,) with n > 0" if size is None else f"({size},)"
        raise InvalidInputError(f"{name} has shape {column.shape}; it must have shape {shape}")
    if (bad := np.flatnonzero(~((column >= 0) & (column < np.inf)))).size:
        row = int(bad[0])
        raise InvalidInputError(f"{name}[{row}] is {column[row]:g}; it must be finite, and zero or more")
    return column


def _distinct_rows(rows: NDArray[np.generic], n_iterations: int) -> Ints:
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


def _weights(weights: ArrayLike, n_points: int, *, n_iterations: int) -> Floats:
    column = finite_column("weights", weights, size=n_points)
    if column.min() < 1 - 1e-9 or not np.isclose(column.sum(), n_iterations, rtol=1e-9):
        raise InvalidInputError(
            f"the smallest weight is {column.min():g} and their sum {column.sum():g}; each must be 1 or more "
            f"and the sum {n_iterations}, the iterations of the log"
        )
    return column
