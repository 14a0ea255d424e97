"""`seqpoint validate training`, `calibrate training` and `synthesize`: what they read, write and say of bad input."""

import csv
import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from profilers.devices.catalogue import find_device
from profilers.errors import InvalidInputError, NotFoundError
from replay.costs.shipped import load_parameters
from replay.workloads import (
    TrainingFit,
    calibrate_training,
    load_training,
    predict_steps,
    read_steps,
    read_training_fit,
    write_training_fit,
)
from replay.workloads.training_fits import chosen_part
from seqpoint.cli import cli
from seqpoint.validation.training import score_steps

HEADER = (
    "# GPUs,global batch,micro batch,hidden size,attention heads,# layers,sequence length,tensor parallelism,"
    "data parallelism,pipeline parallelism,iteration time (ms)"
)
ROWS = ("2,16,8,1024,16,24,1024,1,1,2,372.2", "8,32,4,1024,16,24,1024,2,2,2,219.7", "4,8,1,2048,16,20,1024,4,1,1,300")
A100 = find_device("A100-SXM4-80GB")


def write(folder: Path, *rows: str, header: str = HEADER) -> Path:
    path = folder / "steps.csv"
    path.write_text("\ufeff" + "\n".join((header, *rows)) + "\n", encoding="utf-8")
    return path


def many(folder: Path, fit: TrainingFit) -> Path:
    """Steps whose times are what a fit predicts: so calibrating has to find times again."""
    rows = [
        f"{tp * pp},{batch},{micro},{hidden},16,8,1024,{tp},1,{pp},1"
        for hidden in (1024, 2048)
        for micro in (1, 4)
        for batch in (8, 16)
        for tp in (1, 2, 4)
        for pp in (1, 2)
    ]
    steps = read_steps(write(folder, *rows))
    found = predict_steps(
        [replace(one.job, recompute=fit.recompute) for one in steps], A100, fit=fit, parameters=load_parameters()
    )
    return write(folder, *(f"{row[:-1]}{1e3 * one.seconds:.6f}" for row, one in zip(rows, found, strict=True)))


def test_rows_are_read_with_their_mark_at_the_start(tmp_path: Path) -> None:
    first, *_ = read_steps(write(tmp_path, *ROWS))
    assert (first.job.layout.pipeline, first.job.micro_batches, first.seconds) == (2, 2, pytest.approx(0.3722))
    assert first.configuration == "2,16,8,1024,16,24,1024,1,1,2"
    assert len(read_steps(tmp_path)) == 3


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("4,16,8,1024,16,24,1024,1,1,2,372", "tensor 1 x data 1 x pipeline 2 parallelism is 2, not the 4 of # GPUs"),
        ("2,16,5,1024,16,24,1024,1,1,2,372", "micro-batches of 5 do not divide a batch of 16"),
        ("2,16,8,1024,16,25,1024,1,1,2,372", "2 stages do not divide 25 layers"),
        ("3,16,8,1024,16,24,1024,3,1,1,372", "3 tensor-parallel ranks do not divide heads of 16"),
        ("2,16,8,1000,16,24,1024,1,1,2,372", "16 heads do not divide a hidden size of 1000"),
        ("2,16,0,1024,16,24,1024,1,1,2,372", "micro batch is '0'; it must be a whole number of 1 or more"),
        ("2,16,8,-4,16,24,1024,1,1,2,372", "hidden size is '-4'; it must be a whole number of 1 or more"),
        ("2,16,8,1024,16,24,1024,1,1,2,-1", r"iteration time \(ms\) is '-1'; it must be a number above zero"),
        ("2,16,8,1024,16,24,1024,1,1,2,nan", r"iteration time \(ms\) is 'nan'"),
        ("2,16,8,1024,16,99999999,1024,1,1,2,372", "# layers is '99999999'; .* 1 or more, of 6 digits"),
        ("2,16,8,1024,16,24,1024,1,1", "pipeline parallelism is ''"),
    ],
)
def test_a_row_that_cannot_be_is_named(tmp_path: Path, row: str, message: str) -> None:
    path = write(tmp_path, ROWS[0], row)
    with pytest.raises(InvalidInputError, match=message) as error:
        read_steps(path)
    assert f"{path}: row 2: " in str(error.value)


def test_other_columns_files_and_folders_are_named(tmp_path: Path) -> None:
    path = write(tmp_path, "1", header="iteration time (s)")
    with pytest.raises(InvalidInputError, match=r"lacks # GPUs, .* needed are # GPUs, global batch"):
        read_steps(path)
    with pytest.raises(NotFoundError, match="no CSV file with the columns # GPUs"):
        read_steps(tmp_path)
    with pytest.raises(NotFoundError, match="no such file"):
        read_steps(tmp_path / "none.csv")
    with pytest.raises(InvalidInputError, match="no row below the header"):
        read_steps(write(tmp_path))


