"""Projecting what-ifs over windows of steps.

Notes of several iterations, each told once.

The graph with its own delays replaced by typical ones: a replay that has to predict.

`StepWindow`: consecutive iterations that are replayed together, and which of their steps are asked for.

Projections: what a what-if would gain, how sure that is, and what it rests on.
"""

import math
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import fsum
from typing import Any

import numpy as np

from profilers.errors import InvalidInputError
from profilers.trace.arrays import Floats
from profilers.trace.trace import TraceMeta
from replay.analysis.pace import PACE_RESOURCES, pace
from replay.calibration.parameters import Parameters
from replay.costs.demand import isolate
from replay.engine.steady import USUAL_CYCLES, Change, Pattern, SteadyState, pattern_of, steady_states, unchanged
from replay.engine.timeline import Timeline
from replay.graph.graph import HOST_TIME_EDGES, LAUNCH_EDGES, SYNC_EDGES, Basis, EdgeKind, KernelGraph
from replay.projection.provenance import QUANTILES, provenance_of
from replay.projection.sweep import Steps, jobs_for, sweep
from replay.what_ifs.what_if import WhatIf, check_patterns

_NUMBER = re.compile(r"(?<![\w.])\d+(?![\w.])")


def joined_notes(notes: Sequence[Sequence[str]], iterations: Sequence[int] = ()) -> tuple[str, ...]:
    """Return notes that differ only in whole numbers as one, with the range of these and the iterations it holds for.

    Parameters
    ----------
    notes : sequence of sequence of str
        Of each iteration.
    iterations : sequence of int
        Their numbers, as many; empty where they have none.

    Examples
    --------
    >>> joined_notes([["change_dtype: 12 kernels in fp32"], ["change_dtype: 9 kernels in fp32", "odd"]], [4, 5])
    ('change_dtype: 9 to 12 kernels in fp32 (each of 2 iterations)', 'odd (iteration 5)')
    >>> joined_notes([["12 kernels"]])
    ('12 kernels',)
    """
    found: dict[str, dict[int, str]] = {}
    for place, several in enumerate(notes):
        for note in several:
            found.setdefault(_NUMBER.sub("#", note), {}).setdefault(place, note)
    return tuple(_joined(same, len(notes), iterations) for same in found.values())


def _joined(same: dict[int, str], n: int, iterations: Sequence[int]) -> str:
    numbers = [[int(number) for number in _NUMBER.findall(note)] for note in same.values()]
    ranges = iter([(min(column), max(column)) for column in zip(*numbers, strict=True)])

    def shown(_: re.Match[str]) -> str:
        low, high = next(ranges)
        return str(low) if low == high else f"{low} to {high}"

    text = _NUMBER.sub(shown, next(iter(same.values())))
    if n == 1:
        return text
    if len(same) == n:
        return f"{text} (each of {n} iterations)"
    if not iterations:
        return f"{text} ({len(same)} of {n} iterations)"
    names = ", ".join(str(iterations[place]) for place in same)
    return f"{text} (iteration{'s' * (len(same) > 1)} {names})"


_ON_DEVICE = (
    EdgeKind.STREAM,
    EdgeKind.LAUNCH,
    EdgeKind.GRAPH_LAUNCH,
    EdgeKind.WAIT,
    EdgeKind.WAIT_INFERRED,
    EdgeKind.SYNC,
    EdgeKind.SYNC_INFERRED,
)


def with_typical_lags(graph: KernelGraph) -> KernelGraph:
    """Return `graph` with every delay between host and device, and between device tasks, at its kind's median.

    Replaying an unchanged graph returns the measured times because each edge carries the delay that was seen
    on it. Here it carries what is usual for its kind (nodes of a launched graph apart, which follow each other
    faster), so the error of the replay shows how much of the timeline the graph explains by order, launches,
    waits and durations. What stays is the host's own time between calls, since it is the program's work, with
    the pauses that stand for it; and the pauses that stand for work which the recording does not hold
    (`EdgeKind.BACKLOG`, `EdgeKind.GRAPH_GAP`): those are not predicted, and `Timeline.unexplained_ns` counts them.
    """
    edges = graph.edges
    lag = edges.lag_ns.copy()
    node = np.zeros(len(graph.tasks), dtype=bool)
    node[edges.target[edges.kind == EdgeKind.GRAPH_LAUNCH]] = True
    for kind in _ON_DEVICE:
        chosen = (edges.kind == kind) & ~(edges.from_start & (edges.kind == EdgeKind.STREAM))
        # An edge without a delay is one that only might bind, as from work that had ended before a synchronisation.
        chosen &= edges.lag_ns > 0 if kind in SYNC_EDGES else chosen
        for rows in (chosen & node[edges.target], chosen & ~node[edges.target]):
            if rows.any():
                lag[rows] = np.median(lag[rows])
    return replace(graph, edges=replace(edges, lag_ns=lag))


