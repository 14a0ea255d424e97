"""The reader of rocpd databases of rocprofv3.

What one process, or several under one GUID, wrote to a rocpd database, as rows of the kinds of event.

`RocpdReader`: rocprofv3's own database, SQLite with the tables of each process under its GUID.
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
from profilers.readers.common.json_documents import ints, listed, mapped
from profilers.readers.common.numbers import plain_text
from profilers.readers.common.reader import Head, Sink
from profilers.readers.rocm.records import (
    Agent,
    Agents,
    Block,
    Join,
    Strings,
    call_kind,
    check_columns,
    check_not_empty,
    constant,
    copy_columns,
    in_blocks,
    kernel_name,
    narrow,
    skip,
    text_list,
    whole_table,
    workgroups,
    write_timed,
)
from profilers.trace.arrays import MISSING, Ints
from profilers.trace.schema import OWN_RANK
from profilers.trace.trace import DeviceProperties, Quality, TraceMeta

_AXES = [f"{what}_{axis}" for what in ("grid_size", "workgroup_size") for axis in "xyz"]
_PLACE = ("id", "nid", "pid", "tid", "start", "end", "event_id")
_DISPATCH = (
    *_PLACE,
    *("agent_id", "kernel_id", "queue_id", "stream_id", "private_segment_size", "group_segment_size"),
    *("region_name_id", *_AXES),
)
_COPY = (*_PLACE, "name_id", "src_agent_id", "dst_agent_id", "size", "queue_id", "stream_id")
_VALUE = ("event_id", "pmc_id", "value")
_SYMBOL = ("id", "arch_vgpr_count", "accum_vgpr_count", "sgpr_count")
_AGENT_NAMES = ("product_name", "model_name", "name")
_AGENT = ("id", "type", "absolute_index", "extdata", *_AGENT_NAMES)


@dataclass(frozen=True)
class Ranks:
    """Which process is which rank.

    Parameters
    ----------
    processes : tuple of (int, str)
        Number of the process and suffix of its tables, of all that used a GPU, in order.
    """

    processes: tuple[tuple[int, str], ...]

    @property
    def numbers(self) -> tuple[int, ...]:
        """All ranks, nothing for one process alone."""
        return tuple(range(len(self.processes))) if len(self.processes) > 1 else ()

    def of(self, process: Ints, suffix: str) -> Ints:
        """Return the rank of each process, -1 for one that used no GPU."""
        rank = {number: i for i, (number, own) in enumerate(self.processes) if own == suffix}
        distinct, which = np.unique(process, return_inverse=True)
        return np.array([rank.get(number, -1) for number in distinct.tolist()], np.int64)[which]


class Session:
    """The tables of one GUID.

    Parameters
    ----------
    database : Database
    suffix : str
        What the names of its tables end with.
    ranks : Ranks
    counts : Counter
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
        #: Of each kernel, for its counters.
        self._kernels: list[tuple[Ints, ...]] = []

    def _table(self, name: str) -> str:
        return f"rocpd_{name}{self._suffix}"

    def _whole(self, name: str, columns: tuple[str, ...]) -> dict[str, Ints]:
        return whole_table(self._database, self._table(name), columns, self._counts)

    def write(self, sink: Sink) -> None:
        """Give all rows to the sink."""
        for block in in_blocks(self._database, self._table("region"), (*_PLACE, "name_id"), self._counts):
            self._write_regions(block, sink)
        for block in in_blocks(self._database, self._table("kernel_dispatch"), _DISPATCH, self._counts):
            ids = write_timed(sink, "kernels", self._dispatches(block), block.ints("end"), self._counts)
            self._kernels.append((block.ints("event_id"), ids, block.ints("start"), self._rank(block)))
        for block in in_blocks(self._database, self._table("memory_copy"), _COPY, self._counts):
            write_timed(sink, "copies", self._copies(block), block.ints("end"), self._counts)
        if self._table("pmc_event") in self._database.tables:
            self._write_counters(sink)

    def devices(self) -> tuple[DeviceProperties, ...]:
        """Return what is known of the GPUs, for each rank of this session."""
        if not self._ranks.numbers:
            return self._agents.properties(OWN_RANK)
        own = [rank for rank, (_, suffix) in enumerate(self._ranks.processes) if suffix == self._suffix]
        return tuple(device for rank in own for device in self._agents.properties(rank))

    def _list_agents(self) -> list[Agent]:
        found = []
        for block in in_blocks(self._database, self._table("info_agent"), _AGENT, self._counts):
            numbers = (block.ints(name).tolist() for name in ("id", "absolute_index"))
            texts = (block.texts(name).to_pylist() for name in ("type", "extdata", *_AGENT_NAMES))
            rows = zip(*numbers, *texts, strict=True)
            found += [_agent(key, order, kind == "GPU", rest, names) for key, order, kind, rest, *names in rows]
        return found

    def _rank(self, block: Block) -> Ints:
        """Return the rank of each row; a process without work on a GPU belongs to the first."""
        if not self._ranks.numbers:
            return np.full(block.rows, OWN_RANK)
        return np.maximum(self._ranks.of(block.ints("pid"), self._suffix), 0)

    def _correlation(self, block: Block) -> Ints:
        """Return what a call and its work share: rocprofv3 gives both the same stack, and correlation ids of 0."""
        return self._events("stack_id" if self._by_stack else "correlation_id", block.ints("event_id"))

    def _placed(self, block: Block) -> dict[str, Any]:
        return {"rank": self._rank(block), "start_ns": block.ints("start")}

    def _lanes(self, block: Block) -> dict[str, Ints]:
        """Return stream, queue and correlation; a queue stands for the stream where none is named."""
        stream, queue = block.ints("stream_id"), block.ints("queue_id")
        stream = queue if (stream == MISSING).all() else stream
        return {"stream": stream, "queue": queue, "correlation": self._correlation(block)}

    def _dispatches(self, block: Block) -> dict[str, Any]:
        kernel = block.ints("kernel_id")
        extents = [block.ints(name) for name in _AXES]
        groups, sizes = workgroups(extents[:3], extents[3:])
        named = self._names.encode(kernel, kernel_name).cast(pa.string())
        other = self._strings.encode(block.ints("region_name_id")).cast(pa.string())
        rest = {name: block.ints(name) for name in (*_AXES, "private_segment_size")}
        rest |= {name: self._symbols(name, kernel) for name in ("accum_vgpr_count", "sgpr_count")}
        return {
            **self._placed(block),
            **self._lanes(block),
            "name": pa.compute.coalesce(named, other),
            "device": self._agents.devices(block.ints("agent_id")),
            "workgroups": groups,
            "workgroup_size": sizes,
            "registers": narrow(self._symbols("arch_vgpr_count", kernel)),
            "lds_bytes": block.ints("group_segment_size"),
            "args": Block(rest).arguments(tuple(rest)),
        }

    def _copies(self, block: Block) -> dict[str, Any]:
        words = self._strings.encode(block.ints("name_id")).cast(pa.string())
        ends = block.ints("src_agent_id"), block.ints("dst_agent_id")
        known = copy_columns(words, *ends, self._agents)
        return {**self._placed(block), **known, **self._lanes(block), "bytes": block.ints("size")}

    def _write_regions(self, block: Block, sink: Sink) -> None:
        """Give calls and annotations, by the category of their event."""
        categories = self._events("category_id", block.ints("event_id"))
        for number in np.unique(categories).tolist():
            own = block.take(np.flatnonzero(categories == number))
            kind, word = call_kind(self._domain(number))
            columns = {
                **self._placed(own),
                "name": self._region_names(own, word),
                "process": _or_else(self._processes("pid", own.ints("pid")), own.ints("pid")),
                "thread": _or_else(self._threads("tid", own.ints("tid")), own.ints("tid")),
                "api" if kind == "launches" else "category": constant(word, own.rows),
            }
            if kind == "launches":
                works = self._ranks.of(own.ints("pid"), self._suffix) >= 0
                columns["correlation"] = np.where(works, self._correlation(own), MISSING)
            write_timed(sink, kind, columns, own.ints("end"), self._counts)

    def _region_names(self, block: Block, word: str) -> pa.Array:
        """Return the names of regions; of a marker, the message of its event."""
        names = self._strings.encode(block.ints("name_id")).cast(pa.string())
        if word != "user_annotation":
            return names
        messages = text_list(self._messages.get(event) or None for event in block.ints("event_id").tolist())
        return pa.compute.coalesce(messages, names)

    @cached_property
    def _messages(self) -> dict[int, str]:
        """What markers say, by event; a loop over the markers, 2 us each."""
        markers = [n for n in self._categories.tolist() if call_kind(self._domain(n))[1] == "user_annotation"]
        found: dict[int, str] = {}
        for events in in_blocks(self._database, self._table("event"), ("id", "category_id", "extdata"), Counter()):
            own = events.take(np.flatnonzero(np.isin(events.ints("category_id"), markers)))
            found |= zip(own.ints("id").tolist(), map(_message, own.texts("extdata").to_pylist()), strict=True)
        return found

    def _domain(self, category: int) -> str:
        return self._strings.encode(np.array([category])).cast(pa.string())[0].as_py() or ""

    def _write_counters(self, sink: Sink) -> None:
        """Give values of counters, each of the kernel whose event it names."""
        names = Strings.of(self._database, self._table("info_pmc"), ("id", "name", "symbol"), self._counts)
        parts = [np.concatenate(p) for p in zip(*self._kernels, strict=True)] or [np.empty(0, np.int64)] * 4
        kernels = Join(dict(zip(("event", "id", "start", "rank"), parts, strict=True)), "event")
        for block in in_blocks(self._database, self._table("pmc_event"), _VALUE, self._counts):
            numbers = pa.array(map(_number, block.texts("value").to_pylist()), pa.float64())  # 0.3 us a value
            good = np.flatnonzero(numbers.is_valid().to_numpy(zero_copy_only=False))
            skip(self._counts, block.rows - len(good), "dropped_no_value")
            own = block.take(good)
            event = own.ints("event_id")
            columns = {
                "rank": kernels("rank", event),
                "name": names.encode(own.ints("pmc_id")),
                "start_ns": kernels("start", event),
                "value": numbers.take(pa.array(good)),
                "kernel_id": kernels("id", event),
            }
            write_timed(sink, "counters", columns, kernels("start", event), self._counts)


def _is_used(numbers: Ints) -> bool:
    """Return whether correlation ids are given: rocprofv3 has left them 0 so far."""
    return 2 * int(((numbers != 0) & (numbers != MISSING)).sum()) > len(numbers)


def _or_else(found: Ints, other: Ints) -> Ints:
    return np.where(found == MISSING, other, found)


def _agent(key: int, order: int, gpu: bool, rest: str | None, names: list[str | None]) -> Agent:
    try:
        more = mapped(json.loads(rest or "{}"))
    except (ValueError, RecursionError):
        more = {}
    units = int(ints([more], "cu_count")[0])
    banks = ints(listed(more.get("mem_banks")), "size_in_bytes").tolist()
    name = next((name for name in names if name), "")
    return Agent(key, order, gpu, name, units if units > 0 else None, max(banks, default=0))


def _message(extdata: str | None) -> str:
    try:
        return plain_text(mapped(json.loads(extdata or "{}")).get("message"))
    except (ValueError, RecursionError):
        return ""


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if np.isfinite(value) else None


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
