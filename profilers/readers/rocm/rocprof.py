"""`RocprofReader`: results of rocprof 1, as ``results.csv``, ``results.db`` or ``results.json``.

The CSV file holds kernels and their counters. The SQLite database has a table for each API, for copies and for
operations on devices. The JSON file, made for Chrome's trace viewer, holds the same events; `read_tables` sorts them
into the tables of the database. There, arrows from calls to operations stand for the database's ``Index``.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from profilers.errors import BrokenFileError
from profilers.readers.common.csv_rows import blocks
from profilers.readers.common.database import SIGNATURE, open_database
from profilers.readers.common.json_documents import Document, opening
from profilers.readers.common.numbers import integer, plain_text, workgroups
from profilers.readers.common.reader import Head, Sink
from profilers.readers.common.recording import Output, RecordedTables, RowBlock, renamed, text_list
from profilers.readers.common.source import read_source
from profilers.readers.rocm import conversion
from profilers.readers.rocm.conversion import write_calls
from profilers.trace.arrays import MISSING, Ints
from profilers.trace.columns import constant
from profilers.trace.schema import OWN_RANK
from profilers.trace.trace import TraceMeta

#: Table of the events of a process, by the start of its label in the viewer.
_LABELS = (("CPU HIP", "HIP"), ("CPU HSA", "HSA"), ("CPU KFD", "KFD"), ("COPY", "COPY"), ("GPU", "OPS"))
_NUMBERS = ("BeginNs", "EndNs", "tid", "dev-id", "queue-id")

Event = Mapping[str, Any]
#: Process, thread and microsecond of an event, by which arrows refer to it.
Position = tuple[int | None, int | None, int | None]


@dataclass
class _Lanes:
    """Events of the viewer's file by process, and arrows between them by id."""

    labels: dict[int | None, str] = field(default_factory=dict)
    events: dict[int | None, list[Event]] = field(default_factory=dict)
    tails: dict[Any, Position] = field(default_factory=dict)
    heads: dict[Any, Position] = field(default_factory=dict)

    def add(self, event: Event) -> bool:
        """Keep an event, the label of a process, or the end of an arrow; return whether it is an event."""
        phase, arguments = event.get("ph"), event.get("args")
        arguments = arguments if isinstance(arguments, dict) else {}
        process = integer(event.get("pid"))
        position = process, integer(event.get("tid")), integer(event.get("ts"))
        if phase == "X":
            name = plain_text(arguments.get("Name")) or plain_text(event.get("name"))
            added = {**arguments, "tid": event.get("tid"), "Name": name, "position": position}
            self.events.setdefault(process, []).append(added)
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


def read_tables(path: Path, out: Output) -> Iterator[tuple[str, RowBlock]]:
    """Yield (table, rows) of a JSON file, with an ``Index`` that joins a call and the work that it launched.

    The text and its events are held in memory, about ten times the size of the file. The tool itself fails on large
    runs, so these files are small.

    Parameters
    ----------
    path : Path
        The file, plain or packed.
    out : Output
        Its counts of lost and repaired events are updated; the limit of its sink bounds the unpacked size.

    Raises
    ------
    BrokenFileError
        The file is no JSON, or unpacks to more than the limit.
    """
    content, truncated = read_source(path, out.sink.limit_bytes)
    document = Document(content.decode("utf-8-sig", "replace"), path.name)
    lanes = _Lanes()
    out.skip(sum(not lanes.add(event) for event in document), "skipped_flow")  # a loop over the events, 5 us each
    out.counts["truncated_files"] += bool(truncated or document.counts["truncated_files"])
    out.skip(document.counts["dropped_broken"], "dropped_broken")
    for name in ("repaired_nan", "repaired_escape"):
        out.counts[name] += document.counts[name]
    processes = sorted(lanes.events.items(), key=lambda item: str(item[0]))
    calls = [(process, event) for process, events in processes if lanes.table(process) == "HIP" for event in events]
    launched = _launched(lanes, calls)
    first = 0
    for process, events in processes:
        table = lanes.table(process)
        if table == "HIP":
            index = np.arange(first, first + len(events))
            first += len(events)
        else:
            index = np.array([launched.get(event["position"], int(MISSING)) for event in events], np.int64)
        numbers = {name: _integers(event.get(name) for event in events) for name in _NUMBERS}
        yield table, RowBlock({"Name": text_list(event["Name"] for event in events), **numbers, "Index": index})


def _integers(values: Iterable[Any]) -> Ints:
    numbers = map(integer, values)
    return np.array([MISSING if number is None else number for number in numbers], np.int64)


