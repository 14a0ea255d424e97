"""Tables of an Nsight Systems export, with the texts, processes and devices that their rows refer to.

The tables are in a SQLite file (`profilers.readers.common.database.Database`) or in a folder with a file for each
(`TableFolder`). `read_ranks` gives each process with device work a rank. `version`, `clock_base_ns` and
`devices_of` read the tables that describe the export itself.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from profilers.errors import BrokenFileError, NotFoundError
from profilers.readers.common.numbers import positive
from profilers.readers.common.recording import Ranks, RecordedTables
from profilers.trace.arrays import MISSING, Ints, arrow_array
from profilers.trace.columns import combinations
from profilers.trace.schema import OWN_RANK
from profilers.trace.store import first_line
from profilers.trace.trace import DeviceProperties

#: Suffixes of the files that ``nsys export --type parquetdir`` and ``arrowdir`` write.
SUFFIXES = (".parquet", ".arrow", ".arrows")
_BATCH = 65536
_BUFFER_BYTES = 1 << 18
_WHOLE = (pa.types.is_integer, pa.types.is_boolean, pa.types.is_null, pa.types.is_timestamp, pa.types.is_duration)
_FAILURES = (pa.ArrowException, OSError, ValueError)


class TableFolder:
    """A folder with a Parquet or Arrow file for each table.

    Parameters
    ----------
    path : Path
        The folder.
    limit_bytes : int
        Most bytes that the Parquet files may unpack to.

    Raises
    ------
    BrokenFileError
        The schema of a table cannot be read, or the tables unpack to more than the limit.
    """

    def __init__(self, path: Path, limit_bytes: int) -> None:
        self.path = path
        self._limit = limit_bytes
        self._files = {file.stem: file for file in _files(path) if file.suffix in SUFFIXES}
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
            raise BrokenFileError(f"{file}: no readable table ({first_line(error)}); export it again") from error

    def read(self, table: str, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Yield batches of the named columns, as `profilers.readers.common.database.Database.read`."""
        if table not in self.tables:
            raise BrokenFileError(f"{self.path}: has no table {table}")
        present = [name for name in columns if name in self.tables[table]]
        try:
            for batch in self._batches(self._files[table], present):
                values = {name: _values(batch.column(name)) for name in present}
                yield {name: values.get(name, np.full(batch.num_rows, MISSING)) for name in columns}
        except _FAILURES as error:
            raise BrokenFileError(f"{self._files[table]}: the table is damaged ({first_line(error)})") from error

    def _batches(self, file: Path, columns: list[str]) -> Iterator[pa.RecordBatch]:
        if file.suffix == ".parquet":
            with pq.ParquetFile(file, buffer_size=_BUFFER_BYTES) as parquet:
                for group in range(parquet.num_row_groups):  # asked for all groups at once, Arrow keeps them in memory
                    yield from parquet.iter_batches(_BATCH, row_groups=[group], columns=columns, use_threads=False)
            return
        with pa.OSFile(str(file)) as raw:
            arrow = _open_arrow(raw)
            is_stream = isinstance(arrow, pa.RecordBatchStreamReader)
            for batch in arrow if is_stream else map(arrow.get_batch, range(arrow.num_record_batches)):
                batch.validate(full=True)  # Arrow's reader trusts the offsets in a file
                for first in range(0, batch.num_rows, _BATCH):
                    yield batch.slice(first, _BATCH)


def _files(path: Path) -> list[Path]:
    try:
        return sorted(file for file in path.iterdir() if file.is_file())
    except OSError as error:
        raise NotFoundError(f"{path}: cannot be read ({error.strerror}); check its permissions") from error


def _open_arrow(raw: Any) -> Any:
    """Open an Arrow file of the file format or of the stream format."""
    try:
        return pa.ipc.open_file(raw)
    except pa.ArrowInvalid:
        raw.seek(0)
        return pa.ipc.open_stream(raw)


