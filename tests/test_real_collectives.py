"""Predicted times of collectives against measured ones: a table that may not silently get worse."""

import csv
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
DATA = ROOT.parent / "shared" / "data" / "collectives"
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason=f"no measured collectives at {DATA}")
sys.path.insert(0, str(ROOT / "benchmarks" / "collectives"))
TABLE = list(csv.DictReader((ROOT / "tests" / "accuracy" / "collectives.csv").read_text().splitlines()))


@pytest.fixture(scope="module")
def found() -> dict[str, dict[str, str]]:
    from accuracy_of_collectives import table

    return {row["case"]: row for row in table(DATA)}


@pytest.mark.parametrize("expected", TABLE, ids=[row["case"] for row in TABLE])
def test_no_error_is_larger_than_the_table_says(expected: dict[str, str], found: dict[str, dict[str, str]]) -> None:
    ours = found[expected["case"]]
    for column in ("error", "covered"):
        assert bool(expected[column]) == bool(ours.get(column))
        if expected[column]:
            assert float(ours[column]) == pytest.approx(float(expected[column]), abs=0.1)


def test_the_table_has_every_case(found: dict[str, dict[str, str]]) -> None:
    assert set(found) == {row["case"] for row in TABLE}


def test_the_shipped_fits_are_what_calibrating_gives() -> None:
    from replay.costs.collectives import calibrate_collectives, load_collectives, read_collectives

    more = DATA.parents[1] / "new" / "collectives"
    if not more.is_dir():
        pytest.skip(f"no measured collectives at {more}")
    again, shipped = calibrate_collectives([*read_collectives(DATA), *read_collectives(more)]), load_collectives()
    assert again.digests == shipped.digests and len(again.fits) == len(shipped.fits)
    for one, other in zip(again.fits, shipped.fits, strict=True):
        sizes = np.geomspace(4e3, one.most_bytes, 50)
        ratio = one.curve.seconds(sizes) / other.curve.seconds(sizes)
        assert np.median(np.abs(ratio - 1)) < 1e-3


def test_sizes_that_score_change_no_fit() -> None:
    """What is left out is never looked at: with its times doubled, the fits are the same."""
    from dataclasses import replace

    from replay.costs.collectives import calibrate_collectives, read_collectives, scored_rows

    (one,) = (
        m
        for m in read_collectives(DATA / "a100_dgx_all_reduce.csv")
        if (m.topology.n_workers, m.topology.devices_per_node) == (8, 8)
    )
    spoiled = replace(one, seconds=np.where(scored_rows(one), 2 * one.seconds, one.seconds))
    assert calibrate_collectives([one]).fits == calibrate_collectives([spoiled]).fits
