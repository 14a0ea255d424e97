"""How much later each task could end before the iteration would."""

import numpy as np
import numpy.typing as npt

from profilers.compiled import compiled
from profilers.errors import InvalidInputError
from replay.timeline import Timeline

__all__ = ["slack_ns"]

Floats = npt.NDArray[np.float64]


def slack_ns(timeline: Timeline) -> Floats:
    """Return how much later each task could run, alone, without a later end of the iteration.

    Durations and lags stay as they are in the timeline, so that what a shift would change in contention is left out.
    It is zero for every task on the critical path, and infinite for one that no task of the iteration waits for.

    Parameters
    ----------
    timeline : Timeline

    Returns
    -------
    array of float64, one a task

    Raises
    ------
    InvalidInputError
        Tasks wait for each other in a circle.
    """
    graph, edges = timeline.graph, timeline.graph.edges
    if not len(graph.tasks):
        return np.zeros(0)
    ends = np.where(graph.tasks.own, timeline.makespan_ns - timeline.end_ns, np.inf)
    left = np.where(edges.from_start, timeline.start_ns[edges.source], timeline.end_ns[edges.source])
    room = np.maximum(timeline.start_ns[edges.target] - left - edges.lag_ns, 0.0)
    slack, reached = _backward(ends, edges.source, edges.target, room)
    if reached < len(ends):
        raise InvalidInputError("tasks wait for each other in a circle; replay the graph to see which")
    return np.asarray(slack)


@compiled
def _backward(slack, source, target, room):  # type: ignore[no-untyped-def]
    """Take tasks when all that wait for them are known, the last first."""
    n = len(slack)
    offsets, unknown = np.zeros(n + 1, np.int64), np.zeros(n, np.int64)
    for e in range(len(source)):
        offsets[target[e] + 1] += 1
        unknown[source[e]] += 1
    for task in range(n):
        offsets[task + 1] += offsets[task]
    place, incoming = offsets[:-1].copy(), np.empty(len(source), np.int64)
    for e in range(len(source)):
        incoming[place[target[e]]] = e
        place[target[e]] += 1
    known, count, reached = np.empty(n, np.int64), 0, 0
    for task in range(n):
        if unknown[task] == 0:
            known[count] = task
            count += 1
    while reached < count:
        task = known[reached]
        reached += 1
        for k in range(offsets[task], offsets[task + 1]):
            before = source[incoming[k]]
            slack[before] = min(slack[before], slack[task] + room[incoming[k]])
            unknown[before] -= 1
            if unknown[before] == 0:
                known[count] = before
                count += 1
    return slack, reached
