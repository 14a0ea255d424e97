"""Intervals of projections on real pairs: a table whose coverage may not silently get worse."""

import csv
from pathlib import Path

import pytest

from seqpoint.validation.intervals import LEAST
from seqpoint.validation.suites import validate

ROOT = Path(__file__).parents[1]
DATA = ROOT.parent / "shared" / "data" / "traces" / "kineto" / "tracelens"
TABLE = list(csv.DictReader((ROOT / "tests" / "accuracy" / "intervals.csv").read_text().splitlines()))
MODEL = "gaunernst_bert-small-uncased.json.gz"


def test_the_intervals_of_all_pairs_hold_what_they_should() -> None:
    (every,) = [row for row in TABLE if row["kind"] == "all"]
    assert int(every["intervals"]) == sum(int(row["intervals"]) for row in TABLE if row["intervals"]) / 2
    assert 100 * LEAST <= float(every["coverage"]) <= 95


@pytest.mark.skipif(not DATA.is_dir(), reason=f"no real traces at {DATA}")
def test_a_pair_is_as_the_table_says() -> None:
    paths = [DATA / device / MODEL for device in ("h100", "mi300")]
    scores = {(s.kind, s.case, s.what_if): s for s in validate("intervals", paths, {}).results["intervals"].scores}
    expected = [row for row in TABLE if MODEL in row["case"]]
    assert len(scores) == len(expected) == 12
    for row in expected:
        score = scores[row["kind"], row["case"], row["what_if"]]
        for name in ("measured", "projected", "low", "high"):
            assert getattr(score, f"{name}_ns") / 1e6 == pytest.approx(float(row[f"{name}_ms"]), rel=0.02, abs=2e-3)
        assert score.inside == (row["inside"] == "yes")
