"""Link kernels and copies to the calls that launched them, and those to the operators around them.

A kernel finds its launch by (rank, correlation) in an `Index`. A launch finds the innermost operator that encloses its
start on its thread. ``External id`` is right in every event of some files, and wrong in every event of others, where
it repeats the correlation. So it is used only for events without a launch, and only in files in which it agrees with
the operators of events that have one.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from profilers.ingest.stage import LAUNCHING, Stage
from profilers.trace.arrays import MISSING, Bools, Ints
from profilers.trace.columns import LANE, by_lane, row_slices, sorting
from profilers.trace.compiled import compiled

#: Columns of each kind that linking reads, which stay in memory; all others stay in the stage.
LINK_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "ops": ("id", "rank", "start_ns", "dur_ns", LANE, "external_id"),
    "launches": ("id", "rank", "start_ns", LANE, "correlation", LAUNCHING),
    "kernels": ("rank", "start_ns", "dur_ns", LANE, "correlation", "external_id"),
    "copies": ("rank", "start_ns", "dur_ns", LANE, "correlation", "external_id"),
    "syncs": ("rank", "correlation"),
}
#: Numbers whose range exceeds `_SPARSE` times their count plus `_MORE` are numbered by their order.
_SPARSE, _MORE = 4, 1 << 16


class Index:
    """The rows of a kind by rank and number, such as launches by correlation.

    Of rows with equal rank and number, the earliest is kept.

    Parameters
    ----------
    stage : Stage
        Rows of one file, which holds the column, ``rank`` and ``start_ns`` of the kind.
    kind, name : str
        Kind of event, and the column that holds the number.

    Attributes
    ----------
    duplicates : int
        Number of rows whose rank and number an earlier row has.
    """

    def __init__(self, stage: Stage, kind: str, name: str) -> None:
        slices = list(row_slices(stage.count(kind)))
        self._ranks = Numbering(lambda: (stage.part(kind, "rank", rows) for rows in slices))
        self._numbers = Numbering(lambda: (stage.part(kind, name, rows) for rows in slices))

        def pairs() -> Iterator[Ints]:
            for rows in slices:
                yield self._pairs(stage.part(kind, "rank", rows), stage.part(kind, name, rows))

        self._slots = Numbering(pairs)
        self._rows = np.full(self._slots.size, -1, np.int32)
        self.duplicates = 0
        starts = stage.raw(kind, "start_ns")
        for rows, keys in zip(slices, pairs(), strict=True):
            self.duplicates += int(_enter(self._rows, self._slots.of(keys), rows.start, starts))

    def find(self, ranks: Ints, numbers: Ints) -> Ints:
        """Return the row of each rank and number, or -1."""
        if not len(self._rows):
            return np.full(len(ranks), -1)
        slots = self._slots.of(self._pairs(ranks, numbers))
        return np.where(slots < 0, -1, self._rows[slots])

    def _pairs(self, ranks: Ints, numbers: Ints) -> Ints:
        rank, number = self._ranks.of(ranks), self._numbers.of(numbers)
        return np.where((rank < 0) | (number < 0), MISSING, rank * self._numbers.size + number)


class Numbering:
    """A numbering of distinct integers from 0: by their distance from the least if they lie close, else by order.

    Parameters
    ----------
    chunks : callable
        Yields the integers in blocks, the same at each call; `MISSING` has no number.
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
        """Return the number of each value, or -1."""
        if self._distinct is None:
            return np.where((values >= self._low) & (values <= self._high), values - self._low, -1)
        position = np.minimum(np.searchsorted(self._distinct, values), self.size - 1)
        return np.where(self._distinct[position] == values, position, -1)


def _present(values: Ints) -> Ints:
    missing = values == MISSING
    return values[~missing] if missing.any() else values


@compiled
def _enter(rows: Any, slots: Any, first: Any, starts: Any) -> Any:
    """Put the rows from `first` on into their slots, of two rows the earlier; return the number of duplicates."""
    duplicates = 0
    for i in range(len(slots)):
        slot = slots[i]
        if slot < 0:
            continue
        if rows[slot] >= 0:
            duplicates += 1
        if rows[slot] < 0 or starts[first + i] < starts[rows[slot]]:
            rows[slot] = first + i
    return duplicates


#: Least share of checked events on which External id must agree with the launch to be used.
_TRUST = 0.99
#: Moves a row, on average, before insertion sort gives way to a full sort.
_MOVES = 8


