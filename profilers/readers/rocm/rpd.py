"""`RpdReader`: recordings of rocmProfileData, SQLite files with the extension ``.rpd``.

The tables hold operations on devices (``rocpd_op``), calls on the host (``rocpd_api``), and which call made which
operation (``rocpd_api_ops``). Kernel launches, copies and PyTorch operators have tables of details, joined by the id
of their call. Texts are in ``rocpd_string``. A stream is a number, a hexadecimal handle, or stated only in
the arguments of a call.
"""

import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from profilers.readers.common.database import Database, open_database
from profilers.readers.common.numbers import IN_WORK_ITEMS
from profilers.readers.common.reader import Head, Sink
from profilers.readers.common.source import require_events
from profilers.readers.rocm.records import (
    Block,
    Join,
    Strings,
    call_kind,
    check_columns,
    copy_direction,
    in_blocks,
    is_text,
    kernel_name,
    measured_rows,
    narrow,
    renamed,
    schema_version,
    skip,
    stacked,
    whole_numbers,
    whole_table,
    with_peers,
    workgroups,
    write_timed,
)
from profilers.trace.arrays import MISSING, Ints
from profilers.trace.columns import constant, lookup
from profilers.trace.schema import OWN_RANK
from profilers.trace.trace import Quality, TraceMeta

#: Columns without which a table gives no event.
_REQUIRED = {
    "rocpd_op": ("id", "start", "end", "opType_id"),
    "rocpd_api": ("id", "start", "end", "apiName_id"),
    "rocpd_string": ("id", "string"),
}
_AXES = [f"{extent}{axis}" for extent in ("grid", "workgroup") for axis in "XYZ"]
_KERNEL_CALL = (
    "api_ptr_id",
    "stream",
    *_AXES,
    "groupSegmentSize",
    "privateSegmentSize",
    "codeObject_id",
    "kernelName_id",
)
_COPY_CALL = ("api_ptr_id", "stream", "size", "srcDevice", "dstDevice")
_CALL = ("id", "pid", "tid", "start", "end", "apiName_id", "args_id")
_OPERATION = ("id", "gpuId", "queueId", "start", "end", "description_id", "opType_id")
_COPY = re.compile("copy|fill|memset", re.IGNORECASE)
_STREAM = re.compile(r"\bstream\s*=\s*(0x[0-9a-fA-F]+)")
#: Name of the calls that mark ranges and moments of the program; the text of a mark is in its arguments.
_MARKER = "UserMarker"


class RpdReader:
    """RPD files, plain or packed: kernels, copies, calls of HIP, markers, operators of PyTorch, clocks."""

    name = "rpd"

    def sniff(self, head: Head) -> bool:
        """Return whether a database has RPD's tables; those of rocpd share their prefix and have other names."""
        return {"rocpd_op", "rocpd_string"} <= set(head.tables)

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
            for table, columns in _REQUIRED.items():
                if table != "rocpd_api" or table in database.tables:
                    check_columns(path, table, database.tables.get(table, ()), columns)
            calls = _Calls(database, counts)
            _write_calls(database, calls, sink, counts)
            _write_operations(database, calls, sink, counts)
            _write_monitor(database, calls, sink, counts)
            version = schema_version(database, "rocpd_metadata")
        require_events(path, counts)
        version = f"rpd schema {version}" if version else "rpd"
        return TraceMeta(self.name, version, (path.name,), ranks=calls.ranks, quality=Quality(counts))


class _Calls:
    """Calls of a recording by their id: process, name and stream, and the device work that they made."""

    def __init__(self, database: Database, counts: Counter[str]) -> None:
        self.strings = Strings.of(database, "rocpd_string", ("id", "string"), counts)
        table = whole_table(database, "rocpd_api", ("id", "pid", "apiName_id", "args_id"), counts)
        self.all = Join(table, "id")
        self.of_operation = Join(whole_table(database, "rocpd_api_ops", ("op_id", "api_id"), counts), "op_id")
        self.kernels = Join(_with_streams(database, "rocpd_kernelapi", _KERNEL_CALL, counts), "api_ptr_id")
        self.copies = Join(_with_streams(database, "rocpd_copyapi", _COPY_CALL, counts), "api_ptr_id")
        self.registers = Join(whole_table(database, "rocpd_kernelcodeobject", ("id", "vgpr"), counts), "id")
        launching = whole_table(database, "rocpd_api_ops", ("api_id",), Counter())["api_id"]
        processes = np.unique(self.all("pid", launching))
        self._processes = processes[processes != MISSING]
        #: Ranks of the processes that used a GPU; empty for a single process.
        self.ranks = tuple(range(len(self._processes))) if len(self._processes) > 1 else ()

    def rank(self, process: Ints) -> Ints:
        """Return the rank of each process; a process without device work belongs to the first rank."""
        if not self.ranks:
            return np.full(len(process), OWN_RANK)
        return np.maximum(lookup(self._processes, np.arange(len(self._processes)), process), 0)

    def streams(self, call: Ints) -> Ints:
        """Return the stream of each call: of its kernel, of its copy, or as its arguments state it."""
        stated = self.strings.encode(self.all("args_id", call), _stated_stream).cast(pa.string())
        streams = whole_numbers(stated)
        for table in (self.copies, self.kernels):
            recorded = table("stream", call)
            streams = np.where(recorded == MISSING, streams, recorded)
        return streams


