"""The way of an access through the caches, compiled: `walk` takes accesses in order and writes requests to memory.

Each access is issued when its unit may, waits for room in its L1 cache, is served by a slice of the L2 cache, and goes
to memory for what is missing. A queue holds the cycles of service that wait at a slice or at memory. It drains as later
arrivals come, so that an access of a unit that is behind does not find the time of one that is ahead.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from profilers.trace.arrays import Ints
from profilers.trace.compiled import bare, inlined
from replay.memory.replacement import (
    LINE,
    READY,
    ROWS,
    SECTORS,
    Level,
    earliest_fill,
    find_victim,
    find_way,
    touch,
)

#: Counters of a level, by row of `Level.counts`.
(LOADS, LOAD_HITS, STORES, STORE_HITS, LOAD_SECTORS, LOAD_SECTOR_HITS, STORE_SECTORS, STORE_SECTOR_HITS) = range(8)
BYPASSES, EVICTIONS, WRITE_BACKS, RINSED, STALL_CYCLES = range(8, 13)
N_COUNTS = 13
#: Sectors of a line at most. The numbers of `SECTORS` hold valid sectors, dirty ones, an operand, and whether the line
#: was used again.
MOST_SECTORS = 8
_VALID = (1 << MOST_SECTORS) - 1
_DIRTY = _VALID << MOST_SECTORS
_OPERAND_AT, _USED_AGAIN = 2 * MOST_SECTORS, 1 << 22
#: Operands that the predictor of reuse tells apart, and shares of the sets in which each operand is always kept.
OPERANDS = 64
#: Lines evicted without use before an operand may bypass, how many it takes for each that was used again, and the count
#: at which both halve.
_SAMPLES, _DEAD_FOR_USED, _MOST_SAMPLES = 32, 16, 512
#: Rows of `Machine.clock`: the latest issue and the last completion; the queue of memory follows.
LATEST, COMPLETED, MEMORY_QUEUE = 0, 1, 2


class Rules(NamedTuple):
    """What the caches keep, and the geometry that they share.

    Attributes
    ----------
    loads, stores, allocation_bypass, rinse, operand_bypass : int
        Flags of `CachePolicy`.
    dies, in_flight : int
        Dies, and accesses that a unit may have outstanding.
    line_shift : int
        Logarithm of the L1 lines in an L2 line.
    access_bytes, atoms : int
        Bytes of a request to memory, and requests that a whole L2 line takes.
    channels, interleave, row_bytes : int
        Channels of the memory, bytes after which addresses go to the next one, and bytes of a row.
    has_llc : int
        Whether there is a last-level cache.
    memory_latency, request_cycles : float
        Cycles from a request to its data, and cycles of all channels together in which a request occupies them.
    slack : float
        Cycles by which a unit may be behind the latest issue of all units.
    """

    loads: int
    stores: int
    allocation_bypass: int
    rinse: int
    operand_bypass: int
    dies: int
    in_flight: int
    line_shift: int
    access_bytes: int
    atoms: int
    channels: int
    interleave: int
    row_bytes: int
    has_llc: int
    memory_latency: float
    request_cycles: float
    slack: float


class Machine(NamedTuple):
    """All state of a hierarchy of caches for compiled code.

    Attributes
    ----------
    l1, l2, llc : Level
        Levels; the last-level cache has a single set if there is none.
    rules : Rules
        What the caches keep.
    issue : array of float64, shape (units,)
        Cycle at which each unit may issue its next access.
    outstanding : array of int32, shape (units * in_flight,)
        Completions of the last accesses of each unit: a ring.
    next_row : array of int32, shape (units,)
        Next row of each ring.
    sectors : array of int64, shape (L1 lines in an L2 line, 256)
        L2 sectors that hold the given L1 sectors.
    atoms : array of int64, shape (atoms,)
        L2 sectors of each request of a line.
    clock : array of float64
        Latest issue, last completion, queue of memory.
    reuse : array of int64, shape (2 * 64,)
        For each operand, lines that were used again, and lines that were evicted before.
    dirty : array of int32
        Dirty lines by hash of their DRAM row.
    address, is_write : array of int64 and of uint8
        Requests to memory.
    totals : array of int64, shape (2,)
        Number of requests, and of accesses so far.
    """

    l1: Level
    l2: Level
    llc: Level
    rules: Rules
    issue: npt.NDArray[np.float64]
    outstanding: npt.NDArray[np.int32]
    next_row: npt.NDArray[np.int32]
    sectors: npt.NDArray[np.int64]
    atoms: Ints
    clock: npt.NDArray[np.float64]
    reuse: Ints
    dirty: npt.NDArray[np.int32]
    address: Ints
    is_write: npt.NDArray[np.uint8]
    totals: Ints


@bare
def walk(machine, accesses, begin, most):  # type: ignore[no-untyped-def]
    """Take accesses from number `begin` on until all are done or there is no room for `most` requests; return the next.

    Parameters
    ----------
    machine : Machine
        State; changes.
    accesses : tuple of arrays
        Columns of `Accesses`.
    begin : int
        First access to take.
    most : int
        Requests that a single access may cause.
    """
    lines, sectors, is_write, operands, units = accesses
    rules, l1 = machine.rules, machine.l1
    for i in range(begin, len(lines)):
        if machine.totals[0] + most > len(machine.address):
            return i
        machine.totals[1] += 1
        unit = np.int64(units[i])
        slot = unit * rules.in_flight + machine.next_row[unit]
        now = max(machine.issue[unit], np.float64(machine.outstanding[slot]), machine.clock[LATEST] - rules.slack)
        now, done = _serve(machine, (np.int64(lines[i]), np.int64(sectors[i]), is_write[i], operands[i], unit), now)
        machine.issue[unit] = now + l1.line_cycles
        machine.clock[LATEST] = max(machine.clock[LATEST], now)
        machine.clock[COMPLETED] = max(machine.clock[COMPLETED], done)
        machine.outstanding[slot] = _ceil(done)
        following = machine.next_row[unit] + 1
        machine.next_row[unit] = following if following < rules.in_flight else 0
    return len(lines)


@bare
def send(machine, addresses, begin):  # type: ignore[no-untyped-def]
    """Write requests back from number `begin` on, as far as there is room; return the next."""
    for i in range(begin, len(addresses)):
        if machine.totals[0] + 2 > len(machine.address):
            return i
        now = _request(machine, addresses[i], 1, machine.clock[LATEST])
        machine.clock[COMPLETED] = max(machine.clock[COMPLETED], now + machine.rules.request_cycles)
    return len(addresses)


@inlined
def _serve(machine, access, now):  # type: ignore[no-untyped-def]
    """Serve an access that is issued at `now`; return when its unit can go on, and when the access is complete."""
    line, mask, is_write, operand, unit = access
    rules, l1 = machine.rules, machine.l1
    base, way, valid = np.int64(0), np.int64(-1), np.int64(0)
    if rules.loads:
        base = (unit * l1.sets + _set(l1, line)) * ROWS * l1.row
        way = find_way(l1, base, line)
        if way >= 0:
            valid = np.int64(l1.state[base + SECTORS * l1.row + way])
    _count(l1, is_write, mask, valid & mask)
    if is_write:
        if way >= 0:
            touch(l1, base, way, machine.totals[1], False)
            l1.state[base + SECTORS * l1.row + way] = valid | mask
        return now, _serve_l2(machine, (line, mask, is_write, operand, unit), now)
    missing = mask & ~valid
    if way >= 0 and missing == 0:
        touch(l1, base, way, machine.totals[1], False)
        return now, max(now + l1.latency, np.float64(l1.state[base + READY * l1.row + way]))
    room = np.int64(-1)
    if rules.loads:
        room, now = _room(machine, l1, unit, base, way, now)
    if room < 0:
        l1.counts[BYPASSES] += 1
        return now, _serve_l2(machine, (line, missing, is_write, operand, unit), now)
    if way < 0:
        l1.counts[EVICTIONS] += l1.state[base + LINE * l1.row + room] >= 0
        l1.state[base + LINE * l1.row + room] = line
    l1.state[base + SECTORS * l1.row + room] = valid | missing
    touch(l1, base, room, machine.totals[1], way < 0)
    done = _serve_l2(machine, (line, missing, is_write, operand, unit), now)
    _fill(l1, unit, base + READY * l1.row + room, done)
    return now, done


@bare
def _serve_l2(machine, access, now):  # type: ignore[no-untyped-def]
    """Serve what misses L1, or is stored, by a slice of L2; return when the access is complete."""
    l1_line, l1_mask, is_write, operand, unit = access
    rules, l2 = machine.rules, machine.l2
    line = l1_line >> rules.line_shift
    mask = machine.sectors[l1_line - (line << rules.line_shift), l1_mask]
    slice_, base = _place(l2, line, unit % rules.dies if rules.dies > 1 else 0)
    now = _enter(l2.queue, slice_, now, l2.line_cycles)
    way, held = find_way(l2, base, line), np.int64(0)
    if way >= 0:
        held = np.int64(l2.state[base + SECTORS * l2.row + way])
    _count(l2, is_write, mask, held & mask)
    if is_write:
        return _store(machine, (line, mask, operand, slice_, base, way, held), now)
    return _load(machine, (line, mask, operand, slice_, base, way, held), now)


@inlined
def _load(machine, access, now):  # type: ignore[no-untyped-def]
    """Load from L2; return when the data arrive."""
    line, mask, operand, slice_, base, way, held = access
    rules, l2 = machine.rules, machine.l2
    missing = mask & ~held
    if way >= 0:
        touch(l2, base, way, machine.totals[1], False)
        if missing == 0:
            _learn_use(machine, base, way)
            return max(now, np.float64(l2.state[base + READY * l2.row + way])) + l2.latency
    room = np.int64(-1)
    if rules.loads and (way >= 0 or not _bypasses(machine, operand, base)):
        arrived = now
        room, now = _room(machine, l2, slice_, base, way, now)
        l2.queue[2 * slice_] += now - arrived
    l2.counts[BYPASSES] += room < 0
    done, fetched = now, np.int64(0)
    for atom in range(rules.atoms):
        if machine.atoms[atom] & missing:
            fetched |= machine.atoms[atom]
            done = max(done, _request(machine, line * l2.line_bytes + atom * rules.access_bytes, 0, now))
    if room >= 0:
        if way < 0:
            _evict(machine, base, room, now)
            _insert(l2, base, room, line, operand)
            touch(l2, base, room, machine.totals[1], True)
        l2.state[base + SECTORS * l2.row + room] |= fetched
        _fill(l2, slice_, base + READY * l2.row + room, done)
    return done + l2.latency


@inlined
def _store(machine, access, now):  # type: ignore[no-untyped-def]
    """Store to L2, or through it to memory; return when the store is accepted."""
    line, mask, operand, slice_, base, way, held = access
    rules, l2 = machine.rules, machine.l2
    if way >= 0:
        touch(l2, base, way, machine.totals[1], False)
        if held & _atoms_of(machine, mask):
            _learn_use(machine, base, way)
    room = way
    if rules.stores and way < 0 and not _bypasses(machine, operand, base):
        arrived, room = now, find_victim(l2, base, now)
        if room < 0 and not rules.allocation_bypass:
            now = max(now, earliest_fill(l2, base))
            l2.counts[STALL_CYCLES] += _ceil(now - arrived)
            l2.queue[2 * slice_] += now - arrived
            room = find_victim(l2, base, now)
        if room >= 0:
            accepted = _evict(machine, base, room, now)
            _insert(l2, base, room, line, operand)
            l2.state[base + READY * l2.row + room] = _ceil(accepted)
            touch(l2, base, room, machine.totals[1], True)
    l2.counts[BYPASSES] += room < 0
    if rules.stores and room >= 0:
        at = base + SECTORS * l2.row + room
        if rules.rinse and not l2.state[at] & _DIRTY:
            machine.dirty[_row_of(machine, line) & (len(machine.dirty) - 1)] += 1
        l2.state[at] |= mask | (mask << MOST_SECTORS)
        return now + l2.latency
    if room >= 0:
        l2.state[base + SECTORS * l2.row + room] |= mask
    for atom in range(rules.atoms):
        if machine.atoms[atom] & mask:
            now = max(now, _request(machine, line * l2.line_bytes + atom * rules.access_bytes, 1, now))
    return now + l2.latency


@inlined
def _insert(level, base, way, line, operand):  # type: ignore[no-untyped-def]
    """Let a way hold a line without sectors."""
    level.state[base + LINE * level.row + way] = line
    level.state[base + SECTORS * level.row + way] = (operand & (OPERANDS - 1)) << _OPERAND_AT
    level.state[base + READY * level.row + way] = 0


@inlined
def _room(machine, level, slice_, base, way, now):  # type: ignore[no-untyped-def]
    """Return the way for a miss and when it can go on; with allocation bypass, -1 instead of a later time.

    A miss needs a way that does not wait for a fill, unless its line has one already, and a free one of the outstanding
    fills of its slice.
    """
    until = max(now, np.float64(level.fills[slice_ * level.misses + level.head[slice_]]))
    if until > now and machine.rules.allocation_bypass:
        return np.int64(-1), now
    if way < 0:
        way = find_victim(level, base, until)
        if way < 0:
            if machine.rules.allocation_bypass:
                return np.int64(-1), now
            until = max(until, earliest_fill(level, base))
            way = find_victim(level, base, until)
    if until > now:
        level.counts[STALL_CYCLES] += _ceil(until - now)
    return way, until


@inlined
def _fill(level, slice_, at, done):  # type: ignore[no-untyped-def]
    """Let the way with the time at `at` wait for its fill, which arrives at `done`."""
    level.state[at] = max(level.state[at], _ceil(done))
    level.fills[slice_ * level.misses + level.head[slice_]] = _ceil(done)
    following = level.head[slice_] + 1
    level.head[slice_] = following if following < level.misses else 0


@bare
def _evict(machine, base, way, now):  # type: ignore[no-untyped-def]
    """Write a line of L2 back if it is dirty, and with rinsing its DRAM row; return when memory has accepted it."""
    rules, l2 = machine.rules, machine.l2
    line = np.int64(l2.state[base + LINE * l2.row + way])
    if line < 0:
        return now
    held = np.int64(l2.state[base + SECTORS * l2.row + way])
    l2.counts[EVICTIONS] += 1
    if rules.operand_bypass and not held & _USED_AGAIN:
        _learn(machine, base, held, 1)
    if not held & _DIRTY:
        return now
    done = _write_back(machine, base + SECTORS * l2.row + way, line, now)
    if rules.rinse:
        _rinse(machine, base, line, now)
    return done


@bare
def _rinse(machine, base, line, now):  # type: ignore[no-untyped-def]
    """Write back the other dirty lines of a DRAM row in the cache that holds the set at `base`; they stay, clean."""
    rules, l2 = machine.rules, machine.l2
    die = base // (l2.slices * l2.sets * ROWS * l2.row)
    row = _row_of(machine, line) & (len(machine.dirty) - 1)
    stride = rules.channels * rules.interleave
    address = line * l2.line_bytes
    first = address // (rules.row_bytes * rules.channels) * (rules.row_bytes * rules.channels)
    first += address % stride // rules.interleave * rules.interleave
    for run in range(first, first + rules.row_bytes * rules.channels, stride):
        for at in range(run, run + rules.interleave, l2.line_bytes):
            if machine.dirty[row] == 0:
                return
            other = at // l2.line_bytes
            _, others = _place(l2, other, die)
            way = find_way(l2, others, other)
            if way >= 0 and l2.state[others + SECTORS * l2.row + way] & _DIRTY:
                _write_back(machine, others + SECTORS * l2.row + way, other, now)
                l2.counts[RINSED] += 1


@bare
def _write_back(machine, at, line, now):  # type: ignore[no-untyped-def]
    """Write the dirty sectors at `at` of a line back, which makes it clean; return when memory has accepted them."""
    rules, l2 = machine.rules, machine.l2
    dirty, done = (np.int64(l2.state[at]) & _DIRTY) >> MOST_SECTORS, now
    for atom in range(rules.atoms):
        if machine.atoms[atom] & dirty:
            done = max(done, _request(machine, line * l2.line_bytes + atom * rules.access_bytes, 1, now))
    l2.state[at] &= ~_DIRTY
    l2.counts[WRITE_BACKS] += 1
    if rules.rinse:
        machine.dirty[_row_of(machine, line) & (len(machine.dirty) - 1)] -= 1
    return done


@bare
def _request(machine, address, is_write, now):  # type: ignore[no-untyped-def]
    """Send a request past L2; return when its data arrive, or for a write when it is accepted."""
    rules, llc = machine.rules, machine.llc
    if rules.has_llc:
        line = address // llc.line_bytes
        sector = (address - line * llc.line_bytes) // rules.access_bytes
        mask = np.int64(1) << sector
        slice_, base = _place(llc, line, 0)
        now = _enter(llc.queue, slice_, now, llc.line_cycles)
        way, held = find_way(llc, base, line), np.int64(0)
        if way >= 0:
            held = np.int64(llc.state[base + SECTORS * llc.row + way])
            touch(llc, base, way, machine.totals[1], False)
        _count(llc, is_write, mask, held & mask)
        at = base + SECTORS * llc.row + way
        if not is_write and held & mask:
            return max(now, np.float64(llc.state[base + READY * llc.row + way])) + llc.latency
        if way < 0:
            way = find_victim(llc, base, now)
            if way >= 0:
                at = base + SECTORS * llc.row + way
                _evict_llc(machine, base, way, now)
                _insert(llc, base, way, line, 0)
                touch(llc, base, way, machine.totals[1], True)
        llc.counts[BYPASSES] += way < 0
        if is_write and way >= 0:
            llc.state[at] |= mask | (mask << MOST_SECTORS)
            return now
        done = _to_memory(machine, address, is_write, now)
        if not is_write and way >= 0:
            llc.state[at] |= mask
            llc.state[base + READY * llc.row + way] = max(llc.state[base + READY * llc.row + way], _ceil(done))
        return done if is_write else done + llc.latency
    return _to_memory(machine, address, is_write, now)


@bare
def _evict_llc(machine, base, way, now):  # type: ignore[no-untyped-def]
    """Write the dirty sectors of a line of the last-level cache to memory."""
    llc = machine.llc
    line = np.int64(llc.state[base + LINE * llc.row + way])
    if line < 0:
        return
    llc.counts[EVICTIONS] += 1
    dirty = (np.int64(llc.state[base + SECTORS * llc.row + way]) & _DIRTY) >> MOST_SECTORS
    llc.counts[WRITE_BACKS] += dirty != 0
    for sector in range(llc.line_bytes // machine.rules.access_bytes):
        if dirty >> sector & 1:
            _to_memory(machine, line * llc.line_bytes + sector * machine.rules.access_bytes, 1, now)


@inlined
def _to_memory(machine, address, is_write, now):  # type: ignore[no-untyped-def]
    """Write a request to memory; return when its data arrive, or for a write when it is accepted."""
    machine.address[machine.totals[0]], machine.is_write[machine.totals[0]] = address, is_write
    machine.totals[0] += 1
    now = _enter(machine.clock[MEMORY_QUEUE:], 0, now, machine.rules.request_cycles)
    done = now + machine.rules.request_cycles
    machine.clock[COMPLETED] = max(machine.clock[COMPLETED], done)
    return now if is_write else done + machine.rules.memory_latency


@inlined
def _enter(queue, number, now, service):  # type: ignore[no-untyped-def]
    """Join a queue; return when service begins. The queue drains with the latest arrival."""
    waits, latest = queue[2 * number], queue[2 * number + 1]
    if now > latest:
        waits = max(waits - (now - latest), 0.0)
        queue[2 * number + 1] = now
    queue[2 * number] = waits + service
    return now + waits


@inlined
def _bypasses(machine, operand, base):  # type: ignore[no-untyped-def]
    """Return whether an operand bypasses a set of L2: its lines are evicted before they are used again.

    Each operand is kept in one in 64 sets, whatever is known of it, so that a change of its use is noticed.
    """
    number = operand & (OPERANDS - 1)
    if not machine.rules.operand_bypass or _sampled(machine, base) == number:
        return False
    used, dead = machine.reuse[2 * number], machine.reuse[2 * number + 1]
    return dead >= _SAMPLES and dead > _DEAD_FOR_USED * used


@inlined
def _sampled(machine, base):  # type: ignore[no-untyped-def]
    """Return the operand that the set at `base` always keeps."""
    return (base // (ROWS * machine.l2.row) * 0x9E3779B1 >> 16) & (OPERANDS - 1)


@inlined
def _learn_use(machine, base, way):  # type: ignore[no-untyped-def]
    """Note the first use of a line of L2 after the one that filled it."""
    if machine.rules.operand_bypass:
        at = base + SECTORS * machine.l2.row + way
        held = np.int64(machine.l2.state[at])
        if not held & _USED_AGAIN:
            machine.l2.state[at] = held | _USED_AGAIN
            _learn(machine, base, held, 0)


@inlined
def _learn(machine, base, held, is_dead):  # type: ignore[no-untyped-def]
    """Count a line of a sampled set that was used again, or evicted before; counts halve when they get large."""
    number = held >> _OPERAND_AT & (OPERANDS - 1)
    if _sampled(machine, base) == number:
        machine.reuse[2 * number + is_dead] += 1
        if machine.reuse[2 * number + is_dead] >= _MOST_SAMPLES:
            machine.reuse[2 * number] >>= 1
            machine.reuse[2 * number + 1] >>= 1


@inlined
def _count(level, is_write, mask, hit):  # type: ignore[no-untyped-def]
    """Count an access of a level: lines and sectors, and how many of them hit."""
    first = 2 * np.int64(is_write)
    level.counts[first] += 1
    level.counts[first + 1] += mask == hit
    level.counts[first + 4] += _ones(mask)
    level.counts[first + 5] += _ones(hit)


@inlined
def _ones(mask):  # type: ignore[no-untyped-def]
    """Return the number of bits that are set in 8 bits."""
    mask = mask - (mask >> 1 & 0x55)
    mask = (mask & 0x33) + (mask >> 2 & 0x33)
    return (mask + (mask >> 4)) & 0x0F


@inlined
def _atoms_of(machine, mask):  # type: ignore[no-untyped-def]
    """Return the sectors of all requests that touch the given sectors."""
    touched = np.int64(0)
    for atom in range(machine.rules.atoms):
        if machine.atoms[atom] & mask:
            touched |= machine.atoms[atom]
    return touched


@inlined
def _set(level, line):  # type: ignore[no-untyped-def]
    """Return the set of a line in a slice; a XOR hash of the higher bits spreads strides of powers of two."""
    hashed = line ^ line >> 7 ^ line >> 13
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
    return slice_, (slice_ * level.sets + _set(level, turn)) * ROWS * level.row


@inlined
def _row_of(machine, line):  # type: ignore[no-untyped-def]
    """Return the number of the DRAM row of a line, over all channels."""
    rules = machine.rules
    address = line * machine.l2.line_bytes
    channel = address // rules.interleave % rules.channels
    return address // (rules.row_bytes * rules.channels) * rules.channels + channel


@inlined
def _ceil(cycles):  # type: ignore[no-untyped-def]
    """Return the first whole cycle that is not before a time."""
    return np.int32(np.ceil(cycles))
