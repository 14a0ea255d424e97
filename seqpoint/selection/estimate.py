r"""Totals and speed-ups of a whole epoch from a few measured points, each with an interval.

A point is a selected iteration; its weight is the number of iterations that it stands for. The log holds the
length and the statistic of every iteration on the configuration that the points were selected on. The points alone
are measured on a new configuration. Three estimates follow.

SeqPoint's sum (`estimate_total`, `estimate_speedup`)
-----------------------------------------------------
The value is the weighted sum of SeqPoint (arXiv 2007.10459), which has no interval; this one is derived here. Let
an iteration of length :math:`u` take :math:`m_u (1 + \epsilon)` on the new configuration, with independent noise of
relative variance :math:`\sigma_u^2`. Length :math:`u` occurs :math:`n_u` times, its points weigh :math:`W_u`
together, and :math:`c_u = W_u - n_u` is its excess weight. The error of the sum is

.. math:: \sum_u c_u m_u
    + \sum_{p} (w_p - 1) m_p \epsilon_p - \sum_{i \text{ not a point}} m_i \epsilon_i .

- The first sum is the bias of the representatives. `predict_means` fits :math:`\hat m_u` through the points, which
  gives :math:`D = \sum_u c_u \hat m_u`.
- The logged mean of a length is known to :math:`\sigma_u / \sqrt{n_u}`, and points were chosen where it looked best.
  So :math:`V_{log} = \sum_u c_u^2 \hat m_u^2 \sigma_u^2 / n_u` is added.
- The other two sums have the variance
  :math:`V_{new} = \sum_p (w_p - 1)^2 z_p^2 \sigma_p^2 + \sum_i \hat m_i^2 \sigma_i^2`. A point stands exactly for
  itself, and with an error for the rest of its bin.

:math:`\sigma_u^2` comes from the log (`relative_noise`), for the iterations nearest each point. It is pooled with the
noise of the whole epoch, which counts as 10 more degrees of freedom, so that bins of few iterations borrow. If the
points scatter about the fit by more than that, the difference is added to :math:`\sigma_u^2`.

The half-width is Student's quantile times :math:`\sqrt{D^2 + V_{log} + V_{new}}`. At 90 % confidence or more, an
interval built on the root mean square error covers at least as often as that of an unbiased estimate. At 80 % or less
it covers less than it says. The degrees of freedom follow Satterthwaite (1946, Biometrics Bulletin 2, 110). If every
iteration is a point, all terms are zero, and so is the width.

The model-assisted estimate (`assisted_total`, `assisted_speedup`)
------------------------------------------------------------------
SeqPoint's sum is off by the difference between the lengths of a bin and its point. The log knows the number of
iterations of every length, and the points give their cost :math:`\hat m_u = R s(u) + a + b u + c u^2`. The total is
then :math:`\hat T = \sum_u n_u \hat m_u`, the regression estimator (Särndal, Swensson and Wretman, Model Assisted
Survey Sampling, 1992, chapters 6 and 7). Every step is linear in the values :math:`v_p` of the points,
:math:`\hat T = \sum_p h_p v_p`, which gives the variance:

.. math:: V = \sum_p (h_p - 1)^2 v_p^2 \sigma_p^2 + \sum_{i \text{ not a point}} \hat m_i^2 \sigma_i^2
    + \sum_u (g_u - n_u \bar g)^2 (R s_u)^2 \sigma_u^2 / n_u .

The first sum is the noise of the points beyond their own iterations, and the second that of all other iterations. The
third is the noise of the logged means, with :math:`g = \partial \hat T / \partial v` of the polynomial alone, and
:math:`\bar g` its mean weighted by the log. Scatter of the points beyond :math:`\sigma^2` is added if an F test at
5 % says that it is more than chance.

The total of another epoch (`predict_total`)
--------------------------------------------
SeqPoint's weights count the iterations of the epoch that the points were selected from. For an epoch of other lengths
:math:`u_i`, the points' values give :math:`m(u) = a + b u`, or with :math:`c u^2` if that fits better than chance
(F test at 5 %), by least squares of relative residuals. The total is :math:`\sum_i m(u_i)`, and its variance is that
of the coefficients and of the iterations' own noise:

.. math:: V = s^2 \left(x^T (Z^T Z)^{-1} x + \sum_i m(u_i)^2\right), \qquad x = \sum_i (1, u_i, u_i^2),

with :math:`z_p = (1, u_p, u_p^2) / v_p` and :math:`s^2` the mean square of the relative residuals (Draper and Smith,
Applied Regression Analysis, 1998, section 3.1).

Precision before anything is profiled (`Precision`)
---------------------------------------------------
The square root of :math:`D^2 + V_{log} + V_{new}`, with the log's own values of the points, is the standard error of
the total of a run as noisy as the log. With :math:`n` points of equal weight :math:`N / n` and noise :math:`\sigma`,
:math:`V_{new}` relative to the squared total is :math:`\sigma^2 (1 / n - 1 / N)`: the noise of the points averages
down, and the iterations that are points have no error. An error :math:`t` takes
:math:`1 / (t^2 / \sigma^2 + 1 / N)` points, if noise alone limits it. Without equal weights :math:`\sigma` is the mean
weighted by cost, which Neyman's allocation reaches.

Limits
------
All intervals assume that the new configuration is no less noisy than the log, and that what it changes is smooth in
the length. Points that span less than half of the lengths cannot tell how cost grows; the interval is then wide. The
table ``tests/accuracy/selection_coverage.csv`` says how often 95 % intervals cover in simulation
(``benchmarks/selection/interval_coverage.py``, 2,000 epochs of each of four shapes).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import scipy
from numpy.typing import ArrayLike

from profilers.errors import InvalidInputError
from profilers.trace.arrays import Floats, Ints, row_blocks
from seqpoint.iteration_table import POOLED_DEGREES
from seqpoint.selection.log import (
    FittedSelector,
    LengthTable,
    SelectionLog,
    finite_column,
    finite_pair,
    length_table,
    require_confidence,
)
from seqpoint.units import percent

#: Significance of the F tests: by chance alone, a term or an extra noise is kept this rarely.
_SIGNIFICANCE = 0.05
#: How values may grow with the logged mean if the points cannot tell: powers of it, the best guess first.
_GROWTH_POWERS = np.array([[1.0], [0.5], [1.5]])
#: Fewest iterations of a run that is split in halves.
HALF = 20
#: Divisions of a run for the cross-validated error, and the most iterations that are divided.
_DIVISIONS, _MOST_DIVIDED = 10, 20_000
#: Largest half-width of a logarithm: float64 holds no exponential above it.
_MAX_LOG = 700.0


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number and the interval that holds the true one with the stated confidence.

    Attributes
    ----------
    value, low, high : float
        The estimate and the ends of its interval, in the unit of the measured values.
    confidence : float
        Share of such intervals that hold the true number, nominally; between 0 and 1.
    """

    value: float
    low: float
    high: float
    confidence: float

    @property
    def half_width(self) -> float:
        """Half the length of the interval."""
        return (self.high - self.low) / 2

    def plus(self, known: float) -> "Estimate":
        """Return the estimate of a sum with a number that is known exactly.

        Parameters
        ----------
        known : float
            The number to add, in the same unit.
        """
        return Estimate(self.value + known, self.low + known, self.high + known, self.confidence)


