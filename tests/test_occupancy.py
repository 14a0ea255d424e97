"""Workgroups that share a compute unit: how many fit, how long they take, and the suite that scores both."""

import csv
import json
import math
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import seqpoint as sp
from profilers.devices.catalogue import Device, RatedFigure, find_device, load_devices
from profilers.errors import InvalidInputError, NotFoundError
from replay.costs.occupancy import (
    KNEE,
    OccupancyLaw,
    fit_occupancy,
    resident_workgroups,
    unit_limits,
)
from seqpoint.cli import cli
from seqpoint.validation.occupancy import (
    LEAST_PASSES,
    MeasuredPasses,
    errors_with_chosen_exponent,
    held_out_errors,
    occupancy_rows,
    read_passes,
)

ROOT = Path(__file__).parents[1]
DATA = ROOT.parent / "shared" / "data"
sys.path.insert(0, str(ROOT / "benchmarks" / "contention"))
A100, V100, H100, T4, MI300X, MI100 = (
    find_device(name) for name in ("A100-SXM4-80GB", "V100-SXM2-16GB", "H100-SXM5-80GB", "T4", "MI300X", "MI100")
)
#: What an error may grow by before it is worse, percentage points.
SLACK = 0.1


@pytest.mark.parametrize(
    ("device", "threads", "registers", "lds_bytes", "resident"),
    [
        (A100, 256, 32, 0, 8),  # 64 warps hold 8 workgroups of 8
        (A100, 32, 16, 0, 32),  # 64 warps, but 32 workgroups
        (A100, 33, 16, 0, 32),  # 2 warps each
        (A100, 256, 33, 0, 6),  # 1056 -> 1280 registers a warp, 12 in a quarter of 16384: 48 warps
        (A100, 128, 255, 0, 2),  # 8160 -> 8192 registers a warp, 2 in a quarter: 8 warps
        (A100, 1024, 65, 0, 0),  # 2304 x 32 warps exceed 65536
        (A100, 128, 0, 0, 16),
        (A100, 128, 32, 40960, 4),  # 41984 of 167936 bytes each, with the reserved 1 KB
        (A100, 128, 32, 32768, 4),  # 33792: 4.97
        (V100, 128, 32, 32768, 3),  # 98304 bytes, nothing reserved
        (V100, 128, 32, 32769, 2),  # 33024 in steps of 256
        (H100, 384, 168, 213196, 1),
        (T4, 1024, 32, 0, 1),
        (T4, 32, 16, 0, 16),
        (MI300X, 256, 128, 16384, 4),  # 128 registers: 4 waves a SIMD; LDS: 4
        (MI300X, 256, 129, 0, 3),  # 136 registers: 3 waves a SIMD
        (MI300X, 64, 64, 0, 32),
        (MI300X, 64, 64, 513, 32),  # 1024 bytes each
        (MI100, 64, 24, 0, 40),
        (MI100, 128, 24, 0, 16),  # 20 by waves, 16 by barriers
        (A100, 2048, 32, 0, 0),  # no workgroup is that large
    ],
)
def test_workgroups_fit_by_the_scarcest_resource(
    device: Device, threads: int, registers: int, lds_bytes: int, resident: int
) -> None:
    assert resident_workgroups(device, threads, registers=registers, lds_bytes=lds_bytes) == resident


def test_an_unknown_resource_sets_no_limit() -> None:
    ours = resident_workgroups(
        A100, [128, 128, 128, math.nan], registers=[255, math.nan, 255, 32], lds_bytes=[math.nan, 81920, 81920, 0]
    )
    assert ours[:3].tolist() == [2, 2, 2] and math.isnan(ours[3])
    assert resident_workgroups(A100, 128) == 16


def test_a_device_without_limits_and_a_negative_number_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="unit_threads"):
        resident_workgroups(Device("Mine", "NVIDIA", "Ampere", (), {}), 128)
    figures = {"unit_threads": RatedFigure(1024.0, "1", "a test", "published")}
    with pytest.raises(InvalidInputError, match="Mine: how a compute unit of Intel allocates is unknown"):
        resident_workgroups(Device("Mine", "Intel", "Xe", (), figures), 128)
    assert resident_workgroups(Device("Mine", "AMD", "CDNA 3", (), figures), 128, registers=512) == 8
    with pytest.raises(InvalidInputError, match="threads is 0; it must be at least 1"):
        resident_workgroups(A100, [128, 0])
    with pytest.raises(InvalidInputError, match="registers is -1; it must be at least 0"):
        resident_workgroups(A100, 128, registers=-1)


