r"""The total of another epoch, of other lengths, from the points of one: a regression of the cost on the length.

SeqPoint's weights count the iterations of the epoch that the points were chosen from. Counting the bins of another
epoch instead (`SeqPointSelector.predict`) misses what its lengths differ inside a bin, and a length beyond the bins by
all that it is longer. Here the points' values :math:`v_p` give :math:`m(u) = a + b u`, or with :math:`c u^2` where that
fits better than chance (F test at 5 %), by least squares of relative residuals, and the total of the other epoch is
:math:`\sum_i m(u_i)`. An iteration costs a fixed part, one linear in the length, and with attention a quadratic one
(arXiv 2302.02825). Its variance is that of the coefficients, and the noise of the iterations themselves:

.. math:: V = s^2 \left(x^T (Z^T Z)^{-1} x + \sum_i m(u_i)^2\right), \qquad x = \sum_i (1, u_i, u_i^2),

with :math:`z_p = (1, u_p, u_p^2) / v_p` and :math:`s^2` the mean square of the relative residuals (Draper and Smith,
Applied Regression Analysis, 1998, section 3.1).
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import fdtri, stdtrit  # type: ignore[import-untyped, unused-ignore]

from profilers.errors import InvalidInputError
from seqpoint.selection.estimate import Estimate
from seqpoint.selection.log import finite_column

__all__ = ["predict_total"]

Floats = NDArray[np.float64]

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
    design, residual = _fit(at / unit, v, powers)
    degrees = v.size - powers.size
    square = residual / degrees
    table, counts = np.unique(wanted / unit, return_counts=True)
    of_lengths = table[:, None] ** powers
    inverse = np.linalg.pinv(design)
    means = np.maximum(of_lengths @ inverse.sum(axis=1), 0)
    variance = square * (float(np.sum(((counts @ of_lengths) @ inverse) ** 2)) + float(counts @ means**2))
    half = float(stdtrit(degrees, (1 + confidence) / 2)) * float(np.sqrt(variance))
    total = float(counts @ means)
    return Estimate(total, max(total - half, 0.0), total + half, confidence)


def _degree(at: Floats, values: Floats, distinct: int) -> NDArray[np.int64]:
    """Return the powers of the length that the points call for."""
    line, parabola = np.arange(2), np.arange(3)
    degrees = values.size - 3
    if distinct < 3 or degrees < 1:
        return line
    (_, of_line), (_, of_parabola) = _fit(at, values, line), _fit(at, values, parabola)
    bound = float(fdtri(1, degrees, 1 - _SIGNIFICANT)) * of_parabola / degrees
    return parabola if of_line - of_parabola > max(bound, 1e-12 * values.size) else line


def _fit(at: Floats, values: Floats, powers: NDArray[np.int64]) -> tuple[Floats, float]:
    """Return the design of relative residuals, and the sum of their squares."""
    design = at[:, None] ** powers / values[:, None]
    coefficients = np.linalg.lstsq(design, np.ones(values.size), rcond=None)[0]
    return design, float(np.sum((1 - design @ coefficients) ** 2))
