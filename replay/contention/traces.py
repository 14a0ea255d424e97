"""Interference fitted to a trace: kernels that ran alone and beside other work, and the model that explains them.

`overlapped_kernels` finds the pairs of a trace in the graphs of its iterations. `slowdowns` predicts with the engine
how much longer each overlapped kernel takes than alone. `fit_interference` fits the parameters of
`replay.costs.interference` to them, and `held_out_slowdowns` predicts each rank or class from the others.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from profilers.errors import InvalidInputError
from profilers.trace.arrays import MISSING, Bools, Floats, Ints, ends, integers
from profilers.trace.columns import lookup
from profilers.trace.trace import Trace
from profilers.writers.slicing import SliceOptions, slice_trace
from replay.calibration.parameters import Parameters, conformal_bound
from replay.contention.fitting import TRACE_BOUNDS, ContentionFit, FittedRange, Progress
from replay.contention.pairs import ContentionPairs, measure_pairs
from replay.contention.search import Point, least_cost, prior, values_at
from replay.contention.totals import MOST_KERNELS, iteration_blocks
from replay.costs.demand import contended, dispatch_of, integrated_rates
from replay.costs.interference import MOST_FACTOR, InterferenceFit, task_labels, with_interference
from replay.from_trace import build_graph, index_trace
from replay.graph.graph import KernelGraph, TaskKind

#: No trace has a rank of this number or above.
_MOST_RANKS = 2**32
#: Scale of logarithmic errors above which the loss is linear.
_SCALE = 0.1
#: Power of the time alone by which kernels count: short ones are many and noisy.
_TIME_POWER = 0.25
#: Weight of the prior: it counts as much as this share of the data.
_PRIOR = 0.02
#: Excess time at which a kernel's own factor counts as much as its prior of 1.
_FACTOR_EXCESS = 0.1
#: Least overlapped kernels for a fit.
LEAST_KERNELS = 20
_FOLDS = 10


@dataclass(frozen=True)
class OverlappedKernels:
    """Overlapped kernels of a trace: arrays have a row a kernel, in the order of `graphs`.

    Parameters
    ----------
    graphs : sequence of (KernelGraph, array of int64)
        Graphs of iterations with the times alone as durations, and the tasks of the overlapped kernels.
    pair : array of int64
        Rows of `ContentionPairs`.
    measured_ns, alone_ns : array of float64
        Time beside other work, and time alone.
    rank, class_, label : array of int64
        Rank, index into `profilers.trace.kernels.CLASSES`, and index into `labels`.
    labels : sequence of str
        Kernels with their grids.
    """

    graphs: Sequence[tuple[KernelGraph, Ints]]
    pair: Ints
    measured_ns: Floats
    alone_ns: Floats
    rank: Ints
    class_: Ints
    label: Ints
    labels: Sequence[str]

    def __len__(self) -> int:
        return len(self.pair)


def overlapped_kernels(
    trace: Trace, pairs: ContentionPairs, *, parameters: Parameters, progress: Progress | None = None
) -> OverlappedKernels:
    """Return the overlapped kernels of a trace that are in one of its iterations.

    Parameters
    ----------
    trace : Trace
        The trace. Of a long one, iterations are taken evenly.
    pairs : ContentionPairs
        Its pairs.
    parameters : Parameters
        Parameters of the demands.
    progress : callable, optional
        Called with (graphs built, graphs in all, what).

    Raises
    ------
    InvalidInputError
        No overlapped kernel is in an iteration.
    """
    return _gathered([_of_trace(trace, pairs, parameters, progress)])


@dataclass(frozen=True)
class _TraceKernels:
    """Overlapped kernels of one trace: its pairs, the graphs with their tasks, and the row of the pair of each task."""

    pairs: ContentionPairs
    graphs: Sequence[tuple[KernelGraph, Ints]]
    rows: Ints

    def column(self, name: str) -> npt.NDArray[Any]:
        """Return a column of the pairs, for each kernel."""
        return np.asarray(getattr(self.pairs, name)[self.rows])


def _of_trace(trace: Trace, pairs: ContentionPairs, parameters: Parameters, progress: Progress | None) -> _TraceKernels:
    """Return the overlapped kernels of a trace that are in one of its iterations."""
    blocks = iteration_blocks(trace, pairs.iteration)
    index = index_trace(_sliced(trace, blocks)) if blocks else None
    graphs, rows, seen = [], [], np.zeros(len(pairs.event), dtype=bool)
    for number, block in enumerate(blocks):
        if progress:
            progress(number, len(blocks), f"graph of iteration {block[-1]}")
        assert index is not None
        graph = build_graph(index, block, parameters=parameters)
        tasks, pair = _tasks_of(graph, pairs, seen)
        seen[pair] = True
        if len(tasks):
            duration = np.where(np.isnan(graph.tasks.measured_start_ns), graph.tasks.duration_ns, _spans(graph))
            duration[tasks] = pairs.alone_ns[pair]
            graphs.append((contended(graph, duration, parameters), tasks))
            rows.append(pair)
    if not graphs:
        raise InvalidInputError("no overlapped kernel of the trace is in an iteration; see `seqpoint describe`")
    return _TraceKernels(pairs, graphs, np.concatenate(rows))


def _sliced(trace: Trace, blocks: Sequence[tuple[int, ...]]) -> Trace:
    """Return what is around the blocks of a long trace, since an index of all of it takes a minute."""
    if trace.kernels.num_rows <= MOST_KERNELS:
        return trace
    if len(blocks) > 1:  # they are far apart
        return slice_trace(trace, SliceOptions(iterations=frozenset(number for block in blocks for number in block)))
    number = trace.iterations["iteration"].to_numpy()
    near = (number >= blocks[0][0] - 1) & (number <= blocks[0][-1] + 1)
    start_ns, end_ns = integers(trace.iterations, "start_ns")[near], ends(trace.iterations)[near]
    return slice_trace(trace, SliceOptions(start_ns=int(start_ns.min()), end_ns=int(end_ns.max())))


def _spans(graph: KernelGraph) -> Floats:
    return np.asarray(graph.tasks.measured_end_ns - graph.tasks.measured_start_ns)


def _tasks_of(graph: KernelGraph, pairs: ContentionPairs, seen: Bools) -> tuple[Ints, Ints]:
    """Return the tasks of overlapped kernels in the graph's iterations, and the rows of their pairs."""
    tasks = graph.tasks
    candidates = np.flatnonzero((tasks.kind == TaskKind.KERNEL) & graph.on_device() & tasks.in_iteration)
    row_of_task = lookup(pairs.event, np.arange(len(pairs.event)), tasks.event[candidates])
    chosen, rows = candidates[row_of_task != MISSING], row_of_task[row_of_task != MISSING]
    is_new = ~seen[rows] & (_spans(graph)[chosen] > 0)
    return chosen[is_new], rows[is_new]


