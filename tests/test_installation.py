"""`seqpoint doctor` and the completion of shells."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from click.shell_completion import BashComplete
from commands import Run

from profilers.devices.catalogue import USER_DEVICES
from profilers.trace import compiled
from profilers.trace.compiled import LIBRARIES, MADE_WITH, compiled_with
from seqpoint import installation
from seqpoint.cli import cli
from seqpoint.installation import Check, doctor

Checks = Callable[[str], list[Check]]


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Checks:
    """Return a function that looks at the installation anew, on an empty path, and returns the checks of a part."""
    monkeypatch.setenv("PATH", str(tmp_path / "tools"))
    return lambda part: [check for check in doctor().checks if check.part == part]


def test_this_installation_is_ready_and_says_so(run: Run) -> None:
    done = run("doctor")
    assert done.code == 0 and done.out.splitlines()[0].endswith(": ready")
    content = json.loads(run("doctor", "--json").out)
    names = {check["name"] for check in content["checks"] if check["part"] == "needed"}
    assert content["ready"] and {"Python", "numba", "pyarrow"} <= names
    assert {check["state"] for check in content["checks"]} <= {"ok", "missing", "slow"}


@pytest.mark.parametrize(("extra", "package"), [("sql", "duckdb"), ("spreadsheet", "openpyxl"), ("mcp", "mcp")])
def test_an_extra_that_is_missing_comes_with_its_command(
    found: Checks, monkeypatch: pytest.MonkeyPatch, extra: str, package: str
) -> None:
    original = installation.version

    def version(name: str) -> str:
        if name == package:
            raise installation.PackageNotFoundError
        return original(name)

    monkeypatch.setattr(installation, "version", version)
    (check,) = [check for check in found("extra") if check.name == extra]
    assert check.state == "missing" and f"{package} not installed" in check.found
    assert check.advice.startswith(f"pip install 'seqpoint[{extra}]'")


def test_a_package_that_is_too_old_is_wrong_and_the_command_fails(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    original = installation.version
    monkeypatch.setattr(installation, "version", lambda name: "0.60.0" if name == "numba" else original(name))
    done = run("doctor")
    assert done.code == 1
    assert "1 of " in done.out and "numba: 0.60.0, where >=0.61 is needed; pip install 'numba>=0.61'" in done.out


def test_a_tool_is_asked_for_its_version_and_a_mute_one_is_named(
    found: Checks, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "tools").mkdir()
    for name, script in {
        "nsys": "echo; echo NVIDIA Nsight Systems version 2026.1.1",
        "ncu": "exec /bin/sleep 9",
    }.items():
        (tmp_path / "tools" / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "tools" / name).chmod(0o755)
    monkeypatch.setattr(installation, "_ANSWER_S", 0.3)
    nsys, ncu, absent = found("tool")
    assert nsys.found == "NVIDIA Nsight Systems version 2026.1.1"
    assert ncu.found.endswith("ncu, which does not answer")
    assert absent.state == "missing" and "rocprofv3" in absent.found and "nsys" not in absent.found


def test_machine_code_of_other_libraries_is_named(
    found: Checks, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert set(compiled_with()) == set(LIBRARIES)
    monkeypatch.setattr(installation, "SHIPPED_FOLDER", tmp_path)
    (tmp_path / MADE_WITH).write_text(json.dumps(compiled_with()))
    assert found("cache")[0].state == "ok"
    (tmp_path / MADE_WITH).write_text(json.dumps({**compiled_with(), "numpy": "1.0"}))
    code = found("cache")[0]
    assert (code.state, code.found) == ("slow", "made with numpy 1.0, which is not installed")


def test_the_cache_is_named_with_its_size(found: Checks, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    folder = compiled.user_folder()
    assert folder is not None and folder.is_relative_to(tmp_path)
    assert found("cache")[1].found == f"{folder}: 0 files, 0 MB"
    folder.mkdir(parents=True)
    (folder / "a.code").write_bytes(bytes(2_000_000))
    assert found("cache")[1].found == f"{folder}: 1 file, 2 MB"
    assert found("cache")[1].advice.endswith(f"rm -r {folder.parent}")


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_cache_that_cannot_be_written_costs_time(
    found: Checks, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tmp_path.chmod(0o555)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    assert found("cache")[1].state == "slow"


def test_a_broken_file_of_devices_is_wrong(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("[broken")
    monkeypatch.setenv(USER_DEVICES, str(tmp_path / "mine.toml"))
    done = run("doctor")
    assert done.code == 1 and "mine.toml" in done.out


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("syn", "synthesize"),
        ("simulate mem", "memory"),
        ("project a.trace -w t3:mca+fic", "t3:mca+ficco"),
        ("project a.trace --device h200-s", "H200-SXM-141GB"),
    ],
)
def test_a_shell_completes_commands_what_ifs_and_devices(
    monkeypatch: pytest.MonkeyPatch, words: str, expected: str
) -> None:
    monkeypatch.setenv("COMP_WORDS", f"seqpoint {words}")
    monkeypatch.setenv("COMP_CWORD", str(len(words.split())))
    completer = BashComplete(cli, {}, "seqpoint", "_SEQPOINT_COMPLETE")
    assert f"plain,{expected}" in completer.complete().splitlines()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_of_a_shell_calls_seqpoint(run: Run, shell: str) -> None:
    done = run("completion", shell)
    assert done.code == 0 and f"_SEQPOINT_COMPLETE={shell}_complete" in done.out
