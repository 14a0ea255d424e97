"""Links from kernels to their launches and operators.

`Index`: the rows of a kind by rank and number, as kernels find their launch by correlation.

Link kernels and copies to the calls that launched them, and those to the operators around them.

A kernel finds its launch by (rank, correlation); a launch finds the innermost operator that encloses its
start on its thread. ``External id`` is right in every event of some files and wrong in every event of others
(it then repeats the correlation), so it is used only for what has no launch, and only where it agrees on the
events that have one.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from profilers.trace.arrays import MISSING, Ints, put
from profilers.trace.columns import LANE, Columns, TableColumns, at, by_lane, row_slices, sorting
from profilers.trace.compiled import compiled
from profilers.trace.trace import Trace

#: Numbers that lie this many times further apart than there are of them, and more, are numbered by their order.
_SPARSE, _MORE = 4, 1 << 16


class Index:
    """The rows of a kind by rank and a number; of several with the same, the one that starts first."""

    def __init__(self, columns: Columns, kind: str, name: str) -> None:
        slices = list(row_slices(columns.count(kind)))
        self._ranks = Numbering(lambda: (columns.part(kind, "rank", rows) for rows in slices))
        self._numbers = Numbering(lambda: (columns.part(kind, name, rows) for rows in slices))

        def pairs() -> Iterator[Ints]:
            for rows in slices:
                yield self._pairs(columns.part(kind, "rank", rows), columns.part(kind, name, rows))

        self._places = Numbering(pairs)
        self._rows = np.full(self._places.size, -1, np.int32)
        self.duplicates = 0
        starts = columns.raw(kind, "start_ns")
        for rows, keys in zip(slices, pairs(), strict=True):
            self.duplicates += int(_enter(self._rows, self._places.of(keys), rows.start, starts))

    def find(self, ranks: Ints, numbers: Ints) -> Ints:
        """Return the row with each rank and number, or -1."""
        if not len(self._rows):
            return np.full(len(ranks), -1)
        places = self._places.of(self._pairs(ranks, numbers))
        return np.where(places < 0, -1, self._rows[places])

    def _pairs(self, ranks: Ints, numbers: Ints) -> Ints:
        rank, number = self._ranks.of(ranks), self._numbers.of(numbers)
        return np.where((rank < 0) | (number < 0), MISSING, rank * self._numbers.size + number)


class Numbering:
    """Numbers integers from 0: by their distance to the least where they lie close, else by their order.

    Parameters
    ----------
    chunks : callable
        Yields all of them; `MISSING` has no number.
    """

    def __init__(self, chunks: Callable[[], Iterator[Ints]]) -> None:
        low, high, count = 0, -1, 0
        for chunk in chunks():
            if len(present := _present(chunk)):
                least, most = int(present.min()), int(present.max())
                low, high = (min(low, least), max(high, most)) if count else (least, most)
                count += len(present)
        self._low, self._high = low, high
        #: Numbers are less than this.
        self.size = high - low + 1
        self._distinct: Ints | None = None
        if self.size > _SPARSE * count + _MORE:
            self._distinct = np.unique(np.concatenate([_present(chunk) for chunk in chunks()]))
            self.size = len(self._distinct)

    def of(self, values: Ints) -> Ints:
        """Return the number of each value, -1 where it has none."""
        if self._distinct is None:
            return np.where((values >= self._low) & (values <= self._high), values - self._low, -1)
        found = np.minimum(np.searchsorted(self._distinct, values), self.size - 1)
        return np.where(self._distinct[found] == values, found, -1)


def _present(values: Ints) -> Ints:
    missing = values == MISSING
    return values[~missing] if missing.any() else values


@compiled
def _enter(rows: Any, places: Any, first: Any, starts: Any) -> Any:
    """Put the numbers of rows from `first` on into their places, of two the one that starts first; count those."""
    again = 0
    for i in range(len(places)):
        place = places[i]
        if place < 0:
            continue
        if rows[place] >= 0:
            again += 1
        if rows[place] < 0 or starts[first + i] < starts[rows[place]]:
            rows[place] = first + i
    return again


_DEVICE_KINDS = ("kernels", "copies")
#: Share of checked events on which External id must agree before it is believed.
_TRUST = 0.99
#: A duration that overruns the next kernels of its stream by this much, and so many of them, is no measurement.
_OVERRUN_NS, _OVERRUN_KERNELS = 1_000_000, 8

#: How often a row may move on average before it is sorted otherwise.
_MOVES = 8
#: Takes the next rows of a new column: ``put("kernels", "launch_id", values)``.
_Give = Callable[[str, str, Ints], None]


def link(trace: Trace) -> Trace:
    """Return `trace` with ``launch_id`` and ``op_id`` filled; what stays unlinked is counted.

    Parameters
    ----------
    trace : Trace
        Of one file: correlation ids repeat between files.
    """
    tables = dict(trace.tables)
    found: dict[tuple[str, str], list[Ints]] = {}

    def give(kind: str, name: str, values: Ints) -> None:
        found.setdefault((kind, name), []).append(values)

    counts = link_rows(TableColumns(tables), give)
    for (kind, column), values in found.items():
        if column in tables[kind].schema.names:
            tables[kind] = put(tables[kind], column, np.concatenate(values))
    return trace.with_tables(**tables).with_quality(counts)


def link_rows(columns: Columns, give: _Give) -> dict[str, int]:
    """Link the rows of one file and return the counts for `Quality`.

    Parameters
    ----------
    columns : Columns
    give : callable
        Takes new columns, a part at a time: ``op_id`` and ``launch_id``; ``cause_ns``, the start of the launch of
        device work, or else of its operator; ``dur_ns`` of kernels where some are repaired.
    """
    counts = Counter(_durations(columns, give))
    _forget(columns, "kernels", "dur_ns", LANE)
    op = _innermost(columns)
    _forget(columns, "ops", "dur_ns", LANE)
    _forget(columns, "launches", LANE)
    for rows in row_slices(columns.count("launches")):
        give("launches", "op_id", at(columns, "ops", "id", op[rows]))
    launches = Index(columns, "launches", "correlation")
    _forget(columns, "launches", "rank", "correlation")
    counts.update(duplicate_correlation=launches.duplicates)
    for kind in _DEVICE_KINDS:
        counts.update(_Work(columns, kind, launches, op).link(give))
    for rows in row_slices(columns.count("syncs")):
        found = launches.find(columns.part("syncs", "rank", rows), columns.part("syncs", "correlation", rows))
        give("syncs", "launch_id", at(columns, "launches", "id", found))
    return dict(counts)


def _forget(columns: Columns, kind: str, *names: str) -> None:
    for name in names:
        columns.forget(kind, name)


@dataclass(frozen=True)
class _Work:
    """Kernels or copies, and what they are linked to.

    Parameters
    ----------
    columns : Columns
    kind : str
    launches : Index
    op : array of int
        Row of each launch's operator, or -1.
    """

    columns: Columns
    kind: str
    launches: Index
    op: npt.NDArray[np.int32]

    def link(self, give: _Give) -> Counter[str]:
        """Give the columns, and return the counts."""
        counts = self._check_external()
        checked, wrong = counts["external_id_checked"], counts["external_id_wrong"]
        trusted = checked and counts["orphan_op"] and wrong <= (1 - _TRUST) * checked
        external = Index(self.columns, "ops", "external_id") if trusted else None
        for rows in row_slices(self.columns.count(self.kind)):
            launch, op = self._found(rows)
            if external is not None:
                lost = np.flatnonzero(op < 0)
                op[lost] = external.find(self._part("rank", rows)[lost], self._part("external_id", rows)[lost])
                used = int((op[lost] >= 0).sum())
                counts.update(linked_by_external_id=used, orphan_op=-used)
            cause = at(self.columns, "launches", "start_ns", launch)
            counts["early_device"] += int(((launch >= 0) & (self._part("start_ns", rows) < cause)).sum())
            by_op = at(self.columns, "ops", "start_ns", np.where(launch < 0, op, -1))
            give(self.kind, "launch_id", at(self.columns, "launches", "id", launch))
            give(self.kind, "op_id", at(self.columns, "ops", "id", op))
            give(self.kind, "cause_ns", np.where(launch < 0, by_op, cause))
        return counts

    def _part(self, name: str, rows: slice) -> Ints:
        return self.columns.part(self.kind, name, rows)

    def _found(self, rows: slice) -> tuple[Ints, Ints]:
        """Return the row of the launch, and of its operator, of some rows; -1 for none."""
        launch = self.launches.find(self._part("rank", rows), self._part("correlation", rows))
        op = self.op[launch].astype(np.int64) if len(self.op) else np.full(len(launch), -1)
        op[launch < 0] = -1
        return launch, op

    def _check_external(self) -> Counter[str]:
        """Count what has no launch, or operator, and on how many rows External id names another than was found."""
        counts: Counter[str] = Counter()
        for rows in row_slices(self.columns.count(self.kind)):
            launch, op = self._found(rows)
            own, theirs = self._part("external_id", rows), at(self.columns, "ops", "external_id", op)
            both = (own != MISSING) & (theirs != MISSING)
            counts.update(
                orphan_device=int((launch < 0).sum()),
                orphan_op=int((op < 0).sum()),
                external_id_checked=int(both.sum()),
                external_id_wrong=int((own[both] != theirs[both]).sum()),
            )
        return counts


def innermost(outer: pa.Table, inner: pa.Table) -> Ints:
    """Return the id of the innermost row of `outer` around the start of each row of `inner`, on its thread.

    Rows of `outer` on one thread are taken to nest, as calls do.
    """
    columns = TableColumns({"ops": outer, "launches": inner})
    return at(columns, "ops", "id", _innermost(columns))


def _innermost(columns: Columns) -> npt.NDArray[np.int32]:
    """Return for each launch the row of the innermost operator around its start on its thread, or -1."""
    if not columns.count("ops"):
        return np.broadcast_to(np.int32(-1), columns.count("launches"))
    found = np.full(columns.count("launches"), -1, np.int32)
    starts, durations, times = (
        columns.raw(*named) for named in (("ops", "start_ns"), ("ops", "dur_ns"), ("launches", "start_ns"))
    )
    operators = _rows_by_lane(columns, "ops")
    for lane, asking in enumerate(_rows_by_lane(columns, "launches")):
        rows = operators[lane] if lane < len(operators) else np.empty(0, np.int32)
        if not len(rows) or not len(asking):
            continue
        if not _nests(starts, durations, rows):
            rows = rows[np.lexsort((-durations[rows].astype(np.int64), starts[rows]))]
        order = sorting(times[asking])
        asking = asking if order is None else asking[order]
        _enclosing(starts, durations, rows, (times, asking, found), np.empty(len(rows), np.int32))
    return found


def _rows_by_lane(columns: Columns, kind: str) -> list[npt.NDArray[np.int32]]:
    slices = list(row_slices(columns.count(kind)))
    return by_lane(lambda: (columns.part(kind, LANE, rows) for rows in slices))


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
    """_Give the row of the innermost interval that holds each time asked into `found`.

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


