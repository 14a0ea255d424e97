"""`RocprofReader`: results of rocprof 1, as ``results.csv``, ``results.db`` or ``results.json``.

The CSV file holds kernels and their counters. The SQLite database has a table for each API, for copies and for
operations on devices. The JSON file, made for Chrome's trace viewer, holds the same events; `read_tables` sorts them
into the tables of the database. There, arrows from calls to operations stand for the database's ``Index``.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from profilers.errors import BrokenFileError
from profilers.readers.common.database import SIGNATURE, open_database
from profilers.readers.common.json_documents import Document, opening
from profilers.readers.common.numbers import plain_text, whole
from profilers.readers.common.reader import Head, Sink
from profilers.readers.common.source import read_source, require_events
from profilers.readers.rocm.delimited import blocks
from profilers.readers.rocm.records import (
    Block,
    check_columns,
    copy_direction,
    in_blocks,
    is_text,
    kernel_name,
    measured_rows,
    renamed,
    skip,
    text_list,
    workgroups,
    write_timed,
)
from profilers.trace.arrays import MISSING, Ints
from profilers.trace.columns import constant
from profilers.trace.schema import OWN_RANK
from profilers.trace.trace import Quality, TraceMeta

#: Table of the events of a process, by the start of its label in the viewer.
_LABELS = (("CPU HIP", "HIP"), ("CPU HSA", "HSA"), ("CPU KFD", "KFD"), ("COPY", "COPY"), ("GPU", "OPS"))
_TEXTS = ("Name",)
_NUMBERS = ("BeginNs", "EndNs", "tid", "dev-id", "queue-id")

Event = Mapping[str, Any]
#: Process, thread and microsecond of an event, by which arrows refer to it.
Place = tuple[int | None, int | None, int | None]


@dataclass
class _Lanes:
    """Events of the viewer's file by process, and arrows between them by id."""

    labels: dict[int | None, str] = field(default_factory=dict)
    events: dict[int | None, list[Event]] = field(default_factory=dict)
    positions: dict[int | None, list[Place]] = field(default_factory=dict)
    tails: dict[Any, Place] = field(default_factory=dict)
    heads: dict[Any, Place] = field(default_factory=dict)

    def add(self, event: Event) -> bool:
        """Keep an event, the label of a process, or the end of an arrow; return whether it is an event."""
        phase, arguments = event.get("ph"), event.get("args")
        arguments = arguments if isinstance(arguments, dict) else {}
        process = whole(event.get("pid"))
        position = process, whole(event.get("tid")), whole(event.get("ts"))
        if phase == "X":
            name = plain_text(arguments.get("Name")) or plain_text(event.get("name"))
            self.events.setdefault(process, []).append({**arguments, "tid": event.get("tid"), "Name": name})
            self.positions.setdefault(process, []).append(position)
        elif phase == "M" and event.get("name") == "process_name":
            self.labels[process] = plain_text(arguments.get("name"))
        elif phase in ("s", "t", "f"):
            arrows = self.tails if phase == "s" else self.heads
            arrows[plain_text(event.get("id"))] = position
        return phase == "X"

    def table(self, process: int | None) -> str:
        """Return the name of the table that holds the events of a process."""
        label = self.labels.get(process, "")
        return next((table for prefix, table in _LABELS if label.startswith(prefix)), "rocTX")


