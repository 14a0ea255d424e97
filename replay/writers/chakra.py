"""A graph as Chakra execution traces (mlcommons/chakra, ``et_def.proto``): one file a rank, which ASTRA-sim runs.

ASTRA-sim asks the following of a file, and gets it. Its name ends in ``.RANK.et``. Ids are unique, and dependencies
neither lead out of the file nor form a circle. Durations are whole microseconds, and dependencies ``data_deps``, which
every feeder resolves. Communication is on the device, has a size, and is of a kind that the simulator knows. A process
group is a number, whose ranks stand in ``NAME.groups.json``.

`meetings_of` finds the collectives, sends and receives that a simulator can run. `order_nodes` turns tasks, lags and
releases into nodes. `write_chakra` writes them.
"""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
from google.protobuf.proto import serialize_length_prefixed

from profilers.errors import InvalidInputError
from profilers.files import written_whole
from profilers.readers.chakra.protobuf import (
    COLLECTIVE,
    COMPUTE,
    RECEIVE,
    SEND,
    MetadataMessage,
    NodeMessage,
    add_attribute,
)
from profilers.trace.arrays import Floats, Ints
from replay.engine.engine import simulate
from replay.graph.graph import COLLECTIVE_KINDS, EdgeKind, KernelGraph, TaskKind

#: ``comm_type`` of the collectives that ASTRA-sim knows; it stops at any other.
COMMUNICATION = {"all_reduce": 0, "all_gather": 2, "broadcast": 5, "all_to_all": 6, "reduce_scatter": 7}


@dataclass(frozen=True)
class Meetings:
    """Communication of a graph that a simulator can run.

    Parameters
    ----------
    mark : array of int64, one a task
        Mark at which the ranks of a collective meet; -1 for a task that meets no other.
    group : array of int64, one a task
        Number of the group of ranks, from 1; 0 for all ranks; -1 for a task that is no collective to a simulator.
    groups : tuple of tuple of int
        Ranks of the groups 1 and up.
    peer : array of int64, one a task
        Other rank of a send or receive; -1 for other tasks.
    sends : array of bool, one a task
        Whether the task is a send.
    """

    mark: Ints
    group: Ints
    groups: tuple[tuple[int, ...], ...]
    peer: Ints
    sends: npt.NDArray[np.bool_]


def ranks_of(graph: KernelGraph) -> Ints:
    """Return the rank of each task. A mark between ranks has that of the first task it waits for, else the lowest."""
    tasks, edges = graph.tasks, graph.edges
    of_lane = np.array([lane.rank for lane in graph.lanes], dtype=np.int64)
    of_device = np.array([rank for rank, _ in graph.devices], dtype=np.int64)
    rank = np.full(len(tasks), -1)
    device = tasks.device >= 0
    rank[device] = of_device[tasks.device[device]]
    laned = tasks.lane >= 0
    rank[laned] = of_lane[tasks.lane[laned]]
    into = np.flatnonzero((rank[edges.target] < 0) & (rank[edges.source] >= 0))[::-1]
    result = rank.copy()
    result[edges.target[into]] = rank[edges.source[into]]
    all_ranks = of_lane if len(of_lane) else of_device
    return np.where(result < 0, all_ranks.min() if len(all_ranks) else 0, result)


