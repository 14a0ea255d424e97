"""Regenerate the accuracy tables of selection: on the recorded epochs, and on real traces of an iteration a file.

    python benchmarks/selection/accuracy_of_selection.py > tests/accuracy/selection.csv
    python benchmarks/selection/accuracy_of_selection.py ../shared/data/traces/kineto/particle_transformer \
        > tests/accuracy/selection_traces.csv

The first table has the scores of `seqpoint validate selection` on the epochs in `datasets/measured/epochs`, and the
coverage of 95 % intervals on resampled epochs.

The second table has errors of the total kernel time from at most 8 points:

- of the run that the points were chosen on: by SeqPoint's formula with the mean of each length, by the points' own
  times, and by regression on these (`predict_total`);
- of a half of the iterations, from points of the other half: by bins and by regression.
"""

import csv
import sys
from pathlib import Path

import click
import numpy as np

from profilers.files import dataset_path
from profilers.ingest.pipeline import IngestOptions, collect
from seqpoint.iteration_table import iteration_table
from seqpoint.selection import SeqPointSelector, predict_total
from seqpoint.selection.evaluation import resampled_coverage
from seqpoint.selection.selecting import METHODS
from seqpoint.validation.selection import BUDGET, Epochs, SelectionScore, budget_for, noise_floor, read_epochs, score

POINTS = 8
RESAMPLED = ("seqpoint", "seqpoint, assisted", "stratified")
HALVES = {
    "even from odd": (slice(1, None, 2), slice(None, None, 2)),
    "odd from even": (slice(None, None, 2), slice(1, None, 2)),
    "second from first": ("first", "second"),
    "first from second": ("second", "first"),
}


def epochs_table(*, resample: bool = True) -> list[dict[str, str]]:
    """Return a row for every epoch and selector."""
    return [
        _row(epochs, score(epochs, name), covered=_covered(epochs, name) if resample and name in RESAMPLED else None)
        for epochs in read_epochs(dataset_path("measured/epochs"))
        for name in METHODS
    ]


def _row(epochs: Epochs, scored: SelectionScore, *, covered: float | None) -> dict[str, str]:
    floor = noise_floor(epochs)
    return {
        "model": scored.model,
        "order": scored.order,
        "selector": scored.selector,
        "iterations": str(scored.points),
        "total_error": f"{100 * scored.total_error:.3f}",
        "total_worst": f"{100 * scored.total_worst:.3f}",
        "speedup_error": f"{100 * scored.speedup_error:.3f}",
        "speedup_worst": f"{100 * scored.speedup_worst:.3f}",
        "sequential": f"{scored.sequential_reduction:.1f}",
        "parallel": f"{scored.parallel_reduction:.1f}",
        "covered": f"{100 * scored.covered:.0f}",
        "resampled_covered": "" if covered is None else f"{100 * covered:.1f}",
        "noise_floor": "" if floor is None else f"{100 * floor:.3f}",
    }


def _covered(epochs: Epochs, selector: str) -> float:
    """Return the coverage of the intervals on resampled epochs, the mean over configurations."""
    base = epochs.durations_ns["base"]
    budget = budget_for(BUDGET, len(base))
    return float(
        np.mean(
            [
                resampled_coverage(epochs.lengths, base, selector, budget, other=epochs.durations_ns[name]).covered
                for name in epochs.others
            ]
        )
    )


def traces_table(folder: Path) -> list[dict[str, str]]:
    """Return a row for every batch size."""
    rows = []
    for path in sorted(folder.iterdir(), key=lambda p: int(p.name.rpartition("_")[2])):
        trace = collect([path], IngestOptions("file", "aten::layer_norm:0:0"))
        table = iteration_table(trace)
        lengths, time = table.sequence_length, table.statistic("kernel_time")
        fitted = SeqPointSelector(POINTS).fit(lengths[:, None], time)
        row = {
            "trace": path.name,
            "iterations": str(len(time)),
            "points": str(len(fitted.representatives_)),
            "own_formula": f"{100 * fitted.relative_error_:.3f}",
            "own_points": f"{_percent(fitted.weights_ @ time[fitted.representatives_], time.sum()):.3f}",
            "own_regression": f"{_percent(_regression(lengths, time), time.sum()):.3f}",
        }
        for name, halves in HALVES.items():
            counted, regressed, inside = _from_half(lengths, time, halves)
            column = name.replace(" ", "_")
            row |= {f"{column}_bins": f"{counted:.3f}", f"{column}_regression": f"{regressed:.3f}"}
            row[f"{column}_in_interval"] = str(inside)
        rows.append(row)
    return rows


def _percent(estimate: float, measured: float) -> float:
    return 100 * abs(estimate - measured) / measured


def _regression(lengths: np.ndarray, time: np.ndarray) -> float:
    """Return the total by regression on the times of at most `POINTS` iterations, one for each bin."""
    fitted = SeqPointSelector(POINTS, initial_bins=POINTS, tolerance=0.0).fit(lengths[:, None], time)
    return predict_total(time[fitted.representatives_], fitted.sequence_lengths_, lengths).value


def _from_half(lengths: np.ndarray, time: np.ndarray, halves: tuple) -> tuple[float, float, bool]:
    """Return the errors in percent by bins and by regression, and whether the latter's interval holds the total."""
    middle = len(time) // 2
    named = {"first": slice(None, middle), "second": slice(middle, None)}
    chosen, judged = (named.get(half, half) if isinstance(half, str) else half for half in halves)
    fitted = SeqPointSelector(POINTS, initial_bins=POINTS, tolerance=0.0).fit(lengths[chosen][:, None], time[chosen])
    values, measured = time[chosen][fitted.representatives_], time[judged].sum()
    counts = np.bincount(fitted.predict(lengths[judged][:, None]), minlength=len(values))
    estimate = predict_total(values, fitted.sequence_lengths_, lengths[judged])
    return (
        _percent(counts @ values, measured),
        _percent(estimate.value, measured),
        estimate.low <= measured <= estimate.high,
    )


@click.command()
@click.argument("folder", required=False, type=click.Path(exists=True, path_type=Path))
def main(folder: Path | None) -> None:
    """Print the table of the recorded epochs, or that of the traces in FOLDER."""
    rows = traces_table(folder) if folder else epochs_table()
    writer = csv.DictWriter(sys.stdout, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


if __name__ == "__main__":
    main()
