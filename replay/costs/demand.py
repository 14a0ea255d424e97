"""Isolated durations, and the demand of each task on its device.

`with_demands` derives from class, grid and operator which share of each resource a task uses when it runs alone. The
demands decide how much concurrent tasks slow each other. So the ranges of their parameters become part of the interval
of every projection that changes which tasks run together. `isolate` takes the measured contention out of the
durations, with the engine's sharing inverted. `replay.contention` fits and scores the parameters on kernels that were
measured side by side.
"""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from profilers.trace.arrays import Bools, Floats
from profilers.trace.kernels import CLASSES, COMPUTE_BOUND
from replay.calibration.parameters import Parameters
from replay.costs.interference import with_interference
from replay.engine.engine import TaskTimes, integrate_rates, wait_times
from replay.engine.layout import lay_out
from replay.graph.graph import (
    COPY_DIRECTIONS,
    FROM_HOST,
    RESOURCES,
    TO_HOST,
    Basis,
    KernelGraph,
    SharingPolicy,
    TaskKind,
)


def isolated_durations(graph: KernelGraph) -> Floats:
    """Return the isolated duration of each task in ns, by inverting the sharing on the measured timeline.

    Rates depend only on which tasks are active and in which order they arrived. So the isolated duration of a task is
    the integral of its rate over its measured interval, and replaying it under the same sharing returns that interval.
    Tasks that run alone, or beside others that leave them enough, keep their duration. The begin of a task's last wave
    is taken from its measured duration; see `measured_beside`.
    """
    return np.where(_measured_tasks(graph), integrated_rates(graph), graph.tasks.duration_ns)


def integrated_rates(graph: KernelGraph) -> Floats:
    """Return the integral of the rate of each device task over its measured interval, in ns; 0 for other tasks."""
    tasks = graph.tasks
    is_measured = _measured_tasks(graph)
    sharing, work_ns = lay_out(tasks, graph.policy), np.zeros(len(tasks))
    wait_ns = wait_times(graph, tasks.measured_start_ns)
    events = TaskTimes(tasks.measured_start_ns, tasks.measured_end_ns, np.arange(len(tasks)), wait_ns)
    for device in np.unique(tasks.device[is_measured]):
        rows = np.flatnonzero(is_measured & (tasks.device == device))
        integrate_rates(sharing, events, rows, work_ns)
    return work_ns


def _measured_tasks(graph: KernelGraph) -> Bools:
    """Return the mask of device tasks with a measured time."""
    tasks = graph.tasks
    with np.errstate(invalid="ignore"):
        return np.asarray(graph.on_device() & (tasks.measured_end_ns > tasks.measured_start_ns))


def measured_beside(graph: KernelGraph) -> tuple[Bools, Bools]:
    """Return the mask of tasks measured while another ran on their device, and of the tasks that started later.

    If the first task had filled the device, the dispatcher interleaved the later one with it. A timeline in which tasks
    slowed each other does not tell when a last wave began, so tasks of several waves are taken to have none.
    """
    tasks = graph.tasks
    beside, later = np.zeros(len(tasks), dtype=bool), np.zeros(len(tasks), dtype=bool)
    is_measured = _measured_tasks(graph)
    for device in np.unique(tasks.device[is_measured]):
        rows = np.flatnonzero(is_measured & (tasks.device == device))
        rows = rows[np.lexsort((rows, tasks.measured_start_ns[rows]))]
        start, end = tasks.measured_start_ns[rows], tasks.measured_end_ns[rows]
        later[rows[1:]] = start[1:] < np.maximum.accumulate(end)[:-1]
        beside[rows[:-1]] = start[1:] < end[:-1]
    return beside | later, later


