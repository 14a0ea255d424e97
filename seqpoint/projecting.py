"""Projections of what-ifs on a trace, and their JSON.

Project what-ifs over a whole trace: choose iterations, build their graphs, weigh them.

The result of a projection as JSON: what is written, how it is read, and how it is computed again.
"""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from profilers.errors import BrokenFileError, InvalidInputError, NotFoundError
from profilers.trace.steps import job_steps, step_times
from profilers.trace.trace import Trace
from replay.calibration.parameters import Parameters
from replay.costs.shipped import load_parameters
from replay.projection.projection import Projection, ProjectionOptions, project, with_provenance
from replay.projection.provenance import digest
from replay.what_ifs import OVERLAPS, WhatIf, compose, parse_what_if, read_plan
from seqpoint.graphs import Progress, all_iterations, step_windows
from seqpoint.iterations import iteration_table
from seqpoint.selection.selecting import SelectOptions, select

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
        return read_plan(text[1:], load_parameters())
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
    parameters = options.parameters or load_parameters()
    building = step_windows(
        trace,
        chosen.iterations,
        chosen.weights,
        device=options.device,
        parameters=parameters,
        progress=options.progress,
    )
    windows = list(building)
    numbers = [window.graph.iterations[window.chosen[0]] for window in windows]
    drawing = ProjectionOptions(options.draws, options.seed, options.progress, numbers, options.jobs)
    result = project(windows, what_ifs, meta=trace.meta, parameters=parameters, options=drawing)
    facts = {"iterations": chosen.iterations, "weights": chosen.weights, "iterations_chosen": chosen.how}
    facts |= {"ranks": list(trace.meta.ranks), "world_size": trace.meta.world_size}
    return with_provenance(result, facts)


_NAMES = ("projected_ns", "speedup", "low", "high", "measured_share", "derived_share", "assumed_share")
#: What is compared.
_COMPARED = ("baseline_ns", "measured_ns", "device_busy_share", "rows")
_BYTES, _DRAWS, _ITERATIONS, _WHAT_IFS, _SHOWN_CHARACTERS = 2**26, 100_000, 1_000_000, 10_000, 100
_TEXT = 500
#: Numbers of a record, and by how much those of a parameter's range may differ: what models can multiply.
_LARGEST, _WIDEST = 1e18, 1e12
_WRITES = "what `seqpoint project --json` writes"


def result_of(projection: Projection) -> dict[str, Any]:
    """Return a projection as JSON has it, with stable keys (`datasets/schemas/project.schema.json`)."""
    return {
        "baseline_ns": projection.baseline_ns,
        "measured_ns": projection.measured_ns,
        "steady_ns": projection.steady_ns,
        "device_busy_share": projection.device_busy_share,
        "pace": projection.pace,
        "pace_by_rank": {str(rank): share for rank, share in projection.pace_by_rank.items()},
        "room": projection.room,
        "bound": projection.bound,
        "rows": [
            {
                "title": row.title,
                "what_if": list(row.what_if),
                **{name: getattr(row, name) for name in _NAMES},
                "notes": list(row.notes),
            }
            for row in projection.rows
        ],
        "provenance": projection.provenance,
    }


def read_result(path: str | Path) -> dict[str, Any]:
    """Return what a file holds that `seqpoint project --json` wrote.

    Raises
    ------
    NotFoundError
        There is no such file.
    BrokenFileError
        It is no JSON, larger than 64 MiB, or not the result of a projection with all that it stands on.
    """
    path = Path(path)
    if not path.is_file():
        raise NotFoundError(f"{path}: no such file; give what `seqpoint project --json` wrote")
    with path.open("rb") as stream:
        content = stream.read(_BYTES + 1)
    if len(content) > _BYTES:
        raise BrokenFileError(f"{path}: larger than {_BYTES} bytes, so not the result of a projection")
    found = _loaded(content, str(path))
    facts = found.get("provenance") if isinstance(found, dict) else None
    if not isinstance(facts, dict):
        raise BrokenFileError(f"{path}: has no provenance, so it is not what `seqpoint project --json` wrote")
    for key in _COMPARED:
        if key not in found:
            raise BrokenFileError(f"{path}: has no {key}, so it is not what `seqpoint project --json` wrote")
    _check_facts(facts, str(path))
    assert isinstance(found, dict)
    return found


