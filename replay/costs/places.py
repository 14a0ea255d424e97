"""How workgroups run on compute units: what they take of a unit, and what slows them there.

`with_unit_sizes` says what a workgroup takes of a unit where the trace does not. `with_places` says which workgroups
run in rounds, which stay until the task ends, and how far a task is bound by arithmetic, by the bandwidth of its units
and by memory. `replay.engine.units` places the workgroups, and `replay.engine.sharing` slows them.
"""

from typing import NamedTuple

import numpy as np

from profilers.trace.arrays import Bools, Floats
from profilers.trace.kernels import CLASSES
from replay.calibration.parameters import Parameters
from replay.costs.tiles import tile_of_name
from replay.graph.graph import RESOURCES, TO_HOST, KernelGraph, TaskKind, Tasks

_CU, _L2, _HBM = (RESOURCES.index(name) for name in ("cu", "l2", "hbm"))
#: Exponent of the time of a workgroup that computes and waits for memory, as in `replay.engine.sharing`.
_OVERLAP = 3.0
#: Largest share of its time alone that a product would take if arithmetic were free.
_MOST_MEMORY = 0.97
#: Share of a kernel's duration that can pass before its first workgroup.
_MOST_START = 0.5
#: Operands from a cache: a kernel with this share of hits or more is served by the last-level cache.
_RESIDENT = 0.9
#: Clock of a device that the catalogue does not know, Hz.
_USUAL_HZ = 1.5e9
#: Sizes of an operator's dimensions: batch, rows, columns, depth.
_N_DIMS = 4


def per_unit(tasks: Tasks) -> Floats:
    """Return how many workgroups of each task an empty compute unit holds, at least 1."""
    largest = np.max([tasks.unit_threads, tasks.unit_registers, tasks.unit_shared, tasks.unit_slots], axis=0)
    return np.asarray(np.maximum(np.floor(1.0 / largest + 1e-9), 1.0), dtype=np.float64)


def unit_bytes_per_s(graph: KernelGraph, parameters: Parameters) -> float:
    """Return the bandwidth of one compute unit."""
    device = graph.hardware.device
    clock_hz = device.value("clock_mhz") * 1e6 if device is not None and "clock_mhz" in device.figures else _USUAL_HZ
    return parameters["unit_bytes_per_clock"] * clock_hz


def memory_bytes_per_s(graph: KernelGraph, parameters: Parameters) -> float:
    """Return the peak bandwidth of memory; that of all units if the device is unknown."""
    device, units = graph.hardware.device, max(graph.hardware.compute_units, 1)
    return device.memory_bytes_per_s if device is not None else unit_bytes_per_s(graph, parameters) * units


def with_unit_sizes(graph: KernelGraph, is_compute_bound: Bools, parameters: Parameters) -> KernelGraph:
    """Return a copy of `graph` in which workgroups of unknown size take a share of a unit.

    One of a kernel that is bound by arithmetic, or of a collective, takes all of a unit. One of another kernel takes a
    part in `workgroups_per_unit_max`.
    """
    tasks = graph.tasks
    sizes = np.stack([tasks.unit_threads, tasks.unit_registers, tasks.unit_shared, tasks.unit_slots])
    is_unknown = (sizes == sizes[0]).all(axis=0)  # known sizes differ from limit to limit
    is_small = (tasks.kind == TaskKind.KERNEL) & ~is_compute_bound
    share = np.where(is_small, 1.0 / parameters["workgroups_per_unit_max"], 1.0)
    threads, registers, shared, slots = np.where(is_unknown, share, sizes)
    return graph.with_tasks(unit_threads=threads, unit_registers=registers, unit_shared=shared, unit_slots=slots)


def leaves_units(graph: KernelGraph) -> Bools:
    """Return the mask of collectives whose workgroups hold no unit: those that send and receive.

    Each channel of such a kernel ends once its own peer has all. In a real trace of 128 ranks, kernels that fill all
    108 units exactly are not slowed by 16 such workgroups beside them.
    """
    by_name = np.array([*("SendRecv" in name for name in graph.names), False])
    return np.asarray((graph.tasks.kind == TaskKind.COLLECTIVE) & by_name[graph.tasks.name])


class _Products(NamedTuple):
    """Matrix products of known tile and size; arrays have a row a task."""

    is_known: Bools
    is_persistent: Bools
    ends: Bools  #: whether the name says that a workgroup computes one tile
    tiles: Floats
    read_bytes: Floats  #: what all workgroups load of the operands


def _products(graph: KernelGraph, grid: Floats) -> _Products:
    """Return the products of a graph, from the names of their kernels and the sizes of their operators."""
    tasks = graph.tasks
    named = [tile_of_name(name) for name in graph.names]
    sides = np.array([*((tile.m, tile.n, tile.persistent) if tile else (0, 0, 0) for tile in named), (0, 0, 0)], float)
    m, n, stays = sides[tasks.name].T
    sizes = np.zeros((len(graph.operators) + 1, 6))
    for i, operator in enumerate(graph.operators):
        if operator.kind == "matmul" and len(operator.dims) == _N_DIMS:
            sizes[i] = *operator.dims, operator.flops, operator.element_bytes
    batch, rows, columns, _, flops, size = sizes[tasks.operator].T
    is_known = (m > 0) & (rows > 0)
    # BLAS computes the transposed result of a framework that stores rows one after another.
    tiles = batch * np.ceil(rows / np.maximum(n, 1.0)) * np.ceil(columns / np.maximum(m, 1.0))
    read = flops / 2 * size * (1.0 / np.maximum(m, 1.0) + 1.0 / np.maximum(n, 1.0))
    return _Products(is_known, is_known & (stays > 0) & (tiles > grid), (m > 0) & (stays == 0), tiles, read)


