"""The compiled DRAM controller: which requests reach the banks of a channel, and when.

A channel works like the controller of DRAMsim3 (Li et al., IEEE Computer Architecture Letters 2020): requests wait in a
read queue or a write buffer, one a cycle moves to the command queue of its bank, and banks take turns to issue. Reads
go first; writes drain in batches. A row hit may pass older requests of its bank, up to four hits after a row opened.

Time jumps from event to event. A channel is visited only in cycles in which it can issue a command, move a request or
refresh; the result equals that of a simulation of every cycle.
"""

import numpy as np

from profilers.trace.compiled import bare, inlined
from replay.memory import banks as at
from replay.memory.banks import bucket, busy, command, find, finish, number, ready_at, refresh, release, set_ready

#: Writes that wait in a channel before idle banks start to drain them.
_DRAIN_FROM = 8


@inlined
def _can_move(m, c, kind):  # type: ignore[no-untyped-def]
    """Return whether a request of this kind can move to the queue of its bank."""
    return m.queue[2 * c + kind, at.WANTED] & ~m.channel[c, at.FULL] != 0


@inlined
def _schedule(m, c, t, final):  # type: ignore[no-untyped-def]
    """Move a request from the read queue or the write buffer to the queue of its bank; return whether one moved.

    A write does not move before a read of the same address; reads move in its place.
    """
    writes = 2 * c + 1
    if m.channel[c, at.DRAINING] == 0:
        length = m.queue[writes, at.LENGTH]
        idle = length > _DRAIN_FROM and m.channel[c, at.QUEUED] == 0
        if length >= m.rule[at.QUEUE] or idle or (final and length > 0 and m.queue[2 * c, at.LENGTH] == 0):
            m.channel[c, at.DRAINING] = length
    kind = 1 if m.channel[c, at.DRAINING] > 0 else 0
    s = -1
    if kind == 1 and _can_move(m, c, np.int64(1)):
        s = _first_to_move(m, c, np.int64(1))
        m.channel[c, at.DRAINING] -= 1
        if find(m, m.slot[s, at.ADDRESS], np.int64(0)) >= 0:
            m.channel[c, at.DRAINING] = kind = 0
            s = -1
    if kind == 0 and _can_move(m, c, np.int64(0)):
        s = _first_to_move(m, c, np.int64(0))
    if s < 0:
        return False
    _leave_queue(m, 2 * c + kind, s)
    _append(m, c, s, t)
    return True


@inlined
def _first_to_move(m, c, kind):  # type: ignore[no-untyped-def]
    """Return the oldest request of a kind whose bank has room in its queue."""
    left, best, oldest = m.queue[2 * c + kind, at.WANTED] & ~m.channel[c, at.FULL], -1, at.NEVER
    while left != 0:
        low = left & -left
        left ^= low
        s = m.bank[c * m.rule[at.BANKS] + number(low), at.HEAD + 2 * kind]
        if left == 0 and best < 0:
            return s
        if m.slot[s, at.SEQUENCE] < oldest:
            best, oldest = s, m.slot[s, at.SEQUENCE]
    return best


@inlined
def _leave_queue(m, q, s):  # type: ignore[no-untyped-def]
    """Take a request out of its queue, which then has room for another."""
    b, head = m.slot[s, at.WHERE] >> 1, at.HEAD + 2 * (q & 1)
    m.bank[b, head] = m.slot[s, at.FOLLOWING]
    if m.bank[b, head] < 0:
        m.queue[q, at.WANTED] &= ~m.bank[b, at.BIT]
    m.queue[q, at.LENGTH] -= 1
    if m.queue[q, at.ARRIVED_HEAD] >= 0 and m.queue[q, at.LISTED] < 0:
        _list(m, q)


@inlined
def _list(m, q):  # type: ignore[no-untyped-def]
    """List a queue that has room for a request that waits before it."""
    m.queue[q, at.LISTED] = m.now[at.N_LISTED]
    m.listed[m.now[at.N_LISTED]] = q
    m.now[at.N_LISTED] += 1


@inlined
def _append(m, c, s, t):  # type: ignore[no-untyped-def]
    """Append a request to the queue of its bank."""
    where = m.slot[s, at.WHERE]
    b, key, i = where >> 1, 2 * m.slot[s, at.SLOT_ROW] + (where & 1), m.bank[where >> 1, at.COUNT]
    m.bank[b, at.KEYS + i] = key
    m.bank[b, at.KEYS + m.rule[at.COMMANDS] + i] = s
    m.bank[b, at.COUNT] = i + 1
    m.channel[c, at.QUEUED] += 1
    if i + 1 == m.rule[at.COMMANDS]:
        m.channel[c, at.FULL] |= m.bank[b, at.BIT]
    if i == 0:
        busy(m, c, t, 1)
        m.bank[b, at.READ_HIT] = m.bank[b, at.WRITE_HIT] = -1
    kind = at.WRITE_HIT if where & 1 else at.READ_HIT
    is_first_hit = key >> 1 == m.bank[b, at.ROW] and m.bank[b, kind] < 0
    if is_first_hit:
        m.bank[b, kind] = i
    if i == 0 or is_first_hit:
        set_ready(m, c, b)
        if m.channel[c, at.REFRESHES_DUE] == 0:
            window = m.channel[c, at.ACTIVATED + m.channel[c, at.OLDEST_ACTIVATE]]
            ready = ready_at(m, c, b - c * m.rule[at.BANKS], window)
            m.channel[c, at.COMMAND_AT] = min(m.channel[c, at.COMMAND_AT], max(t + 1, ready))


