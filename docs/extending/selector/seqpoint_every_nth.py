"""A selector: every n-th iteration of a run, with equal weights."""

from typing import Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator

from seqpoint.selection import Choice, SelectionMethod, read_epoch, remember


class EveryNthSelector(BaseEstimator):
    """Choose every n-th iteration, so that at most `max_points` are chosen."""

    def __init__(self, max_points: int = 10) -> None:
        self.max_points = max_points

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Choose iterations of a run with lengths `X`, shape (n, 1), and statistic `y`, shape (n,)."""
        epoch = read_epoch(self, X, y)
        n_iterations = len(epoch.lengths)
        step = -(-n_iterations // self.max_points)  # rounded up
        remember(self, epoch, Choice.of_one_bin(epoch, np.arange(step // 2, n_iterations, step)))
        return self


METHOD = SelectionMethod(
    make=lambda budget: EveryNthSelector(budget.points),
    summary="Every n-th iteration, with equal weights.",
)
