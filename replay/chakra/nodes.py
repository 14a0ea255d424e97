"""Tasks as nodes that a simulator runs: whole microseconds that do not drift, delays as nodes, ranks apart."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from replay.chakra.meetings import Meetings, meetings_of, ranks_of
from replay.engine import simulate
from replay.graph import KernelGraph

__all__ = ["Delay", "Nodes", "order_nodes"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Delay:
    """A node that stands for no task: a lag, a time before which a task may not start, or a task's start.

    Parameters
    ----------
    id, rank : int
    name : str
        ``"lag"``, ``"release"`` or ``"start"``.
    start_us, duration_us : int
    waits_for : tuple of int
        Ids of nodes.
    host : bool
        Whether what waits for it is of the host.
    """

    id: int
    rank: int
    name: str
    start_us: int
    duration_us: int
    waits_for: tuple[int, ...]
    host: bool


@dataclass(frozen=True)
class Nodes:
    """A graph's nodes; the id of the node of task t is t + 1.

    Parameters
    ----------
    rank, start_us, duration_us : array of int64, one a task
    waits_for : tuple of tuple of int
        By task, ids of nodes of the same rank.
    delays : tuple of Delay
    meetings : Meetings
    unexpressed : int
        Edges between ranks that no collective, send or receive of the files stands for.
    """

    rank: Ints
    start_us: Ints
    duration_us: Ints
    waits_for: tuple[tuple[int, ...], ...]
    delays: tuple[Delay, ...]
    meetings: Meetings
    unexpressed: int


@dataclass(frozen=True)
class _Wait:
    """That a task starts no earlier than a time after another's start or end."""

    source: int
    target: int
    lag_ns: float
    from_start: bool


def order_nodes(graph: KernelGraph) -> Nodes:
    """Return the nodes of a graph.

    Times are rounded, not durations: each lasts from the rounded start to the rounded end of its task in a replay in
    which nothing shares a device, so that running the files without contention ends within half a microsecond of it.
    """
    alone = graph.with_tasks(device=np.full(len(graph.tasks), -1))
    start, end = simulate(alone)
    rank = ranks_of(graph)
    meetings = meetings_of(graph, rank)
    waits = [*_own_waits(graph, rank), *_through_meetings(graph, rank)]
    waits_for, delays = _with_delays(graph, rank, (start, end), waits)
    start_us = _us(start)
    return Nodes(rank, start_us, _us(end) - start_us, waits_for, delays, meetings, _unexpressed(graph, rank, meetings))


def _us(times: Floats) -> Ints:
    return np.rint(np.maximum(times, 0.0) / 1000).astype(np.int64)


def _own_waits(graph: KernelGraph, rank: Ints) -> Iterator[_Wait]:
    """Yield the edges within ranks."""
    edges = graph.edges
    for e in np.flatnonzero(rank[edges.source] == rank[edges.target]).tolist():
        yield _Wait(int(edges.source[e]), int(edges.target[e]), float(edges.lag_ns[e]), bool(edges.from_start[e]))


def _through_meetings(graph: KernelGraph, rank: Ints) -> Iterator[_Wait]:
    """Yield what a task waits for on its own rank behind a mark of another rank's file."""
    edges, tasks = graph.edges, graph.tasks
    between = (tasks.lane < 0) & (tasks.duration_ns == 0)
    into: dict[int, list[int]] = {}
    for e in np.flatnonzero(between[edges.target]).tolist():
        into.setdefault(int(edges.target[e]), []).append(e)
    for e in np.flatnonzero(between[edges.source] & (rank[edges.source] != rank[edges.target])).tolist():
        target = int(edges.target[e])
        for first in into.get(int(edges.source[e]), ()):
            if rank[edges.source[first]] == rank[target]:
                lag = float(edges.lag_ns[first] + edges.lag_ns[e])
                yield _Wait(int(edges.source[first]), target, lag, bool(edges.from_start[first]))


class _Delays:
    """Nodes between tasks under construction, by the times of a replay."""

    def __init__(self, graph: KernelGraph, rank: Ints) -> None:
        self._host, self._rank = graph.tasks.device < 0, rank
        self.nodes: list[Delay] = []

    def add(self, task: int, name: str, times_ns: tuple[float, float], waits_for: tuple[int, ...]) -> int:
        """Append what comes before a task; return its id."""
        begin, end = _us(np.array(times_ns)).tolist()
        id_ = len(self._rank) + 1 + len(self.nodes)
        host, rank = bool(self._host[task]), int(self._rank[task])
        self.nodes.append(Delay(id_, rank, name, begin, end - begin, waits_for, host))
        return id_

    def wait(self, id_: int, waits_for: tuple[int, ...]) -> None:
        """Let a node wait for others."""
        at = id_ - len(self._rank) - 1
        self.nodes[at] = replace(self.nodes[at], waits_for=waits_for)


def _with_delays(
    graph: KernelGraph, rank: Ints, times: tuple[Floats, Floats], waits: list[_Wait]
) -> tuple[tuple[tuple[int, ...], ...], tuple[Delay, ...]]:
    """Return what each task waits for, and the nodes in between; a loop over edges, about 10 us each."""
    start, end = times
    delays = _Delays(graph, rank)
    found = _after_releases(graph, rank, delays)
    begins = {wait.source: -1 for wait in waits if wait.from_start}
    for source in begins:
        begins[source] = delays.add(source, "start", (float(start[source]), float(start[source])), ())
    for wait in waits:
        node = begins[wait.source] if wait.from_start else wait.source + 1
        if wait.lag_ns > 0:
            since = float((start if wait.from_start else end)[wait.source])
            node = delays.add(wait.target, "lag", (since, since + wait.lag_ns), (node,))
        found[wait.target].append(node)
    # What a task waits for, its start does; the task then waits for nothing but its start.
    for source, begin in begins.items():
        delays.wait(begin, tuple(sorted({*found[source]})))
        found[source] = [begin]
    return tuple(tuple(sorted({*one})) for one in found), tuple(delays.nodes)


def _after_releases(graph: KernelGraph, rank: Ints, delays: _Delays) -> list[list[int]]:
    """Return by task the node that ends at its release, if it has one.

    Each follows the release before it on its rank, so that they take one place of a simulator, one after the other.
    """
    release = graph.tasks.release_ns
    found: list[list[int]] = [[] for _ in range(len(graph.tasks))]
    last: dict[int, tuple[float, tuple[int, ...]]] = {}
    rows = np.flatnonzero(release > 0)
    for task in rows[np.lexsort((rows, release[rows]))].tolist():
        place, time = int(rank[task]), float(release[task])
        since, before = last.get(place, (0.0, ()))
        if time > since:
            last[place] = time, (delays.add(task, "release", (since, time), before),)
        found[task] += last[place][1]
    return found


def _unexpressed(graph: KernelGraph, rank: Ints, meetings: Meetings) -> int:
    """Return how many edges between ranks nothing in the files stands for."""
    edges = graph.edges
    apart = rank[edges.source] != rank[edges.target]
    met = np.unique(meetings.mark[(meetings.mark >= 0) & ((meetings.group >= 0) | (meetings.peer >= 0))])
    stood_for = np.isin(edges.target, met) | np.isin(edges.source, met)
    return int((apart & ~stood_for).sum())