def _gathered(traces: Sequence[_TraceKernels]) -> OverlappedKernels:
    """Return the kernels of all traces as arrays; ranks of different traces stay apart."""
    graphs = [each for trace in traces for each in trace.graphs]
    texts = []
    for graph, tasks in graphs:
        names, name = task_labels(graph, tasks)
        texts += [names[i] for i in name.tolist()]
    labels, label = np.unique(np.array(texts, dtype=object), return_inverse=True)
    pair = np.concatenate([trace.rows for trace in traces])
    measured, alone = (np.concatenate([each.column(name) for each in traces]) for name in ("duration_ns", "alone_ns"))
    ranks = np.concatenate([trace.column("rank") + number * _MOST_RANKS for number, trace in enumerate(traces)])
    class_ = np.concatenate([graph.tasks.class_[tasks] for graph, tasks in graphs])
    facts = pair, measured, alone, np.unique(ranks, return_inverse=True)[1], class_, label
    return OverlappedKernels(tuple(graphs), *facts, tuple(labels.tolist()))


def slowdowns(kernels: OverlappedKernels, parameters: Parameters) -> Floats:
    """Return how many times as long as alone each overlapped kernel takes, by the engine's sharing.

    The work beside it is where the trace has it. The slow-down is the inverse of the mean rate over the measured time.

    Parameters
    ----------
    kernels : OverlappedKernels
        Overlapped kernels of a trace.
    parameters : Parameters
        Parameters of contention, with an `InterferenceFit` if one was fitted.
    """
    slow = []
    for graph, tasks in kernels.graphs:
        graph = replace(graph, policy=dispatch_of(graph.policy, parameters))
        work_ns = integrated_rates(with_interference(graph, parameters))
        slow.append(_spans(graph)[tasks] / np.maximum(work_ns[tasks], 1.0))
    return np.concatenate(slow)


