"""Which edge each task started by: the last thing that it waited for."""

import numpy as np
import numpy.typing as npt

from profilers.compiled import compiled
from replay.timeline import Timeline

__all__ = ["binding_edges"]

Ints = npt.NDArray[np.int64]

#: By how much a replay's times may be off: a thousandth of what a profiler resolves.
_ROUNDING_NS = 1e-3


def binding_edges(timeline: Timeline) -> Ints:
    """Return for every task the row of the edge that let it start; -1 where its release did, or nothing.

    That is the edge that arrives last: its source's end, or start, and its lag. Of several that arrive at one
    time it is the one with the shorter lag, then of the lower kind, then of the source that is first. An edge whose
    source comes after the task, which only clocks that disagree can measure, binds nothing.

    Parameters
    ----------
    timeline : Timeline
        Replayed or measured.

    Returns
    -------
    array of int64, one a task
    """
    graph, edges = timeline.graph, timeline.graph.edges
    sides = (edges.source, edges.target, edges.lag_ns, edges.from_start, edges.kind)
    return np.asarray(_latest(*sides, (timeline.start_ns, timeline.end_ns, graph.tasks.release_ns)))


@compiled
def _latest(source, target, lag, from_start, kind, times):  # type: ignore[no-untyped-def]
    start, end, release = times
    found = np.full(len(start), -1)
    arrival = release.copy()
    for e in range(len(source)):
        here, task = source[e], target[e]
        left = start[here] if from_start[e] else end[here]
        if left > start[task] + _ROUNDING_NS:
            continue
        time, other = left + lag[e], found[task]
        if time < arrival[task]:
            continue
        if time == arrival[task] and other >= 0:
            if lag[e] != lag[other]:
                if lag[e] > lag[other]:
                    continue
            elif (kind[e], here, e) >= (kind[other], source[other], other):
                continue
        found[task], arrival[task] = e, time
    return found