def test_every_shipped_device_has_limits() -> None:
    devices = load_devices().values()
    assert [device.name for device in devices if device.vendor not in ("NVIDIA", "AMD")] == ["Arc Pro B60"]
    for device in devices:
        if device.vendor == "Intel":
            with pytest.raises(InvalidInputError, match="how a compute unit of Intel allocates is unknown"):
                unit_limits(device)
            continue
        limits = unit_limits(device)
        assert limits.threads % limits.wave == 0 and limits.registers in (65536, 131072), device.name
        assert resident_workgroups(device, 256, registers=32, lds_bytes=1024) >= 4, device.name


@given(st.integers(1, 1024), st.integers(0, 255), st.integers(0, 2**17), st.sampled_from(["A100", "V100", "MI300X"]))
def test_more_of_a_resource_never_fits_more_often(threads: int, registers: int, lds: int, name: str) -> None:
    device = find_device(name)
    ours = resident_workgroups(device, threads, registers=registers, lds_bytes=lds)
    for more in ((threads + 32, registers, lds), (threads, registers + 1, lds), (threads, registers, lds + 512)):
        assert resident_workgroups(device, more[0], registers=more[1], lds_bytes=more[2]) <= ours


def test_the_law_goes_through_both_passes_and_between_its_bounds() -> None:
    law = fit_occupancy((1, 50.0), (16, 200.0), knee=2.0)
    assert law.time_ns([1, 16]) == pytest.approx([50, 200])
    assert law.workgroup_ns == pytest.approx(math.sqrt((200**2 - 50**2) / (16**2 - 1)))
    assert law.latency_ns == pytest.approx(math.sqrt(50**2 - law.workgroup_ns**2))
    assert law.time_ns(8) == pytest.approx(math.hypot(law.latency_ns, 8 * law.workgroup_ns))


def test_a_shorter_pass_with_more_workgroups_is_noise() -> None:
    law = fit_occupancy((1, 90.0), (8, 40.0))
    assert law.time_ns([1, 8, 32]) == pytest.approx([60, 60, 60])


def test_a_pass_beyond_proportion_has_no_latency() -> None:
    law = fit_occupancy((1, 10.0), (8, 160.0))
    assert law.latency_ns == 0 and law.time_ns([1, 8]) == pytest.approx([20, 160])


def test_a_fixed_time_counts_once_for_a_kernel() -> None:
    law = fit_occupancy((1, 112.0), (4, 412.0), fixed_ns=12.0, knee=1.0)
    assert (law.latency_ns, law.workgroup_ns) == pytest.approx((0, 100))
    assert law.kernel_ns(60 * 4, 60, resident=4) == pytest.approx(412)
    assert law.kernel_ns(60 * 9, 60, resident=4) == pytest.approx(12 + 400 + 400 + 100)
    assert law.kernel_ns(1, 60, resident=4) == pytest.approx(112)
    short = fit_occupancy((1, 5.0), (4, 10.0), fixed_ns=12.0)
    assert short.time_ns([1, 4]) == pytest.approx([12, 12])


@given(
    st.floats(1, 1e12),
    st.floats(1, 100),
    st.integers(2, 64),
    st.floats(1, 8),
    st.integers(1, 5000),
    st.integers(1, 300),
)
def test_time_grows_with_workgroups_and_falls_with_units(
    first: float, ratio: float, many: int, knee: float, workgroups: int, units: int
) -> None:
    law = fit_occupancy((1, first), (many, first * ratio), knee=knee)
    times = law.time_ns(np.arange(0, 2 * many))
    assert np.isfinite(times).all() and (np.diff(times) >= -1e-9 * times[1:]).all()
    per_workgroup = times[1:] / np.arange(1, 2 * many)
    assert (np.diff(per_workgroup) <= 1e-9 * per_workgroup[:-1]).all()
    kernel = law.kernel_ns(workgroups, units, resident=many)
    assert kernel >= law.kernel_ns(workgroups, units + 1, resident=many) * (1 - 1e-9)
    assert law.kernel_ns(workgroups + 1, units, resident=many) >= kernel * (1 - 1e-9)


@pytest.mark.parametrize(
    ("fewer", "more", "fixed", "knee"),
    [
        ((4, 10.0), (4, 20.0), 0.0, 2.0), ((8, 10.0), (4, 20.0), 0.0, 2.0), ((0, 10.0), (4, 20.0), 0.0, 2.0),
        ((1, 0.0), (4, 20.0), 0.0, 2.0), ((1, 10.0), (4, math.nan), 0.0, 2.0), ((1, 10.0), (4, math.inf), 0.0, 2.0),
        ((1, 10.0), (4, 20.0), -1.0, 2.0), ((1, 10.0), (4, 20.0), 0.0, 0.5),
    ],
)  # fmt: skip
def test_passes_that_give_no_law_are_refused(
    fewer: tuple[float, float], more: tuple[float, float], fixed: float, knee: float
) -> None:
    with pytest.raises(InvalidInputError, match=r"give"):
        fit_occupancy(fewer, more, fixed_ns=fixed, knee=knee)


