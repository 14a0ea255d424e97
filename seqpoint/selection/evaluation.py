"""Evaluation of selectors on iterations that they were not fitted on.

Two measures: the coverage of intervals, by resampling a log (`resampled_coverage`), and the error of points that were
chosen on half of a run on the other half (`held_out_errors`). `errors_of` and `coverages_of` give both for a report.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

import numpy as np

from profilers.trace.arrays import Floats
from seqpoint.selection.estimate import predict_total
from seqpoint.selection.log import length_table
from seqpoint.selection.selecting import METHODS, Budget, SelectionResult, method_of


@dataclass(frozen=True)
class Coverage:
    """Coverage of the intervals of a selector over resampled epochs.

    Parameters
    ----------
    covered : float
        Share of the resampled epochs whose total was in the interval.
    low, high : float
        Wilson's 95 % interval of that share, for the number of resampled epochs.
    half_width : float
        Mean half-width of the intervals, relative to the total.
    error : float
        Mean absolute error of the total, relative to it.
    """

    covered: float
    low: float
    high: float
    half_width: float
    error: float


def resampled_coverage(
    lengths: Floats,
    statistic: Floats,
    selector: str,
    budget: Budget,
    *,
    other: Floats | None = None,
    epochs: int = 200,
    seed: int = 0,
) -> Coverage:
    """Return how often the interval of a selector holds the total, over resampled epochs.

    An iteration of a resampled epoch takes the mean of its length times a relative residual of the log, drawn at
    random: the residual bootstrap (Efron and Tibshirani, An Introduction to the Bootstrap, 1993, section 9.4). Points
    are chosen on a resampled epoch; their values and the true total come from another.

    Parameters
    ----------
    lengths, statistic : array of float64, shape (n_iterations,)
        The log to choose on.
    selector : str
        A name of `seqpoint.selection.selecting.METHODS`.
    budget : Budget
        Number of points and confidence level; its seed is replaced.
    other : array of float64, shape (n_iterations,), optional
        The same iterations on the configuration whose total is estimated; by default the log, measured again.
    epochs : int, default 200
        Number of resampled epochs.
    seed : int, default 0
        Seed of the residuals.

    Returns
    -------
    Coverage
        Share of intervals that hold the total, their width, and the error.

    Examples
    --------
    >>> lengths = np.repeat([8.0, 16.0, 24.0], 20)
    >>> time = lengths * np.tile([0.9, 1.1], 30)
    >>> resampled_coverage(lengths, time, "seqpoint", Budget(points=3), epochs=50).covered > 0.8
    True
    """
    method = method_of(selector)
    rng = np.random.default_rng(seed)
    log = _Resampler(lengths, statistic)
    target = log if other is None else _Resampler(lengths, other)
    X = lengths[:, None]
    covered, widths, errors = 0, 0.0, 0.0
    for draw in range(epochs):
        base, new = log.draw(rng), target.draw(rng)
        fitted = method.make(replace(budget, seed=draw)).fit(X, base)
        estimate, total = method.total(fitted, (X, base), new[fitted.representatives_]), float(new.sum())
        covered += estimate.low <= total <= estimate.high
        widths += estimate.half_width / total / epochs
        errors += abs(estimate.value - total) / total / epochs
    return Coverage(covered / epochs, *_wilson(covered, epochs), widths, errors)


class _Resampler:
    """Source of epochs with the mean of each length and the relative residuals of a log."""

    def __init__(self, lengths: Floats, statistic: Floats) -> None:
        table = length_table(lengths, statistic)
        self.mean = table.means[table.of_iteration]
        count = table.counts[table.of_iteration]
        repeated = (count > 1) & (self.mean > 0)
        correction = np.sqrt(count[repeated] / (count[repeated] - 1))
        residuals = statistic[repeated] / self.mean[repeated] - 1
        self.residuals = correction * residuals if repeated.any() else np.zeros(1)

    def draw(self, rng: np.random.Generator) -> Floats:
        """Return the statistic of each iteration of a resampled epoch."""
        residuals = rng.choice(self.residuals, self.mean.size)
        return np.asarray(np.maximum(self.mean * (1 + residuals), 0.0), dtype=np.float64)


def _wilson(hits: int, count: int) -> tuple[float, float]:
    """Return Wilson's 95 % score interval of a share (1927, J. Am. Stat. Assoc. 22, 209)."""
    z = NormalDist().inv_cdf(0.975)
    share, denominator = hits / count, 1 + z * z / count
    half = z * np.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    centre = share + z * z / (2 * count)
    return float((centre - half) / denominator), float((centre + half) / denominator)