def _values(column: Any) -> Any:
    """Return a column as `profilers.readers.common.database.Database.read` gives it."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_floating(column.type):
        return column.cast(pa.float64())
    if any(is_kind(column.type) for is_kind in _WHOLE):
        return pc.fill_null(column.cast(pa.int64(), safe=False), int(MISSING)).to_numpy(zero_copy_only=False)
    return column.cast(pa.string())


_PID_BITS = 24
#: Mask of the process in the number that `process_of` returns, and of the thread in a global thread identifier.
PID = (1 << _PID_BITS) - 1


def process_of(identifiers: Ints) -> Ints:
    """Return the process of global process or thread identifiers: its number, and the host in the bits above."""
    return np.where(identifiers == MISSING, MISSING, identifiers >> _PID_BITS)


def read_ranks(tables: RecordedTables, names: Sequence[str]) -> tuple[Ranks, list[tuple[int, int]]]:
    """Return the ranks of the processes that did device work, and each rank with each device that it used.

    Ranks must be known before the first row is given to a sink, so the tables are read twice, first for two columns.

    Parameters
    ----------
    tables : Tables
        Tables of the export.
    names : sequence of str
        Names of the tables of device work.
    """
    pairs: set[tuple[int, int]] = set()
    for name in names:
        for block in tables.uncounted().blocks(name, ("globalPid", "deviceId")):
            process, device = process_of(block.ints("globalPid")), block.ints("deviceId")
            firsts = combinations(np.stack([process, device]))[1]
            pairs.update(zip(process[firsts].tolist(), device[firsts].tolist(), strict=True))
    processes = sorted({process for process, _ in pairs} - {int(MISSING)})
    rank_of = {process: rank for rank, process in enumerate(processes)}
    used = sorted((rank_of[process], device) for process, device in pairs if process in rank_of)
    return Ranks(rank_of, len(rank_of)), used


def version(tables: RecordedTables) -> str:
    """Return the version of the schema and of the product that wrote the export, as far as it states them."""
    stated: dict[str, Any] = {}
    for table in ("META_DATA_EXPORT", "EXPORT_META_DATA"):
        for row in _rows(tables, table, ("name", "value")):
            stated.setdefault(str(row["name"]), row["value"])
    versions = {"schema": stated.get("EXPORT_SCHEMA_VERSION"), "nsys": stated.get("EXPORT_PRODUCT_VERSION")}
    return ", ".join(f"{name} {version}" for name, version in versions.items() if version) or "schema unknown"


def clock_base_ns(tables: RecordedTables) -> int:
    """Return the start of the session in ns since the epoch, 0 if the export does not state it."""
    for row in _rows(tables, "TARGET_INFO_SESSION_START_TIME", ("utcEpochNs",)):
        if isinstance(row["utcEpochNs"], int) and row["utcEpochNs"] > 0:
            return row["utcEpochNs"]
    return 0


def devices_of(tables: RecordedTables, ranks: Ranks, used: Sequence[tuple[int, int]]) -> tuple[DeviceProperties, ...]:
    """Return the properties of the devices that each rank used; of all devices of an export of one process.

    A kernel names its device by the number that CUDA gave it in its process, which CUDA_VISIBLE_DEVICES changes. The
    table ``TARGET_INFO_CUDA_DEVICE`` tells which GPU that is; exports without it tell the number that CUDA gave each
    GPU outside of the processes.

    Parameters
    ----------
    tables : RecordedTables
        Tables of the export.
    ranks : Ranks
        Ranks of the processes with device work.
    used : sequence of (int, int)
        Each rank with each device that it used.
    """
    gpus = {row["id"]: row for row in _rows(tables, *_GPUS) if isinstance(row["id"], int)}
    numbers = {row["cuDevice"]: id_ for id_, row in gpus.items() if isinstance(row["cuDevice"], int)}
    if len(numbers) < len(gpus):
        numbers = {id_: id_ for id_ in gpus}
    rows = [tuple(row.values()) for row in _rows(tables, *_VISIBLE)]
    visible = {row[:2]: row[2] for row in rows if all(isinstance(value, int) for value in row)}
    processes = (ranks.processes & PID).tolist() or [None]
    if not ranks.numbers:
        of_process = {number for process, number in visible if process == processes[0]}
        used = [(0, number) for number in sorted(of_process.union(n for _, n in used) if of_process else numbers)]
    devices = []
    for rank, number in used:
        id_ = visible.get((processes[rank], number), numbers.get(number))
        if id_ in gpus:
            size = (positive(gpus[id_][column]) for column in ("smCount", "totalMemory"))
            name = str(gpus[id_]["name"] or "")
            devices.append(DeviceProperties(rank if ranks.numbers else OWN_RANK, number, name, *size))
    return tuple(devices)


_GPUS = ("TARGET_INFO_GPU", ("id", "name", "smCount", "totalMemory", "cuDevice"))
#: The table of the GPUs that a process sees, by the number that CUDA gave each in it.
_VISIBLE = ("TARGET_INFO_CUDA_DEVICE", ("pid", "cudaId", "gpuId"))


def _rows(tables: RecordedTables, table: str, columns: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """Yield the rows of a small table; no rows if the table is absent."""
    for block in tables.uncounted().blocks(table, columns):
        values = [arrow_array(v, v == MISSING) if isinstance(v, np.ndarray) else v for v in block.columns.values()]
        for row in zip(*(column.to_pylist() for column in values), strict=True):
            yield dict(zip(columns, row, strict=True))
