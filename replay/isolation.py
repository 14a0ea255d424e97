"""How long tasks that were measured side by side would take alone: the sharing of the engine, inverted."""

import numpy as np
import numpy.typing as npt

from replay.graph import KernelGraph
from replay.layout import lay_out
from replay.walk import events_of, no_record, walk

__all__ = ["isolated_durations", "measured_beside"]

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


def isolated_durations(graph: KernelGraph) -> Floats:
    """Return how long each task would take alone, by inverting the sharing on the measured timeline.

    The rates of the active tasks depend only on which are active and in which order they came, so the work of a task is
    the integral of its rate over its measured interval. Replaying the result under the same sharing returns that
    interval. Tasks that run alone, or beside others that leave them enough, keep their duration. Where one that was
    measured beside others has a last wave, its place is taken from its duration as it is: see `measured_beside`.
    """
    tasks = graph.tasks
    shares = _measured(graph)
    shared, work = lay_out(tasks, graph.policy), np.zeros(len(tasks))
    for device in np.unique(tasks.device[shares]):
        rows = np.flatnonzero(shares & (tasks.device == device))
        walk(events_of((tasks.measured_start_ns, tasks.measured_end_ns), rows, rows), shared, work, no_record())
    return np.where(shares, work, tasks.duration_ns)


def _measured(graph: KernelGraph) -> Bools:
    tasks = graph.tasks
    with np.errstate(invalid="ignore"):
        return np.asarray(graph.on_device() & (tasks.measured_end_ns > tasks.measured_start_ns))


def measured_beside(graph: KernelGraph) -> tuple[Bools, Bools]:
    """Return which tasks were measured while another ran on their device, and which of them came to it later.

    Where the first had filled the device, the dispatcher let the later in beside it. When its last wave began cannot be
    told from a timeline in which they slowed each other, so such tasks are taken to have none.
    """
    tasks = graph.tasks
    beside, later = np.zeros(len(tasks), dtype=bool), np.zeros(len(tasks), dtype=bool)
    shares = _measured(graph)
    for device in np.unique(tasks.device[shares]):
        rows = np.flatnonzero(shares & (tasks.device == device))
        rows = rows[np.lexsort((rows, tasks.measured_start_ns[rows]))]
        start, end = tasks.measured_start_ns[rows], tasks.measured_end_ns[rows]
        later[rows[1:]] = start[1:] < np.maximum.accumulate(end)[:-1]
        beside[rows[:-1]] = start[1:] < end[:-1]
    return beside | later, later
