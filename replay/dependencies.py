"""`dependencies`: what the tasks of a timeline wait for, by kind of edge, and which of it a profiler recorded."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from replay.analysis.binding import binding_edges
from replay.graph import RECORDED_EDGES, EdgeKind
from replay.timeline import Timeline

__all__ = ["Dependencies", "DependencyKind", "dependencies"]

#: Times this close are one (ns; a profiler resolves 1 ns, an engine rounds below it).
_SAME_NS = 1.0


@dataclass(frozen=True)
class DependencyKind:
    """All edges of one kind.

    Parameters
    ----------
    kind : str
        The name of an `EdgeKind`, in lower case.
    recorded : bool
        Whether the profiler recorded both ends, rather than times and the order of calls suggesting them.
    edges : int
    binding : int
        Those that decided when their target started.
    critical : int
        Those on the critical path: the chain of binding edges that ends with the iteration.
    critical_lag_ns : float
        Delay on the critical path that the edges carry.
    """

    kind: str
    recorded: bool
    edges: int
    binding: int
    critical: int
    critical_lag_ns: float


@dataclass(frozen=True)
class Dependencies:
    """The edges of a timeline's graph by kind, in the order of `EdgeKind`; kinds without edges are left out."""

    kinds: tuple[DependencyKind, ...]

    def recorded_share(self, what: str = "edges") -> float:
        """Return the recorded share of all edges, or of those ``"binding"`` or ``"critical"``; NaN of none."""
        total = sum(getattr(kind, what) for kind in self.kinds)
        return sum(getattr(kind, what) for kind in self.kinds if kind.recorded) / total if total else float("nan")


def dependencies(timeline: Timeline) -> Dependencies:
    """Return the edges of a timeline's graph by kind: how many, how many bind, how many lie on the critical path.

    An edge binds where its target starts when it allows. The critical path goes from the task that ends last back
    along the edges that `replay.analysis.binding` names; those without a lag count too.
    """
    edges = timeline.graph.edges
    allowed = np.where(edges.from_start, timeline.start_ns[edges.source], timeline.end_ns[edges.source]) + edges.lag_ns
    start = timeline.start_ns[edges.target]
    binding = allowed >= start - np.maximum(_SAME_NS, 1e-12 * np.abs(start))
    critical = _critical(timeline)
    rows = []
    for kind in EdgeKind:
        mine = edges.kind == kind
        if mine.any():
            on_path = critical[edges.kind[critical] == kind]
            lag = float(edges.lag_ns[on_path].sum())
            counts = (int(mine.sum()), int((mine & binding).sum()), len(on_path))
            rows.append(DependencyKind(kind.name.lower(), kind in RECORDED_EDGES, *counts, lag))
    return Dependencies(tuple(rows))


def _critical(timeline: Timeline) -> npt.NDArray[np.int64]:
    """Return the edges of one critical path, from the task of the iteration that ends last back to its start."""
    source, own = timeline.graph.edges.source, timeline.graph.tasks.own
    if not own.any():
        return np.zeros(0, dtype=np.int64)
    into = binding_edges(timeline)
    last = own & (timeline.end_ns >= timeline.end_ns[own].max() - _SAME_NS)
    # Of those that end last, one that waits for something tells more than a mark at a fixed time.
    task = int(np.argmax(np.where(last, 1 + (into >= 0), 0)))
    path: list[int] = []
    while (edge := int(into[task])) >= 0 and len(path) < len(own):  # tasks of the path, under 1 us each
        path.append(edge)
        task = int(source[edge])
    return np.array(path, dtype=np.int64)
