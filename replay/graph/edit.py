"""Edits of a graph that several packages share: other times of a resource, tasks left out, rows in another order."""

from dataclasses import replace
from types import MappingProxyType
from typing import Final

import numpy as np

from profilers.trace.arrays import Bools, Ints
from profilers.trace.compiled import compiled
from replay.graph.columns import EDGE_KINDS
from replay.graph.graph import HOST_TIME_EDGES, LOADER_PREFIX, EdgeKind, Edges, KernelGraph, TaskKind

#: Resources that can limit a step. "device" is all work on devices: kernels, communication and copies.
LIMITING: Final = ("host", "loader", "device", "kernels", "communication", "copies")
#: Kinds of edges whose lag is time of a resource.
_LAGS: Final = MappingProxyType(
    {name: tuple(kind for kind, facts in EDGE_KINDS.items() if facts.time_of == name) for name in LIMITING}
)


def loader_tasks(graph: KernelGraph) -> Bools:
    """Return which tasks are calls of the input pipeline."""
    has_prefix = np.array([name.startswith(LOADER_PREFIX) for name in graph.names], dtype=bool)
    return np.asarray(has_prefix[graph.tasks.name] & (graph.tasks.kind == TaskKind.HOST))


def with_host_time(graph: KernelGraph, factor: float) -> KernelGraph:
    """Return a graph with the time of host calls, and the host time between them, multiplied by `factor`.

    The time by which a rank begins to record after the first one stays, since nobody knows what it is.
    """
    tasks, edges = graph.tasks, graph.edges
    later_ns = np.maximum(tasks.release_ns - graph.late_recording_ns(), 0.0)
    graph = graph.with_tasks(
        duration_ns=np.where(tasks.kind == TaskKind.HOST, tasks.duration_ns * factor, tasks.duration_ns),
        release_ns=np.where(tasks.device < 0, tasks.release_ns + (factor - 1.0) * later_ns, tasks.release_ns),
    )
    return replace(graph, edges=host_time_edges(edges, factor))


def host_time_edges(edges: Edges, factor: float) -> Edges:
    """Return edges with the time of hosts between calls multiplied by `factor`."""
    is_host_time = np.isin(edges.kind, sorted(HOST_TIME_EDGES))
    return replace(edges, lag_ns=np.where(is_host_time, edges.lag_ns * factor, edges.lag_ns))


def scaled_time(graph: KernelGraph, resource: str, factor: float) -> KernelGraph:
    """Return a graph in which the tasks of a resource, and the host time between calls, take `factor` times as long.

    Parameters
    ----------
    graph : KernelGraph
        The graph.
    resource : str
        One of `LIMITING`.
    factor : float
        New time over old, 0 or more.
    """
    if resource == "host":  # calls that load a batch in the host's own process are its work
        return with_host_time(graph, factor)
    if resource == "loader":
        scaled, edges = loader_tasks(graph), graph.edges
        lag_ns = np.where(edges.kind == EdgeKind.LOADER, edges.lag_ns * factor, edges.lag_ns)
        graph = replace(graph, edges=replace(edges, lag_ns=lag_ns))
    else:
        scaled = _device_tasks(graph, resource)
    duration_ns = graph.tasks.duration_ns
    return graph.with_tasks(duration_ns=np.where(scaled, duration_ns * factor, duration_ns))


def _device_tasks(graph: KernelGraph, resource: str) -> Bools:
    """Return the tasks of a resource on devices."""
    on_device, is_copy, is_collective = graph.on_device(), graph.tasks.kind == TaskKind.COPY, graph.collectives()
    masks = {"device": on_device, "copies": is_copy, "communication": is_collective}
    return np.asarray(masks.get(resource, on_device & ~is_copy & ~is_collective))


