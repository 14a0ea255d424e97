"""A graph as Chakra execution traces (mlcommons/chakra, ``et_def.proto``): one file a rank, which ASTRA-sim runs.

ASTRA-sim asks the following of a file, and gets it. Its name ends in ``.RANK.et``. Ids are unique, and dependencies
neither lead out of the file nor form a circle. Durations are whole microseconds, and dependencies ``data_deps``, which
every feeder resolves. Communication is on the device, has a size, and is of a kind that the simulator knows. A process
group is a number, whose ranks stand in ``NAME.groups.json``.

`meetings_of` finds the collectives, sends and receives that a simulator can run. `order_nodes` turns tasks, lags and
releases into nodes. `write_chakra` writes them.
"""

import json
from collections import defaultdict
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from google.protobuf.proto import serialize_length_prefixed

from profilers.errors import InvalidInputError
from profilers.files import replaced_file
from profilers.readers.chakra.protobuf import MetadataMessage, NodeMessage, NodeType, add_attribute
from profilers.trace.arrays import Ints
from replay.engine.engine import simulate
from replay.graph.graph import COLLECTIVE_KINDS, EdgeKind, KernelGraph, TaskKind

#: ``comm_type`` of the collectives that ASTRA-sim knows; it stops at any other.
COMMUNICATION = {"all_reduce": 0, "all_gather": 2, "broadcast": 5, "all_to_all": 6, "reduce_scatter": 7}


