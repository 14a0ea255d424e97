"""`Stage`: where the rows of one recording wait between the reader and the finished trace."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa

from profilers.arrays import Ints, ends, integers, put
from profilers.iterations import Extent
from profilers.schema import KINDS, OWN_RANK, SCHEMAS, make_table
from profilers.source import DEFAULT_LIMIT_BYTES

__all__ = ["Stage"]


class Stage:
    """Takes rows from a reader and gives them ids; keeps them in memory, or in a folder as Arrow IPC streams.

    Parameters
    ----------
    folder : Path, optional
        An empty folder; without it, rows stay in memory.
    limit_bytes : int
        What a reader may unpack.

    Examples
    --------
    >>> stage = Stage()
    >>> stage.write("counters", {"rank": [0], "name": ["Power"], "start_ns": [5], "value": [300.0]}).tolist()
    [0]
    >>> stage.table("counters")["value"].to_pylist()
    [300.0]
    """

    def __init__(self, folder: Path | None = None, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self._folder = folder
        self._held: dict[str, list[pa.Table]] = {}
        self._writers: dict[str, pa.ipc.RecordBatchStreamWriter] = {}
        self._files = ExitStack()
        self._amended: dict[tuple[str, str], Ints | None] = {}
        #: Rows taken so far, which is also the next id.
        self.rows = 0
        #: When each rank begins and ends.
        self.extents: dict[int, Extent] = {}

    @classmethod
    def stored(cls, folder: Path, rows: int) -> "Stage":
        """Return the stage that was closed with so many rows in `folder`, for reading."""
        stage = cls(folder)
        stage.rows = rows
        names = (file.name.split(".") for file in folder.glob("*.npy"))
        stage._amended = {(kind, column): None for kind, column, _ in names}
        return stage

    def write(self, kind: str, columns: Mapping[str, Any]) -> Ints:
        """Add rows of one kind and return their ids; see `profilers.reader.Sink`."""
        count = len(next(iter(columns.values()), ()))
        ids = np.arange(self.rows, self.rows + count)
        self.rows += count
        if count:
            table = make_table(kind, {"id": ids, "rank": np.full(count, OWN_RANK), **columns})
            self._extend(kind, table)
            self._keep(kind, table)
        return ids

    def _extend(self, kind: str, table: pa.Table) -> None:
        ranks, start, end = integers(table, "rank"), integers(table, "start_ns"), ends(table)
        host = kind in ("ops", "launches")
        for rank in np.unique(ranks).tolist():
            own = slice(None) if (ranks == rank).all() else ranks == rank
            last = int(end[own].max())
            found = Extent(int(start[own].min()), last, last if host else 0)
            self.extents[rank] = self.extents[rank] | found if rank in self.extents else found

    def _keep(self, kind: str, table: pa.Table) -> None:
        if self._folder is None:
            self._held.setdefault(kind, []).append(table)
            return
        if kind not in self._writers:
            stream = self._files.enter_context((self._folder / f"{kind}.arrows").open("wb"))
            self._writers[kind] = self._files.enter_context(pa.ipc.new_stream(stream, SCHEMAS[kind]))
        self._writers[kind].write_table(table)

    def amend(self, kind: str, column: str, values: Ints) -> None:
        """Set an integer column of all rows of a kind, in the order in which they came; null is `MISSING`.

        A column that the kind does not have is kept too, for `amended`.
        """
        if self._folder is None:
            self._amended[kind, column] = values
        else:
            np.save(self._folder / f"{kind}.{column}.npy", values, allow_pickle=False)
            self._amended[kind, column] = None

    def amended(self, kind: str, column: str) -> Ints:
        """Return what `amend` was given."""
        values = self._amended[kind, column]
        if values is None:
            values = np.load(cast(Path, self._folder) / f"{kind}.{column}.npy", allow_pickle=False)
        return values

    def close(self) -> None:
        """End the files, so that they can be read; only kinds that have no rows yet can be written after."""
        self._files.close()
        self._writers.clear()

    def batches(self, kind: str, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """Yield the rows of a kind in the order in which they came, in the batches in which they came."""
        amended = {
            column: self.amended(kind, column)
            for of, column in self._amended
            if of == kind and column in SCHEMAS[kind].names and (columns is None or column in columns)
        }
        row = 0
        for batch in self._written(kind, columns):
            table = batch
            for column, values in amended.items():
                table = put(table, column, values[row : row + table.num_rows])
            row += table.num_rows
            yield table

    def _written(self, kind: str, columns: Sequence[str] | None) -> Iterator[pa.Table]:
        if self._folder is None:
            for table in self._held.get(kind, []):
                yield table if columns is None else table.select(columns)
            return
        path = self._folder / f"{kind}.arrows"
        if not path.exists():
            return
        schema = SCHEMAS[kind]
        included = None if columns is None else [schema.get_field_index(name) for name in columns]
        options = pa.ipc.IpcReadOptions(included_fields=included) if included else None
        with pa.OSFile(str(path)) as file, pa.ipc.open_stream(file, options=options) as stream:
            for batch in stream:
                yield pa.Table.from_batches([batch])

    def table(self, kind: str, columns: Sequence[str] | None = None) -> pa.Table:
        """Return all rows of a kind as one table."""
        schema = SCHEMAS[kind] if columns is None else pa.schema([SCHEMAS[kind].field(name) for name in columns])
        found = list(self.batches(kind, columns))
        return pa.concat_tables(found).unify_dictionaries().combine_chunks() if found else schema.empty_table()

    def pick_named(self, kind: str, wanted: Callable[[str], bool]) -> pa.Table:
        """Return the rows whose name is wanted; each distinct name of a batch is asked once."""
        return self.pick_where(kind, "name", wanted)

    def pick_where(self, kind: str, column: str, wanted: Callable[[str], bool]) -> pa.Table:
        """Return the rows of whose text in `column` `wanted` is true."""
        return self._pick(kind, column, lambda values: _where(values, wanted))

    def pick_ids(self, kind: str, ids: Ints) -> pa.Table:
        """Return the rows with these ids, each once."""
        distinct = np.unique(ids)
        return self._pick(kind, "id", lambda values: np.isin(values.to_numpy(), distinct, assume_unique=True))

    def _pick(self, kind: str, column: str, mask: Callable[[pa.Array], Any]) -> pa.Table:
        found = [SCHEMAS[kind].empty_table()]
        for table in self.batches(kind):
            for batch in table.to_batches():
                chosen = mask(batch.column(column))
                if chosen.any():
                    found.append(pa.Table.from_batches([batch.filter(pa.array(chosen))]))
        return pa.concat_tables(found).unify_dictionaries().combine_chunks()

    def tables(self) -> dict[str, pa.Table]:
        """Return every kind of event as one table."""
        return {kind: self.table(kind) for kind in KINDS}


def _where(column: pa.DictionaryArray, wanted: Callable[[str], bool]) -> Any:
    flags = np.array([value is not None and wanted(value) for value in column.dictionary.to_pylist()] + [False])
    return flags[column.indices.fill_null(len(column.dictionary)).to_numpy(zero_copy_only=False)]
