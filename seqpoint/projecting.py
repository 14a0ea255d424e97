"""Projections of what-ifs on a trace: made, read from JSON, and computed again.

`project_trace` chooses iterations, builds the windows of their steps, and projects each what-if on them. A result is
written as JSON with the provenance that `reproduce` needs to compute every number again. `read_result` checks such a
file, which may come from anybody.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import msgspec

from profilers.errors import BrokenFileError, InvalidInputError, NotFoundError
from profilers.ingest.collectives import reclassify
from profilers.trace.kernels import CLASSES, ClassRule, is_collective
from profilers.trace.trace import Trace
from replay.calibration.parameters import Parameters
from replay.contention.pairs import measure_pairs
from replay.contention.totals import with_pairs
from replay.costs.recording import cost_facts, cost_note, recording_cost
from replay.costs.shipped import load_parameters
from replay.engine.timeline import Timeline
from replay.from_trace import index_trace
from replay.from_trace.host_causes import host_causes
from replay.graph.graph import hardware_of
from replay.projection.evidence import SIDES, SampledStep, digest
from replay.projection.projection import Projection, ProjectionOptions, project, with_provenance
from replay.projection.rows import ROW_FIGURES, ProjectionRow, recording_notes
from replay.what_ifs import (
    OVERLAPS,
    CollectiveEffect,
    LayerQuantization,
    WhatIf,
    all_effects,
    all_layers,
    parse_what_if,
    read_plan,
)
from seqpoint.breakdown import host_sentence, limits_sentence
from seqpoint.choosing import ChosenIterations, choose_iterations
from seqpoint.communication import communication_table, effect_tables, layer_tables
from seqpoint.graphs import Progress, communication_facts, communication_rows, step_windows
from seqpoint.notebook import DataFrame, Table, as_html, as_text, data_frame
from seqpoint.units import duration

#: What-ifs that are projected by default: of a job with collectives, and of another.
_DEFAULT_WITH_COLLECTIVES = (
    *("dma_collectives", "overlap:none", "overlap:no_contention", "overlap:ideal", "scale_host:0.5"),
)
_DEFAULT_WITHOUT_COLLECTIVES = ("scale_host:0.5", "remove_launch_overhead", "scale_kernels:all:0.5")
#: Added to the latter if the device is known.
_DEFAULT_OF_KNOWN_DEVICE = ("scale_clock:1.1", "scale_memory_bandwidth:1.5")
#: Name for all of `replay.what_ifs.OVERLAPS`, ranked by speed-up.
ALL_OVERLAPS = "overlap:all"
#: Numbers of a projection, by their JSON keys.
_TIME_FIELDS = ("baseline_ns", "measured_ns", "steady_ns", "device_busy_share")
#: Most devices in the table of communication; the JSON has all.
_MAX_DEVICES = 8
#: Smallest share of the critical path that is shown.
_MIN_SHARE = 0.005
#: A larger bound is not shown as a number: nothing else takes time.
_MOST_BOUND = 100.0
#: A rank holds up the others if its share of the critical path exceeds this, plus an equal share of the rest.
_DOMINANT_SHARE = 0.5


@dataclass(frozen=True)
class ProjectOptions:
    """Options of a projection of a trace.

    Parameters
    ----------
    iterations : sequence of int
        Iterations to project; by default all if they are few, else representatives.
    max_points : int
        Most representatives.
    device : str, optional
        Device that the trace was recorded on, if the trace does not say.
    weights : sequence of float
        Number of iterations that each of `iterations` stands for; by default 1.
    draws : int
        Number of draws of the parameters from their ranges, for the interval.
    seed : int
        Seed of the draws.
    jobs : int
        Draws at a time; 0 for one on each core.
    parameters : Parameters, optional
        Parameters of the models with their ranges, see `replay.projection.ProjectionOptions`.
    progress : callable, optional
        Called with (steps done, steps in all, what).
    keep_outliers : bool
        Whether representatives are chosen from outlying iterations, such as the warm-up, too.
    sampled : sequence of SampledStep
        How each of `iterations` stands for others, with `weights`.
    why : bool
        Whether the result says what each what-if does to each collective, or why nothing, and to weights of layers.
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
    keep_outliers: bool = False
    sampled: Sequence[SampledStep] = ()
    why: bool = False


