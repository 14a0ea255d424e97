"""Simulate the caches of a device: which accesses of a kernel hit, and which requests go to memory.

`Hierarchy` holds an L1 cache for each compute unit, an L2 cache for each die and perhaps a last-level cache. A
`CachePolicy` says what they keep. Their content persists from kernel to kernel.
"""

from dataclasses import dataclass

import numpy as np

from profilers.errors import InvalidInputError
from profilers.trace.arrays import Ints
from replay.memory.accesses import Accesses
from replay.memory.cache_layout import (
    AGE,
    ATOMS,
    COMPLETED,
    COUNTS,
    DIRTY,
    INTERLEAVE,
    L1,
    L2,
    LATEST,
    LINE,
    LRU,
    MEMORY_QUEUE,
    MOST_SECTORS,
    MOST_TAUGHT,
    N_COUNTS,
    NEVER,
    OPERAND_AT,
    OPERANDS,
    ORDERED_WAYS,
    READY,
    REQUESTS,
    REUSE,
    ROW_TABLE,
    ROWS,
    SAMPLE_HASH,
    SAMPLE_SHIFT,
    SECTORS,
    STEPS,
    TRANSLATION,
    USED_AGAIN,
    WRITE_BACKS,
    MemoryPipe,
    check_lines,
    new_cache_state,
)  # fmt: skip
from replay.memory.dram import Traffic
from replay.memory.lookup import send, walk
from replay.memory.system import CachePolicy, MemorySystem

