"""The contracts of the command line: exit codes, one line an error, stable keys, help and an example each."""

import gzip
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest
from commands import Run
from traces import event, kineto, step, write_trace

from profilers.files import dataset_path
from seqpoint.cli import COMMANDS

ROOT = Path(__file__).parents[1]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return write_trace(tmp_path / "job.json", steps=4)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example_and_is_documented(run: Run, name: str) -> None:
    result = run(name, "--help")
    assert result.code == 0
    assert f"seqpoint {name}" in result.out
    assert f"seqpoint {name}" in (ROOT / "docs" / "commands.md").read_text()


def test_help_lists_every_command(run: Run) -> None:
    out = run("--help").out
    assert all(re.search(rf"^  {name} ", out, re.MULTILINE) for name in COMMANDS)


def test_help_loads_no_heavy_library() -> None:
    code = (
        "import sys\nfrom seqpoint.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "libraries = 'pandas sklearn holoviews bokeh numba pyarrow numpy scipy rich'.split()\n"
        "heavy = set(libraries) & set(sys.modules)\n"
        "sys.exit(f'loaded {sorted(heavy)}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "command",
    [
        ("analyze",),
        ("replay",),
        ("project", "-w", "scale_host:0.5"),
        ("report", "-w", "scale_host:0.5", "-o", "a.html"),
    ],
    ids=lambda command: command[0],
)
def test_a_device_that_replaces_that_of_the_trace_is_noted(run: Run, trace: Path, command: tuple[str, ...]) -> None:
    name, *options = command
    note = "--device MI300X replaces the device that the trace names, A100-SXM4-80GB"

    def shown(device: str) -> str:
        result = run(name, trace, *options, "--device", device)
        page = Path("a.html").read_text() if name == "report" else ""
        assert result.code == 0
        return " ".join((result.out + result.err + page).split())

    assert note in shown("MI300X")
    assert "replaces the device" not in shown("A100-SXM4-80GB")


def test_ingest_then_describe_iterations_and_select(run: Run, trace: Path) -> None:
    made = run("ingest", trace, "-o", "job.trace", "--length", "aten::mm:0:0", "--json")
    assert made.code == 0
    assert json.loads(made.out)["events"]["kernels"] == 16
    described = json.loads(run("describe", "job.trace", "--json").out)
    assert {c["class"] for c in described["kernel_classes"]} == {"gemm", "elementwise", "collective"}
    device = described["devices"][0]
    assert device["busy_ns"] == 4 * (200 + 100 + 408) * 1000
    assert device["communication_ns"] == 4 * 300_000 and device["exposed_ns"] == 4 * 8_000
    listed = json.loads(run("iterations", "job.trace", "--json").out)["iterations"]
    assert [row["sequence_length"] for row in listed] == [32, 64, 96, 128]
    assert [row["kernel_time"] for row in listed] == [1_000_000.0] * 4


def test_select_json_has_the_stable_keys(run: Run, trace: Path) -> None:
    result = run("select", trace, "--length", "aten::mm:0:0", "--max-points", "2", "--json")
    content = json.loads(result.out)
    keys = {
        "n_iterations",
        "statistic",
        "unit",
        "measured",
        "estimate",
        "low",
        "high",
        "confidence",
        "points",
        "baselines",
    }
    assert keys <= set(content)
    assert content["n_iterations"] == 4 and content["statistic"] == "kernel_time" and content["unit"] == "ns"
    assert content["measured"] == content["estimate"] == 4_000_000
    assert len(content["points"]) <= 2 and sum(p["weight"] for p in content["points"]) == 4
    assert {"iteration", "rank", "sequence_length", "weight"} <= set(content["points"][0])
    assert {b["name"] for b in content["baselines"]} == {"frequent", "median", "worst", "prior"}


