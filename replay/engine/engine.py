"""The discrete-event engine: `simulate` returns when every task of a graph starts and ends.

A task starts once all tasks that it waits for have started or ended, and the lags of its edges have passed. On its
device it is then active: it progresses at the rate that `replay.engine.sharing` gives it, until its work is done. The
rates on a device change only when a task arrives there, ends, or comes to its last wave. Each of these is an event.

The engine keeps one heap of events and takes them in the order of time. At an event of a device it takes off the work
that the active tasks did since the last event. It ends the tasks that are done, and fires the edges that leave them.
After the last event of a time, it shares every changed device anew, and pushes the event of its next change.

A collective whose ranks meet has a mark at which its rank arrives. From then on it waits on its device: it holds its
compute units, and makes no progress until all ranks have arrived.

A task that shares nothing (a host call, a mark) needs no event. Its end is known as soon as all that it waits for is,
and the tasks that wait for it are notified at once, whatever the time of the simulation.

The engine knows arrays only; why a task waits is data, but for the edges at which the ranks of a collective meet. It is
deterministic: of events at one time, changes on devices come first, then collectives that begin to wait, then arrivals
in the order of tasks. Times are ns after the graph's origin.

`integrate_rates` is the reverse: given when tasks started and ended, it returns the work that each of them did.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from profilers.errors import InvalidInputError
from profilers.trace.arrays import Floats, Ints
from profilers.trace.compiled import bare, inlined
from replay.engine.layout import CU, DMA_COLUMN, FAIR, N_FAIR, PIM, POWER, SharingState, lay_out, plain, starts
from replay.engine.sharing import (
    activate,
    begin_waiting,
    held_units,
    is_done,
    let_in,
    next_change_ns,
    progress,
    share,
    stop_waiting,
    until_done_ns,
)
from replay.engine.units import DONE_NS, release
from replay.graph.graph import RESOURCES, KernelGraph

#: An event is one number, its code. The arrival of a task is this plus the task. The next change on a device is its
#: number in the low bits, and above them the version of the device's schedule, so that an outdated event shows.
_ARRIVAL = 1 << 58
#: The event at which a collective begins to wait for its peers is this plus the task.
_WAITING = 1 << 59
#: Tasks that arrive at one time and are kept in order outside the heap.
_MAX_ARRIVING = 32
#: Whether edges from the start of a task fire, or from its end. Numba would compile `True` and `False` separately.
_AT_START, _AT_END = np.bool_(True), np.bool_(False)
#: Relative rounding of a time after an addition, with room for the product with a rate.
_ROUNDING = 4 * float(np.finfo(np.float64).eps)

#: Rows of `State.size`: elements in use of the heap, `State.changed`, `State.resolved` and `State.arriving`.
_HEAP, _CHANGED, _RESOLVED, _ARRIVING = range(4)


class State(NamedTuple):
    """All arrays of a run: tasks, edges, devices, and the heap of events."""

    sharing: Any  #: `SharingState`, with the table of active tasks
    ready_ns: Any  #: by task: earliest start, by the edges that have fired so far
    waiting: Any  #: by task: edges into it that have not fired
    start: Any  #: by task, ns; NaN until it starts
    end: Any
    first_edge: Any  #: by task: first edge that leaves it; -1 for none
    next_edge: Any  #: by edge: next edge that leaves the same task; -1 for none
    target: Any
    lag: Any
    from_start: Any
    has_start_edges: Any  #: whether any edge counts from the start of its source
    waiting_task: Any  #: by task: collective that begins to wait for its peers at this mark; -1 for none
    is_waiting: Any  #: by task: whether it waits for its peers on its device
    first_active: Any  #: by device: row of its first active task in the table
    n_active: Any  #: by device: active tasks
    n_unstarted: Any  #: by device: active tasks that have not started
    updated_ns: Any  #: by device: time for which the remaining work of its tasks holds
    version: Any  #: by device: version of its schedule
    device_bits: Any  #: number of low bits of an event's code that name a device
    changed: Any  #: devices whose active tasks changed at this time
    is_changed: Any  #: by device
    resolved: Any  #: tasks that share nothing and have known times, whose edges have not fired
    arriving: Any  #: tasks that arrive on their device at this time
    event_ns: Any  #: heap of events: time and code
    event_code: Any
    size: Any  #: elements in use of four arrays


@inlined
def _push(sim, time, code):  # type: ignore[no-untyped-def]
    """Insert an event into the binary heap ordered by (time, code)."""
    times, codes, i = sim.event_ns, sim.event_code, sim.size[_HEAP]
    sim.size[_HEAP] += 1
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
    times, codes = sim.event_ns, sim.event_code
    sim.size[_HEAP] -= 1
    size = sim.size[_HEAP]
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
def _make_ready(sim, task, now):  # type: ignore[no-untyped-def]
    """Let a task that waits for nothing more arrive on its device; set its times if it shares none."""
    ready = sim.ready_ns[task] + (sim.sharing.start_ns[task] if sim.sharing.has_start else 0.0)
    if sim.sharing.device[task] < 0:
        sim.start[task], sim.end[task] = ready, ready + sim.sharing.duration[task]
        sim.resolved[sim.size[_RESOLVED]] = task
        sim.size[_RESOLVED] += 1
        if sim.sharing.has_waiting and sim.waiting_task[task] >= 0:
            _push(sim, sim.end[task], _WAITING + sim.waiting_task[task])
    elif ready > now or sim.size[_ARRIVING] == _MAX_ARRIVING:
        _push(sim, ready, _ARRIVAL + task)
    else:
        _insert_arriving(sim, task)


@inlined
def _insert_arriving(sim, task):  # type: ignore[no-untyped-def]
    """Insert a task that arrives at this time. The lowest task stands last, and is taken first."""
    i = sim.size[_ARRIVING]
    sim.size[_ARRIVING] += 1
    while i > 0 and sim.arriving[i - 1] < task:
        sim.arriving[i] = sim.arriving[i - 1]
        i -= 1
    sim.arriving[i] = task


@inlined
def _notify(sim, task, time, at_start, now):  # type: ignore[no-untyped-def]
    """Fire the edges from the start (or the end) of `task`, which is at `time`; the simulation is at `now`."""
    e = sim.first_edge[task]
    while e >= 0:
        if sim.from_start[e] == at_start:
            target = sim.target[e]
            sim.ready_ns[target] = max(sim.ready_ns[target], time + sim.lag[e])
            sim.waiting[target] -= 1
            if sim.waiting[target] == 0:
                _make_ready(sim, target, now)
        e = sim.next_edge[e]


@inlined
def _notify_resolved(sim, now):  # type: ignore[no-untyped-def]
    """Fire the edges that leave tasks which share nothing and whose times are known."""
    while sim.size[_RESOLVED] > 0:
        sim.size[_RESOLVED] -= 1
        task = sim.resolved[sim.size[_RESOLVED]]
        _notify(sim, task, sim.start[task], _AT_START, now)
        _notify(sim, task, sim.end[task], _AT_END, now)


@inlined
def _update_progress(sim, device, now):  # type: ignore[no-untyped-def]
    """Take off the work that the active tasks of a device did since its last event, and mark the device as changed."""
    elapsed = now - sim.updated_ns[device]
    if elapsed > 0.0:
        first, count = sim.first_active[device], sim.n_active[device]
        progress(sim.sharing, device, first, (count, elapsed))
    sim.updated_ns[device] = now
    if not sim.is_changed[device]:
        sim.is_changed[device] = True
        sim.changed[sim.size[_CHANGED]] = device
        sim.size[_CHANGED] += 1


@inlined
def _activate_arrivals(sim, now):  # type: ignore[no-untyped-def]
    """Activate the tasks that arrive at this time on their devices."""
    while sim.size[_ARRIVING] > 0:
        sim.size[_ARRIVING] -= 1
        task = sim.arriving[sim.size[_ARRIVING]]
        device = sim.sharing.device[task]
        _update_progress(sim, device, now)
        if sim.sharing.has_waiting and sim.is_waiting[task]:
            sim.is_waiting[task] = False
            stop_waiting(sim.sharing, sim.first_active[device], task)
        else:
            activate(sim.sharing, sim.first_active[device], sim.n_active[device], task)
            sim.n_active[device] += 1
            sim.n_unstarted[device] += 1


@inlined
def _begin_waiting(sim, task, now):  # type: ignore[no-untyped-def]
    """Let a collective take its compute units and wait for its peers, unless they all have arrived."""
    device = sim.sharing.device[task]
    if device < 0 or (sim.waiting[task] == 0 and sim.ready_ns[task] <= now):
        return
    _update_progress(sim, device, now)
    sim.is_waiting[task] = True
    activate(sim.sharing, sim.first_active[device], sim.n_active[device], task)
    begin_waiting(sim.sharing, sim.first_active[device], task)
    sim.n_active[device] += 1
    sim.n_unstarted[device] += 1


@inlined
def _end_tasks(sim, device, now):  # type: ignore[no-untyped-def]
    """End the tasks of a device that are done."""
    _update_progress(sim, device, now)
    # Far from the origin, times are too coarse for short steps: work below their rounding is done.
    done = max(DONE_NS, now * _ROUNDING)
    kept = base = sim.first_active[device]
    for i in range(base, base + sim.n_active[device]):
        row = sim.sharing.active[i]
        if is_done(row, done):
            sim.end[row.task] = now
            _notify(sim, row.task, now, _AT_END, now)
            if row.is_placed:
                release(sim.sharing, device, row.task)
        else:
            sim.sharing.active[kept] = row
            kept += 1
    sim.n_active[device] = kept - base


@inlined
def _reschedule(sim, now):  # type: ignore[no-untyped-def]
    """Share every changed device anew, start the tasks that now get compute units, and push its next change."""
    for k in range(sim.size[_CHANGED]):
        device = sim.changed[k]
        sim.is_changed[device] = False
        sim.version[device] += 1
        base, count = sim.first_active[device], sim.n_active[device]
        if count == 0:
            continue
        is_short = share(sim.sharing, base, count)
        if sim.n_unstarted[device] > 0:
            _start_tasks(sim, device, now)
        soonest = next_change_ns(sim.sharing, base, count, is_short)
        if soonest < np.inf:  # not if all tasks wait
            # Far from the origin, times are too coarse for short steps.
            step = max(soonest, now * _ROUNDING) if soonest > 0.0 else soonest
            _push(sim, now + step, (sim.version[device] << sim.device_bits) + device)
    sim.size[_CHANGED] = 0


@inlined
def _start_tasks(sim, device, now):  # type: ignore[no-untyped-def]
    """Start the tasks of a device that got compute units for the first time."""
    for i in range(sim.first_active[device], sim.first_active[device] + sim.n_active[device]):
        row = sim.sharing.active[i]
        if row.started == 0 and row.rate > 0.0:
            row.started = 1
            began = now - (sim.sharing.start_ns[row.task] if sim.sharing.has_start else 0.0)
            sim.start[row.task] = began
            sim.n_unstarted[device] -= 1
            if sim.has_start_edges:
                _notify(sim, row.task, began, _AT_START, now)


@bare
def _let_in(sim, now):  # type: ignore[no-untyped-def]
    """Let a task without room run if nothing else can happen; return whether there is one."""
    for device in range(len(sim.n_active)):
        if sim.n_active[device] > 0 and let_in(sim.sharing, sim.first_active[device], sim.n_active[device]):
            _push(sim, now, (sim.version[device] << sim.device_bits) + device)
            return True
    return False


@bare
def begin(sim):  # type: ignore[no-untyped-def]
    """Let the tasks that wait for nothing arrive."""
    for task in range(len(sim.waiting)):
        if sim.waiting[task] == 0:
            _make_ready(sim, task, -np.inf)
    _notify_resolved(sim, -np.inf)


@bare
def run(sim):  # type: ignore[no-untyped-def]
    """Take all events in order: all of one time, then share the devices that changed anew."""
    now = 0.0
    while sim.size[_HEAP] > 0 or (sim.sharing.has_waiting and _let_in(sim, now)):
        time, code = sim.event_ns[0], sim.event_code[0]
        _pop(sim)
        device = code & ((1 << sim.device_bits) - 1)
        if time > now and code < _ARRIVAL and sim.version[device] != code >> sim.device_bits:
            continue  # of a schedule that holds no more: no time passes
        now = time
        if code >= _WAITING:
            _begin_waiting(sim, code - _WAITING, now)
        elif code >= _ARRIVAL:
            _insert_arriving(sim, code - _ARRIVAL)
        elif sim.version[device] == code >> sim.device_bits:
            _end_tasks(sim, device, now)
        _notify_resolved(sim, now)
        is_last = sim.size[_HEAP] == 0 or sim.event_ns[0] > now  # of the events at this time
        while is_last or sim.size[_ARRIVING] == _MAX_ARRIVING:
            _activate_arrivals(sim, now)
            if sim.size[_CHANGED] == 0 or not is_last:
                break
            _reschedule(sim, now)
            _notify_resolved(sim, now)  # a start can fire edges to tasks that start at once
            is_last = sim.size[_HEAP] == 0 or sim.event_ns[0] > now


@bare
def _write_edge_lists(source, target, lists, device, counts):  # type: ignore[no-untyped-def]
    """Write the edges that leave each task as linked lists: the first edge by task, the next by edge; -1 ends one.

    Count the edges into each task, and the tasks of each device. The arrays are the caller's and hold -1 and 0: making
    them here took longer to compile than the loops.
    """
    first_edge, next_edge = lists
    waiting, n_tasks = counts
    for e in range(len(source) - 1, -1, -1):
        next_edge[e] = first_edge[source[e]]
        first_edge[source[e]] = e
        waiting[target[e]] += 1
    for task in range(len(device)):
        if device[task] >= 0:
            n_tasks[device[task]] += 1


def state_of(graph: KernelGraph) -> State:
    """Return the state of a run before its first event.

    Raises
    ------
    InvalidInputError
        As `replay.engine.layout.lay_out`.
    """
    tasks, edges = graph.tasks, graph.edges
    n = len(tasks)
    waiting_task, n_waiting = _waiting_tasks(graph)
    sharing = lay_out(graph.tasks, graph.policy)._replace(has_waiting=n_waiting > 0)
    devices = max(int(tasks.device.max(initial=-1)) + 1, 1)
    source, target = plain(edges.source, np.int64), plain(edges.target, np.int64)
    waiting, n_tasks = np.zeros(n, np.int64), np.zeros(devices, np.int64)
    first_edge, next_edge = np.full(n, -1), np.empty(len(source), np.int64)
    _write_edge_lists(source, target, (first_edge, next_edge), sharing.device, (waiting, n_tasks))
    return State(
        sharing=sharing,
        ready_ns=np.array(tasks.release_ns, np.float64),
        waiting=waiting,
        start=np.full(n, np.nan),
        end=np.full(n, np.nan),
        first_edge=first_edge,
        next_edge=next_edge,
        target=target,
        lag=plain(edges.lag_ns),
        from_start=plain(edges.from_start, np.bool_),
        has_start_edges=bool(edges.from_start.any()),
        waiting_task=waiting_task,
        is_waiting=np.zeros(len(waiting_task), np.bool_),
        first_active=np.concatenate([[0], np.cumsum(n_tasks)[:-1]]),
        n_active=np.zeros(devices, np.int64),
        n_unstarted=np.zeros(devices, np.int64),
        updated_ns=np.zeros(devices),
        version=np.zeros(devices, np.int64),
        device_bits=devices.bit_length(),
        changed=np.zeros(devices, np.int64),
        is_changed=np.zeros(devices, np.bool_),
        resolved=np.zeros(n, np.int64),
        arriving=np.zeros(n, np.int64),
        # Each task arrives, comes to its last wave and ends once, and each of these reschedules a device at most once.
        # So does each collective that begins to wait.
        event_ns=np.empty(4 * n + 2 * n_waiting + 16),
        event_code=np.empty(4 * n + 2 * n_waiting + 16, np.int64),
        size=np.zeros(4, np.int64),
    )


def _waiting_tasks(graph: KernelGraph) -> tuple[Ints, int]:
    """Return the collective that begins to wait at each mark, -1 for other tasks, and the number of collectives.

    The array has one element if no collective waits on a device.
    """
    arrival = graph.arrival_marks()
    collectives = np.flatnonzero((arrival >= 0) & (graph.tasks.device >= 0))
    waiting_task = np.full(len(arrival) if len(collectives) else 1, -1)
    waiting_task[arrival[collectives]] = collectives
    return waiting_task, len(collectives)


def simulate(graph: KernelGraph) -> tuple[Floats, Floats]:
    """Return the start and the end of every task in ns after the graph's origin.

    A task on a device starts when its rate is first above 0: it has compute units, and waits for no peer.

    Raises
    ------
    InvalidInputError
        Tasks wait for each other in a circle; the message names it. Or as `replay.engine.layout.lay_out`.
    """
    sim = state_of(graph)
    begin(sim)
    run(sim)
    stuck = np.isnan(sim.end)
    if stuck.any():
        raise InvalidInputError(f"tasks wait for each other in a circle: {_circle(graph, stuck)}")
    return sim.start, sim.end


def _circle(graph: KernelGraph, stuck: npt.NDArray[np.bool_]) -> str:
    """Return the names of tasks along one circle of edges among the tasks that never ended."""
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


#: Changes of the active tasks of a device, in the order in which the engine takes those of one time.
_ENDS, _WAITS, _STARTS = range(3)


class TaskTimes(NamedTuple):
    """Times of all tasks of a graph."""

    start_ns: Floats
    end_ns: Floats
    arrival: Ints | Floats  #: decides between tasks that start together
    wait_ns: Floats  #: when a collective began to wait for its peers; NaN for others


def wait_times(graph: KernelGraph, start_ns: Floats) -> Floats:
    """Return when each collective began to wait for its peers, in ns; NaN for other tasks.

    Parameters
    ----------
    graph : KernelGraph
        Graph of the tasks.
    start_ns : array of float64, shape (n_tasks,)
        Measured or replayed starts of all tasks; an arrival mark starts when its rank arrives.
    """
    arrival = graph.arrival_marks()
    return np.where(arrival >= 0, start_ns[arrival], np.nan)


def integrate_rates(
    sharing: SharingState, times: TaskTimes, rows: Ints, work_ns: Floats, log_rows: int = 0
) -> tuple[Floats, Floats]:
    """Write the rate times the time of each task of a device; return the use of its resources over time.

    Parameters
    ----------
    sharing : SharingState
        Sharing state of the graph.
    times : TaskTimes
        Times of all tasks of the graph.
    rows : array of int64
        Tasks of the device.
    work_ns : array of float64, one a task
        Work of each task, in ns at full rate; changed in place. Of a task in rounds, which do not end when it was
        measured to end: its duration times the time measured over the time that it would take.
    log_rows : int
        Most changes of use to log. A task makes six at most: waiting, started, last wave, finished, idle.

    Returns
    -------
    time_ns, in_use : arrays of float64
        Times at which the use changes, and the shares of the device in use from then on, of shape
        (times, len(RESOURCES)).
    """
    waits = rows[times.wait_ns[rows] < times.start_ns[rows]]
    task = np.concatenate([rows, rows, waits])
    change = np.repeat([_STARTS, _ENDS, _WAITS], [len(rows), len(rows), len(waits)])
    span_ns = times.end_ns[rows] - times.start_ns[rows]
    first_ns = times.start_ns[rows] + (starts(sharing.start_ns[rows], span_ns) if sharing.has_start else 0.0)
    time_ns = np.concatenate([first_ns, times.end_ns[rows], times.wait_ns[waits]])
    order = np.lexsort((task, times.arrival[task], change, time_ns))
    log = (np.zeros(log_rows), np.zeros((log_rows, len(RESOURCES))))
    is_waiting = np.zeros(len(work_ns) if len(waits) else 1, np.bool_)
    sharing = sharing._replace(has_waiting=len(waits) > 0)
    work_ns[rows], took_ns = 0.0, np.zeros(len(work_ns))
    logged = _integrate((task[order], change[order], time_ns[order]), sharing, is_waiting, (work_ns, took_ns), log)
    rounds = rows[sharing.in_rounds[rows]]
    spans = (times.end_ns - times.start_ns)[rounds] - (sharing.start_ns[rounds] if sharing.has_start else 0.0)
    work_ns[rounds] = sharing.duration[rounds] * spans / np.maximum(took_ns[rounds], DONE_NS)
    return log[0][:logged], log[1][:logged]


@bare
def _integrate(events, sharing, is_waiting, results, log):  # type: ignore[no-untyped-def]
    """Integrate the rates over starts and ends in the order of time; return the number of rows logged."""
    (tasks, changes, time_ns), (log_ns, in_use), (work_ns, took_ns) = events, log, results
    active = sharing.active
    # Typed numbers: a literal would have numba compile the sharing once more.
    first, count, logged, before = np.int64(0), np.int64(0), np.int64(0), 0.0
    for k in range(len(tasks)):
        task, now = tasks[k], time_ns[k]
        while count > 0 and before < now:
            is_short = share(sharing, first, count)
            if logged < len(log_ns):
                log_ns[logged] = before
                _log_usage(in_use, logged, sharing, count)
                logged += 1
            left = now - before
            step = min(left, max(next_change_ns(sharing, first, count, is_short), DONE_NS))
            progress(sharing, sharing.device[active[0].task], first, (count, step))
            before = before + step if step < left else now
            for i in range(count):
                row = active[i]
                row.started = 1
                work_ns[row.task] += row.rate * step
                if row.has_ended == 0 and is_done(row, DONE_NS):
                    row.has_ended = 1  # before it was measured to end
                    took_ns[row.task] += before
                if row.has_ended == 1:
                    row.remaining_ns = DONE_NS
        before = now
        if changes[k] == _WAITS:
            activate(sharing, first, count, task)
            begin_waiting(sharing, first, task)
            is_waiting[task] = True
            count += 1
        elif changes[k] == _STARTS and sharing.has_waiting and is_waiting[task]:
            stop_waiting(sharing, first, task)
            is_waiting[task] = False
            took_ns[task] -= now
        elif changes[k] == _STARTS:
            activate(sharing, first, count, task)
            count += 1
            took_ns[task] -= now
        else:
            i = 0
            while active[i].task != task:
                i += 1
            if active[i].has_ended == 0:
                took_ns[task] += now + until_done_ns(sharing, sharing.device[task], active[i])
            count -= 1
            if active[i].is_placed:
                release(sharing, sharing.device[task], task)
            for j in range(i, count):
                active[j] = active[j + 1]
        if count == 0 and logged < len(log_ns):
            log_ns[logged] = now
            logged += 1
    return logged


@bare
def _log_usage(in_use, index, sharing, count):  # type: ignore[no-untyped-def]
    """Write a row of zeros of the log: compute units as active tasks hold them, other resources as they draw them."""
    for i in range(count):
        row = sharing.active[i]
        in_use[index, CU] += held_units(row)
        in_use[index, POWER] += row.rate * sharing.demand[row.task, POWER]
        for c in range(N_FAIR):
            # A task that is alone has the whole cache, so that its demands are those of the graph.
            demand = row.demand[c] if count > 1 else sharing.demand[row.task, FAIR[c]]
            resource = PIM if c == DMA_COLUMN and sharing.demand[row.task, PIM] > 0.0 else FAIR[c]
            in_use[index, resource] += row.rate * demand
