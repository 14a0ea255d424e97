"""The byte scanner: turns well-formed events of a Kineto file into columns, without a Python object for an event.

`scan` walks the text of the array of events. `_tokenise` writes one row of `Scan.tokens` for each member of an event
and of its ``args``, and `_emit` turns the tokens into one row of flat arrays. The scanner is strict: an event that
is not plain JSON of the expected types (a bad escape, NaN, a number that does not fit, a repeated key) is not read.
Its position is reported instead, and the caller gives it to the standard library
(`profilers.readers.common.json_documents`). So an unusual event costs time and never changes the result.

All loads stay inside the buffer, because `PADDING` bytes of quotation marks follow its content. Every loop over bytes
ends there at the latest, and a token that reaches the end is incomplete.

Names in the compiled functions: ``a`` is the buffer, ``p`` a position in it, ``s`` the `Scan`, ``t`` its tokens, ``h``
its head, and ``o`` a position in the scratch. A negative result is a reason of `scan` with its sign changed.
"""

from typing import Any

import numpy as np

from profilers.readers.kineto import lexing
from profilers.readers.kineto.lexing import MISSING, TIME_LIMIT, at, find, space_end
from profilers.readers.kineto.tokens import (
    ARGS,
    ARGUMENT_KEYS,
    BOOLEAN,
    BY_LANE,
    CAT,
    CATEGORY,
    COUNTERS,
    DUR,
    DURATION,
    END,
    ESCAPED,
    EVENT_LANE,
    EVENT_NAME,
    FLOAT,
    FLOW,
    FULL,
    GROW,
    HEAD_ARGUMENTS,
    HEAD_CATEGORY,
    HEAD_DURATION,
    HEAD_LANE,
    HEAD_NAME,
    HEAD_PHASE,
    HEAD_PID,
    HEAD_START,
    HEAD_TID,
    IDENTITY,
    INTEGER,
    IRREGULAR,
    JSON,
    KEPT,
    KEY,
    KEY_END,
    KEY_START,
    KNOWN,
    LAST,
    LONG,
    MARKER,
    MORE,
    NAME,
    NAN,
    NARROW,
    NESTED,
    NEW_CATEGORY,
    NEW_ID,
    NEW_LANE,
    NULL,
    OTHER_ARGS,
    PH,
    PID,
    PROCESS,
    RANK,
    RANKED,
    REAL,
    REST,
    SPARE,
    START,
    TAG,
    TEXT,
    THREAD,
    TID,
    TOO_MANY,
    TS,
    UNTIMED,
    VALUE,
    VALUE_END,
    VALUE_START,
    WHOLE,
    WORD,
    Scan,
    digits_of,
    has_exponent,
    tokenise,
    wide_integer,
)
from profilers.trace.compiled import bare, inlined

_COMPLETE = ord("X")
# The other phases of Chrome's trace format.
_i, _I, _R, _n, _C, _s, _t, _f, _M, _N, _D, _O = map(ord, "iIRnCstfMNDO")
#: Most bytes of the category, process, thread and name of a lane.
_LANE_BYTES = 4096
#: Most characters of a float that is kept as text.
_LONG_FLOAT = 60


@inlined
def _emit(a: Any, count: int, s: Scan) -> Any:
    """Write the tokens of an event as a row; return its kind, or a negative reason."""
    state = _head(a, count, s)
    if state < 0:
        return state
    h = s.head
    kind = _kind(s)
    if kind == BY_LANE:
        kind = _lane_kind(a, s)
    if kind < 0 or kind >= MARKER:
        return kind
    start, duration = h[HEAD_START], h[HEAD_DURATION]
    if h[HEAD_NAME] < 0 or start == MISSING:
        return -IRREGULAR
    if duration != MISSING and (duration < 0 or (start == 0 and duration == 0) or start + duration >= TIME_LIMIT):
        return -IRREGULAR
    number = _event_name(a, s, h[HEAD_NAME])
    if number < 0:
        return number
    row = s.rows[kind]
    values = s.values[kind]
    for slot in range(s.widths[kind]):
        values[slot, row] = MISSING
    values[START, row], values[DURATION, row], values[EVENT_NAME, row] = start, duration, number
    values[CATEGORY, row], values[EVENT_LANE, row] = h[HEAD_CATEGORY], h[HEAD_LANE]
    state = _arguments(a, count, s, kind, row, number)
    if state < 0:
        return state
    s.rows[kind] = row + 1
    s.nans[1] += s.nans[0]
    if duration == MISSING and kind != COUNTERS:
        s.counts[UNTIMED] += 1
    return kind


