"""Relative re-timing: identities, inverses, and cases worked out by hand."""

import numpy as np
import pytest
from graphs import make_graph
from hypothesis import given, settings
from hypothesis import strategies as st

from profilers.devices.catalogue import Device, find_device, load_devices
from profilers.errors import InvalidInputError
from profilers.trace.kernels import CLASSES
from replay.costs.kernels import load_calibration
from replay.costs.retiming import capability, modelled_seconds, retimed
from replay.costs.shipped import load_parameters
from replay.from_trace.index import dtype_of_name
from replay.graph.graph import KernelGraph, hardware_named
from replay.graph.operators import Operator, attention, batched_matmul, convolution
from replay.what_ifs import change_dtype, parse_what_if, scale_clock, scale_device

NOMINAL = load_parameters()
TYPES = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8")
PRODUCT = batched_matmul(1, 4096, 4096, 4096, 2)
OPERATORS = (
    PRODUCT,
    batched_matmul(96, 128, 128, 64, 2),
    convolution((8, 64, 56, 56), (64, 64, 3, 3), (8, 64, 56, 56), 2),
    attention((8, 12, 512, 64), (12, 512), causal=True),
)
CLASS_OF = {"matmul": "gemm", "batched_matmul": "gemm", "convolution": "convolution", "attention": "attention"}


def on(device: str | Device, durations: list[float], **columns: list[int]) -> KernelGraph:
    """Return a graph of kernels on a device; `operator` counts through `OPERATORS`."""
    one = make_graph(durations, **columns)
    found = find_device(device) if isinstance(device, str) else device
    return KernelGraph(one.tasks, one.edges, one.names, one.lanes, one.devices, 0.0, hardware_named(found, "trace"),
                       operators=OPERATORS)  # fmt: skip


def of_operators(device: str, durations: list[float], dtype: str = "bf16") -> KernelGraph:
    rows = [i % len(OPERATORS) for i in range(len(durations))]
    classes = [CLASSES.index(CLASS_OF[OPERATORS[i].kind]) for i in rows]
    return on(device, durations, operator=rows, class_=classes, dtype=[TYPES.index(dtype)] * len(rows))


def seconds(operator: Operator, device: str, dtype: str = "bf16") -> float:
    return float(
        modelled_seconds([operator], capability(find_device(device), dtype, calibration=load_calibration()), 4e-6)[0]
    )


DEVICES = st.sampled_from(sorted(load_devices()))
DURATIONS = st.lists(st.floats(min_value=100, max_value=1e8), min_size=8, max_size=8)


@settings(deadline=None, max_examples=60)
@given(DEVICES, DEVICES, DURATIONS, st.sampled_from(TYPES))
def test_there_and_back_is_what_was_traced(one: str, other: str, durations: list[float], dtype: str) -> None:
    classes = [CLASSES.index(name) for name in ("gemm", "elementwise", "softmax", "copy")]
    plain = on(one, durations[:4], class_=classes, dtype=[TYPES.index(dtype)] * 4, workgroups=[0, 5, 50, 5000])
    for graph in (plain, of_operators(one, durations[4:], dtype)):
        there = scale_device(other)(graph, NOMINAL)
        back = scale_device(one)(there, NOMINAL)
        assert (there.tasks.duration_ns > 0).all()
        np.testing.assert_allclose(back.tasks.duration_ns, graph.tasks.duration_ns, rtol=1e-6)


@settings(deadline=None, max_examples=40)
@given(DEVICES, DURATIONS, st.floats(min_value=1.0, max_value=8.0), st.sampled_from(TYPES))
def test_more_of_anything_slows_no_kernel(device: str, durations: list[float], factor: float, dtype: str) -> None:
    graph = of_operators(device, durations, dtype)
    for name in ("scale_clock", "scale_memory_bandwidth"):
        better = parse_what_if(f"{name}:{factor}")(graph, NOMINAL)
        assert (better.tasks.duration_ns <= graph.tasks.duration_ns * (1 + 1e-9)).all(), name