@dataclass(frozen=True)
class TraceProjection:
    """Speed-ups of what-ifs on a trace.

    Parameters
    ----------
    projection : Projection
        The step times of the chosen iterations, unchanged and under each what-if, with intervals and provenance.
    chosen : ChosenIterations
        The iterations that were replayed, and the run that they stand for.
    effects : tuple of CollectiveEffect, optional
        Effect of each what-if on each collective, or why there is none; None if nobody asked for them.
    layers : tuple of LayerQuantization
        Times of the layers whose weights a what-if quantises, if somebody asked for effects.
    """

    projection: Projection
    chosen: ChosenIterations
    effects: tuple[CollectiveEffect, ...] | None = None
    layers: tuple[LayerQuantization, ...] = ()

    @property
    def rows(self) -> tuple[ProjectionRow, ...]:
        """A row for each what-if, with its speed-up and interval."""
        return self.projection.rows

    @property
    def provenance(self) -> Mapping[str, Any]:
        """Everything that is needed to compute the numbers again."""
        return self.projection.provenance

    def with_facts(self, facts: Mapping[str, Any]) -> "TraceProjection":
        """Return the same projection with `facts` added to its provenance."""
        return replace(self, projection=with_provenance(self.projection, dict(facts)))

    def ranked(self) -> "TraceProjection":
        """Return the same projection with what-ifs, and their provenance, ordered by speed-up, largest first.

        Those that are not applicable come last.
        """
        rows, facts = self.rows, self.provenance
        order = sorted(range(len(rows)), key=lambda i: (-rows[i].speedup if rows[i].applied else math.inf, i))
        what_ifs = [facts["what_ifs"][i] for i in order]
        ordered = replace(
            self.projection, rows=tuple(rows[i] for i in order), provenance={**facts, "what_ifs": what_ifs}
        )
        return replace(self, projection=ordered)

    def timelines(self) -> dict[str, Timeline]:
        """Return the timelines of the first window by name: unchanged, and under the first what-if that applies."""
        timelines = self.projection.timelines
        after = {f"after {row.label}": timelines[row.label] for row in self._applied()[:1]}
        return {"before": timelines["baseline"], **after}

    def _applied(self) -> list[ProjectionRow]:
        return [row for row in self.rows if row.applied]

    def table(self) -> DataFrame:
        """Return a row for each what-if: speed-up with its interval, times in ns, shares of evidence and of sides.

        Figures of a what-if that is not applicable are NaN.
        """
        columns = ["what_if", *ROW_FIGURES, *(f"{side}_share" for side in SIDES), "applied", "reason"]
        return data_frame([_cells(row) for row in self.rows], columns=columns)

    def plot(self) -> Any:
        """Return the chart of speed-ups with their intervals, as a HoloViews object."""
        from seqpoint.plots import projection_intervals

        return projection_intervals(self.projection)

    def plot_timelines(self, what_if: str | None = None) -> Any:
        """Return the timelines of the first window, unchanged and under a what-if; by default the first applied."""
        from seqpoint.plots import before_after

        timelines = self.projection.timelines
        label = what_if or next((row.label for row in self._applied()), "any what-if")
        if label not in timelines:
            raise NotFoundError(f"no timeline of {label!r}; there are {', '.join(timelines)}")
        return before_after(timelines["baseline"], timelines[label], ("baseline", label))

    def to_dict(self) -> dict[str, Any]:
        """Return what `seqpoint project --json` prints (`datasets/schemas/project.schema.json`)."""
        projection = self.projection
        return {
            **{name: getattr(projection, name) for name in _TIME_FIELDS},
            "pace": projection.pace,
            "pace_by_rank": {str(rank): share for rank, share in projection.pace_by_rank.items()},
            **{name: dict(getattr(projection.limits, name)) for name in ("room", "bound", "then")},
            "run": self.chosen.run.to_dict(),
            "points": self.chosen.rows(),
            "communication": communication_facts(projection.timelines["baseline"]),
            "rows": [row.to_dict() for row in projection.rows],
            "provenance": projection.provenance,
        } | self._reasons()

    def _reasons(self) -> dict[str, Any]:
        """Return effects on collectives and on weights of layers, if somebody asked for them, as JSON."""
        if self.effects is None:
            return {}
        effects = {"effects": [effect.to_dict() for effect in self.effects]}
        return effects | ({"layers": [layer.to_dict() for layer in self.layers]} if self.layers else {})

    def communication(self) -> Table:
        """Return the communication of each device in the first step, unchanged, as text; of the first few devices."""
        rows = communication_rows(self.projection.timelines["baseline"])
        more = f" ({len(rows) - _MAX_DEVICES} more devices not shown)" if len(rows) > _MAX_DEVICES else ""
        return communication_table(f"Communication in the first step, unchanged{more}", rows, _MAX_DEVICES)

    def why(self) -> list[Table]:
        """Return what each what-if does to collectives and to weights of layers, and why nothing, as tables of text.

        Raises
        ------
        InvalidInputError
            The projection was made without `why`.
        """
        if self.effects is None:
            raise InvalidInputError("the projection does not know what happens to collectives; project with why=True")
        return [*effect_tables(self.effects), *layer_tables(self.layers)]

    def points_table(self) -> DataFrame:
        """Return the replayed iterations, a row each, with weight, measured step time in ns, and file."""
        return data_frame(self.chosen.rows(), columns=["iteration", "weight", "measured_ns", "file"])

    def summary(self) -> list[str]:
        """Return what was measured, what is estimated from it, and what is replayed, in a sentence each."""
        facts, baseline, chosen = self.provenance, self.projection.baseline_ns, self.chosen
        label, source = (" (synthetic)", "synthesised") if facts["synthetic"] else ("", "measured")
        n, measured = len(chosen.numbers), sum(chosen.measured_ns)
        many, these = (f"{n} iterations", f"these {n} iterations") if n > 1 else ("1 iteration", "this iteration")
        times = f"{duration(measured)} together, {duration(measured / n)} each" if n > 1 else duration(measured)
        device = facts["device"] or "unknown device"
        sentences = [f"{source}: {many} ({chosen.how}), {times}, on {device}{label}"]
        if chosen.sampled or chosen.run.outliers:
            sentences += [chosen.run.sentence(), chosen.run.outliers_sentence()]
        weighted = f", weighted for {sum(chosen.weights):g} iterations" if chosen.sampled else ""
        sentences.append(f"replayed: {these}{weighted}; speed-ups count from {duration(baseline)}")
        return [sentence for sentence in sentences if sentence]

    def notes(self) -> tuple[str, ...]:
        """Return the pace of a step, and the notes of all what-ifs; a note of some rows names them."""
        labels: dict[str, list[str]] = {}
        for row in self.rows:
            for note in row.notes:
                labels.setdefault(note, []).append(row.label)
        notes = []
        for note, of_rows in labels.items():
            is_named = len(of_rows) == len(self.rows) or any(note.startswith(f"{label}:") for label in of_rows)
            notes.append(f"note: {note}" if is_named else f"note on {', '.join(of_rows)}: {note}")
        return (*pace_lines(self.projection), *notes)

    def _sentences(self) -> list[str]:
        refused = [f"{row.label}: not applicable: {row.reason}" for row in self.rows if not row.applied]
        return [*self.summary(), *self.notes(), *refused]

    def __repr__(self) -> str:
        """Return what the command prints, without its layout."""
        table = self.table()
        return as_text(self._sentences(), table.loc[table.applied, ["what_if", "speedup", "low", "high"]])

    def _repr_html_(self) -> str:
        table = self.table()
        return as_html(
            "Projection",
            self._sentences(),
            {"What-ifs": table[table.applied].drop(columns=["measured_share", "reason"])},
        )


