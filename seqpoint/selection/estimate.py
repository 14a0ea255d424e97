r"""Totals of a run from its selected iterations, with intervals.

What the log of an epoch tells about its points: what they miss of each length, and the noise.

What a few measured points tell about every sequence length on a new configuration.

Totals, ratios and speed-ups of a whole epoch from a few measured iterations, each with an interval.

The interval, derived
---------------------
The value is SeqPoint's (arXiv 2007.10459). SeqPoint has no interval; this one is derived here. Let an
iteration of length :math:`u` take :math:`m_u (1 + \epsilon)` on the new configuration, with independent
noise of relative variance :math:`\sigma_u^2`. Length :math:`u` occurs :math:`n_u` times, its points weigh
:math:`W_u` together, and :math:`c_u = W_u - n_u` is how much the selection counts it too often. Then
the error of the estimate is

.. math:: \sum_u c_u m_u
    + \sum_{p} (w_p - 1) m_p \epsilon_p - \sum_{i \text{ not a point}} m_i \epsilon_i .

The first sum is the bias of the representatives. It is estimated, not assumed away: `predict_means` fits
:math:`\hat m_u` through the points, by the logged mean and a quadratic in the length, which gives
:math:`D = \sum_u c_u \hat m_u`. As the logged mean is itself known to :math:`\sigma_u / \sqrt{n_u}`, and
points were chosen where it looked best, :math:`V_{log} = \sum_u c_u^2 \hat m_u^2 \sigma_u^2 / n_u` is
added. The other two sums have the variance
:math:`V_{new} = \sum_p (w_p - 1)^2 z_p^2 \sigma_p^2 + \sum_i \hat m_i^2 \sigma_i^2`: a point stands
exactly for itself and with error for the rest of its stratum. :math:`\sigma_u^2` comes from the log
(`relative_noise`: residuals within a length, and of each length from its neighbours), for the iterations
nearest each point, pooled with the whole epoch as 10 more degrees of freedom, so that thin strata borrow.
What the points scatter about the fit beyond that is added to :math:`\sigma_u^2`.

The half-width is Student's quantile times :math:`\sqrt{D^2 + V_{log} + V_{new}}`. At 90 % confidence or
more, an interval built on the root mean square error covers at least as often as one of an unbiased
estimate, whatever the bias; at 80 % or less it covers less than it says. The degrees of freedom follow
Satterthwaite (1946, Biometrics Bulletin 2, 110). If every iteration is a point, all terms are zero, and so
is the width.

Assumed: the new configuration is no less noisy than the log, and what it changes changes smoothly with
the length. In simulation 95 % intervals cover 92 to 100 % under these assumptions; where the new
configuration jumps at a length that the log shows no jump at, or is noisy where the log had no noise,
they can cover less (57 to 99 %). Points that span less than half of the lengths (a single point, a
profiler's window of a sorted epoch) cannot tell how values grow: :math:`D` is then the largest that
results if they grow as the logged statistic, its square root or its power of 1.5, and the interval wide.

The total of another epoch, of other lengths, from the points of one: a regression of the cost on the length.

SeqPoint's weights count the iterations of the epoch that the points were chosen from. Counting the bins of another
epoch instead (`SeqPointSelector.predict`) misses what its lengths differ inside a bin, and a length beyond the bins by
all that it is longer. Here the points' values :math:`v_p` give :math:`m(u) = a + b u`, or with :math:`c u^2` where that
fits better than chance (F test at 5 %), by least squares of relative residuals, and the total of the other epoch is
:math:`\sum_i m(u_i)`. An iteration costs a fixed part, one linear in the length, and with attention a quadratic one
(arXiv 2302.02825). Its variance is that of the coefficients, and the noise of the iterations themselves:

.. math:: V = s^2 \left(x^T (Z^T Z)^{-1} x + \sum_i m(u_i)^2\right), \qquad x = \sum_i (1, u_i, u_i^2),

with :math:`z_p = (1, u_p, u_p^2) / v_p` and :math:`s^2` the mean square of the relative residuals (Draper and Smith,
Applied Regression Analysis, 1998, section 3.1).

Totals and speed-ups of an epoch from a few points and all that the log knows: the model-assisted estimate.

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
import scipy
from numpy.typing import ArrayLike, NDArray

from profilers.errors import InvalidInputError
from profilers.trace.arrays import Floats
from seqpoint.selection.log import LengthTable, SelectionLog, finite_column, length_table, parts

# Weight, in degrees of freedom, of the noise of the whole epoch in the noise near one point.
_POOLED_DEGREES = 10.0


@dataclass(frozen=True, slots=True, eq=False)
class Spread:
    """The log by sequence length, with what the points miss of each length.

    Attributes
    ----------
    table : LengthTable
        The log by length.
    points : ndarray of int64, shape (n_points,)
        Row of `table` that each point belongs to.
    excess : ndarray of float64, shape (n_lengths,)
        Weight of the points of a length, less its iterations. Zero everywhere if every length has its points.
    noise : ndarray of float64, shape (n_lengths,)
        Relative variance of one iteration of a length about the mean of the length.
    degrees : float
        Degrees of freedom that `noise` rests on.
    """

    table: LengthTable
    points: NDArray[np.int64]
    excess: NDArray[np.float64]
    noise: NDArray[np.float64]
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
        See there.

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
    measured = table.lengths[np.unique(points)]
    nearest = np.searchsorted((measured[:-1] + measured[1:]) / 2, table.lengths)
    pooled = squares.sum() / degrees.sum()
    local = (np.bincount(nearest, squares) + _POOLED_DEGREES * pooled) / (
        np.bincount(nearest, degrees) + _POOLED_DEGREES
    )
    weight = np.bincount(points, log.weights, minlength=table.lengths.size)
    return Spread(table, points, (weight - table.counts).astype(np.float64), local[nearest], float(degrees.sum()))


def relative_noise(
    table: LengthTable, statistic: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the squared relative noise of each length, and the degrees of freedom it rests on.

    Two sources are added. Within a length: squared residuals about its mean, ``count - 1`` degrees. Between
    lengths: the squared difference of a mean from the line through its two neighbours, divided by its
    variance in units of the noise, one degree (Gasser, Sroka and Jennen-Steinmetz 1986, Biometrika 73, 625);
    it works where every length occurs once, and counts a statistic that jumps from length to length as noise.
    With neither (two iterations of different lengths) the two count as one length.

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
    mean, counts = table.means, table.counts
    squares = np.zeros(mean.size)
    for rows in parts(statistic.size):
        of_row = mean[table.of_iteration[rows]]
        residuals = _ratio(statistic[rows] - of_row, of_row)
        squares += np.bincount(table.of_iteration[rows], residuals**2, minlength=mean.size)
    degrees = (counts - 1).astype(np.float64)
    if mean.size > 2:
        right = (table.lengths[1:-1] - table.lengths[:-2]) / (table.lengths[2:] - table.lengths[:-2])
        line = (1 - right) * mean[:-2] + right * mean[2:]
        jump = _ratio(mean[1:-1] - line, (mean[1:-1] + line) / 2)
        squares[1:-1] += jump**2 / (1 / counts[1:-1] + (1 - right) ** 2 / counts[:-2] + right**2 / counts[2:])
        degrees[1:-1] += 1
    elif degrees.sum() == 0:
        pair = statistic.mean()
        squares[0] = _ratio((statistic - pair) ** 2, np.full(statistic.size, pair**2)).sum()
        degrees[0] = 1
    return squares, degrees


def _ratio(numerator: NDArray[np.float64], denominator: NDArray[np.float64]) -> NDArray[np.float64]:
    """Divide, with 0 where the denominator is 0: a length whose statistic is always 0 has no noise."""
    return np.divide(numerator, denominator, out=np.zeros_like(numerator), where=denominator > 0)


# Where the points cannot tell how values grow with the length: as the logged statistic (first, the best
# guess), as its square root, as its power of 1.5.
_GROWTH = np.array([[1.0], [0.5], [1.5]])


@dataclass(frozen=True, slots=True, eq=False)
class Prediction:
    """The mean value of every length on a new configuration.

    Attributes
    ----------
    means : ndarray of float64, shape (n_shapes, n_lengths)
        Each row is a prediction that the points allow, the best one first, in the unit of the values.
    extra_noise : float
        Relative variance of the points about the prediction, beyond what the noise of the log explains.
    degrees : int
        Degrees of freedom that `extra_noise` rests on; 0 where the points cannot tell.
    """

    means: NDArray[np.float64]
    extra_noise: float
    degrees: int


def predict_means(spread: Spread, log: SelectionLog, values: NDArray[np.float64]) -> Prediction:
    r"""Predict the mean value of every length from the values of the points.

    The prediction is :math:`R s(u) + a + b u + c u^2`: the logged mean :math:`s(u)` scaled by the ratio of
    the totals, and a polynomial for what has another share on the new configuration. An iteration costs a
    fixed part, a part linear in the length, and with attention a quadratic one (arXiv 2302.02825:
    :math:`SL (24 H^2 + 4 H SL)` FLOPs a layer). The coefficients minimise the squared relative residuals
    of the points; fewer than three measured lengths drop :math:`c`. Points that span less than half of the
    lengths cannot tell the shape: three growths with the logged statistic are returned.

    Parameters
    ----------
    spread, log
        The logged epoch and its points, and the spread of that log.
    values : ndarray of float64, shape (n_points,)
        Value of each point on the new configuration.

    Returns
    -------
    Prediction
        One row, or three where the points cannot tell the shape.

    Notes
    -----
    Source of the idea: the difference estimator of Särndal, Swensson and Wretman, Model Assisted Survey
    Sampling (1992), section 6.3. Scaling the noise up where the points scatter more than expected follows
    Birge (1932, Phys. Rev. 40, 207).

    Examples
    --------
    >>> from seqpoint.selection.estimate import spread_of
    >>> log = SelectionLog([1, 2, 3], [10, 20, 30], representatives=[0, 2], weights=[2, 1])
    >>> predict_means(spread_of(log), log, np.array([15.0, 35.0])).means.round(3).tolist()
    [[15.0, 25.0, 35.0]]
    """
    lengths, means = spread.table.lengths, spread.table.means
    at = lengths[spread.points]
    if 2 * np.ptp(at) < np.ptp(lengths) or np.ptp(at) == 0 or not values.any():
        return Prediction(_growths(spread, log, values), 0.0, 0)
    scaled = float(log.weights @ values) / log.statistic.sum() * means
    scale = np.maximum(scaled, 1e-3 * scaled.mean())
    degree = min(np.unique(at).size - 1, 2)
    design = (lengths[:, None] / lengths[-1]) ** np.arange(degree + 1)
    coefficients = _fit(design[spread.points], values - scaled[spread.points], scale[spread.points])
    predicted = np.maximum(scaled + design @ coefficients, 0)
    residuals = (values - predicted[spread.points]) / scale[spread.points]
    degrees = max(values.size - degree - 1, 0)
    variance = residuals @ residuals / degrees if degrees else 0.0
    expected = spread.noise[spread.points].mean()
    return Prediction(predicted[None, :], max(float(variance - expected), 0.0), degrees)


def _fit(design: NDArray[np.float64], target: NDArray[np.float64], scale: NDArray[np.float64]) -> NDArray[np.float64]:
    """Least squares of residuals relative to `scale`."""
    solution = np.linalg.lstsq(design / scale[:, None], target / scale, rcond=None)[0]
    return np.asarray(solution, dtype=np.float64)


def _growths(spread: Spread, log: SelectionLog, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Let values grow as powers of the logged mean, through the weighted mean of the points."""
    means = spread.table.means
    centre = float(log.weights @ means[spread.points]) / log.weights.sum()
    value = float(log.weights @ values) / log.weights.sum()
    relative = means / centre if centre > 0 else means * means.size / means.sum()
    return np.asarray(value * relative**_GROWTH, dtype=np.float64)


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


