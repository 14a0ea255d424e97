"""Timing of kernels in PTX: latencies and peaks that are published, camping, samples, saved states, and assembly."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from profilers.devices import find_device
from profilers.errors import InvalidInputError, NotFoundError
from profilers.files import dataset_path
from replay.detailed import KernelCall, Plan, lower, parse_ptx
from replay.detailed.launch import runners
from replay.detailed.plans import read_plan
from replay.detailed.timing.assembly import ROLE, assemble
from replay.detailed.timing.expansion import SHARED_LOAD
from replay.detailed.timing.launches import Target, TimedLaunch, Timing, timed_plan
from replay.studies.operator_kernels import chase_plan, multiply_add_plan, operator_plan, stride_plan

V100 = Target.of(find_device("V100-SXM2-16GB"))
START = V100.core.figures.start


def cycles_a_load(memory: str, size: int, line: int, first: int) -> float:
    """Return the cycles of a load of a chain, from the difference of two runs."""
    short, long = (timed_plan(chase_plan(memory, size, steps, line=line), V100)[0] for steps in (first, first + 1000))
    return (long.cycles - short.cycles) / 1000


@pytest.mark.parametrize(
    ("memory", "size", "line", "first", "published"),
    [
        # Jia et al., arXiv 1804.06826, V100: shared memory 19 cycles, L1 28, L2 193. The chain needs an operation for
        # each address, of 4 or 5 cycles.
        ("shared", 4096, 128, 500, 19), ("global", 16 << 10, 128, 500, 28), ("global", 2 << 20, 512, 4100, 193),
    ],
)  # fmt: skip
def test_latencies_are_those_of_a_v100(memory: str, size: int, line: int, first: int, published: int) -> None:
    assert cycles_a_load(memory, size, line, first) - 4.5 == pytest.approx(published, rel=0.1)


def test_multiply_adds_reach_the_peak_of_the_device() -> None:
    blocks, threads, turns = 80 * 16, 128, 40
    (timing,) = timed_plan(multiply_add_plan(blocks, threads, turns), V100)
    rate = blocks * threads * turns * 128 / ((timing.cycles - START) / V100.core.clock_hz)
    assert 0.95 < rate / (80 * 128 * V100.core.clock_hz) <= 1


def test_a_stride_camps_on_a_channel_only_without_a_hash() -> None:
    spread = {}
    for mapping in ("interleaved", "xor"):
        target = Target.of(find_device("V100-SXM2-16GB"), mapping=mapping)
        (timing,) = timed_plan(stride_plan(80, 64, 8, 16384), target)
        spread[mapping] = timing.dram.bytes_by_channel.max() / timing.dram.bytes_by_channel.mean()
        assert timing.dram.efficiency >= timing.dram.utilisation
    assert spread["interleaved"] > 2 > 1.5 > spread["xor"]


def timed(plan_file: str, **how: int | None) -> Timing:
    (runner,) = runners(read_plan(dataset_path(plan_file)))
    return TimedLaunch(runner, V100, **how).run()


def test_a_launch_takes_the_same_time_again_and_counts_its_sectors() -> None:
    first, again = timed("ptx/triton/softmax.toml"), timed("ptx/triton/softmax.toml")
    assert first.cycles == again.cycles and np.array_equal(first.series, again.series)
    # 64 rows of 240 elements of 4 bytes are 30 sectors each, read once and written once.
    assert first.counters["load_sectors"] == first.counters["store_sectors"] == 64 * 30
    assert first.counters["dram_read_sectors"] == 64 * 30
    busy = first.by_unit.sum(axis=1)
    assert (busy == busy[0]).all() and first.series.sum() == first.by_unit.sum()


def test_basic_blocks_of_many_accesses_and_copies_of_no_bytes_are_counted(tmp_path: Path) -> None:
    loads = "".join(f"ld.global.u32 %r1, [%rd2+{32 * n}];\n" for n in range(2500))
    copies = "cp.async.ca.shared.global [%r2], [%rd1], 4, %r4;\ncp.async.wait_all;\n"
    (tmp_path / "many.ptx").write_text(f""".version 8.0 .target sm_80 .address_size 64
    .visible .entry many(.param .u64 p) {{ .reg .b64 %rd<3>; .reg .b32 %r<5>; .shared .align 4 .b8 tile[128];
    ld.param.u64 %rd1, [p]; mov.u32 %r3, %tid.x; mul.wide.u32 %rd2, %r3, 80000; add.s64 %rd2, %rd1, %rd2;
    {loads} mov.u32 %r2, tile; mad.lo.u32 %r2, %r3, 4, %r2; add.s64 %rd1, %rd1, 2560000; mul.wide.u32 %rd2, %r3, 32;
    add.s64 %rd1, %rd1, %rd2; and.b32 %r4, %r3, 4; {copies} ret; }}""")
    call = KernelCall(tmp_path / "many.ptx", "many", (1, 1, 1), (32, 1, 1), ("p",))
    (timing,) = timed_plan(Plan("many", {"p": np.zeros(2561024, np.uint8)}, (call,)), V100)
    # Every sector of 32 lanes once, and one for each of the 16 lanes that copy 4 bytes, not 0.
    assert timing.counters["load_sectors"] == 32 * 2500 + 16


def test_blocks_that_are_not_timed_take_as_long_within_the_stated_error() -> None:
    plan = operator_plan("copy", 6000, 2048)
    whole, sample = timed_plan(plan, V100, waves=None)[0], timed_plan(plan, V100, waves=1, execute_all=False)[0]
    assert sample.timed_blocks < whole.timed_blocks == whole.blocks and whole.cycles_error == 0
    assert abs(sample.cycles / whole.cycles - 1) <= sample.cycles_error


def test_a_saved_launch_goes_on_bit_for_bit(tmp_path: Path) -> None:
    plan = operator_plan("softmax", 400, 512)

    def launch() -> TimedLaunch:
        return TimedLaunch(next(iter(runners(plan))), V100)

    through = launch()
    whole = through.run()
    stopped, resumed = launch(), launch()
    assert not stopped.advance(1500)
    stopped.save(tmp_path / "state.npz")
    resumed.resume(tmp_path / "state.npz")
    later = resumed.run()
    assert later.cycles == whole.cycles and later.counters == whole.counters
    assert np.array_equal(later.series, whole.series) and np.array_equal(later.slice_series, whole.slice_series)
    assert np.array_equal(through.runner.memory.bytes, resumed.runner.memory.bytes)
    other = TimedLaunch(next(iter(runners(plan))), replace(V100, policy="lrr"))
    with pytest.raises(InvalidInputError, match="another launch or device"):
        other.resume(tmp_path / "state.npz")
    (tmp_path / "state.npz").write_bytes((tmp_path / "state.npz").read_bytes()[:5000])
    with pytest.raises(InvalidInputError, match="no saved state"):
        launch().resume(tmp_path / "state.npz")


def test_neighbouring_words_of_shared_memory_are_loaded_together_if_they_are_aligned() -> None:
    head = ".version 8.0 .target sm_70 .address_size 64\n.shared .align 16 .b8 s[4096];\n"
    loads = "".join(f"ld.shared.f32 %f{n}, [%r1+{4 * n}];" for n in range(8))
    adds = "".join(f"add.f32 %f9, %f9, %f{n};" for n in range(8))
    counts = []
    for scale in (32, 4):
        text = (
            f"{head}.entry k(.param .u64 p) {{ .reg .b32 %r<4>; .reg .f32 %f<10>; .reg .b64 %rd<3>;"
            f"ld.param.u64 %rd1, [p]; mov.u32 %r0, %tid.x; mov.u32 %r2, s; mov.f32 %f9, 0f00000000;"
            f"mad.lo.u32 %r1, %r0, {scale}, %r2; {loads} {adds} st.global.f32 [%rd1], %f9; ret; }}"
        )
        operations = assemble(lower(parse_ptx(text)), V100.core).operations
        counts.append(int((operations[:, ROLE] == SHARED_LOAD).sum()))
    assert counts == [2, 8]


def test_devices_that_do_not_run_ptx_are_refused() -> None:
    with pytest.raises(NotFoundError, match="that run PTX"):
        Target.of(find_device("MI300X"))
    with pytest.raises(InvalidInputError, match="does not fit a compute unit"):
        V100.core.resident_blocks(1024, 100, 0)
    with pytest.raises(InvalidInputError, match="scheduling policy"):
        Target.of(find_device("V100"), policy="best")