def _stated_stream(arguments: str) -> str | None:
    match = _STREAM.search(arguments)
    return _decimal(match[1]) if match else None


def _decimal(text: str) -> str | None:
    """Return a handle such as 0x7f in decimal digits, and any other text as it is."""
    try:
        return str(int(text, 16)) if text.lower().startswith("0x") and len(text) < 18 else text
    except ValueError:
        return None


def _with_streams(database: Database, table: str, columns: Sequence[str], counts: Counter[str]) -> dict[str, Ints]:
    """Return integer columns of all rows of a table, with the handles of streams as numbers."""
    blocks = []
    for block in in_blocks(database, table, columns, counts):
        stream = whole_numbers(renamed(block.texts("stream"), _decimal).cast(pa.string()))
        blocks.append([stream if name == "stream" else block.ints(name) for name in columns])
    return stacked(columns, blocks)


def _write_operations(database: Database, calls: _Calls, sink: Sink, counts: Counter[str]) -> None:
    """Give operations on devices to `sink`: copies by their type, kernels by having a name; barriers are skipped.

    A kernel of a graph has the type ``Task`` and the name of the kernel.
    """
    for block in in_blocks(database, "rocpd_op", _OPERATION, counts):
        types = calls.strings.encode(block.ints("opType_id")).cast(pa.string()).fill_null("")
        kinds = renamed(types, lambda text: "copy" if _COPY.search(text) else "kernel" if "Kernel" in text else "")
        kinds = kinds.cast(pa.string())
        call = calls.of_operation("api_id", block.ints("id"))
        names = calls.strings.encode(block.ints("description_id"), lambda text: kernel_name(text) or None)
        named = np.array(names.is_valid().to_numpy(zero_copy_only=False))
        copies = is_text(kinds, "copy")
        kernels = ~copies & (is_text(kinds, "kernel") | named)
        skip(counts, int((~copies & ~kernels).sum()))
        for chosen, kind, convert in ((copies, "copies", _copies), (kernels, "kernels", _kernels)):
            rows = np.flatnonzero(chosen)
            operations = block.take(rows)
            columns = convert(operations, call[rows], calls, types.take(pa.array(rows)), counts)
            columns |= _on_device(operations, call[rows], calls)
            write_timed(sink, kind, columns, operations.ints("end"), counts)


def _on_device(block: Block, call: Ints, calls: _Calls) -> dict[str, Any]:
    return {
        "rank": calls.rank(calls.all("pid", call)),
        "start_ns": block.ints("start"),
        "device": block.narrow("gpuId"),
        "stream": calls.streams(call),
        "queue": block.ints("queueId"),
        "correlation": call,
    }


def _kernels(block: Block, call: Ints, calls: _Calls, _types: pa.Array, counts: Counter[str]) -> dict[str, Any]:
    described = calls.strings.encode(block.ints("description_id"), lambda text: kernel_name(text) or None)
    launched = calls.strings.encode(calls.kernels("kernelName_id", call), kernel_name)
    extents = [calls.kernels(name, call) for name in _AXES]
    launch_names = calls.strings.encode(calls.all("apiName_id", call)).cast(pa.string())
    in_work_items = is_text(launch_names, IN_WORK_ITEMS)
    groups, sizes = workgroups(extents[:3], extents[3:], in_work_items)
    counts["repaired_work_items"] += int((in_work_items & (groups != MISSING)).sum())
    rest = Block(dict(zip(_AXES, extents, strict=True)) | {"scratch": calls.kernels("privateSegmentSize", call)})
    return {
        "name": pa.compute.coalesce(described.cast(pa.string()), launched.cast(pa.string())),
        "workgroups": groups,
        "workgroup_size": sizes,
        "registers": narrow(calls.registers("vgpr", calls.kernels("codeObject_id", call))),
        "lds_bytes": calls.kernels("groupSegmentSize", call),
        "args": rest.arguments(tuple(rest.columns)),
    }


