"""`NsysReader` and `NsysTablesReader`: exports of Nsight Systems, as a SQLite file or as a folder of tables.

`_SOURCES` lists the tables of events: for each, the columns read and the function that converts rows to events. Calls
are read before the device work that they caused.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from profilers.errors import BrokenFileError
from profilers.files import is_folder, shipped_table
from profilers.readers.common.database import open_database
from profilers.readers.common.reader import Head, Sink
from profilers.readers.common.recording import Output, Recording, Tables, write_annotations
from profilers.readers.common.source import prefetch, require_events
from profilers.readers.nsys import rows
from profilers.readers.nsys.tables import SUFFIXES, TableFolder, clock_base_ns, devices_of, read_ranks, version
from profilers.trace.trace import TraceMeta

#: Names of tables that only Nsight Systems writes.
_SIGNS = re.compile(r"CUPTI_ACTIVITY_KIND_\w+|NVTX_EVENTS(_V\d+)?|TARGET_INFO_\w+|META_DATA_EXPORT|EXPORT_META_DATA")


class _Source(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
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
    tables: dict[str, _Source]


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
    counts, recording = out.counts, Recording(tables, out.counts)
    for table in order:
        counts["missing_columns"] += _missing(recording, table, sources[table])
    ranks, used = read_ranks(recording, [table for table in order if sources[table].kind in _DEVICE_KINDS])
    context = rows.Context(recording.strings("StringIds", ("id", "value")), ranks)
    for table in order:
        source = sources[table]
        convert, names = rows.CONVERSIONS[source.rows], tuple(dict.fromkeys((*source.columns, *source.args)))
        # A damaged table gives the rows before the damage.
        for block in prefetch(recording.blocks(table, names), 1):
            events = rows.intervals(block, out) if source.rows == "ranges" else block
            batch = rows.Batch(events.columns, context)
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


def _missing(tables: Recording, table: str, source: _Source) -> int:
    """Return the number of columns that every version should have and this table lacks."""
    absent = set(source.columns) - set(tables.tables[table])
    if required := [name for name in _TIMES if name in absent]:
        raise BrokenFileError(
            f"{tables.path}: table {table} has no column {' and '.join(required)}; export the report again"
        )
    return len(absent - _FORMAT.optional)
