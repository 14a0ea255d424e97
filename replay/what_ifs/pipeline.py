"""Pairs of kernels and collectives, cut into chunks that overlap.

Tasks in pieces: a kernel as stages, a collective as chunks, in the graph that they are part of.

Where a graph has what overlap could hide: collectives, what made what they send, and what reads what they bring.

Kernels and the collective that carries their data, piece by piece beside each other instead of one after another.

What T3, FiCCO and fused collectives have in common: pieces of collectives, and what a note says of targets.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from profilers.errors import InvalidInputError
from profilers.trace.arrays import Floats, Ints
from profilers.trace.kernels import CLASSES
from replay.calibration.parameters import Parameters
from replay.engine.engine import simulate
from replay.graph.graph import COLLECTIVE_KINDS, RESOURCES, Basis, EdgeKind, Edges, KernelGraph, TaskKind, Tasks
from replay.graph.operators import Operator

#: Of one task; more is a mistake.
MOST_PIECES = 4096
_NAN = float("nan")
#: What pieces share out.
_SHARED = ("duration_ns", "waves", "bytes", "workgroups")


@dataclass(frozen=True)
class Split:
    """A graph in which some tasks are in pieces.

    Parameters
    ----------
    graph : KernelGraph
        A task's last piece has the task's own number, so that what waited for its end still does; the others stand
        behind all tasks that there were.
    rows : array of int64, shape (n,)
        The tasks that were split, in ascending order.
    counts : array of int64, shape (n,)
        Pieces of each.
    first : array of int64
        Of each task, its first piece; of one that was not split, and of a piece, itself.
    """

    graph: KernelGraph
    rows: Ints
    counts: Ints
    first: Ints

    def of(self, row: int) -> Ints:
        """Return the pieces of a task in their order; of one that was not split, itself."""
        at = int(np.searchsorted(self.rows, row))
        if at == len(self.rows) or self.rows[at] != row:
            return np.array([row])
        first = int(self.first[row])
        return np.append(np.arange(first, first + self.counts[at] - 1), row)


def split(graph: KernelGraph, rows: npt.ArrayLike, counts: npt.ArrayLike) -> Split:
    """Return `graph` with tasks in equal pieces that follow each other.

    Pieces share out duration, waves, workgroups and bytes; each demands what the task did. What the task waited for,
    its first piece waits for; what counts from its start counts from that of its first piece. Put together again by
    their chain, they take the task's time.

    Parameters
    ----------
    graph : KernelGraph
    rows : array of int, shape (n,)
        Different tasks.
    counts : int or array of int, shape (n,)
        Pieces of each, 1 to `MOST_PIECES`.

    Raises
    ------
    InvalidInputError
        A task is named twice or does not exist, or a number of pieces is beyond these bounds.
    """
    rows_, counts_ = np.broadcast_arrays(np.asarray(rows, dtype=np.int64), np.asarray(counts, dtype=np.int64))
    order = np.argsort(rows_, kind="stable")
    rows_, counts_ = rows_[order], counts_[order]
    n = len(graph.tasks)
    if len(rows_) and (rows_[0] < 0 or rows_[-1] >= n or not np.diff(rows_).all()):
        raise InvalidInputError("tasks to split have to be different ones of the graph")
    if len(rows_) and not (counts_.min() >= 1 and counts_.max() <= MOST_PIECES):
        raise InvalidInputError(f"a task is split in 1 to {MOST_PIECES} pieces")
    first = np.arange(n + int((counts_ - 1).sum()))
    first[rows_] = np.where(counts_ > 1, n + np.cumsum(counts_ - 1) - (counts_ - 1), rows_)
    edges = graph.edges
    moved = replace(
        edges, source=np.where(edges.from_start, first[edges.source], edges.source), target=first[edges.target]
    )
    pieces = _pieces(graph.tasks, rows_, counts_, first)
    changed = replace(graph, tasks=pieces, edges=moved.joined(_chains(n, rows_, counts_)))
    return Split(changed, rows_, counts_, first)


def _pieces(tasks: Tasks, rows: Ints, counts: Ints, first: Ints) -> Tasks:
    parent = np.repeat(rows, counts - 1)
    columns = {one.name: getattr(tasks, one.name).copy() for one in fields(Tasks)}
    parts = np.ones(len(tasks), dtype=np.int64)
    parts[rows] = counts
    for name in _SHARED:
        shared = columns[name] / parts
        columns[name] = np.ceil(shared).astype(np.int64) if columns[name].dtype == np.int64 else shared
    changed = {name: np.concatenate([values, values[parent]]) for name, values in columns.items()}
    is_piece = np.concatenate([parts > 1, np.ones(len(parent), dtype=np.bool_)])
    for name in ("measured_start_ns", "measured_end_ns"):
        changed[name] = np.where(is_piece, _NAN, changed[name])
    # Only a first piece waits for the release.
    later = is_piece.copy()
    later[first[rows]] = False
    changed["release_ns"] = np.where(later, 0.0, changed["release_ns"])
    return Tasks(**changed)


def _chains(n: int, rows: Ints, counts: Ints) -> Edges:
    """Return the edges from each piece to the next."""
    source = np.arange(n, n + int((counts - 1).sum()))
    last = np.zeros(len(source), dtype=np.bool_)
    last[np.cumsum(counts - 1)[counts > 1] - 1] = True
    target = np.where(last, np.repeat(rows, counts - 1), source + 1)
    m = len(source)
    return Edges(source, target, np.zeros(m), np.zeros(m, dtype=np.bool_), np.full(m, int(EdgeKind.STREAM)))


def quantisation(waves: npt.ArrayLike, pieces: npt.ArrayLike) -> Floats:
    """Return by how much longer kernels of so many waves of workgroups take in pieces, for want of whole waves.

    Kernels whose waves are unknown (0) are taken to lose nothing.

    Source: a kernel takes a whole number of waves: ceil(waves / pieces) * pieces over ceil(waves); the decomposition
    loss of FiCCO (arXiv 2512.10236) for tiles that stay.

    Examples
    --------
    >>> quantisation([4.0, 3.0, 0.0], 4).tolist()
    [1.0, 1.3333333333333333, 1.0]
    """
    w, k = np.asarray(waves, dtype=np.float64), np.asarray(pieces, dtype=np.float64)
    whole = np.ceil(np.maximum(w, 1e-9) - 1e-9)
    return np.asarray(np.where(w > 0, np.ceil(w / k - 1e-9) * k / np.maximum(whole, 1.0), 1.0))


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
        Of kernels, as `profilers.trace.kernels.CLASSES`.
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


@dataclass(frozen=True)
class Pipeline:
    """A graph in which targets run in pieces.

    Parameters
    ----------
    graph : KernelGraph
    kernels : tuple of array of int64, shape (n_kernels, n_pieces)
        Of each target, the pieces of its kernels.
    collectives : tuple of array of int64, shape (n_pieces + n_more,)
        Of each target, the pieces of its collective.
    """

    graph: KernelGraph
    kernels: tuple[Ints, ...]
    collectives: tuple[Ints, ...]


def send_in_pieces(
    graph: KernelGraph, targets: Sequence[Target], pieces: Sequence[int], more: Sequence[int] = ()
) -> Pipeline:
    """Return a graph in which a collective sends each piece of its data as soon as that is computed and packed.

    A piece is sent when all ranks that meet have computed theirs. What else a collective or kernel waited for, its
    first piece waits for.

    Parameters
    ----------
    graph : KernelGraph
    targets : sequence of Target
        As `replay.what_ifs.pipeline.producers` finds them.
    pieces : sequence of int
        Of each target.
    more : sequence of int, optional
        Of each target, pieces that its collective has behind those that carry data as it comes.
    """
    return _joined(graph, targets, (pieces, more or [0] * len(targets)), _send)


def receive_in_pieces(graph: KernelGraph, targets: Sequence[Target], pieces: Sequence[int]) -> Pipeline:
    """Return a graph in which kernels unpack and compute on each piece of data as soon as it is there.

    Parameters
    ----------
    graph : KernelGraph
    targets : sequence of Target
        As `replay.what_ifs.pipeline.consumers` finds them.
    pieces : sequence of int
        Of each target.
    """
    return _joined(graph, targets, (pieces, [0] * len(targets)), _receive)


#: Of one target, its pieces and the split graph: pairs of tasks of which the second waits for the first.
_Rewiring = Callable[[Target, Ints, Ints, Split], list[tuple[npt.ArrayLike, npt.ArrayLike]]]


def _joined(
    graph: KernelGraph, targets: Sequence[Target], counts: tuple[Sequence[int], Sequence[int]], rewire: _Rewiring
) -> Pipeline:
    parts: dict[int, int] = {}
    for target, count, more in zip(targets, *counts, strict=True):
        parts.update(dict.fromkeys(target.kernels, count))
        parts[target.collective] = count + more
        if rewire is _send and target.meeting >= 0:
            parts[target.meeting] = max(count, parts.get(target.meeting, 1))
    found = split(graph, list(parts), list(parts.values()))
    kernels = tuple(np.array([found.of(kernel) for kernel in target.kernels]) for target in targets)
    collectives = tuple(found.of(target.collective) for target in targets)
    new: list[tuple[npt.ArrayLike, npt.ArrayLike]] = []
    group = _groups(graph, targets, found)
    for target, rows, sent in zip(targets, kernels, collectives, strict=True):
        new += rewire(target, rows, sent, found)
    edges = found.graph.edges
    own = edges.source >= len(graph.tasks)  # of a piece to the next: they stay
    same = (group[edges.source] >= 0) & (group[edges.source] == group[edges.target]) & ~own & ~edges.from_start
    # What waited for the whole waits for the first piece, with the pause that there was.
    eased = same & (edges.kind != EdgeKind.LAUNCH)
    if rewire is _send:
        eased |= _met(graph, targets, found)
    edges = replace(edges, source=np.where(eased, found.first[edges.source], edges.source))
    return Pipeline(replace(found.graph, edges=edges.joined(_edges(new))), kernels, collectives)


def _groups(graph: KernelGraph, targets: Sequence[Target], found: Split) -> Ints:
    """Return for each task and piece the target that it is part of, with the arrival of its collective; -1 for none."""
    group = np.full(len(found.graph.tasks), -1)
    for number, target in enumerate(targets):
        group[graph.arrival_of(target.collective)] = number
        for task in (*target.kernels, target.collective):
            group[found.of(task)] = number
    return group


def _send(target: Target, kernels: Ints, sent: Ints, found: Split) -> list[tuple[npt.ArrayLike, npt.ArrayLike]]:
    last, pieces = kernels[-1], kernels.shape[1]
    new = _one_after_another(kernels)
    if target.meeting >= 0:
        meeting = found.of(target.meeting)[:pieces]
        new += [(last, meeting), (meeting, sent[:pieces])]
    else:
        new.append((last, sent[:pieces]))
    return new


def _receive(_target: Target, kernels: Ints, sent: Ints, _found: Split) -> list[tuple[npt.ArrayLike, npt.ArrayLike]]:
    return [(sent, kernels[0]), *_one_after_another(kernels)]


def _one_after_another(kernels: Ints) -> list[tuple[npt.ArrayLike, npt.ArrayLike]]:
    """Return the order of pieces on their stream: all kernels of one piece, then those of the next."""
    inside: list[tuple[npt.ArrayLike, npt.ArrayLike]] = list(pairwise(kernels))
    return [*inside, (kernels[-1][:-1], kernels[0][1:])]


def _met(graph: KernelGraph, targets: Sequence[Target], found: Split) -> npt.NDArray[np.bool_]:
    """Return the edges by which the collectives of targets waited for the whole of what all ranks bring."""
    meeting = np.full(len(found.graph.tasks), -2)
    for target in targets:
        if target.meeting >= 0:
            meeting[found.of(target.collective)[0]] = target.meeting
    edges = found.graph.edges
    return np.asarray((edges.kind == EdgeKind.RENDEZVOUS) & (meeting[edges.target] == edges.source))


def _edges(pairs: Sequence[tuple[npt.ArrayLike, npt.ArrayLike]]) -> Edges:
    source = np.concatenate([np.zeros(0, dtype=np.int64), *(np.asarray(one) for one, _ in pairs)])
    target = np.concatenate([np.zeros(0, dtype=np.int64), *(np.asarray(other) for _, other in pairs)])
    n = len(source)
    return Edges(source, target, np.zeros(n), np.zeros(n, dtype=np.bool_), np.full(n, int(EdgeKind.STREAM)))


#: Ranks of a collective whose group the trace does not tell.
ANY_RANKS = 8
#: Pieces that anything is cut into.
_FEWEST, _MOST = 2, 64
_CU = RESOURCES.index("cu")


def ranks_of(graph: KernelGraph, targets: Sequence[Target]) -> list[int]:
    """Return into how many pieces each target goes, one a rank of its collective, from 2 to 64; 8 where unknown."""
    ranks = graph.tasks.ranks[[target.collective for target in targets]]
    return [int(np.clip(n if n > 1 else ANY_RANKS, _FEWEST, _MOST)) for n in ranks.tolist()]


def bytes_time(duration_ns: float, parameters: Parameters) -> float:
    """Return what of a collective's time goes with its bytes: all but its latency, which is half of it at most."""
    return duration_ns - min(parameters["collective_latency_ns"], duration_ns / 2)


def without_units(graph: KernelGraph, rows: Ints, durations: Floats, hbm_factor: Floats | float = 1.0) -> KernelGraph:
    """Return `graph` with transfers that use no compute units, take these times, and part of the memory bandwidth."""
    tasks = graph.tasks
    demand, occupies, duration = tasks.demand.copy(), tasks.occupies.copy(), tasks.duration_ns.copy()
    basis, waves = tasks.basis.copy(), tasks.waves.copy()
    demand[rows, _CU], occupies[rows], waves[rows], duration[rows] = 0.0, 0.0, 0.0, durations
    demand[rows, RESOURCES.index("hbm")] *= hbm_factor
    basis[rows] = np.maximum(basis[rows], int(Basis.DERIVED))
    return graph.with_tasks(demand=demand, occupies=occupies, duration_ns=duration, basis=basis, waves=waves)


def nothing_to_apply(graph: KernelGraph, name: str, targets: Targets) -> KernelGraph:
    """Return `graph` as it is, with a note of why nothing was changed."""
    reason = targets.note.removeprefix("0 collectives matched").removeprefix("; ")
    return graph.with_notes([f"{name}: nothing to apply it to: {reason or 'the iteration has no collective'}"])
