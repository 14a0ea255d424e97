"""What-ifs from other packages: the example in docs/extending, and every way in which one can be broken."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from commands import Result
from test_readers import ROOT, install, install_example
from traces import write_trace

GROUP = "seqpoint.what_ifs"

BROKEN = '''
import numpy as np
from replay.graph import Basis
from replay.what_ifs import Argument, Recipe, TaskChoice, WhatIf

def recipe(name, make, *arguments):
    return Recipe(name, make, arguments, "A sentence.", name)

def raises():
    raise KeyError("inside")

def transform(graph, parameters):
    raise ValueError("deep inside")

def skip(kernel):
    """Chosen kernels take no time.

    Not modelled: what the job computes without them.

    Examples
    --------
    """
    choice = TaskChoice(kernel)

    def transform(graph, parameters):
        return graph.with_durations(np.where(choice.rows(graph), 0.0, graph.tasks.duration_ns), Basis.ASSUMED)

    return WhatIf("anything", transform, choices=(choice,))

def halved():
    """Tasks take half of their time, and a floor."""
    def transform(graph, parameters):
        return graph.with_durations(graph.tasks.duration_ns / 2 + 1000, Basis.DERIVED)

    return WhatIf("halved", transform, retimes=True)

halves = recipe("halves", halved)
skips = Recipe("skips", skip, (Argument("kernel", "class or name"),), example="skips:gemm")
fails = recipe("fails", raises)
later = recipe("later", lambda: WhatIf("later", transform))
lies = recipe("lies", lambda: 3)
empty = recipe("empty", lambda: WhatIf("something else", lambda graph, parameters: None))
overlap = recipe("overlap", raises)
misnamed = recipe("another", raises)
none = 3
'''


#: Runs commands one after the other, so that libraries are loaded once, and prints the status and the texts of each.
PROGRAM = """
import contextlib, io, json, sys
from seqpoint.cli import main

def outcome(arguments):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        try:
            main(arguments)
        except SystemExit as stop:
            return stop.code or 0, out.getvalue(), err.getvalue()

print(json.dumps([outcome(arguments) for arguments in json.loads(sys.argv[1])]))
"""


def seqpoint_each(folder: Path, *commands: Sequence[object]) -> list[Result]:
    """Return what commands print in a process of its own that finds the packages of a folder."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps([[*map(str, command)] for command in commands])],
        # With the cache of compiled code, which another home would not have.
        env={**os.environ, "PYTHONPATH": f"{folder}:{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [Result(*outcome) for outcome in json.loads(done.stdout)]


def seqpoint(folder: Path, *arguments: object) -> Result:
    return seqpoint_each(folder, arguments)[0]


def listed(folder: Path) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in json.loads(seqpoint(folder, "what-ifs", "--json").out)}


def test_the_example_is_listed_applied_and_computed_again(tmp_path: Path) -> None:
    plugin = install_example(tmp_path / "site", "what_if", GROUP)
    row = listed(plugin)["scale_copies"]
    assert row["package"] == "seqpoint-scale-copies" and row["form"] == "scale_copies:FACTOR"
    assert row["summary"] == "Copies take FACTOR times as long." and "Not modelled" in row["documentation"]
    trace = write_trace(tmp_path / "t.json")
    done = seqpoint(plugin, "project", trace, "-w", "scale_copies:0.5+overlap:none", "--draws", 8, "--json")
    content = json.loads(done.out)
    assert content["rows"][0]["what_if"] == ["scale_copies:0.5", "overlap:none"]
    (tmp_path / "r.json").write_text(done.out)
    assert json.loads(seqpoint(plugin, "project", trace, "--from", tmp_path / "r.json", "--json").out)["identical"]
    refused = seqpoint(plugin, "project", trace, "-w", "scale_copies:-1")
    assert refused.code == 1 and "scale_copies: a factor of -1" in refused.err


