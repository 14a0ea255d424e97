"""How the tasks that are active on a device share it: compute units by dispatch, everything else max-min fair.

Workgroups are dispatched in the order of priority, then of arrival, and are not preempted: a kernel that fills the
device leaves nothing to what comes later until its last wave. What a task gets of the compute units caps its rate;
below that cap, rates rise together until they or a resource are full.

The active tasks of a device sit on `count` seats from `first` on, in the order of dispatch.
"""

import numpy as np
import numpy.typing as npt

from profilers.trace.compiled import bare, inlined
from replay.engine.layout import COLUMNS, FAIR, HBM, lay_out
from replay.graph.graph import RESOURCES, SharingPolicy, Tasks

#: Shares closer than this are equal.
_ROUNDING = 1e-12
_CU, _POWER = RESOURCES.index("cu"), RESOURCES.index("power")


@inlined
def seat(s, first, count, task):  # type: ignore[no-untyped-def]
    """Seat a task that comes, behind all of its priority; nothing of it is done."""
    i = first + count
    while s.ranks and i > first and s.priority[s.seats[i - 1].task] < s.priority[task]:
        s.seats[i] = s.seats[i - 1]
        i -= 1
    _sit(s, i, task)


@inlined
def _sit(s, place, task):  # type: ignore[no-untyped-def]
    """Write what a seat holds of a task of which nothing is done."""
    new = s.seats[place]
    new.task, new.started, new.uses = task, 0, 0
    new.left, new.rate, new.granted, new.resident = s.duration[task], 0.0, 0.0, 0.0
    new.need = s.demand[task, _CU]
    new.occupies = max(s.occupies[task], new.need)
    new.last = new.occupies
    if s.stays and s.waves[task] > 0.0:
        waves = s.waves[task]
        whole = np.ceil(waves - 1e-9)
        new.resident = new.left / max(whole, 1.0)
        new.last *= waves - whole + 1.0 if waves > 1.0 else 1.0
    for c in range(COLUMNS):
        new.asks[c] = s.demand[task, FAIR[c]]
        new.uses |= (new.asks[c] > 0.0) << _resource(s.at, task, c)


@inlined
def _resource(at, task, c):  # type: ignore[no-untyped-def]
    """Return which resource a column of a task is of; known when compiling where none is named."""
    if at is None:
        return c
    return at[task, c]


@inlined
def share(s, first, count):  # type: ignore[no-untyped-def]
    """Write the rates of the tasks on `count` seats from `first` on.

    Return whether one of them runs below full rate for want of compute units.
    """
    if count == 1 and s.whole and not s.quantised:
        alone = s.seats[first]
        alone.granted, alone.rate = _wanted(alone), 1.0
        return False
    short = _dispatch(s, first, count)
    if s.presses:
        _press(s, first, count)
    _fill(s, first, count)
    if s.throttles:
        _throttle(s, first, count)
    return short


@inlined
def _wanted(row):  # type: ignore[no-untyped-def]
    """Return the compute units that the workgroups a task still has would fill."""
    return row.last if row.left <= row.resident else row.occupies


@inlined
def _dispatch(s, first, count):  # type: ignore[no-untyped-def]
    """Give out the compute units, and cap rates by what each task got; return whether one got less than it wants."""
    total, lets_in, stays = 0.0, not s.in_order, False
    for k in range(first, first + count):
        row = s.seats[k]
        row.wants, row.cap = _wanted(row), 1.0
        total += row.wants
        lets_in |= s.lets_in and s.let_in[row.task]
        stays |= row.left <= row.resident
    if s.whole and total <= 1.0 + _ROUNDING and not s.quantised:
        for k in range(first, first + count):
            s.seats[k].granted = s.seats[k].wants
        return False
    if lets_in or not s.whole:
        return _dispatch_among(s, first, count)
    left = 1.0
    if stays:
        for k in range(first, first + count):  # what runs already stays
            row = s.seats[k]
            held = min(row.granted, row.wants) if row.left <= row.resident else 0.0
            row.granted = min(held, left)
            left -= row.granted
    for k in range(first, first + count):
        row = s.seats[k]
        held = row.granted if stays else 0.0
        more = min(row.wants - held, left)
        row.granted = held + more
        left -= more
        row.cap = _cap(s, row)
    return True


