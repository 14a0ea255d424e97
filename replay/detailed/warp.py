"""Execute the instructions of a warp that stay in registers, compiled, over its active lanes."""

import numpy as np

from profilers.trace.compiled import bare
from replay.detailed.lanes import (
    ADD,
    AND,
    F_ADD,
    F_MUL,
    MAD_LO,
    MAD_WIDE,
    MOV,
    MUL_HI,
    MUL_LO,
    MUL_WIDE,
    OR,
    SHL,
    SUB,
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
from replay.detailed.lanes import F_FMA as FUSED
from replay.detailed.program import (
    AWAY,
    BF16,
    BITS,
    CONVERT,
    COUNT,
    D2,
    DOWN,
    E4M3,
    F32,
    FP16,
    FP32,
    FP64,
    FROM,
    HOW,
    INT,
    KIND,
    NEAREST,
    OFFSET,
    OP,
    PACK,
    SATURATE,
    SELECT,
    SETP_F32,
    SETP_F64,
    SETP_INT,
    SIGNED,
    TF32,
    TO,
    UP,
    VECTOR,
    WHOLE,
    ZERO,
    A,
    B,
    C,
    D,
    E,
)


@bare
def _converted(row, value, other):  # type: ignore[no-untyped-def]
    """Return the result of a conversion."""
    source, target, how, bits = row[FROM], row[TO], row[HOW], row[BITS]
    number, whole = 0.0, np.uint64(0)
    if source == WHOLE:
        whole = np.uint64(signed(value, bits)) if row[SIGNED] else value
        if target == WHOLE:
            return _saturated(whole, row) if row[SATURATE] else whole
        number = _real(whole, row[SIGNED], target, how)
    elif source == FP32:
        number = np.float64(np.uint32(value).view(np.float32))
    elif source == FP64:
        number = np.uint64(value).view(np.float64)
    else:
        number = np.float64(half_to_float(value & np.uint64(0xFFFF)) if source == FP16 else brain_to_float(value))
    if target == WHOLE:
        return _to_integer(number, how, row[COUNT], row[OFFSET])
    if row[OP]:
        number = _rounded(number, how)
    if row[SATURATE]:
        number = min(max(number, 0.0), 1.0) if number == number else 0.0
    if target == FP64:
        return np.float64(number).view(np.uint64)
    if target == FP32:
        return np.uint64(np.float32(_narrow(number, how if not row[OP] else NEAREST)).view(np.uint32))
    if target == TF32:
        bits, step = np.uint64(np.float32(number).view(np.uint32)), np.uint64(0x1FFF)
        if how != ZERO and abs(number) < np.inf:
            bits += np.uint64(0x1000) if how == AWAY else np.uint64(0xFFF) + ((bits >> np.uint64(13)) & np.uint64(1))
        return bits & ~step if number == number else bits
    if row[B] >= 0:
        return _short(number, target, how) << np.uint64(16) | _short(_single(other), target, how)
    return _short(number, target, how)


@bare
def _single(bits):  # type: ignore[no-untyped-def]
    return np.float64(np.uint32(bits).view(np.float32))


@bare
def _short(number, target, how):  # type: ignore[no-untyped-def]
    """Return the bits of FP16 or BF16, to nearest or toward zero."""
    bits = float_to_brain(np.float32(number)) if target == BF16 else float_to_half(number)
    if how == ZERO and abs(number) < np.inf:
        near = np.float64(brain_to_float(bits)) if target == BF16 else np.float64(half_to_float(bits))
        if abs(near) > abs(number):
            bits -= np.uint64(1)
    return bits


@bare
def _eight(row, value, other):  # type: ignore[no-untyped-def]
    """Return the result of a conversion of two numbers to or from FP8."""
    target = row[TO]
    if target == FP16:
        is_e4m3 = row[FROM] == E4M3
        high = float_to_half(eight_to_float((value >> np.uint64(8)) & np.uint64(0xFF), is_e4m3))
        return high << np.uint64(16) | float_to_half(eight_to_float(value & np.uint64(0xFF), is_e4m3))
    if row[FROM] == FP32:
        high, low = _single(value), _single(other)
    else:
        high, low = short_number(value, 1, 0), short_number(value, 0, 0)
    return float_to_eight(high, target == E4M3) << np.uint64(8) | float_to_eight(low, target == E4M3)


@bare
def _real(whole, is_signed, target, how):  # type: ignore[no-untyped-def]
    """Return an integer as FP64: rounded as asked for if that is the target, to odd if it is rounded again."""
    upper = np.float64(np.int64(whole) >> 32) if is_signed else np.float64(whole >> np.uint64(32))
    upper, lower = 4294967296.0 * upper, np.float64(whole & np.uint64(0xFFFFFFFF))
    if target != FP64:
        return odd_sum(upper, lower)
    near = upper + lower
    error = sum_error(upper, lower, near)
    if error < 0 and (how == DOWN or (how == ZERO and near > 0)):
        return np.nextafter(near, -np.inf)
    if error > 0 and (how == UP or (how == ZERO and near < 0)):
        return np.nextafter(near, np.inf)
    return near


@bare
def _narrow(number, how):  # type: ignore[no-untyped-def]
    near = np.float32(number)
    over, under = np.float64(near) > number, np.float64(near) < number
    if over and (how == DOWN or (how == ZERO and number > 0)):
        return np.nextafter(near, np.float32(-np.inf))
    if under and (how == UP or (how == ZERO and number < 0)):
        return np.nextafter(near, np.float32(np.inf))
    return near


@bare
def _rounded(number, how):  # type: ignore[no-untyped-def]
    if how == ZERO:
        return np.trunc(number)
    if how == DOWN:
        return np.floor(number)
    return np.ceil(number) if how == UP else np.rint(number)


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
    high = ~np.uint64(0) >> np.uint64(64 - row[COUNT] + (1 if row[OFFSET] else 0))
    if not row[SIGNED] or np.int64(whole) >= 0:
        return min(whole, high)
    return np.uint64(max(np.int64(whole), np.int64(~high))) if row[OFFSET] else np.uint64(0)


@bare
def _compare(row, registers, lane, part):  # type: ignore[no-untyped-def]
    """Return the truth of a comparison; of packed numbers, that of one part."""
    a, b = registers[row[A], lane], registers[row[B], lane]
    kind = row[KIND]
    if kind == SETP_INT:
        if row[SIGNED]:
            x, y = signed(a, row[BITS]), signed(b, row[BITS])
            return compared(row[HOW], x < y, x > y, x == y)
        return compared(row[HOW], a < b, a > b, a == b)
    if kind == SETP_F32:
        u, v = np.uint32(a).view(np.float32), np.uint32(b).view(np.float32)
        return compared(row[HOW], u < v, u > v, u == v)
    if kind == SETP_F64:
        p, q = np.uint64(a).view(np.float64), np.uint64(b).view(np.float64)
        return compared(row[HOW], p < q, p > q, p == q)
    p, q = short_number(a, part, row[SIGNED]), short_number(b, part, row[SIGNED])
    return compared(row[HOW], p < q, p > q, p == q)


@bare
def set_predicates(row, registers, mask):  # type: ignore[no-untyped-def]
    """Execute a comparison, combined with another predicate if it has one."""
    for lane in range(32):
        if not mask >> lane & 1:
            continue
        truth = _compare(row, registers, lane, 0)
        other = _compare(row, registers, lane, 1) if row[COUNT] == 2 else not truth
        if row[C] >= 0:
            given = (registers[row[C], lane] != 0) != (row[SATURATE] != 0)
            if row[OP] == AND:
                truth, other = truth and given, other and given
            elif row[OP] == OR:
                truth, other = truth or given, other or given
            else:
                truth, other = truth != given, other != given
        if row[D] >= 0:
            registers[row[D], lane] = np.uint64(truth)
        if row[D2] >= 0:
            registers[row[D2], lane] = np.uint64(other)


@bare
def carry(row, registers, mask):  # type: ignore[no-untyped-def]
    """Execute a sum or a difference with a carry in, out, or both."""
    bits, op = row[BITS], row[OP]
    cut = ~np.uint64(0) if bits == 64 else (np.uint64(1) << np.uint64(bits)) - np.uint64(1)
    for lane in range(32):
        if not mask >> lane & 1:
            continue
        x, y = registers[row[A], lane], registers[row[B], lane]
        if op != ADD and op != SUB:
            x = integer(MUL_LO if op == MAD_LO else MUL_HI, x, y, x, x, bits, row[SIGNED]) & cut
            y = registers[row[C], lane]
        more = registers[row[E], lane] if row[E] >= 0 else np.uint64(0)
        if op == SUB:
            part = (x - y) & cut
            out = x < y or part < more
            total = (part - more) & cut
        else:
            part = (x + y) & cut
            total = (part + more) & cut
            out = part < x or total < part
        registers[row[D], lane] = total
        if row[D2] >= 0:
            registers[row[D2], lane] = np.uint64(out)


@bare
def half(row, registers, mask):  # type: ignore[no-untyped-def]
    """Execute an operation on FP16 or BF16 numbers, one or two a register."""
    b = row[B] if row[B] >= 0 else row[A]
    c = row[C] if row[C] >= 0 else row[A]
    low = np.uint64(0xFFFF)
    for lane in range(32):
        if not mask >> lane & 1:
            continue
        result = np.uint64(0)
        for part in range(row[COUNT]):
            shift = np.uint64(16 * part)
            x, y = (registers[row[A], lane] >> shift) & low, (registers[b, lane] >> shift) & low
            z = (registers[c, lane] >> shift) & low
            result |= half_operation(row[OP], x, y, z, row[SIGNED]) << shift
        registers[row[D], lane] = result


@bare
def _common_single(op, x, y, z, out):  # type: ignore[no-untyped-def]
    """Fill `out` for the most common FP32 operations, without branches over lanes; return whether it did."""
    if op == FUSED:
        for lane in range(32):
            p, q = np.uint32(x[lane]).view(np.float32), np.uint32(y[lane]).view(np.float32)
            fused = np.float32(fma32(p, q, np.uint32(z[lane]).view(np.float32)))
            out[lane] = np.uint64(fused.view(np.uint32))
        return True
    if op > F_MUL:
        return False
    for lane in range(32):
        p, q = np.uint32(x[lane]).view(np.float32), np.uint32(y[lane]).view(np.float32)
        value = p * q if op == F_MUL else (p + q if op == F_ADD else p - q)
        out[lane] = np.uint64(np.float32(value).view(np.uint32))
    return True


@bare
def _common_integer(row, x, y, z, cut, out):  # type: ignore[no-untyped-def]
    """Fill `out` for the most common integer operations, without branches over lanes; return whether it did."""
    op, shift = row[OP], np.int64(64 - row[BITS])
    if op == ADD or op == MOV or op == AND or op == SUB or op == OR:
        for lane in range(32):
            a, b = x[lane], y[lane]
            if op == ADD:
                a += b
            elif op == AND:
                a &= b
            elif op == SUB:
                a -= b
            elif op == OR:
                a |= b
            out[lane] = a & cut
        return True
    if op == MUL_LO or op == MAD_LO:
        for lane in range(32):
            out[lane] = (x[lane] * y[lane] + (z[lane] if op == MAD_LO else np.uint64(0))) & cut
        return True
    if (op == MUL_WIDE or op == MAD_WIDE) and row[SIGNED]:
        for lane in range(32):
            product = ((np.int64(x[lane]) << shift) >> shift) * ((np.int64(y[lane]) << shift) >> shift)
            out[lane] = (np.uint64(product) + (z[lane] if op == MAD_WIDE else np.uint64(0))) & cut
        return True
    if op == SHL:
        for lane in range(32):
            count = y[lane] & np.uint64(0xFFFFFFFF)
            out[lane] = (x[lane] << count) & cut if count < np.uint64(row[BITS]) else np.uint64(0)
        return True
    return False


@bare
def arithmetic(row, registers, mask):  # type: ignore[no-untyped-def]
    """Execute an operation on integers, FP32 or FP64 numbers."""
    d, a, op = row[D], row[A], row[OP]
    b = row[B] if row[B] >= 0 else a
    c = row[C] if row[C] >= 0 else a
    x, y, z, result = registers[a], registers[b], registers[c], registers[d]
    out = result[32:]
    if row[KIND] == F32:
        if not _common_single(op, x, y, z, out):
            for lane in range(32):
                p, q = np.uint32(x[lane]).view(np.float32), np.uint32(y[lane]).view(np.float32)
                value = single(op, p, q, np.uint32(z[lane]).view(np.float32))
                out[lane] = np.uint64(np.float32(value).view(np.uint32))
        if row[SATURATE]:
            for lane in range(32):
                value = np.uint32(out[lane]).view(np.float32)
                value = min(max(value, np.float32(0)), np.float32(1)) if value == value else np.float32(0)
                out[lane] = np.uint64(np.float32(value).view(np.uint32))
    elif row[KIND] == INT:
        bits = row[TO]
        cut = ~np.uint64(0) if bits >= 64 else (np.uint64(1) << np.uint64(bits)) - np.uint64(1)
        if not _common_integer(row, x, y, z, cut, out):
            e = registers[row[E]] if row[E] >= 0 else x
            for lane in range(32):
                out[lane] = integer(op, x[lane], y[lane], z[lane], e[lane], row[BITS], row[SIGNED]) & cut
    else:
        for lane in range(32):
            p, q = np.uint64(x[lane]).view(np.float64), np.uint64(y[lane]).view(np.float64)
            wide = fma64(p, q, np.uint64(z[lane]).view(np.float64)) if op == FUSED else floating(op, p, q, 0.0)
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
    kind, bits, first = row[KIND], row[BITS], row[VECTOR]
    cut = (
        ~np.uint64(0) if kind != CONVERT or row[COUNT] >= 64 else (np.uint64(1) << np.uint64(row[COUNT])) - np.uint64(1)
    )
    for lane in range(32):
        if not mask >> lane & 1:
            continue
        if kind == SELECT:
            chosen = row[A] if registers[row[C], lane] != 0 else row[B]
            registers[row[D], lane] = registers[chosen, lane]
        elif kind == CONVERT:
            other = registers[row[B], lane] if row[B] >= 0 else np.uint64(0)
            if row[FROM] >= E4M3 or row[TO] >= E4M3:
                value = _eight(row, registers[row[A], lane], other) & cut
            else:
                value = _converted(row, registers[row[A], lane], other) & cut
            if row[OFFSET] > row[COUNT]:  # a signed type in a wider register
                value = np.uint64(signed(value, row[COUNT])) & (~np.uint64(0) >> np.uint64(64 - row[OFFSET]))
            registers[row[D], lane] = value
        elif kind == PACK:
            value = np.uint64(0)
            for n in range(row[COUNT]):
                value |= registers[lists[first + n], lane] << np.uint64(n * bits)
            registers[row[D], lane] = value
        else:
            value = registers[row[A], lane]
            for n in range(row[COUNT]):
                part = (value >> np.uint64(n * bits)) & ((np.uint64(1) << np.uint64(bits)) - np.uint64(1))
                registers[lists[first + n], lane] = part