def _cells(row: ProjectionRow) -> dict[str, Any]:
    """Return the cells of a row of the table of what-ifs."""
    sides = {f"{side}_share": math.nan if row.evidence is None else row.evidence.side(side) for side in SIDES}
    figures = {name: getattr(row, name) for name in ROW_FIGURES}
    return {"what_if": row.label, **figures, **sides, "applied": row.applied, "reason": row.reason}


def default_what_ifs(trace: Trace, device: str | None = None) -> tuple[str, ...]:
    """Return the what-ifs that are projected if none is named: those on communication only if the job has any.

    Parameters
    ----------
    trace : Trace
        The trace.
    device : str, optional
        Device that the trace was recorded on, if the trace does not say.
    """
    rules = trace.meta.class_rules
    if any(is_collective(name, rules) for name in trace.kernels["name"].unique().to_pylist() if name):
        return _DEFAULT_WITH_COLLECTIVES
    is_known = device is not None or hardware_of(trace).device is not None
    return _DEFAULT_WITHOUT_COLLECTIVES + (_DEFAULT_OF_KNOWN_DEVICE if is_known else ())


def parse_what_ifs(texts: Sequence[str]) -> list[WhatIf]:
    """Return the what-ifs that texts name.

    Parameters
    ----------
    texts : sequence of str
        What-ifs such as ``"overlap:ideal"``. ``"@FILE.toml"`` names a plan, and ``"overlap:all"`` all overlaps; each
        gives several what-ifs.

    Raises
    ------
    SeqPointError
        A what-if is unknown, or a plan cannot be read.

    Examples
    --------
    >>> [what_if.name for what_if in parse_what_ifs(["overlap:ideal", "scale_links:2"])]
    ['overlap:ideal', 'scale_links:2']
    """
    return [what_if for text in texts for what_if in _parsed(text)]


