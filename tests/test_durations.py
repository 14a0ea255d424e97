"""Models of durations, their fits, and what is carried over to other devices."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from profilers.devices.catalogue import find_device, load_devices
from profilers.errors import InvalidInputError, NotFoundError, SeqPointError
from replay.costs.kernels import (
    MODELS,
    KernelCalibration,
    Machine,
    calibrate,
    load_calibration,
    predict,
    read_calibration,
    read_measurements,
    write_calibration,
)
from replay.costs.kernels.corrections import corrected_seconds, fit_correction
from replay.costs.kernels.fits import KERNEL_START_S, Fit, carry_over, fit
from replay.costs.kernels.machine import runs_as
from replay.costs.kernels.models import least_seconds
from replay.costs.kernels.predictor import ANY, ANY_HOT, Predicted
from seqpoint.cli import cli
from seqpoint.validation.kernels import kernel_rows, score_halves, score_kernels

A100, V100, P100, MI100 = (
    find_device(name) for name in ("A100-PCIE-40GB", "V100-PCIE-32GB", "P100-PCIE-16GB", "MI100")
)


def convolutions(rng: np.random.Generator, n: int) -> np.ndarray:
    """Images with kernels of 1 to 5, groups of 1 and all directions, of the fastest algorithm."""
    one, kernel = np.ones(n), rng.choice([1.0, 3, 5], n)
    images, sizes, channels = rng.integers(1, 64, n), rng.integers(8, 64, n), rng.integers(1, 128, (2, n)) * 8.0
    strides, padding = rng.integers(1, 3, n), (kernel - 1) / 2
    columns = (
        images, channels[0], one, sizes, sizes, channels[1], one, kernel, kernel, one, strides, strides, 0 * one,
        padding, padding, one, one, one, one, rng.integers(1, 4, n), one, 0 * one,
    )  # fmt: skip
    return np.column_stack(columns).astype(np.float64)


def layers(rng: np.random.Generator, n: int) -> np.ndarray:
    """Layers of experts: ranks are powers of two, which divide the experts and their width."""
    tokens, hidden, inter = (2.0 ** rng.integers(*bounds, n) for bounds in ((0, 14), (9, 14), (9, 14)))
    topk, experts, tensor, expert = (2.0 ** rng.integers(*bounds, n) for bounds in ((0, 4), (4, 9), (0, 4), (0, 5)))
    skew, gated = rng.choice([0, 1.01, 1.2], n), rng.integers(0, 2, n)
    return np.column_stack((tokens, hidden, inter, topk, experts, tensor, expert, skew, gated)).astype(np.float64)


def shapes(kind: str, n: int = 400, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if kind == "experts":
        return layers(rng, n)
    if kind == "convolution":
        return convolutions(rng, n)
    columns = {"batch": (1, 2) if kind == "matmul" else (1, 300), "arrays": (2, 4), "elements": (10**5, 10**8)}
    if kind.endswith("attention"):
        return attention_shapes(rng, n, context=kind.startswith("context"))
    needed = MODELS[kind].dims[: len(MODELS[kind].dims) - len(MODELS[kind].optional)]
    drawn = [rng.integers(*columns.get(name, (16, 6000)), n) for name in needed]
    return np.column_stack(drawn).astype(np.float64)


def attention_shapes(rng: np.random.Generator, n: int, *, context: bool) -> np.ndarray:
    """Attention over at least twice as many keys as queries, of groups of 4 or 8 heads, every other in a window."""
    tokens = 2.0 ** rng.integers(7, 14, n)
    queries = tokens / 2.0 ** rng.integers(1, 7, n) if context else np.ones(n)
    kv_heads = 2.0 ** rng.integers(0, 4, n)
    heads = kv_heads * 2.0 ** rng.integers(2, 4, n)  # a group of one head has a kernel of its own
    window = np.where(rng.random(n) < 0.5, 0.0, 128.0)
    return np.column_stack((2.0 ** rng.integers(0, 6, n), queries, tokens, heads, kv_heads, np.full(n, 128.0), window))


def synthetic(kind: str, machine: Machine, shift: float = 1.0, noise: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Durations as the model says with its priors, the first two parameters moved."""
    model, dims = MODELS[kind], shapes(kind)
    theta = np.exp(model.prior)
    theta[1] *= shift
    seconds = model.seconds(theta, model.tiles[0], dims, 4, machine)
    return dims, seconds * np.exp(noise * np.random.default_rng(1).standard_normal(len(seconds)))


@pytest.mark.parametrize("kind", list(MODELS))
def test_a_fit_finds_what_the_durations_were_made_with(kind: str) -> None:
    machine = Machine.of(A100)
    dims, seconds = synthetic(kind, machine, shift=0.9, noise=0.02)
    found = fit(kind, dims, seconds, 4, machine)
    assert found.rows == len(dims) and (found.spread < 0.1 if MODELS[kind].library else found.spread == 0.1)
    predicted = MODELS[kind].seconds(found.theta, found.tile, dims, 4, machine)
    assert np.mean(np.abs(predicted / seconds - 1)) < 0.03
    if len(MODELS[kind].tiles) == 1:
        assert found.values[1] == pytest.approx(
            0.9 * np.exp(MODELS[kind].prior[1]), rel=0.1 if MODELS[kind].trees else 0.05
        )


def test_a_large_product_runs_at_its_share_of_the_peak() -> None:
    model, machine = MODELS["matmul"], Machine.of(V100)
    theta = np.exp(model.prior)
    large = model.seconds(theta, (0, 0), np.array([[1.0, 8192, 8192, 1024]]), 4, machine)[0]
    share = 2 * 8192**2 * 1024 / large / machine.flops_per_s
    assert 0.85 < share < theta[1]


def test_streams_take_their_bytes_over_the_bandwidth() -> None:
    machine = Machine.of(A100)
    large, small = np.array([[1e9, 3.0]]), np.array([[1e5, 3.0]])
    seconds = (MODELS["elementwise"].seconds(np.array([1e-6, 0.5, 30]), (0, 0), n, 4, machine) for n in (large, small))
    cached_s = 1e5 * 3 * 4 / (30 * machine.compute_units * machine.clock_hz)
    memory_s = 1e9 * 3 * 4 / (0.5 * machine.memory_bytes_per_s)
    assert [float(each[0]) - 1e-6 for each in seconds] == pytest.approx([memory_s, cached_s], rel=1e-3)


def test_rows_that_stay_in_the_cache_are_read_once() -> None:
    """Far below the cache a normalisation moves its data twice, far above three times."""
    model, machine = MODELS["normalization"], Machine.of(A100)
    theta = np.array([1e-12, 1.0, 1.0, 9.0, 1e-9, 1e9, 9.0, 1e-9, 1e-9, 1e-9, 1e-9])
    small, large = np.array([[1e7, 64.0]]), np.array([[1e3, 1e8]])
    for dims, passes in ((small, 2), (large, 3)):
        moved = passes * dims.prod() * 4 / machine.memory_bytes_per_s
        assert model.seconds(theta, (0, 0), dims, 4, machine)[0] == pytest.approx(moved, rel=1e-3)


