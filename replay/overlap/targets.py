"""Where a graph has what overlap could hide: collectives, what made what they send, and what reads what they bring."""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from profilers.kernels import CLASSES
from replay.engine import simulate
from replay.graph import COLLECTIVE_KINDS, EdgeKind, KernelGraph, TaskKind
from replay.operators.operator import Operator

__all__ = ["Target", "Targets", "consumers", "producers"]

Ints = npt.NDArray[np.int64]
#: Kernels that only move or convert data: what packs a buffer before it is sent, or unpacks it.
_MOVES = frozenset({"copy", "elementwise"})
#: Of them, up to this many stand between.
_MOST_MOVES = 3
#: A kernel wrote, or reads, what is sent where the bytes agree within this factor; a collective that gathers or
#: exchanges counts its whole buffer, of which one rank has a part.
_FACTOR = 2.0
#: In `_in_pieces`: a row that stands for a task that has another row already.
_ANOTHER = 2
_ORDER = frozenset(
    {
        EdgeKind.STREAM,
        EdgeKind.WAIT,
        EdgeKind.WAIT_INFERRED,
        EdgeKind.GAP,
        EdgeKind.BACKLOG,
        EdgeKind.GRAPH_GAP,
    }
)


@dataclass(frozen=True)
class Target:
    """A collective and the kernels beside it that its data goes through.

    Parameters
    ----------
    collective : int
        Its task.
    kernels : tuple of int
        Tasks in the order in which they run: of a producer, what computes and then what packs; of a consumer, what
        unpacks and then what computes.
    meeting : int
        The mark at which all ranks have arrived; -1 where the graph has none.
    by_order : bool
        Whether only the order of tasks says so: shapes or sizes that could confirm it are not known.
    """

    collective: int
    kernels: tuple[int, ...]
    meeting: int
    by_order: bool = False


@dataclass(frozen=True)
class Targets:
    """What was found.

    Parameters
    ----------
    found : tuple of Target
    missed : mapping of str to int
        Why collectives are not among them, and how many for each reason.
    """

    found: tuple[Target, ...]
    missed: Mapping[str, int]

    @property
    def note(self) -> str:
        """For people: how many were found, how many of them by order alone, and why others were not."""
        reasons = "".join(f"; {count} not: {reason}" for reason, count in self.missed.items())
        by_order = sum(target.by_order for target in self.found)
        alone = f" ({by_order} by order alone: shapes or sizes are not known)" if by_order else ""
        return f"{len(self.found)} collectives matched{alone}{reasons}"


def producers(graph: KernelGraph, kinds: Collection[str], classes: Collection[str]) -> Targets:
    """Return the collectives whose data a kernel of some classes has just computed.

    The kernel is the last one on its device that the collective waits for; up to three kernels that copy or convert
    may stand between. Where shapes are known, what it writes has to be what is sent, within a factor of two.

    Parameters
    ----------
    graph : KernelGraph
    kinds : collection of str
        Of collectives, as `COLLECTIVE_KINDS`; those of others are counted as missed.
    classes : collection of str
        Of kernels, as `profilers.kernels.CLASSES`.
    """
    return _Search(graph, backward=True).targets(kinds, classes)


def consumers(graph: KernelGraph, kinds: Collection[str], classes: Collection[str]) -> Targets:
    """Return the collectives whose data a kernel of some classes reads next; otherwise as `producers`."""
    return _Search(graph, backward=False).targets(kinds, classes)


