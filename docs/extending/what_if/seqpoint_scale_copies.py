"""A what-if: copies between the host and a device, or inside a device, and memsets are faster or slower."""

import numpy as np

from replay.calibration import Parameters
from replay.graph import Basis, KernelGraph
from replay.what_ifs import Argument, Recipe, TaskChoice, WhatIf, check_factor


def scale_copies(factor: float) -> WhatIf:
    """Copies take FACTOR times as long.

    Not modelled: the bandwidth that a copy takes from kernels beside it, which stays.
    """
    check_factor("scale_copies", factor, zero=True)

    def transform(graph: KernelGraph, parameters: Parameters) -> KernelGraph:
        copies = TaskChoice("copies").rows(graph)
        duration_ns = np.where(copies, factor * graph.tasks.duration_ns, graph.tasks.duration_ns)
        note = f"scale_copies:{factor}: {copies.sum()} copies"
        return graph.with_durations(duration_ns, Basis.ASSUMED).with_notes([note])

    return WhatIf("scale_copies", transform)


RECIPE = Recipe(
    name="scale_copies",
    make=scale_copies,
    arguments=(Argument("factor", "of their time", kind="number"),),
    example="scale_copies:0.5",
)
