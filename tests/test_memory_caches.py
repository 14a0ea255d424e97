"""Caches against a reference in plain Python, closed forms, cachegrind, and what holds for every policy."""

import itertools
import re
import shutil
import subprocess
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profilers.errors import InvalidInputError, NotFoundError
from replay.memory.accesses import Accesses
from replay.memory.caches import Hierarchy, MemoryPipe
from replay.memory.dram import Dram
from replay.memory.system import Cache, CachePolicy, MemorySystem, find_policy, load_policies

DRAM = Dram("HBM2", 4, 4, 4, 1 << 14, 1024, 32, 1e9, 2.0)
#: Memory and caches without latency: no way is ever busy, so that counts follow from the order of accesses alone.
INSTANT = MemoryPipe(0.0, 0.0)
REPLACEMENTS = ("lru", "plru", "rrip", "random")


def system(
    *,
    units: int = 1,
    l1: int = 1024,
    l2: int = 8192,
    ways: int = 4,
    replacement: str = "lru",
    llc: Cache | None = None,
    hashed: bool = False,
) -> MemorySystem:
    """Return a device with lines of 64 bytes in sectors of 32, without latency."""
    instant = {"replacement": replacement, "latency": 0, "line_cycles": 0.0, "hashed": hashed}
    return MemorySystem(
        "small",
        1e9,
        units,
        64,
        Cache(l1, ways, 64, 32, **instant),  # type: ignore[arg-type]
        Cache(l2, ways, 64, 32, slices=2, **instant),  # type: ignore[arg-type]
        DRAM,
        llc=llc,
    )


def accesses(
    line: object, *, is_write: object = 0, sectors: object = 3, unit: object = 0, operand: object = 0
) -> Accesses:
    columns = np.broadcast_arrays(np.atleast_1d(np.asarray(line)), sectors, is_write, operand, unit)
    kinds = (np.int64, np.uint32, np.uint8, np.int16, np.int32)
    return Accesses(*(np.array(column, kind) for column, kind in zip(columns, kinds, strict=True)))


def random_accesses(seed: int, n: int = 4000, lines: int = 300, units: int = 1) -> Accesses:
    """Return a mix of a few hot lines and many others, loads and stores, of whole lines and single sectors."""
    rng = np.random.default_rng(seed)
    line = np.where(rng.random(n) < 0.4, rng.integers(0, 20, n), rng.integers(0, lines, n))
    return accesses(
        line,
        is_write=rng.random(n) < 0.3,
        sectors=rng.integers(1, 4, n),
        unit=rng.integers(0, units, n),
        operand=rng.integers(0, 3, n),
    )


def part(stream: Accesses, begin: int, end: int) -> Accesses:
    return Accesses(*(getattr(stream, column.name)[begin:end] for column in fields(Accesses)))


@dataclass
class ReferenceLine:
    line: int
    valid: int = 0
    dirty: int = 0
    last_use: int = 0
    distance: int = 2


@dataclass
class ReferenceCache:
    """Sets as lists of lines, in plain Python."""

    ways: int
    replacement: str
    random: int
    sets: dict[int, list[ReferenceLine | None]] = field(default_factory=dict)
    bits: dict[tuple[int, int], int] = field(default_factory=dict)

    def find(self, number: int, line: int) -> ReferenceLine | None:
        return next((held for held in self.sets.get(number, []) if held and held.line == line), None)

    def use(self, number: int, line: int, now: int, *, new: bool = False) -> None:
        rows = self.sets[number]
        way = next(w for w, held in enumerate(rows) if held and held.line == line)
        held = rows[way]
        assert held is not None
        held.last_use = now
        held.distance = 2 if new else 0
        low, high, node = 0, self.ways, 1  # halves of the tree that hold the way
        while high - low > 1:
            middle = (low + high) // 2
            right = way >= middle
            self.bits[number, node] = 0 if right else 1
            low, high, node = (middle, high, 2 * node + 1) if right else (low, middle, 2 * node)

    def insert(self, number: int, line: int) -> ReferenceLine | None:
        """Hold a line; return the line that made room."""
        rows = self.sets.setdefault(number, [None] * self.ways)
        empty = [way for way, held in enumerate(rows) if held is None]
        way = empty[-1] if empty else self.victim(number)
        old, rows[way] = rows[way], ReferenceLine(line)
        return old

    def victim(self, number: int) -> int:
        rows = [held for held in self.sets[number] if held]
        if self.replacement == "lru":
            return min(range(self.ways), key=lambda way: rows[way].last_use)
        if self.replacement == "rrip":
            while not any(held.distance == 3 for held in rows):
                for held in rows:
                    held.distance += 1
            return next(way for way, held in enumerate(rows) if held.distance == 3)
        if self.replacement == "plru":
            low, high, node = 0, self.ways, 1
            while high - low > 1:
                middle, right = (low + high) // 2, self.bits.get((number, node), 0)
                low, high, node = (middle, high, 2 * node + 1) if right else (low, middle, 2 * node)
            return low
        for shift in (13, -7, 17):
            moved = self.random << shift if shift > 0 else self.random >> -shift
            self.random = (self.random ^ moved) & ((1 << 64) - 1)
        return self.random % self.ways


