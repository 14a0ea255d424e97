"""`seqpoint validate`: the table of suites, folders of any depth, the scoreboard, and replays of traces."""

import json
import shutil
from dataclasses import fields
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import seqpoint as sp
from profilers.errors import BrokenFileError, InvalidInputError, NotFoundError
from profilers.files import dataset_path
from seqpoint.cli import cli
from seqpoint.notebook import table_of
from seqpoint.validation.replay import ReplayedTime, ReplayScore, median_error, replay_rows, worst_error
from seqpoint.validation.suites import SUITES, SuiteOptions, find_sources, load_suite, table_columns
from tests.traces import write_trace

KEYS = {"case", "reference", "ours", "error", "limit", "met", "fitted", "source"}
MODELS = "device,model,mode,seq_len,batch,e2e_ms\nTesla_V100-PCIE-32GB,bert_large,inf,512,8,250\n"
STEPS = (
    "# GPUs,global batch,micro batch,hidden size,attention heads,# layers,sequence length,tensor parallelism,"
    "data parallelism,pipeline parallelism,iteration time (ms)\n2,16,8,1024,16,24,1024,1,1,2,372.2\n"
)
KERNELS = "op,device,latency_ms,B,H\nln,A100-PCIE-40GB,0.1,4096,1024\nsoftmax,A100-PCIE-40GB,0.2,4096,2048\n"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["validate", *map(str, arguments)])


def measurements(root: Path) -> Path:
    """Write a table of each of three suites at different depths, and files that no suite knows."""
    for name, text in {"a/b/runs.csv": MODELS, "steps.csv": STEPS, "a/ops.csv": KERNELS, "a/notes.txt": "none"}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root / "a" / "damaged.parquet").write_bytes(b"PAR1 and then nothing")
    return root


def test_the_table_holds_every_suite_of_the_contract() -> None:
    assert list(SUITES) == [
        "kernels", "collectives", "models", "training", "job_memory", "bert", "stragglers", "selection", "replay",
        "contention",
        "occupancy", "gemms", "memory", "detailed", "published", "pairs", "audit",
    ]  # fmt: skip
    known = {field.name for field in fields(SuiteOptions)}
    for name in SUITES:
        suite = load_suite(name)
        assert suite.name == name and suite.description and suite.needs
        assert set(suite.options) <= known
    with pytest.raises(NotFoundError, match="no suite is called 'kernel'; there are kernels, collectives"):
        load_suite("kernel")


@pytest.mark.parametrize(
    ("suite", "file"), [("kernels", "a/ops.csv"), ("models", "a/b/runs.csv"), ("training", "steps.csv")]
)
def test_a_suite_takes_its_files_from_a_folder_and_names_the_others_once(tmp_path: Path, suite: str, file: str) -> None:
    folder = measurements(tmp_path)
    shown = run(suite, folder, "--json")
    assert shown.exit_code == 0, shown.exception
    rows = json.loads(shown.stdout)["rows"]
    assert rows == json.loads(run(suite, folder / file, "--json").stdout)["rows"]
    assert rows and all(set(row) == KEYS for row in rows)
    (line,) = shown.stderr.splitlines()
    assert line.startswith(f"not used by {suite}: 4 files (") and "damaged.parquet" in line


def test_only_some_unused_files_are_named_unless_all_are_asked_for(tmp_path: Path) -> None:
    folder = measurements(tmp_path)
    for number in range(9):
        (folder / f"z{number}.log").touch()
    assert run("kernels", folder).stderr.endswith(", ...)\n")
    assert "z8.log)" in run("kernels", folder, "--verbose").stderr


@pytest.mark.parametrize(
    "suite",
    [
        "kernels",
        "collectives",
        "models",
        "training",
        "selection",
        "contention",
        "occupancy",
        "gemms",
        "memory",
        "replay",
    ],
)
def test_a_folder_without_anything_that_a_suite_knows_is_refused(tmp_path: Path, suite: str) -> None:
    (tmp_path / "notes.txt").write_text("nothing measured")
    shown = run(suite, tmp_path)
    assert isinstance(shown.exception, NotFoundError) and str(shown.exception).startswith(f"{tmp_path}: holds no ")


@pytest.mark.parametrize(
    "suite",
    ["kernels", "collectives", "models", "training", "job_memory", "occupancy", "gemms", "memory", "detailed"],
)
def test_a_suite_that_ships_nothing_says_so(suite: str) -> None:
    shown = run(suite)
    assert isinstance(shown.exception, NotFoundError) and str(shown.exception).startswith("the project ships no ")


