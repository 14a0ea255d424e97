"""Regenerate tests/accuracy/selection_floor.csv: what points can know of a total, and what `--target-error` keeps.

    python benchmarks/selection/floor_of_selection.py [../shared/data/traces/kineto/particle_transformer] \
        > tests/accuracy/selection_floor.csv

Iterations of equal length scatter, so points know a total to about the scatter over the square root of their number.
Each row judges on one recording. Its columns, in percent but for counts:

- `scatter`: relative standard deviation of equal lengths, weighted by cost; `short` and `long`: of the quarters of the
  iterations with the shortest and longest lengths. `correlation`: of the noise of successive iterations, a number.
- `busy_short` and `busy_long`: kernel time over step time of the shortest and longest of three traced iterations, where
  the recording of a GPU has traces (the profiler slows the host down).
- `floor_12`: scatter over the square root of 12 points, with the finite population correction. `error_12`: measured.
- `points_T` and `error_T` for a target error T: what `seqpoint select --target-error T` chooses on the recording
  `chosen_on`, and its error on the row's recording. `chosen_T` is the error of the very iterations that it chose.

Errors are root mean squares over 200 draws: each draw takes random iterations of the chosen lengths, as another run
would. With `chosen_on` pilot, the scatter is that of 12 pairs of equal lengths on the row's recording, and the lengths
are those of the base. The traces in the optional folder know the kernel time too.
"""

import csv
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import click
import numpy as np

from profilers.files import dataset_path
from profilers.ingest.pipeline import IngestOptions, collect
from seqpoint.iteration_table import iteration_table
from seqpoint.selection.estimate import Precision, scatter_of
from seqpoint.selection.log import SelectionLog, length_table
from seqpoint.selection.selecting import METHODS, Budget, SelectOptions, budget_of, select
from seqpoint.validation.selection import Epochs, read_epochs

RECORDINGS = {"H100": "measured/h100/epochs", "H200": "measured/h200/epochs", "CPU": "measured/epochs"}
TARGETS = {"5": 0.05, "2": 0.02, "1": 0.01, "0.5": 0.005}
DRAWS = 200
POINTS = 12
SEQPOINT = METHODS["seqpoint"]


class Log:
    """Lengths and times of an epoch, with the errors of points on it."""

    def __init__(self, lengths: np.ndarray, time: np.ndarray) -> None:
        self.X, self.lengths, self.time = lengths[:, None], lengths, time
        self.table = length_table(lengths, time)
        self.residuals = time / self.table.means[self.table.of_iteration] - 1
        rows = np.arange(len(time))
        self.scatter, _ = scatter_of(SelectionLog(lengths, time, representatives=rows, weights=np.ones(len(time))))

    def fit(self, budget: Budget) -> object:
        """Return the points of a budget."""
        return SEQPOINT.make(budget).fit(self.X, self.time)

    @cache  # noqa: B019
    def chosen_for(self, target: float) -> object:
        """Return the points of `seqpoint select --target-error`."""
        options = SelectOptions(target_error=target)
        return self.fit(budget_of(SEQPOINT, options, (self.X, self.time)))

    @cache  # noqa: B019
    def chosen(self, count: int) -> object:
        """Return points of a number of iterations, of as many lengths as `seqpoint select --target-error` takes."""
        points = min(count, len(self.table.lengths))
        return self.fit(Budget(points, count, first=points))

    def drawn(self, fitted: object, rng: np.random.Generator) -> np.ndarray:
        """Return random iterations of the lengths of points, in the order of the points."""
        order = np.lexsort((rng.random(len(self.time)), self.table.of_iteration))
        first = np.cumsum(self.table.counts) - self.table.counts
        length = self.table.of_iteration[fitted.representatives_]  # ascending
        return order[first[length] + np.arange(len(length)) - np.searchsorted(length, length)]

    def error(self, fitted: object, rows: np.ndarray) -> float:
        """Return the relative error of the weighted sum of some iterations, with its sign."""
        return float(fitted.weights_ @ self.time[rows]) / float(self.time.sum()) - 1

    def errors(self, fitted: object) -> float:
        """Return the root mean square error over random iterations of the lengths of points."""
        rng = np.random.default_rng(0)
        return rms([self.error(fitted, self.drawn(fitted, rng)) for _ in range(DRAWS)])

    def quarter(self, quarter: int) -> float:
        """Return the scatter within equal lengths of a quarter of the iterations, by length."""
        degrees = (1 - 1 / self.table.counts)[self.table.of_iteration]
        rows = np.array_split(np.argsort(self.lengths, kind="stable"), 4)[quarter]
        return float(np.sqrt((self.residuals[rows] ** 2).sum() / max(degrees[rows].sum(), 1e-9)))

    def floor(self, points: int) -> float:
        """Return the scatter over the square root of a number of points, with the finite population correction."""
        return self.scatter * (1 / points - 1 / len(self.time)) ** 0.5 if points < len(self.time) else 0.0


def rms(values: list[float]) -> float:
    """Return the root mean square."""
    return float(np.sqrt(np.mean(np.square(values))))


def percent(value: float) -> str:
    """Return a share in percent."""
    return f"{100 * value:.2f}"


