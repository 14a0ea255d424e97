"""A graph as Chakra execution traces.

Columns of numbers as attributes of nodes, whichever columns there are: a row says only what is not most frequent.

Frozen dataclasses as JSON and back, by the types that they declare: a new field is carried without change here.

Which collectives of a graph are communication to a simulator, and in which group of ranks.

Tasks as nodes that a simulator runs: whole microseconds that do not drift, delays as nodes, ranks apart.

A graph as Chakra execution traces (mlcommons/chakra, ``et_def.proto``): one file a rank, which ASTRA-sim runs.

What ASTRA-sim asks of a file is kept: its name ends in ``.RANK.et``; ids are unique in it, and nothing waits for what
is not there or in a circle; durations are whole microseconds; dependencies are ``data_deps``, which every feeder
resolves; communication is on the device, has a size, and is of a kind that the simulator knows; a process group is a
number, whose ranks stand in ``NAME.groups.json``. All that a graph knows beyond this is in attributes of our own.

Graphs as Chakra execution traces, which ASTRA-sim runs, and back.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import Enum
from itertools import pairwise
from pathlib import Path
from types import UnionType
from typing import IO, Any, Union, get_args, get_origin, get_type_hints

import numpy as np
import numpy.typing as npt
from google.protobuf.proto import serialize_length_prefixed

from profilers.errors import BrokenFileError, InvalidInputError
from profilers.files import written_whole
from profilers.readers.chakra.protobuf import (
    COLLECTIVE,
    COMPUTE,
    RECEIVE,
    SEND,
    MetadataMessage,
    Node,
    NodeMessage,
    add_array,
    add_attribute,
)
from profilers.trace.arrays import Floats, Ints
from replay.engine.engine import simulate
from replay.graph.graph import COLLECTIVE_KINDS, RESOURCES, EdgeKind, KernelGraph, TaskKind

#: What the names of our own attributes begin with.
OWN = "seqpoint_"

#: Types of columns.
_TYPES = frozenset(np.dtype(code).name for code in "?bhilBHILefd")

Columns = Mapping[str, npt.NDArray[Any]]
#: Of each column: the name of its type, how many numbers a row has (None: one, and no list), the usual row.
Described = Mapping[str, tuple[str, int | None, Any]]


def columns_of(table: Any) -> Columns:
    """Return the columns of `Tasks` or `Edges`, those left at None not.

    Raises
    ------
    InvalidInputError
        A column is no array of numbers of one or two dimensions.
    """
    found = {one.name: getattr(table, one.name) for one in fields(table)}
    arrays = {name: np.asarray(values) for name, values in found.items() if values is not None}
    for name, values in arrays.items():
        if values.ndim not in (1, 2) or values.dtype.kind not in "biuf":
            raise InvalidInputError(f"column {name} of {values.ndim} dimensions of {values.dtype} cannot be written")
    return arrays


def described(columns: Columns) -> Described:
    """Return what a reader has to know of columns: their types and usual rows."""
    return {
        name: (
            values.dtype.newbyteorder("=").name,
            values.shape[1] if values.ndim == 2 else None,
            _usual(values).tolist(),
        )
        for name, values in columns.items()
    }


def _usual(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the most frequent row; of several the smallest."""
    if not len(values):
        return np.zeros(values.shape[1:], values.dtype)
    rows, counts = np.unique(values, axis=0 if values.ndim == 2 else None, return_counts=True)
    return np.asarray(rows[np.argmax(counts)])


class RowWriter:
    """Writes rows of columns as attributes.

    Parameters
    ----------
    columns : mapping of str to array
        Of equal length.
    prefix : str
        What the names of the attributes begin with.
    """

    def __init__(self, columns: Columns, prefix: str) -> None:
        self.described = described(columns)
        self._named = [
            (f"{prefix}{name}", values, _differs(values, self.described[name][2]).tolist())
            for name, values in columns.items()
        ]

    def add(self, row: int, attributes: Any) -> None:
        """Add what is not usual of one row to the attributes of a message."""
        for name, values, differs in self._named:
            if differs[row]:
                add_array(attributes, name, np.asarray(values[row]))


