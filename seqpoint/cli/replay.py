"""`seqpoint replay`."""

from pathlib import Path
from typing import Any

import click
import numpy as np

from replay.perfetto import write_perfetto
from replay.timeline import Timeline, replay
from seqpoint.cli.options import as_json, hardware_option, iteration_option, load, perfetto_option, trace_argument
from seqpoint.cli.output import duration, message, print_json, print_table, progress
from seqpoint.projecting import choose_iterations, graphs_of


@click.command("replay")
@trace_argument
@iteration_option
@perfetto_option
@hardware_option
@as_json
def command(trace: str, marker: str, length: str | None, json_: bool, **options: Any) -> None:
    """Replay iterations of TRACE unchanged, and compare with what was measured.

    \b
    seqpoint replay job.trace
    """
    loaded = load(trace, marker, length)
    iterations = choose_iterations(loaded, options["iterations"], max_points=loaded.iterations.num_rows).iterations
    timelines = [replay(g) for g in graphs_of(loaded, iterations, options["device"], progress("building"))]
    rows = [_row(iteration, timeline) for iteration, timeline in zip(iterations, timelines, strict=True)]
    if options["perfetto"]:
        write_perfetto(Path(options["perfetto"]), {"replay": timelines[0]})
        message(f"wrote {options['perfetto']}")
    errors = np.abs([row["error"] for row in rows])
    if json_:
        print_json({"iterations": rows, "median_error": float(np.median(errors)), "worst_error": float(errors.max())})
        return
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


def _row(iteration: int, timeline: Timeline) -> dict[str, Any]:
    graph = timeline.graph
    replayed = timeline.makespan_ns
    busy = timeline.busy_ns()
    return {
        "iteration": iteration,
        "tasks": len(graph.tasks),
        "edges": len(graph.edges),
        "measured_ns": graph.measured_ns,
        "replayed_ns": replayed,
        "error": replayed / graph.measured_ns - 1 if graph.measured_ns else 0.0,
        "device_busy": float(busy.mean() / replayed) if len(busy) and replayed else 0.0,
        "unexplained": timeline.unexplained_ns() / replayed if replayed else 0.0,
        "notes": list(graph.notes),
    }
