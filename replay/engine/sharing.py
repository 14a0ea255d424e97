"""Sharing of a device: at which rate each of its active tasks runs.

Several tasks can be active on a device at once, such as a matrix product and an all-reduce. Each demands a share of
every resource: compute units, bandwidth of the L2 cache, of memory and of links, DMA engines, processing in memory,
power. Sharing gives each task a rate. At rate 1 a task runs as fast as alone, at rate 0.5 it takes twice as long, at
rate 0 it waits. Rates stay as they are until a task arrives or ends, a round of workgroups ends, or a task comes to its
last wave; then the engine calls `share` again. A task that has the device for itself runs at rate 1.

`share` works in steps. Each lowers what the steps before it allow, and runs only if a task needs it.

1. `dispatch` places workgroups on compute units (`replay.engine.units`), in the order of priority, then of arrival.
   What is placed stays until it ends. A task out of step begins a workgroup whenever one ends: it leaves its units to a
   task of a higher priority, and in its last wave to others. With interleaved tasks, it first lets each of them
   have a fair share (`replay.engine.dispatch`).
2. `_cap_rates` caps the rate of a task by its workgroups on units, and by what they share with others there: arithmetic
   (the law of occupancy, `replay.costs.occupancy`) and the bandwidth of the unit.
3. `_raise_misses` raises demands on memory bandwidth if the last-level cache cannot hold the footprints of all tasks.
4. `_halt` stops collectives that wait for their peers: they keep their units and make no progress.
5. `_queue_for_memory` slows tasks by the latency of memory under the load of all, and by the pressure of others.
6. `_defer` lowers the caps of tasks whose accesses of memory yield to those of others.
7. `_fill` shares every other resource. The rates are max-min fair, so a task draws bandwidth in proportion to its
   demand. All rates rise together from 0. A rate stops rising at its cap, or once a resource that its task demands is
   full (progressive filling: Bertsekas and Gallager, Data Networks, 2nd edition, section 6.5.2).
8. `_throttle` lowers the clock, and with it the caps, if the tasks draw more power than the device may.

The active tasks of a device are `count` rows of the table `SharingState.active`, from row `first` on, in the order of
dispatch. `replay.engine.layout` describes the columns. Compute units are shares of the device's units throughout.
"""

import numpy as np

from profilers.trace.compiled import bare, inlined
from replay.engine.dispatch import dispatch, wanted_workgroups
from replay.engine.layout import CU, FAIR, FREE, HBM_COLUMN, L2_COLUMN, LINK_COLUMN, N_FAIR, PIM, POWER, RISING
from replay.engine.units import (
    DONE_NS,
    MAX_HOLDINGS,
    MAX_UNITS,
    N_LIMITS,
    end_rounds,
    needs,
    per_unit,
)

#: Shares closer than this are equal.
_ROUNDING = 1e-12
#: Less than this part of a unit's workgroups is none: what is left of sums of shares.
_ROUNDED = 1e-9


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
def let_in(state, first, count):  # type: ignore[no-untyped-def]
    """Let the first active task that has no room run beside others; return whether there is one that was not let in.

    Without this, collectives that wait could hold all units that a kernel needs which their peers wait for.
    """
    for k in range(first, first + count):
        row = state.active[k]
        if row.waits == 0 and row.rate <= 0.0 and row.is_let_in == 0:
            row.is_let_in = 1
            return True
    return False