def test_a_large_product_goes_by_the_rates_that_were_measured() -> None:
    graph = on("H100", [1e9 * seconds(PRODUCT, "H100")], operator=[0], class_=[CLASSES.index("gemm")], dtype=[3])
    new = scale_device("MI300X")(graph, NOMINAL).tasks.duration_ns[0]
    # 137 GFLOP at 794.5 and at 668.4 TFLOPS, the best that were measured, take 173 and 206 us; tiles cost some more.
    assert graph.tasks.duration_ns[0] == pytest.approx(1.73e5, rel=0.15)
    assert new == pytest.approx(2.06e5, rel=0.15)


def test_what_the_model_does_not_explain_stays_as_latency() -> None:
    modelled = 1e9 * seconds(PRODUCT, "H100")
    classes = [CLASSES.index("gemm")] * 2
    graph = on("H100", [modelled, modelled + 50_000], operator=[0, 0], class_=classes, dtype=[3, 3])
    short, long = scale_device("MI300X")(graph, NOMINAL).tasks.duration_ns
    assert long - short == pytest.approx(50_000)


def test_latency_goes_by_the_clock_of_the_same_design() -> None:
    modelled = 1e9 * seconds(PRODUCT, "H100")
    classes = [CLASSES.index("gemm")] * 2
    graph = on("H100", [modelled, modelled + 50_000], operator=[0, 0], class_=classes, dtype=[3, 3])
    short, long = scale_clock(2.0)(graph, NOMINAL).tasks.duration_ns
    assert long - short == pytest.approx(25_000)
    # Half of the arithmetic, a little more where the operands' way from memory begins to show.
    assert (modelled + 4_000) / 2 <= short < 0.8 * modelled


def test_a_kernel_that_does_nothing_takes_the_floor_of_the_vendor() -> None:
    graph = on("A100", [2_000.0], class_=[CLASSES.index("elementwise")])
    assert scale_device("MI300X")(graph, NOMINAL).tasks.duration_ns[0] == pytest.approx(3_500)
    assert scale_device("V100")(graph, NOMINAL).tasks.duration_ns[0] == pytest.approx(2_000)


def test_a_type_without_units_for_it_runs_as_fp32() -> None:
    graph = on("A100", [5e6], class_=[CLASSES.index("gemm")], dtype=[TYPES.index("tf32")])
    new = scale_device("V100")(graph, NOMINAL).tasks.duration_ns[0]
    vector = on("V100", [new], class_=[CLASSES.index("gemm")], dtype=[TYPES.index("fp32")])
    # 156 TFLOPS of TF32 at 87 %, 15.7 of FP32 at 99 %.
    assert new / 5e6 == pytest.approx(156 * 0.869 / (15.7 * 0.99), rel=0.03)
    assert (
        capability(find_device("V100"), "tf32", calibration=load_calibration()).flops_per_s
        == capability(find_device("V100"), "fp32", calibration=load_calibration()).flops_per_s
    )
    assert retimed(vector, find_device("V100"), 80, NOMINAL)[0] == pytest.approx(new)


@pytest.mark.parametrize("what_if", ["scale_clock:0.5", "scale_compute_units:0.5"])
def test_half_the_arithmetic_leaves_streaming_and_doubles_products(what_if: str) -> None:
    classes = [CLASSES.index("gemm"), CLASSES.index("elementwise")]
    graph = on("A100", [1e6, 1e6], class_=classes, dtype=[3, 3], workgroups=[100_000, 100_000])
    new = parse_what_if(what_if)(graph, NOMINAL)
    assert new.tasks.duration_ns[0] == pytest.approx(4_000 + 2 * 996_000)
    assert new.tasks.duration_ns[1] == pytest.approx(1e6)
    assert new.hardware.compute_units == (54 if "units" in what_if else 108)