@dataclass(frozen=True)
class StepWindow:
    """Consecutive iterations that are replayed together, and which of their steps are asked for.

    Parameters
    ----------
    graph : KernelGraph
        Of the iterations asked for and of those before them that the hosts had not waited for.
    pattern : Pattern, optional
        How they repeat; None for a single iteration without a neighbour in the trace.
    chosen : tuple of int
        Positions in `KernelGraph.iterations` of the steps asked for.
    weights : tuple of float
        How many steps each of these stands for.
    measured_ns : tuple of float
        Their step times as measured; zeros if nobody measured them.
    """

    graph: KernelGraph
    pattern: Pattern | None
    chosen: tuple[int, ...]
    weights: tuple[float, ...]
    measured_ns: tuple[float, ...]

    @classmethod
    def of(
        cls, graph: KernelGraph, chosen: Sequence[int], *, weights: Sequence[float], measured_ns: Sequence[float]
    ) -> "StepWindow":
        """Return the window of a graph, with how its iterations repeat."""
        return cls(graph, pattern_of(graph), tuple(chosen), tuple(weights), tuple(measured_ns))

    @classmethod
    def alone(cls, graph: KernelGraph, weight: float = 1.0) -> "StepWindow":
        """Return the window of a graph of one iteration whose neighbours nobody knows."""
        return cls(graph, None, (0,), (weight,), (graph.measured_ns,))

    @property
    def measured_total_ns(self) -> float:
        """The measured step times, weighted."""
        return fsum(w * m for w, m in zip(self.weights, self.measured_ns, strict=True))

    def isolated(self, parameters: Parameters) -> "StepWindow":
        """Return the window with durations from which `parameters` take the measured contention."""
        return replace(self, graph=isolate(self.graph, parameters))

    def steady(self, change: Change = unchanged) -> SteadyState:
        """Return the steady state of its iterations, unchanged or as `change` leaves them."""
        return self.steady_all([change])[0]

    def steady_all(self, changes: Sequence[Change]) -> list[SteadyState]:
        """Return the steady states of its iterations as each change leaves them."""
        return steady_states(self.graph, self.pattern, changes)

    def total_ns(self, state: SteadyState) -> float:
        """Return the step times asked for in a steady state, weighted."""
        return fsum(w * float(state.step_ns[at]) for w, at in zip(self.weights, self.chosen, strict=True))


#: Sums of times up to this are finite; whatever is longer is a mistake.
_LONGEST_NS = 1e100
#: A time that is shorter counts as this long, so that nothing is divided by zero.
_SHORTEST_NS = 1e-9
#: A speed-up this far below 1 is a loss.
_SLOWER = 1e-6
_UNSETTLED = "{}: the time of a step had not settled when it was cut off"
_HIDDEN = "these steps take no time: longer work of an earlier step hides them, and what-ifs gain nothing there"
_HOST_LAGS = sorted(HOST_TIME_EDGES | LAUNCH_EDGES)


@dataclass(frozen=True)
class ProjectionOptions:
    """How the interval is found.

    Parameters
    ----------
    draws : int
        Of the parameters, from their ranges.
    seed : int
    progress : callable, optional
        Called with (steps done, steps in all, what) as draws are done.
    iterations : sequence of int
        Numbers of the first iteration asked for of each window, for notes that hold for some.
    jobs : int
        Draws at a time; 0: one a core, as far as the memory that is free allows.
    """

    draws: int = 32
    seed: int = 0
    progress: Callable[[int, int, str], None] | None = None
    iterations: Sequence[int] = ()
    jobs: int = 0


