"""Kernel variants of GEMMs: tables of candidates, their fit, libraries, and invariants of the model."""

import csv
import json
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profilers.devices import find_device
from profilers.errors import InvalidInputError, NotFoundError
from profilers.files import dataset_path
from profilers.trace.arrays import Floats
from replay.gemms import (
    Gemm,
    MeasuredCandidates,
    VariantModel,
    Variants,
    fit_library,
    fit_variants,
    library_of,
    read_candidates,
    read_variant_fit,
    write_variant_fit,
)
from replay.gemms.candidates import dtype_of_file
from replay.gemms.fitting import folds_of, held_out_times, library_rows, measured_times
from replay.gemms.variant_model import VariantConstants, traffic
from seqpoint.validation.gemms import candidate_scores, read_winners, small_grids, summarize, winner_ranks

MI100 = find_device("MI100")
ROOT = Path(__file__).parents[1]
SHARED = ROOT.parent / "shared" / "data" / "gemm_variants"
#: Two GEMMs and two kernels. One kernel was measured twice, and one failed once.
TABLE = """m,n,k,batch,transpose_a,macro_tile_m,macro_tile_n,depth_u,global_split_u,lds_bytes,prefetch,kernel,time_us
64,64,128,1,0,32,32,16,1,8192,1,a,10
64,64,128,1,0,64,64,16,2,-1,2,b,20
64,64,256,2,1,32,32,16,1,8192,1,a,40
64,64,256,2,1,64,64,16,2,-1,2,b,0
64,64,128,1,0,64,64,16,2,-1,2,b,80
"""


def written(folder: Path, text: str = TABLE, name: str = "mi100_f32.csv") -> Path:
    file = folder / name
    file.write_text(text)
    return file


def test_a_table_is_read_with_its_kernels_and_counts(tmp_path: Path) -> None:
    table = read_candidates(written(tmp_path))
    assert (table.source, table.device.name, table.failed, table.repeated) == ("mi100_f32.csv", "MI100", 1, 1)
    assert table.gemms == (Gemm(64, 64, 128), Gemm(64, 64, 256, 2, transpose_a=True))
    assert table.variants.tile_m.tolist() == [32, 64] and table.variants.global_split.tolist() == [1, 2]
    assert table.variants.threads.tolist() == [256, 256] and table.variants.candidate.tolist() == [0, 1]
    np.testing.assert_array_equal(table.variants.lds_bytes, [8192, np.nan])
    # (gemm, kernel, ns); the two times of kernel b, 20 and 80 us, have the median sqrt(20 * 80) = 40 us.
    rows = list(zip(table.gemm_of.tolist(), table.variant_of.tolist(), table.time_ns.round(3).tolist(), strict=True))
    assert rows == [(0, 0, 10_000.0), (0, 1, 40_000.0), (1, 0, 40_000.0)]


def test_throughput_is_a_time_and_parquet_is_read_as_csv(tmp_path: Path) -> None:
    columns = {"m": [100, 100], "n": [10, 10], "k": [5, 5], "tile_m": [16, 32], "tile_n": [16, 32], "gflops": [10, 2]}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    table = read_candidates(tmp_path / "a.parquet", "MI100", "bf16")
    assert table.gemms == (Gemm(100, 10, 5, dtype="bf16"),)
    assert table.time_ns.tolist() == [1000.0, 5000.0]  # 2 * 100 * 10 * 5 = 10,000 FLOP


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("m,n,k,", "m,n,q,", r"no table of candidate kernels .*it has m, n, q"),
        ("time_us", "seconds", "no table of candidate kernels"),
        ("64,64,128,1,0,32", "64,-64,128,1,0,32", r"row 1: n is -64"),
        ("64,64,128,1,0,32", "64.5,64,128,1,0,32", r"row 1: m is 64.5; it must be whole"),
        ("64,64,256,2,1,64,64", "64,64,256,2,1,0,64", r"row 4: macro_tile_m is 0; it must be whole, 1 to 65536$"),
        (",16,2,-1,2,b,20", ",16,-2,-1,2,b,20", r"row 2: global_split_u is -2; .* or -1 if it is not known"),
        ("1,8192,1,a,10", "1,-8,1,a,10", r"row 1: lds_bytes is -8; it must be whole, 0 to 1073741824, or -1"),
        ("64,64,128,1,0,32", "64,64,128,0.5,0,32", r"row 1: batch is 0.5; it must be 1 to"),
        ("64,64,128,1,0,32", "64,64,128,1,,32", r"row 1: transpose_a is nan; it must be 0 or 1"),
        ("b,20", "b,inf", r"row 2: time_us is inf: a time of .*check its unit"),
        ("b,20", "b,2e99", r"row 2: time_us is 2e\+99: a time of .*check its unit"),
        ("64,64,256,2,1,32", "64,64,256,2,7,32", r"row 3: transpose_a is 7; it must be 0 or 1"),
        ("a,10", "a,fast", r"time_us is .fast.; it must be a number"),
        ("prefetch", "batch", r"column batch occurs more than once"),
    ],
)
def test_a_value_that_cannot_be_is_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in TABLE
    with pytest.raises(InvalidInputError, match=message):
        read_candidates(written(tmp_path, TABLE.replace(old, new, 1)))


