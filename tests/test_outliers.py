"""Outlying iterations: found by a rule that a smooth tail does not meet, and counted once in totals."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from numpy.typing import NDArray

import seqpoint as sp
from profilers.files import dataset_path
from seqpoint.choosing import choose_iterations
from seqpoint.cli import cli
from seqpoint.iteration_table import IterationTable
from seqpoint.outliers import find_outliers
from seqpoint.selection.another_run import estimate_run
from seqpoint.selection.selecting import SelectOptions, select

PARTICLES = Path(__file__).parents[2] / "shared" / "data" / "traces" / "kineto" / "particle_transformer"
Floats = NDArray[np.float64]


def table(lengths: Floats, duration: Floats) -> IterationTable:
    n = len(lengths)
    zeros, names = np.zeros(n, np.int64), ("log",) * n
    return IterationTable(zeros, np.arange(n), zeros, lengths, {"duration": duration}, names, names)


def warm_run(n: int = 40, seed: int = 0) -> tuple[Floats, Floats]:
    """Return lengths and times that follow them within 2 %; iterations 0, 1 and 20 take ten times as long."""
    random = np.random.default_rng(seed)
    lengths = random.integers(10, 50, n).astype(np.float64)
    time = (100 + 10 * lengths) * (1 + 0.02 * random.standard_normal(n))
    time[[0, 1, 20]] *= 10
    return lengths, time


def test_warm_up_and_a_stall_are_named_and_counted_once() -> None:
    lengths, time = warm_run()
    found = find_outliers(time, lengths)
    assert found.rows.tolist() == [0, 1, 20] and found.kinds == ("warm-up", "warm-up", "slow")
    assert found.factors == pytest.approx(10, rel=0.5)
    result = select(table(lengths, time), SelectOptions(max_points=5))
    assert not set(result.rows.tolist()) & {0, 1, 20}
    assert result.weights.sum() == 37 and result.measured == pytest.approx(time.sum())
    known = time[[0, 1, 20]].sum()
    assert result.estimate.value == pytest.approx(known + result.weights @ time[result.rows])
    assert result.error < 0.02 and result.estimate.low < result.measured < result.estimate.high
    listed = result.to_dict()["outliers"]
    assert [row["iteration"] for row in listed] == [0, 1, 20] and listed[0]["value"] == time[0]
    assert listed[0]["reason"].startswith("warm-up: ") and listed[0]["file"] is None


def stalled_run() -> tuple[Floats, Floats]:
    """Return lengths of 10 to 19, four of each, and times of 100 plus ten times the length; 0 and 13 stall.

    Iteration 0 has the length 10 as three others have, which take 200. Iteration 13 alone has the length 23: the last
    eight regular ones have the lengths 18 and 19, and take 280 and 290.
    """
    lengths = np.tile(np.arange(10.0, 20.0), 4)
    lengths[13] = 23
    time = 100 + 10 * lengths
    time[[0, 13]] = [2000, 3990]
    return lengths, time


def test_the_factor_is_against_the_median_of_the_same_length_or_of_its_neighbours() -> None:
    lengths, time = stalled_run()
    assert find_outliers(time, lengths).reasons == (
        "warm-up: 10 times others of its length",  # 2000 / 200
        "slow: 14 times its neighbours in length",  # 3990 / 285
    )
    # Of the same length are now 200, 210 and 260: the median is 210. A stall beside it does not move it.
    time[[10, 20, 30]] = [200, 210, 260]
    time[0] = 3150
    assert find_outliers(time, lengths).factors[0] == 15
    # Iteration 20 in time has 16 to 19 and 21 to 24 beside it.
    steady = np.full(40, 30.0)
    steady[[16, 17, 18, 19, 20]] = [31, 32, 33, 34, 310]
    assert find_outliers(steady).reasons == ("slow: 10.2 times its neighbours in time",)  # 310 / 30.5


def test_baselines_get_the_same_outliers_unless_these_are_kept() -> None:
    lengths, time = stalled_run()
    known = 2000 + 3990
    result = select(table(lengths, time), SelectOptions(max_points=3))
    # The regular iterations: three of 10 and 13, four of the others. The 19th of 38 by length has 15: 250.
    # The most frequent length is 11, which takes 210. The window of 50 takes all 38.
    estimates = {row.name: (row.points, row.estimate) for row in result.baselines}
    assert estimates["median"] == (1, 38 * 250 + known)
    assert estimates["frequent"] == (1, 38 * 210 + known)
    assert estimates["prior"] == (38, time.sum())
    assert estimates["worst"] == (1, 38 * 200 + known)  # the mean is 247; 19 takes 290, which is nearer
    assert all(row.error == pytest.approx(abs(row.estimate / time.sum() - 1)) for row in result.baselines)
    kept = select(table(lengths, time), SelectOptions(max_points=3, keep_outliers=True))
    assert {row.name: row.estimate for row in kept.baselines}["median"] == 40 * 250


def test_reductions_and_words_count_the_outliers() -> None:
    lengths, time = stalled_run()
    result = select(table(lengths, time), SelectOptions(max_points=3))
    points = time[result.rows]
    assert result.sequential_reduction == pytest.approx(time.sum() / (points.sum() + 2000 + 3990))
    assert result.parallel_reduction == pytest.approx(time.sum() / 3990)
    first, *_, last = result.summary()
    assert f"from {len(points)} iterations and 2 outliers of 40 (" in first
    assert "(total over the sum of points and outliers)" in last and "(total over the longest of all)" in last
    kept = select(table(lengths, time), SelectOptions(max_points=3, keep_outliers=True))
    assert kept.sequential_reduction == pytest.approx(time.sum() / time[kept.rows].sum())
    assert f"from {len(kept.rows)} of 40 iterations (" in kept.summary()[0]
    estimated = estimate_run(result.to_dict(), (table(lengths, time), table(lengths, time)))
    assert f"from {len(points)} iterations and 2 outliers" in estimated.summary()[0]


def test_outliers_are_kept_on_request() -> None:
    lengths, time = warm_run()
    kept = select(table(lengths, time), SelectOptions(max_points=5, keep_outliers=True))
    assert not len(kept.outliers) and kept.weights.sum() == 40


def test_every_selector_leaves_outliers_out() -> None:
    lengths, time = warm_run()
    for name in ("seqpoint", "stratified", "random", "k-medoids"):
        result = select(table(lengths, time), SelectOptions(max_points=8, selector=name))
        assert not set(result.rows.tolist()) & {0, 1, 20}, name
        assert result.weights.sum() == pytest.approx(37), name


def test_a_smooth_heavy_tail_is_no_outlier() -> None:
    random = np.random.default_rng(5)
    draws = {
        "lognormal": lambda n: np.exp(0.5 * random.standard_normal(n)),
        "exponential": lambda n: random.exponential(size=n),
        "Pareto": lambda n: 1 + random.pareto(2.0, n),
        "two modes": lambda n: random.choice([1.0, 1.12], n) * (1 + 0.01 * random.standard_normal(n)),
    }
    for name, draw in draws.items():
        for n in (10, 64, 500):
            runs = [len(find_outliers(draw(n))) > 0 for _ in range(50)]
            assert np.mean(runs) <= 0.06, (name, n)  # 1 % by construction on each side


def test_growth_with_the_square_of_the_length_is_no_outlier() -> None:
    lengths = np.array([50.0, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 400])
    assert not len(find_outliers(0.01 * lengths**2, lengths))
    assert find_outliers(np.where(lengths == 400, 3 * 0.01 * lengths**2, 0.01 * lengths**2), lengths).rows.tolist() == [
        11
    ]


def test_without_lengths_neighbours_in_time_tell() -> None:
    time = 30 * (1 + 0.02 * np.random.default_rng(1).standard_normal(64))
    time[[0, 1, 30]] = [300, 200, 400]
    time[63] = 3
    assert find_outliers(time).kinds == ("warm-up", "warm-up", "slow", "short")


def test_slow_iterations_that_come_often_are_a_regular_share_of_the_run() -> None:
    time = 30 * (1 + 0.01 * np.random.default_rng(1).standard_normal(100))
    time[9::10] *= 4
    assert not len(find_outliers(time))


def test_warm_ups_and_stalls_are_found_from_three_iterations_on() -> None:
    assert find_outliers(np.array([6000.0, 131, 132])).kinds == ("warm-up",)
    first = find_outliers(np.array([6000.0, 131, 132, 130, 133]))
    assert first.reasons == ("warm-up: 45.6 times its neighbours in time",)
    assert find_outliers(np.array([300.0, 280, 31, 30, 32, 30])).kinds == ("warm-up", "warm-up")
    assert find_outliers(np.array([31.0, 30, 32, 300, 30])).kinds == ("slow",)
    assert find_outliers(np.array([342.0, 333, 33, 32, 33, 37, 568, 33])).rows.tolist() == [0, 1, 6]
    assert not len(find_outliers(np.array([31.0, 300, 30])))  # one of three tells nothing
    assert not len(find_outliers(np.array([31.0, 3, 30, 32, 30])))
    assert not len(find_outliers(np.array([300.0, 30])))
    assert not len(find_outliers(np.zeros(20)))


def regular(random: np.random.Generator, n: int, kind: str) -> tuple[Floats, NDArray[np.int64] | None]:
    """Return the times of a regular run, and kinds if it has several."""
    noise = 1 + 0.05 * random.standard_normal(n)
    every = {"alternating": 2, "rare": 4}.get(kind)
    if every is not None:
        kinds = (np.arange(n) % every == every - 1).astype(np.int64)
        return noise * (1 + 2 * kinds), kinds
    draws = {"normal": np.ones(n), "lengths": random.uniform(10, 120, n), "skewed": random.exponential(size=n) + 0.01}
    return noise * draws[kind], None


@pytest.mark.parametrize("kind", ["normal", "lengths", "skewed", "alternating", "rare"])
def test_short_regular_runs_lose_no_iteration(kind: str) -> None:
    random = np.random.default_rng(8)
    for n in (3, 4, 5, 6, 8, 12, 30):
        runs = [regular(random, n, kind) for _ in range(100)]
        assert np.mean([len(find_outliers(time, kinds=kinds)) > 0 for time, kinds in runs]) <= 0.03, n


def test_a_warm_up_with_kernels_of_its_own_is_compared_with_other_steps() -> None:
    time, kinds = np.array([600.0, 30, 90, 31, 30, 91, 30, 32, 89]), np.array([2, 0, 1, 0, 0, 1, 0, 0, 1])
    assert find_outliers(time, kinds=kinds).kinds == ("warm-up",)
    assert not len(find_outliers(time[1:], kinds=kinds[1:]))


def test_each_recording_has_a_warm_up() -> None:
    time = 30 * (1 + 0.01 * np.random.default_rng(2).standard_normal(60))
    time[[0, 20, 21, 40]] *= 8
    begins = np.zeros(60, dtype=bool)
    begins[[20, 40]] = True
    assert set(find_outliers(time, begins=begins).kinds) == {"warm-up"}
    lengths = np.full(60, 7.0)
    run = table(lengths, time)
    gaps = IterationTable(
        run.rank,
        np.arange(60) + 100 * (np.arange(60) // 20),
        run.start_ns,
        lengths,
        run.statistics,
        ("log",) * 60,
        ("log",) * 60,
    )
    assert np.flatnonzero(gaps.begins).tolist() == [0, 20, 40]
    shuffled = gaps.take(np.random.default_rng(0).permutation(60))
    assert shuffled.begins.sum() == 1


def test_the_shipped_epochs_have_no_outliers() -> None:
    for name in ("log_threads1", "log_threads2"):
        assert not len(sp.select(dataset_path(f"samples/cpu_epoch/{name}.csv")).outliers)


def test_a_run_estimated_from_itself_has_speedup_one() -> None:
    lengths, time = warm_run()
    base = table(lengths, time)
    chosen = select(base, SelectOptions(max_points=5)).to_dict()
    itself = estimate_run(chosen, (base, base))
    assert itself.speedup == 1.0 and itself.speedup_low is not None and itself.speedup_low < 1 < itself.speedup_high  # type: ignore[operator]
    assert itself.n_outliers == 3 and itself.outliers_total == pytest.approx(time[[0, 1, 20]].sum())
    assert itself.measured == pytest.approx(time.sum()) and itself.error is not None and itself.error < 0.03
    half = estimate_run(chosen, (base, table(lengths, time / 2)))
    assert half.speedup == pytest.approx(2.0)


def test_outliers_that_the_other_run_lacks_are_taken_over() -> None:
    lengths, time = warm_run()
    base = table(lengths, time)
    chosen = select(base, SelectOptions(max_points=5)).to_dict()
    profiled = base.take(np.array(sorted(point["iteration"] for point in chosen["points"])))
    short = estimate_run(chosen, (base, profiled))
    assert short.outliers_total == pytest.approx(time[[0, 1, 20]].sum()) and short.measured is None


def test_the_command_lists_outliers_and_estimates_with_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lengths, time = warm_run()
    with Path("log.csv").open("w", newline="") as stream:
        rows = csv.writer(stream)
        rows.writerow(["iteration", "sequence_length", "duration_ns"])
        rows.writerows([i, int(u), int(1e6 * t)] for i, (u, t) in enumerate(zip(lengths, time, strict=True)))
    shown = CliRunner().invoke(cli, ["select", "log.csv"])
    assert shown.exit_code == 0 and "outliers: 3 iterations with" in shown.stdout and "warm-up" in shown.stdout
    Path("points.json").write_text(CliRunner().invoke(cli, ["select", "log.csv", "--json"]).stdout)
    done = CliRunner().invoke(cli, ["estimate", "points.json", "log.csv", "--from", "log.csv", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["speedup"] == 1.0 and json.loads(done.stdout)["n_outliers"] == 3
    kept = CliRunner().invoke(cli, ["select", "log.csv", "--keep-outliers", "--json"])
    assert json.loads(kept.stdout)["outliers"] == []


@pytest.mark.skipif(not PARTICLES.is_dir(), reason=f"no real traces at {PARTICLES}")
@pytest.mark.parametrize("batch", [4, 8, 32])
def test_totals_of_the_particle_transformer_are_within_two_percent(batch: int) -> None:
    trace = sp.open(PARTICLES / f"batch_{batch}", iterations="file", length="aten::layer_norm:0:0")
    for statistic in ("duration", "kernel_time"):
        result = sp.select(trace, statistic=statistic)
        assert result.error <= 0.02 and result.estimate.low <= result.measured <= result.estimate.high
        assert len(result.outliers) == (4 if statistic == "duration" else 0)
        assert all(point["file"].endswith(".json.gz") for point in result.to_dict()["points"])


@pytest.mark.skipif(not PARTICLES.is_dir(), reason=f"no real traces at {PARTICLES}")
@pytest.mark.parametrize(("batch", "length"), [(4, "aten::layer_norm:0:0"), (8, "aten::layer_norm:0:0"), (4, None)])
def test_two_warm_ups_and_a_stall_among_eight(batch: int, length: str | None) -> None:
    files = sorted((PARTICLES / f"batch_{batch}").iterdir())[:8]
    trace = sp.open(files, iterations="file", length=length)
    for points in (4, 8):
        run = choose_iterations(trace, max_points=points).run
        assert [row.iteration for row in run.outliers] == [0, 1, 6] and run.error is not None and run.error < 0.005
    if length is not None:
        result = sp.select(trace, statistic="duration")
        assert result.error < 0.005 and result.estimate.low <= result.measured <= result.estimate.high