def facts(log: Log) -> dict[str, str]:
    """Return the scatter of a recording, and what 12 points know."""
    points = min(POINTS, len(log.time) - 1)
    return {
        "iterations": str(len(log.time)),
        "lengths": str(len(log.table.lengths)),
        "scatter": percent(log.scatter),
        "short": percent(log.quarter(0)),
        "long": percent(log.quarter(3)),
        "correlation": f"{np.corrcoef(log.residuals[:-1], log.residuals[1:])[0, 1]:.2f}",
        "floor_12": percent(log.floor(points)),
        "error_12": percent(log.errors(log.chosen(points))),
    }


def busy(data: str, model: str, configuration: str) -> dict[str, str]:
    """Return the share of the step in which kernels run, of the shortest and longest traced iteration."""
    folder = dataset_path("measured") / data.lower() / "traces"
    path = folder / f"{model}_{configuration}.pt.trace.json.gz"
    if not path.is_file():
        return {"busy_short": "", "busy_long": ""}
    table = iteration_table(collect([path], IngestOptions()))
    shares = table.statistic("kernel_time") / table.statistic("duration")
    order = np.argsort(table.sequence_length)
    return {"busy_short": f"{100 * shares[order[0]]:.0f}", "busy_long": f"{100 * shares[order[-1]]:.0f}"}


def promise(base: Log, judged: Log) -> dict[str, str]:
    """Return numbers of points for every target, chosen on one recording, and their errors on another."""
    row = {}
    for name, target in TARGETS.items():
        fitted = base.chosen_for(target)
        row |= {
            f"points_{name}": str(len(fitted.representatives_)),
            f"error_{name}": percent(judged.errors(fitted)),
            f"chosen_{name}": percent(abs(judged.error(fitted, fitted.representatives_))),
        }
    return row


def pilot(base: Log, judged: Log) -> dict[str, str]:
    """Return the same with numbers of points from the scatter of 12 pairs on the recording that is judged."""
    row = {}
    pairs = base.fit(Budget(POINTS, 2 * POINTS, tolerance=0.0))
    for name, target in TARGETS.items():
        rng, counts, errors = np.random.default_rng(0), [], []
        for _ in range(DRAWS):
            scatter = _scatter_of_points(judged, judged.drawn(pairs, rng))
            count = max(points_for(scatter, target, len(judged.time)), 2 * POINTS)
            fitted = base.chosen(count)
            counts.append(len(fitted.representatives_))
            errors.append(judged.error(fitted, judged.drawn(fitted, rng)))
        row |= {f"points_{name}": f"{np.mean(counts):.0f}", f"error_{name}": percent(rms(errors)), f"chosen_{name}": ""}
    return row


def points_for(scatter: float, target: float, iterations: int) -> int:
    """Return the points that an error takes, if equal lengths scatter so."""
    return Precision(scatter, False, scatter, 0.0, 1, iterations).points_for(target) or 1


def _scatter_of_points(judged: Log, rows: np.ndarray) -> float:
    """Return the scatter of equal lengths among some iterations, weighted by cost squared."""
    points = length_table(judged.lengths[rows], judged.time[rows])
    residuals = judged.time[rows] / points.means[points.of_iteration] - 1
    return float(np.sqrt((residuals**2).sum() / max((points.counts - 1).sum(), 1)))


def epochs_rows(recordings: dict[str, str] = RECORDINGS, model: str = "") -> Iterator[dict[str, str]]:
    """Yield a row for every recorded epoch of a model, or of all, and for every recording that it is chosen on."""
    for data, folder in recordings.items():
        for epochs in read_epochs(dataset_path(folder)):
            if model in ("", epochs.model):
                yield from _epoch_rows(data, epochs)


def _epoch_rows(data: str, epochs: Epochs) -> Iterator[dict[str, str]]:
    logs = {name: Log(epochs.lengths, time) for name, time in epochs.durations_ns.items()}
    base = logs["base"]
    for name in ("base", *(name for name in logs if name != "base")):
        names = {"data": data, "model": epochs.model, "order": epochs.order, "judged_on": name}
        known = facts(logs[name]) | busy(data, epochs.model, name)
        yield {**names, "chosen_on": "base", **known, **promise(base, logs[name])}
        if name not in ("base", "again"):
            yield {**names, "chosen_on": "itself", **known, **promise(logs[name], logs[name])}
            yield {**names, "chosen_on": "pilot", **known, **pilot(base, logs[name])}


def traces_rows(paths: Iterable[Path]) -> Iterator[dict[str, str]]:
    """Yield a row for every batch size and statistic of real traces, without outliers."""
    for path in paths:
        table = iteration_table(collect([path], IngestOptions("file", "aten::layer_norm:0:0")))
        for statistic in ("duration", "kernel_time"):
            regular = select(table, SelectOptions(statistic)).regular
            log = Log(regular.sequence_length, regular.statistic(statistic))
            names = {"data": "A100", "model": path.name, "order": statistic, "judged_on": "base", "chosen_on": "base"}
            yield {**names, **facts(log), "busy_short": "", "busy_long": "", **promise(log, log)}


@click.command()
@click.argument("folder", required=False, type=click.Path(exists=True, path_type=Path))
def main(folder: Path | None) -> None:
    """Print the table of the recorded epochs, and of the traces in FOLDER."""
    paths = sorted(folder.iterdir(), key=lambda p: int(p.name.rpartition("_")[2])) if folder else ()
    rows = [*epochs_rows(), *traces_rows(paths)]
    writer = csv.DictWriter(sys.stdout, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


if __name__ == "__main__":
    main()
