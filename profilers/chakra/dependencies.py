"""The nodes of one rank in the order of their starts, and what each waits for."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from profilers.arrays import MISSING, Ints, dense_keys, integers
from profilers.columns import lookup
from profilers.trace import Trace

__all__ = ["Nodes", "order_nodes"]

_HOST = ("ops", "launches")
_KINDS = ("ops", "launches", "kernels", "copies", "collectives")


@dataclass(frozen=True)
class Nodes:
    """Nodes by place: their order is that of their starts, callers before what they call.

    Parameters
    ----------
    kinds : sequence of str
    kind, row : array of int64, shape (n,)
        Which of `kinds`, and which row of its table.
    start_ns, own_ns : array of int64, shape (n,)
        Start; duration without that of the nodes called.
    shift_ns : int
        What starts are moved by so that the first of the trace is no earlier than 1 us, since 0 stands for none.
    caller : array of int64, shape (n,)
        Place of the operator around a node of the host, or of what launched one of the device; -1 where none is.
    before : array of int64, shape (n, 2)
        Places of the nodes that have to be done: the one before on the thread or stream, and what launched it; -1.
    """

    kinds: Sequence[str]
    kind: Ints
    row: Ints
    start_ns: Ints
    own_ns: Ints
    shift_ns: int
    caller: Ints
    before: Ints

    def __len__(self) -> int:
        return len(self.row)


def order_nodes(trace: Trace, rank: int) -> Nodes:
    """Return the nodes of a rank; collectives only where no kernel stands for them."""
    tables, rows = zip(*(_of_rank(trace, kind, rank) for kind in _KINDS), strict=True)
    kind = np.repeat(np.arange(len(_KINDS)), [len(part) for part in rows])
    start, ids = _column(tables, "start_ns"), _column(tables, "id")
    duration = np.maximum(_column(tables, "dur_ns"), 0)
    order = np.lexsort((ids, kind, -duration, start))
    host = kind[order] < len(_HOST)
    ids, kind, start, duration = ids[order], kind[order], start[order], duration[order]
    cause = np.concatenate([_cause(name, table) for name, table in zip(_KINDS, tables, strict=True)])[order]
    lane = _lanes(tables)[order]
    parent = _place_of(ids, _callers(tables)[order])
    caller = np.where(host, parent, _place_of(ids, cause))
    own = duration - _inside(duration, np.where(host, parent, -1))
    previous = _previous(lane, host)
    launched = np.where(host, -1, caller)
    return Nodes(
        _KINDS,
        kind,
        np.concatenate(rows)[order],
        start,
        np.maximum(own, 0),
        max(0, 1000 - _first_start(trace)),
        caller,
        np.stack([previous, launched], axis=1),
    )


def _of_rank(trace: Trace, kind: str, rank: int) -> tuple[pa.Table, Ints]:
    """Return the rows of a rank as a table, and which rows of the trace's they are."""
    table = trace.tables[kind]
    wanted = integers(table, "rank") == rank
    if kind == "collectives":
        wanted &= np.asarray(pc.is_null(table["kernel_id"]))
    rows = np.flatnonzero(wanted)
    return table.take(pa.array(rows)), rows


def _column(tables: Sequence[pa.Table], name: str) -> Ints:
    return np.concatenate([_or_missing(table, name) for table in tables])


def _or_missing(table: pa.Table, name: str) -> Ints:
    return integers(table, name) if name in table.schema.names else np.full(table.num_rows, MISSING)


def _cause(kind: str, table: pa.Table) -> Ints:
    """Return the id of what launched each row of the device."""
    if kind in _HOST:
        return np.full(table.num_rows, MISSING)
    launch = _or_missing(table, "launch_id")
    return np.where(launch == MISSING, _or_missing(table, "op_id"), launch)


def _callers(tables: Sequence[pa.Table]) -> Ints:
    """Return the id of the operator around each node of the host."""
    ops, launches = tables[0], tables[1]
    rest = sum(table.num_rows for table in tables[2:])
    return np.concatenate([_around(ops), integers(launches, "op_id"), np.full(rest, MISSING)])


def _around(ops: pa.Table) -> Ints:
    """Return the id of the innermost operator around each operator, on its thread.

    `profilers.linking.innermost` would find the operator itself, which is around its own start.
    """
    (lane,) = dense_keys((integers(ops, "process"), integers(ops, "thread")))
    start, duration, ids = integers(ops, "start_ns"), np.maximum(integers(ops, "dur_ns"), 0), integers(ops, "id")
    result = np.full(len(ids), MISSING)
    open_: dict[int, list[int]] = {}
    for row in np.lexsort((ids, -duration, start)).tolist():  # a Python loop over operators, about 1 us each
        stack = open_.setdefault(int(lane[row]), [])
        while stack and start[stack[-1]] + duration[stack[-1]] <= start[row]:
            stack.pop()
        if stack:
            result[row] = ids[stack[-1]]
        stack.append(row)
    return result


def _lanes(tables: Sequence[pa.Table]) -> Ints:
    """Return a number for the thread or stream of each node, distinct between host and device."""
    pairs = []
    for kind, table in zip(_KINDS, tables, strict=True):
        names = ("process", "thread") if kind in _HOST else ("device", "stream")
        pairs.append((_or_missing(table, names[0]), _or_missing(table, names[1])))
    return np.concatenate(dense_keys(*pairs))


def _place_of(ids: Ints, wanted: Ints) -> Ints:
    """Return the place of each id wanted, -1 where it has none."""
    found = lookup(ids, np.arange(len(ids)), wanted)
    return np.where(found == MISSING, -1, found)


def _inside(duration: Ints, parent: Ints) -> Ints:
    """Return how long the nodes called by each node last together."""
    total = np.zeros(len(duration), np.int64)
    np.add.at(total, parent[parent >= 0], duration[parent >= 0])
    return total


def _previous(lane: Ints, host: npt.NDArray[np.bool_]) -> Ints:
    """Return the place of the node before each on its thread or stream, -1 for the first."""
    order = np.lexsort((np.arange(len(lane)), lane, host))
    result = np.full(len(lane), -1)
    same = (lane[order][1:] == lane[order][:-1]) & (host[order][1:] == host[order][:-1])
    result[order[1:][same]] = order[:-1][same]
    return result


def _first_start(trace: Trace) -> int:
    starts = [int(integers(trace.tables[kind], "start_ns").min()) for kind in _KINDS if trace.tables[kind].num_rows]
    return min(starts, default=1000)
