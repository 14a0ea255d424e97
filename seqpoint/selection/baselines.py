"""The simpler ways to choose iterations that SeqPoint is compared with."""

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator

from seqpoint.selection.log import Choice, Epoch, nearest_iterations, one_length, read_epoch, remember, require_at_least


class FrequentSelector(BaseEstimator):  # type: ignore[misc]
    """Let the most frequent sequence length stand for the whole epoch; of several, the shortest.

    Fitted attributes: see `FittedSelector`. Source: the baseline `frequent` of SeqPoint (arXiv 2007.10459).

    Examples
    --------
    >>> frequent = FrequentSelector().fit([[5], [9], [5]], [10, 40, 10])
    >>> frequent.sequence_lengths_.tolist(), frequent.projected_total_, frequent.relative_error_
    ([5.0], 30.0, 0.5)
    """

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Choose one iteration; `X`, `y` and errors as in `SeqPointSelector.fit`."""
        epoch = read_epoch(self, X, y)
        remember(self, epoch, _single_length(epoch, int(np.argmax(epoch.table.counts))))
        return self

    def __sklearn_tags__(self) -> Any:
        return one_length(super().__sklearn_tags__())


class MedianSelector(BaseEstimator):  # type: ignore[misc]
    """Let the median sequence length (of an even number of iterations, the lower one) stand for the epoch.

    Fitted attributes: see `FittedSelector`. Source: the baseline `median` of SeqPoint (arXiv 2007.10459).

    Examples
    --------
    >>> median = MedianSelector().fit([[5], [9], [6]], [10, 40, 20])
    >>> median.sequence_lengths_.tolist(), median.projected_total_
    ([6.0], 60.0)
    """

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Choose one iteration; `X`, `y` and errors as in `SeqPointSelector.fit`."""
        epoch = read_epoch(self, X, y)
        up_to = np.cumsum(epoch.table.counts)
        remember(self, epoch, _single_length(epoch, int(np.searchsorted(2 * up_to, epoch.lengths.size))))
        return self

    def __sklearn_tags__(self) -> Any:
        return one_length(super().__sklearn_tags__())


class WorstSelector(BaseEstimator):  # type: ignore[misc]
    """Let the one sequence length with the largest error stand for the epoch: how wrong one choice can be.

    Of several, the shortest. Fitted attributes: see `FittedSelector`. Source: the baseline `worst` of
    SeqPoint (arXiv 2007.10459).

    Examples
    --------
    >>> worst = WorstSelector().fit([[5], [9], [6]], [10, 40, 20])
    >>> worst.sequence_lengths_.tolist(), worst.projected_total_
    ([9.0], 120.0)
    """

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Choose one iteration; `X`, `y` and errors as in `SeqPointSelector.fit`."""
        epoch = read_epoch(self, X, y)
        error = np.abs(epoch.lengths.size * epoch.table.means - epoch.total)
        remember(self, epoch, _single_length(epoch, int(np.argmax(error))))
        return self

    def __sklearn_tags__(self) -> Any:
        return one_length(super().__sklearn_tags__())


class PriorSelector(BaseEstimator):  # type: ignore[misc]
    """Profile a contiguous window of iterations after the warm-up, as a profiler's schedule does.

    Each iteration of the window weighs the same. An epoch too short for both gives up warm-up first, then
    window: the window is the last `window` iterations, or all of them. All points share one bin, so every
    label is 0. The choice depends on the order of the rows; that is its weakness on sorted epochs.

    Parameters
    ----------
    window : int, default 50
        Iterations to profile, 1 or more.
    warmup : int, default 10
        Iterations to skip before, 0 or more.

    Notes
    -----
    Fitted attributes: see `FittedSelector`. Source: the baseline `prior` of SeqPoint (arXiv 2007.10459), a
    window of about 50 iterations; the length of its warm-up is unknown, the default is ours.

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
        total = n * float(epoch.statistic[rows].mean())
        remember(self, epoch, Choice.of_one_bin(epoch, rows, projected_total=total))
        return self

    def __sklearn_tags__(self) -> Any:
        return one_length(super().__sklearn_tags__())


def _single_length(epoch: Epoch, row: int) -> Choice:
    """Let one row of the length table stand for all iterations."""
    iteration = nearest_iterations(epoch.table, epoch.statistic, np.array([row]))
    total = epoch.lengths.size * float(epoch.table.means[row])
    return Choice.of_one_bin(epoch, iteration, projected_total=total)