def test_rows_off_a_boundary_take_kernels_of_their_own() -> None:
    """Two kernels of a normalisation start twice; products take few FLOP a cycle, fewer for odd rows than for even."""
    known, device = load_calibration(), find_device("H100")
    odd, whole = predict("normalization", [[16.0, 1001], [16, 1000]], device, calibration=known).seconds
    assert odd > 1.5 * whole
    shapes = [[1, 4096, 4096, k] for k in (4096, 4098, 4095)]
    times = predict("matmul", shapes, device, dtype="bf16", calibration=known)
    rates = 2 * np.prod(shapes, axis=1) / times.seconds / (device.compute_units * Machine.of(device).clock_hz)
    assert rates[0] > 2000 > 900 > rates[1] > 700 > 500 > rates[2] > 400
    assert (times.high / times.seconds)[1] > (times.high / times.seconds)[0]  # nobody measured them for this fit


def test_the_start_of_a_kernel_is_not_that_of_a_launch() -> None:
    """Tables of FP32 operators hold launches. What is compared with them keeps the launch, a kernel does not."""
    known, tiny = load_calibration(), [[8.0, 8.0]]
    for kind in ("softmax", "normalization"):
        for device in (V100, find_device("L4"), find_device("H100")):
            kernel, launched = (predict(kind, tiny, device, calibration=known, launched=each) for each in (False, True))
            assert 2e-6 <= kernel.start_s <= 4e-6 and kernel.seconds[0] < 5e-6
            assert launched.start_s > 8e-6 or device.name == "H100-SXM5-80GB"
    both = predict("softmax", [[64.0, 64], [2**17, 4096]], V100, calibration=known)
    assert (both.high / both.seconds > 1.35).all()  # of kernels that no table shows