def read_tables(path: Path, sink: Sink, counts: Counter[str]) -> Iterator[tuple[str, Block]]:
    """Yield (table, rows) of a JSON file, with an ``Index`` that joins a call and the work that it launched.

    The text and its events are held in memory, about ten times the size of the file. The tool itself fails on large
    runs, so these files are small.

    Parameters
    ----------
    path : Path
        The file, plain or packed.
    sink : Sink
        Its limit bounds the unpacked size.
    counts : Counter
        Counts of lost and repaired events, updated.

    Raises
    ------
    BrokenFileError
        The file is no JSON, or unpacks to more than the limit.
    """
    content, truncated = read_source(path, sink.limit_bytes)
    document = Document(content.decode("utf-8-sig", "replace"), path.name)
    lanes = _Lanes()
    for event in document:  # a Python loop over the events, 5 us each
        if not lanes.add(event):
            counts["events"] += 1
            counts["skipped_flow"] += 1
    counts["truncated_files"] += bool(truncated or document.counts["truncated_files"])
    for name in ("dropped_broken", "repaired_nan", "repaired_escape"):
        counts[name] += document.counts[name]
    counts["events"] += document.counts["dropped_broken"]
    called, launched = _correlations(lanes)
    for process, events in sorted(lanes.events.items(), key=lambda item: str(item[0])):
        table = lanes.table(process)
        if table == "HIP":
            index = np.arange(len(events)) + called.get(process, 0)
        else:
            index = np.array([launched.get(position, int(MISSING)) for position in lanes.positions[process]], np.int64)
        yield table, _block(events, index)


def _block(events: list[Event], index: Any) -> Block:
    columns: dict[str, Any] = {name: text_list(plain_text(e.get(name)) for e in events) for name in _TEXTS}
    for name in _NUMBERS:
        numbers = (whole(event.get(name)) for event in events)
        columns[name] = np.array([MISSING if number is None else number for number in numbers], np.int64)
    return Block({**columns, "Index": index})


def _correlations(lanes: _Lanes) -> tuple[dict[int | None, int], dict[Place, int]]:
    """Return the number of the first call of each process, and the number of the call of each operation.

    An arrow begins inside its call, in whole microseconds. So it belongs to the call of its thread that began last.
    """
    firsts: dict[int | None, int] = {}
    threads: dict[tuple[int | None, int | None], list[tuple[int, int, int, int]]] = {}
    number = 0
    for process, events in sorted(lanes.events.items(), key=lambda item: str(item[0])):
        if lanes.table(process) != "HIP":
            continue
        firsts[process] = number
        for event, (_, thread, at_us) in zip(events, lanes.positions[process], strict=True):
            begin, end = whole(event.get("BeginNs")), whole(event.get("EndNs"))
            if at_us is not None and begin is not None and end is not None:
                threads.setdefault((process, thread), []).append((at_us, begin, -end, number))
            number += 1
    return firsts, _launched(lanes, {thread: sorted(calls) for thread, calls in threads.items()})


def _launched(lanes: _Lanes, calls: Mapping[Any, list[tuple[int, int, int, int]]]) -> dict[Place, int]:
    """Return the number of the call of each operation that an arrow leads to."""
    starts = {thread: [call[0] for call in of_thread] for thread, of_thread in calls.items()}
    launched: dict[Place, int] = {}
    for arrow, (process, thread, at_us) in lanes.tails.items():
        if at_us is None or arrow not in lanes.heads or (process, thread) not in calls:
            continue
        row = bisect_right(starts[process, thread], at_us) - 1
        if row >= 0:
            start_us, begin, negative_end, number = calls[process, thread][row]
            if at_us <= start_us + (-negative_end - begin) // 1000 + 1:
                launched[lanes.heads[arrow]] = number
    return launched


_TIMES = frozenset({"BeginNs", "EndNs"})
_KERNELS = _TIMES | {"KernelName"}
#: Columns of kernels in any version; any other column is a counter.
_KERNEL_COLUMNS = frozenset(
    {
        *("Index", "KernelName", "gpu-id", "queue-id", "queue-index", "pid", "tid", "grd", "wgr", "lds", "scr"),
        *("vgpr", "arch_vgpr", "accum_vgpr", "sgpr", "wave_size", "fbar", "sig", "obj", "Data"),
        *("DispatchNs", "BeginNs", "EndNs", "CompleteNs", "DurationNs"),
    }
)
_KERNEL_ARGS = ("grd", "scr", "accum_vgpr", "sgpr", "fbar", "wave_size")
#: Kind of event and category of calls and annotations, by table.
_CALLS: Mapping[str, tuple[str, str]] = {
    "HIP": ("launches", "hip_runtime"),
    "HSA": ("ranges", "hsa_api"),
    "KFD": ("ranges", "kfd_api"),
    "rocTX": ("ranges", "user_annotation"),
}
_TABLES = ("HIP", "HSA", "KFD", "rocTX", "KERN", "OPS", "COPY")
#: Name of barriers and markers of a queue, which have no duration.
_NO_KERNEL = "Unknown command type"


