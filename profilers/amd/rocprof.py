"""rocprof 1: ``results.csv``, ``results.db`` and ``results.json``; its kernels carry total grid and group sizes."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from profilers.amd.delimited import blocks
from profilers.amd.rows import copy_direction, divided, put_rows, texts, whole_numbers
from profilers.arrays import MISSING, Ints
from profilers.database import SIGNATURE, open_database
from profilers.errors import BrokenFileError
from profilers.kineto.document import Document
from profilers.quality import Quality
from profilers.reader import Head, Sink
from profilers.source import read_source
from profilers.trace import TraceMeta

__all__ = ["RocprofReader"]

_KERNELS = {"KernelName", "BeginNs", "EndNs"}
_KNOWN = {
    *("Index", "KernelName", "gpu-id", "queue-id", "queue-index", "pid", "tid", "grd", "wgr", "lds", "scr"),
    *("arch_vgpr", "vgpr", "accum_vgpr", "sgpr", "wave_size", "sig", "obj", "fbar"),
    *("DispatchNs", "BeginNs", "EndNs", "CompleteNs", "DurationNs"),
}
_TABLES = {"KERN", "HIP", "OPS", "COPY", "rocTX", "HSA"}

Block = Mapping[str, Any]


class RocprofReader:
    """rocprof 1 results: CSV of kernels, JSON for Chrome's viewer, SQLite."""

    name = "rocprof"

    def sniff(self, head: Head) -> bool:
        """Return whether a file has the columns, tables or events of rocprof 1; files with counters are others'."""
        columns = set(head.columns)
        if columns >= _KERNELS:
            return columns <= _KNOWN
        tables = {name: set(own) for name, own in head.tables.items()}
        if any({"BeginNs", "EndNs"} <= own for name, own in tables.items() if name in _TABLES):
            return True
        return b'"traceEvents"' in head.start and b'"BeginNs"' in head.start

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
            _database(path, sink, counts)
        elif set(head.columns) >= _KERNELS:
            for block in blocks(path, sink, counts):
                _kernels(block, sink, counts)
        else:
            _json(path, sink, counts)
        if not counts["kept"]:
            raise BrokenFileError(f"{path}: no event that can be used ({counts['events']} looked at)")
        quality = Quality({name: n for name, n in counts.items() if n})
        return TraceMeta("rocprof", "1", sources=(path.name,), quality=quality)


def _whole(block: Block, name: str) -> Ints:
    return whole_numbers(block[name]) if name in block else np.full(len(next(iter(block.values()))), MISSING)


def _small(values: Ints) -> Ints:
    return np.where((values >= 0) & (values < 1 << 31), values, MISSING)


def _kernels(block: Block, sink: Sink, counts: Counter[str]) -> None:
    size = _whole(block, "wgr")
    names = {text: text.strip('"').removesuffix(".kd") for text in texts(block["KernelName"]).dictionary.to_pylist()}
    columns = {
        "name": texts(block["KernelName"], names),
        "start_ns": _whole(block, "BeginNs"),
        "device": _small(_whole(block, "gpu-id")),
        "queue": _whole(block, "queue-id"),
        "workgroups": divided(_whole(block, "grd"), size),
        "workgroup_size": _small(size),
        "registers": _small(_whole(block, "arch_vgpr" if "arch_vgpr" in block else "vgpr")),
        "lds_bytes": _whole(block, "lds"),
    }
    put_rows(sink, "kernels", columns, _whole(block, "EndNs"), counts)


def _database(path: Path, sink: Sink, counts: Counter[str]) -> None:
    with open_database(path, sink.limit_bytes) as database:
        for table, columns in database.tables.items():
            if table not in _TABLES or not {"BeginNs", "EndNs"} <= set(columns):
                continue
            for block in database.read(table, columns):
                if table == "KERN":
                    _kernels(block, sink, counts)
                else:
                    _events(table, block, sink, counts)


def _events(table: str, block: Block, sink: Sink, counts: Counter[str]) -> None:
    """Give calls, markers, copies and kernels of the tables HIP, HSA, rocTX, COPY and OPS; ``Index`` joins them."""
    names = texts(block["Name"] if "Name" in block else pa.array([""] * len(_whole(block, "BeginNs"))))
    plain = {text: text.strip('"') for text in names.dictionary.to_pylist()}
    names = texts(names.cast(pa.string()), plain)
    columns: dict[str, Any] = {"name": names, "start_ns": _whole(block, "BeginNs")}
    kind = {"HIP": "launches", "OPS": "kernels", "COPY": "copies"}.get(table, "ranges")
    if kind in ("kernels", "copies"):
        columns |= {"device": _small(_whole(block, "dev-id")), "queue": _whole(block, "queue-id")}
    else:
        process = _whole(block, "pid")
        columns |= {"process": process, "thread": _whole(block, "tid")}
        word = {"HIP": "hip_runtime", "HSA": "hsa_api"}.get(table, "user_annotation")
        columns["api" if kind == "launches" else "category"] = [word] * len(process)
    if kind != "ranges":
        columns["correlation"] = _whole(block, "Index")
    if kind == "copies":
        directions = {text: copy_direction(text) for text in plain.values()}
        columns["direction"] = texts(names.cast(pa.string()), directions)
    put_rows(sink, kind, columns, _whole(block, "EndNs"), counts)


def _json(path: Path, sink: Sink, counts: Counter[str]) -> None:
    """Read the events for Chrome's viewer, whose arguments hold the exact times as texts."""
    source = read_source(path, sink.limit_bytes)
    document = Document(source.content.decode("utf-8-sig", "replace"), path.name)
    lanes: dict[str, str] = {}
    found: dict[str, list[dict[str, str]]] = {}
    for event in document:
        args = event.get("args")
        process = str(event.get("pid"))
        if event.get("ph") == "M" and isinstance(args, dict) and event.get("name") == "process_name":
            lanes[process] = str(args.get("name"))
        if event.get("ph") != "X" or not isinstance(args, dict):
            counts["events"] += 1
            counts["skipped_flow"] += 1
            continue
        row = {str(k): v if isinstance(v, str) else str(v) for k, v in args.items()}
        found.setdefault(process, []).append({**row, "Name": row.get("Name", str(event.get("name")))})
    for process, rows in found.items():
        for block in _columns(rows):
            _events(_table(lanes.get(process, "")), block, sink, counts)
    counts["truncated_files"] = int(source.truncated or document.counts["truncated_files"] > 0)
    counts["dropped_broken"] += document.counts["dropped_broken"]
    counts["events"] += document.counts["dropped_broken"]


def _table(lane: str) -> str:
    """Return which table of the database holds the events of a lane."""
    starts = (("CPU HIP", "HIP"), ("CPU HSA", "HSA"), ("COPY", "COPY"), ("GPU", "OPS"))
    return next((table for start, table in starts if lane.startswith(start)), "rocTX")


def _columns(rows: list[dict[str, str]]) -> Iterator[Block]:
    names = ("BeginNs", "EndNs", "pid", "tid", "Name", "Index", "dev-id", "queue-id")
    safe = [{k: v.encode("utf-8", "replace").decode() for k, v in row.items()} for row in rows]
    yield {name: pa.array([row.get(name) for row in safe], pa.string()) for name in names}
