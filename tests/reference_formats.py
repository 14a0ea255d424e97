"""The data formats once more, value by value in exact fractions, written from the text of the specifications.

It shares no code with `replay.formats`. An element is found by search among all numbers of its format.
"""

from bisect import bisect_left
from fractions import Fraction
from functools import cache
from math import copysign, frexp, inf, isfinite, isnan, nan

import numpy as np

#: Exponent bits, mantissa bits, and the exponent of the largest power of two: OCP MX v1.0, section 5.
ELEMENTS = {
    "e4m3": (4, 3, 8),
    "e5m2": (5, 2, 15),
    "e3m2": (3, 2, 4),
    "e2m3": (2, 3, 2),
    "e2m1": (2, 1, 2),
}
OCP = {
    "mxfp8_e4m3": "e4m3",
    "mxfp8_e5m2": "e5m2",
    "mxfp6_e3m2": "e3m2",
    "mxfp6_e2m3": "e2m3",
    "mxfp4": "e2m1",
}
#: Magnitude bits of MX9, MX6 and MX4: arXiv 2302.08007.
MAGNITUDES = {"mx9": 7, "mx6": 4, "mx4": 2}

#: A block: codes of elements, code of the scale, microexponents as bits.
Block = tuple[list[int], int, int]


@cache
def numbers(name: str) -> tuple[Fraction, ...]:
    """Return the numbers of an element from zero up; the index is the code."""
    exponent_bits, mantissa_bits, _ = ELEMENTS[name]
    bias, found = 2 ** (exponent_bits - 1) - 1, []
    for exponent in range(2**exponent_bits):
        for mantissa in range(2**mantissa_bits):
            if name == "e5m2" and exponent == 31:  # infinity and NaN
                continue
            if name == "e4m3" and (exponent, mantissa) == (15, 7):  # NaN
                continue
            part = Fraction(mantissa, 2**mantissa_bits)
            if exponent:
                found.append((1 + part) * Fraction(2) ** (exponent - bias))
            else:
                found.append(part * Fraction(2) ** (1 - bias))
    return tuple(found)


def nearest(name: str, value: Fraction) -> int:
    """Return the code of the nearest number, the even code of two, the last one if all are smaller."""
    table = numbers(name)
    above = bisect_left(table, value)
    if above == len(table):
        return above - 1
    if above == 0 or table[above] == value:
        return above
    low, high = value - table[above - 1], table[above] - value
    return above if high < low or (high == low and above % 2 == 0) else above - 1


def sign(value: float) -> int:
    return int(copysign(1, value) < 0)


def exponent_of(value: float) -> int:
    """Return the exponent of the largest power of two that is no larger than the magnitude."""
    return frexp(abs(value))[1] - 1


def fp8(name: str, value: float) -> int:
    """Return the code in OFP8, saturating mode: infinities become the largest number."""
    if isnan(value):
        return {"e4m3": 0x7F, "e5m2": 0x7E}[name] | sign(value) << 7
    code = len(numbers(name)) - 1 if value in (inf, -inf) else nearest(name, abs(Fraction(value)))
    return code | sign(value) << 7


def shared_exponent(block: list[float], largest: int) -> int | None:
    """Return the exponent of the scale, or None for NaN."""
    if not all(map(isfinite, block)):
        return None
    if not any(block):
        return -127
    return min(max(max(exponent_of(value) for value in block if value) - largest, -127), 127)


def ocp(name: str, block: list[float]) -> Block:
    """Return a block in an OCP format with float elements."""
    element = OCP[name]
    exponent_bits, mantissa_bits, largest = ELEMENTS[element]
    exponent = shared_exponent(block, largest)
    if exponent is None:
        return [0] * len(block), 255, 0
    scale = Fraction(2) ** exponent
    codes = [nearest(element, abs(Fraction(v)) / scale) | sign(v) << exponent_bits + mantissa_bits for v in block]
    return codes, exponent + 127, 0


def mxint8(block: list[float]) -> Block:
    """Return a block in MXINT8: two's complement with 6 bits behind the point, -2 left unused."""
    exponent = shared_exponent(block, 0)
    if exponent is None:
        return [0] * len(block), 255, 0
    whole = [round(Fraction(v) / Fraction(2) ** exponent * 64) for v in block]  # Python rounds halves to even
    return [min(max(q, -127), 127) % 256 for q in whole], exponent + 127, 0


def microexponents(name: str, block: list[float]) -> Block:
    """Return a block of 16 with a shared exponent, and for each 2 values a shift by 1 if both are below it."""
    magnitude_bits = MAGNITUDES[name]
    exponent = shared_exponent(block, 0)
    if exponent is None:
        return [0] * len(block), 255, 0
    codes, shifts = [], 0
    for i in range(0, len(block), 2):
        pair = block[i : i + 2]
        below = exponent - max(exponent_of(v) if v else -10_000 for v in pair)
        shift = min(1, max(below, 0))
        shifts |= shift << i // 2
        for v in pair:
            q = round(abs(Fraction(v)) * 2 ** (magnitude_bits - 1) / Fraction(2) ** (exponent - shift))
            codes.append(min(q, 2**magnitude_bits - 1) | sign(v) << magnitude_bits)
    return codes, exponent + 127, shifts


def nvfp4(blocks: list[list[float]]) -> tuple[float, list[Block]]:
    """Return the scale of an array, and its blocks."""
    tops = [max(map(abs, block)) for block in blocks if all(map(isfinite, block))]
    top = max(tops, default=0.0)
    tensor = 1.0
    if top:
        tensor = float(np.float32(min(top / (6 * 448), float(np.finfo(np.float32).max)))) or 2.0**-149
    return tensor, [nvfp4_block(block, tensor) for block in blocks]


def nvfp4_block(block: list[float], tensor: float) -> Block:
    if not all(map(isfinite, block)):
        return [0] * len(block), 0x7F, 0
    scale = fp8("e4m3", max(map(abs, block)) / 6 / tensor)
    divisor = float(numbers("e4m3")[scale]) * tensor
    if not divisor:
        return [sign(v * 0.0) << 3 for v in block], scale, 0
    return [nearest("e2m1", abs(Fraction(v / divisor))) | sign(v) << 3 for v in block], scale, 0


def block_of(name: str, block: list[float]) -> Block:
    """Return a block in any format with scales that are powers of two."""
    if name in MAGNITUDES:
        return microexponents(name, block)
    return mxint8(block) if name == "mxint8" else ocp(name, block)


def values_of(name: str, block: Block) -> list[float]:
    """Return the values of a block."""
    codes, scale, shifts = block
    if scale == 255:
        return [nan] * len(codes)
    found = []
    for i, code in enumerate(codes):
        exponent = scale - 127
        if name in MAGNITUDES:
            bits = MAGNITUDES[name]
            number = Fraction(code % 2**bits, 2 ** (bits - 1))
            negative, exponent = code >> bits, exponent - (shifts >> i // 2 & 1)
        elif name == "mxint8":
            negative, number = int(code > 127), Fraction(code if code <= 127 else 256 - code, 64)
        else:
            element = OCP[name]
            bits = sum(ELEMENTS[element][:2])
            negative, number = code >> bits, numbers(element)[code % 2**bits]
        found.append(copysign(float(number * Fraction(2) ** exponent), -1 if negative else 1))
    return found
