"""Execute the instructions of a warp that stay in registers, compiled, over its active lanes."""

import numpy as np

from profilers.trace.compiled import bare
from replay.detailed import lanes
from replay.detailed import program as low
from replay.detailed.lanes import (
    brain_to_float,
    compared,
    eight_to_float,
    float_to_brain,
    float_to_eight,
    float_to_half,
    floating,
    fma32,
    fma64,
    half_operation,
    half_to_float,
    integer,
    odd_sum,
    short_number,
    signed,
    single,
    sum_error,
)


@bare
def _converted(row, value, other):  # type: ignore[no-untyped-def]
    """Return the result of a conversion."""
    source, target, how, bits = row[low.FROM], row[low.TO], row[low.HOW], row[low.BITS]
    number, whole = 0.0, np.uint64(0)
    if source == low.WHOLE:
        whole = np.uint64(signed(value, bits)) if row[low.SIGNED] else value
        if target == low.WHOLE:
            return _saturated(whole, row) if row[low.SATURATE] else whole
        number = _real(whole, row[low.SIGNED], target, how)
    elif source == low.FP32:
        number = np.float64(np.uint32(value).view(np.float32))
    elif source == low.FP64:
        number = np.uint64(value).view(np.float64)
    else:
        number = np.float64(half_to_float(value & np.uint64(0xFFFF)) if source == low.FP16 else brain_to_float(value))
    if target == low.WHOLE:
        return _to_integer(number, how, row[low.COUNT], row[low.OFFSET])
    if row[low.OP]:
        number = _rounded(number, how)
    if row[low.SATURATE]:
        number = min(max(number, 0.0), 1.0) if number == number else 0.0
    if target == low.FP64:
        return np.float64(number).view(np.uint64)
    if target == low.FP32:
        return np.uint64(np.float32(_narrow(number, how if not row[low.OP] else low.NEAREST)).view(np.uint32))
    if target == low.TF32:
        bits, step = np.uint64(np.float32(number).view(np.uint32)), np.uint64(0x1FFF)
        if how != low.ZERO and abs(number) < np.inf:
            bits += (
                np.uint64(0x1000) if how == low.AWAY else np.uint64(0xFFF) + ((bits >> np.uint64(13)) & np.uint64(1))
            )
        return bits & ~step if number == number else bits
    if row[low.B] >= 0:
        return _short(number, target, how) << np.uint64(16) | _short(_single(other), target, how)
    return _short(number, target, how)


@bare
def _single(bits):  # type: ignore[no-untyped-def]
    return np.float64(np.uint32(bits).view(np.float32))


@bare
def _short(number, target, how):  # type: ignore[no-untyped-def]
    """Return the bits of FP16 or BF16, to nearest or toward zero."""
    bits = float_to_brain(np.float32(number)) if target == low.BF16 else float_to_half(number)
    if how == low.ZERO and abs(number) < np.inf:
        near = np.float64(brain_to_float(bits)) if target == low.BF16 else np.float64(half_to_float(bits))
        if abs(near) > abs(number):
            bits -= np.uint64(1)
    return bits


@bare
def _eight(row, value, other):  # type: ignore[no-untyped-def]
    """Return the result of a conversion of two numbers to or from FP8."""
    target = row[low.TO]
    if target == low.FP16:
        is_e4m3 = row[low.FROM] == low.E4M3
        high = float_to_half(eight_to_float((value >> np.uint64(8)) & np.uint64(0xFF), is_e4m3))
        return high << np.uint64(16) | float_to_half(eight_to_float(value & np.uint64(0xFF), is_e4m3))
    if row[low.FROM] == low.FP32:
        high, lower = _single(value), _single(other)
    else:
        high, lower = short_number(value, np.int64(1), np.int64(0)), short_number(value, np.int64(0), np.int64(0))
    return float_to_eight(high, target == low.E4M3) << np.uint64(8) | float_to_eight(lower, target == low.E4M3)


@bare
def _real(whole, is_signed, target, how):  # type: ignore[no-untyped-def]
    """Return an integer as FP64: rounded as asked for if that is the target, to odd if it is rounded again."""
    upper = np.float64(np.int64(whole) >> 32) if is_signed else np.float64(whole >> np.uint64(32))
    upper, lower = 4294967296.0 * upper, np.float64(whole & np.uint64(0xFFFFFFFF))
    if target != low.FP64:
        return odd_sum(upper, lower)
    near = upper + lower
    error = sum_error(upper, lower, near)
    if error < 0 and (how == low.DOWN or (how == low.ZERO and near > 0)):
        return np.nextafter(near, -np.inf)
    if error > 0 and (how == low.UP or (how == low.ZERO and near < 0)):
        return np.nextafter(near, np.inf)
    return near


