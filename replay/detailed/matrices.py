"""Execute products of matrices that the lanes of a warp hold together, compiled: ``mma`` and ``wmma``."""

import numpy as np

from profilers.trace.compiled import bare
from replay.detailed.lanes import float_to_half, short_number
from replay.detailed.lowering import COUNT, HOW, OP, SIGNED, A, B, C, D, E


@bare
def multiply_matrices(row, lists, registers, tiles):  # type: ignore[no-untyped-def]
    """Execute ``mma.m16n8k8`` or ``m16n8k16``: fragments as in the PTX ISA; products are summed in FP64."""
    depth, is_brain, wide = row[COUNT], row[SIGNED], row[OP]
    a, b = tiles[0], tiles[1]
    for lane in range(32):
        group, quad = lane >> 2, lane & 3
        for number in range(depth // 4):
            line, column = group + 8 * (number & 1), 2 * quad + 8 * (number >> 1)
            bits = registers[lists[row[A] + number], lane]
            a[line, column], a[line, column + 1] = short_number(bits, 0, is_brain), short_number(bits, 1, is_brain)
        for number in range(depth // 8):
            bits, deep = registers[lists[row[B] + number], lane], 2 * quad + 8 * number
            b[group, deep], b[group, deep + 1] = short_number(bits, 0, is_brain), short_number(bits, 1, is_brain)
    for lane in range(32):
        group, quad = lane >> 2, lane & 3
        for half in range(2):
            results = np.uint64(0)
            for part in range(2):
                line, column = group + 8 * half, 2 * quad + part
                total = 0.0
                for k in range(depth):
                    total += a[line, k] * b[column, k]
                if wide:
                    at = lists[row[C] + 2 * half + part]
                    total += np.float64(np.uint32(registers[at, lane]).view(np.float32))
                    bits = np.uint64(np.float32(total).view(np.uint32))
                    registers[lists[row[D] + 2 * half + part], 32 + lane] = bits
                else:
                    total += short_number(registers[lists[row[C] + half], lane], part, 0)
                    results |= float_to_half(total) << np.uint64(16 * part)
            if not wide:
                registers[lists[row[D] + half], 32 + lane] = results
    for number in range(4 if wide else 2):
        for lane in range(32):
            registers[lists[row[D] + number], lane] = registers[lists[row[D] + number], 32 + lane]


@bare
def _gather(registers, lists, first, table, count, how, tile):  # type: ignore[no-untyped-def]
    """Write the elements of a fragment to a tile: FP16, BF16 or, if `how` is 2, FP32."""
    for number in range(count):
        register = lists[first + (number if how == 2 else number >> 1)]
        for lane in range(32):
            place, bits = lists[table + 32 * number + lane], registers[register, lane]
            value = np.float64(np.uint32(bits).view(np.float32)) if how == 2 else short_number(bits, number & 1, how)
            tile[place >> 8, place & 255] = value


@bare
def multiply_fragments(row, lists, registers, tiles):  # type: ignore[no-untyped-def]
    """Execute ``wmma.mma``; products are summed in FP64 and rounded once."""
    facts = row[E]
    rows, columns, depth = lists[facts], lists[facts + 1], lists[facts + 2]
    left, right, sums = tiles[0], tiles[1], tiles[2]
    _gather(registers, lists, row[A], lists[facts + 5], lists[facts + 6], row[SIGNED], left)
    _gather(registers, lists, row[B], lists[facts + 7], lists[facts + 8], row[SIGNED], right)
    _gather(registers, lists, row[C], lists[facts + 9], lists[facts + 10], 2 * row[HOW], sums)
    for line in range(rows):
        for k in range(depth):
            factor = left[line, k]
            for column in range(columns):
                sums[line, column] += factor * right[k, column]
    table, count = lists[facts + 3], lists[facts + 4]
    for number in range(count):
        register = lists[row[D] + (number if row[OP] else number >> 1)]
        for lane in range(32):
            place = lists[table + 32 * number + lane]
            value = sums[place >> 8, place & 255]
            if row[OP]:
                registers[register, lane] = np.uint64(np.float32(value).view(np.uint32))
            elif number & 1:
                registers[register, lane] |= float_to_half(value) << np.uint64(16)
            else:
                registers[register, lane] = float_to_half(value)
