"""The graph with its own delays replaced by typical ones: a replay that has to predict."""

from dataclasses import replace

import numpy as np

from replay.graph import SYNC_EDGES, EdgeKind, KernelGraph

__all__ = ["with_typical_lags"]

_ON_DEVICE = (
    EdgeKind.STREAM,
    EdgeKind.LAUNCH,
    EdgeKind.GRAPH_LAUNCH,
    EdgeKind.WAIT,
    EdgeKind.WAIT_INFERRED,
    EdgeKind.SYNC,
    EdgeKind.SYNC_INFERRED,
)


def with_typical_lags(graph: KernelGraph) -> KernelGraph:
    """Return `graph` with every delay between host and device, and between device tasks, at its kind's median.

    Replaying an unchanged graph returns the measured times because each edge carries the delay that was seen
    on it. Here it carries what is usual for its kind (nodes of a launched graph apart, which follow each other
    faster), so the error of the replay shows how much of the timeline the graph explains by order, launches,
    waits and durations. What stays is the host's own time between calls, since it is the program's work, with
    the pauses that stand for it; and the pauses that stand for work which the recording does not hold
    (`EdgeKind.BACKLOG`, `EdgeKind.GRAPH_GAP`): those are not predicted, and `Timeline.unexplained_ns` counts them.
    """
    edges = graph.edges
    lag = edges.lag_ns.copy()
    node = np.zeros(len(graph.tasks), dtype=bool)
    node[edges.target[edges.kind == EdgeKind.GRAPH_LAUNCH]] = True
    for kind in _ON_DEVICE:
        chosen = (edges.kind == kind) & ~(edges.from_start & (edges.kind == EdgeKind.STREAM))
        # An edge without a delay is one that only might bind, as from work that had ended before a synchronisation.
        chosen &= edges.lag_ns > 0 if kind in SYNC_EDGES else chosen
        for rows in (chosen & node[edges.target], chosen & ~node[edges.target]):
            if rows.any():
                lag[rows] = np.median(lag[rows])
    return replace(graph, edges=replace(edges, lag_ns=lag))
