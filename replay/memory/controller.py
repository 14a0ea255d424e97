"""The compiled DRAM controller: queues, banks and command timing of every channel.

A channel works like the controller of DRAMsim3 (Li et al., IEEE Computer Architecture Letters 2020): requests wait in a
read queue or a write buffer, one a cycle moves to the command queue of its bank, and banks take turns to issue. Reads
go first; writes drain in batches. A row hit may pass older requests of its bank, up to four hits after a row opened.

Time jumps from event to event. A channel is visited only in cycles in which it can issue a command, move a request or
refresh; the result equals that of a simulation of every cycle.
"""

from typing import Any, NamedTuple

import numpy as np

from profilers.trace.compiled import bare, inlined

#: Later than any cycle.
NEVER = 1 << 60
#: Row hits after which an open row may be closed although requests for it wait.
_HIT_LIMIT = 4
#: Writes that wait in a channel before idle banks start to drain them.
_DRAIN_FROM = 8

#: Elements of `Machine.rule`: timing in cycles, and sizes.
(
    CL, CWL, BURST, RCD, RP, RAS, RC, RRD_S, RRD_L, FAW, READ_S, READ_L, WRITE_S, WRITE_L,
    READ_WRITE, WRITE_READ_S, WRITE_READ_L, WRITE_PRECHARGE, READ_PRECHARGE, RFC, REFI,
    CHANNELS, BANKS, GROUP_BANKS, QUEUE, COMMANDS, DUAL, CLOSED_PAGE, WINDOW, ENTERING, ACCESS_BITS, BANK_BITS,
) = RULES = range(32)  # fmt: skip
#: Columns of `Machine.channel`. FULL are bits of banks whose queue is full.
(
    COMMAND_AT, TURN, DRAINING, QUEUED, FULL, OLDEST_ACTIVATE, REFRESH_AT, REFRESHES_DUE,
    READS, WRITES, MERGED, READ_HITS, WRITE_HITS, ACTIVATES, PRECHARGES, REFRESHES, LATENCY, READ_COMMANDS,
    WRITE_COMMANDS, PENDING, PENDING_FROM, PENDING_TO, PENDING_CYCLES, BUSY_BANKS, BUSY_AT, BUSY_AREA, BUSY_CYCLES,
    DATA_END, ACTIVATED,
) = range(29)  # fmt: skip
CHANNEL_COLUMNS = ACTIVATED + 4
#: Columns of `Machine.queue`, two rows a channel: reads, then writes. WANTED are bits of the banks of its requests.
LENGTH, WANTED, ARRIVED_HEAD, ARRIVED_TAIL, LISTED = range(5)
#: Columns of `Machine.bank`. READ_HIT and WRITE_HIT are positions in its queue: the oldest requests of the open row.
#: HEAD and TAIL are the list of its requests in the read queue of the channel; those of the write buffer follow. From
#: KEYS on stands the queue of the bank: twice the row of each request, plus 1 for a write; then the slots.
(
    ROW, HITS, COUNT, ACTIVATE_AT, COLUMN_AT, PRECHARGE_AT, READ_HIT, WRITE_HIT, GROUP, BIT,
    HEAD, TAIL, WRITE_HEAD, WRITE_TAIL, KEYS,
) = range(15)  # fmt: skip
#: Rows of a channel in `Machine.can`, by bank: earliest cycle of a command that a bank has to issue, by the bank alone;
#: and in `Machine.may`: earliest cycle of such a command by the other banks. A precharge needs nothing of them.
ACTIVATE, READ, WRITE, PRECHARGE = range(4)
#: Columns of `Machine.slot`, a request from its arrival to its command. WHERE is twice its bank, plus 1 for a write.
FOLLOWING, SLOT_ROW, WHERE, ADDED, COPIES, ADDRESS, SEQUENCE, CHAIN = range(8)
SLOT_COLUMNS = 8
#: Elements of `Machine.now`.
CYCLE, TAKEN, INSIDE, FREE, N_LISTED, ENTERED, SPAN_BITS = range(7)
#: Windows of time of the series.
WINDOWS = 256
#: A de Bruijn sequence, and the position of each of its 64 windows: they turn a single bit into its number.
_SEQUENCE = np.uint64(0x03F79D71B4CB0A89)
_POSITIONS = np.zeros(64, dtype=np.int64)
for _bit in range(64):
    _POSITIONS[((0x03F79D71B4CB0A89 << _bit) & 0xFFFFFFFFFFFFFFFF) >> 58] = _bit


