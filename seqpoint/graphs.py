"""Windows of steps from a trace, replayed and analysed.

Windows of a trace's iterations in which their steps can be timed.

`replay_trace`: the steps of a trace replayed unchanged, against what was measured.

Analyse the step of one iteration of a trace in the steady state, as it is and as a what-if leaves it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from profilers.devices.catalogue import find_device
from profilers.errors import InvalidInputError
from profilers.trace.steps import StepTimes, job_steps, step_times
from profilers.trace.trace import Trace
from replay.analysis import (
    Attribution,
    Difference,
    Exposure,
    Idle,
    Pace,
    attribution,
    critical_path,
    difference,
    exposure,
    idle_by_cause,
    pace,
)
from replay.analysis.critical_path import Dependencies, dependencies
from replay.calibration.parameters import Parameters
from replay.costs.shipped import load_parameters
from replay.engine.steady import SteadyState
from replay.engine.timeline import Timeline, replay
from replay.from_trace import build_graph, index_trace
from replay.graph.graph import Hardware, KernelGraph, hardware_named
from replay.projection.projection import StepWindow
from replay.what_ifs import WhatIf

Progress = Callable[[int, int, str], None]
#: Iterations before one that are replayed with it at most, with itself; and iterations in one window.
_LONGEST_RUN, _LONGEST_WINDOW = 16, 32


def all_iterations(trace: Trace) -> list[int]:
    """Return the numbers of a trace's iterations.

    Raises
    ------
    InvalidInputError
        It has none.
    """
    have = sorted(set(trace.iterations["iteration"].to_pylist()))
    if not have:
        raise InvalidInputError("the trace has no iteration")
    return have


def given_hardware(device: str | None) -> Hardware | None:
    """Return the hardware of a device that a user names; None where nobody names one.

    Raises
    ------
    NotFoundError
        The device is unknown.
    """
    return None if device is None else hardware_named(find_device(device), "user")


def step_windows(
    trace: Trace,
    iterations: Sequence[int],
    weights: Sequence[float] = (),
    *,
    device: str | None = None,
    parameters: Parameters | None = None,
    progress: Progress | None = None,
) -> Iterator[StepWindow]:
    """Yield windows in which the steps of some iterations can be timed, one after another to hold one at a time.

    The window of an iteration begins with the iterations that its hosts had not waited for when it started, and holds
    at least one before it, if the trace does. The first iteration of a recording has the one behind it instead.
    Windows that overlap are one, up to 32 iterations.

    Parameters
    ----------
    trace : Trace
    iterations : sequence of int
    weights : sequence of float
        How many steps each iteration stands for; by default one.
    device : str, optional
        What the trace was recorded on, where it does not say.
    parameters : Parameters, optional
        Contention model by which durations are isolated; by default the shipped one.
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
    spans = _merged([_span(steps, of_job, row_of[n]) for n in sorted(set(iterations))])
    weight_of = dict(zip(iterations, weights or [1.0] * len(iterations), strict=True))
    taken: set[int] = set()
    for count, (first, last) in enumerate(spans):
        window = of_job.iteration[first : last + 1].tolist()
        if progress:
            progress(count, len(spans), f"graph of iteration {window[-1]}")
        graph = build_graph(index, window, hardware, parameters=parameters)
        asked = [p for p, n in enumerate(graph.iterations) if n in weight_of and n not in taken]
        numbers = [graph.iterations[p] for p in asked]
        taken.update(numbers)
        measured = [float(of_job.step_ns[first + p]) for p in asked]
        yield StepWindow.of(graph, asked, weights=[weight_of[n] for n in numbers], measured_ns=measured)


def _span(steps: StepTimes, of_job: StepTimes, row: int) -> tuple[int, int]:
    """Return the first and last row of the window of the iteration at `row`."""
    run = of_job.run_of(row)
    if row == run[0]:
        return (row, row + 1) if len(run) > 1 else (row, row)
    mine = steps.iteration == of_job.iteration[row]
    starts = dict(zip(steps.rank[mine].tolist(), steps.start_ns[mine].tolist(), strict=True))
    first = row - 1
    while first > run[0] and row - first < _LONGEST_RUN - 1:
        before = np.flatnonzero(steps.iteration == of_job.iteration[first - 1])
        pairs = zip(steps.rank[before].tolist(), steps.completion_ns[before].tolist(), strict=True)
        if not any(rank in starts and done > starts[rank] for rank, done in pairs):
            break
        first -= 1
    return first, row


