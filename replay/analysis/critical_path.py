"""The critical path of a timeline: the chain of waits that leads to its end, with every ns accounted for.

`binding_edges` finds the edge that each task started by, `critical_path` follows these edges back from the last task.
`attribution` sums the path by cause, class of kernel and name.
`dependencies` counts the edges of a timeline by kind.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from profilers.trace.arrays import Floats, Ints
from profilers.trace.compiled import bare, compiled
from profilers.trace.kernels import CLASSES, COLLECTIVE
from replay.engine.timeline import Timeline
from replay.graph.columns import EDGE_KINDS
from replay.graph.graph import RECORDED_EDGES, EdgeKind, KernelGraph, TaskKind

#: By how much a replay's times may be off: a thousandth of what a profiler resolves.
_ROUNDING_NS = 1e-3


def binding_edges(timeline: Timeline) -> Ints:
    """Return the binding edge of every task: the edge that let it start.

    The binding edge is the one that arrives last, at the end (or start) of its source plus its lag. Of edges that
    arrive together, the one with the shorter lag binds, then the lower kind, then the first source. An edge whose
    source comes after the task binds nothing; only clocks that disagree measure that.

    Parameters
    ----------
    timeline : Timeline
        Replayed or measured.

    Returns
    -------
    array of int64, one a task
        Row of the edge; -1 for a task that started at its release, or that waits for nothing.
    """
    graph, edges = timeline.graph, timeline.graph.edges
    sides = (edges.source, edges.target, edges.lag_ns, edges.from_start, edges.kind)
    binding = np.full(len(graph.tasks), -1)
    arrival = np.array(graph.tasks.release_ns, np.float64)
    _last_edges(*sides, (timeline.start_ns, timeline.end_ns), (binding, arrival))
    return binding


@bare
def _last_edges(source, target, lag, from_start, kind, times, latest):  # type: ignore[no-untyped-def]
    """Write the binding edge of each task into an array of -1, and its arrival into an array of release times."""
    start, end = times
    binding, arrival = latest
    for e in range(len(source)):
        before, task = source[e], target[e]
        since = start[before] if from_start[e] else end[before]
        if since > start[task] + _ROUNDING_NS:
            continue
        time, current = since + lag[e], binding[task]
        if time < arrival[task]:
            continue
        if time == arrival[task] and current >= 0:
            if lag[e] != lag[current]:
                if lag[e] > lag[current]:
                    continue
            elif (kind[e], before, e) >= (kind[current], source[current], current):
                continue
        binding[task], arrival[task] = e, time


class Part(IntEnum):
    """Kind of a piece of the critical path."""

    WORK = 0  #: a task's isolated duration
    CONTENTION = 1  #: time that contention adds to a task
    LAG = 2  #: the lag of an edge
    READY = 3  #: a task that waits for no other, and has not started
    RELEASE = 4  #: time before a task that waits for its release


#: Plain numbers, since compiled code cannot use the enumeration.
_WORK, _CONTENTION, _LAG, _READY, _RELEASE = (int(part) for part in Part)


@dataclass(frozen=True)
class CriticalPath:
    """The critical path in pieces of time: columns of equal length, one row a piece.

    The pieces are in order of time, and fill the timeline's interval.

    Parameters
    ----------
    timeline : Timeline
        Timeline that the path belongs to.
    task : array of int64
        Task that runs, or whose start is waited for.
    edge : array of int64
        Edge whose lag the piece is; -1 for other pieces.
    part : array of int64, `Part`
        Kind of the piece.
    begin_ns, ns : array of float64
        Start of the piece after the graph's origin, and its length.
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
        """Return the tasks that run on the path, in order."""
        rows = self.task[self.part == Part.WORK]
        return np.asarray(rows[np.diff(rows, prepend=-1) != 0])


