"""Projections: the speed-up of each what-if, with its interval and its provenance.

`StepWindow` holds consecutive iterations that are replayed together. `project` takes windows and what-ifs. It computes
the steady state of each window unchanged and under each what-if, with nominal parameters and again with every draw of
the parameters. The draws give the interval. The sum over windows is weighted.
"""

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
from replay.engine.steady import USUAL_CYCLES, Change, Pattern, SteadyState, cycle_of, steady_states, unchanged
from replay.engine.timeline import Timeline
from replay.graph.graph import HOST_TIME_EDGES, LAUNCH_EDGES, SYNC_EDGES, Basis, EdgeKind, KernelGraph
from replay.projection.provenance import QUANTILES, provenance_of
from replay.projection.sweep import Steps, jobs_for, sweep
from replay.what_ifs.what_if import WhatIf, check_choices

_NUMBER = re.compile(r"(?<![\w.])\d+(?![\w.])")


def joined_notes(notes: Sequence[Sequence[str]], iterations: Sequence[int] = ()) -> tuple[str, ...]:
    """Return the notes of several iterations, with notes that differ only in whole numbers joined into one.

    A joined note has the range of each number, and the iterations it holds for.

    Parameters
    ----------
    notes : sequence of sequence of str
        Notes of each iteration.
    iterations : sequence of int
        Number of each iteration; empty if they have none.

    Examples
    --------
    >>> joined_notes([["change_dtype: 12 kernels in fp32"], ["change_dtype: 9 kernels in fp32", "odd"]], [4, 5])
    ('change_dtype: 9 to 12 kernels in fp32 (each of 2 iterations)', 'odd (iteration 5)')
    >>> joined_notes([["12 kernels"]])
    ('12 kernels',)
    """
    by_text: dict[str, dict[int, str]] = {}
    for position, of_iteration in enumerate(notes):
        for note in of_iteration:
            by_text.setdefault(_NUMBER.sub("#", note), {}).setdefault(position, note)
    return tuple(_join_note(alike, len(notes), iterations) for alike in by_text.values())


def _join_note(by_position: dict[int, str], n: int, iterations: Sequence[int]) -> str:
    """Return one of the joined notes, with ranges of its numbers and the iterations it holds for."""
    numbers = [[int(number) for number in _NUMBER.findall(note)] for note in by_position.values()]
    ranges = iter([(min(column), max(column)) for column in zip(*numbers, strict=True)])

    def shown(_: re.Match[str]) -> str:
        low, high = next(ranges)
        return str(low) if low == high else f"{low} to {high}"

    text = _NUMBER.sub(shown, next(iter(by_position.values())))
    if n == 1:
        return text
    if len(by_position) == n:
        return f"{text} (each of {n} iterations)"
    if not iterations:
        return f"{text} ({len(by_position)} of {n} iterations)"
    names = ", ".join(str(iterations[position]) for position in by_position)
    return f"{text} (iteration{'s' * (len(by_position) > 1)} {names})"


#: Edges whose lag is a delay between host and device, or between device tasks.
_DELAYS = (
    EdgeKind.STREAM,
    EdgeKind.LAUNCH,
    EdgeKind.GRAPH_LAUNCH,
    EdgeKind.WAIT,
    EdgeKind.WAIT_INFERRED,
    EdgeKind.SYNC,
    EdgeKind.SYNC_INFERRED,
)


