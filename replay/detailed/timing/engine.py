"""The compute units, compiled: warp schedulers, scoreboard, units, the memory pipeline, barriers and blocks.

Time jumps from event to event; a scheduler is visited only in cycles in which one of its warps might issue.
"""

import numpy as np

from profilers.trace.compiled import bare, inlined
from replay.detailed.timing.accesses import atomic, global_load, global_store, shared, takes
from replay.detailed.timing.assembly import (
    INTERVAL,
    LATENCY,
    ROLE,
    SOURCES,
    TARGETS,
    TARGETS_END,
    UNIT,
)
from replay.detailed.timing.assembly import ISSUES as ISSUE_CYCLES
from replay.detailed.timing.caches import (
    fetch,
    fill_l2,
    fold_series,
    release_request,
    reply,
    serve_dram,
)
from replay.detailed.timing.expansion import (
    ATOMIC,
    BARRIER,
    BRANCH,
    CONSTANT_LOAD,
    COPY,
    GLOBAL_LOAD,
    GLOBAL_STORE,
    MEMORY,
    SHARED_LOAD,
    SHARED_STORE,
)
from replay.detailed.timing.state import (
    ABSENT,
    AFTER,
    ALIVE,
    ARRIVED,
    AT,
    AT_BARRIER,
    BARRIER_AFTER,
    BEGAN,
    BLOCK_NUMBER,
    BLOCKS,
    BRANCH_AFTER,
    COPIES,
    CYCLE,
    DID,
    EMPTY,
    ENDED,
    EVENTS,
    FED,
    FETCH,
    FILL,
    FIRST_BLOCK,
    FOLLOWING,
    FREE_LOAD,
    FREE_WAITER,
    GREEDY,
    INSTRUCTIONS,
    ISSUES,
    LAST_WARP,
    LEFT,
    LIVE,
    MISSING,
    NEVER,
    NEXT_BLOCK,
    OF_OPERATION,
    OF_WARP,
    ON_THEIR_WAY,
    OPERATION,
    OPERATIONS_END,
    ORDER,
    PHASE,
    PIPELINE,
    QUEUE,
    R_EVENT,
    R_NEXT,
    R_UNIT,
    READY,
    REASON,
    RECORD,
    REPLY,
    RESIDENT,
    RUNS,
    SCHEDULERS,
    SINCE,
    SPAN_BITS,
    UNIT_FREE,
    UNITS,
    WAITS_BARRIER,
    WAITS_MEMORY,
    WAITS_RESULT,
    WAITS_UNIT,
    WAKE,
    WARPS,
    WINDOWS,
)
from replay.detailed.tracing import NEXT
from replay.memory.banks import CYCLE as DRAM_CYCLE
from replay.memory.banks import INSIDE

#: Cycles after which a scheduler looks again if the memory pipeline does not take an access.
_AGAIN = 4
#: Why `run` returns.
DONE, NEEDS_BLOCKS, PAUSED = range(3)


@inlined
def _next_record(s, trace, blocks, w):  # type: ignore[no-untyped-def]
    """Move a warp to its next basic block that has operations; it has ended if there is none."""
    record = s.warp[w, RECORD]
    while True:
        if trace[record + NEXT] == 0:
            s.warp[w, LIVE] = ENDED
            return
        record += trace[record + NEXT]
        number = trace[record]
        if blocks[number] < blocks[number + 1]:
            s.warp[w, RECORD], s.warp[w, OPERATION] = record, blocks[number]
            s.warp[w, OPERATIONS_END] = blocks[number + 1]
            return


@inlined
def _evaluate(s, trace, operations, lists, blocks, w, t):  # type: ignore[no-untyped-def]
    """Set when a warp may issue its next operation, and wake its scheduler for it."""
    while True:
        if s.warp[w, LIVE] == ENDED:
            s.warp[w, AT] = max(s.warp[w, AFTER], t)
            break
        o = s.warp[w, OPERATION]
        at = s.warp[w, AFTER]
        for k in range(operations[o, SOURCES], operations[o, TARGETS_END]):
            at = max(at, s.ready[w, lists[k]])
        if operations[o, ROLE] == BARRIER and s.warp[w, COPIES + 1 - s.warp[w, PHASE]] > 0:
            at = NEVER
        if at >= NEVER:
            s.warp[w, AT], s.warp[w, REASON] = NEVER, WAITS_MEMORY
            return
        if operations[o, ISSUE_CYCLES] > 0:
            s.warp[w, AT], s.warp[w, REASON] = at, WAITS_RESULT
            break
        for k in range(operations[o, TARGETS], operations[o, TARGETS_END]):
            s.ready[w, lists[k]] = at
        s.warp[w, OPERATION] += 1
        if s.warp[w, OPERATION] >= s.warp[w, OPERATIONS_END]:
            _next_record(s, trace, blocks, w)
    unit_warps = s.rule[RESIDENT] * s.rule[WARPS]
    p = w // unit_warps * s.rule[SCHEDULERS] + w % unit_warps % s.rule[SCHEDULERS]
    s.scheduler[p, WAKE] = min(s.scheduler[p, WAKE], max(s.warp[w, AT], t))


