"""`RocpdReader`: databases of rocprofv3 since ROCm 7, SQLite files with the tables of each process under its GUID.

A database holds the tables of one GUID (one run of the profiler, usually one process), or of several if ``rocpd
merge`` made it. A GUID's tables end with the same suffix; `Session` reads them. Rows refer to agents, kernel symbols,
threads, processes, events and texts by number. The views over all GUIDs are not read, since SQLite would have to run
what the file says.
"""

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from profilers.errors import BrokenFileError
from profilers.readers.common.database import Database, open_database
from profilers.readers.common.json_documents import mapped
from profilers.readers.common.numbers import plain_text
from profilers.readers.common.reader import Head, Sink
from profilers.readers.common.source import require_events
from profilers.readers.rocm.records import (
    Agent,
    Agents,
    Block,
    Join,
    Strings,
    call_kind,
    check_columns,
    copy_columns,
    in_blocks,
    kernel_name,
    lanes,
    measured_rows,
    narrow,
    schema_version,
    stacked,
    text_list,
    whole_table,
    workgroups,
    write_timed,
)
from profilers.trace.arrays import MISSING, Ints
from profilers.trace.columns import constant
from profilers.trace.schema import OWN_RANK
from profilers.trace.trace import DeviceProperties, Quality, TraceMeta

_AXES = [f"{extent}_{axis}" for extent in ("grid_size", "workgroup_size") for axis in "xyz"]
_EVENT = ("id", "nid", "pid", "tid", "start", "end", "event_id")
_DISPATCH = (
    *_EVENT,
    *("agent_id", "kernel_id", "queue_id", "stream_id", "private_segment_size", "group_segment_size"),
    *("region_name_id", *_AXES),
)
_COPY = (*_EVENT, "name_id", "src_agent_id", "dst_agent_id", "size", "queue_id", "stream_id")
_VALUE = ("event_id", "pmc_id", "value")
_SYMBOL = ("id", "arch_vgpr_count", "accum_vgpr_count", "sgpr_count")
_AGENT_NAMES = ("product_name", "model_name", "name")
_AGENT = ("id", "type", "absolute_index", "extdata", *_AGENT_NAMES)


@dataclass(frozen=True)
class Ranks:
    """Ranks of the processes in a database.

    Parameters
    ----------
    processes : tuple of (int, str)
        Number of each process that used a GPU and the suffix of its tables, ordered by rank.
    """

    processes: tuple[tuple[int, str], ...]

    @property
    def numbers(self) -> tuple[int, ...]:
        """All ranks; empty for a single process."""
        return tuple(range(len(self.processes))) if len(self.processes) > 1 else ()

    def of(self, process: Ints, suffix: str) -> Ints:
        """Return the rank of each process of the tables with `suffix`, -1 for one that used no GPU."""
        rank = {number: i for i, (number, of_suffix) in enumerate(self.processes) if of_suffix == suffix}
        distinct, inverse = np.unique(process, return_inverse=True)
        return np.array([rank.get(number, -1) for number in distinct.tolist()], np.int64)[inverse]


