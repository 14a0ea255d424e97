"""Pipelines of kernels and collectives: tasks cut into pieces, so that computing and communicating overlap.

`t3`, `ficco` and `fuse_collectives` share this module. `producers` and `consumers` search a graph for collectives whose
data a kernel has just computed, or reads next. `split` cuts tasks into equal pieces. `send_in_pieces` and
`receive_in_pieces` join the two: a piece is sent when it is computed, or computed when it has arrived.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
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

#: Pieces of one task; more is a mistake.
MOST_PIECES = 4096
#: Columns whose value is divided among the pieces of a task.
_DIVIDED = ("duration_ns", "waves", "bytes", "workgroups")


@dataclass(frozen=True)
class Split:
    """A graph in which some tasks are in pieces.

    Parameters
    ----------
    graph : KernelGraph
        The last piece of a task keeps the task's row, so tasks that wait for its end still do. The other pieces stand
        behind all original tasks.
    rows : array of int64, shape (n,)
        Rows of the tasks that were split, in ascending order.
    counts : array of int64, shape (n,)
        Number of pieces of each split task.
    first : array of int64
        Row of the first piece of each task; tasks that were not split, and pieces, have their own row.
    """

    graph: KernelGraph
    rows: Ints
    counts: Ints
    first: Ints

    def of(self, row: int) -> Ints:
        """Return the rows of a task's pieces in their order, or the row itself if the task was not split."""
        position = int(np.searchsorted(self.rows, row))
        if position == len(self.rows) or self.rows[position] != row:
            return np.array([row])
        first = int(self.first[row])
        return np.append(np.arange(first, first + self.counts[position] - 1), row)


def split(graph: KernelGraph, rows: npt.ArrayLike, counts: npt.ArrayLike) -> Split:
    """Return `graph` with tasks in equal pieces that follow each other.

    Duration, waves, workgroups and bytes are divided among the pieces; each piece has the demand of the task. The first
    piece waits for everything that the task waited for. Lags that count from the start of the task count from the start
    of its first piece. Run as a chain, the pieces take the duration of the task.

    Parameters
    ----------
    graph : KernelGraph
        The graph to change.
    rows : array of int, shape (n,)
        Rows of different tasks.
    counts : int or array of int, shape (n,)
        Number of pieces of each task, 1 to `MOST_PIECES`.

    Raises
    ------
    InvalidInputError
        A task is named twice or does not exist, or a number of pieces is out of bounds.
    """
    sorted_rows, n_pieces = np.broadcast_arrays(np.asarray(rows, dtype=np.int64), np.asarray(counts, dtype=np.int64))
    order = np.argsort(sorted_rows, kind="stable")
    sorted_rows, n_pieces = sorted_rows[order], n_pieces[order]
    n = len(graph.tasks)
    if len(sorted_rows) and (sorted_rows[0] < 0 or sorted_rows[-1] >= n or not np.diff(sorted_rows).all()):
        raise InvalidInputError("rows of tasks to split must be different, and rows of the graph")
    if len(sorted_rows) and not (n_pieces.min() >= 1 and n_pieces.max() <= MOST_PIECES):
        raise InvalidInputError(f"a task is split into 1 to {MOST_PIECES} pieces")
    first = np.arange(n + int((n_pieces - 1).sum()))
    first[sorted_rows] = np.where(n_pieces > 1, n + np.cumsum(n_pieces - 1) - (n_pieces - 1), sorted_rows)
    edges = graph.edges
    moved = replace(
        edges, source=np.where(edges.from_start, first[edges.source], edges.source), target=first[edges.target]
    )
    split_tasks = _pieces(graph.tasks, sorted_rows, n_pieces, first)
    changed = replace(graph, tasks=split_tasks, edges=moved.joined(_chains(n, sorted_rows, n_pieces)))
    return Split(changed, sorted_rows, n_pieces, first)