#: Numbers of accesses and of cycles after which both are counted from 0 again.
_LIMIT = 1 << 30
#: Accesses that are taken between two looks at these numbers.
_STRIDE = 1 << 22
#: Columns of `Accesses`, with their types for compiled code.
_COLUMNS = {"line": np.int64, "sectors": np.uint32, "is_write": np.uint8, "operand": np.int16, "unit": np.int32}


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
        check_lines(system)
        pipe = memory or MemoryPipe.of(system)
        self._state = new_cache_state(system, policy, in_flight, seed, pipe)
        self._most = _most_requests(system, policy)
        self._requests = np.zeros(2, np.int64)
        self._begin = 0.0
        self._lesson = np.zeros(2 * OPERANDS, np.int64)
        self._units = system.units
        self._mapping = system.dram.address_mapping
        self._all_sectors = (1 << system.l1.line_bytes // system.l1.sector_bytes) - 1

    @property
    def counters(self) -> CacheCounters:
        """Counters so far."""
        rows = self._state.numbers[COUNTS : COUNTS + 3 * N_COUNTS].reshape(3, N_COUNTS)
        l1, l2, llc = (LevelCounters(*map(int, row)) for row in rows)
        cycles = self._begin + float(self._state.times[COMPLETED])
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
        if len(accesses):
            self._check_range(accesses)
        columns = tuple(np.require(getattr(accesses, name), kind, ["C", "W"]) for name, kind in _COLUMNS.items())
        begin = 0
        while begin < len(accesses):
            self._keep_small()
            self._make_room()
            begin = int(walk(self._state, columns, (begin, min(begin + _STRIDE, len(accesses))), self._most))
        return self._taken()

    def flush(self) -> Traffic:
        """End a kernel: empty the L1 caches, write dirty lines of L2 back, and return the requests to memory.

        Lines of L2 stay, clean. Without rinsing they are written back set by set, with rinsing by DRAM row. A
        last-level cache keeps dirty lines.
        """
        addresses, begin = self._dirty_requests(), 0
        times = self._state.times
        times[LATEST] = times[COMPLETED]
        while begin < len(addresses):
            self._make_room()
            begin = int(send(self._state, addresses, begin))
        self._state.empty(L1)
        self._lesson = self._reuse()
        self._state.numbers[REUSE:TRANSLATION] = 0
        self._begin += float(times[COMPLETED])
        self._rewind(NEVER)
        times[:] = 0
        return self._taken()

    def _dirty_requests(self) -> Ints:
        """Return the requests that write the dirty lines of L2 back, which become clean."""
        state, l2, rules = self._state, self._state.levels[L2], self._state.rules[0]
        sets = state.sets(L2).reshape(-1, l2["slices"], l2["sets"], ROWS, l2["row"])
        die, slice_, set_, way = place = np.nonzero(sets[..., SECTORS, :] & DIRTY)
        order = np.lexsort((slice_, die, way, set_))
        lines = sets[..., LINE, :][place][order].astype(np.int64)
        dirty = sets[..., SECTORS, :][place][order] >> MOST_SECTORS & ((1 << MOST_SECTORS) - 1)
        sets[..., SECTORS, :] &= ~DIRTY
        state.cells[rules["dirty"] : rules["dirty"] + ROW_TABLE] = 0
        state.numbers[l2["counts"] + WRITE_BACKS] += len(lines)
        atoms = state.numbers[ATOMS : ATOMS + rules["atoms"]]
        addresses = lines[:, None] * l2["line_bytes"] + np.arange(len(atoms)) * rules["access_bytes"]
        requests: Ints = addresses[(dirty[:, None] & atoms) != 0]
        if rules["rinse"]:
            channel = self._mapping.decode(requests)[0]
            requests = requests[np.lexsort((requests, channel, requests // (rules["row_bytes"] * rules["channels"])))]
        return requests

    @property
    def lesson(self) -> Ints:
        """What instructions bypass by operand learnt in the last kernel: see `teach`."""
        return self._lesson

    def teach(self, lesson: Ints, launches: int = 1) -> None:
        """Let the next kernel know the reuse of its operands from earlier launches, as if each had been alike.

        Parameters
        ----------
        lesson : array of int64
            `lesson` of the caches in which the kernel ran.
        launches : int
            Number of earlier launches.
        """
        counts = launches * lesson.reshape(-1, 2)
        # Both counts of an operand halve, as often as they do when they are counted one by one.
        halved = np.ceil(np.log2(counts.max(axis=1) // MOST_TAUGHT + 1)).astype(np.int64)
        self._state.numbers[REUSE : REUSE + len(lesson)] = (counts >> halved[:, None]).ravel()

    def _reuse(self) -> Ints:
        """Return how many lines of each operand in its sample sets were used again, and how many were not by now."""
        state, l2 = self._state, self._state.levels[L2]
        counts: Ints = state.numbers[REUSE : REUSE + 2 * OPERANDS].copy()
        if not state.rules[0]["operand_bypass"]:
            return counts
        sets = state.sets(L2)
        number = np.arange(len(sets)) + l2["begin"] // (ROWS * l2["row"])
        sampled = (number * SAMPLE_HASH >> SAMPLE_SHIFT & OPERANDS - 1)[:, None]
        held = sets[:, SECTORS].astype(np.int64)
        dead = (sets[:, LINE] >= 0) & (held & USED_AGAIN == 0) & (held >> OPERAND_AT & OPERANDS - 1 == sampled)
        counts[1::2] += np.bincount((sampled + 0 * held)[dead], minlength=OPERANDS)
        return counts

    def _check_range(self, accesses: Accesses) -> None:
        """Check lines and units."""
        if not 0 <= accesses.line.min() <= accesses.line.max() < 1 << 31:
            raise InvalidInputError(f"an access to line {accesses.line.max()}; lines are numbered from 0 to 2^31 - 1")
        if not 0 <= accesses.unit.min() <= accesses.unit.max() < self._units:
            raise InvalidInputError(f"an access of unit {accesses.unit.max()}; units go from 0 to {self._units - 1}")
        if accesses.sectors.max() > self._all_sectors:
            raise InvalidInputError(f"an access to sectors {accesses.sectors.max():b} of a line that has fewer")

    def _make_room(self) -> None:
        """Make room for requests, if half of it is taken."""
        state = self._state
        room, count = len(state.address), int(state.numbers[REQUESTS])
        if 2 * count > room:
            address, is_write = np.empty(2 * room, np.int64), np.empty(2 * room, np.uint8)
            address[:count], is_write[:count] = state.address[:count], state.is_write[:count]
            self._state = state._replace(address=address, is_write=is_write)

    def _taken(self) -> Traffic:
        """Return the requests that wait to be handed on, and count them."""
        state, count = self._state, int(self._state.numbers[REQUESTS])
        state.numbers[REQUESTS] = 0
        address, is_write = state.address[:count].copy(), state.is_write[:count].copy()
        writes = int(is_write.sum())
        self._requests += (count - writes, writes)
        return Traffic(address, is_write)

    def _keep_small(self) -> None:
        """Count accesses and cycles from 0 again before they leave 32 bits."""
        state = self._state
        if state.times[COMPLETED] > _LIMIT:
            behind = int(state.times[LATEST])
            self._begin += behind
            self._rewind(behind)
        if state.numbers[STEPS] > _LIMIT:
            self._renumber()

    def _rewind(self, cycles: int) -> None:
        """Let the clock begin `cycles` later; what was complete by then is so at cycle 0."""
        state, rules = self._state, self._state.rules[0]
        for level in state.levels:
            ready = state.cells[level["begin"] : level["fills"]].reshape(-1, ROWS, level["row"])[:, READY]
            ready[:, : level["ways"]] = np.maximum(ready[:, : level["ways"]] - cycles, 0)
            fills = state.cells[level["fills"] : level["heads"]]
            fills[:] = np.maximum(fills - cycles, 0)
        outstanding = state.cells[rules["outstanding"] : rules["next_row"]]
        outstanding[:] = np.maximum(outstanding - cycles, 0)
        fetched = state.cells[rules["fetched"] :].reshape(-1, 3)
        fetched[:, 2] = np.maximum(fetched[:, 2] - cycles, 0)
        times, queues = state.times, int(state.levels[L1]["queue"])
        waits = [times[MEMORY_QUEUE], *times[queues::2]]
        times[:] = np.maximum(times - cycles, 0)
        times[MEMORY_QUEUE], times[queues::2] = waits[0], waits[1:]

    def _renumber(self) -> None:
        """Count the ages of LRU from 1 again, in the same order."""
        state, most = self._state, 0
        for number, level in enumerate(state.levels):
            if level["replacement"] == LRU and level["ways"] > ORDERED_WAYS:
                ages = state.sets(number)[:, AGE, : level["ways"]]
                ranks = ages.argsort(axis=1, kind="stable").argsort(axis=1) + 1
                ages[:] = np.where(ages > 0, ranks, 0)
                most = max(most, int(level["ways"]))
        state.numbers[STEPS] = most


def _most_requests(system: MemorySystem, policy: CachePolicy) -> int:
    """Return how many requests to memory a single access causes at most."""
    l2, dram, llc = system.l2, system.dram, system.llc
    lines = 2 + (dram.row_bytes // min(l2.line_bytes, INTERLEAVE) + 1 if policy.rinse else 0)
    return lines * (l2.line_bytes // dram.access_bytes) * (1 + (llc.line_bytes // dram.access_bytes if llc else 0))
