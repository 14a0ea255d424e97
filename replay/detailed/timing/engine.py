"""The compute units, compiled: warp schedulers, scoreboard, units, the memory pipeline, barriers and blocks.

Time jumps from event to event; a scheduler is visited only in cycles in which one of its warps might issue.
"""

import numpy as np

from profilers.trace.compiled import bare, inlined
from replay.detailed.timing import expansion as roles
from replay.detailed.timing import state
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
from replay.detailed.tracing import NEXT
from replay.memory.banks import CYCLE as DRAM_CYCLE
from replay.memory.banks import INSIDE

#: Cycles after which a scheduler looks again if the memory pipeline does not take an access.
_AGAIN = 4
#: Why `run` returns.
DONE, NEEDS_BLOCKS, PAUSED = range(3)


@inlined
def _next_record(s, code, w):  # type: ignore[no-untyped-def]
    """Move a warp to its next basic block that has operations; it has ended if there is none."""
    record = s.warp[w, state.RECORD]
    while True:
        if code.trace[record + NEXT] == 0:
            s.warp[w, state.LIVE] = state.ENDED
            return
        record += code.trace[record + NEXT]
        number = code.trace[record]
        if code.blocks[number] < code.blocks[number + 1]:
            s.warp[w, state.RECORD], s.warp[w, state.OPERATION] = record, code.blocks[number]
            s.warp[w, state.OPERATIONS_END] = code.blocks[number + 1]
            return


@inlined
def _evaluate(s, code, w, t):  # type: ignore[no-untyped-def]
    """Set when a warp may issue its next operation, and wake its scheduler for it."""
    while True:
        if s.warp[w, state.LIVE] == state.ENDED:
            s.warp[w, state.AT] = max(s.warp[w, state.AFTER], t)
            break
        o = s.warp[w, state.OPERATION]
        at = s.warp[w, state.AFTER]
        for k in range(code.operations[o, SOURCES], code.operations[o, TARGETS_END]):
            at = max(at, s.ready[w, code.lists[k]])
        if code.operations[o, ROLE] == roles.BARRIER and s.warp[w, state.COPIES + 1 - s.warp[w, state.PHASE]] > 0:
            at = state.NEVER
        if at >= state.NEVER:
            s.warp[w, state.AT], s.warp[w, state.REASON] = state.NEVER, state.WAITS_MEMORY
            return
        if code.operations[o, ISSUE_CYCLES] > 0:
            s.warp[w, state.AT], s.warp[w, state.REASON] = at, state.WAITS_RESULT
            break
        for k in range(code.operations[o, TARGETS], code.operations[o, TARGETS_END]):
            s.ready[w, code.lists[k]] = at
        s.warp[w, state.OPERATION] += 1
        if s.warp[w, state.OPERATION] >= s.warp[w, state.OPERATIONS_END]:
            _next_record(s, code, w)
    unit_warps = s.rule[state.RESIDENT] * s.rule[state.WARPS]
    p = w // unit_warps * s.rule[state.SCHEDULERS] + w % unit_warps % s.rule[state.SCHEDULERS]
    s.scheduler[p, state.WAKE] = min(s.scheduler[p, state.WAKE], max(s.warp[w, state.AT], t))


@inlined
def _dispatch(s, code, slot, t):  # type: ignore[no-untyped-def]
    """Bring the next block to a free slot of a compute unit."""
    b, n_warps = s.now[state.NEXT_BLOCK], s.rule[state.WARPS]
    s.now[state.NEXT_BLOCK] += 1
    s.resident[slot, state.BLOCK_NUMBER], s.resident[slot, state.ALIVE] = b, n_warps
    s.resident[slot, state.AT_BARRIER], s.resident[slot, state.BEGAN] = 0, t
    for i in range(n_warps):
        w = slot * n_warps + i
        s.now[state.ORDER] += 1
        record = code.firsts[(b - s.now[state.FIRST_BLOCK]) * n_warps + i]
        s.warp[w, state.RECORD], s.warp[w, state.ARRIVED], s.warp[w, state.AFTER] = record, s.now[state.ORDER], t
        s.warp[w, state.COPIES] = s.warp[w, state.COPIES + 1] = s.warp[w, state.PHASE] = 0
        s.warp[w, state.LIVE] = state.RUNS
        for k in range(s.ready.shape[1]):
            s.ready[w, k] = t
        number = code.trace[record]
        s.warp[w, state.OPERATION], s.warp[w, state.OPERATIONS_END] = code.blocks[number], code.blocks[number + 1]
        if code.blocks[number] == code.blocks[number + 1]:
            _next_record(s, code, w)
        _evaluate(s, code, w, t)