_CU, _L2, _HBM, _LINK, _DMA = (RESOURCES.index(name) for name in ("cu", "l2", "hbm", "link", "dma"))
#: Contention below this share of a duration is rounding.
_MIN_CONTENTION = 1e-3
#: Largest share of its peak bandwidth that a memory delivers; more says that the duration or the device is wrong.
_PEAK_REACHED = 0.95
#: A kernel that draws this share of the peak or more is bound by memory whatever its class: a product of few rows, too.
#: Chosen: at 0.6 and below, the replay of one real trace is worse than its table allows (docs/contention.md).
_MEMORY_BOUND_SHARE = 0.7
#: Largest share of accesses that caches serve: the engine takes shares below 1.
MAX_HIT_SHARE = 0.99
#: Directions of copies: into the device, out of it, and all that leave the device.
_TO_DEVICE, _TO_HOST = "HtoD", "DtoH"
_LEAVE_DEVICE = (_TO_DEVICE, _TO_HOST, "PtoP", "HtoH")


def dispatch_of(policy: SharingPolicy, parameters: Parameters) -> SharingPolicy:
    """Return the policy with the dispatch that the parameters `dispatch_in_order` and `dispatch_whole_waves` choose.

    The shipped values change nothing.

    Examples
    --------
    >>> from replay.costs.shipped import load_parameters
    >>> dispatch_of(SharingPolicy(), load_parameters().with_values([("dispatch_in_order", 0.0)])).in_order
    False
    """
    in_order = policy.in_order and parameters["dispatch_in_order"] >= 0.5
    quantised = policy.quantised or parameters["dispatch_whole_waves"] >= 0.5
    waiting = parameters["pressure_share_waiting"]
    return replace(policy, in_order=in_order, quantised=quantised, waiting_pressure=waiting)


def isolate(graph: KernelGraph, parameters: Parameters) -> KernelGraph:
    """Return a copy of `graph` with demands and isolated durations: the measured contention is taken out.

    The basis of a duration that changes is `Basis.MODELLED`, since it rests on the model of contention.
    """
    tasks = graph.tasks
    spans = tasks.measured_end_ns - tasks.measured_start_ns
    measured = np.where(np.isnan(tasks.measured_start_ns), tasks.duration_ns, spans)
    with_demand = contended(graph, measured, parameters)
    isolated = isolated_durations(with_demand)
    is_slowed = measured - isolated > _MIN_CONTENTION * measured
    basis = np.where(is_slowed, max(int(Basis.MODELLED), int(graph.origin)), int(graph.origin))
    return with_demand.with_tasks(duration_ns=isolated, basis=basis)


def contended(graph: KernelGraph, duration_ns: Floats, parameters: Parameters) -> KernelGraph:
    """Return a copy of `graph` with durations and demands, dispatched as the measured timeline was.

    Parameters
    ----------
    graph : KernelGraph
        Graph with measured times.
    duration_ns : array of float64, shape (n_tasks,)
        Duration of each task that its demands follow from.
    parameters : Parameters
        Parameters of the contention model.
    """
    graph = replace(graph, policy=dispatch_of(graph.policy, parameters))
    beside, later = measured_beside(graph)
    with_demand = with_demands(graph.with_tasks(duration_ns=duration_ns, interleaved=later), parameters)
    waves = with_demand.tasks.waves  # a kernel of one wave is in its last wave all the time
    return with_demand.with_tasks(waves=np.where(beside & (waves > 1), 0.0, waves))