def test_columns_of_texts_and_types_are_read_whatever_their_encoding(tmp_path: Path) -> None:
    """A type that is unknown is named with its row; texts of Arrow's three encodings read alike."""
    texts = pa.array(["N", "T", "T"])
    columns = {
        "m": [64, 64, 64], "n": [64, 64, 64], "k": [8, 8, 8], "tile_m": [16, 16, 16], "tile_n": [16, 16, 16],
        "time_us": [1.0, 2.0, 3.0], "dtype": ["fp16", "fp16", "bf16"],
    }  # fmt: skip
    for column in (texts, texts.cast(pa.large_string()), texts.dictionary_encode()):
        pq.write_table(pa.table({**columns, "transpose_a": column}), tmp_path / "a.parquet")
        gemms = read_candidates(tmp_path / "a.parquet", "MI100").gemms
        assert [(gemm.transpose_a, gemm.dtype) for gemm in gemms] == [(False, "fp16"), (True, "bf16"), (True, "fp16")]
    pq.write_table(pa.table({**columns, "dtype": ["fp16", "int4", "bf16"]}), tmp_path / "a.parquet")
    with pytest.raises(InvalidInputError, match=r"a.parquet: row 2: data type 'int4' is none of"):
        read_candidates(tmp_path / "a.parquet", "MI100")


def test_a_column_that_varies_for_a_kernel_describes_no_kernel(tmp_path: Path) -> None:
    text = TABLE.replace("prefetch,", "prefetch,lda,").replace(",a,", ",7,a,").replace(",2,b,", ",2,9,b,")
    table = read_candidates(written(tmp_path, text))
    assert len(table.variants) == 2
    varying = text.replace(",7,a,40", ",8,a,40").replace(",9,b,80", ",6,b,80")
    assert varying != text
    without = read_candidates(written(tmp_path, varying))
    assert len(without.variants) == 2 and without.traits.shape[1] == table.traits.shape[1] - 1
    np.testing.assert_array_equal(without.traits, read_candidates(written(tmp_path)).traits)


def test_a_text_of_many_values_has_an_indicator_for_each(tmp_path: Path) -> None:
    """The order of texts means nothing, so that no logarithm of their numbers is a trait."""
    rows = [f"64,64,{64 * (i % 2 + 1)},{16 * (i // 2 + 1)},16,mode{i // 2},k{i // 2},10" for i in range(40)]
    head = "m,n,k,macro_tile_m,macro_tile_n,mode,kernel,time_us"
    table = read_candidates(written(tmp_path, "\n".join([head, *rows])))
    # A constant, the logarithm of the tile's rows, and 19 indicators of 20 modes; columns of one value give nothing.
    assert table.traits.shape == (20, 21) and sorted(table.traits.sum(axis=0)[2:].tolist()) == [1.0] * 19


def test_large_products_do_not_overflow(tmp_path: Path) -> None:
    side = 2**22
    text = f"m,n,k,batch,tile_m,tile_n,gflops\n{side},{side},{side},4,256,256,1e8\n"
    table = read_candidates(written(tmp_path, text))
    assert table.time_ns.tolist() == pytest.approx([2.0 * side**3 * 4 / 1e8])


