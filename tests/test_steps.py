"""Step times: the time between completions, from tiny traces worked out by hand."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jobs import write_job
from traces import event, kernel, kineto, launch

from profilers.ingest.pipeline import IngestOptions, collect
from profilers.trace.activity import times_in_steps
from profilers.trace.steps import job_steps, step_times
from profilers.trace.trace import Trace
from seqpoint.description import describe
from seqpoint.iteration_table import iteration_table


def trace_of(tmp_path: Path, *events: object, name: str = "t.json", **header: object) -> Trace:
    (tmp_path / name).write_text(json.dumps(kineto(list(events), **header)))
    return collect([tmp_path / name])


def behind() -> list[object]:
    """Return three steps of 100 us on the host, with kernels of 150, 150 and 20 us on a device that is behind."""
    return [
        kernel("old", -30, 70, 99),  # launched before the recording, done at 40
        *(event(f"ProfilerStep#{n}", "user_annotation", 100.0 * i, 100) for i, n in enumerate((4, 5, 6))),
        *(launch(100.0 * i + 10, i + 1) for i in range(3)),
        kernel("a", 40, 150, 1), kernel("b", 190, 150, 2), kernel("c", 340, 20, 3),
    ]  # fmt: skip


def test_steps_last_from_one_completion_to_the_next(tmp_path: Path) -> None:
    steps = step_times(trace_of(tmp_path, *behind()))
    assert steps.iteration.tolist() == [4, 5, 6]
    assert (steps.step_ns / 1e3).tolist() == [150, 150, 20]  # the first from where the old kernel ends
    assert (steps.latency_ns / 1e3).tolist() == [190, 240, 160]
    assert steps.follows.tolist() == [False, True, True]


def test_the_statistics_of_iterations_are_the_same_figures(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, *behind())
    table = iteration_table(trace)
    assert (table.statistic("duration") / 1e3).tolist() == [150, 150, 20]
    assert (table.statistic("latency") / 1e3).tolist() == [190, 240, 160]
    (row,) = describe(trace).steps
    assert (row.steps, row.elapsed_ns, row.step_ns, row.latency_ns) == (3, 320_000, 150_000, 190_000)
    assert row.busy_ns == 320_000


def test_a_step_that_is_overtaken_takes_no_time(tmp_path: Path) -> None:
    events = [
        event("ProfilerStep#1", "user_annotation", 0, 100), event("ProfilerStep#2", "user_annotation", 100, 100),
        launch(10, 1), launch(110, 2), kernel("long", 20, 400, 1), kernel("short", 130, 20, 2, stream=20),
    ]  # fmt: skip
    steps = step_times(trace_of(tmp_path, *events))
    assert (steps.step_ns / 1e3).tolist() == [420, 0]


@pytest.mark.parametrize("numbers", [(1, 3), (2, 2)])
def test_steps_with_a_gap_between_their_numbers_are_recordings_of_their_own(
    tmp_path: Path, numbers: tuple[int, int]
) -> None:
    marks = [event(f"ProfilerStep#{n}", "user_annotation", 1000.0 * i, 100) for i, n in enumerate(numbers)]
    work = [launch(10, 1), kernel("a", 20, 30, 1), launch(1010, 2), kernel("b", 1020, 130, 2)]
    steps = step_times(trace_of(tmp_path, *marks, *work))
    alone = numbers == (1, 3)  # numbers that repeat are counted from 0
    assert steps.follows.tolist() == [False, not alone]
    assert (steps.step_ns / 1e3).tolist() == [100, 150 if alone else 1050]


def test_files_that_are_an_iteration_each_have_no_time_between_them(tmp_path: Path) -> None:
    files = []
    for i in range(3):
        start = 10_000.0 * i
        files.append(tmp_path / f"{i}.json")
        events = [event("aten::mm", "cpu_op", start, 50), launch(start, 1), kernel("a", start + 10, 40.0 + i, 1)]
        files[-1].write_text(json.dumps(kineto(events)))
    steps = step_times(collect(files, IngestOptions("file")))
    assert (steps.step_ns / 1e3).tolist() == [50, 51, 52] and not steps.follows.any()


def test_a_job_completes_with_its_last_rank_and_clocks_do_not_count(tmp_path: Path) -> None:
    files, _ = write_job(tmp_path, [[("launch", 80.0), ("work", 50.0)], [("launch", 30.0), ("work", 100.0)]], 4)
    one = job_steps(step_times(collect(files)))
    assert one.follows.tolist() == [False, True, True, True]
    assert (one.step_ns[1:] / 1e3).tolist() == pytest.approx([102, 102, 102])
    content = json.loads(files[1].read_text())
    for row in content["traceEvents"]:
        row["ts"] += 70_000
    files[1].write_text(json.dumps(content))
    other = job_steps(step_times(collect(files)))
    np.testing.assert_array_equal(one.step_ns, other.step_ns)


def test_a_trace_without_devices_has_steps_of_its_host(tmp_path: Path) -> None:
    events = [event(f"ProfilerStep#{n}", "user_annotation", 100.0 * n, 90) for n in range(3)]
    events += [event("aten::mm", "cpu_op", 100.0 * n + 5, 50) for n in range(3)]
    trace = trace_of(tmp_path, *events)
    assert (step_times(trace).step_ns / 1e3).tolist() == [90, 100, 100]
    (row,) = describe(trace).steps
    assert row.device is None and row.busy_ns is None


def test_a_trace_without_iterations_has_no_steps(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, *behind())
    empty = Trace(trace.meta, {**trace.tables, "iterations": trace.iterations.slice(0, 0)})
    steps = step_times(empty)
    assert len(steps) == len(job_steps(steps)) == 0


works = st.lists(st.tuples(st.integers(1, 500), st.integers(1, 500), st.booleans()), min_size=2, max_size=7)


@given(works, st.integers(1, 4))
def test_step_times_add_up_to_the_elapsed_time(tmp_path_factory: pytest.TempPathFactory, work, ranks: int) -> None:
    calls = [c for host, device, sync in work for c in (("launch", device), ("work", host), *([("sync",)] * sync))]
    # Each step of the file is one pass over all calls; ranks differ in how long their kernels take.
    jobs = [[(kind, *(a * (1 + 0.1 * r) for a in args)) for kind, *args in calls] for r in range(ranks)]
    files, completions = write_job(tmp_path_factory.mktemp("job"), jobs, 4)
    trace = collect(files)
    steps = step_times(trace)
    assert (steps.step_ns >= 0).all()
    for rank in range(ranks):
        mine = steps.rank == rank
        elapsed = steps.completion_ns[mine][-1] - steps.completion_ns[mine][0]
        assert steps.step_ns[mine][1:].sum() == elapsed
    assert np.diff(completions) * 1e3 == pytest.approx(job_steps(steps).step_ns[1:], abs=2)
    for device in times_in_steps(trace, steps):
        assert 0 <= device.times.busy_ns <= device.elapsed_ns * (1 + 1e-9)


def test_steps_that_overlap_by_rounding_all_count(tmp_path: Path) -> None:
    marks = [event(f"ProfilerStep#{n}", "user_annotation", 100.0 * n, 100.001) for n in range(5)]
    steps = step_times(trace_of(tmp_path, *marks, launch(10, 1), kernel("a", 20, 30, 1)))
    assert steps.iteration.tolist() == [0, 1, 2, 3, 4] and (steps.step_ns > 0).all()
