"""How often the intervals of a way to choose hold the true total, found by resampling a log."""

from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from seqpoint.methods import Budget, method_of
from seqpoint.selection.lengths import length_table

__all__ = ["Coverage", "resampled_coverage"]

Floats = npt.NDArray[np.float64]


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
        A name of `seqpoint.methods.METHODS`.
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