def _pieces(tasks: Tasks, rows: Ints, counts: Ints, first: Ints) -> Tasks:
    """Return the columns of all tasks, with the other pieces of split tasks behind them."""
    n_pieces = np.ones(len(tasks), dtype=np.int64)
    n_pieces[rows] = counts
    parent = np.concatenate([np.arange(len(tasks)), np.repeat(rows, counts - 1)])
    pieces, n_pieces = tasks.select(parent), n_pieces[parent]
    columns = {}
    for name in _DIVIDED:
        values = getattr(pieces, name)
        divided = values / n_pieces
        columns[name] = np.ceil(divided).astype(np.int64) if values.dtype == np.int64 else divided
    for name in ("measured_start_ns", "measured_end_ns"):
        columns[name] = np.where(n_pieces > 1, np.nan, getattr(pieces, name))
    # Only the first piece of a task waits for its release.
    later = n_pieces > 1
    later[first[rows]] = False
    return replace(pieces, **columns, release_ns=np.where(later, 0.0, pieces.release_ns))


def _chains(n: int, rows: Ints, counts: Ints) -> Edges:
    """Return the edges from each piece of a task to the next."""
    source = np.arange(n, n + int((counts - 1).sum()))
    last = np.zeros(len(source), dtype=np.bool_)
    last[np.cumsum(counts - 1)[counts > 1] - 1] = True
    return Edges.of(source, np.where(last, np.repeat(rows, counts - 1), source + 1), kind=EdgeKind.STREAM)


def quantisation(waves: npt.ArrayLike, pieces: npt.ArrayLike) -> Floats:
    """Return the factor by which kernels take longer in pieces, since each piece runs whole waves of workgroups.

    Parameters
    ----------
    waves : array of float
        Waves of workgroups of each kernel; 0 if unknown, and then the factor is 1.
    pieces : int or array of int
        Number of pieces of each kernel.

    Notes
    -----
    A kernel takes a whole number of waves, so the factor is ceil(waves / pieces) * pieces over ceil(waves). This is the
    decomposition loss of FiCCO (arXiv 2512.10236) for tiles of unchanged size.

    Examples
    --------
    >>> quantisation([4.0, 3.0, 0.0], 4).tolist()
    [1.0, 1.3333333333333333, 1.0]
    """
    w, k = np.asarray(waves, dtype=np.float64), np.asarray(pieces, dtype=np.float64)
    whole = np.ceil(np.maximum(w, 1e-9) - 1e-9)
    return np.asarray(np.where(w > 0, np.ceil(w / k - 1e-9) * k / np.maximum(whole, 1.0), 1.0))


#: Classes of kernels that only move or convert data, and so may pack or unpack a buffer.
_PACKING = frozenset({"copy", "elementwise"})
#: Packing kernels that may stand between a collective and the kernel that computes.
_MOST_PACKING = 3
#: Bytes of a kernel and its collective agree within this factor. A collective that gathers or exchanges counts its
#: whole buffer, and one rank has a part of it.
_BYTES_FACTOR = 2.0
#: Mark of `_in_pieces` for a piece that is not the first.
_LATER_PIECE = 2
#: Kinds of edges that order device tasks.
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
    """A collective, and the kernels that compute or read its data.

    Parameters
    ----------
    collective : int
        Row of the collective.
    kernels : tuple of int
        Rows of the kernels, in the order in which they run. A producer computes first and packs then; a consumer
        unpacks first and computes then.
    meeting : int
        Row of the mark at which all ranks have arrived; -1 if the graph has none.
    by_order : bool
        Whether the match rests on the order of tasks alone, because shapes or sizes are unknown.
    """

    collective: int
    kernels: tuple[int, ...]
    meeting: int
    by_order: bool = False


@dataclass(frozen=True)
class Targets:
    """The targets of a search, and the collectives that are none.

    Parameters
    ----------
    found : tuple of Target
        Collectives that match, with their kernels.
    missed : mapping of str to int
        Number of collectives that do not match, by reason.
    """

    found: tuple[Target, ...]
    missed: Mapping[str, int]

    @property
    def note(self) -> str:
        """Number of targets, number of those matched by order alone, and the reasons of the misses, as text."""
        reasons = "".join(f"; {count} not: {reason}" for reason, count in self.missed.items())
        by_order = sum(target.by_order for target in self.found)
        unconfirmed = f" ({by_order} by order alone: shapes or sizes are not known)" if by_order else ""
        return f"{len(self.found)} collectives matched{unconfirmed}{reasons}"


