"""Projections of what-ifs on a trace.

`project_trace` chooses iterations, builds the windows of their steps, and projects each what-if on them. A result is
written as JSON with the provenance that `seqpoint.reproducing` needs to compute every number again.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import fsum
from typing import Any

from profilers.errors import InvalidInputError, NotFoundError, SeqPointError
from profilers.trace.trace import Trace
from replay.calibration.parameters import Parameters
from replay.contention.pairs import measure_pairs
from replay.contention.totals import with_pairs
from replay.costs.host import cost_facts, cost_note, recording_cost
from replay.costs.shipped import load_parameters
from replay.engine.timeline import Timeline
from replay.from_trace import index_trace
from replay.from_trace.host_causes import host_causes
from replay.projection.evidence import EVIDENCE, SIDES
from replay.projection.projection import Projection, ProjectionOptions, Replays, project, with_provenance
from replay.projection.rows import ROW_FIGURES, ProjectionRow, recording_notes
from replay.projection.windows import SampledStep, StepWindow
from replay.what_ifs import (
    OVERLAPS,
    CollectiveEffect,
    LayerQuantization,
    WhatIf,
    all_effects,
    all_layers,
    check_choices,
    parse_what_if,
    read_plan,
    with_host,
    with_job,
)
from seqpoint.actions import WORTH, possible_actions
from seqpoint.breakdown import LIMITS_EXPLAINED, host_sentence, limits_sentence, limits_table
from seqpoint.choosing import ChosenIterations, choose_iterations
from seqpoint.communication import (
    communication_facts,
    communication_rows,
    communication_table,
    effect_tables,
    layer_tables,
)
from seqpoint.graphs import Progress, step_windows
from seqpoint.notebook import DataFrame, Result, Table, data_frame, without_middle
from seqpoint.units import duration

#: Name for all of `replay.what_ifs.OVERLAPS`, ranked by speed-up.
ALL_OVERLAPS = "overlap:all"
#: Numbers of a projection, by their JSON keys.
_TIME_FIELDS = ("baseline_ns", "measured_ns", "steady_ns", "device_busy_share")
#: Relative change of the device time up to which it is not shown.
_SAME_TIME = 1e-4
#: Lines that `seqpoint project` prints by default.
_SCREEN = 30
#: What an interval holds: of all iterations, and of selected ones.
_INTERVAL = "ranges of the parameters, and error of the replay"
_INTERVAL_OF_POINTS = "ranges of the parameters, errors of the replay and of the selection"
#: Widths of an interval below which a speed-up has so many decimals.
_DECIMALS = ((0.1, 3), (1.0, 2), (math.inf, 1))
#: Most characters of a what-if in the title of a chart.
_TITLE = 40
#: Smallest share of the critical path that is shown.
_MIN_SHARE = 0.005
#: A larger bound is not shown as a number: nothing else takes time.
_MOST_BOUND = 100.0
#: A rank holds up the others if its share of the critical path exceeds this, plus an equal share of the rest.
_DOMINANT_SHARE = 0.5
#: And if the others wait this share of the step in collectives.
_LEAST_WAIT = 0.01


@dataclass(frozen=True, kw_only=True)
class ProjectOptions:
    """Options of a projection of a trace.

    Parameters
    ----------
    iterations : sequence of int
        Numbers of the iterations to project; by default all if they are few, else representatives.
    max_points : int
        Most representatives.
    device : str, optional
        Device that the trace was recorded on, if the trace does not say; ``seqpoint devices`` lists the names.
    host : str, optional
        Host of every ``scale_device`` without one: the traced one (``keep``), a factor of host time, or a device's
        typical launch cost; by default the traced one, with the spread between machines.
    job : str, optional
        TOML file with a table ``[job]``: sizes that the trace does not tell, for what-ifs that edit the job.
    weights : sequence of float
        Number of iterations that each of `iterations` stands for; by default 1.
    draws : int
        Number of draws of the parameters from their ranges, for the interval.
    seed : int
        Seed of the draws.
    jobs : int
        Draws at a time; 0 for one on each core.
    parameters : Parameters
        Parameters of the models with their ranges; by default the shipped ones.
    progress : callable, optional
        Called with (steps done, steps in all, what).
    keep_outliers : bool
        Whether representatives are chosen from outlying iterations, such as the warm-up, too. Without it each outlier
        counts once in the estimate of the run, and is not replayed.
    sampled : sequence of SampledStep
        How each of `iterations` stands for others, with `weights`.
    why : bool
        Whether the result says what each what-if does to each collective, or why nothing, and to weights of layers.
    """

    iterations: Sequence[int] = ()
    max_points: int = 8
    device: str | None = None
    host: str | None = None
    job: str | None = None
    draws: int = 32
    seed: int = 0
    progress: Progress | None = None
    jobs: int = 0
    weights: Sequence[float] = ()
    parameters: Parameters = field(default_factory=load_parameters)
    keep_outliers: bool = False
    sampled: Sequence[SampledStep] = ()
    why: bool = False


@dataclass(frozen=True, repr=False)
class TraceProjection(Result):
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

    heading = "Projection"

    @property
    def screen(self) -> int:
        """Most lines that the command prints by default: more if somebody asked why."""
        return _SCREEN if self.effects is None else 3 * _SCREEN

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
        rows = self.rows
        return self._with_rows(
            sorted(range(len(rows)), key=lambda i: (-rows[i].speedup if rows[i].applied else math.inf, i))
        )

    def only_gains(self) -> "TraceProjection":
        """Return the same projection without the what-ifs that cannot be applied, or gain less than 0.5 %."""
        return self._with_rows([i for i, row in enumerate(self.rows) if row.applied and row.speedup >= WORTH])

    def _with_rows(self, order: Sequence[int]) -> "TraceProjection":
        rows, facts = self.rows, self.provenance
        provenance = {**facts, "what_ifs": [facts["what_ifs"][i] for i in order]}
        return replace(
            self, projection=replace(self.projection, rows=tuple(rows[i] for i in order), provenance=provenance)
        )

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

        return projection_intervals(self.rows)

    def plot_timelines(self, what_if: str | None = None, *, limit: int = 8000, rank: int | None = None) -> Any:
        """Return the timelines of the first window, unchanged and under a what-if; by default the first applied.

        Parameters
        ----------
        what_if : str, optional
            Label of the what-if.
        limit : int
            Most rectangles of each timeline.
        rank : int, optional
            The only rank to show; by default all.
        """
        from seqpoint.plots import before_after

        timelines = self.projection.timelines
        label = what_if or next((row.label for row in self._applied()), "any what-if")
        if label not in timelines:
            raise NotFoundError(f"no timeline of {label!r}; there are {', '.join(timelines)}")
        return before_after(
            timelines["baseline"], timelines[label], ("baseline", without_middle(label, _TITLE)), limit=limit, rank=rank
        )

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
        """Return the communication of each device in the first step, unchanged, as text."""
        rows = communication_rows(self.projection.timelines["baseline"])
        return communication_table("Communication in the first step, unchanged", rows)

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
        """Return what limits the steps, what was measured, what is estimated from it, and what is replayed."""
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
        return [*self._pace("pace: "), *filter(None, sentences)]

    def _pace(self, kind: str) -> list[str]:
        return [line for line in pace_lines(self.projection) if line.startswith(kind)]

    def tables(self) -> list[Table | str]:
        """Return the replayed iterations, the what-ifs, what limits the steps, and communication, as text."""
        confidence, applied = 100 * self.provenance["confidence"], self._applied()
        interval = _INTERVAL_OF_POINTS if self.chosen.sampled else _INTERVAL
        points = [
            (row["iteration"], f"{row['weight']:g}", duration(row["measured_ns"]), row["file"])
            for row in (self.chosen.rows() if self.chosen.files else ())
        ]
        refused = [(_name(row), row.reason) for row in self.rows if not row.applied]
        tables = [
            Table("Replayed iterations", ("iteration", "weight", "step time", "file~"), points),
            Table(
                f"What-ifs ({confidence:g} % interval: {interval})",
                (
                    "what-if~",
                    "speed-up",
                    "low",
                    "high",
                    "projected",
                    *(f"{kind} %" for kind in EVIDENCE),
                    "limited by~",
                ),
                [_figures(row) for row in applied or self.rows],
            ),
            *(self.why() if self.effects is not None else ()),
            Table("Not applicable", ("what-if~", "reason~"), refused),
            limits_table(self.projection.limits),
            LIMITS_EXPLAINED,
            replace(_sides_table(applied, confidence), verbose=True),
            replace(self.communication(), verbose=True),
        ]
        always = ("What-ifs (", "What limits")
        return [each for each in tables if isinstance(each, str) or each.rows or each.title.startswith(always)]

    def closing(self) -> tuple[str, ...]:
        """Return the notes, which say what they are on."""
        return self.notes()

    def notes(self) -> tuple[str, ...]:
        """Return the notes on the steps and of all what-ifs; a note of some rows names them."""
        labels: dict[str, list[str]] = {}
        for row in self.rows:
            for note in row.notes:
                labels.setdefault(note, []).append(row.label)
        notes, steps = [], {step for row in self.rows for step in row.what_if}
        names = Counter(step.partition(":")[0] for step in steps)
        for note, of_rows in labels.items():
            is_of_step = len(of_rows) > 1 and names[note.partition(":")[0]] == 1  # whatever it is composed with
            is_named = len(of_rows) == len(self.rows) or any(note.startswith(f"{label}:") for label in of_rows)
            is_named = is_named or is_of_step
            notes.append(f"note: {note}" if is_named else f"note on {', '.join(of_rows)}: {note}")
        return (*self._pace("note: "), *notes)


def _name(row: ProjectionRow) -> str:
    return row.title or " + ".join(row.what_if)


def _figures(row: ProjectionRow) -> tuple[str, ...]:
    """Return the cells of a what-if; one that is not applicable has no figures."""
    if row.evidence is None:
        return _name(row), "n/a", *"-" * (4 + len(EVIDENCE))
    shares = [f"{100 * row.evidence.share(kind):.0f}" for kind in EVIDENCE]
    figures = speedup_texts(row.speedup, row.low, row.high)
    return _name(row), *figures, duration(row.projected_ns), *shares, " and ".join(row.limited_by)


def speedup_texts(*figures: float) -> list[str]:
    """Return a speed-up and its interval with as many decimals as the interval knows.

    Examples
    --------
    >>> speedup_texts(1.0273, 1.0211, 1.0304), speedup_texts(1.4591, 1.1853, 1.4742)
    (['1.027', '1.021', '1.030'], ['1.46', '1.19', '1.47'])
    """
    width = max(figures) - min(figures)
    decimals = next((count for limit, count in _DECIMALS if width < limit), 3)
    return [f"{figure:.{decimals}f}" for figure in figures]


def _sides_table(rows: Sequence[ProjectionRow], confidence: float) -> Table:
    """Return where the projected time is spent, and the device time of what-ifs that change it."""
    changed = [abs(row.device_after_ns - row.device_before_ns) > _SAME_TIME * row.device_before_ns for row in rows]
    times = ("device before", "device after", "low", "high") if any(changed) else ()
    return Table(
        "Where the projected time is spent" + (f", and device time ({confidence:g} % interval)" if times else ""),
        ("what-if~", *(f"{side} %" for side in SIDES), *times),
        [
            (*(_name(row), *_sides(row), *(_device_times(row) if is_changed else "-" * len(times))),)
            for row, is_changed in zip(rows, changed, strict=True)
        ],
    )


def _sides(row: ProjectionRow) -> list[str]:
    return [] if row.evidence is None else [f"{100 * row.evidence.side(side):.0f}" for side in SIDES]


def _device_times(row: ProjectionRow) -> list[str]:
    times = (row.device_before_ns, row.device_after_ns, row.device_low_ns, row.device_high_ns)
    return [duration(time) for time in times]


def _cells(row: ProjectionRow) -> dict[str, Any]:
    """Return the cells of a row of the table of what-ifs."""
    sides = {f"{side}_share": math.nan if row.evidence is None else row.evidence.side(side) for side in SIDES}
    figures = {name: getattr(row, name) for name in ROW_FIGURES}
    return {"what_if": row.label, **figures, **sides, "applied": row.applied, "reason": row.reason}


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


def named_what_ifs(items: "Sequence[str | WhatIf]") -> list[WhatIf]:
    """Return what-ifs, of which texts may name some, as `parse_what_ifs`."""
    return [each for item in items for each in (parse_what_ifs([item]) if isinstance(item, str) else [item])]


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
        line = projection.timelines["baseline"]
        waits_ns = [of.communication_ns - of.transfer_ns for other, _, of in communication_rows(line) if other != rank]
        is_dominant = largest > _DOMINANT_SHARE + (1 - _DOMINANT_SHARE) / (len(waits_ns) + 1)
        if is_dominant and waits_ns and fsum(waits_ns) / len(waits_ns) > _LEAST_WAIT * line.span_ns:
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


def project_texts(trace: Trace, items: "Sequence[str | WhatIf]", options: ProjectOptions) -> TraceProjection:
    """Project what-ifs that texts may name on the steps of a trace; ranked if all overlaps are asked for.

    Parameters
    ----------
    trace : Trace
        The trace.
    items : sequence of str or WhatIf
        What-ifs, or texts as `parse_what_ifs` takes them. If empty, what can gain: the actions on a resource without
        which steps would be shorter, as far as they apply, the largest gain first.
    options : ProjectOptions
        Options; hosts and sizes of the job are put into the what-ifs.

    Raises
    ------
    SeqPointError
        A what-if, the device or an iteration is unknown, or a what-if cannot be applied.
    """
    windows = TraceWindows.of(trace, options)
    changes = named_what_ifs(items or windows.what_can_gain())
    changes = changes if options.host is None else with_host(changes, options.host)
    changes = changes if options.job is None else with_job(changes, options.job)
    result = windows.project(changes)
    if not items:
        return result.only_gains().ranked()
    return result.ranked() if ALL_OVERLAPS in items else result


@dataclass(frozen=True)
class TraceWindows:
    """The windows of the chosen iterations of a trace, to project what-ifs on again and again.

    Parameters
    ----------
    trace : Trace
        The trace.
    options : ProjectOptions
        Options, by which the iterations were chosen.
    chosen : ChosenIterations
        The iterations.
    windows : tuple of StepWindow
        Their windows.
    facts : mapping
        What the provenance says of the trace.
    replays : Replays
        What was replayed of the windows before.
    """

    trace: Trace
    options: ProjectOptions
    chosen: ChosenIterations
    windows: tuple[StepWindow, ...]
    facts: Mapping[str, Any]
    replays: Replays = field(default_factory=Replays)

    @classmethod
    def of(cls, trace: Trace, options: ProjectOptions) -> "TraceWindows":
        """Return the windows of the iterations that options name, or of representatives.

        Raises
        ------
        SeqPointError
            The device or an iteration is unknown.
        """
        chosen = choose_iterations(
            trace, options.iterations, options.max_points, keep_outliers=options.keep_outliers
        ).weighted(options.weights, options.sampled)
        parameters, pairs = options.parameters, measure_pairs(trace)
        cost = recording_cost(trace, parameters, chosen.numbers)
        windows = step_windows(
            trace,
            chosen.numbers,
            chosen.weights,
            device=options.device,
            parameters=parameters,
            progress=options.progress,
        )
        paired = (replace(each, graph=with_pairs(each.graph, pairs), recording=cost) for each in windows)
        facts: dict[str, Any] = {"iterations": list(chosen.numbers), "weights": list(chosen.weights)}
        facts |= {"iterations_chosen": chosen.how, "sampled": [asdict(step) for step in chosen.sampled]}
        facts |= {"host": host_sentence(host_causes(index_trace(trace)))}
        facts |= {} if cost is None else {"recording": cost_facts(cost, parameters)}
        facts |= {"ranks": list(trace.meta.ranks), "world_size": trace.meta.world_size}
        return cls(trace, options, chosen, tuple(chosen.put(each) for each in paired), facts)

    def has_work_for(self, what_if: str) -> bool:
        """Return whether the steps have the work that a what-if names."""
        try:
            check_choices(parse_what_if(what_if), [window.graph for window in self.windows], self.options.parameters)
        except SeqPointError:
            return False
        return True

    def what_can_gain(self) -> list[str]:
        """Return the what-ifs of the actions on resources without which the steps would be shorter."""
        possible = possible_actions(self.project([]).projection.limits)
        return [action.what_if for action in possible if self.has_work_for(action.what_if)]

    def project(self, what_ifs: Sequence[WhatIf], *, draws: int | None = None) -> TraceProjection:
        """Project what-ifs, with the draws of the options by default; replays of earlier calls are used again.

        Raises
        ------
        SeqPointError
            A what-if cannot be applied.
        """
        options, windows = self.options, self.windows
        numbers = [window.graph.iterations[window.chosen[0]] for window in windows]
        n = options.draws if draws is None else draws
        drawing = ProjectionOptions(n, options.seed, options.progress, numbers, options.jobs, self.replays)
        result = project(windows, what_ifs, meta=self.trace.meta, parameters=options.parameters, options=drawing)
        graphs = [window.graph for window in windows] if options.why else []
        effects = all_effects(what_ifs, graphs, self.chosen.numbers, options.parameters) if options.why else None
        layers = all_layers(what_ifs, graphs, self.chosen.numbers, options.parameters)
        return TraceProjection(with_provenance(result, dict(self.facts)), self.chosen, effects, layers)


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
    return TraceWindows.of(trace, options or ProjectOptions()).project(what_ifs)