@pytest.mark.parametrize("kind", [kind for kind in MODELS if kind not in ("experts", "convolution")])  # have tests
def test_more_work_never_takes_less_time(kind: str) -> None:
    dims, dtype = shapes(kind, 200), "bf16" if "attention" in kind else "fp32"
    # What was measured on A100s corrects attention; measured times jump from size to size.
    without = ("A100-SXM4-80GB",) if "attention" in kind else ()
    aligned = np.maximum(dims // 128, 1) * 128 if kind != "elementwise" and "attention" not in kind else dims
    aligned[:, 0] = dims[:, 0]

    def seconds(dims: np.ndarray) -> np.ndarray:
        return predict(kind, dims, A100, dtype=dtype, calibration=load_calibration().without(*without)).seconds

    once = seconds(aligned)
    for column in range(aligned.shape[1]):
        twice = aligned.copy()
        twice[:, column] *= 2
        assert (seconds(twice) >= once * (1 - 1e-9)).all()


@pytest.mark.parametrize("kind", list(MODELS))
def test_every_device_of_the_catalogue_that_has_the_figures_is_predicted(kind: str) -> None:
    known, dtype = 0, "fp16" if MODELS[kind].types else "fp32"
    for device in load_devices().values():
        if {"l2_mb", "lds_kb", "compute_units", "memory_gbps"} <= set(device.figures):
            if dtype == "fp16" and "fp16_tflops" not in device.figures:
                continue
            found = predict(kind, shapes(kind, 20), device, dtype=dtype, calibration=load_calibration())
            assert (found.low > 0).all() and (found.low < found.seconds).all() and (found.seconds < found.high).all()
            known += 1
    assert known > 15


def test_a_device_that_was_fitted_is_carried_over_to_when_it_is_left_out() -> None:
    dims = shapes("matmul", 10)
    own, other = (
        predict("matmul", dims, A100, calibration=load_calibration()),
        predict("matmul", dims, A100, calibration=load_calibration().without(A100.name)),
    )
    assert (own.basis, other.basis) == ("fitted", "carried")
    assert (other.high / other.low > own.high / own.low).all()


def test_parameters_carry_over_as_the_weighted_median_of_devices_and_prior() -> None:
    def one(value: float) -> Fit:
        return Fit((1e-5, value, 32.0), (0, 0), 10, 0.1)

    donors = {V100.name: one(0.9), P100.name: one(0.6), MI100.name: one(0.7)}
    found = carry_over("elementwise", donors, Machine.of(A100))
    # Weights 0.01, 0.01, 0.5 (the prior of 0.85) and 1: half of 1.52 lies between the middles of the last two.
    between = (0.76 - 0.27) / (1.02 - 0.27)
    assert found.values == pytest.approx((KERNEL_START_S, 0.85 ** (1 - between) * 0.9**between, 32.0))
    assert carry_over("elementwise", donors, Machine.of(A100), launched=True).values[0] == pytest.approx(1e-5)
    outlier = carry_over("elementwise", {**donors, MI100.name: one(0.001)}, Machine.of(A100))
    assert outlier.values == pytest.approx(found.values)
    with pytest.raises(InvalidInputError, match="no device has a fit of elementwise"):
        carry_over("elementwise", {}, Machine.of(A100))


def test_siblings_go_first_with_their_corrections_and_the_basis_names_them() -> None:
    known, shape = load_calibration(), [[1, 4096, 4096, 4096]]
    h200 = predict("matmul", shape, find_device("H200"), dtype="fp8", calibration=known)
    assert (h200.basis, h200.relation, h200.devices) == ("carried", "sibling", ("H100-SXM5-80GB",))
    own = predict("matmul", shape, find_device("H100"), dtype="fp8", calibration=known)
    assert h200.seconds == pytest.approx(own.seconds, rel=0.1) and h200.high / h200.low > own.high / own.low
    related = {name: known.relatives(find_device(name))[0] for name in ("H100", "H20", "RTX 5090", "L40S", "MI325X")}
    assert related == {"H100": "fitted", "H20": "sibling", "RTX 5090": "sibling", "L40S": "family", "MI325X": "family"}
    assert known.relatives(find_device("Arc Pro B60"))[0] == "other"
    far = predict("matmul", shape, find_device("RTX PRO 6000"), dtype="bf16", library="trtllm",
                  calibration=known.without("RTX PRO 6000 Server"))  # fmt: skip
    assert far.relation == "other" and far.high / far.low > 1.3 * own.high / own.low


def test_a_table_of_kernels_goes_before_frameworks_on_its_device_and_siblings(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    dims = np.column_stack((np.ones(60), 8 * rng.integers(1, 500, (60, 3)))).astype(float)
    slow = 2 * predict("matmul", dims, find_device("H100"), dtype="bf16", calibration=load_calibration()).seconds
    columns = dict(zip("BMKN", dims.T.tolist(), strict=True)) | {"latency_ms": (1e3 * slow).tolist()}
    names = {"op": ["linear"] * 60, "device": ["H100"] * 60, "dtype": ["bf16"] * 60}
    pq.write_table(pa.table(names | columns), tmp_path / "mine.parquet")
    mine = calibrate(read_measurements(tmp_path / "mine.parquet"), load_calibration())
    for name, expected in (("H100", "fitted"), ("H200", "sibling"), ("B200", "fitted")):
        before, after = (predict("matmul", dims, find_device(name), dtype="bf16", calibration=each)
                         for each in (load_calibration(), mine))  # fmt: skip
        assert after.relation == expected
        ratio = float(np.exp(np.mean(np.log(after.seconds / before.seconds))))
        assert ratio == pytest.approx(1.0 if name == "B200" else 2.0, rel=0.15)
    named = predict("matmul", dims, find_device("H100"), dtype="bf16", library="trtllm", calibration=mine)
    assert named.seconds == pytest.approx(slow / 2)


@pytest.mark.parametrize(
    ("device", "dtype", "message"),
    [
        ("A100", "fp8", "A100-SXM4-80GB does not compute in fp8: the catalogue has no fp8_tflops. It has fp64, fp32"),
        ("V100", "int8", "V100-SXM2-16GB does not compute in int8"),
        ("H100", "fp8_block", "no model of matmul in fp8_block; there are fp64, fp32, tf32"),
    ],
)
def test_products_in_a_type_that_a_device_lacks_are_refused(device: str, dtype: str, message: str) -> None:
    for kind in ("matmul", "batched_matmul"):
        with pytest.raises(InvalidInputError, match=message.replace("matmul", kind)):
            predict(kind, [[1, 64, 64, 64]], find_device(device), dtype=dtype, calibration=load_calibration())


def test_products_have_the_libraries_that_were_measured_in_their_type() -> None:
    known, shape, device = load_calibration(), [[1, 512, 4096, 4096]], find_device("H100")
    times = {name: predict("matmul", shape, device, dtype="fp8", library=name, calibration=known)
             for name in ("trtllm", "vllm", "sglang", None)}  # fmt: skip
    assert len({float(each.seconds[0]) for each in times.values()}) == 3
    assert times[None].seconds == times["trtllm"].seconds and times[None].high > times["trtllm"].high
    with pytest.raises(InvalidInputError, match="nobody measured matmul of library 'torch'; there are sglang, trtllm"):
        predict("matmul", shape, device, dtype="fp8", library="torch", calibration=known)


def test_a_power_limit_takes_the_clock_of_matrix_units_too() -> None:
    shares = {}
    for name in ("T4", "L4", "V100", "A100", "H100", "B200", "L40S"):
        device = find_device(name)
        shares[name] = Machine.of(device, "fp16").flops_per_s / Machine.of(device, "fp16", power=False).flops_per_s
    assert shares["T4"] < 0.65 < shares["L4"] < 0.95
    assert all(shares[name] == 1.0 for name in ("V100", "A100", "H100", "B200", "L40S"))


def test_a_prior_that_says_little_does_not_outvote_a_device() -> None:
    priors = MODELS["matmul"].parameters
    fit = Fit(tuple(1.3 * parameter.prior for parameter in priors), (0, 0), 10, 0.1)
    found = carry_over("matmul", {V100.name: fit}, Machine.of(A100))
    shares = {p.name: np.log(value / p.prior) / np.log(1.3) for p, value in zip(priors, found.values, strict=True)}
    assert shares["efficiency"] < 0.8 < shares["far"]


def test_a_power_limit_takes_the_clock_of_products_and_leaves_that_of_memory() -> None:
    share = {}
    for name in ("V100-PCIE-32GB", "P4", "T4", "A100-PCIE-40GB", "A100-PCIE-80GB", "L4", "L40S"):
        device = find_device(name)
        share[name] = Machine.of(device).flops_per_s / device.flops_per_s("fp32")
    assert share["V100-PCIE-32GB"] == 1.0
    assert share["T4"] < 0.55 < 0.8 < share["P4"] < 0.9
    assert share["A100-PCIE-40GB"] < 0.9 < share["A100-PCIE-80GB"]  # 250 and 300 W, of one chip
    assert 1 / 3 < share["L4"] < 1 / 2 < share["L40S"] < 0.7
    assert Machine.of(MI100) == Machine.of(MI100, power=False)


def test_a_product_that_waits_for_memory_or_leaves_units_idle_keeps_its_clock() -> None:
    fitted = load_calibration().fits["matmul", "A100-PCIE-40GB", "fp32", ""]
    free, limited = (Machine.of(find_device("L4"), power=power) for power in (False, True))
    shapes = np.array([[1.0, 8192, 8192, 8192], [1.0, 16, 8192, 8192], [1.0, 64, 64, 8192]])
    slower = np.divide(*(fitted.seconds("matmul", shapes, 4, machine) for machine in (limited, free)))
    assert slower[0] > 1.8
    assert slower[1:] == pytest.approx(1.0, abs=0.05)


def test_more_power_never_makes_a_card_slower() -> None:
    figures = find_device("L4").figures
    rates = []
    for watt in (40, 72, 150, 300, 1000):
        power = {**figures, "power_w": replace(figures["power_w"], value=float(watt))}
        rates.append(Machine.of(replace(find_device("L4"), figures=power)).powered_flops_per_s)
    assert rates == sorted(rates)
    gains = np.diff(rates) / np.diff((40, 72, 150, 300, 1000))
    assert (np.diff(gains) <= 1e-3 * gains[0]).all()  # each watt buys less, as the voltage rises


def test_an_sm_of_128_lanes_issues_other_instructions_in_their_place() -> None:
    shares = {n: Machine.of(find_device(n), power=False).flops_per_s / find_device(n).flops_per_s("fp32")
              for n in ("H100", "A40", "B200", "A100", "T4", "P4")}  # fmt: skip
    assert shares == pytest.approx({"H100": 0.8, "A40": 0.8, "B200": 0.8, "A100": 1.0, "T4": 1.0, "P4": 1.0})


def test_matrix_units_do_not_sustain_their_peak() -> None:
    assert 0.6e12 < Machine.of(MI100).flops_per_s / MI100.value("fp32_matrix_tflops") < 0.8e12


@pytest.mark.parametrize(
    ("kind", "dims", "message"),
    [
        ("fft", [[1.0]], "no model of 'fft'; there are matmul"),
        ("softmax", [[1.0]], r"needs \(n, 2\): rows, columns"),
        ("softmax", [[4.0, 4.0], [0.0, 4.0]], r"dims\[1\] are \[0.0, 4.0\]"),
        ("softmax", [[4.0, np.nan]], "each must be 1 or more"),
    ],
)
def test_bad_operators_are_named(kind: str, dims: list, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        predict(kind, dims, A100, calibration=load_calibration())


def test_an_unknown_data_type_is_named() -> None:
    for kind, dims in (("quantization", [[4096, 4096, 16, 9]]), ("matmul", [[1, 64, 64, 64]])):
        with pytest.raises(InvalidInputError, match="data type 'potato' is none of fp64, fp32, "):
            predict(kind, dims, A100, calibration=load_calibration(), dtype="potato")


def table(folder: Path, name: str = "softmax.csv", rows: int = 40, **change: object) -> Path:
    """Softmax on two devices, as fast as the model says, with one cell changed."""
    lines = ["op,device,B,H,latency_ms"]
    for device in (A100, V100):
        dims = shapes("softmax", rows)
        model = MODELS["softmax"]
        seconds = model.seconds(np.exp(model.prior), model.tiles[0], dims, 4, Machine.of(device))
        pairs = zip(dims, seconds, strict=True)
        lines += [f"softmax,{device.name},{b:g},{h:g},{1e3 * t!r}" for (b, h), t in ((d, float(s)) for d, s in pairs)]
    if change:
        cells = dict(zip(lines[0].split(","), lines[3].split(","), strict=True)) | {
            k: str(v) for k, v in change.items()
        }
        lines[3] = ",".join(cells.values())
    path = folder / name
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_table_is_read_by_device(tmp_path: Path) -> None:
    found = read_measurements(table(tmp_path))
    assert [(one.kind, one.device.name, len(one)) for one in found] == [
        ("softmax", A100.name, 40),
        ("softmax", V100.name, 40),
    ]
    assert found[0].dims.tolist() == shapes("softmax", 40).tolist()
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 no")
    assert len(read_measurements(tmp_path)) == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"B": 0}, "row 3: B is 0; it must be finite and above zero"),
        ({"H": "nan"}, "row 3: H is nan"),
        ({"latency_ms": -1}, "row 3: latency_ms is -1"),
        ({"latency_ms": "fast"}, "latency_ms is 'fast'; it must be a number"),
        ({"op": "fft"}, "row 3: no operator 'fft'; there are linear, bmm"),
        ({"op": "linear"}, "row 3: no operator 'linear'"),
        ({"device": "Voodoo 2"}, "row 3: no device is called 'Voodoo 2'"),
    ],
)
def test_a_row_that_cannot_be_is_named(tmp_path: Path, change: dict, message: str) -> None:
    with pytest.raises(InvalidInputError) as error:
        read_measurements(table(tmp_path, **change))
    assert message in str(error.value) and "softmax.csv" in str(error.value)


