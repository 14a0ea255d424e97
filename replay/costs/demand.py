"""Demands of tasks on their device, and durations without contention.

`with_demands` gives each task the share of every resource that it uses when it runs alone. `isolate` inverts the
sharing model, so that replaying an unchanged graph returns the measured durations. The ranges of the parameters behind
the shares become part of the interval of every projection. `replay.contention` fits and scores them on recordings.
"""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from profilers.trace.arrays import Bools, Floats
from profilers.trace.kernels import CLASSES, COMPUTE_BOUND
from replay.calibration.parameters import Parameters
from replay.engine.engine import events_of, no_record, walk
from replay.engine.layout import lay_out
from replay.graph.graph import RESOURCES, Basis, KernelGraph, SharingPolicy, TaskKind


def isolated_durations(graph: KernelGraph) -> Floats:
    """Return how long each task would take alone, by inverting the sharing on the measured timeline.

    The rates of the active tasks depend only on which are active and in which order they came, so the work of a task is
    the integral of its rate over its measured interval. Replaying the result under the same sharing returns that
    interval. Tasks that run alone, or beside others that leave them enough, keep their duration. Where one that was
    measured beside others has a last wave, its place is taken from its duration as it is: see `measured_beside`.
    """
    tasks = graph.tasks
    shares = _measured(graph)
    shared, work = lay_out(tasks, graph.policy), np.zeros(len(tasks))
    for device in np.unique(tasks.device[shares]):
        rows = np.flatnonzero(shares & (tasks.device == device))
        walk(events_of((tasks.measured_start_ns, tasks.measured_end_ns), rows, rows), shared, work, no_record())
    return np.where(shares, work, tasks.duration_ns)


def _measured(graph: KernelGraph) -> Bools:
    tasks = graph.tasks
    with np.errstate(invalid="ignore"):
        return np.asarray(graph.on_device() & (tasks.measured_end_ns > tasks.measured_start_ns))


def measured_beside(graph: KernelGraph) -> tuple[Bools, Bools]:
    """Return which tasks were measured while another ran on their device, and which of them came to it later.

    Where the first had filled the device, the dispatcher let the later in beside it. When its last wave began cannot be
    told from a timeline in which they slowed each other, so such tasks are taken to have none.
    """
    tasks = graph.tasks
    beside, later = np.zeros(len(tasks), dtype=bool), np.zeros(len(tasks), dtype=bool)
    shares = _measured(graph)
    for device in np.unique(tasks.device[shares]):
        rows = np.flatnonzero(shares & (tasks.device == device))
        rows = rows[np.lexsort((rows, tasks.measured_start_ns[rows]))]
        start, end = tasks.measured_start_ns[rows], tasks.measured_end_ns[rows]
        later[rows[1:]] = start[1:] < np.maximum.accumulate(end)[:-1]
        beside[rows[:-1]] = start[1:] < end[:-1]
    return beside | later, later


_CU, _L2, _HBM, _LINK, _DMA = (RESOURCES.index(name) for name in ("cu", "l2", "hbm", "link", "dma"))
#: Share of a duration below which contention is rounding.
_CONTENDED = 1e-3
#: Of its peak bandwidth, what a memory delivers at best; more says that the duration or the device is wrong.
_AT_BEST = 0.95
#: Of the peak, from which on a kernel is bound by memory whatever its class: a product of few rows, too. Chosen: from
#: 0.6 on down, the replay of one real trace is worse than its table allows (docs/contention.md).
_BOUND = 0.7
#: Of the accesses, what a cache serves at most: a hit share is below 1.
_MOST_HITS = 0.99
#: What names of copies say of where they go: into the device, or out of it.
_INTO, _OUT_OF, _ELSEWHERE = "HtoD", "DtoH", ("PtoP", "HtoH")