def with_typical_lags(graph: KernelGraph) -> KernelGraph:
    """Return `graph` with every delay between host and device, and between device tasks, at the median of its kind.

    Replaying an unchanged graph returns the measured times because each edge has its measured delay. With the median
    of its kind instead, the error of the replay shows how much of the timeline order, launches, waits and durations
    explain. Nodes of a launched graph have a median of their own, since they follow each other faster. The time between
    host calls stays, since it is the program's work. So do the pauses for work that the recording does not hold
    (`EdgeKind.BACKLOG`, `EdgeKind.GRAPH_GAP`), which `Timeline.unexplained_ns` counts.
    """
    edges = graph.edges
    lag = edges.lag_ns.copy()
    is_node = np.zeros(len(graph.tasks), dtype=bool)
    is_node[edges.target[edges.kind == EdgeKind.GRAPH_LAUNCH]] = True
    for kind in _DELAYS:
        of_kind = (edges.kind == kind) & ~(edges.from_start & (edges.kind == EdgeKind.STREAM))
        # An edge without a delay only might bind, as from work that had ended before a synchronisation.
        of_kind &= edges.lag_ns > 0 if kind in SYNC_EDGES else of_kind
        for rows in (of_kind & is_node[edges.target], of_kind & ~is_node[edges.target]):
            if rows.any():
                lag[rows] = np.median(lag[rows])
    return replace(graph, edges=replace(edges, lag_ns=lag))


@dataclass(frozen=True)
class StepWindow:
    """Consecutive iterations that are replayed together, and the steps asked for.

    Parameters
    ----------
    graph : KernelGraph
        Graph of the iterations asked for, and of earlier ones whose device work was not done when they started.
    pattern : Pattern, optional
        Pattern in which the iterations repeat; None for a single iteration without a neighbour in the trace.
    chosen : tuple of int
        Positions in `KernelGraph.iterations` of the steps asked for.
    weights : tuple of float
        Number of steps that each of these stands for.
    measured_ns : tuple of float
        Measured step time of each; 0 if it was not measured.
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
        """Return the window of a graph, with the pattern of its iterations."""
        return cls(graph, cycle_of(graph), tuple(chosen), tuple(weights), tuple(measured_ns))

    @classmethod
    def alone(cls, graph: KernelGraph, weight: float = 1.0) -> "StepWindow":
        """Return the window of a graph of a single iteration, without neighbours."""
        return cls(graph, None, (0,), (weight,), (graph.measured_ns,))

    @property
    def measured_total_ns(self) -> float:
        """Weighted sum of the measured step times."""
        return fsum(w * m for w, m in zip(self.weights, self.measured_ns, strict=True))

    def isolated(self, parameters: Parameters) -> "StepWindow":
        """Return the window with isolated durations under `parameters`."""
        return replace(self, graph=isolate(self.graph, parameters))

    def steady(self, change: Change = unchanged) -> SteadyState:
        """Return the steady state of the window's iterations under `change`."""
        return self.steady_all([change])[0]

    def steady_all(self, changes: Sequence[Change]) -> list[SteadyState]:
        """Return the steady state of the window's iterations under each change."""
        return steady_states(self.graph, self.pattern, changes)

    def total_ns(self, state: SteadyState) -> float:
        """Return the weighted sum of the steps asked for, in a steady state."""
        return fsum(w * float(state.step_ns[position]) for w, position in zip(self.weights, self.chosen, strict=True))


#: A longer projected time is a mistake; sums of times up to this are finite.
_LONGEST_NS = 1e100
#: Shorter times count as this long, so that nothing is divided by zero.
_SHORTEST_NS = 1e-9
#: A speed-up this far below 1 is a loss.
_SLOWER = 1e-6
_UNSETTLED = "{}: the time of a step had not settled when it was cut off"
_HIDDEN = "these steps take no time: longer work of an earlier step hides them, and what-ifs gain nothing there"
_HOST_LAGS = sorted(HOST_TIME_EDGES | LAUNCH_EDGES)


@dataclass(frozen=True)
class ProjectionOptions:
    """Options of a projection: how its interval is found.

    Parameters
    ----------
    draws : int
        Number of draws of the parameters from their ranges.
    seed : int
        Seed of the draws.
    progress : callable, optional
        Called with (steps done, steps in all, what) before each step.
    iterations : sequence of int
        Number of the first iteration asked for in each window, for notes that hold for some windows.
    jobs : int
        Number of draws at a time; 0 for one a core, as far as the free memory allows.
    """

    draws: int = 32
    seed: int = 0
    progress: Callable[[int, int, str], None] | None = None
    iterations: Sequence[int] = ()
    jobs: int = 0


