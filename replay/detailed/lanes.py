"""Compiled arithmetic of one lane: integer, FP32, FP64, FP16 and BF16 operations of PTX on the bits of registers.

Registers hold 64 bits. A value of a narrower type is kept zero-extended.
"""

import math
from collections.abc import Mapping

import numpy as np

from profilers.trace.compiled import bare

#: Operations on integers of any width.
(
    ADD, SUB, MUL_LO, MUL_HI, MUL_WIDE, MAD_LO, MAD_HI, MAD_WIDE, DIV, REM, MIN, MAX, ABS, NEG, AND, OR, XOR, NOT,
    SHL, SHR, POPC, CLZ, BFIND, BFIND_SHIFT, BREV, BFE, BFI, PRMT, LOP3, SHF_L, SHF_R, SAD, CNOT, MOV,
    DP4A, DP2A_LO, DP2A_HI, MUL_24, MAD_24,
) = range(39)  # fmt: skip
#: Operations on floating-point numbers.
(
    F_ADD, F_SUB, F_MUL, F_FMA, F_DIV, F_MIN, F_MAX, F_ABS, F_NEG, F_RCP, F_SQRT, F_RSQRT, F_SIN, F_COS, F_EX2, F_LG2,
    F_TANH, F_COPYSIGN, F_MIN_NAN, F_MAX_NAN, F_FMA_RM, F_FMA_RP, F_FMA_RZ,
) = range(23)  # fmt: skip
#: Comparisons; those past GE are true of unordered operands.
EQ, NE, LT, LE, GT, GE, EQU, NEU, LTU, LEU, GTU, GEU, NUM, NAN = range(14)
#: Operations by their names in PTX: of integers, products and funnel shifts among them, and of real numbers.
INTEGERS: Mapping[str, int] = {
    "add": ADD, "sub": SUB, "div": DIV, "rem": REM, "min": MIN, "max": MAX, "abs": ABS, "neg": NEG, "and": AND,
    "or": OR, "xor": XOR, "not": NOT, "shl": SHL, "shr": SHR, "popc": POPC, "clz": CLZ, "bfind": BFIND, "brev": BREV,
    "bfe": BFE, "bfi": BFI, "prmt": PRMT, "lop3": LOP3, "sad": SAD, "cnot": CNOT, "mov": MOV,
}  # fmt: skip
PRODUCTS: Mapping[str, int] = {
    "mul.lo": MUL_LO, "mul.hi": MUL_HI, "mul.wide": MUL_WIDE, "mad.lo": MAD_LO, "mad.hi": MAD_HI,
    "mad.wide": MAD_WIDE, "shf.l": SHF_L, "shf.r": SHF_R, "mul24.lo": MUL_24, "mad24.lo": MAD_24,
}  # fmt: skip
REALS: Mapping[str, int] = {
    "add": F_ADD, "sub": F_SUB, "mul": F_MUL, "fma": F_FMA, "mad": F_FMA, "div": F_DIV, "min": F_MIN, "max": F_MAX,
    "abs": F_ABS, "neg": F_NEG, "rcp": F_RCP, "sqrt": F_SQRT, "rsqrt": F_RSQRT, "sin": F_SIN, "cos": F_COS,
    "ex2": F_EX2, "lg2": F_LG2, "tanh": F_TANH, "copysign": F_COPYSIGN,
    "min.NaN": F_MIN_NAN, "max.NaN": F_MAX_NAN,
}  # fmt: skip


LOW_24 = np.uint64(0xFFFFFF)


@bare
def signed(a, bits):  # type: ignore[no-untyped-def]
    """Return the low bits of a register as a signed number."""
    shift = 64 - bits
    return (np.int64(a) << shift) >> shift


@bare
def _mul_hi64(a, b):  # type: ignore[no-untyped-def]
    low = np.uint64(0xFFFFFFFF)
    s = np.uint64(32)
    a0, a1, b0, b1 = a & low, a >> s, b & low, b >> s
    middle = a1 * b0 + ((a0 * b0) >> s)
    other = a0 * b1 + (middle & low)
    return a1 * b1 + (middle >> s) + (other >> s)


