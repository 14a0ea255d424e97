"""How the tasks that are active on a device share it: compute units by dispatch, everything else max-min fair.

Workgroups are dispatched in the order of priority, then of arrival, and are not preempted: a kernel that fills the
device leaves nothing to what comes later until its last wave. What a task gets of the compute units caps its rate;
below that cap, rates rise together until they or a resource are full.

Task ``active[first + k]`` sits on seat k, in the order of dispatch.
"""

import numpy as np
import numpy.typing as npt

from profilers.compiled import bare, inlined
from replay.graph import Tasks
from replay.layout import COLUMNS, HBM, lay_out
from replay.policy import SharingPolicy

__all__ = ["share", "shared_rates"]

#: Shares closer than this are equal.
_ROUNDING = 1e-12


@inlined
def share(s, active, first, count):  # type: ignore[no-untyped-def]
    """Write the rate of each of the `count` tasks in `active` from `first` on, in the order of dispatch.

    Return whether one of them runs below full rate for want of compute units.
    """
    if count == 1 and s.whole:
        row = s.rows[active[first]]
        row.granted, row.rate = _wanted(row), 1.0
        return False
    short = _dispatch(s, active, first, count)
    if s.presses:
        _press(s, active, first, count)
    _fill(s, active, first, count)
    if s.throttles:
        _throttle(s, active, first, count)
    for k in range(count):
        s.rows[active[first + k]].rate = s.seats[k].rate
    return short


@inlined
def _wanted(row):  # type: ignore[no-untyped-def]
    """Return the compute units that the workgroups a task still has would fill."""
    return row.last if row.left <= row.resident else row.occupies


@inlined
def _dispatch(s, active, first, count):  # type: ignore[no-untyped-def]
    """Give out the compute units, and cap rates by what each task got; return whether one got less than it wants."""
    total, lets_in, stays = 0.0, False, False
    for k in range(count):
        row, seat = s.rows[active[first + k]], s.seats[k]
        for c in range(COLUMNS):
            seat.asks[c] = row.use[c]
        seat.wants, seat.cap = _wanted(row), 1.0
        total += seat.wants
        lets_in |= s.rows[active[first + k]].let_in != 0
        stays |= row.left <= row.resident
    if s.whole and total <= 1.0 + _ROUNDING:
        for k in range(count):
            s.rows[active[first + k]].granted = s.seats[k].wants
        return False
    if lets_in or not s.whole:
        return _dispatch_among(s, active, first, count)
    left = 1.0
    for k in range(count):  # what runs already stays
        row = s.rows[active[first + k]]
        held = min(row.granted, s.seats[k].wants) if stays and row.left <= row.resident else 0.0
        row.granted = min(held, left)
        left -= row.granted
    for k in range(count):
        row, seat = s.rows[active[first + k]], s.seats[k]
        more = min(seat.wants - row.granted, left)
        row.granted += more
        left -= more
        seat.cap = _cap(row, seat.wants, s.quantised)
    return True


@bare
def _dispatch_among(s, active, first, count):  # type: ignore[no-untyped-def]
    """Do the same where there are partitions, or tasks that are let in beside others."""
    for k in range(count):
        s.seats[k].aside = 0.0
    for p in range(len(s.pool)):
        s.pool[p] = s.partitions[p]
        _let_in(s, active, first, count, p)
    for k in range(count):  # what runs already stays
        task = active[first + k]
        row, seat = s.rows[task], s.seats[k]
        held = min(row.granted, seat.wants) if row.left <= row.resident else 0.0
        row.granted = seat.aside + _take(s, s.rows[task].mask, held - seat.aside)
    short = False
    for k in range(count):
        task = active[first + k]
        row, seat = s.rows[task], s.seats[k]
        row.granted += _take(s, s.rows[task].mask, seat.wants - row.granted)
        seat.cap = _cap(row, seat.wants, s.quantised)
        short |= seat.cap < 1.0
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
def _let_in(s, active, first, count, p):  # type: ignore[no-untyped-def]
    """Set aside, for tasks that the dispatcher lets in beside others, their max-min fair part of a partition."""
    level, before = 0.0, -1.0
    while level > before + _ROUNDING:
        before = level
        small, others = 0.0, 0
        for k in range(count):
            wants = _wanted_of(s, s.rows[active[first + k]].mask, s.seats[k].wants, p)
            if wants <= level:
                small += wants
            else:
                others += 1
        if others > 0:
            level = (s.pool[p] - small) / others
    taken = 0.0
    for k in range(count):
        task = active[first + k]
        if s.rows[task].let_in != 0:
            part = min(_wanted_of(s, s.rows[task].mask, s.seats[k].wants, p), level)
            s.seats[k].aside += part
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
def _cap(row, wants, quantised):  # type: ignore[no-untyped-def]
    """Return the rate that the compute units which a task got allow."""
    granted = row.granted
    cap = min(granted / max(row.need, _ROUNDING), 1.0)
    if quantised and row.waves > 0.0:
        waves = wants if row.left <= row.resident else row.waves
        cap = np.ceil(waves - 1e-9) / np.ceil(waves / max(granted, _ROUNDING) - 1e-9)
    cap = 0.0 if granted <= _ROUNDING else cap
    return 1.0 if granted >= wants - _ROUNDING else cap


