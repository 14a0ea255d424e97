"""Replaying an unchanged iteration of a real trace returns the measured time; a table may not get worse."""

import csv
import importlib.util
from pathlib import Path

import pytest

REAL = Path(__file__).parents[2] / "shared" / "data" / "traces"
TABLE = Path(__file__).parent / "accuracy" / "identity.csv"
ROWS = list(csv.DictReader(TABLE.read_text().splitlines()))
#: What a figure of the table may grow by before it is worse (percentage points; the table has three decimals).
SLACK = 0.02
#: The project's limits, in percent of an iteration: its time at the median and at worst, and the start of any kernel.
MEDIAN, WORST, START = 0.5, 3.0, 5.0

needs_traces = pytest.mark.skipif(not REAL.is_dir(), reason=f"real traces are not at {REAL}")


def benchmark():
    spec = importlib.util.spec_from_file_location("identity", Path(__file__).parents[1] / "benchmarks" / "identity.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("row", ROWS, ids=[row["trace"] for row in ROWS])
def test_every_trace_meets_the_limits(row: dict[str, str]) -> None:
    assert int(row["iterations"]) > 0
    assert float(row["median"]) <= MEDIAN
    assert float(row["worst"]) <= WORST
    assert float(row["start_worst"]) <= START


@needs_traces
def test_the_table_has_every_trace() -> None:
    assert [row["trace"] for row in ROWS] == [name for name, _ in benchmark().cases(REAL)]


@needs_traces
@pytest.mark.parametrize("old", ROWS, ids=[row["trace"] for row in ROWS])
def test_no_figure_is_worse_than_the_table(old: dict[str, str]) -> None:
    module = benchmark()
    files = dict(module.cases(REAL))[old["trace"]]
    new = module.row(old["trace"], files)
    assert new["iterations"] == old["iterations"]
    for column in module.COLUMNS[2:]:
        assert float(new[column]) <= float(old[column]) + SLACK, column