@bare
def _mul_hi(a, b, bits, is_signed):  # type: ignore[no-untyped-def]
    if bits < 64:
        if is_signed:
            return np.uint64((signed(a, bits) * signed(b, bits)) >> bits)
        return (a * b) >> np.uint64(bits)
    high = _mul_hi64(a, b)
    if is_signed:
        if np.int64(a) < 0:
            high -= b
        if np.int64(b) < 0:
            high -= a
    return high


@bare
def _clz(a, bits):  # type: ignore[no-untyped-def]
    count = 0
    while count < bits and (a >> np.uint64(bits - 1 - count)) & np.uint64(1) == 0:
        count += 1
    return count


@bare
def _prmt(a, b, c):  # type: ignore[no-untyped-def]
    both = (b << np.uint64(32)) | a
    result = np.uint64(0)
    for i in range(4):
        selector = (c >> np.uint64(4 * i)) & np.uint64(15)
        byte = (both >> (np.uint64(8) * (selector & np.uint64(7)))) & np.uint64(255)
        if selector & np.uint64(8):
            byte = np.uint64(255) if byte & np.uint64(128) else np.uint64(0)
        result |= byte << np.uint64(8 * i)
    return result


@bare
def _bit_field(op, a, b, c, e, bits, is_signed):  # type: ignore[no-untyped-def]
    """Return BFE of (a, position b, length c), or BFI of a into b at c with length e."""
    one = np.uint64(1)
    if op == BFE:
        at, length = np.int64(b & np.uint64(255)), np.int64(c & np.uint64(255))
        if length == 0:
            return np.uint64(0)
        if is_signed:
            top = min(at + length - 1, bits - 1)
            value = np.int64(0)
            if at < bits:
                value = (np.int64(a) << (63 - top)) >> (63 - top)
                return np.uint64(value >> at)
            return np.uint64(np.int64(-1)) if (a >> np.uint64(bits - 1)) & one else np.uint64(0)
        value2 = a >> np.uint64(at) if at < bits else np.uint64(0)
        return value2 & ((one << np.uint64(length)) - one) if length < 64 else value2
    at, length = np.int64(c & np.uint64(255)), np.int64(e & np.uint64(255))
    if length == 0 or at >= bits:
        return b
    field = (one << np.uint64(length)) - one if length < 64 else ~np.uint64(0)
    return (b & ~(field << np.uint64(at))) | ((a & field) << np.uint64(at))


@bare
def integer(op, a, b, c, e, bits, is_signed):  # type: ignore[no-untyped-def]
    """Return the result of an integer operation on registers of `bits` bits, not yet cut to its width."""
    sa, sb = signed(a, bits), signed(b, bits)
    if op == ADD:
        return a + b
    if op == SUB:
        return a - b
    if op == MUL_LO:
        return a * b
    if op == MAD_LO:
        return a * b + c
    if op == MUL_WIDE or op == MAD_WIDE:
        wide = np.uint64(sa * sb) if is_signed else a * b
        return wide + c if op == MAD_WIDE else wide
    if op == MUL_HI:
        return _mul_hi(a, b, bits, is_signed)
    if op == MAD_HI:
        return _mul_hi(a, b, bits, is_signed) + c
    if op == AND:
        return a & b
    if op == OR:
        return a | b
    if op == XOR:
        return a ^ b
    if op == NOT:
        return ~a
    if op == MOV:
        return a
    if op == SHL:
        count = b & np.uint64(0xFFFFFFFF)
        return a << count if count < np.uint64(bits) else np.uint64(0)
    if op == SHR:
        count = b & np.uint64(0xFFFFFFFF)
        if is_signed:
            return np.uint64(sa >> np.int64(min(count, np.uint64(bits - 1))))
        return a >> count if count < np.uint64(bits) else np.uint64(0)
    if op == MIN:
        return (a if sa < sb else b) if is_signed else (a if a < b else b)
    if op == MAX:
        return (a if sa > sb else b) if is_signed else (a if a > b else b)
    if op == DIV or op == REM:
        return _divided(op, a, b, bits, is_signed)
    if op == ABS:
        return np.uint64(-sa if sa < 0 else sa)
    if op == NEG:
        return np.uint64(-sa)
    if op == BFE or op == BFI:
        return _bit_field(op, a, b, c, e, bits, is_signed)
    return _rare(op, a, b, c, e, bits, is_signed)


