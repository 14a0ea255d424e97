"""Execute products of matrices, compiled: ``mma`` and ``wmma`` of a warp, and ``wgmma`` of four.

Where the elements of ``wgmma`` lie in shared memory follows the PTX ISA, asynchronous warpgroup-level matrix
instructions: rows of 16 to 128 bytes, whose chunks of 16 bytes are exchanged by the number of the row.
"""

import numpy as np

from profilers.trace.compiled import bare
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
from replay.detailed.lanes import brain_to_float, eight_to_float, float_to_half, half_to_float, signed
from replay.detailed.memory import OUT_OF_BOUNDS, SHARED_AT, SHARED_BYTES, fails
from replay.detailed.program import HOW, SATURATE, A, B, C, D, E


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
            place = lists[table + 32 * number + lane]
            tile[place >> 8, place & 255] = _element(registers[register, lane], number, kind)


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
    facts = row[E]
    rows, columns, depth = lists[facts], lists[facts + 1], lists[facts + 2]
    left, right, sums = tiles[0], tiles[1], tiles[2]
    _gather(registers, lists, row[A], facts + 6, left)
    _gather(registers, lists, row[B], facts + 9, right)
    _gather(registers, lists, row[C], facts + 12, sums)
    for line in range(rows):
        for k in range(depth):
            factor = left[line, k]
            for column in range(columns):
                sums[line, column] += factor * right[k, column]
    table, count, kind = lists[facts + 3], lists[facts + 4], lists[facts + 5]
    for number in range(count):
        register = lists[_register(row[D], number, kind)]
        for lane in range(32):
            place = lists[table + 32 * number + lane]
            bits = _bits(sums[place >> 8, place & 255], kind, row[SATURATE])
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
                here, bits = at + address + part * width, np.uint64(0)
                for byte in range(width):
                    bits |= np.uint64(launch.memory[0][here + byte]) << np.uint64(8 * byte)
                value = _element(bits, 0, kind)
                if turned:
                    out[line * together + part, step] = value
                else:
                    out[line, step * together + part] = value
    return np.int64(-1)


@bare
def multiply_groups(row, lists, registers, warp, launch):  # type: ignore[no-untyped-def]
    """Execute the 16 rows of a warp of ``wgmma.mma_async``; return whether it ended without a problem."""
    facts = row[E]
    columns, depth, kind = lists[facts], lists[facts + 1], lists[facts + 4]
    left, right = launch.tiles[0], launch.tiles[1]
    wrong = np.int64(-1)
    if row[HOW]:
        _gather(registers, lists, row[A], facts + 10, left)
    else:
        form = lists[facts + 2], lists[facts + 5]
        wrong = _factor(registers[row[A], 0], (np.int64(16 * (warp & 3)), np.int64(16)), depth, form, launch, left)
    if wrong < 0:
        form = lists[facts + 3], lists[facts + 6]
        wrong = _factor(registers[row[B], 0], (np.int64(0), columns), depth, form, launch, right)
    if wrong >= 0:
        return fails(launch, OUT_OF_BOUNDS, warp * 32, wrong)
    sign = np.float64(lists[facts + 7] * lists[facts + 8])
    for lane in range(32):
        adds = registers[row[C], lane] != 0
        for number in range(columns // 2):
            line, column = (lane >> 2) + 8 * (number >> 1 & 1), 8 * (number >> 2) + 2 * (lane & 3) + (number & 1)
            register = lists[_register(row[D], number, kind)]
            total = _element(registers[register, lane], number, kind) if adds else 0.0
            for k in range(depth):
                total += sign * left[line, k] * right[column, k]
            bits = _bits(total, kind, row[SATURATE])
            if kind != FLOAT16:
                registers[register, lane] = bits
            elif number & 1:
                registers[register, lane] = (registers[register, lane] & np.uint64(0xFFFF)) | bits << np.uint64(16)
            else:
                registers[register, lane] = (registers[register, lane] & np.uint64(0xFFFF0000)) | bits
    return True
