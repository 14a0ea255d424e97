"""Projections: what a what-if would gain, how sure that is, and what it rests on."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from profilers.errors import InvalidInputError
from profilers.trace import TraceMeta
from replay.demand import isolate
from replay.engine import simulate
from replay.graph import HOST_TIME_EDGES, LAUNCH_EDGES, Basis, KernelGraph
from replay.notes import joined_notes
from replay.parameters import Parameters, load_parameters
from replay.provenance import QUANTILES, provenance_of
from replay.sweep import Steps, jobs_for, sweep
from replay.timeline import Timeline
from replay.what_ifs.choice import check_patterns
from replay.what_ifs.what_if import WhatIf

__all__ = ["Projection", "ProjectionOptions", "ProjectionRow", "project"]

Floats = npt.NDArray[np.float64]
#: Sums of times up to this are finite; whatever is longer is a mistake.
_LONGEST_NS = 1e100
#: A speed-up this far below 1 is a loss.
_SLOWER = 1e-6
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
        Numbers of the iterations that the graphs are of, for notes that hold for some.
    jobs : int
        Draws at a time; 0: one a core, as far as the memory that is free allows.
    parameters : Parameters, optional
        In place of the shipped ones.
    """

    draws: int = 32
    seed: int = 0
    progress: Callable[[int, int, str], None] | None = None
    iterations: Sequence[int] = ()
    jobs: int = 0
    parameters: Parameters | None = None


@dataclass(frozen=True)
class ProjectionRow:
    """One what-if.

    Parameters
    ----------
    what_if : tuple of str
        Its parts.
    projected_ns : float
        Weighted sum over the iterations.
    speedup : float
        Baseline over projected.
    low, high : float
        Central 90 % of the speed-up over the draws of the parameters, widened by the error of the replay.
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
        The iterations as replayed unchanged, weighted.
    measured_ns : float
        The same as measured.
    rows : tuple of ProjectionRow
    provenance : mapping
        All that is needed to compute the same numbers again.
    timelines : mapping of str to Timeline
        Of the first iteration: ``"baseline"``, and one a what-if by its name.
    """

    baseline_ns: float
    measured_ns: float
    rows: tuple[ProjectionRow, ...]
    provenance: dict[str, Any]
    timelines: dict[str, Timeline] = field(default_factory=dict)

    @property
    def device_busy_share(self) -> float | None:
        """How much of the first iteration its devices work, on average; None where it has no device.

        Far below 1, the host sets the pace, and faster devices or better overlap gain little.
        """
        line = self.timelines["baseline"]
        busy = line.busy_ns()
        return float(min(busy.mean() / line.makespan_ns, 1.0)) if len(busy) and line.makespan_ns else None


def project(
    graphs: Sequence[KernelGraph],
    weights: Sequence[float],
    what_ifs: Sequence[WhatIf],
    *,
    meta: TraceMeta,
    options: ProjectionOptions | None = None,
) -> Projection:
    """Return what each what-if would gain over the weighted iterations.

    A draw is one run: its parameters take the contention out of each graph, and every what-if is applied to that. The
    numbers are the same, bit for bit, however many threads there are.

    Parameters
    ----------
    graphs : sequence of KernelGraph
        One a representative iteration.
    weights : sequence of float
        How many iterations each stands for.
    what_ifs : sequence of WhatIf
    meta : TraceMeta
        Of the trace that the graphs are from, for the provenance.
    options : ProjectionOptions, optional

    Raises
    ------
    SeqPointError
        There is no graph, the weights do not fit, or a what-if cannot be applied or names a kernel that no graph has.
    """
    options = options or ProjectionOptions()
    _check(graphs, weights, what_ifs)
    nominal = options.parameters or load_parameters()
    if nominal.values != load_parameters().values:
        graphs = [isolate(graph, nominal) for graph in graphs]
    base = [Timeline(graph, *simulate(graph)) for graph in graphs]
    baseline = _weighted(weights, [timeline.makespan_ns for timeline in base])
    drawn = _draws(nominal, options)
    steps = Steps((len(what_ifs) + 1) * len(graphs) * options.draws, options.progress)
    jobs = jobs_for(graphs, options.jobs)
    after = sweep([partial(_nominal, what_if, base, nominal) for what_if in what_ifs], jobs, Steps(0))
    runs = [partial(_draw, graphs, weights, what_ifs, parameters, steps) for parameters in drawn] if what_ifs else []
    samples = np.array(sweep(runs, jobs, steps), dtype=np.float64).reshape(len(runs), len(what_ifs))
    error = 1 + np.array([parameters["replay_error"] for parameters in drawn])
    rows, timelines = [], {"baseline": base[0]}
    for i, (what_if, found) in enumerate(zip(what_ifs, after, strict=True)):
        rows.append(_row(what_if, baseline, (found, weights), samples[:, i] * error, options.iterations))
        timelines[what_if.label] = found.first
    measured = _weighted(weights, [graph.measured_ns for graph in graphs])
    provenance = provenance_of(meta, graphs[0].hardware, what_ifs, nominal, options)
    return Projection(baseline, measured, tuple(rows), provenance, timelines)


