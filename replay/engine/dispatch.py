"""Dispatch: which workgroups of the active tasks of a device begin on its compute units, and which make way.

`dispatch` places the workgroups that wait, in the order of priority, then of arrival. `replay.engine.units` finds their
units. Names are those of `replay.engine.sharing`.
"""

import numpy as np

from profilers.trace.compiled import bare, inlined
from replay.engine.units import MAX_HOLDINGS, clear, place, release, thin_out

#: Shares closer than this are equal.
_ROUNDING = 1e-12
#: Less than this part of a unit's workgroups is none: what is left of sums of shares.
_ROUNDED = 1e-9
#: Share of the device that collectives may hold together while they wait. If they held all, a kernel that a peer waits
#: for could never run.
_HELD_BY_WAITING = 0.95


@inlined
def wanted_workgroups(row):  # type: ignore[no-untyped-def]
    """Return how many workgroups a task that is out of step has on units if there is room."""
    units = row.last_wave_cu if row.remaining_ns <= row.last_wave_ns else row.occupied_cu
    return units * row.per_unit


@bare
def dispatch(state, device, first, count):  # type: ignore[no-untyped-def]
    """Place the workgroups that wait for room, in the order of dispatch; return whether some find none."""
    interleaves, is_any_placed = not state.in_order, False
    for k in range(first, first + count):
        row = state.active[k]
        is_any_placed |= row.is_placed == 1
        interleaves |= state.has_interleaving and state.interleaved[row.task]
    if not is_any_placed:
        clear(state, device)
    for k in range(first, first + count):
        row = state.active[k]
        if row.is_placed == 0 and row.started == 1:
            _place_running(state, device, row)
        row.reserved_cu = 0.0
    if interleaves:
        _reserve(state, device, first, count)
    is_short = False
    for k in range(first, first + count):
        row = state.active[k]
        row.is_placed = 1
        if not row.in_rounds and not state.stays[row.task] and row.running > wanted_workgroups(row) * (1.0 + _ROUNDING):
            thin_out(state, device, row.task, wanted_workgroups(row) / row.running)
            row.running = wanted_workgroups(row)
        missing = row.to_place if row.in_rounds else wanted_workgroups(row) - row.running
        if missing > _ROUNDING and state.has_priorities:
            _make_way(state, device, first, (k, first + count))
        if missing > _ROUNDING:
            missing -= _take(state, device, (k, first, count), missing, row.is_let_in > 0)
            is_short |= missing > _ROUNDING
    return is_short


@bare
def _take(state, device, rows, wanted, is_let_in):  # type: ignore[no-untyped-def]
    """Place workgroups of a task on units; return how many found room.

    `rows` holds the row of the task, the first row of its device and their number.
    """
    row = state.active[rows[0]]
    if row.waits > 0:
        free = _HELD_BY_WAITING
        for k in range(rows[1], rows[1] + rows[2]):
            free -= state.active[k].running / state.active[k].per_unit if state.active[k].waits > 0 else 0.0
        wanted = min(wanted, max(free, 0.0) * row.per_unit)
    has_waited = row.has_waited > 0 and row.is_let_in == 0
    placed = place(state, device, row.task, wanted, (has_waited, row.in_rounds > 0, is_let_in))
    row.running += placed
    if row.in_rounds:
        row.to_place -= placed
    if placed < wanted - _ROUNDING:
        row.has_waited = 1
    return placed


