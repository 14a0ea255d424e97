"""`seqpoint analyze`, its library call, and the chart of resources in use."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from traces import write_trace

from profilers.errors import InvalidInputError
from profilers.ingest.pipeline import collect
from profilers.trace.trace import Trace, TraceMeta
from replay.analysis import IDLE_CAUSES
from replay.what_ifs import parse_what_if
from seqpoint.cli import cli
from seqpoint.graphs import typical_iteration
from seqpoint.step_analysis import analyze_trace


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_trace(tmp_path / "job.json", steps=3)


def content(*arguments: object) -> dict[str, Any]:
    done = CliRunner().invoke(cli, ["analyze", *map(str, arguments), "--json"], catch_exceptions=False)
    assert done.exit_code == 0
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_json_accounts_for_every_ns(file: Path) -> None:
    found = content(file, "-w", "overlap:ideal")
    assert found["iteration"] == 2 and found["what_if"] == ["overlap:ideal"]
    for side in ("before", "after"):
        makespan = found[side]["makespan_ns"]
        for by in found[side]["critical_path"].values():
            assert sum(by.values()) == pytest.approx(makespan)
        (device,) = found[side]["devices"]
        assert set(device["idle_ns"]) == set(IDLE_CAUSES)
        assert device["busy_ns"] + sum(device["idle_ns"].values()) == pytest.approx(makespan)
        assert device["hidden_ns"] + device["exposed_ns"] == pytest.approx(device["communication_ns"])
    change = found["after"]["makespan_ns"] - found["before"]["makespan_ns"]
    assert change < 0 and found["difference"]["change_ns"] == pytest.approx(change)
    assert sum(found["difference"]["path_by_cause"].values()) == pytest.approx(change)
    assert {row["label"] for row in found["difference"]["by_class"]} == {"gemm", "elementwise", "collective", "host"}


def test_without_a_what_if_there_is_no_after(file: Path) -> None:
    found = content(file, "-i", 3)
    assert found["iteration"] == 3 and found["after"] is found["difference"] is found["what_if"] is None
    # A GEMM of 200 us and one of 400 us beside the collective, an addition of 100 us: as the trace was made.
    path = found["before"]["critical_path"]
    assert path["by_class"]["gemm"] == pytest.approx(600_000)
    assert path["by_class"]["elementwise"] == pytest.approx(100_000)
    assert path["by_cause"]["kernel"] + path["by_cause"]["contention"] == pytest.approx(700_000)


def test_the_tables_and_the_file_for_perfetto(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(cli, ["analyze", str(file), "-w", "overlap:ideal", "--all", "--perfetto", "p.json"])
    assert done.exit_code == 0 and "wrote p.json" in done.stderr
    titles = ("Work on the devices in this step", "Communication in this step", "Busy and idle time of devices")
    for title in ("Critical path by cause", *titles, "after: communication in this step", "Change by class"):
        assert title in done.stdout
    processes = {
        e["args"]["name"] for e in json.loads(Path("p.json").read_text())["traceEvents"] if e["name"] == "process_name"
    }
    assert processes == {"before: rank 0", "after overlap:ideal: rank 0"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(("-i", "9"), "no iteration 9"), (("-w", "overlp"), "did you mean"), (("--device", "H10O"), "H100")],
)
def test_what_cannot_be_analysed_is_said_in_a_line(file: Path, arguments: tuple[str, ...], said: str) -> None:
    done = CliRunner().invoke(cli, ["analyze", str(file), *arguments])
    assert done.exit_code == 1 and said in str(done.exception)


def test_names_from_a_trace_cannot_drive_the_terminal(tmp_path: Path) -> None:
    file = write_trace(tmp_path / "job.json")
    file.write_text(file.read_text().replace("ampere_sgemm_128x64_nn", "gemm\\u001b[31m\\u202e"))
    done = CliRunner().invoke(cli, ["analyze", str(file)])
    assert done.exit_code == 0 and "gemm?[31m?" in done.stdout and "\x1b[31m" not in done.stdout


def test_a_trace_without_devices_has_a_path_on_the_host(tmp_path: Path) -> None:
    file = write_trace(tmp_path / "job.json")
    document = json.loads(file.read_text())
    host = [e for e in document["traceEvents"] if e["cat"] in ("cpu_op", "user_annotation")]
    file.write_text(json.dumps(document | {"traceEvents": host}))
    found = content(file)
    assert found["before"]["devices"] == [] and set(found["before"]["critical_path"]["by_cause"]) == {"host"}
    assert "on the devices" not in CliRunner().invoke(cli, ["analyze", str(file)]).stdout


def test_the_typical_iteration_is_the_one_of_median_duration(file: Path) -> None:
    trace = collect([file])
    rows = trace.iterations.to_pylist()
    durations = [row["dur_ns"] for row in rows]
    assert len(set(durations)) == 1 and typical_iteration(trace) == 2
    with pytest.raises(InvalidInputError, match="no iteration"):
        typical_iteration(Trace(TraceMeta("kineto"), {}))


def test_a_what_if_that_changes_nothing_has_no_difference(file: Path) -> None:
    found = analyze_trace(collect([file]), what_if=parse_what_if("scale_host:1"))
    assert found.difference is not None and not any(found.difference.path_by_cause.values())
