"""Selection of the iterations that stand for a run, by the name of a selector.

`select` fits a selector on the lengths and a statistic of a run, estimates the run's total from the chosen iterations,
and compares it with the baselines. `seqpoint.selection.another_run` estimates another run from the same iterations.
A `SelectionMethod` is a selector with the estimators that fit it: `METHODS` holds those of this project. Other packages
add methods by entry points in the group ``seqpoint.selectors``; docs/extending.md shows a whole package that adds one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from importlib.metadata import EntryPoint
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from profilers.errors import InvalidInputError, SeqPointError
from profilers.plugins import Plugin, load_plugins, package_of
from profilers.trace.arrays import Floats, Ints
from seqpoint.iteration_table import UNITS, IterationTable, relative_spreads
from seqpoint.notebook import DataFrame, Result, Table, data_frame
from seqpoint.outliers import NO_OUTLIERS, Outliers, counted_text, find_outliers, outliers_text
from seqpoint.selection.estimate import (
    Estimate,
    Precision,
    assisted_speedup,
    assisted_total,
    cross_validated_error,
    estimate_speedup,
    estimate_total,
    parallel_reduction,
    scatter_of,
    sequential_reduction,
    stratified_variance,
    sum_precision,
)
from seqpoint.selection.kernels import estimate_drawn_speedup, estimate_drawn_total, expand_total
from seqpoint.selection.log import FittedSelector, SelectionLog
from seqpoint.selection.seqpoint import FrequentSelector, MedianSelector, PriorSelector, SeqPointSelector, WorstSelector
from seqpoint.selection.stratified import KMedoidsSelector, RandomSelector, StratifiedSelector, profiles_of
from seqpoint.units import percent, quantity

_GROUP = "seqpoint.selectors"
#: Most points by default.
_POINTS = 10
#: Relative standard error whose number of points is said, if no other is asked for.
_TARGET = 0.01
#: Most iterations of a run on which a selection for that error is tried.
_MOST_TRIED = 20_000


@dataclass(frozen=True)
class Budget:
    """Limits of a selection, which a selector is made for.

    Parameters
    ----------
    points : int
        Most points: sequence lengths, strata or groups.
    iterations : int, optional
        Most iterations of all points together; by default `points`.
    first : int
        Bins with which SeqPoint begins; it makes `points` bins at most.
    tolerance : float
        Relative error of the total at which SeqPoint stops adding bins.
    confidence : float
        Confidence level of the intervals, between 0 and 1.
    seed : int
        Seed of the selectors that draw at random.
    """

    points: int = _POINTS
    iterations: int | None = None
    first: int = 5
    tolerance: float = 0.01
    confidence: float = 0.95
    seed: int = 0

    @property
    def draws(self) -> int:
        """Iterations that a selector draws at random."""
        return self.points if self.iterations is None else self.iterations


@dataclass(frozen=True)
class SelectionMethod:
    """A selector, and the estimators of totals and speed-ups that fit it.

    An entry point of the group ``seqpoint.selectors`` names one.

    Parameters
    ----------
    make : callable
        Takes a `Budget` and returns an unfitted selector. Its `fit(X, y)` takes the lengths and the statistic and sets
        the attributes of `FittedSelector`.
    summary : str
        One sentence for the listing.
    drawn : bool
        Whether iterations are drawn at random from strata. Their intervals come from sampling theory, and the fitted
        selector has the attributes of `seqpoint.selection.kernels.Drawn`.
    assisted : bool
        Whether totals are regressions on the length, by `seqpoint.selection.assisted_total`.
    features : bool
        Whether `fit` reads columns of `X` beside the length.
    seeded : bool
        Whether another seed gives other points.
    package : str
        Distribution that brings it; filled in for selectors of other packages.
    """

    make: Callable[[Budget], Any]
    summary: str = ""
    drawn: bool = False
    assisted: bool = False
    features: bool = False
    seeded: bool = False
    package: str = ""

    def own_total(self, fitted: Any, log: tuple[Floats, Floats], confidence: float = 0.95) -> Estimate:
        """Return the total of the fitted log, estimated from its points.

        Parameters
        ----------
        fitted : FittedSelector
            The fitted selector.
        log : pair of arrays
            Lengths or features, and the statistic, on which it was fitted.
        confidence : float
            Confidence level of the interval; drawn selectors use that of their budget.
        """
        values = log[1][fitted.representatives_]
        if self.drawn:
            return expand_total(values, fitted)
        return estimate_total(values, SelectionLog.of(fitted, *log), confidence=confidence)

    def total(self, fitted: Any, log: tuple[Floats, Floats], values: Floats) -> Estimate:
        """Return the total on another configuration.

        Parameters
        ----------
        fitted : FittedSelector
            The fitted selector.
        log : pair of arrays
            Lengths or features, and the statistic, on which it was fitted.
        values : array of float64, shape (n_points,)
            Statistic of the points on the other configuration.
        """
        if self.drawn:
            return estimate_drawn_total(values, fitted)
        return (assisted_total if self.assisted else estimate_total)(values, SelectionLog.of(fitted, *log))

    def speedup(self, fitted: Any, log: tuple[Floats, Floats], values: Floats) -> Estimate:
        """Return the speed-up of another configuration over the fitted log.

        Parameters
        ----------
        fitted : FittedSelector
            The fitted selector.
        log : pair of arrays
            Lengths or features, and the statistic, on which it was fitted.
        values : array of float64, shape (n_points,)
            Statistic of the points on the other configuration.
        """
        base = log[1][fitted.representatives_]
        if self.drawn:
            return estimate_drawn_speedup(base, values, fitted)
        selection = SelectionLog.of(fitted, *log)
        return (assisted_speedup if self.assisted else estimate_speedup)(base, values, selection)

    def precision(self, fitted: Any, log: tuple[Floats, Floats]) -> Precision:
        """Return how well the points know the total of a run as noisy as the fitted log.

        Parameters
        ----------
        fitted : FittedSelector
            The fitted selector.
        log : pair of arrays
            Lengths or features, and the statistic, on which it was fitted.
        """
        y, rows = log[1], fitted.representatives_
        selection = SelectionLog.of(fitted, *log)
        if not self.drawn:
            return sum_precision(y[rows], selection)
        plan, total = fitted.plan_, float(y.sum())
        spread = float(plan.strata.sizes @ plan.strata.spreads_ns) / total
        error = stratified_variance(plan.strata.sizes, plan.strata.spreads_ns, plan.sampled) ** 0.5 / total
        return Precision(*scatter_of(selection), spread, error, len(rows), len(y))


def _seqpoint(budget: Budget) -> SeqPointSelector:
    return SeqPointSelector(budget.points, budget.first, budget.tolerance, budget.iterations)


def _stratified(budget: Budget) -> StratifiedSelector:
    strata = None if budget.iterations is None else min(budget.points, max(1, budget.iterations // 2))
    return StratifiedSelector(budget.draws, strata, confidence=budget.confidence, seed=budget.seed)


#: The baselines of SeqPoint's paper; each has its own number of points.
BASELINES: Mapping[str, Callable[[], FittedSelector]] = MappingProxyType(
    {"frequent": FrequentSelector, "median": MedianSelector, "worst": WorstSelector, "prior": PriorSelector}
)
#: What the baselines are, in a sentence.
BASELINES_EXPLAINED = (
    "error %: in-sample; frequent, median, worst: one length stands for all (the most frequent, the median, that with "
    "the largest error); prior: 50 iterations in a row"
)


def _baseline_method(make: Callable[[], FittedSelector]) -> SelectionMethod:
    return SelectionMethod(lambda _: make(), (make.__doc__ or "").strip().partition("\n")[0])


#: The selectors of this project by name, with the baselines.
METHODS: Mapping[str, SelectionMethod] = MappingProxyType(
    {
        "seqpoint": SelectionMethod(
            _seqpoint, "Bins of the sequence length; each is stood for by its most typical length."
        ),
        "seqpoint, assisted": SelectionMethod(
            _seqpoint, "The points of seqpoint; totals are regressions on the sequence length.", assisted=True
        ),
        "stratified": SelectionMethod(
            _stratified,
            "Random iterations of strata that a regression tree cuts by length and other features.",
            drawn=True,
            features=True,
            seeded=True,
        ),
        "k-medoids": SelectionMethod(
            lambda b: KMedoidsSelector(b.draws, confidence=b.confidence, seed=b.seed),
            "Iterations in the middle of groups with similar times in each kernel.",
            drawn=True,
            features=True,
        ),
        "random": SelectionMethod(
            lambda b: RandomSelector(b.draws, confidence=b.confidence, seed=b.seed),
            "Random iterations, each as likely as any other.",
            drawn=True,
            seeded=True,
        ),
    }
    | {name: _baseline_method(make) for name, make in BASELINES.items()}
)


@cache
def selector_plugins() -> tuple[Plugin[SelectionMethod], ...]:
    """Return the selectors of other packages, loaded or left out with the reason."""
    return tuple(load_plugins(_GROUP, _load, taken=METHODS))


def _load(point: EntryPoint) -> SelectionMethod:
    method = point.load()
    if not isinstance(method, SelectionMethod):
        raise InvalidInputError(f"{point.value} is a {type(method).__name__}, not a seqpoint.selection.SelectionMethod")
    return replace(method, package=package_of(point))


def selectors() -> Mapping[str, SelectionMethod]:
    """Return every selector by name: those of this project, then those of other packages."""
    loaded = {plugin.name: plugin.value for plugin in selector_plugins() if plugin.value is not None}
    return MappingProxyType({**METHODS, **loaded})


def method_of(name: str) -> SelectionMethod:
    """Return the method of a selector.

    Parameters
    ----------
    name : str
        A name of `selectors`.

    Raises
    ------
    InvalidInputError
        No selector has this name. The message lists the names, and says why a package's selector is left out.
    """
    if name in METHODS:  # without loading other packages
        return METHODS[name]
    methods = selectors()
    if name in methods:
        return methods[name]
    problems = [f"; {p.label} could not be loaded: {p.problem}" for p in selector_plugins() if p.problem]
    raise InvalidInputError(f"no selector {name!r}; there are {', '.join(methods)}{''.join(problems)}")


@dataclass(frozen=True)
class SelectOptions:
    """Options of a selection.

    Parameters
    ----------
    statistic : str, optional
        Statistic to total: ``"kernel_time"`` (default, if the run has kernels), ``"duration"``, or any column of a log.
    max_points : int, optional
        Most lengths to select, or most strata or groups; by default 10, or as many as the target error needs.
    tolerance : float
        Relative error of the total at which SeqPoint stops to add points.
    confidence : float
        Confidence level of the interval of the total, between 0 and 1.
    rank : int, optional
        Rank whose iterations are selected; by default the lowest.
    selector : str
        Selector of iterations: ``"seqpoint"``, ``"stratified"``, ``"k-medoids"``, ``"random"``, or another of
        `seqpoint.selection.selecting.selectors`.
    features : tuple of str
        Statistics that tell iterations apart besides the length, for ``"stratified"`` and ``"k-medoids"``.
    max_iterations : int, optional
        Most iterations of all points together, by default one for each point. Several of a length average its noise.
    keep_outliers : bool
        Whether points stand for outlying iterations, such as the warm-up, too. Without it each outlier counts once.
    target_error : float, optional
        Relative standard error of the total, such as 0.01 or 1%, for which the number of iterations is chosen: two of
        three runs as noisy as this one err by less.
    """

    statistic: str | None = None
    max_points: int | None = None
    tolerance: float = 0.01
    confidence: float = 0.95
    rank: int | None = None
    selector: str = "seqpoint"
    features: tuple[str, ...] = ()
    max_iterations: int | None = None
    keep_outliers: bool = False
    target_error: float | None = None

    def __post_init__(self) -> None:
        if self.target_error is None:
            return
        if not 0 < self.target_error < 1:
            raise InvalidInputError(f"target_error is {self.target_error!r}; it must lie between 0 and 1, such as 0.01")
        if self.max_iterations is not None:
            raise InvalidInputError("target_error chooses the number of iterations; leave out max_iterations")
        if self.selector in BASELINES:
            raise InvalidInputError(f"the selector {self.selector!r} sets its own number of points; no target_error")

    @property
    def budget(self) -> Budget:
        """Limits of the selection, for the selector."""
        points = _POINTS if self.max_points is None else self.max_points
        return Budget(points, self.max_iterations, tolerance=self.tolerance, confidence=self.confidence)


@dataclass(frozen=True)
class BaselineResult:
    """Estimate of a baseline on the same run.

    Parameters
    ----------
    name : str
        A name of `BASELINES`.
    points : int
        Iterations that the baseline chose, from those that are no outliers.
    estimate : float
        Estimate of the total, in the unit of the statistic, in which each outlier counts once.
    error : float
        Relative error, ``|estimate - measured| / measured``.
    """

    name: str
    points: int
    estimate: float
    error: float


@dataclass(frozen=True, repr=False)
class SelectionResult(Result):
    """The chosen iterations of a run, and the estimate of its total from them.

    Parameters
    ----------
    iterations : IterationTable
        The iterations of one rank with a known length.
    statistic, unit : str
        The statistic that is totalled, and its unit; an empty unit if the log does not say.
    rows : array of int64, shape (n_points,)
        Rows of `iterations` to profile.
    weights : array of float64, shape (n_points,)
        Iterations that each point stands for.
    bin_edges : array of float64, shape (n_points, 2)
        Lower and upper length of each point's bin.
    measured : float
        Total of the statistic over the run.
    estimate : Estimate
        Estimate of that total, from the chosen iterations and the outliers.
    sequential_reduction, parallel_reduction : float
        Measured total over the sum of points and outliers, and over the longest of them: how much less is run to
        measure them one after another, and all at once. The estimate needs the values of both.
    baselines : tuple of BaselineResult
        Estimates of the baselines.
    precision : Precision
        How well the points know the total of a run as noisy as this one.
    without_length : int
        Iterations left out because their length is unknown.
    selector : str
        Name of the selector.
    spreads : array of float64, shape (n_points,)
        Relative standard deviation of the statistic in the bin of each point.
    outliers : Outliers
        Rows of `iterations` that no point stands for, with the reason. Each counts once in the estimate.
    cross_validated_error : float, optional
        Relative error of the total of one half of the run, from points of the other.
    target_error : float, optional
        Relative standard error for which the points were chosen.
    tolerance, missed : float, optional
        Tolerance of the total, and the error of the points on the run if it is larger.
    """

    heading = "Selection"

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
    precision: Precision
    without_length: int = 0
    selector: str = "seqpoint"
    spreads: Floats = field(default_factory=lambda: np.empty(0))
    outliers: Outliers = NO_OUTLIERS
    cross_validated_error: float | None = None
    target_error: float | None = None
    tolerance: float | None = None
    missed: float | None = None

    @property
    def regular(self) -> IterationTable:
        """The iterations without the outliers, which the points stand for."""
        return self.iterations.take(self.outliers.others(len(self.iterations)))

    @property
    def error(self) -> float:
        """Relative error of the estimate, against the measured total."""
        return abs(self.estimate.value - self.measured) / self.measured

    def table(self) -> DataFrame:
        """Return the selected iterations, a row each, with their weights and the value of the statistic."""
        return data_frame(self.to_dict()["points"])

    def baselines_table(self) -> DataFrame:
        """Return the error of this selection and of the baselines, a row each."""
        return data_frame(self.baseline_rows(), columns=["selector", "points", "estimate", "error"])

    def baseline_rows(self) -> list[tuple[str, int, float, float]]:
        """Return selector, points, estimated total and relative error: this selection first, then the baselines."""
        rows = [(self.selector, len(self.rows), self.estimate.value, self.error)]
        return rows + [(row.name, row.points, row.estimate, row.error) for row in self.baselines]

    def tables(self) -> tuple[Table, ...]:
        """Return the selected iterations, the outliers, and the errors of this selection and of the baselines."""
        content = self.to_dict()
        files = ("file~",) if self.iterations.names_files else ()
        labels = ("iteration", "rank", "length", *(("phase~",) if self.iterations.phases else ()))
        points = [
            (*_labels(point), f"{point['weight']:g}", quantity(point["value"], self.unit), *_file_cell(point, files))
            for point in content["points"]
        ]
        title = "SeqPoints" if self.selector == "seqpoint" else "Points"
        tables = [Table(title, (*labels, "weight", self.statistic, *files), points)]
        if len(self.outliers):
            rows = [
                (*_labels(row), quantity(row["value"], self.unit), row["reason"], *_file_cell(row, files))
                for row in content["outliers"]
            ]
            heading = (*labels, self.statistic, "reason~", *files)
            tables.append(Table("Outliers: no point stands for them; each counts once", heading, rows))
        halved = self.cross_validated_error
        baselines = [
            (name, count, quantity(total, self.unit), f"{100 * error:.3f}", "-")
            for name, count, total, error in self.baseline_rows()
        ]
        baselines[0] = (*baselines[0][:4], "-" if halved is None else f"{100 * halved:.3f}")
        names = ("selector~", "points", "estimate", "error %", "cross-validated %")
        return (*tables, Table("Against the baselines", names, baselines, marked=0, note=BASELINES_EXPLAINED))

    def plot(self) -> Any:
        """Return the histogram of lengths with the selected iterations, as a HoloViews object."""
        from seqpoint.plots import length_histogram

        return length_histogram(self.iterations.sequence_length, self.table(), self.bin_edges)

    def plot_statistic(self) -> Any:
        """Return the chart of the statistic by length, with the selected iterations, as a HoloViews object."""
        from seqpoint.plots import statistic_by_length

        return statistic_by_length(self.iterations.table(), self.table(), self.statistic, self.unit)

    def plot_baselines(self) -> Any:
        """Return the chart of the errors of this selection and of the baselines, as a HoloViews object."""
        from seqpoint.plots import baseline_errors

        return baseline_errors(self.baselines_table(), self.statistic)

    def to_dict(self) -> dict[str, Any]:
        """Return what `seqpoint select --json` prints."""
        table, estimate = self.iterations, self.estimate
        values = table.statistic(self.statistic)
        names = ("error", "cross_validated_error", "sequential_reduction", "parallel_reduction", "without_length")
        return {
            "n_iterations": len(table),
            **{name: getattr(self, name) for name in ("selector", "statistic", "unit", "measured")},
            "estimate": estimate.value,
            **{name: getattr(estimate, name) for name in ("low", "high", "confidence")},
            **{name: getattr(self, name) for name in names},
            **{name: getattr(self.precision, name) for name in ("scatter", "from_neighbours", "standard_error")},
            "target_error": self.target_error or _TARGET,
            "points_for_target_error": self.precision.points_for(self.target_error or _TARGET),
            **{"tolerance": self.tolerance, "tolerance_met": self.missed is None},
            "points": [
                {
                    **table.identity(row),
                    "weight": float(weight),
                    "value": float(values[row]),
                    "file": table.file(row),
                }
                for row, weight in zip(self.rows.tolist(), self.weights.tolist(), strict=True)
            ],
            "outliers": [
                {**table.identity(row), "value": float(values[row]), "reason": reason, "file": table.file(row)}
                for row, reason in zip(self.outliers.rows.tolist(), self.outliers.reasons, strict=True)
            ],
            "baselines": [asdict(row) for row in self.baselines],
        }

    def summary(self) -> list[str]:
        """Return the estimate and how far it is known, in four to six sentences."""
        estimate = self.estimate
        numbers = (self.measured, estimate.value, estimate.low, estimate.high)
        measured, value, low, high = (quantity(number, self.unit) for number in numbers)
        profiled = "points and outliers" if len(self.outliers) else "the points"
        expected, how = self.precision.standard_error, "scatter alone"
        if self.cross_validated_error is not None:
            expected, how = self.cross_validated_error, "cross-validated"
        return [
            f"{self.statistic}: expected error {percent(expected)} "
            f"from {counted_text(len(self.rows), len(self.outliers), len(self.iterations))} ({how}); "
            f"in-sample {percent(self.error)}, on the run that they were chosen on",
            f"this run: measured {measured}, estimated {value} [{low}, {high}] at {100 * estimate.confidence:g} %",
            self.precision.summary(self.target_error or _TARGET),
            *self._missed(),
            f"profiling shrinks {self.sequential_reduction:.1f}x (total over the sum of {profiled}), "
            f"{self.parallel_reduction:.1f}x (total over the longest {'of all' if len(self.outliers) else 'point'})",
        ]

    def _missed(self) -> list[str]:
        """Return what is missed: the tolerance, the target error, or a run worth selecting from."""
        labels = {_labels(self.iterations.identity(row))[2:] for row in self.rows.tolist()}
        points, sentences = len(labels), []
        several = f"{points} point{'s err' if points > 1 else ' errs'}"
        if self.missed is not None and self.tolerance is not None and self.target_error is None:
            sentences.append(
                f"the tolerance of {percent(self.tolerance)} is missed: {several} by {percent(self.missed)}"
            )
        if self.target_error is not None:
            sentences += self.precision.remarks(self.target_error, points)
        return sentences

    def closing(self) -> list[str]:
        """Return the notes, which are sentences of their own."""
        return self.notes()

    def notes(self) -> list[str]:
        """Return what the estimate leaves out, in up to two sentences."""
        total = float(self.iterations.statistic(self.statistic)[self.outliers.rows].sum())
        left_out = f"{self.without_length} iterations were left out: their length is unknown"
        sentences = [outliers_text(len(self.outliers), total / self.measured)] if len(self.outliers) else []
        return [*sentences, *([left_out] if self.without_length else [])]


def select(
    table: IterationTable, options: SelectOptions | None = None, profiles: tuple[Ints, Floats] | None = None
) -> SelectionResult:
    """Choose the iterations of a run to profile.

    Parameters
    ----------
    table : IterationTable
        Iterations of the run.
    options : SelectOptions, optional
        Options of the selection.
    profiles : pair of arrays, optional
        Numbers of the chosen rank's iterations, shape (n,), and features of each, shape (n, n_columns): the time in
        each kernel, as `seqpoint.selection.stratified.kernel_profiles` returns it. Iterations that are not listed have
        zeros.

    Returns
    -------
    SelectionResult
        The chosen iterations with their weights, the estimate of the total, and the baselines.

    Raises
    ------
    InvalidInputError
        No iteration has a known length; the statistic is zero everywhere or unknown; the selector or a feature does not
        exist; or a selector of another package fails.
    """
    options = options or SelectOptions()
    rank = min(table.rank.tolist(), default=0) if options.rank is None else options.rank
    run = table.of_rank(rank)
    has_length = np.flatnonzero(np.isfinite(run.sequence_length))
    if not len(has_length):
        raise InvalidInputError(
            "no iteration has a sequence length; say where it is when the trace is read (--length, or sp.open(..., "
            "length=...)): OPERATOR:ARGUMENT:DIMENSION, or a CSV file. `seqpoint project` needs none: it chooses by "
            "kernels and step time"
        )
    iterations = run.take(has_length)
    name = options.statistic or iterations.default_statistic
    y = iterations.statistic(name)
    if not y.any():
        raise InvalidInputError(f"the statistic {name!r} is zero in every iteration; choose another")
    method = method_of(options.selector)
    if (options.features or profiles) and not method.features:
        raise InvalidInputError(f"the selector {options.selector!r} reads the length alone; features need 'stratified'")
    columns = (iterations.statistic(feature) for feature in options.features)
    X = np.column_stack((iterations.sequence_length, *columns))
    if profiles is not None:
        X = np.column_stack((X, profiles_of(iterations.iteration, *profiles)))
    outliers = NO_OUTLIERS if options.keep_outliers else find_outliers(y, X[:, 0], begins=run.begins[has_length])
    regular = outliers.others(len(y)) if len(outliers) else slice(None)
    log, known, measured = (X[regular], y[regular]), y[outliers.rows], float(y.sum())
    share = float(log[1].sum()) / measured if measured else 1.0
    budget = budget_of(method, options, log, share)
    selector = _fit(method, options.selector, budget, *log)
    rows = selector.representatives_ if isinstance(regular, slice) else regular[selector.representatives_]
    profiled = np.concatenate((y[rows], known))
    halved = cross_validated_error(lambda X, y: _fit(method, options.selector, budget, X, y), *log)
    precision = method.precision(selector, log).of_share(share)
    if options.target_error is None and options.selector not in BASELINES and len(log[1]) <= _MOST_TRIED:
        least = replace(options, target_error=_TARGET, max_iterations=None, max_points=None)
        precision = replace(precision, needed=(_TARGET, budget_of(method, least, log, share).draws))
    missed = not selector.converged_ and selector.relative_error_ >= options.tolerance
    return SelectionResult(
        iterations,
        name,
        UNITS.get(name, ""),
        rows,
        selector.weights_,
        selector.bin_edges_[selector.labels_[selector.representatives_]],
        measured,
        method.own_total(selector, log, options.confidence).plus(float(known.sum())),
        sequential_reduction(measured, profiled),
        parallel_reduction(measured, profiled),
        tuple(baseline_result(baseline, make(), log, float(known.sum())) for baseline, make in BASELINES.items()),
        precision,
        len(run) - len(iterations),
        options.selector,
        relative_spreads(log[1], selector.labels_)[selector.labels_[selector.representatives_]],
        outliers,
        cross_validated_error=None if halved is None else halved * share,
        target_error=options.target_error,
        tolerance=options.tolerance,
        missed=float(selector.relative_error_) if missed else None,
    )


def budget_of(
    method: SelectionMethod, options: SelectOptions, log: tuple[Floats, Floats], share: float = 1.0
) -> Budget:
    """Return the budget of a selection: that of its options, or the least that reaches their target error.

    As many lengths are chosen as iterations, up to the limit. Bins of several lengths may cancel on this run and not on
    another. Iterations are doubled until the standard error is within the target, then bisected.

    Parameters
    ----------
    method : SelectionMethod
        The selector.
    options : SelectOptions
        Options of the selection.
    log : pair of arrays
        Lengths or features, and the statistic, of the run without its outliers.
    share : float
        Share of that statistic in the total of the run.

    Examples
    --------
    Twelve of 100 iterations of a single length that differ by 10 %: 0.1 (1 / 12 - 1 / 100)^0.5 = 0.027.

    >>> log = np.ones((100, 1)), np.tile([90.0, 110.0], 50)
    >>> budget_of(METHODS["seqpoint"], SelectOptions(target_error=0.0275), log).iterations
    12
    """
    target = options.target_error
    if target is None:
        return options.budget
    limit = len(np.unique(log[0][:, 0])) if options.max_points is None else options.max_points
    fewest, most = min(options.budget.first, len(log[1])), len(log[1])

    def budget(iterations: int) -> Budget:
        points = min(iterations, limit)
        return replace(options.budget, points=points, first=points, iterations=iterations)

    def is_enough(iterations: int) -> bool:
        precision = method.precision(_fit(method, options.selector, budget(iterations), *log), log)
        return precision.standard_error * share <= target

    low, high = 0, fewest
    while not is_enough(high) and high < most:  # as often as the iterations double
        low, high = high, min(2 * high, most)
    while high - low > 1 and high > fewest:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return budget(high)


def _labels(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the cells that name an iteration in a table."""
    phase = (row["phase"] or "-",) if "phase" in row else ()
    return row["iteration"], row["rank"], f"{row['sequence_length']:g}", *phase


