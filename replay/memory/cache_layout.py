"""The state of a hierarchy of caches as flat arrays, and what a cache keeps, for compiled code.

A set has four rows of `row` numbers each, beside one another in memory: the lines that its ways hold (`LINE`), what the
replacement remembers (`AGE`), the valid and the dirty sectors as bits (`SECTORS`), and the cycle when a fill arrives
(`READY`). Rows are padded to a multiple of 8: the machine compares 8 ways at once.

- LRU with at most 16 ways: the first two ages hold the order of the ways in 4 bits each, the most recent lowest. With
  more ways: ages are the number of the last access.
- Tree-PLRU: ages 1 to ways - 1 are the bits of the tree; 1 points to the right half. If the tree points to a way that
  waits for its fill, the next way that does not wait is taken.
- RRIP: static re-reference interval prediction with 2 bits and promotion to 0 on a hit (SRRIP-HP: Jaleel and others,
  High Performance Cache Replacement Using Re-Reference Interval Prediction, ISCA 2010). New lines begin at 2.
- Random: xorshift (Marsaglia, 2003) with the shifts 13, 7 and 17. If the way waits for its fill, the next one that does
  not wait is taken.

Empty ways are filled first. Two policies let L2 keep less:

- Bypass by operand: sample sets keep an operand in any case, and count its lines that were used again and its
  lines that were evicted unused, as signatures do in SHiP (Wu and others, MICRO 2011). In other sets an operand
  without use bypasses. Each operand has one set in 64, and counts halve, so that a change of its use is noticed.
- Adaptive: sample sets keep all, loads only, or nothing. The other sets follow the choice that causes fewest requests
  (set duelling: Qureshi and others, Adaptive Insertion Policies for High Performance Caching, ISCA 2007).
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from profilers.errors import InvalidInputError
from profilers.trace.arrays import Ints
from profilers.trace.compiled import bare, inlined
from replay.memory.system import REPLACEMENTS, Cache, CachePolicy, MemorySystem

#: Replacements.
LRU, PLRU, RRIP, RANDOM = 0, 1, 2, 3
#: Rows of a set.
LINE, AGE, SECTORS, READY = 0, 1, 2, 3
ROWS = 4
#: Line of an empty way, and of the padding of a row.
EMPTY, PADDING = -1, -2
#: Cycle that never comes: ways of the padding wait for it.
NEVER = 2**31 - 1
#: Ways that are compared at once.
GROUP = 8
#: Ways whose order of use LRU keeps in 64 bits, 4 for each.
ORDERED_WAYS = 16
_FIRST_ORDER = (0x76543210, 0xFEDCBA98 - (1 << 32))


#: Counters of a level, by row of `Level.counts`.
(LOADS, LOAD_HITS, STORES, STORE_HITS, LOAD_SECTORS, LOAD_SECTOR_HITS, STORE_SECTORS, STORE_SECTOR_HITS) = range(8)
BYPASSES, EVICTIONS, WRITE_BACKS, RINSED, STALL_CYCLES = range(8, 13)
N_COUNTS = 13
#: Sectors of a line at most. The numbers of `SECTORS` hold valid sectors, dirty ones, an operand, and whether the line
#: was used again.
MOST_SECTORS = 8
VALID = (1 << MOST_SECTORS) - 1
DIRTY = VALID << MOST_SECTORS
OPERAND_AT, USED_AGAIN = 2 * MOST_SECTORS, 1 << 22
#: Operands that the predictor of reuse tells apart, and shares of the sets in which each operand is always kept.
OPERANDS = 64
#: Entries of the table of dirty lines by DRAM row.
ROW_TABLE = 1 << 14
#: Entries of the table of lines that are fetched without a way, of three numbers each.
FETCHED_TABLE = 1 << 13
#: Rows of `CacheState.numbers`: requests that wait to be handed on, accesses so far, random numbers by level, counters
#: by level, the L2 sectors of each request of a line, for each operand the lines that were used again and the lines
#: that were evicted unused, what the adaptive policy measures, and the L2 sectors that hold L1 sectors, by the position
#: of the L1 line in the L2 line.
REQUESTS, STEPS, SEEDS, COUNTS, ATOMS, REUSE, DUEL, TRANSLATION = 0, 1, 2, 8, 48, 64, 192, 200
#: Rows of `CacheState.numbers` after the requests and accesses of each choice of the adaptive policy.
DUEL_EVICTIONS, DUEL_CHOICE = DUEL + 6, DUEL + 7
#: Rows of `CacheState.times`: the latest issue, the last completion, the queue of memory, and the next issue of each
#: unit.
LATEST, COMPLETED, MEMORY_QUEUE, ISSUE = 0, 1, 2, 4
#: Levels of a hierarchy.
L1, L2, LLC = 0, 1, 2
#: What an access does, and whether a line is new in its way. Typed, as all numbers that functions are called with: a
#: literal would have numba compile the function once more.
LOAD, STORE = np.uint8(0), np.uint8(1)
HELD, NEW = np.bool_(False), np.bool_(True)
#: What compiled code knows of a level of caches. The levels stand one after another in `CacheState.cells`.
#:
#: - begin, fills, heads: rows of `CacheState.cells` where the sets begin, where the rings of outstanding fills begin
#:   (the cycles at which the last `misses` fills of each slice arrive), and where the next rows of these rings begin.
#: - queue: row of `CacheState.times` where the queues of the slices begin.
#: - counts, seed: rows of `CacheState.numbers` where the counters begin, and of the state of the random numbers.
#: - slice_shift, set_mask: logarithm of `slices` and `sets` - 1 if these are powers of two, otherwise -1.
#: - near, far: shifts of the hash that chooses a set; lines have fewer bits than 62.
#: - row: numbers in a row of a set. The others are those of `Cache`.
LEVEL = np.dtype(
    [
        (name, np.int64)
        for name in ("begin", "fills", "heads", "queue", "counts", "seed", "line_bytes", "sets", "slices")
    ]
    + [(name, np.int64) for name in ("ways", "row", "misses", "replacement", "slice_shift", "set_mask")]
    + [(name, np.int64) for name in ("near", "far")]
    + [(name, np.float64) for name in ("latency", "line_cycles")]
)
#: What the caches keep, and what they share.
#:
#: - loads, stores, allocation_bypass, rinse, operand_bypass, adaptive: flags of `CachePolicy`.
#: - dies, in_flight: dies, and accesses that a unit may have outstanding.
#: - outstanding, next_row, dirty, fetched: rows of `CacheState.cells` where the rings begin that hold the completions
#:   of the last accesses of the units, where the next rows of these rings begin, and where two tables begin: of dirty
#:   lines, and of lines that are fetched without a way (line, sectors, cycle at which they arrive).
#: - line_shift: logarithm of the L1 lines in an L2 line.
#: - access_bytes, atoms: bytes of a request to memory, and requests that a whole L2 line takes.
#: - channels, interleave, row_bytes: channels of the memory, bytes after which addresses go to the next channel, and
#:   bytes of a row.
#: - fold: logarithm of the channels if the channel is combined with all bits above it, otherwise 0.
#: - has_llc: whether there is a last-level cache.
#: - memory_latency, request_cycles: cycles from a request to its data, and cycles in which it occupies the memory.
#: - slack: cycles by which a unit may be behind the latest issue of all units.
RULES = np.dtype(
    [(name, np.int64) for name in ("loads", "stores", "allocation_bypass", "rinse", "operand_bypass", "adaptive")]
    + [
        (name, np.int64)
        for name in (
            "dies",
            "in_flight",
            "outstanding",
            "next_row",
            "dirty",
            "fetched",
            "line_shift",
            "access_bytes",
            "atoms",
        )
    ]
    + [(name, np.int64) for name in ("channels", "interleave", "row_bytes", "fold", "has_llc")]
    + [(name, np.float64) for name in ("memory_latency", "request_cycles", "slack")]
)
#: Bytes after which addresses go to the next channel.
INTERLEAVE = 256
#: Requests that are kept before they are handed on.
REQUEST_ROOM = 1 << 19
#: Stands for a last-level cache that a device lacks.
_NO_CACHE = Cache(1, 1, 1, 1, misses=1)


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
    def of(cls, system: MemorySystem, efficiency: float = 1.0) -> "MemoryPipe":
        """Return the memory of a device; `efficiency` is the share of the peak bandwidth that it reaches."""
        if not 0 < efficiency <= 1:
            raise InvalidInputError(f"an efficiency of {efficiency:g} of the memory; it is above 0 and at most 1")
        dram = system.dram
        cycles = dram.burst_cycles / dram.channels * system.clock_hz / dram.clock_hz
        return cls(system.memory_latency, cycles / efficiency)


class CacheState(NamedTuple):
    """All state of a hierarchy of caches for compiled code.

    Attributes
    ----------
    cells : array of int32
        Sets, rings of outstanding fills, rings of outstanding accesses, and the table of dirty lines.
    numbers : array of int64
        What the head of this module names by row: counters, random numbers, masks.
    times : array of float64
        Cycles: clock, next issue of each unit, and for each queue the service that waits and the latest arrival.
    address, is_write : array of int64 and of uint8
        Requests to memory.
    levels : array of `LEVEL`, shape (3,)
        L1, L2 and last-level cache.
    rules : array of `RULES`, shape (1,)
        What the caches keep, and what they share.
    """

    cells: npt.NDArray[np.int32]
    numbers: Ints
    times: npt.NDArray[np.float64]
    address: Ints
    is_write: npt.NDArray[np.uint8]
    levels: npt.NDArray[np.void]
    rules: npt.NDArray[np.void]

    def sets(self, level: int) -> npt.NDArray[np.int32]:
        """Return the sets of a level, shape (sets of all caches, `ROWS`, numbers in a row)."""
        facts = self.levels[level]
        cells = self.cells[facts["begin"] : facts["fills"]]
        return cells.reshape(-1, ROWS, int(facts["row"]))

    def empty(self, level: int) -> None:
        """Empty the caches of a level."""
        rows, ways = self.sets(level), int(self.levels[level]["ways"])
        rows[:, [AGE, SECTORS]] = 0
        rows[:, LINE], rows[:, READY] = PADDING, NEVER
        rows[:, LINE, :ways], rows[:, READY, :ways] = EMPTY, 0
        if self.levels[level]["replacement"] == LRU and ways <= ORDERED_WAYS:
            rows[:, AGE, :2] = _FIRST_ORDER


def check_lines(system: MemorySystem) -> None:
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


def new_cache_state(
    system: MemorySystem, policy: CachePolicy, in_flight: int, seed: int, memory: MemoryPipe
) -> CacheState:
    """Return empty caches.

    Parameters
    ----------
    system : MemorySystem
        Device; `check_lines` raises no error for it.
    policy : CachePolicy
        What the caches keep.
    in_flight : int
        Lines that a compute unit may wait for at a time.
    seed : int
        Seed of random replacement.
    memory : MemoryPipe
        Latency and bandwidth of the memory.
    """
    caches = [(system.l1, system.units), (system.l2, system.dies), (system.llc or _NO_CACHE, 1)]
    levels = np.zeros(len(caches), LEVEL)
    cells, times = 0, ISSUE + system.units
    for number, (cache, count) in enumerate(caches):
        facts, slices = levels[number], count * cache.slices
        row = -(-cache.ways // GROUP) * GROUP
        for name in ("line_bytes", "sets", "slices", "ways", "misses", "latency", "line_cycles"):
            facts[name] = getattr(cache, name)
        facts["row"], facts["replacement"] = row, REPLACEMENTS.index(cache.replacement)
        facts["slice_shift"] = _logarithm(cache.slices)
        facts["set_mask"] = cache.sets - 1 if _logarithm(cache.sets) >= 0 else -1
        facts["near"], facts["far"] = (7, 13) if cache.hashed else (62, 62)
        facts["seed"], facts["counts"], facts["queue"] = SEEDS + number, COUNTS + number * N_COUNTS, times
        facts["begin"], facts["fills"] = cells, cells + slices * cache.sets * ROWS * row
        facts["heads"] = facts["fills"] + slices * cache.misses
        cells, times = int(facts["heads"]) + slices, times + 2 * slices
    rules = _rules(system, policy, in_flight, memory)
    rules["outstanding"] = cells
    rules["next_row"] = cells + system.units * in_flight
    rules["dirty"] = rules["next_row"] + system.units
    rules["fetched"] = rules["dirty"] + ROW_TABLE
    state = CacheState(
        cells=np.zeros(int(rules["fetched"][0]) + 3 * FETCHED_TABLE, np.int32),
        numbers=_numbers(system, seed),
        times=np.zeros(times),
        address=np.empty(REQUEST_ROOM, np.int64),
        is_write=np.empty(REQUEST_ROOM, np.uint8),
        levels=levels,
        rules=rules,
    )
    for number in range(len(caches)):
        state.empty(number)
    return state


def _rules(system: MemorySystem, policy: CachePolicy, in_flight: int, memory: MemoryPipe) -> npt.NDArray[np.void]:
    """Return what the caches keep and share, without the rows of `CacheState.cells`."""
    l2, dram, rules = system.l2, system.dram, np.zeros(1, RULES)
    for name in ("loads", "stores", "allocation_bypass", "rinse", "operand_bypass", "adaptive"):
        rules[name] = getattr(policy, name)
    for name in ("channels", "row_bytes", "access_bytes"):
        rules[name] = getattr(dram, name)
    rules["fold"] = _logarithm(dram.channels) if dram.address_mapping.folds_channel else 0
    rules["dies"], rules["in_flight"], rules["has_llc"] = system.dies, in_flight, system.llc is not None
    rules["line_shift"] = _logarithm(l2.line_bytes // system.l1.line_bytes)
    rules["atoms"], rules["interleave"] = l2.line_bytes // dram.access_bytes, memory.interleave
    rules["memory_latency"], rules["request_cycles"] = memory.latency, memory.request_cycles
    llc_latency = system.llc.latency if system.llc else 0
    rules["slack"] = 2 * (memory.latency + llc_latency + l2.latency + system.l1.latency)
    return rules


def _numbers(system: MemorySystem, seed: int) -> Ints:
    """Return `CacheState.numbers` of empty caches."""
    l1, l2, access = system.l1, system.l2, system.dram.access_bytes
    ratio, parts = l2.line_bytes // l1.line_bytes, l1.line_bytes // l1.sector_bytes
    numbers = np.zeros(TRANSLATION + (ratio << MOST_SECTORS), np.int64)
    numbers[SEEDS : SEEDS + 3] = np.random.default_rng(seed).integers(1, 1 << 62, 3)
    atoms = np.arange(l2.line_bytes // access)
    numbers[ATOMS : ATOMS + len(atoms)] = _overlap(atoms * access, access, l2)
    for part in range(ratio):
        sectors = _overlap(part * l1.line_bytes + np.arange(parts) * l1.sector_bytes, l1.sector_bytes, l2)
        for mask in range(1 << parts):
            chosen = sectors[(mask >> np.arange(parts) & 1).astype(bool)]
            numbers[TRANSLATION + (part << MOST_SECTORS) + mask] = np.bitwise_or.reduce(chosen, initial=0)
    return numbers


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


#: Lines evicted without use before an operand may bypass, how many it takes for each that was used again, and the count
#: after which both halve, each time.
_SAMPLES, _DEAD_FOR_USED, _MOST_SAMPLES = 32, 16, 512
#: Most samples that earlier launches of a kernel teach.
MOST_TAUGHT = 8 * _MOST_SAMPLES
#: Hash of the number of a set that tells which operand, or choice, it samples.
SAMPLE_HASH, SAMPLE_SHIFT = 0x9E3779B1, 16
#: Choices that sample sets measure.
ALL, LOADS_ONLY, NOTHING = 0, 1, 2
#: Groups of sets by hash; the first three measure the choices.
_GROUPS = 32
#: Requests of the best choice, times this, are as good.
_TIE = 33 / 32
#: Age of a new line, and the greatest, under RRIP.
_NEW, _DISTANT = 2, 3


@inlined
def find_way(state, level, base, line):  # type: ignore[no-untyped-def]
    """Return the way of the set at `base` that holds a line, or -1.

    It looks at all ways, with unsigned indices: the machine then compares 8 at once.
    """
    wanted, way = np.int32(line), np.int32(-1)
    for i in range(level.row):
        way = max(way, np.int32(i) if state.cells[np.uint64(base + i)] == wanted else np.int32(-1))
    return np.int64(way)


@inlined
def find_victim(state, level, base, now):  # type: ignore[no-untyped-def]
    """Return the way that makes room in the set at `base`, or -1 if all ways wait for their fills."""
    if level.replacement == LRU:
        if level.ways <= ORDERED_WAYS:
            return _last_in_order(state, level, base, now)
        return _least_recent(state, level, base, now)
    return _find_other_victim(state, level, base, now)


@bare
def _find_other_victim(state, level, base, now):  # type: ignore[no-untyped-def]
    """Return what `find_victim` does under any replacement but LRU; not inlined, which keeps compilation short."""
    way = find_way(state, level, base, np.int64(EMPTY))
    if way >= 0:
        return way
    if level.replacement == RRIP:
        return _most_distant(state, level, base, now)
    if level.replacement == PLRU:
        node = 1
        while node < level.ways:
            node = 2 * node + state.cells[np.uint64(base + AGE * level.row + node)]
        way = node - level.ways
    else:
        bits = np.uint64(state.numbers[np.uint64(level.seed)])
        bits ^= bits << np.uint64(13)
        bits ^= bits >> np.uint64(7)
        bits ^= bits << np.uint64(17)
        state.numbers[np.uint64(level.seed)] = np.int64(bits)
        way = np.int64(bits % np.uint64(level.ways))
    for _ in range(level.ways):
        if state.cells[np.uint64(base + READY * level.row + way)] <= now:
            return way
        way = way + 1 if way + 1 < level.ways else 0
    return np.int64(-1)


@inlined
def _last_in_order(state, level, base, now):  # type: ignore[no-untyped-def]
    """Return the last way in the order of use that does not wait, or -1."""
    order, ready = _order(state, base + AGE * level.row), base + READY * level.row
    for position in range(level.ways - 1, -1, -1):
        way = np.int64(order >> np.uint64(4 * position) & np.uint64(15))
        if state.cells[np.uint64(ready + way)] <= now:
            return way
    return np.int64(-1)


@inlined
def _order(state, ages):  # type: ignore[no-untyped-def]
    """Return the order of ways whose two halves begin at `ages`."""
    low, high = np.uint32(state.cells[np.uint64(ages)]), np.uint32(state.cells[np.uint64(ages + 1)])
    return np.uint64(high) << np.uint64(32) | np.uint64(low)


@inlined
def _to_front(state, ages, way):  # type: ignore[no-untyped-def]
    """Put a way in front of the order of use.

    The lowest 4 bits that are 0 are found at once, as in strlen (Warren, Hacker's Delight, 2nd edition, section 6-1).
    """
    order, number = _order(state, ages), np.uint64(way)
    differs = order ^ number * np.uint64(0x1111111111111111)
    equal = (differs - np.uint64(0x1111111111111111)) & ~differs & np.uint64(0x8888888888888888)
    before = ((equal & (~equal + np.uint64(1))) << np.uint64(1)) - np.uint64(1)
    order = order & ~before | order << np.uint64(4) & before | number
    state.cells[np.uint64(ages)] = np.int32(order & np.uint64(0xFFFFFFFF))
    state.cells[np.uint64(ages + 1)] = np.int32(order >> np.uint64(32))


@bare
def _least_recent(state, level, base, now):  # type: ignore[no-untyped-def]
    """Return the way of least age that does not wait for a fill, or -1."""
    until, least, way = np.int32(now), np.int32(NEVER), np.int32(-1)
    ages, ready = base + AGE * level.row, base + READY * level.row
    for i in range(level.row):
        waits = state.cells[np.uint64(ready + i)] > until
        least = min(least, np.int32(NEVER) if waits else state.cells[np.uint64(ages + i)])
    for i in range(level.row):
        waits = state.cells[np.uint64(ready + i)] > until
        is_least = state.cells[np.uint64(ages + i)] == least
        way = max(way, np.int32(i) if is_least and not waits else np.int32(-1))
    return np.int64(way)


@inlined
def _most_distant(state, level, base, now):  # type: ignore[no-untyped-def]
    """Return the first way of greatest age that does not wait for a fill, or -1; all ages rise until it is 3."""
    ages, ready = base + AGE * level.row, base + READY * level.row
    way, greatest = np.int64(-1), np.int32(-1)
    for i in range(level.ways):
        if state.cells[np.uint64(ready + i)] <= now and state.cells[np.uint64(ages + i)] > greatest:
            way, greatest = np.int64(i), state.cells[np.uint64(ages + i)]
    if way >= 0 and greatest < _DISTANT:
        for i in range(level.ways):
            state.cells[np.uint64(ages + i)] = min(state.cells[np.uint64(ages + i)] + _DISTANT - greatest, _DISTANT)
    return way


@inlined
def touch(state, level, base, way, stamp, is_new):  # type: ignore[no-untyped-def]
    """Tell the replacement of a use of a way; `stamp` is the number of the access."""
    ages = base + AGE * level.row
    if level.replacement == LRU:
        if level.ways <= ORDERED_WAYS:
            _to_front(state, ages, way)
        else:
            state.cells[np.uint64(ages + way)] = stamp
    else:
        _touch_other(state, level, ages, way, is_new)


@bare
def _touch_other(state, level, ages, way, is_new):  # type: ignore[no-untyped-def]
    """Do what `touch` does under any replacement but LRU."""
    if level.replacement == RRIP:
        state.cells[np.uint64(ages + way)] = _NEW if is_new else 0
    elif level.replacement == PLRU:
        node = way + level.ways
        while node > 1:
            state.cells[np.uint64(ages + (node >> 1))] = 1 - (node & 1)
            node >>= 1


@bare
def earliest_fill(state, level, base):  # type: ignore[no-untyped-def]
    """Return the cycle when the first fill of the set at `base` arrives."""
    earliest = np.int32(NEVER)
    for i in range(level.ways):
        earliest = min(earliest, state.cells[np.uint64(base + READY * level.row + i)])
    return np.float64(earliest)


@inlined
def bypasses(state, operand, base, is_write):  # type: ignore[no-untyped-def]
    """Return whether a miss of an operand is not kept in the set of L2 at `base`, by what was learnt so far."""
    rules = state.rules[0]
    if rules.adaptive:
        choice = _group(state, base)
        if choice > NOTHING:
            choice = state.numbers[DUEL_CHOICE]
        return choice == NOTHING or (choice == LOADS_ONLY and is_write == 1)
    if not rules.operand_bypass:
        return False
    number = operand & (OPERANDS - 1)
    used, dead = state.numbers[np.uint64(REUSE + 2 * number)], state.numbers[np.uint64(REUSE + 2 * number + 1)]
    return dead >= _SAMPLES and dead > _DEAD_FOR_USED * used and _sampled(state, base) != number


@inlined
def learn_eviction(state, base, held):  # type: ignore[no-untyped-def]
    """Note the eviction of a line with the given sectors and operand."""
    rules = state.rules[0]
    if rules.operand_bypass and not held & USED_AGAIN:
        _learn(state, base, held, np.int64(1))
    if rules.adaptive and _group(state, base) == ALL:
        state.numbers[DUEL_EVICTIONS] += 1


@inlined
def _sampled(state, base):  # type: ignore[no-untyped-def]
    """Return the operand that the set at `base` always keeps."""
    return (base // (ROWS * state.levels[L2].row) * SAMPLE_HASH >> SAMPLE_SHIFT) & (OPERANDS - 1)


@inlined
def learn_use(state, base, way):  # type: ignore[no-untyped-def]
    """Note the first use of a line of L2 after the one that filled it."""
    if state.rules[0].operand_bypass:
        at = base + SECTORS * state.levels[L2].row + way
        held = np.int64(state.cells[np.uint64(at)])
        if not held & USED_AGAIN:
            state.cells[np.uint64(at)] = held | USED_AGAIN
            _learn(state, base, held, np.int64(0))


@inlined
def _learn(state, base, held, is_dead):  # type: ignore[no-untyped-def]
    """Count a line of a sampled set that was used again, or evicted before; counts halve when they get large."""
    number = held >> OPERAND_AT & (OPERANDS - 1)
    if _sampled(state, base) == number:
        state.numbers[np.uint64(REUSE + 2 * number + is_dead)] += 1
        if state.numbers[np.uint64(REUSE + 2 * number + is_dead)] & (_MOST_SAMPLES - 1) == 0:
            state.numbers[np.uint64(REUSE + 2 * number)] >>= 1
            state.numbers[np.uint64(REUSE + 2 * number + 1)] >>= 1


@bare
def weigh(state, base, sectors):  # type: ignore[no-untyped-def]
    """Count an access of L2, with the sectors that go to memory now or when they are written back.

    Once lines are evicted, all other sets follow the choice that keeps least, of those with the fewest requests but for
    1 in 32: what is kept without need may stall, and is written back in another order.
    """
    group = _group(state, base)
    if group > NOTHING:
        return
    for atom in range(state.rules[0].atoms):
        state.numbers[np.uint64(DUEL + 2 * group)] += state.numbers[np.uint64(ATOMS + atom)] & sectors != 0
    state.numbers[np.uint64(DUEL + 2 * group + 1)] += 1
    if state.numbers[np.uint64(DUEL + 2 * group + 1)] % _SAMPLES != 0:
        return
    choice, best = ALL, np.inf
    for candidate in range(3):
        requests, accesses = (
            state.numbers[np.uint64(DUEL + 2 * candidate)],
            state.numbers[np.uint64(DUEL + 2 * candidate + 1)],
        )
        if accesses < _SAMPLES or state.numbers[DUEL_EVICTIONS] < _SAMPLES:
            return
        best = min(best, requests / accesses)
    for candidate in range(3):
        requests, accesses = (
            state.numbers[np.uint64(DUEL + 2 * candidate)],
            state.numbers[np.uint64(DUEL + 2 * candidate + 1)],
        )
        if requests / accesses <= best * _TIE:
            choice = candidate
    state.numbers[DUEL_CHOICE] = choice
    if state.numbers[np.uint64(DUEL + 2 * group + 1)] >= 8 * _MOST_SAMPLES:
        state.numbers[np.uint64(DUEL + 2 * group)] >>= 1
        state.numbers[np.uint64(DUEL + 2 * group + 1)] >>= 1


@inlined
def _group(state, base):  # type: ignore[no-untyped-def]
    """Return the choice that the set at `base` measures, or a greater number."""
    return (base // (ROWS * state.levels[L2].row) * SAMPLE_HASH >> SAMPLE_SHIFT) & (_GROUPS - 1)
