"""A graph repeated until its period settles.

`repeated`: a graph whose iterations follow themselves, joined as the trace shows iterations to be.

`steady_states`: how long steps take when iterations repeat, and which side sets the pace.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from profilers.trace.arrays import Floats, Ints
from replay.engine.engine import simulate
from replay.engine.timeline import Timeline
from replay.graph.graph import HOST_TIME_EDGES, STREAM_EDGES, EdgeKind, Edges, KernelGraph, TaskKind, Tasks

_NAMES = ("source", "target", "lag_ns", "from_start", "kind")  # of Edges, in order


@dataclass(frozen=True)
class CarriedEdges:
    """Edges from one cycle to a later one: loop-carried dependences, in the words of compilers.

    Parameters
    ----------
    edges : Edges
        Source and target are places in `Pattern.tasks`.
    distance : array of int64
        How many cycles later the target is: 1 or more.
    """

    edges: Edges
    distance: Ints

    def joined(self, other: "CarriedEdges") -> "CarriedEdges":
        """Return these edges followed by `other`."""
        return CarriedEdges(self.edges.joined(other.edges), np.concatenate([self.distance, other.distance]))


@dataclass(frozen=True)
class Pattern:
    """The iterations of a graph as one cycle, and what joins it to the next.

    Parameters
    ----------
    tasks : array of int64
        Rows of the graph's tasks that belong to its iterations.
    inner : Edges
        Both ends in the cycle, as places in `tasks`.
    carried : CarriedEdges
    cycle_ns : float
        How long a cycle takes as measured.
    """

    tasks: Ints
    inner: Edges
    carried: CarriedEdges
    cycle_ns: float


def pattern_of(graph: KernelGraph) -> Pattern | None:
    """Return the iterations of a graph as a cycle; None if it has one, since nothing shows what joins it to the next.

    The last iteration shows how iterations hang together: the edges into it from the iterations before it are
    repeated from the end of the cycle to its beginning. There each task is replaced by its counterpart: the task with
    the same queue, name and kind, for a source as far from the end of its iteration, for a target as far from the
    start. A queue that no such edge leads into keeps its order.
    """
    if len(graph.iterations) < 2:
        return None
    tasks, edges = graph.tasks, graph.edges
    chosen = np.flatnonzero(tasks.own)
    local = np.full(len(tasks), -1)
    local[chosen] = np.arange(len(chosen))
    within = (local[edges.source] >= 0) & (local[edges.target] >= 0)
    inner = _placed(edges.select(within), local[edges.source[within]], local[edges.target[within]])
    inner = inner.joined(_handoffs(graph, local, inner))
    carried = _carried(graph, local)
    carried = carried.joined(_lane_order(graph, chosen, carried))
    inner = inner.joined(_anchored(graph, chosen, inner, carried))
    queue = _launch_queue(graph, chosen, inner)
    here = queue.distance == 0
    inner = inner.joined(queue.edges.select(here))
    carried = carried.joined(CarriedEdges(queue.edges.select(~here), queue.distance[~here]))
    return Pattern(chosen, inner, carried, _measured_cycle(graph))


def _placed(edges: Edges, source: Ints, target: Ints) -> Edges:
    return replace(edges, source=source, target=target)


def _handoffs(graph: KernelGraph, local: Ints, inner: Edges) -> Edges:
    """Return edges by which threads hand over in the first iteration, as they do in the last.

    A thread that has made no call before the window shows nothing of whom it waits for there. An edge that the measured
    times contradict is left out.
    """
    tasks, edges, last = graph.tasks, graph.edges, len(graph.iterations) - 1
    waits = np.ones(len(tasks), dtype=bool)
    waits[np.flatnonzero(local >= 0)[inner.target]] = False
    free = np.flatnonzero(waits & (tasks.iteration == 0) & (tasks.kind == TaskKind.HOST))
    stands_for = _counterparts(graph, free, last, from_end=False)
    of_target = np.full(len(tasks), -1)
    of_target[stands_for[stands_for >= 0]] = free[stands_for >= 0]
    handing = np.isin(edges.kind, (EdgeKind.HANDOFF, EdgeKind.AUTOGRAD)) & (tasks.iteration[edges.source] == last)
    rows = np.flatnonzero(handing & (of_target[edges.target] >= 0))
    source, target = _counterparts(graph, edges.source[rows], 0, from_end=False), of_target[edges.target[rows]]
    fits = (source >= 0) & (tasks.measured_end_ns[source] <= tasks.measured_start_ns[target])
    return _placed(edges.select(rows[fits]), local[source[fits]], local[target[fits]])


def _measured_cycle(graph: KernelGraph) -> float:
    """Return the mean time between completions as measured, times the number of iterations."""
    ends = np.full(len(graph.iterations), -np.inf)
    rows = graph.tasks.own & ~np.isnan(graph.tasks.measured_end_ns)
    np.maximum.at(ends, graph.tasks.iteration[rows], graph.tasks.measured_end_ns[rows])
    steps = len(ends) - 1
    between = float(ends.max() - ends[0]) / steps * len(ends)
    return between if np.isfinite(between) else 0.0


def _carried(graph: KernelGraph, local: Ints) -> CarriedEdges:
    """Return the edges into the last iteration, moved to where they lead from the end of the cycle to its beginning."""
    of, edges = graph.tasks.iteration, graph.edges
    n = len(graph.iterations)
    into_last = np.flatnonzero((of[edges.target] == n - 1) & (of[edges.source] >= 0) & (of[edges.source] < n - 1))
    back = n - 1 - of[edges.source[into_last]]
    moved = [CarriedEdges(edges.select(into_last[:0]), into_last[:0])]
    for first in range(int(back.max(initial=0))):
        rows, steps = into_last[back > first], back[back > first]
        source, target = edges.source[rows], edges.target[rows]
        sources = np.empty(len(rows), dtype=np.int64)
        for distance in np.unique(steps).tolist():  # a few iterations
            far = steps == distance
            sources[far] = _counterparts(graph, source[far], (first - distance) % n, from_end=True)
        targets = _counterparts(graph, target, first, from_end=False)
        known = (sources >= 0) & (targets >= 0)
        ends = (local[sources[known]], local[targets[known]])
        cycles = -((first - steps[known]) // n)
        moved.append(CarriedEdges(_placed(edges.select(rows[known]), *ends), cycles))
    carried = moved[0]
    for more in moved[1:]:
        carried = carried.joined(more)
    return carried


def _counterparts(graph: KernelGraph, rows: Ints, position: int, *, from_end: bool) -> Ints:
    """Return for tasks the tasks of the iteration at `position` that stand for them; -1 if their queue is unused there.

    The n-th from the end, or from the start, of the same queue, name and kind; if there are fewer, the farthest of
    them; if there is none, the last task of the queue, or the first.
    """
    tasks = graph.tasks
    same = (tasks.lane + 1) * (len(graph.names) + 1) + tasks.name
    same = same * (max(TaskKind) + 1) + tasks.kind
    exact = _nth(same, tasks.iteration, rows, position, from_end=from_end)
    lane = _nth(tasks.lane, tasks.iteration, rows, position, from_end=from_end, n=0)
    return np.where(exact >= 0, exact, np.where(tasks.lane[rows] >= 0, lane, -1))


def _nth(group: Ints, of: Ints, rows: Ints, position: int, *, from_end: bool, n: int | None = None) -> Ints:
    """Return the task of the same group in this iteration, in the same place from the end or start; -1 for none."""
    if n is None:
        order = np.lexsort((np.arange(len(group)), group, of))
        head = np.ones(len(order), dtype=bool)
        head[1:] = (group[order][1:] != group[order][:-1]) | (of[order][1:] != of[order][:-1])
        starts = np.flatnonzero(head)
        size = np.diff(np.append(starts, len(order)))
        of_group = np.cumsum(head) - 1
        count = np.empty(len(order), dtype=np.int64)
        forward = np.arange(len(order)) - starts[of_group]
        count[order] = size[of_group] - 1 - forward if from_end else forward
        nth = count[rows]
    else:
        nth = np.full(len(rows), n)
    here = np.flatnonzero(of == position)
    here = here[np.argsort(group[here], kind="stable")]
    low, high = (np.searchsorted(group[here], group[rows], side=side) for side in ("left", "right"))
    chosen = np.maximum(high - 1 - nth, low) if from_end else np.minimum(low + nth, high - 1)
    return np.where(high > low, here[np.minimum(chosen, max(len(here) - 1, 0))] if len(here) else -1, -1)


def _lane_order(graph: KernelGraph, chosen: Ints, carried: CarriedEdges) -> CarriedEdges:
    """Return edges from the last task of each queue to its first, where nothing leads into the first from before."""
    tasks = graph.tasks
    lane, kind = tasks.lane[chosen], tasks.kind[chosen]
    led = np.zeros(len(chosen), dtype=bool)
    in_order = np.isin(carried.edges.kind, sorted(STREAM_EDGES | {EdgeKind.HOST}))
    led[carried.edges.target[in_order]] = True
    first, last = [], []
    for number in np.unique(lane[(lane >= 0) & (kind != TaskKind.MARK)]).tolist():  # a few queues
        here = np.flatnonzero(lane == number)
        if not led[here[0]]:
            first.append(here[0])
            last.append(here[-1])
    on_device = tasks.device[chosen[np.array(first, dtype=np.int64)]] >= 0
    n = len(first)
    edges = Edges(
        np.array(last, dtype=np.int64),
        np.array(first, dtype=np.int64),
        np.zeros(n),
        np.zeros(n, dtype=bool),
        np.where(on_device, int(EdgeKind.STREAM), int(EdgeKind.HOST)),
    )
    return CarriedEdges(edges, np.ones(n, dtype=np.int64))


def _anchored(graph: KernelGraph, chosen: Ints, inner: Edges, carried: CarriedEdges) -> Edges:
    """Return edges that tie tasks which only wait for a time to the first call of their rank, as far behind it."""
    tasks = graph.tasks
    free = np.ones(len(chosen), dtype=bool)
    free[inner.target] = False
    free[carried.edges.target] = False
    rank = _rank_of(graph, chosen)
    start = tasks.measured_start_ns[chosen]
    sources, targets, lags = [], [], []
    for root in np.flatnonzero(free & (rank >= 0) & ~np.isnan(start)).tolist():  # a few tasks
        mine = np.flatnonzero((rank == rank[root]) & ~np.isnan(start) & (start <= start[root]))
        on_host = mine[tasks.device[chosen[mine]] < 0]
        mine = on_host if len(on_host) else mine
        anchor = int(mine[np.argmin(start[mine])]) if len(mine) else root
        if anchor != root:
            sources.append(anchor)
            targets.append(root)
            lags.append(float(start[root] - start[anchor]))
    n = len(sources)
    return Edges(
        np.array(sources, dtype=np.int64),
        np.array(targets, dtype=np.int64),
        np.array(lags, dtype=np.float64),
        np.ones(n, dtype=bool),
        np.full(n, int(EdgeKind.HANDOFF)),
    )


def _launch_queue(graph: KernelGraph, chosen: Ints, inner: Edges) -> CarriedEdges:
    """Return edges by which a launch waits until the launch queue has room: until enough launched work has started.

    The queue is that of `Hardware.launch_queue`, or as long as it was seen to be in the trace. Work of launched graphs
    takes no place in it. An edge may stay in its cycle: distance 0.
    """
    # A queue that was seen to be longer than it is known to be is longer.
    depth, rank = graph.hardware.launch_queue, _rank_of(graph, chosen)
    rows = np.flatnonzero(inner.kind == EdgeKind.LAUNCH)
    empty = inner.select(rows[:0])
    queue = CarriedEdges(empty, rows[:0])
    if not depth:
        return queue
    for number in np.unique(rank[rank >= 0]).tolist():
        mine = rows[rank[inner.source[rows]] == number]
        if not len(mine):
            continue
        start = graph.tasks.measured_start_ns[chosen]
        call, begun = np.sort(inner.source[mine]), inner.target[mine]
        call = call[np.argsort(start[call], kind="stable")]
        begun = begun[np.argsort(start[begun], kind="stable")]
        slots = max(depth, _most_waiting(graph.tasks, chosen[call], chosen[begun]))
        back = np.arange(len(mine)) - slots
        edges = Edges(
            begun[back % len(mine)],
            call,
            np.zeros(len(mine)),
            np.ones(len(mine), dtype=bool),
            np.full(len(mine), int(EdgeKind.QUEUE)),
        )
        queue = queue.joined(CarriedEdges(edges, -(back // len(mine))))
    return queue


def _most_waiting(tasks: Tasks, calls: Ints, launched: Ints) -> int:
    """Return how many launches waited for the device at most, as measured."""
    called, started = np.sort(tasks.measured_start_ns[calls]), np.sort(tasks.measured_start_ns[launched])
    waiting = np.arange(1, len(called) + 1) - np.searchsorted(started, called, side="right")
    return int(waiting.max(initial=0))


def _rank_of(graph: KernelGraph, rows: Ints) -> Ints:
    """Return the rank of each task; -1 for marks between ranks."""
    ranks = np.array([*(lane.rank for lane in graph.lanes), -1], dtype=np.int64)
    return np.asarray(ranks[graph.tasks.lane[rows]])


def repeated(graph: KernelGraph, pattern: Pattern, cycles: int) -> KernelGraph:
    """Return a graph of `cycles` repetitions of a graph's iterations, each joined to those before it.

    Parameters
    ----------
    graph : KernelGraph
        The one that `pattern` is of, or another with the same tasks (`replay.costs.demand.isolate`).
    pattern : Pattern
    cycles : int
        At least 1. The first starts with idle devices and empty queues.
    """
    n, iterations = len(pattern.tasks), len(graph.iterations)
    cycle = np.repeat(np.arange(cycles), n)
    columns = {}
    for name in graph.tasks.__dataclass_fields__:
        column = getattr(graph.tasks, name)[pattern.tasks]
        columns[name] = np.tile(column, (cycles,) + (1,) * (column.ndim - 1))
    later = cycle * pattern.cycle_ns
    columns |= {name: columns[name] + later for name in ("measured_start_ns", "measured_end_ns")}
    columns |= {"iteration": columns["iteration"] + cycle * iterations, "release_ns": np.zeros(n * cycles)}
    parts = [_shifted(pattern.inner, c * n, c * n) for c in range(cycles)]
    for c in range(1, cycles):
        rows = pattern.carried.distance <= c
        back = pattern.carried.distance[rows]
        parts.append(_shifted(pattern.carried.edges.select(rows), (c - back) * n, c * n))
    edges = Edges(*(np.concatenate([getattr(part, name) for part in parts]) for name in _NAMES))
    return replace(graph, tasks=Tasks(**columns), edges=edges, iterations=graph.iterations * cycles)


def _shifted(edges: Edges, source: Ints | int, target: Ints | int) -> Edges:
    return _placed(edges, edges.source + source, edges.target + target)


#: What a what-if does to a graph, its parameters given.
Change = Callable[[KernelGraph], KernelGraph]

#: Period of one step, against that of the step before, below which it has settled.
SETTLED = 1e-3
#: Cycles at first, and at most. The last only stands behind those that are measured.
_FIRST, _MOST = 4, 34
#: Cycles that most windows need.
USUAL_CYCLES = 6
#: How much longer hosts or devices are made at most, and how often the range is halved.
_MOST_ROOM, _HALVINGS = 4.0, 5


@dataclass(frozen=True)
class SteadyState:
    """Iterations that repeat as a cycle, once its period has settled.

    Parameters
    ----------
    timeline : Timeline
        Of the repeated graph; its interval is the last cycle that another follows.
    step_ns : array of float64, shape (iterations of a cycle,)
        The step times, as the mean over the last quarter of the cycles that another follows. Their sum is the period.
    host_period_ns, device_period_ns : float
        The periods of the slowest host thread, and of the slowest stream, with what they wait for.
    settled : bool
        Whether the period changed by less than `SETTLED` from one measurement to the next.
    repeats : bool
        Whether the iterations repeat; a single one without a neighbour in the trace does not.
    """

    timeline: Timeline
    step_ns: Floats
    host_period_ns: float
    device_period_ns: float
    settled: bool
    repeats: bool = True

    @property
    def period_ns(self) -> float:
        """The time of a cycle."""
        return float(self.step_ns.sum())

    def at_step(self, position: int) -> Timeline:
        """Return the timeline with one step of the cycle as its interval."""
        if not self.repeats:
            return self.timeline
        first = len(self.timeline.graph.iterations) - 2 * len(self.step_ns)
        return replace(self.timeline, interval=steps_of(self.timeline)[first + position])


def steady_states(graph: KernelGraph, pattern: Pattern | None, changes: Sequence[Change]) -> list[SteadyState]:
    """Return the steady states of iterations that repeat, as each of `changes` leaves them.

    The cycle is repeated 4 times, then 6, 10, 18 and 34 times, until its period changes by less than 0.1 %; a state
    that has not settled by then says so. That is done from two beginnings. In one, host and devices begin together: a
    host that is slower than its devices sets the pace at once. In the other the devices wait until the hosts have run
    ahead as far as synchronisations and the depth of the launch queue let them. A device that is slower than its host
    sets the pace there at once, while from the first beginning its queue could fill slowly.

    Parameters
    ----------
    graph : KernelGraph
        Of consecutive iterations.
    pattern : Pattern, optional
        Of `graph`. None for a single iteration: its step is taken to begin when it does and to end when its last
        task does, since nothing shows what overlaps with the next.
    changes : sequence of callable
        Each is applied to the repeated graph: a what-if, or `unchanged`.

    Raises
    ------
    SeqPointError
        As a change; or its tasks wait for each other in a circle.
    """
    if pattern is None:
        return [_single(change(graph)) for change in changes]
    states: dict[int, SteadyState] = {}
    cycles = _FIRST
    while len(states) < len(changes):
        cycled = repeated(graph, pattern, cycles)
        for i, change in enumerate(changes):
            if i not in states:
                state = _from_both(change(cycled), len(graph.iterations))
                if state.settled or cycles >= _MOST:
                    states[i] = state
        cycles = 2 * (cycles - 1)
    return [states[i] for i in range(len(changes))]


def unchanged(graph: KernelGraph) -> KernelGraph:
    """Return `graph`: the change that changes nothing."""
    return graph


def _single(graph: KernelGraph) -> SteadyState:
    """Return the step of an iteration by itself: behind the earlier work that its streams have to do."""
    line = _run(graph)
    begin = min(_backlog_end(line), line.makespan_ns)
    line = replace(line, interval=(begin, line.makespan_ns)) if begin else line
    host, device = (max(_last_end(line, on_device=side) - begin, 0.0) for side in (False, True))
    return SteadyState(line, np.array([line.span_ns]), host, device, settled=True, repeats=False)


def _backlog_end(line: Timeline) -> float:
    """Return when the streams of the graph's iterations are done with work that they began before; 0 without any."""
    tasks = line.graph.tasks
    first = np.full(len(line.graph.lanes) + 1, np.inf)
    rows = np.flatnonzero(tasks.own & (tasks.device >= 0))
    if len(rows) == (tasks.device >= 0).sum():
        return 0.0
    np.minimum.at(first, tasks.lane[rows], line.start_ns[rows])
    earlier = ~tasks.own & (tasks.device >= 0) & (line.start_ns < np.where(np.isinf(first), -np.inf, first)[tasks.lane])
    return float(line.end_ns[earlier].max(initial=0.0))


