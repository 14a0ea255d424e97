"""Execute products of matrices that the lanes of a warp hold together, compiled: ``mma`` and ``wmma``."""

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
from replay.detailed.program import SATURATE, A, B, C, D, E


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