@dataclass(frozen=True, slots=True, eq=False)
class _Error:
    """Parts of the error of one projected total, each in the unit of the total.

    `biases` has one entry a prediction that the points allow, `by_length` (n_lengths,) is the best prediction
    split by length, `noise` the variance from the noise that the log shows, `extra` the variance from what the
    points scatter beyond it, and `degrees` the degrees of freedom of `extra`.
    """

    total: float
    biases: NDArray[np.float64]
    by_length: NDArray[np.float64]
    noise: float
    extra: float
    degrees: int


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
    error = _error_of(finite_column("values", values, size=log.weights.size), log, spread)
    half = _half_width(error, spread, confidence)
    return Estimate(error.total, max(error.total - half, 0.0), error.total + half, confidence)


def estimate_ratio(values: ArrayLike, log: SelectionLog, *, confidence: float = 0.95) -> Estimate:
    """Estimate the mean over iterations of a ratio statistic, such as IPC or a hit rate.

    Parameters
    ----------
    values, log, confidence
        As in `estimate_total`.

    Returns
    -------
    Estimate
        ``sum(weights * values) / sum(weights)``, in the unit of `values`. The weights are known, so the
        interval is that of the total divided by their sum.

    Raises
    ------
    InvalidInputError
        As `estimate_total`.

    Notes
    -----
    Source: SeqPoint (arXiv 2007.10459). It weighs every iteration the same, however long it takes.

    Examples
    --------
    >>> log = SelectionLog([5, 5, 9], [98, 102, 300], representatives=[0, 2], weights=[2, 1])
    >>> estimate_ratio([0.5, 0.8], log).value
    0.6
    """
    total = estimate_total(values, log, confidence=confidence)
    n = float(log.weights.sum())
    return Estimate(total.value / n, total.low / n, total.high / n, confidence)


