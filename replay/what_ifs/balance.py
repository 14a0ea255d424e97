"""`balance_experts`: every rank of an all-to-all gets the mean share, and experts take the time of it."""

from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from profilers.errors import InvalidInputError
from profilers.trace.arrays import MISSING, Floats, Ints
from profilers.trace.exchanges import COMBINE, DISPATCH, EVEN, UNKNOWN, exchange_directions
from profilers.trace.kernels import CLASSES
from replay.calibration.parameters import Parameters
from replay.costs.demand import with_demands
from replay.costs.retiming import floor_ns
from replay.costs.wire_time import group_ranks
from replay.graph.graph import COLLECTIVE_KINDS, Basis, EdgeKind, KernelGraph, TaskKind
from replay.what_ifs.job_graph import with_exchanges
from replay.what_ifs.what_if import WhatIf, recipe

_GEMM, _ALL_TO_ALL = CLASSES.index("gemm"), COLLECTIVE_KINDS.index("all_to_all")


@recipe("communication", "balance_experts")
def balance_experts() -> WhatIf:
    """Give every rank the mean share of each all-to-all, as experts with equal loads would.

    In a dispatch (tokens to their experts, ids to the owner of their table) every rank receives the mean, in a combine
    every rank sends it. The exchange moves the bytes of the mean in place of those of the busiest rank, and its time on
    all ranks follows the modelled time of these bytes. Matrix products between a dispatch and the next combine of the
    same ranks are products of experts. Their time above a launch scales with the mean over what their rank received.

    Not modelled: how to reach the balance; tiles that are partly filled and weights that are read for few tokens, so
    that products scale less; activations between the products, which stay; chunks of tokens that overlap; products
    without tokens that run between the two exchanges, which scale too; products of layers that another what-if copied.

    Source: split sizes of the trace, or of its execution trace; `replay.costs.collectives`.

    Raises
    ------
    InvalidInputError
        When applied: no all-to-all has known sizes, or no ranks exchange them in the trace.
    """

    def transform(graph: KernelGraph, parameters: Parameters) -> KernelGraph:
        exchanges = _exchanges(graph)
        balanced, n_exchanges = _with_mean_shares(graph, exchanges, parameters)
        changed, n_products = _with_mean_loads(balanced, exchanges, parameters)
        note = (
            f"balance_experts: the busiest rank has {exchanges.imbalance:.2f} times the mean of uneven all-to-alls; "
            f"{n_exchanges} all-to-alls and {n_products} products of experts re-timed"
        )
        if (exchanges.direction == EVEN).all():
            return changed.with_notes(["balance_experts: all all-to-alls of known sizes are even"])
        return with_demands(changed, parameters).with_notes([note])

    return WhatIf("balance_experts", transform, retimes=True)


@dataclass(frozen=True)
class _SizedExchanges:
    """All-to-alls of known sizes whose ranks meet; columns of equal length, one row a task.

    Parameters
    ----------
    rows : array of int64
        Tasks.
    group : array of int64
        Number of the exchange that each takes part in.
    direction : array of int64
        As `exchange_directions` returns it.
    sent, received : array of int64
        Elements in the trace.
    mean : array of float64
        Mean of the side of the exchange that is uneven.
    """

    rows: Ints
    group: Ints
    direction: Ints
    sent: Ints
    received: Ints
    mean: Floats

    @property
    def imbalance(self) -> float:
        """Elements of the busiest ranks of uneven exchanges over their means; 1 if all are even."""
        uneven = self.direction != EVEN
        busiest = _largest(np.maximum(self.sent, self.received), self.group)
        return float(busiest[uneven].sum() / self.mean[uneven].sum()) if uneven.any() else 1.0


def _largest(values: Ints | Floats, group: Ints) -> Floats:
    """Return the largest value of the group of each row."""
    most = np.zeros(int(group.max(initial=-1)) + 1)
    np.maximum.at(most, group, values)
    return np.asarray(most[group])


