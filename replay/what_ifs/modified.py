"""What if the job's own device had another clock, more compute units, or faster memory?"""

from collections.abc import Mapping
from dataclasses import replace

from profilers.devices.catalogue import FIGURE_RANGES, FIGURE_UNITS, Device
from profilers.errors import InvalidInputError
from replay.calibration.parameters import Parameters
from replay.graph.graph import KernelGraph
from replay.what_ifs.device import moved_to, source_device
from replay.what_ifs.what_if import Argument, Recipe, WhatIf, check_factor, written

_PEAKS = tuple(name for name in FIGURE_UNITS if name.endswith("_tflops"))


def scale_clock(factor: float) -> WhatIf:
    """The device's compute units run at `factor` times their clock; its memory and links stay.

    Arithmetic, and latency within kernels whose shape is known, go by the clock.

    Not modelled: the power limit, which may not allow a higher one (`limit_power`).

    Source: `replay.costs.retiming`.

    Raises
    ------
    InvalidInputError
        `factor` is not within 1e-6 to 1e6.
    """
    return _modified("scale_clock", factor, dict.fromkeys(("clock_mhz", "llc_gbps", *_PEAKS), factor))


def scale_compute_units(factor: float) -> WhatIf:
    """The device has `factor` times as many compute units, rounded to whole ones; its memory and links stay.

    Not modelled: another grid that a library would choose for them.

    Source: `replay.costs.retiming`.

    Raises
    ------
    InvalidInputError
        `factor` is not within 1e-6 to 1e6.
    """
    return _modified("scale_compute_units", factor, dict.fromkeys(("compute_units", *_PEAKS), factor))


def scale_memory_bandwidth(factor: float) -> WhatIf:
    """The device's memory has `factor` times its bandwidth; its compute units and links stay.

    Not modelled: its latency, and caches, which stay.

    Source: `replay.costs.retiming`.

    Raises
    ------
    InvalidInputError
        `factor` is not within 1e-6 to 1e6.
    """
    return _modified("scale_memory_bandwidth", factor, {"memory_gbps": factor})


def _modified(what: str, factor: float, changes: Mapping[str, float]) -> WhatIf:
    check_factor(what, factor)

    def transform(graph: KernelGraph, parameters: Parameters) -> KernelGraph:
        source = source_device(graph)
        target = _changed(source, f"what-if {written(what, factor)}", changes)
        if target == source:
            return graph
        # The profiler may have seen fewer units than the catalogue lists: a partition, or an early model.
        units = max(round(graph.hardware.compute_units * target.compute_units / source.compute_units), 1)
        return moved_to(graph, target, units, parameters)

    return WhatIf(written(what, factor), transform)


def _changed(device: Device, source: str, changes: Mapping[str, float]) -> Device:
    """Return `device` with some figures scaled; a count stays whole, and what is a peak of it follows the count."""
    if "compute_units" in changes:
        whole = max(round(device.compute_units * changes["compute_units"]), 1)
        changes = dict.fromkeys(changes, whole / device.compute_units)
    figures = dict(device.figures)
    for name, factor in changes.items():
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


_FACTOR = (Argument("factor", "of what the device has", "number"),)
RECIPES = (
    Recipe(
        "scale_clock",
        scale_clock,
        _FACTOR,
        "Compute units run at FACTOR times their clock; memory and links stay.",
        "scale_clock:0.8",
        "device",
    ),
    Recipe(
        "scale_compute_units",
        scale_compute_units,
        _FACTOR,
        "The device has FACTOR times as many compute units; memory and links stay.",
        "scale_compute_units:0.5",
        "device",
    ),
    Recipe(
        "scale_memory_bandwidth",
        scale_memory_bandwidth,
        _FACTOR,
        "The device's memory has FACTOR times its bandwidth.",
        "scale_memory_bandwidth:1.5",
        "device",
    ),
)
