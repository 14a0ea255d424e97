"""Numbers of a Kineto file that are more than digits: times, identifiers of 64 bits, and integers in texts."""

from typing import Any

import numpy as np

from profilers.readers.kineto.lexing import MINUS, MISSING, POWERS, TIME_LIMIT, at, digits_at, read_number
from profilers.trace.compiled import bare, inlined

_DOT = 46
_FULL, _SIGN = np.uint64(0xFFFFFFFFFFFFFFFF), np.uint64(1 << 63)
#: Most microseconds before and after zero that the scanner reads.
_EARLIEST_US, _LATEST_US = (1 << 60) // 1000 - 1, TIME_LIMIT // 1000 - 1


@inlined
def digits_of(a: Any, p: int, end: int) -> Any:
    """Return the integer spelled between `p` and `end`, and whether it is one, of at most 18 digits."""
    negative = at(a, p) == MINUS
    first = p + 1 if negative else p
    p, value = digits_at(a, first, np.int64(0))
    return -value if negative else value, p == end and 0 < end - first <= 18


@inlined
def wide_integer(a: Any, p: int, end: int) -> Any:
    """Return the integer of 19 or more digits between `p` and `end`, and whether it fits int64, uint64 or neither.

    The answer is 1, 2 or 0, and -1 for a number that is no integer. An integer that only fits uint64 is returned as
    the int64 of the same bits.
    """
    negative = at(a, p) == MINUS
    first = p + 1 if negative else p
    value = np.uint64(0)
    fits: Any = True
    for i in range(first, end):
        if not 48 <= at(a, i) <= 57:
            return np.int64(0), -1
        d = np.uint64(at(a, i) - 48)
        fits = fits and value <= (_FULL - d) // np.uint64(10)
        value = value * np.uint64(10) + d
    if not fits:
        return np.int64(0), 0
    if value < _SIGN:
        return -np.int64(value) if negative else np.int64(value), 1
    return np.int64(value), 0 if negative or value == _SIGN else 2


@inlined
def read_time(a: Any, p: int) -> Any:
    """Return the end of a number of microseconds, and it in ns, rounded half to even.

    The time is `MISSING` for a number that does not fit, and for one with an exponent and more than 18 digits.
    """
    negative = at(a, p) == MINUS
    first = p + 1 if negative else p
    p, us = digits_at(a, first, np.int64(0))
    digits = p - first
    plain = 0 < digits <= 16 and not (digits > 1 and at(a, first) == 48)
    ns, rest = np.int64(0), np.int64(0)
    if at(a, p) == _DOT:
        point = p + 1
        p, ns = digits_at(a, point, np.int64(0))
        decimals = p - point
        plain = plain and decimals > 0
        if decimals > 3:
            _p, ns, rest = _thousandths(a, point, p)
        else:
            ns *= POWERS[3 - min(decimals, 3)]
    if plain and (at(a, p) == 101 or at(a, p) == 69):
        return _scaled_time(a, first, negative)
    if not plain or us > (_EARLIEST_US if negative else _LATEST_US):
        return p, np.int64(MISSING)
    ns += us * 1000
    if rest > 1 or (rest == 1 and ns % 2):
        ns += 1
    return p, -ns if negative else ns


@bare
def _scaled_time(a: Any, first: int, negative: bool) -> Any:
    """Return the end of the number at `first`, which has an exponent, and the time as `read_time`."""
    p, value, decimals, _digits_read = read_number(a, first)
    q, value = digits_at(a, first, np.int64(0))
    digits = q - first
    if at(a, q) == _DOT:
        point = q + 1
        q, value = digits_at(a, point, value)
        digits += q - point
    q += 1
    below = at(a, q) == MINUS
    if below or at(a, q) == 43:
        q += 1
    _q, exponent = digits_at(a, q, np.int64(0))
    shift = (-exponent if below else exponent) - decimals + 3
    if p == first or digits > 18 or _q == q or _q - q > 3 or shift < -18 or shift > 18:
        return p, np.int64(MISSING)
    if shift < 0:
        ns = value // POWERS[-shift]
        rest = value - ns * POWERS[-shift]
        half = POWERS[-shift] // 2
        ns += 1 if rest > half or (rest == half and ns % 2) else 0
    elif value == 0 or value <= _EARLIEST_US * 1000 // POWERS[shift]:
        ns = value * POWERS[shift]
    else:
        return p, np.int64(MISSING)
    if ns > _EARLIEST_US * 1000:
        return p, np.int64(MISSING)
    return p, -ns if negative else ns


@inlined
def _thousandths(a: Any, p: int, end: int) -> Any:
    """Return the end of the decimals at `p`, the first three as an integer, and what the rest is.

    It is 0, 1 or 2 for less than half, half and more than half of the third decimal.
    """
    value = (np.int64(at(a, p)) - 48) * 100 + (np.int64(at(a, p + 1)) - 48) * 10 + (np.int64(at(a, p + 2)) - 48)
    rest = 0 if at(a, p + 3) < 53 else (1 if at(a, p + 3) == 53 else 2)
    for i in range(p + 4, end):
        if rest == 1 and at(a, i) > 48:
            rest = 2
    return end, value, rest


@inlined
def has_exponent(a: Any, p: int, end: int) -> bool:
    """Return whether the number between `p` and `end` has an exponent."""
    while p < end and at(a, p) != 101 and at(a, p) != 69:
        p += 1
    return bool(p < end)
