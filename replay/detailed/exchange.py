"""Execute what lanes do together, compiled: shuffles, votes, matches and reductions, and counts of a block."""

import numpy as np

from profilers.trace.compiled import bare, inlined
from replay.detailed import program as low
from replay.detailed.lanes import integer
from replay.detailed.memory import BLOCK_X, BLOCK_Y, BLOCK_Z, EPOCH, TRUE_LANES


@bare
def shuffle(row, registers, mask):  # type: ignore[no-untyped-def]
    """Execute ``shfl.sync`` (PTX ISA): a lane out of its segment gives the lane its own value."""
    for lane in range(32):
        registers[row[low.D], 32 + lane] = registers[row[low.A], lane]
    for lane in range(32):
        if not mask >> lane & 1:
            continue
        b, c = np.int64(registers[row[low.B], lane]) & 31, np.int64(registers[row[low.C], lane])
        clamp, segment = c & 31, (c >> 8) & 31
        most = (lane & segment) | (clamp & ~segment)
        least = lane & segment
        if row[low.OP] == 0:
            other = lane - b
        elif row[low.OP] == 1:
            other = lane + b
        elif row[low.OP] == 2:
            other = lane ^ b
        else:
            other = least | (b & ~segment)
        inside = other >= most if row[low.OP] == 0 else other <= most
        source = other if inside else lane
        registers[row[low.D], lane] = registers[row[low.D], 32 + (source & 31)]
        if row[low.D2] >= 0:
            registers[row[low.D2], lane] = np.uint64(inside)


@inlined
def first_lane(mask):  # type: ignore[no-untyped-def]
    """Return the first lane of a mask that is not empty."""
    lane = 0
    while not mask >> lane & 1:
        lane += 1
    return lane


@bare
def vote(row, registers, mask):  # type: ignore[no-untyped-def]
    """Execute `vote`, `match`, `redux` or `elect` for each group of active lanes, by their member masks."""
    left = mask
    while left != 0:
        lane = first_lane(left)
        members = mask
        if row[low.E] >= 0:
            members &= np.int64(registers[row[low.E], lane]) | np.int64(1) << lane
        if row[low.OP] == low.ELECT:
            # `lane` is the first of those that are left, and of its group.
            for other in range(32):
                if members >> other & 1:
                    registers[row[low.D], other] = np.uint64(lane)
                    registers[row[low.D2], other] = np.uint64(other == lane)
        elif row[low.OP] >= low.MATCH_ANY:
            _match_or_reduce(row, registers, members)
        else:
            _vote_of_members(row, registers, members)
        left &= ~members


@bare
def _vote_of_members(row, registers, mask):  # type: ignore[no-untyped-def]
    ballot = np.int64(0)
    for lane in range(32):
        if mask >> lane & 1 and (registers[row[low.A], lane] != 0) != (row[low.SATURATE] != 0):
            ballot |= np.int64(1) << lane
    if row[low.OP] == low.VOTE_ALL:
        value = np.uint64(ballot == mask)
    elif row[low.OP] == low.VOTE_ANY:
        value = np.uint64(ballot != 0)
    elif row[low.OP] == low.VOTE_UNI:
        value = np.uint64(ballot == 0 or ballot == mask)
    else:
        value = np.uint64(ballot)
    for lane in range(32):
        if mask >> lane & 1:
            registers[row[low.D], lane] = value


@bare
def _match_or_reduce(row, registers, mask):  # type: ignore[no-untyped-def]
    given, out = registers[row[low.A]], registers[row[low.D]]
    total, is_first, are_same = np.uint64(0), True, True
    for lane in range(32):
        if not mask >> lane & 1:
            continue
        if row[low.OP] == low.REDUCE:
            value = given[lane]
            total = value if is_first else integer(row[low.HOW], total, value, value, value, 32, row[low.SIGNED])
            total &= np.uint64(0xFFFFFFFF)
        else:
            alike = np.int64(0)
            for other in range(32):
                if mask >> other & 1 and given[other] == given[lane]:
                    alike |= np.int64(1) << other
            are_same = are_same and alike == mask
            out[32 + lane] = np.uint64(alike)
        is_first = False
    for lane in range(32):
        if not mask >> lane & 1:
            continue
        if row[low.OP] == low.REDUCE:
            out[lane] = total
        elif row[low.OP] == low.MATCH_ANY:
            out[lane] = out[32 + lane]
        else:
            out[lane] = np.uint64(mask) if are_same else np.uint64(0)
        if row[low.D2] >= 0:
            registers[row[low.D2], lane] = np.uint64(are_same)


@bare
def count_true(row, registers, mask, geometry):  # type: ignore[no-untyped-def]
    """Execute the first half of ``bar.red``: count the lanes of a warp whose predicate is true."""
    for lane in range(32):
        if mask >> lane & 1 and (registers[row[low.A], lane] != 0) != (row[low.SATURATE] != 0):
            geometry[TRUE_LANES + (geometry[EPOCH] & 1)] += 1


@bare
def lane_at_other_barrier(row, registers, mask):  # type: ignore[no-untyped-def]
    """Return the first lane whose register names another barrier than 0; -1 if there is none."""
    if row[low.B] >= 0:
        for lane in range(32):
            if mask >> lane & 1 and registers[row[low.B], lane] != 0:
                return lane
    return -1


@bare
def take_count(row, registers, mask, geometry):  # type: ignore[no-untyped-def]
    """Execute the second half of ``bar.red``: give what all warps counted before the barrier."""
    count = geometry[TRUE_LANES + ((geometry[EPOCH] + 1) & 1)]
    threads = geometry[BLOCK_X] * geometry[BLOCK_Y] * geometry[BLOCK_Z]
    if row[low.OP] != low.COUNT_TRUE:
        count = np.int64(count == threads if row[low.OP] == low.ALL_TRUE else count > 0)
    for lane in range(32):
        if mask >> lane & 1:
            registers[row[low.D], lane] = np.uint64(count)
