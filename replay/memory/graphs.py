"""Kernels of a graph under another memory system: other policy, cache sizes, address mapping, or device.

`with_memory` exchanges the simulated time of each kernel whose operator is known. The rest of its traced time, and
kernels of unknown operators, stay. `with_hardware` keeps these choices when a graph moves to another device: it undoes
them on the old device, and applies them on the new one.
"""

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import numpy as np

from profilers.devices.catalogue import DTYPES, Device
from profilers.trace.arrays import Bools, Floats, Ints
from replay.calibration.parameters import Parameters
from replay.costs.demand import with_demands
from replay.costs.hardware import with_hardware as with_other_hardware
from replay.costs.hardware import with_same_engines
from replay.costs.kernels.predictor import KernelCalibration
from replay.costs.retiming import above_floor, capability, source_device, streaming_tasks
from replay.graph.graph import Basis, KernelGraph, TaskKind
from replay.graph.operators import Operator
from replay.memory.policies import find_policy
from replay.memory.simulation import KernelMemory, simulate
from replay.memory.streams import stream_of
from replay.memory.system import memory_system

#: Choices on `Hardware.memory`: the policy, the address mapping, and factors of the caches' sizes. `TIMES` is
#: ``"simulated"`` if demands, and times on other devices, come from simulation.
POLICY, MAPPING, CACHES, TIMES = "policy", "mapping", ("l1", "l2", "llc"), "times"
#: The policy of devices as they are: caches keep loads and stores.
DEVICE_POLICY = "Device"
#: Choices that change nothing, apart from factors of 1.
_AS_IT_IS = {POLICY: DEVICE_POLICY}
#: Largest share of accesses that caches serve: the engine takes shares below 1.
_MAX_HIT_SHARE = 0.99
#: Operand of a product that holds the weights: `aten::linear` and `aten::addmm` multiply the data by them.
_WEIGHTS = "B"
_TYPES = tuple(DTYPES)
_FP32 = _TYPES.index("fp32")


@dataclass(frozen=True)
class SimulatedKernels:
    """What simulation says of the kernels of a graph. All are arrays of shape (n_tasks,).

    Parameters
    ----------
    time_ns : array of float64
        Simulated time; NaN for tasks whose operator or shape is unknown.
    error : array of float64
        Stated error of the simulated time, as a share of it.
    footprint, hit_share : array of float64
        Bytes of the operands, and share of the accesses behind the L1 that caches serve.
    """

    time_ns: Floats
    error: Floats
    footprint: Floats
    hit_share: Floats

    @property
    def known(self) -> Bools:
        """Mask of the kernels that were simulated."""
        return ~np.isnan(self.time_ns)


def simulated_kernels(graph: KernelGraph, parameters: Parameters) -> SimulatedKernels:
    """Simulate each kernel of known operator on the hardware of the graph; equal kernels are simulated once.

    The parameters and errors are those of `memory_of_kernels`.
    """
    rows, results, number = memory_of_kernels(graph, parameters)
    columns = np.full((4, len(graph.tasks)), np.nan)
    columns[:, rows] = np.array([_figures(result) for result in results]).reshape(-1, 4)[number].T
    return SimulatedKernels(*columns)


def memory_of_kernels(graph: KernelGraph, parameters: Parameters) -> tuple[Ints, list[KernelMemory | None], Ints]:
    """Return the kernels of known operator, the simulations of the distinct ones, and the simulation of each kernel.

    Parameters
    ----------
    graph : KernelGraph
        Graph on a known device.
    parameters : Parameters
        With a calibration of kernels, which gives the rates of arithmetic, and `memory_simulation_accesses`.

    Returns
    -------
    array of int64, list of KernelMemory, array of int64
        Tasks; simulations, None for an operator whose accesses are unknown; number of the simulation of each task.

    Raises
    ------
    InvalidInputError
        The trace does not name its device, or its caches are unknown.
    """
    tasks, device = graph.tasks, source_device(graph)
    operator = known_operators(graph)
    rows = np.flatnonzero((tasks.kind == TaskKind.KERNEL) & graph.on_device() & (operator >= 0))
    dtype = np.where(tasks.dtype[rows] >= 0, tasks.dtype[rows], _FP32)
    warm = _reads_warm_weights(graph, rows, operator[rows])
    keys = np.stack([operator[rows], dtype, tasks.workgroups[rows].astype(np.int64), warm, tasks.name[rows]])
    distinct, number = np.unique(keys, axis=1, return_inverse=True)
    fits, settings = parameters.calibration(KernelCalibration), graph.hardware.memory
    accesses = int(parameters["memory_simulation_accesses"])
    kernels = [
        _Kernel(graph.operators[kind], workgroups, graph.names[name], device, bool(is_warm))
        for kind, _, workgroups, is_warm, name in distinct.T.tolist()
    ]
    rates = [capability(device, _TYPES[type_], fits).flops_per_s for type_ in distinct[1].tolist()]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(partial(_simulated, settings=settings, accesses=accesses), kernels, rates))
    return rows, results, number.reshape(-1)


