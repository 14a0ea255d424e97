"""What the log of an epoch tells about its points: what they miss of each length, and the noise."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from seqpoint.selection.lengths import LengthTable, length_table, parts
from seqpoint.selection.log import SelectionLog

__all__ = ["Spread", "relative_noise", "spread_of"]

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
