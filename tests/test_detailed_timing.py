"""Timing of kernels in PTX: latencies and peaks that are published, camping, samples, saved states, and assembly."""

from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.detailed.operator_kernels import chase_plan, multiply_add_plan, operator_plan
from profilers.devices import find_device
from profilers.errors import InvalidInputError, NotFoundError
from profilers.files import dataset_path
from replay.detailed import KernelLaunch, LaunchPlan, lower, parse_ptx
from replay.detailed.plans import read_plan
from replay.detailed.timing import simulation
from replay.detailed.timing.assembly import ROLE, assemble
from replay.detailed.timing.expansion import SHARED_LOAD
from replay.detailed.timing.launches import LaunchTiming, TimedDevice
from replay.detailed.timing.simulation import Checkpoint, simulate_plan
from replay.studies.detailed import stride_plan

V100 = TimedDevice.of(find_device("V100-SXM2-16GB"))
START = V100.core.figures.start


def timing_of(plan: LaunchPlan, target: TimedDevice = V100, **how: Any) -> LaunchTiming:
    """Return the timing of the only launch of a plan."""
    (timing,) = simulate_plan(plan, target, **how).timings
    return timing


def cycles_a_load(memory: str, size: int, line: int, first: int) -> float:
    """Return the cycles of a load of a chain, from the difference of two runs."""
    short, long = (
        simulate_plan(chase_plan(memory, size, steps, line=line), V100).timings[0] for steps in (first, first + 1000)
    )
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
    timing = timing_of(multiply_add_plan(blocks, threads, turns))
    rate = blocks * threads * turns * 128 / ((timing.cycles - START) / V100.core.clock_hz)
    assert 0.95 < rate / (80 * 128 * V100.core.clock_hz) <= 1


def test_a_stride_camps_on_a_channel_only_without_a_hash() -> None:
    spread = {}
    for mapping in ("interleaved", "xor"):
        target = TimedDevice.of(find_device("V100-SXM2-16GB"), mapping=mapping)
        timing = timing_of(stride_plan(80, 64, 8, 16384), target)
        spread[mapping] = timing.dram.bytes_by_channel.max() / timing.dram.bytes_by_channel.mean()
        assert timing.dram.efficiency >= timing.dram.utilisation
    assert spread["interleaved"] > 2 > 1.5 > spread["xor"]


def timed(plan_file: str, **how: int | None) -> LaunchTiming:
    return timing_of(read_plan(dataset_path(plan_file)), **how)


def test_dram_utilisation_is_of_the_whole_launch() -> None:
    # 61 kB in 2 us: the bytes are few for the time that the launch takes, most of which is its start.
    timing = timed("ptx/triton/softmax.toml")
    moved = 32 * (timing.counters["dram_read_sectors"] + timing.counters["dram_write_sectors"])
    assert timing.dram.utilisation == pytest.approx(moved / timing.seconds / V100.memory.dram.bandwidth, rel=0.01)
    assert 0 < timing.dram.utilisation < 0.2 * timing.dram.efficiency


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
    call = KernelLaunch(tmp_path / "many.ptx", "many", (1, 1, 1), (32, 1, 1), ("p",))
    timing = timing_of(LaunchPlan("many", {"p": np.zeros(2561024, np.uint8)}, (call,)))
    # Every sector of 32 lanes once, and one for each of the 16 lanes that copy 4 bytes, not 0.
    assert timing.counters["load_sectors"] == 32 * 2500 + 16


def test_slices_serve_no_more_than_they_can() -> None:
    timing = timing_of(operator_plan("copy", 1000, 2048), waves=None)
    sectors = timing.counters["l2_read_hits"] + timing.counters["l2_read_misses"] + timing.counters["l2_writes"]
    assert timing.slice_series.sum() == sectors
    # A sector that a slice begins in one window may end in the next.
    most = timing.span_cycles / (V100.memory.l2.line_cycles / 4) + 1
    assert 0.5 * most < timing.slice_series.max() <= most


def test_blocks_that_are_not_timed_take_as_long_within_the_stated_error() -> None:
    plan = operator_plan("copy", 6000, 2048)
    whole, sample = timing_of(plan, waves=None), timing_of(plan, waves=1, execute_all=False)
    assert sample.timed_blocks < whole.timed_blocks == whole.blocks and whole.cycles_error == 0
    assert abs(sample.cycles / whole.cycles - 1) <= sample.cycles_error


