"""GEMMs side by side in the engine, GO-kernels, and the predictor of the degree of concurrency."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profilers.devices.catalogue import Device, find_device
from profilers.errors import BrokenFileError, InvalidInputError, NotFoundError
from replay.costs.products import with_figure
from replay.costs.shipped import load_parameters
from replay.engine import simulate
from replay.gemms import (
    DEGREES,
    DegreePredictor,
    Gemm,
    VariantModel,
    Variants,
    concurrent_ns,
    go_kernels,
    go_mix,
    library_of,
    load_degree_predictor,
)
from replay.gemms.concurrency import GemmDevice, Saturation, sets_ns
from replay.gemms.degrees import FEATURES, features_of
from replay.gemms.variant_model import VariantConstants
from replay.graph.assembly import Assembly

MI100 = find_device("MI100")  # 120 compute units
PARAMETERS = load_parameters()
#: Arithmetic at the peak, and nothing else.
PEAK = VariantConstants(efficiency=1.0, edge=0.0, memory_efficiency=1e6, cache_efficiency=1e6, floor_ns=0.0)
COMPUTE = VariantModel(PEAK)
TILE = Variants.of(tile_m=64, tile_n=64)


def grid(workgroups: int, depth: int = 4096) -> Gemm:
    """Return a GEMM that takes so many workgroups of `TILE`."""
    return Gemm(64 * workgroups, 64, depth)


def together(*workgroups: int, model: VariantModel = COMPUTE, device: Device = MI100) -> float:
    """Return the time of kernels side by side, in rounds of workgroups of the first one."""
    kernels = [(grid(count), TILE) for count in workgroups]
    round_ns = concurrent_ns([(grid(1), TILE)], device=device, parameters=PARAMETERS, model=model)
    return concurrent_ns(kernels, device=device, parameters=PARAMETERS, model=model) / round_ns


@pytest.mark.parametrize(
    ("workgroups", "rounds"),
    [
        ((60, 60), 1),  # two halves of the device: the time of one
        ((120, 120), 2),  # two that fill it: twice
        ((60, 60, 60), 2),
        ((42, 42, 42), 2),  # 126 workgroups on 120 units
        ((180, 180), 3),  # alone 2 rounds each: the second fills the tail of the first
        ((144, 144, 144, 144), 5),  # 4.8 waves
        ((240, 60), 3),  # the first fills the device, so that the second starves until its end
        ((60, 240), 3),
        ((1200, 1200), 20),  # many waves: nothing to gain
    ],
)
def test_kernels_run_in_whole_rounds_together(workgroups: tuple[int, ...], rounds: int) -> None:
    assert together(*workgroups) == pytest.approx(rounds, rel=1e-9)


def test_kernels_of_several_workgroups_on_a_unit_hide_the_latency_of_each_other() -> None:
    flop_cycles = 2 * 64 * 64 * 32 / (MI100.flops_per_s("fp32") / 120 / 1.502e9)
    waiting = VariantModel(msgspec.structs.replace(PEAK, step_cycles=2 * flop_cycles))  # twice the arithmetic
    one, two = (8 + 1) ** (1 / 3), (8 + 8) ** (1 / 3)
    assert together(120, 120, model=waiting) == pytest.approx(two / one, rel=1e-6)
    assert together(60, 60, model=waiting) == pytest.approx(1.0, rel=1e-9)  # on units of their own


def test_kernels_bound_by_memory_add_their_bytes() -> None:
    slow = VariantModel(msgspec.structs.replace(PEAK, memory_efficiency=0.01))
    assert together(30, 30, 30, model=slow) / together(30, model=slow) == pytest.approx(3.0, rel=0.01)


def test_kernels_whose_operands_exceed_the_cache_together_move_more_bytes() -> None:
    """Two footprints of 0.8 keep 1 / 1.6 of the hits: ``0.4 * (1 - 0.5 / 1.6) / (1 - 0.5)`` is a demand of 0.55."""
    half = GemmDevice(MI100, COMPUTE, Saturation.of(PARAMETERS)).times(grid(60), TILE)
    share = {name: np.array([value]) for name, value in (("last_hbm", 0.4), ("footprint", 0.8), ("hit_share", 0.5))}
    kernels = replace(half, **share)
    alone, pair = sets_ns(kernels, np.array([[0, -1], [0, 0]])).tolist()
    assert alone == pytest.approx(half.alone_ns[0])
    assert pair / alone == pytest.approx(2 * 0.55, rel=1e-6)


def test_the_engine_agrees_with_the_closed_form() -> None:
    """Each of cd kernels on 1/cd of the units and the cache, or cd times the bytes over the bandwidth of memory.

    The engine dispatches in order: it fills tails, and a kernel that runs first has the whole cache. The closed form
    divides the cache, also among kernels that run one after another, and rounds units down. So the engine is faster
    for kernels that lose a panel with a share of the cache, and slower where time is neither arithmetic nor memory.
    """
    variants, model = library_of(MI100, "fp32")
    gemms = [Gemm(m, n, k) for m in (128, 512, 2048) for n in (256, 1024) for k in (512, 2048)]
    ratios = []
    for gemm in gemms:
        best = variants.select(int(np.argmin(model.costs(gemm, variants, MI100).time_ns)))
        for degree in DEGREES:
            share = model.costs(gemm, best, MI100, units=120 // degree, cache_share=1 / degree)
            closed = max(share.floor_ns[0] + share.arithmetic_ns[0], degree * share.memory_ns[0])
            engine = concurrent_ns([(gemm, best)] * degree, device=MI100, parameters=PARAMETERS)
            ratios.append(engine / closed)
    assert 0.95 < np.median(ratios) < 1.1
    assert np.quantile(ratios, 0.05) > 0.75
    assert np.quantile(ratios, 0.95) < 1.3


sizes = st.integers(1, 3000)
gemms = st.builds(Gemm, sizes, sizes, sizes, st.integers(1, 4), st.sampled_from(["fp32", "fp16"]))


@settings(max_examples=40, deadline=None)
@given(gemm=gemms, row=st.integers(0, 10**6))
def test_a_kernel_alone_takes_the_time_of_the_model(gemm: Gemm, row: int) -> None:
    variants, model = library_of(MI100, gemm.dtype)
    variant = variants.select(row % len(variants))
    expected = model.costs(gemm, variant, MI100).time_ns[0]
    assert concurrent_ns([(gemm, variant)], device=MI100, parameters=PARAMETERS) == pytest.approx(expected, rel=1e-5)
    columns = GemmDevice.of(MI100, gemm, Saturation.of(PARAMETERS)).columns(gemm, variant)
    assembly = Assembly()
    assembly.tasks("gemm", assembly.lane(device=0), columns)
    assert simulate(assembly.graph())[1][0] == pytest.approx(expected)


@settings(max_examples=40, deadline=None)
@given(counts=st.lists(st.integers(1, 500), min_size=1, max_size=6), seed=st.integers(0, 9))
def test_the_order_of_dispatch_changes_no_sum_of_equal_workgroups(counts: list[int], seed: int) -> None:
    shuffled = np.random.default_rng(seed).permutation(counts).tolist()
    assert together(*shuffled) == pytest.approx(-(-sum(counts) // 120), rel=1e-6)


@settings(max_examples=40, deadline=None)
@given(count=st.integers(1, 400), copies=st.integers(1, 16), units=st.integers(20, 119))
def test_more_units_never_slow_a_set(count: int, copies: int, units: int) -> None:
    """The units that are left keep their speed."""
    fewer = with_figure(MI100, "compute_units", units)
    for name in ("fp32_tflops", "fp32_matrix_tflops"):
        fewer = with_figure(fewer, name, MI100.value(name) * units / 120)
    assert together(*[count] * copies) <= together(*[count] * copies, device=fewer) * (1 + 1e-6)


@settings(max_examples=30, deadline=None)
@given(gemm=gemms, degree=st.sampled_from(DEGREES))
def test_a_go_kernel_is_never_slower_than_the_default(gemm: Gemm, degree: int) -> None:
    (go,) = go_kernels([gemm], [degree], device=MI100, parameters=PARAMETERS)
    assert go.time_ns <= go.default_ns * (1 + 1e-9)
    assert len(go.variant) == len(go.default) == 1
    if degree == 1:
        assert go.is_default
        assert go.time_ns == pytest.approx(go.alone_ns, rel=1e-6)
        assert go.speedup == pytest.approx(1.0, rel=1e-6)
    kernels = [(gemm, go.variant)] * degree
    assert concurrent_ns(kernels, device=MI100, parameters=PARAMETERS) == pytest.approx(go.time_ns, rel=1e-9)


def test_go_kernels_of_many_gemms_are_those_of_each() -> None:
    shapes = [Gemm(256, 1024, 1024), Gemm(128, 8, 4096), Gemm(2048, 2048, 2048)]
    many = go_kernels(shapes, device=MI100, parameters=PARAMETERS)
    assert [(go.gemm, go.degree) for go in many] == [(gemm, degree) for gemm in shapes for degree in DEGREES]
    single = [go_kernels([go.gemm], [go.degree], device=MI100, parameters=PARAMETERS)[0] for go in many]
    assert [go.time_ns for go in many] == pytest.approx([go.time_ns for go in single], rel=1e-9)
    assert not all(go.is_default for go in many)  # 256 x 1024 x 1024 takes a larger tile with others beside it


def test_a_mix_is_never_slower_than_its_defaults_and_equal_gemms_are_a_mix_of_copies() -> None:
    shapes = [Gemm(512, 512, 512), Gemm(64, 4096, 1024), Gemm(1024, 64, 1024), Gemm(256, 256, 64)]
    mix = go_mix(shapes, device=MI100, parameters=PARAMETERS)
    assert mix.time_ns <= mix.default_ns
    chosen = list(zip(shapes, [kernel.variant for kernel in mix.kernels], strict=True))
    assert concurrent_ns(chosen, device=MI100, parameters=PARAMETERS) == pytest.approx(mix.time_ns)
    copies = go_mix([shapes[1]] * 4, device=MI100, parameters=PARAMETERS)
    (single,) = go_kernels([shapes[1]], [4], device=MI100, parameters=PARAMETERS)
    assert copies.time_ns <= single.time_ns * (1 + 1e-9)


def test_no_gemm_and_no_degree_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="a degree of concurrency is 1 or more"):
        go_kernels([grid(1)], [0], device=MI100, parameters=PARAMETERS)
    with pytest.raises(InvalidInputError, match="no GEMM to run side by side"):
        go_mix([], device=MI100, parameters=PARAMETERS)
    with pytest.raises(InvalidInputError, match="give one variant for each GEMM"):
        concurrent_ns([(grid(1), library_of(MI100, "fp32")[0])], device=MI100, parameters=PARAMETERS)


def planted(**figures: Any) -> DegreePredictor:
    """Return a predictor without weights: it takes degree 4 where it can, with a gain of 0.3 and an error of 0.2."""
    count = len(FEATURES)
    content: dict[str, Any] = {
        "degrees": DEGREES, "features": tuple(FEATURES), "means": (0.0,) * count, "scales": (1.0,) * count,
        "weights": ((0.0,) * count,) * 5, "offsets": (0.0, 1.0, 3.0, 2.0, 1.0),
        "gain_weights": ((0.0,) * 2 * count,) * 5, "gain_offsets": (0.0, 0.1, 0.3, 0.3, 0.3),
        "gain_errors": (0.0, 0.2, 0.2, 0.2, 0.2),
    }  # fmt: skip
    return DegreePredictor(**(content | figures))


@pytest.mark.parametrize(
    ("available", "degree"),
    [(1, 1), (2, 1), (3, 4), (4, 4), (16, 4), (100, 4)],  # degree 2 gains 0.1, which is below its error
)
def test_a_degree_is_taken_if_its_gain_is_above_its_error(available: int, degree: int) -> None:
    assert planted().degree_of(grid(1), available, device=MI100) == degree


def test_weights_and_squares_of_standardised_features_count() -> None:
    position = list(FEATURES).index("log_k")
    unit = np.eye(len(FEATURES))[position]
    weights = np.zeros((5, len(FEATURES)))
    weights[4] = 10 * unit  # degree 16 above the mean depth
    squares = np.zeros((5, 2 * len(FEATURES)))
    squares[4] = np.concatenate([0 * unit, -unit])  # and no gain far from it
    predictor = planted(
        means=tuple(10 * unit), scales=tuple(1 + unit), weights=tuple(map(tuple, weights)),
        gain_weights=tuple(map(tuple, squares)), gain_offsets=(0.0, 0.1, 0.3, 0.3, 0.5),
    )  # fmt: skip
    # Depth 2**k is (k - 10) / 2 standard deviations above the mean: the gain is 0.5 less its square, the error 0.2.
    chosen = [predictor.degree_of(Gemm(64, 64, 2**k), 16, device=MI100) for k in (9, 11, 12)]
    assert chosen == [4, 16, 1]


def test_decisions_of_many_gemms_are_those_of_each() -> None:
    predictor, shapes = load_degree_predictor(), [grid(count, 64 * count) for count in (1, 8, 64, 512)]
    available = [16, 3, 4, 2]
    chosen = predictor.choose(shapes, available, device=MI100)
    single = [predictor.degree_of(gemm, n, device=MI100) for gemm, n in zip(shapes, available, strict=True)]
    assert chosen.tolist() == single
    assert predictor.choose(shapes[::-1], available[::-1], device=MI100).tolist() == single[::-1]
    assert predictor.choose([], [], device=MI100).tolist() == []
    with pytest.raises(InvalidInputError, match="0 GEMMs side by side"):
        predictor.choose(shapes, 0, device=MI100)


@settings(max_examples=60, deadline=None)
@given(gemm=gemms, available=st.integers(1, 40))
def test_a_degree_is_at_most_the_next_above_the_gemms_that_there_are(gemm: Gemm, available: int) -> None:
    degree = load_degree_predictor().degree_of(gemm, available, device=MI100)
    assert degree in DEGREES
    assert degree < 2 * available
    assert np.isfinite(features_of([gemm], available, MI100)).all()


def test_the_predictor_saturates_for_many_waves_and_lets_small_gemms_run_at_once() -> None:
    predictor = load_degree_predictor()
    assert predictor.degree_of(Gemm(8192, 8192, 4096), 16, device=MI100) == 1
    assert predictor.degree_of(Gemm(128, 128, 256), 16, device=MI100) == 16
    assert (predictor.made_by, predictor.device) == (
        "benchmarks/gemms/train_degree_predictor.py",
        "MI100, A100-SXM4-80GB",
    )
    assert predictor.gemms >= 900


def test_predictions_are_not_slower_than_one_after_another() -> None:
    """GEMMs that the predictor did not learn from, with their GO-kernels in the engine."""
    shapes = [Gemm(m, n, k) for m in (48, 320, 1900) for n in (96, 700, 3000) for k in (160, 900, 2500)]
    degrees = load_degree_predictor().choose(shapes, 8, device=MI100)
    kernels = go_kernels(shapes, device=MI100, parameters=PARAMETERS)
    speedup = {(go.gemm, go.degree): go.speedup for go in kernels}
    chosen = np.array([speedup[each] for each in zip(shapes, degrees.tolist(), strict=True)])
    best = np.array([max(speedup[gemm, degree] for degree in DEGREES[:4]) for gemm in shapes])
    assert chosen.min() > 0.98
    assert np.median(best / chosen) < 1.02


def damaged(content: dict[str, Any], name: str) -> None:
    """Damage a predictor's file, in one of several ways."""
    if name == "feature":
        content["features"][0] = "log_x"
    elif name == "short":
        content["weights"][2] = content["weights"][2][:-1]
    elif name == "scale":
        content["scales"][3] = 0.0
    elif name == "text":
        content["offsets"][1] = "much"
    elif name == "order":
        content["degrees"] = [2, 1, 4, 8, 16]
    elif name == "missing":
        del content["gain_errors"]
    else:
        content["extra"] = 1


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("feature", "features log_x"),
        ("short", "weights must have the shape 5 x 17"),
        ("scale", "scales must be finite numbers, above 0"),
        ("text", r"offsets\[1\]: Expected"),
        ("order", "they must rise from 1"),
        ("missing", "gain_errors"),
        ("extra", "extra"),
    ],
)
def test_a_damaged_predictor_is_refused_with_one_line(tmp_path: Path, name: str, message: str) -> None:
    content = json.loads(msgspec.json.encode(load_degree_predictor()))
    damaged(content, name)
    file = tmp_path / "degrees.json"
    file.write_text(json.dumps(content))
    with pytest.raises(BrokenFileError, match=message) as error:
        load_degree_predictor(file)
    assert "\n" not in str(error.value)
    assert str(file) in str(error.value)


def test_a_predictor_that_is_absent_or_cut_off_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "degrees.json"
    with pytest.raises(NotFoundError, match="no such file of a degree predictor"):
        load_degree_predictor(file)
    file.write_bytes(msgspec.json.encode(load_degree_predictor())[:100])
    with pytest.raises(BrokenFileError, match="no degree predictor"):
        load_degree_predictor(file)
