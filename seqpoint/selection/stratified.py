"""Selectors that read several features: random draws, draws from strata, and medoids of groups.

`RandomSelector` and `StratifiedSelector` draw iterations at random, so that sampling theory gives the intervals of
their totals. `KMedoidsSelector` takes the middle of groups with similar profiles, such as the time in each kernel
(`kernel_profiles`); its estimate treats a medoid as a draw from its group. All three set the attributes that
`seqpoint.selection.kernels.estimate_drawn_total`, `expand_total` and `estimate_drawn_speedup` read.
"""

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from profilers.errors import InvalidInputError
from profilers.trace.arrays import MISSING, Floats, Ints, integers, strings
from profilers.trace.trace import Trace
from seqpoint.selection.estimate import shared_allocation
from seqpoint.selection.kernels import SamplingPlan, Strata, draw_rows
from seqpoint.selection.log import Choice, Epoch, Selector, read_epoch, remember, require_at_least


class _DrawingSelector(Selector):
    """Selector with a number of points, a confidence level and a seed."""

    def __init__(self, max_points: int = 10, confidence: float = 0.95, seed: int = 0) -> None:
        self.max_points = max_points
        self.confidence = confidence
        self.seed = seed

    def _read(self, X: ArrayLike, y: ArrayLike) -> Epoch:
        """Check the parameters, and return the epoch of a `fit`."""
        require_at_least("max_points", self.max_points, 1)
        require_at_least("seed", self.seed, 0)
        return read_epoch(self, X, y)


