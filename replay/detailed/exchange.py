"""Execute what lanes do together, compiled: shuffles, votes, reductions, counts of a block, products of matrices.

Where the elements of ``wgmma`` lie in shared memory follows the PTX ISA, asynchronous warpgroup-level matrix
instructions: rows of 16 to 128 bytes, whose chunks of 16 bytes are exchanged by the number of the row.
"""

import numpy as np

from profilers.trace.compiled import bare, inlined
from replay.detailed import program as low
from replay.detailed.fragments import (
    BRAIN16,
    E4M3,
    E5M2,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    SIGNED8,
    SIGNED32,
    TENSOR32,
    UNSIGNED8,
)
from replay.detailed.lanes import brain_to_float, eight_to_float, float_to_half, half_to_float, integer, signed
from replay.detailed.memory import (
    BLOCK_X,
    BLOCK_Y,
    BLOCK_Z,
    EPOCH,
    OUT_OF_BOUNDS,
    SHARED_AT,
    SHARED_BYTES,
    TRUE_LANES,
    fails,
    read,
)


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
            # `lane` is the first lane that is left, and the first one of its group.
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
            total = (
                value if is_first else integer(row[low.HOW], total, value, value, value, np.int64(32), row[low.SIGNED])
            )
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


@bare
def _element(bits, number, kind):  # type: ignore[no-untyped-def]
    """Return element `number` of a fragment from the bits of its register."""
    if kind in (FLOAT16, BRAIN16):
        half = (bits >> np.uint64(16 * (number & 1))) & np.uint64(0xFFFF)
        return np.float64(half_to_float(half)) if kind == FLOAT16 else np.float64(brain_to_float(half))
    if kind == FLOAT32:
        return np.float64(np.uint32(bits).view(np.float32))
    if kind == TENSOR32:  # the lower 13 bits do not count
        return np.float64(np.uint32(bits & np.uint64(0xFFFFE000)).view(np.float32))
    if kind == FLOAT64:
        return np.uint64(bits).view(np.float64)
    if kind == SIGNED32:
        return np.float64(signed(bits, 32))
    byte = (bits >> np.uint64(8 * (number & 3))) & np.uint64(0xFF)
    if kind == SIGNED8:
        return np.float64(signed(byte, 8))
    return np.float64(byte) if kind == UNSIGNED8 else eight_to_float(byte, kind == E4M3)


@bare
def _register(first, number, kind):  # type: ignore[no-untyped-def]
    """Return the position of the register of an element."""
    if kind in (FLOAT16, BRAIN16):
        return first + (number >> 1)
    return first + (number >> 2 if kind in (SIGNED8, UNSIGNED8, E4M3, E5M2) else number)


@bare
def _gather(registers, lists, first, facts, tile):  # type: ignore[no-untyped-def]
    """Write the elements of a fragment to a tile."""
    table, count, kind = lists[facts], lists[facts + 1], lists[facts + 2]
    for number in range(count):
        register = lists[_register(first, number, kind)]
        for lane in range(32):
            position = lists[table + 32 * number + lane]
            tile[position >> 8, position & 255] = _element(registers[register, lane], number, kind)


@bare
def _bits(value, kind, saturates):  # type: ignore[no-untyped-def]
    """Return the bits of a sum, rounded once."""
    if kind == FLOAT32:
        return np.uint64(np.float32(value).view(np.uint32))
    if kind == FLOAT64:
        return np.float64(value).view(np.uint64)
    if kind == FLOAT16:
        return float_to_half(value)
    if saturates:
        value = min(max(value, -2147483648.0), 2147483647.0)
    return np.uint64(np.int64(value)) & np.uint64(0xFFFFFFFF)


@bare
def multiply_fragments(row, lists, registers, tiles):  # type: ignore[no-untyped-def]
    """Execute ``mma`` or ``wmma.mma``; products are summed in FP64 and rounded once."""
    facts = row[low.E]
    rows, columns, depth = lists[facts], lists[facts + 1], lists[facts + 2]
    left, right, sums = tiles[0], tiles[1], tiles[2]
    _gather(registers, lists, row[low.A], facts + 6, left)
    _gather(registers, lists, row[low.B], facts + 9, right)
    _gather(registers, lists, row[low.C], facts + 12, sums)
    for line in range(rows):
        for k in range(depth):
            factor = left[line, k]
            for column in range(columns):
                sums[line, column] += factor * right[k, column]
    table, count, kind = lists[facts + 3], lists[facts + 4], lists[facts + 5]
    for number in range(count):
        register = lists[_register(row[low.D], number, kind)]
        for lane in range(32):
            position = lists[table + 32 * number + lane]
            bits = _bits(sums[position >> 8, position & 255], kind, row[low.SATURATE])
            if kind == FLOAT16 and number & 1:
                registers[register, lane] |= bits << np.uint64(16)
            else:
                registers[register, lane] = bits


