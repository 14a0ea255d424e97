"""Steady state: a graph repeated until its period settles.

`cycle_of` turns the iterations of a graph into a cycle, with the edges that join it to the next (loop-carried
dependences, in the words of compilers). `repeated` unrolls a number of cycles into one graph. `steady_states` replays
more and more cycles until the period no longer changes. `changed_period_ns` changes a state that has settled.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from profilers.trace.arrays import Bools, Floats, Ints
from profilers.trace.steps import BEHIND_UNRECORDED_NS, is_behind_unrecorded
from replay.engine.timeline import Timeline, latest_ends, replay
from replay.graph.graph import LAUNCH_EDGES, STREAM_EDGES, EdgeKind, Edges, KernelGraph, TaskKind, Tasks, chosen_rows


@dataclass(frozen=True)
class StepPattern:
    """The iterations of a graph as one cycle, with the edges that join it to the next cycle.

    Parameters
    ----------
    tasks : array of int64
        Rows of the graph's tasks that belong to its iterations.
    edges : Edges
        Edges whose source and target are positions in `tasks`.
    distance : array of int64
        Number of cycles from the source of each edge to its target; 0 within a cycle.
    cycle_ns : float
        Measured time of a cycle.
    """

    tasks: Ints
    edges: Edges
    distance: Ints
    cycle_ns: float
    #: Repeated edges by cycles, and by cycles and name each column with its repetition.
    _edges: dict[int, Edges] = field(default_factory=dict, init=False, repr=False, compare=False)
    _columns: dict[tuple[int, str], Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def repeated_edges(self, cycles: int) -> Edges:
        """Return the edges of some cycles, first those within a cycle. They are made once."""
        if cycles not in self._edges:
            n = len(self.tasks)
            edge_cycle, row = np.divmod(np.arange(cycles * len(self.edges)), max(len(self.edges), 1))
            distance = self.distance[row]
            kept = np.flatnonzero(distance <= edge_cycle)
            kept = kept[np.argsort(distance[kept] > 0, kind="stable")]
            edges, edge_cycle, distance = self.edges.select(row[kept]), edge_cycle[kept], distance[kept]
            source, target = edges.source + (edge_cycle - distance) * n, edges.target + edge_cycle * n
            self._edges[cycles] = replace(edges, source=source, target=target)
        return self._edges[cycles]

    def repeated_tasks(self, tasks: Tasks, cycles: int, iterations: int) -> Tasks:
        """Return the tasks of some cycles; numbers of iterations and measured times go on from cycle to cycle.

        A cycle has `iterations` iterations. A column that is the same array as in the first call is shared with it.
        """
        columns, cycle = {}, np.repeat(np.arange(cycles), len(self.tasks))
        later = {"iteration": iterations, "measured_start_ns": self.cycle_ns, "measured_end_ns": self.cycle_ns}
        for name, column in vars(tasks).items():
            first, repeated = self._columns.get((cycles, name), (None, None))
            if first is not column:
                repeated = _tiled(chosen_rows(column, self.tasks), cycles)
                if name in later:
                    repeated = repeated + cycle * later[name]
                elif name == "release_ns":
                    repeated = np.zeros(len(cycle))
                self._columns.setdefault((cycles, name), (column, repeated))
            columns[name] = repeated
        return Tasks(**columns)


def _tiled(column: npt.NDArray[Any], times: int) -> npt.NDArray[Any]:
    """Return a column some times in a row; a view of one value stays one."""
    if column.strides[0] or not len(column):
        return np.concatenate([column] * times)
    return np.broadcast_to(column[0], (times * len(column), *column.shape[1:]))


def cycle_of(graph: KernelGraph) -> StepPattern | None:
    """Return the iterations of a graph as a cycle.

    The edges into the last iteration from those before it show how iterations follow each other. They are repeated
    from the end of the cycle to its beginning, between the counterparts of their tasks. A counterpart has the same
    queue, name and kind. A source's counterpart is as far from the end of its iteration, a target's as far from the
    start. A queue that no such edge enters keeps its order.

    Return None for a single iteration, since nothing shows what joins it to the next.
    """
    if len(graph.iterations) < 2:
        return None
    tasks, edges = graph.tasks, graph.edges
    rows = np.flatnonzero(tasks.in_iteration)
    local = np.full(len(tasks), -1)
    local[rows] = np.arange(len(rows))
    is_inner = (local[edges.source] >= 0) & (local[edges.target] >= 0)
    inner = replace(edges.select(is_inner), source=local[edges.source[is_inner]], target=local[edges.target[is_inner]])
    inner = inner.joined(_handoffs(graph, local, inner))
    carried, distance = _carried_edges(graph, local)
    queue_order = _queue_order(graph, rows, carried)
    carried = carried.joined(queue_order)
    inner = inner.joined(_anchors(graph, rows, np.concatenate([inner.target, carried.target])))
    launch_queue, queue_distance = _launch_queue_edges(graph, rows, inner)
    within, next_cycle = np.zeros(len(inner), np.int64), np.ones(len(queue_order), np.int64)
    distances = np.concatenate([within, distance, next_cycle, queue_distance])
    return StepPattern(rows, inner.joined(carried, launch_queue), distances, _measured_cycle(graph))


def _handoffs(graph: KernelGraph, local: Ints, inner: Edges) -> Edges:
    """Return handoffs between threads in the first iteration, copied from the last iteration.

    A thread without a call before the window does not show in the first iteration which thread it waits for. An edge
    that the measured times contradict is left out.
    """
    tasks, edges, last = graph.tasks, graph.edges, len(graph.iterations) - 1
    is_unwaited = np.ones(len(tasks), dtype=bool)
    is_unwaited[np.flatnonzero(local >= 0)[inner.target]] = False
    unwaited = np.flatnonzero(is_unwaited & (tasks.iteration == 0) & (tasks.kind == TaskKind.HOST))
    counterpart = _counterparts(graph, unwaited, last, from_end=False)
    first_of_last = np.full(len(tasks), -1)
    first_of_last[counterpart[counterpart >= 0]] = unwaited[counterpart >= 0]
    is_handoff = np.isin(edges.kind, (EdgeKind.HANDOFF, EdgeKind.AUTOGRAD)) & (tasks.iteration[edges.source] == last)
    rows = np.flatnonzero(is_handoff & (first_of_last[edges.target] >= 0))
    source, target = _counterparts(graph, edges.source[rows], 0, from_end=False), first_of_last[edges.target[rows]]
    in_order = (source >= 0) & (tasks.measured_end_ns[source] <= tasks.measured_start_ns[target])
    return replace(edges.select(rows[in_order]), source=local[source[in_order]], target=local[target[in_order]])


def _measured_cycle(graph: KernelGraph) -> float:
    """Return the measured time of a cycle: the mean time between completions, times the number of iterations."""
    ends = np.full(len(graph.iterations), -np.inf)
    rows = graph.tasks.in_iteration & ~np.isnan(graph.tasks.measured_end_ns)
    np.maximum.at(ends, graph.tasks.iteration[rows], graph.tasks.measured_end_ns[rows])
    steps = len(ends) - 1
    cycle_ns = float(ends.max() - ends[0]) / steps * len(ends)
    return cycle_ns if np.isfinite(cycle_ns) else 0.0


def _carried_edges(graph: KernelGraph, local: Ints) -> tuple[Edges, Ints]:
    """Return the edges into the last iteration, moved to lead from the end of the cycle to its beginning.

    The second result is the number of cycles from the source of each edge to its target.
    """
    iteration, edges = graph.tasks.iteration, graph.edges
    n_iterations = len(graph.iterations)
    into_last = np.flatnonzero(
        (iteration[edges.target] == n_iterations - 1)
        & (edges.kind != EdgeKind.QUEUE)
        & (iteration[edges.source] >= 0)
        & (iteration[edges.source] < n_iterations - 1)
    )
    back = n_iterations - 1 - iteration[edges.source[into_last]]
    moved, cycles = [edges.select(into_last[:0])], [into_last[:0]]
    for first in range(int(back.max(initial=0))):
        rows, steps = into_last[back > first], back[back > first]
        source, target = edges.source[rows], edges.target[rows]
        sources = np.empty(len(rows), dtype=np.int64)
        for distance in np.unique(steps).tolist():  # a few iterations
            at_distance = steps == distance
            sources[at_distance] = _counterparts(
                graph, source[at_distance], (first - distance) % n_iterations, from_end=True
            )
        targets = _counterparts(graph, target, first, from_end=False)
        both = (sources >= 0) & (targets >= 0)
        moved.append(replace(edges.select(rows[both]), source=local[sources[both]], target=local[targets[both]]))
        cycles.append(-((first - steps[both]) // n_iterations))
    return moved[0].joined(*moved[1:]), np.concatenate(cycles)


def _counterparts(graph: KernelGraph, rows: Ints, position: int, *, from_end: bool) -> Ints:
    """Return the counterparts of the tasks `rows` in the iteration at `position`; -1 if their queue is unused there.

    The counterpart of the n-th task of a queue, name and kind is the n-th of that iteration, counted from the end or
    from the start. If there are fewer, it is the farthest; if there is none, the last (or first) task of the queue.
    """
    tasks = graph.tasks
    same = (tasks.lane + 1) * (len(graph.names) + 1) + tasks.name
    same = same * (max(TaskKind) + 1) + tasks.kind
    exact = _nth_of_group(same, tasks.iteration, rows, position, from_end=from_end)
    lane = _nth_of_group(tasks.lane, tasks.iteration, rows, position, from_end=from_end, n=0)
    return np.where(exact >= 0, exact, np.where(tasks.lane[rows] >= 0, lane, -1))


def _nth_of_group(
    group: Ints, iteration: Ints, rows: Ints, position: int, *, from_end: bool, n: int | None = None
) -> Ints:
    """Return the n-th task of each row's group in the iteration at `position`, from the end or start; -1 for none.

    By default n is the row's own position in its group and iteration.
    """
    nth = np.full(len(rows), n or 0)
    if n is None:
        number = np.arange(len(group))
        order = np.lexsort((-number if from_end else number, group, iteration))
        is_first = np.ones(len(order), dtype=bool)
        is_first[1:] = (group[order][1:] != group[order][:-1]) | (iteration[order][1:] != iteration[order][:-1])
        position_in_group = np.empty(len(order), dtype=np.int64)
        position_in_group[order] = number - np.maximum.accumulate(np.where(is_first, number, 0))
        nth = position_in_group[rows]
    candidates = np.flatnonzero(iteration == position)
    candidates = candidates[np.argsort(group[candidates], kind="stable")]
    low, high = (np.searchsorted(group[candidates], group[rows], side=side) for side in ("left", "right"))
    index = np.maximum(high - 1 - nth, low) if from_end else np.minimum(low + nth, high - 1)
    return np.where(
        high > low, candidates[np.minimum(index, max(len(candidates) - 1, 0))] if len(candidates) else -1, -1
    )


def _queue_order(graph: KernelGraph, rows: Ints, carried: Edges) -> Edges:
    """Return an edge from the last task of each queue to its first, if no carried edge orders the first task."""
    tasks = graph.tasks
    lane, kind = tasks.lane[rows], tasks.kind[rows]
    has_edge = np.zeros(len(rows), dtype=bool)
    has_edge[carried.target[np.isin(carried.kind, sorted(STREAM_EDGES | {EdgeKind.HOST}))]] = True
    first, last = [], []
    for lane_number in np.unique(lane[(lane >= 0) & (kind != TaskKind.MARK)]).tolist():  # a few queues
        members = np.flatnonzero(lane == lane_number)
        if not has_edge[members[0]]:
            first.append(members[0])
            last.append(members[-1])
    on_device = tasks.device[rows[np.array(first, dtype=np.int64)]] >= 0
    return Edges.of(last, first, kind=np.where(on_device, int(EdgeKind.STREAM), int(EdgeKind.HOST)))


def _anchors(graph: KernelGraph, rows: Ints, targets: Ints) -> Edges:
    """Return edges from the first host call of a rank to its tasks that wait for no other, at the measured distance.

    Parameters
    ----------
    graph : KernelGraph
        The graph.
    rows : array of int64
        Tasks of the cycle.
    targets : array of int64
        Positions in `rows` of the tasks that wait for another.
    """
    tasks = graph.tasks
    is_root = np.ones(len(rows), dtype=bool)
    is_root[targets] = False
    rank = graph.ranks()[rows]
    start = tasks.measured_start_ns[rows]
    anchors, roots, lags = [], [], []
    for root in np.flatnonzero(is_root & (rank >= 0) & ~np.isnan(start)).tolist():  # a few tasks
        earlier = np.flatnonzero((rank == rank[root]) & ~np.isnan(start) & (start <= start[root]))
        on_host = earlier[tasks.device[rows[earlier]] < 0]
        earlier = on_host if len(on_host) else earlier
        anchor = int(earlier[np.argmin(start[earlier])]) if len(earlier) else root
        if anchor != root:
            anchors.append(anchor)
            roots.append(root)
            lags.append(float(start[root] - start[anchor]))
    return Edges.of(anchors, roots, lag_ns=lags, kind=EdgeKind.HANDOFF, from_start=True)


def _launch_queue_edges(graph: KernelGraph, task_rows: Ints, inner: Edges) -> tuple[Edges, Ints]:
    """Return edges by which a launch waits for its launch queue: until enough works of its lane have started.

    The queue of a lane has `KernelGraph.launch_queues` entries. If the trace does not show its length, it has
    `Hardware.launch_queue`, or more if the trace shows more launches waiting; then nodes of launched graphs take no
    entry. Calls that have an edge within the cycle need no other. The second result is the number of cycles from the
    source of each edge to its target.
    """
    depth, lane = graph.hardware.launch_queue, graph.tasks.lane[task_rows]
    is_launch = np.isin(inner.kind, sorted(LAUNCH_EDGES))
    is_launch &= (inner.kind == EdgeKind.LAUNCH) | np.isin(lane[inner.target], list(graph.launch_queues))
    launches, held = np.flatnonzero(is_launch), _held_calls(inner, len(task_rows))
    start, numbers = graph.tasks.measured_start_ns[task_rows], np.unique(lane[inner.target[launches]]).tolist()
    queue, cycles = inner.select(launches[:0]), launches[:0]
    for number in numbers if depth or graph.launch_queues else ():  # a few streams
        of_lane = launches[lane[inner.target[launches]] == number]
        of_lane = of_lane[np.lexsort((start[inner.target[of_lane]], start[inner.source[of_lane]]))]
        call, first = np.unique(inner.source[of_lane], return_index=True)
        order = np.argsort(start[call], kind="stable")
        call, launched = call[order], np.sort(inner.target[of_lane[first]])
        launched = launched[np.argsort(start[launched], kind="stable")]
        slots = graph.launch_queues.get(number)
        if slots is None and depth:
            slots = max(depth, _most_launches_waiting(graph.tasks, task_rows[call], task_rows[launched]))
        waiting = np.flatnonzero(~held[call]) if slots else call[:0]
        back = waiting - (slots or 0)
        edges = Edges.of(launched[back % len(call)], call[waiting], kind=EdgeKind.QUEUE, from_start=True)
        queue, cycles = queue.joined(edges), np.concatenate([cycles, -(back // len(call))])
    return queue, cycles


def _held_calls(inner: Edges, size: int) -> Bools:
    """Return which tasks of a cycle are calls that wait for the launch queue, at their begin or before they return."""
    held = np.zeros(size, dtype=bool)
    held[inner.target[inner.kind == EdgeKind.QUEUE]] = True
    return np.asarray(held | np.isin(np.arange(size), inner.source[(inner.kind == EdgeKind.HOST) & held[inner.target]]))


def _most_launches_waiting(tasks: Tasks, calls: Ints, launched: Ints) -> int:
    """Return the largest number of launches that waited for the device at one time, as measured."""
    called, started = np.sort(tasks.measured_start_ns[calls]), np.sort(tasks.measured_start_ns[launched])
    waiting = np.arange(1, len(called) + 1) - np.searchsorted(started, called, side="right")
    return int(waiting.max(initial=0))


def repeated(graph: KernelGraph, pattern: StepPattern, cycles: int) -> KernelGraph:
    """Return a graph of `cycles` repetitions of a graph's iterations, each joined to the cycles before it.

    Parameters
    ----------
    graph : KernelGraph
        Graph of `pattern`, or another with the same tasks (see `replay.costs.demand.isolate`).
    pattern : StepPattern
        Its iterations as a cycle.
    cycles : int
        Number of cycles, at least 1. The first starts with idle devices and empty queues.
    """
    tasks = pattern.repeated_tasks(graph.tasks, cycles, len(graph.iterations))
    return replace(graph, tasks=tasks, edges=pattern.repeated_edges(cycles), iterations=graph.iterations * cycles)


#: A what-if with its parameters bound.
Change = Callable[[KernelGraph], KernelGraph]

#: A period has settled once it changes by less than this share.
SETTLED = 1e-3
#: Number of cycles at first, and at most. The last cycle is not measured: it only follows the others.
_FIRST_CYCLES, _MOST_CYCLES = 4, 34
#: Number of cycles that most windows need.
USUAL_CYCLES = 6
#: A device that is idle for a smaller share of a step is busy for all of it.
_ALL_BUSY = 0.01


@dataclass(frozen=True)
class SteadyState:
    """Iterations that repeat as a cycle, once its period has settled.

    Parameters
    ----------
    timeline : Timeline
        Timeline of the repeated graph. Its interval is the last cycle but one.
    step_ns : array of float64, shape (iterations of a cycle,)
        Step times: means over the last quarter of the cycles, without the last cycle. Their sum is the period.
    host_period_ns, device_period_ns : float
        Periods of the slowest host thread and of the slowest stream, with their waits.
    settled : bool
        Whether the period changed by less than `SETTLED` from one measurement to the next.
    intervals_ns : array of float64, shape (iterations of a cycle, 2)
        Begin and end of each step in the timeline's interval.
    repeats : bool
        Whether the iterations repeat. A single iteration without a neighbour in the trace does not.
    """

    timeline: Timeline
    step_ns: Floats
    host_period_ns: float
    device_period_ns: float
    settled: bool
    intervals_ns: Floats
    repeats: bool = True

    @property
    def period_ns(self) -> float:
        """Time of a cycle in the steady state."""
        return float(self.step_ns.sum())

    def at_step(self, position: int) -> Timeline:
        """Return the timeline with one step of the cycle as its interval."""
        if not self.repeats:
            return self.timeline
        begin, until = self.intervals_ns[position].tolist()
        return replace(self.timeline, interval=(begin, until))


def steady_states(graph: KernelGraph, pattern: StepPattern | None, changes: Sequence[Change]) -> list[SteadyState]:
    """Return the steady state of repeating iterations under each of `changes`.

    The cycle is repeated 4, 6, 10, 18 and 34 times, until its period changes by less than 0.1 %. A state that has not
    settled by then has `settled` False. There are two beginnings. In the first, host and devices begin together: a host
    that is slower than its devices sets the pace at once. In the second, the devices wait until the hosts have run
    ahead as far as synchronisations and the launch queue allow. A device that is slower than its host then sets the
    pace at once, while from the first beginning its queue could fill slowly.

    Parameters
    ----------
    graph : KernelGraph
        Graph of consecutive iterations.
    pattern : StepPattern, optional
        Pattern of `graph`. None for a single iteration: its step begins with the iteration and ends with its last task,
        since nothing shows what overlaps with the next.
    changes : sequence of callable
        What-ifs, or `unchanged`; each is applied to the repeated graph.

    Raises
    ------
    SeqPointError
        A change refuses the graph, or tasks wait for each other in a circle.
    """
    states = dict(each_steady_state(graph, pattern, changes))
    return [states[i] for i in range(len(changes))]


def each_steady_state(
    graph: KernelGraph, pattern: StepPattern | None, changes: Sequence[Change]
) -> Iterator[tuple[int, SteadyState]]:
    """Yield the number of each change with its steady state, as `steady_states`, once it has settled.

    A caller that keeps no state holds one replayed graph at a time.
    """
    if pattern is None:
        base = _state_of_single(graph)
        for i, change in enumerate(changes):
            yield i, base if change is unchanged else _state_of_single(change(graph), base)
        return
    left, cycles = list(range(len(changes))), _FIRST_CYCLES
    while left:
        cycled, unsettled = repeated(graph, pattern, cycles), []
        for i in left:
            state = _state_of_repeated(changes[i](cycled), len(graph.iterations))
            if state.settled or cycles >= _MOST_CYCLES:
                yield i, state
            else:
                unsettled.append(i)
            del state  # else it would stay beside the next one
        left, cycles = unsettled, 2 * (cycles - 1)


def unchanged(graph: KernelGraph) -> KernelGraph:
    """Return `graph` as it is: the change of the baseline."""
    return graph


def _state_of_single(graph: KernelGraph, base: SteadyState | None = None) -> SteadyState:
    """Return the step of a single iteration, which begins when its streams are done with earlier work.

    Parameters
    ----------
    graph : KernelGraph
        The graph, with a what-if applied if `base` is given.
    base : SteadyState, optional
        State of the unchanged graph. If a device is busy for all of its step, earlier work stays the begin. Otherwise a
        faster host would also have ended the earlier work sooner, and the trace does not show by how much. The step
        then changes as its latency does: the time from the start of the iteration on the host to its completion.
        Behind work that was not recorded the step begins when that is done.
    """
    line = replay(graph)
    free_ns = _unrecorded_end(line)
    begin = min(max(_backlog_end(line), free_ns), line.makespan_ns)
    if base is not None and not free_ns and base.timeline.busy_ns().max(initial=0.0) < (1 - _ALL_BUSY) * base.period_ns:
        begin = line.makespan_ns * base.timeline.begin_ns / base.timeline.until_ns
    line = replace(line, interval=(begin, line.makespan_ns)) if begin else line
    host, device = (max(_last_end(line, on_device=side) - begin, 0.0) for side in (False, True))
    step_ns, intervals = np.array([line.span_ns]), np.array([[line.begin_ns, line.until_ns]])
    return SteadyState(line, step_ns, host, device, settled=True, intervals_ns=intervals, repeats=False)


def _backlog_end(line: Timeline) -> float:
    """Return when the backlog on the streams of the graph's iterations is done; 0 without backlog."""
    tasks = line.graph.tasks
    first = np.full(len(line.graph.lanes) + 1, np.inf)
    rows = np.flatnonzero(tasks.in_iteration & (tasks.device >= 0))
    if len(rows) == (tasks.device >= 0).sum():
        return 0.0
    np.minimum.at(first, tasks.lane[rows], line.start_ns[rows])
    earlier = (
        ~tasks.in_iteration
        & (tasks.device >= 0)
        & (line.start_ns < np.where(np.isinf(first), -np.inf, first)[tasks.lane])
    )
    return float(line.end_ns[earlier].max(initial=0.0))


