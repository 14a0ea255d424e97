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

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from profilers.readers.kineto import lexing
from profilers.readers.kineto.lexing import MISSING, TIME_LIMIT, Strings, at, equal, find, space_end, text_end
from profilers.trace.compiled import bare, inlined

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
_KEY_LIMIT, _LONG_FLOAT = 200, 60
#: Most members of an event.
TOKENS = 256
#: Stands for the key before the first key of an object.
_FIRST = 0
# Entries of `Scan.head`: category, phase, token of the name, start, duration, number of arguments, tokens of the
# process and the thread, and lane.
HEAD_CATEGORY, HEAD_PHASE, HEAD_NAME, HEAD_START, HEAD_DURATION, HEAD_ARGUMENTS = range(6)
HEAD_PID, HEAD_TID, HEAD_LANE = range(6, 9)
_COMPLETE = ord("X")
# The other phases of Chrome's trace format.
_i, _I, _R, _n, _C, _s, _t, _f, _M, _N, _D, _O = map(ord, "iIRnCstfMNDO")
#: Most bytes of the category, process, thread and name of a lane.
_LANE_BYTES = 4096


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
    top: Strings
    keys: Strings
    categories: Strings
    ids: Strings
    lanes: Strings
    strings: Strings


@inlined
def _tokenise(a: Any, p: int, end: int, s: Scan) -> Any:
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
            return q + 1 if _time(a, p + 1, s, token) == q else -1
        return -1 if escaped and not lexing.plain_escapes(a, p + 1, q) else q + 1
    if (c == lexing.MINUS and at(a, p + 1) != 73) or 48 <= c <= 57:
        if t[token, KEY] == TS or t[token, KEY] == DUR:
            return _time(a, p, s, token)
        p, value, decimals, digits = lexing.read_number(a, p)
        if p < end and (digits < 0 or digits > 18):
            t[token, TAG] = LONG
            return p if digits > 0 else -1
        t[token, TAG] = WHOLE if decimals == 0 else REAL
        t[token, VALUE] = value
        return p
    if c in (lexing.OPEN_OBJECT, lexing.OPEN_ARRAY):
        t[token, TAG] = NESTED
        return lexing.nested_end(a, p, end)
    t[token, TAG] = NULL if c == 110 else (BOOLEAN if c == 116 or c == 102 else NAN)
    return lexing.scalar_end(a, p, end)


@inlined
def _time(a: Any, p: int, s: Scan, token: int) -> Any:
    """Read the time at `p` into a token; return its end, -1 if it is not plain."""
    t = s.tokens
    p, value = lexing.read_time(a, p)
    t[token, TAG], t[token, VALUE] = WHOLE, value
    return -1 if value == MISSING else p


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
        value, fits = lexing.wide_integer(a, start, end)
        return value if fits > 0 else np.int64(MISSING), np.int64(-IRREGULAR - 1 if fits < 0 else -1)
    if tag == TEXT:
        value, is_integer = lexing.digits_of(a, start + 1, end - 1)
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
        value, is_integer = lexing.digits_of(a, start + 1, end - 1)
        return value, 1 if is_integer else -1
    if tag == LONG:
        value, fits = lexing.wide_integer(a, start, end)
        return value, 1 if fits == 1 else min(fits, 0)
    if tag == REAL:
        return _rounded(a, start)
    return 0, -1 if tag == ESCAPED else 0


@inlined
def _rounded(a: Any, start: int) -> Any:
    """Return the integer that a number with decimals is, as `_integer`."""
    _p, value, decimals, digits = lexing.read_number(a, start)
    power = lexing.POWERS[decimals] if digits <= 18 else np.int64(1)
    if digits > 18:
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
        _p, value, decimals, digits = lexing.read_number(a, start)
        if digits > 15:  # with more, the quotient of two floats need not be the nearest float: the caller decides
            if end - start > _LONG_FLOAT or lexing.has_exponent(a, start, end):
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
    capacity = s.values.shape[2]
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
        q, count = _tokenise(a, p, end, s)
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
