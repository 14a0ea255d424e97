"""Kernels of a graph under another memory system: other policy, cache sizes, address mapping, or device.

`with_memory` exchanges the simulated time of each kernel whose operator is known. The rest of its traced time, and
kernels of unknown operators, stay. `MemorySettings` keeps these choices when a graph moves to another device: it undoes
them on the old device, and applies them on the new one.
"""

import math
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from profilers.devices.catalogue import DTYPES, Device
from profilers.trace.arrays import Bools, Floats, Ints
from replay.calibration.parameters import Parameters
from replay.costs.demand import MAX_HIT_SHARE, with_demands
from replay.costs.hardware import with_same_engines
from replay.costs.kernels.predictor import KernelCalibration
from replay.costs.retiming import capability, exchanged, source_device, streaming_tasks
from replay.graph.graph import Basis, KernelGraph, TaskKind
from replay.graph.operators import Operator
from replay.memory.accesses import Stream
from replay.memory.simulation import KernelMemory, simulate, simulate_each
from replay.memory.streams import stream_of, time_steps
from replay.memory.streams.operators import NAMED_KERNELS
from replay.memory.system import find_policy, memory_system

#: Choices on `Hardware.memory`: the policy, the address mapping, and factors of the caches' sizes. `TIMES` is
#: ``"simulated"`` if demands, and times on other devices, come from simulation.
POLICY, MAPPING, CACHES, TIMES = "policy", "mapping", ("l1", "l2", "llc"), "times"
#: The policy of devices as they are: caches keep loads and stores.
DEVICE_POLICY = "Device"
#: Simulated over traced time, or the reverse, beyond which a kernel keeps its traced time. Chosen: of
#: a job on an H100, kernels of half of the simulated time are beyond, at 0.13 to 20 times their traced time.
MOST_APART = 1.5
#: Choices that change nothing, apart from factors of 1.
_DEFAULTS = {POLICY: DEVICE_POLICY}
_TYPES = tuple(DTYPES)
_FP32 = _TYPES.index("fp32")


@dataclass(frozen=True)
class SimulatedTasks:
    """Simulation of the kernels among the tasks of a graph: arrays of shape (n_tasks,).

    Parameters
    ----------
    time_ns : array of float64
        Simulated time; NaN for tasks whose operator or shape is unknown.
    error : array of float64
        Stated error of the simulated time, as a share of it.
    footprint, hit_share : array of float64
        Bytes of the operands, and share of the accesses behind the L1 that caches serve.
    in_step : array of bool
        Whether the kernel finds in the caches what an earlier time step of a recurrent network left there.
    """

    time_ns: Floats
    error: Floats
    footprint: Floats
    hit_share: Floats
    in_step: Bools

    @property
    def known(self) -> Bools:
        """Mask of the kernels that were simulated."""
        return ~np.isnan(self.time_ns)

    def near(self, traced_ns: Floats) -> Bools:
        """Return a mask of the kernels whose simulated time is known and within a factor of 1.5 of the traced one."""
        with np.errstate(divide="ignore", invalid="ignore"):
            apart = np.abs(np.log(self.time_ns / traced_ns))
        return (apart <= math.log(MOST_APART)) & (self.error <= MOST_APART - 1)


def simulated_kernels(graph: KernelGraph, parameters: Parameters) -> SimulatedTasks:
    """Simulate each kernel of known operator on the hardware of the graph; equal kernels are simulated once.

    The parameters and errors are those of `memory_of_kernels`.
    """
    memories = memory_of_kernels(graph, parameters)
    columns, in_step = np.full((4, len(graph.tasks)), np.nan), np.zeros(len(graph.tasks), dtype=bool)
    figures = np.array([_figures(result) for result in memories.results]).reshape(-1, 4)
    columns[:, memories.tasks], in_step[memories.tasks] = figures[memories.number].T, memories.in_step
    time_ns, error, footprint, hit_share = columns
    return SimulatedTasks(time_ns, error, footprint, hit_share, in_step)


