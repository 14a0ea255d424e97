"""Recorded scenarios as graphs, with the demands that projections use, and how long the engine says that they take."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from profilers.errors import InvalidInputError
from profilers.kernels import CLASSES
from replay.assembly import Assembly
from replay.contention.ceilings import Ceilings, ceilings_of, hardware_of_recording
from replay.contention.recording import KINDS, ContentionRecording, RecordedMember, RecordedWork
from replay.demand import dispatch_of, with_demands
from replay.engine import simulate
from replay.graph import KernelGraph, TaskKind
from replay.operators.operator import Operator
from replay.parameters import Parameters
from replay.policy import SharingPolicy

__all__ = ["ScenarioModel", "scenario_model"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
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