def link_rows(stage: Stage) -> dict[str, int]:
    """Link the rows of one file and return the counts for `Quality`.

    Amended are ``op_id``, ``launch_id`` and ``cause_ns``. The cause of a kernel or copy is its launch, or else its
    operator.

    Parameters
    ----------
    stage : Stage
        Rows of the file, which holds `LINK_COLUMNS`; each column is forgotten after its last use.
    """
    counts = Counter(stream_overlap=_overlaps_of(stage))
    stage.forget("kernels", "dur_ns", LANE)
    stage.forget("copies", "dur_ns", LANE)
    op = _innermost(stage)
    stage.forget("ops", "dur_ns", LANE)
    stage.forget("launches", LANE)
    for rows in row_slices(stage.count("launches")):
        stage.amend("launches", "op_id", stage.take("ops", "id", op[rows]))
    launches = Index(stage, "launches", "correlation")
    stage.forget("launches", "correlation")
    counts.update(duplicate_correlation=launches.duplicates)
    used = np.zeros(stage.count("launches"), np.bool_)
    for kind in ("kernels", "copies"):
        counts.update(_DeviceRows(stage, kind, launches, op, used).link())
    counts.update(_without_work(stage, used))
    stage.forget("launches", "rank", LAUNCHING)
    for rows in row_slices(stage.count("syncs")):
        launch_rows = launches.find(stage.part("syncs", "rank", rows), stage.part("syncs", "correlation", rows))
        stage.amend("syncs", "launch_id", stage.take("launches", "id", launch_rows))
    return dict(counts)


def _without_work(stage: Stage, used: Bools) -> dict[str, int]:
    """Count the calls that launch kernels, those without device work, and those before a rank's first with work."""
    starts, ranks = stage.raw("launches", "start_ns"), stage.raw("launches", "rank")
    launching = stage.raw("launches", LAUNCHING) == 1
    counts = Counter(kernel_launches=int(launching.sum()), launches_without_work=int((launching & ~used).sum()))
    for rank in np.unique(ranks[launching & used]):  # a few ranks a file
        of_rank = launching & (ranks == rank)
        first = starts[of_rank & used].min()
        counts.update(first_launches_without_work=int((starts[of_rank & ~used] < first).sum()))
    return dict(counts)


@dataclass(frozen=True)
class _DeviceRows:
    """Kernels or copies, to be linked to launches and operators.

    Parameters
    ----------
    stage : Stage
        Rows of the file.
    kind : str
        ``kernels`` or ``copies``.
    launches : Index
        Launches by correlation.
    op : array of int
        Row of each launch's operator, or -1.
    used : array of bool
        Whether each launch has device work; set in place.
    """

    stage: Stage
    kind: str
    launches: Index
    op: npt.NDArray[np.int32]
    used: Bools

    def link(self) -> Counter[str]:
        """Amend the columns of links; return the quality counts."""
        counts = self._check_external()
        checked, wrong = counts["external_id_checked"], counts["external_id_wrong"]
        trusted = checked and counts["orphan_op"] and wrong <= (1 - _TRUST) * checked
        external = Index(self.stage, "ops", "external_id") if trusted else None
        for rows in row_slices(self.stage.count(self.kind)):
            launch, op = self._links(rows)
            self.used[launch[launch >= 0]] = True
            if external is not None:
                unlinked = np.flatnonzero(op < 0)
                ranks, external_ids = self._column("rank", rows), self._column("external_id", rows)
                op[unlinked] = external.find(ranks[unlinked], external_ids[unlinked])
                used = int((op[unlinked] >= 0).sum())
                counts.update(linked_by_external_id=used, orphan_op=-used)
            cause = self.stage.take("launches", "start_ns", launch)
            counts["early_device"] += int(((launch >= 0) & (self._column("start_ns", rows) < cause)).sum())
            by_op = self.stage.take("ops", "start_ns", np.where(launch < 0, op, -1))
            self.stage.amend(self.kind, "launch_id", self.stage.take("launches", "id", launch))
            self.stage.amend(self.kind, "op_id", self.stage.take("ops", "id", op))
            self.stage.amend(self.kind, "cause_ns", np.where(launch < 0, by_op, cause))
        return counts

    def _column(self, name: str, rows: slice) -> Ints:
        return self.stage.part(self.kind, name, rows)

    def _links(self, rows: slice) -> tuple[Ints, Ints]:
        """Return the rows of the launch and the operator of kernels or copies, or -1."""
        launch = self.launches.find(self._column("rank", rows), self._column("correlation", rows))
        op = self.op[launch].astype(np.int64) if len(self.op) else np.full(len(launch), -1)
        op[launch < 0] = -1
        return launch, op

    def _check_external(self) -> Counter[str]:
        """Count rows without a launch or an operator, and rows whose External id names another operator."""
        counts: Counter[str] = Counter()
        for rows in row_slices(self.stage.count(self.kind)):
            launch, op = self._links(rows)
            external_id, op_external_id = self._column("external_id", rows), self.stage.take("ops", "external_id", op)
            both = (external_id != MISSING) & (op_external_id != MISSING)
            counts.update(
                orphan_device=int((launch < 0).sum()),
                orphan_op=int((op < 0).sum()),
                external_id_checked=int(both.sum()),
                external_id_wrong=int((external_id[both] != op_external_id[both]).sum()),
            )
        return counts


