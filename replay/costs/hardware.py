"""A graph moved to other hardware: another device, or other figures of its device.

`with_hardware` is what every device what-if calls. The factors that what-ifs set are kept on the graph's `Hardware`,
apart from the device. So a factor also applies to a device that a later what-if names, and what-ifs on a device give
the same durations in any order, up to rounding.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from profilers.devices.catalogue import FIGURE_RANGES, FIGURE_UNITS, Device
from profilers.errors import InvalidInputError
from profilers.trace.arrays import Bools, Floats
from replay.calibration.parameters import Parameters
from replay.costs.demand import with_demands
from replay.costs.retiming import arithmetic_tasks, retimed, source_device
from replay.costs.wire_time import collective_models, link_slowdowns, on_links
from replay.graph.edit import with_host_time
from replay.graph.graph import RESOURCES, Basis, Hardware, KernelGraph, TaskKind, hardware_named

_PEAKS = tuple(name for name in FIGURE_UNITS if name.endswith("_tflops"))
#: Figures of a device that each factor multiplies. The power limit has no figure: models take shares of it. The factor
#: of the host multiplies host time.
FACTORS: Mapping[str, tuple[str, ...]] = {
    "clock": ("clock_mhz", "llc_gbps", *_PEAKS),
    "compute_units": ("compute_units", *_PEAKS),
    "memory": ("memory_gbps",),
    "links": ("link_gbps",),
    "power": (),
    "host": (),
}
#: A factor this close to 1 is 1: another factor was undone.
_ROUNDING = 1e-12
#: Factors that change durations of kernels and demands.
_OF_KERNELS = ("clock", "compute_units", "memory")
_CU, _POWER = RESOURCES.index("cu"), RESOURCES.index("power")


def with_hardware(
    graph: KernelGraph,
    parameters: Parameters,
    *,
    device: Device | None = None,
    factors: Mapping[str, float] | None = None,
) -> KernelGraph:
    """Return a graph on another device, or with factors on figures of its device.

    Parameters
    ----------
    graph : KernelGraph
        Graph to move; factors that it has stay.
    parameters : Parameters
        Parameters of the models, with their calibrations.
    device : Device, optional
        Device of the catalogue; by default the device stays.
    factors : mapping of str to float, optional
        Further factors, by the names of `FACTORS`.

    Returns
    -------
    KernelGraph
        The same graph if its hardware is that already. Otherwise with new durations, and with new demands if kernels
        change.

    Raises
    ------
    InvalidInputError
        The trace does not name its device, where that is needed, or a figure would leave its range.
    """
    move = partial(_moved, parameters=parameters, device=device, factors=factors or {})
    choices = graph.hardware.memory
    return move(graph) if choices is None else choices.moved(graph, move, parameters)


def _moved(
    graph: KernelGraph, parameters: Parameters, device: Device | None, factors: Mapping[str, float]
) -> KernelGraph:
    """Return a graph on other hardware; it has no choices on the memory."""
    old = graph.hardware
    new = _changed(old, device, factors)
    if (old.base or old.device, old.factors) == (new.base or new.device, new.factors):
        return graph
    moved = graph.with_tasks(duration_ns=graph.tasks.duration_ns / _slowdown(graph, parameters))
    keeps_kernels = _of_kernels(old) == _of_kernels(new)
    moved = replace(moved, hardware=new) if keeps_kernels else _with_kernels(moved, new, parameters)
    moved, is_guessed = _with_links(moved, old, parameters)
    slowed = _with_host(_with_power(moved, old, parameters), old)
    duration, is_host = slowed.tasks.duration_ns, slowed.tasks.kind == TaskKind.HOST
    is_assumed = is_guessed | is_host | (_slowdown(slowed, parameters) != 1)
    changed = graph.tasks.duration_ns != duration
    basis = np.where(is_assumed, int(Basis.ASSUMED), int(Basis.DERIVED))
    return slowed.with_tasks(basis=np.where(changed, np.maximum(graph.tasks.basis, basis), graph.tasks.basis))


def _with_host(graph: KernelGraph, old: Hardware) -> KernelGraph:
    """Return `graph` with the host time of its hardware."""
    ratio = graph.hardware.factor("host") / old.factor("host")
    return graph if ratio == 1.0 else with_host_time(graph, ratio)


def _of_kernels(hardware: Hardware) -> tuple[object, ...]:
    device = hardware.base or hardware.device
    return (device, *(hardware.factor(name) for name in _OF_KERNELS))


def _changed(old: Hardware, device: Device | None, factors: Mapping[str, float]) -> Hardware:
    """Return hardware with another device, or with further factors."""
    products = {name: old.factor(name) * factors.get(name, 1.0) for name in FACTORS}
    kept = tuple(sorted((name, factor) for name, factor in products.items() if abs(factor - 1.0) > _ROUNDING))
    products = dict(kept)
    base, traced = device or old.base or old.device, old.original
    if base is None:
        return replace(old, traced=traced, factors=kept)
    scaled = scaled_device(base, products)
    # The profiler may have seen fewer units than the catalogue lists: a partition, or an early model.
    listed = traced.compute_units if traced.device == base else base.compute_units
    units = max(round(listed * scaled.compute_units / base.compute_units), 1)
    named = hardware_named(scaled, "what-if")
    return replace(named, compute_units=units, network=old.network, traced=traced, base=base, factors=kept)


def scaled_device(device: Device, factors: Mapping[str, float]) -> Device:
    """Return a device with scaled figures. Compute units stay a whole number, and the peaks follow that number.

    Parameters
    ----------
    device : Device
        Device of the catalogue.
    factors : mapping of str to float
        By the names of `FACTORS`.

    Raises
    ------
    InvalidInputError
        A figure would leave its range.

    Examples
    --------
    >>> from profilers.devices import find_device
    >>> slower = scaled_device(find_device("A100-SXM4-80GB"), {"clock": 0.5, "memory": 2.0})
    >>> slower.value("clock_mhz"), slower.value("memory_gbps")
    (705.0, 4078.0)
    """
    by_figure: dict[str, float] = {}
    for name, factor in factors.items():
        if name == "compute_units" and factor != 1.0:
            factor = max(round(device.compute_units * factor), 1) / device.compute_units
        for figure in FACTORS[name]:
            by_figure[figure] = by_figure.get(figure, 1.0) * factor
    figures = dict(device.figures)
    for name in sorted(by_figure, key=_PEAKS.__contains__):
        factor = by_figure[name]
        if name in figures and factor != 1.0:
            value = figures[name].value * factor
            value = float(round(value)) if name == "compute_units" else value
            low, high = FIGURE_RANGES[name]
            if not low <= value <= high:
                raise InvalidInputError(
                    f"{name} of {device.name} would be {value:.3g} {FIGURE_UNITS[name]}, which is not within "
                    f"{low:g} to {high:g}"
                )
            figures[name] = replace(figures[name], value=value, source=f"what-if: {figures[name].source}")
    return replace(device, figures=figures)


def _with_kernels(graph: KernelGraph, new: Hardware, parameters: Parameters) -> KernelGraph:
    """Return `graph` with kernels, and copies within a device, re-timed for `new`, and with the demands there."""
    device = source_device(replace(graph, hardware=new))
    duration = retimed(graph, device, new.compute_units, parameters)
    moved = replace(graph.with_tasks(duration_ns=duration), hardware=new)
    return with_same_engines(graph, with_demands(moved, parameters))


def with_same_engines(before: KernelGraph, after: KernelGraph) -> KernelGraph:
    """Return `after` with the choice in `before` of tasks that use no compute units, or DMA engines.

    Parameters
    ----------
    before : KernelGraph
        Graph before its demands were worked out anew.
    after : KernelGraph
        The same tasks with new demands.
    """
    old, new = before.tasks.demand, after.tasks.demand
    # Copies on engines of their own have a share of the links and of memory that follows from their bytes.
    on_engine = (before.tasks.engine >= 0)[:, None]
    kept = np.where(old == 0.0, 0.0, np.where((new == 0.0) | on_engine, old, new))
    demand = np.where(before.on_device()[:, None], kept, new)
    has_units = demand[:, _CU] > 0.0
    pressed = np.where(has_units | (after.tasks.kind != TaskKind.COLLECTIVE), after.tasks.pressure, 0.0)
    return after.with_tasks(demand=demand, occupies=np.where(has_units, after.tasks.occupies, 0.0), pressure=pressed)


def _with_links(graph: KernelGraph, old: Hardware, parameters: Parameters) -> tuple[KernelGraph, Bools]:
    """Return `graph` with its collectives on its links, and which durations rest on an assumption."""
    is_collective = graph.tasks.kind == TaskKind.COLLECTIVE
    before, after = link_slowdowns(graph, old), link_slowdowns(graph, graph.hardware)
    if (before == after).all():
        return graph, np.zeros_like(is_collective)
    models = collective_models(graph, parameters)
    moved = graph.with_tasks(duration_ns=on_links(graph, models, (before, after), parameters))
    return moved, is_collective & models.is_guess


def _slowdown(graph: KernelGraph, parameters: Parameters) -> Floats:
    """Return the duration of each task under its power limit over the duration without one."""
    if graph.hardware.factor("power") == 1.0:
        return np.ones(len(graph.tasks))
    slowdown = np.maximum(power_shares(graph, parameters), 1.0) ** (1.0 / graph.policy.power_exponent)
    return np.where(arithmetic_tasks(graph), slowdown, 1.0)


def _with_power(graph: KernelGraph, old: Hardware, parameters: Parameters) -> KernelGraph:
    """Return `graph` under its power limit."""
    limits = (old.factor("power"), graph.hardware.factor("power"))
    if limits == (1.0, 1.0):
        return graph
    demand = graph.tasks.demand.copy()
    demand[:, _POWER] = np.minimum(power_shares(graph, parameters), 1.0) if limits[1] != 1.0 else 0.0
    return graph.with_tasks(duration_ns=graph.tasks.duration_ns * _slowdown(graph, parameters), demand=demand)


def power_shares(graph: KernelGraph, parameters: Parameters) -> Floats:
    """Return the share of the power limit that each task draws when it runs alone; above 1, its clock falls.

    Parameters
    ----------
    graph : KernelGraph
        Graph with its hardware.
    parameters : Parameters
        With ``power_share_compute_bound`` and the like.
    """
    tasks = graph.tasks
    kernel = (tasks.kind == TaskKind.KERNEL) & graph.on_device()
    kernel_shares = np.where(
        arithmetic_tasks(graph), parameters["power_share_compute_bound"], parameters["power_share_memory_bound"]
    )
    shares = np.where(kernel, kernel_shares * np.sqrt(np.minimum(tasks.occupies, 1.0)), 0.0)
    collective = (tasks.kind == TaskKind.COLLECTIVE) & graph.on_device()
    shares = np.where(collective, parameters["power_share_collective"], shares)
    return np.asarray(shares / graph.hardware.factor("power"))
