"""A sweep: the same bits however many threads, in order; errors and interrupts stop it."""

import threading
import time
from functools import partial
from pathlib import Path

import pytest
from graphs import make_graph
from traces import write_trace

from profilers.errors import InvalidInputError
from profilers.ingest.pipeline import collect
from replay.costs.shipped import load_parameters
from replay.from_trace import build_graph
from replay.projection import sweep as module
from replay.projection.projection import ProjectionOptions, project
from replay.projection.sweep import ProgressSteps, jobs_for, sweep
from replay.projection.windows import StepWindow
from replay.what_ifs import WhatIf, parse_what_if


@pytest.mark.parametrize("jobs", [1, 2, 5])
def test_results_come_in_order(jobs: int) -> None:
    def run(i: int) -> int:
        time.sleep(0.002 * (10 - i))
        return i

    assert sweep([partial(run, i) for i in range(10)], jobs, ProgressSteps(10)) == list(range(10))


def test_threads_give_the_same_bits_as_one(tmp_path: Path) -> None:
    trace = collect([write_trace(tmp_path / "t.json")])
    windows = [
        StepWindow.alone(build_graph(trace, i, parameters=load_parameters()), weight)
        for i, weight in ((1, 3.0), (2, 1.1))
    ]
    what_ifs = [parse_what_if(t) for t in ("dma_collectives", "scale_device:MI300X", "fuse:all", "overlap:none")]
    one, two = (
        project(
            windows,
            what_ifs,
            meta=trace.meta,
            options=ProjectionOptions(16, 1, jobs=jobs),
            parameters=load_parameters(),
        )
        for jobs in (1, 3)
    )
    assert one.rows == two.rows and one.baseline_ns == two.baseline_ns


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_error_stops_all_and_is_the_one_that_is_raised(jobs: int) -> None:
    steps = ProgressSteps(100)
    done: list[int] = []

    def run(i: int) -> int:
        steps.next(str(i))
        if i == 3:
            raise InvalidInputError("the third")
        time.sleep(0.01)
        done.append(i)
        return i

    with pytest.raises(InvalidInputError, match="the third"):
        sweep([partial(run, i) for i in range(100)], jobs, steps)
    assert len(done) < 20


def test_an_interrupt_ends_the_threads_at_their_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = ProgressSteps(10_000)
    before = threading.active_count()

    def run() -> None:
        for _ in range(1000):
            steps.next("x")
            time.sleep(0.01)

    def interrupted(_: object) -> None:
        time.sleep(0.05)
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "_wait", interrupted)
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        sweep([run] * 10, 2, steps)
    assert time.monotonic() - began < 2 and threading.active_count() == before


def test_progress_counts_every_step_of_every_thread_once(tmp_path: Path) -> None:
    trace = collect([write_trace(tmp_path / "t.json")])
    windows = [StepWindow.alone(build_graph(trace, i, parameters=load_parameters())) for i in (1, 2)]
    told: list[tuple[int, int, str]] = []
    options = ProjectionOptions(8, progress=lambda *args: told.append(args), jobs=3)
    project(windows, [parse_what_if("overlap:none")], meta=trace.meta, options=options, parameters=load_parameters())
    draws = [done for done, total, _ in told if total == 32]
    assert draws == list(range(32)) and len(told) == 32 + 2  # the unchanged steps and the what-if come before


def test_an_error_of_a_what_if_in_a_thread_is_the_reason_of_its_row(tmp_path: Path) -> None:
    trace = collect([write_trace(tmp_path / "t.json")])

    def fails(graph: object, parameters: object) -> None:
        raise InvalidInputError("not possible")

    what_ifs = [WhatIf("mine", fails), parse_what_if("scale_host:0.5")]  # type: ignore[arg-type]
    failed, other = project(
        [StepWindow.alone(build_graph(trace, 1, parameters=load_parameters()))],
        what_ifs,
        meta=trace.meta,
        options=ProjectionOptions(8, jobs=2),
        parameters=load_parameters(),
    ).rows
    assert failed.reason == "what-if mine: not possible" and not failed.applied
    assert other.applied and other.low < other.speedup < other.high


def test_jobs_are_as_asked_or_as_memory_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = make_graph([1.0] * 1000)
    assert jobs_for([graph], 7) == 7
    monkeypatch.setattr(module, "_free_bytes", lambda: 1.0)
    assert jobs_for([graph]) == 1
    with pytest.raises(InvalidInputError, match="0 jobs"):
        sweep([], 0, ProgressSteps(0))