@dataclass(frozen=True)
class Meetings:
    """Communication of a graph that a simulator can run.

    Parameters
    ----------
    rank : array of int64, one a task
        Rank of the task, as `ranks_of` returns it.
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

    rank: Ints
    mark: Ints
    group: Ints
    groups: tuple[tuple[int, ...], ...]
    peer: Ints
    sends: npt.NDArray[np.bool_]


def ranks_of(graph: KernelGraph) -> Ints:
    """Return the rank of each task. A mark between ranks has the rank of its first source, else the lowest."""
    tasks, edges = graph.tasks, graph.edges
    of_device = np.array([*(rank for rank, _ in graph.devices), -1], dtype=np.int64)
    rank = np.where(tasks.lane >= 0, graph.ranks(), of_device[tasks.device])
    into = np.flatnonzero((rank[edges.target] < 0) & (rank[edges.source] >= 0))[::-1]
    result = rank.copy()
    result[edges.target[into]] = rank[edges.source[into]]
    all_ranks = [lane.rank for lane in graph.lanes] or of_device[:-1].tolist()
    return np.where(result < 0, min(all_ranks, default=0), result)


def meetings_of(graph: KernelGraph) -> Meetings:
    """Return the communication of a graph that a simulator can run.

    A collective counts if ASTRA-sim knows its kind, its bytes are known, and all ranks of its group take part. Two
    transfers of one meeting are a send and a receive if their names tell which is which. Everything else is plain work
    of the device.
    """
    tasks, rank, mark = graph.tasks, ranks_of(graph), _meeting_marks(graph)
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
    return Meetings(rank, mark, group, tuple(numbers), peer, sends)


def _meeting_marks(graph: KernelGraph) -> Ints:
    """Return the mark between ranks that each task waits for; -1 for none."""
    tasks, edges = graph.tasks, graph.edges
    is_between = (tasks.lane < 0) & (tasks.kind == TaskKind.MARK)
    entering = np.flatnonzero(is_between[edges.source] & (edges.kind == EdgeKind.RENDEZVOUS))
    mark = np.full(len(tasks), -1)
    mark[edges.target[entering]] = edges.source[entering]
    return mark


def _sender(graph: KernelGraph, rows: Ints) -> int | None:
    """Return the one of two transfers that sends, by their names; None if the names do not tell."""
    names = [graph.names[graph.tasks.name[row]].lower() for row in rows]
    directions = [(("send" in name), ("recv" in name or "receive" in name)) for name in names]
    return int(rows[directions.index((True, False))]) if sorted(directions) == [(False, True), (True, False)] else None


@dataclass
class GraphNode:
    """A node: a task, or a delay that stands for a lag, a release, or the start of a task.

    Parameters
    ----------
    name : bytes
        Name of the task; of a delay ``lag``, ``release`` or ``start``.
    rank : int
        Rank whose file it is in.
    on_host : bool
        Whether the task is on the host, or the task that waits for the delay.
    start_ns, end_ns : float
        Times after the origin, in a replay without contention.
    waits_for : list of int
        Ids of the nodes that it waits for.
    """

    name: bytes
    rank: int
    on_host: bool
    start_ns: float
    end_ns: float
    waits_for: list[int]


def order_nodes(graph: KernelGraph, rank: Ints) -> list[GraphNode]:
    """Return the nodes of a graph by id, from 1: first the tasks, then the delays; about 10 us for each edge.

    Times are rounded when they are written, not durations. A node lasts from the rounded start to the rounded end of
    its task in a replay without contention. So a run of the files without contention ends within half a microsecond of
    that replay.

    Parameters
    ----------
    graph : KernelGraph
        The graph.
    rank : array of int64
        Rank of each task.
    """
    names = [name.encode("utf-8", "replace") for name in graph.names]
    name, on_host = (names[number] for number in graph.tasks.name.tolist()), (graph.tasks.device < 0).tolist()
    start, end = (t.tolist() for t in simulate(graph.with_tasks(device=np.full(len(graph.tasks), -1))))
    nodes = [GraphNode(*facts, []) for facts in zip(name, rank.tolist(), on_host, start, end, strict=True)]

    def add_delay(task: int, name: bytes, times_ns: tuple[float, float], waits_for: list[int]) -> int:
        nodes.append(GraphNode(name, nodes[task].rank, nodes[task].on_host, *times_ns, waits_for))
        return len(nodes)

    # A release follows the release before it on its rank, so that one slot of a simulator can run them all.
    release, last = graph.tasks.release_ns, dict[int, tuple[float, list[int]]]()
    rows = np.flatnonzero(release > 0)
    for task in rows[np.lexsort((rows, release[rows]))].tolist():
        time, (since, before) = float(release[task]), last.get(nodes[task].rank, (0.0, []))
        if time > since:
            before = [add_delay(task, b"release", (since, time), before)]
            last[nodes[task].rank] = (time, before)
        nodes[task].waits_for += before
    waits = _waits(graph, rank)
    start_nodes = dict.fromkeys((source for source, _, _, from_start in waits if from_start), 0)
    for source in start_nodes:
        start_nodes[source] = add_delay(source, b"start", (start[source], start[source]), [])
    for source, target, lag_ns, from_start in waits:
        node = start_nodes[source] if from_start else source + 1
        if lag_ns > 0:
            since = start[source] if from_start else end[source]
            node = add_delay(target, b"lag", (since, since + lag_ns), [node])
        nodes[target].waits_for.append(node)
    # The start node takes over all waits of its task, which then waits for the start node alone.
    for source, node in start_nodes.items():
        nodes[node - 1].waits_for, nodes[source].waits_for = nodes[source].waits_for, [node]
    return nodes


def _waits(graph: KernelGraph, rank: Ints) -> list[tuple[int, int, float, bool]]:
    """Return the waits within a rank: source, target, lag, and whether the lag counts from the start of the source.

    A wait through a mark that is in another rank's file leads from the tasks of its own rank.
    """
    edges, tasks = graph.edges, graph.tasks
    sides = (edges.source.tolist(), edges.target.tolist(), edges.lag_ns.tolist(), edges.from_start.tolist())
    columns = list(zip(*sides, strict=True))
    waits = [columns[e] for e in np.flatnonzero(rank[edges.source] == rank[edges.target]).tolist()]
    is_between = (tasks.lane < 0) & (tasks.duration_ns == 0)
    edges_into = defaultdict[int, list[int]](list)
    for e in np.flatnonzero(is_between[edges.target]).tolist():
        edges_into[columns[e][1]].append(e)
    for e in np.flatnonzero(is_between[edges.source] & (rank[edges.source] != rank[edges.target])).tolist():
        mark, target, lag_ns, _ = columns[e]
        for source, _, first_lag_ns, from_start in (columns[first] for first in edges_into[mark]):
            if rank[source] == rank[target]:
                waits.append((source, target, first_lag_ns + lag_ns, from_start))
    return waits


def _unexpressed(graph: KernelGraph, meetings: Meetings) -> int:
    """Return the number of edges between ranks that nothing in the files stands for."""
    edges = graph.edges
    between_ranks = meetings.rank[edges.source] != meetings.rank[edges.target]
    marks = np.unique(meetings.mark[(meetings.mark >= 0) & ((meetings.group >= 0) | (meetings.peer >= 0))])
    is_expressed = np.isin(edges.target, marks) | np.isin(edges.source, marks)
    return int((between_ranks & ~is_expressed).sum())


_VERSION = b"0.0.4"
#: ASTRA-sim takes as many dimensions of the network when a node does not say which it uses.
_ALL_DIMENSIONS = (True,) * 4
_MOST_OPERATIONS = (1 << 63) - 1


@dataclass(frozen=True)
class ChakraFiles:
    """Files that `write_chakra` wrote, and counts of their nodes.

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
    meetings = meetings_of(graph)
    nodes, ranks = order_nodes(graph, meetings.rank), np.unique(meetings.rank).tolist()
    stem = path.with_suffix("") if path.suffix == ".et" else path
    paths = tuple(stem.with_name(f"{stem.name}.{rank}.et") for rank in ranks)
    groups = stem.with_name(f"{stem.name}.groups.json") if meetings.groups else None
    tags: dict[int, int] = {}
    with ExitStack() as files:
        streams = {rank: files.enter_context(replaced_file(p)) for p, rank in zip(paths, ranks, strict=True)}
        for stream in streams.values():
            header = MetadataMessage(version=[_VERSION])
            add_attribute(header.attr, "schema", "seqpoint graph")
            serialize_length_prefixed(header, stream)
        for row in np.argsort([node.rank for node in nodes], kind="stable").tolist():  # about 30 us a node
            message = _message(row + 1, nodes[row])
            if row < len(graph.tasks):
                message.type = _add_communication(message.attr, graph, row, meetings, tags)
                _add_cost(message, graph, row)
            serialize_length_prefixed(message, streams[nodes[row].rank])
        if groups is not None:
            members = {str(i): list(ranks_of_group) for i, ranks_of_group in enumerate(meetings.groups, 1)}
            files.enter_context(replaced_file(groups)).write(json.dumps(members).encode())
    n = len(graph.tasks)
    return ChakraFiles(paths, groups, n, len(nodes) - n, _unexpressed(graph, meetings))