@inlined
def _write_row(state, index, task):  # type: ignore[no-untyped-def]
    """Write the row of a task that has made no progress."""
    row = state.active[index]
    row.task, row.started, row.resource_bits = task, 0, 0
    row.waits, row.is_placed, row.has_waited, row.has_ended, row.is_let_in = 0, 0, 0, 0, 0
    row.remaining_ns, row.rate, row.running, row.last_wave_ns = state.duration[task], 0.0, 0.0, 0.0
    row.needed_cu = state.demand[task, CU]
    row.occupied_cu = max(state.occupies[task], row.needed_cu)
    row.in_rounds = state.in_rounds[task] and row.occupied_cu > 0.0
    row.per_unit = per_unit(state, task)
    row.to_place, row.last_wave_cu = row.occupied_cu * row.per_unit, row.occupied_cu
    if state.has_waves and state.waves[task] > 0.0:
        waves = state.waves[task]
        whole_waves = max(np.ceil(waves - 1e-9), 1.0)
        row.last_wave_cu *= waves - whole_waves + 1.0 if waves > 1.0 else 1.0
        row.to_place *= max(waves, 1.0)
        last = last_round_share(state, row) if row.in_rounds else 1.0
        row.last_wave_ns = row.remaining_ns / (whole_waves - 1.0 + last)
    for c in range(N_FAIR):
        row.demand[c] = state.demand[task, FAIR[c]]
        row.resource_bits |= (row.demand[c] > 0.0) << _resource(state.resource_of, task, c)
    row.resource_bits |= _peer_bits(state.resource_of, state, task)


