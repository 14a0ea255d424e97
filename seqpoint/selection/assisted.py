r"""Totals and speed-ups of an epoch from a few points and all that the log knows: the model-assisted estimate.

SeqPoint's sum weighs each point by its bin, and is off by what the other lengths of the bin differ. The log knows how
many iterations of every length there are, and `predict_means` how their cost follows from the points:
:math:`\hat m_u = R s(u) + a + b u + c u^2`. The total is then :math:`\hat T = \sum_u n_u \hat m_u`, the regression
estimator (Särndal, Swensson and Wretman, Model Assisted Survey Sampling, 1992, chapters 6 and 7).

Every step is linear in the values :math:`v_p` of the points, :math:`\hat T = \sum_p h_p v_p`, which gives the variance:

.. math:: V = \sum_p (h_p - 1)^2 v_p^2 \sigma_p^2 + \sum_{i \text{ not a point}} \hat m_i^2 \sigma_i^2
    + \sum_u (g_u - n_u \bar g)^2 (R s_u)^2 \sigma_u^2 / n_u .

The first sum is the noise of the points beyond their own iterations, the second that of all others, the third the
noise of the logged means that the polynomial is fitted against, with :math:`g = \partial \hat T / \partial v` of the
polynomial alone, and :math:`\bar g` its mean weighted by the log. :math:`\sigma^2` comes from the log; what the points
scatter beyond it is added where an F test at 5 % says that it is more than chance.

In simulation (`benchmarks/selection/interval_coverage.py`, 2,000 epochs of each of four shapes) 95 % intervals cover as
the table `tests/accuracy/selection_coverage.csv` says. Assumed is that the new configuration is no less noisy than the
log, unless the points show it, and that what it changes is smooth in the length.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import fdtri, stdtrit  # type: ignore[import-untyped, unused-ignore]

from profilers.errors import InvalidInputError
from seqpoint.selection.estimate import Estimate, estimate_speedup, estimate_total
from seqpoint.selection.log import SelectionLog, finite_column
from seqpoint.selection.spread import Spread, spread_of

__all__ = ["assisted_speedup", "assisted_total"]

Floats = NDArray[np.float64]

#: Scatter of the points beyond the log's noise counts where it is this unlikely to be chance.
_SIGNIFICANT = 0.05


@dataclass(frozen=True, slots=True, eq=False)
class _Assisted:
    """One total: its variance by source, and what the logged noise of each length contributes, in its own sign."""

    total: float
    noise: float
    extra: float
    degrees: int
    of_log: Floats


def assisted_total(values: ArrayLike, log: SelectionLog, *, confidence: float = 0.95) -> Estimate:
    """Estimate the total of an additive statistic over the epoch, with the log's help.

    Parameters, errors and meaning as in `estimate_total`; the value is not SeqPoint's sum but the regression
    estimate. Points that span less than half of the lengths cannot tell how cost grows: `estimate_total` answers then.

    Examples
    --------
    >>> log = SelectionLog([1, 2, 3, 4], [10, 20, 30, 40], representatives=[0, 3], weights=[2, 2])
    >>> estimate_total([15.0, 45.0], log).value, round(assisted_total([15.0, 45.0], log).value, 6)
    (120.0, 120.0)
    """
    new = finite_column("values", values, size=log.weights.size)
    spread = spread_of(log)
    if not _tells(spread, new):
        return estimate_total(new, log, confidence=confidence)
    found = _assisted(new, log, spread)
    half = _half_width(found, spread, confidence)
    return Estimate(found.total, max(found.total - half, float(new.sum())), found.total + half, confidence)


def assisted_speedup(
    values_a: ArrayLike, values_b: ArrayLike, log: SelectionLog, *, confidence: float = 0.95
) -> Estimate:
    """Estimate how many times less B takes than A, with the log's help.

    Parameters, errors and meaning as in `estimate_speedup`, of the totals that `assisted_total` gives. The noise of
    the logged means is shared by both and cancels as far as A and B follow it alike.

    Examples
    --------
    >>> log = SelectionLog([1, 2, 3, 4], [10, 20, 30, 40], representatives=[0, 3], weights=[2, 2])
    >>> round(assisted_speedup([10.0, 40.0], [5.0, 20.0], log).value, 6)
    2.0
    """
    new_a, new_b = (
        finite_column(name, values, size=log.weights.size)
        for name, values in (("values_a", values_a), ("values_b", values_b))
    )
    spread = spread_of(log)
    if not (_tells(spread, new_a) and _tells(spread, new_b)):
        return estimate_speedup(new_a, new_b, log, confidence=confidence)
    a, b = _assisted(new_a, log, spread), _assisted(new_b, log, spread)
    relative = _Assisted(
        1.0,
        a.noise / a.total**2 + b.noise / b.total**2,
        a.extra / a.total**2 + b.extra / b.total**2,
        min(a.degrees, b.degrees),
        a.of_log / a.total - b.of_log / b.total,
    )
    factor = float(np.exp(min(_half_width(relative, spread, confidence), 700.0)))  # float64 holds no more
    value = a.total / b.total
    return Estimate(value, value / factor, value * factor, confidence)


def _tells(spread: Spread, values: Floats) -> bool:
    """Return whether the points can tell how cost grows with the length."""
    at = spread.table.lengths[spread.points]
    return bool(np.ptp(at) > 0 and 2 * np.ptp(at) >= np.ptp(spread.table.lengths) and values.any())


def _assisted(values: Floats, log: SelectionLog, spread: Spread) -> _Assisted:
    lengths, means, counts = spread.table.lengths, spread.table.means, spread.table.counts
    points, logged = spread.points, float(log.statistic.sum())
    scaled = float(log.weights @ values) / logged * means
    scale = np.maximum(scaled, 1e-3 * scaled.mean())[points]
    degree = min(np.unique(lengths[points]).size - 1, 2)
    design = (lengths[:, None] / lengths[-1]) ** np.arange(degree + 1)
    solve = np.linalg.pinv(design[points] / scale[:, None]) / scale
    residual = values - scaled[points]
    predicted = np.maximum(scaled + design @ (solve @ residual), 0)
    of_polynomial = (counts @ design) @ solve
    shared = float(of_polynomial @ means[points]) / logged
    weights = log.weights * (1 - shared) + of_polynomial
    of_log = scaled * (counts * shared - np.bincount(points, of_polynomial, counts.size))
    others = counts - np.bincount(points, minlength=counts.size)
    of_points = ((weights - 1) * values) ** 2
    degrees = max(values.size - degree - 1, 0)
    extra = _beyond((values - predicted[points]) / scale, spread, degrees)
    return _Assisted(
        total=float(weights @ values),
        noise=float(of_points @ spread.noise[points] + (others * predicted**2) @ spread.noise),
        extra=extra * float(of_points.sum() + (others * predicted**2).sum()),
        degrees=degrees,
        of_log=of_log * np.sqrt(spread.noise / counts),
    )


def _beyond(residuals: Floats, spread: Spread, degrees: int) -> float:
    """Return the relative variance that the points show beyond the log's, where that is more than chance."""
    if not degrees:
        return 0.0
    shown, expected = float(residuals @ residuals) / degrees, float(spread.noise[spread.points].mean())
    bound = expected * float(fdtri(degrees, max(spread.degrees, 1.0), 1 - _SIGNIFICANT))
    return shown - expected if shown > bound else 0.0


def _half_width(found: _Assisted, spread: Spread, confidence: float) -> float:
    """Student's two-sided quantile times the standard error; degrees after Satterthwaite."""
    if not 0 < confidence < 1:
        raise InvalidInputError(f"confidence is {confidence!r}; it must lie between 0 and 1, such as 0.95")
    variance = found.noise + found.extra + float(found.of_log @ found.of_log)
    if variance == 0:
        return 0.0
    share = found.extra / variance
    degrees = 1 / ((1 - share) ** 2 / max(spread.degrees, 1) + share**2 / max(found.degrees, 1))
    return float(stdtrit(degrees, (1 + confidence) / 2)) * float(np.sqrt(variance))
