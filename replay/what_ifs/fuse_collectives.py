"""Fused collectives what-if: a kernel sends its own result slice by slice (arXiv 2305.06942)."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from profilers.trace.arrays import Floats, Ints
from profilers.trace.kernels import CLASSES, COMPUTE_BOUND
from replay.calibration.parameters import Parameters
from replay.costs.wire_time import collective_models, group_topology, likely_ranks, link_slowdowns, waits_apart
from replay.graph.graph import COLLECTIVE_KINDS, RESOURCES, EdgeKind, KernelGraph, TaskKind
from replay.what_ifs.slices import ORDERS, Fusion, Group, fused_pattern
from replay.what_ifs.splice import Splice, splice, task_budget
from replay.what_ifs.targets import Target, groups_of, nothing_to_apply, producers
from replay.what_ifs.what_if import Argument, WhatIf, recipe, unknown_name, what_if_text

_KINDS, _CLASSES = ("all_to_all", "all_reduce"), ("embedding", "gemm")
_REMOTE_FIRST = "remote_first"
#: Demands of a kernel that its slices have as well.
_SHARED = ("occupies", "footprint", "hit_share")
#: Share of the memory's bandwidth from which a kernel counts as bound by memory, whatever its class.
_MEMORY_BOUND = 0.7
#: Ranks of a group that a trace does not tell.
_FEWEST_RANKS = 2


@recipe(
    "communication",
    "fuse_collectives",
    Argument("order", "what the kernel computes first", default=_REMOTE_FIRST, choices=tuple(ORDERS)),
)
def fuse_collectives(order: str = _REMOTE_FIRST) -> WhatIf:
    """Fuse an embedding or matrix product with the all-to-all or all-reduce that follows it.

    The two become one persistent kernel, which sends each slice of its result as soon as it is computed. The registers
    that communication needs cost the kernel `persistent_occupancy_loss` of its throughput. Kernels that pack the
    buffer disappear, and so do the launches after the kernel, and the library's latency and its waits between streams.

    - The kernel has 8 slices for each receiver, fewer for a small kernel or a large graph. A slice is done with the
      wave of its last workgroup.
    - A slice goes to another node by a put over the adapters (`put_issue_ns`, `put_latency_ns`), to a peer of the node
      by stores over the link of that pair (`store_link_share`, `store_latency_ns`). Sent and received bytes take
      memory bandwidth, and no compute units.
    - An all-reduce is summed by the kernel, in one shot or in two, whichever exchanges faster.
    - ORDER says what the kernel computes first: ``remote_first`` what other nodes and then peers wait for,
      ``local_first`` the rank's own slices, ``ascending`` by the receiver's rank.

    Slices take the time of the traced kernel, and messages that of the traced collective's bytes, as far as the model
    of collectives explains its time. In a trace of single ranks, the rest is the wait for other ranks, and stays.

    Not modelled: packing kernels that do more than move data, congestion between adapters, and workgroups that slow
    because they send.

    Source: fused computation-collectives (arXiv 2305.06942).

    Raises
    ------
    NotFoundError
        There is no such order.
    """
    if order not in ORDERS:
        raise unknown_name("fuse_collectives has no order", order, tuple(ORDERS))
    name = what_if_text("fuse_collectives", *([] if order == _REMOTE_FIRST else [order]))

    def transform(graph: KernelGraph, parameters: Parameters) -> KernelGraph:
        targets = producers(graph, _KINDS, _CLASSES)
        if targets.found and graph.hardware.device is None:
            reason = "the trace names no device whose links could send the slices (--device NAME)"
            return graph.with_notes([f"{name}: nothing to apply it to: {reason}"])
        if not targets.found:
            return nothing_to_apply(graph, name, targets)
        fused = _Fused(graph, parameters, order, groups_of(graph, targets.found)).graph_of_slices()
        return fused.with_notes([f"{name}: {targets.note}"])

    return WhatIf(name, transform)


@dataclass(frozen=True)
class _Fused:
    """The targets of a graph, fused: groups of ranks whose collectives meet."""

    graph: KernelGraph
    parameters: Parameters
    order: str
    groups: Sequence[Sequence[Target]]

    @cached_property
    def _sent(self) -> tuple[Floats, Floats, Ints, Ints]:
        """Time of each task's bytes on its links, the wait for other ranks, its bytes and its ranks.

        The time of a collective beyond the model's is taken for slower links if its ranks meet in the graph, else for
        the wait. Where bytes are unknown, a share of the time above `collective_latency_ns` is that of the bytes.
        """
        graph, parameters, tasks = self.graph, self.parameters, self.graph.tasks
        models, apart = collective_models(graph, parameters), waits_apart(graph)
        slowdown, duration = link_slowdowns(graph, graph.hardware), tasks.duration_ns
        total = models.total_ns(slowdown)
        wire = models.wire_ns * slowdown * np.minimum(duration / np.maximum(total, 1e-9), 1.0)
        beyond = np.maximum(duration - total, 0.0)
        share = np.where(apart, *(parameters[f"collective_wire_share{suffix}"] for suffix in ("", "_waiting")))
        above = np.maximum(duration - parameters["collective_latency_ns"], 0.0)
        wire = np.where(models.is_known, wire + beyond * apart, above * share)
        wait = np.where(models.is_known, beyond, above * (1 - share)) * ~apart
        ranks = np.maximum(likely_ranks(graph), graph.world_size or _FEWEST_RANKS)
        return wire, wait, tasks.bytes, np.where(likely_ranks(graph) > 0, likely_ranks(graph), ranks)

    def graph_of_slices(self) -> KernelGraph:
        """Return the graph with persistent kernels in the place of the targets."""
        graph = self._without_gaps()
        collectives = np.array([target.collective for group in self.groups for target in group])
        changed = splice(graph, self._splices(), drop_launches=True)
        wait = self._sent[1][collectives]
        duration, kind = changed.tasks.duration_ns.copy(), changed.tasks.kind.copy()
        duration[collectives] = wait
        kind[collectives[wait > 0]] = int(TaskKind.COLLECTIVE)
        return changed.with_tasks(duration_ns=duration, kind=kind)

    def _without_gaps(self) -> KernelGraph:
        """Return the graph without the gaps of launches inside targets, and without waits for the library's stream."""
        edges, n = self.graph.edges, len(self.graph.tasks)
        packing, sends = np.zeros(n, dtype=np.bool_), np.zeros(n, dtype=np.bool_)
        for group in self.groups:
            for target in group:
                packing[list(target.packing)] = sends[target.collective] = True
        is_wait = np.isin(edges.kind, (EdgeKind.WAIT, EdgeKind.WAIT_INFERRED)) & sends[edges.source]
        lag = np.where(packing[edges.target] & ~edges.from_start, 0.0, edges.lag_ns)
        lag = np.where(is_wait, np.maximum(lag - self.parameters["stream_sync_ns"], 0.0), lag)
        return replace(self.graph, edges=replace(edges, lag_ns=lag))

    def _splices(self) -> list[Splice]:
        """Return one pattern for all groups of the same sizes, with the ratios of traced times to the pattern's."""
        wire_ns, _, _, _ = self._sent
        duration, budget = self.graph.tasks.duration_ns, task_budget(sum(map(len, self.groups)))
        alike: dict[tuple[float, ...], list[Sequence[Target]]] = defaultdict(list)
        for group in self.groups:  # about 5 us each
            alike[self._key(group)].append(group)
        splices = []
        for groups in alike.values():
            fusion = self._fusion(groups[0], budget)
            library_ns = fusion.group.library_ns(fusion.kind, fusion.size_bytes)
            kernels, wires = (
                np.array([[column[row(target)] for target in group] for group in groups])
                for column, row in ((duration, _kernel), (wire_ns, _collective))
            )
            pattern = fused_pattern(fusion, self.parameters)
            splices.append(Splice(pattern, groups, kernels / max(fusion.kernel_ns, 1e-9), wires / library_ns))
        return splices

    def _key(self, group: Sequence[Target]) -> tuple[float, ...]:
        """Return what groups with one pattern have in common."""
        tasks, target = self.graph.tasks, group[0]
        row, sent = target.kernel, target.collective
        sizes = (tasks.workgroups[row], tasks.operator[row], tasks.class_[row], tasks.name[row])
        return (len(group), int(tasks.collective[sent]), *self._size(target), *map(int, sizes))

    def _size(self, target: Target) -> tuple[int, int]:
        """Return bytes and ranks of a collective; unknown bytes are those that its links carry in its time."""
        wire_ns, _, moved, ranks = self._sent
        row = target.collective
        if moved[row] > 0:
            return int(moved[row]), int(ranks[row])
        per_byte = self._group(int(ranks[row])).library_ns(COLLECTIVE_KINDS[self.graph.tasks.collective[row]], 1.0)
        return max(round(float(wire_ns[row]) / per_byte), 1), int(ranks[row])

    def _group(self, ranks: int) -> Group:
        """Return a group of so many ranks."""
        hardware = self.graph.hardware
        assert hardware.device is not None
        topology = group_topology(ranks, hardware.device, hardware.network)
        return Group(topology, hardware.device, self.parameters["store_link_share"])

    def _fusion(self, group: Sequence[Target], budget: int) -> Fusion:
        """Return what a pattern for a group is built from."""
        tasks, target = self.graph.tasks, group[0]
        row, (size, ranks) = target.kernel, self._size(target)
        demand = {name: float(tasks.demand[row, RESOURCES.index(name)]) for name in RESOURCES}
        demand |= {name: float(getattr(tasks, name)[row]) for name in _SHARED}
        is_light = CLASSES[tasks.class_[row]] not in COMPUTE_BOUND or demand["hbm"] >= _MEMORY_BOUND
        kind = COLLECTIVE_KINDS[tasks.collective[target.collective]]
        known = {"demand": demand, "is_memory_bound": is_light, "order": self.order}
        return Fusion(
            self._group(ranks),
            kind,
            float(size),
            float(np.mean([tasks.duration_ns[each.kernel] for each in group])),
            workgroups=int(tasks.workgroups[row]),
            waves=float(tasks.waves[row]),
            members=len(group),
            budget=budget,
            **known,
        )


def _kernel(target: Target) -> int:
    return target.kernel


def _collective(target: Target) -> int:
    return target.collective
