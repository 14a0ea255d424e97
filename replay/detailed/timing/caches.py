"""The memory below the compute units, compiled: L1 caches, the way to L2, its slices, and DRAM."""

import numpy as np

from profilers.trace.compiled import inlined
from replay.detailed.timing import state
from replay.memory.banks import FINISHED
from replay.memory.controller import advance, submit

#: Cycles from the arrival of a sector at a slice to the request to DRAM after a miss.
_TO_MEMORY = 10


@inlined
def take_request(s, unit, sector):  # type: ignore[no-untyped-def]
    """Return a new request."""
    r = s.now[state.FREE_REQUEST]
    s.now[state.FREE_REQUEST] = s.request[r, state.R_FOLLOWING]
    s.request[r, state.R_UNIT], s.request[r, state.R_SECTOR] = unit, sector
    s.request[r, state.R_L1] = s.request[r, state.R_L2] = s.request[r, state.R_WAITER] = s.request[r, state.R_NEXT] = -1
    s.now[state.IN_USE] += 1
    return r


@inlined
def release_request(s, r):  # type: ignore[no-untyped-def]
    """Give a request back."""
    s.request[r, state.R_FOLLOWING] = s.now[state.FREE_REQUEST]
    s.now[state.FREE_REQUEST] = r
    s.now[state.IN_USE] -= 1


@inlined
def new_waiter(s, load, following):  # type: ignore[no-untyped-def]
    """Return a new element of a list of loads that wait."""
    n = s.now[state.FREE_WAITER]
    s.now[state.FREE_WAITER] = s.waiter[n, 1]
    s.waiter[n, 0], s.waiter[n, 1] = load, following
    return n


@inlined
def schedule(s, r, cycle, event):  # type: ignore[no-untyped-def]
    """Let something happen to a request at a cycle."""
    cycle = min(max(cycle, s.now[state.CYCLE] + 1), s.now[state.CYCLE] + len(s.ring) - 1)
    slot = cycle & (len(s.ring) - 1)
    s.request[r, state.R_EVENT], s.request[r, state.R_NEXT] = event, s.ring[slot]
    s.ring[slot] = r
    s.now[state.EVENTS] += 1


@inlined
def _mixed(line):  # type: ignore[no-untyped-def]
    """Return a number that looks random and depends on all bits of a line."""
    value = np.uint64(line) * np.uint64(0x9E3779B97F4A7C15)
    return np.int64(value >> np.uint64(33))


@inlined
def field_of(s, address, field):  # type: ignore[no-untyped-def]
    """Return channel (0), bank group (1), bank (2) or row (3) of an address in DRAM."""
    result = np.int64(0)
    if s.rule[state.SPLIT_AT] >= 0:
        upper = address >> s.rule[state.SPLIT_AT]
        rest = upper // s.rule[state.CHANNELS]
        if field == 0:
            return upper - rest * s.rule[state.CHANNELS]
        address = (rest << s.rule[state.SPLIT_AT]) | (address & ((np.int64(1) << s.rule[state.SPLIT_AT]) - 1))
    for move in range(len(s.mapping)):
        if s.mapping[move, 0] == field:
            result ^= ((address >> s.mapping[move, 1]) & s.mapping[move, 2]) << s.mapping[move, 3]
    return result


@inlined
def slice_of(s, line):  # type: ignore[no-untyped-def]
    """Return the slice of L2 that serves a line: one of those of its DRAM channel."""
    slices, channels = s.rule[state.L2_SLICES], s.rule[state.CHANNELS]
    if channels % slices == 0:
        return field_of(s, line << 7, 0) // (channels // slices)
    if slices % channels == 0:
        each = slices // channels
        return field_of(s, line << 7, 0) * each + _mixed(line) % each
    return _mixed(line >> 1) % slices


@inlined
def _find(lines, first, ways, line):  # type: ignore[no-untyped-def]
    for way in range(first, first + ways):
        if lines[way] == line:
            return way
    return -1


