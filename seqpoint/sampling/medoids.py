"""k-medoids: iterations that stand for others with a like profile, such as the time in each kernel."""

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.metrics import pairwise_distances, pairwise_distances_argmin
from sklearn.utils.validation import check_is_fitted, validate_data

from profilers.arrays import MISSING, integers, strings
from profilers.errors import InvalidInputError
from profilers.trace import Trace
from seqpoint.sampling.epochs import remember_drawn, strata_of
from seqpoint.sampling.sampler import SamplingPlan
from seqpoint.selection.fitted import one_length, read_epoch, require_at_least

__all__ = ["KMedoidsSelector", "kernel_profiles"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

#: Iterations among which medoids are looked for; of more, a sample (CLARA).
_SAMPLE = 2000
#: Rounds of exchanging; each lowers the sum of distances, so this bounds time alone.
_ROUNDS = 100


class KMedoidsSelector(BaseEstimator):  # type: ignore[misc]
    """Choose iterations in the middle of groups with a like profile; each stands for its group.

    Columns are taken as they are: give times, not counts, or scale them. Where the statistic is their sum, as with
    the time in each kernel, groups are alike in the statistic too.

    Parameters
    ----------
    max_points : int, default 10
        Groups, 1 or more.
    confidence : float, default 0.95
        Of the intervals of `seqpoint.sampling.estimate_total`, between 0 and 1.
    seed : int, default 0
        Of the first medoids, and of the sample that they are looked for in where there are over 2,000 iterations.

    Attributes
    ----------
    representatives_, weights_, labels_, bin_edges_, sequence_lengths_
        The points, see `FittedSelector`, whose length is here the first column.
    medoids_ : ndarray of float64, shape (n_points, n_features)

    Notes
    -----
    Kaufman and Rousseeuw, Finding Groups in Data (1990), chapters 2 and 3; medoids are improved by turns with the
    groups (Park and Jun 2009, Expert Systems with Applications 36, 3336), from k-means++'s start. The estimate and its
    interval are those of a stratum with one draw each: a medoid is taken as if it were drawn at random from its
    group, and borrows the variance that the log shows.

    Examples
    --------
    >>> profiles = [[1, 9], [1, 10], [1, 11], [50, 2], [51, 2], [52, 2]]
    >>> middle = KMedoidsSelector(max_points=2).fit(profiles, np.sum(profiles, axis=1))
    >>> middle.representatives_.tolist(), middle.weights_.tolist()
    ([1, 4], [3.0, 3.0])
    """

    def __init__(self, max_points: int = 10, confidence: float = 0.95, seed: int = 0) -> None:
        self.max_points = max_points
        self.confidence = confidence
        self.seed = seed

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Choose the medoids.

        Parameters
        ----------
        X : array-like, shape (n_iterations, n_features)
            Profile of each iteration, zero or more.
        y : array-like, shape (n_iterations,)
            Any statistic, zero or more.

        Raises
        ------
        InvalidInputError, ValueError
            As `SeqPointSelector.fit`.
        """
        require_at_least("max_points", self.max_points, 1)
        require_at_least("seed", self.seed, 0)
        epoch = read_epoch(self, X, y)
        profiles = np.asarray(X, dtype=np.float64)
        rows = np.sort(_medoids(profiles, int(self.max_points), self.seed))
        labels = np.asarray(pairwise_distances_argmin(profiles, profiles[rows]), dtype=np.int64)
        self.medoids_ = profiles[rows]
        plan = SamplingPlan(strata_of(epoch, labels), np.ones(rows.size, np.int64), float(epoch.statistic.sum()))
        remember_drawn(self, epoch, plan, rows)
        return self

    def predict(self, X: ArrayLike) -> Ints:
        """Return the group of each iteration of another epoch.

        Parameters
        ----------
        X : array-like, shape (n_iterations, n_features)
            As in `fit`.
        """
        check_is_fitted(self)
        profiles = validate_data(self, X, dtype=np.float64, reset=False)
        return np.asarray(pairwise_distances_argmin(profiles, self.medoids_), dtype=np.int64)

    def __sklearn_tags__(self) -> Any:
        return one_length(super().__sklearn_tags__())


def _medoids(profiles: Floats, most: int, seed: int) -> Ints:
    """Return the rows of distinct medoids."""
    rng = np.random.default_rng(seed)
    count = len(profiles)
    taken = np.arange(count) if count <= _SAMPLE else np.sort(rng.choice(count, _SAMPLE, replace=False))
    distances = pairwise_distances(profiles[taken])
    medoids = _start(distances, most, rng)
    for _ in range(_ROUNDS):
        group = np.argmin(distances[:, medoids], axis=1)
        better = np.array([_middle(distances, np.flatnonzero(group == one)) for one in range(medoids.size)])
        if (better == medoids).all():
            break
        medoids = better
    return taken[medoids]


def _start(distances: Floats, most: int, rng: np.random.Generator) -> Ints:
    """Return first medoids: the middle of all, then rows drawn in proportion to their squared distance from those."""
    chosen = [_middle(distances, np.arange(len(distances)))]
    while len(chosen) < most:
        squares = distances[:, chosen].min(axis=1) ** 2
        if not squares.any():
            break
        chosen.append(int(rng.choice(len(distances), p=squares / squares.sum())))
    return np.array(chosen)


def _middle(distances: Floats, rows: Ints) -> int:
    """Return the row with the smallest sum of distances to the others; of several the first."""
    return int(rows[np.argmin(distances[np.ix_(rows, rows)].sum(axis=0))])


def kernel_profiles(trace: Trace, rank: int = 0) -> tuple[Ints, Floats]:
    """Return the time in each kernel by iteration.

    Parameters
    ----------
    trace : Trace
        With iterations.
    rank : int

    Returns
    -------
    iterations : ndarray of int64, shape (n_iterations,)
        Their numbers, ascending.
    profiles : ndarray of float64, shape (n_iterations, n_names)
        ns, by name in alphabetical order.

    Raises
    ------
    InvalidInputError
        The rank has no kernel in an iteration.
    """
    kernels = trace.kernels
    iteration, duration = integers(kernels, "iteration"), integers(kernels, "dur_ns")
    own = (integers(kernels, "rank") == rank) & (iteration != MISSING) & (duration != MISSING)
    if not own.any():
        raise InvalidInputError(f"rank {rank} has no kernel in an iteration, so there are no profiles")
    numbers, row = np.unique(iteration[own], return_inverse=True)
    names, column = np.unique(strings(kernels, "name")[own].astype(str), return_inverse=True)
    cells = np.bincount(row * names.size + column, duration[own].astype(np.float64), numbers.size * names.size)
    return numbers, np.asarray(cells, dtype=np.float64).reshape(numbers.size, names.size)