@dataclass(frozen=True, slots=True)
class Precision:
    """How well points know the total of a run as noisy as the log, and how many points an error takes.

    Attributes
    ----------
    scatter : float
        Relative standard deviation of iterations of equal length, weighted by their share of the total.
    from_neighbours : bool
        Whether equal lengths are too few, so that the scatter rests on neighbouring lengths (see `relative_noise`).
    spread : float
        Relative standard error of the total from a single point, which shrinks with the square root of the points: the
        scatter, and for selectors that draw at random the spread within their strata.
    standard_error : float
        Standard error of the total, relative to it.
    points, iterations : int
        Points that are profiled, and iterations that they stand for.
    needed : (float, int), optional
        A standard error, and the points that a selection chooses for it; None if no selection was tried.
    """

    scatter: float
    from_neighbours: bool
    spread: float
    standard_error: float
    points: int
    iterations: int
    needed: tuple[float, int] | None = None

    def of_share(self, share: float) -> "Precision":
        """Return the precision of a total in which the log has a share, and the rest is known exactly.

        Parameters
        ----------
        share : float
            Share of the log in the total, between 0 and 1.
        """
        return replace(self, spread=self.spread * share, standard_error=self.standard_error * share)

    def points_for(self, error: float) -> int | None:
        """Return the number of points that a relative standard error of the total takes; None if it takes more lengths.

        It is that of a selection for this error if one was tried. Otherwise it follows from the scatter alone.

        Parameters
        ----------
        error : float
            Relative standard error, above zero.

        Examples
        --------
        >>> Precision(0.1, False, 0.1, 0.03, 10, 1000).points_for(0.02)  # 1 / (0.02^2 / 0.1^2 + 1 / 1000) = 24.4
        25
        """
        if self.needed is not None and self.needed[0] == error:
            return self.needed[1]
        if not self.spread:
            return self.points if self.standard_error <= error else None
        needed = int(np.ceil(1 / ((error / self.spread) ** 2 + 1 / self.iterations) - 1e-9))
        return None if needed <= self.points and self.standard_error > error else needed

    def summary(self, error: float) -> str:
        """Return the sentence on what the points know, and on the points that an error takes.

        Parameters
        ----------
        error : float
            Relative standard error, above zero.

        Examples
        --------
        >>> Precision(0.1, False, 0.1, 0.0287, 12, 5000).summary(0.01)
        'equal lengths differ by 10 %: 12 points know the total to 2.9 %; 1 % takes about 99'
        >>> Precision(0.1, True, 0.1, 0.025, 12, 200).summary(0.005).partition("; ")[2]
        '0.5 % takes 134 of 200 iterations: profile the whole run'
        """
        which = "neighbouring" if self.from_neighbours else "equal"
        many = f"{self.points} point{'s know' if self.points > 1 else ' knows'} the total to"
        known = f"{which} lengths differ by {percent(self.scatter)}: {many} {percent(self.standard_error)}"
        if self.standard_error <= error:
            return known
        needed = self.points_for(error)
        if needed is None:
            return f"{known}; {percent(error)} takes more lengths"
        if needed > self.iterations / 2:
            return f"{known}; {percent(error)} takes {needed} of {self.iterations} iterations: profile the whole run"
        return f"{known}; {percent(error)} takes about {float(f'{needed:.2g}'):.0f}"

    def remarks(self, error: float, lengths: int) -> list[str]:
        """Return a sentence if points that were chosen for an error miss it, or take more than half of the run.

        Parameters
        ----------
        error : float
            Relative standard error that was asked for.
        lengths : int
            Lengths of the points.

        Examples
        --------
        >>> Precision(0.1, False, 0.1, 0.0099, 67, 100).remarks(0.01, 5)
        ['1 % takes 67 of 100 iterations: profile the whole run']
        """
        target = percent(error)
        if self.standard_error > error:
            return [
                f"the target error of {target} is missed: {lengths} lengths have no more iterations to choose; allow "
                "more lengths (--max-points), or use another selector"
            ]
        if 2 * self.points > self.iterations:
            return [f"{target} takes {self.points} of {self.iterations} iterations: profile the whole run"]
        return []


@dataclass(frozen=True, slots=True, eq=False)
class Spread:
    """The log by sequence length, with the weight of the points and the noise of each length.

    Attributes
    ----------
    table : LengthTable
        The log by length.
    points : ndarray of int64, shape (n_points,)
        Row of `table` that each point belongs to.
    excess : ndarray of float64, shape (n_lengths,)
        Weight of the points of a length, less its iterations. Zero everywhere if every length has its points.
    noise : ndarray of float64, shape (n_lengths,)
        Relative variance of an iteration of a length about the mean of the length.
    degrees : float
        Degrees of freedom that `noise` rests on.
    """

    table: LengthTable
    points: Ints
    excess: Floats
    noise: Floats
    degrees: float


