"""What T3's arithmetic says in closed form, from simulations of the cases that it is about."""

from dataclasses import replace

import numpy as np

from profilers.devices import Figure
from replay.assembly import Assembly
from replay.overlap.t3.collective import Part, near_memory_reduce_scatter, reduce_scatter
from replay.overlap.t3.ring import Ring
from replay.overlap.t3.workload import System
from replay.policy import SharingPolicy
from replay.timeline import replay

__all__ = ["near_memory_gain", "speedup_beside_few_units", "with_link"]

#: Of a chunk in the comparison of reduce-scatters, large, so that no rounding of a time shows; and of its blocks.
_CHUNK_BYTES, _BLOCK_BYTES = 2.0**33, 2**31


def with_link(system: System, gbps: float) -> System:
    """Return the system with links of another bandwidth, GB/s to one neighbour.

    Examples
    --------
    >>> from replay.overlap.t3.workload import load_workload
    >>> with_link(load_workload().system, 150.0).link_ns(1.5e6)
    10000.0
    """
    link = Figure(gbps, "GB/s", "of a comparison", "published")
    return replace(system, device=replace(system.device, figures={**system.device.figures, "link_gbps": link}))


def near_memory_gain(system: System, workers: int) -> float:
    """Return by which share a reduce-scatter on compute units takes longer than one near memory, without latency.

    Parameters
    ----------
    system : System
    workers : int

    Notes
    -----
    3 L / (B (N - 1)), with L and B the bandwidths of link and memory: the last reduction reads two chunks and writes
    one after all that is sent.
    """
    times = []
    for kind in (reduce_scatter, near_memory_reduce_scatter):
        ring = Ring(replace(system, latency_ns=0.0, block_bytes=_BLOCK_BYTES), 1)
        kind(ring, Part(workers, _CHUNK_BYTES), ring.mark("start"))
        times.append(replay(ring.graph()).makespan_ns)
    return times[0] / times[1] - 1.0


def speedup_beside_few_units(ideal: float, slower: float, units_share: float) -> float:
    """Return what overlapping a product and an all-reduce gains where the all-reduce gets few compute units.

    Parameters
    ----------
    ideal : float
        Speed-up where neither slows the other, and the all-reduce is the longer: 1 to 2.
    slower : float
        Times that the all-reduce takes on those units, over what it takes alone.
    units_share : float
        Of the compute units, that it gets; the product has the others.

    Examples
    --------
    >>> round(speedup_beside_few_units(1.67, 1.41, 0.1), 2)
    1.18
    """
    reduce_ns = 1e9
    product_ns = (ideal - 1.0) * reduce_ns
    work = Assembly()
    lanes = [work.lane(device=0, stream=stream) for stream in (0, 1)]
    columns = {
        "duration_ns": [product_ns, reduce_ns],
        "cu": [1.0, min(units_share * slower, 1.0)],
        "cu_mask": [1, 2],
    }
    work.tasks("product beside all-reduce", lanes, columns)
    graph = work.graph(policy=SharingPolicy(partitions=(1.0 - units_share, units_share)))
    return float(np.divide(product_ns + reduce_ns, replay(graph).makespan_ns))