def test_a_damaged_file_that_a_suite_should_know_is_an_error_with_its_place(tmp_path: Path) -> None:
    folder = measurements(tmp_path)
    (folder / "a" / "ops.csv").write_text(KERNELS.replace("0.2,", "-1,"))
    shown = run("kernels", folder)
    assert shown.exit_code == 0 and "ops.csv: row 2: latency_ms is -1" in shown.stderr
    (folder / "a" / "ops.csv").write_text(KERNELS.replace("0.2,", "-1,").replace("0.1,", "-1,"))
    shown = run("kernels", folder)
    assert isinstance(shown.exception, InvalidInputError)
    assert "ops.csv: row 1: latency_ms is -1" in str(shown.exception)


def test_a_suite_has_only_its_options() -> None:
    shown = run("training", "--halves")
    assert shown.exit_code == 2 and "--halves" in shown.output


def test_columns_are_those_of_tables_alone(tmp_path: Path) -> None:
    folder = measurements(tmp_path)
    assert table_columns(folder / "a" / "ops.csv") == ["op", "device", "latency_ms", "B", "H"]
    assert table_columns(folder / "a" / "damaged.parquet") == table_columns(folder / "a" / "notes.txt") == []
    (tmp_path / "empty.csv").touch()
    (tmp_path / "loop.csv").symlink_to(tmp_path / "loop.csv")
    assert table_columns(tmp_path / "empty.csv") == []
    with pytest.raises(InvalidInputError, match=r"loop.csv: cannot be read"):
        table_columns(tmp_path / "loop.csv")


def test_the_scoreboard_has_a_line_a_suite(tmp_path: Path) -> None:
    folder = measurements(tmp_path)
    shown = run(folder, "--json")
    assert shown.exit_code == 0, shown.exception
    content = json.loads(shown.stdout)
    lines = {line["suite"]: line for line in content["suites"]}
    assert list(lines) == list(SUITES)
    assert {name for name, line in lines.items() if line["cases"]} == {"kernels", "models", "training"}
    assert lines["selection"]["note"].startswith("no logs")
    assert shown.stderr == "not used by any suite: 2 files (damaged.parquet, notes.txt)\n"
    assert sum(line["cases"] for line in lines.values()) == len(content["rows"])
    assert all(set(row) == KEYS | {"suite"} for row in content["rows"])
    limits = [row for row in content["rows"] if row["limit"] is not None]
    assert sum(line["limits"] for line in lines.values()) == len(limits)
    assert sum(line["met"] for line in lines.values()) == sum(row["met"] for row in limits)
    table = run(folder, "--gate")
    assert table.exit_code == int(not all(row["met"] for row in limits))
    assert all(name in table.stdout for name in SUITES)


def test_the_scoreboard_takes_a_single_file_and_no_unknown_name(tmp_path: Path) -> None:
    folder = measurements(tmp_path)
    lines = json.loads(run(folder / "steps.csv", "--json").stdout)["suites"]
    assert [line["suite"] for line in lines if line["cases"]] == ["training"]
    shown = run("kernel")
    assert isinstance(shown.exception, NotFoundError) and "kernel: no such file, folder or suite" in str(
        shown.exception
    )


def test_help_lists_the_suites() -> None:
    shown = run("--help")
    assert shown.exit_code == 0 and all(name in shown.output for name in SUITES)
    assert "scoreboard" in shown.output and "--fabric" in run("collectives", "--help").output


def test_figures_of_a_file_are_scored_as_the_shipped_ones(tmp_path: Path) -> None:
    shipped = Path(__file__).parents[1] / "datasets" / "published" / "c3.toml"
    shutil.copy(shipped, tmp_path)
    found, expected = (json.loads(run("published", path, "--json").stdout) for path in (tmp_path, "c3"))
    assert found["figures"] == expected["figures"] and found["rows"] == expected["rows"]
    (tmp_path / "t3.toml").write_text("[figures.one]\nvalue = 1\n")
    refused = run("published", tmp_path / "t3.toml").exception
    assert isinstance(refused, InvalidInputError) and "t3.toml: figures.one: lacks the key 'paper'" in str(refused)
    assert "c3.toml" not in (noted := run("published", tmp_path).stderr) and "t3.toml: " in noted
    unknown = tmp_path / "other" / "c3.toml"
    unknown.parent.mkdir()
    unknown.write_text(shipped.read_text().replace("[figures.", "[figures.x_"))
    shown = run("published", unknown)
    assert isinstance(shown.exception, InvalidInputError) and "no study reproduces it" in str(shown.exception)


def test_a_unit_of_a_format_scales_the_number() -> None:
    columns = {"a~": "{name}", "b": "{share:.1%}", "c": "{s:.0ms}", "d": "{ns:.1us}", "e": "{share:.3f}"}
    table = table_of("t", columns, [{"name": "50 %", "share": 0.125, "s": 0.25, "ns": 1500.0}])
    assert table.rows == [("50 %", "12.5", "250", "1.5", "0.125")]


# Replay


