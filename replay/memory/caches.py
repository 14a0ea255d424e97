"""Simulate the caches of a device: which accesses of a kernel hit, and which requests go to memory.

`Hierarchy` holds an L1 cache for each compute unit, an L2 cache for each die and perhaps a last-level cache. A
`CachePolicy` says what they keep. Their content persists from kernel to kernel.
"""

from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from profilers.errors import InvalidInputError
from profilers.trace.arrays import Ints
from replay.memory.accesses import Accesses
from replay.memory.dram import Dram, Traffic
from replay.memory.lookup import COMPLETED, MEMORY_QUEUE, MOST_SECTORS, N_COUNTS, OPERANDS, Machine, Rules, send, walk
from replay.memory.policies import CachePolicy
from replay.memory.replacement import (
    AGE,
    EMPTY,
    GROUP,
    LINE,
    LRU,
    MOST_WAYS,
    NEVER,
    PADDING,
    READY,
    ROWS,
    SECTORS,
    Level,
)
from replay.memory.system import REPLACEMENTS, Cache, MemorySystem

#: Time from the L2 cache to memory and back without load: 375 cycles from a load to its data, less 193 of the L2 cache,
#: of a V100 at 1.38 GHz (Jia and others, Dissecting the NVIDIA Volta GPU Architecture via Microbenchmarking, 2018).
MEMORY_SECONDS = 132e-9
#: Bytes after which addresses go to the next channel.
INTERLEAVE = 256
#: Requests that are kept before they are handed on.
_REQUESTS = 1 << 19
#: Numbers of accesses and of cycles after which both are counted from 0 again.
_LIMIT = 1 << 30
#: Entries of the table of dirty lines by DRAM row.
_ROW_TABLE = 1 << 14
_Requests = tuple[Ints, npt.NDArray[np.uint8]]


@dataclass(frozen=True)
class LevelCounters:
    """Counters of a level of caches, over all caches of the level.

    Parameters
    ----------
    loads, load_hits, stores, store_hits : int
        Accesses to lines. A hit finds all sectors that it touches; their fill may still be on its way.
    load_sectors, load_sector_hits, store_sectors, store_sector_hits : int
        The same in sectors.
    bypasses : int
        Misses that were given no way. Stores to L1 are not counted.
    evictions, write_backs : int
        Lines that made room for others, and dirty lines that were written back, at the end of kernels too.
    rinsed : int
        Lines of `write_backs` that were written back beside another line of their DRAM row.
    stall_cycles : int
        Cycles in which a miss waited for a way or for an outstanding fill, over all misses.
    """

    loads: int
    load_hits: int
    stores: int
    store_hits: int
    load_sectors: int
    load_sector_hits: int
    store_sectors: int
    store_sector_hits: int
    bypasses: int
    evictions: int
    write_backs: int
    rinsed: int
    stall_cycles: int


@dataclass(frozen=True)
class CacheCounters:
    """Counters of a hierarchy of caches since it was made.

    Parameters
    ----------
    l1, l2, llc : LevelCounters
        Counters by level; all are 0 for a last-level cache that a device lacks.
    reads, writes : int
        Requests to memory.
    cycles : float
        Cycles of the virtual clock until the last access was complete.
    """

    l1: LevelCounters
    l2: LevelCounters
    llc: LevelCounters
    reads: int
    writes: int
    cycles: float


@dataclass(frozen=True)
class MemoryPipe:
    """Memory as the caches see it: a latency and a bandwidth.

    Parameters
    ----------
    latency : float
        Cycles of the cache clock from a request to its data, without load.
    request_cycles : float
        Cycles of the cache clock in which a request occupies the memory.
    interleave : int
        Bytes after which addresses go to the next channel.
    """

    latency: float
    request_cycles: float
    interleave: int = INTERLEAVE

    @classmethod
    def of(cls, dram: Dram, clock_hz: float, efficiency: float = 1.0) -> "MemoryPipe":
        """Return the memory of a device; `efficiency` is the share of the peak bandwidth that it reaches."""
        if not 0 < efficiency <= 1:
            raise InvalidInputError(f"an efficiency of {efficiency:g} of the memory; it is above 0 and at most 1")
        cycles = dram.burst_cycles / dram.channels * clock_hz / dram.clock_hz
        return cls(MEMORY_SECONDS * clock_hz, cycles / efficiency)


