"""What a cache keeps, compiled: the search for a line, the way that makes room, and what bypasses L2.

- LRU with at most 16 ways: the first two ages hold the order of the ways in 4 bits each, the most recent lowest. With
  more ways: ages are the number of the last access.
- Tree-PLRU: ages 1 to ways - 1 are the bits of the tree; 1 points to the right half. If the tree points to a way that
  waits for its fill, the next way that does not wait is taken.
- RRIP: static re-reference interval prediction with 2 bits and promotion to 0 on a hit (SRRIP-HP: Jaleel and others,
  High Performance Cache Replacement Using Re-Reference Interval Prediction, ISCA 2010). New lines begin at 2.
- Random: xorshift (Marsaglia, 2003) with the shifts 13, 7 and 17. If the way waits for its fill, the next one that does
  not wait is taken.

Empty ways are filled first. Two policies let L2 keep less:

- Bypass by operand: sample sets keep an operand in any case, and count its lines that were used again and those that
  were evicted before, as signatures do in SHiP (Wu and others, MICRO 2011). In other sets an operand without use
  bypasses. Each operand has one set in 64, and counts halve, so that a change of its use is noticed.
- Adaptive: sample sets keep all, loads only, or nothing. The other sets follow the choice that causes fewest requests
  (set duelling: Qureshi and others, Adaptive Insertion Policies for High Performance Caching, ISCA 2007).
"""

import numpy as np

from profilers.trace.compiled import bare, inlined
from replay.memory.cache_layout import (
    AGE,
    ATOMS,
    DUEL,
    DUEL_CHOICE,
    DUEL_EVICTIONS,
    EMPTY,
    L2,
    LRU,
    NEVER,
    OPERAND_AT,
    OPERANDS,
    ORDERED_WAYS,
    PLRU,
    READY,
    REUSE,
    ROWS,
    RRIP,
    SECTORS,
    USED_AGAIN,
)

#: Lines evicted without use before an operand may bypass, how many it takes for each that was used again, and the count
#: at multiples of which both halve.
_SAMPLES, _DEAD_FOR_USED, _MOST_SAMPLES = 32, 16, 512
#: Most samples that earlier launches of a kernel teach.
MOST_TAUGHT = 8 * _MOST_SAMPLES
#: Hash of the number of a set that tells which operand, or choice, it samples.
SAMPLE_HASH, SAMPLE_SHIFT = 0x9E3779B1, 16
#: Choices that sample sets measure.
ALL, LOADS_ONLY, NOTHING = 0, 1, 2
#: Groups of sets by hash, the first three of which measure the choices.
_GROUPS = 32
#: Requests of the best choice, times this, are as good.
_TIE = 33 / 32
#: Age of a new line, and the greatest, under RRIP.
_NEW, _DISTANT = 2, 3


@inlined
def find_way(machine, level, base, line):  # type: ignore[no-untyped-def]
    """Return the way of the set at `base` that holds a line, or -1.

    It looks at all ways, with unsigned indices: the machine then compares 8 at once.
    """
    wanted, way = np.int32(line), np.int32(-1)
    for i in range(level.row):
        way = max(way, np.int32(i) if machine.cells[np.uint64(base + i)] == wanted else np.int32(-1))
    return np.int64(way)


@inlined
def find_victim(machine, level, base, now):  # type: ignore[no-untyped-def]
    """Return the way that makes room in the set at `base`, or -1 if all ways wait for their fills."""
    if level.replacement == LRU:
        if level.ways <= ORDERED_WAYS:
            return _last_in_order(machine, level, base, now)
        return _least_recent(machine, level, base, now)
    return _find_other_victim(machine, level, base, now)


@bare
def _find_other_victim(machine, level, base, now):  # type: ignore[no-untyped-def]
    """Return what `find_victim` does under any replacement but LRU; not inlined, which keeps compilation short."""
    way = find_way(machine, level, base, EMPTY)
    if way >= 0:
        return way
    if level.replacement == RRIP:
        return _most_distant(machine, level, base, now)
    if level.replacement == PLRU:
        node = 1
        while node < level.ways:
            node = 2 * node + machine.cells[np.uint64(base + AGE * level.row + node)]
        way = node - level.ways
    else:
        bits = np.uint64(machine.numbers[np.uint64(level.seed)])
        bits ^= bits << np.uint64(13)
        bits ^= bits >> np.uint64(7)
        bits ^= bits << np.uint64(17)
        machine.numbers[np.uint64(level.seed)] = np.int64(bits)
        way = np.int64(bits % np.uint64(level.ways))
    for _ in range(level.ways):
        if machine.cells[np.uint64(base + READY * level.row + way)] <= now:
            return way
        way = way + 1 if way + 1 < level.ways else 0
    return np.int64(-1)


