"""The input pipeline: when the host waits for a batch, and how long the pipeline takes for each."""

import numpy as np
import numpy.typing as npt

from replay.build.draft import Draft, NewEdges
from replay.build.index import LOADER_PREFIX
from replay.build.window import Window
from replay.graph import LOADER_THREAD, EdgeKind, Lane, TaskKind

__all__ = ["add_batches", "loader_calls"]

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

#: A pipeline that works in other processes hands over a batch that is ready in 0.07 to 0.12 ms in the traces at hand;
#: a call that takes this long (ns) waited for its batch.
_WAITED_NS = 500_000
#: What the calls of such a pipeline are called.
_IN_OTHER_PROCESSES = "MultiProcessing"


def loader_calls(window: Window) -> tuple[Bools, Bools]:
    """Return which calls load a batch, and which of these waited for a pipeline in other processes.

    A pipeline in the host's own process makes its batch inside the call, and that is work of the host.
    """
    calls, names = window.calls, window.index.calls.names
    loads = np.array([str(name).startswith(LOADER_PREFIX) for name in names], dtype=bool)
    apart = np.array([_IN_OTHER_PROCESSES in str(name) for name in names], dtype=bool)
    if window.index.on_host_alone or not len(calls):
        return np.zeros(len(calls), dtype=bool), np.zeros(len(calls), dtype=bool)
    loading = loads[calls.name]
    return loading, loading & apart[calls.name] & (calls.end - calls.start >= _WAITED_NS)


def add_batches(draft: Draft, window: Window, waited: Ints, tasks: tuple[Ints, Ints]) -> None:
    """Let each call that waited for its batch return when the batch is ready, one after another.

    The time from one batch to the next is that between the returns of two calls that waited: the pipeline then had
    nothing in store. It keeps this pace however fast the host is.
    """
    calls, (begin, done) = window.calls, tasks
    for rank in window.ranks:
        mine = waited[calls.rank[waited] == rank]
        if not len(mine):
            continue
        mine = mine[np.argsort(calls.end[mine], kind="stable")]
        about = {
            "kind": int(TaskKind.MARK),
            "name": draft.name("batch is ready"),
            "lane": draft.lane(Lane(rank, None, LOADER_THREAD))[0],
            "measured_start_ns": calls.end[mine],
            "measured_end_ns": calls.end[mine],
            "iteration": calls.iteration[mine],
        }
        ready = draft.tasks(len(mine), about)
        draft.release(ready[:1], calls.end[mine[:1]].astype(np.float64))
        each = np.diff(calls.end[mine])
        draft.edges(NewEdges(ready[:-1], ready[1:], each, int(EdgeKind.LOADER)))
        draft.edges(NewEdges(ready, done[mine], 0.0, int(EdgeKind.LOADER)))
        draft.edges(NewEdges(begin[mine], done[mine], 0.0, int(EdgeKind.HOST)))
