"""Stragglers: what a step would take if all ranks, stages and operations were as the mean, and who makes it longer.

A job waits for its slowest rank at every exchange. `attribute_stragglers` times a step three ways in the engine: as it
was, with every duration balanced, and balanced except for one rank, stage, operation or micro-batch. The last over
the second is the slow-down that this one causes alone (arXiv 2505.05713). `OperationBalance` does so for a table of
operations, `TraceBalance` for the kernel graph of a trace.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from profilers.trace.arrays import Bools, Floats, Ints, row_keys
from profilers.trace.kernels import CLASSES
from replay.engine.engine import simulate
from replay.engine.steady import Change, unchanged
from replay.graph.choice import pipeline_stages
from replay.graph.graph import COLLECTIVE_KINDS, HOST_TIME_EDGES, KernelGraph, TaskKind
from replay.workloads.operations import (
    OperationGraph,
    Operations,
    balanced_durations,
    operation_graph,
    operation_labels,
)

#: What a step is attributed to, in the order of tables.
DIMENSIONS: tuple[str, ...] = ("rank", "stage", "operation", "micro_batch")
#: Fixes beside those of the worst of each dimension: the last stage, which computes the loss, and the worst 3 % of the
#: workers (rank and stage). What they recover is M_S and M_W in the paper.
LAST_STAGE, WORST_WORKERS = "last_stage", "worst_workers"
#: Labels of tasks: by dimension a number for each task, -1 for none, and the names of the numbers.
Labels = Mapping[str, tuple[Ints, Sequence[str]]]
#: Name of the operation of host calls, and of copies.
_HOST, _COPIES = "host", "copies"


class Balance(Protocol):
    """Balanced durations of a graph, and the labels by which tasks keep their own."""

    def balanced(self, graph: KernelGraph) -> KernelGraph:
        """Return the graph with every duration as the mean of its kind."""

    def labels(self, graph: KernelGraph) -> Labels:
        """Return the labels of the tasks."""


@dataclass(frozen=True)
class OperationBalance:
    """Balance of a table of operations.

    Parameters
    ----------
    operations : OperationGraph
        Operations with their graph.
    """

    operations: OperationGraph

    @cached_property
    def _durations(self) -> Floats:
        duration_ns = np.zeros(len(self.operations.graph.tasks))
        duration_ns[self.operations.task] = balanced_durations(self.operations)
        return duration_ns

    @cached_property
    def _labels(self) -> Labels:
        return operation_labels(self.operations)

    def balanced(self, graph: KernelGraph) -> KernelGraph:
        """Return the graph with the mean of each kind of pass, and the median of each kind of exchange."""
        return graph.with_tasks(duration_ns=self._durations)

    def labels(self, graph: KernelGraph) -> Labels:
        """Return the labels of the tasks of `graph`, which has those of the operations."""
        return self._labels

    def step_times(self, changes: Sequence[Change]) -> list[Floats]:
        """Return the time of every step under each change, ns."""
        iteration, times = self.operations.graph.tasks.iteration, []
        for change in changes:
            ends = np.zeros(len(self.operations.operations.steps))
            np.maximum.at(ends, iteration, simulate(change(self.operations.graph))[1])
            times.append(ends)
        return times


class TraceBalance:
    """Balance of the ranks of a trace."""

    def balanced(self, graph: KernelGraph) -> KernelGraph:
        """Return the graph with the work of all ranks as their mean.

        A kernel, copy or host call takes the mean over the ranks of the n-th of its name in an iteration, and so does
        the host time before it. Where ranks have different numbers of a name, its time in an iteration scales to the
        mean over the ranks that have it. Collectives whose ranks meet take the median transfer of their name and size.
        """
        tasks, ranks = graph.tasks, graph.ranks()
        duration_ns = tasks.duration_ns.copy()
        kinds = (TaskKind.KERNEL, TaskKind.COPY, TaskKind.HOST)
        work = np.flatnonzero(np.isin(tasks.kind, kinds) & tasks.in_iteration & (ranks >= 0))
        duration_ns[work] = _means(duration_ns[work], tasks.name[work], tasks.iteration[work], ranks[work])
        meets = np.flatnonzero(graph.arrival_marks() >= 0)
        sizes = row_keys(tasks.name[meets], tasks.bytes[meets], tasks.ranks[meets])
        duration_ns[meets] = _medians(duration_ns[meets], sizes)
        edges, lag_ns = graph.edges, graph.edges.lag_ns.copy()
        rows = np.flatnonzero(np.isin(edges.kind, sorted(HOST_TIME_EDGES)) & tasks.in_iteration[edges.target])
        rows = rows[np.lexsort((edges.kind[rows], edges.target[rows]))]
        target = edges.target[rows]
        lag_ns[rows] = _means(lag_ns[rows], tasks.name[target], tasks.iteration[target], ranks[target])
        return replace(graph.with_tasks(duration_ns=duration_ns), edges=replace(edges, lag_ns=lag_ns))

    def labels(self, graph: KernelGraph) -> Labels:
        """Return the labels by rank, by stage if transfers between ranks tell it, and by class of kernel."""
        tasks, ranks = graph.tasks, graph.ranks()
        names = (*CLASSES, *COLLECTIVE_KINDS, _COPIES, _HOST)
        operation = tasks.class_.copy()
        is_known = tasks.collective >= 0
        operation[is_known] = len(CLASSES) + tasks.collective[is_known]
        operation[tasks.kind == TaskKind.COPY] = names.index(_COPIES)
        operation[tasks.kind == TaskKind.HOST] = names.index(_HOST)
        stage = pipeline_stages(graph)
        last = max(int(ranks.max(initial=0)), int(stage.max(initial=0)))
        numbers = [str(number) for number in range(last + 1)]
        return {"rank": (ranks, numbers), "stage": (stage, numbers), "operation": (operation, names)}


def _means(duration_ns: Floats, name: Ints, iteration: Ints, rank: Ints) -> Floats:
    """Return the durations of tasks as the mean over ranks."""
    of_rank = row_keys(iteration, name, rank)
    order = np.argsort(of_rank, kind="stable")
    first = np.searchsorted(of_rank[order], of_rank[order])
    nth = np.empty(len(name), dtype=np.int64)
    nth[order] = np.arange(len(name)) - first
    counts: Ints = np.bincount(of_rank)
    group = row_keys(iteration, name)
    _, one = np.unique(of_rank, return_index=True)
    groups = int(group.max(initial=-1)) + 1
    fewest, most = np.full(groups, len(name) + 1), np.zeros(groups)
    np.minimum.at(fewest, group[one], counts[of_rank[one]])
    np.maximum.at(most, group[one], counts[of_rank[one]])
    alike = (fewest == most)[group]
    position = row_keys(group, nth)
    same = _group_means(duration_ns, position)
    total: Floats = np.bincount(of_rank, weights=duration_ns).astype(np.float64)
    mean_total = _group_means(total[of_rank[one]], group[one])
    of_group = np.empty(groups)
    of_group[group[one]] = mean_total
    scaled = duration_ns * of_group[group] / np.maximum(total[of_rank], 1e-9)
    return np.where(alike, same, scaled)


def _group_means(values: Floats, group: Ints) -> Floats:
    """Return the mean of the group of each value."""
    counts = np.maximum(np.bincount(group), 1)
    return np.asarray((np.bincount(group, weights=values) / counts)[group])


def _medians(values: Floats, group: Ints) -> Floats:
    """Return the median of the group of each value."""
    medians = values.copy()
    order = np.argsort(group, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(group[order])) + 1):  # one a name and size
        medians[rows] = np.median(values[rows]) if len(rows) else 0.0
    return medians


def keep(balance: Balance, dimension: str, values: Sequence[int], *, before: Change = unchanged) -> Change:
    """Return the change that balances all tasks except those whose label is one of `values`."""
    return _mix(balance, dimension, values, keeps=True, before=before)


def fix(balance: Balance, dimension: str, values: Sequence[int], *, before: Change = unchanged) -> Change:
    """Return the change that balances the tasks whose label is one of `values`, and no others."""
    return _mix(balance, dimension, values, keeps=False, before=before)


def _mix(balance: Balance, dimension: str, values: Sequence[int], *, keeps: bool, before: Change) -> Change:
    def change(graph: KernelGraph) -> KernelGraph:
        graph = before(graph)
        labelled = np.isin(balance.labels(graph)[dimension][0], values)
        return mixed(graph, balance.balanced(graph), labelled if keeps else ~labelled)

    return change


def mixed(graph: KernelGraph, balanced: KernelGraph, keeps: Bools) -> KernelGraph:
    """Return a graph with the times of `graph` for the tasks in the mask `keeps`, and the balanced ones for others."""
    duration_ns = np.where(keeps, graph.tasks.duration_ns, balanced.tasks.duration_ns)
    tasks = graph.with_tasks(duration_ns=duration_ns)
    if balanced.edges is graph.edges:
        return tasks
    lag_ns = np.where(keeps[graph.edges.target], graph.edges.lag_ns, balanced.edges.lag_ns)
    return replace(tasks, edges=replace(graph.edges, lag_ns=lag_ns))


@dataclass(frozen=True)
class Straggler:
    """A rank, stage, operation or micro-batch, and what it costs alone.

    Parameters
    ----------
    by : str
        One of `DIMENSIONS`.
    name : str
        Number or name.
    step_ns : array of float64, shape (n_steps,)
        Time of each step if all but this one were balanced.
    slowdown : float
        Mean of these times over the mean of the balanced ones.
    """

    by: str
    name: str
    step_ns: Floats
    slowdown: float


@dataclass(frozen=True)
class Stragglers:
    """Steps of a job as they were and balanced, and who makes them longer.

    Parameters
    ----------
    job : str
        Name of the job.
    steps : tuple of int
        Numbers of the steps.
    recorded_ns : array of float64, shape (n_steps,)
        Recorded times of the steps.
    base_ns, balanced_ns : array of float64, shape (n_steps,)
        Replayed times of the steps as they were, and with balanced durations.
    rows : tuple of Straggler
        Everybody by dimension, the worst first.
    fixed_ns : mapping of str to float
        Mean time of a step if only the worst of a dimension were balanced, by dimension; also of `LAST_STAGE` and
        `WORST_WORKERS`.
    workers : tuple of str
        The worst workers, as rank/stage; none of a trace.
    excess_ns : mapping of str to float
        How much longer the worst rank works in a step than the balanced one, over its stages, by operation; the
        largest first.
    notes : tuple of str
        Remarks on the records.
    """

    job: str
    steps: tuple[int, ...]
    recorded_ns: Floats
    base_ns: Floats
    balanced_ns: Floats
    rows: tuple[Straggler, ...]
    fixed_ns: Mapping[str, float]
    workers: tuple[str, ...] = ()
    excess_ns: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def slowdown(self) -> float:
        """Mean replayed time of a step over the mean balanced one."""
        return float(self.base_ns.mean() / self.balanced_ns.mean())

    @property
    def waste(self) -> float:
        """Share of the GPUs' time that balanced work would save."""
        return 1.0 - 1.0 / self.slowdown

    def of(self, dimension: str) -> tuple[Straggler, ...]:
        """Return the rows of a dimension, the worst first; none if the records do not tell it."""
        return tuple(row for row in self.rows if row.by == dimension)

    def recovered(self, dimension: str) -> float:
        """Return the share of the slow-down that one of the fixes would end: a key of `fixed_ns`."""
        lost = float(self.base_ns.mean() - self.balanced_ns.mean())
        return (float(self.base_ns.mean()) - self.fixed_ns[dimension]) / lost if lost else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the steps and a row for each rank, stage, operation and micro-batch, as JSON with stable keys."""
        ideal = self.balanced_ns
        rows = [
            {
                "job": self.job,
                "by": row.by,
                "name": row.name,
                "slowdown": row.slowdown,
                "extra_ns": float(row.step_ns.mean() - ideal.mean()),
                "by_step": dict(zip(self.steps, (row.step_ns / ideal).tolist(), strict=True)),
            }
            for row in self.rows
        ]
        columns = ("recorded_ns", "base_ns", "balanced_ns")
        return {
            "job": self.job,
            "slowdown": self.slowdown,
            "recovered": {name: self.recovered(name) for name in self.fixed_ns},
            "worst_workers": list(self.workers),
            "worst_rank_excess_ns": dict(self.excess_ns),
            "steps": [
                {"step": step, **{name: float(getattr(self, name)[i]) for name in columns}}
                for i, step in enumerate(self.steps)
            ],
            "rows": rows,
            "notes": list(self.notes),
        }


@dataclass(frozen=True)
class StragglerRun:
    """Times under the changes of an attribution.

    Parameters
    ----------
    balance : Balance
        Balanced durations and labels.
    graph : KernelGraph
        Graph whose labels name the ranks, stages, operations and micro-batches.
    step_times : callable
        Return the times of the steps under each of some changes, ns.
    before : callable
        Change that comes before all others, such as a what-if.
    """

    balance: Balance
    graph: KernelGraph
    step_times: Callable[[Sequence[Change]], list[Floats]]
    before: Change = unchanged


def attribute_stragglers(
    run: StragglerRun, *, job: str, steps: Sequence[int], recorded_ns: Floats, notes: Sequence[str] = ()
) -> Stragglers:
    """Return the slow-down of steps, and the slow-down that each rank, stage, operation and micro-batch causes alone.

    Parameters
    ----------
    run : StragglerRun
        Balance, graph and engine.
    job : str
        Name of the job.
    steps : sequence of int
        Numbers of the steps.
    recorded_ns : array of float64, shape (n_steps,)
        Recorded times of the steps.
    notes : sequence of str
        Remarks on the records.
    """
    graph = run.before(run.graph)
    labels, keys, changes = run.balance.labels(graph), [], [run.before, _all_balanced(run)]
    for dimension in DIMENSIONS:
        if dimension not in labels:
            continue
        values, names = labels[dimension]
        present: npt.NDArray[Any] = np.unique(values)
        for value in present[present >= 0].tolist():
            keys.append((dimension, value, names[value]))
            changes.append(keep(run.balance, dimension, [value], before=run.before))
    base, balanced, *times = run.step_times(changes)
    rows = [
        Straggler(dimension, name, of_steps, float(of_steps.mean() / balanced.mean()))
        for (dimension, _, name), of_steps in zip(keys, times, strict=True)
    ]
    order = sorted(range(len(rows)), key=lambda i: (DIMENSIONS.index(rows[i].by), -rows[i].slowdown, keys[i][1]))
    found = tuple(rows[i] for i in order)
    fixes = {name: (name, [value]) for name, value in {rows[i].by: keys[i][1] for i in reversed(order)}.items()}
    if "stage" in fixes:
        fixes[LAST_STAGE] = ("stage", [int(labels["stage"][0].max())])
    if "worker" in labels:
        fixes[WORST_WORKERS] = ("worker", _worst_workers(found, labels["worker"][1]))
    fixed = run.step_times([fix(run.balance, *which, before=run.before) for which in fixes.values()])
    fixed_ns = {name: float(times.mean()) for name, times in zip(fixes, fixed, strict=True)}
    workers = tuple(labels["worker"][1][value] for value in fixes[WORST_WORKERS][1]) if "worker" in labels else ()
    excess_ns = _excess(run, graph, labels, fixes["rank"][1][0])
    ends = (workers, {name: ns / len(steps) for name, ns in excess_ns.items()}, tuple(notes))
    return Stragglers(job, tuple(steps), recorded_ns, base, balanced, found, fixed_ns, *ends)


def _excess(run: StragglerRun, graph: KernelGraph, labels: Labels, rank: int) -> dict[str, float]:
    """Return by operation how much longer a rank works than the balanced one, ns; the largest first."""
    balanced, (operation, names) = run.balance.balanced(graph), labels["operation"]
    rows = np.flatnonzero((labels["rank"][0] == rank) & (operation >= 0))
    more = graph.tasks.duration_ns - balanced.tasks.duration_ns
    np.add.at(more, graph.edges.target, graph.edges.lag_ns - balanced.edges.lag_ns)
    sums = np.bincount(operation[rows], weights=more[rows], minlength=len(names))
    present = sorted(np.unique(operation[rows]).tolist(), key=lambda number: (-sums[number], number))
    return {names[number]: float(sums[number]) for number in present}


def _worst_workers(rows: Sequence[Straggler], names: Sequence[str]) -> list[int]:
    """Return the worst 3 % of the workers, at least one: the least of the slow-downs of its rank and stage counts."""
    slowdown = {(row.by, row.name): row.slowdown for row in rows}
    scores = []
    for number, name in enumerate(names):  # some thousands at most
        rank, _, stage = name.partition("/")
        scores.append((-min(slowdown["rank", rank], slowdown["stage", stage]), number))
    return [number for _, number in sorted(scores)[: -(-3 * len(names) // 100)]]


def _all_balanced(run: StragglerRun) -> Change:
    return lambda graph: run.balance.balanced(run.before(graph))


def operation_stragglers(operations: Operations) -> Stragglers:
    """Return the stragglers of a table of operations.

    Parameters
    ----------
    operations : Operations
        Operations of one job.

    Raises
    ------
    InvalidInputError
        As `replay.workloads.operations.operation_graph`.
    """
    balance = OperationBalance(operation_graph(operations))
    early = balance.operations.early
    notes = [f"{early} exchanges end before their last member starts: clocks differ"] if early else []
    run = StragglerRun(balance, balance.operations.graph, balance.step_times)
    return attribute_stragglers(
        run, job=operations.job, steps=operations.steps, recorded_ns=operations.step_ns, notes=notes
    )