@dataclass(frozen=True)
class ProjectionRow:
    """Projection of one what-if.

    Parameters
    ----------
    what_if : tuple of str
        Parts of the what-if, such as ``scale_host:0.5``.
    projected_ns : float
        Weighted sum of the projected step times.
    speedup : float
        Baseline over projected time.
    low, high : float
        Ends of the central 90 % of the speed-up over the draws of the parameters. They are widened by the error of the
        replay, and by the difference between the unchanged steady state and the measurement.
    measured_share, derived_share, assumed_share : float
        Shares of the time of all tasks by the basis of their duration; they add up to 1. A task counts with the longer
        of its times before and after the what-if. Tasks that are gone, and changes of lags on the host and from
        launches, are assumed.
    notes : tuple of str
        Notes of the what-if, for people.
    title : str
        Title in a plan file.
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
        """Title of the what-if, or its parts in one line; its key in `Projection.timelines`."""
        return self.title or "+".join(self.what_if)


@dataclass(frozen=True)
class Projection:
    """Projections of what-ifs over the same iterations.

    Parameters
    ----------
    baseline_ns : float
        Weighted sum of the step times that speed-ups count from: measured, or replayed if they were not measured.
    measured_ns : float
        Weighted sum of the measured step times.
    steady_ns : float
        Weighted sum of the step times in the unchanged steady state. An iteration that does not repeat, since the trace
        holds no neighbour of it, counts as measured.
    rows : tuple of ProjectionRow
        One row a what-if.
    provenance : mapping
        All that is needed to compute the same numbers again.
    pace : mapping of str to float
        Shares of the critical path of the steps, by `replay.analysis.PACE_RESOURCES`.
    pace_by_rank : mapping of int to float
        Shares of the critical path of the steps, by rank.
    room : mapping of str to float
        Shares by which ``"host"`` and ``"device"`` could become slower without making the steps longer.
    bound : mapping of str to float
        How many times as fast the steps would be if ``"host"`` or ``"device"`` took no time.
    timelines : mapping of str to Timeline
        Timelines of the first step asked for, in the steady state: ``"baseline"``, and one a what-if by its label.
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
        """Busy share of the devices during the first step, on average; None without a device."""
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
    """Return the projection of each what-if over the weighted steps of `windows`.

    A projected step time is the measured one times the ratio of two steady states of its window: under the what-if,
    and unchanged. A draw is one run: its parameters give the isolated durations, and every what-if is applied to them.
    The numbers are the same, bit for bit, for any number of threads.

    Parameters
    ----------
    windows : sequence of StepWindow
        Windows of steps, isolated by `parameters`.
    what_ifs : sequence of WhatIf
        What-ifs to project, each on its own.
    meta : TraceMeta
        Metadata of the trace, for the provenance.
    parameters : Parameters
        Nominal parameters, with the calibrations that what-ifs use.
    options : ProjectionOptions, optional
        Draws, seed and jobs.

    Raises
    ------
    SeqPointError
        There is no window, a weight is not above zero, or a what-if cannot be applied or names a kernel that no graph
        has.
    """
    options = options or ProjectionOptions()
    _check_inputs(windows, what_ifs, parameters)
    cycles = max(1 if window.pattern is None else USUAL_CYCLES for window in windows)
    jobs = jobs_for([window.graph for window in windows], options.jobs, cycles=cycles)
    base = _Baseline.of(windows, sweep([window.steady for window in windows], jobs, Steps(0)))
    random = np.random.default_rng(options.seed)
    draws = [parameters.drawn(random) for _ in range(options.draws)]
    steps = Steps((len(what_ifs) + 1) * len(windows) * options.draws, options.progress)
    outcomes = sweep([partial(_outcome, what_if, base, parameters) for what_if in what_ifs], jobs, Steps(0))
    runs = [partial(_totals_of_draw, base, what_ifs, draw, steps) for draw in draws] if what_ifs else []
    samples = np.array(sweep(runs, jobs, steps), dtype=np.float64).reshape(len(runs), len(what_ifs))
    replay_error = 1 + np.array([draw["replay_error"] for draw in draws])
    rows, timelines = [], {"baseline": base.first.cut()}
    for i, (what_if, outcome) in enumerate(zip(what_ifs, outcomes, strict=True)):
        rows.append(_projection_row(what_if, base, outcome, samples[:, i] * replay_error, options.iterations))
        timelines[what_if.label] = outcome[-1].cut()
    measured = fsum(window.measured_total_ns for window in windows)
    provenance = provenance_of(
        meta, list(timelines.values()), what_ifs, parameters, draws=options.draws, seed=options.seed
    )
    provenance |= {"step_time": _step_time_kind(windows)}
    totals = (base.total_ns, measured, base.repeated_ns())
    by_resource, by_rank, room, bound = _weighted_pace(base)
    return Projection(*totals, tuple(rows), provenance, by_resource, by_rank, room, bound, timelines)


