"""Arithmetic of PTX against exact numbers: integers without bounds, and fractions that are rounded once."""

from collections.abc import Callable
from fractions import Fraction
from functools import partial
from math import inf, isnan, nan
from typing import Any

import numpy as np
import pytest

from profilers.errors import InvalidInputError
from replay.detailed import lower, parse_ptx, run_kernel

LANES = 256
HEAD = ".version 8.0 .target sm_80 .address_size 64\n.visible .entry k(.param .u64 p0, .param .u64 p1) {\n"
REGISTERS = (
    ".reg .b64 %rd<9>; .reg .b64 %q<9>; .reg .b32 %r<9>; .reg .b16 %h<9>; .reg .f32 %f<9>; .reg .f64 %d<9>; "
    ".reg .pred %p<4>;\n"
)
BEGIN = "ld.param.u64 %rd0, [p0]; ld.param.u64 %rd1, [p1]; mov.u32 %r0, %tid.x; mul.wide.u32 %rd2, %r0, 8;\n"
#: Letter of the registers of a type.
LETTERS = {"16": "h", "32": "r", "64": "q", "f16": "h", "f32": "f", "f64": "d"}


def letter(kind: str) -> str:
    return LETTERS.get(kind) or LETTERS[kind[1:]]


def executed(kind: str, inputs: np.ndarray, cases: dict[str, str]) -> dict[str, np.ndarray]:
    """Return the bits of the result of each instruction, by lane.

    Operands are in registers 1, 2 and 3 of the type `kind`; the result is in register 8 of the type beside the case.
    """
    width = int(kind[1:]) // 8
    code = "add.s64 %rd3, %rd0, %rd2; add.s64 %rd4, %rd1, %rd2;\n"
    for n in range(3):
        code += f"ld.global.b{8 * width} %{letter(kind)}{n + 1}, [%rd3+{8 * LANES * n}];\n"
    for n, (body, result) in enumerate(cases.items()):
        code += f"{body};\nst.global.b{result[1:]} [%rd4+{8 * LANES * n}], %{letter(result)}8;\n"
    program = lower(parse_ptx(f"{HEAD}{REGISTERS}{BEGIN}{code}ret; }}", "k.ptx"))
    held = inputs.astype(np.uint64)
    zeros = np.full((len(cases), LANES), 0, np.uint64)
    got = run_kernel(program, [1], [LANES], [held, zeros]).outputs["arg1"]
    return dict(zip(cases, got, strict=True))


def words(bits: int, seed: int) -> np.ndarray:
    """Return three operands of each lane: edges, small and random numbers."""
    random = np.random.default_rng(seed)
    drawn = random.integers(0, 1 << 64, size=(3, LANES), dtype=np.uint64, endpoint=False) >> np.uint64(64 - bits)
    edges = [0, 1, 2, bits - 1, bits, bits + 1, (1 << bits - 1) - 1, 1 << bits - 1, (1 << bits) - 1, (1 << bits) - 2]
    few = np.array(edges, dtype=np.uint64)[random.integers(0, len(edges), size=(3, LANES))]
    small = drawn >> np.uint64(bits - 7)
    choice = random.integers(0, 4, size=(3, LANES))
    return np.where(choice == 0, few, np.where(choice == 1, small, drawn))


def signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> bits - 1 else value


