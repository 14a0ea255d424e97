"""What if the device might draw less power, or more?"""

import numpy as np
import numpy.typing as npt

from replay.calibration.parameters import Parameters
from replay.costs.retiming import arithmetic_tasks
from replay.graph.graph import RESOURCES, Basis, KernelGraph, TaskKind
from replay.what_ifs.what_if import Argument, Recipe, WhatIf, check_factor, written

#: No device runs on less of its limit.
_LEAST = 0.05
_POWER = RESOURCES.index("power")


def limit_power(factor: float) -> WhatIf:
    """Devices may draw `factor` times the power that they might; what asks for more lowers the clock.

    A task draws a share of today's limit by what it is bound by (`power_share_compute_bound`,
    `power_share_memory_bound`, `power_share_collective` of `datasets/parameters.toml`, all assumed). Where the tasks on
    a device together ask for more than the limit, their clock falls with the third root of the excess; arithmetic
    goes by the clock, memory and links do not. A kernel that alone asks for more takes longer alone.

    Not modelled: what the limit already cost when the trace was recorded, idle power, temperature, and a clock that
    rises where the limit does. A factor of 1 changes nothing. Given twice, it neither composes (0.5
    twice is not 0.25) nor goes back (2 after 0.5): each starts from today's limit, and what was slowed stays slow.

    Source: dynamic power goes with V^2 f and V about with f; the shares are assumptions.

    Raises
    ------
    InvalidInputError
        `factor` is not within 0.05 to 1e6.
    """
    check_factor("limit_power", factor, least=_LEAST)

    def transform(graph: KernelGraph, parameters: Parameters) -> KernelGraph:
        if factor == 1.0:
            return graph
        asked = _shares(graph, parameters) / factor
        tasks = graph.tasks
        slower = np.maximum(asked, 1.0) ** (1.0 / graph.policy.power_exponent)
        duration = np.where(arithmetic_tasks(graph), tasks.duration_ns * slower, tasks.duration_ns)
        demand = tasks.demand.copy()
        demand[:, _POWER] = np.minimum(asked, 1.0)
        return graph.with_durations(duration, Basis.ASSUMED).with_tasks(demand=demand)

    return WhatIf(written("limit_power", factor), transform)


def _shares(graph: KernelGraph, parameters: Parameters) -> npt.NDArray[np.float64]:
    """Return the share of the power limit that each task asks for, running alone."""
    tasks = graph.tasks
    kernel = (tasks.kind == TaskKind.KERNEL) & graph.on_device()
    by_class = np.where(
        arithmetic_tasks(graph), parameters["power_share_compute_bound"], parameters["power_share_memory_bound"]
    )
    shares = np.where(kernel, by_class * np.sqrt(np.minimum(tasks.occupies, 1.0)), 0.0)
    collective = (tasks.kind == TaskKind.COLLECTIVE) & graph.on_device()
    return np.asarray(np.where(collective, parameters["power_share_collective"], shares))


RECIPES = (
    Recipe(
        "limit_power",
        limit_power,
        (Argument("factor", "of today's power limit", "number"),),
        "Devices may draw FACTOR times the power; what asks for more lowers the clock.",
        "limit_power:0.7",
        "device",
    ),
)
