"""What share of its device each task uses when it runs alone.

The shares decide how much concurrent tasks slow each other; the range of the parameters behind them becomes
part of the interval of every projection that changes which tasks run together.
"""

import numpy as np
import numpy.typing as npt

from profilers.kernels import CLASSES, COMPUTE_BOUND
from replay.graph import RESOURCES, Basis, KernelGraph, TaskKind
from replay.isolation import isolated_durations, measured_beside
from replay.parameters import Parameters

__all__ = ["isolate", "with_demands"]

Floats = npt.NDArray[np.float64]
_CU, _L2, _HBM, _LINK, _DMA = (RESOURCES.index(name) for name in ("cu", "l2", "hbm", "link", "dma"))
#: Share of a duration below which contention is rounding.
_CONTENDED = 1e-3
#: Of its peak bandwidth, what a memory delivers at best; more says that the duration or the device is wrong.
_AT_BEST = 0.95


def isolate(graph: KernelGraph, parameters: Parameters) -> KernelGraph:
    """Return `graph` as measured, with its tasks' demands and with the contention that was measured taken out.

    A duration from which contention was taken rests on the demands, which are assumed, and is marked so.
    """
    tasks = graph.tasks
    measured = np.where(
        np.isnan(tasks.measured_start_ns), tasks.duration_ns, tasks.measured_end_ns - tasks.measured_start_ns
    )
    beside, later = measured_beside(graph)
    loaded = with_demands(graph.with_tasks(duration_ns=measured, interleaved=later), parameters)
    loaded = loaded.with_tasks(waves=np.where(beside, 0.0, loaded.tasks.waves))
    alone = isolated_durations(loaded)
    contended = measured - alone > _CONTENDED * measured
    return loaded.with_tasks(duration_ns=alone, basis=np.where(contended, int(Basis.ASSUMED), int(graph.origin)))


def with_demands(graph: KernelGraph, parameters: Parameters) -> KernelGraph:
    """Return `graph` with the demand of every task on its hardware.

    - A kernel occupies compute units in proportion to its workgroups: one to a unit where it is bound by
      arithmetic (one workgroup of a GEMM keeps a unit busy), `workgroups_per_unit_max` to a unit otherwise. One
      whose grid is unknown is taken to fill the device. It needs all that it occupies to run at full rate, except
      that `cu_share_saturating_memory` is enough for what is bound by memory.
    - Memory bandwidth is what the kernel's operator moves over its duration where that is known, else it goes by
      class. The last-level cache serves a `hit_share` beside, and has `l2_bandwidth_ratio` times the bandwidth.
    - A collective's workgroups stay until it ends. It uses its links whole: at one time on one device,
      collectives share them.
    - A copy between host and device uses one of the copy engines; one on the device uses memory bandwidth.
    """
    tasks = graph.tasks
    collective = tasks.kind == TaskKind.COLLECTIVE
    copy = tasks.kind == TaskKind.COPY
    arithmetic = np.isin(tasks.class_, [i for i, name in enumerate(CLASSES) if name in COMPUTE_BOUND])
    kernel = (tasks.kind == TaskKind.KERNEL) & graph.on_device()
    waves, occupies, need = _compute_units(graph, arithmetic, parameters)
    demand = np.zeros((len(tasks), len(RESOURCES)))
    demand[:, _CU] = need
    demand[kernel, _HBM] = _bandwidth(graph, arithmetic, occupies, parameters)[kernel]
    demand[collective, _HBM] = parameters["hbm_share_collective"]
    demand[collective, _LINK] = 1.0
    outside = copy & _between_host_and_device(graph)
    demand[outside, _DMA] = 1.0 / max(graph.hardware.copy_engines, 1.0)
    demand[copy & ~outside, _HBM] = parameters["hbm_share_memory_bound"]
    hits = np.where(arithmetic, parameters["hit_share_compute_bound"], parameters["hit_share_memory_bound"])
    demand[kernel, _L2] = (demand[:, _HBM] / (1 - hits) / parameters["l2_bandwidth_ratio"])[kernel]
    footprint = _footprint(graph, demand[:, _HBM])
    return graph.with_tasks(
        demand=np.clip(demand, 0.0, 1.0),
        occupies=occupies,
        waves=waves,
        footprint=footprint,
        hit_share=np.where(kernel & (footprint > 0), hits, 0.0),
    )


def _compute_units(
    graph: KernelGraph, arithmetic: npt.NDArray[np.bool_], parameters: Parameters
) -> tuple[Floats, Floats, Floats]:
    """Return the waves of workgroups of every task (0 where unknown), what they occupy, and what they need."""
    tasks = graph.tasks
    kernel, collective = tasks.kind == TaskKind.KERNEL, tasks.kind == TaskKind.COLLECTIVE
    per_unit = np.where(arithmetic | collective, 1.0, parameters["workgroups_per_unit_max"])
    uses = (kernel | collective) & graph.on_device()
    waves = np.where(uses, tasks.workgroups / (graph.hardware.compute_units * per_unit), 0.0)
    unknown = np.where(kernel, 1.0, parameters["cu_share_collective"])
    occupies = np.where(uses, np.where(tasks.workgroups > 0, np.minimum(waves, 1.0), unknown), 0.0)
    enough = np.where(kernel & ~arithmetic, parameters["cu_share_saturating_memory"], 1.0)
    # A collective's workgroups all stay until it ends: one wave, whatever the grid.
    return np.where(collective, occupies, waves), occupies, np.minimum(occupies, enough)


def _bandwidth(
    graph: KernelGraph, arithmetic: npt.NDArray[np.bool_], occupies: Floats, parameters: Parameters
) -> Floats:
    """Return the share of memory bandwidth that kernels use: by their operator where it is known, else by class."""
    tasks = graph.tasks
    by_class = np.where(arithmetic, parameters["hbm_share_compute_bound"], parameters["hbm_share_memory_bound"])
    # A kernel that does not fill the device cannot draw all of its bandwidth either.
    share = by_class * np.sqrt(np.maximum(occupies, 1e-4))
    device = graph.hardware.device
    if device is None or not graph.operators:
        return share
    moved = np.array([operator.bytes_moved for operator in graph.operators])[tasks.operator]
    seconds = np.maximum(tasks.duration_ns, 1.0) / 1e9
    found = np.minimum(moved / seconds / device.memory_bytes_per_s, _AT_BEST)
    return np.where(tasks.operator >= 0, found, share)


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


def _between_host_and_device(graph: KernelGraph) -> npt.NDArray[np.bool_]:
    outside = np.array([any(d in name for d in ("HtoD", "DtoH", "PtoP", "HtoH")) for name in graph.names], dtype=bool)
    return outside[graph.tasks.name] if len(graph.names) else np.zeros(len(graph.tasks), dtype=bool)
