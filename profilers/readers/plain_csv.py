"""A plain CSV file of kernels, for whoever has a profiler that no other reader knows.

The first line names the columns, in any order and case::

    name,start_us,dur_us,rank,device,stream,workgroups,grid
    ampere_sgemm_128x64_nn,10.5,42.125,0,0,7,256,"[16,16,1]"
    ncclDevKernel_AllReduce,53,118.5,0,0,20,24,"[24,1,1]"

Required are ``name`` and a start, and a duration or an end: ``start_``, ``dur_`` and ``end_`` with the unit
``ns``, ``us``, ``ms`` or ``s``. Times are decimal numbers and are read exactly, to the nanosecond. Optional:
``rank``, ``device``, ``stream``, ``queue``, ``correlation``, ``workgroups``, ``workgroup_size`` (work-items),
``registers`` (per work-item), ``lds_bytes``. Every other column goes into ``args``, as does what should be an
integer and is none. Fields are separated by commas and quoted with ``"``; the text is UTF-8, plain or packed.
"""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from profilers.errors import BrokenFileError
from profilers.readers.common.csv_rows import Batches, check_not_empty, csv_rows, distinct, exact_ns
from profilers.readers.common.numbers import TIMES_NS, whole
from profilers.readers.common.reader import Head, Sink
from profilers.trace.schema import OWN_RANK
from profilers.trace.trace import Quality, TraceMeta

_NARROW = 1 << 31
_POWERS = {"ns": 0, "us": 3, "ms": 6, "s": 9}
_COUNTS = ("device", "stream", "queue", "correlation", "workgroups", "workgroup_size", "registers", "lds_bytes")
_IN_32_BITS = frozenset({"rank", "device", "workgroup_size", "registers"})


class CsvReader:
    """Plain CSV files of kernels: a column name, a start and a duration or an end, with their units."""

    name = "csv"

    def sniff(self, head: Head) -> bool:
        """Return whether the first line of a file names a kernel's name and its times."""
        names = [name.lower() for name in head.columns]
        return "name" in names and _timed(names, "start") is not None and _has_duration(names)

    def read(self, files: Sequence[Path], sink: Sink) -> TraceMeta:
        """Give the rows of one file to `sink`.

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
            if not ("name" in names and _timed(names, "start") and _has_duration(names)):
                raise BrokenFileError(f"{path}: its first line must name the columns: name, start_ns, dur_ns")
            for cells in rows:  # a Python loop over the rows, about 10 us each
                counts["events"] += 1
                if row := _row(names, cells, counts):
                    batches.add("kernels", row)
            batches.flush()
        check_not_empty(path, counts)
        return TraceMeta(self.name, "header " + ",".join(names)[:200], (path.name,), quality=Quality({**counts}))


def _timed(names: Sequence[str], what: str) -> tuple[str, int] | None:
    """Return the column of a time and its power of ten in ns; None where there is none."""
    found = ((f"{what}_{unit}", power) for unit, power in _POWERS.items())
    return next(((name, power) for name, power in found if name in names), None)


def _has_duration(names: Sequence[str]) -> bool:
    return _timed(names, "dur") is not None or _timed(names, "end") is not None


def _row(names: Sequence[str], cells: Sequence[str], counts: Counter[str]) -> dict[str, Any] | None:
    """Return a row of ``kernels``; None, counted, where it cannot be used."""
    if len(cells) != len(names):
        counts["dropped_broken"] += 1
        return None
    rest = {name: text.strip() for name, text in zip(names, cells, strict=True)}
    start, duration = _times(names, rest)
    if start is None or (duration is not None and start + duration not in TIMES_NS):
        counts["dropped_no_time"] += 1
        return None
    if duration is not None and duration < 0:
        counts["dropped_negative"] += 1
        return None
    counts["missing_duration"] += duration is None
    name = rest.pop("name")
    counts["missing_name"] += not name
    rank = _integer(rest, "rank")
    row = {"rank": OWN_RANK if rank is None or rank < 0 else rank, "name": name or "unknown"}
    row |= {"start_ns": start, "dur_ns": duration, **{column: _integer(rest, column) for column in _COUNTS}}
    rest = {key: text for key, text in rest.items() if text}
    return row | {"args": json.dumps(rest, separators=(",", ":")) if rest else None}


def _times(names: Sequence[str], rest: dict[str, str]) -> tuple[int | None, int | None]:
    """Return start and duration; take from `rest` what they were made of."""
    found = {}
    for what in ("start", "dur", "end"):
        column = _timed(names, what)
        found[what] = None if column is None else exact_ns(rest[column[0]], column[1])
        if column is not None and found[what] is not None:
            del rest[column[0]]
    start, duration, end = found["start"], found["dur"], found["end"]
    if duration is None and end is not None and start is not None:
        duration = end - start
    return start, duration


def _integer(rest: dict[str, str], column: str) -> int | None:
    """Return an integer and take it from `rest`; None where there is none, or none that fits the column."""
    number = whole(rest.get(column))
    if number is None or (column in _IN_32_BITS and not -_NARROW <= number < _NARROW):
        return None
    del rest[column]
    return number
