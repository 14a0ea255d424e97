"""Traces that contradict themselves become graphs that say so."""

import json
from pathlib import Path

import numpy as np
import pytest
from graphs import make_graph
from traces import event, kernel, kineto, launch

from profilers.errors import InvalidInputError
from profilers.ingest.pipeline import collect
from replay.costs.shipped import load_parameters
from replay.engine.timeline import replay
from replay.from_trace import build_graph
from replay.graph.graph import EdgeKind, KernelGraph

NAME = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


def collective_on(tmp_path: Path, starts: dict[int, list[float]], dur: float = 100, **more: object) -> KernelGraph:
    """Return the graph of all-reduces on some ranks of a group of eight or fewer, which start at these times (us)."""
    size = int(str(more.pop("size", len(starts))))
    args = {
        "Collective name": "allreduce",
        "In msg nelems": 8,
        "Out msg nelems": 8,
        "Group size": size,
        "dtype": "Float",
    }
    for rank, times in starts.items():
        events = [event("ProfilerStep#1", "user_annotation", 0, 2000)]
        for number, start in enumerate(times):
            events += [launch(start - 10, number), kernel(NAME, start, dur, number, **args, **more)]
        document = kineto(events, distributedInfo={"rank": rank, "world_size": size, "backend": "nccl"})
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(document))
    return build_graph(collect([tmp_path]), 1, parameters=load_parameters())


def test_a_collective_with_a_missing_rank_is_no_rendezvous_and_says_so(tmp_path: Path) -> None:
    starts = {rank: [100.0 + 10 * rank] for rank in range(8) if rank != 5}
    graph = collective_on(tmp_path, starts, size=8, **{"Process Group Ranks": list(range(8))})
    assert not (graph.edges.kind == EdgeKind.RENDEZVOUS).any()
    (note,) = graph.notes
    assert "1 collectives of a group of 8 ranks have 7 of them in the trace (missing: rank 5)" in note
    timeline, rows = replay(graph), graph.on_device()
    np.testing.assert_allclose(timeline.start_ns[rows], graph.tasks.measured_start_ns[rows], atol=1)


def test_all_eight_ranks_meet(tmp_path: Path) -> None:
    graph = collective_on(tmp_path, {rank: [100.0 + 10 * rank] for rank in range(8)})
    assert (graph.edges.kind == EdgeKind.RENDEZVOUS).sum() == 16
    assert not graph.notes


def test_clocks_of_ranks_that_disagree_are_told_with_how_much_and_where(tmp_path: Path) -> None:
    graph = collective_on(tmp_path, {0: [100.0, 500.0, 900.0], 1: [120.0, 520.0, 1300.0]})
    assert (graph.edges.kind == EdgeKind.RENDEZVOUS).sum() == 8  # the two that both are in at one time
    (note,) = graph.notes
    assert "clocks of ranks disagree: 1 collectives" in note
    assert "by up to 300.0 us (rank 0 before rank 1, ncclDevKernel_AllReduce" in note


def test_clocks_of_ranks_that_were_brought_together_are_told(tmp_path: Path) -> None:
    graph = collective_on(tmp_path, {0: [100.0], 1: [700.0]})
    assert graph.notes == ("clocks of ranks disagreed by up to 600.0 us; matched collectives brought them together",)


def test_clocks_of_host_and_device_that_disagree_are_told(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    events = [
        event("ProfilerStep#1", "user_annotation", 0, 500),
        launch(100, 1), kernel("early", 66, 50, 1), launch(200, 2), kernel("fine", 210, 50, 2),
    ]  # fmt: skip
    path.write_text(json.dumps(kineto(events)))
    graph = build_graph(collect([path]), 1, parameters=load_parameters())
    (note,) = graph.notes
    assert note.startswith("rank 0: the clocks of host and GPU 0 disagree: 1 kernels or copies start before the call")
    assert "by up to 34.0 us (early, 0.066 ms after the start)" in note
    assert (graph.edges.lag_ns >= 0).all()
    assert replay(graph).makespan_ns == pytest.approx(graph.measured_ns)


@pytest.mark.parametrize("lag", [-5.0, float("nan"), float("inf")])
def test_a_lag_that_cannot_be_is_refused(lag: float) -> None:
    with pytest.raises(InvalidInputError, match=r"edge 0 \(kernel, task 0 -> kernel, task 1\) has a lag of .* ns"):
        make_graph([1, 1], edges=[(0, 1, lag)])


def test_a_circle_is_named() -> None:
    with pytest.raises(InvalidInputError, match=r"in a circle: kernel \(task . -> kernel|in a circle: kernel \(task"):
        replay(make_graph([1, 1, 1], edges=[(0, 1), (1, 2), (2, 1)]))
