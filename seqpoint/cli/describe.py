"""The command `describe`: the content of a trace, printed as tables."""

import click

from seqpoint import front_door
from seqpoint.cli.options import as_json, load, trace_argument
from seqpoint.cli.output import print_lines, print_result, print_tables
from seqpoint.description import Description


@click.command("describe")
@trace_argument
@as_json
def command(trace: str, marker: str, length: str | None, json_: bool) -> None:
    """Show the content of TRACE: devices, ranks, steps, kernels by class, overlap, and the quality of the data.

    TRACE is a .trace folder or a trace file of any profiler.

    \b
    seqpoint describe job.trace
    """
    print_result(front_door.describe(load(trace, marker, length)), json_, _show)


def _show(description: Description) -> None:
    print_lines(*description.summary())
    print_tables(description.tables())
