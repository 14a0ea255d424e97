"""What if products began on the first pieces of what is gathered or exchanged? (FiCCO, arXiv 2512.10236)"""

import numpy as np

from profilers.errors import InvalidInputError
from replay.calibration.parameters import Parameters
from replay.graph.graph import RESOURCES, Basis, KernelGraph
from replay.what_ifs.pipeline import (
    bytes_time,
    consumers,
    nothing_to_apply,
    quantisation,
    receive_in_pieces,
    without_units,
)
from replay.what_ifs.what_if import Argument, Recipe, WhatIf, written

_DMA = RESOURCES.index("dma")
_MOST_PIECES = 64


def ficco(pieces: int = 8) -> WhatIf:
    """An all-gather or all-to-all comes in pieces by DMA, and the product that reads it computes on each as it comes.

    The product (with at most three copies or conversions before it) is cut into as many kernels, of equal parts of its
    rows; each takes whole waves of workgroups, so that pieces together may take longer (by the waves of the trace's
    grid, where it is known). A transfer takes its part of the time that goes with bytes, one `dma_command_ns`, over
    `dma_bandwidth_ratio`, and no compute units.

    Not modelled: schedules that start on the local shard or cut in two dimensions (`replay.studies` has them,
    for shapes), and a fabric on which pieces to all peers are faster than what the trace did.

    Source: FiCCO (arXiv 2512.10236).

    Raises
    ------
    InvalidInputError
        `pieces` is not within 1 to 64.
    """
    if not 1 <= pieces <= _MOST_PIECES:
        raise InvalidInputError(f"{pieces} pieces: give 1 to {_MOST_PIECES}")

    def transform(graph: KernelGraph, parameters: Parameters) -> KernelGraph:
        return _transform(graph, parameters, pieces)

    return WhatIf(written("ficco", pieces), transform)


def _transform(graph: KernelGraph, parameters: Parameters, pieces: int) -> KernelGraph:
    targets = consumers(graph, ("all_gather", "all_to_all"), ("gemm",))
    if not targets.found:
        return nothing_to_apply(graph, "ficco", targets)
    result = receive_in_pieces(graph, targets.found, [pieces] * len(targets.found))
    rows = np.stack(result.collectives)
    whole = graph.tasks.duration_ns[rows[:, -1]]
    moving = np.array([bytes_time(duration, parameters) for duration in whole.tolist()])
    sharing = moving / pieces / parameters["dma_bandwidth_ratio"] + parameters["dma_command_ns"]
    each = np.repeat(sharing[:, None], pieces, axis=1)
    each[:, 0] += whole - moving
    changed = without_units(result.graph, rows.ravel(), each.ravel())
    demand, duration, basis = (getattr(changed.tasks, n).copy() for n in ("demand", "duration_ns", "basis"))
    demand[rows, _DMA] = 1.0
    parts = np.concatenate(result.kernels)
    duration[parts] *= quantisation(graph.tasks.waves[parts[:, -1:]], pieces)
    basis[parts] = np.maximum(basis[parts], int(Basis.DERIVED))
    changed = changed.with_tasks(demand=demand, duration_ns=duration, basis=basis)
    unknown = sum(graph.tasks.waves[target.kernels[-1]] <= 0 for target in targets.found)
    lossless = f"; {unknown} products of unknown grid are taken to lose nothing in pieces" if unknown else ""
    return changed.with_notes([f"ficco: {targets.note}{lossless}"])


RECIPES = (
    Recipe(
        "ficco",
        ficco,
        (Argument("pieces", "of each collective and product", "whole", default="8"),),
        "Products begin on the first pieces of what is gathered or exchanged, which DMA engines bring (FiCCO).",
        "ficco:8",
        "communication",
    ),
)
