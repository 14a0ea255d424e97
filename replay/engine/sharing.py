"""Sharing of a device: at which rate each of its active tasks runs, and how compute units are handed out.

Several tasks can be active on a device at once, such as a matrix product and an all-reduce. Each demands a share of
every resource: compute units, bandwidth of the L2 cache, of memory and of links, DMA engines, processing in memory,
power. Sharing gives each task a rate. At rate 1 a task runs as fast as alone, at rate 0.5 it takes twice as long, at
rate 0 it waits. Rates stay as they are until a task arrives, ends, or comes to its last wave of workgroups; then the
engine calls `share` again.

`share` works in six steps. Each of the last five lowers what the steps before it allow, and runs only if a task needs
it.

1. `_dispatch` hands out compute units. Workgroups are dispatched in the order of priority, then of arrival. No
   task of the same or a lower priority preempts them: a kernel that fills the device leaves nothing to later
   tasks until its last wave. A task of a higher priority takes units at once, except from a task in its last wave; a
   kernel of one wave or less always is in its last wave. A task needs the units of its demand and occupies at least
   as many; it wants what it occupies, or less in its last wave. Its rate is capped at granted over needed units, or
   as `_rate_cap` says for further rounds of workgroups (`extra_round`) and whole waves (`quantised`). With partitions,
   or with interleaved tasks, `_dispatch_to_partitions` first reserves an equal share for each interleaved task.
2. `_slow` lowers the caps of tasks that feel the pressure of others. A collective that waits for its peers keeps its
   units and makes no progress. A kernel of several rounds that lacks units also runs on those of collectives.
3. `_raise_misses` raises demands on memory bandwidth if the last-level cache cannot hold the footprints of all tasks.
4. `_defer` lowers the caps of tasks whose accesses of memory yield to those of others.
5. `_fill` shares every other resource. The rates are max-min fair, so a task draws bandwidth in proportion to its
   demand. All rates rise together from 0. A rate stops rising at its cap, or once a resource that its task demands is
   full (progressive filling: Bertsekas and Gallager, Data Networks, 2nd edition, section 6.5.2).
6. `_throttle` lowers the clock, and with it the caps, if the tasks draw more power than the device may.

The active tasks of a device are `count` rows of the table `SharingState.active`, from row `first` on, in the order of
dispatch. `replay.engine.layout` describes the columns. Compute units are shares of the device's units throughout.
"""

import numpy as np

from profilers.trace.compiled import bare, inlined
from replay.engine.layout import CU, FAIR, FREE, HBM_COLUMN, LINK_COLUMN, N_FAIR, POWER, RISING

#: Shares closer than this are equal.
_ROUNDING = 1e-12
#: Share of the device, and of each partition, that collectives may hold together while they wait. If they held all, a
#: kernel that a peer waits for could never run.
_HELD_BY_WAITING = 0.95


@inlined
def activate(state, first, count, task):  # type: ignore[no-untyped-def]
    """Insert an arriving task into the `count` active tasks of its device, behind all of its priority or a higher."""
    row = first + count
    while state.has_priorities and row > first and state.priority[state.active[row - 1].task] < state.priority[task]:
        state.active[row] = state.active[row - 1]
        row -= 1
    _write_row(state, row, task)


@inlined
def begin_waiting(state, first, task):  # type: ignore[no-untyped-def]
    """Let an active collective hold its compute units without progress."""
    row = first
    while state.active[row].task != task:
        row += 1
    state.active[row].waits = 1


@inlined
def stop_waiting(state, first, task):  # type: ignore[no-untyped-def]
    """Let a waiting collective make progress."""
    row = first
    while state.active[row].task != task:
        row += 1
    state.active[row].waits = 0