class KernelMemories(NamedTuple):
    """Simulations of the kernels of a graph.

    Attributes
    ----------
    tasks : array of int64, shape (n,)
        Kernels of known operator.
    results : list of KernelMemory or None
        Simulations of the distinct kernels; None for an operator whose accesses are unknown.
    number : array of int64, shape (n,)
        Simulation of each task.
    in_step : array of bool, shape (n,)
        Whether a task is a later time step of a recurrent network.
    """

    tasks: Ints
    results: list[KernelMemory | None]
    number: Ints
    in_step: Bools


def memory_of_kernels(graph: KernelGraph, parameters: Parameters) -> KernelMemories:
    """Simulate the distinct kernels of known operator, those of time steps of recurrent networks with their cell.

    Parameters
    ----------
    graph : KernelGraph
        Graph on a known device.
    parameters : Parameters
        With a calibration of kernels, which gives the rates of arithmetic, and `memory_simulation_accesses`.

    Raises
    ------
    InvalidInputError
        The trace does not name its device, or its caches are unknown.
    """
    tasks, device = graph.tasks, source_device(graph)
    operator = known_operators(graph)
    rows = np.flatnonzero((tasks.kind == TaskKind.KERNEL) & graph.on_device() & (operator >= 0))
    dtype = np.where(tasks.dtype[rows] >= 0, tasks.dtype[rows], _FP32)
    kinds = np.array([operator.kind for operator in graph.operators] or [""])
    name = np.where(np.isin(kinds[operator[rows]], NAMED_KERNELS), tasks.name[rows], -1)
    keys = np.stack([operator[rows], dtype, tasks.workgroups[rows].astype(np.int64), name])
    distinct, number = np.unique(keys, axis=1, return_inverse=True)
    fits, number = parameters.calibration(KernelCalibration), number.reshape(-1)
    kernels = [
        _GraphKernel(
            graph.operators[kind],
            workgroups,
            graph.names[name] if name >= 0 else "",
            capability(device, _TYPES[type_], fits).flops_per_s,
        )
        for kind, type_, workgroups, name in distinct.T.tolist()
    ]
    partner = _partners(graph, rows, operator[rows])
    pairs, pair = np.unique(
        np.stack([number, np.where(partner >= 0, number[partner], -1)]), axis=1, return_inverse=True
    )
    simulator = _Simulator(device, settings_of(graph), int(parameters["memory_simulation_accesses"]))
    # A product and its cell are simulated together, a product first.
    cells = [kernel.operator.kind == "rnn" for kernel in kernels]
    groups = [(own,) if other < 0 else (other, own) if cells[own] else (own, other) for own, other in pairs.T.tolist()]
    distinct_groups = list(dict.fromkeys(groups))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        simulated = pool.map(simulator.results, [tuple(kernels[i] for i in group) for group in distinct_groups])
        by_group = dict(zip(distinct_groups, simulated, strict=True))
    results = [by_group[group][group.index(own)] for group, own in zip(groups, pairs[0].tolist(), strict=True)]
    return KernelMemories(rows, results, pair.reshape(-1), partner >= 0)


def known_operators(graph: KernelGraph) -> Ints:
    """Return the operator whose data each task moves, as an index into the operators of the graph; -1 if unknown."""
    return np.where(graph.tasks.operator >= 0, graph.tasks.operator, graph.tasks.memory_operator)


