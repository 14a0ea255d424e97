"""The critical path, the slack of each task, and what the path consists of.

Which edge each task started by: the last thing that it waited for.

The critical path: what the end of a timeline waited for, back to its beginning, with every ns accounted for.

How much later each task could end before the iteration would.

What tasks are called in tables and charts: the class of a kernel, or what the task is.

What the time of a critical path goes into: causes, classes of kernels, names.

`dependencies`: what the tasks of a timeline wait for, by kind of edge, and which of it a profiler recorded.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from profilers.errors import InvalidInputError
from profilers.trace.arrays import Floats, Ints
from profilers.trace.compiled import bare, compiled
from profilers.trace.kernels import CLASSES, COLLECTIVE
from replay.engine.timeline import Timeline
from replay.graph.graph import RECORDED_EDGES, EdgeKind, KernelGraph, TaskKind

#: By how much a replay's times may be off: a thousandth of what a profiler resolves.
_ROUNDING_NS = 1e-3


def binding_edges(timeline: Timeline) -> Ints:
    """Return for every task the row of the edge that let it start; -1 where its release did, or nothing.

    That is the edge that arrives last: its source's end, or start, and its lag. Of several that arrive at one
    time it is the one with the shorter lag, then of the lower kind, then of the source that is first. An edge whose
    source comes after the task, which only clocks that disagree can measure, binds nothing.

    Parameters
    ----------
    timeline : Timeline
        Replayed or measured.

    Returns
    -------
    array of int64, one a task
    """
    graph, edges = timeline.graph, timeline.graph.edges
    sides = (edges.source, edges.target, edges.lag_ns, edges.from_start, edges.kind)
    latest = np.full(len(graph.tasks), -1)
    _enter_latest(*sides, (timeline.start_ns, timeline.end_ns), (latest, np.array(graph.tasks.release_ns, np.float64)))
    return latest


@bare
def _enter_latest(source, target, lag, from_start, kind, times, latest):  # type: ignore[no-untyped-def]
    """Write for each task the edge that arrives last, into an array of -1, and when, into an array of releases."""
    start, end = times
    found, arrival = latest
    for e in range(len(source)):
        here, task = source[e], target[e]
        left = start[here] if from_start[e] else end[here]
        if left > start[task] + _ROUNDING_NS:
            continue
        time, other = left + lag[e], found[task]
        if time < arrival[task]:
            continue
        if time == arrival[task] and other >= 0:
            if lag[e] != lag[other]:
                if lag[e] > lag[other]:
                    continue
            elif (kind[e], here, e) >= (kind[other], source[other], other):
                continue
        found[task], arrival[task] = e, time


class Part(IntEnum):
    """What a piece of the path is."""

    WORK = 0  #: a task, for as long as it takes alone
    CONTENTION = 1  #: a task, for as long as others made it longer
    LAG = 2  #: the lag of an edge
    READY = 3  #: a task that waits for nothing more, and does not start yet
    RELEASE = 4  #: before a task that waits for a time, not for a task


#: For compiled code, to which an enumeration is no number.
_WORK, _CONTENTION, _LAG, _READY, _RELEASE = (int(part) for part in Part)


@dataclass(frozen=True)
class CriticalPath:
    """Columns of equal length, one row a piece of time, in order; together they are the timeline's interval.

    Parameters
    ----------
    timeline : Timeline
    task : array of int64
        The task that works, or that is waited to start.
    edge : array of int64
        Whose lag it is; -1 for parts that are no lag.
    part : array of int64, `Part`
    begin_ns, ns : array of float64
        When the piece begins, and how long it is.
    """

    timeline: Timeline
    task: Ints
    edge: Ints
    part: Ints
    begin_ns: Floats
    ns: Floats

    def __len__(self) -> int:
        return len(self.task)

    def tasks(self) -> Ints:
        """Return the tasks that work on the path, in order."""
        rows = self.task[self.part == Part.WORK]
        return np.asarray(rows[np.diff(rows, prepend=-1) != 0])


def critical_path(timeline: Timeline) -> CriticalPath:
    """Return the chain of work and waiting that ends with the iteration's last task.

    From the end of the last of the graph's own tasks the path goes back through the edge that let each task start. A
    piece is a task's work alone, what contention added to it, or an edge's lag; of edges that arrive together the one
    counts that `replay.analysis.critical_path` names. An edge that counts from its source's start leaves the path at
    that start: what the source did after it is not on the path. Of several tasks that end last it is one that takes
    time. Of a timeline with an interval, the pieces in it are returned. In a steady state that is the cycle of waits
    that sets the pace: what only ends the last step lies behind the interval.

    Parameters
    ----------
    timeline : Timeline
        Replayed or measured.

    Returns
    -------
    CriticalPath
        Its pieces add up to `Timeline.span_ns`.

    Examples
    --------
    A kernel of 1 us waits for another of 2 us, and for 100 ns more:

    >>> from replay.from_trace.draft import Draft
    >>> from replay.graph import EdgeKind, Hardware, TaskKind
    >>> from replay.engine.timeline import replay
    >>> draft, device = Draft(names={"a": 0, "b": 1}, devices={(0, 0): 0}), {"kind": TaskKind.KERNEL, "device": 0}
    >>> times = {"measured_start_ns": [0, 2100], "measured_end_ns": [2000, 3100]}
    >>> first, second = draft.tasks(2, {**device, **times, "name": [0, 1]})
    >>> draft.edge(first, second, 100, EdgeKind.STREAM)
    >>> path = critical_path(replay(draft.freeze(Hardware())))
    >>> [(Part(part).name, ns) for part, ns in zip(path.part, path.ns.tolist())]
    [('WORK', 2000.0), ('LAG', 100.0), ('WORK', 1000.0)]
    """
    graph = timeline.graph
    own = graph.tasks.own
    if not own.any():
        nothing = np.zeros(0, np.int64)
        return CriticalPath(timeline, nothing, nothing, nothing, np.zeros(0), np.zeros(0))
    edges = graph.edges
    ends = np.flatnonzero(own & (timeline.end_ns == timeline.makespan_ns))
    last = int(ends[np.argmax(timeline.end_ns[ends] > timeline.start_ns[ends])])
    times = (timeline.start_ns, timeline.end_ns, graph.tasks.duration_ns)
    columns = (edges.source, edges.lag_ns, edges.from_start)
    (task, edge, part), (begin, ns) = _walk(last, binding_edges(timeline), times, columns)
    path = CriticalPath(timeline, task, edge, part, begin, ns)
    return path if timeline.interval is None else _within(path, timeline.interval)


def _within(path: CriticalPath, interval: tuple[float, float]) -> CriticalPath:
    """Return the part of a path that lies in an interval."""
    begin, until = (np.clip(times, *interval) for times in (path.begin_ns, path.begin_ns + path.ns))
    rows = np.flatnonzero(until > begin)
    return CriticalPath(
        path.timeline, path.task[rows], path.edge[rows], path.part[rows], begin[rows], until[rows] - begin[rows]
    )


@compiled
def _walk(last, binding, times, edges):  # type: ignore[no-untyped-def]
    """Return the pieces in order; they are found from the last to the first."""
    start, end, duration = times
    source, lag, from_start = edges
    # Of each piece the task, the edge and the part; its beginning and its length.
    what, when = [(0, 0, 0)], [(0.0, 0.0)]
    task, whole, until = last, True, end[last]
    while True:
        now = start[task]
        if whole and until > now:
            alone = min(duration[task], until - now)
            if until - now > alone:
                what.append((task, -1, _CONTENTION))
                when.append((now + alone, until - now - alone))
            if alone > 0.0:
                what.append((task, -1, _WORK))
                when.append((now, alone))
        e = binding[task]
        left = 0.0 if e < 0 else min(start[source[e]] if from_start[e] else end[source[e]], now)
        arrival = now if e < 0 else min(left + lag[e], now)
        if now > arrival:
            what.append((task, -1, _READY))
            when.append((arrival, now - arrival))
        if arrival > left:
            what.append((task, e, _RELEASE if e < 0 else _LAG))
            when.append((left, arrival - left))
        if e < 0:
            break
        task, whole, until = source[e], not from_start[e], left
    n = len(what) - 1
    pieces, spans = np.empty((3, n), np.int64), np.empty((2, n))
    for i in range(n):
        pieces[0, i], pieces[1, i], pieces[2, i] = what[n - i]
        spans[0, i], spans[1, i] = when[n - i]
    return pieces, spans


def slack_ns(timeline: Timeline) -> Floats:
    """Return how much later each task could run, alone, without a later end of the iteration.

    Durations and lags stay as they are in the timeline, so that what a shift would change in contention is left out.
    It is zero for every task on the critical path, and infinite for one that no task of the iteration waits for.

    Parameters
    ----------
    timeline : Timeline

    Returns
    -------
    array of float64, one a task

    Raises
    ------
    InvalidInputError
        Tasks wait for each other in a circle.
    """
    graph, edges = timeline.graph, timeline.graph.edges
    if not len(graph.tasks):
        return np.zeros(0)
    ends = np.where(graph.tasks.own, timeline.makespan_ns - timeline.end_ns, np.inf)
    left = np.where(edges.from_start, timeline.start_ns[edges.source], timeline.end_ns[edges.source])
    room = np.maximum(timeline.start_ns[edges.target] - left - edges.lag_ns, 0.0)
    slack, reached = _backward(ends, edges.source, edges.target, room)
    if reached < len(ends):
        raise InvalidInputError("tasks wait for each other in a circle; replay the graph to see which")
    return np.asarray(slack)


@compiled
def _backward(slack, source, target, room):  # type: ignore[no-untyped-def]
    """Take tasks when all that wait for them are known, the last first."""
    n = len(slack)
    offsets, unknown = np.zeros(n + 1, np.int64), np.zeros(n, np.int64)
    for e in range(len(source)):
        offsets[target[e] + 1] += 1
        unknown[source[e]] += 1
    for task in range(n):
        offsets[task + 1] += offsets[task]
    place, incoming = offsets[:-1].copy(), np.empty(len(source), np.int64)
    for e in range(len(source)):
        incoming[place[target[e]]] = e
        place[target[e]] += 1
    known, count, reached = np.empty(n, np.int64), 0, 0
    for task in range(n):
        if unknown[task] == 0:
            known[count] = task
            count += 1
    while reached < count:
        task = known[reached]
        reached += 1
        for k in range(offsets[task], offsets[task + 1]):
            before = source[incoming[k]]
            slack[before] = min(slack[before], slack[task] + room[incoming[k]])
            unknown[before] -= 1
            if unknown[before] == 0:
                known[count] = before
                count += 1
    return slack, reached


#: What tasks that are no kernels are called where a kernel has its class.
HOST, MEMCPY = "host", "memory copy"
LABELS: tuple[str, ...] = (*CLASSES, HOST, MEMCPY)


def task_labels(graph: KernelGraph) -> npt.NDArray[np.int64]:
    """Return for each task its index into `LABELS`."""
    tasks = graph.tasks
    label = np.where(tasks.class_ >= 0, tasks.class_, CLASSES.index("other"))
    special = {TaskKind.HOST: HOST, TaskKind.MARK: HOST, TaskKind.COPY: MEMCPY, TaskKind.COLLECTIVE: COLLECTIVE}
    for kind, name in special.items():
        label[tasks.kind == kind] = LABELS.index(name)
    return np.asarray(label)


#: What a piece of a path can be, in the order of tables.
PATH_CAUSES: tuple[str, ...] = (
    "kernel",
    "collective",
    "copy",
    "contention",
    "host",
    "launch lag",
    "stream lag",
    "wait lag",
    "inferred wait lag",
    "sync lag",
    "rendezvous lag",
    "gap for the host",
    "backlog",
    "gap in a graph",
    "launch queue",
    "loader",
    "ready",
    "release",
)
_OF_KIND: Mapping[TaskKind, str] = MappingProxyType(
    {
        TaskKind.HOST: "host",
        TaskKind.KERNEL: "kernel",
        TaskKind.COPY: "copy",
        TaskKind.COLLECTIVE: "collective",
        TaskKind.MARK: "host",
    }
)
#: Time between two calls is the host's own work, which the trace has no task for.
_OF_LAG: Mapping[EdgeKind, str] = MappingProxyType(
    {
        EdgeKind.STREAM: "stream lag",
        EdgeKind.LAUNCH: "launch lag",
        EdgeKind.HOST: "host",
        EdgeKind.HANDOFF: "host",
        EdgeKind.WAIT: "wait lag",
        EdgeKind.WAIT_INFERRED: "inferred wait lag",
        EdgeKind.SYNC: "sync lag",
        EdgeKind.RENDEZVOUS: "rendezvous lag",
        EdgeKind.GRAPH_LAUNCH: "launch lag",
        EdgeKind.AUTOGRAD: "host",
        EdgeKind.SYNC_INFERRED: "sync lag",
        EdgeKind.GAP: "gap for the host",
        EdgeKind.BACKLOG: "backlog",
        EdgeKind.GRAPH_GAP: "gap in a graph",
        EdgeKind.QUEUE: "launch queue",
        EdgeKind.LOADER: "loader",
    }
)


@dataclass(frozen=True)
class Attribution:
    """How the time of a path divides; the values of each mapping add up to the makespan.

    Parameters
    ----------
    makespan_ns : float
    by_cause : mapping of str to float
        By `PATH_CAUSES`, those that occur, in ns.
    by_class : mapping of str to float
        Device work, with what contention added to it, by class of kernel, ``"memory copy"`` or ``"collective"``;
        everything else by its cause; the longest first.
    by_name : mapping of str to float
        The same by name of task; untrusted text.
    """

    makespan_ns: float
    by_cause: Mapping[str, float]
    by_class: Mapping[str, float]
    by_name: Mapping[str, float]


def attribution(path: CriticalPath) -> Attribution:
    """Return what the time of a path goes into.

    Parameters
    ----------
    path : CriticalPath

    Returns
    -------
    Attribution
    """
    graph = path.timeline.graph
    cause = path_causes(path)
    works = (path.part == Part.WORK) | (path.part == Part.CONTENTION)
    on_device = works & graph.on_device()[path.task]
    label = task_labels(graph)
    n = len(PATH_CAUSES)
    by_class = np.where(on_device, n + label[path.task], cause)
    by_name = np.where(works & (graph.tasks.kind[path.task] != TaskKind.MARK), n + graph.tasks.name[path.task], cause)
    return Attribution(
        float(path.ns.sum()),
        _sums(PATH_CAUSES, cause, path.ns),
        _longest_first(_sums((*PATH_CAUSES, *LABELS), by_class, path.ns)),
        _longest_first(_sums((*PATH_CAUSES, *graph.names), by_name, path.ns)),
    )


def path_causes(path: CriticalPath) -> Ints:
    """Return for every piece of a path its index into `PATH_CAUSES`."""
    graph = path.timeline.graph
    index = {name: i for i, name in enumerate(PATH_CAUSES)}
    work = np.array([index[_OF_KIND[kind]] for kind in TaskKind])[graph.tasks.kind[path.task]]
    lags = np.array([index[_OF_LAG[kind]] for kind in EdgeKind])
    lag = lags[graph.edges.kind[path.edge]] if len(graph.edges) else work
    of_host = (graph.tasks.device[path.task] < 0) & (graph.tasks.lane[path.task] >= 0)
    release = np.where(of_host, index["host"], index["release"])
    others = (np.full(len(path), index["contention"]), lag, np.full(len(path), index["ready"]), release)
    return np.asarray(np.choose(path.part, (work, *others)))


def _sums(names: Sequence[str], index: Ints, ns: Floats) -> dict[str, float]:
    """Return the sums by name, those that occur, in the order of `names`."""
    sums = np.bincount(index, weights=ns, minlength=len(names))
    found: dict[str, float] = {}
    for i in np.flatnonzero(np.bincount(index, minlength=len(names))).tolist():
        found[names[i]] = found.get(names[i], 0.0) + float(sums[i])
    return found


def _longest_first(found: Mapping[str, float]) -> dict[str, float]:
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))


#: Times this close are one (ns; a profiler resolves 1 ns, an engine rounds below it).
_SAME_NS = 1.0


@dataclass(frozen=True)
class DependencyKind:
    """All edges of one kind.

    Parameters
    ----------
    kind : str
        The name of an `EdgeKind`, in lower case.
    recorded : bool
        Whether the profiler recorded both ends, rather than times and the order of calls suggesting them.
    edges : int
    binding : int
        Those that decided when their target started.
    critical : int
        Those on the critical path: the chain of binding edges that ends with the iteration.
    critical_lag_ns : float
        Delay on the critical path that the edges carry.
    """

    kind: str
    recorded: bool
    edges: int
    binding: int
    critical: int
    critical_lag_ns: float


@dataclass(frozen=True)
class Dependencies:
    """The edges of a timeline's graph by kind, in the order of `EdgeKind`; kinds without edges are left out."""

    kinds: tuple[DependencyKind, ...]

    def recorded_share(self, what: str = "edges") -> float:
        """Return the recorded share of all edges, or of those ``"binding"`` or ``"critical"``; NaN of none."""
        total = sum(getattr(kind, what) for kind in self.kinds)
        return sum(getattr(kind, what) for kind in self.kinds if kind.recorded) / total if total else float("nan")


