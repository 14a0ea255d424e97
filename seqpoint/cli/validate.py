"""`seqpoint validate`."""

from dataclasses import asdict
from pathlib import Path

import click

from seqpoint.cli.options import as_json, max_points_option
from seqpoint.cli.output import print_json, print_table, say
from seqpoint.validating import SELECTORS, Epochs, Score, noise_floor, read_epochs, score


@click.group("validate")
def command() -> None:
    """Score what the toolkit says against what was measured.

    \b
    seqpoint validate selection my_epochs/
    """


@command.command("selection")
@click.argument("folder", type=click.Path())
@max_points_option(10)
@as_json
def selection(folder: str, max_points: int, json_: bool) -> None:
    """Select on one configuration of each epoch in FOLDER, and compare on the others.

    FOLDER holds logs named MODEL/CONFIGURATION-ORDER.csv, with the configuration `base`, and `again` for the same
    once more, which tells the noise (`benchmarks/selection/record_epochs.py` writes such a folder).

    \b
    seqpoint validate selection my_epochs/ --max-points 8 --json
    """
    epochs = read_epochs(Path(folder))
    scores = [score(one, name, max_points) for one in epochs for name in SELECTORS]
    if json_:
        print_json({"scores": [asdict(s) for s in scores], "noise_floor": [_floor(one) for one in epochs]})
        return
    for one in epochs:
        _show(one, [s for s in scores if (s.model, s.order) == (one.model, one.order)])


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