def test_a_table_without_device_type_or_times_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"x_f32.csv"):
        read_candidates(written(tmp_path, name="x_f32.csv"))
    with pytest.raises(InvalidInputError, match=r"which type are the operands\? say --dtype"):
        read_candidates(written(tmp_path, name="mi100.csv"))
    with pytest.raises(NotFoundError, match="no such file"):
        read_candidates(tmp_path / "absent.csv")
    head = TABLE.splitlines()[0]
    with pytest.raises(InvalidInputError, match="there is no row"):
        read_candidates(written(tmp_path, head + "\n"))
    with pytest.raises(InvalidInputError, match="no row has a time above zero"):
        read_candidates(written(tmp_path, f"{head}\n64,64,256,2,1,64,64,16,2,-1,2,b,-1\n"))
    with pytest.raises(InvalidInputError, match=r"matrix_instruction is 'wide'; it must be like 32x32x2x1"):
        read_candidates(written(tmp_path, TABLE.replace("prefetch", "matrix_instruction").replace(",1,a", ",wide,a")))
    assert dtype_of_file(Path("x.csv"), "f16") == "fp16"
    with pytest.raises(InvalidInputError, match="data type 'int4' is none of"):
        dtype_of_file(Path("x.csv"), "int4")


#: Constants of the synthetic device.
PLANTED = VariantConstants(
    efficiency=0.7, edge=6.0, memory_efficiency=0.6, cache_efficiency=1.2, load=0.4, step_cycles=500.0,
    wave_cycles=10.0, prologue_cycles=800.0, store=2.0, split_store=4.0, floor_ns=3000.0, launch_ns=6000.0,
    split_ns=3000.0, resident=2.0,
)  # fmt: skip


def synthetic(effect: Callable[[int], float] = lambda kernel: 0.0, noise: float = 0.0) -> MeasuredCandidates:
    """Return times of 48 kernels on 24 GEMMs, each with a factor of the kernel and noise of the measurement."""
    grid = np.array([(m, n, s, p) for m in (32, 64, 128, 256) for n in (32, 64, 128) for s in (1, 4) for p in (0, 1)])
    tile_m, tile_n, split, prefetch = grid.T
    variants = Variants.of(
        tile_m=tile_m, tile_n=tile_n, global_split=split, depth=16, lds_bytes=8.0 * 16 * (tile_m + tile_n),
        matrix_rows=32, candidate=np.arange(len(grid)),
    )  # fmt: skip
    sizes = (64, 384, 2048)
    gemms = tuple(Gemm(m, n, k) for m in sizes for n in sizes[1:] for k in (128, 512, 2048, 8192))
    factors = np.exp([effect(int(kernel)) for kernel in prefetch])
    random = np.random.default_rng(0)
    model = VariantModel(PLANTED)
    times = [model.measured_ns(gemm, variants, MI100) * factors for gemm in gemms]
    time_ns = np.concatenate(times) * np.exp(noise * random.standard_normal(len(gemms) * len(grid)))
    gemm_of, variant_of = np.divmod(np.arange(len(time_ns)), len(grid))
    traits = np.column_stack([np.ones(len(grid)), prefetch]).astype(float)
    return MeasuredCandidates("synthetic", MI100, gemms, variants, traits, gemm_of, variant_of, time_ns)


def test_planted_constants_and_an_effect_of_a_parameter_are_recovered() -> None:
    fitted = fit_variants(synthetic()).constants
    for name, limit in (("efficiency", 0.1), ("memory_efficiency", 0.15), ("step_cycles", 0.15), ("edge", 0.3)):
        assert getattr(fitted, name) == pytest.approx(getattr(PLANTED, name), rel=limit), name
    assert fitted.floor_ns + fitted.launch_ns == pytest.approx(9000, rel=0.1) and fitted.resident == 2
    table = synthetic(lambda prefetch: 0.5 * prefetch, noise=0.01)
    model = fit_variants(table)
    expected = measured_times(model, table, np.arange(len(table.gemms)))
    assert np.median(np.abs(expected / table.time_ns - 1)) < 0.02
    pairs = expected.reshape(len(table.gemms), -1, 2)
    assert np.median(np.log(pairs[..., 1] / pairs[..., 0])) == pytest.approx(0.5, abs=0.05)


