"""What the scanner works on, and how it splits the text of an event into tokens."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from profilers.readers.kineto.lexing import (
    CLOSE_OBJECT,
    COLON,
    COMMA,
    MINUS,
    MISSING,
    OPEN_ARRAY,
    OPEN_OBJECT,
    QUOTE,
    Strings,
    at,
    equal,
    find,
    nanoseconds,
    nested_end,
    plain_escapes,
    read_number,
    scalar_end,
    space_end,
    text_end,
)
from profilers.trace.compiled import inlined

# Why `scan` returned: the content is used up; a kind's rows are full; the array has ended; a table has to grow;
# a category has no kind yet; the event at the place returned is not plain.
MORE, FULL, END, GROW, NEW_CATEGORY, IRREGULAR = range(6)
#: What `Scan.counts` holds: events skipped as markers and as flow, events kept; and the title seen last.
MARKERS, FLOWS, KEPT, LAST = range(4)

# What a value is.
WHOLE, REAL, TEXT, ESCAPED, NESTED, NULL, BOOLEAN, LONG, KNOWN = range(9)

# How an argument is kept: in the JSON column, as an integer of 64 or 32 bits, as the event's rank, as a float, as
# JSON text, as a word, as three extents. Ranks, words and extents stand in the JSON column too.
REST, INTEGER, NARROW, RANKED, FLOAT, JSON, WORD, EXTENTS = range(8)

# The keys of an event that mean something, in the order of their ids.
PH, CAT, NAME, PID, TID, TS, DUR, ARGS = range(1, 9)
TOP_KEYS = ("", "ph", "cat", "name", "pid", "tid", "ts", "dur", "args")

# The columns that every kind has, and how many.
START, LENGTH, TITLE, RANK, PROCESS, THREAD, OTHER, CATEGORY, FIXED = range(9)

# Kinds beyond those of the schema: events that are counted and skipped.
MARKER, FLOW = 100, 101
COUNTERS = 6
_KEY_LIMIT = 200
_TOKENS = 256
#: Stands for the key before the first of an object.
_FIRST = 0


class Scan(NamedTuple):
    """What `scan` works on; all arrays are the caller's.

    Shapes: `values` (kinds, slots, rows); `slots` and `types` (kinds, keys); `kinds` (categories).
    """

    values: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int64]
    slots: npt.NDArray[np.int64]
    types: npt.NDArray[np.int64]
    widths: npt.NDArray[np.int64]
    kinds: npt.NDArray[np.int64]
    hosts: npt.NDArray[np.int64]
    follow: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]
    recent: npt.NDArray[np.int64]
    recent_rest: npt.NDArray[np.int64]
    tokens: npt.NDArray[np.int64]
    extents: npt.NDArray[np.int64]
    head: npt.NDArray[np.int64]
    real: npt.NDArray[np.float64]
    scratch: npt.NDArray[np.uint8]
    top: Strings
    keys: Strings
    categories: Strings
    strings: Strings


@inlined
def tokenise(a: Any, p: int, end: int, s: Scan) -> Any:
    """Split the event at `p` into tokens: return its end, how many there are, and a state (`FULL`: it is whole).

    A token is (key, what it is, value, start of the value, its end, start of the key, its end); keys of ``args``
    count from 1000, and 999 is one of those of which there are too many.
    """
    t = s.tokens
    count = 0
    level = 0
    before = _FIRST
    p = space_end(a, p + 1)
    while True:
        if p >= end:
            return p, 0, MORE
        c = at(a, p)
        if c == CLOSE_OBJECT:
            p = space_end(a, p + 1)
            if level == 0:
                return p, count, FULL
            level, before = 0, ARGS
        elif c == QUOTE and count < _TOKENS:
            k = p + 1
            key, p = _key(a, k, end, s, level, before)
            if p >= end or p < 0:
                return p, 0, MORE if p >= end else IRREGULAR
            before = key if key >= 0 else _FIRST
            key_end = p
            p = space_end(a, p + 1)
            if at(a, p) != COLON:
                return p, 0, MORE if p >= end else IRREGULAR
            p = space_end(a, p + 1)
            if p >= end:
                return p, 0, MORE
            t[count, 0] = key if level == 0 else key + 1000
            t[count, 3], t[count, 5], t[count, 6] = p, k, key_end
            if level == 0 and key == ARGS and at(a, p) == OPEN_OBJECT:
                t[count, 1] = NESTED
                count += 1
                level, before = 1, _FIRST
                p = space_end(a, p + 1)
                continue
            p = _value(a, p, end, s, count)
            if p >= end or p < 0:
                return p, 0, MORE if p >= end else IRREGULAR
            t[count, 4] = p
            count += 1
            p = space_end(a, p)
        else:
            return p, 0, IRREGULAR
        if at(a, p) == COMMA:
            p = space_end(a, p + 1)
            if at(a, p) != QUOTE:
                return p, 0, MORE if p >= end else IRREGULAR
        elif at(a, p) != CLOSE_OBJECT:
            return p, 0, MORE if p >= end else IRREGULAR


@inlined
def _key(a: Any, k: int, end: int, s: Scan, level: int, before: int) -> Any:
    """Return the number of the key at `k`, most likely the one that followed `before` last time, and its end.

    The number is -1 where there are too many keys; the end is -1 where the key is not plain.
    """
    table = s.keys if level else s.top
    key = s.follow[level, before]
    if key >= 0:
        n = table.offsets[key + 1] - table.offsets[key]
        if at(a, k + n) == QUOTE and equal(a, k, table.arena, table.offsets[key], n):
            return key, k + n
    p, escaped = text_end(a, k)
    if p >= end:
        return key, p
    if escaped or p - k > _KEY_LIMIT:
        return key, np.int64(-1)
    key = find(table, a, k, p - k)
    s.follow[level, before] = key
    return key, p


@inlined
def _value(a: Any, p: int, end: int, s: Scan, token: int) -> Any:
    """Read the value at `p` into a token; return its end, -1 where it is not plain, `end` where it goes on."""
    t = s.tokens
    c = at(a, p)
    if c == QUOTE:
        number = s.recent[s.counts[LAST]] if t[token, 0] == NAME else np.int64(-1)
        if number >= 0:
            offset = s.strings.offsets[number]
            n = s.strings.offsets[number + 1] - offset
            if equal(a, p + 1, s.strings.arena, offset, n) and at(a, p + 1 + n) == QUOTE:
                t[token, 1], t[token, 2] = KNOWN, number
                return p + n + 2
        q, escaped = text_end(a, p + 1)
        if q >= end:
            return end
        t[token, 1] = ESCAPED if escaped else TEXT
        return -1 if escaped and not plain_escapes(a, p + 1, q) else q + 1
    if c == MINUS or 48 <= c <= 57:
        p, value, decimals, digits = read_number(a, p)
        if p < end and (digits < 0 or digits > 18):
            t[token, 1] = LONG
            return p if digits > 0 and t[token, 0] > ARGS else -1
        t[token, 1] = WHOLE if decimals == 0 else REAL
        if t[token, 0] == TS or t[token, 0] == DUR:
            value = nanoseconds(value, decimals)
            t[token, 1] = WHOLE
            if value == MISSING:
                return -1
        t[token, 2] = value
        return p
    if c in (OPEN_OBJECT, OPEN_ARRAY):
        t[token, 1] = NESTED
        return nested_end(a, p, end)
    t[token, 1] = NULL if c == 110 else BOOLEAN
    return scalar_end(a, p, end)
