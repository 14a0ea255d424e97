"""`replay.what_ifs.splice`: finer graphs in the place of kernels and their collective."""

import math
from dataclasses import replace

import numpy as np
import pytest
from graphs import make_graph
from hypothesis import given
from hypothesis import strategies as st
from test_overlap_targets import GEMM, NORM, chain, ranks

from profilers.errors import InvalidInputError
from replay.calibration.parameters import Parameters
from replay.costs.shipped import load_parameters
from replay.engine.engine import simulate
from replay.graph.graph import EdgeKind, KernelGraph, TaskKind
from replay.what_ifs import WhatIf, compose, explain
from replay.what_ifs.splice import PatternBuilder, Splice, SplicePattern, splice, task_budget
from replay.what_ifs.targets import Targets, consumers, groups_of, producers


def pieces(
    members: int, n: int, *, sends: bool = True, kernel_ns: float = 40.0, transfer_ns: float = 40.0
) -> SplicePattern:
    """A kernel in n pieces, and a transfer that sends each when all members have computed it, or brings it."""
    builder = PatternBuilder(members)
    before, arrived = builder.kernel_begin, builder.collective_begin
    for _ in range(n):
        kernel = builder.tasks(
            "stage", builder.lanes(0), {"duration_ns": kernel_ns / n, "cu": 1.0, "hbm": 0.2}, scale="kernel"
        )
        columns = {"duration_ns": transfer_ns / n, "link": 1.0, "kind": TaskKind.COLLECTIVE, "bytes": 8}
        chunk = builder.tasks("chunk", builder.lanes(1), columns, scale="transfer")
        builder.edges(before, kernel)
        builder.edges(arrived, chunk)
        first, second = (kernel, chunk) if sends else (chunk, kernel)
        for member in range(members):
            builder.edges(np.roll(first, member), second)
        before, arrived = kernel, chunk
    builder.edges(before, builder.kernel_end)
    builder.edges(arrived, builder.collective_end)
    return builder.build()


def spliced(graph: KernelGraph, found: Targets, n: int) -> KernelGraph:
    groups = groups_of(graph, found.found)
    duration = graph.tasks.duration_ns
    kernels = [[float(duration[list(target.kernels)].sum()) / 40.0 for target in group] for group in groups]
    transfers = [[float(duration[target.collective]) / 40.0 for target in group] for group in groups]
    pattern = pieces(len(groups[0]), n, sends=found.found[0].sends)
    return splice(graph, [Splice(pattern, groups, kernels, transfers)])


def test_pieces_are_sent_while_the_next_are_computed() -> None:
    graph = chain([GEMM, "all_reduce", GEMM], [40.0, 20.0, 10.0])
    changed = spliced(graph, producers(graph, ("all_reduce",), ("gemm",)), 4)
    start, end = simulate(changed)
    chunks = np.flatnonzero(changed.tasks.kind == TaskKind.COLLECTIVE)
    assert start[chunks].tolist() == [10.0, 20.0, 30.0, 40.0]  # each is sent in 5, when 10 more are computed
    assert end[[0, 1, 2]].tolist() == [40.0, 45.0, 55.0]  # the rows of kernel and collective are the ends
    assert changed.tasks.kind[:2].tolist() == [TaskKind.MARK] * 2 and changed.tasks.bytes[1] == 0
    assert changed.tasks.event[chunks].tolist() == [1] * 4 and changed.lanes == graph.lanes
    again = producers(changed, ("all_reduce",), ("gemm",))
    assert again.found == () and again.missed == {"they are in pieces already": 1}


def test_pieces_are_read_while_the_next_come() -> None:
    graph = chain([GEMM, "all_gather", GEMM, GEMM], [5.0, 40.0, 40.0, 10.0])
    changed = spliced(graph, consumers(graph, ("all_gather",), ("gemm",)), 4)
    assert simulate(changed)[1][:4].tolist() == [5.0, 45.0, 55.0, 65.0]


