"""Edits of a graph that several packages share: a resource with other times, or none; no waits for communication."""

from dataclasses import replace
from types import MappingProxyType
from typing import Final

import numpy as np

from profilers.trace.arrays import Bools
from replay.graph.graph import HOST_TIME_EDGES, LOADER_PREFIX, EdgeKind, Edges, KernelGraph, TaskKind

#: Resources that can limit a step. "device" is all work on devices: kernels, communication and copies.
LIMITING: Final = ("host", "loader", "device", "kernels", "communication", "copies")
#: Kinds of edges whose lag is time of a resource.
_LAGS: Final = MappingProxyType(
    {
        "host": (
            *(EdgeKind.HOST, EdgeKind.HANDOFF, EdgeKind.AUTOGRAD, EdgeKind.LAUNCH, EdgeKind.GRAPH_LAUNCH),
            *(EdgeKind.SYNC, EdgeKind.SYNC_INFERRED, EdgeKind.POLL, EdgeKind.GAP),
            EdgeKind.PAUSE,
        ),
        "loader": (EdgeKind.LOADER,),
        "kernels": (EdgeKind.STREAM, EdgeKind.SERIAL, EdgeKind.WAIT, EdgeKind.WAIT_INFERRED, EdgeKind.GRAPH_GAP),
        "communication": (EdgeKind.RENDEZVOUS,),
    }
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
    is_host_time = np.isin(edges.kind, sorted(HOST_TIME_EDGES))
    lag_ns = np.where(is_host_time, edges.lag_ns * factor, edges.lag_ns)
    return replace(graph, edges=replace(edges, lag_ns=lag_ns))


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
    free = np.isin(graph.tasks.kind, (TaskKind.COLLECTIVE, TaskKind.COPY))
    tasks = graph.tasks
    return graph.with_tasks(
        demand=np.where(free[:, None], 0.0, tasks.demand),
        occupies=np.where(free, 0.0, tasks.occupies),
        pressure=np.where(free, 0.0, tasks.pressure),
    )


def without_waits(graph: KernelGraph) -> KernelGraph:
    """Return a graph in which only communication waits for collectives, and collectives slow no kernel."""
    graph = without_contention(graph)
    tasks, edges = graph.tasks, graph.edges
    # Marks at which a rank arrives at a collective, or at which all ranks have arrived.
    arrivals = np.zeros(len(tasks), dtype=np.bool_)
    arrivals[edges.source[edges.kind == EdgeKind.RENDEZVOUS]] = True
    communication = (tasks.kind == TaskKind.COLLECTIVE) | (arrivals & (tasks.kind == TaskKind.MARK))
    leaving = communication[edges.source] & ~communication[edges.target] & (edges.kind != EdgeKind.RENDEZVOUS)
    same_lane = tasks.lane[edges.source] == tasks.lane[edges.target]
    entering = ~communication[edges.source] & communication[edges.target] & same_lane
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
