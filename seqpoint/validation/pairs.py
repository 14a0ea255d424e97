"""Score what-ifs on jobs that ran before and after one change: predicted against measured gains.

PATH holds any of these:

\b
- a recording of pairs (`python -m benchmarks.gpu --parts h`): pairs.parquet, runs.parquet, and traces;
- traces whose names differ in one change: a device (h100/bert.json.gz and mi300/bert.json.gz), a data type (bert_fp32
  and bert_bf16; base and mixed), a batch (gpt_b8 and gpt_b16, or folders batch_8 and batch_16 with a file an
  iteration), or a length (gpt_n512 and gpt_n1024);
- steps.parquet and epochs/ of a recording, with the times of the same jobs without a profiler;
- Parquet tables of operators of models, of matrix products and of collectives on several devices.

A gain is the time of a step before the change over that after. It is measured without a profiler if PATH tells it, and
else as traced. Traces without a partner are named. Without PATH, the recordings that the project ships are read.

\b
seqpoint validate pairs
seqpoint validate pairs traces/ --json
"""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profilers.devices.catalogue import DTYPES
from profilers.errors import InvalidInputError, SeqPointError
from profilers.files import is_folder
from profilers.trace.arrays import Floats, Ints
from profilers.trace.kernels import CLASSES
from profilers.trace.quality import quality_notes
from profilers.trace.steps import job_steps, step_times
from profilers.trace.trace import Trace
from replay.calibration.parameters import Parameters
from replay.calibration.tables import refuse_file
from replay.costs.host import recording_cost
from replay.from_trace import build_graph, index_trace
from replay.from_trace.host_causes import HostCauses, host_causes
from replay.graph.graph import hardware_of
from replay.what_ifs import parse_what_if
from replay.workloads import InferenceJob, Transformer, inference_parts
from seqpoint.graphs import all_iterations
from seqpoint.notebook import Table, table_of
from seqpoint.outliers import find_outliers
from seqpoint.projecting import ProjectOptions, TraceProjection, project_trace
from seqpoint.validation.changes import (
    TABLES,
    IntervalScore,
    coverage_rows,
    coverage_table,
    interval_table,
    score_change,
    summaries,
    trace_changes,
)
from seqpoint.validation.job_pairs import RECORDING, JobPair, JobRun, read_pairs, table_of_recording
from seqpoint.validation.replay import load_recording, trace_source
from seqpoint.validation.suites import (
    Suite,
    SuiteOptions,
    SuiteResult,
    ValidationRow,
    followed,
    layout_of,
    table_columns,
)

#: Draws of the parameters for an interval.
_DRAWS = 32
#: Error from which a cause is looked for, and share of it that has to go with the cause.
_EXPLAINED, _SHARE = 0.1, 0.5
#: Beginning of a what-if that only pairs have: the bound of a resource.
_BOUND = "bound:"
#: Beginning of another: a step of serving, predicted without a trace. It names the phase; layers, hidden size, heads
#: and vocabulary of the model; and sequences and tokens of the steps before and after.
_PREDICT = "predict:"
_SERVED = re.compile(r"predict:(prefill|decode):(\d+)x(\d+)x(\d+)x(\d+):(\d+)x(\d+)->(\d+)x(\d+)")
_GEMM, _TYPES = CLASSES.index("gemm"), tuple(DTYPES)
#: Folder of the runs that the cost of a recording was fitted on.
_FITTED = "datasets/measured/h100/"
#: What-ifs that a trace without a device can have, and the largest gain that is scored.
_OF_HOST, _MOST = ("scale_host", "bound:host", "bound:loader", RECORDING), 1e6
_INSIDE = {None: "", True: "yes", False: "NO"}
#: Names that a message shows.
_SHOWN = 5
#: Traces that are kept in memory: most are of several pairs.
_KEPT = 8
#: Source of the intervals of gains.
_GAIN = "gain"


