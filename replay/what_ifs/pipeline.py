"""Pipelines of kernels and collectives: tasks cut into pieces, so that computing and communicating overlap.

`t3`, `ficco` and `fuse_collectives` share this module. `producers` and `consumers` search a graph for collectives whose
data a kernel has just computed, or reads next. `split` cuts tasks into equal pieces. `send_in_pieces` and
`receive_in_pieces` join the two: a piece is sent when it is computed, or computed when it has arrived.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from profilers.errors import InvalidInputError
from profilers.trace.arrays import Floats, Ints
from replay.calibration.parameters import Parameters
from replay.graph.graph import RESOURCES, Basis, EdgeKind, Edges, KernelGraph, Tasks
from replay.what_ifs.targets import Target

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