def _durations(columns: Columns, give: _Give) -> dict[str, int]:
    """Count the kernels that overlap their successor on the stream; repair the durations that are no measurement.

    Kernels of one stream overlap by microseconds on real devices. A duration that covers many of the kernels
    that follow, by milliseconds, is a damaged end stamp, as some ROCm versions write; it
    then ends where the next begins.
    """
    counts = {"stream_overlap": 0, "repaired_duration": 0}
    repaired: dict[int, int] = {}
    starts, durations = columns.raw("kernels", "start_ns"), columns.raw("kernels", "dur_ns")
    for lane in _rows_by_lane(columns, "kernels"):
        rows = lane if _settle(starts, lane) else lane[np.argsort(starts[lane], kind="stable")]
        overlaps, overruns = _overlaps(starts, durations, rows, np.empty(0, np.int64))
        counts["stream_overlap"] += int(overlaps)
        if overruns:
            far = np.empty(overruns, np.int64)
            _overlaps(starts, durations, rows, far)
            repaired |= _ends_of_next(starts, durations, rows, far)
    counts["repaired_duration"] = len(repaired)
    if repaired:
        _give_repaired(columns, give, repaired)
    return counts


def _give_repaired(columns: Columns, give: _Give, repaired: Mapping[int, int]) -> None:
    which = np.array(sorted(repaired), np.int64)
    durations = np.array([repaired[row] for row in which.tolist()], np.int64)
    for rows in row_slices(columns.count("kernels")):
        own = slice(*np.searchsorted(which, (rows.start, rows.stop)).tolist())
        values = columns.part("kernels", "dur_ns", rows).copy()
        values[which[own] - rows.start] = durations[own]
        give("kernels", "dur_ns", values)


