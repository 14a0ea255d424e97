"""`Rocprofv3JsonReader`: JSON files that rocprofv3 writes with ``--output-format json``.

The file lists the processes of a job. Each has buffers of records (calls, dispatches, copies) and tables of names that
records refer to by number: agents, kernel symbols, kinds of call with their operations, and messages of markers. The
file is decoded whole, and records become columns in batches.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from profilers.errors import BrokenFileError
from profilers.readers.common.json_documents import ints, listed, load, mapped, opening, walked
from profilers.readers.common.numbers import narrow, plain_text, workgroups
from profilers.readers.common.reader import Head, Sink
from profilers.readers.common.recording import Join, Output, RowBlock, Strings, text_list
from profilers.readers.rocm import conversion
from profilers.readers.rocm.conversion import Agents, Gpu, gpu_properties, lanes, write_calls
from profilers.trace.arrays import MISSING, Ints
from profilers.trace.schema import OWN_RANK
from profilers.trace.trace import DeviceProperties, TraceMeta

_ROOT = "rocprofiler-sdk-tool"
_BATCH = 65536
_GPU = 2
#: Buffers of calls, and their domain in files that do not name it.
_CALLS = {"hip_api": "HIP_RUNTIME_API", "hsa_api": "HSA_API", "rccl_api": "RCCL_API", "marker_api": "MARKER_API"}
_DEVICE_BUFFERS = ("kernel_dispatch", "memory_copy")
_EXTENTS = [f"{extent}_{axis}" for extent in ("grid", "workgroup") for axis in "xyz"]
_SYMBOL = ("kernel_id", "sgpr_count", "accum_vgpr_count", "arch_vgpr_count")
#: Keys of a kernel's name; the first that is present counts.
_NAMES = ("formatted_kernel_name", "demangled_kernel_name", "kernel_name")


class Rocprofv3JsonReader:
    """JSON of rocprofv3, plain or packed: dispatches, copies, calls of HIP, HSA and RCCL, markers."""

    name = "rocprofv3_json"

    def sniff(self, head: Head) -> bool:
        """Return whether a file starts as the tool's JSON does."""
        return opening(head.start) == b"{" and f'"{_ROOT}"'.encode() in head.start

    def read(self, files: Sequence[Path], sink: Sink) -> TraceMeta:
        """Give the events of one file to `sink`; each process in it that used a GPU is a rank.

        Raises
        ------
        BrokenFileError
            The file is no JSON of the tool, is larger than the limit, or holds no event that can be used.
        """
        (path,) = files
        out = Output(self.name, files, sink)
        content = mapped(load(path, sink, out.counts))
        tools = [tool for tool in listed(content.get(_ROOT)) if isinstance(tool, dict)]
        if not tools:
            raise BrokenFileError(f"{path}: {_ROOT} lists no process; was the program traced to its end?")
        with_work = [tool for tool in tools if any(listed(_buffers(tool).get(name)) for name in _DEVICE_BUFFERS)]
        ranks = {id(tool): rank for rank, tool in enumerate(with_work)} if len(with_work) > 1 else {}
        devices: list[DeviceProperties] = []
        for tool in tools:
            rank = ranks.get(id(tool), 0) if ranks else OWN_RANK
            process = _TracedProcess(tool, rank, not with_work or tool in with_work, out)
            process.write()
            devices += process.agents.properties(rank) if tool in with_work else ()
        return out.meta("rocprofv3 json", ranks=tuple(ranks.values()), devices=devices)


def _buffers(tool: Mapping[str, Any]) -> dict[str, Any]:
    return mapped(tool.get("buffer_records"))


