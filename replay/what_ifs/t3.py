"""What if collectives that reduce ran under the product that makes their data? (T3, arXiv 2401.16677)"""

import numpy as np

from replay.calibration.parameters import Parameters
from replay.graph.graph import COLLECTIVE_KINDS, KernelGraph
from replay.what_ifs.pipeline import bytes_time, nothing_to_apply, producers, ranks_of, send_in_pieces, without_units
from replay.what_ifs.what_if import Recipe, WhatIf

_CLASSES = ("gemm", "convolution")
_ALL_REDUCE = COLLECTIVE_KINDS.index("all_reduce")


def t3() -> WhatIf:
    """Each chunk of a product that is reduced over ranks is sent as it is computed, by hardware that tracks it.

    A product (or convolution) that an all-reduce or reduce-scatter follows, with at most three copies or conversions
    between, runs in one stage a rank; the tracker triggers a DMA of each chunk, and memory adds it up. The
    reduce-scatter then takes no compute units and (3N - 4) / (4N - 1) of its memory traffic for N ranks (reads N - 2
    and writes 2 (N - 1) parts instead of 2 N - 1 and 2 N), and each chunk `chunk_trigger_ns`. The all-gather of an
    all-reduce, half of its time, comes after as before. Where the trace does not tell the ranks, 8 are taken.

    Not modelled: a tracker that is too small, arbitration in the memory controller other than equal parts, and what the
    host waits for in between; kernels between product and collective are cut with it.

    Source: T3 (arXiv 2401.16677); traffic of a ring with N ranks counted.
    """
    return WhatIf("t3", _transform)


def _transform(graph: KernelGraph, parameters: Parameters) -> KernelGraph:
    targets = producers(graph, ("all_reduce", "reduce_scatter"), _CLASSES)
    if not targets.found:
        return nothing_to_apply(graph, "t3", targets)
    pieces = ranks_of(graph, targets.found)
    gathers = [int(graph.tasks.collective[target.collective] == _ALL_REDUCE) for target in targets.found]
    result = send_in_pieces(graph, targets.found, pieces, gathers)
    whole = graph.tasks.duration_ns[[target.collective for target in targets.found]]
    rows, each, factors = [], [], []
    for duration, sent, n, gather in zip(whole.tolist(), result.collectives, pieces, gathers, strict=True):
        reducing = bytes_time(duration, parameters) / (1 + gather)
        rows.append(sent[:n])
        each.append(np.full(n, reducing / n + parameters["chunk_trigger_ns"]))
        factors.append(np.full(n, (3 * n - 4) / (4 * n - 1)))
    changed = without_units(result.graph, np.concatenate(rows), np.concatenate(each), np.concatenate(factors))
    duration_ns = changed.tasks.duration_ns.copy()
    gathering = np.array(gathers, dtype=np.bool_)
    duration_ns[np.array([sent[-1] for sent in result.collectives])[gathering]] = whole[gathering] / 2
    changed = changed.with_tasks(duration_ns=duration_ns)
    return changed.with_notes([f"t3: {targets.note}"])


RECIPES = (
    Recipe(
        "t3",
        t3,
        (),
        "Reduce-scatters run under the product that makes their data, chunk by chunk, and add up in memory (T3).",
        "t3",
        "communication",
    ),
)