def _parsed(text: str) -> Sequence[WhatIf]:
    if text.startswith("@"):
        return read_plan(text[1:], load_parameters())
    return [parse_what_if(name) for name in (OVERLAPS if text == ALL_OVERLAPS else (text,))]


def _steps(projection: Projection) -> str:
    n = len(projection.provenance.get("iterations", ()))
    return f"{n} iterations together" if n > 1 else "of one iteration"


def pace_lines(projection: Projection) -> list[str]:
    """Return sentences on the pace of a step, and the difference of the steady state from the trace.

    Parameters
    ----------
    projection : Projection
        The projection, with the pace of its baseline.
    """
    lines, facts = [], projection.provenance
    if sentence := limits_sentence(projection.limits, f"all {_steps(projection)}"):
        lines.append(f"pace: {sentence}")
        lines += [f"pace: {facts['host']}"] if facts.get("host") else []
        rank, largest = max(projection.pace_by_rank.items(), key=lambda item: item[1], default=(-1, 0.0))
        ranks = len(projection.pace_by_rank)
        if ranks > 1 and largest > _DOMINANT_SHARE + (1 - _DOMINANT_SHARE) / ranks:
            lines.append(
                f"pace: rank {rank} has {100 * largest:.0f} % of the critical path; the other ranks wait for it"
            )
    steady, communication = (
        projection.steady_ns / projection.measured_ns if projection.measured_ns else 1.0,
        projection.pace.get("communication", 0.0),
    )
    world_size, ranks = facts.get("world_size") or 0, len(facts.get("ranks", ()))
    notes = recording_notes(steady, communication, world_size=world_size, ranks=ranks)
    if cost := facts.get("recording"):
        notes.append(f"{cost_note(cost)}: the intervals hold the host with and without it")
    return [*lines, *(f"note: {note}" for note in notes)]


