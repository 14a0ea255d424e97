"""`seqpoint validate published`."""

from collections.abc import Sequence

import click

from seqpoint.cli.options import as_json, gate_option
from seqpoint.cli.output import print_json, print_table, say, working
from seqpoint.cli.validate.gated import exit_unless_met
from seqpoint.validation.published import PublishedScore, score_published


@click.command("published")
@click.argument("systems", nargs=-1, metavar="[SYSTEM]...")
@gate_option
@as_json
@click.pass_context
def published(context: click.Context, systems: tuple[str, ...], gate: bool, json_: bool) -> None:
    """Compare what papers report with what our models of their set-ups say.

    SYSTEM is c3, t3, ficco or fused; all by default. Evidence: A the paper's abstract, S a public source, D arithmetic;
    W a secondary description and M recollection are shown and not gated. A figure that a parameter was fitted on is
    marked; the others are predictions.

    \b
    seqpoint validate published
    seqpoint validate published t3 --gate
    """
    with working("simulating what the papers describe"):
        scores = score_published(systems)
    rows = [score.row for score in scores]
    if json_:
        print_json({"rows": [row.content() for row in rows], "figures": [_figure(score) for score in scores]})
    else:
        _show(scores)
    if gate:
        exit_unless_met(context, rows)


def _figure(score: PublishedScore) -> dict[str, object]:
    figure = score.figure
    return {
        "system": score.system,
        "name": figure.name,
        "paper": figure.paper,
        "setting": figure.setting,
        "quantity": figure.quantity,
        "unit": figure.unit,
        "published": figure.value,
        "ours": score.ours,
        "grade": figure.grade,
        "fitted": figure.fitted,
        "met": score.row.met,
    }


def _show(scores: Sequence[PublishedScore]) -> None:
    print_table(
        "Published figures and ours",
        ("system~", "what~", "unit~", "published", "ours", "evidence~", "fitted~", "within~"),
        [
            (
                score.system,
                score.figure.quantity,
                score.figure.unit,
                f"{score.figure.value:.4g}",
                f"{score.ours:.4g}",
                score.figure.grade,
                "yes" if score.figure.fitted else "",
                {True: "yes", False: "NO", None: ""}[score.row.met],
            )
            for score in scores
        ],
    )
    gated = [score for score in scores if score.figure.gated]
    met = sum(bool(score.row.met) for score in gated)
    predicted = [score for score in gated if not score.figure.fitted]
    right = sum(bool(score.row.met) for score in predicted)
    say(f"{met} of {len(gated)} gated figures within their limit; of the {len(predicted)} not fitted, {right}")