def test_twice_the_bandwidth_halves_streaming() -> None:
    graph = on("A100", [1e6], class_=[CLASSES.index("elementwise")])
    new = parse_what_if("scale_memory_bandwidth:2")(graph, NOMINAL)
    assert new.tasks.duration_ns[0] == pytest.approx(2_000 + 998_000 / 2)
    again = parse_what_if("scale_memory_bandwidth:0.5")(new, NOMINAL)
    assert again.tasks.duration_ns[0] == pytest.approx(1e6)


def test_a_narrower_type_halves_what_is_moved_and_raises_the_rate() -> None:
    classes = [CLASSES.index(name) for name in ("elementwise", "gemm", "elementwise")]
    graph = on("A100", [1e6, 1e6, 1e6], class_=classes, dtype=[1, 1, 3])
    new = change_dtype("fp32->bf16")(graph, NOMINAL).tasks
    assert new.duration_ns[0] == pytest.approx(2_000 + 998_000 / 2)
    assert new.duration_ns[1] == pytest.approx(4_000 + 996_000 * 19.5 / 271.2, rel=0.03)
    assert new.duration_ns[2] == 1e6 and new.dtype.tolist() == [3, 3, 3]
    back = change_dtype("bf16->fp32")(change_dtype("fp32->bf16")(graph, NOMINAL), NOMINAL)
    assert back.tasks.duration_ns[0] == pytest.approx(1e6)


def test_a_known_product_in_a_narrower_type_is_faster() -> None:
    graph = of_operators("A100", [1e6] * 4, "fp32")
    new = change_dtype("fp32->bf16")(graph, NOMINAL).tasks.duration_ns
    assert (new < graph.tasks.duration_ns).all()


def test_a_type_that_the_device_lacks_is_an_error_that_lists_what_it_has() -> None:
    with pytest.raises(InvalidInputError, match=r"V100-SXM2-16GB does not compute in bf16; choose one of .*fp16"):
        change_dtype("fp32->bf16")(on("V100", [1e6]), NOMINAL)


def test_every_device_can_be_re_timed_to_every_type() -> None:
    for device in load_devices().values():
        for dtype in TYPES:
            found = capability(device, dtype, calibration=load_calibration())
            assert 0.3 < found.efficiency < 1.1 and 0.5 < found.memory < 1.0, (device.name, dtype)


def test_a_product_in_fp32_is_not_taken_for_bf16() -> None:
    assert TYPES[dtype_of_name("Cijk_Ailk_Bljk_S_B_Bias_HA_S_SAV_UserArgs_MT64x64x16")] == "fp32"
    assert TYPES[dtype_of_name("Cijk_Alik_Bljk_B_BS_BH_Bias_HA_S_SAV_UserArgs")] == "bf16"


def test_the_grid_of_a_persistent_kernel_tells_the_device_and_not_the_problem() -> None:
    gemm, bf16 = CLASSES.index("gemm"), TYPES.index("bf16")
    grids = [132, 264, 5000, 66]
    graph = on("H100", [1e6] * 4, class_=[gemm] * 4, dtype=[bf16] * 4, workgroups=grids)
    after = scale_device("MI300X")(graph, NOMINAL)
    # Sustained rates of 794.5 and 668.4 TFLOPS, of 132 and 304 units: 1.19 for a kernel that fills the device.
    ratio = 794.5 / 668.4
    np.testing.assert_allclose(after.tasks.duration_ns[:3] / 1e6, ratio, rtol=0.01)
    assert after.tasks.duration_ns[3] / 1e6 == pytest.approx(ratio * 304 / 132, rel=0.01)
    note = "1 products of unknown shape and less than a wave of workgroups, 25.0 % of the time of devices"
    assert sum(note in text for text in after.notes) == 1
    # The way back restores the durations: the grid is still that of the traced device.
    back = scale_device("H100")(after, NOMINAL)
    np.testing.assert_allclose(back.tasks.duration_ns, 1e6, rtol=1e-9)