def _weighted_pace(base: "_Baseline") -> tuple[dict[str, float], dict[int, float], dict[str, float], dict[str, float]]:
    """Return the pace of the steps asked for by resource and by rank, and room and bound of host and device."""
    time, ranks = dict.fromkeys(PACE_RESOURCES, 0.0), defaultdict[int, float](float)
    room, without_side, total = defaultdict[str, float](float), defaultdict[str, float](float), 0.0
    for window, state in zip(base.windows, base.states, strict=True):
        for position, weight in zip(window.chosen, window.weights, strict=True):
            step_pace = pace(state, position)
            step_ns = weight * step_pace.step_ns
            total += step_ns
            for name, ns in step_pace.by_resource.items():
                time[name] += weight * ns
            for rank, ns in step_pace.by_rank.items():
                ranks[rank] += weight * ns
            for side in ("host", "device"):
                room[side] += step_ns * getattr(step_pace.slack, f"{side}_room")
                without_side[side] += step_ns / getattr(step_pace.slack, f"{side}_bound")
    if not total:
        return {}, {}, {}, {}
    return (
        {name: ns / total for name, ns in time.items() if ns},
        {rank: ns / total for rank, ns in sorted(ranks.items()) if rank >= 0},
        {name: ns / total for name, ns in room.items()},
        {name: total / ns if ns else 1.0 for name, ns in without_side.items()},
    )


def _step_time_kind(windows: Sequence[StepWindow]) -> str:
    """Return which kind of step time a projection has, for its provenance."""
    n_single = sum(window.pattern is None for window in windows)
    if not n_single:
        return "between completions"
    return "latency" if n_single == len(windows) else "between completions; latency where an iteration has no neighbour"


@dataclass(frozen=True)
class _Baseline:
    """The unchanged windows: their steady states, and their weighted step times, steady and to count gains from."""

    windows: Sequence[StepWindow]
    states: Sequence[SteadyState]
    steady_ns: list[float]
    base_ns: list[float]

    @classmethod
    def of(cls, windows: Sequence[StepWindow], states: Sequence[SteadyState]) -> "_Baseline":
        """Return the baseline of windows, from their unchanged steady states."""
        steady = [window.total_ns(state) for window, state in zip(windows, states, strict=True)]
        base = [window.measured_total_ns or ns for window, ns in zip(windows, steady, strict=True)]
        return cls(windows, states, steady, base)

    @property
    def total_ns(self) -> float:
        return fsum(self.base_ns)

    @property
    def first(self) -> Timeline:
        return self.states[0].at_step(self.windows[0].chosen[0])

    def scaled(self, changed: Sequence[float], steady: Sequence[float]) -> float:
        """Return the sum of the base times, each times its changed over its steady time.

        A step that takes no time, since longer work of an earlier step hides it, keeps its base time.
        """
        return fsum(b * c / s if s else b for b, c, s in zip(self.base_ns, changed, steady, strict=True))

    def repeated_ns(self) -> float:
        """Return the sum of the steady step times of windows that repeat, and of the base times of the others."""
        columns = zip(self.windows, self.steady_ns, self.base_ns, strict=True)
        return fsum(base if window.pattern is None else steady for window, steady, base in columns)

    def off(self) -> float:
        """Return the share by which the steady state of windows that repeat differs from the measurement."""
        ratio = self.repeated_ns() / self.total_ns if self.total_ns else 1.0
        return max(ratio, 1 / ratio) - 1 if ratio else 0.0


