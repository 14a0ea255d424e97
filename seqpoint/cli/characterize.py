"""The command `characterize`: where the time of a trace goes, printed as tables."""

from functools import partial
from typing import Any

import click

from seqpoint import front_door
from seqpoint.characterization import BY, SHOWN, TOP, Characterization
from seqpoint.cli.options import hardware_option, load, output_options, trace_argument
from seqpoint.cli.output import message, print_lines, print_result, print_tables


@click.command("characterize")
@trace_argument
@click.option(
    "--by", multiple=True, type=click.Choice(BY), help="Table to print; may be repeated.  [default: all but kernel]"
)
@click.option(
    "--top", type=click.IntRange(1), default=TOP, show_default=True, help="Most rows of a table; --json has all."
)
@click.option("--plot", metavar="FILE.html", type=click.Path(), help="Write a chart.")
@click.option(
    "--chart", type=click.Choice(["roofline", "treemap", "icicle"]), default="roofline", show_default=True,
    help="Chart that --plot writes.",
)  # fmt: skip
@click.option("--table", metavar="FILE", type=click.Path(), help="Write the first table as .csv or .parquet, all rows.")
@hardware_option
@output_options
def command(
    trace: str,
    marker: str,
    length: str | None,
    by: tuple[str, ...],
    top: int,
    plot: str | None,
    chart: str,
    table: str | None,
    json_: bool,
    **how: Any,
) -> None:
    """Show where the time of TRACE goes: operators, shapes, modules, phases, against the roofline.

    With --json, `rows` has the operators. Each row has name, shapes, class, calls, kernels, time_ns, share, min_ns,
    median_ns, max_ns, known_ns, flops, bytes, roof_ns, bound, waves, flops_per_s, bytes_per_s, intensity and
    roof_share. `by` has the same for shape, kernel, class, phase and module. `bound_shares` is the share of the time
    that compute, memory and latency bound. `utilisation` is that of the peak in the steps. `collectives` and
    `launches` are tables, too.

    \b
    seqpoint characterize job.trace
    seqpoint characterize job.trace --by kernel --top 30
    seqpoint characterize job.trace --plot roofline.html
    seqpoint characterize job.trace --by shape --table shapes.csv
    """
    if plot:
        from seqpoint.plots.saving import page_to_write

        page_to_write(plot)
    result = front_door.characterize(load(trace, marker, length), **how)
    hardware = result.facts.hardware
    if hardware.known_by == "file name" and hardware.device is not None:
        message(f"note: the device {hardware.device.name} is a guess from the file's name (see --device)")
    if plot:
        result.plot(chart).save(plot)
        message(f"wrote {plot}")
    if table:
        result.save(table, (by or SHOWN[-2:])[0])
        message(f"wrote {table}")
    print_result(result, json_, partial(_show, by=by or SHOWN, top=top))


def _show(result: Characterization, by: tuple[str, ...], top: int) -> None:
    print_lines(*result.summary())
    print_tables(result.tables(by, top))
    print_lines(*(f"note: {note}" for note in result.notes()))
