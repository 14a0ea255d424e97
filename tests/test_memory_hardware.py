"""The simulation of caches and memory against devices: exact sectors of kernels, their counters, times of operators."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from profilers.devices import find_device
from profilers.errors import InvalidInputError
from replay.calibration.tables import MeasuredTable
from replay.memory.accesses import Lines, blocks
from replay.memory.simulation import simulate
from replay.memory.streams.passes import ArrayPass, layer_norm, softmax, streaming_pass
from replay.memory.system import find_policy, memory_system
from seqpoint.validation.memory_hardware import (
    TimeCase,
    read_counters,
    read_times,
    sampled,
    score_counters,
    score_times,
)
from seqpoint.validation.memory_kernels import COUNTED_KERNELS, LEFT_OUT
from seqpoint.validation.suites import SuiteOptions

SHARED = Path(__file__).parents[2] / "shared" / "data"
COUNTERS = SHARED / "hardware_counters" / "accelsim_hw_perf_volta.csv"
TIMES = SHARED / "kernels" / "nvidia_softmax.parquet"

#: Sectors of 32 bytes that loads and stores of each kernel touch, counted by hand from the launch. Those of adjust
#: lack the 15 loads and 6 stores of the first row; a sector that CUTLASS stores in parts is counted once.
SECTORS = {
    "fwtBatch1Kernel": (1_048_576, 1_048_576),
    "fwtBatch2Kernel": (1_048_576, 1_048_576),
    "CUDAkernel2DCT": (32_768, 32_768),
    "histogram64Kernel": (2_097_152, 34_960),
    "mysgemmNT": (9_563_136, 135_168),
    "srad": (255_234, 143_700),
    "layerforward": (204_800, 196_608),
    "adjust_weights": (770_048, 327_680),
    "sobolGPU_kernel": (204_800, 1_250_000),
    "cutlass_perf_test_k1": (460_800, 5_120),
    "cutlass_perf_test_k2": (2_097_152, 65_536),
    "cutlass_perf_test_k3": (3_276_800, 163_840),
    "compute_gemm": (69_206_016, 2_097_152),
}


@pytest.mark.parametrize("key", list(COUNTED_KERNELS), ids=" ".join)
def test_kernels_touch_the_sectors_that_were_counted(key: tuple[str, str]) -> None:
    expected = SECTORS[key[0] if key[0].startswith("cutlass") else key[1]]
    bits = np.array([bin(mask).count("1") for mask in range(16)])
    loads = stores = 0
    for block in blocks(COUNTED_KERNELS[key](), Lines(128, 32, 80, 32)):
        sectors, written = bits[block.sectors], block.is_write == 1
        loads += int(sectors[~written].sum())
        stores += int(sectors[written].sum())
    assert (loads, stores) == expected


@pytest.mark.skipif(not COUNTERS.exists(), reason=f"{COUNTERS} is not there")
def test_every_measured_kernel_has_a_stream_or_a_reason() -> None:
    table = MeasuredTable.read(COUNTERS)
    assert table is not None
    assert len(read_counters(table, "counters")) + len(LEFT_OUT) == len(table.content)


@pytest.mark.skipif(not COUNTERS.exists(), reason=f"{COUNTERS} is not there")
def test_hit_rates_and_bytes_agree_with_the_counters() -> None:
    table = MeasuredTable.read(COUNTERS)
    assert table is not None
    cases = [case for case in read_counters(table, "counters") if "compute_gemm" not in case.name]
    scores = score_counters(cases, SuiteOptions()).scores
    assert float(np.median([score.difference for score in scores])) < 0.01
    assert max(score.difference for score in scores) < 0.03
    assert float(np.median([score.error for score in scores])) < 0.10
    l1 = [abs(s.l1_hit_rate - s.measured_l1_hit_rate) for s in scores if s.measured_l1_hit_rate > 0]
    assert max(l1) < 0.05


@pytest.mark.skipif(not TIMES.exists(), reason=f"{TIMES} is not there")
def test_times_of_softmax_follow_from_rows_and_launch() -> None:
    table = MeasuredTable.read(TIMES)
    assert table is not None
    cases = [case for case in read_times(table, TIMES.name) if case.device.name == "V100-PCIE-32GB"]
    chosen = [case for case in sampled(cases) if case.rows * case.columns < 16e6]
    assert len(chosen) >= 3
    result = score_times(chosen, SuiteOptions())
    assert float(np.median([score.error for score in result.scores])) < 0.12
    assert [row.met for row in result.rows if row.limit is not None] == [True]


def table_of(path: Path, *lines: str) -> MeasuredTable:
    path.write_text("\n".join(lines) + "\n")
    table = MeasuredTable.read(path)
    assert table is not None
    return table


def test_operators_of_other_kinds_are_left_out(tmp_path: Path) -> None:
    head = "op,device,B,H,latency_ms,block_x,block_y"
    table = table_of(tmp_path / "a.csv", head, "add,V100,64,1024,0.5,128,1", "sort,V100,64,1024,0.5,128,1")
    (case,) = read_times(table, "a.csv")
    assert (case.kind, case.threads, case.seconds) == ("elementwise", 128, 0.0005)


def test_a_device_without_figures_is_left_out_with_its_reason() -> None:
    case = TimeCase("add", find_device("P4"), 64, 1024, 128, 0.001, "row 1")
    result = score_times([case], SuiteOptions())
    assert not result.rows
    assert "times of P4 are left out" in result.notes[1]


def test_a_negative_counter_is_refused(tmp_path: Path) -> None:
    names = ("l1_read_hits_sectors", "l1_read_misses_sectors", "l2_read_hits_sectors", "l2_read_misses_sectors",
             "dram_read_bytes", "dram_write_bytes")  # fmt: skip
    table = table_of(
        tmp_path / "a.csv", ",".join(("benchmark", "kernel", *names)), "dct8x8,CUDAkernel2DCT,0,1,0,-1,9,9"
    )
    with pytest.raises(InvalidInputError, match="row 1: l2_read_misses_sectors is -1"):
        read_counters(table, "a.csv")


def test_cycles_without_accesses_come_on_top() -> None:
    system, policy = memory_system(find_device("V100-PCIE-32GB")), find_policy("CacheRW")
    stream = softmax(161, 2048)
    assert stream.idle_cycles == 2 * 256
    with_, without = (simulate([s], system, policy).seconds for s in (stream, replace(stream, idle_cycles=0.0)))
    assert with_ - without == pytest.approx(3 * 512 / system.clock_hz)  # 161 workgroups on 80 units


def test_rows_take_the_threads_of_their_launch() -> None:
    # Recorded launches: V100 32 x 4 threads for a layer norm, MI100 64 x 4; rows of a softmax 256 or 512 threads.
    assert (layer_norm(64, 4096).threads, layer_norm(64, 4096, wavefront=64).threads) == (128, 256)
    assert [softmax(64, columns).threads for columns in (1000, 1041, 2048, 2085, 8192)] == [128, 256, 256, 512, 512]
    assert [softmax(5326, 696, wavefront=wavefront).workgroups for wavefront in (32, 64)] == [1332, 2663]
    long_row = softmax(64, 1085, wavefront=64)
    assert (long_row.threads, long_row.idle_cycles) == (1024, 0.0)
    assert long_row.flops == 2 * (170 + 2 * 88) * 1024 * 64  # two elements a thread


def test_a_pass_over_many_elements_ends_at_the_end_of_its_arrays() -> None:
    size = 4 * 4_000_000_000  # elements squared leave 64 bits
    stream = streaming_pass("copy", ArrayPass({"a": size}, {"b": size}, size // 4))
    last = stream.tiles(np.array([stream.workgroups - 1]), 0)
    assert (last.address + last.width).tolist() == [size, 2 * size]
