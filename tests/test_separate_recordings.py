"""Files of one rank that do not overlap in time are separate recordings: no iteration or step reaches across."""

import json
from pathlib import Path
from typing import Any

import pytest
from traces import event, kernel, kineto, launch, step

import seqpoint as sp
from profilers.ingest.pipeline import IngestOptions, collect
from profilers.trace import load_trace, save_trace
from profilers.trace.steps import step_times
from profilers.trace.trace import Trace

#: Begin of each file in us; a file lasts at most 3 ms.
BEGINS = (0.0, 100_000.0, 400_000.0)


def files(folder: Path, *contents: list[dict[str, Any]]) -> Path:
    for number, events in enumerate(contents):
        (folder / f"part{number}.json").write_text(json.dumps(kineto(events)))
    return folder


def shown(trace: Trace) -> list[tuple[Any, ...]]:
    names = ("iteration", "start_ns", "dur_ns", "recording")
    return [tuple(row[name] for name in names) for row in trace.iterations.to_pylist()]


def work(t: float, count: int = 1) -> list[dict[str, Any]]:
    """Return `count` unmarked steps of 1000 us from `t`, each of a GEMM and an add."""
    events = []
    for i in range(count):
        start, c = t + 1000 * i, int(t) + 10 * i
        events += [launch(start, c + 1), launch(start + 10, c + 2)]
        events += [kernel("gemm", start + 20, 500, c + 1), kernel("add", start + 600, 300, c + 2)]
    return events


def test_without_marks_each_file_is_an_iteration_and_gaps_are_no_time(tmp_path: Path) -> None:
    trace = collect([files(tmp_path, *(work(t) for t in BEGINS))])
    assert shown(trace) == [(i, 1000 * t, 900_000, i) for i, t in enumerate(BEGINS)]
    table = sp.iterations(trace)
    assert table.found_by == ("file (separate recordings)",) * 3
    assert table.files == ("part0.json", "part1.json", "part2.json")
    assert table.statistic("duration").tolist() == [900_000.0] * 3
    assert trace.kernels["iteration"].to_pylist() == [0, 0, 1, 1, 2, 2]
    by_hand = sp.iterations(collect([tmp_path], IngestOptions("file")))
    assert by_hand.statistic("duration").tolist() == [900_000.0] * 3


def test_a_period_inside_files_is_cut_at_their_borders(tmp_path: Path) -> None:
    trace = collect([files(tmp_path, *(work(t, count=3) for t in BEGINS))])
    assert [row[0] for row in shown(trace)] == list(range(9))
    assert [row[3] for row in shown(trace)] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    steps = step_times(trace)
    assert steps.follows.tolist() == [False, True, True] * 3
    assert steps.step_ns.tolist() == [1_000_000, 1_000_000, 900_000] * 3


def test_consecutive_numbers_in_separate_files_do_not_follow_each_other(tmp_path: Path) -> None:
    trace = collect([files(tmp_path, step(1, 0.0) + step(2, 1000.0), step(3, 100_000.0))])
    assert [row[0] for row in shown(trace)] == [1, 2, 3] and [row[3] for row in shown(trace)] == [0, 0, 1]
    steps = step_times(trace)
    assert steps.follows.tolist() == [False, True, False]
    assert steps.step_ns.max() <= 1_000_000
    again = load_trace(save_trace(trace, tmp_path / "kept.trace"))
    assert step_times(again).follows.tolist() == [False, True, False]


def test_iterations_come_in_the_order_of_time_whatever_the_names_of_files(tmp_path: Path) -> None:
    contents = [step(number, 100_000.0 * number) + step(number + 1, 100_000.0 * number + 1000) for number in (0, 11, 5)]
    trace = collect([files(tmp_path, *contents)])
    assert [row[0] for row in shown(trace)] == [0, 1, 5, 6, 11, 12]
    assert [row[3] for row in shown(trace)] == [0, 0, 1, 1, 2, 2]
    assert trace.iterations["start_ns"].to_pylist() == sorted(trace.iterations["start_ns"].to_pylist())


def test_an_annotation_that_cuts_at_its_starts_ends_with_its_file(tmp_path: Path) -> None:
    contents = [
        [event("Optimizer.step#SGD.step", "user_annotation", t + 1000 * i, 100) for i in range(2)]
        + [event("aten::mm", "cpu_op", t + 1000, 900)]
        for t in BEGINS[:2]
    ]
    trace = collect([files(tmp_path, *contents)])
    assert [row[2] for row in shown(trace)] == [1_000_000, 900_000] * 2


@pytest.mark.parametrize("begins", [(0.0, 130.0), (0.0, 500.0)])
def test_files_that_overlap_stay_ranks(tmp_path: Path, begins: tuple[float, ...]) -> None:
    contents = [work(t) for t in begins]
    for i, events in enumerate(contents):
        events.append(kernel(f"own{i}", begins[i] + 950, 10, 9000 + i))
    trace = collect([files(tmp_path, *contents)])
    assert trace.meta.ranks == (0, 1) and trace.iterations["recording"].null_count == trace.iterations.num_rows
