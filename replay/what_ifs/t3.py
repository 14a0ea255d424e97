"""T3 what-if: reducing collectives run under the matrix product that computes their data (arXiv 2401.16677)."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from profilers.devices.catalogue import Device
from replay.calibration.parameters import Parameters
from replay.costs.places import per_unit
from replay.costs.products import cache_bytes, product_of_task
from replay.costs.wire_time import likely_ranks
from replay.graph.graph import COLLECTIVE_KINDS, RESOURCES, KernelGraph, TaskKind, peer_link
from replay.graph.operators import DTYPE_BYTES
from replay.what_ifs.ring import RingColumns, RingTimes, TiledProduct, ring_pattern, tile_of
from replay.what_ifs.splice import Splice, splice, task_budget
from replay.what_ifs.targets import UNKNOWN_DEVICE, Target, Targets, groups_of, nothing_to_apply, producers
from replay.what_ifs.what_if import Argument, WhatIf, recipe

_CLASSES = ("gemm", "convolution")
_ALL_REDUCE, _ALL_GATHER = COLLECTIVE_KINDS.index("all_reduce"), COLLECTIVE_KINDS.index("all_gather")
_FAIR, _MCA = "fair", "mca"
#: Assumed ranks of a collective whose group and bytes the trace does not tell.
_ANY_RANKS = 8
#: Share of a unit's registers below which the registers of a workgroup are unknown.
_UNKNOWN = 1e-6


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
        return targets.without(targets.found, *UNKNOWN_DEVICE)
    return targets


def _transform(graph: KernelGraph, parameters: Parameters, name: str) -> KernelGraph:
    targets, device, ranks = _targets(graph, parameters), graph.hardware.device, likely_ranks(graph)
    if not targets.found or device is None:
        return nothing_to_apply(graph, name, targets)
    defers = int(name.endswith(_MCA))
    rings = _Rings(graph, device, parameters, defers, task_budget(len(targets.found)))
    alike: dict[tuple[TiledProduct, int, int], list[list[Target]]] = defaultdict(list)
    guessed = 0
    for group in groups_of(graph, targets.found):  # about 50 us each
        row = group[0].collective
        product, is_known = rings.product(group[0], int(ranks[row]) or _ANY_RANKS)
        alike[product, len(group), int(graph.tasks.collective[row])].append(group)
        guessed += 0 if is_known else len(group)
    changed = splice(graph, [rings.splice(product, groups) for (product, *_), groups in alike.items()])
    if defers:
        changed = replace(changed, policy=replace(graph.policy, deferred_share=parameters["t3_starvation_share"]))
    sizes = f"; sizes of {guessed} products from grid, bytes and duration" if guessed else ""
    return changed.with_notes([f"{name}: {targets.note}{sizes}"])


@dataclass(frozen=True)
class _Rings:
    """Makes the patterns of a graph: `defers` as in `RingColumns`, and tasks for each rank of a target."""

    graph: KernelGraph
    device: Device
    parameters: Parameters
    defers: int
    budget: int

    def product(self, target: Target, ranks: int) -> tuple[TiledProduct, bool]:
        """Return the product of a target with its tiles, and whether its operator gives the sizes."""
        tasks, row = self.graph.tasks, target.kernel
        sent = float(tasks.bytes[target.collective])
        product, is_known = product_of_task(self.graph, row, self.device, result_bytes=sent)
        operator = self.graph.operators[tasks.operator[row]] if is_known else None
        m, n, size = product.m, product.n, operator.element_bytes if operator else DTYPE_BYTES[product.dtype]
        left, right = float(size * m * product.k), float(size * n * product.k)
        if operator and operator.kind == "convolution":
            left = max(operator.bytes_read - right, 0.0)
        tile = tile_of(m, n, int(tasks.workgroups[row]))
        if m < min(n, ranks * tile[0]):  # too few rows for a tile in each chunk: chunks are columns
            m, n, tile, left = n, m, tile[::-1], right
        # A workgroup without known registers is taken to fill its unit.
        held = float(per_unit(tasks)[row]) if tasks.unit_registers[row] > _UNKNOWN else 1.0
        units = round(self.graph.hardware.compute_units * held)
        return TiledProduct(m, n, product.k, ranks, units, cache_bytes(self.device), tile, size, left), is_known

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