def with_demands(graph: KernelGraph, parameters: Parameters) -> KernelGraph:
    """Return a copy of `graph` with the demands of every task on its hardware.

    - Bound: a kernel whose operator draws 0.7 of the memory's peak or more is bound by memory. The class of the kernel
      decides for the others.
    - Compute units: a kernel occupies units in proportion to its workgroups. A unit takes as many as its registers and
      shared memory allow, if the trace has them. Otherwise it takes one workgroup of a kernel that is bound by
      arithmetic, and `workgroups_per_unit_max` of another. A kernel with an unknown grid is taken to fill the device.
      Of the units it fills, a kernel holds the share `cu_share_held_...`.
    - Full rate: a kernel needs all units that it occupies. Two shares are enough: `cu_share_saturating_memory` of all
      units if it is bound by memory, `cu_share_saturating_compute` of its units if it is bound by arithmetic.
    - Memory bandwidth: the bytes of the kernel's operator over its duration; by class if the operator is unknown. Tasks
      side by side get `memory_efficiency_shared` of the peak.
    - Last-level cache: it serves a `hit_share` on top, and has `l2_bandwidth_ratio` times the bandwidth. If all
      operands fit the cache, it serves `hit_share_resident` of the accesses, and at least the ones that memory
      could not have delivered.
    - Collectives: their workgroups stay until the end. A collective uses its links whole, so that collectives on one
      device share them.
    - Copies: a copy between host and device uses one copy engine, and memory for its bytes. A copy on the device reads
      and writes them. If the bandwidth of the link to the host is known, copies share it in each direction, with
      kernels whose name has that direction and whose bytes are known.
    """
    tasks = graph.tasks
    is_collective, is_copy = tasks.kind == TaskKind.COLLECTIVE, tasks.kind == TaskKind.COPY
    is_compute_bound = np.isin(tasks.class_, [i for i, name in enumerate(CLASSES) if name in COMPUTE_BOUND])
    is_kernel = (tasks.kind == TaskKind.KERNEL) & graph.on_device()
    is_compute_bound &= ~(_share_of_operator(graph) >= _MEMORY_BOUND_SHARE)
    waves, occupies, needed = _compute_units(graph, is_compute_bound, parameters)
    demand = np.zeros((len(tasks), len(RESOURCES)))
    demand[:, _CU] = needed
    bandwidth = np.where(is_kernel, _bandwidth(graph, is_compute_bound, occupies, parameters), 0.0)
    resident_hits = np.where(is_kernel, _resident_hit_share(graph, bandwidth, parameters), 0.0)
    missed = np.where(resident_hits > 0, bandwidth * (1 - resident_hits), np.minimum(bandwidth, _PEAK_REACHED))
    demand[is_kernel, _HBM] = missed[is_kernel]
    demand[is_collective, _HBM] = parameters["hbm_share_collective"]
    demand[is_collective, _LINK] = 1.0
    is_host_copy = is_copy & _copies_toward(graph, *_LEAVE_DEVICE)
    demand[is_host_copy, _DMA] = 1.0 / max(graph.hardware.copy_engines, 1.0)
    demand[is_copy, _HBM] = _bandwidth_of_copies(graph, is_host_copy, parameters)[is_copy]
    hit_share = np.where(is_compute_bound, parameters["hit_share_compute_bound"], parameters["hit_share_memory_bound"])
    cache_bandwidth = np.where(resident_hits > 0, bandwidth, demand[:, _HBM] / (1 - hit_share))
    demand[is_kernel, _L2] = (cache_bandwidth / parameters["l2_bandwidth_ratio"])[is_kernel]
    footprint = _footprint(graph, np.where(resident_hits > 0, bandwidth, demand[:, _HBM]))
    demand[:, _HBM] /= parameters["memory_efficiency_shared"]
    hit_share = np.where(resident_hits > 0, resident_hits, hit_share)
    demanding = _with_host_link(graph, demand).with_tasks(
        occupies=occupies,
        waves=waves,
        footprint=footprint,
        hit_share=np.where(is_kernel & (footprint > 0), hit_share, 0.0),
    )
    return with_interference(demanding, parameters)


#: Columns of tasks that `with_demands` works out, apart from the demand.
DEMAND_COLUMNS = (
    *("occupies", "waves", "footprint", "hit_share"),
    *("extra_round", "pressure", "sensitivity"),
)


