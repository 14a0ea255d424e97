"""What if kernels ran on another stream?"""

from dataclasses import dataclass, replace

import numpy as np

from profilers.errors import InvalidInputError
from profilers.trace.arrays import Bools, Floats, Ints
from replay.calibration.parameters import Parameters
from replay.engine.engine import simulate
from replay.graph.graph import STREAM_EDGES, SYNC_EDGES, EdgeKind, Edges, KernelGraph, Lane, TaskKind
from replay.what_ifs.what_if import Argument, Recipe, TaskChoice, WhatIf, written

#: Edges by which something off a stream waits for work on it.
_LEAVES = (EdgeKind.WAIT, EdgeKind.WAIT_INFERRED, *sorted(SYNC_EDGES))
_ON_STREAM = sorted(STREAM_EDGES)


def change_stream(tasks: str, stream: str) -> WhatIf:
    """Chosen tasks run on another stream of their device: ``new``, one for each old stream, or the number of one.

    A trace says in which order kernels ran and not which needs whose result, so this is assumed: a moved task still
    waits for what stood before it on its old stream; what stands after it on that stream does not wait for it any more;
    whatever waited, by an event or on the host, for the old stream past the moved task waits for it too. On the new
    stream it takes its place by when it started.

    Not modelled: a kernel that follows on the old stream and does need the result; the gain is then too high, so choose
    kernels whose result is used later (gradient reductions, prefetches, logging).

    Source: the order that streams and events guarantee (CUDA and HIP programming guides).

    Raises
    ------
    InvalidInputError
        `tasks` can choose none, or `stream` is no number of a stream.
    """
    choice = TaskChoice(tasks)
    if stream != "new" and not (stream.isascii() and stream.isdecimal() and len(stream) < 19):
        raise InvalidInputError(f"a stream of {stream[:40]!r}: give its number, or new")

    def transform(graph: KernelGraph, _parameters: Parameters) -> KernelGraph:
        chosen = choice.rows(graph)
        lanes, lane = _lanes(graph, chosen, stream)
        moved = lane != graph.tasks.lane
        note = (
            f"change_stream: {int((moved & chosen).sum())} tasks; nothing later on their stream is taken to need them"
        )
        if not moved.any():
            return graph.with_notes([note])
        start, end = simulate(graph)
        order = np.lexsort((np.arange(len(lane)), end, start))
        sides = _Sides(graph, moved, order, lane)
        edges = _reordered(sides)
        release = _released(sides, start)
        changed = replace(graph, lanes=lanes, edges=edges).with_tasks(lane=lane, release_ns=release)
        return changed.with_notes([note])

    return WhatIf(written("change_stream", tasks, stream), transform, patterns=choice.patterns)


@dataclass(frozen=True)
class _Sides:
    """A graph, which of its tasks move, all tasks in the order of start, and the lane of each afterwards."""

    graph: KernelGraph
    moved: Bools
    order: Ints
    lane: Ints

    def before(self) -> Ints:
        """Return for each task the last one before it on its old lane that stays; -1 for none."""
        return _last(self.graph.tasks.lane, self.order, ~self.moved)


def _lanes(graph: KernelGraph, chosen: Bools, stream: str) -> tuple[tuple[Lane, ...], Ints]:
    """Return the lanes with those that are new, and the lane of each task; arrivals go with their collective."""
    tasks = graph.tasks
    arrives = (tasks.kind == TaskKind.MARK) & (tasks.event >= 0) & (tasks.device >= 0)
    arrives[:-1] &= chosen[1:] & (tasks.event[:-1] == tasks.event[1:])
    arrives[-1:] = False
    goes = (chosen | arrives) & (tasks.lane >= 0)
    lanes, lane = list(graph.lanes), tasks.lane.copy()
    for old in np.unique(tasks.lane[goes]).tolist():
        place = graph.lanes[old]
        here = [one.number for one in lanes if (one.rank, one.device) == (place.rank, place.device)]
        target = Lane(place.rank, place.device, max(here) + 1 if stream == "new" else int(stream))
        if target not in lanes:
            lanes.append(target)
        lane[goes & (tasks.lane == old)] = lanes.index(target)
    return tuple(lanes), lane


