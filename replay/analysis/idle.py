"""Idle time of devices by cause, exposed communication and copies, and the use of resources over time.

`cover` sweeps over a timeline and returns how long tasks of each label are active, and how long they alone. `exposure`
uses it to tell how much communication and copying hides behind compute. `idle_by_cause` follows the waits of the next
task back through each gap. `resource_use` recomputes the rates of a timeline by the engine's sharing.

`pace` tells which resources are on the critical path of a step in a steady state.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from profilers.errors import InvalidInputError
from profilers.trace.activity import DeviceTimes
from profilers.trace.arrays import Bools, Floats, Ints
from profilers.trace.compiled import compiled
from replay.analysis.critical_path import (
    PATH_CAUSES,
    PIM,
    CriticalPath,
    Part,
    binding_edges,
    critical_path,
    path_causes,
)
from replay.engine.engine import TaskTimes, integrate_rates, wait_times
from replay.engine.layout import lay_out
from replay.engine.steady import SteadyState
from replay.engine.timeline import EXPLAINED_NS, Timeline
from replay.graph.columns import edges_that_join
from replay.graph.edit import loader_tasks
from replay.graph.graph import RESOURCES, EdgeKind, TaskKind

#: Causes of the time on a critical path by the resource that limits it there.
_CAUSES_OF_RESOURCE: Mapping[str, tuple[str, ...]] = {
    "host": ("host", "launch lag", "sync lag", "gap for the host"),
    "loader": ("loader",),
    "device": (
        *("kernel", PIM, "contention", "launch queue", "stream lag", "wait lag", "inferred wait lag"),
        *("gap in a graph", "ready"),
    ),
    "communication": ("collective", "rendezvous lag"),
    "copies": ("copy",),
    "unexplained": ("backlog", "release"),
}
#: What can set the pace, in the order of tables.
PACE_RESOURCES: tuple[str, ...] = tuple(_CAUSES_OF_RESOURCE)


@dataclass(frozen=True)
class Pace:
    """What limits a step, from one completion to the next.

    Parameters
    ----------
    step_ns : float
        The step time.
    by_resource : mapping of str to float
        Time on the critical path of the step by `PACE_RESOURCES`, in ns. The values add up to the step time. Making a
        resource faster shortens the step by its time on the path at most.
    by_rank : mapping of int to float
        Time on the critical path by rank; -1 for meetings of ranks.
    by_iteration : mapping of int to float
        Time on the critical path by iteration: 0 for the step's own, 1 for the next, -1 for the one before.
    """

    step_ns: float
    by_resource: Mapping[str, float]
    by_rank: Mapping[int, float]
    by_iteration: Mapping[int, float]


def pace(state: SteadyState, position: int = 0) -> Pace:
    """Return the pace of one step of a steady state.

    Parameters
    ----------
    state : SteadyState
        Steady state of a window.
    position : int
        Position of the step in the cycle, from 0.
    """
    line = state.at_step(position)
    path = critical_path(line)
    graph = line.graph
    iteration = int(np.searchsorted(line.completions_ns(), line.until_ns)) if state.repeats else 0
    resources = resources_of(path)
    by_resource = {
        name: float(path.ns[resources == i].sum()) for i, name in enumerate(PACE_RESOURCES) if (resources == i).any()
    }
    return Pace(
        line.span_ns,
        by_resource,
        _sum_by_key(graph.ranks()[path.task], path.ns),
        _sum_by_key(graph.tasks.iteration[path.task] - iteration, path.ns),
    )


def _sum_by_key(key: npt.NDArray[np.int64], ns: npt.NDArray[np.float64]) -> dict[int, float]:
    return {int(k): float(ns[key == k].sum()) for k in np.unique(key)}


def resources_of(path: CriticalPath) -> npt.NDArray[np.int64]:
    """Return the resource of every piece of a path, as an index into `PACE_RESOURCES`."""
    resource = {cause: i for i, causes in enumerate(_CAUSES_OF_RESOURCE.values()) for cause in causes}
    of_cause = np.array([resource[cause] for cause in PATH_CAUSES])
    resources = of_cause[path_causes(path)]
    graph = path.timeline.graph
    is_work = (path.part == Part.WORK) | (path.part == Part.CONTENTION)
    # Kernels of a communication library are collectives, too, if the trace has no record of one.
    for name, rows in (("loader", loader_tasks(graph)), ("communication", graph.collectives())):
        resources = np.where(is_work & rows[path.task], PACE_RESOURCES.index(name), resources)
    return np.asarray(resources)


def by_time(timeline: Timeline, rows: Bools) -> tuple[Ints, Ints]:
    """Return the tasks in the mask `rows` that take time, by start and by end."""
    tasks = np.flatnonzero(rows & (timeline.end_ns > timeline.start_ns))
    start, end = timeline.start_ns[tasks], timeline.end_ns[tasks]
    return tasks[np.argsort(start, kind="stable")], tasks[np.argsort(end, kind="stable")]


def cover(timeline: Timeline, rows: Bools, label: Ints, labels: int) -> tuple[Floats, Floats, Floats]:
    """Return how long each label covers each device, in ns; each moment counts once.

    Parameters
    ----------
    timeline : Timeline
        The timeline.
    rows : array of bool, one a task
        Mask of the tasks to count, all on devices.
    label : array of int64, one a task
        Label of each task, from 0.
    labels : int
        Number of labels.

    Returns
    -------
    active : array, shape (devices, labels)
        Time during which at least one task of the label is active.
    alone : array, shape (devices, labels)
        Time during which only tasks of the label are active.
    busy : array, shape (devices,)
        Time during which any task is active.
    """
    orders = (*by_time(timeline, rows), timeline.start_ns, timeline.end_ns)
    covered: tuple[Floats, Floats, Floats] = _cover(
        orders, timeline.graph.tasks.device, label, len(timeline.graph.devices), labels
    )
    return covered


@compiled
def _cover(orders, device, label, devices, labels):  # type: ignore[no-untyped-def]
    """Return what `cover` returns; one pass over starts and ends in the order of time."""
    by_start, by_end, start, end = orders
    active, alone = np.zeros((devices, labels)), np.zeros((devices, labels))
    busy, before = np.zeros(devices), np.zeros(devices)
    count = np.zeros((devices, labels), np.int64)
    since = np.zeros((devices, labels))
    # Number of labels active on a device, and their sum: if one label is active, the sum is that label.
    n_labels, label_sum = np.zeros(devices, np.int64), np.zeros(devices, np.int64)
    i = j = 0
    while j < len(by_end):
        starts = i < len(by_start) and start[by_start[i]] < end[by_end[j]]
        task = by_start[i] if starts else by_end[j]
        d, k, now = device[task], label[task], start[task] if starts else end[task]
        if n_labels[d] == 1:
            alone[d, label_sum[d]] += now - before[d]
        if n_labels[d] > 0:
            busy[d] += now - before[d]
        before[d] = now
        if starts and count[d, k] == 0:
            n_labels[d] += 1
            label_sum[d] += k
            since[d, k] = now
        count[d, k] += 1 if starts else -1
        i, j = i + starts, j + (not starts)
        if count[d, k] == 0:
            n_labels[d] -= 1
            label_sum[d] -= k
            active[d, k] += now - since[d, k]
    return active, alone, busy


_COMPUTE, _COMMUNICATION, _COPY = range(3)


@dataclass(frozen=True)
class Exposure:
    """Compute, communication and copies on each device, and how much of them is exposed.

    Arrays have one row a device, in ns. Each moment of the timeline's interval counts once, and all work on the device
    counts, whichever iteration it belongs to.

    Parameters
    ----------
    devices : sequence of (rank, device)
        The graph's devices.
    times : tuple of DeviceTimes, one a device
        Busy time and communication, as `seqpoint describe` measures them in a trace.
    span_ns : array of float64
        Time from the start of the first task to the end of the last.
    compute_ns, copy_ns : array of float64
        Time during which a kernel, a copy is active.
    beside_compute_ns : array of float64
        Time during which a collective and a kernel are both on the device.
    exposed_copy_ns : array of float64
        Time during which only copies are on the device.
    """

    devices: tuple[tuple[int, int], ...]
    times: tuple[DeviceTimes, ...]
    span_ns: Floats
    compute_ns: Floats
    copy_ns: Floats
    beside_compute_ns: Floats
    exposed_copy_ns: Floats

    @property
    def busy_ns(self) -> Floats:
        """Time during which any task is on the device, a collective that waits for other ranks included."""
        return np.array([times.busy_ns for times in self.times])


def exposure(timeline: Timeline) -> Exposure:
    """Return how much communication and copying hides behind compute on each device.

    A collective is on its device since its rank arrived. `DeviceTimes` tells the wait for other ranks, and the transfer
    once all ranks have arrived, apart.
    """
    graph, times = timeline.graph, timeline.device_times()
    timeline = replace(timeline, start_ns=timeline.on_device_since()[0]).clipped()
    rows, tasks = graph.on_device(), graph.tasks
    label = np.where(graph.collectives(), _COMMUNICATION, _COMPUTE)
    label[tasks.kind == TaskKind.COPY] = _COPY
    active, alone, busy = (columns.T for columns in cover(timeline, rows, label, 3))
    first, last = np.full(len(graph.devices), np.inf), np.full(len(graph.devices), -np.inf)
    busy_tasks = np.flatnonzero(rows & (timeline.end_ns > timeline.start_ns))
    np.minimum.at(first, tasks.device[busy_tasks], timeline.start_ns[busy_tasks])
    np.maximum.at(last, tasks.device[busy_tasks], timeline.end_ns[busy_tasks])
    return Exposure(
        graph.devices,
        times,
        np.where(last > first, last - first, 0.0),
        active[_COMPUTE],
        active[_COPY],
        active[_COMPUTE] + active[_COMMUNICATION] - (busy - alone[_COPY]),
        alone[_COPY],
    )


#: Why a device idles:
#: ``host``, the next task waits for its launch, or for host code before it;
#: ``dependency``, the next task waits for work on another device;
#: ``pause``, the usual time between two tasks that wait for nothing else;
#: ``unexplained``, a longer pause, or a start that nothing in the trace explains;
#: ``done``, the device has no work left in this iteration.
IDLE_CAUSES: tuple[str, ...] = ("host", "dependency", "pause", "unexplained", "done")
_HOST, _DEPENDENCY, _PAUSE, _UNEXPLAINED, _DONE = range(len(IDLE_CAUSES))
_CAUSES = len(IDLE_CAUSES)
#: Edges whose lag is time on the host, or between host and device.
_HOST_EDGES = sorted(edges_that_join("launch", "sync", "host", "queue", "loader"))


@dataclass(frozen=True)
class Idle:
    """Busy and idle time of each device; `busy_ns` and the causes add up to the timeline's interval.

    Parameters
    ----------
    devices : sequence of (rank, device)
        The graph's devices.
    span_ns : float
        Length of the interval.
    busy_ns : array of float64, one a device
        Time during which a task is on the device, a collective that waits for other ranks included.
    earlier_ns : array of float64
        The part of the busy time in which only work of earlier iterations is on the device.
    cause_ns : array of float64, shape (devices, len(IDLE_CAUSES))
        Idle time by cause.
    slowed_ns : array of float64
        Time that contention adds to the tasks that end in the interval, summed over tasks. The device is not idle then,
        and the sum can exceed the interval if many tasks run at once.
    """

    devices: tuple[tuple[int, int], ...]
    span_ns: float
    busy_ns: Floats
    earlier_ns: Floats
    cause_ns: Floats
    slowed_ns: Floats


def idle_by_cause(timeline: Timeline) -> Idle:
    """Return the idle time of each device by cause, in the timeline's interval.

    Each gap ends with the start of a task, or with the arrival of the rank at a collective. The binding edges are
    followed from there back to the beginning of the gap. Host calls, the time between them, launches and returns from
    synchronisation count as host. Work on another device counts as dependency. A lag between device tasks counts as
    pause up to 10 us, else as unexplained. A collective that waits for other ranks is on the device, so that wait is no
    idle time.
    """
    graph, edges = timeline.graph, timeline.graph.edges
    tasks, devices = graph.tasks, len(graph.devices)
    since = timeline.on_device_since()[0]
    present = replace(timeline, start_ns=since)
    by_start, _ = by_time(present, graph.on_device())
    ends_gap = graph.arrivals()  # a gap before a collective ends with the mark of its arrival
    cause_of_lag = np.where(edges.lag_ns > EXPLAINED_NS, _UNEXPLAINED, _PAUSE)
    # The host prepares a copy inside its call; other gaps only stand for the host.
    is_prepared = (edges.kind == EdgeKind.GAP) & edges.from_start
    cause_of_lag[np.isin(edges.kind, _HOST_EDGES) | is_prepared] = _HOST
    on_host = (tasks.device < 0) & (tasks.lane >= 0)
    cause_of_task = np.where(on_host, _HOST, _DEPENDENCY)
    cause_of_release = np.where(on_host & ~graph.waits_for_recording(), _HOST, _UNEXPLAINED)
    times = (timeline.start_ns, timeline.end_ns, binding_edges(timeline))
    busy, earlier, causes = _gaps(
        (by_start, tasks.device, tasks.in_iteration, devices, timeline.begin_ns, timeline.until_ns),
        (since, ends_gap, *times),
        (edges.source, edges.lag_ns, edges.from_start),
        (cause_of_task, cause_of_lag, cause_of_release),
    )
    counted = graph.on_device() & tasks.in_iteration & (timeline.end_ns > timeline.begin_ns)
    counted &= timeline.end_ns <= timeline.until_ns
    slowed = np.maximum(timeline.end_ns - timeline.start_ns - tasks.duration_ns, 0.0)[counted]
    total = np.bincount(tasks.device[counted], weights=slowed, minlength=devices)
    return Idle(graph.devices, timeline.span_ns, busy, earlier, causes, np.asarray(total, dtype=np.float64))


@compiled
def _gaps(order, times, edges, cause_of):  # type: ignore[no-untyped-def]
    """Return busy time, earlier work and idle time by cause on each device; one pass over the tasks by start.

    A task that starts after all earlier tasks on its device have ended ends a gap.
    """
    by_start, device, in_iteration, devices, first, makespan = order
    since, ends_gap, start, end, binding = times
    reach, reach_iteration = np.full(devices, first), np.full(devices, first)
    any_busy, busy, causes = np.zeros(devices), np.zeros(devices), np.zeros((devices, _CAUSES))
    for i in range(len(by_start)):
        task = by_start[i]
        d, now, until = device[task], min(since[task], makespan), min(end[task], makespan)
        if now > reach[d]:
            _explain(ends_gap[task], reach[d], causes[d], (start, end, binding, makespan), edges, cause_of)
        any_busy[d] += max(until - max(now, reach[d]), 0.0)
        reach[d] = max(reach[d], until)
        if in_iteration[task]:
            busy[d] += max(until - max(now, reach_iteration[d]), 0.0)
            reach_iteration[d] = max(reach_iteration[d], until)
    for d in range(devices):
        causes[d, _DONE] += makespan - reach[d]
    return any_busy, any_busy - busy, causes


@compiled
def _explain(task, begin, causes, times, edges, cause_of):  # type: ignore[no-untyped-def]
    """Add the gap from `begin` to the start of `task` to its causes, along the binding edges back from the task."""
    start, end, binding, makespan = times
    source, lag, from_start = edges
    cause_of_task, cause_of_lag, cause_of_release = cause_of
    now = min(start[task], makespan)
    while now > begin:
        e = binding[task]
        if e < 0:
            causes[cause_of_release[task]] += now - begin
            return
        before = source[e]
        since = start[before] if from_start[e] else end[before]
        arrival = max(min(since + lag[e], now), begin)
        causes[_UNEXPLAINED] += now - arrival
        since = max(min(since, arrival), begin)
        causes[cause_of_lag[e]] += arrival - since
        now = since
        if not from_start[e]:
            since = max(min(start[before], now), begin)
            causes[cause_of_task[before]] += now - since
            now = since
        task = before


@dataclass(frozen=True)
class ResourceUse:
    """Mean use of each device's resources in equal intervals of time, in shares of the device.

    Parameters
    ----------
    devices : sequence of (rank, device)
        The graph's devices.
    resources : sequence of str
        Names of the resources, as in `RESOURCES`.
    edges_ns : array of float64, shape (bins + 1,)
        Limits of the intervals, after the graph's origin.
    use : array of float64, shape (devices, bins, resources)
        Mean use, 0 to 1.
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
        As the engine replayed it.
    bins : int
        Number of intervals.

    Returns
    -------
    ResourceUse
        Means over each interval. A task uses the compute units granted to it, and of other resources its demand times
        its rate. The timeline holds starts and ends only; the rates follow from them by the engine's sharing.

    Raises
    ------
    InvalidInputError
        `bins` is not above zero.
    """
    if bins < 1:
        raise InvalidInputError(f"resource use over {bins} intervals: give one or more")
    graph, devices = timeline.graph, timeline.graph.devices
    edges = np.linspace(0.0, timeline.makespan_ns, bins + 1)
    use = np.zeros((len(devices), bins, len(RESOURCES)))
    sharing, work_ns = lay_out(graph.tasks, graph.policy), np.zeros(len(graph.tasks))
    arrival_ns, wait_ns = timeline.arrivals_ns(), wait_times(graph, timeline.start_ns)
    wait_ns[arrival_ns <= wait_ns] = np.nan  # it queued for compute units, and its peers had arrived
    events = TaskTimes(timeline.start_ns, timeline.end_ns, arrival_ns, wait_ns)
    busy = np.flatnonzero(graph.on_device() & (timeline.end_ns > timeline.start_ns))
    busy = busy[np.argsort(graph.tasks.device[busy], kind="stable")]
    by_device = np.split(busy, np.searchsorted(graph.tasks.device[busy], np.arange(1, len(devices))))
    for device, rows in enumerate(by_device if edges[-1] > 0 else ()):
        times, steps = integrate_rates(sharing, events, rows, work_ns, log_rows=6 * len(rows) + 1)
        if len(times):
            cumulative = np.zeros_like(steps)
            cumulative[1:] = np.cumsum(steps[:-1] * np.diff(times)[:, None], axis=0)
            for resource in range(len(RESOURCES)):
                integral = np.interp(edges, times, cumulative[:, resource])
                use[device, :, resource] = np.diff(integral) * bins / edges[-1]
    return ResourceUse(devices, RESOURCES, edges, np.maximum(use, 0.0))