@compiled
def _settle(starts: Any, rows: Any) -> Any:
    """Sort rows by their starts where that takes few moves, as where buffers were written by turns; else say no."""
    moves = 0
    for i in range(1, len(rows)):
        row, j = rows[i], i
        while j > 0 and starts[rows[j - 1]] > starts[row] and moves < _MOVES * len(rows):
            rows[j] = rows[j - 1]
            j -= 1
            moves += 1
        rows[j] = row
        if moves >= _MOVES * len(rows):
            return False
    return True


@compiled
def _overlaps(starts: Any, durations: Any, rows: Any, far: Any) -> Any:
    """Count the rows that end after the next begins, and those that do so by far, which are put into `far`."""
    overlaps, overruns = 0, 0
    for i in range(len(rows) - 1):
        over = starts[rows[i]] + max(durations[rows[i]], 0) - starts[rows[i + 1]]
        if over > 0:
            overlaps += 1
        if over > _OVERRUN_NS:
            if overruns < len(far):
                far[overruns] = i
            overruns += 1
    return overlaps, overruns


def _ends_of_next(starts: Ints, durations: npt.NDArray[Any], rows: npt.NDArray[Any], far: Ints) -> dict[int, int]:
    """Return by row the durations to the start of the next, where one overruns many."""
    found: dict[int, int] = {}
    for i in far.tolist():  # a Python loop over overruns of more than a millisecond
        last, row = i + _OVERRUN_KERNELS, int(rows[i])
        if last < len(rows) and int(starts[rows[last]]) < int(starts[row]) + int(durations[row]) - _OVERRUN_NS:
            found[row] = int(starts[rows[i + 1]]) - int(starts[row])
    return found
