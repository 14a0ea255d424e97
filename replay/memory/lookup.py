"""The way of an access through the caches, compiled: `walk` takes accesses in order and writes requests to memory.

Each access is issued when its unit may, waits for room in its L1 cache, is served by a slice of the L2 cache, and goes
to memory for what is missing. A queue holds the cycles of service that wait at a slice or at memory. It drains as later
arrivals come, so that an access of a unit that is behind does not find the time of one that is ahead.

Indices are unsigned: numba then leaves out its test for negative ones, which took a tenth of the time.
"""

import numpy as np

from profilers.trace.compiled import bare, inlined
from replay.memory.cache_layout import (
    ATOMS,
    BYPASSES,
    COMPLETED,
    DIRTY,
    EVICTIONS,
    FETCHED_TABLE,
    HELD,
    ISSUE,
    L1,
    L2,
    LATEST,
    LINE,
    LLC,
    LOAD,
    LOAD_HITS,
    LOAD_SECTOR_HITS,
    MEMORY_QUEUE,
    MOST_SECTORS,
    NEW,
    OPERAND_AT,
    OPERANDS,
    READY,
    REQUESTS,
    RINSED,
    ROW_TABLE,
    ROWS,
    SECTORS,
    STALL_CYCLES,
    STEPS,
    STORE,
    TRANSLATION,
    WRITE_BACKS,
    bypasses,
    earliest_fill,
    find_victim,
    find_way,
    learn_eviction,
    learn_use,
    touch,
    weigh,
)  # fmt: skip


@bare
def walk(state, accesses, bounds, most):  # type: ignore[no-untyped-def]
    """Take accesses between two numbers while there is room for `most` requests; return the number of the next.

    Parameters
    ----------
    state : CacheState
        State; changes.
    accesses : tuple of arrays
        Columns of `Accesses`.
    bounds : tuple of int
        First access to take, and the one after the last.
    most : int
        Requests that a single access may cause.
    """
    lines, sectors, is_write, operands, units = accesses
    rules, line_cycles = state.rules[0], state.levels[L1].line_cycles
    latest, completed, following = state.times[LATEST], state.times[COMPLETED], bounds[1]
    for i in range(bounds[0], bounds[1]):
        if state.numbers[REQUESTS] + most > len(state.address):
            following = i
            break
        state.numbers[STEPS] += 1
        unit = np.int64(units[i])
        row = state.cells[np.uint64(rules.next_row + unit)]
        slot = rules.outstanding + unit * rules.in_flight + row
        now = max(state.times[np.uint64(ISSUE + unit)], np.float64(state.cells[np.uint64(slot)]), latest - rules.slack)
        now, done = _serve(state, (np.int64(lines[i]), np.int64(sectors[i]), is_write[i], operands[i], unit), now)
        state.times[np.uint64(ISSUE + unit)] = now + line_cycles
        state.cells[np.uint64(slot)] = _ceil(done)
        state.cells[np.uint64(rules.next_row + unit)] = row + 1 if row + 1 < rules.in_flight else 0
        latest, completed = max(latest, now), max(completed, done)
    state.times[LATEST] = latest
    state.times[COMPLETED] = max(completed, state.times[MEMORY_QUEUE] + state.times[np.uint64(MEMORY_QUEUE + 1)])
    return following


@bare
def send(state, addresses, begin):  # type: ignore[no-untyped-def]
    """Write requests back from number `begin` on, as far as there is room; return the next."""
    for i in range(begin, len(addresses)):
        if state.numbers[REQUESTS] + 1 + MOST_SECTORS > len(state.address):
            return i
        _request(state, addresses[i], STORE, state.times[LATEST])
    queued = state.times[MEMORY_QUEUE] + state.times[np.uint64(MEMORY_QUEUE + 1)]
    state.times[COMPLETED] = max(state.times[COMPLETED], queued)
    return len(addresses)


