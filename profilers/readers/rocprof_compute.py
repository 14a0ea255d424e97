"""`RocprofComputeReader`: wide CSV files of ROCm Compute Profiler, called Omniperf before ROCm 6.3.

A row is a kernel. Some columns describe it, in a spelling that changed between versions; all others are counters.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from profilers.errors import BrokenFileError
from profilers.files import shipped_table
from profilers.readers.common.csv_rows import CountedKernels, check_not_empty, csv_rows, distinct
from profilers.readers.common.numbers import INT32_LIMIT, exact_ns, finite_number, integer
from profilers.readers.common.reader import Head, Sink
from profilers.trace.quality import Quality
from profilers.trace.schema import OWN_RANK
from profilers.trace.trace import TraceMeta


class _ComputeFormat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Content of `datasets/formats/rocprof_compute.toml`."""

    other: frozenset[str]
    names: dict[str, tuple[str, ...]]


_FORMAT = shipped_table("formats/rocprof_compute.toml", "columns of kernels", _ComputeFormat)
_NAMES = _FORMAT.names
#: All columns that describe a kernel; any other column is a counter.
_KERNEL_COLUMNS = _FORMAT.other.union(*_NAMES.values())
_INTEGERS = ("device", "queue", "correlation", "registers", "lds_bytes", "workgroup_size")
_IN_32_BITS = frozenset({"device", "registers", "workgroup_size"})
_INT64_LIMIT = 1 << 63


class RocprofComputeReader:
    """Wide CSV files of ROCm Compute Profiler (Omniperf), pmc_perf.csv and its like: kernels with counters."""

    name = "rocprof_compute"

    def sniff(self, head: Head) -> bool:
        """Return whether a file's header has Compute Profiler's columns, or rocprof's with counters among them."""
        names = {name.lower() for name in head.columns}
        newer = {"dispatch_id", "gpu_id", "kernel_name"} <= names
        # The results.csv of rocprof, which another reader takes, has the same columns without counters.
        older = {"index", "kernelname", "gpu-id"} <= names and bool(names - _KERNEL_COLUMNS)
        return newer or older

    def read(self, files: Sequence[Path], sink: Sink) -> TraceMeta:
        """Give the kernels and counters of one file to `sink`.

        In a file without timestamps, such as one joined from several runs, kernels follow each other.

        Raises
        ------
        BrokenFileError
            The file holds no row that can be used.
        """
        (path,) = files
        counts: Counter[str] = Counter()
        with csv_rows(path, sink, counts) as rows:
            names = (name.strip() for name in next(rows, []))
            # The columns that describe a kernel are named in lower case.
            header = distinct(name.lower() if name.lower() in _KERNEL_COLUMNS else name for name in names)
            if not set(header) & set(_NAMES["name"]):
                raise BrokenFileError(f"{path}: its first line has no column Kernel_Name; profile the program again")
            table = _Table(header, sink, counts)
            for cells in rows:  # a Python loop over kernels and their counters, about 10 us and 1 us each
                table.add(cells)
            table.kernels.flush()
        check_not_empty(path, counts)
        key = "Dispatch_ID" if "dispatch_id" in header else "Index"
        return TraceMeta(self.name, f"csv {key}", (path.name,), quality=Quality(counts))


class _Table:
    """Kernels with their counters, collected row by row and given to a sink in batches."""

    def __init__(self, header: Sequence[str], sink: Sink, counts: Counter[str]) -> None:
        self._header = header
        self.kernels = CountedKernels(sink, counts)
        self._counts = counts
        self._columns = {
            column: next((name for name in names if name in header), "") for column, names in _NAMES.items()
        }
        self._next_ns = 0

    def add(self, texts: Sequence[str]) -> None:
        """Add one row."""
        self._counts["events"] += 1
        if len(texts) != len(self._header):
            self._counts["dropped_broken"] += 1
            return
        cells = {name: text.strip() for name, text in zip(self._header, texts, strict=True)}
        time = self._time(cells)
        if time is None:
            return
        name = cells.get(self._columns["name"]) or "unknown"
        self._counts["missing_name"] += name == "unknown"
        rest = {name: cells[name] for name in self._header if name in _FORMAT.other and cells[name]}
        args = json.dumps(rest, separators=(",", ":")) if rest else None
        self._add_counters(cells)
        self.kernels.add({"rank": OWN_RANK, "name": name, **time, **self._typed(cells), "args": args})

    def _time(self, cells: Mapping[str, str]) -> dict[str, int | None] | None:
        """Return start and duration of a row in ns, None if they cannot be used."""
        if not (self._columns["start"] and self._columns["end"]):
            self._counts["assumed_start"] += 1
            self._counts["missing_duration"] += 1
            self._next_ns += 1
            return {"start_ns": self._next_ns - 1, "dur_ns": None}
        start, end = (exact_ns(cells[self._columns[column]], 0) for column in ("start", "end"))
        if start is None or end is None or not start:
            self._counts["dropped_no_time"] += 1
        elif end < start:
            self._counts["dropped_negative"] += 1
        else:
            return {"start_ns": start, "dur_ns": end - start}
        return None

    def _typed(self, cells: Mapping[str, str]) -> dict[str, int | None]:
        """Return the integer columns of a kernel, None for a number that is negative or does not fit its column."""
        columns: dict[str, int | None] = {}
        for column in _INTEGERS:
            number = integer(cells.get(self._columns[column]))
            limit = INT32_LIMIT if column in _IN_32_BITS else _INT64_LIMIT
            columns[column] = number if number is not None and 0 <= number < limit else None
        # The grid is in work-items, as in all formats of ROCm.
        grid, size = integer(cells.get(self._columns["grid"])), columns["workgroup_size"]
        columns["workgroups"] = -(-grid // size) if grid is not None and grid > 0 and size else None
        return columns

    def _add_counters(self, cells: Mapping[str, str]) -> None:
        """Add the counters of a row; values that are no finite number are counted."""
        for name, text in cells.items():
            if name in _KERNEL_COLUMNS or not text:
                continue
            self._counts["events"] += 1
            value = finite_number(text)
            if value is None:
                self._counts["dropped_no_value"] += 1
            else:
                self.kernels.add_counter({"name": name or "unnamed", "value": value})