@inlined
def last_round_share(state, row):  # type: ignore[no-untyped-def]
    """Return the time of a task's last round over that of a full one: fewer workgroups share a unit's arithmetic."""
    if not state.has_crowding or state.unit_compute[row.task] <= 0.0:
        return 1.0
    own = state.unit_compute[row.task]
    full = own * most_resident(state, row.task)
    return arithmetic_slowdown(own * max(np.ceil(row.last_wave_cu * row.per_unit - 1e-9), 1.0), full)


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

    Return whether the next last wave can change the rates: whether some workgroups find no room.
    """
    row = state.active[first]
    if count == 1 and state.is_undivided and row.is_placed == 0:
        row.rate = 0.0 if state.has_waiting and row.waits > 0 else 1.0
        return False
    device = state.device[row.task]
    is_short = dispatch(state, device, first, count)
    _cap_rates(state, device, first, count)
    if state.has_footprints:
        _raise_misses(state, first, count)
    if state.has_waiting:
        _halt(state, first, count)
    if state.has_latency:
        _queue_for_memory(state, first, count)
    if state.has_deferring:
        _defer(state, first, count)
    _fill(state, first, count)
    if state.has_power:
        _throttle(state, first, count)
    _set_rounds(state, device, first, count)
    return is_short


@inlined
def progress(state, device, first, elapsed):  # type: ignore[no-untyped-def]
    """Take off the work that the active tasks of a device did; `elapsed` holds their number and the time in ns."""
    count, elapsed_ns = elapsed
    for k in range(first, first + count):
        row = state.active[k]
        if not (row.in_rounds and row.is_placed):
            row.remaining_ns -= elapsed_ns * row.rate
            if row.last_wave_ns < row.remaining_ns <= row.last_wave_ns + DONE_NS:
                row.remaining_ns = row.last_wave_ns  # no rounding may keep a task out of its last wave
    if state.n_holdings[device] > 0:
        end_rounds(state, device, (first, first + count), elapsed_ns)


@inlined
def until_done_ns(state, device, row):  # type: ignore[no-untyped-def]
    """Return how long an active task would go on at its present rates."""
    if not (row.in_rounds and row.is_placed):
        return row.remaining_ns / row.rate if row.rate > 0.0 else row.remaining_ns
    longest = 0.0
    for h in range(device * MAX_HOLDINGS, device * MAX_HOLDINGS + state.n_holdings[device]):
        holding = state.holdings[h]
        if holding.task == row.task and holding.rate > 0.0:
            longest = max(longest, holding.left / holding.rate)
    # If hardly any of its workgroups run, it is estimated as if a hundredth of the units were its own.
    rounds = np.ceil(row.to_place / max(row.running, row.per_unit * 1e-2) - 1e-9)
    return longest + rounds * (row.last_wave_ns if row.last_wave_ns > 0.0 else state.duration[row.task])


@inlined
def held_units(row):  # type: ignore[no-untyped-def]
    """Return the share of the compute units that the workgroups of a task fill."""
    return (row.running if row.is_placed else wanted_workgroups(row)) / row.per_unit


@inlined
def is_done(row, done_ns):  # type: ignore[no-untyped-def]
    """Return whether a task is done: at most `done_ns` of its work is left, or none of its workgroups."""
    if row.in_rounds and row.is_placed:
        return max(row.running, row.to_place) <= _ROUNDED * row.per_unit
    return row.remaining_ns <= done_ns


@inlined
def next_change_ns(state, first, count, is_short):  # type: ignore[no-untyped-def]
    """Return the time until a task is done, until workgroups in rounds are or, if room is short, until a last wave."""
    soonest, any_rounds = np.inf, False
    for i in range(first, first + count):
        row = state.active[i]
        if row.has_ended:
            continue
        if row.in_rounds and row.is_placed:
            any_rounds = True
            if is_done(row, 0.0):
                soonest = 0.0
            continue
        work_ns = row.remaining_ns - (row.last_wave_ns if is_short & (row.remaining_ns > row.last_wave_ns) else 0.0)
        soonest = min(soonest, work_ns / row.rate)  # infinite at rate 0
    if any_rounds:
        device = state.device[state.active[first].task]
        for h in range(device * MAX_HOLDINGS, device * MAX_HOLDINGS + state.n_holdings[device]):
            if state.holdings[h].rate > 0.0:
                soonest = min(soonest, state.holdings[h].left / state.holdings[h].rate)
    return soonest


@bare
def _cap_rates(state, device, first, count):  # type: ignore[no-untyped-def]
    """Cap each task's rate by its workgroups on units, and by what they share with others on the same unit."""
    base = device * MAX_UNITS
    for k in range(first, first + count):
        state.active[k].rate_cap = 0.0
    for c in range(base, base + state.n_units[device]):
        units, full = state.units[c], 1.0
        for limit in range(N_LIMITS):
            full = max(full, 1.0 - units.room[limit])
        units.crowd, units.compute, units.bandwidth, units.spinning, units.threads = full, 0.0, 0.0, 0.0, 0.0
    for h in range(device * MAX_HOLDINGS, device * MAX_HOLDINGS + state.n_holdings[device]):
        holding = state.holdings[h]
        if state.has_crowding:
            units, threads = state.units[base + holding.units], holding.count * needs(state, holding.task, 0)
            units.threads += threads
            units.spinning += threads * state.spins[holding.task]
            units.compute += holding.count * state.unit_compute[holding.task]
            units.bandwidth += holding.count * state.unit_bandwidth[holding.task]
    for h in range(device * MAX_HOLDINGS, device * MAX_HOLDINGS + state.n_holdings[device]):
        holding = state.holdings[h]
        holding.rate = 1.0 / _crowding(state, holding, state.units[base + holding.units])
        for k in range(first, first + count):
            if state.active[k].task == holding.task:
                # A workgroup that copies over a link may use all of its unit's bandwidth.
                is_link = (
                    state.has_crowding and state.spreads[holding.task] and state.unit_bandwidth[holding.task] > 0.0
                )
                parts = 1.0 / state.unit_bandwidth[holding.task] if is_link else holding.count * holding.rate
                state.active[k].rate_cap += parts * state.units[base + holding.units].extent
    for k in range(first, first + count):
        row = state.active[k]
        in_flight = row.occupied_cu * row.per_unit
        if in_flight <= _ROUNDING:  # it uses no units
            row.rate_cap = 1.0
        elif row.in_rounds:
            row.rate_cap = min(row.rate_cap / in_flight, 1.0)
        else:
            wanted = wanted_workgroups(row)
            if row.running >= wanted * (1.0 - 1e-9) or state.spreads[row.task]:
                row.rate_cap = min(row.rate_cap / max(wanted, _ROUNDING), 1.0)
            else:
                row.rate_cap = min(row.rate_cap / in_flight * row.occupied_cu / max(row.needed_cu, _ROUNDING), 1.0)
        row.placed_rate = row.rate_cap


