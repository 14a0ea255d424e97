"""Ranks that share the layers, or the experts, of a step of serving: `shared_layers` and `shared_experts`.

`tensor_parallel` and `expert_parallel` come here if the step attends to cached keys of known requests. The order of the
products on the compute stream tells how each is shared (Megatron-LM, arXiv 1909.08053): the product before an attention
and wide products give columns to ranks; the product after an attention, and one that takes a wide product's results,
give rows, and ranks add their results. What runs between columns and rows is shared too.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from profilers.errors import InvalidInputError
from profilers.trace.arrays import Ints
from replay.calibration.parameters import Parameters
from replay.costs.collectives import CollectiveCalibration, predict_collective
from replay.costs.demand import with_demands
from replay.costs.retiming import source_device
from replay.costs.wire_time import group_topology
from replay.graph.graph import COLLECTIVE_KINDS, KernelGraph, TaskKind
from replay.graph.operators import SERVING_ATTENTION, Operator
from replay.what_ifs.job_graph import with_collectives
from replay.what_ifs.serving import scaled, with_operators
from replay.workloads.traced_job import compute_rows

#: Kinds of collectives by which ranks already share layers or experts.
_ALL_REDUCE, _ALL_TO_ALL = (COLLECTIVE_KINDS.index(kind) for kind in ("all_reduce", "all_to_all"))


def is_serving(graph: KernelGraph) -> bool:
    """Return whether a step attends to cached keys of known requests."""
    return any(each.kind in SERVING_ATTENTION for each in graph.operators)


@dataclass
class _Shares:
    """Operators of the compute stream of a rank as ranks share them.

    Parameters
    ----------
    ranks : int
        Ranks that share a layer.
    operators : dict of int to Operator
        New operator by row.
    sums, gathers : list of (int, int)
        Rows after which ranks add or gather results, with the bytes of these.
    """

    ranks: int
    operators: dict[int, Operator] = field(default_factory=dict)
    sums: list[tuple[int, int]] = field(default_factory=list)
    gathers: list[tuple[int, int]] = field(default_factory=list)

    def share(self, rows: list[int], operators: Mapping[int, Operator]) -> None:
        """Share the operators of an iteration, whose rows are in order."""
        products = [row for row in rows if row in operators and operators[row].kind == "matmul"]
        attention = [row for row in rows if row in operators and operators[row].kind in SERVING_ATTENTION]
        experts = {row for row in rows if row in operators and operators[row].kind == "experts"}
        order = {row: number for number, row in enumerate(rows)}
        roles = _roles(products, attention, experts, operators, order)
        inside = False
        for row in rows:
            operator, role = operators.get(row), roles.get(row, "")
            if operator is None:
                continue
            if role == "column":
                self.operators[row], inside = self._column(operator), True
            elif role == "row":
                self.operators[row], inside = self._row(operator), False
                self.sums.append((row, _result_bytes(operator)))
            elif operator.kind in SERVING_ATTENTION:
                self.operators[row] = self._heads(operator)
            elif operator.kind == "experts":
                self.operators[row] = self._experts(operator)
                self.sums.append((row, operator.dims[0] * operator.dims[1] * operator.element_bytes))
            elif inside and not role and operator.kind != "matmul":
                share = max(operator.dims[0] // self.ranks, 1)
                self.operators[row] = scaled(operator, [1 / self.ranks] * 3, (share, *operator.dims[1:]))
        if inside and products and roles.get(products[-1]) == "column":
            self.gathers.append((products[-1], _result_bytes(operators[products[-1]])))

    def _divided(self, size: int, name: str) -> int:
        if size % self.ranks:
            raise InvalidInputError(f"{self.ranks} ranks do not divide {name} of {size}")
        return size // self.ranks

    def _column(self, operator: Operator) -> Operator:
        _, m, n, k = operator.dims
        part, size = self._divided(n, "a product"), operator.element_bytes
        read = operator.bytes_read - (n - part) * k * size
        return scaled(operator, [1 / self.ranks, read / operator.bytes_read, 1 / self.ranks], (1, m, part, k))

    def _row(self, operator: Operator) -> Operator:
        _, m, n, k = operator.dims
        part = self._divided(k, "a product")
        read = operator.bytes_read / self.ranks
        return scaled(operator, [1 / self.ranks, read / operator.bytes_read, 1.0], (1, m, n, part))

    def _heads(self, operator: Operator) -> Operator:
        dims = list(operator.dims)
        for first in range(0, len(dims), 7):
            dims[first + 3] = self._divided(dims[first + 3], "heads")
            dims[first + 4] = -(-dims[first + 4] // self.ranks)
        read = dims[4] / operator.dims[4]  # a rank has one head of keys at least
        return scaled(operator, [1 / self.ranks, read, 1 / self.ranks], tuple(dims))

    def _experts(self, operator: Operator) -> Operator:
        tokens, hidden, inter, *rest = operator.dims
        inter = self._divided(inter, "the width of an expert")
        return scaled(operator, [1 / self.ranks, 1 / self.ranks, 1.0], (tokens, hidden, inter, *rest))


def _result_bytes(operator: Operator) -> int:
    _, m, n, _ = operator.dims
    return m * n * operator.element_bytes


def _roles(
    products: list[int], attention: list[int], experts: set[int], operators: Mapping[int, Operator],
    order: Mapping[int, int],
) -> dict[int, str]:  # fmt: skip
    """Return how each product is shared: by ``"column"``, by ``"row"``, or ``"whole"`` on each rank."""
    roles: dict[int, str] = {}
    bounds = [-1, *(order[row] for row in attention), len(order)]
    for number, (first, last) in enumerate(pairwise(bounds)):
        span = [row for row in products if first < order[row] < last]
        wide = 0
        for place, row in enumerate(span):
            _, _, n, k = operators[row].dims
            routes = any(order[row] < order[each] < last for each in experts) and place == len(span) - 2
            if number and not place:
                roles[row] = "row"
            elif routes or (not number and place < len(span) - 1):
                roles[row] = "whole"
            elif wide in (k, 2 * k):
                roles[row], wide = "row", 0
            else:
                roles[row], wide = "column", n
    return roles


def shared_layers(graph: KernelGraph, ranks: int, parameters: Parameters) -> KernelGraph:
    """Return the graph of a step of serving whose layers are shared by some ranks.

    Raises
    ------
    InvalidInputError
        The ranks do not divide a size, or share layers already.
    """
    if ranks == 1:
        return graph.with_notes(["tensor_parallel: one rank has the whole step already"])
    if (graph.tasks.collective[graph.tasks.kind == TaskKind.COLLECTIVE] == _ALL_REDUCE).any():
        raise InvalidInputError("ranks share the layers already: the step has all-reduces. Possible: change_world_size")
    shares = _Shares(ranks)
    for rows, operators in _streams(graph):
        shares.share(rows, operators)
    shared, new = np.array(list(shares.operators), dtype=np.int64), list(shares.operators.values())
    changed = with_operators(graph, shared, new, parameters)
    for kind, places in (("all_gather", shares.gathers), ("all_reduce", shares.sums)):
        changed = _with_exchanges(changed, kind, places, ranks, parameters)
    sums, gathers = len(shares.sums), len(shares.gathers)
    return changed.with_notes([f"tensor_parallel: {sums} all-reduces and {gathers} all-gathers added"])


def _with_exchanges(
    graph: KernelGraph, kind: str, places: list[tuple[int, int]], ranks: int, parameters: Parameters
) -> KernelGraph:
    """Return the graph with collectives after rows, of some bytes, inside the graphs that engines launch.

    An all-reduce takes the shorter time of the library's and of engines' own kernels, which they run for small sizes.
    """
    if not places:
        return graph
    after, size = np.array(sorted(places), dtype=np.int64).T
    grown = with_collectives(graph, kind, after, {"bytes": size, "ranks": ranks})
    device, group = source_device(graph), np.arange(len(graph.tasks), len(grown.tasks))
    topology, fits = (
        group_topology(ranks, device, graph.hardware.network),
        parameters.calibration(CollectiveCalibration),
    )
    libraries = ("nccl", "custom") if kind == "all_reduce" else ("nccl",)
    seconds = [predict_collective(kind, size, topology, device, fits, library=name).seconds for name in libraries]
    duration = grown.tasks.duration_ns.copy()
    duration[group] = 1e9 * np.min(seconds, axis=0) * parameters["collective_ranks_ratio"]
    return with_demands(grown.with_tasks(duration_ns=duration), parameters)


def shared_experts(graph: KernelGraph, ranks: int, parameters: Parameters) -> KernelGraph:
    """Return the graph of a step of serving whose experts are shared by ranks that each serve their own requests.

    Raises
    ------
    InvalidInputError
        The step has no layer of experts of known work, the ranks do not divide the experts, or share them already.
    """
    if ranks == 1:
        return graph.with_notes(["expert_parallel: one rank has all experts already"])
    if (graph.tasks.collective[graph.tasks.kind == TaskKind.COLLECTIVE] == _ALL_TO_ALL).any():
        raise InvalidInputError("ranks share the experts of this step already: it has all-to-alls")
    new, before, after = dict[int, Operator](), list[tuple[int, int]](), list[tuple[int, int]]()
    for rows, operators in _streams(graph):
        for number, row in enumerate(rows):
            operator = operators.get(row)
            if operator is None or operator.kind != "experts":
                continue
            tokens, hidden, inter, topk, experts, tensor, _, *rest = operator.dims
            if experts % ranks:
                raise InvalidInputError(f"{ranks} ranks do not divide {experts} experts")
            dims = (tokens * ranks, hidden, inter, topk, experts, tensor, ranks, *rest)
            new[row] = replace(operator, dims=dims, bytes_read=operator.bytes_read / ranks)
            size = tokens * topk * hidden * operator.element_bytes
            # A layer may be several kernels of one operator: tokens leave before the first and return after the last.
            previous = operators.get(rows[number - 1]) if number else None
            following = operators.get(rows[number + 1]) if number + 1 < len(rows) else None
            before += [(rows[number - 1], size)] if number and previous != operator else []
            after += [(row, size)] if following != operator else []
    if not new:
        raise InvalidInputError("the step has no layer of experts of known work, so nothing can be shared")
    changed = with_operators(graph, np.array(list(new), dtype=np.int64), list(new.values()), parameters)
    places = [*before, *after]
    exchanged = _with_exchanges(changed, "all_to_all", places, ranks, parameters)
    return exchanged.with_notes(
        [f"expert_parallel: {len(places)} all-to-alls added, each rank serves its own requests"]
    )


def _streams(graph: KernelGraph) -> list[tuple[list[int], dict[int, Operator]]]:
    """Return the rows of the compute stream of each rank and iteration in order, and their operators by row."""
    tasks, result = graph.tasks, []
    kernels = (tasks.kind == TaskKind.KERNEL) & graph.on_device()
    for rank in np.unique(graph.ranks()[kernels]).tolist():
        rows: Ints = compute_rows(graph, rank)
        iterations = tasks.iteration[rows]
        rows = rows[np.argsort(iterations, kind="stable")]
        for mine in np.split(rows, np.flatnonzero(np.diff(tasks.iteration[rows])) + 1):
            number = np.where(tasks.operator[mine] >= 0, tasks.operator[mine], tasks.memory_operator[mine]).tolist()
            known = {row: graph.operators[each] for row, each in zip(mine.tolist(), number, strict=True) if each >= 0}
            result.append((mine.tolist(), known))
    return result