def _loaded(content: bytes, place: str) -> Any:
    try:
        return json.loads(content)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise BrokenFileError(f"{place}: no JSON: {error}") from error
    except RecursionError as error:
        raise BrokenFileError(f"{place}: no JSON: nested too deep") from error
    except ValueError as error:  # Python reads no number that is longer
        raise BrokenFileError(f"{place}: a number has thousands of digits") from error


def _check_facts(facts: dict[str, Any], place: str) -> None:
    weights, iterations = facts.get("weights") or [], facts.get("iterations") or []
    fine = {
        "trace_fingerprint": isinstance(facts.get("trace_fingerprint"), str),
        "draws": _whole(facts.get("draws")) and 1 <= facts["draws"] <= _DRAWS,
        "seed": _whole(facts.get("seed")) and facts["seed"] >= 0,
        "iterations": _is_list(iterations, _ITERATIONS) and all(_whole(one) for one in iterations),
        "weights": _is_list(weights, _ITERATIONS) and all(_number(w) and w > 0 for w in weights),
        "parameters": isinstance(facts.get("parameters"), dict),
        "what_ifs": _is_list(facts.get("what_ifs"), _WHAT_IFS) and all(map(_is_alternative, facts["what_ifs"])),
        "device": facts.get("device") is None or isinstance(facts["device"], str),
        "reading": _is_reading(facts.get("reading")),
    }
    for key, good in fine.items():
        if not good:
            raise BrokenFileError(f"{place}: provenance.{key} is missing or not {_WRITES}")
    for name, value in facts["parameters"].items():
        if not _is_range(value):
            raise BrokenFileError(f"{place}: provenance.parameters.{name[:60]} is not {_WRITES}: value, low and high")
    if digest(facts["parameters"]) != facts.get("parameters_sha256"):
        raise BrokenFileError(f"{place}: provenance.parameters has not its parameters_sha256; the file was changed")
    if len(weights) != len(iterations):
        raise BrokenFileError(f"{place}: provenance has {len(iterations)} iterations and {len(weights)} weights")


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _LARGEST


def _is_list(value: object, most: int) -> bool:
    return isinstance(value, list) and len(value) <= most


def _is_range(value: object) -> bool:
    if not isinstance(value, list) or len(value) != 3 or not all(map(_number, value)):
        return False
    nominal, low, high = value
    return bool(low <= nominal <= high and (low <= 0 or high <= _WIDEST * low))


def _is_alternative(value: object) -> bool:
    if not isinstance(value, dict):
        return False
    steps, parameters = value.get("steps"), value.get("parameters")
    return (
        isinstance(value.get("title"), str)
        and isinstance(steps, list)
        and 1 <= len(steps) <= 64
        and all(isinstance(step, str) for step in steps)
        and isinstance(parameters, dict)
        and all(map(_number, parameters.values()))
    )


def _is_reading(value: object) -> bool:
    if value is None:
        return True
    texts = [value.get("iterations"), value.get("length")] if isinstance(value, dict) else [0]
    return all(text is None or (isinstance(text, str) and len(text) <= _TEXT) for text in texts)


@dataclass(frozen=True)
class Reproduction:
    """A projection computed again from what it stands on.

    Parameters
    ----------
    identical : bool
        Whether every number and text is the same, bit for bit.
    compared : int
        Numbers and texts compared.
    differences : tuple of (where, recorded, now)
        At most 100.
    notes : tuple of str
        What the two stand on that is not the same: versions, fits, devices.
    """

    identical: bool
    compared: int
    differences: tuple[tuple[str, Any, Any], ...]
    notes: tuple[str, ...]