#: Largest load by one task that counts; most steps to find the headroom, and how close is enough. Chosen: they bound a
#: search.
_FULL, _MOST_STEPS, _CLOSE = 0.97, 24, 1e-6
#: Least headroom: the latency is at most 4 times that of the largest load.
_LEAST = (1.0 - _FULL**2) / 4.0**2


@bare
def _queue_for_memory(state, first, count):  # type: ignore[no-untyped-def]
    """Lower the rate caps by the latency of memory under the load of all tasks.

    With utilization u of memory and L2, an access takes (1 - u^2)^(-1/2) times as long as without load. The load
    follows from the rates, and the rates from the latency. Newton's method finds the headroom `1 - u^2`: the
    load of tasks that do nothing but wait for memory is linear in it.
    """
    pressure, loads = 0.0, 0
    for k in range(first, first + count):
        row = state.active[k]
        if row.rate_cap > 0.0 and row.demand[HBM_COLUMN] + row.demand[L2_COLUMN] > 0.0:
            loads += 1
        if state.has_pressure and (row.rate_cap > 0.0 or row.waits > 0):
            pressure += _pressure(state, row)
    if loads <= 1 and pressure <= 0.0:  # whoever has the memory for itself is as fast as alone
        return
    for k in range(first, first + count):
        row = state.active[k]
        alone = row.demand[HBM_COLUMN] ** 2 + row.demand[L2_COLUMN] ** 2
        # Until `_fill`: memory alone over memory without load, and what the pressure of others adds to the time.
        row.weight, row.rate = np.sqrt(1.0 - min(alone, _FULL * _FULL)), 0.0
        if state.has_pressure and pressure > 0.0:
            others = pressure - (_pressure(state, row) if row.rate_cap > 0.0 or row.waits > 0 else 0.0)
            row.rate = max(others, 0.0) * state.sensitivity[row.task]
    headroom = 1.0
    for _ in range(_MOST_STEPS):
        memory, cache, memory_slope, cache_slope = 0.0, 0.0, 0.0, 0.0
        for k in range(first, first + count):
            row = state.active[k]
            if row.rate_cap <= 0.0 or state.demand[row.task, PIM] > 0.0:  # PIM queues for nothing: it is in the memory
                continue
            slowdown, by_latency = _memory_slowdown(state, row, headroom)
            rate = row.rate_cap / slowdown
            if state.has_crowding and state.spins[row.task] > 0.0:  # it draws while it transfers
                rate *= min(state.spins[row.task], 1.0)
            slope = 0.5 * rate * by_latency / (slowdown * headroom)
            memory, memory_slope = memory + rate * row.demand[HBM_COLUMN], memory_slope + slope * row.demand[HBM_COLUMN]
            cache, cache_slope = cache + rate * row.demand[L2_COLUMN], cache_slope + slope * row.demand[L2_COLUMN]
        excess = headroom - 1.0 + memory * memory + cache * cache
        before = headroom
        headroom -= excess / (1.0 + 2.0 * (memory * memory_slope + cache * cache_slope))
        headroom = min(max(headroom, _LEAST), 1.0)
        if abs(headroom - before) < _CLOSE * headroom:
            break
    for k in range(first, first + count):
        row = state.active[k]
        if row.rate_cap > 0.0:
            row.rate_cap = min(row.rate_cap / _memory_slowdown(state, row, headroom)[0], 1.0)


@inlined
def _pressure(state, row):  # type: ignore[no-untyped-def]
    """Return the pressure of an active task, by its workgroups on units."""
    in_flight = row.occupied_cu * row.per_unit
    placed = min(row.running / in_flight, 1.0) if row.is_placed and in_flight > 0.0 else 1.0
    return state.pressure[row.task] * placed * (state.waiting_pressure if row.waits > 0 else 1.0)


