"""Compute units of a device, by what they hold: where the workgroups of each active task are.

A compute unit has room for so many threads, registers, bytes of shared memory and workgroups. A workgroup takes a share
of each, and stays on its unit until it ends. So what else fits beside it depends on its own unit, not on how much of
the device is free. Units of equal content are one class (`UNITS`), of any size, since a device has hundreds of units
and seldom more than ten kinds of content. The workgroups of one task on the units of one class are a holding
(`HOLDING`); workgroups that run in rounds and began at another time are another holding.

- A task that arrives spreads: each workgroup goes where most of its kind still fit. A task that has waited for room
  fills whatever unit becomes free: as many workgroups as ended there, and stays there.
- Most kernels of many workgroups are out of step: as one workgroup ends, the next takes its place. Their holdings only
  say where they are, and the row of the task knows the work left. A kernel that runs in rounds has holdings that know
  their own work left; what is left of its workgroups waits for room.

Sizes are shares of the device's units, and workgroups count as workgroups per unit of the device: 12 workgroups on a
device of 120 units are 0.1, whatever fits on a unit.
"""

import numpy as np

from profilers.trace.compiled import bare, inlined

#: Limits of a compute unit: threads, registers, shared memory, workgroups.
N_LIMITS = 4
UNITS = np.dtype(
    [
        ("extent", np.float64),  # share of the device's units
        ("partition", np.int64),
        ("room", np.float64, N_LIMITS),  # share of each limit that is free
        ("fits", np.float64),  # workgroups of the task being placed that fit on each unit
        ("turn", np.float64),  # how often it was given workgroups of the task being placed
        ("key", np.float64),  # larger the less room there is, and then the more workgroups of the task being placed
        ("work_ns", np.float64),  # work left of its workgroups, to decide between equal keys
        ("freed", np.float64),  # workgroups that ended on each unit since the last placing
        ("crowd", np.float64),  # by how much more of a limit is taken than there is, at least 1
        ("spinning", np.float64),  # share of the unit's threads that spin while they wait for their links
        ("threads", np.float64),  # share of its threads that are taken
        ("compute", np.float64),  # share of the unit's arithmetic that its workgroups ask for
        ("bandwidth", np.float64),  # share of the unit's own bandwidth that they ask for
    ]
)
HOLDING = np.dtype(
    [
        ("task", np.int64),
        ("units", np.int64),  # its class of units
        ("count", np.float64),  # workgroups on each unit
        ("left", np.float64),  # share of their work that is left; 1 for a task out of step
        ("rate", np.float64),  # progress per ns, as a share of a workgroup's work; 0 for a task out of step
        ("is_new", np.int64),  # 1 if placed at this time
    ]
)
#: Most classes of units, and most holdings, of a device. Workgroups that would need more wait until classes join.
MAX_UNITS, MAX_HOLDINGS = 64, 320
#: Between units that hold as many more, those with more room come first (in steps of 1/4096), then those with fewer
#: workgroups of the task: weights above any number of a task.
_TAKEN, _STEPS, _OWN = 2.0**40, 4096, 2.0**32
#: Shares closer than this are equal.
_ROUNDING = 1e-12
#: Work is done if this is left of it: ns at full rate, a thousandth of what a profiler resolves.
DONE_NS = 1e-3
#: Holdings whose work left differs by less are in step.
_IN_STEP = 1e-3


@inlined
def needs(state, task, limit):  # type: ignore[no-untyped-def]
    """Return the share of a unit's limit that a workgroup of a task takes."""
    return state.takes[limit][task] if state.shares_units else 1.0


@inlined
def _fitting(state, units, task):  # type: ignore[no-untyped-def]
    """Return how many workgroups of a task fit on a unit of a class; a whole number, or part of an empty unit."""
    if not state.shares_units:
        return 1.0 if units.room[0] > 1.0 - _ROUNDING else 0.0
    most = np.inf
    for limit in range(N_LIMITS):
        most = min(most, (units.room[limit] + 1e-9) / needs(state, task, limit))
    return max(np.floor(most), 0.0)


@inlined
def per_unit(state, task):  # type: ignore[no-untyped-def]
    """Return how many workgroups of a task an empty unit holds."""
    if not state.shares_units:
        return 1.0
    most = np.inf
    for limit in range(N_LIMITS):
        most = min(most, (1.0 + 1e-9) / needs(state, task, limit))
    return max(np.floor(most), 1.0)


@bare
def clear(state, device):  # type: ignore[no-untyped-def]
    """Empty a device: one class of units a partition."""
    first = device * MAX_UNITS
    for p in range(len(state.partitions)):
        units = state.units[first + p]
        units.extent, units.partition, units.freed = state.partitions[p], p, 0.0
        for limit in range(N_LIMITS):
            units.room[limit] = 1.0
    state.n_units[device], state.n_holdings[device] = len(state.partitions), 0