@bare
def _divided(op, a, b, bits, is_signed):  # type: ignore[no-untyped-def]
    """Return quotient or remainder; a division by 0 gives all ones, as the hardware does, and its remainder is a."""
    if b == np.uint64(0):
        return ~np.uint64(0) if op == DIV else a
    if not is_signed:
        return a // b if op == DIV else a % b
    sa, sb = signed(a, bits), signed(b, bits)
    if sb == -1:
        return np.uint64(-sa) if op == DIV else np.uint64(0)
    # Unsigned, since the least number has no positive counterpart.
    magnitude = (np.uint64(-sa) if sa < 0 else np.uint64(sa)) // (np.uint64(-sb) if sb < 0 else np.uint64(sb))
    quotient = np.uint64(0) - magnitude if (sa < 0) != (sb < 0) else magnitude
    return quotient if op == DIV else np.uint64(sa) - quotient * np.uint64(sb)


@bare
def _rare(op, a, b, c, e, bits, is_signed):  # type: ignore[no-untyped-def]
    one = np.uint64(1)
    if op == POPC:
        count = np.uint64(0)
        while a:
            a &= a - one
            count += one
        return count
    if op == CLZ:
        return np.uint64(_clz(a, bits))
    if op == BFIND or op == BFIND_SHIFT:
        value = ~a if is_signed and signed(a, bits) < 0 else a
        value = value & ((one << np.uint64(bits)) - one) if bits < 64 else value
        if value == np.uint64(0):
            return np.uint64(0xFFFFFFFF)
        zeros = _clz(value, bits)
        return np.uint64(zeros) if op == BFIND_SHIFT else np.uint64(bits - 1 - zeros)
    if op == BREV:
        result = np.uint64(0)
        for i in range(bits):
            result |= ((a >> np.uint64(i)) & one) << np.uint64(bits - 1 - i)
        return result
    if op == PRMT:
        return _prmt(a, b, c)
    if op == LOP3:
        result = np.uint64(0)
        for i in range(8):
            if (e >> np.uint64(i)) & one:
                result |= (a if i & 4 else ~a) & (b if i & 2 else ~b) & (c if i & 1 else ~c)
        return result
    if op == SHF_L or op == SHF_R:
        count = c & np.uint64(31) if e == np.uint64(0) else min(c & np.uint64(0xFFFFFFFF), np.uint64(32))
        both = (b << np.uint64(32)) | a
        if op == SHF_L:
            return (both << count) >> np.uint64(32) if count < np.uint64(32) else a
        return both >> count
    if op == SAD:
        larger = signed(a, bits) > signed(b, bits) if is_signed else a > b
        return c + (a - b if larger else b - a)
    if op == CNOT:
        return one if a == np.uint64(0) else np.uint64(0)
    if op == MUL_24 or op == MAD_24:
        product = np.uint64(signed(a, 24) * signed(b, 24)) if is_signed else (a & LOW_24) * (b & LOW_24)
        return product + c if op == MAD_24 else product
    return _dot(op, a, b, c, is_signed)


@bare
def _dot(op, a, b, c, types):  # type: ignore[no-untyped-def]
    """Return DP4A or DP2A; bit 0 of `types` says that the first factor is signed, bit 1 the second."""
    width = 8 if op == DP4A else 16
    total = c
    for i in range(4 if op == DP4A else 2):
        first = (a >> np.uint64(width * i)) & np.uint64(0xFFFF if width == 16 else 0xFF)
        second = (b >> np.uint64(8 * (i + (2 if op == DP2A_HI else 0)))) & np.uint64(0xFF)
        x = signed(first, width) if types & 1 else np.int64(first)
        y = signed(second, 8) if types & 2 else np.int64(second)
        total += np.uint64(x * y)
    return total


