"""Tasks in pieces: a kernel as stages, a collective as chunks, in the graph that they are part of."""

from dataclasses import dataclass, fields, replace

import numpy as np
import numpy.typing as npt

from profilers.errors import InvalidInputError
from replay.graph import EdgeKind, Edges, KernelGraph, Tasks

__all__ = ["MOST_PIECES", "Split", "quantisation", "split"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
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