def producers(graph: KernelGraph, kinds: Collection[str], classes: Collection[str]) -> Targets:
    """Return the collectives whose data a kernel of some classes has just computed.

    The kernel is the last one on its device that the collective waits for. Up to three kernels that copy or convert may
    stand between. If shapes are known, the bytes that the kernel writes agree with the bytes sent, within a factor of
    two.

    Parameters
    ----------
    graph : KernelGraph
        The graph to search.
    kinds : collection of str
        Kinds of collectives, as in `COLLECTIVE_KINDS`. Collectives of other kinds are counted as missed.
    classes : collection of str
        Classes of kernels, as in `profilers.trace.kernels.CLASSES`.
    """
    return _Search(graph, backward=True).targets(kinds, classes)


def consumers(graph: KernelGraph, kinds: Collection[str], classes: Collection[str]) -> Targets:
    """Return the collectives whose data a kernel of some classes reads next; otherwise as `producers`."""
    return _Search(graph, backward=False).targets(kinds, classes)


class _Search:
    """A search along the edges of a graph, backward for producers or forward for consumers.

    A kernel belongs to one target at most, so the search keeps the kernels that it has assigned.
    """

    def __init__(self, graph: KernelGraph, *, backward: bool) -> None:
        self._graph, self._backward = graph, backward
        self._computes = 0 if backward else -1  # position in a path of the kernel that computes
        edges = graph.edges
        ordered = np.isin(edges.kind, sorted(_ORDER)) & ~edges.from_start
        start, neighbour = (edges.target, edges.source) if backward else (edges.source, edges.target)
        order = np.argsort(start[ordered], kind="stable")
        self._near_end, self._far_end = start[ordered][order], neighbour[ordered][order]
        forward = np.argsort(edges.source, kind="stable")
        self._source, self._target = edges.source[forward], edges.target[forward]
        self._inside = (np.isin(edges.kind, sorted(_ORDER)) | edges.from_start)[forward]
        self._meeting = np.full(len(graph.tasks), -1)
        meets = (edges.kind == EdgeKind.RENDEZVOUS) & (graph.tasks.kind[edges.target] == TaskKind.COLLECTIVE)
        self._meeting[edges.target[meets]] = edges.source[meets]
        self._assigned: set[int] = set()
        self._in_pieces = _in_pieces(graph)

    @cached_property
    def _start(self) -> npt.NDArray[np.float64]:
        """Starts in a replay. Unlike measured starts, they are never before the end of a predecessor."""
        return simulate(self._graph)[0]

    def targets(self, kinds: Collection[str], classes: Collection[str]) -> Targets:
        """Search every collective of the iteration; a Python loop of about 100 us each."""
        tasks = self._graph.tasks
        rows = np.flatnonzero(
            (tasks.kind == TaskKind.COLLECTIVE) & tasks.in_iteration & (self._in_pieces < _LATER_PIECE)
        )
        matched: list[Target] = []
        missed: Counter[str] = Counter()
        for row in rows.tolist():
            kind = COLLECTIVE_KINDS[tasks.collective[row]] if tasks.collective[row] >= 0 else "unknown"
            if kind not in kinds:
                missed["their kind is not known" if kind == "unknown" else f"they are {kind}"] += 1
                continue
            if self._in_pieces[row]:
                missed["they are in pieces already"] += 1
                continue
            path = self._kernels_beside(row, frozenset(classes))
            if isinstance(path, str):
                missed[path] += 1
            elif reason := self._bytes_mismatch(row, kind, path) or self._outside_wait(path):
                missed[reason] += 1
            else:
                self._assigned.update(path)
                matched.append(Target(row, path, int(self._meeting[row]), not self._has_sizes(row, path)))
        return Targets(tuple(matched), dict(missed.most_common()))

    def _kernels_beside(self, collective: int, classes: frozenset[str]) -> tuple[int, ...] | str:
        """Return the kernels from the one of `classes` to the collective, as they run; or why there are none."""
        tasks = self._graph.tasks
        side = "before" if self._backward else "after"
        path: list[int] = []
        kernel = self._closest(self._graph.arrival_of(collective) if self._backward else collective, collective)
        while kernel >= 0 and kernel not in self._assigned:
            if self._in_pieces[kernel]:
                return f"what comes {side} them is in pieces already"
            path.append(kernel)
            label = CLASSES[tasks.class_[kernel]] if tasks.class_[kernel] >= 0 else "copy"
            if label in classes:
                return tuple(reversed(path)) if self._backward else tuple(path)
            if label not in _PACKING:
                return f"{label} comes {side} them"
            if len(path) > _MOST_PACKING:
                return f"more than {_MOST_PACKING} kernels {side} them only move data"
            kernel = self._closest(kernel, kernel)
        return f"no kernel {side} them" if kernel < 0 else f"the kernel {side} them is another's already"

    def _closest(self, task: int, collective: int) -> int:
        """Return the neighbour of `task` or `collective` that runs closest to them on the device; -1 for none."""
        tasks = self._graph.tasks
        ends = (np.searchsorted(self._near_end, (row, row + 1)) for row in {task, collective})
        neighbours = np.concatenate([self._far_end[first:last] for first, last in ends])
        on_device = np.isin(tasks.kind[neighbours], (TaskKind.KERNEL, TaskKind.COPY)) & (
            tasks.device[neighbours] == tasks.device[collective]
        )
        neighbours = neighbours[on_device & tasks.in_iteration[neighbours]]
        if not len(neighbours):
            return -1
        closeness = tasks.measured_end_ns[neighbours] if self._backward else -tasks.measured_start_ns[neighbours]
        return int(neighbours[np.lexsort((neighbours, np.nan_to_num(closeness, nan=-np.inf)))[-1]])

    def _has_sizes(self, collective: int, path: tuple[int, ...]) -> bool:
        """Tell whether the bytes of the collective and the shapes of the kernel are known."""
        tasks = self._graph.tasks
        return bool(tasks.bytes[collective] > 0 and tasks.operator[path[self._computes]] >= 0)

    def _bytes_mismatch(self, collective: int, kind: str, path: tuple[int, ...]) -> str:
        """Return why the bytes of kernel and collective disagree; empty if they agree, or are unknown."""
        tasks = self._graph.tasks
        if not self._has_sizes(collective, path):
            return ""
        kernel, sent = path[self._computes], int(tasks.bytes[collective])
        operator: Operator = self._graph.operators[tasks.operator[kernel]]
        moved = operator.bytes_written if self._backward else operator.bytes_read
        parts = max(int(tasks.ranks[collective]), 1) if kind in ("all_gather", "reduce_scatter") else 1
        if sent / parts > _BYTES_FACTOR * moved or (self._backward and sent * _BYTES_FACTOR * parts < moved):
            verb = "writes" if self._backward else "reads"
            return f"the kernel beside them {verb} another amount than is sent"
        return ""

    def _outside_wait(self, path: tuple[int, ...]) -> str:
        """Return why the kernels cannot run piece by piece; empty if they can.

        They cannot if another task waits for one of them, and a later one of them waits for that task. Only tasks that
        start before the last kernel are visited: a handful.
        """
        if len(path) == 1:
            return ""
        start = self._start
        latest, seen = start[path[-1]], set(path)
        pending = [(kernel, True) for kernel in path[:-1]]
        while pending:
            task, inside = pending.pop()
            first, last = np.searchsorted(self._source, (task, task + 1))
            for edge in range(first, last):
                target = int(self._target[edge])
                if target in path and not (inside and self._inside[edge]):
                    return "the host, or another stream, waits between the kernels beside them"
                if target not in seen and not start[target] > latest:
                    seen.add(target)
                    pending.append((target, False))
        return ""