@bare
def sum_error(a, b, total):  # type: ignore[no-untyped-def]
    """Return a + b - total, exactly (Knuth); NaN if the total is infinite."""
    back = total - a
    return (a - (total - back)) + (b - back)


@bare
def odd_sum(a, b):  # type: ignore[no-untyped-def]
    """Return the sum of FP64 numbers, rounded to odd, so that rounding it to two bits less again is exact.

    Boldo and Melquiond, Emulation of FMA and correctly rounded sums, IEEE Trans. Computers 57 (2008).
    """
    total = a + b
    error = sum_error(a, b, total)
    bits = np.float64(total).view(np.int64)
    if abs(error) > 0.0 and (bits & 1) == 0:  # not for NaN, the error of an infinite sum
        bits += 1 if (error > 0) == (total > 0) else -1
    return np.int64(bits).view(np.float64)


@bare
def odd_single(value):  # type: ignore[no-untyped-def]
    """Return an FP64 number as FP32, rounded to odd."""
    near = np.float32(value)
    bits = np.float32(near).view(np.int32)
    if np.float64(near) != value and value == value and (bits & 1) == 0:
        bits += 1 if abs(value) > abs(np.float64(near)) else -1
    return np.int32(bits).view(np.float32)


@bare
def fma32(a, b, c):  # type: ignore[no-untyped-def]
    """Return a * b + c rounded once."""
    return np.float32(odd_sum(np.float64(a) * np.float64(b), np.float64(c)))


@bare
def _fma32_directed(op, a, b, c):  # type: ignore[no-untyped-def]
    product, addend = np.float64(a) * np.float64(b), np.float64(c)
    total = product + addend
    error = sum_error(product, addend, total)
    near = np.float32(total)
    over = np.float64(near) > total or (np.float64(near) == total and error < 0)
    under = np.float64(near) < total or (np.float64(near) == total and error > 0)
    down = op == F_FMA_RM or (op == F_FMA_RZ and total > 0)
    if over and down:
        return np.nextafter(near, np.float32(-np.inf))
    if under and not down:
        return np.nextafter(near, np.float32(np.inf))
    return near


@bare
def _product_sum(x, y, z):  # type: ignore[no-untyped-def]
    """Return x * y + z as two numbers, the second rounded to odd (Dekker's product; Boldo and Melquiond's sum)."""
    t, u = 134217729.0 * x, 134217729.0 * y
    x1, y1 = t - (t - x), u - (u - y)
    x2, y2 = x - x1, y - y1
    product = x * y
    low = ((x1 * y1 - product) + x1 * y2 + x2 * y1) + x2 * y2
    middle = z + low
    below = sum_error(z, low, middle)
    high = product + middle
    return high, odd_sum(below, sum_error(product, middle, high))


@bare
def fma64(a, b, c):  # type: ignore[no-untyped-def]
    """Return a * b + c in FP64, rounded once.

    Very large and small factors are scaled to 0.5 to 1, so that no part of the product overflows or is subnormal.
    """
    if 1e-130 < abs(a) < 1e140 and 1e-130 < abs(b) < 1e140 and abs(c) < 1e300:
        high, rest = _product_sum(a, b, c)
        return high + rest
    if a == 0.0 or b == 0.0 or c == 0.0 or not (abs(a) < np.inf and abs(b) < np.inf and abs(c) < np.inf):
        return a * b + c
    (x, p), (y, q), (z, r) = math.frexp(a), math.frexp(b), math.frexp(c)
    scale, apart = p + q, r - p - q
    if apart > 110:
        return c
    high, rest = _product_sum(x, y, math.ldexp(z, max(apart, -200)))
    if math.frexp(high)[1] + scale > -1022 or high == 0.0:
        return math.ldexp(high + rest, scale)
    # A subnormal result: 2^52 of its units are added, so that the sum ends at the unit, and taken off again.
    units = math.copysign(math.ldexp(1.0, 52 - 1074 - scale), high)
    whole = units + high
    return math.ldexp((whole + odd_sum(sum_error(units, high, whole), rest)) - units, scale)