def spread_of(log: SelectionLog) -> Spread:
    """Group a log by length and measure its noise.

    Parameters
    ----------
    log : SelectionLog
        The logged epoch and its points.

    Returns
    -------
    Spread
        The log by length, with excess weights and noise.

    Examples
    --------
    >>> log = SelectionLog([5, 5, 9], [9, 11, 30], representatives=[0], weights=[3])
    >>> spread = spread_of(log)
    >>> spread.excess.tolist(), spread.noise.round(3).tolist(), spread.degrees
    ([1.0, -1.0], [0.02, 0.02], 1.0)
    """
    table = length_table(log.lengths, log.statistic)
    points = table.of_iteration[log.representatives]
    squares, degrees = relative_noise(table, log.statistic)
    point_lengths = table.lengths[np.unique(points)]
    nearest_point = np.searchsorted((point_lengths[:-1] + point_lengths[1:]) / 2, table.lengths)
    epoch_noise = squares.sum() / degrees.sum()
    point_noise = (np.bincount(nearest_point, squares) + POOLED_DEGREES * epoch_noise) / (
        np.bincount(nearest_point, degrees) + POOLED_DEGREES
    )
    weight = np.bincount(points, log.weights, minlength=table.lengths.size)
    excess = (weight - table.counts).astype(np.float64)
    return Spread(table, points, excess, point_noise[nearest_point], float(degrees.sum()))


def scatter_of(log: SelectionLog) -> tuple[float, bool]:
    """Return the scatter of equal lengths, and whether it rests on neighbouring lengths (see `Precision`).

    Parameters
    ----------
    log : SelectionLog
        The logged epoch and its points.

    Examples
    --------
    >>> scatter, from_neighbours = scatter_of(SelectionLog([5, 5], [9, 11], representatives=[0], weights=[2]))
    >>> round(scatter, 4), from_neighbours
    (0.1414, False)
    """
    return _scatter(spread_of(log), log)


def _scatter(spread: Spread, log: SelectionLog) -> tuple[float, bool]:
    cost = spread.table.counts * spread.table.means
    repeated = log.lengths.size - spread.table.lengths.size
    return float(cost @ np.sqrt(spread.noise) / cost.sum()), 2 * repeated < spread.degrees


def relative_noise(table: LengthTable, statistic: Floats) -> tuple[Floats, Floats]:
    """Return the squared relative noise of each length, and the degrees of freedom it rests on.

    Two sources are added:

    - Within a length: squared residuals about its mean, with ``count - 1`` degrees.
    - Between lengths: the squared difference of a mean from the line through its two neighbours, divided by its
      variance in units of the noise, with one degree (Gasser, Sroka and Jennen-Steinmetz 1986, Biometrika 73, 625).
      This works if every length occurs once. A statistic that jumps from length to length counts as noise.

    An epoch of two iterations of different lengths has neither; they are then taken as of one length.

    Parameters
    ----------
    table : LengthTable
        The epoch, by length.
    statistic : ndarray of float64, shape (n_iterations,)
        The statistic that the table was made from.

    Returns
    -------
    squares, degrees : ndarray of float64, shape (n_lengths,)
        Their quotient is a relative variance.

    Examples
    --------
    >>> statistic = np.array([9.0, 11.0, 20.0, 30.0])
    >>> squares, degrees = relative_noise(length_table(np.array([1.0, 1.0, 2.0, 3.0]), statistic), statistic)
    >>> squares.round(3).tolist(), degrees.tolist()
    ([0.02, 0.0, 0.0], [1.0, 1.0, 0.0])
    """
    means, counts = table.means, table.counts
    squares = np.zeros(means.size)
    for rows in row_blocks(statistic.size):
        expected = means[table.of_iteration[rows]]
        residuals = _divide_or_zero(statistic[rows] - expected, expected)
        squares += np.bincount(table.of_iteration[rows], residuals**2, minlength=means.size)
    degrees = (counts - 1).astype(np.float64)
    if means.size > 2:
        right = (table.lengths[1:-1] - table.lengths[:-2]) / (table.lengths[2:] - table.lengths[:-2])
        line = (1 - right) * means[:-2] + right * means[2:]
        jump = _divide_or_zero(means[1:-1] - line, (means[1:-1] + line) / 2)
        squares[1:-1] += jump**2 / (1 / counts[1:-1] + (1 - right) ** 2 / counts[:-2] + right**2 / counts[2:])
        degrees[1:-1] += 1
    elif degrees.sum() == 0:
        mean = statistic.mean()
        squares[0] = _divide_or_zero((statistic - mean) ** 2, np.full(statistic.size, mean**2)).sum()
        degrees[0] = 1
    return squares, degrees


def _divide_or_zero(numerator: Floats, denominator: Floats) -> Floats:
    """Divide, with 0 where the denominator is 0: a length whose statistic is always 0 has no noise."""
    return np.divide(numerator, denominator, out=np.zeros_like(numerator), where=denominator > 0)


def _cost_model(values: Floats, log: SelectionLog, spread: Spread) -> tuple[Floats, Floats, Floats, Floats, int]:
    """Return the regression of the points' values on the logged means and a polynomial of the length.

    Parameters
    ----------
    values : ndarray of float64, shape (n_points,)
        Value of each point on the new configuration.
    log : SelectionLog
        The logged epoch and its points.
    spread : Spread
        The log by length.

    Returns
    -------
    scaled : ndarray of float64, shape (n_lengths,)
        Logged means times the ratio of the new total to the logged one.
    design : ndarray of float64, shape (n_lengths, 2 or 3)
        Powers of the length, which is divided by the largest one.
    scale : ndarray of float64, shape (n_points,)
        Unit of each point's residual.
    residuals : ndarray of float64, shape (n_points,)
        Values of the points, less `scaled`: the target of the polynomial.
    degrees : int
        Degrees of freedom that the polynomial leaves.
    """
    lengths = spread.table.lengths
    scaled = float(log.weights @ values) / float(log.statistic.sum()) * spread.table.means
    scale = np.maximum(scaled, 1e-3 * scaled.mean())[spread.points]
    degree = min(np.unique(lengths[spread.points]).size - 1, 2)
    design = (lengths[:, None] / lengths[-1]) ** np.arange(degree + 1)
    return scaled, design, scale, values - scaled[spread.points], max(values.size - degree - 1, 0)


