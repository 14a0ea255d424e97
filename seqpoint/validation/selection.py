"""Select on one configuration of each epoch in PATH, and compare on the others.

PATH holds logs named MODEL/CONFIGURATION-ORDER.csv (or .parquet), with the configuration `base`, and `again` for
the same once more, which tells the noise (`benchmarks/selection/record_epochs.py` writes such a folder). Without
it, the epochs that this project recorded are scored. One in 120 iterations is profiled, unless there are more
points or `--max-iterations` says otherwise.

\b
seqpoint validate selection
seqpoint validate selection my_epochs/ --max-points 8 --json
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType

import numpy as np

from profilers.errors import InvalidInputError, NotFoundError
from profilers.trace.arrays import Floats
from seqpoint.iteration_table import IterationTable, read_log
from seqpoint.notebook import Table, table_of
from seqpoint.selection import parallel_reduction, relative_error, sequential_reduction
from seqpoint.selection.selecting import METHODS, Budget, method_of
from seqpoint.validation.suites import (
    Suite,
    SuiteOptions,
    SuiteResult,
    ValidationRow,
    geometric_mean,
    summary_row,
    table_columns,
)

#: Name of the configuration that selections are made on, and of its repetition.
_BASE, _AGAIN = "base", "again"
#: By default, one in this number of iterations is profiled.
_SHARE = 120
#: Selector whose summary is gated, and its limits.
_GATED = "seqpoint, assisted"
_LIMITS: Mapping[str, float] = MappingProxyType(
    {"total_error": 0.005, "speedup_error": 0.01, "sequential_reduction": 80.0, "parallel_reduction": 200.0}
)
#: Baselines that must be worse on all epochs; the prior must be worse on sorted ones.
_WORSE = ("frequent", "median", "worst")

#: Up to twelve points and the number of bins with the least error: on a noisy machine the first that is within 1 % is
#: not the best. With one in 120 iterations, several of a length, profiling shrinks more than 80 times.
BUDGET = Budget(points=SuiteOptions.max_points, tolerance=0.0)


@dataclass(frozen=True)
class Epochs:
    """The same epoch, iteration by iteration, on several configurations.

    Parameters
    ----------
    model, order : str
        Name of the model, and the order of its iterations.
    lengths : array of float64, shape (n_iterations,)
        Sequence lengths.
    durations_ns : mapping of str to array of float64, shape (n_iterations,)
        Durations by configuration; ``"base"`` is among them.
    """

    model: str
    order: str
    lengths: Floats
    durations_ns: Mapping[str, Floats]

    @property
    def others(self) -> tuple[str, ...]:
        """The configurations apart from the base and its repetition."""
        return tuple(sorted(set(self.durations_ns) - {_BASE, _AGAIN}))


@dataclass(frozen=True)
class SelectionScore:
    """Errors of a selector on one model and order.

    Parameters
    ----------
    model, order, selector : str
        Name of the model, order of its iterations, and name of the selector.
    points : int
        Iterations profiled.
    total_error, total_worst : float
        Relative error of the projected total, geometric mean over the configurations not selected on, and largest.
    speedup_error, speedup_worst : float
        The same errors of the speed-up of each configuration over the base.
    sequential_reduction, parallel_reduction : float
        Total of the base over the sum of the points, and over the longest.
    covered : float
        Share of these totals that lie in their 95 % interval.
    half_width : float
        Half width of the interval, relative to the total, geometric mean.
    cases : tuple of ValidationRow
        Total and speed-up of each configuration.
    """

    model: str
    order: str
    selector: str
    points: int
    total_error: float
    total_worst: float
    speedup_error: float
    speedup_worst: float
    sequential_reduction: float
    parallel_reduction: float
    covered: float
    half_width: float
    cases: tuple[ValidationRow, ...] = ()


def read_epochs(folder: str | Path) -> list[Epochs]:
    """Read the logs ``MODEL/CONFIGURATION-ORDER.csv`` (or ``.parquet``) in a folder.

    Parameters
    ----------
    folder : str or Path
        The folder of the models' folders.

    Raises
    ------
    NotFoundError, InvalidInputError
        There is no log; or as `read_logs`.
    """
    root = Path(folder)
    files = sorted([*root.glob("*/*.csv"), *root.glob("*/*.parquet")])
    if not files:
        raise NotFoundError(f"{root}: no logs MODEL/CONFIGURATION-ORDER.csv; record_epochs.py writes such a folder")
    return read_logs(files)


def read_logs(files: Sequence[Path]) -> list[Epochs]:
    """Read logs whose paths end in ``MODEL/CONFIGURATION-ORDER.csv`` (or ``.parquet``).

    Parameters
    ----------
    files : sequence of Path
        Logs of one or more models.

    Raises
    ------
    NotFoundError, InvalidInputError
        A log is missing, is no log, or has another name; an order lacks the configuration ``base`` or another
        configuration; or logs that should be of the same epoch have other lengths.
    """
    logs: dict[tuple[Path, str], dict[str, IterationTable]] = {}
    for path in files:
        log = read_log(path)
        configuration, dash, order = path.stem.rpartition("-")
        if not dash:
            raise InvalidInputError(f"{path}: its name is not CONFIGURATION-ORDER, as base-sorted.csv")
        logs.setdefault((path.parent, order), {})[configuration] = log
    return [_epochs(model, order, by_name) for (model, order), by_name in sorted(logs.items())]


def _epochs(folder: Path, order: str, logs: Mapping[str, IterationTable]) -> Epochs:
    """Return the logs of one model and order, if they are of the same epoch."""
    if _BASE not in logs or len(set(logs) - {_BASE, _AGAIN}) == 0:
        raise InvalidInputError(f"{folder}: the order {order!r} needs {_BASE}-{order}.csv and another configuration")
    lengths = logs[_BASE].sequence_length
    for name, log in logs.items():
        if not np.array_equal(log.sequence_length, lengths):
            raise InvalidInputError(f"{folder}/{name}-{order}: its lengths are not those of {_BASE}-{order}")
    return Epochs(folder.name, order, lengths, {name: log.statistic("duration") for name, log in logs.items()})


def noise_floor(epochs: Epochs) -> float | None:
    """Return the relative difference between the base and its repetition; None without a repetition."""
    if _AGAIN not in epochs.durations_ns:
        return None
    base, again = (float(epochs.durations_ns[name].sum()) for name in (_BASE, _AGAIN))
    return abs(again - base) / base


def budget_for(budget: Budget, n_iterations: int) -> Budget:
    """Return a budget with a number of iterations: by default one in 120, and at least one for each point."""
    if budget.iterations is not None:
        return budget
    return replace(budget, iterations=max(budget.points, n_iterations // _SHARE))


def score(epochs: Epochs, selector: str, budget: Budget = BUDGET) -> SelectionScore:
    """Select on the base, and compare the estimates for the other configurations with the measurements.

    Parameters
    ----------
    epochs : Epochs
        The epoch, on the base and on the other configurations.
    selector : str
        A name of `seqpoint.selection.selecting.METHODS`.
    budget : Budget
        Points and iterations to profile, see `budget_for`.

    Raises
    ------
    InvalidInputError
        There is no such selector.
    """
    method = method_of(selector)
    X, base = epochs.lengths[:, None], epochs.durations_ns[_BASE]
    fitted = method.make(budget_for(budget, len(base))).fit(X, base)
    rows = fitted.representatives_
    totals, speedups, cases = [], [], []
    for name in epochs.others:
        measured = epochs.durations_ns[name]
        totals.append((method.total(fitted, (X, base), measured[rows]), float(measured.sum())))
        speedups.append((method.speedup(fitted, (X, base), measured[rows]), float(base.sum() / measured.sum())))
        for what, (estimate, true) in (("total", totals[-1]), ("speed-up", speedups[-1])):
            case = f"{epochs.model}, {epochs.order}, {name}, {selector}: {what}"
            error = relative_error(estimate.value, true)
            cases.append(ValidationRow(case, true, estimate.value, error, source="measured, not selected on"))
    total_errors, speedup_errors = (
        [relative_error(estimate.value, true) for estimate, true in pairs] for pairs in (totals, speedups)
    )
    return SelectionScore(
        epochs.model,
        epochs.order,
        selector,
        len(rows),
        geometric_mean(total_errors),
        max(total_errors),
        geometric_mean(speedup_errors),
        max(speedup_errors),
        sequential_reduction(float(base.sum()), base[rows]),
        parallel_reduction(float(base.sum()), base[rows]),
        float(np.mean([estimate.low <= true <= estimate.high for estimate, true in totals])),
        geometric_mean([estimate.half_width / true for estimate, true in totals]),
        tuple(cases),
    )


def selection_rows(scores: Sequence[SelectionScore]) -> list[ValidationRow]:
    """Return a row for each case, then the gated summaries.

    Parameters
    ----------
    scores : sequence of SelectionScore
        Scores of every selector on every epoch.
    """
    cases = [case for score in scores for case in score.cases]
    gated = [score for score in scores if score.selector == _GATED]
    if not gated:
        return cases
    means = f"geometric mean over {len(gated)} epochs, {_GATED}"
    for name, limit in _LIMITS.items():
        value = geometric_mean([getattr(score, name) for score in gated])
        cases.append(summary_row(f"{means}: {name.replace('_', ' ')}", value, limit, least="reduction" in name))
    return cases + _comparisons(scores, gated)


def _comparisons(scores: Sequence[SelectionScore], gated: Sequence[SelectionScore]) -> list[ValidationRow]:
    """Return the largest ratio, over configurations, of the error of the gated selector to that of each baseline.

    Errors of the total are averaged over the epochs of a configuration: on a single epoch any baseline may be right
    by chance.
    """
    rows = []
    for baseline in (*_WORSE, "prior"):
        sorted_only = baseline == "prior"
        ours, theirs = (
            _by_configuration([score for score in some if score.order == "sorted" or not sorted_only])
            for some in (gated, [score for score in scores if score.selector == baseline])
        )
        if not theirs:
            continue
        share = max(_share(float(np.mean(ours[name])), float(np.mean(theirs[name]))) for name in ours)
        pairs = [pair for name in ours for pair in zip(ours[name], theirs[name], strict=True)]
        lost = sum(our >= their for our, their in pairs)
        where = "sorted epochs" if sorted_only else "epochs"
        case = f"error of {_GATED} over that of {baseline}, {where}, the worst configuration"
        source = f"nearer by chance in {lost} of {len(pairs)} cases"
        rows.append(summary_row(case, share, 1.0, source=source))
    return rows


def _share(ours: float, theirs: float) -> float:
    """Return the ratio of two errors; that of two zeros is 1."""
    if theirs:
        return ours / theirs
    return float("inf") if ours else 1.0


def _by_configuration(scores: Sequence[SelectionScore]) -> dict[str, list[float]]:
    """Return the errors of the total by configuration, in the order of the scores."""
    errors: dict[str, list[float]] = {}
    for scored in scores:
        for case in scored.cases:
            if case.case.endswith(": total"):
                errors.setdefault(case.case.split(", ")[2], []).append(case.error)
    return errors


def _scored(epochs: Sequence[Epochs], options: SuiteOptions) -> SuiteResult:
    """Score every selector on every epoch."""
    budget = replace(BUDGET, points=options.max_points, iterations=options.max_iterations)
    scores = [score(epoch, name, budget) for epoch in epochs for name in METHODS]
    details = {
        "scores": [{name: value for name, value in asdict(s).items() if name != "cases"} for s in scores],
        "noise_floor": [{"model": e.model, "order": e.order, "noise_floor": noise_floor(e)} for e in epochs],
    }
    tables: list[Table | str] = []
    for number, epoch in enumerate(epochs):
        tables += [_headline(epoch), _table(scores[number * len(METHODS) : (number + 1) * len(METHODS)])]
    return SuiteResult(selection_rows(scores), details, tables, scores)


def _headline(epochs: Epochs) -> str:
    """Return the line above the table of an epoch."""
    floor = noise_floor(epochs)
    noise = "" if floor is None else f"; the same epoch run again differs by {100 * floor:.2f} %"
    return (
        f"{epochs.model}, {epochs.order}: {len(epochs.lengths)} iterations, selected on base, "
        f"judged on {', '.join(epochs.others)}{noise}"
    )


def _table(scores: Sequence[SelectionScore]) -> Table:
    """Return the table of the selectors on an epoch."""
    columns = {
        "selector~": "{selector}", "points": "{points}", "total %": "{total_error:.2%} ({total_worst:.2%})",
        "speed-up %": "{speedup_error:.2%} ({speedup_worst:.2%})",
        "fewer, sequential": "{sequential_reduction:.0f}x", "parallel": "{parallel_reduction:.0f}x",
        "covered %": "{covered:.0%}", "+- %": "{half_width:.1%}",
    }  # fmt: skip
    return table_of("Geometric mean (largest) of the errors", columns, scores)


SUITE = Suite(
    name="selection",
    description=__doc__,
    needs="logs MODEL/CONFIGURATION-ORDER.csv (benchmarks/selection/record_epochs.py writes such a folder)",
    source=lambda file: file if "-" in file.stem and "sequence_length" in table_columns(file) else None,
    read=lambda sources, options: read_logs(sources),
    score=_scored,
    options=("max_points", "max_iterations"),
    shipped="measured/epochs",
)
