"""Choice of the iterations that a projection replays, and the estimate of the run from them.

`choose_iterations` takes the iterations that a user names, or all if they are few. Otherwise it takes points by step
time, which is what `project` projects: SeqPoints if sequence lengths are known, else the typical iteration of each of
several groups. A group has steps of one kind (`seqpoint.kinds`) and of like step times. Outlying iterations, such as
the warm-up, count once and are not replayed. `RunShare` says what was measured and what is estimated.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from statistics import NormalDist
from typing import Any

import numpy as np

from profilers.trace.arrays import Bools, Floats, Ints, integers, strings
from profilers.trace.steps import StepTimes, is_file, job_steps, step_times
from profilers.trace.trace import Trace
from replay.projection.windows import SampledStep, StepWindow
from seqpoint.graphs import all_iterations
from seqpoint.iteration_table import IterationTable, iteration_table, relative_spreads
from seqpoint.kinds import step_kinds
from seqpoint.outliers import NO_OUTLIERS, Outliers, find_outliers
from seqpoint.units import duration

#: Confidence level of the interval of the run, that of the intervals of a projection.
_CONFIDENCE = 0.9
#: Least share of the sum of squares that a cut of a group takes away; less is rounding.
_LEAST_CUT = 1e-12
#: Most outliers that a sentence names.
_MOST_NAMED = 6


@dataclass(frozen=True)
class RunOutlier:
    """An iteration of the run that is not replayed.

    Parameters
    ----------
    iteration : int
        Number of the iteration.
    value : float
        Step time in ns.
    reason : str
        Reason why it is an outlier.
    file : str, optional
        Name of its file, if each file is an iteration.
    """

    iteration: int
    value: float
    reason: str
    file: str | None = None


@dataclass(frozen=True)
class RunShare:
    """The run that chosen iterations stand for.

    Parameters
    ----------
    iterations : int
        Number of iterations in the trace.
    measured_ns : float
        Sum of their measured step times.
    estimated_ns, low_ns, high_ns : float, optional
        The same sum, estimated from the chosen iterations and the outliers, with its 90 % interval. None if a user
        named the iterations, which stand for themselves.
    outliers : tuple of RunOutlier
        Iterations that no chosen one stands for. Each counts once in the estimate.
    """

    iterations: int
    measured_ns: float
    estimated_ns: float | None = None
    low_ns: float | None = None
    high_ns: float | None = None
    outliers: tuple[RunOutlier, ...] = ()

    @property
    def error(self) -> float | None:
        """Relative error of the estimate; None without an estimate, or if no time was measured."""
        if self.estimated_ns is None or not self.measured_ns:
            return None
        return abs(self.estimated_ns / self.measured_ns - 1)

    def to_dict(self) -> dict[str, Any]:
        """Return the run as JSON with stable keys."""
        return {**asdict(self), "error": self.error, "outliers": [asdict(outlier) for outlier in self.outliers]}

    def sentence(self) -> str:
        """Return what is estimated of the run, and how far off that is."""
        if self.estimated_ns is None or self.low_ns is None or self.high_ns is None:
            return ""
        measured = f"the trace has {duration(self.measured_ns)}" if self.measured_ns else "the trace has no time"
        error = "" if self.error is None else f" (error {100 * self.error:.1f} %)"
        count = len(self.outliers)
        source = f" from them and {count} outlier{'s' * (count != 1)}" if count else ""
        return (
            f"estimated{source}: the run of {self.iterations} iterations takes {duration(self.estimated_ns)} "
            f"[{duration(self.low_ns)}, {duration(self.high_ns)}]; {measured}{error}"
        )

    def outliers_sentence(self) -> str:
        """Return which iterations are outliers, or an empty text."""
        if not self.outliers:
            return ""
        total = sum(outlier.value for outlier in self.outliers)
        named = [f"{row.iteration} ({duration(row.value)}, {row.reason})" for row in self.outliers[:_MOST_NAMED]]
        more = f" and {len(self.outliers) - _MOST_NAMED} more" * (len(self.outliers) > _MOST_NAMED)
        share = f", {100 * total / self.measured_ns:.0f} % of the run" if self.measured_ns else ""
        return (
            f"outliers: {len(self.outliers)} iterations with {duration(total)}{share}, count once and are not "
            f"replayed: {', '.join(named)}{more} (--keep-outliers)"
        )


@dataclass(frozen=True)
class ChosenIterations:
    """Iterations to replay.

    Parameters
    ----------
    numbers : tuple of int
        Their numbers.
    weights : tuple of float
        Number of iterations that each stands for.
    how : str
        How they were chosen.
    run : RunShare
        The run that they stand for.
    sampled : tuple of SampledStep
        How each stands for others; empty if each stands for itself.
    files : tuple of str
        Names of their files; empty if files are no iterations.
    measured_ns : tuple of float
        Their measured step times.
    """

    numbers: tuple[int, ...]
    weights: tuple[float, ...]
    how: str
    run: RunShare
    sampled: tuple[SampledStep, ...] = ()
    files: tuple[str, ...] = ()
    measured_ns: tuple[float, ...] = ()

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each iteration: its number, weight, measured step time in ns, and file."""
        files = self.files or (None,) * len(self.numbers)
        columns = zip(self.numbers, self.weights, self.measured_ns, files, strict=True)
        names = ("iteration", "weight", "measured_ns", "file")
        return [dict(zip(names, (*row[:3], row[3] or None), strict=True)) for row in columns]

    def weighted(self, weights: Sequence[float], sampled: Sequence[SampledStep]) -> "ChosenIterations":
        """Return the same iterations with other weights, if any are given."""
        return replace(self, weights=tuple(weights), sampled=tuple(sampled)) if weights else self

    def put(self, window: StepWindow) -> StepWindow:
        """Return a window that knows how its steps stand for others."""
        if not self.sampled:
            return window
        sample_of = dict(zip(self.numbers, self.sampled, strict=True))
        return replace(window, sampled=tuple(sample_of[window.graph.iterations[i]] for i in window.chosen))