@bare
def _split(state, device, c, size):  # type: ignore[no-untyped-def]
    """Move some units of a class into a class of their own with the same content, the last one."""
    first, n, held = device * MAX_UNITS, state.n_units[device], state.n_holdings[device]
    base = device * MAX_HOLDINGS
    state.units[first + n] = state.units[first + c]
    state.units[first + n].extent = size
    state.units[first + c].extent -= size
    for h in range(held):
        if state.holdings[base + h].units == c:
            state.holdings[base + state.n_holdings[device]] = state.holdings[base + h]
            state.holdings[base + state.n_holdings[device]].units = n
            state.n_holdings[device] += 1
    state.n_units[device] = n + 1


@inlined
def _taken(units):  # type: ignore[no-untyped-def]
    """Return how much of the limit that is closest a unit has taken, as part of its key."""
    least = 1.0
    for limit in range(N_LIMITS):
        least = min(least, units.room[limit])
    return np.floor((1.0 - least) * _STEPS + 0.5) * _TAKEN


@inlined
def _put(state, device, c, task, count, in_rounds):  # type: ignore[no-untyped-def]
    """Put `count` workgroups of a task on each unit of a class."""
    base, units = device * MAX_HOLDINGS, state.units[device * MAX_UNITS + c]
    taken = _taken(units)
    for limit in range(N_LIMITS):
        units.room[limit] -= count * needs(state, task, limit)
    units.fits -= count
    units.key += count * _OWN + _taken(units) - taken
    units.work_ns += count * state.duration[task]
    for h in range(state.n_holdings[device]):
        holding = state.holdings[base + h]
        if holding.units == c and holding.task == task and (holding.is_new or not in_rounds):
            holding.count += count
            return
    holding = state.holdings[base + state.n_holdings[device]]
    holding.task, holding.units, holding.count, holding.left, holding.rate, holding.is_new = task, c, count, 1.0, 0.0, 1
    state.n_holdings[device] += 1


@inlined
def _give_back(state, device, holding, count):  # type: ignore[no-untyped-def]
    """Take `count` workgroups off each unit of a holding."""
    units = state.units[device * MAX_UNITS + holding.units]
    for limit in range(N_LIMITS):
        units.room[limit] += count * needs(state, holding.task, limit)
    units.freed += count
    holding.count -= count


@bare
def place(state, device, task, wanted, how):  # type: ignore[no-untyped-def]
    """Place up to `wanted` workgroups of a task on the units of its partitions; return how many found room.

    `how` holds whether the task has waited for room, whether it runs in rounds, and whether it is let in beside others
    whatever the room.
    """
    has_waited, in_rounds, is_let_in = how
    first, cu_mask, total, room = device * MAX_UNITS, state.cu_mask[task], wanted, 0.0
    for c in range(state.n_units[device]):
        units = state.units[first + c]
        units.fits, units.turn, units.key, units.work_ns = 0.0, 0.0, _taken(units), 0.0
        if (cu_mask >> units.partition) & 1:
            units.fits = per_unit(state, task) if is_let_in else _fitting(state, units, task)
            room += units.fits * units.extent
    for h in range(device * MAX_HOLDINGS, device * MAX_HOLDINGS + state.n_holdings[device]):
        holding = state.holdings[h]
        units = state.units[first + holding.units]
        units.key += holding.count * _OWN if holding.task == task else 0.0
        units.work_ns += holding.count * holding.left * state.duration[holding.task]
    while wanted > _ROUNDING:
        c = _next_units(state, device, has_waited)
        if c < 0 or state.n_holdings[device] >= MAX_HOLDINGS - 1:
            break
        units = state.units[first + c]
        if state.spreads[task] and not has_waited:
            count, units.fits = 1.0, 1.0
        elif has_waited:
            count = min(units.fits, max(np.ceil(units.fits / max(units.freed, 1.0) - 1e-9), 1.0))
        elif total >= room and not in_rounds:
            count = units.fits  # all that fit will be taken
        else:
            count = 1.0
        extent = min(units.extent, wanted / count)
        units.turn += 1.0
        if extent < units.extent - _ROUNDING:
            if state.n_units[device] >= MAX_UNITS - 2 or state.n_holdings[device] >= 3 * MAX_HOLDINGS // 4:
                units.fits = 0.0
                continue
            _split(state, device, c, extent)
            c = state.n_units[device] - 1
        _put(state, device, c, task, count, in_rounds)
        wanted = max(wanted - count * extent, 0.0)
    return total - wanted


@inlined
def _next_units(state, device, has_waited):  # type: ignore[no-untyped-def]
    """Return the class of units that takes the next workgroups: that where most of them fit; -1 if there is none.

    A task that has waited takes them in turn. Between equals, what they hold decides, not their order in the table:
    those with most room come first, then those with fewest of its workgroups, then those with the least work left.
    """
    found, most, key, work_ns = -1, 0.0, 0.0, 0.0
    for c in range(state.n_units[device]):
        units = state.units[device * MAX_UNITS + c]
        if units.fits <= 0.0 or units.extent <= _ROUNDING:
            continue
        score = -units.turn if has_waited else units.fits
        is_next = score == most and (units.key < key or (units.key == key and units.work_ns < work_ns))
        if found < 0 or score > most or is_next:
            found, most, key, work_ns = c, score, units.key, units.work_ns
    return found