@inlined
def _head(a: Any, count: int, s: Scan) -> Any:
    """Read the fields that every event has into `Scan.head`; return 0, or a negative reason."""
    t, h = s.tokens, s.head
    h[HEAD_CATEGORY], h[HEAD_PHASE], h[HEAD_NAME] = 0, _COMPLETE, -1
    h[HEAD_START], h[HEAD_DURATION], h[HEAD_ARGUMENTS] = MISSING, MISSING, 0
    h[HEAD_PID], h[HEAD_TID], h[HEAD_LANE] = -1, -1, MISSING
    s.nans[0] = 0
    seen = 0
    for i in range(count):
        key, tag = t[i, KEY], t[i, TAG]
        if key >= TOO_MANY:
            h[HEAD_ARGUMENTS] += 1
            continue
        if key < PH or key > ARGS:
            continue
        if seen & (1 << key):
            return -IRREGULAR
        seen |= 1 << key
        if key == PH:
            if tag != TEXT or t[i, VALUE_END] - t[i, VALUE_START] != 3:
                return -IRREGULAR
            h[HEAD_PHASE] = at(a, t[i, VALUE_START] + 1)
        elif key == CAT:
            start, size = t[i, VALUE_START] + 1, t[i, VALUE_END] - t[i, VALUE_START] - 2
            h[HEAD_CATEGORY] = find(s.categories, a, start, size) if tag == TEXT else -1
            if h[HEAD_CATEGORY] < 0:
                return -IRREGULAR
        elif key == NAME:
            h[HEAD_NAME] = i
        elif key in (PID, TID):
            h[HEAD_PID if key == PID else HEAD_TID] = i
        elif key in (TS, DUR):
            if tag != WHOLE and (tag != NULL or key == TS):
                return -IRREGULAR
            h[HEAD_START if key == TS else HEAD_DURATION] = t[i, VALUE] if tag == WHOLE else MISSING
    return 0


@inlined
def _kind(s: Scan) -> Any:
    """Return the kind of the event in `Scan.head`, or a negative reason; its letters are phases of Chrome's format."""
    ph = s.head[HEAD_PHASE]
    kind = s.kinds[s.head[HEAD_CATEGORY]]
    if kind < 0:
        return -NEW_CATEGORY
    instant = ph in (_i, _I, _R, _n)
    if ph == _C or (instant and s.head[HEAD_ARGUMENTS] > 0):
        return np.int64(COUNTERS)
    if instant or kind == MARKER:
        return np.int64(MARKER)
    if ph in (_s, _t, _f, _M, _N, _D, _O):
        return np.int64(FLOW)
    return kind if ph == _COMPLETE else np.int64(-IRREGULAR)


@inlined
def _lane_kind(a: Any, s: Scan) -> Any:
    """Return the kind of an event by its lane, or a negative reason."""
    t, h, out = s.tokens, s.head, s.scratch
    out[0], out[1] = h[HEAD_CATEGORY] & 255, h[HEAD_CATEGORY] >> 8
    o = 2
    for token in (h[HEAD_PID], h[HEAD_TID], h[HEAD_NAME]):
        out[o] = 0
        o += 1
        if token < 0:
            continue
        start, end = t[token, VALUE_START], t[token, VALUE_END]
        if end - start > _LANE_BYTES:
            return np.int64(-IRREGULAR)
        o = lexing.copy(a, start, end, out, o)
        if o < 0:
            return np.int64(-IRREGULAR)
    lane = find(s.lanes, out, 0, o)
    if lane < 0:
        return np.int64(-IRREGULAR)
    h[HEAD_LANE] = lane
    return s.lane_kinds[lane] if s.lane_kinds[lane] >= 0 else np.int64(-NEW_LANE)


@inlined
def _event_name(a: Any, s: Scan, token: int) -> Any:
    """Return the number of the event's name, or a negative reason; remember that it follows the last event's name."""
    t = s.tokens
    tag = t[token, TAG]
    number = t[token, VALUE]
    if tag != KNOWN:
        if tag not in (TEXT, ESCAPED):
            return np.int64(-IRREGULAR)
        number = find(s.strings, a, t[token, VALUE_START] + 1, t[token, VALUE_END] - t[token, VALUE_START] - 2)
        if number < 0:
            return np.int64(-GROW)
        s.recent[s.counts[LAST]] = number
    s.counts[LAST] = number
    return number