def test_select_reads_a_log_and_estimate_predicts_another_run(run: Run, tmp_path: Path) -> None:
    for name, factor in (("a", 1), ("b", 2)):
        rows = [f"{i},{10 + i % 20},{factor * 1000 * (10 + i % 20)}" for i in range(200)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["iteration,sequence_length,duration_ns", *rows]))
    (tmp_path / "points.json").write_text(run("select", "a.csv", "--json").out)
    result = json.loads(run("estimate", "points.json", "b.csv", "--from", "a.csv", "--json").out)
    assert result["speedup"] == pytest.approx(0.5)
    assert result["estimate"] == pytest.approx(result["measured"], rel=0.01)


@pytest.mark.parametrize(
    "choice",
    [["--selector", "random"], ["--selector", "stratified"], ["--selector", "stratified", "--feature", "batch"]],
)
def test_select_by_other_ways_than_seqpoint(run: Run, tmp_path: Path, choice: list[str]) -> None:
    rows = [f"{i},{10 + i % 20},{1 + i % 3},{(10 + i % 20) * (1 + i % 3)}" for i in range(300)]
    (tmp_path / "log.csv").write_text("\n".join(["iteration,sequence_length,batch,duration_ns", *rows]))
    common = ["log.csv", "--statistic", "duration", "--max-points", "24", *choice]
    content = json.loads(run("select", *common, "--json").out)
    assert content["selector"] == choice[1] and len(content["points"]) == 24
    assert sum(point["weight"] for point in content["points"]) == pytest.approx(300)
    assert content["low"] <= content["measured"] <= content["high"]
    assert "Points" in run("select", *common).out