def hash_of(cache: Cache, line: int) -> int:
    return line ^ line >> 7 ^ line >> 13 if cache.hashed else line


class Reference:
    """Caches of `system` in plain Python, with 32-byte requests."""

    def __init__(self, device: MemorySystem, policy: CachePolicy, seed: int = 0) -> None:
        self.device, self.policy, self.now = device, policy, 0
        randoms = [int(number) for number in np.random.default_rng(seed).integers(1, 1 << 62, 3)]
        self.l1 = ReferenceCache(device.l1.ways, device.l1.replacement, randoms[0])
        self.l2 = ReferenceCache(device.l2.ways, device.l2.replacement, randoms[1])
        self.requests: list[tuple[int, int]] = []
        self.hits = dict.fromkeys(("l1 loads", "l1 stores", "l2 loads", "l2 stores"), 0)

    def l2_set(self, line: int) -> int:
        turn, place = divmod(line, self.device.l2.slices)
        slice_ = (place + (turn ^ turn >> 5 ^ turn >> 11 ^ turn >> 17)) % self.device.l2.slices
        return slice_ * self.device.l2.sets + hash_of(self.device.l2, turn) % self.device.l2.sets

    def send(self, line: int, mask: int, is_write: int) -> None:
        self.requests += [(64 * line + 32 * sector, is_write) for sector in (0, 1) if mask >> sector & 1]

    def access(self, stream: Accesses) -> None:
        for line, mask, is_write, unit in zip(
            *(getattr(stream, name).tolist() for name in ("line", "sectors", "is_write", "unit")), strict=True
        ):
            self.now += 1
            number = unit * self.device.l1.sets + hash_of(self.device.l1, line) % self.device.l1.sets
            held = self.l1.find(number, line) if self.policy.loads else None
            if held and held.valid & mask == mask:
                self.hits["l1 stores" if is_write else "l1 loads"] += 1
                self.l1.use(number, line, self.now)
                if not is_write:
                    continue
            elif held and is_write:
                held.valid |= mask
                self.l1.use(number, line, self.now)
            missing = mask if is_write else mask & ~(held.valid if held else 0)
            if not is_write and self.policy.loads:
                if held is None:
                    self.l1.insert(number, line)
                held = self.l1.find(number, line)
                assert held is not None
                held.valid |= missing
                self.l1.use(number, line, self.now, new=held.valid == missing)
            self.second(line, missing, is_write)

    def second(self, line: int, mask: int, is_write: int) -> None:
        number, held = self.l2_set(line), self.l2.find(self.l2_set(line), line)
        valid = held.valid if held else 0
        if valid & mask == mask:
            self.hits["l2 stores" if is_write else "l2 loads"] += 1
        if held:
            self.l2.use(number, line, self.now)
        fetched = mask if is_write else mask & ~valid
        if not is_write or not self.policy.stores:
            self.send(line, fetched, is_write)
        if held is None and (self.policy.stores if is_write else self.policy.loads):
            old = self.l2.insert(number, line)
            if old and old.dirty:
                self.send(old.line, old.dirty, 1)
                if self.policy.rinse:
                    self.rinse(old.line)
            held = self.l2.find(number, line)
            self.l2.use(number, line, self.now, new=True)
        if held and (is_write or self.policy.loads):
            held.valid |= fetched
            held.dirty |= mask if is_write and self.policy.stores else 0

    def rinse(self, line: int) -> None:
        interleave, channels, row_bytes = 256, self.device.dram.channels, self.device.dram.row_bytes

        def row(other: int) -> tuple[int, int]:
            return 64 * other // (row_bytes * channels), 64 * other // interleave % channels

        dirty = [held for rows in self.l2.sets.values() for held in rows if held and held.dirty]
        for held in sorted(dirty, key=lambda held: held.line):
            if row(held.line) == row(line):
                self.send(held.line, held.dirty, 1)
                held.dirty = 0

    def flush(self) -> int:
        """Return the requests that write dirty lines back."""
        held = [line for rows in self.l2.sets.values() for line in rows if line]
        return sum(line.dirty.bit_count() for line in held)


