"""The virtual GPU behaves as a GPU is known to, where the figures can be worked out on paper."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.gpu.__main__ import main  # noqa: E402
from benchmarks.gpu.step import Machine, Member  # noqa: E402
from benchmarks.gpu.virtual.device import DEVICES  # noqa: E402
from benchmarks.gpu.virtual.machine import VirtualMachine  # noqa: E402
from benchmarks.gpu.virtual.program import program  # noqa: E402
from benchmarks.gpu.virtual.simulate import Ran, simulate  # noqa: E402
from benchmarks.gpu.work import Work, copied, gemm, moved, streamed  # noqa: E402
from profilers.trace.kernels import classify  # noqa: E402

DEVICE = DEVICES["Virtual GPU"]
#: Without what makes figures uneven: a clock that falls, rows that conflict, a latency that grows.
PLAIN = replace(DEVICE, clock_slope=0.0, row_conflict=0.0, turnaround=0.0, latency_growth=0.0, hbm_efficiency=1.0)
MIB = 2**20
LARGE = gemm(4096, 4096, 4096)
COPY = copied(64 * MIB, 16)


def run(*members: Member | Work) -> list[Ran]:
    return simulate(DEVICE, [m if isinstance(m, Member) else Member(m) for m in members])


def alone(work: Work, launches: int = 1, units: int = 0) -> float:
    (ran,) = run(Member(work, launches, units=units))
    return ran.end_ns - ran.start_ns


def took(ran: Ran) -> float:
    return ran.end_ns - ran.start_ns


def test_a_product_bound_by_arithmetic_takes_its_waves() -> None:
    # 4096 x 4096 in tiles of 128 x 256 is 512 workgroups, 4 waves on 128 SMs of one each. A workgroup's
    # 2 * 128 * 256 * 4096 FLOP at 85 % of 4096 FLOP a clock at 1.7 GHz take 45.354 us; it waits for its first tiles
    # and its last store, some 3 us at most, and the launch takes 2.5 us.
    wave = 2 * 128 * 256 * 4096 / (0.85 * 4096 * 1.7)
    (ran,) = simulate(PLAIN, [Member(LARGE)])
    assert 4 * wave < took(ran) < 4 * (wave + 3000) + 2500
    (more,) = simulate(PLAIN, [Member(gemm(4096 + 128, 4096, 4096))])  # 16 workgroups more: a fifth wave
    assert took(more) - took(ran) == pytest.approx(wave, rel=0.1)


def test_a_thin_product_is_bound_by_memory() -> None:
    thin = gemm(16, 16384, 16384)
    at_peak = (thin.bytes_read + thin.bytes_written) / DEVICE.hbm_gbps
    assert at_peak / 0.94 < alone(thin) < 1.25 * at_peak


def test_a_copy_draws_more_with_more_workgroups_until_memory_is_full() -> None:
    gbps = {k: 2 * 256 * MIB / alone(copied(256 * MIB, k)) for k in (1, 2, 8, 64, 128)}
    # 32 KiB under way, a latency of 620 ns, and 2 x 32 KiB through ports of 108.8 bytes a ns: at most 90 GB/s.
    assert 50 < gbps[1] < 90
    assert gbps[2] / gbps[1] == pytest.approx(2, rel=0.02) and gbps[8] / gbps[1] == pytest.approx(8, rel=0.05)
    assert 0.8 * 4000 < gbps[64] < gbps[128] < 0.94 * 4000


def test_work_is_conserved() -> None:
    add = streamed("elementwise", 16 * MIB)
    product, copy, added, engine = run(LARGE, COPY, add, moved("copy_engine", "h2d", 8 * MIB))
    assert product.stored == LARGE.bytes_written and product.loaded == 512 * (128 + 256) * 4096 * 2
    assert (copy.loaded, copy.stored) == (COPY.bytes_read, COPY.bytes_written)
    assert (added.loaded, added.stored) == (add.bytes_read, add.bytes_written)
    assert (engine.over_link, engine.stored, engine.loaded) == (8 * MIB, 8 * MIB, 0)
    served = sum(r.missed + r.written_back for r in (product, copy, added, engine))
    assert served / (DEVICE.hbm_gbps * 0.94) <= max(r.end_ns for r in (product, copy, added, engine))


def test_what_was_stored_reaches_memory_but_for_what_the_cache_still_holds() -> None:
    (ran,) = run(COPY)
    assert ran.missed == 64 * MIB
    assert 64 * MIB - DEVICE.l2_bytes <= ran.written_back < 64 * MIB


def test_a_copy_behind_a_product_that_fills_the_device_starts_when_places_come_free() -> None:
    product, copy = run(LARGE, COPY)
    before, _ = run(COPY, LARGE)
    assert took(product) == pytest.approx(alone(LARGE), rel=0.02)
    assert copy.end_ns > product.end_ns + 0.5 * alone(COPY)  # next to nothing of it was done before
    assert took(before) < 1.25 * alone(COPY)


def test_two_grids_share_an_sm_where_both_fit() -> None:
    # Tiles of 128 x 128: 128 KiB of the 228 KiB of shared memory and half of the registers of every SM.
    product = gemm(2048, 1024, 8192)
    _, copy = run(product, COPY)
    assert program(product, DEVICE).shared == 128 * 1024 and program(product, DEVICE).blocks == 128
    assert took(copy) < 1.6 * alone(COPY)


def test_nobody_passes_a_grid_that_does_not_fit_but_by_priority() -> None:
    product = gemm(2048, 1024, 8192)
    _, second, copy = run(product, product, COPY)
    assert copy.end_ns > alone(product) + 0.8 * alone(COPY)  # the second fits on no SM before the first is done
    _, _, sooner = run(product, product, Member(COPY, priority=1))
    assert took(sooner) < 1.6 * alone(COPY)
    assert second.end_ns == pytest.approx(2 * alone(product), rel=0.15)


def test_priority_lets_a_copy_in_at_the_next_place_that_comes_free() -> None:
    product, copy = run(LARGE, Member(COPY, priority=1))
    _, behind = run(LARGE, COPY)
    assert behind.end_ns - copy.end_ns == pytest.approx(0.75 * alone(LARGE), rel=0.15)  # after the first wave of four
    assert product.end_ns > 1.1 * alone(LARGE)


def test_two_equal_kernels_that_stream_take_twice_as_long() -> None:
    add = streamed("elementwise", 32 * MIB)
    first, second = run(add, add)
    assert max(first.end_ns, second.end_ns) == pytest.approx(2 * alone(add), rel=0.05)


def test_an_engine_slows_a_product_far_less_than_workgroups_with_the_same_bytes() -> None:
    size = 10 * MIB
    engine, _ = run(LARGE, moved("copy_engine", "h2d", size))
    _, kernel = run(moved("zero_copy", "h2d", size, 16), LARGE)
    assert took(engine) < 1.02 * alone(LARGE)
    assert took(kernel) > 1.2 * alone(LARGE)  # 16 SMs fewer: 5 waves


def test_an_engine_moves_at_the_speed_of_the_link_and_engines_share_it() -> None:
    transfer = moved("copy_engine", "h2d", 16 * MIB)
    own = 16 * MIB / DEVICE.link_gbps
    assert alone(transfer) == pytest.approx(own, rel=0.02)
    first, second = run(transfer, transfer)
    assert took(first) == pytest.approx(2 * own, rel=0.02) == took(second)
    up, down = run(transfer, moved("copy_engine", "d2h", 16 * MIB))
    assert took(up) == pytest.approx(own, rel=0.02) == took(down)


def test_an_engine_more_than_there_are_waits() -> None:
    back = moved("copy_engine", "d2d", 64 * MIB)
    ran = run(back, back, back, back)
    assert ran[2].end_ns == pytest.approx(ran[0].end_ns, rel=0.05)
    assert ran[3].end_ns == pytest.approx(ran[0].end_ns + 64 * MIB / DEVICE.engine_gbps, rel=0.05)


def test_few_workgroups_do_not_fill_the_host_link() -> None:
    gbps = [8 * MIB / alone(moved("zero_copy", "h2d", 8 * MIB, k)) for k in (1, 4, 16)]
    assert gbps[0] == pytest.approx(8192 / 1300, rel=0.05)  # what is under way over the latency
    assert gbps[1] == pytest.approx(4 * gbps[0], rel=0.05) and gbps[2] == pytest.approx(DEVICE.link_gbps, rel=0.05)


def test_reads_that_fit_the_cache_lose_it_to_a_stream() -> None:
    read = Member(streamed("read", 4 * MIB), 40)
    (warm,) = run(read)
    assert warm.missed == 16 * MIB  # once
    per_pass = (took(warm) - 40 * DEVICE.gap_ns) / 40
    assert 16 * MIB / per_pass > 1.4 * DEVICE.hbm_gbps
    (cold,) = simulate(replace(DEVICE, l2_bytes=2 * MIB), [read])
    assert cold.missed > 0.8 * cold.loaded and took(cold) > 1.3 * took(warm)
    beside, _ = run(read, copied(256 * MIB, 64))
    assert beside.missed > 2.5 * warm.missed and took(beside) > 1.2 * took(warm)
    kept, _ = run(read, replace(copied(256 * MIB, 64), hint="streaming"))
    assert kept.missed == warm.missed


def test_a_partition_takes_waves_of_its_own() -> None:
    # 512 workgroups: 4 waves on 128 SMs, 5 on 127 to 103, 8 on 64.
    time = {units: took(simulate(PLAIN, [Member(LARGE, units=units)])[0]) for units in (0, 127, 103, 64)}
    assert time[127] / time[0] == pytest.approx(5 / 4, rel=0.03)
    assert time[103] / time[0] == pytest.approx(5 / 4, rel=0.03)
    assert time[64] / time[0] == pytest.approx(8 / 4, rel=0.03)


def test_partitions_hold_apart_what_is_dispatched() -> None:
    product, copy = run(Member(LARGE, units=112), Member(COPY, units=16))
    assert took(copy) < 1.2 * alone(COPY, units=16)
    assert took(product) == pytest.approx(alone(LARGE, units=112), rel=0.05)
    with pytest.raises(ValueError, match="129 compute units"):
        run(Member(LARGE, units=113), Member(COPY, units=16))


def test_the_clock_falls_under_a_product() -> None:
    (free,) = simulate(replace(DEVICE, clock_slope=0.0), [Member(LARGE, 4)])
    assert 1.02 < alone(LARGE, 4) / took(free) < 1.15


def test_launches_follow_each_other_after_a_gap() -> None:
    small = gemm(128, 128, 128)
    assert alone(small, 11) - alone(small, 1) == pytest.approx(10 * (alone(small) - 2500 + 1000), rel=0.15)


def test_a_lag_is_when_a_stream_starts() -> None:
    _, late = run(LARGE, Member(COPY, lag_ns=50_000))
    assert late.start_ns == 50_000 + DEVICE.skew_ns


@pytest.mark.parametrize("device", DEVICES.values(), ids=list(DEVICES))
def test_every_device_reaches_its_own_speeds(device) -> None:  # type: ignore[no-untyped-def]
    (product,) = simulate(device, [Member(LARGE, 4)])
    assert 0.55 < 4 * LARGE.flops / took(product) / (device.tensor_flops / 1e9) < 0.86
    (stream,) = simulate(device, [Member(copied(256 * MIB))])
    assert 0.8 < (stream.missed + stream.written_back) / took(stream) / device.hbm_gbps < 0.94
    (link,) = simulate(device, [Member(moved("copy_engine", "d2h", 8 * MIB))])
    assert 8 * MIB / took(link) == pytest.approx(device.link_gbps, rel=0.03)


def test_the_machine_repeats_by_its_seed_and_differs_by_noise() -> None:
    members = [Member(LARGE), Member(COPY)]
    one, same, other = (VirtualMachine(seed=s).together(members, 3) for s in (1, 1, 2))
    assert one == same != other
    assert len({tuple(r) for r in one}) == 3
    for repetition in one:
        assert min(start for start, _ in repetition) == 0
        assert all(start % 500 == 0 and end % 500 == 0 and start < end for start, end in repetition)


def test_noise_is_about_a_percent_and_drift_comes_on_top() -> None:
    times = VirtualMachine(seed=3).alone(Member(LARGE), 400)
    mean = sum(times) / 400
    assert mean == pytest.approx(alone(LARGE), rel=0.005)
    assert 0.005 < (sum((t - mean) ** 2 for t in times) / 400) ** 0.5 / mean < 0.015
    later = VirtualMachine(seed=3, drift=0.02).alone(Member(LARGE), 400)
    assert sum(later) / sum(times) == pytest.approx(1.02, rel=0.001)


def test_the_machine_is_a_machine_and_says_that_it_is_virtual() -> None:
    machine: Machine = VirtualMachine()
    assert machine.features == {"triton", "partitions", "priorities", "copy_engine", "pinned"}
    facts = machine.facts()
    assert facts["name"] == "Virtual GPU" and facts["compute_units"] == 128 and "virtual" in facts
    assert all(sum(split) == 128 for split in facts["partitions"]) and set(facts["features"]) == machine.features
    assert machine.device == "cuda:0" and machine.state() and machine.synchronize() is None
    with pytest.raises(ValueError, match="at least one member"):
        machine.together([], 1)


def test_kernels_are_called_what_profilers_call_them() -> None:
    machine = VirtualMachine()
    works = {
        "gemm": LARGE,
        "copy": COPY,
        "elementwise": streamed("elementwise", MIB),
        "softmax": streamed("softmax", 1024, 1024),
        "reduction": streamed("read", MIB),
    }
    assert {classify(machine.kernel_of(work)["kernel"]) for work in works.values()} == set(works)
    assert all(classify(machine.kernel_of(work)["kernel"]) == kind for kind, work in works.items())
    assert machine.kernel_of(LARGE)["workgroups"] == 512 and machine.kernel_of(COPY)["workgroups"] == 16
    assert machine.kernel_of(moved("copy_engine", "h2d", MIB)) == {"kernel": "Memcpy HtoD (Pinned -> Device)"}
    with pytest.raises(ValueError, match="is no kernel"):
        program(moved("copy_engine", "h2d", MIB), DEVICE)


def test_small_and_odd_works_run() -> None:
    works = [
        copied(4, 16),
        copied(1),
        streamed("softmax", 1, 1, "bf16"),
        gemm(1, 1, 1),
        gemm(1, 1, 1, "fp32", accumulate=True),
        moved("zero_copy", "d2h", 4, 3),
        moved("zero_copy", "d2d", MIB),
        moved("copy_engine", "d2h", 1),
    ]
    ran = run(*works)
    for work, one in zip(works, ran, strict=True):
        assert took(one) >= DEVICE.launch_ns, work.name
        assert one.loaded >= work.bytes_read and one.stored >= work.bytes_written, work.name


def test_the_plan_runs_on_it_and_takes_differ_by_noise_and_a_drift_of_a_percent(tmp_path: Path) -> None:
    command = ["--device", "Virtual GPU S", "--size", "tiny", "--output", str(tmp_path)]
    for take in ("0", "1"):
        assert main([*command, "--parts", "abcd", "--take", take]) == 0
    rows = pq.read_table(tmp_path / "alone.parquet").to_pylist()
    times = [sum(r["duration_ns"] for r in rows if r["take"] == take) for take in (0, 1)]
    assert times[1] / times[0] == pytest.approx(1.01, abs=0.01) != 1
    takes = json.loads((tmp_path / "environment.json").read_text())
    assert [t["device"]["note"] for t in takes] == ["simulated; nothing here was measured"] * 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--device", "Virtual GPU", "--plan"], "give --parts abcd"),
        (["--device", "Virtual", "--plan"], "there are Virt"),
    ],
)
def test_what_it_cannot_is_said(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 1 and said in capsys.readouterr().err


def test_launches_of_a_copy_take_turns_with_buffers_that_no_cache_holds_together() -> None:
    large = replace(DEVICES["Virtual GPU L"], clock_slope=0.0)
    copy = copied(64 * MIB, 148)
    (ran,) = simulate(large, [Member(copy, 12)])
    assert 12 * (copy.bytes_read + copy.bytes_written) / took(ran) < large.hbm_gbps
    (kept,) = simulate(large, [Member(streamed("update", 4 * MIB), 12)])
    assert kept.missed == pytest.approx(4 * 4 * MIB, rel=0.05)