@bare
def floating(op, a, b, c):  # type: ignore[no-untyped-def]
    """Return the result of an operation on FP64 numbers; FP32 operations round it once more."""
    if op == F_ADD:
        return a + b
    if op == F_SUB:
        return a - b
    if op == F_MUL:
        return a * b
    if op == F_DIV:
        return a / b
    if op >= F_MIN_NAN and (a != a or b != b):
        return np.nan
    if op == F_MIN or op == F_MIN_NAN:
        return b if a != a else (a if b != b or a < b or (a == b and math.copysign(1.0, a) < 0) else b)
    if op == F_MAX or op == F_MAX_NAN:
        return b if a != a else (a if b != b or a > b or (a == b and math.copysign(1.0, a) > 0) else b)
    if op == F_ABS:
        return abs(a)
    if op == F_NEG:
        return -a
    if op == F_RCP:
        return 1.0 / a
    if op == F_SQRT:
        return math.sqrt(a) if a >= 0 else (a if a != a else np.nan)
    if op == F_RSQRT:
        return 1.0 / math.sqrt(a) if a >= 0 else np.nan
    if op == F_SIN:
        return math.sin(a) if abs(a) < np.inf else np.nan
    if op == F_COS:
        return math.cos(a) if abs(a) < np.inf else np.nan
    if op == F_EX2:
        return 2.0**a
    if op == F_LG2:
        return math.log2(a) if a > 0 else (-np.inf if a == 0 else np.nan)
    if op == F_TANH:
        return math.tanh(a)
    return math.copysign(b, a)  # F_COPYSIGN: the sign of a on b


@bare
def single(op, a, b, c):  # type: ignore[no-untyped-def]
    """Return the result of an operation on FP32 numbers, rounded to nearest.

    Sums, products, quotients and square roots of FP32 numbers in FP64 round to the same FP32 number as one rounding.
    """
    if op == F_FMA:
        return fma32(a, b, c)
    if op >= F_FMA_RM:
        return _fma32_directed(op, a, b, c)
    return np.float32(floating(op, np.float64(a), np.float64(b), np.float64(c)))


@bare
def half_to_float(bits):  # type: ignore[no-untyped-def]
    """Return the FP32 number of FP16 bits."""
    sign = np.uint32(bits & np.uint64(0x8000)) << np.uint32(16)
    size = np.uint32((bits & np.uint64(0x7FFF)) << np.uint64(13))
    if size >= np.uint32(0x0F800000):
        return np.uint32(sign | size | np.uint32(0x70000000)).view(np.float32)
    # The exponents of FP32 are 112 higher.
    value = np.float32(size.view(np.float32) * np.float32(2.0**112))
    return np.float32(-value if sign else value)


@bare
def float_to_half(value):  # type: ignore[no-untyped-def]
    """Return the FP16 bits nearest to an FP64 number, ties to even."""
    sign = np.uint64(0x8000) if math.copysign(1.0, value) < 0 else np.uint64(0)
    size = abs(value)
    if size != size:
        return np.uint64(0x7FFF)
    if size >= 65520.0:
        return sign | np.uint64(0x7C00)
    if size == 0.0:
        return sign
    exponent = max(math.frexp(size)[1] - 1, -14)
    quantum = 2.0 ** (exponent - 10)
    scaled = size / quantum
    whole = math.floor(scaled)
    rest = scaled - whole
    if rest > 0.5 or (rest == 0.5 and whole % 2 == 1):
        whole += 1
    steps = np.int64(whole)
    return sign | np.uint64(steps if exponent == -14 and steps < 1024 else ((exponent + 14) << 10) + steps)