class Machine(NamedTuple):
    """All arrays of a simulation."""

    rule: Any
    now: Any
    channel: Any
    next: Any  #: by channel: next cycle in which it can do something
    queue: Any
    bank: Any
    can: Any
    may: Any
    slot: Any
    bucket: Any  #: by hash of an address: first slot of a chain
    done: Any  #: by cycle, modulo its length: requests that leave the window
    listed: Any  #: queues with room for a request that waits before them
    series: Any  #: by window of time and channel: commands, row hits


@inlined
def _bucket(m, address):  # type: ignore[no-untyped-def]
    """Return the chain of an address."""
    return ((address >> m.rule[ACCESS_BITS]) * 0x9E3779B1 >> 7) & (len(m.bucket) - 1)


@inlined
def _find(m, address, is_write):  # type: ignore[no-untyped-def]
    """Return the slot of a request to this address that has no command yet; -1 for none."""
    s = m.bucket[_bucket(m, address)]
    while s >= 0 and (m.slot[s, ADDRESS] != address or m.slot[s, WHERE] & 1 != is_write):
        s = m.slot[s, CHAIN]
    return s


@inlined
def _release(m, s):  # type: ignore[no-untyped-def]
    """Give a slot back."""
    m.slot[s, FOLLOWING] = m.now[FREE]
    m.now[FREE] = s


@inlined
def _unchain(m, s):  # type: ignore[no-untyped-def]
    """Take a slot out of the chain of its address."""
    chain = _bucket(m, m.slot[s, ADDRESS])
    at = m.bucket[chain]
    if at == s:
        m.bucket[chain] = m.slot[s, CHAIN]
        return
    while m.slot[at, CHAIN] != s:
        at = m.slot[at, CHAIN]
    m.slot[at, CHAIN] = m.slot[s, CHAIN]


@inlined
def _set_ready(m, c, b):  # type: ignore[no-untyped-def]
    """Set the candidates of a bank.

    Its oldest request may close the open row if no hit waits, or enough hits were served.
    """
    activate = precharge = read = write = NEVER
    if m.bank[b, COUNT] > 0:
        if m.bank[b, ROW] < 0:
            activate = m.bank[b, ACTIVATE_AT]
        else:
            if m.bank[b, READ_HIT] >= 0:
                read = m.bank[b, COLUMN_AT]
            if m.bank[b, WRITE_HIT] >= 0:
                write = m.bank[b, COLUMN_AT]
            enough = m.bank[b, HITS] >= _HIT_LIMIT or (read == NEVER and write == NEVER)
            if enough and m.bank[b, KEYS] >> 1 != m.bank[b, ROW]:
                precharge = m.bank[b, PRECHARGE_AT]
    i = b - c * m.rule[BANKS]
    m.can[c, ACTIVATE, i], m.can[c, PRECHARGE, i] = activate, precharge
    m.can[c, READ, i], m.can[c, WRITE, i] = read, write


@inlined
def _update_bank(m, c, b):  # type: ignore[no-untyped-def]
    """Find the candidates of a bank anew, after a command."""
    read, write = -1, -1
    if m.bank[b, ROW] >= 0:
        key = 2 * m.bank[b, ROW]
        for i in range(m.bank[b, COUNT] - 1, -1, -1):
            queued = m.bank[b, KEYS + i]
            if queued == key:
                read = i
            elif queued == key + 1:
                write = i
    m.bank[b, READ_HIT], m.bank[b, WRITE_HIT] = read, write
    _set_ready(m, c, b)


@inlined
def _ready_at(m, c, i, window):  # type: ignore[no-untyped-def]
    """Return the earliest cycle of the next command of bank `i` of a channel; `window` is that of its next activate."""
    activate = max(max(m.can[c, ACTIVATE, i], m.may[c, ACTIVATE, i]), window)
    read, write = max(m.can[c, READ, i], m.may[c, READ, i]), max(m.can[c, WRITE, i], m.may[c, WRITE, i])
    return min(min(activate, m.can[c, PRECHARGE, i]), min(read, write))


@inlined
def _number(bit):  # type: ignore[no-untyped-def]
    """Return the number of a single bit."""
    return _POSITIONS[(np.uint64(bit) * _SEQUENCE) >> np.uint64(58)]


