"""Power what-if: devices have another power limit."""

from replay.calibration.parameters import Parameters
from replay.costs.hardware import with_hardware
from replay.graph.graph import KernelGraph
from replay.what_ifs.what_if import Argument, WhatIf, check_factor, recipe, what_if_text

#: Smallest factor: no device runs on less of its limit.
_SMALLEST_FACTOR = 0.05


@recipe("device", "limit_power:0.7", Argument("factor", "new power limit over today's", "number"))
def limit_power(factor: float) -> WhatIf:
    """Multiply the power limit of every device by FACTOR.

    A task draws a share of today's limit, by the resource that bounds it: `power_share_compute_bound`,
    `power_share_memory_bound` or `power_share_collective` of `datasets/parameters.toml`, all assumed. If the tasks on a
    device together exceed the limit, the clock falls with the third root of the excess. Compute-bound kernels slow with
    the clock; memory and links do not. A kernel that alone exceeds the limit has a longer isolated duration.

    A factor of 1 changes nothing. Factors multiply: 0.5 twice is 0.25, and 2 after 0.5 restores the traced durations.
    On another device, shares are of the limit of that device.

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
        return with_hardware(graph, parameters, factors={"power": factor})

    return WhatIf(what_if_text("limit_power", factor), transform, retimes=True)
