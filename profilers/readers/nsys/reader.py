"""`NsysReader` and `NsysTablesReader`: exports of Nsight Systems, as a SQLite file or as a folder of tables.

`_SOURCES` lists the tables of events: for each, the columns read and the function that converts rows to events. Calls
are read before the device work that they caused.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from profilers.errors import BrokenFileError
from profilers.files import is_folder
from profilers.readers.common.database import open_database
from profilers.readers.common.reader import Head, Sink
from profilers.readers.common.source import ahead, require_events
from profilers.readers.nsys import rows
from profilers.readers.nsys.tables import (
    SUFFIXES,
    Processes,
    StringIds,
    TableFolder,
    Tables,
    clock_base_ns,
    devices,
    until_damage,
    version,
)
from profilers.trace.trace import Quality, TraceMeta

#: Arguments of a kernel that columns are computed from.
_SHAPE = (
    *(f"{extent}{axis}" for extent in ("grid", "block") for axis in "XYZ"),
    "staticSharedMemory",
    "dynamicSharedMemory",
)
#: Names of tables that only Nsight Systems writes.
_SIGNS = re.compile(r"CUPTI_ACTIVITY_KIND_\w+|NVTX_EVENTS(_V\d+)?|TARGET_INFO_\w+|META_DATA_EXPORT|EXPORT_META_DATA")
_DEVICE = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid")


@dataclass(frozen=True)
class _Source:
    """A table of events and how its rows are read.

    Parameters
    ----------
    kind : str
        Kind of event that the rows become.
    columns : tuple of str
        Columns that are read.
    convert : callable
        Function from a batch of columns to columns of the schema.
    optional : tuple of str
        Columns that not every version has; any other column that is absent is counted as missing.
    """

    kind: str
    columns: tuple[str, ...]
    convert: Callable[[Mapping[str, Any], rows.Context], dict[str, Any]]
    optional: tuple[str, ...] = ()


def _timed(convert: Callable[[rows.Batch, rows.Context], dict[str, Any]]) -> Any:
    return lambda columns, context: convert(rows.timed(columns, context.counts), context)


_KERNEL = ("demangledName", "shortName", "mangledName", "registersPerThread", "graphNodeId")
_CALLS = _Source(
    "launches",
    ("start", "end", "globalTid", "correlationId", "nameId", "eventClass", "returnValue"),
    _timed(rows.launches),
    ("eventClass", "returnValue"),
)
_NVTX = ("start", "end", "eventType", "text", "textId", "globalTid", *rows.RANGE_ARGS)


def _device(kind: str, columns: Sequence[str], args: Sequence[str], convert: Any) -> _Source:
    optional = ("graphNodeId", "mangledName", *(name for name in args if name not in _SHAPE))
    return _Source(kind, tuple(dict.fromkeys((*_DEVICE, *columns, *args))), _timed(convert), optional)


#: Tables of events without the version in their names; calls come first, then the work that they caused.
_SOURCES: Mapping[str, _Source] = {
    "CUPTI_ACTIVITY_KIND_RUNTIME": _CALLS,
    "CUPTI_ACTIVITY_KIND_DRIVER": _CALLS,
    "CUPTI_ACTIVITY_KIND_KERNEL": _device("kernels", _KERNEL, rows.KERNEL_ARGS, rows.kernels),
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": _device("kernels", (), rows.GRAPH_ARGS, rows.graphs),
    "CUPTI_ACTIVITY_KIND_MEMCPY": _device(
        "copies", ("bytes", "copyKind", "srcKind", "dstKind"), rows.COPY_ARGS, rows.copies
    ),
    "CUPTI_ACTIVITY_KIND_MEMSET": _device("copies", ("bytes", "memKind"), rows.FILL_ARGS, rows.fills),
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": _device("syncs", ("syncType", "eventId"), rows.SYNC_ARGS, rows.syncs),
    "NVTX_EVENTS": _Source("ranges", _NVTX, rows.ranges, ("textId", *rows.RANGE_ARGS)),
}
#: Columns without which an event has no time.
_REQUIRED = ("start", "end")
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
    counts: Counter[str] = Counter()
    for table in order:
        counts["missing_columns"] += _missing(tables, table, sources[table])
    processes = Processes.of(tables, [table for table in order if sources[table].kind in _DEVICE_KINDS])
    context = rows.Context(StringIds.of(tables, counts), processes, counts)
    for table in order:
        _read_table(tables, table, sources[table], context, sink)
    if_empty, advice = "its tables of events are damaged from their start", "export it again"
    if not counts["damaged_tables"] and not counts["events"]:
        if_empty = f"no event to read ({', '.join(order) or 'there is no such table'})"
        advice = "was CUDA or NVTX traced (nsys profile --trace=cuda,nvtx)?"
    require_events(tables.path, counts, if_empty=if_empty, advice=advice, rows="events")
    return TraceMeta(
        format=name,
        version=version(tables),
        sources=(tables.path.name,),
        ranks=processes.ranks,
        clock_base_ns=clock_base_ns(tables),
        devices=devices(tables, processes),
        quality=Quality(counts),
    )


def _unversioned(table: str) -> str:
    """Return the name of a table without the version that some exports append."""
    return re.sub(r"_V\d+$", "", table)


def _missing(tables: Tables, table: str, source: _Source) -> int:
    """Return the number of columns that every version should have and this table lacks."""
    absent = set(source.columns) - set(tables.tables[table])
    if required := [name for name in _REQUIRED if name in absent]:
        raise BrokenFileError(
            f"{tables.path}: table {table} has no column {' and '.join(required)}; export the report again"
        )
    return len(absent - set(source.optional))


def _read_table(tables: Tables, table: str, source: _Source, context: rows.Context, sink: Sink) -> None:
    """Give the rows of one table to `sink`; a damaged table gives the rows before the damage."""
    for batch in until_damage(ahead(tables.read(table, source.columns), 1), context.counts):
        context.counts["events"] += len(batch["start"])
        context.counts["kept"] += len(sink.write(source.kind, source.convert(batch, context)))
