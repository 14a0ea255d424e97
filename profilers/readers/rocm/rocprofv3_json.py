"""`Rocprofv3JsonReader`: the JSON that rocprofv3 writes with ``--output-format json``."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from profilers.errors import BrokenFileError
from profilers.readers.common.json_documents import ints, listed, load, mapped, walked
from profilers.readers.common.numbers import plain_text
from profilers.readers.common.reader import Head, Sink
from profilers.readers.rocm.records import (
    Agent,
    Agents,
    Block,
    call_kind,
    check_not_empty,
    constant,
    copy_columns,
    kernel_name,
    narrow,
    renamed,
    text_list,
    workgroups,
    write_timed,
)
from profilers.trace.arrays import MISSING, Ints
from profilers.trace.schema import OWN_RANK
from profilers.trace.trace import DeviceProperties, Quality, TraceMeta

_ROOT = "rocprofiler-sdk-tool"
_BATCH = 65536
_GPU = 2
#: Records of calls, and their domain where the file does not name it.
_CALLS = {"hip_api": "HIP_RUNTIME_API", "hsa_api": "HSA_API", "rccl_api": "RCCL_API", "marker_api": "MARKER_API"}
_WORK = ("kernel_dispatch", "memory_copy")
#: Of the names of a kernel, the first that is there.
_NAMES = ("formatted_kernel_name", "demangled_kernel_name", "kernel_name")


class Rocprofv3JsonReader:
    """JSON of rocprofv3, plain or packed: dispatches, copies, calls of HIP, HSA and RCCL, markers."""

    name = "rocprofv3_json"

    def sniff(self, head: Head) -> bool:
        """Return whether a file starts as the tool's JSON does."""
        return head.start.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"{" and f'"{_ROOT}"'.encode() in head.start

    def read(self, files: Sequence[Path], sink: Sink) -> TraceMeta:
        """Give the events of one file to `sink`; each process in it that used a GPU is a rank.

        Raises
        ------
        BrokenFileError
            It is no JSON of the tool, larger than the limit, or holds no event that can be used.
        """
        (path,) = files
        counts: Counter[str] = Counter()
        tools = [tool for tool in listed(mapped(load(path, sink, counts)).get(_ROOT)) if isinstance(tool, dict)]
        if not tools:
            raise BrokenFileError(f"{path}: {_ROOT} lists no process; was the program traced to its end?")
        working = [tool for tool in tools if any(listed(_records(tool).get(name)) for name in _WORK)]
        ranks = {id(tool): rank for rank, tool in enumerate(working)} if len(working) > 1 else {}
        devices: list[DeviceProperties] = []
        for tool in tools:
            rank = ranks.get(id(tool), 0) if ranks else OWN_RANK
            process = _Process(tool, rank, not working or tool in working)
            process.write(sink, counts)
            devices += process.agents.properties(rank) if tool in working else ()
        check_not_empty(path, counts)
        return TraceMeta(
            self.name,
            "rocprofv3 json",
            (path.name,),
            ranks=tuple(ranks.values()),
            devices=tuple(devices),
            quality=Quality(counts),
        )


def _records(tool: Mapping[str, Any]) -> dict[str, Any]:
    return mapped(tool.get("buffer_records"))