def test_gemms_left_out_are_predicted_and_a_good_kernel_is_chosen() -> None:
    table = synthetic(lambda prefetch: -0.2 * prefetch, noise=0.01)
    folds = folds_of(table.gemms, families=True)
    assert len(np.unique(folds)) == 5
    expected = held_out_times(table, folds)
    assert np.isfinite(expected).all()
    summary = summarize(candidate_scores(table, expected))
    assert summary["gemms"] == 24 and summary["error"] < 0.1 and summary["regret"] < 0.03 and summary["spearman"] > 0.95
    # A fit that chose by chance would lose far more.
    random = np.random.default_rng(1).permutation(table.time_ns)
    assert summarize(candidate_scores(table, random))["regret"] > 0.2


def test_scores_of_a_table_by_hand() -> None:
    table = synthetic()
    numbers = np.array([0, 1])
    table = table.of_gemms(numbers)
    expected = table.time_ns.copy()
    exact = summarize(candidate_scores(table, expected))
    assert (exact["error"], exact["regret"], exact["promise_error"]) == (0.0, 0.0, 0.0)
    assert exact["spearman"] == pytest.approx(1.0)
    worst = table.time_ns.max() / table.time_ns  # the order is reversed
    assert summarize(candidate_scores(table, worst))["spearman"] == pytest.approx(-1.0)
    for number in numbers:  # the kernel of the longest time is chosen
        rows = table.gemm_of == number
        (score,) = candidate_scores(table.of_gemms(np.array([number])), worst[rows])
        assert score.regret == pytest.approx(table.time_ns[rows].max() / table.time_ns[rows].min() - 1)


def test_small_grids_by_hand() -> None:
    variants = Variants.of(tile_m=[32, 64], tile_n=[32, 64], candidate=[0, 1])
    table = MeasuredCandidates(
        "hand", MI100, (Gemm(256, 256, 64), Gemm(8192, 8192, 64)), variants, np.ones((2, 1)), np.array([0, 0, 1, 1]),
        np.array([0, 1, 0, 1]), np.array([90.0, 100.0, 90.0, 100.0]),
    )  # fmt: skip
    # 64 and 16 workgroups: small. 65,536 and 16,384 workgroups are no small grids of 120 units.
    grids = small_grids(table, table.time_ns)
    assert vars(grids) == {"small": 1, "measured": 1, "named": 1, "false_alarms": 0, "chosen": 1}
    grids = small_grids(table, np.array([90.0, 120.0, 90.0, 120.0]))
    assert vars(grids) == {"small": 1, "measured": 1, "named": 0, "false_alarms": 0, "chosen": 1}
    slow = replace(table, time_ns=np.array([90.0, 101.0, 90.0, 100.0]))
    assert vars(small_grids(slow, table.time_ns)) == {
        "small": 1, "measured": 0, "named": 0, "false_alarms": 1, "chosen": 0
    }  # fmt: skip


def test_alike_gemms_are_in_one_fold() -> None:
    gemms = (Gemm(64, 64, 64), Gemm(64, 64, 128), Gemm(512, 64, 64), Gemm(64, 4096, 64), Gemm(64, 64, 9000))
    together = folds_of(gemms, families=True, folds=3)
    assert together[0] == together[1] and len(set(together.tolist())) == 3
    assert sorted(folds_of(gemms, families=False, folds=5).tolist()) == [0, 1, 2, 3, 4]