@inlined
def _dispatch(s, trace, firsts, operations, lists, blocks, slot, t):  # type: ignore[no-untyped-def]
    """Bring the next block to a free slot of a compute unit."""
    b, n_warps = s.now[NEXT_BLOCK], s.rule[WARPS]
    s.now[NEXT_BLOCK] += 1
    s.resident[slot, BLOCK_NUMBER], s.resident[slot, ALIVE] = b, n_warps
    s.resident[slot, AT_BARRIER], s.resident[slot, BEGAN] = 0, t
    for i in range(n_warps):
        w = slot * n_warps + i
        s.now[ORDER] += 1
        record = firsts[(b - s.now[FIRST_BLOCK]) * n_warps + i]
        s.warp[w, RECORD], s.warp[w, ARRIVED], s.warp[w, AFTER] = record, s.now[ORDER], t
        s.warp[w, COPIES] = s.warp[w, COPIES + 1] = s.warp[w, PHASE] = 0
        s.warp[w, LIVE] = RUNS
        for k in range(s.ready.shape[1]):
            s.ready[w, k] = t
        number = trace[record]
        s.warp[w, OPERATION], s.warp[w, OPERATIONS_END] = blocks[number], blocks[number + 1]
        if blocks[number] == blocks[number + 1]:
            _next_record(s, trace, blocks, w)
        _evaluate(s, trace, operations, lists, blocks, w, t)


@inlined
def _open_barrier(s, trace, operations, lists, blocks, slot, t):  # type: ignore[no-untyped-def]
    """Let the warps of a block go on if all that live are at the barrier."""
    if s.resident[slot, AT_BARRIER] == 0 or s.resident[slot, AT_BARRIER] < s.resident[slot, ALIVE]:
        return
    s.resident[slot, AT_BARRIER] = 0
    for i in range(s.rule[WARPS]):
        w = slot * s.rule[WARPS] + i
        if s.warp[w, LIVE] != ABSENT and s.warp[w, REASON] == WAITS_BARRIER:
            s.warp[w, REASON], s.warp[w, AFTER] = WAITS_RESULT, t + s.rule[BARRIER_AFTER]
            _evaluate(s, trace, operations, lists, blocks, w, t)


@inlined
def _end_warp(s, trace, firsts, operations, lists, blocks, w, t):  # type: ignore[no-untyped-def]
    """Take a warp that has ended away, and its block with the last one."""
    slot = w // s.rule[WARPS]
    s.warp[w, LIVE], s.warp[w, AT] = ABSENT, NEVER
    s.resident[slot, ALIVE] -= 1
    _open_barrier(s, trace, operations, lists, blocks, slot, t)
    if s.resident[slot, ALIVE] == 0:
        s.resident[slot, BLOCK_NUMBER] = -1
        s.now[LEFT] -= 1
        if s.now[NEXT_BLOCK] < s.now[FED]:
            _dispatch(s, trace, firsts, operations, lists, blocks, slot, t + 1)


@inlined
def _complete(s, trace, operations, lists, blocks, load, t):  # type: ignore[no-untyped-def]
    """Hand the data of a load to its warp."""
    w, o = s.load[load, OF_WARP], s.load[load, OF_OPERATION]
    if o < 0:
        s.warp[w, COPIES - 1 - o] -= 1
    else:
        for k in range(operations[o, TARGETS], operations[o, TARGETS_END]):
            s.ready[w, lists[k]] = s.load[load, READY]
    s.load[load, FOLLOWING] = s.now[FREE_LOAD]
    s.now[FREE_LOAD] = load
    if s.warp[w, REASON] == WAITS_MEMORY and s.warp[w, AT] == NEVER and s.warp[w, LIVE] == RUNS:
        _evaluate(s, trace, operations, lists, blocks, w, t)