class _Process:
    """One process of the file.

    Parameters
    ----------
    tool : mapping
        What the file holds of it.
    rank : int
    causes_work : bool
        Whether its calls can have launched what its rank ran.
    """

    def __init__(self, tool: Mapping[str, Any], rank: int, causes_work: bool) -> None:
        self._tool = tool
        self._rank = rank
        self._causes_work = causes_work
        self.agents = Agents([agent for agent in map(_agent, listed(tool.get("agents"))) if agent is not None])
        strings = mapped(tool.get("strings"))
        self._names = listed(strings.get("buffer_records"))
        markers = listed(strings.get("marker_api"))
        self._messages = dict(zip(ints(markers, "key").tolist(), walked(markers, "value"), strict=True))

    def write(self, sink: Sink, counts: Counter[str]) -> None:
        """Give everything that the process did to the sink."""
        symbols = _Symbols(listed(self._tool.get("kernel_symbols")))
        for name, domain in _CALLS.items():
            for records in self._batches(name, counts):
                self._write_calls(records, domain, sink, counts)
        for records in self._batches("kernel_dispatch", counts):
            self._write(records, sink, counts, "kernels", self._kernels(records, symbols))
        for records in self._batches("memory_copy", counts):
            self._write(records, sink, counts, "copies", self._copies(records))

    def _batches(self, name: str, counts: Counter[str]) -> Iterator[list[Any]]:
        records = listed(_records(self._tool).get(name))
        for start in range(0, len(records), _BATCH):
            batch = records[start : start + _BATCH]
            good = [record for record in batch if isinstance(record, dict)]
            counts["events"] += len(batch) - len(good)
            counts["dropped_broken"] += len(batch) - len(good)
            if good:
                yield good

    def _write(self, records: list[Any], sink: Sink, counts: Counter[str], kind: str, columns: dict[str, Any]) -> None:
        times = {"rank": np.full(len(records), self._rank), "start_ns": ints(records, "start_timestamp")}
        write_timed(sink, kind, {**times, **columns}, ints(records, "end_timestamp"), counts)

    def _kernels(self, records: list[Any], symbols: "_Symbols") -> dict[str, Any]:
        info = walked(records, "dispatch_info")
        sizes = walked(info, "workgroup_size")
        groups, size = workgroups(
            [ints(info, "grid_size", axis) for axis in "xyz"], [ints(sizes, axis) for axis in "xyz"]
        )
        which = symbols.rows(ints(info, "kernel_id"))
        rest = {
            "grid_x": ints(info, "grid_size", "x"),
            "grid_y": ints(info, "grid_size", "y"),
            "grid_z": ints(info, "grid_size", "z"),
            "workgroup_x": ints(sizes, "x"),
            "workgroup_y": ints(sizes, "y"),
            "workgroup_z": ints(sizes, "z"),
            "private_segment_size": ints(info, "private_segment_size"),
            "thread_id": ints(records, "thread_id"),
            "sgpr_count": symbols.ints("sgpr_count", which),
            "accum_vgpr_count": symbols.ints("accum_vgpr_count", which),
        }
        return {
            "name": symbols.names(which),
            "device": self.agents.devices(ints(info, "agent_id", "handle")),
            **_lanes(records, ints(info, "queue_id", "handle")),
            "workgroups": groups,
            "workgroup_size": size,
            "registers": narrow(symbols.ints("arch_vgpr_count", which)),
            "lds_bytes": ints(info, "group_segment_size"),
            "args": Block(rest).arguments(tuple(rest)),
        }

    def _copies(self, records: list[Any]) -> dict[str, Any]:
        ends = ints(records, "src_agent_id", "handle"), ints(records, "dst_agent_id", "handle")
        lanes = _lanes(records, np.full(len(records), MISSING))
        return {**copy_columns(self._operations(records), *ends, self.agents), **lanes, "bytes": ints(records, "bytes")}

    def _write_calls(self, records: list[Any], domain: str, sink: Sink, counts: Counter[str]) -> None:
        """Give calls of one kind of record, domain by domain: it holds those of the runtime and the compiler."""
        kinds = ints(records, "kind")
        for number in np.unique(kinds).tolist():
            own = [records[row] for row in np.flatnonzero(kinds == number).tolist()]
            kind, word = call_kind(self._domain(number) or domain)
            correlation = ints(own, "correlation_id", "internal")
            columns = {
                "name": self._call_names(own, correlation, word),
                "process": np.full(len(own), ints([self._tool], "metadata", "pid")[0]),
                "thread": ints(own, "thread_id"),
                "api" if kind == "launches" else "category": constant(word, len(own)),
            }
            if kind == "launches":
                columns["correlation"] = correlation if self._causes_work else np.full(len(own), MISSING)
            self._write(own, sink, counts, kind, columns)

    def _call_names(self, records: list[Any], correlation: Ints, word: str) -> pa.Array:
        """Return the names of calls; of a marker, its message."""
        names = self._operations(records)
        if word != "user_annotation" or not self._messages:
            return names
        messages = text_list(plain_text(self._messages.get(key)) or None for key in correlation.tolist())
        return pa.compute.coalesce(messages, names)

    def _domain(self, kind: int) -> str:
        return plain_text(mapped(self._names[kind]).get("kind")) if 0 <= kind < len(self._names) else ""

    def _operations(self, records: list[Any]) -> pa.Array:
        """Return what records are of; the tables of names are by kind and operation."""
        pairs = list(zip(ints(records, "kind").tolist(), ints(records, "operation").tolist(), strict=True))
        known = {pair: self._operation(*pair) for pair in set(pairs)}
        return text_list(known[pair] for pair in pairs)

    def _operation(self, kind: int, operation: int) -> str | None:
        names = listed(mapped(self._names[kind]).get("operations")) if 0 <= kind < len(self._names) else []
        return plain_text(names[operation]) if 0 <= operation < len(names) else None


class _Symbols:
    """The kernels that a process loaded."""

    def __init__(self, symbols: list[Any]) -> None:
        self._symbols = [symbol for symbol in symbols if isinstance(symbol, dict)]
        keys = ints(self._symbols, "kernel_id").tolist()
        self._row = {key: row for row, key in enumerate(keys)}
        self._texts = text_list(_symbol_name(symbol) for symbol in self._symbols)

    def rows(self, keys: Ints) -> Ints:
        """Return where each kernel stands, -1 where it is not listed."""
        distinct, which = np.unique(keys, return_inverse=True)
        return np.array([self._row.get(key, -1) for key in distinct.tolist()], np.int64)[which]

    def names(self, rows: Ints) -> pa.DictionaryArray:
        """Return the names of kernels, null for one that is not listed."""
        found = self._texts.take(pa.array(np.where(rows < 0, 0, rows), mask=rows < 0)) if len(self._texts) else None
        return renamed(pa.nulls(len(rows), pa.string()) if found is None else found, kernel_name)

    def ints(self, name: str, rows: Ints) -> Ints:
        """Return a number of each kernel."""
        return np.append(ints(self._symbols, name), MISSING)[rows]


def _symbol_name(symbol: Mapping[str, Any]) -> str | None:
    return next((text for name in _NAMES if (text := plain_text(symbol.get(name)))), None)


def _lanes(records: list[Any], queue: Ints) -> dict[str, Ints]:
    """Return stream, queue and correlation; a queue stands for the stream in versions that name none."""
    stream = ints(records, "stream_id", "handle")
    stream = queue if (stream == MISSING).all() else stream
    return {"stream": stream, "queue": queue, "correlation": ints(records, "correlation_id", "internal")}


def _agent(value: Any) -> Agent | None:
    """Return an agent of the file's list, None for what is none."""
    key, order, kind, units = (int(ints([value], *path)[0]) for path in _AGENT)
    if key == MISSING:
        return None
    names = (plain_text(mapped(value).get(name)) for name in ("product_name", "model_name", "name"))
    banks = ints(listed(mapped(value).get("mem_banks")), "size_in_bytes")
    return Agent(
        key,
        order,
        kind == _GPU,
        next((name for name in names if name), ""),
        units if units > 0 else None,
        max(banks.tolist(), default=0),
    )


_AGENT = (("id", "handle"), ("node_id",), ("type",), ("cu_count",))