@bare
def _press(s, active, first, count):  # type: ignore[no-untyped-def]
    """Raise demands on memory bandwidth where footprints exceed the last-level cache together.

    A task keeps its part of the cache in proportion to its footprint, and hits in proportion to what it keeps.
    """
    together = 0.0
    for k in range(count):
        if s.seats[k].cap > 0.0:
            together += s.rows[active[first + k]].footprint
    kept = min(1.0 / together, 1.0) if together > 0.0 else 1.0
    for k in range(count):
        row = s.rows[active[first + k]]
        alone = min(1.0 / row.footprint, 1.0) if row.footprint > 0.0 else 1.0  # what its hits alone are of
        missed = 1.0 - row.hits * kept / alone
        s.seats[k].asks[HBM] = row.use[HBM] * missed / (1.0 - row.hits)


@inlined
def _add_up(at, s, active, first, count):  # type: ignore[no-untyped-def]
    """Write what there is of each resource, all, and what the tasks whose rate rises ask of it at full rate."""
    if at is None:
        for c in range(COLUMNS):
            asked = 0.0
            for k in range(count):
                asked += s.seats[k].gets * s.seats[k].asks[c]
            s.filled[0, c], s.filled[1, c] = 1.0, asked
        return
    s.filled[0, :], s.filled[1, :] = 1.0, 0.0
    for k in range(count):
        for c in range(COLUMNS):
            s.filled[1, at[active[first + k], c]] += s.seats[k].gets * s.seats[k].asks[c]


@inlined
def _resources(at, filled):  # type: ignore[no-untyped-def]
    """Return how many resources there are; known when compiling where none is named."""
    if at is None:
        return COLUMNS
    return filled.shape[1]


@inlined
def _fill(s, active, first, count):  # type: ignore[no-untyped-def]
    """Let the rates rise together; each stops at its cap, or when a resource that it uses is full.

    Written without branches where it can be: which task stops when is what a processor cannot guess.
    """
    filled, resources = s.filled, _resources(s.at, s.filled)
    lowest = 1.0
    for k in range(count):
        seat = s.seats[k]
        seat.gets = 1.0 if seat.cap > 0.0 else 0.0
        seat.rate = -1.0 if seat.cap > 0.0 else 0.0
        lowest = min(lowest, seat.cap if seat.cap > 0.0 else 1.0)
    _add_up(s.at, s, active, first, count)
    rises = True
    level = 0.0
    while rises:
        rise = lowest - level
        for r in range(resources):
            room = max(filled[0, r], 0.0) / max(filled[1, r], _ROUNDING)
            rise = min(rise, room if filled[1, r] > _ROUNDING else 1.0)
        level += rise
        full = 0
        for r in range(resources):
            filled[0, r] -= rise * filled[1, r]
            full |= (filled[0, r] <= _ROUNDING) << r
        rises, lowest = _stop(s, active, first, count, (level, full))


@inlined
def _stop(s, active, first, count, reached):  # type: ignore[no-untyped-def]
    """Fix the rates of tasks at their cap or on a full resource; return whether others rise, and their lowest cap."""
    level, full = reached
    rises, lowest = False, 1.0
    for k in range(count):
        seat, task = s.seats[k], active[first + k]
        rising = seat.rate < 0.0
        stops = rising & ((seat.cap <= level + _ROUNDING) | ((s.rows[task].uses & full) != 0))
        seat.rate = min(level, seat.cap) if stops else seat.rate
        _leave(s.at, s, task, 1.0 if stops else 0.0, seat)
        rising &= not stops
        rises |= rising
        lowest = min(lowest, seat.cap if rising else 1.0)
    return rises, lowest


@inlined
def _leave(at, s, task, share, seat):  # type: ignore[no-untyped-def]
    """Take what a task asks, `share` times, off what those whose rate still rises ask."""
    for c in range(COLUMNS):
        r = c if at is None else at[task, c]
        s.filled[1, r] -= share * seat.asks[c]


@bare
def _throttle(s, active, first, count):  # type: ignore[no-untyped-def]
    """Lower the clock where the tasks draw more than the device may: caps go with it, bandwidths stay."""
    drawn = 0.0
    for k in range(count):
        drawn += s.rows[active[first + k]].power * s.seats[k].rate
    if drawn <= 1.0 + _ROUNDING:
        return
    clock = drawn ** (-1.0 / s.exponent)
    for k in range(count):
        row, seat = s.rows[active[first + k]], s.seats[k]
        if row.need > 0.0:  # units that a task has beyond its need make up for a lower clock
            seat.cap = min(seat.cap, clock * max(row.granted / row.need, seat.cap))
    _fill(s, active, first, count)


@bare
def _share_all(s, active):  # type: ignore[no-untyped-def]
    share(s, active, 0, len(active))


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
    _share_all(shared, np.argsort(-tasks.priority, kind="stable"))
    return np.asarray(shared.rows["rate"].copy())
