"""Replaying real traces: step times add up, unchanged replays return them, steady states keep them; a table of it."""

import csv
import importlib.util
from pathlib import Path

import pytest

REAL = Path(__file__).parents[2] / "shared" / "data" / "traces"
TABLE = Path(__file__).parent / "accuracy" / "identity.csv"
ROWS = list(csv.DictReader(TABLE.read_text().splitlines()))
#: What a figure of the table may grow by before it is worse (percentage points; the table has three decimals).
SLACK = 0.02
#: The project's limits, in percent: step times against the elapsed time; completions and starts of an unchanged replay.
ELAPSED, COMPLETION, START = 1.0, 0.1, 0.1
#: With typical delays, all traces but one stay within 2 %; none is off by more than 3 %.
#: The worst is of an accelerator that is no GPU, and whose kernels state no grid.
TYPICAL, TYPICAL_WORST, TYPICAL_EXCEPTIONS = 2.0, 3.5, 1
#: How far the busy shares of `describe` and `replay` may be apart, in points.
BUSY = 2.0
ERRORS = ("elapsed_error", "completion_worst", "start_worst", "typical_median", "typical_worst", "steady_median",
          "steady_worst", "unexplained")  # fmt: skip

needs_traces = pytest.mark.skipif(not REAL.is_dir(), reason=f"real traces are not at {REAL}")


def benchmark():
    spec = importlib.util.spec_from_file_location("identity", Path(__file__).parents[1] / "benchmarks" / "identity.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("row", ROWS, ids=[row["trace"] for row in ROWS])
def test_every_trace_meets_the_limits(row: dict[str, str]) -> None:
    assert int(row["iterations"]) > 0
    assert float(row["elapsed_error"]) <= ELAPSED
    assert float(row["completion_worst"]) <= COMPLETION
    assert float(row["start_worst"]) <= START
    assert float(row["typical_worst"]) <= TYPICAL_WORST
    assert abs(float(row["busy_describe"]) - float(row["busy_replay"])) <= BUSY


def test_with_typical_delays_most_traces_are_within_two_percent() -> None:
    beyond = [row["trace"] for row in ROWS if float(row["typical_worst"]) > TYPICAL]
    assert len(beyond) <= TYPICAL_EXCEPTIONS


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
    for column in ERRORS:
        assert float(new[column]) <= float(old[column]) + SLACK, column
    for column in ("elapsed_ms", "latencies_ms", "busy_describe", "busy_replay"):
        assert float(new[column]) == pytest.approx(float(old[column]), abs=SLACK), column