@dataclass(frozen=True)
class Gain:
    """A predicted and a measured gain: the time of a step before a change over that after.

    Parameters
    ----------
    change, case, what_if : str
        Kind of the change, names of the runs, and the what-if.
    measured, traced : float, optional
        Gain without a profiler, and between the traces; None if unknown.
    predicted, low, high : float
        Predicted gain with its 90 % interval; NaN if the what-if does not apply.
    reason : str
        Why the what-if does not apply.
    cause : str
        Cause of an error above 10 %.
    fitted : bool
        Whether what predicts it was fitted to this pair.
    """

    change: str
    case: str
    what_if: str
    measured: float | None
    traced: float | None
    predicted: float = math.nan
    low: float = math.nan
    high: float = math.nan
    reason: str = ""
    cause: str = ""
    fitted: bool = False

    @property
    def reference(self) -> float:
        """The measured gain: without a profiler if it is known, else as traced."""
        return next((gain for gain in (self.measured, self.traced) if gain is not None), math.nan)

    @property
    def error(self) -> float:
        """``|predicted / measured - 1|``; for a bound, how far the gain exceeds it."""
        if self.what_if.startswith(_BOUND):
            return max(self.reference / self.predicted - 1, 0.0)
        return abs(self.predicted / self.reference - 1)

    @property
    def scored(self) -> bool:
        """Whether there is a prediction, and a measured gain."""
        return not (math.isnan(self.predicted) or math.isnan(self.reference))

    @property
    def inside(self) -> bool | None:
        """Whether the interval holds the measured gain; None without an interval."""
        return None if math.isnan(self.low) else self.low <= self.reference <= self.high

    def interval(self) -> IntervalScore:
        """Return the score with gains in the place of times, whose errors and widths are ratios all the same."""
        gains = (self.reference, self.predicted, self.low, self.high)
        return IntervalScore(f"gain, {self.change}", self.case, self.what_if, *gains, 1.0, _GAIN)

    def row(self) -> ValidationRow:
        """Return the row of the validation."""
        source = "without a profiler" if self.measured is not None else "as traced"
        low, high = (None if math.isnan(end) else end for end in (self.low, self.high))
        return ValidationRow(
            f"{self.change}: {self.case}, {self.what_if}", self.reference, self.predicted, self.error,
            fitted=self.fitted, source=source, low=low, high=high,
        )  # fmt: skip

    def content(self) -> dict[str, object]:
        """Return the score as JSON; numbers that are unknown are None."""
        known = asdict(self) | ({"error": self.error, "inside": self.inside} if self.scored else {})
        return {"error": None, "inside": None} | {
            key: None if value != value else value for key, value in known.items()
        }


@dataclass(frozen=True)
class _TracedRun:
    """A trace with times of a step: means over its iterations, ns.

    Parameters
    ----------
    trace : Trace
        The trace.
    step_ns, host_ns, kernel_ns : float
        Time of a step, time of its host without waiting for the device, and time in kernels. The warm-up and other
        outliers are left out.
    launches : float
        Kernels of a step.
    """

    trace: Trace
    step_ns: float
    host_ns: float
    kernel_ns: float
    launches: float

    def warnings(self) -> list[str]:
        """Return what is wrong with the data of the trace."""
        trace = self.trace
        rows = {name: table.num_rows for name, table in trace.tables.items()}
        wrong = [note for note in quality_notes(trace.meta.quality, rows) if note.severity == "warning"]
        return [f"{', '.join(trace.meta.sources[:1])}: {note.count} {note.n}: {note.consequence}" for note in wrong]


#: Returns the trace of a run with its times.
_Load = Callable[[JobRun], _TracedRun]


