"""Convolutions: shapes that cannot be, algorithms against hand-computed times, trees, tables and measured ones."""

import csv
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import seqpoint as sp
from profilers.devices.catalogue import find_device
from profilers.errors import InvalidInputError
from replay.costs.kernels import (
    MODELS,
    Machine,
    calibrate,
    load_calibration,
    predict,
    read_calibration,
    read_measurements,
    write_calibration,
)
from replay.costs.kernels.convolutions import ALGORITHM, algorithm_seconds, scored

ROOT = Path(__file__).parents[1]
DATA = ROOT.parent / "shared" / "data" / "convolutions"
TABLE = list(csv.DictReader((ROOT / "tests" / "accuracy" / "convolutions.csv").read_text().splitlines()))
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason=f"no measured convolutions at {DATA}")
sys.path.insert(0, str(ROOT / "benchmarks" / "durations"))

#: 64 images of 64 channels and 56 x 56, 64 filters of 3 x 3, forward.
SHAPE = [64, 64, 1, 56, 56, 64, 1, 3, 3, 1, 1, 1, 0, 1, 1, 1, 1, 1, 1]
SETTINGS = [f"{what}_{axis}" for what in ("kernel", "stride", "pad", "dilation") for axis in "dhw"]
COLUMNS = ("n", "c", "d", "h", "w", "k", *SETTINGS)


def record(file: Path, rows: list[dict[str, object]]) -> Path:
    """Write a record of MIOpen: 1 x 1 convolutions unless a row says otherwise."""
    usual: dict[str, object] = dict.fromkeys((*COLUMNS, "groups"), 1) | dict.fromkeys(("pad_d", "pad_h", "pad_w"), 0)
    usual |= {"direction": "forward", "layout": "NCHW", "dtype": "FP32", "spatial_dims": 2, "config_id": 1}
    pq.write_table(pa.Table.from_pylist([usual | row for row in rows]), file)
    return file


def test_a_device_that_nobody_measured_has_times_in_all_directions() -> None:
    shapes = [[*SHAPE, direction] for direction in (1, 2, 3)]
    predicted = sp.predict("convolution", shapes, "MI300X", dtype="fp16")
    assert predicted.basis == "carried"
    # 14.8 GFLOP at 1.3 PFLOP/s take 11 us; a tenth of that rate would take 0.11 ms.
    assert ((predicted.seconds > 11e-6) & (predicted.seconds < 1.1e-4)).all()
    assert (predicted.low < predicted.seconds).all() and (predicted.seconds < predicted.high).all()


def test_no_time_is_below_what_memory_allows() -> None:
    """256 images of 256 channels and 112 x 112, moved in and out once, except what the caches hold."""
    device = find_device("MI210")
    dims = [[256, 256, 1, 112, 112, 256, *[1] * 6, *[0] * 3, *[1] * 4]]
    bytes_moved = 2 * 256 * 256 * 112**2 * 2 - device.value("l2_mb") * 2**20
    predicted = sp.predict("convolution", dims, device, dtype="fp16")
    assert predicted.low[0] >= 0.999 * bytes_moved / device.memory_bytes_per_s


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (7, 59, "a kernel of 1 x 59 x 3 is larger than the padded images of 1 x 58 x 58"),
        (18, 7, "7 groups do not divide 64 channels and 64 filters"),
        (0, 1.5, "a size is no whole number"),
        (10, 0, "must be 1 or more"),
    ],
)
def test_a_shape_that_cannot_be_is_refused(place: int, value: float, message: str) -> None:
    shape = [*SHAPE[:place], value, *SHAPE[place + 1 :]]
    with pytest.raises(InvalidInputError, match=message):
        sp.predict("convolution", [SHAPE, shape], "MI300X")


def test_a_type_without_units_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="MI50 does not compute in bf16"):
        sp.predict("convolution", [SHAPE], "MI50", dtype="bf16")


def test_a_large_implicit_gemm_takes_whole_waves_of_tiles() -> None:
    """On a device of 100 units at 1 TFLOP/s in all, whose memory is too fast to matter."""
    machine = replace(
        Machine.of(find_device("V100")), compute_units=100.0, flops_per_s=1e12, memory_bytes_per_s=1e18, clock_hz=2e9
    )
    model = MODELS["convolution"]
    theta = np.exp(model.prior)
    theta[[p.name in ("forward", "memory") for p in model.parameters]] = 1.0
    theta[[p.name in ("start_s", "edge", "prologue", "relayout") for p in model.parameters]] = 1e-12
    # 256 filters and 100 * 128 pixels: two tiles of 128 x 128 a unit, or one of 256 x 128; 512 channels deep.
    dims = np.array([[1, 512, 1, 100, 128, 256, *[1] * 6, *[0] * 3, *[1] * 6, 1]], dtype=float)
    seconds = algorithm_seconds(theta, np.empty(0), dims, 4, machine)
    assert seconds[0, 0] == pytest.approx(2 * 256 * 12800 * 512 / 1e12, rel=1e-6)
    assert np.isinf(seconds[0, 1:]).all()  # other algorithms were not asked
    more = dims.copy()
    more[0, 5] += 1  # one filter more needs tiles of their own
    assert algorithm_seconds(theta, np.empty(0), more, 4, machine)[0, 0] > 1.05 * seconds[0, 0]


