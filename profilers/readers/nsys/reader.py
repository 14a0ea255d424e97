"""`NsysReader` and `NsysTablesReader`: one export of Nsight Systems to rows of the kinds of event."""

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
from profilers.readers.common.source import ahead
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

#: Arguments of a kernel that columns are made of.
_SHAPE = (
    *(f"{what}{axis}" for what in ("grid", "block") for axis in "XYZ"),
    "staticSharedMemory",
    "dynamicSharedMemory",
)
#: Tables that no other format has.
_SIGNS = re.compile(r"CUPTI_ACTIVITY_KIND_\w+|NVTX_EVENTS(_V\d+)?|TARGET_INFO_\w+|META_DATA_EXPORT|EXPORT_META_DATA")
_DEVICE = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid")


@dataclass(frozen=True)
class _Source:
    """A table of events and how its rows are read.

    Parameters
    ----------
    kind : str
        What its rows become.
    columns : tuple of str
        Those that are read.
    convert : callable
    optional : tuple of str
        Columns of `columns` that not every version has; the others are missed if they are not there.
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


#: Calls come first, then what they caused.
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
#: Without these an event has no place in time.
_MINIMUM = ("start", "end")
_GPU_WORK = ("kernels", "copies")


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
            It holds no event that can be used, or a table lacks its times.
        """
        with open_database(files[0], sink.limit_bytes) as database:
            return _read(database, sink, self.name)


class NsysTablesReader:
    """Reads the folders that ``nsys export --type parquetdir`` and ``--type arrowdir`` write."""

    name = "nsys_tables"

    def sniff(self, head: Head) -> bool:
        """Return whether a folder holds files that are named as tables of Nsight Systems."""
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
            It holds no event that can be used, or a table lacks its times.
        """
        return _read(TableFolder(files[0], sink.limit_bytes), sink, self.name)


def _read(tables: Tables, sink: Sink, name: str) -> TraceMeta:
    found = {table: source for table in tables.tables if (source := _SOURCES.get(_plain(table))) is not None}
    order = sorted(found, key=lambda table: (list(_SOURCES).index(_plain(table)), table))
    counts: Counter[str] = Counter()
    for table in order:
        counts["missing_columns"] += _missing(tables, table, found[table])
    processes = Processes.of(tables, [table for table in order if found[table].kind in _GPU_WORK])
    context = rows.Context(StringIds.of(tables, counts), processes, counts)
    for table in order:
        _read_table(tables, table, found[table], context, sink)
    _check_not_empty(tables, order, counts)
    return TraceMeta(
        format=name,
        version=version(tables),
        sources=(tables.path.name,),
        ranks=processes.ranks,
        clock_base_ns=clock_base_ns(tables),
        devices=devices(tables, processes),
        quality=Quality(counts),
    )


def _plain(table: str) -> str:
    """Return the name of a table without the version that some exports add to it."""
    return re.sub(r"_V\d+$", "", table)


def _missing(tables: Tables, table: str, source: _Source) -> int:
    """Return how many columns every version should have and this table lacks."""
    lacking = [name for name in source.columns if name not in tables.tables[table]]
    if minimum := [name for name in lacking if name in _MINIMUM]:
        raise BrokenFileError(
            f"{tables.path}: table {table} has no column {' and '.join(minimum)}; export the report again"
        )
    return len([name for name in lacking if name not in source.optional])


def _read_table(tables: Tables, table: str, source: _Source, context: rows.Context, sink: Sink) -> None:
    """Give the rows of one table to `sink`; of a damaged table, those before the damage."""
    for batch in until_damage(ahead(tables.read(table, source.columns), 1), context.counts):
        context.counts["events"] += len(batch["start"])
        context.counts["kept"] += len(sink.write(source.kind, source.convert(batch, context)))


def _check_not_empty(tables: Tables, order: Sequence[str], counts: Counter[str]) -> None:
    if counts["kept"]:
        return
    if counts["events"]:
        lost = ", ".join(f"{n} {name}" for name, n in sorted(counts.items()) if n and name not in ("events", "kept"))
        raise BrokenFileError(f"{tables.path}: none of its {counts['events']} events can be used ({lost})")
    if counts["damaged_tables"]:
        raise BrokenFileError(f"{tables.path}: its tables of events are damaged from their start; export it again")
    have = ", ".join(order) or "there is no such table"
    raise BrokenFileError(
        f"{tables.path}: no event to read ({have}); was CUDA or NVTX traced (nsys profile --trace=cuda,nvtx)?"
    )