def _file_cell(row: Mapping[str, Any], columns: Sequence[str]) -> tuple[str, ...]:
    return (row["file"] or "-",) if columns else ()


def _fit(method: SelectionMethod, name: str, budget: Budget, X: Floats, y: Floats) -> Any:
    """Return the fitted selector; an error of another package's selector names the package."""
    try:
        selector = method.make(budget)
        selector.fit(X, y)
        if method.package:
            SelectionLog.of(selector, X, y)
            selector.bin_edges_[selector.labels_[selector.representatives_]]
        return selector
    except Exception as error:
        if method.package:
            reason = str(error) if isinstance(error, SeqPointError) else f"{type(error).__name__}: {error}"
            raise InvalidInputError(f"the selector {name} of {method.package} failed: {reason}") from error
        if isinstance(error, ValueError):  # scikit-learn's message for lengths or values that it refuses
            raise InvalidInputError(str(error)) from error
        raise


def baseline_result(name: str, selector: Any, log: tuple[Floats, Floats], known: float) -> BaselineResult:
    """Return the estimate of a baseline from the lengths and the statistic, with the known total of outliers added."""
    X, y = log
    fitted, measured = selector.fit(X[:, :1], y), float(y.sum()) + known
    value = float(fitted.weights_ @ y[fitted.representatives_]) + known
    return BaselineResult(name, len(fitted.representatives_), value, abs(value - measured) / measured)
