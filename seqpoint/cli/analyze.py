"""`seqpoint analyze`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from replay.analysis import IDLE_CAUSES, Difference, Exposure, Idle, Pace
from seqpoint import front_door
from seqpoint.cli.options import as_json, hardware_option, load, perfetto_option, trace_argument
from seqpoint.cli.output import message, print_json, print_table, say
from seqpoint.graphs import Analysis
from seqpoint.units import duration

#: Names of kernels and streams that a table shows; --json has all.
_SHOWN = 12
_NAME = 60


@click.command("analyze")
@trace_argument
@click.option("--iteration", "-i", type=int, help="Which one.  [default: the one of median step time]")
@click.option(
    "--what-if",
    "-w",
    "text",
    metavar="NAME:ARGUMENT[+...]",
    help="Also what this changes; + composes. `seqpoint what-ifs` lists them.",
)
@perfetto_option
@hardware_option
@as_json
def command(trace: str, marker: str, length: str | None, json_: bool, **options: Any) -> None:
    """Show where one step of TRACE spends its time: what sets its pace, overlap, why devices idle, what would change.

    A step lasts from the completion of the iteration before to its own. The iteration, with those before it that its
    hosts had not waited for, is repeated until its period settles; a step of that is analysed. An iteration without a
    neighbour in the trace is analysed by itself.

    \b
    seqpoint analyze job.trace
    seqpoint analyze job.trace -i 12 -w overlap:ideal --perfetto both.json
    """
    result = front_door.analyze(
        load(trace, marker, length),
        iteration=options["iteration"],
        what_if=options["text"],
        device=options["device"],
    )
    hardware = result.before.timeline.graph.hardware
    if hardware.known_by == "file name" and hardware.device is not None:
        message(f"note: the device {hardware.device.name} is a guess from the file's name (see --device)")
    if options["perfetto"]:
        from replay.writers.perfetto import write_perfetto

        write_perfetto(Path(options["perfetto"]), result.timelines())
        message(f"wrote {options['perfetto']}")
    if json_:
        print_json(result.to_dict())
    else:
        _show(result)


def _show(result: Analysis) -> None:
    before, sides = result.before, result.sides
    for sentence in result.summary():
        say(sentence)
    _show_pace([side.pace for side in sides])
    _show_path("Critical path by cause", [side.path.by_cause for side in sides])
    _show_path("Critical path by class of kernel", [side.path.by_class for side in sides])
    _show_path("Critical path by name", [before.path.by_name], _SHOWN)
    for name, side in zip(("", "after: "), sides, strict=False):
        if side.exposure.devices:
            _show_overlap(f"{name}{'o' if name else 'O'}verlap", side.exposure)
            _show_idle(f"{name}{'w' if name else 'W'}hy devices idle", side.idle)
    if result.difference is not None and result.what_if is not None:
        _show_difference(result.what_if.name, result.difference)
    for note in result.notes():
        say(f"note: {note}")


def _show_path(title: str, sides: Sequence[Mapping[str, float]], limit: int | None = None) -> None:
    """Print what the path goes into; of two timelines side by side, with the change."""
    names = list(dict.fromkeys(name for side in sides for name in side))[:limit]
    left = len(sides[0]) - limit if limit is not None and len(sides) == 1 else 0
    rows = []
    for name in names:
        times = [side.get(name, 0.0) for side in sides]
        cells = [
            text for time, side in zip(times, sides, strict=True) for text in (duration(time), _percent(time, side))
        ]
        change = [_signed(times[1] - times[0])] if len(sides) == 2 else []
        rows.append((name[:_NAME], *cells, *change))
    columns = ("time", "%") if len(sides) == 1 else ("before", "%", "after", "%", "change")
    print_table(f"{title} ({left} more not shown)" if left > 0 else title, ("what~", *columns), rows)


def _show_pace(sides: Sequence[Pace]) -> None:
    """Print what a step waits for, by resource, and how much room hosts and devices have."""
    _show_path("What sets the pace: time on the critical path of the step", [side.by_resource for side in sides])
    ranks = [{f"rank {rank}" if rank >= 0 else "ranks meet": ns for rank, ns in side.by_rank.items()} for side in sides]
    if any(len(side) > 1 for side in ranks):
        _show_path("The same by rank", ranks, _SHOWN)
    if any(len(side.by_iteration) > 1 for side in sides):
        _show_path("The same by iteration", [_by_distance(side.by_iteration) for side in sides])
    for when, side in zip(("", "after: "), sides, strict=False):
        for name in ("host", "device"):
            bound, slower = getattr(side, f"{name}_bound"), 100 * getattr(side, f"{name}_room")
            costs = f"{name}s {slower:.0f} % slower would cost nothing"
            say(f"{when}if {name}s took no time, the step would be {bound:.2f} times as fast; {costs}")


def _by_distance(by_iteration: Mapping[int, float]) -> dict[str, float]:
    names = {0: "its own", 1: "1 iteration later", -1: "1 iteration earlier"}
    return {
        names.get(n, f"{abs(n)} iterations {'later' if n > 0 else 'earlier'}"): ns
        for n, ns in sorted(by_iteration.items(), key=lambda item: (abs(item[0]), item[0]))
    }


def _show_overlap(title: str, found: Exposure) -> None:
    columns = ("busy_ns", "compute_ns", "communication_ns", "hidden_ns", "exposed_ns", "copy_ns", "exposed_copy_ns")
    print_table(
        title,
        ("rank", "device", "working", "compute", "communication", "hidden", "exposed", "copies", "copies exposed"),
        [
            (rank, device, *(duration(getattr(found, name)[i]) for name in columns))
            for i, (rank, device) in enumerate(found.devices)
        ],
    )


def _show_idle(title: str, found: Idle) -> None:
    print_table(
        f"{title} (slowed: by contention, all tasks added up)",
        ("rank", "device", "working %", "earlier %", *(f"{cause} %" for cause in IDLE_CAUSES), "slowed"),
        [
            (
                rank,
                device,
                *(
                    f"{100 * time / max(found.span_ns, 1e-9):.1f}"
                    for time in (found.busy_ns[i], found.earlier_ns[i], *found.cause_ns[i])
                ),
                duration(found.slowed_ns[i]),
            )
            for i, (rank, device) in enumerate(found.devices)
        ],
    )


def _show_difference(what_if: str, found: Difference) -> None:
    change = found.after_ns - found.before_ns
    ratio = f", {found.before_ns / found.after_ns:.3f} times as fast" if found.after_ns else ""
    say(f"{what_if}: {duration(found.before_ns)} to {duration(found.after_ns)}, {_signed(change)}{ratio}")
    for title, rows in (("class", found.by_class), ("kind", found.by_kind), ("stream or thread", found.by_lane)):
        print_table(
            f"Change by {title}{f' ({len(rows) - _SHOWN} more not shown)' if len(rows) > _SHOWN else ''}",
            (f"{title}~", "before", "after", "change", "tasks", "exposed before", "exposed after"),
            [
                (
                    row.label[:_NAME],
                    duration(row.before_ns),
                    duration(row.after_ns),
                    _signed(row.change_ns),
                    f"{row.before_count}"
                    if row.before_count == row.after_count
                    else f"{row.before_count} to {row.after_count}",
                    duration(row.before_exposed_ns),
                    duration(row.after_exposed_ns),
                )
                for row in rows[:_SHOWN]
            ],
        )


def _percent(time: float, side: Mapping[str, float]) -> str:
    return f"{100 * time / max(sum(side.values()), 1e-9):.1f}"


def _signed(ns: float) -> str:
    return f"{'+' if ns > 0 else '-' if ns < 0 else ''}{duration(abs(ns))}"
