"""`Stage`: the rows of one recording, between the reader and the finished trace.

A reader writes rows into it. Linking reads the integer columns that stay in memory (`Stage.part`, `Stage.take`) and
amends columns (`Stage.amend`). Finishing the trace reads all rows, a batch at a time (`Stage.batches`).
"""

import itertools
import re
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from profilers.ingest.iterations import Extent
from profilers.readers.common.source import DEFAULT_LIMIT_BYTES
from profilers.trace.arrays import (
    MISSING,
    Growing,
    Ints,
    Narrowed,
    Runs,
    arrow_array,
    integers_or_missing,
    numbers,
    put,
)
from profilers.trace.columns import LANE, LaneNumbers, row_slices
from profilers.trace.schema import KINDS, OWN_RANK, SCHEMAS, concatenate, fill_table, narrow_table

#: Suffix of the file of an amended column: KIND.COLUMN.amended.
_AMENDED = "amended"
_NOTHING: Mapping[str, Any] = MappingProxyType({})
#: The form in which a column stays in memory; others are `Narrowed`.
_HOLDERS: Mapping[str, Callable[[], Narrowed | Runs]] = {
    "id": Runs,
    "start_ns": lambda: Narrowed(np.int64),
    "dur_ns": lambda: Narrowed(np.int32),
}
#: Columns that identify a thread, and a stream: the lanes of events.
_THREAD, _STREAM = ("rank", "process", "thread"), ("rank", "device", "stream")
_LANES = {"ops": _THREAD, "launches": _THREAD, "kernels": _STREAM, "copies": _STREAM}
#: Column of launches, in memory alone: 1 for a call that launches kernels. The names of such calls are those of CUDA,
#: HIP, SYCL, MTIA and Ascend.
LAUNCHING = "launching"
_LAUNCHING = re.compile(
    "Launch(?:Cooperative|Ext)?Kernel|LaunchCooperative|GraphLaunch|KernelLaunch|runFunction|^(?:Node@)?launch$"
)


@dataclass(frozen=True)
class Watch:
    """A rule for rows of one kind that stay in memory, by their text in one column.

    Parameters
    ----------
    kind, column : str
        Kind of event, and its text column.
    accepts : callable
        Returns whether rows with a text stay; called once for each distinct text of a batch.
    most : int, optional
        Rows after which the rule is done.
    """

    kind: str
    column: str
    accepts: Callable[[str], bool]
    most: int = sys.maxsize