def _partners(graph: KernelGraph, rows: Ints, operator: Ints) -> Ints:
    """Return the other kernel of the time step of a recurrent network that a kernel is in, -1 for other kernels.

    A product is in a time step, with the last cell on its stream, if it has as many rows as the cell has sequences, and
    an equal product ran before that cell and after the cell before it. So its weights are those of the step before. A
    cell is in the time step of such a product if it follows the product, or if it follows none and precedes it.

    Returns
    -------
    array of int64, shape (n,)
        Positions in `rows`.
    """
    kinds = np.array([operator.kind for operator in graph.operators] or [""])
    count = np.array([_sequences(operator) for operator in graph.operators] or [-1], dtype=np.int64)
    lane, start = graph.tasks.lane[rows], np.nan_to_num(graph.tasks.measured_start_ns[rows], nan=np.inf)
    order = np.lexsort((rows, start, lane))
    lane, operator = lane[order], operator[order]
    position, is_cell = np.arange(len(order)), kinds[operator] == "rnn"
    last = np.maximum.accumulate(np.where(is_cell, position, -1))
    follows = (kinds[operator] == "matmul") & (last >= 0) & (lane[last] == lane)
    follows &= count[operator[last]] == count[operator]
    alike = np.lexsort((position, operator, lane))
    same = (np.diff(operator[alike]) == 0) & (np.diff(lane[alike]) == 0)
    follows[alike[:1]] = False
    follows[alike[1:]] &= same & (np.diff(np.cumsum(is_cell)[alike]) == 1)
    partner = np.where(follows, last, -1)
    before, after = np.maximum(position - 1, 0), np.minimum(position + 1, max(len(order) - 1, 0))
    similar = (kinds[operator[before]] == "matmul") & (count[operator[before]] == count[operator])
    behind = is_cell & similar & (lane[before] == lane)
    ahead = is_cell & ~behind & follows[after] & (lane[after] == lane)
    partner = np.where(behind & follows[before], before, np.where(ahead, after, partner))
    result = np.full(len(rows), -1)
    result[order] = np.where(partner >= 0, order[partner], -1)
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


class _GraphKernel(NamedTuple):
    """A kernel: its operator, grid and name, and the rate of its arithmetic."""

    operator: Operator
    workgroups: int
    name: str
    flops_per_s: float


@dataclass(frozen=True)
class _Simulator:
    """Simulates kernels on a device with choices on its memory; `accesses` as of `simulate`."""

    device: Device
    settings: tuple[tuple[str, str | float], ...]
    accesses: int

    @lru_cache(8192)  # noqa: B019 - few simulators, which are equal by their fields
    def results(self, kernels: tuple[_GraphKernel, ...]) -> list[KernelMemory] | list[None]:
        """Return the simulation of a kernel, or of the product and the cell of a time step; None if it is unknown."""
        streams = [stream for kernel in kernels if (stream := _stream_of(self.device, kernel)) is not None]
        if len(streams) < len(kernels):
            return [None] * len(kernels)
        chosen, system = dict(self.settings), memory_system(self.device)
        for cache in CACHES:
            system = system.scaled(cache, float(chosen[cache])) if cache in chosen else system
        if MAPPING in chosen:
            system = replace(system, dram=system.dram.with_mapping(str(chosen[MAPPING])))
        policy = find_policy(*str(chosen.get(POLICY, DEVICE_POLICY)).split("\n"))
        rate = kernels[0].flops_per_s
        if len(streams) == 1:
            return [simulate(streams, system, policy, flops_per_s=rate, most_accesses=self.accesses)]
        product, cell = streams
        return simulate_each(time_steps(product, cell), system, policy, flops_per_s=rate, most_accesses=self.accesses)[
            -2:
        ]


@lru_cache(8192)
def _stream_of(device: Device, kernel: _GraphKernel) -> Stream | None:
    """Return the stream of a kernel: the same object under every policy, so that its steps are probed once."""
    system = memory_system(device)
    return stream_of(kernel.operator, workgroups=kernel.workgroups, system=system, kernel=kernel.name)


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
    settings = dict(settings_of(graph))
    for name, value in changes.items():
        settings[name] = float(settings.get(name, 1.0)) * value if isinstance(value, float) else value
    kept = {name: value for name, value in settings.items() if value != _DEFAULTS.get(name, 1.0)}
    return with_settings(graph, tuple(sorted(kept.items())), parameters)


