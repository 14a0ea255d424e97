"""Analysis of a step in the steady state, as it is and under a what-if, and of the ranks that make it longer.

`analyze_trace` says what sets the pace: critical path, overlap, idle time by cause. `stragglers` says who is slow.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from profilers.errors import InvalidInputError
from profilers.ingest.pipeline import IngestOptions, open_trace
from profilers.trace.arrays import Floats
from profilers.trace.steps import job_steps, step_times
from profilers.trace.trace import Trace
from replay import analysis
from replay.analysis.stragglers import (
    StragglerRun,
    Stragglers,
    TraceBalance,
    attribute_stragglers,
    operation_stragglers,
)
from replay.analysis.tasks import DEVICE_KEYS
from replay.contention.totals import ContentionTime, contention_time
from replay.costs.shipped import load_parameters
from replay.engine.steady import Change, unchanged
from replay.engine.timeline import Timeline
from replay.from_trace import index_trace
from replay.from_trace.host_causes import HostCauses, host_causes
from replay.graph.choice import TaskChoice
from replay.projection.pacing import Limits, limits_of
from replay.projection.rows import NOTHING_CHANGES
from replay.projection.windows import StepWindow
from replay.what_ifs import WhatIf, check_choices, parse_what_if
from replay.workloads.operations import is_parquet, read_operations
from seqpoint.breakdown import (
    LIMITS_EXPLAINED,
    StragglerReport,
    contention_lines,
    contention_table,
    host_table,
    limits_sentence,
    limits_table,
)
from seqpoint.communication import (
    communication_facts,
    communication_notes,
    communication_rows,
    communication_table,
    device_text,
)
from seqpoint.graphs import step_windows, typical_iteration
from seqpoint.notebook import DataFrame, Result, Table, by_rank, data_frame, table_of
from seqpoint.units import duration, signed

#: Fields of `replay.analysis.Exposure` that the JSON of an analysis holds for each device, beside its times.
_OVERLAP_FIELDS = ("span_ns", "compute_ns", "copy_ns", "beside_compute_ns", "exposed_copy_ns")
#: Room of a resource that a step lacks.
_MOST_ROOM = 3.0


@dataclass(frozen=True)
class TimelineAnalysis:
    """Analysis of the timeline of a step.

    Parameters
    ----------
    timeline : Timeline
        The timeline of the step.
    path : Attribution
        Time on the critical path by cause, class and name.
    exposure : Exposure
        Overlap of computation, communication and copies on each device.
    idle : Idle
        Idle time of each device by cause.
    pace : Pace
        Resources on the critical path of the step in the steady state.
    limits : Limits
        What each resource could gain or lose.
    chosen : ChosenTasks, optional
        The tasks that the user chose, if any.
    """

    timeline: Timeline
    path: analysis.Attribution
    exposure: analysis.Exposure
    idle: analysis.Idle
    pace: analysis.Pace
    limits: Limits
    chosen: analysis.ChosenTasks | None = None


@dataclass(frozen=True, repr=False)
class Analysis(Result):
    """Analysis of a step, unchanged and under a what-if.

    Parameters
    ----------
    iteration : int
        Number of the iteration.
    measured_ns : float
        Measured step time.
    repeats : bool
        Whether the trace holds a neighbour of the iteration, so that the step is that of the steady state. Otherwise
        the iteration is analysed by itself.
    before : TimelineAnalysis
        The step replayed unchanged.
    what_if : WhatIf, optional
        The what-if, if any.
    after : TimelineAnalysis, optional
        The step under the what-if.
    difference : Difference, optional
        Change by class, kind and lane.
    communication_notes : tuple of str
        Notes on the collectives whose waiting is unknown.
    is_unchanged : bool
        Whether there is a what-if that changes nothing.
    contention : ContentionTime, optional
        Time that contention took from the kernels of the iteration, on all ranks.
    host : tuple of HostCauses
        Host time of each rank in all steps, by cause.
    """

    heading = "Analysis of a step"

    iteration: int
    measured_ns: float
    repeats: bool
    before: TimelineAnalysis
    what_if: WhatIf | None = None
    after: TimelineAnalysis | None = None
    difference: analysis.Difference | None = None
    communication_notes: tuple[str, ...] = ()
    is_unchanged: bool = False
    contention: ContentionTime | None = None
    host: tuple[HostCauses, ...] = ()

    @property
    def sides(self) -> tuple[TimelineAnalysis, ...]:
        """The step unchanged and, if there is a what-if, the step under it."""
        return (self.before,) if self.after is None else (self.before, self.after)

    def timelines(self) -> dict[str, Timeline]:
        """Return the timelines by name: the step unchanged, and under the what-if."""
        named = {"before": self.before.timeline.cut()}
        if self.after is not None and self.what_if is not None:
            named[f"after {self.what_if.name}"] = self.after.timeline.cut()
        return named

    def table(self) -> DataFrame:
        """Return the time on the critical path by cause, with a column for each side; times in ns."""
        sides = {f"{name}_ns": side.path.by_cause for name, side in zip(("before", "after"), self.sides, strict=False)}
        return data_frame(sides).fillna(0.0).rename_axis("cause").reset_index()

    def tables(self) -> list[Table | str]:
        """Return what sets the pace, the critical path, and the overlap and idle time of devices, as text."""
        sides = list(zip(("", "after: "), self.sides, strict=False))
        shown: list[Table | str] = []
        for label, side in sides:
            shown += [] if side.chosen is None else _chosen_tables(label, side.chosen)
        if self.difference is not None and self.what_if is not None:
            title = "What sets the pace: time on the critical path of the step"
            shown.append(_path_table(title, "resource", [side.pace.by_resource for side in self.sides]))
            shown += _difference_tables(self.what_if.name, self.difference)
        for label, side in sides:
            shown.append(limits_table(side.limits, label))
        shown.append(LIMITS_EXPLAINED)
        shown.append(_path_table("Critical path by name", "name", [self.before.path.by_name]))
        shown += _pace_tables([side.pace for side in self.sides])
        for label, side in sides:
            if side.exposure.devices:
                shown += [_idle_table(label, side.idle, side.exposure), *_overlap_tables(label, side.exposure)]
        by_class = [side.path.by_class for side in self.sides]
        shown.append(_path_table("Critical path by class of kernel", "class", by_class))
        shown.append(_path_table("Critical path by cause", "cause", [side.path.by_cause for side in self.sides]))
        shown += [host_table(self.host)] if self.host else []
        if self.contention is not None:
            scope = f"in iteration {self.iteration}"
            table = contention_table(self.contention, scope)
            shown += [table, *contention_lines(self.contention, scope)] if table.rows else []
        return shown

    def plot(self) -> Any:
        """Return the timeline of the step, or both one above the other, as a HoloViews object."""
        from seqpoint.plots import before_after, timeline_lanes

        (name, timeline), *changed = self.timelines().items()
        return before_after(timeline, changed[0][1], (name, changed[0][0])) if changed else timeline_lanes(timeline)

    def to_dict(self) -> dict[str, Any]:
        """Return what `seqpoint analyze --json` prints."""
        return {
            "iteration": self.iteration,
            "measured_ns": self.measured_ns,
            "step_time": "between completions" if self.repeats else "latency",
            "contention": None if self.contention is None else self.contention.to_dict(),
            "host": [row.to_dict() for row in self.host],
            "before": _side_facts(self.before),
            "what_if": None if self.what_if is None else list(self.what_if.steps),
            "applied": None if self.what_if is None else not self.is_unchanged,
            "after": None if self.after is None else _side_facts(self.after),
            "difference": None if self.difference is None else _change_facts(self.difference),
        }

    def notes(self) -> tuple[str, ...]:
        """Return the notes on the graphs, on collectives of unknown waiting, and on a what-if that changes nothing."""
        of_graphs = (note for side in self.sides for note in side.timeline.graph.notes)
        label = self.what_if.label if self.what_if is not None else ""
        same = [f"{label}: not applicable: {NOTHING_CHANGES}"] if self.is_unchanged else []
        return tuple(dict.fromkeys((*of_graphs, *self.communication_notes, *same)))

    def summary(self) -> list[str]:
        """Return what sets the pace of the step, then its number, its time, and how it was analysed."""
        devices = len(self.before.timeline.graph.devices)
        how = "repeated until its period settles" if self.repeats else "by itself: the trace holds no neighbour of it"
        pace = limits_sentence(self.before.limits)
        return [
            *([f"pace: {pace}"] if pace else []),
            f"iteration {self.iteration}, {how}: a step of {duration(self.before.pace.step_ns)}, "
            f"{duration(self.measured_ns)} measured, on {devices} device{'s' * (devices != 1)}",
        ]


def _chosen_tables(label: str, chosen: analysis.ChosenTasks) -> list[Table]:
    """Return the number and the time of the chosen tasks, by device and by name."""
    cells = [[getattr(chosen, key)[i] for key in DEVICE_KEYS] for i in range(len(chosen.devices))]
    rows = [(*ids, *row) for ids, row in zip(chosen.devices, cells, strict=True)]
    if len(rows) > 1:
        rows.append(("all", "", *(sum(column) for column in zip(*cells, strict=True))))
    headings = (key.removesuffix("_ns").replace("path", "critical path") for key in DEVICE_KEYS)
    return [
        Table(
            f"{label}Chosen tasks, {chosen.text}: {100 * chosen.path_share:.1f} % of the critical path of the step",
            ("rank", "device", *headings),
            [(*row[:3], *(duration(time) for time in row[3:])) for row in rows],
        ),
        Table(
            f"{label}Chosen tasks by name",
            ("name~", "count", "time"),
            [(name, count, duration(ns)) for name, (count, ns) in chosen.by_name.items()],
        ),
    ]


def _path_table(title: str, heading: str, sides: Sequence[Mapping[str, float]]) -> Table:
    """Return the time on the critical path by `heading`; of two timelines side by side, with the change."""
    names = list(dict.fromkeys(name for side in sides for name in side))
    rows = []
    for name in names:
        times = [side.get(name, 0.0) for side in sides]
        cells: list[str] = []
        for time, side in zip(times, sides, strict=True):
            cells += [duration(time), f"{100 * time / max(sum(side.values()), 1e-9):.1f}"]
        change = [signed(times[1] - times[0])] if len(sides) == 2 else []
        rows.append((name, *cells, *change))
    columns = ("time", "%") if len(sides) == 1 else ("before", "%", "after", "%", "change")
    return Table(title, (f"{heading}~", *columns), rows)


def _pace_tables(sides: Sequence[analysis.Pace]) -> list[Table]:
    """Return the critical path of a step by rank and by iteration, if there are several."""
    tables = []
    ranks = [{f"rank {rank}" if rank >= 0 else "ranks meet": ns for rank, ns in side.by_rank.items()} for side in sides]
    if any(len(side) > 1 for side in ranks):
        tables.append(_path_table("Critical path by rank", "rank", ranks))
    if any(len(side.by_iteration) > 1 for side in sides):
        distances = [_by_distance(side.by_iteration) for side in sides]
        tables.append(_path_table("Critical path by iteration", "iteration", distances))
    return tables


def _by_distance(by_iteration: Mapping[int, float]) -> dict[str, float]:
    names = {0: "its own", 1: "1 iteration later", -1: "1 iteration earlier"}
    return {
        names.get(n, f"{abs(n)} iterations {'later' if n > 0 else 'earlier'}"): ns
        for n, ns in sorted(by_iteration.items(), key=lambda item: (abs(item[0]), item[0]))
    }


def _overlap_tables(label: str, exposure: analysis.Exposure) -> list[Table]:
    """Return the work on each device, and its communication."""
    columns = ("busy_ns", "compute_ns", "copy_ns", "exposed_copy_ns")
    numbers = [(rank, None if device < 0 else device) for rank, device in exposure.devices]
    work = Table(
        _titled(label, "Work on the devices in this step"),
        ("rank", "device", "busy", "compute", "copies", "copies exposed"),
        [
            (rank, device_text(device), *(duration(getattr(exposure, name)[i]) for name in columns))
            for i, (rank, device) in enumerate(numbers)
        ],
    )
    rows = [(rank, device, exposure.times[i]) for i, (rank, device) in enumerate(numbers)]
    table = communication_table(_titled(label, "Communication in this step"), rows)
    work = by_rank(work, [float(ns) for ns in exposure.busy_ns])
    return [table, work] if table.rows else [work]


def _idle_table(label: str, idle: analysis.Idle, exposure: analysis.Exposure) -> Table:
    """Return the busy time of each device, its wait for other ranks within that, and its idle time by cause."""
    title = "Busy and idle time of devices (waiting: inside the busy time; slowed: by contention, all tasks added up)"
    rows = []
    for i, (rank, device) in enumerate(idle.devices):
        waiting = exposure.times[i].exposed_waiting_ns
        times = (idle.busy_ns[i], waiting, idle.earlier_ns[i], *idle.cause_ns[i])
        shares = ("-" if ns is None else f"{100 * ns / max(idle.span_ns, 1e-9):.1f}" for ns in times)
        rows.append((rank, device_text(None if device < 0 else device), *shares, duration(idle.slowed_ns[i])))
    causes = (f"{cause} %" for cause in analysis.IDLE_CAUSES)
    columns = ("rank", "device", "busy %", "exposed waiting %", "earlier %", *causes, "slowed")
    return by_rank(Table(_titled(label, title), columns, rows), [-float(ns) for ns in idle.busy_ns])


def _titled(label: str, title: str) -> str:
    return f"{label}{title[0].lower() if label else title[0]}{title[1:]}"


def _difference_tables(what_if: str, difference: analysis.Difference) -> list[Table | str]:
    """Return the change of the step time, and of the time by class, kind and lane."""
    change = difference.after_ns - difference.before_ns
    ratio = f", {difference.before_ns / difference.after_ns:.3f} times as fast" if difference.after_ns else ""
    shown: list[Table | str] = [
        f"{what_if}: {duration(difference.before_ns)} to {duration(difference.after_ns)}, {signed(change)}{ratio}"
    ]
    for title, rows in (
        ("class", difference.by_class),
        ("kind", difference.by_kind),
        ("stream or thread", difference.by_lane),
    ):
        columns = {
            f"{title}~": "{name}", "before": "{r.before_ns:time}", "after": "{r.after_ns:time}", "change": "{change}",
            "tasks": "{tasks}", "exposed before": "{r.before_exposed_ns:time}",
            "exposed after": "{r.after_exposed_ns:time}",
        }  # fmt: skip
        cells = [
            {
                "r": row,
                "name": row.label,
                "change": signed(row.change_ns),
                "tasks": " to ".join(map(str, dict.fromkeys((row.before_count, row.after_count)))),
            }
            for row in rows
        ]
        shown.append(table_of(f"Change by {title}", columns, cells))
    return shown


def _side_facts(side: TimelineAnalysis) -> dict[str, Any]:
    shares = {name: dict(getattr(side.pace, name)) for name in ("by_resource", "by_rank", "by_iteration")}
    return {
        "makespan_ns": side.path.makespan_ns,
        "pace": {"step_ns": side.pace.step_ns, **shares, **_limit_facts(side.limits)},
        "critical_path": {name: dict(getattr(side.path, name)) for name in ("by_cause", "by_class", "by_name")},
        "devices": [{**row, **_work_facts(side, i)} for i, row in enumerate(communication_facts(side.timeline))],
        "chosen": None if side.chosen is None else side.chosen.to_dict(),
        "notes": list(side.timeline.graph.notes),
    }


def _limit_facts(limits: Limits) -> dict[str, Any]:
    """Return limits as JSON; those of hosts and devices also under their first names."""
    facts: dict[str, Any] = {name: dict(getattr(limits, name)) for name in ("bound", "room", "then")}
    for side in ("host", "device"):
        facts |= {f"{side}_room": limits.room.get(side, _MOST_ROOM), f"{side}_bound": limits.bound.get(side, 1.0)}
    return facts


def _work_facts(side: TimelineAnalysis, i: int) -> dict[str, Any]:
    exposed, idle = side.exposure, side.idle
    return {
        **{name: float(getattr(exposed, name)[i]) for name in _OVERLAP_FIELDS},
        "earlier_ns": float(idle.earlier_ns[i]),
        "idle_ns": dict(zip(analysis.IDLE_CAUSES, idle.cause_ns[i].tolist(), strict=True)),
        "slowed_ns": float(idle.slowed_ns[i]),
    }


def _change_facts(change: analysis.Difference) -> dict[str, Any]:
    tables = ("by_class", "by_kind", "by_lane")
    return {
        "change_ns": change.after_ns - change.before_ns,
        "path_by_cause": change.path_by_cause,
        "path_by_class": change.path_by_class,
        **{name: [asdict(row) for row in getattr(change, name)] for name in tables},
    }


def analyze_trace(
    trace: Trace,
    iteration: int | None = None,
    *,
    what_if: WhatIf | None = None,
    device: str | None = None,
    tasks: TaskChoice | None = None,
) -> Analysis:
    """Analyse the step of an iteration in the steady state, unchanged and under a what-if.

    Parameters
    ----------
    trace : Trace
        The trace that holds the iteration.
    iteration : int, optional
        Number of the iteration; by default that of median step time.
    what_if : WhatIf, optional
        What-if to compare the step with.
    device : str, optional
        Device that the trace was recorded on, if the trace does not say.
    tasks : TaskChoice, optional
        Tasks whose number, time and share of the critical path the analysis tells.

    Raises
    ------
    SeqPointError
        The iteration or the device is unknown, the what-if cannot be applied, or no task is chosen.
    """
    number, parameters = typical_iteration(trace) if iteration is None else iteration, load_parameters()
    (window,) = step_windows(trace, [number], device=device, parameters=parameters)
    (measured,) = window.measured_ns
    if what_if is not None:
        check_choices(what_if, [window.graph], parameters)
    if tasks is not None:
        tasks.check([window.graph])
    before = _analyzed(window, unchanged, tasks)
    facts = (number, measured, window.pattern is not None, before)
    notes = communication_notes(communication_rows(before.timeline), trace)
    contention = contention_time(trace, [window.graph], iterations=[number])
    host = host_causes(index_trace(trace))
    if what_if is None:
        return Analysis(*facts, communication_notes=notes, contention=contention, host=host)
    changed = partial(what_if, parameters=parameters)
    after = _analyzed(window, changed, tasks)
    change = analysis.difference(before.timeline, after.timeline)
    is_unchanged = changed(window.graph).replays_like(window.graph)
    return Analysis(*facts, what_if, after, change, notes, is_unchanged, contention, host)


def stragglers(
    trace: Trace | str | Path,
    iteration: int | None = None,
    *,
    what_if: WhatIf | str | None = None,
    device: str | None = None,
) -> StragglerReport:
    """Return who makes the steps of a job longer: slow-downs by rank, stage, operation and micro-batch.

    Parameters
    ----------
    trace : Trace, str or Path
        Trace of several ranks, or the path of one; or of a Parquet table of operations
        (`replay.workloads.operations`), whose jobs are analysed one by one.
    iteration : int, optional
        Number of the step. By default that of median step time of a trace, and all steps of a table.
    what_if : str or WhatIf, optional
        What-if that comes first, such as ``"scale_kernels:gemm@rank=3:1.2"``; for traces.
    device : str, optional
        Device that the trace was recorded on, if the trace does not say.

    Raises
    ------
    SeqPointError
        The trace has one rank, there is no such step, or the what-if is unknown or cannot be applied.
    """
    change = parse_what_if(what_if) if isinstance(what_if, str) else what_if
    if not isinstance(trace, Trace) and is_parquet(trace):
        if change is not None:
            raise InvalidInputError(f"{change.name}: a table of operations has no kernels; what-ifs need a trace")
        jobs = read_operations(trace).values()
        return StragglerReport(tuple(operation_stragglers(job.only(iteration)) for job in jobs))
    opened = trace if isinstance(trace, Trace) else open_trace(Path(trace), IngestOptions())
    return StragglerReport((_trace_stragglers(opened, iteration, change, device),))


def _trace_stragglers(trace: Trace, iteration: int | None, what_if: WhatIf | None, device: str | None) -> Stragglers:
    """Return the stragglers of the window of an iteration of a trace.

    The steps of the window count together: a rank that is late in one makes the next one shorter.
    """
    if len(trace.meta.ranks) < 2:
        raise InvalidInputError("stragglers show among ranks, and the trace has one; give the files of all ranks")
    number, parameters = typical_iteration(trace) if iteration is None else iteration, load_parameters()
    (window,) = step_windows(trace, [number], device=device, parameters=parameters)
    change: Change = unchanged
    if what_if is not None:
        check_choices(what_if, [window.graph], parameters)
        change = partial(what_if, parameters=parameters)

    def times(changes: Sequence[Change]) -> list[Floats]:
        return [state.step_ns for state in window.steady_all(changes)]

    of_job, iterations = job_steps(step_times(trace)), window.graph.iterations
    recorded_ns = of_job.step_ns[np.searchsorted(of_job.iteration, iterations)].astype(np.float64)
    run = StragglerRun(TraceBalance(), window.graph, times, change)
    return attribute_stragglers(run, job="", steps=iterations, recorded_ns=recorded_ns, notes=window.graph.notes)


def _analyzed(window: StepWindow, change: Change, choice: TaskChoice | None) -> TimelineAnalysis:
    """Return the analysis of the only step of a window that is asked for, under a change."""
    state, (position,) = window.steady(change), window.chosen
    timeline, total_ns = state.at_step(position), window.total_ns(state)
    limits = limits_of([window], [state], lambda times_ns: total_ns / max(times_ns[0], 1e-9), change)
    path = analysis.critical_path(timeline)
    return TimelineAnalysis(
        timeline,
        analysis.attribution(path),
        analysis.exposure(timeline),
        analysis.idle_by_cause(timeline),
        analysis.pace(state, position),
        limits,
        None if choice is None else analysis.chosen_tasks(path, choice),
    )