class Session:
    """The tables of one GUID, whose rows become events.

    Parameters
    ----------
    database : Database
        The open recording.
    suffix : str
        Suffix of the names of the GUID's tables.
    ranks : Ranks
        Ranks of all processes in the database.
    counts : Counter
        Counts of kept and lost rows, updated.
    """

    def __init__(self, database: Database, suffix: str, ranks: Ranks, counts: Counter[str]) -> None:
        self._database = database
        self._suffix = suffix
        self._ranks = ranks
        self._counts = counts
        self._strings = Strings.of(database, self._table("string"), ("id", "string"), counts)
        names = ("id", "display_name", "kernel_name")
        self._names = Strings.of(database, self._table("info_kernel_symbol"), names, counts)
        self._symbols = Join(self._whole("info_kernel_symbol", _SYMBOL), "id")
        self._processes = Join(self._whole("info_process", ("id", "pid")), "id")
        self._threads = Join(self._whole("info_thread", ("id", "tid")), "id")
        self._agents = Agents(self._list_agents())
        events = self._whole("event", ("id", "category_id", "stack_id", "correlation_id"))
        self._by_stack = not _is_used(events["correlation_id"])
        self._events = Join(events, "id")
        self._categories = np.unique(events["category_id"])
        #: Event, id, start and rank of the kernels of each block, which counters are joined with.
        self._kernels: list[tuple[Ints, ...]] = []

    def _table(self, name: str) -> str:
        return f"rocpd_{name}{self._suffix}"

    def _whole(self, name: str, columns: tuple[str, ...]) -> dict[str, Ints]:
        return whole_table(self._database, self._table(name), columns, self._counts)

    def write(self, sink: Sink) -> None:
        """Give the events of all tables to `sink`."""
        for block in in_blocks(self._database, self._table("region"), (*_EVENT, "name_id"), self._counts):
            self._write_regions(block, sink)
        for block in in_blocks(self._database, self._table("kernel_dispatch"), _DISPATCH, self._counts):
            ids = write_timed(sink, "kernels", self._dispatches(block), block.ints("end"), self._counts)
            self._kernels.append((block.ints("event_id"), ids, block.ints("start"), self._rank(block)))
        for block in in_blocks(self._database, self._table("memory_copy"), _COPY, self._counts):
            write_timed(sink, "copies", self._copies(block), block.ints("end"), self._counts)
        if self._table("pmc_event") in self._database.tables:
            self._write_counters(sink)

    def devices(self) -> tuple[DeviceProperties, ...]:
        """Return the properties of the GPUs, for each rank of this session."""
        if not self._ranks.numbers:
            return self._agents.properties(OWN_RANK)
        ranks = [rank for rank, (_, suffix) in enumerate(self._ranks.processes) if suffix == self._suffix]
        return tuple(device for rank in ranks for device in self._agents.properties(rank))

    def _list_agents(self) -> list[Agent]:
        agents = []
        for block in in_blocks(self._database, self._table("info_agent"), _AGENT, self._counts):
            numbers = (block.ints(name).tolist() for name in ("id", "absolute_index"))
            texts = (block.texts(name).to_pylist() for name in ("type", "extdata", *_AGENT_NAMES))
            for key, order, kind, extdata, *names in zip(*numbers, *texts, strict=True):
                agents.append(Agent.described(key, order, kind == "GPU", names, _json_object(extdata)))
        return agents

    def _rank(self, block: Block) -> Ints:
        """Return the rank of each row; a process without device work belongs to the first rank."""
        if not self._ranks.numbers:
            return np.full(block.rows, OWN_RANK)
        return np.maximum(self._ranks.of(block.ints("pid"), self._suffix), 0)

    def _correlation(self, block: Block) -> Ints:
        """Return the number that a call shares with its device work.

        rocprofv3 has left correlation ids 0 so far, and gives a call and its work the same stack id.
        """
        return self._events("stack_id" if self._by_stack else "correlation_id", block.ints("event_id"))

    def _rank_and_start(self, block: Block) -> dict[str, Any]:
        return {"rank": self._rank(block), "start_ns": block.ints("start")}

    def _lanes(self, block: Block) -> dict[str, Ints]:
        return lanes(block.ints("stream_id"), block.ints("queue_id"), self._correlation(block))

    def _dispatches(self, block: Block) -> dict[str, Any]:
        kernel = block.ints("kernel_id")
        extents = [block.ints(name) for name in _AXES]
        groups, sizes = workgroups(extents[:3], extents[3:])
        symbol_names = self._names.encode(kernel, kernel_name).cast(pa.string())
        region_names = self._strings.encode(block.ints("region_name_id")).cast(pa.string())
        rest = {name: block.ints(name) for name in (*_AXES, "private_segment_size")}
        rest |= {name: self._symbols(name, kernel) for name in ("accum_vgpr_count", "sgpr_count")}
        return {
            **self._rank_and_start(block),
            **self._lanes(block),
            "name": pa.compute.coalesce(symbol_names, region_names),
            "device": self._agents.devices(block.ints("agent_id")),
            "workgroups": groups,
            "workgroup_size": sizes,
            "registers": narrow(self._symbols("arch_vgpr_count", kernel)),
            "lds_bytes": block.ints("group_segment_size"),
            "args": Block(rest).arguments(tuple(rest)),
        }

    def _copies(self, block: Block) -> dict[str, Any]:
        words = self._strings.encode(block.ints("name_id")).cast(pa.string())
        columns = copy_columns(words, block.ints("src_agent_id"), block.ints("dst_agent_id"), self._agents)
        return {**self._rank_and_start(block), **columns, **self._lanes(block), "bytes": block.ints("size")}

    def _write_regions(self, block: Block, sink: Sink) -> None:
        """Give calls and annotations to `sink`, one category of events after the other."""
        categories = self._events("category_id", block.ints("event_id"))
        for number in np.unique(categories).tolist():
            regions = block.take(np.flatnonzero(categories == number))
            kind, category = call_kind(self._domain(number))
            process = regions.ints("pid")
            columns = {
                **self._rank_and_start(regions),
                "name": self._region_names(regions, category),
                "process": _or_else(self._processes("pid", process), process),
                "thread": _or_else(self._threads("tid", regions.ints("tid")), regions.ints("tid")),
                "api" if kind == "launches" else "category": constant(category, regions.rows),
            }
            if kind == "launches":
                used_gpu = self._ranks.of(process, self._suffix) >= 0
                columns["correlation"] = np.where(used_gpu, self._correlation(regions), MISSING)
            write_timed(sink, kind, columns, regions.ints("end"), self._counts)

    def _region_names(self, block: Block, category: str) -> pa.Array:
        """Return the names of regions; the name of a marker is the message of its event."""
        names = self._strings.encode(block.ints("name_id")).cast(pa.string())
        if category != "user_annotation":
            return names
        messages = text_list(self._messages.get(event) or None for event in block.ints("event_id").tolist())
        return pa.compute.coalesce(messages, names)

    @cached_property
    def _messages(self) -> dict[int, str]:
        """Messages of markers by event; a loop over the markers, 2 us each."""
        markers = [n for n in self._categories.tolist() if call_kind(self._domain(n))[1] == "user_annotation"]
        messages: dict[int, str] = {}
        for events in in_blocks(self._database, self._table("event"), ("id", "category_id", "extdata"), Counter()):
            marks = events.take(np.flatnonzero(np.isin(events.ints("category_id"), markers)))
            texts = (plain_text(_json_object(text).get("message")) for text in marks.texts("extdata").to_pylist())
            messages |= zip(marks.ints("id").tolist(), texts, strict=True)
        return messages

    def _domain(self, category: int) -> str:
        return self._strings.encode(np.array([category])).cast(pa.string())[0].as_py() or ""

    def _write_counters(self, sink: Sink) -> None:
        """Give the values of counters to `sink`; each names the event of its kernel."""
        names = Strings.of(self._database, self._table("info_pmc"), ("id", "name", "symbol"), self._counts)
        kernels = Join(stacked(("event", "id", "start", "rank"), self._kernels), "event")
        for block in in_blocks(self._database, self._table("pmc_event"), _VALUE, self._counts):
            values = block.reals("value")
            rows = measured_rows(values, self._counts)
            counters = block.take(rows)
            event = counters.ints("event_id")
            columns = {
                "rank": kernels("rank", event),
                "name": names.encode(counters.ints("pmc_id")),
                "start_ns": kernels("start", event),
                "value": values.take(pa.array(rows)),
                "kernel_id": kernels("id", event),
            }
            write_timed(sink, "counters", columns, kernels("start", event), self._counts)