def mixed_table(folder: Path, *rows: dict[str, object]) -> Path:
    """Write a table of products and rows of several types, as `benchmarks.gpu` records it."""
    names = ("op", "device", "B", "M", "N", "K", "H", "latency_ms", "dtype")
    base = dict.fromkeys(names) | {
        "op": "softmax",
        "device": "A100",
        "B": 64,
        "H": 32,
        "latency_ms": 0.5,
        "dtype": "bf16",
    }
    path = folder / "operators.parquet"
    pq.write_table(pa.Table.from_pylist([base | row for row in rows]), path)
    return path


PRODUCT = {"op": "linear", "B": 1, "M": 3, "N": 5, "K": 7, "H": None}


def test_a_table_may_hold_several_types_and_both_products_and_rows(tmp_path: Path) -> None:
    rows = ({}, PRODUCT, {"dtype": "fp32", "latency_ms": 1.0}, PRODUCT | {"dtype": "fp32"}, {"op": "add"})
    found = read_measurements(mixed_table(tmp_path, *rows))
    assert [(one.kind, one.dtype, one.element_bytes, one.dims.tolist()) for one in found] == [
        ("matmul", "bf16", 2, [[1, 3, 7, 5]]),
        ("matmul", "fp32", 4, [[1, 3, 7, 5]]),
        ("elementwise", "bf16", 2, [[64 * 32, 3]]),
        ("softmax", "bf16", 2, [[64, 32]]),
        ("softmax", "fp32", 4, [[64, 32]]),
    ]
    assert [one.seconds.tolist() for one in found] == [[0.5e-3]] * 4 + [[1e-3]]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"dtype": "int4"}, "row 2: no data type 'int4'; there are fp64, fp32"),
        ({"dtype": None}, "row 2: dtype is None; it must be text"),
        (PRODUCT | {"M": None}, "row 2: M is nan"),
        ({"H": None}, "row 2: H is nan"),
        ({"H": 0}, "row 2: H is 0"),
    ],
)
def test_a_row_of_a_mixed_table_that_cannot_be_is_named(tmp_path: Path, row: dict, message: str) -> None:
    with pytest.raises(InvalidInputError) as error:
        read_measurements(mixed_table(tmp_path, PRODUCT, row))
    assert message in str(error.value) and "operators.parquet" in str(error.value)


def test_types_are_fitted_apart(tmp_path: Path) -> None:
    sizes = [{"B": int(b), "H": int(h)} for b, h in shapes("softmax", 24)]
    times = {"fp32": 2.0, "bf16": 1.0}
    rows = [s | {"dtype": d, "latency_ms": t * s["B"] * s["H"] / 1e8} for d, t in times.items() for s in sizes]
    found = calibrate(read_measurements(mixed_table(tmp_path, *rows)))
    assert {dtype for _, _, dtype, _ in found.fits} == set(times) and all(one.rows == 24 for one in found.fits.values())


def test_files_that_are_no_tables(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("op,device\nadd,T4\n")
    (tmp_path / "b.parquet").write_bytes(b"nothing")
    for name, error, message in (
        ("a.csv", InvalidInputError, "needed are op, device, latency_ms"),
        ("b.parquet", InvalidInputError, "cannot be read as a table"),
        ("c.csv", NotFoundError, "no such file"),
        (".", NotFoundError, "no table of measured operators"),
    ):
        with pytest.raises(error, match=message):
            read_measurements(tmp_path / name)


def test_few_measurements_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="4 measurements; a fit needs ten or more"):
        calibrate(read_measurements(table(tmp_path, rows=4)))


def test_a_calibration_is_read_as_it_was_written(tmp_path: Path) -> None:
    found = calibrate(read_measurements(table(tmp_path)))
    assert set(found.carried) == {("softmax", one, "fp32", "") for one in (ANY, ANY_HOT)}
    write_calibration(tmp_path / "c.json", found)
    again = read_calibration(tmp_path / "c.json")
    assert again.digests == found.digests and set(again.fits) == set(found.fits)
    for key, one in found.fits.items():
        assert again.fits[key].values == pytest.approx(one.values, rel=1e-4) and again.fits[key].tile == one.tile


def test_the_shipped_fits_of_other_devices_are_kept(tmp_path: Path) -> None:
    base = load_calibration()
    found = calibrate(read_measurements(table(tmp_path)), base)
    assert found.fits["softmax", "T4", "fp32", ""] == base.fits["softmax", "T4", "fp32", ""]
    assert found.fits["softmax", A100.name, "fp32", ""] != base.fits["softmax", A100.name, "fp32", ""]
    assert set(base.digests) < set(found.digests)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"fits": [], "carried": [], "fitted_files_sha256": []}',
        '{"kind": "kernels", "version": 1, "devices": [], "source": "", "fit": {"fits": [{}]}}',
        '{"kind": "kernels", "version": 2, "devices": [], "source": "", "fit": {}}',
        '{"kind": "training", "version": 1, "devices": [], "source": "", "fit": {}}',
        "[" * 99999,
    ],
)
def test_a_damaged_calibration_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "c.json").write_text(text)
    with pytest.raises(InvalidInputError, match="not what `seqpoint calibrate kernels` writes"):
        read_calibration(tmp_path / "c.json")


def test_a_parameter_of_zero_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    write_calibration(path, calibrate(read_measurements(table(tmp_path))))
    content = json.loads(path.read_text())
    content["fit"]["fits"][0]["parameters"]["memory"] = 0
    path.write_text(json.dumps(content))
    with pytest.raises(SeqPointError, match=r"memory of softmax on .* is 0; it lies within"):
        read_calibration(path)


PROFILE = {
    "time_stats.emb.median": 0.05, "time_stats.attn_pre_proj.median": 0.4, "time_stats.mlp_act.median": 0.02,
    "n_head": 8, "n_kv_head": 2, "n_embd": 1024, "n_expanded_embd": 4096, "vocab_size": 1000, "use_gated_mlp": True,
    "num_tokens": 128, "num_tensor_parallel_workers": 2,
}  # fmt: skip


def profile(folder: Path, name: str = "vidur_a100_x.parquet", **changes: object) -> Path:
    rows = [PROFILE, {**PROFILE, **changes}]
    pq.write_table(pa.Table.from_pylist(rows), folder / name)
    return folder / name


