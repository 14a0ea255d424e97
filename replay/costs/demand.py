"""Isolated durations, and the demand of each task on its device.

`with_demands` derives from class, grid and operator which share of each resource a task uses when it runs alone. The
demands decide how much concurrent tasks slow each other. So the ranges of their parameters become part of the interval
of every projection that changes which tasks run together. `isolate` takes the measured contention out of the
durations, with the engine's sharing inverted. `replay.contention` fits and scores the parameters on kernels that were
measured side by side.
"""

from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from profilers.errors import InvalidInputError
from profilers.trace.arrays import Bools, Floats, Ints
from profilers.trace.kernels import CLASSES, COMPUTE_BOUND
from replay.calibration.parameters import Parameters
from replay.costs.interference import mean_share, with_interference
from replay.costs.places import leaves_units, per_unit, with_places, with_unit_sizes
from replay.engine.engine import TaskTimes, integrate_rates, wait_times
from replay.engine.layout import SharingState, lay_out, starts
from replay.graph.graph import (
    COPY_DIRECTIONS,
    FROM_HOST,
    PLACE_COLUMNS,
    RESOURCES,
    TO_HOST,
    UNIT_COLUMNS,
    Basis,
    KernelGraph,
    SharingPolicy,
    TaskKind,
)


def with_isolated_durations(graph: KernelGraph) -> KernelGraph:
    """Return a copy of `graph` with the isolated duration of each task: that with which it replays as it was measured.

    Every task starts when it was measured to start, beside the tasks that were there. The work of a task is the
    integral of its rate. What its last wave or its rounds leave to others depends on its duration, so durations are
    searched by passes, until each takes as long as it was measured. Tasks for which there is no such duration, since
    the measured times contradict their rounds, are taken to be out of step, without a last wave.
    """
    tasks, is_measured = graph.tasks, _measured_tasks(graph)
    groups = _side_by_side(graph, is_measured)
    spans = np.where(is_measured, tasks.measured_end_ns - tasks.measured_start_ns, 0.0)
    duration = np.where(is_measured, spans, tasks.duration_ns)
    left, before = np.flatnonzero(groups >= 0), np.full(len(tasks), np.inf)
    rates = _Rates.of(graph.with_tasks(duration_ns=duration)) if len(left) else None
    for n in range(_MOST_PASSES):
        if rates is None or not len(left):
            break
        found = rates.integrated(left, duration)
        off = np.abs(found - duration)
        is_off = off[left] > _SETTLED * spans[left]
        duration[left] = np.clip(found[left], 0.0, spans[left])
        if n % _FREE_AFTER == _FREE_AFTER - 1:
            # In long chains, tasks settle one after another: then all that have not are out of step at once.
            is_stuck = is_off & (off >= _SHRINKS * np.minimum(before, spans))[left] | (n >= _MOST_PASSES // 2)
            graph, before = _out_of_step(graph, left[is_stuck]), off
            rates = _Rates.of(graph.with_tasks(duration_ns=duration)) if is_stuck.any() else rates
        left = left[np.isin(groups[left], groups[left[is_off]])]
    return graph.with_tasks(duration_ns=duration)


#: Most passes of the search for isolated durations; passes after which a task is out of step, unless its difference
#: has shrunk to this share; and the difference, as a share of the measured time, at which a duration has settled.
_MOST_PASSES, _FREE_AFTER, _SHRINKS, _SETTLED = 40, 4, 0.1, 1e-9


def _out_of_step(graph: KernelGraph, chosen: Ints) -> KernelGraph:
    """Return a copy of `graph` whose chosen tasks have neither rounds nor a last wave."""
    columns = {"in_rounds": graph.tasks.in_rounds.copy(), "waves": graph.tasks.waves.copy()}
    for column in columns.values():
        column[chosen] = 0
    return graph.with_tasks(**columns)


def _side_by_side(graph: KernelGraph, is_measured: Bools) -> Ints:
    """Return a number for each task that it shares with all tasks measured beside it, -1 for tasks without a time."""
    tasks, result, n = graph.tasks, np.full(len(graph.tasks), -1), 0
    begin = np.fmin(tasks.measured_start_ns, wait_times(graph, tasks.measured_start_ns))
    for device in np.unique(tasks.device[is_measured]):
        rows = np.flatnonzero(is_measured & (tasks.device == device))
        rows = rows[np.argsort(begin[rows], kind="stable")]
        ends = np.maximum.accumulate(tasks.measured_end_ns[rows])
        result[rows] = n + np.cumsum(np.append(False, begin[rows[1:]] >= ends[:-1]))
        n = int(result[rows].max(initial=n)) + 1
    if graph.policy.partitions == (1.0,):  # a task alone has the device for itself
        result[np.bincount(result + 1)[result + 1] == 1] = -1
    return result


def integrated_rates(graph: KernelGraph, rows: Ints | None = None) -> Floats:
    """Return the work of each device task in ns, or of those of `rows`: the integral of its rate where it was measured.

    For a task in rounds, it is its duration times the measured over the predicted time (`integrate_rates`).
    """
    rows = np.flatnonzero(_measured_tasks(graph)) if rows is None else rows
    return _Rates.of(graph).integrated(rows, graph.tasks.duration_ns)


class _Rates(NamedTuple):
    """What the rates on a measured timeline follow from, whatever the durations."""

    sharing: SharingState
    events: TaskTimes
    start_ns: Floats
    device: Ints

    @classmethod
    def of(cls, graph: KernelGraph) -> "_Rates":
        """Return the rates of a graph; a task without a duration shares nothing."""
        tasks, wait_ns = graph.tasks, wait_times(graph, graph.tasks.measured_start_ns)
        events = TaskTimes(tasks.measured_start_ns, tasks.measured_end_ns, np.arange(len(tasks)), wait_ns)
        return cls(lay_out(tasks, graph.policy), events, tasks.start_ns, tasks.device)

    def integrated(self, rows: Ints, duration_ns: Floats) -> Floats:
        """Return the work of some tasks in ns, as `integrated_rates`."""
        work_ns, start_ns, sharing = np.zeros(len(duration_ns)), np.zeros(1), self.sharing
        if sharing.has_start:
            start_ns = np.where(sharing.device >= 0, starts(self.start_ns, duration_ns), 0.0)
        sharing = sharing._replace(duration=duration_ns - start_ns, start_ns=start_ns)
        for device in np.unique(self.device[rows]):
            integrate_rates(sharing, self.events, rows[self.device[rows] == device], work_ns)
        return work_ns + np.where(work_ns > 0.0, start_ns, 0.0)


def _measured_tasks(graph: KernelGraph) -> Bools:
    """Return the mask of device tasks with a measured time."""
    tasks = graph.tasks
    with np.errstate(invalid="ignore"):
        return np.asarray(graph.on_device() & (tasks.measured_end_ns > tasks.measured_start_ns))


def measured_beside(graph: KernelGraph) -> Bools:
    """Return the mask of tasks measured while another ran on their device.

    If one of them had filled the device, the dispatcher interleaved the other with it.
    """
    tasks = graph.tasks
    beside = np.zeros(len(tasks), dtype=bool)
    is_measured = _measured_tasks(graph)
    for device in np.unique(tasks.device[is_measured]):
        rows = np.flatnonzero(is_measured & (tasks.device == device))
        rows = rows[np.lexsort((rows, tasks.measured_start_ns[rows]))]
        start, end = tasks.measured_start_ns[rows], tasks.measured_end_ns[rows]
        beside[rows[1:]] = start[1:] < np.maximum.accumulate(end)[:-1]
        beside[rows[:-1]] |= start[1:] < end[:-1]
    return beside


_CU, _L2, _HBM, _LINK, _DMA = (RESOURCES.index(name) for name in ("cu", "l2", "hbm", "link", "dma"))
#: Contention below this share of a duration is rounding.
_MIN_CONTENTION = 1e-3
#: Largest share of its peak bandwidth that a memory delivers; more says that the duration or the device is wrong.
_PEAK_REACHED = 0.95
#: A kernel that draws this share of the peak or more is bound by memory whatever its class: a product of few rows, too.
#: Chosen: at 0.6 and below, the replay of one real trace is worse than its table allows (docs/accuracy.md).
_MEMORY_BOUND_SHARE = 0.7
#: But not if it reaches this share of the peak of arithmetic.
_COMPUTES = 0.5
#: Largest share of accesses that caches serve: the engine takes shares below 1.
MAX_HIT_SHARE = 0.99
#: Directions of copies: into the device, out of it, and all that leave the device.
_TO_DEVICE, _TO_HOST = "HtoD", "DtoH"
_LEAVE_DEVICE = (_TO_DEVICE, _TO_HOST, "PtoP", "HtoH")


def dispatch_of(policy: SharingPolicy, parameters: Parameters) -> SharingPolicy:
    """Return the policy with the dispatch and the weights that the parameters choose.

    Examples
    --------
    >>> from replay.costs.shipped import load_parameters
    >>> dispatch_of(SharingPolicy(), load_parameters().with_values([("dispatch_in_order", 0.0)])).in_order
    False
    """
    in_order = policy.in_order and parameters["dispatch_in_order"] >= 0.5
    waiting = parameters["pressure_share_waiting"]
    return replace(policy, in_order=in_order, waiting_pressure=waiting, spin_weight=parameters["spin_weight"])


def isolate(graph: KernelGraph, parameters: Parameters) -> KernelGraph:
    """Return a copy of `graph` with demands and isolated durations: the measured contention is taken out.

    The basis of a duration that changes is `Basis.MODELLED`, since it rests on the model of contention.
    """
    tasks = graph.tasks
    spans = tasks.measured_end_ns - tasks.measured_start_ns
    measured = np.where(np.isnan(tasks.measured_start_ns), tasks.duration_ns, spans)
    with_demand = contended(graph, measured, parameters)
    isolated = with_isolated_durations(with_demand)
    is_slowed = measured - isolated.tasks.duration_ns > _MIN_CONTENTION * measured
    basis = np.where(is_slowed, max(int(Basis.MODELLED), int(graph.origin)), int(graph.origin))
    return isolated.with_tasks(basis=basis)


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
    interleaved = measured_beside(graph)
    return with_demands(graph.with_tasks(duration_ns=duration_ns, interleaved=interleaved), parameters)


def with_demands(graph: KernelGraph, parameters: Parameters) -> KernelGraph:
    """Return a copy of `graph` with the demands of every task on its hardware.

    - Bound: a kernel whose operator draws 0.7 of the memory's peak or more is bound by memory. The class of the kernel
      decides for the others.
    - Compute units: a kernel occupies units in proportion to its workgroups, of which a unit takes as many as their
      sizes allow (`replay.costs.places`). A kernel with an unknown grid is taken to fill the device.
    - Full rate: a kernel needs all units that it occupies. If it is bound by memory, the share
      `cu_share_saturating_memory` of all units is enough.
    - Memory bandwidth: the bytes of the kernel's operator over its duration; by class if the operator is unknown. Tasks
      side by side get `memory_efficiency_shared` of the peak.
    - Last-level cache: it serves a `hit_share` on top, and has `l2_bandwidth_ratio` times the bandwidth. If all
      operands fit the cache, it serves `hit_share_resident` of the accesses, and at least the ones that memory
      could not have delivered.
    - Collectives: they hold units until they end, but for those that send and receive. A collective uses its links
      whole, so that collectives on one device share them.
    - Copies: a copy between host and device uses one copy engine, and memory for its bytes. A copy on the device reads
      and writes them. If the bandwidth of the link to the host is known, copies share it in each direction, with
      kernels whose name has that direction and whose bytes are known.
    """
    tasks = graph.tasks
    is_collective, is_copy = tasks.kind == TaskKind.COLLECTIVE, tasks.kind == TaskKind.COPY
    is_compute_bound = np.isin(tasks.class_, [i for i, name in enumerate(CLASSES) if name in COMPUTE_BOUND])
    is_kernel = (tasks.kind == TaskKind.KERNEL) & graph.on_device()
    moves = (_share_of_operator(graph) >= _MEMORY_BOUND_SHARE) & (_share_of_arithmetic(graph) < _COMPUTES)
    is_compute_bound &= ~moves
    graph = with_unit_sizes(graph, is_compute_bound, parameters)
    active = np.where(is_collective & graph.on_device(), mean_share(graph, parameters), 0.0)
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
    return with_interference(with_places(demanding, is_compute_bound, active, parameters), parameters)


#: Columns of tasks that `with_demands` works out, apart from the demand.
DEMAND_COLUMNS = (
    *("occupies", "waves", "footprint", "hit_share", "pressure", "sensitivity", "spreads", *PLACE_COLUMNS),
    *UNIT_COLUMNS,
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
    uses_units = (is_kernel | is_collective) & graph.on_device() & ~leaves_units(graph)
    waves = np.where(uses_units, tasks.workgroups / (graph.hardware.compute_units * per_unit(tasks)), 0.0)
    assumed = np.where(is_kernel, 1.0, parameters["cu_share_collective"])
    occupies = np.where(uses_units, np.where(tasks.workgroups > 0, np.minimum(waves, 1.0), assumed), 0.0)
    saturating = np.where(is_kernel & ~is_compute_bound, parameters["cu_share_saturating_memory"], 1.0)
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


def _share_of_arithmetic(graph: KernelGraph) -> Floats:
    """Return the share of the peak of arithmetic that each task's operator reaches; 0 if it is unknown."""
    device, dtypes = graph.hardware.device, {2: "fp16", 4: "fp32", 8: "fp64"}
    if device is None or not graph.operators:
        return np.zeros(len(graph.tasks))
    flops = np.zeros(len(graph.operators))
    for i, operator in enumerate(graph.operators):
        with suppress(InvalidInputError):  # no peak of this type
            flops[i] = operator.flops / device.flops_per_s(dtypes.get(operator.element_bytes, "fp8"), matrix=True)
    seconds = np.maximum(graph.tasks.duration_ns, 1.0) / 1e9
    return np.where(graph.tasks.operator >= 0, flops[graph.tasks.operator] / seconds, 0.0)


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