@pytest.mark.parametrize("replacement", REPLACEMENTS)
@pytest.mark.parametrize("name", ["Uncached", "CacheR", "CacheRW", "CacheRW-AB-CR"])
def test_counts_and_requests_equal_a_reference_in_plain_python(name: str, replacement: str) -> None:
    policy = find_policy(name)
    for seed in range(3):
        device = system(units=3, replacement=replacement, hashed=seed == 1)
        stream = random_accesses(seed, units=3)
        caches = Hierarchy(device, policy, in_flight=2, seed=seed, memory=INSTANT)
        reference = Reference(device, policy, seed)
        traffic = caches.access(stream)
        reference.access(stream)
        counters = caches.counters
        hits = (counters.l1.load_hits, counters.l1.store_hits, counters.l2.load_hits, counters.l2.store_hits)
        assert hits == tuple(reference.hits.values())
        # A read is sent before the line that makes room is written back, as in the reference.
        assert list(zip(traffic.address.tolist(), traffic.is_write.tolist(), strict=True)) == reference.requests
        assert len(caches.flush()) == reference.flush()
        assert counters.l1.stall_cycles == counters.l2.stall_cycles == 0


@pytest.mark.parametrize("ways", [1, 2, 3, 8, 20, 32])
def test_lru_equals_the_reference_with_any_number_of_ways(ways: int) -> None:
    device = system(l1=64 * ways * 2, l2=64 * ways * 8, ways=ways)
    stream = random_accesses(ways, lines=40 * ways)
    caches, reference = (
        Hierarchy(device, find_policy("CacheRW"), in_flight=1, memory=INSTANT),
        Reference(device, find_policy("CacheRW")),
    )
    caches.access(stream)
    reference.access(stream)
    assert caches.counters.l2.load_hits == reference.hits["l2 loads"] > 0
    assert caches.counters.l1.load_hits == reference.hits["l1 loads"] > 0


def test_a_stream_misses_once_a_line_and_reads_every_byte_once() -> None:
    caches = Hierarchy(system(), find_policy("CacheR"), in_flight=4)
    traffic = caches.access(accesses(np.arange(5000)))
    assert caches.counters.l1.load_hits == caches.counters.l2.load_hits == 0
    assert np.array_equal(traffic.address, 32 * np.arange(10000)) and not traffic.is_write.any()
    assert caches.counters.l2.load_sectors == 10000 and caches.counters.reads == 10000


@pytest.mark.parametrize("extra", [0, 1])
def test_lru_keeps_a_cycle_that_fits_and_nothing_of_one_line_more_in_a_set(extra: int) -> None:
    device = system(l1=64 * 4 * 4)  # 4 sets of 4 ways
    cycle = 4 * np.arange(4 + extra)  # all in set 0
    caches = Hierarchy(device, find_policy("CacheR"), in_flight=1, memory=INSTANT)
    caches.access(accesses(np.tile(cycle, 50)))
    assert caches.counters.l1.load_hits == (0 if extra else 49 * 4)


@pytest.mark.parametrize("replacement", REPLACEMENTS)
def test_reads_equal_the_unique_bytes_of_a_footprint_that_fits_in_l2(replacement: str) -> None:
    device = system(l2=64 * 1024, replacement=replacement)  # 1,024 lines
    stream = accesses(np.random.default_rng(0).integers(0, 1024, 20_000), sectors=1)
    caches = Hierarchy(device, find_policy("CacheR"), in_flight=8)
    traffic = caches.access(stream)
    assert len(traffic) == len(np.unique(stream.line)) == len(np.unique(traffic.address))


