"""Why devices idle: what the next task waited for during each gap."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from profilers.compiled import compiled
from replay.analysis.binding import binding_edges
from replay.analysis.cover import sweep_of
from replay.graph import LAUNCH_EDGES, SYNC_EDGES, EdgeKind
from replay.timeline import EXPLAINED_NS, Timeline

__all__ = ["IDLE_CAUSES", "Idle", "idle_by_cause"]

Floats = npt.NDArray[np.float64]

#: Why a device idles:
#: ``host``, the next task waits for its launch, or for the host before it;
#: ``dependency``, it waits for work on another device;
#: ``pause``, the usual time between two tasks that wait for nothing else;
#: ``unexplained``, a longer one, or a start that nothing in the trace explains;
#: ``done``, the device has nothing left to do in this iteration.
IDLE_CAUSES: tuple[str, ...] = ("host", "dependency", "pause", "unexplained", "done")
_HOST, _DEPENDENCY, _PAUSE, _UNEXPLAINED, _DONE = range(len(IDLE_CAUSES))
_CAUSES = len(IDLE_CAUSES)
#: Lags that are time on the host, or on the way from or to it.
_OF_HOST = sorted(
    LAUNCH_EDGES | SYNC_EDGES | {EdgeKind.HOST, EdgeKind.HANDOFF, EdgeKind.AUTOGRAD, EdgeKind.QUEUE, EdgeKind.LOADER}
)


@dataclass(frozen=True)
class Idle:
    """How the timeline's interval divides on each device; `busy_ns`, `earlier_ns` and the causes add up to it.

    Parameters
    ----------
    devices : sequence of (rank, device)
    span_ns : float
        Of the interval.
    busy_ns : array of float64, one a device
        While a task of the iteration is active.
    earlier_ns : array of float64
        While only work of earlier iterations is.
    cause_ns : array of float64, shape (devices, len(IDLE_CAUSES))
    slowed_ns : array of float64
        By how much contention made the tasks longer that end in the interval, all added up: time in which the device
        is not idle, and can exceed the interval where many tasks run at once.
    """

    devices: tuple[tuple[int, int], ...]
    span_ns: float
    busy_ns: Floats
    earlier_ns: Floats
    cause_ns: Floats
    slowed_ns: Floats


def idle_by_cause(timeline: Timeline) -> Idle:
    """Return why each device idles in the timeline's interval.

    Each gap ends with the start of a task. What this task waited for is followed back to the beginning of the gap:
    calls on the host, the time between them, launches and returns from synchronisation count as host; work of another
    device as dependency; lags between device tasks as pause up to 10 us, else as unexplained.

    Parameters
    ----------
    timeline : Timeline

    Returns
    -------
    Idle
    """
    graph, edges = timeline.graph, timeline.graph.edges
    tasks, devices = graph.tasks, len(graph.devices)
    sweep = sweep_of(timeline, graph.on_device())
    lag = np.where(edges.lag_ns > EXPLAINED_NS, _UNEXPLAINED, _PAUSE)
    # A copy that the host prepares inside its call; other gaps only stand for the host.
    prepared = (edges.kind == EdgeKind.GAP) & edges.from_start
    lag[np.isin(edges.kind, _OF_HOST) | prepared] = _HOST
    on_host = (tasks.device < 0) & (tasks.lane >= 0)
    work = np.where(on_host, _HOST, _DEPENDENCY)
    release = np.where(on_host, _HOST, _UNEXPLAINED)
    times = (timeline.start_ns, timeline.end_ns, binding_edges(timeline))
    busy, earlier, causes = _gaps(
        (sweep.by_start, tasks.device, tasks.own, devices, timeline.begin_ns, timeline.until_ns),
        times,
        (edges.source, edges.lag_ns, edges.from_start),
        (work, lag, release),
    )
    mine = graph.on_device() & tasks.own & (timeline.end_ns > timeline.begin_ns)
    mine &= timeline.end_ns <= timeline.until_ns
    slowed = np.maximum(timeline.end_ns - timeline.start_ns - tasks.duration_ns, 0.0)[mine]
    total = np.bincount(tasks.device[mine], weights=slowed, minlength=devices)
    return Idle(graph.devices, timeline.span_ns, busy, earlier, causes, np.asarray(total, dtype=np.float64))


@compiled
def _gaps(order, times, edges, of):  # type: ignore[no-untyped-def]
    """Go through the tasks by start; a task that starts after all before it on its device have ended ends a gap."""
    by_start, device, own, devices, first, makespan = order
    start, end, binding = times
    reach, reach_own = np.full(devices, first), np.full(devices, first)
    either, busy, causes = np.zeros(devices), np.zeros(devices), np.zeros((devices, _CAUSES))
    for i in range(len(by_start)):
        task = by_start[i]
        d, now, until = device[task], min(start[task], makespan), min(end[task], makespan)
        if now > reach[d]:
            _explain(task, reach[d], causes[d], (start, end, binding, makespan), edges, of)
        either[d] += max(until - max(now, reach[d]), 0.0)
        reach[d] = max(reach[d], until)
        if own[task]:
            busy[d] += max(until - max(now, reach_own[d]), 0.0)
            reach_own[d] = max(reach_own[d], until)
    for d in range(devices):
        causes[d, _DONE] += makespan - reach[d]
    return busy, either - busy, causes


@compiled
def _explain(task, begin, causes, times, edges, of):  # type: ignore[no-untyped-def]
    """Add the gap from `begin` to the start of `task` to its causes, following back what the task waited for."""
    start, end, binding, makespan = times
    source, lag, from_start = edges
    work, cause_of_lag, release = of
    now = min(start[task], makespan)
    while now > begin:
        e = binding[task]
        if e < 0:
            causes[release[task]] += now - begin
            return
        here = source[e]
        left = start[here] if from_start[e] else end[here]
        arrival = max(min(left + lag[e], now), begin)
        causes[_UNEXPLAINED] += now - arrival
        left = max(min(left, arrival), begin)
        causes[cause_of_lag[e]] += arrival - left
        now = left
        if not from_start[e]:
            left = max(min(start[here], now), begin)
            causes[work[here]] += now - left
            now = left
        task = here
