"""`seqpoint validate contention`."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from profilers.errors import NotFoundError
from profilers.files import dataset_path, file_to_write
from replay.contention import ContentionFit, ContentionRecording, read_contention, read_contention_fit
from seqpoint.cli.options import as_json, gate_option, verbose_option
from seqpoint.cli.output import message, print_json, print_table, progress, say, working
from seqpoint.cli.validate.gated import exit_unless_met, show_gated
from seqpoint.validation.contention import (
    ContentionCase,
    OrderScore,
    PercentOfIdeal,
    contention_rows,
    notes_on,
    predict_contention,
    refit_contention,
    score_by_mechanism,
    score_ideal,
    score_order,
)

_WORST, _SHOWN = 12, 34


@click.command("contention")
@click.argument("path", type=click.Path(), required=False)
@click.option("--calibration", metavar="FILE", type=click.Path(), help="Of `seqpoint calibrate contention`.")
@click.option("--refit", is_flag=True, help="Predict each quarter of PATH with a fit to the others.")
@click.option("--plot", metavar="FILE.html", type=click.Path(), help="Write charts of predicted against measured.")
@verbose_option
@gate_option
@as_json
@click.pass_context
def contention(
    context: click.Context,
    path: str | None,
    calibration: str | None,
    refit: bool,
    plot: str | None,
    verbose: bool,
    gate: bool,
    json_: bool,
) -> None:
    """Compare predicted times of works side by side with those measured in PATH, a recording or a folder of some.

    A recording is what `python -m benchmarks.gpu --output DIR` writes; without PATH, those that the project ships. A
    scenario is held out where no scenario of the same works on such a device was fitted; only those are gated.

    \b
    seqpoint validate contention recording/
    seqpoint validate contention recording/ --refit --plot contention.html
    seqpoint validate contention recording/ --calibration mine.json --gate
    """
    if refit and calibration:
        raise click.UsageError("--refit fits anew; give it or --calibration")
    target = file_to_write(Path(plot)) if plot else None
    fit = read_contention_fit(calibration) if calibration else None
    with working("reading"):
        recordings = _recordings(path)
    notes = notes_on(recordings)
    for note in notes:
        message(f"note: {note}")
    cases = _predicted(recordings, fit, refit=refit)
    rows = contention_rows(cases)
    if json_:
        print_json({"rows": [row.content() for row in rows], **_scores(cases, fit), "notes": notes})
    else:
        _show(cases, fit)
        if verbose:
            _show_worst(cases)
        show_gated(rows)
    if target is not None:
        from seqpoint.reporting.page import write_contention_charts

        write_contention_charts(cases, target, notes)
        message(f"wrote {plot}")
    if gate:
        exit_unless_met(context, rows)


def _recordings(path: str | None) -> list[ContentionRecording]:
    if path is not None:
        return read_contention(path)
    try:
        return read_contention(dataset_path("measured"))
    except NotFoundError as error:
        raise NotFoundError(
            "the project ships no recording of works side by side; give one of yours: `python -m benchmarks.gpu "
            "--output DIR` makes it on a GPU (docs/contention.md)"
        ) from error


def _predicted(
    recordings: Sequence[ContentionRecording], fit: ContentionFit | None, *, refit: bool
) -> list[ContentionCase]:
    if refit:
        return refit_contention(recordings, progress("fitting"))
    with working("predicting"):
        return predict_contention(recordings, fit)


def _scores(cases: Sequence[ContentionCase], fit: ContentionFit | None) -> dict[str, object]:
    held = [case for case in cases if not case.fitted]
    return {
        "scores": [asdict(one) for one in score_by_mechanism(held)],
        "order": asdict(score_order(held)),
        "percent_of_ideal": [_ideal(one) for one in score_ideal(held)],
        "cases": [
            {**asdict(one), "error": one.error, "slowdown_error": one.slowdown_error, "covered": one.covered}
            for one in cases
        ],
        "calibration_sha256": fit.digest if fit else None,
    }


def _ideal(one: PercentOfIdeal) -> dict[str, object]:
    return {
        "carrier": one.carrier,
        "cases": one.cases,
        "measured": one.measured,
        "predicted": one.predicted,
        "published": dict(one.published),
    }


def _show(cases: Sequence[ContentionCase], fit: ContentionFit | None) -> None:
    held = [case for case in cases if not case.fitted]
    known = len(cases) - len(held)
    say(
        f"{', '.join(sorted({case.device or 'a device without a name' for case in cases}))}: "
        + f"{len(cases)} scenarios of {len({case.group for case in cases})} groups"
        + (f", by a calibration on {fit.device}" if fit else "")
        + (f"; {known} of them were fitted and are in no table" if known else "; none was fitted")
    )
    print_table(
        "Errors of predicted times, in %, of what was not fitted",
        (
            "mechanism~",
            "n",
            "median",
            "90th",
            "ends",
            "slow-\ndown",
            "one by\none",
            "free",
            "held",
            "takes",
            "at\nmost",
        ),
        [
            (
                one.mechanism,
                one.cases,
                *(
                    f"{100 * value:.1f}"
                    for value in (one.median, one.p90, one.ends, one.slowdown, one.serial, one.free)
                ),
                f"{100 * one.covered:.0f}",
                f"{100 * one.spread:.1f}",
                f"{100 * one.spread_max:.1f}",
            )
            for one in score_by_mechanism(held)
        ],
    )
    _show_order(score_order(held))
    _show_ideal(score_ideal(held))


def _show_order(order: OrderScore) -> None:
    if not order.compared:
        say("order of policies: no two policies of a group differ by more than takes do")
        return
    say(
        f"order of policies: {order.right} of {order.compared} pairs right ({100 * order.share:.0f} %); all right in "
        f"{order.groups_right} of {order.groups} groups"
    )


def _show_ideal(found: Sequence[PercentOfIdeal]) -> None:
    if not found:
        return
    print_table(
        "% of ideal of transfers beside kernels; published: other works, MI300X",
        ("carrier~", "n", "measured", "predicted", "published (arXiv 2412.14335)~"),
        [
            (
                one.carrier,
                one.cases,
                f"{one.measured:.0f}",
                f"{one.predicted:.0f}",
                ", ".join(f"{name} {value:g}" for name, value in one.published.items()),
            )
            for one in found
        ],
    )


def _show_worst(cases: Sequence[ContentionCase]) -> None:
    print_table(
        "The worst (* was fitted)",
        ("scenario~", "policy~", "fights for~", "us", "ours", "err %", "takes"),
        [
            (
                case.scenario[:_SHOWN] + "*" * case.fitted,
                case.policy,
                case.mechanism,
                f"{case.measured_ns / 1e3:.0f}",
                f"{case.predicted_ns / 1e3:.0f}",
                f"{100 * case.error:.0f}",
                f"{100 * case.spread:.1f}",
            )
            for case in sorted(cases, key=lambda one: (-one.error, one.name))[:_WORST]
        ],
    )
