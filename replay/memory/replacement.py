"""A level of caches as flat arrays: the search for a line in a set, and the choice of the way that makes room.

A set has four rows of `row` numbers each, beside one another in memory: the lines that its ways hold (`LINE`), what the
replacement remembers (`AGE`), the valid and the dirty sectors as bits (`SECTORS`), and
the cycle when a fill arrives (`READY`). Rows are padded to a multiple of 8: the machine compares 8 ways at once.

- LRU: ages are the number of the last access.
- Tree-PLRU: ages 1 to ways - 1 are the bits of the tree; 1 points to the right half. If the tree points to a way that
  waits for its fill, the next way that does not wait is taken.
- RRIP: static re-reference interval prediction with 2 bits and promotion to 0 on a hit (SRRIP-HP: Jaleel and others,
  High Performance Cache Replacement Using Re-Reference Interval Prediction, ISCA 2010). New lines begin at 2.
- Random: xorshift (Marsaglia, 2003) with the shifts 13, 7 and 17.

Empty ways are filled first.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from profilers.trace.arrays import Ints
from profilers.trace.compiled import inlined

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
#: Age of a new line, and the greatest, under RRIP.
_NEW, _DISTANT = 2, 3
#: Bits for the number of a way, in the key that LRU compares.
_WAY_BITS = 12
MOST_WAYS = 1 << _WAY_BITS


class Level(NamedTuple):
    """A level of caches for compiled code: all caches of the level, one after another.

    Attributes
    ----------
    state : array of int32
        Sets, as the head of the module describes them.
    fills : array of int32, shape (slices of all caches * misses,)
        Cycles when the last `misses` fills of each slice arrive: a ring.
    head : array of int32, shape (slices of all caches,)
        Next row of each ring.
    queue : array of float64, shape (2 * slices of all caches,)
        For each slice, the cycles of service that wait, and the latest cycle of an arrival.
    seed : array of uint64, shape (1,)
        State of the random numbers.
    counts : array of int64
        Counters, in the order of `LevelCounters`.
    line_bytes, sets, slices, ways, row, misses, replacement : int
        Bytes of a line, sets of a slice, slices of a cache, ways, numbers in a row of a set, fills that a slice may
        wait for, and the replacement.
    slice_shift, set_mask : int
        Logarithm of `slices` and `sets` - 1 if these are powers of two, otherwise -1.
    latency, line_cycles : float
        Cycles of a hit, and cycles in which a slice serves a line.
    """

    state: npt.NDArray[np.int32]
    fills: npt.NDArray[np.int32]
    head: npt.NDArray[np.int32]
    queue: npt.NDArray[np.float64]
    seed: npt.NDArray[np.uint64]
    counts: Ints
    line_bytes: int
    sets: int
    slices: int
    ways: int
    row: int
    misses: int
    replacement: int
    slice_shift: int
    set_mask: int
    latency: float
    line_cycles: float


@inlined
def find_way(level, base, line):  # type: ignore[no-untyped-def]
    """Return the way of the set at `base` that holds a line, or -1."""
    wanted, way = np.int32(line), np.int32(-1)
    for first in range(0, level.row, GROUP):
        for i in range(GROUP):
            way = max(way, np.int32(first + i) if level.state[base + first + i] == wanted else np.int32(-1))
    return np.int64(way)


@inlined
def find_victim(level, base, now):  # type: ignore[no-untyped-def]
    """Return the way that makes room in the set at `base`, or -1 if all ways wait for their fills."""
    if level.replacement == LRU:
        return _least_recent(level, base, now)
    way = find_way(level, base, EMPTY)
    if way >= 0:
        return way
    if level.replacement == RRIP:
        return _most_distant(level, base, now)
    if level.replacement == PLRU:
        node = 1
        while node < level.ways:
            node = 2 * node + level.state[base + AGE * level.row + node]
        way = node - level.ways
    else:
        bits = level.seed[0]
        bits ^= bits << np.uint64(13)
        bits ^= bits >> np.uint64(7)
        bits ^= bits << np.uint64(17)
        level.seed[0] = bits
        way = np.int64(bits % np.uint64(level.ways))
    for _ in range(level.ways):
        if level.state[base + READY * level.row + way] <= now:
            return way
        way = way + 1 if way + 1 < level.ways else 0
    return np.int64(-1)


@inlined
def _least_recent(level, base, now):  # type: ignore[no-untyped-def]
    """Return the way with the least age of those that do not wait, or -1."""
    never = np.int64(NEVER) << _WAY_BITS
    best, until = never, np.int32(now)
    ages, ready = base + AGE * level.row, base + READY * level.row
    for first in range(0, level.row, GROUP):
        for i in range(first, first + GROUP):
            key = (np.int64(level.state[ages + i]) << _WAY_BITS) | i
            best = min(best, key if level.state[ready + i] <= until else never)
    return best & (MOST_WAYS - 1) if best < never else np.int64(-1)


@inlined
def _most_distant(level, base, now):  # type: ignore[no-untyped-def]
    """Return the first way with the greatest age of those that do not wait, or -1; all ages rise until it is 3."""
    ages, ready = base + AGE * level.row, base + READY * level.row
    way, greatest = np.int64(-1), np.int32(-1)
    for i in range(level.ways):
        if level.state[ready + i] <= now and level.state[ages + i] > greatest:
            way, greatest = np.int64(i), level.state[ages + i]
    if way >= 0 and greatest < _DISTANT:
        for i in range(level.ways):
            level.state[ages + i] = min(level.state[ages + i] + _DISTANT - greatest, _DISTANT)
    return way


@inlined
def touch(level, base, way, stamp, is_new):  # type: ignore[no-untyped-def]
    """Tell the replacement of a use of a way; `stamp` is the number of the access."""
    ages = base + AGE * level.row
    if level.replacement == LRU:
        level.state[ages + way] = stamp
    elif level.replacement == RRIP:
        level.state[ages + way] = _NEW if is_new else 0
    elif level.replacement == PLRU:
        node = way + level.ways
        while node > 1:
            level.state[ages + (node >> 1)] = 1 - (node & 1)
            node >>= 1


@inlined
def earliest_fill(level, base):  # type: ignore[no-untyped-def]
    """Return the cycle when the first fill of the set at `base` arrives."""
    earliest = np.int32(NEVER)
    for i in range(level.ways):
        earliest = min(earliest, level.state[base + READY * level.row + i])
    return np.float64(earliest)