@inlined
def _open_barrier(s, code, slot, t):  # type: ignore[no-untyped-def]
    """Let the warps of a block go on if all that live are at the barrier."""
    if s.resident[slot, state.AT_BARRIER] == 0 or s.resident[slot, state.AT_BARRIER] < s.resident[slot, state.ALIVE]:
        return
    s.resident[slot, state.AT_BARRIER] = 0
    for i in range(s.rule[state.WARPS]):
        w = slot * s.rule[state.WARPS] + i
        if s.warp[w, state.LIVE] != state.ABSENT and s.warp[w, state.REASON] == state.WAITS_BARRIER:
            s.warp[w, state.REASON], s.warp[w, state.AFTER] = state.WAITS_RESULT, t + s.rule[state.BARRIER_AFTER]
            _evaluate(s, code, w, t)


@inlined
def _end_warp(s, code, w, t):  # type: ignore[no-untyped-def]
    """Take a warp that has ended away, and its block with the last one."""
    slot = w // s.rule[state.WARPS]
    s.warp[w, state.LIVE], s.warp[w, state.AT] = state.ABSENT, state.NEVER
    s.resident[slot, state.ALIVE] -= 1
    _open_barrier(s, code, slot, t)
    if s.resident[slot, state.ALIVE] == 0:
        s.resident[slot, state.BLOCK_NUMBER] = -1
        s.now[state.LEFT] -= 1
        if s.now[state.NEXT_BLOCK] < s.now[state.FED]:
            _dispatch(s, code, slot, t + 1)


@inlined
def _complete(s, code, load, t):  # type: ignore[no-untyped-def]
    """Hand the data of a load to its warp."""
    w, o = s.load[load, state.OF_WARP], s.load[load, state.OF_OPERATION]
    if o < 0:
        s.warp[w, state.COPIES - 1 - o] -= 1
    else:
        for k in range(code.operations[o, TARGETS], code.operations[o, TARGETS_END]):
            s.ready[w, code.lists[k]] = s.load[load, state.READY]
    s.load[load, state.FOLLOWING] = s.now[state.FREE_LOAD]
    s.now[state.FREE_LOAD] = load
    if (
        s.warp[w, state.REASON] == state.WAITS_MEMORY
        and s.warp[w, state.AT] == state.NEVER
        and s.warp[w, state.LIVE] == state.RUNS
    ):
        _evaluate(s, code, w, t)


@inlined
def _issue(s, code, w, p, u, t):  # type: ignore[no-untyped-def]
    """Issue the next operation of a warp."""
    o = s.warp[w, state.OPERATION]
    role, unit = code.operations[o, ROLE], code.operations[o, UNIT]
    s.now[state.INSTRUCTIONS] += code.operations[o, ISSUE_CYCLES]
    s.scheduler[p, state.UNIT_FREE + unit] = t + code.operations[o, INTERVAL]
    s.warp[w, state.AFTER] = t + code.operations[o, ISSUE_CYCLES]
    if role == roles.GLOBAL_LOAD or role == roles.COPY:
        global_load(s, code, w, o, u, t)
    elif role == roles.GLOBAL_STORE:
        global_store(s, code, w, o, u, t)
    elif role == roles.ATOMIC:
        atomic(s, code, w, o, u, t)
    elif role == roles.SHARED_LOAD or role == roles.SHARED_STORE or role == roles.CONSTANT_LOAD:
        shared(s, code, w, o, u, t)
    else:
        for k in range(code.operations[o, TARGETS], code.operations[o, TARGETS_END]):
            s.ready[w, code.lists[k]] = t + code.operations[o, LATENCY]
    if role == roles.BRANCH:
        s.warp[w, state.AFTER] = t + s.rule[state.BRANCH_AFTER]
    s.warp[w, state.OPERATION] += 1
    if s.warp[w, state.OPERATION] >= s.warp[w, state.OPERATIONS_END]:
        _next_record(s, code, w)
    if role == roles.BARRIER:
        slot = w // s.rule[state.WARPS]
        s.warp[w, state.PHASE] = 1 - s.warp[w, state.PHASE]
        s.warp[w, state.AT], s.warp[w, state.REASON] = state.NEVER, state.WAITS_BARRIER
        s.resident[slot, state.AT_BARRIER] += 1
        _open_barrier(s, code, slot, t)
    else:
        _evaluate(s, code, w, t)


