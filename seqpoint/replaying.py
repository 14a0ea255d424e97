"""`replay_trace`: the steps of a trace replayed unchanged, against what was measured."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from profilers.steps import job_steps, step_times
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
    of_job = job_steps(step_times(trace))
    latency = dict(zip(of_job.iteration.tolist(), of_job.latency_ns.tolist(), strict=True))
    steps: list[ReplayedStep] = []
    known, first = [], None
    for window in step_windows(trace, iterations, device=device, progress=progress):
        line = replay(window.graph)
        first = first or line
        known.append(dependencies(line))
        steps.extend(_steps(window, line, known[-1], latency))
    assert first is not None
    return TraceReplay(tuple(sorted(steps, key=lambda step: step.iteration)), tuple(known), first)


def _steps(window: StepWindow, line: Timeline, waits: Dependencies, latency: dict[int, int]) -> list[ReplayedStep]:
    graph, tasks, steady = window.graph, window.graph.tasks, window.steady()
    replayed = line.completions_ns()
    measured = Timeline(graph, tasks.measured_start_ns, np.nan_to_num(tasks.measured_end_ns)).completions_ns()
    late = np.abs(line.start_ns - tasks.measured_start_ns)
    unexplained = line.unexplained_ns() / line.makespan_ns if line.makespan_ns else 0.0
    rows = []
    for at, step_ns in zip(window.chosen, window.measured_ns, strict=True):
        mine = tasks.iteration == at
        # Before the first iteration of a window, what was measured is all that there is.
        begin = replayed[at - 1] if at else measured[0] - step_ns
        moment = Timeline(graph, line.start_ns, line.end_ns, (float(begin), float(replayed[at])))
        busy = moment.busy_ns()
        rows.append(
            ReplayedStep(
                iteration=graph.iterations[at],
                tasks=int(mine.sum()),
                edges=int(mine[graph.edges.target].sum()),
                measured_ns=step_ns,
                replayed_ns=float(replayed[at] - begin),
                latency_ns=float(latency[graph.iterations[at]]),
                start_error_ns=float(late[mine & graph.on_device()].max(initial=0.0)),
                steady_ns=float(steady.step_ns[at]),
                settled=steady.settled,
                device_busy=float(busy.mean() / moment.span_ns) if len(busy) and moment.span_ns else 0.0,
                unexplained=unexplained,
                dependencies=waits,
                notes=graph.notes,
            )
        )
    return rows