@inlined
def _serve(state, access, now):  # type: ignore[no-untyped-def]
    """Serve an access that is issued at `now`; return when its unit can go on, and when the access is complete."""
    line, mask, is_write, operand, unit = access
    rules, l1 = state.rules[0], state.levels[L1]
    base, way, valid = np.int64(0), np.int64(-1), np.int64(0)
    if rules.loads:
        base = l1.begin + (unit * l1.sets + _set(l1, line)) * ROWS * l1.row
        way = find_way(state, l1, base, line)
        if way >= 0:
            valid = np.int64(state.cells[np.uint64(base + SECTORS * l1.row + way)])
    _count(state, l1, is_write, mask, valid & mask)
    missing, room = mask & ~valid, np.int64(-1)
    if is_write:
        missing = mask
        if way >= 0:
            touch(state, l1, base, way, state.numbers[STEPS], HELD)
            state.cells[np.uint64(base + SECTORS * l1.row + way)] = valid | mask
    elif way >= 0 and missing == 0:
        touch(state, l1, base, way, state.numbers[STEPS], HELD)
        return now, max(now + l1.latency, np.float64(state.cells[np.uint64(base + READY * l1.row + way)]))
    else:
        if rules.loads:
            room, now = _room(state, l1, unit, base, way, now)
        if room < 0:
            state.numbers[np.uint64(l1.counts + BYPASSES)] += 1
        else:
            if way < 0:
                state.numbers[np.uint64(l1.counts + EVICTIONS)] += (
                    state.cells[np.uint64(base + LINE * l1.row + room)] >= 0
                )
                state.cells[np.uint64(base + LINE * l1.row + room)] = line
            state.cells[np.uint64(base + SECTORS * l1.row + room)] = valid | missing
            touch(state, l1, base, room, state.numbers[STEPS], way < 0)
    done = _serve_l2(state, (line, missing, is_write, operand, unit), now)
    if room >= 0:
        _fill(state, l1, unit, base + READY * l1.row + room, done)
    return now, done


@inlined
def _serve_l2(state, access, now):  # type: ignore[no-untyped-def]
    """Serve what misses L1, or is stored, by a slice of L2; return when the access is complete."""
    l1_line, l1_mask, is_write, operand, unit = access
    rules, l2 = state.rules[0], state.levels[L2]
    line = l1_line >> rules.line_shift
    mask = state.numbers[np.uint64(TRANSLATION + ((l1_line - (line << rules.line_shift)) << MOST_SECTORS) + l1_mask)]
    slice_, base = _place(l2, line, unit % rules.dies if rules.dies > 1 else 0)
    now = _enter(state, l2.queue + 2 * slice_, now, l2.line_cycles)
    way, held = find_way(state, l2, base, line), np.int64(0)
    if way >= 0:
        held = np.int64(state.cells[np.uint64(base + SECTORS * l2.row + way)])
    _count(state, l2, is_write, mask, held & mask)
    if is_write:
        return _store(state, (line, mask, operand, slice_, base, way, held), now)
    return _load(state, (line, mask, operand, slice_, base, way, held), now)


