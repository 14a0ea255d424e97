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
import scipy

from profilers.errors import InvalidInputError
from profilers.trace.arrays import MISSING, Bools, Floats, Ints, ends, integers
from profilers.trace.columns import lookup
from profilers.trace.kernels import CLASSES
from profilers.trace.trace import Trace
from profilers.writers.slicing import SliceOptions, slice_trace
from replay.calibration.parameters import Parameters, conformal_bound
from replay.contention.fitting import TRACE_BOUNDS, ContentionFit, FittedRange, Progress
from replay.contention.pairs import ContentionPairs, measure_pairs
from replay.contention.totals import MOST_KERNELS, iteration_blocks
from replay.costs.demand import contended, integrated_rates
from replay.costs.interference import (
    COPY,
    KERNEL,
    LATENCY_NS,
    MOST_FACTOR,
    InterferenceFit,
    task_labels,
    transfer_share,
    with_interference,
)
from replay.engine.engine import wait_times
from replay.from_trace import build_graph, index_trace
from replay.graph.graph import KernelGraph, TaskKind

#: No trace has a rank of this number or above.
_MOST_RANKS = 2**32
#: Kernels that a fit uses at most.
_MOST_ROWS = 20_000
# The settings of the fit are chosen. Half or twice `_SCALE`, `_PRIOR` or `_FACTOR_EXCESS`, and other powers of time up
# to 1, change the errors of held-out ranks of ddp4 and nanogpt8 by 0.2 points at most, those of classes by up to 3.5.
#: Scale of logarithmic errors above which the loss is linear, and weight of the priors.
_SCALE, _PRIOR = 0.1, 0.5
#: Power of the time alone by which kernels count: short ones are many and noisy.
_TIME_POWER = 0.25
#: Inverse widths of the priors on logarithms: of each of `_SHARED`, of pressures, and of sensitivities of classes.
_SHARED_WIDTHS, _PRESSURE_WIDTH, _CLASS_WIDTH = (3.0, 0.6, 0.4, 0.4), 0.2, 1.0
#: Share of the compute units that gives the prior of a pressure if no unit is held, and the least value of a prior.
_UNKNOWN_UNITS, _LEAST_PRIOR = 0.05, 1e-3
#: Largest distance of a fitted logarithm from its prior.
_FARTHEST = 6.0
#: Excess time at which a kernel's own factor counts as much as its prior of 1.
_FACTOR_EXCESS = 0.1
#: Fitted parameters that all kernels share, beside the pressures and the classes.
_SHARED = ("extra_round_cost", "lacking_units_cost", "latency_sensitivity", "pressure_share_waiting")
#: Cost of a further round that counts as none; 0 would have kernels lose all units that they lack.
_NO_COST = 1e-6
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
        Rank, index into `CLASSES`, and index into `labels`.
    labels, partners : sequence of str
        Kernels with their grids, and kinds of work beside them.
    transferring, waiting : array of float64, shape (n, len(partners))
        Work beside the kernel, as a mean over its time: the pressure of `partners` counts this often.
    """

    graphs: Sequence[tuple[KernelGraph, Ints]]
    pair: Ints
    measured_ns: Floats
    alone_ns: Floats
    rank: Ints
    class_: Ints
    label: Ints
    labels: Sequence[str]
    partners: Sequence[str]
    transferring: Floats
    waiting: Floats

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
    return _gathered([_of_trace(trace, pairs, parameters, progress)], parameters)


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


def _gathered(traces: Sequence[_TraceKernels], parameters: Parameters) -> OverlappedKernels:
    """Return the kernels of all traces as arrays, with the work beside each; ranks of different traces stay apart."""
    graphs = [each for trace in traces for each in trace.graphs]
    columns, texts = [], []
    exposures: list[dict[str, tuple[Floats, Floats]]] = []
    for graph, tasks in graphs:
        columns.append(graph.tasks.class_[tasks])
        names, name = task_labels(graph, tasks)
        texts += [names[i] for i in name.tolist()]
        exposures.append(_exposures(graph, tasks, parameters))
    labels, label = np.unique(np.array(texts, dtype=object), return_inverse=True)
    partners = sorted({name for each in exposures for name in each})
    nothing = [np.zeros(len(tasks)) for _, tasks in graphs]
    beside = [
        np.stack(
            [
                np.concatenate([each.get(p, (zero, zero))[side] for each, zero in zip(exposures, nothing, strict=True)])
                for p in partners
            ],
            axis=1,
        )
        for side in (0, 1)
    ]
    pair = np.concatenate([trace.rows for trace in traces])
    measured, alone = (np.concatenate([each.column(name) for each in traces]) for name in ("duration_ns", "alone_ns"))
    ranks = np.concatenate([trace.column("rank") + number * _MOST_RANKS for number, trace in enumerate(traces)])
    rank = np.unique(ranks, return_inverse=True)[1]
    facts = pair, measured, alone, rank, np.concatenate(columns), label
    return OverlappedKernels(tuple(graphs), *facts, tuple(labels.tolist()), tuple(partners), *beside)


def _exposures(graph: KernelGraph, chosen: Ints, parameters: Parameters) -> dict[str, tuple[Floats, Floats]]:
    """Return for each kind of work how much of it transferred, and waited, beside each chosen kernel.

    Work beside a kernel is on the same device and another queue. A kernel counts with the units that it occupies.
    """
    tasks = graph.tasks
    wait_ns = wait_times(graph, tasks.measured_start_ns)
    works = graph.on_device() & (tasks.measured_end_ns > tasks.measured_start_ns) & (tasks.kind != TaskKind.MARK)
    spans = tasks.measured_end_ns[chosen] - tasks.measured_start_ns[chosen]
    result = {}
    transfers = transfer_share(graph, parameters)
    for name, rows, weight in _kinds_of_work(graph, np.flatnonzero(works)):
        span, share = (tasks.measured_start_ns[rows], tasks.measured_end_ns[rows]), transfers[rows]
        active = _overlap(graph, chosen, rows, weight * share, span)
        waits = ~np.isnan(wait_ns[rows])
        began = (wait_ns[rows[waits]], tasks.measured_start_ns[rows[waits]])
        held = _overlap(graph, chosen, rows[waits], weight[waits], began)
        held += _overlap(graph, chosen, rows, weight * (1.0 - share), span)
        if active.any() or held.any():
            result[name] = (active / spans, held / spans)
    return result


def _kinds_of_work(graph: KernelGraph, works: Ints) -> list[tuple[str, Ints, Floats]]:
    """Return the label, the tasks and the weights of each kind of work: collectives by label, copies, kernels."""
    tasks = graph.tasks
    copies, kernels = (works[tasks.kind[works] == kind] for kind in (TaskKind.COPY, TaskKind.KERNEL))
    kinds = [(COPY, copies, np.ones(len(copies))), (KERNEL, kernels, tasks.occupies[kernels])]
    rows = works[tasks.kind[works] == TaskKind.COLLECTIVE]
    labels, index = task_labels(graph, rows)
    kinds += [(name, rows[index == i], np.ones(int((index == i).sum()))) for i, name in enumerate(labels)]
    return kinds


def _overlap(graph: KernelGraph, chosen: Ints, rows: Ints, weight: Floats, spans: tuple[Floats, Floats]) -> Floats:
    """Return the weighted time of `spans` beside each chosen kernel, on its device and not on its queue."""
    tasks, total = graph.tasks, np.zeros(len(chosen))
    start, end = tasks.measured_start_ns[chosen], tasks.measured_end_ns[chosen]
    for device in np.unique(tasks.device[rows]):
        mine, theirs = np.flatnonzero(tasks.device[chosen] == device), tasks.device[rows] == device
        for lane, sign in ((None, 1.0), *((lane, -1.0) for lane in np.unique(tasks.lane[chosen[mine]]).tolist())):
            near = mine if lane is None else mine[tasks.lane[chosen[mine]] == lane]
            works = theirs if lane is None else theirs & (tasks.lane[rows] == lane)
            for side, since_ns in ((sign, spans[0][works]), (-sign, spans[1][works])):
                until_end, until_start = (_until(at[near], since_ns, weight[works]) for at in (end, start))
                total[near] += side * (until_end - until_start)
    return np.maximum(total, 0.0)


def _until(time_ns: Floats, since_ns: Floats, weight: Floats) -> Floats:
    """Return the sum of ``weight * max(time - since, 0)`` over all `since_ns`, for each time."""
    order = np.argsort(since_ns, kind="stable")
    weights = np.concatenate([[0.0], np.cumsum(weight[order])])
    moments = np.concatenate([[0.0], np.cumsum((weight * since_ns)[order])])
    count = np.searchsorted(since_ns[order], time_ns)
    return np.asarray(weights[count] * time_ns - moments[count])


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
        policy = replace(graph.policy, waiting_pressure=parameters["pressure_share_waiting"])
        work_ns = integrated_rates(with_interference(replace(graph, policy=policy), parameters))
        slow.append(_spans(graph)[tasks] / np.maximum(work_ns[tasks], 1.0))
    return np.concatenate(slow)


@dataclass(frozen=True)
class _Design:
    """Parts of the slow-down of each kernel that a fit weighs."""

    kernels: OverlappedKernels
    base: Floats  #: slow-down without interference; the least that the lost units allow
    rounds: Floats  #: what a further round adds to the time alone if it costs as much as the kernel
    lacking: Floats  #: what a kernel of several rounds loses if it loses all units of collectives

    @classmethod
    def of(cls, kernels: OverlappedKernels, parameters: Parameters) -> "_Design":
        quiet = parameters.with_calibration(InterferenceFit(classes=dict.fromkeys(CLASSES, _NO_COST)))
        # Without any pressure and sensitivity, collectives would not share their units.
        quiet = quiet.with_values([("pressure_collective", _NO_COST), ("latency_sensitivity", 0.0)])
        quiet = quiet.with_values([("extra_round_cost", _NO_COST), ("lacking_units_cost", 0.0)])
        base = slowdowns(kernels, quiet)
        costs = (quiet.with_values([(name, 1.0)]) for name in ("extra_round_cost", "lacking_units_cost"))
        rounds, lacking = (slowdowns(kernels, each) for each in costs)
        return cls(kernels, base, np.where(rounds > base, rounds - 1, 0.0), lacking - base)

    def predicted(self, rows: Ints, lost: Floats, more: Floats) -> Floats:
        """Return the slow-down of rows with a further round that costs `lost`, and a further slow-down `more`."""
        return np.asarray(np.maximum(self.base[rows], 1 + lost) + more)


@dataclass(frozen=True)
class TraceFit:
    """Parameters of contention that were fitted to overlapped kernels.

    Parameters
    ----------
    values : mapping of str to float
        Values of `TRACE_BOUNDS`.
    interference : InterferenceFit
        Pressures of collectives, and sensitivities of classes and kernels.
    """

    values: dict[str, float]
    interference: InterferenceFit

    def parameters(self, base: Parameters) -> Parameters:
        """Return `base` with the fitted values and the fitted interference."""
        return base.with_values(self.values.items()).with_calibration(self.interference)


def fit_interference(kernels: OverlappedKernels, parameters: Parameters, chosen: Bools | None = None) -> TraceFit:
    """Return the parameters under which predicted slow-downs are closest to the measured ones.

    The loss is Huber-like in logarithmic errors, with a weak prior at the shipped values. Then each kernel gets a
    factor on what is left, the more the longer it was slowed, so that a kernel with few launches keeps the factor 1.

    Parameters
    ----------
    kernels : OverlappedKernels
        Overlapped kernels of a trace.
    parameters : Parameters
        Parameters of the priors.
    chosen : array of bool, optional
        Kernels to fit; all by default.
    """
    return _fit(_Design.of(kernels, parameters), parameters, chosen)


def _fit(design: _Design, parameters: Parameters, chosen: Bools | None = None) -> TraceFit:
    """Return the fit to the chosen kernels of a design."""
    kernels = design.kernels
    rows = np.flatnonzero(np.ones(len(kernels), bool) if chosen is None else chosen)
    rows = rows[np.linspace(0, len(rows) - 1, min(len(rows), _MOST_ROWS)).astype(np.int64)]
    classes, class_ = np.unique(kernels.class_[rows], return_inverse=True)
    alone, n = kernels.alone_ns[rows], len(kernels.partners)
    measured = np.log(kernels.measured_ns[rows] / alone)
    weight = (alone / alone.mean()) ** _TIME_POWER
    prior, shared = _prior(kernels, parameters), len(_SHARED)
    active, held = kernels.transferring[rows], kernels.waiting[rows]

    def parts(at: Floats) -> tuple[Floats, Floats]:
        cost, lacking, latency, waiting = np.exp(at[:shared])
        pressure = (active + min(waiting, 1.0) * held) @ np.exp(at[shared : shared + n])
        sensitivity = np.exp(at[shared + n :])[class_] + latency * LATENCY_NS / alone
        return cost * design.rounds[rows], min(lacking, 1.0) * design.lacking[rows] + pressure * sensitivity

    def residuals(at: Floats) -> Floats:
        errors = weight * (np.log(design.predicted(rows, *parts(at))) - measured)
        soft = _SCALE * np.sqrt(2 * (np.sqrt(1 + (errors / _SCALE) ** 2) - 1)) * np.sign(errors)
        return np.concatenate([soft, _PRIOR * (at - start) * width])

    start = np.concatenate([prior, np.zeros(len(classes))])
    width = np.concatenate([_SHARED_WIDTHS, np.full(n, _PRESSURE_WIDTH), np.full(len(classes), _CLASS_WIDTH)])
    at = scipy.optimize.least_squares(residuals, start, max_nfev=60).x
    at = np.clip(at, start - _FARTHEST, start + _FARTHEST)
    values = dict(zip(_SHARED, np.exp(at[:shared]), strict=True))
    pressures = dict(zip(kernels.partners, np.exp(at[shared : shared + n]).tolist(), strict=True))
    values["pressure_collective"] = _per_unit(kernels, pressures, parameters)
    kept = {name: float(np.clip(value, *TRACE_BOUNDS[name])) for name, value in values.items()}
    of_class = {CLASSES[c]: float(s) for c, s in zip(classes.tolist(), np.exp(at[shared + n :]), strict=True)}
    factors = _factors(design, rows, *parts(at))
    device = kernels.graphs[0][0].hardware.device
    return TraceFit(kept, InterferenceFit(pressures, of_class, factors, device.name if device else ""))


def _prior(kernels: OverlappedKernels, parameters: Parameters) -> Floats:
    """Return the logarithms of the shipped values, and of the pressures that they give each kind of work."""
    units = _units(kernels)
    pressures = [parameters["pressure_collective"] * units.get(name, _UNKNOWN_UNITS) for name in kernels.partners]
    return np.log(np.maximum([*(parameters[name] for name in _SHARED), *pressures], _LEAST_PRIOR))


def _units(kernels: OverlappedKernels) -> dict[str, float]:
    """Return the share of the compute units that each collective beside the kernels holds."""
    shares: dict[str, float] = {}
    for graph, _ in kernels.graphs:
        rows = np.flatnonzero(graph.tasks.kind == TaskKind.COLLECTIVE)
        labels, index = task_labels(graph, rows)
        shares |= dict(zip([labels[i] for i in index.tolist()], graph.tasks.occupies[rows].tolist(), strict=True))
    return shares


def _per_unit(kernels: OverlappedKernels, pressures: dict[str, float], parameters: Parameters) -> float:
    """Return the pressure of collectives over the share of the units that they hold: the median over their time."""
    units = _units(kernels)
    rows = [
        (pressures[p] / units[p], kernels.transferring[:, i].sum())
        for i, p in enumerate(kernels.partners)
        if units.get(p)
    ]
    if not rows or not sum(weight for _, weight in rows):
        return parameters["pressure_collective"]
    ratio, weight = map(np.array, zip(*sorted(rows), strict=True))
    return float(ratio[np.searchsorted(np.cumsum(weight), weight.sum() / 2)])


def _factors(design: _Design, rows: Ints, lost: Floats, more: Floats) -> dict[str, float]:
    """Return the factor of each kernel on its modelled slow-down, `lost` and `more`, drawn to 1.

    It is the weighted median of the factors that explain the measured times. A further round costs nothing below the
    slow-down by the lost units, so of the two factors that may explain a time the smaller one does.
    """
    kernels, excess = design.kernels, lost + more
    slow = kernels.measured_ns[rows] / kernels.alone_ns[rows]
    ratio = (slow - design.base[rows]) / np.maximum(more, 1e-6)
    ratio = np.where(lost > 0, np.minimum(ratio, (slow - 1) / np.maximum(excess, 1e-6)), ratio)
    order = np.lexsort((ratio, kernels.label[rows]))
    factors = {}
    for block in np.split(order, np.flatnonzero(np.diff(kernels.label[rows][order])) + 1):  # a kernel each
        weight = np.cumsum((excess * kernels.alone_ns[rows])[block])
        middle = ratio[block][np.searchsorted(weight, weight[-1] / 2)]
        known = float((excess[block] ** 2).sum())
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
    design = _Design.of(kernels, parameters)
    for each in folds if len(folds) > 1 else ():
        held = fold == each
        result[held] = slowdowns(kernels, _fit(design, parameters, ~held).parameters(parameters))[held]
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
    kernels = _gathered(blocks, parameters)
    devices = {graph.hardware.device.name if graph.hardware.device else "" for graph, _ in kernels.graphs}
    if len(devices) > 1:
        names = ", ".join(sorted(devices))
        raise InvalidInputError(f"the traces are of {names}; fit the traces of one device at a time")
    return _with_ranges(kernels, parameters, tuple(trace.meta.fingerprint for trace in traces))


def _with_ranges(kernels: OverlappedKernels, parameters: Parameters, sources: Sequence[str]) -> ContentionFit:
    """Return the fit to all kernels, with ranges and a spread from fits that leave out a fold of kernels each."""
    design, fold = _Design.of(kernels, parameters), kernels.label % _FOLDS
    whole = _fit(design, parameters)
    errors, fits = np.zeros(len(kernels)), []
    for each in np.unique(fold).tolist():
        fits.append(_fit(design, parameters, fold != each) if (fold != each).any() else whole)
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
