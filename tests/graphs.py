"""Hand-built graphs for the tests of the engine and the what-ifs."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

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


INTERFERENCE = ("pressure", "sensitivity")
#: Compute units of a device in graphs of whole workgroups. Collectives that wait hold 0.95 of them.
N_UNITS = 20
LIMITS = ("unit_threads", "unit_registers", "unit_shared", "unit_slots")


def placed_columns(draw: st.DrawFn) -> tuple[list[float], dict[str, Any]]:
    """Return the demands of a random task of whole workgroups, which share units with others, and its columns.

    On a unit fit 1 to 4 of them; one limit or several say so.
    """
    per_unit = draw(st.integers(1, 4))
    at_once = N_UNITS * per_unit
    workgroups = draw(st.one_of(st.just(at_once), st.integers(0, at_once)))
    in_rounds, occupies = draw(st.booleans()), workgroups / at_once
    waves = [0.0, occupies]
    if workgroups == at_once:
        waves += [draw(st.integers(at_once, 4 * at_once)) / at_once] if in_rounds else [1.5, 2.0, 3.0]
    takes = [min(draw(st.sampled_from([1 / 20, 1 / 4, 1.0])), 1 / per_unit) for _ in LIMITS]
    takes[draw(st.integers(0, 3))] = 1 / per_unit
    columns = {
        "occupies": occupies,
        "waves": draw(st.sampled_from(waves)),
        "in_rounds": in_rounds,
        "stays": draw(st.sampled_from([False, False, True])),
        "spreads": draw(st.sampled_from([False, False, not in_rounds])),
        "spins": draw(st.sampled_from([0.0, 0.3, 1.0])),
        "unit_compute": draw(st.sampled_from([0.0, 0.1, 0.5, 1.0])) / per_unit,
        "unit_bandwidth": draw(st.sampled_from([0.0, 0.0, 0.5, 1.0])) / per_unit,
        "priority": draw(st.sampled_from([0, 0, 1, 2])),
        "device": draw(st.sampled_from([0, 0, 0, 1, -1])),
        "release_ns": float(draw(st.integers(0, 10_000))),
        **dict(zip(LIMITS, takes, strict=True)),
    }
    share = st.one_of(st.just(0.0), st.floats(1e-3, 1))
    needed = draw(st.sampled_from([1.0, 1.0, 0.5])) * occupies
    return [needed, *(draw(share) if draw(st.booleans()) else 0.0 for _ in GIVEN[1:])], columns


@st.composite
def placed_graphs(draw: st.DrawFn, *, most: int = 8, in_memory: bool = False) -> KernelGraph:
    """Random graphs of up to `most` tasks of whole workgroups; with `in_memory`, some feel its latency under load."""
    rows = [placed_columns(draw) for _ in range(draw(st.integers(1, most)))]
    n = len(rows)
    columns = {name: [row[name] for _, row in rows] for name in rows[0][1]}
    parts = st.sampled_from([0.0, 0.5, 1.0])
    for name in (*INTERFERENCE, *(("memory_part",) if in_memory else ())):
        columns[name] = draw(st.lists(parts, min_size=n, max_size=n))
    durations = draw(st.lists(st.integers(1, 10_000), min_size=n, max_size=n))
    pairs = st.tuples(st.integers(0, n - 1), st.integers(0, n - 1), st.integers(0, 500), st.booleans())
    edges = [(min(a, b), max(a, b), float(lag), s) for a, b, lag, s in draw(st.lists(pairs, max_size=8)) if a != b]
    return make_graph(durations, [demand for demand, _ in rows], edges, **columns)