def without_time(graph: KernelGraph, resource: str) -> KernelGraph:
    """Return a graph in which a resource takes no time: the most that any gain on it could be.

    Its tasks and lags take no time. If communication takes none, only communication waits for it, also for ranks that
    come late.

    Parameters
    ----------
    graph : KernelGraph
        The graph.
    resource : str
        One of `LIMITING`.
    """
    if resource in ("communication", "device"):
        graph = without_waits(graph)
    graph = scaled_time(graph, resource, 0.0)
    parts = ("kernels", "communication") if resource == "device" else (resource,)
    kinds, edges = [int(kind) for part in parts for kind in _LAGS.get(part, ())], graph.edges
    return replace(graph, edges=replace(edges, lag_ns=np.where(np.isin(edges.kind, kinds), 0.0, edges.lag_ns)))


def without_contention(graph: KernelGraph) -> KernelGraph:
    """Return a graph whose collectives and copies use no shared resource, so that they slow no kernel."""
    free = np.flatnonzero(np.isin(graph.tasks.kind, (TaskKind.COLLECTIVE, TaskKind.COPY)))
    columns = {name: getattr(graph.tasks, name).copy() for name in ("demand", "occupies", "pressure", "spins")}
    for column in columns.values():
        column[free] = 0.0
    return graph.with_tasks(**columns)


def without_waits(graph: KernelGraph) -> KernelGraph:
    """Return a graph in which only communication waits for collectives, and collectives slow no kernel."""
    graph = without_contention(graph)
    tasks, edges = graph.tasks, graph.edges
    # Marks at which a rank arrives at a collective, or at which all ranks have arrived.
    arrivals = np.zeros(len(tasks), dtype=np.bool_)
    arrivals[edges.source[edges.kind == EdgeKind.RENDEZVOUS]] = True
    communication = (tasks.kind == TaskKind.COLLECTIVE) | (arrivals & (tasks.kind == TaskKind.MARK))
    before, after = communication[edges.source], communication[edges.target]
    leaving = before & ~after & (edges.kind != EdgeKind.RENDEZVOUS)
    same_lane = tasks.lane[edges.source] == tasks.lane[edges.target]
    entering = ~before & after & same_lane
    # The predecessor of a collective on its stream still runs before the successor.
    predecessor = dict(zip(edges.target[entering].tolist(), edges.source[entering].tolist(), strict=True))
    followed = leaving & same_lane
    bridges = [
        (predecessor[arrival], target)
        for arrival, target in zip(
            graph.arrivals()[edges.source[followed]].tolist(), edges.target[followed].tolist(), strict=True
        )
        if arrival in predecessor
    ]
    pairs = np.array(bridges, dtype=np.int64).reshape(-1, 2)
    bridge = Edges.of(pairs[:, 0], pairs[:, 1], kind=EdgeKind.STREAM)
    return replace(graph, edges=edges.select(~leaving).joined(bridge))


def without_tasks(
    graph: KernelGraph, gone: Bools, *, work_of: Ints | None = None, heirs: Ints | None = None
) -> KernelGraph:
    """Return a graph without some tasks, and other tasks in their place at the edges.

    Parameters
    ----------
    graph : KernelGraph
        The graph.
    gone : array of bool, shape (n_tasks,)
        Mask of the tasks to leave out.
    work_of : array of int64, shape (n_tasks,), optional
        Task that does the work of each task that goes: what waited for that work waits for the end of this task. -1,
        which is the default, for none: nothing waits for the work any more.
    heirs : array of int64, shape (n_tasks,), optional
        Task that waits for what each task that goes waited for; -1, which is the default, for none.
    """
    edges, number, itself = graph.edges, np.cumsum(~gone) - 1, np.arange(len(gone))
    source, target = (
        np.where(gone, -1 if others is None else others, itself)[ends]
        for others, ends in ((work_of, edges.source), (heirs, edges.target))
    )
    # A task that does the work of another does not tell when that work begins.
    unknown = gone[edges.source] & edges.from_start
    moved = replace(
        edges,
        source=number[source],
        target=number[target],
        lag_ns=np.where(unknown, 0.0, edges.lag_ns),
        from_start=edges.from_start & ~unknown,
    )
    kept = moved.select((source >= 0) & (target >= 0) & (source != target))
    return replace(graph, tasks=graph.tasks.select(~gone), edges=kept)