class RandomSelector(_DrawingSelector):
    """Selector that draws iterations with equal probability: the reference that every other selector has to beat.

    Parameters
    ----------
    max_points : int, default 10
        Iterations to draw, 1 or more; all iterations of a shorter epoch.
    confidence : float, default 0.95
        Confidence level of the intervals of its totals, between 0 and 1.
    seed : int, default 0
        Seed of the draw, 0 or more.

    Notes
    -----
    Fitted attributes: see `FittedSelector`, and those of `seqpoint.selection.kernels.KernelSampler`. Source: simple
    random sampling (Cochran, Sampling Techniques, 1977, chapter 2). Few draws miss the tail of skewed lengths. In
    simulation, on a configuration whose cost is quadratic in the length and a log whose cost is linear, 95 %
    intervals cover 71, 81 and 88 % for 10, 30 and 100 draws. Those of `StratifiedSelector` cover 97 to 98 % there, and
    its error is 4 to 7 times smaller.

    Examples
    --------
    >>> drawn = RandomSelector(max_points=2).fit([[5], [9], [5], [7]], [10, 40, 10, 20])
    >>> drawn.representatives_.size, drawn.weights_.tolist()
    (2, [2.0, 2.0])
    """

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Draw iterations; `X`, `y` and errors as in `SeqPointSelector.fit`."""
        epoch = self._read(X, y)
        _draw(self, epoch, np.zeros(epoch.lengths.size, np.int64))
        return self


class StratifiedSelector(_DrawingSelector):
    """Selector that draws iterations from strata of several features, such as length, batch and encoder length.

    A regression tree cuts the features where that leaves the least variance of the statistic within strata. Draws of a
    stratum are in proportion to its size times its spread (Neyman), and at least two if it has a spread.

    Parameters
    ----------
    max_points : int, default 10
        Iterations to draw, 1 or more.
    max_strata : int, optional
        Most strata, 1 or more; by default half of `max_points`.
    confidence : float, default 0.95
        Confidence level of the intervals of its totals, between 0 and 1.
    seed : int, default 0
        Seed of the draw, 0 or more.

    Attributes
    ----------
    representatives_, weights_, labels_, bin_edges_, sequence_lengths_
        The points, see `FittedSelector`; `labels_` are the strata, `bin_edges_` their shortest and longest length.
    tree_ : DecisionTreeRegressor
        The tree that assigns an iteration to a leaf.
    leaves_ : ndarray of int64, shape (n_strata,)
        Leaf of the tree for each stratum.

    Notes
    -----
    Cochran, Sampling Techniques (1977), chapters 5 and 5A. The tree is that of CART (Breiman and others, 1984), whose
    criterion is the variance within strata, on which Neyman's sample size depends. Further fitted attributes are those
    of `seqpoint.selection.kernels.KernelSampler`.

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
        super().__init__(max_points, confidence, seed)
        self.max_strata = max_strata

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Cut the epoch into strata and draw from them.

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
        epoch = self._read(X, y)
        max_strata = max(1, self.max_points // 2) if self.max_strata is None else self.max_strata
        require_at_least("max_strata", max_strata, 1)
        features = np.asarray(X, dtype=np.float64)
        from sklearn.tree import DecisionTreeRegressor

        self.tree_ = DecisionTreeRegressor(max_leaf_nodes=max(2, max_strata), min_samples_leaf=2, random_state=0)
        if max_strata == 1 or epoch.lengths.size < 4:
            self.tree_.set_params(max_leaf_nodes=None, max_depth=1, min_samples_leaf=epoch.lengths.size)
        leaves = self.tree_.fit(features, epoch.statistic).apply(features)
        self.leaves_, strata = np.unique(leaves, return_inverse=True)
        _draw(self, epoch, strata)
        return self

    def predict(self, X: ArrayLike) -> Ints:
        """Return the stratum of each iteration of another epoch.

        Parameters
        ----------
        X : array-like, shape (n_iterations, n_features)
            Features of the other epoch, with the columns of `fit`.
        """
        features = self._features(X)
        return np.asarray(np.searchsorted(self.leaves_, self.tree_.apply(features)), dtype=np.int64)


def strata_of(epoch: Epoch, of_row: Ints) -> Strata:
    """Return the strata of an epoch, given the stratum of each row."""
    y, sizes = epoch.statistic, np.bincount(of_row)
    means = np.bincount(of_row, y) / sizes
    squares = np.bincount(of_row, (y - means[of_row]) ** 2)
    spreads = np.sqrt(squares / np.maximum(sizes - 1, 1))
    return Strata(of_row, sizes, means, spreads, spreads)


def _draw(selector: Any, epoch: Epoch, of_row: Ints) -> None:
    """Draw `max_points` rows from strata, and set the fitted attributes."""
    strata = strata_of(epoch, of_row)
    sampled = shared_allocation(strata.sizes, strata.spreads_ns, selector.max_points)
    plan = SamplingPlan(strata, sampled, float(epoch.statistic.sum()))
    remember_drawn(selector, epoch, plan, draw_rows(plan, selector.seed))


def remember_drawn(selector: Any, epoch: Epoch, plan: SamplingPlan, rows: Ints) -> None:
    """Set the attributes of `FittedSelector` and of `seqpoint.selection.kernels.Drawn`."""
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


#: Most iterations among which medoids are searched; of more, a random sample is taken (CLARA).
_MAX_CANDIDATES = 2000
#: Most rounds of improving medoids; each lowers the sum of distances, so this bounds time alone.
_MAX_ROUNDS = 100


class KMedoidsSelector(_DrawingSelector):
    """Selector of the medoids of groups of iterations with similar profiles; each medoid represents its group.

    Columns are not scaled: give times rather than counts. If the statistic is the sum of the columns, as with the time
    in each kernel, the iterations of a group are similar in the statistic too.

    Parameters
    ----------
    max_points : int, default 10
        Most groups, 1 or more.
    confidence : float, default 0.95
        Confidence level of the intervals of its totals, between 0 and 1.
    seed : int, default 0
        Seed of the first medoids, and of the sample of iterations that is searched if there are over 2,000.

    Attributes
    ----------
    representatives_, weights_, labels_, bin_edges_, sequence_lengths_
        The points, see `FittedSelector`; the first column is taken as their length.
    medoids_ : ndarray of float64, shape (n_points, n_features)
        Profile of each medoid.

    Notes
    -----
    Kaufman and Rousseeuw, Finding Groups in Data (1990), chapters 2 and 3. Medoids and groups are improved in turn
    (Park and Jun 2009, Expert Systems with Applications 36, 3336), from the start of k-means++. Each group counts as a
    stratum with a single draw: a medoid is treated as drawn at random, and borrows the variance that the log shows.

    Examples
    --------
    >>> profiles = [[1, 9], [1, 10], [1, 11], [50, 2], [51, 2], [52, 2]]
    >>> middle = KMedoidsSelector(max_points=2).fit(profiles, np.sum(profiles, axis=1))
    >>> middle.representatives_.tolist(), middle.weights_.tolist()
    ([1, 4], [3.0, 3.0])
    """

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Choose the medoids.

        Parameters
        ----------
        X : array-like, shape (n_iterations, n_features)
            Profile of each iteration, zero or more, such as `kernel_profiles`.
        y : array-like, shape (n_iterations,)
            Any statistic, zero or more.

        Raises
        ------
        InvalidInputError, ValueError
            As `SeqPointSelector.fit`.
        """
        epoch = self._read(X, y)
        profiles = np.asarray(X, dtype=np.float64)
        rows = np.sort(_medoids(profiles, int(self.max_points), self.seed))
        labels = _nearest(profiles, profiles[rows])
        self.medoids_ = profiles[rows]
        plan = SamplingPlan(strata_of(epoch, labels), np.ones(rows.size, np.int64), float(epoch.statistic.sum()))
        remember_drawn(self, epoch, plan, rows)
        return self

    def predict(self, X: ArrayLike) -> Ints:
        """Return the group of each iteration of another epoch: that of the nearest medoid.

        Parameters
        ----------
        X : array-like, shape (n_iterations, n_features)
            Profiles of the other epoch, with the columns of `fit`.
        """
        profiles = self._features(X)
        return _nearest(profiles, self.medoids_)


def _nearest(profiles: Floats, medoids: Floats) -> Ints:
    """Return the row of the nearest medoid of each profile."""
    from sklearn.metrics import pairwise_distances_argmin

    return np.asarray(pairwise_distances_argmin(profiles, medoids), dtype=np.int64)


def _medoids(profiles: Floats, max_points: int, seed: int) -> Ints:
    """Return the rows of distinct medoids."""
    rng = np.random.default_rng(seed)
    count = len(profiles)
    candidates = (
        np.arange(count) if count <= _MAX_CANDIDATES else np.sort(rng.choice(count, _MAX_CANDIDATES, replace=False))
    )
    from sklearn.metrics import pairwise_distances

    distances = pairwise_distances(profiles[candidates])
    medoids = _first_medoids(distances, max_points, rng)
    for _ in range(_MAX_ROUNDS):
        group = np.argmin(distances[:, medoids], axis=1)
        improved = np.array([_medoid(distances, np.flatnonzero(group == i)) for i in range(medoids.size)])
        if (improved == medoids).all():
            break
        medoids = improved
    return candidates[medoids]


def _first_medoids(distances: Floats, max_points: int, rng: np.random.Generator) -> Ints:
    """Return first medoids: that of all rows, then rows drawn in proportion to their squared distance from them."""
    medoids = [_medoid(distances, np.arange(len(distances)))]
    while len(medoids) < max_points:
        squares = distances[:, medoids].min(axis=1) ** 2
        if not squares.any():
            break
        medoids.append(int(rng.choice(len(distances), p=squares / squares.sum())))
    return np.array(medoids)


def _medoid(distances: Floats, rows: Ints) -> int:
    """Return the row with the smallest sum of distances to the others; of several, the first."""
    return int(rows[np.argmin(distances[np.ix_(rows, rows)].sum(axis=0))])


def kernel_profiles(trace: Trace, rank: int = 0) -> tuple[Ints, Floats]:
    """Return the time in each kernel for every iteration.

    Parameters
    ----------
    trace : Trace
        A trace with iterations.
    rank : int, default 0
        Rank whose kernels are summed.

    Returns
    -------
    iterations : ndarray of int64, shape (n_iterations,)
        Numbers of the iterations, ascending.
    profiles : ndarray of float64, shape (n_iterations, n_names)
        Time in ns by kernel name, in alphabetical order.

    Raises
    ------
    InvalidInputError
        The rank has no kernel in an iteration.
    """
    kernels = trace.kernels
    iteration, duration = integers(kernels, "iteration"), integers(kernels, "dur_ns")
    in_rank = (integers(kernels, "rank") == rank) & (iteration != MISSING) & (duration != MISSING)
    if not in_rank.any():
        raise InvalidInputError(f"rank {rank} has no kernel in an iteration, so there are no profiles")
    numbers, row = np.unique(iteration[in_rank], return_inverse=True)
    names, column = np.unique(strings(kernels, "name")[in_rank].astype(str), return_inverse=True)
    cells = np.bincount(row * names.size + column, duration[in_rank].astype(np.float64), numbers.size * names.size)
    return numbers, np.asarray(cells, dtype=np.float64).reshape(numbers.size, names.size)


def profiles_of(iterations: Ints, numbers: Ints, profiles: Floats) -> Floats:
    """Return the profile of every iteration; zeros for an iteration without a profile.

    Parameters
    ----------
    iterations : ndarray of int64, shape (n_iterations,)
        Numbers of iterations.
    numbers : ndarray of int64, shape (n,)
        Numbers of the iterations that have a profile.
    profiles : ndarray of float64, shape (n, n_columns)
        Their profiles, as `kernel_profiles` returns them.

    Examples
    --------
    >>> profiles_of(np.array([7, 8]), np.array([8]), np.array([[1.0, 2.0]])).tolist()
    [[0.0, 0.0], [1.0, 2.0]]
    """
    order = np.argsort(numbers)
    has_profile = np.isin(iterations, numbers)
    rows = np.zeros((len(iterations), profiles.shape[1]))
    rows[has_profile] = profiles[order[np.searchsorted(numbers[order], iterations[has_profile])]]
    return rows