class Hierarchy:
    """The caches of a device under a policy.

    Parameters
    ----------
    system : MemorySystem
        Device.
    policy : CachePolicy
        What the caches keep.
    in_flight : int
        Lines that a compute unit may wait for at a time.
    seed : int
        Seed of random replacement.
    memory : MemoryPipe, optional
        Latency and bandwidth of the memory; by default at its peak.

    Raises
    ------
    InvalidInputError
        The lines of the levels do not fit each other, or a line has too many sectors.
    """

    def __init__(
        self,
        system: MemorySystem,
        policy: CachePolicy,
        *,
        in_flight: int,
        seed: int = 0,
        memory: MemoryPipe | None = None,
    ) -> None:
        if in_flight < 1:
            raise InvalidInputError(f"in_flight is {in_flight}; a compute unit waits for 1 line or more")
        _check(system)
        self._pipe = memory or MemoryPipe.of(system.dram, system.clock_hz)
        self._machine = _machine(system, policy, in_flight, seed, self._pipe)
        l2, dram = system.l2, system.dram
        atoms = l2.line_bytes // dram.access_bytes
        llc_atoms = system.llc.line_bytes // dram.access_bytes if system.llc else 0
        row_lines = dram.row_bytes // l2.line_bytes + 1 if policy.rinse else 1
        self._most = (2 + row_lines) * atoms * (1 + llc_atoms)
        self._requests = np.zeros(2, np.int64)
        self._begin = 0.0

    @property
    def counters(self) -> CacheCounters:
        """Counters so far."""
        levels = (self._machine.l1, self._machine.l2, self._machine.llc)
        l1, l2, llc = (LevelCounters(*map(int, level.counts)) for level in levels)
        cycles = self._begin + float(self._machine.clock[COMPLETED])
        return CacheCounters(l1, l2, llc, int(self._requests[0]), int(self._requests[1]), cycles)

    def access(self, accesses: Accesses) -> Traffic:
        """Take accesses in order; return the requests to memory that they cause.

        Parameters
        ----------
        accesses : Accesses
            Accesses of a kernel, or a block of them.

        Raises
        ------
        InvalidInputError
            An address lies past 2^31 lines, or a unit does not exist.
        """
        if not len(accesses):
            return self._traffic([])
        self._check_range(accesses)
        columns = tuple(np.ascontiguousarray(getattr(accesses, field.name)) for field in fields(Accesses))
        kept, begin = [], 0
        while begin < len(accesses):
            end = min(begin + _LIMIT // 64, len(accesses))
            self._keep_small()
            begin = int(walk(self._machine, tuple(column[:end] for column in columns), begin, self._most))
            kept.append(self._taken())
        return self._traffic(kept)

    def flush(self) -> Traffic:
        """End a kernel: empty the L1 caches, write dirty lines of L2 back, and return the requests to memory.

        Lines of L2 stay, clean. Without rinsing they are written back set by set, with rinsing by DRAM row. A
        last-level cache keeps dirty lines.
        """
        machine = self._machine
        addresses, kept, begin = self._dirty_requests(), [], 0
        while begin < len(addresses):
            begin = int(send(machine, addresses, begin))
            kept.append(self._taken())
        _empty(machine.l1)
        self._begin += float(machine.clock[COMPLETED])
        self._rewind(NEVER)
        machine.reuse[:] = 0
        return self._traffic(kept)

    def _dirty_requests(self) -> Ints:
        """Return the requests that write the dirty lines of L2 back, which become clean."""
        machine, l2 = self._machine, self._machine.l2
        rows = l2.state.reshape(-1, l2.slices, l2.sets, ROWS, l2.row)
        masks = rows[..., SECTORS, :]
        dirty = masks >> MOST_SECTORS & ((1 << MOST_SECTORS) - 1)
        place = np.nonzero(dirty)
        order = np.lexsort((place[1], place[0], place[3], place[2]))
        lines = rows[..., LINE, :][place][order].astype(np.int64)
        sectors = dirty[place][order].astype(np.int64)
        l2.counts[10] += len(lines)
        masks &= ~(((1 << MOST_SECTORS) - 1) << MOST_SECTORS)
        machine.dirty[:] = 0
        touched = (sectors[:, None] & machine.atoms) != 0
        addresses = lines[:, None] * l2.line_bytes + np.arange(len(machine.atoms)) * machine.rules.access_bytes
        requests: Ints = addresses[touched]
        if machine.rules.rinse:
            rules = machine.rules
            channel = requests // rules.interleave % rules.channels
            requests = requests[np.lexsort((requests, channel, requests // (rules.row_bytes * rules.channels)))]
        return requests

    def _check_range(self, accesses: Accesses) -> None:
        machine = self._machine
        if not 0 <= accesses.line.min() <= accesses.line.max() < 1 << 31:
            raise InvalidInputError(f"an access to line {accesses.line.max()}; lines are numbered from 0 to 2^31 - 1")
        if not 0 <= accesses.unit.min() <= accesses.unit.max() < len(machine.issue):
            raise InvalidInputError(
                f"an access of unit {accesses.unit.max()}; the device has {len(machine.issue)} compute units"
            )

    def _taken(self) -> _Requests:
        """Return the requests so far, and make room for others."""
        machine, count = self._machine, int(self._machine.totals[0])
        machine.totals[0] = 0
        return machine.address[:count].copy(), machine.is_write[:count].copy()

    def _traffic(self, kept: list[_Requests]) -> Traffic:
        """Return requests as traffic, and count them."""
        address = np.concatenate([np.empty(0, np.int64), *(requests[0] for requests in kept)])
        is_write = np.concatenate([np.empty(0, np.uint8), *(requests[1] for requests in kept)])
        writes = int(is_write.sum())
        self._requests += (len(is_write) - writes, writes)
        return Traffic(address, is_write)

    def _keep_small(self) -> None:
        """Count accesses and cycles from 0 again before they leave 32 bits."""
        machine = self._machine
        if machine.clock[COMPLETED] > _LIMIT:
            self._begin += float(machine.clock[0])
            self._rewind(int(machine.clock[0]))
        if machine.totals[1] > _LIMIT:
            machine.totals[1] = max(_renumber(level) for level in (machine.l1, machine.l2, machine.llc))

    def _rewind(self, cycles: int) -> None:
        """Let the clock begin `cycles` later; what was complete by then is so at cycle 0."""
        machine = self._machine
        for level in (machine.l1, machine.l2, machine.llc):
            ready = level.state.reshape(-1, ROWS, level.row)[:, READY, : level.ways]
            np.maximum(ready.astype(np.int64) - cycles, 0, out=ready, casting="unsafe")
            np.maximum(level.fills.astype(np.int64) - cycles, 0, out=level.fills, casting="unsafe")
            level.queue[1::2] = np.maximum(level.queue[1::2] - cycles, 0)
            if cycles == NEVER:
                level.queue[:] = 0
        np.maximum(machine.outstanding.astype(np.int64) - cycles, 0, out=machine.outstanding, casting="unsafe")
        np.maximum(machine.issue - cycles, 0, out=machine.issue)
        machine.clock[:] = np.maximum(machine.clock - cycles, 0)
        machine.clock[MEMORY_QUEUE] = 0


def _check(system: MemorySystem) -> None:
    """Check that the lines of the levels fit each other."""
    l1, l2, access = system.l1, system.l2, system.dram.access_bytes
    for name, cache in (("L1", l1), ("L2", l2), ("last-level", system.llc)):
        if cache is None:
            continue
        sector = access if name == "last-level" else cache.sector_bytes
        if cache.line_bytes % sector or not 1 <= cache.line_bytes // sector <= MOST_SECTORS:
            raise InvalidInputError(
                f"{system.name}: lines of {cache.line_bytes} bytes in sectors of {sector} in the {name} cache; a line "
                f"has 1 to {MOST_SECTORS} whole sectors"
            )
        if cache.ways >= MOST_WAYS:
            raise InvalidInputError(f"{system.name}: {cache.ways} ways in the {name} cache; at most {MOST_WAYS - 1}")
    ratio = l2.line_bytes // l1.line_bytes
    if l2.line_bytes % l1.line_bytes or ratio & (ratio - 1):
        raise InvalidInputError(
            f"{system.name}: lines of {l2.line_bytes} bytes in L2 and {l1.line_bytes} in L1; those of L2 are "
            "1, 2, 4 ... times as long"
        )
    if l2.line_bytes % access:
        raise InvalidInputError(
            f"{system.name}: an L2 line of {l2.line_bytes} bytes is no multiple of {access} of a request"
        )


def _machine(system: MemorySystem, policy: CachePolicy, in_flight: int, seed: int, memory: MemoryPipe) -> Machine:
    """Return the state of empty caches."""
    l1, l2, dram, units = system.l1, system.l2, system.dram, system.units
    atoms = l2.line_bytes // dram.access_bytes
    rules = Rules(
        loads=int(policy.loads),
        stores=int(policy.stores),
        allocation_bypass=int(policy.allocation_bypass),
        rinse=int(policy.rinse),
        operand_bypass=int(policy.operand_bypass),
        dies=system.dies,
        in_flight=in_flight,
        line_shift=(l2.line_bytes // l1.line_bytes).bit_length() - 1,
        access_bytes=dram.access_bytes,
        atoms=atoms,
        channels=dram.channels,
        interleave=memory.interleave,
        row_bytes=dram.row_bytes,
        has_llc=int(system.llc is not None),
        memory_latency=memory.latency,
        request_cycles=memory.request_cycles,
        slack=memory.latency + l2.latency,
    )
    return Machine(
        l1=_level(l1, units, seed),
        l2=_level(l2, system.dies, seed + 1),
        llc=_level(system.llc or Cache(dram.access_bytes, 1, dram.access_bytes, dram.access_bytes), 1, seed + 2),
        rules=rules,
        issue=np.zeros(units),
        outstanding=np.zeros(units * in_flight, np.int32),
        next_row=np.zeros(units, np.int32),
        sectors=_translation(l1, l2),
        atoms=_overlap(np.arange(atoms) * dram.access_bytes, dram.access_bytes, l2),
        clock=np.zeros(MEMORY_QUEUE + 2),
        reuse=np.zeros(2 * OPERANDS, np.int64),
        dirty=np.zeros(_ROW_TABLE, np.int32),
        address=np.empty(_REQUESTS, np.int64),
        is_write=np.empty(_REQUESTS, np.uint8),
        totals=np.zeros(2, np.int64),
    )


def _level(cache: Cache, caches: int, seed: int) -> Level:
    """Return `caches` empty caches."""
    slices, row = caches * cache.slices, -(-cache.ways // GROUP) * GROUP
    level = Level(
        state=np.empty(slices * cache.sets * ROWS * row, np.int32),
        fills=np.zeros(slices * cache.misses, np.int32),
        head=np.zeros(slices, np.int32),
        queue=np.zeros(2 * slices),
        seed=np.random.default_rng(seed).integers(1, 1 << 63, 1, dtype=np.uint64),
        counts=np.zeros(N_COUNTS, np.int64),
        line_bytes=cache.line_bytes,
        sets=cache.sets,
        slices=cache.slices,
        ways=cache.ways,
        row=row,
        misses=cache.misses,
        replacement=REPLACEMENTS.index(cache.replacement),
        slice_shift=_logarithm(cache.slices),
        set_mask=cache.sets - 1 if _logarithm(cache.sets) >= 0 else -1,
        latency=float(cache.latency),
        line_cycles=float(cache.line_cycles),
    )
    _empty(level)
    return level


def _empty(level: Level) -> None:
    """Empty the caches of a level."""
    rows = level.state.reshape(-1, ROWS, level.row)
    rows[:, [AGE, SECTORS]] = 0
    rows[:, LINE], rows[:, READY] = PADDING, NEVER
    rows[:, LINE, : level.ways], rows[:, READY, : level.ways] = EMPTY, 0


def _renumber(level: Level) -> int:
    """Count the ages of LRU from 1 again, in the same order; return the greatest."""
    if level.replacement != LRU:
        return 0
    ages = level.state.reshape(-1, ROWS, level.row)[:, AGE, : level.ways]
    ages[:] = np.where(ages > 0, ages.argsort(axis=1, kind="stable").argsort(axis=1) + 1, 0)
    return level.ways


def _translation(l1: Cache, l2: Cache) -> npt.NDArray[np.int64]:
    """Return the L2 sectors that hold L1 sectors, by the place of the L1 line in the L2 line and the L1 sectors."""
    ratio, bits = l2.line_bytes // l1.line_bytes, l1.line_bytes // l1.sector_bytes
    table = np.zeros((ratio, 1 << MOST_SECTORS), np.int64)
    for part in range(ratio):
        single = _overlap(part * l1.line_bytes + np.arange(bits) * l1.sector_bytes, l1.sector_bytes, l2)
        for mask in range(1 << bits):
            table[part, mask] = np.bitwise_or.reduce(single[(mask >> np.arange(bits) & 1).astype(bool)], initial=0)
    return table


def _overlap(begin: Ints, size: int, cache: Cache) -> Ints:
    """Return the sectors of a line that overlap runs of `size` bytes, as masks."""
    sectors = np.arange(cache.line_bytes // cache.sector_bytes)
    first = sectors * cache.sector_bytes
    overlap = (first < begin[:, None] + size) & (begin[:, None] < first + cache.sector_bytes)
    masks: Ints = (overlap << sectors).sum(axis=1)
    return masks


def _logarithm(number: int) -> int:
    """Return the logarithm of a power of two, otherwise -1."""
    return number.bit_length() - 1 if number & (number - 1) == 0 else -1