def _load(options: SuiteOptions, files: tuple[Path, ...]) -> _TracedRun:
    """Read a trace; one without marks is one iteration, and several files are an iteration each."""
    trace = load_recording(files, "file" if len(files) > 1 else options.iterations)
    if not len(trace.iterations) and not is_folder(files[0]):
        trace = load_recording(files, "whole")
    steps = job_steps(step_times(trace))
    if not len(steps):
        raise InvalidInputError(f"{files[0]}: no iteration")
    regular = find_outliers(steps.step_ns.astype(float), _lengths(trace, steps.iteration)).others(len(steps))
    count, step_ns = len(regular), float(steps.step_ns[regular].mean())
    host_ns = max((_host_ns(causes) for causes in host_causes(index_trace(trace))), default=step_ns)
    of_regular = pc.is_in(trace.kernels["iteration"], pa.array(steps.iteration[regular], pa.int32()))
    kernels = trace.kernels["dur_ns"].filter(of_regular).drop_null().to_numpy()
    # Iterations that do not follow each other have pauses between them, which are no work of a step.
    return _TracedRun(trace, step_ns, min(host_ns, step_ns), float(kernels.sum()) / count, len(kernels) / count)


def _lengths(trace: Trace, numbers: Ints) -> Floats | None:
    """Return the sequence lengths of some iterations, or None if one is unknown."""
    columns = (trace.iterations[name].to_pylist() for name in ("iteration", "sequence_length"))
    known = dict(zip(*columns, strict=True))
    lengths = [known[number] for number in numbers.tolist()]
    return None if None in lengths else np.array(lengths, dtype=np.float64)


def _host_ns(causes: HostCauses) -> float:
    """Return the time of a step on the host of a rank, without waits for the device."""
    waits = sum(causes.cause_ns[name] for name in ("queue", "synchronisation", "polling"))
    return (causes.elapsed_ns - waits) / max(causes.steps, 1)


def score_pair(pair: JobPair, load: _Load, parameters: Parameters) -> Gain:
    """Predict the gain of a pair from the trace before the change.

    Parameters
    ----------
    pair : JobPair
        The pair.
    load : callable
        Returns the trace of a run.
    parameters : Parameters
        Parameters of the predictions.

    Raises
    ------
    InvalidInputError
        A trace has no iteration, or does not say what the change is: its device or data type.
    """
    gain = Gain(pair.change, pair.case, pair.what_if, None, None)
    if pair.what_if == RECORDING:
        return _recording_gain(pair, gain, load, parameters)
    if missing := [run.name for run in (pair.before, pair.after) if not run.files]:
        return replace(gain, measured=_measured(pair, ()), reason=f"no trace of {', '.join(missing)}")
    before, after = load(pair.before), load(pair.after)
    gain = replace(
        gain,
        what_if=pair.what_if or _what_if_between(pair, (before.trace, after.trace), parameters),
        measured=_measured(pair, before.trace.iterations["sequence_length"].to_pylist()),
        traced=before.step_ns / after.step_ns,
    )
    if pair.epochs is not None:
        return _epoch_gain(pair, gain, before.trace, parameters)
    if pair.what_if.startswith(_PREDICT):
        return _served_gain(gain, before.trace, parameters)
    if not before.launches and not gain.what_if.startswith(_OF_HOST):
        return replace(gain, reason="the trace has no kernels of a device")
    try:
        projected = _projected(before.trace, gain.what_if)
    except SeqPointError as error:
        return replace(gain, reason=str(error))
    gain = _predicted(gain, projected)
    return replace(gain, cause=_cause(gain, projected, before, after)) if _unexplained(gain) else gain


def _measured(pair: JobPair, lengths: Sequence[int | None]) -> float | None:
    """Return the gain without a profiler over iterations of some lengths, or None if it is not known."""
    before, after = pair.before.step_ns, pair.after.step_ns
    if None in before and None in after:
        return before[None] / after[None]
    if not lengths or not {*lengths} <= before.keys() & after.keys():
        return None
    return sum(before[length] for length in lengths) / sum(after[length] for length in lengths)