@inlined
def _load(state, access, now):  # type: ignore[no-untyped-def]
    """Load from L2; return when the data arrive."""
    line, mask, operand, slice_, base, way, held = access
    rules, l2 = state.rules[0], state.levels[L2]
    missing = mask & ~held
    if way >= 0:
        touch(state, l2, base, way, state.numbers[STEPS], HELD)
        if missing == 0:
            learn_use(state, base, way)
            if rules.adaptive:
                weigh(state, base, np.int64(0))
            return max(now, np.float64(state.cells[np.uint64(base + READY * l2.row + way)])) + l2.latency
    room = np.int64(-1)
    if rules.loads and (way >= 0 or not bypasses(state, operand, base, LOAD)):
        arrived = now
        room, now = _room(state, l2, slice_, base, way, now)
        state.times[np.uint64(l2.queue + 2 * slice_)] += now - arrived
    fetch = rules.fetched + 3 * ((line ^ base >> 8) & (FETCHED_TABLE - 1))
    if room < 0 and rules.loads and rules.allocation_bypass:
        arrives = np.float64(state.cells[np.uint64(fetch + 2)])
        is_on_its_way = state.cells[np.uint64(fetch)] == line and arrives > now
        if is_on_its_way and missing & ~np.int64(state.cells[np.uint64(fetch + 1)]) == 0:
            _count_merged(state, l2, missing)
            return arrives + l2.latency
    state.numbers[np.uint64(l2.counts + BYPASSES)] += room < 0
    done, fetched = now, np.int64(0)
    if rules.adaptive:
        weigh(state, base, missing)
    for atom in range(rules.atoms):
        if state.numbers[np.uint64(ATOMS + atom)] & missing:
            fetched |= state.numbers[np.uint64(ATOMS + atom)]
            done = max(done, _request(state, line * l2.line_bytes + atom * rules.access_bytes, LOAD, now))
    if room >= 0:
        if way < 0:
            _evict(state, base, room, now)
            _insert(state, l2, base, room, line, operand)
            touch(state, l2, base, room, state.numbers[STEPS], NEW)
        state.cells[np.uint64(base + SECTORS * l2.row + room)] |= fetched
        _fill(state, l2, slice_, base + READY * l2.row + room, done)
    elif rules.allocation_bypass:
        state.cells[np.uint64(fetch)], state.cells[np.uint64(fetch + 1)] = line, fetched
        state.cells[np.uint64(fetch + 2)] = _ceil(done)
    return done + l2.latency


@inlined
def _count_merged(state, level, mask):  # type: ignore[no-untyped-def]
    """Count a load that waits for a fetch that another load has begun: a hit, although its line has no way."""
    state.numbers[np.uint64(level.counts + LOAD_HITS)] += 1
    state.numbers[np.uint64(level.counts + LOAD_SECTOR_HITS)] += _ones(mask)


@inlined
def _store(state, access, now):  # type: ignore[no-untyped-def]
    """Store to L2, or through it to memory; return when the store is accepted."""
    line, mask, operand, slice_, base, way, held = access
    rules, l2 = state.rules[0], state.levels[L2]
    if way >= 0:
        touch(state, l2, base, way, state.numbers[STEPS], HELD)
        if held & _atoms_of(state, mask):
            learn_use(state, base, way)
    room = way
    if rules.stores and way < 0 and not bypasses(state, operand, base, STORE):
        arrived, room = now, find_victim(state, l2, base, now)
        if room < 0 and not rules.allocation_bypass:
            now = max(now, earliest_fill(state, l2, base))
            state.numbers[np.uint64(l2.counts + STALL_CYCLES)] += _ceil(now - arrived)
            state.times[np.uint64(l2.queue + 2 * slice_)] += now - arrived
            room = find_victim(state, l2, base, now)
        if room >= 0:
            accepted = _evict(state, base, room, now)
            _insert(state, l2, base, room, line, operand)
            state.cells[np.uint64(base + READY * l2.row + room)] = _ceil(accepted)
            touch(state, l2, base, room, state.numbers[STEPS], NEW)
    state.numbers[np.uint64(l2.counts + BYPASSES)] += room < 0
    if rules.stores and room >= 0:
        at = base + SECTORS * l2.row + room
        if rules.adaptive:
            weigh(state, base, mask & ~(np.int64(state.cells[np.uint64(at)]) >> MOST_SECTORS))
        if rules.rinse and not state.cells[np.uint64(at)] & DIRTY:
            state.cells[np.uint64(_dirty_lines(state, line))] += 1
        state.cells[np.uint64(at)] |= mask | (mask << MOST_SECTORS)
        return now + l2.latency
    if rules.adaptive:
        weigh(state, base, mask)
    if room >= 0:
        state.cells[np.uint64(base + SECTORS * l2.row + room)] |= mask
    for atom in range(rules.atoms):
        if state.numbers[np.uint64(ATOMS + atom)] & mask:
            now = max(now, _request(state, line * l2.line_bytes + atom * rules.access_bytes, STORE, now))
    return now + l2.latency


@inlined
def _insert(state, level, base, way, line, operand):  # type: ignore[no-untyped-def]
    """Let a way hold a line without sectors."""
    state.cells[np.uint64(base + LINE * level.row + way)] = line
    state.cells[np.uint64(base + SECTORS * level.row + way)] = (operand & (OPERANDS - 1)) << OPERAND_AT
    state.cells[np.uint64(base + READY * level.row + way)] = 0


