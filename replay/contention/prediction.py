"""Predictions of a recording: each scenario as a graph, replayed as projections are.

`scenario_model` builds one graph per partition of the device; its lineups (works side by side) run on separate devices
of that graph. The hardware comes from the catalogue, or from `Ceilings`: the best rates that single works reached
alone. `mechanism_of` names the resource that the members of a scenario compete for, from what they compute and move.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from profilers.devices.catalogue import Device, RatedFigure, find_device
from profilers.errors import InvalidInputError, NotFoundError
from profilers.trace.arrays import Floats, Ints
from profilers.trace.kernels import CLASSES
from replay.calibration.parameters import Parameters
from replay.contention.recording import KINDS, ContentionRecording, RecordedMember, RecordedScenario, RecordedTask
from replay.costs.demand import dispatch_of, with_demands
from replay.costs.occupancy import Workgroup, unit_shares, workgroup_of_name
from replay.engine.engine import simulate
from replay.graph.assembly import Assembly
from replay.graph.graph import UNIT_COLUMNS, Hardware, KernelGraph, SharingPolicy, TaskKind, hardware_named
from replay.graph.operators import Operator

#: Share of its peak that a memory delivers at best. It estimates the peak of a device that the catalogue lacks.
_BEST_MEMORY_SHARE = 0.95
#: A working set of more than this many caches does not gain from the cache.
_CACHES_WITHOUT_GAIN = 4
#: Cache size to assume if it is unknown: shorter works do not show a bandwidth.
_ASSUMED_CACHE_BYTES = 2**26
_DIRECTIONS = ("h2d", "d2h")


@dataclass(frozen=True)
class Ceilings:
    """Best rates that single works reached alone; 0 if no work shows the rate.

    Parameters
    ----------
    memory_bytes_per_s : float
        Rate of works that compute next to nothing and do not gain from the cache.
    flops_per_s : mapping of str to float
        FLOP/s by data type.
    host_link_bytes_per_s : (float, float)
        Rates of the host link into the device and out of it.
    """

    memory_bytes_per_s: float
    flops_per_s: Mapping[str, float]
    host_link_bytes_per_s: tuple[float, float]

    def bound_by_memory(self, work: RecordedTask) -> bool:
        """Tell whether the bytes of a work take longer than its FLOP at these rates.

        Examples
        --------
        >>> ceilings = Ceilings(1e12, {"bf16": 1e15}, (0.0, 0.0))
        >>> ceilings.bound_by_memory(RecordedTask("a", "gemm", "bf16", 8, 8, 8, 10**9, 10**5, 0))
        False
        """
        rate = self.flops_per_s.get(work.dtype, 0.0)
        if not work.flops or not rate or not self.memory_bytes_per_s:
            return not work.flops
        return work.bytes_moved / self.memory_bytes_per_s > work.flops / rate


def ceilings_of(recording: ContentionRecording) -> Ceilings:
    """Return the best rates that single works of a recording reached alone, on all compute units."""
    cache = recording.device.l2_bytes or _ASSUMED_CACHE_BYTES
    memory, flops, link = 0.0, dict[str, float](), [0.0, 0.0]
    for name in sorted({work for work, units, _ in recording.alone if not units}):
        work = recording.works[name]
        seconds = recording.alone_ns(name) / 1e9
        if work.working_set_bytes > _CACHES_WITHOUT_GAIN * cache and not work.host_bytes and not work.flops:
            memory = max(memory, work.bytes_moved / seconds)
        if work.flops:
            flops[work.dtype] = max(flops.get(work.dtype, 0.0), work.flops / seconds)
        if work.host_bytes and work.direction in _DIRECTIONS:
            direction = _DIRECTIONS.index(work.direction)
            link[direction] = max(link[direction], work.host_bytes / seconds)
    return Ceilings(memory, MappingProxyType(flops), (link[0], link[1]))


def hardware_of_recording(recording: ContentionRecording, ceilings: Ceilings) -> Hardware:
    """Return the hardware of the catalogue, or one built from the recording if the catalogue lacks the device.

    Compute units and copy engines are those of the recording, if it tells them. The host link has its measured rates.
    """
    facts = recording.device
    try:
        device: Device | None = find_device(facts.name)
    except NotFoundError:
        device = None
    if device is not None and "memory_gbps" in device.figures:
        base = hardware_named(device, "recording")
    else:
        base = Hardware(_device_from(recording, ceilings), "recording")
    units = facts.compute_units or base.compute_units
    engines = float(facts.copy_engines or base.copy_engines)
    link = ceilings.host_link_bytes_per_s
    return replace(base, compute_units=units, copy_engines=engines, host_link_bytes_per_s=link)


def _device_from(recording: ContentionRecording, ceilings: Ceilings) -> Device | None:
    """Return a device with figures from the recording; None if no work shows the memory bandwidth."""
    if not ceilings.memory_bytes_per_s:
        return None
    facts = recording.device
    values = {
        "memory_gbps": (ceilings.memory_bytes_per_s / _BEST_MEMORY_SHARE / 1e9, "GB/s"),
        "l2_mb": ((facts.l2_bytes or 0) / 2**20, "MB"),
        "compute_units": (float(facts.compute_units or 0), "1"),
    }
    figures = {
        name: RatedFigure(value, unit, "a recording of works alone", "measured")
        for name, (value, unit) in values.items()
        if value
    }
    return Device(facts.name, facts.vendor, facts.architecture, (), figures)


#: Resources that members compete for, in the order of tables.
MECHANISMS = ("SM", "L2", "HBM", "copy engine", "host link")


def mechanism_of(recording: ContentionRecording, scenario: RecordedScenario, ceilings: Ceilings) -> str:
    """Return the resource that the members of a scenario compete for, one of `MECHANISMS`.

    - ``"host link"``: two or more members cross the host link in one direction.
    - ``"copy engine"``: a copy engine carries a member, which takes memory bandwidth from the others.
    - ``"L2"``: all members without host traffic are memory-bound, and the buffer of one fits the cache.
    - ``"HBM"``: all of them are memory-bound, or the demands for memory bandwidth exceed all of it.
    - ``"SM"``: at least one member is compute-bound, and memory bandwidth suffices for all.

    Parameters
    ----------
    recording : ContentionRecording
        Recording of the scenario.
    scenario : RecordedScenario
        Scenario to classify.
    ceilings : Ceilings
        Best rates of single works in the recording.
    """
    works = [recording.works[member.work] for member in scenario.members]
    directions = [work.direction for work in works if work.host_bytes]
    if any(directions.count(direction) > 1 for direction in directions):
        return "host link"
    if any(work.kind == "copy_engine" for work in works):
        return "copy engine"
    on_device = [work for work in works if not work.host_bytes]
    if len(on_device) > 1 and all(ceilings.bound_by_memory(work) for work in on_device):
        cache = recording.device.l2_bytes or 0
        return "L2" if any(work.working_set_bytes <= cache for work in on_device) else "HBM"
    demand = 0.0
    # A buffer that fits the cache takes no memory bandwidth.
    for work in works if ceilings.memory_bytes_per_s else []:
        if work.working_set_bytes > (recording.device.l2_bytes or 0):
            demand += work.bytes_moved / (recording.alone_ns(work.name) / 1e9) / ceilings.memory_bytes_per_s
    return "HBM" if demand > 1 else "SM"


#: Works that run side by side.
Lineup = Sequence[RecordedMember]
#: Directions of copies, as a profiler writes them in names.
_DIRECTION_NAMES = {"h2d": "HtoD", "d2h": "DtoH", "d2d": "DtoD", "": ""}
#: Kinds of operators by kind of work; all others are copies.
_OPERATORS = {
    "gemm": "matmul", "softmax": "softmax", "read": "reduction", "elementwise": "elementwise", "fma": "elementwise",
}  # fmt: skip
#: Smallest share of a partition, since shares are above zero.
_LEAST_PARTITION = 1e-10


@dataclass(frozen=True)
class ScenarioModel:
    """Lineups of one recording, ready to be predicted with any parameters.

    Parameters
    ----------
    batches : tuple of (KernelGraph, array of int64, array of int64)
        Lineups with the same partitions, each on a device of its own in one graph without demands; the row of the last
        task of each member; and the position of each member among the members of all lineups.
    lineup : array of int64
        Number of the lineup of each member, in the given order.
    count : int
        Number of lineups.
    """

    batches: tuple[tuple[KernelGraph, Ints, Ints], ...]
    lineup: Ints
    count: int

    def ends_ns(self, parameters: Parameters) -> Floats:
        """Return the predicted end of each member from the first start, in the given order."""
        ends = np.zeros(len(self.lineup))
        for graph, last, slots in self.batches:
            dispatched = replace(graph, policy=dispatch_of(graph.policy, parameters))
            ends[slots] = simulate(with_demands(dispatched, parameters))[1][last]
        return ends

    def times_ns(self, ends_ns: Floats) -> Floats:
        """Return the time until all members are done, per lineup."""
        times = np.zeros(self.count)
        np.maximum.at(times, self.lineup, ends_ns)
        return times


def scenario_model(recording: ContentionRecording, lineups: Sequence[Lineup]) -> ScenarioModel:
    """Build the graphs of lineups.

    A member is a chain of launches on its stream. Each launch takes its measured duration alone on all compute units.
    Streams start in the order of the members. A member with `units` runs on a partition of its own.

    Parameters
    ----------
    recording : ContentionRecording
        Recording with the works of the lineups.
    lineups : sequence of sequence of RecordedMember
        Members that run side by side, per lineup.

    Raises
    ------
    InvalidInputError
        Partitions are larger than the device.
    """
    hardware = hardware_of_recording(recording, ceilings_of(recording))
    by_partition: dict[tuple[int, ...], list[int]] = {}
    for number, lineup in enumerate(lineups):
        by_partition.setdefault(tuple(member.units for member in lineup if member.units), []).append(number)
    starts = np.cumsum([0, *(len(lineup) for lineup in lineups)])
    batches = []
    for units, numbers in by_partition.items():
        assembly, last, slots = Assembly(), [], []
        # Operators of this batch only: there may be as many batches as lineups.
        works = sorted({member.work for number in numbers for member in lineups[number]})
        operators = {name: i for i, name in enumerate(works)}
        for device, number in enumerate(numbers):
            first = min(member.lag_ns for member in lineups[number])
            partition = 0
            for stream, member in enumerate(lineups[number]):
                partition += bool(member.units)
                columns = _task_columns(recording, member, operators[member.work], hardware.device)
                columns["cu_mask"] = 1 << partition if member.units else -1
                columns["release_ns"] = np.where(np.arange(member.launches) == 0, member.lag_ns - first, 0.0)
                work = recording.works[member.work]
                # The name that a profiler would give the kernel or copy.
                kind = "Memcpy" if work.kind == "copy_engine" else work.kernel if work.kind == "gemm" else work.kind
                lane = assembly.lane(device=device, stream=stream)
                tasks = assembly.tasks(f"{kind} {_DIRECTION_NAMES[work.direction]}", lane, columns)
                assembly.chain(tasks)
                last.append(int(tasks[-1]))
                slots.append(int(starts[number]) + stream)
        graph = assembly.graph(hardware, _partition_policy(units, hardware.compute_units))
        graph = replace(graph, operators=tuple(_operator(recording.works[name]) for name in works))
        batches.append((graph, np.array(last), np.array(slots)))
    lineup_of = np.repeat(np.arange(len(lineups)), [len(lineup) for lineup in lineups])
    return ScenarioModel(tuple(batches), lineup_of, len(lineups))


def _partition_policy(units: tuple[int, ...], device_units: int) -> SharingPolicy:
    """Return a policy with the units of all other members first, then one partition per member with its own units."""
    shares = [count / device_units for count in units]
    rest = 1.0 - sum(shares)
    if rest < -_LEAST_PARTITION:
        raise InvalidInputError(f"members have {sum(units)} compute units of their own, the device has {device_units}")
    # A partition is above zero, even if its members reserve all units of the device.
    return SharingPolicy((max(rest, _LEAST_PARTITION), *shares) if shares else (1.0,))


def _task_columns(
    recording: ContentionRecording, member: RecordedMember, operator: int, device: Device | None
) -> dict[str, npt.ArrayLike]:
    """Return the task columns of a member's launches."""
    work = recording.works[member.work]
    launch_ns = recording.alone_ns(member.work, member.launches) / member.launches
    by_engine = work.kind == "copy_engine"
    return {
        "kind": int(TaskKind.COPY if by_engine else TaskKind.KERNEL),
        "class_": -1 if by_engine else CLASSES.index(KINDS[work.kind]),
        "duration_ns": np.full(member.launches, launch_ns),
        "workgroups": 0 if by_engine else work.workgroups,
        "bytes": work.host_bytes or (work.bytes_read if by_engine else 0),
        "operator": -1 if by_engine else operator,
        "priority": member.priority,
        **_unit_sizes(work, device),
    }


def _unit_sizes(work: RecordedTask, device: Device | None) -> dict[str, npt.ArrayLike]:
    """Return what a workgroup of a work takes of a compute unit; by the name of its kernel what was not recorded."""
    if work.kind == "copy_engine" or not work.workgroup_size:
        return {}
    known = workgroup_of_name(work.kernel if work.flops else work.kind, work.workgroup_size)
    if work.registers:
        known = Workgroup(work.workgroup_size, work.registers, work.shared_bytes)
    with suppress(InvalidInputError):  # the catalogue does not know how the compute units allocate
        sizes = unit_shares(device, known.threads, registers=known.registers, lds_bytes=known.lds_bytes)
        return dict(zip(UNIT_COLUMNS, map(float, sizes), strict=True))
    return {}


def _operator(work: RecordedTask) -> Operator:
    """Return the operator that a work computes."""
    kind = _OPERATORS.get(work.kind, "copy")
    dims = (1, work.m, work.n, work.k) if kind == "matmul" else (work.m, work.n)
    counts = float(work.flops), float(work.bytes_read), float(work.bytes_written)
    return Operator(kind, *counts, dims, work.element_bytes, work.working_set_bytes)