@inlined
def _visit(m, c, t, final):  # type: ignore[no-untyped-def]
    """Let a channel do what it can in this cycle, and set when it can do something again."""
    if t >= m.channel[c, at.REFRESH_AT]:
        m.channel[c, at.REFRESH_AT] += m.rule[at.REFI]
        m.channel[c, at.REFRESHES_DUE] += 1
        m.channel[c, at.COMMAND_AT] = t
    if m.channel[c, at.COMMAND_AT] <= t:
        if m.channel[c, at.REFRESHES_DUE] > 0:
            refresh(m, c, t)
        else:
            command(m, c, t)
    moved = _schedule(m, c, t, final)
    soonest = max(min(m.channel[c, at.COMMAND_AT], m.channel[c, at.REFRESH_AT]), t + 1)
    m.next[c] = t + 1 if moved and (_can_move(m, c, np.int64(0)) or _can_move(m, c, np.int64(1))) else soonest


@inlined
def _arrive(m, s, q, t):  # type: ignore[no-untyped-def]
    """Let a request enter its channel: it is merged with one to the same address, or joins the queue."""
    c, is_write, address = q >> 1, q & 1, m.slot[s, at.ADDRESS]
    m.channel[c, at.WRITES if is_write else at.READS] += 1
    soon = (t + 2) & (len(m.done) - 1)
    if find(m, address, np.int64(1)) >= 0:
        m.done[soon] += 1
        if not is_write:
            finish(m, address, t + 2)
        m.channel[c, at.MERGED] += 1
        m.channel[c, at.LATENCY] += 1 - is_write
        release(m, s)
        return
    if is_write:
        m.done[soon] += 1
    else:
        other = find(m, address, np.int64(0))
        if other >= 0:
            m.slot[other, at.COPIES] += 1
            m.slot[other, at.ADDED] += t
            m.channel[c, at.MERGED] += 1
            release(m, s)
            return
    m.slot[s, at.ADDED], m.slot[s, at.COPIES], m.slot[s, at.FOLLOWING] = t, 1, -1
    chain = bucket(m, address)
    m.slot[s, at.CHAIN] = m.bucket[chain]
    m.bucket[chain] = s
    _join(m, s, q, t)


@inlined
def _join(m, s, q, t):  # type: ignore[no-untyped-def]
    """Append a request to the read queue or the write buffer of its channel."""
    c, b, head = q >> 1, m.slot[s, at.WHERE] >> 1, at.HEAD + 2 * (q & 1)
    if m.bank[b, head] < 0:
        m.bank[b, head] = s
        m.queue[q, at.WANTED] |= m.bank[b, at.BIT]
    else:
        m.slot[m.bank[b, head + 1], at.FOLLOWING] = s
    m.bank[b, head + 1] = s
    m.queue[q, at.LENGTH] += 1
    if m.channel[c, at.PENDING] == 0 and t > m.channel[c, at.PENDING_TO]:
        m.channel[c, at.PENDING_CYCLES] += m.channel[c, at.PENDING_TO] - m.channel[c, at.PENDING_FROM]
        m.channel[c, at.PENDING_FROM] = t
    m.channel[c, at.PENDING] += 1
    m.next[c] = min(m.next[c], t)


@inlined
def _oldest(m):  # type: ignore[no-untyped-def]
    """Return the position of the listed queue before which the oldest request waits."""
    best, position = at.NEVER, -1
    for i in range(m.now[at.N_LISTED]):
        sequence = m.slot[m.queue[m.listed[i], at.ARRIVED_HEAD], at.SEQUENCE]
        if sequence < best:
            best, position = sequence, i
    return position


@inlined
def _enter_waiting(m, t):  # type: ignore[no-untyped-def]
    """Let requests enter that waited for room, oldest first."""
    while m.now[at.ENTERED] < m.rule[at.ENTERING] and m.now[at.N_LISTED] > 0:
        position = _oldest(m)
        q = m.listed[position]
        s = m.queue[q, at.ARRIVED_HEAD]
        m.queue[q, at.ARRIVED_HEAD] = m.slot[s, at.FOLLOWING]
        _arrive(m, s, q, t)
        m.now[at.ENTERED] += 1
        if m.queue[q, at.ARRIVED_HEAD] < 0 or m.queue[q, at.LENGTH] >= m.rule[at.QUEUE]:
            m.now[at.N_LISTED] -= 1
            moved = m.listed[m.now[at.N_LISTED]]
            m.listed[position] = moved
            m.queue[moved, at.LISTED] = position
            m.queue[q, at.LISTED] = -1


