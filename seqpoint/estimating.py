"""A run's total, and its speed-up, from a selection that was made on another run."""

from typing import Any

import numpy as np
import numpy.typing as npt

from profilers.errors import InvalidInputError
from seqpoint.iterations import UNITS, IterationTable
from seqpoint.selection import SelectionLog, assisted_total

__all__ = ["estimate_run"]


def estimate_run(
    selection: dict[str, Any], tables: tuple[IterationTable, IterationTable], statistic: str | None = None
) -> dict[str, Any]:
    """Return the estimate of a run from the iterations that a selection chose.

    Parameters
    ----------
    selection : dict
        ``points`` (each ``iteration``, ``rank``, ``weight``), ``statistic``, ``confidence``.
    tables : pair of IterationTable
        The run that was selected on, and the run to estimate, which needs only the chosen iterations.
    statistic : str, optional
        By default the selection's.

    Returns
    -------
    dict
        ``statistic``, ``unit``; ``estimate``, ``low``, ``high``, ``confidence`` of the total, as `assisted_total`
        says; ``seqpoint_sum``, the weighted sum of the points; ``speedup``, ``speedup_low``, ``speedup_high``, the
        measured total of the run that was selected on over the estimate, None over zero; and ``measured``, None where
        the run does not hold the whole epoch.

    Raises
    ------
    InvalidInputError
        A chosen iteration is missing from a run, or lengths are unknown.
    """
    origin, run = tables
    name = statistic or selection["statistic"]
    weights = np.array([p["weight"] for p in selection["points"]])
    rank = selection["points"][0]["rank"]
    numbers = np.array([p["iteration"] for p in selection["points"]])
    base = origin.of_rank(rank)
    rows, there = (
        _rows(base, numbers, "the run that was selected on"),
        _rows(run.of_rank(rank), numbers, "the run"),
    )
    log = _log(base, (rows, weights), base.statistic(name))
    values = run.of_rank(rank).statistic(name)[there]
    total = assisted_total(values, log, confidence=selection["confidence"])
    before = float(base.statistic(name).sum())
    whole = len(run.of_rank(rank)) == len(base)
    return {
        "statistic": name,
        "unit": UNITS.get(name, ""),
        "estimate": total.value,
        "low": total.low,
        "high": total.high,
        "confidence": total.confidence,
        "measured": float(run.of_rank(rank).statistic(name).sum()) if whole else None,
        "seqpoint_sum": float(weights @ values),
        "speedup": before / total.value if total.value else None,
        "speedup_low": before / total.high if total.high else None,
        "speedup_high": before / total.low if total.low else None,
    }


def _rows(table: IterationTable, numbers: npt.NDArray[np.int64], what: str) -> npt.NDArray[np.intp]:
    position = {int(n): row for row, n in enumerate(table.iteration.tolist())}
    if missing := [int(n) for n in numbers if int(n) not in position]:
        raise InvalidInputError(f"{what} lacks the chosen iterations {missing[:8]}; profile them, then estimate again")
    return np.array([position[int(n)] for n in numbers], dtype=np.intp)


def _log(
    table: IterationTable,
    points: tuple[npt.NDArray[np.intp], npt.NDArray[np.float64]],
    statistic: npt.NDArray[np.float64],
) -> SelectionLog:
    if not np.isfinite(table.sequence_length).all():
        raise InvalidInputError("iterations of the run that was selected on have no sequence length; give --length")
    rows, weights = points
    return SelectionLog(table.sequence_length, statistic, representatives=rows, weights=weights)
