"""Selectors from other packages: the example in docs/extending, and every way in which one can be broken."""

import json
from pathlib import Path
from typing import Any

from test_readers import install, install_example
from test_what_if_plugins import seqpoint, seqpoint_each

GROUP = "seqpoint.selectors"

BROKEN = """
import numpy as np
from sklearn.base import BaseEstimator
from seqpoint.selection import Choice, SelectionMethod, read_epoch, remember

class Selector(BaseEstimator):
    def __init__(self, fault):
        self.fault = fault

    def fit(self, X, y):
        if self.fault == "raises":
            raise KeyError("inside")
        epoch = read_epoch(self, X, y)
        rows = np.array([0, 0]) if self.fault == "twice" else np.array([0, 1])
        if self.fault != "forgets":
            remember(self, epoch, Choice.of_one_bin(epoch, rows))
        if self.fault == "weighs":
            self.weights_ = np.array([0.5, 0.5])
        return self

raises, forgets, twice, weighs = (
    SelectionMethod(lambda budget, fault=fault: Selector(fault), "A sentence.")
    for fault in ("raises", "forgets", "twice", "weighs")
)
lies = SelectionMethod(lambda budget: 3)
none = 3
"""


def log(folder: Path) -> Path:
    rows = "".join(f"{i},{8 + i},{100 + 10 * i}\n" for i in range(12))
    (folder / "log.csv").write_text("iteration,sequence_length,duration_ns\n" + rows)
    return folder / "log.csv"


def listed(folder: Path) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in json.loads(seqpoint(folder, "selectors", "--json").out)}


def test_the_example_is_listed_and_selects(tmp_path: Path) -> None:
    folder = install_example(tmp_path / "site", "selector", GROUP)
    rows = listed(folder)
    assert list(rows)[:2] == ["seqpoint", "seqpoint, assisted"] and rows["seqpoint"]["package"] == "seqpoint"
    assert all(row["summary"].endswith(".") for row in rows.values())
    assert rows["every_nth"] == {
        "name": "every_nth",
        "summary": "Every n-th iteration, with equal weights.",
        "package": "seqpoint-every-nth",
        "error": None,
    }
    done = seqpoint(folder, "select", log(tmp_path), "--selector", "every_nth", "--max-points", 4, "--json")
    content = json.loads(done.out)
    assert [(p["iteration"], p["weight"]) for p in content["points"]] == [(1, 3.0), (4, 3.0), (7, 3.0), (10, 3.0)]
    assert content["estimate"] == 3 * (110 + 140 + 170 + 200) and content["low"] <= content["estimate"]
    refused = seqpoint(folder, "select", log(tmp_path), "--selector", "every_nth", "--feature", "duration")
    assert refused.code == 1 and "reads the length alone" in refused.err


def test_a_broken_one_is_named_and_hinders_no_other(tmp_path: Path) -> None:
    folder = tmp_path / "site"
    names = ("raises", "forgets", "twice", "weighs", "lies", "none")
    points = {name: f"broken_selectors:{name}" for name in (*names,)}
    install(folder, "seqpoint-broken", {**points, "median": "broken_selectors:twice", "absent": "no_module:X"}, GROUP)
    install(folder, "seqpoint-other", {"raises": "broken_selectors:raises"}, GROUP)
    (folder / "broken_selectors.py").write_text(BROKEN)
    rows = json.loads(seqpoint(folder, "selectors", "--json").out)
    errors = {(row["name"], row["package"]): row["error"] for row in rows if row["error"]}
    assert errors == {
        ("absent", "seqpoint-broken"): "ModuleNotFoundError: No module named 'no_module'",
        ("median", "seqpoint-broken"): "the name median is taken by seqpoint itself",
        ("none", "seqpoint-broken"): "broken_selectors:none is a int, not a seqpoint.selection.SelectionMethod",
        ("raises", "seqpoint-other"): "the name raises is taken by seqpoint-broken",
    }
    messages = {
        "raises": "the selector raises of seqpoint-broken failed: KeyError: 'inside'",
        "forgets": "the selector forgets of seqpoint-broken failed: AttributeError",
        "twice": "the selector twice of seqpoint-broken failed: representatives must be distinct rows",
        "weighs": "the selector weighs of seqpoint-broken failed: the smallest weight is 0.5",
        "lies": "the selector lies of seqpoint-broken failed: AttributeError",
        "absent": "absent of seqpoint-broken could not be loaded: ModuleNotFoundError",
    }
    select = ("select", log(tmp_path))
    *refused, done = seqpoint_each(folder, *((*select, "--selector", selector) for selector in messages), select)
    for each, message in zip(refused, messages.values(), strict=True):
        assert each.code == 1 and message in each.err.splitlines()[-1], each.err
    assert done.code == 0