def dispatch_of(policy: SharingPolicy, parameters: Parameters) -> SharingPolicy:
    """Return how compute units are given out, as `dispatch_in_order` and `dispatch_whole_waves` choose.

    The shipped values change nothing.

    Examples
    --------
    >>> from replay.costs.shipped import load_parameters
    >>> dispatch_of(SharingPolicy(), load_parameters().with_values([("dispatch_in_order", 0.0)])).in_order
    False
    """
    in_order = policy.in_order and parameters["dispatch_in_order"] >= 0.5
    quantised = policy.quantised or parameters["dispatch_whole_waves"] >= 0.5
    if (in_order, quantised) == (policy.in_order, policy.quantised):
        return policy
    return replace(policy, in_order=in_order, quantised=quantised)


def isolate(graph: KernelGraph, parameters: Parameters) -> KernelGraph:
    """Return `graph` as measured, with its tasks' demands and with the contention that was measured taken out.

    A duration from which contention was taken rests on the demands, which are assumed, and is marked so.
    """
    tasks = graph.tasks
    measured = np.where(
        np.isnan(tasks.measured_start_ns), tasks.duration_ns, tasks.measured_end_ns - tasks.measured_start_ns
    )
    graph = replace(graph, policy=dispatch_of(graph.policy, parameters))
    beside, later = measured_beside(graph)
    loaded = with_demands(graph.with_tasks(duration_ns=measured, interleaved=later), parameters)
    loaded = loaded.with_tasks(waves=np.where(beside, 0.0, loaded.tasks.waves))
    alone = isolated_durations(loaded)
    contended = measured - alone > _CONTENDED * measured
    return loaded.with_tasks(duration_ns=alone, basis=np.where(contended, int(Basis.ASSUMED), int(graph.origin)))


def with_demands(graph: KernelGraph, parameters: Parameters) -> KernelGraph:
    """Return `graph` with the demand of every task on its hardware.

    - A kernel is bound by memory where its operator draws 0.7 of the peak or more alone, else by its class.
    - A kernel occupies compute units in proportion to its workgroups: one to a unit where it is bound by
      arithmetic (one workgroup of a GEMM keeps a unit busy), `workgroups_per_unit_max` to a unit otherwise. One
      whose grid is unknown is taken to fill the device, of which it holds `cu_share_held_...`. It needs all that it
      occupies to run at full rate, except that `cu_share_saturating_memory` of all units is enough for what is bound by
      memory, and `cu_share_saturating_compute` of those that it occupies for what is bound by arithmetic.
    - Memory bandwidth is what the kernel's operator moves over its duration where that is known, else it goes by
      class. The last-level cache serves a `hit_share` beside, and has `l2_bandwidth_ratio` times the bandwidth. An
      operator whose operands all fit the cache may be served by it: by `hit_share_resident` of its accesses, and
      by at least what memory could not have delivered. Works side by side get `memory_efficiency_shared` of the peak.
    - A collective's workgroups stay until it ends. It uses its links whole: at one time on one device,
      collectives share them.
    - A copy between host and device uses one of the copy engines, and memory for its bytes; one on the device reads
      and writes them. Where the hardware says how fast the link to the host is, copies share it, each direction
      for itself, with kernels that reach across it (whose name has the direction, and which say their bytes).
    """
    tasks = graph.tasks
    collective = tasks.kind == TaskKind.COLLECTIVE
    copy = tasks.kind == TaskKind.COPY
    arithmetic = np.isin(tasks.class_, [i for i, name in enumerate(CLASSES) if name in COMPUTE_BOUND])
    kernel = (tasks.kind == TaskKind.KERNEL) & graph.on_device()
    arithmetic &= ~_bound_by_memory(graph)
    waves, occupies, need = _compute_units(graph, arithmetic, parameters)
    demand = np.zeros((len(tasks), len(RESOURCES)))
    demand[:, _CU] = need
    moves = np.where(kernel, _bandwidth(graph, arithmetic, occupies, parameters), 0.0)
    resident = np.where(kernel, _resident(graph, moves, parameters), 0.0)
    demand[kernel, _HBM] = (np.where(resident > 0, moves * (1 - resident), np.minimum(moves, _AT_BEST)))[kernel]
    demand[collective, _HBM] = parameters["hbm_share_collective"]
    demand[collective, _LINK] = 1.0
    outside = copy & _between_host_and_device(graph)
    demand[outside, _DMA] = 1.0 / max(graph.hardware.copy_engines, 1.0)
    demand[copy, _HBM] = _bandwidth_of_copies(graph, outside, parameters)[copy]
    hits = np.where(arithmetic, parameters["hit_share_compute_bound"], parameters["hit_share_memory_bound"])
    reads = np.where(resident > 0, moves, demand[:, _HBM] / (1 - hits))
    demand[kernel, _L2] = (reads / parameters["l2_bandwidth_ratio"])[kernel]
    footprint = _footprint(graph, np.where(resident > 0, moves, demand[:, _HBM]))
    demand[:, _HBM] /= parameters["memory_efficiency_shared"]
    hits = np.where(resident > 0, resident, hits)
    return _on_host_link(graph, demand).with_tasks(
        occupies=occupies,
        waves=waves,
        footprint=footprint,
        hit_share=np.where(kernel & (footprint > 0), hits, 0.0),
    )