class RocprofReader:
    """Results of rocprof 1: CSV of kernels and counters, SQLite, and JSON for Chrome's trace viewer."""

    name = "rocprof"

    def sniff(self, head: Head) -> bool:
        """Return whether a file has the columns, the tables or the events of rocprof 1.

        Files with counters are read by `profilers.readers.rocprof_compute`.
        """
        columns = set(head.columns)
        if columns >= _KERNELS:
            return columns <= _KERNEL_COLUMNS
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
        elif opening(head.start) in (b"{", b"["):
            for table, block in read_tables(path, sink, counts):
                _write(table, block, sink, counts)
        else:
            _read_csv(path, sink, counts)
        require_events(path, counts)
        return TraceMeta(self.name, "rocprof 1", (path.name,), quality=Quality(counts))


def _read_csv(path: Path, sink: Sink, counts: Counter[str]) -> None:
    for block in blocks(path, sink, counts):
        if missing := _KERNELS - set(block.columns):
            columns = ", ".join(sorted(missing))
            raise BrokenFileError(f"{path}: its first line lacks the columns {columns}; record with --timestamp on")
        _write("KERN", block, sink, counts)


def _read_database(path: Path, sink: Sink, counts: Counter[str]) -> None:
    with open_database(path, sink.limit_bytes) as database:
        for table in _TABLES:
            if table not in database.tables:
                continue
            check_columns(path, table, database.tables[table], _TIMES)
            for block in in_blocks(database, table, database.tables[table], counts):
                _write(table, block, sink, counts)


def _write(table: str, block: Block, sink: Sink, counts: Counter[str]) -> None:
    """Give the rows of one table to the sink."""
    if table == "KERN":
        ids = write_timed(sink, "kernels", _kernels(block), block.ints("EndNs"), counts)
        _write_counters(block, ids, sink, counts)
    elif table == "COPY":
        write_timed(sink, "copies", _copies(block), block.ints("EndNs"), counts)
    elif table == "OPS":
        barriers = is_text(block.texts("Name"), _NO_KERNEL)
        skip(counts, int(barriers.sum()))
        block = block.take(np.flatnonzero(~barriers))
        write_timed(sink, "kernels", _operations(block), block.ints("EndNs"), counts)
    else:
        kind, category = _CALLS[table]
        columns = _calls(block)
        columns["api" if kind == "launches" else "category"] = constant(category, block.rows)
        if table == "HIP":
            columns["correlation"] = block.ints("Index")
        write_timed(sink, kind, columns, block.ints("EndNs"), counts)


def _kernels(block: Block) -> dict[str, Any]:
    """Return kernels of ``results.csv``; it names queues and no streams, so a queue is both."""
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
    """Return rows of OPS or COPY; their ``tid`` is a stream, their ``Index`` that of the call of HIP."""
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
    """Return calls and annotations; their ``pid`` is a lane of the viewer and no process."""
    return {**_common(block, "Name"), "thread": block.ints("tid")}


def _write_counters(block: Block, ids: Ints, sink: Sink, counts: Counter[str]) -> None:
    """Give the columns that are counters to the sink; `ids` are those of the kernels."""
    kernels = np.flatnonzero(ids >= 0)
    start, ids = block.ints("BeginNs")[kernels], ids[kernels]
    for name in block.columns:
        if name in _KERNEL_COLUMNS or not len(kernels):
            continue
        values = block.reals(name).take(pa.array(kernels))
        rows = measured_rows(values, counts)
        counts["events"] += len(rows)
        counts["kept"] += len(rows)
        columns = {
            "rank": np.full(len(rows), OWN_RANK),
            "name": constant(str(text_list([name])[0]), len(rows)),
            "start_ns": start[rows],
            "value": values.take(pa.array(rows)),
            "kernel_id": ids[rows],
        }
        sink.write("counters", columns)
