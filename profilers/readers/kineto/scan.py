"""The byte scanner: well-formed events of a Kineto file to columns, without a Python object for any of them.

`scan` walks the text of the array of events and writes one row an event into flat arrays. It is strict: an
event that is not plain JSON of the expected types (a bad escape, NaN, a number that does not fit, a key twice)
is not touched but reported with its place, and the caller gives it to the standard library
(`profilers.readers.common.json_documents`). So what is odd costs time and never changes what is read.

All loads stay inside the buffer, because `PADDING` bytes of quotation marks follow its content: every loop
over bytes ends there at the latest, and a token that reaches the end is incomplete.
"""

from typing import Any

import numpy as np

from profilers.readers.kineto.lexing import (
    CLOSE_ARRAY,
    CLOSE_OBJECT,
    COLON,
    COMMA,
    MISSING,
    OPEN_OBJECT,
    POWERS,
    TIME_LIMIT,
    at,
    compact,
    digits_of,
    equal,
    extents,
    find,
    read_number,
    space_end,
)
from profilers.readers.kineto.tokens import (
    ARGS,
    BOOLEAN,
    CAT,
    CATEGORY,
    COUNTERS,
    DUR,
    END,
    ESCAPED,
    FLOAT,
    FLOW,
    FULL,
    GROW,
    INTEGER,
    IRREGULAR,
    JSON,
    KEPT,
    KNOWN,
    LAST,
    LENGTH,
    LONG,
    MARKER,
    MORE,
    NAME,
    NARROW,
    NESTED,
    NEW_CATEGORY,
    NULL,
    OTHER,
    PH,
    PID,
    PROCESS,
    RANKED,
    REAL,
    REST,
    START,
    TEXT,
    THREAD,
    TID,
    TITLE,
    TS,
    WHOLE,
    WORD,
    Scan,
    tokenise,
)
from profilers.trace.compiled import bare, inlined

# What `Scan.head` holds: category, phase, token of the name, start, duration, and how many arguments there are.
OF, PHASE, NAMED, AT, FOR, ARGUMENTS = range(6)
_COMPLETE = ord("X")
# The other phases of Chrome's trace format.
_i, _I, _R, _n, _C, _E, _s, _t, _f, _M, _N, _D, _O = map(ord, "iIRnCEstfMNDO")


@inlined
def _emit(a: Any, count: int, s: Scan) -> Any:
    """Write the tokens of an event as a row; return its kind, or a state below zero."""
    state = _head(a, count, s)
    if state < 0:
        return state
    h = s.head
    kind = _kind(s)
    if kind < 0 or kind >= MARKER:
        return kind
    start, duration = h[AT], h[FOR]
    if h[NAMED] < 0 or start == MISSING or (duration == MISSING and kind != COUNTERS):
        return -IRREGULAR
    if duration != MISSING and (duration < 0 or (start == 0 and duration == 0) or start + duration >= TIME_LIMIT):
        return -IRREGULAR
    number = _title(a, s, h[NAMED])
    if number < 0:
        return number
    row = s.rows[kind]
    values = s.values[kind]
    for slot in range(s.widths[kind]):
        values[slot, row] = MISSING
    values[START, row], values[LENGTH, row], values[TITLE, row] = start, duration, number
    values[CATEGORY, row] = h[OF]
    state = _arguments(a, count, s, kind, row, number)
    if state < 0:
        return state
    s.rows[kind] = row + 1
    return kind