def critical_path(timeline: Timeline) -> CriticalPath:
    """Return the critical path: the chain of work and waiting that ends with the iteration's last task.

    The path goes back from the end of that task, through the binding edge of each task. A piece is a task's isolated
    duration, the contention added to it, or the lag of an edge. An edge that counts from the start of its source leaves
    the source there: its later work is not on the path. If several tasks end last, the path ends with one that takes
    time. A timeline with an interval gives the pieces inside it. In a steady state these are the cycle of waits that
    sets the pace, without the end of the last step, which lies behind the interval.

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

    >>> from replay.engine import replay
    >>> from replay.graph import Assembly
    >>> assembly = Assembly()
    >>> kernels = assembly.tasks("kernel", assembly.lane(device=0), {"duration_ns": [2000, 1000]})
    >>> assembly.chain(kernels, lag_ns=100)
    >>> path = critical_path(replay(assembly.graph()))
    >>> [(Part(part).name, ns) for part, ns in zip(path.part, path.ns.tolist())]
    [('WORK', 2000.0), ('LAG', 100.0), ('WORK', 1000.0)]
    """
    graph = timeline.graph
    in_iteration = graph.tasks.in_iteration
    if not in_iteration.any():
        empty = np.zeros(0, np.int64)
        return CriticalPath(timeline, empty, empty, empty, np.zeros(0), np.zeros(0))
    edges = graph.edges
    ends = np.flatnonzero(in_iteration & (timeline.end_ns == timeline.makespan_ns))
    last = int(ends[np.argmax(timeline.end_ns[ends] > timeline.start_ns[ends])])
    times = (timeline.start_ns, timeline.end_ns, graph.tasks.duration_ns)
    columns = (edges.source, edges.lag_ns, edges.from_start)
    (task, edge, part), (begin, ns) = _trace_back(last, binding_edges(timeline), times, columns)
    path = CriticalPath(timeline, task, edge, part, begin, ns)
    return path if timeline.interval is None else _clip_path(path, timeline.interval)


def _clip_path(path: CriticalPath, interval: tuple[float, float]) -> CriticalPath:
    """Return the pieces of a path that lie in an interval, cut at its ends."""
    begin, until = (np.clip(times, *interval) for times in (path.begin_ns, path.begin_ns + path.ns))
    rows = np.flatnonzero(until > begin)
    return CriticalPath(
        path.timeline, path.task[rows], path.edge[rows], path.part[rows], begin[rows], until[rows] - begin[rows]
    )


@compiled
def _trace_back(last, binding, times, edges):  # type: ignore[no-untyped-def]
    """Return the pieces of the path in order, as (task, edge, part) and (begin, length); found from the last back."""
    start, end, duration = times
    source, lag, from_start = edges
    pieces, spans = [(0, 0, 0)], [(0.0, 0.0)]
    task, is_whole, until = last, True, end[last]
    while True:
        begin = start[task]
        if is_whole and until > begin:
            alone = min(duration[task], until - begin)
            if until - begin > alone:
                pieces.append((task, -1, _CONTENTION))
                spans.append((begin + alone, until - begin - alone))
            if alone > 0.0:
                pieces.append((task, -1, _WORK))
                spans.append((begin, alone))
        e = binding[task]
        since = 0.0 if e < 0 else min(start[source[e]] if from_start[e] else end[source[e]], begin)
        arrival = begin if e < 0 else min(since + lag[e], begin)
        if begin > arrival:
            pieces.append((task, -1, _READY))
            spans.append((arrival, begin - arrival))
        if arrival > since:
            pieces.append((task, e, _RELEASE if e < 0 else _LAG))
            spans.append((since, arrival - since))
        if e < 0:
            break
        task, is_whole, until = source[e], not from_start[e], since
    n = len(pieces) - 1
    columns, times_ns = np.empty((3, n), np.int64), np.empty((2, n))
    for i in range(n):
        columns[0, i], columns[1, i], columns[2, i] = pieces[n - i]
        times_ns[0, i], times_ns[1, i] = spans[n - i]
    return columns, times_ns


#: Labels of tasks that are no kernels, and of kernels that a what-if adds; a kernel's label is its class.
HOST, MEMCPY, PIM, QUANTISATION = "host", "memory copy", "processing in memory", "quantisation"
LABELS: tuple[str, ...] = (*CLASSES, HOST, MEMCPY, PIM, QUANTISATION)
#: Start of the names of the kernels that `quantize_weights` adds.
_QUANTISE = "quantise to "