def known_operators(graph: KernelGraph) -> Ints:
    """Return the operator whose data each task moves, as an index into the operators of the graph; -1 if unknown."""
    return np.where(graph.tasks.operator >= 0, graph.tasks.operator, graph.tasks.memory_operator)


def _reads_warm_weights(graph: KernelGraph, rows: Ints, operator: Ints) -> Bools:
    """Return the mask of products whose weights the last time step of a recurrent network has left in the caches.

    They are those of as many rows as the last cell on their stream has sequences, if an equal product ran before that
    cell and after the cell before it.
    """
    kinds = np.array([each.kind for each in graph.operators] or [""])
    count = np.array([_sequences(each) for each in graph.operators] or [-1], dtype=np.int64)
    lane, start = graph.tasks.lane[rows], np.nan_to_num(graph.tasks.measured_start_ns[rows], nan=np.inf)
    order = np.lexsort((rows, start, lane))
    kind, sequences, is_cell = kinds[operator[order]], count[operator[order]], kinds[operator[order]] == "rnn"
    cells = np.cumsum(is_cell)
    last = np.maximum.accumulate(np.where(is_cell, np.arange(len(order)), -1))
    follows = (kind == "matmul") & (last >= 0) & (lane[order][last] == lane[order]) & (sequences[last] == sequences)
    alike = np.lexsort((np.arange(len(order)), operator[order], lane[order]))
    same = (np.diff(operator[order][alike]) == 0) & (np.diff(lane[order][alike]) == 0)
    again = np.zeros(len(order), dtype=bool)
    again[alike[1:]] = same & (np.diff(cells[alike]) == 1)
    result = np.zeros(len(rows), dtype=bool)
    result[order] = follows & again
    return result


def _sequences(operator: Operator) -> int:
    """Return the sequences of a recurrent cell, or the rows of a product; -1 for other operators."""
    if operator.kind == "rnn" and operator.geometry:
        return operator.geometry[0]
    return operator.dims[1] if operator.kind == "matmul" else -1


def _figures(result: KernelMemory | None) -> tuple[float, float, float, float]:
    if result is None:
        return (np.nan,) * 4
    return 1e9 * result.seconds, result.error, float(result.footprint), result.hit_share


@dataclass(frozen=True)
class _Kernel:
    """A kernel on a device: its operator, grid and name, and whether its weights are in the caches when it starts."""

    operator: Operator
    workgroups: int
    name: str
    device: Device
    is_warm: bool


@lru_cache(8192)
def _simulated(
    kernel: _Kernel, rate: float, *, settings: tuple[tuple[str, str | float], ...], accesses: int
) -> KernelMemory | None:
    """Return the simulation of a kernel; None if its operator has no stream."""
    units = kernel.device.compute_units
    stream = stream_of(kernel.operator, workgroups=kernel.workgroups, units=units, kernel=kernel.name)
    if stream is None:
        return None
    chosen, system = dict(settings), memory_system(kernel.device)
    for cache in CACHES:
        system = system.scaled(cache, float(chosen[cache])) if cache in chosen else system
    if MAPPING in chosen:
        system = replace(system, dram=system.dram.with_mapping(str(chosen[MAPPING])))
    policy = find_policy(*str(chosen.get(POLICY, DEVICE_POLICY)).split("\n"))
    warm = (_WEIGHTS,) if kernel.is_warm else ()
    return simulate([stream], system, policy, flops_per_s=rate, most_accesses=accesses, warm=warm)