@inlined
def _pick(m, c, t):  # type: ignore[no-untyped-def]
    """Return the next bank in turn with a command at cycle `t`, or -1; without one, set when the next can issue."""
    window = m.channel[c, ACTIVATED + m.channel[c, OLDEST_ACTIVATE]]
    bits, soonest = np.int64(0), NEVER
    for i in range(m.rule[BANKS]):
        at = _ready_at(m, c, i, window)
        soonest = min(soonest, at)
        bits |= np.int64(at <= t) << i
    if bits == 0:
        m.channel[c, COMMAND_AT] = soonest
        return -1
    turn = m.channel[c, TURN] + 1
    later = bits >> turn << turn
    if later == 0:
        later = bits
    i = _number(later & -later)
    m.channel[c, TURN] = i
    return c * m.rule[BANKS] + i


@inlined
def _delay(m, c, kind, at):  # type: ignore[no-untyped-def]
    """Let no bank of a channel issue a command of this kind before a cycle."""
    for i in range(m.rule[BANKS]):
        m.may[c, kind, i] = max(m.may[c, kind, i], at)


@inlined
def _delay_group(m, c, g, kind, at):  # type: ignore[no-untyped-def]
    """Let no bank of a group, from bank `g` on, issue a command of this kind before a cycle."""
    for i in range(g, g + m.rule[GROUP_BANKS]):
        m.may[c, kind, i] = max(m.may[c, kind, i], at)


@inlined
def _column_position(m, b, t):  # type: ignore[no-untyped-def]
    """Return the position of the request whose data a bank moves at cycle `t`; -1 if it opens or closes a row."""
    c = b >> m.rule[BANK_BITS]
    at = b - c * m.rule[BANKS]
    if m.bank[b, ROW] < 0 or m.can[c, PRECHARGE, at] <= t:
        return -1
    read, write = m.bank[b, READ_HIT], m.bank[b, WRITE_HIT]
    if read >= 0 and m.may[c, READ, at] > t:
        read = -1
    if write >= 0 and m.may[c, WRITE, at] > t:
        write = -1
    return max(read, write) if read < 0 or write < 0 else min(read, write)


@inlined
def _command(m, c, t):  # type: ignore[no-untyped-def]
    """Issue the commands of a cycle: one, or with two command buses one of each kind."""
    before = 0
    for turn in range(1 + m.rule[DUAL]):
        b = _pick(m, c, t)
        if b < 0:
            return
        m.channel[c, COMMAND_AT] = t + 1
        i = _column_position(m, b, t)
        if turn == 1 and (i >= 0) == (before >= 0):
            return
        if i >= 0:
            _move_data(m, c, b, i, t)
        else:
            _open_or_close(m, c, b, t)
        before = i


@inlined
def _open_or_close(m, c, b, t):  # type: ignore[no-untyped-def]
    """Issue the activate or precharge of a bank."""
    rule = m.rule
    if m.bank[b, ROW] >= 0:
        _close(m, c, b, t)
    else:
        m.bank[b, ROW] = m.bank[b, KEYS] >> 1
        m.bank[b, HITS] = 0
        m.bank[b, ACTIVATE_AT] = t + rule[RC]
        m.bank[b, COLUMN_AT] = t + rule[RCD]
        m.bank[b, PRECHARGE_AT] = t + rule[RAS]
        _delay(m, c, ACTIVATE, t + rule[RRD_S])
        _delay_group(m, c, m.bank[b, GROUP], ACTIVATE, t + rule[RRD_L])
        oldest = m.channel[c, OLDEST_ACTIVATE]
        m.channel[c, ACTIVATED + oldest] = t + rule[FAW]
        m.channel[c, OLDEST_ACTIVATE] = (oldest + 1) & 3
        m.channel[c, ACTIVATES] += 1
    _update_bank(m, c, b)


@inlined
def _close(m, c, b, t):  # type: ignore[no-untyped-def]
    """Close the row of a bank."""
    m.bank[b, ROW] = -1
    m.bank[b, HITS] = 0
    m.bank[b, ACTIVATE_AT] = max(m.bank[b, ACTIVATE_AT], t + m.rule[RP])
    m.channel[c, PRECHARGES] += 1


