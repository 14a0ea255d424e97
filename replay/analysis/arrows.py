"""What a picture of a timeline shows beside its tasks: time spent waiting, and arrows from what was waited for."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from replay.analysis.binding import binding_edges
from replay.graph import LAUNCH_EDGES, SYNC_EDGES, EdgeKind, TaskKind
from replay.timeline import Timeline

__all__ = ["Arrows", "Waits", "arrows_of", "waits_of"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_SYNCS = sorted(SYNC_EDGES)
#: Order on a stream or a thread shows by itself.
_SHOWN = sorted(LAUNCH_EDGES | {EdgeKind.HANDOFF, EdgeKind.AUTOGRAD, EdgeKind.WAIT, EdgeKind.WAIT_INFERRED})


@dataclass(frozen=True)
class Waits:
    """Columns of equal length, one row a span in which a lane waits.

    Parameters
    ----------
    mark : array of int64
        The mark that stands for it: a call that returns, or a rank's arrival at a collective.
    begin_ns, end_ns : array of float64
    for_device : array of bool
        Whether a call waits for the device, rather than a rank for others.
    """

    mark: Ints
    begin_ns: Floats
    end_ns: Floats
    for_device: npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Arrows:
    """Columns of equal length, one row an arrow, ordered by edge.

    Parameters
    ----------
    edge : array of int64
    source, target : array of int64
        The tasks that it joins, of which each has a lane.
    begin_ns, end_ns : array of float64
        Where it leaves the source, and reaches the target.
    """

    edge: Ints
    source: Ints
    target: Ints
    begin_ns: Floats
    end_ns: Floats


def waits_of(timeline: Timeline) -> Waits:
    """Return when calls wait for the device, and ranks for each other, where that takes time.

    Parameters
    ----------
    timeline : Timeline
    """
    tasks, edges = timeline.graph.tasks, timeline.graph.edges
    mark = (tasks.kind == TaskKind.MARK) & (tasks.lane >= 0)
    returns = np.zeros(len(tasks), dtype=bool)
    returns[edges.target[np.isin(edges.kind, _SYNCS)]] = True
    begin, end = timeline.start_ns.copy(), timeline.start_ns.copy()
    issued = np.flatnonzero((edges.kind == EdgeKind.HOST) & (returns & mark)[edges.target] & ~edges.from_start)
    since = timeline.end_ns[edges.source[issued]] + edges.lag_ns[issued]
    begin[edges.target[issued]] = np.minimum(since, end[edges.target[issued]])
    meets = np.flatnonzero((edges.kind == EdgeKind.RENDEZVOUS) & mark[edges.source])
    end[edges.source[meets]] = timeline.start_ns[edges.target[meets]]
    rows = np.flatnonzero(mark & (end > begin))
    return Waits(rows, begin[rows], end[rows], returns[rows])


def arrows_of(timeline: Timeline, waits: Waits) -> Arrows:
    """Return an arrow for each launch, wait, handing over and synchronisation, and from the last rank to the others.

    Parameters
    ----------
    timeline : Timeline
    waits : Waits
        Of the same timeline: a synchronisation has an arrow from what let the call return, where it waits.
    """
    tasks, edges = timeline.graph.tasks, timeline.graph.edges
    drawn = (tasks.kind != TaskKind.MARK) & (tasks.lane >= 0)
    waiting = np.zeros(len(tasks), dtype=bool)
    waiting[waits.mark[waits.for_device]] = True
    plain = np.isin(edges.kind, _SHOWN) & drawn[edges.target]
    binds = binding_edges(timeline)[edges.target] == np.arange(len(edges))
    plain |= np.isin(edges.kind, _SYNCS) & waiting[edges.target] & binds
    source = _last_rank(timeline, edges.source.copy())
    others = (edges.kind == EdgeKind.RENDEZVOUS) & (source != edges.source) & (source != edges.target)
    rows = np.flatnonzero((plain | (others & drawn[edges.target])) & drawn[source])
    source, target = source[rows], edges.target[rows]
    # Each end has to lie in the span of its task, whose end is no part of it.
    left = np.where(edges.from_start[rows], timeline.start_ns[source], timeline.end_ns[source] - 1)
    left = np.where(others[rows], timeline.start_ns[source], np.maximum(left, timeline.start_ns[source]))
    reached = timeline.start_ns[target] - np.isin(edges.kind[rows], _SYNCS)
    return Arrows(rows, source, target, left, reached)


def _last_rank(timeline: Timeline, source: Ints) -> Ints:
    """Return the sources of edges; those that leave a rendezvous as the collective of the rank that came last."""
    tasks, edges = timeline.graph.tasks, timeline.graph.edges
    meeting = (tasks.kind == TaskKind.MARK) & (tasks.lane < 0)
    into = np.flatnonzero((edges.kind == EdgeKind.RENDEZVOUS) & meeting[edges.target])
    into = into[np.lexsort((-edges.source[into], timeline.start_ns[edges.source[into]]))]
    lane = np.full(len(tasks), -1)
    lane[edges.target[into]] = tasks.lane[edges.source[into]]  # of several, the last stays
    out = np.flatnonzero((edges.kind == EdgeKind.RENDEZVOUS) & meeting[edges.source])
    same = out[lane[edges.source[out]] == tasks.lane[edges.target[out]]]
    last = np.arange(len(tasks))
    last[edges.source[same]] = edges.target[same]
    source[out] = last[edges.source[out]]
    return source