@inlined
def _room(state, level, slice_, base, way, now):  # type: ignore[no-untyped-def]
    """Return the way for a miss and when it can go on; with allocation bypass, -1 instead of a later time.

    A miss needs a way that does not wait for a fill, unless its line has one already, and a free one of the outstanding
    fills of its slice.
    """
    until = max(
        now,
        np.float64(
            state.cells[np.uint64(level.fills + slice_ * level.misses + state.cells[np.uint64(level.heads + slice_)])]
        ),
    )
    if until > now and state.rules[0].allocation_bypass:
        return np.int64(-1), now
    if way < 0:
        way = find_victim(state, level, base, until)
        if way < 0:
            if state.rules[0].allocation_bypass:
                return np.int64(-1), now
            until = max(until, earliest_fill(state, level, base))
            way = find_victim(state, level, base, until)
    if until > now:
        state.numbers[np.uint64(level.counts + STALL_CYCLES)] += _ceil(until - now)
    return way, until


@inlined
def _fill(state, level, slice_, at, done):  # type: ignore[no-untyped-def]
    """Let the way with the time at `at` wait for its fill, which arrives at `done`."""
    state.cells[np.uint64(at)] = max(state.cells[np.uint64(at)], _ceil(done))
    state.cells[np.uint64(level.fills + slice_ * level.misses + state.cells[np.uint64(level.heads + slice_)])] = _ceil(
        done
    )
    following = state.cells[np.uint64(level.heads + slice_)] + 1
    state.cells[np.uint64(level.heads + slice_)] = following if following < level.misses else 0


@inlined
def _evict(state, base, way, now):  # type: ignore[no-untyped-def]
    """Write a line of L2 back if it is dirty, and with rinsing its DRAM row; return when memory has accepted it."""
    l2 = state.levels[L2]
    if state.cells[np.uint64(base + LINE * l2.row + way)] < 0:
        return now
    held = np.int64(state.cells[np.uint64(base + SECTORS * l2.row + way)])
    state.numbers[np.uint64(l2.counts + EVICTIONS)] += 1
    learn_eviction(state, base, held)
    return _evict_dirty(state, base, way, now) if held & DIRTY else now


@bare
def _evict_dirty(state, base, way, now):  # type: ignore[no-untyped-def]
    """Write a dirty line of L2 back, and with rinsing its DRAM row; return when memory has accepted it."""
    l2 = state.levels[L2]
    line = np.int64(state.cells[np.uint64(base + LINE * l2.row + way)])
    done = _write_back(state, base + SECTORS * l2.row + way, line, now)
    if state.rules[0].rinse:
        _rinse(state, base, line, now)
    return done


@bare
def _rinse(state, base, line, now):  # type: ignore[no-untyped-def]
    """Write back the other dirty lines of a DRAM row in the cache that holds the set at `base`; they stay, clean."""
    rules, l2 = state.rules[0], state.levels[L2]
    die = (base - l2.begin) // (l2.slices * l2.sets * ROWS * l2.row)
    row = _dirty_lines(state, line)
    stride = rules.channels * rules.interleave
    channel = _channel(rules, line * l2.line_bytes)
    first = line * l2.line_bytes // (rules.row_bytes * rules.channels) * (rules.row_bytes * rules.channels)
    for turn in range(first, first + rules.row_bytes * rules.channels, stride):
        # The channel of an address is its hash of the bits above, combined with its own bits.
        run = turn + (channel ^ _channel(rules, turn) if rules.fold else channel) * rules.interleave
        for at in range(run, run + rules.interleave, l2.line_bytes):
            if state.cells[np.uint64(row)] == 0:
                return
            other = at // l2.line_bytes
            _, others = _place(l2, other, die)
            way = find_way(state, l2, others, other)
            if way >= 0 and state.cells[np.uint64(others + SECTORS * l2.row + way)] & DIRTY:
                _write_back(state, others + SECTORS * l2.row + way, other, now)
                state.numbers[np.uint64(l2.counts + RINSED)] += 1