def estimate_speedup(
    values_a: ArrayLike, values_b: ArrayLike, log: SelectionLog, *, confidence: float = 0.95
) -> Estimate:
    """Estimate how many times less configuration B takes than A: projected total on A / that on B.

    Parameters
    ----------
    values_a, values_b : array-like, shape (n_points,)
        The statistic of the same representatives on both configurations.
    log, confidence
        As in `estimate_total`.

    Returns
    -------
    Estimate
        A ratio; above 1, B is faster.

    Raises
    ------
    InvalidInputError
        As `estimate_total`, or a projected total is zero.

    Notes
    -----
    Source of the value: SeqPoint (arXiv 2007.10459). The interval is symmetric in the logarithm, whose error
    is the relative error on A less that on B (delta method). The bias and the log's own noise are
    shared by both and cancel as far as A and B grow alike with the length; the noise of A and of B is
    independent and adds up. The terms are those of `estimate_total`.

    Examples
    --------
    >>> log = SelectionLog([5, 5, 9], [98, 102, 300], representatives=[0, 2], weights=[2, 1])
    >>> estimate_speedup([98, 300], [49, 150], log).value
    2.0
    """
    spread = spread_of(log)
    errors = []
    for name, values in (("values_a", values_a), ("values_b", values_b)):
        error = _error_of(finite_column(name, values, size=log.weights.size), log, spread)
        if error.total == 0:
            raise InvalidInputError(f"{name} project a total of zero; a speed-up needs two totals above zero")
        errors.append(error)
    a, b = errors
    relative = _relative_difference(a, b)
    half = min(_half_width(relative, spread, confidence), 700.0)  # float64 holds no exponential above
    factor = float(np.exp(half))
    value = a.total / b.total
    return Estimate(value, value / factor, value * factor, confidence)