class Stage:
    """Takes rows from a reader and gives them ids; keeps them in memory, or in a folder as Arrow IPC streams.

    Parameters
    ----------
    folder : Path, optional
        An empty folder for the rows; without it they stay in memory.
    limit_bytes : int
        Size that a reader may unpack a file to.
    held : mapping of str to sequence of str, optional
        Integer columns by kind that stay in memory for `part`, `take` and `raw`.
    watches : mapping of str to Watch, optional
        Rows that stay in memory for `watched`, by any name.

    Examples
    --------
    >>> stage = Stage()
    >>> stage.write("counters", {"rank": [0], "name": ["Power"], "start_ns": [5], "value": [300.0]}).tolist()
    [0]
    >>> stage.table("counters")["value"].to_pylist()
    [300.0]
    """

    def __init__(
        self,
        folder: Path | None = None,
        limit_bytes: int = DEFAULT_LIMIT_BYTES,
        held: Mapping[str, Sequence[str]] = _NOTHING,
        watches: Mapping[str, Watch] = _NOTHING,
    ) -> None:
        self.limit_bytes = limit_bytes
        #: Called by a reader with the bytes that it has read; replaced to show progress.
        self.advance: Callable[[int], None] = lambda _position: None
        self._folder = folder
        self._tables: dict[str, list[pa.Table]] = {}
        self._held = held
        self._watches = watches
        self._watched: dict[str, list[tuple[Ints, pa.Table]]] = {}
        self._columns: dict[tuple[str, str], Narrowed | Runs] = {}
        threads, streams = LaneNumbers(), LaneNumbers()
        self._lanes = {"ops": threads, "launches": threads, "kernels": streams, "copies": streams}
        self._writers: dict[str, tuple[pa.Schema, pa.ipc.RecordBatchStreamWriter]] = {}
        self._numbers = itertools.count()
        self._files = ExitStack()
        self._amended: dict[tuple[str, str], Growing | Path] = {}
        self._counts: Counter[str] = Counter()
        #: Rows taken so far, which is also the next id.
        self.rows = 0
        self._extents: dict[str, dict[int, Extent]] = {}

    @classmethod
    def stored(cls, folder: Path, rows: int, extents: dict[int, Extent]) -> "Stage":
        """Return the stage that was closed in `folder`, to read its rows; the caller kept their number and extents."""
        stage = cls(folder)
        stage.rows, stage._extents = rows, {"": extents}
        for file in folder.glob(f"*.{_AMENDED}"):
            kind, column, _ = file.name.split(".")
            stage._amended[kind, column] = file
        return stage

    def write(self, kind: str, columns: Mapping[str, Any]) -> Ints:
        """Add rows of one kind, as columns by name, and return their ids."""
        count = len(next(iter(columns.values()), ()))
        ids = np.arange(self.rows, self.rows + count)
        self.rows += count
        if count:
            table = narrow_table(kind, {"id": ids, "rank": np.full(count, OWN_RANK), **columns})
            self._extend(kind, *(integers_or_missing(table, name) for name in ("rank", "start_ns", "dur_ns")))
            self._hold(kind, table)
            self._watch(kind, table)
            self._keep(kind, table)
            self._counts[kind] += count
        return ids

    @property
    def extents(self) -> dict[int, Extent]:
        """Start and end of the events of each rank."""
        extents: dict[int, Extent] = {}
        for of_kind in self._extents.values():
            for rank, extent in of_kind.items():
                extents[rank] = extents.get(rank, extent) | extent
        return extents

    def end_of(self, kinds: Collection[str]) -> int:
        """Return the end of the last event of some kinds; 0 if there is none."""
        extents = [self._extents.get(kind, {}).values() for kind in kinds]
        return max((extent.end for of_kind in extents for extent in of_kind), default=0)

    def shorten(self, kind: str, rows: Ints, durations: Ints) -> None:
        """Set the durations of ascending rows of a kind, which holds ``rank``, ``start_ns`` and ``dur_ns``."""
        self.amend_rows(kind, "dur_ns", rows, durations)
        self._extents[kind] = {}
        for block in row_slices(self.count(kind)):
            ranks, start = (self.part(kind, name, block) for name in ("rank", "start_ns"))
            self._extend(kind, ranks, start, cast(Ints, self.amended(kind, "dur_ns", block)))

    def _extend(self, kind: str, ranks: Ints, start: Ints, duration: Ints) -> None:
        end = start + np.where(duration == MISSING, 0, duration)
        host = kind in ("ops", "launches")
        extents = self._extents.setdefault(kind, {})
        for rank in np.unique(ranks).tolist():
            of_rank = slice(None) if (ranks == rank).all() else ranks == rank
            last = int(end[of_rank].max())
            extent = Extent(int(start[of_rank].min()), last, last if host else 0)
            extents[rank] = extents.get(rank, extent) | extent

    def _keep(self, kind: str, table: pa.Table) -> None:
        if self._folder is None:
            self._tables.setdefault(kind, []).append(table)
            return
        if kind not in self._writers or self._writers[kind][0] != table.schema:
            # One file holds batches of the same columns; what a reader does not give takes no space.
            path = self._folder / f"{kind}.{next(self._numbers):06}.arrows"
            stream = self._files.enter_context(path.open("wb"))
            options = pa.ipc.IpcWriteOptions(compression="lz4")
            writer = self._files.enter_context(pa.ipc.new_stream(stream, table.schema, options=options))
            self._writers[kind] = table.schema, writer
        self._writers[kind][1].write_table(table)

    def _hold(self, kind: str, table: pa.Table) -> None:
        for name in self._held.get(kind, ()):
            if (kind, name) not in self._columns:
                self._columns[kind, name] = _HOLDERS.get(name, Narrowed)()
            self._columns[kind, name].append(self._held_values(kind, table, name))

    def _held_values(self, kind: str, table: pa.Table, name: str) -> Ints:
        if name == LANE:
            return self._lanes[kind].of([integers_or_missing(table, column) for column in _LANES[kind]])
        if name == LAUNCHING and "name" not in table.schema.names:
            return np.zeros(table.num_rows, np.int64)
        if name == LAUNCHING:
            names = [batch.column("name") for batch in table.to_batches()]
            return np.concatenate([_where(column, _launches_kernels) for column in names]).astype(np.int64)
        return integers_or_missing(table, name)

    def launching_threads(self) -> list[tuple[int, ...]]:
        """Return rank, process and thread of each thread that launches kernels, if lanes of launches are held."""
        lanes, held = self._lanes["launches"].distinct(), self._columns.get(("launches", LANE))
        works = self.raw("launches", LAUNCHING) == 1
        return [] if held is None else [lanes[number] for number in np.unique(held.raw()[works]).tolist()]

    def rewritten(self, write: Callable[["Stage"], None]) -> "Stage":
        """Return a stage with other rows in place of this closed one, whose files go.

        Parameters
        ----------
        write : callable
            Writes the rows of this stage, changed, to the stage that it is given.
        """
        folder = None if self._folder is None else self._folder / "rewritten"
        if folder is not None:
            folder.mkdir()
        stage = Stage(folder, self.limit_bytes, self._held, self._watches)
        write(stage)
        stage.close()
        if self._folder is not None and folder is not None:
            for old in (*self._folder.glob("*.arrows"), *self._folder.glob(f"*.{_AMENDED}")):
                old.unlink()
            for file in folder.iterdir():
                file.rename(self._folder / file.name)
            folder.rmdir()
            stage._folder = self._folder
            stage._amended = {
                key: self._folder / held.name if isinstance(held, Path) else held
                for key, held in stage._amended.items()
            }
        return stage

    def count(self, kind: str) -> int:
        """Return the number of rows of a kind."""
        return self._counts[kind]

    def part(self, kind: str, name: str, rows: slice) -> Ints:
        """Return consecutive rows of a column in memory."""
        return self._columns[kind, name].take(rows)

    def take(self, kind: str, name: str, rows: npt.NDArray[Any]) -> Ints:
        """Return the rows of a column in memory, in the order of `rows`, with `MISSING` for the row -1."""
        hit = rows >= 0
        if len(rows) and hit.all():
            return self._columns[kind, name].take(rows)
        result = np.full(len(rows), MISSING)
        if hit.any():
            result[hit] = self._columns[kind, name].take(rows[hit])
        return result

    def raw(self, kind: str, name: str) -> npt.NDArray[Any]:
        """Return a column in memory in its own width; a view that holds until rows are written."""
        held = self._columns.get((kind, name))
        return np.empty(0, np.int64) if held is None else held.raw()

    def forget(self, kind: str, *names: str) -> None:
        """Drop columns from memory."""
        for name in names:
            self._columns.pop((kind, name), None)

    def let_go(self) -> None:
        """Drop all columns from memory."""
        self._columns.clear()

    def amend(self, kind: str, column: str, values: Ints) -> None:
        """Set the next rows of an integer column; null is `MISSING`.

        The first call sets the first rows of the kind, and each call goes on where the last one ended. A column that
        the kind does not have is kept too, for `amended`.
        """
        if self._folder is None:
            held = self._amended.setdefault((kind, column), Growing(np.int64))
            cast(Growing, held).append(values)
            return
        path = self._folder / f"{kind}.{column}.{_AMENDED}"
        with path.open("ab") as file:
            file.write(np.ascontiguousarray(values, "<i8").data)
        self._amended[kind, column] = path

    def amend_rows(self, kind: str, column: str, rows: Ints, values: Ints) -> None:
        """Set `values` in ascending `rows` of a column; other rows keep their value in memory, or become null."""
        for block in row_slices(self.count(kind)):
            chosen = slice(*np.searchsorted(rows, (block.start, block.stop)).tolist())
            in_memory = (kind, column) in self._columns
            amended = self.part(kind, column, block).copy() if in_memory else np.full(block.stop - block.start, MISSING)
            amended[rows[chosen] - block.start] = values[chosen]
            self.amend(kind, column, amended)

    def amended(self, kind: str, column: str, rows: slice | Ints) -> Ints | None:
        """Return some rows of an amended column; None if it was not amended."""
        values = self._amended.get((kind, column))
        if values is None:
            return None
        whole = np.memmap(values, "<i8", "r") if isinstance(values, Path) else values.values()
        return np.array(whole[rows])

    def close(self) -> None:
        """Close the files, so that they can be read; afterwards only kinds without rows can be written."""
        self._files.close()
        self._writers.clear()

    def batches(self, kind: str, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """Yield the rows of a kind, with amended columns, in the batches in which they were written."""
        names = SCHEMAS[kind].names if columns is None else columns
        amended = [column for of, column in self._amended if of == kind and column in names]
        row = 0
        for batch in self._written(kind, names):
            table, rows = fill_table(kind, batch, names), slice(row, row + batch.num_rows)
            row = rows.stop
            for column in amended:
                table = put(table, column, cast(Ints, self.amended(kind, column, rows)))
            yield table

    def _written(self, kind: str, names: Sequence[str]) -> Iterator[pa.Table]:
        if self._folder is None:
            for table in self._tables.get(kind, []):
                yield table.select([name for name in table.schema.names if name in names])
            return
        for path in sorted(self._folder.glob(f"{kind}.*.arrows")):
            yield from _stored(path, names)

    def table(self, kind: str) -> pa.Table:
        """Return all rows of a kind as one table."""
        return concatenate(kind, self.batches(kind))

    def watched(self, name: str) -> pa.Table:
        """Return the rows that a watch kept, as they were written."""
        return concatenate(self._watches[name].kind, [table for _, table in self._watched.get(name, [])])

    def watched_rows(self, name: str) -> Ints:
        """Return the positions, among the rows of their kind, of the rows that a watch kept."""
        return np.concatenate([np.empty(0, np.int64), *(rows for rows, _ in self._watched.get(name, []))])

    def _watch(self, kind: str, table: pa.Table) -> None:
        for name, watch in self._watches.items():
            kept_rows = sum(len(rows) for rows, _ in self._watched.get(name, ())) if watch.most < sys.maxsize else 0
            if watch.kind != kind or watch.column not in table.schema.names or kept_rows >= watch.most:
                continue
            first = self._counts[kind]
            for batch in table.to_batches():
                chosen = _where(batch.column(watch.column), watch.accepts)
                if chosen.any():
                    kept = fill_table(kind, pa.Table.from_batches([batch.filter(arrow_array(chosen))]))
                    self._watched.setdefault(name, []).append((first + np.flatnonzero(chosen), kept))
                first += batch.num_rows

    def tables(self) -> dict[str, pa.Table]:
        """Return every kind of event as one table."""
        return {kind: self.table(kind) for kind in KINDS}


def _stored(path: Path, names: Sequence[str]) -> Iterator[pa.Table]:
    with pa.OSFile(str(path)) as file, pa.ipc.open_stream(file) as stream:
        stored = stream.schema.names
    included = [stored.index(name) for name in stored if name in names]
    options = pa.ipc.IpcReadOptions(included_fields=included)
    with pa.OSFile(str(path)) as file, pa.ipc.open_stream(file, options=options) as stream:
        for batch in stream:
            yield pa.Table.from_batches([batch])


def _launches_kernels(name: str) -> bool:
    return _LAUNCHING.search(name) is not None


def _where(column: pa.DictionaryArray, accepts: Callable[[str], bool]) -> Any:
    """Return a flag for each row: whether its text is accepted."""
    flags = np.array([value is not None and accepts(value) for value in column.dictionary.to_pylist()] + [False])
    return flags[numbers(column.indices, len(column.dictionary))]
