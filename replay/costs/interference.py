"""Interference: how much tasks side by side slow each other beyond the compute units and the bandwidth that they share.

Three columns of tasks carry it, and `replay.engine.sharing` applies them. A task has a pressure: what it does to the
memory system, and so to every task beside it. A task has a sensitivity: the time that a unit of pressure adds to it, as
a share of its duration. A kernel whose workgroups all run at once when it is alone has the cost of a further round,
for when some of its workgroups do not find a free compute unit. With pressures P beside it, a kernel takes

    duration * (1 + sensitivity * P + extra_round * (rounds - 1)).

`with_interference` sets the columns: from a fit to traces (`InterferenceFit`) where it knows the kernel or the
collective, otherwise from the parameters that are shipped.

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
from replay.costs.wire_time import collective_models, likely_ranks
from replay.graph.graph import COLLECTIVE_KINDS, RESOURCES, KernelGraph, TaskKind

#: Duration of the latencies of a short kernel, ns: what `latency_sensitivity` counts in.
LATENCY_NS = 3000.0
#: A workgroup that leaves room for as many of its kind on a unit also finds room beside a collective.
_MOST_RESIDENT = 2.0
#: Labels of copies, and of kernels that are no collectives, among pressures.
COPY, KERNEL = "copy", "kernel"
#: A cost of 0 would mean that a kernel loses all units that it lacks.
_LEAST_COST = 1e-3
#: Sensitivities of single kernels are at most this many times what their class and duration say.
MOST_FACTOR = 8.0


@dataclass(frozen=True)
class InterferenceFit:
    """Interference that was fitted to the traces of a job.

    Parameters
    ----------
    pressures : mapping of str to float
        Pressure of collectives while they transfer, by `kernel_label`; of copies by `COPY`, and of kernels that fill
        the device by `KERNEL`.
    classes : mapping of str to float
        Sensitivity of kernels by class, without the latencies of short kernels.
    kernels : mapping of str to float
        Factor on the sensitivity and on the cost of a further round of single kernels, by `kernel_label`.
    device : str
        Device that was measured; empty if the trace does not name it.
    """

    pressures: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    classes: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
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
    """Return a copy of `graph` with the pressure, the sensitivity and the cost of a further round of every task.

    - Pressure: collectives have `pressure_collective` times the share of the compute units that they hold. If the trace
      does not show when a collective waits, it has the mean pressure of its `transfer_share`.
    - Sensitivity: kernels have 1, and `latency_sensitivity` times 3 us over their duration on top. So short kernels are
      slowed by a fixed time: they mostly wait for memory and for their own launch.
    - Lacking units: a kernel of one round with at most two workgroups on a unit pays `extra_round_cost` for a further
      round. A kernel of several rounds loses the share `lacking_units_cost` of the units of collectives.

    Parameters
    ----------
    graph : KernelGraph
        Graph with its waves and with the units that its tasks occupy.
    parameters : Parameters
        Parameters, with an `InterferenceFit` among their calibrations if there is one.
    """
    tasks, fit = graph.tasks, interference_of(parameters)
    is_kernel = (tasks.kind == TaskKind.KERNEL) & graph.on_device()
    is_collective = (tasks.kind == TaskKind.COLLECTIVE) & graph.on_device()
    transfers = transfer_share(graph, parameters)
    mean_share = transfers + (1.0 - transfers) * parameters["pressure_share_waiting"]
    assumed = parameters["pressure_collective"] * tasks.occupies
    of_collective = mean_share * _by_label(graph, fit.pressures, is_collective, assumed)
    pressure = np.where(is_collective, of_collective, 0.0)
    pressure = np.where(is_kernel, fit.pressures.get(KERNEL, 0.0) * tasks.occupies, pressure)
    is_copy = (tasks.kind == TaskKind.COPY) & graph.on_device()
    pressure = np.where(is_copy, fit.pressures.get(COPY, 0.0), pressure)
    factor = _by_label(graph, fit.kernels, is_kernel, np.ones(len(tasks)))
    of_class = np.array([fit.classes.get(name, 1.0) for name in (*CLASSES, "")])[tasks.class_]
    latency = parameters["latency_sensitivity"] * LATENCY_NS / np.maximum(tasks.duration_ns, 1.0)
    sensitivity = np.where(is_kernel, factor * (of_class + latency), 0.0)
    is_single = (tasks.waves > 0) & (tasks.waves <= 1)
    cost = np.where(is_single, parameters["extra_round_cost"], parameters["lacking_units_cost"])
    is_slowed = is_kernel & ~(is_single & (tasks.residency > _MOST_RESIDENT))
    extra_round = np.where(is_slowed, np.maximum(factor * cost, _LEAST_COST), 0.0)
    return graph.with_tasks(pressure=pressure, sensitivity=sensitivity, extra_round=extra_round)


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


def _by_label(graph: KernelGraph, fitted: Mapping[str, float], chosen: Bools, default: Floats) -> Floats:
    """Return the fitted value of each chosen task, and `default` for the others."""
    if not fitted:
        return default
    values = default.copy()
    rows = np.flatnonzero(chosen)
    labels, index = task_labels(graph, rows)
    known = np.array([fitted.get(label, np.nan) for label in labels])[index] if labels else np.zeros(0)
    values[rows] = np.where(np.isnan(known), values[rows], known)
    return values


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
    return graph.with_tasks(demand=demand, pressure=np.where(known, 0.0, tasks.pressure))