def test_a_profile_is_read_by_operator(tmp_path: Path) -> None:
    found = {one.kind: one for one in read_measurements(profile(tmp_path))}
    assert set(found) == {"matmul", "gated_activation", "embedding"}
    assert {(one.dtype, one.element_bytes, one.device.name) for one in found.values()} == {
        ("fp16", 2, "A100-SXM4-80GB")
    }
    # Two of four heads of 128 for queries, one each for keys and values: 512 + 2 * 128 columns on each of two ranks.
    assert found["matmul"].dims[0].tolist() == [1, 128, 768, 1024]
    assert found["matmul"].seconds[0] == 0.4e-3
    assert found["gated_activation"].dims[0].tolist() == [128 * 2048, 3]
    other = profile(tmp_path, "profile.parquet")
    assert read_measurements(other, device="H100")[0].device.name == "H100-SXM5-80GB"  # its name says none


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("a100.parquet", {"num_tokens": 0}, "row 2: num_tokens is 0"),
        ("a100.parquet", {"n_head": 3}, "row 2: n_embd by n_head is no whole number"),
        ("a100.parquet", {"num_tensor_parallel_workers": 3}, "row 2: n_head by ranks is no whole number"),
        ("a100.parquet", {"time_stats.emb.median": -1.0}, "row 2: time_stats.emb.median is below zero"),
        ("profile.parquet", {}, "its name has no device"),
        ("a100_t4.parquet", {}, "its name has more than one device"),
    ],
)
def test_a_profile_that_cannot_be_is_named(tmp_path: Path, name: str, changes: dict, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message) as error:
        read_measurements(profile(tmp_path, name, **changes))
    assert name in str(error.value)


def test_sweeps_are_read(tmp_path: Path) -> None:
    texts = {"matmul": "64, 128, 256, 0.5000ms, 8.4Tflops", "softmax": "4, 1000, 2.0", "gelu": "1000, 0.5"}
    for kind, text in texts.items():
        (tmp_path / f"llmcompass_a100_{kind}.csv").write_text(text + "\n")
    found = {one.kind: (one.dims.tolist(), one.seconds.tolist()) for one in read_measurements(tmp_path)}
    assert found["matmul"] == ([[1, 64, 128, 256]], [0.5e-3])
    assert found["softmax"] == ([[4, 1000]], [pytest.approx(4000 / 2e9)])
    assert found["elementwise"] == ([[1000, 2]], [pytest.approx(1000 / 0.5e9)])


@pytest.mark.parametrize(
    "text", ["64, 128, 256", "64, 128, 0, 0.5ms, 1Tflops", "a, b, c, d, e", "64, 128, 256, nan, 1", ""]
)
def test_a_sweep_that_cannot_be_is_named(tmp_path: Path, text: str) -> None:
    file = tmp_path / "llmcompass_a100_matmul.csv"
    file.write_text("64, 128, 256, 0.5000ms, 8.4Tflops\n" + text + "\n")
    with pytest.raises(InvalidInputError, match=r"matmul\.csv: row 2: .*columns are M, N, K, time in ms, TFLOP/s"):
        read_measurements(file)


def test_a_type_without_fits_uses_those_of_the_same_units() -> None:
    known = load_calibration()
    assert (known.like("matrix_matmul", "fp16"), known.like("matmul", "fp64")) == ("bf16", "fp32")
    assert (known.like("batched_matmul", "fp16"), known.like("rotary", "fp32")) == ("fp32", "fp16")
    shape = [[1.0, 4096, 4096, 4096]]
    a100 = find_device("A100-SXM4-80GB")
    half, brain, single = (
        predict("matmul", shape, a100, dtype=d, calibration=load_calibration()) for d in ("fp16", "bf16", "fp32")
    )
    assert (half.basis, half.relation, brain.basis) == ("carried", "fitted", "fitted")
    assert brain.seconds == pytest.approx(half.seconds, rel=0.2) and brain.seconds < single.seconds / 5


def test_a_card_that_runs_into_its_limit_has_the_wider_interval() -> None:
    known = load_calibration()
    wide, narrow = (known.carried["matmul", one, "fp32", ""] for one in (ANY_HOT, ANY))
    assert wide > 1.05 * narrow
    for name, spread in (("L4", wide), ("A10", narrow)):
        found = predict("matmul", [[1.0, 4096, 4096, 4096]], find_device(name), calibration=known, launched=True)
        assert found.high[0] / found.seconds[0] == pytest.approx(np.exp(spread), rel=0.01)


def test_halves_are_scored_on_what_they_were_not_fitted_on(tmp_path: Path) -> None:
    measured = read_measurements(table(tmp_path, rows=60))
    found = score_halves(measured)
    assert [(s.basis, s.device, s.rows) for s in found] == [("halves", A100.name, 60), ("halves", V100.name, 60)]
    assert all(s.error < 0.05 for s in found)
    noise = replace(measured[0], seconds=np.random.default_rng(0).lognormal(-9, 1, 60))
    assert score_halves([noise])[0].error > 0.3  # each half knows nothing of the other
    assert score_halves([replace(measured[0], dims=measured[0].dims[:12], seconds=measured[0].seconds[:12])]) == []


def test_one_device_alone_is_scored_with_its_own_fit(tmp_path: Path) -> None:
    measured = read_measurements(table(tmp_path))[:1]
    assert [s.basis for s in score_kernels(measured, calibrate(measured))] == ["fitted"]


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("fits", 0, "rows"), float("inf"), "JSON is malformed"),
        (("fits", 0, "rows"), 1.5, r"fit.fits\[0\].rows: Expected `int`, got `float`"),
        (("fits", 0, "tile"), [0, 1], r"the tile of softmax on .* is \(0, 1\); there are \(1, 1024\)"),
        (("fits", 0, "tile"), [1.5, 1], r"fit.fits\[0\].tile\[0\]: Expected `int`, got `float`"),
        (("fits", 0, "spread"), -5, r"fit.fits\[0\].spread: Expected `float` >= 0.0"),
        (("fits", 0, "spread"), float("nan"), "JSON is malformed"),
        (("fits", 0, "device"), "foo", "no device is called 'foo'"),
        (("fits", 0, "kind"), "fft", "no model of 'fft'; there are"),
        (("fits", 0, "dtype"), "fp3", "data type 'fp3' is none of"),
        (("fits", 0, "parameters", "memory"), 1e9, "memory of softmax on .* is 1e"),
        (("fits", 0, "parameters", "memory"), 10**400, r"fit.fits\[0\].parameters"),
        (("carried", 0, "spread"), 1000, r"fit.carried\[0\].spread: Expected `float` <= 10.0"),
    ],
)
def test_a_calibration_that_cannot_be_is_named(tmp_path: Path, place: tuple, value: object, message: str) -> None:
    path = tmp_path / "c.json"
    write_calibration(path, calibrate(read_measurements(table(tmp_path))))
    content = json.loads(path.read_text())
    inner = content["fit"]
    for step in place[:-1]:
        inner = inner[step]
    inner[place[-1]] = value
    path.write_text(json.dumps(content))
    with pytest.raises(InvalidInputError, match=message) as error:
        read_calibration(path)
    assert str(path) in str(error.value) and len(str(error.value)) < 500


@pytest.mark.parametrize("dims", [[["a", "b"]], [[1.0], [1.0, 2.0]], [[10**400, 1]], [[1e300, 1]], [[None, 1]]])
def test_shapes_that_are_none_are_refused(dims: list) -> None:
    with pytest.raises(InvalidInputError, match="dims"):
        predict("softmax", dims, A100, calibration=load_calibration())


@pytest.mark.parametrize("size", [0, -1, np.nan, 17])
def test_elements_have_some_bytes(size: float) -> None:
    with pytest.raises(InvalidInputError, match="elements of"):
        predict("softmax", [[4.0, 4.0]], A100, element_bytes=size, calibration=load_calibration())


def test_a_column_that_occurs_twice_is_named(tmp_path: Path) -> None:
    path = tmp_path / "twice.csv"
    path.write_text("op,device,latency_ms,latency_ms,B,H\nln,T4,1,1,4,4\n")
    with pytest.raises(InvalidInputError, match=r"twice\.csv: column latency_ms occurs more than once"):
        read_measurements(path)