#: A what-if under nominal parameters: step time, time by `Basis` and notes of each window; timeline of the first step.
_Outcome = tuple[list[float], list[Floats], list[tuple[str, ...]], Timeline]


def _outcome(what_if: WhatIf, base: _Baseline, nominal: Parameters) -> _Outcome:
    """Return the outcome of a what-if under nominal parameters."""
    totals, time_by_basis, notes, first = [], [], [], None
    parameters = nominal.with_values(what_if.parameters)
    for window, before, base_ns in zip(base.windows, base.states, base.base_ns, strict=True):
        window = window.isolated(parameters) if what_if.parameters else window
        state = window.steady(partial(what_if, parameters=parameters))
        total = window.total_ns(state)
        first = first or state.at_step(window.chosen[0])
        if not total <= _LONGEST_NS:
            raise InvalidInputError(f"what-if {what_if.label[:80]}: a projected time of {total:.3g} ns")
        totals.append(total)
        time_by_basis.append(_time_by_basis(before.timeline, state.timeline))
        settled = state.settled and before.settled
        more_notes = [*([] if settled else [_UNSETTLED.format(what_if.label)]), *([] if base_ns else [_HIDDEN])]
        # A repeated graph would count each kernel once a cycle.
        graph = state.timeline.graph if window.pattern is None else what_if(window.graph, parameters)
        notes.append((*graph.notes, *more_notes))
    assert first is not None
    return totals, time_by_basis, notes, first


def _totals_of_draw(base: _Baseline, what_ifs: Sequence[WhatIf], parameters: Parameters, steps: Steps) -> list[float]:
    """Return the total step time of each what-if under one draw of the parameters; one graph at a time is in memory."""
    totals = []
    for window, nominal in zip(base.windows, base.steady_ns, strict=True):
        steps.next("durations without contention")
        isolated = window.isolated(parameters)
        # A single iteration replays as measured under any parameters.
        baseline_change = [] if isolated.pattern is None else [unchanged]
        shared = [what_if for what_if in what_ifs if not what_if.parameters]
        states = isolated.steady_all(
            [*baseline_change, *(_bound_what_if(what_if, parameters, steps) for what_if in shared)]
        )
        totals_of_window = [isolated.total_ns(state) for state in states]
        steady = totals_of_window.pop(0) if baseline_change else nominal
        shared_totals = iter(totals_of_window)
        of_window = []
        for what_if in what_ifs:
            if what_if.parameters:
                own_parameters = parameters.with_values(what_if.parameters)
                state = window.isolated(own_parameters).steady(_bound_what_if(what_if, own_parameters, steps))
                of_window.append(window.total_ns(state))
            else:
                of_window.append(next(shared_totals))
        totals.append((steady, of_window))
    steady_ns = [steady for steady, _ in totals]
    return [base.scaled([of_what_ifs[i] for _, of_what_ifs in totals], steady_ns) for i in range(len(what_ifs))]


def _bound_what_if(what_if: WhatIf, parameters: Parameters, steps: Steps) -> Change:
    """Return a what-if with its parameters bound, which reports a step when it is first applied."""
    counted = False

    def change(graph: KernelGraph) -> KernelGraph:
        nonlocal counted
        if not counted:  # a period that settles slowly applies it again
            steps.next(what_if.label)
            counted = True
        return what_if(graph, parameters)

    return change


def _check_inputs(windows: Sequence[StepWindow], what_ifs: Sequence[WhatIf], parameters: Parameters) -> None:
    """Raise an error for missing windows, weights not above zero, and choices that fit no task."""
    if not windows:
        raise InvalidInputError("there is no iteration to project; name one that the trace has")
    for window in windows:
        if not all(w > 0 for w in window.weights):
            raise InvalidInputError(f"iterations need weights above zero, not {list(window.weights)}")
    for what_if in what_ifs:
        check_choices(what_if, [window.graph for window in windows], parameters)