@inlined
def _write_row(state, index, task):  # type: ignore[no-untyped-def]
    """Write the row of a task that has made no progress."""
    row = state.active[index]
    row.task, row.started, row.resource_bits = task, 0, 0
    row.waits, row.is_resident = 0, 0
    row.remaining_ns, row.rate, row.granted_cu, row.last_wave_ns = state.duration[task], 0.0, 0.0, 0.0
    row.needed_cu = state.demand[task, CU]
    row.occupied_cu = max(state.occupies[task], row.needed_cu)
    row.last_wave_cu = row.occupied_cu
    if state.has_waves and state.waves[task] > 0.0:
        waves = state.waves[task]
        whole_waves = np.ceil(waves - 1e-9)
        row.last_wave_ns = row.remaining_ns / max(whole_waves, 1.0)
        row.last_wave_cu *= waves - whole_waves + 1.0 if waves > 1.0 else 1.0
    for c in range(N_FAIR):
        row.demand[c] = state.demand[task, FAIR[c]]
        row.resource_bits |= (row.demand[c] > 0.0) << _resource(state.resource_of, task, c)
    row.resource_bits |= _peer_bits(state.resource_of, state, task)


@inlined
def _resource(resource_of, task, c):  # type: ignore[no-untyped-def]
    """Return the resource of a fair column of a task; a constant to the compiler if no link or engine is numbered."""
    if resource_of is None:
        return c
    return resource_of[task, c]


@inlined
def _peer_bits(resource_of, state, task):  # type: ignore[no-untyped-def]
    """Return a bit for each link to a peer, for a task that uses all links to peers alike; 0 for others."""
    bits = np.int64(0)
    if resource_of is None:
        return bits
    if resource_of[task, LINK_COLUMN] == LINK_COLUMN and state.demand[task, FAIR[LINK_COLUMN]] > 0.0:
        for r in range(state.peer_links[0], state.peer_links[1]):
            bits |= np.int64(1) << r
    return bits


@inlined
def share(state, first, count):  # type: ignore[no-untyped-def]
    """Write the rates of the `count` active tasks of a device, from row `first` on.

    Return whether the next last wave can change the rates: whether compute units were short.
    """
    if count == 1 and state.is_undivided and not state.quantised:
        row = state.active[first]
        row.granted_cu, row.rate = _wanted_cu(row), 1.0
        if state.has_waiting and row.waits > 0:
            row.rate = 0.0
        if state.has_rounds:
            row.is_resident |= row.remaining_ns <= row.last_wave_ns
        return False
    is_short = _dispatch(state, first, count)
    if state.has_pressure or state.has_waiting:
        _slow(state, first, count)
    if state.has_footprints:
        _raise_misses(state, first, count)
    if state.has_deferring:
        _defer(state, first, count)
    _fill(state, first, count)
    if state.has_power:
        _throttle(state, first, count)
    return is_short


@inlined
def _wanted_cu(row):  # type: ignore[no-untyped-def]
    """Return the compute units that the workgroups a task still has would fill."""
    return row.last_wave_cu if row.remaining_ns <= row.last_wave_ns else row.occupied_cu


@inlined
def _dispatch(state, first, count):  # type: ignore[no-untyped-def]
    """Hand out the compute units in the order of dispatch, and cap each task's rate by the units it is granted.

    A task in its last wave keeps its units. Return whether units were short.
    """
    total, interleaves, any_last_wave = 0.0, not state.in_order, False
    for k in range(first, first + count):
        row = state.active[k]
        row.wanted_cu, row.rate_cap = _wanted_cu(row), 1.0
        total += row.wanted_cu
        interleaves |= state.has_interleaving and state.interleaved[row.task]
        any_last_wave |= row.remaining_ns <= row.last_wave_ns
    if state.is_undivided and total <= 1.0 + _ROUNDING and not state.quantised:
        for k in range(first, first + count):
            row = state.active[k]
            row.granted_cu = row.wanted_cu
            if state.has_rounds:
                row.is_resident |= row.remaining_ns <= row.last_wave_ns
        return False
    if interleaves or not state.is_undivided:
        return _dispatch_to_partitions(state, first, count)
    free, holdable = 1.0, _HELD_BY_WAITING
    if any_last_wave:
        for k in range(first, first + count):  # workgroups that run already stay
            row = state.active[k]
            kept = min(row.granted_cu, row.wanted_cu) if row.remaining_ns <= row.last_wave_ns else 0.0
            row.granted_cu = min(kept, free)
            if state.has_waiting and row.waits > 0:
                row.granted_cu = min(row.granted_cu, holdable)
                holdable -= row.granted_cu
            free -= row.granted_cu
    for k in range(first, first + count):
        row = state.active[k]
        kept = row.granted_cu if any_last_wave else 0.0
        more = min(row.wanted_cu - kept, free)
        if state.has_waiting and row.waits > 0:
            more = min(more, holdable)
            holdable -= more
        row.granted_cu = kept + more
        free -= more
        row.rate_cap = _rate_cap(state, row)
    return True


