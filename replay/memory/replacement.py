"""The search for a line in a set, and the choice of the way that makes room, compiled.

- LRU with at most 16 ways: the first two ages hold the order of the ways in 4 bits each, the most recent lowest. With
  more ways: ages are the number of the last access.
- Tree-PLRU: ages 1 to ways - 1 are the bits of the tree; 1 points to the right half. If the tree points to a way that
  waits for its fill, the next way that does not wait is taken.
- RRIP: static re-reference interval prediction with 2 bits and promotion to 0 on a hit (SRRIP-HP: Jaleel and others,
  High Performance Cache Replacement Using Re-Reference Interval Prediction, ISCA 2010). New lines begin at 2.
- Random: xorshift (Marsaglia, 2003) with the shifts 13, 7 and 17. If the way waits for its fill, the next one that does
  not wait is taken.

Empty ways are filled first.
"""

import numpy as np

from profilers.trace.compiled import bare, inlined
from replay.memory.cache_layout import AGE, EMPTY, LRU, NEVER, ORDERED_WAYS, PLRU, READY, RRIP

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
