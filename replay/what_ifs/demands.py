"""Demands of the tasks that a what-if makes others of."""

import numpy as np
import numpy.typing as npt

from replay.demand import with_demands
from replay.graph import KernelGraph
from replay.parameters import Parameters

__all__ = ["with_demands_of"]

_COLUMNS = ("demand", "occupies", "waves", "footprint", "hit_share")


def with_demands_of(graph: KernelGraph, rows: npt.NDArray[np.bool_], parameters: Parameters) -> KernelGraph:
    """Return `graph` with the demands of some tasks worked out anew; those of all others stay."""
    new, tasks = with_demands(graph, parameters).tasks, graph.tasks
    columns = {}
    for name in _COLUMNS:
        chosen = rows[:, None] if name == "demand" else rows
        columns[name] = np.where(chosen, getattr(new, name), getattr(tasks, name))
    return graph.with_tasks(**columns)