class _KernelSlowdowns:
    """Slow-downs of kernels by the powers of the fitted parameters; what was predicted once is kept."""

    def __init__(self, kernels: OverlappedKernels, parameters: Parameters) -> None:
        self.kernels, self.parameters = kernels, parameters.with_calibration(InterferenceFit())
        self._known: dict[Point, Floats] = {}

    def values(self, powers: Point) -> dict[str, float]:
        """Return the fitted parameters."""
        return values_at(powers, TRACE_BOUNDS, self.parameters)

    def slow(self, powers: Point) -> Floats:
        """Return the slow-down of each kernel."""
        if powers not in self._known:
            self._known[powers] = slowdowns(self.kernels, self.parameters.with_values(self.values(powers).items()))
        return self._known[powers]

    def without_pressure(self, powers: Point) -> Floats:
        """Return the slow-down of each kernel if collectives put no pressure on it."""
        values = {**self.values(powers), "pressure_collective": 0.0}
        return slowdowns(self.kernels, self.parameters.with_values(values.items()))


@dataclass(frozen=True)
class TraceFit:
    """Parameters of contention that were fitted to overlapped kernels.

    Parameters
    ----------
    values : mapping of str to float
        Values of `TRACE_BOUNDS`.
    interference : InterferenceFit
        Sensitivities of single kernels.
    """

    values: dict[str, float]
    interference: InterferenceFit

    def parameters(self, base: Parameters) -> Parameters:
        """Return `base` with the fitted values and the fitted interference."""
        return base.with_values(self.values.items()).with_calibration(self.interference)


def fit_interference(kernels: OverlappedKernels, parameters: Parameters, chosen: Bools | None = None) -> TraceFit:
    """Return the parameters under which predicted slow-downs are closest to the measured ones.

    The loss is Huber-like in logarithmic errors, with a weak prior at the shipped values. Then each kernel gets a
    factor on what pressure adds, the more the longer it was slowed, so that a kernel with few launches keeps the
    factor 1.

    Parameters
    ----------
    kernels : OverlappedKernels
        Overlapped kernels of a trace.
    parameters : Parameters
        Parameters of the priors.
    chosen : array of bool, optional
        Kernels to fit; all by default.
    """
    return _fit(_KernelSlowdowns(kernels, parameters), chosen)


def _fit(predictions: _KernelSlowdowns, chosen: Bools | None = None) -> TraceFit:
    """Return the fit to the chosen kernels: `replay.contention.search`."""
    kernels = predictions.kernels
    rows = np.flatnonzero(np.ones(len(kernels), bool) if chosen is None else chosen)
    measured = np.log(kernels.measured_ns[rows] / kernels.alone_ns[rows])
    weight = (kernels.alone_ns[rows] / kernels.alone_ns[rows].mean()) ** _TIME_POWER

    def cost(powers: Point) -> float:
        errors = weight * (np.log(predictions.slow(powers)[rows]) - measured) / _SCALE
        return float(np.mean(np.sqrt(1.0 + errors**2) - 1.0) + _PRIOR * prior(powers))

    best = least_cost(cost, len(TRACE_BOUNDS))
    device = kernels.graphs[0][0].hardware.device
    factors = _factors(predictions, rows, best)
    return TraceFit(predictions.values(best), InterferenceFit(factors, device.name if device else ""))


def _factors(predictions: _KernelSlowdowns, rows: Ints, powers: Point) -> dict[str, float]:
    """Return the factor of each kernel on what pressure adds, drawn to 1: the weighted median of those that fit."""
    kernels, base = predictions.kernels, predictions.without_pressure(powers)[rows]
    more = np.maximum(predictions.slow(powers)[rows] - base, 0.0)
    ratio = (kernels.measured_ns[rows] / kernels.alone_ns[rows] - base) / np.maximum(more, 1e-6)
    order = np.lexsort((ratio, kernels.label[rows]))
    factors = {}
    for block in np.split(order, np.flatnonzero(np.diff(kernels.label[rows][order])) + 1):  # a kernel each
        weight = np.cumsum((more * kernels.alone_ns[rows])[block])
        middle = ratio[block][np.searchsorted(weight, weight[-1] / 2)]
        known = float((more[block] ** 2).sum())
        drawn = (middle * known + _FACTOR_EXCESS**2) / (known + _FACTOR_EXCESS**2)
        factors[kernels.labels[kernels.label[rows[block[0]]]]] = float(np.clip(drawn, 0.0, MOST_FACTOR))
    return factors


