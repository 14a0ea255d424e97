"""A graph as Chakra execution traces (mlcommons/chakra, ``et_def.proto``): one file a rank, which ASTRA-sim runs.

What ASTRA-sim asks of a file is kept: its name ends in ``.RANK.et``; ids are unique in it, and nothing waits for what
is not there or in a circle; durations are whole microseconds; dependencies are ``data_deps``, which every feeder
resolves; communication is on the device, has a size, and is of a kind that the simulator knows; a process group is a
number, whose ranks stand in ``NAME.groups.json``. All that a graph knows beyond this is in attributes of our own.
"""

import hashlib
import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import IO

import numpy as np

from profilers.atomic import written_whole
from profilers.chakra.encoding import array_attribute, attribute, number, packed, text, varint
from profilers.chakra.nodes import COLLECTIVE, COMPUTE, RECEIVE, SEND
from profilers.errors import InvalidInputError
from replay.chakra.columns import NODE_ATTRIBUTE, OWN, RowWriter, columns_of, described, edge_lists
from replay.chakra.facts import to_json
from replay.chakra.meetings import COMMUNICATION
from replay.chakra.nodes import Delay, Nodes, order_nodes
from replay.graph import COLLECTIVE_KINDS, RESOURCES, KernelGraph

__all__ = ["FORM", "NOT_FACTS", "ChakraFiles", "write_chakra"]

#: Of our attributes; a reader refuses one that it does not know.
FORM = 1
#: What of a graph is written another way than as a fact.
NOT_FACTS = frozenset({"tasks", "edges", "names"})
_VERSION = "0.0.4"
_ID, _NAME, _TYPE, _DATA_DEPS, _START, _DURATION = 1, 2, 3, 5, 6, 7
_META = 2
#: ASTRA-sim takes as many dimensions of the network when a node does not say which it uses.
_ALL_DIMENSIONS = np.ones(4, dtype=bool)
_BATCH = 4096


@dataclass(frozen=True)
class ChakraFiles:
    """What was written.

    Parameters
    ----------
    paths : tuple of Path
        A file a rank, in the order of ranks.
    groups : Path, optional
        Ranks of the process groups, for ASTRA-sim's ``--comm-group-configuration``; None where all are of all ranks.
    tasks, delays : int
        Nodes that stand for tasks, and those that stand for lags, releases and starts.
    unexpressed : int
        Edges between ranks that a simulator does not see.
    """

    paths: tuple[Path, ...]
    groups: Path | None
    tasks: int
    delays: int
    unexpressed: int