@bare
def _dispatch_to_partitions(state, first, count):  # type: ignore[no-untyped-def]
    """Dispatch as `_dispatch` does, with several partitions or interleaved tasks."""
    for k in range(first, first + count):
        state.active[k].reserved_cu = 0.0
    for p in range(len(state.free_cu)):
        state.free_cu[p] = state.partitions[p]
        state.holdable_cu[p] = state.partitions[p] * _HELD_BY_WAITING
        _reserve(state, first, count, p)
    for k in range(first, first + count):  # workgroups that run already stay
        row = state.active[k]
        kept = min(row.granted_cu, row.wanted_cu) if row.remaining_ns <= row.last_wave_ns else 0.0
        row.granted_cu = row.reserved_cu + _take(state, row, kept - row.reserved_cu)
    is_short = False
    for k in range(first, first + count):
        row = state.active[k]
        row.granted_cu += _take(state, row, row.wanted_cu - row.granted_cu)
        row.rate_cap = _rate_cap(state, row)
        is_short |= row.rate_cap < 1.0
    return is_short


@inlined
def _take(state, row, wanted_cu):  # type: ignore[no-untyped-def]
    """Take up to `wanted_cu` free units from the partitions of a task; return the units taken."""
    taken, cu_mask = 0.0, state.cu_mask[row.task]
    for p in range(len(state.free_cu)):
        if (cu_mask >> p) & 1 and taken < wanted_cu:
            units = min(wanted_cu - taken, state.free_cu[p])
            if row.waits > 0:
                units = min(units, state.holdable_cu[p])
                state.holdable_cu[p] -= units
            state.free_cu[p] -= units
            taken += units
    return taken


@inlined
def _reserve(state, first, count, p):  # type: ignore[no-untyped-def]
    """Reserve for each interleaved task a max-min fair share of partition `p`; what is left is dispatched in order.

    Without dispatch in order, tasks of the highest priority get such shares, and those of a lower priority the rest.
    """
    level, previous, highest = 0.0, -1.0, state.priority[state.active[first].task]
    while level > previous + _ROUNDING:
        previous = level
        satisfied_cu, n_limited = 0.0, 0
        for k in range(first, first + count):
            task = state.active[k].task
            if not (state.in_order or state.priority[task] == highest or state.interleaved[task]):
                continue
            wanted_cu = _wanted_of_partition(state, state.cu_mask[task], state.active[k].wanted_cu, p)
            if wanted_cu <= level:
                satisfied_cu += wanted_cu
            else:
                n_limited += 1
        if n_limited > 0:
            level = (state.free_cu[p] - satisfied_cu) / n_limited
    reserved = 0.0
    for k in range(first, first + count):
        row = state.active[k]
        if (not state.in_order and state.priority[row.task] == highest) or state.interleaved[row.task]:
            units = min(_wanted_of_partition(state, state.cu_mask[row.task], row.wanted_cu, p), level)
            if row.waits > 0:
                units = min(units, state.holdable_cu[p])
                state.holdable_cu[p] -= units
            row.reserved_cu += units
            reserved += units
    state.free_cu[p] = max(state.free_cu[p] - reserved, 0.0)