class StoppedError(Exception):
    """A user interrupts the simulation."""


def interrupt(plan: LaunchPlan, target: TimedDevice | None, file: Path, after: int) -> None:
    """Stop a simulation when its progress is told for the last of so many times; its state is written just before."""
    count, seconds = 0, 0.0

    def monotonic() -> float:
        nonlocal seconds
        seconds += 100.0 if count >= after else 0.0
        return seconds

    def progress(done: int, blocks: int, name: str) -> None:
        nonlocal count
        count += 1
        if count > after:
            raise StoppedError

    with pytest.MonkeyPatch.context() as patch, pytest.raises(StoppedError):
        patch.setattr(simulation, "time", SimpleNamespace(monotonic=monotonic))
        simulate_plan(plan, target, waves=1, progress=progress, checkpoint=Checkpoint(file))
    assert file.exists()


# Three launches tell 69 times each, or 100 without a device: stopped within launches, between two, and at the end.
@pytest.mark.parametrize(("target", "after"), [(V100, 1), (V100, 69), (V100, 206), (None, 1), (None, 100)])
def test_a_simulation_that_was_stopped_goes_on_bit_for_bit(
    tmp_path: Path, target: TimedDevice | None, after: int
) -> None:
    copy = operator_plan("copy", 1000, 2048)
    plan = LaunchPlan("three", copy.buffers, copy.calls * 3)
    file = tmp_path / "state.npz"
    whole = simulate_plan(plan, target, waves=1)
    interrupt(plan, target, file, after)
    if after < 200:
        interrupt(plan, target, file, 2)
    later = simulate_plan(plan, target, waves=1, checkpoint=Checkpoint(file))
    assert not file.exists()
    assert later.calls == whole.calls and later.shared_bytes == whole.shared_bytes
    for name, array in whole.outputs.items():
        assert array.tobytes() == later.outputs[name].tobytes()
    for first, second in zip(whole.timings, later.timings, strict=True):
        facts, again = (dict(flat(asdict(timing))) for timing in (first, second))
        assert facts.keys() == again.keys()
        for name, value in facts.items():
            assert type(value) is type(again[name]) and np.array_equal(value, again[name]), name