@inlined
def _move_data(m, c, b, i, t):  # type: ignore[no-untyped-def]
    """Issue the read or write of the request at position `i` of the queue of a bank."""
    rule, is_write, g = m.rule, m.bank[b, KEYS + i] & 1, m.bank[b, GROUP]
    s = m.bank[b, KEYS + rule[COMMANDS] + i]
    _delay(m, c, READ, t + (rule[WRITE_READ_S] if is_write else rule[READ_S]))
    _delay_group(m, c, g, READ, t + (rule[WRITE_READ_L] if is_write else rule[READ_L]))
    _delay(m, c, WRITE, t + (rule[WRITE_S] if is_write else rule[READ_WRITE]))
    if is_write:
        _delay_group(m, c, g, WRITE, t + rule[WRITE_L])
    to_precharge = t + (rule[WRITE_PRECHARGE] if is_write else rule[READ_PRECHARGE])
    m.bank[b, PRECHARGE_AT] = max(m.bank[b, PRECHARGE_AT], to_precharge)
    hit = 1 if m.bank[b, HITS] > 0 else 0
    m.bank[b, HITS] += 1
    _count_data(m, c, s, hit, t)
    if rule[CLOSED_PAGE]:
        _close(m, c, b, m.bank[b, PRECHARGE_AT])
    _take_out(m, c, b, i, t)
    _unchain(m, s)
    _release(m, s)
    _update_bank(m, c, b)


@inlined
def _count_data(m, c, s, hit, t):  # type: ignore[no-untyped-def]
    """Count a read or write, and let its requests leave the window when their data are there."""
    if m.slot[s, WHERE] & 1:
        m.channel[c, WRITE_COMMANDS] += 1
        m.channel[c, WRITE_HITS] += hit
        end = t + m.rule[CWL] + m.rule[BURST]
    else:
        m.channel[c, READ_COMMANDS] += 1
        m.channel[c, READ_HITS] += hit
        end = t + m.rule[CL] + m.rule[BURST]
        copies = m.slot[s, COPIES]
        m.done[(end + 1) & (len(m.done) - 1)] += copies
        m.channel[c, LATENCY] += end * copies - m.slot[s, ADDED]
    m.channel[c, DATA_END] = max(m.channel[c, DATA_END], end)
    m.channel[c, PENDING] -= 1
    if m.channel[c, PENDING] == 0:
        m.channel[c, PENDING_TO] = m.channel[c, DATA_END]
    while t >> m.now[SPAN_BITS] >= WINDOWS:
        _fold_series(m)
    m.series[t >> m.now[SPAN_BITS], c, 0] += 1
    m.series[t >> m.now[SPAN_BITS], c, 1] += hit


@inlined
def _fold_series(m):  # type: ignore[no-untyped-def]
    """Join each two windows of the series, which then has twice the span."""
    for w in range(WINDOWS):
        for c in range(m.rule[CHANNELS]):
            for kind in range(2):
                if w < WINDOWS // 2:
                    m.series[w, c, kind] = m.series[2 * w, c, kind] + m.series[2 * w + 1, c, kind]
                else:
                    m.series[w, c, kind] = 0
    m.now[SPAN_BITS] += 1


@inlined
def _take_out(m, c, b, i, t):  # type: ignore[no-untyped-def]
    """Take a request out of the queue of its bank."""
    m.bank[b, COUNT] -= 1
    slots = KEYS + m.rule[COMMANDS]
    for later in range(i, m.bank[b, COUNT]):
        m.bank[b, KEYS + later] = m.bank[b, KEYS + later + 1]
        m.bank[b, slots + later] = m.bank[b, slots + later + 1]
    m.channel[c, QUEUED] -= 1
    m.channel[c, FULL] &= ~m.bank[b, BIT]
    if m.bank[b, COUNT] == 0:
        _busy(m, c, t, -1)


@inlined
def _busy(m, c, t, change):  # type: ignore[no-untyped-def]
    """Note that one bank more or fewer has requests."""
    count, passed = m.channel[c, BUSY_BANKS], t - m.channel[c, BUSY_AT]
    if count > 0:
        m.channel[c, BUSY_AREA] += count * passed
        m.channel[c, BUSY_CYCLES] += passed
    m.channel[c, BUSY_AT] = t
    m.channel[c, BUSY_BANKS] = count + change


