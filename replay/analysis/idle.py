"""Time that devices idle, communication that is exposed, and compute units in use.

How long tasks of a label are active, and how long they alone, per device: one sweep over a timeline.

How much of the communication and of the copies hides behind compute, per device.

Why devices idle: what the next task waited for during each gap.

How much of each device's resources is in use over time.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from profilers.errors import InvalidInputError
from profilers.trace.arrays import Floats, Ints
from profilers.trace.compiled import compiled
from replay.analysis.critical_path import binding_edges
from replay.engine.engine import events_of, integrate_rates, usage_log
from replay.engine.layout import SharingState, lay_out
from replay.engine.timeline import EXPLAINED_NS, Timeline
from replay.graph.graph import LAUNCH_EDGES, RESOURCES, SYNC_EDGES, EdgeKind, TaskKind


@dataclass(frozen=True)
class Sweep:
    """Tasks in the order in which they start, and in which they end."""

    timeline: Timeline
    by_start: Ints
    by_end: Ints


@dataclass(frozen=True)
class Cover:
    """Times in ns, each moment counted once.

    Parameters
    ----------
    active : array, shape (devices, labels)
        While at least one task of the label is active.
    alone : array, shape (devices, labels)
        While tasks of the label are active, and none of another.
    busy : array, shape (devices,)
        While any task is active.
    """

    active: Floats
    alone: Floats
    busy: Floats


def sweep_of(timeline: Timeline, rows: npt.NDArray[np.bool_]) -> Sweep:
    """Return the tasks in `rows` that take time, in the orders that a sweep needs."""
    chosen = np.flatnonzero(rows & (timeline.end_ns > timeline.start_ns))
    start, end = timeline.start_ns[chosen], timeline.end_ns[chosen]
    return Sweep(timeline, chosen[np.argsort(start, kind="stable")], chosen[np.argsort(end, kind="stable")])


def cover(sweep: Sweep, label: Ints, labels: int) -> Cover:
    """Return how long each label covers each device.

    Parameters
    ----------
    sweep : Sweep
        Of tasks on devices.
    label : array of int64, one a task of the graph
    labels : int
        How many there are.
    """
    line = sweep.timeline
    devices = len(line.graph.devices)
    orders = (sweep.by_start, sweep.by_end, line.start_ns, line.end_ns)
    return Cover(*_cover(orders, line.graph.tasks.device, label, devices, labels))


@compiled
def _cover(orders, device, label, devices, labels):  # type: ignore[no-untyped-def]
    by_start, by_end, start, end = orders
    active, alone = np.zeros((devices, labels)), np.zeros((devices, labels))
    busy, before = np.zeros(devices), np.zeros(devices)
    count = np.zeros((devices, labels), np.int64)
    since = np.zeros((devices, labels))
    # Of the labels that are active on a device: how many, and the sum of their numbers, which of one is the label.
    many, total = np.zeros(devices, np.int64), np.zeros(devices, np.int64)
    i = 0
    for j in range(len(by_end)):
        while i < len(by_start) and start[by_start[i]] < end[by_end[j]]:
            task = by_start[i]
            d, k, now = device[task], label[task], start[task]
            if many[d] == 1:
                alone[d, total[d]] += now - before[d]
            if many[d] > 0:
                busy[d] += now - before[d]
            before[d] = now
            if count[d, k] == 0:
                many[d] += 1
                total[d] += k
                since[d, k] = now
            count[d, k] += 1
            i += 1
        task = by_end[j]
        d, k, now = device[task], label[task], end[task]
        if many[d] == 1:
            alone[d, total[d]] += now - before[d]
        busy[d] += now - before[d]
        before[d] = now
        count[d, k] -= 1
        if count[d, k] == 0:
            many[d] -= 1
            total[d] -= k
            active[d, k] += now - since[d, k]
    return active, alone, busy


_COMPUTE, _COMMUNICATION, _COPY = range(3)


@dataclass(frozen=True)
class Exposure:
    """Times of the iterations' own work in ns, one a device, each moment of the timeline's interval counted once.

    Parameters
    ----------
    devices : sequence of (rank, device)
    span_ns : array of float64
        From the start of the first task to the end of the last.
    busy_ns : array of float64
        While any task is active.
    compute_ns, communication_ns, copy_ns : array of float64
        While a kernel, a collective, a copy is active.
    exposed_ns : array of float64
        While collectives are active and nothing else is.
    beside_compute_ns : array of float64
        While a collective and a kernel are both active.
    exposed_copy_ns : array of float64
        While copies are active and nothing else is.
    """

    devices: tuple[tuple[int, int], ...]
    span_ns: Floats
    busy_ns: Floats
    compute_ns: Floats
    communication_ns: Floats
    copy_ns: Floats
    exposed_ns: Floats
    beside_compute_ns: Floats
    exposed_copy_ns: Floats

    @property
    def hidden_ns(self) -> Floats:
        """While a collective and something else are both active."""
        return self.communication_ns - self.exposed_ns


def exposure(timeline: Timeline) -> Exposure:
    """Return what hides behind what on each device.

    A collective of several ranks is active from when all have arrived; the wait before that is idle time of the ranks
    that came early (`replay.analysis.idle`).

    Parameters
    ----------
    timeline : Timeline

    Returns
    -------
    Exposure
    """
    graph, timeline = timeline.graph, timeline.clipped()
    tasks = graph.tasks
    sweep = sweep_of(timeline, graph.on_device() & tasks.own)
    label = np.full(len(tasks), _COMPUTE)
    label[tasks.kind == TaskKind.COLLECTIVE] = _COMMUNICATION
    label[tasks.kind == TaskKind.COPY] = _COPY
    found = cover(sweep, label, 3)
    active, alone = found.active.T, found.alone.T
    first, last = np.full(len(graph.devices), np.inf), np.full(len(graph.devices), -np.inf)
    np.minimum.at(first, tasks.device[sweep.by_start], timeline.start_ns[sweep.by_start])
    np.maximum.at(last, tasks.device[sweep.by_end], timeline.end_ns[sweep.by_end])
    return Exposure(
        graph.devices,
        np.where(last > first, last - first, 0.0),
        found.busy,
        active[_COMPUTE],
        active[_COMMUNICATION],
        active[_COPY],
        alone[_COMMUNICATION],
        active[_COMPUTE] + active[_COMMUNICATION] - (found.busy - alone[_COPY]),
        alone[_COPY],
    )


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
    known = _usage_inputs(timeline)
    busy = np.flatnonzero(_takes_time(timeline))
    by_device = np.split(*_grouped(busy, timeline.graph.tasks.device[busy], len(devices)))
    for device, rows in enumerate(by_device if edges[-1] > 0 else ()):
        times, steps = _usage_of(timeline, known, rows)
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
    return _usage_of(timeline, _usage_inputs(timeline), rows)


def _grouped(rows: Ints, device: Ints, devices: int) -> tuple[Ints, Ints]:
    """Return rows by device, and where those of each but the first begin."""
    order = np.argsort(device, kind="stable")
    return rows[order], np.searchsorted(device[order], np.arange(1, devices))


def _takes_time(timeline: Timeline) -> npt.NDArray[np.bool_]:
    return np.asarray(timeline.graph.on_device() & (timeline.end_ns > timeline.start_ns))


def _usage_of(timeline: Timeline, inputs: tuple[SharingState, Floats, Floats], rows: Ints) -> tuple[Floats, Floats]:
    """Return the times at which the use of resources changes on the device of the tasks `rows`, and the use after each.

    `inputs` is what `_usage_inputs` returns, shared by all devices.
    """
    sharing, arrival, work_ns = inputs
    log = usage_log(4 * len(rows) + 1)
    logged = integrate_rates(
        events_of((timeline.start_ns, timeline.end_ns), rows, arrival[rows]), sharing, work_ns, log
    )
    return log.time_ns[:logged], log.in_use[:logged]


def _usage_inputs(timeline: Timeline) -> tuple[SharingState, Floats, Floats]:
    """Return the sharing state of a timeline's graph, the arrival of each task, and an array for the work of each."""
    graph = timeline.graph
    return lay_out(graph.tasks, graph.policy), timeline.arrivals_ns(), np.zeros(len(graph.tasks))