def flat(facts: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the entries of nested dictionaries."""
    for name, value in facts.items():
        yield from flat(value, f"{prefix}{name}.") if isinstance(value, dict) else [(f"{prefix}{name}", value)]


def test_states_of_other_simulations_and_damaged_ones_are_refused(tmp_path: Path) -> None:
    plan, file = operator_plan("copy", 1000, 2048), tmp_path / "state.npz"
    interrupt(plan, V100, file, 1)
    content = file.read_bytes()
    buffers = dict(plan.buffers)
    buffers["x"] = np.ones_like(buffers["x"])
    others = [
        (plan, replace(V100, policy="lrr"), {}),
        (plan, V100, {"registers": 99}),
        (plan, None, {}),
        (plan, V100, {"waves": 2}),
    ]
    for other, target, how in [*others, (replace(plan, buffers=buffers), V100, {})]:
        with pytest.raises(InvalidInputError, match=r"state\.npz: this is the state of another simulation"):
            simulate_plan(other, target, **({"waves": 1} | how), checkpoint=Checkpoint(file))
    for damaged in (b"", content[:5000], b"text", content[:-2000]):
        file.write_bytes(damaged)
        with pytest.raises(InvalidInputError, match=r"state\.npz: this is no saved state"):
            simulate_plan(plan, V100, waves=1, checkpoint=Checkpoint(file))
        assert file.read_bytes() == damaged


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


def test_registers_are_those_that_live_at_the_same_time() -> None:
    """Eight values in each arm of a branch live at different times, and four live across a loop that defines two."""
    arm = "".join(f"ld.global.f32 %f{{0}}{n}, [%rd1+{{1}}{n}0];" for n in range(8))
    total = "".join(f"add.f32 %f9, %f9, %f{{0}}{n};" for n in range(8))
    arms = [(arm + total).format(prefix, prefix) for prefix in (1, 2)]
    around = "".join(f"ld.global.f32 %f{30 + n}, [%rd1+{4 * n}];" for n in range(4))
    loop = "L: ld.global.f32 %f40, [%rd1]; add.f32 %f9, %f9, %f40; setp.lt.f32 %p1, %f9, 0f42C80000; @%p1 bra L;"
    after = "".join(f"add.f32 %f9, %f9, %f{30 + n};" for n in range(4))
    bodies = {
        "arms": f"@%p1 bra X; {arms[0]} bra Y;\nX: {arms[1]}\nY:",
        "loop": f"{around} {loop} {after}",
    }
    found = {}
    for name, body in bodies.items():
        text = (
            ".version 8.0 .target sm_70 .address_size 64\n.entry k(.param .u64 p, .param .u32 n) {\n"
            ".reg .f32 %f<50>; .reg .b64 %rd<3>; .reg .b32 %r<3>; .reg .pred %p<2>;\n"
            "ld.param.u64 %rd1, [p]; ld.param.u32 %r1, [n]; mov.u32 %r2, %tid.x; mul.wide.u32 %rd2, %r2, 4;\n"
            "add.s64 %rd1, %rd1, %rd2; setp.eq.u32 %p1, %r1, 0; mov.f32 %f9, 0f00000000;\n"
            f"{body}\nst.global.f32 [%rd1], %f9; ret; }}"
        )
        found[name] = assemble(lower(parse_ptx(text)), V100.core).registers
    # An address of two registers, the sum, and eight or four values; the loop has one more.
    assert found == {"arms": 6 + 2 + 1 + 8, "loop": 6 + 2 + 1 + 4 + 1}


def test_devices_that_do_not_run_ptx_are_refused() -> None:
    with pytest.raises(NotFoundError, match="that run PTX"):
        TimedDevice.of(find_device("MI300X"))
    with pytest.raises(InvalidInputError, match="does not fit a compute unit"):
        V100.core.resident_blocks(1024, 100, 0)
    with pytest.raises(InvalidInputError, match="scheduling policy"):
        TimedDevice.of(find_device("V100"), policy="best")


@pytest.mark.parametrize("figure", [float("nan"), 0.0, -1.0, 0.001, float("inf")])
def test_clocks_and_bandwidths_out_of_range_are_refused(figure: float) -> None:
    with pytest.raises(InvalidInputError, match="100 to 10,000 MHz"):
        TimedDevice.of(find_device("V100"), clock_mhz=figure)
    with pytest.raises(InvalidInputError, match="10 to 100,000 GB/s"):
        TimedDevice.of(find_device("V100"), memory_gbps=figure)


def test_copies_wait_for_room_on_the_way_to_l2(tmp_path: Path) -> None:
    # Each block copies 128 KiB at once: more sectors than can be on their way from all units.
    copies = "".join(f"cp.async.cg.shared.global [%r1+{2048 * n}], [%rd1+{2048 * n}], 16;\n" for n in range(64))
    (tmp_path / "copies.ptx").write_text(f""".version 8.0 .target sm_80 .address_size 64
    .extern .shared .align 16 .b8 tile[];
    .visible .entry copies(.param .u64 p) {{ .reg .b64 %rd<3>; .reg .b32 %r<4>;
    ld.param.u64 %rd1, [p]; mov.u32 %r2, %ctaid.x; mul.wide.u32 %rd2, %r2, 131072; add.s64 %rd1, %rd1, %rd2;
    mov.u32 %r2, %tid.x; mul.wide.u32 %rd2, %r2, 16; add.s64 %rd1, %rd1, %rd2; mov.u32 %r1, tile;
    mad.lo.u32 %r1, %r2, 16, %r1; {copies} cp.async.commit_group; cp.async.wait_group 0; bar.sync 0; ret; }}""")
    call = KernelLaunch(tmp_path / "copies.ptx", "copies", (132, 1, 1), (128, 1, 1), ("p",), 131072)
    target = TimedDevice.of(find_device("H100-SXM5-80GB"))
    timing = timing_of(LaunchPlan("copies", {"p": np.zeros(132 << 17, np.uint8)}, (call,)), target)
    assert timing.counters["load_sectors"] == timing.counters["dram_read_sectors"] == 132 * 4096
    # All bytes come from DRAM, at its bandwidth at most.
    assert timing.seconds > (132 << 17) / target.memory.dram.bandwidth
