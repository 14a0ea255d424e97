"""DRAM: timing by hand, equality with a cycle-by-cycle reference, address mappings, and the reference simulator."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profilers.errors import InvalidInputError, NotFoundError
from replay.memory.dram import (
    Dram,
    DramCounters,
    DramSimulator,
    DramTiming,
    Traffic,
    find_dram,
    load_drams,
    scaled_dram,
)
from seqpoint.validation.memory import SUITE
from seqpoint.validation.suites import SuiteOptions
from tests.reference_dram import simulate

REFERENCE = Path(__file__).parents[2] / "shared" / "data" / "dram" / "hbm2_reference.csv"
#: Two channels of two groups of two banks, with 8 requests in a row.
SMALL = Dram(
    name="small", channels=2, bank_groups=2, banks=2, rows=16, row_bytes=512, access_bytes=64, clock_hz=1e9,
    burst_cycles=2, mapping="rorababgchco", queue=4, commands=3, timing=DramTiming(refi_ns=400, rfc_ns=60),
)  # fmt: skip


def traffic(address: object, is_write: object = 0) -> Traffic:
    where = np.asarray(address, dtype=np.int64)
    return Traffic(where, np.broadcast_to(np.asarray(is_write, dtype=np.uint8), where.shape))


def served(dram: Dram, requests: Traffic, window: int = 64) -> DramCounters:
    simulator = DramSimulator(dram, window=window)
    simulator.serve(requests)
    return simulator.finish()


def test_a_single_read_takes_activate_read_and_burst() -> None:
    counters = served(SMALL, traffic([0]))
    # Cycle 0 moves it to its bank, 1 activates, 15 reads, data from 29 to 31.
    assert counters.cycles == 1 + 14 + 14 + 2
    assert (counters.reads, counters.activates, counters.row_hits) == (1, 1, 0)
    assert counters.mean_read_latency_cycles == 31
    assert counters.seconds == pytest.approx(31e-9)


def test_hits_of_a_row_follow_at_the_rate_of_the_bus() -> None:
    counters = served(SMALL, traffic(np.arange(8) * 64))
    assert counters.cycles == 31 + 7 * 2
    assert counters.row_hits == 7 and counters.row_hit_rate == 7 / 8
    assert counters.utilisation == pytest.approx(8 * 2 / (2 * 45))


def test_a_conflict_waits_for_the_cycle_of_a_row() -> None:
    row = SMALL.row_bytes * SMALL.channels * 4
    counters = served(SMALL, traffic([0, row]))
    # Activate at 1, precharge at 1 + tRAS, activate at 1 + tRC, then as a single read.
    assert counters.cycles == 1 + 48 + 14 + 14 + 2
    assert (counters.activates, counters.precharges) == (2, 1)


def test_four_activates_fill_the_window() -> None:
    dram = replace(SMALL, channels=1, banks=4, mapping="rorachbabgco", timing=DramTiming(refi_ns=0, faw_ns=100))
    counters = served(dram, traffic(np.arange(5) * dram.row_bytes))
    # The first activate is at 1, the fifth at 101.
    assert counters.cycles == 101 + 14 + 14 + 2


def test_a_write_is_accepted_at_once_and_written_before_the_end() -> None:
    counters = served(SMALL, traffic([0], 1))
    assert (counters.writes, counters.reads, counters.merged) == (1, 0, 0)
    assert counters.bytes_by_channel.tolist() == [64, 0]
    assert counters.mean_read_latency_cycles == 0


def test_a_read_of_a_buffered_write_needs_no_data() -> None:
    counters = served(SMALL, traffic([0, 0], [1, 0]))
    assert counters.merged == 1 and counters.bytes_by_channel.sum() == 64


def test_a_closed_page_has_no_row_hits() -> None:
    requests = traffic(np.arange(64) * 64)
    closed = served(replace(SMALL, page="closed"), requests)
    assert closed.row_hits == 0 and closed.activates == closed.precharges == 64
    assert closed.cycles > served(SMALL, requests).cycles


drams = st.builds(
    lambda page, buses, mapping, groups: replace(
        SMALL, page=page, command_buses=buses, mapping=mapping, bank_groups=groups
    ),
    st.sampled_from(["open", "closed"]),
    st.sampled_from([1, 2]),
    st.sampled_from(["rorababgchco", "rochrababgco", "rorababgco*chco1", "rorababgchco+ba+bg+ch"]),
    st.sampled_from([1, 2]),
)


@st.composite
def streams(draw: st.DrawFn) -> Traffic:
    """Requests in order, at strides, or at random over a small or a large footprint."""
    count, stride = draw(st.integers(1, 90)), draw(st.sampled_from([0, 1, 3, 8, 64]))
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    random = rng.integers(0, draw(st.sampled_from([4, 64, 1024])), count)
    lines = np.where(rng.random(count) < draw(st.sampled_from([0.0, 0.5, 1.0])), random, np.arange(count) * stride)
    return traffic(lines * 64, rng.random(count) < draw(st.sampled_from([0.0, 0.3, 1.0])))


@settings(max_examples=30, deadline=None)
@given(dram=drams, requests=streams(), window=st.sampled_from([1, 5, 40]))
def test_events_give_what_every_cycle_gives(dram: Dram, requests: Traffic, window: int) -> None:
    channel, group, bank, row = dram.address_mapping.decode(requests.address)
    fields = zip(channel, requests.address, row, group * dram.banks + bank, requests.is_write, strict=True)
    cycles, counts = simulate(dram, [tuple(map(int, request)) for request in fields], window)
    ours = served(dram, requests, window)
    latency = round(ours.mean_read_latency_cycles * ours.reads)
    assert (ours.cycles, ours.read_row_hits, ours.write_row_hits) == (cycles, counts["read_hits"], counts["write_hits"])
    assert (ours.activates, ours.precharges, ours.refreshes) == (
        counts["activates"], counts["precharges"], counts["refreshes"],
    )  # fmt: skip
    assert latency == counts["latency"]


@settings(max_examples=40, deadline=None)
@given(dram=drams, requests=streams(), cuts=st.lists(st.integers(0, 90), max_size=4))
def test_bytes_are_conserved_and_blocks_change_nothing(dram: Dram, requests: Traffic, cuts: list[int]) -> None:
    whole = served(dram, requests)
    simulator = DramSimulator(dram, window=64)
    for begin, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(requests)], strict=True):
        simulator.serve(Traffic(requests.address[begin:end], requests.is_write[begin:end]))
    blocks = simulator.finish()
    for name, value in vars(whole).items():
        assert np.array_equal(value, getattr(blocks, name)), name
    moved = (whole.reads + whole.writes - whole.merged) * dram.access_bytes
    assert whole.reads + whole.writes == len(requests)
    assert whole.bytes_by_channel.sum() == whole.bytes_over_time.sum() == moved
    assert whole.row_hits_over_time.sum() == whole.row_hits <= len(requests)
    assert moved <= whole.seconds * dram.bandwidth * (1 + 1e-9)
    assert 0 < whole.utilisation <= whole.efficiency <= 1
    assert 1 <= whole.bank_parallelism <= dram.bank_groups * dram.banks


@pytest.mark.parametrize("mapping", ["rorabgbachco", "row", "channel", "interleaved", "xor", "rorababgco2chco1+ch"])
@pytest.mark.parametrize("channels", [2, 3, 4])
def test_a_mapping_sends_each_request_somewhere_else(mapping: str, channels: int) -> None:
    dram = replace(SMALL, channels=channels).with_mapping(mapping)
    size = channels * 4 * dram.rows * dram.row_bytes
    fields = np.stack(dram.address_mapping.decode(np.arange(0, size, 64)))
    places, counts = np.unique(fields, axis=1, return_counts=True)
    assert places.shape[1] == channels * 4 * dram.rows and set(counts) == {8}
    assert fields.max(axis=1).tolist() == [channels - 1, 1, 1, dram.rows - 1]


def test_a_hash_spreads_rows_of_one_bank() -> None:
    conflicts = traffic(np.arange(64) * (1 << 12))
    plain, hashed = (
        served(replace(SMALL, rows=1024).with_mapping(m), conflicts) for m in ("row", "rorabgbachco+ba+bg+ch")
    )
    assert hashed.cycles < plain.cycles / 2


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ("rorabgbach", "misses the 3 bits of co"),
        ("rorabgbachcoco", "repeats co"),
        ("rorabgbachxx", "no field 'xx'"),
        ("rorabgbach9co", "gives ch \\(channel\\) 9 bits"),
        ("rorabgbachco+co", "'co' cannot be hashed"),
        ("rorabgbachc", "fields of two letters"),
        ("", "fields of two letters"),
    ],
)
def test_a_mapping_that_does_not_fit_is_one_clear_error(mapping: str, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        SMALL.with_mapping(mapping)


def test_bad_figures_are_refused() -> None:
    for change in ({"rows": 12}, {"channels": 0}, {"page": "ajar"}, {"burst_cycles": 1.5}, {"banks": 64}):
        with pytest.raises(InvalidInputError):
            replace(SMALL, **change)
    for times in ({"rfc_ns": 4000}, {"cl_ns": -1}, {"faw_ns": float("nan")}):
        with pytest.raises(InvalidInputError):
            DramTiming(**times)
    with pytest.raises(InvalidInputError, match="2 addresses and 1 marks"):
        DramSimulator(SMALL).serve(Traffic(np.zeros(2, np.int64), np.zeros(1, np.uint8)))
    with pytest.raises(InvalidInputError, match="window 0"):
        DramSimulator(SMALL, window=0)
    with pytest.raises(NotFoundError, match="no DRAM standard 'DDR9'; there are HBM2"):
        find_dram("DDR9")


@pytest.mark.parametrize(
    ("standard", "gbps", "stacks"),
    [("HBM2", 900, None), ("HBM2E", 1555, 5), ("HBM2E", 2039, 5), ("HBM3", 3350, 5), ("HBM3", 5300, 8),
     ("HBM2", 1230, None), ("GDDR6", 696, 12), ("GDDR5", 320, None)],
)  # fmt: skip
def test_the_peak_of_a_device_is_that_of_its_data_sheet_and_a_stream_comes_near(
    standard: str, gbps: float, stacks: int | None
) -> None:
    nominal = find_dram(standard)
    dram = scaled_dram(nominal, gbps * 1e9, stacks)
    assert dram.bandwidth == pytest.approx(gbps * 1e9)
    assert dram.timing == nominal.timing and dram.channels % nominal.channels == 0
    counters = served(dram, traffic(np.arange(60_000) * 64), window=16_384)
    assert 0.8 < counters.utilisation <= 1


def test_every_standard_has_sources() -> None:
    assert {"HBM2", "HBM2E", "HBM3", "GDDR5", "GDDR6", "HBM2_8Gb_x128"} <= set(load_drams())


def test_a_file_without_a_figure_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "dram.toml"
    file.write_text('[X]\nabout = ""\n[X.figures]\nrows = { value = 2, unit = "1", source = "", certainty = "" }\n')
    with pytest.raises(InvalidInputError, match="X: access_bytes is missing"):
        load_drams(file)


@pytest.mark.skipif(not REFERENCE.is_file(), reason="needs ../shared/data/dram")
def test_the_reference_simulator_is_met() -> None:
    cases = SUITE.read([REFERENCE], SuiteOptions())
    chosen = {"dram": [case for case in cases["dram"] if case.window == 1024 and "aligned" not in case.pattern]}
    result = SUITE.score(chosen, SuiteOptions())
    assert len(result.scores) > 50
    assert all(row.met is not False for row in result.rows)
    assert max(score.error for score in result.scores) < 0.05
