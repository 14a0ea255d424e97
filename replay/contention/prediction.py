"""Slowdowns that the engine predicts for a recording.

What a device was measured to reach with nothing beside it, and the hardware that predictions take from that.

What the members of a scenario fight for, told from what they compute and move rather than from labels.

Recorded scenarios as graphs, with the demands that projections use, and how long the engine says that they take.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from profilers.devices.catalogue import Device, Figure, find_device
from profilers.errors import InvalidInputError, NotFoundError
from profilers.trace.arrays import Floats, Ints
from profilers.trace.kernels import CLASSES
from replay.calibration.parameters import Parameters
from replay.contention.recording import KINDS, ContentionRecording, RecordedMember, RecordedScenario, RecordedWork
from replay.costs.demand import dispatch_of, with_demands
from replay.engine.engine import simulate
from replay.graph.assembly import Assembly
from replay.graph.graph import Hardware, KernelGraph, SharingPolicy, TaskKind, hardware_named
from replay.graph.operators import Operator

#: Of its peak, what a memory delivers at best: by which the peak of a device that no catalogue has is estimated.
_AT_BEST = 0.95
#: Times a cache, beyond which it is no help.
_BEYOND = 4
#: Works of less are too short to tell a bandwidth by, where nobody says how large the caches are.
_LARGE_BYTES = 2**26
_DIRECTIONS = ("h2d", "d2h")
#: Of the data sheet's peak; below that, works of the recording were never bound by memory.
_LEAST_SHARE = 0.2


@dataclass(frozen=True)
class Ceilings:
    """Best rates of single works, alone; 0 where no work of the recording could tell.

    Parameters
    ----------
    memory_bytes_per_s : float
        Of works that compute next to nothing and that no cache helps.
    flops_per_s : mapping of str to float
        By type.
    host_link_bytes_per_s : (float, float)
        Into the device, out of it.
    """

    memory_bytes_per_s: float
    flops_per_s: Mapping[str, float]
    host_link_bytes_per_s: tuple[float, float]

    def bound_by_memory(self, work: RecordedWork) -> bool:
        """Return whether a work's bytes take longer than its FLOP at these rates.

        Examples
        --------
        >>> ceilings = Ceilings(1e12, {"bf16": 1e15}, (0.0, 0.0))
        >>> ceilings.bound_by_memory(RecordedWork("a", "gemm", "bf16", 8, 8, 8, 10**9, 10**5, 0))
        False
        """
        rate = self.flops_per_s.get(work.dtype, 0.0)
        if not work.flops or not rate or not self.memory_bytes_per_s:
            return not work.flops
        return work.bytes_moved / self.memory_bytes_per_s > work.flops / rate


def ceilings_of(recording: ContentionRecording) -> Ceilings:
    """Return the best rates that single works of a recording reached alone, on all compute units."""
    cache = recording.device.l2_bytes or _LARGE_BYTES
    memory, flops, link = 0.0, dict[str, float](), [0.0, 0.0]
    for name in sorted({work for work, units, _ in recording.alone if not units}):
        work = recording.works[name]
        seconds = recording.alone_ns(name) / 1e9
        if work.working_set_bytes > _BEYOND * cache and not work.host_bytes and not work.flops:
            memory = max(memory, work.bytes_moved / seconds)
        if work.flops:
            flops[work.dtype] = max(flops.get(work.dtype, 0.0), work.flops / seconds)
        if work.host_bytes and work.direction in _DIRECTIONS:
            way = _DIRECTIONS.index(work.direction)
            link[way] = max(link[way], work.host_bytes / seconds)
    return Ceilings(memory, MappingProxyType(flops), (link[0], link[1]))


def hardware_of_recording(recording: ContentionRecording, ceilings: Ceilings) -> Hardware:
    """Return the catalogue's device where it knows the name, else one made of what the recording says.

    The link to the host is as fast as it was measured.
    """
    facts = recording.device
    base = _catalogued(recording)
    if base is None:
        base = Hardware(_made(recording, ceilings), "recording")
    units = facts.compute_units or base.compute_units
    engines = float(facts.copy_engines or base.copy_engines)
    link = ceilings.host_link_bytes_per_s
    return replace(base, compute_units=units, copy_engines=engines, host_link_bytes_per_s=link)


def _catalogued(recording: ContentionRecording) -> Hardware | None:
    try:
        device = find_device(recording.device.name)
    except NotFoundError:
        return None
    return hardware_named(device, "recording") if "memory_gbps" in device.figures else None


def _made(recording: ContentionRecording, ceilings: Ceilings) -> Device | None:
    if not ceilings.memory_bytes_per_s:
        return None
    facts = recording.device
    figures = {"memory_gbps": _figure(ceilings.memory_bytes_per_s / _AT_BEST / 1e9, "GB/s")}
    if facts.l2_bytes:
        figures["l2_mb"] = _figure(facts.l2_bytes / 2**20, "MB")
    if facts.compute_units:
        figures["compute_units"] = _figure(float(facts.compute_units), "1")
    return Device(facts.name, facts.vendor, facts.architecture, (), figures)


def _figure(value: float, unit: str) -> Figure:
    return Figure(value, unit, "a recording of works alone", "measured")


def as_measured(parameters: Parameters, hardware: Hardware, ceilings: Ceilings) -> Parameters:
    """Return parameters in which memory delivers what it was measured to deliver, rather than its data sheet's peak."""
    if hardware.device is None or not ceilings.memory_bytes_per_s:
        return parameters
    share = ceilings.memory_bytes_per_s / hardware.device.memory_bytes_per_s
    return parameters.with_values([("memory_efficiency_shared", min(share, 1.0))] if share >= _LEAST_SHARE else [])