def write_chakra(graph: KernelGraph, path: Path) -> ChakraFiles:
    """Write one file a rank, ``NAME.RANK.et`` for a `path` of ``NAME.et`` or ``NAME``; `read_chakra` reads them back.

    All are written, then put in their places one after the other.

    Parameters
    ----------
    graph : KernelGraph
    path : Path

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
            known = {str(i): list(one) for i, one in enumerate(nodes.meetings.groups, 1)}
            files.enter_context(written_whole(groups)).write(json.dumps(known).encode())
    return ChakraFiles(paths, groups, len(graph.tasks), len(nodes.delays), nodes.unexpressed)


class _Writer:
    """Writes the files of one graph."""

    def __init__(self, graph: KernelGraph, nodes: Nodes) -> None:
        self._graph, self._nodes = graph, nodes
        self._names = [name.encode("utf-8", "replace") for name in graph.names]
        self._tasks = RowWriter(columns_of(graph.tasks), OWN)
        edges = columns_of(graph.edges)
        self._edges = {"row": np.arange(len(graph.edges)), **{n: c for n, c in edges.items() if n != "target"}}
        order = np.argsort(graph.edges.target, kind="stable")
        ends = np.searchsorted(graph.edges.target[order], np.arange(len(graph.tasks) + 1))
        self._into = [order[first:last] for first, last in pairwise(ends.tolist())]
        self._tags: dict[int, int] = {}
        self._facts = self._described()
        self._id = self._digest()

    def _described(self) -> str:
        """Return what is true of the whole graph, for the first node of the first file."""
        graph = self._graph
        own = {f.name: json.loads(to_json(getattr(graph, f.name))) for f in fields(graph) if f.name not in NOT_FACTS}
        counts = {"tasks": len(graph.tasks), "edges": len(graph.edges), "names": len(graph.names)}
        columns = {"task_columns": self._tasks.described, "edge_columns": described(self._edges)}
        return json.dumps({"graph": own, **counts, **columns, "resources": RESOURCES})

    def write(self, rank: int, stream: IO[bytes]) -> None:
        """Write the file of a rank: its tasks, then its delays; a Python loop over them, about 30 us each."""
        header = text(1, _VERSION) + attribute(_META, "schema", "seqpoint graph")
        header += attribute(_META, f"{OWN}form", FORM) + attribute(_META, f"{OWN}graph", self._id)
        header += array_attribute(_META, f"{OWN}ranks", np.unique(self._nodes.rank))
        stream.write(varint(len(header)) + header)
        messages: list[bytes] = []
        for message in self._messages(rank):
            messages.append(varint(len(message)) + message)
            if len(messages) == _BATCH:
                stream.write(b"".join(messages))
                messages = []
        stream.write(b"".join(messages))

    def _digest(self) -> str:
        """Return what tells the files of this graph from those of another."""
        digest = hashlib.sha256(self._facts.encode())
        for table in (self._graph.tasks, self._graph.edges):
            for values in columns_of(table).values():
                digest.update(np.ascontiguousarray(values).tobytes())
        return digest.hexdigest()[:16]

    def _messages(self, rank: int) -> Iterator[bytes]:
        rows = np.flatnonzero(self._nodes.rank == rank).tolist()
        first = rank == self._nodes.rank.min()
        for row in rows:
            extra = attribute(NODE_ATTRIBUTE, f"{OWN}facts", self._facts) if first and row == rows[0] else b""
            yield self._task(row) + extra
        for delay in self._nodes.delays:
            if delay.rank == rank:
                yield self._delay(delay)

    def _delay(self, delay: Delay) -> bytes:
        message = number(_ID, delay.id) + text(_NAME, delay.name) + number(_TYPE, COMPUTE)
        message += packed(_DATA_DEPS, delay.waits_for)
        message += number(_START, delay.start_us + 1) + number(_DURATION, delay.duration_us)
        # ASTRA-sim runs one call and one kernel of a rank at a time: a delay takes the place of what waits for it.
        message += attribute(NODE_ATTRIBUTE, "is_cpu_op", delay.host)
        return message + attribute(NODE_ATTRIBUTE, f"{OWN}delay", delay.name)

    def _task(self, row: int) -> bytes:
        nodes, tasks = self._nodes, self._graph.tasks
        type_, own = self._communication(row)
        message = number(_ID, row + 1) + text(_NAME, self._names[tasks.name[row]]) + number(_TYPE, type_)
        message += packed(_DATA_DEPS, nodes.waits_for[row])
        message += number(_START, int(nodes.start_us[row]) + 1) + number(_DURATION, int(nodes.duration_us[row]))
        message += attribute(NODE_ATTRIBUTE, "is_cpu_op", bool(tasks.device[row] < 0)) + own
        if type_ == COMPUTE:
            message += self._work(row)
        message += attribute(NODE_ATTRIBUTE, f"{OWN}task", row) + self._tasks.row(row)
        return message + (edge_lists(self._edges, self._into[row], f"{OWN}edge_") if len(self._into[row]) else b"")

    def _work(self, row: int) -> bytes:
        """Return what a roofline would need: operations and bytes of a kernel, bytes of a copy."""
        tasks, content = self._graph.tasks, b""
        moved = int(tasks.bytes[row])
        if (operator := int(tasks.operator[row])) >= 0:
            known = self._graph.operators[operator]
            content += attribute(NODE_ATTRIBUTE, "num_ops", round(known.flops))
            moved = round(known.bytes_moved)
        return content + (_unsigned("tensor_size", moved) if moved > 0 else b"")

    def _communication(self, row: int) -> tuple[int, bytes]:
        """Return the type of a task's node, and the attributes that it has as communication."""
        meetings, tasks = self._nodes.meetings, self._graph.tasks
        size = attribute(NODE_ATTRIBUTE, "comm_size", int(tasks.bytes[row]))
        if (group := int(meetings.group[row])) >= 0:
            kind = COMMUNICATION[COLLECTIVE_KINDS[tasks.collective[row]]]
            own = attribute(NODE_ATTRIBUTE, "comm_type", kind) + size
            own += array_attribute(NODE_ATTRIBUTE, "involved_dim", _ALL_DIMENSIONS)
            return COLLECTIVE, own + (attribute(NODE_ATTRIBUTE, "pg_name", str(group)) if group else b"")
        if (peer := int(meetings.peer[row])) < 0:
            return COMPUTE, b""
        tag = self._tags.setdefault(int(meetings.mark[row]), len(self._tags))
        rank = int(self._nodes.rank[row])
        source, destination = (rank, peer) if meetings.sends[row] else (peer, rank)
        own = size + _int32("comm_src", source) + _int32("comm_dst", destination) + _int32("comm_tag", tag)
        return SEND if meetings.sends[row] else RECEIVE, own


def _unsigned(name: str, value: int) -> bytes:
    return array_attribute(NODE_ATTRIBUTE, name, np.asarray(value, np.uint64))


def _int32(name: str, value: int) -> bytes:
    return array_attribute(NODE_ATTRIBUTE, name, np.asarray(value, np.int32))
