"""Plain CSV files of kernels, for profilers whose format no other reader knows.

The first line names the columns, in any order and case::

    name,start_us,dur_us,rank,device,stream,workgroups,grid
    ampere_sgemm_128x64_nn,10.5,42.125,0,0,7,256,"[16,16,1]"
    ncclDevKernel_AllReduce,53,118.5,0,0,20,24,"[24,1,1]"

Required columns are ``name``, a start, and a duration or an end: ``start_``, ``dur_`` and ``end_`` with the unit
``ns``, ``us``, ``ms`` or ``s``. Times are decimal numbers and are read exactly, to the nanosecond. Optional columns:
``rank``, ``device``, ``stream``, ``queue``, ``correlation``, ``workgroups``, ``workgroup_size`` (work-items),
``registers`` (per work-item), ``lds_bytes``. Every other column goes into ``args``, and so does a value of these
columns that is no integer. Fields are separated by commas and quoted with ``"``; the text is UTF-8, plain or packed.
"""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from profilers.errors import BrokenFileError
from profilers.readers.common.csv_rows import Batches, check_not_empty, csv_rows, distinct
from profilers.readers.common.numbers import TIMES_NS, exact_ns, integer
from profilers.readers.common.reader import Head, Sink
from profilers.trace.quality import Quality
from profilers.trace.schema import OWN_RANK
from profilers.trace.trace import TraceMeta

#: Integers of 32 bits are below it, and not below its negative.
_INT32 = 1 << 31
_POWERS = {"ns": 0, "us": 3, "ms": 6, "s": 9}
_COUNTS = ("device", "stream", "queue", "correlation", "workgroups", "workgroup_size", "registers", "lds_bytes")
_IN_32_BITS = frozenset({"rank", "device", "workgroup_size", "registers"})


class CsvReader:
    """Plain CSV files of kernels: columns for the name, the start, and the duration or the end, with their units."""

    name = "csv"

    def sniff(self, head: Head) -> bool:
        """Return whether the first line of a file has columns for the name and the times of a kernel."""
        return _has_times([name.lower() for name in head.columns])

    def read(self, files: Sequence[Path], sink: Sink) -> TraceMeta:
        """Write the kernels of one file to `sink`.

        Raises
        ------
        BrokenFileError
            No row can be used; the message counts why.
        """
        (path,) = files
        counts: Counter[str] = Counter()
        batches = Batches(sink, counts)
        with csv_rows(path, sink, counts) as rows:
            names = distinct(name.strip().lower() for name in next(rows, []))
            if not _has_times(names):
                raise BrokenFileError(f"{path}: its first line must name the columns, at least name,start_ns,dur_ns")
            for cells in rows:  # a Python loop over the rows, about 10 us each
                counts["events"] += 1
                if kernel := _kernel(names, cells, counts):
                    batches.add("kernels", kernel)
            batches.flush()
        check_not_empty(path, counts)
        return TraceMeta(self.name, "header " + ",".join(names)[:200], (path.name,), quality=Quality(counts))


def _time_column(names: Sequence[str], prefix: str) -> tuple[str, int] | None:
    """Return the column of a time and the power of ten of its unit in ns; None if the file has none."""
    columns = ((f"{prefix}_{unit}", power) for unit, power in _POWERS.items())
    return next(((name, power) for name, power in columns if name in names), None)


def _has_times(names: Sequence[str]) -> bool:
    start, duration, end = (_time_column(names, prefix) for prefix in ("start", "dur", "end"))
    return "name" in names and start is not None and (duration is not None or end is not None)


def _kernel(names: Sequence[str], cells: Sequence[str], counts: Counter[str]) -> dict[str, Any] | None:
    """Return a row of ``kernels``; None, after counting the reason, if the row cannot be used."""
    if len(cells) != len(names):
        counts["dropped_broken"] += 1
        return None
    row = {name: text.strip() for name, text in zip(names, cells, strict=True)}
    start, duration = _pop_times(names, row)
    if start is None or (duration is not None and start + duration not in TIMES_NS):
        counts["dropped_no_time"] += 1
        return None
    if duration is not None and duration < 0:
        counts["dropped_negative"] += 1
        return None
    counts["missing_duration"] += duration is None
    name = row.pop("name")
    counts["missing_name"] += not name
    rank = _pop_integer(row, "rank")
    kernel = {"rank": OWN_RANK if rank is None or rank < 0 else rank, "name": name or "unknown"}
    kernel |= {"start_ns": start, "dur_ns": duration, **{column: _pop_integer(row, column) for column in _COUNTS}}
    others = {column: text for column, text in row.items() if text}
    return kernel | {"args": json.dumps(others, separators=(",", ":")) if others else None}


def _pop_times(names: Sequence[str], row: dict[str, str]) -> tuple[int | None, int | None]:
    """Return the start and the duration in ns, and remove from `row` the columns that were read."""
    times: dict[str, int | None] = {}
    for prefix in ("start", "dur", "end"):
        name, power = _time_column(names, prefix) or ("", 0)
        times[prefix] = exact_ns(row.get(name), power)
        if times[prefix] is not None:
            del row[name]
    start, duration, end = times.values()
    if duration is None and end is not None and start is not None:
        duration = end - start
    return start, duration


def _pop_integer(row: dict[str, str], column: str) -> int | None:
    """Return an integer and remove it from `row`; None if the text is no integer or does not fit the column."""
    number = integer(row.get(column))
    if number is None or (column in _IN_32_BITS and not -_INT32 <= number < _INT32):
        return None
    del row[column]
    return number