def _last(lane: Ints, order: Ints, which: Bools) -> Ints:
    """Return for each task the last of `which` that comes before it on its lane; -1 for none."""
    by_lane = order[np.argsort(lane[order], kind="stable")]
    place = np.where(which[by_lane], np.arange(len(by_lane)), -1)
    seen = np.maximum.accumulate(np.concatenate([[-1], place[:-1]]))
    same = (seen >= 0) & (lane[by_lane[np.maximum(seen, 0)]] == lane[by_lane])
    found = np.full(len(lane), -1)
    found[by_lane] = np.where(same, by_lane[np.maximum(seen, 0)], -1)
    return found


def _reordered(sides: _Sides) -> Edges:
    """Return the edges with order on old streams less what moved, order on new ones, and what waits past the old."""
    graph, moved = sides.graph, sides.moved
    edges, tasks = graph.edges, graph.tasks
    own = np.isin(edges.kind, _ON_STREAM) & (tasks.lane[edges.source] == tasks.lane[edges.target])
    leaves = own & moved[edges.source] & ~moved[edges.target]
    enters = own & ~moved[edges.source] & moved[edges.target]
    kept = replace(edges, kind=np.where(enters, int(EdgeKind.WAIT_INFERRED), edges.kind))
    before = sides.before()
    # Order on the old stream closes over what moved; the pause before the next one stays a pause.
    target = edges.target[leaves]
    closing = before[target] >= 0
    bridge = _edges(before[target][closing], target[closing], EdgeKind.STREAM)
    lag = np.where(edges.from_start[leaves], 0.0, edges.lag_ns[leaves])[closing]
    bridge = replace(bridge, lag_ns=lag, kind=edges.kind[leaves][closing])
    found = kept.select(~leaves)
    for more in (bridge, _inputs(sides, before), _chain(sides), _waits(sides)):
        found = found.joined(more)
    return found


def _inputs(sides: _Sides, before: Ints) -> Edges:
    """Return edges by which moved tasks wait for what stood before them on the old stream."""
    rows = np.flatnonzero(sides.moved & (before >= 0))
    return _edges(before[rows], rows, EdgeKind.WAIT_INFERRED)


def _chain(sides: _Sides) -> Edges:
    """Return the order on the new streams, where a neighbour has moved there."""
    lane = sides.lane
    before = _last(lane, sides.order, np.ones(len(lane), dtype=bool))
    rows = np.flatnonzero((before >= 0) & (sides.graph.tasks.device >= 0))
    joins = (sides.moved[rows] | sides.moved[before[rows]]) & np.isin(lane[rows], lane[sides.moved])
    rows = rows[joins]
    return _edges(before[rows], rows, EdgeKind.STREAM)


def _waits(sides: _Sides) -> Edges:
    """Return edges from the last moved task before each one that something off its stream waits for."""
    graph = sides.graph
    edges = graph.edges
    latest = _last(graph.tasks.lane, sides.order, sides.moved)
    leaves = np.isin(edges.kind, _LEAVES) & (latest[edges.source] >= 0)
    leaves &= graph.tasks.lane[edges.source] != graph.tasks.lane[edges.target]
    waits = _edges(latest[edges.source[leaves]], edges.target[leaves], EdgeKind.WAIT_INFERRED)
    return replace(waits, kind=edges.kind[leaves])


def _released(sides: _Sides, start: Floats) -> Floats:
    """Return the releases; what came after the first of a stream, which has moved, starts no earlier than that did."""
    edges, tasks = sides.graph.edges, sides.graph.tasks
    own = np.isin(edges.kind, _ON_STREAM) & (tasks.lane[edges.source] == tasks.lane[edges.target])
    orphans = own & sides.moved[edges.source] & ~sides.moved[edges.target] & (sides.before()[edges.target] < 0)
    release = tasks.release_ns.copy()
    np.maximum.at(release, edges.target[orphans], start[edges.source[orphans]])
    return release


def _edges(source: Ints, target: Ints, kind: EdgeKind) -> Edges:
    n = len(source)
    return Edges(source, target, np.zeros(n), np.zeros(n, dtype=bool), np.full(n, int(kind)))


_CHOSEN = Argument("tasks", "all, kernels, collectives, copies, a class, or a name with * and ?")
RECIPES = (
    Recipe(
        "change_stream",
        change_stream,
        (_CHOSEN, Argument("stream", "its number, or new")),
        "Chosen tasks run on another stream of their device, and what follows them does not wait.",
        "change_stream:optimizer:new",
        "scheduling",
    ),
)
