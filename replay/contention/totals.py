"""Time that contention takes in a trace: measured by its pairs, modelled by the engine for the other launches.

`contention_time` counts kernels beside other work, and collectives from the arrival of their last rank on. A launch
with a pair took longer than alone by a time that was measured. For other launches, the graph of their iteration has an
isolated duration, which the engine inferred. `iteration_graphs` builds these graphs for a whole trace. `with_pairs`
uses the pairs as evidence for the isolated durations of a graph.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from profilers.trace.arrays import MISSING, Bools, Floats, Ints, integers, integers_or_missing, numbers
from profilers.trace.columns import lookup
from profilers.trace.trace import Trace
from replay.calibration.parameters import Parameters
from replay.contention.launches import DeviceEvents, Neighbors
from replay.contention.pairs import ContentionPairs, collective_pairs, measure_pairs, transfers
from replay.from_trace import build_graph, index_trace
from replay.graph.graph import Basis, Hardware, KernelGraph, TaskKind

#: Kernels of a trace that are modelled at most, and iterations of one graph.
MOST_KERNELS, _GRAPH_ITERATIONS = 150_000, 4
#: An isolated duration agrees with the time alone up to this relative difference, or up to the scatter of the group.
_AGREEMENT = 0.05


@dataclass(frozen=True)
class ContentionRow:
    """Kernels beside other work, and the time that contention took from them; times in ns.

    Parameters
    ----------
    label : str
        Class of the kernels, name of their partner, ``"collectives"``, or empty for all other kernels.
    launches : int
        Number of launches.
    time_ns, beside_ns : float
        Sum of their durations, and the time in it with other work beside the kernel.
    measured_launches, modelled_launches : int
        Number of launches whose contention was measured, and was modelled.
    measured_time_ns, modelled_time_ns : float
        Sum of the durations of each.
    measured_ns, modelled_ns : float
        Time that contention added to each. The measured time has the noise of the measurement, so it can be negative.
    model_ratio : float
        Contention that the model gives the measured launches, over the measured one; NaN if they are not modelled.
    """

    label: str
    launches: int
    time_ns: float
    beside_ns: float
    measured_launches: int
    measured_time_ns: float
    measured_ns: float
    modelled_launches: int
    modelled_time_ns: float
    modelled_ns: float
    model_ratio: float

    @property
    def contention_ns(self) -> float:
        """Time that contention added, measured or modelled."""
        return self.measured_ns + self.modelled_ns

    @property
    def unknown_launches(self) -> int:
        """Number of launches whose contention is unknown."""
        return self.launches - self.measured_launches - self.modelled_launches

    def to_dict(self) -> dict[str, Any]:
        """Return the row as JSON with stable keys."""
        return asdict(self) | {"model_ratio": None if np.isnan(self.model_ratio) else self.model_ratio}


@dataclass(frozen=True)
class ContentionTime:
    """Time that contention took from the kernels of a trace, or of one of its iterations.

    Parameters
    ----------
    kernels : int
        Number of all kernels that are no collectives.
    kernel_ns : float
        Sum of their durations.
    total : ContentionRow
        All kernels beside other work that are no collectives.
    collectives : ContentionRow
        Collectives beside other work whose wait for other ranks is known and taken out.
    by_class, by_partner : tuple of ContentionRow
        The same by class, and by the name of the work beside them for the longest time; most time first.
    noise : float
        Relative error of a launch alone that is predicted from the others, weighted by time; NaN if unknown.
    confounded : str
        Why the pairs of kernels do not measure contention, so that all of it is modelled; empty if they do.
    """

    kernels: int
    kernel_ns: float
    total: ContentionRow
    collectives: ContentionRow
    by_class: tuple[ContentionRow, ...]
    by_partner: tuple[ContentionRow, ...]
    noise: float
    confounded: str

    def to_dict(self) -> dict[str, Any]:
        """Return the times as JSON with stable keys."""
        total = self.total.to_dict()
        del total["label"]
        return {
            "kernels": self.kernels,
            "kernel_ns": self.kernel_ns,
            **total,
            "collectives": self.collectives.to_dict(),
            "by_class": [row.to_dict() for row in self.by_class],
            "by_partner": [row.to_dict() for row in self.by_partner],
            "noise": None if np.isnan(self.noise) else self.noise,
            "confounded": self.confounded or None,
        }


@dataclass(frozen=True)
class _Slowed:
    """Launches beside other work: columns of equal length.

    Parameters
    ----------
    time_ns, beside_ns : array of float64
        Duration, and time with other work beside it.
    measured_ns, modelled_ns : array of float64
        Time that contention added, measured by a pair, and by the model; NaN if unknown.
    """

    time_ns: Floats
    beside_ns: Floats
    measured_ns: Floats
    modelled_ns: Floats

    def row(self, label: str, chosen: Ints | slice = slice(None)) -> ContentionRow:
        """Return the sums over the chosen launches."""
        time, beside, measured, modelled = (column[chosen] for column in vars(self).values())
        is_measured, is_modelled = ~np.isnan(measured), ~np.isnan(modelled)
        both, sums = is_measured & is_modelled, list[Any]()
        for rows, added in ((is_measured, measured), (is_modelled & ~is_measured, modelled)):
            sums += [int(rows.sum()), float(time[rows].sum()), float(added[rows].sum())]
        reference = float(measured[both].sum())
        sums.append(float(modelled[both].sum()) / reference if reference > 0 else float("nan"))
        return ContentionRow(label, len(time), float(time.sum()), float(beside.sum()), *sums)

    def by(self, code: Ints, names: Sequence[str]) -> tuple[ContentionRow, ...]:
        """Return a row for each name that occurs, with most time first."""
        order = np.argsort(code, kind="stable")
        blocks = np.split(order, np.flatnonzero(np.diff(code[order])) + 1) if len(code) else []
        rows = [self.row(names[code[block[0]]], block) for block in blocks]  # a loop over names
        return tuple(sorted(rows, key=lambda row: (-abs(row.contention_ns), -row.time_ns, row.label)))


def contention_time(trace: Trace, graphs: Iterable[KernelGraph], *, iterations: Sequence[int] = ()) -> ContentionTime:
    """Return the time that contention took from the kernels and from the collectives of a trace.

    Pairs that are confounded are not used.

    Parameters
    ----------
    trace : Trace
        The trace.
    graphs : iterable of KernelGraph
        Graphs of its iterations with isolated durations. Launches that are in none have no modelled time.
    iterations : sequence of int
        Iterations whose kernels count; by default all kernels, also outside of iterations.
    """
    events, pairs = DeviceEvents.of(trace), measure_pairs(trace)
    counted = np.ones(events.kernels, bool)
    if iterations:
        counted = np.isin(integers_or_missing(trace.kernels, "iteration"), iterations)
    modelled_ns = _modelled(graphs, events.id[: events.kernels])
    near, (moving, known) = Neighbors.of(events, 0), transfers(trace, events)
    is_kernel, is_transfer = counted & ~events.is_collective, np.zeros(events.kernels, bool)
    is_transfer[known] = counted[known]
    rows, slowed = _slowed((events, near), is_kernel, pairs, modelled_ns)
    transferring = (moving, Neighbors.of(moving, 0) if len(known) else near)
    _, collectives = _slowed(transferring, is_transfer, collective_pairs(trace), modelled_ns)
    duration = np.maximum(events.end_ns - events.start_ns, 0)[: events.kernels][is_kernel]
    return ContentionTime(
        kernels=int((duration > 0).sum()),
        kernel_ns=float(duration.sum()),
        total=slowed.row(""),
        collectives=collectives.row("collectives"),
        by_class=slowed.by(*_by_text(events.classes, events.name[rows])),
        by_partner=slowed.by(*_by_text(events.names, events.name[near.partner[rows]])),
        noise=pairs.noise_mean,
        confounded=pairs.confounded,
    )


def _slowed(
    beside: tuple[DeviceEvents, Neighbors], chosen: Bools, pairs: ContentionPairs, modelled_ns: Floats
) -> tuple[Ints, _Slowed]:
    """Return the rows of the chosen kernels that are beside other work, and their times."""
    events, near = beside
    duration = (events.end_ns - events.start_ns)[: events.kernels]
    rows = np.flatnonzero(chosen & (duration > 0) & (near.beside_ns[: events.kernels] > 0))
    time = duration[rows].astype(np.float64)
    alone = _alone(pairs, events.id[rows])
    return rows, _Slowed(time, near.beside_ns[rows].astype(np.float64), time - alone, modelled_ns[rows])


def _by_text(names: Any, code: Ints) -> tuple[Ints, list[str]]:
    """Return the codes of names with equal texts joined, and the texts."""
    texts, number = np.unique(names.astype(str), return_inverse=True)
    return number[code].astype(np.int64), texts.tolist()


def _alone(pairs: ContentionPairs, ids: Ints) -> Floats:
    """Return the time alone of each launch with a pair that measures contention; NaN for others."""
    if pairs.confounded or not len(pairs.event):
        return np.full(len(ids), np.nan)
    row = lookup(pairs.event, np.arange(len(pairs.event)), ids)
    return np.where(row == MISSING, np.nan, pairs.alone_ns[np.where(row == MISSING, 0, row)])


def _modelled(graphs: Iterable[KernelGraph], ids: Ints) -> Floats:
    """Return the time that contention added to kernels, by the isolated durations of graphs; NaN if in none."""
    added = np.full(len(ids), np.nan)
    for graph in graphs:
        tasks = graph.tasks
        spans = tasks.measured_end_ns - tasks.measured_start_ns
        is_kernel = (tasks.kind == TaskKind.KERNEL) | (tasks.kind == TaskKind.COLLECTIVE)
        chosen = np.flatnonzero(is_kernel & graph.on_device() & tasks.in_iteration & (spans > 0))
        row = lookup(ids, np.arange(len(ids)), tasks.event[chosen])
        added[row[row != MISSING]] = (spans - tasks.duration_ns)[chosen[row != MISSING]]
    return added


def iteration_graphs(trace: Trace, parameters: Parameters, hardware: Hardware | None = None) -> Iterator[KernelGraph]:
    """Yield the graphs of a trace's iterations, one at a time to bound memory; of a long trace, evenly over it.

    Parameters
    ----------
    trace : Trace
        The trace.
    parameters : Parameters
        Parameters of the contention model.
    hardware : Hardware, optional
        Device that the trace was recorded on, if the trace does not say.
    """
    blocks = iteration_blocks(trace)
    index = index_trace(trace) if blocks else None
    for block in blocks:
        assert index is not None
        yield build_graph(index, block, hardware, parameters=parameters)


def iteration_blocks(trace: Trace, chosen: Ints | None = None) -> list[tuple[int, ...]]:
    """Return blocks of consecutive iterations; of a long trace, evenly over it, so that few kernels are in them.

    Parameters
    ----------
    trace : Trace
        The trace.
    chosen : array of int64, optional
        Iterations; blocks without any of them are left out. By default, no block is.
    """
    iterations = np.setdiff1d(integers(trace.iterations, "iteration"), trace.meta.context)
    blocks = np.array_split(iterations, -(-len(iterations) // _GRAPH_ITERATIONS)) if len(iterations) else []
    used = [tuple(block.tolist()) for block in blocks if chosen is None or np.isin(chosen, block).any()]
    return used[:: max(-(-trace.kernels.num_rows // MOST_KERNELS), 1)]


def with_pairs(graph: KernelGraph, pairs: ContentionPairs) -> KernelGraph:
    """Return a copy of `graph` whose isolated durations have the basis that pairs give them.

    An isolated duration is measured if it agrees with the measured time of the same launch alone: up to 5 %, or up to
    the scatter of the launches alone. It is modelled if it does not, even if the engine finds no contention. Durations
    and launches without a pair stay as they are, and so does the graph if the pairs are confounded.

    Parameters
    ----------
    graph : KernelGraph
        Graph with isolated durations.
    pairs : ContentionPairs
        Pairs of its trace.
    """
    tasks, origin = graph.tasks, int(graph.origin)
    chosen = np.flatnonzero((tasks.kind == TaskKind.KERNEL) & graph.on_device())
    alone = _alone(pairs, tasks.event[chosen])
    chosen, alone = chosen[~np.isnan(alone)], alone[~np.isnan(alone)]
    if not len(chosen):
        return graph
    row = lookup(pairs.event, np.arange(len(pairs.event)), tasks.event[chosen])
    scatter = numbers(pairs.groups["alone_scatter"], np.nan)[pairs.group[row]]
    agrees = np.abs(tasks.duration_ns[chosen] / alone - 1) <= np.maximum(np.nan_to_num(scatter), _AGREEMENT)
    basis = tasks.basis.copy()
    basis[chosen] = np.where(agrees, origin, max(int(Basis.MODELLED), origin))
    return graph.with_tasks(basis=basis)
