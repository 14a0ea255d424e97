"""Accesses to memory, compiled: how an operation asks shared memory, constants, L1 and L2 for what its warp wants."""

import numpy as np

from profilers.trace.compiled import inlined
from replay.detailed.timing.assembly import (
    ISSUES,
    LATENCY,
    ROLE,
    SLOTS,
    SLOTS_END,
    TARGETS,
    TARGETS_END,
)
from replay.detailed.timing.caches import (
    l1_allocate,
    l1_place,
    new_waiter,
    read_l2,
    take_request,
    write_l2,
)
from replay.detailed.timing.expansion import (
    CONSTANT_LOAD,
    COPY,
)
from replay.detailed.timing.state import (
    ATOMIC_ACCESSES,
    COMING,
    CONSTANT_CYCLES,
    CONSTANT_REQUESTS,
    COPIES,
    CYCLE,
    DRAM_WINDOW,
    FOLLOWING,
    FREE_LOAD,
    IN_USE,
    L1_LATENCY,
    L1_LOAD_HITS,
    L1_LOAD_MISSES,
    L1_MISSES,
    LOAD_SECTORS,
    MISSING,
    NEVER,
    OF_OPERATION,
    OF_WARP,
    ON_THEIR_WAY,
    PASS_CYCLES,
    PHASE,
    PIPELINE,
    QUEUE,
    R_L1,
    R_WAITER,
    READY,
    RECORD,
    SHARED_ACCESSES,
    SHARED_PASSES,
    SLICE_TENTHS,
    STORE_SECTORS,
    TO_L2,
    USED,
    VALID,
)
from replay.detailed.tracing import (
    ACCESSES,
    SAME_ADDRESS,
)
from replay.memory.banks import INSIDE

#: Requests that are kept free for writes.
_SPARE = 1 << 15


@inlined
def takes(s, m, u, t):  # type: ignore[no-untyped-def]
    """Return whether the memory pipeline of a unit takes an access to global memory."""
    room = s.now[FREE_LOAD] >= 0 and s.now[IN_USE] < len(s.request) - _SPARE and m.now[INSIDE] < s.rule[DRAM_WINDOW]
    near = s.pipeline[u, TO_L2] - t <= 4 * s.rule[QUEUE] and s.pipeline[u, ON_THEIR_WAY] < s.rule[L1_MISSES]
    return room and near


@inlined
def _load_sector(s, u, load, sector, start, before, through):  # type: ignore[no-untyped-def]
    """Let a load ask L1 for a sector; return 1 if it must wait for it."""
    line, bit = sector >> 2, sector & 3
    place = -1 if through else l1_place(s, u, line)
    if place >= 0:
        s.l1_state[place, USED] = s.now[CYCLE]
        if (s.l1_state[place, VALID] >> bit) & 1:
            s.counters[L1_LOAD_HITS] += 1
            return 0
        if (s.l1_state[place, COMING] >> bit) & 1:
            s.counters[L1_LOAD_HITS] += 1
            s.l1_wait[4 * place + bit] = new_waiter(s, load, s.l1_wait[4 * place + bit])
            return 1
    elif not through:
        place = l1_allocate(s, u, line)
    s.counters[L1_LOAD_MISSES] += 1
    r = take_request(s, u, sector)
    s.request[r, R_L1] = place
    if place >= 0:
        s.l1_state[place, COMING] |= 1 << bit
        s.l1_wait[4 * place + bit] = new_waiter(s, load, -1)
    else:
        s.request[r, R_WAITER] = new_waiter(s, load, -1)
    s.pipeline[u, ON_THEIR_WAY] += 1
    read_l2(s, r, start, before == line)
    return 1