def test_which_steps_are_fitted_depends_on_no_order_and_no_time(tmp_path: Path) -> None:
    steps = read_steps(many(tmp_path, load_training()))
    chosen = chosen_part(steps, 0.25)
    assert len(chosen) == len(steps) // 4
    slower = [replace(one, seconds=one.seconds * (1 + i)) for i, one in enumerate(reversed(steps))]
    assert {one.configuration for one in chosen_part(slower, 0.25)} == {one.configuration for one in chosen}


def test_calibrating_finds_the_times_of_known_costs_again(tmp_path: Path) -> None:
    known = load_training()
    other = replace(
        known, costs=replace(known.costs, forward_call_s=4e-5, backward_call_s=3e-5, streams=1.05, products=1.2)
    )
    steps = read_steps(many(tmp_path, other))
    found = calibrate_training(steps, A100, share=0.6, parameters=load_parameters())
    assert (found.recompute, found.devices) == (other.recompute, 8)
    scores = score_steps(steps, A100, found, load_parameters())
    assert np.mean([one.error for one in scores if not one.fitted]) < 0.02
    path = tmp_path / "mine.json"
    write_training_fit(path, found)
    again = read_training_fit(path)
    assert again.digests == found.digests and again.costs.streams == pytest.approx(found.costs.streams, rel=1e-4)