@bare
def _narrow(number, how):  # type: ignore[no-untyped-def]
    near = np.float32(number)
    over, under = np.float64(near) > number, np.float64(near) < number
    if over and (how == low.DOWN or (how == low.ZERO and number > 0)):
        return np.nextafter(near, np.float32(-np.inf))
    if under and (how == low.UP or (how == low.ZERO and number < 0)):
        return np.nextafter(near, np.float32(np.inf))
    return near


@bare
def _rounded(number, how):  # type: ignore[no-untyped-def]
    if how == low.ZERO:
        return np.trunc(number)
    if how == low.DOWN:
        return np.floor(number)
    return np.ceil(number) if how == low.UP else np.rint(number)


@bare
def _to_integer(number, how, bits, is_signed):  # type: ignore[no-untyped-def]
    """Return a number rounded to an integer, clamped to its type; NaN gives 0."""
    if number != number:
        return np.uint64(0)
    whole = _rounded(number, how)
    if is_signed:
        limit = 2.0 ** (bits - 1)
        if whole >= limit:
            return np.uint64((np.int64(1) << np.int64(bits - 1)) - 1)
        return np.uint64(np.int64(max(whole, -limit)))
    if whole >= 2.0**bits:
        return ~np.uint64(0) if bits == 64 else (np.uint64(1) << np.uint64(bits)) - np.uint64(1)
    return np.uint64(max(whole, 0.0))


@bare
def _saturated(whole, row):  # type: ignore[no-untyped-def]
    """Return an integer clamped to another type."""
    high = ~np.uint64(0) >> np.uint64(64 - row[low.COUNT] + (1 if row[low.OFFSET] else 0))
    if not row[low.SIGNED] or np.int64(whole) >= 0:
        return min(whole, high)
    return np.uint64(max(np.int64(whole), np.int64(~high))) if row[low.OFFSET] else np.uint64(0)


@bare
def _compare(row, registers, lane, part):  # type: ignore[no-untyped-def]
    """Return the truth of a comparison; of packed numbers, that of one part."""
    a, b = registers[row[low.A], lane], registers[row[low.B], lane]
    kind = row[low.KIND]
    if kind == low.SETP_INT:
        if row[low.SIGNED]:
            x, y = signed(a, row[low.BITS]), signed(b, row[low.BITS])
            return compared(row[low.HOW], x < y, x > y, x == y)
        return compared(row[low.HOW], a < b, a > b, a == b)
    if kind == low.SETP_F32:
        u, v = np.uint32(a).view(np.float32), np.uint32(b).view(np.float32)
        return compared(row[low.HOW], u < v, u > v, u == v)
    if kind == low.SETP_F64:
        p, q = np.uint64(a).view(np.float64), np.uint64(b).view(np.float64)
        return compared(row[low.HOW], p < q, p > q, p == q)
    p, q = short_number(a, part, row[low.SIGNED]), short_number(b, part, row[low.SIGNED])
    return compared(row[low.HOW], p < q, p > q, p == q)


@bare
def set_predicates(row, registers, mask):  # type: ignore[no-untyped-def]
    """Execute a comparison, combined with another predicate if it has one."""
    for lane in range(32):
        if not mask >> lane & 1:
            continue
        truth = _compare(row, registers, lane, np.int64(0))
        other = _compare(row, registers, lane, np.int64(1)) if row[low.COUNT] == 2 else not truth
        if row[low.C] >= 0:
            given = (registers[row[low.C], lane] != 0) != (row[low.SATURATE] != 0)
            if row[low.OP] == lanes.AND:
                truth, other = truth and given, other and given
            elif row[low.OP] == lanes.OR:
                truth, other = truth or given, other or given
            else:
                truth, other = truth != given, other != given
        if row[low.D] >= 0:
            registers[row[low.D], lane] = np.uint64(truth)
        if row[low.D2] >= 0:
            registers[row[low.D2], lane] = np.uint64(other)


