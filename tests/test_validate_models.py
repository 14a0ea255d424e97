"""`seqpoint validate models`: measured runs are read, predicted and scored; rows that cannot be are named."""

import csv
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from profilers.devices.catalogue import find_device
from profilers.errors import InvalidInputError, NotFoundError
from replay.costs.shipped import load_parameters
from replay.workloads import (
    DecoderPass,
    Transformer,
    find_transformer,
    forward,
    load_transformers,
    read_steps,
    time_operators,
)
from seqpoint.cli import cli
from seqpoint.validation.models import read_models, score_models

HEAD = "device,model,mode,seq_len,batch,option,num_layer,e2e_ms\n"
ROW = {"device": "Tesla_V100-PCIE-32GB", "model": "bert_large", "mode": "inf", "seq_len": "512", "batch": "8"}


def write(folder: Path, *rows: str) -> Path:
    file = folder / "runs.csv"
    file.write_text(HEAD + "\n".join(rows))
    return file


def row(milliseconds: str = "250", **changes: str) -> str:
    values = {**ROW, **changes}
    return ",".join([*(values[k] for k in ROW), changes.get("option", ""), "24", milliseconds])


def test_a_run_is_the_sum_of_its_operators(tmp_path: Path) -> None:
    own, carried = score_models(read_models(write(tmp_path, row())), load_parameters())
    steps = forward(find_transformer("bert_large", load_transformers()), DecoderPass(8, 512))
    timed = time_operators([s.operator for s in steps], find_device("V100-PCIE-32GB"), parameters=load_parameters())
    assert own.seconds == pytest.approx(timed.total, rel=1e-12)
    assert (own.low, own.high) == pytest.approx(timed.interval(), rel=1e-12)
    assert own.error == pytest.approx(abs(timed.total / 0.25 - 1))
    assert (own.basis, carried.basis) == ("fitted", "carried")
    assert carried.low < carried.seconds < carried.high


def test_fused_is_faster_and_training_takes_longer(tmp_path: Path) -> None:
    file = write(tmp_path, row(), row(option="fusion"), row(mode="train"))
    plain, fused, trained = (
        s.seconds for s in score_models(read_models(file), load_parameters()) if s.basis == "fitted"
    )
    assert fused < plain
    assert 3 * plain < trained < 4.5 * plain


def test_a_device_without_any_fit_needs_only_its_catalogue_entry(tmp_path: Path) -> None:
    (only,) = score_models(read_models(write(tmp_path, row(device="H100 PCIe"))), load_parameters())
    assert only.basis == "carried"
    assert 0.02 < only.seconds < 0.2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (row(device="RTX 9999"), "row 1: .*RTX 9999"),
        (row(model="gpt9"), "row 1: no model 'gpt9'; there are bert_large"),
        (row(mode="serve"), "row 1: mode 'serve'.*inf, train"),
        (row(option="magic"), "option 'magic'.*fusion"),
        (row(seq_len="0"), "row 1: seq_len is '0'"),
        (row(batch="-3"), "row 1: batch is '-3'"),
        (row(batch="2.5"), "row 1: batch is '2.5'"),
        (row("0"), "row 1: e2e_ms is '0'; it must be a number above zero"),
        (row("nan"), "e2e_ms is 'nan'"),
        (row("fast"), "e2e_ms is 'fast'"),
        (row(batch="²"), "row 1: batch is '²'; it must be a whole number"),
        (row(seq_len="9" * 5000), "row 1: seq_len is '9{40}'; it must be .* of 9 digits"),
        (row("9" * 200_000), "row 1: no CSV .field larger than"),
        (row(model="x" * 200_000), "row 1: no CSV"),
    ],
)
def test_a_row_that_cannot_be_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        read_models(write(tmp_path, text))


def test_a_byte_that_is_no_utf_8_is_named_by_its_row(tmp_path: Path) -> None:
    file = tmp_path / "latin.csv"
    good = row().encode() + b"\n"
    file.write_bytes(HEAD.encode() + good * 3000 + good.replace(b"bert_large", b"b\xe9rt") + good)
    with pytest.raises(InvalidInputError, match=r"latin.csv: row 3001: no UTF-8"):
        read_models(file)


@pytest.mark.parametrize("read", [read_models, read_steps], ids=["models", "training"])
@pytest.mark.parametrize("target", ["loop.csv", "nothing.csv"])
def test_a_link_in_a_folder_that_leads_nowhere_is_named(tmp_path: Path, read: Any, target: str) -> None:
    (tmp_path / "loop.csv").symlink_to(tmp_path / target)
    (tmp_path / "circle").symlink_to(tmp_path)
    with pytest.raises(InvalidInputError, match=r"loop.csv: cannot be read"):
        read(tmp_path)


def test_pipes_and_folders_that_are_called_csv_are_passed_over(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / "folder.csv").mkdir()
    write(tmp_path, row())
    assert len(read_models(tmp_path)) == 1