@inlined
def _account(s, p, u, t):  # type: ignore[no-untyped-def]
    """Add the cycles since a scheduler was last visited to what it did in them."""
    since, did = s.scheduler[p, state.SINCE], s.scheduler[p, state.DID]
    s.by_unit[u, did] += t - since
    while (t >> s.now[state.SPAN_BITS]) >= state.WINDOWS:
        fold_series(s)
    while since < t:
        window = since >> s.now[state.SPAN_BITS]
        end = min(t, (window + 1) << s.now[state.SPAN_BITS])
        s.series[window, did] += end - since
        if did == state.ISSUES:
            s.unit_series[window, u] += end - since
        since = end
    s.scheduler[p, state.SINCE] = t


@inlined
def _asks_l2(role):  # type: ignore[no-untyped-def]
    """Return whether an operation can send requests to L2."""
    return role == roles.GLOBAL_LOAD or role == roles.GLOBAL_STORE or role == roles.COPY or role == roles.ATOMIC


@inlined
def _visit(s, m, code, p, t):  # type: ignore[no-untyped-def]
    """Let a scheduler issue an operation if it can; otherwise set when it looks again."""
    n_sched, u = s.rule[state.SCHEDULERS], p // s.rule[state.SCHEDULERS]
    _account(s, p, u, t)
    unit_warps = s.rule[state.RESIDENT] * s.rule[state.WARPS]
    base, scheduler = u * unit_warps, p - u * n_sched
    count = (unit_warps - scheduler + n_sched - 1) // n_sched
    last = s.scheduler[p, state.LAST_WARP]
    best, soonest, reason, oldest = -1, state.NEVER, state.EMPTY, state.NEVER
    for turn in range(count):
        j = last + 1 + turn
        j -= count if j >= count else 0
        w = base + scheduler + n_sched * j
        if s.warp[w, state.LIVE] == state.ABSENT:
            continue
        at = s.warp[w, state.AT]
        if at > t:
            soonest = min(soonest, at)
            reason = min(reason, s.warp[w, state.REASON])
            continue
        if s.warp[w, state.LIVE] == state.ENDED:
            best = w
            break
        o = s.warp[w, state.OPERATION]
        free = s.scheduler[p, state.UNIT_FREE + code.operations[o, UNIT]]
        if code.operations[o, UNIT] == roles.MEMORY and free <= t:
            if s.pipeline[u, state.PIPELINE] - t > s.rule[state.QUEUE]:
                free = s.pipeline[u, state.PIPELINE] - s.rule[state.QUEUE]
            elif _asks_l2(code.operations[o, ROLE]) and not takes(s, m, u, t):
                free = t + _AGAIN
        if free > t:
            soonest = min(soonest, free)
            reason = min(reason, state.WAITS_UNIT)
            continue
        if s.rule[state.GREEDY] == 0:
            best = w
            break
        if j == last:
            best, oldest = w, -1
        elif s.warp[w, state.ARRIVED] < oldest:
            best, oldest = w, s.warp[w, state.ARRIVED]
    if best < 0:
        s.scheduler[p, state.WAKE], s.scheduler[p, state.DID] = soonest, reason
        return
    if s.warp[best, state.LIVE] == state.ENDED:
        s.scheduler[p, state.WAKE], s.scheduler[p, state.DID] = t, state.EMPTY
        _end_warp(s, code, best, t)
        return
    s.scheduler[p, state.LAST_WARP] = (best - base) // n_sched
    s.scheduler[p, state.DID] = state.ISSUES
    taken = code.operations[s.warp[best, state.OPERATION], ISSUE_CYCLES]
    _issue(s, code, best, p, u, t)
    s.scheduler[p, state.WAKE] = t + taken


