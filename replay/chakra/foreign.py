"""Chakra files of other tools as a graph: nodes, durations, dependencies, and ranks that meet."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from profilers.chakra.nodes import LOAD, METADATA, STORE, Node
from profilers.errors import InvalidInputError
from profilers.kernels import CLASSES, classify
from profilers.kineto.numbers import whole
from replay.chakra.draft_rows import DraftRows
from replay.chakra.files import RankFile
from replay.chakra.partners import Part, collective_of, communicates, in_order, partners
from replay.demand import isolate
from replay.engine import simulate
from replay.graph import COLLECTIVE_KINDS, EdgeKind, Hardware, KernelGraph, Lane, TaskKind
from replay.parameters import load_parameters

__all__ = ["foreign_graph"]

_CLASS = {name: index for index, name in enumerate(CLASSES)}
#: Nodes that say something of the trace and take no time.
_SAYING = (0, METADATA)
#: Nothing lasts longer (us): 35 years.
_LONGEST_US = 1 << 50


def foreign_graph(files: Sequence[RankFile], hardware: Hardware) -> KernelGraph:
    """Return the graph of the files of other tools.

    A node of the host is a call on its thread (``tid``), any other a kernel, copy or collective on its stream. A node
    waits for its ``data_deps``; a caller (``ctrl_deps``) is around its call, not before it, and is left out. Demands
    are those of kernels whose grid is unknown.

    Raises
    ------
    InvalidInputError
        Ranks are not in the files' names or twice there; communication has no duration, or nothing has; a rank has no
        part in a collective of its group; nodes wait for each other in a circle.
    """
    ranks = _by_rank(files)
    for file in files:
        _check_durations(file)
    meetings = partners({rank: file.nodes for rank, file in ranks.items()})
    origin = _origin(files)
    reading = _Reading(DraftRows(), origin, _meeting_times(meetings, origin), {}, Counter())
    for rank, file in ranks.items():
        _add(reading, rank, file.nodes)
    for parts in meetings:
        _meet(reading, parts)
    graph = reading.draft.freeze(hardware)
    if origin is None:
        nowhere = np.full(len(graph.tasks), np.nan)
        graph = replace(graph.with_tasks(measured_start_ns=nowhere, measured_end_ns=nowhere), measured_ns=0.0)
    simulate(graph)  # names what waits for itself
    return isolate(graph.with_notes(_notes(reading)), load_parameters())


class _Placed(NamedTuple):
    """The tasks of a node: the one that waits, the one that works."""

    begin: int
    done: int
    lane: Lane


@dataclass(frozen=True)
class _Reading:
    """A graph under construction.

    Parameters
    ----------
    draft : DraftRows
    origin : int, optional
        The first start, in us; None where not every node that takes time says one.
    met : mapping of (rank, node) to float, optional
        When the ranks of a communication have met, ns; None where nobody says.
    placed : dict of (rank, node) to _Placed
    counts : Counter
        What was left out.
    """

    draft: DraftRows
    origin: int | None
    met: Mapping[tuple[int, int], float | None]
    placed: dict[tuple[int, int], _Placed]
    counts: Counter[str]

    def start_ns(self, node: Node) -> float:
        """Return the start of a node, from the origin."""
        return _start_ns(node, self.origin)


def _by_rank(files: Sequence[RankFile]) -> dict[int, RankFile]:
    if len(files) == 1:
        return {files[0].rank or 0: files[0]}
    found: dict[int, RankFile] = {}
    for file in files:
        if file.rank is None or found.setdefault(file.rank, file) is not file:
            raise InvalidInputError(f"{file.path}: its name must say a rank of its own, as in NAME.RANK.et")
    return dict(sorted(found.items()))


def _check_durations(file: RankFile) -> None:
    if not any(node.duration_us for node in file.nodes):
        raise InvalidInputError(f"{file.path}: no node has a duration_micros; a simulator has to time it first")
    for node in file.nodes:
        if node.duration_us and node.duration_us > _LONGEST_US:
            raise InvalidInputError(f"{file.path}: node {node.id} lasts {node.duration_us} us, which cannot be")
        if communicates(node) and not node.duration_us:
            raise InvalidInputError(
                f"{file.path}: node {node.id} ({node.name[:60]}) communicates and has no duration_micros, which its "
                "simulator works out; write what replay.collectives.predict_collective says for its comm_size"
            )


def _origin(files: Sequence[RankFile]) -> int | None:
    starts = [node.start_us for file in files for node in file.nodes if node.duration_us]
    known = [start for start in starts if start is not None and start <= _LONGEST_US]
    return min(known) if len(known) == len(starts) else None


def _start_ns(node: Node, origin: int | None) -> float:
    return 0.0 if origin is None or node.start_us is None else max(1000.0 * (node.start_us - origin), 0.0)


def _end_ns(node: Node, origin: int | None) -> float:
    return _start_ns(node, origin) + 1000.0 * (node.duration_us or 0)


def _meeting_times(meetings: Sequence[Sequence[Part]], origin: int | None) -> dict[tuple[int, int], float | None]:
    """Return when the ranks of each part's communication met, where starts and ends say that they did."""
    found: dict[tuple[int, int], float | None] = {}
    for parts in meetings:
        met = max(_start_ns(node, origin) for _, node in parts)
        known = origin is not None and met < min(_end_ns(node, origin) for _, node in parts)
        found |= {(rank, node.id): met if known else None for rank, node in parts}
    return found


