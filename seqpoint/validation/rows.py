"""One line of a validation: what was measured, what the toolkit says, and how far apart they may be."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

#: Errors below this are one: a geometric mean with a zero in it would be zero.
_LEAST_ERROR = 1e-6


@dataclass(frozen=True)
class ValidationRow:
    """A case.

    Parameters
    ----------
    case : str
    reference : float, optional
        What was measured or published; None where the case is a summary of others.
    ours : float
        In the same unit.
    error : float
        ``|ours - reference| / reference``; of a summary, `ours` itself.
    limit : float, optional
        What the error may be, or with `least` what `ours` has to reach; None where nothing is gated.
    least : bool
        Whether more is better.
    fitted : bool
        Whether any of this case's data was used to fit what is scored.
    source : str
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
