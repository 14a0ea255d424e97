"""Selections judged on iterations that they did not see.

How often the intervals of a way to choose hold the true total, found by resampling a log.

How well points that were chosen on one half of a run give the total of the other half.
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
    """How the intervals of one way to choose fared.

    Parameters
    ----------
    covered : float
        Share of the resampled epochs whose total was in the interval.
    low, high : float
        Wilson's 95 % interval of that share, for the number of epochs that were resampled.
    half_width : float
        Mean, relative to the total.
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
    """Resample an epoch, choose from it, and see whether the interval holds the total of the other configuration.

    Every iteration gets the mean of its length, times one relative residual of the log, drawn at random: the residual
    bootstrap (Efron and Tibshirani, An Introduction to the Bootstrap, 1993, section 9.4). The points are chosen on
    one such epoch, their values and the true total are those of another.

    Parameters
    ----------
    lengths, statistic : array of float64, shape (n_iterations,)
        The log to choose on.
    selector : str
        A name of `seqpoint.selection.selecting.METHODS`.
    budget : Budget
    other : array of float64, shape (n_iterations,), optional
        The same iterations on the configuration whose total is estimated; by default the log itself, measured again.
    epochs, seed : int

    Returns
    -------
    Coverage

    Examples
    --------
    >>> lengths = np.repeat([8.0, 16.0, 24.0], 20)
    >>> time = lengths * np.tile([0.9, 1.1], 30)
    >>> resampled_coverage(lengths, time, "seqpoint", Budget(points=3), epochs=50).covered > 0.8
    True
    """
    method = method_of(selector)
    rng = np.random.default_rng(seed)
    again = _Resampler(lengths, statistic)
    elsewhere = again if other is None else _Resampler(lengths, other)
    X = lengths[:, None]
    covered, widths, errors = 0, 0.0, 0.0
    for draw in range(epochs):
        base, new = again.draw(rng), elsewhere.draw(rng)
        fitted = method.make(replace(budget, seed=draw)).fit(X, base)
        found, true = method.total(fitted, (X, base), new[fitted.representatives_]), float(new.sum())
        covered += found.low <= true <= found.high
        widths += found.half_width / true / epochs
        errors += abs(found.value - true) / true / epochs
    return Coverage(covered / epochs, *_wilson(covered, epochs), widths, errors)


class _Resampler:
    """Draws epochs like a log."""

    def __init__(self, lengths: Floats, statistic: Floats) -> None:
        table = length_table(lengths, statistic)
        self.mean = table.means[table.of_iteration]
        count = table.counts[table.of_iteration]
        often = (count > 1) & (self.mean > 0)
        spread = np.sqrt(count[often] / (count[often] - 1))
        self.residuals = spread * (statistic[often] / self.mean[often] - 1) if often.any() else np.zeros(1)

    def draw(self, rng: np.random.Generator) -> Floats:
        drawn = rng.choice(self.residuals, self.mean.size)
        return np.asarray(np.maximum(self.mean * (1 + drawn), 0.0), dtype=np.float64)


def _wilson(hits: int, count: int) -> tuple[float, float]:
    """Return Wilson's 95 % score interval of a share (1927, J. Am. Stat. Assoc. 22, 209)."""
    z = NormalDist().inv_cdf(0.975)
    share, centre = hits / count, 1 + z * z / count
    half = z * np.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    middle = share + z * z / (2 * count)
    return float((middle - half) / centre), float((middle + half) / centre)


#: Fewer iterations are not worth halving.
HALF = 20
#: Draws whose mean error is that of a selector that draws.
_DRAWS = 20
#: The ways to choose that are compared; of the worst choice there is no other half.
SHOWN = tuple(name for name in METHODS if name != "worst")


def held_out_errors(lengths: Floats, statistic: Floats, points: Sequence[int]) -> dict[str, list[float]]:
    """Return the error of every selector for every number of points.

    Parameters
    ----------
    lengths, statistic : array of float64, shape (n_iterations,)
        In the order of the run. Every second iteration is chosen from, the others are judged on.
    points : sequence of int

    Returns
    -------
    dict of str to list of float
        Relative errors of the total, by selector; the mean over 20 draws for those that draw.
    """
    return {name: [_mean_error(name, count, (lengths, statistic)) for count in points] for name in SHOWN}


def _mean_error(name: str, points: int, log: tuple[Floats, Floats]) -> float:
    method = METHODS[name]
    budgets = [Budget(points, first=points, seed=seed) for seed in range(_DRAWS if method.seeded else 1)]
    return float(np.mean([held_out_error(method.make(one), *log, assisted=method.assisted) for one in budgets]))


def held_out_error(selector: Any, lengths: Floats, statistic: Floats, *, assisted: bool = False) -> float:
    """Return the relative error of the total of every second iteration, of points chosen from the others.

    The points' own values are taken; how many iterations each stands for is counted in the half that is judged.
    `assisted`, the cost is a regression on the length instead (`predict_total`), where the points can tell one.

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
    count = len(lengths) - len(X[::2])
    measured = float(statistic[1::2].sum())
    points = fitted.sequence_lengths_
    if assisted and len(points) >= 3 and np.ptp(points) > 0 and values.min() > 0:
        return abs(predict_total(values, points, lengths[1::2]).value - measured) / measured
    if hasattr(fitted, "predict"):
        of_point = fitted.labels_[fitted.representatives_]
        held = np.bincount(fitted.predict(X[1::2]), minlength=int(of_point.max()) + 1)
        weights = held[of_point] / np.bincount(of_point)[of_point]
    else:
        weights = np.full(len(values), count / len(values))
    return abs(float(weights @ values) - measured) / measured


#: Numbers of points that selectors are compared at.
_POINT_COUNTS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20)
#: Selectors whose intervals are compared.
_WITH_INTERVALS = ("seqpoint", "seqpoint, assisted", "stratified", "random")


def errors_of(selection: SelectionResult) -> tuple[list[int], dict[str, list[float]]]:
    """Return numbers of points, and the error of each selector's total with them on held-out iterations.

    Every second iteration is selected from, the others are judged on; see `held_out_errors`.
    """
    lengths = selection.iterations.sequence_length
    values = selection.iterations.statistic(selection.statistic)
    counts = [count for count in _POINT_COUNTS if count <= len(values) // 4]
    return counts, {name: list(errors) for name, errors in held_out_errors(lengths, values, counts).items()}


def coverages_of(selection: SelectionResult) -> dict[str, Coverage]:
    """Return how often the intervals of several selectors hold the total, with as many points as were selected."""
    lengths = selection.iterations.sequence_length
    values = selection.iterations.statistic(selection.statistic)
    budget = Budget(len(selection.rows), confidence=selection.estimate.confidence)
    return {name: resampled_coverage(lengths, values, name, budget) for name in _WITH_INTERVALS}