def test_a_tiled_product_reads_what_the_tiles_need() -> None:
    # 8 x 8 tiles of 16 lines each. A tile of C needs a row of tiles of A and a column of tiles of B. A row of A (128
    # lines) and one tile of B fit in L2 (160 lines), the 1,024 lines of B do not: A is read once, B once a row.
    row, column, depth, line = np.indices((8, 8, 8, 16)).reshape(4, -1)
    a, b = (row * 8 + depth) * 16 + line, 4096 + (depth * 8 + column) * 16 + line
    stream = accesses(np.stack([a, b], axis=1).ravel())
    device = MemorySystem("", 1e9, 1, 64, Cache(64, 1, 64, 32), Cache(64 * 288, 288, 64, 32), DRAM)
    caches = Hierarchy(device, find_policy("CacheR"), in_flight=1, memory=INSTANT)
    assert len(caches.access(stream)) == 2 * (1024 + 8 * 1024)


def test_stores_are_combined_in_l2_and_go_to_memory_once() -> None:
    halves = accesses(np.repeat(np.arange(10), 2), is_write=1, sectors=np.tile([1, 2], 10))
    combined, through = (Hierarchy(system(), find_policy(name), in_flight=4) for name in ("CacheRW", "CacheR"))
    assert len(combined.access(halves)) == 0 and len(through.access(halves)) == 20
    written = combined.flush()
    assert sorted(written.address.tolist()) == [32 * sector for sector in range(20)] and written.is_write.all()
    assert len(combined.flush()) == len(through.flush()) == 0
    counters = combined.counters
    assert (counters.l2.stores, counters.l2.write_backs, counters.writes) == (20, 10, 20)


def test_a_part_of_a_request_is_read_and_written_whole() -> None:
    wide = replace(system(), dram=replace(DRAM, access_bytes=64))
    caches = Hierarchy(wide, find_policy("CacheRW"), in_flight=4)
    assert caches.access(accesses([5, 6], sectors=[1, 2])).address.tolist() == [5 * 64, 6 * 64]
    assert len(caches.access(accesses([5, 6], sectors=[2, 1]))) == 0
    assert len(caches.access(accesses([7, 7], is_write=1, sectors=[1, 2]))) == 0
    assert caches.flush().address.tolist() == [7 * 64]


def test_kernels_find_clean_lines_in_l2_and_none_in_l1() -> None:
    device = replace(system(), l2=Cache(8192, 4, 64, 32, latency=10))
    caches = Hierarchy(device, find_policy("CacheRW"), in_flight=4)
    stream = accesses(np.arange(16), is_write=[0, 1] * 8)
    caches.access(stream)
    caches.flush()
    before = caches.counters
    assert len(caches.access(accesses(np.arange(16)))) == 0
    after = caches.counters
    assert after.l1.load_hits == before.l1.load_hits and after.l2.load_hits - before.l2.load_hits == 16
    assert after.cycles > before.cycles


def test_lines_of_l2_that_are_twice_as_long_are_filled_by_halves() -> None:
    device = replace(system(), l2=Cache(8192, 4, 128, 32))
    caches = Hierarchy(device, find_policy("CacheRW"), in_flight=1)
    traffic = caches.access(accesses([6, 7, 6], sectors=[1, 3, 1]))
    assert traffic.address.tolist() == [6 * 64, 7 * 64, 7 * 64 + 32]
    caches.access(accesses(7, is_write=1, sectors=2))
    assert caches.flush().address.tolist() == [7 * 64 + 32]


def test_a_last_level_cache_serves_all_dies_and_keeps_dirty_lines() -> None:
    device = replace(system(units=2, llc=Cache(1 << 16, 16, 64, 32)), dies=2)
    caches = Hierarchy(device, find_policy("CacheRW"), in_flight=1)
    stream = accesses(np.repeat(np.arange(100), 2), unit=np.tile([0, 1], 100))
    traffic = caches.access(stream)
    counters = caches.counters
    assert len(traffic) == 200 and (counters.llc.loads, counters.llc.load_hits) == (400, 200)
    caches.access(accesses(np.arange(200, 210), is_write=1))
    assert len(caches.flush()) == 0 and caches.counters.llc.stores == 20
    evicting = caches.access(accesses(np.arange(1000, 3024)))
    assert sorted(evicting.address[evicting.is_write == 1].tolist()) == [32 * n for n in range(400, 420)]


