"""Count how often the 90 % intervals of projections hold what was measured.

PATH holds measurements before and after a change that a what-if expresses: traces of one job on two devices, whose file
names differ in the device alone (h100/bert.json.gz and mi300/bert.json.gz), and Parquet tables of the operators of
models, of matrix products and of collectives. Each kind of comparison is counted apart.

\\b
seqpoint validate intervals traces/
seqpoint validate intervals traces/ --json
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import permutations
from operator import itemgetter
from pathlib import Path

import numpy as np

from profilers.errors import InvalidInputError
from profilers.files import is_folder
from profilers.trace.arrays import Floats
from profilers.trace.steps import job_steps, step_times
from profilers.trace.trace import Trace
from replay.calibration.parameters import Parameters
from replay.costs.shipped import load_parameters
from replay.graph.graph import hardware_of
from replay.what_ifs import scale_device
from seqpoint.notebook import Table, table_of
from seqpoint.projecting import ProjectOptions, project_trace
from seqpoint.validation.pairs import TABLES, MeasuredChange, job_of, trace_changes
from seqpoint.validation.replay import load_recording, trace_source
from seqpoint.validation.rows import ValidationRow, summary_row
from seqpoint.validation.suites import Suite, SuiteOptions, SuiteResult, followed, table_columns

#: Nominal coverage of the intervals, and the coverage that is accepted.
NOMINAL, LEAST, MOST = 0.9, 0.85, 0.95
#: Draws of the parameters for each interval.
_DRAWS = 100
_STEP_DRAWS = 32
#: Least number of intervals of a kind whose coverage has a limit.
_COUNTED = 20
#: Ratios closer to 1 than this are rounding.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class IntervalScore:
    """A projected time with its interval, and the measured time.

    Parameters
    ----------
    kind : str
        Kind of the comparison.
    case : str
        Job, or group of operators.
    what_if : str
        The change.
    measured_ns, projected_ns, low_ns, high_ns : float
        Times after the change, in ns.
    before_ns : float
        Measured time before the change.
    source : str
        Files and devices.
    """

    kind: str
    case: str
    what_if: str
    measured_ns: float
    projected_ns: float
    low_ns: float
    high_ns: float
    before_ns: float
    source: str = ""

    @property
    def inside(self) -> bool:
        """Whether the interval holds the measured time."""
        return self.low_ns <= self.measured_ns <= self.high_ns

    @property
    def width(self) -> float:
        """High end over low end."""
        return self.high_ns / max(self.low_ns, 1e-9)

    @property
    def needed(self) -> float:
        """Factor by which the interval must be widened, as a power of ratios, until it holds the measured time.

        Examples
        --------
        >>> IntervalScore("step", "job", "scale_device:X", 150.0, 100.0, 80.0, 125.0, 90.0).needed
        1.817059...
        """
        off = float(np.log(self.measured_ns / self.projected_ns))
        end = self.high_ns if off > 0 else self.low_ns
        return abs(off) / max(abs(float(np.log(end / self.projected_ns))), _ROUNDING)

    @property
    def row(self) -> ValidationRow:
        """The row of the validation."""
        error = abs(self.projected_ns - self.measured_ns) / self.measured_ns
        return ValidationRow(
            f"{self.kind}: {self.case}, {self.what_if}", self.measured_ns, self.projected_ns, error,
            source=self.source, low=self.low_ns, high=self.high_ns,
        )  # fmt: skip

    def content(self) -> dict[str, object]:
        """Return the score as JSON."""
        return asdict(self) | {"inside": self.inside, "width": self.width, "needed": self.needed}


def score_change(change: MeasuredChange, parameters: Parameters, draws: int = _DRAWS) -> list[IntervalScore]:
    """Project each group of work of a change, and compare with what was measured.

    The tasks run one after another, so that the time of a group is the sum of its durations.

    Parameters
    ----------
    change : MeasuredChange
        Work before and after the change.
    parameters : Parameters
        Nominal parameters with their ranges.
    draws : int
        Number of draws of the parameters.
    """
    random = np.random.default_rng(0)
    ours = _changed(change, parameters)
    drawn = [parameters.drawn(random) for _ in range(draws)]
    samples = np.array([_changed(change, draw) * (1 + draw["replay_error"]) for draw in drawn])
    before = change.times_ns(change.graphs)
    scores = [
        _score(change.kind, _case(change.job, name), change, (float(old), float(new), float(time), sample))
        for name, old, new, time, sample in zip(change.names, before, change.measured_ns, ours, samples.T, strict=True)
        if name and new > 0 and time > 0
    ]
    if change.total_kind:
        sums = (float(before.sum()), float(change.measured_ns.sum()), float(ours.sum()), samples.sum(axis=1))
        scores.append(_score(change.total_kind, change.job, change, sums))
    return scores


def _changed(change: MeasuredChange, parameters: Parameters) -> Floats:
    return change.times_ns([change.what_if(graph, parameters) for graph in change.graphs])


def _case(job: str, name: str) -> str:
    return ", ".join(dict.fromkeys(text for text in (job, name) if text))


def _score(kind: str, case: str, change: MeasuredChange, times: tuple[float, float, float, Floats]) -> IntervalScore:
    before, measured, ours, samples = times
    low, high = np.quantile(samples, ((1 - NOMINAL) / 2, (1 + NOMINAL) / 2)).tolist()
    return IntervalScore(kind, case, change.what_if.name, measured, ours, low, high, before, change.source)


def score_steps(job: str, before: tuple[str, Trace], after: tuple[str, Trace]) -> IntervalScore:
    """Project the step times of a trace on the device of another trace of the job, as `seqpoint project` does.

    Parameters
    ----------
    job : str
        Name of the job.
    before, after : (str, Trace)
        Name of the file, and the trace.

    Raises
    ------
    InvalidInputError
        A trace does not name its device.
    """
    device = hardware_of(after[1]).device
    if device is None:
        raise InvalidInputError(f"{after[0]}: the trace does not say on which device it was recorded")
    numbers = sorted(set(before[1].iterations["iteration"].to_pylist()))
    options = ProjectOptions(iterations=numbers, draws=_STEP_DRAWS, jobs=1)
    projection = project_trace(before[1], [scale_device(device)], options).projection
    row, old = projection.rows[0], projection.baseline_ns
    measured = float(job_steps(step_times(after[1])).step_ns.sum())
    return IntervalScore(
        "step time", job, row.label, measured, row.projected_ns, old / row.high, old / row.low, old,
        f"{before[0]}, {after[0]}",
    )  # fmt: skip


def coverage(scores: Sequence[IntervalScore]) -> float:
    """Return the share of the intervals that hold what was measured."""
    return float(np.mean([score.inside for score in scores]))


def widening(scores: Sequence[IntervalScore]) -> float:
    """Return the factor, as a power of ratios, that makes the intervals hold 90 % of the measured times."""
    return float(np.quantile([score.needed for score in scores], NOMINAL))


def held_out_coverage(scores: Sequence[IntervalScore]) -> float:
    """Return the coverage of intervals that are widened by what the other jobs need."""
    inside = []
    for job in dict.fromkeys(score.case for score in scores):
        rest = [score for score in scores if score.case != job]
        factor = widening(rest) if rest else 1.0
        inside += [score.needed <= factor for score in scores if score.case == job]
    return float(np.mean(inside))


def summaries(scores: Sequence[IntervalScore]) -> list[dict[str, object]]:
    """Return the coverage of each kind of comparison, and of all."""
    kinds: dict[str, list[IntervalScore]] = defaultdict(list)
    for score in scores:
        kinds[score.kind].append(score)
    return [
        {
            "kind": kind,
            "intervals": len(some),
            "jobs": len({score.case for score in some}),
            "coverage": coverage(some),
            "width": float(np.median([score.width for score in some])),
            "error": float(np.median([score.row.error for score in some])),
            "widening": widening(some),
            "held_out": held_out_coverage(some),
        }
        for kind, some in (*kinds.items(), ("all", list(scores)))
    ]


def interval_rows(scores: Sequence[IntervalScore]) -> list[ValidationRow]:
    """Return a row for each interval, then the coverage of each kind and of all."""
    rows = [score.row for score in scores]
    for line in summaries(scores):
        many = int(str(line["intervals"]))
        row = summary_row(
            f"coverage: {line['kind']}", float(str(line["coverage"])), LEAST, least=True, source=f"{many} intervals"
        )
        rows.append(row if many >= _COUNTED else replace(row, limit=None, least=False))
    return rows


def _source(file: Path) -> Path | None:
    """Return a table of a known layout, or a trace whose name, or that of its folder, names a device."""
    if file.is_file() and _table_reader(file):
        return file
    trace = trace_source(file)
    return trace if trace is not None and job_of(trace)[1] else None


def _table_reader(file: Path) -> str | None:
    columns = set(table_columns(file))
    return next((name for name, (needed, _) in TABLES.items() if set(needed) <= columns), None)


@dataclass(frozen=True)
class _Sources:
    """Tables with their layouts, the files of each job that was traced on several devices, and remarks."""

    tables: Sequence[tuple[str, Path]]
    jobs: Sequence[tuple[str, Sequence[Path]]]
    notes: Sequence[str]


def _read(sources: Sequence[Path], options: SuiteOptions) -> _Sources:
    """Sort sources into tables, and files of one job on several devices."""
    tables, jobs = [], defaultdict[str, list[Path]](list)
    for path in sources:
        if not is_folder(path) and (layout := _table_reader(path)):
            tables.append((layout, path))
        else:
            jobs[job_of(path)[0]].append(path)
    alone = [str(files[0].name) for files in jobs.values() if len(files) == 1]
    notes = [f"no second device of {', '.join(alone)}"] if alone else []
    return _Sources(tables, [(job, files) for job, files in jobs.items() if len(files) > 1], notes)


def _scored(sources: _Sources, options: SuiteOptions) -> SuiteResult:
    """Score every change that the sources hold."""
    progress, parameters = options.progress("projecting"), load_parameters()
    scores, notes = list[IntervalScore](), list(sources.notes)
    for layout, file in followed(sources.tables, progress, lambda table: table[1].name):
        changes = TABLES[layout][1](file)
        scores += [score for change in changes for score in score_change(change, parameters)]
    for job, files in followed(sources.jobs, progress, itemgetter(0)):
        try:
            scores += _trace_scores(job, files, options, parameters)
        except InvalidInputError as error:
            notes.append(str(error))
    if not scores:
        raise InvalidInputError(f"no pair of measurements to compare; {'; '.join(notes)}")
    lines = summaries(scores)
    details = {"scores": [score.content() for score in scores], "coverage": lines}
    return SuiteResult(interval_rows(scores), details, [_coverage_table(lines), _table(scores)], scores, notes)


def _trace_scores(
    job: str, files: Sequence[Path], options: SuiteOptions, parameters: Parameters
) -> Iterator[IntervalScore]:
    """Yield the scores of the traces of a job: steps, kernel time, and kernel time by class."""
    traces = {file.parent.name + "/" + file.name: _load(file, options) for file in files}
    for change in trace_changes(job, traces):
        yield from score_change(change, parameters)
    for before, after in permutations(traces.items(), 2):
        yield score_steps(job, before, after)


def _load(file: Path, options: SuiteOptions) -> Trace:
    """Read a trace; a trace without marks is one iteration."""
    trace = load_recording([file], options.iterations)
    return trace if len(trace.iterations) or is_folder(file) else load_recording([file], "whole")


def _coverage_table(lines: Sequence[dict[str, object]]) -> Table:
    """Return the table of coverage by kind of comparison."""
    columns = {
        "comparison~": "{kind}", "intervals": "{intervals}", "held %": "{coverage:.0%}",
        "high / low": "{width:.2f}", "error %": "{error:.0%}", "widen by": "{widening:.2f}",
        "held out %": "{held_out:.0%}",
    }  # fmt: skip
    return table_of("Coverage of 90 % intervals", columns, lines)


def _table(scores: Sequence[IntervalScore]) -> Table:
    """Return the table of intervals."""
    columns = {
        "comparison~": "{s.kind}", "case~": "{s.case}", "what-if~": "{s.what_if}", "measured": "{s.measured_ns:.0us}",
        "ours": "{s.projected_ns:.0us}", "low": "{s.low_ns:.0us}", "high": "{s.high_ns:.0us}", "inside~": "{inside}",
    }  # fmt: skip
    names = [{"s": score, "inside": "yes" if score.inside else "NO"} for score in scores]
    return table_of("Projected against measured times, in us", columns, names, verbose=True)


SUITE = Suite(
    name="intervals",
    description=__doc__,
    needs="pair of measurements: traces of one job on two devices, or a table of operators on several",
    source=_source,
    read=_read,
    score=_scored,
    options=("iterations",),
)
