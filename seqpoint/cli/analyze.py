"""The command `analyze`: where a step spends its time, printed as tables."""

from collections.abc import Mapping, Sequence
from typing import Any

import click

from profilers.errors import InvalidInputError
from replay.analysis import IDLE_CAUSES, ChosenTasks, Difference, Exposure, Idle, Pace
from replay.analysis.tasks import DEVICE_KEYS
from replay.workloads.operations import is_parquet
from seqpoint import front_door
from seqpoint.breakdown import (
    LIMITS_EXPLAINED,
    StragglerReport,
    contention_lines,
    contention_table,
    host_table,
    limits_sentence,
    limits_table,
)
from seqpoint.cli.options import hardware_option, load, output_options, perfetto_option, refuse_options, trace_argument
from seqpoint.cli.output import message, print_lines, print_result, print_table, print_tables, write_timelines
from seqpoint.communication import communication_table, device_text
from seqpoint.graphs import Analysis, stragglers
from seqpoint.notebook import table_of
from seqpoint.units import duration

#: Most rows of a table of kernels or streams, and most characters of a name; --json has all.
_MAX_ROWS = 12
_NAME_LENGTH = 60


@click.command("analyze")
@trace_argument
@click.option("--iteration", "-i", type=int, help="Iteration to analyse.  [default: that of median step time]")
@click.option(
    "--what-if",
    "-w",
    "text",
    metavar="NAME:ARGUMENT[+...]",
    help="What-if to compare the step with; a + composes what-ifs. `seqpoint what-ifs` lists them.",
)
@click.option(
    "--tasks",
    metavar="CHOICE",
    help="Tasks to count and time: a class, a name with * and ?, or terms such as copies=DtoH (docs/what_ifs.md).",
)
@click.option(
    "--stragglers",
    is_flag=True,
    help="Show who makes the step longer: the slow-down that each rank, stage, class of kernel and micro-batch causes "
    "alone. TRACE may be a Parquet table of operations (docs/stragglers.md).",
)
@perfetto_option
@hardware_option
@output_options
def command(trace: str, marker: str, length: str | None, json_: bool, **options: Any) -> None:
    """Show where a step of TRACE spends its time: pace, critical path, overlap, and why devices idle.

    A step lasts from the completion of the iteration before to its own. The iteration is repeated, together with the
    earlier iterations that were still running, until its period settles. A step of that steady state is analysed. An
    iteration without a neighbour in the trace is analysed by itself.

    \b
    seqpoint analyze job.trace
    seqpoint analyze job.trace -i 12 -w overlap:ideal --perfetto both.json
    seqpoint analyze job.trace --stragglers
    """
    if options["stragglers"]:
        _stragglers(trace, (marker, length), json_, options)
        return
    if is_parquet(trace):
        raise InvalidInputError(
            f"{trace}: a Parquet file is no trace; of a table of operations, --stragglers shows who makes steps longer"
        )
    result = front_door.analyze(
        load(trace, marker, length),
        iteration=options["iteration"],
        what_if=options["text"],
        device=options["device"],
        tasks=options["tasks"],
    )
    hardware = result.before.timeline.graph.hardware
    if hardware.known_by == "file name" and hardware.device is not None:
        message(f"note: the device {hardware.device.name} is a guess from the file's name (see --device)")
    write_timelines(options["perfetto"], result.timelines)
    print_result(result, json_, _show)


def _stragglers(trace: str, how: tuple[str, str | None], json_: bool, options: Mapping[str, Any]) -> None:
    """Print who makes the steps of a trace, or of a table of operations, longer."""
    refuse_options(["tasks", "perfetto"], "with --stragglers; leave one out")
    what_if, device = options["text"], options["device"]
    source = trace if is_parquet(trace) else load(trace, *how)
    if source is trace:
        refuse_options(["device", "marker", "length"], "on a table of operations")
    result = stragglers(source, options["iteration"], what_if=what_if, device=device)
    print_result(result, json_, _show_stragglers)