@inlined
def _issue(s, trace, firsts, operations, lists, blocks, w, p, u, t):  # type: ignore[no-untyped-def]
    """Issue the next operation of a warp."""
    o = s.warp[w, OPERATION]
    role, unit = operations[o, ROLE], operations[o, UNIT]
    s.now[INSTRUCTIONS] += operations[o, ISSUE_CYCLES]
    s.scheduler[p, UNIT_FREE + unit] = t + operations[o, INTERVAL]
    s.warp[w, AFTER] = t + operations[o, ISSUE_CYCLES]
    if role == GLOBAL_LOAD or role == COPY:
        global_load(s, trace, operations, lists, w, o, u, t)
    elif role == GLOBAL_STORE:
        global_store(s, trace, operations, lists, w, o, u, t)
    elif role == ATOMIC:
        atomic(s, trace, operations, lists, w, o, u, t)
    elif role == SHARED_LOAD or role == SHARED_STORE or role == CONSTANT_LOAD:
        shared(s, trace, operations, lists, w, o, u, t)
    else:
        for k in range(operations[o, TARGETS], operations[o, TARGETS_END]):
            s.ready[w, lists[k]] = t + operations[o, LATENCY]
    if role == BRANCH:
        s.warp[w, AFTER] = t + s.rule[BRANCH_AFTER]
    s.warp[w, OPERATION] += 1
    if s.warp[w, OPERATION] >= s.warp[w, OPERATIONS_END]:
        _next_record(s, trace, blocks, w)
    if role == BARRIER:
        slot = w // s.rule[WARPS]
        s.warp[w, PHASE] = 1 - s.warp[w, PHASE]
        s.warp[w, AT], s.warp[w, REASON] = NEVER, WAITS_BARRIER
        s.resident[slot, AT_BARRIER] += 1
        _open_barrier(s, trace, operations, lists, blocks, slot, t)
    else:
        _evaluate(s, trace, operations, lists, blocks, w, t)


@inlined
def _account(s, p, u, t):  # type: ignore[no-untyped-def]
    """Add the cycles since a scheduler was last visited to what it did in them."""
    since, did = s.scheduler[p, SINCE], s.scheduler[p, DID]
    s.by_unit[u, did] += t - since
    while (t >> s.now[SPAN_BITS]) >= WINDOWS:
        fold_series(s)
    while since < t:
        window = since >> s.now[SPAN_BITS]
        end = min(t, (window + 1) << s.now[SPAN_BITS])
        s.series[window, did] += end - since
        if did == ISSUES:
            s.unit_series[window, u] += end - since
        since = end
    s.scheduler[p, SINCE] = t


@inlined
def _asks_l2(role):  # type: ignore[no-untyped-def]
    """Return whether an operation can send requests to L2."""
    return role == GLOBAL_LOAD or role == GLOBAL_STORE or role == COPY or role == ATOMIC


@inlined
def _visit(s, m, trace, firsts, operations, lists, blocks, p, t):  # type: ignore[no-untyped-def]
    """Let a scheduler issue an operation if it can; otherwise set when it looks again."""
    n_sched, u = s.rule[SCHEDULERS], p // s.rule[SCHEDULERS]
    _account(s, p, u, t)
    unit_warps = s.rule[RESIDENT] * s.rule[WARPS]
    base, scheduler = u * unit_warps, p - u * n_sched
    count = (unit_warps - scheduler + n_sched - 1) // n_sched
    last = s.scheduler[p, LAST_WARP]
    best, soonest, reason, oldest = -1, NEVER, EMPTY, NEVER
    for turn in range(count):
        j = last + 1 + turn
        j -= count if j >= count else 0
        w = base + scheduler + n_sched * j
        if s.warp[w, LIVE] == ABSENT:
            continue
        at = s.warp[w, AT]
        if at > t:
            soonest = min(soonest, at)
            reason = min(reason, s.warp[w, REASON])
            continue
        if s.warp[w, LIVE] == ENDED:
            best = w
            break
        o = s.warp[w, OPERATION]
        free = s.scheduler[p, UNIT_FREE + operations[o, UNIT]]
        if operations[o, UNIT] == MEMORY and free <= t:
            if s.pipeline[u, PIPELINE] - t > s.rule[QUEUE]:
                free = s.pipeline[u, PIPELINE] - s.rule[QUEUE]
            elif _asks_l2(operations[o, ROLE]) and not takes(s, m, u, t):
                free = t + _AGAIN
        if free > t:
            soonest = min(soonest, free)
            reason = min(reason, WAITS_UNIT)
            continue
        if s.rule[GREEDY] == 0:
            best = w
            break
        if j == last:
            best, oldest = w, -1
        elif s.warp[w, ARRIVED] < oldest:
            best, oldest = w, s.warp[w, ARRIVED]
    if best < 0:
        s.scheduler[p, WAKE], s.scheduler[p, DID] = soonest, reason
        return
    if s.warp[best, LIVE] == ENDED:
        s.scheduler[p, WAKE], s.scheduler[p, DID] = t, EMPTY
        _end_warp(s, trace, firsts, operations, lists, blocks, best, t)
        return
    s.scheduler[p, LAST_WARP] = (best - base) // n_sched
    s.scheduler[p, DID] = ISSUES
    taken = operations[s.warp[best, OPERATION], ISSUE_CYCLES]
    _issue(s, trace, firsts, operations, lists, blocks, best, p, u, t)
    s.scheduler[p, WAKE] = t + taken