def _copies(_block: Block, call: Ints, calls: _Calls, types: pa.Array, _counts: Counter[str]) -> dict[str, Any]:
    directions = renamed(types, copy_direction).cast(pa.string())
    peers = calls.copies("srcDevice", call) != calls.copies("dstDevice", call)
    return {"name": types, "direction": with_peers(directions, peers), "bytes": calls.copies("size", call)}


def _write_calls(database: Database, calls: _Calls, sink: Sink, counts: Counter[str]) -> None:
    """Give calls of HIP, operators of PyTorch, markers and the profiler's own overhead to `sink`."""
    operators = _Operators(database, counts)
    for block in in_blocks(database, "rocpd_api", _CALL, counts):
        categories = calls.strings.encode(block.ints("apiName_id"), _category).cast(pa.string()).fill_null("overhead")
        category = np.array(categories.to_numpy(zero_copy_only=False))
        is_operator = (category == "user_annotation") & operators.has(block.ints("id"))
        category = np.where(is_operator, "operator", category)
        for name in np.unique(category).tolist():
            _write_category(block.take(np.flatnonzero(category == name)), name, calls, operators, (sink, counts))


def _category(name: str) -> str:
    """Return the category of a call by its name."""
    if name == _MARKER:
        return "user_annotation"
    plain = name.lstrip("_")
    return call_kind(plain)[1] if plain.startswith(("hip", "hsa", "nccl", "roctx")) else "overhead"


def _write_category(
    block: Block, category: str, calls: _Calls, operators: "_Operators", out: tuple[Sink, Counter[str]]
) -> None:
    """Give the calls of one category to the sink in `out`."""
    sink, counts = out
    kind = {"operator": "ops", "hip_runtime": "launches"}.get(category, "ranges")
    is_mark = category in ("operator", "user_annotation")
    columns: dict[str, Any] = {
        "rank": calls.rank(block.ints("pid")),
        "name": calls.strings.encode(block.ints("args_id" if is_mark else "apiName_id")),
        "start_ns": block.ints("start"),
        "process": block.ints("pid"),
        "thread": block.ints("tid"),
    }
    if not is_mark:
        columns["args"] = calls.strings.encode(block.ints("args_id"), lambda text: json.dumps({"args": text}))
    if kind == "launches":
        columns |= {"api": constant(category, block.rows), "correlation": block.ints("id")}
    elif kind == "ranges":
        columns["category"] = constant(category, block.rows)
    else:
        columns |= operators.columns(block.ints("id"))
    write_timed(sink, kind, columns, block.ints("end"), counts)


class _Operators:
    """Operators of PyTorch, recorded as marks by its autograd profiler, by the id of their call."""

    def __init__(self, database: Database, counts: Counter[str]) -> None:
        blocks, shapes = [], [pa.array([], pa.string())]
        for block in in_blocks(database, "ext_autogradapi", ("api_ptr_id", "seq", "sizes"), counts):
            blocks.append([block.ints("api_ptr_id"), block.ints("seq")])
            shapes.append(renamed(block.texts("sizes"), _shapes).cast(pa.string()))
        columns = stacked(("id", "seq"), blocks)
        self._join = Join({**columns, "row": np.arange(len(columns["id"]))}, "id")
        self._shapes = pa.concat_arrays(shapes)

    def has(self, call: Ints) -> Any:
        """Return whether each call is an operator."""
        return self._join("row", call) != MISSING

    def columns(self, call: Ints) -> dict[str, Any]:
        """Return sequence number and shapes of calls that are operators."""
        shapes = self._shapes.take(pa.array(self._join("row", call)))
        return {"sequence_number": self._join("seq", call), "shapes": shapes.dictionary_encode()}


def _shapes(text: str) -> str | None:
    """Return shapes if they are a JSON array, as their column requires; else None."""
    try:
        return text if isinstance(json.loads(text), list) else None
    except (ValueError, RecursionError):
        return None


def _write_monitor(database: Database, calls: _Calls, sink: Sink, counts: Counter[str]) -> None:
    """Give the samples of each device, such as its clock in MHz, to `sink` as counters."""
    names = ("deviceType", "deviceId", "monitorType", "start", "end", "value")
    for block in in_blocks(database, "rocpd_monitor", names, counts):
        values = block.reals("value")
        rows = measured_rows(values, counts)
        samples = block.take(rows)
        columns = {
            "rank": calls.rank(np.full(samples.rows, MISSING)),
            "name": samples.texts("monitorType"),
            "start_ns": samples.ints("start"),
            "category": constant("monitor", samples.rows),
            "value": values.take(pa.array(rows)),
            "args": samples.arguments(("deviceType", "deviceId")),
        }
        write_timed(sink, "counters", columns, samples.ints("end"), counts)
