"""A search over few parameters near their shipped values, for fits to traces and to recordings.

A point is a tuple of whole powers: each parameter is its shipped value times `STEP` to its power. So predictions at a
point can be kept, and fits to parts of the data ask for the same points again.

>>> least_cost(lambda powers: float((powers[0] - 3) ** 2 + powers[1] ** 2), 2)
(3, 0)
"""

from collections.abc import Callable, Mapping

import numpy as np

from replay.calibration.parameters import Parameters

#: Powers of the fitted parameters.
Point = tuple[int, ...]
#: Factor between neighbouring values of a parameter, and largest power.
STEP, _FARTHEST = 1.15, 16
#: Widths of steps of a search, in powers.
_WIDTHS = (4, 2, 1)


def values_at(point: Point, bounds: Mapping[str, tuple[float, float]], parameters: Parameters) -> dict[str, float]:
    """Return the parameters of `bounds` at a point, within their bounds.

    Parameters
    ----------
    point : tuple of int
        A power for each parameter of `bounds`.
    bounds : mapping of str to (float, float)
        Least and largest value of each fitted parameter.
    parameters : Parameters
        Parameters whose values have the power 0.
    """
    values = {}
    for power, (name, (low, high)) in zip(point, bounds.items(), strict=True):
        values[name] = float(f"{min(max(parameters[name] * STEP**power, low), high):.5g}")
    return values


def least_cost(cost: Callable[[Point], float], n: int, start: Point = ()) -> Point:
    """Return the point of least cost by compass search: along one parameter at a time, in ever smaller steps.

    Parameters
    ----------
    cost : callable
        Function from a point to its cost.
    n : int
        Number of parameters.
    start : tuple of int, optional
        First point; by default the shipped values.

    Notes
    -----
    Kolda, Lewis and Torczon, SIAM Review 45 (2003), 385. It is deterministic: parameters are tried in order, up before
    down.
    """
    best = start or (0,) * n
    lowest = cost(best)
    for width in _WIDTHS:
        moved = True
        while moved:
            moved = False
            for axis in range(n):
                for step in (width, -width):
                    there = neighbour(best, axis, step)
                    if abs(there[axis]) <= _FARTHEST and (found := cost(there)) < lowest:
                        best, lowest, moved = there, found, True
                        break
    return best


def neighbour(point: Point, axis: int, step: int) -> Point:
    """Return the point that is `step` powers farther along one parameter."""
    return (*point[:axis], point[axis] + step, *point[axis + 1 :])


def prior(point: Point) -> float:
    """Return the cost of the distance from the shipped values: half the square of a normal deviate, summed.

    Twice the shipped value is one standard deviation.
    """
    return 0.5 * float(np.square(np.array(point) * np.log(STEP) / np.log(2.0)).sum())
