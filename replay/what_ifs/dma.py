"""DMA what-if: collectives run on the DMA engines instead of the compute units (ConCCL, arXiv 2412.14335)."""

import numpy as np

from replay.calibration.parameters import Parameters
from replay.graph.graph import COLLECTIVE_KINDS, RESOURCES, Basis, KernelGraph, TaskKind
from replay.what_ifs.what_if import WhatIf, recipe

#: DMA engines copy and do no arithmetic, so collectives that reduce stay on the compute units.
_COPIES_ONLY = ("all_gather", "all_to_all", "broadcast", "gather", "scatter", "send_recv")
_CU, _DMA = RESOURCES.index("cu"), RESOURCES.index("dma")


@recipe("communication", "dma_collectives")
def dma_collectives() -> WhatIf:
    """Run collectives without arithmetic on the DMA engines.

    They then use no compute units, but still memory and link bandwidth. A collective takes its isolated duration
    divided by `dma_bandwidth_ratio`, plus one command (`dma_command_ns`). Collectives that reduce, and those of unknown
    kind, stay on the compute units; a note counts them.

    Not modelled: an algorithm that suits the engines better than the traced one. Copies between host and device share
    the engines with the collectives, as in any replay.

    Source: ConCCL (arXiv 2412.14335).
    """
    return WhatIf("dma_collectives", _transform, retimes=True)


def _transform(graph: KernelGraph, parameters: Parameters) -> KernelGraph:
    tasks = graph.tasks
    collective = tasks.kind == TaskKind.COLLECTIVE
    kinds = [COLLECTIVE_KINDS.index(kind) for kind in _COPIES_ONLY]
    moved = collective & np.isin(tasks.collective, kinds) & (tasks.demand[:, _DMA] == 0)
    demand = tasks.demand.copy()
    demand[moved, _CU], demand[moved, _DMA] = 0.0, 1.0
    on_engines_ns = tasks.duration_ns / parameters["dma_bandwidth_ratio"] + parameters["dma_command_ns"]
    kept = int((collective & ~moved).sum())
    note = f"dma_collectives: {int(moved.sum())} of {int(collective.sum())} collectives moved"
    return graph.with_tasks(
        demand=demand,
        occupies=np.where(moved, 0.0, tasks.occupies),
        pressure=np.where(moved, 0.0, tasks.pressure),
        duration_ns=np.where(moved, on_engines_ns, tasks.duration_ns),
        basis=np.where(moved, np.maximum(tasks.basis, int(Basis.DERIVED)), tasks.basis),
    ).with_notes(
        [note + (f"; {kept} need arithmetic, which DMA engines do not have, or are of unknown kind" if kept else "")]
    )
