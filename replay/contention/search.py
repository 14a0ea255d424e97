"""Searches for the least cost in the unit cube: the engine's times are no smooth function of a parameter."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares
from scipy.stats import qmc

__all__ = ["least_cost", "least_residuals", "spread_points"]

Floats = npt.NDArray[np.float64]
#: Step of a derivative: wide, since times have kinks.
_STEP = 0.01


def spread_points(count: int, axes: int) -> Floats:
    """Return points that fill the unit cube evenly (Sobol), the same each time.

    Examples
    --------
    >>> spread_points(4, 2).shape
    (4, 2)
    """
    return np.asarray(qmc.Sobol(axes, scramble=False).random(2 * count)[count:], dtype=np.float64)


def least_residuals(residuals: Callable[[Floats], Floats], start: Floats, *, rounds: int = 8) -> Floats:
    """Return where in the unit cube the sum of squares is least near `start`, by its derivatives, in so many rounds.

    Examples
    --------
    >>> least_residuals(lambda x: x - np.array([0.3, 0.8]), np.array([0.5, 0.5])).round(3).tolist()
    [0.3, 0.8]
    """
    inside = np.clip(start, 1e-6, 1 - 1e-6)
    found = least_squares(
        lambda x: residuals(np.clip(x, 0.0, 1.0)),
        inside,
        bounds=(0.0, 1.0),
        diff_step=_STEP / np.maximum(inside, 0.1),
        max_nfev=rounds,
    )
    return np.asarray(np.clip(found.x, 0.0, 1.0), dtype=np.float64)


def least_cost(
    cost: Callable[[Floats], float], start: Floats, *, step: float = 0.25, least: float = 0.015
) -> tuple[Floats, float]:
    """Return where in the unit cube a cost is least, by steps along each axis that are halved where none helps.

    Parameters
    ----------
    cost : callable
        Of a point.
    start : array of float64, shape (n,)
        Within 0 to 1.
    step, least : float
        The first and the last width of a step.

    Returns
    -------
    (array of float64, float)
        The point, and its cost.

    Notes
    -----
    Compass search: Kolda, Lewis and Torczon, SIAM Review 45 (2003), 385. Deterministic: axes are taken in order, up
    before down.

    Examples
    --------
    >>> found, least = least_cost(lambda x: float(abs(x[0] - 0.3) + abs(x[1] - 0.8)), np.array([0.5, 0.5]))
    >>> bool(abs(found[0] - 0.3) < 0.02), bool(abs(found[1] - 0.8) < 0.02)
    (True, True)
    """
    at, found = np.clip(start, 0.0, 1.0), cost(np.clip(start, 0.0, 1.0))
    while step >= least:
        moved = False
        for axis in range(len(at)):
            for way in (step, -step):
                tried = at.copy()
                tried[axis] = np.clip(at[axis] + way, 0.0, 1.0)
                if tried[axis] != at[axis] and (new := cost(tried)) < found:
                    at, found, moved = tried, new, True
                    break
        if not moved:
            step /= 2
    return at, found