def test_a_stream_takes_as_long_as_the_memory_and_a_single_load_its_latencies() -> None:
    device = replace(system(), l2=Cache(8192, 4, 64, 32, latency=50, line_cycles=1.0))
    pipe = MemoryPipe(100.0, 3.0)
    caches = Hierarchy(device, find_policy("CacheR"), in_flight=1, memory=pipe)
    caches.access(accesses(0, sectors=1))
    assert caches.counters.cycles == 50 + 100 + 3
    caches = Hierarchy(device, find_policy("Uncached"), in_flight=1000, memory=pipe)
    caches.access(accesses(np.arange(1000)))
    assert caches.counters.cycles == pytest.approx(2000 * 3, rel=0.05)
    assert (
        MemoryPipe.of(replace(system(), clock_hz=2e9), 0.5).request_cycles == 2 * 2 * 2 / 4
    )  # 2 cycles of 1 GHz, 4 channels, half speed


def test_a_unit_waits_for_its_lines_in_flight() -> None:
    device, pipe = system(), MemoryPipe(100.0, 0.0)
    for in_flight, rounds in ((1, 40), (4, 10), (40, 1)):
        caches = Hierarchy(device, find_policy("Uncached"), in_flight=in_flight, memory=pipe)
        caches.access(accesses(np.arange(40)))
        assert caches.counters.cycles == 100 * rounds


def test_busy_ways_and_full_misses_stall_unless_the_access_bypasses() -> None:
    device = replace(system(), l1=Cache(64 * 2, 2, 64, 32, latency=0, line_cycles=1.0, misses=8))
    pipe = MemoryPipe(100.0, 0.0)
    waits, bypasses = (
        Hierarchy(device, find_policy(name), in_flight=8, memory=pipe) for name in ("CacheRW", "CacheRW-AB")
    )
    for caches in (waits, bypasses):
        caches.access(accesses([1, 2, 3, 4]))
    # Lines 1 and 2 wait until 100 and 101; 3 is issued at 2 and waits for 98 cycles, 4 at 101 for none.
    assert waits.counters.l1.stall_cycles == 98 and waits.counters.cycles == 201
    assert bypasses.counters.l1.stall_cycles == 0 and bypasses.counters.cycles == 103
    assert bypasses.counters.l1.bypasses == 2 and waits.counters.l1.bypasses == 0
    single = replace(device, l1=replace(device.l1, size=64 * 16, ways=16, misses=1))
    caches = Hierarchy(single, find_policy("CacheRW"), in_flight=8, memory=pipe)
    caches.access(accesses([1, 2, 3]))
    assert caches.counters.l1.stall_cycles == 99 + 99


def test_rinsing_writes_the_rows_of_memory_one_after_another() -> None:
    # Stores to lines in an order that jumps between rows: 1,024-byte rows, 256 bytes of each channel in turn.
    lines = np.random.default_rng(0).permutation(4096)
    changes = {}
    for name in ("CacheRW-AB", "CacheRW-AB-CR"):
        caches = Hierarchy(system(l2=64 * 1024, ways=16), find_policy(name), in_flight=4)
        written = caches.access(accesses(lines, is_write=1)).address
        row = written // 4096 * 4 + written // 256 % 4
        changes[name] = np.count_nonzero(np.diff(row)) / len(row)
        assert len(written) + len(caches.flush()) == 2 * 4096
    assert changes["CacheRW-AB-CR"] < 0.7 * changes["CacheRW-AB"]


def test_operands_without_reuse_bypass_l2_until_they_are_used_again() -> None:
    device = system(l1=1024, l2=256 * 1024, ways=16)
    n = 40_000
    hot = np.random.default_rng(0).integers(0, 3500, n)
    mixed = np.stack([hot, 100_000 + np.arange(n)], axis=1).ravel()
    reads = {}
    for name in ("CacheRW-AB-CR", "CacheRW-AB-CR-PCby"):
        caches = Hierarchy(device, find_policy(name), in_flight=4)
        caches.access(accesses(mixed, operand=np.tile([0, 1], n)))
        reads[name] = caches.counters.reads - 2 * n
        bypasses = caches.counters.l2.bypasses
    assert bypasses > 0.8 * n and reads["CacheRW-AB-CR-PCby"] < 0.5 * reads["CacheRW-AB-CR"]
    again = accesses(np.tile(np.arange(200_000, 202_000), 20), operand=1)
    assert len(caches.access(again)) < 0.5 * 2 * len(again)