def meetings_of(graph: KernelGraph, rank: Ints) -> Meetings:
    """Return the communication of a graph that a simulator can run.

    A collective counts if ASTRA-sim knows its kind, its bytes are known, and all ranks of its group take part. Two
    transfers of one meeting are a send and a receive if their names tell which is which. Everything else is plain work
    of the device.
    """
    tasks = graph.tasks
    mark = _meeting_marks(graph)
    group, peer, sends = np.full(len(tasks), -1), np.full(len(tasks), -1), np.zeros(len(tasks), dtype=bool)
    can_communicate = (tasks.kind == TaskKind.COLLECTIVE) & (tasks.device >= 0) & (tasks.bytes > 0)
    is_known_kind = np.isin(tasks.collective, [COLLECTIVE_KINDS.index(name) for name in COMMUNICATION])
    everyone = tuple(np.unique(rank).tolist())
    group[can_communicate & is_known_kind & (len(everyone) == 1)] = 0
    numbers: dict[tuple[int, ...], int] = {}
    meeting_rows = np.flatnonzero(mark >= 0)
    order = meeting_rows[np.argsort(mark[meeting_rows], kind="stable")]
    for rows in np.split(order, np.flatnonzero(np.diff(mark[order])) + 1):
        ranks = tuple(sorted(rank[rows].tolist()))
        if len(rows) < 2 or len(set(ranks)) < len(ranks) or not can_communicate[rows].all():
            continue
        if is_known_kind[rows].all() and len(set(tasks.collective[rows].tolist())) == 1:
            group[rows] = 0 if ranks == everyone else numbers.setdefault(ranks, len(numbers) + 1)
        elif (sender := _sender(graph, rows)) is not None:
            peer[rows] = rank[rows[::-1]]
            sends[sender] = True
    return Meetings(mark, group, tuple(numbers), peer, sends)


def _meeting_marks(graph: KernelGraph) -> Ints:
    """Return the mark between ranks that each task waits for; -1 for none."""
    tasks, edges = graph.tasks, graph.edges
    is_between = (tasks.lane < 0) & (tasks.kind == TaskKind.MARK)
    entering = np.flatnonzero(is_between[edges.source] & (edges.kind == EdgeKind.RENDEZVOUS))
    mark = np.full(len(tasks), -1)
    mark[edges.target[entering]] = edges.source[entering]
    return mark


def _sender(graph: KernelGraph, rows: Ints) -> int | None:
    """Return which of two transfers sends, by their names; None if they do not tell."""
    names = [graph.names[graph.tasks.name[row]].lower() for row in rows]
    directions = [(("send" in name), ("recv" in name or "receive" in name)) for name in names]
    return int(rows[directions.index((True, False))]) if sorted(directions) == [(False, True), (True, False)] else None


@dataclass(frozen=True)
class Delay:
    """A node that stands for no task, but for a lag, a release, or the start of a task.

    Parameters
    ----------
    id, rank : int
        Id of the node, and the rank whose file it is in.
    name : str
        ``"lag"``, ``"release"`` or ``"start"``.
    start_us, duration_us : int
        Start after the origin, and duration, in us.
    waits_for : tuple of int
        Ids of the nodes that it waits for.
    host : bool
        Whether the task that waits for it is on the host.
    """

    id: int
    rank: int
    name: str
    start_us: int
    duration_us: int
    waits_for: tuple[int, ...]
    host: bool


@dataclass(frozen=True)
class Nodes:
    """Nodes of a graph; the node of task t has the id t + 1.

    Parameters
    ----------
    rank, start_us, duration_us : array of int64, one a task
        Rank, start after the origin and duration of each task's node, in us.
    waits_for : tuple of tuple of int
        For each task, ids of the nodes of its rank that it waits for.
    delays : tuple of Delay
        Nodes that stand for no task.
    meetings : Meetings
        Communication.
    unexpressed : int
        Number of edges between ranks that no collective, send or receive of the files stands for.
    """

    rank: Ints
    start_us: Ints
    duration_us: Ints
    waits_for: tuple[tuple[int, ...], ...]
    delays: tuple[Delay, ...]
    meetings: Meetings
    unexpressed: int


@dataclass(frozen=True)
class _Wait:
    """A wait of one task for the start or end of another, and a lag."""

    source: int
    target: int
    lag_ns: float
    from_start: bool


