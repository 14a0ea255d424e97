"""What if collectives ran on the DMA engines instead of the compute units? (ConCCL, arXiv 2412.14335)"""

import numpy as np

from replay.calibration.parameters import Parameters
from replay.graph.graph import COLLECTIVE_KINDS, RESOURCES, Basis, KernelGraph, TaskKind
from replay.what_ifs.what_if import Recipe, WhatIf

#: DMA engines copy and do no arithmetic, so whatever reduces stays on the compute units.
_COPIES_ONLY = ("all_gather", "all_to_all", "broadcast", "gather", "scatter", "send_recv")
_CU, _DMA = RESOURCES.index("cu"), RESOURCES.index("dma")


def dma_collectives() -> WhatIf:
    """Collectives without arithmetic use DMA engines: no compute units, still memory and links.

    Each takes its isolated time over `dma_bandwidth_ratio` plus one command, `dma_command_ns`. Collectives
    that reduce, or whose kind the trace does not say, stay as they are; a note counts them.

    Not modelled: engines that copies between host and device keep busy are shared with those, as in any replay; how an
    algorithm that suits engines differs from the traced one.

    Source: ConCCL (arXiv 2412.14335).
    """
    return WhatIf("dma_collectives", _transform)


def _transform(graph: KernelGraph, parameters: Parameters) -> KernelGraph:
    tasks = graph.tasks
    collective = tasks.kind == TaskKind.COLLECTIVE
    movable = [COLLECTIVE_KINDS.index(kind) for kind in _COPIES_ONLY]
    chosen = collective & np.isin(tasks.collective, movable) & (tasks.demand[:, _DMA] == 0)
    demand = tasks.demand.copy()
    demand[chosen, _CU], demand[chosen, _DMA] = 0.0, 1.0
    moved = tasks.duration_ns / parameters["dma_bandwidth_ratio"] + parameters["dma_command_ns"]
    left = int((collective & ~chosen).sum())
    note = f"dma_collectives: {int(chosen.sum())} of {int(collective.sum())} collectives moved"
    return graph.with_tasks(
        demand=demand,
        occupies=np.where(chosen, 0.0, tasks.occupies),
        duration_ns=np.where(chosen, moved, tasks.duration_ns),
        basis=np.where(chosen, np.maximum(tasks.basis, int(Basis.DERIVED)), tasks.basis),
    ).with_notes(
        [note + (f"; {left} need arithmetic, which DMA engines do not have, or are of unknown kind" if left else "")]
    )


RECIPES = (
    Recipe(
        "dma_collectives",
        dma_collectives,
        (),
        "Collectives without arithmetic move to the DMA engines (ConCCL).",
        "dma_collectives",
        "communication",
    ),
)