def _projection_row(
    what_if: WhatIf, base: _Baseline, outcome: _Outcome, samples: Floats, iterations: Sequence[int]
) -> ProjectionRow:
    """Return the row of a what-if, from its outcome and its totals under all draws."""
    totals, time_by_basis, notes_of_windows, _ = outcome
    notes = joined_notes(notes_of_windows, iterations)
    projected = base.scaled(totals, base.steady_ns)
    total = max(base.total_ns, _SHORTEST_NS)
    speedups = np.append(total / np.maximum(samples, _SHORTEST_NS), total / max(projected, _SHORTEST_NS))
    low, high = np.quantile(speedups, QUANTILES)
    speedup, off = float(speedups[-1]), base.off()
    if speedup < 1 - _SLOWER:
        doubt = "" if float(high) < 1 else ", by less than the interval can tell"
        notes = (*notes, f"{what_if.label}: slower than doing nothing{doubt}")
    return ProjectionRow(
        what_if.steps,
        projected,
        speedup,
        min(float(low), speedup) / (1 + off),
        max(float(high), speedup) * (1 + off),
        *_shares(time_by_basis, base.windows),
        notes=notes,
        title=what_if.title,
    )


def _time_by_basis(before: Timeline, after: Timeline) -> Floats:
    """Return the time of the iteration's tasks by `Basis`, the longer of the times before and after.

    Tasks are matched by their event, since a what-if may drop some. Tasks that are gone, and changes of lags on the
    host and from launches, are assumed.
    """
    tasks = after.graph.tasks
    count = 2 + max(int(line.graph.tasks.event.max(initial=-1)) for line in (before, after))
    removed = np.maximum(_time_by_event(before, count) - _time_by_event(after, count), 0.0)
    event_basis = np.full(count, -1)
    np.maximum.at(event_basis, tasks.event + 1, tasks.basis)
    time = np.bincount(tasks.basis, weights=_task_time(after), minlength=len(Basis))
    time += np.bincount(
        np.where(event_basis < 0, int(Basis.ASSUMED), event_basis), weights=removed, minlength=len(Basis)
    )
    time[Basis.ASSUMED] += np.abs(_lags_by_event(before.graph, count) - _lags_by_event(after.graph, count)).sum()
    return np.asarray(time, dtype=np.float64)


def _task_time(line: Timeline) -> Floats:
    """Return the time of each of the iterations' tasks; 0 for earlier work."""
    return np.where(line.graph.tasks.in_iteration, line.end_ns - line.start_ns, 0.0)


def _time_by_event(line: Timeline, count: int) -> Floats:
    """Return the time of the tasks of each event; first that of tasks without an event."""
    return np.asarray(np.bincount(line.graph.tasks.event + 1, weights=_task_time(line), minlength=count))


def _lags_by_event(graph: KernelGraph, count: int) -> Floats:
    """Return the sum of lags on the host and from launches, by the event of their source."""
    edges, in_iteration = graph.edges, graph.tasks.in_iteration
    lag = np.where(np.isin(edges.kind, _HOST_LAGS) & in_iteration[edges.source], edges.lag_ns, 0.0)
    return np.asarray(np.bincount(graph.tasks.event[edges.source] + 1, weights=lag, minlength=count))


def _shares(times_by_basis: Sequence[Floats], windows: Sequence[StepWindow]) -> tuple[float, float, float]:
    """Return the share of the time of all tasks with each `Basis`."""
    weights = [fsum(window.weights) for window in windows]
    columns = [[float(by_basis[i]) for by_basis in times_by_basis] for i in range(len(Basis))]
    times = [fsum(w * time for w, time in zip(weights, column, strict=True)) for column in columns]
    total = fsum(times)
    measured, derived, assumed = (time / total for time in times) if total else (1.0, 0.0, 0.0)
    return measured, derived, assumed


def with_provenance(projection: Projection, more: dict[str, Any]) -> Projection:
    """Return `projection` with `more` in its provenance."""
    return replace(projection, provenance={**projection.provenance, **more})