def project_trace(trace: Trace, what_ifs: Sequence[WhatIf], options: ProjectOptions | None = None) -> TraceProjection:
    """Project what-ifs on the steps of a trace.

    Parameters
    ----------
    trace : Trace
        The trace.
    what_ifs : sequence of WhatIf
        The what-ifs, a row each.
    options : ProjectOptions, optional
        Iterations, device and draws.

    Raises
    ------
    SeqPointError
        The device or an iteration is unknown, or a what-if cannot be applied.
    """
    options = options or ProjectOptions()
    chosen = choose_iterations(
        trace, options.iterations, options.max_points, keep_outliers=options.keep_outliers
    ).weighted(options.weights, options.sampled)
    parameters, pairs = options.parameters or load_parameters(), measure_pairs(trace)
    cost = recording_cost(trace, parameters, chosen.numbers)
    windows = [
        replace(chosen.put(window), graph=with_pairs(window.graph, pairs), recording=cost)
        for window in step_windows(
            trace,
            chosen.numbers,
            chosen.weights,
            device=options.device,
            parameters=parameters,
            progress=options.progress,
        )
    ]
    numbers = [window.graph.iterations[window.chosen[0]] for window in windows]
    drawing = ProjectionOptions(options.draws, options.seed, options.progress, numbers, options.jobs)
    result = project(windows, what_ifs, meta=trace.meta, parameters=parameters, options=drawing)
    facts: dict[str, Any] = {"iterations": list(chosen.numbers), "weights": list(chosen.weights)}
    facts |= {"iterations_chosen": chosen.how, "sampled": [asdict(step) for step in chosen.sampled]}
    facts |= {"host": host_sentence(host_causes(index_trace(trace)))}
    facts |= {} if cost is None else {"recording": cost_facts(cost, parameters)}
    facts |= {"ranks": list(trace.meta.ranks), "world_size": trace.meta.world_size}
    graphs = [window.graph for window in windows] if options.why else []
    effects = all_effects(what_ifs, graphs, chosen.numbers, parameters) if options.why else None
    layers = all_layers(what_ifs, graphs, chosen.numbers, parameters)
    return TraceProjection(with_provenance(result, facts), chosen, effects, layers)


#: Keys of a result that are compared.
_COMPARED_KEYS = ("baseline_ns", "measured_ns", "device_busy_share", "rows")
#: Limits of a result file, which may come from anybody.
_MAX_BYTES, _MAX_DRAWS, _MAX_ITERATIONS, _MAX_WHAT_IFS, _MAX_TEXT = 2**26, 100_000, 1_000_000, 10_000, 500
#: Largest number of a result, and largest ratio of a parameter's range: models can still multiply them.
_MAX_NUMBER, _MAX_RATIO = 1e18, 1e12
#: Most differences that a reproduction lists.
_MAX_DIFFERENCES = 100
_EXPECTED = "what `seqpoint project --json` writes"


def read_result(path: str | Path) -> dict[str, Any]:
    """Read a result of `seqpoint project --json`, and check it.

    Parameters
    ----------
    path : str or Path
        The file.

    Raises
    ------
    NotFoundError
        There is no such file.
    BrokenFileError
        The file is not JSON, is larger than 64 MiB, or is not the result of a projection with its provenance.
    """
    path = Path(path)
    if not path.is_file():
        raise NotFoundError(f"{path}: no such file; give what `seqpoint project --json` wrote")
    with path.open("rb") as stream:
        content = stream.read(_MAX_BYTES + 1)
    if len(content) > _MAX_BYTES:
        raise BrokenFileError(f"{path}: larger than {_MAX_BYTES} bytes, so not the result of a projection")
    result = _loaded(content, str(path))
    if not (isinstance(result, dict) and isinstance(result.get("provenance"), dict)):
        raise BrokenFileError(f"{path}: has no provenance, so it is not {_EXPECTED}")
    if missing := next((key for key in _COMPARED_KEYS if key not in result), None):
        raise BrokenFileError(f"{path}: has no {missing}, so it is not {_EXPECTED}")
    _check_facts(result["provenance"], str(path))
    return result


def _loaded(content: bytes, file: str) -> Any:
    try:
        return json.loads(content)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise BrokenFileError(f"{file}: not JSON: {error}") from error
    except RecursionError as error:
        raise BrokenFileError(f"{file}: not JSON: nested too deep") from error
    except ValueError as error:  # Python refuses numbers of thousands of digits
        raise BrokenFileError(f"{file}: a number has thousands of digits") from error


_Number = Annotated[float, msgspec.Meta(ge=-_MAX_NUMBER, le=_MAX_NUMBER)]
_Whole = Annotated[int, msgspec.Meta(ge=1 - 2**63, le=2**63 - 1)]
_Text = Annotated[str, msgspec.Meta(max_length=_MAX_TEXT)]


class _RecordedWhatIf(msgspec.Struct):
    """A what-if of the provenance."""

    title: str
    steps: Annotated[list[str], msgspec.Meta(min_length=1, max_length=64)]
    parameters: dict[str, _Number]