POLICIES = st.sampled_from(sorted(load_policies()))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1 << 30), POLICIES, st.sampled_from(REPLACEMENTS), st.lists(st.integers(1, 999), max_size=4))
def test_blocks_and_repetition_change_nothing(seed: int, name: str, replacement: str, cuts: list[int]) -> None:
    stream, device = random_accesses(seed, n=1000, units=3), system(units=3, replacement=replacement)
    whole, again, split = (Hierarchy(device, find_policy(name), in_flight=4, seed=seed) for _ in range(3))
    expected = whole.access(stream).address
    assert np.array_equal(again.access(stream).address, expected)
    edges = [0, *sorted(cuts), 1000]
    blocks = [split.access(part(stream, a, b)).address for a, b in itertools.pairwise(edges)]
    assert np.array_equal(np.concatenate(blocks), expected)
    assert whole.flush().address.tolist() == split.flush().address.tolist()
    assert whole.counters == again_after_flush(again) == split.counters


def again_after_flush(caches: Hierarchy) -> object:
    caches.flush()
    return caches.counters


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1 << 30), POLICIES, st.sampled_from(REPLACEMENTS))
def test_bytes_are_conserved_and_hits_are_bounded(seed: int, name: str, replacement: str) -> None:
    stream, device = random_accesses(seed, n=1500, units=2), system(units=2, replacement=replacement)
    caches = Hierarchy(device, find_policy(name), in_flight=4)
    traffic = caches.access(stream)
    rest = caches.flush()
    sectors = 2 * stream.line[:, None] + [0, 1]
    touched = (stream.sectors[:, None] >> np.array([0, 1], np.uint32)) & 1 == 1
    stored = (stream.is_write == 1)[:, None] & touched
    first = {
        sector: bool(written) for sector, written in reversed(list(zip(sectors[touched], stored[touched], strict=True)))
    }
    reads = traffic.address[traffic.is_write == 0] // 32
    assert {sector for sector, written in first.items() if not written} <= set(reads.tolist()) <= set(first)
    writes = np.concatenate([traffic.address[traffic.is_write == 1], rest.address]) // 32
    assert set(writes.tolist()) == set(sectors[stored].tolist()) and len(writes) <= stored.sum()
    counters = caches.counters
    for level in (counters.l1, counters.l2):
        assert level.load_hits <= level.loads and level.store_sector_hits <= level.store_sectors
    assert counters.l1.loads + counters.l1.stores == 1500 and counters.reads == len(reads)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 1 << 30))
def test_more_ways_at_the_same_sets_never_add_misses_under_lru(seed: int) -> None:
    stream, hits = random_accesses(seed, n=1500), []
    for ways in (1, 2, 3, 4, 8, 16, 24):
        device = system(l1=64 * ways, l2=64 * 1024, ways=ways)
        device = replace(device, l2=Cache(64 * 64, 4, 64, 32))
        caches = Hierarchy(device, find_policy("CacheR"), in_flight=1, memory=INSTANT)
        caches.access(stream)
        hits.append(caches.counters.l1.load_sector_hits)
    assert hits == sorted(hits) and hits[0] < hits[-1]


def test_allocation_bypass_never_stalls() -> None:
    for seed in range(3):
        stream = random_accesses(seed, n=3000, units=4)
        stalls = []
        for name in ("CacheRW", "CacheRW-AB"):
            caches = Hierarchy(system(units=4), find_policy(name), in_flight=32)
            caches.access(stream)
            stalls.append(caches.counters.l1.stall_cycles + caches.counters.l2.stall_cycles)
        assert stalls[0] > stalls[1] == 0


PROGRAM = """
static int a[64][64], b[64][64], c[64][64], next[8192];
void _start(void) {
  unsigned random = 1, at = 0;
  for (int i = 0; i < 64; i++)
    for (int j = 0; j < 20; j++) {
      int sum = 0;
      for (int k = 0; k < 64; k++) sum += a[i][k] * b[k][j];
      c[i][j] = sum;
    }
  for (int i = 0; i < 20000; i++) {
    random = random * 1664525 + 1013904223;
    next[random >> 19] += i;
    at = (at + next[(at * 31 + i) & 8191]) & 8191;
  }
  __asm__ volatile("syscall" : : "a"(60), "D"(at & 1) : "memory");
}
"""