def with_demands_from(graph: KernelGraph, donor: KernelGraph, chosen: Bools) -> KernelGraph:
    """Return a copy of `graph` whose chosen tasks have the demands of the same tasks in `donor`.

    Parameters
    ----------
    graph : KernelGraph
        Graph whose other tasks stay as they are.
    donor : KernelGraph
        The same tasks with other demands.
    chosen : array of bool, shape (n_tasks,)
        Mask of the tasks.
    """
    old, new = graph.tasks, donor.tasks
    columns = {name: np.where(chosen, getattr(new, name), getattr(old, name)) for name in DEMAND_COLUMNS}
    return graph.with_tasks(demand=np.where(chosen[:, None], new.demand, old.demand), **columns)


def _compute_units(
    graph: KernelGraph, is_compute_bound: Bools, parameters: Parameters
) -> tuple[Floats, Floats, Floats]:
    """Return for every task the waves of workgroups (0 if unknown), the units occupied, and the units needed."""
    tasks = graph.tasks
    is_kernel, is_collective = tasks.kind == TaskKind.KERNEL, tasks.kind == TaskKind.COLLECTIVE
    by_bound = np.where(is_compute_bound, 1.0, parameters["workgroups_per_unit_max"])
    per_unit = np.where(is_collective, 1.0, np.where(tasks.residency > 0, tasks.residency, by_bound))
    uses_units = (is_kernel | is_collective) & graph.on_device()
    waves = np.where(uses_units, tasks.workgroups / (graph.hardware.compute_units * per_unit), 0.0)
    assumed = np.where(is_kernel, 1.0, parameters["cu_share_collective"])
    held_share = np.where(is_compute_bound, parameters["cu_share_held_compute"], parameters["cu_share_held_memory"])
    filled = np.where(tasks.workgroups > 0, np.minimum(waves, 1.0), assumed) * np.where(is_kernel, held_share, 1.0)
    occupies = np.where(uses_units, filled, 0.0)
    by_compute = parameters["cu_share_saturating_compute"] * occupies
    saturating_share = np.where(is_compute_bound, by_compute, parameters["cu_share_saturating_memory"])
    saturating = np.where(is_kernel, saturating_share, 1.0)
    # A collective's workgroups all stay until it ends: one wave, whatever the grid.
    return np.where(is_collective, occupies, waves), occupies, np.minimum(occupies, saturating)


def _bandwidth(graph: KernelGraph, is_compute_bound: Bools, occupies: Floats, parameters: Parameters) -> Floats:
    """Return the memory bandwidth of kernels as a share of the peak: by operator if it is known, else by class.

    A share above what memory delivers stays as it is: a cache may have served it.
    """
    by_class = np.where(is_compute_bound, parameters["hbm_share_compute_bound"], parameters["hbm_share_memory_bound"])
    share = _share_of_operator(graph)
    # A kernel that does not fill the device cannot draw all of its bandwidth either.
    return np.where(np.isnan(share), by_class * np.sqrt(np.maximum(occupies, 1e-4)), share)


def _share_of_operator(graph: KernelGraph) -> Floats:
    """Return the share of the memory's peak that each task's operator draws; NaN if it is unknown."""
    if graph.hardware.device is None or not graph.operators:
        return np.full(len(graph.tasks), np.nan)
    moved = np.array([operator.bytes_moved for operator in graph.operators], dtype=np.float64)
    return np.where(graph.tasks.operator >= 0, _share_of_peak(graph, moved[graph.tasks.operator]), np.nan)


def _share_of_peak(graph: KernelGraph, moved: Floats | npt.NDArray[np.int64]) -> Floats:
    """Return bytes over the duration of each task, as a share of the memory's peak; 0 if the peak is unknown."""
    device = graph.hardware.device
    if device is None:
        return np.zeros(len(graph.tasks))
    seconds = np.maximum(graph.tasks.duration_ns, 1.0) / 1e9
    return np.asarray(moved / seconds / device.memory_bytes_per_s, dtype=np.float64)


