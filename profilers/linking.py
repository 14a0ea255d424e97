"""Link kernels and copies to the calls that launched them, and those to the operators around them.

A kernel finds its launch by (rank, correlation); a launch finds the innermost operator that encloses its
start on its thread. ``External id`` is right in every event of some files and wrong in every event of others
(it then repeats the correlation), so it is used only for what has no launch, and only where it agrees on the
events that have one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from profilers.arrays import MISSING, Ints, dense_keys, integers, put
from profilers.compiled import compiled
from profilers.trace import Trace

__all__ = ["LANE", "Links", "innermost", "link", "link_rows", "lookup", "sorting"]

_DEVICE_KINDS = ("kernels", "copies")
#: A column that tables do not have: one small number for each thread of a process of a rank.
LANE = "lane"
#: Share of checked events on which External id must agree before it is believed.
_TRUST = 0.99
#: A duration that overruns the next kernels of its stream by this much, and so many of them, is no measurement.
_OVERRUN_NS, _OVERRUN_KERNELS = 1_000_000, 8

#: Returns a column of a kind: ``get("ops", "start_ns")``.
Get = Callable[[str, str], Ints]


@dataclass(frozen=True)
class Links:
    """What linking found.

    Parameters
    ----------
    columns : dict of (kind, column) to array of int64
        New columns; ``cause_ns`` is the start of the launch of device work, or else of its operator.
    counts : dict of str to int
        For `Quality`.
    """

    columns: dict[tuple[str, str], Ints]
    counts: dict[str, int]


def link(trace: Trace) -> Trace:
    """Return `trace` with ``launch_id`` and ``op_id`` filled; what stays unlinked is counted.

    Parameters
    ----------
    trace : Trace
        Of one file: correlation ids repeat between files.
    """
    lanes = dict(zip(("ops", "launches"), _lanes(trace.ops, trace.launches), strict=True))
    links = link_rows(lambda kind, name: lanes[kind] if name == LANE else integers(trace.tables[kind], name))
    tables = dict(trace.tables)
    for (kind, column), values in links.columns.items():
        if column in tables[kind].schema.names:
            tables[kind] = put(tables[kind], column, values)
    return trace.with_tables(**tables).with_quality(links.counts)


def link_rows(get: Get) -> Links:
    """Link the rows of one file, of which `get` returns one column at a time.

    Of ``ops``: id, start_ns, dur_ns, lane, external_id; of ``launches``: id, rank, start_ns, lane, correlation;
    of ``kernels`` and ``copies``: rank, start_ns, dur_ns, device, stream, correlation, external_id; of ``syncs``:
    rank, correlation.
    """
    launches = _Launches(get)
    columns = {("launches", "op_id"): launches.op}
    counts = {"duplicate_correlation": launches.duplicates}
    for kind in _DEVICE_KINDS:
        launch = launches.of(get, kind)
        op = lookup(launches.id, launches.op, launch)
        cause = lookup(launches.id, launches.start, launch)
        start = get(kind, "start_ns")
        early = (cause != MISSING) & (start < cause)
        checked, wrong = _check_external(get, kind, op)
        used = 0
        if checked and wrong <= (1 - _TRUST) * checked:
            op, used = _link_by_external(get, kind, op)
        by_op = lookup(get("ops", "id"), get("ops", "start_ns"), np.where(launch == MISSING, op, MISSING))
        columns |= {
            (kind, "launch_id"): launch,
            (kind, "op_id"): op,
            (kind, "cause_ns"): np.where(launch == MISSING, by_op, cause),
        }
        found = {
            "linked_by_external_id": used,
            "external_id_checked": checked,
            "external_id_wrong": wrong,
            "orphan_device": int((launch == MISSING).sum()),
            "orphan_op": int((op == MISSING).sum()),
            "early_device": int(early.sum()),
        }
        counts = {name: counts.get(name, 0) + found.get(name, 0) for name in {**counts, **found}}
    columns["kernels", "dur_ns"], counts["stream_overlap"], counts["repaired_duration"] = _durations(get)
    columns["syncs", "launch_id"] = launches.of(get, "syncs")
    return Links(columns, counts)


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


class _Launches:
    """The calls of one file, ready to be found by rank and correlation."""

    def __init__(self, get: Get) -> None:
        found = _innermost(
            (get("ops", "start_ns"), get("ops", "dur_ns"), get("ops", LANE)),
            (get("launches", "start_ns"), get("launches", LANE)),
        )
        self.op = _ids(get("ops", "id"), found)
        self.id, self.start = get("launches", "id"), get("launches", "start_ns")
        self._rank, self._correlation = get("launches", "rank"), get("launches", "correlation")
        (keys,) = _keys((self._rank, self._correlation))
        known = np.sort(keys[keys != MISSING])
        self.duplicates = int((known[1:] == known[:-1]).sum())

    def of(self, get: Get, kind: str) -> Ints:
        """Return the call with each row's correlation; of several, the earliest."""
        keys, wanted = _keys((self._rank, self._correlation), (get(kind, "rank"), get(kind, "correlation")))
        order = np.lexsort((self.id, self.start, keys)) if self.duplicates else sorting(keys)
        return lookup(keys, self.id, wanted) if order is None else lookup(keys[order], self.id[order], wanted)


def _keys(*pairs: tuple[Ints, Ints]) -> list[Ints]:
    """Return for each pair of ranks and numbers one key a row, `MISSING` where the number is null."""
    keys = dense_keys(*pairs)
    return [np.where(numbers == MISSING, MISSING, key) for key, (_, numbers) in zip(keys, pairs, strict=True)]