def test_a_kernel_without_workgroups_or_units_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="0 workgroups on 60 units that hold 4: each must be at least 1"):
        OccupancyLaw(1.0, 1.0).kernel_ns(0, 60, resident=4)


HEADER = "model,kernel,workgroups_per_cu,latency_us"


def passes(kernel: str, law: OccupancyLaw, count: int = 10, model: str = "net") -> list[str]:
    return [f"{model},{kernel},{j},{float(law.time_ns(j)) / 1e3:.9f}" for j in range(1, count + 1)]


def write(folder: Path, *rows: str, header: str = HEADER) -> Path:
    path = folder / "passes.csv"
    path.write_text("\n".join((header, *rows)) + "\n")
    return path


def test_the_suite_scores_the_passes_between_the_first_and_the_last(tmp_path: Path) -> None:
    ours, other = OccupancyLaw(50e3, 9e3), OccupancyLaw(50e3, 9e3, knee=1.0)
    path = write(tmp_path, *passes("a", ours), *passes("b", other, model="net2"), *passes("short", ours, 7))
    validation = sp.validate("occupancy", path)
    rows = {row.case: row for row in validation.rows}
    assert rows["net/a: median of 8 passes"].error == pytest.approx(0, abs=1e-6)
    # Between 59 us at 1 and 140 us at 10, b is a line. b**1.5 = (140**1.5 - 59**1.5) / (10**1.5 - 1) for the law.
    busy = (140**1.5 - 59**1.5) / (10**1.5 - 1)
    errors = sorted(1 - (59**1.5 + busy * (j**1.5 - 1)) ** (2 / 3) / (50 + 9 * j) for j in range(2, 10))
    assert rows["net2/b: median of 8 passes"].error == pytest.approx((errors[3] + errors[4]) / 2, rel=1e-6)
    assert rows["all kernels: median of 16 passes"].limit == 0.15
    # Each of the two kernels is scored with the exponent of the other: 1 for a, 1.5 for b.
    chosen = rows["all kernels, exponent of the other models: median of 16 passes"]
    assert 0.03 < chosen.error < 0.06 and chosen.met
    (note,) = validation.results["occupancy"].notes
    assert note == "1 of 3 kernels are left out: fewer than 8 passes"
    shown = CliRunner().invoke(cli, ["validate", "occupancy", str(path), "--json"])
    content = json.loads(shown.stdout)
    assert len(content["rows"]) == len(rows) and content["scores"][0]["n"] == 2


def test_known_passes_are_not_scored() -> None:
    kernel = MeasuredPasses("", "k", np.arange(1.0, 10.0), np.arange(1.0, 10.0), "file")
    assert kernel.name == "k" and kernel.slowdown == 9

    def wrong_but_for_known(resident: np.ndarray, times: np.ndarray, known: tuple[int, int]) -> np.ndarray:
        return np.where(np.isin(np.arange(len(times)), known), times, 2 * times)

    assert held_out_errors(kernel, wrong_but_for_known).tolist() == [1.0] * 7
    assert held_out_errors(kernel, wrong_but_for_known, extrapolate=True).tolist() == [1.0] * 4


def test_a_table_without_models_and_with_rows_in_any_order_is_read(tmp_path: Path) -> None:
    rows = [row.removeprefix("net,") for row in passes("a", OccupancyLaw(50e3, 9e3))]
    (kernel,) = read_passes(write(tmp_path, *rows[::-1], header=HEADER.removeprefix("model,")))
    assert kernel.model == "" and kernel.resident.tolist() == list(range(1, 11))
    assert kernel.times_ns[0] == pytest.approx(1e3 * float(rows[0].split(",")[-1]))
    assert len(occupancy_rows([kernel])) == 5  # the kernel, and two medians of all and of the slowed


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("net,a,3,-1", "row 3: latency_us is -1; it must be finite and above zero"),
        ("net,a,3,", "row 3: latency_us is nan"),
        ("net,a,3,inf", "row 3: latency_us is inf"),
        ("net,a,2.5,10", "row 3: workgroups_per_cu is 2.5; it must be whole"),
        ("net,a,0,10", "row 3: workgroups_per_cu is 0"),
        ("net,a,99999,10", "row 3: workgroups_per_cu is 99999; it must be 1 to 4096"),
        ("net,a,2,10", "row 3: 'a' with 2 workgroups is in row 2 already; leave one"),
        ("net,a,3,many", "latency_us is 'many'; it must be a number"),
    ],
)
def test_a_value_that_cannot_be_is_an_error_with_its_row(tmp_path: Path, row: str, message: str) -> None:
    path = write(tmp_path, "net,a,1,10", "net,a,2,11", row)
    with pytest.raises(InvalidInputError, match=message):
        read_passes(path)


