"""Compare three ways to read tables of an Nsight Systems export: our page reader, `sqlite3`, and ADBC.

    pip install adbc-driver-sqlite
    python benchmarks/ingest/database_reading.py [rows] [runs]

Three tables have so many rows, 5 million by default. Kernels have 26 columns of integers, two of them null. Calls
of the runtime have 7 columns of integers. NVTX ranges have 7 columns: integers, texts, and nulls in both. Each way
reads the same columns into the same kind of batches: int64 with a value for null, or Arrow strings. `sqlite3` is
used as fast as we know how: nulls are replaced in SQL, and NumPy takes the integers of a batch of rows at once.

Each run is a process of its own and the ways alternate. A line a table and way gives medians of the wall seconds,
the ratio to our reader, and the highest resident memory with Python and its libraries. A checksum proves that
all ways read the same values.
"""

import json
import re
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from nsys_generator import write_export

from profilers.readers.common.database import open_database
from profilers.trace.arrays import MISSING

_BATCH = 65536
_KERNELS = (
    *("start", "end", "deviceId", "streamId", "correlationId", "globalPid", "demangledName", "shortName"),
    *("mangledName", "registersPerThread", "graphNodeId", "gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ"),
    *("contextId", "greenContextId", "launchType", "cacheConfig", "staticSharedMemory", "dynamicSharedMemory"),
    *("localMemoryPerThread", "localMemoryTotal", "sharedMemoryExecuted"),
)
_TABLES: Mapping[str, tuple[str, ...]] = {
    "CUPTI_ACTIVITY_KIND_KERNEL": _KERNELS,
    "CUPTI_ACTIVITY_KIND_RUNTIME": (
        *("start", "end", "globalTid", "correlationId", "nameId", "eventClass", "returnValue"),
    ),
    "NVTX_EVENTS": ("start", "end", "eventType", "text", "textId", "globalTid", "domainId"),
}
_TEXTS = ("text", "value")
_SMALL = "StringIds"

Batches = Iterator[Mapping[str, Any]]


def write_tables(path: Path, rows: int) -> None:
    """Write an export with `rows` kernels, calls and NVTX ranges."""
    write_export(path, rows)
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA journal_mode = OFF")
        connection.execute(
            "CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, text TEXT, "
            "textId INTEGER, globalTid INTEGER, domainId INTEGER, category INTEGER)"
        )
        thread = (1 << 48) + (144 << 24) + 144
        ranges = (
            (5000 * i, 5000 * i + 900, 59, *((f"layer {i % 96} forward", None) if i % 3 else (None, i % 400)), thread)
            for i in range(rows)
        )
        connection.executemany("INSERT INTO NVTX_EVENTS VALUES (?, ?, ?, ?, ?, ?, 0, NULL)", ranges)
    connection.close()


def read_pages(path: Path, table: str, columns: tuple[str, ...]) -> Batches:
    """Yield batches from our reader."""
    with open_database(path) as database:
        yield from database.read(table, columns)


def read_sqlite3(path: Path, table: str, columns: tuple[str, ...]) -> Batches:
    """Yield batches from the standard library: integers of all columns by one call of NumPy, texts as tuples."""
    ints = [name for name in columns if name not in _TEXTS]
    texts = [name for name in columns if name in _TEXTS]
    wanted = ", ".join([*(f"ifnull({name}, {int(MISSING)})" for name in ints), *texts])
    connection = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
    cursor = connection.execute(f"SELECT {wanted} FROM {table}")
    while rows := cursor.fetchmany(_BATCH):
        if texts:
            *values, words = zip(*rows, strict=True)
            found = {name: np.array(v, dtype=np.int64) for name, v in zip(ints, values, strict=True)}
            yield found | {texts[0]: pa.array(words, pa.string())}
        else:
            flat = np.fromiter(chain.from_iterable(rows), np.int64, len(rows) * len(ints))
            yield dict(zip(ints, np.ascontiguousarray(flat.reshape(-1, len(ints)).T), strict=True))
    connection.close()


def read_adbc(path: Path, table: str, columns: tuple[str, ...]) -> Batches:
    """Yield batches from the SQLite driver of Arrow's database interface, at our size of batches."""
    import adbc_driver_sqlite.dbapi

    uri = f"file:{path}?mode=ro&immutable=1"
    with adbc_driver_sqlite.dbapi.connect(uri) as connection, connection.cursor() as cursor:
        cursor.adbc_statement.set_options(**{"adbc.sqlite.query.batch_rows": _BATCH})
        cursor.execute(f"SELECT {', '.join(columns)} FROM {table}")
        for batch in cursor.fetch_record_batch():
            yield {name: _plain(batch.column(name)) for name in columns}


def _plain(column: pa.Array) -> Any:
    if pa.types.is_string(column.type):
        return column
    return pc.fill_null(column, int(MISSING)).to_numpy(zero_copy_only=False)


WAYS: Mapping[str, Callable[[Path, str, tuple[str, ...]], Batches]] = {
    "pages": read_pages,
    "sqlite3": read_sqlite3,
    "adbc": read_adbc,
}


def measure(way: str, path: Path, table: str) -> dict[str, Any]:
    """Return seconds, memory and checksum of one reading; libraries are loaded before."""
    for _ in WAYS[way](path, _SMALL, ("id", "value")):
        pass
    wall, rows, total = time.perf_counter(), 0, 0
    for batch in WAYS[way](path, table, _TABLES[table]):
        rows += len(batch["start"])
        total += sum(_sum(values) for values in batch.values())
    wall = time.perf_counter() - wall
    # Not `getrusage`: a process starts with the highest memory of the one that started it.
    (peak,) = re.findall(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())
    return {"rows": rows, "sum": total & (1 << 64) - 1, "wall": wall, "memory": int(peak) / 1024}


def _sum(values: Any) -> int:
    if isinstance(values, np.ndarray):
        return int(values.sum())
    return pc.sum(pc.binary_length(values)).as_py() or 0


def main(rows: int, runs: int) -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory(prefix="database_reading.") as folder:
        path = Path(folder) / "export.sqlite"
        write_tables(path, rows)
        print(f"{rows:,} rows a table, {path.stat().st_size / 1e6:.0f} MB, medians of {runs}")
        print(f"{'table':28} {'way':8} {'s':>7} {'ratio':>6} {'MB':>6}")
        for table in _TABLES:
            found: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
            for _ in range(runs):
                for way, results in found.items():
                    command = [sys.executable, __file__, "--one", way, str(path), table]
                    results.append(json.loads(subprocess.run(command, check=True, capture_output=True).stdout))
            values = {(result["rows"], result["sum"]) for results in found.values() for result in results}
            ours = statistics.median(result["wall"] for result in found["pages"])
            for way, results in found.items():
                wall, memory = (statistics.median(result[name] for result in results) for name in ("wall", "memory"))
                print(f"{table:28} {way:8} {wall:7.2f} {wall / ours:6.2f} {memory:6.0f}", flush=True)
            if len(values) > 1:
                raise SystemExit(f"{table}: the ways read different values: {values}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(measure(sys.argv[2], Path(sys.argv[3]), sys.argv[4])))
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 5_000_000, int(sys.argv[2]) if len(sys.argv) > 2 else 3)
