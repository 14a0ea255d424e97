"""FiCCO what-if: matrix products begin on the first pieces of a collective (arXiv 2512.10236)."""

import numpy as np

from profilers.errors import InvalidInputError
from replay.calibration.parameters import Parameters
from replay.graph.graph import RESOURCES, Basis, KernelGraph
from replay.what_ifs.pipeline import (
    bytes_time,
    quantisation,
    receive_in_pieces,
    without_units,
)
from replay.what_ifs.targets import consumers, nothing_to_apply
from replay.what_ifs.what_if import Argument, WhatIf, recipe, what_if_text

_DMA = RESOURCES.index("dma")
_MOST_PIECES = 64


@recipe(
    "communication",
    "ficco:8",
    Argument("pieces", "number of pieces of each collective and product, 1 to 64", "whole", default="8"),
)
def ficco(pieces: int = 8) -> WhatIf:
    """Cut an all-gather or all-to-all into PIECES, and compute on each piece as soon as it has arrived (FiCCO).

    The what-if applies to a matrix product that reads the result of the collective. At most three copies or conversions
    may stand between. The product becomes PIECES kernels of equal rows. Each takes whole waves of workgroups, so all
    together may take longer than the product; kernels of unknown grid are assumed to lose nothing.

    DMA engines move the pieces, without compute units. Each takes its part of the collective's bandwidth time over
    `dma_bandwidth_ratio`, plus `dma_command_ns`. The latency of the collective is paid once.

    Not modelled: schedules that start on the local shard or cut in two dimensions (`replay.studies` has them, for given
    shapes). A fabric may also move pieces to all peers faster than the traced collective.

    Source: FiCCO (arXiv 2512.10236).

    Raises
    ------
    InvalidInputError
        `pieces` is not within 1 to 64.
    """
    if not 1 <= pieces <= _MOST_PIECES:
        raise InvalidInputError(f"{pieces} pieces: give a number from 1 to {_MOST_PIECES}")

    def transform(graph: KernelGraph, parameters: Parameters) -> KernelGraph:
        return _transform(graph, parameters, pieces)

    return WhatIf(what_if_text("ficco", pieces), transform)


def _transform(graph: KernelGraph, parameters: Parameters, pieces: int) -> KernelGraph:
    targets = consumers(graph, ("all_gather", "all_to_all"), ("gemm",))
    if not targets.found:
        return nothing_to_apply(graph, "ficco", targets)
    result = receive_in_pieces(graph, targets.found, [pieces] * len(targets.found))
    rows = np.stack(result.collectives)
    traced_ns = graph.tasks.duration_ns[rows[:, -1]]
    bandwidth_ns = np.array([bytes_time(duration, parameters) for duration in traced_ns.tolist()])
    transfer_ns = bandwidth_ns / pieces / parameters["dma_bandwidth_ratio"] + parameters["dma_command_ns"]
    piece_ns = np.repeat(transfer_ns[:, None], pieces, axis=1)
    piece_ns[:, 0] += traced_ns - bandwidth_ns
    changed = without_units(result.graph, rows.ravel(), piece_ns.ravel())
    demand, duration, basis = (getattr(changed.tasks, n).copy() for n in ("demand", "duration_ns", "basis"))
    demand[rows, _DMA] = 1.0
    product_rows = np.concatenate(result.kernels)
    duration[product_rows] *= quantisation(graph.tasks.waves[product_rows[:, -1:]], pieces)
    basis[product_rows] = np.maximum(basis[product_rows], int(Basis.DERIVED))
    changed = changed.with_tasks(demand=demand, duration_ns=duration, basis=basis)
    unknown_grids = sum(graph.tasks.waves[target.kernels[-1]] <= 0 for target in targets.found)
    lossless = (
        f"; {unknown_grids} products of unknown grid are taken to lose nothing in pieces" if unknown_grids else ""
    )
    return changed.with_notes([f"ficco: {targets.note}{lossless}"])