def choose_iterations(
    trace: Trace, named: Sequence[int] = (), max_points: int = 8, *, keep_outliers: bool = False
) -> ChosenIterations:
    """Return the iterations to replay, and the run that they stand for.

    Parameters
    ----------
    trace : Trace
        The trace.
    named : sequence of int, optional
        Numbers of the iterations that a user names.
    max_points : int, default 8
        Most iterations, unless they are named.
    keep_outliers : bool
        Whether iterations are chosen from outlying ones too.

    Raises
    ------
    InvalidInputError
        The trace has no iteration.
    """
    steps = job_steps(step_times(trace)).without(trace.meta.context)
    chosen = _chosen(trace, steps, named, max_points, keep_outliers=keep_outliers)
    time_of = dict(zip(steps.iteration.tolist(), steps.step_ns.tolist(), strict=True))
    return replace(chosen, measured_ns=tuple(float(time_of.get(number, 0)) for number in chosen.numbers))


def _chosen(
    trace: Trace, steps: StepTimes, named: Sequence[int], max_points: int, *, keep_outliers: bool
) -> ChosenIterations:
    """Return the chosen iterations, without their measured times."""
    numbers = all_iterations(trace)
    if named:
        run = RunShare(len(numbers), float(steps.step_ns.sum()))
        chosen = tuple(dict.fromkeys(named))
        return ChosenIterations(chosen, (1.0,) * len(chosen), "as asked", run, files=_files(trace, chosen))
    of_job = _of_job(iteration_table(trace), steps)
    known = np.isfinite(of_job.sequence_length)
    by_length = bool(known.any() and of_job.statistic("duration")[known].any())
    if by_length and len(numbers) > max_points:
        points = _points_by_length(of_job, max_points, keep_outliers=keep_outliers)
    else:
        kinds = step_kinds(trace, of_job.iteration)
        outliers = NO_OUTLIERS if keep_outliers else _found(of_job, kinds)
        is_timed = _is_timed(of_job, steps)
        few = len(numbers) <= max_points
        points = _every(of_job, outliers) if few else _points_by_time(of_job, kinds, is_timed, outliers, max_points)
    return replace(points, files=_files(trace, points.numbers))


def _found(table: IterationTable, kinds: Ints) -> Outliers:
    """Return the outliers of a run by step time, among iterations of a length or else of a kind."""
    values, lengths = table.statistic("duration"), table.sequence_length
    if np.isfinite(lengths).all() and np.ptp(lengths) > 0:
        return find_outliers(values, lengths, begins=table.begins)
    return find_outliers(values, begins=table.begins, kinds=kinds)


def _every(table: IterationTable, outliers: Outliers) -> ChosenIterations:
    """Return all iterations but the outliers, which stand for themselves."""
    values = table.statistic("duration")
    total, regular = float(values.sum()), outliers.others(len(table))
    run = RunShare(len(table), total, total, total, total, _outliers(table, outliers))
    numbers = tuple(table.iteration[regular].tolist())
    return ChosenIterations(numbers, (1.0,) * len(numbers), "all but the outliers" if len(outliers) else "all", run)


def _of_job(table: IterationTable, steps: StepTimes) -> IterationTable:
    """Return the iterations of the lowest rank, with the step times of the job as their duration."""
    of_rank = table.of_rank(int(table.rank.min()))
    row_of = {number: row for row, number in enumerate(steps.iteration.tolist())}
    rows = np.array([row_of[number] for number in of_rank.iteration.tolist()])
    return replace(of_rank, statistics={**of_rank.statistics, "duration": steps.step_ns[rows].astype(np.float64)})


def _files(trace: Trace, numbers: Sequence[int]) -> tuple[str, ...]:
    """Return the names of the files of some iterations, or nothing if none is a file."""
    table = trace.iterations
    by_file = is_file(table)
    if not by_file.any():
        return ()
    names, iterations = strings(table, "name"), integers(table, "iteration")
    file_of = {int(iterations[row]): str(names[row]) for row in np.flatnonzero(by_file)[::-1].tolist()}
    return tuple(file_of.get(number, "") for number in numbers)


