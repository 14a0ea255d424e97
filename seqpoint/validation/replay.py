"""Replay every iteration of the traces in PATH, and compare with the measured step times.

Each file is a trace, and so is each .trace folder; tables of one profiler run that belong together are one trace.
Every iteration is replayed unchanged (its error has a limit), with every delay at the median of its kind, and
repeated until its period settles.

\b
seqpoint validate replay job.trace
seqpoint validate replay traces/ --json
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from operator import itemgetter
from pathlib import Path

import numpy as np

from profilers.errors import InvalidInputError, NotFoundError, SeqPointError, UnknownFormatError
from profilers.files import is_folder
from profilers.ingest.pipeline import IngestOptions, collect, open_trace
from profilers.ingest.recording import find_recordings
from profilers.readers import find_reader
from profilers.trace.activity import times_in_steps
from profilers.trace.arrays import ends, integers
from profilers.trace.steps import StepTimes, job_steps, step_times
from profilers.trace.trace import Trace
from replay.calibration.tables import refuse_file
from replay.engine.timeline import Timeline, replay
from replay.graph.graph import SYNC_EDGES, EdgeKind, KernelGraph
from replay.projection.windows import StepWindow
from seqpoint.graphs import all_iterations, replay_trace, step_windows
from seqpoint.notebook import Table, table_of
from seqpoint.validation.suites import Suite, SuiteOptions, SuiteResult, ValidationRow, followed

#: Limit of the error of a step that is replayed unchanged.
_LIMIT = 0.01


#: Edges whose lag is a delay between host and device, or between device tasks.
_DELAYS = (
    EdgeKind.STREAM,
    EdgeKind.LAUNCH,
    EdgeKind.GRAPH_LAUNCH,
    EdgeKind.WAIT,
    EdgeKind.WAIT_INFERRED,
    EdgeKind.SYNC,
    EdgeKind.SYNC_INFERRED,
)


def with_typical_lags(graph: KernelGraph) -> KernelGraph:
    """Return `graph` with every delay between host and device, and between device tasks, at the median of its kind.

    Replaying an unchanged graph returns the measured times because each edge has its measured delay. With the median
    of its kind instead, the error of the replay shows how much of the timeline order, launches, waits and durations
    explain. Nodes of a launched graph have a median of their own, since they follow each other faster. The time between
    host calls stays, since it is the program's work. So do the pauses for work that the recording does not hold
    (`EdgeKind.BACKLOG`, `EdgeKind.GRAPH_GAP`), which `Timeline.unexplained_ns` counts.
    """
    edges = graph.edges
    lag = edges.lag_ns.copy()
    is_node = np.zeros(len(graph.tasks), dtype=bool)
    is_node[edges.target[edges.kind == EdgeKind.GRAPH_LAUNCH]] = True
    for kind in _DELAYS:
        of_kind = (edges.kind == kind) & ~(edges.from_start & (edges.kind == EdgeKind.STREAM))
        # An edge without a delay only might bind, as from work that had ended before a synchronisation.
        of_kind &= edges.lag_ns > 0 if kind in SYNC_EDGES else of_kind
        for rows in (of_kind & is_node[edges.target], of_kind & ~is_node[edges.target]):
            if rows.any():
                lag[rows] = np.median(lag[rows])
    return replace(graph, edges=replace(edges, lag_ns=lag))


@dataclass(frozen=True)
class ReplayedTime:
    """A time as measured and as replayed.

    Parameters
    ----------
    measured_ns, replayed_ns : float
        The two times in ns.
    """

    measured_ns: float
    replayed_ns: float

    @property
    def error(self) -> float:
        """``|replayed - measured| / measured``; a measured time below 1 ns counts as 1 ns."""
        return abs(self.replayed_ns - self.measured_ns) / max(self.measured_ns, 1.0)


@dataclass(frozen=True)
class ReplayScore:
    """Errors of the replays of a trace. Errors are relative and have no sign.

    Parameters
    ----------
    trace : str
        Name of the trace.
    iterations : int
        Number of iterations.
    elapsed_ns : int
        Sum of the step times of the rank with the largest sum.
    latency_ns : int
        Sum of the latencies of all iterations, over all ranks.
    elapsed_error : float
        The sum of the step times against the time between the first and the last completion, worst rank.
    completion_worst : float
        Unchanged replay: the worst error of the completion of an iteration, as a share of the elapsed time.
    start_worst : float
        Unchanged replay: the worst error of the start of a kernel or copy, as a share of its step time.
    steps : tuple of ReplayedTime
        Unchanged replay: every step.
    typical : tuple of ReplayedTime
        Every window, with each delay at the median of its kind.
    steady : tuple of ReplayedTime
        Every window that can repeat, repeated until its period settles, against its measured step times.
    busy_measured, busy_replayed : float
        Share of the elapsed time during which devices work.
    unexplained : float
        Median share of waiting time that no recorded event explains.
    """

    trace: str
    iterations: int
    elapsed_ns: int
    latency_ns: int
    elapsed_error: float
    completion_worst: float
    start_worst: float
    steps: tuple[ReplayedTime, ...]
    typical: tuple[ReplayedTime, ...]
    steady: tuple[ReplayedTime, ...]
    busy_measured: float
    busy_replayed: float
    unexplained: float


def score_replay(name: str, trace: Trace) -> ReplayScore:
    """Replay every iteration of a trace.

    Parameters
    ----------
    name : str
        Name of the trace.
    trace : Trace
        The trace to replay.

    Raises
    ------
    InvalidInputError
        The trace has no iteration.
    """
    steps, iterations = step_times(trace), all_iterations(trace)
    elapsed_ns = max(int(steps.step_ns[steps.rank == rank].sum()) for rank in np.unique(steps.rank).tolist())
    late_ns, typical, steady = [], [], []
    for window in step_windows(trace, iterations):
        late_ns.append(_completion_error_ns(window))
        usual = replay(with_typical_lags(window.graph)).makespan_ns
        typical.append(ReplayedTime(window.graph.measured_ns, usual))
        if window.pattern is not None and window.measured_total_ns:
            steady.append(ReplayedTime(window.measured_total_ns, window.total_ns(window.steady())))
    replayed, busy = replay_trace(trace, iterations).steps, times_in_steps(trace, steps)
    total_ns = sum(step.measured_ns for step in replayed)
    busy_ns = sum(step.device_busy_share * step.measured_ns for step in replayed)
    return ReplayScore(
        trace=name,
        iterations=len(iterations),
        elapsed_ns=elapsed_ns,
        latency_ns=int(job_steps(steps).latency_ns.sum()),
        elapsed_error=_elapsed_error(trace, steps),
        completion_worst=max(late_ns) / max(elapsed_ns, 1),
        start_worst=max(step.start_error_ns / max(step.measured_ns, 1.0) for step in replayed),
        steps=tuple(ReplayedTime(step.measured_ns, step.replayed_ns) for step in replayed),
        typical=tuple(typical),
        steady=tuple(steady),
        busy_measured=sum(device.times.busy_ns for device in busy) / max(sum(device.elapsed_ns for device in busy), 1),
        busy_replayed=busy_ns / max(total_ns, 1.0) if busy else 0.0,
        unexplained=float(np.median([step.unexplained for step in replayed])),
    )


def _completion_error_ns(window: StepWindow) -> float:
    """Return the worst error of the completion of an iteration when a window is replayed unchanged."""
    graph, tasks = window.graph, window.graph.tasks
    measured = Timeline(graph, tasks.measured_start_ns, np.nan_to_num(tasks.measured_end_ns))
    return float(np.abs(replay(graph).completions_ns() - measured.completions_ns()).max(initial=0.0))


def _elapsed_error(trace: Trace, steps: StepTimes) -> float:
    """Return the relative error of the summed step times against the time between the first and the last completion.

    It is that of the worst rank. A completion is the last end of an iteration, or of an event in it, in the trace.
    """
    tables = (trace.iterations, trace.kernels, trace.copies)
    rank, iteration = (np.concatenate([integers(t, name) for t in tables]) for name in ("rank", "iteration"))
    end_ns = np.concatenate([ends(t) for t in tables])
    worst = 0.0
    for row in np.flatnonzero(steps.follows).tolist():
        run = steps.run_of(row)
        if run[-1] != row:
            continue
        chosen = (rank == steps.rank[row]) & (iteration >= steps.iteration[run[0]])
        first_ns, last_ns = (int(end_ns[chosen & (iteration <= steps.iteration[at])].max()) for at in (run[0], row))
        total_ns = int(steps.step_ns[run[1:]].sum())
        worst = max(worst, abs(total_ns - (last_ns - first_ns)) / max(last_ns - first_ns, 1))
    return worst


def median_error(times: Sequence[ReplayedTime]) -> float:
    """Return the median error; 0 without a time.

    Examples
    --------
    >>> median_error([ReplayedTime(100.0, 101.0), ReplayedTime(100.0, 100.0), ReplayedTime(100.0, 103.0)])
    0.01
    """
    return float(np.median([time.error for time in times])) if times else 0.0


def worst_error(times: Sequence[ReplayedTime]) -> float:
    """Return the largest error; 0 without a time."""
    return max((time.error for time in times), default=0.0)


def replay_rows(scores: Sequence[ReplayScore]) -> list[ValidationRow]:
    """Return for each trace the worst and the median step unchanged (with a limit), and repeated."""
    rows = []
    for score in scores:
        for what, times, limit in (("unchanged", score.steps, _LIMIT), ("repeated", score.steady, None)):
            if times:
                worst = max(times, key=lambda time: time.error)
                case, many = f"{score.trace}: {what}", f"of {len(times)}"
                rows.append(
                    ValidationRow(
                        f"{case}, worst {many}", worst.measured_ns, worst.replayed_ns, worst.error, limit,
                        source=score.trace,
                    )
                )  # fmt: skip
                middle = median_error(times)
                rows.append(ValidationRow(f"{case}, median {many}", None, middle, middle, source=score.trace))
    return rows


def trace_source(file: Path) -> Path | None:
    """Return a trace: a file that a reader knows, or the folder that the file belongs to; None for another file.

    Parameters
    ----------
    file : Path
        The file.
    """
    if not file.is_file():
        return None  # a pipe or a link to nothing, which no reader opens
    for folder in file.parents[:2]:
        if (folder / "meta.json").is_file() and (folder / "kernels").is_dir():
            return folder
    for path in (file.parent, file):
        try:
            find_reader(path)
        except (UnknownFormatError, NotFoundError):
            continue
        return path
    return None


#: Name and files of a recording.
NamedFiles = tuple[str, tuple[Path, ...]]


def read_sources(sources: Sequence[Path], options: SuiteOptions) -> list[NamedFiles]:
    """Return the name and the files of every trace; files that a reader takes together are one trace.

    Parameters
    ----------
    sources : sequence of Path
        Files and .trace folders.
    options : SuiteOptions
        Options of the suite; none is read.
    """
    stored = [path for path in sources if is_folder(path) and (path / "meta.json").is_file()]
    raw = [path for path in sources if path not in stored]
    recordings = [recording.files for recording in find_recordings(raw)] if raw else []
    return [("/".join(files[0].parts[-2:]), files) for files in (*((path,) for path in stored), *recordings)]


def load_recording(files: Sequence[Path], iterations: str) -> Trace:
    """Return the trace of a .trace folder, or of the files of one recording.

    Parameters
    ----------
    files : sequence of Path
        The folder, or the files.
    iterations : str
        Rule by which files are cut into iterations, as `profilers.ingest.pipeline.IngestOptions` takes it.

    Raises
    ------
    InvalidInputError
        The files are a .trace folder, whose iterations were found when it was ingested, and the rule is another.
    """
    options = IngestOptions(iterations)
    return open_trace(files[0], options) if is_folder(files[0]) else collect(files, options)


def opened_traces(recordings: Sequence[NamedFiles], options: SuiteOptions, phase: str) -> Iterator[tuple[str, Trace]]:
    """Yield the name and the trace of each recording that can be read; the others are refused.

    Parameters
    ----------
    recordings : sequence of (str, tuple of Path)
        Names and files.
    options : SuiteOptions
        Rule for iterations, and who watches.
    phase : str
        What is done with the traces, for those who watch.
    """
    for name, files in followed(recordings, options.progress(phase), itemgetter(0)):
        try:
            trace = load_recording(files, options.iterations)
        except SeqPointError as error:
            refuse_file(files[0], error)
            continue
        yield name, trace


def _scored(traces: Sequence[NamedFiles], options: SuiteOptions) -> SuiteResult:
    """Read and replay one trace after another; a trace without an iteration is noted."""
    scores, notes = [], []
    for name, trace in opened_traces(traces, options, "replaying"):
        if len(trace.iterations):
            scores.append(score_replay(name, trace))
        else:
            notes.append(f"{name}: no iteration to replay")
    if not scores:
        raise InvalidInputError(f"{'; '.join(notes)}")
    return SuiteResult(
        replay_rows(scores), {"scores": [_content(score) for score in scores]}, [_table(scores)], scores, notes
    )


def _content(score: ReplayScore) -> dict[str, object]:
    """Return a score as JSON, with the median and the worst error in place of single times."""
    times = {"steps": score.steps, "typical": score.typical, "steady": score.steady}
    plain = {name: value for name, value in asdict(score).items() if name not in times}
    return plain | {
        f"{name}_{which}": function(values)
        for name, values in times.items()
        for which, function in (("median", median_error), ("worst", worst_error))
    }


def _table(scores: Sequence[ReplayScore]) -> Table:
    """Return the table of traces."""
    columns = {
        "trace~": "{s.trace}", "steps": "{s.iterations}", "ms": "{ms:.1f}", "un- changed": "{steps_worst:.2%}",
        "start": "{s.start_worst:.2%}", "typical delays": "{typical_worst:.2%}", "re- peated": "{steady_median:.2%}",
        "worst": "{steady_worst:.2%}", "busy": "{s.busy_measured:.0%}", "ours": "{s.busy_replayed:.0%}",
    }  # fmt: skip
    title = "Replayed against measured times: errors, and shares of the elapsed time, in %"
    return table_of(title, columns, [{"s": s, "ms": s.elapsed_ns / 1e6, **_content(s)} for s in scores])


SUITE = Suite(
    name="replay",
    description=__doc__,
    needs="trace that a reader knows (`seqpoint readers` lists them)",
    source=trace_source,
    read=read_sources,
    score=_scored,
    options=("iterations",),
    shipped="samples",
)