def quotient(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def leading(a: int, bits: int, is_signed: bool) -> int:
    """Return the position of the highest bit that is not like the sign, or all ones."""
    a = ~a if is_signed and a < 0 else a
    return a.bit_length() - 1


def extracted(a: int, b: int, c: int, bits: int, is_signed: bool) -> int:
    at, length = b & 255, c & 255
    if not is_signed:
        return a >> at & (1 << length) - 1
    if length == 0:
        return 0
    sign = a >> min(at + length - 1, bits - 1) & 1
    kept = a >> at & (1 << length) - 1 if at < bits else 0
    filled = min(length, max(bits - at, 0))
    kept &= (1 << filled) - 1
    return kept | (-1 << filled if sign else 0)


def inserted(a: int, b: int, at: int, length: int) -> int:
    mask = (1 << length) - 1 << at
    return b & ~mask | a << at & mask


def permuted(a: int, b: int, c: int) -> int:
    octets, result = (b << 32 | a).to_bytes(8, "little"), 0
    for n in range(4):
        selector = c >> 4 * n & 15
        octet = octets[selector & 7]
        result |= (octet if selector < 8 else 255 * (octet >> 7)) << 8 * n
    return result


def looked_up(a: int, b: int, c: int, table: int) -> int:
    return sum((table >> (4 * (a >> n & 1) + 2 * (b >> n & 1) + (c >> n & 1)) & 1) << n for n in range(32))


def integer_cases(kind: str) -> dict[str, tuple[str, Callable[[int, int, int], int]]]:
    """Return the type of the result and the function of operands by instruction."""
    bits, s = int(kind[1:]), kind[0] == "s"
    v = letter(kind)
    x, y, z, to = f"%{v}1", f"%{v}2", f"%{v}3", f"%{v}8"
    low = -(1 << bits - 1) if s else 0
    cases: dict[str, tuple[str, Callable[[int, int, int], int]]] = {
        f"add.{kind} {to}, {x}, {y}": (kind, lambda a, b, c: a + b),
        f"sub.{kind} {to}, {x}, {y}": (kind, lambda a, b, c: a - b),
        f"mul.lo.{kind} {to}, {x}, {y}": (kind, lambda a, b, c: a * b),
        f"mul.hi.{kind} {to}, {x}, {y}": (kind, lambda a, b, c: a * b >> bits),
        f"mad.lo.{kind} {to}, {x}, {y}, {z}": (kind, lambda a, b, c: a * b + c),
        f"mad.hi.{kind} {to}, {x}, {y}, {z}": (kind, lambda a, b, c: (a * b >> bits) + c),
        f"or.b{bits} {to}, {y}, 1; div.{kind} {to}, {x}, {to}": (kind, lambda a, b, c: quotient(a, b | 1)),
        f"or.b{bits} {to}, {y}, 1; rem.{kind} {to}, {x}, {to}": (
            kind, lambda a, b, c: a - quotient(a, b | 1) * (b | 1),
        ),
        f"min.{kind} {to}, {x}, {y}": (kind, lambda a, b, c: min(a, b)),
        f"max.{kind} {to}, {x}, {y}": (kind, lambda a, b, c: max(a, b)),
        f"xor.b{bits} {to}, {x}, {y}": (kind, lambda a, b, c: a ^ b),
        f"not.b{bits} {to}, {x}": (kind, lambda a, b, c: ~a),
        f"and.b32 %r7, %r0, 63; shl.b{bits} {to}, {x}, %r7": (kind, lambda a, b, c: a << c),
        f"and.b32 %r7, %r0, 63; shr.{kind} {to}, {x}, %r7": (kind, lambda a, b, c: a >> c),
        f"sad.{kind} {to}, {x}, {y}, {z}": (kind, lambda a, b, c: abs(a - b) + c),
        f"setp.le.{kind} %p1, {x}, {y}; selp.b{bits} {to}, {x}, {z}, %p1": (kind, lambda a, b, c: a if a <= b else c),
        f"setp.gt.{kind} %p1|%p2, {x}, {y}; selp.b{bits} {to}, {y}, {z}, %p2": (
            kind, lambda a, b, c: c if a > b else b,
        ),
    }  # fmt: skip
    if s:
        cases[f"abs.{kind} {to}, {x}"] = (kind, lambda a, b, c: abs(a))
        cases[f"neg.{kind} {to}, {x}"] = (kind, lambda a, b, c: -a)
    if bits < 64:
        wide = f"{kind[0]}{2 * bits}"
        cases[f"mul.wide.{kind} %{letter(wide)}8, {x}, {y}"] = (wide, lambda a, b, c: a * b)
    if bits == 32:
        cases[f"cvt.{kind[0]}64.{kind} %q7, {z}; mad.wide.{kind} %q8, {x}, {y}, %q7"] = (
            f"{kind[0]}64", lambda a, b, c: a * b + c,
        )  # fmt: skip
    if bits > 16:
        cases |= {
            f"popc.b{bits} %r8, {x}": ("u32", lambda a, b, c: (a & (1 << bits) - 1).bit_count()),
            f"clz.b{bits} %r8, {x}": ("u32", lambda a, b, c: bits - (a & (1 << bits) - 1).bit_length()),
            f"brev.b{bits} {to}, {x}": (kind, lambda a, b, c: int(f"{a & (1 << bits) - 1:0{bits}b}"[::-1], 2)),
            f"bfind.{kind} %r8, {x}": ("u32", lambda a, b, c: leading(a, bits, s)),
            f"bfe.{kind} {to}, {x}, 5, 11": (kind, lambda a, b, c: extracted(a, 5, 11, bits, s)),
            f"bfe.{kind} {to}, {x}, {bits - 3}, 9": (kind, lambda a, b, c: extracted(a, bits - 3, 9, bits, s)),
            f"bfi.b{bits} {to}, {x}, {y}, 7, 13": (kind, lambda a, b, c: inserted(a, b, 7, 13)),
            f"bfi.b{bits} {to}, {x}, {y}, {bits - 2}, 9": (kind, lambda a, b, c: inserted(a, b, bits - 2, 9)),
        }
    for other in ("u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64"):
        narrow, held = int(other[1:]), "u16" if other[1:] == "8" else other
        keep = partial(_narrowed, bits=narrow, is_signed=other[0] == "s")
        cases[f"cvt.{other}.{kind} %{letter(held)}8, {x}"] = (held, keep)
        least = -(1 << narrow - 1) if other[0] == "s" else 0
        clamp = partial(_clamped, low=least, high=least + (1 << narrow) - 1)
        if (least > low) or (least + (1 << narrow) < low + (1 << bits)):
            cases[f"cvt.sat.{other}.{kind} %{letter(held)}8, {x}"] = (held, clamp)
    return cases


def _narrowed(a: int, b: int, c: int, *, bits: int, is_signed: bool) -> int:
    return signed(a, bits) if is_signed else a & (1 << bits) - 1


def _clamped(a: int, b: int, c: int, *, low: int, high: int) -> int:
    return min(max(a, low), high)


@pytest.mark.parametrize("kind", ["u16", "s16", "u32", "s32", "u64", "s64"])
def test_integers_are_exact_numbers_cut_to_their_width(kind: str) -> None:
    bits = int(kind[1:])
    inputs = words(bits, seed=bits + (kind[0] == "s"))
    cases = integer_cases(kind)
    got = executed(kind, inputs, {body: result for body, (result, _) in cases.items()})
    numbers = [[signed(int(x), bits) if kind[0] == "s" else int(x) for x in row] for row in inputs]
    for body, (result, function) in cases.items():
        shift = "%r7, %r0, 63" in body
        thirds = [n & 63 for n in range(LANES)] if shift else numbers[2]
        mask = (1 << int(result[1:])) - 1
        expected = [function(*lane) & mask for lane in zip(numbers[0], numbers[1], thirds, strict=True)]
        wrong = [n for n in range(LANES) if expected[n] != int(got[body][n])]
        assert not wrong, (body, inputs[:, wrong[0]], expected[wrong[0]], got[body][wrong[0]])


def test_bytes_and_tables_and_funnels() -> None:
    inputs = words(32, seed=5)
    cases: dict[str, Callable[[int, int, int], int]] = {
        "prmt.b32 %r8, %r1, %r2, %r3": permuted,
        "and.b32 %r7, %r3, 255; bfe.u32 %r8, %r1, %r2, %r7": lambda a, b, c: extracted(a, b, c, 32, False),
        "bfe.s32 %r8, %r1, %r2, %r3": lambda a, b, c: extracted(a, b, c, 32, True),
        "bfi.b32 %r8, %r1, %r2, %r3, 5": lambda a, b, c: inserted(a, b, c & 255, 5),
        "shf.l.wrap.b32 %r8, %r1, %r2, %r3": lambda a, b, c: (b << 32 | a) << (c & 31) >> 32,
        "shf.r.wrap.b32 %r8, %r1, %r2, %r3": lambda a, b, c: (b << 32 | a) >> (c & 31),
        "shf.l.clamp.b32 %r8, %r1, %r2, %r3": lambda a, b, c: (b << 32 | a) << min(c, 32) >> 32,
        "shf.r.clamp.b32 %r8, %r1, %r2, %r3": lambda a, b, c: (b << 32 | a) >> min(c, 32),
    }
    for table in (0x00, 0x1B, 0x80, 0xCA, 0xE8, 0xFE, 0xFF):
        cases[f"lop3.b32 %r8, %r1, %r2, %r3, {table:#x}"] = partial(looked_up, table=table)
    got = executed("u32", inputs, dict.fromkeys(cases, "u32"))
    for body, function in cases.items():
        expected = [function(*(int(x) for x in lane)) & 0xFFFFFFFF for lane in inputs.T]
        assert got[body].tolist() == expected, body


#: Bits of the significand, and the least and most exponent, of each type.
FORMATS = {"f16": (11, -14, 15), "bf16": (8, -126, 127), "f32": (24, -126, 127), "f64": (53, -1022, 1023)}
FLOATS: dict[str, Any] = {"f16": np.float16, "f32": np.float32, "f64": np.float64}


def rounded(value: Fraction, kind: str, mode: str = "rn") -> float:
    """Return a fraction as the number of a type, rounded once."""
    digits, least, most = FORMATS[kind]
    if value == 0:
        return 0.0
    size = abs(value)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= size < Fraction(2) ** exponent
    unit = Fraction(2) ** (max(exponent, least) - digits + 1)
    count, rest = divmod(size, unit)
    up = {"rn": rest * 2 > unit or (rest * 2 == unit and count % 2 == 1), "rz": False}.get(
        mode, rest > 0 and (value > 0) == (mode == "rp")
    )
    size = Fraction(count + up) * unit
    largest = (2 - Fraction(2) ** (1 - digits)) * Fraction(2) ** most
    if size > largest:
        stays = mode == "rz" or (mode != "rn" and (value > 0) != (mode == "rp"))
        return (1 if value > 0 else -1) * (float(largest) if stays else inf)
    return float(size if value > 0 else -size)


def floats(kind: str, seed: int) -> np.ndarray:
    """Return three operands of each lane: of all exponents, of like exponents, small integers, and specials."""
    random = np.random.default_rng(seed)
    bits = int(kind[1:])
    anything = random.integers(0, 1 << 64, size=(3, LANES), dtype=np.uint64) >> np.uint64(64 - bits)
    likely = (random.standard_normal((3, LANES)) * 4).astype(FLOATS[kind]).view(f"u{bits // 8}")
    few = np.array([0.0, -0.0, 1, -1, 2, inf, -inf, nan, 0.5, 3, 65504, -1.5], FLOATS[kind]).view(f"u{bits // 8}")
    choice = random.integers(0, 3, size=(3, LANES))
    special = few[random.integers(0, len(few), size=(3, LANES))]
    return np.where(choice == 0, anything, np.where(choice == 1, likely, special)).astype(f"u{bits // 8}")


def wide(values: np.ndarray) -> np.ndarray:
    """Return numbers in FP64; signalling NaN among them are no fault."""
    with np.errstate(invalid="ignore"):
        return values.astype(float)


def real(function: Callable[..., Fraction], kind: str, mode: str = "rn") -> Callable[..., float | None]:
    """Return a function of floats that rounds once; None for lanes with numbers that are not finite."""

    def exact(*lane: float) -> float | None:
        if any(isnan(x) or abs(x) == inf for x in lane):
            return None
        return rounded(function(*map(Fraction, lane)), kind, mode)

    return exact


def real_cases(kind: str) -> dict[str, tuple[str, Callable[..., float | None]]]:
    v = letter(kind)
    x, y, z, to = f"%{v}1", f"%{v}2", f"%{v}3", f"%{v}8"
    cases: dict[str, tuple[str, Callable[..., float | None]]] = {
        f"add.{kind} {to}, {x}, {y}": (kind, real(lambda a, b, c: a + b, kind)),
        f"sub.{kind} {to}, {x}, {y}": (kind, real(lambda a, b, c: a - b, kind)),
        f"mul.{kind} {to}, {x}, {y}": (kind, real(lambda a, b, c: a * b, kind)),
        f"fma.rn.{kind} {to}, {x}, {y}, {z}": (kind, real(lambda a, b, c: a * b + c, kind)),
        f"neg.{kind} {to}, {x}": (kind, real(lambda a, b, c: -a, kind)),
        f"abs.{kind} {to}, {x}": (kind, real(lambda a, b, c: abs(a), kind)),
        f"min.{kind} {to}, {x}, {y}": (kind, lambda a, b, c: b if isnan(a) else a if isnan(b) else min(a, b)),
        f"max.{kind} {to}, {x}, {y}": (kind, lambda a, b, c: b if isnan(a) else a if isnan(b) else max(a, b)),
        f"setp.lt.{kind} %p1, {x}, {y}; selp.b{kind[1:]} {to}, {x}, {z}, %p1": (
            kind, lambda a, b, c: a if a < b else c,
        ),
        f"setp.gtu.{kind} %p1, {x}, {y}; selp.b{kind[1:]} {to}, {x}, {z}, %p1": (
            kind, lambda a, b, c: c if a <= b else a,
        ),
        f"setp.nan.{kind} %p1, {x}, {y}; selp.b{kind[1:]} {to}, {z}, {x}, %p1": (
            kind, lambda a, b, c: c if isnan(a) or isnan(b) else a,
        ),
    }  # fmt: skip
    if kind != "f64":
        for name, choice in (("min", min), ("max", max)):
            cases[f"{name}.NaN.{kind} {to}, {x}, {y}"] = (
                kind, lambda a, b, c, choice=choice: nan if isnan(a) or isnan(b) else choice(a, b),
            )  # fmt: skip
    if kind != "f16":
        cases[f"div.rn.{kind} {to}, {x}, {y}"] = (
            kind, lambda a, b, c: None if b == 0 else real(lambda p, q: p / q, kind)(a, b),
        )  # fmt: skip
        for mode in ("rz", "rm", "rp") if kind == "f32" else ():
            cases[f"fma.{mode}.{kind} {to}, {x}, {y}, {z}"] = (kind, real(lambda a, b, c: a * b + c, kind, mode))
            cases[f"add.{mode}.{kind} {to}, {x}, {y}"] = (kind, real(lambda a, b, c: a + b, kind, mode))
            cases[f"sub.{mode}.ftz.{kind} {to}, {x}, {y}"] = (kind, real(lambda a, b, c: a - b, kind, mode))
            cases[f"mul.{mode}.{kind} {to}, {x}, {y}"] = (kind, real(lambda a, b, c: a * b, kind, mode))
    for other in FLOATS:
        if other != kind:
            how = ".rn" if int(other[1:]) < int(kind[1:]) else ""
            cases[f"cvt{how}.{other}.{kind} %{letter(other)}8, {x}"] = (other, real(lambda a, b, c: a, other))
            if other == "f16":
                cases[f"cvt.rz.{other}.{kind} %h8, {x}"] = (other, real(lambda a, b, c: a, other, "rz"))
    return cases


@pytest.mark.parametrize("kind", FLOATS)
def test_real_numbers_are_fractions_that_are_rounded_once(kind: str) -> None:
    inputs = floats(kind, seed=int(kind[1:]))
    cases = real_cases(kind)
    got = executed(kind, inputs, {body: result for body, (result, _) in cases.items()})
    operands = wide(inputs.view(FLOATS[kind]))
    for body, (result, function) in cases.items():
        bits = f"u{int(result[1:]) // 8}"
        values = wide(got[body].astype(bits).view(FLOATS[result]))
        expected = [function(*map(float, lane)) for lane in operands.T]
        assert sum(wanted is not None for wanted in expected) > LANES // 3
        for n, wanted in enumerate(expected):
            same = wanted is None or wanted == values[n] or (isnan(wanted) and isnan(values[n]))
            assert same, (body, operands[:, n].tolist(), wanted, float(values[n]))


def test_real_numbers_become_integers_by_rounding_and_clamping() -> None:
    for kind in ("f32", "f64"):
        inputs = floats(kind, seed=9)
        operands = wide(inputs.view(FLOATS[kind]))[0]
        cases = {}
        for mode in ("rni", "rzi", "rmi", "rpi"):
            for other in ("s16", "u16", "s32", "u32", "s64", "u64"):
                cases[f"cvt.{mode}.{other}.{kind} %{letter(other)}8, %{letter(kind)}1"] = other
        got = executed(kind, inputs, cases)
        for body, other in cases.items():
            bits, s = int(other[1:]), other[0] == "s"
            low = -(1 << bits - 1) if s else 0
            for value, found in zip(operands.tolist(), got[body].tolist(), strict=True):
                if isnan(value):
                    continue
                whole = whole_number(value, body[4:6]) if abs(value) != inf else (1 << 70) * (1 if value > 0 else -1)
                expected = min(max(whole, low), low + (1 << bits) - 1) & (1 << bits) - 1
                assert expected == found, (body, value, expected, found)


def whole_number(value: float, mode: str) -> int:
    exact = Fraction(value)
    return {"rn": round(exact), "rz": int(exact), "rm": exact.__floor__(), "rp": exact.__ceil__()}[mode]


def test_integers_become_real_numbers_that_are_rounded_once() -> None:
    for kind in ("u32", "s32", "u64", "s64"):
        bits = int(kind[1:])
        inputs = words(bits, seed=11)
        cases = {
            f"cvt.{mode}.{other}.{kind} %{letter(other)}8, %{letter(kind)}1": (other, mode)
            for other in ("f16", "f32", "f64") for mode in ("rn", "rz", "rm", "rp")
            if mode == "rn" or other != "f16"
        }  # fmt: skip
        got = executed(kind, inputs, {body: other for body, (other, _) in cases.items()})
        for body, (other, mode) in cases.items():
            values = got[body].astype(f"u{int(other[1:]) // 8}").view(FLOATS[other])
            for number, found in zip(inputs[0].tolist(), values.tolist(), strict=True):
                exact = Fraction(signed(number, bits) if kind[0] == "s" else number)
                assert rounded(exact, other, mode) == found, (body, number, found)


def drawn(random: np.random.Generator, exponents: tuple[int, int], digits: tuple[int, ...]) -> np.ndarray:
    """Return a number of each lane with an exponent in a range, and one of these numbers of bits."""
    length = random.choice(digits, LANES)
    significand = np.floor(np.ldexp(random.random(LANES) / 2 + 0.5, length))
    size = np.ldexp(significand, random.integers(*exponents, size=LANES) - length)
    return np.asarray(np.where(random.random(LANES) < 0.5, -size, size))


@pytest.mark.parametrize("case", ["subnormal", "cancelled", "far", "large"])
def test_multiply_adds_of_fp64_round_once_at_all_exponents(case: str) -> None:
    random = np.random.default_rng(21)
    few, half = (53, 27, 5), ((-560, -480), (-560, -480))
    ranges = {"subnormal": (*half, (-1074, -990)), "far": ((-9, 9), (-9, 9), (-130, 130))}
    ranges |= {"large": ((480, 520), (480, 512), (960, 1023)), "cancelled": ((-500, 500), (-9, 9), (0, 1))}
    a, b, c = (drawn(random, exponents, few) for exponents in ranges[case])
    if case == "cancelled":
        c = -(a * b) * (1 + random.integers(-1, 2, size=LANES) * 2.0**-52)
    inputs = np.stack([a, b, c]).view(np.uint64)
    (got,) = executed("f64", inputs, {"fma.rn.f64 %d8, %d1, %d2, %d3": "f64"}).values()
    for n, found in enumerate(got.view(np.float64).tolist()):
        expected = rounded(Fraction(a[n]) * Fraction(b[n]) + Fraction(c[n]), "f64")
        assert expected == found, [float(x[n]).hex() for x in (a, b, c, got.view(np.float64))]


def test_multiply_adds_of_bf16_round_once() -> None:
    random = np.random.default_rng(22)
    # Products of few bits end in ties, which a small addend breaks.
    numbers = [drawn(random, (-3, 3), (2, 4, 8)), drawn(random, (-3, 3), (2, 4, 8)), drawn(random, (-40, 6), (1, 8))]
    inputs = np.stack(numbers).astype(np.float32).view(np.uint32) >> 16
    (got,) = executed("u16", inputs, {"fma.rn.bf16 %h8, %h1, %h2, %h3": "u16"}).values()
    found = (got.astype(np.uint32) << 16).view(np.float32)
    for n in range(LANES):
        exact = Fraction(numbers[0][n]) * Fraction(numbers[1][n]) + Fraction(numbers[2][n])
        assert rounded(exact, "bf16") == found[n], [float(x[n]) for x in numbers]


def test_pairs_of_fp16_are_two_numbers() -> None:
    inputs = floats("f32", seed=23)
    cases = {"fma.rn.f16x2 %r8, %r1, %r2, %r3": "u32", "add.f16x2 %r8, %r1, %r2": "u32", "neg.f16x2 %r8, %r1": "u32"}
    functions: list[Callable[..., Fraction]] = [lambda a, b, c: a * b + c, lambda a, b, c: a + b, lambda a, b, c: -a]
    exact = [real(function, "f16") for function in functions]
    operands = wide(inputs.view(np.float16)).reshape(3, LANES, 2)
    got = executed("u32", inputs, cases)
    for body, function in zip(cases, exact, strict=True):
        found = wide(got[body].astype(np.uint32).view(np.float16)).reshape(LANES, 2)
        for n, half in np.ndindex(LANES, 2):
            expected = function(*operands[:, n, half].tolist())
            assert expected is None or expected == found[n, half], (body, operands[:, n, half])


def test_conversions_that_are_not_supported_are_refused() -> None:
    for body in ("cvt.rm.f16.f32 %h8, %f1", "cvt.rna.f16.f32 %h8, %f1", "cvt.rn.e4m3x2.f32 %h8, %f1, %f2, %f3"):
        with pytest.raises(InvalidInputError, match=r"cvt\..* is not supported"):
            executed("f32", floats("f32", seed=1), {body: "f16"})


@pytest.mark.parametrize("bits", [32, 64])
def test_carries_make_long_sums_and_products(bits: int) -> None:
    inputs, v = words(bits, seed=bits), letter(f"u{bits}")
    x, y, z, to, low = (f"%{v}{n}" for n in (1, 2, 3, 8, 4))
    cut = (1 << bits) - 1
    k = f"u{bits}"
    cases: dict[str, Callable[[int, int, int], int]] = {
        f"add.cc.{k} {low}, {x}, {y}; addc.{k} {to}, {x}, {z}": lambda a, b, c: (a + b >> bits) + a + c,
        f"sub.cc.{k} {low}, {x}, {y}; subc.{k} {to}, {z}, {y}": lambda a, b, c: c - b - (a < b),
        f"add.cc.{k} {low}, {x}, {y}; addc.cc.{k} {low}, {x}, {z}; addc.{k} {to}, 0, 0": (
            lambda a, b, c: (a + b >> bits) + a + c >> bits
        ),
        f"sub.cc.{k} {low}, {x}, {y}; subc.cc.{k} {low}, {z}, {y}; subc.{k} {to}, 0, 0": (
            lambda a, b, c: -(c - b - (a < b) < 0)
        ),
        f"mad.lo.cc.{k} {low}, {x}, {y}, {z}; madc.hi.{k} {to}, {x}, {y}, {z}": (
            lambda a, b, c: ((a * b & cut) + c >> bits) + (a * b >> bits) + c
        ),
        f"mad.hi.cc.{k} {low}, {x}, {y}, {z}; madc.lo.cc.{k} {low}, {x}, {y}, {z}; addc.{k} {to}, {x}, 0": (
            lambda a, b, c: ((a * b & cut) + c + ((a * b >> bits) + c >> bits) >> bits) + a
        ),
    }
    got = executed(k, inputs, dict.fromkeys(cases, k))
    for body, function in cases.items():
        for n, lane in enumerate(inputs.T.tolist()):
            assert function(*lane) & cut == got[body][n], (body, lane)


def test_products_of_bytes_and_of_24_bits() -> None:
    inputs = words(32, seed=6)

    def dot(a: int, b: int, c: int, *, sizes: tuple[int, int], signs: str, first: int = 0) -> int:
        for n in range(4 if sizes[0] == 8 else 2):
            x, y = a >> sizes[0] * n & (1 << sizes[0]) - 1, b >> 8 * (n + first) & 255
            c += (signed(x, sizes[0]) if signs[0] == "s" else x) * (signed(y, 8) if signs[1] == "s" else y)
        return c

    cases: dict[str, Callable[[int, int, int], int]] = {
        f"mad24.lo.s32 {'%r8'}, %r1, %r2, %r3": lambda a, b, c: signed(a, 24) * signed(b, 24) + c,
        "mul24.lo.u32 %r8, %r1, %r2": lambda a, b, c: (a & 0xFFFFFF) * (b & 0xFFFFFF),
    }
    for s in ("ss", "su", "us", "uu"):
        cases[f"dp4a.{s[0]}32.{s[1]}32 %r8, %r1, %r2, %r3"] = partial(dot, sizes=(8, 8), signs=s)
        for half, first in (("lo", 0), ("hi", 2)):
            cases[f"dp2a.{half}.{s[0]}32.{s[1]}32 %r8, %r1, %r2, %r3"] = partial(
                dot, sizes=(16, 8), signs=s, first=first
            )
    got = executed("u32", inputs, dict.fromkeys(cases, "u32"))
    for body, function in cases.items():
        for n, lane in enumerate(inputs.T.tolist()):
            assert function(*lane) & 0xFFFFFFFF == got[body][n], (body, lane)


#: Digits, least exponent and largest number of FP8.
EIGHT = {"e4m3": (4, -6, 448.0), "e5m2": (3, -14, 57344.0)}


def eight_bits(code: int, kind: str) -> float:
    """Return the number of a code of FP8."""
    digits, least, _ = EIGHT[kind]
    fraction, exponent = code & (1 << digits - 1) - 1, (code & 127) >> digits - 1
    if kind == "e5m2" and exponent == 31:
        size = inf if fraction == 0 else nan
    elif kind == "e4m3" and code & 127 == 127:
        size = nan
    else:
        size = (fraction + (exponent > 0) * 2 ** (digits - 1)) * 2.0 ** (max(exponent, 1) + least - digits)
    return -size if code & 128 else size


@pytest.mark.parametrize("kind", EIGHT)
def test_fp8_is_read_and_written(kind: str) -> None:
    codes = np.arange(256, dtype=np.uint32)
    read = executed(
        "u32", np.stack([codes | codes << 8] * 3), {f"cvt.u16.u32 %h1, %r1; cvt.rn.f16x2.{kind}x2 %r8, %h1": "u32"}
    )
    (pairs,) = read.values()
    exact = np.array([eight_bits(code, kind) for code in range(256)])
    for numbers in wide(pairs.astype(np.uint32).view(np.float16)).reshape(-1, 2).T:
        assert np.array_equal(numbers, exact, equal_nan=True)
    inputs = floats("f32", seed=31)
    inputs[0, :128] = (np.random.default_rng(8).standard_normal(128) * 3).astype(np.float32).view(np.uint32)
    write = f"cvt.rn.satfinite.{kind}x2.f32 %h8, %f1, %f2"
    got = executed("f32", inputs, {write: "u16"})[write].astype(int)
    largest = EIGHT[kind][-1]
    finite = np.array([eight_bits(code, kind) for code in range(127)])
    finite = finite[np.isfinite(finite)]
    for half, given in ((got >> 8, inputs[0]), (got & 255, inputs[1])):
        for code, value in zip(half.tolist(), wide(given.astype(np.uint32).view(np.float32)).tolist(), strict=True):
            number = eight_bits(code, kind)
            if isnan(value) or abs(value) >= largest:
                assert (isnan(value) and isnan(number)) or abs(number) == largest, (value, number)
                continue
            # The nearest number; of two, that with an even code.
            apart = np.abs(finite - abs(value))
            best = np.flatnonzero(apart == apart.min())
            assert abs(number) == finite[best[0] if len(best) == 1 else best[best % 2 == 0][0]], (value, number)
            assert (code >> 7) == (np.signbit(value)), (value, number)


def test_tf32_has_ten_bits_of_fraction() -> None:
    inputs = floats("f32", seed=12)
    modes = {"rna": "rna", "rn": "rn", "rz": "rz"}
    cases = {f"cvt.{mode}.tf32.f32 %r8, %f1": "u32" for mode in modes}
    got = executed("f32", inputs, cases)
    for body, mode in zip(cases, modes, strict=True):
        for bits, out in zip(inputs[0].tolist(), got[body].tolist(), strict=True):
            size, value = bits & 0x7FFFFFFF, Fraction(bits & 0x7FFFFFFF, 1 << 13)
            if size > 0x7F800000:
                assert out & 0x7FFFFFFF > 0x7F800000
                continue
            whole = {"rz": int(value), "rn": round(value), "rna": int(value + Fraction(1, 2))}[mode]
            assert out == min(whole << 13, 0x7F800000) | bits & 0x80000000, (mode, hex(bits))