class _TracedProcess:
    """One process of the file, whose records become events.

    Parameters
    ----------
    tool : mapping of str to Any
        The process in the file's list.
    rank : int
        Rank of the process.
    causes_work : bool
        Whether calls of the process can have launched the device work of its rank.
    out : Output
        Takes the events.
    """

    def __init__(self, tool: Mapping[str, Any], rank: int, causes_work: bool, out: Output) -> None:
        self._tool = tool
        self._rank = rank
        self._causes_work = causes_work
        self._out = out
        self.agents = Agents(gpu for gpu in map(_gpu, listed(tool.get("agents"))) if gpu is not None)
        strings = mapped(tool.get("strings"))
        self._names = listed(strings.get("buffer_records"))
        markers = listed(strings.get("marker_api"))
        records = [symbol for symbol in listed(tool.get("kernel_symbols")) if isinstance(symbol, dict)]
        # The last symbol of an id counts.
        symbols = dict(zip(ints(records, "kernel_id").tolist(), records, strict=True))
        self._symbols = Join(_SYMBOL, [[ints([*symbols.values()], name) for name in _SYMBOL]])
        names = {key: name for key, symbol in symbols.items() if (name := _symbol_name(symbol))}
        self._symbol_names = Strings(np.fromiter(names, np.int64), pa.array(names.values(), pa.string()))
        self._messages = dict(zip(ints(markers, "key").tolist(), walked(markers, "value"), strict=True))

    def write(self) -> None:
        """Write the events of the process."""
        for name, domain in _CALLS.items():
            for records in self._batches(name):
                self._write_calls(records, domain)
        for records in self._batches("kernel_dispatch"):
            self._out.write("kernels", self._kernels(records), ints(records, "end_timestamp"))
        for records in self._batches("memory_copy"):
            self._out.write("copies", self._copies(records), ints(records, "end_timestamp"))

    def _batches(self, name: str) -> Iterator[list[Any]]:
        records = listed(_buffers(self._tool).get(name))
        for start in range(0, len(records), _BATCH):
            batch = records[start : start + _BATCH]
            intact = [record for record in batch if isinstance(record, dict)]
            self._out.skip(len(batch) - len(intact), "dropped_broken")
            if intact:
                yield intact

    def _rank_and_start(self, records: list[Any]) -> dict[str, Ints]:
        return {"rank": np.full(len(records), self._rank), "start_ns": ints(records, "start_timestamp")}

    def _kernels(self, records: list[Any]) -> dict[str, Any]:
        info = walked(records, "dispatch_info")
        axes = [*(("grid_size", axis) for axis in "xyz"), *(("workgroup_size", axis) for axis in "xyz")]
        extents = [ints(info, *path) for path in axes]
        groups, size = workgroups(extents[:3], extents[3:])
        kernel = ints(info, "kernel_id")
        rest = {
            **dict(zip(_EXTENTS, extents, strict=True)),
            "private_segment_size": ints(info, "private_segment_size"),
            "thread_id": ints(records, "thread_id"),
            "sgpr_count": self._symbols("sgpr_count", kernel),
            "accum_vgpr_count": self._symbols("accum_vgpr_count", kernel),
        }
        return {
            **self._rank_and_start(records),
            "name": self._symbol_names.encode(kernel, conversion.kernel_name),
            "device": self.agents.devices(ints(info, "agent_id", "handle")),
            **_lanes(records, ints(info, "queue_id", "handle")),
            "workgroups": groups,
            "workgroup_size": size,
            "registers": narrow(self._symbols("arch_vgpr_count", kernel)),
            "lds_bytes": ints(info, "group_segment_size"),
            "args": RowBlock(rest).arguments(tuple(rest)),
        }

    def _copies(self, records: list[Any]) -> dict[str, Any]:
        source, target = ints(records, "src_agent_id", "handle"), ints(records, "dst_agent_id", "handle")
        return {
            **self._rank_and_start(records),
            **self.agents.copies(self._operations(records), source, target),
            **_lanes(records, np.full(len(records), MISSING)),
            "bytes": ints(records, "bytes"),
        }

    def _write_calls(self, records: list[Any], default_domain: str) -> None:
        """Write the calls of one buffer, one domain after the other.

        A buffer holds the calls of several domains, such as those of HIP's runtime and of its compiler.
        """
        kinds = ints(records, "kind")
        for number in np.unique(kinds).tolist():
            calls = [records[row] for row in np.flatnonzero(kinds == number).tolist()]
            domain = plain_text(self._kind(number).get("kind")) or default_domain
            correlation = ints(calls, "correlation_id", "internal")
            columns = {
                **self._rank_and_start(calls),
                "name": self._call_names(calls, correlation, domain),
                "process": np.full(len(calls), ints([self._tool], "metadata", "pid")[0]),
                "thread": ints(calls, "thread_id"),
                "correlation": correlation if self._causes_work else np.full(len(calls), MISSING),
            }
            write_calls(self._out, domain, columns, ints(calls, "end_timestamp"))

    def _call_names(self, records: list[Any], correlation: Ints, domain: str) -> pa.Array:
        """Return the names of calls; the name of a marker is its message."""
        names = self._operations(records)
        if conversion.call_kind(domain)[1] != "user_annotation" or not self._messages:
            return names
        messages = text_list(plain_text(self._messages.get(key)) or None for key in correlation.tolist())
        return pa.compute.coalesce(messages, names)

    def _kind(self, number: int) -> dict[str, Any]:
        """Return the entry of the file's table of kinds, empty for a number that it lacks."""
        return mapped(self._names[number]) if 0 <= number < len(self._names) else {}

    def _operations(self, records: list[Any]) -> pa.Array:
        """Return the name of each record's operation, from the table of its kind."""
        pairs = list(zip(ints(records, "kind").tolist(), ints(records, "operation").tolist(), strict=True))
        names = {pair: self._operation(*pair) for pair in set(pairs)}
        return text_list(names[pair] for pair in pairs)

    def _operation(self, kind: int, operation: int) -> str | None:
        names = listed(self._kind(kind).get("operations"))
        return plain_text(names[operation]) if 0 <= operation < len(names) else None


def _symbol_name(symbol: Mapping[str, Any]) -> str | None:
    return next((text for name in _NAMES if (text := plain_text(symbol.get(name)))), None)


def _lanes(records: list[Any], queue: Ints) -> dict[str, Ints]:
    return lanes(ints(records, "stream_id", "handle"), queue, ints(records, "correlation_id", "internal"))


def _gpu(value: Any) -> Gpu | None:
    """Return a GPU of the file's list of agents, None for any other agent and for an entry without a handle."""
    order, key, kind = (int(ints([value], *path)[0]) for path in (("node_id",), ("id", "handle"), ("type",)))
    if key == MISSING or kind != _GPU:
        return None
    names = (plain_text(value.get(name)) for name in ("product_name", "model_name", "name"))
    return order, key, gpu_properties(names, value)