def _compute_units(graph: KernelGraph, arithmetic: Bools, parameters: Parameters) -> tuple[Floats, Floats, Floats]:
    """Return the waves of workgroups of every task (0 where unknown), what they occupy, and what they need."""
    tasks = graph.tasks
    kernel, collective = tasks.kind == TaskKind.KERNEL, tasks.kind == TaskKind.COLLECTIVE
    per_unit = np.where(arithmetic | collective, 1.0, parameters["workgroups_per_unit_max"])
    uses = (kernel | collective) & graph.on_device()
    waves = np.where(uses, tasks.workgroups / (graph.hardware.compute_units * per_unit), 0.0)
    unknown = np.where(kernel, 1.0, parameters["cu_share_collective"])
    held = np.where(arithmetic, parameters["cu_share_held_compute"], parameters["cu_share_held_memory"])
    filled = np.where(tasks.workgroups > 0, np.minimum(waves, 1.0), unknown) * np.where(kernel, held, 1.0)
    occupies = np.where(uses, filled, 0.0)
    enough = np.where(kernel & ~arithmetic, parameters["cu_share_saturating_memory"], 1.0)
    enough = np.where(kernel & arithmetic, parameters["cu_share_saturating_compute"] * occupies, enough)
    # A collective's workgroups all stay until it ends: one wave, whatever the grid.
    return np.where(collective, occupies, waves), occupies, np.minimum(occupies, enough)


def _bandwidth(graph: KernelGraph, arithmetic: Bools, occupies: Floats, parameters: Parameters) -> Floats:
    """Return what kernels move over the memory's peak: by their operator where it is known, else by class.

    More than memory delivers is left to stand: a cache may have served it.
    """
    tasks = graph.tasks
    by_class = np.where(arithmetic, parameters["hbm_share_compute_bound"], parameters["hbm_share_memory_bound"])
    # A kernel that does not fill the device cannot draw all of its bandwidth either.
    share = by_class * np.sqrt(np.maximum(occupies, 1e-4))
    if graph.hardware.device is None or not graph.operators:
        return share
    return np.where(tasks.operator >= 0, _over_peak(graph, _moved(graph)), share)


def _bound_by_memory(graph: KernelGraph) -> Bools:
    """Return the tasks whose operator alone draws so much of memory that nothing else can bind them."""
    if graph.hardware.device is None or not graph.operators:
        return np.zeros(len(graph.tasks), dtype=bool)
    return np.asarray((graph.tasks.operator >= 0) & (_over_peak(graph, _moved(graph)) >= _BOUND))


def _moved(graph: KernelGraph) -> Floats:
    """Return the bytes that each task's operator moves; of a task without one they mean nothing."""
    moved = np.array([operator.bytes_moved for operator in graph.operators], dtype=np.float64)
    return np.asarray(moved[graph.tasks.operator])