@bare
def _place_running(state, device, row):  # type: ignore[no-untyped-def]
    """Place a task that had the device for itself so far, as far as it has come."""
    if not row.in_rounds:
        row.running += place(state, device, row.task, wanted_workgroups(row), (False, False, False))
        return
    in_flight, begun = row.occupied_cu * row.per_unit, state.duration[row.task] - row.remaining_ns
    rounds = max(np.floor(begun / row.last_wave_ns + 1e-9), 0.0) if row.last_wave_ns > 0.0 else 0.0
    row.to_place = max(row.to_place - rounds * in_flight, 0.0)
    running = place(state, device, row.task, min(in_flight, row.to_place), (False, True, False))
    row.running, row.to_place = running, row.to_place - running
    left = row.remaining_ns / state.duration[row.task]
    if row.last_wave_ns > 0.0:
        done_ns = begun - rounds * row.last_wave_ns
        left = 1.0 - done_ns / min(row.last_wave_ns, done_ns + row.remaining_ns)
    for h in range(device * MAX_HOLDINGS, device * MAX_HOLDINGS + state.n_holdings[device]):
        if state.holdings[h].task == row.task:
            state.holdings[h].left, state.holdings[h].is_new = left, 0


@bare
def _make_way(state, device, first, behind):  # type: ignore[no-untyped-def]
    """Take workgroups of tasks of a lower priority off their units, unless they are in their last wave or in rounds.

    Such tasks begin a workgroup whenever one ends, so that their units soon are free for a task of a higher priority.
    """
    row = state.active[behind[0]]
    for k in range(behind[0] + 1, behind[1]):
        other = state.active[k]
        is_lower = state.priority[other.task] < state.priority[row.task]
        if (
            is_lower
            and other.running > 0.0
            and not other.in_rounds
            and not state.stays[other.task]
            and other.remaining_ns > other.last_wave_ns
        ):
            release(state, device, other.task)
            other.running = 0.0


@bare
def _reserve(state, device, first, count):  # type: ignore[no-untyped-def]
    """Let each interleaved task in with a max-min fair share of the units; what is left is dispatched in order.

    Without dispatch in order, tasks of the highest priority get such shares, and those of a lower priority the rest.
    """
    highest = state.priority[state.active[first].task]
    for p in range(len(state.partitions)):
        level, previous = 0.0, -1.0
        while level > previous + _ROUNDING:
            previous, satisfied_cu, n_limited = level, 0.0, 0
            for k in range(first, first + count):
                task = state.active[k].task
                if not (state.in_order or state.priority[task] == highest or state.interleaved[task]):
                    continue
                wanted_cu = _wanted_of_partition(state, state.active[k], p)
                if wanted_cu <= level:
                    satisfied_cu += wanted_cu
                else:
                    n_limited += 1
            if n_limited > 0:
                level = (state.partitions[p] - satisfied_cu) / n_limited
        for k in range(first, first + count):
            row = state.active[k]
            if state.in_order or state.priority[row.task] == highest or state.interleaved[row.task]:
                row.reserved_cu += min(_wanted_of_partition(state, row, p), level)
    for k in range(first, first + count):  # tasks out of step make way
        row = state.active[k]
        reserved = row.reserved_cu * row.per_unit
        if not row.in_rounds and not state.stays[row.task] and row.running > reserved * (1.0 + _ROUNDING):
            thin_out(state, device, row.task, reserved / row.running)
            row.running = reserved
    for k in range(first, first + count):
        row = state.active[k]
        wanted, is_new = row.reserved_cu * row.per_unit - row.running, row.running <= _ROUNDED * row.per_unit
        is_let_in = (not state.in_order and state.priority[row.task] == highest) or state.interleaved[row.task]
        if is_let_in and wanted > _ROUNDING and (is_new or not row.in_rounds):
            wanted -= _take(state, device, (k, first, count), wanted, False)
            if wanted > _ROUNDING and is_new:
                _take(state, device, (k, first, count), wanted, True)


@inlined
def _wanted_of_partition(state, row, p):  # type: ignore[no-untyped-def]
    """Return the units that a task wants of partition `p`; it spreads over its partitions by size."""
    cu_mask = state.cu_mask[row.task]
    if (cu_mask >> p) & 1 == 0:
        return 0.0
    size = 0.0
    for q in range(len(state.partitions)):
        size += state.partitions[q] * ((cu_mask >> q) & 1)
    wanted_cu = (row.running + row.to_place if row.in_rounds else wanted_workgroups(row)) / row.per_unit
    return min(wanted_cu, size) * state.partitions[p] / size
