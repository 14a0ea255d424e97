"""How much of each device's resources is in use over time."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from profilers.compiled import compiled
from profilers.errors import InvalidInputError
from replay.graph import RESOURCES
from replay.timeline import Timeline

__all__ = ["ResourceUse", "resource_steps", "resource_use"]

Floats = npt.NDArray[np.float64]


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

    A task uses its demand times its rate. The timeline holds no rates, so each task's mean rate, its isolated
    duration over the time that it took, stands for its rate throughout: what a task uses in all is exact, and so is
    the use where the rate did not change, but within a task that was slowed for a part of its time it is spread over
    the whole of it.

    Parameters
    ----------
    timeline : Timeline
    bins : int

    Raises
    ------
    InvalidInputError
        `bins` is not above zero.
    """
    if bins < 1:
        raise InvalidInputError(f"{bins} intervals: give one or more")
    graph = timeline.graph
    rows, intensity = _using(timeline)
    edges = np.linspace(0.0, timeline.makespan_ns, bins + 1)
    use = np.zeros((len(graph.devices), bins, len(RESOURCES)))
    if len(rows) and timeline.makespan_ns > 0:
        times = (timeline.start_ns[rows], timeline.end_ns[rows])
        _spread(use, edges, times, graph.tasks.device[rows], intensity)
    return ResourceUse(graph.devices, RESOURCES, edges, use)


def resource_steps(timeline: Timeline, device: int) -> tuple[Floats, Floats]:
    """Return the use of one device as a step function: the times at which it changes, and its values from then on.

    Parameters
    ----------
    timeline : Timeline
    device : int
        Row of `KernelGraph.devices`.

    Returns
    -------
    times : array of float64, shape (k,)
        Increasing.
    use : array of float64, shape (k, len(RESOURCES))
        As in `resource_use`; zero from the last time on.

    Raises
    ------
    InvalidInputError
        The graph has no such device.
    """
    if not 0 <= device < len(timeline.graph.devices):
        raise InvalidInputError(f"no device {device}: the graph has {len(timeline.graph.devices)}")
    rows, intensity = _using(timeline)
    mine = timeline.graph.tasks.device[rows] == device
    rows, intensity = rows[mine], intensity[mine]
    times, place = np.unique(np.concatenate([timeline.start_ns[rows], timeline.end_ns[rows]]), return_inverse=True)
    change = np.zeros((len(times), len(RESOURCES)))
    np.add.at(change, place, np.concatenate([intensity, -intensity]))
    use = np.maximum(np.cumsum(change, axis=0), 0.0)
    use[-1:] = 0.0
    return times, use


def _using(timeline: Timeline) -> tuple[npt.NDArray[np.intp], Floats]:
    """Return the tasks that use a device, and what each uses on average."""
    tasks = timeline.graph.tasks
    took = timeline.end_ns - timeline.start_ns
    rows = np.flatnonzero(timeline.graph.on_device() & (took > 0))
    rate = np.minimum(tasks.duration_ns[rows] / took[rows], 1.0)
    return rows, tasks.demand[rows] * rate[:, None]


@compiled
def _spread(use, edges, times, device, intensity):  # type: ignore[no-untyped-def]
    """Add each task to the intervals that it covers, by the share of each that it covers."""
    start, end = times
    bins = use.shape[1]
    width = edges[-1] / bins
    for task in range(len(start)):
        first = min(max(int(start[task] / width), 0), bins - 1)
        last = min(max(int(end[task] / width), 0), bins - 1)
        for k in range(first, last + 1):
            covered = (min(end[task], edges[k + 1]) - max(start[task], edges[k])) / width
            if covered > 0.0:
                for r in range(use.shape[2]):
                    use[device[task], k, r] += covered * intensity[task, r]
