"""Fused collectives what-if: a kernel sends its own result slice by slice (arXiv 2305.06942)."""

from dataclasses import replace

import numpy as np

from replay.calibration.parameters import Parameters
from replay.graph.graph import LAUNCH_EDGES, Basis, KernelGraph
from replay.what_ifs.pipeline import (
    Pipeline,
    bytes_time,
    ranks_of,
    send_in_pieces,
    without_units,
)
from replay.what_ifs.targets import nothing_to_apply, producers
from replay.what_ifs.what_if import WhatIf, recipe

_KINDS, _CLASSES = ("all_to_all", "all_reduce"), ("embedding", "gemm")


@recipe("communication", "fuse_collectives")
def fuse_collectives() -> WhatIf:
    """Fuse an embedding or matrix product with the all-to-all or all-reduce that follows it.

    The two become one persistent kernel, which sends each slice of its result as soon as it is computed. There is one
    slice per rank, or 8 if the trace does not tell the number of ranks. The registers that communication needs cost the
    kernel `persistent_occupancy_loss` of its throughput. Kernels that pack the buffer disappear, since slices are
    stored where they belong. The launches after the kernel disappear as well.

    Each slice pays `put_latency_ns` and its part of the collective's bandwidth time. Transfers use no compute units of
    their own.

    Not modelled: packing kernels that do more than move data. Slices to other nodes cost the same as those in the node;
    `replay.studies.fused` tells them apart, for given sizes.

    Source: fused computation-collectives (arXiv 2305.06942).
    """
    return WhatIf("fuse_collectives", _transform)


def _transform(graph: KernelGraph, parameters: Parameters) -> KernelGraph:
    targets = producers(graph, _KINDS, _CLASSES)
    if not targets.found:
        return nothing_to_apply(graph, "fuse_collectives", targets)
    slices = ranks_of(graph, targets.found)
    result = send_in_pieces(graph, targets.found, slices)
    bandwidth_ns = [
        bytes_time(float(graph.tasks.duration_ns[target.collective]), parameters) for target in targets.found
    ]
    slice_ns = np.repeat(np.array(bandwidth_ns) / slices + parameters["put_latency_ns"], slices)
    changed = without_units(_with_fused_kernels(result, parameters), np.concatenate(result.collectives), slice_ns)
    return _without_launches(changed, graph, result).with_notes([f"fuse_collectives: {targets.note}"])


def _with_fused_kernels(result: Pipeline, parameters: Parameters) -> KernelGraph:
    """Return the graph with slower kernels that send, and without time in kernels that pack."""
    tasks = result.graph.tasks
    duration, demand, occupies = tasks.duration_ns.copy(), tasks.demand.copy(), tasks.occupies.copy()
    basis, waves = tasks.basis.copy(), tasks.waves.copy()
    for kernels in result.kernels:
        duration[kernels[0]] /= 1 - parameters["persistent_occupancy_loss"]
        packs = kernels[1:].ravel()
        duration[packs], demand[packs], occupies[packs], waves[packs] = 0.0, 0.0, 0.0, 0.0
        basis[kernels] = int(Basis.ASSUMED)
    return result.graph.with_tasks(duration_ns=duration, demand=demand, occupies=occupies, basis=basis, waves=waves)


def _without_launches(changed: KernelGraph, graph: KernelGraph, result: Pipeline) -> KernelGraph:
    """Return the graph without the launches of packs and transfers, and without the pauses before them."""
    group = np.full(len(changed.tasks), -1)
    fused = np.zeros(len(changed.tasks), dtype=np.bool_)
    for number, (kernels, sent) in enumerate(zip(result.kernels, result.collectives, strict=True)):
        follows = np.concatenate([kernels[1:].ravel(), sent, [graph.arrival_of(int(sent[-1]))]])
        fused[follows] = True
        group[kernels[0]] = group[follows] = number
    edges = changed.edges
    inside = fused[edges.target] & (group[edges.source] == group[edges.target])
    launches = fused[edges.target] & np.isin(edges.kind, sorted(LAUNCH_EDGES))
    edges = replace(edges, lag_ns=np.where(inside, 0.0, edges.lag_ns))
    return replace(changed, edges=edges.select(~launches))
