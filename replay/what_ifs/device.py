"""What if the job ran on another device, or with other links?

Relative re-timing: a traced duration is scaled by the ratio of what models say of the two devices; how far the
efficiency of kernels on another device may differ from that is in the interval.
"""

from dataclasses import replace

import numpy as np

from profilers.devices.catalogue import Device, find_device
from profilers.errors import InvalidInputError
from profilers.trace.arrays import Floats
from replay.calibration.parameters import Parameters
from replay.costs.demand import with_demands
from replay.costs.retiming import above_floor, retimed
from replay.graph.graph import RESOURCES, Basis, KernelGraph, TaskKind, hardware_named
from replay.what_ifs.what_if import Argument, Recipe, WhatIf, check_factor, written

_CU = RESOURCES.index("cu")


def scale_device(name: str | Device) -> WhatIf:
    """Every device task is re-timed for another device of the catalogue (`replay.costs.retiming`).

    - A matrix product, convolution or fused attention whose shape is known: T_d = T_o * M_d / M_o, with M what
      models of durations say of it on the two devices, at the rate that each sustains in its data type.
    - One whose shape is not known: above `product_floor_ns` by those rates and, below one wave of workgroups, by
      the rate of one compute unit.
    - Every other kernel, and a copy on the device: above `kernel_floor_ns` by the memory bandwidth that streaming
      kernels sustain. Floors are those of the vendor.
    - A collective goes by link bandwidth, less `collective_latency_ns`.
    - Copies between host and device, and the host, stay as they are.

    Scaling to the same device changes nothing, and going there and back returns what was traced.

    Not modelled: cache effects, power, and other kernels that a library would choose there.

    Source: `replay.costs.retiming`; wave scaling as in Habitat (USENIX ATC 2021); errors in docs/devices.md.

    Raises
    ------
    NotFoundError
        The catalogue has no such device; the nearest names are offered.
    """
    target = find_device(name) if isinstance(name, str) else name

    def transform(graph: KernelGraph, parameters: Parameters) -> KernelGraph:
        same = source_device(graph) == target
        return graph if same else moved_to(graph, target, target.compute_units, parameters)

    return WhatIf(written("scale_device", target.name), transform)


def moved_to(graph: KernelGraph, target: Device, units: int, parameters: Parameters) -> KernelGraph:
    """Return `graph` with its device tasks re-timed for `target` of `units` compute units, and run on it."""
    tasks = graph.tasks
    duration = _collectives(graph, target, parameters, retimed(graph, target, units, parameters))
    changed = duration != tasks.duration_ns
    moved = graph.with_tasks(
        duration_ns=duration,
        basis=np.where(changed, np.maximum(tasks.basis, int(Basis.DERIVED)), tasks.basis),
    )
    moved = replace(moved, hardware=replace(hardware_named(target, "what-if"), compute_units=units))
    return _same_engines(graph, with_demands(moved, parameters))


def source_device(graph: KernelGraph) -> Device:
    """Return the device of a graph.

    Raises
    ------
    InvalidInputError
        The trace does not name it.
    """
    if graph.hardware.device is None:
        raise InvalidInputError(
            "the trace does not say on which device it was recorded; name it (--device NAME, `seqpoint devices`)"
        )
    return graph.hardware.device


def _same_engines(before: KernelGraph, after: KernelGraph) -> KernelGraph:
    """Keep on the new device what an earlier what-if took off the compute units or put on DMA engines."""
    old, new = before.tasks.demand, after.tasks.demand
    kept = np.where(old == 0.0, 0.0, np.where(new == 0.0, old, new))
    demand = np.where(before.on_device()[:, None], kept, new)
    occupies = np.where(demand[:, _CU] == 0.0, 0.0, after.tasks.occupies)
    return after.with_tasks(demand=demand, occupies=occupies)


def _collectives(graph: KernelGraph, target: Device, parameters: Parameters, duration: Floats) -> Floats:
    collective = graph.tasks.kind == TaskKind.COLLECTIVE
    if not collective.any() or ("link_gbps" not in target.figures and target.name == source_device(graph).name):
        return duration
    ratio = source_device(graph).link_bytes_per_s / target.link_bytes_per_s
    latency = parameters["collective_latency_ns"]
    return np.where(collective, above_floor(graph.tasks.duration_ns, (latency, latency), ratio), duration)


def scale_links(factor: float) -> WhatIf:
    """Links between devices have `factor` times their bandwidth; a collective's latency stays.

    Not modelled: another algorithm that a library would choose then, and which links a collective crosses.

    Source: `collective_latency_ns` of `datasets/parameters.toml`.

    Raises
    ------
    InvalidInputError
        `factor` is not within 1e-6 to 1e6.
    """
    check_factor("scale_links", factor)

    def transform(graph: KernelGraph, parameters: Parameters) -> KernelGraph:
        tasks = graph.tasks
        chosen = tasks.kind == TaskKind.COLLECTIVE
        latency = parameters["collective_latency_ns"]
        scaled = above_floor(tasks.duration_ns, (latency, latency), 1.0 / factor)
        changed = chosen & (factor != 1.0)
        return graph.with_tasks(
            duration_ns=np.where(changed, scaled, tasks.duration_ns),
            basis=np.where(changed, np.maximum(tasks.basis, int(Basis.DERIVED)), tasks.basis),
        )

    return WhatIf(written("scale_links", factor), transform)


RECIPES = (
    Recipe(
        "scale_device",
        lambda device: scale_device(device),
        (Argument("device", "of `seqpoint devices`"),),
        "Every kernel is re-timed for another device by what models say of it on both.",
        "scale_device:H100-SXM5-80GB",
        "device",
        scale_device.__doc__ or "",
    ),
    Recipe(
        "scale_links",
        scale_links,
        (Argument("factor", "of their bandwidth", "number"),),
        "Links between devices have FACTOR times their bandwidth.",
        "scale_links:2",
        "communication",
    ),
)
