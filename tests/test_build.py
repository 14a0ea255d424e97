import json
from pathlib import Path

import numpy as np
import pytest
from traces import event, kernel, kineto, launch, write_trace

from profilers.errors import InvalidInputError
from profilers.ingest.pipeline import collect
from profilers.trace.kernels import CLASSES
from replay.costs.places import per_unit
from replay.costs.shipped import load_parameters
from replay.engine.timeline import replay
from replay.from_trace import build_graph
from replay.graph.graph import EdgeKind, KernelGraph, TaskKind


@pytest.fixture
def graph(tmp_path: Path) -> KernelGraph:
    return build_graph(collect([write_trace(tmp_path / "t.json")]), 1, parameters=load_parameters())


def named(graph: KernelGraph, task: int) -> str:
    return graph.names[graph.tasks.name[task]]


def edges_of(graph: KernelGraph, kind: EdgeKind) -> list[tuple[str, str]]:
    rows = np.flatnonzero(graph.edges.kind == kind)
    return [(named(graph, int(graph.edges.source[r])), named(graph, int(graph.edges.target[r]))) for r in rows]


def test_kernels_stand_on_their_streams_and_calls_on_their_thread(graph: KernelGraph) -> None:
    kinds = {TaskKind(k).name: int((graph.tasks.kind == k).sum()) for k in np.unique(graph.tasks.kind)}
    assert kinds == {"HOST": 5, "KERNEL": 3, "COLLECTIVE": 1, "MARK": 2}
    assert [lane.label for lane in graph.lanes] == [
        "rank 0 thread 10", "rank 0 thread 0", "rank 0 GPU 0 stream 7", "rank 0 GPU 0 stream 20",
    ]  # fmt: skip


def test_streams_are_in_order_and_every_kernel_waits_for_its_launch(graph: KernelGraph) -> None:
    gemm, add = "ampere_sgemm_128x64_nn", "vectorized_elementwise_kernel"
    assert edges_of(graph, EdgeKind.STREAM) == [(gemm, add), (add, gemm)]
    assert len(edges_of(graph, EdgeKind.LAUNCH)) == 4


def test_the_collective_waits_for_the_stream_that_the_call_before_it_used(graph: KernelGraph) -> None:
    waits = edges_of(graph, EdgeKind.WAIT_INFERRED)
    assert ("vectorized_elementwise_kernel", "ncclDevKernel_AllGather_RING_LL") in waits


def test_the_blocking_call_returns_after_the_last_kernel(graph: KernelGraph) -> None:
    returns = "cudaDeviceSynchronize returns"
    waits = [("ampere_sgemm_128x64_nn", returns), ("ncclDevKernel_AllGather_RING_LL", returns)]
    assert edges_of(graph, EdgeKind.SYNC) == waits  # both streams; the collective had ended before
    rows = np.flatnonzero(graph.edges.kind == EdgeKind.SYNC)
    assert graph.edges.lag_ns[rows].tolist() == [160_000, 0]


def test_an_unchanged_graph_replays_as_measured(graph: KernelGraph) -> None:
    timeline = replay(graph)
    assert graph.measured_ns == 1_000_000
    assert timeline.makespan_ns == pytest.approx(graph.measured_ns, abs=1)
    on_device = graph.on_device()
    np.testing.assert_allclose(timeline.start_ns[on_device], graph.tasks.measured_start_ns[on_device], atol=1)
    np.testing.assert_allclose(timeline.end_ns[on_device], graph.tasks.measured_end_ns[on_device], atol=1)


def test_measured_contention_is_taken_out_of_the_isolated_durations(tmp_path: Path) -> None:
    events = [event("ProfilerStep#1", "user_annotation", 0, 1000), launch(1, 1), launch(10, 2)]
    # Two streaming kernels that both want 75 % of the bandwidth share it: alone each would be faster.
    both = [kernel("relu_elementwise_kernel", 100, 300, i, stream=7 + i, grid=[2000, 1, 1]) for i in (1, 2)]
    path = tmp_path / "c.json"
    path.write_text(json.dumps(kineto([*events, *both])))
    graph = build_graph(collect([path]), 1, parameters=load_parameters())
    kernels = graph.tasks.kind == TaskKind.KERNEL
    assert (graph.tasks.duration_ns[kernels] < 299_000).all()
    np.testing.assert_allclose(replay(graph).end_ns[kernels], graph.tasks.measured_end_ns[kernels], atol=1)


