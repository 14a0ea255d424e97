"""What a model of durations leaves over, as a smooth function of the sizes: at most 300 points a fit.

The correction of a shape is a sum over points of a Matern function (3/2) of the distance in octaves, each with its
weight: the mean of a Gaussian process with inducing points (Quinonero-Candela and Rasmussen, JMLR 2005). It vanishes
far from all that was measured. Points are measured shapes, far from one another.
"""

import numpy as np
import scipy

from profilers.trace.arrays import Floats

#: Axes of corrections; each is the product of some columns of `dims`.
Axes = tuple[tuple[int, ...], ...]
#: Most points; octaves over which corrections are alike; and weight of the weights over the squares that are left. Of
#: 100 to 400 points, 2 to 8 octaves and 0.1 to 1, halves of four tables of AIConfigurator choose them.
MOST_POINTS, _OCTAVES, _SMOOTH = 300, 3.0, 0.1
#: Largest correction of a logarithm; residuals beyond the second figure count by their size, not by their square.
MOST_CORRECTED, _OUTLIER = 0.7, 0.1
#: Times that a correction is solved again with its outliers clipped; more times change the third digit.
_REPEATS = 5
#: Decimals of octaves and weights in a calibration file.
DECIMALS = 3


def _octaves(axes: Axes, dims: Floats) -> Floats:
    """Return the logarithms of the sizes along the axes, shape (n, n_axes)."""
    sizes = np.column_stack([dims[:, columns].prod(axis=1) for columns in axes])
    return np.asarray(np.log2(np.maximum(sizes, 1.0)))


def _alike(octaves: Floats, points: Floats) -> Floats:
    distance = np.sqrt(3) * scipy.spatial.distance.cdist(octaves, points) / _OCTAVES
    return np.asarray((1 + distance) * np.exp(-distance))


def fit_correction(axes: Axes, dims: Floats, left: Floats) -> Floats:
    """Return the points of a correction that leaves the least of what a model leaves over.

    Parameters
    ----------
    axes : tuple of tuple of int
        Columns of `dims` whose product is an axis; without an axis there is no correction.
    dims : array of float64, shape (n, n_dims)
        Measured shapes.
    left : array of float64, shape (n,)
        Logarithms of measured over modelled times. Their squares count up to 0.1, and then their size (Huber's loss).

    Returns
    -------
    array of float64, shape (n_points * (n_axes + 1),)
        Octaves of each point and its weight.
    """
    if not axes:
        return np.empty(0)
    octaves, clipped = _octaves(axes, dims), np.clip(left, -MOST_CORRECTED, MOST_CORRECTED)
    points = np.round(_spread_out(np.unique(octaves, axis=0)), DECIMALS)
    alike = _alike(octaves, points)
    matrix = alike.T @ alike + _SMOOTH * (_alike(points, points) + 1e-6 * np.eye(len(points)))
    solve = scipy.linalg.cho_factor(matrix)
    weights = scipy.linalg.cho_solve(solve, alike.T @ clipped)
    for _ in range(_REPEATS):
        held = np.clip(clipped - alike @ weights, -_OUTLIER, _OUTLIER)
        weights = scipy.linalg.cho_solve(solve, alike.T @ (alike @ weights + held))
    return np.column_stack((points, np.round(weights, DECIMALS))).reshape(-1)


def _spread_out(octaves: Floats) -> Floats:
    """Return at most `MOST_POINTS` rows, each the farthest from those before it; the first is the middle one."""
    chosen = [int(np.argmin(((octaves - octaves.mean(axis=0)) ** 2).sum(axis=1)))]
    nearest = np.full(len(octaves), np.inf)
    while len(chosen) < min(MOST_POINTS, len(octaves)):
        nearest = np.minimum(nearest, ((octaves - octaves[chosen[-1]]) ** 2).sum(axis=1))
        chosen.append(int(np.argmax(nearest)))
    return octaves[chosen]


def corrected_seconds(axes: Axes, correction: Floats, dims: Floats, seconds: Floats) -> Floats:
    """Return modelled times with a correction.

    Parameters
    ----------
    axes : tuple of tuple of int
        As in `fit_correction`.
    correction : array of float64
        Points and weights of `fit_correction`; or empty.
    dims : array of float64, shape (n, n_dims)
        Shapes.
    seconds : array of float64, shape (n,)
        Modelled times, s.

    Examples
    --------
    >>> measured = np.array([[64.0], [65.0]])
    >>> points = fit_correction(((0,),), measured, np.array([0.2, 0.2]))
    >>> np.round(corrected_seconds(((0,),), points, np.array([[64.0], [1e9]]), np.ones(2)), 1).tolist()
    [1.2, 1.0]
    """
    if not len(correction):
        return seconds
    points = correction.reshape(-1, len(axes) + 1)
    logarithm = _alike(_octaves(axes, dims), points[:, :-1]) @ points[:, -1]
    return np.asarray(seconds * np.exp(np.clip(logarithm, -MOST_CORRECTED, MOST_CORRECTED)))