#: In the order in which tables show them.
MECHANISMS = ("SM", "L2", "HBM", "copy engine", "host link")


def mechanism_of(recording: ContentionRecording, scenario: RecordedScenario, ceilings: Ceilings) -> str:
    """Return one of `MECHANISMS`.

    - ``"host link"``: two members or more cross the link to the host in one direction, whatever carries them.
    - ``"copy engine"``: a member is carried by an engine; what it takes from the others is memory bandwidth.
    - ``"L2"``: all others are bound by memory, and one of them goes over a buffer again that fits the cache.
    - ``"HBM"``: all are bound by memory, or they ask for more than all of its bandwidth together.
    - ``"SM"``: at least one is bound by arithmetic, and memory would do for all.

    Parameters
    ----------
    recording : ContentionRecording
    scenario : RecordedScenario
    ceilings : Ceilings
        Of the recording.
    """
    works = [recording.works[member.work] for member in scenario.members]
    ways = [work.direction for work in works if work.host_bytes]
    if any(ways.count(way) > 1 for way in ways):
        return "host link"
    if any(work.kind == "copy_engine" for work in works):
        return "copy engine"
    inside = [work for work in works if not work.host_bytes]
    if len(inside) > 1 and all(ceilings.bound_by_memory(work) for work in inside):
        cache = recording.device.l2_bytes or 0
        return "L2" if any(work.working_set_bytes <= cache for work in inside) else "HBM"
    asked = sum(_share_of_memory(recording, work, ceilings) for work in works)
    return "HBM" if asked > 1 else "SM"


def _share_of_memory(recording: ContentionRecording, work: RecordedWork, ceilings: Ceilings) -> float:
    """Return what of the measured bandwidth a work uses alone; none where its buffer fits the cache."""
    if not ceilings.memory_bytes_per_s or work.working_set_bytes <= (recording.device.l2_bytes or 0):
        return 0.0
    rate = work.bytes_moved / (recording.alone_ns(work.name) / 1e9)
    return rate / ceilings.memory_bytes_per_s


#: Works that run side by side.
Lineup = Sequence[RecordedMember]
#: What names say of the way of a transfer, as a profiler writes it.
_WAYS = {"h2d": "HtoD", "d2h": "DtoH", "d2d": "DtoD", "": ""}
_OPERATORS = {"gemm": "matmul", "softmax": "softmax", "read": "reduction", "elementwise": "elementwise"}
_LEAST_PART = 1e-10


@dataclass(frozen=True)
class _Batch:
    """Lineups that share a policy, each on a device of its own in one graph.

    Parameters
    ----------
    graph : KernelGraph
        Without demands.
    last : array of int64
        The last task of each member.
    slots : array of int64
        Where each member stands among all.
    """

    graph: KernelGraph
    last: Ints
    slots: Ints


