"""Kernel graphs of a trace's steps: their windows, and their unchanged replay.

A step cannot be timed alone: earlier iterations are still running when it starts. `step_windows` yields the kernel
graph of each step together with those iterations. `replay_trace` replays the windows unchanged and compares step times
with the measured ones.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from profilers.errors import InvalidInputError
from profilers.trace.arrays import Floats
from profilers.trace.steps import StepTimes, job_steps, step_times, step_window
from profilers.trace.trace import Trace
from replay.analysis.critical_path import Dependencies, dependencies
from replay.calibration.parameters import Parameters
from replay.contention.totals import ContentionTime, contention_time, iteration_graphs
from replay.costs.shipped import load_parameters
from replay.engine.timeline import Timeline, replay
from replay.from_trace import build_graph, index_trace
from replay.graph.graph import RECORDED_EDGES, EdgeKind, KernelGraph, given_hardware
from replay.projection.rows import joined_notes
from replay.projection.windows import StepWindow
from replay.what_ifs import WhatIf, check_choices
from seqpoint.notebook import DataFrame, Result, Table, data_frame, table_of

_NO_ITERATION = "the trace has no iteration; read it again with --iterations (see docs/traces.md)"

Progress = Callable[[int, int, str], None]
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


@dataclass(frozen=True, repr=False)
class TraceReplay(Result):
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

    heading = "Replay"

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

    def tables(self) -> list[Table]:
        """Return the steps, and what tasks wait for, as text."""
        columns = {
            "iteration": "{iteration}", "tasks": "{tasks}", "step time": "{measured_ns:time}",
            "replayed": "{replayed_ns:time}", "repeated": "{steady_ns:time}", "repeated %": "{off:+.2%}",
            "latency": "{latency_ns:time}", "busy %": "{device_busy_share:.1%}", "unexplained %": "{unexplained:.1%}",
        }  # fmt: skip
        steps = [
            {
                **step.to_dict(),
                "off": round(step.steady_ns / step.measured_ns - 1, 4) + 0.0 if step.measured_ns else None,
            }
            for step in self.steps
        ]
        return [table_of("Replay", columns, steps), _edges_text(_edge_kinds(self.dependencies))]

    def summary(self) -> list[str]:
        """Return the errors of the replayed and the repeated steps, in a sentence."""
        measured = sum(step.measured_ns for step in self.steps)
        steady_error = abs(sum(step.steady_ns for step in self.steps) / measured - 1) if measured else 0.0
        worst = 100 * float(self.errors.max())
        return [
            f"unchanged, steps are off by {worst:.4f} % at worst; repeated, their sum by {100 * steady_error:.1f} %"
        ]


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


def _edges_text(kinds: Sequence[Mapping[str, Any]]) -> Table:
    """Return what tasks wait for, as text."""
    total = {name: sum(row[name] for row in kinds) for name in ("edges", "binding", "critical")}
    recorded = {name: sum(row[name] for row in kinds if row["recorded"]) for name in total}
    shares = {name: f"{100 * recorded[name] / total[name]:.1f} %" if total[name] else "none" for name in total}
    of_edges = f"recorded are {shares['edges']} of the edges, {shares['critical']} of those on the critical path"
    columns = {
        "kind": "{name}", "known": "{known}", "edges": "{edges}", "binding": "{binding}", "critical": "{critical}",
        "critical lag": "{critical_lag_ns:time}",
    }  # fmt: skip
    rows = [
        {**row, "name": row["kind"].replace("_", " "), "known": "recorded" if row["recorded"] else "inferred"}
        for row in kinds
    ]
    return table_of(f"What tasks wait for: {of_edges}", columns, rows)


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