#: Draws over which the error of a random selector is averaged.
_DRAWS = 20
#: Selectors that are compared. "worst" knows the errors, so it cannot be judged on held-out iterations.
SHOWN = tuple(name for name in METHODS if name != "worst")


def held_out_errors(lengths: Floats, statistic: Floats, points: Sequence[int]) -> dict[str, list[float]]:
    """Return the held-out error of every selector for every number of points.

    Parameters
    ----------
    lengths, statistic : array of float64, shape (n_iterations,)
        Length and statistic of each iteration, in the order of the run. Points are chosen on every second iteration,
        and judged on the others.
    points : sequence of int
        Numbers of points to try.

    Returns
    -------
    dict of str to list of float
        Relative errors of the total, by selector; for random selectors the mean over 20 draws.
    """
    return {name: [_mean_error(name, count, (lengths, statistic)) for count in points] for name in SHOWN}


def _mean_error(name: str, points: int, log: tuple[Floats, Floats]) -> float:
    method = METHODS[name]
    budgets = [Budget(points, first=points, seed=seed) for seed in range(_DRAWS if method.seeded else 1)]
    return float(np.mean([held_out_error(method.make(budget), *log, assisted=method.assisted) for budget in budgets]))


def held_out_error(selector: Any, lengths: Floats, statistic: Floats, *, assisted: bool = False) -> float:
    """Return the relative error of the total of every second iteration, from points chosen on the others.

    Values are those of the points; their weights are counted in the half that is judged.

    Parameters
    ----------
    selector : estimator
        An unfitted selector.
    lengths, statistic : array of float64, shape (n_iterations,)
        Length and statistic of each iteration, in the order of the run.
    assisted : bool, default False
        Whether to predict the total by a regression on the length (`predict_total`), if the points allow it.

    Examples
    --------
    >>> from seqpoint.selection import SeqPointSelector
    >>> lengths = np.array([5.0, 5, 9, 9, 5, 5, 9, 9])
    >>> held_out_error(SeqPointSelector(), lengths, 10 * lengths)
    0.0
    """
    X = lengths[:, None]
    fitted = selector.fit(X[::2], statistic[::2])
    values = statistic[::2][fitted.representatives_]
    held_out = len(lengths) - len(X[::2])
    measured = float(statistic[1::2].sum())
    points = fitted.sequence_lengths_
    if assisted and len(points) >= 3 and np.ptp(points) > 0 and values.min() > 0:
        return abs(predict_total(values, points, lengths[1::2]).value - measured) / measured
    if hasattr(fitted, "predict"):
        bin_of_point = fitted.labels_[fitted.representatives_]
        counts = np.bincount(fitted.predict(X[1::2]), minlength=int(bin_of_point.max()) + 1)
        weights = counts[bin_of_point] / np.bincount(bin_of_point)[bin_of_point]
    else:
        weights = np.full(len(values), held_out / len(values))
    return abs(float(weights @ values) - measured) / measured


#: Numbers of points that selectors are compared at.
_POINT_COUNTS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20)
#: Selectors whose intervals are compared.
_WITH_INTERVALS = ("seqpoint", "seqpoint, assisted", "stratified", "random")


def errors_of(selection: SelectionResult) -> tuple[list[int], dict[str, list[float]]]:
    """Return numbers of points, and the held-out error of each selector for them (see `held_out_errors`)."""
    lengths = selection.regular.sequence_length
    values = selection.regular.statistic(selection.statistic)
    counts = [count for count in _POINT_COUNTS if count <= len(values) // 4]
    return counts, held_out_errors(lengths, values, counts)


def coverages_of(selection: SelectionResult) -> dict[str, Coverage]:
    """Return the coverage of the intervals of several selectors, for the number of points of a selection."""
    lengths = selection.regular.sequence_length
    values = selection.regular.statistic(selection.statistic)
    budget = Budget(len(selection.rows), confidence=selection.estimate.confidence)
    return {name: resampled_coverage(lengths, values, name, budget) for name in _WITH_INTERVALS}
