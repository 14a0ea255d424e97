"""The commands `describe`, `characterize` and `gemms`: what a trace holds, and where its time goes, as tables."""

from typing import TYPE_CHECKING, Any

import click

from profilers.errors import InvalidInputError
from seqpoint import front_door
from seqpoint.characterization import BY, CHARTS
from seqpoint.cli.options import (
    hardware_option,
    load,
    output_options,
    parameters,
    plot_option,
    top_option,
    trace_argument,
)
from seqpoint.cli.output import message, note_guess, print_result, save_plot
from seqpoint.description import BY as DESCRIBED_BY
from seqpoint.notebook import TOP

if TYPE_CHECKING:
    pass


@click.command("describe")
@trace_argument
@click.option(
    "--by",
    multiple=True,
    type=click.Choice(DESCRIBED_BY),
    help="Show kernels by name, the operators that launched them, the program's ranges (NVTX, roctx, record_function) "
    "around their launches, or operators, calls and Python functions of the host by self time, instead of the other "
    "tables; may be repeated.",
)
@click.option("--top", type=click.IntRange(1), help=f"Most rows of a table of --by; --json has all.  [default: {TOP}]")
@output_options
def describe_command(trace: str, by: tuple[str, ...], top: int | None, json_: bool) -> None:
    """Show the content of TRACE: devices, steps, communication, kernels, copies, and the quality of the data.

    TRACE is a .trace folder or a trace file of any profiler. The last line says whether hosts or devices set the pace.

    \b
    seqpoint describe job.trace
    seqpoint describe job.trace --by kernel --by operator
    seqpoint describe job.trace --by host --top 20
    """
    if top is not None and (json_ or not by):
        raise click.UsageError(
            "--top limits the tables of --by; add --by kernel, operator, range or host, without --json"
        )
    result = front_door.describe(load(trace), by=by)
    if "kernel" in by and not result.classes:
        raise InvalidInputError(
            f"{trace}: the trace holds no kernels to list by name; --by operator lists its operators"
        )
    if "host" in by and not result.trace.ops.num_rows + result.trace.launches.num_rows:
        raise InvalidInputError(
            f"{trace}: the trace holds no operator and no call of the host; record the host as well"
        )
    print_result(result, json_, lambda: result.tables(top or TOP))


@click.command("characterize")
@trace_argument
@click.option(
    "--by", multiple=True, type=click.Choice(BY), help="Table to print; may be repeated.  [default: all but kernel]"
)
@top_option
@plot_option("Write a chart.")
@click.option(
    "--chart", type=click.Choice(CHARTS), default="roofline", show_default=True, help="Chart that --plot writes."
)
@click.option("--table", metavar="FILE", type=click.Path(), help="Write the first table as .csv or .parquet, all rows.")
@hardware_option
@output_options
def characterize_command(
    trace: str,
    by: tuple[str, ...],
    top: int,
    plot: str | None,
    chart: str,
    table: str | None,
    json_: bool,
    device: str | None,
) -> None:
    """Show where the time of TRACE goes: operators, shapes, modules, phases, against the roofline.

    With --json, `rows` has the operators. Each row has name, shapes, class, calls, kernels, time_ns, share, min_ns,
    median_ns, max_ns, known_ns, flops, bytes, moved_ns, moved_bytes, roof_ns, bound, waves, flops_per_s, bytes_per_s,
    intensity and roof_share. `by` has the same for shape, kernel, class, phase and module. `bound_shares` is the share
    of the time that compute, memory and latency bound. `utilisation` is that of the peak in the steps. `collectives`,
    `launches` and `ranks` (the time of each device by cause, and its slowdown) are tables, too.

    \b
    seqpoint characterize job.trace
    seqpoint characterize job.trace --by kernel --top 30
    seqpoint characterize job.trace --plot roofline.html
    seqpoint characterize job.trace --by shape --table shapes.csv
    """
    result = front_door.characterize(load(trace), device=device)
    note_guess(result.facts.hardware)
    save_plot(lambda: result.plot(chart), plot)
    if table:
        result.save(table, by[0] if by else "operator")
        message(f"wrote {table}")
    print_result(result, json_, lambda: result.tables(top, by))


@click.command("gemms")
@trace_argument
@top_option
@parameters(front_door.gemms, "iteration")
@plot_option("Write the chart of efficiency against waves.")
@hardware_option
@output_options
def gemms_command(trace: str, top: int, plot: str | None, json_: bool, **how: Any) -> None:
    """List the matrix products (GEMMs) of TRACE by shape: time, efficiency, waves, tail, and why they are slow.

    With --json, each of `rows` has batch, m, n, k, dtype, operators, kernel, launches, time_ns, share, median_ns,
    flops_per_s, efficiency, tile_m, tile_n, tile_known_by, workgroups, waves, last_wave, tail_efficiency, beside_share,
    partners, idle_before_ns, why, and more. `unknown` counts the GEMM kernels without a known shape. `step` has the
    groups of independent GEMMs of an iteration, each with its evidence, degree, tiles, speedup and gain_ns.

    \b
    seqpoint gemms job.trace
    seqpoint gemms job.trace --device MI300X --top 5 --plot gemms.html
    """
    result = front_door.gemms(load(trace), **how)
    note_guess(result.hardware)
    save_plot(result.plot, plot)
    print_result(result, json_, lambda: result.tables(top))
