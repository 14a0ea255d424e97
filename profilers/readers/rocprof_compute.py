"""`RocprofComputeReader`: the wide CSV files of ROCm Compute Profiler, called Omniperf before ROCm 6.3."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

from profilers.errors import BrokenFileError
from profilers.readers.common.csv_rows import Batches, check_not_empty, csv_rows, distinct, exact_ns
from profilers.readers.common.numbers import whole
from profilers.readers.common.reader import Head, Sink
from profilers.trace.schema import OWN_RANK
from profilers.trace.trace import Quality, TraceMeta

_NARROW = 1 << 31
_BATCH_COUNTERS = 65536
_BATCH_BYTES = 32 << 20
#: Columns of a kernel by what they mean, newer spelling first, in lower case.
_NAMES: Mapping[str, tuple[str, ...]] = {
    "name": ("kernel_name", "kernelname"),
    "device": ("gpu_id", "gpu-id"),
    "queue": ("queue_id", "queue-id"),
    "start": ("start_timestamp", "beginns"),
    "end": ("end_timestamp", "endns"),
    "correlation": ("correlation_id",),
    "registers": ("arch_vgpr", "vgpr"),
    "lds_bytes": ("lds_per_workgroup", "lds"),
    "grid": ("grid_size", "grd"),
    "workgroup_size": ("workgroup_size", "wgr"),
}
#: What else describes a kernel; every other column is a counter.
_DESCRIBED = frozenset(
    {
        *("dispatch_id", "index", "pid", "tid", "queue-index", "scratch_per_workitem", "scr", "accum_vgpr", "sgpr"),
        *("wave_size", "sig", "obj", "fbar", "kernel_id", "node_id", "agent_id", "process_id", "thread_id"),
        *("dispatchns", "completens", "durationns", "dispatch_timestamp", "complete_timestamp"),
        *("run_id", "iteration_multiplexing", "kernel_num", "duration", "source"),
    }
)
_OWN = _DESCRIBED | {spelling for spellings in _NAMES.values() for spelling in spellings}
_INTEGERS = ("device", "queue", "correlation", "registers", "lds_bytes", "workgroup_size")
_IN_32_BITS = frozenset({"device", "registers", "workgroup_size"})


class RocprofComputeReader:
    """Wide CSV files of ROCm Compute Profiler (Omniperf), pmc_perf.csv and its like: kernels with counters."""

    name = "rocprof_compute"

    def sniff(self, head: Head) -> bool:
        """Return whether a file's header has Compute Profiler's columns, or rocprof's with counters among them."""
        names = {name.lower() for name in head.columns}
        newer = {"dispatch_id", "gpu_id", "kernel_name"} <= names
        # Of rocprof's own results.csv, which another reader takes, only counters tell these apart.
        older = {"index", "kernelname", "gpu-id"} <= names and bool(names - _OWN)
        return newer or older

    def read(self, files: Sequence[Path], sink: Sink) -> TraceMeta:
        """Give the kernels and counters of one file to `sink`.

        A file without timestamps, as one that was joined from several runs, has its kernels one after the other.

        Raises
        ------
        BrokenFileError
            It holds no row that can be used.
        """
        (path,) = files
        counts: Counter[str] = Counter()
        with csv_rows(path, sink, counts) as rows:
            header = _header(path, next(rows, []))
            table = _Table(header, sink, counts)
            for cells in rows:  # a Python loop over kernels and their counters, about 10 us and 1 us each
                table.add(cells)
            table.flush()
        check_not_empty(path, counts)
        age = "Dispatch_ID" if "dispatch_id" in header else "Index"
        return TraceMeta(self.name, f"csv {age}", (path.name,), quality=Quality({**counts}))


def _header(path: Path, names: Sequence[str]) -> list[str]:
    """Return the header with what describes kernels in lower case, and counters as they are."""
    plain = (name.strip() for name in names)
    header = distinct(name.lower() if name.lower() in _OWN else name for name in plain)
    if not set(header) & set(_NAMES["name"]):
        raise BrokenFileError(f"{path}: its first line has no column Kernel_Name; profile the program again")
    return header