@inlined
def _victim(lines, frames, first, ways):  # type: ignore[no-untyped-def]
    """Return the frame of a set that was used longest ago and waits for nothing; -1 if all wait."""
    best, oldest = -1, np.int64(1) << 62
    for way in range(first, first + ways):
        if lines[way] < 0:
            return way
        if frames[way, state.COMING] == 0 and frames[way, state.USED] < oldest:
            best, oldest = way, frames[way, state.USED]
    return best


@inlined
def l1_frame(s, unit, line):  # type: ignore[no-untyped-def]
    """Return the frame of a line in the L1 cache of a unit; -1 if it is not there."""
    ways = s.rule[state.L1_WAYS]
    first = (unit * s.rule[state.L1_SETS] + _mixed(line) % s.rule[state.L1_SETS]) * ways
    return _find(s.l1_line, first, ways, line)


@inlined
def l1_allocate(s, unit, line):  # type: ignore[no-untyped-def]
    """Give a line a frame in the L1 cache of a unit; -1 if all lines of its set wait for data."""
    ways = s.rule[state.L1_WAYS]
    first = (unit * s.rule[state.L1_SETS] + _mixed(line) % s.rule[state.L1_SETS]) * ways
    frame = _victim(s.l1_line, s.l1_state, first, ways)
    if frame >= 0:
        s.l1_line[frame] = line
        s.l1_state[frame, state.VALID] = s.l1_state[frame, state.COMING] = 0
        s.l1_state[frame, state.USED] = s.now[state.CYCLE]
    return frame


@inlined
def _write_back(s, frame, cycle):  # type: ignore[no-untyped-def]
    """Write the changed sectors of a line of L2 to DRAM."""
    changed, line = s.l2_state[frame, state.CHANGED], s.l2_line[frame]
    if changed == 0:
        return
    s.l2_state[frame, state.CHANGED] = 0
    each = max(s.rule[state.ACCESS_BYTES] >> 5, 1)
    for part in range(0, 4, each):
        bits = (changed >> part) & ((1 << each) - 1)
        if bits != 0:
            for bit in range(each):
                s.counters[state.DRAM_WRITE_SECTORS] += (bits >> bit) & 1
            r = take_request(s, 0, 4 * line + part)
            schedule(s, r, cycle + _TO_MEMORY, state.WRITE_BACK)


@inlined
def _limit_changed(s, first, cycle):  # type: ignore[no-untyped-def]
    """Write the oldest changed line of a set back if more than half of the set is changed.

    Kernels that write more than L2 holds leave 3.1 of its 6 MB changed at their end on a V100, whatever they do
    (counters of nine kernels on a Quadro GV100; Accel-Sim, AccelWattch).
    """
    count, oldest, best = 0, np.int64(1) << 62, -1
    for way in range(first, first + s.rule[state.L2_WAYS]):
        if s.l2_state[way, state.CHANGED] != 0:
            count += 1
            if s.l2_state[way, state.USED] < oldest:
                best, oldest = way, s.l2_state[way, state.USED]
    if 2 * count > s.rule[state.L2_WAYS]:
        _write_back(s, best, cycle)


@inlined
def _l2_allocate(s, number, line, cycle):  # type: ignore[no-untyped-def]
    """Give a line a frame in a slice of L2, and write the line that was there back; -1 if all lines wait."""
    ways = s.rule[state.L2_WAYS]
    first = (number * s.rule[state.L2_SETS] + _mixed(line) % s.rule[state.L2_SETS]) * ways
    frame = _victim(s.l2_line, s.l2_state, first, ways)
    if frame < 0:
        s.counters[state.BYPASSES] += 1
        return frame
    _write_back(s, frame, cycle)
    s.l2_line[frame] = line
    s.l2_state[frame, state.VALID] = s.l2_state[frame, state.COMING] = s.l2_state[frame, state.CHANGED] = 0
    s.l2_state[frame, state.USED] = cycle
    return frame


