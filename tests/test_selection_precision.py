"""What a selection says of its points: the scatter of equal lengths, its standard error, and points for a target."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from profilers.errors import InvalidInputError
from profilers.trace.arrays import Floats
from seqpoint import front_door
from seqpoint.cli import cli
from seqpoint.iteration_table import IterationTable
from seqpoint.selection.estimate import Precision, cross_validated_error
from seqpoint.selection.selecting import SelectOptions, select
from seqpoint.selection.seqpoint import SeqPointSelector
from seqpoint.units import percent

#: Four iterations of length 10 and four of length 20, 10 % below and above their means.
PAIRS = (np.repeat([10.0, 20.0], 4), np.array([90.0, 110, 90, 110, 180, 220, 180, 220]))


def table(lengths: Floats, time: Floats) -> IterationTable:
    rows = np.arange(len(lengths))
    names = ("log",) * len(rows)
    return IterationTable(rows * 0, rows, rows, lengths, {"duration": time}, names, names)


def run(folder: Path, log: tuple[Floats, Floats], *options: object) -> Result:
    rows = "".join(f"{length:g},{float(time)!r}\n" for length, time in zip(*log, strict=True))
    (folder / "log.csv").write_text("sequence_length,duration\n" + rows)
    return CliRunner().invoke(cli, ["select", str(folder / "log.csv"), *map(str, options)])


def epoch(seed: int, sigma: float, iterations: int = 1200) -> tuple[Floats, Floats]:
    """Return lengths that are the same for every seed, and times with noise of a relative standard deviation."""
    lengths = np.random.default_rng(7).integers(1, 31, iterations).astype(np.float64)
    mean = 1e6 + 2e5 * lengths + 1e3 * lengths**2
    return lengths, mean * (1 + sigma * np.random.default_rng(seed).standard_normal(iterations))


def test_the_standard_error_of_two_points_is_that_by_hand() -> None:
    precision = select(table(*PAIRS), SelectOptions(max_points=2)).precision
    # Squares of residuals 8 * 0.01 over 6 degrees. The points take 90 and 180 and weigh 4: 9 squares of each are noise,
    # and 3 of the iterations that are no points. Both lengths are points, so nothing is added for others.
    variance = 0.08 / 6
    assert precision.scatter == pytest.approx(variance**0.5) and not precision.from_neighbours
    error = (variance * (9 + 3) * (90**2 + 180**2)) ** 0.5 / (4 * 90 + 4 * 180)
    assert precision.standard_error == pytest.approx(error)
    assert (precision.points, precision.iterations) == (2, 8)
    # 1 / (0.05^2 / 0.01333 + 1 / 8) = 3.2
    assert precision.points_for(0.05) == 4


def test_points_of_equal_weight_know_the_scatter_over_the_square_root_of_their_number() -> None:
    lengths, time = np.full(400, 8.0), np.tile([90.0, 110.0], 200)
    for points in (4, 25, 100):
        precision = select(table(lengths, time), SelectOptions(max_iterations=points)).precision
        assert precision.standard_error == pytest.approx(0.1 * (1 / points - 1 / 400) ** 0.5, rel=0.01)


def test_the_sentence_says_scatter_error_and_points(tmp_path: Path) -> None:
    log = (np.full(400, 8.0), np.tile([90.0, 110.0], 200))
    done = run(tmp_path, log, "--max-iterations", 12)
    assert "equal lengths differ by 10 %: 12 points know the total to 2.9 %; 1 % takes about 81\n" in done.stdout
    done = run(tmp_path, log, "--max-iterations", 12, "--json")
    content = json.loads(done.stdout)
    # 1 / (0.01 + 1 / 400) = 80; the sample has 399 degrees of freedom, so the scatter is 0.1001.
    assert content["points_for_target_error"] == 81 and content["target_error"] == 0.01
    assert content["scatter"] == pytest.approx(0.1, rel=0.01) and content["from_neighbours"] is False
    assert content["cross_validated_error"] == pytest.approx(content["standard_error"], rel=0.5)
    assert content["error"] < content["cross_validated_error"] or content["error"] == pytest.approx(0.1)


def test_lengths_that_occur_once_tell_the_scatter_by_their_neighbours() -> None:
    lengths = np.arange(1.0, 201)
    time = 1e6 * lengths * (1 + 0.1 * np.random.default_rng(0).standard_normal(200))
    precision = select(table(lengths, time), SelectOptions()).precision
    assert precision.from_neighbours and precision.scatter == pytest.approx(0.1, rel=0.15)
    assert precision.summary(0.01).startswith("neighbouring lengths differ by ")


def test_an_error_by_the_choice_of_lengths_takes_more_lengths() -> None:
    lengths = np.repeat(np.arange(1.0, 41), 10)
    precision = select(table(lengths, lengths), SelectOptions(max_points=1)).precision
    assert precision.scatter == pytest.approx(0, abs=1e-9) and precision.standard_error > 0.01
    chosen = select(table(lengths, lengths), SelectOptions(target_error=0.01))
    assert precision.points_for(0.01) == len(chosen.rows) == 32 and precision.summary(0.01).endswith("takes about 32")
    by_scatter = replace(precision, needed=None)  # as of a run that is estimated, not selected on
    assert by_scatter.points_for(0.01) is None
    assert by_scatter.summary(0.01).endswith("; 1 % takes more lengths")


@pytest.mark.parametrize(("target", "sigma"), [(0.02, 0.1), (0.01, 0.05)])
def test_a_target_error_is_kept_by_two_of_three_epochs_as_noisy(target: float, sigma: float) -> None:
    errors = []
    for seed in range(40):
        lengths, time = epoch(2 * seed, sigma)
        result = select(table(lengths, time), SelectOptions(target_error=target))
        assert result.precision.standard_error <= target
        again = epoch(2 * seed + 1, sigma)[1]
        errors.append(float(result.weights @ again[result.rows]) / again.sum() - 1)
    assert 0.55 <= np.mean(np.abs(errors) <= target) <= 0.9
    assert np.sqrt(np.mean(np.square(errors))) <= 1.1 * target


@pytest.mark.parametrize("selector", ["seqpoint", "stratified", "random"])
def test_a_target_error_takes_no_more_iterations_than_it_needs(selector: str) -> None:
    lengths, time = epoch(1, 0.1)
    result = select(table(lengths, time), SelectOptions(target_error=0.02, selector=selector))
    fewer = SelectOptions(selector=selector, max_points=len(result.rows) - 1, max_iterations=len(result.rows) - 1)
    assert result.precision.standard_error <= 0.02
    assert select(table(lengths, time), fewer).precision.standard_error > 0.0195
    assert front_door.select(table(lengths, time), target_error=0.02, selector=selector).rows.tolist() == (
        result.rows.tolist()
    )


def test_a_target_that_takes_most_of_the_run_says_to_profile_it_all(tmp_path: Path) -> None:
    log = (np.full(100, 8.0), np.tile([90.0, 110.0], 50))
    # 1 / (0.01 / 0.0101 + 0.01) = 50.2, of 100
    done = run(tmp_path, log, "--target-error", "1%")
    assert "1 % takes 51 of 100 iterations: profile the whole run" in done.stdout
    assert "0.5 % takes 81 of 100 iterations" in run(tmp_path, log, "--target-error", "0.005").stdout


def test_a_target_that_the_lengths_cannot_reach_is_missed(tmp_path: Path) -> None:
    done = run(tmp_path, epoch(1, 0.1), "--target-error", "0.5%", "--max-points", 2)
    assert "the target error of 0.5 % is missed: 2 lengths have no more iterations to choose; allow more" in done.stdout


def test_a_tolerance_that_is_missed_is_said(tmp_path: Path) -> None:
    # Two bins: lengths 8 and 16 take 100 and 200, 24 and 32 take 300 and 400. Points 16 and 32 with three each err.
    log = (np.array([8.0, 16, 24, 32, 16, 32]), np.array([100.0, 200, 300, 400, 200, 400]))
    done = run(tmp_path, log, "--max-points", 2)
    assert "the tolerance of 1 % is missed: 2 points err by 12 %" in done.stdout
    content = json.loads(run(tmp_path, log, "--max-points", 2, "--json").stdout)
    assert content["tolerance"] == 0.01 and content["tolerance_met"] is False
    assert "missed" not in run(tmp_path, log, "--max-points", 2, "--tolerance", "0.2").stdout
    assert json.loads(run(tmp_path, log, "--max-points", 4, "--json").stdout)["tolerance_met"] is True


def test_the_cross_validated_error_is_that_of_another_run_and_the_own_error_is_not() -> None:
    lengths, time = epoch(1, 0.1)
    result = select(table(lengths, time), SelectOptions())
    assert result.error < 0.005 < 0.02 < (result.cross_validated_error or 0.0)
    assert f"expected error {percent(result.cross_validated_error or 0.0)} from " in result.summary()[0]
    assert f"(cross-validated); in-sample {percent(result.error)}, on the run" in result.summary()[0]
    assert result.cross_validated_error == pytest.approx(result.precision.standard_error, rel=0.4)
    again = select(table(lengths, time), SelectOptions())
    assert again.cross_validated_error == result.cross_validated_error


def test_short_runs_and_many_points_are_not_cross_validated() -> None:
    lengths, time = epoch(1, 0.1, iterations=40)

    def fit(X: Floats, y: Floats) -> SeqPointSelector:
        return SeqPointSelector(max_points=30).fit(X, y)

    assert cross_validated_error(fit, lengths[:19, None], time[:19]) is None
    assert cross_validated_error(fit, lengths[:, None], time) is None
    short = select(table(*PAIRS), SelectOptions())
    assert short.tables()[-1].rows[0][-1] == "-" and "(scatter alone); in-sample" in short.summary()[0]


def test_a_line_below_the_table_says_what_the_baselines_are(tmp_path: Path) -> None:
    lines = run(tmp_path, epoch(1, 0.1)).stdout.splitlines()
    assert lines[-2].startswith("prior ") and lines[-1].startswith("error %: in-sample; frequent, median, worst: ")


def test_another_run_says_the_scatter_that_its_points_have() -> None:
    lengths, time = epoch(1, 0.02)
    base, noisy = table(lengths, time), table(lengths, epoch(2, 0.3)[1])
    chosen = front_door.select(base, max_points=10, max_iterations=40)
    same, other = (front_door.estimate(chosen, each, base=base) for each in (base, noisy))
    assert same.precision.scatter == pytest.approx(0.02, rel=0.2)
    assert other.precision.scatter == pytest.approx(0.3, rel=0.4)
    assert other.to_dict()["standard_error"] > 4 * same.to_dict()["standard_error"]
    assert other.summary()[1].startswith("equal lengths differ by ")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--target-error", "1"), "'1' is no share between 0 and 1; write 1% or 0.01"),
        (("--target-error", "one"), "'one' is no share"),
        (("--target-error", "0%"), "'0%' is no share"),
        (("--target-error", "1%", "--max-iterations", "9"), "--max-iterations: no effect beside --target-error"),
        (("--target-error", "1%", "--selector", "median"), "--target-error: no effect on the selector median"),
    ],
)
def test_wrong_usage_is_refused(tmp_path: Path, options: tuple[str, ...], problem: str) -> None:
    done = run(tmp_path, PAIRS, *options)
    assert done.exit_code == 2 and problem in done.stderr and not done.stdout


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"target_error": 1.5}, "target_error is 1.5; it must lie between 0 and 1"),
        ({"target_error": 0.01, "max_iterations": 4}, "leave out max_iterations"),
        ({"target_error": 0.01, "selector": "prior"}, "sets its own number of points"),
    ],
)
def test_options_that_contradict_are_refused(options: dict[str, object], problem: str) -> None:
    with pytest.raises(InvalidInputError, match=problem):
        SelectOptions(**options)  # type: ignore[arg-type]


def test_no_scatter_takes_no_more_points() -> None:
    assert Precision(0.0, False, 0.0, 0.0, 3, 10).points_for(0.01) == 3
    assert Precision(0.0, False, 0.0, 0.2, 3, 10).points_for(0.01) is None
