"""Readers of trace files, one format a module, behind the entry points `seqpoint.readers`.

Read `common.reader` first (`Reader`, `Head`, `Sink`), then a small reader: `plain_csv`. A reader of another package
needs the names that are exported here, and `Quality` and `TraceMeta` of `profilers.trace`; docs/extending.md shows one.
"""

from profilers.readers.common.csv_rows import Batches, check_not_empty, csv_rows
from profilers.readers.common.numbers import exact_ns
from profilers.readers.common.reader import GroupReader, Head, Reader, Sink, find_reader, readers
from profilers.readers.common.source import open_source

__all__ = [
    "Batches",
    "GroupReader",
    "Head",
    "Reader",
    "Sink",
    "check_not_empty",
    "csv_rows",
    "exact_ns",
    "find_reader",
    "open_source",
    "readers",
]
