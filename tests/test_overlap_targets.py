"""`replay.what_ifs.targets`: collectives that a what-if acts on, and why not on others."""

from dataclasses import replace

import numpy as np
from graphs import make_graph

from profilers.trace.kernels import CLASSES
from replay.engine.engine import simulate
from replay.graph.graph import COLLECTIVE_KINDS, EdgeKind, KernelGraph, Lane, TaskKind
from replay.graph.operators import batched_matmul
from replay.what_ifs.targets import producers

GEMM, COPY, NORM = (CLASSES.index(name) for name in ("gemm", "copy", "normalization"))


def chain(classes: list[int | str], durations: list[float]) -> KernelGraph:
    """One stream; a text is the kind of a collective."""
    is_text = [isinstance(one, str) for one in classes]
    graph = make_graph(
        durations,
        [(0.0, 0.0, 1.0) if text else (1.0, 0.2) for text in is_text],
        [(i, i + 1) for i in range(len(classes) - 1)],
        class_=[-1 if isinstance(one, str) else one for one in classes],
        kind=[TaskKind.COLLECTIVE if text else TaskKind.KERNEL for text in is_text],
        collective=[COLLECTIVE_KINDS.index(one) if isinstance(one, str) else -1 for one in classes],
    )
    start, end = simulate(graph)
    return graph.with_tasks(measured_start_ns=start, measured_end_ns=end)


def test_a_product_that_is_packed_and_sent_is_found() -> None:
    graph = chain([NORM, GEMM, COPY, "all_reduce", GEMM], [5.0, 40.0, 4.0, 40.0, 10.0])
    found = producers(graph, ("all_reduce",), ("gemm",))
    assert [(one.collective, one.kernels) for one in found.found] == [(3, (1, 2))]
    assert (
        found.missed == {} and found.note == "1 collectives matched (1 by order alone: shapes or sizes are not known)"
    )


def ranks(durations: tuple[float, float]) -> KernelGraph:
    """Two devices: each computes, arrives, and they meet to reduce."""
    kernel, mark, send = TaskKind.KERNEL, TaskKind.MARK, TaskKind.COLLECTIVE
    graph = make_graph(
        [durations[0], 0.0, 40.0, durations[1], 0.0, 40.0, 0.0],
        [(1.0,), (0.0,), (0.0, 0.0, 1.0)] * 2 + [(0.0,)],
        [(0, 1), (3, 4), (1, 6), (4, 6), (6, 2), (6, 5)],
        kind=[kernel, mark, send, kernel, mark, send, mark],
        class_=[GEMM, -1, -1, GEMM, -1, -1, -1],
        device=[0, 0, 0, 1, 1, 1, -1],
        lane=[0, 0, 0, 1, 1, 1, -1],
        event=[0, 1, 1, 2, 3, 3, -1],
        collective=[-1, -1, 0, -1, -1, 0, -1],
    )
    lanes = (Lane(0, 0, 7), Lane(1, 0, 7))
    kinds = np.array([EdgeKind.STREAM] * 2 + [EdgeKind.RENDEZVOUS] * 4)
    graph = replace(graph, edges=replace(graph.edges, kind=kinds), lanes=lanes, devices=((0, 0), (1, 0)))
    start, end = simulate(graph)
    return graph.with_tasks(measured_start_ns=start, measured_end_ns=end)


def test_what_does_not_fit_is_counted_with_its_reason() -> None:
    graph = chain([NORM, "all_reduce", COPY, COPY, COPY, COPY, "all_reduce", "broadcast", "unknown"], [1.0] * 9)
    found = producers(graph, ("all_reduce",), ("gemm",))
    assert found.found == ()
    assert found.missed == {
        "normalization comes before them": 1,
        "more than 3 kernels before them only move data": 1,
        "they are broadcast": 1,
        "their kind is not known": 1,
    }
    assert "1 not: they are broadcast" in found.note


def test_a_group_of_one_rank_sends_nothing() -> None:
    graph = chain([GEMM, "all_reduce"], [4.0, 4.0])
    alone = graph.with_tasks(ranks=np.array([0, 1]))
    assert producers(alone, ("all_reduce",), ("gemm",)).missed == {
        "their group is a single rank, which sends nothing": 1
    }
    assert len(producers(graph, ("all_reduce",), ("gemm",)).found) == 1


def test_a_kernel_that_writes_another_amount_is_not_it() -> None:
    graph = chain([GEMM, "all_reduce"], [4.0, 4.0])
    product = batched_matmul(1, 64, 64, 64)
    graph = replace(graph, operators=(product,)).with_tasks(operator=np.array([0, -1]))
    for sent, matched in ((64 * 64 * 4, 1), (64 * 64 * 40, 0), (64, 0), (0, 1)):
        found = producers(graph.with_tasks(bytes=np.array([0, sent])), ("all_reduce",), ("gemm",))
        assert len(found.found) == matched, sent
        assert [one.by_order for one in found.found] == [sent == 0] * matched


def test_kernels_between_which_the_host_waits_are_not_cut() -> None:
    graph = chain([GEMM, COPY, "all_reduce", GEMM], [40.0, 4.0, 40.0, 10.0])
    waits = make_graph([1.0] * 5, edges=[(0, 4), (4, 1)]).edges
    tasks = make_graph(
        [*graph.tasks.duration_ns, 0.0],
        class_=[*graph.tasks.class_, -1],
        kind=[*graph.tasks.kind, TaskKind.HOST],
        device=[0, 0, 0, 0, -1],
        collective=[*graph.tasks.collective, -1],
        measured_start_ns=[*graph.tasks.measured_start_ns, 40.0],
        measured_end_ns=[*graph.tasks.measured_end_ns, 40.0],
    ).tasks
    with_host = replace(graph, tasks=tasks, edges=graph.edges.joined(waits))
    found = producers(with_host, ("all_reduce",), ("gemm",))
    assert found.found == () and "waits between the kernels" in found.note