@dataclass(frozen=True)
class _Found:
    """A what-if under nominal parameters: by graph the makespan, time by `Basis` and notes; the first's timeline."""

    makespans: list[float]
    spent: list[Floats]
    notes: list[tuple[str, ...]]
    first: Timeline


def _nominal(what_if: WhatIf, base: Sequence[Timeline], nominal: Parameters) -> _Found:
    makespans, spent, notes, first = [], [], [], None
    own = nominal.with_values(what_if.parameters)
    for before in base:
        graph = isolate(before.graph, own) if what_if.parameters else before.graph
        timeline = _applied(what_if, graph, own)
        first = first or timeline
        if not timeline.makespan_ns <= _LONGEST_NS:
            raise InvalidInputError(f"what-if {what_if.label[:80]}: a projected time of {timeline.makespan_ns:.3g} ns")
        makespans.append(timeline.makespan_ns)
        spent.append(_spent(before, timeline))
        notes.append(timeline.graph.notes)
    assert first is not None
    return _Found(makespans, spent, notes, first)


def _draw(
    graphs: Sequence[KernelGraph],
    weights: Sequence[float],
    what_ifs: Sequence[WhatIf],
    parameters: Parameters,
    steps: Steps,
) -> list[float]:
    """Return what each what-if comes to under one draw of the parameters; one graph is in memory at a time."""
    found: list[list[float]] = [[] for _ in what_ifs]
    for graph in graphs:
        steps.next("durations without contention")
        plain = isolate(graph, parameters)
        for what_if, makespans in zip(what_ifs, found, strict=True):
            steps.next(what_if.label)
            own = parameters.with_values(what_if.parameters)
            isolated = isolate(graph, own) if what_if.parameters else plain
            makespans.append(_applied(what_if, isolated, own).makespan_ns)
    return [_weighted(weights, makespans) for makespans in found]


def _weighted(weights: Sequence[float], values: Sequence[float]) -> float:
    """Return the weighted sum, rounded once: the same on every machine."""
    return math.fsum(w * v for w, v in zip(weights, values, strict=True))


def _check(graphs: Sequence[KernelGraph], weights: Sequence[float], what_ifs: Sequence[WhatIf]) -> None:
    if not graphs:
        raise InvalidInputError("there is no iteration to project")
    if len(graphs) != len(weights) or not all(w > 0 for w in weights):
        raise InvalidInputError(f"{len(graphs)} iterations need as many weights above zero, not {list(weights)}")
    for what_if in what_ifs:
        check_patterns(what_if, graphs)


def _draws(nominal: Parameters, options: ProjectionOptions) -> list[Parameters]:
    random = np.random.default_rng(options.seed)
    return [nominal.drawn(random) for _ in range(options.draws)]


def _applied(what_if: WhatIf, graph: KernelGraph, parameters: Parameters) -> Timeline:
    changed = what_if(graph, parameters)
    return Timeline(changed, *simulate(changed))


def _row(
    what_if: WhatIf,
    baseline: float,
    nominal: tuple[_Found, Sequence[float]],
    samples: Floats,
    iterations: Sequence[int],
) -> ProjectionRow:
    found, weights = nominal
    notes = joined_notes(found.notes, iterations)
    projected = _weighted(weights, found.makespans)
    speedups = np.append(baseline / np.maximum(samples, 1e-9), baseline / max(projected, 1e-9))
    low, high = np.quantile(speedups, QUANTILES)
    speedup = float(speedups[-1])
    if speedup < 1 - _SLOWER:
        notes = (*notes, f"{what_if.label}: slower than doing nothing")
    return ProjectionRow(
        what_if.steps,
        projected,
        speedup,
        min(float(low), speedup),
        max(float(high), speedup),
        *_shares(found.spent, weights),
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


def _shares(spent: Sequence[Floats], weights: Sequence[float]) -> tuple[float, float, float]:
    """Return the share of all tasks' time that rests on each `Basis`."""
    times = [_weighted(weights, [float(one[i]) for one in spent]) for i in range(len(Basis))]
    total = math.fsum(times)
    measured, derived, assumed = (time / total for time in times) if total else (1.0, 0.0, 0.0)
    return measured, derived, assumed


def with_provenance(projection: Projection, more: dict[str, Any]) -> Projection:
    """Return `projection` with `more` in its provenance."""
    return replace(projection, provenance={**projection.provenance, **more})
