"""Overlap what-ifs: no overlap at all, overlap without contention, or the bound of any overlap."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from profilers.errors import InvalidInputError
from replay.calibration.parameters import Parameters
from replay.engine.engine import simulate
from replay.graph.edit import without_contention, without_waits
from replay.graph.graph import EdgeKind, Edges, KernelGraph, TaskKind
from replay.what_ifs.what_if import Argument, WhatIf, recipe, unknown_name

#: What-ifs that ``overlap:all`` stands for: each published way to hide communication, and the bounds.
OVERLAPS: tuple[str, ...] = (
    "c3:sp",
    "c3:rp",
    "c3:dma",
    "c3:dma_rp",
    "t3",
    "t3:mca",
    "ficco:auto",
    "fuse_collectives",
    "overlap:none",
    "overlap:no_contention",
    "overlap:ideal",
)


@recipe(
    "communication",
    "overlap:ideal",
    Argument("mode", "none, no_contention or ideal; overlap:all alone compares every overlap what-if"),
)
def overlap(mode: str) -> WhatIf:
    """Change which device tasks run side by side.

    - ``none``: each device runs one task at a time, in the order of their starts; its memory may process beside it.
    - ``no_contention``: collectives and copies use no shared resource, so they slow no kernel.
    - ``ideal``: as ``no_contention``, and only other communication waits for a collective. No schedule of the same
      tasks can be faster.

    Not modelled: the cost of a schedule that comes close to the bound.

    Raises
    ------
    NotFoundError
        There is no such mode.
    InvalidInputError
        The mode is ``all``, a name for all of `OVERLAPS` that takes no part in a composition.
    """
    if mode == "all":
        raise InvalidInputError("overlap:all stands for several what-ifs: give it by itself, to project or report")
    if mode not in _MODES:
        raise unknown_name("overlap has no mode", mode, _MODES)
    return WhatIf(f"overlap:{mode}", _MODES[mode])


def _serial(graph: KernelGraph, _parameters: Parameters) -> KernelGraph:
    start, end = simulate(graph)
    rows = np.flatnonzero(graph.on_device() & (graph.tasks.kind != TaskKind.PIM))
    order = rows[np.lexsort((rows, end[rows], start[rows], graph.tasks.device[rows]))]
    same_device = graph.tasks.device[order][1:] == graph.tasks.device[order][:-1]
    first, then = order[:-1][same_device], order[1:][same_device]
    # Tasks of two streams have an order now, but the later one need not read what the earlier one wrote.
    same_lane = graph.tasks.lane[first] == graph.tasks.lane[then]
    chain = Edges.of(first, then, kind=np.where(same_lane, int(EdgeKind.STREAM), int(EdgeKind.SERIAL)))
    # The chain replaces edges that let a task start shortly before its predecessor ends.
    kept = graph.edges.select(~(graph.edges.from_start & (graph.edges.kind == EdgeKind.STREAM)))
    return replace(graph, edges=kept.joined(chain))


def _no_contention(graph: KernelGraph, _parameters: Parameters) -> KernelGraph:
    return without_contention(graph)


def _ideal(graph: KernelGraph, _parameters: Parameters) -> KernelGraph:
    return without_waits(graph)


_MODES: Mapping[str, Callable[[KernelGraph, Parameters], KernelGraph]] = {
    "none": _serial,
    "no_contention": _no_contention,
    "ideal": _ideal,
}