@inlined
def _refresh(m, c, t):  # type: ignore[no-untyped-def]
    """Close a row for the refresh that is due, or refresh all banks."""
    rule, first = m.rule, c * m.rule[BANKS]
    n_open, soonest, latest = 0, NEVER, 0
    for b in range(first, first + rule[BANKS]):
        if m.bank[b, ROW] >= 0:
            n_open += 1
            if m.bank[b, PRECHARGE_AT] <= t:
                _close(m, c, b, t)
                _update_bank(m, c, b)
                m.channel[c, COMMAND_AT] = t + 1
                return
            soonest = min(soonest, m.bank[b, PRECHARGE_AT])
        else:
            latest = max(latest, m.bank[b, ACTIVATE_AT])
    if n_open > 0 or latest > t:
        m.channel[c, COMMAND_AT] = soonest if n_open > 0 else latest
        return
    for b in range(first, first + rule[BANKS]):
        m.bank[b, ACTIVATE_AT] = t + rule[RFC]
        _set_ready(m, c, b)
    m.channel[c, REFRESHES] += 1
    m.channel[c, REFRESHES_DUE] -= 1
    m.channel[c, COMMAND_AT] = t + 1


@inlined
def _can_move(m, c, kind):  # type: ignore[no-untyped-def]
    """Return whether a request of this kind can move to the queue of its bank."""
    return m.queue[2 * c + kind, WANTED] & ~m.channel[c, FULL] != 0


@inlined
def _schedule(m, c, t, final):  # type: ignore[no-untyped-def]
    """Move a request from the read queue or the write buffer to the queue of its bank; return whether one moved.

    A write does not move before a read of the same address; reads move in its place.
    """
    writes = 2 * c + 1
    if m.channel[c, DRAINING] == 0:
        length = m.queue[writes, LENGTH]
        idle = length > _DRAIN_FROM and m.channel[c, QUEUED] == 0
        if length >= m.rule[QUEUE] or idle or (final and length > 0 and m.queue[2 * c, LENGTH] == 0):
            m.channel[c, DRAINING] = length
    kind = 1 if m.channel[c, DRAINING] > 0 else 0
    s = -1
    if kind == 1 and _can_move(m, c, 1):
        s = _first_to_move(m, c, 1)
        m.channel[c, DRAINING] -= 1
        if _find(m, m.slot[s, ADDRESS], 0) >= 0:
            m.channel[c, DRAINING] = kind = 0
            s = -1
    if kind == 0 and _can_move(m, c, 0):
        s = _first_to_move(m, c, 0)
    if s < 0:
        return False
    _leave_queue(m, 2 * c + kind, s)
    _append(m, c, s, t)
    return True


@inlined
def _first_to_move(m, c, kind):  # type: ignore[no-untyped-def]
    """Return the oldest request of a kind whose bank has room in its queue."""
    left, best, oldest = m.queue[2 * c + kind, WANTED] & ~m.channel[c, FULL], -1, NEVER
    while left != 0:
        low = left & -left
        left ^= low
        s = m.bank[c * m.rule[BANKS] + _number(low), HEAD + 2 * kind]
        if left == 0 and best < 0:
            return s
        if m.slot[s, SEQUENCE] < oldest:
            best, oldest = s, m.slot[s, SEQUENCE]
    return best


@inlined
def _leave_queue(m, q, s):  # type: ignore[no-untyped-def]
    """Take a request out of its queue, which then has room for another."""
    b, head = m.slot[s, WHERE] >> 1, HEAD + 2 * (q & 1)
    m.bank[b, head] = m.slot[s, FOLLOWING]
    if m.bank[b, head] < 0:
        m.queue[q, WANTED] &= ~m.bank[b, BIT]
    m.queue[q, LENGTH] -= 1
    if m.queue[q, ARRIVED_HEAD] >= 0 and m.queue[q, LISTED] < 0:
        _list(m, q)


@inlined
def _list(m, q):  # type: ignore[no-untyped-def]
    """Add a queue to those that have room for a request that waits before them."""
    m.queue[q, LISTED] = m.now[N_LISTED]
    m.listed[m.now[N_LISTED]] = q
    m.now[N_LISTED] += 1