class _Search:
    """The neighbours of every task, in one direction."""

    def __init__(self, graph: KernelGraph, *, backward: bool) -> None:
        self._graph, self._backward = graph, backward
        edges = graph.edges
        ordered = np.isin(edges.kind, sorted(_ORDER)) & ~edges.from_start
        near, far = (edges.target, edges.source) if backward else (edges.source, edges.target)
        order = np.argsort(near[ordered], kind="stable")
        self._near, self._far = near[ordered][order], far[ordered][order]
        forward = np.argsort(edges.source, kind="stable")
        self._source, self._target = edges.source[forward], edges.target[forward]
        self._inside = (np.isin(edges.kind, sorted(_ORDER)) | edges.from_start)[forward]
        self._meeting = np.full(len(graph.tasks), -1)
        meets = (edges.kind == EdgeKind.RENDEZVOUS) & (graph.tasks.kind[edges.target] == TaskKind.COLLECTIVE)
        self._meeting[edges.target[meets]] = edges.source[meets]
        self._taken: set[int] = set()
        self._in_pieces = _in_pieces(graph)

    @cached_property
    def _start(self) -> npt.NDArray[np.float64]:
        """When tasks start in a replay: unlike what was measured, never before what they wait for."""
        return simulate(self._graph)[0]

    def targets(self, kinds: Collection[str], classes: Collection[str]) -> Targets:
        """Look at every collective of the iteration; a Python loop of some 100 us each."""
        tasks = self._graph.tasks
        rows = np.flatnonzero((tasks.kind == TaskKind.COLLECTIVE) & tasks.own & (self._in_pieces < _ANOTHER))
        found: list[Target] = []
        missed: Counter[str] = Counter()
        for row in rows.tolist():
            kind = COLLECTIVE_KINDS[tasks.collective[row]] if tasks.collective[row] >= 0 else "unknown"
            if kind not in kinds:
                missed["their kind is not known" if kind == "unknown" else f"they are {kind}"] += 1
                continue
            if self._in_pieces[row]:
                missed["they are in pieces already"] += 1
                continue
            way = self._way(row, frozenset(classes))
            reason = way if isinstance(way, str) else self._disagreement(row, kind, way) or self._detour(way)
            if reason:
                missed[reason] += 1
            else:
                assert not isinstance(way, str)
                self._taken.update(way)
                found.append(Target(row, way, int(self._meeting[row]), not self._has_sizes(row, way)))
        return Targets(tuple(found), dict(missed.most_common()))

    def _way(self, collective: int, classes: frozenset[str]) -> tuple[int, ...] | str:
        """Return the kernels between the one of `classes` and the collective, as they run; or why there are none."""
        tasks = self._graph.tasks
        side = "before" if self._backward else "after"
        way: list[int] = []
        at = self._next(self._graph.arrival_of(collective) if self._backward else collective, collective)
        while at >= 0 and at not in self._taken:
            if self._in_pieces[at]:
                return f"what comes {side} them is in pieces already"
            way.append(at)
            label = CLASSES[tasks.class_[at]] if tasks.class_[at] >= 0 else "copy"
            if label in classes:
                return tuple(reversed(way)) if self._backward else tuple(way)
            if label not in _MOVES:
                return f"{label} comes {side} them"
            if len(way) > _MOST_MOVES:
                return f"more than {_MOST_MOVES} kernels {side} them only move data"
            at = self._next(at, at)
        return f"no kernel {side} them" if at < 0 else f"the kernel {side} them is another's already"

    def _next(self, one: int, other: int) -> int:
        """Return the neighbour of two tasks on their device that runs closest to them; -1 for none."""
        tasks = self._graph.tasks
        near = np.concatenate([self._neighbours(task) for task in {one, other}])
        works = np.isin(tasks.kind[near], (TaskKind.KERNEL, TaskKind.COPY)) & (
            tasks.device[near] == tasks.device[other]
        )
        near = near[works & tasks.own[near]]
        if not len(near):
            return -1
        time = tasks.measured_end_ns[near] if self._backward else -tasks.measured_start_ns[near]
        return int(near[np.lexsort((near, np.nan_to_num(time, nan=-np.inf)))[-1]])

    def _neighbours(self, task: int) -> Ints:
        first, last = np.searchsorted(self._near, (task, task + 1))
        return self._far[first:last]

    def _kernel(self, way: tuple[int, ...]) -> int:
        """Return the one that computes."""
        return way[0] if self._backward else way[-1]

    def _has_sizes(self, collective: int, way: tuple[int, ...]) -> bool:
        tasks = self._graph.tasks
        return bool(tasks.bytes[collective] > 0 and tasks.operator[self._kernel(way)] >= 0)

    def _disagreement(self, collective: int, kind: str, way: tuple[int, ...]) -> str:
        """Return why the kernel cannot have written, or does not read, what is sent; empty where nothing says so."""
        tasks = self._graph.tasks
        if not self._has_sizes(collective, way):
            return ""
        kernel, sent = self._kernel(way), int(tasks.bytes[collective])
        operator: Operator = self._graph.operators[tasks.operator[kernel]]
        most = operator.bytes_written if self._backward else operator.bytes_read
        parts = max(int(tasks.ranks[collective]), 1) if kind in ("all_gather", "reduce_scatter") else 1
        if sent / parts > _FACTOR * most or (self._backward and sent * _FACTOR * parts < most):
            verb = "writes" if self._backward else "reads"
            return f"the kernel beside them {verb} another amount than is sent"
        return ""

    def _detour(self, way: tuple[int, ...]) -> str:
        """Return why kernels cannot run piece by piece: something else waits for one and is waited for by a later one.

        Looks at what starts before the last of them does: a handful of tasks.
        """
        if len(way) == 1:
            return ""
        start = self._start
        latest, seen = start[way[-1]], set(way)
        ahead = [(kernel, True) for kernel in way[:-1]]
        while ahead:
            task, inside = ahead.pop()
            first, last = np.searchsorted(self._source, (task, task + 1))
            for e in range(first, last):
                target = int(self._target[e])
                if target in way and not (inside and self._inside[e]):
                    return "the host, or another stream, waits between the kernels beside them"
                if target not in seen and not start[target] > latest:
                    seen.add(target)
                    ahead.append((target, False))
        return ""


def _in_pieces(graph: KernelGraph) -> Ints:
    """Return 0 for what is whole; of a task that another what-if has cut, 1 for its first row, 2 for the others.

    Pieces stand for one event on one queue together.
    """
    tasks = graph.tasks
    rows = np.flatnonzero(graph.on_device() & (tasks.event >= 0))
    key = tasks.event[rows] * (tasks.lane.max(initial=0) + 1) + tasks.lane[rows]
    key = key * len(graph.iterations) + tasks.iteration[rows]
    _, first, which, counts = np.unique(key, return_index=True, return_inverse=True, return_counts=True)
    cut = np.zeros(len(tasks), dtype=np.int64)
    cut[rows[counts[which] > 1]] = _ANOTHER
    cut[rows[first[counts > 1]]] = 1
    return cut
