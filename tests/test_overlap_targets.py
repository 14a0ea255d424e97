"""`replay.what_ifs.pipeline` and `replay.what_ifs.pipeline`: what overlap can act on, and kernels piece by piece."""

from dataclasses import replace

import numpy as np
import pytest
from graphs import make_graph

from profilers.trace.kernels import CLASSES
from replay.engine.engine import simulate
from replay.graph.graph import COLLECTIVE_KINDS, EdgeKind, KernelGraph, TaskKind
from replay.graph.operators import batched_matmul
from replay.what_ifs.pipeline import receive_in_pieces, send_in_pieces
from replay.what_ifs.targets import consumers, producers

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


def test_pieces_are_sent_while_the_next_are_computed() -> None:
    graph = chain([GEMM, COPY, "all_reduce", GEMM], [40.0, 4.0, 40.0, 10.0])
    found = producers(graph, ("all_reduce",), ("gemm",)).found
    result = send_in_pieces(graph, found, [4])
    start, end = simulate(result.graph)
    # Pieces of 10 + 1 are computed and packed; each is sent in 10, the first from 11 on.
    assert start[result.kernels[0][0]].tolist() == [0.0, 11.0, 22.0, 33.0]
    assert start[result.collectives[0]].tolist() == [11.0, 22.0, 33.0, 44.0]
    assert end[2] == 54.0 and end[3] == 64.0


def test_pieces_are_read_while_the_next_come() -> None:
    graph = chain([NORM, "all_gather", COPY, GEMM, NORM], [5.0, 40.0, 4.0, 40.0, 10.0])
    found = consumers(graph, ("all_gather",), ("gemm",)).found
    assert [(one.collective, one.kernels) for one in found] == [(1, (2, 3))]
    result = receive_in_pieces(graph, found, [4])
    start, end = simulate(result.graph)
    assert start[result.kernels[0][0]].tolist() == [15.0, 26.0, 37.0, 48.0]
    assert end[3] == 59.0 and end[4] == 69.0


def test_one_piece_is_what_there_was() -> None:
    graph = chain([GEMM, COPY, "all_reduce", COPY, GEMM], [40.0, 4.0, 40.0, 2.0, 10.0])
    for found, joined in (
        (producers(graph, ("all_reduce",), ("gemm",)).found, send_in_pieces),
        (consumers(graph, ("all_reduce",), ("gemm",)).found, receive_in_pieces),
    ):
        assert simulate(joined(graph, found, [1]).graph)[1].tolist() == simulate(graph)[1].tolist()


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
        event=[0, 1, 1, 2, 3, 3, -1],
        collective=[-1, -1, 0, -1, -1, 0, -1],
    )
    kinds = np.array([EdgeKind.STREAM] * 2 + [EdgeKind.RENDEZVOUS] * 4)
    graph = replace(graph, edges=replace(graph.edges, kind=kinds), devices=((0, 0), (1, 0)))
    start, end = simulate(graph)
    return graph.with_tasks(measured_start_ns=start, measured_end_ns=end)


def test_a_piece_is_sent_when_all_ranks_have_computed_it() -> None:
    graph = ranks((40.0, 80.0))
    found = producers(graph, ("all_reduce",), ("gemm",)).found
    assert [(one.collective, one.kernels, one.meeting) for one in found] == [(2, (0,), 6), (5, (3,), 6)]
    result = send_in_pieces(graph, found, [4, 4])
    start, end = simulate(result.graph)
    for sent in result.collectives:
        assert start[sent].tolist() == [20.0, 40.0, 60.0, 80.0]
    assert end[[2, 5]].tolist() == [90.0, 90.0]


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


@pytest.mark.parametrize("pieces", [1, 2, 8])
def test_more_pieces_may_follow_those_that_carry_data_as_it_comes(pieces: int) -> None:
    graph = chain([GEMM, "all_reduce", GEMM], [40.0, 40.0, 10.0])
    result = send_in_pieces(graph, producers(graph, ("all_reduce",), ("gemm",)).found, [pieces], [1])
    start, end = simulate(result.graph)
    assert len(result.collectives[0]) == pieces + 1
    assert start[result.collectives[0][-1]] >= end[0] and start[2] == end[1]


def test_one_piece_keeps_the_pauses_that_there_were() -> None:
    graph = chain([GEMM, COPY, "all_reduce", COPY, GEMM], [40.0, 4.0, 40.0, 2.0, 10.0])
    graph = replace(graph, edges=replace(graph.edges, lag_ns=np.array([3.0, 5.0, 7.0, 9.0])))
    for found, joined in (
        (producers(graph, ("all_reduce",), ("gemm",)).found, send_in_pieces),
        (consumers(graph, ("all_reduce",), ("gemm",)).found, receive_in_pieces),
    ):
        assert simulate(joined(graph, found, [1]).graph)[1].tolist() == simulate(graph)[1].tolist()


def test_what_is_in_pieces_is_no_target_again() -> None:
    graph = chain(["all_gather", GEMM, "all_reduce"], [40.0, 40.0, 40.0])
    cut = send_in_pieces(graph, producers(graph, ("all_reduce",), ("gemm",)).found, [4]).graph
    again = producers(cut, ("all_reduce",), ("gemm",))
    assert again.found == () and again.missed == {"they are in pieces already": 1, "they are all_gather": 1}
    other = consumers(cut, ("all_gather",), ("gemm",))
    assert other.found == () and other.missed == {
        "what comes after them is in pieces already": 1,
        "they are all_reduce": 1,
    }


def test_what_was_measured_in_another_order_makes_no_circle() -> None:
    graph = make_graph(
        [40.0, 1.0, 4.0, 40.0],
        edges=[(0, 1), (1, 2), (0, 2), (2, 3)],
        class_=[GEMM, NORM, COPY, -1],
        kind=[TaskKind.KERNEL] * 3 + [TaskKind.COLLECTIVE],
        collective=[-1, -1, -1, 0],
        # The second was measured after the third; a what-if has put it between since.
        measured_start_ns=[0.0, 200.0, 40.0, 44.0],
        measured_end_ns=[40.0, 30.0, 44.0, 84.0],
    )
    found = producers(graph, ("all_reduce",), ("gemm",)).found
    assert simulate(send_in_pieces(graph, found, [4] * len(found)).graph)[1].max() == 85.0
