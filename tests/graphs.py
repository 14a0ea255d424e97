"""Hand-built graphs for the tests of the engine and the what-ifs."""

from collections.abc import Sequence

import numpy as np

from replay.graph.graph import RESOURCES, EdgeKind, Edges, Hardware, KernelGraph, Lane, TaskKind, Tasks

#: The resources that the tests give demands of, in this order.
GIVEN = ("cu", "hbm", "link", "dma", "l2", "power")
Edge = tuple[int, int] | tuple[int, int, float] | tuple[int, int, float, bool]


def make_graph(
    durations: Sequence[float],
    demands: Sequence[Sequence[float]] | None = None,
    edges: Sequence[Edge] = (),
    **columns: Sequence[float],
) -> KernelGraph:
    """Return a graph of kernels on one device: durations in ns, demands in the order of `GIVEN`."""
    n = len(durations)
    zeros = np.zeros(n, dtype=np.int64)
    demand = np.zeros((n, len(RESOURCES)))
    for row, shares in enumerate([] if demands is None else demands):
        for name, share in zip(GIVEN, shares, strict=False):
            demand[row, RESOURCES.index(name)] = share
    nan = np.full(n, np.nan)
    tasks = {
        "kind": zeros + TaskKind.KERNEL,
        "name": zeros,
        "class_": zeros,
        "lane": zeros,
        "device": zeros,
        "duration_ns": np.array(durations, dtype=np.float64),
        "demand": demand,
        "release_ns": np.zeros(n),
        "measured_start_ns": nan,
        "measured_end_ns": nan,
        "basis": zeros,
        "iteration": zeros,
        "event": np.arange(n),
        "workgroups": zeros,
        "bytes": zeros,
        "dtype": zeros - 1,
        "collective": zeros - 1,
        "operator": zeros - 1,
    }
    for name, values in columns.items():
        tasks[name] = np.array(values, dtype=tasks[name].dtype if name in tasks else None)
    full = [(*edge, 0.0, False)[:4] if len(edge) == 2 else (*edge, False)[:4] for edge in edges]
    sides = list(zip(*full, strict=True)) or [()] * 4
    joined = Edges(
        np.array(sides[0], dtype=np.int64),
        np.array(sides[1], dtype=np.int64),
        np.array(sides[2], dtype=np.float64),
        np.array(sides[3], dtype=np.bool_),
        np.full(len(full), int(EdgeKind.STREAM)),
    )
    return KernelGraph(Tasks(**tasks), joined, ("kernel",), (Lane(0, 0, 7),), ((0, 0),), 0.0, Hardware())
