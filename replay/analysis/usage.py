"""How much of each device's resources is in use over time."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from profilers.errors import InvalidInputError
from replay.graph import RESOURCES
from replay.layout import Shared, lay_out
from replay.timeline import Timeline
from replay.walk import Record, events_of, walk

__all__ = ["ResourceUse", "resource_steps", "resource_use"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


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
    known = _known(timeline)
    busy = np.flatnonzero(_takes_time(timeline))
    by_device = np.split(*_grouped(busy, timeline.graph.tasks.device[busy], len(devices)))
    for device, rows in enumerate(by_device if edges[-1] > 0 else ()):
        times, steps = _steps_of(timeline, known, rows)
        if len(times):
            before = np.zeros_like(steps)
            before[1:] = np.cumsum(steps[:-1] * np.diff(times)[:, None], axis=0)
            for resource in range(len(RESOURCES)):
                whole = np.interp(edges, times, before[:, resource])
                use[device, :, resource] = np.diff(whole) * bins / edges[-1]
    return ResourceUse(devices, RESOURCES, edges, np.maximum(use, 0.0))


def resource_steps(timeline: Timeline, device: int) -> tuple[Floats, Floats]:
    """Return the use of one device as a step function: the times at which it changes, and its values from then on.

    A task uses its demand times its rate, and of the compute units what it holds. The timeline holds starts and ends;
    the rates follow from them by the sharing that the engine uses, so they are those at which it was replayed.

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
    rows = np.flatnonzero(_takes_time(timeline) & (timeline.graph.tasks.device == device))
    return _steps_of(timeline, _known(timeline), rows)


def _grouped(rows: Ints, device: Ints, devices: int) -> tuple[Ints, Ints]:
    """Return rows by device, and where those of each but the first begin."""
    order = np.argsort(device, kind="stable")
    return rows[order], np.searchsorted(device[order], np.arange(1, devices))


def _takes_time(timeline: Timeline) -> npt.NDArray[np.bool_]:
    return np.asarray(timeline.graph.on_device() & (timeline.end_ns > timeline.start_ns))


def _steps_of(timeline: Timeline, known: tuple[Shared, Floats, Floats], rows: Ints) -> tuple[Floats, Floats]:
    """Return the steps of the tasks `rows` of one device, given all rows, arrivals, and room for what they do."""
    shared, arrival, work = known
    events = events_of((timeline.start_ns, timeline.end_ns), rows, arrival[rows])
    room = Record(np.zeros(4 * len(rows) + 1), np.zeros((4 * len(rows) + 1, len(RESOURCES))))
    noted = walk(events, shared, work, room)
    return room.at[:noted], room.use[:noted]


def _known(timeline: Timeline) -> tuple[Shared, Floats, Floats]:
    graph = timeline.graph
    return lay_out(graph.tasks, graph.policy), timeline.arrivals_ns(), np.zeros(len(graph.tasks))
