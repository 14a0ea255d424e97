"""Tables of an Nsight Systems export, their strings, processes and devices.

The tables of an export, wherever they lie: in a SQLite file, or one a file in a folder.

`StringIds`: the texts of an export by their number.

The processes of an export: each one with work on a GPU is a rank.

What an export says of the machine, its clock and itself.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from profilers.errors import BrokenFileError, NotFoundError
from profilers.trace.arrays import MISSING, Ints
from profilers.trace.columns import combinations, encoded
from profilers.trace.schema import OWN_RANK
from profilers.trace.trace import DeviceProperties

#: What ``nsys export --type parquetdir`` and ``arrowdir`` write.
SUFFIXES = (".parquet", ".arrow", ".arrows")
_BATCH = 65536
_BUFFER_BYTES = 1 << 18
_FAILURES = (pa.ArrowException, OSError, ValueError)


class Tables(Protocol):
    """Tables by name, read column by column; `profilers.readers.common.database.Database` is one."""

    @property
    def path(self) -> Path:
        """What the user named, for messages."""
        ...

    @property
    def tables(self) -> Mapping[str, tuple[str, ...]]:
        """The names of the columns of each table."""
        ...

    def read(self, table: str, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Yield batches of columns, as `profilers.readers.common.database.Database.read`."""
        ...