@dataclass(frozen=True)
class ProjectionRow:
    """One what-if.

    Parameters
    ----------
    what_if : tuple of str
        Its parts.
    projected_ns : float
        Weighted sum of the step times.
    speedup : float
        Baseline over projected.
    low, high : float
        Central 90 % of the speed-up over the draws of the parameters, widened by the error of the replay and by how
        much the unchanged steady state differs from what was measured.
    measured_share, derived_share, assumed_share : float
        Of the time of all tasks, by what their duration rests on; they add up to 1. A task counts with its time before
        or after the what-if, whichever is longer, so that what is taken away counts; a task that is gone, and what
        changed of lags on the host and from launches, are assumed.
    notes : tuple of str
    title : str
        What a plan file calls it.
    """

    what_if: tuple[str, ...]
    projected_ns: float
    speedup: float
    low: float
    high: float
    measured_share: float
    derived_share: float
    assumed_share: float
    notes: tuple[str, ...] = ()
    title: str = ""

    @property
    def label(self) -> str:
        """Its title, or its parts in one line: what `Projection.timelines` has it under."""
        return self.title or "+".join(self.what_if)


@dataclass(frozen=True)
class Projection:
    """What-ifs over the same iterations.

    Parameters
    ----------
    baseline_ns : float
        The step times that speed-ups count from, weighted: as measured, or as replayed where nobody measured them.
    measured_ns : float
        The step times as measured, weighted.
    steady_ns : float
        The step times in the steady state of the unchanged iterations, weighted. An iteration that does not repeat,
        since the trace holds no neighbour of it, counts as measured.
    rows : tuple of ProjectionRow
    provenance : mapping
        All that is needed to compute the same numbers again.
    pace : mapping of str to float
        Shares of the critical path of the steps, by `replay.analysis.PACE_RESOURCES`: what sets their time.
    pace_by_rank : mapping of int to float
        The same shares by rank.
    room : mapping of str to float
        By which share ``"host"`` and ``"device"`` could take longer before the steps would.
    bound : mapping of str to float
        How many times as fast the steps would be if ``"host"`` or ``"device"`` took no time.
    timelines : mapping of str to Timeline
        Of the first step asked for, in the steady state: ``"baseline"``, and one a what-if by its name.
    """

    baseline_ns: float
    measured_ns: float
    steady_ns: float
    rows: tuple[ProjectionRow, ...]
    provenance: dict[str, Any]
    pace: dict[str, float] = field(default_factory=dict)
    pace_by_rank: dict[int, float] = field(default_factory=dict)
    room: dict[str, float] = field(default_factory=dict)
    bound: dict[str, float] = field(default_factory=dict)
    timelines: dict[str, Timeline] = field(default_factory=dict)

    @property
    def device_busy_share(self) -> float | None:
        """How much of the first step its devices work, on average; None where it has no device."""
        line = self.timelines["baseline"]
        busy = line.busy_ns()
        return float(min(busy.mean() / line.span_ns, 1.0)) if len(busy) and line.span_ns else None


