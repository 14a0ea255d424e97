"""Kernel graphs of a trace's steps: their windows, their unchanged replay, and the analysis of a step.

A step cannot be timed alone: earlier iterations are still running when it starts. `step_windows` yields the kernel
graph of each step together with those iterations. `replay_trace` replays the windows unchanged and compares step times
with the measured ones. `analyze_trace` analyses a step in the steady state, as it is and under a what-if.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from profilers.errors import InvalidInputError
from profilers.ingest.pipeline import IngestOptions, open_trace
from profilers.trace.arrays import Floats
from profilers.trace.steps import StepTimes, job_steps, step_times, step_window
from profilers.trace.trace import Trace
from replay import analysis
from replay.analysis.critical_path import Dependencies, dependencies
from replay.analysis.stragglers import (
    StragglerRun,
    Stragglers,
    TraceBalance,
    attribute_stragglers,
    operation_stragglers,
)
from replay.calibration.parameters import Parameters
from replay.contention.totals import ContentionTime, contention_time, iteration_graphs
from replay.costs.shipped import load_parameters
from replay.engine.steady import Change, unchanged
from replay.engine.timeline import Timeline, replay
from replay.from_trace import build_graph, index_trace
from replay.from_trace.host_causes import HostCauses, host_causes
from replay.graph.choice import TaskChoice
from replay.graph.graph import RECORDED_EDGES, EdgeKind, KernelGraph, given_hardware
from replay.projection.pacing import Limits, limits_of
from replay.projection.projection import StepWindow
from replay.projection.rows import NOTHING_CHANGES, joined_notes
from replay.what_ifs import WhatIf, check_choices, parse_what_if
from replay.workloads.operations import is_parquet, read_operations
from seqpoint.breakdown import StragglerReport
from seqpoint.communication import DeviceRow, communication_notes
from seqpoint.notebook import DataFrame, as_html, data_frame
from seqpoint.units import duration

_NO_ITERATION = "the trace has no iteration; read it again with --iterations (see docs/traces.md)"

Progress = Callable[[int, int, str], None]
#: Fields of `replay.analysis.Exposure` that the JSON of an analysis holds for each device, beside its times.
_OVERLAP_FIELDS = ("span_ns", "compute_ns", "copy_ns", "beside_compute_ns", "exposed_copy_ns")
#: Room of a resource that a step lacks.
_MOST_ROOM = 3.0
#: Most iterations in a window of several iterations.
_MAX_WINDOW = 32


def all_iterations(trace: Trace) -> list[int]:
    """Return the numbers of a trace's iterations, ascending, without the context of a slice.

    Parameters
    ----------
    trace : Trace
        The trace.

    Raises
    ------
    InvalidInputError
        The trace has no iteration.
    """
    numbers = sorted(set(trace.iterations["iteration"].to_pylist()) - set(trace.meta.context))
    if not numbers:
        raise InvalidInputError(_NO_ITERATION)
    return numbers


def step_windows(
    trace: Trace,
    iterations: Sequence[int],
    weights: Sequence[float] = (),
    *,
    device: str | None = None,
    parameters: Parameters | None = None,
    progress: Progress | None = None,
) -> Iterator[StepWindow]:
    """Yield the windows in which the steps of iterations can be timed, a window at a time to bound memory.

    The window of an iteration begins with the earliest iteration that was still running when it started, and holds at
    least the iteration before it, if the trace has one. For the first iteration of a recording it holds the next one
    instead. Windows that overlap are joined, up to 32 iterations.

    Parameters
    ----------
    trace : Trace
        The trace that holds the iterations.
    iterations : sequence of int
        Numbers of the iterations to time.
    weights : sequence of float, optional
        Number of steps that each iteration stands for; by default 1.
    device : str, optional
        Device that the trace was recorded on, if the trace does not say.
    parameters : Parameters, optional
        Parameters of the contention model, by which durations are isolated; the shipped ones by default.
    progress : callable, optional
        Called with (graphs built, graphs in all, what).

    Raises
    ------
    NotFoundError, InvalidInputError
        The device or an iteration is unknown.
    """
    parameters = parameters or load_parameters()
    steps = step_times(trace)
    of_job = job_steps(steps)
    row_of = {number: row for row, number in enumerate(of_job.iteration.tolist())}
    hardware, index = given_hardware(device), index_trace(trace)
    index.check_iterations(iterations)
    if context := sorted(set(iterations) & set(trace.meta.context)):
        asked = ", ".join(map(str, all_iterations(trace)[:12]))
        raise InvalidInputError(f"iteration {context[0]} is only the context of a slice of {asked}; slice it, too")
    spans = _merged([step_window(steps, of_job, row_of[n]) for n in sorted(set(iterations))])
    weight_of = dict(zip(iterations, weights or [1.0] * len(iterations), strict=True))
    timed: set[int] = set()
    for count, (first, last) in enumerate(spans):
        window = of_job.iteration[first : last + 1].tolist()
        if progress:
            progress(count, len(spans), f"graph of iteration {window[-1]}")
        graph = build_graph(index, window, hardware, parameters=parameters)
        positions = [i for i, number in enumerate(graph.iterations) if number in weight_of and number not in timed]
        numbers = [graph.iterations[i] for i in positions]
        timed.update(numbers)
        measured = [float(of_job.step_ns[first + i]) for i in positions]
        yield StepWindow.of(graph, positions, weights=[weight_of[n] for n in numbers], measured_ns=measured)


def _merged(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the spans, with overlapping ones joined up to the largest window."""
    merged: list[tuple[int, int]] = []
    for first, last in spans:
        if merged and first <= merged[-1][1] and last - merged[-1][0] < _MAX_WINDOW:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return merged