def _what_if_between(pair: JobPair, traces: tuple[Trace, Trace], parameters: Parameters) -> str:
    """Return the what-if that leads from one trace to another of another device or data type."""
    if pair.change == "device":
        old, new = (hardware_of(trace).device for trace in traces)
        if old is None or new is None or old == new:
            raise InvalidInputError(f"{pair.case}: no pair of two known devices")
        return f"scale_device:{new.name}"
    types = [_product_type(trace, parameters) for trace in traces]
    if None in types or types[0] == types[1]:
        raise InvalidInputError(f"{pair.case}: the traces do not tell two data types of products")
    return f"change_dtype:{types[0]}->{types[1]}"


def _product_type(trace: Trace, parameters: Parameters) -> str | None:
    """Return the data type in which most of the time of matrix products is spent."""
    tasks = build_graph(index_trace(trace), all_iterations(trace)[0], parameters=parameters).tasks
    rows = (tasks.class_ == _GEMM) & (tasks.dtype >= 0)
    times = np.bincount(tasks.dtype[rows], tasks.duration_ns[rows], len(_TYPES))
    return _TYPES[int(times.argmax())] if rows.any() else None


def _projected(trace: Trace, what_if: str, iterations: Sequence[int] = (), draws: int = _DRAWS) -> TraceProjection:
    """Project a what-if, or nothing for the bound of a resource, as `seqpoint project` does."""
    what_ifs = [] if what_if.startswith(_BOUND) else [parse_what_if(what_if)]
    return project_trace(trace, what_ifs, ProjectOptions(iterations=iterations, draws=draws, jobs=1))


def _predicted(gain: Gain, projected: TraceProjection) -> Gain:
    if gain.what_if.startswith(_BOUND):
        resource = gain.what_if.removeprefix(_BOUND)
        bound = projected.projection.limits.bound.get(resource)
        if bound is None:
            return replace(gain, reason=f"the trace has no {resource} that takes time")
        return replace(gain, predicted=bound, low=1.0, high=bound)
    row = projected.rows[0]
    if not row.applied or row.speedup > _MOST:
        return replace(gain, reason=row.reason or "nothing of the step is left")
    return replace(gain, predicted=row.speedup, low=row.low, high=row.high)


def _unexplained(gain: Gain) -> bool:
    return gain.scored and gain.error > _EXPLAINED


def _epoch_gain(pair: JobPair, gain: Gain, trace: Trace, parameters: Parameters) -> Gain:
    """Predict the gain of an epoch from single iterations, by interpolation between their lengths."""
    assert pair.epochs is not None
    _, before_ns, after_ns = pair.epochs
    numbers, lengths = (trace.iterations[name].to_pylist() for name in ("iteration", "sequence_length"))
    rows = [_projected(trace, gain.what_if, [number]).rows[0] for number in numbers]
    unknown = "an iteration has no length" if None in lengths else ""
    if refused := next((row.reason for row in rows if not row.applied), unknown):
        return replace(gain, reason=refused)
    predicted, low, high = (
        _over_epoch(pair, lengths, [getattr(row, name) for row in rows]) for name in ("speedup", "low", "high")
    )
    measured = float(before_ns.sum() / after_ns.sum())
    gain = replace(gain, measured=measured, traced=None, predicted=predicted, low=low, high=high)
    return replace(gain, cause=_epoch_cause(pair, gain, trace, parameters)) if _unexplained(gain) else gain


def _over_epoch(pair: JobPair, lengths: Sequence[int], gains: Sequence[float]) -> float:
    """Return the gain of an epoch from gains of some lengths."""
    assert pair.epochs is not None
    of_epoch, before_ns, _ = pair.epochs
    order = np.argsort(lengths)
    of_each = np.interp(of_epoch, np.asarray(lengths)[order], np.asarray(gains)[order])
    return float(before_ns.sum() / (before_ns / of_each).sum())