@bare
def _dispatch_among(s, first, count):  # type: ignore[no-untyped-def]
    """Do the same where there are partitions, or tasks that are let in beside others."""
    for k in range(first, first + count):
        s.seats[k].aside = 0.0
    for p in range(len(s.pool)):
        s.pool[p] = s.partitions[p]
        _let_in(s, first, count, p)
    for k in range(first, first + count):  # what runs already stays
        row = s.seats[k]
        held = min(row.granted, row.wants) if row.left <= row.resident else 0.0
        row.granted = row.aside + _take(s, s.mask[row.task], held - row.aside)
    short = False
    for k in range(first, first + count):
        row = s.seats[k]
        row.granted += _take(s, s.mask[row.task], row.wants - row.granted)
        row.cap = _cap(s, row)
        short |= row.cap < 1.0
    return short


@inlined
def _take(s, mask, wants):  # type: ignore[no-untyped-def]
    """Take up to `wants` from the partitions in `mask`; return what was got."""
    got = 0.0
    for p in range(len(s.pool)):
        if (mask >> p) & 1 and got < wants:
            part = min(wants - got, s.pool[p])
            s.pool[p] -= part
            got += part
    return got


@inlined
def _let_in(s, first, count, p):  # type: ignore[no-untyped-def]
    """Set aside, for tasks that the dispatcher lets in beside others, their max-min fair part of a partition."""
    level, before = 0.0, -1.0
    while level > before + _ROUNDING:
        before = level
        small, others = 0.0, 0
        for k in range(first, first + count):
            wants = _wanted_of(s, s.mask[s.seats[k].task], s.seats[k].wants, p)
            if wants <= level:
                small += wants
            else:
                others += 1
        if others > 0:
            level = (s.pool[p] - small) / others
    taken, top = 0.0, s.priority[s.seats[first].task]
    for k in range(first, first + count):
        row = s.seats[k]
        # Equal parts are for those of the highest priority; the others get what these leave.
        if (not s.in_order and s.priority[row.task] == top) or s.let_in[row.task]:
            part = min(_wanted_of(s, s.mask[row.task], row.wants, p), level)
            row.aside += part
            taken += part
    s.pool[p] = max(s.pool[p] - taken, 0.0)


@inlined
def _wanted_of(s, mask, wants, p):  # type: ignore[no-untyped-def]
    """Return what of `wants` falls on one partition, spread over those in `mask` by their size."""
    if (mask >> p) & 1 == 0:
        return 0.0
    size = 0.0
    for q in range(len(s.partitions)):
        size += s.partitions[q] * ((mask >> q) & 1)
    return min(wants, size) * s.partitions[p] / size


@inlined
def _cap(s, row):  # type: ignore[no-untyped-def]
    """Return the rate that the compute units which a task got allow."""
    granted = row.granted
    cap = min(granted / max(row.need, _ROUNDING), 1.0)
    if s.quantised and s.waves[row.task] > 0.0 and granted > _ROUNDING:
        cap = _whole_waves(s, row)
    cap = 0.0 if granted <= _ROUNDING else cap
    return 1.0 if granted >= row.wants - _ROUNDING else cap


@inlined
def _whole_waves(s, row):  # type: ignore[no-untyped-def]
    """Return the rate of a task that takes whole waves on what it got; its last wave has what those before it leave.

    With a share g of its units, w waves take ceil(w / g) rounds instead of ceil(w): the last as long as its last wave
    alone, the others at this rate.
    """
    got, waves = row.granted / row.wants, s.waves[row.task]
    if row.left <= row.resident:
        return 1.0 / np.ceil(1.0 / got - 1e-9)
    rounds = np.ceil(waves / min(got, 1.0) - 1e-9)
    row.last = row.occupies * (waves - (rounds - 1.0) * min(got, 1.0))
    return (np.ceil(waves - 1e-9) - 1.0) / (rounds - 1.0)


@bare
def _press(s, first, count):  # type: ignore[no-untyped-def]
    """Raise demands on memory bandwidth where footprints exceed the last-level cache together.

    A task keeps its part of the cache in proportion to its footprint, and hits in proportion to what it keeps.
    """
    together = 0.0
    for k in range(first, first + count):
        if s.seats[k].cap > 0.0:
            together += s.footprint[s.seats[k].task]
    kept = min(1.0 / together, 1.0) if together > 0.0 else 1.0
    for k in range(first, first + count):
        task = s.seats[k].task
        footprint, hits = s.footprint[task], s.hits[task]
        alone = min(1.0 / footprint, 1.0) if footprint > 0.0 else 1.0  # what its hits alone are of
        missed = 1.0 - hits * kept / alone
        s.seats[k].asks[HBM] = s.demand[task, FAIR[HBM]] * missed / (1.0 - hits)


