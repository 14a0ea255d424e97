"""What-ifs from other packages: the example distribution in tests/plugin, and every way in which one can be broken."""

import json
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from test_readers import PLUGIN, ROOT, install
from traces import write_trace

GROUP = "seqpoint.what_ifs"

BROKEN = """
import numpy as np
from replay.what_ifs import Argument, Recipe, WhatIf

def recipe(name, make, *arguments):
    return Recipe(name, make, arguments, "A sentence.", name)

def raises():
    raise KeyError("inside")

def transform(graph, parameters):
    raise ValueError("deep inside")

fails = recipe("fails", raises)
later = recipe("later", lambda: WhatIf("later", transform))
lies = recipe("lies", lambda: 3)
empty = recipe("empty", lambda: WhatIf("something else", lambda graph, parameters: None))
overlap = recipe("overlap", raises)
misnamed = recipe("another", raises)
none = 3
"""


def seqpoint(folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    code = "import sys; from seqpoint.cli import main; main(sys.argv[1:])"
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        env={"PYTHONPATH": f"{folder}:{ROOT}", "PATH": "", "HOME": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )


def listed(folder: Path) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in json.loads(seqpoint(folder, "what-ifs", "--json").stdout)}


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    folder = tmp_path / "site"
    project = tomllib.loads((PLUGIN / "pyproject.toml").read_text())["project"]
    install(folder, project["name"], project["entry-points"][GROUP], GROUP)
    shutil.copy(PLUGIN / "seqpoint_skip.py", folder)
    return folder


def test_the_example_is_listed_applied_and_computed_again(plugin: Path, tmp_path: Path) -> None:
    row = listed(plugin)["skip_kernels"]
    assert row["package"] == "seqpoint-steplog" and row["form"] == "skip_kernels:KERNEL"
    assert "Not modelled" in row["documentation"]
    trace = write_trace(tmp_path / "t.json")
    done = seqpoint(
        plugin, "project", trace, "-w", r"skip_kernels:*sgemm\:*+overlap:none", "-w", "skip_kernels:*", "--json"
    )
    assert done.returncode == 1 and "no class or kernel of the trace is called '*sgemm:*'" in done.stderr
    done = seqpoint(plugin, "project", trace, "-w", "skip_kernels:*sgemm*+overlap:none", "--draws", 8, "--json")
    content = json.loads(done.stdout)
    assert content["rows"][0]["what_if"] == ["skip_kernels:*sgemm*", "overlap:none"]
    (tmp_path / "r.json").write_text(done.stdout)
    assert json.loads(seqpoint(plugin, "project", trace, "--from", tmp_path / "r.json", "--json").stdout)["identical"]


def test_a_broken_one_is_a_warning_that_names_it_and_hinders_no_other(tmp_path: Path) -> None:
    folder = tmp_path / "site"
    names = ("fails", "later", "lies", "empty", "overlap", "misnamed", "none")
    points = {name: f"broken_what_ifs:{name}" for name in names}
    install(folder, "seqpoint-broken", {**points, "absent": "a_module_that_is_not_there:RECIPE"}, GROUP)
    install(folder, "seqpoint-other", {"fails": "broken_what_ifs:fails"}, GROUP)
    (folder / "broken_what_ifs.py").write_text(BROKEN)
    done = seqpoint(folder, "what-ifs", "--json")
    assert done.returncode == 0
    assert {"scale_links", "fails", "later", "lies", "empty"} <= {row["name"] for row in json.loads(done.stdout)}
    for text in (
        "absent of seqpoint-broken is left out: ModuleNotFoundError",
        "overlap of seqpoint-broken is left out: the name overlap is taken by seqpoint itself",
        "misnamed of seqpoint-broken is left out: broken_what_ifs:misnamed is called another",
        "none of seqpoint-broken is left out: broken_what_ifs:none is a int, not a replay.what_ifs.Recipe",
        "fails of seqpoint-other is left out: the name fails is taken by seqpoint-broken",
    ):
        assert text in done.stderr
    trace = write_trace(tmp_path / "t.json")
    for what_if, message in {
        "fails": "failed in package seqpoint-broken: KeyError",
        "later": "what-if later: failed in package seqpoint-broken: ValueError: deep inside",
        "lies": "gave a int, not a WhatIf",
        "empty": "what-if empty: failed in package seqpoint-broken: gave a NoneType, not a KernelGraph",
        "absent": "the what-if absent of seqpoint-broken could not be loaded: ModuleNotFoundError",
    }.items():
        done = seqpoint(folder, "project", trace, "-w", what_if, "--draws", 8)
        assert done.returncode == 1 and message in done.stderr.splitlines()[-1], done.stderr
