"""Select the iterations that stand for a run, estimate its total from them, and compare with the baselines."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from profilers.errors import InvalidInputError
from seqpoint.iterations import UNITS, IterationTable
from seqpoint.methods import BASELINES, Budget, method_of
from seqpoint.selection import Estimate, FittedSelector, parallel_reduction, sequential_reduction

__all__ = ["BaselineResult", "SelectOptions", "SelectionResult", "select"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


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
        A name of `seqpoint.methods.METHODS`.
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
    table : IterationTable
        Of one rank, the iterations with a known length.
    statistic, unit : str
    rows : array of int64, shape (n_points,)
        Rows of `table` to profile.
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

    table: IterationTable
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
        time in each kernel, as `seqpoint.sampling.kernel_profiles` returns it. Iterations that lack have zeros.

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
