"""What a validation yields: rows that compare a reference with our figure, and tables of details.

Read `ValidationRow` first. The helpers below it make the tables that several suites share.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from textwrap import fill

import numpy as np

from profilers.trace.arrays import Floats

#: Errors below this are one: a geometric mean with a zero in it would be zero.
_LEAST_ERROR = 1e-6


@dataclass(frozen=True)
class ValidationRow:
    """Compare a reference with our figure, with the limit of their difference.

    Parameters
    ----------
    case : str
        Name of the case.
    reference : float, optional
        What was measured or published; None where the case is a summary of others.
    ours : float
        Our figure, in the same unit.
    error : float
        ``|ours - reference| / reference``; of a summary, `ours` itself.
    limit : float, optional
        What the error may be, or with `least` what `ours` has to reach; None where nothing is gated.
    least : bool
        Whether more is better.
    fitted : bool
        Whether any of this case's data was used to fit what is scored.
    source : str
        File and row, paper, or the cases that a summary is of.
    """

    case: str
    reference: float | None
    ours: float
    error: float
    limit: float | None = None
    least: bool = False
    fitted: bool = False
    source: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the limit is kept; None without one."""
        if self.limit is None:
            return None
        return self.ours >= self.limit if self.least else self.error <= self.limit

    def content(self) -> dict[str, object]:
        """Return the row as JSON with stable keys."""
        return {
            "case": self.case,
            "reference": self.reference,
            "ours": self.ours,
            "error": self.error,
            "limit": self.limit,
            "met": self.met,
            "fitted": self.fitted,
            "source": self.source,
        }


def all_met(rows: Iterable[ValidationRow]) -> bool:
    """Return whether no limit is missed."""
    return all(row.met is not False for row in rows)


def geometric_mean(errors: Sequence[float]) -> float:
    """Return the geometric mean; what is below a millionth counts as a millionth.

    Examples
    --------
    >>> round(geometric_mean([0.01, 0.0001]), 6)
    0.001
    """
    return float(np.exp(np.mean(np.log(np.maximum(errors, _LEAST_ERROR)))))


@dataclass(frozen=True)
class Table:
    """A table of details that a suite shows above its limits.

    Parameters
    ----------
    title : str
        What stands above the table.
    columns : tuple of str
        Headings; a heading that ends in a tilde is of text, the others are of numbers.
    rows : sequence of tuple
        Cells, as many as there are headings.
    verbose : bool
        Whether only ``--verbose`` shows it.
    """

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[object, ...]]
    verbose: bool = False


#: Characters of a line of a heading, in tables by size.
_HEADING = 7


def size_table(
    title: str, case: tuple[str, ...], errors: Sequence[tuple[tuple[object, ...], Mapping[str, float]]]
) -> Table:
    """Return the table of mean errors by class of size.

    Parameters
    ----------
    title : str
        What stands above the table.
    case : tuple of str
        Headings of the columns that name a case.
    errors : sequence of (tuple, mapping of str to float)
        The cells that name a case, and its mean error by class of size.

    Examples
    --------
    >>> size_table("Errors", ("kind~",), [(("matmul",), {"small": 0.1})]).rows
    [('matmul', '10.0')]
    """
    sizes = tuple(dict.fromkeys(name for _, by_size in errors for name in by_size))
    rows = [
        (*cells, *(f"{100 * by_size[name]:.1f}" if name in by_size else "" for name in sizes))
        for cells, by_size in errors
    ]
    return Table(title, (*case, *(fill(name, _HEADING) for name in sizes)), rows, verbose=True)


def mean_by_class(errors: Floats, values: Floats, classes: Sequence[tuple[str, float, float]]) -> dict[str, float]:
    """Return the mean error of each class that occurs.

    Parameters
    ----------
    errors, values : array of float64, shape (n,)
        The errors, and the quantity by which they are classed.
    classes : sequence of (str, float, float)
        Name, lower bound (included) and upper bound (excluded) of each class.
    """
    chosen = {name: errors[(values >= low) & (values < high)] for name, low, high in classes}
    return {name: float(some.mean()) for name, some in chosen.items() if len(some)}


def short_devices(names: Iterable[str]) -> dict[str, str]:
    """Return for each name its first parts, as many as tell it from the others.

    Examples
    --------
    >>> short_devices(["A100-PCIE-40GB", "A100-SXM4-80GB", "V100-PCIE-32GB", "T4"])
    {'A100-PCIE-40GB': 'A100-PCIE', 'A100-SXM4-80GB': 'A100-SXM4', 'V100-PCIE-32GB': 'V100', 'T4': 'T4'}
    """
    every = list(dict.fromkeys(names))
    return {name: _short(name, [other for other in every if other != name]) for name in every}


def _short(name: str, others: Sequence[str]) -> str:
    """Return the least parts of `name` with which no other name begins."""
    parts = name.split("-")
    for count in range(1, len(parts)):
        if not any(other.split("-")[:count] == parts[:count] for other in others):
            return "-".join(parts[:count])
    return name
