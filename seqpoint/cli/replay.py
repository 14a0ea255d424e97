"""The command `replay`: steps replayed unchanged against the measured ones."""

from collections.abc import Sequence
from typing import Any

import click

from seqpoint import front_door
from seqpoint.cli.options import (
    as_json,
    explain_option,
    hardware_option,
    iteration_option,
    load,
    perfetto_option,
    trace_argument,
)
from seqpoint.cli.output import clean, message, print_json, print_table, progress, write_timelines
from seqpoint.units import duration


@click.command("replay")
@trace_argument
@iteration_option
@perfetto_option
@hardware_option
@explain_option
@as_json
def command(trace: str, marker: str, length: str | None, json_: bool, **options: Any) -> None:
    """Replay iterations of TRACE unchanged, and compare with what was measured.

    The step time is the time from the completion of the iteration before to its own. "Repeated" is the step time in the
    steady state: the iterations repeat until their period has settled. Projections compare steady states, so it should
    be near the measured step time.

    A second table counts the edges of the graph by kind: whether the profiler recorded them or they are inferred from
    times, how many decided when a task started (binding), and how many lie on the critical path.

    \b
    seqpoint replay job.trace
    """
    result = front_door.replay(
        load(trace, marker, length),
        iterations=options["iterations"],
        device=options["device"],
        progress=progress("building"),
    )
    write_timelines(options["perfetto"], lambda: {"replay": result.first})
    for note in result.notes():
        message(clean(note))
    facts = result.to_dict()
    if json_:
        print_json(facts)
        return
    _print_iterations(f"Replay: {result.summary()[0]}", facts["iterations"])
    _print_edges(facts["edges"])


def _print_iterations(title: str, rows: Sequence[dict[str, Any]]) -> None:
    print_table(
        title,
        ("iteration", "tasks", "step time", "replayed", "repeated", "repeated %", "latency", "busy %", "unexplained %"),
        [
            (
                row["iteration"],
                row["tasks"],
                duration(row["measured_ns"]),
                duration(row["replayed_ns"]),
                duration(row["steady_ns"]),
                f"{100 * (row['steady_ns'] / row['measured_ns'] - 1):+.2f}" if row["measured_ns"] else "-",
                duration(row["latency_ns"]),
                f"{100 * row['device_busy_share']:.1f}",
                f"{100 * row['unexplained']:.1f}",
            )
            for row in rows
        ],
    )


def _print_edges(kinds: Sequence[dict[str, Any]]) -> None:
    total = {name: sum(row[name] for row in kinds) for name in ("edges", "binding", "critical")}
    recorded = {name: sum(row[name] for row in kinds if row["recorded"]) for name in total}
    shares = {name: f"{100 * recorded[name] / total[name]:.1f} %" if total[name] else "none" for name in total}
    print_table(
        f"What tasks wait for: recorded are {shares['edges']} of the edges, {shares['critical']} of those on the "
        "critical path",
        ("kind", "known", "edges", "binding", "critical", "critical lag"),
        [
            (
                row["kind"].replace("_", " "),
                "recorded" if row["recorded"] else "inferred",
                row["edges"],
                row["binding"],
                row["critical"],
                duration(row["critical_lag_ns"]),
            )
            for row in kinds
        ],
    )