class _RecordedSample(msgspec.Struct):
    """How a chosen iteration stands for others."""

    position: _Number
    deviation: Annotated[float, msgspec.Meta(ge=0, le=_MAX_NUMBER)]


class _Reading(msgspec.Struct):
    """How the trace was read."""

    iterations: _Text | None = None
    length: _Text | None = None


#: Facts of the provenance that a projection is computed from again.
_FACTS: Mapping[str, Any] = MappingProxyType(
    {
        "trace_fingerprint": str,
        "draws": Annotated[int, msgspec.Meta(ge=1, le=_MAX_DRAWS)],
        "seed": Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)],
        "iterations": Annotated[list[_Whole], msgspec.Meta(max_length=_MAX_ITERATIONS)] | None,
        "weights": Annotated[
            list[Annotated[float, msgspec.Meta(gt=0, le=_MAX_NUMBER)]], msgspec.Meta(max_length=_MAX_ITERATIONS)
        ]
        | None,
        "sampled": Annotated[list[_RecordedSample], msgspec.Meta(max_length=_MAX_ITERATIONS)] | None,
        "parameters": dict[str, Any],
        "what_ifs": Annotated[list[_RecordedWhatIf], msgspec.Meta(max_length=_MAX_WHAT_IFS)],
        "device": str | None,
        "reading": _Reading | None,
        "class_rules": list[tuple[_Text, _Text]] | None,
    }
)


def _check_facts(facts: dict[str, Any], file: str) -> None:
    for key, layout in _FACTS.items():
        if not _has_layout(facts.get(key), layout):
            raise BrokenFileError(f"{file}: provenance.{key} is missing or not {_EXPECTED}")
    for name, value in facts["parameters"].items():
        if not (_has_layout(value, tuple[_Number, _Number, _Number]) and _is_range(*value)):
            raise BrokenFileError(f"{file}: provenance.parameters.{name[:60]} is not {_EXPECTED}: value, low and high")
    if digest(facts["parameters"]) != facts.get("parameters_sha256"):
        raise BrokenFileError(f"{file}: provenance.parameters do not match parameters_sha256; the file was changed")
    weights, iterations = facts.get("weights") or [], facts.get("iterations") or []
    if len(weights) != len(iterations):
        raise BrokenFileError(f"{file}: provenance has {len(iterations)} iterations and {len(weights)} weights")
    if len(sampled := facts.get("sampled") or iterations) != len(iterations):
        raise BrokenFileError(f"{file}: provenance has {len(iterations)} iterations and {len(sampled)} samples")


def _has_layout(value: object, layout: Any) -> bool:
    try:
        msgspec.convert(value, layout)
    except msgspec.ValidationError:
        return False
    return True


def _is_range(nominal: float, low: float, high: float) -> bool:
    return low <= nominal <= high and (low <= 0 or high <= _MAX_RATIO * low)


@dataclass(frozen=True)
class Reproduction:
    """A projection computed again from its provenance, compared with the recorded one.

    Parameters
    ----------
    identical : bool
        Whether every number and text is the same, bit for bit.
    compared : int
        Number of compared numbers and texts.
    differences : tuple of (where, recorded, now)
        The first 100 differences.
    notes : tuple of str
        Differences of the provenance: versions, fits, devices.
    """

    identical: bool
    compared: int
    differences: tuple[tuple[str, Any, Any], ...]
    notes: tuple[str, ...]