def innermost(outer: pa.Table, inner: pa.Table) -> Ints:
    """Return the id of the innermost row of `outer` around the start of each row of `inner`, on its thread.

    Parameters
    ----------
    outer : Table
        Operators or annotations; those of one thread nest, as calls do.
    inner : Table
        Launches.
    """
    stage = Stage(held=LINK_COLUMNS)
    for kind, table in (("ops", outer), ("launches", inner)):
        stage.write(kind, {name: table[name] for name in ("id", "rank", "process", "thread", "start_ns", "dur_ns")})
    return stage.take("ops", "id", _innermost(stage))


def _innermost(stage: Stage) -> npt.NDArray[np.int32]:
    """Return the row of the innermost operator around the start of each launch on its thread, or -1."""
    if not stage.count("ops"):
        return np.broadcast_to(np.int32(-1), stage.count("launches"))
    innermost_op = np.full(stage.count("launches"), -1, np.int32)
    starts, durations = stage.raw("ops", "start_ns"), stage.raw("ops", "dur_ns")
    launch_starts = stage.raw("launches", "start_ns")
    operators = _rows_by_lane(stage, "ops")
    for rows, launches in zip(operators, _rows_by_lane(stage, "launches"), strict=False):
        if not len(rows) or not len(launches):
            continue
        if not _nests(starts, durations, rows):
            rows = rows[np.lexsort((-durations[rows].astype(np.int64), starts[rows]))]
        order = sorting(launch_starts[launches])
        launches = launches if order is None else launches[order]
        _enclosing(starts, durations, rows, (launch_starts, launches, innermost_op), np.empty(len(rows), np.int32))
    return innermost_op


def _rows_by_lane(stage: Stage, kind: str) -> list[npt.NDArray[np.int32]]:
    slices = list(row_slices(stage.count(kind)))
    return by_lane(lambda: (stage.part(kind, LANE, rows) for rows in slices))


@compiled
def _nests(starts: Any, durations: Any, rows: Any) -> Any:
    """Return whether rows are in the order of their starts, and of rows that start together the longer first."""
    for i in range(1, len(rows)):
        before, after = rows[i - 1], rows[i]
        if starts[after] < starts[before] or (starts[after] == starts[before] and durations[after] > durations[before]):
            return False
    return True


@compiled
def _enclosing(starts: Any, durations: Any, rows: Any, launches: Any, stack: Any) -> None:
    """Write the row of the innermost interval around each launch into the last array of `launches`.

    One walk over the sorted, nested intervals and the sorted launches, with a stack of the open intervals. A missing
    duration counts as 0.
    """
    times, launch_rows, innermost_op = launches
    open_, following = 0, 0
    for launch in launch_rows:
        time = times[launch]
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
            innermost_op[launch] = stack[open_ - 1]


def _overlaps_of(stage: Stage) -> int:
    """Return the number of kernels that overlap the next kernel of their stream.

    Kernels of one stream overlap by microseconds on real devices, and the branches of a graph by any time.
    """
    overlaps = 0
    starts, durations = stage.raw("kernels", "start_ns"), stage.raw("kernels", "dur_ns")
    for lane in _rows_by_lane(stage, "kernels"):
        rows = lane if _settle(starts, lane) else lane[np.argsort(starts[lane], kind="stable")]
        overlaps += int(_overlaps(starts, durations, rows))
    return overlaps


@compiled
def _settle(starts: Any, rows: Any) -> Any:
    """Sort rows by their starts in place if few moves suffice, as after buffers written in turns; else return False."""
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
def _overlaps(starts: Any, durations: Any, rows: Any) -> Any:
    """Return the number of rows that overlap the next row."""
    overlaps = 0
    for i in range(len(rows) - 1):
        if starts[rows[i]] + max(durations[rows[i]], 0) > starts[rows[i + 1]]:
            overlaps += 1
    return overlaps
