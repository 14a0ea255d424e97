"""Compiled functions on a buffer of JSON text: ends of tokens, values of numbers, and a table of distinct strings.

`StringTable` stores each distinct byte string once and numbers it: an open-addressing hash table over flat arrays.

The other functions take the buffer ``a``, a position ``p`` in it and mostly the ``end`` of its content. They are
strict: text that is no plain JSON gives -1 or False. Every function relies on `PADDING` quotation marks behind the
content, so that a loop over bytes ends there at the latest. A returned position at or behind ``end`` means that the
token is incomplete.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import llvmlite.ir as ir
import numpy as np
import numpy.typing as npt
from numba import types
from numba.extending import intrinsic as _intrinsic

from profilers.trace.compiled import bare, inlined

intrinsic: Callable[[Callable[..., Any]], Any] = _intrinsic

_MIX = np.uint64(0xFF51AFD7ED558CCD)
_SEED = np.uint64(0x9E3779B97F4A7C15)
_FULL = np.uint64(0xFFFFFFFFFFFFFFFF)
_SHIFT = np.uint64(32)
#: Bytes behind the last string of the arena, so that eight bytes can be loaded from any position.
_SLACK = 16


class StringTable(NamedTuple):
    """A table of distinct strings; the bytes of string ``i`` are ``arena[offsets[i]:offsets[i + 1]]``.

    Parameters
    ----------
    hashes : array of uint64
        Hash of the string in each slot of the hash table, 0 for a free slot.
    numbers : array of int64
        Number of the string in each slot.
    offsets : array of int64
        Start of each string in the arena, then the end of the last one.
    arena : array of uint8
        Bytes of all strings.
    meta : array of int64
        Number of strings, and number of bytes used in the arena.
    """

    hashes: npt.NDArray[np.uint64]
    numbers: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]
    arena: npt.NDArray[np.uint8]
    meta: npt.NDArray[np.int64]


def empty_strings(count: int, size: int) -> StringTable:
    """Return a table with room for `count` strings (a power of two) of `size` bytes in total."""
    return StringTable(
        np.zeros(2 * count, np.uint64),
        np.zeros(2 * count, np.int64),
        np.zeros(count + 1, np.int64),
        np.zeros(size + _SLACK, np.uint8),
        np.zeros(2, np.int64),
    )


def text_of(table: StringTable, number: int) -> bytes:
    """Return the bytes of string `number`."""
    return table.arena[table.offsets[number] : table.offsets[number + 1]].tobytes()


@intrinsic
def load(_context: Any, array: Any, index: Any) -> Any:
    """Return the eight bytes from `index` on as a little-endian integer, without a check of bounds."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source = context.make_array(signature.args[0])(context, builder, arguments[0])
        address = builder.gep(source.data, [arguments[1]])
        value = builder.load(builder.bitcast(address, ir.IntType(64).as_pointer()))
        value.align = 1
        return value

    return types.uint64(array, types.int64), code


