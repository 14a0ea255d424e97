"""Which collectives of a graph are communication to a simulator, and in which group of ranks."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from replay.graph import COLLECTIVE_KINDS, EdgeKind, KernelGraph, TaskKind

__all__ = ["COMMUNICATION", "Meetings", "meetings_of", "ranks_of"]

Ints = npt.NDArray[np.int64]

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
