"""Selections by strata and by medoids of several features.

Selectors that draw iterations at random, so that sampling theory says how sure their totals are.

k-medoids: iterations that stand for others with a like profile, such as the time in each kernel.

Which kernels or iterations to draw at random, how much each stands for, and how sure the total is that they give.
"""

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator
from sklearn.metrics import pairwise_distances, pairwise_distances_argmin
from sklearn.tree import DecisionTreeRegressor
from sklearn.utils.validation import check_is_fitted, validate_data

from profilers.errors import InvalidInputError
from profilers.trace.arrays import MISSING, Floats, Ints, integers, strings
from profilers.trace.trace import Trace
from seqpoint.selection.allocation import shared_allocation
from seqpoint.selection.kernels import SamplingPlan, Strata, draw_rows
from seqpoint.selection.log import Choice, Epoch, one_length, read_epoch, remember, require_at_least


class RandomSelector(BaseEstimator):  # type: ignore[misc]
    """Draw iterations, each as likely as any other: what every other way to choose has to beat.

    Parameters
    ----------
    max_points : int, default 10
        Iterations to draw, 1 or more; of a shorter epoch, all.
    confidence : float, default 0.95
        Of the intervals of `seqpoint.selection.stratified.estimate_total`, between 0 and 1.
    seed : int, default 0
        Of the draw; 0 or more.

    Notes
    -----
    Fitted attributes: see `FittedSelector`, and those of `seqpoint.selection.stratified.KernelSampler`, so that
    `seqpoint.selection.stratified.estimate_total` and `estimate_speedup` take it. Source: simple random sampling
    (Cochran, Sampling Techniques, 1977, chapter 2). In simulation, of skewed lengths and a configuration that grows
    with their square where the log grows linearly, 95 % intervals cover 71, 81 and 88 % for 10, 30 and 100 draws:
    few draws do not meet the tail. Those of `StratifiedSelector` cover 97 to 98 % there, and its error is 4 to 7
    times smaller.

    Examples
    --------
    >>> drawn = RandomSelector(max_points=2).fit([[5], [9], [5], [7]], [10, 40, 10, 20])
    >>> drawn.representatives_.size, drawn.weights_.tolist()
    (2, [2.0, 2.0])
    """

    def __init__(self, max_points: int = 10, confidence: float = 0.95, seed: int = 0) -> None:
        self.max_points = max_points
        self.confidence = confidence
        self.seed = seed

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Draw iterations; `X`, `y` and errors as in `SeqPointSelector.fit`."""
        require_at_least("max_points", self.max_points, 1)
        require_at_least("seed", self.seed, 0)
        epoch = read_epoch(self, X, y)
        _draw(self, epoch, np.zeros(epoch.lengths.size, np.int64))
        return self

    def __sklearn_tags__(self) -> Any:
        return one_length(super().__sklearn_tags__())


class StratifiedSelector(BaseEstimator):  # type: ignore[misc]
    """Draw iterations from strata of several features: length, batch, sum of squared lengths, encoder, decoder.

    A regression tree cuts the features where that leaves the least variance of the statistic inside; each stratum
    is drawn from in proportion to its size times its spread (Neyman), at least twice where there is a spread.

    Parameters
    ----------
    max_points : int, default 10
        Iterations to draw, 1 or more.
    max_strata : int, optional
        By default half of `max_points`.
    confidence : float, default 0.95
        Of the intervals of `seqpoint.selection.stratified.estimate_total`, between 0 and 1.
    seed : int, default 0
        Of the draw; 0 or more.

    Attributes
    ----------
    representatives_, weights_, labels_, bin_edges_, sequence_lengths_
        The points, see `FittedSelector`; `labels_` are the strata, `bin_edges_` their shortest and longest length.
    tree_ : DecisionTreeRegressor
        Says of any iteration to which stratum it belongs.

    Notes
    -----
    Cochran, Sampling Techniques (1977), chapters 5 and 5A; the tree is that of CART (Breiman and others, 1984),
    whose criterion is the variance within strata that Neyman's allocation wants small.
    `seqpoint.selection.stratified.estimate_total` and `estimate_speedup` take a fitted selector, since it has the
    attributes of a `KernelSampler`.

    Examples
    --------
    >>> features = [[length, batch] for length in (8, 16, 24) for batch in (1, 4)]
    >>> time_ns = [length * batch for length, batch in features]
    >>> drawn = StratifiedSelector(max_points=4).fit(features, time_ns)
    >>> float(drawn.weights_.sum()), len(set(drawn.labels_.tolist()))
    (6.0, 2)
    """

    def __init__(
        self, max_points: int = 10, max_strata: int | None = None, confidence: float = 0.95, seed: int = 0
    ) -> None:
        self.max_points = max_points
        self.max_strata = max_strata
        self.confidence = confidence
        self.seed = seed

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Cut the strata and draw.

        Parameters
        ----------
        X : array-like, shape (n_iterations, n_features)
            Features of each iteration, zero or more; the first is the sequence length.
        y : array-like, shape (n_iterations,)
            Any statistic, zero or more.

        Raises
        ------
        InvalidInputError, ValueError
            As `SeqPointSelector.fit`.
        """
        require_at_least("max_points", self.max_points, 1)
        require_at_least("seed", self.seed, 0)
        most = max(1, self.max_points // 2) if self.max_strata is None else self.max_strata
        require_at_least("max_strata", most, 1)
        epoch = read_epoch(self, X, y)
        features = np.asarray(X, dtype=np.float64)
        self.tree_ = DecisionTreeRegressor(max_leaf_nodes=max(2, most), min_samples_leaf=2, random_state=0)
        if most == 1 or epoch.lengths.size < 4:
            self.tree_.set_params(max_leaf_nodes=None, max_depth=1, min_samples_leaf=epoch.lengths.size)
        leaves = self.tree_.fit(features, epoch.statistic).apply(features)
        self.leaves_, strata = np.unique(leaves, return_inverse=True)
        _draw(self, epoch, strata)
        return self

    def predict(self, X: ArrayLike) -> Ints:
        """Return the stratum of each iteration of another epoch; its draws stand for them.

        Parameters
        ----------
        X : array-like, shape (n_iterations, n_features)
            As in `fit`.
        """
        check_is_fitted(self)
        features = validate_data(self, X, dtype=np.float64, reset=False)
        return np.asarray(np.searchsorted(self.leaves_, self.tree_.apply(features)), dtype=np.int64)

    def __sklearn_tags__(self) -> Any:
        return one_length(super().__sklearn_tags__())


def strata_of(epoch: Epoch, of_row: Ints) -> Strata:
    """Return the strata of an epoch by the stratum of each row."""
    y, sizes = epoch.statistic, np.bincount(of_row)
    means = np.bincount(of_row, y) / sizes
    squares = np.bincount(of_row, (y - means[of_row]) ** 2)
    spreads = np.sqrt(squares / np.maximum(sizes - 1, 1))
    return Strata(of_row, sizes, means, spreads, spreads)


def _draw(selector: Any, epoch: Epoch, of_row: Ints) -> None:
    """Draw from strata."""
    strata = strata_of(epoch, of_row)
    sampled = shared_allocation(strata.sizes, strata.spreads_ns, selector.max_points)
    plan = SamplingPlan(strata, sampled, float(epoch.statistic.sum()))
    remember_drawn(selector, epoch, plan, draw_rows(plan, selector.seed))


def remember_drawn(selector: Any, epoch: Epoch, plan: SamplingPlan, rows: Ints) -> None:
    """Set what `FittedSelector` and `seqpoint.selection.kernels` read of rows taken from strata."""
    of_row, sizes, y = plan.strata.of_row, plan.strata.sizes, epoch.statistic
    weights = (sizes / plan.sampled)[of_row[rows]]
    selector.plan_, selector.indices_, selector.strata_ = plan, rows, of_row
    selector.traced_ns_, selector.n_strata_ = y, int(sizes.size)
    shortest, longest = np.full(sizes.size, np.inf), np.zeros(sizes.size)
    np.minimum.at(shortest, of_row, epoch.lengths)
    np.maximum.at(longest, of_row, epoch.lengths)
    edges = np.column_stack((shortest, longest))
    total = float(weights @ y[rows])
    remember(selector, epoch, Choice(rows, weights, of_row, edges, total, converged=True))


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
        Of the intervals of `seqpoint.selection.stratified.estimate_total`, between 0 and 1.
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