def innermost(outer: pa.Table, inner: pa.Table) -> Ints:
    """Return the id of the innermost row of `outer` around the start of each row of `inner`, on its thread.

    Rows of `outer` on one thread are taken to nest, as calls do.
    """
    lanes = _lanes(outer, inner)
    found = _innermost(
        (integers(outer, "start_ns"), integers(outer, "dur_ns"), lanes[0]), (integers(inner, "start_ns"), lanes[1])
    )
    return _ids(integers(outer, "id"), found)


def _ids(ids: Ints, rows: Ints) -> Ints:
    return np.where(rows < 0, MISSING, ids[rows]) if len(ids) else np.full(len(rows), MISSING)


def _lanes(*tables: pa.Table) -> list[Ints]:
    """Return a small number for each row, the same in all tables for the same rank, process and thread."""
    place = [[integers(table, name) for name in ("rank", "process", "thread")] for table in tables]
    lanes = dense_keys(*((rank, process) for rank, process, _ in place))
    lanes = [np.unique(lane, return_inverse=True)[1] if len(tables) == 1 else lane for lane in lanes]
    return dense_keys(*((lane, thread) for lane, (_, _, thread) in zip(lanes, place, strict=True)))


def _innermost(outer: tuple[Ints, Ints, Ints], inner: tuple[Ints, Ints]) -> Ints:
    """Return for each time on a lane the row of the innermost interval (start, duration, lane) around it, or -1."""
    starts, durations, lanes = outer
    times, asking_lanes = inner
    found = np.full(len(times), -1)
    for lane in np.unique(asking_lanes).tolist():
        rows, asking = np.flatnonzero(lanes == lane).astype(np.int32), np.flatnonzero(asking_lanes == lane)
        if not _nests(starts, durations, rows):
            rows = rows[np.lexsort((-durations[rows], starts[rows]))]
        order = sorting(times[asking])
        asking = asking if order is None else asking[order]
        _enclosing(starts, durations, rows, (times, asking, found), np.empty(len(rows), np.int32))
    return found


@compiled
def _nests(starts: Any, durations: Any, rows: Any) -> Any:
    """Return whether the rows are in the order of their starts, of those that begin together the longer first."""
    for i in range(1, len(rows)):
        one, other = rows[i - 1], rows[i]
        if starts[other] < starts[one] or (starts[other] == starts[one] and durations[other] > durations[one]):
            return False
    return True


@compiled
def _enclosing(starts: Any, durations: Any, rows: Any, asked: Any, stack: Any) -> None:
    """Put the row of the innermost interval that holds each time asked into `found`.

    One walk over the intervals, which nest and are sorted, and the times in their order, with the stack of what
    is open. A missing duration is none.
    """
    times, asking, found = asked
    open_, following = 0, 0
    for one in asking:
        time = times[one]
        while following < len(rows) and starts[rows[following]] <= time:
            begin = starts[rows[following]]
            while open_ and starts[stack[open_ - 1]] + max(durations[stack[open_ - 1]], 0) <= begin:
                open_ -= 1
            stack[open_] = rows[following]
            open_ += 1
            following += 1
        while open_ and starts[stack[open_ - 1]] + max(durations[stack[open_ - 1]], 0) <= time:
            open_ -= 1
        if open_:
            found[one] = stack[open_ - 1]


def _check_external(get: Get, kind: str, op: Ints) -> tuple[int, int]:
    """Return on how many rows External id and the operator found can be compared, and how often they differ."""
    own = get(kind, "external_id")
    theirs = lookup(get("ops", "id"), get("ops", "external_id"), op)
    both = (own != MISSING) & (theirs != MISSING)
    return int(both.sum()), int((own[both] != theirs[both]).sum())


def _link_by_external(get: Get, kind: str, op: Ints) -> tuple[Ints, int]:
    """Return the operators of `op`, and where it has none those that External id names; and how many those are."""
    lost = np.flatnonzero(op == MISSING)
    if not len(lost):
        return op, 0
    keys, wanted = _keys(
        (get("ops", "rank"), get("ops", "external_id")), (get(kind, "rank")[lost], get(kind, "external_id")[lost])
    )
    known = keys != MISSING
    found = lookup(keys[known], get("ops", "id")[known], wanted)
    result = op.copy()
    result[lost] = found
    return result, int((found != MISSING).sum())


def _durations(get: Get) -> tuple[Ints, int, int]:
    """Return the durations of kernels, how many overlap their successor on the stream, how many were repaired.

    Kernels of one stream overlap by microseconds on real devices. A duration that covers many of the kernels
    that follow, by milliseconds, is a damaged end stamp, as some ROCm versions write; it
    then ends where the next begins.
    """
    duration = get("kernels", "dur_ns").copy()
    start = get("kernels", "start_ns")
    keys = [get("kernels", name) for name in ("rank", "device", "stream")]
    order = np.lexsort((start, *keys))
    same = np.logical_and.reduce([k[order][1:] == k[order][:-1] for k in keys])
    begin = start[order]
    end = begin + np.where(duration[order] == MISSING, 0, duration[order])
    overlap = same & (begin[1:] < end[:-1])
    far = np.flatnonzero(overlap & (end[:-1] - begin[1:] > _OVERRUN_NS))
    repaired = 0
    for row in far.tolist():  # a Python loop over overruns of more than a millisecond
        last = row + _OVERRUN_KERNELS
        if last < len(begin) and same[row:last].all() and begin[last] < end[row] - _OVERRUN_NS:
            duration[order[row]] = begin[row + 1] - begin[row]
            repaired += 1
    return duration, int(overlap.sum()), repaired
