"""Synthetic traces: programs of works and waits become the events that a profiler would write."""

import pytest

from profilers.devices.catalogue import find_device
from profilers.errors import InvalidInputError
from profilers.synthetic import (
    Collective,
    KernelCall,
    SyntheticJob,
    SyntheticStep,
    Wait,
    write_trace,
)
from profilers.trace.trace import Trace
from replay.costs.shipped import load_parameters
from replay.engine.timeline import replay
from replay.from_trace import build_graph

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


def test_ranks_that_wait_for_each_other_are_named() -> None:
    with pytest.raises(InvalidInputError, match="step 'iteration': rank 0 waits for ever at work 0"):
        written([gemm(1, meets="a"), gemm(1, meets="b"), Wait()], [gemm(1, meets="b"), gemm(1, meets="a"), Wait()])


@pytest.mark.parametrize("steps", [[], [SyntheticStep("a", 1, 1, [[gemm(1)]]), SyntheticStep("b", 1, 1, [[], []])]])
def test_steps_need_as_many_ranks_each(steps: list[SyntheticStep]) -> None:
    with pytest.raises(InvalidInputError, match="at least one step, and as many ranks in each"):
        write_trace(SyntheticJob("by hand", "1", steps, 1), DEVICE)
