"""Tokens of an event of a Kineto file: the first step of the scanner, and what it shares with the second.

`tokenise` writes one row of `Scan.tokens` for each member of an event and of its ``args``. The names in its functions
are those of `profilers.readers.kineto.scanner`. Numbers that are more than digits come first: times, identifiers of 64
bits, and integers in texts.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from profilers.readers.kineto import lexing
from profilers.readers.kineto.lexing import (
    MINUS,
    MISSING,
    POWERS,
    TIME_LIMIT,
    StringTable,
    at,
    digits_at,
    equal,
    find,
    read_number,
    space_end,
    text_end,
)
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


# Reasons for which `scan` returns: the content is used up; the rows of a kind are full; the array has ended; a table
# has to grow; a category has no kind yet; the event at the returned position is not plain; a process or thread that is
# a text has no number yet; a lane has no kind yet.
MORE, FULL, END, GROW, NEW_CATEGORY, IRREGULAR, NEW_ID, NEW_LANE = range(8)
#: Entries of `Scan.counts`: markers skipped, flow events skipped, events kept, the number of the last event's name,
#: and events without a duration.
MARKERS, FLOWS, KEPT, LAST, UNTIMED = range(5)

# Columns of `Scan.tokens`: number of the key, type of the value, the value if it is a number, and where value and key
# start and end. Keys of ``args`` count from ARGUMENT_KEYS; TOO_MANY stands for a key that no longer fits the table.
KEY, TAG, VALUE, VALUE_START, VALUE_END, KEY_START, KEY_END = range(7)
ARGUMENT_KEYS = 1000
TOO_MANY = 999

# Types of a value: an integer, a number with decimals, a text without and with escapes, an object or array, null, true
# or false, a number of more than 18 digits, a name that is in the table of strings already, and NaN or Infinity.
WHOLE, REAL, TEXT, ESCAPED, NESTED, NULL, BOOLEAN, LONG, KNOWN, NAN = range(10)

# How an argument is kept: in the JSON column, as an integer of 64 or 32 bits, as the event's rank, as a float (or, in
# the next slot, as the text of one that is long), as JSON text, as a word, as three extents, as the number of a stream
# or queue. Ranks, words and extents are kept in the JSON column too.
REST, INTEGER, NARROW, RANKED, FLOAT, JSON, WORD, EXTENTS, IDENTITY = range(9)

# Keys of an event that have a meaning, in the order of their numbers.
PH, CAT, NAME, PID, TID, TS, DUR, ARGS = range(1, 9)
TOP_KEYS = ("", "ph", "cat", "name", "pid", "tid", "ts", "dur", "args")

# Slots that every kind has in `Scan.values`, and their number. Names, categories and arguments are numbers of strings.
START, DURATION, EVENT_NAME, RANK, PROCESS, THREAD, OTHER_ARGS, CATEGORY, EVENT_LANE, FIXED = range(10)

# Kinds beyond those of the schema: categories whose events have the kind of their lane (`Scan.lanes`), and events that
# are counted and skipped.
BY_LANE, MARKER, FLOW = 99, 100, 101
COUNTERS = 6
#: Room behind the rows of a slot. Without it, the columns of a row would share a set of the cache.
SPARE = 72
_KEY_LIMIT = 200
#: Most members of an event.
TOKENS = 256
#: Stands for the key before the first key of an object.
_FIRST = 0
# Entries of `Scan.head`: category, phase, token of the name, start, duration, number of arguments, tokens of the
# process and the thread, and lane.
HEAD_CATEGORY, HEAD_PHASE, HEAD_NAME, HEAD_START, HEAD_DURATION, HEAD_ARGUMENTS = range(6)
HEAD_PID, HEAD_TID, HEAD_LANE = range(6, 9)


class Scan(NamedTuple):
    """Arrays that `scan` reads and fills; the caller owns them.

    Parameters
    ----------
    values : array of int64, shape (kinds, slots, rows + SPARE)
        Columns of the rows collected, by kind.
    rows : array of int64, shape (kinds,)
        Number of rows collected.
    slots, types : array of int64, shape (kinds, keys)
        Slot in `values` of the argument with a key, and how it is kept.
    widths : array of int64, shape (kinds,)
        Number of slots.
    kinds : array of int64, shape (categories,)
        Kind of the events of a category, -1 if it is not known yet.
    id_numbers : array of int64, shape (2, ids)
        Number of the process, and of the thread, with each text; `MISSING` if it has none.
    id_states : array of int64, shape (2, ids)
        Rank of the process with each text, and 0 for a thread; -1 if it has none, -2 if that is not known yet.
    lane_kinds : array of int64, shape (lanes,)
        Kind of the events of each lane, -1 if it is not known yet.
    nans : array of int64, shape (2,)
        Numbers that JSON lacks: in the current event, and in all rows.
    follow : array of int64, shape (2, keys)
        Key that followed each key last time, in an event and in its ``args``.
    counts : array of int64, shape (5,)
        Counts of events, as `MARKERS` and its neighbours name them.
    recent : array of int64, shape (strings,)
        Name of the event that followed an event of each name last time.
    recent_rest : array of int64, shape (strings,)
        Other arguments that an event of each name had last time.
    tokens : array of int64, shape (tokens, 7)
        Members of the current event.
    head : array of int64, shape (9,)
        Fields of the current event.
    scratch : array of uint8
        Room for the JSON text of other arguments.
    top, keys, categories, ids, lanes, strings : Strings
        Keys of events, keys of ``args``, categories, processes and threads that are texts, lanes (category, process,
        thread and name of events whose category does not tell their kind), and all other texts.
    """

    values: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int64]
    slots: npt.NDArray[np.int64]
    types: npt.NDArray[np.int64]
    widths: npt.NDArray[np.int64]
    kinds: npt.NDArray[np.int64]
    id_numbers: npt.NDArray[np.int64]
    id_states: npt.NDArray[np.int64]
    lane_kinds: npt.NDArray[np.int64]
    nans: npt.NDArray[np.int64]
    follow: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]
    recent: npt.NDArray[np.int64]
    recent_rest: npt.NDArray[np.int64]
    tokens: npt.NDArray[np.int64]
    head: npt.NDArray[np.int64]
    scratch: npt.NDArray[np.uint8]
    top: StringTable
    keys: StringTable
    categories: StringTable
    ids: StringTable
    lanes: StringTable
    strings: StringTable


@inlined
def tokenise(a: Any, p: int, end: int, s: Scan) -> Any:
    """Split the event at `p` into tokens; return its end and their number, -1 if it is incomplete or not plain."""
    t = s.tokens
    count = 0
    level = 0
    before = _FIRST
    p = space_end(a, p + 1)
    while True:
        c = at(a, p)
        if c == lexing.CLOSE_OBJECT:
            p = space_end(a, p + 1)
            if level == 0:
                return p, count
            level, before = 0, ARGS
        elif c == lexing.QUOTE and p < end and count < TOKENS:
            k = p + 1
            key, key_end = _key(a, k, end, s, level, before)
            if key_end >= end or key_end < 0:
                return key_end, -1
            before = key if key >= 0 else _FIRST
            p = space_end(a, key_end + 1)
            if at(a, p) != lexing.COLON:
                return p, -1
            p = space_end(a, p + 1)
            t[count, KEY] = key if level == 0 else key + ARGUMENT_KEYS
            t[count, VALUE_START], t[count, KEY_START], t[count, KEY_END] = p, k, key_end
            if level == 0 and key == ARGS and at(a, p) == lexing.OPEN_OBJECT:
                t[count, TAG] = NESTED
                count += 1
                level, before = 1, _FIRST
                p = space_end(a, p + 1)
                continue
            p = _value(a, p, end, s, count)
            if p >= end or p < 0:
                return p, -1
            t[count, VALUE_END] = p
            count += 1
            p = space_end(a, p)
        else:
            return p, -1
        if at(a, p) == lexing.COMMA:
            p = space_end(a, p + 1)
            if at(a, p) != lexing.QUOTE and at(a, p) != lexing.CLOSE_OBJECT:
                return p, -1
        elif at(a, p) != lexing.CLOSE_OBJECT:
            return p, -1


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
        if at(a, k + n) == lexing.QUOTE and equal(a, k, table.arena, table.offsets[key], n):
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
    if c == lexing.QUOTE:
        number = s.recent[s.counts[LAST]] if t[token, KEY] == NAME else np.int64(-1)
        if number >= 0:
            offset = s.strings.offsets[number]
            n = s.strings.offsets[number + 1] - offset
            if equal(a, p + 1, s.strings.arena, offset, n) and at(a, p + 1 + n) == lexing.QUOTE:
                t[token, TAG], t[token, VALUE] = KNOWN, number
                return p + n + 2
        q, escaped = text_end(a, p + 1)
        if q >= end:
            return end
        t[token, TAG] = ESCAPED if escaped else TEXT
        if t[token, KEY] == TS or t[token, KEY] == DUR:
            return q + 1 if _time(a, p + 1, end, s, token) == q else -1
        return -1 if escaped and not lexing.plain_escapes(a, p + 1, q) else q + 1
    if (c == lexing.MINUS and at(a, p + 1) != 73) or 48 <= c <= 57:
        if t[token, KEY] == TS or t[token, KEY] == DUR:
            return _time(a, p, end, s, token)
        p, value, decimals, size = lexing.read_number(a, p)
        if p < end and (size < 0 or size > 18):
            t[token, TAG] = LONG
            return p if size > 0 else -1
        t[token, TAG] = WHOLE if decimals == 0 else REAL
        t[token, VALUE] = value
        return p
    if c in (lexing.OPEN_OBJECT, lexing.OPEN_ARRAY):
        t[token, TAG] = NESTED
        return lexing.nested_end(a, p, end)
    t[token, TAG] = NULL if c == 110 else (BOOLEAN if c == 116 or c == 102 else NAN)
    return lexing.scalar_end(a, p, end)


@inlined
def _time(a: Any, p: int, end: int, s: Scan, token: int) -> Any:
    """Read the time at `p` into a token; return its end, -1 if it is complete and not plain."""
    t = s.tokens
    p, value = read_time(a, p)
    t[token, TAG], t[token, VALUE] = WHOLE, value
    return -1 if value == MISSING and p < end else p