@bare
def carry(row, registers, mask):  # type: ignore[no-untyped-def]
    """Execute a sum or a difference with a carry in, out, or both."""
    bits, op = row[low.BITS], row[low.OP]
    cut = ~np.uint64(0) if bits == 64 else (np.uint64(1) << np.uint64(bits)) - np.uint64(1)
    for lane in range(32):
        if not mask >> lane & 1:
            continue
        x, y = registers[row[low.A], lane], registers[row[low.B], lane]
        if op != lanes.ADD and op != lanes.SUB:
            x = integer(lanes.MUL_LO if op == lanes.MAD_LO else lanes.MUL_HI, x, y, x, x, bits, row[low.SIGNED]) & cut
            y = registers[row[low.C], lane]
        more = registers[row[low.E], lane] if row[low.E] >= 0 else np.uint64(0)
        if op == lanes.SUB:
            part = (x - y) & cut
            out = x < y or part < more
            total = (part - more) & cut
        else:
            part = (x + y) & cut
            total = (part + more) & cut
            out = part < x or total < part
        registers[row[low.D], lane] = total
        if row[low.D2] >= 0:
            registers[row[low.D2], lane] = np.uint64(out)


@bare
def half(row, registers, mask):  # type: ignore[no-untyped-def]
    """Execute an operation on FP16 or BF16 numbers, one or two a register."""
    b = row[low.B] if row[low.B] >= 0 else row[low.A]
    c = row[low.C] if row[low.C] >= 0 else row[low.A]
    sixteen = np.uint64(0xFFFF)
    for lane in range(32):
        if not mask >> lane & 1:
            continue
        result = np.uint64(0)
        for part in range(row[low.COUNT]):
            shift = np.uint64(16 * part)
            x, y = (registers[row[low.A], lane] >> shift) & sixteen, (registers[b, lane] >> shift) & sixteen
            z = (registers[c, lane] >> shift) & sixteen
            result |= half_operation(row[low.OP], x, y, z, row[low.SIGNED]) << shift
        registers[row[low.D], lane] = result


@bare
def _common_single(op, x, y, z, out):  # type: ignore[no-untyped-def]
    """Fill `out` for the most common FP32 operations, without branches over lanes; return whether it did."""
    if op == lanes.F_FMA:
        for lane in range(32):
            p, q = np.uint32(x[lane]).view(np.float32), np.uint32(y[lane]).view(np.float32)
            fused = np.float32(fma32(p, q, np.uint32(z[lane]).view(np.float32)))
            out[lane] = np.uint64(fused.view(np.uint32))
        return True
    if op > lanes.F_MUL:
        return False
    for lane in range(32):
        p, q = np.uint32(x[lane]).view(np.float32), np.uint32(y[lane]).view(np.float32)
        value = p * q if op == lanes.F_MUL else (p + q if op == lanes.F_ADD else p - q)
        out[lane] = np.uint64(np.float32(value).view(np.uint32))
    return True


@bare
def _common_integer(row, x, y, z, cut, out):  # type: ignore[no-untyped-def]
    """Fill `out` for the most common integer operations, without branches over lanes; return whether it did."""
    op, shift = row[low.OP], np.int64(64 - row[low.BITS])
    if op == lanes.ADD or op == lanes.MOV or op == lanes.AND or op == lanes.SUB or op == lanes.OR:
        for lane in range(32):
            a, b = x[lane], y[lane]
            if op == lanes.ADD:
                a += b
            elif op == lanes.AND:
                a &= b
            elif op == lanes.SUB:
                a -= b
            elif op == lanes.OR:
                a |= b
            out[lane] = a & cut
        return True
    if op == lanes.MUL_LO or op == lanes.MAD_LO:
        for lane in range(32):
            out[lane] = (x[lane] * y[lane] + (z[lane] if op == lanes.MAD_LO else np.uint64(0))) & cut
        return True
    if (op == lanes.MUL_WIDE or op == lanes.MAD_WIDE) and row[low.SIGNED]:
        for lane in range(32):
            product = ((np.int64(x[lane]) << shift) >> shift) * ((np.int64(y[lane]) << shift) >> shift)
            out[lane] = (np.uint64(product) + (z[lane] if op == lanes.MAD_WIDE else np.uint64(0))) & cut
        return True
    if op == lanes.SHL:
        for lane in range(32):
            count = y[lane] & np.uint64(0xFFFFFFFF)
            out[lane] = (x[lane] << count) & cut if count < np.uint64(row[low.BITS]) else np.uint64(0)
        return True
    return False