def _span_half_of_lengths(spread: Spread, values: Floats) -> bool:
    """Return whether the points span enough lengths to tell how cost grows."""
    point_lengths = spread.table.lengths[spread.points]
    span = np.ptp(point_lengths)
    return bool(span > 0 and 2 * span >= np.ptp(spread.table.lengths) and values.any())


def predict_means(spread: Spread, log: SelectionLog, values: Floats) -> tuple[Floats, float, int]:
    r"""Predict the mean value of every length from the values of the points.

    The prediction is :math:`R s(u) + a + b u + c u^2`: the logged mean :math:`s(u)` scaled by the ratio of the totals,
    and a polynomial for the costs that scale otherwise. An iteration costs a fixed time, a time linear in the length,
    and with attention a quadratic one (arXiv 2302.02825: :math:`SL (24 H^2 + 4 H SL)` FLOPs a layer). The coefficients
    minimise the squared relative residuals of the points; with fewer than three measured lengths :math:`c` is 0.

    Parameters
    ----------
    spread : Spread
        The log by length, as `spread_of` returns it.
    log : SelectionLog
        The logged epoch and its points.
    values : ndarray of float64, shape (n_points,)
        Value of each point on the new configuration, in any unit.

    Returns
    -------
    means : ndarray of float64, shape (n_predictions, n_lengths)
        A row for each prediction that the points allow, the best one first, in the unit of the values. It is one row,
        or three if the points span less than half of the lengths: values that grow as the logged mean, as its square
        root, and as its power of 1.5.
    extra_noise : float
        Relative variance of the points about the prediction, beyond the noise of the log.
    degrees : int
        Degrees of freedom that `extra_noise` rests on; 0 if the points cannot tell.

    Notes
    -----
    Source of the idea: the difference estimator of Särndal, Swensson and Wretman, Model Assisted Survey
    Sampling (1992), section 6.3. Scaling the noise up if the points scatter more than expected follows
    Birge (1932, Phys. Rev. 40, 207).

    Examples
    --------
    >>> from seqpoint.selection.estimate import spread_of
    >>> log = SelectionLog([1, 2, 3], [10, 20, 30], representatives=[0, 2], weights=[2, 1])
    >>> predict_means(spread_of(log), log, np.array([15.0, 35.0]))[0].round(3).tolist()
    [[15.0, 25.0, 35.0]]
    """
    if not _span_half_of_lengths(spread, values):
        return _growth_predictions(spread, log, values), 0.0, 0
    scaled, design, scale, targets, degrees = _cost_model(values, log, spread)
    points = spread.points
    coefficients = np.linalg.lstsq(design[points] / scale[:, None], targets / scale, rcond=None)[0]
    predicted = np.maximum(scaled + design @ coefficients, 0)
    residuals = (values - predicted[points]) / scale
    variance = residuals @ residuals / degrees if degrees else 0.0
    return predicted[None, :], max(float(variance - spread.noise[points].mean()), 0.0), degrees