@pytest.mark.skipif(not (shutil.which("valgrind") and shutil.which("gcc")), reason="valgrind or gcc is not installed")
@pytest.mark.parametrize(("size", "ways"), [(16384, 8), (4096, 2), (8192, 16)])
def test_misses_equal_those_of_cachegrind(tmp_path: Path, size: int, ways: int) -> None:
    source, program = tmp_path / "program.c", tmp_path / "program"
    source.write_text(PROGRAM)
    flags = ("-O1", "-fno-stack-protector", "-nostdlib", "-static", "-fno-pie", "-no-pie")
    subprocess.run(["gcc", *flags, "-o", program, source], check=True, capture_output=True)
    tool = [
        "valgrind",
        "--tool=cachegrind",
        "--cache-sim=yes",
        f"--D1={size},{ways},64",
        "--cachegrind-out-file=/dev/null",
    ]
    summary = subprocess.run([*tool, program], capture_output=True, text=True, check=False).stderr
    counted = re.search(r"D1  misses:\s+([\d,]+)", summary)
    assert counted, summary
    trace = subprocess.run(
        ["valgrind", "--tool=lackey", "--trace-mem=yes", program], capture_output=True, text=True, check=False
    ).stderr
    address = np.array([int(text, 16) for text in re.findall(r"^ [LSM] ([0-9a-f]+),", trace, re.MULTILINE)])
    device = MemorySystem("", 1e9, 1, 64, Cache(size, ways, 64, 64, hashed=False), Cache(1 << 16, 4, 64, 64), DRAM)
    caches = Hierarchy(device, CachePolicy("", loads=True, stores=True), in_flight=1, memory=INSTANT)
    caches.access(accesses(address // 64, sectors=1))
    misses = caches.counters.l1.loads - caches.counters.l1.load_hits
    assert misses == int(counted[1].replace(",", "")) > 1000


def test_a_policy_of_a_third_party_comes_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "policies.toml"
    file.write_text('policies = [{ name = "Loads-AB", loads = true, stores = false, allocation_bypass = true }]')
    assert find_policy("loads-ab", file).allocation_bypass and find_policy("CacheR", file).loads
    with pytest.raises(NotFoundError, match=r"^no cache policy is called 'CacheWR'; nearest: CacheR, CacheRW, .*$"):
        find_policy("CacheWR")
    file.write_text('policies = [{ name = "A", loads = true, stores = false, rinze = true }]')
    with pytest.raises(InvalidInputError, match=r"policy 1: .*rinze.*; the keys are name, loads"):
        load_policies(file)
    file.write_text("policies = []")
    with pytest.raises(InvalidInputError, match="holds a list 'policies'"):
        load_policies(file)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"l2": Cache(8192, 4, 32, 32)}, "those of L2 are 1, 2, 4"),
        ({"l2": Cache(8192, 4, 512, 32)}, "1 to 8 whole sectors"),
        ({"dram": replace(DRAM, access_bytes=128)}, "no multiple of 128"),
    ],
)
def test_lines_that_do_not_fit_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        Hierarchy(replace(system(), **change), find_policy("CacheR"), in_flight=1)  # type: ignore[arg-type]


def test_bad_input_is_one_line() -> None:
    with pytest.raises(InvalidInputError, match="3 ways with plru"):
        system(l1=64 * 6, ways=3, replacement="plru")
    with pytest.raises(InvalidInputError, match="in_flight is 0"):
        Hierarchy(system(), find_policy("CacheR"), in_flight=0)
    with pytest.raises(InvalidInputError, match="an efficiency of 2"):
        MemoryPipe.of(system(), 2.0)
    caches = Hierarchy(system(), find_policy("CacheR"), in_flight=1)
    for bad in (accesses(-1), accesses(1 << 31), accesses(0, unit=1), accesses(0, sectors=4)):
        with pytest.raises(InvalidInputError):
            caches.access(bad)


def test_the_adaptive_policy_keeps_what_is_used_again_and_streams_past_l2() -> None:
    device = system(l1=1024, l2=256 * 1024, ways=16)  # 4,096 lines
    once = accesses(np.arange(60_000), is_write=np.arange(60_000) % 2)
    often = accesses(np.random.default_rng(0).integers(0, 6000, 60_000))
    caches = Hierarchy(device, find_policy("Adaptive"), in_flight=4)
    caches.access(once)
    assert caches.counters.l2.bypasses > 0.7 * 60_000
    # The choice is made anew: random loads of 1.5 times the L2 hit in two of three cases.
    before = caches.counters
    caches.access(often)
    after = caches.counters
    assert after.l2.load_hits - before.l2.load_hits > 0.4 * (after.l2.loads - before.l2.loads)
    caches.flush()
    assert len(caches.access(accesses([1_000_000], is_write=1))) == 0