def test_the_fastest_algorithm_is_the_time_and_naive_solvers_are_left_out(tmp_path: Path) -> None:
    rows = [
        {"algorithm": "GEMM", "solver": "GemmFwd1x1_0_1", "time_ms": 2.0},
        {"algorithm": "Direct", "solver": "ConvOclDirectFwd1x1", "time_ms": 1.0},
        {"algorithm": "Direct", "solver": "ConvDirectNaiveConvFwd", "time_ms": 0.5},
    ]
    (measured,) = read_measurements(record(tmp_path / "miopen_conv_mi100.parquet", rows))
    times = dict(zip(measured.dims[:, ALGORITHM].tolist(), measured.seconds.tolist(), strict=True))
    assert times == {0: 1e-3, 2: 2e-3, 3: 1e-3}
    assert (measured.device.name, measured.dtype, measured.library) == ("MI100", "fp32", "miopen")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"kernel_h": 3}, "row 2: a kernel of 1 x 3 x 1 is larger"),
        ({"time_ms": 0.0}, "row 2: time_ms is 0"),
        ({"pad_w": -1}, "row 2: pad_w is -1"),
        ({"algorithm": "Magic"}, "row 2: no algorithm 'Magic'"),
    ],
)
def test_an_error_names_the_file_and_the_row(tmp_path: Path, row: dict[str, object], message: str) -> None:
    good: dict[str, object] = {"algorithm": "GEMM", "solver": "GemmFwd1x1_0_1", "time_ms": 2.0}
    file = record(tmp_path / "miopen_conv_mi100.parquet", [good, good | row])
    with pytest.raises(InvalidInputError, match=f"{file.name}: {message}"):
        read_measurements(file)


def test_trees_learn_what_the_physical_time_leaves_out(tmp_path: Path) -> None:
    """Images of 32 rows and more take three times as long; the file of the fits keeps that."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(16, 64, (400, 3)).tolist()
    rows: list[dict[str, object]] = [
        {"n": 64, "c": 64, "k": 8 * k, "h": h, "w": w, "algorithm": "GEMM", "solver": "GemmFwd1x1_0_1",
         "time_ms": 1e-6 * h * w * k * (3 if h >= 32 else 1)} for h, w, k in sizes
    ]  # fmt: skip
    measured = read_measurements(record(tmp_path / "miopen_conv_mi100.parquet", rows))
    write_calibration(tmp_path / "fits.json", calibrate(measured))
    fits = read_calibration(tmp_path / "fits.json").fits
    fit = fits["convolution", "MI100", "fp32", "miopen"]
    (mine,) = measured
    dims, seconds = mine.dims[scored(mine.dims)], mine.seconds[scored(mine.dims)]
    machine = Machine.of(mine.device, "fp32")
    with_trees = np.abs(fit.seconds("convolution", dims, 4, machine) / seconds - 1).mean()
    without = np.abs(replace(fit, correction=()).seconds("convolution", dims, 4, machine) / seconds - 1).mean()
    assert with_trees < 0.2 < without


@needs_data
def test_measured_convolutions_are_as_far_off_as_the_table_says() -> None:
    from accuracy_of_convolutions import table

    found = {row["case"]: float(row["error"]) for row in table(DATA / "deepbench.parquet")}
    expected = {row["case"]: float(row["error"]) for row in TABLE if row["case"] in found}
    assert len(found) == len(expected) > 40
    # The table has one decimal. Processors add in another order, and an error near its half is rounded the other way.
    assert found == pytest.approx(expected, abs=0.15)


def test_the_table_meets_its_limits() -> None:
    rows = {row["case"]: row for row in TABLE}
    for device in ("MI100", "MI210"):
        for dtype in ("fp32", "fp16", "bf16"):
            row = rows[f"{device} {dtype} miopen all halves"]
            assert float(row["error"]) < 25 and float(row["choice"]) > 85 and 0.8 < float(row["bias"]) < 1.25
            assert 85 < float(row["covered"]) < 95
        for dtype in ("fp32", "fp16"):
            assert float(rows[f"{device} {dtype} miopen all carried"]["error"]) < 32


@needs_data
def test_an_mi210_is_predicted_from_others_within_the_limit() -> None:
    measured = next(m for m in read_measurements(DATA / "miopen_conv_mi200_104cu.parquet") if m.dtype == "fp16")
    mine = scored(measured.dims)
    predicted = predict(
        "convolution", measured.dims[mine], measured.device, dtype="fp16",
        calibration=load_calibration().without("MI210"),
    )  # fmt: skip
    assert np.abs(predicted.seconds / measured.seconds[mine] - 1).mean() < 0.25
