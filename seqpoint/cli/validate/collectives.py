"""`seqpoint validate collectives`."""

from collections.abc import Sequence
from dataclasses import asdict

import click

from replay.collectives import FABRICS, calibrate_collectives, load_collectives, read_collectives, read_fits
from seqpoint.cli.options import as_json, gate_option
from seqpoint.cli.output import print_json, print_table
from seqpoint.cli.validate.gated import show_gated
from seqpoint.validation.collectives import CollectiveScore, collective_rows, score_collectives
from seqpoint.validation.rows import all_met


@click.command("collectives")
@click.argument("path", type=click.Path())
@click.option("--calibration", metavar="FILE", type=click.Path(), help="Instead of the shipped one.")
@click.option("--device", metavar="NAME", help="That was measured, where neither a column nor the file's name says it.")
@click.option(
    "--fabric", type=click.Choice(FABRICS), help="How the devices of a node are joined, where it is not said."
)
@click.option("--refit", is_flag=True, help="Fit three quarters of the sizes of PATH first; score the rest.")
@gate_option
@as_json
@click.pass_context
def collectives(
    context: click.Context,
    path: str,
    calibration: str | None,
    device: str | None,
    fabric: str | None,
    refit: bool,
    gate: bool,
    json_: bool,
) -> None:
    """Compare predicted times of collectives with those measured in PATH, a table or a folder of tables.

    A table has the columns collective, size (bytes), num_workers, devices_per_node, and a column
    time_stats.COLLECTIVE.median (ms) of each collective in it. Each group of workers is predicted with its own fit,
    where there is one, then as if no group of that number of workers had been measured, then as if its device had not.

    \b
    seqpoint validate collectives a100_dgx_all_reduce.csv --json
    seqpoint validate collectives measured.csv --device H200 --refit
    """
    measured = read_collectives(path, device, fabric)
    known = read_fits(calibration) if calibration else load_collectives()
    scores = score_collectives(measured, calibrate_collectives(measured, known) if refit else known)
    rows = collective_rows(scores)
    if json_:
        print_json({"rows": [row.content() for row in rows], "scores": [asdict(one) for one in scores]})
    else:
        _show_collectives(scores)
        show_gated(rows)
    if gate and not all_met(rows):
        context.exit(1)


def _show_collectives(scores: Sequence[CollectiveScore]) -> None:
    print_table(
        "Predicted against measured times",
        ("case~", "basis~", "file~", "rows", "error %", "median %", "bias", "in interval %", "by size %~"),
        [
            (
                s.case,
                s.basis,
                s.source,
                s.rows,
                f"{100 * s.error:.1f}",
                f"{100 * s.median:.1f}",
                f"{s.bias:.2f}",
                f"{100 * s.covered:.0f}",
                ", ".join(f"{100 * error:.0f} {name}" for name, error in s.by_size.items()),
            )
            for s in scores
        ],
    )
