"""Device what-ifs: another device of the catalogue, other links, or other figures of the traced device.

Durations are re-timed relative to the trace: a traced duration is scaled by the ratio of the models' durations on the
two devices. Kernels may reach another efficiency on the new device; the interval of a projection covers that.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from profilers.devices.catalogue import FIGURE_RANGES, FIGURE_UNITS, Device, find_device
from profilers.errors import InvalidInputError
from profilers.trace.arrays import Floats
from replay.calibration.parameters import Parameters
from replay.costs.demand import with_demands
from replay.costs.retiming import above_floor, retimed, source_device
from replay.graph.graph import RESOURCES, Basis, KernelGraph, TaskKind, hardware_named
from replay.what_ifs.what_if import Argument, WhatIf, check_factor, recipe, what_if_text

_CU = RESOURCES.index("cu")
_PEAKS = tuple(name for name in FIGURE_UNITS if name.endswith("_tflops"))
_FACTOR = Argument("factor", "new value over that of the traced device", "number")


@recipe("device", "scale_device:H100-SXM5-80GB", Argument("device", "name of a device (`seqpoint devices` lists them)"))
def scale_device(name: str | Device) -> WhatIf:
    """Re-time every device task for another device of the catalogue.

    - A matrix product, convolution or fused attention of known shape: T_new = T_old * M_new / M_old. M is the model's
      duration on each device, at the rate that the device sustains in the kernel's data type.
    - The same kernels of unknown shape: the time above `product_floor_ns` follows those rates. Grids below one wave of
      workgroups follow the rate of one compute unit.
    - Every other kernel, and a copy on the device: the time above `kernel_floor_ns` follows the memory bandwidth that
      streaming kernels sustain. Floors depend on the vendor.
    - A collective: the time above `collective_latency_ns` follows the link bandwidth.
    - Host calls, and copies between host and device, stay as they are.

    Scaling to the same device changes nothing. Going there and back restores the traced durations.

    Not modelled: cache effects, power, and other kernels that a library would choose on the new device.

    Source: `replay.costs.retiming`; wave scaling as in Habitat (USENIX ATC 2021); docs/devices.md has the measured
    errors.

    Raises
    ------
    NotFoundError
        The catalogue has no such device; the message offers the nearest names.
    """
    target = find_device(name) if isinstance(name, str) else name

    def transform(graph: KernelGraph, parameters: Parameters) -> KernelGraph:
        same = source_device(graph) == target
        return graph if same else moved_to(graph, target, target.compute_units, parameters)

    return WhatIf(what_if_text("scale_device", target.name), transform)


def moved_to(graph: KernelGraph, target: Device, units: int, parameters: Parameters) -> KernelGraph:
    """Return `graph` with its device tasks re-timed for `target`, run on `units` of its compute units."""
    duration = _with_collectives(graph, target, parameters, retimed(graph, target, units, parameters))
    moved = graph.with_durations(duration, Basis.DERIVED)
    moved = replace(moved, hardware=replace(hardware_named(target, "what-if"), compute_units=units))
    return _with_same_engines(graph, with_demands(moved, parameters))


def _with_same_engines(before: KernelGraph, after: KernelGraph) -> KernelGraph:
    """Keep an earlier what-if's choice of tasks that use no compute units, or DMA engines."""
    old, new = before.tasks.demand, after.tasks.demand
    kept = np.where(old == 0.0, 0.0, np.where(new == 0.0, old, new))
    demand = np.where(before.on_device()[:, None], kept, new)
    occupies = np.where(demand[:, _CU] == 0.0, 0.0, after.tasks.occupies)
    return after.with_tasks(demand=demand, occupies=occupies)


def _with_collectives(graph: KernelGraph, target: Device, parameters: Parameters, duration: Floats) -> Floats:
    """Return `duration` with the collectives re-timed by link bandwidth."""
    collective = graph.tasks.kind == TaskKind.COLLECTIVE
    if not collective.any() or ("link_gbps" not in target.figures and target.name == source_device(graph).name):
        return duration
    ratio = source_device(graph).link_bytes_per_s / target.link_bytes_per_s
    latency = parameters["collective_latency_ns"]
    return np.where(collective, above_floor(graph.tasks.duration_ns, (latency, latency), ratio), duration)