def order_nodes(graph: KernelGraph) -> Nodes:
    """Return the nodes of a graph.

    Times are rounded, not durations. A node lasts from the rounded start to the rounded end of its task in a replay
    without contention. So a run of the files without contention ends within half a microsecond of that replay.
    """
    alone = graph.with_tasks(device=np.full(len(graph.tasks), -1))
    start, end = simulate(alone)
    rank = ranks_of(graph)
    meetings = meetings_of(graph, rank)
    waits = [*_waits_within_ranks(graph, rank), *_waits_through_meetings(graph, rank)]
    waits_for, delays = _with_delays(graph, rank, (start, end), waits)
    start_us = _round_to_us(start)
    return Nodes(
        rank, start_us, _round_to_us(end) - start_us, waits_for, delays, meetings, _unexpressed(graph, rank, meetings)
    )


def _round_to_us(times: Floats) -> Ints:
    """Return times in ns as whole us, not negative."""
    return np.rint(np.maximum(times, 0.0) / 1000).astype(np.int64)


def _waits_within_ranks(graph: KernelGraph, rank: Ints) -> Iterator[_Wait]:
    """Yield the waits of the edges within a rank."""
    edges = graph.edges
    for e in np.flatnonzero(rank[edges.source] == rank[edges.target]).tolist():
        yield _Wait(int(edges.source[e]), int(edges.target[e]), float(edges.lag_ns[e]), bool(edges.from_start[e]))


def _waits_through_meetings(graph: KernelGraph, rank: Ints) -> Iterator[_Wait]:
    """Yield the waits of a task for tasks of its rank, through a mark that is in another rank's file."""
    edges, tasks = graph.edges, graph.tasks
    is_between = (tasks.lane < 0) & (tasks.duration_ns == 0)
    edges_into: dict[int, list[int]] = {}
    for e in np.flatnonzero(is_between[edges.target]).tolist():
        edges_into.setdefault(int(edges.target[e]), []).append(e)
    for e in np.flatnonzero(is_between[edges.source] & (rank[edges.source] != rank[edges.target])).tolist():
        target = int(edges.target[e])
        for first in edges_into.get(int(edges.source[e]), ()):
            if rank[edges.source[first]] == rank[target]:
                lag = float(edges.lag_ns[first] + edges.lag_ns[e])
                yield _Wait(int(edges.source[first]), target, lag, bool(edges.from_start[first]))


class _Delays:
    """Nodes that stand for no task, under construction."""

    def __init__(self, graph: KernelGraph, rank: Ints) -> None:
        self._host, self._rank = graph.tasks.device < 0, rank
        self.nodes: list[Delay] = []

    def add(self, task: int, name: str, times_ns: tuple[float, float], waits_for: tuple[int, ...]) -> int:
        """Append a node before a task; return its id."""
        begin, end = _round_to_us(np.array(times_ns)).tolist()
        id_ = len(self._rank) + 1 + len(self.nodes)
        host, rank = bool(self._host[task]), int(self._rank[task])
        self.nodes.append(Delay(id_, rank, name, begin, end - begin, waits_for, host))
        return id_

    def wait(self, id_: int, waits_for: tuple[int, ...]) -> None:
        """Set the nodes that a node waits for."""
        at = id_ - len(self._rank) - 1
        self.nodes[at] = replace(self.nodes[at], waits_for=waits_for)


def _with_delays(
    graph: KernelGraph, rank: Ints, times: tuple[Floats, Floats], waits: list[_Wait]
) -> tuple[tuple[tuple[int, ...], ...], tuple[Delay, ...]]:
    """Return the ids that each task waits for, and the nodes in between; a loop over edges, about 10 us each."""
    start, end = times
    delays = _Delays(graph, rank)
    waits_for = _release_nodes(graph, rank, delays)
    begins = {wait.source: -1 for wait in waits if wait.from_start}
    for source in begins:
        begins[source] = delays.add(source, "start", (float(start[source]), float(start[source])), ())
    for wait in waits:
        node = begins[wait.source] if wait.from_start else wait.source + 1
        if wait.lag_ns > 0:
            since = float((start if wait.from_start else end)[wait.source])
            node = delays.add(wait.target, "lag", (since, since + wait.lag_ns), (node,))
        waits_for[wait.target].append(node)
    # The start node takes over all waits of its task, which then waits for the start node alone.
    for source, begin in begins.items():
        delays.wait(begin, tuple(sorted({*waits_for[source]})))
        waits_for[source] = [begin]
    return tuple(tuple(sorted({*ids})) for ids in waits_for), tuple(delays.nodes)


