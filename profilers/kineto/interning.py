"""Distinct byte strings, each stored once and known by a number: an open-addressing hash table over flat arrays."""

from collections.abc import Callable
from typing import Any, NamedTuple

import llvmlite.ir as ir
import numpy as np
import numpy.typing as npt
from numba import types
from numba.extending import intrinsic as _intrinsic

from profilers.compiled import bare, inlined

__all__ = ["Strings", "at", "empty_strings", "equal", "find", "load", "text_of"]

intrinsic: Callable[[Callable[..., Any]], Any] = _intrinsic

_MIX = np.uint64(0xFF51AFD7ED558CCD)
_SEED = np.uint64(0x9E3779B97F4A7C15)
_FULL = np.uint64(0xFFFFFFFFFFFFFFFF)
_SHIFT = np.uint64(32)
#: Bytes behind the last string, so that eight at a time can be loaded anywhere.
_SLACK = 16


class Strings(NamedTuple):
    """A table of strings; number `i` stands in ``arena[offsets[i]:offsets[i + 1]]``.

    ``meta`` holds how many there are and how much of the arena is used.
    """

    hashes: npt.NDArray[np.uint64]
    numbers: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]
    arena: npt.NDArray[np.uint8]
    meta: npt.NDArray[np.int64]


def empty_strings(count: int, size: int) -> Strings:
    """Return a table for up to `count` strings (a power of two) of `size` bytes altogether."""
    return Strings(
        np.zeros(2 * count, np.uint64),
        np.zeros(2 * count, np.int64),
        np.zeros(count + 1, np.int64),
        np.zeros(size + _SLACK, np.uint8),
        np.zeros(2, np.int64),
    )


def text_of(table: Strings, number: int) -> bytes:
    """Return string `number`."""
    return table.arena[table.offsets[number] : table.offsets[number + 1]].tobytes()


@intrinsic
def load(_context: Any, array: Any, index: Any) -> Any:
    """Return the eight bytes from `index` on as one little-endian integer, without a check of bounds."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        made = context.make_array(signature.args[0])(context, builder, arguments[0])
        place = builder.gep(made.data, [arguments[1]])
        value = builder.load(builder.bitcast(place, ir.IntType(64).as_pointer()))
        value.align = 1
        return value

    return types.uint64(array, types.int64), code


@intrinsic
def at(_context: Any, array: Any, index: Any) -> Any:
    """Return the byte at `index`, without a check of bounds or of the sign."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        made = context.make_array(signature.args[0])(context, builder, arguments[0])
        value = builder.load(builder.gep(made.data, [arguments[1]]))
        return builder.zext(value, ir.IntType(64))

    return types.int64(array, types.int64), code


@intrinsic
def trailing_bytes(_context: Any, word: Any) -> Any:
    """Return how many whole bytes of zeros `word` ends in, which is not zero."""

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


@bare
def find(table: Strings, a: Any, p: int, n: int) -> Any:
    """Return the number of the `n` bytes from `p` in `a`, new where they are new; -1 where the table is full."""
    hashes, numbers, offsets, arena, meta = table
    mask = np.uint64(hashes.size - 1)
    h = _hash(a, p, n)
    place = h & mask
    while hashes[place] != np.uint64(0):
        if hashes[place] == h:
            number = numbers[place]
            if offsets[number + 1] - offsets[number] == n and equal(a, p, arena, offsets[number], n):
                return number
        place = (place + np.uint64(1)) & mask
    number, used = meta[0], meta[1]
    if number + 1 >= offsets.size or used + n + _SLACK > arena.size:
        return -1
    hashes[place], numbers[place] = h, number
    for i in range(n):
        arena[used + i] = a[p + i]
    meta[0], meta[1] = number + 1, used + n
    offsets[number + 1] = used + n
    return number