def task_labels(graph: KernelGraph) -> npt.NDArray[np.int64]:
    """Return the label of each task, as an index into `LABELS`."""
    tasks = graph.tasks
    label = np.where(tasks.class_ >= 0, tasks.class_, CLASSES.index("other"))
    names = [number for number, name in enumerate(graph.names) if name.startswith(_QUANTISE)]
    label[np.isin(tasks.name, names)] = LABELS.index(QUANTISATION)
    special = {TaskKind.HOST: HOST, TaskKind.MARK: HOST, TaskKind.COPY: MEMCPY, TaskKind.COLLECTIVE: COLLECTIVE}
    special[TaskKind.PIM] = PIM
    for kind, name in special.items():
        label[tasks.kind == kind] = LABELS.index(name)
    return np.asarray(label)


#: Cause of the time of the lag of each kind of edges. The lag between two host calls is host code that the trace has no
#: task for.
_CAUSE_OF_LAG = {kind: facts.lag for kind, facts in EDGE_KINDS.items()}
#: Causes of the time on a critical path, in the order of tables.
PATH_CAUSES: tuple[str, ...] = (
    *("kernel", "collective", "copy", PIM, "contention"),
    *("host", "launch lag", "stream lag", "wait lag", "inferred wait lag", "sync lag", "rendezvous lag"),
    *("gap for the host", "backlog", "gap in a graph", "launch queue", "loader"),
    *("ready", "release"),
)
#: Causes of the tasks that are not host calls or marks.
_CAUSE_OF_TASK = {
    TaskKind.KERNEL: "kernel",
    TaskKind.COPY: "copy",
    TaskKind.COLLECTIVE: "collective",
    TaskKind.PIM: PIM,
}


@dataclass(frozen=True)
class Attribution:
    """Time of a critical path by cause, class and name; the values of each mapping add up to the makespan.

    Parameters
    ----------
    makespan_ns : float
        Length of the path.
    by_cause : mapping of str to float
        Time by `PATH_CAUSES` in ns; causes that do not occur are left out.
    by_class : mapping of str to float
        Device work with its contention, by class of kernel, ``"memory copy"`` or ``"collective"``; other time by
        cause. The longest first.
    by_name : mapping of str to float
        The same by name of task, which is untrusted text.
    """

    makespan_ns: float
    by_cause: Mapping[str, float]
    by_class: Mapping[str, float]
    by_name: Mapping[str, float]


def attribution(path: CriticalPath) -> Attribution:
    """Return the time of a critical path by cause, class of kernel and name of task."""
    graph = path.timeline.graph
    cause = path_causes(path)
    is_work = (path.part == Part.WORK) | (path.part == Part.CONTENTION)
    on_device = is_work & graph.on_device()[path.task]
    label = task_labels(graph)
    n = len(PATH_CAUSES)
    by_class = np.where(on_device, n + label[path.task], cause)
    by_name = np.where(is_work & (graph.tasks.kind[path.task] != TaskKind.MARK), n + graph.tasks.name[path.task], cause)
    class_sums = _sum_by_name((*PATH_CAUSES, *LABELS), by_class, path.ns)
    name_sums = _sum_by_name((*PATH_CAUSES, *graph.names), by_name, path.ns)
    return Attribution(
        float(path.ns.sum()),
        _sum_by_name(PATH_CAUSES, cause, path.ns),
        *(dict(sorted(sums.items(), key=lambda item: (-item[1], item[0]))) for sums in (class_sums, name_sums)),
    )


def path_causes(path: CriticalPath) -> Ints:
    """Return the cause of every piece of a path, as an index into `PATH_CAUSES`."""
    graph = path.timeline.graph
    index = {name: i for i, name in enumerate(PATH_CAUSES)}
    task_cause = np.array([index[_CAUSE_OF_TASK.get(kind, "host")] for kind in TaskKind])[graph.tasks.kind[path.task]]
    lags = np.array([index[_CAUSE_OF_LAG[kind]] for kind in EdgeKind])
    lag_cause = lags[graph.edges.kind[path.edge]] if len(graph.edges) else task_cause
    of_host = (graph.tasks.device[path.task] < 0) & (graph.tasks.lane[path.task] >= 0)
    of_host &= ~graph.waits_for_recording()[path.task]
    release = np.where(of_host, index["host"], index["release"])
    other_causes = (np.full(len(path), index["contention"]), lag_cause, np.full(len(path), index["ready"]), release)
    return np.asarray(np.choose(path.part, (task_cause, *other_causes)))


