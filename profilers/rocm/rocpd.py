"""`RocpdReader`: rocprofv3's own database, SQLite with the tables of each process under its GUID."""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from profilers.database import Database, open_database
from profilers.errors import BrokenFileError
from profilers.quality import Quality
from profilers.reader import Head, Sink
from profilers.rocm.session import Ranks, Session
from profilers.rocm.tables import check_columns, in_blocks
from profilers.rocm.timed import check_not_empty
from profilers.trace import DeviceProperties, TraceMeta

__all__ = ["RocpdReader"]

#: Tables of events, each with the columns that an event needs.
_MINIMUM = {
    "rocpd_kernel_dispatch": ("id", "start", "end", "kernel_id"),
    "rocpd_memory_copy": ("id", "start", "end"),
    "rocpd_region": ("id", "start", "end", "name_id"),
}
_WORK = ("rocpd_kernel_dispatch", "rocpd_memory_copy")
_TABLE = re.compile(rf"({'|'.join(_MINIMUM)})(|_[0-9A-Za-z_]+)")


class RocpdReader:
    """Databases of rocprofv3 since ROCm 7, and those that ``rocpd merge`` makes of them."""

    name = "rocpd"

    def sniff(self, head: Head) -> bool:
        """Return whether a database has the tables of rocpd 3; RPD's share their prefix and no more."""
        return any(_TABLE.fullmatch(table) for table in head.tables) and "rocpd_op" not in head.tables

    def read(self, files: Sequence[Path], sink: Sink) -> TraceMeta:
        """Give the events of one file to `sink`; each process in it that used a GPU is a rank.

        The views over all processes are not read: SQLite would have to run what the file says.

        Raises
        ------
        BrokenFileError
            A table lacks a column of the minimum, or no event can be used.
        """
        (path,) = files
        counts: Counter[str] = Counter()
        with open_database(path, sink.limit_bytes) as database:
            suffixes = _suffixes(path, database)
            ranks = _ranks(database, suffixes)
            devices: list[DeviceProperties] = []
            for suffix in suffixes:
                session = Session(database, suffix, ranks, counts)
                session.write(sink)
                devices += session.devices()
            versions = _versions(database, suffixes)
        check_not_empty(path, counts)
        return TraceMeta(
            self.name, versions, (path.name,), ranks=ranks.numbers, devices=tuple(devices), quality=Quality(counts)
        )


def _suffixes(path: Path, database: Database) -> list[str]:
    """Return what the names of the tables of each process end with, and check that they can be read."""
    found = set()
    for table in database.tables:
        if match := _TABLE.fullmatch(table):
            check_columns(path, table, database.tables[table], _MINIMUM[match[1]])
            found.add(match[2])
    if not found:
        raise BrokenFileError(f"{path}: has no table rocpd_kernel_dispatch or rocpd_region; is it from rocprofv3?")
    return sorted(found)


def _ranks(database: Database, suffixes: Sequence[str]) -> Ranks:
    """Return the ranks of all processes that used a GPU; the tables of work are read twice, first for this."""
    pairs: set[tuple[int, str]] = set()
    for suffix in suffixes:
        for table in _WORK:
            for block in in_blocks(database, table + suffix, ("pid",), Counter()):
                pairs |= {(process, suffix) for process in np.unique(block.ints("pid")).tolist()}
    return Ranks(tuple(sorted(pairs)))


def _versions(database: Database, suffixes: Sequence[str]) -> str:
    for suffix in suffixes:
        for block in in_blocks(database, f"rocpd_metadata{suffix}", ("tag", "value"), Counter()):
            pairs = dict(zip(block.texts("tag").to_pylist(), block.texts("value").to_pylist(), strict=True))
            if pairs.get("schema_version"):
                return f"rocpd schema {pairs['schema_version']}"
    return "rocpd"
