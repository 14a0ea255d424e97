"""`seqpoint validate training`."""

from collections.abc import Sequence

import click

from profilers.devices.catalogue import find_device
from replay.workloads import load_training, read_steps, read_training_fit
from seqpoint.cli.options import as_json, gate_option
from seqpoint.cli.output import print_json, print_table, working
from seqpoint.cli.validate.gated import exit_unless_met, show_gated
from seqpoint.validation.training import StepScore, score_steps, training_groups, training_rows

_WORST = 10


@click.command("training")
@click.argument("path", type=click.Path())
@click.option("--device", metavar="NAME", help="That was measured.  [default: that of the costs]")
@click.option("--node-devices", type=click.IntRange(1), default=8, show_default=True, help="Devices of a node.")
@click.option("--calibration", metavar="FILE", type=click.Path(), help="Costs instead of the shipped ones.")
@gate_option
@as_json
@click.pass_context
def training(
    context: click.Context,
    path: str,
    device: str | None,
    node_devices: int,
    calibration: str | None,
    gate: bool,
    json_: bool,
) -> None:
    """Compare predicted times of training steps with those measured in PATH, a CSV file or a folder of them.

    Columns are # GPUs, global batch, micro batch, hidden size, attention heads, # layers, sequence length, tensor
    parallelism, data parallelism, pipeline parallelism, iteration time (ms): Megatron-LM in 16 bits. Steps that the
    costs were fitted to are marked, and are not in the mean that is gated.

    \b
    seqpoint validate training megatron_a100_single_node.csv --gate
    seqpoint validate training measured.csv --device H100-SXM5-80GB --json
    """
    fit = read_training_fit(calibration) if calibration else load_training()
    measured = read_steps(path, node_devices)
    with working(f"predicting {len(measured):,} steps"):
        scores = score_steps(measured, find_device(device or fit.device), fit)
    rows = training_rows(scores)
    if json_:
        print_json({"rows": [row.content() for row in rows], "scores": [_score(one) for one in scores]})
    else:
        _show(scores)
        show_gated(rows)
    if gate:
        exit_unless_met(context, rows)


def _score(one: StepScore) -> dict[str, object]:
    return {
        "case": one.name,
        "basis": one.predicted.basis,
        "fitted": one.fitted,
        "measured_s": one.measured.seconds,
        "predicted_s": one.predicted.seconds,
        "low_s": one.predicted.low_s,
        "high_s": one.predicted.high_s,
        "error": one.error,
        "covered": one.covered,
    }


def _show(scores: Sequence[StepScore]) -> None:
    parts = {"fitted": [s for s in scores if s.fitted], "not fitted": [s for s in scores if not s.fitted]}
    groups = {**{name: some for name, some in parts.items() if some}, **training_groups(parts["not fitted"])}
    print_table(
        "Predicted against measured times of steps; below the first rows, those not fitted",
        ("steps~", "n", "error %", "bias", "in interval %"),
        [
            (
                name,
                len(some),
                f"{100 * sum(s.error for s in some) / len(some):.1f}",
                f"{sum(s.ratio for s in some) / len(some):.2f}",
                f"{100 * sum(s.covered for s in some) / len(some):.0f}",
            )
            for name, some in groups.items()
        ],
    )
    print_table(
        "The worst",
        ("step~", "measured ms", "predicted ms", "interval ms", "error %"),
        [
            (
                s.name,
                f"{1e3 * s.measured.seconds:.1f}",
                f"{1e3 * s.predicted.seconds:.1f}",
                f"{1e3 * s.predicted.low_s:.0f} - {1e3 * s.predicted.high_s:.0f}",
                f"{100 * s.error:.1f}",
            )
            for s in sorted(scores, key=lambda s: -s.error)[:_WORST]
        ],
    )
