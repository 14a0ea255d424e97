"""GEMMs of a trace: tiles of names, grids, waves and tails by hand, causes, and what is not known."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from traces import event, kernel, kineto, launch

import seqpoint as sp
from profilers.devices import find_device
from profilers.errors import InvalidInputError, NotFoundError
from replay.costs.tiles import NamedTile, tile_of_name
from replay.gemms.gemm import Gemm, grid_of
from replay.graph.operators import batched_matmul
from seqpoint.cli import cli
from seqpoint.gemm_launches import CAUSES, Rates, Surroundings, causes_of, parts_of, rates_of
from seqpoint.gemm_table import TraceGemms

HALF = "ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_32x5_tn"
CUTLASS = "void cutlass::Kernel<cutlass_80_tensorop_f16_s16816gemm_f16_64x64_32x6_nn_align8>"


@pytest.mark.parametrize(
    ("name", "tile"),
    [
        ("Cijk_Ailk_Bjlk_HHS_BH_MT128x64x32_MI16x16x16x1_SN_1LDSB0", NamedTile(128, 64, 32)),
        ("Cijk_Alik_Bljk_BBS_BH_MT64x32x256_MI16x16x1_SN_LDSB1_GSU4_GSUAMB", NamedTile(64, 32, 256, split=4)),
        ("Cijk_Alik_Bljk_BBS_BH_MT256x256x64_MI16x16x1_SK3_SKXCCM8", NamedTile(256, 256, 64, persistent=True)),
        ("Cijk_Alik_Bljk_BBS_BH_MT256x256x64_MI16x16x1_SK0_WG64", NamedTile(256, 256, 64)),
        ("nvjet_tst_256x128_64x4_1x2_h_bz_coopA_NNT", NamedTile(256, 128, 64, persistent=True)),
        ("nvjet_tst_64x8_64x16_4x1_v_bz_splitK_TNT", NamedTile(64, 8, 64)),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x64x64_warpgroupsize1x1x1_execute_segment_k_off",
         NamedTile(128, 64, 64, persistent=True)),
        ("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x256x8_stage3_warpsize1x4x1_ffma", NamedTile(64, 256, 8)),
        ("cutlass3x_sm90_tensorop_s64x128x16gemm_bf16_bf16_f32_bf16_bf16_128x128x64_2x1x1_0_tnn_align8_warpspecialized",
         NamedTile(128, 128, 64, persistent=True)),
        (CUTLASS, NamedTile(64, 64, 32)),
        (HALF, NamedTile(128, 128, 32)),
        ("volta_sgemm_64x32_sliced1x4_nn", NamedTile(64, 32)),
        ("sgemm_128x128x8_NN_vec", NamedTile(128, 128, 8)),
        ("gemmSN_TN_kernel<float, 128, 16, 2, 4, 8, 9, false>", None),
        ("gemv2T_kernel_val", None),
        ("nvjet_0x0_64x4_1x2", None),
        ("gemm_99999x99999_tn", None),
        ("", None),
    ],
)  # fmt: skip
def test_the_name_of_a_kernel_states_its_tile(name: str, tile: NamedTile | None) -> None:
    assert tile_of_name(name) == tile


def test_waves_last_wave_and_tail_of_a_grid() -> None:
    # 11 x 10 tiles on 108 units: a second wave of 2 workgroups.
    gemm = Gemm(1408, 1280, 1024, dtype="fp16")
    grid = grid_of(gemm, NamedTile(128, 128, 32), 110, units=108)
    assert grid is not None and (grid.tiles, grid.split, grid.known_by) == (110, 1, "name")
    assert (grid.waves, grid.last_wave) == pytest.approx((110 / 108, 2 / 108))
    assert grid.tail_efficiency == pytest.approx(110 / 216)
    # Two workgroups on a unit run at one time, but share its rate: the tail stays.
    pair = grid_of(gemm, NamedTile(128, 128, 32), 110, units=108, resident=2)
    assert pair is not None
    assert (pair.waves, pair.last_wave, pair.tail_efficiency) == pytest.approx((110 / 216, 110 / 216, 110 / 216))


def test_a_tile_of_blas_has_our_columns_as_its_rows() -> None:
    # 788 / 32 = 25 rows of tiles and 768 / 64 = 12 columns; the other way round there would be 13 x 24 = 312.
    grid = grid_of(Gemm(788, 768, 768), NamedTile(64, 32, 128), 300, units=304)
    assert grid is not None and (grid.tile_m, grid.tile_n, grid.tiles) == (32, 64, 300)
    row_major = grid_of(Gemm(788, 768, 768), NamedTile(64, 32, 128), 312, units=304)
    assert row_major is not None and (row_major.tile_m, row_major.tile_n) == (64, 32)


def test_a_split_depth_multiplies_the_workgroups() -> None:
    grid = grid_of(Gemm(16, 512, 512), NamedTile(64, 32), 64, units=80)
    assert grid is not None and (grid.split, grid.tiles) == (8, 64)
    assert grid.inside(Gemm(16, 512, 512)) == 0.5


def test_a_persistent_kernel_takes_its_tiles_in_rounds() -> None:
    # 128 x 3 tiles by 132 workgroups: 3 rounds, the last with 120.
    grid = grid_of(Gemm(16384, 768, 3072), NamedTile(256, 128, 64, persistent=True), 132, units=132)
    assert grid is not None and (grid.tiles, grid.persistent) == (384, True)
    assert (grid.waves, grid.last_wave, grid.tail_efficiency) == pytest.approx((384 / 132, 120 / 132, 384 / 396))


def test_a_grid_that_is_rounded_up_has_idle_workgroups() -> None:
    # CUTLASS rounds 6 columns of tiles up to 8, beside 13 rows.
    grid = grid_of(Gemm(788, 768, 768), NamedTile(128, 64, 64), 104, units=132)
    assert grid is not None and (grid.workgroups, grid.tiles) == (104, 78)
    assert grid.units_used == pytest.approx(78 / 132)


def test_without_a_tile_in_the_name_the_grid_tells_one_as_a_guess() -> None:
    grid = grid_of(Gemm(512, 512, 4096), None, 16, units=108)
    assert grid is not None and (grid.tile_m, grid.tile_n, grid.known_by) == (128, 128, "grid")
    odd = grid_of(Gemm(512, 512, 4096), None, 17, units=108)
    assert (
        odd is not None and (odd.tile_m, odd.known_by, odd.tiles) == (0, "", 17) and odd.inside(Gemm(1, 1, 1)) is None
    )
    assert grid_of(Gemm(512, 512, 4096), None, 0, units=108) is None


SIZE = st.integers(1, 5000)


@given(SIZE, SIZE, st.integers(1, 8), st.integers(0, 3000), st.booleans(), st.integers(1, 304), st.integers(1, 4))
def test_shares_of_a_grid_are_shares(
    m: int, n: int, batch: int, workgroups: int, stays: bool, units: int, resident: int
) -> None:
    gemm = Gemm(m, n, 512, batch)
    for tile in (NamedTile(128, 64, 32, persistent=stays), None):
        grid = grid_of(gemm, tile, workgroups, units=units, resident=resident)
        if grid is None:
            assert tile is None and workgroups == 0
            continue
        inside = grid.inside(gemm)
        assert grid.waves > 0 and 0 < grid.last_wave <= 1 and 0 < grid.tail_efficiency <= 1
        assert 0 < grid.units_used <= 1 and (inside is None or 0 < inside <= 1)


def test_rates_follow_from_the_data_sheet() -> None:
    a100, gemm = find_device("A100-SXM4-80GB"), Gemm(512, 512, 4096, dtype="fp16")
    rates = rates_of(gemm, batched_matmul(1, 512, 512, 4096, 2), 40e3, a100)
    assert rates is not None
    # 2 * 512 * 512 * 4096 FLOP in 40 us on 312 TFLOP/s; 2 * (512 * 4096 * 2 + 512 * 512) bytes on 2039 GB/s.
    assert rates.efficiency == pytest.approx(2**31 / 40e-6 / 312e12)
    assert rates.bandwidth_share == pytest.approx(8_912_896 / 40e-6 / 2039e9)
    assert rates.limit == 1.0
    assert rates_of(gemm, batched_matmul(1, 512, 512, 4096, 2), 0.0, a100) is None


def names(causes: Any) -> list[str]:
    return [cause.name for cause in causes]


def test_each_cause_has_its_mark() -> None:
    a100 = find_device("A100-SXM4-80GB")
    vector = Gemm(16, 4096, 4096, dtype="fp16")
    bound = Rates(efficiency=0.01, limit=0.05, bandwidth_share=0.7)
    assert names(causes_of(vector, None, "k", around=Surroundings(30e3), rated=(a100, bound))) == ["memory-bound"]
    grid = grid_of(Gemm(1408, 1280, 96, dtype="fp16"), NamedTile(128, 128, 32), 110, units=108)
    (tail, shallow) = causes_of(Gemm(1408, 1280, 96, dtype="fp16"), grid, HALF, around=Surroundings(30e3), rated=None)
    assert str(tail) == "tail: 110 tiles keep 108 units 51 % busy" and str(shallow) == "shallow: 3 steps along k"
    odd = Gemm(1024, 1022, 1023, dtype="fp16")
    (guessed,) = causes_of(odd, None, "k", around=Surroundings(30e3), rated=None)
    assert str(guessed) == "~misaligned: k = 1023, n = 1022, no multiple of 8"
    busy = Rates(efficiency=0.6, limit=1.0, bandwidth_share=0.1)  # more than 51 % of the units can have computed
    assert names(causes_of(Gemm(1408, 1280, 960, dtype="fp16"), grid, HALF, around=Surroundings(30e3),
                           rated=(a100, busy))) == []  # fmt: skip
    (stated,) = causes_of(odd, None, "cutlass_x_align2", around=Surroundings(30e3), rated=None)
    assert str(stated) == "misaligned: 2 of 8 elements" and not stated.is_guess
    around = Surroundings(5e3, beside_share=0.5, partner="collective", idle_before_ns=20e3)
    causes = causes_of(vector, None, "k", around=around, rated=None, fixed_ns=4e3)
    assert names(causes) == ["short", "contention", "idle before"]
    assert str(causes[0]) == "~short: about 4 us of 5 us is fixed"
    assert str(causes[2]) == "~idle before: the device waits 20 us for the host, so a faster kernel gains nothing"
    fast = Rates(efficiency=0.9, limit=1.0, bandwidth_share=0.1)
    assert names(causes_of(vector, None, "k", around=Surroundings(30e3), rated=(a100, fast))) == ["near peak"]
    slow = Rates(efficiency=0.1, limit=1.0, bandwidth_share=0.1)
    assert names(causes_of(vector, None, "k", around=Surroundings(30e3), rated=(a100, slow))) == ["not explained"]
    single = Gemm(4096, 4096, 4096)
    assert names(causes_of(single, None, "sgemm", around=Surroundings(1e6), rated=(a100, fast))) == [
        "near peak",
        "fp32",
    ]
    assert {"memory-bound", "tail", "edges", "not explained"} <= set(CAUSES)


MI300_TILE = "Cijk_Alik_Bljk_BBS_BH_MT64x32x256_MI16x16x1_SN"


def test_the_least_times_of_a_kernel_by_hand() -> None:
    mi300x, gemm = find_device("MI300X"), Gemm(788, 768, 3072, dtype="bf16")
    grid = grid_of(gemm, tile_of_name(MI300_TILE), 300, units=304)
    parts = parts_of(gemm, grid, MI300_TILE, device=mi300x, fixed_ns=5e3)
    # One tile of 32 x 64 a unit, 12 steps. 116 + 240 + 300 cycles from the last cache, at 2.1 GHz.
    assert parts.waits == 12 and parts.waiting_ns == pytest.approx(12 * 656 / 2.1)
    # 96 x 3072 elements of 2 bytes; 300 units share the 8 x 16 slices of 128 bytes a cycle.
    assert parts.cache_ns == pytest.approx(96 * 3072 * 2 / (8 * 16 * 128 / 300 * 2.1))
    assert parts.compute_ns == pytest.approx(2 * 32 * 64 * 3072 / (1307.4e12 / 304) * 1e9)
    ahead = parts_of(gemm, grid, f"{MI300_TILE}_PGR2_PLR1", device=mi300x, fixed_ns=5e3)
    assert ahead.waits == 6 and ahead.total_ns == pytest.approx(parts.total_ns - parts.waiting_ns / 2)
    # Buffers that no name states, and loads that clusters share, are unknown.
    h100, hopper = find_device("H100-SXM5-80GB"), "sm90_xmma_gemm_bf16_tn_n_tilesize128x64x64_warpgroupsize1x1x1"
    known = parts_of(gemm, grid_of(gemm, tile_of_name(hopper), 98, units=132), hopper, device=h100, fixed_ns=4e3)
    assert (known.waits, known.cache_ns) == (0, 0.0) and known.compute_ns > 0
    assert parts_of(gemm, None, hopper, device=h100, fixed_ns=4e3).total_ns == 4e3


def test_a_full_wave_that_is_slow_has_a_cause_of_its_own() -> None:
    mi300x, gemm = find_device("MI300X"), Gemm(788, 768, 3072, dtype="bf16")
    grid = grid_of(gemm, tile_of_name(MI300_TILE), 300, units=304)

    def causes(time_ns: float, efficiency: float, **around: float) -> list[str]:
        rated = (mi300x, Rates(efficiency, 1.0, 0.1))
        surroundings = Surroundings(time_ns, **around)  # type: ignore[arg-type]
        return names(causes_of(gemm, grid, MI300_TILE, around=surroundings, rated=rated, fixed_ns=5e3))

    # Fixed time, waits, loads and arithmetic are 16.8 us one after another.
    assert causes(22.8e3, 0.124, idle_before_ns=38e3) == ["no overlap", "idle before"]
    assert causes(12e3, 0.24) == ["cache traffic", "short", "latency", "sustained rate"]
    assert causes(16e3, 0.18)[:1] == ["cache traffic"]
    assert causes(60e3, 0.05) == ["not explained"]
    assert causes(60e3, 0.05, adding_share=0.3) == ["split"]
    assert causes(60e3, 0.05, beside_share=0.9) == ["contention"]


def product(
    t: float, number: int, dims: list[list[int]], *kernels: dict[str, Any], dtype: str = "c10::Half"
) -> list[Any]:
    """Return a call of aten::mm at `t` us with its kernels, which begin 20 us later."""
    inputs = {"Input Dims": dims, "Input type": [dtype] * len(dims)} if dims else {}
    calls = [launch(t + 2 + 6 * i, 10 * number + i) for i in range(len(kernels))]
    return [event("aten::mm", "cpu_op", t, 19, **inputs), *calls, *kernels]


def saved(tmp_path: Path, *events: Any, **header: Any) -> Path:
    step = event("ProfilerStep#1", "user_annotation", 0, 5000)
    path = tmp_path / "t.json"
    path.write_text(json.dumps(kineto([step, *(each for group in events for each in group)], **header)))
    return path


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """Return a trace of two products of one shape, of one whose depth is split, and of kernels without a shape."""
    small = {"grid": [4, 4, 1]}
    return saved(
        tmp_path,
        product(100, 1, [[512, 4096], [4096, 512]], kernel(HALF, 120, 60, 10, **small)),
        product(200, 2, [[512, 4096], [4096, 512]], kernel(HALF, 220, 64, 20, **small)),
        product(
            300, 3, [[64, 8192], [8192, 64]],
            kernel(CUTLASS, 320, 20, 30, grid=[1, 1, 8], **{"registers per thread": 128, "shared memory": 0}),
            kernel("void splitKreduce_kernel<32, 16>", 341, 4, 31, grid=[8, 1, 1]),
        ),
        product(400, 4, [], kernel(HALF, 420, 10, 40, grid=[216, 1, 1])),
        product(500, 5, [[0, 4], [4, 4]], kernel("gemv2T_kernel_val", 520, 5, 50)),
        [kernel(HALF, 600, 7, 99, stream=9, grid=[12, 1, 1])],
    )  # fmt: skip


def test_launches_of_one_shape_share_a_row(recorded: Path) -> None:
    gemms = sp.gemms(recorded)
    first, second = gemms.rows
    assert str(first.gemm) == "512x512x4096 fp16" and (first.launches, first.time_ns, first.median_ns) == (
        2,
        124_000,
        62_000,
    )
    assert first.share == 124 / 170 and first.operators == ("aten::mm",) and first.kernel == HALF
    assert first.flops_per_s == pytest.approx(2 * 2**31 / 124e-6)
    assert first.efficiency == pytest.approx(2 * 2**31 / 124e-6 / 312e12)
    assert first.grid is not None and (first.tile, first.grid.workgroups, first.resident_known) == (
        "128x128x32",
        16,
        False,
    )
    assert (first.grid.waves, first.grid.tail_efficiency) == pytest.approx((16 / 108, 16 / 108))
    assert str(first.why[0]) == "few workgroups: 16 on 108 units"
    # The split's sum belongs to its product: one launch, the time of both, the grid of the longer kernel.
    assert str(second.gemm) == "64x64x8192 fp16" and (second.launches, second.time_ns) == (1, 24_000)
    assert second.grid is not None and (second.grid.split, second.grid.tiles) == (8, 8)
    assert second.resident_known and second.grid.resident == 2 and second.grid.waves == pytest.approx(8 / 216)


def test_the_sum_of_a_split_depth_is_not_its_main_kernel(tmp_path: Path) -> None:
    path = saved(tmp_path, product(100, 1, [[64, 8192], [8192, 64]], kernel(CUTLASS, 120, 3, 10, grid=[1, 1, 8]),
                                   kernel("void splitKreduce_kernel<float>", 124, 9, 11, grid=[8, 1, 1])))  # fmt: skip
    (row,) = sp.gemms(path).rows
    assert (row.kernel, row.time_ns, row.gemm.dtype, row.tile) == (CUTLASS, 12_000, "fp16", "64x64x32")
    alone = kernel("void splitKreduce_kernel<float>", 124, 9, 10, grid=[8, 1, 1])
    lost = sp.gemms(saved(tmp_path, product(100, 1, [[64, 8192], [8192, 64]], alone)))
    assert lost.rows == () and lost.unknown == {"the kernel whose parts they add is not recorded": (1, 9_000)}


def test_what_runs_before_and_beside_is_measured(tmp_path: Path) -> None:
    beside = kernel("ncclDevKernel_AllGather_RING_LL", 130, 30, 77, stream=20)
    path = saved(tmp_path, product(100, 1, [[512, 4096], [4096, 512]], kernel(HALF, 120, 40, 10)), [beside],
                 product(200, 2, [[512, 4096], [4096, 512]], kernel(HALF, 400, 40, 20)))  # fmt: skip
    (row,) = sp.gemms(path).rows
    # 30 of 80 us beside the collective; 0 and 240 us of an idle device before.
    assert row.beside_share == pytest.approx(30 / 80) and row.partners == (("collective", 1.0),)
    assert row.idle_before_ns == 120_000
    assert {"contention", "idle before"} <= set(names(row.why))
    assert "the host sets the pace" in " ".join(sp.gemms(path).notes())


def test_kernels_of_unknown_shape_are_counted_and_keep_their_waves(recorded: Path) -> None:
    gemms = sp.gemms(recorded)
    assert gemms.unknown == {"their operators tell none": (2, 15_000), "no operator launched them": (1, 7_000)}
    longest = gemms.kernels[0]
    assert (longest.kernel, longest.launches, longest.tile) == (HALF, 1, "128x128x32")
    assert longest.grid is not None and (longest.grid.waves, longest.grid.tail_efficiency) == (2.0, 1.0)
    assert [row.time_ns for row in gemms.kernels] == [10_000, 7_000, 5_000]
    assert any("2 GEMM kernels have no known shape" in line for line in gemms.summary())


def test_the_command_prints_tables_and_json(recorded: Path, tmp_path: Path) -> None:
    shown = CliRunner().invoke(cli, ["gemms", str(recorded), "--explain"], env={"COLUMNS": "140"})
    assert shown.exit_code == 0, shown.output
    for text in ("GEMMs by time", "Causes of low efficiency", "Tiles and waves", "GEMM kernels of unknown shape"):
        assert text in shown.output
    assert "few workgroups: 16 on 108 units" in shown.output and "128x128x32" in shown.output
    chart = tmp_path / "gemms.html"
    done = CliRunner().invoke(cli, ["gemms", str(recorded), "--json", "--plot", str(chart)])
    content = json.loads(done.stdout)
    assert content["device"] == "A100-SXM4-80GB" and content["gemm_ns"] == 148_000 and len(content["rows"]) == 2
    row = content["rows"][0]
    assert (row["m"], row["n"], row["k"], row["batch"], row["tile_known_by"]) == (512, 512, 4096, 1, "name")
    assert row["why"][0] == {"cause": "few workgroups", "detail": "16 on 108 units", "guess": False}
    assert content["kernels_of_unknown_shape"][0]["waves"] == 2.0
    assert chart.stat().st_size > 10_000
    table = sp.gemms(recorded).table()
    assert set(table.columns) == set(row) and len(table) == 2
    top = CliRunner().invoke(cli, ["gemms", str(recorded), "--top", "1"])
    assert "and 1 more: --all" in top.output


def test_an_unknown_device_leaves_efficiency_and_waves_open(tmp_path: Path) -> None:
    path = saved(tmp_path, product(100, 1, [[512, 4096], [4096, 512]], kernel(HALF, 120, 40, 10)), deviceProperties=[])
    gemms = sp.gemms(path)
    (row,) = gemms.rows
    assert (row.efficiency, row.grid, gemms.efficiency, row.tile) == (None, None, None, "-")
    assert row.flops_per_s == pytest.approx(2**31 / 40e-6)
    assert "add --device NAME" in gemms.notes()[0]
    assert json.loads(CliRunner().invoke(cli, ["gemms", str(path), "--json"]).stdout)["rows"][0]["waves"] is None
    with pytest.raises(InvalidInputError, match="name the device"):
        gemms.plot()
    named = sp.gemms(path, device="A100-SXM4-80GB").rows[0]
    assert named.efficiency == pytest.approx(2**31 / 40e-6 / 312e12)
    with pytest.raises(NotFoundError):
        sp.gemms(path, device="no such device")


def test_a_rate_above_the_peak_is_named_as_wrong(tmp_path: Path) -> None:
    path = saved(tmp_path, product(100, 1, [[4096, 4096], [4096, 4096]], kernel(HALF, 120, 1, 10)))
    assert any("the device, the data type or the durations are wrong" in note for note in sp.gemms(path).notes())


def test_a_trace_without_gemms_says_so(tmp_path: Path) -> None:
    path = saved(tmp_path, [launch(10, 1), kernel("vectorized_elementwise_kernel", 30, 5, 1)])
    done = CliRunner().invoke(cli, ["gemms", str(path)])
    assert done.exit_code == 0 and done.stdout.startswith("the trace holds no GEMM kernel")
    assert json.loads(CliRunner().invoke(cli, ["gemms", str(path), "--json"]).stdout)["rows"] == []
    assert len(TraceGemms.table(sp.gemms(path))) == 0


def test_damaged_values_leave_the_other_gemms(tmp_path: Path) -> None:
    path = saved(
        tmp_path,
        product(100, 1, [[512, 4096], [4096, 512]], kernel(HALF, 120, 0, 10)),
        product(200, 2, [[-1, 4], [4, 4]], kernel(HALF, 220, 9, 20)),
        product(300, 3, [[2**40, 2**40], [2**40, 2**40]], kernel(HALF, 320, 9, 30)),
        product(400, 4, [[64, 64], [64, 64]], kernel(HALF, 420, 9, 40, grid=[0, 0, 0])),
    )
    gemms = sp.gemms(path)
    assert [(str(row.gemm), row.time_ns) for row in gemms.rows] == [("64x64x64 fp16", 9_000), ("512x512x4096 fp16", 0)]
    assert gemms.rows[1].efficiency is None and gemms.rows[1].flops_per_s is None
    assert gemms.unknown == {"their operators tell none": (2, 18_000)}
    grid = gemms.rows[0].grid  # the tile alone tells that there was one
    assert grid is not None and (grid.workgroups, grid.tiles) == (0, 1)


def test_independent_gemms_of_a_step_have_a_degree_and_a_gain(recorded: Path) -> None:
    step = sp.gemms(recorded).step
    assert step is not None and step.iteration == 1
    (row,) = step.rows
    # No product can read an earlier one: the results have fewer elements than any operand.
    assert row.label == "2 x 512x512x4096 fp16 + 64x64x8192 fp16"
    assert (row.groups, row.evidence, row.degree) == (1, "shapes", 3)
    assert 1.02 < row.speedup <= 3.0 and row.concurrent_ns < row.sequential_ns
    assert row.gain_ns == pytest.approx(row.sequential_ns - row.concurrent_ns)
    assert row.time_ns == 148_000 and all("x" in tile for tile in row.tiles)
    shown = CliRunner().invoke(cli, ["gemms", str(recorded), "-i", "1"], env={"COLUMNS": "140"}).output
    assert "Independent GEMMs of iteration 1" in shown and row.label in shown
    facts = json.loads(CliRunner().invoke(cli, ["gemms", str(recorded), "--json"]).stdout)["step"]
    assert facts["rows"][0]["speedup"] == step.rows[0].speedup and facts["not_grouped"] == step.others


def test_gemms_that_fill_the_device_stay_one_after_another(tmp_path: Path) -> None:
    dims = [[8192, 4096], [4096, 8192]]
    path = saved(
        tmp_path,
        product(100, 1, dims, kernel(HALF, 120, 2200, 10, grid=[64, 64, 1])),
        product(200, 2, dims, kernel(HALF, 2330, 2200, 20, grid=[64, 64, 1])),
    )
    step = sp.gemms(path).step
    assert step is not None
    (row,) = step.rows
    assert (row.degree, row.tiles, row.is_tuned, row.speedup, row.gain_ns) == (1, (), False, 1.0, 0.0)


def test_groups_need_a_device_and_an_iteration(recorded: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="no iteration 7"):
        sp.gemms(recorded, iteration=7)
    path = saved(tmp_path, product(100, 1, [[512, 4096], [4096, 512]], kernel(HALF, 120, 40, 10)), deviceProperties=[])
    gemms = sp.gemms(path)
    assert gemms.step is None and any("no independent GEMMs were searched" in note for note in gemms.notes())


def test_copies_of_gemms_gain_by_size_and_degree(tmp_path: Path) -> None:
    simulated = sp.simulate_gemms([(256, 256, 1024), (1, 4096, 4096, 1024)], "MI100", dtype="fp32", degrees=[1, 4])
    rows = simulated.to_dict()["rows"]
    assert [(row["gemm"], row["degree"]) for row in rows] == [
        (shape, degree) for shape in ("256x256x1024 fp32", "4096x4096x1024 fp32") for degree in (1, 4)
    ]
    small, large = rows[1], rows[3]
    # A product of a few workgroups gains with each copy; one of many waves does not.
    assert rows[0]["speedup"] == rows[2]["speedup"] == 1.0
    assert 1.5 < small["speedup"] <= 4.0 and 1.0 <= large["speedup"] < 1.2
    assert all(row["speedup"] == pytest.approx(row["sequential_ns"] / row["time_ns"]) for row in rows)
    assert all(row["speedup"] >= row["default_speedup"] * (1 - 1e-9) for row in rows)
    simulated.plot().save(tmp_path / "map.html")
    assert len(simulated.table()) == 4 and (tmp_path / "map.html").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("shape", "options", "words"),
    [
        ((512, 512), {}, "give m, n and k"),
        ((512, 0, 64), {}, "each dimension must be 1 or more"),
        ((512, 512, 64), {"dtype": "int4"}, "types are"),
        ((512, 512, 64), {"degrees": [0]}, "1 or more"),
    ],
)
def test_a_gemm_that_cannot_be_is_refused(shape: tuple[int, ...], options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        sp.simulate_gemms([shape], "MI100", **options)