def _add(reading: _Reading, rank: int, nodes: Sequence[Node]) -> None:
    """Append the tasks of a rank and what they wait for; a Python loop over nodes, about 10 us each."""
    for node in in_order(nodes):
        reading.placed[rank, node.id] = _place(reading, rank, node)
    for node in nodes:
        own = reading.placed[rank, node.id]
        for before in dict.fromkeys(node.data_deps):
            other = reading.placed[rank, before]
            reading.draft.edge(other.done, own.begin, _kind(other.lane, own.lane))
        reading.counts["ctrl_deps (callers, which are around and not before)"] += len(node.ctrl_deps)


def _kind(before: Lane, after: Lane) -> EdgeKind:
    """Return why work of one lane would wait for that of another."""
    if before.device is None:
        return EdgeKind.LAUNCH if after.device is not None else EdgeKind.HOST if before == after else EdgeKind.HANDOFF
    if after.device is None:
        return EdgeKind.SYNC
    return EdgeKind.STREAM if before == after else EdgeKind.WAIT


def _place(reading: _Reading, rank: int, node: Node) -> _Placed:
    at, draft = node.attributes, reading.draft
    host = node.type in _SAYING or at.get("is_cpu_op") is True
    number = whole(at.get("tid")) if host else whole(at.get("stream", at.get("tid")))
    lane = Lane(rank, None if host else _small(at.get("device")), _small(number))
    kind, row = TaskKind.HOST if host else TaskKind.KERNEL, {"event": _small(node.id)}
    if not host:
        kind, about = _work(node)
        row |= about
        reading.counts["durations of work of the device (0 us)"] += not node.duration_us
    start, end = reading.start_ns(node), _end_ns(node, reading.origin)
    begin = None
    if (rank, node.id) in reading.met:
        begin = draft.task(TaskKind.MARK, "arrives", lane, times=(start, start), row={"event": row["event"]})
        met = reading.met[rank, node.id]
        # What a rank waited for the others is not the collective's own time.
        start = start if met is None else met
    unknown = node.start_us is None and not node.duration_us
    done = draft.task(kind, node.name, lane, times=None if unknown else (start, end), row=row)
    return _Placed(done if begin is None else begin, done, lane)


def _work(node: Node) -> tuple[TaskKind, dict[str, int]]:
    """Return what a node of the device is, and what the graph notes of it."""
    at = node.attributes
    if communicates(node):
        known = {"collective": COLLECTIVE_KINDS.index(collective_of(node)), "bytes": _small(at.get("comm_size"))}
        return TaskKind.COLLECTIVE, {**known, "class_": _CLASS[classify(node.name)]}
    if node.type in (LOAD, STORE):
        return TaskKind.COPY, {"bytes": _small(at.get("tensor_size"))}
    return TaskKind.KERNEL, {"class_": _CLASS[classify(node.name)]}


def _small(value: object) -> int:
    """Return a number that fits a column, else 0."""
    number = whole(value)
    return number if number is not None and 0 <= number < 1 << 62 else 0


def _meet(reading: _Reading, parts: Sequence[Part]) -> None:
    """Let the parts of a communication start when all have arrived."""
    rank, node = parts[0]
    met = reading.met[rank, node.id]
    times = None if met is None else (met, met)
    meeting = reading.draft.task(TaskKind.MARK, "all ranks have arrived", None, times=times, row={})
    for rank, node in parts:
        placed = reading.placed[rank, node.id]
        reading.draft.edge(placed.begin, meeting, EdgeKind.RENDEZVOUS)
        reading.draft.edge(meeting, placed.done, EdgeKind.RENDEZVOUS)


def _notes(reading: _Reading) -> list[str]:
    told = [f"Chakra files: without {count} {what}" for what, count in sorted(reading.counts.items()) if count]
    if reading.origin is None:
        told.append("Chakra files: nodes say no start_time_micros, so that nothing is measured")
    return told