def _message(number: int, node: GraphNode) -> Any:
    """Return a node without communication as a message."""
    start_us, end_us = (round(max(time_ns, 0.0) / 1000) for time_ns in (node.start_ns, node.end_ns))
    message = NodeMessage(
        id=number,
        name=node.name,
        type=NodeType.COMPUTE,
        data_deps=sorted({*node.waits_for}),
        start_time_micros=start_us + 1,
        duration_micros=end_us - start_us,
    )
    # ASTRA-sim runs one call and one kernel of a rank at a time: a delay takes the place of what waits for it.
    add_attribute(message.attr, "is_cpu_op", node.on_host)
    return message


def _add_cost(message: Any, graph: KernelGraph, row: int) -> None:
    """Add what a roofline needs: operations and bytes of a kernel, bytes of a copy."""
    if message.type != NodeType.COMPUTE:
        return
    moved, number = int(graph.tasks.bytes[row]), int(graph.tasks.operator[row])
    if number >= 0:
        operator = graph.operators[number]
        add_attribute(message.attr, "num_ops", min(round(operator.flops), _MOST_OPERATIONS))
        moved = round(operator.bytes_moved)
    if moved > 0:
        message.attr.add(name=b"tensor_size", uint64_val=moved)


def _add_communication(attributes: Any, graph: KernelGraph, row: int, meetings: Meetings, tags: dict[int, int]) -> int:
    """Return the type of a task's node; add the attributes that it has as communication.

    `tags` numbers the meetings of senders and receivers.
    """
    tasks, group, peer = graph.tasks, int(meetings.group[row]), int(meetings.peer[row])
    if group >= 0:
        kind = COMMUNICATION[COLLECTIVE_KINDS[tasks.collective[row]]]
        add_attribute(attributes, "comm_type", kind)
        add_attribute(attributes, "comm_size", int(tasks.bytes[row]))
        attributes.add(name=b"involved_dim").bool_list.values.extend(_ALL_DIMENSIONS)
        if group:
            add_attribute(attributes, "pg_name", str(group))
        return NodeType.COLLECTIVE
    if peer < 0:
        return NodeType.COMPUTE
    tag, rank = tags.setdefault(int(meetings.mark[row]), len(tags)), int(meetings.rank[row])
    source, destination = (rank, peer) if meetings.sends[row] else (peer, rank)
    add_attribute(attributes, "comm_size", int(tasks.bytes[row]))
    for name, value in ((b"comm_src", source), (b"comm_dst", destination), (b"comm_tag", tag)):
        attributes.add(name=name, int32_val=value)
    return NodeType.SEND if meetings.sends[row] else NodeType.RECEIVE