@intrinsic
def at(_context: Any, array: Any, index: Any) -> Any:
    """Return the byte at `index`, without a check of bounds or of the sign."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source = context.make_array(signature.args[0])(context, builder, arguments[0])
        value = builder.load(builder.gep(source.data, [arguments[1]]))
        return builder.zext(value, ir.IntType(64))

    return types.int64(array, types.int64), code


@intrinsic
def trailing_bytes(_context: Any, word: Any) -> Any:
    """Return the number of zero bytes at the low end of `word`, which is not zero."""

    def code(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        zeros = builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))
        return builder.lshr(zeros, ir.Constant(ir.IntType(64), 3))

    return types.int64(word), code


@inlined
def equal(a: Any, p: int, b: Any, q: int, n: int) -> bool:
    """Return whether `n` bytes from `p` in `a` equal those from `q` in `b`."""
    while n >= 8:
        if load(a, p) != load(b, q):
            return False
        p += 8
        q += 8
        n -= 8
    return n == 0 or (load(a, p) ^ load(b, q)) << np.uint64(64 - 8 * n) == np.uint64(0)


@inlined
def _hash(a: Any, p: int, n: int) -> Any:
    h = np.uint64(n) * _SEED
    while n >= 8:
        h = (h ^ load(a, p)) * _MIX
        h ^= h >> _SHIFT
        p += 8
        n -= 8
    if n > 0:
        h = (h ^ (load(a, p) & (_FULL >> np.uint64(64 - 8 * n)))) * _MIX
        h ^= h >> _SHIFT
    h *= _SEED
    return (h ^ (h >> _SHIFT)) | np.uint64(1)


@inlined
def holds(table: StringTable, number: int, a: Any, p: int, n: int) -> Any:
    """Return whether string `number` has `n` bytes, which equal those from `p` in `a`."""
    start = table.offsets[number]
    return table.offsets[number + 1] - start == n and equal(a, p, table.arena, start, n)


@bare
def find(table: StringTable, a: Any, p: int, n: int) -> Any:
    """Return the number of the string of `n` bytes from `p` in `a`, added if it is new; -1 if the table is full."""
    hashes, numbers, offsets, arena, meta = table
    mask = np.uint64(hashes.size - 1)
    h = _hash(a, p, n)
    slot = h & mask
    while hashes[slot] != np.uint64(0):
        if hashes[slot] == h and holds(table, numbers[slot], a, p, n):
            return numbers[slot]
        slot = (slot + np.uint64(1)) & mask
    number, used = meta[0], meta[1]
    if number + 1 >= offsets.size or used + n + _SLACK > arena.size:
        return -1
    hashes[slot], numbers[slot] = h, number
    for i in range(n):
        arena[used + i] = a[p + i]
    meta[0], meta[1] = number + 1, used + n
    offsets[number + 1] = used + n
    return number


#: Number of quotation marks behind the content of the buffer.
PADDING = 1024
MISSING = np.iinfo(np.int64).min
QUOTE, COMMA, COLON = 34, 44, 58
OPEN_ARRAY, CLOSE_ARRAY, OPEN_OBJECT, CLOSE_OBJECT = 91, 93, 123, 125
MINUS = 45
_DOT, _BACKSLASH, _LOWER_U = 46, 92, 117
_DEPTH = 60
#: One bit for each character that is white space in JSON.
_SPACES = 1 << 32 | 1 << 13 | 1 << 10 | 1 << 9
_ONES = np.uint64(0x0101010101010101)
_HIGHS = np.uint64(0x8080808080808080)
_QUOTES = np.uint64(0x2222222222222222)
_FOUR_BYTES = np.uint64(0xFFFFFFFF)
_TRUE, _NULL, _ALSE, _INFI, _NITY = (
    np.uint64(int.from_bytes(word, "little")) for word in (b"true", b"null", b"alse", b"Infi", b"nity")
)
_SLASHES = np.uint64(0x5C5C5C5C5C5C5C5C)
POWERS = np.array([10**i for i in range(19)], dtype=np.int64)
#: First time in ns that is too late.
TIME_LIMIT = 1 << 62


@inlined
def text_end(a: Any, p: int) -> Any:
    """Return the position of the quotation mark that closes the text at `p`, and whether the text has a backslash."""
    escaped = False
    while True:
        word = load(a, p)
        x = word ^ _QUOTES
        y = word ^ _SLASHES
        hit = (((x - _ONES) & ~x) | ((y - _ONES) & ~y)) & _HIGHS
        if hit == 0:
            p += 8
            continue
        p += trailing_bytes(hit)
        if at(a, p) == QUOTE:
            return p, escaped
        escaped = True
        p += 2


@bare
def plain_escapes(a: Any, p: int, end: int) -> Any:
    """Return whether every backslash between `p` and `end` starts a valid escape that is no surrogate."""
    while p < end:
        if at(a, p) != _BACKSLASH:
            p += 1
            continue
        c = at(a, p + 1)
        if c == 117:  # u
            for i in range(2, 6):
                d = at(a, p + i)
                if not (48 <= d <= 57 or 65 <= d <= 70 or 97 <= d <= 102):
                    return False
            if (at(a, p + 2) == 100 or at(a, p + 2) == 68) and at(a, p + 3) >= 56:
                return False
            p += 6
        elif c == 34 or c == 92 or c == 47 or c == 98 or c == 102 or c == 110 or c == 114 or c == 116:
            p += 2
        else:
            return False
    return p == end


@inlined
def space_end(a: Any, p: int) -> Any:
    """Return the end of the white space at `p`."""
    c = at(a, p)
    while c <= 32 and (_SPACES >> c) & 1:
        p += 1
        c = at(a, p)
    return p


@inlined
def digits_at(a: Any, p: int, value: Any) -> Any:
    """Return the end of the digits at `p`, and `value` with these digits appended."""
    while 48 <= at(a, p) <= 57:
        value = value * 10 + (np.int64(at(a, p)) - 48)
        p += 1
    return p, value


@inlined
def read_number(a: Any, p: int) -> Any:
    """Return the end of a number, its digits as one integer, its number of decimals, and its number of digits.

    The number of digits is -1 if the text is no JSON number, and 99 for one with an exponent or more than 18 digits.
    """
    negative = at(a, p) == MINUS
    if negative:
        p += 1
    first = p
    decimals = 0
    p, value = digits_at(a, first, np.int64(0))
    digits = p - first
    if digits == 0 or (at(a, first) == 48 and digits > 1):
        return p, 0, 0, -1
    if at(a, p) == _DOT:
        point = p + 1
        p, value = digits_at(a, point, value)
        decimals = p - point
        if decimals == 0:
            return p, 0, 0, -1
        digits += decimals
    if at(a, p) == 101 or at(a, p) == 69:
        p += 1
        if at(a, p) == 43 or at(a, p) == MINUS:
            p += 1
        exponent = p
        p, _value = digits_at(a, exponent, np.int64(0))
        if p == exponent:
            return p, 0, 0, -1
        digits = 99
    if digits > 18:
        digits = 99
    return p, -value if negative else value, decimals, digits


#: Length of the longest literal.
_LITERAL = len("-Infinity")


@inlined
def _literal(a: Any, p: int) -> Any:
    """Return the length of ``true``, ``false``, ``null`` or a number that is none at `p`, 0 for anything else."""
    word = load(a, p) & _FOUR_BYTES
    if word in (_TRUE, _NULL):
        return 4
    return 5 if at(a, p) == 102 and load(a, p + 1) & _FOUR_BYTES == _ALSE else no_number(a, p)


@inlined
def no_number(a: Any, p: int) -> Any:
    """Return the length of ``NaN``, ``Infinity`` or ``-Infinity`` at `p`, which JSON lacks, 0 for anything else."""
    if at(a, p) == 78:  # N
        return 3 if at(a, p + 1) == 97 and at(a, p + 2) == 78 else 0
    sign = 1 if at(a, p) == MINUS else 0
    word, following = load(a, p + sign) & _FOUR_BYTES, load(a, p + sign + 4) & _FOUR_BYTES
    return 8 + sign if word == _INFI and following == _NITY else 0


@inlined
def string_end(a: Any, p: int, end: int) -> Any:
    """Return the end of the string at `p`; -1 if an escape in it is not plain, `end` if it is incomplete."""
    q, escaped = text_end(a, p + 1)
    if q >= end:
        return end
    return -1 if escaped and not plain_escapes(a, p + 1, q) else q + 1


@bare
def scalar_end(a: Any, p: int, end: int) -> Any:
    """Return the end of the string, number or literal at `p`; -1 if it is none, `end` if it is incomplete."""
    c = at(a, p)
    if c == QUOTE:
        return string_end(a, p, end)
    if (c == MINUS and at(a, p + 1) != 73) or 48 <= c <= 57:
        p, _value, _decimals, digits = read_number(a, p)
        return end if p >= end else (-1 if digits < 0 else p)
    length = _literal(a, p)
    return end if p + _LITERAL >= end else (p + length if length else -1)


@bare
def key_end(a: Any, p: int, end: int) -> Any:
    """Return the position behind a key and its colon; -1 if neither is there, `end` if the text is incomplete."""
    p = space_end(a, p)
    if at(a, p) != QUOTE:
        return -1
    p = string_end(a, p, end)
    if p < 0 or p >= end:
        return p
    p = space_end(a, p)
    if p >= end:
        return end
    return p + 1 if at(a, p) == COLON else -1


@bare
def nested_end(a: Any, p: int, end: int) -> Any:
    """Return the end of the array or object at `p`; -1 if it is no plain JSON, `end` if it is incomplete.

    A comma behind the last element is allowed.
    """
    objects = np.uint64(0)  # a bit for each level of nesting, set for an object
    depth = 0
    ended = False
    while True:
        # A value starts here, or a comma ended the array or object.
        p = space_end(a, p)
        c = at(a, p)
        if ended:
            ended = False
        elif c in (OPEN_ARRAY, OPEN_OBJECT):
            depth += 1
            if depth > _DEPTH:
                return -1
            objects = (objects << np.uint64(1)) | np.uint64(c == OPEN_OBJECT)
            p = space_end(a, p + 1)
            if at(a, p) != (CLOSE_OBJECT if c == OPEN_OBJECT else CLOSE_ARRAY):
                p = key_end(a, p, end) if c == OPEN_OBJECT else p
                if p < 0 or p >= end:
                    return p
                continue
        else:
            p = scalar_end(a, p, end)
            if p < 0 or p >= end:
                return p
            p = space_end(a, p)
        # A value has ended, and perhaps the arrays and objects around it end too.
        while at(a, p) == (CLOSE_OBJECT if objects & np.uint64(1) else CLOSE_ARRAY):
            depth -= 1
            objects >>= np.uint64(1)
            p += 1
            if depth == 0:
                return p
            p = space_end(a, p)
        if at(a, p) != COMMA:
            return end if p >= end else -1
        p = space_end(a, p + 1)
        if at(a, p) == (CLOSE_OBJECT if objects & np.uint64(1) else CLOSE_ARRAY):
            ended = True
            continue
        p = key_end(a, p, end) if objects & np.uint64(1) else p
        if p < 0 or p >= end:
            return p


@bare
def object_end(a: Any, p: int, end: int) -> Any:
    """Return the end of the object at `p` by its braces, whatever is between them; `end` if it is incomplete."""
    if at(a, p) != OPEN_OBJECT:
        return -1
    depth = 0
    while p < end:
        c = at(a, p)
        if c == QUOTE:
            p, _escaped = text_end(a, p + 1)
        elif c == OPEN_OBJECT:
            depth += 1
        elif c == CLOSE_OBJECT:
            depth -= 1
            if depth == 0:
                return p + 1
        p += 1
    return end


@inlined
def copy(a: Any, p: int, end: int, out: Any, o: int) -> Any:
    """Copy text to `out` from `o` on; return the end of the copy, -1 for a text with a control character.

    JSON does not allow control characters in strings, but some writers leave them in.
    """
    for i in range(p, end):
        if at(a, i) < 32:
            return -1
        out[o] = at(a, i)
        o += 1
    return o


@bare
def compact(a: Any, p: int, end: int, out: Any, o: int, nans: Any) -> Any:
    """Copy JSON text to `out` as `copy`, without white space between tokens and commas behind the last element.

    A number that JSON lacks becomes null, and is counted in the first entry of `nans`.
    """
    while p < end:
        c = at(a, p)
        if c == QUOTE:
            q, _escaped = text_end(a, p + 1)
            o = copy(a, p, q + 1, out, o)
            if o < 0:
                return -1
            p = q + 1
            continue
        length = no_number(a, p) if c in (78, 73, MINUS) else 0
        if length:
            o = null(out, o)
            nans[0] += 1
            p += length
            continue
        if c in (CLOSE_OBJECT, CLOSE_ARRAY) and out[o - 1] == COMMA:
            o -= 1
        if c > 32:
            out[o] = c
            o += 1
        p += 1
    return o


@inlined
def null(out: Any, o: int) -> Any:
    """Write ``null`` to `out` from `o` on; return its end."""
    out[o], out[o + 1], out[o + 2], out[o + 3] = 110, 117, 108, 108
    return o + 4


@bare
def extents(a: Any, p: int, end: int, out: Any, slot: int, row: int) -> Any:
    """Read one to three positive integers from the array at `p`; return whether it holds nothing else.

    They are written to three rows of a column of `out`, from `slot` on; those absent are 1.
    """
    out[slot, row] = out[slot + 1, row] = out[slot + 2, row] = 1
    if at(a, p) != OPEN_ARRAY:
        return False
    p += 1
    for i in range(4):
        p = space_end(a, p)
        if not 49 <= at(a, p) <= 57 or i == 3:
            return False
        p, value, decimals, digits = read_number(a, p)
        if decimals or digits > 9:
            return False
        out[slot + i, row] = value
        p = space_end(a, p)
        if at(a, p) == CLOSE_ARRAY:
            return p + 1 == end
        if at(a, p) != COMMA:
            return False
        p += 1
    return False
