"""Fused collectives what-if: a kernel sends its own result slice by slice (arXiv 2305.06942)."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from profilers.trace.arrays import Floats, Ints
from profilers.trace.kernels import CLASSES, COMPUTE_BOUND
from replay.calibration.parameters import Parameters
from replay.costs.wire_time import collective_models, group_topology, likely_ranks, link_slowdowns, waits_apart
from replay.graph.graph import COLLECTIVE_KINDS, RESOURCES, EdgeKind, KernelGraph, Network, TaskKind
from replay.what_ifs.slices import ORDERS, Fusion, SliceGroup, fused_pattern
from replay.what_ifs.splice import Splice, splice, task_budget
from replay.what_ifs.targets import UNKNOWN_DEVICE, Target, Targets, groups_of, nothing_to_apply, producers
from replay.what_ifs.what_if import Argument, WhatIf, recipe, unknown_name, what_if_text
from replay.what_ifs.world_size import checked_network

_ELEMENTWISE = CLASSES.index("elementwise")
_REMOTE_FIRST = "remote_first"
#: Usual order and network, as in the arguments.
_USUAL = (_REMOTE_FIRST, 8, 0, 0.0)
#: Columns of a kernel that its slices have as well, beside its demand.
_SHARED = ("occupies", "footprint", "hit_share")
#: Share of the memory's bandwidth from which a kernel counts as bound by memory, whatever its class.
_MEMORY_BOUND = 0.7
#: Ranks of a group that a trace does not tell.
_FEWEST_RANKS = 2


@recipe(
    "communication",
    "fuse_collectives",
    Argument("order", "what the kernel computes first", default=_REMOTE_FIRST, choices=tuple(ORDERS)),
    Argument("per_node", "devices of a node", "whole", default="8"),
    Argument("adapters", "network adapters of a node; 0: the catalogue's, or one a device", "whole", default="0"),
    Argument("adapter_gbps", "GB/s of an adapter, one way; 0: the catalogue's", "number", default="0"),
)
def fuse_collectives(
    order: str = _REMOTE_FIRST, *, per_node: int = 8, adapters: int = 0, adapter_gbps: float = 0.0
) -> WhatIf:
    """Fuse an embedding or matrix product with the all-to-all or all-reduce that follows it.

    The two become one persistent kernel, which sends each slice of its result as soon as it is computed. The registers
    that communication needs cost the kernel `persistent_occupancy_loss` of its throughput. Copies that pack the buffer
    disappear, and so do the launches after the kernel, and the library's latency and its waits between streams.
    Elementwise kernels in between become the end of the kernel, with the time that they took.

    - The kernel has 8 slices for each receiver, fewer for a small kernel or a large graph. A slice is done with the
      wave of its last workgroup.
    - A slice goes to another node by a put over the adapters (`put_issue_ns`, `put_latency_ns`), to a peer of the node
      by stores over the link of that pair (`store_link_share`, `store_latency_ns`). Sent and received bytes take
      memory bandwidth, and no compute units.
    - An all-reduce is summed by the kernel, in one shot or in two, whichever exchanges faster.
    - ORDER says what the kernel computes first: ``remote_first`` what other nodes and then peers wait for,
      ``local_first`` the rank's own slices, ``ascending`` by the receiver's rank.
    - Nodes of the traced job have PER_NODE devices and ADAPTERS of ADAPTER_GBPS; by default they are those of a usual
      node of the device.

    Slices take the time of the traced kernel, and messages that of the traced collective's bytes, as far as the model
    of collectives explains its time. In a trace of single ranks, the rest is the wait for other ranks, and stays.

    Not modelled: congestion between adapters, and workgroups that slow because they send.

    Source: fused computation-collectives (arXiv 2305.06942).

    Raises
    ------
    NotFoundError
        There is no such order.
    """
    if order not in ORDERS:
        raise unknown_name("fuse_collectives has no order", order, tuple(ORDERS))
    network, given = checked_network(per_node, adapters, adapter_gbps), (order, per_node, adapters, adapter_gbps)
    count = max((i + 1 for i, usual in enumerate(_USUAL) if given[i] != usual), default=0)
    name = what_if_text("fuse_collectives", *given[:count])

    def transform(graph: KernelGraph, parameters: Parameters) -> KernelGraph:
        targets = _targets(graph, parameters)
        if not targets.found:
            return nothing_to_apply(graph, name, targets)
        stated = graph if network == Network() else replace(graph, hardware=replace(graph.hardware, network=network))
        fused = _fused(_FusedGroups(stated, parameters, order, groups_of(graph, targets.found)))
        return replace(fused, hardware=graph.hardware).with_notes([f"{name}: {targets.note}"])

    return WhatIf(name, transform, targets=_targets)


def _targets(graph: KernelGraph, _: Parameters) -> Targets:
    """Return the collectives that can be fused with the kernel before them."""
    targets = producers(graph, ("all_to_all", "all_reduce"), ("gemm",))
    targets = targets.joined(producers(graph, ("all_to_all",), ("embedding",)))
    if targets.found and graph.hardware.device is None:
        return targets.without(targets.found, *UNKNOWN_DEVICE)
    return targets


class _Exchanges(NamedTuple):
    """The time of each task's bytes on its links, the wait for other ranks in its duration, and its ranks."""

    wire_ns: Floats
    wait_ns: Floats
    ranks: Ints