def test_too_few_steps_and_no_share_say_so(tmp_path: Path) -> None:
    steps = read_steps(write(tmp_path, *ROWS))
    with pytest.raises(InvalidInputError, match=r"3 measured steps, of which a share of 1 is 3; at least 20"):
        calibrate_training(steps, A100, share=1, parameters=load_parameters())
    with pytest.raises(InvalidInputError, match=r"share is 1.5; it must be above 0 and at most 1"):
        calibrate_training(steps, A100, share=1.5, parameters=load_parameters())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "truncated"),
        ("{}", "lacks the key 'kind'"),
        ("[]", "not what `seqpoint calibrate training` writes"),
        ('{"kind": "training", "version": 1, "devices": [], "source": "", "fit": {"devices": 8}}', "the key 'costs'"),
    ],
)
def test_a_file_that_holds_no_costs_is_named(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(content)
    with pytest.raises(InvalidInputError, match=message):
        read_training_fit(path)
    with pytest.raises(NotFoundError, match="no such calibration; `seqpoint calibrate training` writes one"):
        read_training_fit(tmp_path / "none.json")


@pytest.mark.parametrize("change", [("devices", "Infinity"), ("spread", "1" + "0" * 400), ("digests", "[" * 99999)])
def test_costs_that_no_file_holds_are_named(tmp_path: Path, change: tuple[str, str]) -> None:
    path = tmp_path / "bad.json"
    write_training_fit(path, load_training())
    content = json.loads(path.read_text())
    content["fit"][change[0]] = "HERE"
    path.write_text(json.dumps(content).replace('"HERE"', change[1]))
    with pytest.raises(InvalidInputError, match=r"bad\.json: not what `seqpoint calibrate training` writes"):
        read_training_fit(path)


def test_costs_must_be_above_zero(tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    write_training_fit(path, load_training())
    path.write_text(path.read_text().replace('"streams": ', '"streams": -'))
    with pytest.raises(InvalidInputError, match=r"fit.costs\[\.\.\.\]: Expected `float` > 0.0"):
        read_training_fit(path)


def test_the_command_prints_rows_and_gates(tmp_path: Path) -> None:
    path = str(write(tmp_path, *ROWS))
    found = CliRunner().invoke(cli, ["validate", "training", path, "--json"])
    rows = json.loads(found.stdout)["rows"]
    assert [set(row) for row in rows] == [
        {"case", "reference", "ours", "error", "limit", "met", "fitted", "source"}
    ] * 4
    assert rows[-1]["limit"] == 0.084 and rows[-1]["error"] == pytest.approx(np.mean([r["error"] for r in rows[:-1]]))
    far = str(write(tmp_path, ROWS[0].replace("372.2", "9999")))
    assert CliRunner().invoke(cli, ["validate", "training", far, "--gate"]).exit_code == 1
    other = CliRunner().invoke(cli, ["validate", "training", path, "--device", "MI210", "--json"])
    assert {one["basis"] for one in json.loads(other.stdout)["scores"]} == {"carried"}
    unknown = CliRunner().invoke(cli, ["validate", "training", path, "--device", "Z80"])
    assert isinstance(unknown.exception, NotFoundError) and "`seqpoint devices` lists all" in str(unknown.exception)


def test_calibrate_writes_what_validate_reads(tmp_path: Path) -> None:
    path, output = str(many(tmp_path, load_training())), str(tmp_path / "mine.json")
    run = CliRunner().invoke(cli, ["calibrate", "training", path, "-o", output, "--share", "0.5"])
    assert run.exit_code == 0 and "streams" in run.stdout
    rows = CliRunner().invoke(cli, ["validate", "training", path, "--calibration", output, "--json", "--gate"])
    assert rows.exit_code == 0
    assert sum(row["fitted"] for row in json.loads(rows.stdout)["rows"]) == 24


def test_a_synthesised_trace_is_read_and_replayed(tmp_path: Path) -> None:
    output = str(tmp_path / "job.trace")
    arguments = ["synthesize", "--layers", "2", "--hidden", "1024", "--pp", "2", "--global-batch", "8", "--json"]
    run = CliRunner().invoke(cli, [*arguments, "--device", "A100", "-o", output])
    content = json.loads(run.stdout)
    assert "writing about 240 kernels and collectives of 2 ranks" in run.stderr
    assert sum(content["shares"].values()) == pytest.approx(1)
    assert content["low_s"] < content["iteration_s"] < content["high_s"]
    replayed = json.loads(CliRunner().invoke(cli, ["replay", output, "--json"]).stdout)["iterations"][0]
    assert replayed["replayed_ns"] / 1e9 == pytest.approx(content["iteration_s"], rel=0.03)
    named = CliRunner().invoke(cli, ["synthesize", "--model", "gpt3_27", "--tp", "4", "--json"])
    assert json.loads(named.stdout)["model"]["hidden"] == 2560
    missing = CliRunner().invoke(cli, ["synthesize", "--model", "none"])
    assert isinstance(missing.exception, NotFoundError)


def test_a_job_comes_from_a_file_and_options_replace_its_sizes(tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text('[job]\nmodel = "llama31_8b"\nlayers = 2\ntensor = 2\nattention = "flash"\nprecision = "bf16"\n')
    run = CliRunner().invoke(cli, ["synthesize", "--job", str(file), "--dp", "2", "--sharding", "1", "--json"])
    content = json.loads(run.stdout)
    assert (content["devices"], content["model"]["layers"], content["precision"]) == (4, 2, "bf16")
    file.write_text("[job]\ntensr = 2\n")
    misspelt = CliRunner().invoke(cli, ["synthesize", "--job", str(file)])
    assert "job.toml: a job has no size called 'tensr'; did you mean tensor" in str(misspelt.exception)
    device = CliRunner().invoke(cli, ["synthesize", "--device", "zzzqqq"])
    assert str(device.exception).startswith("no device is called 'zzzqqq'; `seqpoint devices` lists all; ")
    both = CliRunner().invoke(cli, ["synthesize", "--job", str(file), "--model", "gpt3_27"])
    assert both.exit_code == 2 and "--model: no effect with --job" in both.output


def test_a_step_of_inference_is_predicted_and_options_of_training_are_refused() -> None:
    arguments = ["synthesize", "--model", "llama31_8b", "--layers", "2", "--phase", "decode", "--global-batch", "4"]
    content = json.loads(CliRunner().invoke(cli, [*arguments, "--json"]).stdout)
    assert content["phase"] == "decode" and sum(content["parts_s"].values()) == pytest.approx(content["iteration_s"])
    refused = CliRunner().invoke(cli, [*arguments, "--pp", "2"])
    assert refused.exit_code == 2 and "--pp: no effect in a step of inference" in refused.output
    alone = CliRunner().invoke(cli, ["synthesize", "--generated", "3"])
    assert alone.exit_code == 2 and "--generated: no effect without --phase decode" in alone.output


ROOT = Path(__file__).parents[1]
DATA = ROOT.parent / "shared" / "data" / "training"
TABLE = list(csv.DictReader((ROOT / "tests" / "accuracy" / "training.csv").read_text().splitlines()))
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason=f"no measured training steps at {DATA}")


@needs_data
def test_no_error_is_larger_than_the_table_says() -> None:
    sys.path.insert(0, str(ROOT / "benchmarks" / "jobs"))
    from accuracy_of_training import table

    found = {r["case"]: r for r in table(DATA)}
    assert set(found) == {r["case"] for r in TABLE}
    for expected in TABLE:
        for column, most in (("error", 0.05), ("covered", 0.5)):
            assert float(found[expected["case"]][column]) == pytest.approx(float(expected[column]), abs=most), expected


def test_the_table_meets_its_limit_and_its_intervals_hold() -> None:
    rest = next(row for row in TABLE if row["case"] == "not fitted")
    assert float(rest["error"]) <= float(rest["limit"])
    assert 85 <= float(rest["covered"]) <= 95
    assert int(next(row for row in TABLE if row["case"] == "fitted")["steps"]) <= 144