def _exchanges(graph: KernelGraph) -> _SizedExchanges:
    """Return the all-to-alls of known sizes of a graph, or raise an error that says what the trace lacks."""
    tasks = graph.tasks
    is_exchange = (tasks.kind == TaskKind.COLLECTIVE) & (tasks.collective == _ALL_TO_ALL)
    if not (is_exchange & (tasks.received_elements >= 0)).any():
        raise InvalidInputError(
            "the trace has no all-to-all with split sizes; join execution traces (`seqpoint ingest --execution-trace`)"
        )
    edges = graph.edges.of_kind(EdgeKind.RENDEZVOUS)
    leaving = is_exchange[edges.target] & (group_ranks(graph)[edges.target] > 0)
    meeting = np.full(len(tasks), MISSING)
    meeting[edges.target[leaving]] = edges.source[leaving]
    direction = exchange_directions(meeting, tasks.sent_elements, tasks.received_elements)
    rows = np.flatnonzero(direction != UNKNOWN)
    if not len(rows):
        raise InvalidInputError(
            "no all-to-all has its sizes on all of its ranks in the trace: give the files of all ranks"
        )
    group = np.unique(meeting[rows], return_inverse=True)[1]
    sent, received = tasks.sent_elements[rows], tasks.received_elements[rows]
    uneven = np.where(direction[rows] == DISPATCH, received, sent)
    mean = (np.bincount(group, weights=uneven) / np.bincount(group))[group]
    return _SizedExchanges(rows, group, direction[rows], sent, received, mean)


def _with_mean_shares(
    graph: KernelGraph, exchanges: _SizedExchanges, parameters: Parameters
) -> tuple[KernelGraph, int]:
    """Return the graph with exchanges of the mean in place of the busiest rank's share, and how many changed."""
    tasks, rows, dispatched = graph.tasks, exchanges.rows, exchanges.direction == DISPATCH
    even = np.where(dispatched, exchanges.sent, exchanges.received)
    larger = np.maximum(exchanges.sent, exchanges.received)
    before = _largest(larger, exchanges.group)
    after = _largest(np.maximum(exchanges.mean, even), exchanges.group)
    size = _largest(tasks.bytes[rows] / np.maximum(larger, 1), exchanges.group)
    chosen = (exchanges.direction != EVEN) & (tasks.bytes[rows] > 0)
    busiest, balanced = tasks.bytes.copy(), tasks.bytes.copy()
    busiest[rows[chosen]] = np.round(before * size)[chosen]
    balanced[rows[chosen]] = np.round(after * size)[chosen]
    sent, received = tasks.sent_elements.copy(), tasks.received_elements.copy()
    for column, is_mean in ((received, dispatched), (sent, exchanges.direction == COMBINE)):
        column[rows[is_mean]] = np.ceil(exchanges.mean[is_mean])
    changed, count = with_exchanges(graph.with_tasks(bytes=busiest), balanced, tasks.ranks, parameters)
    return changed.with_tasks(sent_elements=sent, received_elements=received), count


def _with_mean_loads(graph: KernelGraph, exchanges: _SizedExchanges, parameters: Parameters) -> tuple[KernelGraph, int]:
    """Return the graph with products of experts as on a rank of the mean share, and how many changed.

    A Python loop over the all-to-alls, about 20 us each.
    """
    tasks, ranks, rows = graph.tasks, graph.ranks(), exchanges.rows
    arrives_ns = tasks.measured_start_ns[graph.arrivals()[rows]]
    grouped = np.array(["group" in name for name in graph.names], dtype=bool)
    is_product = (tasks.class_ == _GEMM) | (grouped[tasks.launched_by] & (tasks.launched_by >= 0))
    products = np.flatnonzero((tasks.kind == TaskKind.KERNEL) & graph.on_device() & is_product)
    products = products[np.lexsort((tasks.measured_start_ns[products], ranks[products]))]
    members, queues = defaultdict[int, set[int]](set), defaultdict[tuple[int, frozenset[int]], list[int]](list)
    for number, rank in zip(exchanges.group.tolist(), ranks[rows].tolist(), strict=True):
        members[number].add(rank)
    order = np.argsort(arrives_ns, kind="stable")
    for at in order[np.isfinite(arrives_ns[order])].tolist():
        queues[int(ranks[rows[at]]), frozenset(members[int(exchanges.group[at])])].append(at)
    ratio = np.ones(len(tasks))
    for (rank, _), queue in queues.items():
        own = products[slice(*np.searchsorted(ranks[products], (rank, rank + 1)))]
        for first, then in pairwise(queue):
            if (exchanges.direction[first], exchanges.direction[then]) != (DISPATCH, COMBINE):
                continue
            since_ns, until_ns = tasks.measured_end_ns[rows[first]], arrives_ns[then]
            inside = own[slice(*np.searchsorted(tasks.measured_start_ns[own], (since_ns, until_ns)))]
            if exchanges.received[first] > 0:
                ratio[inside] = exchanges.mean[first] / exchanges.received[first]
    chosen = ratio != 1.0
    floor = np.minimum(floor_ns("kernel", graph.hardware.device, parameters), tasks.duration_ns)
    scaled = np.where(chosen, floor + (tasks.duration_ns - floor) * ratio, tasks.duration_ns)
    return graph.with_durations(scaled, Basis.DERIVED), int(chosen.sum())