@inlined
def _last_in_order(machine, level, base, now):  # type: ignore[no-untyped-def]
    """Return the last way in the order of use that does not wait, or -1."""
    order, ready = _order(machine, base + AGE * level.row), base + READY * level.row
    for position in range(level.ways - 1, -1, -1):
        way = np.int64(order >> np.uint64(4 * position) & np.uint64(15))
        if machine.cells[np.uint64(ready + way)] <= now:
            return way
    return np.int64(-1)


@inlined
def _order(machine, ages):  # type: ignore[no-untyped-def]
    """Return the order of ways whose two halves begin at `ages`."""
    low, high = np.uint32(machine.cells[np.uint64(ages)]), np.uint32(machine.cells[np.uint64(ages + 1)])
    return np.uint64(high) << np.uint64(32) | np.uint64(low)


@inlined
def _to_front(machine, ages, way):  # type: ignore[no-untyped-def]
    """Put a way in front of the order of use.

    The lowest 4 bits that are 0 are found at once, as in strlen (Warren, Hacker's Delight, 2nd edition, section 6-1).
    """
    order, number = _order(machine, ages), np.uint64(way)
    differs = order ^ number * np.uint64(0x1111111111111111)
    equal = (differs - np.uint64(0x1111111111111111)) & ~differs & np.uint64(0x8888888888888888)
    before = ((equal & (~equal + np.uint64(1))) << np.uint64(1)) - np.uint64(1)
    order = order & ~before | order << np.uint64(4) & before | number
    machine.cells[np.uint64(ages)] = np.int32(order & np.uint64(0xFFFFFFFF))
    machine.cells[np.uint64(ages + 1)] = np.int32(order >> np.uint64(32))


@bare
def _least_recent(machine, level, base, now):  # type: ignore[no-untyped-def]
    """Return the way with the least age of those that do not wait, or -1."""
    until, least, way = np.int32(now), np.int32(NEVER), np.int32(-1)
    ages, ready = base + AGE * level.row, base + READY * level.row
    for i in range(level.row):
        waits = machine.cells[np.uint64(ready + i)] > until
        least = min(least, np.int32(NEVER) if waits else machine.cells[np.uint64(ages + i)])
    for i in range(level.row):
        waits = machine.cells[np.uint64(ready + i)] > until
        is_least = machine.cells[np.uint64(ages + i)] == least
        way = max(way, np.int32(i) if is_least and not waits else np.int32(-1))
    return np.int64(way)


@inlined
def _most_distant(machine, level, base, now):  # type: ignore[no-untyped-def]
    """Return the first way with the greatest age of those that do not wait, or -1; all ages rise until it is 3."""
    ages, ready = base + AGE * level.row, base + READY * level.row
    way, greatest = np.int64(-1), np.int32(-1)
    for i in range(level.ways):
        if machine.cells[np.uint64(ready + i)] <= now and machine.cells[np.uint64(ages + i)] > greatest:
            way, greatest = np.int64(i), machine.cells[np.uint64(ages + i)]
    if way >= 0 and greatest < _DISTANT:
        for i in range(level.ways):
            machine.cells[np.uint64(ages + i)] = min(machine.cells[np.uint64(ages + i)] + _DISTANT - greatest, _DISTANT)
    return way


@inlined
def touch(machine, level, base, way, stamp, is_new):  # type: ignore[no-untyped-def]
    """Tell the replacement of a use of a way; `stamp` is the number of the access."""
    ages = base + AGE * level.row
    if level.replacement == LRU:
        if level.ways <= ORDERED_WAYS:
            _to_front(machine, ages, way)
        else:
            machine.cells[np.uint64(ages + way)] = stamp
    else:
        _touch_other(machine, level, ages, way, is_new)


@bare
def _touch_other(machine, level, ages, way, is_new):  # type: ignore[no-untyped-def]
    """Do what `touch` does under any replacement but LRU."""
    if level.replacement == RRIP:
        machine.cells[np.uint64(ages + way)] = _NEW if is_new else 0
    elif level.replacement == PLRU:
        node = way + level.ways
        while node > 1:
            machine.cells[np.uint64(ages + (node >> 1))] = 1 - (node & 1)
            node >>= 1


@bare
def earliest_fill(machine, level, base):  # type: ignore[no-untyped-def]
    """Return the cycle when the first fill of the set at `base` arrives."""
    earliest = np.int32(NEVER)
    for i in range(level.ways):
        earliest = min(earliest, machine.cells[np.uint64(base + READY * level.row + i)])
    return np.float64(earliest)