def project(
    windows: Sequence[StepWindow],
    what_ifs: Sequence[WhatIf],
    *,
    meta: TraceMeta,
    parameters: Parameters,
    options: ProjectionOptions | None = None,
) -> Projection:
    """Return what each what-if would gain over the weighted steps of some windows.

    A projected step time is the measured one times the ratio of two steady states of its window: as the what-if leaves
    it, and unchanged. A draw is one run: its parameters take the contention out of each graph, and every what-if is
    applied to that. The numbers are the same, bit for bit, however many threads there are.

    Parameters
    ----------
    windows : sequence of StepWindow
        Steps to project, isolated by `parameters`.
    what_ifs : sequence of WhatIf
        What-ifs, each on its own.
    meta : TraceMeta
        Facts of the trace that the graphs are from, for the provenance.
    parameters : Parameters
        Nominal parameters, with the calibrations that what-ifs use.
    options : ProjectionOptions, optional
        How the interval is found.

    Raises
    ------
    SeqPointError
        There is no window, a weight is not above zero, or a what-if cannot be applied or names a kernel that no graph
        has.
    """
    options = options or ProjectionOptions()
    _check(windows, what_ifs)
    cycles = max(1 if window.pattern is None else USUAL_CYCLES for window in windows)
    jobs = jobs_for([window.graph for window in windows], options.jobs, cycles=cycles)
    base = _Base.of(windows, sweep([window.steady for window in windows], jobs, Steps(0)))
    drawn = _draws(parameters, options)
    steps = Steps((len(what_ifs) + 1) * len(windows) * options.draws, options.progress)
    after = sweep([partial(_nominal, what_if, base, parameters) for what_if in what_ifs], jobs, Steps(0))
    runs = [partial(_draw, base, what_ifs, draw, steps) for draw in drawn] if what_ifs else []
    samples = np.array(sweep(runs, jobs, steps), dtype=np.float64).reshape(len(runs), len(what_ifs))
    error = 1 + np.array([draw["replay_error"] for draw in drawn])
    rows, timelines = [], {"baseline": base.first.cut()}
    for i, (what_if, found) in enumerate(zip(what_ifs, after, strict=True)):
        rows.append(_row(what_if, base, found, samples[:, i] * error, options.iterations))
        timelines[what_if.label] = found.first.cut()
    measured = math.fsum(window.measured_total_ns for window in windows)
    provenance = provenance_of(
        meta, list(timelines.values()), what_ifs, parameters, draws=options.draws, seed=options.seed
    )
    provenance |= {"step_time": _notion(windows)}
    totals = (base.total_ns, measured, base.repeated_ns())
    by_resource, by_rank, room, bound = _pace(base)
    return Projection(*totals, tuple(rows), provenance, by_resource, by_rank, room, bound, timelines)


def _pace(base: "_Base") -> tuple[dict[str, float], dict[int, float], dict[str, float], dict[str, float]]:
    """Return what sets the time of the steps asked for, by resource and by rank, and room and bound of both sides."""
    spent, ranks = dict.fromkeys(PACE_RESOURCES, 0.0), defaultdict[int, float](float)
    room, freed, total = {"host": 0.0, "device": 0.0}, {"host": 0.0, "device": 0.0}, 0.0
    for window, state in zip(base.windows, base.states, strict=True):
        for at, weight in zip(window.chosen, window.weights, strict=True):
            found = pace(state, at)
            total += weight * found.step_ns
            for name, ns in found.by_resource.items():
                spent[name] += weight * ns
            for rank, ns in found.by_rank.items():
                ranks[rank] += weight * ns
            room["host"] += weight * found.step_ns * found.host_room
            room["device"] += weight * found.step_ns * found.device_room
            freed["host"] += weight * found.step_ns / found.host_bound
            freed["device"] += weight * found.step_ns / found.device_bound
    if not total:
        return {}, {}, {}, {}
    return (
        {name: ns / total for name, ns in spent.items() if ns},
        {rank: ns / total for rank, ns in sorted(ranks.items()) if rank >= 0},
        {name: ns / total for name, ns in room.items()},
        {name: total / ns if ns else 1.0 for name, ns in freed.items()},
    )


def _notion(windows: Sequence[StepWindow]) -> str:
    """Return what the times of a projection are."""
    alone = sum(window.pattern is None for window in windows)
    if not alone:
        return "between completions"
    return "latency" if alone == len(windows) else "between completions; latency where an iteration has no neighbour"