@inlined
def _wanted_of_partition(state, cu_mask, wanted_cu, p):  # type: ignore[no-untyped-def]
    """Return the units wanted of partition `p`; `wanted_cu` is spread over the partitions in `cu_mask` by size."""
    if (cu_mask >> p) & 1 == 0:
        return 0.0
    size = 0.0
    for q in range(len(state.partitions)):
        size += state.partitions[q] * ((cu_mask >> q) & 1)
    return min(wanted_cu, size) * state.partitions[p] / size


@inlined
def _rate_cap(state, row):  # type: ignore[no-untyped-def]
    """Return the highest rate that the compute units granted to a task allow."""
    granted = row.granted_cu
    cap = min(granted / max(row.needed_cu, _ROUNDING), 1.0)
    if granted > _ROUNDING and state.has_rounds and state.extra_round[row.task] > 0.0:
        cap = _single_round_rate(state, row, cap)
    if state.quantised and granted > _ROUNDING and _takes_whole_waves(state, row):
        cap = _quantized_rate(state, row)
    cap = 0.0 if granted <= _ROUNDING else cap
    is_complete = granted >= row.wanted_cu - _ROUNDING
    if state.has_rounds:
        row.is_resident |= is_complete and row.remaining_ns <= row.last_wave_ns
    return 1.0 if is_complete else cap


@inlined
def _takes_whole_waves(state, row):  # type: ignore[no-untyped-def]
    """Return whether a kernel that lacks units takes whole waves, if the policy is quantised.

    Its waves are known, and so are no costs of a further round. A kernel bound by memory, which needs fewer units than
    it occupies, lacks none as long as it gets what it needs.
    """
    waves = state.waves[row.task]
    has_cost = state.has_rounds and waves <= 1.0 and state.extra_round[row.task] > 0.0
    return waves > 0.0 and row.granted_cu < row.needed_cu - _ROUNDING and not has_cost


@bare
def _single_round_rate(state, row, cap):  # type: ignore[no-untyped-def]
    """Return the rate of a kernel that alone runs all its workgroups at once, with the units it is granted.

    A further round takes the share `extra_round` of the kernel's duration, since few workgroups run in it. Workgroups
    that run already are not displaced. A kernel of several rounds has the rate `cap`.
    """
    if row.remaining_ns > row.last_wave_ns:
        return cap
    if row.is_resident:
        return 1.0
    share = row.wanted_cu / row.granted_cu
    return min(cap, 1.0 / (1.0 + state.extra_round[row.task] * (np.ceil(share - 1e-9) - 1.0)))


@bare
def _slow(state, first, count):  # type: ignore[no-untyped-def]
    """Lower the rate caps of tasks that other tasks put pressure on; a collective that waits makes no progress."""
    pressure, shared_cu = 0.0, 0.0
    if state.has_pressure:
        for k in range(first, first + count):
            row = state.active[k]
            pressure += _pressure(state, row)
            shared_cu += row.granted_cu if _is_collective(state, row) else 0.0
    for k in range(first, first + count):
        row = state.active[k]
        if shared_cu > 0.0 and state.has_rounds and 0.0 < row.rate_cap < 1.0 and not _is_collective(state, row):
            row.rate_cap = _rate_beside_collectives(state, row, shared_cu)
        if state.has_pressure and row.rate_cap > 0.0:
            rest = max(pressure - _pressure(state, row), 0.0)
            row.rate_cap /= 1.0 + row.rate_cap * state.sensitivity[row.task] * rest
        if row.waits > 0:
            row.rate_cap = 0.0


@inlined
def _is_collective(state, row):  # type: ignore[no-untyped-def]
    """Return whether a task puts pressure on others and feels none: a collective, which is bound by its links."""
    return state.pressure[row.task] > 0.0 and state.sensitivity[row.task] <= 0.0


@inlined
def _rate_beside_collectives(state, row, shared_cu):  # type: ignore[no-untyped-def]
    """Return the rate of a kernel of several rounds that lacks the units of collectives.

    Its workgroups run on those units, too, since a collective mostly waits for its links. `extra_round` is the share of
    these units that the kernel loses.
    """
    cost = state.extra_round[row.task]
    if cost <= 0.0 or row.remaining_ns <= row.last_wave_ns:
        return row.rate_cap
    usable = row.granted_cu + (1.0 - min(cost, 1.0)) * shared_cu
    return max(row.rate_cap, min(usable / max(row.needed_cu, _ROUNDING), 1.0))