@bare
def release(state, device, task):  # type: ignore[no-untyped-def]
    """Take all workgroups of a task off their units."""
    base, h = device * MAX_HOLDINGS, 0
    while h < state.n_holdings[device]:
        holding = state.holdings[base + h]
        if holding.task == task:
            _give_back(state, device, holding, holding.count)
            _forget(state, device, h)
        else:
            h += 1


@bare
def thin_out(state, device, task, kept):  # type: ignore[no-untyped-def]
    """Take workgroups of a task off their units, so that the share `kept` of them stays: whole workgroups of a unit."""
    base, h = device * MAX_HOLDINGS, 0
    while h < state.n_holdings[device]:
        holding = state.holdings[base + h]
        if holding.task != task or holding.rate < 0.0:  # seen
            h += 1
            continue
        staying, holding.rate = np.floor(holding.count * kept + 1e-9), -1.0
        size = state.units[device * MAX_UNITS + holding.units].extent * (holding.count * kept - staying)
        if (
            size > _ROUNDING
            and state.n_units[device] < MAX_UNITS - 2
            and state.n_holdings[device] < 3 * MAX_HOLDINGS // 4
        ):
            last = state.n_holdings[device]
            _split(state, device, holding.units, size)  # these units keep one more
            for k in range(base + last, base + state.n_holdings[device]):
                if state.holdings[k].task == task:
                    _give_back(state, device, state.holdings[k], state.holdings[k].count - staying - 1.0)
        elif size > _ROUNDING:
            staying = holding.count * kept
        _give_back(state, device, holding, holding.count - staying)
        if holding.count <= _ROUNDING:
            _forget(state, device, h)
        else:
            h += 1


@inlined
def _forget(state, device, h):  # type: ignore[no-untyped-def]
    """Remove a holding; the last one takes its place."""
    base = device * MAX_HOLDINGS
    state.n_holdings[device] -= 1
    state.holdings[base + h] = state.holdings[base + state.n_holdings[device]]


@bare
def end_rounds(state, device, rows, elapsed):  # type: ignore[no-untyped-def]
    """Let the workgroups of tasks in rounds progress, and end those that are done; `rows` are the active tasks."""
    base, h = device * MAX_HOLDINGS, 0
    for c in range(state.n_units[device]):
        state.units[device * MAX_UNITS + c].freed = 0.0
    while h < state.n_holdings[device]:
        holding = state.holdings[base + h]
        holding.is_new = 0
        if holding.rate > 0.0:
            holding.left -= elapsed * holding.rate
            if holding.left <= DONE_NS * holding.rate:
                for i in range(rows[0], rows[1]):
                    if state.active[i].task == holding.task:
                        ended = holding.count * state.units[device * MAX_UNITS + holding.units].extent
                        state.active[i].running = max(state.active[i].running - ended, 0.0)
                _give_back(state, device, holding, holding.count)
                _forget(state, device, h)
                continue
        h += 1
    _merge(state, device)


@bare
def _merge(state, device):  # type: ignore[no-untyped-def]
    """Join classes of units with equal content."""
    first, c = device * MAX_UNITS, 0
    while c < state.n_units[device]:
        d = c + 1
        while d < state.n_units[device]:
            if state.units[first + d].extent <= _ROUNDING or _are_alike(state, device, c, d):
                _join(state, device, c, d)
            else:
                d += 1
        c += 1


@inlined
def _are_alike(state, device, c, d):  # type: ignore[no-untyped-def]
    """Return whether units of two classes hold the same workgroups at the same progress."""
    one, other, base = state.units[device * MAX_UNITS + c], state.units[device * MAX_UNITS + d], device * MAX_HOLDINGS
    if one.partition != other.partition or abs(one.freed - other.freed) > 1e-9:
        return False
    for limit in range(N_LIMITS):
        if abs(one.room[limit] - other.room[limit]) > 1e-9:
            return False
    for h in range(state.n_holdings[device]):
        holding, more = state.holdings[base + h], 0.0
        if holding.units != c and holding.units != d:
            continue
        for k in range(state.n_holdings[device]):
            twin = state.holdings[base + k]
            if twin.task == holding.task and abs(twin.left - holding.left) <= _IN_STEP:
                more += twin.count if twin.units == c else (-twin.count if twin.units == d else 0.0)
        if abs(more) > 1e-9:
            return False
    return True


@inlined
def _join(state, device, c, d):  # type: ignore[no-untyped-def]
    """Let class `c` have the units of class `d`; the last class takes the number of `d`."""
    first, base, h = device * MAX_UNITS, device * MAX_HOLDINGS, 0
    state.units[first + c].extent += max(state.units[first + d].extent, 0.0)
    while h < state.n_holdings[device]:
        if state.holdings[base + h].units == d:
            _forget(state, device, h)
        else:
            h += 1
    state.n_units[device] -= 1
    last = state.n_units[device]
    if d < last:
        state.units[first + d] = state.units[first + last]
        for h in range(state.n_holdings[device]):
            if state.holdings[base + h].units == last:
                state.holdings[base + h].units = d
