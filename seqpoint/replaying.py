"""`replay_trace`: the steps of a trace replayed unchanged, against what was measured."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from profilers.steps import StepTimes, job_steps, step_times
from profilers.trace import Trace
from replay.dependencies import Dependencies, dependencies
from replay.step_window import StepWindow
from replay.timeline import Timeline, replay
from seqpoint.graphs import Progress, step_windows

__all__ = ["ReplayedStep", "TraceReplay", "replay_trace"]


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
