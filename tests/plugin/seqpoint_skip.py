"""A what-if from another package: kernels that are left out, as when a layer is dropped."""

import numpy as np

from replay.calibration.parameters import Parameters
from replay.graph.graph import Basis, KernelGraph
from replay.what_ifs import Argument, Recipe, TaskChoice, WhatIf

__all__ = ["RECIPE", "skip_kernels"]


def skip_kernels(kernel: str) -> WhatIf:
    """Chosen kernels take no time; their launches and order stay.

    Not modelled: what the job computes without them.
    """
    choice = TaskChoice(kernel)

    def transform(graph: KernelGraph, _parameters: Parameters) -> KernelGraph:
        rows = choice.rows(graph)
        return graph.with_tasks(
            duration_ns=np.where(rows, 0.0, graph.tasks.duration_ns),
            basis=np.where(rows, int(Basis.ASSUMED), graph.tasks.basis),
        ).with_notes([f"skip_kernels: {int(rows.sum())} tasks"])

    return WhatIf(f"skip_kernels:{kernel}", transform, patterns=choice.patterns)


RECIPE = Recipe(
    name="skip_kernels",
    make=skip_kernels,
    arguments=(Argument("kernel", "class, name, or pattern with * and ?"),),
    summary="Chosen kernels take no time.",
    example="skip_kernels:dropout",
    group="kernels",
)