def with_memory(graph: KernelGraph, changes: Mapping[str, str | float], parameters: Parameters) -> KernelGraph:
    """Return a graph whose kernels run under another policy, mapping, or cache sizes.

    Parameters
    ----------
    graph : KernelGraph
        Graph on a known device.
    changes : mapping of str to str or float
        New policy and mapping, and factors by which the size of a cache changes again.
    parameters : Parameters
        With a calibration of kernels, and `memory_simulation_share`.
    """
    settings = dict(graph.hardware.memory)
    for name, value in changes.items():
        settings[name] = float(settings.get(name, 1.0)) * value if isinstance(value, float) else value
    kept = {name: value for name, value in settings.items() if value != _AS_IT_IS.get(name, 1.0)}
    return with_settings(graph, tuple(sorted(kept.items())), parameters)


def with_settings(
    graph: KernelGraph, settings: tuple[tuple[str, str | float], ...], parameters: Parameters
) -> KernelGraph:
    """Return a graph whose hardware has these settings, with the simulated times of its kernels exchanged."""
    if settings == graph.hardware.memory:
        return graph
    changed = replace(graph, hardware=replace(graph.hardware, memory=settings))
    before, after = simulated_kernels(graph, parameters), simulated_kernels(changed, parameters)
    known = before.known & after.known
    ratio = (after.time_ns[known] / before.time_ns[known]) ** parameters["memory_simulation_share"]
    duration = graph.tasks.duration_ns.copy()
    floors = before.time_ns[known], before.time_ns[known] * ratio
    duration[known] = above_floor(duration[known], floors, 1.0)
    basis = np.where(duration != graph.tasks.duration_ns, int(Basis.MODELLED), 0)
    retimed = changed.with_tasks(duration_ns=duration, basis=np.maximum(graph.tasks.basis, basis))
    demanding = with_same_engines(graph, with_demands(retimed, parameters))
    return _with_simulated_demands(demanding, after) if dict(settings).get(TIMES) else demanding


def _with_simulated_demands(graph: KernelGraph, kernels: SimulatedKernels) -> KernelGraph:
    """Return a graph whose known kernels share caches by their simulated footprint and hit share."""
    tasks, known = graph.tasks, kernels.known & (graph.tasks.footprint > 0)
    system = memory_system(source_device(graph))
    last = system.llc.size if system.llc else system.l2.size * system.dies
    footprint = np.where(known, np.minimum(kernels.footprint / last, 1.0), tasks.footprint)
    hit_share = np.where(known, np.minimum(kernels.hit_share, _MAX_HIT_SHARE), tasks.hit_share)
    return graph.with_tasks(footprint=footprint, hit_share=hit_share)


def with_hardware(
    graph: KernelGraph,
    parameters: Parameters,
    *,
    device: Device | None = None,
    factors: Mapping[str, float] | None = None,
) -> KernelGraph:
    """Return a graph on another device, or with factors on figures of its device, with its choices on the memory.

    Parameters and errors as of `replay.costs.hardware.with_hardware`.
    """
    settings = graph.hardware.memory
    plain = with_settings(graph, (), parameters)
    moved = with_other_hardware(plain, parameters, device=device, factors=factors)
    if dict(settings).get(TIMES):
        moved = _with_simulated_times(plain, moved, parameters)
    return with_settings(moved, settings, parameters)


def _with_simulated_times(old: KernelGraph, moved: KernelGraph, parameters: Parameters) -> KernelGraph:
    """Return a moved graph whose known kernels, if bound by memory, take the ratio of their simulated times."""
    before, after = simulated_kernels(old, parameters), simulated_kernels(moved, parameters)
    known = before.known & after.known & streaming_tasks(old)
    duration = moved.tasks.duration_ns.copy()
    floors = before.time_ns[known], after.time_ns[known]
    duration[known] = above_floor(old.tasks.duration_ns[known], floors, 1.0)
    return moved.with_tasks(duration_ns=duration)