@inlined
def _add_up(at, s, first, count):  # type: ignore[no-untyped-def]
    """Add what the tasks that count ask of each resource at full rate."""
    if at is None:
        for c in range(COLUMNS):
            asked = s.filled[1, c]
            for k in range(first, first + count):
                asked += s.seats[k].counts * s.seats[k].asks[c]
            s.filled[1, c] = asked
        return
    for k in range(first, first + count):
        row = s.seats[k]
        for c in range(COLUMNS):
            s.filled[1, at[row.task, c]] += row.counts * row.asks[c]


@inlined
def _resources(at, filled):  # type: ignore[no-untyped-def]
    """Return how many resources there are; known when compiling where none is named."""
    if at is None:
        return COLUMNS
    return filled.shape[1]


@inlined
def _fill(s, first, count):  # type: ignore[no-untyped-def]
    """Let the rates rise together; each stops at its cap, or when a resource that it uses is full.

    Written without branches where it can be: which task stops when is what a processor cannot guess.
    """
    filled, resources = s.filled, _resources(s.at, s.filled)
    lowest, level, rises = 1.0, 0.0, True
    for k in range(first, first + count):
        row = s.seats[k]
        row.counts = 1.0 if row.cap > 0.0 else 0.0
        row.rate = -1.0 if row.cap > 0.0 else 0.0
        lowest = min(lowest, row.cap if row.cap > 0.0 else 1.0)
    filled[0, :], filled[1, :] = 1.0, 0.0
    _add_up(s.at, s, first, count)
    while True:
        rise = lowest - level
        for r in range(resources):
            room = max(filled[0, r], 0.0) / max(filled[1, r], _ROUNDING)
            rise = min(rise, room if filled[1, r] > _ROUNDING else 1.0)
        level += rise
        full = np.int64(0)  # a literal would have `_stop` compiled twice
        for r in range(resources):
            filled[0, r] -= rise * filled[1, r]
            full |= (filled[0, r] <= _ROUNDING) << r
        rises, lowest = _stop(s, first, count, (level, full))
        if not rises:
            break
        _add_up(s.at, s, first, count)


@inlined
def _stop(s, first, count, reached):  # type: ignore[no-untyped-def]
    """Fix the rates of tasks at their cap or on a full resource; return whether others rise, and their lowest cap."""
    level, full = reached
    rises, lowest = False, 1.0
    for k in range(first, first + count):
        row = s.seats[k]
        rising = row.rate < 0.0
        stops = rising & ((row.cap <= level + _ROUNDING) | ((row.uses & full) != 0))
        row.rate = min(level, row.cap) if stops else row.rate
        row.counts = -1.0 if stops else 0.0
        rising &= not stops
        rises |= rising
        lowest = min(lowest, row.cap if rising else 1.0)
    return rises, lowest


@bare
def _throttle(s, first, count):  # type: ignore[no-untyped-def]
    """Lower the clock where the tasks draw more than the device may: caps go with it, bandwidths stay."""
    drawn = 0.0
    for k in range(first, first + count):
        drawn += s.demand[s.seats[k].task, _POWER] * s.seats[k].rate
    if drawn <= 1.0 + _ROUNDING:
        return
    clock = drawn ** (-1.0 / s.exponent)
    for k in range(first, first + count):
        row = s.seats[k]
        if row.need > 0.0:  # units that a task has beyond its need make up for a lower clock
            row.cap = min(row.cap, clock * max(row.granted / row.need, row.cap))
    _fill(s, first, count)


@bare
def seat_again(s, places, tasks):  # type: ignore[no-untyped-def]
    """Put tasks on seats that are known."""
    for k in range(len(places)):
        _sit(s, places[k], tasks[k])


@bare
def _share_all(s):  # type: ignore[no-untyped-def]
    for task in range(len(s.seats)):
        seat(s, 0, task, task)
    share(s, 0, len(s.seats))


def shared_rates(tasks: Tasks, policy: SharingPolicy | None = None) -> npt.NDArray[np.float64]:
    """Return the rate in 0..1 of each of n tasks that start together on one device, in the order of their rows.

    Parameters
    ----------
    tasks : Tasks
    policy : SharingPolicy, optional

    Raises
    ------
    InvalidInputError
        A demand or share is not within 0 to 1, or a task may run on no partition.

    Notes
    -----
    Progressive filling, Bertsekas and Gallager, Data Networks, 2nd edition, section 6.5.2, with rates capped by the
    compute units that each task got.
    """
    shared = lay_out(tasks, policy or SharingPolicy())
    _share_all(shared)
    rates = np.empty(len(tasks))
    rates[shared.seats["task"]] = shared.seats["rate"]
    return rates