def _run(graph: KernelGraph) -> Timeline:
    return Timeline(graph, *simulate(graph))


def _from_both(graph: KernelGraph, size: int) -> SteadyState:
    """Return the steady state of a graph of repeated cycles of `size` iterations, from the better of two beginnings.

    From a common beginning the period is an upper bound: while the queue of a slow device still fills, the device
    idles now and then. If a host is the slowest of all queues, it is exact. Otherwise the devices are made to begin
    behind their hosts; where that gives a shorter period, the queue was still filling, and it counts.
    """
    together = _state(_run(graph), size)
    if together.host_period_ns >= (1 - SETTLED) * _longest(together):
        return together
    ahead = _state(_run(_devices_later(graph, float(together.timeline.end_ns.max()))), size)
    return together if _longest(ahead) >= (1 - SETTLED) * _longest(together) else ahead


def room(state: SteadyState, *, on_device: bool) -> float:
    """Return by which share the hosts, or the devices, could take longer before the period would grow.

    Their times are scaled, and the largest factor up to 4 is looked for at which the period is the same to 0.1 %; it is
    known to 4 %.

    Parameters
    ----------
    state : SteadyState
    on_device : bool
        Scale kernels, copies and collectives, rather than calls on the host and the time between them.
    """
    graph, size = state.timeline.graph, len(state.step_ns)
    limit = (1 + SETTLED) * state.period_ns

    def fits(factor: float) -> bool:
        scaled = _scaled(graph, factor, on_device=on_device)
        return (_from_both(scaled, size) if state.repeats else _single(scaled)).period_ns <= limit

    low, high = 0.0, math.log(_MOST_ROOM)
    if fits(_MOST_ROOM):
        return _MOST_ROOM - 1
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if fits(math.exp(middle)) else (low, middle)
    return math.exp(low) - 1