@inlined
def _append(m, c, s, t):  # type: ignore[no-untyped-def]
    """Append a request to the queue of its bank."""
    where = m.slot[s, WHERE]
    b, key, i = where >> 1, 2 * m.slot[s, SLOT_ROW] + (where & 1), m.bank[where >> 1, COUNT]
    m.bank[b, KEYS + i] = key
    m.bank[b, KEYS + m.rule[COMMANDS] + i] = s
    m.bank[b, COUNT] = i + 1
    m.channel[c, QUEUED] += 1
    if i + 1 == m.rule[COMMANDS]:
        m.channel[c, FULL] |= m.bank[b, BIT]
    if i == 0:
        _busy(m, c, t, 1)
        m.bank[b, READ_HIT] = m.bank[b, WRITE_HIT] = -1
    kind = WRITE_HIT if where & 1 else READ_HIT
    is_first_hit = key >> 1 == m.bank[b, ROW] and m.bank[b, kind] < 0
    if is_first_hit:
        m.bank[b, kind] = i
    if i == 0 or is_first_hit:
        _set_ready(m, c, b)
        if m.channel[c, REFRESHES_DUE] == 0:
            window = m.channel[c, ACTIVATED + m.channel[c, OLDEST_ACTIVATE]]
            at = _ready_at(m, c, b - c * m.rule[BANKS], window)
            m.channel[c, COMMAND_AT] = min(m.channel[c, COMMAND_AT], max(t + 1, at))


@inlined
def _visit(m, c, t, final):  # type: ignore[no-untyped-def]
    """Let a channel do what it can in this cycle, and set when it can do something again."""
    if t >= m.channel[c, REFRESH_AT]:
        m.channel[c, REFRESH_AT] += m.rule[REFI]
        m.channel[c, REFRESHES_DUE] += 1
        m.channel[c, COMMAND_AT] = t
    if m.channel[c, COMMAND_AT] <= t:
        if m.channel[c, REFRESHES_DUE] > 0:
            _refresh(m, c, t)
        else:
            _command(m, c, t)
    moved = _schedule(m, c, t, final)
    soonest = max(min(m.channel[c, COMMAND_AT], m.channel[c, REFRESH_AT]), t + 1)
    m.next[c] = t + 1 if moved and (_can_move(m, c, 0) or _can_move(m, c, 1)) else soonest


@inlined
def _arrive(m, s, q, t):  # type: ignore[no-untyped-def]
    """Let a request enter its channel: it is merged with one to the same address, or joins the queue."""
    c, is_write, address = q >> 1, q & 1, m.slot[s, ADDRESS]
    m.channel[c, WRITES if is_write else READS] += 1
    soon = (t + 2) & (len(m.done) - 1)
    if _find(m, address, 1) >= 0:
        m.done[soon] += 1
        m.channel[c, MERGED] += 1
        m.channel[c, LATENCY] += 1 - is_write
        _release(m, s)
        return
    if is_write:
        m.done[soon] += 1
    else:
        other = _find(m, address, 0)
        if other >= 0:
            m.slot[other, COPIES] += 1
            m.slot[other, ADDED] += t
            m.channel[c, MERGED] += 1
            _release(m, s)
            return
    m.slot[s, ADDED], m.slot[s, COPIES], m.slot[s, FOLLOWING] = t, 1, -1
    chain = _bucket(m, address)
    m.slot[s, CHAIN] = m.bucket[chain]
    m.bucket[chain] = s
    _join(m, s, q, t)


@inlined
def _join(m, s, q, t):  # type: ignore[no-untyped-def]
    """Append a request to the read queue or the write buffer of its channel."""
    c, b, head = q >> 1, m.slot[s, WHERE] >> 1, HEAD + 2 * (q & 1)
    if m.bank[b, head] < 0:
        m.bank[b, head] = s
        m.queue[q, WANTED] |= m.bank[b, BIT]
    else:
        m.slot[m.bank[b, head + 1], FOLLOWING] = s
    m.bank[b, head + 1] = s
    m.queue[q, LENGTH] += 1
    if m.channel[c, PENDING] == 0 and t > m.channel[c, PENDING_TO]:
        m.channel[c, PENDING_CYCLES] += m.channel[c, PENDING_TO] - m.channel[c, PENDING_FROM]
        m.channel[c, PENDING_FROM] = t
    m.channel[c, PENDING] += 1
    m.next[c] = min(m.next[c], t)


@inlined
def _oldest(m):  # type: ignore[no-untyped-def]
    """Return the position of the listed queue before which the oldest request waits."""
    best, position = NEVER, -1
    for i in range(m.now[N_LISTED]):
        sequence = m.slot[m.queue[m.listed[i], ARRIVED_HEAD], SEQUENCE]
        if sequence < best:
            best, position = sequence, i
    return position