def relative_error(estimate: float, measured: float) -> float:
    """Return ``|estimate - measured| / measured``: the denominator is what was measured.

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
    """Return how much less is run if the points run one after another: total / sum over the points.

    Parameters
    ----------
    total : float
        The statistic of the whole epoch.
    values : array-like, shape (n_points,)
        The statistic of each point, unweighted, in the same unit and on the same configuration.

    Notes
    -----
    SeqPoint (arXiv 2007.10459) does not say which denominator its 345x and 214x have: this one is the sum.

    Examples
    --------
    >>> sequential_reduction(100.0, [2.0, 3.0])
    20.0
    """
    return total / _above_zero(float(finite_column("values", values).sum()))


def parallel_reduction(total: float, values: ArrayLike) -> float:
    """Return how much less time it takes if all points run at once: total / the longest point.

    Parameters and source as in `sequential_reduction`; here the denominator is the largest value.

    Examples
    --------
    >>> parallel_reduction(90.0, [2.0, 3.0])
    30.0
    """
    return total / _above_zero(float(finite_column("values", values).max()))


def _error_of(values: NDArray[np.float64], log: SelectionLog, spread: Spread) -> _Error:
    """Split the error of the projected total of one configuration into its parts."""
    prediction = predict_means(spread, log, values)
    best, counts = prediction.means[0], spread.table.counts
    others = counts - np.bincount(spread.points, minlength=counts.size)
    of_points, of_others = ((log.weights - 1) * values) ** 2, others * best**2
    return _Error(
        total=float(log.weights @ values),
        biases=prediction.means @ spread.excess,
        by_length=best,
        noise=float(of_points @ spread.noise[spread.points] + of_others @ spread.noise),
        extra=prediction.extra_noise * float(of_points.sum() + of_others.sum()),
        degrees=prediction.degrees,
    )


def _relative_difference(a: _Error, b: _Error) -> _Error:
    """Return the error of the logarithm of `a.total / b.total`."""
    return _Error(
        total=1.0,
        biases=np.subtract.outer(a.biases / a.total, b.biases / b.total).ravel(),
        by_length=a.by_length / a.total - b.by_length / b.total,
        noise=a.noise / a.total**2 + b.noise / b.total**2,
        extra=a.extra / a.total**2 + b.extra / b.total**2,
        degrees=min(a.degrees, b.degrees),
    )


def _half_width(error: _Error, spread: Spread, confidence: float) -> float:
    """Return half the width of the interval around a total."""
    of_log = float((spread.excess * error.by_length) ** 2 @ (spread.noise / spread.table.counts))
    known = float(np.max(error.biases**2)) + of_log + error.noise
    return _quantile(known + error.extra, error.extra, (spread.degrees, error.degrees), confidence)


def _quantile(mean_square: float, extra: float, degrees: tuple[float, float], confidence: float) -> float:
    """Return Student's two-sided quantile times the root mean square error; degrees after Satterthwaite.

    `degrees` are those of the log's noise, and those of the part `extra`, which the points show beyond it.
    """
    if not 0 < confidence < 1:
        raise InvalidInputError(f"confidence is {confidence!r}; it must lie between 0 and 1, such as 0.95")
    if mean_square == 0:
        return 0.0
    share = extra / mean_square
    together = 1 / ((1 - share) ** 2 / max(degrees[0], 1) + share**2 / max(degrees[1], 1))
    return float(scipy.special.stdtrit(together, (1 + confidence) / 2)) * float(np.sqrt(mean_square))


def _above_zero(value: float) -> float:
    if value <= 0:
        raise InvalidInputError("the points sum to zero; a reduction needs points that cost something")
    return value


#: A quadratic part is kept where chance would show it this rarely.
_SIGNIFICANT = 0.05


def predict_total(
    values: ArrayLike, point_lengths: ArrayLike, lengths: ArrayLike, *, confidence: float = 0.95
) -> Estimate:
    """Return the total of iterations of the given lengths, whichever epoch they are of.

    Parameters
    ----------
    values : array-like, shape (n_points,)
        The statistic of each measured iteration, above zero.
    point_lengths : array-like, shape (n_points,)
        Their sequence lengths; two distinct ones or more, and three points or more.
    lengths : array-like, shape (n_iterations,)
        Sequence lengths of the iterations whose total is wanted.
    confidence : float, default 0.95
        Of the interval, between 0 and 1.

    Returns
    -------
    Estimate
        In the unit of `values`. Lengths beyond the points are extrapolated; the interval then widens, as far as the
        cost goes on as it does between the points.

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
    v = finite_column("values", values)
    at = finite_column("point_lengths", point_lengths, size=v.size)
    wanted = finite_column("lengths", lengths)
    if not 0 < confidence < 1:
        raise InvalidInputError(f"confidence is {confidence!r}; it must lie between 0 and 1, such as 0.95")
    if v.min() <= 0:
        raise InvalidInputError(f"values[{int(v.argmin())}] is {v.min():g}; relative residuals need values above zero")
    distinct = np.unique(at).size
    if distinct < 2 or v.size < 3:
        raise InvalidInputError(
            f"{v.size} points of {distinct} lengths cannot tell how cost grows; give three, of two lengths or more"
        )
    unit = max(float(at.max()), 1.0)
    powers = _degree(at / unit, v, distinct)
    design, residual = _fit_length(at / unit, v, powers)
    degrees = v.size - powers.size
    square = residual / degrees
    table, counts = np.unique(wanted / unit, return_counts=True)
    of_lengths = table[:, None] ** powers
    inverse = np.linalg.pinv(design)
    means = np.maximum(of_lengths @ inverse.sum(axis=1), 0)
    variance = square * (float(np.sum(((counts @ of_lengths) @ inverse) ** 2)) + float(counts @ means**2))
    half = float(scipy.special.stdtrit(degrees, (1 + confidence) / 2)) * float(np.sqrt(variance))
    total = float(counts @ means)
    return Estimate(total, max(total - half, 0.0), total + half, confidence)


