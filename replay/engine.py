"""The engine: a discrete-event simulation in which active tasks progress at the rates that sharing gives them.

One heap of events, one idea: between two events on a device the rates of its tasks do not change. The engine
knows arrays only; what a task is and why it waits is data. It is deterministic: equal times are taken in the
order of the kind of event, then of the task.

A task that shares nothing (a call on the host, a mark) needs no event: when what it waits for is known, so is its end,
and those that wait for it are told at once, whatever the time.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from profilers.compiled import bare, compiled, inlined
from profilers.errors import InvalidInputError
from replay.graph import KernelGraph
from replay.sharing import share, used

__all__ = ["isolated_durations", "simulate"]

Floats = npt.NDArray[np.float64]

#: An event is one number: its kind times `_KIND`, plus what it is about. A device's event, at which the first of its
#: tasks is done, carries the version of the device's schedule, so that one that has been overtaken shows.
_DEVICE, _START = 0, 1
_KIND = 1 << 58
#: Tasks that start at one time and are kept in order outside the heap.
_AT_ONCE = 32
#: A task with less than this left is done (ns of its own work; a thousandth of what a profiler resolves).
_DONE = 1e-3
#: Relative rounding of a time after an addition, with room for the product with a rate.
_ROUNDING = 4 * float(np.finfo(np.float64).eps)


class _Simulation(NamedTuple):
    """All arrays of a run: by task, by edge, by device, and the heap of events."""

    duration: Any
    demand: Any
    uses: Any  #: which resources a task demands, a bit each
    device: Any
    offsets: Any  #: by task, into the edges that leave it
    targets: Any
    lags: Any
    from_start: Any
    ready: Any
    waiting: Any  #: edges that have not yet fired
    start: Any
    end: Any
    left: Any  #: of the duration
    rate: Any
    active: Any  #: the active tasks of device d stand at base[d] : base[d] + count[d]
    base: Any
    count: Any
    settled: Any  #: until when `left` is up to date
    version: Any
    bits: Any  #: of an event that say which device it is about
    changed: Any  #: devices whose active tasks have changed at this time, and how many they are
    is_changed: Any
    free: Any  #: tasks that share nothing and whose time is known, to be told on
    next: Any  #: tasks that start at this very time
    scratch: Any  #: for sharing
    times: Any
    codes: Any
    size: Any  #: of the heap, of `changed`, of `free`, of `next`


@inlined
def _push(sim, time, code):  # type: ignore[no-untyped-def]
    """Insert an event into the binary heap ordered by (time, code)."""
    times, codes, i = sim.times, sim.codes, sim.size[0]
    sim.size[0] += 1
    while i > 0:
        up = (i - 1) >> 1
        if times[up] < time or (times[up] == time and codes[up] <= code):
            break
        times[i], codes[i] = times[up], codes[up]
        i = up
    times[i], codes[i] = time, code


@inlined
def _pop(sim):  # type: ignore[no-untyped-def]
    """Remove the first event of the heap."""
    times, codes = sim.times, sim.codes
    sim.size[0] -= 1
    size = sim.size[0]
    time, code = times[size], codes[size]
    i = 0
    while True:
        down = 2 * i + 1
        if down >= size:
            break
        right = down + 1
        if right < size and (
            times[right] < times[down] or (times[right] == times[down] and codes[right] < codes[down])
        ):
            down = right
        if time < times[down] or (time == times[down] and code <= codes[down]):
            break
        times[i], codes[i] = times[down], codes[down]
        i = down
    times[i], codes[i] = time, code


@inlined
def _known(sim, task, now):  # type: ignore[no-untyped-def]
    """Note a task that waits for nothing more: it starts when it is ready, unless it has to share."""
    if sim.device[task] < 0 or sim.duration[task] <= 0.0:
        sim.start[task] = sim.ready[task]
        sim.end[task] = sim.ready[task] + sim.duration[task]
        sim.free[sim.size[2]] = task
        sim.size[2] += 1
    elif sim.ready[task] > now or sim.size[3] == _AT_ONCE:
        _push(sim, sim.ready[task], _START * _KIND + task)
    else:
        _insert(sim, task)


@inlined
def _insert(sim, task):  # type: ignore[no-untyped-def]
    """Note a task that starts at this very time, in the order of tasks."""
    i = sim.size[3]
    sim.size[3] += 1
    while i > 0 and sim.next[i - 1] > task:
        sim.next[i] = sim.next[i - 1]
        i -= 1
    sim.next[i] = task


@inlined
def _tell(sim, task, now, at_start, here):  # type: ignore[no-untyped-def]
    """Tell the tasks that wait for the start or the end of `task`, which is `now`; the simulation is at `here`."""
    for e in range(sim.offsets[task], sim.offsets[task + 1]):
        if sim.from_start[e] != at_start:
            continue
        target = sim.targets[e]
        sim.ready[target] = max(sim.ready[target], now + sim.lags[e])
        sim.waiting[target] -= 1
        if sim.waiting[target] == 0:
            _known(sim, target, here)


@inlined
def _tell_on(sim, here):  # type: ignore[no-untyped-def]
    """Let the tasks that share nothing tell those that wait for them."""
    while sim.size[2] > 0:
        sim.size[2] -= 1
        task = sim.free[sim.size[2]]
        _tell(sim, task, sim.start[task], True, here)
        _tell(sim, task, sim.end[task], False, here)


@inlined
def _settle(sim, device, now):  # type: ignore[no-untyped-def]
    """Take off what the active tasks of a device have done since its last event; remember that they change."""
    elapsed = now - sim.settled[device]
    if elapsed > 0.0:
        for i in range(sim.base[device], sim.base[device] + sim.count[device]):
            sim.left[sim.active[i]] -= elapsed * sim.rate[sim.active[i]]
    sim.settled[device] = now
    if not sim.is_changed[device]:
        sim.is_changed[device] = True
        sim.changed[sim.size[1]] = device
        sim.size[1] += 1


@inlined
def _begin(sim, task, now):  # type: ignore[no-untyped-def]
    """Start a task beside what its device already does."""
    sim.start[task] = now
    device = sim.device[task]
    _settle(sim, device, now)
    sim.active[sim.base[device] + sim.count[device]] = task
    sim.count[device] += 1
    _tell(sim, task, now, True, now)


@inlined
def _advance(sim, device, now):  # type: ignore[no-untyped-def]
    """End the tasks of a device that are done."""
    _settle(sim, device, now)
    # Far from the origin a time has no room for small steps: what is done within its rounding is done.
    done = max(_DONE, now * _ROUNDING)
    kept = base = sim.base[device]
    for i in range(base, base + sim.count[device]):
        task = sim.active[i]
        if sim.left[task] <= done:
            sim.end[task] = now
            _tell(sim, task, now, False, now)
        else:
            sim.active[kept] = task
            kept += 1
    sim.count[device] = kept - base


@inlined
def _reschedule(sim, now):  # type: ignore[no-untyped-def]
    """Share every device that has changed anew, and expect the first of its tasks to be done."""
    for k in range(sim.size[1]):
        device = sim.changed[k]
        sim.is_changed[device] = False
        sim.version[device] += 1
        base, count = sim.base[device], sim.count[device]
        if count == 0:
            continue
        share(sim.active, base, count, sim.demand, sim.uses, sim.rate, sim.scratch)
        soonest = np.inf
        for i in range(base, base + count):
            task = sim.active[i]
            soonest = min(soonest, max(sim.left[task], 0.0) / sim.rate[task])
        _push(sim, now + soonest, _DEVICE * _KIND + (sim.version[device] << sim.bits) + device)
    sim.size[1] = 0


@inlined
def _begin_all(sim, now):  # type: ignore[no-untyped-def]
    """Start the tasks that start at this time, and those that this lets start."""
    while sim.size[3] > 0:
        sim.size[3] -= 1
        _begin(sim, sim.next[sim.size[3]], now)
        _tell_on(sim, now)


@bare
def _run(sim):  # type: ignore[no-untyped-def]
    """Take events in order until there are none; all of one time before devices are shared anew."""
    for task in range(len(sim.duration)):
        if sim.waiting[task] == 0:
            _known(sim, task, -np.inf)
    _tell_on(sim, -np.inf)
    while sim.size[0] > 0:
        now, code = sim.times[0], sim.codes[0]
        _pop(sim)
        device = code & ((1 << sim.bits) - 1)
        if code >= _KIND:
            _begin(sim, code - _KIND, now)
        elif sim.version[device] == code >> sim.bits:
            _advance(sim, device, now)
        _tell_on(sim, now)
        if sim.size[0] == 0 or sim.times[0] > now:
            _begin_all(sim, now)
            _reschedule(sim, now)


@compiled
def _by_source(n, source, target, lag, at_start):  # type: ignore[no-untyped-def]
    """Return the edges by the task that they leave, in their own order, and where those of each task begin."""
    offsets = np.zeros(n + 1, np.int64)
    for e in range(len(source)):
        offsets[source[e] + 1] += 1
    for task in range(n):
        offsets[task + 1] += offsets[task]
    place = offsets[:-1].copy()
    targets, lags, from_start = np.empty_like(target), np.empty_like(lag), np.empty_like(at_start)
    for e in range(len(source)):
        at = place[source[e]]
        place[source[e]] += 1
        targets[at], lags[at], from_start[at] = target[e], lag[e], at_start[e]
    return offsets, targets, lags, from_start


def _simulation(graph: KernelGraph) -> _Simulation:
    """Lay out the arrays of a run."""
    tasks, edges = graph.tasks, graph.edges
    n = len(tasks)
    leaving = _by_source(n, edges.source, edges.target, edges.lag_ns, edges.from_start)
    device = np.where(graph.on_device(), tasks.device, -1)
    devices = max(int(device.max()) + 1, 1)
    members = np.bincount(device[device >= 0], minlength=devices)
    return _Simulation(
        duration=np.ascontiguousarray(tasks.duration_ns, dtype=np.float64),
        demand=np.ascontiguousarray(tasks.demand, dtype=np.float64),
        uses=used(tasks.demand),
        device=np.ascontiguousarray(device),
        offsets=leaving[0],
        targets=leaving[1],
        lags=leaving[2],
        from_start=leaving[3],
        ready=tasks.release_ns.astype(np.float64),
        waiting=np.bincount(edges.target, minlength=n),
        start=np.full(n, np.nan),
        end=np.full(n, np.nan),
        left=tasks.duration_ns.astype(np.float64),
        rate=np.ones(n),
        active=np.zeros(n, np.int64),
        base=np.concatenate([[0], np.cumsum(members)[:-1]]),
        count=np.zeros(devices, np.int64),
        settled=np.zeros(devices),
        version=np.zeros(devices, np.int64),
        bits=devices.bit_length(),
        changed=np.zeros(devices, np.int64),
        is_changed=np.zeros(devices, np.bool_),
        free=np.zeros(n, np.int64),
        next=np.zeros(n, np.int64),
        scratch=np.zeros((2, tasks.demand.shape[1])),
        # Each task starts and ends once, and each of both reschedules a device at most once.
        times=np.empty(3 * n + 16),
        codes=np.empty(3 * n + 16, np.int64),
        size=np.zeros(4, np.int64),
    )


def simulate(graph: KernelGraph) -> tuple[Floats, Floats]:
    """Return the start and the end of every task in ns after the graph's origin.

    Raises
    ------
    InvalidInputError
        Tasks wait for each other in a circle; the message names it.
    """
    if not len(graph.tasks):
        return np.zeros(0), np.zeros(0)
    sim = _simulation(graph)
    _run(sim)
    start, end = sim.start, sim.end
    if np.isnan(end).any():
        raise InvalidInputError(f"tasks wait for each other in a circle: {_circle(graph, np.isnan(end))}")
    return start, end


def _circle(graph: KernelGraph, stuck: npt.NDArray[np.bool_]) -> str:
    """Return the names along one circle among the tasks that never finished."""
    edges = graph.edges
    inside = stuck[edges.source] & stuck[edges.target]
    before = dict(zip(edges.target[inside].tolist(), edges.source[inside].tolist(), strict=True))
    task = next(iter(before))
    seen: list[int] = []
    while task not in seen:
        seen.append(task)
        task = before[task]
    circle = [*seen[seen.index(task) :], task][::-1]
    return " -> ".join(f"{graph.names[graph.tasks.name[t]][:60]} (task {t})" for t in circle[:8])


@compiled
def _work(order, begins, start, end, demand, uses, work):  # type: ignore[no-untyped-def]
    """Add up, for the tasks of one device, rate times time over their measured intervals."""
    active, scratch = np.zeros(len(begins) + 1, np.int64), np.ones((2, demand.shape[1]))
    rate = np.ones(len(start))
    count = 0
    before = 0.0
    for k in range(len(order)):
        task = order[k]
        now = start[task] if begins[k] else end[task]
        if count and now > before:
            share(active, 0, count, demand, uses, rate, scratch)
            for i in range(count):
                work[active[i]] += rate[active[i]] * (now - before)
        before = now
        if begins[k]:
            active[count] = task
            count += 1
        else:
            for i in range(count):
                if active[i] == task:
                    for j in range(i, count - 1):
                        active[j] = active[j + 1]
                    count -= 1
                    break


def isolated_durations(graph: KernelGraph) -> Floats:
    """Return how long each task would take alone, by inverting the sharing on the measured timeline.

    The rates of the active tasks depend only on which are active, so the work of a task is the integral of
    its rate over its measured interval. Replaying the result under the same sharing returns that interval.
    Tasks that run alone, or beside others that leave them enough, keep their duration.
    """
    tasks = graph.tasks
    chosen = graph.on_device() & ~np.isnan(tasks.measured_start_ns)
    duration, demand = tasks.duration_ns.copy(), np.ascontiguousarray(tasks.demand, dtype=np.float64)
    for device in np.unique(tasks.device[chosen]):
        rows = np.flatnonzero(chosen & (tasks.device == device) & (tasks.measured_end_ns > tasks.measured_start_ns))
        both = np.concatenate([rows, rows])
        begins = np.arange(len(both)) < len(rows)
        at = np.where(begins, tasks.measured_start_ns[both], tasks.measured_end_ns[both])
        order = np.lexsort((both, begins, at))
        work = np.zeros(len(tasks))
        _work(both[order], begins[order], tasks.measured_start_ns, tasks.measured_end_ns, demand, used(demand), work)
        duration[rows] = work[rows]
    return duration
