"""`seqpoint replay`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from replay.dependencies import Dependencies, dependencies
from replay.graph import RECORDED_EDGES, EdgeKind
from replay.notes import joined_notes
from replay.perfetto import write_perfetto
from replay.timeline import Timeline, replay
from seqpoint.cli.options import as_json, hardware_option, iteration_option, load, perfetto_option, trace_argument
from seqpoint.cli.output import clean, duration, message, print_json, print_table, progress
from seqpoint.graphs import all_iterations, graphs_of


@click.command("replay")
@trace_argument
@iteration_option
@perfetto_option
@hardware_option
@as_json
def command(trace: str, marker: str, length: str | None, json_: bool, **options: Any) -> None:
    """Replay iterations of TRACE unchanged, and compare with what was measured.

    A second table counts what tasks wait for, by kind: whether the profiler recorded it or it is inferred from
    times, how many of these edges decided when a task started, and how many lie on the critical path.

    \b
    seqpoint replay job.trace
    """
    loaded = load(trace, marker, length)
    iterations = list(dict.fromkeys(options["iterations"])) or all_iterations(loaded)
    timelines = [replay(g) for g in graphs_of(loaded, iterations, options["device"], progress("building"))]
    found = [dependencies(timeline) for timeline in timelines]
    rows = [_row(*row) for row in zip(iterations, timelines, found, strict=True)]
    if options["perfetto"]:
        write_perfetto(Path(options["perfetto"]), {"replay": timelines[0]})
        message(f"wrote {options['perfetto']}")
    for note in joined_notes([row["notes"] for row in rows], iterations):
        message(clean(note))
    errors = np.abs([row["error"] for row in rows])
    kinds = _kinds(found)
    if json_:
        figures = {"median_error": float(np.median(errors)), "worst_error": float(errors.max())}
        print_json({"iterations": rows, **figures, "edges": kinds})
        return
    _print_iterations(rows, errors)
    _print_edges(kinds)


def _row(iteration: int, timeline: Timeline, found: Dependencies) -> dict[str, Any]:
    graph = timeline.graph
    replayed = timeline.makespan_ns
    busy = timeline.busy_ns()
    device = graph.on_device() & graph.tasks.own
    late = np.abs(timeline.start_ns - graph.tasks.measured_start_ns)[device].max(initial=0.0)
    return {
        "iteration": iteration,
        "tasks": len(graph.tasks),
        "edges": len(graph.edges),
        "measured_ns": graph.measured_ns,
        "replayed_ns": replayed,
        "error": replayed / graph.measured_ns - 1 if graph.measured_ns else 0.0,
        "start_error": float(late) / graph.measured_ns if graph.measured_ns else 0.0,
        "device_busy": float(busy.mean() / replayed) if len(busy) and replayed else 0.0,
        "unexplained": timeline.unexplained_ns() / replayed if replayed else 0.0,
        "recorded_edges": found.recorded_share(),
        "recorded_binding": found.recorded_share("binding"),
        "recorded_critical": found.recorded_share("critical"),
        "notes": list(graph.notes),
    }


def _kinds(found: Sequence[Dependencies]) -> list[dict[str, Any]]:
    """Return the edges of all iterations together, a row a kind that occurs."""
    rows = []
    for kind in EdgeKind:
        mine = [row for several in found for row in several.kinds if row.kind == kind.name.lower()]
        if mine:
            names = ("edges", "binding", "critical", "critical_lag_ns")
            total = {name: sum(getattr(row, name) for row in mine) for name in names}
            rows.append({"kind": kind.name.lower(), "recorded": kind in RECORDED_EDGES, **total})
    return rows


def _print_iterations(rows: Sequence[dict[str, Any]], errors: Any) -> None:
    print_table(
        f"Replay: median error {100 * np.median(errors):.4f} %, worst {100 * errors.max():.4f} %",
        ("iteration", "tasks", "measured", "replayed", "error %", "device busy %", "unexplained %"),
        [
            (
                row["iteration"],
                row["tasks"],
                duration(row["measured_ns"]),
                duration(row["replayed_ns"]),
                f"{100 * row['error']:.4f}",
                f"{100 * row['device_busy']:.1f}",
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