@inlined
def _head(a: Any, count: int, s: Scan) -> Any:
    """Read what every event has into `Scan.head`; return a state below zero, or zero."""
    t, h = s.tokens, s.head
    h[OF], h[PHASE], h[NAMED], h[AT], h[FOR], h[ARGUMENTS] = 0, _COMPLETE, -1, MISSING, MISSING, 0
    seen = 0
    for i in range(count):
        key, tag = t[i, 0], t[i, 1]
        if key >= 999:
            h[ARGUMENTS] += 1
            continue
        if key < PH or key > ARGS:
            continue
        if seen & (1 << key):
            return -IRREGULAR
        seen |= 1 << key
        if key == PH:
            if tag != TEXT or t[i, 4] - t[i, 3] != 3:
                return -IRREGULAR
            h[PHASE] = at(a, t[i, 3] + 1)
        elif key == CAT:
            h[OF] = find(s.categories, a, t[i, 3] + 1, t[i, 4] - t[i, 3] - 2) if tag == TEXT else -1
            if h[OF] < 0:
                return -IRREGULAR
        elif key == NAME:
            h[NAMED] = i
        elif key in (TS, DUR):
            if tag != WHOLE:
                return -IRREGULAR
            h[AT if key == TS else FOR] = t[i, 2]
        elif key == ARGS and at(a, t[i, 3]) != OPEN_OBJECT:
            return -IRREGULAR
    return 0


@inlined
def _kind(s: Scan) -> Any:
    """Return the kind of the event in `Scan.head`, or a state below zero; letters are those of Chrome's phases."""
    ph = s.head[PHASE]
    kind = s.kinds[s.head[OF]]
    if kind < 0:
        return -NEW_CATEGORY
    instant = ph in (_i, _I, _R, _n)
    if ph == _C or (instant and s.head[ARGUMENTS] > 0):
        return np.int64(COUNTERS)
    if instant or kind == MARKER or ph == _E:
        return np.int64(MARKER)
    if ph in (_s, _t, _f, _M, _N, _D, _O):
        return np.int64(FLOW)
    return kind if ph == _COMPLETE else np.int64(-IRREGULAR)


@inlined
def _title(a: Any, s: Scan, token: int) -> Any:
    """Return the number of the event's name, or a state below zero; remember which name it followed."""
    t = s.tokens
    tag = t[token, 1]
    number = t[token, 2]
    if tag != KNOWN:
        if tag not in (TEXT, ESCAPED):
            return np.int64(-IRREGULAR)
        number = find(s.strings, a, t[token, 3] + 1, t[token, 4] - t[token, 3] - 2)
        if number < 0:
            return np.int64(-GROW)
        s.recent[s.counts[LAST]] = number
    s.counts[LAST] = number
    return number


@inlined
def _arguments(a: Any, count: int, s: Scan, kind: int, row: int, title: int) -> Any:
    """Write the place and the arguments of an event into its row; return a state below zero, or zero."""
    t = s.tokens
    values = s.values[kind]
    out, o = s.scratch, 0
    for i in range(count):
        key, tag = t[i, 0], t[i, 1]
        rest = key >= 999
        if key in (PID, TID):
            if s.hosts[kind]:
                value, state = _integer(a, t[i, 3], t[i, 4], tag, t[i, 2])
                if state < 0:
                    return -IRREGULAR
                if state > 0:
                    values[PROCESS if key == PID else THREAD, row] = value
        elif key >= 1000:
            how, slot = s.types[kind, key - 1000], s.slots[kind, key - 1000]
            if how != REST:
                if values[slot, row] != MISSING:
                    return -IRREGULAR
                state = _typed(a, s, i, how, slot, values, row)
                if state < 0:
                    return state
                rest = state == 0
        if rest:
            o = _add_rest(a, s, i, o)
            if o < 0:
                return -IRREGULAR
    if o == 0:
        return 0
    out[o] = CLOSE_OBJECT
    number = s.recent_rest[title]
    if number >= 0:
        offset = s.strings.offsets[number]
        n = s.strings.offsets[number + 1] - offset
        if n == o + 1 and equal(out, 0, s.strings.arena, offset, n):
            values[OTHER, row] = number
            return 0
    number = find(s.strings, out, 0, o + 1)
    if number < 0:
        return -GROW
    s.recent_rest[title] = number
    values[OTHER, row] = number
    return 0


@inlined
def _integer(a: Any, start: int, end: int, tag: int, value: int) -> Any:
    """Return an integer, and 1 where the token is one, 0 where it is none, -1 where that takes a closer look."""
    if tag == WHOLE:
        return value, 1
    if tag == TEXT:
        c = at(a, start + 1)
        if 65 <= c <= 90 or 97 <= c <= 122:
            return 0, 0
        value, good = digits_of(a, start + 1, end - 1)
        return value, 1 if good else -1
    if tag in (REAL, LONG, ESCAPED):
        return 0, -1
    return 0, 0


