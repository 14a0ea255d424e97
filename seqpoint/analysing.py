"""Analyse one iteration of a trace as it is, and as a what-if leaves it."""

from collections.abc import Sequence
from dataclasses import dataclass

from profilers.errors import InvalidInputError
from profilers.trace import Trace
from replay.analysis import (
    Attribution,
    Difference,
    Exposure,
    Idle,
    attribution,
    critical_path,
    difference,
    exposure,
    idle_by_cause,
)
from replay.graph import KernelGraph
from replay.parameters import load_parameters
from replay.timeline import Timeline, replay
from replay.what_ifs import WhatIf
from seqpoint.graphs import graphs_of

__all__ = ["Analysis", "TimelineAnalysis", "analyze_timeline", "analyze_trace", "graph_of", "typical_iteration"]


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
    """

    timeline: Timeline
    path: Attribution
    exposure: Exposure
    idle: Idle


@dataclass(frozen=True)
class Analysis:
    """One iteration, unchanged and as a what-if leaves it.

    Parameters
    ----------
    iteration : int
    before : TimelineAnalysis
        The iteration replayed unchanged.
    what_if : WhatIf, optional
    after : TimelineAnalysis, optional
    difference : Difference, optional
    """

    iteration: int
    before: TimelineAnalysis
    what_if: WhatIf | None = None
    after: TimelineAnalysis | None = None
    difference: Difference | None = None


def analyze_trace(
    trace: Trace, iteration: int | None = None, *, what_if: WhatIf | None = None, device: str | None = None
) -> Analysis:
    """Return the analysis of one iteration of a trace.

    Parameters
    ----------
    trace : Trace
    iteration : int, optional
        By default the one of median duration.
    what_if : WhatIf, optional
        Applied to its graph, for the difference.
    device : str, optional
        What the trace was recorded on, where it does not say.

    Raises
    ------
    SeqPointError
        The trace has no iteration, or not this one; the device is unknown; the what-if cannot be applied.
    """
    number, graph = graph_of(trace, iteration, device=device)
    before = analyze_timeline(replay(graph))
    if what_if is None:
        return Analysis(number, before)
    after = analyze_timeline(replay(what_if(graph, load_parameters())))
    return Analysis(number, before, what_if, after, difference(before.timeline, after.timeline))


def graph_of(
    trace: Trace, iteration: int | None = None, *, what_if: WhatIf | None = None, device: str | None = None
) -> tuple[int, KernelGraph]:
    """Return which iteration `analyze_trace` would take, and its graph as a what-if leaves it.

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
    (graph,) = graphs_of(trace, [number], device)
    return number, graph if what_if is None else what_if(graph, load_parameters())


def analyze_timeline(timeline: Timeline) -> TimelineAnalysis:
    """Return what a timeline says of itself.

    Parameters
    ----------
    timeline : Timeline
    """
    path = attribution(critical_path(timeline))
    return TimelineAnalysis(timeline, path, exposure(timeline), idle_by_cause(timeline))


def typical_iteration(trace: Trace) -> int:
    """Return the iteration of median duration, of its longest rank; of an even number the shorter of the two.

    Raises
    ------
    InvalidInputError
        The trace has no iteration.
    """
    rows = trace.iterations.select(["iteration", "dur_ns"]).to_pylist()
    if not rows:
        raise InvalidInputError("the trace has no iteration")
    longest: dict[int, int] = {}
    for row in rows:
        longest[row["iteration"]] = max(longest.get(row["iteration"], 0), row["dur_ns"] or 0)
    order: Sequence[int] = sorted(longest, key=lambda number: (longest[number], number))
    return order[(len(order) - 1) // 2]
