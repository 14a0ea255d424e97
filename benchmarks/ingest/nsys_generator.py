"""Write an Nsight Systems export (SQLite, schema 3.13) of any number of kernels, each with its runtime call.

    python benchmarks/ingest/nsys_generator.py /tmp/five_million.sqlite 5000000

Columns, identifiers and value ranges are those that exports of real runs have; two processes share the file,
their rows interleave, and their correlation ids overlap. What is measured on it is the speed of reading, not
of anything that a model of the hardware would say.
"""

import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

_CHUNK = 200_000
_PIDS = (144, 145)
_KERNEL_NAMES, _API = 300, 400
_SCHEMA = """
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE META_DATA_EXPORT (name TEXT NOT NULL, value TEXT);
CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER, utcTime TEXT, localTime TEXT);
CREATE TABLE TARGET_INFO_GPU (vmId INTEGER NOT NULL, id INTEGER NOT NULL, name TEXT, totalMemory INTEGER,
  memoryBandwidth INTEGER, clockRate INTEGER, smCount INTEGER, l2CacheSize INTEGER, chipName TEXT);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL,
  globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL, callchainId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
  contextId INTEGER NOT NULL, greenContextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER,
  globalPid INTEGER, demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL, mangledName INTEGER,
  launchType INTEGER, cacheConfig INTEGER, registersPerThread INTEGER NOT NULL, gridX INTEGER NOT NULL,
  gridY INTEGER NOT NULL, gridZ INTEGER NOT NULL, blockX INTEGER NOT NULL, blockY INTEGER NOT NULL,
  blockZ INTEGER NOT NULL, staticSharedMemory INTEGER NOT NULL, dynamicSharedMemory INTEGER NOT NULL,
  localMemoryPerThread INTEGER NOT NULL, localMemoryTotal INTEGER NOT NULL, gridId INTEGER NOT NULL,
  sharedMemoryExecuted INTEGER, graphNodeId INTEGER, sharedMemoryLimitConfig INTEGER);
"""


def write_export(path: Path, kernels: int, seed: int = 0) -> None:
    """Write a file with so many kernels and as many runtime calls.

    Parameters
    ----------
    path : Path
        Must not exist.
    kernels : int
    seed : int
    """
    with sqlite3.connect(path) as connection:
        connection.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;" + _SCHEMA)
        _write_small_tables(connection)
        random = np.random.default_rng(seed)
        shapes = _shapes(random)
        for first in range(0, kernels, _CHUNK):
            rows = np.arange(first, min(first + _CHUNK, kernels))
            _insert(connection, "CUPTI_ACTIVITY_KIND_RUNTIME", _runtime(rows, random))
            _insert(connection, "CUPTI_ACTIVITY_KIND_KERNEL", _kernels(rows, random, shapes))
    connection.close()


def _write_small_tables(connection: sqlite3.Connection) -> None:
    names = [(i, f"void cutlass::gemm_{i}<float, {'int, ' * (i % 40)}{i}>(Params)") for i in range(2 * _KERNEL_NAMES)]
    api = [(2 * _KERNEL_NAMES + i, f"cudaApi{i}_v7000") for i in range(_API)]
    connection.executemany("INSERT INTO StringIds VALUES (?, ?)", names + api)
    connection.execute("INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_SCHEMA_VERSION', '3.13.2')")
    connection.execute("INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (1700000000000000000, NULL, NULL)")
    for device in range(len(_PIDS)):
        row = (0, device, "NVIDIA H100 80GB HBM3", 85 * 10**9, 3352 * 10**9, 1980 * 10**6, 132, 50 << 20, "GH100")
        connection.execute(f"INSERT INTO TARGET_INFO_GPU VALUES ({', '.join('?' * 9)})", row)


def _shapes(random: np.random.Generator) -> npt.NDArray[np.int64]:
    """Return, for each kernel name, its registers, grid, block and shared memory, static and dynamic."""
    grid = random.integers(1, 4096, (_KERNEL_NAMES, 2))
    one = np.ones((_KERNEL_NAMES, 1), dtype=np.int64)
    registers = random.integers(16, 255, (_KERNEL_NAMES, 1))
    block = random.choice([64, 128, 256, 384, 1024], (_KERNEL_NAMES, 1))
    shared = random.choice([0, 1024, 49152, 167936], (_KERNEL_NAMES, 2))
    return np.hstack([registers, grid, one, block, one, one, shared])


def _runtime(rows: npt.NDArray[np.int64], random: np.random.Generator) -> list[Any]:
    start = rows * 5_000 + random.integers(0, 3_000, len(rows))
    thread = (1 << 48) + (np.array(_PIDS)[rows % 2] << 24) + np.array(_PIDS)[rows % 2]
    name = 2 * _KERNEL_NAMES + random.integers(0, 20, len(rows))
    return [start, start + random.integers(900, 9_000, len(rows)), rows % 9 == 0, thread, rows // 2 * 3, name, 0, None]


def _kernels(rows: npt.NDArray[np.int64], random: np.random.Generator, shapes: npt.NDArray[np.int64]) -> list[Any]:
    rank = rows % 2
    start = rows * 5_000 + random.integers(4_000, 60_000, len(rows))
    name = random.integers(0, _KERNEL_NAMES, len(rows))
    end = start + random.integers(900, 900_000, len(rows))
    process = (1 << 48) + (np.array(_PIDS)[rank] << 24)
    place = [rank, 1 + rank, 0, np.array([7, 15])[rank], rows // 2 * 3, process]
    names = [name, _KERNEL_NAMES + name // 3, name + 1]
    shape = list(shapes[name].T)
    return [start, end, *place, *names, 1, 1, *shape, 0, 250_871_808, rows // 2, 32_768, None, 0]


def _insert(connection: sqlite3.Connection, table: str, columns: list[Any]) -> None:
    count = len(columns[0])
    connection.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(columns))})", _rows(columns, count))


def _rows(columns: list[Any], count: int) -> Iterator[tuple[Any, ...]]:
    lists = [c.tolist() if isinstance(c, np.ndarray) else [c] * count for c in columns]
    return zip(*lists, strict=True)


if __name__ == "__main__":
    write_export(Path(sys.argv[1]), int(sys.argv[2]))