def _degree(at: Floats, values: Floats, distinct: int) -> NDArray[np.int64]:
    """Return the powers of the length that the points call for."""
    line, parabola = np.arange(2), np.arange(3)
    degrees = values.size - 3
    if distinct < 3 or degrees < 1:
        return line
    (_, of_line), (_, of_parabola) = _fit_length(at, values, line), _fit_length(at, values, parabola)
    bound = float(scipy.special.fdtri(1, degrees, 1 - _SIGNIFICANT)) * of_parabola / degrees
    return parabola if of_line - of_parabola > max(bound, 1e-12 * values.size) else line


def _fit_length(at: Floats, values: Floats, powers: NDArray[np.int64]) -> tuple[Floats, float]:
    """Return the design of relative residuals, and the sum of their squares."""
    design = at[:, None] ** powers / values[:, None]
    coefficients = np.linalg.lstsq(design, np.ones(values.size), rcond=None)[0]
    return design, float(np.sum((1 - design @ coefficients) ** 2))


#: Scatter of the points beyond the log's noise counts where it is this unlikely to be chance.


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
    half = _assisted_half_width(found, spread, confidence)
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
    factor = float(np.exp(min(_assisted_half_width(relative, spread, confidence), 700.0)))  # float64 holds no more
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
    bound = expected * float(scipy.special.fdtri(degrees, max(spread.degrees, 1.0), 1 - _SIGNIFICANT))
    return shown - expected if shown > bound else 0.0


def _assisted_half_width(found: _Assisted, spread: Spread, confidence: float) -> float:
    """Return half the width of the interval around a total that the log helped to estimate."""
    variance = found.noise + found.extra + float(found.of_log @ found.of_log)
    return _quantile(variance, found.extra, (spread.degrees, found.degrees), confidence)
