"""What papers report, beside what our models of their set-ups say."""

import csv
import json
import sys
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

from profilers.errors import BrokenFileError, NotFoundError
from replay.costs.shipped import load_parameters
from replay.studies import caching
from seqpoint.cli import cli
from seqpoint.validation.published import SYSTEMS, published_figures, read_figures

ROOT = Path(__file__).parents[1]
TABLE = list(csv.DictReader((ROOT / "tests" / "accuracy" / "published.csv").read_text().splitlines()))
#: Each workload under each policy, written by `benchmarks/overlap/accuracy_of_published.py`.
OUTCOMES = ROOT / "tests" / "accuracy" / "caching.jsonl"
#: Parameters that may be fitted over all four papers (the project's own bound).
MOST_FITTED = 8
ENTRY = {
    "paper": '"arXiv 1"',
    "setting": '"s"',
    "quantity": '"q"',
    "value": "2.0",
    "unit": '"x"',
    "grade": '"A"',
    "limit": "0.1",
    "limit_is": '"relative"',
    "fitted": "false",
    "source": '"abstract"',
}


def write(folder: Path, **changes: str) -> Path:
    entry = {**ENTRY, **changes}
    path = folder / "figures.toml"
    path.write_text("[figures.one]\n" + "\n".join(f"{name} = {text}" for name, text in entry.items() if text))
    return path


def test_the_table_has_all_systems() -> None:
    assert list(dict.fromkeys(row["system"] for row in TABLE)) == list(SYSTEMS)


@pytest.fixture
def kept_outcomes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a file of outcomes of the caching study, which `reproduce` now reads, without every seventh.

    There are 6 policies, so that the missing outcomes are of all. If workloads or parameters change, all are missing.
    """
    lines = OUTCOMES.read_text().splitlines(keepends=True)
    (file := tmp_path / "caching.jsonl").write_text("".join(line for i, line in enumerate(lines) if i % 7))
    monkeypatch.setattr(caching, "reproduce", partial(caching.reproduce, file=file))
    return file


def outcomes_in(file: Path) -> dict[tuple[str, str], dict[str, float]]:
    """Return the figures of each outcome by workload and policy."""
    rows = map(json.loads, file.read_text().splitlines())
    return {(row.pop("workload"), row.pop("policy")): row for row in rows}


def test_every_seventh_outcome_of_the_caching_study_is_as_recorded_and_figures_follow(kept_outcomes: Path) -> None:
    test_no_figure_is_another_than_the_table_says("caching")
    recorded, found = outcomes_in(OUTCOMES), outcomes_in(kept_outcomes)
    assert len(recorded) == len(found) == 102
    for key, row in recorded.items():
        assert found[key] == pytest.approx(row, rel=2e-3), key


@pytest.mark.parametrize("system", [system for system in SYSTEMS if system != "caching"])
def test_no_figure_is_another_than_the_table_says(system: str) -> None:
    sys.path.insert(0, str(ROOT / "benchmarks" / "overlap"))
    from accuracy_of_published import table

    found, recorded = table(system), [row for row in TABLE if row["system"] == system]
    assert {row["name"] for row in found} == {figure.name for figure in published_figures(system)}
    assert [row["name"] for row in found] == [row["name"] for row in recorded]
    for row, expected in zip(found, recorded, strict=True):
        assert float(row["ours"]) == pytest.approx(float(expected["ours"]), rel=2e-3, abs=1e-9), row
        assert {k: v for k, v in row.items() if k != "ours"} == {k: v for k, v in expected.items() if k != "ours"}


def test_few_parameters_are_fitted_and_each_says_on_what() -> None:
    fitted = [
        name
        for name, one in load_parameters().known.items()
        if one.certainty == "fitted"
        and any(paper in one.source for paper in ("2412.14335", "2401.16677", "2512.10236", "2305.06942"))
    ]
    assert 1 <= len(fitted) <= MOST_FITTED, fitted


def test_closed_forms_are_exact_and_orderings_hold() -> None:
    # The test of the table computes its figures anew. A quotient of two published means is no closed form.
    forms = [row for row in TABLE if row["name"] != "default_over_sequential"]
    gated = [row for row in forms if row["met"] and (row["grade"] == "D" or row["unit"] == "cases")]
    assert len(gated) > 8
    assert [row["name"] for row in gated if row["met"] != "yes"] == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"grade": '"X"'}, "a grade is one of"),
        ({"limit_is": '"twice"'}, "a limit one of"),
        ({"limit": "-1.0"}, "limit: Expected `float` >= 0"),
        ({"value": "0.0"}, "the limit of a value of 0 is absolute"),
        ({"value": '"2"'}, "value: Expected `float`, got `str`"),
        ({"fitted": "1"}, "fitted: Expected `bool`, got `int`"),
        ({"value": "true"}, "value: Expected `float`, got `bool`"),
        ({"unit": ""}, "lacks the key 'unit'; the keys are paper"),
        ({"more": "1"}, "unknown key 'more'; the keys are paper"),
        ({"value": "["}, "no TOML"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path: Path, changes: dict[str, str], message: str) -> None:
    with pytest.raises(BrokenFileError, match=message):
        read_figures(write(tmp_path, **changes))


def test_a_whole_number_is_a_number_and_limits_are_shares(tmp_path: Path) -> None:
    (figure,) = read_figures(write(tmp_path, value="4", limit="1", limit_is='"absolute"'))
    assert figure.relative_limit == 0.25 and figure.gated


def test_unknown_systems_are_named() -> None:
    with pytest.raises(NotFoundError, match="no published system is called 'x'; there are c3, t3"):
        published_figures("x")


def test_the_command_shows_and_gates() -> None:
    shown = CliRunner().invoke(cli, ["validate", "published", "c3"])
    assert shown.exit_code == 0 and "gated figures within their limit" in shown.stdout
    result = CliRunner().invoke(cli, ["validate", "published", "c3", "--json", "--gate"])
    content = json.loads(result.stdout)
    assert result.exit_code == int(any(row["met"] is False for row in content["rows"]))
    assert len(content["rows"]) == len(content["figures"]) == len(published_figures("c3"))
    assert {"system", "name", "published", "ours", "grade", "fitted"} <= content["figures"][0].keys()
