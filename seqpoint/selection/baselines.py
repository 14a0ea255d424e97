"""Baseline selectors that the SeqPoint paper compares with: frequent, median, worst and prior."""

from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from seqpoint.selection.log import Choice, Epoch, Selector, nearest_iterations, read_epoch, remember, require_at_least


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