def _resident_hit_share(graph: KernelGraph, bandwidth: Floats, parameters: Parameters) -> Floats:
    """Return the share of accesses that the cache serves for operators whose operands fit it; 0 for others."""
    size, tasks = _cache_bytes(graph), graph.tasks
    if not size or not graph.operators:
        return np.zeros(len(tasks))
    working_sets = np.array([operator.working_set_bytes or operator.bytes_moved for operator in graph.operators])
    fits_cache = (tasks.operator >= 0) & (working_sets[tasks.operator] <= size)
    beyond_memory = 1.0 - _PEAK_REACHED / np.maximum(bandwidth, _PEAK_REACHED)
    hit_share = np.clip(np.maximum(beyond_memory, parameters["hit_share_resident"]), 0.0, MAX_HIT_SHARE)
    return np.where(fits_cache, hit_share, 0.0)


def _bandwidth_of_copies(graph: KernelGraph, is_host_copy: Bools, parameters: Parameters) -> Floats:
    """Return the memory bandwidth of copies as a share of the peak, by their bytes.

    Without known bytes, a copy inside the device uses `hbm_share_memory_bound`, another copy none.
    """
    tasks = graph.tasks
    by_bytes = _share_of_peak(graph, tasks.bytes * np.where(is_host_copy, 1, 2))
    assumed = np.where(is_host_copy, 0.0, parameters["hbm_share_memory_bound"])
    return np.where(by_bytes > 0, np.minimum(by_bytes, _PEAK_REACHED), assumed)


def _with_host_link(graph: KernelGraph, demand: Floats) -> KernelGraph:
    """Return a copy of `graph` with `demand`, and with demands on the link to the host if its bandwidth is known.

    `FROM_HOST` leads into the device, `TO_HOST` out of it.
    """
    tasks, link = graph.tasks, graph.tasks.link
    may_cross = graph.on_device() & (tasks.bytes > 0) & (tasks.kind != TaskKind.COLLECTIVE)
    seconds = np.maximum(tasks.duration_ns, 1.0) / 1e9
    directions, numbers = (_TO_DEVICE, _TO_HOST), (FROM_HOST, TO_HOST)
    for link_number, direction, rate in zip(numbers, directions, graph.hardware.host_link_bytes_per_s, strict=True):
        crosses = _copies_toward(graph, direction) & may_cross
        if rate > 0 and crosses.any():
            demand[crosses, _LINK] = (tasks.bytes / seconds / rate)[crosses]
            link = np.where(crosses, link_number, link)
    return graph.with_tasks(demand=np.clip(demand, 0.0, 1.0), link=link)


def _footprint(graph: KernelGraph, bandwidth: Floats) -> Floats:
    """Return the footprint of kernels: the bytes they move as a share of the last-level cache, at most 1."""
    device = graph.hardware.device
    if device is None or not (size := _cache_bytes(graph)):
        return np.zeros(len(graph.tasks))
    moved = bandwidth * device.memory_bytes_per_s * graph.tasks.duration_ns / 1e9
    return np.where(graph.tasks.kind == TaskKind.KERNEL, np.minimum(moved / size, 1.0), 0.0)


def _cache_bytes(graph: KernelGraph) -> float:
    """Return the bytes of the last-level cache; 0 if the catalogue does not have them."""
    figures = {} if graph.hardware.device is None else graph.hardware.device.figures
    sizes = [figures[name].value for name in ("llc_mb", "l2_mb") if name in figures]
    return sizes[0] * 2.0**20 if sizes else 0.0


def _copies_toward(graph: KernelGraph, *directions: str) -> Bools:
    """Return the mask of tasks that have one of `directions`; the name tells that of tasks without a direction."""
    tasks = graph.tasks
    in_name = np.array([*(any(text in name for text in directions) for name in graph.names), False], dtype=bool)
    is_stated = np.isin(tasks.direction, [COPY_DIRECTIONS.index(text) for text in directions])
    return np.where(tasks.direction >= 0, is_stated, in_name[tasks.name])