@inlined
def global_load(s, trace, operations, lists, w, o, u, t):  # type: ignore[no-untyped-def]
    """Issue a load of global memory, or a copy from it to shared memory."""
    record, n_sectors = s.warp[w, RECORD], 0
    for k in range(operations[o, SLOTS], operations[o, SLOTS_END]):
        at = trace[record + ACCESSES + lists[k]]
        n_sectors += trace[record + at] if at > 0 else 0
    is_copy = operations[o, ROLE] == COPY
    if n_sectors == 0:
        for k in range(operations[o, TARGETS], operations[o, TARGETS_END]):
            s.ready[w, lists[k]] = t + 1
        return
    start = max(t + 1, s.pipeline[u, PIPELINE])
    passes = (n_sectors + 3) >> 2
    s.pipeline[u, PIPELINE] = start + passes * s.rule[PASS_CYCLES]
    load = s.now[FREE_LOAD]
    s.now[FREE_LOAD] = s.load[load, FOLLOWING]
    missing, before = 0, np.int64(-1)
    s.counters[LOAD_SECTORS] += n_sectors
    for k in range(operations[o, SLOTS], operations[o, SLOTS_END]):
        at = trace[record + ACCESSES + lists[k]]
        if at <= 0:
            continue
        for n in range(1, trace[record + at] + 1):
            sector = np.int64(trace[record + at + n])
            missing += _load_sector(s, u, load, sector, start + (n >> 2), before, is_copy)
            before = sector >> 2
    s.load[load, OF_WARP], s.load[load, MISSING] = w, missing
    s.load[load, READY] = start + passes - 1 + s.rule[L1_LATENCY]
    s.load[load, OF_OPERATION] = o
    if is_copy:
        s.load[load, OF_OPERATION] = -1 - s.warp[w, PHASE]
        s.warp[w, COPIES + s.warp[w, PHASE]] += missing > 0
    value = NEVER if missing > 0 else s.load[load, READY]
    for k in range(operations[o, TARGETS], operations[o, TARGETS_END]):
        s.ready[w, lists[k]] = value
    if missing == 0:
        s.load[load, FOLLOWING] = s.now[FREE_LOAD]
        s.now[FREE_LOAD] = load


@inlined
def global_store(s, trace, operations, lists, w, o, u, t):  # type: ignore[no-untyped-def]
    """Issue a store to global memory, which goes through L1 to L2."""
    record = s.warp[w, RECORD]
    start = max(t + 1, s.pipeline[u, PIPELINE])
    total = 0
    for k in range(operations[o, SLOTS], operations[o, SLOTS_END]):
        at = trace[record + ACCESSES + lists[k]]
        if at <= 0:
            continue
        for n in range(1, trace[record + at] + 1):
            write_l2(s, u, np.int64(trace[record + at + n]), start + (n >> 2), s.rule[SLICE_TENTHS])
            total += 1
    s.counters[STORE_SECTORS] += total
    s.pipeline[u, PIPELINE] = start + ((total + 3) >> 2) * s.rule[PASS_CYCLES]


@inlined
def atomic(s, trace, operations, lists, w, o, u, t):  # type: ignore[no-untyped-def]
    """Issue an atomic access, of shared memory or, in L2, of global memory."""
    record, at = s.warp[w, RECORD], 0
    for k in range(operations[o, SLOTS], operations[o, SLOTS_END]):
        at = trace[record + ACCESSES + lists[k]]
    start = max(t + 1, s.pipeline[u, PIPELINE])
    s.counters[ATOMIC_ACCESSES] += 1
    ready, has_targets = t + 1, operations[o, TARGETS] < operations[o, TARGETS_END]
    if at < 0:
        s.pipeline[u, PIPELINE] = start - 2 * at
        ready = start - 2 * at + operations[o, LATENCY]
    elif at > 0:
        n = trace[record + at] & ((1 << SAME_ADDRESS) - 1)
        alike = trace[record + at] >> SAME_ADDRESS
        s.pipeline[u, PIPELINE] = start + ((n + 3) >> 2)
        for k in range(1, n + 1):
            end = write_l2(s, u, np.int64(trace[record + at + k]), start + (k >> 2), 10 * alike)
            ready = max(ready, end + alike + s.rule[L1_LATENCY])
    if has_targets:
        for k in range(operations[o, TARGETS], operations[o, TARGETS_END]):
            s.ready[w, lists[k]] = ready


@inlined
def shared(s, trace, operations, lists, w, o, u, t):  # type: ignore[no-untyped-def]
    """Issue an access to shared or constant memory."""
    record, passes, role = s.warp[w, RECORD], 0, operations[o, ROLE]
    for k in range(operations[o, SLOTS], operations[o, SLOTS_END]):
        passes = max(passes, -trace[record + ACCESSES + lists[k]])
    ready = t + 1
    if passes > 0:
        start = max(t + 1, s.pipeline[u, PIPELINE])
        if role == CONSTANT_LOAD:
            s.counters[CONSTANT_REQUESTS] += passes
            passes *= s.rule[CONSTANT_CYCLES]
        else:
            s.counters[SHARED_ACCESSES] += operations[o, ISSUES]
            s.counters[SHARED_PASSES] += passes
            passes *= s.rule[PASS_CYCLES]
        s.pipeline[u, PIPELINE] = start + passes
        ready = start + passes - 1 + operations[o, LATENCY]
    for k in range(operations[o, TARGETS], operations[o, TARGETS_END]):
        s.ready[w, lists[k]] = ready