def _release_nodes(graph: KernelGraph, rank: Ints, delays: _Delays) -> list[list[int]]:
    """Return for each task the node that ends at its release, if it has one.

    Each follows the release before it on its rank, so that one slot of a simulator can run them all.
    """
    release = graph.tasks.release_ns
    waits_for: list[list[int]] = [[] for _ in range(len(graph.tasks))]
    last: dict[int, tuple[float, tuple[int, ...]]] = {}
    rows = np.flatnonzero(release > 0)
    for task in rows[np.lexsort((rows, release[rows]))].tolist():
        rank_of_task, time = int(rank[task]), float(release[task])
        since, before = last.get(rank_of_task, (0.0, ()))
        if time > since:
            last[rank_of_task] = time, (delays.add(task, "release", (since, time), before),)
        waits_for[task] += last[rank_of_task][1]
    return waits_for


def _unexpressed(graph: KernelGraph, rank: Ints, meetings: Meetings) -> int:
    """Return the number of edges between ranks that nothing in the files stands for."""
    edges = graph.edges
    between_ranks = rank[edges.source] != rank[edges.target]
    marks = np.unique(meetings.mark[(meetings.mark >= 0) & ((meetings.group >= 0) | (meetings.peer >= 0))])
    is_expressed = np.isin(edges.target, marks) | np.isin(edges.source, marks)
    return int((between_ranks & ~is_expressed).sum())


_VERSION = b"0.0.4"
#: ASTRA-sim takes as many dimensions of the network when a node does not say which it uses.
_ALL_DIMENSIONS = (True,) * 4
_MOST_OPERATIONS = (1 << 63) - 1


@dataclass(frozen=True)
class ChakraFiles:
    """Files that `write_chakra` wrote, and counts of what they hold.

    Parameters
    ----------
    paths : tuple of Path
        Files of the ranks, in order.
    groups : Path, optional
        File with the ranks of the process groups, for ASTRA-sim's ``--comm-group-configuration``; None if every group
        has all ranks.
    tasks, delays : int
        Numbers of nodes that stand for tasks, and for lags, releases and starts.
    unexpressed : int
        Number of edges between ranks that a simulator does not see.
    """

    paths: tuple[Path, ...]
    groups: Path | None
    tasks: int
    delays: int
    unexpressed: int


def write_chakra(graph: KernelGraph, path: Path) -> ChakraFiles:
    """Write a graph as one Chakra file a rank: ``NAME.RANK.et`` for a `path` of ``NAME.et`` or ``NAME``.

    All files are written to the end before the first one appears under its name.

    Parameters
    ----------
    graph : KernelGraph
        Graph to write.
    path : Path
        Name of the files without their ranks.

    Raises
    ------
    InvalidInputError
        The graph has no task, its tasks wait for each other in a circle, or a file cannot be written.
    """
    if not len(graph.tasks):
        raise InvalidInputError(f"{path}: the graph has no task to write as a node")
    nodes = order_nodes(graph)
    ranks = np.unique(nodes.rank).tolist()
    stem = path.with_suffix("") if path.suffix == ".et" else path
    paths = tuple(stem.with_name(f"{stem.name}.{rank}.et") for rank in ranks)
    groups = stem.with_name(f"{stem.name}.groups.json") if nodes.meetings.groups else None
    writer = _Writer(graph, nodes)
    with ExitStack() as files:
        for target, rank in zip(paths, ranks, strict=True):
            writer.write(rank, files.enter_context(written_whole(target)))
        if groups is not None:
            members = {str(i): list(ranks_of_group) for i, ranks_of_group in enumerate(nodes.meetings.groups, 1)}
            files.enter_context(written_whole(groups)).write(json.dumps(members).encode())
    return ChakraFiles(paths, groups, len(graph.tasks), len(nodes.delays), nodes.unexpressed)