def test_a_table_without_rows_is_no_table_that_passes(tmp_path: Path) -> None:
    file = write(tmp_path)
    with pytest.raises(InvalidInputError, match=r"runs.csv: there is no row"):
        read_models(file)
    shown = CliRunner().invoke(cli, ["validate", "models", str(file), "--gate"])
    assert "there is no row" in str(shown.exception)


def test_many_equal_rows_and_layers_take_no_longer_than_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def counted(operators: Any, *arguments: Any, **options: Any) -> Any:
        asked.append(len(operators))
        return time_operators(operators, *arguments, **options)

    monkeypatch.setattr("replay.workloads.time_operators", counted)
    models = {"deep": Transformer("deep", "switch", 10_000, 64, 4, 256, 100, experts=8)}
    rows_ = [row(model="deep", mode="train")] * 500
    found = score_models(read_models(write(tmp_path, *rows_), models), load_parameters())
    assert len({one.seconds for one in found}) == 2
    assert len(asked) == 2
    assert max(asked) < 100


def test_runs_of_one_device_are_timed_together_as_if_each_were_alone(tmp_path: Path) -> None:
    texts = [row(), row(option="fusion"), row(mode="train", batch="4"), row(device="H100 SXM"), row(model="gpt2_large")]
    every = read_models(write(tmp_path, *texts))
    alone = [score for one in every for score in score_models([one], load_parameters())]
    for one, other in zip(score_models(every, load_parameters()), alone, strict=True):
        assert (one.seconds, one.low, one.high) == pytest.approx((other.seconds, other.low, other.high), rel=1e-12)
        assert (one.measured, one.basis) == (other.measured, other.basis)


def test_files_without_the_columns(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no such file"):
        read_models(tmp_path / "none.csv")
    with pytest.raises(NotFoundError, match="no CSV file with the columns device"):
        read_models(tmp_path)
    other = tmp_path / "other.csv"
    other.write_text("device,model,e2e_us\n")
    with pytest.raises(InvalidInputError, match="lacks batch, e2e_ms, mode, seq_len"):
        read_models(other)


def test_the_command_prints_rows_and_fails_the_gate(tmp_path: Path) -> None:
    file = write(tmp_path, row("10"))
    shown = CliRunner().invoke(cli, ["validate", "models", str(file), "--json", "--gate"])
    assert shown.exit_code == 1
    found = json.loads(shown.stdout)
    assert found["rows"][-1]["met"] is False
    assert found["scores"][0]["case"] == "bert_large inference, 8 x 512"
    assert CliRunner().invoke(cli, ["validate", "models", str(file)]).exit_code == 0


def test_models_of_ones_own(tmp_path: Path) -> None:
    models = tmp_path / "mine.toml"
    models.write_text(
        "[transformers.mine]\nstyle = 'gpt2'\nlayers = 1\nhidden = 64\nheads = 4\nfeedforward = 256\nvocabulary = 100\n"
    )
    file = write(tmp_path, row(model="mine"))
    assert CliRunner().invoke(cli, ["validate", "models", str(file), "--models", str(models)]).exit_code == 0


ROOT = Path(__file__).parents[1]
DATA = ROOT.parent / "shared" / "data" / "models"
TABLE = list(csv.DictReader((ROOT / "tests" / "accuracy" / "models.csv").read_text().splitlines()))
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason=f"no measured models at {DATA}")


@needs_data
def test_no_error_is_larger_than_the_table_says() -> None:
    sys.path.insert(0, str(ROOT / "benchmarks" / "jobs"))
    from accuracy_of_models import table

    found = {r["case"]: r for r in table(DATA)}
    assert set(found) == {r["case"] for r in TABLE}
    for expected in TABLE:
        assert float(found[expected["case"]]["error"]) == pytest.approx(float(expected["error"]), abs=0.05), expected


@needs_data
@pytest.mark.parametrize("name", ["bert_large", "gpt2_large", "gpt3_27", "gpt3_xl", "opt_13"])
def test_the_products_of_a_layer_are_those_that_were_measured(name: str) -> None:
    """Operators recorded of one layer and of what surrounds it: every product's shape is one that is listed."""
    import ast

    import pyarrow.parquet as pq

    table = pq.read_table(DATA / "measured_per_op.parquet").to_pylist()
    recorded = [r for r in table if r["model"] == name and r["mode"] == "inf" and r["device"].startswith("NVIDIA_A100")]
    batch, length = recorded[0]["batch"], recorded[0]["seq_len"]
    listed = {s.operator.dims for s in forward(find_transformer(name, load_transformers()), DecoderPass(batch, length))}
    seen = 0
    for r in (r for r in recorded if r["batch"] == batch and ("matmul" in r["target"] or " bmm " in r["target"])):
        one, two = ast.literal_eval(r["input_shapes"])
        heads = one[0] * (one[1] if len(one) == 4 else 1)
        assert (heads, one[-2], two[-1], one[-1]) in listed
        seen += 1
    assert seen == 2
