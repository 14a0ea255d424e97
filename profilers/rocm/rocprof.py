"""`RocprofReader`: what rocprof 1 writes as ``results.csv``, ``results.db`` and ``results.json``."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from profilers.arrays import Ints
from profilers.database import SIGNATURE, open_database
from profilers.errors import BrokenFileError
from profilers.quality import Quality
from profilers.reader import Head, Sink
from profilers.rocm.block import Block, constant, renamed, text_list
from profilers.rocm.chrome import read_tables
from profilers.rocm.delimited import blocks
from profilers.rocm.timed import check_not_empty, skip, write_timed
from profilers.rocm.words import copy_direction, kernel_name
from profilers.rocm.work_items import workgroups
from profilers.schema import OWN_RANK
from profilers.trace import TraceMeta

__all__ = ["RocprofReader"]

_TIMES = frozenset({"BeginNs", "EndNs"})
_KERNELS = _TIMES | {"KernelName"}
#: Columns of kernels of any version; another one is a counter.
_OWN = frozenset(
    {
        *("Index", "KernelName", "gpu-id", "queue-id", "queue-index", "pid", "tid", "grd", "wgr", "lds", "scr"),
        *("vgpr", "arch_vgpr", "accum_vgpr", "sgpr", "wave_size", "fbar", "sig", "obj", "Data"),
        *("DispatchNs", "BeginNs", "EndNs", "CompleteNs", "DurationNs"),
    }
)
_KERNEL_ARGS = ("grd", "scr", "accum_vgpr", "sgpr", "fbar", "wave_size")
#: What calls and annotations become, by table.
_CALLS: Mapping[str, tuple[str, str]] = {
    "HIP": ("launches", "hip_runtime"),
    "HSA": ("ranges", "hsa_api"),
    "KFD": ("ranges", "kfd_api"),
    "rocTX": ("ranges", "user_annotation"),
}
_TABLES = ("HIP", "HSA", "KFD", "rocTX", "KERN", "OPS", "COPY")
#: What the tool calls barriers and markers of a queue, of no duration.
_NO_KERNEL = "Unknown command type"


class RocprofReader:
    """Results of rocprof 1: CSV of kernels and counters, SQLite, and JSON for Chrome's trace viewer."""

    name = "rocprof"

    def sniff(self, head: Head) -> bool:
        """Return whether a file has the columns, the tables or the events of rocprof 1.

        A CSV file with counters is rocprof's too; `profilers.rocprof_compute` takes those.
        """
        columns = set(head.columns)
        if columns >= _KERNELS:
            return columns <= _OWN
        if any(set(head.tables.get(table, ())) >= _TIMES for table in _TABLES):
            return True
        return head.start.lstrip()[:1] in (b"{", b"[") and b'"BeginNs"' in head.start

    def read(self, files: Sequence[Path], sink: Sink) -> TraceMeta:
        """Give the events of one file to `sink`.

        Raises
        ------
        BrokenFileError
            The file holds no event that can be used.
        """
        (path,) = files
        counts: Counter[str] = Counter()
        head = Head.of(path)
        if head.start.startswith(SIGNATURE):
            _read_database(path, sink, counts)
        elif head.start.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"["):
            for table, block in read_tables(path, sink, counts):
                _write(table, block, sink, counts)
        else:
            _read_csv(path, sink, counts)
        check_not_empty(path, counts)
        return TraceMeta(self.name, "rocprof 1", (path.name,), quality=Quality(counts))


def _read_csv(path: Path, sink: Sink, counts: Counter[str]) -> None:
    for block in blocks(path, sink, counts):
        if missing := _KERNELS - set(block.columns):
            raise BrokenFileError(f"{path}: its first line lacks {sorted(missing)}; record with --timestamp on")
        _write("KERN", block, sink, counts)


def _read_database(path: Path, sink: Sink, counts: Counter[str]) -> None:
    with open_database(path, sink.limit_bytes) as database:
        for table in _TABLES:
            if table not in database.tables:
                continue
            columns = database.tables[table]
            if missing := _TIMES - set(columns):
                raise BrokenFileError(f"{path}: table {table} lacks {sorted(missing)}; convert the results again")
            try:
                for batch in database.read(table, columns):
                    _write(table, Block(batch), sink, counts)
            except BrokenFileError:
                counts["damaged_tables"] += 1