@dataclass(frozen=True)
class _FusedGroups:
    """Targets of a graph, in groups of ranks that meet, and how they are to be fused."""

    graph: KernelGraph
    parameters: Parameters
    order: str
    groups: Sequence[Sequence[Target]]

    @property
    def collectives(self) -> Ints:
        """Rows of the collectives."""
        return np.array([target.collective for group in self.groups for target in group])

    @cached_property
    def exchanges(self) -> _Exchanges:
        """Times and ranks of all collectives.

        The time of a collective beyond that of the model is taken for slower links if its ranks meet in the graph, else
        for the wait. Where bytes are unknown, a share of the time above `collective_latency_ns` is that of the bytes.
        """
        graph, parameters, duration = self.graph, self.parameters, self.graph.tasks.duration_ns
        models, apart, slowdown = (
            collective_models(graph, parameters),
            waits_apart(graph),
            link_slowdowns(graph, graph.hardware),
        )
        total = models.total_ns(slowdown)
        wire = models.wire_ns * slowdown * np.minimum(duration / np.maximum(total, 1e-9), 1.0)
        beyond = np.maximum(duration - total, 0.0)
        share = np.where(apart, *(parameters[f"collective_wire_share{suffix}"] for suffix in ("", "_waiting")))
        above = np.maximum(duration - parameters["collective_latency_ns"], 0.0)
        ranks = likely_ranks(graph)
        return _Exchanges(
            np.where(models.is_known, wire + beyond * apart, above * share),
            np.where(models.is_known, beyond, above * (1 - share)) * ~apart,
            np.where(ranks > 1, ranks, max(graph.world_size, _FEWEST_RANKS)),
        )

    def kernel_ns(self, target: Target) -> float:
        """Return the time of a kernel, with that of the elementwise kernels behind it."""
        rows = [target.kernel, *(row for row in target.packing if self.graph.tasks.class_[row] == _ELEMENTWISE)]
        return float(self.graph.tasks.duration_ns[rows].sum())

    def alike(self) -> list[list[Sequence[Target]]]:
        """Return the groups by what their patterns follow from."""
        tasks, alike = self.graph.tasks, defaultdict[tuple[int, ...], list[Sequence[Target]]](list)
        for group in self.groups:  # some 5 us each
            target = group[0]
            of_kernel = (tasks.workgroups, tasks.operator, tasks.class_, tasks.name)
            sizes = (tasks.collective[target.collective], *self._size(group))
            key = (len(group), *map(int, sizes), *(int(column[target.kernel]) for column in of_kernel))
            alike[key].append(group)
        return list(alike.values())

    def fusion(self, members: Sequence[Target], budget: int) -> Fusion:
        """Return what the pattern of a group follows from."""
        tasks, target = self.graph.tasks, members[0]
        row, size, ranks = target.kernel, *self._size(members)
        demand = {name: float(tasks.demand[row, i]) for i, name in enumerate(RESOURCES)}
        is_light = CLASSES[tasks.class_[row]] not in COMPUTE_BOUND or demand["hbm"] >= _MEMORY_BOUND
        return Fusion(
            self._group(ranks),
            COLLECTIVE_KINDS[tasks.collective[target.collective]],
            float(size),
            float(np.mean([self.kernel_ns(each) for each in members])),
            workgroups=int(tasks.workgroups[row]),
            waves=float(tasks.waves[row]),
            demand=demand | {name: float(getattr(tasks, name)[row]) for name in _SHARED},
            is_memory_bound=is_light,
            order=self.order,
            members=len(members),
            budget=budget,
        )

    def _size(self, members: Sequence[Target]) -> tuple[int, int]:
        """Return bytes and ranks of a collective; unknown bytes are those that its links carry in its time."""
        row = members[0].collective
        size, ranks = int(self.graph.tasks.bytes[row]), int(self.exchanges.ranks[row])
        ranks = len(members) if len(members) > 1 else ranks
        if size > 0:
            return size, ranks
        per_byte = self._group(ranks).library_ns(COLLECTIVE_KINDS[self.graph.tasks.collective[row]], 1.0)
        return max(round(float(self.exchanges.wire_ns[row]) / per_byte), 1), ranks

    def _group(self, ranks: int) -> SliceGroup:
        """Return a group of so many ranks."""
        hardware = self.graph.hardware
        assert hardware.device is not None
        topology = group_topology(ranks, hardware.device, hardware.network)
        return SliceGroup(topology, hardware.device, self.parameters["store_link_share"])