def reproduce(
    trace: Trace, recorded: dict[str, Any], *, jobs: int = 0, progress: Progress | None = None
) -> Reproduction:
    """Compute a recorded projection again, from its provenance and the trace alone, and compare.

    Iterations, weights, what-ifs, parameters, draws and seed are those of the record, also where this version has
    other defaults.

    Parameters
    ----------
    trace : Trace
    recorded : dict
        As `read_result` returns it.
    jobs : int
        Of no influence on the numbers.
    progress : callable, optional

    Raises
    ------
    InvalidInputError
        The trace is another one, by its fingerprint; or this version has not the same parameters.
    SeqPointError
        As `seqpoint.projecting.project_trace`.
    """
    facts = recorded["provenance"]
    if trace.meta.fingerprint != facts["trace_fingerprint"]:
        raise InvalidInputError(
            f"this is another trace: its fingerprint is {trace.meta.fingerprint[:16]}..., the result's is "
            f"{facts['trace_fingerprint'][:16]}... (of {', '.join(map(str, facts.get('sources', [])))[:200]})"
        )
    options = ProjectOptions(
        iterations=facts["iterations"],
        weights=facts["weights"],
        device=facts["device"] if facts.get("device_known_by") == "user" else None,
        draws=facts["draws"],
        seed=facts["seed"],
        jobs=jobs,
        progress=progress,
        parameters=_parameters(facts["parameters"]),
    )
    again = json.loads(json.dumps(result_of(project_trace(trace, _what_ifs(facts), options))))
    pairs = list(_compared({key: recorded[key] for key in _COMPARED}, {key: again[key] for key in _COMPARED}, ""))
    different = tuple(pair for pair in pairs if not _same(pair[1], pair[2]))
    return Reproduction(
        not different, len(pairs), different[:_SHOWN_CHARACTERS], tuple(_notes(facts, again["provenance"]))
    )


def _what_ifs(facts: dict[str, Any]) -> list[WhatIf]:
    found = []
    for one in facts["what_ifs"]:
        parts = [parse_what_if(step) for step in one["steps"]]
        what_if = parts[0] if len(parts) == 1 else compose(*parts)
        parameters = tuple(sorted((name, float(value)) for name, value in one["parameters"].items()))
        found.append(replace(what_if, title=one["title"], parameters=parameters))
    return found


def _parameters(recorded: dict[str, Sequence[float]]) -> Parameters:
    """Return the recorded parameters, in the order in which this version draws them."""
    shipped = load_parameters()
    own = shipped.known
    if odd := sorted(set(own) ^ set(recorded)):
        raise InvalidInputError(f"this version has not the parameters of the result: {', '.join(odd)[:200]} differ")
    known = {
        name: replace(one, value=float(value), low=float(low), high=float(high), source="the result")
        for name, one in own.items()
        for value, low, high in [recorded[name]]
    }
    return replace(shipped, known=known, values={name: one.value for name, one in known.items()})


def _compared(one: object, other: object, where: str) -> Iterator[tuple[str, Any, Any]]:
    """Yield where, recorded and now for every leaf of either."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted(set(one) | set(other)):
            yield from _compared(one.get(key), other.get(key), f"{where}.{key}".lstrip("."))
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for i, (a, b) in enumerate(zip(one, other, strict=True)):
            yield from _compared(a, b, f"{where}[{i}]")
    else:
        yield where, one, other


def _same(one: object, other: object) -> bool:
    """Return whether two leaves are the same; a number that JSON cannot hold was written as null."""
    if isinstance(other, float) and not math.isfinite(other):
        return one is None
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def _notes(recorded: dict[str, Any], now: dict[str, Any]) -> Iterator[str]:
    for key in ("version", "libraries", "models_sha256", "device", "device_known_by"):
        if recorded.get(key) != now.get(key):
            yield f"{key} was {str(recorded.get(key))[:200]} and is {str(now.get(key))[:200]}"
