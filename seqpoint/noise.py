"""Noise of measured steps: the change of means between two groups, and how far it may be chance.

`changes_of` compares columns of two groups by Welch's t-test, `paired_changes_of` those of two runs whose steps do the
same work one by one. Successive steps of a run are alike, so their scatter alone makes a change look surer than it is.
Their autocorrelation tells how many independent steps they are worth.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy.special import stdtrit

from profilers.trace.arrays import Bools, Floats, Ints

#: Fewest steps in which a drift is looked for, and level of its test.
_FEWEST_OF_DRIFT, _DRIFT_LEVEL = 20, 0.99
#: Share of the steps of the smaller group up to which lags count, and the largest lag.
_LAGS, _MOST_LAGS = 1 / 3, 64
#: Most steps of a run whose slopes are those of all pairs.
_MOST_OF_SLOPES = 1000


@dataclass(frozen=True)
class Changes:
    """Means of columns in two groups, and the noise of their difference: arrays with one element a column.

    Parameters
    ----------
    before, after : array of float64
        Means; each run counts the same.
    noise : array of float64
        Half-width of the interval of the difference at `confidence`; NaN if each group has one unit.
    confidence : float
        Confidence level.
    unit : str
        ``"steps"``, ``"paired steps"`` or ``"runs"``: whose scatter the noise is.
    """

    before: Floats
    after: Floats
    noise: Floats
    confidence: float
    unit: str

    @property
    def change(self) -> Floats:
        """After less before."""
        return self.after - self.before

    def beyond(self, least: float) -> Bools:
        """Return whether each change is beyond the noise, and at least the share `least` of the larger mean."""
        change = np.abs(self.change)
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
        Half-width of the interval of the change; None if each side has one step.
    beyond_noise : bool, optional
        Whether the change is beyond the noise and not tiny; None if the noise is unknown.
    """

    name: str
    before_ns: float
    after_ns: float
    noise_ns: float | None
    beyond_noise: bool | None

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
        Change(name, float(changes.before[i]), float(changes.after[i]), *_known(noise[i], beyond[i]))
        for i, name in enumerate(names)
    ]


def _known(noise: float, beyond: bool) -> tuple[float | None, bool | None]:
    return (None, None) if np.isnan(noise) else (float(noise), bool(beyond))


def changes_of(before: Sequence[Floats], after: Sequence[Floats], confidence: float) -> Changes:
    """Return the change of the mean of each column from one group of runs to another.

    If a group has several runs, the unit of the noise is the run: its steps share what differs between runs. The
    scatter of a group with a single unit is taken from the other group.

    Parameters
    ----------
    before, after : sequence of array of float64, shape (steps, columns)
        Runs of each group, each with at least one step.
    confidence : float
        Confidence level of the interval, such as 0.99.

    Examples
    --------
    >>> changes = changes_of([np.array([[10.0], [11.0], [9.0]])], [np.array([[20.0], [19.0], [21.0]])], 0.95)
    >>> float(changes.change[0]), round(float(changes.noise[0]), 2), bool(changes.beyond(0.005)[0])
    (10.0, 2.27, True)
    """
    by_run = len(before) > 1 or len(after) > 1
    groups = [np.stack([run.mean(axis=0) for run in runs]) if by_run else runs[0] for runs in (before, after)]
    counts = [len(group) for group in groups]
    noise = np.full(groups[0].shape[1], np.nan)
    if min(counts) > 1:
        noise = _welch(groups, _correlation(groups), confidence)
    elif max(counts) > 1:
        most = groups[int(counts[1] > 1)]
        error = np.sqrt(most.var(axis=0, ddof=1) * (1 + 1 / len(most)))
        noise = stdtrit(len(most) - 1, (1 + confidence) / 2) * error
    means = [group.mean(axis=0) for group in groups]
    return Changes(means[0], means[1], noise, confidence, "runs" if by_run else "steps")


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
    return Changes(means[0], means[1], noise, confidence, "paired steps")


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


def _welch(groups: Sequence[Floats], worth: Floats, confidence: float) -> Floats:
    """Return the half-width of the interval of the difference of means (Welch 1947, Biometrika 34, 28).

    A group counts as its number of units over `worth`, and at least as two.
    """
    counts = [np.maximum(len(group) / worth, 2.0) for group in groups]
    squares = np.stack([group.var(axis=0, ddof=1) / n for group, n in zip(groups, counts, strict=True)])
    total, weighted = squares.sum(axis=0), (squares**2 / (np.stack(counts) - 1)).sum(axis=0)
    known = weighted > 0
    freedom = np.divide(total**2, weighted, out=np.ones_like(total), where=known)
    return np.where(known, stdtrit(freedom, (1 + confidence) / 2) * np.sqrt(total), 0.0)