def _sum_by_name(names: Sequence[str], index: Ints, ns: Floats) -> dict[str, float]:
    """Return the time by name in the order of `names`; names that do not occur are left out."""
    sums = np.bincount(index, weights=ns, minlength=len(names))
    by_name: dict[str, float] = {}
    for i in np.flatnonzero(np.bincount(index, minlength=len(names))).tolist():
        by_name[names[i]] = by_name.get(names[i], 0.0) + float(sums[i])
    return by_name


#: Times this close are equal, ns: a profiler resolves 1 ns, the engine rounds below it.
_SAME_NS = 1.0


@dataclass(frozen=True)
class DependencyKind:
    """Counts of the edges of one kind.

    Parameters
    ----------
    kind : str
        Name of an `EdgeKind`, in lower case.
    recorded : bool
        Whether the profiler recorded both ends. Other edges are inferred from times and the order of calls.
    edges : int
        Number of edges.
    binding : int
        Number of edges that decided when their target started.
    critical : int
        Number of edges on the critical path.
    critical_lag_ns : float
        Sum of their lags on the critical path.
    """

    kind: str
    recorded: bool
    edges: int
    binding: int
    critical: int
    critical_lag_ns: float


@dataclass(frozen=True)
class Dependencies:
    """Edges of a timeline's graph by kind, in the order of `EdgeKind`; kinds without edges are left out."""

    kinds: tuple[DependencyKind, ...]

    def recorded_share(self, what: str = "edges") -> float:
        """Return the recorded share of all edges, or of ``"binding"`` or ``"critical"`` ones; NaN if there are none."""
        total = sum(getattr(kind, what) for kind in self.kinds)
        return sum(getattr(kind, what) for kind in self.kinds if kind.recorded) / total if total else float("nan")


def dependencies(timeline: Timeline) -> Dependencies:
    """Return the number of edges by kind: all, binding, and on the critical path.

    An edge binds if its target starts as soon as the edge allows. Edges of the critical path without a lag count too.
    """
    edges = timeline.graph.edges
    allowed = np.where(edges.from_start, timeline.start_ns[edges.source], timeline.end_ns[edges.source]) + edges.lag_ns
    start = timeline.start_ns[edges.target]
    binding = allowed >= start - np.maximum(_SAME_NS, 1e-12 * np.abs(start))
    critical = _critical_edges(timeline)
    rows = []
    for kind in EdgeKind:
        of_kind = edges.kind == kind
        if of_kind.any():
            on_path = critical[edges.kind[critical] == kind]
            lag = float(edges.lag_ns[on_path].sum())
            counts = (int(of_kind.sum()), int((of_kind & binding).sum()), len(on_path))
            rows.append(DependencyKind(kind.name.lower(), kind in RECORDED_EDGES, *counts, lag))
    return Dependencies(tuple(rows))


def _critical_edges(timeline: Timeline) -> npt.NDArray[np.int64]:
    """Return the edges of a critical path, from the iteration's last task back to its start."""
    source, in_iteration = timeline.graph.edges.source, timeline.graph.tasks.in_iteration
    if not in_iteration.any():
        return np.zeros(0, dtype=np.int64)
    into = binding_edges(timeline)
    last = in_iteration & (timeline.end_ns >= timeline.end_ns[in_iteration].max() - _SAME_NS)
    # Of the tasks that end last, one that waits for another tells more than a mark at a fixed time.
    task = int(np.argmax(np.where(last, 1 + (into >= 0), 0)))
    path: list[int] = []
    while (edge := int(into[task])) >= 0 and len(path) < len(in_iteration):  # tasks of the path, under 1 us each
        path.append(edge)
        task = int(source[edge])
    return np.array(path, dtype=np.int64)
