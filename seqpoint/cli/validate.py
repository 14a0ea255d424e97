"""`seqpoint validate`."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import click

from profilers.datasets import dataset_path
from replay.collectives import FABRICS, calibrate_collectives, load_collectives, read_collectives, read_fits
from replay.durations import load_calibration, read_calibration, read_measurements
from seqpoint.cli.options import as_json, gate_option, max_iterations_option, max_points_option
from seqpoint.cli.output import print_json, print_table, say
from seqpoint.methods import METHODS
from seqpoint.validation.collectives import CollectiveScore, collective_rows, score_collectives
from seqpoint.validation.kernels import KernelScore, kernel_rows, score_kernels
from seqpoint.validation.rows import ValidationRow, all_met
from seqpoint.validation.selection import BUDGET, Epochs, Score, noise_floor, read_epochs, score, selection_rows


@click.group("validate")
def command() -> None:
    """Score what the toolkit says against what was measured.

    \b
    seqpoint validate selection my_epochs/
    seqpoint validate kernels measured.parquet
    seqpoint validate collectives a100_dgx_all_reduce.csv
    """


@command.command("selection")
@click.argument("folder", type=click.Path(), required=False)
@max_points_option(BUDGET.points)
@max_iterations_option
@gate_option
@as_json
@click.pass_context
def selection(
    context: click.Context, folder: str | None, max_points: int, max_iterations: int | None, gate: bool, json_: bool
) -> None:
    """Select on one configuration of each epoch in FOLDER, and compare on the others.

    FOLDER holds logs named MODEL/CONFIGURATION-ORDER.csv (or .parquet), with the configuration `base`, and `again` for
    the same once more, which tells the noise (`benchmarks/selection/record_epochs.py` writes such a folder). Without
    it, the epochs that this project recorded are scored. One in 120 iterations is profiled, unless there are
    more points or `--max-iterations` says otherwise.

    \b
    seqpoint validate selection
    seqpoint validate selection my_epochs/ --max-points 8 --json
    """
    epochs = read_epochs(Path(folder) if folder else dataset_path("measured/epochs"))
    budget = replace(BUDGET, points=max_points, iterations=max_iterations)
    scores = [score(one, name, budget) for one in epochs for name in METHODS]
    rows = selection_rows(scores)
    if json_:
        print_json(
            {
                "rows": [row.content() for row in rows],
                "scores": [_summary(one) for one in scores],
                "noise_floor": [_floor(one) for one in epochs],
            }
        )
    else:
        for one in epochs:
            _show(one, [s for s in scores if (s.model, s.order) == (one.model, one.order)])
        show_gated(rows)
    if gate and not all_met(rows):
        context.exit(1)


def show_gated(rows: Sequence[ValidationRow]) -> None:
    """Print the rows that have a limit."""
    print_table(
        "Limits",
        ("case~", "ours", "limit", "met", "from~"),
        [
            (
                row.case,
                f"{row.ours:.4g}",
                f"{'>=' if row.least else '<='} {row.limit:g}",
                "yes" if row.met else "NO",
                row.source,
            )
            for row in rows
            if row.limit is not None
        ],
    )


def _summary(found: Score) -> dict[str, object]:
    return {name: value for name, value in asdict(found).items() if name != "cases"}


def _floor(epochs: Epochs) -> dict[str, object]:
    return {"model": epochs.model, "order": epochs.order, "noise_floor": noise_floor(epochs)}


def _show(epochs: Epochs, scores: list[Score]) -> None:
    floor = noise_floor(epochs)
    noise = "" if floor is None else f"; the same epoch run again differs by {100 * floor:.2f} %"
    say(
        f"{epochs.model}, {epochs.order}: {len(epochs.lengths)} iterations, selected on base, "
        f"judged on {', '.join(epochs.others)}{noise}"
    )
    print_table(
        "Geometric mean (largest) of the errors",
        ("selector~", "points", "total %", "speed-up %", "fewer, sequential", "parallel", "covered %", "+- %"),
        [
            (
                s.selector,
                s.points,
                f"{100 * s.total_error:.2f} ({100 * s.total_worst:.2f})",
                f"{100 * s.speedup_error:.2f} ({100 * s.speedup_worst:.2f})",
                f"{s.sequential_reduction:.0f}x",
                f"{s.parallel_reduction:.0f}x",
                f"{100 * s.covered:.0f}",
                f"{100 * s.half_width:.1f}",
            )
            for s in scores
        ],
    )


@command.command("kernels")
@click.argument("path", type=click.Path())
@click.option("--calibration", metavar="FILE", type=click.Path(), help="Instead of the shipped one.")
@gate_option
@as_json
@click.pass_context
def kernels(context: click.Context, path: str, calibration: str | None, gate: bool, json_: bool) -> None:
    """Compare predicted durations of operators with those measured in PATH, a table or a folder of tables.

    A table has the columns op, device, latency_ms, and B M N K (linear, bmm) or B H (softmax, ln, elementwise), FP32.
    Each device is predicted with its own fit, where it has one, and as if it had never been seen.

    \b
    seqpoint validate kernels measured.parquet --json
    """
    known = read_calibration(calibration) if calibration else load_calibration()
    scores = score_kernels(read_measurements(path), known)
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


@command.command("collectives")
@click.argument("path", type=click.Path())
@click.option("--calibration", metavar="FILE", type=click.Path(), help="Instead of the shipped one.")
@click.option("--device", metavar="NAME", help="That was measured, where no column and no file name says it.")
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