@inlined
def _happen(s, m, trace, operations, lists, blocks, t):  # type: ignore[no-untyped-def]
    """Let the events of a cycle happen."""
    slot = t & (len(s.ring) - 1)
    while s.ring[slot] >= 0:
        r = s.ring[slot]
        s.ring[slot] = s.request[r, R_NEXT]
        s.now[EVENTS] -= 1
        event = s.request[r, R_EVENT]
        if event == FETCH:
            fetch(s, m, r, t, 0)
        elif event == FILL:
            fill_l2(s, r, t)
        elif event == REPLY:
            first, done = reply(s, r, t)
            s.pipeline[s.request[r, R_UNIT], ON_THEIR_WAY] -= 1
            release_request(s, r)
            while first >= 0:
                load, following = s.waiter[first, 0], s.waiter[first, 1]
                s.waiter[first, 1] = s.now[FREE_WAITER]
                s.now[FREE_WAITER] = first
                s.load[load, MISSING] -= 1
                s.load[load, READY] = max(s.load[load, READY], done)
                if s.load[load, MISSING] == 0:
                    _complete(s, trace, operations, lists, blocks, load, t)
                first = following
        else:
            fetch(s, m, r, t, 1)


@bare
def run(s, m, trace, firsts, operations, lists, blocks, until):  # type: ignore[no-untyped-def]
    """Simulate until all blocks have ended, more blocks are needed, or a cycle; return why.

    Parameters
    ----------
    s, m : State, Machine
        Compute units and caches, and DRAM; they change.
    trace, firsts : array of int32, array of int64
        Trace, and first record of each warp of each block from ``now[FIRST_BLOCK]`` on.
    operations, lists, blocks : array of int64
        Of an `Assembly`.
    until : int
        Cycle.
    """
    n_schedulers = s.rule[UNITS] * s.rule[SCHEDULERS]
    n_places = s.rule[UNITS] * s.rule[RESIDENT]
    t = s.now[CYCLE]
    for number in range(n_places):
        # Blocks go to the units in turn.
        slot = number % s.rule[UNITS] * s.rule[RESIDENT] + number // s.rule[UNITS]
        if s.resident[slot, BLOCK_NUMBER] < 0 and s.now[NEXT_BLOCK] < s.now[FED]:
            _dispatch(s, trace, firsts, operations, lists, blocks, slot, t)
    while s.now[LEFT] > 0 and t < until:
        running = s.now[NEXT_BLOCK] - (s.now[BLOCKS] - s.now[LEFT])
        if s.now[NEXT_BLOCK] == s.now[FED] and s.now[FED] < s.now[BLOCKS] and running < n_places:
            s.now[CYCLE] = t
            return NEEDS_BLOCKS
        s.now[CYCLE] = t
        if s.now[EVENTS] > 0:
            _happen(s, m, trace, operations, lists, blocks, t)
        if m.now[DRAM_CYCLE] <= t * s.ratio[0]:
            serve_dram(s, m, t)
        soonest = NEVER
        for p in range(n_schedulers):
            if s.scheduler[p, WAKE] <= t:
                _visit(s, m, trace, firsts, operations, lists, blocks, p, t)
            soonest = min(soonest, s.scheduler[p, WAKE])
        if s.now[EVENTS] > 0 or m.now[INSIDE] > 0:
            later = min(soonest, t + len(s.ring) - 1)
            if m.now[INSIDE] > 0:
                later = min(later, np.int64(np.ceil(m.now[DRAM_CYCLE] / s.ratio[0])))
            later = max(later, t + 1)
            if s.now[EVENTS] > 0:
                for c in range(t + 1, later):
                    if s.ring[c & (len(s.ring) - 1)] >= 0:
                        later = c
                        break
            t = later
        else:
            t = max(soonest, t + 1)
    s.now[CYCLE] = t
    for p in range(n_schedulers):
        _account(s, p, p // s.rule[SCHEDULERS], t)
    return DONE if s.now[LEFT] == 0 else PAUSED
