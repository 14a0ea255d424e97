"""Readers from other packages: the example distribution in tests/plugin, and one that cannot be loaded."""

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from profilers.readers.common.reader import readers
from seqpoint.cli import main

PLUGIN = Path(__file__).parent / "plugin"
ROOT = Path(__file__).parents[1]


def install(folder: Path, distribution: str, points: dict[str, str], group: str = "seqpoint.readers") -> None:
    """Put beside a module what an installer writes, which is all that entry points are found by."""
    info = folder / f"{distribution.replace('-', '_')}-0.1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 0.1.0\n")
    lines = "".join(f"{name} = {target}\n" for name, target in points.items())
    (info / "entry_points.txt").write_text(f"[{group}]\n{lines}")


def run(folder: Path, code: str) -> str:
    path = os.pathsep.join([str(folder), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def listed(folder: Path) -> dict[str, dict[str, Any]]:
    out = run(folder, "from seqpoint.cli import main; main(['readers', '--json'])")
    return {row["name"]: row for row in json.loads(out)}


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    folder = tmp_path / "site"
    project = tomllib.loads((PLUGIN / "pyproject.toml").read_text())["project"]
    install(folder, project["name"], project["entry-points"]["seqpoint.readers"])
    shutil.copy(PLUGIN / "seqpoint_steplog.py", folder)
    return folder


def test_the_example_is_listed_with_its_distribution(plugin: Path) -> None:
    assert listed(plugin)["steplog"] == {
        "name": "steplog",
        "formats": "Step logs, version 1: a kernel a line.",
        "distribution": "seqpoint-steplog",
        "error": None,
    }


def test_the_example_reads_its_file(plugin: Path, tmp_path: Path) -> None:
    log = tmp_path / "run.steplog"
    log.write_text("STEPLOG 1\n10 5 gemm a\nnonsense\n20 7 add\n")
    out = run(
        plugin,
        "from profilers.ingest.pipeline import collect\n"
        f"trace = collect([{str(log)!r}])\n"
        "print(trace.meta.format, trace.meta.quality['dropped_broken'])\n"
        "print(trace.kernels.select(['name', 'start_ns', 'dur_ns']).to_pylist())",
    )
    first, rows = out.splitlines()
    assert first == "steplog 1"
    assert rows == str([{"name": "gemm a", "start_ns": 10, "dur_ns": 5}, {"name": "add", "start_ns": 20, "dur_ns": 7}])


def test_one_that_cannot_be_loaded_says_why_and_hinders_no_other(tmp_path: Path) -> None:
    folder = tmp_path / "site"
    install(
        folder,
        "seqpoint-broken",
        {"broken": "broken_reader:Reader", "absent": "os:NoSuchReader", "other": "fractions:Fraction"},
    )
    (folder / "broken_reader.py").write_text("import a_library_that_is_not_there\n")
    rows = listed(folder)
    assert rows["broken"]["distribution"] == "seqpoint-broken" and rows["broken"]["formats"] is None
    assert "a_library_that_is_not_there" in rows["broken"]["error"]
    assert "NoSuchReader" in rows["absent"]["error"]
    assert rows["other"]["error"] == "fractions:Fraction is no reader: a reader has name, sniff and read"
    assert rows["kineto"]["error"] is None


def test_every_reader_of_ours_says_what_it_reads(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["readers", "--json"])
    assert stop.value.code == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert list(rows) == [plugin.name for plugin in readers()]
    assert {"chakra", "csv", "kineto", "ncu", "nsys", "rocprof_compute"} <= set(rows)
    for row in rows.values():
        assert row["distribution"] == "seqpoint"
        assert row["error"] or (row["formats"].endswith(".") and "`" not in row["formats"])


def test_the_table_names_them_too(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["readers"])
    assert "ncu" in capsys.readouterr().out
