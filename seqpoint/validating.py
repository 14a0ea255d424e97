"""Score selectors on measured epochs: chosen on one configuration, judged on the others."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from profilers.errors import InvalidInputError, NotFoundError
from seqpoint import sampling
from seqpoint.iterations import IterationTable, read_log
from seqpoint.selection import (
    Estimate,
    FittedSelector,
    FrequentSelector,
    MedianSelector,
    PriorSelector,
    SelectionLog,
    SeqPointSelector,
    WorstSelector,
    assisted_speedup,
    assisted_total,
    estimate_speedup,
    estimate_total,
    parallel_reduction,
    sequential_reduction,
)

__all__ = ["SELECTORS", "Epochs", "Score", "geometric_mean", "noise_floor", "read_epochs", "score"]

Floats = npt.NDArray[np.float64]

#: What selections are made on, and the same once more.
_BASE, _AGAIN = "base", "again"
#: Errors below this are one: a geometric mean with a zero in it would be zero.
_LEAST_ERROR = 1e-6

#: Every selector by its name, made with the most points it may choose; baselines have their own number.
SELECTORS: Mapping[str, Callable[[int], FittedSelector]] = MappingProxyType(
    {
        "seqpoint": lambda points: SeqPointSelector(max_points=points),
        "seqpoint, assisted": lambda points: SeqPointSelector(max_points=points),
        "stratified": lambda points: sampling.StratifiedSelector(max_points=points),
        "random": lambda points: sampling.RandomSelector(max_points=points),
        "frequent": lambda _: FrequentSelector(),
        "median": lambda _: MedianSelector(),
        "worst": lambda _: WorstSelector(),
        "prior": lambda _: PriorSelector(),
    }
)


@dataclass(frozen=True)
class Epochs:
    """The same epoch, iteration by iteration, on several configurations.

    Parameters
    ----------
    model, order : str
    lengths : array of float64, shape (n_iterations,)
    durations_ns : mapping of str to array of float64, shape (n_iterations,)
        By configuration; ``"base"`` is among them.
    """

    model: str
    order: str
    lengths: Floats
    durations_ns: Mapping[str, Floats]

    @property
    def others(self) -> tuple[str, ...]:
        """The configurations that nothing is selected on; ``"again"``, the base once more, is no other."""
        return tuple(sorted(set(self.durations_ns) - {_BASE, _AGAIN}))


@dataclass(frozen=True)
class Score:
    """How a selector fares on one model and order.

    Parameters
    ----------
    model, order, selector : str
    points : int
    total_error, total_worst : float
        Relative error of the projected total, geometric mean over the configurations not selected on, and largest.
    speedup_error, speedup_worst : float
        The same of the speed-up of the base over each of them.
    sequential_reduction, parallel_reduction : float
        Total of the base over the sum of the points, and over the longest.
    covered : float
        Share of these totals that lie in their 95 % interval.
    half_width : float
        Of the interval, relative, geometric mean.
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


def read_epochs(folder: str | Path) -> list[Epochs]:
    """Read the logs ``MODEL/CONFIGURATION-ORDER.csv`` (or ``.parquet``) in a folder.

    Raises
    ------
    NotFoundError, InvalidInputError
        There is no log, an order lacks the configuration ``base`` or another one, or logs that should be of the same
        epoch have other lengths.
    """
    root = Path(folder)
    found: dict[tuple[str, str], dict[str, IterationTable]] = {}
    for path in sorted([*root.glob("*/*.csv"), *root.glob("*/*.parquet")]):
        configuration, dash, order = path.stem.rpartition("-")
        if not dash:
            raise InvalidInputError(f"{path}: its name is not CONFIGURATION-ORDER, as base-sorted.csv")
        found.setdefault((path.parent.name, order), {})[configuration] = read_log(path)
    if not found:
        raise NotFoundError(f"{root}: no logs MODEL/CONFIGURATION-ORDER.csv; record_epochs.py writes such a folder")
    return [_epochs(root, *named, logs) for named, logs in sorted(found.items())]


def _epochs(root: Path, model: str, order: str, logs: Mapping[str, IterationTable]) -> Epochs:
    place = root / model
    if _BASE not in logs or len(set(logs) - {_BASE, _AGAIN}) == 0:
        raise InvalidInputError(f"{place}: the order {order!r} needs {_BASE}-{order}.csv and another configuration")
    lengths = logs[_BASE].sequence_length
    for name, log in logs.items():
        if not np.array_equal(log.sequence_length, lengths):
            raise InvalidInputError(f"{place}/{name}-{order}: its lengths are not those of {_BASE}-{order}")
    return Epochs(model, order, lengths, {name: log.statistic("duration") for name, log in logs.items()})


def noise_floor(epochs: Epochs) -> float | None:
    """Return by how much the total of the base differs from the same epoch run again; None where it was not."""
    if _AGAIN not in epochs.durations_ns:
        return None
    base, again = (float(epochs.durations_ns[name].sum()) for name in (_BASE, _AGAIN))
    return abs(again - base) / base


def score(epochs: Epochs, selector: str, max_points: int = 10) -> Score:
    """Select on the base, and compare what the points say of the other configurations with what was measured.

    Raises
    ------
    InvalidInputError
        There is no such selector.
    """
    if selector not in SELECTORS:
        raise InvalidInputError(f"no selector {selector!r}; there are {', '.join(SELECTORS)}")
    X, base = epochs.lengths[:, None], epochs.durations_ns[_BASE]
    fitted = SELECTORS[selector](max_points).fit(X, base)  # type: ignore[attr-defined]
    rows = fitted.representatives_
    totals, speedups = _Errors(), _Errors()
    for name in epochs.others:
        measured = epochs.durations_ns[name]
        total, speedup = _estimates(selector, fitted, (X, base), measured[rows])
        totals.add(total, float(measured.sum()))
        speedups.add(speedup, float(base.sum() / measured.sum()))
    return Score(
        epochs.model,
        epochs.order,
        selector,
        len(rows),
        geometric_mean(totals.errors),
        max(totals.errors),
        geometric_mean(speedups.errors),
        max(speedups.errors),
        sequential_reduction(float(base.sum()), base[rows]),
        parallel_reduction(float(base.sum()), base[rows]),
        float(np.mean(totals.covered)),
        geometric_mean(totals.half_widths),
    )


class _Errors:
    """Collects how estimates compare with what was measured."""

    def __init__(self) -> None:
        self.errors: list[float] = []
        self.covered: list[bool] = []
        self.half_widths: list[float] = []

    def add(self, estimate: Estimate, measured: float) -> None:
        self.errors.append(abs(estimate.value - measured) / measured)
        self.covered.append(estimate.low <= measured <= estimate.high)
        self.half_widths.append(estimate.half_width / measured)


def _estimates(
    name: str, fitted: FittedSelector, log: tuple[Floats, Floats], values: Floats
) -> tuple[Estimate, Estimate]:
    """Return the total of another configuration, and the speed-up of the base over it."""
    base = log[1][fitted.representatives_]
    if isinstance(fitted, sampling.StratifiedSelector | sampling.RandomSelector):
        return sampling.estimate_total(values, fitted), sampling.estimate_speedup(base, values, fitted)
    known = SelectionLog.of(fitted, *log)
    if name == "seqpoint, assisted":
        return assisted_total(values, known), assisted_speedup(base, values, known)
    return estimate_total(values, known), estimate_speedup(base, values, known)


def geometric_mean(errors: Sequence[float]) -> float:
    """Return the geometric mean; what is below a millionth counts as a millionth."""
    return float(np.exp(np.mean(np.log(np.maximum(errors, _LEAST_ERROR)))))