def _fused(groups: _FusedGroups) -> KernelGraph:
    """Return the graph with persistent kernels in the place of targets; where a trace holds waits for ranks, they stay.

    One pattern stands for all groups of the same sizes, scaled to the traced times.
    """
    wire_ns = groups.exchanges.wire_ns
    budget, splices = task_budget(len(groups.collectives)), []
    for alike in groups.alike():
        fusion = groups.fusion(alike[0], budget)
        kernels = np.array([[groups.kernel_ns(target) for target in group] for group in alike])
        wires = np.array([[wire_ns[target.collective] for target in group] for group in alike])
        library_ns = fusion.group.library_ns(fusion.kind, fusion.size_bytes)
        pattern = fused_pattern(fusion, groups.parameters)
        splices.append(Splice(pattern, alike, kernels / max(fusion.kernel_ns, 1e-9), wires / library_ns))
    changed = splice(_without_gaps(groups), splices, drop_launches=True)
    collectives = groups.collectives
    wait, duration = groups.exchanges.wait_ns[collectives], changed.tasks.duration_ns.copy()
    kind = changed.tasks.kind.copy()
    duration[collectives], kind[collectives[wait > 0]] = wait, int(TaskKind.COLLECTIVE)
    return changed.with_tasks(duration_ns=duration, kind=kind)


def _without_gaps(groups: _FusedGroups) -> KernelGraph:
    """Return the graph without the gaps before packing kernels, and without waits for the library's stream.

    A task that waits for the collective by an event does so up to `stream_sync_ns` earlier.
    """
    graph, edges, n = groups.graph, groups.graph.edges, len(groups.graph.tasks)
    computes, packs, sends = np.zeros((3, n), dtype=np.bool_)
    for group in groups.groups:
        for target in group:
            computes[list(target.kernels)] = packs[list(target.packing)] = sends[target.collective] = True
    waits = np.isin(edges.kind, (EdgeKind.WAIT, EdgeKind.WAIT_INFERRED)) & sends[edges.source]
    inside = computes[edges.source] & packs[edges.target] & ~edges.from_start
    lag = np.where(waits, np.maximum(edges.lag_ns - groups.parameters["stream_sync_ns"], 0.0), edges.lag_ns)
    lag[inside] = 0.0
    return replace(graph, edges=replace(edges, lag_ns=lag))