@inlined
def _slice_turn(s, number, arrival, tenths):  # type: ignore[no-untyped-def]
    """Return the cycle at which a slice serves a sector that arrives at a cycle."""
    begin = max(10 * arrival, s.slice_free[number])
    s.slice_free[number] = begin + tenths
    served = begin // 10
    while served >> s.now[state.SPAN_BITS] >= state.WINDOWS:
        fold_series(s)
    s.slice_series[served >> s.now[state.SPAN_BITS], number] += 1
    return served


@inlined
def fold_series(s):  # type: ignore[no-untyped-def]
    """Join each two windows of the series, which then have twice the span."""
    for w in range(state.WINDOWS):
        keep = w < state.WINDOWS // 2
        for k in range(s.series.shape[1]):
            s.series[w, k] = s.series[2 * w, k] + s.series[2 * w + 1, k] if keep else 0
        for k in range(s.unit_series.shape[1]):
            s.unit_series[w, k] = s.unit_series[2 * w, k] + s.unit_series[2 * w + 1, k] if keep else 0
        for k in range(s.slice_series.shape[1]):
            s.slice_series[w, k] = s.slice_series[2 * w, k] + s.slice_series[2 * w + 1, k] if keep else 0
    s.now[state.SPAN_BITS] += 1


@inlined
def read_l2(s, r, start, is_same_line):  # type: ignore[no-untyped-def]
    """Send a request to L2."""
    unit, sector = s.request[r, state.R_UNIT], s.request[r, state.R_SECTOR]
    depart = max(start, s.pipeline[unit, state.TO_L2])
    s.pipeline[unit, state.TO_L2] = depart + (0 if is_same_line else 1)
    line, bit = sector >> 2, sector & 3
    number = slice_of(s, line)
    at = _slice_turn(s, number, depart + s.rule[state.HOP], s.rule[state.SLICE_TENTHS])
    ways = s.rule[state.L2_WAYS]
    first = (number * s.rule[state.L2_SETS] + _mixed(line) % s.rule[state.L2_SETS]) * ways
    frame = _find(s.l2_line, first, ways, line)
    if frame >= 0:
        s.l2_state[frame, state.USED] = at
        if (s.l2_state[frame, state.VALID] >> bit) & 1:
            s.counters[state.L2_READ_HITS] += 1
            schedule(s, r, at + s.rule[state.L2_RETURN], state.REPLY)
            return
        if (s.l2_state[frame, state.COMING] >> bit) & 1:
            s.counters[state.L2_READ_HITS] += 1
            s.request[r, state.R_NEXT] = s.l2_wait[4 * frame + bit]
            s.l2_wait[4 * frame + bit] = r
            return
    else:
        frame = _l2_allocate(s, number, line, at)
    s.counters[state.L2_READ_MISSES] += 1
    s.counters[state.DRAM_READ_SECTORS] += 1
    s.request[r, state.R_L2] = frame
    if frame >= 0:
        s.l2_state[frame, state.COMING] |= 1 << bit
        s.l2_wait[4 * frame + bit] = -1
    schedule(s, r, at + _TO_MEMORY, state.FETCH)


@inlined
def write_l2(s, unit, sector, start, tenths):  # type: ignore[no-untyped-def]
    """Send a written sector to L2, which needs no data of the memory for it; return when it has it."""
    depart = max(start, s.pipeline[unit, state.TO_L2])
    s.pipeline[unit, state.TO_L2] = depart + 1
    line, bit = sector >> 2, sector & 3
    number = slice_of(s, line)
    at = _slice_turn(s, number, depart + s.rule[state.HOP], tenths)
    ways = s.rule[state.L2_WAYS]
    first = (number * s.rule[state.L2_SETS] + _mixed(line) % s.rule[state.L2_SETS]) * ways
    frame = _find(s.l2_line, first, ways, line)
    if frame < 0:
        frame = _l2_allocate(s, number, line, at)
    s.counters[state.L2_WRITES] += 1
    s.now[state.LAST_STORE] = max(s.now[state.LAST_STORE], at)
    if frame < 0:
        s.counters[state.DRAM_WRITE_SECTORS] += 1
        r = take_request(s, 0, sector)
        schedule(s, r, at + _TO_MEMORY, state.WRITE_BACK)
        return at
    was_changed = s.l2_state[frame, state.CHANGED] != 0
    s.l2_state[frame, state.VALID] |= 1 << bit
    s.l2_state[frame, state.CHANGED] |= 1 << bit
    s.l2_state[frame, state.USED] = at
    if not was_changed:
        _limit_changed(s, first, at)
    return at