@dataclass(frozen=True)
class ScenarioModel:
    """Lineups of one recording, ready to be predicted under any parameters.

    Parameters
    ----------
    batches : tuple of _Batch
    lineup : array of int64
        Of each member, in the order in which they were given: the number of its lineup.
    count : int
        Lineups.
    ceilings : Ceilings
    """

    batches: tuple[_Batch, ...]
    lineup: Ints
    count: int
    ceilings: Ceilings

    def ends_ns(self, parameters: Parameters) -> Floats:
        """Return when each member is done, in the order in which they were given, from the first start."""
        ends = np.zeros(len(self.lineup))
        for batch in self.batches:
            graph = replace(batch.graph, policy=dispatch_of(batch.graph.policy, parameters))
            ends[batch.slots] = simulate(with_demands(graph, parameters))[1][batch.last]
        return ends

    def times_ns(self, ends_ns: Floats) -> Floats:
        """Return when all members of each lineup are done."""
        times = np.zeros(self.count)
        np.maximum.at(times, self.lineup, ends_ns)
        return times


def scenario_model(recording: ContentionRecording, lineups: Sequence[Lineup]) -> ScenarioModel:
    """Return the graphs of lineups.

    A member is a chain of launches on its stream, each as long as it was measured alone on all compute units; the
    streams are let go in the order of the members. Whose `units` are given runs on a partition of its own.

    Raises
    ------
    InvalidInputError
        Partitions are larger than the device.
    """
    ceilings = ceilings_of(recording)
    hardware = hardware_of_recording(recording, ceilings)
    by_parts: dict[tuple[int, ...], list[int]] = {}
    for number, lineup in enumerate(lineups):
        by_parts.setdefault(tuple(member.units for member in lineup if member.units), []).append(number)
    starts = np.cumsum([0, *(len(lineup) for lineup in lineups)])
    batches = []
    for units, numbers in by_parts.items():
        work, last, slots = Assembly(), [], []
        # Of this batch only: there may be as many batches as lineups.
        used = sorted({member.work for number in numbers for member in lineups[number]})
        operators = {name: i for i, name in enumerate(used)}
        for device, number in enumerate(numbers):
            first = min(member.lag_ns for member in lineups[number])
            apart = 0
            for stream, member in enumerate(lineups[number]):
                apart += bool(member.units)
                columns = _columns(recording, member, operators[member.work])
                columns["cu_mask"] = 1 << apart if member.units else -1
                columns["release_ns"] = np.where(np.arange(member.launches) == 0, member.lag_ns - first, 0.0)
                lane = work.lane(device=device, stream=stream)
                tasks = work.tasks(_name(recording.works[member.work]), lane, columns)
                work.chain(tasks)
                last.append(int(tasks[-1]))
                slots.append(int(starts[number]) + stream)
        graph = work.graph(hardware, _policy(units, hardware.compute_units))
        graph = replace(graph, operators=tuple(_operator(recording.works[name]) for name in used))
        batches.append(_Batch(graph, np.array(last), np.array(slots)))
    of = np.repeat(np.arange(len(lineups)), [len(lineup) for lineup in lineups])
    return ScenarioModel(tuple(batches), of, len(lineups), ceilings)


def _policy(units: tuple[int, ...], whole: int) -> SharingPolicy:
    """Return partitions: first what is left for all, then one for each member that has its own."""
    parts = [one / whole for one in units]
    rest = 1.0 - sum(parts)
    if rest < -_LEAST_PART:
        raise InvalidInputError(f"{sum(units)} compute units set apart of {whole}")
    # Partitions are above zero; what no member may use is the least that can be.
    return SharingPolicy((1.0,) if not parts else (max(rest, _LEAST_PART), *parts))


def _columns(recording: ContentionRecording, member: RecordedMember, operator: int) -> dict[str, npt.ArrayLike]:
    work = recording.works[member.work]
    each = recording.alone_ns(member.work, member.launches) / member.launches
    by_engine = work.kind == "copy_engine"
    return {
        "kind": int(TaskKind.COPY if by_engine else TaskKind.KERNEL),
        "class_": -1 if by_engine else CLASSES.index(KINDS[work.kind]),
        "duration_ns": np.full(member.launches, each),
        "workgroups": 0 if by_engine else work.workgroups,
        "bytes": work.host_bytes or (work.bytes_read if by_engine else 0),
        "operator": -1 if by_engine else operator,
        "priority": member.priority,
    }


def _name(work: RecordedWork) -> str:
    return f"Memcpy {_WAYS[work.direction]}" if work.kind == "copy_engine" else f"{work.kind} {_WAYS[work.direction]}"


def _operator(work: RecordedWork) -> Operator:
    kind = _OPERATORS.get(work.kind, "copy")
    dims = (1, work.m, work.n, work.k) if kind == "matmul" else (work.m, work.n)
    return Operator(
        kind,
        float(work.flops),
        float(work.bytes_read),
        float(work.bytes_written),
        dims,
        work.element_bytes,
        work.working_set_bytes,
    )
