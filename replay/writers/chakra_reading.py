"""A graph read back from Chakra execution traces.

The nodes of one file of one rank, checked.

Tasks and edges one at a time, for `replay.from_trace.draft.Draft`, which takes blocks.

Which communication nodes of several files belong together.

Chakra files of other tools as a graph: nodes, durations, dependencies, and ranks that meet.

Chakra execution traces as a graph: exactly the one that was written, or what a foreign file says.
"""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import numpy as np
import numpy.typing as npt

from profilers.errors import BrokenFileError, InvalidInputError, UnknownFormatError
from profilers.readers.chakra.protobuf import (
    CATEGORIES,
    COLLECTIVE,
    LOAD,
    METADATA,
    RECEIVE,
    SEND,
    STORE,
    Node,
    is_chakra,
    read_records,
)
from profilers.readers.chakra.reader import is_execution_trace
from profilers.readers.common.numbers import whole
from profilers.readers.common.source import head, open_source
from profilers.trace.kernels import CLASSES, classify
from replay.calibration.parameters import Parameters
from replay.costs.demand import isolate
from replay.engine.engine import simulate
from replay.from_trace.draft import Draft, NewEdges
from replay.graph.graph import (
    COLLECTIVE_KINDS,
    RESOURCES,
    EdgeKind,
    Edges,
    Hardware,
    KernelGraph,
    Lane,
    TaskKind,
    Tasks,
)
from replay.writers.chakra import FORM, NOT_FACTS, OWN, Described, filled, from_json, joined_lists

#: What simulators expect the file of a rank to be called.
_RANK = re.compile(r"\.(\d{1,9})\.et(?:\.\w+)?$")
_TYPES = frozenset({*range(COLLECTIVE + 1), *CATEGORIES})


@dataclass(frozen=True)
class RankFile:
    """One file.

    Parameters
    ----------
    path : Path
    rank : int, optional
        As the file's name states it.
    header : dict of str to Any
        What the file says of itself.
    nodes : tuple of Node
        In the order of the file.
    """

    path: Path
    rank: int | None
    header: dict[str, Any]
    nodes: tuple[Node, ...]


def open_rank(path: Path) -> RankFile:
    """Return the nodes of a file.

    Raises
    ------
    NotFoundError
        There is no such file.
    UnknownFormatError
        It is no Chakra file.
    BrokenFileError
        It is cut off or damaged, holds no node, one id twice, or a node of a type that the schema does not have.
    """
    start = head(path)
    if is_execution_trace(start):
        raise InvalidInputError(
            f"{path}: PyTorch's execution trace says no durations; collect a Kineto trace of the same steps instead"
        )
    if not is_chakra(start):
        raise UnknownFormatError(f"{path}: is no Chakra execution trace (protobuf, metadata and then nodes)")
    counts: Counter[str] = Counter()
    header: dict[str, Any] = {}
    with open_source(path) as stream:
        nodes = tuple(read_records(stream, header, counts))  # a Python loop over the nodes, about 20 us each
        truncated = getattr(stream, "truncated", False)
    if truncated or counts["truncated_files"]:
        raise BrokenFileError(f"{path}: is cut off or damaged behind node {len(nodes)}; write or copy it again")
    if counts["dropped_broken"]:
        raise BrokenFileError(f"{path}: {counts['dropped_broken']} of its nodes are damaged; write or copy it again")
    _check(path, nodes)
    match = _RANK.search(path.name)
    return RankFile(path, int(match[1]) if match else None, header, nodes)


def _check(path: Path, nodes: tuple[Node, ...]) -> None:
    if not nodes:
        raise BrokenFileError(f"{path}: holds no node")
    seen: set[int] = set()
    for node in nodes:
        if node.id in seen:
            raise BrokenFileError(f"{path}: two nodes have the id {node.id}")
        seen.add(node.id)
        if node.type not in _TYPES:
            raise BrokenFileError(f"{path}: node {node.id} is of type {node.type}, which Chakra's schema does not have")
    for node in nodes:
        for before in node.data_deps:
            if before not in seen:
                raise BrokenFileError(f"{path}: node {node.id} waits for node {before}, which the file does not hold")