def _unrecorded_end(line: Timeline) -> float:
    """Return when the devices are done with work that was not recorded, for which the first work of a stream waits.

    It is 0 if a rank does not wait for such work. `profilers.trace.steps` finds it in the same way.
    """
    graph, tasks = line.graph, line.graph.tasks
    edges, ranks = graph.edges.select(graph.edges.kind == EdgeKind.BACKLOG), graph.ranks()
    edges = edges.select((tasks.device[edges.source] < 0) & (edges.lag_ns > BEHIND_UNRECORDED_NS))
    free = dict.fromkeys(np.unique(ranks[tasks.device >= 0]).tolist(), 0.0)
    for source, target in zip(edges.source.tolist(), edges.target.tolist(), strict=True):  # a few streams
        own = graph.on_device() & (ranks == ranks[target]) & tasks.in_iteration
        times = tasks.measured_start_ns[own], tasks.measured_end_ns[own]
        if is_behind_unrecorded(*times, tasks.measured_end_ns[source], tasks.measured_start_ns[target]):
            free[int(ranks[target])] = max(free[int(ranks[target])], float(line.start_ns[target]))
    return min(free.values(), default=0.0)


def _state_of_repeated(graph: KernelGraph, size: int) -> SteadyState:
    """Return the steady state of repeated cycles of `size` iterations, from the better of two beginnings.

    From a common beginning the period is an upper bound: a slow device idles now and then while its launch queue
    fills. The period is exact if a host is the slowest of all queues. Otherwise the graph runs again with devices that
    begin behind their hosts. If that period is shorter, the queue was still filling, and the second run counts.
    """
    same_begin = _state_of_run(replay(graph), size)
    if same_begin.host_period_ns >= (1 - SETTLED) * _slowest_queue_ns(same_begin):
        return same_begin
    tasks, later_ns = graph.tasks, float(same_begin.timeline.end_ns.max())
    is_first = (tasks.iteration == 0) & (tasks.device >= 0)
    later = graph.with_tasks(release_ns=np.where(is_first, tasks.release_ns + later_ns, tasks.release_ns))
    host_ahead = _state_of_run(replay(later), size)
    return same_begin if _slowest_queue_ns(host_ahead) >= (1 - SETTLED) * _slowest_queue_ns(same_begin) else host_ahead


