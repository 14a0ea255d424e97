"""The search for a line in a set, and the choice of the way that makes room, compiled.

- LRU: ages are the number of the last access.
- Tree-PLRU: ages 1 to ways - 1 are the bits of the tree; 1 points to the right half. If the tree points to a way that
  waits for its fill, the next way that does not wait is taken.
- RRIP: static re-reference interval prediction with 2 bits and promotion to 0 on a hit (SRRIP-HP: Jaleel and others,
  High Performance Cache Replacement Using Re-Reference Interval Prediction, ISCA 2010). New lines begin at 2.
- Random: xorshift (Marsaglia, 2003) with the shifts 13, 7 and 17. If the way waits for its fill, the next one that does
  not wait is taken.

Empty ways are filled first.
"""

import numpy as np

from profilers.trace.compiled import inlined
from replay.memory.cache_layout import AGE, EMPTY, GROUP, LRU, MOST_WAYS, NEVER, PLRU, READY, RRIP, WAY_BITS

#: Age of a new line, and the greatest, under RRIP.
_NEW, _DISTANT = 2, 3


@inlined
def find_way(machine, level, base, line):  # type: ignore[no-untyped-def]
    """Return the way of the set at `base` that holds a line, or -1."""
    wanted, way = np.int32(line), np.int32(-1)
    for first in range(0, level.row, GROUP):
        for i in range(GROUP):
            way = max(way, np.int32(first + i) if machine.cells[base + first + i] == wanted else np.int32(-1))
    return np.int64(way)


@inlined
def find_victim(machine, level, base, now):  # type: ignore[no-untyped-def]
    """Return the way that makes room in the set at `base`, or -1 if all ways wait for their fills."""
    if level.replacement == LRU:
        return _least_recent(machine, level, base, now)
    way = find_way(machine, level, base, EMPTY)
    if way >= 0:
        return way
    if level.replacement == RRIP:
        return _most_distant(machine, level, base, now)
    if level.replacement == PLRU:
        node = 1
        while node < level.ways:
            node = 2 * node + machine.cells[base + AGE * level.row + node]
        way = node - level.ways
    else:
        bits = np.uint64(machine.numbers[level.seed])
        bits ^= bits << np.uint64(13)
        bits ^= bits >> np.uint64(7)
        bits ^= bits << np.uint64(17)
        machine.numbers[level.seed] = np.int64(bits)
        way = np.int64(bits % np.uint64(level.ways))
    for _ in range(level.ways):
        if machine.cells[base + READY * level.row + way] <= now:
            return way
        way = way + 1 if way + 1 < level.ways else 0
    return np.int64(-1)


@inlined
def _least_recent(machine, level, base, now):  # type: ignore[no-untyped-def]
    """Return the way with the least age of those that do not wait, or -1."""
    never = np.int64(NEVER) << WAY_BITS
    best, until = never, np.int32(now)
    ages, ready = base + AGE * level.row, base + READY * level.row
    for first in range(0, level.row, GROUP):
        for i in range(first, first + GROUP):
            key = (np.int64(machine.cells[ages + i]) << WAY_BITS) | i
            best = min(best, key if machine.cells[ready + i] <= until else never)
    return best & (MOST_WAYS - 1) if best < never else np.int64(-1)


@inlined
def _most_distant(machine, level, base, now):  # type: ignore[no-untyped-def]
    """Return the first way with the greatest age of those that do not wait, or -1; all ages rise until it is 3."""
    ages, ready = base + AGE * level.row, base + READY * level.row
    way, greatest = np.int64(-1), np.int32(-1)
    for i in range(level.ways):
        if machine.cells[ready + i] <= now and machine.cells[ages + i] > greatest:
            way, greatest = np.int64(i), machine.cells[ages + i]
    if way >= 0 and greatest < _DISTANT:
        for i in range(level.ways):
            machine.cells[ages + i] = min(machine.cells[ages + i] + _DISTANT - greatest, _DISTANT)
    return way


@inlined
def touch(machine, level, base, way, stamp, is_new):  # type: ignore[no-untyped-def]
    """Tell the replacement of a use of a way; `stamp` is the number of the access."""
    ages = base + AGE * level.row
    if level.replacement == LRU:
        machine.cells[ages + way] = stamp
    elif level.replacement == RRIP:
        machine.cells[ages + way] = _NEW if is_new else 0
    elif level.replacement == PLRU:
        node = way + level.ways
        while node > 1:
            machine.cells[ages + (node >> 1)] = 1 - (node & 1)
            node >>= 1


@inlined
def earliest_fill(machine, level, base):  # type: ignore[no-untyped-def]
    """Return the cycle when the first fill of the set at `base` arrives."""
    earliest = np.int32(NEVER)
    for i in range(level.ways):
        earliest = min(earliest, machine.cells[base + READY * level.row + i])
    return np.float64(earliest)
