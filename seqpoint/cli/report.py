"""`seqpoint report`."""

from pathlib import Path
from typing import Any

import click
import numpy as np

from profilers.atomic import file_to_write
from seqpoint.cli.options import hardware_option, load, max_points_option, trace_argument, what_if_option
from seqpoint.cli.output import message, progress, say, working
from seqpoint.describe import Description, describe
from seqpoint.projecting import (
    ALL_OVERLAPS,
    DEFAULT_WHAT_IFS,
    ProjectOptions,
    asked_what_ifs,
    project_trace,
    ranked,
)
from seqpoint.report import ReportContent, ReportSection, write_report
from seqpoint.selecting import SelectionResult, SelectOptions, select


@click.command("report")
@trace_argument
@click.option("-o", "--output", default="report.html", show_default=True, type=click.Path(), help="File to write.")
@what_if_option
@max_points_option(8)
@click.option("--title", help="By default the trace's name.")
@hardware_option
def command(trace: str, marker: str, length: str | None, output: str, **options: Any) -> None:
    """Write a self-contained HTML report on TRACE: lengths, classes, timelines, what-ifs, quality.

    \b
    seqpoint report job.trace -w dma_collectives -w scale_device:MI355X -o job.html
    """
    target = file_to_write(Path(output))
    loaded = load(trace, marker, length)
    title = options["title"] or Path(trace).name
    with working("describing"):
        description = describe(loaded)
        selection = _selection(description, options["max_points"])
    what_ifs = asked_what_ifs(options["texts"] or DEFAULT_WHAT_IFS)
    how = ProjectOptions(max_points=options["max_points"], device=options["device"], progress=progress("projecting"))
    projection = project_trace(loaded, what_ifs, how)
    projection = ranked(projection) if ALL_OVERLAPS in options["texts"] else projection
    label = "synthetic" if loaded.meta.synthetic else ""
    section = ReportSection(title, label, description, selection, projection)
    with working("drawing"):
        write_report(ReportContent(title, (section,)), target)
    say(f"report: {output}")


def _selection(description: Description, max_points: int) -> SelectionResult | None:
    table = description.iterations
    if not np.isfinite(table.sequence_length).any():
        message("note: no iteration has a sequence length (--length), so nothing is selected")
        return None
    return select(table, SelectOptions(max_points=max_points))
