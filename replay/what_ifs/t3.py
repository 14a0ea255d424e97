"""T3 what-if: reducing collectives run under the matrix product that computes their data (arXiv 2401.16677)."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log2, sqrt

import numpy as np

from profilers.devices.catalogue import Device
from replay.calibration.parameters import Parameters
from replay.costs.products import cache_bytes
from replay.costs.wire_time import likely_ranks
from replay.graph.graph import COLLECTIVE_KINDS, RESOURCES, KernelGraph, TaskKind, peer_link
from replay.graph.operators import Operator, batched_matmul
from replay.what_ifs.ring import RingColumns, RingTimes, TiledProduct, ring_pattern, tile_of
from replay.what_ifs.splice import Splice, splice, task_budget
from replay.what_ifs.targets import Target, Targets, groups_of, nothing_to_apply, producers
from replay.what_ifs.what_if import Argument, WhatIf, recipe

_CLASSES = ("gemm", "convolution")
_ALL_REDUCE, _ALL_GATHER = COLLECTIVE_KINDS.index("all_reduce"), COLLECTIVE_KINDS.index("all_gather")
_FAIR, _MCA = "fair", "mca"
#: Assumed ranks of a collective whose group and bytes the trace does not tell.
_ANY_RANKS = 8


@recipe(
    "communication",
    "t3:mca",
    Argument("memory", "fair, or mca: accesses of the product go first", choices=(_FAIR, _MCA), default=_FAIR),
)
def t3(memory: str = _FAIR) -> WhatIf:
    """Reduce each chunk of a matrix product near memory, and send it on, as soon as it is computed (T3).

    The what-if applies to a product or convolution that an all-reduce or reduce-scatter follows. At most three copies
    or conversions may stand between; their time is added to the product's. A hardware tracker triggers the copy of each
    chunk, and memory adds what comes to what is there. So the reduce-scatter uses no compute units. It reads N - 2
    parts for N ranks instead of 2N - 1, and writes 2N - 2 instead of 2N. The all-gather half of an all-reduce follows
    as before. With ``mca``, accesses of communication get what the product leaves, `t3_starvation_share` at least.

    Product and reduce-scatter take their traced time, in finer tasks: bursts of memory, arithmetic, blocks on the link.
    Tiles come from the operator's shape and the grid, or else from what the trace tells of bytes and time.

    Not modelled: a tracker that is too small, banks and rows of the memory, and waits of the host in between.

    Source: T3 (arXiv 2401.16677).
    """
    name = "t3" if memory == _FAIR else f"t3:{memory}"
    return WhatIf(name, lambda graph, parameters: _transform(graph, parameters, name), targets=_targets)


def _targets(graph: KernelGraph, _parameters: Parameters) -> Targets:
    """Return the reducing collectives that follow a product; none if nothing is known of the device."""
    targets = producers(graph, ("all_reduce", "reduce_scatter"), _CLASSES)
    if graph.hardware.device is None:
        return targets.without(targets.found, "the trace names no device", "name it: --device NAME")
    return targets


def _transform(graph: KernelGraph, parameters: Parameters, name: str) -> KernelGraph:
    targets, device, ranks = _targets(graph, parameters), graph.hardware.device, likely_ranks(graph)
    if not targets.found or device is None:
        return nothing_to_apply(graph, name, targets)
    defers = int(name.endswith(_MCA))
    rings = _Rings(graph, device, parameters, defers, task_budget(len(targets.found)))
    alike: dict[tuple[TiledProduct, int, int], list[list[Target]]] = defaultdict(list)
    for group in groups_of(graph, targets.found):
        row = group[0].collective
        product = rings.product(group[0], int(ranks[row]) or _ANY_RANKS)
        alike[product, len(group), int(graph.tasks.collective[row])].append(group)
    changed = splice(graph, [rings.splice(product, groups) for (product, *_), groups in alike.items()])
    if defers:
        changed = replace(changed, policy=replace(graph.policy, deferred_share=parameters["t3_starvation_share"]))
    return changed.with_notes([f"{name}: {targets.note}"])


@dataclass(frozen=True)
class _Rings:
    """Makes the patterns of a graph: `defers` as in `RingColumns`, and tasks for each rank of a target."""

    graph: KernelGraph
    device: Device
    parameters: Parameters
    defers: int
    budget: int

    def product(self, target: Target, ranks: int) -> TiledProduct:
        """Return the product of a target: its sizes, its tile, and how many tiles run at a time."""
        tasks, row = self.graph.tasks, target.kernel
        operator = self.graph.operators[tasks.operator[row]] if tasks.operator[row] >= 0 else None
        if operator is None or len(operator.dims) != 4:
            operator = _guessed(self.graph, target, self.device)
        batch, m, n, k = operator.dims
        rows, columns, size = batch * m, n, operator.element_bytes
        tile = tile_of(rows, columns, int(tasks.workgroups[row]))
        left_bytes = operator.bytes_read - size * n * k if operator.kind == "convolution" else float(size * rows * k)
        if rows < min(columns, ranks * tile[0]):  # too few rows for a tile in each chunk: chunks are columns
            rows, columns, tile, left_bytes = columns, rows, tile[::-1], float(size * n * k)
        units = round(self.graph.hardware.compute_units * max(float(tasks.residency[row]), 1.0))
        return TiledProduct(rows, columns, k, ranks, units, cache_bytes(self.device), tile, size, left_bytes)

    def splice(self, product: TiledProduct, groups: Sequence[Sequence[Target]]) -> Splice:
        """Return the pattern of a product in the place of groups of targets, with their traced times."""
        duration = self.graph.tasks.duration_ns
        kernel_ns, transfer_ns = (
            np.array([[duration[list(rows(target))].sum() for target in group] for group in groups])
            for rows in (lambda target: target.kernels, lambda target: (target.collective,))
        )
        usual_ns, usual_transfer_ns = float(np.median(kernel_ns)), float(np.median(transfer_ns))
        columns = self._columns(groups[0][0], usual_transfer_ns)
        times = RingTimes(
            usual_ns,
            usual_transfer_ns / (2 if columns.gather else 1),
            1e9 / self.device.memory_bytes_per_s,
            self.parameters["chunk_trigger_ns"],
            self.parameters["t3_update_cost"],
        )
        pattern = ring_pattern(product, times, columns, members=len(groups[0]), budget=self.budget)
        return Splice(pattern, groups, kernel_ns / max(usual_ns, 1e-9), transfer_ns / max(usual_transfer_ns, 1e-9))

    def _columns(self, target: Target, transfer_ns: float) -> RingColumns:
        """Return the columns of a target's tasks; an all-gather takes half the time of its all-reduce."""
        tasks, row = self.graph.tasks, target.collective
        demand = dict(zip(RESOURCES, tasks.demand[target.kernel].tolist(), strict=True))
        kernel = {"cu": demand["cu"], "power": demand["power"], "occupies": float(tasks.occupies[target.kernel])}
        gather: dict[str, float] = {}
        if tasks.collective[row] == _ALL_REDUCE:
            gather = dict(zip(RESOURCES, tasks.demand[row].tolist(), strict=True))
            gather |= {name: getattr(tasks, name)[row] for name in ("occupies", "pressure", "bytes", "ranks")}
            gather |= {"kind": int(TaskKind.COLLECTIVE), "collective": _ALL_GATHER}
            gather |= {"link_number": int(tasks.link[row]), "duration_ns": transfer_ns / 2}
        kernel["class_"] = int(tasks.class_[target.kernel])
        return RingColumns(kernel, {"link": 1.0, "link_number": int(peer_link(1))}, gather, self.defers)


def _guessed(graph: KernelGraph, target: Target, device: Device) -> Operator:
    """Return a square product of the bytes that are sent, or of the grid, which takes the time at half of the peak.

    The depth is a power of two, so that kernels of nearly the same time have one pattern.
    """
    tasks, row = graph.tasks, target.kernel
    elements = tasks.bytes[target.collective] / 2 or max(tasks.workgroups[row], 1) * 128 * 128
    side = max(round(sqrt(elements)), 1)
    depth = 0.5 * device.flops_per_s("fp16") * tasks.duration_ns[row] / 1e9 / (2 * side * side)
    return batched_matmul(1, side, side, 2 ** max(round(log2(max(depth, 1.0))), 0), 2)