@bare
def brain_to_float(bits):  # type: ignore[no-untyped-def]
    """Return the FP32 number of BF16 bits."""
    return np.uint32((bits & np.uint64(0xFFFF)) << np.uint64(16)).view(np.float32)


@bare
def float_to_brain(value):  # type: ignore[no-untyped-def]
    """Return the BF16 bits nearest to an FP32 number, ties to even."""
    if value != value:
        return np.uint64(0x7FFF)
    bits = np.uint64(np.float32(value).view(np.uint32))
    return (bits + np.uint64(0x7FFF) + ((bits >> np.uint64(16)) & np.uint64(1))) >> np.uint64(16)


@bare
def eight_to_float(byte, is_e4m3):  # type: ignore[no-untyped-def]
    """Return the number of the bits of an FP8 number, E4M3 or E5M2 (OCP 8-bit Floating Point Specification, 1.0)."""
    if not is_e4m3:
        return np.float64(half_to_float((byte & np.uint64(0xFF)) << np.uint64(8)))
    exponent, steps = np.int64(byte >> np.uint64(3)) & 15, np.float64(byte & np.uint64(7))
    size = steps * 2.0**-9 if exponent == 0 else (8.0 + steps) * 2.0 ** (exponent - 10)
    if exponent == 15 and steps == 7.0:
        return np.nan
    return -size if byte & np.uint64(0x80) else size


@bare
def float_to_eight(value, is_e4m3):  # type: ignore[no-untyped-def]
    """Return the bits of the FP8 number nearest to a number, ties to even; those too large are clamped."""
    sign = np.uint64(0x80) if math.copysign(1.0, value) < 0 else np.uint64(0)
    size = abs(value)
    if size != size:
        return np.uint64(0x7F)
    fraction, least, largest = (3, -6, 448.0) if is_e4m3 else (2, -14, 57344.0)
    if size == 0.0:
        return sign
    exponent = max(math.frexp(size)[1] - 1, least)
    steps = np.int64(np.rint(min(size, largest) / 2.0 ** (exponent - fraction)))
    one = 1 << fraction
    if size >= largest:
        return sign | np.uint64(0x7E if is_e4m3 else 0x7B)
    return sign | np.uint64(steps if exponent == least and steps < one else ((exponent - least) * one) + steps)


@bare
def half_operation(op, a, b, c, is_brain):  # type: ignore[no-untyped-def]
    """Return the 16 bits of an operation on FP16 or BF16 bits, computed in FP64 and rounded once."""
    if is_brain:
        x, y, z = brain_to_float(a), brain_to_float(b), brain_to_float(c)
    else:
        x, y, z = half_to_float(a), half_to_float(b), half_to_float(c)
    if op == F_FMA:
        wide = odd_sum(np.float64(x) * np.float64(y), np.float64(z))
    else:
        wide = floating(op, np.float64(x), np.float64(y), np.float64(z))
    return float_to_brain(odd_single(wide)) if is_brain else float_to_half(wide)


@bare
def compared(how, below, above, equal):  # type: ignore[no-untyped-def]
    """Return whether a comparison holds, from three facts; all are false of unordered operands."""
    unordered = not (below or above or equal)
    if how == NUM:
        return not unordered
    if how == NAN:
        return unordered
    if how >= EQU and unordered:
        return True
    plain = how - EQU if how >= EQU else how
    if plain == EQ:
        return equal
    if plain == NE:
        return below or above
    if plain == LT:
        return below
    if plain == LE:
        return below or equal
    return above if plain == GT else above or equal


@bare
def short_number(bits, part, is_brain):  # type: ignore[no-untyped-def]
    """Return one of the FP16 or BF16 numbers of a register."""
    half = (bits >> np.uint64(16 * part)) & np.uint64(0xFFFF)
    return np.float64(brain_to_float(half)) if is_brain else np.float64(half_to_float(half))