@dataclass(frozen=True)
class ReplayedStep:
    """A step as measured and as replayed, over all ranks; times in ns.

    Parameters
    ----------
    iteration : int
        Number of the iteration.
    tasks, edges : int
        Number of tasks of the iteration, and of edges that lead to them.
    measured_ns, replayed_ns : float
        Step time: from the completion of the iteration before to its own.
    latency_ns : float
        Measured time from the start of the iteration on the host to its completion.
    start_error_ns : float
        Largest error of the start of a kernel or copy.
    steady_ns : float
        Step time in the steady state, in which the window repeats.
    settled : bool
        Whether the period of the repeated window settled.
    device_busy_share : float
        Busy time of the devices in the replayed step over its length, on average over devices.
    unexplained : float
        Share of the time of the window that no recorded event explains.
    dependencies : Dependencies
        Edges of the window, by kind.
    notes : tuple of str
        Notes on the graph of the window.
    """

    iteration: int
    tasks: int
    edges: int
    measured_ns: float
    replayed_ns: float
    latency_ns: float
    start_error_ns: float
    steady_ns: float
    settled: bool
    device_busy_share: float
    unexplained: float
    dependencies: Dependencies
    notes: tuple[str, ...]

    @property
    def error(self) -> float:
        """Relative error of the replayed step time."""
        return self.replayed_ns / self.measured_ns - 1 if self.measured_ns else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the step as JSON with stable keys."""
        names = ("iteration", "tasks", "edges", "measured_ns", "replayed_ns", "error", "latency_ns", "steady_ns")
        edges = self.dependencies
        return {name: getattr(self, name) for name in names} | {
            "settled": self.settled,
            "start_error": self.start_error_ns / self.measured_ns if self.measured_ns else 0.0,
            "device_busy_share": self.device_busy_share,
            "unexplained": self.unexplained,
            "recorded_edges": edges.recorded_share(),
            "recorded_binding": edges.recorded_share("binding"),
            "recorded_critical": edges.recorded_share("critical"),
            "notes": list(self.notes),
        }


@dataclass(frozen=True)
class TraceReplay:
    """Steps of a trace replayed unchanged.

    Parameters
    ----------
    steps : tuple of ReplayedStep
        The steps, in the order of their iterations.
    dependencies : tuple of Dependencies
        Edges of each window, by kind.
    first : Timeline
        Timeline of the first window.
    """

    steps: tuple[ReplayedStep, ...]
    dependencies: tuple[Dependencies, ...]
    first: Timeline

    @property
    def errors(self) -> Floats:
        """Absolute relative error of each replayed step time."""
        return np.abs([step.error for step in self.steps])

    def table(self) -> DataFrame:
        """Return a row for each step, with its measured, replayed and repeated time; times in ns."""
        return data_frame(self.to_dict()["iterations"]).drop(columns="notes")

    def edges_table(self) -> DataFrame:
        """Return the number of edges of each kind, and of the edges that decided when a task started."""
        return data_frame(_edge_kinds(self.dependencies))

    def plot(self) -> Any:
        """Return the timeline of the first window, as a HoloViews object."""
        from seqpoint.plots import timeline_lanes

        return timeline_lanes(self.first)

    def to_dict(self) -> dict[str, Any]:
        """Return what `seqpoint replay --json` prints."""
        return {
            "iterations": [step.to_dict() for step in self.steps],
            "median_error": float(np.median(self.errors)),
            "worst_error": float(self.errors.max()),
            "step_time": "between completions",
            "edges": _edge_kinds(self.dependencies),
        }

    def notes(self) -> tuple[str, ...]:
        """Return the notes of all windows; a note on some iterations names them."""
        return joined_notes([step.notes for step in self.steps], [step.iteration for step in self.steps])

    def summary(self) -> list[str]:
        """Return the errors of the replayed and the repeated steps, in a sentence."""
        measured = sum(step.measured_ns for step in self.steps)
        steady_error = abs(sum(step.steady_ns for step in self.steps) / measured - 1) if measured else 0.0
        worst = 100 * float(self.errors.max())
        return [
            f"unchanged, steps are off by {worst:.4f} % at worst; repeated, their sum by {100 * steady_error:.1f} %"
        ]

    def _repr_html_(self) -> str:
        columns = ["iteration", "tasks", "measured_ns", "replayed_ns", "steady_ns", "latency_ns", "device_busy_share"]
        tables = {"Steps": self.table()[columns], "What tasks wait for": self.edges_table()}
        return as_html("Replay", [*self.summary(), *self.notes()], tables)


def _edge_kinds(dependencies: Sequence[Dependencies]) -> list[dict[str, Any]]:
    """Return the edges of all windows together, a row for each kind that occurs."""
    rows = []
    for kind in EdgeKind:
        of_kind = [row for window in dependencies for row in window.kinds if row.kind == kind.name.lower()]
        if of_kind:
            names = ("edges", "binding", "critical", "critical_lag_ns")
            total = {name: sum(getattr(row, name) for row in of_kind) for name in names}
            rows.append({"kind": kind.name.lower(), "recorded": kind in RECORDED_EDGES, **total})
    return rows


def replay_trace(
    trace: Trace, iterations: Sequence[int], *, device: str | None = None, progress: Progress | None = None
) -> TraceReplay:
    """Replay steps of a trace unchanged.

    Parameters
    ----------
    trace : Trace
        The trace to replay.
    iterations : sequence of int
        Numbers of the iterations to replay.
    device : str, optional
        Device that the trace was recorded on, if the trace does not say.
    progress : callable, optional
        Called with (graphs built, graphs in all, what).

    Raises
    ------
    NotFoundError, InvalidInputError
        The device or an iteration is unknown.
    """
    steps = step_times(trace)
    of_job = job_steps(steps)
    latency = dict(zip(of_job.iteration.tolist(), of_job.latency_ns.tolist(), strict=True))
    replayed: list[ReplayedStep] = []
    all_dependencies, first = [], None
    for window in step_windows(trace, iterations, device=device, progress=progress):
        timeline = replay(window.graph)
        first = first or timeline
        all_dependencies.append(dependencies(timeline))
        replayed.extend(_replayed_steps(window, timeline, all_dependencies[-1], (steps, latency)))
    assert first is not None
    in_order = tuple(sorted(replayed, key=lambda step: step.iteration))
    return TraceReplay(in_order, tuple(all_dependencies), first)


def _replayed_steps(
    window: StepWindow,
    timeline: Timeline,
    window_dependencies: Dependencies,
    times: tuple[StepTimes, dict[int, int]],
) -> list[ReplayedStep]:
    graph, tasks, steady = window.graph, window.graph.tasks, window.steady()
    steps, latency = times
    measured = Timeline(graph, tasks.measured_start_ns, np.nan_to_num(tasks.measured_end_ns))
    delay = np.append(0.0, timeline.completions_ns() - measured.completions_ns())
    start_error = np.abs(timeline.start_ns - tasks.measured_start_ns)
    unexplained = timeline.unexplained_ns() / timeline.makespan_ns if timeline.makespan_ns else 0.0
    rows = []
    for position, step_ns in zip(window.chosen, window.measured_ns, strict=True):
        of_iteration, number = tasks.iteration == position, graph.iterations[position]
        rows.append(
            ReplayedStep(
                iteration=number,
                tasks=int(of_iteration.sum()),
                edges=int(of_iteration[graph.edges.target].sum()),
                measured_ns=step_ns,
                replayed_ns=step_ns + float(delay[position + 1] - delay[position]),
                latency_ns=float(latency[number]),
                start_error_ns=float(start_error[of_iteration & graph.on_device()].max(initial=0.0)),
                steady_ns=float(steady.step_ns[position]),
                settled=steady.settled,
                device_busy_share=_busy_share(timeline, position, steps, number),
                unexplained=unexplained,
                dependencies=window_dependencies,
                notes=graph.notes,
            )
        )
    return rows


def _busy_share(timeline: Timeline, position: int, steps: StepTimes, number: int) -> float:
    """Return the share of the step of its rank during which a device is busy, on average over the devices."""
    graph, tasks, ranks = timeline.graph, timeline.graph.tasks, timeline.graph.ranks()
    shares = []
    for device, (rank, _) in enumerate(graph.devices):
        row = np.flatnonzero((steps.rank == rank) & (steps.iteration == number))
        ends = timeline.end_ns[(ranks == rank) & tasks.in_iteration & (tasks.iteration <= position)]
        if len(row) and len(ends) and steps.step_ns[row[0]]:
            end, step = float(ends.max()), float(steps.step_ns[row[0]])
            shares.append(replace(timeline, interval=(end - step, end)).busy_ns()[device] / step)
    return float(np.mean(shares)) if shares else 0.0


@dataclass(frozen=True)
class TimelineAnalysis:
    """Analysis of the timeline of a step.

    Parameters
    ----------
    timeline : Timeline
        The timeline of the step.
    path : Attribution
        Time on the critical path by cause, class and name.
    exposure : Exposure
        Overlap of computation, communication and copies on each device.
    idle : Idle
        Idle time of each device by cause.
    pace : Pace
        Resources on the critical path of the step in the steady state.
    limits : Limits
        What each resource could gain or lose.
    chosen : ChosenTasks, optional
        The tasks that the user chose, if any.
    """

    timeline: Timeline
    path: analysis.Attribution
    exposure: analysis.Exposure
    idle: analysis.Idle
    pace: analysis.Pace
    limits: Limits
    chosen: analysis.ChosenTasks | None = None


@dataclass(frozen=True)
class Analysis:
    """Analysis of a step, unchanged and under a what-if.

    Parameters
    ----------
    iteration : int
        Number of the iteration.
    measured_ns : float
        Measured step time.
    repeats : bool
        Whether the trace holds a neighbour of the iteration, so that the step is that of the steady state. Otherwise
        the iteration is analysed by itself.
    before : TimelineAnalysis
        The step replayed unchanged.
    what_if : WhatIf, optional
        The what-if, if any.
    after : TimelineAnalysis, optional
        The step under the what-if.
    difference : Difference, optional
        Change by class, kind and lane.
    communication_notes : tuple of str
        Notes on the collectives whose waiting is unknown.
    is_unchanged : bool
        Whether there is a what-if that changes nothing.
    contention : ContentionTime, optional
        Time that contention took from the kernels of the iteration, on all ranks.
    host : tuple of HostCauses
        Host time of each rank in all steps, by cause.
    """

    iteration: int
    measured_ns: float
    repeats: bool
    before: TimelineAnalysis
    what_if: WhatIf | None = None
    after: TimelineAnalysis | None = None
    difference: analysis.Difference | None = None
    communication_notes: tuple[str, ...] = ()
    is_unchanged: bool = False
    contention: ContentionTime | None = None
    host: tuple[HostCauses, ...] = ()

    @property
    def sides(self) -> tuple[TimelineAnalysis, ...]:
        """The step unchanged and, if there is a what-if, the step under it."""
        return (self.before,) if self.after is None else (self.before, self.after)

    def timelines(self) -> dict[str, Timeline]:
        """Return the timelines by name: the step unchanged, and under the what-if."""
        named = {"before": self.before.timeline.cut()}
        if self.after is not None and self.what_if is not None:
            named[f"after {self.what_if.name}"] = self.after.timeline.cut()
        return named

    def table(self) -> DataFrame:
        """Return the time on the critical path by cause, with a column for each side; times in ns."""
        sides = {f"{name}_ns": side.path.by_cause for name, side in zip(("before", "after"), self.sides, strict=False)}
        return data_frame(sides).fillna(0.0).rename_axis("cause").reset_index()

    def plot(self) -> Any:
        """Return the timeline of the step, or both one above the other, as a HoloViews object."""
        from seqpoint.plots import before_after, timeline_lanes

        (name, timeline), *changed = self.timelines().items()
        return before_after(timeline, changed[0][1], (name, changed[0][0])) if changed else timeline_lanes(timeline)

    def to_dict(self) -> dict[str, Any]:
        """Return what `seqpoint analyze --json` prints."""
        return {
            "iteration": self.iteration,
            "measured_ns": self.measured_ns,
            "step_time": "between completions" if self.repeats else "latency",
            "contention": None if self.contention is None else self.contention.to_dict(),
            "host": [row.to_dict() for row in self.host],
            "before": _side_facts(self.before),
            "what_if": None if self.what_if is None else list(self.what_if.steps),
            "applied": None if self.what_if is None else not self.is_unchanged,
            "after": None if self.after is None else _side_facts(self.after),
            "difference": None if self.difference is None else _change_facts(self.difference),
        }

    def notes(self) -> tuple[str, ...]:
        """Return the notes on the graphs, on collectives of unknown waiting, and on a what-if that changes nothing."""
        of_graphs = (note for side in self.sides for note in side.timeline.graph.notes)
        label = self.what_if.label if self.what_if is not None else ""
        same = [f"{label}: not applicable: {NOTHING_CHANGES}"] if self.is_unchanged else []
        return tuple(dict.fromkeys((*of_graphs, *self.communication_notes, *same)))

    def summary(self) -> list[str]:
        """Return the number of the iteration, its step time, and how it was analysed, in a sentence."""
        devices = len(self.before.timeline.graph.devices)
        how = "repeated until its period settles" if self.repeats else "by itself: the trace holds no neighbour of it"
        return [
            f"iteration {self.iteration}, {how}: a step of {duration(self.before.pace.step_ns)}, "
            f"{duration(self.measured_ns)} measured, on {devices} device{'s' * (devices != 1)}"
        ]

    def _repr_html_(self) -> str:
        tables = {"Critical path by cause": self.table()}
        return as_html("Analysis of a step", [*self.summary(), *self.notes()], tables)


def communication_rows(timeline: Timeline) -> list[DeviceRow]:
    """Return the rank, the number and the times of each device in the interval of a timeline."""
    numbered = [(rank, None if device < 0 else device) for rank, device in timeline.graph.devices]
    return [(*device, times) for device, times in zip(numbered, timeline.device_times(), strict=True)]


def communication_facts(timeline: Timeline) -> list[dict[str, Any]]:
    """Return the busy time and the communication of each device in the interval of a timeline, as JSON."""
    elapsed_ns, facts = float(timeline.span_ns), []
    for rank, device, times in communication_rows(timeline):
        busy = {"busy_ns": times.busy_ns, "busy_share": times.busy_ns / elapsed_ns if elapsed_ns else 0.0}
        counts = {"collectives": times.collectives, "unmatched_collectives": times.unmatched}
        facts.append({"rank": rank, "device": device, "elapsed_ns": elapsed_ns, **busy, **times.row(), **counts})
    return facts


def _side_facts(side: TimelineAnalysis) -> dict[str, Any]:
    shares = {name: dict(getattr(side.pace, name)) for name in ("by_resource", "by_rank", "by_iteration")}
    return {
        "makespan_ns": side.path.makespan_ns,
        "pace": {"step_ns": side.pace.step_ns, **shares, **_limit_facts(side.limits)},
        "critical_path": {name: dict(getattr(side.path, name)) for name in ("by_cause", "by_class", "by_name")},
        "devices": [{**row, **_work_facts(side, i)} for i, row in enumerate(communication_facts(side.timeline))],
        "chosen": None if side.chosen is None else side.chosen.to_dict(),
        "notes": list(side.timeline.graph.notes),
    }


def _limit_facts(limits: Limits) -> dict[str, Any]:
    """Return limits as JSON; those of hosts and devices also under their first names."""
    facts: dict[str, Any] = {name: dict(getattr(limits, name)) for name in ("bound", "room", "then")}
    for side in ("host", "device"):
        facts |= {f"{side}_room": limits.room.get(side, _MOST_ROOM), f"{side}_bound": limits.bound.get(side, 1.0)}
    return facts


def _work_facts(side: TimelineAnalysis, i: int) -> dict[str, Any]:
    exposed, idle = side.exposure, side.idle
    return {
        **{name: float(getattr(exposed, name)[i]) for name in _OVERLAP_FIELDS},
        "earlier_ns": float(idle.earlier_ns[i]),
        "idle_ns": dict(zip(analysis.IDLE_CAUSES, idle.cause_ns[i].tolist(), strict=True)),
        "slowed_ns": float(idle.slowed_ns[i]),
    }


def _change_facts(change: analysis.Difference) -> dict[str, Any]:
    tables = ("by_class", "by_kind", "by_lane")
    return {
        "change_ns": change.after_ns - change.before_ns,
        "path_by_cause": change.path_by_cause,
        "path_by_class": change.path_by_class,
        **{name: [asdict(row) for row in getattr(change, name)] for name in tables},
    }


def analyze_trace(
    trace: Trace,
    iteration: int | None = None,
    *,
    what_if: WhatIf | None = None,
    device: str | None = None,
    tasks: TaskChoice | None = None,
) -> Analysis:
    """Analyse the step of an iteration in the steady state, unchanged and under a what-if.

    Parameters
    ----------
    trace : Trace
        The trace that holds the iteration.
    iteration : int, optional
        Number of the iteration; by default that of median step time.
    what_if : WhatIf, optional
        What-if to compare the step with.
    device : str, optional
        Device that the trace was recorded on, if the trace does not say.
    tasks : TaskChoice, optional
        Tasks whose number, time and share of the critical path the analysis tells.

    Raises
    ------
    SeqPointError
        The iteration or the device is unknown, the what-if cannot be applied, or no task is chosen.
    """
    number = typical_iteration(trace) if iteration is None else iteration
    (window,) = step_windows(trace, [number], device=device)
    (measured,) = window.measured_ns
    if what_if is not None:
        check_choices(what_if, [window.graph], load_parameters())
    if tasks is not None:
        tasks.check([window.graph])
    before = _analyzed(window, unchanged, tasks)
    facts = (number, measured, window.pattern is not None, before)
    notes = communication_notes(communication_rows(before.timeline), trace)
    contention = contention_time(trace, [window.graph], iterations=[number])
    host = host_causes(index_trace(trace))
    if what_if is None:
        return Analysis(*facts, communication_notes=notes, contention=contention, host=host)
    changed, parameters = what_if, load_parameters()
    after = _analyzed(window, lambda graph: changed(graph, parameters), tasks)
    change = analysis.difference(before.timeline, after.timeline)
    is_unchanged = changed(window.graph, parameters).replays_like(window.graph)
    return Analysis(*facts, what_if, after, change, notes, is_unchanged, contention, host)


def stragglers(
    trace: Trace | str | Path,
    iteration: int | None = None,
    *,
    what_if: WhatIf | str | None = None,
    device: str | None = None,
) -> StragglerReport:
    """Return who makes the steps of a job longer: slow-downs by rank, stage, operation and micro-batch.

    Parameters
    ----------
    trace : Trace, str or Path
        Trace of several ranks, or the path of one; or of a Parquet table of operations
        (`replay.workloads.operations`), whose jobs are analysed one by one.
    iteration : int, optional
        Number of the step. By default that of median step time of a trace, and all steps of a table.
    what_if : str or WhatIf, optional
        What-if that comes first, such as ``"scale_kernels:gemm@rank=3:1.2"``; for traces.
    device : str, optional
        Device that the trace was recorded on, if the trace does not say.

    Raises
    ------
    SeqPointError
        The trace has one rank, there is no such step, or the what-if is unknown or cannot be applied.
    """
    change = parse_what_if(what_if) if isinstance(what_if, str) else what_if
    if not isinstance(trace, Trace) and is_parquet(trace):
        if change is not None:
            raise InvalidInputError(f"{change.name}: a table of operations has no kernels; what-ifs need a trace")
        jobs = read_operations(trace).values()
        return StragglerReport(tuple(operation_stragglers(job.only(iteration)) for job in jobs))
    opened = trace if isinstance(trace, Trace) else open_trace(Path(trace), IngestOptions())
    return StragglerReport((_trace_stragglers(opened, iteration, change, device),))


def _trace_stragglers(trace: Trace, iteration: int | None, what_if: WhatIf | None, device: str | None) -> Stragglers:
    """Return the stragglers of the window of an iteration of a trace.

    The steps of the window count together: a rank that is late in one makes the next one shorter.
    """
    if len(trace.meta.ranks) < 2:
        raise InvalidInputError("stragglers show among ranks, and the trace has one; give the files of all ranks")
    number, parameters = typical_iteration(trace) if iteration is None else iteration, load_parameters()
    (window,) = step_windows(trace, [number], device=device)
    change: Change = unchanged
    if what_if is not None:
        check_choices(what_if, [window.graph], parameters)
        change = partial(what_if, parameters=parameters)

    def times(changes: Sequence[Change]) -> list[Floats]:
        return [state.step_ns for state in window.steady_all(changes)]

    of_job, iterations = job_steps(step_times(trace)), window.graph.iterations
    recorded_ns = of_job.step_ns[np.searchsorted(of_job.iteration, iterations)].astype(np.float64)
    run = StragglerRun(TraceBalance(), window.graph, times, change)
    return attribute_stragglers(run, job="", steps=iterations, recorded_ns=recorded_ns, notes=window.graph.notes)


def contention_of(trace: Trace, *, device: str | None = None) -> ContentionTime:
    """Return the time that contention took from the kernels of a trace: measured, and modelled where it is not.

    Parameters
    ----------
    trace : Trace
        The trace.
    device : str, optional
        Device that the trace was recorded on, if the trace does not say.

    Raises
    ------
    NotFoundError
        The device is unknown.
    """
    graphs = iteration_graphs(trace, load_parameters(), given_hardware(device))
    return contention_time(trace, graphs)


def _analyzed(window: StepWindow, change: Change, choice: TaskChoice | None) -> TimelineAnalysis:
    """Return the analysis of the only step of a window that is asked for, under a change."""
    state, (position,) = window.steady(change), window.chosen
    timeline, total_ns = state.at_step(position), window.total_ns(state)
    limits = limits_of([window], [state], lambda times_ns: total_ns / max(times_ns[0], 1e-9), change)
    path = analysis.critical_path(timeline)
    return TimelineAnalysis(
        timeline,
        analysis.attribution(path),
        analysis.exposure(timeline),
        analysis.idle_by_cause(timeline),
        analysis.pace(state, position),
        limits,
        None if choice is None else analysis.chosen_tasks(path, choice),
    )


def graph_of(
    trace: Trace, iteration: int | None = None, *, what_if: WhatIf | None = None, device: str | None = None
) -> tuple[int, KernelGraph]:
    """Return the number of an iteration, and its kernel graph without its neighbours.

    Parameters
    ----------
    trace : Trace
        The trace that holds the iteration.
    iteration : int, optional
        Number of the iteration; by default that of median step time.
    what_if : WhatIf, optional
        What-if to apply to the graph.
    device : str, optional
        Device that the trace was recorded on, if the trace does not say.

    Raises
    ------
    SeqPointError
        The iteration or the device is unknown, or the what-if cannot be applied.
    """
    number = typical_iteration(trace) if iteration is None else iteration
    parameters = load_parameters()
    graph = build_graph(trace, number, given_hardware(device), parameters=parameters)
    if what_if is not None:
        check_choices(what_if, [graph], parameters)
    return number, graph if what_if is None else what_if(graph, parameters)


def typical_iteration(trace: Trace) -> int:
    """Return the iteration of median step time; of an even number, the shorter of the middle two.

    Parameters
    ----------
    trace : Trace
        The trace.

    Raises
    ------
    InvalidInputError
        The trace has no iteration.
    """
    steps = job_steps(step_times(trace)).without(trace.meta.context)
    if not len(steps):
        raise InvalidInputError(_NO_ITERATION)
    # A step that is hidden behind an earlier one takes no time, and is not typical.
    timed = np.flatnonzero(steps.step_ns > 0) if (steps.step_ns > 0).any() else np.arange(len(steps))
    order = timed[np.lexsort((steps.iteration[timed], steps.step_ns[timed]))]
    return int(steps.iteration[order[(len(order) - 1) // 2]])