def held_out_slowdowns(kernels: OverlappedKernels, fold: Ints, parameters: Parameters) -> Floats:
    """Return the slow-down of each kernel, by a fit to the kernels of all other folds; NaN if there is one fold.

    Parameters
    ----------
    kernels : OverlappedKernels
        Overlapped kernels of a trace.
    fold : array of int64, shape (n,)
        Rank, class or any number of each kernel; a fold is held out whole.
    parameters : Parameters
        Parameters of the priors.
    """
    result, folds = np.full(len(kernels), np.nan), np.unique(fold)
    predictions = _KernelSlowdowns(kernels, parameters)
    for each in folds if len(folds) > 1 else ():
        held = fold == each
        result[held] = slowdowns(kernels, _fit(predictions, ~held).parameters(parameters))[held]
    return result


def calibrate_traces(
    traces: Sequence[Trace], *, parameters: Parameters, progress: Progress | None = None
) -> ContentionFit:
    """Return a calibration from the kernels of traces that ran alone and beside other work.

    The traces are of one device. A range holds the fits that leave out a tenth of the kernels each, and its spread is
    the conformal bound of their errors.

    Parameters
    ----------
    traces : sequence of Trace
        One or more traces.
    parameters : Parameters
        Parameters of the priors.
    progress : callable, optional
        Called with (graphs built, graphs in all, what).

    Raises
    ------
    InvalidInputError
        The traces are of several devices, or too few kernels ran alone and beside other work.
    """
    blocks = []
    for trace in traces:
        pairs = measure_pairs(trace)
        if pairs.confounded:
            raise InvalidInputError(f"{trace.meta.sources[0]}: {pairs.confounded}; nothing is fitted to such a trace")
        if len(pairs.event):
            blocks.append(_of_trace(trace, pairs, parameters, progress))
    count = sum(len(block.rows) for block in blocks)
    if count < LEAST_KERNELS:
        raise InvalidInputError(
            f"{count} kernels ran beside other work and also alone; at least {LEAST_KERNELS} are needed "
            "(`seqpoint validate contention` says why kernels are left out)"
        )
    kernels = _gathered(blocks)
    devices = {graph.hardware.device.name if graph.hardware.device else "" for graph, _ in kernels.graphs}
    if len(devices) > 1:
        names = ", ".join(sorted(devices))
        raise InvalidInputError(f"the traces are of {names}; fit the traces of one device at a time")
    return _with_ranges(kernels, parameters, tuple(trace.meta.fingerprint for trace in traces))


def _with_ranges(kernels: OverlappedKernels, parameters: Parameters, sources: Sequence[str]) -> ContentionFit:
    """Return the fit to all kernels, with ranges and a spread from fits that leave out a fold of kernels each."""
    predictions, fold = _KernelSlowdowns(kernels, parameters), kernels.label % _FOLDS
    whole = _fit(predictions)
    errors, fits = np.zeros(len(kernels)), []
    for each in np.unique(fold).tolist():
        fits.append(_fit(predictions, fold != each) if (fold != each).any() else whole)
        slow = slowdowns(kernels, fits[-1].parameters(parameters))
        errors[fold == each] = np.log(kernels.measured_ns / kernels.alone_ns / slow)[fold == each]
    ranges = {}
    for name, value in whole.values.items():
        values = [value, *(fit.values[name] for fit in fits)]
        ranges[name] = FittedRange(value, min(values), max(values))
    digests = tuple(sorted({sha256(text.encode()).hexdigest()[:16] for text in sources}))
    names = f"{len(kernels)} overlapped kernels of {len(sources)} traces, {len(kernels.labels)} distinct"
    spread = min(conformal_bound(errors, 0.9), 9.0)
    interference = whole.interference
    return ContentionFit(
        interference.device, MappingProxyType(ranges), (), spread, len(kernels), digests, names, interference
    )
