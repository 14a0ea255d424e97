"""The time of a kernel under a memory system: bounds, sampling, warm caches, and the figures of devices."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profilers.devices.catalogue import find_device, load_devices
from profilers.errors import InvalidInputError, NotFoundError
from replay.memory.accesses import Stream, Tiles, operands
from replay.memory.simulation import KernelMemory, simulate
from replay.memory.streams import named_stream, named_streams
from replay.memory.system import Cache, CachePolicy, find_policy, memory_system

MI100, STUDY = memory_system(find_device("MI100")), memory_system(find_device("CachePolicy-GPU"))
DEVICE, UNCACHED = find_policy("Device"), find_policy("Uncached")
CACHE_R, CACHE_RW = find_policy("CacheR"), find_policy("CacheRW")


def reread(size: int, passes: int) -> Stream:
    """Return a kernel of one workgroup a unit that reads the same bytes in every step."""

    def tiles(workgroups, step):
        share = size // 64
        return Tiles.of(workgroups, workgroups * share, 0, width=share)

    return Stream("reread", operands(A=size), 64, passes, tiles, threads=256, residency=1)


def time_of(kind: str, shape: tuple[int, ...], **options: object) -> KernelMemory:
    return simulate(named_streams(kind, shape), MI100, DEVICE, **options)


def test_data_that_fits_the_l2_comes_from_memory_once() -> None:
    result = simulate([reread(2**20, 5)], STUDY, CACHE_R)
    assert result.counters["dram_reads"] * STUDY.dram.access_bytes == 2**20
    assert result.counters["dram_writes"] == 0


def test_without_caches_every_pass_goes_to_memory() -> None:
    result = simulate([reread(2**20, 5)], STUDY, UNCACHED)
    assert result.counters["dram_reads"] * STUDY.dram.access_bytes == 5 * 2**20


def test_no_kernel_is_faster_than_its_arithmetic_or_its_bytes() -> None:
    result = time_of("elementwise", (4_000_000,))
    moved = result.counters["dram_bytes"]
    assert moved == pytest.approx(2 * 4 * 4_000_000, rel=1e-3)
    assert result.seconds > moved / MI100.dram.bandwidth
    bound = time_of("gemm", (512, 512, 512), flops_per_s=1e9)
    assert bound.bound == "compute"
    assert bound.seconds >= 2 * 512**3 / 1e9


def test_counters_are_those_of_the_requests() -> None:
    result = time_of("softmax", (2000, 512))
    counters = result.counters
    assert counters["dram_bytes"] == (counters["dram_reads"] + counters["dram_writes"]) * MI100.dram.access_bytes
    assert 0 <= counters["dram_row_hits"] <= counters["dram_reads"] + counters["dram_writes"]
    assert counters["l1_loads"] + counters["l1_stores"] == counters["accesses"]
    assert 0.0 <= result.hit_share <= 1.0


@pytest.mark.parametrize(
    ("kind", "shape"), [("elementwise", (6_000_000,)), ("gemm", (2048, 2048, 1024)), ("softmax", (9000, 1200))]
)
def test_waves_that_stand_for_others_give_the_time_of_all(kind: str, shape: tuple[int, ...]) -> None:
    whole = time_of(kind, shape, most_accesses=10**9)
    sampled = time_of(kind, shape, most_accesses=300_000)
    assert whole.simulated_share == 1.0
    assert whole.error == 0.0
    assert sampled.simulated_share < 0.7
    assert sampled.seconds == pytest.approx(whole.seconds, rel=0.15)
    assert sampled.counters["accesses"] == pytest.approx(whole.counters["accesses"], rel=0.02)


def test_a_kernel_of_one_wave_is_simulated_whole() -> None:
    assert time_of("softmax", (64, 512), most_accesses=10).simulated_share == 1.0


def test_warm_operands_come_from_the_cache() -> None:
    cold = simulate([reread(2**20, 1)], STUDY, CACHE_R)
    warm = simulate([reread(2**20, 1)], STUDY, CACHE_R, warm=("A",))
    elsewhere = simulate([reread(2**20, 1)], STUDY, CACHE_R, warm=("B",))
    assert warm.counters["dram_reads"] == 0
    assert warm.seconds < cold.seconds
    assert elsewhere.counters["dram_reads"] == cold.counters["dram_reads"]


def test_kernels_one_after_another_find_what_the_first_left() -> None:
    two = simulate([reread(2**20, 1), reread(2**20, 1)], STUDY, CACHE_R)
    one = simulate([reread(2**20, 1)], STUDY, CACHE_R)
    assert two.counters["dram_reads"] == one.counters["dram_reads"]
    assert one.seconds < two.seconds < 2 * one.seconds


def test_only_some_policies_wait_for_dirty_lines_at_the_end_of_a_kernel() -> None:
    # 1 MiB of results fits the L2 and is written to memory when the kernel ends: no cycle of the caches for `Device`.
    waits = CachePolicy(name="waits", loads=True, stores=True, allocation_bypass=True)
    waiting, ends = (simulate([named_stream("elementwise", (2**18,))], MI100, policy) for policy in (waits, DEVICE))
    assert ends.counters["dram_writes"] == waiting.counters["dram_writes"] == 2**20 / MI100.dram.access_bytes
    assert ends.caches_s < waiting.caches_s


@pytest.mark.parametrize("factor", [0.125, 0.25, 0.5])
@pytest.mark.parametrize("most_accesses", [100_000, 10**9])
def test_a_smaller_l2_speeds_no_kernel_that_stores_up(factor: float, most_accesses: int) -> None:
    stream = named_stream("elementwise", (2_000_000,))
    small, whole = (
        simulate([stream], system, DEVICE, most_accesses=most_accesses)
        for system in (MI100.scaled("l2", factor), MI100)
    )
    assert small.seconds > 0.99 * whole.seconds


def test_a_sampled_kernel_writes_no_more_than_it_stores() -> None:
    # 12 million elements of 4 bytes are stored once; every one of them is in memory when the kernel has ended.
    result = time_of("elementwise", (12_000_000,), most_accesses=100_000)
    assert result.simulated_share < 0.5
    assert result.counters["dram_writes"] * MI100.dram.access_bytes == pytest.approx(48e6, rel=0.01)


def test_equal_seeds_give_equal_results() -> None:
    system = replace(STUDY, l2=replace(STUDY.l2, replacement="random"))
    stream = named_stream("gemm", (512, 512, 256))
    first, second = (simulate([stream], system, CACHE_RW, seed=3) for _ in range(2))
    assert first.counters == second.counters
    assert first.seconds == second.seconds


@settings(max_examples=6, deadline=None)
@given(rows=st.integers(1, 400), columns=st.integers(1, 700))
def test_a_larger_cache_reads_no_more_of_a_kernel_that_reads_twice(rows: int, columns: int) -> None:
    stream = named_stream("layer_norm", (rows, columns))
    reads = [
        simulate([stream], STUDY.scaled("l2", factor), CACHE_R).counters["dram_reads"] for factor in (1.0, 2.0, 4.0)
    ]
    assert reads == sorted(reads, reverse=True)


def test_a_kernel_that_is_not_there() -> None:
    with pytest.raises(InvalidInputError, match="no kernel to simulate"):
        simulate([], MI100, DEVICE)


def test_every_device_with_known_caches_has_a_memory_of_its_bandwidth() -> None:
    for device in load_devices().values():
        if device.vendor == "Intel":
            with pytest.raises(NotFoundError, match=f"the caches of {device.name} .* are unknown"):
                memory_system(device)
        elif "l2_mb" in device.figures and "clock_mhz" in device.figures:
            system = memory_system(device)
            assert system.dram.bandwidth == pytest.approx(device.memory_bytes_per_s)
            assert system.dies * system.l2.size == pytest.approx(device.value("l2_mb") * 2**20, rel=0.02)
            assert (system.llc is not None) == ("llc_mb" in device.figures)


def test_an_unknown_architecture_names_the_known_ones() -> None:
    device = replace(find_device("MI100"), architecture="Sea Islands")
    with pytest.raises(NotFoundError, match=r"Sea Islands.*Ampere"):
        memory_system(device)


def test_a_scaled_cache_keeps_its_ways() -> None:
    larger = STUDY.scaled("l2", 2.0)
    assert (larger.l2.size, larger.l2.ways, larger.l2.sets) == (2 * STUDY.l2.size, 16, 2 * STUDY.l2.sets)
    assert STUDY.scaled("l1", 0.5).l1.size == STUDY.l1.size // 2
    with pytest.raises(InvalidInputError, match="no last-level cache"):
        STUDY.scaled("llc", 2.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ways": 3, "replacement": "plru"}, "3 ways with plru"),
        ({"replacement": "fifo"}, "replacement 'fifo'; one of lru"),
        ({"size": 0}, "a cache of 0 bytes"),
        ({"size": 64, "ways": 4}, "no room for 4 ways"),
    ],
)
def test_a_cache_that_cannot_be(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        Cache(**({"size": 2**20, "ways": 4, "line_bytes": 64, "sector_bytes": 64} | changes))
