"""`NsysReader` and `NsysTablesReader`: exports of Nsight Systems, as a SQLite file or as a folder of tables.

`CONVERSIONS` has one function for each kind of table, which takes what it needs from the rows of a `Batch`; CUPTI's
numbers become the words that Kineto uses. `_SOURCES` lists the tables of events: for each, the columns read and its
conversion. Calls are read before the device work that they caused.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profilers.errors import BrokenFileError
from profilers.files import is_folder, shipped_table
from profilers.readers.common.database import open_database
from profilers.readers.common.numbers import INT32_LIMIT, workgroups
from profilers.readers.common.reader import Head, Sink
from profilers.readers.common.recording import (
    Output,
    Ranks,
    RecordedTables,
    RowBlock,
    Strings,
    Tables,
    write_annotations,
)
from profilers.readers.common.source import prefetch, require_events
from profilers.readers.nsys.tables import (
    PID,
    SUFFIXES,
    TableFolder,
    clock_base_ns,
    devices_of,
    process_of,
    read_ranks,
    version,
)
from profilers.trace.arrays import MISSING, Ints
from profilers.trace.columns import Spelling, constant
from profilers.trace.schema import OVERHEAD
from profilers.trace.trace import TraceMeta

Columns = dict[str, Any]
#: Numbers of one row, None for null.
Row = tuple[int | None, ...]

#: CUPTI's number for no stream and no event.
_NONE = (1 << 32) - 1
#: Version of the interface in names such as ``cudaLaunchKernel_v7000``, which other profilers leave out.
_VERSION = re.compile(r"_v\d{4,}$")
#: Kineto's words by CUPTI's numbers.
_DIRECTIONS = {
    **{1: "HtoD", 2: "DtoH", 3: "HtoA", 4: "AtoH", 5: "AtoA", 6: "AtoD", 7: "DtoA", 8: "DtoD", 9: "HtoH", 10: "PtoP"},
    **{11: "HtoD", 12: "DtoH", 13: "DtoD"},
}
_MEMORIES = {0: "Pageable", 1: "Pinned", 2: "Device", 3: "Array", 4: "Managed", 5: "Device Static", 6: "Managed Static"}
_SYNCS = {1: "Event Sync", 2: "Stream Wait Event", 3: "Stream Sync", 4: "Context Sync"}
_DRIVER_CLASSES = (1, 13)
#: Types of NVTX events that are intervals: push-pop and start-end, of the plain and of the extended interface.
_INTERVALS = (59, 60, 70, 71)


@dataclass(frozen=True)
class Context:
    """State of an export that the conversion of every table needs.

    Parameters
    ----------
    strings : Strings
        Texts by number.
    ranks : Ranks
        Ranks of processes.
    spellings : dict of hashable to Spelling
        Texts made so far, by the function or the names that they were made with.
    """

    strings: Strings
    ranks: Ranks
    spellings: dict[Any, Spelling] = field(default_factory=dict)


@dataclass(frozen=True)
class Batch(RowBlock):
    """Rows of one table of events.

    Parameters
    ----------
    context : Context
        State of the export.
    """

    context: Context

    def named(self, name: str, change: Callable[[str], str] | None = None) -> pa.DictionaryArray:
        """Return the texts that a column names, each distinct one changed if `change` is given."""
        return self.context.strings.encode(self.columns[name], change)

    def spelled(self, spell: Callable[[Row], str], *names: str) -> pa.DictionaryArray:
        """Return the text that `spell` makes of each row of some columns."""
        spelling = self.context.spellings.setdefault(spell, Spelling(spell))
        return spelling.encode([self.ints(name) for name in names])

    def args(self, names: Sequence[str], columns: Sequence[Ints] | None = None) -> pa.DictionaryArray:
        """Return the named columns as a JSON object, or `columns` in their place."""
        spelling = self.context.spellings.setdefault(names, Spelling(partial(_members, names)))
        return spelling.encode([self.ints(name) for name in names] if columns is None else columns)

    def host(self) -> Columns:
        """Return the columns that all events of the host share."""
        thread = self.ints("globalTid")
        process = process_of(thread)
        return {
            **self._times(process),
            "process": np.where(process == MISSING, MISSING, process & PID),
            "thread": np.where(thread == MISSING, MISSING, thread & PID),
        }

    def device(self) -> Columns:
        """Return the columns that all events of devices share."""
        return {
            **self._times(process_of(self.ints("globalPid"))),
            "device": self.narrow("deviceId"),
            "stream": self.ints("streamId"),
            "correlation": self.ints("correlationId"),
        }

    def _times(self, process: Ints) -> Columns:
        return {"rank": self.context.ranks.of(process), "start_ns": self.ints("start")}


def _members(names: Sequence[str], row: Row) -> str | None:
    """Return a row as a JSON object, grid and block as lists, without nulls; None if all are null."""
    members: dict[str, Any] = {}
    for name, value in zip(names, row, strict=True):
        if value is not None and name[:-1] in ("grid", "block"):
            members.setdefault(name[:-1], []).append(value)
        elif value is not None:
            members[name] = value
    return json.dumps(members, separators=(",", ":")) if members else None


def intervals(block: RowBlock, out: Output) -> RowBlock:
    """Return the rows that are intervals; NVTX events of any other type are counted."""
    kind = block.ints("eventType")
    interval = (np.isin(kind, _INTERVALS) | (kind == MISSING)) & (block.ints("end") != MISSING)
    out.skip(int((~interval).sum()), "skipped_marker")
    return block if interval.all() else block.take(np.flatnonzero(interval))


def _first(*names: pa.DictionaryArray) -> pa.Array:
    """Return the first name of each row that is not null, the best first."""
    return pc.coalesce(*(choice.cast(pa.string()) for choice in names))


def kernels(batch: Batch) -> Columns:
    """Return columns of ``kernels``."""
    names = batch.named("demangledName")
    if names.null_count:
        names = _first(names, batch.named("shortName"), batch.named("mangledName"))
    grid, block = ([batch.ints(f"{extent}{axis}") for axis in "XYZ"] for extent in ("grid", "block"))
    groups, size = workgroups(grid, block, np.zeros(batch.rows, dtype=bool))
    static, dynamic = batch.ints("staticSharedMemory"), batch.ints("dynamicSharedMemory")
    fits = (static >= 0) & (dynamic >= 0) & (static < INT32_LIMIT) & (dynamic < INT32_LIMIT)
    return {
        **batch.device(),
        "name": names,
        "workgroups": groups,
        "workgroup_size": size,
        "registers": batch.narrow("registersPerThread"),
        "lds_bytes": np.where(fits, static + dynamic, MISSING),
        "graph_node": batch.ints("graphNodeId"),
    }


def graphs(batch: Batch) -> Columns:
    """Return columns of ``kernels`` from launches of CUDA graphs, each graph as one kernel.

    With ``--cuda-graph-trace=graph``, its default, the profiler records nothing else of the work of a graph.
    """
    return {**batch.device(), "name": batch.spelled(_graph_name, "graphId")}


def _graph_name(row: Row) -> str:
    return "CUDA graph" if row[0] is None else f"CUDA graph {row[0]}"


def copies(batch: Batch) -> Columns:
    """Return columns of ``copies`` from memory copies."""
    return {
        **batch.device(),
        "name": batch.spelled(_copy_name, "copyKind", "srcKind", "dstKind"),
        "direction": batch.spelled(_direction, "copyKind"),
        "bytes": batch.ints("bytes"),
    }


def _direction(row: Row) -> str:
    return _DIRECTIONS.get(row[0] or 0, "unknown")


def _copy_name(row: Row) -> str:
    name, source, target = f"Memcpy {_direction(row)}", *row[1:]
    return name if source is None or target is None else f"{name} ({_memory(source)} -> {_memory(target)})"


def _memory(kind: int | None) -> str:
    return _MEMORIES.get(-1 if kind is None else kind, "Unknown")


def fills(batch: Batch) -> Columns:
    """Return columns of ``copies`` from memory fills."""
    return {
        **batch.device(),
        "name": batch.spelled(_fill_name, "memKind"),
        "direction": constant("memset", batch.rows),
        "bytes": batch.ints("bytes"),
    }


def _fill_name(row: Row) -> str:
    return f"Memset ({_memory(row[0])})"


def syncs(batch: Batch) -> Columns:
    """Return columns of ``syncs``."""
    kind, stream, event = batch.spelled(_sync, "syncType"), batch.ints("streamId"), batch.ints("eventId")
    return {
        **batch.device(),
        "name": kind,
        "sync": kind,
        "stream": np.where(stream == _NONE, MISSING, stream),
        "event": np.where(event == _NONE, MISSING, event),
    }


def _sync(row: Row) -> str:
    return _SYNCS.get(row[0] or 0, "Unknown Sync")


def launches(batch: Batch) -> Columns:
    """Return columns of ``launches`` from calls of the runtime and of the driver."""
    process, ranks = process_of(batch.ints("globalTid")), batch.context.ranks
    # A call launches device work if its process did some, or if it is unknown which processes did.
    launched = np.isin(process, ranks.processes) | (process == MISSING) | (not len(ranks.processes))
    returned = batch.ints("returnValue")  # 0 if the call succeeds
    return {
        **batch.host(),
        "name": batch.named("nameId", partial(_VERSION.sub, "")),
        "api": batch.spelled(_api, "eventClass"),
        "correlation": np.where(launched, batch.ints("correlationId"), MISSING),
        "args": batch.args(("returnValue",), [np.where(returned == 0, MISSING, returned)]),
    }


def _api(row: Row) -> str:
    return "cuda_driver" if row[0] in _DRIVER_CLASSES else "cuda_runtime"


def ranges(batch: Batch) -> Columns:
    """Return columns of ``ranges`` from NVTX events."""
    names, text = [batch.named("textId")], batch.columns["text"]
    if not isinstance(text, np.ndarray):
        names.insert(0, text.cast(pa.string()).dictionary_encode())
    return {
        **batch.host(),
        "name": _first(*names),
        "category": constant("user_annotation", batch.rows),
    }


def overheads(batch: Batch) -> Columns:
    """Return columns of ``ranges`` from overheads of the profiler and waits of the driver."""
    return {**batch.host(), "name": batch.named("nameId"), "category": constant(OVERHEAD, batch.rows)}


#: Functions that convert a table of events, by name.
CONVERSIONS: Mapping[str, Callable[[Batch], Columns]] = {
    convert.__name__: convert for convert in (launches, kernels, graphs, copies, fills, syncs, ranges, overheads)
}


#: Names of tables that only Nsight Systems writes.
_SIGNS = re.compile(r"CUPTI_ACTIVITY_KIND_\w+|NVTX_EVENTS(_V\d+)?|TARGET_INFO_\w+|META_DATA_EXPORT|EXPORT_META_DATA")


class _EventTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A table of events and how its rows are read.

    Parameters
    ----------
    kind : str
        Kind of event that the rows become.
    rows : str
        Name of the function that converts a batch of rows to columns of the schema.
    columns : tuple of str
        Columns that it reads.
    args : tuple of str
        Columns that become the arguments of an event.
    """

    kind: str
    rows: str
    columns: tuple[str, ...]
    args: tuple[str, ...] = ()


