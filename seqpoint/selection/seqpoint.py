"""SeqPoint: the few sequence lengths that stand for a whole epoch."""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted, validate_data

from seqpoint.selection.allocation import shared_allocation
from seqpoint.selection.log import (
    Choice,
    Epoch,
    nearest_iterations,
    one_length,
    read_epoch,
    remember,
    require_at_least,
    some_nearest_iterations,
)


class SeqPointSelector(BaseEstimator):  # type: ignore[misc]
    """Choose the iterations of an epoch that are worth profiling, by sequence length.

    Up to `max_points` distinct lengths, each is a point and the projection is exact. Otherwise the range of
    lengths is cut into equal-width bins; each bin is stood for by the length whose mean statistic is nearest
    the bin's, and weighs as many iterations as it holds. Bins are added until the projected total is within
    `tolerance` of the measured one, or there are `max_points`; then the number of bins with the smallest
    error is kept. All lengths equal, or a single iteration, give one point. Shuffled rows give the same
    lengths, weights and projection.

    Parameters
    ----------
    max_points : int, default 10
        The most lengths to choose, 1 or more; also the most bins that are tried.
    initial_bins : int, default 5
        Bins to begin with, 1 or more; with more than `max_points` the search begins at `max_points`.
    tolerance : float, default 0.01
        Relative error of the total at which to stop, 0 or more.
    max_iterations : int, optional
        Iterations to profile, 1 or more; by default one a point. More than that are shared among the points in
        proportion to what their bins cost: the noise of an iteration is then averaged. A length that occurs less often
        gives all it has, so fewer may be chosen.

    Attributes
    ----------
    representatives_, weights_, labels_, bin_edges_, sequence_lengths_
        The points, see `FittedSelector`. Iteration `representatives_[i]` is of bin `labels_[representatives_[i]]`, and
        with one iteration a point this is `i`.
    projected_total_, relative_error_, converged_, n_features_in_
        How the points fare on the epoch they were chosen from, see `FittedSelector`.

    Notes
    -----
    Source: SeqPoint (arXiv 2007.10459, ISPASS 2020). The paper's values of the three parameters are unknown;
    the defaults are ours. Profiling runs one iteration, not the mean of a length: of the chosen length, it is
    the iteration whose own statistic is nearest the mean; of several, the earliest. Several iterations of a point are
    ours, not the paper's: shared as Neyman does (Cochran 1977, 5.5) for a noise that is a fraction of the cost.

    Examples
    --------
    >>> lengths = [[8], [16], [24], [32], [16], [32]]
    >>> time_ns = [100, 200, 300, 400, 200, 400]
    >>> points = SeqPointSelector(max_points=2, initial_bins=2).fit(lengths, time_ns)
    >>> points.sequence_lengths_.tolist(), points.weights_.tolist()
    ([16.0, 32.0], [3.0, 3.0])
    >>> points.projected_total_, round(points.relative_error_, 3), points.converged_
    (1800.0, 0.125, False)
    """

    def __init__(
        self,
        max_points: int = 10,
        initial_bins: int = 5,
        tolerance: float = 0.01,
        max_iterations: int | None = None,
    ) -> None:
        self.max_points = max_points
        self.initial_bins = initial_bins
        self.tolerance = tolerance
        self.max_iterations = max_iterations

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Choose the points of one logged epoch.

        Parameters
        ----------
        X : array-like, shape (n_iterations, 1)
            Padded sequence length of each iteration, zero or more. Of several columns the first is the length
            and the others are not read.
        y : array-like, shape (n_iterations,)
            Any statistic of each iteration, zero or more: time in ns, bytes, FLOPs.

        Returns
        -------
        SeqPointSelector
            Itself, fitted.

        Raises
        ------
        InvalidInputError
            A parameter is out of range, a statistic is negative, or all are zero.
        ValueError
            scikit-learn's message for other bad input: missing values, no rows, shapes that differ.
        """
        require_at_least("max_points", self.max_points, 1)
        require_at_least("initial_bins", self.initial_bins, 1)
        require_at_least("tolerance", self.tolerance, 0)
        if self.max_iterations is not None:
            require_at_least("max_iterations", self.max_iterations, 1)
        epoch = read_epoch(self, X, y)
        if epoch.table.lengths.size <= self.max_points:
            best, converged = _one_bin_a_length(epoch), True
        else:
            first = min(self.initial_bins, self.max_points)
            best, converged = _search(epoch, range(first, self.max_points + 1), self.tolerance)
        most = 1 if self.max_iterations is None else self.max_iterations
        remember(self, epoch, _choice(epoch, best, most, converged=converged))
        return self

    def predict(self, X: ArrayLike) -> NDArray[np.int64]:
        """Say which point stands for each iteration of another epoch.

        The counts of the result weigh the same points for that epoch. A length between two bins belongs to
        the nearer one, a length outside all of them to the outermost.

        Parameters
        ----------
        X : array-like, shape (n_iterations, n_features)
            As in `fit`.

        Returns
        -------
        ndarray of int64, shape (n_iterations,)
            Index of a bin; of a point, if each has one iteration.

        Examples
        --------
        >>> points = SeqPointSelector().fit([[8], [16], [16]], [100, 200, 220])
        >>> points.predict([[9], [15], [99]]).tolist()
        [0, 1, 1]
        """
        check_is_fitted(self)
        lengths = validate_data(self, X, dtype=np.float64, reset=False)[:, 0]
        between = (self.bin_edges_[:-1, 1] + self.bin_edges_[1:, 0]) / 2
        return np.asarray(np.searchsorted(between, lengths, side="right"), dtype=np.int64)

    def __sklearn_tags__(self) -> Any:
        return one_length(super().__sklearn_tags__())


@dataclass(frozen=True, slots=True, eq=False)
class _Binning:
    """Bins that hold a length, in ascending order, and what they project.

    `of_length` is the bin of each distinct length, `chosen` the row of the length table that stands for each
    bin, `iterations` how many iterations each bin holds.
    """

    of_length: NDArray[np.int64]
    edges: NDArray[np.float64]
    chosen: NDArray[np.int64]
    iterations: NDArray[np.int64]
    projected_total: float


def _one_bin_a_length(epoch: Epoch) -> _Binning:
    lengths = epoch.table.lengths
    every = np.arange(lengths.size)
    return _Binning(every, np.column_stack((lengths, lengths)), every, epoch.table.counts, epoch.total)


def _equal_width_bins(epoch: Epoch, n_bins: int) -> _Binning:
    """Cut the range of lengths into `n_bins`, drop the empty ones, and let one length stand for each."""
    table = epoch.table
    edges = np.linspace(table.lengths[0], table.lengths[-1], n_bins + 1)
    kept, starts, of_length = np.unique(
        np.searchsorted(edges[1:-1], table.lengths, side="right"), return_index=True, return_inverse=True
    )
    iterations = np.add.reduceat(table.counts, starts)
    mean_of_bin = np.add.reduceat(table.counts * table.means, starts) / iterations
    distance = np.abs(table.means - mean_of_bin[of_length])
    nearest = np.flatnonzero(distance == np.minimum.reduceat(distance, starts)[of_length])
    chosen = nearest[np.unique(of_length[nearest], return_index=True)[1]]  # of a tie, the shortest
    return _Binning(
        of_length=of_length,
        edges=np.column_stack((edges[kept], edges[kept + 1])),
        chosen=chosen,
        iterations=iterations,
        projected_total=float(iterations @ table.means[chosen]),
    )


def _search(epoch: Epoch, bin_counts: range, tolerance: float) -> tuple[_Binning, bool]:
    """Return the first binning within the tolerance, else the one of smallest error, and if it is within."""
    best, least = _equal_width_bins(epoch, bin_counts[0]), np.inf
    for n_bins in bin_counts:  # at most `max_points` rounds, each linear in the distinct lengths
        binning = _equal_width_bins(epoch, n_bins)
        error = abs(binning.projected_total - epoch.total) / epoch.total
        if error < least:
            best, least = binning, error
        if error < tolerance:
            return binning, True
    return best, False


def _choice(epoch: Epoch, binning: _Binning, most: int, *, converged: bool) -> Choice:
    table, chosen = epoch.table, binning.chosen
    shared = np.minimum(shared_allocation(binning.iterations, table.means[chosen], most), table.counts[chosen])
    if shared.max() > 1:
        rows = some_nearest_iterations(table, epoch.statistic, chosen, shared)
    else:
        rows = nearest_iterations(table, epoch.statistic, chosen)
    return Choice(
        representatives=rows,
        weights=np.repeat(binning.iterations / shared, shared),
        labels=np.asarray(binning.of_length[table.of_iteration], dtype=np.int64),
        bin_edges=binning.edges,
        projected_total=binning.projected_total,
        converged=converged,
    )
