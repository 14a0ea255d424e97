"""How much of each device's resources is in use over time."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from profilers.compiled import compiled
from profilers.errors import InvalidInputError
from replay.analysis.cover import sweep_of
from replay.graph import RESOURCES
from replay.timeline import Timeline

__all__ = ["ResourceUse", "resource_steps", "resource_use"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

#: What fits on a device, with room for rounding.
_ROOM = 1.0 + 1e-9


@dataclass(frozen=True)
class ResourceUse:
    """Mean use in equal intervals of time, in shares of the device.

    Parameters
    ----------
    devices : sequence of (rank, device)
    resources : sequence of str
    edges_ns : array of float64, shape (bins + 1,)
        From the graph's origin.
    use : array of float64, shape (devices, bins, resources)
    """

    devices: tuple[tuple[int, int], ...]
    resources: tuple[str, ...]
    edges_ns: Floats
    use: Floats


def resource_use(timeline: Timeline, bins: int = 200) -> ResourceUse:
    """Return the mean use of every resource in `bins` equal intervals from the origin to the iteration's end.

    Parameters
    ----------
    timeline : Timeline
    bins : int

    Returns
    -------
    ResourceUse
        The means of what `resource_steps` returns.

    Raises
    ------
    InvalidInputError
        `bins` is not above zero.
    """
    if bins < 1:
        raise InvalidInputError(f"{bins} intervals: give one or more")
    devices = timeline.graph.devices
    edges = np.linspace(0.0, timeline.makespan_ns, bins + 1)
    use = np.zeros((len(devices), bins, len(RESOURCES)))
    for device, (times, steps) in enumerate(_steps_of_all(timeline) if edges[-1] > 0 else ()):
        if len(times):
            before = np.zeros_like(steps)
            before[1:] = np.cumsum(steps[:-1] * np.diff(times)[:, None], axis=0)
            for resource in range(len(RESOURCES)):
                whole = np.interp(edges, times, before[:, resource])
                use[device, :, resource] = np.diff(whole) * bins / edges[-1]
    return ResourceUse(devices, RESOURCES, edges, np.maximum(use, 0.0))


def resource_steps(timeline: Timeline, device: int) -> tuple[Floats, Floats]:
    """Return the use of one device as a step function: the times at which it changes, and its values from then on.

    A task uses its demand times its rate. The timeline holds starts and ends, but no rates. While the demands of all
    that is active fit on the device, each rate is 1; the rest of a task's isolated duration is spread evenly over the
    time in which they do not. So what a task uses in all is exact, and so is its use at any time where what is beside
    it, while they do not fit, does not change; where it does, a use is a mean over it and can exceed 100 %.

    Parameters
    ----------
    timeline : Timeline
    device : int
        Row of `KernelGraph.devices`.

    Returns
    -------
    times : array of float64, shape (k,)
        Not decreasing.
    use : array of float64, shape (k, len(RESOURCES))
        In shares of the device; zero from the last time on.

    Raises
    ------
    InvalidInputError
        The graph has no such device.
    """
    if not 0 <= device < len(timeline.graph.devices):
        raise InvalidInputError(f"no device {device}: the graph has {len(timeline.graph.devices)}")
    rows = timeline.graph.on_device() & (timeline.graph.tasks.device == device)
    sweep = sweep_of(timeline, rows)
    return _steps(sweep.by_start, sweep.by_end, timeline)


def _steps_of_all(timeline: Timeline) -> Iterator[tuple[Floats, Floats]]:
    """Yield the steps of every device, sorting its tasks once for all."""
    device = timeline.graph.tasks.device
    sweep = sweep_of(timeline, timeline.graph.on_device())
    orders = [rows[np.argsort(device[rows], kind="stable")] for rows in (sweep.by_start, sweep.by_end)]
    bounds = np.searchsorted(device[orders[0]], np.arange(len(timeline.graph.devices) + 1))
    for first, last in pairwise(bounds.tolist()):
        yield _steps(orders[0][first:last], orders[1][first:last], timeline)


def _steps(by_start: Ints, by_end: Ints, timeline: Timeline) -> tuple[Floats, Floats]:
    tasks = timeline.graph.tasks
    place = np.zeros(len(tasks), dtype=np.int64)
    place[by_start] = np.arange(len(by_start))
    times = (timeline.start_ns[by_start], timeline.end_ns[by_end], place[by_end])
    took = timeline.end_ns[by_start] - timeline.start_ns[by_start]
    demand = np.ascontiguousarray(tasks.demand[by_start], dtype=np.float64)
    short = _short(times, demand)
    alone, free = np.minimum(tasks.duration_ns[by_start], took), took - short
    # While all fit, at full rate; only what has less work than that fills has a lower rate then, and none else.
    fits = np.divide(alone, free, out=np.ones_like(free), where=free > 0).clip(0.0, 1.0)
    rest = np.divide(alone - free, short, out=np.zeros_like(short), where=short > 0).clip(0.0, 1.0)
    at, use = _added(times, demand, (fits, rest))
    return at, use


@compiled
def _short(times, demand):  # type: ignore[no-untyped-def]
    """Return for each task for how long it is active while the demands of all active tasks do not fit."""
    start, end, ends = times
    n, resources = demand.shape
    total, since, short = np.zeros(resources), np.zeros(n), np.zeros(n)
    so_far, before, full, i = 0.0, 0.0, False, 0
    for j in range(n):
        while i < n and start[i] < end[j]:
            so_far += start[i] - before if full else 0.0
            before, since[i], full = start[i], so_far, False
            for r in range(resources):
                total[r] += demand[i, r]
                full |= total[r] > _ROOM
            i += 1
        so_far += end[j] - before if full else 0.0
        before, full = end[j], False
        short[ends[j]] = so_far - since[ends[j]]
        for r in range(resources):
            total[r] = 0.0 if i == j + 1 else total[r] - demand[ends[j], r]
            full |= total[r] > _ROOM
    return short


@compiled
def _added(times, demand, rates):  # type: ignore[no-untyped-def]
    """Return the changes of the sum of what active tasks use, and the sums from each on."""
    start, end, ends = times
    fits, rest = rates
    n, resources = demand.shape
    total, free, scarce = np.zeros(resources), np.zeros(resources), np.zeros(resources)
    at, use = np.zeros(2 * n), np.zeros((2 * n, resources))
    i = 0
    for j in range(n):
        begins = True
        while begins:
            begins = i < n and start[i] < end[j]
            task, sign, k = (i, 1.0, i + j) if begins else (ends[j], -1.0, i + j)
            at[k] = start[i] if begins else end[j]
            i += 1 if begins else 0
            full = False
            for r in range(resources):
                if not begins and i == j + 1:
                    total[r], free[r], scarce[r] = 0.0, 0.0, 0.0
                else:
                    total[r] += sign * demand[task, r]
                    free[r] += sign * demand[task, r] * fits[task]
                    scarce[r] += sign * demand[task, r] * rest[task]
                full |= total[r] > _ROOM
            for r in range(resources):
                use[k, r] = max(scarce[r] if full else free[r], 0.0)
    return at, use
