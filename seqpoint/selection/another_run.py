"""The total of a run, estimated from iterations that were selected on another run."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from profilers.errors import InvalidInputError
from profilers.trace.arrays import Floats, Ints
from seqpoint.iteration_table import UNITS, IterationTable
from seqpoint.notebook import DataFrame, Result, data_frame
from seqpoint.outliers import counted_text
from seqpoint.selection.estimate import Precision, assisted_precision, assisted_speedup, assisted_total
from seqpoint.selection.log import SelectionLog
from seqpoint.units import quantity


@dataclass(frozen=True, repr=False)
class RunEstimate(Result):
    """The total of a run, estimated from iterations that were selected on another run.

    Parameters
    ----------
    statistic, unit : str
        The statistic that is totalled, and its unit.
    estimate, low, high : float
        The total with its interval, by the regression of `seqpoint.selection.assisted_total`.
    confidence : float
        Confidence level of the interval.
    measured : float, optional
        The measured total; None if the run does not hold the whole epoch.
    seqpoint_sum : float
        The weighted sum of the selected iterations, as SeqPoint's paper estimates the total.
    speedup, speedup_low, speedup_high : float, optional
        Total of the run that was selected on, over that of this run. Both are estimated from the points, without
        outliers; None if a total is zero.
    precision : Precision
        How well the selected iterations know the total of this run.
    n_outliers : int
        Outlying iterations of the run that was selected on.
    outliers_total : float
        Their share of `estimate`: measured in this run, or taken over from the other run where this run lacks them.
    """

    heading = "Estimated run"

    statistic: str
    unit: str
    estimate: float
    low: float
    high: float
    confidence: float
    measured: float | None
    seqpoint_sum: float
    speedup: float | None
    speedup_low: float | None
    speedup_high: float | None
    precision: Precision
    n_outliers: int = 0
    outliers_total: float = 0.0

    @property
    def error(self) -> float | None:
        """Relative error of the estimate; None if the total was not measured."""
        return None if self.measured is None else abs(self.estimate / self.measured - 1)

    def table(self) -> DataFrame:
        """Return the estimate as a table of one row."""
        return data_frame([self.to_dict()])

    def to_dict(self) -> dict[str, Any]:
        """Return what `seqpoint estimate --json` prints."""
        known = {name: getattr(self.precision, name) for name in ("scatter", "standard_error")}
        return {name: value for name, value in asdict(self).items() if name != "precision"} | known

    def summary(self) -> list[str]:
        """Return the estimate in up to six sentences."""
        numbers = (self.estimate, self.low, self.high, self.seqpoint_sum)
        estimate, low, high, seqpoint_sum = (quantity(number, self.unit) for number in numbers)
        sentences = [
            f"{self.statistic}: estimated {estimate} [{low}, {high}] "
            f"at {100 * self.confidence:g} % from {counted_text(self.precision.points, self.n_outliers)}",
            self.precision.summary(0.01),
        ]
        if self.speedup is not None and self.speedup_low is not None and self.speedup_high is not None:
            interval = f"[{self.speedup_low:.4f}, {self.speedup_high:.4f}]"
            totals = "estimated over estimated" + ", without outliers" * bool(self.n_outliers)
            sentences.append(f"speed-up over the run that was selected on: {self.speedup:.4f} {interval} ({totals})")
        if self.n_outliers:
            total = quantity(self.outliers_total, self.unit)
            many = f"{self.n_outliers} iteration{'s' * (self.n_outliers != 1)} with {total}"
            sentences.append(f"outliers of the run that was selected on: {many}, each counted once")
        sentences.append(f"SeqPoint's weighted sum of the points: {seqpoint_sum}")
        if self.measured is not None and self.error is not None:
            sentences.append(f"measured: {quantity(self.measured, self.unit)} (error {100 * self.error:.3f} %)")
        return sentences


def estimate_run(
    selection: dict[str, Any], tables: tuple[IterationTable, IterationTable], statistic: str | None = None
) -> RunEstimate:
    """Estimate the total of a run from the iterations that were chosen on another run.

    Parameters
    ----------
    selection : dict
        The selection: ``points`` (each ``iteration``, ``rank``, ``weight``), ``outliers`` (each ``iteration``),
        ``statistic``, ``confidence``.
    tables : pair of IterationTable
        The run that was selected on, and the run to estimate, which needs only the chosen iterations.
    statistic : str, optional
        Statistic to total; by default the statistic of the selection.

    Raises
    ------
    InvalidInputError
        A chosen iteration is missing from a run, or lengths are unknown.
    """
    if missing := next((key for key in ("points", "statistic", "confidence") if not selection.get(key)), None):
        raise InvalidInputError(f"the selection has no {missing}; give what sp.select returned, or its to_dict()")
    name = statistic or selection["statistic"]
    weights = np.array([p["weight"] for p in selection["points"]])
    rank = selection["points"][0]["rank"]
    numbers = np.array([p["iteration"] for p in selection["points"]])
    base, run = (table.of_rank(rank) for table in tables)
    outliers = [row["iteration"] for row in selection.get("outliers", ())]
    values = run.statistic(name)[_rows(run, numbers, "the run")]
    known = _outliers_total(base, run, outliers, name)
    whole = len(run) == len(base)
    measured = float(run.statistic(name).sum()) if whole else None
    base = base.take(np.flatnonzero(~np.isin(base.iteration, outliers)))
    base_rows = _rows(base, numbers, "the run that was selected on")
    if not np.isfinite(base.sequence_length).all():
        raise InvalidInputError("iterations of the run that was selected on have no sequence length; give --length")
    base_values = base.statistic(name)
    log = SelectionLog(base.sequence_length, base_values, representatives=base_rows, weights=weights)
    total = assisted_total(values, log, confidence=selection["confidence"]).plus(known)
    speedup, low, high = _speedup(base_values[base_rows], values, log, selection["confidence"])
    return RunEstimate(
        statistic=name,
        unit=UNITS.get(name, ""),
        estimate=total.value,
        low=total.low,
        high=total.high,
        confidence=total.confidence,
        measured=measured,
        seqpoint_sum=float(weights @ values) + known,
        speedup=speedup,
        speedup_low=low,
        speedup_high=high,
        precision=assisted_precision(values, log).of_share(1 - known / total.value if total.value else 1.0),
        n_outliers=len(outliers),
        outliers_total=known,
    )


def _speedup(
    before: Floats, after: Floats, log: SelectionLog, confidence: float
) -> tuple[float, float, float] | tuple[None, None, None]:
    """Return the speed-up between two measurements of the points, and its interval; None if either is all zero."""
    if not (before.any() and after.any()):
        return None, None, None
    speedup = assisted_speedup(before, after, log, confidence=confidence)
    return speedup.value, speedup.low, speedup.high


def _outliers_total(base: IterationTable, run: IterationTable, outliers: Sequence[int], name: str) -> float:
    """Return the total of the outliers, each measured in the run if it holds it, else in the base."""
    total = 0.0
    for number in outliers:  # a Python loop over a few iterations
        table = run if (run.iteration == number).any() else base
        total += float(table.statistic(name)[_rows(table, np.array([number]), "the run that was selected on")[0]])
    return total


def _rows(table: IterationTable, numbers: Ints, what: str) -> npt.NDArray[np.intp]:
    """Return the rows of a table that hold the iterations with these numbers."""
    position = {int(n): row for row, n in enumerate(table.iteration.tolist())}
    if missing := [int(n) for n in numbers if int(n) not in position]:
        raise InvalidInputError(f"{what} lacks the chosen iterations {missing[:8]}; profile them, then estimate again")
    return np.array([position[int(n)] for n in numbers], dtype=np.intp)