class DraftRows:
    """Collects rows; `freeze` makes the graph."""

    def __init__(self) -> None:
        self._draft = Draft()
        self._columns: dict[str, list[Any]] = defaultdict(list)
        self._edges: list[tuple[int, int, int]] = []

    def task(
        self, kind: TaskKind, name: str, lane: Lane | None, *, times: tuple[float, float] | None, row: Mapping[str, int]
    ) -> int:
        """Append a task and return its number.

        Parameters
        ----------
        times : (start, end), optional
            None for what nobody measured: it takes no time.
        row : mapping
            ``class_``, ``event``, ``bytes``, ``collective``: those that differ from their default.
        """
        nan = float("nan")
        start, end = times if times is not None else (nan, nan)
        number, device = (-1, -1) if lane is None else self._draft.lane(lane)
        known = {"class_": -1, "event": -1, "bytes": 0, "collective": -1, **row}
        known |= {"kind": int(kind), "name": self._draft.name(name), "lane": number, "device": device}
        for column, value in {**known, "measured_start_ns": start, "measured_end_ns": end}.items():
            self._columns[column].append(value)
        return len(self._columns["kind"]) - 1

    def edge(self, source: int, target: int, kind: EdgeKind) -> None:
        """Append an edge without a lag."""
        self._edges.append((source, target, int(kind)))

    def freeze(self, hardware: Hardware) -> KernelGraph:
        """Return the graph, without demands."""
        self._draft.tasks(len(self._columns["kind"]), self._columns)
        source, target, kind = np.array(self._edges, dtype=np.int64).reshape(-1, 3).T
        self._draft.edges(NewEdges(source, target, 0.0, kind))
        return self._draft.freeze(hardware)


#: A node, and its rank.
Part = tuple[int, Node]
Key = tuple[str, str, str, str]

_COLLECTIVES = (
    *("all_reduce", "reduce", "all_gather", "gather", "scatter", "broadcast", "all_to_all", "reduce_scatter"),
    *("reduce_scatter", "barrier"),
)


def communicates(node: Node) -> bool:
    """Return whether a node is communication of the device; some converters give that type to its call too."""
    return node.type in (COLLECTIVE, SEND, RECEIVE) and node.attributes.get("is_cpu_op") is not True


def collective_of(node: Node) -> str:
    """Return which of `replay.graph.COLLECTIVE_KINDS` a node of communication is."""
    if node.type != COLLECTIVE:
        return "send_recv"
    number = whole(node.attributes.get("comm_type"))
    return _COLLECTIVES[number] if number is not None and 0 <= number < len(_COLLECTIVES) else "unknown"


def in_order(nodes: Sequence[Node]) -> list[Node]:
    """Return nodes by start, as far as they say it, then by id."""
    return sorted(nodes, key=lambda node: (node.start_us or 0, node.id))


def partners(ranks: Mapping[int, Sequence[Node]]) -> list[list[Part]]:
    """Return the parts of each communication in which several of the ranks take part.

    The n-th collective of a process group is the same on all ranks that have the group, the n-th receive of a tag
    belongs to the n-th send.

    Parameters
    ----------
    ranks : mapping of int to sequence of Node

    Raises
    ------
    InvalidInputError
        A rank lacks its part, or has another collective at its place.
    """
    parts: dict[tuple[Key, int], list[Part]] = defaultdict(list)
    members: dict[Key, set[int]] = defaultdict(set)
    for rank, nodes in ranks.items():
        seen: Counter[Key] = Counter()
        for node in in_order([one for one in nodes if communicates(one)]):
            known = _key(node, rank)
            if known is None:
                continue
            key, expected = known
            members[key] |= expected & ranks.keys()
            parts[key, seen[key]].append((rank, node))
            seen[key] += 1
    for (key, _), found in parts.items():
        _check_partners(found, members[key])
    return [found for found in parts.values() if len(found) > 1]


def _key(node: Node, rank: int) -> tuple[Key, set[int]] | None:
    """Return what the parts have in common and whose they are for certain; None where the node does not say it."""
    at = node.attributes
    if node.type == COLLECTIVE:
        return ("group", str(at.get("pg_name", at.get("comm_group", ""))), str(at.get("group_ranks", "")), ""), {rank}
    source = rank if node.type == SEND else whole(at.get("comm_src"))
    target = rank if node.type == RECEIVE else whole(at.get("comm_dst"))
    if source is None or target is None:
        return None
    return ("pair", str(source), str(target), str(at.get("comm_tag", ""))), {source, target}


def _check_partners(found: Sequence[Part], members: set[int]) -> None:
    rank, node = found[0]
    what = f"{node.name[:60]} (node {node.id} of rank {rank})"
    if missing := members - {rank for rank, _ in found}:
        raise InvalidInputError(f"{what} has no part on rank {min(missing)}, which has fewer of this group")
    for other, one in found:
        if collective_of(one) != collective_of(node):
            raise InvalidInputError(
                f"{what} is {collective_of(node)}, at its place on rank {other} is {collective_of(one)} (node {one.id})"
            )


_CLASS = {name: index for index, name in enumerate(CLASSES)}
#: Nodes that say something of the trace and take no time.
_SAYING = (0, METADATA)
#: Nothing lasts longer (us): 35 years.
_LONGEST_US = 1 << 50