def _write(table: str, block: Block, sink: Sink, counts: Counter[str]) -> None:
    """Give the rows of a table to the sink, by what the table holds."""
    if table == "KERN":
        ids = write_timed(sink, "kernels", _kernels(block), block.ints("EndNs"), counts)
        _write_counters(block, ids, sink, counts)
    elif table == "COPY":
        write_timed(sink, "copies", _copies(block), block.ints("EndNs"), counts)
    elif table == "OPS":
        work = np.flatnonzero(~_is_barrier(block))
        skip(counts, block.rows - len(work))
        block = block.take(work)
        write_timed(sink, "kernels", _operations(block), block.ints("EndNs"), counts)
    else:
        kind, word = _CALLS[table]
        columns = _calls(block)
        columns["api" if kind == "launches" else "category"] = constant(word, block.rows)
        if table == "HIP":
            columns["correlation"] = block.ints("Index")
        write_timed(sink, kind, columns, block.ints("EndNs"), counts)


def _is_barrier(block: Block) -> Any:
    return np.array(block.texts("Name").fill_null("").to_numpy(zero_copy_only=False) == _NO_KERNEL, dtype=bool)


def _kernels(block: Block) -> dict[str, Any]:
    """Return kernels as ``results.csv`` has them; the tool knows queues and no streams, so a queue is both."""
    groups, sizes = workgroups([block.ints("grd")], [block.ints("wgr")])
    registers = "arch_vgpr" if "arch_vgpr" in block.columns else "vgpr"
    return {
        **_common(block, "KernelName"),
        "device": block.narrow("gpu-id"),
        "stream": block.ints("queue-id"),
        "queue": block.ints("queue-id"),
        "workgroups": groups,
        "workgroup_size": sizes,
        "registers": block.narrow(registers),
        "lds_bytes": block.ints("lds"),
        "args": block.arguments(_KERNEL_ARGS),
    }


def _common(block: Block, name: str) -> dict[str, Any]:
    return {
        "rank": np.full(block.rows, OWN_RANK),
        "name": renamed(block.texts(name), kernel_name),
        "start_ns": block.ints("BeginNs"),
    }


def _operations(block: Block) -> dict[str, Any]:
    """Return rows of OPS or COPY, whose ``tid`` is a stream and whose ``Index`` is that of the call of HIP."""
    return {
        **_common(block, "Name"),
        "device": block.narrow("dev-id"),
        "stream": block.ints("tid"),
        "queue": block.ints("queue-id"),
        "correlation": block.ints("Index"),
    }


def _copies(block: Block) -> dict[str, Any]:
    columns = _operations(block)
    return {**columns, "direction": renamed(columns["name"], copy_direction)}


def _calls(block: Block) -> dict[str, Any]:
    """Return calls and annotations; ``pid`` is a lane of the viewer there and no process."""
    return {**_common(block, "Name"), "thread": block.ints("tid")}


def _write_counters(block: Block, ids: Ints, sink: Sink, counts: Counter[str]) -> None:
    """Give the columns that no version has of its own: counters of the kernels with these ids."""
    start = block.ints("BeginNs")
    kept = np.flatnonzero(ids >= 0)
    for name in block.columns:
        if name in _OWN or not len(kept):
            continue
        values = [_number(text) for text in block.texts(name).take(kept).to_pylist()]  # 0.3 us a value
        good = np.array([value is not None for value in values], dtype=bool)
        counts["events"] += len(values)
        counts["kept"] += int(good.sum())
        counts["dropped_no_value"] += int((~good).sum())
        columns = {
            "rank": np.full(int(good.sum()), OWN_RANK),
            "name": constant(str(text_list([name])[0]), int(good.sum())),
            "start_ns": start[kept][good],
            "value": [value for value in values if value is not None],
            "kernel_id": ids[kept][good],
        }
        sink.write("counters", columns)


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if np.isfinite(value) else None