def without(state: SteadyState, *, on_device: bool) -> float:
    """Return the period if the hosts, or the devices, took no time: the most that making them faster can gain."""
    freed = _scaled(state.timeline.graph, 0.0, on_device=on_device)
    return (_from_both(freed, len(state.step_ns)) if state.repeats else _single(freed)).period_ns


def _scaled(graph: KernelGraph, factor: float, *, on_device: bool) -> KernelGraph:
    tasks, edges = graph.tasks, graph.edges
    chosen = graph.on_device() if on_device else tasks.kind == TaskKind.HOST
    graph = graph.with_tasks(duration_ns=np.where(chosen, tasks.duration_ns * factor, tasks.duration_ns))
    if on_device:
        return graph
    between = np.isin(edges.kind, sorted(HOST_TIME_EDGES))
    return replace(graph, edges=replace(edges, lag_ns=np.where(between, edges.lag_ns * factor, edges.lag_ns)))


def _longest(state: SteadyState) -> float:
    return max(state.host_period_ns, state.device_period_ns)


def _state(line: Timeline, size: int) -> SteadyState:
    ends = _queue_ends(line)[size - 1 :: size]
    width = max(len(ends) // 4, 1)
    period, before = _periods(ends, width)
    settled = abs(period.max(initial=0.0) - before.max(initial=0.0)) <= SETTLED * period.max(initial=0.0)
    on_device = np.array([lane.device is not None for lane in line.graph.lanes], dtype=bool)
    host, device = (float(period[rows].max(initial=0.0)) for rows in (~on_device, on_device))
    steps = np.array(steps_of(line))
    lengths = (steps[:, 1] - steps[:, 0])[-(width + 1) * size : -size].reshape(width, size).mean(axis=0)
    interval = (float(steps[-2 * size, 0]), float(steps[-size - 1, 1]))
    return SteadyState(replace(line, interval=interval), lengths, host, device, bool(settled))


def _devices_later(graph: KernelGraph, by_ns: float) -> KernelGraph:
    """Return a graph in which no device starts the first copy before a time."""
    tasks = graph.tasks
    first = (tasks.iteration == 0) & (tasks.device >= 0)
    return graph.with_tasks(release_ns=np.where(first, tasks.release_ns + by_ns, tasks.release_ns))


def _queue_ends(line: Timeline) -> Floats:
    """Return when each queue is done with each iteration, shape (iterations, queues)."""
    tasks = line.graph.tasks
    ends = np.full((len(line.graph.iterations), len(line.graph.lanes)), -np.inf)
    rows = np.flatnonzero(tasks.own & (tasks.lane >= 0))
    np.maximum.at(ends, (tasks.iteration[rows], tasks.lane[rows]), line.end_ns[rows])
    return np.maximum.accumulate(ends, axis=0)


def _periods(ends: Floats, width: int) -> tuple[Floats, Floats]:
    """Return the mean time of a cycle of each queue over the last `width` cycles but one, and over as many before.

    `ends` is when each queue is done with each cycle, shape (cycles, queues).
    """
    last, middle, first = ends[-2], ends[-2 - width], ends[-2 - 2 * width]
    used = np.isfinite(first)
    with np.errstate(invalid="ignore"):
        now, before = (last - middle) / width, (middle - first) / width
    return np.where(used, now, 0.0), np.where(used, before, 0.0)


def _last_end(line: Timeline, *, on_device: bool) -> float:
    tasks = line.graph.tasks
    rows = tasks.own & (tasks.kind != TaskKind.MARK) & ((tasks.device >= 0) == on_device)
    return float(line.end_ns[rows].max(initial=0.0))


def steps_of(line: Timeline) -> list[tuple[float, float]]:
    """Return the interval of each step: from the completion of the iteration before it to its own, over all ranks.

    The first begins at the graph's origin.
    """
    ends = line.completions_ns()
    return list(zip(np.append(0.0, ends[:-1]).tolist(), ends.tolist(), strict=True))
