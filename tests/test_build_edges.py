"""Every dependency that a trace holds becomes an edge of the kind that says how it is known."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from graphs import make_graph
from traces import event, kernel, kineto, launch

from profilers.ingest.pipeline import IngestOptions, collect
from replay.analysis.critical_path import dependencies
from replay.costs.shipped import load_parameters
from replay.engine.timeline import replay
from replay.from_trace import build_graph, index_trace
from replay.graph.graph import RECORDED_EDGES, EdgeKind, KernelGraph
from replay.what_ifs.scale import scale_host
from seqpoint.validation.replay import with_typical_lags

STEP = event("ProfilerStep#1", "user_annotation", 0, 1000)


def graph_of(tmp_path: Path, events: list[dict[str, Any]], iteration: int = 1) -> KernelGraph:
    path = tmp_path / "t.json"
    path.write_text(json.dumps(kineto([STEP, *events])))
    return build_graph(collect([path]), iteration, parameters=load_parameters())


def edges_of(graph: KernelGraph, kind: EdgeKind) -> list[tuple[str, str, float]]:
    rows = np.flatnonzero(graph.edges.kind == kind)
    names = [graph.names[name] for name in graph.tasks.name]
    return [
        (names[graph.edges.source[r]], names[graph.edges.target[r]], float(graph.edges.lag_ns[r]) / 1e3) for r in rows
    ]


def replays_as_measured(graph: KernelGraph) -> None:
    timeline, rows = replay(graph), graph.on_device()
    np.testing.assert_allclose(timeline.start_ns[rows], graph.tasks.measured_start_ns[rows], atol=1)
    np.testing.assert_allclose(timeline.end_ns[rows], graph.tasks.measured_end_ns[rows], atol=1)


def test_all_kernels_of_a_graph_wait_for_its_one_launch_and_keep_their_order(tmp_path: Path) -> None:
    nodes = [kernel(f"node{i}", 20 + 10 * i, 9, 1, stream=7) for i in range(3)]
    graph = graph_of(tmp_path, [launch(10, 1, "cudaGraphLaunch"), *nodes])
    assert [edge[:2] for edge in edges_of(graph, EdgeKind.GRAPH_LAUNCH)] == [
        ("cudaGraphLaunch", f"node{i}") for i in range(3)
    ]
    assert [edge[:2] for edge in edges_of(graph, EdgeKind.STREAM)] == [("node0", "node1"), ("node1", "node2")]
    replays_as_measured(graph)


def test_a_pause_inside_a_graph_is_nodes_that_were_not_recorded(tmp_path: Path) -> None:
    nodes = [kernel("first", 20, 10, 1), kernel("second", 530, 10, 1)]
    graph = graph_of(tmp_path, [launch(10, 1, "hipGraphLaunch"), *nodes])
    assert edges_of(graph, EdgeKind.GRAPH_GAP) == [("first", "second", 500)]
    assert replay(with_typical_lags(graph)).makespan_ns == pytest.approx(graph.measured_ns, rel=0.01)
    assert replay(graph).unexplained_ns() == 500_000  # named, and still no event explains it


def test_without_any_launch_pauses_stand_for_the_host(tmp_path: Path) -> None:
    path = tmp_path / "gpu.json"
    events = [kernel("a", 0, 100, 1), kernel("b", 300, 100, 2), kernel("c", 401, 100, 3)]
    path.write_text(json.dumps(kineto(events)))
    graph = build_graph(collect([path], IngestOptions("whole")), 0, parameters=load_parameters())
    assert edges_of(graph, EdgeKind.GAP) == [("a", "b", 200)]
    assert edges_of(graph, EdgeKind.STREAM) == [("b", "c", 1)]
    replays_as_measured(graph)
    faster = scale_host(0.5).transform(graph, {})  # type: ignore[arg-type]
    assert replay(faster).makespan_ns == pytest.approx(graph.measured_ns - 100_000)


def test_work_launched_before_the_recording_keeps_its_pace(tmp_path: Path) -> None:
    events = [kernel("old", 0, 100, 90), kernel("older", 300, 100, 91), launch(20, 1), kernel("new", 401, 100, 1)]
    graph = graph_of(tmp_path, events)
    assert edges_of(graph, EdgeKind.BACKLOG) == [("old", "older", 200)]
    replays_as_measured(graph)


def test_a_first_kernel_long_after_its_launch_waited_for_what_is_older_than_the_recording(tmp_path: Path) -> None:
    graph = graph_of(tmp_path, [launch(10, 1), kernel("first", 510, 100, 1), launch(600, 2), kernel("b", 611, 10, 2)])
    assert edges_of(graph, EdgeKind.BACKLOG) == [("cudaLaunchKernel", "first", 495)]
    assert "starts its first work on stream 7 0.5 ms after the launch" in graph.notes[0]
    assert replay(graph).unexplained_ns() == 495_000
    replays_as_measured(graph)


def test_a_copy_from_pageable_memory_is_prepared_inside_its_call(tmp_path: Path) -> None:
    name = "Memcpy HtoD (Pageable -> Device)"
    copy = event(name, "gpu_memcpy", 300, 50, stream=7, device=0, correlation=2, bytes=1000)
    graph = graph_of(
        tmp_path, [launch(5, 1), kernel("a", 15, 85, 1), launch(100, 2, "cudaMemcpyAsync", 240), copy]
    )  # fmt: skip
    assert edges_of(graph, EdgeKind.GAP) == [("cudaMemcpyAsync", name, 200)]
    replays_as_measured(graph)


def test_the_host_waits_for_the_work_before_the_event_that_it_synchronises_with(tmp_path: Path) -> None:
    sync = event("Event Sync", "cuda_sync", 60, 1, stream=-1, cuda_sync_kind="Event Sync", correlation=5)
    sync["args"] |= {"wait_on_stream": 7, "wait_on_cuda_event_record_corr_id": 3, "device": 0}
    events = [
        launch(10, 1), launch(20, 3, "cudaEventRecord"), launch(30, 2),
        launch(60, 5, "cudaEventSynchronize", 300), sync,
        kernel("before", 40, 250, 1), kernel("after", 300, 55, 2),
    ]  # fmt: skip
    graph = graph_of(tmp_path, events)
    assert edges_of(graph, EdgeKind.SYNC) == [("before", "cudaEventSynchronize returns", 70)]
    replays_as_measured(graph)


def test_a_synchronisation_without_a_stream_is_inferred_from_times(tmp_path: Path) -> None:
    events = [launch(10, 1), kernel("a", 20, 100, 1), launch(30, 2, "hipStreamSynchronize", 100)]
    graph = graph_of(tmp_path, events)
    assert edges_of(graph, EdgeKind.SYNC_INFERRED) == [("a", "hipStreamSynchronize returns", 10)]


def test_a_backward_thread_goes_on_after_the_forward_thread(tmp_path: Path) -> None:
    forward = event("aten::linear", "cpu_op", 10, 80, **{"Sequence number": 4, "Fwd thread id": 0})
    backward = event("LinearBackward0", "cpu_op", 150, 50, **{"Sequence number": 4, "Fwd thread id": 1})
    call = launch(160, 2)
    backward["tid"] = call["tid"] = 99
    graph = graph_of(tmp_path, [forward, backward, launch(20, 1), call, kernel("f", 30, 10, 1), kernel("b", 170, 9, 2)])
    assert edges_of(graph, EdgeKind.AUTOGRAD) == [("cudaLaunchKernel", "cudaLaunchKernel", 135)]
    assert not edges_of(graph, EdgeKind.HANDOFF)
    replays_as_measured(graph)


def test_a_stream_that_waited_behind_long_work_of_another_waited_for_it(tmp_path: Path) -> None:
    # Signals between AMD's streams take up to 20 us; the collective ran for all of the time that the copy waited.
    events = [
        launch(5, 1), kernel("a", 15, 10, 1), launch(10, 2), kernel("ncclDevKernel", 20, 500, 2, stream=9),
        launch(20, 3), kernel("b", 537, 10, 3),
    ]  # fmt: skip
    assert ("ncclDevKernel", "b", 17) in edges_of(graph_of(tmp_path, events), EdgeKind.WAIT_INFERRED)


def test_dependencies_count_what_binds_and_what_is_critical() -> None:
    graph = make_graph([10, 20, 5, 7], edges=[(0, 2), (1, 2, 3.0), (2, 3)])
    kinds = np.array([EdgeKind.LAUNCH, EdgeKind.WAIT_INFERRED, EdgeKind.STREAM])
    graph = KernelGraph(
        graph.tasks,
        type(graph.edges)(*(getattr(graph.edges, n) for n in ("source", "target", "lag_ns", "from_start")), kinds),
        graph.names, graph.lanes, graph.devices, 35.0,
    )  # fmt: skip
    found = dependencies(replay(graph))
    rows = {row.kind: (row.recorded, row.edges, row.binding, row.critical, row.critical_lag_ns) for row in found.kinds}
    assert rows == {
        "stream": (True, 1, 1, 1, 0.0),
        "launch": (True, 1, 0, 0, 0.0),
        "wait_inferred": (False, 1, 1, 1, 3.0),
    }
    assert found.recorded_share() == pytest.approx(2 / 3) and found.recorded_share("critical") == 0.5


def test_every_kind_of_edge_is_either_recorded_or_called_by_what_it_is_inferred_from() -> None:
    inferred = {kind.name for kind in EdgeKind} - {kind.name for kind in RECORDED_EDGES}
    assert inferred == {"HANDOFF", "WAIT_INFERRED", "SYNC_INFERRED", "GAP", "BACKLOG", "GRAPH_GAP",
                        "QUEUE", "LOADER", "SERIAL", "POLL", "PAUSE"}  # fmt: skip


def test_an_index_gives_the_same_graphs_as_the_trace(tmp_path: Path) -> None:
    from traces import write_trace

    trace = collect([write_trace(tmp_path / "t.json", steps=5)])
    index = index_trace(trace)
    for iteration in (1, 3, 5):
        one, other = (
            build_graph(trace, iteration, parameters=load_parameters()),
            build_graph(index, iteration, parameters=load_parameters()),
        )
        assert one.names == other.names and one.lanes == other.lanes and one.notes == other.notes
        for column in ("measured_start_ns", "duration_ns", "event", "operator", "dtype"):
            np.testing.assert_array_equal(getattr(one.tasks, column), getattr(other.tasks, column))
        np.testing.assert_array_equal(one.edges.lag_ns, other.edges.lag_ns)


def test_work_of_an_iteration_does_not_grow_with_the_trace(tmp_path: Path) -> None:
    from traces import write_trace

    device_work = index_trace(collect([write_trace(tmp_path / "t.json", steps=200)])).device_work
    start, end = (device_work.columns[name][device_work.iterations.of(100)] for name in ("start", "end"))
    near = device_work.running(int(start.min()), int(end.max()))
    assert near.stop - near.start <= 8  # four kernels a step, of 800


def test_without_calls_the_critical_path_is_the_streams(tmp_path: Path) -> None:
    path = tmp_path / "gpu.json"
    path.write_text(json.dumps(kineto([kernel("a", 0, 100, 1), kernel("b", 300, 100, 2)])))
    found = dependencies(replay(build_graph(collect([path], IngestOptions("whole")), 0, parameters=load_parameters())))
    assert [(row.kind, row.critical, row.critical_lag_ns) for row in found.kinds] == [("gap", 1, 200_000)]


def test_of_no_edge_no_share_is_recorded() -> None:
    assert np.isnan(dependencies(replay(make_graph([5]))).recorded_share())