def _epoch_cause(pair: JobPair, gain: Gain, trace: Trace, parameters: Parameters) -> str:
    """Return what the error of an epoch goes with: the recording, or the host after the change, or both.

    The host is that of the shortest length, whose steps were timed on both sides without a profiler. If neither takes
    half of the error away, the gain of those steps may be as predicted.
    """
    cost = recording_cost(trace, parameters)
    kept = 1 - cost.share(parameters.values) if cost else 1.0
    shortest = min((length for length in pair.before.step_ns if length), default=0)
    host = pair.after.step_ns.get(shortest, 1.0) / pair.before.step_ns.get(shortest, 1.0)
    texts = {
        (kept, 1.0): "the recording, whose cost for the host is taken off",
        (1.0, host): f"the host works {host:.2f} times as long at {shortest} tokens",
    }
    texts[kept, host] = " and ".join(texts.values())
    numbers, lengths = (trace.iterations[name].to_pylist() for name in ("iteration", "sequence_length"))
    for (before, after), text in texts.items():
        what_ifs = (f"scale_host:{before:.6g}", f"{gain.what_if}+scale_host:{before * after:.6g}")
        times = [[_step_ns(trace, what_if, number) for what_if in what_ifs] for number in numbers]
        told = _over_epoch(pair, lengths, [old / new for old, new in times])
        if abs(told / gain.reference - 1) <= gain.error * _SHARE:
            return f"{text}; with that, the gain is {told:.2f}"
    apart = _measured(pair, lengths) or math.inf
    is_noise = abs(gain.predicted / apart - 1) <= gain.error * _SHARE
    return f"the host varies: steps of the same lengths, timed apart, gained {apart:.2f}" if is_noise else "unknown"


def _step_ns(trace: Trace, what_if: str, number: int) -> float:
    """Return the projected time of an iteration; that of the replay if the what-if changes nothing."""
    projection = _projected(trace, what_if, [number], draws=1).projection
    return projection.rows[0].projected_ns if projection.rows[0].applied else projection.baseline_ns


def _served_gain(gain: Gain, trace: Trace, parameters: Parameters) -> Gain:
    """Predict the gain of a step of serving from the sizes of the model alone, as `seqpoint synthesize` does."""
    device, sizes = hardware_of(trace).device, _SERVED.fullmatch(gain.what_if)
    if sizes is None or device is None:
        return replace(gain, reason="the trace does not name its device" if sizes else "not PHASE:MODEL:OLD->NEW")
    layers, hidden, heads, vocabulary, *shapes = map(int, sizes.groups()[1:])
    model = Transformer("served", "megatron", layers, hidden, heads, 4 * hidden, vocabulary)
    seconds = []
    for batch, length in (shapes[:2], shapes[2:]):
        parts = inference_parts(InferenceJob(model, sizes[1], batch, length), device, parameters=parameters)
        seconds.append(sum(count * sum(each for _, each in steps) for _, steps, count in parts))
    return replace(gain, predicted=seconds[0] / seconds[1])


def _recording_gain(pair: JobPair, gain: Gain, load: _Load, parameters: Parameters) -> Gain:
    """Predict what a recording costs: the time of a step without a profiler over that of the trace."""
    if not pair.after.files:
        return replace(gain, reason=f"no trace of {pair.after.name}")
    traced = load(pair.after)
    lengths = traced.trace.iterations["sequence_length"].to_pylist()
    steps = pair.before.step_ns
    if None not in steps and not {*lengths} <= steps.keys():
        return replace(gain, reason="no times without a profiler")
    without_ns = float(np.mean([steps[length if None not in steps else None] for length in lengths]))
    is_fitted = _FITTED in pair.after.files[0].resolve().as_posix()
    gain = replace(gain, measured=without_ns / traced.step_ns, fitted=is_fitted)
    if (cost := recording_cost(traced.trace, parameters)) is None:
        return replace(gain, predicted=1.0, low=0.95, high=1.0)
    shares = (cost.share(parameters.values), *cost.range(parameters))
    rows = [_projected(traced.trace, f"scale_host:{1 - share:.6g}", draws=1).rows[0] for share in shares]
    predicted, high, low = (1 / row.speedup if row.applied else 1.0 for row in rows)
    gain = replace(gain, predicted=predicted, low=low, high=high)
    if not _unexplained(gain):
        return gain
    each_us = (traced.step_ns - without_ns) / max(cost.operators, 1.0) / 1e3
    ours_us = shares[0] * traced.host_ns / max(cost.operators, 1.0) / 1e3
    text = f"each of {cost.operators:,.0f} operators costs {each_us:.1f} us as measured, {ours_us:.1f} as assumed"
    return replace(gain, cause=text)