def test_a_trace_replays_as_measured_from_a_file_and_from_a_folder(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    file = write_trace(tmp_path / "raw" / "job.json", 3)
    stored = tmp_path / "job.trace"
    assert CliRunner().invoke(cli, ["ingest", str(file), "-o", str(stored)]).exit_code == 0
    (tmp_path / "raw" / "readme.txt").write_text("not a trace")
    shown = run("replay", tmp_path, "--json", "--gate")
    assert shown.exit_code == 0, shown.exception
    assert shown.stderr.strip() == "not used by replay: 1 file (readme.txt)"
    content = json.loads(shown.stdout)
    assert {score["trace"].split("/")[-1] for score in content["scores"]} == {"job.json", "job.trace"}
    raw, saved = ({k: v for k, v in score.items() if k != "trace"} for score in content["scores"])
    assert raw == saved and raw["iterations"] == 3
    limited = [row for row in content["rows"] if row["limit"] is not None]
    assert len(limited) == 2 and all(row["error"] < 1e-6 and "unchanged, worst of 3" in row["case"] for row in limited)
    assert "job.trace" in run("replay", stored).stdout


def test_the_samples_replay_within_the_limit() -> None:
    shown = run("replay", "--json")
    content = json.loads(shown.stdout)
    assert shown.exit_code == 0 and len(content["scores"]) == 3
    assert all(row["met"] is not False for row in content["rows"])


def test_rows_of_replays_are_the_worst_and_the_median() -> None:
    steps = tuple(ReplayedTime(100.0, 100.0 + late) for late in (0.0, 0.5, 3.0))
    score = ReplayScore("t", 3, 300, 300, 0.0, 0.0, 0.0, steps, steps[:1], (), 0.5, 0.5, 0.0)
    worst, median = replay_rows([score])
    assert (worst.reference, worst.ours, worst.met) == (100.0, 103.0, False) and worst.error == pytest.approx(0.03)
    assert (median.reference, median.ours, median.limit) == (None, pytest.approx(0.005), None)
    assert (median_error(()), worst_error(())) == (0.0, 0.0)


def test_a_damaged_trace_is_named(tmp_path: Path) -> None:
    file = write_trace(tmp_path / "job.json")
    file.write_text(file.read_text()[: file.read_text().index('"traceEvents"') + 20])
    shown = run("replay", tmp_path)
    assert isinstance(shown.exception, BrokenFileError) and str(file) in str(shown.exception)


def test_sources_are_found_once(tmp_path: Path) -> None:
    folder = measurements(tmp_path)
    sources, unused = find_sources(load_suite("kernels"), [folder, folder / "a"])
    assert sources == [folder / "a" / "ops.csv"] and len(unused) == 7


def test_a_folder_of_measurements_for_other_suites_has_no_rows(tmp_path: Path) -> None:
    (tmp_path / "c3.toml").write_text(dataset_path("published/c3.toml").read_text())
    done = CliRunner().invoke(cli, ["validate", "training", str(tmp_path), "--json"])
    assert done.exit_code == 0 and json.loads(done.stdout)["rows"] == []
    assert "holds no" in done.stderr and "not used by training: 1 file (c3.toml)" in done.stderr
    gated = CliRunner().invoke(cli, ["validate", "training", str(tmp_path), "--gate"])
    assert gated.exit_code != 0


def test_the_front_door_gives_what_the_command_prints() -> None:
    validation = sp.validate("published", "t3")
    assert validation.to_dict() == json.loads(run("published", "t3", "--json").stdout)
    assert list(validation.table().columns) == list(json.loads(run("published", "t3", "--json").stdout)["rows"][0])
    shown = validation._repr_html_()
    assert "Validation: published" in shown and "Published figures and ours" in shown and "gated figures" in shown


def test_the_front_door_gives_the_scoreboard(tmp_path: Path) -> None:
    folder = measurements(tmp_path)
    validation = sp.validate(paths=folder)
    assert validation.to_dict() == json.loads(run(folder, "--json").stdout)
    assert validation.table()["suite"].tolist() == list(SUITES)
    assert "<h4>Validation</h4>" in validation._repr_html_()
    assert [file.name for file in validation.unused] == ["damaged.parquet", "notes.txt"]


def test_the_front_door_takes_the_options_of_a_suite_alone(tmp_path: Path) -> None:
    folder = measurements(tmp_path)
    begun: list[str] = []
    told = sp.validate("kernels", folder, options={"halves": False}, progress=begun.append)
    assert told.rows and begun[:3] == ["looking for files", "reading", "predicting"]
    with pytest.raises(InvalidInputError, match="published: no option 'device'; options are none"):
        sp.validate("published", options={"device": "MI300X"})
    with pytest.raises(InvalidInputError, match="the scoreboard: no option 'device'"):
        sp.validate(options={"device": "MI300X"})
    with pytest.raises(InvalidInputError, match="kernels: "):
        sp.validate("kernels", folder, options={"halves": True, "refit": True, "calibration": "fits.toml"})
