"""Codes of elements and scales: round values to them, read them, and pack them.

The functions named ``write_`` are the loops behind `quantize`, and fill arrays that their caller made. `read_values` is
the way back. Values are flat, with the members of a block side by side. A magnitude is scaled by a power of two, which
is exact, and then rounded to a whole number.
"""

from functools import cache
from math import inf, nan
from typing import Any

import numpy as np
import numpy.typing as npt

from profilers.trace.arrays import Floats
from profilers.trace.compiled import compiled
from replay.formats.catalogue import Format, find_format

#: Codes of elements; codes of scales, and microexponents.
Codes = npt.NDArray[np.unsignedinteger[Any]]
Bytes = npt.NDArray[np.uint8]

#: Bias of a scale in E8M0, and its code for NaN: OCP MX v1.0, section 5.
SCALE_BIAS, SCALE_NAN = 127, 255
#: Code for NaN of a scale in E4M3.
_E4M3_NAN = 0x7F
#: Powers of two by exponent, from the least double up; index 0 is 2^-1074.
_LEAST_POWER = -1074
_POWERS = np.ldexp(1.0, np.arange(_LEAST_POWER, 400))
#: Added and taken away, they round a smaller positive number to a whole one, halves to even.
_WHOLE32, _WHOLE64 = np.float32(1 << 23), float(1 << 52)
#: Scale of a shared exponent in float32, by its code; codes below 8 are left to the kernel in float64.
_LEAST_CODE = 8
_SCALES32 = np.ldexp(np.float32(1), SCALE_BIAS - np.maximum(np.arange(256), 1)).astype(np.float32)
#: Values that are converted to float64 at a time.
CHUNK = 1 << 15


def write_integers(target: Format, values: npt.NDArray[Any], codes: Codes, scales: Bytes, micro: Bytes) -> None:
    """Write codes, shared exponents and microexponents of the formats whose elements are integers."""
    shape = (len(scales), target.block)
    blocks, rest = values.reshape(shape), np.arange(len(scales))
    if values.dtype == np.float32 and target.pair == 2:
        _pairs_of_float32(values.view(np.uint32), values, target.mantissa_bits, codes, scales, micro)
        rest = np.flatnonzero(scales < _LEAST_CODE)
    step = CHUNK // target.block
    for start in range(0, len(rest), step):
        chosen = rest[start : start + step]
        part = blocks[chosen].astype(np.float64)
        out, exponents, exponents_of_pairs = (np.empty(part.shape, np.uint8), *np.empty((2, len(part)), np.uint8))
        _integers(part.view(np.int64), part, (target.pair, target.mantissa_bits), out, exponents, exponents_of_pairs)
        codes.reshape(shape)[chosen], scales[chosen] = out, exponents
        if target.pair_bits:
            micro[chosen] = exponents_of_pairs


@compiled
def _pairs_of_float32(bits: Any, values: Any, mantissa: int, codes: Any, scales: Any, micro: Any) -> None:
    """Quantise float32 in blocks of 16 with a microexponent for each 2. Blocks below 2^-119 get their scale alone.

    The exponent field of the largest magnitude is the shared exponent in E8M0, infinities and NaN included. Loops have
    fixed lengths, for the compiler to use vector instructions.
    """
    magnitude = np.uint32(0x7FFFFFFF)
    top = np.int32((1 << mantissa) - 1)
    unit = np.float32(2.0 ** (mantissa - 1))
    small = np.empty(8, np.uint32)
    factor = np.empty(16, np.float32)
    for block in range(len(scales)):
        first = 16 * block
        largest = np.uint32(0)
        for i in range(16):
            largest = max(largest, bits[first + i] & magnitude)
        code = largest >> np.uint32(23)
        scales[block] = code
        if code < _LEAST_CODE:
            continue
        if code == SCALE_NAN:
            codes[first : first + 16] = 0
            micro[block] = 0
            continue
        power = code << np.uint32(23)
        pairs = np.uint32(0)
        for i in range(8):
            below = max(bits[first + 2 * i] & magnitude, bits[first + 2 * i + 1] & magnitude) < power
            small[i] = below
            pairs |= np.uint32(below) << np.uint32(i)
        micro[block] = pairs
        scale = _SCALES32[code] * unit
        for i in range(8):
            factor[2 * i] = factor[2 * i + 1] = scale + scale * np.float32(small[i])
        for i in range(16):
            whole = np.int32((abs(values[first + i]) * factor[i] + _WHOLE32) - _WHOLE32)
            codes[first + i] = min(whole, top) | ((bits[first + i] >> np.uint32(31)) << mantissa)