@bare
def _chunk(descriptor, line, step, turned):  # type: ignore[no-untyped-def]
    """Return the address in shared memory of 16 bytes of a factor of ``wgmma``.

    They are chunk `step` along the depth of row or column `line`; if `turned`, chunk `line` along rows or columns at
    depth `step`.
    """
    begin = np.int64(descriptor & np.uint64(0x3FFF)) << 4
    leading = np.int64((descriptor >> np.uint64(16)) & np.uint64(0x3FFF)) << 4
    stride = np.int64((descriptor >> np.uint64(32)) & np.uint64(0x3FFF)) << 4
    mode = np.int64(descriptor >> np.uint64(62))
    chunks = 1 if mode == 0 else 16 >> mode  # of a row of 16, 128, 64 or 32 bytes
    eight, within = (step, line) if turned else (line, step)
    address = begin + 16 * chunks * (eight & 7)
    if mode == 0:
        far, near = (leading, stride) if turned else (stride, leading)
        return address + (eight >> 3) * far + within * near
    address += (eight >> 3) * stride + 16 * (within % chunks) + (within // chunks) * leading
    return address ^ ((address >> 7 & (chunks - 1)) << 4)


@bare
def _factor(descriptor, lines_of, depth, form, launch, out):  # type: ignore[no-untyped-def]
    """Write rows, or columns, of a factor of ``wgmma`` to `out`; return the first address outside, or -1.

    `lines_of` is the first row and their number; `form` is the type of the elements and whether they are turned.
    """
    (first, count), (kind, turned) = lines_of, form
    at, size = launch.geometry[SHARED_AT], launch.geometry[SHARED_BYTES]
    width = 32 // depth  # bytes of an element
    together = 16 // width
    lines, steps = (count // together, depth) if turned else (count, 2)
    for line in range(lines):
        for step in range(steps):
            address = _chunk(descriptor, line + (first // together if turned else first), step, turned)
            if address < 0 or address + 16 > size:
                return address
            for part in range(together):
                value = _element(read(launch.memory, at + address + part * width, width), np.int64(0), kind)
                if turned:
                    out[line * together + part, step] = value
                else:
                    out[line, step * together + part] = value
    return np.int64(-1)


@bare
def multiply_groups(row, lists, registers, warp, launch):  # type: ignore[no-untyped-def]
    """Execute the 16 rows of a warp of ``wgmma.mma_async``; return whether it ended without a problem."""
    facts = row[low.E]
    columns, depth, kind = lists[facts], lists[facts + 1], lists[facts + 4]
    left, right = launch.tiles[0], launch.tiles[1]
    wrong = np.int64(-1)
    if row[low.HOW]:
        _gather(registers, lists, row[low.A], facts + 10, left)
    else:
        form = lists[facts + 2], lists[facts + 5]
        wrong = _factor(registers[row[low.A], 0], (np.int64(16 * (warp & 3)), np.int64(16)), depth, form, launch, left)
    if wrong < 0:
        form = lists[facts + 3], lists[facts + 6]
        wrong = _factor(registers[row[low.B], 0], (np.int64(0), columns), depth, form, launch, right)
    if wrong >= 0:
        return fails(launch, OUT_OF_BOUNDS, warp * 32, wrong)
    sign = np.float64(lists[facts + 7] * lists[facts + 8])
    for lane in range(32):
        adds = registers[row[low.C], lane] != 0
        for number in range(columns // 2):
            line, column = (lane >> 2) + 8 * (number >> 1 & 1), 8 * (number >> 2) + 2 * (lane & 3) + (number & 1)
            register = lists[_register(row[low.D], number, kind)]
            total = _element(registers[register, lane], number, kind) if adds else 0.0
            for k in range(depth):
                total += sign * left[line, k] * right[column, k]
            bits = _bits(total, kind, row[low.SATURATE])
            if kind != FLOAT16:
                registers[register, lane] = bits
            elif number & 1:
                registers[register, lane] = (registers[register, lane] & np.uint64(0xFFFF)) | bits << np.uint64(16)
            else:
                registers[register, lane] = (registers[register, lane] & np.uint64(0xFFFF0000)) | bits
    return True
