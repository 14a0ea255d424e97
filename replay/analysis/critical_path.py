"""The critical path: what the end of a timeline waited for, back to its beginning, with every ns accounted for."""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from profilers.compiled import compiled
from replay.analysis.binding import binding_edges
from replay.timeline import Timeline

__all__ = ["CriticalPath", "Part", "critical_path"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


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
    counts that `replay.analysis.binding` names. An edge that counts from its source's start leaves the path at that
    start: what the source did after it is not on the path. Of several tasks that end last it is one that takes time.
    Of a timeline with an interval, the pieces in it are returned. In a steady state that is the cycle of waits that
    sets the pace: what only ends the last step lies behind the interval.

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

    >>> from replay.build.draft import Draft
    >>> from replay.graph import EdgeKind, Hardware, TaskKind
    >>> from replay.timeline import replay
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
