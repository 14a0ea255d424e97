"""Stream what-if: chosen tasks run on another stream of their device.

Moving a task changes four groups of edges. The order on its old stream closes over it (`_reordered`). The task still
waits for its old predecessor. It gets an order on its new stream (`_new_order`). Events and host waits that
followed it on the old stream wait for it as well (`_waits`).
"""

from dataclasses import dataclass, replace

import numpy as np

from profilers.errors import InvalidInputError
from profilers.trace.arrays import Bools, Floats, Ints
from replay.calibration.parameters import Parameters
from replay.engine.engine import simulate
from replay.graph.choice import TaskChoice
from replay.graph.edit import previous_on_lane
from replay.graph.graph import STREAM_EDGES, SYNC_EDGES, EdgeKind, Edges, KernelGraph, Lane
from replay.what_ifs.what_if import Argument, WhatIf, recipe, tasks_argument, what_if_text

#: Edges by which another stream, or the host, waits for a stream.
_WAITS_FOR_STREAM = (EdgeKind.WAIT, EdgeKind.WAIT_INFERRED, *sorted(SYNC_EDGES))
_ON_STREAM = sorted(STREAM_EDGES)
_TASKS = tasks_argument("move")


@recipe("scheduling", "change_stream:optimizer:new", _TASKS, Argument("stream", "number of the new stream, or new"))
def change_stream(tasks: str, stream: str) -> WhatIf:
    """Move chosen tasks to another stream of their device.

    STREAM is the number of a stream, or ``new`` for one new stream per old stream. A moved task takes its place on the
    new stream by its start in the replay.

    A trace shows the order of kernels, but not which kernel needs which result. The what-if therefore assumes:

    - A moved task still waits for its predecessors on the old stream.
    - Later tasks on the old stream no longer wait for the moved task.
    - Events and host waits for the old stream, past the moved task, also wait for the moved task.

    Not modelled: a later kernel on the old stream that does need the result; the gain is then too high. Choose kernels
    whose result is used much later: gradient reductions, prefetches, logging.

    Source: the order that streams and events guarantee (CUDA and HIP programming guides).

    Raises
    ------
    InvalidInputError
        `tasks` is no valid choice, or `stream` is no number of a stream.
    """
    choice = TaskChoice(tasks)
    if stream != "new" and not (stream.isascii() and stream.isdecimal() and len(stream) < 19):
        raise InvalidInputError(f"a stream of {stream[:40]!r}: give the number of a stream, or new")

    def transform(graph: KernelGraph, _parameters: Parameters) -> KernelGraph:
        chosen = choice.rows(graph)
        lanes, lane = _new_lanes(graph, chosen, stream)
        moved = lane != graph.tasks.lane
        note = (
            f"change_stream: {int((moved & chosen).sum())} tasks; nothing later on their stream is taken to need them"
        )
        if not moved.any():
            return graph.with_notes([note])
        start, end = simulate(graph)
        order = np.lexsort((np.arange(len(lane)), end, start))
        move = _Move(graph, moved, order, lane)
        edges = _reordered(move)
        release = _release_times(move, start)
        changed = replace(graph, lanes=lanes, edges=edges).with_tasks(lane=lane, release_ns=release)
        return changed.with_notes([note])

    return WhatIf(what_if_text("change_stream", tasks, stream), transform, choices=(choice,))


@dataclass(frozen=True)
class _Move:
    """The lanes of a graph's tasks before and after a move.

    Parameters
    ----------
    graph : KernelGraph
        The graph before the move.
    moved : array of bool
        Whether each task moves.
    order : array of int64
        All tasks, sorted by start.
    lane : array of int64
        Lane of each task after the move.
    """

    graph: KernelGraph
    moved: Bools
    order: Ints
    lane: Ints

    def before(self) -> Ints:
        """Return the last task that stays before each task on its old lane; -1 for none."""
        return previous_on_lane(self.graph.tasks.lane, self.order, ~self.moved)