def test_a_fit_is_written_and_read_and_its_library_keeps_the_best(tmp_path: Path) -> None:
    table = synthetic(lambda prefetch: -0.2 * prefetch, noise=0.01)
    chosen = library_rows(table, table.time_ns, most=12)
    times = table.time_ns.reshape(len(table.gemms), -1)
    assert len(chosen) == 12 and (times[:, chosen].min(axis=1) < 1.1 * times.min(axis=1)).all()
    fit = fit_library(table, most=12)
    write_variant_fit(tmp_path / "fit.json", fit)
    again = read_variant_fit(tmp_path / "fit.json")
    assert (again.device.name, again.dtype, len(again.variants)) == ("MI100", "fp32", 12)
    variants, model = library_of(MI100, "fp32", [again])
    for gemm in table.gemms[::5]:
        mine, theirs = (m.measured_ns(gemm, variants, MI100) for m in (fit.model, model))
        np.testing.assert_allclose(theirs, mine, rtol=0.02)
    with pytest.raises(InvalidInputError, match="one GEMM or kernel only"):
        fit_variants(table.of_gemms(np.array([0])))
    text = (tmp_path / "fit.json").read_text()
    (tmp_path / "odd.json").write_text(text.replace('"low": [', '"low": [0.0,'))
    with pytest.raises(InvalidInputError, match=r"effects: low is \(16,\); it must be \(15,\)"):
        read_variant_fit(tmp_path / "odd.json")


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("variants", "lds_bytes"), None, r"fit.variants: .*lds_bytes"),
        (("variants", "depth"), [16.0], "variants: columns differ in length"),
        (("variants", "tile_q"), [16.0], "unknown key 'tile_q'"),
        (("constants", "efficiency"), 0.0, r"Expected `float` > 0"),
        (("constants", "store"), -1.0, r"Expected `float` >= 0"),
        (("constants", "resident"), 0.5, r"Expected `float` >= 1"),
        (("effects", "low"), [9.0] * 15, "effects: low is above high"),
        (("effects", "shapes"), [], r"effects: shapes is \(0,\); it must be \(0, 6\)"),
    ],
)
def test_a_file_that_is_no_fit_is_refused_with_the_place(
    tmp_path: Path, path: tuple[str, str], value: object, message: str
) -> None:
    content = json.loads(dataset_path("fits").joinpath("gemm_variants_mi100_fp32.json").read_text())
    content["fit"][path[0]] |= {path[1]: value}
    if value is None:
        del content["fit"][path[0]][path[1]]
    (tmp_path / "fit.json").write_text(json.dumps(content))
    with pytest.raises(InvalidInputError, match=rf"fit.json: not what .*{message}"):
        read_variant_fit(tmp_path / "fit.json")


def test_a_library_comes_from_the_device_else_its_architecture_else_a_prior() -> None:
    exact, model = library_of(MI100, "fp32")
    assert model.effects is not None and len(exact) > 100
    other, carried = library_of(find_device("MI210"), "bf16")
    assert carried.effects is None and carried.constants.step_cycles > 0
    assert other.depth.min() >= 1 and len(other) > 100
    prior, plain = library_of(find_device("H100-SXM5-80GB"), "bf16")
    assert plain == VariantModel() and set(prior.candidate.tolist()) == {-1}


DEVICES = [("MI100", "fp32"), ("MI100", "fp16"), ("MI50", "fp16"), ("MI300X", "bf16"), ("A100-SXM4-80GB", "fp16")]
sizes = st.integers(1, 20_000)


@settings(max_examples=60, deadline=None)
@given(
    shape=st.tuples(sizes, sizes, sizes, st.integers(1, 64)),
    device=st.sampled_from(DEVICES),
    units=st.tuples(st.floats(0.01, 1), st.floats(0.01, 1)),
    cache=st.tuples(st.floats(0.01, 1), st.floats(0.01, 1)),
)
def test_more_units_or_cache_never_slow_a_variant(
    shape: tuple[int, int, int, int],
    device: tuple[str, str],
    units: tuple[float, float],
    cache: tuple[float, float],
) -> None:
    on, dtype = find_device(device[0]), device[1]
    variants, model = library_of(on, dtype)
    gemm = Gemm(*shape, dtype)
    counts = sorted(max(int(share * on.compute_units), 1) for share in units)
    few, many = (
        model.costs(gemm, variants, on, units=count, cache_share=share)
        for count, share in zip(counts, sorted(cache), strict=True)
    )
    assert (many.time_ns <= few.time_ns * (1 + 1e-9)).all()
    assert (many.memory_bytes <= few.memory_bytes * (1 + 1e-9)).all()
    for costs in (few, many):
        for field in fields(costs):
            values = getattr(costs, field.name)
            assert np.isfinite(values).all() and (values >= 0).all()
        assert (costs.time_ns > 0).all() and (costs.memory_bytes >= sum(gemm.operand_bytes) * 0.999).all()
    peak = on.value("fp32_matrix_tflops") * 1e12 if device == ("MI100", "fp32") else on.flops_per_s(dtype)
    assert (many.time_ns >= gemm.flops / peak * 1e9 * 0.999).all()