@inlined
def bypasses(machine, operand, base, is_write):  # type: ignore[no-untyped-def]
    """Return whether a miss of an operand is not kept in the set of L2 at `base`, by what was learnt so far."""
    rules = machine.rules[0]
    if rules.adaptive:
        choice = _group(machine, base)
        if choice > NOTHING:
            choice = machine.numbers[DUEL_CHOICE]
        return choice == NOTHING or (choice == LOADS_ONLY and is_write == 1)
    if not rules.operand_bypass:
        return False
    number = operand & (OPERANDS - 1)
    used, dead = machine.numbers[np.uint64(REUSE + 2 * number)], machine.numbers[np.uint64(REUSE + 2 * number + 1)]
    return dead >= _SAMPLES and dead > _DEAD_FOR_USED * used and _sampled(machine, base) != number


@inlined
def learn_eviction(machine, base, held):  # type: ignore[no-untyped-def]
    """Note the eviction of a line with the given sectors and operand."""
    rules = machine.rules[0]
    if rules.operand_bypass and not held & USED_AGAIN:
        _learn(machine, base, held, 1)
    if rules.adaptive and _group(machine, base) == ALL:
        machine.numbers[DUEL_EVICTIONS] += 1


@inlined
def _sampled(machine, base):  # type: ignore[no-untyped-def]
    """Return the operand that the set at `base` always keeps."""
    return (base // (ROWS * machine.levels[L2].row) * SAMPLE_HASH >> SAMPLE_SHIFT) & (OPERANDS - 1)


@inlined
def learn_use(machine, base, way):  # type: ignore[no-untyped-def]
    """Note the first use of a line of L2 after the one that filled it."""
    if machine.rules[0].operand_bypass:
        at = base + SECTORS * machine.levels[L2].row + way
        held = np.int64(machine.cells[np.uint64(at)])
        if not held & USED_AGAIN:
            machine.cells[np.uint64(at)] = held | USED_AGAIN
            _learn(machine, base, held, 0)


@inlined
def _learn(machine, base, held, is_dead):  # type: ignore[no-untyped-def]
    """Count a line of a sampled set that was used again, or evicted before; counts halve when they get large."""
    number = held >> OPERAND_AT & (OPERANDS - 1)
    if _sampled(machine, base) == number:
        machine.numbers[np.uint64(REUSE + 2 * number + is_dead)] += 1
        if machine.numbers[np.uint64(REUSE + 2 * number + is_dead)] & (_MOST_SAMPLES - 1) == 0:
            machine.numbers[np.uint64(REUSE + 2 * number)] >>= 1
            machine.numbers[np.uint64(REUSE + 2 * number + 1)] >>= 1


@bare
def weigh(machine, base, sectors):  # type: ignore[no-untyped-def]
    """Count an access of L2, with the sectors that go to memory now or when they are written back.

    Once lines are evicted, all other sets follow the choice that keeps least, of those with the fewest requests but for
    1 in 32: what is kept without need may stall, and is written back in another order.
    """
    group = _group(machine, base)
    if group > NOTHING:
        return
    for atom in range(machine.rules[0].atoms):
        machine.numbers[np.uint64(DUEL + 2 * group)] += machine.numbers[np.uint64(ATOMS + atom)] & sectors != 0
    machine.numbers[np.uint64(DUEL + 2 * group + 1)] += 1
    if machine.numbers[np.uint64(DUEL + 2 * group + 1)] % _SAMPLES != 0:
        return
    choice, best = ALL, np.inf
    for candidate in range(3):
        requests, accesses = (
            machine.numbers[np.uint64(DUEL + 2 * candidate)],
            machine.numbers[np.uint64(DUEL + 2 * candidate + 1)],
        )
        if accesses < _SAMPLES or machine.numbers[DUEL_EVICTIONS] < _SAMPLES:
            return
        best = min(best, requests / accesses)
    for candidate in range(3):
        requests, accesses = (
            machine.numbers[np.uint64(DUEL + 2 * candidate)],
            machine.numbers[np.uint64(DUEL + 2 * candidate + 1)],
        )
        if requests / accesses <= best * _TIE:
            choice = candidate
    machine.numbers[DUEL_CHOICE] = choice
    if machine.numbers[np.uint64(DUEL + 2 * group + 1)] >= 8 * _MOST_SAMPLES:
        machine.numbers[np.uint64(DUEL + 2 * group)] >>= 1
        machine.numbers[np.uint64(DUEL + 2 * group + 1)] >>= 1


@inlined
def _group(machine, base):  # type: ignore[no-untyped-def]
    """Return the choice that the set at `base` measures, or a greater number."""
    return (base // (ROWS * machine.levels[L2].row) * SAMPLE_HASH >> SAMPLE_SHIFT) & (_GROUPS - 1)