def _cause(gain: Gain, projected: TraceProjection, before: _TracedRun, after: _TracedRun) -> str:
    """Return what an error goes with: the recording, the host or the kernels of the run after the change.

    The first is the cause if the gain between the traces is predicted twice as well. The others are put into the
    projection as the trace after the change has them: a cause takes at least half of the error against the gain between
    the traces away.
    """
    if gain.what_if.startswith(_BOUND) or not gain.traced:
        return "unknown"
    error = abs(gain.predicted / gain.traced - 1)
    if gain.measured is not None and error <= gain.error * _SHARE:
        return f"the recording: as traced, the gain is {gain.traced:.2f}"
    least = error * _SHARE
    row = projected.rows[0]
    host = after.host_ns / before.host_ns
    kernels = (
        (after.kernel_ns / before.kernel_ns) / (row.device_after_ns / row.device_before_ns) if before.kernel_ns else 1.0
    )
    texts = {
        f"+scale_host:{host:.4g}": f"the host of the trace works {host:.2f} times as long ({before.launches:,.0f} -> "
        f"{after.launches:,.0f} kernels)",
        f"+scale_kernels:all:{kernels:.4g}": f"kernels take {kernels:.2f} times as long as predicted",
    }
    texts["".join(texts)] = " and ".join(texts.values())
    remaining = {text: _error_with(gain, what_if, before.trace) for what_if, text in texts.items()}
    text = min(remaining, key=lambda each: (remaining[each] > least, list(remaining).index(each)))
    return (
        f"{text}; with that, the gain as traced ({gain.traced:.2f}) is met to {100 * remaining[text]:.0f} %"
        if remaining[text] <= least
        else "unknown"
    )


def _error_with(gain: Gain, more: str, trace: Trace) -> float:
    """Return the error of the gain between traces if a projection is told more."""
    assert gain.traced is not None
    try:
        row = _projected(trace, gain.what_if + more, draws=1).rows[0]
    except SeqPointError:
        return math.inf
    return abs(row.speedup / gain.traced - 1) if row.applied else math.inf


@dataclass(frozen=True)
class _Sources:
    """Pairs of runs, the names of traces without a partner, and tables with their layouts."""

    pairs: Sequence[JobPair]
    alone: Sequence[str]
    tables: Sequence[tuple[str, Path]]


def _source(file: Path) -> Path | None:
    """Return a table of a known layout, or a trace."""
    if table_of_recording(file) or _layout(file):
        return file
    return None if table_columns(file) else trace_source(file)


def _layout(file: Path) -> str:
    columns = () if is_folder(file) else table_columns(file)
    return layout_of(columns, {name: needed for name, (needed, _) in TABLES.items()})


def _read(sources: Sequence[Path], options: SuiteOptions) -> _Sources:
    """Sort sources into tables of measurements, and pairs of runs."""
    tables = [(layout, file) for file in sources if (layout := _layout(file))]
    pairs, alone = read_pairs([file for file in sources if not _layout(file)])
    return _Sources(pairs, alone, tables)


