"""Max-min fair sharing of a device among the tasks that are active on it."""

import numpy as np
import numpy.typing as npt

from profilers.compiled import compiled, inlined
from replay.graph import RESOURCES

__all__ = ["fair_rates", "share", "used"]

_EPSILON = 1e-12
#: Known when compiling, so that loops over them unroll.
_RESOURCES = len(RESOURCES)


@inlined
def share(active, first, count, demand, uses, rate, scratch):  # type: ignore[no-untyped-def]
    """Write the rate of each of the `count` tasks in `active` from `first` on into `rate` (indexed by task).

    Water-filling: all rates rise together; a task stops at rate 1 or when a resource that it uses is full.
    Every capacity is 1, so no resource is ever over 100 %. `uses` says by bits which resources a task demands.
    `scratch` has shape (2, resources): what is left of each, and what the tasks that still rise ask of it.
    """
    for r in range(_RESOURCES):
        scratch[0, r], scratch[1, r] = 1.0, 0.0
    for i in range(first, first + count):
        rate[active[i]] = -1.0
        for r in range(_RESOURCES):
            scratch[1, r] += demand[active[i], r]
    level, moving = 0.0, count
    while moving > 0:
        rise = 1.0 - level
        for r in range(_RESOURCES):
            if scratch[1, r] > 0.0 and scratch[1, r] * rise > scratch[0, r]:
                rise = max(scratch[0, r], 0.0) / scratch[1, r]
        level += rise
        full = 0
        for r in range(_RESOURCES):
            scratch[0, r] -= rise * scratch[1, r]
            scratch[1, r] = 0.0
            full |= (scratch[0, r] <= _EPSILON) << r
        if level >= 1.0 - _EPSILON:
            full = -1
        moving = _stop(active, first, count, demand, uses, rate, scratch, level, full)


@inlined
def _stop(active, first, count, demand, uses, rate, scratch, level, full):  # type: ignore[no-untyped-def]
    """Fix the rate of every task that uses a full resource (-1: of all); add up and count those that still rise."""
    moving = 0
    for i in range(first, first + count):
        task = active[i]
        if rate[task] >= 0.0:
            continue
        if full == -1 or uses[task] & full:
            rate[task] = min(level, 1.0)
            continue
        moving += 1
        for r in range(_RESOURCES):
            scratch[1, r] += demand[task, r]
    return moving


def used(demand: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Return for each task the resources that it demands, a bit each."""
    bits = np.zeros(len(demand), dtype=np.int64)
    for resource in range(demand.shape[1]):
        bits |= (demand[:, resource] > 0).astype(np.int64) << resource
    return bits


@compiled
def _share_all(demand, uses, rate):  # type: ignore[no-untyped-def]
    share(np.arange(len(demand)), 0, len(demand), demand, uses, rate, np.ones((2, _RESOURCES)))


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
    every = np.zeros((len(demand), _RESOURCES))
    every[:, : demand.shape[1]] = demand
    _share_all(every, used(every), rate)
    return rate
