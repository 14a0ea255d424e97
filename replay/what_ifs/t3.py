"""T3 what-if: reducing collectives run under the matrix product that computes their data (arXiv 2401.16677)."""

import numpy as np

from replay.calibration.parameters import Parameters
from replay.graph.graph import COLLECTIVE_KINDS, KernelGraph
from replay.what_ifs.pipeline import bytes_time, ranks_of, send_in_pieces, without_units
from replay.what_ifs.targets import nothing_to_apply, producers
from replay.what_ifs.what_if import WhatIf, recipe

_CLASSES = ("gemm", "convolution")
_ALL_REDUCE = COLLECTIVE_KINDS.index("all_reduce")


@recipe("communication", "t3")
def t3() -> WhatIf:
    """Send each chunk of a matrix product into its reduction as soon as it is computed (T3).

    The what-if applies to a product or convolution that an all-reduce or reduce-scatter follows. At most three copies
    or conversions may stand between. The product runs in one stage per rank. A hardware tracker triggers the DMA of
    each chunk, and memory adds the chunks up.

    The reduce-scatter then uses no compute units, and each chunk costs `chunk_trigger_ns`. For N ranks its memory
    traffic scales by (3N - 4) / (4N - 1). It reads N - 2 parts instead of 2N - 1, and writes 2N - 2 instead of 2N. The
    all-gather half of an all-reduce follows as before. If the trace does not tell the number of ranks, 8 are assumed.

    Not modelled: a tracker that is too small, unequal arbitration in the memory controller, and waits of the host in
    between. Kernels between product and collective are cut into the same stages.

    Source: T3 (arXiv 2401.16677); the traffic is counted for a ring of N ranks.
    """
    return WhatIf("t3", _transform)


def _transform(graph: KernelGraph, parameters: Parameters) -> KernelGraph:
    targets = producers(graph, ("all_reduce", "reduce_scatter"), _CLASSES)
    if not targets.found:
        return nothing_to_apply(graph, "t3", targets)
    ranks = ranks_of(graph, targets.found)
    gathers = [int(graph.tasks.collective[target.collective] == _ALL_REDUCE) for target in targets.found]
    result = send_in_pieces(graph, targets.found, ranks, gathers)
    traced_ns = graph.tasks.duration_ns[[target.collective for target in targets.found]]
    rows, chunk_ns, traffic = [], [], []
    for duration_ns, chunks, n, gather in zip(traced_ns.tolist(), result.collectives, ranks, gathers, strict=True):
        reduction_ns = bytes_time(duration_ns, parameters) / (1 + gather)
        rows.append(chunks[:n])
        chunk_ns.append(np.full(n, reduction_ns / n + parameters["chunk_trigger_ns"]))
        traffic.append(np.full(n, (3 * n - 4) / (4 * n - 1)))
    changed = without_units(result.graph, np.concatenate(rows), np.concatenate(chunk_ns), np.concatenate(traffic))
    durations_ns = changed.tasks.duration_ns.copy()
    gathering = np.array(gathers, dtype=np.bool_)
    durations_ns[np.array([chunks[-1] for chunks in result.collectives])[gathering]] = traced_ns[gathering] / 2
    changed = changed.with_tasks(duration_ns=durations_ns)
    return changed.with_notes([f"t3: {targets.note}"])
