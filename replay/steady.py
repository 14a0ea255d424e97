"""`steady_states`: how long steps take when iterations repeat, and which side sets the pace."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from replay.engine import simulate
from replay.graph import HOST_TIME_EDGES, KernelGraph, TaskKind
from replay.repeat import Pattern, repeated
from replay.timeline import Timeline

__all__ = ["SETTLED", "USUAL_CYCLES", "SteadyState", "room", "steady_states", "steps_of", "unchanged", "without"]

Floats = npt.NDArray[np.float64]
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
