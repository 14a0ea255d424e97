"""Max-min fair sharing of a device among the tasks that are active on it."""

import numpy as np
import numpy.typing as npt

from profilers.compiled import compiled

__all__ = ["fair_rates", "share"]

_EPSILON = 1e-12


@compiled
def share(active, demand, rate):  # type: ignore[no-untyped-def]
    """Write the rate of each of the tasks in `active` into `rate` (indexed by task).

    Water-filling: all rates rise together; a task stops at rate 1 or when a resource that it uses is full.
    Every capacity is 1, so no resource is ever over 100 %.
    """
    resources = demand.shape[1]
    left = np.ones(resources)
    level = 0.0
    moving = len(active)
    for task in active:
        rate[task] = -1.0
    while moving > 0:
        rise = 1.0 - level
        for r in range(resources):
            total = 0.0
            for task in active:
                if rate[task] < 0.0:
                    total += demand[task, r]
            if total > 0.0 and left[r] / total < rise:
                rise = left[r] / total
        level += rise
        for r in range(resources):
            for task in active:
                if rate[task] < 0.0:
                    left[r] -= rise * demand[task, r]
        moving = _stop(active, demand, rate, left, level)


@compiled
def _stop(active, demand, rate, left, level):  # type: ignore[no-untyped-def]
    """Fix the rate of every task that has reached 1 or uses a full resource; return how many still rise."""
    moving = 0
    for task in active:
        if rate[task] >= 0.0:
            continue
        full = level >= 1.0 - _EPSILON
        for r in range(demand.shape[1]):
            if demand[task, r] > 0.0 and left[r] <= _EPSILON:
                full = True
        if full:
            rate[task] = min(level, 1.0)
        else:
            moving += 1
    return moving


def fair_rates(demand: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the max-min fair rate in 0..1 of each of n tasks that run together on one device.

    Parameters
    ----------
    demand : array, shape (n, resources)
        Share of each resource, in 0..1, that a task uses when it runs alone.

    Notes
    -----
    Progressive filling, Bertsekas and Gallager, Data Networks, 2nd edition, section 6.5.2.

    Examples
    --------
    >>> fair_rates(np.array([[1.0, 0.2], [1.0, 0.2]]))
    array([0.5, 0.5])
    >>> fair_rates(np.array([[0.9, 0.1], [0.1, 0.9]]))
    array([1., 1.])
    """
    rate = np.zeros(len(demand))
    share(np.arange(len(demand)), np.ascontiguousarray(demand, dtype=np.float64), rate)
    return rate
