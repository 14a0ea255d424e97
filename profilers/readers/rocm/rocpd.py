"""`RocpdReader`: databases of rocprofv3 since ROCm 7, SQLite files with the tables of each process under its GUID.

A database holds the tables of one GUID (one run of the profiler, usually one process), or of several if ``rocpd
merge`` made it. A GUID's tables end with the same suffix; `Session` reads them. Rows refer to agents, kernel symbols,
threads, processes, events and texts by number. The views over all GUIDs are not read, since SQLite would have to run
what the file says.
"""

import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from profilers.errors import BrokenFileError
from profilers.files import shipped_table
from profilers.readers.common.database import open_database
from profilers.readers.common.json_documents import json_object
from profilers.readers.common.numbers import narrow, plain_text, workgroups
from profilers.readers.common.reader import Head, Sink
from profilers.readers.common.recording import Join, Output, Ranks, RecordedTables, RowBlock, text_list
from profilers.readers.rocm import conversion
from profilers.readers.rocm.conversion import Agents, Gpu, gpu_properties, lanes, write_calls
from profilers.trace.arrays import MISSING, Ints
from profilers.trace.schema import OWN_RANK
from profilers.trace.trace import DeviceProperties, TraceMeta

_FORMAT = shipped_table("formats/rocpd.toml", "tables of rocpd", conversion.TableFormat)
_AXES = [f"{extent}_{axis}" for extent in ("grid_size", "workgroup_size") for axis in "xyz"]
_AGENT_NAMES = ("product_name", "model_name", "name")


class Session:
    """The tables of one GUID, whose rows become events.

    Parameters
    ----------
    recording : RecordedTables
        The tables of the file.
    suffix : str
        Suffix of the names of the GUID's tables.
    ranks : Ranks
        Ranks of the GUID's processes.
    out : Output
        Takes the events.
    """

    def __init__(self, recording: RecordedTables, suffix: str, ranks: Ranks, out: Output) -> None:
        self._recording = recording
        self._suffix = suffix
        self._ranks = ranks
        self._out = out
        self._strings = recording.strings(self._table("string"))
        self._symbol_names = recording.strings(self._table("info_kernel_symbol"), ("id", "display_name", "kernel_name"))
        self._symbols = self._join("info_kernel_symbol")
        self._processes = self._join("info_process")
        self._threads = self._join("info_thread")
        self.agents = Agents(self._gpus())
        self._events = self._join("event")
        correlation = self._events.column("correlation_id")
        # rocprofv3 has left correlation ids 0 so far, and gives a call and its work the same stack id.
        is_used = 2 * int(((correlation != 0) & (correlation != MISSING)).sum()) > len(correlation)
        self._correlation_id = "correlation_id" if is_used else "stack_id"
        #: Event, id, start and rank of the kernels of each block, which counters are joined with.
        self._kernels: list[tuple[Ints, ...]] = []

    def _table(self, name: str) -> str:
        return f"rocpd_{name}{self._suffix}"

    def _blocks(self, name: str) -> Iterator[RowBlock]:
        return self._recording.blocks(self._table(name), _FORMAT.columns[name])

    def _join(self, name: str) -> Join:
        return self._recording.join(self._table(name), _FORMAT.columns[name])

    def write(self) -> None:
        """Write the events of all tables."""
        for block in self._blocks("region"):
            self._write_regions(block)
        for block in self._blocks("kernel_dispatch"):
            ids = self._out.write("kernels", self._dispatches(block), block.ints("end"))
            self._kernels.append((block.ints("event_id"), ids, block.ints("start"), self._rank(block)))
        for block in self._blocks("memory_copy"):
            self._out.write("copies", self._copies(block), block.ints("end"))
        self._write_counters()

    def _gpus(self) -> Iterator[Gpu]:
        for block in self._blocks("info_agent"):
            numbers = (block.ints(name).tolist() for name in ("absolute_index", "id"))
            texts = (block.texts(name).to_pylist() for name in ("type", "extdata", *_AGENT_NAMES))
            for order, key, kind, extdata, *names in zip(*numbers, *texts, strict=True):
                if kind == "GPU":
                    yield order, key, gpu_properties(names, json_object(extdata))

    def _rank(self, block: RowBlock) -> Ints:
        return self._ranks.of(block.ints("pid"))

    def _correlation(self, block: RowBlock) -> Ints:
        """Return the number that a call shares with its device work."""
        return self._events(self._correlation_id, block.ints("event_id"))

    def _rank_and_start(self, block: RowBlock) -> dict[str, Any]:
        return {"rank": self._rank(block), "start_ns": block.ints("start")}

    def _lanes(self, block: RowBlock) -> dict[str, Ints]:
        return lanes(block.ints("stream_id"), block.ints("queue_id"), self._correlation(block))

    def _dispatches(self, block: RowBlock) -> dict[str, Any]:
        kernel = block.ints("kernel_id")
        extents = [block.ints(name) for name in _AXES]
        groups, sizes = workgroups(extents[:3], extents[3:])
        symbol_names = self._symbol_names.texts(kernel, conversion.kernel_name)
        region_names = self._strings.texts(block.ints("region_name_id"))
        rest = {name: block.ints(name) for name in (*_AXES, "private_segment_size")}
        rest |= {name: self._symbols(name, kernel) for name in ("accum_vgpr_count", "sgpr_count")}
        return {
            **self._rank_and_start(block),
            **self._lanes(block),
            "name": pa.compute.coalesce(symbol_names, region_names),
            "device": self.agents.devices(block.ints("agent_id")),
            "workgroups": groups,
            "workgroup_size": sizes,
            "registers": narrow(self._symbols("arch_vgpr_count", kernel)),
            "lds_bytes": block.ints("group_segment_size"),
            "args": RowBlock(rest).arguments(tuple(rest)),
        }

    def _copies(self, block: RowBlock) -> dict[str, Any]:
        words = self._strings.texts(block.ints("name_id"))
        columns = self.agents.copies(words, block.ints("src_agent_id"), block.ints("dst_agent_id"))
        return {**self._rank_and_start(block), **columns, **self._lanes(block), "bytes": block.ints("size")}

    def _write_regions(self, block: RowBlock) -> None:
        """Write calls and annotations, one category of events after the other."""
        categories = self._events("category_id", block.ints("event_id"))
        for number in np.unique(categories).tolist():
            regions = block.take(np.flatnonzero(categories == number))
            process, thread = regions.ints("pid"), regions.ints("tid")
            system_process, system_thread = self._processes("pid", process), self._threads("tid", thread)
            columns = {
                **self._rank_and_start(regions),
                "name": self._region_names(regions, self._domain(number)),
                "process": np.where(system_process == MISSING, process, system_process),
                "thread": np.where(system_thread == MISSING, thread, system_thread),
                "correlation": np.where(np.isin(process, self._ranks.processes), self._correlation(regions), MISSING),
            }
            write_calls(self._out, self._domain(number), columns, regions.ints("end"))

    def _region_names(self, block: RowBlock, domain: str) -> pa.Array:
        """Return the names of regions; the name of a marker is the message of its event."""
        names = self._strings.texts(block.ints("name_id"))
        if conversion.call_kind(domain)[1] != "user_annotation":
            return names
        messages = text_list(self._messages.get(event) or None for event in block.ints("event_id").tolist())
        return pa.compute.coalesce(messages, names)

    @cached_property
    def _messages(self) -> dict[int, str]:
        """Messages of markers by event; a loop over the markers, 2 us each."""
        categories = np.unique(self._events.column("category_id")).tolist()
        markers = [n for n in categories if conversion.call_kind(self._domain(n))[1] == "user_annotation"]
        messages: dict[int, str] = {}
        for events in self._recording.uncounted().blocks(self._table("event"), ("id", "category_id", "extdata")):
            marks = events.take(np.flatnonzero(np.isin(events.ints("category_id"), markers)))
            texts = (plain_text(json_object(text).get("message")) for text in marks.texts("extdata").to_pylist())
            messages |= zip(marks.ints("id").tolist(), texts, strict=True)
        return messages

    def _domain(self, category: int) -> str:
        return self._strings.texts(np.array([category]))[0].as_py() or ""

    def _write_counters(self) -> None:
        """Write the values of counters; each names the event of its kernel."""
        names = self._recording.strings(self._table("info_pmc"), ("id", "name", "symbol"))
        kernels = Join(("event", "id", "start", "rank"), self._kernels)
        for block in self._blocks("pmc_event"):
            counters = self._out.measured(block, "value")
            event = counters.ints("event_id")
            columns = {
                "rank": kernels("rank", event),
                "name": names.encode(counters.ints("pmc_id")),
                "start_ns": kernels("start", event),
                "value": counters.columns["value"],
                "kernel_id": kernels("id", event),
            }
            self._out.write("counters", columns, kernels("start", event))


