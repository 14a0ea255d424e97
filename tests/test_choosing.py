"""Iterations that a projection replays: chosen by step time, with the run that they stand for and its error."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from jsonschema import validate
from traces import transformer

import seqpoint as sp
from profilers.files import dataset_path
from profilers.trace import Trace, TraceMeta
from profilers.trace.schema import make_table
from replay.projection.evidence import selection_factors
from replay.projection.windows import SampledStep
from seqpoint.choosing import choose_iterations
from seqpoint.reproducing import reproduce

SERVING = Path(__file__).parents[2] / "shared" / "data" / "traces" / "rocm" / "rpd_mi300x_vllm.rpd.gz"


class Window:
    """A window of one sampled step."""

    def __init__(self, weight: float, measured_ns: float, *sampled: SampledStep) -> None:
        self.weights, self.measured_ns, self.sampled = (weight,), (measured_ns,), sampled


def run_of(step_ns: list[int], lengths: list[int | None] | None = None) -> Trace:
    """Return a trace of host iterations that follow each other without a gap."""
    n = len(step_ns)
    start = np.concatenate(([0], np.cumsum(step_ns)[:-1]))
    columns = {
        "rank": [0] * n,
        "iteration": np.arange(n),
        "name": [f"ProfilerStep#{i}" for i in range(n)],
        "start_ns": start,
        "dur_ns": np.array(step_ns),
        "found_by": ["ProfilerStep"] * n,
        "sequence_length": lengths or [None] * n,
    }
    return Trace(TraceMeta("kineto"), {"iterations": make_table("iterations", columns)})


def test_points_are_chosen_by_step_time_and_the_warm_up_counts_once() -> None:
    lengths = [10, 12, 14, 16] * 10
    times = [1000 * length + 7 * i for i, length in enumerate(lengths)]
    times[0] = 400_000
    chosen = choose_iterations(run_of(times, list(lengths)), max_points=4)
    assert chosen.how == "SeqPoint" and sum(chosen.weights) == 39 and 0 not in chosen.numbers
    run = chosen.run
    assert run.iterations == 40 and run.measured_ns == sum(times) and run.error is not None and run.error < 0.01
    assert run.low_ns is not None and run.high_ns is not None and run.low_ns <= run.measured_ns <= run.high_ns
    assert [(row.iteration, row.value) for row in run.outliers] == [(0, 400_000.0)]
    assert "outliers: 1 iteration" in run.outliers_sentence() and "warm-up" in run.outliers_sentence()
    kept = choose_iterations(run_of(times, list(lengths)), max_points=4, keep_outliers=True)
    assert sum(kept.weights) == 40 and not kept.run.outliers


def test_without_lengths_each_group_of_like_steps_gives_its_typical_iteration() -> None:
    times = [10_000 + 100 * (i % 5) for i in range(41)]
    times[0], times[20] = 90_000, 80_000
    chosen = choose_iterations(run_of(times), max_points=4)
    assert len(chosen.numbers) == 4 and sum(chosen.weights) == pytest.approx(39)
    assert not {0, 20} & set(chosen.numbers) and {row.iteration for row in chosen.run.outliers} == {0, 20}
    assert chosen.run.error is not None and chosen.run.error < 0.005
    every = choose_iterations(run_of(times), max_points=5)
    assert sorted(times[number] for number in every.numbers) == [10_000, 10_100, 10_200, 10_300, 10_400]
    assert every.run.error == 0


def test_steps_of_very_different_times_without_lengths_give_the_total() -> None:
    """Times of a run of 26 iterations on two GPUs, in us, the first of which is timed otherwise."""
    short, long = [6_230, 23_100, 6_240, 23_130], [160, 29_180, 160, 29_190]
    times = [440_120, *short, *long * 3, *short, 1, 1, 196_320, 29_820, 29_820]
    chosen = choose_iterations(run_of(times), max_points=8)
    run = chosen.run
    assert len(chosen.numbers) == 8 and sum(chosen.weights) + len(run.outliers) == len(times)
    assert run.error is not None and run.error < 0.01 and run.low_ns is not None and run.high_ns is not None
    assert run.low_ns <= run.measured_ns <= run.high_ns


@pytest.mark.skipif(not SERVING.exists(), reason=f"no real trace at {SERVING}")
def test_a_real_run_without_lengths_has_its_total() -> None:
    run = choose_iterations(sp.open(SERVING)).run
    assert run.iterations == 20 and run.error is not None and run.error < 0.02
    assert run.low_ns is not None and run.high_ns is not None and run.low_ns <= run.measured_ns <= run.high_ns


def test_few_iterations_are_all_replayed_but_outliers() -> None:
    few = choose_iterations(run_of([1030, 1000, 1010, 1000]))
    assert few.numbers == (0, 1, 2, 3) and few.how == "all" and not few.sampled and not few.run.outliers
    assert few.run.estimated_ns == few.run.measured_ns == 4040 and few.run.error == 0
    warm = run_of([6_000_000, 131_000, 132_000, 130_000, 131_000])
    chosen = choose_iterations(warm)
    assert chosen.numbers == (1, 2, 3, 4) and chosen.how == "all but the outliers" and not chosen.sampled
    assert chosen.run.estimated_ns == chosen.run.measured_ns and "0 (6 ms, warm-up" in chosen.run.outliers_sentence()
    assert choose_iterations(warm, keep_outliers=True).numbers == (0, 1, 2, 3, 4)
    named = choose_iterations(run_of([1000] * 30), named=[3, 4])
    assert named.numbers == (3, 4) and named.how == "as asked" and named.run.estimated_ns is None


def test_gains_that_differ_widen_the_interval_by_their_error() -> None:
    windows = [Window(5, 20.0, SampledStep(position, 0.0)) for position in (1.0, 2.0)]
    factors = selection_factors(windows, [100.0, 100.0], [0.5, 1.0], draws=4000, seed=1)
    per_step = math.log(2) / math.sqrt(2) * math.sqrt(1 - 1 / 5)
    assert factors.std() == pytest.approx(per_step * math.hypot(50, 100) / 150, rel=0.05)
    assert factors.mean() == pytest.approx(1, abs=0.03)


def test_times_of_bins_that_spread_widen_the_interval() -> None:
    windows = [Window(1e9, 1e-7, SampledStep(position, 0.1)) for position in (1.0, 1.0)]
    alike = selection_factors(windows, [100.0, 100.0], [0.5, 0.5], draws=100, seed=1)
    assert alike == pytest.approx(1.0)
    few = selection_factors(windows, [100.0, 100.0], [0.5, 0.5 * math.exp(1e-9)], draws=100, seed=1)
    assert few == pytest.approx(1.0)


def test_steps_that_stand_for_themselves_have_no_error_of_selection() -> None:
    assert (selection_factors([Window(5, 20.0)] * 2, [1.0, 1.0], [0.5, 1.0], draws=9, seed=0) == 1).all()
    alone = [Window(1, 20.0, SampledStep(position, 0.3)) for position in (1.0, 2.0)]
    assert (selection_factors(alone, [20.0, 20.0], [0.5, 1.0], draws=9, seed=0) == 1).all()


@pytest.fixture(scope="module")
def job() -> Trace:
    return transformer(*range(64, 704, 32))


def test_a_projection_says_what_is_measured_estimated_and_replayed(job: Trace) -> None:
    result = sp.project(job, ["scale_kernels:all:0.5", "scale_host:0.5"], max_points=4, draws=8)
    content = json.loads(json.dumps(result.to_dict()))
    validate(content, json.loads(dataset_path("schemas/project.schema.json").read_text()))
    run = content["run"]
    assert run["iterations"] == 20 and run["low_ns"] <= run["estimated_ns"] <= run["high_ns"]
    assert run["error"] == pytest.approx(abs(run["estimated_ns"] / run["measured_ns"] - 1))
    weighted = sum(point["weight"] * point["measured_ns"] for point in content["points"])
    assert weighted == pytest.approx(content["baseline_ns"]) and len(content["points"]) <= 4
    text = " ".join(result.summary())
    assert all(word in text for word in ("synthesised: ", "estimated: the run of 20 iterations", "replayed: "))
    assert "measured" not in text
    again = reproduce(job, content)
    assert again.identical, again.differences


def test_the_interval_of_points_holds_the_speedup_of_all_iterations(job: Trace) -> None:
    what_ifs = ["scale_host:0.5", "scale_kernels:all:0.5"]
    few = sp.project(job, what_ifs, max_points=4, draws=16)
    every = sp.project(job, what_ifs, iterations=sorted(set(job.iterations["iteration"].to_pylist())), draws=8)
    for row, truth in zip(few.rows, every.rows, strict=True):
        assert row.low <= truth.speedup <= row.high, row.label
    assert every.chosen.run.estimated_ns is None and not every.chosen.sampled


def test_files_are_named(job: Trace, tmp_path: Path) -> None:
    table = job.iterations
    by_file = make_table(
        "iterations",
        {name: table[name] for name in table.schema.names} | {"found_by": ["file"] * table.num_rows},
    )
    chosen = choose_iterations(job.with_tables(iterations=by_file), max_points=3)
    assert chosen.files and all(row["file"] for row in replace(chosen).rows())
