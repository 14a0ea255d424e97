"""Steps of a run as samples: step times, the parts that each step is made of, and the time of its operators.

`step_sample` measures a trace. Each moment of a step belongs to one of `PARTS` on each device, so the parts of a step
add up to its step time. The kernels of a step are summed by operator and shapes of inputs.
`seqpoint.projected_steps` projects the steps of a sample.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from scipy.special import stdtrit

from profilers.errors import InvalidInputError
from profilers.trace.activity import last_arrivals
from profilers.trace.arrays import MISSING, Bools, Floats, Ints, encode_text, ends, integers
from profilers.trace.columns import lookup
from profilers.trace.kernels import CLASSES, COLLECTIVE
from profilers.trace.steps import StepTimes, job_steps, step_times
from profilers.trace.trace import Trace
from replay.analysis import attribution, critical_path
from replay.graph.graph import Hardware
from seqpoint.breakdown import self_times
from seqpoint.graphs import step_windows
from seqpoint.kernel_facts import KernelFacts, kernel_facts
from seqpoint.kinds import step_kinds
from seqpoint.outliers import find_outliers

_COMPUTE = tuple(name for name in CLASSES if name != COLLECTIVE)
#: Parts of a step after the classes of kernels. Each moment of a device belongs to the first that fits: kernels beside
#: a collective, kernels alone (classes that run together share the moment), data of collectives, waiting for peers,
#: copies, idle. Ranks whose steps are shorter than the job's have the rest.
OVERLAP, EXPOSED, WAITING, COPIES = "overlap", "communication exposed", "waiting for peers", "memory copies"
HOST, NO_CALL, RANKS = "idle, host in a call", "idle, no host call", "between ranks"
PARTS = (*_COMPUTE, OVERLAP, EXPOSED, WAITING, COPIES, HOST, NO_CALL, RANKS)
#: Parts of a step without devices.
_HOST_ONLY = {HOST: "host in a call", NO_CALL: "host outside of calls"}
#: Starts a search for the least rank.
_LARGEST = int(np.iinfo(np.int64).max)
#: Iterations, least share of a run, and least correlation of the step times of aligned runs; fewer iterations have to
#: correlate as unrelated ones do by this chance.
_FEWEST_PAIRS, _COMMON, _RELATED, _BY_CHANCE = 10, 0.8, 0.8, 0.005
#: Most kernels of a step whose critical path is searched.
_MOST_KERNELS = 50_000
#: Fewest steps of its kind that must remain if the first step of a recording is left out.
_FEWEST = 3


@dataclass(frozen=True)
class StepLaunches:
    """Kernels summed by step, key and kernel name; columns of equal length.

    Parameters
    ----------
    step : array of int64
        Row of the step in its run.
    key : array of int64
        Operator with its shapes, as an index into `keys`.
    kernel : array of int64
        Name of the kernel, as an index into `kernels`.
    time_ns, count : array of float64
        Sum of the durations and number of kernels, each divided by the number of ranks.
    keys : tuple of (str, str)
        Name of an operator, or of a kernel without an operator; shapes of its inputs, "" if unknown.
    kernels, classes : tuple of str
        Names of kernels, and the class of each.
    sequence : array of int64
        Keys of the kernels of the middle step of one rank, in order of start.
    """

    step: Ints
    key: Ints
    kernel: Ints
    time_ns: Floats
    count: Floats
    keys: tuple[tuple[str, str], ...]
    kernels: tuple[str, ...]
    classes: tuple[str, ...]
    sequence: Ints


@dataclass(frozen=True)
class ProjectedStep:
    """Mean step time of a run under a what-if, with its interval; times in ns.

    Parameters
    ----------
    what_if : str
        The what-if.
    step_ns : float
        Projected step time.
    low_ns, high_ns : float
        Ends of its interval.
    confidence : float
        Confidence level of the interval.
    notes : tuple of str
        Notes of the what-if, and on the recording.
    """

    what_if: str
    step_ns: float
    low_ns: float
    high_ns: float
    confidence: float
    notes: tuple[str, ...]


@dataclass(frozen=True)
class StepSample:
    """Steps of one run: rows of equal length, without context, outliers and the first step of a recording.

    Parameters
    ----------
    iteration : array of int64
        Number of each iteration.
    step_ns : array of float64, shape (steps,)
        Step times of the job.
    parts_ns : array of float64, shape (steps, len(PARTS))
        Parts of each step, on average over devices. They add up to the step time.
    launches : StepLaunches
        Kernels of the steps; operators on the host if the trace has no kernels.
    outliers : int
        Number of steps left out as outliers.
    all_ns : float
        Mean step time with outliers.
    lengths : array of int64, shape (steps,)
        Sequence length of each step; -1 if unknown.
    ranks : tuple of int
        Numbers of the ranks.
    on_host : bool
        Whether the trace has no device work.
    synthetic : bool
        Whether the trace was synthesised.
    hardware : Hardware
        Hardware of the trace.
    path_ns : mapping of str to float
        Time on the critical path of a typical step by cause (`replay.analysis.critical_path`); empty if unknown.
    path_iteration : int, optional
        Number of that step.
    projected : ProjectedStep, optional
        The projection that the steps come from; None if they were measured.
    """

    iteration: Ints
    step_ns: Floats
    parts_ns: Floats
    launches: StepLaunches
    outliers: int
    all_ns: float
    lengths: Ints
    ranks: tuple[int, ...]
    on_host: bool
    synthetic: bool
    hardware: Hardware
    path_ns: Mapping[str, float] = field(default_factory=dict)
    path_iteration: int | None = None
    projected: ProjectedStep | None = None

    def __len__(self) -> int:
        return len(self.step_ns)

    @property
    def length(self) -> float:
        """Mean sequence length; NaN if unknown."""
        return float(self.lengths.mean()) if len(self) and (self.lengths != MISSING).all() else float("nan")

    def take(self, rows: Ints) -> "StepSample":
        """Return the steps in `rows`, which ascend."""
        launches = self.launches
        inside = np.isin(launches.step, rows)
        columns = {name: getattr(launches, name)[inside] for name in ("key", "kernel", "time_ns", "count")}
        step = np.searchsorted(rows, launches.step[inside])
        return replace(
            self,
            iteration=self.iteration[rows],
            step_ns=self.step_ns[rows],
            lengths=self.lengths[rows],
            parts_ns=self.parts_ns[rows],
            launches=replace(launches, step=step, **columns),
        )


def aligned(before: StepSample, after: StepSample, kinds: Ints) -> tuple[StepSample, StepSample] | None:
    """Return two runs cut to their common iterations if these do the same work one by one, else None.

    They do if at least four fifths of each run are common, and if their times rise and fall together. Unrelated runs do
    so once in 200. Of ten pairs and more, step times have a correlation of 0.8. Of fewer, times of operators have that
    of chance within kinds: 0.9999 for four steps of two kinds. So an edited recording is compared with the original.
    Steps with the same sequence lengths, which differ from step to step, do the same work, too.

    Parameters
    ----------
    before, after : StepSample
        The runs.
    kinds : array of int64
        Kind of each step before.
    """
    common, *rows = np.intersect1d(before.iteration, after.iteration, return_indices=True)
    if len(common) < max(_COMMON * len(before), _COMMON * len(after), 1):
        return None
    cut = before.take(np.sort(rows[0])), after.take(np.sort(rows[1]))
    if not (cut[0].iteration == cut[1].iteration).all():
        return None
    lengths = cut[0].lengths
    if len(np.unique(lengths[lengths != MISSING])) > 1 and (lengths == cut[1].lengths).all():
        return cut
    few = len(common) < _FEWEST_PAIRS
    _, label = np.unique(kinds[np.sort(rows[0])] if few else np.zeros(len(common)), return_inverse=True)
    values = _operator_times(cut) if few else [run.step_ns[:, None] for run in cut]
    means = [np.stack([each[label == kind].mean(axis=0) for kind in range(label.max() + 1)]) for each in values]
    deviations = [(each - mean[label]).ravel() for each, mean in zip(values, means, strict=True)]
    freedom = len(common) - int(label.max()) - 2
    spread = float(np.prod([np.linalg.norm(each) for each in deviations]))
    if freedom < 1 or not spread:
        return None
    t = float(stdtrit(freedom, 1 - _BY_CHANCE))
    least = max(_RELATED, t / np.sqrt(freedom + t * t)) if few else _RELATED
    return cut if deviations[0] @ deviations[1] >= least * spread else None


def mean_projection(runs: Sequence[StepSample]) -> ProjectedStep | None:
    """Return the mean of the projected steps of some runs; None if a run was measured."""
    steps = [run.projected for run in runs if run.projected is not None]
    if not steps or len(steps) < len(runs):
        return None
    step_ns, low_ns, high_ns = np.mean([(step.step_ns, step.low_ns, step.high_ns) for step in steps], axis=0).tolist()
    notes = tuple(dict.fromkeys(note for step in steps for note in step.notes))
    return replace(steps[0], step_ns=step_ns, low_ns=low_ns, high_ns=high_ns, notes=notes)


def idle_joined(run: StepSample) -> Floats:
    """Return the parts of each step with all idle time in one; the replay of a host does not tell its operators."""
    parts, (host, no_call) = run.parts_ns.copy(), map(PARTS.index, (HOST, NO_CALL))
    parts[:, host] += parts[:, no_call]
    parts[:, no_call] = 0.0
    return parts


def _operator_times(runs: Sequence[StepSample]) -> list[Floats]:
    """Return the time of each operator with its shapes in each step of some runs."""
    column: dict[tuple[str, str], int] = {}
    codes = [np.array([column.setdefault(key, len(column)) for key in run.launches.keys], np.int64) for run in runs]
    times = [np.zeros((len(run), len(column))) for run in runs]
    for run, code, time in zip(runs, codes, times, strict=True):
        np.add.at(time, (run.launches.step, code[run.launches.key]), run.launches.time_ns)
    return times


def part_name(part: str, on_host: bool) -> str:
    """Return the name of a part of a step in tables; a step without devices is all host."""
    return _HOST_ONLY.get(part, part) if on_host else part


def step_sample(trace: Trace) -> StepSample:
    """Return the steps of a trace as samples.

    Left out are iterations that are context of a slice, outliers (`seqpoint.outliers`), and the first step of
    a recording if three others of its kind (`seqpoint.kinds`) remain: no completion comes before it, so it is measured
    otherwise.

    Parameters
    ----------
    trace : Trace
        The trace of a run.
    """
    steps = step_times(trace)
    job = job_steps(steps)
    rows = np.flatnonzero(~np.isin(job.iteration, trace.meta.context))
    values, kinds = job.step_ns[rows].astype(np.float64), step_kinds(trace, job.iteration[rows])
    outliers = find_outliers(values, kinds=kinds)
    kept = _timed(outliers.others(len(rows)), job.follows[rows], kinds)
    number = job.iteration[rows][kept]
    on_host = not (trace.kernels.num_rows or trace.copies.num_rows)
    step_ns = values[kept]
    parts = _measured_parts(trace, steps, number, on_host)
    parts[:, -1] = step_ns - parts.sum(axis=1)
    launches, hardware = _launches(trace, number)
    known = dict(
        zip(*(integers(trace.iterations, name).tolist() for name in ("iteration", "sequence_length")), strict=True)
    )
    return StepSample(
        iteration=number,
        step_ns=step_ns,
        parts_ns=parts,
        launches=launches,
        outliers=len(outliers),
        all_ns=float(values[np.concatenate([kept, outliers.rows])].mean()) if len(values) else 0.0,
        lengths=np.array([known.get(each, MISSING) for each in number.tolist()], np.int64),
        ranks=tuple(np.unique(steps.rank).tolist()),
        on_host=on_host,
        synthetic=trace.meta.synthetic,
        hardware=hardware,
    )


def _timed(rows: Ints, follows: Bools, kinds: Ints) -> Ints:
    """Return the rows without those that follow no other step, if three others remain.

    If others of their kind remain, it takes three of these.
    """
    timed = rows[follows[rows]]
    if len(timed) < _FEWEST:
        return rows
    others = np.bincount(kinds[timed], minlength=int(kinds.max()) + 1)[kinds[rows]]
    return rows[follows[rows] | ((others > 0) & (others < _FEWEST))]


def with_critical_path(sample: StepSample, trace: Trace) -> StepSample:
    """Return a sample with the critical path of its step of median time, replayed in the steady state.

    The path stays unknown if the step has more than 50,000 kernels, or if its kernels belong to no iteration.

    Parameters
    ----------
    sample : StepSample
        Steps of `trace`.
    trace : Trace
        The trace.
    """
    if not len(sample):
        return sample
    row = int(np.argsort(sample.step_ns, kind="stable")[(len(sample) - 1) // 2])
    launches = sample.launches
    if launches.count[launches.step == row].sum() * len(sample.ranks) > _MOST_KERNELS:
        return sample
    try:
        (window,) = step_windows(trace, [int(sample.iteration[row])])
    except InvalidInputError:
        return sample
    path = attribution(critical_path(window.steady().at_step(window.chosen[0])))
    return replace(sample, path_ns=path.by_cause, path_iteration=int(sample.iteration[row]))


def _launches(trace: Trace, iterations: Ints) -> tuple[StepLaunches, Hardware]:
    """Return the kernels of some iterations by step, key and name, or the operators of a trace without kernels."""
    facts = kernel_facts(trace)
    columns: tuple[Ints, ...]
    if len(facts):
        keys = (operators_of(facts), facts.shape, facts.name)
        columns = (facts.iteration, facts.rank, facts.start_ns, *keys, facts.duration_ns)
        labels = labels_of(facts)
    else:
        ops = trace.ops
        (who, found), (shape, shape_texts) = encode_text(ops["name"]), encode_text(ops["shapes"])
        iteration, rank, start = (integers(ops, name) for name in ("iteration", "rank", "start_ns"))
        columns = (iteration, rank, start, who, shape, np.zeros(len(who), np.int64), self_times(ops))
        labels = KernelTexts(tuple(map(str, found)), tuple(map(str, shape_texts)), ("",), ("host",))
    return summed(columns, iterations, labels), facts.hardware


def operators_of(facts: KernelFacts) -> Ints:
    """Return the operator of each kernel; one without an operator has its own name, behind those of operators."""
    return np.where(facts.operator >= 0, facts.operator, len(facts.operator_names) + facts.name)


def labels_of(facts: KernelFacts) -> "KernelTexts":
    """Return the texts of the codes of kernels."""
    codes = first_of(facts.name, facts.class_, len(facts.names)).tolist()
    classes = tuple(facts.classes[code] for code in codes)
    return KernelTexts((*facts.operator_names, *facts.names), facts.shapes, facts.names, classes)


class KernelTexts(NamedTuple):
    """Texts of codes: operators and kernels without one, shapes, kernels, and the class of each kernel."""

    operators: tuple[str, ...]
    shapes: tuple[str, ...]
    kernels: tuple[str, ...]
    classes: tuple[str, ...]


def first_of(codes: Ints, values: Ints, size: int) -> Ints:
    """Return the value of the first row of each code; 0 for a code without rows."""
    result = np.zeros(size, np.int64)
    result[codes[::-1]] = values[::-1]
    return result


def summed(
    columns: tuple[Ints, ...], iterations: Ints, labels: KernelTexts, counts: Floats | None = None
) -> StepLaunches:
    """Return rows of (iteration, rank, start, operator, shape, kernel, duration) summed by step, key and kernel.

    Each row counts as one kernel, or as `counts` says.
    """
    iteration, *_ = columns
    step = lookup(iterations, np.arange(len(iterations)), np.where(iteration < 0, MISSING, iteration))
    inside = np.flatnonzero(step != MISSING)
    step = step[inside]
    _, rank, start, who, shape, kernel, time = (column[inside] for column in columns)
    pairs, key = np.unique(np.stack([who, shape]), axis=1, return_inverse=True)
    groups, group = np.unique(np.stack([step, key.ravel(), kernel]), axis=1, return_inverse=True)
    ranks, size = max(len(np.unique(rank)), 1), groups.shape[1]
    shown = np.flatnonzero((step == len(iterations) // 2) & (rank == rank.min(initial=_LARGEST)))
    names, shapes = labels.operators, labels.shapes
    return StepLaunches(
        groups[0],
        groups[1],
        groups[2],
        np.bincount(group.ravel(), weights=time, minlength=size) / ranks,
        np.bincount(group.ravel(), weights=None if counts is None else counts[inside], minlength=size) / ranks,
        tuple((names[n], shapes[s] if s >= 0 else "") for n, s in pairs.T.tolist()),
        labels.kernels,
        labels.classes,
        key.ravel()[shown[np.argsort(start[shown], kind="stable")]],
    )


@dataclass(frozen=True)
class DeviceSpans:
    """Intervals of one device, or of the hosts of a rank: start, end, and the layer that each is active in."""

    start: Ints
    end: Ints
    layer: Ints

    def select(self, rows: Bools) -> "DeviceSpans":
        """Return some of the intervals."""
        return DeviceSpans(self.start[rows], self.end[rows], self.layer[rows])

    def joined(self, other: "DeviceSpans") -> "DeviceSpans":
        """Return these intervals and those of `other`."""
        return DeviceSpans(
            *(np.concatenate(pair) for pair in zip(vars(self).values(), vars(other).values(), strict=True))
        )


#: Layers: a class of kernels each, data of collectives, collectives that wait, copies, host calls.
TRANSFER_LAYER = len(_COMPUTE)
WAITING_LAYER, COPY_LAYER, HOST_LAYER = TRANSFER_LAYER + 1, TRANSFER_LAYER + 2, TRANSFER_LAYER + 3


class RankWindows(NamedTuple):
    """Steps of a rank: rows of the sample, begin and completion of each."""

    row: Ints
    begin: Ints
    completion: Ints


def _measured_parts(trace: Trace, steps: StepTimes, iterations: Ints, on_host: bool) -> Floats:
    """Return the parts of each measured step on average over the devices; without devices, over the ranks."""
    calls, of_rank = _host_calls(trace), {}
    for rank in np.unique(steps.rank).tolist():
        rows = np.flatnonzero((steps.rank == rank) & np.isin(steps.iteration, iterations))
        row = lookup(iterations, np.arange(len(iterations)), steps.iteration[rows])
        of_rank[rank] = RankWindows(row, steps.begin_ns[rows], steps.completion_ns[rows])
    devices = calls.items() if on_host else _with_calls(_device_spans(trace), calls)
    return mean_parts(devices, of_rank, len(iterations))


def _with_calls(
    devices: "Iterable[tuple[int, DeviceSpans]]", calls: "Mapping[int, DeviceSpans]"
) -> "Iterator[tuple[int, DeviceSpans]]":
    """Yield each device with the host calls of its rank."""
    for rank, spans in devices:
        yield rank, spans.joined(calls[rank]) if rank in calls else spans


def mean_parts(devices: "Iterable[tuple[int, DeviceSpans]]", steps: Mapping[int, RankWindows], size: int) -> Floats:
    """Return the parts of each step on average over devices: the rank and the intervals of each."""
    total, count = np.zeros((size, len(PARTS))), np.zeros(size)
    for rank, spans in devices:  # a Python loop over devices
        of_rank = steps.get(rank)
        if of_rank is None or not len(of_rank.row):
            continue
        total[of_rank.row] += _sweep(spans, of_rank.begin, of_rank.completion)
        count[of_rank.row] += 1
    return total / np.maximum(count, 1)[:, None]


def _sweep(spans: DeviceSpans, begin: Ints, completion: Ints) -> Floats:
    """Return the time of each part in each window, from one walk over the starts and ends."""
    inside = (spans.end > begin.min()) & (spans.start < completion.max())
    spans = spans.select(inside)
    time = np.concatenate([spans.start, spans.end, begin, completion])
    order = np.argsort(time, kind="stable")
    count, n = len(spans.start), len(time)
    delta = np.concatenate([np.ones(count), -np.ones(count), np.zeros(n - 2 * count)])[order]
    layer = np.concatenate([spans.layer, spans.layer, np.full(n - 2 * count, -1)])[order]
    active = np.stack([np.cumsum(np.where(layer == i, delta, 0)) > 0 for i in range(HOST_LAYER + 1)])
    length = np.diff(time[order], append=time[order][-1:]).astype(np.float64)
    windows = np.argsort(begin, kind="stable")
    window = windows[np.maximum(np.searchsorted(begin[windows], time[order], side="right") - 1, 0)]
    length[(time[order] < begin[window]) | (time[order] >= completion[window])] = 0.0
    classes = active[: len(_COMPUTE)]
    together = classes.sum(axis=0)
    communicates = active[TRANSFER_LAYER] | active[WAITING_LAYER]
    result = np.zeros((len(begin), len(PARTS)))
    for i, runs in enumerate(classes):
        weight = np.where(runs & ~communicates, length / np.maximum(together, 1), 0.0)
        result[:, i] = np.bincount(window, weights=weight, minlength=len(begin))
    rules = (
        (OVERLAP, (together > 0) & communicates), (EXPOSED, active[TRANSFER_LAYER]), (WAITING, active[WAITING_LAYER]),
        (COPIES, active[COPY_LAYER]), (HOST, active[HOST_LAYER]), (NO_CALL, np.ones(n, dtype=bool)),
    )  # fmt: skip
    free = (together == 0) | communicates
    for part, fits in rules:
        column = PARTS.index(part)
        result[:, column] = np.bincount(window, weights=np.where(free & fits, length, 0.0), minlength=len(begin))
        free &= ~fits
    return result


def layers() -> Ints:
    """Return the layer of each class of kernels, and at the end that of a kernel of unknown class."""
    number = {name: i for i, name in enumerate((*_COMPUTE, COLLECTIVE))}
    return np.array([number[name] for name in (*CLASSES, "other")])


def _device_spans(trace: Trace) -> Iterator[tuple[int, DeviceSpans]]:
    """Yield the rank and the intervals of each device."""
    kernels, copies = trace.kernels, trace.copies
    codes, names = encode_text(kernels["name"])
    layer = layers()[[*(CLASSES.index(trace.meta.class_of(str(name))) for name in names), -1]][codes]
    collective = integers(kernels, "collective_id")
    layer = np.where(collective != MISSING, TRANSFER_LAYER, layer)
    start, end = integers(kernels, "start_ns"), ends(kernels)
    arrived = lookup(integers(trace.collectives, "id"), last_arrivals(trace), collective)
    waits = np.flatnonzero((arrived != MISSING) & (layer == TRANSFER_LAYER))
    until = np.clip(arrived[waits], start[waits], end[waits])
    work = DeviceSpans(start.copy(), end, layer)
    work.start[waits] = until
    waiting = DeviceSpans(start[waits], until, np.full(len(waits), WAITING_LAYER))
    copied = DeviceSpans(integers(copies, "start_ns"), ends(copies), np.full(copies.num_rows, COPY_LAYER))
    spans = work.joined(waiting).joined(copied)
    keys = [np.concatenate([c := integers(kernels, n), c[waits], integers(copies, n)]) for n in ("rank", "device")]
    for rank, device in np.unique(np.stack(keys), axis=1).T.tolist():
        yield rank, spans.select((keys[0] == rank) & (keys[1] == device))


def _host_calls(trace: Trace) -> dict[int, DeviceSpans]:
    """Return the time that each rank spends in operators and in calls of the runtime, as disjoint intervals."""
    tables: tuple[pa.Table, ...] = (trace.ops, trace.launches)
    rank = np.concatenate([integers(table, "rank") for table in tables])
    start, end = (
        np.concatenate(columns) for columns in ([integers(t, "start_ns") for t in tables], [ends(t) for t in tables])
    )
    result = {}
    for number in np.unique(rank).tolist():
        rows = np.flatnonzero(rank == number)
        rows = rows[np.argsort(start[rows], kind="stable")]
        reach = np.maximum.accumulate(end[rows])
        heads = np.flatnonzero(np.append(True, start[rows][1:] > reach[:-1]))
        last = np.append(heads[1:] - 1, len(rows) - 1)
        result[number] = DeviceSpans(start[rows][heads], reach[last], np.full(len(heads), HOST_LAYER))
    return result


def without_outlying_runs(runs: list[StepSample]) -> tuple[list[StepSample], int]:
    """Return the runs without outliers, and their number, if each run has one step."""
    if any(len(run) != 1 for run in runs):
        return runs, 0
    kept = find_outliers(np.concatenate([run.step_ns for run in runs])).others(len(runs)).tolist()
    return [runs[row] for row in kept], len(runs) - len(kept)
