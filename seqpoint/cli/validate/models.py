"""`seqpoint validate models`."""

from collections.abc import Sequence

import click

from replay.costs.kernels import load_calibration, read_calibration
from replay.workloads import load_transformers
from seqpoint.cli.options import as_json, gate_option
from seqpoint.cli.output import print_json, print_table, progress, working
from seqpoint.cli.validate.devices import short_devices
from seqpoint.cli.validate.gated import exit_unless_met, show_gated
from seqpoint.validation.models import MeasuredModel, ModelScore, model_rows, read_models, score_models


@click.command("models")
@click.argument("path", type=click.Path())
@click.option("--models", "models_", metavar="FILE.toml", type=click.Path(), help="Models instead of the shipped ones.")
@click.option("--calibration", metavar="FILE", type=click.Path(), help="Instead of the shipped one.")
@gate_option
@as_json
@click.pass_context
def models(
    context: click.Context, path: str, models_: str | None, calibration: str | None, gate: bool, json_: bool
) -> None:
    """Compare predicted times of whole transformers with those measured in PATH, a CSV file or a folder of them.

    Columns are device, model, mode (inf or train), seq_len, batch, e2e_ms, and option where operators were fused; FP32.
    Each device is predicted with its own fits, where it has some, and as if it had never been seen.

    \b
    seqpoint validate models measured.csv --json
    """
    known = read_calibration(calibration) if calibration else load_calibration()
    with working("reading"):
        measured = read_models(path, load_transformers(models_))
    scores = score_models(measured, known, progress("counting operators"))
    rows = model_rows(scores)
    if json_:
        print_json({"rows": [row.content() for row in rows], "scores": [_model_score(one) for one in scores]})
    else:
        _show_models(scores)
        show_gated(rows)
    if gate:
        exit_unless_met(context, rows)


def _model_score(one: ModelScore) -> dict[str, object]:
    return {
        "case": one.measured.name,
        "device": one.measured.device.name,
        "basis": one.basis,
        "measured_s": one.measured.seconds,
        "predicted_s": one.seconds,
        "low_s": one.low,
        "high_s": one.high,
        "error": one.error,
        "covered": one.covered,
    }


def _show_models(scores: Sequence[ModelScore]) -> None:
    short = short_devices(s.measured.device.name for s in scores)
    print_table(
        "Predicted against measured times, in ms",
        ("run~", "device~", "basis~", "took", "ours", "90 %", "err %"),
        [
            (
                _short(s.measured),
                short[s.measured.device.name],
                s.basis,
                f"{1e3 * s.measured.seconds:.0f}",
                f"{1e3 * s.seconds:.0f}",
                f"{1e3 * s.low:.0f}-{1e3 * s.high:.0f}",
                f"{100 * s.error:.1f}",
            )
            for s in scores
        ],
    )


def _short(one: MeasuredModel) -> str:
    words = (one.model.name, "train" if one.run.training else "inf", *(["fused"] if one.fused else []))
    return f"{' '.join(words)} {one.run.batch}x{one.run.length}"