def _show_stragglers(result: StragglerReport) -> None:
    print_lines(*result.summary())
    print_tables(result.tables())
    print_lines(*(f"note: {note}" for note in result.notes()))


def _show(result: Analysis) -> None:
    before, sides = result.before, result.sides
    print_lines(*result.summary())
    for label, side in zip(("", "after: "), sides, strict=False):
        if side.chosen is not None:
            _show_chosen(label, side.chosen)
    for label, side in zip(("", "after: "), sides, strict=False):
        print_tables([limits_table(side.limits, label)])
        print_lines(f"{label}{limits_sentence(side.limits)}")
    print_lines(LIMITS_EXPLAINED)
    if len(sides) > 1:
        title = "What sets the pace: time on the critical path of the step"
        _show_path(title, "resource", [side.pace.by_resource for side in sides])
    print_tables([host_table(result.host)] if result.host else [])
    _show_pace([side.pace for side in sides])
    _show_path("Critical path by cause", "cause", [side.path.by_cause for side in sides])
    _show_path("Critical path by class of kernel", "class", [side.path.by_class for side in sides])
    _show_path("Critical path by name", "name", [before.path.by_name], _MAX_ROWS)
    for label, side in zip(("", "after: "), sides, strict=False):
        if side.exposure.devices:
            _show_overlap(label, side.exposure)
            _show_idle(label, side.idle, side.exposure)
    _show_contention(result)
    if result.difference is not None and result.what_if is not None:
        _show_difference(result.what_if.name, result.difference)
    print_lines(*(f"note: {note}" for note in result.notes()))


def _show_chosen(label: str, chosen: ChosenTasks) -> None:
    """Print the number and the time of the chosen tasks, by device and by name."""
    cells = [[getattr(chosen, key)[i] for key in DEVICE_KEYS] for i in range(len(chosen.devices))]
    rows = [(*ids, *row) for ids, row in zip(chosen.devices, cells, strict=True)]
    if len(rows) > 1:
        rows.append(("all", "", *(sum(column) for column in zip(*cells, strict=True))))
    headings = (key.removesuffix("_ns").replace("path", "critical path") for key in DEVICE_KEYS)
    print_table(
        f"{label}Chosen tasks, {chosen.text}: {100 * chosen.path_share:.1f} % of the critical path of the step",
        ("rank", "device", *headings),
        [(*row[:3], *(duration(time) for time in row[3:])) for row in rows],
    )
    names = list(chosen.by_name.items())
    print_table(
        f"{label}Chosen tasks by name{_hidden(len(names))}",
        ("name~", "count", "time"),
        [(name[:_NAME_LENGTH], count, duration(ns)) for name, (count, ns) in names[:_MAX_ROWS]],
    )


def _show_path(title: str, heading: str, sides: Sequence[Mapping[str, float]], limit: int | None = None) -> None:
    """Print the time on the critical path by `heading`; of two timelines side by side, with the change."""
    names = list(dict.fromkeys(name for side in sides for name in side))[:limit]
    hidden = len(sides[0]) - limit if limit is not None and len(sides) == 1 else 0
    rows = []
    for name in names:
        times = [side.get(name, 0.0) for side in sides]
        cells: list[str] = []
        for time, side in zip(times, sides, strict=True):
            cells += [duration(time), f"{100 * time / max(sum(side.values()), 1e-9):.1f}"]
        change = [_signed(times[1] - times[0])] if len(sides) == 2 else []
        rows.append((name[:_NAME_LENGTH], *cells, *change))
    columns = ("time", "%") if len(sides) == 1 else ("before", "%", "after", "%", "change")
    print_table(f"{title} ({hidden} more not shown)" if hidden > 0 else title, (f"{heading}~", *columns), rows)


