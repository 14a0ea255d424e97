"""What if the job's own device had another clock, more compute units, or faster memory?"""

import math
from collections.abc import Mapping
from dataclasses import replace

from profilers.devices import FIGURE_RANGES, FIGURE_UNITS, Device
from profilers.errors import InvalidInputError
from replay.graph import KernelGraph
from replay.parameters import Parameters
from replay.what_ifs.device import moved_to, source_device
from replay.what_ifs.what_if import WhatIf

__all__ = ["scale_clock", "scale_compute_units", "scale_memory_bandwidth"]

_PEAKS = tuple(name for name in FIGURE_UNITS if name.endswith("_tflops"))


def scale_clock(factor: float) -> WhatIf:
    """The device's compute units run at `factor` times their clock; its memory and links stay.

    Arithmetic, and latency within kernels whose shape is known, go by the clock; the power limit, which may not allow
    a higher one, is not modelled.

    Raises
    ------
    InvalidInputError
        `factor` is not above zero.
    """
    _check(factor, "a clock")
    return _modified("scale_clock", factor, dict.fromkeys(("clock_mhz", "llc_gbps", *_PEAKS), factor))


def scale_compute_units(factor: float) -> WhatIf:
    """The device has `factor` times as many compute units, rounded to whole ones; its memory and links stay.

    Raises
    ------
    InvalidInputError
        `factor` is not above zero.
    """
    _check(factor, "compute units")
    return _modified("scale_compute_units", factor, dict.fromkeys(("compute_units", *_PEAKS), factor))


def scale_memory_bandwidth(factor: float) -> WhatIf:
    """The device's memory has `factor` times its bandwidth; its compute units and links stay.

    Raises
    ------
    InvalidInputError
        `factor` is not above zero.
    """
    _check(factor, "memory bandwidth")
    return _modified("scale_memory_bandwidth", factor, {"memory_gbps": factor})


def _modified(what: str, factor: float, changes: Mapping[str, float]) -> WhatIf:
    def transform(graph: KernelGraph, parameters: Parameters) -> KernelGraph:
        source = source_device(graph)
        target = _changed(source, f"what-if {what}:{factor:g}", changes)
        if target == source:
            return graph
        # The profiler may have seen fewer units than the catalogue lists: a partition, or an early model.
        units = max(round(graph.hardware.compute_units * target.compute_units / source.compute_units), 1)
        return moved_to(graph, target, units, parameters)

    return WhatIf(f"{what}:{factor:g}", transform)


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


def _check(factor: float, what: str) -> None:
    if not (math.isfinite(factor) and factor > 0):
        raise InvalidInputError(f"{what} of {factor} times as much: give a factor above zero")
