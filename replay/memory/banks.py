"""The state of a simulation of DRAM, and the commands of its banks, compiled.

`DramState` holds all arrays. A bank opens rows, moves data and closes rows no earlier than its timing and that of the
other banks of its channel allow. `replay.memory.controller` decides which requests reach the banks.
"""

from typing import Any, NamedTuple

import numpy as np

from profilers.trace.compiled import inlined

#: Later than any cycle.
NEVER = 1 << 60
#: Row hits after which an open row may be closed although requests for it wait.
_HIT_LIMIT = 4

#: Elements of `DramState.rule`: timing in cycles, and sizes.
(
    CL, CWL, BURST, RCD, RP, RAS, RC, RRD_S, RRD_L, FAW, READ_S, READ_L, WRITE_S, WRITE_L,
    READ_WRITE, WRITE_READ_S, WRITE_READ_L, WRITE_PRECHARGE, READ_PRECHARGE, RFC, REFI,
    CHANNELS, BANKS, GROUP_BANKS, QUEUE, COMMANDS, DUAL, CLOSED_PAGE, WINDOW, ENTERING, ACCESS_BITS, BANK_BITS,
) = RULES = range(32)  # fmt: skip
#: Columns of `DramState.channel`. FULL are bits of banks whose queue is full.
(
    COMMAND_AT, TURN, DRAINING, QUEUED, FULL, OLDEST_ACTIVATE, REFRESH_AT, REFRESHES_DUE,
    READS, WRITES, MERGED, READ_HITS, WRITE_HITS, ACTIVATES, PRECHARGES, REFRESHES, LATENCY, READ_COMMANDS,
    WRITE_COMMANDS, PENDING, PENDING_FROM, PENDING_TO, PENDING_CYCLES, BUSY_BANKS, BUSY_AT, BUSY_AREA, BUSY_CYCLES,
    DATA_END, ACTIVATED,
) = range(29)  # fmt: skip
CHANNEL_COLUMNS = ACTIVATED + 4
#: Columns of `DramState.queue`, two rows a channel: reads, then writes. WANTED are bits of the banks of its requests.
LENGTH, WANTED, ARRIVED_HEAD, ARRIVED_TAIL, LISTED = range(5)
#: Columns of `DramState.bank`. READ_HIT and WRITE_HIT are positions in its queue: the oldest requests of the open row.
#: HEAD and TAIL are the list of its requests in the read queue of the channel; those of the write buffer follow. From
#: KEYS on stands the queue of the bank: twice the row of each request, plus 1 for a write; then the slots.
(
    ROW, HITS, COUNT, ACTIVATE_AT, COLUMN_AT, PRECHARGE_AT, READ_HIT, WRITE_HIT, GROUP, BIT,
    HEAD, TAIL, WRITE_HEAD, WRITE_TAIL, KEYS,
) = range(15)  # fmt: skip
#: Rows of a channel in `DramState.can`, by bank: earliest cycle of a command that a bank has to issue, by the bank
#: alone; and in `DramState.may`: earliest cycle of such a command by the other banks. A precharge needs nothing of
#: them.
ACTIVATE, READ, WRITE, PRECHARGE = range(4)
#: Columns of `DramState.slot`, a request from its arrival to its command. WHERE is twice its bank, plus 1 for a write.
FOLLOWING, SLOT_ROW, WHERE, ADDED, COPIES, ADDRESS, SEQUENCE, CHAIN = range(8)
SLOT_COLUMNS = 8
#: Elements of `DramState.now`.
CYCLE, TAKEN, INSIDE, FREE, N_LISTED, ENTERED, SPAN_BITS, FINISHED = range(8)
#: Windows of time of the series.
WINDOWS = 256
#: A de Bruijn sequence, and the position of each of its 64 windows: they turn a single bit into its number.
_SEQUENCE = np.uint64(0x03F79D71B4CB0A89)
_POSITIONS = np.zeros(64, dtype=np.int64)
for _bit in range(64):
    _POSITIONS[((0x03F79D71B4CB0A89 << _bit) & 0xFFFFFFFFFFFFFFFF) >> 58] = _bit


class DramState(NamedTuple):
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
    finished: Any  #: reads that have ended since the caller looked: address and cycle; empty if nobody looks