@inlined
def _pressure(state, row):  # type: ignore[no-untyped-def]
    """Return the pressure that an active task puts on the tasks beside it: none before it gets compute units."""
    if row.rate_cap <= 0.0:
        return 0.0
    return state.pressure[row.task] * (state.waiting_pressure if row.waits > 0 else 1.0)


@inlined
def _quantized_rate(state, row):  # type: ignore[no-untyped-def]
    """Return the progress rate of a kernel whose workgroups run in whole waves; set the units of its last wave.

    With a share g of the units it wants, w waves take ceil(w / g) rounds instead of ceil(w). The last round takes as
    long as the last wave alone; the rounds before it run at the returned rate.
    """
    granted_share, waves = row.granted_cu / row.wanted_cu, state.waves[row.task]
    if row.remaining_ns <= row.last_wave_ns:
        return 1.0 / np.ceil(1.0 / granted_share - 1e-9)
    rounds = np.ceil(waves / min(granted_share, 1.0) - 1e-9)
    row.last_wave_cu = row.occupied_cu * (waves - (rounds - 1.0) * min(granted_share, 1.0))
    return (np.ceil(waves - 1e-9) - 1.0) / (rounds - 1.0)


@bare
def _raise_misses(state, first, count):  # type: ignore[no-untyped-def]
    """Raise demands on memory bandwidth if the tasks' footprints together exceed the last-level cache.

    A task keeps a share of the cache in proportion to its footprint, and its hits shrink with that share.
    """
    total = 0.0
    for k in range(first, first + count):
        if state.active[k].rate_cap > 0.0:
            total += state.footprint[state.active[k].task]
    kept = min(1.0 / total, 1.0) if total > 0.0 else 1.0
    for k in range(first, first + count):
        task = state.active[k].task
        footprint, hit_share = state.footprint[task], state.hit_share[task]
        kept_alone = min(1.0 / footprint, 1.0) if footprint > 0.0 else 1.0  # `hit_share` holds for this much
        missed = 1.0 - hit_share * kept / kept_alone
        state.active[k].demand[HBM_COLUMN] = state.demand[task, FAIR[HBM_COLUMN]] * missed / (1.0 - hit_share)


@bare
def _defer(state, first, count):  # type: ignore[no-untyped-def]
    """Cap the rates of tasks whose accesses of memory yield to those of other tasks.

    Together they get what the others leave of the bandwidth, and `deferred_share` at least. Among themselves they
    share it max-min fair.
    """
    wanted = 0.0
    for k in range(first, first + count):
        row = state.active[k]
        if state.defers[row.task] <= 0.0:
            wanted += row.rate_cap * row.demand[HBM_COLUMN]
    available, level, previous = max(1.0 - wanted, state.deferred_share), 0.0, -1.0
    while level > previous + _ROUNDING:
        previous, satisfied, limited = level, 0.0, 0.0
        for k in range(first, first + count):
            row = state.active[k]
            if state.defers[row.task] <= 0.0 or row.demand[HBM_COLUMN] <= 0.0:
                continue
            if row.rate_cap <= level:
                satisfied += row.rate_cap * row.demand[HBM_COLUMN]
            else:
                limited += row.demand[HBM_COLUMN]
        if limited > 0.0:
            level = (available - satisfied) / limited
    for k in range(first, first + count):
        row = state.active[k]
        if state.defers[row.task] > 0.0 and row.demand[HBM_COLUMN] > 0.0:
            row.rate_cap = min(row.rate_cap, level)