def _show_pace(sides: Sequence[Pace]) -> None:
    """Print the critical path of a step by rank and by iteration."""
    ranks = [{f"rank {rank}" if rank >= 0 else "ranks meet": ns for rank, ns in side.by_rank.items()} for side in sides]
    if any(len(side) > 1 for side in ranks):
        _show_path("Critical path by rank", "rank", ranks, _MAX_ROWS)
    if any(len(side.by_iteration) > 1 for side in sides):
        _show_path("Critical path by iteration", "iteration", [_by_distance(side.by_iteration) for side in sides])


def _by_distance(by_iteration: Mapping[int, float]) -> dict[str, float]:
    names = {0: "its own", 1: "1 iteration later", -1: "1 iteration earlier"}
    return {
        names.get(n, f"{abs(n)} iterations {'later' if n > 0 else 'earlier'}"): ns
        for n, ns in sorted(by_iteration.items(), key=lambda item: (abs(item[0]), item[0]))
    }


def _show_overlap(label: str, exposure: Exposure) -> None:
    """Print the work on each device, and its communication."""
    columns = ("busy_ns", "compute_ns", "copy_ns", "exposed_copy_ns")
    numbers = [(rank, None if device < 0 else device) for rank, device in exposure.devices]
    print_table(
        _titled(label, "Work on the devices in this step"),
        ("rank", "device", "busy", "compute", "copies", "copies exposed"),
        [
            (rank, device_text(device), *(duration(getattr(exposure, name)[i]) for name in columns))
            for i, (rank, device) in enumerate(numbers)
        ],
    )
    rows = [(rank, device, exposure.times[i]) for i, (rank, device) in enumerate(numbers)]
    table = communication_table(_titled(label, "Communication in this step"), rows)
    if table.rows:
        print_tables([table])


def _show_idle(label: str, idle: Idle, exposure: Exposure) -> None:
    """Print the busy time of each device, its wait for other ranks within that, and its idle time by cause."""
    title = "Busy and idle time of devices (waiting: inside the busy time; slowed: by contention, all tasks added up)"
    rows = []
    for i, (rank, device) in enumerate(idle.devices):
        waiting = exposure.times[i].exposed_waiting_ns
        times = (idle.busy_ns[i], waiting, idle.earlier_ns[i], *idle.cause_ns[i])
        shares = ("-" if ns is None else f"{100 * ns / max(idle.span_ns, 1e-9):.1f}" for ns in times)
        rows.append((rank, device_text(None if device < 0 else device), *shares, duration(idle.slowed_ns[i])))
    causes = (f"{cause} %" for cause in IDLE_CAUSES)
    print_table(
        _titled(label, title), ("rank", "device", "busy %", "exposed waiting %", "earlier %", *causes, "slowed"), rows
    )


def _show_contention(result: Analysis) -> None:
    """Print the time that contention took from the kernels of the iteration, unchanged."""
    if result.contention is not None:
        scope = f"in iteration {result.iteration}"
        table = contention_table(result.contention, scope)
        print_tables([table] if table.rows else [])
        print_lines(*contention_lines(result.contention, scope))


def _hidden(rows: int) -> str:
    return f" ({rows - _MAX_ROWS} more not shown)" if rows > _MAX_ROWS else ""


def _titled(label: str, title: str) -> str:
    return f"{label}{title[0].lower() if label else title[0]}{title[1:]}"


def _show_difference(what_if: str, difference: Difference) -> None:
    change = difference.after_ns - difference.before_ns
    ratio = f", {difference.before_ns / difference.after_ns:.3f} times as fast" if difference.after_ns else ""
    print_lines(
        f"{what_if}: {duration(difference.before_ns)} to {duration(difference.after_ns)}, {_signed(change)}{ratio}"
    )
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
                "name": row.label[:_NAME_LENGTH],
                "change": _signed(row.change_ns),
                "tasks": " to ".join(map(str, dict.fromkeys((row.before_count, row.after_count)))),
            }
            for row in rows[:_MAX_ROWS]
        ]
        print_tables([table_of(f"Change by {title}{_hidden(len(rows))}", columns, cells)])


def _signed(ns: float) -> str:
    return f"{'+' if ns > 0 else '-' if ns < 0 else ''}{duration(abs(ns))}"
