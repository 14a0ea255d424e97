"""Pressure: what works do to the way to memory, and so to each kernel beside them, beyond the bandwidth they draw.

A task has a pressure, and a sensitivity: the time that a unit of pressure adds to it, as a share of its duration.
`replay.engine.sharing` applies them. `with_interference` sets the columns. `InterferenceFit` has factors on the
sensitivity of single kernels, fitted to traces.

Traces show kernels that ran beside collectives. A what-if that puts them side by side for the first time, or that moves
collectives to DMA engines, uses `with_memory_traffic`: both share the way to memory, and both slow.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from profilers.trace.arrays import Bools, Floats, Ints
from profilers.trace.kernels import CLASSES, COMPUTE_BOUND
from replay.calibration.parameters import Parameters
from replay.costs.collectives import CollectiveCalibration
from replay.costs.places import memory_bytes_per_s
from replay.costs.wire_time import collective_models, likely_ranks
from replay.graph.graph import COLLECTIVE_KINDS, RESOURCES, KernelGraph, TaskKind

#: Duration of the latencies of a short kernel, ns: what `latency_sensitivity` counts in.
LATENCY_NS = 3000.0
#: Sensitivities of single kernels are at most this many times what their memory time and duration say.
MOST_FACTOR = 8.0


@dataclass(frozen=True)
class InterferenceFit:
    """Interference that was fitted to the traces of a job.

    Parameters
    ----------
    kernels : mapping of str to float
        Factor on the sensitivity of single kernels, by `kernel_label`.
    device : str
        Device that was measured; empty if the trace does not name it.
    """

    kernels: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    device: str = ""


def interference_of(parameters: Parameters) -> InterferenceFit:
    """Return the fitted interference that the parameters carry; an empty fit if they carry none."""
    fits = (each for each in parameters.calibrations if isinstance(each, InterferenceFit))
    return next(fits, InterferenceFit())


def kernel_label(name: str, workgroups: int, flops: float = 0, bytes_moved: float = 0) -> str:
    """Return the label of a kernel in a fit: its name, its grid, and the work of its operator if that is known.

    Examples
    --------
    >>> kernel_label("gemm_128x128", 304, 2**31, 2**24)
    'gemm_128x128 [304, 2.1e+09 FLOP, 1.7e+07 B]'
    """
    return f"{name} [{workgroups}, {flops:.2g} FLOP, {bytes_moved:.2g} B]" if flops else f"{name} [{workgroups}]"


def task_labels(graph: KernelGraph, rows: Ints) -> tuple[list[str], Ints]:
    """Return the distinct labels of kernels or collectives, and the label of each row.

    Parameters
    ----------
    graph : KernelGraph
        Graph of the tasks.
    rows : array of int64, shape (n,)
        Tasks to label.
    """
    tasks, works = graph.tasks, [(operator.flops, operator.bytes_moved) for operator in graph.operators]
    keys = np.stack([tasks.name[rows], tasks.workgroups[rows], tasks.operator[rows]])
    keys, index = np.unique(keys, axis=1, return_inverse=True)
    labels = [
        kernel_label(graph.names[name], grid, *(works[operator] if operator >= 0 else ()))
        for name, grid, operator in keys.T.tolist()
    ]
    return labels, index


def with_interference(graph: KernelGraph, parameters: Parameters) -> KernelGraph:
    """Return a copy of `graph` with the pressure of collectives, and the sensitivity of kernels.

    - Pressure: `pressure_collective` times the share of the memory's bandwidth that a collective draws (`memory_bytes`
      over its duration). If its bytes are unknown, times its workgroups over the compute units; and if the trace does
      not show when it waits, times the mean (`mean_share`). That of other tasks stays.
    - Sensitivity: the part of a kernel's time that is bound by memory, and `latency_sensitivity` times 3 us over its
      duration: pressure adds a fixed time to each kernel.

    Parameters
    ----------
    graph : KernelGraph
        Graph with demands (`replay.costs.demand`).
    parameters : Parameters
        Parameters, with an `InterferenceFit` among their calibrations if there is one.
    """
    tasks, factors = graph.tasks, interference_of(parameters).kernels
    is_kernel = (tasks.kind == TaskKind.KERNEL) & graph.on_device()
    is_collective = (tasks.kind == TaskKind.COLLECTIVE) & graph.on_device()
    channels = tasks.workgroups / max(graph.hardware.compute_units, 1)
    units = np.where(tasks.workgroups > 0, channels, tasks.occupies) * mean_share(graph, parameters)
    duration_ns = np.maximum(tasks.duration_ns, 1.0)
    drawn = memory_bytes(graph) / duration_ns * 1e9 / memory_bytes_per_s(graph, parameters)
    load = np.where(drawn > 0.0, np.minimum(drawn, 1.0), units)
    pressure = np.where(is_collective, parameters["pressure_collective"] * load, tasks.pressure)
    latency = parameters["latency_sensitivity"] * LATENCY_NS / duration_ns
    sensitivity = np.where(is_kernel, _factors(graph, factors, is_kernel) * (tasks.memory_part + latency), 0.0)
    return graph.with_tasks(pressure=pressure, sensitivity=sensitivity)


def mean_share(graph: KernelGraph, parameters: Parameters) -> Floats:
    """Return the mean of what each collective does to others, as a share of what it does while it transfers."""
    transfers = transfer_share(graph, parameters)
    return transfers + (1.0 - transfers) * parameters["pressure_share_waiting"]


def transfer_share(graph: KernelGraph, parameters: Parameters) -> Floats:
    """Return the share of each collective's duration in which it transfers; 1 for other tasks.

    A collective whose ranks meet transfers for all of its duration. For another one it is the predicted time of its
    bytes over the measured time: the rest is a wait for other ranks. It is 0 if the bytes or the device
    are unknown, or without a calibration of collectives.

    Parameters
    ----------
    graph : KernelGraph
        Graph with the durations of its tasks.
    parameters : Parameters
        With a calibration of collectives, if there is one.
    """
    tasks = graph.tasks
    is_unknown = (tasks.kind == TaskKind.COLLECTIVE) & graph.on_device() & (graph.arrival_marks() < 0)
    if not is_unknown.any():
        return np.ones(len(tasks))
    if not any(isinstance(each, CollectiveCalibration) for each in parameters.calibrations):
        return np.where(is_unknown, 0.0, 1.0)
    models = collective_models(graph, parameters)
    share = np.clip(models.total_ns(np.ones(len(tasks))) / np.maximum(tasks.duration_ns, 1.0), 0.0, 1.0)
    return np.where(is_unknown, np.where(models.is_known, share, 0.0), 1.0)


def _factors(graph: KernelGraph, fitted: Mapping[str, float], chosen: Bools) -> Floats:
    """Return the fitted factor of each chosen task; 1 for the others."""
    factors = np.ones(len(graph.tasks))
    rows = np.flatnonzero(chosen)
    if fitted and len(rows):
        labels, index = task_labels(graph, rows)
        factors[rows] = np.array([fitted.get(label, 1.0) for label in labels])[index]
    return factors


_L2, _HBM = RESOURCES.index("l2"), RESOURCES.index("hbm")
_ARITHMETIC = [CLASSES.index(name) for name in COMPUTE_BOUND]
_REDUCING = [COLLECTIVE_KINDS.index(kind) for kind in ("all_reduce", "reduce_scatter", "reduce")]
_WHOLE = [COLLECTIVE_KINDS.index(kind) for kind in ("broadcast", "send_recv")]
_ALL_REDUCE = COLLECTIVE_KINDS.index("all_reduce")


def memory_bytes(graph: KernelGraph) -> Floats:
    """Return the bytes that the memory of a device reads and writes for each collective; 0 if bytes are unknown.

    All that is sent is read, and all that is received is written. A reduction reads what came and its own part again,
    and writes the sum.
    """
    tasks, ranks = graph.tasks, np.maximum(likely_ranks(graph), 1)
    exchanged = np.where(np.isin(tasks.collective, _WHOLE), 1.0, (ranks - 1) / ranks)
    volume = 2.0 * exchanged
    volume += np.where(np.isin(tasks.collective, _REDUCING), exchanged + 2.0 / ranks, 0.0)
    volume += np.where(tasks.collective == _ALL_REDUCE, 2.0 * exchanged, 0.0)
    return np.where(tasks.kind == TaskKind.COLLECTIVE, volume * tasks.bytes, 0.0)


def with_memory_traffic(graph: KernelGraph, transfers: Bools, kernels: Bools, parameters: Parameters) -> KernelGraph:
    """Return a copy of `graph` in which kernels and collectives side by side share the way to memory.

    - A collective of known bytes uses the way to memory, and memory, by its traffic over its duration. Both deliver
      `memory_efficiency_mixed` of the peak to mixed streams. Its kernel moves each byte `collective_kernel_passes`
      times, through a buffer. It puts no further pressure on others. Copies on DMA engines have these demands already.
    - A kernel bound by arithmetic keeps as many requests in flight as hide the latency that it has alone. So its
      requests fill the way to memory, and whatever others send lengthens its time (Little's law).

    Parameters
    ----------
    graph : KernelGraph
        Graph with demands.
    transfers, kernels : array of bool, shape (n_tasks,)
        Masks of the collectives, and of the kernels beside them.
    parameters : Parameters
        Parameters of the model.
    """
    tasks, device = graph.tasks, graph.hardware.device
    moved, on_engine = memory_bytes(graph), transfers & (tasks.engine >= 0)
    known = transfers & (moved > 0) & ~on_engine
    if device is None or not (known | on_engine).any():
        return graph
    efficiency, demand = parameters["memory_efficiency_mixed"], tasks.demand.copy()
    rate = parameters["collective_kernel_passes"] * moved / (np.maximum(tasks.duration_ns, 1.0) / 1e9)
    share = np.minimum(rate / (device.memory_bytes_per_s * efficiency), 1.0)
    demand[known, _HBM] = demand[known, _L2] = share[known]
    demand[kernels, _HBM] = np.minimum(demand[kernels, _HBM] / efficiency, 1.0)
    in_flight = kernels & np.isin(tasks.class_, _ARITHMETIC)
    demand[in_flight, _L2] = tasks.occupies[in_flight]
    # That law stands in for the latency of memory under load. Workgroups that wait for each other's requests are out of
    # step.
    part, rounds = np.where(kernels, 0.0, tasks.memory_part), tasks.in_rounds & ~kernels
    columns = {"demand": demand, "memory_part": part, "in_rounds": rounds}
    return graph.with_tasks(**columns, pressure=np.where(known, 0.0, tasks.pressure))