def foreign_graph(files: Sequence[RankFile], hardware: Hardware, parameters: Parameters) -> KernelGraph:
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
    return isolate(graph.with_notes(_notes(reading)), parameters)


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
                "simulator works out; write what replay.costs.collectives.predict_collective says for its comm_size"
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


_EDGE = f"{OWN}edge_"
#: No time is longer, ns: 31 years.
_LONGEST_NS = 1e18


def read_chakra(paths: Sequence[Path], hardware: Hardware | None = None, *, parameters: Parameters) -> KernelGraph:
    """Return the graph that files hold, one file a rank.

    What `write_chakra` wrote comes back as it was, to the bit. A file of another tool gives a graph of its nodes,
    durations, ``data_deps`` and collectives; what it does not say is told in the graph's notes.

    Parameters
    ----------
    paths : sequence of Path
        ``NAME.RANK.et``; of what `write_chakra` wrote, all.
    hardware : Hardware, optional
        What the devices are; files of other tools do not say.
    parameters : Parameters
        Contention model by which measured durations of files of other tools are isolated.

    Raises
    ------
    SeqPointError
        No file, or one that is missing, twice there, of another graph, cut off, damaged, or says no durations.
    """
    if not paths:
        raise InvalidInputError("no Chakra file to read; give the files of all ranks")
    files = [open_rank(path) for path in paths]
    ours = [f"{OWN}graph" in file.header for file in files]
    if not any(ours):
        return foreign_graph(files, hardware or Hardware(), parameters)
    if not all(ours):
        raise InvalidInputError(f"{files[ours.index(False)].path}: was written by another tool than {files[0].path}")
    return _graph(_in_order(files))


@dataclass(frozen=True)
class _Facts:
    """What is true of the whole graph, as the first file says."""

    graph: dict[str, Any]
    tasks: int
    edges: int
    names: int
    task_columns: Described
    edge_columns: Described
    resources: tuple[str, ...]


def _in_order(files: Sequence[RankFile]) -> list[RankFile]:
    """Return the files by rank; all of one graph, and all of its ranks."""
    first = files[0]
    for file in files:
        if file.header.get(f"{OWN}form") != FORM:
            raise InvalidInputError(f"{file.path}: was written by another version of this toolkit, in another form")
        if file.header[f"{OWN}graph"] != first.header[f"{OWN}graph"]:
            raise InvalidInputError(f"{file.path}: is of another graph than {first.path}")
    ranks = first.header.get(f"{OWN}ranks")
    held: dict[int, RankFile] = {}
    for file in files:
        rank = -1 if file.rank is None else file.rank
        if held.setdefault(rank, file) is not file:
            raise InvalidInputError(f"{file.path}: is of the same rank as {held[rank].path}")
    if not isinstance(ranks, list) or sorted(held) != ranks:
        raise InvalidInputError(f"the graph has the ranks {ranks}, the files' names say {sorted(held)}; give all of it")
    return [held[rank] for rank in ranks]


