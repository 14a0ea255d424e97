"""State of the scanner, its codes, and the tokenizer that splits the text of an event.

`Scan` holds the arrays that compiled code reads and fills. `tokenise` writes one row of `Scan.tokens` for each member
of an event and of its ``args``.
"""

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

# Reasons for which `scan` returns: the content is used up; the rows of a kind are full; the array has ended; a table
# has to grow; a category has no kind yet; the event at the returned position is not plain.
MORE, FULL, END, GROW, NEW_CATEGORY, IRREGULAR = range(6)
#: Entries of `Scan.counts`: markers skipped, flow events skipped, events kept; and the number of the last event's name.
MARKERS, FLOWS, KEPT, LAST = range(4)

# Columns of `Scan.tokens`: number of the key, type of the value, the value if it is a number, and where value and key
# start and end. Keys of ``args`` count from ARGUMENT_KEYS; TOO_MANY stands for a key that no longer fits the table.
KEY, TAG, VALUE, VALUE_START, VALUE_END, KEY_START, KEY_END = range(7)
ARGUMENT_KEYS = 1000
TOO_MANY = 999

# Types of a value: an integer, a number with decimals, a text without and with escapes, an object or array, null, true
# or false, a number of more than 18 digits, and a name that is in the table of strings already.
WHOLE, REAL, TEXT, ESCAPED, NESTED, NULL, BOOLEAN, LONG, KNOWN = range(9)

# How an argument is kept: in the JSON column, as an integer of 64 or 32 bits, as the event's rank, as a float, as
# JSON text, as a word, as three extents. Ranks, words and extents are kept in the JSON column too.
REST, INTEGER, NARROW, RANKED, FLOAT, JSON, WORD, EXTENTS = range(8)

# Keys of an event that have a meaning, in the order of their numbers.
PH, CAT, NAME, PID, TID, TS, DUR, ARGS = range(1, 9)
TOP_KEYS = ("", "ph", "cat", "name", "pid", "tid", "ts", "dur", "args")

# Slots that every kind has in `Scan.values`, and their number. Names, categories and arguments are numbers of strings.
START, DURATION, EVENT_NAME, RANK, PROCESS, THREAD, OTHER_ARGS, CATEGORY, FIXED = range(9)

# Kinds beyond those of the schema: events that are counted and skipped.
MARKER, FLOW = 100, 101
COUNTERS = 6
_KEY_LIMIT = 200
_TOKENS = 256
#: Stands for the key before the first key of an object.
_FIRST = 0


class Scan(NamedTuple):
    """Arrays that `scan` reads and fills; the caller owns them.

    Parameters
    ----------
    values : array of int64, shape (kinds, slots, rows)
        Columns of the rows collected, by kind.
    rows : array of int64, shape (kinds,)
        Number of rows collected.
    slots, types : array of int64, shape (kinds, keys)
        Slot in `values` of the argument with a key, and how it is kept.
    widths : array of int64, shape (kinds,)
        Number of slots.
    kinds : array of int64, shape (categories,)
        Kind of the events of a category, -1 if it is not known yet.
    hosts : array of int64, shape (kinds,)
        1 for a kind with process and thread.
    follow : array of int64, shape (2, keys)
        Key that followed each key last time, in an event and in its ``args``.
    counts : array of int64, shape (4,)
        Counts of events, as `MARKERS` and its neighbours name them.
    recent : array of int64, shape (strings,)
        Name of the event that followed an event of each name last time.
    recent_rest : array of int64, shape (strings,)
        Other arguments that an event of each name had last time.
    tokens : array of int64, shape (tokens, 7)
        Members of the current event.
    extents : array of int64, shape (3,)
        Grid or block read last.
    head : array of int64, shape (6,)
        Fields of the current event.
    real : array of float64, shape (1,)
        Room to reinterpret a float as an integer.
    scratch : array of uint8
        Room for the JSON text of other arguments.
    top, keys, categories, strings : Strings
        Keys of events, keys of ``args``, categories, and all other texts.
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
    """Split the event at `p` into tokens; return its end, their number, and a state, which is `FULL` if it is whole."""
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
            t[count, KEY] = key if level == 0 else key + ARGUMENT_KEYS
            t[count, VALUE_START], t[count, KEY_START], t[count, KEY_END] = p, k, key_end
            if level == 0 and key == ARGS and at(a, p) == OPEN_OBJECT:
                t[count, TAG] = NESTED
                count += 1
                level, before = 1, _FIRST
                p = space_end(a, p + 1)
                continue
            p = _value(a, p, end, s, count)
            if p >= end or p < 0:
                return p, 0, MORE if p >= end else IRREGULAR
            t[count, VALUE_END] = p
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
    """Return the number of the key at `k` and its end.

    The key that followed `before` last time is tried first. The number is -1 if there are too many keys; the end is
    -1 if the key is not plain.
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
    """Read the value at `p` into a token; return its end, -1 if it is not plain, `end` if it is incomplete."""
    t = s.tokens
    c = at(a, p)
    if c == QUOTE:
        number = s.recent[s.counts[LAST]] if t[token, KEY] == NAME else np.int64(-1)
        if number >= 0:
            offset = s.strings.offsets[number]
            n = s.strings.offsets[number + 1] - offset
            if equal(a, p + 1, s.strings.arena, offset, n) and at(a, p + 1 + n) == QUOTE:
                t[token, TAG], t[token, VALUE] = KNOWN, number
                return p + n + 2
        q, escaped = text_end(a, p + 1)
        if q >= end:
            return end
        t[token, TAG] = ESCAPED if escaped else TEXT
        return -1 if escaped and not plain_escapes(a, p + 1, q) else q + 1
    if c == MINUS or 48 <= c <= 57:
        p, value, decimals, digits = read_number(a, p)
        if p < end and (digits < 0 or digits > 18):
            t[token, TAG] = LONG
            return p if digits > 0 and t[token, KEY] > ARGS else -1
        t[token, TAG] = WHOLE if decimals == 0 else REAL
        if t[token, KEY] == TS or t[token, KEY] == DUR:
            value = nanoseconds(value, decimals)
            t[token, TAG] = WHOLE
            if value == MISSING:
                return -1
        t[token, VALUE] = value
        return p
    if c in (OPEN_OBJECT, OPEN_ARRAY):
        t[token, TAG] = NESTED
        return nested_end(a, p, end)
    t[token, TAG] = NULL if c == 110 else BOOLEAN
    return scalar_end(a, p, end)