@inlined
def _enter_waiting(m, t):  # type: ignore[no-untyped-def]
    """Let requests enter that waited for room, oldest first."""
    while m.now[ENTERED] < m.rule[ENTERING] and m.now[N_LISTED] > 0:
        position = _oldest(m)
        q = m.listed[position]
        s = m.queue[q, ARRIVED_HEAD]
        m.queue[q, ARRIVED_HEAD] = m.slot[s, FOLLOWING]
        _arrive(m, s, q, t)
        m.now[ENTERED] += 1
        if m.queue[q, ARRIVED_HEAD] < 0 or m.queue[q, LENGTH] >= m.rule[QUEUE]:
            m.now[N_LISTED] -= 1
            moved = m.listed[m.now[N_LISTED]]
            m.listed[position] = moved
            m.queue[moved, LISTED] = position
            m.queue[q, LISTED] = -1


@inlined
def _take(m, where, row, address):  # type: ignore[no-untyped-def]
    """Return the slot of the next request, and put the request into it."""
    s = m.now[FREE]
    m.now[FREE] = m.slot[s, FOLLOWING]
    m.slot[s, SLOT_ROW], m.slot[s, WHERE], m.slot[s, ADDRESS] = row, where, address
    m.slot[s, FOLLOWING] = -1
    m.slot[s, SEQUENCE] = m.now[TAKEN]
    m.now[TAKEN] += 1
    m.now[INSIDE] += 1
    return s


@inlined
def _wait(m, s, q):  # type: ignore[no-untyped-def]
    """Let a request wait before its queue."""
    if m.queue[q, ARRIVED_HEAD] < 0:
        m.queue[q, ARRIVED_HEAD] = s
        if m.queue[q, LENGTH] < m.rule[QUEUE]:
            _list(m, q)
    else:
        m.slot[m.queue[q, ARRIVED_TAIL], FOLLOWING] = s
    m.queue[q, ARRIVED_TAIL] = s


@inlined
def _visit_channels(m, t, final):  # type: ignore[no-untyped-def]
    """Visit the channels that are due; return the cycle of the next event."""
    soonest = NEVER
    for c in range(m.rule[CHANNELS]):
        if m.next[c] <= t:
            _visit(m, c, t, final)
        soonest = min(soonest, m.next[c])
    if m.now[N_LISTED] > 0:
        return t + 1
    for later in range(t + 1, min(soonest, t + len(m.done))):
        if m.done[later & (len(m.done) - 1)] > 0:
            return later
    return soonest


@inlined
def _is_idle(m):  # type: ignore[no-untyped-def]
    """Return whether no request is left."""
    if m.now[INSIDE] > 0:
        return False
    pending = 0
    for c in range(m.rule[CHANNELS]):
        pending += m.channel[c, PENDING]
    return pending == 0


@bare
def run(m, bank, row, is_write, address, final):  # type: ignore[no-untyped-def]
    """Serve requests until the next one could enter the window but is not there; with `final`, until all is done.

    Parameters
    ----------
    m : Machine
        State, which changes.
    bank : array of int64
        Bank, counted over all channels.
    row, address : array of int64
        Row, and first byte.
    is_write : array of uint8
        1 for a write.
    final : int
        1 if no request will follow.
    """
    position, n, t = 0, len(bank), m.now[CYCLE]
    if final:
        for c in range(m.rule[CHANNELS]):
            m.next[c] = min(m.next[c], t)
    while True:
        m.now[INSIDE] -= m.done[t & (len(m.done) - 1)]
        m.done[t & (len(m.done) - 1)] = 0
        if position == n and not final and m.now[INSIDE] < m.rule[WINDOW]:
            break
        if final and position == n and _is_idle(m):
            break
        if m.now[N_LISTED] > 0:
            _enter_waiting(m, t)
        while m.now[INSIDE] < m.rule[WINDOW] and position < n:
            kind = is_write[position] & 1
            q = 2 * (bank[position] >> m.rule[BANK_BITS]) + kind
            s = _take(m, 2 * bank[position] + kind, row[position], address[position])
            position += 1
            room = m.queue[q, ARRIVED_HEAD] < 0 and m.queue[q, LENGTH] < m.rule[QUEUE]
            if room and m.now[ENTERED] < m.rule[ENTERING]:
                _arrive(m, s, q, t)
                m.now[ENTERED] += 1
            else:
                _wait(m, s, q)
        if position == n and not final and m.now[INSIDE] < m.rule[WINDOW]:
            break
        t = _visit_channels(m, t, final)
        m.now[ENTERED] = 0
    m.now[CYCLE] = t