@recipe("communication", "scale_links:2", Argument("factor", "new link bandwidth over old", "number"))
def scale_links(factor: float) -> WhatIf:
    """Scale the bandwidth of the links between devices by FACTOR; the latency of a collective stays.

    Not modelled: another algorithm that the communication library would choose, and which links a collective crosses.

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

    return WhatIf(what_if_text("scale_links", factor), transform)


@recipe("device", "scale_clock:0.8", _FACTOR)
def scale_clock(factor: float) -> WhatIf:
    """Scale the clock of the compute units by FACTOR; memory and links stay.

    Compute-bound kernels follow the clock, and so do the parts of known-shape kernels that are latency.

    Not modelled: the power limit, which may not allow a higher clock (`limit_power`).

    Source: `replay.costs.retiming`.

    Raises
    ------
    InvalidInputError
        `factor` is not within 1e-6 to 1e6.
    """
    return _with_scaled_figures("scale_clock", factor, dict.fromkeys(("clock_mhz", "llc_gbps", *_PEAKS), factor))


@recipe("device", "scale_compute_units:0.5", _FACTOR)
def scale_compute_units(factor: float) -> WhatIf:
    """Scale the number of compute units by FACTOR, rounded to a whole number; memory and links stay.

    Not modelled: another grid that a library would choose for that number.

    Source: `replay.costs.retiming`.

    Raises
    ------
    InvalidInputError
        `factor` is not within 1e-6 to 1e6.
    """
    return _with_scaled_figures("scale_compute_units", factor, dict.fromkeys(("compute_units", *_PEAKS), factor))


@recipe("device", "scale_memory_bandwidth:1.5", _FACTOR)
def scale_memory_bandwidth(factor: float) -> WhatIf:
    """Scale the bandwidth of the device memory by FACTOR; compute units and links stay.

    Not modelled: memory latency and caches, which stay.

    Source: `replay.costs.retiming`.

    Raises
    ------
    InvalidInputError
        `factor` is not within 1e-6 to 1e6.
    """
    return _with_scaled_figures("scale_memory_bandwidth", factor, {"memory_gbps": factor})


def _with_scaled_figures(name: str, factor: float, factors: Mapping[str, float]) -> WhatIf:
    check_factor(name, factor)

    def transform(graph: KernelGraph, parameters: Parameters) -> KernelGraph:
        source = source_device(graph)
        target = _scaled(source, f"what-if {what_if_text(name, factor)}", factors)
        if target == source:
            return graph
        # The profiler may have seen fewer units than the catalogue lists: a partition, or an early model.
        units = max(round(graph.hardware.compute_units * target.compute_units / source.compute_units), 1)
        return moved_to(graph, target, units, parameters)

    return WhatIf(what_if_text(name, factor), transform)


def _scaled(device: Device, source: str, factors: Mapping[str, float]) -> Device:
    """Return `device` with scaled figures. Compute units stay a whole number, and the peaks follow that number."""
    if "compute_units" in factors:
        units = max(round(device.compute_units * factors["compute_units"]), 1)
        factors = dict.fromkeys(factors, units / device.compute_units)
    figures = dict(device.figures)
    for name, factor in factors.items():
        if name in figures and factor != 1.0:
            value = figures[name].value * factor
            value = float(round(value)) if name == "compute_units" else value
            low, high = FIGURE_RANGES[name]
            if not low <= value <= high:
                raise InvalidInputError(
                    f"{name} of {device.name} would be {value:.3g} {FIGURE_UNITS[name]}, which is not within "
                    f"{low:g} to {high:g}"
                )
            figures[name] = replace(figures[name], value=value, source=f"{source}: {figures[name].source}")
    return replace(device, figures=figures)