def test_one_that_takes_names_of_kernels_is_told_which_there_are(tmp_path: Path) -> None:
    folder = tmp_path / "site"
    points = {name: f"broken_what_ifs:{name}" for name in ("skips", "halves")}
    install(folder, "seqpoint-broken", points, GROUP)
    (folder / "broken_what_ifs.py").write_text(BROKEN)
    row = listed(folder)["skips"]
    assert row["summary"] == "Chosen kernels take no time." and row["documentation"].endswith("without them.")
    trace = write_trace(tmp_path / "t.json")
    # The terms of the grammar, a term that fits nothing, and factors before and after a model of a package.
    texts = ("skips:operator=aten::mm,stream=7", "scale_kernels:all:0.5+halves", "halves+scale_kernels:all:0.5")
    unknown, skipped, terms, unfit = seqpoint_each(
        folder,
        ("project", trace, "-w", r"skips:*sgemm\:*+overlap:none", "-w", "skips:*", "--json"),
        ("project", trace, "-w", "skips:*sgemm*+overlap:none", "--draws", 8, "--json"),
        ("project", trace, *(argument for text in texts for argument in ("-w", text)), "--draws", 8, "--json"),
        ("project", trace, "-w", "skips:gemm,stream=20", "--json"),
    )
    assert unknown.code == 1 and "no class or kernel of the trace is called '*sgemm:*'" in unknown.err
    (row,) = json.loads(skipped.out)["rows"]
    assert row["what_if"] == ["skips:*sgemm*", "overlap:none"] and row["speedup"] > 1.1
    rows = json.loads(terms.out)["rows"]
    assert rows[0]["what_if"] == [texts[0]] and rows[0]["speedup"] > 1.1
    assert rows[1]["projected_ns"] == rows[2]["projected_ns"]
    assert unfit.code == 1 and "no task fits all terms of 'gemm,stream=20'" in unfit.err


def test_a_broken_one_is_a_warning_that_names_it_and_hinders_no_other(tmp_path: Path) -> None:
    folder = tmp_path / "site"
    names = ("fails", "later", "lies", "empty", "overlap", "misnamed", "none")
    points = {name: f"broken_what_ifs:{name}" for name in names}
    install(folder, "seqpoint-broken", {**points, "absent": "a_module_that_is_not_there:RECIPE"}, GROUP)
    install(folder, "seqpoint-other", {"fails": "broken_what_ifs:fails"}, GROUP)
    (folder / "broken_what_ifs.py").write_text(BROKEN)
    done = seqpoint(folder, "what-ifs", "--json")
    assert done.code == 0
    assert {"scale_links", "fails", "later", "lies", "empty"} <= {row["name"] for row in json.loads(done.out)}
    for text in (
        "absent of seqpoint-broken is left out: ModuleNotFoundError",
        "overlap of seqpoint-broken is left out: the name overlap is taken by seqpoint itself",
        "misnamed of seqpoint-broken is left out: broken_what_ifs:misnamed is called another",
        "none of seqpoint-broken is left out: broken_what_ifs:none is a int, not a replay.what_ifs.Recipe",
        "fails of seqpoint-other is left out: the name fails is taken by seqpoint-broken",
    ):
        assert text in done.err
    trace = write_trace(tmp_path / "t.json")
    messages = {
        "fails": "failed in package seqpoint-broken: KeyError",
        "lies": "gave a int, not a WhatIf",
        "absent": "the what-if absent of seqpoint-broken could not be loaded: ModuleNotFoundError",
    }
    *refused, done = seqpoint_each(
        folder,
        *(("project", trace, "-w", what_if, "--draws", 8) for what_if in messages),
        ("project", trace, "-w", "later", "-w", "empty", "-w", "scale_host:0.5", "--json"),
    )
    for each, message in zip(refused, messages.values(), strict=True):
        assert each.code == 1 and message in each.err.splitlines()[-1], each.err
    rows = json.loads(done.out)["rows"]
    assert [row["applied"] for row in rows] == [False, False, True]
    assert "what-if later: failed in package seqpoint-broken: ValueError: deep inside" in rows[0]["reason"]
    assert "what-if empty: failed in package seqpoint-broken: gave a NoneType, not a KernelGraph" in rows[1]["reason"]