def _new_lanes(graph: KernelGraph, chosen: Bools, stream: str) -> tuple[tuple[Lane, ...], Ints]:
    """Return the lanes, new ones included, and the lane of each task. Arrivals move with their collective."""
    tasks = graph.tasks
    moves = chosen & (tasks.lane >= 0)
    moves[graph.arrivals()[moves]] = True
    lanes, lane = list(graph.lanes), tasks.lane.copy()
    for old in np.unique(tasks.lane[moves]).tolist():
        old_lane = graph.lanes[old]
        numbers = [each.number for each in lanes if (each.rank, each.device) == (old_lane.rank, old_lane.device)]
        target = Lane(old_lane.rank, old_lane.device, max(numbers) + 1 if stream == "new" else int(stream))
        if target not in lanes:
            lanes.append(target)
        lane[moves & (tasks.lane == old)] = lanes.index(target)
    return tuple(lanes), lane


def _reordered(move: _Move) -> Edges:
    """Return the edges after the move: without the old order of moved tasks, and with all new edges."""
    graph, moved = move.graph, move.moved
    edges, tasks = graph.edges, graph.tasks
    on_stream = np.isin(edges.kind, _ON_STREAM) & (tasks.lane[edges.source] == tasks.lane[edges.target])
    leaves = on_stream & moved[edges.source] & ~moved[edges.target]
    enters = on_stream & ~moved[edges.source] & moved[edges.target]
    kept = replace(edges, kind=np.where(enters, int(EdgeKind.WAIT_INFERRED), edges.kind))
    before = move.before()
    # The order on the old stream closes over the moved tasks; a pause before the next task stays a pause.
    target = edges.target[leaves]
    closing = before[target] >= 0
    lag = np.where(edges.from_start[leaves], 0.0, edges.lag_ns[leaves])[closing]
    bridge = Edges.of(before[target][closing], target[closing], lag_ns=lag, kind=edges.kind[leaves][closing])
    # Moved tasks still wait for their predecessors on the old stream.
    rows = np.flatnonzero(moved & (before >= 0))
    inputs = Edges.of(before[rows], rows, kind=EdgeKind.WAIT_INFERRED)
    return kept.select(~leaves).joined(bridge, inputs, _new_order(move), _waits(move))


def _new_order(move: _Move) -> Edges:
    """Return the edges of the order on the new streams, next to moved tasks."""
    lane = move.lane
    before = previous_on_lane(lane, move.order, np.ones(len(lane), dtype=bool))
    rows = np.flatnonzero((before >= 0) & (move.graph.tasks.device >= 0))
    joins = (move.moved[rows] | move.moved[before[rows]]) & np.isin(lane[rows], lane[move.moved])
    rows = rows[joins]
    return Edges.of(before[rows], rows, kind=EdgeKind.STREAM)


def _waits(move: _Move) -> Edges:
    """Return edges to every event and host wait from the last moved task before it."""
    graph = move.graph
    edges = graph.edges
    latest = previous_on_lane(graph.tasks.lane, move.order, move.moved)
    leaves = np.isin(edges.kind, _WAITS_FOR_STREAM) & (latest[edges.source] >= 0)
    leaves &= graph.tasks.lane[edges.source] != graph.tasks.lane[edges.target]
    return Edges.of(latest[edges.source[leaves]], edges.target[leaves], kind=edges.kind[leaves])


def _release_times(move: _Move, start: Floats) -> Floats:
    """Return release times. If the first task of a stream moves, its successor still starts no earlier than it did."""
    edges, tasks = move.graph.edges, move.graph.tasks
    on_stream = np.isin(edges.kind, _ON_STREAM) & (tasks.lane[edges.source] == tasks.lane[edges.target])
    orphans = on_stream & move.moved[edges.source] & ~move.moved[edges.target] & (move.before()[edges.target] < 0)
    release = tasks.release_ns.copy()
    np.maximum.at(release, edges.target[orphans], start[edges.source[orphans]])
    return release