def _in_pieces(graph: KernelGraph) -> Ints:
    """Mark tasks that another what-if has split: 1 for the first piece, 2 for later ones, 0 for whole tasks.

    Pieces of a task share its event, its lane and its iteration.
    """
    tasks = graph.tasks
    rows = np.flatnonzero(graph.on_device() & (tasks.event >= 0))
    key = tasks.event[rows] * (tasks.lane.max(initial=0) + 1) + tasks.lane[rows]
    key = key * len(graph.iterations) + tasks.iteration[rows]
    _, first, group, counts = np.unique(key, return_index=True, return_inverse=True, return_counts=True)
    marks = np.zeros(len(tasks), dtype=np.int64)
    marks[rows[counts[group] > 1]] = _LATER_PIECE
    marks[rows[first[counts > 1]]] = 1
    return marks


@dataclass(frozen=True)
class Pipeline:
    """A graph in which targets run in pieces.

    Parameters
    ----------
    graph : KernelGraph
        The graph with the pieces.
    kernels : tuple of array of int64, shape (n_kernels, n_pieces)
        Rows of the pieces of each target's kernels.
    collectives : tuple of array of int64, shape (n_pieces + n_more,)
        Rows of the pieces of each target's collective.
    """

    graph: KernelGraph
    kernels: tuple[Ints, ...]
    collectives: tuple[Ints, ...]


