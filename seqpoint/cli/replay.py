"""`seqpoint replay`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from replay.analysis.critical_path import Dependencies
from replay.graph.graph import RECORDED_EDGES, EdgeKind
from replay.projection.projection import joined_notes
from replay.writers.perfetto import write_perfetto
from seqpoint.cli.options import as_json, hardware_option, iteration_option, load, perfetto_option, trace_argument
from seqpoint.cli.output import clean, message, print_json, print_table, progress
from seqpoint.graphs import ReplayedStep, all_iterations, replay_trace
from seqpoint.units import duration


@click.command("replay")
@trace_argument
@iteration_option
@perfetto_option
@hardware_option
@as_json
def command(trace: str, marker: str, length: str | None, json_: bool, **options: Any) -> None:
    """Replay iterations of TRACE unchanged, and compare with what was measured.

    The step time is the time from the completion of the iteration before to its own. Repeated is the step time when
    the iteration and those before it repeat until the period has settled: projections compare steady states, so the
    nearer it is to the measured step time the better they stand.

    A second table counts what tasks wait for, by kind: whether the profiler recorded it or it is inferred from
    times, how many of these edges decided when a task started, and how many lie on the critical path.

    \b
    seqpoint replay job.trace
    """
    loaded = load(trace, marker, length)
    iterations = list(dict.fromkeys(options["iterations"])) or all_iterations(loaded)
    found = replay_trace(loaded, iterations, device=options["device"], progress=progress("building"))
    rows = [_row(step) for step in found.steps]
    if options["perfetto"]:
        write_perfetto(Path(options["perfetto"]), {"replay": found.first})
        message(f"wrote {options['perfetto']}")
    for note in joined_notes([row["notes"] for row in rows], [row["iteration"] for row in rows]):
        message(clean(note))
    errors = np.abs([row["error"] for row in rows])
    kinds = _kinds(found.dependencies)
    if json_:
        figures = {"median_error": float(np.median(errors)), "worst_error": float(errors.max())}
        print_json({"iterations": rows, **figures, "step_time": "between completions", "edges": kinds})
        return
    _print_iterations(rows, errors)
    _print_edges(kinds)


def _row(step: ReplayedStep) -> dict[str, Any]:
    found = step.dependencies
    return {
        "iteration": step.iteration,
        "tasks": step.tasks,
        "edges": step.edges,
        "measured_ns": step.measured_ns,
        "replayed_ns": step.replayed_ns,
        "error": step.error,
        "latency_ns": step.latency_ns,
        "steady_ns": step.steady_ns,
        "settled": step.settled,
        "start_error": step.start_error_ns / step.measured_ns if step.measured_ns else 0.0,
        "device_busy": step.device_busy,
        "unexplained": step.unexplained,
        "recorded_edges": found.recorded_share(),
        "recorded_binding": found.recorded_share("binding"),
        "recorded_critical": found.recorded_share("critical"),
        "notes": list(step.notes),
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
        f"Replay: unchanged, steps are off by {100 * errors.max():.4f} % at worst; repeated, their sum by "
        f"{100 * _apart(rows):.1f} %",
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
                f"{100 * row['device_busy']:.1f}",
                f"{100 * row['unexplained']:.1f}",
            )
            for row in rows
        ],
    )


def _apart(rows: Sequence[dict[str, Any]]) -> float:
    """Return by which share the steps repeated differ from the measured ones, added up."""
    measured = sum(row["measured_ns"] for row in rows)
    return abs(sum(row["steady_ns"] for row in rows) / measured - 1) if measured else 0.0


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
