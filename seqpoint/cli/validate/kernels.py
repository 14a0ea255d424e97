"""`seqpoint validate kernels`."""

from collections.abc import Sequence
from dataclasses import asdict

import click

from replay.durations import load_calibration, read_calibration, read_measurements
from seqpoint.cli.options import as_json, gate_option
from seqpoint.cli.output import print_json, print_table
from seqpoint.cli.validate.gated import show_gated
from seqpoint.validation.kernels import KernelScore, kernel_rows, score_halves, score_kernels
from seqpoint.validation.rows import all_met


@click.command("kernels")
@click.argument("path", type=click.Path())
@click.option("--calibration", metavar="FILE", type=click.Path(), help="Instead of the shipped one.")
@click.option("--device", metavar="NAME", help="That was measured, where neither a column nor the file's name says it.")
@click.option("--halves", is_flag=True, help="Also fit one half of each table and score the other.")
@gate_option
@as_json
@click.pass_context
def kernels(
    context: click.Context,
    path: str,
    calibration: str | None,
    device: str | None,
    halves: bool,
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
    measured = read_measurements(path, device)
    scores = [*score_kernels(measured, known), *(score_halves(measured) if halves else ())]
    rows = kernel_rows(scores)
    if json_:
        print_json({"rows": [row.content() for row in rows], "scores": [asdict(one) for one in scores]})
    else:
        _show_kernels(scores)
        show_gated(rows)
    if gate and not all_met(rows):
        context.exit(1)


def _show_kernels(scores: Sequence[KernelScore]) -> None:
    print_table(
        "Predicted against measured durations",
        (
            "operator~",
            "device~",
            "type~",
            "basis~",
            "file~",
            "rows",
            "error %",
            "median %",
            "bias",
            "in interval %",
            "by size %~",
        ),
        [
            (
                s.kind,
                s.device,
                s.dtype,
                f"{s.basis}{', seen' if s.seen else ''}",
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
