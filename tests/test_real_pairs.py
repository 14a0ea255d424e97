"""Gains and intervals of projections on real pairs: tables that may not silently get worse."""

import csv
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from seqpoint.validation.changes import LEAST
from seqpoint.validation.suites import validate

ROOT = Path(__file__).parents[1]
DATA = ROOT.parent / "shared" / "data" / "traces" / "kineto" / "tracelens"
TABLE = list(csv.DictReader((ROOT / "tests" / "accuracy" / "intervals.csv").read_text().splitlines()))
PAIRS = list(csv.DictReader((ROOT / "tests" / "accuracy" / "pairs.csv").read_text().splitlines()))
MODEL = "gaunernst_bert-small-uncased.json.gz"


def test_the_intervals_of_all_pairs_hold_what_they_should() -> None:
    (every,) = [row for row in TABLE if row["kind"] == "all"]
    assert int(every["intervals"]) == sum(int(row["intervals"]) for row in TABLE if row["intervals"]) / 2
    assert 100 * LEAST <= float(every["coverage"]) <= 95


def test_all_recordings_cost_what_their_intervals_say_and_errors_have_causes() -> None:
    costs = [row for row in PAIRS if row["change"] == "recording"]
    assert len(costs) == 16 and all(row["inside"] == "yes" for row in costs)
    on_h200 = [abs(float(row["predicted"]) / float(row["measured"]) - 1) for row in costs if "h200" in row["runs"]]
    assert median(on_h200) < 0.07, "the costs were fitted to the H100 alone"
    for row in PAIRS:
        measured = float(row["measured"] or row["traced"])
        error = abs(float(row["predicted"]) / measured - 1)
        assert error <= 0.1 or row["cause"] or "epoch" in row["change"], row


@pytest.mark.skipif(not DATA.is_dir(), reason=f"no real traces at {DATA}")
def test_a_pair_is_as_the_tables_say() -> None:
    paths = [DATA / device / MODEL for device in ("h100", "mi300")]
    result = validate("pairs", paths, {}).results["pairs"]
    scores = {(s.kind, s.case, s.what_if): s for s in result.scores if not s.kind.startswith("gain")}
    expected = [row for row in TABLE if "bert-small" in row["case"]]
    assert len(scores) == len(expected) == 10
    for row in expected:
        score = scores[row["kind"], row["case"], row["what_if"]]
        for name in ("measured", "projected", "low", "high"):
            assert getattr(score, f"{name}_ns") / 1e6 == pytest.approx(float(row[f"{name}_ms"]), rel=0.02, abs=2e-3)
        assert score.inside == (row["inside"] == "yes")
    gains: Any = result.details["pairs"]
    for gain, row in zip(gains, [row for row in PAIRS if "bert-small" in row["runs"]], strict=True):
        for name in ("traced", "predicted", "low", "high"):
            assert gain[name] == pytest.approx(float(row[name]), rel=0.02)
