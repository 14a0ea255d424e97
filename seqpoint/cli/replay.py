"""The command `replay`: steps replayed unchanged against the measured ones."""

from collections.abc import Sequence
from typing import Any

import click

from seqpoint import front_door
from seqpoint.cli.options import (
    hardware_option,
    iteration_option,
    load,
    output_options,
    perfetto_option,
    trace_argument,
)
from seqpoint.cli.output import clean, message, print_json, print_tables, progress, write_timelines
from seqpoint.notebook import table_of


@click.command("replay")
@trace_argument
@iteration_option
@perfetto_option
@hardware_option
@output_options
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
    columns = {
        "iteration": "{iteration}", "tasks": "{tasks}", "step time": "{measured_ns:time}",
        "replayed": "{replayed_ns:time}", "repeated": "{steady_ns:time}", "repeated %": "{off:+.2%}",
        "latency": "{latency_ns:time}", "busy %": "{device_busy_share:.1%}", "unexplained %": "{unexplained:.1%}",
    }  # fmt: skip
    off = [row["steady_ns"] / row["measured_ns"] - 1 if row["measured_ns"] else None for row in rows]
    print_tables([table_of(title, columns, [{**row, "off": share} for row, share in zip(rows, off, strict=True)])])


def _print_edges(kinds: Sequence[dict[str, Any]]) -> None:
    total = {name: sum(row[name] for row in kinds) for name in ("edges", "binding", "critical")}
    recorded = {name: sum(row[name] for row in kinds if row["recorded"]) for name in total}
    shares = {name: f"{100 * recorded[name] / total[name]:.1f} %" if total[name] else "none" for name in total}
    of_edges = f"recorded are {shares['edges']} of the edges, {shares['critical']} of those on the critical path"
    columns = {
        "kind": "{name}", "known": "{known}", "edges": "{edges}", "binding": "{binding}", "critical": "{critical}",
        "critical lag": "{critical_lag_ns:time}",
    }  # fmt: skip
    rows = [
        {**row, "name": row["kind"].replace("_", " "), "known": "recorded" if row["recorded"] else "inferred"}
        for row in kinds
    ]
    print_tables([table_of(f"What tasks wait for: {of_edges}", columns, rows)])
