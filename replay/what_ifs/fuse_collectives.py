"""What if kernels sent their own results, slice by slice? (fused computation-collectives, arXiv 2305.06942)"""

from dataclasses import replace

import numpy as np

from replay.calibration.parameters import Parameters
from replay.graph.graph import LAUNCH_EDGES, Basis, KernelGraph
from replay.what_ifs.pipeline import (
    Pipeline,
    bytes_time,
    nothing_to_apply,
    producers,
    ranks_of,
    send_in_pieces,
    without_units,
)
from replay.what_ifs.what_if import Recipe, WhatIf

_KINDS, _CLASSES = ("all_to_all", "all_reduce"), ("embedding", "gemm")


def fuse_collectives() -> WhatIf:
    """A kernel whose result is exchanged or reduced sends each slice itself as soon as it is done.

    An embedding or product and the all-to-all or all-reduce that follows become one persistent kernel with a slice a
    rank (8 where the trace does not tell). Registers for communication cost it `persistent_occupancy_loss` of its
    throughput; what packed the buffer is gone, since slices are stored where they belong; so are the launches of what
    follows the kernel; each slice pays `put_latency_ns` and its part of the collective's time that goes with bytes. The
    transfers take no compute units of their own.

    Not modelled: whether what packs does more than move data, and how slices to other nodes differ from those in the
    node (`replay.studies.fused` does, for given sizes).

    Source: fused computation-collectives (arXiv 2305.06942).
    """
    return WhatIf("fuse_collectives", _transform)


def _transform(graph: KernelGraph, parameters: Parameters) -> KernelGraph:
    targets = producers(graph, _KINDS, _CLASSES)
    if not targets.found:
        return nothing_to_apply(graph, "fuse_collectives", targets)
    slices = ranks_of(graph, targets.found)
    result = send_in_pieces(graph, targets.found, slices)
    moving = [bytes_time(float(graph.tasks.duration_ns[target.collective]), parameters) for target in targets.found]
    each = np.repeat(np.array(moving) / slices + parameters["put_latency_ns"], slices)
    changed = without_units(_one_kernel(result, parameters), np.concatenate(result.collectives), each)
    return _unlaunched(changed, graph, result).with_notes([f"fuse_collectives: {targets.note}"])


def _one_kernel(result: Pipeline, parameters: Parameters) -> KernelGraph:
    """Return the graph with slower kernels that send, and nothing left of what packed."""
    tasks = result.graph.tasks
    duration, demand, occupies = tasks.duration_ns.copy(), tasks.demand.copy(), tasks.occupies.copy()
    basis, waves = tasks.basis.copy(), tasks.waves.copy()
    for kernels in result.kernels:
        duration[kernels[0]] /= 1 - parameters["persistent_occupancy_loss"]
        packs = kernels[1:].ravel()
        duration[packs], demand[packs], occupies[packs], waves[packs] = 0.0, 0.0, 0.0, 0.0
        basis[kernels] = int(Basis.ASSUMED)
    return result.graph.with_tasks(duration_ns=duration, demand=demand, occupies=occupies, basis=basis, waves=waves)


def _unlaunched(changed: KernelGraph, graph: KernelGraph, result: Pipeline) -> KernelGraph:
    """Return the graph in which what packs and sends waits for no launch of its own, nor for a pause before it."""
    group = np.full(len(changed.tasks), -1)
    rest = np.zeros(len(changed.tasks), dtype=np.bool_)
    for number, (kernels, sent) in enumerate(zip(result.kernels, result.collectives, strict=True)):
        follows = np.concatenate([kernels[1:].ravel(), sent, [graph.arrival_of(int(sent[-1]))]])
        rest[follows] = True
        group[kernels[0]] = group[follows] = number
    edges = changed.edges
    inside = rest[edges.target] & (group[edges.source] == group[edges.target])
    launches = rest[edges.target] & np.isin(edges.kind, sorted(LAUNCH_EDGES))
    edges = replace(edges, lag_ns=np.where(inside, 0.0, edges.lag_ns))
    return replace(changed, edges=edges.select(~launches))


RECIPES = (
    Recipe(
        "fuse_collectives",
        fuse_collectives,
        (),
        "Embeddings and products send their own results, slice by slice, from one persistent kernel.",
        "fuse_collectives",
        "communication",
    ),
)