@inlined
def _arguments(a: Any, count: int, s: Scan, kind: int, row: int, name: int) -> Any:
    """Write process, thread and arguments of an event into its row; return 0, or a negative reason."""
    t = s.tokens
    values = s.values[kind]
    out, o = s.scratch, 0
    rank = np.int64(MISSING)
    for i in range(count):
        key = t[i, KEY]
        rest = key >= TOO_MANY
        if key in (PID, TID):
            number, state = _identity(a, s, i)
            if state < -1:
                return state + 1
            values[PROCESS if key == PID else THREAD, row] = number
            if key == PID and state >= 0:
                rank = state
        elif key >= ARGUMENT_KEYS:
            storage, slot = s.types[kind, key - ARGUMENT_KEYS], s.slots[kind, key - ARGUMENT_KEYS]
            if storage != REST:
                if values[slot, row] != MISSING:
                    return -IRREGULAR
                state = _typed(a, s, i, storage, slot, values, row)
                if state < 0:
                    return state
                rest = state == 0
        if rest:
            o = _add_rest(a, s, i, o)
            if o < 0:
                return -IRREGULAR
    if values[RANK, row] == MISSING:
        values[RANK, row] = rank
    if o == 0:
        return 0
    out[o] = lexing.CLOSE_OBJECT
    number = s.recent_rest[name]
    if number < 0 or not lexing.holds(s.strings, number, out, 0, o + 1):
        number = find(s.strings, out, 0, o + 1)
        if number < 0:
            return -GROW
        s.recent_rest[name] = number
    values[OTHER_ARGS, row] = number
    return 0


@inlined
def _identity(a: Any, s: Scan, token: int) -> Any:
    """Return the number of a process or thread, `MISSING` for none, and its rank.

    The rank is -1 if there is none. Below it is a negative reason, less one.
    """
    t = s.tokens
    tag, start, end = t[token, TAG], t[token, VALUE_START], t[token, VALUE_END]
    if tag == WHOLE:
        return t[token, VALUE], np.int64(-1)
    if tag == LONG:
        value, fits = wide_integer(a, start, end)
        return value if fits > 0 else np.int64(MISSING), np.int64(-IRREGULAR - 1 if fits < 0 else -1)
    if tag == TEXT:
        value, is_integer = digits_of(a, start + 1, end - 1)
        if is_integer:
            return value, np.int64(-1)
    if tag in (TEXT, ESCAPED):
        side = 0 if t[token, KEY] == PID else 1
        number = find(s.ids, a, start, end - start)
        if number < 0:
            return np.int64(MISSING), np.int64(-IRREGULAR - 1)
        state = s.id_states[side, number]
        return s.id_numbers[side, number], state if state > -2 else np.int64(-NEW_ID - 1)
    if tag == REAL:
        value, state = _rounded(a, start)
        return value if state > 0 else np.int64(MISSING), np.int64(-IRREGULAR - 1 if state < 0 else -1)
    return np.int64(MISSING), np.int64(-1)


@inlined
def _integer(a: Any, start: int, end: int, tag: int, value: int) -> Any:
    """Return an integer, and 1 if the token is one, 0 if it is none, -1 if the standard library has to decide."""
    if tag == WHOLE:
        return value, 1
    if tag == TEXT:
        c = at(a, start + 1)
        if 65 <= c <= 90 or 97 <= c <= 122:
            return 0, 0
        value, is_integer = digits_of(a, start + 1, end - 1)
        return value, 1 if is_integer else -1
    if tag == LONG:
        value, fits = wide_integer(a, start, end)
        return value, 1 if fits == 1 else min(fits, 0)
    if tag == REAL:
        return _rounded(a, start)
    return 0, -1 if tag == ESCAPED else 0


@inlined
def _rounded(a: Any, start: int) -> Any:
    """Return the integer that a number with decimals is, as `_integer`."""
    _p, value, decimals, size = lexing.read_number(a, start)
    power = lexing.POWERS[decimals] if size <= 18 else np.int64(1)
    if size > 18:
        return np.int64(0), -1
    return value // power, 1 if value % power == 0 else 0