def _growth_predictions(spread: Spread, log: SelectionLog, values: Floats) -> Floats:
    """Return values that grow as powers of the logged mean, through the weighted mean of the points."""
    means = spread.table.means
    logged_mean = float(log.weights @ means[spread.points]) / log.weights.sum()
    value_mean = float(log.weights @ values) / log.weights.sum()
    relative = means / logged_mean if logged_mean > 0 else means * means.size / means.sum()
    return np.asarray(value_mean * relative**_GROWTH_POWERS, dtype=np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class _TotalError:
    """Error of an estimated total by source, in the unit of the total.

    Attributes
    ----------
    total : float
        The estimate.
    biases : ndarray of float64, shape (n_predictions,)
        Bias of the representatives under each prediction that the points allow. A regression estimate has none.
    slopes : ndarray of float64, shape (n_lengths,)
        Standard error that the logged mean of each length adds, with its sign.
    noise, extra : float
        Variance from the noise of the log, and from the scatter of the points beyond it.
    degrees : int
        Degrees of freedom of `extra`.
    """

    total: float
    biases: Floats
    slopes: Floats
    noise: float
    extra: float
    degrees: int


def _relative_error(a: _TotalError, b: _TotalError) -> _TotalError:
    """Return the error of the logarithm of the ratio of two totals."""
    return _TotalError(
        total=1.0,
        biases=np.subtract.outer(a.biases / a.total, b.biases / b.total).ravel(),
        slopes=a.slopes / a.total - b.slopes / b.total,
        noise=a.noise / a.total**2 + b.noise / b.total**2,
        extra=a.extra / a.total**2 + b.extra / b.total**2,
        degrees=min(a.degrees, b.degrees),
    )


def estimate_total(values: ArrayLike, log: SelectionLog, *, confidence: float = 0.95) -> Estimate:
    """Estimate the total of an additive statistic over the epoch, on the configuration that was measured.

    Parameters
    ----------
    values : array-like, shape (n_points,)
        The statistic of each representative on any configuration, in the order of `log.representatives`.
    log : SelectionLog
        The logged epoch, the points and their weights.
    confidence : float, default 0.95
        Nominal coverage of the interval, between 0 and 1.

    Returns
    -------
    Estimate
        ``sum(weights * values)``, in the unit of `values`; no end is below zero.

    Raises
    ------
    InvalidInputError
        Values have another shape than the points, or are negative or not finite.

    Notes
    -----
    SeqPoint's sum (arXiv 2007.10459); the interval is derived at the top of this module.

    Examples
    --------
    >>> log = SelectionLog([5, 5, 9], [98, 102, 300], representatives=[0, 2], weights=[2, 1])
    >>> total = estimate_total([50.0, 200.0], log)
    >>> total.value, total.low < 300 < total.high
    (300.0, True)
    >>> everything = SelectionLog([5, 9], [10, 30], representatives=[0, 1], weights=[1, 1])
    >>> estimate_total([7.0, 20.0], everything)
    Estimate(value=27.0, low=27.0, high=27.0, confidence=0.95)
    """
    spread = spread_of(log)
    error = _sum_error(finite_column("values", values, size=log.weights.size), log, spread)
    half = _half_width(error, spread, confidence)
    return Estimate(error.total, max(error.total - half, 0.0), error.total + half, confidence)


def cross_validated_error(
    fit: Callable[[Floats, Floats], FittedSelector], X: Floats, y: Floats, *, seed: int = 0
) -> float | None:
    """Return the relative error of the total of half a run, from points that were chosen on the other half.

    Iterations of like lengths, and like features, form pairs, and chance sends one of each to either half. A point that
    is chosen in one half takes the value of its partner, as it would in another run. (With its own value it would be
    judged by the noise that it was chosen for: the iteration nearest the mean.)

    Parameters
    ----------
    fit : callable
        Returns the selector that is fitted on lengths or features, and the statistic.
    X, y : ndarray of float64, shapes (n_iterations, n_features) and (n_iterations,)
        Lengths or features, and the statistic.
    seed : int, default 0
        Seed of the halves.

    Returns
    -------
    float or None
        The root mean square over ten divisions; of over 20,000 iterations so many are drawn. None for fewer than 20
        iterations, and for points that are more than a quarter of them.

    Examples
    --------
    >>> from seqpoint.selection import SeqPointSelector
    >>> lengths = np.repeat([5.0, 9.0], 10)[:, None]
    >>> cross_validated_error(lambda X, y: SeqPointSelector().fit(X, y), lengths, 10 * lengths[:, 0])
    0.0
    """
    rng, errors = np.random.default_rng(seed), []
    if len(y) > _MOST_DIVIDED:
        rows = np.sort(rng.choice(len(y), _MOST_DIVIDED, replace=False))
        X, y = X[rows], y[rows]
    for _ in range(_DIVISIONS if len(y) >= HALF else 0):
        order = np.lexsort((rng.random(len(y)), *X.T[::-1]))  # by length, then by features
        pairs = rng.permuted(order[: len(y) // 2 * 2].reshape(-1, 2), axis=1)
        chosen_on, judged = pairs[np.argsort(pairs[:, 0])].T
        if not (y[chosen_on].any() and y[judged].any()):
            continue
        fitted = fit(X[chosen_on], y[chosen_on])
        if 4 * len(fitted.representatives_) > len(y):
            return None
        errors.append(float(fitted.weights_ @ y[judged[fitted.representatives_]]) / float(y[judged].sum()) - 1)
    return float(np.sqrt(np.mean(np.square(errors)))) if errors else None


def estimate_speedup(
    values_a: ArrayLike, values_b: ArrayLike, log: SelectionLog, *, confidence: float = 0.95
) -> Estimate:
    """Estimate the speed-up of configuration B over A: the projected total on A divided by that on B.

    Parameters
    ----------
    values_a, values_b : array-like, shape (n_points,)
        The statistic of the same representatives on each configuration, in the order of `log.representatives`.
    log : SelectionLog
        The logged epoch, the points and their weights.
    confidence : float, default 0.95
        Nominal coverage of the interval, between 0 and 1.

    Returns
    -------
    Estimate
        A ratio; above 1, B is faster.

    Raises
    ------
    InvalidInputError
        Values have another shape than the points, are negative or not finite, or project a total of zero.

    Notes
    -----
    Source of the value: SeqPoint (arXiv 2007.10459). The interval is symmetric in the logarithm, whose error is the
    relative error on A less that on B (delta method). A and B share the bias and the log's own noise, which cancel as
    far as both grow alike with the length. The noise of A and of B is independent and adds up. The terms are those of
    `estimate_total`.

    Examples
    --------
    >>> log = SelectionLog([5, 5, 9], [98, 102, 300], representatives=[0, 2], weights=[2, 1])
    >>> estimate_speedup([98, 300], [49, 150], log).value
    2.0
    """
    spread = spread_of(log)
    a, b = (_sum_error(values, log, spread) for values in finite_pair(values_a, values_b, log.weights.size))
    if not (a.total and b.total):
        name = "values_b" if a.total else "values_a"
        raise InvalidInputError(f"{name} project a total of zero; a speed-up needs two totals above zero")
    half = _half_width(_relative_error(a, b), spread, confidence)
    return _ratio_estimate(a.total / b.total, half, confidence)


def _ratio_estimate(value: float, log_half_width: float, confidence: float) -> Estimate:
    """Return a ratio with the interval of its logarithm's half-width."""
    factor = float(np.exp(min(log_half_width, _MAX_LOG)))
    return Estimate(value, value / factor, value * factor, confidence)


def relative_error(estimate: float, measured: float) -> float:
    """Return ``|estimate - measured| / measured``.

    Parameters
    ----------
    estimate : float
        The estimated number.
    measured : float
        The measured number, above zero, in the same unit.

    Raises
    ------
    InvalidInputError
        The measured number is not above zero.

    Examples
    --------
    >>> relative_error(90.0, 100.0)
    0.1
    """
    if not measured > 0:
        raise InvalidInputError(f"measured is {measured:g}; a relative error needs a measured number above zero")
    return abs(estimate - measured) / measured


def sequential_reduction(total: float, values: ArrayLike) -> float:
    """Return how many times less is profiled if the points run one after another: total / sum over the points.

    Parameters
    ----------
    total : float
        The statistic of the whole epoch.
    values : array-like, shape (n_points,)
        The statistic of each point, unweighted, in the same unit and on the same configuration.

    Notes
    -----
    SeqPoint (arXiv 2007.10459) does not state the denominator of its 345x and 214x; here it is the sum.

    Examples
    --------
    >>> sequential_reduction(100.0, [2.0, 3.0])
    20.0
    """
    return total / _above_zero(float(finite_column("values", values).sum()))


def parallel_reduction(total: float, values: ArrayLike) -> float:
    """Return how many times less time it takes if all points run at once: total / the longest point.

    Parameters
    ----------
    total : float
        The statistic of the whole epoch.
    values : array-like, shape (n_points,)
        The statistic of each point, unweighted, in the same unit and on the same configuration.

    Examples
    --------
    >>> parallel_reduction(90.0, [2.0, 3.0])
    30.0
    """
    return total / _above_zero(float(finite_column("values", values).max()))


def _above_zero(value: float) -> float:
    if value <= 0:
        raise InvalidInputError("the points sum to zero; a reduction needs points that cost something")
    return value


def _sum_error(values: Floats, log: SelectionLog, spread: Spread) -> _TotalError:
    """Split the error of SeqPoint's sum on a configuration into its sources."""
    predictions, extra_noise, degrees = predict_means(spread, log, values)
    noise, squares = _new_noise(values, log.weights, predictions[0], spread)
    return _TotalError(
        total=float(log.weights @ values),
        biases=predictions @ spread.excess,
        slopes=spread.excess * predictions[0] * np.sqrt(spread.noise / spread.table.counts),
        noise=noise,
        extra=extra_noise * squares,
        degrees=degrees,
    )


def _new_noise(values: Floats, weights: Floats, means: Floats, spread: Spread) -> tuple[float, float]:
    """Return the variance of a weighted sum by the noise of the log, and the factor of any noise beyond it."""
    counts = spread.table.counts
    unmeasured = counts - np.bincount(spread.points, minlength=counts.size)
    point_squares, unmeasured_squares = ((weights - 1) * values) ** 2, unmeasured * means**2
    noise = float(point_squares @ spread.noise[spread.points] + unmeasured_squares @ spread.noise)
    return noise, float(point_squares.sum() + unmeasured_squares.sum())


def predict_total(
    values: ArrayLike, point_lengths: ArrayLike, lengths: ArrayLike, *, confidence: float = 0.95
) -> Estimate:
    """Predict the total of iterations of any lengths, such as those of another epoch.

    Parameters
    ----------
    values : array-like, shape (n_points,)
        The statistic of each measured iteration, above zero.
    point_lengths : array-like, shape (n_points,)
        Their sequence lengths; two distinct ones or more, and three points or more.
    lengths : array-like, shape (n_iterations,)
        Sequence lengths of the iterations to total.
    confidence : float, default 0.95
        Nominal coverage of the interval, between 0 and 1.

    Returns
    -------
    Estimate
        In the unit of `values`. Lengths beyond the points are extrapolated: the interval then widens, and holds as far
        as the cost grows there as it does between the points.

    Raises
    ------
    InvalidInputError
        Arrays that do not fit, are not finite or negative, or too few points.

    Examples
    --------
    >>> total = predict_total([12.0, 22.0, 42.0], [10, 20, 40], [10, 30, 80])
    >>> round(total.value, 6), round(total.half_width, 6)
    (126.0, 0.0)
    """
    points = finite_column("values", values)
    at = finite_column("point_lengths", point_lengths, size=points.size)
    epoch_lengths = finite_column("lengths", lengths)
    require_confidence(confidence)
    if points.min() <= 0:
        raise InvalidInputError(
            f"values[{int(points.argmin())}] is {points.min():g}; relative residuals need values above zero"
        )
    distinct = np.unique(at).size
    if distinct < 2 or points.size < 3:
        raise InvalidInputError(
            f"{points.size} points of {distinct} lengths cannot tell how cost grows; give three, of two lengths or more"
        )
    unit = max(float(at.max()), 1.0)
    powers = _significant_powers(at / unit, points, distinct)
    design, squares = _fit_polynomial(at / unit, points, powers)
    degrees = points.size - powers.size
    table, counts = np.unique(epoch_lengths / unit, return_counts=True)
    terms = table[:, None] ** powers
    inverse = np.linalg.pinv(design)
    means = np.maximum(terms @ inverse.sum(axis=1), 0)
    variance = squares / degrees * (float(np.sum(((counts @ terms) @ inverse) ** 2)) + float(counts @ means**2))
    half = float(scipy.special.stdtrit(degrees, (1 + confidence) / 2)) * float(np.sqrt(variance))
    total = float(counts @ means)
    return Estimate(total, max(total - half, 0.0), total + half, confidence)


def _significant_powers(point_lengths: Floats, values: Floats, distinct: int) -> Ints:
    """Return the powers of the length in the fit: 0 and 1, and 2 if the points show it beyond chance."""
    line, parabola = np.arange(2), np.arange(3)
    degrees = values.size - 3
    if distinct < 3 or degrees < 1:
        return line
    line_squares = _fit_polynomial(point_lengths, values, line)[1]
    parabola_squares = _fit_polynomial(point_lengths, values, parabola)[1]
    bound = float(scipy.special.fdtri(1, degrees, 1 - _SIGNIFICANCE)) * parabola_squares / degrees
    return parabola if line_squares - parabola_squares > max(bound, 1e-12 * values.size) else line


def _fit_polynomial(point_lengths: Floats, values: Floats, powers: Ints) -> tuple[Floats, float]:
    """Return the design of relative residuals, and the sum of their squares."""
    design = point_lengths[:, None] ** powers / values[:, None]
    coefficients = np.linalg.lstsq(design, np.ones(values.size), rcond=None)[0]
    return design, float(np.sum((1 - design @ coefficients) ** 2))


def assisted_total(values: ArrayLike, log: SelectionLog, *, confidence: float = 0.95) -> Estimate:
    """Estimate the total of an additive statistic over the epoch by regression on the log.

    If the points span less than half of the lengths, they cannot tell how cost grows; the result is then that of
    `estimate_total`.

    Parameters
    ----------
    values : array-like, shape (n_points,)
        The statistic of each representative on any configuration, in the order of `log.representatives`.
    log : SelectionLog
        The logged epoch, the points and their weights.
    confidence : float, default 0.95
        Nominal coverage of the interval, between 0 and 1.

    Returns
    -------
    Estimate
        The regression estimate, in the unit of `values`; the lower end is not below the sum of `values`.

    Raises
    ------
    InvalidInputError
        Values have another shape than the points, or are negative or not finite.

    Examples
    --------
    >>> log = SelectionLog([1, 2, 3, 4], [10, 20, 30, 40], representatives=[0, 3], weights=[2, 2])
    >>> estimate_total([15.0, 45.0], log).value, round(assisted_total([15.0, 45.0], log).value, 6)
    (120.0, 120.0)
    """
    points = finite_column("values", values, size=log.weights.size)
    spread = spread_of(log)
    if not _span_half_of_lengths(spread, points):
        return estimate_total(points, log, confidence=confidence)
    error = _assisted_error(points, log, spread)
    half = _half_width(error, spread, confidence)
    return Estimate(error.total, max(error.total - half, float(points.sum())), error.total + half, confidence)


def assisted_precision(values: ArrayLike, log: SelectionLog) -> Precision:
    """Return how well the points know the total of `assisted_total`, on the configuration that was measured.

    Points that scatter beyond the noise of the log raise the scatter.

    Parameters
    ----------
    values : array-like, shape (n_points,)
        The statistic of each representative on any configuration, in the order of `log.representatives`.
    log : SelectionLog
        The logged epoch, the points and their weights.

    Examples
    --------
    >>> log = SelectionLog([1, 2, 3, 4], [10, 20, 30, 40], representatives=[0, 3], weights=[2, 2])
    >>> assisted_precision([15.0, 45.0], log).standard_error
    0.0
    """
    points, spread = finite_column("values", values, size=log.weights.size), spread_of(log)
    error = (_assisted_error if _span_half_of_lengths(spread, points) else _sum_error)(points, log, spread)
    scatter, from_neighbours = _scatter(spread, log)
    growth = (1 + error.extra / error.noise) ** 0.5 if error.noise else 1.0
    return _precision(error, log, (scatter * growth, from_neighbours))


def assisted_speedup(
    values_a: ArrayLike, values_b: ArrayLike, log: SelectionLog, *, confidence: float = 0.95
) -> Estimate:
    """Estimate the speed-up of configuration B over A from the totals of `assisted_total`.

    A and B share the noise of the logged means, which cancels as far as both follow them alike.

    Parameters
    ----------
    values_a, values_b : array-like, shape (n_points,)
        The statistic of the same representatives on each configuration, in the order of `log.representatives`.
    log : SelectionLog
        The logged epoch, the points and their weights.
    confidence : float, default 0.95
        Nominal coverage of the interval, between 0 and 1.

    Returns
    -------
    Estimate
        A ratio; above 1, B is faster.

    Raises
    ------
    InvalidInputError
        Values have another shape than the points, are negative or not finite, or project a total of zero.

    Examples
    --------
    >>> log = SelectionLog([1, 2, 3, 4], [10, 20, 30, 40], representatives=[0, 3], weights=[2, 2])
    >>> round(assisted_speedup([10.0, 40.0], [5.0, 20.0], log).value, 6)
    2.0
    """
    points_a, points_b = finite_pair(values_a, values_b, log.weights.size)
    spread = spread_of(log)
    if not (_span_half_of_lengths(spread, points_a) and _span_half_of_lengths(spread, points_b)):
        return estimate_speedup(points_a, points_b, log, confidence=confidence)
    a, b = _assisted_error(points_a, log, spread), _assisted_error(points_b, log, spread)
    half = _half_width(_relative_error(a, b), spread, confidence)
    return _ratio_estimate(a.total / b.total, half, confidence)


def _assisted_error(values: Floats, log: SelectionLog, spread: Spread) -> _TotalError:
    """Return the regression estimate of a configuration, and its error by source."""
    means, counts, points = spread.table.means, spread.table.counts, spread.points
    scaled, design, scale, targets, degrees = _cost_model(values, log, spread)
    solve = np.linalg.pinv(design[points] / scale[:, None]) / scale
    predicted = np.maximum(scaled + design @ (solve @ targets), 0)
    # The total is linear in the values: these are the weights that the polynomial gives, and those of the total.
    polynomial_weights = (counts @ design) @ solve
    shared = float(polynomial_weights @ means[points]) / float(log.statistic.sum())
    weights = log.weights * (1 - shared) + polynomial_weights
    log_slope = scaled * (counts * shared - np.bincount(points, polynomial_weights, counts.size))
    noise, squares = _new_noise(values, weights, predicted, spread)
    return _TotalError(
        total=float(weights @ values),
        biases=np.zeros(1),
        slopes=log_slope * np.sqrt(spread.noise / counts),
        noise=noise,
        extra=_significant_noise((values - predicted[points]) / scale, spread, degrees) * squares,
        degrees=degrees,
    )


def _significant_noise(residuals: Floats, spread: Spread, degrees: int) -> float:
    """Return the relative variance of the points beyond that of the log, or 0 if it may be chance."""
    if not degrees:
        return 0.0
    variance, expected = float(residuals @ residuals) / degrees, float(spread.noise[spread.points].mean())
    bound = expected * float(scipy.special.fdtri(degrees, max(spread.degrees, 1.0), 1 - _SIGNIFICANCE))
    return variance - expected if variance > bound else 0.0


def sum_precision(values: ArrayLike, log: SelectionLog) -> Precision:
    """Return how well the points know the total by SeqPoint's sum, on a run as noisy as the log.

    Parameters
    ----------
    values : array-like, shape (n_points,)
        The statistic of each representative in the log, in the order of `log.representatives`.
    log : SelectionLog
        The logged epoch, the points and their weights.

    Examples
    --------
    Two of four iterations weigh 2 each. So (2 - 1)^2 * 10^2 of each point, and 10^2 of each other iteration, are noise.

    >>> log = SelectionLog([5, 5, 5, 5], [9, 11, 9, 11], representatives=[0, 1], weights=[2, 2])
    >>> precision = sum_precision([10, 10], log)
    >>> round(precision.scatter, 6) == round((0.04 / 3) ** 0.5, 6)
    True
    >>> round(precision.standard_error, 6) == round((4 * 100 * 0.04 / 3) ** 0.5 / 40, 6)
    True
    """
    points, spread = finite_column("values", values, size=log.weights.size), spread_of(log)
    return _precision(_sum_error(points, log, spread), log, _scatter(spread, log))


def _precision(error: _TotalError, log: SelectionLog, scatter: tuple[float, bool]) -> Precision:
    relative = _mean_square(error) ** 0.5 / error.total if error.total else 0.0
    return Precision(*scatter, scatter[0], relative, log.weights.size, log.lengths.size)


def _mean_square(error: _TotalError) -> float:
    """Return the mean square error of a total."""
    return float(np.max(error.biases**2)) + float(error.slopes @ error.slopes) + error.noise + error.extra


def _half_width(error: _TotalError, spread: Spread, confidence: float) -> float:
    """Return Student's two-sided quantile times the root mean square error; degrees of freedom after Satterthwaite."""
    require_confidence(confidence)
    mean_square = _mean_square(error)
    if mean_square == 0:
        return 0.0
    extra_share = error.extra / mean_square
    degrees = 1 / ((1 - extra_share) ** 2 / max(spread.degrees, 1) + extra_share**2 / max(error.degrees, 1))
    return float(scipy.special.stdtrit(degrees, (1 + confidence) / 2)) * float(np.sqrt(mean_square))


def stratified_variance(sizes: ArrayLike, spreads: ArrayLike, sampled: ArrayLike) -> float:
    r"""Return the variance of a stratified estimate of a total.

    Parameters
    ----------
    sizes : array-like, shape (n_strata,)
        Number of members :math:`N_h` of each stratum.
    spreads : array-like, shape (n_strata,)
        Standard deviation :math:`S_h` in each stratum, with the divisor :math:`N_h - 1`; 0 for one member.
    sampled : array-like, shape (n_strata,)
        Number of sampled members :math:`n_h`, 1 to :math:`N_h`.

    Returns
    -------
    float
        :math:`\sum_h N_h (N_h - n_h) S_h^2 / n_h`, in the square of the unit of `spreads`.

    Notes
    -----
    Cochran, Sampling Techniques (1977), theorem 5.3; :math:`1 - n_h / N_h` is the finite population correction.

    Examples
    --------
    >>> stratified_variance([10, 20], [3.0, 0.0], [4, 1])  # 10 * 6 * 9 / 4
    135.0
    """
    N, S, n = np.asarray(sizes), np.asarray(spreads, dtype=np.float64), np.asarray(sampled)
    return float(np.sum(N * (N - n) / n * S * S))


def neyman_allocation(sizes: ArrayLike, spreads: ArrayLike, variance: float, *, least: int = 2) -> Ints:
    r"""Return the smallest sample of each stratum that estimates a total with at most the given variance.

    Parameters
    ----------
    sizes : array-like, shape (n_strata,)
        Number of members :math:`N_h` of each stratum.
    spreads : array-like, shape (n_strata,)
        Standard deviation :math:`S_h` in each stratum; 0 for a single member.
    variance : float
        Largest variance of the total, 0 or more, in the square of the unit of `spreads`.
    least : int, default 2
        Fewest members to sample of a stratum with a spread. A stratum without a spread, or with a single member, gets a
        single sample.

    Returns
    -------
    ndarray of int64, shape (n_strata,)
        :math:`n_h = \lambda N_h S_h`, rounded, within the fewest and :math:`N_h`, for the smallest
        :math:`\lambda` that keeps the variance.

    Notes
    -----
    Neyman's allocation (Cochran 1977, 5.5, equation 5.26). A stratum whose share exceeds its members is taken whole
    and the others share the rest (5.8 there); clipping under a common :math:`\lambda` does that.

    Examples
    --------
    If no bound is reached n is ``(sum N S)^2 / (V + sum N S^2)`` = 110^2 / (300 + 290) = 20.5, in the ratio 20 : 90.

    >>> neyman_allocation([20, 30], [1.0, 3.0], 300.0).tolist()
    [4, 17]
    """
    N, S = np.asarray(sizes, dtype=np.int64), np.asarray(spreads, dtype=np.float64)
    fewest = np.where(S > 0, np.minimum(least, N), 1)
    products = N * S
    varies = products > 0
    if not varies.any() or stratified_variance(N, S, fewest) <= variance:
        return fewest
    most = np.where(varies, N, 1)

    def rounded(scale: float) -> Ints:
        return np.clip(np.rint(np.minimum(scale * products, N)).astype(np.int64), fewest, most)

    # Bisect the logarithm of the scale, between one that samples the fewest and one that samples all.
    low, high = np.log(0.25 / products.max()), -np.log(S[varies].min())
    for _ in range(60):  # after that float64 has no more digits
        middle = (low + high) / 2
        enough = stratified_variance(N, S, rounded(float(np.exp(min(middle, 700.0))))) <= variance
        low, high = (low, middle) if enough else (middle, high)
    return rounded(float(np.exp(min(high + 1e-12, 700.0))))


def shared_allocation(sizes: ArrayLike, spreads: ArrayLike, total: int) -> Ints:
    r"""Return the sample of each stratum that estimates a total with the smallest variance, for a number of samples.

    Parameters
    ----------
    sizes : array-like, shape (n_strata,)
        Number of members :math:`N_h` of each stratum.
    spreads : array-like, shape (n_strata,)
        Standard deviation :math:`S_h` in each stratum; 0 for a single member.
    total : int
        Number of samples to share. Each stratum gets at least one, and at least two if it has a spread and `total`
        suffices for that.

    Returns
    -------
    ndarray of int64, shape (n_strata,)
        Samples of each stratum. They sum to `total`, but not to less than the strata or to more than the members.

    Notes
    -----
    Neyman's allocation for a fixed sample size (Cochran 1977, 5.5, equation 5.25) in whole samples: each next sample
    goes to the stratum whose variance it lowers most (Wright 2012, The American Statistician 66, 217).

    Examples
    --------
    >>> shared_allocation([20, 30, 5], [1.0, 3.0, 0.0], 10).tolist()
    [2, 7, 1]
    """
    N, S = np.asarray(sizes, dtype=np.int64), np.asarray(spreads, dtype=np.float64)
    n = np.ones(N.size, dtype=np.int64)
    varying = np.flatnonzero((S > 0) & (N > 1))
    if N.size + varying.size <= total:
        n[varying] = 2
    for _ in range(max(0, min(total, int(N.sum())) - int(n.sum()))):  # a Python loop over the samples
        gain = np.where(n < N, (N * S) ** 2 / (n * (n + 1.0)), -1.0)
        n[np.argmax(gain)] += 1
    return n
