"""The event loop, and a walk along given times.

The engine: a discrete-event simulation in which active tasks progress at the rates that sharing gives them.

One heap of events, one idea: between two events on a device the rates of its tasks do not change. The engine
knows arrays only; what a task is and why it waits is data. It is deterministic: equal times are taken in the
order of the kind of event, then of the task.

A task that shares nothing (a call on the host, a mark) needs no event: when what it waits for is known, so is its end,
and those that wait for it are told at once, whatever the time.

Along a timeline that is known: at which rates its tasks ran, under the sharing of the engine.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from profilers.errors import InvalidInputError
from profilers.trace.arrays import Floats, Ints
from profilers.trace.compiled import bare, inlined
from replay.engine.layout import COLUMNS, FAIR, lay_out, plain
from replay.engine.sharing import seat, share
from replay.graph.graph import RESOURCES, KernelGraph

#: An event is one number. That a task comes is `TASK_EVENT` plus the task; a device's event, at which the first of its
#: tasks is done, carries the version of the device's schedule, so that one that has been overtaken shows.
TASK_EVENT = 1 << 58
#: More events than any run has.
_ALL = 1 << 62
#: Tasks that start at one time and are kept in order outside the heap.
_AT_ONCE = 32
#: A task with less than this left is done (ns of its own work; a thousandth of what a profiler resolves).
DONE_NS = 1e-3
#: Which edges are told: those from the start of a task, or from its end. For `True` and `False` as they are, numba
#: compiles a copy each.
_AT_START, _AT_END = np.bool_(True), np.bool_(False)
#: Relative rounding of a time after an addition, with room for the product with a rate.
_ROUNDING = 4 * float(np.finfo(np.float64).eps)


class State(NamedTuple):
    """All arrays of a run: tasks, edges, devices, and the heap of events."""

    shared: Any  #: the columns of the tasks, the seats of those that are active, and what else sharing reads and writes
    ready: Any  #: by task: from when on it may start, as far as is known
    waiting: Any  #: by task: edges that have not yet fired
    start: Any
    end: Any
    leaving: Any  #: by task: the first edge that leaves it; -1 where there is none
    other: Any  #: by edge: the next that leaves the same task
    target: Any
    lag: Any
    from_start: Any
    early: Any  #: whether any edge is from the start
    base: Any  #: the active tasks of device d have count[d] seats from base[d] on, in the order of dispatch
    count: Any
    pending: Any  #: active tasks that have not started, for want of compute units
    settled: Any  #: until when the work left is up to date
    version: Any
    bits: Any  #: of an event that say which device it is about
    changed: Any  #: devices whose active tasks have changed at this time, and how many they are
    is_changed: Any
    free: Any  #: tasks that share nothing and whose time is known, to be told on
    next: Any  #: tasks that start at this very time
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
    ready = sim.ready[task]
    if sim.shared.device[task] < 0:
        sim.start[task], sim.end[task] = ready, ready + sim.shared.duration[task]
        sim.free[sim.size[2]] = task
        sim.size[2] += 1
    elif ready > now or sim.size[3] == _AT_ONCE:
        _push(sim, ready, TASK_EVENT + task)
    else:
        _insert(sim, task)


@inlined
def _insert(sim, task):  # type: ignore[no-untyped-def]
    """Note a task that comes at this very time; the first in the order of tasks stands last, and is taken first."""
    i = sim.size[3]
    sim.size[3] += 1
    while i > 0 and sim.next[i - 1] < task:
        sim.next[i] = sim.next[i - 1]
        i -= 1
    sim.next[i] = task


@inlined
def _tell(sim, task, now, at_start, here):  # type: ignore[no-untyped-def]
    """Tell the tasks that wait for the start or the end of `task`, which is `now`; the simulation is at `here`."""
    e = sim.leaving[task]
    while e >= 0:
        if sim.from_start[e] == at_start:
            target = sim.target[e]
            sim.ready[target] = max(sim.ready[target], now + sim.lag[e])
            sim.waiting[target] -= 1
            if sim.waiting[target] == 0:
                _known(sim, target, here)
        e = sim.other[e]


@inlined
def _tell_on(sim, here):  # type: ignore[no-untyped-def]
    """Let the tasks that share nothing tell those that wait for them."""
    while sim.size[2] > 0:
        sim.size[2] -= 1
        task = sim.free[sim.size[2]]
        _tell(sim, task, sim.start[task], _AT_START, here)
        _tell(sim, task, sim.end[task], _AT_END, here)


@inlined
def _settle(sim, device, now):  # type: ignore[no-untyped-def]
    """Take off what the active tasks of a device have done since its last event; remember that they change."""
    elapsed = now - sim.settled[device]
    if elapsed > 0.0:
        for i in range(sim.base[device], sim.base[device] + sim.count[device]):
            row = sim.shared.seats[i]
            row.left -= elapsed * row.rate
    sim.settled[device] = now
    if not sim.is_changed[device]:
        sim.is_changed[device] = True
        sim.changed[sim.size[1]] = device
        sim.size[1] += 1


@inlined
def _arrive(sim, now):  # type: ignore[no-untyped-def]
    """Seat the tasks whose time has come among those that their devices are shared by."""
    while sim.size[3] > 0:
        sim.size[3] -= 1
        task = sim.next[sim.size[3]]
        device = sim.shared.device[task]
        _settle(sim, device, now)
        seat(sim.shared, sim.base[device], sim.count[device], task)
        sim.count[device] += 1
        sim.pending[device] += 1


@inlined
def _advance(sim, device, now):  # type: ignore[no-untyped-def]
    """End the tasks of a device that are done; one that comes to its last wave is there to the digit."""
    _settle(sim, device, now)
    # Far from the origin a time has no room for small steps: what is done within its rounding is done.
    done = max(DONE_NS, now * _ROUNDING)
    kept = base = sim.base[device]
    for i in range(base, base + sim.count[device]):
        row = sim.shared.seats[i]
        if row.left <= done:
            sim.end[row.task] = now
            _tell(sim, row.task, now, _AT_END, now)
        else:
            if row.resident < row.left <= row.resident + done:
                row.left = row.resident
            sim.shared.seats[kept] = row
            kept += 1
    sim.count[device] = kept - base


@inlined
def _reschedule(sim, now):  # type: ignore[no-untyped-def]
    """Share every device that has changed anew, start what now gets its part, and expect what changes next."""
    for k in range(sim.size[1]):
        device = sim.changed[k]
        sim.is_changed[device] = False
        sim.version[device] += 1
        base, count = sim.base[device], sim.count[device]
        if count == 0:
            continue
        short = share(sim.shared, base, count)
        if sim.pending[device] > 0:
            _start(sim, device, now)
        soonest = _soonest(sim.shared.seats, base, count, short)
        _push(sim, now + soonest, (sim.version[device] << sim.bits) + device)
    sim.size[1] = 0


@inlined
def _start(sim, device, now):  # type: ignore[no-untyped-def]
    """Start the tasks of a device that have got compute units for the first time."""
    for i in range(sim.base[device], sim.base[device] + sim.count[device]):
        row = sim.shared.seats[i]
        if row.started == 0 and row.rate > 0.0:
            row.started = 1
            sim.start[row.task] = now
            sim.pending[device] -= 1
            if sim.early:
                _tell(sim, row.task, now, _AT_START, now)


@inlined
def _soonest(seats, first, count, short):  # type: ignore[no-untyped-def]
    """Return in how long a task is done or, where others want its compute units, comes to its last wave."""
    soonest = np.inf
    for i in range(first, first + count):
        row = seats[i]
        left = row.left - (row.resident if short & (row.left > row.resident) else 0.0)
        soonest = min(soonest, left / row.rate)  # never, at rate 0
    return soonest


@bare
def begin(sim):  # type: ignore[no-untyped-def]
    """Note the tasks that wait for nothing."""
    for task in range(len(sim.waiting)):
        if sim.waiting[task] == 0:
            _known(sim, task, -np.inf)
    _tell_on(sim, -np.inf)


@bare
def run(sim, events):  # type: ignore[no-untyped-def]
    """Take up to `events` events in order; all of one time before devices are shared anew. Return how many are left."""
    while sim.size[0] > 0 and events > 0:
        events -= 1
        now, code = sim.times[0], sim.codes[0]
        _pop(sim)
        device = code & ((1 << sim.bits) - 1)
        if code >= TASK_EVENT:
            _insert(sim, code - TASK_EVENT)
        elif sim.version[device] == code >> sim.bits:
            _advance(sim, device, now)
        _tell_on(sim, now)
        over = sim.size[0] == 0 or sim.times[0] > now  # nothing more at this time
        while over or sim.size[3] == _AT_ONCE:
            _arrive(sim, now)
            if sim.size[1] == 0 or not over:
                break
            _reschedule(sim, now)
            _tell_on(sim, now)  # a start can let others start at once
    return sim.size[0]


@bare
def _chain(source, target, chains, device, counts):  # type: ignore[no-untyped-def]
    """Write the first edge that leaves each task, and the next of each edge, in their own order; -1: there is none.

    Count, beside that, what each task waits for and the tasks of each device. The arrays are the caller's, and hold
    -1 and 0: to make them here took longer to compile than the loops.
    """
    leaving, other = chains
    waiting, members = counts
    for e in range(len(source) - 1, -1, -1):
        other[e] = leaving[source[e]]
        leaving[source[e]] = e
        waiting[target[e]] += 1
    for task in range(len(device)):
        if device[task] >= 0:
            members[device[task]] += 1


def state_of(graph: KernelGraph) -> State:
    """Return the arrays of a run that has not begun.

    Raises
    ------
    InvalidInputError
        As `replay.engine.layout.lay_out`.
    """
    tasks, edges = graph.tasks, graph.edges
    n = len(tasks)
    shared = lay_out(tasks, graph.policy)
    devices = max(int(tasks.device.max(initial=-1)) + 1, 1)
    source, target = plain(edges.source, np.int64), plain(edges.target, np.int64)
    waiting, members = np.zeros(n, np.int64), np.zeros(devices, np.int64)
    leaving, other = np.full(n, -1), np.empty(len(source), np.int64)
    _chain(source, target, (leaving, other), shared.device, (waiting, members))
    return State(
        shared=shared,
        ready=np.array(tasks.release_ns, np.float64),
        waiting=waiting,
        start=np.full(n, np.nan),
        end=np.full(n, np.nan),
        leaving=leaving,
        other=other,
        target=target,
        lag=plain(edges.lag_ns),
        from_start=plain(edges.from_start, np.bool_),
        early=bool(edges.from_start.any()),
        base=np.concatenate([[0], np.cumsum(members)[:-1]]),
        count=np.zeros(devices, np.int64),
        pending=np.zeros(devices, np.int64),
        settled=np.zeros(devices),
        version=np.zeros(devices, np.int64),
        bits=devices.bit_length(),
        changed=np.zeros(devices, np.int64),
        is_changed=np.zeros(devices, np.bool_),
        free=np.zeros(n, np.int64),
        next=np.zeros(n, np.int64),
        # Each task comes, comes to its last wave and ends once, and each reschedules a device at most once.
        times=np.empty(4 * n + 16),
        codes=np.empty(4 * n + 16, np.int64),
        size=np.zeros(4, np.int64),
    )


def simulate(graph: KernelGraph) -> tuple[Floats, Floats]:
    """Return the start and the end of every task in ns after the graph's origin.

    A task starts when it first gets compute units, where it uses any.

    Raises
    ------
    InvalidInputError
        Tasks wait for each other in a circle; the message names it. Or as `replay.engine.layout.lay_out`.
    """
    sim = state_of(graph)
    begin(sim)
    run(sim, _ALL)
    return times_of(graph, sim)


def times_of(graph: KernelGraph, sim: State) -> tuple[Floats, Floats]:
    """Return the starts and ends of a run that is over.

    Raises
    ------
    InvalidInputError
        Tasks wait for each other in a circle; the message names it.
    """
    stuck = np.isnan(sim.end)
    if stuck.any():
        raise InvalidInputError(f"tasks wait for each other in a circle: {_circle(graph, stuck)}")
    return sim.start, sim.end


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


_CU, _POWER = RESOURCES.index("cu"), RESOURCES.index("power")


class Record(NamedTuple):
    """Room for what is in use from one change to the next, four rows a task: come, last wave, gone, idle; or none."""

    at: Floats
    use: Floats  #: shape (rows, len(RESOURCES))


def no_record() -> Record:
    """Return room for nothing."""
    return Record(np.zeros(0), np.zeros((0, len(RESOURCES))))


def events_of(times: tuple[Floats, Floats], rows: Ints, arrival: npt.NDArray[Any]) -> tuple[Ints, Any, Floats]:
    """Return the starts and ends of the tasks `rows` of a device in the order of time.

    Parameters
    ----------
    times : (start, end)
        Of all tasks.
    rows : array of int64
    arrival : array
        Of each of them: which came first, of those that start at one time.

    Returns
    -------
    task, begins, time : arrays
    """
    both = np.concatenate([rows, rows])
    begins = np.arange(len(both)) < len(rows)
    at = np.where(begins, times[0][both], times[1][both])
    order = np.lexsort((both, np.concatenate([arrival, arrival]), begins, at))
    return both[order], begins[order], at[order]


@bare
def walk(events, shared, work, record):  # type: ignore[no-untyped-def]
    """Add rate times time of the tasks of one device to `work`; note what is in use, and return how many rows."""
    order, begins, at = events
    seats = shared.seats
    # Typed numbers: a literal would have numba compile the sharing once more.
    first, count, noted, before = np.int64(0), np.int64(0), np.int64(0), 0.0
    for k in range(len(order)):
        task, now = order[k], at[k]
        while count > 0 and before < now:
            short = share(shared, first, count)
            if noted < len(record.at):
                _note(record, noted, before, shared, count)
                noted += 1
            step = now - before
            for i in range(count):
                row = seats[i]
                if short and row.left > row.resident and row.rate > 0.0:
                    step = min(step, (row.left - row.resident) / row.rate)
            for i in range(count):
                row = seats[i]
                work[row.task] += row.rate * step
                row.left -= row.rate * step
                if row.resident < row.left <= row.resident + DONE_NS:  # to the digit, as in the engine
                    row.left = row.resident
            before = min(before + step, now) if step < now - before else now
        before = now
        if begins[k]:
            seat(shared, first, count, task)
            count += 1
        else:
            i = 0
            while seats[i].task != task:
                i += 1
            count -= 1
            for j in range(i, count):
                seats[j] = seats[j + 1]
        if count == 0 and noted < len(record.at):
            record.at[noted] = now
            record.use[noted, :] = 0.0
            noted += 1
    return noted


@bare
def _note(record, place, time, shared, count):  # type: ignore[no-untyped-def]
    """Note what the active tasks have in use: compute units as they hold them, the rest as they draw it."""
    record.at[place] = time
    record.use[place, :] = 0.0
    for i in range(count):
        row = shared.seats[i]
        record.use[place, _CU] += row.granted
        record.use[place, _POWER] += row.rate * shared.demand[row.task, _POWER]
        for c in range(COLUMNS):
            # One that is alone has the whole cache.
            asks = row.asks[c] if count > 1 else shared.demand[row.task, FAIR[c]]
            record.use[place, FAIR[c]] += row.rate * asks