def test_damaged_files_are_errors(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no such file"):
        read_passes(tmp_path / "none.parquet")
    damaged = tmp_path / "damaged.parquet"
    damaged.write_bytes(b"PAR1 and then nothing")
    with pytest.raises(InvalidInputError, match=r"damaged.parquet: cannot be read as a table; give Parquet or CSV"):
        read_passes(damaged)
    with pytest.raises(InvalidInputError, match="there is no row"):
        read_passes(write(tmp_path))
    with pytest.raises(InvalidInputError, match="no column latency_us; needed are kernel"):
        read_passes(write(tmp_path, "net,a,1", header="model,kernel,workgroups_per_cu"))
    whole = tmp_path / "whole.parquet"
    columns = {"kernel": ["a"] * 9, "workgroups_per_cu": range(1, 10), "latency_us": [10] * 9}
    pq.write_table(pa.table({name: list(values) for name, values in columns.items()}), whole)
    assert len(read_passes(whole)[0].resident) == 9
    cut = tmp_path / "cut.parquet"
    cut.write_bytes(whole.read_bytes()[:-30])
    with pytest.raises(InvalidInputError, match=r"cut.parquet: cannot be read as a table"):
        read_passes(cut)


def test_a_table_without_enough_passes_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, *passes("a", OccupancyLaw(50e3, 9e3), 7))
    shown = CliRunner().invoke(cli, ["validate", "occupancy", str(path)])
    assert isinstance(shown.exception, InvalidInputError) and "passes.csv: no kernel has 8 passes" in str(
        shown.exception
    )


def table(name: str) -> list[dict[str, str]]:
    return list(csv.DictReader((ROOT / "tests" / "accuracy" / f"{name}.csv").read_text().splitlines()))


@pytest.mark.skipif(not DATA.is_dir(), reason=f"no measurements at {DATA}")
def test_errors_of_measured_passes_are_no_worse_than_the_table() -> None:
    from accuracy_of_occupancy import occupancy_table

    keys, errors = ("kernels of", "n", "known", "law"), ("median", "p90", "kernels")
    before = {tuple(row[key] for key in keys): row for row in table("occupancy")}
    after = {tuple(row[key] for key in keys): row for row in occupancy_table(DATA)}
    assert list(after) == list(before)
    for key, row in after.items():
        assert all(float(row[name]) <= float(before[key][name]) + SLACK for name in errors), (key, row)
    gated = [row for key, row in after.items() if f"exponent {KNEE:g}" in key[-1] and key[2] == "first and last"]
    assert len(gated) == 2 and all(float(row[name]) <= 15 for row in gated for name in ("median", "kernels"))


@pytest.mark.skipif(not DATA.is_dir(), reason=f"no measurements at {DATA}")
def test_the_exponent_does_not_depend_on_the_model_that_is_scored() -> None:
    from accuracy_of_occupancy import PASSES

    kernels = [kernel for kernel in read_passes(DATA / PASSES) if len(kernel.resident) >= LEAST_PASSES]
    shipped = [held_out_errors(kernel, predict) for kernel in kernels for predict in [_shipped]]
    for chosen, ours in zip(errors_with_chosen_exponent(kernels), shipped, strict=True):
        assert chosen == pytest.approx(ours)


def _shipped(resident: np.ndarray, times: np.ndarray, known: tuple[int, int]) -> np.ndarray:
    fewer, more = ((float(resident[i]), float(times[i])) for i in known)
    return fit_occupancy(fewer, more).time_ns(resident)


@pytest.mark.skipif(not DATA.is_dir(), reason=f"no traces at {DATA}")
def test_resident_workgroups_are_those_of_the_profiler_on_four_devices() -> None:
    from accuracy_of_occupancy import resident_table

    rows = resident_table(DATA)
    assert rows == table("resident")
    assert {row["other"] for row in rows} == {"0"} and {"H100-SXM5-80GB", "RTX 2080 Ti"} <= {r["device"] for r in rows}