def with_settings(
    graph: KernelGraph, settings: tuple[tuple[str, str | float], ...], parameters: Parameters
) -> KernelGraph:
    """Return a graph whose hardware has these settings, with the simulated times of its kernels exchanged.

    A kernel whose simulation is not near its traced time keeps that: what caches do to it is not known.
    """
    if settings == settings_of(graph):
        return graph
    changed = _with_choices(graph, MemorySettings(settings) if settings else None)
    before, after = simulated_kernels(graph, parameters), simulated_kernels(changed, parameters)
    # What earlier settings changed is changed again; the others are near by the simulation of the device as it is.
    plain = before if not settings_of(graph) else simulated_kernels(_with_choices(graph, None), parameters)
    near = plain.near(graph.tasks.duration_ns) | ((graph.tasks.basis == Basis.MODELLED) & bool(settings_of(graph)))
    known = before.known & after.known & near
    ratio = (after.time_ns[known] / before.time_ns[known]) ** parameters["memory_simulation_share"]
    duration = graph.tasks.duration_ns.copy()
    duration[known] = exchanged(duration[known], before.time_ns[known], before.time_ns[known] * ratio)
    basis = np.where(duration != graph.tasks.duration_ns, int(Basis.MODELLED), 0)
    retimed = changed.with_tasks(duration_ns=duration, basis=np.maximum(graph.tasks.basis, basis))
    demanding = with_same_engines(graph, with_demands(retimed, parameters))
    return _with_simulated_demands(demanding, after) if dict(settings).get(TIMES) else demanding


def _with_choices(graph: KernelGraph, memory: "MemorySettings | None") -> KernelGraph:
    return replace(graph, hardware=replace(graph.hardware, memory=memory))


def _with_simulated_demands(graph: KernelGraph, kernels: SimulatedTasks) -> KernelGraph:
    """Return a graph whose known kernels share caches by their simulated footprint and hit share."""
    tasks, known = graph.tasks, kernels.known & (graph.tasks.footprint > 0)
    system = memory_system(source_device(graph))
    last = system.llc.size if system.llc else system.l2.size * system.dies
    footprint = np.where(known, np.minimum(kernels.footprint / last, 1.0), tasks.footprint)
    hit_share = np.where(known, np.minimum(kernels.hit_share, MAX_HIT_SHARE), tasks.hit_share)
    return graph.with_tasks(footprint=footprint, hit_share=hit_share)


@dataclass(frozen=True)
class MemorySettings:
    """Choices of what-ifs on caches and DRAM by their names, in the order of names: what `Hardware.memory` holds."""

    settings: tuple[tuple[str, str | float], ...]

    def moved(
        self, graph: KernelGraph, move: Callable[[KernelGraph], KernelGraph], parameters: Parameters
    ) -> KernelGraph:
        """Return a graph that `move` takes to other hardware, where these choices hold again."""
        plain = with_settings(graph, (), parameters)
        moved = move(plain)
        if dict(self.settings).get(TIMES):
            moved = _with_simulated_times(plain, moved, parameters)
        return with_settings(moved, self.settings, parameters)


def settings_of(graph: KernelGraph) -> tuple[tuple[str, str | float], ...]:
    """Return the choices of what-ifs on the memory of a graph's devices."""
    memory = graph.hardware.memory
    return memory.settings if isinstance(memory, MemorySettings) else ()


def _with_simulated_times(old: KernelGraph, moved: KernelGraph, parameters: Parameters) -> KernelGraph:
    """Return a moved graph whose known kernels, if bound by memory, take the ratio of their simulated times."""
    before, after = simulated_kernels(old, parameters), simulated_kernels(moved, parameters)
    known = before.known & after.known & streaming_tasks(old)
    duration = moved.tasks.duration_ns.copy()
    duration[known] = exchanged(old.tasks.duration_ns[known], before.time_ns[known], after.time_ns[known])
    return moved.with_tasks(duration_ns=duration)
