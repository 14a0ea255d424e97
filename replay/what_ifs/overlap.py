"""What if overlap were removed, cost nothing, or hid all communication?"""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from profilers.errors import InvalidInputError
from profilers.trace.arrays import Ints
from replay.calibration.parameters import Parameters
from replay.engine.engine import simulate
from replay.graph.graph import EdgeKind, Edges, KernelGraph, TaskKind
from replay.what_ifs.what_if import Argument, Recipe, WhatIf, unknown

#: What ``overlap:all`` asks of a trace: each published way to hide communication, and the bounds.
OVERLAPS: tuple[str, ...] = (
    "c3:sp",
    "c3:rp",
    "c3:dma",
    "c3:dma_rp",
    "t3",
    "ficco:8",
    "fuse_collectives",
    "overlap:none",
    "overlap:no_contention",
    "overlap:ideal",
)


def overlap(mode: str) -> WhatIf:
    """Change what runs beside what.

    - ``none``: on every device one task at a time, in the order in which they start.
    - ``no_contention``: collectives and copies take no share of any resource, so they slow nothing.
    - ``ideal``: as ``no_contention``, and nothing but other communication waits for a collective: the bound
      that no schedule of the same work can beat.

    Not modelled: what a schedule that comes near to the bound would cost.

    Raises
    ------
    NotFoundError
        There is no such mode.
    InvalidInputError
        It is ``all``, which stands for `OVERLAPS`.
    """
    if mode == "all":
        raise InvalidInputError("overlap:all stands for several what-ifs: give it by itself, to project or report")
    if mode not in _MODES:
        raise unknown("overlap has no mode", mode, _MODES)
    return WhatIf(f"overlap:{mode}", _MODES[mode])


def _serial(graph: KernelGraph, _parameters: Parameters) -> KernelGraph:
    start, end = simulate(graph)
    rows = np.flatnonzero(graph.on_device())
    order = rows[np.lexsort((rows, end[rows], start[rows], graph.tasks.device[rows]))]
    same = graph.tasks.device[order][1:] == graph.tasks.device[order][:-1]
    chain = _edges(order[:-1][same], order[1:][same])
    # Order by start alone replaces "starts a little before its predecessor ends".
    kept = graph.edges.select(~(graph.edges.from_start & (graph.edges.kind == EdgeKind.STREAM)))
    return replace(graph, edges=kept.joined(chain))


def _edges(source: Ints, target: Ints) -> Edges:
    n = len(source)
    return Edges(source, target, np.zeros(n), np.zeros(n, dtype=bool), np.full(n, int(EdgeKind.STREAM)))


def _no_contention(graph: KernelGraph, _parameters: Parameters) -> KernelGraph:
    free = np.isin(graph.tasks.kind, (TaskKind.COLLECTIVE, TaskKind.COPY))
    tasks = graph.tasks
    return graph.with_tasks(
        demand=np.where(free[:, None], 0.0, tasks.demand), occupies=np.where(free, 0.0, tasks.occupies)
    )


def _ideal(graph: KernelGraph, parameters: Parameters) -> KernelGraph:
    graph = _no_contention(graph, parameters)
    tasks, edges = graph.tasks, graph.edges
    communication = (tasks.kind == TaskKind.COLLECTIVE) | _arrivals(graph)
    leaving = communication[edges.source] & ~communication[edges.target] & (edges.kind != EdgeKind.RENDEZVOUS)
    entering = ~communication[edges.source] & communication[edges.target]
    # What stood before a collective on its stream still comes before what stood after it.
    before = {
        int(t): int(s)
        for s, t in zip(edges.source[entering], edges.target[entering], strict=True)
        if _same_lane(graph, s, t)
    }
    bridges = [
        (before[begin], int(t))
        for s, t in zip(edges.source[leaving], edges.target[leaving], strict=True)
        if _same_lane(graph, s, t) and (begin := graph.arrival_of(int(s))) in before
    ]
    pairs = np.array(bridges, dtype=np.int64).reshape(-1, 2)
    return replace(graph, edges=edges.select(~leaving).joined(_edges(pairs[:, 0], pairs[:, 1])))


def _same_lane(graph: KernelGraph, one: int, other: int) -> bool:
    return bool(graph.tasks.lane[one] == graph.tasks.lane[other])


def _arrivals(graph: KernelGraph) -> npt.NDArray[np.bool_]:
    """Return which marks are the arrival of a rank at a collective, or their meeting."""
    meets = graph.edges.kind == EdgeKind.RENDEZVOUS
    arrivals = np.zeros(len(graph.tasks), dtype=bool)
    arrivals[graph.edges.source[meets]] = True
    return np.asarray(arrivals & (graph.tasks.kind == TaskKind.MARK))


_MODES: Mapping[str, Callable[[KernelGraph, Parameters], KernelGraph]] = {
    "none": _serial,
    "no_contention": _no_contention,
    "ideal": _ideal,
}
RECIPES = (
    Recipe(
        "overlap",
        overlap,
        (Argument("mode", "none, no_contention, ideal, or by itself all"),),
        "Device work runs one at a time; communication slows nothing; nothing waits for it; or all ways, ranked.",
        "overlap:ideal",
        "communication",
    ),
)