def test_features_need_a_selector_that_reads_them(run: Run, tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("sequence_length,batch,duration_ns\n5,1,9\n6,1,8\n")
    failed = run("select", "log.csv", "--statistic", "duration", "--feature", "batch")
    assert failed.code == 1 and "features need 'stratified'" in failed.err
    failed = run("select", "log.csv", "--statistic", "duration", "--selector", "stratified", "--feature", "x")
    assert failed.code == 1 and "no statistic 'x'" in failed.err


def test_replay_returns_what_was_measured(run: Run, trace: Path) -> None:
    content = json.loads(run("replay", trace, "--json", "--perfetto", "p.json").out)
    assert len(content["iterations"]) == 4
    assert content["worst_error"] < 1e-6
    kinds = {row["kind"]: row for row in content["edges"]}
    assert set(kinds["stream"]) == {"kind", "recorded", "edges", "binding", "critical", "critical_lag_ns"}
    assert sum(row["edges"] for row in kinds.values()) == sum(row["edges"] for row in content["iterations"])
    assert 0 <= content["iterations"][0]["recorded_critical"] <= 1
    assert "What tasks wait for" in run("replay", trace).out
    assert json.loads(Path("p.json").read_text())["traceEvents"]


def test_project_json_validates_against_the_published_schema(run: Run, trace: Path) -> None:
    what_ifs = [
        "-w",
        "dma_collectives",
        "-w",
        "scale_device:MI300X",
        "-w",
        "dma_collectives+scale_device:MI300X",
    ]
    content = json.loads(run("project", trace, *what_ifs, "--draws", "8", "--json").out)
    jsonschema.validate(content, json.loads(dataset_path("schemas/project.schema.json").read_text()))
    assert [row["what_if"] for row in content["rows"]] == [
        ["dma_collectives"], ["scale_device:MI300X"], ["dma_collectives", "scale_device:MI300X"],
    ]  # fmt: skip


def test_a_what_if_that_is_not_applicable_has_nulls_and_the_others_go_on(run: Run, trace: Path) -> None:
    asked = ("project", trace, "-w", "nothing", "-w", "scale_clock:1e-5", "-w", "overlap:none", "--draws", "8")
    content = json.loads(run(*asked, "--json").out)
    jsonschema.validate(content, json.loads(dataset_path("schemas/project.schema.json").read_text()))
    same, refused, row = content["rows"]
    assert [same["applied"], refused["applied"], row["applied"]] == [False, False, True]
    assert same["reason"] == "changes no task of these iterations" and "clock_mhz" in refused["reason"]
    names = ("projected_ns", "speedup", "low", "high", "kept_share", "measured_share", "evidence", "device_after_ns")
    assert {same[name] for name in names} == {refused[name] for name in names} == {None}
    assert sum(sum(kinds.values()) for kinds in row["evidence"].values()) == pytest.approx(1)
    shown = run(*asked)
    assert shown.code == 0 and re.search(r"Not applicable\n.*nothing.*changes\s+no\s+task", shown.out, re.DOTALL)
    assert "n/a" not in shown.out


def test_without_an_applicable_what_if_there_is_still_a_table_a_page_and_a_timeline(run: Run, trace: Path) -> None:
    asked = ("-w", "nothing", "-w", "scale_host:1")
    assert run("project", trace, *asked, "--perfetto", "p.json").code == 0
    events = json.loads(Path("p.json").read_text())["traceEvents"]
    assert {e["args"]["name"] for e in events if e["name"] == "process_name"} == {"before: rank 0"}
    assert run("report", trace, *asked, "-o", "r.html").code == 0
    assert Path("r.html").read_text().count("not applicable: changes no task of these iterations") == 2
    assert "nothing: not applicable" in run("analyze", trace, "-w", "nothing").out


def test_a_job_without_collectives_is_projected_without_what_ifs_on_communication(run: Run, tmp_path: Path) -> None:
    events = [e for n in (1, 2) for e in step(n, 1000.0 * n) if "nccl" not in e["name"]]
    (tmp_path / "single.json").write_text(json.dumps(kineto(events)))
    rows = json.loads(run("project", tmp_path / "single.json", "--draws", "8", "--json").out)["rows"]
    assert all(row["applied"] for row in rows) and len(rows) >= 4
    assert not any("overlap" in part or "collective" in part for row in rows for part in row["what_if"])


def test_tables_for_people_go_to_stdout(run: Run, trace: Path) -> None:
    for command in ("describe", "iterations", "replay", "project"):
        result = run(command, trace)
        assert result.code == 0 and len(result.out.splitlines()) > 5
    assert "did you mean" not in run("what-ifs").out
    assert "H100-SXM5-80GB" in run("devices").out
    assert "data-sheet" in run("devices", "MI300X").out


def cut_gzip(folder: Path) -> Path:
    whole = gzip.compress(json.dumps(kineto([e for n in range(200) for e in step(n, 1000.0 * n)])).encode())
    path = folder / "cut.json.gz"
    path.write_bytes(whole[: len(whole) // 2])
    return path


def written(name: str, text: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / name).write_text(text)
        return folder / name

    return make


WHOLE = json.dumps(kineto(step(1, 1000.0)))
BAD = {
    "missing file": (lambda folder: folder / "nothing.json", "nothing.json: cannot be read"),
    "folder without a trace": (lambda folder: folder, "holds no trace that a reader knows"),
    "not a trace": (written("a.json", '{"a": 1}'), "no reader knows this format"),
    "empty file": (written("a.json", ""), "the file is empty"),
    "empty events": (
        written("a.json", '{"schemaVersion": 1, "traceEvents": []}'),
        "its traceEvents is empty",
    ),
    "no events": (written("a.json", '{"schemaVersion": 1}'), "it has no traceEvents"),
    "only broken events": (written("a.json", '{"traceEvents": [{"ph": "X", "ts": }, {"ph"'), "none of its"),
}
PARTIAL = {
    "truncated gzip": (cut_gzip, "truncated_files"),
    "cut in an event": (written("a.json", WHOLE[: len(WHOLE) - 150]), "dropped_broken"),
    "NaN": (written("a.json", WHOLE.replace('"ts": 1030.0', '"ts": NaN')), "dropped_no_time"),
    "bad backslash": (
        written("a.json", WHOLE.replace("vectorized_elementwise_kernel", r"C:\qernel")),
        "repaired_escape",
    ),
    "CPU events only": (written("a.json", json.dumps(kineto([event("aten::mm", "cpu_op", 1, 2)]))), "kept"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_clear_line_and_leaves_nothing(run: Run, tmp_path: Path, case: str) -> None:
    make, message = BAD[case]
    source = make(tmp_path)
    before = {p.name for p in tmp_path.iterdir()}
    result = run("ingest", source, "-o", "out.trace")
    assert result.code == 1 and not result.out
    assert result.err.startswith("seqpoint: ") and result.err.count("\n") == 1
    assert message in result.err
    assert {p.name for p in tmp_path.iterdir()} == before


@pytest.mark.parametrize("case", PARTIAL)
def test_damaged_input_is_a_partial_trace_with_the_loss_counted(run: Run, tmp_path: Path, case: str) -> None:
    make, count = PARTIAL[case]
    result = run("ingest", make(tmp_path), "-o", "out.trace", "--json")
    assert result.code == 0, result.err
    assert json.loads(result.out)["quality"][count] >= 1
    assert run("describe", "out.trace").code == 0
    assert run("replay", "out.trace").code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("select", "job.json"), "no iteration has a sequence length"),
        (("project", "job.json", "-w", "overlap:idael"), "did you mean ideal"),
        (("project", "job.json", "-w", "scale_device:MI3000"), "MI300"),
        (("replay", "job.json", "-i", "9"), "the trace has no iteration 9"),
        (("ingest", "job.json", "-o", "no/where.trace"), "its folder no does not exist"),
        (("ingest", "job.json", "-o", "job.json"), "exists and is not a .trace folder"),
        (("ingest", "job.json", "-o", "a.trace", "--iterations", "("), "is no regular expression"),
        (("ingest", "job.json", "-o", "a.trace", "--length", "aten::mm"), "is no length rule"),
        (("ingest", "job.json", "-o", "a.trace", "--length", "aten::bmm:0:0"), "no operator 'aten::bmm'"),
        (("devices", "H1000"), "H100"),
        (("estimate", "job.json", "job.json", "--from", "job.json"), "not the output of"),
    ],
)
def test_wrong_arguments_are_one_clear_line(run: Run, trace: Path, arguments: tuple[str, ...], message: str) -> None:
    result = run(*arguments)
    assert result.code == 1
    assert message in result.err and result.err.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sequence_length,duration_ns\n", "a log needs rows"),
        ("length,duration_ns\n1,2\n", "a column sequence_length"),
        ("sequence_length\n1\n", "a column of numbers beside the lengths"),
        ("sequence_length,duration_ns\n5,nan\n", "row 1: duration_ns is missing or not finite"),
        ("sequence_length,duration_ns\n5,\n6,7\n", "row 1: duration_ns is missing or not finite"),
        ("sequence_length,duration_ns\n-5,1\n6,7\n", "Negative values"),
        ("sequence_length,duration_ns\n5,-1\n6,7\n", "y[0] is -1"),
        ("sequence_length,duration_ns\n5,0\n6,0\n", "zero in every iteration"),
        ("iteration,sequence_length,duration_ns\n0.5,5,1\n", "iteration 0.5 is not a whole number"),
        ('"unclosed', "cannot be read as a log"),
    ],
)  # fmt: skip
def test_a_bad_log_is_one_clear_line(run: Run, tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "log.csv").write_text(text)
    result = run("select", "log.csv")
    assert result.code == 1
    assert message in result.err and result.err.count("\n") == 1


def test_a_trace_is_not_ingested_again(run: Run, trace: Path) -> None:
    assert run("ingest", trace, "-o", "a.trace").code == 0
    result = run("ingest", "a.trace", "-o", "b.trace")
    assert result.code == 1 and "a.trace: is a .trace already" in result.err
    assert not Path("b.trace").exists()


def test_usage_errors_exit_2(run: Run) -> None:
    assert run("ingest").code == 2
    assert run("nonsense").code == 2
    assert run("project", "x", "--draws", "many").code == 2


def test_an_interrupt_exits_130(run: Run, trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("seqpoint.front_door.describe", interrupt)
    result = run("describe", trace)
    assert result.code == 130 and result.err.strip() == "seqpoint: interrupted"


def test_names_cannot_drive_the_terminal(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    device = {"id": 0, "name": "evil\x1b[2J[red]name"}
    path.write_text(json.dumps({**kineto(step(1, 1000.0)), "deviceProperties": [device]}))
    out = run("describe", path).out
    assert "\x1b" not in out and "evil?[2J[red]name" in out
