"""Runs of tasks side by side: the first of a set stays on its stream, the others move to streams of their own.

`run_beside` changes the order of sets and nothing else. What ran before a set on its stream, and what the set waited
for, comes before each of its runs. What followed a run on the stream waits for it. Tasks between two runs of a set
keep their order towards the runs before them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from profilers.trace.arrays import Bools, Ints
from replay.engine.engine import simulate
from replay.graph.edit import previous_on_lane
from replay.graph.graph import LAUNCH_EDGES, STREAM_EDGES, EdgeKind, Edges, KernelGraph, Lane

_ON_STREAM: Final = sorted(STREAM_EDGES)
#: Kinds of edges whose lags stand for time of the host, or of work that is not in the trace.
_PAUSES: Final = (EdgeKind.GAP, EdgeKind.GRAPH_GAP, EdgeKind.BACKLOG)
#: Rows of a run, in the order in which they run.
Run = tuple[int, ...]


def run_beside(graph: KernelGraph, sets: Sequence[Sequence[Run]]) -> KernelGraph:
    """Return the graph with the runs of each set side by side.

    Parameters
    ----------
    graph : KernelGraph
        Graph of the runs.
    sets : sequence of sequence of tuple of int
        Sets of runs. A run is consecutive tasks of one stream. Runs of a set are in the order of their stream, and no
        two sets of a stream overlap.
    """
    sets = [runs for runs in sets if len(runs) > 1]
    if not sets:
        return graph
    start, end = simulate(graph)
    lanes, lane = _new_lanes(graph, sets)
    move = _RunMove.of(graph, sets, np.lexsort((np.arange(len(start)), end, start)))
    edges = _reordered(move)
    release = graph.tasks.release_ns.copy()
    for leader, run in zip(move.leaders, move.runs, strict=True):
        release[run[0]] = max(release[run[0]], release[leader])
    changed = replace(graph, lanes=lanes, edges=edges.joined(_order_on_new_lanes(move, lane)))
    return changed.with_tasks(lane=lane, release_ns=release)


def _new_lanes(graph: KernelGraph, sets: Sequence[Sequence[Run]]) -> tuple[tuple[Lane, ...], Ints]:
    """Return the lanes, new ones included, and the lane of each task: run i of a set is on the i-th of its stream."""
    lanes, lane = list(graph.lanes), graph.tasks.lane.copy()
    extra: dict[tuple[int, int], int] = {}
    for runs in sets:
        for number, run in enumerate(runs[1:]):
            old = int(graph.tasks.lane[run[0]])
            if (old, number) not in extra:
                rank, device = lanes[old].rank, lanes[old].device
                used = [each.number for each in lanes if (each.rank, each.device) == (rank, device)]
                extra[old, number] = len(lanes)
                lanes.append(Lane(rank, device, max(used) + 1))
            lane[list(run)] = extra[old, number]
    return tuple(lanes), lane


@dataclass(frozen=True)
class _RunMove:
    """Runs that leave their streams.

    Parameters
    ----------
    graph : KernelGraph
        The graph before the move.
    runs : sequence of tuple of int
        Runs that move.
    leaders : array of int64
        For each, the first task of its set, which stays.
    run_of : array of int64
        Run of each task; -1 for tasks that stay.
    before, after : array of int64
        Last task that stays before each task on its stream, and the next one that stays; -1 for none.
    position, by_lane : array of int64
        Position of each task in `by_lane`, all tasks by stream and start.
    """

    graph: KernelGraph
    runs: Sequence[Run]
    leaders: Ints
    run_of: Ints
    before: Ints
    after: Ints
    position: Ints
    by_lane: Ints

    @classmethod
    def of(cls, graph: KernelGraph, sets: Sequence[Sequence[Run]], order: Ints) -> "_RunMove":
        """Return the move of all runs but the first of each set; `order` sorts all tasks by start."""
        runs = [run for members in sets for run in members[1:]]
        leaders = np.array([members[0][0] for members in sets for _ in members[1:]])
        lane = graph.tasks.lane
        run_of = np.full(len(lane), -1)
        for number, run in enumerate(runs):
            run_of[list(run)] = number
        by_lane = order[np.argsort(lane[order], kind="stable")]
        position = np.empty(len(lane), dtype=np.int64)
        position[by_lane] = np.arange(len(lane))
        before, after = (previous_on_lane(lane, each, run_of < 0) for each in (order, order[::-1]))
        return cls(graph, runs, leaders, run_of, before, after, position, by_lane)

    def on_stream(self) -> Bools:
        """Return the mask of edges that order a stream."""
        edges, lane = self.graph.edges, self.graph.tasks.lane
        return np.asarray(np.isin(edges.kind, _ON_STREAM) & (lane[edges.source] == lane[edges.target]))


def _reordered(move: _RunMove) -> Edges:
    """Return the edges after the move, without the order on the new streams."""
    edges, run_of, on_stream = move.graph.edges, move.run_of, move.on_stream()
    source_run, target_run = run_of[edges.source], run_of[edges.target]
    enters = on_stream & (target_run >= 0) & (source_run != target_run)
    leaves = on_stream & (source_run >= 0) & (source_run != target_run)
    kept = replace(edges, kind=np.where(leaves & ~enters, int(EdgeKind.WAIT_INFERRED), edges.kind)).select(~enters)
    # The order on the old stream closes over the runs that moved; a pause before the next task stays a pause.
    closes = leaves & ~enters
    target = edges.target[closes]
    lag = np.where(edges.from_start[closes], 0.0, edges.lag_ns[closes])
    bridge = Edges.of(move.before[target], target, lag_ns=lag, kind=edges.kind[closes])
    # A run before another run of its set: the next task that stays waits for it.
    last = edges.source[leaves & enters]
    joins = Edges.of(last, move.after[last], kind=EdgeKind.WAIT_INFERRED).select(move.after[last] >= 0)
    stayed = kept.joined(bridge, joins)
    entered = np.unique(target_run[enters])
    return stayed.joined(_entries(move, stayed, entered), _waits_inherited(move), _waits_for_stream(move))


def _entries(move: _RunMove, stayed: Edges, entered: Ints) -> Edges:
    """Return edges into each run of `entered` from all that its set's first task waits for, its launch excepted."""
    edges = move.graph.edges
    pauses = np.zeros(len(move.run_of))
    is_pause = move.on_stream() & np.isin(edges.kind, _PAUSES)
    np.add.at(pauses, edges.target[is_pause], edges.lag_ns[is_pause])
    paused_ns = np.cumsum(pauses[move.by_lane])
    order = np.argsort(stayed.target, kind="stable")
    order = order[~np.isin(stayed.kind[order], sorted(LAUNCH_EDGES))]
    by_target = stayed.target[order]
    blocks = []
    for number in entered.tolist():  # a Python loop over runs that move, about 20 us each
        leader, first = move.leaders[number], move.runs[number][0]
        into = stayed.select(order[slice(*np.searchsorted(by_target, (leader, leader + 1)))])
        pause = paused_ns[move.position[first]] - paused_ns[move.position[leader]]
        columns = {"lag_ns": into.lag_ns + pause, "from_start": into.from_start, "kind": int(EdgeKind.WAIT_INFERRED)}
        blocks.append(Edges.of(into.source, np.full(len(into), first), **columns))
    return _joined(blocks)


