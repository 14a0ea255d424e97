"""What selecting and estimating say of logs and selections that are empty, broken, or at the edge."""

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from profilers.errors import InvalidInputError
from seqpoint.cli import cli

HEADER = "iteration,sequence_length,duration_ns\n"


def log(folder: Path, rows: str, name: str = "log.csv", header: str = HEADER) -> Path:
    path = folder / name
    path.write_text(header + rows)
    return path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(one) for one in arguments])


def refused(found: Result) -> str:
    """Return what an error says; empty where there is none, or something was printed all the same."""
    return str(found.exception) if isinstance(found.exception, InvalidInputError) and not found.stdout else ""


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("0,8,10\n1,,10\n2,8,10\n", "row 2: sequence_length is missing or not finite"),
        ("0,8,10\n1,8,-10\n", "y[1] is -10"),
        ("0,8,10\n-1,8,10\n", "row 2: iteration -1 is not a whole number"),
        ("0,long,10\n", "a log needs a column of numbers beside the lengths"),
        ("0,8,fast\n", "a column of numbers beside the lengths"),
    ],
)
def test_a_log_that_cannot_be_selected_from(tmp_path: Path, rows: str, message: str) -> None:
    assert message in refused(run("select", log(tmp_path, rows)))


@pytest.mark.parametrize(
    ("rows", "points", "weight", "total"),
    [("0,8,10\n", 1, 1.0, 10.0), ("0,8,10\n1,8,14\n2,8,12\n", 1, 3.0, 36.0)],
)
def test_one_iteration_and_equal_lengths_are_one_point(
    tmp_path: Path, rows: str, points: int, weight: float, total: float
) -> None:
    content = json.loads(run("select", log(tmp_path, rows), "--json").stdout)
    assert len(content["points"]) == points and content["points"][0]["weight"] == weight
    assert content["estimate"] == total and content["low"] <= total <= content["high"]


@pytest.fixture
def selected(tmp_path: Path) -> tuple[Path, Path]:
    rows = "".join(f"{i},{8 * (i % 5 + 1)},{100 * (i % 5 + 1) + i}\n" for i in range(20))
    base = log(tmp_path, rows)
    selection = tmp_path / "points.json"
    selection.write_text(run("select", base, "--json").stdout)
    return base, selection


def change(selection: Path, **new: object) -> None:
    content = json.loads(selection.read_text())
    content["points"][0] |= new
    selection.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("new", "message"),
    [
        ({"weight": 400.0}, "their sum"),
        ({"weight": 0.25}, "the smallest weight is 0.25"),
        ({"weight": -4.0}, "weights above zero"),
        ({"weight": float("nan")}, "weights above zero"),
        ({"iteration": 99}, "lacks the chosen iterations [99]"),
        ({"iteration": "first"}, "not the output of `seqpoint select --json`"),
        ({"rank": 3}, "no iteration of rank 3"),
    ],
)
def test_a_selection_whose_weights_cannot_be_met(
    selected: tuple[Path, Path], new: dict[str, object], message: str
) -> None:
    base, selection = selected
    change(selection, **new)
    assert message in refused(run("estimate", selection, base, "--from", base))


def test_a_selection_with_an_iteration_twice(selected: tuple[Path, Path]) -> None:
    base, selection = selected
    change(selection, iteration=json.loads(selection.read_text())["points"][1]["iteration"])
    assert "must be distinct rows" in refused(run("estimate", selection, base, "--from", base))


def test_as_many_points_as_iterations_are_exact(tmp_path: Path) -> None:
    rows = "".join(f"{i},{i + 1},{(i * 7919) % 97 + 1}\n" for i in range(12))
    content = json.loads(run("select", log(tmp_path, rows), "--max-points", 50, "--json").stdout)
    assert len(content["points"]) == 12 and content["error"] == 0
    assert content["low"] == content["estimate"] == content["high"]


def test_more_iterations_than_a_length_has_take_all_of_it(tmp_path: Path) -> None:
    rows = "".join(f"{i},{8 if i < 3 else 16},{10 + i}\n" for i in range(10))
    found = run("select", log(tmp_path, rows), "--max-iterations", 99, "--json")
    content = json.loads(found.stdout)
    assert sorted(p["iteration"] for p in content["points"]) == list(range(10))
    assert content["estimate"] == np.arange(10, 20).sum() == content["measured"]
    none = run("select", log(tmp_path, rows), "--max-iterations", 0)
    assert none.exit_code == 2 and "0 is not in the range" in none.stderr