def _differs(values: npt.NDArray[Any], usual: Any) -> npt.NDArray[np.bool_]:
    """Return which rows have any other bit than the usual one."""
    expected = np.broadcast_to(np.asarray(usual, values.dtype), values.shape)
    if values.dtype.kind == "f":
        same = (values == expected) & (np.signbit(values) == np.signbit(expected)) | np.isnan(values) & np.isnan(
            expected
        )
    else:
        same = values == expected
    return np.asarray(~same if same.ndim == 1 else ~same.all(axis=1))


def filled(described_: Described, rows: Mapping[int, Node], prefix: str) -> dict[str, npt.NDArray[Any]]:
    """Return columns from the nodes that stand for their rows, 0 to n - 1.

    Raises
    ------
    BrokenFileError
        A node has a value that is not one of its column.
    """
    columns = {}
    for name, (type_, width, usual) in described_.items():
        if type_ not in _TYPES:
            raise BrokenFileError(f"column {name} is of the type {type_!r}, which no column has")
        shape = (len(rows),) if width is None else (len(rows), width)
        try:
            values = np.empty(shape, type_)
            values[...] = usual
            for row, node in rows.items():
                if (value := node.attributes.get(f"{prefix}{name}")) is not None:
                    values[row] = _numbers(value)
        except (ValueError, TypeError, OverflowError) as error:
            raise BrokenFileError(f"{prefix}{name}: has a value that is not one of its column ({error})") from error
        columns[name] = values
    return columns


def _numbers(value: Any) -> Any:
    """Return numbers; the reader gives those that are not finite as text, since JSON has none."""
    if isinstance(value, list):
        return [_numbers(one) for one in value]
    return float(value) if isinstance(value, str) else value


def add_edges(columns: Columns, edges: npt.NDArray[np.int64], prefix: str, attributes: Any) -> None:
    """Add some edges to the attributes of a message, a list a column."""
    for name, values in columns.items():
        add_array(attributes, f"{prefix}{name}", values[edges])


def joined_lists(described_: Described, nodes: Sequence[Node], prefix: str) -> dict[str, npt.NDArray[Any]]:
    """Return the edges of all nodes, in their order.

    Raises
    ------
    BrokenFileError
        The lists of a node differ in length, or hold what is no number.
    """
    columns = {}
    for name, (type_, _, _) in described_.items():
        values = [_numbers(node.attributes[key]) for node in nodes if (key := f"{prefix}{name}") in node.attributes]
        try:
            columns[name] = np.array([one for part in values for one in part], type_)
        except (ValueError, TypeError, OverflowError) as error:
            raise BrokenFileError(f"{prefix}{name}: is no list of numbers ({error})") from error
    if len({len(values) for values in columns.values()}) > 1:
        raise BrokenFileError(f"the lists of edges ({prefix}...) differ in length")
    return columns