def _waits_inherited(move: _RunMove) -> Edges:
    """Return the waits for other streams of tasks between the first task of a set and a run, as waits of the run."""
    edges, lane = move.graph.edges, move.graph.tasks.lane
    waits = (lane[edges.source] != lane[edges.target]) & ~np.isin(edges.kind, sorted(LAUNCH_EDGES))
    waits &= move.graph.tasks.device[edges.target] >= 0
    position = np.where(waits, move.position[edges.target], -1)
    rows = np.flatnonzero(waits)
    rows = rows[np.argsort(position[rows], kind="stable")]
    blocks = []
    for leader, run in zip(move.leaders.tolist(), move.runs, strict=True):
        bounds = np.searchsorted(position[rows], (move.position[leader] + 1, move.position[run[0]]))
        into = edges.select(rows[slice(*bounds)])
        columns = {"lag_ns": into.lag_ns, "from_start": into.from_start, "kind": into.kind}
        blocks.append(Edges.of(into.source, np.full(len(into), run[0]), **columns))
    return _joined(blocks)


def _waits_for_stream(move: _RunMove) -> Edges:
    """Return edges to what waits for a run from the tasks before the run, which the stream's order stood for."""
    edges, run_of = move.graph.edges, move.run_of
    leaves = (run_of[edges.source] >= 0) & ~move.on_stream() & ~edges.from_start
    leaves &= run_of[edges.source] != run_of[edges.target]
    sources, targets = [], []
    kinds = []
    for edge in np.flatnonzero(leaves).tolist():  # a few events and host waits
        task = int(edges.source[edge])
        number = int(run_of[task])
        earlier = [int(move.before[task])]
        while number and move.leaders[number - 1] == move.leaders[number]:
            number -= 1
            earlier.append(move.runs[number][-1])
        sources += earlier
        targets += [int(edges.target[edge])] * len(earlier)
        kinds += [int(edges.kind[edge])] * len(earlier)
    return Edges.of(sources, targets, kind=kinds)


def _order_on_new_lanes(move: _RunMove, lane: Ints) -> Edges:
    """Return the order of the runs on each new stream."""
    last: dict[int, int] = {}
    pairs = []
    for run in sorted(move.runs, key=lambda run: int(move.position[run[0]])):
        number = int(lane[run[0]])
        pairs += [(last[number], run[0])] if number in last else []
        last[number] = run[-1]
    sides = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return Edges.of(sides[:, 0], sides[:, 1], kind=EdgeKind.STREAM)


def _joined(blocks: Sequence[Edges]) -> Edges:
    """Return edges as one table."""
    return Edges.of([], [], kind=EdgeKind.STREAM).joined(*blocks)