class _NsysFormat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Content of `datasets/formats/nsys.toml`."""

    optional: frozenset[str]
    tables: dict[str, _EventTable]


_FORMAT = shipped_table("formats/nsys.toml", "tables of Nsight Systems", _NsysFormat)
_SOURCES = _FORMAT.tables
_TIMES = ("start", "end")
_DEVICE_KINDS = ("kernels", "copies")


class NsysReader:
    """Reads the SQLite files that ``nsys export --type sqlite`` and ``nsys stats`` write."""

    name = "nsys"

    def sniff(self, head: Head) -> bool:
        """Return whether a file is a database with tables of Nsight Systems."""
        return any(_SIGNS.fullmatch(table) for table in head.tables)

    def read(self, files: Sequence[Path], sink: Sink) -> TraceMeta:
        """Give the events of one file to `sink`.

        Raises
        ------
        BrokenFileError
            The export holds no event that can be used, or a table lacks its times.
        """
        with open_database(files[0], sink.limit_bytes) as database:
            return _read(database, sink, self.name)


class NsysTablesReader:
    """Reads the folders that ``nsys export --type parquetdir`` and ``--type arrowdir`` write."""

    name = "nsys_tables"

    def sniff(self, head: Head) -> bool:
        """Return whether a folder holds files named like tables of Nsight Systems."""
        if not is_folder(head.path):
            return False
        try:
            return any(f.suffix in SUFFIXES and _SIGNS.fullmatch(f.stem) is not None for f in head.path.iterdir())
        except OSError:
            return False

    def read(self, files: Sequence[Path], sink: Sink) -> TraceMeta:
        """Give the events of one folder to `sink`.

        Raises
        ------
        BrokenFileError
            The export holds no event that can be used, or a table lacks its times.
        """
        return _read(TableFolder(files[0], sink.limit_bytes), sink, self.name)


def _read(tables: Tables, sink: Sink, name: str) -> TraceMeta:
    sources = {table: source for table in tables.tables if (source := _SOURCES.get(_unversioned(table))) is not None}
    order = sorted(sources, key=lambda table: (list(_SOURCES).index(_unversioned(table)), table))
    out = Output(name, [tables.path], sink)
    counts, recording = out.counts, RecordedTables(tables, out.counts)
    for table in order:
        counts["missing_columns"] += _missing(recording, table, sources[table])
    ranks, used = read_ranks(recording, [table for table in order if sources[table].kind in _DEVICE_KINDS])
    context = Context(recording.strings("StringIds", ("id", "value")), ranks)
    for table in order:
        source = sources[table]
        convert, names = CONVERSIONS[source.rows], tuple(dict.fromkeys((*source.columns, *source.args)))
        # A damaged table gives the rows before the damage.
        for block in prefetch(recording.blocks(table, names), 1):
            events = intervals(block, out) if source.rows == "ranges" else block
            batch = Batch(events.columns, context)
            arguments = {"args": batch.args(source.args)} if source.args else {}
            columns, end = {**convert(batch), **arguments}, batch.ints("end")
            if source.rows == "ranges":
                write_annotations(out, columns, end)
            else:
                out.write(source.kind, columns, end)
    if_empty, advice = "its tables of events are damaged from their start", "export it again"
    if not counts["damaged_tables"] and not counts["events"]:
        if_empty = f"no event to read ({', '.join(order) or 'there is no such table'})"
        advice = "was CUDA or NVTX traced (nsys profile --trace=cuda,nvtx)?"
    require_events(tables.path, counts, if_empty=if_empty, advice=advice, rows="events")
    devices = devices_of(recording, ranks, used)
    meta = out.meta(version(recording), ranks=ranks.numbers, devices=devices)
    return replace(meta, clock_base_ns=clock_base_ns(recording))


def _unversioned(table: str) -> str:
    """Return the name of a table without the version that some exports append."""
    return re.sub(r"_V\d+$", "", table)


def _missing(tables: RecordedTables, table: str, source: _EventTable) -> int:
    """Return the number of columns that every version should have and this table lacks."""
    absent = set(source.columns) - set(tables.tables[table])
    if required := [name for name in _TIMES if name in absent]:
        raise BrokenFileError(
            f"{tables.path}: table {table} has no column {' and '.join(required)}; export the report again"
        )
    return len(absent - _FORMAT.optional)
