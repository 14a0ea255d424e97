"""`Stage`: where the rows of one recording wait between the reader and the finished trace."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from profilers.trace.arrays import MISSING, Growing, Ints, Narrowed, Runs, arrow_array, integers, numbers, put
from profilers.trace.columns import LANE, Lanes
from profilers.trace.schema import KINDS, OWN_RANK, SCHEMAS, empty_table, fill_table, narrow_table

Held = Mapping[str, Sequence[str]]
#: How a file of amended values is named after its kind and column.
_AMENDED = "amended"
NOTHING: Mapping[str, Any] = MappingProxyType({})
#: How a column is held; all others are `Narrowed`.
_HOLDERS: Mapping[str, Callable[[], Narrowed | Runs]] = {
    "id": Runs,
    "start_ns": lambda: Narrowed(np.int64),
    "dur_ns": lambda: Narrowed(np.int32),
}
#: What a lane is of: a thread, or a stream.
_THREAD, _STREAM = ("rank", "process", "thread"), ("rank", "device", "stream")
_LANES = {"ops": _THREAD, "launches": _THREAD, "kernels": _STREAM}


@dataclass(frozen=True)
class Watch:
    """Rows of one kind whose text in one column is wanted.

    Parameters
    ----------
    kind, column : str
    wanted : callable
        Asked once for each distinct text of a batch.
    """

    kind: str
    column: str
    wanted: Callable[[str], bool]


Watches = Mapping[str, Watch]


class Stage:
    """Takes rows from a reader and gives them ids; keeps them in memory, or in a folder as Arrow IPC streams.

    Parameters
    ----------
    folder : Path, optional
        An empty folder; without it, rows stay in memory.
    limit_bytes : int
        What a reader may unpack.
    held : mapping of str to sequence of str, optional
        Integer columns by kind that stay in memory for `column`, whose rows are in the folder.
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
        held: Held = NOTHING,
        watches: Watches = NOTHING,
    ) -> None:
        self.limit_bytes = limit_bytes
        #: What a reader tells how far it is; replaced by who wants to know.
        self.advance: Callable[[int], None] = lambda _position: None
        self._folder = folder
        self._tables: dict[str, list[pa.Table]] = {}
        self._wanted = held
        self._watches = watches
        self._watched: dict[str, list[pa.Table]] = {}
        self._columns: dict[tuple[str, str], Narrowed | Runs] = {}
        threads, streams = Lanes(), Lanes()
        self._lanes = {"ops": threads, "launches": threads, "kernels": streams}
        self._writers: dict[str, tuple[pa.Schema, pa.ipc.RecordBatchStreamWriter]] = {}
        self._parts: dict[str, int] = {}
        self._files = ExitStack()
        self._amended: dict[tuple[str, str], Growing | Path] = {}
        self._counts: Counter[str] = Counter()
        #: Rows taken so far, which is also the next id.
        self.rows = 0
        #: When each rank begins and ends.
        self.extents: dict[int, Extent] = {}

    @classmethod
    def stored(cls, folder: Path, rows: int) -> "Stage":
        """Return the stage that was closed with so many rows in `folder`, for reading."""
        stage = cls(folder)
        stage.rows = rows
        for file in folder.glob(f"*.{_AMENDED}"):
            kind, column, _ = file.name.split(".")
            stage._amended[kind, column] = file
        return stage

    def write(self, kind: str, columns: Mapping[str, Any]) -> Ints:
        """Add rows of one kind and return their ids; see `profilers.readers.common.reader.Sink`."""
        count = len(next(iter(columns.values()), ()))
        ids = np.arange(self.rows, self.rows + count)
        self.rows += count
        if count:
            table = narrow_table(kind, {"id": ids, "rank": np.full(count, OWN_RANK), **columns})
            self._extend(kind, table)
            self._hold(kind, table)
            self._watch(kind, table)
            self._keep(kind, table)
            self._counts[kind] += count
        return ids

    def _extend(self, kind: str, table: pa.Table) -> None:
        ranks, start, duration = (_values(table, name) for name in ("rank", "start_ns", "dur_ns"))
        end = start + np.where(duration == MISSING, 0, duration)
        host = kind in ("ops", "launches")
        for rank in np.unique(ranks).tolist():
            own = slice(None) if (ranks == rank).all() else ranks == rank
            last = int(end[own].max())
            found = Extent(int(start[own].min()), last, last if host else 0)
            self.extents[rank] = self.extents[rank] | found if rank in self.extents else found

    def _keep(self, kind: str, table: pa.Table) -> None:
        if self._folder is None:
            self._tables.setdefault(kind, []).append(table)
            return
        if kind not in self._writers or self._writers[kind][0] != table.schema:
            # One file holds batches of the same columns; what a reader does not give takes no space.
            number = self._parts.get(kind, 0)
            self._parts[kind] = number + 1
            stream = self._files.enter_context((self._folder / f"{kind}.{number:06}.arrows").open("wb"))
            options = pa.ipc.IpcWriteOptions(compression="lz4")
            writer = self._files.enter_context(pa.ipc.new_stream(stream, table.schema, options=options))
            self._writers[kind] = table.schema, writer
        self._writers[kind][1].write_table(table)

    def _hold(self, kind: str, table: pa.Table) -> None:
        for name in self._wanted.get(kind, ()):
            if (kind, name) not in self._columns:
                self._columns[kind, name] = _HOLDERS.get(name, Narrowed)()
            places = [_values(table, of) for of in _LANES[kind]] if name == LANE else []
            self._columns[kind, name].append(self._lanes[kind].of(places) if places else _values(table, name))

    def count(self, kind: str) -> int:
        """Return how many rows of a kind there are; see `profilers.trace.columns.Columns`."""
        return self._counts[kind]

    def part(self, kind: str, name: str, rows: slice) -> Ints:
        """Return some rows of a column that was held."""
        return self._columns[kind, name].part(rows)

    def take(self, kind: str, name: str, rows: npt.NDArray[Any]) -> Ints:
        """Return the rows of a column that was held."""
        return self._columns[kind, name].take(rows)

    def raw(self, kind: str, name: str) -> npt.NDArray[Any]:
        """Return a column that was held, in its width; for as long as nothing is written."""
        held = self._columns.get((kind, name))
        return np.empty(0, np.int64) if held is None else held.raw()

    def forget(self, kind: str, name: str) -> None:
        """Forget a column that was held."""
        self._columns.pop((kind, name), None)

    def let_go(self) -> None:
        """Forget the columns that were held."""
        self._columns.clear()

    def amend(self, kind: str, column: str, values: Ints) -> None:
        """Set an integer column of all rows of a kind, in the order in which they came; null is `MISSING`.

        Called again, it goes on where it ended. A column that the kind does not have is kept too, for `amended`.
        """
        if self._folder is None:
            held = self._amended.setdefault((kind, column), Growing(np.int64))
            cast(Growing, held).append(values)
            return
        path = self._folder / f"{kind}.{column}.{_AMENDED}"
        with path.open("ab") as file:
            file.write(np.ascontiguousarray(values, "<i8").data)
        self._amended[kind, column] = path

    def amended(self, kind: str, column: str, rows: slice) -> Ints | None:
        """Return some rows of what `amend` was given; None where it was not."""
        values = self._amended.get((kind, column))
        if isinstance(values, Path):
            return np.fromfile(values, "<i8", rows.stop - rows.start, offset=8 * rows.start)
        return None if values is None else values.values()[rows]

    def close(self) -> None:
        """End the files, so that they can be read; only kinds that have no rows yet can be written after."""
        self._files.close()
        self._writers.clear()

    def batches(self, kind: str, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """Yield the rows of a kind in the order in which they came, in the batches in which they came."""
        wanted = SCHEMAS[kind].names if columns is None else columns
        amended = [column for of, column in self._amended if of == kind and column in wanted]
        row = 0
        for batch in self._written(kind, columns):
            table, rows = batch, slice(row, row + batch.num_rows)
            row = rows.stop
            for column in amended:
                if column in SCHEMAS[kind].names:
                    table = put(table, column, cast(Ints, self.amended(kind, column, rows)))
            yield table

    def _written(self, kind: str, columns: Sequence[str] | None) -> Iterator[pa.Table]:
        names = SCHEMAS[kind].names if columns is None else columns
        if self._folder is None:
            for table in self._tables.get(kind, []):
                yield fill_table(kind, table.select([n for n in table.schema.names if n in names])).select(names)
            return
        for path in sorted(self._folder.glob(f"{kind}.*.arrows")):
            for table in _stored(path, names):
                yield fill_table(kind, table).select(names)

    def columns(self, kind: str, names: Sequence[str]) -> list[Ints]:
        """Return integer columns of all rows of a kind, null as `MISSING`."""
        found = [Growing(np.int64) for _ in names]
        for batch in self.batches(kind, names):
            for column, name in zip(found, names, strict=True):
                column.append(integers(batch, name))
        return [column.values() for column in found]

    def table(self, kind: str, columns: Sequence[str] | None = None) -> pa.Table:
        """Return all rows of a kind as one table."""
        none = empty_table(kind) if columns is None else empty_table(kind).select(columns)
        return pa.concat_tables([none, *self.batches(kind, columns)]).unify_dictionaries().combine_chunks()

    def pick_ids(self, kind: str, ids: Ints) -> pa.Table:
        """Return the rows with these ids, each once."""
        distinct = np.unique(ids)
        found = [empty_table(kind)]
        for table in self.batches(kind):
            chosen = np.isin(integers(table, "id"), distinct, assume_unique=True)
            if chosen.any():
                found.append(table.filter(arrow_array(chosen)))
        return pa.concat_tables(found).unify_dictionaries().combine_chunks()

    def watched(self, name: str) -> pa.Table:
        """Return the rows that a watch found, as they were written."""
        kind = self._watches[name].kind
        found = self._watched.get(name, [])
        return pa.concat_tables([empty_table(kind), *found]).unify_dictionaries().combine_chunks()

    def _watch(self, kind: str, table: pa.Table) -> None:
        for name, watch in self._watches.items():
            if watch.kind != kind or watch.column not in table.schema.names:
                continue
            for batch in table.to_batches():
                chosen = _where(batch.column(watch.column), watch.wanted)
                if chosen.any():
                    own = pa.Table.from_batches([batch.filter(arrow_array(chosen))])
                    self._watched.setdefault(name, []).append(fill_table(kind, own))

    def tables(self) -> dict[str, pa.Table]:
        """Return every kind of event as one table."""
        return {kind: self.table(kind) for kind in KINDS}


def _stored(path: Path, names: Sequence[str]) -> Iterator[pa.Table]:
    with pa.OSFile(str(path)) as file, pa.ipc.open_stream(file) as stream:
        own = stream.schema.names
    included = [own.index(name) for name in own if name in names]
    options = pa.ipc.IpcReadOptions(included_fields=included)
    with pa.OSFile(str(path)) as file, pa.ipc.open_stream(file, options=options) as stream:
        for batch in stream:
            yield pa.Table.from_batches([batch])


def _values(table: pa.Table, name: str) -> Ints:
    """Return an integer column, all missing where the table lacks it."""
    return integers(table, name) if name in table.schema.names else np.full(table.num_rows, MISSING)


def _where(column: pa.DictionaryArray, wanted: Callable[[str], bool]) -> Any:
    flags = np.array([value is not None and wanted(value) for value in column.dictionary.to_pylist()] + [False])
    return flags[numbers(column.indices, len(column.dictionary))]
