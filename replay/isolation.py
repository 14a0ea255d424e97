"""How long tasks that were measured side by side would take alone: the sharing of the engine, inverted."""

import numpy as np
import numpy.typing as npt

from replay.graph import KernelGraph
from replay.layout import lay_out
from replay.walk import events_of, no_record, walk

__all__ = ["isolated_durations", "let_in"]

Floats = npt.NDArray[np.float64]
#: Where its last wave begins depends on a task's duration, so durations are looked for in steps; after the first few, by
#: half of what is missing, since tasks in turn can shift each other's last wave to and fro.
_STEPS, _WHOLE_STEPS = 24, 6
_CLOSE = 1e-9


def isolated_durations(graph: KernelGraph) -> Floats:
    """Return how long each task would take alone, by inverting the sharing on the measured timeline.

    The rates of the active tasks depend only on which are active, in which order they came, and which are in their last
    wave, so the work of a task is the integral of its rate over its measured interval. Replaying the result under the
    same sharing returns that interval. Tasks that run alone, or beside others that leave them enough, keep their
    duration.
    """
    tasks = graph.tasks
    shares = _measured(graph)
    duration = tasks.duration_ns.copy()
    devices = np.unique(tasks.device[shares])
    for step in range(_STEPS):
        guess = graph.with_tasks(duration_ns=duration)
        shared, work = lay_out(guess.tasks, graph.policy), np.zeros(len(tasks))
        for device in devices:
            rows = np.flatnonzero(shares & (tasks.device == device))
            events = events_of((tasks.measured_start_ns, tasks.measured_end_ns), rows, rows)
            walk(events, shared, work, no_record())
        found = np.where(shares, work, duration)
        near = np.abs(found - duration) <= _CLOSE * np.maximum(duration, 1.0)
        duration = found if step < _WHOLE_STEPS else (found + duration) / 2
        if near.all() or not (shared.rows["resident"][shares] > 0).any():
            break
    return duration


def _measured(graph: KernelGraph) -> npt.NDArray[np.bool_]:
    tasks = graph.tasks
    with np.errstate(invalid="ignore"):
        return np.asarray(graph.on_device() & (tasks.measured_end_ns > tasks.measured_start_ns))


def let_in(graph: KernelGraph) -> npt.NDArray[np.bool_]:
    """Return which tasks were measured to start while another ran on their device.

    Where that one had filled the device, the dispatcher let them in beside it.
    """
    tasks = graph.tasks
    beside = np.zeros(len(tasks), dtype=bool)
    shares = _measured(graph)
    for device in np.unique(tasks.device[shares]):
        rows = np.flatnonzero(shares & (tasks.device == device))
        rows = rows[np.lexsort((rows, tasks.measured_start_ns[rows]))]
        reach = np.maximum.accumulate(tasks.measured_end_ns[rows])
        beside[rows[1:]] = tasks.measured_start_ns[rows[1:]] < reach[:-1]
    return beside
