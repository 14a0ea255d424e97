"""Noise of measured steps: the change between two groups, and how far it may be chance.

`changes_of` compares columns of two groups by Welch's t-test, and by ranks, which stalls do not move. It compares steps
of several kinds (`seqpoint.kinds`) with their like. `paired_changes_of` compares two runs whose steps do the same work
one by one. Successive steps of a run are alike, so their scatter alone makes a change look surer than it is. Their
autocorrelation tells how many independent steps they are worth.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy.special import binom, ndtri, stdtrit

from profilers.trace.arrays import Bools, Floats, Ints

#: Fewest steps in which a drift is looked for, and level of its test.
_FEWEST_OF_DRIFT, _DRIFT_LEVEL = 20, 0.99
#: Share of the steps of the smaller group up to which lags count, and the largest lag.
_LAGS, _MOST_LAGS = 1 / 3, 64
#: Standard deviations beyond which an autocorrelation is no chance, at 5 % on one side.
_SIGNIFICANT = 1.645
#: Most by which the scatter of a kind of steps is scaled to that of another.
_MOST_SCALED = 10.0
#: Share of zeros from which a column has no typical change, as an operator that few steps run; most ranks of a side.
_SPARSE, _RANKS = 0.25, 48
#: Robust standard deviations beyond which steps count less for the autocorrelation; and those of a normal distribution
#: over its median absolute deviation.
_CLIPPED, _NORMAL = 3.0, 1.4826
#: Most steps of a run whose slopes are those of all pairs.
_MOST_OF_SLOPES = 1000


@dataclass(frozen=True)
class Changes:
    """Means of columns in two groups, the typical change, and its noise: arrays with one element a column.

    Parameters
    ----------
    before, after : array of float64
        Means; each run counts the same, and each kind of steps by its mean share of both groups.
    shift : array of float64
        Typical change: the median of the differences between steps (Hodges and Lehmann 1963), or the change of the mean
        if the t-test tells more.
    noise : array of float64
        Distance of the typical change to the end of its interval at `confidence`, on the side of no change; NaN if no
        group has two units of a kind.
    confidence : float
        Confidence level.
    unit : str
        ``"steps"``, ``"paired steps"`` or ``"runs"``: whose scatter the noise is.
    """

    before: Floats
    after: Floats
    shift: Floats
    noise: Floats
    confidence: float
    unit: str

    @property
    def change(self) -> Floats:
        """After less before."""
        return self.after - self.before

    def beyond(self, least: float) -> Bools:
        """Return whether each typical change is beyond the noise, and at least a share `least` of the larger mean."""
        change = np.abs(self.shift)
        return np.asarray((change > self.noise) & (change >= least * np.maximum(self.before, self.after)))


@dataclass(frozen=True)
class Change:
    """Time a step, before and after; times in ns.

    Parameters
    ----------
    name : str
        Operator, kernel without an operator, or part of a step; untrusted text.
    before_ns, after_ns : float
        Mean time a step.
    noise_ns : float, optional
        Noise of the typical change: its distance to the end of its interval; None if each side has one step.
    beyond_noise : bool, optional
        Whether the typical change is beyond the noise and not tiny; None if the noise is unknown.
    shift_ns : float, optional
        Typical change, which outliers do not move; None if the noise is unknown.
    """

    name: str
    before_ns: float
    after_ns: float
    noise_ns: float | None
    beyond_noise: bool | None
    shift_ns: float | None = None

    @property
    def change_ns(self) -> float:
        """After less before."""
        return self.after_ns - self.before_ns

    @property
    def ratio(self) -> float | None:
        """Change over the time before; None without time before."""
        return self.change_ns / self.before_ns if self.before_ns else None

    @property
    def error(self) -> float | None:
        """Error of the time before as a projection of the time after; None without time after."""
        return -self.change_ns / self.after_ns if self.after_ns else None

    def to_dict(self) -> dict[str, Any]:
        """Return the change as JSON with stable keys."""
        return {**asdict(self), "change_ns": self.change_ns, "change": self.ratio}


def rows_of(changes: Changes, names: Sequence[str], least: float) -> list[Change]:
    """Return a row for each column."""
    beyond, noise = changes.beyond(least), changes.noise
    return [
        Change(name, float(changes.before[i]), float(changes.after[i]), *_known(noise[i], beyond[i], changes.shift[i]))
        for i, name in enumerate(names)
    ]


def _known(noise: float, beyond: bool, shift: float) -> tuple[float | None, bool | None, float | None]:
    return (None, None, None) if np.isnan(noise) else (float(noise), bool(beyond), float(shift))


def changes_of(
    before: Sequence[Floats],
    after: Sequence[Floats],
    confidence: float,
    *,
    kinds: Sequence[Sequence[Ints]] | None = None,
) -> Changes:
    """Return the change of each column from one group of runs to another.

    If a group has several runs, the unit of the noise is the run: its steps share what differs between runs. The
    scatter of a group with a single unit is taken from the other group. The noise is the scatter within a kind. A
    change is found by Welch's t-test, or by ranks if there are enough units; then the t-test has half of the error.

    Parameters
    ----------
    before, after : sequence of array of float64, shape (steps, columns)
        Runs of each group, each with at least one step.
    confidence : float
        Confidence level of the interval, such as 0.99.
    kinds : pair of sequences of array of int64, shape (steps,), optional
        Kind of each step of the runs before and after; each kind occurs in both groups.

    Notes
    -----
    The interval by ranks inverts the test of Wilcoxon, Mann and Whitney: its ends are quantiles of the differences
    between steps of the two groups (Lehmann 1963, Ann. Math. Stat. 34, 1507). Kinds are aligned by their medians, as
    blocks are (Hodges and Lehmann 1962, Ann. Math. Stat. 33, 482).

    Examples
    --------
    >>> changes = changes_of([np.array([[10.0], [11.0], [9.0]])], [np.array([[20.0], [19.0], [21.0]])], 0.95)
    >>> float(changes.change[0]), round(float(changes.noise[0]), 2), bool(changes.beyond(0.005)[0])
    (10.0, 2.27, True)
    """
    by_run = len(before) > 1 or len(after) > 1
    labels = kinds or [[np.zeros(len(run), np.int64) for run in runs] for runs in (before, after)]
    shares = _shares([np.concatenate(list(of_group)) for of_group in labels])
    groups, robust = (
        [_units(runs, of, shares, center) for runs, of in zip((before, after), labels, strict=True)]
        for center in (np.mean, np.median)
    )
    means = [group.values.mean(axis=0) for group in groups]
    half = (1 + confidence) / 2  # beside the test of ranks, the t-test has half of the error
    ranked, of_ranks, are_able = _by_ranks(robust, confidence)
    shift, noise = means[1] - means[0], np.where(are_able, _t_noise(groups, half), _t_noise(groups, confidence))
    finds, others = np.abs(ranked) > of_ranks, np.abs(shift) > noise
    decide = are_able & np.where(finds == others, of_ranks < noise, finds)
    shift, noise = np.where(decide, ranked, shift), np.where(decide, of_ranks, noise)
    return Changes(means[0], means[1], shift, noise, confidence, "runs" if by_run else "steps")


@dataclass(frozen=True)
class _Units:
    """Steps or runs of a group, as if they were of one kind: values of shape (units, columns).

    `count` is the number of units that the mean of each column is worth, `freedom` its degrees of freedom.
    """

    values: Floats
    count: Floats
    freedom: Floats


def _shares(labels: Sequence[Ints]) -> Floats:
    """Return the mean share of each kind in two groups."""
    size = 1 + max(int(of_group.max()) for of_group in labels)
    return np.asarray(np.mean([np.bincount(each, minlength=size) / len(each) for each in labels], axis=0))


def _units(runs: Sequence[Floats], labels: Sequence[Ints], shares: Floats, center: Any) -> _Units:
    """Return the units of a group, with each kind moved from its center to that of all kinds.

    Steps of a kind scatter in proportion to its center, up to a factor of ten. Kinds whose center is zero, such as
    steps without an operator, tell nothing about the scatter of a column.
    """
    steps, label = np.concatenate(list(runs)), np.concatenate(list(labels))
    kinds, width = np.flatnonzero(shares), steps.shape[1]
    if len(kinds) == 1 and len(runs) == 1:
        return _Units(steps, np.full(width, float(len(steps))), np.full(width, len(steps) - 1.0))
    of_kind, share = np.bincount(label, minlength=len(shares))[kinds], shares[kinds][:, None]
    centers, scale = np.zeros((len(shares), width)), np.ones((len(shares), width))
    if len(kinds) > 1:
        centers[kinds] = np.stack([center(steps[label == kind], axis=0) for kind in kinds.tolist()])
        common = shares @ centers
        if len(runs) == 1:
            ratio = np.divide(centers, common, out=np.ones_like(centers), where=common > 0)
            scale = np.clip(ratio, 1 / _MOST_SCALED, _MOST_SCALED)
        steps = common + (steps - centers[label]) / scale[label]
    if len(runs) > 1:
        values = np.stack([each.mean(axis=0) for each in np.split(steps, np.cumsum([len(r) for r in runs])[:-1])])
        return _Units(values, np.full(width, float(len(runs))), np.full(width, len(runs) - 1.0))
    count = np.asarray(1 / np.sum(np.square(share * scale[kinds]) / of_kind[:, None], axis=0), dtype=np.float64)
    occurs = (centers[kinds] > 0) | (centers[kinds] <= 0).all(axis=0)
    return _Units(steps, count, np.asarray((of_kind - 1.0) @ occurs, dtype=np.float64))


def _t_noise(groups: Sequence[_Units], confidence: float) -> Floats:
    """Return the half-width of the interval of the difference of means (Welch 1947, Biometrika 34, 28).

    A group counts as its number of units over those that are worth an independent one, and at least as two. A group
    without degrees of freedom has the variance of the other; NaN if both have none.
    """
    known = np.stack([group.freedom > 0 for group in groups])
    worth = np.where(known.all(axis=0), _correlation([group.values for group in groups]), 1.0)
    squares = [np.square(group.values - group.values.mean(axis=0)).sum(axis=0) for group in groups]
    variances = [each / np.maximum(group.freedom, 1) for each, group in zip(squares, groups, strict=True)]
    borrowed = [np.where(known[i], variances[i], variances[1 - i]) for i in range(2)]
    counts = [np.maximum(group.count / worth, np.minimum(group.count, 2.0)) for group in groups]
    freedom = np.stack([np.maximum((group.freedom + 1) / worth, 2.0) - 1 for group in groups])
    errors = np.stack([variance / count for variance, count in zip(borrowed, counts, strict=True)])
    total = errors.sum(axis=0)
    weighted = (errors**2 / freedom).sum(axis=0)
    degrees = np.divide(total**2, weighted, out=np.ones_like(total), where=weighted > 0)
    degrees = np.where(known.all(axis=0), degrees, np.max(np.where(known, freedom, 1.0), axis=0))
    noise = np.where(weighted > 0, stdtrit(degrees, (1 + confidence) / 2) * np.sqrt(total), 0.0)
    return np.asarray(np.where(known.any(axis=0), noise, np.nan))


def _by_ranks(groups: Sequence[_Units], confidence: float) -> tuple[Floats, Floats, Bools]:
    """Return the median of the differences between units of two groups, its noise, and whether ranks can tell them.

    They can if units that are all longer on one side are rarer by chance than the confidence level allows.
    """
    values = [group.values for group in groups]
    width = values[0].shape[1]
    shift, noise, able = np.zeros(width), np.zeros(width), np.zeros(width, dtype=bool)
    if min(map(len, values)) < 2:
        return shift, noise, able
    clipped = [_clipped(each) for each in values]
    worth = np.where(_is_correlated(clipped), _correlation(clipped), 1.0)
    counts = [group.count * group.freedom / (len(group.values) - 1) / worth for group in groups]
    pairs = 12 * counts[0] * counts[1] / (counts[0] + counts[1] + 1)
    half = np.divide(ndtri((1 + confidence) / 2), np.sqrt(pairs), out=np.ones(width), where=pairs > 0)
    sparse = np.max([(each == 0).mean(axis=0) for each in values], axis=0) > _SPARSE
    orders = binom(counts[0] + counts[1], counts[0])  # equally likely without a change; two of them are extreme
    able = (half < 0.5) & (orders >= 2 / (1 - confidence)) & ~sparse
    if able.any():
        shift[able], noise[able] = _median_difference([each[:, able] for each in values], half[able])
    return shift, noise, able


def _is_correlated(groups: Sequence[Floats]) -> Bools:
    """Return whether successive units are more alike than chance allows at 5 % in each column.

    Autocorrelations of white series have a standard deviation of one over the root of their length (Bartlett 1946,
    Suppl. J. R. Stat. Soc. 8, 27). Those of a short series that are not significant widen its interval for nothing.
    """
    residuals = [group - group.mean(axis=0) for group in groups]
    products = np.sum([(each[1:] * each[:-1]).sum(axis=0) for each in residuals], axis=0)
    total = np.sum([np.square(each).sum(axis=0) for each in residuals], axis=0)
    size, groups_lost = sum(map(len, groups)), len(groups)
    expected = -groups_lost / size  # of a white series about its own mean
    return np.asarray(products > total * (expected + _SIGNIFICANT / np.sqrt(size)))


def _median_difference(groups: Sequence[Floats], half: Floats) -> tuple[Floats, Floats]:
    """Return the median of the differences of two groups, and its distance to the end of its interval nearer to zero.

    The ends are the quantiles of the differences `half` below and above the middle. Of a long run 48 ranks count.
    """
    before, after = (np.sort(group, axis=0)[_spread_ranks(len(group))] for group in groups)
    differences = np.sort((after[:, None] - before[None]).reshape(-1, before.shape[1]), axis=0)
    size = len(differences)
    row = np.maximum(np.floor((0.5 - half) * size - 0.5), 0).astype(np.int64)[None]
    low, high = (np.take_along_axis(differences, rows, axis=0)[0] for rows in (row, size - 1 - row))
    middle = (differences[(size - 1) // 2] + differences[size // 2]) / 2
    return middle, np.where(middle > 0, middle - low, high - middle)


def _spread_ranks(size: int) -> Ints:
    """Return the ranks in the middle of equal parts of a sample."""
    parts = min(size, _RANKS)
    return np.asarray(((np.arange(parts) + 0.5) * size / parts).astype(np.int64))


def _clipped(values: Floats) -> Floats:
    """Return the values with those far from the median of their column moved nearer to it."""
    median = np.median(values, axis=0)
    far = _CLIPPED * _NORMAL * np.median(np.abs(values - median), axis=0)
    return np.asarray(np.clip(values, median - far, median + far))


def paired_changes_of(before: Floats, after: Floats, confidence: float) -> Changes:
    """Return the change of the mean of each column between two runs whose rows are the same steps of a job.

    The noise is that of the ratio of the means, from the scatter of ``after - ratio * before`` (ratio estimator:
    Cochran 1977, Sampling Techniques, chapter 6). Steps of different length, which both runs share, are no noise.

    Parameters
    ----------
    before, after : array of float64, shape (steps, columns)
        Steps in the same order, at least two.
    confidence : float
        Confidence level of the interval, such as 0.99.

    Examples
    --------
    >>> long, short = np.array([[10.0], [30.0], [50.0]]), np.array([[5.1], [14.9], [25.0]])
    >>> changes = paired_changes_of(long, short, 0.95)
    >>> float(changes.change[0]), round(float(changes.noise[0]), 2)
    (-15.0, 0.25)
    """
    means = before.mean(axis=0), after.mean(axis=0)
    ratio = np.divide(means[1], means[0], out=np.zeros(len(means[0])), where=means[0] > 0)
    residual = (after - means[1]) - ratio * (before - means[0])
    count = np.maximum(len(residual) / _correlation([residual]), 2.0)
    error = np.sqrt(residual.var(axis=0, ddof=1) / count)
    noise = np.asarray(stdtrit(count - 1, (1 + confidence) / 2) * error)
    return Changes(means[0], means[1], means[1] - means[0], noise, confidence, "paired steps")


def drift_of(values: Floats) -> float:
    """Return the relative change along a run, from its first to its last step; 0 if there is none beyond chance.

    A drift is there if the rank correlation of value and position (Spearman) is significant at 99 %. Successive steps
    are alike also without a drift. So the number of steps is lowered by the autocorrelation about the line. The change
    is that of the line through the ranks' median slope (Theil 1950, Sen 1968, J. Am. Stat. Assoc. 63, 1379).

    Parameters
    ----------
    values : array of float64, shape (steps,)
        Times in the order of the run.

    Examples
    --------
    >>> random = np.random.default_rng(0)
    >>> steps = 100 + random.standard_normal(40)
    >>> drift_of(steps), round(drift_of(steps - np.arange(40) / 2), 1)
    (0.0, -0.2)
    """
    if len(values) < _FEWEST_OF_DRIFT or not np.ptp(values):
        return 0.0
    position = np.arange(len(values), dtype=np.float64)
    first, second = np.triu_indices(len(values), 1) if len(values) <= _MOST_OF_SLOPES else _spread_pairs(len(values))
    slope = float(np.median((values[second] - values[first]) / (second - first)))
    residual = values - slope * position
    count = max(len(values) / float(_correlation([residual[:, None]])[0]), 3.0)
    _, rank, equal = np.unique(values, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(equal) - equal / 2)[rank]  # equal times share their mean rank
    r = float(np.corrcoef(ranks, position)[0, 1])
    bound = stdtrit(count - 2, (1 + _DRIFT_LEVEL) / 2)
    is_drift = abs(r) * np.sqrt((count - 2) / max(1 - r * r, 1e-12)) > bound
    mean = float(values.mean())
    return slope * (len(values) - 1) / mean if is_drift and mean else 0.0


def _spread_pairs(size: int) -> tuple[Ints, Ints]:
    """Return pairs of positions half a run apart: the slopes of a long run, in linear time."""
    first = np.arange(size - size // 2)
    return first, first + size // 2


def _correlation(groups: Sequence[Floats]) -> Floats:
    """Return how many successive units are worth one independent unit in each column, at least 1.

    That is 1 plus twice the sum of the autocorrelations, up to the first pair of lags whose sum is not positive, with
    pairs that do not grow (initial monotone sequence: Geyer 1992, Stat. Sci. 7, 473). The groups share their
    autocorrelations. Those of a short series come out too small by (1 + 3 r) / n (Marriott and Pope 1954, Biometrika
    41, 390), which is added.
    """
    residuals = [group - group.mean(axis=0) for group in groups]
    total = sum(np.square(each).sum(axis=0) for each in residuals)
    shortest, mean = min(map(len, groups)), sum(map(len, groups)) / len(groups)
    worth, least = np.ones(groups[0].shape[1]), np.full(groups[0].shape[1], np.inf)
    rising = np.asarray(total > 0)
    for lag in range(1, min(int(shortest * _LAGS), _MOST_LAGS), 2):
        pair = np.zeros(len(worth))
        for each in (lag, lag + 1):
            products = sum((values[each:] * values[:-each]).sum(axis=0) for values in residuals)
            r = np.divide(products, total, out=np.zeros(len(worth)), where=rising)
            pair += r + (1 + 3 * np.maximum(r, 0)) / mean
        rising &= pair > 0
        if not rising.any():
            break
        least = np.minimum(least, pair)
        worth += np.where(rising, 2 * least, 0.0)
    return worth