def test_classes_and_types_come_with_the_tasks(graph: KernelGraph) -> None:
    gemm = graph.tasks.class_ == CLASSES.index("gemm")
    assert gemm.sum() == 2
    assert (graph.tasks.dtype[gemm] == 1).all()  # fp32, from the name
    assert graph.hardware.device is not None and graph.hardware.device.name == "A100-SXM4-80GB"


def test_work_of_the_step_before_is_there_but_not_counted(tmp_path: Path) -> None:
    path = tmp_path / "late.json"
    late = [
        event("ProfilerStep#1", "user_annotation", 0, 100),
        event("ProfilerStep#2", "user_annotation", 100, 100),
        launch(50, 1), launch(150, 2),
        kernel("ampere_sgemm_a", 60, 200, 1), kernel("ampere_sgemm_b", 260, 50, 2),
    ]  # fmt: skip
    path.write_text(json.dumps(kineto(late)))
    graph = build_graph(collect([path]), 2, parameters=load_parameters())
    assert graph.measured_ns == 210_000
    assert [named(graph, t) for t in np.flatnonzero(~graph.tasks.in_iteration)] == ["ampere_sgemm_a"]
    halved = graph.with_tasks(
        duration_ns=np.where(graph.on_device(), graph.tasks.duration_ns / 2, graph.tasks.duration_ns)
    )
    assert replay(halved).makespan_ns == pytest.approx(105_000, abs=2)  # the backlog shrinks with the rest


def test_a_collective_on_two_ranks_starts_when_both_have_arrived(tmp_path: Path) -> None:
    for rank, arrives in ((0, 100.0), (1, 300.0)):
        name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
        args = {
            "Collective name": "allreduce",
            "In msg nelems": 8,
            "Out msg nelems": 8,
            "Group size": 2,
            "dtype": "Float",
        }
        events = [
            event("ProfilerStep#1", "user_annotation", 0, 600), launch(arrives - 10, 1),
            kernel(name, arrives, 500 - arrives, 1, **args),
        ]  # fmt: skip
        document = kineto(events, distributedInfo={"rank": rank, "world_size": 2, "backend": "nccl"})
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(document))
    graph = build_graph(collect([tmp_path]), 1, parameters=load_parameters())
    transfers = graph.tasks.kind == TaskKind.COLLECTIVE
    assert graph.tasks.duration_ns[transfers].tolist() == [200_000, 200_000]  # waiting is no transfer
    timeline = replay(graph)
    assert timeline.start_ns[transfers].tolist() == [300_000, 300_000]


def test_a_job_on_the_host_alone_replays_its_operators(tmp_path: Path) -> None:
    path = tmp_path / "cpu.json"
    ops = [
        event("aten::linear", "cpu_op", 10, 50),
        event("aten::mm", "cpu_op", 20, 30),
        event("aten::relu", "cpu_op", 70, 20),
    ]
    path.write_text(json.dumps(kineto([event("ProfilerStep#1", "user_annotation", 0, 100), *ops])))
    graph = build_graph(collect([path]), 1, parameters=load_parameters())
    assert [n for n in graph.names if n.startswith("aten")] == ["aten::linear", "aten::relu"]
    assert replay(graph).makespan_ns == pytest.approx(100_000)


def test_an_iteration_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"no iteration 9 \(it has 1, 2\)"):
        build_graph(collect([write_trace(tmp_path / "t.json")]), 9, parameters=load_parameters())


@pytest.mark.parametrize("device", ["Arc Pro B60", "NVIDIA A100-SXM4-80GB"])
def test_a_device_whose_units_are_unknown_is_replayed_all_the_same(tmp_path: Path, device: str) -> None:
    shape = {"registers per thread": 32, "shared memory": 0}
    events = [launch(0, 1), launch(10, 2), *(kernel("gemm", t, 20, c, **shape) for t, c in ((5, 1), (30, 2)))]
    properties = [{"id": 0, "name": device, "numSms": 20}]
    (tmp_path / "t.json").write_text(json.dumps(kineto(events, deviceProperties=properties)))
    graph = build_graph(collect([tmp_path / "t.json"]), 0, parameters=load_parameters())
    assert graph.hardware.device is not None
    known = per_unit(graph.tasks)[graph.tasks.kind == TaskKind.KERNEL] > 1
    assert known.all() == (device != "Arc Pro B60") and replay(graph).makespan_ns > 0