@bare
def _write_back(state, at, line, now):  # type: ignore[no-untyped-def]
    """Write the dirty sectors at `at` of a line back, which makes it clean; return when memory has accepted them."""
    rules, l2 = state.rules[0], state.levels[L2]
    dirty, done = (np.int64(state.cells[np.uint64(at)]) & DIRTY) >> MOST_SECTORS, now
    for atom in range(rules.atoms):
        if state.numbers[np.uint64(ATOMS + atom)] & dirty:
            done = max(done, _request(state, line * l2.line_bytes + atom * rules.access_bytes, STORE, now))
    state.cells[np.uint64(at)] &= ~DIRTY
    state.numbers[np.uint64(l2.counts + WRITE_BACKS)] += 1
    if rules.rinse:
        state.cells[np.uint64(_dirty_lines(state, line))] -= 1
    return done


@inlined
def _request(state, address, is_write, now):  # type: ignore[no-untyped-def]
    """Send a request past L2; return when its data arrive, or for a write when it is accepted."""
    if state.rules[0].has_llc:
        return _serve_llc(state, address, is_write, now)
    return _to_memory(state, address, is_write, now)


@bare
def _serve_llc(state, address, is_write, now):  # type: ignore[no-untyped-def]
    """Serve a request by the last-level cache; return when its data arrive, or for a write when it is accepted."""
    rules, llc = state.rules[0], state.levels[LLC]
    line = address // llc.line_bytes
    sector = (address - line * llc.line_bytes) // rules.access_bytes
    mask = np.int64(1) << sector
    slice_, base = _place(llc, line, np.int64(0))
    now = _enter(state, llc.queue + 2 * slice_, now, llc.line_cycles)
    way, held = find_way(state, llc, base, line), np.int64(0)
    if way >= 0:
        held = np.int64(state.cells[np.uint64(base + SECTORS * llc.row + way)])
        touch(state, llc, base, way, state.numbers[STEPS], HELD)
    _count(state, llc, is_write, mask, held & mask)
    at = base + SECTORS * llc.row + way
    if not is_write and held & mask:
        return max(now, np.float64(state.cells[np.uint64(base + READY * llc.row + way)])) + llc.latency
    if way < 0:
        way = find_victim(state, llc, base, now)
        if way >= 0:
            at = base + SECTORS * llc.row + way
            _evict_llc(state, base, way, now)
            _insert(state, llc, base, way, line, np.int16(0))
            touch(state, llc, base, way, state.numbers[STEPS], NEW)
    state.numbers[np.uint64(llc.counts + BYPASSES)] += way < 0
    if is_write and way >= 0:
        state.cells[np.uint64(at)] |= mask | (mask << MOST_SECTORS)
        return now
    done = _to_memory(state, address, is_write, now)
    if not is_write and way >= 0:
        state.cells[np.uint64(at)] |= mask
        state.cells[np.uint64(base + READY * llc.row + way)] = max(
            state.cells[np.uint64(base + READY * llc.row + way)], _ceil(done)
        )
    return done if is_write else done + llc.latency


