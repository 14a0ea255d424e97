"""The reader of rocprof 1 (CSV and JSON).

The JSON that rocprof 1 writes for Chrome's trace viewer, as the tables that its database has.

`RocprofReader`: what rocprof 1 writes as ``results.csv``, ``results.db`` and ``results.json``.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from profilers.errors import BrokenFileError
from profilers.readers.common.database import SIGNATURE, open_database
from profilers.readers.common.json_documents import Document
from profilers.readers.common.numbers import plain_text, whole
from profilers.readers.common.reader import Head, Sink
from profilers.readers.common.source import read_source
from profilers.readers.rocm.delimited import blocks
from profilers.readers.rocm.records import (
    Block,
    check_not_empty,
    constant,
    copy_direction,
    kernel_name,
    renamed,
    skip,
    text_list,
    workgroups,
    write_timed,
)
from profilers.trace.arrays import MISSING, Ints
from profilers.trace.schema import OWN_RANK
from profilers.trace.trace import Quality, TraceMeta

#: Which table holds the events of a process, by how the viewer labels it.
_LABELS = (("CPU HIP", "HIP"), ("CPU HSA", "HSA"), ("CPU KFD", "KFD"), ("COPY", "COPY"), ("GPU", "OPS"))
_TEXTS = ("Name",)
_NUMBERS = ("BeginNs", "EndNs", "tid", "dev-id", "queue-id")

Event = Mapping[str, Any]
#: Process, thread and microsecond of an event, by which an arrow finds it.
Place = tuple[int | None, int | None, int | None]


@dataclass
class _Lanes:
    """What was found so far: events by process, arrows by what they point to."""

    labels: dict[int | None, str] = field(default_factory=dict)
    events: dict[int | None, list[Event]] = field(default_factory=dict)
    places: dict[int | None, list[Place]] = field(default_factory=dict)
    tails: dict[Any, Place] = field(default_factory=dict)
    heads: dict[Any, Place] = field(default_factory=dict)

    def add(self, event: Event) -> bool:
        """Keep an event, or what a label or an arrow says; return whether it is an event."""
        phase, arguments = event.get("ph"), event.get("args")
        arguments = arguments if isinstance(arguments, dict) else {}
        process = whole(event.get("pid"))
        place = process, whole(event.get("tid")), whole(event.get("ts"))
        if phase == "X":
            name = plain_text(arguments.get("Name")) or plain_text(event.get("name"))
            self.events.setdefault(process, []).append({**arguments, "tid": event.get("tid"), "Name": name})
            self.places.setdefault(process, []).append(place)
        elif phase == "M" and event.get("name") == "process_name":
            self.labels[process] = plain_text(arguments.get("name"))
        elif phase in ("s", "t", "f"):
            arrows = self.tails if phase == "s" else self.heads
            arrows[plain_text(event.get("id"))] = place
        return phase == "X"

    def table(self, process: int | None) -> str:
        """Return which table of the database holds the events of a process."""
        label = self.labels.get(process, "")
        return next((table for start, table in _LABELS if label.startswith(start)), "rocTX")


def read_tables(path: Path, sink: Sink, counts: Counter[str]) -> Iterator[tuple[str, Block]]:
    """Yield the name of a table and rows of it, with an ``Index`` that joins a call and what it launched.

    The whole text is held, as are its events: about ten times the size of the file. The tool itself fails on
    large runs, so these files are small.

    Raises
    ------
    BrokenFileError
        It is no JSON, or unpacks to more than the limit.
    """
    source = read_source(path, sink.limit_bytes)
    document = Document(source.content.decode("utf-8-sig", "replace"), path.name)
    lanes = _Lanes()
    for event in document:  # a Python loop over the events, 5 us each
        if not lanes.add(event):
            counts["events"] += 1
            counts["skipped_flow"] += 1
    counts["truncated_files"] += bool(source.truncated or document.counts["truncated_files"])
    for name in ("dropped_broken", "repaired_nan", "repaired_escape"):
        counts[name] += document.counts[name]
    counts["events"] += document.counts["dropped_broken"]
    called, launched = _correlations(lanes)
    for process, events in sorted(lanes.events.items(), key=lambda item: str(item[0])):
        table = lanes.table(process)
        if table == "HIP":
            index = np.arange(len(events)) + called.get(process, 0)
        else:
            index = np.array([launched.get(place, int(MISSING)) for place in lanes.places[process]], np.int64)
        yield table, _block(events, index)


def _block(events: list[Event], index: Any) -> Block:
    columns: dict[str, Any] = {name: text_list(plain_text(e.get(name)) for e in events) for name in _TEXTS}
    for name in _NUMBERS:
        found = (whole(event.get(name)) for event in events)
        columns[name] = np.array([MISSING if number is None else number for number in found], np.int64)
    return Block({**columns, "Index": index})


def _correlations(lanes: _Lanes) -> tuple[dict[int | None, int], dict[Place, int]]:
    """Return the number of the first call of each process, and the number of the call that an operation is of.

    An arrow begins inside its call, in whole microseconds: it is of the call of its thread that began last.
    """
    firsts: dict[int | None, int] = {}
    threads: dict[tuple[int | None, int | None], list[tuple[int, int, int, int]]] = {}
    number = 0
    for process, events in sorted(lanes.events.items(), key=lambda item: str(item[0])):
        if lanes.table(process) != "HIP":
            continue
        firsts[process] = number
        for event, (_, thread, at) in zip(events, lanes.places[process], strict=True):
            begin, end = whole(event.get("BeginNs")), whole(event.get("EndNs"))
            if at is not None and begin is not None and end is not None:
                threads.setdefault((process, thread), []).append((at, begin, -end, number))
            number += 1
    return firsts, _launched(lanes, {thread: sorted(calls) for thread, calls in threads.items()})


def _launched(lanes: _Lanes, calls: Mapping[Any, list[tuple[int, int, int, int]]]) -> dict[Place, int]:
    """Return the number of the call of every operation that an arrow leads to."""
    starts = {thread: [call[0] for call in own] for thread, own in calls.items()}
    launched: dict[Place, int] = {}
    for arrow, (process, thread, at) in lanes.tails.items():
        if at is None or arrow not in lanes.heads or (process, thread) not in calls:
            continue
        row = bisect_right(starts[process, thread], at) - 1
        if row >= 0:
            began, begin, end, number = calls[process, thread][row]
            if at <= began + (-end - begin) // 1000 + 1:
                launched[lanes.heads[arrow]] = number
    return launched


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

        A CSV file with counters is rocprof's too; `profilers.readers.rocprof_compute` takes those.
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