@inlined
def _typed(a: Any, s: Scan, token: int, how: int, slot: int, values: Any, row: int) -> Any:
    """Write one argument into its column: return 1, or 0 where it belongs to the rest too, or a state below zero."""
    t = s.tokens
    start, end, tag = t[token, 3], t[token, 4], t[token, 1]
    if how in (INTEGER, NARROW, RANKED):
        value, state = _integer(a, start, end, tag, t[token, 2])
        if state <= 0:
            return -IRREGULAR if state < 0 else 0
        if how != INTEGER and not -(1 << 31) <= value < (1 << 31):
            return -IRREGULAR
        if how == RANKED and value < 0:
            return -IRREGULAR
        values[slot, row] = value
        return 0 if how == RANKED else 1
    if how == FLOAT:
        if tag != WHOLE and tag != REAL:
            return 0 if tag in (NULL, BOOLEAN, NESTED) else -IRREGULAR
        _p, value, decimals, digits = read_number(a, start)
        if digits > 15:  # beyond that a quotient of two floats need not be the nearest one
            return -IRREGULAR
        s.real[0] = np.float64(value) / np.float64(POWERS[decimals])
        values[slot, row] = s.real.view(np.int64)[0]
        return 1
    if how == JSON:
        half = s.scratch.size // 2
        if tag == NULL or end - start + 8 > half:
            return -IRREGULAR
        o = compact(a, start, end, s.scratch, half)
        if o < 0:
            return -IRREGULAR
        number = find(s.strings, s.scratch, half, o - half)
        values[slot, row] = number
        return 1 if number >= 0 else -GROW
    if how == WORD:
        if tag in (TEXT, ESCAPED):
            number = find(s.strings, a, start + 1, end - start - 2)
            if number < 0:
                return -GROW
            values[slot, row] = number
        return 0
    if not extents(a, start, end, s.extents):
        return -IRREGULAR
    for i in range(3):
        values[slot + i, row] = s.extents[i]
    return 0


@inlined
def _add_rest(a: Any, s: Scan, token: int, o: int) -> Any:
    """Append one member to the JSON object in the scratch; return its new length, -1 where it cannot be."""
    t = s.tokens
    out = s.scratch
    first, last = t[token, 5] - 1, t[token, 6] + 1
    if o + (t[token, 4] - first) + 8 > out.size // 2:
        return -1
    out[o] = COMMA if o else OPEN_OBJECT
    o += 1
    for i in range(first, last):
        if at(a, i) < 32:
            return -1
        out[o] = at(a, i)
        o += 1
    out[o] = COLON
    o += 1
    if t[token, 1] == NESTED:
        return compact(a, t[token, 3], t[token, 4], out, o)
    for i in range(t[token, 3], t[token, 4]):
        if at(a, i) < 32:
            return -1
        out[o] = at(a, i)
        o += 1
    return o


@bare
def scan(a: Any, p: int, end: int, s: Scan) -> Any:
    """Read events from `p` on; return the place behind the last one that was read, and why it ended there.

    Parameters
    ----------
    a : array of uint8
        With `PADDING` quotation marks from `end` on.
    p, end : int
    s : Scan
        Filled.
    """
    capacity = s.values.shape[2]
    while True:
        p = space_end(a, p)
        while at(a, p) == COMMA:
            p = space_end(a, p + 1)
        if p >= end:
            return p, MORE
        if at(a, p) == CLOSE_ARRAY:
            return p + 1, END
        if at(a, p) != OPEN_OBJECT:
            return p, IRREGULAR
        q, count, state = tokenise(a, p, end, s)
        if state != FULL:
            return p, state
        kind = _emit(a, count, s)
        if kind < 0:
            return p, -kind
        p = q
        if kind >= MARKER:
            s.counts[kind - MARKER] += 1
        else:
            s.counts[KEPT] += 1
            if s.rows[kind] == capacity:
                return p, FULL