@bare
def _evict_llc(state, base, way, now):  # type: ignore[no-untyped-def]
    """Write the dirty sectors of a line of the last-level cache to memory."""
    llc = state.levels[LLC]
    line = np.int64(state.cells[np.uint64(base + LINE * llc.row + way)])
    if line < 0:
        return
    state.numbers[np.uint64(llc.counts + EVICTIONS)] += 1
    dirty = (np.int64(state.cells[np.uint64(base + SECTORS * llc.row + way)]) & DIRTY) >> MOST_SECTORS
    state.numbers[np.uint64(llc.counts + WRITE_BACKS)] += dirty != 0
    for sector in range(llc.line_bytes // state.rules[0].access_bytes):
        if dirty >> sector & 1:
            _to_memory(state, line * llc.line_bytes + sector * state.rules[0].access_bytes, STORE, now)


@inlined
def _to_memory(state, address, is_write, now):  # type: ignore[no-untyped-def]
    """Write a request to memory; return when its data arrive, or for a write when it is accepted."""
    state.address[state.numbers[REQUESTS]], state.is_write[state.numbers[REQUESTS]] = address, is_write
    state.numbers[REQUESTS] += 1
    now = _enter(state, np.int64(MEMORY_QUEUE), now, state.rules[0].request_cycles)
    done = now + state.rules[0].request_cycles
    return now if is_write else done + state.rules[0].memory_latency


@inlined
def _enter(state, queue, now, service):  # type: ignore[no-untyped-def]
    """Join a queue; return when service begins. The queue drains with the latest arrival."""
    waits, latest = state.times[np.uint64(queue)], state.times[np.uint64(queue + 1)]
    if now > latest:
        waits = max(waits - (now - latest), 0.0)
        state.times[np.uint64(queue + 1)] = now
    state.times[np.uint64(queue)] = waits + service
    return now + waits


@inlined
def _count(state, level, is_write, mask, hit):  # type: ignore[no-untyped-def]
    """Count an access of a level: lines and sectors, and how many of them hit."""
    first = 2 * np.int64(is_write)
    state.numbers[np.uint64(level.counts + first)] += 1
    state.numbers[np.uint64(level.counts + first + 1)] += mask == hit
    state.numbers[np.uint64(level.counts + first + 4)] += _ones(mask)
    state.numbers[np.uint64(level.counts + first + 5)] += _ones(hit)


@inlined
def _ones(mask):  # type: ignore[no-untyped-def]
    """Return the number of bits that are set in 8 bits."""
    mask = mask - (mask >> 1 & 0x55)
    mask = (mask & 0x33) + (mask >> 2 & 0x33)
    return (mask + (mask >> 4)) & 0x0F


@inlined
def _atoms_of(state, mask):  # type: ignore[no-untyped-def]
    """Return the sectors of all requests that touch the given sectors."""
    touched = np.int64(0)
    for atom in range(state.rules[0].atoms):
        if state.numbers[np.uint64(ATOMS + atom)] & mask:
            touched |= state.numbers[np.uint64(ATOMS + atom)]
    return touched


@inlined
def _set(level, line):  # type: ignore[no-untyped-def]
    """Return the set of a line in a slice."""
    hashed = line ^ line >> level.near ^ line >> level.far
    return hashed & level.set_mask if level.set_mask >= 0 else hashed % level.sets


@inlined
def _place(level, line, cache):  # type: ignore[no-untyped-def]
    """Return the slice of a line, counted over all caches, and the begin of its set.

    Lines go to slices in turn. A XOR hash of the higher bits rotates the turn, so that no stride falls on one slice.
    """
    turn = line >> level.slice_shift if level.slice_shift >= 0 else line // level.slices
    rest = line - turn * level.slices + (turn ^ turn >> 5 ^ turn >> 11 ^ turn >> 17)
    slice_ = rest & (level.slices - 1) if level.slice_shift >= 0 else rest % level.slices
    slice_ += cache * level.slices
    return slice_, level.begin + (slice_ * level.sets + _set(level, turn)) * ROWS * level.row


@inlined
def _dirty_lines(state, line):  # type: ignore[no-untyped-def]
    """Return the cell that counts the dirty lines of the DRAM row of a line, and of rows with the same hash."""
    rules = state.rules[0]
    address = line * state.levels[L2].line_bytes
    row = address // (rules.row_bytes * rules.channels) * rules.channels + _channel(rules, address)
    return rules.dirty + (row & (ROW_TABLE - 1))


@inlined
def _channel(rules, address):  # type: ignore[no-untyped-def]
    """Return the channel of an address (`replay.memory.mapping`)."""
    turn = address // rules.interleave
    channel = turn % rules.channels
    if rules.fold > 0:
        turn >>= rules.fold
        while turn > 0:
            channel ^= turn & (rules.channels - 1)
            turn >>= rules.fold
    return channel


@inlined
def _ceil(cycles):  # type: ignore[no-untyped-def]
    """Return the first whole cycle that is not before a time."""
    return np.int32(np.ceil(cycles))
