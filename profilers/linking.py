"""Link kernels and copies to the calls that launched them, and those to the operators around them.

A kernel finds its launch by (rank, correlation); a launch finds the innermost operator that encloses its
start on its thread. ``External id`` is right in every event of some files and wrong in every event of others
(it then repeats the correlation), so it is used only for what has no launch, and only where it agrees on the
events that have one.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from profilers.arrays import MISSING, Ints, dense_keys, ends, integers, put
from profilers.compiled import compiled
from profilers.trace import Trace

__all__ = ["innermost", "link", "lookup", "sorting"]

_DEVICE_KINDS = ("kernels", "copies")
#: Share of checked events on which External id must agree before it is believed.
_TRUST = 0.99


def link(trace: Trace) -> Trace:
    """Return `trace` with ``launch_id`` and ``op_id`` filled; what stays unlinked is counted.

    Parameters
    ----------
    trace : Trace
        Of one file: correlation ids repeat between files.
    """
    launches = _link_launches(trace)
    tables: dict[str, pa.Table] = {"launches": launches}
    counts = {"duplicate_correlation": _duplicates(launches)}
    for kind in _DEVICE_KINDS:
        table = _link_device(trace.tables[kind], launches)
        checked, wrong = _check_external(table, trace.ops)
        if checked and wrong <= (1 - _TRUST) * checked:
            table, used = _link_by_external(table, trace.ops)
            counts["linked_by_external_id"] = counts.get("linked_by_external_id", 0) + used
        counts["external_id_checked"] = counts.get("external_id_checked", 0) + checked
        counts["external_id_wrong"] = counts.get("external_id_wrong", 0) + wrong
        counts["orphan_device"] = counts.get("orphan_device", 0) + table["launch_id"].null_count
        counts["orphan_op"] = counts.get("orphan_op", 0) + table["op_id"].null_count
        counts["early_device"] = counts.get("early_device", 0) + _early(table, launches)
        counts["stream_overlap"] = counts.get("stream_overlap", 0) + _overlaps(table if kind == "kernels" else None)
        tables[kind] = table
    syncs = trace.syncs
    tables["syncs"] = put(syncs, "launch_id", _by_correlation(syncs, launches))
    return trace.with_tables(**tables).with_quality(counts)


def lookup(keys: Ints, values: Ints, wanted: Ints) -> Ints:
    """Return for every wanted key its value, the first where a key repeats; `MISSING` where there is none."""
    if not len(keys):
        return np.full(len(wanted), MISSING)
    if keys[0] <= keys[-1] and (np.diff(keys) == 1).all():
        found = wanted - keys[0]
        hit = (wanted >= keys[0]) & (wanted <= keys[-1])
        return np.where(hit, values[np.where(hit, found, 0)], MISSING)
    order = sorting(keys)
    position = np.minimum(np.searchsorted(keys, wanted, sorter=order), len(keys) - 1)
    found = position if order is None else order[position]
    hit = (keys[found] == wanted) & (wanted != MISSING)
    return np.where(hit, values[found], MISSING)


def sorting(values: Ints) -> npt.NDArray[np.intp] | None:
    """Return the order that sorts `values`, ties as they stand; None where they are sorted already."""
    return None if (values[1:] >= values[:-1]).all() else np.argsort(values, kind="stable")


def _keys(column: str, *tables: pa.Table) -> list[Ints]:
    """Return for each table one key a row from its rank and `column`, `MISSING` where that is null.

    The keys are dense, so that they fit int64 whatever the ids: equal pairs have equal keys in every table.
    """
    pairs = [(integers(table, "rank"), integers(table, column)) for table in tables]
    keys = dense_keys(*pairs)
    return [np.where(ids == MISSING, MISSING, key) for key, (_, ids) in zip(keys, pairs, strict=True)]


def _by_correlation(table: pa.Table, launches: pa.Table) -> Ints:
    keys, wanted = _keys("correlation", launches, table)
    ids = integers(launches, "id")
    order = sorting(keys)
    if order is not None:
        keys, ids = keys[order], ids[order]
    if (keys[1:] == keys[:-1]).any():  # of launches that share a correlation, the earliest counts
        order = np.lexsort(
            (integers(launches, "id"), integers(launches, "start_ns"), _keys("correlation", launches)[0])
        )
        ids = integers(launches, "id")[order]
    return lookup(keys, ids, wanted)


def _duplicates(launches: pa.Table) -> int:
    (keys,) = _keys("correlation", launches)
    keys = np.sort(keys[keys != MISSING])
    return int((keys[1:] == keys[:-1]).sum())


def _link_launches(trace: Trace) -> pa.Table:
    launches = trace.launches
    return put(launches, "op_id", innermost(trace.ops, launches))


def innermost(outer: pa.Table, inner: pa.Table) -> Ints:
    """Return the id of the innermost row of `outer` around the start of each row of `inner`, on its thread.

    Rows of `outer` on one thread are taken to nest, as calls do.
    """
    result = np.full(inner.num_rows, MISSING)
    outer_threads, inner_threads = _threads(outer), _threads(inner)
    starts, ids = integers(inner, "start_ns"), integers(outer, "id")
    for key, rows in outer_threads.items():
        if (asking := inner_threads.get(key)) is None:
            continue
        start, end = integers(outer, "start_ns")[rows], ends(outer)[rows]
        order = _nesting(start, end)
        times = starts[asking]
        by_time = sorting(times)
        found, stack = np.empty(len(times), np.intp), np.empty(len(start), np.intp)
        walk = np.arange(len(times)) if by_time is None else by_time
        _enclosing(start[order], end[order], times, walk, found, stack)
        result[asking] = np.where(found < 0, MISSING, ids[rows[order[found]]])
    return result


def _threads(table: pa.Table) -> dict[tuple[int | None, ...], npt.NDArray[np.intp]]:
    """Return the rows of each (rank, process, thread)."""
    code = np.zeros(table.num_rows, dtype=np.int64)
    for name in ("rank", "process", "thread"):
        encoded = pc.dictionary_encode(table[name].combine_chunks(), null_encoding="encode")
        code = code * max(len(encoded.dictionary), 1) + encoded.indices.to_numpy()
    columns = [table[name] for name in ("rank", "process", "thread")]
    found = {}
    for one in np.unique(code).tolist():
        rows = np.flatnonzero(code == one)
        found[tuple(column[int(rows[0])].as_py() for column in columns)] = rows
    return found


def _nesting(start: Ints, end: Ints) -> npt.NDArray[np.intp]:
    """Return the order in which intervals begin, of those that begin together the longer first."""
    order = sorting(start)
    order = np.arange(len(start)) if order is None else order
    same = start[order[1:]] == start[order[:-1]]
    return np.lexsort((-end, start)) if (same & (end[order[1:]] > end[order[:-1]])).any() else order


@compiled
def _enclosing(start: Any, end: Any, at: Any, order: Any, found: Any, stack: Any) -> None:
    """Put the innermost interval that holds each time into `found`, -1 for none.

    One walk over the intervals, which nest and are sorted, and the times in their `order`, with the stack of
    what is open.
    """
    open_, following = 0, 0
    for asked in order:
        time = at[asked]
        while following < len(start) and start[following] <= time:
            while open_ and end[stack[open_ - 1]] <= start[following]:
                open_ -= 1
            stack[open_] = following
            open_ += 1
            following += 1
        while open_ and end[stack[open_ - 1]] <= time:
            open_ -= 1
        found[asked] = stack[open_ - 1] if open_ else -1


def _link_device(table: pa.Table, launches: pa.Table) -> pa.Table:
    launch = _by_correlation(table, launches)
    table = put(table, "launch_id", launch)
    return put(table, "op_id", lookup(integers(launches, "id"), integers(launches, "op_id"), launch))


def _check_external(table: pa.Table, ops: pa.Table) -> tuple[int, int]:
    """Return on how many rows External id and the operator found can be compared, and how often they differ."""
    own = integers(table, "external_id")
    theirs = lookup(integers(ops, "id"), integers(ops, "external_id"), integers(table, "op_id"))
    both = (own != MISSING) & (theirs != MISSING)
    return int(both.sum()), int((own[both] != theirs[both]).sum())


def _link_by_external(table: pa.Table, ops: pa.Table) -> tuple[pa.Table, int]:
    op = integers(table, "op_id")
    keys, wanted = _keys("external_id", ops, table)
    known = keys != MISSING
    found = lookup(keys[known], integers(ops, "id")[known], wanted)
    new = (op == MISSING) & (found != MISSING)
    return put(table, "op_id", np.where(new, found, op)), int(new.sum())


def _early(table: pa.Table, launches: pa.Table) -> int:
    called = lookup(integers(launches, "id"), integers(launches, "start_ns"), integers(table, "launch_id"))
    return int(((called != MISSING) & (integers(table, "start_ns") < called)).sum())


def _overlaps(table: pa.Table | None) -> int:
    if table is None:
        return 0
    keys = [integers(table, name) for name in ("rank", "device", "stream")]
    start, end = integers(table, "start_ns"), ends(table)
    order = np.lexsort((start, *keys))
    same = np.logical_and.reduce([k[order][1:] == k[order][:-1] for k in keys])
    return int((same & (start[order][1:] < end[order][:-1])).sum())