def _graph(files: Sequence[RankFile]) -> KernelGraph:
    where = str(files[0].path)
    try:
        facts = _facts(files[0])
        nodes = _tasks_of(files, facts)
        columns = filled(facts.task_columns, nodes, OWN)
        edges = _edges(facts, list(nodes.values()))
        for name in ("duration_ns", "release_ns"):
            _check_times(files, nodes, name, (columns[name], np.arange(facts.tasks)))
        _check_times(files, nodes, "edge_lag_ns", (edges.lag_ns, edges.target))
        parts: dict[str, Any] = {"tasks": _tasks(columns, facts), "edges": edges}
        parts["names"] = _names(columns, facts, nodes)
        hints = get_type_hints(KernelGraph)
        own = {name: from_json(hints[name], json.dumps(value)) for name, value in facts.graph.items()}
        graph = KernelGraph(**parts, **own)
        _check_places(graph)
        _check_unchanged(graph, nodes)
    except (KeyError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise BrokenFileError(f"{where}: its graph cannot be read ({reason}); did a later version write it?") from error
    except (BrokenFileError, InvalidInputError) as error:
        raise BrokenFileError(f"{where}: {error}") from error
    return graph


def _facts(file: RankFile) -> _Facts:
    found = [node.attributes[key] for node in file.nodes if (key := f"{OWN}facts") in node.attributes]
    if len(found) != 1:
        raise BrokenFileError("it does not say what its graph is; write it again")
    facts = _Facts(**json.loads(found[0]))
    if NOT_FACTS & facts.graph.keys():
        raise BrokenFileError("what is said of its graph cannot be")
    return facts


def _tasks_of(files: Sequence[RankFile], facts: _Facts) -> dict[int, Node]:
    """Return the node of each task, in their order."""
    found: dict[int, Node] = {}
    for file in files:
        for node in file.nodes:
            if (row := node.attributes.get(f"{OWN}task")) is not None:
                if found.setdefault(row, node) is not node:
                    raise BrokenFileError(f"two nodes stand for the task {row}")
            elif f"{OWN}delay" not in node.attributes:
                raise BrokenFileError(f"{file.path.name}: node {node.id} was added by another tool")
    if found.keys() != set(range(facts.tasks)):
        raise BrokenFileError(f"nodes stand for {len(found)} of {facts.tasks} tasks; write or copy the files again")
    return {row: found[row] for row in range(facts.tasks)}


def _edges(facts: _Facts, nodes: Sequence[Node]) -> Edges:
    columns = joined_lists(facts.edge_columns, nodes, _EDGE)
    row = columns.pop("row")
    target = [np.full(len(node.attributes.get(f"{_EDGE}row", ())), at) for at, node in enumerate(nodes)]
    columns["target"] = np.concatenate(target).astype(np.int64)
    if sorted(row.tolist()) != list(range(facts.edges)) or len(columns["target"]) != facts.edges:
        raise BrokenFileError(f"it holds {len(row)} of {facts.edges} edges; write or copy the files again")
    order = np.argsort(row)
    return Edges(**{name: values[order] for name, values in columns.items()})


def _tasks(columns: Mapping[str, npt.NDArray[Any]], facts: _Facts) -> Tasks:
    """Return the tasks; demands on the resources of today."""
    demand, names = columns["demand"], list(facts.resources)
    if demand.ndim != 2 or demand.shape[1] != len(names):
        raise BrokenFileError(f"demands are on {demand.shape[1:]} resources, of which {len(names)} have a name")
    gone = [name for i, name in enumerate(names) if name not in RESOURCES and demand[:, i].any()]
    if gone:
        raise BrokenFileError(f"tasks use the resource {gone[0]!r}, which this version does not know")
    now = np.zeros((len(demand), len(RESOURCES)))
    for i, name in enumerate(RESOURCES):
        if name in names:
            now[:, i] = demand[:, names.index(name)]
    return Tasks(**{**columns, "demand": now})


def _names(columns: Mapping[str, npt.NDArray[Any]], facts: _Facts, nodes: Mapping[int, Node]) -> tuple[str, ...]:
    """Return the names by number; one that no task has is empty."""
    numbers = columns["name"].tolist()
    if not all(0 <= number < facts.names for number in numbers) or facts.names > (1 << 32):
        raise BrokenFileError("a task has a name that the graph does not have")
    names = [""] * facts.names
    for number, node in zip(numbers, nodes.values(), strict=True):
        names[number] = node.name
    return tuple(names)


def _check_times(
    files: Sequence[RankFile],
    nodes: Mapping[int, Node],
    name: str,
    times: tuple[npt.NDArray[Any], npt.NDArray[Any]],
) -> None:
    """Refuse times, each with the task that it is of, that are longer than anything lasts."""
    values, tasks = times
    if (long := np.flatnonzero(values > _LONGEST_NS)).size:
        node = nodes[int(tasks[long[0]])]
        file = next(file for file in files if any(one is node for one in file.nodes))
        raise BrokenFileError(
            f"{file.path.name}: node {node.id} has {OWN}{name} {values[long[0]]:g}; {_LONGEST_NS:g} at most"
        )


def _check_places(graph: KernelGraph) -> None:
    """Refuse numbers of lanes, devices and operators that the graph does not have."""
    tasks = graph.tasks
    for name, known in (("lane", graph.lanes), ("device", graph.devices), ("operator", graph.operators),
                        ("iteration", graph.iterations)):  # fmt: skip
        values = getattr(tasks, name)
        if len(values) and (values.min() < -1 or values.max() >= len(known)):
            raise BrokenFileError(f"a task has a {name} that the graph does not have")


def _check_unchanged(graph: KernelGraph, nodes: Mapping[int, Node]) -> None:
    """Refuse durations that another tool has changed, which the graph would not show."""
    said = np.array([float(node.duration_us or 0) for node in nodes.values()]) * 1000
    own = graph.tasks.duration_ns
    # Times are rounded, so that a duration may be up to 1 us off.
    if (changed := np.flatnonzero(np.abs(said - own) > 1001 + 1e-6 * own)).size:
        row = int(changed[0])
        raise InvalidInputError(
            f"node {nodes[row].id} lasts {nodes[row].duration_us} us, its {OWN}duration_ns is {own[row]:g}: another "
            f"tool changed it; without {OWN}graph in the metadata of all files they are read as those of another tool"
        )