class _Writer:
    """Writes the files of a graph."""

    def __init__(self, graph: KernelGraph, nodes: Nodes) -> None:
        self._graph, self._nodes = graph, nodes
        self._names = [name.encode("utf-8", "replace") for name in graph.names]
        self._tags: dict[int, int] = {}

    def write(self, rank: int, stream: IO[bytes]) -> None:
        """Write the file of a rank: its tasks, then its delays; a Python loop over them, about 30 us each."""
        header = MetadataMessage(version=[_VERSION])
        add_attribute(header.attr, "schema", "seqpoint graph")
        serialize_length_prefixed(header, stream)
        for row in np.flatnonzero(self._nodes.rank == rank).tolist():
            serialize_length_prefixed(self._task(row), stream)
        for delay in self._nodes.delays:
            if delay.rank == rank:
                serialize_length_prefixed(_delay(delay), stream)

    def _task(self, row: int) -> Any:
        nodes, tasks = self._nodes, self._graph.tasks
        message = NodeMessage(
            id=row + 1,
            name=self._names[tasks.name[row]],
            data_deps=nodes.waits_for[row],
            start_time_micros=int(nodes.start_us[row]) + 1,
            duration_micros=int(nodes.duration_us[row]),
        )
        add_attribute(message.attr, "is_cpu_op", bool(tasks.device[row] < 0))
        message.type = self._add_communication(row, message.attr)
        if message.type == COMPUTE:
            self._add_cost(row, message.attr)
        return message

    def _add_cost(self, row: int, attributes: Any) -> None:
        """Add what a roofline needs: operations and bytes of a kernel, bytes of a copy."""
        tasks = self._graph.tasks
        moved = int(tasks.bytes[row])
        if (operator := int(tasks.operator[row])) >= 0:
            known = self._graph.operators[operator]
            add_attribute(attributes, "num_ops", min(round(known.flops), _MOST_OPERATIONS))
            moved = round(known.bytes_moved)
        if moved > 0:
            attributes.add(name=b"tensor_size", uint64_val=moved)

    def _add_communication(self, row: int, attributes: Any) -> int:
        """Return the type of a task's node; add the attributes that it has as communication."""
        meetings, tasks = self._nodes.meetings, self._graph.tasks
        if (group := int(meetings.group[row])) >= 0:
            kind = COMMUNICATION[COLLECTIVE_KINDS[tasks.collective[row]]]
            add_attribute(attributes, "comm_type", kind)
            add_attribute(attributes, "comm_size", int(tasks.bytes[row]))
            attributes.add(name=b"involved_dim").bool_list.values.extend(_ALL_DIMENSIONS)
            if group:
                add_attribute(attributes, "pg_name", str(group))
            return COLLECTIVE
        if (peer := int(meetings.peer[row])) < 0:
            return COMPUTE
        tag = self._tags.setdefault(int(meetings.mark[row]), len(self._tags))
        rank = int(self._nodes.rank[row])
        source, destination = (rank, peer) if meetings.sends[row] else (peer, rank)
        add_attribute(attributes, "comm_size", int(tasks.bytes[row]))
        for name, value in ((b"comm_src", source), (b"comm_dst", destination), (b"comm_tag", tag)):
            attributes.add(name=name, int32_val=value)
        return SEND if meetings.sends[row] else RECEIVE


def _delay(delay: Delay) -> Any:
    message = NodeMessage(
        id=delay.id,
        name=delay.name.encode(),
        type=COMPUTE,
        data_deps=delay.waits_for,
        start_time_micros=delay.start_us + 1,
        duration_micros=delay.duration_us,
    )
    # ASTRA-sim runs one call and one kernel of a rank at a time: a delay takes the place of what waits for it.
    add_attribute(message.attr, "is_cpu_op", delay.host)
    return message
