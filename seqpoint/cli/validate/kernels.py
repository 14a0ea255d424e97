"""`seqpoint validate kernels`."""

from collections.abc import Sequence
from dataclasses import asdict
from textwrap import fill

import click

from replay.costs.kernels import load_calibration, read_calibration
from seqpoint.cli.options import as_json, gate_option, verbose_option
from seqpoint.cli.output import print_json, print_table, progress, working
from seqpoint.cli.validate.devices import short_devices
from seqpoint.cli.validate.gated import exit_unless_met, show_gated
from seqpoint.validation.kernels import KernelScore, kernel_rows, read_kernels, score_halves, score_kernels

_CASE = ("operator~", "device~", "type~", "basis~")
#: Characters of a line of a column's name.
_HEADER = 7


@click.command("kernels")
@click.argument("path", type=click.Path())
@click.option("--calibration", metavar="FILE", type=click.Path(), help="Instead of the shipped one.")
@click.option("--device", metavar="NAME", help="That was measured, where neither a column nor the file's name says it.")
@click.option("--halves", is_flag=True, help="Also fit one half of each table and score the other.")
@verbose_option
@gate_option
@as_json
@click.pass_context
def kernels(
    context: click.Context,
    path: str,
    calibration: str | None,
    device: str | None,
    halves: bool,
    verbose: bool,
    gate: bool,
    json_: bool,
) -> None:
    """Compare predicted durations of operators with those measured in PATH, a table or a folder of tables.

    A table has the columns op, device, latency_ms, and B M N K (linear, bmm) or B H (softmax, ln, elementwise), FP32;
    FP16 profiles of Vidur and sweeps of LLMCompass are read too. Each device is predicted with its own fit, where it
    has one, and as if it had never been seen.

    \b
    seqpoint validate kernels measured.parquet --json
    """
    known = read_calibration(calibration) if calibration else load_calibration()
    with working("reading and predicting"):
        measured = read_kernels(path, device)
        scores = score_kernels(measured, known)
    if halves:
        scores += score_halves(measured, progress("halves"))
    rows = kernel_rows(scores)
    if json_:
        print_json({"rows": [row.content() for row in rows], "scores": [asdict(one) for one in scores]})
    else:
        _show_kernels(scores)
        if verbose:
            _show_details(scores)
        show_gated(rows)
    if gate:
        exit_unless_met(context, rows)


def _show_kernels(scores: Sequence[KernelScore]) -> None:
    print_table(
        "Predicted against measured durations (* was fitted; held: in 90 % interval)",
        (*_CASE, "rows", "err %", "bias", "held %"),
        [
            (*case, s.rows, f"{100 * s.error:.1f}", f"{s.bias:.2f}", f"{100 * s.covered:.0f}")
            for case, s in _cases(scores)
        ],
    )


def _show_details(scores: Sequence[KernelScore]) -> None:
    sizes = dict.fromkeys(name for s in scores for name in s.by_size)
    print_table(
        "Error % by measured duration",
        (*_CASE, *(fill(name, _HEADER) for name in sizes)),
        [
            (
                *case,
                *(f"{100 * s.by_size[name]:.1f}" if name in s.by_size else "" for name in sizes),
            )
            for case, s in _cases(scores)
        ],
    )
    print_table("Files", ("file~", "was fitted~"), sorted({(s.source, "yes" if s.seen else "no") for s in scores}))


def _cases(scores: Sequence[KernelScore]) -> list[tuple[tuple[str, ...], KernelScore]]:
    """Return each score with what tells it from others, for a table."""
    short = short_devices(s.device for s in scores)
    return [((s.kind, short[s.device], s.dtype, s.basis + "*" * (s.seen and s.basis == "fitted")), s) for s in scores]