@pytest.mark.parametrize("name", ["llmcompass_a100_gelu.csv", "llmcompass_a100_matmul.csv"])
def test_an_empty_sweep_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("")
    with pytest.raises(InvalidInputError, match=rf"{name}: there is no row"):
        read_measurements(tmp_path / name)


@pytest.mark.parametrize(("column", "value"), [("use_gated_mlp", "yes"), ("time_stats.emb.median", "abc")])
def test_a_profile_with_words_for_numbers_is_named(tmp_path: Path, column: str, value: str) -> None:
    path = tmp_path / "a100.parquet"
    pq.write_table(pa.Table.from_pylist([{**PROFILE, column: value}]), path)
    with pytest.raises(InvalidInputError, match=rf"a100\.parquet: column {column}"):
        read_measurements(path)


@pytest.mark.parametrize(
    "kind", [kind for kind in MODELS if kind != "convolution"]
)  # tests/test_convolutions.py has it
@pytest.mark.parametrize("dtype", ["fp64", "fp32", "tf32", "bf16", "fp16"])
def test_nothing_is_promised_that_the_data_sheet_forbids(kind: str, dtype: str) -> None:
    large = {"batch": 4.0, "m": 4096.0, "n": 4096.0, "k": 2048.0, "rows": 2.0**17, "columns": 4096.0,
             "elements": 2.0**30, "arrays": 3.0, "sequences": 64.0, "query_tokens": 4096.0, "kv_tokens": 8192.0,
             "query_heads": 32.0, "kv_heads": 8.0, "head_dim": 128.0, "window": 0.0, "tokens": 8192.0, "hidden": 4096.0,
             "inter": 8192.0, "topk": 2.0, "experts": 8.0, "tensor_parallel": 1.0, "expert_parallel": 1.0, "skew": 0.0,
             "gated": 1.0, "source_bytes": 2.0, "target_bits": 8.0}  # fmt: skip
    dims = np.array([[large[name] for name in MODELS[kind].dims]])
    for device in load_devices().values():
        try:
            found = predict(kind, dims, device, dtype=dtype, calibration=load_calibration())
        except InvalidInputError as error:
            assert any(text in str(error) for text in ("fp64", "l2_mb", "lds_kb", f"no {dtype}_tflops", f"in {dtype};"))
            continue
        machine = Machine.of(device, dtype)
        least = least_seconds(kind, dims, {"fp64": 8, "fp32": 4, "tf32": 4}.get(dtype, 2), machine)[0]
        assert least * 0.999 <= found.low[0] <= found.seconds[0] <= found.high[0], device.name


def test_what_a_device_has_no_units_for_takes_the_time_of_fp32() -> None:
    shape = [[1.0, 4096.0, 4096.0, 4096.0]]
    for name in ("P4", "GTX 1080 Ti", "MI100", "MI210", "T4"):
        device = find_device(name)
        missing = [one for one in ("tf32", "bf16", "fp16") if runs_as(device, one) == "fp32"]
        assert missing
        for one in missing:
            half, single = (
                predict("matmul", shape, device, dtype=d, element_bytes=4, calibration=load_calibration())
                for d in (one, "fp32")
            )
            assert half.seconds[0] == single.seconds[0], (name, one)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(one) for one in arguments])


def test_calibrate_then_validate(tmp_path: Path) -> None:
    measured = table(tmp_path)
    done = run("calibrate", "kernels", measured, "-o", tmp_path / "mine.json", "--fresh")
    assert done.exit_code == 0 and "A100-PCIE-40GB" in done.stdout
    found = run("validate", "kernels", measured, "--calibration", tmp_path / "mine.json", "--json", "--gate")
    content = json.loads(found.stdout)
    assert found.exit_code == 0
    by_case = {row["case"]: row for row in content["rows"]}
    assert by_case["softmax, A100-PCIE-40GB, fp32, fitted"]["error"] < 0.02
    assert by_case["softmax, A100-PCIE-40GB, fp32, fitted"]["fitted"] is True
    assert by_case["softmax, A100-PCIE-40GB, fp32, carried"]["fitted"] is False
    assert run("validate", "kernels", measured).exit_code == 0


def test_a_limit_that_is_missed_fails_the_gate(tmp_path: Path) -> None:
    measured = read_measurements(table(tmp_path))
    slow = [replace(one, seconds=3 * one.seconds, digest="") for one in measured]
    names = ("P100-PCIE-16GB", "MI100", "T4", "P4")
    slow += [replace(slow[0], device=find_device(name)) for name in names]
    rows = {row.case: row for row in kernel_rows(score_kernels(slow))}
    row = rows["softmax, carried: mean over 6 devices"]
    assert row.limit == 0.15 and row.met is False and row.error > 0.3
    assert "softmax, carried: mean over 6 devices" not in {r.case for r in kernel_rows(score_kernels(slow[:5]))}


def test_no_fits_at_all(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="run `seqpoint calibrate kernels`"):
        predict("softmax", [[8.0, 8.0]], A100, calibration=KernelCalibration({}, {}))


def framework_table(folder: Path, end: str = "gemm", **changes: object) -> Path:
    """Write a table of operators inside frameworks: 24 products on an A100, of which one cell may be changed."""
    sizes = [2**power for power in range(4, 12)] * 3
    dtypes = ["bfloat16"] * 16 + ["fp8_block"] * 8
    columns = {
        "system": ["a100_sxm"] * 24, "framework": ["trtllm"] * 8 + ["vllm"] * 16, "dtype": dtypes,
        "m_elements": sizes, "n_elements": [4096] * 24, "k_elements": [1024] * 24,
        "latency_us": [5.0 + size / 100 for size in sizes],
    }  # fmt: skip
    for name, value in changes.items():
        columns[name][1] = value
    pq.write_table(pa.table(columns), folder / f"aic_{end}.parquet")
    return folder / f"aic_{end}.parquet"


def test_operators_of_frameworks_are_read_by_framework_and_type(tmp_path: Path) -> None:
    found = read_measurements(framework_table(tmp_path))
    assert [(one.kind, one.library, one.dtype, one.device.name, len(one)) for one in found] == [
        ("matrix_matmul", "trtllm", "bf16", "A100-SXM4-80GB", 8),
        ("matrix_matmul", "vllm", "bf16", "A100-SXM4-80GB", 8),
    ]
    assert found[0].dims[0].tolist() == [1, 16, 4096, 1024] and found[0].seconds[0] == pytest.approx(5.16e-6)
    kept = read_measurements(tmp_path, library="vllm")
    assert [one.library for one in kept] == ["vllm"]
    quantized = read_measurements(framework_table(tmp_path, "quant_scale_matrix"))[0]
    assert (quantized.kind, quantized.dims[0].tolist()) == ("quantization", [16, 1024])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"latency_us": -1.0}, "row 2: latency_us is -1"),
        ({"m_elements": 0}, "row 2: m_elements is 0"),
        ({"dtype": "int3"}, "row 2: no data type 'int3'"),
        ({"system": "a1000_sxm"}, "row 2: .*a1000"),
    ],
)
def test_a_table_of_a_framework_that_cannot_be_is_named(tmp_path: Path, changes: dict, message: str) -> None:
    with pytest.raises(InvalidInputError, match=rf"aic_gemm\.parquet: {message}"):
        read_measurements(framework_table(tmp_path, **changes))


