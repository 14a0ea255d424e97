"""How long tasks that were measured side by side would take alone: the sharing of the engine, inverted."""

from typing import Any

import numpy as np
import numpy.typing as npt

from profilers.compiled import bare
from replay.graph import KernelGraph
from replay.layout import lay_out
from replay.sharing import share

__all__ = ["isolated_durations", "let_in"]

Floats = npt.NDArray[np.float64]
#: Where its last wave begins depends on a task's duration, so durations are looked for in steps.
_STEPS = 20
_CLOSE = 1e-9


@bare
def _work(order, begins, at, shared, priority, active, work):  # type: ignore[no-untyped-def]
    """Add up, for the tasks of one device, rate times time over their measured intervals."""
    rows = shared.rows
    count = 0
    before = 0.0
    for k in range(len(order)):
        task, now = order[k], at[k]
        remaining = now - before
        while count > 0 and remaining > 0.0:
            short = share(shared, active, 0, count)
            step = remaining
            for i in range(count):
                rate = rows[active[i]].rate
                beyond = rows[active[i]].left - rows[active[i]].resident
                if short and beyond > 0.0 and rate > 0.0:
                    step = min(step, max(beyond / rate, 1.0))  # at most a step a ns
            for i in range(count):
                work[active[i]] += rows[active[i]].rate * step
                rows[active[i]].left -= rows[active[i]].rate * step
            remaining -= step
        before = now
        i = count
        if begins[k]:
            while i > 0 and priority[active[i - 1]] < priority[task]:
                active[i] = active[i - 1]
                i -= 1
            active[i] = task
            count += 1
        else:
            i = 0
            while active[i] != task:
                i += 1
            count -= 1
            for j in range(i, count):
                active[j] = active[j + 1]


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
    for _ in range(_STEPS):
        guess = graph.with_tasks(duration_ns=duration)
        shared, work = lay_out(guess.tasks, graph.policy), np.zeros(len(tasks))
        for device in devices:
            rows = np.flatnonzero(shares & (tasks.device == device))
            _work(*_in_order(graph, rows), shared, tasks.priority, np.zeros(len(rows) + 1, np.int64), work)
        found = np.where(shares, work, duration)
        near = np.abs(found - duration) <= _CLOSE * np.maximum(duration, 1.0)
        duration = found
        if near.all() or not (shared.rows["resident"][shares] > 0).any():
            break
    return duration


def _measured(graph: KernelGraph) -> npt.NDArray[np.bool_]:
    tasks = graph.tasks
    with np.errstate(invalid="ignore"):
        return np.asarray(graph.on_device() & (tasks.measured_end_ns > tasks.measured_start_ns))


def _in_order(graph: KernelGraph, rows: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[Any], Floats]:
    """Return the starts and ends of tasks in the order of time: of which, whether it is a start, and when."""
    both = np.concatenate([rows, rows])
    begins = np.arange(len(both)) < len(rows)
    at = np.where(begins, graph.tasks.measured_start_ns[both], graph.tasks.measured_end_ns[both])
    order = np.lexsort((both, begins, at))
    return both[order], begins[order], at[order]


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