@inlined
def _add_demands(resource_of, state, first, count):  # type: ignore[no-untyped-def]
    """Add each task's demands at full rate, times its weight, to the demand of tasks whose rate rises."""
    if resource_of is None:
        for c in range(N_FAIR):
            total = state.totals[RISING, c]
            for k in range(first, first + count):
                total += state.active[k].weight * state.active[k].demand[c]
            state.totals[RISING, c] = total
        return
    for k in range(first, first + count):
        row = state.active[k]
        for c in range(N_FAIR):
            state.totals[RISING, resource_of[row.task, c]] += row.weight * row.demand[c]
        if resource_of[row.task, LINK_COLUMN] == LINK_COLUMN and row.demand[LINK_COLUMN] > 0.0:
            for r in range(state.peer_links[0], state.peer_links[1]):
                state.totals[RISING, r] += row.weight * row.demand[LINK_COLUMN]


@inlined
def _n_resources(resource_of, totals):  # type: ignore[no-untyped-def]
    """Return the number of fair resources; a constant to the compiler if no link or engine is numbered."""
    if resource_of is None:
        return N_FAIR
    return totals.shape[1]


@inlined
def _fill(state, first, count):  # type: ignore[no-untyped-def]
    """Raise all rates together; each stops at its cap, or when a resource that its task demands is full.

    Written without branches where possible: a processor cannot predict which task stops when.
    """
    totals, n_resources = state.totals, _n_resources(state.resource_of, state.totals)
    lowest_cap, level, any_rising = 1.0, 0.0, True
    for k in range(first, first + count):
        row = state.active[k]
        row.weight = 1.0 if row.rate_cap > 0.0 else 0.0
        row.rate = -1.0 if row.rate_cap > 0.0 else 0.0
        lowest_cap = min(lowest_cap, row.rate_cap if row.rate_cap > 0.0 else 1.0)
    totals[FREE, :], totals[RISING, :] = 1.0, 0.0
    _add_demands(state.resource_of, state, first, count)
    while True:
        rise = lowest_cap - level
        for r in range(n_resources):
            until_full = max(totals[FREE, r], 0.0) / max(totals[RISING, r], _ROUNDING)
            rise = min(rise, until_full if totals[RISING, r] > _ROUNDING else 1.0)
        level += rise
        full_bits = np.int64(0)  # a literal would have `_stop` compiled twice
        for r in range(n_resources):
            totals[FREE, r] -= rise * totals[RISING, r]
            full_bits |= (totals[FREE, r] <= _ROUNDING) << r
        any_rising, lowest_cap = _stop(state, first, count, (level, full_bits))
        if not any_rising:
            break
        _add_demands(state.resource_of, state, first, count)


@inlined
def _stop(state, first, count, reached):  # type: ignore[no-untyped-def]
    """Fix the rates of tasks at their cap or on a full resource.

    `reached` is the level of the rising rates, and a bit for each full resource. Return whether any rate still rises,
    and the lowest cap of the rising rates.
    """
    level, full_bits = reached
    any_rising, lowest_cap = False, 1.0
    for k in range(first, first + count):
        row = state.active[k]
        is_rising = row.rate < 0.0
        stops = is_rising & ((row.rate_cap <= level + _ROUNDING) | ((row.resource_bits & full_bits) != 0))
        row.rate = min(level, row.rate_cap) if stops else row.rate
        row.weight = -1.0 if stops else 0.0
        is_rising &= not stops
        any_rising |= is_rising
        lowest_cap = min(lowest_cap, row.rate_cap if is_rising else 1.0)
    return any_rising, lowest_cap


@bare
def _throttle(state, first, count):  # type: ignore[no-untyped-def]
    """Lower the clock if the tasks draw more power than the device may; rate caps drop with it, bandwidths do not."""
    power = 0.0
    for k in range(first, first + count):
        power += state.demand[state.active[k].task, POWER] * state.active[k].rate
    if power <= 1.0 + _ROUNDING:
        return
    clock = power ** (-1.0 / state.power_exponent)
    for k in range(first, first + count):
        row = state.active[k]
        if row.needed_cu > 0.0:  # granted units beyond the need make up for a lower clock
            row.rate_cap = min(row.rate_cap, clock * max(row.granted_cu / row.needed_cu, row.rate_cap))
    _fill(state, first, count)
