"""Accesses to memory, compiled: how an operation asks shared memory, constants, L1 and L2 for what its warp wants."""

import numpy as np

from profilers.trace.compiled import inlined
from replay.detailed.timing import state
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
    l1_frame,
    new_waiter,
    read_l2,
    take_request,
    write_l2,
)
from replay.detailed.timing.expansion import (
    CONSTANT_LOAD,
    COPY,
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
    room = (
        s.now[state.FREE_LOAD] >= 0
        and s.now[state.IN_USE] < len(s.request) - _SPARE
        and m.now[INSIDE] < s.rule[state.DRAM_WINDOW]
    )
    near = (
        s.pipeline[u, state.TO_L2] - t <= 4 * s.rule[state.QUEUE]
        and s.pipeline[u, state.ON_THEIR_WAY] < s.rule[state.L1_MISSES]
    )
    return room and near


@inlined
def _load_sector(s, u, load, sector, start, before, through):  # type: ignore[no-untyped-def]
    """Let a load ask L1 for a sector; return 1 if it must wait for it."""
    line, bit = sector >> 2, sector & 3
    frame = -1 if through else l1_frame(s, u, line)
    if frame >= 0:
        s.l1_state[frame, state.USED] = s.now[state.CYCLE]
        if (s.l1_state[frame, state.VALID] >> bit) & 1:
            s.counters[state.L1_LOAD_HITS] += 1
            return 0
        if (s.l1_state[frame, state.COMING] >> bit) & 1:
            s.counters[state.L1_LOAD_HITS] += 1
            s.l1_wait[4 * frame + bit] = new_waiter(s, load, s.l1_wait[4 * frame + bit])
            return 1
    elif not through:
        frame = l1_allocate(s, u, line)
    s.counters[state.L1_LOAD_MISSES] += 1
    r = take_request(s, u, sector)
    s.request[r, state.R_L1] = frame
    if frame >= 0:
        s.l1_state[frame, state.COMING] |= 1 << bit
        s.l1_wait[4 * frame + bit] = new_waiter(s, load, -1)
    else:
        s.request[r, state.R_WAITER] = new_waiter(s, load, -1)
    s.pipeline[u, state.ON_THEIR_WAY] += 1
    read_l2(s, r, start, before == line)
    return 1


@inlined
def global_load(s, code, w, o, u, t):  # type: ignore[no-untyped-def]
    """Issue a load of global memory, or a copy from it to shared memory."""
    record, n_sectors = s.warp[w, state.RECORD], 0
    for k in range(code.operations[o, SLOTS], code.operations[o, SLOTS_END]):
        at = code.trace[record + ACCESSES + code.lists[k]]
        n_sectors += code.trace[record + at] if at > 0 else 0
    is_copy = code.operations[o, ROLE] == COPY
    if n_sectors == 0:
        for k in range(code.operations[o, TARGETS], code.operations[o, TARGETS_END]):
            s.ready[w, code.lists[k]] = t + 1
        return
    start = max(t + 1, s.pipeline[u, state.PIPELINE])
    passes = (n_sectors + 3) >> 2
    s.pipeline[u, state.PIPELINE] = start + passes * s.rule[state.PASS_CYCLES]
    load = s.now[state.FREE_LOAD]
    s.now[state.FREE_LOAD] = s.load[load, state.FOLLOWING]
    missing, before = 0, np.int64(-1)
    s.counters[state.LOAD_SECTORS] += n_sectors
    for k in range(code.operations[o, SLOTS], code.operations[o, SLOTS_END]):
        at = code.trace[record + ACCESSES + code.lists[k]]
        if at <= 0:
            continue
        for n in range(1, code.trace[record + at] + 1):
            sector = np.int64(code.trace[record + at + n])
            missing += _load_sector(s, u, load, sector, start + (n >> 2), before, is_copy)
            before = sector >> 2
    s.load[load, state.OF_WARP], s.load[load, state.MISSING] = w, missing
    s.load[load, state.READY] = start + passes - 1 + s.rule[state.L1_LATENCY]
    s.load[load, state.OF_OPERATION] = o
    if is_copy:
        s.load[load, state.OF_OPERATION] = -1 - s.warp[w, state.PHASE]
        s.warp[w, state.COPIES + s.warp[w, state.PHASE]] += missing > 0
    value = state.NEVER if missing > 0 else s.load[load, state.READY]
    for k in range(code.operations[o, TARGETS], code.operations[o, TARGETS_END]):
        s.ready[w, code.lists[k]] = value
    if missing == 0:
        s.load[load, state.FOLLOWING] = s.now[state.FREE_LOAD]
        s.now[state.FREE_LOAD] = load


@inlined
def global_store(s, code, w, o, u, t):  # type: ignore[no-untyped-def]
    """Issue a store to global memory, which goes through L1 to L2."""
    record = s.warp[w, state.RECORD]
    start = max(t + 1, s.pipeline[u, state.PIPELINE])
    total = 0
    for k in range(code.operations[o, SLOTS], code.operations[o, SLOTS_END]):
        at = code.trace[record + ACCESSES + code.lists[k]]
        if at <= 0:
            continue
        for n in range(1, code.trace[record + at] + 1):
            write_l2(s, u, np.int64(code.trace[record + at + n]), start + (n >> 2), s.rule[state.SLICE_TENTHS])
            total += 1
    s.counters[state.STORE_SECTORS] += total
    s.pipeline[u, state.PIPELINE] = start + ((total + 3) >> 2) * s.rule[state.PASS_CYCLES]


@inlined
def atomic(s, code, w, o, u, t):  # type: ignore[no-untyped-def]
    """Issue an atomic access, of shared memory or, in L2, of global memory."""
    record, at = s.warp[w, state.RECORD], 0
    for k in range(code.operations[o, SLOTS], code.operations[o, SLOTS_END]):
        at = code.trace[record + ACCESSES + code.lists[k]]
    start = max(t + 1, s.pipeline[u, state.PIPELINE])
    s.counters[state.ATOMIC_ACCESSES] += 1
    ready, has_targets = t + 1, code.operations[o, TARGETS] < code.operations[o, TARGETS_END]
    if at < 0:
        s.pipeline[u, state.PIPELINE] = start - 2 * at
        ready = start - 2 * at + code.operations[o, LATENCY]
    elif at > 0:
        n = code.trace[record + at] & ((1 << SAME_ADDRESS) - 1)
        alike = code.trace[record + at] >> SAME_ADDRESS
        s.pipeline[u, state.PIPELINE] = start + ((n + 3) >> 2)
        for k in range(1, n + 1):
            end = write_l2(s, u, np.int64(code.trace[record + at + k]), start + (k >> 2), 10 * alike)
            ready = max(ready, end + alike + s.rule[state.L1_LATENCY])
    if has_targets:
        for k in range(code.operations[o, TARGETS], code.operations[o, TARGETS_END]):
            s.ready[w, code.lists[k]] = ready


@inlined
def shared(s, code, w, o, u, t):  # type: ignore[no-untyped-def]
    """Issue an access to shared or constant memory."""
    record, passes, role = s.warp[w, state.RECORD], 0, code.operations[o, ROLE]
    for k in range(code.operations[o, SLOTS], code.operations[o, SLOTS_END]):
        passes = max(passes, -code.trace[record + ACCESSES + code.lists[k]])
    ready = t + 1
    if passes > 0:
        start = max(t + 1, s.pipeline[u, state.PIPELINE])
        if role == CONSTANT_LOAD:
            s.counters[state.CONSTANT_REQUESTS] += passes
            passes *= s.rule[state.CONSTANT_CYCLES]
        else:
            s.counters[state.SHARED_ACCESSES] += code.operations[o, ISSUES]
            s.counters[state.SHARED_PASSES] += passes
            passes *= s.rule[state.PASS_CYCLES]
        s.pipeline[u, state.PIPELINE] = start + passes
        ready = start + passes - 1 + code.operations[o, LATENCY]
    for k in range(code.operations[o, TARGETS], code.operations[o, TARGETS_END]):
        s.ready[w, code.lists[k]] = ready
