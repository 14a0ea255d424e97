"""Chakra execution traces as a graph: exactly the one that was written, or what a foreign file says."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import numpy.typing as npt

from profilers.chakra.nodes import Node
from profilers.errors import BrokenFileError, InvalidInputError
from replay.chakra.columns import OWN, Described, filled, joined_lists
from replay.chakra.facts import from_json
from replay.chakra.files import RankFile, open_rank
from replay.chakra.foreign import foreign_graph
from replay.chakra.writer import FORM, NOT_FACTS
from replay.graph import RESOURCES, Edges, Hardware, KernelGraph, Tasks

__all__ = ["read_chakra"]

_EDGE = f"{OWN}edge_"
#: No time is longer, ns: 31 years.
_LONGEST_NS = 1e18


def read_chakra(paths: Sequence[Path], hardware: Hardware | None = None) -> KernelGraph:
    """Return the graph that files hold, one file a rank.

    What `write_chakra` wrote comes back as it was, to the bit. A file of another tool gives a graph of its nodes,
    durations, ``data_deps`` and collectives; what it does not say is told in the graph's notes.

    Parameters
    ----------
    paths : sequence of Path
        ``NAME.RANK.et``; of what `write_chakra` wrote, all.
    hardware : Hardware, optional
        What the devices are; files of other tools do not say.

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
        return foreign_graph(files, hardware or Hardware())
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