@bare
def arithmetic(row, registers, mask):  # type: ignore[no-untyped-def]
    """Execute an operation on integers, FP32 or FP64 numbers."""
    d, a, op = row[low.D], row[low.A], row[low.OP]
    b = row[low.B] if row[low.B] >= 0 else a
    c = row[low.C] if row[low.C] >= 0 else a
    x, y, z, result = registers[a], registers[b], registers[c], registers[d]
    out = result[32:]
    if row[low.KIND] == low.F32:
        if not _common_single(op, x, y, z, out):
            for lane in range(32):
                p, q = np.uint32(x[lane]).view(np.float32), np.uint32(y[lane]).view(np.float32)
                value = single(op, p, q, np.uint32(z[lane]).view(np.float32))
                out[lane] = np.uint64(np.float32(value).view(np.uint32))
        if row[low.SATURATE]:
            for lane in range(32):
                value = np.uint32(out[lane]).view(np.float32)
                value = min(max(value, np.float32(0)), np.float32(1)) if value == value else np.float32(0)
                out[lane] = np.uint64(np.float32(value).view(np.uint32))
    elif row[low.KIND] == low.INT:
        bits = row[low.TO]
        cut = ~np.uint64(0) if bits >= 64 else (np.uint64(1) << np.uint64(bits)) - np.uint64(1)
        if not _common_integer(row, x, y, z, cut, out):
            e = registers[row[low.E]] if row[low.E] >= 0 else x
            for lane in range(32):
                out[lane] = integer(op, x[lane], y[lane], z[lane], e[lane], row[low.BITS], row[low.SIGNED]) & cut
    else:
        for lane in range(32):
            p, q = np.uint64(x[lane]).view(np.float64), np.uint64(y[lane]).view(np.float64)
            wide = fma64(p, q, np.uint64(z[lane]).view(np.float64)) if op == lanes.F_FMA else floating(op, p, q, 0.0)
            out[lane] = np.float64(wide).view(np.uint64)
    _keep(result, mask)


@bare
def _keep(result, mask):  # type: ignore[no-untyped-def]
    """Move the upper half of a register, the new values, to the active lanes of its lower half."""
    if mask == 0xFFFFFFFF:
        for lane in range(32):
            result[lane] = result[32 + lane]
    else:
        for lane in range(32):
            if mask >> lane & 1:
                result[lane] = result[32 + lane]


@bare
def move(row, lists, registers, mask):  # type: ignore[no-untyped-def]
    """Execute a selection, a conversion, or a move between a register and a vector."""
    kind, bits, first = row[low.KIND], row[low.BITS], row[low.VECTOR]
    cut = (
        ~np.uint64(0)
        if kind != low.CONVERT or row[low.COUNT] >= 64
        else (np.uint64(1) << np.uint64(row[low.COUNT])) - np.uint64(1)
    )
    for lane in range(32):
        if not mask >> lane & 1:
            continue
        if kind == low.SELECT:
            chosen = row[low.A] if registers[row[low.C], lane] != 0 else row[low.B]
            registers[row[low.D], lane] = registers[chosen, lane]
        elif kind == low.CONVERT:
            other = registers[row[low.B], lane] if row[low.B] >= 0 else np.uint64(0)
            if row[low.FROM] >= low.E4M3 or row[low.TO] >= low.E4M3:
                value = _eight(row, registers[row[low.A], lane], other) & cut
            else:
                value = _converted(row, registers[row[low.A], lane], other) & cut
            if row[low.OFFSET] > row[low.COUNT]:  # a signed type in a wider register
                value = np.uint64(signed(value, row[low.COUNT])) & (~np.uint64(0) >> np.uint64(64 - row[low.OFFSET]))
            registers[row[low.D], lane] = value
        elif kind == low.PACK:
            value = np.uint64(0)
            for n in range(row[low.COUNT]):
                value |= registers[lists[first + n], lane] << np.uint64(n * bits)
            registers[row[low.D], lane] = value
        else:
            value = registers[row[low.A], lane]
            for n in range(row[low.COUNT]):
                part = (value >> np.uint64(n * bits)) & ((np.uint64(1) << np.uint64(bits)) - np.uint64(1))
                registers[lists[first + n], lane] = part