class _Table:
    """Takes rows, gives kernels and their counters to the sink."""

    def __init__(self, header: Sequence[str], sink: Sink, counts: Counter[str]) -> None:
        self._header = header
        self._sink = sink
        self._counts = counts
        self._columns = {what: next((n for n in names if n in header), "") for what, names in _NAMES.items()}
        self._timed = bool(self._columns["start"] and self._columns["end"])
        self._kernels: list[dict[str, Any]] = []
        self._counters: list[tuple[int, str, float]] = []
        self._bytes = 0
        self._now = 0

    def add(self, texts: Sequence[str]) -> None:
        """Take one row."""
        self._counts["events"] += 1
        if len(texts) != len(self._header):
            self._counts["dropped_broken"] += 1
            return
        cells = {name: text.strip() for name, text in zip(self._header, texts, strict=True)}
        time = self._time(cells)
        if time is None:
            return
        row: dict[str, Any] = {"rank": OWN_RANK, "name": cells.get(self._columns["name"]) or "unknown"}
        row |= {"start_ns": time[0], "dur_ns": time[1], **self._typed(cells)}
        self._counts["missing_name"] += row["name"] == "unknown"
        rest = {name: cells[name] for name in self._header if name in _DESCRIBED and cells[name]}
        row["args"] = json.dumps(rest, separators=(",", ":")) if rest else None
        self._counters += [(len(self._kernels), name, value) for name, value in self._values(cells)]
        self._kernels.append(row)
        self._bytes += len(row["name"]) + len(row["args"] or "")
        if len(self._counters) + len(self._kernels) >= _BATCH_COUNTERS or self._bytes >= _BATCH_BYTES:
            self.flush()

    def _time(self, cells: Mapping[str, str]) -> tuple[int, int | None] | None:
        if not self._timed:
            self._counts["assumed_start"] += 1
            self._counts["missing_duration"] += 1
            self._now += 1
            return self._now - 1, None
        start, end = (exact_ns(cells[self._columns[what]], 0) for what in ("start", "end"))
        if start is None or end is None or not start:
            self._counts["dropped_no_time"] += 1
            return None
        if end < start:
            self._counts["dropped_negative"] += 1
            return None
        return start, end - start

    def _typed(self, cells: Mapping[str, str]) -> dict[str, int | None]:
        found = {what: _whole(cells.get(self._columns[what], ""), what) for what in _INTEGERS}
        # The grid is in work-items, as everywhere in ROCm.
        grid, size = whole(cells.get(self._columns["grid"])), found["workgroup_size"]
        found["workgroups"] = -(-grid // size) if grid is not None and grid > 0 and size else None
        return found

    def _values(self, cells: Mapping[str, str]) -> Iterator[tuple[str, float]]:
        for name, text in cells.items():
            if name in _OWN or not text:
                continue
            self._counts["events"] += 1
            try:
                value = float(text)
            except ValueError:
                value = float("nan")
            if isfinite(value):
                yield name or "unnamed", value
            else:
                self._counts["dropped_no_value"] += 1

    def flush(self) -> None:
        """Give everything to the sink."""
        if not self._kernels:
            return
        ids = self._sink.write("kernels", {n: [row[n] for row in self._kernels] for n in self._kernels[0]})
        self._counts["kept"] += len(ids)
        batches = Batches(self._sink, self._counts)
        for at, name, value in self._counters:
            own = {key: self._kernels[at][key] for key in ("rank", "start_ns")}
            batches.add("counters", {**own, "name": name, "value": value, "kernel_id": int(ids[at])})
        batches.flush()
        self._kernels, self._counters, self._bytes = [], [], 0


def _whole(text: str, column: str) -> int | None:
    number = whole(text)
    fits = number is not None and number >= 0 and not (column in _IN_32_BITS and number >= _NARROW)
    return number if fits else None