def changed_period_ns(state: SteadyState, change: Change) -> float:
    """Return the period of a state whose graph is changed, with as many cycles."""
    graph = change(state.timeline.graph)
    changed = _state_of_repeated(graph, len(state.step_ns)) if state.repeats else _state_of_single(graph, state)
    return changed.period_ns


def _slowest_queue_ns(state: SteadyState) -> float:
    """Return the period of the slowest thread or stream."""
    return max(state.host_period_ns, state.device_period_ns)


def _state_of_run(line: Timeline, size: int) -> SteadyState:
    """Return the steady state that a replay of repeated cycles of `size` iterations shows."""
    ends = _queue_ends(line)[size - 1 :: size]
    width = max(len(ends) // 4, 1)
    period, before = _queue_periods(ends, width)
    settled = abs(period.max(initial=0.0) - before.max(initial=0.0)) <= SETTLED * period.max(initial=0.0)
    on_device = np.array([lane.device is not None for lane in line.graph.lanes], dtype=bool)
    host, device = (float(period[rows].max(initial=0.0)) for rows in (~on_device, on_device))
    intervals = np.array(steps_of(line))
    step_ns = (intervals[:, 1] - intervals[:, 0])[-(width + 1) * size : -size].reshape(width, size).mean(axis=0)
    interval = (float(intervals[-2 * size, 0]), float(intervals[-size - 1, 1]))
    steps = intervals[-2 * size : -size]
    return SteadyState(replace(line, interval=interval), step_ns, host, device, bool(settled), steps)


def _queue_ends(line: Timeline) -> Floats:
    """Return when each queue ends each iteration, shape (iterations, queues)."""
    tasks, shape = line.graph.tasks, (len(line.graph.iterations), len(line.graph.lanes))
    is_counted = tasks.in_iteration & (tasks.lane >= 0)
    group = np.where(is_counted, tasks.iteration * shape[1] + tasks.lane, -1)
    return np.maximum.accumulate(latest_ends(group, line.end_ns, shape[0] * shape[1]).reshape(shape), axis=0)


def _queue_periods(ends: Floats, width: int) -> tuple[Floats, Floats]:
    """Return each queue's mean cycle time over the last `width` cycles but one, and over as many before them.

    `ends` holds when each queue ends each cycle, shape (cycles, queues).
    """
    last, middle, first = ends[-2], ends[-2 - width], ends[-2 - 2 * width]
    used = np.isfinite(first)
    with np.errstate(invalid="ignore"):
        recent, before = (last - middle) / width, (middle - first) / width
    return np.where(used, recent, 0.0), np.where(used, before, 0.0)


def _last_end(line: Timeline, *, on_device: bool) -> float:
    """Return when the last host call, or the last device task, of the iterations ends."""
    tasks = line.graph.tasks
    rows = tasks.in_iteration & (tasks.kind != TaskKind.MARK) & ((tasks.device >= 0) == on_device)
    return float(line.end_ns[rows].max(initial=0.0))


def steps_of(line: Timeline) -> list[tuple[float, float]]:
    """Return the interval of each step: from the previous completion to the iteration's own, over all ranks.

    The first begins at the graph's origin.
    """
    ends = line.completions_ns()
    return list(zip(np.append(0.0, ends[:-1]).tolist(), ends.tolist(), strict=True))