def reproduce(
    trace: Trace, recorded: dict[str, Any], *, jobs: int = 0, progress: Progress | None = None
) -> Reproduction:
    """Compute a recorded projection again, from its provenance and the trace alone, and compare.

    Iterations, weights, what-ifs, parameters, draws and seed are those of the record, even if this version has other
    defaults.

    Parameters
    ----------
    trace : Trace
        The trace of the projection.
    recorded : dict
        The recorded result, as `read_result` returns it.
    jobs : int
        Draws at a time; it does not change the numbers.
    progress : callable, optional
        Called with (steps done, steps in all, what).

    Raises
    ------
    InvalidInputError
        The fingerprint of the trace is another, or this version has other parameters.
    SeqPointError
        The projection cannot be computed, see `project_trace`.
    """
    facts = recorded["provenance"]
    if trace.meta.fingerprint != facts["trace_fingerprint"]:
        raise InvalidInputError(
            f"this is another trace: its fingerprint is {trace.meta.fingerprint[:16]}..., the result's is "
            f"{facts['trace_fingerprint'][:16]}... (of {', '.join(map(str, facts.get('sources', [])))[:200]})"
        )
    trace = _with_classes(trace, facts)
    options = ProjectOptions(
        iterations=facts["iterations"],
        weights=facts["weights"],
        device=facts["device"] if facts.get("device_known_by") == "user" else None,
        draws=facts["draws"],
        seed=facts["seed"],
        jobs=jobs,
        progress=progress,
        parameters=_parameters(facts["parameters"]),
        sampled=[SampledStep(**sample) for sample in facts.get("sampled") or ()],
    )
    again = json.loads(json.dumps(project_trace(trace, _what_ifs(facts), options).to_dict()))
    before, after = ({key: result[key] for key in _COMPARED_KEYS} for result in (recorded, again))
    leaves = list(_leaves(before, after, ""))
    differences = tuple(leaf for leaf in leaves if not _same(leaf[1], leaf[2]))
    now = again["provenance"]
    changes = tuple(
        f"{key} was {str(facts.get(key))[:200]} and is {str(now.get(key))[:200]}"
        for key in ("version", "libraries", "models_sha256", "device", "device_known_by")
        if facts.get(key) != now.get(key)
    )
    return Reproduction(not differences, len(leaves), differences[:_MAX_DIFFERENCES], changes)


def _with_classes(trace: Trace, facts: dict[str, Any]) -> Trace:
    """Return the trace with the user's own classes of kernels that a result was computed with."""
    rules = tuple(ClassRule(*rule) for rule in facts.get("class_rules") or ())
    if unknown := {rule.class_ for rule in rules} - set(CLASSES):
        raise InvalidInputError(f"the result names an unknown class of kernels: {min(unknown)[:60]}")
    if trace.meta.class_rules not in ((), rules):
        raise InvalidInputError("the trace has other classes of kernels than the result; ingest it with the same")
    return reclassify(trace, rules) if rules != trace.meta.class_rules else trace


def _what_ifs(facts: dict[str, Any]) -> list[WhatIf]:
    what_ifs = []
    for record in facts["what_ifs"]:
        what_if = parse_what_if("+".join(record["steps"]))
        parameters = tuple(sorted((name, float(value)) for name, value in record["parameters"].items()))
        what_ifs.append(replace(what_if, title=record["title"], parameters=parameters))
    return what_ifs


def _parameters(recorded: dict[str, Sequence[float]]) -> Parameters:
    """Return the recorded parameters, in the order in which this version draws them."""
    shipped = load_parameters()
    if different := sorted(set(shipped.known) ^ set(recorded)):
        names = ", ".join(different)[:200]
        raise InvalidInputError(
            f"this version has other parameters than the result: {names}; use the version that wrote it"
        )
    parameters = {
        name: replace(parameter, value=float(value), low=float(low), high=float(high), source="the result")
        for name, parameter in shipped.known.items()
        for value, low, high in [recorded[name]]
    }
    values = {name: parameter.value for name, parameter in parameters.items()}
    return replace(shipped, known=parameters, values=values)


def _leaves(recorded: object, now: object, where: str) -> Iterator[tuple[str, Any, Any]]:
    """Yield the path, the recorded and the new value of every leaf of either."""
    if isinstance(recorded, dict) and isinstance(now, dict):
        for key in sorted(set(recorded) | set(now)):
            yield from _leaves(recorded.get(key), now.get(key), f"{where}.{key}".lstrip("."))
    elif isinstance(recorded, list) and isinstance(now, list) and len(recorded) == len(now):
        for i, (a, b) in enumerate(zip(recorded, now, strict=True)):
            yield from _leaves(a, b, f"{where}[{i}]")
    else:
        yield where, recorded, now


def _same(recorded: object, now: object) -> bool:
    """Return whether two leaves are the same; JSON holds null for a number that is not finite."""
    if isinstance(now, float) and not math.isfinite(now):
        return recorded is None
    return recorded == now and isinstance(recorded, bool) == isinstance(now, bool)
