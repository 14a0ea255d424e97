"""Results of a validation: rows that compare a reference with our figure, and tables of details.

Read `ValidationRow` first. The helpers below it make the tables that several suites share.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from textwrap import fill
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from profilers.trace.arrays import Floats
from seqpoint.notebook import Table, table_of

#: Name, lower bound and upper bound of a class of sizes.
SizeClass = tuple[str, float, float]
#: Errors below this count as this: a single zero would make a geometric mean zero.
_LEAST_ERROR = 1e-6


@dataclass(frozen=True)
class ValidationRow:
    """Compare a reference with our figure, with the limit of their difference.

    Parameters
    ----------
    case : str
        Name of the case.
    reference : float, optional
        Measured or published figure; None for a summary of other cases.
    ours : float
        Our figure, in the same unit.
    error : float
        ``|ours - reference| / reference``; for a summary, `ours` itself.
    limit : float, optional
        Largest error, or with `least` the smallest value of `ours`; None if the case is not gated.
    least : bool
        Whether more is better.
    fitted : bool
        Whether any data of this case was used to fit the model that is scored.
    source : str
        File and row, paper, or the cases that a summary covers.
    low, high : float, optional
        Ends of the interval of `ours`; None if it has none.
    """

    case: str
    reference: float | None
    ours: float
    error: float
    limit: float | None = None
    least: bool = False
    fitted: bool = False
    source: str = ""
    low: float | None = None
    high: float | None = None

    @property
    def inside(self) -> bool | None:
        """Whether the interval holds the reference; None without an interval or a reference."""
        if self.reference is None or self.low is None or self.high is None:
            return None
        return self.low <= self.reference <= self.high

    @property
    def met(self) -> bool | None:
        """Whether the limit is kept; None without one."""
        if self.limit is None:
            return None
        return self.ours >= self.limit if self.least else self.error <= self.limit

    def content(self) -> dict[str, object]:
        """Return the row as JSON with stable keys."""
        keys = ("case", "reference", "ours", "error", "limit", "met", "fitted", "source")
        ends = () if self.low is None else ("low", "high", "inside")
        return {key: getattr(self, key) for key in (*keys, *ends)}


def all_met(rows: Iterable[ValidationRow]) -> bool:
    """Return whether no limit is missed."""
    return all(row.met is not False for row in rows)


def geometric_mean(errors: Sequence[float]) -> float:
    """Return the geometric mean; an error below a millionth counts as a millionth.

    Examples
    --------
    >>> round(geometric_mean([0.01, 0.0001]), 6)
    0.001
    """
    return float(np.exp(np.mean(np.log(np.maximum(errors, _LEAST_ERROR)))))


def summary_row(case: str, value: float, limit: float, *, least: bool = False, source: str = "") -> ValidationRow:
    """Return the row of a summary of other cases, which has a limit.

    Parameters
    ----------
    case : str
        Name of the summary.
    value : float
        The mean, share or count.
    limit : float
        Largest value; with `least`, the smallest one.
    least : bool
        Whether more is better.
    source : str
        Cases that it summarises; by default the cases above.
    """
    return ValidationRow(case, None, value, value, limit, least, source=source or "the cases above")


class MeasuredRun(Protocol):
    """A measured run: its time, and the file and row that it was read from."""

    @property
    def seconds(self) -> float:
        """Measured time."""

    @property
    def source(self) -> str:
        """File and row."""


R = TypeVar("R", bound=MeasuredRun)


@dataclass(frozen=True)
class TimedScore(Generic[R]):
    """A measured run with its predicted time.

    Parameters
    ----------
    case : str
        Name of the run.
    measured : MeasuredRun
        The run, with its time.
    basis : str
        ``"fitted"`` if fits of its device were used; ``"carried"`` if they were left out.
    seconds, low, high : float
        Predicted time, and its 90 % interval.
    fitted : bool
        Whether the prediction was fitted to this run.
    """

    case: str
    measured: R
    basis: str
    seconds: float
    low: float
    high: float
    fitted: bool = False

    @property
    def ratio(self) -> float:
        """Predicted over measured time."""
        return self.seconds / self.measured.seconds

    @property
    def error(self) -> float:
        """``|predicted - measured| / measured``."""
        return abs(self.ratio - 1)

    @property
    def covered(self) -> bool:
        """Whether the interval holds the measured time."""
        return self.low <= self.measured.seconds <= self.high

    def row(self, case: str = "") -> ValidationRow:
        """Return the row of the validation, under the name of the run or another name."""
        measured = self.measured
        return ValidationRow(
            case or self.case, measured.seconds, self.seconds, self.error, fitted=self.fitted, source=measured.source
        )

    def content(self) -> dict[str, object]:
        """Return the score as JSON with stable keys."""
        keys = ("case", "basis", "error", "covered")
        times = {
            "measured_s": self.measured.seconds,
            "predicted_s": self.seconds,
            "low_s": self.low,
            "high_s": self.high,
        }
        return {key: getattr(self, key) for key in keys} | times


def accuracy(
    predicted: tuple[Floats, Floats, Floats], measured: Floats, sizes: Floats, classes: Sequence[SizeClass]
) -> dict[str, Any]:
    """Return the fields that scores of many operations share.

    ``rows``; ``error`` and ``median``, the mean and the median of ``|predicted - measured| / measured``; ``bias``, the
    geometric mean of predicted over measured; ``covered``, the share of measured times in their interval;
    ``by_size``, the mean error of each class that occurs.

    Parameters
    ----------
    predicted : tuple of three arrays of float64, shape (n,)
        Predicted seconds, and the lower and the upper bound of their interval.
    measured : array of float64, shape (n,)
        Measured seconds.
    sizes : array of float64, shape (n,)
        Size of each operation, by which it is classed.
    classes : sequence of SizeClass
        Name, lower bound (included) and upper bound (excluded) of each class.
    """
    seconds, low, high = predicted
    ratio = seconds / measured
    errors = np.abs(ratio - 1)
    by_size = {name: errors[(sizes >= first) & (sizes < last)] for name, first, last in classes}
    return {
        "rows": len(measured),
        "error": float(errors.mean()),
        "median": float(np.median(errors)),
        "bias": float(np.exp(np.mean(np.log(ratio)))),
        "covered": float(np.mean((low <= measured) & (measured <= high))),
        "by_size": {name: float(of_class.mean()) for name, of_class in by_size.items() if len(of_class)},
    }


#: Characters of a line of a heading, in tables by size.
_HEADING = 7


def size_table(title: str, columns: Mapping[str, str], scores: Sequence[Mapping[str, Any]]) -> Table:
    """Return the table of mean errors by class of size, which ``--verbose`` shows.

    Parameters
    ----------
    title : str
        Title above the table.
    columns : mapping of str to str
        Headings and format strings of the columns that name a case.
    scores : sequence of mapping of str to object
        The names that the format strings use, for each row; ``s`` is a score with its `by_size`.
    """
    sizes = {name: fill(name, _HEADING) for names in scores for name in names["s"].by_size}
    errors = [[names["s"].by_size.get(name) for name in sizes] for names in scores]
    rows = [
        (*cells, *("" if error is None else f"{100 * error:.1f}" for error in by_size))
        for cells, by_size in zip(table_of(title, columns, scores).rows, errors, strict=True)
    ]
    return Table(title, (*columns, *sizes.values()), rows, verbose=True)


def short_devices(names: Iterable[str]) -> dict[str, str]:
    """Return the shortest prefix of each name, in whole parts, that no other name has.

    Examples
    --------
    >>> short_devices(["A100-PCIE-40GB", "A100-SXM4-80GB", "V100-PCIE-32GB", "T4"])
    {'A100-PCIE-40GB': 'A100-PCIE', 'A100-SXM4-80GB': 'A100-SXM4', 'V100-PCIE-32GB': 'V100', 'T4': 'T4'}
    """
    distinct = list(dict.fromkeys(names))
    return {name: _short(name, [rival for rival in distinct if rival != name]) for name in distinct}


def _short(name: str, rivals: Sequence[str]) -> str:
    """Return the shortest prefix of `name`, in whole parts, that none of the rivals has."""
    parts = name.split("-")
    for count in range(1, len(parts)):
        if not any(rival.split("-")[:count] == parts[:count] for rival in rivals):
            return "-".join(parts[:count])
    return name
