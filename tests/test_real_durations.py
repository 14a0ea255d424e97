"""Predicted durations against measured ones: a table that may not silently get worse."""

import csv
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

ROOT = Path(__file__).parents[1]
DATA = ROOT.parent / "shared" / "data" / "kernels"
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason=f"no measured kernels at {DATA}")
sys.path.insert(0, str(ROOT / "benchmarks" / "durations"))
TABLE = list(csv.DictReader((ROOT / "tests" / "accuracy" / "kernel_durations.csv").read_text().splitlines()))


@pytest.fixture(scope="module")
def found() -> dict[str, dict[str, str]]:
    from accuracy_of_durations import table

    return {row["case"]: row for row in table(DATA)}


@pytest.mark.parametrize("expected", TABLE, ids=[row["case"] for row in TABLE])
def test_no_error_is_larger_than_the_table_says(expected: dict[str, str], found: dict[str, dict[str, str]]) -> None:
    ours = found[expected["case"]]
    assert float(ours["error"]) == pytest.approx(float(expected["error"]), abs=0.05)


def test_the_table_has_every_case(found: dict[str, dict[str, str]]) -> None:
    assert set(found) == {row["case"] for row in TABLE}


def test_the_grids_say_which_column_is_the_depth() -> None:
    """A batched product has a workgroup a tile of K columns and M rows: N is summed over."""
    table = pq.read_table(DATA / "nvidia_bmm.parquet").to_pandas()
    tile = table["kernel_name"].str.extract(r"_(\d+)x(\d+)").astype(float)
    groups = np.ceil(table["K"] / tile[0]) * np.ceil(table["M"] / tile[1]) * table["B"]
    assert (groups == table["grid_x"] * table["grid_y"] * table["grid_z"]).mean() > 0.98


TRACES = ROOT.parent / "shared" / "data" / "traces" / "kineto"
OPERATORS = list(csv.DictReader((ROOT / "tests" / "accuracy" / "operators.csv").read_text().splitlines()))


@pytest.mark.parametrize("expected", OPERATORS, ids=[row["trace"] for row in OPERATORS])
def test_operators_account_for_the_time_that_the_table_says(expected: dict[str, str]) -> None:
    from operator_coverage import row

    assert {"trace": expected["trace"], **(row(TRACES / expected["trace"]) or {})} == expected


def test_no_product_runs_faster_than_its_device_can() -> None:
    """What is counted cannot be too much: FLOP over measured time stays below the peak, and comes near it."""
    from profilers.arrays import integers, strings
    from profilers.collect import CollectOptions, open_trace
    from profilers.devices import find_device
    from replay.operators.coverage import operators_of_kernels

    for name, device in (
        ("h100/Falconsai_nsfw_image_detection", "H100 SXM"),
        ("mi300/Falconsai_nsfw_image_detection", "MI300X"),
    ):
        trace = open_trace(str(TRACES / "tracelens" / f"{name}.json.gz"), CollectOptions("whole"))
        operators, _ = operators_of_kernels(trace)
        duration, op_ids = integers(trace.kernels, "dur_ns"), integers(trace.kernels, "op_id")
        spent = {op: int(duration[op_ids == op].sum()) for op in set(op_ids.tolist())}
        peak = find_device(device).flops_per_s("bf16")
        rates = [
            one.flops / spent[op] * 1e9 / peak
            for one, op in zip(operators, op_ids.tolist(), strict=True)
            if one is not None and one.kind in ("matmul", "batched_matmul", "convolution", "attention")
        ]
        assert len(strings(trace.kernels, "name")) == len(operators) and len(rates) > 20
        assert 0.05 < max(rates) < 1.0
