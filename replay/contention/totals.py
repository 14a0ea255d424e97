"""Time that contention takes in a trace: measured by its pairs, modelled by the engine for the other launches.

`contention_time` looks at the kernels beside other work that are no collectives. A launch with a pair took longer than
alone by a time that was measured. For other launches, the graph of their iteration has an isolated duration, which the
engine inferred. `iteration_graphs` builds these graphs for a whole trace. `with_pairs` uses the pairs as evidence for
the isolated durations of a graph.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from profilers.trace.arrays import MISSING, Bools, Floats, Ints, integers_or_missing
from profilers.trace.columns import lookup
from profilers.trace.trace import Trace
from replay.calibration.parameters import Parameters
from replay.contention.launches import DeviceEvents, Neighbors
from replay.contention.pairs import ContentionPairs
from replay.from_trace import build_graph, index_trace
from replay.graph.graph import Basis, Hardware, KernelGraph, TaskKind

#: Kernels of a trace that are modelled at most, and iterations of one graph.
_MOST_KERNELS, _GRAPH_ITERATIONS = 150_000, 4
#: An isolated duration agrees with the time alone up to this relative difference, or up to the scatter of the group.
_AGREEMENT = 0.05
_MEASURED, _MODELLED, _UNKNOWN = range(3)


@dataclass(frozen=True)
class ContentionRow:
    """Kernels beside other work, and the time that contention took from them; times in ns.

    Parameters
    ----------
    label : str
        Class of the kernels, name of their partner, or empty for all.
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

    @property
    def contention_ns(self) -> float:
        """Time that contention added, measured or modelled."""
        return self.measured_ns + self.modelled_ns

    @property
    def unknown_launches(self) -> int:
        """Number of launches whose contention is unknown."""
        return self.launches - self.measured_launches - self.modelled_launches


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
        All kernels beside other work.
    by_class, by_partner : tuple of ContentionRow
        The same by class, and by the name of the work beside them for the longest time; most time first.
    noise : float
        Relative error of a launch alone that is predicted from the others, weighted by time; NaN if unknown.
    model_ratio : float
        Contention that the model gives the measured launches, over the measured one; NaN if they are not modelled.
    confounded : str
        Why the pairs do not measure contention, so that all of it is modelled; empty if they do.
    """

    kernels: int
    kernel_ns: float
    total: ContentionRow
    by_class: tuple[ContentionRow, ...]
    by_partner: tuple[ContentionRow, ...]
    noise: float
    model_ratio: float
    confounded: str

    def to_dict(self) -> dict[str, Any]:
        """Return the times as JSON with stable keys."""
        total = asdict(self.total)
        del total["label"]
        return {
            "kernels": self.kernels,
            "kernel_ns": self.kernel_ns,
            **total,
            "by_class": [asdict(row) for row in self.by_class],
            "by_partner": [asdict(row) for row in self.by_partner],
            **{
                name: None if np.isnan(value) else value
                for name, value in (("noise", self.noise), ("model_ratio", self.model_ratio))
            },
            "confounded": self.confounded or None,
        }


@dataclass(frozen=True)
class _Slowed:
    """Kernels beside other work: columns of equal length.

    Parameters
    ----------
    time_ns, beside_ns, added_ns : array of float64
        Duration, time with other work beside it, and time that contention added.
    basis : array of int64
        Whether that was measured, was modelled, or is unknown.
    """

    time_ns: Floats
    beside_ns: Floats
    added_ns: Floats
    basis: Ints

    def row(self, label: str, chosen: Ints | slice = slice(None)) -> ContentionRow:
        """Return the sums over the chosen kernels."""
        time, beside, added, basis = (column[chosen] for column in vars(self).values())
        sums: list[Any] = []
        for kind in (_MEASURED, _MODELLED):
            rows = basis == kind
            sums += [int(rows.sum()), float(time[rows].sum()), float(added[rows].sum())]
        return ContentionRow(label, len(time), float(time.sum()), float(beside.sum()), *sums)

    def by(self, code: Ints, names: Sequence[str]) -> tuple[ContentionRow, ...]:
        """Return a row for each name that occurs, with most time first."""
        order = np.argsort(code, kind="stable")
        blocks = np.split(order, np.flatnonzero(np.diff(code[order])) + 1) if len(code) else []
        rows = [self.row(names[code[block[0]]], block) for block in blocks]  # a loop over names
        return tuple(sorted(rows, key=lambda row: (-abs(row.contention_ns), -row.time_ns, row.label)))


def contention_time(
    trace: Trace, pairs: ContentionPairs, graphs: Iterable[KernelGraph], *, iterations: Sequence[int] = ()
) -> ContentionTime:
    """Return the time that contention took from the kernels of a trace.

    Parameters
    ----------
    trace : Trace
        The trace.
    pairs : ContentionPairs
        Its pairs, from `measure_pairs`. They are not used if they are confounded.
    graphs : iterable of KernelGraph
        Graphs of its iterations with isolated durations. Launches that are in none have no modelled time.
    iterations : sequence of int
        Iterations whose kernels count; by default all kernels, also outside of iterations.
    """
    events = DeviceEvents.of(trace)
    near, count = Neighbors.of(events, 0), events.kernels
    duration = (events.end_ns - events.start_ns)[:count]
    counted = ~events.is_collective & (duration > 0)
    if iterations:
        counted &= np.isin(integers_or_missing(trace.kernels, "iteration"), iterations)
    rows = np.flatnonzero(counted & (near.beside_ns[:count] > 0))
    time = duration[rows].astype(np.float64)
    is_pair, alone = _alone(pairs, events.id[rows])
    is_modelled, modelled = _modelled(graphs, events.id[rows])
    basis = np.where(is_pair, _MEASURED, np.where(is_modelled, _MODELLED, _UNKNOWN))
    added = np.where(is_pair, time - alone, np.where(is_modelled, modelled, 0.0))
    slowed = _Slowed(time, near.beside_ns[rows].astype(np.float64), added, basis)
    both, measured_ns = is_pair & is_modelled, float((time - alone)[is_pair & is_modelled].sum())
    return ContentionTime(
        kernels=int(counted.sum()),
        kernel_ns=float(duration[counted].sum()),
        total=slowed.row(""),
        by_class=slowed.by(*_by_text(events.classes, events.name[rows])),
        by_partner=slowed.by(*_by_text(events.names, events.name[near.partner[rows]])),
        noise=pairs.noise_mean,
        model_ratio=float(modelled[both].sum()) / measured_ns if measured_ns > 0 else float("nan"),
        confounded=pairs.confounded,
    )


def _by_text(names: Any, code: Ints) -> tuple[Ints, list[str]]:
    """Return the codes of names with equal texts joined, and the texts."""
    texts, number = np.unique(names.astype(str), return_inverse=True)
    return number[code].astype(np.int64), texts.tolist()


def _alone(pairs: ContentionPairs, ids: Ints) -> tuple[Bools, Floats]:
    """Return which launches have a pair that measures contention, and their times alone."""
    if pairs.confounded or not len(pairs.event):
        return np.zeros(len(ids), bool), np.zeros(len(ids))
    row = lookup(pairs.event, np.arange(len(pairs.event)), ids)
    return row != MISSING, pairs.alone_ns[np.where(row == MISSING, 0, row)]


def _modelled(graphs: Iterable[KernelGraph], ids: Ints) -> tuple[Bools, Floats]:
    """Return which kernels are in a graph, and the time that contention added to them by its isolated durations."""
    known, added = np.zeros(len(ids), bool), np.zeros(len(ids))
    order = np.argsort(ids)
    for graph in graphs:
        tasks = graph.tasks
        spans = tasks.measured_end_ns - tasks.measured_start_ns
        chosen = np.flatnonzero((tasks.kind == TaskKind.KERNEL) & graph.on_device() & tasks.in_iteration & (spans > 0))
        at = np.searchsorted(ids[order], tasks.event[chosen])
        is_known = at < len(order)
        is_known[is_known] = ids[order[at[is_known]]] == tasks.event[chosen[is_known]]
        row, chosen = order[at[is_known]], chosen[is_known]
        known[row], added[row] = True, (spans - tasks.duration_ns)[chosen]
    return known, added


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
    numbers = np.setdiff1d(trace.iterations["iteration"].to_numpy(), trace.meta.context)
    if not len(numbers):
        return
    index = index_trace(trace)
    blocks = np.array_split(numbers, -(-len(numbers) // _GRAPH_ITERATIONS))
    step = max(-(-trace.kernels.num_rows // _MOST_KERNELS), 1)
    for block in blocks[::step]:
        yield build_graph(index, tuple(block.tolist()), hardware, parameters=parameters)


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
    is_pair, alone = _alone(pairs, tasks.event[chosen])
    if not is_pair.any():
        return graph
    chosen, alone = chosen[is_pair], alone[is_pair]
    row = lookup(pairs.event, np.arange(len(pairs.event)), tasks.event[chosen])
    scatter = pairs.groups["alone_scatter"].to_numpy()[pairs.group[row]]
    agrees = np.abs(tasks.duration_ns[chosen] / alone - 1) <= np.maximum(np.nan_to_num(scatter), _AGREEMENT)
    basis = tasks.basis.copy()
    basis[chosen] = np.where(agrees, origin, max(int(Basis.MODELLED), origin))
    return graph.with_tasks(basis=basis)
