"""Compare the law of occupancy with passes measured in PATH.

A table (Parquet or CSV) has the columns kernel, workgroups_per_cu and latency_us: the time of one pass with that many
workgroups of the kernel on every compute unit. A column model is read if it is there. Of each kernel with 8 passes or
more, two are given to the law, and the others are predicted. The two are the pass with the fewest workgroups and the
pass with the most.

\b
seqpoint validate occupancy reef_latency_by_occupancy.parquet --verbose
seqpoint validate occupancy measured.csv --gate --json
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np

from profilers.errors import InvalidInputError
from profilers.trace.arrays import Floats
from replay.calibration.tables import MeasuredTable
from replay.costs.occupancy import KNEE, fit_occupancy
from seqpoint.notebook import Table, table_of
from seqpoint.validation.suites import Suite, SuiteOptions, SuiteResult, ValidationRow, summary_row, table_columns

_COLUMNS = ("kernel", "workgroups_per_cu", "latency_us")
_NEEDS = "table of passes by occupancy (columns kernel, workgroups_per_cu, latency_us)"
#: Fewest passes of a kernel that is scored.
LEAST_PASSES = 8
#: Limit of each median error.
_LIMIT = 0.15
#: A kernel is slowed by half or more if a pass takes this many times as long as the shortest one.
_SLOWED = 1.5
#: Most workgroups of a unit, and the range of a time in us; beyond them the unit is another.
_MOST_WORKGROUPS, _LEAST_US, _MOST_US = 4096, 1e-3, 1e9
#: Exponents that each model's kernels are scored with, chosen on the kernels of the other models.
_KNEES = (1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0)


@dataclass(frozen=True)
class MeasuredPasses:
    """Times of one pass of a kernel, by the workgroups on every compute unit.

    Parameters
    ----------
    model, kernel : str
        Name of the model, empty if the table has none, and of the kernel.
    resident : array of float64, shape (n,)
        Workgroups on every compute unit, ascending.
    times_ns : array of float64, shape (n,)
        Time of each pass.
    source : str
        Name of the file.
    """

    model: str
    kernel: str
    resident: Floats
    times_ns: Floats
    source: str

    @property
    def name(self) -> str:
        """Model and kernel."""
        return f"{self.model}/{self.kernel}" if self.model else self.kernel

    @property
    def slowdown(self) -> float:
        """Time of the longest pass over that of the shortest."""
        return float(self.times_ns.max() / self.times_ns.min())


#: Predicts the times of passes from two of them: resident workgroups, times, positions of the two.
Prediction = Callable[[Floats, Floats, tuple[int, int]], Floats]


def _law(knee: float) -> Prediction:
    """Return the prediction of the law with an exponent."""

    def predicted(resident: Floats, times: Floats, known: tuple[int, int]) -> Floats:
        fewer, more = ((float(resident[i]), float(times[i])) for i in known)
        return fit_occupancy(fewer, more, knee=knee).time_ns(resident)

    return predicted


def _constant(resident: Floats, times: Floats, known: tuple[int, int]) -> Floats:
    return np.full(len(resident), times[known[0]])


def _proportional(resident: Floats, times: Floats, known: tuple[int, int]) -> Floats:
    return np.asarray(times[known[1]] * resident / resident[known[1]])


def _bends(resident: Floats, times: Floats, known: tuple[int, int]) -> Floats:
    return np.maximum(_constant(resident, times, known), _proportional(resident, times, known))


#: Laws that are compared. The first is the one that projections use.
LAWS: Mapping[str, Prediction] = MappingProxyType(
    {
        f"latency and throughput, exponent {KNEE:g}": _law(KNEE),
        "exponent 2": _law(2.0),
        "straight line": _law(1.0),
        "the longer of latency and throughput": _bends,
        "occupancy has no effect": _constant,
        "in proportion to the workgroups": _proportional,
    }
)


def read_passes(file: Path) -> list[MeasuredPasses]:
    """Read a table of measured passes.

    Parameters
    ----------
    file : Path
        Parquet or CSV file with the columns kernel, workgroups_per_cu and latency_us.

    Raises
    ------
    NotFoundError
        There is no such file.
    InvalidInputError
        The file is no table, lacks a column, or has a value that cannot be. The message names file and row.
    """
    table = MeasuredTable.open(file, _COLUMNS)
    table.refuse_doubles((*_COLUMNS, "model"))
    kernels = table.texts("kernel")
    models = table.texts("model") if "model" in table.columns else np.full(len(kernels), "", dtype=object)
    resident = table.numbers("workgroups_per_cu", (1, _MOST_WORKGROUPS), whole=True)
    times = 1e3 * table.numbers("latency_us", (_LEAST_US, _MOST_US))
    rows: dict[tuple[str, str], dict[float, int]] = {}
    twice = list[tuple[int, object]]()
    for row, key in enumerate(zip(models, kernels, strict=True)):  # about 1 us a row
        if (first := rows.setdefault(key, {}).setdefault(resident[row], row)) != row:
            there = f"is in row {table.number(first)} already; leave one"
            twice.append((row, f"{key[1]!r:.80} with {resident[row]:g} workgroups {there}"))
    table.refuse(twice)
    return [
        MeasuredPasses(model, kernel, resident[order], times[order], file.name)
        for (model, kernel), passes in rows.items()
        for order in [np.array([passes[count] for count in sorted(passes)])]
    ]


def held_out_errors(passes: MeasuredPasses, predict: Prediction, *, extrapolate: bool = False) -> Floats:
    """Return the relative errors of the passes that a prediction was not given.

    Parameters
    ----------
    passes : MeasuredPasses
        Passes of a kernel, 3 or more.
    predict : callable
        Function of resident workgroups, times and the positions of the two known passes.
    extrapolate : bool
        Whether the two known passes are the first and the middle one, and the passes beyond the middle are scored. By
        default the first and the last are known, and those between them are scored.
    """
    count = len(passes.resident)
    known = (0, (count - 1) // 2) if extrapolate else (0, count - 1)
    scored = slice(known[1] + 1, None) if extrapolate else slice(1, count - 1)
    predicted = predict(passes.resident, passes.times_ns, known)
    return np.asarray(np.abs(predicted / passes.times_ns - 1)[scored])


def errors_with_chosen_exponent(kernels: Sequence[MeasuredPasses]) -> list[Floats]:
    """Return the errors of each kernel with the exponent that suits the kernels of the other models best.

    Parameters
    ----------
    kernels : sequence of MeasuredPasses
        Kernels of two models or more.
    """
    by_knee = {knee: [held_out_errors(kernel, _law(knee)) for kernel in kernels] for knee in _KNEES}
    chosen: dict[str, list[Floats]] = {}
    for model in {kernel.model for kernel in kernels}:
        others = [i for i, kernel in enumerate(kernels) if kernel.model != model]
        chosen[model] = min(
            by_knee.values(), key=lambda errors: float(np.median(np.concatenate([errors[i] for i in others])))
        )
    return [chosen[kernel.model][i] for i, kernel in enumerate(kernels)]


def _score(errors: Sequence[Floats]) -> dict[str, float]:
    """Return the median and the 90th percentile over passes, and the median over the medians of kernels."""
    passes = np.concatenate(errors)
    kernels = [float(np.median(of_kernel)) for of_kernel in errors]
    return {
        "median": float(np.median(passes)),
        "p90": float(np.quantile(passes, 0.9)),
        "kernels": float(np.median(kernels)),
    }


def occupancy_scores(kernels: Sequence[MeasuredPasses]) -> list[dict[str, object]]:
    """Return the errors of every law, on all kernels and on those that occupancy slows by half or more.

    Parameters
    ----------
    kernels : sequence of MeasuredPasses
        Kernels with `LEAST_PASSES` passes or more.
    """
    slowed = [kernel for kernel in kernels if kernel.slowdown >= _SLOWED]
    scores: list[dict[str, object]] = []
    for label, chosen in (("all", kernels), ("slowed by half or more", slowed)):
        for known, extrapolate in (("first and last", False), ("first and middle", True)):
            for law, predict in LAWS.items():
                if chosen:
                    errors = [held_out_errors(kernel, predict, extrapolate=extrapolate) for kernel in chosen]
                    scores.append({"kernels of": label, "n": len(chosen), "known": known, "law": law} | _score(errors))
    return scores


def occupancy_rows(kernels: Sequence[MeasuredPasses]) -> list[ValidationRow]:
    """Return a row for each kernel, then the medians that have limits.

    Parameters
    ----------
    kernels : sequence of MeasuredPasses
        Kernels with `LEAST_PASSES` passes or more.
    """
    predict = next(iter(LAWS.values()))
    errors = [held_out_errors(kernel, predict) for kernel in kernels]
    rows = [
        ValidationRow(f"{kernel.name}: median of {len(of_kernel)} passes", None, error, error, source=kernel.source)
        for kernel, of_kernel in zip(kernels, errors, strict=True)
        for error in [float(np.median(of_kernel))]
    ]
    slowed = [e for kernel, e in zip(kernels, errors, strict=True) if kernel.slowdown >= _SLOWED]
    summaries = {"all kernels": errors, "kernels slowed by half or more": slowed}
    if len({kernel.model for kernel in kernels}) > 1:
        summaries["all kernels, exponent of the other models"] = errors_with_chosen_exponent(kernels)
    for label, chosen in summaries.items():
        if chosen:
            score, passes = _score(chosen), sum(map(len, chosen))
            rows.append(summary_row(f"{label}: median of {passes} passes", score["median"], _LIMIT))
            rows.append(summary_row(f"{label}: median of {len(chosen)} medians", score["kernels"], _LIMIT))
    return rows


def _scored(measured: Sequence[MeasuredPasses], options: SuiteOptions) -> SuiteResult:
    """Score the kernels with enough passes."""
    kernels = [kernel for kernel in measured if len(kernel.resident) >= LEAST_PASSES]
    if not kernels:
        raise InvalidInputError(
            f"{measured[0].source}: no kernel has {LEAST_PASSES} passes; measure each with 1 to {LEAST_PASSES} or more "
            "workgroups on every unit"
        )
    scores = occupancy_scores(kernels)
    left = len(measured) - len(kernels)
    notes = [f"{left} of {len(measured)} kernels are left out: fewer than {LEAST_PASSES} passes"] if left else []
    return SuiteResult(occupancy_rows(kernels), {"scores": scores}, _tables(scores), scores, notes)


def _tables(scores: Sequence[Mapping[str, object]]) -> list[Table]:
    """Return the table of laws with the first and the last pass known, and the other one."""
    columns = {
        "kernels~": "{kernels of}", "n": "{n}", "law~": "{law}", "median %": "{median:.1%}", "90th %": "{p90:.1%}",
        "kernels' medians %": "{kernels:.1%}",
    }  # fmt: skip
    return [
        table_of(
            f"Errors of passes, {known} pass known",
            columns,
            [s for s in scores if s["known"] == known],
            verbose=verbose,
        )
        for known, verbose in (("first and last", False), ("first and middle", True))
    ]


SUITE = Suite(
    name="occupancy",
    description=__doc__,
    needs=_NEEDS,
    source=lambda file: file if set(_COLUMNS) <= set(table_columns(file)) else None,
    read=lambda sources, options: [passes for source in sources for passes in read_passes(source)],
    score=_scored,
)