@settings(max_examples=30, deadline=None)
@given(shape=st.tuples(sizes, sizes, sizes), seed=st.integers(0, 2**16))
def test_the_order_of_variants_changes_nothing(shape: tuple[int, int, int], seed: int) -> None:
    variants, model = library_of(MI100, "fp32")
    order = np.random.default_rng(seed).permutation(len(variants))
    gemm = Gemm(*shape)
    straight, mixed = (model.costs(gemm, v, MI100, units=60).time_ns for v in (variants, variants.select(order)))
    np.testing.assert_allclose(mixed, straight[order], rtol=1e-12)


def test_traffic_by_hand() -> None:
    def read(room: float, units: int = 4) -> list[Floats]:
        return list(traffic(Gemm(128, 256, 64), Variants.of(tile_m=[64], tile_n=[64]), units, room))

    # Operands of 32 and 64 KiB, a result of 128 KiB. Four tiles of 64 are a block of 128 x 128: the left operand is
    # read twice, the right one once.
    memory, requested, kept = read(0.0)
    assert memory.tolist() == [2 * 32768 + 65536 + 131072] and kept.tolist() == [0]
    assert requested.tolist() == [4 * 32768 + 2 * 65536 + 131072]
    # A cache that holds the left operand reads each operand once.
    memory, _, kept = read(32768.0)
    assert memory.tolist() == [32768 + 65536 + 131072] and kept.tolist() == [32768]


def test_winners_for_each_unit_are_ranked_among_the_library(tmp_path: Path) -> None:
    head = "m,n,k,batch,dtype_in,cu_macro_tile_m,cu_macro_tile_n,cu_depth_u,cu_workgroups\n"
    (tmp_path / "mi100.csv").write_text(head + "64,512,512,16,f16,64,256,32,32\n512,512,64,16,f16,1,1,1,4194304\n")
    winners = read_winners(tmp_path / "mi100.csv")
    assert winners.gemms == (Gemm(64, 512, 512, 16, "fp16"), Gemm(512, 512, 64, 16, "fp16"))
    ranks = winner_ranks(winners)
    assert ranks[0] < 0.1 and ranks[1] > 0.9  # a tile of one element is the slowest kernel there is
    (tmp_path / "bad.csv").write_text(head.replace("cu_workgroups", "groups"))
    with pytest.raises(InvalidInputError, match="no column cu_workgroups"):
        read_winners(tmp_path / "bad.csv")


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs the measured candidates in ../shared/data/gemm_variants")
def test_measured_candidates_of_the_mi100_that_a_fit_did_not_see() -> None:
    """Score each 25th kernel, so that it takes seconds."""
    table = read_candidates(SHARED / "tensile_candidates_mi100_f32.parquet")
    assert len(table.gemms) == 47 and len(table.time_ns) == 458_080 and (table.failed, table.repeated) == (0, 0)
    assert small_grids(table, table.time_ns).measured == 16
    rows = table.variant_of % 25 == 0
    some = replace(table, gemm_of=table.gemm_of[rows], variant_of=table.variant_of[rows], time_ns=table.time_ns[rows])
    summary = summarize(candidate_scores(some, held_out_times(some, folds_of(some.gemms, families=True))))
    assert summary["error"] < 0.15 and summary["regret"] < 0.10 and summary["spearman"] > 0.9


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs the measured candidates in ../shared/data/gemm_variants")
def test_the_table_of_accuracy_has_the_noise_and_the_ranks_of_winners_of_today(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Compute the rows without a fit anew; those with one take minutes in benchmarks/gemms/accuracy_of_gemms.py."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "gemms"))
    from accuracy_of_gemms import fast_rows

    table = list(csv.DictReader((ROOT / "tests" / "accuracy" / "gemms.csv").read_text().splitlines()))
    for found, recorded in zip(fast_rows(SHARED), table[-2:], strict=True):
        assert found.keys() == recorded.keys() and found["protocol"] == recorded["protocol"]
        for name, text in recorded.items():
            if "." in text:  # the last digit may differ with the version of NumPy
                assert float(found[name]) == pytest.approx(float(text), rel=1e-3, abs=0.011), name
            else:
                assert found[name] == text, name
