"""Predicted durations against measured ones: a table that may not silently get worse."""

import csv
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DATA = ROOT.parent / "shared" / "data" / "kernels"
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason=f"no measured kernels at {DATA}")
sys.path.insert(0, str(ROOT / "benchmarks" / "durations"))
TABLE = list(csv.DictReader((ROOT / "tests" / "accuracy" / "kernel_durations.csv").read_text().splitlines()))


@pytest.fixture(scope="module")
def found() -> dict[str, dict[str, str]]:
    from accuracy import table

    return {row["case"]: row for row in table(DATA)}


@pytest.mark.parametrize("expected", TABLE, ids=[row["case"] for row in TABLE])
def test_no_error_is_larger_than_the_table_says(expected: dict[str, str], found: dict[str, dict[str, str]]) -> None:
    ours = found[expected["case"]]
    assert float(ours["error"]) == pytest.approx(float(expected["error"]), abs=0.05)


def test_the_table_has_every_case(found: dict[str, dict[str, str]]) -> None:
    assert set(found) == {row["case"] for row in TABLE}
