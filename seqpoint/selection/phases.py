"""Selection from a serving run: the iterations of each phase are selected in turn, so that none stands for another.

A prefill and a decode of as many tokens take other times. So `select_by_phase` selects from the iterations of each
phase (`IterationTable.phases`) as from a run of its own, and `estimate_by_phase` estimates each phase of another run.
Totals are sums over phases, whose errors are independent. Runs without phases are selected from as a whole.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from profilers.trace.arrays import Floats, Ints
from seqpoint.iteration_table import IterationTable
from seqpoint.outliers import Outliers
from seqpoint.selection.another_run import RunEstimate, estimate_run
from seqpoint.selection.estimate import Estimate, Precision, parallel_reduction, sequential_reduction, shared_allocation
from seqpoint.selection.selecting import BASELINES, SelectionResult, SelectOptions, baseline_result, method_of, select
from seqpoint.selection.stratified import profiles_of

#: Lists of iterations in a selection.
_CHOSEN = ("points", "outliers")


def _phase_rows(table: IterationTable) -> list[Ints]:
    """Return the rows of each phase of a table."""
    of_row = np.unique(table.phases, return_inverse=True)[1]
    return [np.flatnonzero(of_row == phase) for phase in range(len(set(table.phases)))]


def select_by_phase(
    table: IterationTable, options: SelectOptions | None = None, profiles: tuple[Ints, Floats] | None = None
) -> SelectionResult:
    """Choose iterations of each phase of a run; of a run without phases as `seqpoint.selection.selecting.select`.

    Points are shared between phases by Neyman's rule, in proportion to iterations times the spread of the statistic.
    Each phase has a point at least, if its statistic is not zero.

    Parameters
    ----------
    table : IterationTable
        Iterations of the run.
    options : SelectOptions, optional
        Options of the selection, with the limits of all phases together.
    profiles : pair of arrays, optional
        As in `seqpoint.selection.selecting.select`.

    Raises
    ------
    InvalidInputError
        As in `seqpoint.selection.selecting.select`.
    """
    options = options or SelectOptions()
    rank = min(table.rank.tolist(), default=0) if options.rank is None else options.rank
    run = table.of_rank(rank)
    known = np.flatnonzero(np.isfinite(run.sequence_length))
    iterations, begins = run.take(known), run.begins[known]
    if len(set(iterations.phases)) < 2 or options.selector in BASELINES:
        return select(table, options, profiles)
    name = options.statistic or iterations.default_statistic
    y = iterations.statistic(name)
    members = [rows for rows in _phase_rows(iterations) if y[rows].any()]
    parts = []
    for rows, limits in zip(members, _limits(iterations, y, members, options), strict=True):
        # Numbers leave a gap where a recording begins, and not where another phase was between.
        numbers = np.cumsum(1 + begins[rows])
        of_phase = replace(iterations.take(rows), iteration=numbers)
        own = None if profiles is None else (numbers, profiles_of(iterations.iteration[rows], *profiles))
        parts.append(select(of_phase, replace(limits, statistic=name), own))
    return replace(_joined(iterations, members, parts), without_length=len(run) - len(iterations))


def _limits(
    iterations: IterationTable, y: Floats, members: Sequence[Ints], options: SelectOptions
) -> Iterator[SelectOptions]:
    """Return the options of each phase. Points of lengths are no more than the lengths of the phase."""
    sizes = np.array([len(rows) for rows in members])
    spreads = np.array([float(y[rows].std()) for rows in members])
    lengths = np.array([len(np.unique(iterations.sequence_length[rows])) for rows in members])
    most = sizes if method_of(options.selector).drawn else lengths
    points = shared_allocation(most, sizes * spreads / most, options.budget.points).tolist()
    draws = shared_allocation(sizes, spreads, options.max_iterations or 0).tolist()
    for count, drawn in zip(points, draws, strict=True):
        if options.max_iterations:
            yield replace(options, max_points=min(count, drawn), max_iterations=drawn)
        else:
            is_free = options.max_points is None and options.target_error is not None
            yield replace(options, max_points=None if is_free else count)


def _joined(iterations: IterationTable, members: Sequence[Ints], parts: Sequence[SelectionResult]) -> SelectionResult:
    """Return the selections of phases as one of the run."""
    first, pairs = parts[0], list(zip(members, parts, strict=True))
    rows = np.concatenate([mine[part.rows] for mine, part in pairs])
    found = np.concatenate([mine[part.outliers.rows] for mine, part in pairs])
    order, columns = np.argsort(found), ("factors", "kinds", "against")
    facts = (np.concatenate([getattr(part.outliers, name) for part in parts])[order].tolist() for name in columns)
    factors, kinds, against = map(tuple, facts)
    outliers = Outliers(found[order], np.array(factors), kinds, against)
    y = iterations.statistic(first.statistic)
    regular, known = outliers.others(len(y)), float(y[found].sum())
    log, profiled = (iterations.sequence_length[regular][:, None], y[regular]), y[np.concatenate((rows, found))]
    measured = float(y.sum())
    shares = [part.measured / measured for part in parts]
    missed = sum((part.missed or 0.0) * share for part, share in zip(parts, shares, strict=True))
    halved = [(part.cross_validated_error, part.precision.standard_error) for part in parts]
    errors = [error if validated is None else validated for validated, error in halved]
    return replace(
        first,
        iterations=iterations,
        rows=rows,
        weights=np.concatenate([part.weights for part in parts]),
        bin_edges=np.concatenate([part.bin_edges for part in parts]),
        spreads=np.concatenate([part.spreads for part in parts]),
        measured=measured,
        estimate=_sum_of([part.estimate for part in parts]),
        sequential_reduction=sequential_reduction(measured, profiled),
        parallel_reduction=parallel_reduction(measured, profiled),
        baselines=tuple(baseline_result(name, make(), log, known) for name, make in BASELINES.items()),
        precision=_precision([part.precision for part in parts], shares),
        outliers=outliers,
        cross_validated_error=_root(errors, shares) if errors != [error for _, error in halved] else None,
        missed=missed if missed >= (first.tolerance or 0.0) > 0 else None,
    )


def _root(errors: Sequence[float], shares: Sequence[float]) -> float:
    """Return the relative error of a sum whose parts err independently."""
    return float(np.hypot.reduce(np.multiply(errors, shares)))


def _sum_of(parts: Sequence[Estimate]) -> Estimate:
    """Return the estimate of a sum of totals whose errors are independent."""
    value = sum(part.value for part in parts)
    low, high = (float(np.hypot.reduce([getattr(part, end) - part.value for part in parts])) for end in ("low", "high"))
    return Estimate(value, value - low, value + high, parts[0].confidence)


def _precision(parts: Sequence[Precision], shares: Sequence[float]) -> Precision:
    """Return the precision of a sum of totals, given the share of each."""
    needed = [part.needed for part in parts if part.needed]
    scatter, spread = (float(np.dot([getattr(p, name) for p in parts], shares)) for name in ("scatter", "spread"))
    points, iterations = sum(part.points for part in parts), sum(part.iterations for part in parts)
    tried = (needed[0][0], sum(number for _, number in needed)) if len(needed) == len(parts) else None
    error = _root([part.standard_error for part in parts], shares)
    return Precision(scatter, any(part.from_neighbours for part in parts), spread, error, points, iterations, tried)


def estimate_by_phase(
    selection: dict[str, Any], tables: tuple[IterationTable, IterationTable], statistic: str | None = None
) -> RunEstimate:
    """Estimate the total of a run phase by phase, from iterations that were chosen on another run.

    Parameters
    ----------
    selection, tables, statistic
        As in `seqpoint.selection.another_run.estimate_run`.

    Raises
    ------
    InvalidInputError
        As in `seqpoint.selection.another_run.estimate_run`.
    """
    points = selection.get("points") or [{"rank": -1}]
    base, run = (table.take(np.flatnonzero(table.rank == points[0]["rank"])) for table in tables)
    groups = []
    for rows in _phase_rows(base):
        numbers = base.iteration[rows]
        chosen = {key: [each for each in selection.get(key, ()) if each["iteration"] in numbers] for key in _CHOSEN}
        mine = run.take(np.flatnonzero(np.isin(run.iteration, numbers)))
        groups.append((chosen, base.take(rows), mine))
    if len(groups) < 2 or not _are_by_phase(points, groups):
        return estimate_run(selection, tables, statistic)
    parts = [
        estimate_run(selection | chosen, (before, after), statistic)
        for chosen, before, after in groups
        if chosen["points"]
    ]
    total = _sum_of([Estimate(part.estimate, part.low, part.high, part.confidence) for part in parts])
    name, known = parts[0].statistic, sum(part.outliers_total for part in parts)
    totals = [part.measured for part in parts if part.measured is not None]
    speedup, low, high = _speedup(parts)
    precision = _precision([part.precision for part in parts], [part.estimate / total.value for part in parts])
    return RunEstimate(
        name, parts[0].unit, total.value, total.low, total.high, total.confidence,
        sum(totals) if len(totals) == len(parts) else None,
        sum(part.seqpoint_sum for part in parts), speedup, low, high, precision,
        sum(part.n_outliers for part in parts), known
    )  # fmt: skip


def _are_by_phase(
    points: Sequence[Any], groups: Sequence[tuple[dict[str, Any], IterationTable, IterationTable]]
) -> bool:
    """Return whether all points are in groups, and those of each group stand for its iterations alone."""
    weights = [sum(point["weight"] for point in chosen["points"]) for chosen, *_ in groups]
    sizes = [len(before) - len(chosen["outliers"]) for chosen, before, _ in groups]
    return sum(len(chosen["points"]) for chosen, *_ in groups) == len(points) and all(
        abs(weight - size) < 1e-6 * size for weight, size in zip(weights, sizes, strict=True) if weight
    )


def _speedup(parts: Sequence[RunEstimate]) -> tuple[float, float, float] | tuple[None, None, None]:
    """Return the speed-up of the sum of phases, and its interval; None if that of a phase is unknown."""
    if any(part.speedup is None for part in parts):
        return None, None, None
    value, low, high = np.array([(part.speedup, part.speedup_low, part.speedup_high) for part in parts], float).T
    after = np.array([part.estimate - part.outliers_total for part in parts])
    middle, share = float(value @ after / after.sum()), value * after / (value @ after)
    factor = float(np.exp(np.hypot.reduce(share * np.log(high / low) / 2)))
    return middle, middle / factor, middle * factor