def _merged(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the spans with those joined that overlap, as long as they are not too long together."""
    merged: list[tuple[int, int]] = []
    for first, last in spans:
        if merged and first <= merged[-1][1] and last - merged[-1][0] < _LONGEST_WINDOW:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return merged


@dataclass(frozen=True)
class ReplayedStep:
    """One step as measured and as replayed; times in ns, of the job: over all ranks.

    Parameters
    ----------
    iteration : int
    tasks, edges : int
        Of this iteration.
    measured_ns, replayed_ns : float
        The step time: from the completion of the iteration before it to its own.
    latency_ns : float
        As measured, from its start on the host to its completion.
    start_error_ns : float
        By how much a kernel or copy starts too early or too late, at worst.
    steady_ns : float
        The step time when its window repeats until the period has settled.
    settled : bool
    device_busy : float
        Share of the replayed step during which a device works, on average over devices.
    unexplained : float
        Share of the time of its window that is waiting which no recorded event explains.
    dependencies : Dependencies
        Of its window.
    notes : tuple of str
        Of its window.
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
    device_busy: float
    unexplained: float
    dependencies: Dependencies
    notes: tuple[str, ...]

    @property
    def error(self) -> float:
        """Of the replayed step time, against the measured one."""
        return self.replayed_ns / self.measured_ns - 1 if self.measured_ns else 0.0


@dataclass(frozen=True)
class TraceReplay:
    """The steps asked for, and what their windows wait for.

    Parameters
    ----------
    steps : tuple of ReplayedStep
        In the order of their iterations.
    dependencies : tuple of Dependencies
        Of each window.
    first : Timeline
        Of the first window.
    """

    steps: tuple[ReplayedStep, ...]
    dependencies: tuple[Dependencies, ...]
    first: Timeline


def replay_trace(
    trace: Trace, iterations: Sequence[int], *, device: str | None = None, progress: Progress | None = None
) -> TraceReplay:
    """Replay steps of a trace unchanged.

    Parameters
    ----------
    trace : Trace
    iterations : sequence of int
    device : str, optional
        What the trace was recorded on, where it does not say.
    parameters : Parameters, optional
        Contention model by which durations are isolated; by default the shipped one.
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
    found: list[ReplayedStep] = []
    known, first = [], None
    for window in step_windows(trace, iterations, device=device, progress=progress):
        line = replay(window.graph)
        first = first or line
        known.append(dependencies(line))
        found.extend(_steps(window, line, known[-1], (steps, latency)))
    assert first is not None
    return TraceReplay(tuple(sorted(found, key=lambda step: step.iteration)), tuple(known), first)


def _steps(
    window: StepWindow, line: Timeline, waits: Dependencies, times: tuple[StepTimes, dict[int, int]]
) -> list[ReplayedStep]:
    graph, tasks, steady = window.graph, window.graph.tasks, window.steady()
    of_ranks, latency = times
    measured = Timeline(graph, tasks.measured_start_ns, np.nan_to_num(tasks.measured_end_ns))
    # By how much each iteration completes later than measured.
    late = np.append(0.0, line.completions_ns() - measured.completions_ns())
    start_error = np.abs(line.start_ns - tasks.measured_start_ns)
    unexplained = line.unexplained_ns() / line.makespan_ns if line.makespan_ns else 0.0
    rows = []
    for at, step_ns in zip(window.chosen, window.measured_ns, strict=True):
        mine, number = tasks.iteration == at, graph.iterations[at]
        rows.append(
            ReplayedStep(
                iteration=number,
                tasks=int(mine.sum()),
                edges=int(mine[graph.edges.target].sum()),
                measured_ns=step_ns,
                replayed_ns=step_ns + float(late[at + 1] - late[at]),
                latency_ns=float(latency[number]),
                start_error_ns=float(start_error[mine & graph.on_device()].max(initial=0.0)),
                steady_ns=float(steady.step_ns[at]),
                settled=steady.settled,
                device_busy=_busy(line, at, of_ranks, number),
                unexplained=unexplained,
                dependencies=waits,
                notes=graph.notes,
            )
        )
    return rows


def _busy(line: Timeline, at: int, steps: StepTimes, number: int) -> float:
    """Return which share of the step of its rank each device works, on average over the devices."""
    graph, tasks = line.graph, line.graph.tasks
    ranks = np.array([*(lane.rank for lane in graph.lanes), -1])[tasks.lane]
    shares = []
    for place, (rank, _) in enumerate(graph.devices):
        row = np.flatnonzero((steps.rank == rank) & (steps.iteration == number))
        ends = line.end_ns[(ranks == rank) & tasks.own & (tasks.iteration <= at)]
        if len(row) and len(ends) and steps.step_ns[row[0]]:
            until, step = float(ends.max()), float(steps.step_ns[row[0]])
            shares.append(replace(line, interval=(until - step, until)).busy_ns()[place] / step)
    return float(np.mean(shares)) if shares else 0.0


@dataclass(frozen=True)
class TimelineAnalysis:
    """What a timeline says of itself.

    Parameters
    ----------
    timeline : Timeline
    path : Attribution
        Of its critical path.
    exposure : Exposure
    idle : Idle
    pace : Pace
        What sets the step time.
    """

    timeline: Timeline
    path: Attribution
    exposure: Exposure
    idle: Idle
    pace: Pace


@dataclass(frozen=True)
class Analysis:
    """One step, unchanged and as a what-if leaves it.

    Parameters
    ----------
    iteration : int
    measured_ns : float
        Its step time as measured.
    repeats : bool
        Whether the trace holds a neighbour of the iteration, so that it is analysed in the steady state. Otherwise the
        step is the iteration by itself.
    before : TimelineAnalysis
        The step replayed unchanged.
    what_if : WhatIf, optional
    after : TimelineAnalysis, optional
    difference : Difference, optional
    """

    iteration: int
    measured_ns: float
    repeats: bool
    before: TimelineAnalysis
    what_if: WhatIf | None = None
    after: TimelineAnalysis | None = None
    difference: Difference | None = None


def analyze_trace(
    trace: Trace, iteration: int | None = None, *, what_if: WhatIf | None = None, device: str | None = None
) -> Analysis:
    """Return the analysis of the step of one iteration of a trace.

    Parameters
    ----------
    trace : Trace
    iteration : int, optional
        By default the one of median step time.
    what_if : WhatIf, optional
        Applied to its graph, for the difference.
    device : str, optional
        What the trace was recorded on, where it does not say.

    Raises
    ------
    SeqPointError
        The trace has no iteration, or not this one; the device is unknown; the what-if cannot be applied.
    """
    number = typical_iteration(trace) if iteration is None else iteration
    (window,) = step_windows(trace, [number], device=device)
    (position,), (measured,) = window.chosen, window.measured_ns
    before = _analyzed(window.steady(), position)
    facts = (number, measured, window.pattern is not None, before)
    if what_if is None:
        return Analysis(*facts)
    changed, parameters = what_if, load_parameters()
    after = _analyzed(window.steady(lambda graph: changed(graph, parameters)), position)
    return Analysis(*facts, what_if, after, difference(before.timeline, after.timeline))


def _analyzed(state: SteadyState, position: int) -> TimelineAnalysis:
    line = state.at_step(position)
    path = attribution(critical_path(line))
    return TimelineAnalysis(line, path, exposure(line), idle_by_cause(line), pace(state, position))


def graph_of(
    trace: Trace, iteration: int | None = None, *, what_if: WhatIf | None = None, device: str | None = None
) -> tuple[int, KernelGraph]:
    """Return which iteration `analyze_trace` would take, and its graph by itself as a what-if leaves it.

    Parameters
    ----------
    trace, iteration, what_if, device
        As `analyze_trace` takes them.

    Raises
    ------
    SeqPointError
        As `analyze_trace`.
    """
    number = typical_iteration(trace) if iteration is None else iteration
    parameters = load_parameters()
    graph = build_graph(trace, number, given_hardware(device), parameters=parameters)
    return number, graph if what_if is None else what_if(graph, parameters)


def typical_iteration(trace: Trace) -> int:
    """Return the iteration of median step time; of an even number the shorter of the two.

    Raises
    ------
    InvalidInputError
        The trace has no iteration.
    """
    steps = job_steps(step_times(trace))
    if not len(steps):
        raise InvalidInputError("the trace has no iteration")
    # Steps that longer work of an earlier one hides take no time, and are no example.
    timed = np.flatnonzero(steps.step_ns > 0) if (steps.step_ns > 0).any() else np.arange(len(steps))
    order = timed[np.lexsort((steps.iteration[timed], steps.step_ns[timed]))]
    return int(steps.iteration[order[(len(order) - 1) // 2]])