@inlined
def _typed(a: Any, s: Scan, token: int, storage: int, slot: int, values: Any, row: int) -> Any:
    """Write an argument into its column; return 1, 0 if it belongs to the other arguments too, or a negative reason."""
    t = s.tokens
    start, end, tag = t[token, VALUE_START], t[token, VALUE_END], t[token, TAG]
    if storage in (INTEGER, NARROW, RANKED):
        value, state = _integer(a, start, end, tag, t[token, VALUE])
        if state <= 0:
            return -IRREGULAR if state < 0 else 0
        lowest = 0 if storage == RANKED else -(1 << 31)
        if storage != INTEGER and not lowest <= value < (1 << 31):
            return -IRREGULAR
        values[slot, row] = value
        return 0 if storage == RANKED else 1
    if storage == IDENTITY:
        value, state = _identity(a, s, token)
        if state < -1:
            return state + 1
        values[slot, row] = value
        return 0 if value == MISSING else 1
    if storage == FLOAT:
        if tag not in (WHOLE, REAL, LONG):
            return 0 if tag in (NULL, BOOLEAN, NESTED, NAN) else -IRREGULAR
        if values[slot + 1, row] != MISSING:
            return -IRREGULAR
        _p, value, decimals, size = lexing.read_number(a, start)
        if size > 15:  # with more, the quotient of two floats need not be the nearest float: the caller decides
            if end - start > _LONG_FLOAT or has_exponent(a, start, end):
                return -IRREGULAR
            number = find(s.strings, a, start, end - start)
            values[slot + 1, row] = number
            return 1 if number >= 0 else -GROW
        values[slot, row] = np.float64(value / np.float64(lexing.POWERS[decimals])).view(np.int64)
        return 1
    if storage == JSON:
        half = s.scratch.size // 2
        if tag in (NULL, NAN) or 2 * (end - start) + 8 > half:
            return -IRREGULAR
        o = lexing.compact(a, start, end, s.scratch, half, s.nans)
        if o < 0:
            return -IRREGULAR
        number = find(s.strings, s.scratch, half, o - half)
        values[slot, row] = number
        return 1 if number >= 0 else -GROW
    if storage == WORD:
        if tag in (TEXT, ESCAPED):
            number = find(s.strings, a, start + 1, end - start - 2)
            if number < 0:
                return -GROW
            values[slot, row] = number
        return 0
    return 0 if lexing.extents(a, start, end, values, slot, row) else -IRREGULAR


@inlined
def _add_rest(a: Any, s: Scan, token: int, o: int) -> Any:
    """Append a member to the JSON object in the scratch; return its new length, -1 if it is too long or not plain."""
    t = s.tokens
    out = s.scratch
    first, last = t[token, KEY_START] - 1, t[token, KEY_END] + 1
    if o + 2 * (t[token, VALUE_END] - first) + 8 > out.size // 2:
        return -1
    out[o] = lexing.COMMA if o else lexing.OPEN_OBJECT
    o = lexing.copy(a, first, last, out, o + 1)
    if o < 0:
        return -1
    out[o] = lexing.COLON
    start, end = t[token, VALUE_START], t[token, VALUE_END]
    if t[token, TAG] == NESTED:
        return lexing.compact(a, start, end, out, o + 1, s.nans)
    if t[token, TAG] == NAN:
        s.nans[0] += 1
        return lexing.null(out, o + 1)
    return lexing.copy(a, start, end, out, o + 1)


@bare
def scan(a: Any, p: int, end: int, s: Scan) -> Any:
    """Read events from `p` on; return the position behind the last event read, and the reason for ending there.

    Parameters
    ----------
    a : array of uint8
        Buffer of text, with `PADDING` quotation marks from `end` on.
    p, end : int
        Position of the first event, and end of the content.
    s : Scan
        Arrays that are filled.
    """
    capacity = s.values.shape[2] - SPARE
    while True:
        p = space_end(a, p)
        while at(a, p) == lexing.COMMA:
            p = space_end(a, p + 1)
        if p >= end:
            return p, MORE
        if at(a, p) == lexing.CLOSE_ARRAY:
            return p + 1, END
        if at(a, p) != lexing.OPEN_OBJECT:
            return p, IRREGULAR
        q, count = tokenise(a, p, end, s)
        if count < 0:
            return p, MORE if q >= end else IRREGULAR
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