def dependencies(timeline: Timeline) -> Dependencies:
    """Return the edges of a timeline's graph by kind: how many, how many bind, how many lie on the critical path.

    An edge binds where its target starts when it allows. The critical path goes from the task that ends last back
    along the edges that `replay.analysis.critical_path` names; those without a lag count too.
    """
    edges = timeline.graph.edges
    allowed = np.where(edges.from_start, timeline.start_ns[edges.source], timeline.end_ns[edges.source]) + edges.lag_ns
    start = timeline.start_ns[edges.target]
    binding = allowed >= start - np.maximum(_SAME_NS, 1e-12 * np.abs(start))
    critical = _critical(timeline)
    rows = []
    for kind in EdgeKind:
        mine = edges.kind == kind
        if mine.any():
            on_path = critical[edges.kind[critical] == kind]
            lag = float(edges.lag_ns[on_path].sum())
            counts = (int(mine.sum()), int((mine & binding).sum()), len(on_path))
            rows.append(DependencyKind(kind.name.lower(), kind in RECORDED_EDGES, *counts, lag))
    return Dependencies(tuple(rows))


def _critical(timeline: Timeline) -> npt.NDArray[np.int64]:
    """Return the edges of one critical path, from the task of the iteration that ends last back to its start."""
    source, own = timeline.graph.edges.source, timeline.graph.tasks.own
    if not own.any():
        return np.zeros(0, dtype=np.int64)
    into = binding_edges(timeline)
    last = own & (timeline.end_ns >= timeline.end_ns[own].max() - _SAME_NS)
    # Of those that end last, one that waits for something tells more than a mark at a fixed time.
    task = int(np.argmax(np.where(last, 1 + (into >= 0), 0)))
    path: list[int] = []
    while (edge := int(into[task])) >= 0 and len(path) < len(own):  # tasks of the path, under 1 us each
        path.append(edge)
        task = int(source[edge])
    return np.array(path, dtype=np.int64)