class TableFolder:
    """A folder with one Parquet or Arrow file a table.

    Parameters
    ----------
    path : Path
    limit_bytes : int
        What the Parquet files may unpack to.

    Raises
    ------
    BrokenFileError
        The schema of a table cannot be read, or the tables unpack to more than the limit.
    """

    def __init__(self, path: Path, limit_bytes: int) -> None:
        self.path = path
        self._limit = limit_bytes
        self._files = {file.stem: file for file in _listed(path) if file.suffix in SUFFIXES}
        self.tables: Mapping[str, tuple[str, ...]] = MappingProxyType(
            {table: tuple(self._schema(file).names) for table, file in self._files.items()}
        )

    def _schema(self, file: Path) -> pa.Schema:
        try:
            if file.suffix != ".parquet":
                with pa.OSFile(str(file)) as raw:
                    return _open_arrow(raw).schema
            with pq.ParquetFile(file) as parquet:
                groups = range(parquet.num_row_groups)
                self._limit -= sum(parquet.metadata.row_group(group).total_byte_size for group in groups)
                if self._limit < 0:
                    raise BrokenFileError(f"{self.path}: unpacks to more than the limit; raise it if you trust it")
                return parquet.schema_arrow
        except _FAILURES as error:
            raise BrokenFileError(f"{file}: no readable table ({_line(error)}); export it again") from error

    def read(self, table: str, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Yield batches of columns, as `profilers.readers.common.database.Database.read`."""
        if table not in self.tables:
            raise BrokenFileError(f"{self.path}: has no table {table}")
        present = [name for name in columns if name in self.tables[table]]
        try:
            for batch in self._batches(self._files[table], present):
                found = {name: _values(batch.column(name)) for name in present}
                yield {name: found.get(name, np.full(batch.num_rows, MISSING)) for name in columns}
        except _FAILURES as error:
            raise BrokenFileError(f"{self._files[table]}: the table is damaged ({_line(error)})") from error

    def _batches(self, file: Path, columns: list[str]) -> Iterator[pa.RecordBatch]:
        if file.suffix == ".parquet":
            with pq.ParquetFile(file, buffer_size=_BUFFER_BYTES) as parquet:
                for group in range(parquet.num_row_groups):  # asked for all of them, Arrow holds on to what it read
                    yield from parquet.iter_batches(_BATCH, row_groups=[group], columns=columns, use_threads=False)
            return
        with pa.OSFile(str(file)) as raw:
            opened = _open_arrow(raw)
            stored = (
                opened
                if isinstance(opened, pa.RecordBatchStreamReader)
                else map(opened.get_batch, range(opened.num_record_batches))
            )
            for batch in stored:
                batch.validate(full=True)  # Arrow's own reader trusts the offsets in a file
                for first in range(0, batch.num_rows, _BATCH):
                    yield batch.slice(first, _BATCH)


def _listed(path: Path) -> list[Path]:
    try:
        return sorted(file for file in path.iterdir() if file.is_file())
    except OSError as error:
        raise NotFoundError(f"{path}: cannot be read ({error.strerror}); check its rights") from error


def _open_arrow(raw: Any) -> Any:
    """Open an Arrow file, which may be in the file format or in the stream format."""
    try:
        return pa.ipc.open_file(raw)
    except pa.ArrowInvalid:
        raw.seek(0)
        return pa.ipc.open_stream(raw)


def _line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _values(column: Any) -> Any:
    """Return a column as `profilers.readers.common.database.Database.read` gives it."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_integer(column.type) or pa.types.is_boolean(column.type) or pa.types.is_null(column.type):
        return pc.fill_null(column.cast(pa.int64(), safe=False), int(MISSING)).to_numpy(zero_copy_only=False)
    if pa.types.is_floating(column.type):
        return column.cast(pa.float64())
    if pa.types.is_timestamp(column.type) or pa.types.is_duration(column.type):
        return pc.fill_null(column.cast(pa.int64()), int(MISSING)).to_numpy(zero_copy_only=False)
    return column.cast(pa.string())


def until_damage(batches: Iterator[dict[str, Any]], counts: Counter[str] | None = None) -> Iterator[dict[str, Any]]:
    """Yield the batches of a table that come before its damage, which is counted as ``damaged_tables``."""
    try:
        yield from batches
    except BrokenFileError:
        if counts is not None:
            counts["damaged_tables"] += 1


def whole_numbers(values: Any) -> Ints:
    """Return a column as int64, `MISSING` where it holds no integer."""
    if isinstance(values, np.ndarray):
        return values
    if not pa.types.is_floating(values.type):
        return np.full(len(values), MISSING)
    reals = values.to_numpy(zero_copy_only=False)
    fits = (np.abs(reals) < 1 << 53) & (np.trunc(reals) == reals)  # what float64 counts exactly
    return np.where(fits, np.where(fits, reals, 0).astype(np.int64), MISSING)


_TABLE = "StringIds"
#: Stands where an export has no name for something.
_NO_NAME = "unknown"


class StringIds:
    """Texts by number.

    Parameters
    ----------
    ids : array of int64
    texts : Array of string
        Equally long.

    Examples
    --------
    >>> StringIds(np.array([7, 3]), pa.array(["seven", "three"])).encode(np.array([3, 9, 7])).to_pylist()
    ['three', None, 'seven']
    """

    def __init__(self, ids: Ints, texts: pa.Array) -> None:
        order = np.argsort(ids, kind="stable")
        self._ids = ids[order]
        self._texts = texts.take(pa.array(order))

    @classmethod
    def of(cls, tables: Tables, counts: Counter[str]) -> "StringIds":
        """Return the texts of an export as far as its table is whole, none where it has no such table."""
        ids, texts = [np.empty(0, dtype=np.int64)], [pa.array([], pa.string())]
        batches = tables.read(_TABLE, ["id", "value"]) if _TABLE in tables.tables else iter(())
        for batch in until_damage(batches, counts):
            if not isinstance(batch["value"], np.ndarray):  # else there are nulls only
                ids.append(whole_numbers(batch["id"]))
                texts.append(batch["value"].cast(pa.string()))
        return cls(np.concatenate(ids), pa.concat_arrays(texts))

    def encode(self, ids: Any, change: Callable[[str], str] | None = None) -> pa.DictionaryArray:
        """Return the texts that `ids` name, null where there is none.

        Parameters
        ----------
        ids : array of int64, or Array of string
            Some exports put the texts themselves where others put numbers.
        change : callable, optional
            Applied to each distinct text.
        """
        codes = (pa.array(ids) if isinstance(ids, np.ndarray) else ids.cast(pa.string())).dictionary_encode()
        texts = self._look_up(codes.dictionary) if isinstance(ids, np.ndarray) else codes.dictionary
        if change is not None:
            texts = pa.array([None if text is None else change(text) for text in texts.to_pylist()], pa.string())
        if isinstance(ids, np.ndarray):
            return encoded(codes.indices.to_numpy(), texts)
        return pa.DictionaryArray.from_arrays(codes.indices, texts)

    def _look_up(self, wanted: pa.Array) -> pa.Array:
        numbers = wanted.to_numpy()
        if not len(self._ids):
            return pa.nulls(len(numbers), pa.string())
        at = np.minimum(np.searchsorted(self._ids, numbers), len(self._ids) - 1)
        return self._texts.take(pa.array(at, mask=(self._ids[at] != numbers) | (numbers == MISSING)))


def named(*choices: pa.DictionaryArray) -> tuple[pa.DictionaryArray, int]:
    """Return for each row the first of its names, and of how many rows there was none."""
    names = choices[0]
    if not names.null_count:
        return names, 0
    plain = pc.coalesce(*(choice.cast(pa.string()) for choice in choices))
    return pc.fill_null(plain, _NO_NAME).dictionary_encode(), plain.null_count


_PID_BITS = 24


def process_of(identifiers: Ints) -> Ints:
    """Return the process in global process or thread identifiers: its number, and above it the host."""
    return np.where(identifiers == MISSING, MISSING, identifiers >> _PID_BITS)


class Processes:
    """Which process is which rank.

    Parameters
    ----------
    pairs : sequence of (process, device)
        Every pair between which there is work.
    """

    def __init__(self, pairs: Sequence[tuple[int, int]]) -> None:
        self._known = np.unique([process for process, _ in pairs]).astype(np.int64)
        #: Ranks and the devices that they use; one process alone is the rank that its file will be given.
        self.devices = sorted({(self._rank(process), device) for process, device in pairs})
        #: All of them, nothing for one process alone.
        self.ranks = tuple(range(len(self._known))) if len(self._known) > 1 else ()

    @classmethod
    def of(cls, tables: Tables, names: Sequence[str]) -> "Processes":
        """Return the processes that these tables of GPU work name.

        Correlation ids must be told apart by process before the first row is given on, so the tables are read
        twice, the first time for two columns.
        """
        pairs: set[tuple[int, int]] = set()
        for name in names:
            for batch in until_damage(tables.read(name, ["globalPid", "deviceId"])):
                process, device = process_of(whole_numbers(batch["globalPid"])), whole_numbers(batch["deviceId"])
                firsts = combinations(np.stack([process, device]))[1]
                pairs.update(zip(process[firsts].tolist(), device[firsts].tolist(), strict=True))
        return cls([pair for pair in pairs if pair[0] != MISSING])

    def _rank(self, process: int) -> int:
        return int(np.searchsorted(self._known, process)) if len(self._known) > 1 else OWN_RANK

    def rank(self, process: Ints) -> Ints:
        """Return the rank of each process; one without GPU work belongs to the first."""
        if len(self._known) < 2:
            return np.full(len(process), OWN_RANK)
        at = np.minimum(np.searchsorted(self._known, process), len(self._known) - 1)
        return np.where(self._known[at] == process, at, 0)

    def own(self, process: Ints) -> pa.Array:
        """Return whether what a process calls can have caused the work of its rank."""
        return np.isin(process, self._known) | (process == MISSING) | (len(self._known) == 0)


_EXPORT = ("META_DATA_EXPORT", "EXPORT_META_DATA")


def version(tables: Tables) -> str:
    """Return the version of the schema and of the product that wrote it, as far as the export says."""
    found: dict[str, Any] = {}
    for table in _EXPORT:
        for row in _rows(tables, table, ("name", "value")):
            found.setdefault(str(row["name"]), row["value"])
    parts = [("schema", found.get("EXPORT_SCHEMA_VERSION")), ("nsys", found.get("EXPORT_PRODUCT_VERSION"))]
    return ", ".join(f"{what} {value}" for what, value in parts if value) or "schema unknown"


def clock_base_ns(tables: Tables) -> int:
    """Return when the session started, ns since the epoch; 0 where the export does not say."""
    for row in _rows(tables, "TARGET_INFO_SESSION_START_TIME", ("utcEpochNs",)):
        if isinstance(row["utcEpochNs"], int) and row["utcEpochNs"] > 0:
            return row["utcEpochNs"]
    return 0


def devices(tables: Tables, processes: Processes) -> tuple[DeviceProperties, ...]:
    """Return the devices: with several ranks those that each used, else all of them."""
    known = {
        row["id"]: row
        for row in _rows(tables, "TARGET_INFO_GPU", ("id", "name", "smCount", "totalMemory"))
        if isinstance(row["id"], int)
    }
    used = processes.devices if processes.ranks else [(OWN_RANK, device) for device in sorted(known)]
    return tuple(
        DeviceProperties(
            rank=rank,
            device=device,
            name=str(known[device]["name"] or ""),
            compute_units=_positive(known[device]["smCount"]),
            memory_bytes=_positive(known[device]["totalMemory"]),
        )
        for rank, device in used
        if device in known
    )


def _positive(value: Any) -> int | None:
    return value if isinstance(value, int) and value > 0 else None


def _rows(tables: Tables, table: str, columns: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """Yield the rows of a small table, nothing where there is none."""
    if table not in tables.tables:
        return
    for batch in until_damage(tables.read(table, columns)):
        lists = [_list(batch[name]) for name in columns]
        for values in zip(*lists, strict=True):
            yield dict(zip(columns, values, strict=True))


def _list(values: Any) -> list[Any]:
    if isinstance(values, np.ndarray):
        return [None if value == MISSING else value for value in values.tolist()]
    return list(values.to_pylist())
