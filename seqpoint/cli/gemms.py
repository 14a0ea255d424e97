"""The command `gemms`: the GEMMs of a trace by shape, printed as tables."""

from functools import partial
from typing import Any

import click

from seqpoint import front_door
from seqpoint.cli.options import hardware_option, load, output_options, trace_argument
from seqpoint.cli.output import message, print_lines, print_result, print_tables
from seqpoint.gemm_table import TOP, TraceGemms


@click.command("gemms")
@trace_argument
@click.option(
    "--top", type=click.IntRange(1), default=TOP, show_default=True, help="Most rows of a table; --json has all."
)
@click.option("--iteration", "-i", type=int, help="Iteration to search for groups.  [default: that of median time]")
@click.option("--plot", metavar="FILE.html", type=click.Path(), help="Write the chart of efficiency against waves.")
@hardware_option
@output_options
def command(trace: str, marker: str, length: str | None, top: int, plot: str | None, json_: bool, **how: Any) -> None:
    """List the matrix products (GEMMs) of TRACE by shape: time, efficiency, waves, tail, and why they are slow.

    With --json, each of `rows` has batch, m, n, k, dtype, operators, kernel, launches, time_ns, share, median_ns,
    flops_per_s, efficiency, tile_m, tile_n, tile_known_by, workgroups, waves, last_wave, tail_efficiency, beside_share,
    partners, idle_before_ns, why, and more. `unknown` counts the GEMM kernels without a known shape. `step` has the
    groups of independent GEMMs of an iteration, each with its evidence, degree, tiles, speedup and gain_ns.

    \b
    seqpoint gemms job.trace
    seqpoint gemms job.trace --device MI300X --top 5 --plot gemms.html
    """
    if plot:
        from seqpoint.plots.saving import page_to_write

        page_to_write(plot)
    result = front_door.gemms(load(trace, marker, length), **how)
    hardware = result.hardware
    if hardware.known_by == "file name" and hardware.device is not None:
        message(f"note: the device {hardware.device.name} is a guess from the file's name (see --device)")
    if plot:
        result.plot().save(plot)
        message(f"wrote {plot}")
    print_result(result, json_, partial(_show, top=top))


def _show(result: TraceGemms, top: int) -> None:
    print_lines(*result.summary())
    print_tables(result.tables(top))
    print_lines(*(f"note: {note}" for note in result.notes()))
