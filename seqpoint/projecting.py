"""Project what-ifs over a whole trace: choose iterations, build their graphs, weigh them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from profilers.steps import job_steps, step_times
from profilers.trace import Trace
from replay.parameters import Parameters
from replay.projection import Projection, ProjectionOptions, project, with_provenance
from replay.what_ifs import OVERLAPS, WhatIf, parse_what_if, read_plan
from seqpoint.graphs import Progress, all_iterations, step_windows
from seqpoint.iterations import iteration_table
from seqpoint.selecting import SelectOptions, select

__all__ = [
    "ALL_OVERLAPS",
    "DEFAULT_WHAT_IFS",
    "Chosen",
    "ProjectOptions",
    "asked_what_ifs",
    "choose_iterations",
    "pace_lines",
    "project_trace",
    "ranked",
]

#: What is projected when nothing is asked for.
DEFAULT_WHAT_IFS = ("dma_collectives", "overlap:none", "overlap:no_contention", "overlap:ideal", "scale_host:0.5")
#: Stands for all of `replay.what_ifs.OVERLAPS`, which are then ranked.
ALL_OVERLAPS = "overlap:all"
#: Shares of the critical path below this are not shown.
_SHOWN = 0.005
#: By which share steady state and measurement may differ before a note says so.
_APART = 0.02
#: The share of the critical path, beyond an equal one of the rest, from which on a rank holds up the others.
_MOST = 0.5


@dataclass(frozen=True)
class ProjectOptions:
    """How a trace is projected.

    Parameters
    ----------
    iterations : sequence of int
        Only these; by default all where they are few, else representatives.
    max_points : int
        Representatives at most.
    device : str, optional
        What the trace was recorded on, where it does not say.
    weights : sequence of float
        How many iterations each of `iterations` stands for; by default one.
    draws, seed, jobs : int
    parameters : Parameters, optional
        See `replay.projection.ProjectionOptions`.
    progress : callable, optional
        Called with (steps done, steps in all, what).
    """

    iterations: Sequence[int] = ()
    max_points: int = 8
    device: str | None = None
    draws: int = 32
    seed: int = 0
    progress: Progress | None = None
    jobs: int = 0
    weights: Sequence[float] = ()
    parameters: Parameters | None = None


@dataclass(frozen=True)
class Chosen:
    """Iterations to replay, how many each stands for, and how they were chosen."""

    iterations: list[int]
    weights: list[float]
    how: str


def asked_what_ifs(texts: Sequence[str]) -> list[WhatIf]:
    """Return the what-ifs of texts; one that starts with ``@`` names a plan file, with several, as has ``overlap:all``.

    Raises
    ------
    SeqPointError
        As `replay.what_ifs.parse_what_if` and `replay.what_ifs.read_plan`.

    Examples
    --------
    >>> [what_if.name for what_if in asked_what_ifs(["overlap:ideal", "scale_links:2"])]
    ['overlap:ideal', 'scale_links:2']
    """
    return [one for text in texts for one in _asked(text)]


def _asked(text: str) -> Sequence[WhatIf]:
    if text.startswith("@"):
        return read_plan(text[1:])
    return [parse_what_if(one) for one in (OVERLAPS if text == ALL_OVERLAPS else (text,))]


def ranked(projection: Projection) -> Projection:
    """Return `projection` with its what-ifs by what they gain, the most first; its provenance in the same order."""
    order = sorted(range(len(projection.rows)), key=lambda i: (-projection.rows[i].speedup, i))
    facts = projection.provenance
    rows = tuple(projection.rows[i] for i in order)
    return replace(projection, rows=rows, provenance={**facts, "what_ifs": [facts["what_ifs"][i] for i in order]})


def choose_iterations(trace: Trace, asked: Sequence[int] = (), max_points: int = 8) -> Chosen:
    """Return the iterations asked for, all where they are few, else SeqPoints, else evenly spaced ones.

    Raises
    ------
    InvalidInputError
        The trace has no iteration.
    """
    have = list(dict.fromkeys(asked)) or all_iterations(trace)
    if asked or len(have) <= max_points:
        return Chosen(have, [1.0] * len(have), "as asked" if asked else "all")
    table = iteration_table(trace)
    if np.isfinite(table.sequence_length).any():
        result = select(table, SelectOptions(max_points=max_points))
        return Chosen([int(n) for n in result.table.iteration[result.rows]], result.weights.tolist(), "SeqPoint")
    # The step of an iteration that follows another is timed from its completion; the first fills the queues.
    steps = job_steps(step_times(trace))
    inside = steps.iteration[steps.follows & (steps.step_ns > 0)].tolist()
    inside = sorted(inside) if len(inside) >= max_points else have
    spaced = [inside[i] for i in np.unique(np.linspace(0, len(inside) - 1, max_points).round().astype(int))]
    return Chosen(spaced, [len(have) / len(spaced)] * len(spaced), "evenly spaced")


def _steps(projection: Projection) -> str:
    n = len(projection.provenance.get("iterations", ()))
    return f"{n} iterations together" if n > 1 else "of one iteration"


def pace_lines(projection: Projection) -> list[str]:
    """Return what sets the time of a step, how much room there is, and how far the steady state is from the trace."""
    lines = []
    if projection.pace:
        shares = sorted(projection.pace.items(), key=lambda item: -item[1])
        text = ", ".join(f"{name} {100 * share:.0f} %" for name, share in shares if share >= _SHOWN)
        lines.append(f"pace: the critical path of a step is {text} (all {_steps(projection)})")
        for name, bound in projection.bound.items():
            costs = f"{name}s {100 * projection.room[name]:.0f} % slower would cost nothing"
            lines.append(f"pace: if {name}s took no time, steps would be {bound:.2f} times as fast; {costs}")
        rank, most = max(projection.pace_by_rank.items(), key=lambda item: item[1], default=(-1, 0.0))
        ranks = len(projection.pace_by_rank)
        if ranks > 1 and most > _MOST + (1 - _MOST) / ranks:
            lines.append(f"pace: rank {rank} has {100 * most:.0f} % of the critical path; the other ranks wait for it")
    apart = projection.steady_ns / projection.measured_ns - 1 if projection.measured_ns else 0.0
    if abs(apart) > _APART:
        more = f"{100 * abs(apart):.1f} % {'longer' if apart > 0 else 'less'}"
        lines.append(
            f"note: repeated, these iterations take {more} than in the recording, which is not in a steady state: "
            "queues grow or shrink in it. Intervals are wider for that."
        )
    facts = projection.provenance
    missing = (facts.get("world_size") or 0) - len(facts.get("ranks", ()))
    if missing > 0 and projection.pace.get("communication", 0.0) > _APART:
        absent = f"{missing} of {facts['world_size']} ranks are not in the trace"
        lines.append(f"note: {absent}: collectives contain the wait for them, which faster links need not shorten")
    return lines


def project_trace(trace: Trace, what_ifs: Sequence[WhatIf], options: ProjectOptions | None = None) -> Projection:
    """Return the projection of what-ifs over a trace, with what it rests on.

    Raises
    ------
    SeqPointError
        As `choose_iterations`, `step_windows` and `replay.projection.project`.
    """
    options = options or ProjectOptions()
    chosen = choose_iterations(trace, options.iterations, options.max_points)
    if options.weights:
        chosen = Chosen(list(options.iterations), list(options.weights), "as asked")
    building = step_windows(trace, chosen.iterations, chosen.weights, device=options.device, progress=options.progress)
    windows = list(building)
    numbers = [window.graph.iterations[window.chosen[0]] for window in windows]
    drawing = ProjectionOptions(
        options.draws, options.seed, options.progress, numbers, options.jobs, options.parameters
    )
    result = project(windows, what_ifs, meta=trace.meta, options=drawing)
    facts = {"iterations": chosen.iterations, "weights": chosen.weights, "iterations_chosen": chosen.how}
    facts |= {"ranks": list(trace.meta.ranks), "world_size": trace.meta.world_size}
    return with_provenance(result, facts)