@inlined
def _hash(s, address):  # type: ignore[no-untyped-def]
    return _mixed(address) & (len(s.chain) - 1)


@inlined
def fetch(s, m, r, t, is_write):  # type: ignore[no-untyped-def]
    """Send a request to DRAM."""
    address = (s.request[r, state.R_SECTOR] << 5) & -s.rule[state.ACCESS_BYTES]
    group, bank = field_of(s, address, 1), field_of(s, address, 2)
    channel, row = field_of(s, address, 0), field_of(s, address, 3)
    number = channel * s.rule[state.BANKS_OF_CHANNEL] + group * s.rule[state.BANKS_OF_GROUP] + bank
    if is_write:
        release_request(s, r)
    else:
        bucket = _hash(s, address)
        s.request[r, state.R_NEXT] = s.chain[bucket]
        s.chain[bucket] = r
    submit(m, number, row, is_write, address, np.int64(t * s.ratio[0]))


@inlined
def serve_dram(s, m, t):  # type: ignore[no-untyped-def]
    """Let DRAM work until a cycle, and let the data of its reads go to L2."""
    advance(m, np.int64(t * s.ratio[0]))
    for n in range(m.now[FINISHED]):
        address, end = m.finished[n, 0], m.finished[n, 1]
        cycle = np.int64(np.ceil(end / s.ratio[0])) + s.rule[state.MEMORY_LATENCY]
        bucket = _hash(s, address)
        before, r = -1, s.chain[bucket]
        while r >= 0:
            following = s.request[r, state.R_NEXT]
            if (s.request[r, state.R_SECTOR] << 5) & -s.rule[state.ACCESS_BYTES] == address:
                if before < 0:
                    s.chain[bucket] = following
                else:
                    s.request[before, state.R_NEXT] = following
                schedule(s, r, cycle, state.FILL)
            else:
                before = r
            r = following
    m.now[FINISHED] = 0


@inlined
def fill_l2(s, r, t):  # type: ignore[no-untyped-def]
    """Put a sector from DRAM into L2, and answer all who wait for it."""
    frame, bit = s.request[r, state.R_L2], s.request[r, state.R_SECTOR] & 3
    if frame >= 0:
        s.l2_state[frame, state.VALID] |= 1 << bit
        s.l2_state[frame, state.COMING] &= ~(1 << bit)
        other = s.l2_wait[4 * frame + bit]
        s.l2_wait[4 * frame + bit] = -1
        while other >= 0:
            following = s.request[other, state.R_NEXT]
            schedule(s, other, t + s.rule[state.HOP], state.REPLY)
            other = following
    schedule(s, r, t + s.rule[state.HOP], state.REPLY)


@inlined
def reply(s, r, t):  # type: ignore[no-untyped-def]
    """Bring a sector to its compute unit; return the first of the loads that wait for it, and when they have it."""
    unit = s.request[r, state.R_UNIT]
    done = max(10 * t, s.pipeline[unit, state.FROM_L2])
    s.pipeline[unit, state.FROM_L2] = done + 5
    frame, bit = s.request[r, state.R_L1], s.request[r, state.R_SECTOR] & 3
    first = s.request[r, state.R_WAITER]
    if frame >= 0:
        s.l1_state[frame, state.VALID] |= 1 << bit
        s.l1_state[frame, state.COMING] &= ~(1 << bit)
        first = s.l1_wait[4 * frame + bit]
        s.l1_wait[4 * frame + bit] = -1
    return first, done // 10 + 1