@inlined
def _take(m, where, row, address):  # type: ignore[no-untyped-def]
    """Return the slot of the next request, and put the request into it."""
    s = m.now[at.FREE]
    m.now[at.FREE] = m.slot[s, at.FOLLOWING]
    m.slot[s, at.SLOT_ROW], m.slot[s, at.WHERE], m.slot[s, at.ADDRESS] = row, where, address
    m.slot[s, at.FOLLOWING] = -1
    m.slot[s, at.SEQUENCE] = m.now[at.TAKEN]
    m.now[at.TAKEN] += 1
    m.now[at.INSIDE] += 1
    return s


@inlined
def _wait(m, s, q):  # type: ignore[no-untyped-def]
    """Let a request wait before its queue."""
    if m.queue[q, at.ARRIVED_HEAD] < 0:
        m.queue[q, at.ARRIVED_HEAD] = s
        if m.queue[q, at.LENGTH] < m.rule[at.QUEUE]:
            _list(m, q)
    else:
        m.slot[m.queue[q, at.ARRIVED_TAIL], at.FOLLOWING] = s
    m.queue[q, at.ARRIVED_TAIL] = s


@inlined
def _visit_channels(m, t, final):  # type: ignore[no-untyped-def]
    """Visit the channels that are due; return the cycle of the next event."""
    soonest = at.NEVER
    for c in range(m.rule[at.CHANNELS]):
        if m.next[c] <= t:
            _visit(m, c, t, final)
        soonest = min(soonest, m.next[c])
    if m.now[at.N_LISTED] > 0:
        return t + 1
    for later in range(t + 1, min(soonest, t + len(m.done))):
        if m.done[later & (len(m.done) - 1)] > 0:
            return later
    return soonest


@inlined
def _is_idle(m):  # type: ignore[no-untyped-def]
    """Return whether no request is left."""
    if m.now[at.INSIDE] > 0:
        return False
    pending = 0
    for c in range(m.rule[at.CHANNELS]):
        pending += m.channel[c, at.PENDING]
    return pending == 0


@bare
def submit(m, bank, row, is_write, address, arrival):  # type: ignore[no-untyped-def]
    """Let a request arrive at a cycle that is not before the last one that `advance` was given.

    Parameters
    ----------
    m : DramState
        State, which changes; made to tell when reads end.
    bank, row, is_write, address : int
        As in `run`.
    arrival : int
        Cycle.
    """
    q = 2 * (bank >> m.rule[at.BANK_BITS]) + is_write
    s = _take(m, 2 * bank + is_write, row, address)
    m.now[at.CYCLE] = min(m.now[at.CYCLE], arrival)
    if m.queue[q, at.ARRIVED_HEAD] < 0 and m.queue[q, at.LENGTH] < m.rule[at.QUEUE]:
        _arrive(m, s, q, arrival)
    else:
        _wait(m, s, q)


@bare
def advance(m, until):  # type: ignore[no-untyped-def]
    """Serve the requests that are there until the next event is later than a cycle.

    Reads that end meanwhile stand in ``m.finished``, address and cycle, and their number in ``m.now[FINISHED]``.
    """
    t = m.now[at.CYCLE]
    while t <= until:
        m.now[at.INSIDE] -= m.done[t & (len(m.done) - 1)]
        m.done[t & (len(m.done) - 1)] = 0
        if m.now[at.N_LISTED] > 0:
            _enter_waiting(m, t)
        t = _visit_channels(m, t, np.int64(0))
        m.now[at.ENTERED] = 0
    m.now[at.CYCLE] = t


@bare
def run(m, bank, row, is_write, address, final):  # type: ignore[no-untyped-def]
    """Serve requests until the next one could enter the window but is not there; with `final`, until all is done.

    Parameters
    ----------
    m : DramState
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
    position, n, t = 0, len(bank), m.now[at.CYCLE]
    if final:
        for c in range(m.rule[at.CHANNELS]):
            m.next[c] = min(m.next[c], t)
    while True:
        m.now[at.INSIDE] -= m.done[t & (len(m.done) - 1)]
        m.done[t & (len(m.done) - 1)] = 0
        if position == n and not final and m.now[at.INSIDE] < m.rule[at.WINDOW]:
            break
        if final and position == n and _is_idle(m):
            break
        if m.now[at.N_LISTED] > 0:
            _enter_waiting(m, t)
        while m.now[at.INSIDE] < m.rule[at.WINDOW] and position < n:
            kind = is_write[position] & 1
            q = 2 * (bank[position] >> m.rule[at.BANK_BITS]) + kind
            s = _take(m, 2 * bank[position] + kind, row[position], address[position])
            position += 1
            room = m.queue[q, at.ARRIVED_HEAD] < 0 and m.queue[q, at.LENGTH] < m.rule[at.QUEUE]
            if room and m.now[at.ENTERED] < m.rule[at.ENTERING]:
                _arrive(m, s, q, t)
                m.now[at.ENTERED] += 1
            else:
                _wait(m, s, q)
        if position == n and not final and m.now[at.INSIDE] < m.rule[at.WINDOW]:
            break
        t = _visit_channels(m, t, final)
        m.now[at.ENTERED] = 0
    m.now[at.CYCLE] = t