def _scored(sources: _Sources, options: SuiteOptions) -> SuiteResult:
    """Score every pair of runs, and every change that the tables hold."""
    progress, parameters = options.progress("projecting"), options.parameters
    scores, gains, notes = list[IntervalScore](), list[Gain](), list[str]()
    for layout, file in followed(sources.tables, progress, lambda table: table[1].name):
        scores += [score for change in TABLES[layout][1](file) for score in score_change(change, parameters)]
    load_files = lru_cache(_KEPT)(partial(_load, options))

    def load(run: JobRun) -> _TracedRun:
        return load_files(run.files)

    for pair in followed(sources.pairs, progress, lambda each: each.case):
        try:
            gains.append(score_pair(pair, load, parameters))
            scores += _kernel_scores(pair, load, parameters)
            notes += [text for run in (pair.before, pair.after) if run.files for text in load(run).warnings()]
        except InvalidInputError as error:
            notes.append(str(error))
        except SeqPointError as error:
            refuse_file(pair.case, error)
    if sources.alone:
        more = f" and {len(sources.alone) - _SHOWN} more" if len(sources.alone) > _SHOWN else ""
        notes.append(f"traces without a partner: {', '.join(sources.alone[:_SHOWN])}{more}")
    if not (scores or gains):
        raise InvalidInputError(f"no pair of measurements to compare; {'; '.join(notes)}")
    of_what_ifs = [gain for gain in gains if gain.scored and not gain.what_if.startswith((_BOUND, _PREDICT))]
    scores += [gain.interval() for gain in of_what_ifs]
    lines = summaries(scores)
    details = {
        "pairs": [gain.content() for gain in gains],
        "scores": [score.content() for score in scores if score.source != _GAIN],
        "coverage": lines,
        "without_partner": list(sources.alone),
    }
    tables = [
        *_gain_tables(gains),
        *([coverage_table(lines), interval_table([each for each in scores if each.source != _GAIN])] if scores else []),
    ]
    rows = [gain.row() for gain in gains if gain.scored]
    rows += [score.row for score in scores if score.source != _GAIN] + coverage_rows(scores)
    return SuiteResult(rows, details, tables, scores, list(dict.fromkeys(notes)))


def _kernel_scores(pair: JobPair, load: _Load, parameters: Parameters) -> Iterator[IntervalScore]:
    """Yield the kernel time of a step and of its classes on another device."""
    if pair.change == "device":
        traces = {run.name: load(run).trace for run in (pair.before, pair.after)}
        yield from score_change(next(trace_changes(pair.case, traces, parameters)), parameters)


def _gain_tables(gains: Sequence[Gain]) -> Iterator[Table]:
    """Yield the table of gains, those of what-ifs that do not apply, and the causes of errors."""
    columns = {
        "change~": "{g.change}", "runs~": "{g.case}", "what-if~": "{g.what_if}", "measured": "{g.measured:.3f}",
        "traced": "{g.traced:.3f}", "ours": "{g.predicted:.3f}", "low": "{g.low:.3f}", "high": "{g.high:.3f}",
        "inside~": "{inside}", "error %": "{g.error:.1%}",
    }  # fmt: skip
    scored = [{"g": gain, "inside": _INSIDE[gain.inside]} for gain in gains if gain.scored]
    yield table_of("Gains: the step before a change over that after", columns, scored)
    if causes := [gain for gain in gains if gain.cause]:
        names = {"runs~": "{g.case}", "what-if~": "{g.what_if}", "error %": "{g.error:.0%}", "cause~": "{g.cause}"}
        yield table_of("Causes of errors above 10 %", names, [{"g": gain} for gain in causes])
    if refused := [gain for gain in gains if not gain.scored]:
        reasons = {"change~": "{g.change}", "runs~": "{g.case}", "what-if~": "{g.what_if}", "why not~": "{g.reason}"}
        yield table_of("Not predicted", reasons, [{"g": gain} for gain in refused])


SUITE = Suite(
    name="pairs",
    description=__doc__,
    needs="pair of measurements: a recording of pairs, traces before and after one change, or a table of operators",
    source=_source,
    read=_read,
    score=_scored,
    options=("iterations",),
    shipped="measured",
)
