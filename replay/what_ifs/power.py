"""Power what-if: devices have another power limit."""

import numpy as np
import numpy.typing as npt

from replay.calibration.parameters import Parameters
from replay.costs.retiming import arithmetic_tasks
from replay.graph.graph import RESOURCES, Basis, KernelGraph, TaskKind
from replay.what_ifs.what_if import Argument, WhatIf, check_factor, recipe, what_if_text

#: Smallest factor: no device runs on less of its limit.
_SMALLEST_FACTOR = 0.05
_POWER = RESOURCES.index("power")


@recipe("device", "limit_power:0.7", Argument("factor", "new power limit over today's", "number"))
def limit_power(factor: float) -> WhatIf:
    """Multiply the power limit of every device by FACTOR.

    A task draws a share of today's limit, by the resource that bounds it: `power_share_compute_bound`,
    `power_share_memory_bound` or `power_share_collective` of `datasets/parameters.toml`, all assumed. If the tasks on a
    device together exceed the limit, the clock falls with the third root of the excess. Compute-bound kernels slow with
    the clock; memory and links do not. A kernel that alone exceeds the limit has a longer isolated duration.

    A factor of 1 changes nothing. The what-if does not compose with itself: each use starts from today's limit. So 0.5
    twice is not 0.25, and 2 after 0.5 does not restore the traced durations.

    Not modelled: what the limit already cost in the recording, idle power, temperature, and a clock that rises with the
    limit.

    Source: dynamic power grows with V^2 f, and V about with f; the shares are assumptions.

    Raises
    ------
    InvalidInputError
        `factor` is not within 0.05 to 1e6.
    """
    check_factor("limit_power", factor, least=_SMALLEST_FACTOR)

    def transform(graph: KernelGraph, parameters: Parameters) -> KernelGraph:
        if factor == 1.0:
            return graph
        power = _shares(graph, parameters) / factor
        tasks = graph.tasks
        slowdown = np.maximum(power, 1.0) ** (1.0 / graph.policy.power_exponent)
        duration = np.where(arithmetic_tasks(graph), tasks.duration_ns * slowdown, tasks.duration_ns)
        demand = tasks.demand.copy()
        demand[:, _POWER] = np.minimum(power, 1.0)
        return graph.with_durations(duration, Basis.ASSUMED).with_tasks(demand=demand)

    return WhatIf(what_if_text("limit_power", factor), transform)


def _shares(graph: KernelGraph, parameters: Parameters) -> npt.NDArray[np.float64]:
    """Return the share of the power limit that each task draws when it runs alone."""
    tasks = graph.tasks
    kernel = (tasks.kind == TaskKind.KERNEL) & graph.on_device()
    kernel_shares = np.where(
        arithmetic_tasks(graph), parameters["power_share_compute_bound"], parameters["power_share_memory_bound"]
    )
    shares = np.where(kernel, kernel_shares * np.sqrt(np.minimum(tasks.occupies, 1.0)), 0.0)
    collective = (tasks.kind == TaskKind.COLLECTIVE) & graph.on_device()
    return np.asarray(np.where(collective, parameters["power_share_collective"], shares))
