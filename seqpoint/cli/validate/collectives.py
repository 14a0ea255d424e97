"""`seqpoint validate collectives`."""

from collections.abc import Sequence
from dataclasses import asdict
from textwrap import fill

import click

from replay.costs.collectives import FABRICS, calibrate_collectives, load_collectives, read_collectives, read_fits
from seqpoint.cli.options import as_json, gate_option, verbose_option
from seqpoint.cli.output import print_json, print_table, working
from seqpoint.cli.validate.devices import short_devices
from seqpoint.cli.validate.gated import exit_unless_met, show_gated
from seqpoint.validation.collectives import CollectiveScore, collective_rows, score_collectives

_CASE, _LEFT_OUT = ("collective~", "device~", "workers\n(a node)", "left out~"), " left out"
#: Characters of a line of a column's name.
_HEADER = 7


@click.command("collectives")
@click.argument("path", type=click.Path())
@click.option("--calibration", metavar="FILE", type=click.Path(), help="Instead of the shipped one.")
@click.option("--device", metavar="NAME", help="That was measured, where neither a column nor the file's name says it.")
@click.option(
    "--fabric", type=click.Choice(FABRICS), help="How the devices of a node are joined, where it is not said."
)
@click.option("--refit", is_flag=True, help="Fit three quarters of the sizes of PATH first; score the rest.")
@verbose_option
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
    verbose: bool,
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
    with working("fitting and predicting" if refit else "predicting"):
        scores = score_collectives(measured, calibrate_collectives(measured, known) if refit else known)
    rows = collective_rows(scores)
    if json_:
        print_json({"rows": [row.content() for row in rows], "scores": [asdict(one) for one in scores]})
    else:
        _show_collectives(scores)
        if verbose:
            _show_details(scores)
        show_gated(rows)
    if gate:
        exit_unless_met(context, rows)


def _show_collectives(scores: Sequence[CollectiveScore]) -> None:
    print_table(
        "Predicted against measured times (held: in the 90 % interval)",
        (*_CASE, "err %", "bias", "held %"),
        [(*case, f"{100 * s.error:.1f}", f"{s.bias:.2f}", f"{100 * s.covered:.0f}") for case, s in _cases(scores)],
    )


def _show_details(scores: Sequence[CollectiveScore]) -> None:
    sizes = dict.fromkeys(name for s in scores for name in s.by_size)
    print_table(
        "Error % by size of the buffer",
        (*_CASE, *(fill(name, _HEADER) for name in sizes)),
        [
            (
                *case,
                *(f"{100 * s.by_size[name]:.1f}" if name in s.by_size else "" for name in sizes),
            )
            for case, s in _cases(scores)
        ],
    )
    print_table("Files", ("file~",), sorted({(s.source,) for s in scores}))


def _cases(scores: Sequence[CollectiveScore]) -> list[tuple[tuple[object, ...], CollectiveScore]]:
    """Return each score with what tells it from others, for a table; the fabric where a device has several."""
    short = short_devices(s.device for s in scores)
    fabrics: dict[str, set[str]] = {}
    for s in scores:
        fabrics.setdefault(s.device, set()).add(s.fabric)
    return [
        (
            (
                s.kind,
                f"{short[s.device]} {s.fabric}" if len(fabrics[s.device]) > 1 else short[s.device],
                f"{s.workers} ({s.devices_per_node})",
                s.how.removesuffix(_LEFT_OUT) if s.how.endswith(_LEFT_OUT) else "",
            ),
            s,
        )
        for s in scores
    ]