@dataclass(frozen=True)
class _Base:
    """The windows unchanged: their steady states, the weighted step times in them, and those that gains count from."""

    windows: Sequence[StepWindow]
    states: Sequence[SteadyState]
    steady_ns: list[float]
    base_ns: list[float]

    @classmethod
    def of(cls, windows: Sequence[StepWindow], states: Sequence[SteadyState]) -> "_Base":
        steady = [window.total_ns(state) for window, state in zip(windows, states, strict=True)]
        base = [window.measured_total_ns or ns for window, ns in zip(windows, steady, strict=True)]
        return cls(windows, states, steady, base)

    @property
    def total_ns(self) -> float:
        return math.fsum(self.base_ns)

    @property
    def first(self) -> Timeline:
        return self.states[0].at_step(self.windows[0].chosen[0])

    def scaled(self, changed: Sequence[float], steady: Sequence[float]) -> float:
        """Return the sum of the base times, each times its changed over its steady time.

        Steps that take no time, since longer work of an earlier one hides them, take none either way.
        """
        return math.fsum(b * c / s if s else b for b, c, s in zip(self.base_ns, changed, steady, strict=True))

    def repeated_ns(self) -> float:
        """Return the sum of the steady states of windows that repeat, and of the base times of the others."""
        both = zip(self.windows, self.steady_ns, self.base_ns, strict=True)
        return math.fsum(base if window.pattern is None else steady for window, steady, base in both)

    def off(self) -> float:
        """Return by which share the steady state of windows that repeat differs from what was measured."""
        ratio = self.repeated_ns() / self.total_ns if self.total_ns else 1.0
        return max(ratio, 1 / ratio) - 1 if ratio else 0.0


@dataclass(frozen=True)
class _Found:
    """A what-if under nominal parameters: by window the weighted step times, time by `Basis`, and notes."""

    totals: list[float]
    spent: list[Floats]
    notes: list[tuple[str, ...]]
    first: Timeline


def _nominal(what_if: WhatIf, base: _Base, nominal: Parameters) -> _Found:
    totals, spent, notes, first = [], [], [], None
    own = nominal.with_values(what_if.parameters)
    for window, before, base_ns in zip(base.windows, base.states, base.base_ns, strict=True):
        window = window.isolated(own) if what_if.parameters else window
        state = _applied(what_if, window, own)
        total = window.total_ns(state)
        first = first or state.at_step(window.chosen[0])
        if not total <= _LONGEST_NS:
            raise InvalidInputError(f"what-if {what_if.label[:80]}: a projected time of {total:.3g} ns")
        totals.append(total)
        spent.append(_spent(before.timeline, state.timeline))
        settled = state.settled and before.settled
        said = [*([] if settled else [_UNSETTLED.format(what_if.label)]), *([] if base_ns else [_HIDDEN])]
        # A repeated graph would count each kernel once a cycle.
        once = state.timeline.graph if window.pattern is None else what_if(window.graph, own)
        notes.append((*once.notes, *said))
    assert first is not None
    return _Found(totals, spent, notes, first)


def _draw(base: _Base, what_ifs: Sequence[WhatIf], parameters: Parameters, steps: Steps) -> list[float]:
    """Return what each what-if comes to under one draw of the parameters; one graph is in memory at a time."""
    totals = []
    for window, nominal in zip(base.windows, base.steady_ns, strict=True):
        steps.next("durations without contention")
        plain = window.isolated(parameters)
        # A single iteration replays as measured whatever the parameters.
        alike = [] if plain.pattern is None else [unchanged]
        shared = [what_if for what_if in what_ifs if not what_if.parameters]
        states = plain.steady_all([*alike, *(_change(what_if, parameters, steps) for what_if in shared)])
        found = [plain.total_ns(state) for state in states]
        steady = found.pop(0) if alike else nominal
        of_shared = iter(found)
        for_each = []
        for what_if in what_ifs:
            if what_if.parameters:
                own = parameters.with_values(what_if.parameters)
                state = window.isolated(own).steady(_change(what_if, own, steps))
                for_each.append(window.total_ns(state))
            else:
                for_each.append(next(of_shared))
        totals.append((steady, for_each))
    steady_ns = [steady for steady, _ in totals]
    return [base.scaled([each[i] for _, each in totals], steady_ns) for i in range(len(what_ifs))]


def _change(what_if: WhatIf, parameters: Parameters, steps: Steps) -> Change:
    counted = False

    def change(graph: KernelGraph) -> KernelGraph:
        nonlocal counted
        if not counted:  # it is applied again where the period settles slowly
            steps.next(what_if.label)
            counted = True
        return what_if(graph, parameters)

    return change


def _weighted(weights: Sequence[float], values: Sequence[float]) -> float:
    """Return the weighted sum, rounded once: the same on every machine."""
    return math.fsum(w * v for w, v in zip(weights, values, strict=True))


