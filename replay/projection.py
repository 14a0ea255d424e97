"""Projections: what a what-if would gain, how sure that is, and what it rests on."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from typing import Any

import numpy as np
import numpy.typing as npt

from profilers.errors import InvalidInputError
from profilers.trace import TraceMeta
from replay.demand import isolate
from replay.engine import simulate
from replay.graph import Basis, KernelGraph
from replay.notes import joined_notes
from replay.parameters import Parameters, load_parameters
from replay.timeline import Timeline
from replay.what_ifs.what_if import WhatIf

__all__ = ["Projection", "ProjectionOptions", "ProjectionRow", "project"]

Floats = npt.NDArray[np.float64]
_QUANTILES = (0.05, 0.95)


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
    """

    draws: int = 32
    seed: int = 0
    progress: Callable[[int, int, str], None] | None = None
    iterations: Sequence[int] = ()


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
        Of the projected time of all tasks, by what their duration rests on; they add up to 1.
    notes : tuple of str
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
    InvalidInputError
        There is no graph, or the weights do not fit; or a what-if cannot be applied.
    """
    options = options or ProjectionOptions()
    _check(graphs, weights)
    nominal = load_parameters()
    weight = np.asarray(weights, dtype=np.float64)
    base = [Timeline(graph, *simulate(graph)) for graph in graphs]
    baseline = float(weight @ [timeline.makespan_ns for timeline in base])
    drawn = _draws(nominal, options)
    error = 1 + np.array([parameters["replay_error"] for parameters in drawn])
    tell, steps = options.progress or _quiet, (len(what_ifs) + 1) * options.draws
    loaded: list[list[KernelGraph]] = []
    for done, parameters in enumerate(drawn if what_ifs else []):
        tell(done, steps, "durations without contention")
        loaded.append([isolate(graph, parameters) for graph in graphs])
    rows, timelines = [], {"baseline": base[0]}
    for number, what_if in enumerate(what_ifs, 1):
        after = [_applied(what_if, graph, nominal) for graph in graphs]
        timelines[what_if.name] = after[0]
        samples = np.zeros(options.draws)
        for draw, (parameters, changed) in enumerate(zip(drawn, loaded, strict=True)):
            tell(number * options.draws + draw, steps, what_if.name)
            samples[draw] = weight @ [_applied(what_if, graph, parameters).makespan_ns for graph in changed]
        rows.append(_row(what_if, baseline, (after, weight), samples * error, options.iterations))
    measured = float(weight @ [graph.measured_ns for graph in graphs])
    return Projection(baseline, measured, tuple(rows), _provenance(meta, graphs, options), timelines)


def _quiet(_done: int, _total: int, _what: str) -> None:
    """Show no progress."""


def _check(graphs: Sequence[KernelGraph], weights: Sequence[float]) -> None:
    if not graphs:
        raise InvalidInputError("there is no iteration to project")
    if len(graphs) != len(weights) or not all(w > 0 for w in weights):
        raise InvalidInputError(f"{len(graphs)} iterations need as many weights above zero, not {list(weights)}")


def _draws(nominal: Parameters, options: ProjectionOptions) -> list[Parameters]:
    random = np.random.default_rng(options.seed)
    return [nominal.drawn(random) for _ in range(options.draws)]


def _applied(what_if: WhatIf, graph: KernelGraph, parameters: Parameters) -> Timeline:
    changed = what_if(graph, parameters)
    return Timeline(changed, *simulate(changed))


def _row(
    what_if: WhatIf,
    baseline: float,
    nominal: tuple[list[Timeline], Floats],
    samples: Floats,
    iterations: Sequence[int],
) -> ProjectionRow:
    after, weight = nominal
    projected = float(weight @ [timeline.makespan_ns for timeline in after])
    speedups = np.append(baseline / np.maximum(samples, 1e-9), baseline / max(projected, 1e-9))
    low, high = np.quantile(speedups, _QUANTILES)
    speedup = float(speedups[-1])
    shares = _shares(after, weight)
    return ProjectionRow(
        what_if.steps,
        projected,
        speedup,
        min(float(low), speedup),
        max(float(high), speedup),
        *shares,
        notes=joined_notes([timeline.graph.notes for timeline in after], iterations),
    )


def _shares(timelines: Sequence[Timeline], weight: Floats) -> tuple[float, float, float]:
    """Return the share of all tasks' projected time that rests on each `Basis`."""
    total = np.zeros(len(Basis))
    for timeline, w in zip(timelines, weight, strict=True):
        tasks = timeline.graph.tasks
        spent = np.where(tasks.own, timeline.end_ns - timeline.start_ns, 0.0)
        total += w * np.bincount(tasks.basis, weights=spent, minlength=len(Basis))
    measured, derived, assumed = (total / total.sum()).tolist() if total.sum() else (1.0, 0.0, 0.0)
    return measured, derived, assumed


def _provenance(meta: TraceMeta, graphs: Sequence[KernelGraph], options: ProjectionOptions) -> dict[str, Any]:
    parameters = {name: [p.value, p.low, p.high] for name, p in load_parameters().known.items()}
    text = json.dumps(parameters, sort_keys=True)
    hardware = graphs[0].hardware
    return {
        "trace_fingerprint": meta.fingerprint,
        "trace_format": meta.format,
        "sources": list(meta.sources),
        "synthetic": meta.synthetic,
        "device": hardware.device.name if hardware.device else None,
        "device_known_by": hardware.known_by,
        "version": version("seqpoint"),
        "parameters": parameters,
        "parameters_sha256": hashlib.sha256(text.encode()).hexdigest(),
        "draws": options.draws,
        "seed": options.seed,
        "confidence": round(_QUANTILES[1] - _QUANTILES[0], 6),
    }


def with_provenance(projection: Projection, more: dict[str, Any]) -> Projection:
    """Return `projection` with `more` in its provenance."""
    return replace(projection, provenance={**projection.provenance, **more})