def test_a_chunk_waits_for_all_ranks() -> None:
    graph = ranks((40.0, 80.0))
    changed = spliced(graph, producers(graph, ("all_reduce",), ("gemm",)), 4)
    start, end = simulate(changed)
    chunks = np.flatnonzero(changed.tasks.kind == TaskKind.COLLECTIVE)
    assert start[chunks].tolist() == [20.0, 20.0, 40.0, 40.0, 60.0, 60.0, 80.0, 80.0]
    assert end[[2, 5]].tolist() == [90.0, 90.0] and end[[0, 3]].tolist() == [40.0, 80.0]


@given(
    durations=st.lists(st.floats(1.0, 1e3), min_size=6, max_size=6),
    kinds=st.lists(st.booleans(), min_size=4, max_size=4),
)
def test_a_single_piece_changes_nothing(durations: list[float], kinds: list[bool]) -> None:
    classes: list[int | str] = [GEMM]
    for is_collective in kinds:
        classes.append("all_reduce" if is_collective and classes[-1] == GEMM else GEMM)
    graph = chain(classes, durations[: len(classes)])
    for search in (producers, consumers):
        found = search(graph, ("all_reduce",), ("gemm",))
        if found.found:
            assert np.allclose(simulate(spliced(graph, found, 1))[1][: len(classes)], simulate(graph)[1], rtol=1e-12)


def test_launches_may_be_dropped() -> None:
    graph = chain([GEMM, "all_reduce"], [40.0, 20.0])
    tasks = make_graph([*graph.tasks.duration_ns, 100.0], kind=[*graph.tasks.kind, TaskKind.HOST], device=[0, 0, -1],
                       class_=[GEMM, -1, -1], collective=[-1, 0, -1]).tasks  # fmt: skip
    launch = make_graph([1.0] * 3, edges=[(2, 1)]).edges
    edges = graph.edges.joined(replace(launch, kind=np.array([int(EdgeKind.LAUNCH)])))
    with_launch = replace(graph, tasks=tasks, edges=edges)
    with_launch = with_launch.with_tasks(
        **dict(zip(("measured_start_ns", "measured_end_ns"), simulate(with_launch), strict=True))
    )
    found = producers(with_launch, ("all_reduce",), ("gemm",))
    pattern, groups = pieces(1, 2, transfer_ns=20.0), groups_of(with_launch, found.found)
    kept, dropped = (splice(with_launch, [Splice(pattern, groups)], drop_launches=drop) for drop in (False, True))
    assert simulate(kept)[1][1] == 120.0 and simulate(dropped)[1][1] == 50.0


def test_patterns_fit_their_groups() -> None:
    graph = chain([GEMM, "all_reduce"], [40.0, 20.0])
    groups = groups_of(graph, producers(graph, ("all_reduce",), ("gemm",)).found)
    with pytest.raises(InvalidInputError, match="another number of ranks than its pattern, 2"):
        Splice(pieces(2, 2), groups)
    assert splice(graph, []) is graph
    assert task_budget(25_600) == 32


def test_the_effect_on_each_collective_is_told() -> None:
    graph = chain([GEMM, "all_reduce", NORM, "all_reduce", "all_gather"], [40.0, 20.0, 10.0, 5.0, 7.0])

    def search(graph: KernelGraph, _parameters: Parameters) -> Targets:
        return producers(graph, ("all_reduce",), ("gemm",))

    cut = WhatIf("cut", lambda graph, parameters: spliced(graph, search(graph, parameters), 4), targets=search)
    applied, after_norm, other = explain(compose(cut), graph, load_parameters())
    assert (applied.before_ns, applied.after_ns, applied.applies) == (60.0, 45.0, True)
    assert after_norm.reason == "normalization comes before them" and math.isnan(after_norm.after_ns)
    assert (other.kind, other.reason) == ("all_gather", "they are all_gather")
    # Another search takes all-gathers; of an all-reduce it says what would have to change.
    miss = consumers(graph, ("all_gather",), ("gemm",)).misses[0]
    assert miss.reason == "they are all_reduce" and "sequence parallelism" in miss.advice