@inlined
def _memory_slowdown(state, row, headroom):  # type: ignore[no-untyped-def]
    """Return the time of a task over its time alone at a latency of headroom^(-1/2), and what waiting adds to it.

    Computing and waiting for memory overlap: the third powers of their times add up. The second result is the
    derivative of the first by the logarithm of the latency.
    """
    part = state.memory_part[row.task]
    if part <= 0.0:
        return 1.0 + row.rate, 0.0
    longer = row.weight * row.weight / headroom
    waits = part * longer * np.sqrt(longer)
    slowed = np.cbrt(1.0 - part + waits)
    return slowed + row.rate, waits / (slowed * slowed)


@inlined
def _crowding(state, holding, units):  # type: ignore[no-untyped-def]
    """Return by how much a workgroup takes longer on a unit than alone, for what it shares with others there.

    Arithmetic follows the law of occupancy with its exponent 1.5 (`replay.costs.occupancy`).
    """
    crowd, task = units.crowd, holding.task
    if state.has_crowding:
        if state.unit_compute[task] > 0.0:
            own = state.unit_compute[task] * most_resident(state, task)
            asked = units.compute + state.spin_weight * units.spinning / max(units.threads, _ROUNDING)
            slowed = arithmetic_slowdown(asked if state.in_rounds[task] else max(asked, own), own)
            crowd = max(crowd, slowed) if crowd > 1.0 else slowed
        if state.unit_bandwidth[task] > 0.0:
            crowd = max(crowd, units.bandwidth)
    return crowd


@inlined
def most_resident(state, task):  # type: ignore[no-untyped-def]
    """Return how many of its workgroups share the fullest unit while a task is alone."""
    return max(np.ceil(max(state.occupies[task], state.demand[task, CU]) * per_unit(state, task) - 1e-9), 1.0)


@inlined
def arithmetic_slowdown(asked, alone):  # type: ignore[no-untyped-def]
    """Return the time of a workgroup where this much of a unit's arithmetic is asked for, over that where it is alone.

    The law of occupancy with its exponent 1.5 (`replay.costs.occupancy`).
    """
    return np.cbrt(((1.0 + asked * np.sqrt(asked)) / (1.0 + alone * np.sqrt(alone))) ** 2)


@bare
def _set_rounds(state, device, first, count):  # type: ignore[no-untyped-def]
    """Turn the rates of holdings into progress per ns: those of tasks in rounds know their own work left."""
    for h in range(device * MAX_HOLDINGS, device * MAX_HOLDINGS + state.n_holdings[device]):
        holding = state.holdings[h]
        for k in range(first, first + count):
            row = state.active[k]
            if row.task == holding.task:
                time_ns = row.last_wave_ns if row.last_wave_ns > 0.0 else state.duration[row.task]
                slowed = row.rate / row.placed_rate if row.placed_rate > 0.0 else 0.0
                holding.rate = holding.rate * slowed / time_ns if row.in_rounds else 0.0


@bare
def _halt(state, first, count):  # type: ignore[no-untyped-def]
    """Let collectives that wait for their peers make no progress."""
    for k in range(first, first + count):
        if state.active[k].waits > 0:
            state.active[k].rate_cap = 0.0


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
    totals, n_resources, is_full = state.totals, _n_resources(state.resource_of, state.totals), False
    totals[RISING, :] = 0.0
    for k in range(first, first + count):
        row = state.active[k]
        row.rate = row.weight = row.rate_cap
    _add_demands(state.resource_of, state, first, count)
    for r in range(n_resources):
        is_full |= totals[RISING, r] > 1.0
    if not is_full:  # all reach their caps
        return
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
            row.rate_cap = min(row.rate_cap, clock * max(row.running / row.per_unit / row.needed_cu, row.rate_cap))
    _fill(state, first, count)