def test_libraries_are_fitted_apart(tmp_path: Path) -> None:
    measured = read_measurements(framework_table(tmp_path))
    slower = [replace(one, seconds=one.seconds * (2 if one.library == "vllm" else 1)) for one in measured]
    found = calibrate([replace(one, dims=np.tile(one.dims, (2, 1)), seconds=np.tile(one.seconds, 2)) for one in slower])
    device, shape = measured[0].device, [[1.0, 256, 4096, 1024]]

    def seconds(library: str | None) -> float:
        return float(predict("matmul", shape, device, dtype="bf16", calibration=found, library=library).seconds[0])

    assert seconds(None) == seconds("trtllm") and seconds("vllm") > 1.5 * seconds("trtllm")
    with pytest.raises(InvalidInputError, match=r"nobody measured matmul of library 'sglang'; there are trtllm, vllm"):
        seconds("sglang")
    with pytest.raises(InvalidInputError, match=r"nobody measured softmax of library 'vllm'; there are none; leave"):
        predict("softmax", [[1, 1]], A100, calibration=load_calibration(), library="vllm")
    write_calibration(tmp_path / "mine.json", found)
    assert set(read_calibration(tmp_path / "mine.json").fits) == set(found.fits)
    alone = calibrate([one for one in slower if one.library == "vllm" for _ in range(2)])
    assert predict("matmul", shape, device, dtype="bf16", calibration=alone).basis == "fitted"  # no default was fitted


def attention_table(folder: Path, **changes: object) -> Path:
    """Write a table of prompts' attention inside frameworks: 12 on an H100, of which one cell may be changed."""
    columns = {
        "system": ["h100_sxm"] * 12, "framework": ["sglang"] * 12, "kernel_source": ["fa3"] * 8 + ["triton"] * 4,
        "dtype": ["bfloat16"] * 10 + ["fp8"] * 2, "kv_cache_dtype": ["bfloat16"] * 4 + ["fp8"] * 8,
        "batch_sequences": [2] * 12, "query_tokens": [64] * 12, "prefix_tokens": [0, 32] * 6,
        "q_heads_count": [8] * 12, "kv_heads_count": [2] * 12, "head_dim_elements": [128] * 12,
        "window_tokens": [0] * 11 + [128], "latency_us": [10.0 + i for i in range(12)],
    }  # fmt: skip
    for name, value in changes.items():
        columns[name][1] = value
    pq.write_table(pa.table(columns), folder / "aic_context_attention.parquet")
    return folder / "aic_context_attention.parquet"


def test_attention_is_read_by_type_of_its_cache_and_by_backend(tmp_path: Path) -> None:
    found = read_measurements(attention_table(tmp_path))
    assert {(one.library, one.dtype): len(one) for one in found} == {
        ("sglang", "bf16"): 4, ("sglang", "bf16_kv_fp8"): 4, ("sglang_triton", "bf16_kv_fp8"): 2,
        ("sglang_triton", "fp8"): 2,
    }  # fmt: skip
    # sequences, query tokens, KV tokens, query heads, KV heads, head dimension, window
    assert found[0].dims[1].tolist() == [2, 64, 96, 8, 2, 128, 0] and found[0].seconds[1] == pytest.approx(11e-6)
    assert {one.kind for one in found} == {"context_attention"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prefix_tokens": -1}, "row 2: prefix_tokens is -1"),
        ({"window_tokens": -1}, "row 2: window_tokens is -1"),
        ({"kv_cache_dtype": "fp4"}, "row 2: no attention in bfloat16 with a KV cache in fp4"),
    ],
)
def test_attention_that_cannot_be_read_is_named(tmp_path: Path, changes: dict, message: str) -> None:
    with pytest.raises(InvalidInputError, match=rf"aic_context_attention\.parquet: {message}"):
        read_measurements(attention_table(tmp_path, **changes))