def send_in_pieces(
    graph: KernelGraph, targets: Sequence[Target], pieces: Sequence[int], more: Sequence[int] = ()
) -> Pipeline:
    """Return a graph in which a collective sends each piece of its data as soon as it is computed and packed.

    A piece is sent when all ranks of the collective have computed theirs. Other dependencies of a collective or kernel
    become those of its first piece.

    Parameters
    ----------
    graph : KernelGraph
        The graph to change.
    targets : sequence of Target
        Targets that `producers` returned.
    pieces : sequence of int
        Number of pieces of each target.
    more : sequence of int, optional
        Number of further pieces of each collective, behind those that carry data as it is computed; 0 by default.
    """
    return _rewired(graph, targets, (pieces, more or [0] * len(targets)), sends=True)


def receive_in_pieces(graph: KernelGraph, targets: Sequence[Target], pieces: Sequence[int]) -> Pipeline:
    """Return a graph in which kernels unpack and compute on each piece of data as soon as it has arrived.

    Parameters
    ----------
    graph : KernelGraph
        The graph to change.
    targets : sequence of Target
        Targets that `consumers` returned.
    pieces : sequence of int
        Number of pieces of each target.
    """
    return _rewired(graph, targets, (pieces, [0] * len(targets)), sends=False)


def _rewired(
    graph: KernelGraph, targets: Sequence[Target], counts: tuple[Sequence[int], Sequence[int]], *, sends: bool
) -> Pipeline:
    """Return the graph with the targets in pieces that a collective sends, or that kernels receive."""
    n_pieces: dict[int, int] = {}
    for target, count, more in zip(targets, *counts, strict=True):
        n_pieces.update(dict.fromkeys(target.kernels, count))
        n_pieces[target.collective] = count + more
        if sends and target.meeting >= 0:
            n_pieces[target.meeting] = max(count, n_pieces.get(target.meeting, 1))
    pieces = split(graph, list(n_pieces), list(n_pieces.values()))
    kernels = tuple(np.array([pieces.of(kernel) for kernel in target.kernels]) for target in targets)
    collectives = tuple(pieces.of(target.collective) for target in targets)
    pairs: list[tuple[Ints, Ints]] = []
    group = _target_of(graph, targets, pieces)
    for target, rows, sent in zip(targets, kernels, collectives, strict=True):
        n = rows.shape[1]
        # On their stream, all kernels of one piece run before those of the next.
        order = [*pairwise(rows), (rows[-1][:-1], rows[0][1:])]
        if not sends:
            pairs += [(sent, rows[0]), *order]
        elif target.meeting >= 0:  # a piece is sent when all ranks have computed it
            meeting = pieces.of(target.meeting)[:n]
            pairs += [*order, (rows[-1], meeting), (meeting, sent[:n])]
        else:
            pairs += [*order, (rows[-1], sent[:n])]
    before, after = (np.concatenate([np.zeros(0, dtype=np.int64), *(pair[i] for pair in pairs)]) for i in (0, 1))
    edges = pieces.graph.edges
    # Edges from one piece of a task to its next piece stay.
    added = edges.source >= len(graph.tasks)
    internal = (group[edges.source] >= 0) & (group[edges.source] == group[edges.target]) & ~added & ~edges.from_start
    # Inside a target, an edge from a whole task becomes one from its first piece, with the same lag.
    eased = internal & (edges.kind != EdgeKind.LAUNCH)
    if sends:
        eased |= _rendezvous_edges(graph, targets, pieces)
    edges = replace(edges, source=np.where(eased, pieces.first[edges.source], edges.source))
    edges = edges.joined(Edges.of(before, after, kind=EdgeKind.STREAM))
    return Pipeline(replace(pieces.graph, edges=edges), kernels, collectives)