def next_left_on_lane(graph: KernelGraph, gone: Bools) -> Ints:
    """Return the next task of each task's lane that does not go, -1 for none; a task that does not go is its own."""
    following, left = next_on_lane(graph), np.arange(len(gone))
    for row in np.flatnonzero(gone)[::-1].tolist():  # from the last, so that the next is known; about 1 us a task
        after = following[row]
        left[row] = left[after] if after >= 0 else -1
    return left


def next_on_lane(graph: KernelGraph) -> Ints:
    """Return the task after each one on its lane, in the order of rows; -1 after the last, and for marks between."""
    lane = graph.tasks.lane
    order = np.arange(len(lane))
    return np.where(lane >= 0, previous_on_lane(lane, order[::-1], np.ones(len(lane), dtype=bool)), -1)


def previous_on_lane(lane: Ints, order: Ints, among: Bools) -> Ints:
    """Return the last task before each task on its lane, among some; -1 for none.

    Parameters
    ----------
    lane : array of int64
        Lane of each task.
    order : array of int64
        All tasks, in the order in which they run; in reverse order, the result is the next task.
    among : array of bool
        Mask of the tasks that count.
    """
    by_lane = order[np.argsort(lane[order], kind="stable")]
    position = np.where(among[by_lane], np.arange(len(by_lane)), -1)
    latest = np.maximum.accumulate(np.concatenate([[-1], position[:-1]]))
    on_lane = (latest >= 0) & (lane[by_lane[np.maximum(latest, 0)]] == lane[by_lane])
    previous = np.full(len(lane), -1)
    previous[by_lane] = np.where(on_lane, by_lane[np.maximum(latest, 0)], -1)
    return previous


def reordered(graph: KernelGraph, order: Ints) -> KernelGraph:
    """Return a graph with its rows in another order.

    Parameters
    ----------
    graph : KernelGraph
        The graph.
    order : array of int64, shape (n_tasks,)
        Old row of each new row.
    """
    row = np.empty(len(order), dtype=np.int64)
    row[order] = np.arange(len(order))
    edges = replace(graph.edges, source=row[graph.edges.source], target=row[graph.edges.target])
    return replace(graph, tasks=graph.tasks.select(order), edges=edges)


def in_lane_order(graph: KernelGraph) -> KernelGraph:
    """Return the graph with the rows of each lane in the order in which they run; itself if they are already.

    What-ifs that find layers, or put tasks between others, read the rows of a lane in this order.
    """
    edges, lane = graph.edges, graph.tasks.lane
    on_lane = (lane[edges.source] == lane[edges.target]) & (lane[edges.source] >= 0)
    arrival = graph.arrival_marks()
    if (edges.source[on_lane] < edges.target[on_lane]).all() and (arrival < np.arange(len(lane))).all():
        return graph
    return reordered(graph, lane_order(graph))


def lane_order(graph: KernelGraph) -> Ints:
    """Return the rows of a graph by lane, those of each lane in the order in which they run."""
    edges = graph.edges
    depth = _depths(edges.source, edges.target, len(graph.tasks))
    return np.lexsort((np.arange(len(depth)), depth, graph.tasks.lane))


@compiled
def _depths(source, target, n):  # type: ignore[no-untyped-def]
    """Return the number of edges on the longest path to each of n tasks; edges of a circle count nothing."""
    first_edge, next_edge, waiting = np.full(n, -1), np.empty(len(source), np.int64), np.zeros(n, np.int64)
    for e in range(len(source)):
        next_edge[e] = first_edge[source[e]]
        first_edge[source[e]] = e
        waiting[target[e]] += 1
    depth, ready, size = np.zeros(n, np.int64), np.empty(n, np.int64), 0
    for task in range(n):
        if waiting[task] == 0:
            ready[size] = task
            size += 1
    done = 0
    while done < size:
        task = ready[done]
        done += 1
        e = first_edge[task]
        while e >= 0:
            following = target[e]
            depth[following] = max(depth[following], depth[task] + 1)
            waiting[following] -= 1
            if waiting[following] == 0:
                ready[size] = following
                size += 1
            e = next_edge[e]
    return depth
