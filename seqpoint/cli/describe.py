"""The command `describe`: the content of a trace, printed as tables."""

from functools import partial

import click

from profilers.errors import InvalidInputError
from seqpoint import front_door
from seqpoint.cli.options import load, output_options, trace_argument
from seqpoint.cli.output import print_lines, print_result, print_tables
from seqpoint.description import BY, Description
from seqpoint.notebook import TOP


@click.command("describe")
@trace_argument
@click.option(
    "--by",
    multiple=True,
    type=click.Choice(BY),
    help="Show kernels by name, the operators that launched them, or operators, calls and Python functions of the host "
    "by self time, instead of the other tables; may be repeated.",
)
@click.option("--top", type=click.IntRange(1), help=f"Most rows of a table of --by; --json has all.  [default: {TOP}]")
@output_options
def command(trace: str, marker: str, length: str | None, by: tuple[str, ...], top: int | None, json_: bool) -> None:
    """Show the content of TRACE: devices, steps, communication, kernels, copies, and the quality of the data.

    TRACE is a .trace folder or a trace file of any profiler. The last line says whether hosts or devices set the pace.

    \b
    seqpoint describe job.trace
    seqpoint describe job.trace --by kernel --by operator
    seqpoint describe job.trace --by host --top 20
    """
    if top is not None and (json_ or not by):
        raise click.UsageError(
            "--top limits the tables of --by; add --by kernel, --by operator or --by host, without --json"
        )
    result = front_door.describe(load(trace, marker, length), by=by)
    if "kernel" in by and not result.classes:
        raise InvalidInputError(
            f"{trace}: the trace holds no kernels to list by name; --by operator lists its operators"
        )
    if "host" in by and not result.trace.ops.num_rows + result.trace.launches.num_rows:
        raise InvalidInputError(
            f"{trace}: the trace holds no operator and no call of the host; record the host as well"
        )
    print_result(result, json_, partial(_show, top=top or TOP))


def _show(description: Description, top: int) -> None:
    print_lines(*description.summary())
    print_tables(description.tables_by(top) or description.tables())
    print_lines(*(f"note: {note}" for note in description.notes() if not description.by))
    print_lines(*filter(None, [description.verdict()]))