def _check(windows: Sequence[StepWindow], what_ifs: Sequence[WhatIf]) -> None:
    if not windows:
        raise InvalidInputError("there is no iteration to project")
    for window in windows:
        if not all(w > 0 for w in window.weights):
            raise InvalidInputError(f"iterations need weights above zero, not {list(window.weights)}")
    for what_if in what_ifs:
        check_patterns(what_if, [window.graph for window in windows])


def _draws(nominal: Parameters, options: ProjectionOptions) -> list[Parameters]:
    random = np.random.default_rng(options.seed)
    return [nominal.drawn(random) for _ in range(options.draws)]


def _applied(what_if: WhatIf, window: StepWindow, parameters: Parameters) -> SteadyState:
    return window.steady(lambda graph: what_if(graph, parameters))


def _row(what_if: WhatIf, base: _Base, found: _Found, samples: Floats, iterations: Sequence[int]) -> ProjectionRow:
    notes = joined_notes(found.notes, iterations)
    projected = base.scaled(found.totals, base.steady_ns)
    total = max(base.total_ns, _SHORTEST_NS)
    speedups = np.append(total / np.maximum(samples, _SHORTEST_NS), total / max(projected, _SHORTEST_NS))
    low, high = np.quantile(speedups, QUANTILES)
    speedup, off = float(speedups[-1]), base.off()
    if speedup < 1 - _SLOWER:
        notes = (*notes, f"{what_if.label}: slower than doing nothing")
    return ProjectionRow(
        what_if.steps,
        projected,
        speedup,
        min(float(low), speedup) / (1 + off),
        max(float(high), speedup) * (1 + off),
        *_shares(found.spent, base.windows),
        notes=notes,
        title=what_if.title,
    )


def _spent(before: Timeline, after: Timeline) -> Floats:
    """Return the time of the iteration's own tasks before or after, whichever is longer, added up by `Basis`.

    Tasks are known again by their event, since a what-if may drop some; what is gone, and by how much the lags on the
    host and from launches changed, is assumed.
    """
    tasks = after.graph.tasks
    count = 2 + max(int(line.graph.tasks.event.max(initial=-1)) for line in (before, after))
    lost = np.maximum(_by_event(before, count) - _by_event(after, count), 0.0)
    basis = np.full(count, -1)
    np.maximum.at(basis, tasks.event + 1, tasks.basis)
    spent = np.bincount(tasks.basis, weights=_own_time(after), minlength=len(Basis))
    spent += np.bincount(np.where(basis < 0, int(Basis.ASSUMED), basis), weights=lost, minlength=len(Basis))
    spent[Basis.ASSUMED] += np.abs(_lags(before.graph, count) - _lags(after.graph, count)).sum()
    return np.asarray(spent, dtype=np.float64)


def _own_time(line: Timeline) -> Floats:
    return np.where(line.graph.tasks.own, line.end_ns - line.start_ns, 0.0)


def _by_event(line: Timeline, count: int) -> Floats:
    """Return the time of all tasks of each event, those of none first."""
    return np.asarray(np.bincount(line.graph.tasks.event + 1, weights=_own_time(line), minlength=count))


def _lags(graph: KernelGraph, count: int) -> Floats:
    """Return the lags on the host and from launches, added up by the event that they count from."""
    edges, own = graph.edges, graph.tasks.own
    lag = np.where(np.isin(edges.kind, _HOST_LAGS) & own[edges.source], edges.lag_ns, 0.0)
    return np.asarray(np.bincount(graph.tasks.event[edges.source] + 1, weights=lag, minlength=count))


def _shares(spent: Sequence[Floats], windows: Sequence[StepWindow]) -> tuple[float, float, float]:
    """Return the share of all tasks' time that rests on each `Basis`."""
    weights = [math.fsum(window.weights) for window in windows]
    times = [_weighted(weights, [float(one[i]) for one in spent]) for i in range(len(Basis))]
    total = math.fsum(times)
    measured, derived, assumed = (time / total for time in times) if total else (1.0, 0.0, 0.0)
    return measured, derived, assumed


def with_provenance(projection: Projection, more: dict[str, Any]) -> Projection:
    """Return `projection` with `more` in its provenance."""
    return replace(projection, provenance={**projection.provenance, **more})