def _target_of(graph: KernelGraph, targets: Sequence[Target], pieces: Split) -> Ints:
    """Return the number of the target that each task and piece belongs to, arrivals included; -1 for none."""
    group = np.full(len(pieces.graph.tasks), -1)
    for number, target in enumerate(targets):
        group[graph.arrival_of(target.collective)] = number
        for task in (*target.kernels, target.collective):
            group[pieces.of(task)] = number
    return group


def _rendezvous_edges(graph: KernelGraph, targets: Sequence[Target], pieces: Split) -> npt.NDArray[np.bool_]:
    """Mark the edges by which targets' collectives waited until all ranks had computed everything."""
    meeting = np.full(len(pieces.graph.tasks), -2)
    for target in targets:
        if target.meeting >= 0:
            meeting[pieces.of(target.collective)[0]] = target.meeting
    edges = pieces.graph.edges
    return np.asarray((edges.kind == EdgeKind.RENDEZVOUS) & (meeting[edges.target] == edges.source))


#: Assumed ranks of a collective whose group the trace does not tell.
ANY_RANKS = 8
#: Bounds on the number of pieces of a target.
_FEWEST_PIECES, _MOST_PIECES = 2, 64
_CU = RESOURCES.index("cu")


def ranks_of(graph: KernelGraph, targets: Sequence[Target]) -> list[int]:
    """Return the number of pieces of each target: one per rank of its collective, from 2 to 64, and 8 if unknown."""
    ranks = graph.tasks.ranks[[target.collective for target in targets]]
    return [int(np.clip(n if n > 1 else ANY_RANKS, _FEWEST_PIECES, _MOST_PIECES)) for n in ranks.tolist()]


def bytes_time(duration_ns: float, parameters: Parameters) -> float:
    """Return the bandwidth time of a collective: its duration less the latency, which is half of it at most."""
    return duration_ns - min(parameters["collective_latency_ns"], duration_ns / 2)


def without_units(graph: KernelGraph, rows: Ints, durations: Floats, hbm_factor: Floats | float = 1.0) -> KernelGraph:
    """Return `graph` with transfers that use no compute units, and with their new durations.

    Parameters
    ----------
    graph : KernelGraph
        The graph to change.
    rows : array of int64, shape (n,)
        Rows of the transfers.
    durations : array of float64, shape (n,)
        New isolated durations, ns.
    hbm_factor : float or array of float64, shape (n,)
        Factor on the demand for memory bandwidth; 1 by default.
    """
    tasks = graph.tasks
    demand, occupies, duration = tasks.demand.copy(), tasks.occupies.copy(), tasks.duration_ns.copy()
    basis, waves = tasks.basis.copy(), tasks.waves.copy()
    demand[rows, _CU], occupies[rows], waves[rows], duration[rows] = 0.0, 0.0, 0.0, durations
    demand[rows, RESOURCES.index("hbm")] *= hbm_factor
    basis[rows] = np.maximum(basis[rows], int(Basis.DERIVED))
    pressure = tasks.pressure.copy()
    pressure[rows] = 0.0
    columns = {"demand": demand, "occupies": occupies, "pressure": pressure, "waves": waves}
    return graph.with_tasks(**columns, duration_ns=duration, basis=basis)


def nothing_to_apply(graph: KernelGraph, name: str, targets: Targets) -> KernelGraph:
    """Return `graph` unchanged, with a note of the reason."""
    reason = targets.note.removeprefix("0 collectives matched").removeprefix("; ")
    return graph.with_notes([f"{name}: nothing to apply it to: {reason or 'the iteration has no collective'}"])