def with_places(graph: KernelGraph, is_compute_bound: Bools, transfers: Floats, parameters: Parameters) -> KernelGraph:
    """Return a copy of `graph` with the columns that say how workgroups run on their units.

    - Persistent products hold their units and draw tile after tile. Other kernels that are bound by arithmetic run in
      rounds if there are at most `rounds_max`. What is bound by memory, or has more rounds, is out of step.
    - A unit's arithmetic: `unit_load_compute` of a kernel that has it alone.
    - A unit's bandwidth: `unit_bytes_per_clock`. Workgroups of products load tiles `tile_load_ratio` times as fast.
    - Memory: a product would take as long as its loads if arithmetic were free, other kernels `memory_time_...` of
      their duration. Loads of products go to the L2 cache, at most `l2_share_product_max` of its bandwidth.
    - Kernels that copy over the link to the host put one workgroup on a unit on arrival, are bound by what a unit moves
      over the link, and press on all others.

    Parameters
    ----------
    graph : KernelGraph
        Graph with demands, waves and the sizes of workgroups.
    is_compute_bound : array of bool, shape (n_tasks,)
        Mask of the kernels that are bound by arithmetic.
    transfers : array of float64, shape (n_tasks,)
        Share of their duration in which collectives transfer; 0 for other tasks.
    parameters : Parameters
        Parameters of the model.
    """
    tasks, units = graph.tasks, max(graph.hardware.compute_units, 1)
    is_kernel, is_collective = (
        (tasks.kind == kind) & graph.on_device() for kind in (TaskKind.KERNEL, TaskKind.COLLECTIVE)
    )
    held = per_unit(tasks)
    grid = np.where(tasks.workgroups > 0, tasks.workgroups, units).astype(float)
    slots = np.minimum(grid, units * held)
    in_flight = np.maximum(np.ceil(slots / units - 1e-9), 1.0)
    unit_rate, peak = unit_bytes_per_s(graph, parameters), memory_bytes_per_s(graph, parameters)
    seconds = np.maximum(tasks.duration_ns, 1.0) / 1e9
    computes, products = is_kernel & is_compute_bound, _products(graph, grid)
    known = computes & products.is_known
    is_multiple = (tasks.workgroups > 0) & (tasks.workgroups % units == 0)
    fills = computes & ~products.is_known & ~products.ends & (held <= 1) & is_multiple
    is_persistent = (known & products.is_persistent) | fills
    waves = np.where(known & products.is_persistent, products.tiles / slots, tasks.waves)
    memory = _memory_time(graph, computes, parameters)
    load = products.read_bytes / np.minimum(grid, units) / (parameters["tile_load_ratio"] * unit_rate) / seconds
    memory = np.where(known, np.minimum(np.maximum(load, tasks.demand[:, _HBM]), _MOST_MEMORY), memory)
    part, demand = memory**_OVERLAP, tasks.demand.copy()
    l2 = products.read_bytes / seconds / (parameters["l2_share_of_units"] * unit_rate * units)
    demand[known, _L2] = np.minimum(l2, parameters["l2_share_product_max"])[known]
    crosses = is_kernel & (tasks.link >= 0) & (tasks.bytes > 0)
    is_resident = tasks.hit_share > _RESIDENT
    # What a kernel would take if memory were free is arithmetic: it needs all of its units for that.
    reduces = is_kernel & ~computes & ~is_resident & (part < 1.0)
    arithmetic = tasks.occupies * (1.0 - part) ** (1.0 / _OVERLAP)
    demand[reduces, _CU] = np.maximum(demand[:, _CU], arithmetic)[reduces]
    drawn = np.minimum(demand[:, _HBM] * peak / (np.maximum(slots, 1e-9) * unit_rate), 1.0 / in_flight)
    drawn = np.where(is_resident, 1.0 / in_flight, drawn)
    writes = tasks.link == TO_HOST
    host_bytes_per_s = 1e9 * np.where(writes, parameters["unit_host_write_gbps"], parameters["unit_host_read_gbps"])
    pressure = np.where(writes, parameters["pressure_host_write"], parameters["pressure_host_read"]) * tasks.workgroups
    of_link = tasks.bytes / seconds / slots / host_bytes_per_s
    return graph.with_tasks(
        demand=demand,
        start_ns=np.where(
            is_kernel | is_collective, np.minimum(parameters["kernel_start_ns"], _MOST_START * tasks.duration_ns), 0.0
        ),
        waves=waves,
        in_rounds=computes & ~is_persistent & (waves > 0) & (waves <= parameters["rounds_max"]),
        stays=is_collective | is_persistent,
        spreads=crosses,
        spins=transfers,
        unit_compute=np.where(computes, parameters["unit_load_compute"] / in_flight, 0.0),
        unit_bandwidth=np.where(crosses, of_link, np.where(is_kernel & ~computes, drawn, 0.0)),
        memory_part=np.where(is_kernel & ~crosses, part, 0.0),
        pressure=np.where(crosses, pressure, 0.0),
    )


def _memory_time(graph: KernelGraph, computes: Bools, parameters: Parameters) -> Floats:
    """Return what each kernel would take if arithmetic were free, as a share of its time alone, by what is known."""
    tasks = graph.tasks
    of_class = np.where(tasks.class_ == CLASSES.index("softmax"), parameters["memory_time_softmax"], 1.0)
    of_class = np.where(tasks.hit_share > _RESIDENT, parameters["memory_time_resident"], of_class)
    return np.where(computes, parameters["memory_time_compute"], of_class)