def _is_used(numbers: Ints) -> bool:
    """Return whether most rows have a correlation id; rocprofv3 has left them 0 so far."""
    return 2 * int(((numbers != 0) & (numbers != MISSING)).sum()) > len(numbers)


def _or_else(values: Ints, default: Ints) -> Ints:
    return np.where(values == MISSING, default, values)


def _json_object(text: str | None) -> dict[str, Any]:
    """Return a JSON object, an empty one if the text is none."""
    try:
        return mapped(json.loads(text or "{}"))
    except (ValueError, RecursionError):
        return {}


#: Tables of events, each with the columns without which it gives no event.
_REQUIRED = {
    "rocpd_kernel_dispatch": ("id", "start", "end", "kernel_id"),
    "rocpd_memory_copy": ("id", "start", "end"),
    "rocpd_region": ("id", "start", "end", "name_id"),
}
_DEVICE_TABLES = ("rocpd_kernel_dispatch", "rocpd_memory_copy")
_TABLE = re.compile(rf"({'|'.join(_REQUIRED)})(|_[0-9A-Za-z_]+)")


class RocpdReader:
    """Databases of rocprofv3 since ROCm 7, single or merged by ``rocpd merge``."""

    name = "rocpd"

    def sniff(self, head: Head) -> bool:
        """Return whether a database has the tables of rocpd 3; those of RPD share only their prefix."""
        return any(_TABLE.fullmatch(table) for table in head.tables) and "rocpd_op" not in head.tables

    def read(self, files: Sequence[Path], sink: Sink) -> TraceMeta:
        """Give the events of one file to `sink`; each process in it that used a GPU is a rank.

        Raises
        ------
        BrokenFileError
            A table lacks a column that events need, or no event can be used.
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
            versions = (schema_version(database, f"rocpd_metadata{suffix}") for suffix in suffixes)
            version = next((f"rocpd schema {text}" for text in versions if text), "rocpd")
        require_events(path, counts)
        return TraceMeta(
            self.name, version, (path.name,), ranks=ranks.numbers, devices=tuple(devices), quality=Quality(counts)
        )


def _suffixes(path: Path, database: Database) -> list[str]:
    """Return the suffixes of the tables of each GUID, and check that these tables can be read."""
    suffixes = set()
    for table in database.tables:
        if match := _TABLE.fullmatch(table):
            check_columns(path, table, database.tables[table], _REQUIRED[match[1]])
            suffixes.add(match[2])
    if not suffixes:
        raise BrokenFileError(f"{path}: has no table rocpd_kernel_dispatch or rocpd_region; is it from rocprofv3?")
    return sorted(suffixes)


def _ranks(database: Database, suffixes: Sequence[str]) -> Ranks:
    """Return the ranks of all processes that used a GPU; the tables of device work are read twice, first for this."""
    processes: set[tuple[int, str]] = set()
    for suffix in suffixes:
        for table in _DEVICE_TABLES:
            for block in in_blocks(database, table + suffix, ("pid",), Counter()):
                processes |= {(process, suffix) for process in np.unique(block.ints("pid")).tolist()}
    return Ranks(tuple(sorted(processes)))