@compiled
def _integers(bits: Any, values: Any, layout: tuple[int, int], codes: Any, scales: Any, micro: Any) -> None:
    """Quantise float64 of shape (blocks, length): one exponent a block, one bit a pair if pairs have 2 values."""
    pair, mantissa = layout
    top = (1 << mantissa) - 1
    for block in range(len(scales)):
        largest = np.int64(0)
        for i in range(values.shape[1]):
            largest = max(largest, bits[block, i] & 0x7FFFFFFFFFFFFFFF)
        scales[block], micro[block] = 255, 0
        if largest >> 52 == 0x7FF:
            codes[block] = 0
            continue
        exponent: Any = min(max((largest >> 52) - 1023, -127), 127)
        scales[block] = exponent + 127
        power = _POWERS[exponent - _LEAST_POWER]
        for i in range(0, values.shape[1], pair):
            below = 0
            if pair > 1:
                below = 1 if max(abs(values[block, i]), abs(values[block, i + 1])) < power else 0
                micro[block] |= below << (i // pair)
            factor = _POWERS[mantissa - 1 - exponent + below - _LEAST_POWER]
            for j in range(i, i + pair):
                whole: Any = np.int64((min(abs(values[block, j]) * factor, float(top)) + _WHOLE64) - _WHOLE64)
                if pair > 1:
                    codes[block, j] = whole | (np.int64(bits[block, j] < 0) << mantissa)
                else:
                    codes[block, j] = (-whole if bits[block, j] < 0 else whole) & 0xFF


def write_floats(target: Format, values: npt.NDArray[Any], codes: Codes, scales: Bytes) -> None:
    """Write codes, and shared exponents if the format has them, of the formats whose elements are floats."""
    shared = len(scales) > 0
    for start in range(0, len(values), CHUNK):
        part = values[start : start + CHUNK].astype(np.float64)
        block = target.block if shared else len(part)
        exponents = np.zeros(len(part) // block, np.int64)
        if shared:
            high = np.abs(part.reshape(-1, block)).max(axis=1)
            exponents = np.clip(np.frexp(high)[1] - 1 - target.largest_exponent, -SCALE_BIAS, SCALE_BIAS)
            exponents = np.where(high > 0, exponents, -SCALE_BIAS)
            ends = ~np.isfinite(high)
            scales[start // block : (start + len(part)) // block] = np.where(ends, SCALE_NAN, exponents + SCALE_BIAS)
            part.reshape(-1, block)[ends] = 0.0
        _elements(target, part, exponents.astype(np.int64), codes[start : start + len(part)])


def _elements(target: Format, values: Floats, exponents: npt.NDArray[np.int64], codes: Codes) -> None:
    """Write the codes of values over powers of two, one for each block of equal length."""
    beyond = target.largest_code + (target.overflow == "infinity")
    layout = (target.bias, target.mantissa_bits, target.largest_code, beyond, target.nan_code, target.element_bits - 1)
    _floats(values.view(np.int64), values, exponents, layout, codes)


@compiled
def _floats(bits: Any, values: Any, exponents: Any, layout: tuple[int, int, int, int, int, int], codes: Any) -> None:
    """Round float64 to elements with an exponent.

    A subnormal has the exponent of the smallest normal number. A mantissa that rounds up to the next power of two
    carries into the exponent of the code.
    """
    bias, mantissa, largest, beyond, not_a_number, sign = layout
    length = len(values) // max(len(exponents), 1)
    for i in range(len(values)):
        field = bits[i] >> 52 & 0x7FF
        code = beyond
        if field < 0x7FF:
            shared = exponents[i // length]
            exponent = max(field - 1023 - shared, 1 - bias)
            factor = _POWERS[mantissa - exponent - shared - _LEAST_POWER]
            whole = np.int64((abs(values[i]) * factor + _WHOLE64) - _WHOLE64)
            code = ((exponent + bias - 1) << mantissa) + whole
            code = beyond if code > largest else code
        elif bits[i] & 0xFFFFFFFFFFFFF:
            code = not_a_number
        codes[i] = code | (np.int64(bits[i] < 0) << sign)


def write_nvfp4(target: Format, values: npt.NDArray[Any], codes: Codes, scales: Bytes) -> float:
    """Write codes and scales in E4M3, and return the scale of the array.

    The scale of the array is its largest magnitude over 6 x 448, and that of a block its largest over 6, over the
    scale of the array: NVIDIA Transformer Engine. Divisions are those of float64.
    """
    step, e4m3, highs = CHUNK // target.block, find_format("fp8_e4m3"), np.zeros(len(scales))
    blocks = values.reshape(len(scales), target.block)
    for start in range(0, len(blocks), step):
        highs[start : start + step] = np.abs(blocks[start : start + step]).max(axis=1)
    finite = np.isfinite(highs)
    largest, limits = float(highs[finite].max(initial=0.0)), np.finfo(np.float32)
    whole = min(largest / float(target.largest * e4m3.largest), float(limits.max))
    tensor_scale = float(max(np.float32(whole), limits.smallest_subnormal)) if largest else 1.0
    _elements(e4m3, np.where(finite, highs, 0.0) / float(target.largest) / tensor_scale, np.zeros(1, np.int64), scales)
    divisors = element_values(e4m3)[scales] * tensor_scale
    divisors[divisors == 0] = inf
    scales[~finite] = _E4M3_NAN
    for start in range(0, len(blocks), step):
        chosen = slice(start, start + step)
        part = np.where(finite[chosen, None], blocks[chosen], 0.0) / divisors[chosen, None]
        out = codes[start * target.block :][: part.size]
        _elements(target, part.reshape(-1), np.zeros(1, np.int64), out)
    return tensor_scale


def read_values(
    target: Format, codes: Codes, scales: Bytes, micro: Bytes, tensor_scale: float
) -> npt.NDArray[np.float32]:
    """Return the values of codes. Products of a finite element and a finite scale saturate at the largest float32."""
    if target.element_bits == 32:
        return codes.view(np.float32).copy()
    if target.element_bits == 16:
        wide = (codes.astype(np.uint32) << np.uint32(16)).view(np.float32)
        return wide if target.exponent_bits == 8 else codes.view(np.float16).astype(np.float32)
    numbers = element_values(target)
    if not target.is_directional:
        return numbers.astype(np.float32)[codes]
    if target.scale == "E4M3":
        factors = element_values(find_format("fp8_e4m3")) * tensor_scale
    else:
        factors = np.ldexp(1.0, np.arange(256) - SCALE_BIAS)
        factors[SCALE_NAN] = nan
    elements = np.full(256, nan)
    elements[: len(numbers)] = numbers
    values = np.empty(codes.size, np.float32)
    tables = elements, np.stack([factors, factors / 2]), float(np.finfo(np.float32).max)
    _scaled(codes.reshape(-1), scales.reshape(-1), micro.reshape(-1), tables, values)
    return values


@compiled
def _scaled(codes: Any, scales: Any, micro: Any, tables: tuple[Any, Any, float], values: Any) -> None:
    """Write elements times the scale of their block; a microexponent of a pair of values halves it."""
    elements, factors, largest = tables
    length = len(codes) // max(len(scales), 1)
    for block in range(len(scales)):
        bits = np.int64(micro[block]) if len(micro) else 0
        whole, half = factors[0, scales[block]], factors[1, scales[block]]
        for i in range(block * length, (block + 1) * length, 2):
            factor = half if bits & 1 else whole
            bits >>= 1
            for j in range(i, i + 2):
                value = elements[codes[j]] * factor
                if largest < abs(value) < inf:
                    value = largest if value > 0 else -largest
                values[j] = value


@cache
def element_values(target: Format) -> Floats:
    """Return the number of each code of an element of at most 8 bits."""
    code = np.arange(1 << target.element_bits)
    sign, magnitude = np.where(code >> target.element_bits - 1, -1.0, 1.0), code & (1 << target.element_bits - 1) - 1
    if target.is_integer:
        twos = (sign < 0) & (target.pair == 1)  # MXINT8 is in two's complement
        whole: Floats = np.where(twos, magnitude - 128.0, sign * magnitude)
        return whole / (1 << target.mantissa_bits - 1)
    exponent, mantissa = magnitude >> target.mantissa_bits, magnitude & (1 << target.mantissa_bits) - 1
    normal = exponent > 0
    power = np.where(normal, exponent, 1) - target.bias - target.mantissa_bits
    values: Floats = np.ldexp(mantissa + np.where(normal, 1 << target.mantissa_bits, 0), power)
    values[magnitude > target.largest_code] = nan
    if target.specials == "IEEE":
        values[magnitude == target.largest_code + 1] = inf
    values *= sign
    return values


def code_type(target: Format) -> type[np.unsignedinteger[Any]]:
    """Return the least type that holds the codes of elements."""
    return np.uint8 if target.element_bits <= 8 else np.uint16 if target.element_bits <= 16 else np.uint32


def pack_codes(codes: Codes, size: int) -> Bytes:
    """Return codes of `size` bits as bytes, from the lowest bit on; 8 codes fill `size` bytes."""
    if size >= 8:
        return codes.reshape(-1).astype(f"<u{size // 8}", copy=False).view(np.uint8)
    eights = codes.reshape(-1, 8)
    words = np.zeros(len(eights), "<u8")
    for i in range(8):
        words |= eights[:, i].astype(np.uint64) << np.uint64(size * i)
    return np.ascontiguousarray(words.view(np.uint8).reshape(-1, 8)[:, :size])


def unpack_codes(data: Bytes, target: Format) -> Codes:
    """Return the codes that `pack_codes` wrote."""
    size = target.element_bits
    if size >= 8:
        return data.view(f"<u{size // 8}").astype(code_type(target))
    padded = np.zeros((len(data) // size, 8), np.uint8)
    padded[:, :size] = data.reshape(-1, size)
    words = padded.view("<u8")
    shifts = np.arange(0, 8 * size, size).astype(np.uint64)
    return (words >> shifts & np.uint64((1 << size) - 1)).astype(np.uint8)