def to_json(value: Any) -> str:
    """Return a value as JSON; numbers keep every bit.

    Raises
    ------
    InvalidInputError
        It holds what JSON cannot, such as a function or an array.

    Examples
    --------
    >>> from replay.graph import Lane
    >>> to_json(Lane(0, None, 7))
    '{"rank":0,"device":null,"number":7}'
    """
    return json.dumps(_plain(value), separators=(",", ":"))


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return _plain(value.value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if is_dataclass(value) and not isinstance(value, type):
        return {one.name: _plain(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(content) for key, content in value.items()}
    if isinstance(value, Sequence):
        return [_plain(one) for one in value]
    raise InvalidInputError(f"a {type(value).__name__} cannot be written as JSON")


def from_json(declared: Any, text: str) -> Any:
    """Return what `to_json` wrote, as a value of the declared type; fields that are absent have their default.

    Raises
    ------
    ValueError, TypeError, KeyError
        The text is no such value.

    Examples
    --------
    >>> from replay.graph import Lane
    >>> from_json(tuple[Lane, ...], '[{"rank":0,"device":null,"number":7}]')
    (Lane(rank=0, device=None, number=7),)
    """
    try:
        return _typed(declared, json.loads(text))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _typed(declared: Any, value: Any) -> Any:
    origin, arguments = get_origin(declared), get_args(declared)
    if origin in (Union, UnionType):
        chosen = [one for one in arguments if one is not type(None)]
        return None if value is None else _typed(chosen[0], value)
    if is_dataclass(declared) and isinstance(declared, type):
        types = get_type_hints(declared)
        return declared(**{name: _typed(types[name], content) for name, content in dict(value).items()})
    if origin is tuple:
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return tuple(_typed(arguments[0], one) for one in _listed(value))
        return tuple(_typed(one, content) for one, content in zip(arguments, _listed(value), strict=True))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {_typed(arguments[0], key): _typed(arguments[1], content) for key, content in dict(value).items()}
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return tuple(_typed(arguments[0], one) for one in _listed(value))
    return _leaf(declared, value)


def _listed(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"a {type(value).__name__} is no list")
    return value


def _leaf(declared: Any, value: Any) -> Any:
    if isinstance(declared, type) and issubclass(declared, Enum):
        return declared(value)
    if declared is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(declared, type) and not isinstance(value, declared):
        raise TypeError(f"a {type(value).__name__} is no {declared.__name__}")
    return value


#: ``comm_type`` of the collectives that ASTRA-sim knows; it stops at any other.
COMMUNICATION = {"all_reduce": 0, "all_gather": 2, "broadcast": 5, "all_to_all": 6, "reduce_scatter": 7}


@dataclass(frozen=True)
class Meetings:
    """Communication of a graph.

    Parameters
    ----------
    mark : array of int64, one a task
        The task between ranks at which the ranks of a collective meet; -1 where it meets nobody.
    group : array of int64, one a task
        Number of the group of ranks, from 1; 0 for all ranks; -1 where the task is no collective to a simulator.
    groups : tuple of tuple of int
        Ranks of the groups 1 and up.
    peer : array of int64, one a task
        The other rank of a send or receive; -1 elsewhere.
    sends : array of bool, one a task
    """

    mark: Ints
    group: Ints
    groups: tuple[tuple[int, ...], ...]
    peer: Ints
    sends: npt.NDArray[np.bool_]


def ranks_of(graph: KernelGraph) -> Ints:
    """Return the rank of each task; of one between ranks that of the first that it waits for, else the lowest."""
    tasks, edges = graph.tasks, graph.edges
    of_lane = np.array([lane.rank for lane in graph.lanes], dtype=np.int64)
    of_device = np.array([rank for rank, _ in graph.devices], dtype=np.int64)
    rank = np.full(len(tasks), -1)
    device = tasks.device >= 0
    rank[device] = of_device[tasks.device[device]]
    laned = tasks.lane >= 0
    rank[laned] = of_lane[tasks.lane[laned]]
    into = np.flatnonzero((rank[edges.target] < 0) & (rank[edges.source] >= 0))[::-1]
    found = rank.copy()
    found[edges.target[into]] = rank[edges.source[into]]
    known = of_lane if len(of_lane) else of_device
    return np.where(found < 0, known.min() if len(known) else 0, found)


def meetings_of(graph: KernelGraph, rank: Ints) -> Meetings:
    """Return what of a graph is communication to a simulator.

    A collective is one of a kind that ASTRA-sim knows, with its bytes, that all ranks of its group take part in. A
    send and a receive are two transfers of one meeting whose names say which is which. Everything else is plain work
    of the device.
    """
    tasks = graph.tasks
    mark = _meets_at(graph)
    group, peer, sends = np.full(len(tasks), -1), np.full(len(tasks), -1), np.zeros(len(tasks), dtype=bool)
    able = (tasks.kind == TaskKind.COLLECTIVE) & (tasks.device >= 0) & (tasks.bytes > 0)
    known = np.isin(tasks.collective, [COLLECTIVE_KINDS.index(name) for name in COMMUNICATION])
    everyone = tuple(np.unique(rank).tolist())
    group[able & known & (len(everyone) == 1)] = 0
    numbers: dict[tuple[int, ...], int] = {}
    met = np.flatnonzero(mark >= 0)
    order = met[np.argsort(mark[met], kind="stable")]
    for rows in np.split(order, np.flatnonzero(np.diff(mark[order])) + 1):
        ranks = tuple(sorted(rank[rows].tolist()))
        if len(rows) < 2 or len(set(ranks)) < len(ranks) or not able[rows].all():
            continue
        if known[rows].all() and len(set(tasks.collective[rows].tolist())) == 1:
            group[rows] = 0 if ranks == everyone else numbers.setdefault(ranks, len(numbers) + 1)
        elif (sender := _sender(graph, rows)) is not None:
            peer[rows] = rank[rows[::-1]]
            sends[sender] = True
    return Meetings(mark, group, tuple(numbers), peer, sends)


def _meets_at(graph: KernelGraph) -> Ints:
    """Return by task the mark between ranks that it waits for; -1 where there is none."""
    tasks, edges = graph.tasks, graph.edges
    between = (tasks.lane < 0) & (tasks.kind == TaskKind.MARK)
    entering = np.flatnonzero(between[edges.source] & (edges.kind == EdgeKind.RENDEZVOUS))
    mark = np.full(len(tasks), -1)
    mark[edges.target[entering]] = edges.source[entering]
    return mark


def _sender(graph: KernelGraph, rows: Ints) -> int | None:
    """Return which of two transfers sends, as their names say; None where they do not."""
    said = [(("send" in name), ("recv" in name or "receive" in name)) for name in _names(graph, rows)]
    return int(rows[said.index((True, False))]) if sorted(said) == [(False, True), (True, False)] else None


def _names(graph: KernelGraph, rows: Ints) -> list[str]:
    return [graph.names[graph.tasks.name[row]].lower() for row in rows]


@dataclass(frozen=True)
class Delay:
    """A node that stands for no task: a lag, a time before which a task may not start, or a task's start.

    Parameters
    ----------
    id, rank : int
    name : str
        ``"lag"``, ``"release"`` or ``"start"``.
    start_us, duration_us : int
    waits_for : tuple of int
        Ids of nodes.
    host : bool
        Whether what waits for it is of the host.
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
    """A graph's nodes; the id of the node of task t is t + 1.

    Parameters
    ----------
    rank, start_us, duration_us : array of int64, one a task
    waits_for : tuple of tuple of int
        By task, ids of nodes of the same rank.
    delays : tuple of Delay
    meetings : Meetings
    unexpressed : int
        Edges between ranks that no collective, send or receive of the files stands for.
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
    """That a task starts no earlier than a time after another's start or end."""

    source: int
    target: int
    lag_ns: float
    from_start: bool


def order_nodes(graph: KernelGraph) -> Nodes:
    """Return the nodes of a graph.

    Times are rounded, not durations: each lasts from the rounded start to the rounded end of its task in a replay in
    which nothing shares a device, so that running the files without contention ends within half a microsecond of it.
    """
    alone = graph.with_tasks(device=np.full(len(graph.tasks), -1))
    start, end = simulate(alone)
    rank = ranks_of(graph)
    meetings = meetings_of(graph, rank)
    waits = [*_own_waits(graph, rank), *_through_meetings(graph, rank)]
    waits_for, delays = _with_delays(graph, rank, (start, end), waits)
    start_us = _us(start)
    return Nodes(rank, start_us, _us(end) - start_us, waits_for, delays, meetings, _unexpressed(graph, rank, meetings))


def _us(times: Floats) -> Ints:
    return np.rint(np.maximum(times, 0.0) / 1000).astype(np.int64)


def _own_waits(graph: KernelGraph, rank: Ints) -> Iterator[_Wait]:
    """Yield the edges within ranks."""
    edges = graph.edges
    for e in np.flatnonzero(rank[edges.source] == rank[edges.target]).tolist():
        yield _Wait(int(edges.source[e]), int(edges.target[e]), float(edges.lag_ns[e]), bool(edges.from_start[e]))


def _through_meetings(graph: KernelGraph, rank: Ints) -> Iterator[_Wait]:
    """Yield what a task waits for on its own rank behind a mark of another rank's file."""
    edges, tasks = graph.edges, graph.tasks
    between = (tasks.lane < 0) & (tasks.duration_ns == 0)
    into: dict[int, list[int]] = {}
    for e in np.flatnonzero(between[edges.target]).tolist():
        into.setdefault(int(edges.target[e]), []).append(e)
    for e in np.flatnonzero(between[edges.source] & (rank[edges.source] != rank[edges.target])).tolist():
        target = int(edges.target[e])
        for first in into.get(int(edges.source[e]), ()):
            if rank[edges.source[first]] == rank[target]:
                lag = float(edges.lag_ns[first] + edges.lag_ns[e])
                yield _Wait(int(edges.source[first]), target, lag, bool(edges.from_start[first]))


class _Delays:
    """Nodes between tasks under construction, by the times of a replay."""

    def __init__(self, graph: KernelGraph, rank: Ints) -> None:
        self._host, self._rank = graph.tasks.device < 0, rank
        self.nodes: list[Delay] = []

    def add(self, task: int, name: str, times_ns: tuple[float, float], waits_for: tuple[int, ...]) -> int:
        """Append what comes before a task; return its id."""
        begin, end = _us(np.array(times_ns)).tolist()
        id_ = len(self._rank) + 1 + len(self.nodes)
        host, rank = bool(self._host[task]), int(self._rank[task])
        self.nodes.append(Delay(id_, rank, name, begin, end - begin, waits_for, host))
        return id_

    def wait(self, id_: int, waits_for: tuple[int, ...]) -> None:
        """Let a node wait for others."""
        at = id_ - len(self._rank) - 1
        self.nodes[at] = replace(self.nodes[at], waits_for=waits_for)


def _with_delays(
    graph: KernelGraph, rank: Ints, times: tuple[Floats, Floats], waits: list[_Wait]
) -> tuple[tuple[tuple[int, ...], ...], tuple[Delay, ...]]:
    """Return what each task waits for, and the nodes in between; a loop over edges, about 10 us each."""
    start, end = times
    delays = _Delays(graph, rank)
    found = _after_releases(graph, rank, delays)
    begins = {wait.source: -1 for wait in waits if wait.from_start}
    for source in begins:
        begins[source] = delays.add(source, "start", (float(start[source]), float(start[source])), ())
    for wait in waits:
        node = begins[wait.source] if wait.from_start else wait.source + 1
        if wait.lag_ns > 0:
            since = float((start if wait.from_start else end)[wait.source])
            node = delays.add(wait.target, "lag", (since, since + wait.lag_ns), (node,))
        found[wait.target].append(node)
    # What a task waits for, its start does; the task then waits for nothing but its start.
    for source, begin in begins.items():
        delays.wait(begin, tuple(sorted({*found[source]})))
        found[source] = [begin]
    return tuple(tuple(sorted({*one})) for one in found), tuple(delays.nodes)


def _after_releases(graph: KernelGraph, rank: Ints, delays: _Delays) -> list[list[int]]:
    """Return by task the node that ends at its release, if it has one.

    Each follows the release before it on its rank, so that they take one place of a simulator, one after the other.
    """
    release = graph.tasks.release_ns
    found: list[list[int]] = [[] for _ in range(len(graph.tasks))]
    last: dict[int, tuple[float, tuple[int, ...]]] = {}
    rows = np.flatnonzero(release > 0)
    for task in rows[np.lexsort((rows, release[rows]))].tolist():
        place, time = int(rank[task]), float(release[task])
        since, before = last.get(place, (0.0, ()))
        if time > since:
            last[place] = time, (delays.add(task, "release", (since, time), before),)
        found[task] += last[place][1]
    return found


def _unexpressed(graph: KernelGraph, rank: Ints, meetings: Meetings) -> int:
    """Return how many edges between ranks nothing in the files stands for."""
    edges = graph.edges
    apart = rank[edges.source] != rank[edges.target]
    met = np.unique(meetings.mark[(meetings.mark >= 0) & ((meetings.group >= 0) | (meetings.peer >= 0))])
    stood_for = np.isin(edges.target, met) | np.isin(edges.source, met)
    return int((apart & ~stood_for).sum())


#: Of our attributes; a reader refuses one that it does not know.
FORM = 1
#: What of a graph is written another way than as a fact.
NOT_FACTS = frozenset({"tasks", "edges", "names"})
_VERSION = b"0.0.4"
#: ASTRA-sim takes as many dimensions of the network when a node does not say which it uses.
_ALL_DIMENSIONS = np.ones(4, dtype=bool)
_MOST_OPERATIONS = (1 << 63) - 1


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
        header = MetadataMessage(version=[_VERSION])
        add_attribute(header.attr, "schema", "seqpoint graph")
        add_attribute(header.attr, f"{OWN}form", FORM)
        add_attribute(header.attr, f"{OWN}graph", self._id)
        add_array(header.attr, f"{OWN}ranks", np.unique(self._nodes.rank))
        serialize_length_prefixed(header, stream)
        for message in self._messages(rank):
            serialize_length_prefixed(message, stream)

    def _digest(self) -> str:
        """Return what tells the files of this graph from those of another."""
        digest = hashlib.sha256(self._facts.encode())
        for table in (self._graph.tasks, self._graph.edges):
            for values in columns_of(table).values():
                digest.update(np.ascontiguousarray(values).tobytes())
        return digest.hexdigest()[:16]

    def _messages(self, rank: int) -> Iterator[Any]:
        rows = np.flatnonzero(self._nodes.rank == rank).tolist()
        first = rank == self._nodes.rank.min()
        for row in rows:
            message = self._task(row)
            if first and row == rows[0]:
                add_attribute(message.attr, f"{OWN}facts", self._facts)
            yield message
        for delay in self._nodes.delays:
            if delay.rank == rank:
                yield _delay(delay)

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
        add_attribute(message.attr, f"{OWN}task", row)
        self._tasks.add(row, message.attr)
        if len(self._into[row]):
            add_edges(self._edges, self._into[row], f"{OWN}edge_", message.attr)
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
            add_array(attributes, "tensor_size", np.asarray(moved, np.uint64))

    def _add_communication(self, row: int, attributes: Any) -> int:
        """Return the type of a task's node; add the attributes that it has as communication."""
        meetings, tasks = self._nodes.meetings, self._graph.tasks
        if (group := int(meetings.group[row])) >= 0:
            kind = COMMUNICATION[COLLECTIVE_KINDS[tasks.collective[row]]]
            add_attribute(attributes, "comm_type", kind)
            add_attribute(attributes, "comm_size", int(tasks.bytes[row]))
            add_array(attributes, "involved_dim", _ALL_DIMENSIONS)
            if group:
                add_attribute(attributes, "pg_name", str(group))
            return COLLECTIVE
        if (peer := int(meetings.peer[row])) < 0:
            return COMPUTE
        tag = self._tags.setdefault(int(meetings.mark[row]), len(self._tags))
        rank = int(self._nodes.rank[row])
        source, destination = (rank, peer) if meetings.sends[row] else (peer, rank)
        add_attribute(attributes, "comm_size", int(tasks.bytes[row]))
        for name, value in (("comm_src", source), ("comm_dst", destination), ("comm_tag", tag)):
            add_array(attributes, name, np.asarray(value, np.int32))
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
    add_attribute(message.attr, f"{OWN}delay", delay.name)
    return message
