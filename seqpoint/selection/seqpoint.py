"""SeqPoint: a selector that bins the iterations of an epoch by sequence length (arXiv 2007.10459), and its baselines.

The baselines are those that the paper compares with: frequent, median, worst and prior.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from seqpoint.selection.estimate import shared_allocation
from seqpoint.selection.log import Choice, Epoch, Selector, nearest_iterations, read_epoch, remember, require_at_least


class SeqPointSelector(Selector):
    """Selector of the iterations of an epoch that are worth profiling, by sequence length.

    If there are at most `max_points` distinct lengths, each is a point and the projection is exact. Otherwise:

    1. The range of lengths is cut into `initial_bins` bins of equal width.
    2. The point of a bin is the length whose mean statistic is nearest the bin's. Its weight is the number of
       iterations of the bin.
    3. Bins are added until the projected total is within `tolerance` of the measured one. If `max_points` bins do not
       reach it, the number of bins with the smallest error is kept.

    Shuffled rows give the same lengths, weights and projection.

    Parameters
    ----------
    max_points : int, default 10
        Most lengths to choose, 1 or more; also the most bins to try.
    initial_bins : int, default 5
        Bins to begin with, 1 or more; never more than `max_points`.
    tolerance : float, default 0.01
        Relative error of the total at which to stop, 0 or more.
    max_iterations : int, optional
        Iterations to profile, 1 or more; by default a single one for each point. A larger number is shared among the
        points in proportion to the cost of their bins, which averages the noise of an iteration. A length cannot give
        more iterations than it has, so fewer may be chosen.

    Attributes
    ----------
    representatives_, weights_, labels_, bin_edges_, sequence_lengths_
        The points, see `FittedSelector`. Iteration `representatives_[i]` is in bin `labels_[representatives_[i]]`,
        which is `i` unless `max_iterations` is set.
    projected_total_, relative_error_, converged_, n_features_in_
        The error of the points on the epoch they were chosen from, see `FittedSelector`.

    Notes
    -----
    Source: SeqPoint (arXiv 2007.10459, ISPASS 2020). The paper does not state its values of `max_points`,
    `initial_bins` and `tolerance`; the defaults are ours. A profiler records an iteration, not the mean of a length:
    the point is the iteration of the length with the statistic nearest the mean; of several, the earliest. Several
    iterations of a point are ours, not the paper's. They are shared by Neyman's rule (Cochran 1977, 5.5) for a noise in
    proportion to the cost.

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
            Padded sequence length of each iteration, zero or more. Further columns are not read.
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
            binning, converged = _bin_of_each_length(epoch), True
        else:
            first = min(self.initial_bins, self.max_points)
            binning, converged = _search(epoch, range(first, self.max_points + 1), self.tolerance)
        remember(self, epoch, _choice(epoch, binning, self.max_iterations or 1, converged=converged))
        return self

    def predict(self, X: ArrayLike) -> NDArray[np.int64]:
        """Return the bin of each iteration of another epoch; counts of bins weigh the points for that epoch.

        A length between two bins belongs to the nearer bin, and a length outside all bins to the outermost.

        Parameters
        ----------
        X : array-like, shape (n_iterations, n_features)
            Sequence lengths of the other epoch, with the columns of `fit`.

        Returns
        -------
        ndarray of int64, shape (n_iterations,)
            Index of a bin, which is that of the point unless `max_iterations` is set.

        Examples
        --------
        >>> points = SeqPointSelector().fit([[8], [16], [16]], [100, 200, 220])
        >>> points.predict([[9], [15], [99]]).tolist()
        [0, 1, 1]
        """
        lengths = self._features(X)[:, 0]
        boundaries = (self.bin_edges_[:-1, 1] + self.bin_edges_[1:, 0]) / 2
        return np.asarray(np.searchsorted(boundaries, lengths, side="right"), dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class _Binning:
    """Bins of lengths, ascending and none empty, and the total that their points project.

    Attributes
    ----------
    of_length : ndarray of int64, shape (n_lengths,)
        Bin of each distinct length.
    edges : ndarray of float64, shape (n_bins, 2)
        Lower and upper edge of each bin.
    points : ndarray of int64, shape (n_bins,)
        Row of the length table that is the point of each bin.
    iterations : ndarray of int64, shape (n_bins,)
        Iterations of each bin.
    projected_total : float
        Total of the statistic, from the points and their weights.
    """

    of_length: NDArray[np.int64]
    edges: NDArray[np.float64]
    points: NDArray[np.int64]
    iterations: NDArray[np.int64]
    projected_total: float


def _bin_of_each_length(epoch: Epoch) -> _Binning:
    lengths = epoch.table.lengths
    rows = np.arange(lengths.size)
    return _Binning(rows, np.column_stack((lengths, lengths)), rows, epoch.table.counts, epoch.total)


def _equal_width_bins(epoch: Epoch, n_bins: int) -> _Binning:
    """Cut the range of lengths into `n_bins`, drop empty bins, and choose the point of each."""
    table = epoch.table
    edges = np.linspace(table.lengths[0], table.lengths[-1], n_bins + 1)
    kept, starts, of_length = np.unique(
        np.searchsorted(edges[1:-1], table.lengths, side="right"), return_index=True, return_inverse=True
    )
    iterations = np.add.reduceat(table.counts, starts)
    mean_of_bin = np.add.reduceat(table.counts * table.means, starts) / iterations
    distance = np.abs(table.means - mean_of_bin[of_length])
    nearest = np.flatnonzero(distance == np.minimum.reduceat(distance, starts)[of_length])
    points = nearest[np.unique(of_length[nearest], return_index=True)[1]]  # of a tie, the shortest
    return _Binning(
        of_length=of_length,
        edges=np.column_stack((edges[kept], edges[kept + 1])),
        points=points,
        iterations=iterations,
        projected_total=float(iterations @ table.means[points]),
    )


def _search(epoch: Epoch, bin_counts: range, tolerance: float) -> tuple[_Binning, bool]:
    """Return the first binning within the tolerance, or the one of smallest error; and whether it is within."""
    best, smallest_error = _equal_width_bins(epoch, bin_counts[0]), np.inf
    for n_bins in bin_counts:  # at most `max_points` rounds, each linear in the distinct lengths
        binning = _equal_width_bins(epoch, n_bins)
        error = abs(binning.projected_total - epoch.total) / epoch.total
        if error < smallest_error:
            best, smallest_error = binning, error
        if error < tolerance:
            return binning, True
    return best, False


def _choice(epoch: Epoch, binning: _Binning, max_iterations: int, *, converged: bool) -> Choice:
    table, points = epoch.table, binning.points
    allocation = shared_allocation(binning.iterations, table.means[points], max_iterations)
    samples = np.minimum(allocation, table.counts[points])
    return Choice(
        representatives=nearest_iterations(table, epoch.statistic, points, samples),
        weights=np.repeat(binning.iterations / samples, samples),
        labels=np.asarray(binning.of_length[table.of_iteration], dtype=np.int64),
        bin_edges=binning.edges,
        projected_total=binning.projected_total,
        converged=converged,
    )


class _SingleLengthSelector(Selector):
    """Selector of a single sequence length, which stands for all iterations."""

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Choose the iteration; `X`, `y` and errors as in `SeqPointSelector.fit`."""
        epoch = read_epoch(self, X, y)
        row = self._row(epoch)
        iteration = nearest_iterations(epoch.table, epoch.statistic, np.array([row]))
        total = epoch.lengths.size * float(epoch.table.means[row])
        remember(self, epoch, Choice.of_one_bin(epoch, iteration, projected_total=total))
        return self

    def _row(self, epoch: Epoch) -> int:
        """Return the row of the length table that is chosen."""
        raise NotImplementedError


class FrequentSelector(_SingleLengthSelector):
    """Baseline selector whose point is the most frequent sequence length; of several, the shortest.

    Fitted attributes: see `FittedSelector`. Source: the baseline `frequent` of SeqPoint (arXiv 2007.10459).

    Examples
    --------
    >>> frequent = FrequentSelector().fit([[5], [9], [5]], [10, 40, 10])
    >>> frequent.sequence_lengths_.tolist(), frequent.projected_total_, frequent.relative_error_
    ([5.0], 30.0, 0.5)
    """

    def _row(self, epoch: Epoch) -> int:
        return int(np.argmax(epoch.table.counts))


class MedianSelector(_SingleLengthSelector):
    """Baseline selector whose point is the median sequence length; of an even number of iterations, the lower one.

    Fitted attributes: see `FittedSelector`. Source: the baseline `median` of SeqPoint (arXiv 2007.10459).

    Examples
    --------
    >>> median = MedianSelector().fit([[5], [9], [6]], [10, 40, 20])
    >>> median.sequence_lengths_.tolist(), median.projected_total_
    ([6.0], 60.0)
    """

    def _row(self, epoch: Epoch) -> int:
        return int(np.searchsorted(2 * np.cumsum(epoch.table.counts), epoch.lengths.size))


class WorstSelector(_SingleLengthSelector):
    """Baseline selector whose point is the sequence length with the largest error: the worst single choice.

    Of several lengths it is the shortest. Fitted attributes: see `FittedSelector`. Source: the baseline `worst` of
    SeqPoint (arXiv 2007.10459).

    Examples
    --------
    >>> worst = WorstSelector().fit([[5], [9], [6]], [10, 40, 20])
    >>> worst.sequence_lengths_.tolist(), worst.projected_total_
    ([9.0], 120.0)
    """

    def _row(self, epoch: Epoch) -> int:
        return int(np.argmax(np.abs(epoch.lengths.size * epoch.table.means - epoch.total)))


class PriorSelector(Selector):
    """Baseline selector of a contiguous window of iterations after a warm-up, as a profiler's schedule records.

    Each iteration of the window weighs the same. In an epoch too short for both, the warm-up is shortened first, then
    the window. All points share one bin, so every label is 0. The choice depends on the order of the rows, which is
    its weakness on sorted epochs.

    Parameters
    ----------
    window : int, default 50
        Iterations to profile, 1 or more.
    warmup : int, default 10
        Iterations to skip before the window, 0 or more.

    Notes
    -----
    Fitted attributes: see `FittedSelector`. Source: the baseline `prior` of SeqPoint (arXiv 2007.10459), a
    window of about 50 iterations. The paper does not state the warm-up; the default is ours.

    Examples
    --------
    >>> prior = PriorSelector(window=2, warmup=1).fit([[5], [5], [6], [9]], [10, 10, 20, 40])
    >>> prior.representatives_.tolist(), prior.weights_.tolist(), prior.projected_total_
    ([1, 2], [2.0, 2.0], 60.0)
    """

    def __init__(self, window: int = 50, warmup: int = 10) -> None:
        self.window = window
        self.warmup = warmup

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Choose the window; `X`, `y` and errors as in `SeqPointSelector.fit`."""
        require_at_least("window", self.window, 1)
        require_at_least("warmup", self.warmup, 0)
        epoch = read_epoch(self, X, y)
        n = epoch.lengths.size
        size = min(self.window, n)
        start = min(self.warmup, n - size)
        rows = np.arange(start, start + size, dtype=np.int64)
        remember(self, epoch, Choice.of_one_bin(epoch, rows))
        return self
