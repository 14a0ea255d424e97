"""A sub-layer as a graph: one part after the other, and with T3, which reduces chunks while the product still runs."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from replay.graph import KernelGraph
from replay.overlap.t3.collective import RS_READS, RS_WRITES, Part, all_gather, reduce_scatter
from replay.overlap.t3.product import Product
from replay.overlap.t3.ring import Message, Ring, Transfer

__all__ = ["GEMM_READS", "GEMM_WRITES", "Parts", "fused", "sequential"]

Ints = npt.NDArray[np.int64]

#: Names of tasks; what is stored to the neighbour moves nothing in the memory of the GPU that computed it.
GEMM_READS, GEMM_WRITES, COMPUTES, STORES = "GEMM reads", "GEMM writes", "GEMM", "GEMM stores to the neighbour"


class Parts(NamedTuple):
    """A graph, and the tasks with which its parts end, by GPU.

    Parameters
    ----------
    graph : KernelGraph
    product, reduced, gathered : array of int64, shape (gpus,)
        The last of the product, of the reduce-scatter, of the all-gather.
    begins, stages : array of int64, shape (stages, gpus)
        The first of each stage, and with what its result is where it stays.
    arrivals : tuple of tuple of Transfer
        What each neighbour sends, chunk by chunk: one transfer, or one for each stage that stores a part of the first.
    """

    graph: KernelGraph
    product: Ints
    reduced: Ints
    gathered: Ints
    begins: Ints
    stages: Ints
    arrivals: tuple[tuple[Transfer, ...], ...] = ()


def sequential(product: Product, ring: Ring) -> Parts:
    """Return a sub-layer whose product, reduce-scatter and all-gather follow each other, all on compute units.

    Parameters
    ----------
    product : Product
        Its result written through the cache.
    ring : Ring
        Without tasks.
    """
    part = Part(len(product.written_bytes[0]), float(product.written_bytes[:, 0].sum()))
    ends, reads = _stages(product, ring)
    writes = ring.access(GEMM_WRITES, product.written_bytes.sum(axis=1))
    ring.wait(writes, ends)
    ring.wait(reads[1:], writes[:-1])
    reduced = reduce_scatter(ring, part, writes[-1])
    gathered = all_gather(ring, part, reduced)
    return Parts(ring.graph(), writes[-1], reduced, gathered, reads, writes)


def fused(product: Product, ring: Ring, update_cost: float) -> Parts:
    """Return a sub-layer whose chunks are reduced near memory as soon as they are complete.

    Each GPU produces the chunks in the order in which it sends them. The first is stored straight to the neighbour; the
    others are added to local memory, and a copy engine sends a chunk on when its tiles are complete and the neighbour's
    partial sum has come, all but the last, which stays. The all-gather follows on compute units.

    Parameters
    ----------
    product : Product
        Its result written around the cache.
    ring : Ring
        Without tasks.
    update_cost : float
        Time of the memory for a byte that is added to what is there, over that of a plain write.

    Notes
    -----
    The part of a stage's result that stays is in memory before the next stage reads. What goes to the neighbour leaves
    beside later stages, while the last-level cache holds what two of them have computed; the stage after these waits.
    """
    begins, done, stores = _computed(product, ring, update_cost)
    sizes, complete = product.written_bytes.sum(axis=0), done[product.last_stages()]
    arrivals = [tuple(stores)]
    for chunk in range(1, len(sizes) - 1):
        size = float(sizes[chunk])
        message = Message("RS", size, (RS_READS, size), (RS_WRITES, size), update_cost)
        sent = ring.send(message, arrivals[-1][-1])
        ring.wait(sent.first, complete[chunk])
        for one in arrivals[-1]:
            ring.wait_for_arrival(sent.first, one)
        arrivals.append((sent,))
    reduced = ring.mark("RS done")
    ring.wait(reduced, done[-1])
    for one in arrivals[-1]:
        ring.wait_for_arrival(reduced, one)
    gathered = all_gather(ring, Part(len(sizes), float(sizes[-1])), reduced)
    return Parts(ring.graph(), done[-1], reduced, gathered, begins, done, tuple(arrivals))


def _computed(product: Product, ring: Ring, update_cost: float) -> tuple[Ints, Ints, list[Transfer]]:
    """Append the stages; return what each begins and ends with, and the stores to the neighbour."""
    ends, reads = _stages(product, ring)
    away, stays = product.written_bytes[:, 0], product.written_bytes[:, 1:].sum(axis=1)
    local = np.flatnonzero(stays)
    writes = ring.access(GEMM_WRITES, stays[local], update_cost)
    ring.wait(writes, ends[local])
    done = ends.copy()
    done[local] = writes
    ring.wait(reads[1:], done[:-1])
    stores: list[Transfer] = []
    for stage in np.flatnonzero(away).tolist():
        message = Message(STORES, float(away[stage]), ("", 0.0), (RS_WRITES, float(away[stage])), update_cost)
        stores.append(ring.send(message, stores[-1] if stores else None))
        ring.wait(stores[-1].first, ends[stage])
        if stage + 3 < len(reads):
            ring.wait(reads[stage + 3], stores[-1].left)
    return reads, done, stores


def _stages(product: Product, ring: Ring) -> tuple[Ints, Ints]:
    """Append reads and arithmetic, slice by slice of the depth; return what each stage ends and begins with."""
    stages, slices = len(product.read_bytes), product.slices
    sizes = np.repeat(product.read_bytes / slices, slices)
    reads = ring.access(GEMM_READS, sizes, release_ns=product.launch_ns).reshape(stages, slices, ring.gpus)
    times = np.full(stages * slices, product.compute_ns / slices)
    computed = ring.compute(COMPUTES, times).reshape(stages, slices, ring.gpus)
    ring.wait(computed, reads)
    ring.wait(reads[:, 1:], computed[:, :-1])
    return computed[:, -1], reads[:, 0]
