"""Steps of a run under a what-if as samples, to be compared with measured steps.

`projected_sample` projects the steps of a trace as `seqpoint project` does. The parts and the kernels of the projected
steps are those of their timelines in the steady state.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from profilers.errors import InvalidInputError
from profilers.trace.arrays import MISSING, Floats, Ints
from profilers.trace.columns import lookup
from profilers.trace.kernels import CLASSES
from profilers.trace.trace import Trace
from replay.analysis import attribution, critical_path
from replay.contention.pairs import measure_pairs
from replay.contention.totals import with_pairs
from replay.costs.host import recording_cost
from replay.costs.shipped import load_parameters
from replay.engine.steady import SteadyState
from replay.engine.timeline import Timeline
from replay.graph.graph import TaskKind
from replay.projection.projection import Projection, ProjectionOptions, project
from replay.projection.rows import recording_notes
from replay.projection.windows import StepWindow
from replay.what_ifs import WhatIf
from seqpoint.graphs import step_windows
from seqpoint.kernel_facts import KernelFacts, kernel_facts
from seqpoint.step_sample import (
    COPY_LAYER,
    NO_CALL,
    PARTS,
    TRANSFER_LAYER,
    WAITING_LAYER,
    DeviceSpans,
    KernelTexts,
    ProjectedStep,
    RankWindows,
    StepSample,
    first_of,
    labels_of,
    layers,
    mean_parts,
    operators_of,
    step_sample,
    summed,
)

#: Most steps of a run that are projected.
_MOST_PROJECTED = 8
#: Times of a timeline are rounded to ns; less than this is no time between ranks.
_ROUNDING_NS = 10.0


def projected_sample(trace: Trace, what_if: WhatIf, *, device: str | None = None) -> StepSample:
    """Return the steps of a trace projected with a what-if, in the steady state.

    At most eight steps are projected: of a longer run the median of each eighth, in the order of step times. Step times
    and their interval are those that `seqpoint project` gives for these steps. Parts and kernels are those of the
    replayed steps.

    Parameters
    ----------
    trace : Trace
        The trace of a run with device work.
    what_if : WhatIf
        The what-if.
    device : str, optional
        Device that the trace was recorded on, if the trace does not say.

    Raises
    ------
    SeqPointError
        The trace has no device work, or the what-if cannot be applied to it.
    """
    sample = step_sample(trace)
    if not len(sample):
        return sample
    if sample.on_host:
        raise InvalidInputError(f"{what_if.label}: the trace has no device work, so its classes cannot be projected")
    order = np.argsort(sample.step_ns, kind="stable")
    groups = np.array_split(order, min(len(order), _MOST_PROJECTED))
    sample = sample.take(np.sort([group[(len(group) - 1) // 2] for group in groups]))
    parameters, pairs = load_parameters(), measure_pairs(trace)
    cost = recording_cost(trace, parameters, sample.iteration.tolist())
    windows = [
        replace(window, graph=with_pairs(window.graph, pairs), recording=cost)
        for window in step_windows(trace, sample.iteration.tolist(), device=device, parameters=parameters)
    ]
    numbers = [window.graph.iterations[window.chosen[0]] for window in windows]
    projection = project(
        windows, [what_if], meta=trace.meta, parameters=parameters, options=ProjectionOptions(iterations=numbers)
    )
    if not projection.rows[0].applied:
        raise InvalidInputError(f"{what_if.label}: not applicable: {projection.rows[0].reason}")
    values = parameters.with_values(what_if.parameters)
    change = partial(what_if, parameters=values)
    states = [(window.isolated(values) if what_if.parameters else window).steady(change) for window in windows]
    steps = [
        _ProjectedRow(window.graph.iterations[position], state, position, _factor(window))
        for window, state in zip(windows, states, strict=True)
        for position in window.chosen
    ]
    steps.sort(key=lambda step: step.iteration)
    projected = _projected_step(projection, trace, len(steps))
    return replace(_projected_steps(sample, steps, kernel_facts(trace)), projected=projected)


def _factor(window: StepWindow) -> float:
    """Return the measured over the replayed time of the steps of a window, by which projected times are scaled."""
    steady = window.total_ns(window.steady())
    return window.measured_total_ns / steady if steady and window.measured_total_ns else 1.0


def _projected_step(projection: Projection, trace: Trace, steps: int) -> ProjectedStep:
    """Return the mean step time of the what-if of a projection of some steps."""
    (row,) = projection.rows
    low, high = (projection.baseline_ns / speedup / steps for speedup in (row.high, row.low))
    steady = projection.steady_ns / projection.measured_ns if projection.measured_ns else 1.0
    world_size, communication = trace.meta.world_size or 0, projection.pace.get("communication", 0.0)
    about = recording_notes(steady, communication, world_size=world_size, ranks=len(trace.meta.ranks))
    confidence = float(projection.provenance["confidence"])
    return ProjectedStep(row.label, row.projected_ns / steps, low, high, confidence, (*row.notes, *about))


@dataclass(frozen=True)
class _ProjectedRow:
    """One projected step: its steady state, its position in the cycle, and the factor of its times."""

    iteration: int
    state: SteadyState
    position: int
    factor: float

    @property
    def step_ns(self) -> float:
        return self.factor * float(self.state.step_ns[self.position])

    @property
    def number(self) -> int:
        """Position among the iterations of the repeated graph: in the last cycle but one."""
        size, iterations = len(self.state.step_ns), self.state.timeline.graph.iterations
        return self.position + max(len(iterations) - 2 * size, 0) * self.state.repeats

    def parts(self) -> Floats:
        """Return the parts of the step; they add up to `step_ns`. All idle time is outside of host calls."""
        begin, until = self.state.intervals_ns[self.position].tolist()
        parts = mean_parts(_timeline_spans(self.state.timeline, begin), self._of_ranks(begin), 1)[0]
        parts *= self.step_ns / (until - begin) if until > begin else 0.0
        rest = self.step_ns - parts.sum()
        parts[-1 if rest > _ROUNDING_NS else PARTS.index(NO_CALL)] += rest
        return np.asarray(parts)

    def _of_ranks(self, begin: float) -> dict[int, RankWindows]:
        """Return the step of each rank: from its completion of the iteration before to that of this one."""
        line, row, steps = self.state.timeline, np.zeros(1, np.int64), {}
        tasks, ranks = line.graph.tasks, line.graph.ranks()
        for rank in np.unique(ranks[ranks >= 0]).tolist():
            of_rank = (ranks == rank) & tasks.in_iteration
            earlier = line.end_ns[of_rank & (tasks.iteration < self.number)]
            before = float(earlier.max()) if len(earlier) else begin
            done = float(line.end_ns[of_rank & (tasks.iteration <= self.number)].max(initial=before))
            steps[rank] = RankWindows(row, _whole([before]), _whole([done]))
        return steps

    def kernels(self, facts: KernelFacts, labels: KernelTexts) -> tuple[tuple[Ints, ...], Floats, KernelTexts]:
        """Return rows of `summed` for the kernels of the step, the kernels that each row counts as, and their texts.

        A kernel that a what-if splits counts once. One that a what-if adds has no operator.
        """
        line, tasks = self.state.timeline, self.state.timeline.graph.tasks
        is_kernel = np.isin(tasks.kind, (TaskKind.KERNEL, TaskKind.COLLECTIVE)) & (tasks.device >= 0)
        rows = np.flatnonzero(is_kernel & (tasks.iteration == self.number))
        fact = lookup(facts.event, np.arange(len(facts)), np.where(tasks.event[rows] < 0, MISSING, tasks.event[rows]))
        known, name = fact != MISSING, tasks.name[rows]
        fact = np.where(known, fact, 0)
        added = [str(text) for text in line.graph.names]
        texts = labels._replace(
            operators=(*labels.operators, *added),
            kernels=(*labels.kernels, *added),
            classes=(*labels.classes, *_classes_of(name, tasks.class_[rows], len(added))),
        )
        _, piece, pieces = np.unique(np.where(known, fact, -1 - rows), return_inverse=True, return_counts=True)
        since = line.on_device_since()[0][rows]
        return (
            (
                np.full(len(rows), self.iteration),
                line.graph.ranks()[rows],
                _whole(line.start_ns[rows]),
                np.where(known, operators_of(facts)[fact], len(labels.operators) + name),
                np.where(known, facts.shape[fact], -1),
                np.where(known, facts.name[fact], len(labels.kernels) + name),
                _whole(line.end_ns[rows] - since),
            ),
            1.0 / pieces[piece],
            texts,
        )


def _whole(times: Sequence[float] | Floats) -> Ints:
    """Return times in whole ns."""
    return np.rint(times).astype(np.int64)


def _classes_of(names: Ints, classes: Ints, size: int) -> tuple[str, ...]:
    """Return the class of the kernels of each name."""
    return tuple(CLASSES[code] for code in first_of(names, np.maximum(classes, 0), size).tolist())


def _timeline_spans(line: Timeline, begin: float) -> Iterator[tuple[int, DeviceSpans]]:
    """Yield the rank and the intervals of each device of a timeline, from a time on."""
    graph, since = line.graph, line.on_device_since()[0]
    layer = layers()[graph.tasks.class_]
    layer[graph.tasks.kind == TaskKind.COPY] = COPY_LAYER
    layer[graph.collectives()] = TRANSFER_LAYER
    for device, (rank, _) in enumerate(graph.devices):  # a Python loop over devices
        rows = np.flatnonzero(graph.on_device() & (graph.tasks.device == device) & (line.end_ns > begin))
        arrived, start, end = (_whole(times[rows]) for times in (since, line.start_ns, line.end_ns))
        waiting = DeviceSpans(arrived, start, np.full(len(rows), WAITING_LAYER))
        yield rank, DeviceSpans(start, end, layer[rows]).joined(waiting.select(arrived < start))


def _projected_steps(sample: StepSample, steps: Sequence[_ProjectedRow], facts: KernelFacts) -> StepSample:
    """Return a sample with other steps in the place of its own, in the same order."""
    labels, counts, columns = labels_of(facts), [], []
    for step in steps:
        rows, count, labels = step.kernels(facts, labels)
        columns.append(rows)
        counts.append(count)
    joined = tuple(np.concatenate(column) for column in zip(*columns, strict=True))
    step_ns = np.array([step.step_ns for step in steps])
    typical = steps[int(np.argsort(step_ns, kind="stable")[(len(steps) - 1) // 2])]
    graph = typical.state.timeline.graph
    path = attribution(critical_path(typical.state.at_step(typical.position)))
    return replace(
        sample,
        step_ns=step_ns,
        parts_ns=np.stack([step.parts() for step in steps]),
        launches=summed(joined, sample.iteration, labels, np.concatenate(counts)),
        all_ns=float(step_ns.mean()),
        ranks=tuple(sorted({lane.rank for lane in graph.lanes})),
        hardware=graph.hardware,
        path_ns=path.by_cause,
        path_iteration=typical.iteration,
    )
