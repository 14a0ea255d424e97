"""`seqpoint validate selection`."""

from dataclasses import asdict, replace
from pathlib import Path

import click

from profilers.files import dataset_path
from seqpoint.cli.options import as_json, gate_option, max_iterations_option, max_points_option
from seqpoint.cli.output import print_json, print_table, say
from seqpoint.cli.validate.gated import exit_unless_met, show_gated
from seqpoint.selection.selecting import METHODS
from seqpoint.validation.selection import BUDGET, Epochs, Score, noise_floor, read_epochs, score, selection_rows


@click.command("selection")
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
    if gate:
        exit_unless_met(context, rows)


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