@inlined
def _happen(s, m, code, t):  # type: ignore[no-untyped-def]
    """Let the events of a cycle happen."""
    slot = t & (len(s.ring) - 1)
    while s.ring[slot] >= 0:
        r = s.ring[slot]
        s.ring[slot] = s.request[r, state.R_NEXT]
        s.now[state.EVENTS] -= 1
        event = s.request[r, state.R_EVENT]
        if event == state.FETCH:
            fetch(s, m, r, t, np.int64(0))
        elif event == state.FILL:
            fill_l2(s, r, t)
        elif event == state.REPLY:
            first, done = reply(s, r, t)
            s.pipeline[s.request[r, state.R_UNIT], state.ON_THEIR_WAY] -= 1
            release_request(s, r)
            while first >= 0:
                load, following = s.waiter[first, 0], s.waiter[first, 1]
                s.waiter[first, 1] = s.now[state.FREE_WAITER]
                s.now[state.FREE_WAITER] = first
                s.load[load, state.MISSING] -= 1
                s.load[load, state.READY] = max(s.load[load, state.READY], done)
                if s.load[load, state.MISSING] == 0:
                    _complete(s, code, load, t)
                first = following
        else:
            fetch(s, m, r, t, np.int64(1))


@bare
def run(s, m, code, until):  # type: ignore[no-untyped-def]
    """Simulate until all blocks have ended, more blocks are needed, or a cycle; return why.

    Parameters
    ----------
    s, m : TimingState, DramState
        Compute units and caches, and DRAM; they change.
    code : WarpCode
        What the warps issue.
    until : int
        Cycle.
    """
    n_schedulers = s.rule[state.UNITS] * s.rule[state.SCHEDULERS]
    n_slots = s.rule[state.UNITS] * s.rule[state.RESIDENT]
    t = s.now[state.CYCLE]
    for number in range(n_slots):
        # Blocks go to the units in turn.
        slot = number % s.rule[state.UNITS] * s.rule[state.RESIDENT] + number // s.rule[state.UNITS]
        if s.resident[slot, state.BLOCK_NUMBER] < 0 and s.now[state.NEXT_BLOCK] < s.now[state.FED]:
            _dispatch(s, code, slot, t)
    while s.now[state.LEFT] > 0 and t < until:
        running = s.now[state.NEXT_BLOCK] - (s.now[state.BLOCKS] - s.now[state.LEFT])
        if s.now[state.NEXT_BLOCK] == s.now[state.FED] and s.now[state.FED] < s.now[state.BLOCKS] and running < n_slots:
            s.now[state.CYCLE] = t
            return NEEDS_BLOCKS
        s.now[state.CYCLE] = t
        if s.now[state.EVENTS] > 0:
            _happen(s, m, code, t)
        if m.now[DRAM_CYCLE] <= t * s.ratio[0]:
            serve_dram(s, m, t)
        soonest = state.NEVER
        for p in range(n_schedulers):
            if s.scheduler[p, state.WAKE] <= t:
                _visit(s, m, code, p, t)
            soonest = min(soonest, s.scheduler[p, state.WAKE])
        if s.now[state.EVENTS] > 0 or m.now[INSIDE] > 0:
            later = min(soonest, t + len(s.ring) - 1)
            if m.now[INSIDE] > 0:
                later = min(later, np.int64(np.ceil(m.now[DRAM_CYCLE] / s.ratio[0])))
            later = max(later, t + 1)
            if s.now[state.EVENTS] > 0:
                for c in range(t + 1, later):
                    if s.ring[c & (len(s.ring) - 1)] >= 0:
                        later = c
                        break
            t = later
        else:
            t = max(soonest, t + 1)
    s.now[state.CYCLE] = t
    for p in range(n_schedulers):
        _account(s, p, p // s.rule[state.SCHEDULERS], t)
    return DONE if s.now[state.LEFT] == 0 else PAUSED
