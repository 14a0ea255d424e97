"""What the time of a critical path goes into: causes, classes of kernels, names."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from replay.analysis.critical_path import CriticalPath, Part
from replay.analysis.labels import LABELS, task_labels
from replay.graph import EdgeKind, TaskKind

__all__ = ["PATH_CAUSES", "Attribution", "attribution", "path_causes"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

#: What a piece of a path can be, in the order of tables.
PATH_CAUSES: tuple[str, ...] = (
    "kernel",
    "collective",
    "copy",
    "contention",
    "host",
    "launch lag",
    "stream lag",
    "wait lag",
    "inferred wait lag",
    "sync lag",
    "rendezvous lag",
    "gap for the host",
    "backlog",
    "gap in a graph",
    "launch queue",
    "loader",
    "ready",
    "release",
)
_OF_KIND: Mapping[TaskKind, str] = MappingProxyType(
    {
        TaskKind.HOST: "host",
        TaskKind.KERNEL: "kernel",
        TaskKind.COPY: "copy",
        TaskKind.COLLECTIVE: "collective",
        TaskKind.MARK: "host",
    }
)
#: Time between two calls is the host's own work, which the trace has no task for.
_OF_LAG: Mapping[EdgeKind, str] = MappingProxyType(
    {
        EdgeKind.STREAM: "stream lag",
        EdgeKind.LAUNCH: "launch lag",
        EdgeKind.HOST: "host",
        EdgeKind.HANDOFF: "host",
        EdgeKind.WAIT: "wait lag",
        EdgeKind.WAIT_INFERRED: "inferred wait lag",
        EdgeKind.SYNC: "sync lag",
        EdgeKind.RENDEZVOUS: "rendezvous lag",
        EdgeKind.GRAPH_LAUNCH: "launch lag",
        EdgeKind.AUTOGRAD: "host",
        EdgeKind.SYNC_INFERRED: "sync lag",
        EdgeKind.GAP: "gap for the host",
        EdgeKind.BACKLOG: "backlog",
        EdgeKind.GRAPH_GAP: "gap in a graph",
        EdgeKind.QUEUE: "launch queue",
        EdgeKind.LOADER: "loader",
    }
)


@dataclass(frozen=True)
class Attribution:
    """How the time of a path divides; the values of each mapping add up to the makespan.

    Parameters
    ----------
    makespan_ns : float
    by_cause : mapping of str to float
        By `PATH_CAUSES`, those that occur, in ns.
    by_class : mapping of str to float
        Device work, with what contention added to it, by class of kernel, ``"memory copy"`` or ``"collective"``;
        everything else by its cause; the longest first.
    by_name : mapping of str to float
        The same by name of task; untrusted text.
    """

    makespan_ns: float
    by_cause: Mapping[str, float]
    by_class: Mapping[str, float]
    by_name: Mapping[str, float]


def attribution(path: CriticalPath) -> Attribution:
    """Return what the time of a path goes into.

    Parameters
    ----------
    path : CriticalPath

    Returns
    -------
    Attribution
    """
    graph = path.timeline.graph
    cause = path_causes(path)
    works = (path.part == Part.WORK) | (path.part == Part.CONTENTION)
    on_device = works & graph.on_device()[path.task]
    label = task_labels(graph)
    n = len(PATH_CAUSES)
    by_class = np.where(on_device, n + label[path.task], cause)
    by_name = np.where(works & (graph.tasks.kind[path.task] != TaskKind.MARK), n + graph.tasks.name[path.task], cause)
    return Attribution(
        float(path.ns.sum()),
        _sums(PATH_CAUSES, cause, path.ns),
        _longest_first(_sums((*PATH_CAUSES, *LABELS), by_class, path.ns)),
        _longest_first(_sums((*PATH_CAUSES, *graph.names), by_name, path.ns)),
    )


def path_causes(path: CriticalPath) -> Ints:
    """Return for every piece of a path its index into `PATH_CAUSES`."""
    graph = path.timeline.graph
    index = {name: i for i, name in enumerate(PATH_CAUSES)}
    work = np.array([index[_OF_KIND[kind]] for kind in TaskKind])[graph.tasks.kind[path.task]]
    lags = np.array([index[_OF_LAG[kind]] for kind in EdgeKind])
    lag = lags[graph.edges.kind[path.edge]] if len(graph.edges) else work
    of_host = (graph.tasks.device[path.task] < 0) & (graph.tasks.lane[path.task] >= 0)
    release = np.where(of_host, index["host"], index["release"])
    others = (np.full(len(path), index["contention"]), lag, np.full(len(path), index["ready"]), release)
    return np.asarray(np.choose(path.part, (work, *others)))


def _sums(names: Sequence[str], index: Ints, ns: Floats) -> dict[str, float]:
    """Return the sums by name, those that occur, in the order of `names`."""
    sums = np.bincount(index, weights=ns, minlength=len(names))
    found: dict[str, float] = {}
    for i in np.flatnonzero(np.bincount(index, minlength=len(names))).tolist():
        found[names[i]] = found.get(names[i], 0.0) + float(sums[i])
    return found


def _longest_first(found: Mapping[str, float]) -> dict[str, float]:
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))