@inlined
def bucket(m, address):  # type: ignore[no-untyped-def]
    """Return the chain of an address."""
    return ((address >> m.rule[ACCESS_BITS]) * 0x9E3779B1 >> 7) & (len(m.bucket) - 1)


@inlined
def find(m, address, is_write):  # type: ignore[no-untyped-def]
    """Return the slot of a request to this address that has no command yet; -1 for none."""
    s = m.bucket[bucket(m, address)]
    while s >= 0 and (m.slot[s, ADDRESS] != address or m.slot[s, WHERE] & 1 != is_write):
        s = m.slot[s, CHAIN]
    return s


@inlined
def release(m, s):  # type: ignore[no-untyped-def]
    """Give a slot back."""
    m.slot[s, FOLLOWING] = m.now[FREE]
    m.now[FREE] = s


@inlined
def finish(m, address, end):  # type: ignore[no-untyped-def]
    """Note that a read has ended, if somebody wants to know."""
    if len(m.finished) > 0:
        m.finished[m.now[FINISHED], 0], m.finished[m.now[FINISHED], 1] = address, end
        m.now[FINISHED] += 1


@inlined
def _unchain(m, s):  # type: ignore[no-untyped-def]
    """Take a slot out of the chain of its address."""
    chain = bucket(m, m.slot[s, ADDRESS])
    at = m.bucket[chain]
    if at == s:
        m.bucket[chain] = m.slot[s, CHAIN]
        return
    while m.slot[at, CHAIN] != s:
        at = m.slot[at, CHAIN]
    m.slot[at, CHAIN] = m.slot[s, CHAIN]


@inlined
def set_ready(m, c, b):  # type: ignore[no-untyped-def]
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
    set_ready(m, c, b)


@inlined
def ready_at(m, c, i, window):  # type: ignore[no-untyped-def]
    """Return the earliest cycle of the next command of bank `i` of a channel; `window` is that of its next activate."""
    activate = max(max(m.can[c, ACTIVATE, i], m.may[c, ACTIVATE, i]), window)
    read, write = max(m.can[c, READ, i], m.may[c, READ, i]), max(m.can[c, WRITE, i], m.may[c, WRITE, i])
    return min(min(activate, m.can[c, PRECHARGE, i]), min(read, write))


@inlined
def number(bit):  # type: ignore[no-untyped-def]
    """Return the number of a single bit."""
    return _POSITIONS[(np.uint64(bit) * _SEQUENCE) >> np.uint64(58)]


@inlined
def _pick(m, c, t):  # type: ignore[no-untyped-def]
    """Return the next bank in turn with a command at cycle `t`, or -1; without one, set when the next can issue."""
    window = m.channel[c, ACTIVATED + m.channel[c, OLDEST_ACTIVATE]]
    bits, soonest = np.int64(0), NEVER
    for i in range(m.rule[BANKS]):
        at = ready_at(m, c, i, window)
        soonest = min(soonest, at)
        bits |= np.int64(at <= t) << i
    if bits == 0:
        m.channel[c, COMMAND_AT] = soonest
        return -1
    turn = m.channel[c, TURN] + 1
    later = bits >> turn << turn
    if later == 0:
        later = bits
    i = number(later & -later)
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
def command(m, c, t):  # type: ignore[no-untyped-def]
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
    release(m, s)
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
        finish(m, m.slot[s, ADDRESS], end)
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
        busy(m, c, t, -1)


@inlined
def busy(m, c, t, change):  # type: ignore[no-untyped-def]
    """Note that one bank more or fewer has requests."""
    count, passed = m.channel[c, BUSY_BANKS], t - m.channel[c, BUSY_AT]
    if count > 0:
        m.channel[c, BUSY_AREA] += count * passed
        m.channel[c, BUSY_CYCLES] += passed
    m.channel[c, BUSY_AT] = t
    m.channel[c, BUSY_BANKS] = count + change


@inlined
def refresh(m, c, t):  # type: ignore[no-untyped-def]
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
        set_ready(m, c, b)
    m.channel[c, REFRESHES] += 1
    m.channel[c, REFRESHES_DUE] -= 1
    m.channel[c, COMMAND_AT] = t + 1