def _points_by_length(table: IterationTable, max_points: int, *, keep_outliers: bool) -> ChosenIterations:
    """Return the SeqPoints of a run by step time."""
    # scikit-learn takes half a second to load.
    from seqpoint.selection.phases import select_by_phase
    from seqpoint.selection.selecting import SelectOptions

    options = SelectOptions("duration", max_points, confidence=_CONFIDENCE, keep_outliers=keep_outliers)
    result = select_by_phase(table, options)
    chosen, estimate = result.iterations, result.estimate
    points = zip(chosen.sequence_length[result.rows].tolist(), result.spreads.tolist(), strict=True)
    return ChosenIterations(
        tuple(chosen.iteration[result.rows].tolist()),
        tuple(result.weights.tolist()),
        "SeqPoint",
        RunShare(
            len(chosen),
            result.measured,
            *(estimate.value, estimate.low, estimate.high),
            _outliers(chosen, result.outliers),
        ),
        tuple(SampledStep(length, spread) for length, spread in points),
    )


def _points_by_time(
    table: IterationTable, kinds: Ints, is_timed: Bools, outliers: Outliers, max_points: int
) -> ChosenIterations:
    """Return the iteration of each group of like steps whose step time is nearest the mean of the group."""
    values, regular = table.statistic("duration"), outliers.others(len(table))
    of_kind = [regular[kinds[regular] == kind] for kind in np.unique(kinds[regular]).tolist()]
    groups = _like_steps(values, of_kind, max_points)
    labels = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
    # The step of an iteration that follows another is timed from its completion; the first fills the queues.
    away = [np.abs(values[group] - values[group].mean()) for group in groups]
    rows = np.array([g[np.lexsort((g, off, ~is_timed[g]))[0]] for g, off in zip(groups, away, strict=True)])
    weights = np.bincount(labels).astype(np.float64)
    spreads = relative_spreads(values[np.concatenate(groups)], labels)
    known = float(values[outliers.rows].sum())
    total = float(weights @ values[rows]) + known
    unseen = np.sqrt(np.maximum(1 - 1 / weights, 0.0))
    half = NormalDist().inv_cdf((1 + _CONFIDENCE) / 2) * float(
        np.linalg.norm(weights * values[rows] * spreads * unseen)
    )
    run = RunShare(
        len(table), float(values.sum()), *(total, max(total - half, known), total + half), _outliers(table, outliers)
    )
    order = np.argsort(rows)
    return ChosenIterations(
        tuple(table.iteration[rows[order]].tolist()),
        tuple(weights[order].tolist()),
        f"the typical one of each of {len(rows)} groups of like steps",
        run,
        tuple(SampledStep(float(group), float(spreads[group])) for group in order.tolist()),
    )


def _like_steps(values: Floats, groups: list[Ints], most: int) -> list[Ints]:
    """Return at most `most` groups of rows: the given ones, cut where that leaves the least variance of the values.

    The groups with the least time are joined if there are too many (regression tree: Breiman and others, 1984).
    """
    groups = sorted(groups, key=lambda rows: (-float(values[rows].sum()), int(rows[0])))
    groups = [*groups[: most - 1], np.concatenate(groups[most - 1 :])] if len(groups) > most else groups
    groups = [rows[np.lexsort((rows, values[rows]))] for rows in groups]
    while len(groups) < most:  # a Python loop over points
        cuts = [_best_cut(values[rows]) for rows in groups]
        widest = int(np.argmax([gain for gain, _ in cuts]))
        gain, at = cuts[widest]
        if gain <= _LEAST_CUT * float(np.square(values[groups[widest]]).sum()):
            break
        groups[widest : widest + 1] = [groups[widest][:at], groups[widest][at:]]
    return groups


def _best_cut(values: Floats) -> tuple[float, int]:
    """Return by how much a cut of ascending values lowers the sum of squares within, and the rows before the cut."""
    before = np.arange(1, len(values))
    if not len(before):
        return 0.0, 0
    sums, mean = np.cumsum(values)[:-1], float(values.mean())
    gains = (sums - before * mean) ** 2 * (1 / before + 1 / before[::-1])
    at = int(np.argmax(gains))
    return float(gains[at]), at + 1


def _is_timed(table: IterationTable, steps: StepTimes) -> Bools:
    """Return whether each iteration follows another and takes time."""
    timed = steps.iteration[steps.follows & (steps.step_ns > 0)]
    return np.isin(table.iteration, timed)


def _outliers(table: IterationTable, outliers: Outliers) -> tuple[RunOutlier, ...]:
    values = table.statistic("duration")
    return tuple(
        RunOutlier(int(table.iteration[row]), float(values[row]), reason, table.file(row))
        for row, reason in zip(outliers.rows.tolist(), outliers.reasons, strict=True)
    )