def _launched(lanes: _Lanes, calls: Sequence[tuple[int | None, Event]]) -> dict[Position, int]:
    """Return the number of the call of each operation that an arrow leads to.

    An arrow begins inside its call, in whole microseconds. So it belongs to the call of its thread that began last.
    """
    threads: dict[tuple[int | None, int | None], list[tuple[int, int, int, int]]] = {}
    for number, (process, event) in enumerate(calls):
        _, thread, at_us = event["position"]
        begin, end = integer(event.get("BeginNs")), integer(event.get("EndNs"))
        if at_us is not None and begin is not None and end is not None:
            threads.setdefault((process, thread), []).append((at_us, begin, -end, number))
    for of_thread in threads.values():
        of_thread.sort()
    launched: dict[Position, int] = {}
    for arrow, (process, thread, at_us) in lanes.tails.items():
        of_thread = threads.get((process, thread), [])
        if at_us is None or arrow not in lanes.heads:
            continue
        row = bisect_right(of_thread, at_us, key=itemgetter(0)) - 1
        if row >= 0:
            start_us, begin, negative_end, number = of_thread[row]
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
#: Domain of calls and annotations, by table.
_DOMAINS = {"HIP": "HIP_RUNTIME", "HSA": "HSA_API", "KFD": "KFD_API", "rocTX": "ROCTX"}
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
        out = Output(self.name, files, sink)
        for table, block in _tables(path, out):
            _write(table, block, out)
        return out.meta("rocprof 1")


def _tables(path: Path, out: Output) -> Iterator[tuple[str, RowBlock]]:
    """Yield (table, rows) of a file, whichever of the three formats it has."""
    head = Head.of(path)
    if head.start.startswith(SIGNATURE):
        with open_database(path, out.sink.limit_bytes) as database:
            recording = RecordedTables(database, out.counts)
            for table in (table for table in _TABLES if table in recording.tables):
                recording.check(table, _TIMES)
                for block in recording.blocks(table, recording.tables[table]):
                    yield table, block
    elif opening(head.start) in (b"{", b"["):
        yield from read_tables(path, out)
    else:
        for block in blocks(path, out.sink, out.counts):
            if missing := _KERNELS - set(block.columns):
                columns = ", ".join(sorted(missing))
                raise BrokenFileError(f"{path}: its first line lacks the columns {columns}; record with --timestamp on")
            yield "KERN", block


def _write(table: str, block: RowBlock, out: Output) -> None:
    """Write the rows of one table."""
    end = block.ints("EndNs")
    if table == "KERN":
        _write_counters(block, out.write("kernels", _kernels(block), end), out)
    elif table == "COPY":
        columns = _operations(block)
        direction = renamed(columns["name"], conversion.copy_direction)
        out.write("copies", {**columns, "direction": direction}, end)
    elif table == "OPS":
        barriers = conversion.is_text(block.texts("Name"), _NO_KERNEL)
        out.skip(int(barriers.sum()), "skipped_marker")
        operations = block.take(np.flatnonzero(~barriers))
        out.write("kernels", _operations(operations), end[~barriers])
    else:
        # The pid of calls and annotations is a lane of the viewer and no process.
        calls = {**_common(block, "Name"), "thread": block.ints("tid"), "correlation": block.ints("Index")}
        write_calls(out, _DOMAINS[table], calls, end)


def _kernels(block: RowBlock) -> dict[str, Any]:
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


def _common(block: RowBlock, name: str) -> dict[str, Any]:
    return {
        "rank": np.full(block.rows, OWN_RANK),
        "name": renamed(block.texts(name), conversion.kernel_name),
        "start_ns": block.ints("BeginNs"),
    }


def _operations(block: RowBlock) -> dict[str, Any]:
    """Return rows of OPS or COPY; their ``tid`` is a stream, their ``Index`` that of the call of HIP."""
    return {
        **_common(block, "Name"),
        "device": block.narrow("dev-id"),
        "stream": block.ints("tid"),
        "queue": block.ints("queue-id"),
        "correlation": block.ints("Index"),
    }


def _write_counters(block: RowBlock, ids: Ints, out: Output) -> None:
    """Write the columns that are counters; `ids` are those of the kernels."""
    kernels, start = np.flatnonzero(ids >= 0), block.ints("BeginNs")
    for name in block.columns:
        if name in _KERNEL_COLUMNS or not len(kernels):
            continue
        cells = RowBlock({"start": start, "id": ids, "value": block.columns[name]})
        counters = out.measured(cells.take(kernels), "value")
        columns = {
            "rank": np.full(counters.rows, OWN_RANK),
            "name": constant(str(text_list([name])[0]), counters.rows),
            "start_ns": counters.ints("start"),
            "value": counters.columns["value"],
            "kernel_id": counters.ints("id"),
        }
        out.write_rows("counters", columns)
