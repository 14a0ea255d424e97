"""Device figure what-ifs: another clock, number of compute units, or memory bandwidth of the traced device."""

from collections.abc import Mapping
from dataclasses import replace

from profilers.devices.catalogue import FIGURE_RANGES, FIGURE_UNITS, Device
from profilers.errors import InvalidInputError
from replay.calibration.parameters import Parameters
from replay.graph.graph import KernelGraph
from replay.what_ifs.device import moved_to, source_device
from replay.what_ifs.what_if import Argument, WhatIf, check_factor, recipe, written

_PEAKS = tuple(name for name in FIGURE_UNITS if name.endswith("_tflops"))
_FACTOR = Argument("factor", "new value over that of the traced device", "number")


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
        target = _scaled(source, f"what-if {written(name, factor)}", factors)
        if target == source:
            return graph
        # The profiler may have seen fewer units than the catalogue lists: a partition, or an early model.
        units = max(round(graph.hardware.compute_units * target.compute_units / source.compute_units), 1)
        return moved_to(graph, target, units, parameters)

    return WhatIf(written(name, factor), transform)


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
