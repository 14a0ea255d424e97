"""What older releases promised holds: their names, commands, keys of JSON, and the files that they wrote."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from commands import Run

from benchmarks import stability
from seqpoint.cli import COMMANDS

RELEASES = sorted((Path(__file__).parent / "stored").iterdir())
each_release = pytest.mark.parametrize("release", RELEASES, ids=[path.name for path in RELEASES])


@pytest.fixture(params=RELEASES, ids=[path.name for path in RELEASES])
def work(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the files of a release, which is the current folder, as `run` has it."""
    monkeypatch.chdir(shutil.copytree(request.param, tmp_path, dirs_exist_ok=True))
    return tmp_path


def promised(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "promises.json").read_text())
    return content


@each_release
def test_names_keep_their_parameters_in_their_order(release: Path) -> None:
    now = stability.names()
    for name, parameters in promised(release)["names"].items():
        assert name in now, f"the public name {name} of {release.name} is gone"
        kept = [parameter for parameter in now[name] if parameter in parameters]
        assert kept == parameters, name


@each_release
def test_commands_keep_their_options(release: Path) -> None:
    now = stability.options()
    lost = {name: set(flags) - set(now.get(name, ())) for name, flags in promised(release)["options"].items()}
    assert {name: flags for name, flags in lost.items() if flags} == {}
    assert set(now) == set(COMMANDS)


def test_answers_keep_their_keys(work: Path) -> None:
    lost = {}
    for command, keys in promised(work)["keys"].items():
        if gone := set(keys) - set(stability.keys(stability.answer(command))):
            lost[command] = sorted(gone)
    assert lost == {}


def test_a_stored_trace_replays_as_then_and_a_stored_result_is_reproduced(work: Path, run: Run) -> None:
    result = json.loads((work / "result.json").read_text())
    again = stability.answer("replay job.trace --json")
    assert sum(row["replayed_ns"] for row in again["iterations"]) == pytest.approx(result["baseline_ns"], rel=1e-9)
    done = run("project", "job.trace", "--from", "result.json")
    assert done.code == 0, done.out + done.err


def test_a_stored_selection_estimates_its_own_log(work: Path) -> None:
    found, stored = (
        stability.answer("estimate selection.json log.csv --from log.csv --json"),
        json.loads((work / "selection.json").read_text()),
    )
    assert found["seqpoint_sum"] == pytest.approx(stored["estimate"], rel=1e-9)


@pytest.mark.parametrize("layout", [1, 99])
def test_a_trace_of_another_layout_is_refused_with_what_to_do(work: Path, run: Run, layout: int) -> None:
    shutil.copytree("job.trace", f"layout{layout}.trace")
    meta = Path(f"layout{layout}.trace/meta.json")
    meta.write_text(json.dumps(json.loads(meta.read_text()) | {"layout": layout, "seqpoint": "9.9.9"}))
    done = run("describe", meta.parent)
    assert done.code == 1
    assert f"layout {layout}, written by seqpoint 9.9.9; this version reads 2; ingest the trace again" in done.err


def test_a_change_of_a_key_would_be_seen() -> None:
    content = {"rows": [{"a_b": 1}, {"c": {"d": 2, "H100": 3}}], "e": []}
    assert list(stability.keys(content)) == ["/rows", "/rows[]/a_b", "/rows[]/c", "/rows[]/c/d", "/e"]
