"""How a trace is cut, in which order, and to which iteration device work belongs."""

import json
from pathlib import Path
from typing import Any

import pytest
from traces import event, kernel, launch

from profilers.errors import InvalidInputError
from profilers.ingest.pipeline import IngestOptions, collect
from profilers.trace.trace import Trace


def read(folder: Path, *events: dict[str, Any], iterations: str = "auto") -> Trace:
    path = folder / "t.json"
    path.write_text(json.dumps(list(events)))
    return collect([path], IngestOptions(iterations=iterations))


def rows(trace: Trace) -> list[tuple[int, int, str, str, float, float]]:
    """Return (rank, iteration, name, found by, start us, duration us)."""
    names = ("rank", "iteration", "name", "found_by", "start_ns", "dur_ns")
    table = [tuple(row[name] for name in names) for row in trace.iterations.to_pylist()]
    return [(*row[:4], row[4] / 1000, row[5] / 1000) for row in table]  # type: ignore[misc]


def of(trace: Trace, kind: str = "kernels") -> list[int | None]:
    found: list[int | None] = trace.tables[kind]["iteration"].to_pylist()
    return found


def step(name: str, ts: float, dur: float | None, cat: str = "user_annotation", **args: Any) -> dict[str, Any]:
    row = event(name, cat, ts, 0, **args)
    return {**row, "dur": dur}


OP = event("aten::mm", "cpu_op", 105, 5)


@pytest.mark.parametrize("cat", ["user_annotation", "Operator"])
def test_the_profilers_own_steps_come_first(tmp_path: Path, cat: str) -> None:
    trace = read(
        tmp_path,
        step("ProfilerStep#8", 200, 50, cat),
        step("ProfilerStep#7", 100, 90, cat),
        step("execute_1_context_0(sq0)_generation_1(sq1)", 110, 5),
        OP,
    )
    assert rows(trace) == [
        (0, 7, "ProfilerStep#7", "ProfilerStep", 100, 90),
        (0, 8, "ProfilerStep#8", "ProfilerStep", 200, 50),
    ]
    assert of(trace, "ops")[-1] == 7


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([("ProfilerStep#7", 1, 5), ("ProfilerStep#7", 10, 5)], [(0, 1, 5), (1, 10, 5)]),
        ([("ProfilerStep#7", 1, 5), ("ProfilerStep#9", 3, 9), ("ProfilerStep#8", 20, 1)], [(9, 3, 9), (8, 20, 1)]),
        ([("ProfilerStep#7", 1, 9), ("ProfilerStep#8", 1, 3), ("ProfilerStep#9", 10, 1)], [(7, 1, 9), (9, 10, 1)]),
        ([("ProfilerStep#7", 1, 0), ("ProfilerStep#8", 2, 3)], [(8, 2, 3)]),
        ([("ProfilerStep#99999999999", 1, 5)], [(0, 1, 5)]),
        ([("ProfilerStep#٣", 1, 5)], [(3, 1, 5)]),
        ([("ProfilerStep#-3", 1, 5), ("ProfilerStep#4", 7, 5)], [(4, 7, 5)]),
    ],
    ids=["same number", "overlap", "same start", "no length", "huge number", "other digits", "no number"],
)
def test_steps_that_make_no_sense(
    tmp_path: Path, steps: list[tuple[str, float, float]], expected: list[tuple[int, float, float]]
) -> None:
    trace = read(tmp_path, *(step(*one) for one in steps), OP)
    assert [(row[1], row[4], row[5]) for row in rows(trace)] == expected


@pytest.mark.parametrize("dur", [0, None])
def test_steps_without_a_duration_leave_the_whole_trace(tmp_path: Path, dur: float | None) -> None:
    trace = read(tmp_path, step("ProfilerStep#7", 5, dur), OP)
    assert [row[3] for row in rows(trace)] == ["whole trace"]


def test_gpu_copies_of_a_step_do_not_cut(tmp_path: Path) -> None:
    trace = read(tmp_path, step("ProfilerStep#1", 1, 9, "gpu_user_annotation", stream=7), OP)
    assert [row[3] for row in rows(trace)] == ["whole trace"]


@pytest.mark.parametrize(
    "name", ["execute_32_context_0(sq0sk0)_generation_32(sq32sk5)", "step[DECODE bs=32]", "iteration 3", "train_step"]
)
def test_then_what_engines_and_users_write(tmp_path: Path, name: str) -> None:
    trace = read(tmp_path, step(name, 100, 20), step(name, 140, 30), OP)
    assert rows(trace) == [(0, 0, name, "annotation", 100, 20), (0, 1, name, "annotation", 140, 30)]