@pytest.mark.parametrize(
    ("shape", "dtype", "message"),
    [
        ([1, 128, 64, 8, 8, 128, 0], "bf16", r"dims\[0\] .*the KV cache must hold the queries"),
        ([1, 128, 128, 8, 3, 128, 0], "bf16", "query_heads must be a multiple of kv_heads"),
        ([1, 128, 128, 8, 8, 0, 0], "bf16", r"each must be 1 or more \(window 0 or more\)"),
        ([1, 128, 128, 8, 8, 128, 0], "fp8", "A100-SXM4-80GB does not compute in fp8"),
        ([1, 128, 128, 8, 8, 128, 0], "bf16_kv_fp8", "A100-SXM4-80GB does not compute in fp8"),
        ([1, 128, 128, 8, 8, 128, 0], "fp32", "no model of context_attention in fp32; there are bf16"),
    ],
)
def test_attention_that_cannot_be_is_refused(shape: list, dtype: str, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        predict(
            "context_attention", [shape], find_device("A100-SXM4-80GB"), dtype=dtype, calibration=load_calibration()
        )


def attention(device: str, *shapes: list, kind: str = "context_attention", dtype: str = "bf16") -> np.ndarray:
    model, machine = MODELS[kind], Machine.of(find_device(device), dtype)
    tile = model.tiles[0] if kind == "generation_attention" else (128, 0)
    return model.seconds(np.exp(model.prior), tile, np.array(shapes, dtype=np.float64), 2, machine)


def test_a_window_and_a_mask_save_what_they_hide() -> None:
    """Four times the tokens cost 16 times as much, in a window 4 times; a cached prefix costs what it adds."""
    short, long = [4, 32768, 32768, 32, 8, 128, 0], [4, 131072, 131072, 32, 8, 128, 0]
    times = attention("H100", short, long, [*short[:6], 1024], [*long[:6], 1024], [4, 32768, 65536, 32, 8, 128, 0])
    assert times[1] / times[0] == pytest.approx(16, rel=0.05) and times[3] / times[2] == pytest.approx(4, rel=0.05)
    assert times[4] / times[0] == pytest.approx(3, rel=0.05)  # half a square, and a whole one beside it


def test_exponentials_bound_narrow_heads_of_blackwell() -> None:
    """Half the head dimension saves a third on an H100, less on a B200, whose exponentials are no faster."""
    wide, narrow = [8, 16384, 16384, 32, 8, 128, 0], [8, 16384, 16384, 32, 8, 64, 0]
    h100, b200 = (np.divide(*attention(device, wide, narrow)) for device in ("H100", "B200"))
    assert 1.1 < b200 < h100 - 0.1 < 1.9


def test_a_large_cache_moves_at_the_bandwidth_and_few_heads_share_it() -> None:
    shape = [64, 1, 32768, 32, 8, 128, 0]
    times = attention("H200", shape, [1, *shape[1:]], kind="generation_attention")
    moved = 64 * 32768 * 2 * 8 * 128 * 2
    assert 0.72 < moved / times[0] / find_device("H200").memory_bytes_per_s < 0.95
    # One sequence has 8 groups for 132 units: split, it takes far less than one unit's share of the bandwidth.
    assert times[1] < 5 * times[0] / 64


def test_groups_share_their_cache() -> None:
    grouped, alone = attention("H100", [64, 1, 8192, 32, 4, 128, 0], [64, 1, 8192, 32, 32, 128, 0],
                               kind="generation_attention")  # fmt: skip
    assert alone / grouped > 6


def test_attention_of_an_unmeasured_device_takes_the_fits_of_its_architecture() -> None:
    shape = [[1, 4096, 4096, 32, 8, 128, 0]]
    known = load_calibration()
    h100, h200 = (predict("context_attention", shape, find_device(name), dtype="bf16", calibration=known)
                  for name in ("H100", "H200"))  # fmt: skip
    assert (h100.basis, h200.basis) == ("fitted", "carried")
    assert h200.seconds[0] == pytest.approx(h100.seconds[0], rel=0.08)  # the same units, and more bandwidth
    fp8 = predict("context_attention", shape, find_device("H200"), dtype="fp8", calibration=known)
    assert 0.4 < fp8.seconds[0] / h200.seconds[0] < 0.9


def test_a_product_is_timed_by_the_fit_of_its_units() -> None:
    """On NVIDIA's devices BF16 takes the fit of matrix units; FP32, and AMD's devices, the general one."""
    shapes = [[1.0, 16, 8192, 8192]]

    def seconds(kind: str, name: str, dtype: str) -> float:
        return float(predict(kind, shapes, find_device(name), dtype=dtype, calibration=load_calibration()).seconds[0])

    for name in ("H100", "H200", "L40S", "GB200"):
        assert (
            seconds("matmul", name, "bf16") == seconds("matrix_matmul", name, "bf16") != seconds("matmul", name, "fp32")
        )
    assert seconds("matmul", "MI300X", "bf16") != seconds("matrix_matmul", "MI300X", "bf16")


def test_few_rows_take_the_time_of_the_weights() -> None:
    """Weights in 8 and 4 bits are read in less time; 4096 rows compute in 16 bits all the same."""
    device = find_device("A100-SXM4-80GB")
    times = {
        dtype: predict("matmul", [[1.0, 16, 16384, 16384], [1.0, 4096, 16384, 16384]], device, dtype=dtype,
                       calibration=load_calibration()).seconds
        for dtype in ("bf16", "int8_wo", "int4_wo")
    }  # fmt: skip
    assert times["int4_wo"][0] < times["int8_wo"][0] < 0.7 * times["bf16"][0]
    assert 0.8 < times["int8_wo"][1] / times["bf16"][1] < 1.3
    for name, dtype in (("A100", "nvfp4"), ("V100", "int8")):
        with pytest.raises(InvalidInputError, match=f"does not compute in {dtype}: the catalogue has no"):
            predict("matmul", [[1.0, 16, 64, 64]], find_device(name), dtype=dtype, calibration=load_calibration())


def test_quantization_to_another_format_takes_the_time_of_its_bytes() -> None:
    """FP32 to the 9 bits of MX9 moves 5.125 bytes an element, BF16 to FP8 moves 3."""

    def quantized(*formats: float) -> Predicted:
        shape = [[65536.0, 16384.0, *formats]]
        return predict("quantization", shape, find_device("B200"), dtype="fp8", calibration=load_calibration())

    eight, same, nine = quantized(), quantized(2, 8), quantized(4, 9)
    assert (eight.basis, same.basis, nine.basis) == ("fitted", "fitted", "carried")
    assert same.seconds[0] == eight.seconds[0]
    assert nine.seconds[0] / eight.seconds[0] == pytest.approx(5.125 / 3, rel=0.01)
    assert nine.high[0] / nine.seconds[0] > eight.high[0] / eight.seconds[0]
    with pytest.raises(InvalidInputError, match=r"1 to 8 bytes before \(source_bytes\) and 1 to 64 bits after"):
        quantized(2, 128)


@pytest.mark.parametrize("library", ["trtllm", "vllm"])
def test_a_device_without_fp8_quantizes_at_its_bandwidth(library: str) -> None:
    device, shape = find_device("A100"), [[65536.0, 8192.0]]
    fp8, int8 = (
        predict("quantization", shape, device, dtype=dtype, library=library, calibration=load_calibration())
        for dtype in ("fp8", "int8")
    )
    assert (fp8.basis, int8.basis) == ("carried", "carried") and fp8.seconds[0] == int8.seconds[0]
    assert 0.7 < 3 * np.prod(shape[0]) / fp8.seconds[0] / device.memory_bytes_per_s < 0.95


def test_libraries_quantize_by_different_kernels() -> None:
    """vLLM gives a row to a workgroup, and SGLang moves seven times the bytes of one kernel."""
    shapes = [[1.0, 65536], [256, 256], [16384, 4], [65536, 8192]]
    row, square, column, large = {}, {}, {}, {}
    for library in ("trtllm", "vllm", "sglang"):
        row[library], square[library], column[library], large[library] = predict(
            "quantization", shapes, find_device("H100"), dtype="fp8", library=library, calibration=load_calibration()
        ).seconds
    assert min(row["vllm"], column["vllm"]) > 2.5 * square["vllm"]
    assert max(row["trtllm"], column["trtllm"]) < 1.5 * square["trtllm"]
    assert 6 < large["sglang"] / large["trtllm"] < 12


def test_a_correction_is_that_of_near_sizes_and_vanishes_far_from_all() -> None:
    axes, rng = ((0,), (1,)), np.random.default_rng(0)
    dims = 2.0 ** rng.uniform(4, 12, (2000, 2))
    left = 0.3 * np.sin(np.log2(dims[:, 0]))
    points = fit_correction(axes, dims, left + 0.02 * rng.standard_normal(2000))
    assert len(points) == 300 * 3
    inside, far = 2.0 ** rng.uniform(5, 11, (200, 2)), np.full((1, 2), 2.0**40)
    expected = 0.3 * np.sin(np.log2(inside[:, 0]))
    assert np.abs(np.log(corrected_seconds(axes, points, inside, np.ones(200))) - expected).max() < 0.05
    assert corrected_seconds(axes, points, far, np.ones(1)) == pytest.approx(1.0, abs=1e-3)
    spoiled = np.where(np.arange(2000) % 40 == 0, 5.0, left)  # one in forty is far off
    robust = corrected_seconds(axes, fit_correction(axes, dims, spoiled), inside, np.ones(200))
    assert np.abs(np.log(robust) - expected).mean() < 0.05


def test_a_fit_corrects_what_the_model_lacks(tmp_path: Path) -> None:
    """Times that depend on the rows in a way that the model does not know are predicted between the fitted sizes."""
    machine = Machine.of(find_device("H100"), "fp8")
    dims = np.random.default_rng(0).integers(16, 16384, (1500, 2)).astype(np.float64)
    model = MODELS["quantization"]
    bare = model.seconds(np.exp(model.prior), (0, 0), dims, 1, machine)
    seconds = bare * np.exp(0.3 * np.sin(np.log2(dims[:, 0])))
    found = fit("quantization", dims[:1000], seconds[:1000], 1, machine)
    rest = np.log(found.seconds("quantization", dims[1000:], 1, machine) / seconds[1000:])
    assert np.abs(rest).mean() < 0.05 and found.spread < 0.15
    calibration = KernelCalibration({("quantization", "H100-SXM5-80GB", "fp8", "trtllm"): found}, {})
    write_calibration(tmp_path / "mine.json", calibration)
    again = read_calibration(tmp_path / "mine.json").fits["quantization", "H100-SXM5-80GB", "fp8", "trtllm"]
    assert again.correction == pytest.approx(found.correction, abs=1e-9)
    text = (tmp_path / "mine.json").read_text().replace('"correction": [\n', '"correction": [\n"9999", ', 1)
    (tmp_path / "bad.json").write_text(text)
    with pytest.raises(InvalidInputError, match="the correction of quantization on H100-SXM5-80GB has "):
        read_calibration(tmp_path / "bad.json")
