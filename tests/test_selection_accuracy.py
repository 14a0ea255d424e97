"""Selection on recorded epochs and on real traces: tables that may not silently get worse."""

import csv
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from profilers.files import dataset_path
from seqpoint.cli import cli
from seqpoint.iteration_table import read_log

ROOT = Path(__file__).parents[1]
DATA = ROOT.parent / "shared" / "data" / "traces" / "kineto" / "particle_transformer"
sys.path.insert(0, str(ROOT / "benchmarks" / "selection"))


def table(name: str) -> list[dict[str, str]]:
    return list(csv.DictReader((ROOT / "tests" / "accuracy" / name).read_text().splitlines()))


def same(found: dict[str, str], expected: dict[str, str]) -> None:
    assert set(found) == set(expected)
    for column, value in expected.items():
        if value.replace(".", "").isdigit():
            assert float(found[column]) == pytest.approx(float(value), abs=0.002, rel=1e-3), column
        else:
            assert found[column] == value, column


def test_selectors_do_on_the_recorded_epochs_what_the_table_says() -> None:
    from accuracy_of_selection import epochs_table

    expected = table("selection.csv")
    found = epochs_table(resample=False)
    assert len(found) == len(expected) > 50
    for ours, theirs in zip(found, expected, strict=True):
        same(ours | {"resampled_covered": ""}, theirs | {"resampled_covered": ""})


def test_the_command_scores_what_is_shipped() -> None:
    done = CliRunner().invoke(cli, ["validate", "selection", "--json"])
    assert done.exit_code == 0
    rows = json.loads(done.stdout)["rows"]
    gated = {row["case"]: row for row in rows if row["limit"] is not None}
    assert len(gated) == 8 and all(row["met"] is not None for row in gated.values())
    assert all(row["reference"] > 0 and not row["fitted"] for row in rows if row["limit"] is None)


def test_an_epoch_of_which_all_is_selected_is_judged_without_a_division_by_its_errors(tmp_path: Path) -> None:
    (tmp_path / "short").mkdir()
    for name, factor in (("base", 1), ("half", 2)):
        rows = [f"{i},{4 * (i + 1)},4,{factor * 1_000_000 * (i + 1)}" for i in range(12)]
        text = "\n".join(["iteration,sequence_length,batch,duration_ns", *rows]) + "\n"
        (tmp_path / "short" / f"{name}-sorted.csv").write_text(text)
    done = CliRunner().invoke(cli, ["validate", "selection", str(tmp_path), "--json"])
    assert done.exit_code == 0, done.output
    shares = [row for row in json.loads(done.stdout)["rows"] if " over that of " in row["case"]]
    assert shares and all(row["ours"] == 1.0 for row in shares if "random" in row["case"])


def test_a_recorded_duration_is_the_median_of_its_runs_at_the_pace_of_the_reference() -> None:
    for path in sorted(dataset_path("measured/epochs").glob("*/*.parquet")):
        log = read_log(path)
        runs = [log.statistic(name) for name in sorted(log.statistics) if name.startswith("run_")]
        references = [log.statistic(name) for name in sorted(log.statistics) if name.startswith("reference_")]
        assert len(runs) == len(references) >= 3
        around = [(each[:-1] + each[1:]) / 2 for each in references]  # the last one is not in a column
        paced = [run[:-1] * 900_000 / pace for run, pace in zip(runs, around, strict=True)]
        assert np.abs(log.statistic("duration")[:-1] - np.median(paced, axis=0)).max() <= 1


def test_points_know_on_the_recorded_epochs_what_the_table_says() -> None:
    from floor_of_selection import RECORDINGS, epochs_rows

    expected = [row for row in table("selection_floor.csv") if row["data"] == "H200" and row["model"] == "translation"]
    rows = (row for row in epochs_rows({"H200": RECORDINGS["H200"]}, model="translation"))
    for ours, theirs in zip(rows, expected, strict=True):
        same(ours, theirs)


def test_a_target_error_is_kept_on_the_recording_that_it_was_chosen_for() -> None:
    rows = table("selection_floor.csv")
    same_recording = [row for row in rows if "itself" in (row["chosen_on"], row["judged_on"].replace("base", "itself"))]
    assert len(same_recording) > 50
    for name in ("5", "2", "1", "0.5"):
        errors = [float(row[f"error_{name}"]) / float(name) for row in same_recording]
        assert np.sqrt(np.mean(np.square(errors))) < 1 and max(errors) < 1.35


@pytest.mark.skipif(not DATA.is_dir(), reason=f"no real traces at {DATA}")
def test_kernel_times_scatter_as_the_table_says() -> None:
    from floor_of_selection import traces_rows

    expected = [row for row in table("selection_floor.csv") if row["data"] == "A100"]
    for ours, theirs in zip(traces_rows([DATA / "batch_32"]), expected[-2:], strict=True):
        same(ours, theirs)
    scatter = {(row["model"], row["order"]): float(row["scatter"]) for row in expected}
    for trace in ("batch_4", "batch_8"):
        assert scatter[trace, "kernel_time"] < scatter[trace, "duration"] / 6


@pytest.mark.skipif(not DATA.is_dir(), reason=f"no real traces at {DATA}")
def test_selectors_do_on_real_traces_what_the_table_says() -> None:
    from accuracy_of_selection import traces_table

    expected = table("selection_traces.csv")
    for ours, theirs in zip(traces_table(DATA), expected, strict=True):
        same(ours, theirs)
        assert float(theirs["own_formula"]) < 0.3 and float(theirs["own_regression"]) < 0.3
        assert float(theirs["own_points"]) < 0.5 and int(theirs["points"]) <= 8
        for halves in ("even_from_odd", "odd_from_even", "second_from_first"):
            assert float(theirs[f"{halves}_regression"]) < 1.0
            assert theirs[f"{halves}_in_interval"] == "True"