def test_then_the_data_loader_and_the_optimizer(tmp_path: Path) -> None:
    loader = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
    steps = [step(loader, t, 2) for t in (100, 200)] + [step("Optimizer.step#SGD.step", t, 2) for t in (150, 250, 290)]
    trace = read(tmp_path, *steps, launch(295, 1), OP)
    assert rows(trace) == [
        (0, 0, "enumerate(DataLoader) 0", "enumerate(DataLoader)", 100, 100),
        (0, 1, "enumerate(DataLoader) 1", "enumerate(DataLoader)", 200, 100),
    ]


def test_an_optimizer_that_steps_once_cuts_nothing(tmp_path: Path) -> None:
    trace = read(tmp_path, step("Optimizer.step#SGD.step", 150, 2), OP)
    assert rows(trace) == [(0, 0, "whole trace", "whole trace", 105, 47)]


def test_a_regular_expression_names_the_annotations(tmp_path: Path) -> None:
    events = [step("ProfilerStep#1", 1, 500), step("batch 5", 100, 20), step("batch 6", 130, 20), OP]
    trace = read(tmp_path, *events, iterations=r"^batch \d")
    assert rows(trace) == [(0, 0, "batch 5", "annotation", 100, 20), (0, 1, "batch 6", "annotation", 130, 20)]
    with pytest.raises(InvalidInputError, match="rank 0: no annotation with a duration matches 'nothing'"):
        read(tmp_path, *events, iterations="nothing")
    with pytest.raises(InvalidInputError, match=r"'\(' is no regular expression"):
        read(tmp_path, *events, iterations="(")


def test_every_rank_is_cut_by_its_own_marks(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        step("ProfilerStep#1", 1, 9, rank=0),
        step("ProfilerStep#5", 3, 9, rank=1),
        event("aten::mm", "cpu_op", 11, 5, rank=1),
        event("aten::mm", "cpu_op", 11, 5, rank=0),
        event("aten::mm", "cpu_op", 20, 5, rank=2),
    )
    assert [row[:4] for row in rows(trace)] == [
        (0, 1, "ProfilerStep#1", "ProfilerStep"),
        (1, 5, "ProfilerStep#5", "ProfilerStep"),
        (2, 0, "whole trace", "whole trace"),
    ]
    assert of(trace, "ops") == [5, None, 0]


STEPS = (step("ProfilerStep#1", 0.001, 100), step("ProfilerStep#2", 100.001, 100))


def test_device_work_belongs_to_the_step_that_launched_it_wherever_it_runs(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        *STEPS,
        launch(50, 1),
        launch(150, 2),
        launch(250, 3),
        kernel("late", 190, 5, 1),
        kernel("in its own", 196, 5, 2),
        kernel("after all", 202, 5, 3),
    )
    assert of(trace) == [1, 2, None]
    assert trace.meta.quality["no_iteration"] == 1


def test_work_without_a_launch_takes_the_step_of_both_its_neighbours(tmp_path: Path) -> None:
    launches = [launch(10, 1), launch(20, 2), launch(150, 3)]
    kernels = [
        kernel("before all", 5, 1, 91),
        kernel("a", 30, 5, 1),
        kernel("between", 36, 2, 92),
        kernel("b", 40, 5, 2),
        kernel("between steps", 46, 2, 93),
        kernel("c", 160, 5, 3),
        kernel("after all", 170, 5, 94),
        kernel("another stream", 37, 2, 95, stream=8),
    ]
    assert of(read(tmp_path, *STEPS, *launches, *kernels)) == [None, 1, 1, 1, None, 2, None, None]


def test_collectives_follow_their_kernels(tmp_path: Path) -> None:
    trace = read(tmp_path, *STEPS, launch(150, 1), kernel("ncclDevKernel_AllReduce", 190, 5, 1))
    assert of(trace, "collectives") == of(trace) == [2]


def test_the_whole_trace_takes_every_event(tmp_path: Path) -> None:
    trace = read(tmp_path, OP, kernel("orphan", 500, 5, 9))
    assert rows(trace) == [(0, 0, "whole trace", "whole trace", 105, 400)]
    assert of(trace) == [0]


def test_a_trace_of_one_instant_has_one_iteration_of_a_nanosecond(tmp_path: Path) -> None:
    trace = read(tmp_path, {**OP, "dur": None})
    assert rows(trace) == [(0, 0, "whole trace", "whole trace", 105, 0.001)]