_DEVICE_TABLES = ("rocpd_kernel_dispatch", "rocpd_memory_copy")
_TABLE = re.compile(rf"({'|'.join(_FORMAT.required)})(|_[0-9A-Za-z_]+)")


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
        out = Output(self.name, files, sink)
        with open_database(files[0], sink.limit_bytes) as database:
            recording = RecordedTables(database, out.counts)
            suffixes = _suffixes(files[0], recording)
            processes = _processes(recording, suffixes)
            devices: list[DeviceProperties] = []
            for suffix in suffixes:
                rank_of = {number: rank for rank, (number, of_suffix) in enumerate(processes) if of_suffix == suffix}
                ranks = Ranks(rank_of, len(processes))
                session = Session(recording, suffix, ranks, out)
                session.write()
                for rank in sorted(rank_of.values()) if ranks.numbers else (OWN_RANK,):
                    devices += session.agents.properties(rank)
            versions = (recording.schema_version(f"rocpd_metadata{suffix}") for suffix in suffixes)
            version = next((f"rocpd schema {text}" for text in versions if text), "rocpd")
        return out.meta(version, ranks=tuple(range(len(processes))) if len(processes) > 1 else (), devices=devices)


def _suffixes(path: Path, recording: RecordedTables) -> list[str]:
    """Return the suffixes of the tables of each GUID, and check that these tables can be read."""
    suffixes = set()
    for table in recording.tables:
        if match := _TABLE.fullmatch(table):
            recording.check(table, _FORMAT.required[match[1]])
            suffixes.add(match[2])
    if not suffixes:
        raise BrokenFileError(f"{path}: has no table rocpd_kernel_dispatch or rocpd_region; is it from rocprofv3?")
    return sorted(suffixes)


def _processes(recording: RecordedTables, suffixes: Sequence[str]) -> list[tuple[int, str]]:
    """Return each process that used a GPU and the suffix of its tables, ordered by rank.

    The tables of device work are read twice, first for this.
    """
    processes: set[tuple[int, str]] = set()
    for suffix in suffixes:
        for table in _DEVICE_TABLES:
            for block in recording.uncounted().blocks(table + suffix, ("pid",)):
                processes |= {(process, suffix) for process in np.unique(block.ints("pid")).tolist()}
    return sorted(processes)
