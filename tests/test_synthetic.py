"""Synthetic traces: programs of works and waits become the events that a profiler would write."""

from dataclasses import replace

import numpy as np
import pytest

from profilers.devices.catalogue import find_device
from profilers.errors import InvalidInputError
from profilers.trace.trace import Trace
from replay.costs.shipped import load_parameters
from replay.engine.timeline import replay
from replay.from_trace import build_graph
from replay.what_ifs import parse_what_if
from replay.workloads import JobTimer, Layout, TrainingJob, Transformer, load_training, training_program
from replay.workloads.program import Collective, KernelCall, SyntheticJob, SyntheticStep, Wait, step_graph
from replay.workloads.program_trace import write_trace

DEVICE = find_device("MI300X")


def gemm(duration_us: int, stream: int = 7, after: tuple[int, ...] = (), meets: str = "") -> KernelCall:
    exchange = Collective("all_reduce", 8, "tp", 2, meets) if meets else None
    return KernelCall("gemm_kernel", "aten::mm", 1000 * duration_us, 5000, stream, (4, 4), 2, after, exchange)


def written(*programs: list[KernelCall | Wait], steps: int = 1) -> Trace:
    step = SyntheticStep("iteration", 16, 2, programs)
    return write_trace(SyntheticJob("by hand", "1", [step] * steps, len(programs)), DEVICE)


def spans(trace: Trace) -> list[tuple[int, float, float]]:
    rows = trace.kernels.to_pylist()
    return [(r["rank"], r["start_ns"] / 1000, (r["start_ns"] + r["dur_ns"]) / 1000) for r in rows]


def test_calls_go_ahead_and_the_stream_is_in_order() -> None:
    """A call every 5 us, 8 us to its kernel; the third kernel waits for the second."""
    trace = written([gemm(1), gemm(20), gemm(3), Wait(host_ns=2000)])
    assert spans(trace) == [(0, 8, 9), (0, 13, 33), (0, 33, 36)]
    assert trace.iterations["dur_ns"].to_pylist() == [38_000]


def test_another_stream_waits_for_what_it_is_told_to() -> None:
    trace = written([gemm(30), gemm(5, stream=9, after=(0,)), gemm(5, stream=10), Wait()])
    assert spans(trace) == [(0, 8, 38), (0, 38, 43), (0, 18, 23)]
    (wait,) = trace.syncs.to_pylist()
    assert (wait["sync"], wait["stream"], wait["wait_on_stream"]) == ("Stream Wait Event", 9, 7)


def test_partners_start_together_and_end_together() -> None:
    trace = written([gemm(50), gemm(10, meets="a"), Wait()], [gemm(10, meets="a"), Wait()])
    assert spans(trace) == [(0, 8, 58), (0, 58, 68), (1, 8, 68)]  # the second rank's arrives at 8 and waits
    assert trace.collectives["match_id"].to_pylist() == [0, 0]


def test_a_wait_for_one_stream_lets_the_others_run() -> None:
    trace = written([gemm(100), gemm(5, stream=9), Wait(stream=9), gemm(1, stream=9), Wait()])
    assert spans(trace)[2] == (0, 26, 27)  # called at 18, when the first on its stream was done


def test_an_unchanged_replay_returns_the_times_of_ranks_that_differ() -> None:
    first: list[KernelCall | Wait] = [
        gemm(50),
        gemm(10, 9, (0,), "a"),
        gemm(4, 7, (1,)),
        gemm(9, 11, meets="b"),
        Wait(),
    ]
    second: list[KernelCall | Wait] = [
        gemm(10, 9, meets="a"),
        gemm(70, 7, (0,)),
        gemm(9, 11, (1,), "b"),
        Wait(stream=11),
    ]
    trace = written(first, second, steps=2)
    for iteration in (0, 1):
        timeline = replay(build_graph(trace, iteration, parameters=load_parameters()))
        assert timeline.makespan_ns == pytest.approx(timeline.graph.measured_ns, abs=2)


#: Two stages of two tensor-parallel ranks, which reduce beside their products.
MODEL = Transformer("gpt", "megatron", 2, 1024, 16, 4096, 8192)
JOB = TrainingJob(MODEL, 256, 8, 2, Layout(tensor=2, pipeline=2, data=2), overlap_gradients=True)
WHAT_IFS = (
    *("overlap:ideal", "overlap:none", "scale_links:2", "c3:sp", "dma_collectives", "t3", "scale_kernels:gemm:0.5"),
    *("scale_device:H100-SXM5-80GB", "remove_launch_overhead", "data_parallel:4", "tensor_parallel:4"),
    *("ficco:auto", "fuse_collectives", "concurrent_gemms:2", "quantize_weights:mx9", "fuse:elementwise"),
)


def programs() -> SyntheticJob:
    timer = JobTimer(DEVICE, load_parameters())
    return training_program(JOB, timer, load_training().costs_of(JOB, timer.device))


def test_the_graph_of_a_program_is_that_of_its_trace() -> None:
    parameters, program = load_parameters(), programs()
    traced = build_graph(write_trace(program, DEVICE), 0, parameters=parameters)
    direct = step_graph(program, DEVICE, parameters)
    assert replay(direct).makespan_ns == pytest.approx(replay(traced).makespan_ns, abs=2)
    # What a rank does before its first launch is unknown in a trace, so that no what-if scales it.
    for text in WHAT_IFS:
        change = parse_what_if(text)
        makespans = [replay(change(graph, parameters)).makespan_ns for graph in (traced, direct)]
        assert makespans[1] == pytest.approx(makespans[0], rel=5e-3), text
    for column in ("duration_ns", "waves", "occupies", "pressure", "sensitivity", "bytes", "class_", "dtype", "phase"):
        values = [np.sort(getattr(graph.tasks, column)[graph.on_device()]) for graph in (traced, direct)]
        np.testing.assert_allclose(*values, err_msg=column)


@pytest.mark.parametrize("text", WHAT_IFS)
def test_the_rows_of_a_graph_may_be_in_any_order(text: str) -> None:
    parameters = load_parameters()
    graph = step_graph(programs(), DEVICE, parameters)
    order = np.random.default_rng(0).permutation(len(graph.tasks))
    row = np.argsort(order)
    edges = replace(graph.edges, source=row[graph.edges.source], target=row[graph.edges.target])
    shuffled = replace(graph, tasks=graph.tasks.select(order), edges=edges)
    change = parse_what_if(text)
    lines = [replay(change(each, parameters)) for each in (graph, shuffled)]
    np.testing.assert_allclose(lines[1].makespan_ns, lines[0].makespan_ns)
    np.testing.assert_allclose(lines[1].busy_ns(), lines[0].busy_ns())
    waits = [[each.exposed_waiting_ns for each in line.device_times()] for line in lines]
    np.testing.assert_allclose(*waits)


def test_ranks_that_wait_for_each_other_are_named() -> None:
    with pytest.raises(
        InvalidInputError, match=r"wait for each other in a circle: all ranks have arrived .* gemm_kernel"
    ):
        written([gemm(1, meets="a"), gemm(1, meets="b"), Wait()], [gemm(1, meets="b"), gemm(1, meets="a"), Wait()])


@pytest.mark.parametrize("steps", [[], [SyntheticStep("a", 1, 1, [[gemm(1)]]), SyntheticStep("b", 1, 1, [[], []])]])
def test_steps_need_as_many_ranks_each(steps: list[SyntheticStep]) -> None:
    with pytest.raises(InvalidInputError, match="at least one step, and as many ranks in each"):
        write_trace(SyntheticJob("by hand", "1", steps, 1), DEVICE)
