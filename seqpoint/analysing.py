"""Analyse the step of one iteration of a trace in the steady state, as it is and as a what-if leaves it."""

from dataclasses import dataclass

import numpy as np

from profilers.errors import InvalidInputError
from profilers.steps import job_steps, step_times
from profilers.trace import Trace
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
from replay.build import build_graph
from replay.graph import KernelGraph
from replay.parameters import load_parameters
from replay.steady import SteadyState
from replay.timeline import Timeline
from replay.what_ifs import WhatIf
from seqpoint.graphs import given_hardware, step_windows

__all__ = ["Analysis", "TimelineAnalysis", "analyze_trace", "graph_of", "typical_iteration"]


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
    graph = build_graph(trace, number, given_hardware(device))
    return number, graph if what_if is None else what_if(graph, load_parameters())


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
