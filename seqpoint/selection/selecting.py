"""Selecting from a trace or a log by the name of a selector, and estimating another run from it.

Every way to choose iterations, by name: how it is made, and how a total and a speed-up follow from its points.

Select the iterations that stand for a run, estimate its total from them, and compare with the baselines.

A run's total, and its speed-up, from a selection that was made on another run.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from profilers.errors import InvalidInputError
from profilers.trace.arrays import Floats, Ints
from seqpoint.iteration_table import UNITS, IterationTable
from seqpoint.notebook import as_html
from seqpoint.selection.baselines import FrequentSelector, MedianSelector, PriorSelector, WorstSelector
from seqpoint.selection.estimate import (
    Estimate,
    assisted_speedup,
    assisted_total,
    estimate_speedup,
    estimate_total,
    parallel_reduction,
    sequential_reduction,
)
from seqpoint.selection.kernels import estimate_drawn_speedup, estimate_drawn_total, expand_total
from seqpoint.selection.log import FittedSelector, SelectionLog
from seqpoint.selection.seqpoint import SeqPointSelector
from seqpoint.selection.stratified import KMedoidsSelector, RandomSelector, StratifiedSelector
from seqpoint.units import duration

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Budget:
    """How much may be profiled.

    Parameters
    ----------
    points : int
        Lengths, or strata and groups, at most.
    iterations : int, optional
        In all, at most; by default `points`.
    first : int
        Bins that SeqPoint begins with; no more than `points` are made.
    tolerance : float
        Relative error of the total at which SeqPoint stops adding points.
    confidence : float
    seed : int
        Of the methods that draw.
    """

    points: int = 10
    iterations: int | None = None
    first: int = 5
    tolerance: float = 0.01
    confidence: float = 0.95
    seed: int = 0

    @property
    def draws(self) -> int:
        """Iterations of a method that draws them."""
        return self.points if self.iterations is None else self.iterations


@dataclass(frozen=True)
class Method:
    """A way to choose iterations.

    Parameters
    ----------
    make : callable
        Returns an unfitted selector for a budget.
    drawn : bool
        Whether it draws at random from strata, so that sampling theory gives its intervals.
    assisted : bool
        Whether totals are those of `seqpoint.selection.assisted_total`.
    features : bool
        Whether it reads more than the length.
    seeded : bool
        Whether another seed gives other points.
    """

    make: Callable[[Budget], Any]
    drawn: bool = False
    assisted: bool = False
    features: bool = False
    seeded: bool = False

    def own_total(self, fitted: Any, log: tuple[Floats, Floats], confidence: float = 0.95) -> Estimate:
        """Return the total of the log (lengths or features, and statistic) that it was fitted on, from its points."""
        values = log[1][fitted.representatives_]
        if self.drawn:
            return expand_total(values, fitted)
        return estimate_total(values, SelectionLog.of(fitted, *log), confidence=confidence)

    def total(self, fitted: Any, log: tuple[Floats, Floats], values: Floats) -> Estimate:
        """Return the total on another configuration, where the points took `values`."""
        if self.drawn:
            return estimate_drawn_total(values, fitted)
        return (assisted_total if self.assisted else estimate_total)(values, SelectionLog.of(fitted, *log))

    def speedup(self, fitted: Any, log: tuple[Floats, Floats], values: Floats) -> Estimate:
        """Return the speed-up of the log over a configuration on which the points took `values`."""
        base = log[1][fitted.representatives_]
        if self.drawn:
            return estimate_drawn_speedup(base, values, fitted)
        known = SelectionLog.of(fitted, *log)
        return (assisted_speedup if self.assisted else estimate_speedup)(base, values, known)


def _seqpoint(budget: Budget) -> SeqPointSelector:
    return SeqPointSelector(budget.points, budget.first, budget.tolerance, budget.iterations)


def _stratified(budget: Budget) -> StratifiedSelector:
    strata = None if budget.iterations is None else min(budget.points, max(1, budget.iterations // 2))
    return StratifiedSelector(budget.draws, strata, confidence=budget.confidence, seed=budget.seed)


def _ignoring(make: Callable[[], FittedSelector]) -> Callable[[Budget], FittedSelector]:
    return lambda _: make()


#: What SeqPoint is compared with in its paper; each has its own number of points.
BASELINES: Mapping[str, Callable[[], FittedSelector]] = MappingProxyType(
    {"frequent": FrequentSelector, "median": MedianSelector, "worst": WorstSelector, "prior": PriorSelector}
)

#: All, the baselines too, by name.
METHODS: Mapping[str, Method] = MappingProxyType(
    {
        "seqpoint": Method(_seqpoint),
        "seqpoint, assisted": Method(_seqpoint, assisted=True),
        "stratified": Method(_stratified, drawn=True, features=True, seeded=True),
        "k-medoids": Method(
            lambda b: KMedoidsSelector(b.draws, confidence=b.confidence, seed=b.seed),
            drawn=True,
            features=True,
        ),
        "random": Method(
            lambda b: RandomSelector(b.draws, confidence=b.confidence, seed=b.seed),
            drawn=True,
            seeded=True,
        ),
    }
    | {name: Method(_ignoring(make)) for name, make in BASELINES.items()}
)


def method_of(name: str) -> Method:
    """Return a method by its name.

    Raises
    ------
    InvalidInputError
        There is none; the message lists those that there are.
    """
    if name not in METHODS:
        raise InvalidInputError(f"no selector {name!r}; there are {', '.join(METHODS)}")
    return METHODS[name]


@dataclass(frozen=True)
class SelectOptions:
    """How to select.

    Parameters
    ----------
    statistic : str, optional
        A statistic of the table; by default time in kernels, or the duration where there are none.
    max_points : int
    tolerance : float
        Relative error of the total at which SeqPoint stops.
    confidence : float
    rank : int, optional
        By default the lowest.
    selector : str
        A name of `seqpoint.selection.selecting.METHODS`.
    features : tuple of str
        Statistics of the table that, after the length, tell iterations apart; read by ``"stratified"`` and
        ``"k-medoids"``.
    max_iterations : int, optional
        Of all points together, at most; by default one a point.
    """

    statistic: str | None = None
    max_points: int = 10
    tolerance: float = 0.01
    confidence: float = 0.95
    rank: int | None = None
    selector: str = "seqpoint"
    features: tuple[str, ...] = ()
    max_iterations: int | None = None

    @property
    def budget(self) -> Budget:
        """The same, as the selectors read it."""
        return Budget(self.max_points, self.max_iterations, tolerance=self.tolerance, confidence=self.confidence)


@dataclass(frozen=True)
class BaselineResult:
    """What another way to choose iterations gives on the same run.

    Parameters
    ----------
    name : str
    points : int
    estimate : float
        Of the total.
    error : float
        ``|estimate - measured| / measured``.
    """

    name: str
    points: int
    estimate: float
    error: float


@dataclass(frozen=True)
class SelectionResult:
    """A selection, and what it says of the run it was made from.

    Parameters
    ----------
    iterations : IterationTable
        The iterations of one rank with a known length.
    statistic, unit : str
    rows : array of int64, shape (n_points,)
        Rows of `iterations` to profile.
    weights : array of float64, shape (n_points,)
    bin_edges : array of float64, shape (n_points, 2)
        Lower and upper length of each point's bin.
    measured : float
        Total of the statistic over the run.
    estimate : Estimate
        Of that total, from the chosen iterations alone.
    sequential_reduction, parallel_reduction : float
        Measured total over the sum of the points, and over the longest point.
    baselines : tuple of BaselineResult
    without_length : int
        Iterations left out because their length is unknown.
    selector : str
    """

    iterations: IterationTable
    statistic: str
    unit: str
    rows: npt.NDArray[np.int64]
    weights: Floats
    bin_edges: Floats
    measured: float
    estimate: Estimate
    sequential_reduction: float
    parallel_reduction: float
    baselines: tuple[BaselineResult, ...]
    without_length: int = 0
    selector: str = "seqpoint"

    @property
    def error(self) -> float:
        """Relative error of the estimate."""
        return abs(self.estimate.value - self.measured) / self.measured

    def table(self) -> "pd.DataFrame":
        """Return the selected iterations, a row each, with their weights and the value of the statistic."""
        import pandas as pd

        return pd.DataFrame(self.to_dict()["points"])

    def baselines_table(self) -> "pd.DataFrame":
        """Return the error of this selection and of the baselines, a row each."""
        import pandas as pd

        return pd.DataFrame(self.baseline_rows(), columns=["selector", "points", "estimate", "error"])

    def baseline_rows(self) -> list[tuple[str, int, float, float]]:
        """Return selector, points, estimated total and relative error: this selection first, then the baselines."""
        rows = [(self.selector, len(self.rows), self.estimate.value, self.error)]
        return rows + [(row.name, row.points, row.estimate, row.error) for row in self.baselines]

    def plot(self) -> Any:
        """Return the histogram of lengths with the selected iterations, as a HoloViews object."""
        from seqpoint.plots import length_histogram

        return length_histogram(self)

    def plot_baselines(self) -> Any:
        """Return the chart of the errors of this selection and of the baselines, as a HoloViews object."""
        from seqpoint.plots import baseline_errors

        return baseline_errors(self)

    def to_dict(self) -> dict[str, Any]:
        """Return what `seqpoint select --json` prints."""
        table, estimate = self.iterations, self.estimate
        values = table.statistic(self.statistic)
        return {
            "n_iterations": len(table),
            "selector": self.selector,
            "statistic": self.statistic,
            "unit": self.unit,
            "measured": self.measured,
            "estimate": estimate.value,
            "low": estimate.low,
            "high": estimate.high,
            "confidence": estimate.confidence,
            "error": self.error,
            "sequential_reduction": self.sequential_reduction,
            "parallel_reduction": self.parallel_reduction,
            "without_length": self.without_length,
            "points": [
                {
                    "iteration": int(table.iteration[row]),
                    "rank": int(table.rank[row]),
                    "sequence_length": int(table.sequence_length[row]),
                    "weight": float(weight),
                    "value": float(values[row]),
                }
                for row, weight in zip(self.rows.tolist(), self.weights.tolist(), strict=True)
            ],
            "baselines": [
                {"name": row.name, "points": row.points, "estimate": row.estimate, "error": row.error}
                for row in self.baselines
            ],
        }

    def summary(self) -> list[str]:
        """Return what the selection gives, in two or three sentences."""

        def text(value: float) -> str:
            return duration(value) if self.unit == "ns" else f"{value:.6g} {self.unit}".strip()

        estimate = self.estimate
        sentences = [
            f"{self.statistic}: measured {text(self.measured)}, estimated {text(estimate.value)} "
            f"[{text(estimate.low)}, {text(estimate.high)}] at {100 * estimate.confidence:g} % "
            f"from {len(self.rows)} of {len(self.iterations)} iterations (error {100 * self.error:.3f} %)",
            f"profiling shrinks {self.sequential_reduction:.1f}x (total over the sum of the points), "
            f"{self.parallel_reduction:.1f}x (total over the longest point)",
        ]
        if self.without_length:
            sentences.append(f"{self.without_length} iterations were left out: their length is unknown")
        return sentences

    def _repr_html_(self) -> str:
        tables = {"Selected iterations": self.table(), "Against the baselines": self.baselines_table()}
        return as_html("Selection", self.summary(), tables)


def select(
    table: IterationTable, options: SelectOptions | None = None, profiles: tuple[Ints, Floats] | None = None
) -> SelectionResult:
    """Return the iterations to profile of a run.

    Parameters
    ----------
    table : IterationTable
    options : SelectOptions, optional
    profiles : pair of arrays, optional
        Numbers of the chosen rank's iterations, shape (n,), and what else tells them apart, shape (n, n_columns): the
        time in each kernel, as `seqpoint.selection.stratified.kernel_profiles` returns it. Iterations that lack have
        zeros.

    Raises
    ------
    InvalidInputError
        No iteration has a known length; the statistic is zero everywhere or unknown; or there is no such selector or
        feature.
    """
    options = options or SelectOptions()
    rank = min(table.rank.tolist(), default=0) if options.rank is None else options.rank
    own = table.of_rank(rank)
    known = _with_length(own)
    name = options.statistic or known.default_statistic
    y = known.statistic(name)
    if not y.any():
        raise InvalidInputError(f"the statistic {name!r} is zero in every iteration; choose another")
    method = method_of(options.selector)
    if (options.features or profiles) and not method.features:
        raise InvalidInputError(f"the selector {options.selector!r} reads the length alone; features need 'stratified'")
    X = np.column_stack((known.sequence_length, *(known.statistic(feature) for feature in options.features)))
    if profiles is not None:
        X = np.column_stack((X, _rows_of(known, *profiles)))
    selector = method.make(options.budget)
    try:
        selector.fit(X, y)
    except ValueError as error:  # scikit-learn's own words for lengths or values that cannot be
        raise InvalidInputError(str(error)) from error
    rows = selector.representatives_
    return SelectionResult(
        known,
        name,
        UNITS.get(name, ""),
        rows,
        selector.weights_,
        selector.bin_edges_[selector.labels_[rows]],
        float(y.sum()),
        method.own_total(selector, (X, y), options.confidence),
        sequential_reduction(float(y.sum()), y[rows]),
        parallel_reduction(float(y.sum()), y[rows]),
        tuple(_baseline(name_, make(), X[:, :1], y) for name_, make in BASELINES.items()),
        len(own) - len(known),
        options.selector,
    )


def _rows_of(table: IterationTable, numbers: Ints, profiles: Floats) -> Floats:
    """Return the profile of every iteration of a table; zeros where it has none."""
    places = {int(number): row for row, number in enumerate(numbers.tolist())}
    found = np.zeros((len(table), profiles.shape[1]))
    for row, number in enumerate(table.iteration.tolist()):  # a Python loop over iterations
        if number in places:
            found[row] = profiles[places[number]]
    return found


def _with_length(table: IterationTable) -> IterationTable:
    rows = np.flatnonzero(np.isfinite(table.sequence_length))
    if not len(rows):
        raise InvalidInputError(
            "no iteration has a sequence length; give one with --length (OP:ARGUMENT:DIMENSION or a CSV file)"
        )
    return table.take(rows)


def _baseline(name: str, selector: FittedSelector, X: Floats, y: Floats) -> BaselineResult:
    fitted = selector.fit(X, y)  # type: ignore[attr-defined]
    rows = fitted.representatives_
    value = float(fitted.weights_ @ y[rows])
    measured = float(y.sum())
    return BaselineResult(name, len(rows), value, abs(value - measured) / measured)


@dataclass(frozen=True)
class RunEstimate:
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
        Measured total of the run that was selected on, over the estimate; None over zero.
    n_points : int
        Number of selected iterations.
    """

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
    n_points: int

    @property
    def error(self) -> float | None:
        """Relative error of the estimate; None if the total was not measured."""
        return None if self.measured is None else abs(self.estimate / self.measured - 1)

    def table(self) -> "pd.DataFrame":
        """Return the estimate as a table of one row."""
        import pandas as pd

        return pd.DataFrame([self.to_dict()])

    def to_dict(self) -> dict[str, Any]:
        """Return what `seqpoint estimate --json` prints."""
        return {name: value for name, value in asdict(self).items() if name != "n_points"}

    def summary(self) -> list[str]:
        """Return the estimate in up to four sentences."""

        def text(value: float) -> str:
            return duration(value) if self.unit == "ns" else f"{value:.6g}"

        sentences = [
            f"{self.statistic}: estimated {text(self.estimate)} [{text(self.low)}, {text(self.high)}] "
            f"at {100 * self.confidence:g} % from {self.n_points} iterations"
        ]
        if self.speedup is not None and self.speedup_low is not None and self.speedup_high is not None:
            interval = f"[{self.speedup_low:.4f}, {self.speedup_high:.4f}]"
            sentences.append(f"speed-up over the run that was selected on: {self.speedup:.4f} {interval}")
        sentences.append(f"SeqPoint's weighted sum of the points: {text(self.seqpoint_sum)}")
        if self.measured is not None and self.error is not None:
            sentences.append(f"measured: {text(self.measured)} (error {100 * self.error:.3f} %)")
        return sentences

    def _repr_html_(self) -> str:
        return as_html("Estimated run", self.summary(), {})


def estimate_run(
    selection: dict[str, Any], tables: tuple[IterationTable, IterationTable], statistic: str | None = None
) -> RunEstimate:
    """Return the estimate of a run from the iterations that a selection chose.

    Parameters
    ----------
    selection : dict
        ``points`` (each ``iteration``, ``rank``, ``weight``), ``statistic``, ``confidence``.
    tables : pair of IterationTable
        The run that was selected on, and the run to estimate, which needs only the chosen iterations.
    statistic : str, optional
        By default the selection's.

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
    return RunEstimate(
        statistic=name,
        unit=UNITS.get(name, ""),
        estimate=total.value,
        low=total.low,
        high=total.high,
        confidence=selection["confidence"],
        measured=float(run.of_rank(rank).statistic(name).sum()) if whole else None,
        seqpoint_sum=float(weights @ values),
        speedup=before / total.value if total.value else None,
        speedup_low=before / total.high if total.high else None,
        speedup_high=before / total.low if total.low else None,
        n_points=len(weights),
    )


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