def _over_peak(graph: KernelGraph, moved: Floats | npt.NDArray[np.int64]) -> Floats:
    """Return bytes over the duration of each task, as a share of the memory's peak; 0 where that is not known."""
    device = graph.hardware.device
    if device is None:
        return np.zeros(len(graph.tasks))
    seconds = np.maximum(graph.tasks.duration_ns, 1.0) / 1e9
    return np.asarray(moved / seconds / device.memory_bytes_per_s, dtype=np.float64)


def _resident(graph: KernelGraph, moves: Floats, parameters: Parameters) -> Floats:
    """Return what share of its accesses the cache serves of an operator whose operands fit it; 0 of all others."""
    size, tasks = _cache_bytes(graph), graph.tasks
    if not size or not graph.operators:
        return np.zeros(len(tasks))
    sets = np.array([one.working_set_bytes or one.bytes_moved for one in graph.operators])[tasks.operator]
    fits = (tasks.operator >= 0) & (sets <= size)
    beyond = 1.0 - _AT_BEST / np.maximum(moves, _AT_BEST)
    return np.where(fits, np.clip(np.maximum(beyond, parameters["hit_share_resident"]), 0.0, _MOST_HITS), 0.0)


def _bandwidth_of_copies(graph: KernelGraph, outside: Bools, parameters: Parameters) -> Floats:
    """Return the share of memory bandwidth that copies use: by their bytes.

    Where they do not say them, those inside the device use `hbm_share_memory_bound`, others none.
    """
    tasks = graph.tasks
    found = _over_peak(graph, tasks.bytes * np.where(outside, 1, 2))
    guess = np.where(outside, 0.0, parameters["hbm_share_memory_bound"])
    return np.where(found > 0, np.minimum(found, _AT_BEST), guess)


def _on_host_link(graph: KernelGraph, demand: Floats) -> KernelGraph:
    """Return `graph` with these demands, and with those on the link to the host where its bandwidth is known.

    Link 0 leads into the device, link 1 out of it.
    """
    tasks, link = graph.tasks, graph.tasks.link
    for number, (way, rate) in enumerate(zip((_INTO, _OUT_OF), graph.hardware.host_link_bytes_per_s, strict=True)):
        mine = _says(graph, (way,)) & graph.on_device() & (tasks.bytes > 0) & (tasks.kind != TaskKind.COLLECTIVE)
        if rate > 0 and mine.any():
            seconds = np.maximum(tasks.duration_ns, 1.0) / 1e9
            demand[mine, _LINK] = (tasks.bytes / seconds / rate)[mine]
            link = np.where(mine, number, link)
    return graph.with_tasks(demand=np.clip(demand, 0.0, 1.0), link=link)


def _footprint(graph: KernelGraph, bandwidth: Floats) -> Floats:
    """Return what kernels keep in the last-level cache, as a share of its size: what they move, if that fits."""
    device = graph.hardware.device
    if device is None or not (size := _cache_bytes(graph)):
        return np.zeros(len(graph.tasks))
    moved = bandwidth * device.memory_bytes_per_s * graph.tasks.duration_ns / 1e9
    return np.where(graph.tasks.kind == TaskKind.KERNEL, np.minimum(moved / size, 1.0), 0.0)


def _cache_bytes(graph: KernelGraph) -> float:
    """Return the size of the last-level cache; 0 where the catalogue does not know it."""
    figures = {} if graph.hardware.device is None else graph.hardware.device.figures
    found = [figures[name].value for name in ("llc_mb", "l2_mb") if name in figures]
    return found[0] * 2.0**20 if found else 0.0


def _between_host_and_device(graph: KernelGraph) -> Bools:
    return _says(graph, (_INTO, _OUT_OF, *_ELSEWHERE))


def _says(graph: KernelGraph, words: tuple[str, ...]) -> Bools:
    """Return the tasks whose name has one of the words in it."""
    said = np.array([any(word in name for word in words) for name in graph.names], dtype=bool)
    return said[graph.tasks.name] if len(graph.names) else np.zeros(len(graph.tasks), dtype=bool)
