"""`RpdReader`: recordings of rocmProfileData, SQLite files with the extension ``.rpd``.

The tables hold operations on devices (``rocpd_op``), calls on the host (``rocpd_api``), and which call made which
operation (``rocpd_api_ops``). Kernel launches, copies and PyTorch operators have tables of details, joined by the id
of their call. Texts are in ``rocpd_string``. A stream is a number, a hexadecimal handle, or stated only in
the arguments of a call.
"""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from profilers.files import shipped_table
from profilers.readers.common.database import open_database
from profilers.readers.common.numbers import IN_WORK_ITEMS, narrow, whole_numbers, workgroups
from profilers.readers.common.reader import Head, Sink
from profilers.readers.common.recording import Join, Output, Ranks, RecordedTables, RowBlock, renamed, write_annotations
from profilers.readers.rocm import conversion
from profilers.trace.arrays import MISSING, Ints
from profilers.trace.columns import constant
from profilers.trace.schema import OVERHEAD
from profilers.trace.trace import TraceMeta

_FORMAT = shipped_table("formats/rpd.toml", "tables of rocmProfileData", conversion.TableFormat)
_AXES = [f"{extent}{axis}" for extent in ("grid", "workgroup") for axis in "XYZ"]
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
        out = Output(self.name, files, sink)
        with open_database(files[0], sink.limit_bytes) as database:
            recording = RecordedTables(database, out.counts)
            for table, columns in _FORMAT.required.items():
                if table != "rocpd_api" or table in recording.tables:
                    recording.check(table, columns)
            events = _RpdEvents(recording, out)
            events.write_calls()
            events.write_operations()
            events.write_monitor()
            version = recording.schema_version("rocpd_metadata")
        return out.meta(f"rpd schema {version}" if version else "rpd", ranks=events.ranks.numbers)


class _RpdEvents:
    """The events of a recording, with its calls by their id: process, name and stream, and the work that they made."""

    def __init__(self, recording: RecordedTables, out: Output) -> None:
        self._recording = recording
        self._out = out
        self._strings = recording.strings("rocpd_string")
        self._calls = recording.join("rocpd_api", ("id", "pid", "apiName_id", "args_id"))
        self._call_of_operation = recording.join("rocpd_api_ops", ("op_id", "api_id"))
        self._kernel_calls = self._with_streams("rocpd_kernelapi")
        self._copy_calls = self._with_streams("rocpd_copyapi")
        # Operators of PyTorch, recorded as marks by its autograd profiler, by the id of their call.
        self._operators = recording.join("ext_autogradapi", ("api_ptr_id", "seq"))
        self._shapes = recording.uncounted().strings("ext_autogradapi", ("api_ptr_id", "sizes"))
        self._registers = recording.join("rocpd_kernelcodeobject", ("id", "vgpr"))
        processes = np.unique(self._calls("pid", self._call_of_operation.column("api_id")))
        processes = processes[processes != MISSING]
        self.ranks = Ranks({process: rank for rank, process in enumerate(processes.tolist())}, len(processes))

    def _blocks(self, table: str) -> Iterator[RowBlock]:
        return self._recording.blocks(table, _FORMAT.columns[table])

    def _with_streams(self, table: str) -> Join:
        """Return integer columns of a table by call, with the handles of streams as numbers."""
        columns, blocks = _FORMAT.columns[table], []
        for block in self._blocks(table):
            blocks.append([block.ints(name, _decimal if name == "stream" else None) for name in columns])
        return Join(columns, blocks)

    def _streams(self, call: Ints) -> Ints:
        """Return the stream of each call: of its kernel, of its copy, or as its arguments state it."""
        streams = whole_numbers(self._strings.texts(self._calls("args_id", call), _stated_stream))
        for table in (self._copy_calls, self._kernel_calls):
            recorded = table("stream", call)
            streams = np.where(recorded == MISSING, streams, recorded)
        return streams

    def write_operations(self) -> None:
        """Write operations on devices: copies by their type, kernels by having a name; barriers are skipped.

        A kernel of a graph has the type ``Task`` and the name of the kernel.
        """
        for block in self._blocks("rocpd_op"):
            types = self._strings.texts(block.ints("opType_id")).fill_null("")
            names = self._strings.texts(block.ints("description_id"), lambda text: conversion.kernel_name(text) or None)
            kinds = renamed(types, _operation_kind)
            copies = conversion.is_text(kinds, "copy")
            kernels = ~copies & (conversion.is_text(kinds, "kernel") | names.is_valid().to_numpy(zero_copy_only=False))
            self._out.skip(int((~copies & ~kernels).sum()), "skipped_marker")
            call = self._call_of_operation("api_id", block.ints("id"))
            block = RowBlock({**block.columns, "call": call, "type": types, "kernel": names})
            for chosen, kind, convert in ((copies, "copies", self._copies), (kernels, "kernels", self._kernels)):
                operations = block.take(np.flatnonzero(chosen))
                self._out.write(kind, convert(operations, operations.ints("call")), operations.ints("end"))

    def _on_device(self, block: RowBlock, call: Ints) -> dict[str, Any]:
        return {
            "rank": self.ranks.of(self._calls("pid", call)),
            "start_ns": block.ints("start"),
            "device": block.narrow("gpuId"),
            "stream": self._streams(call),
            "queue": block.ints("queueId"),
            "correlation": call,
        }

    def _kernels(self, block: RowBlock, call: Ints) -> dict[str, Any]:
        launched = self._strings.texts(self._kernel_calls("kernelName_id", call), conversion.kernel_name)
        extents = [self._kernel_calls(name, call) for name in _AXES]
        in_work_items = conversion.is_text(self._strings.texts(self._calls("apiName_id", call)), IN_WORK_ITEMS)
        groups, sizes = workgroups(extents[:3], extents[3:], in_work_items)
        self._out.counts["repaired_work_items"] += int((in_work_items & (groups != MISSING)).sum())
        scratch = self._kernel_calls("privateSegmentSize", call)
        rest = RowBlock({**dict(zip(_AXES, extents, strict=True)), "scratch": scratch})
        return {
            **self._on_device(block, call),
            "name": pa.compute.coalesce(block.texts("kernel"), launched),
            "workgroups": groups,
            "workgroup_size": sizes,
            "registers": narrow(self._registers("vgpr", self._kernel_calls("codeObject_id", call))),
            "lds_bytes": self._kernel_calls("groupSegmentSize", call),
            "args": rest.arguments(tuple(rest.columns)),
        }

    def _copies(self, block: RowBlock, call: Ints) -> dict[str, Any]:
        types = block.texts("type")
        peers = self._copy_calls("srcDevice", call) != self._copy_calls("dstDevice", call)
        return {
            **self._on_device(block, call),
            "name": types,
            "direction": conversion.with_peers(block.texts("type", conversion.copy_direction), peers),
            "bytes": self._copy_calls("size", call),
        }

    def write_calls(self) -> None:
        """Write calls of HIP, operators of PyTorch, markers and the profiler's own overhead."""
        for block in self._blocks("rocpd_api"):
            categories = self._strings.texts(block.ints("apiName_id"), _category).fill_null(OVERHEAD)
            category = np.array(categories.to_numpy(zero_copy_only=False))
            is_operator = (category == "user_annotation") & (self._operators("api_ptr_id", block.ints("id")) != MISSING)
            category = np.where(is_operator, "operator", category)
            for name in np.unique(category).tolist():
                self._write_category(block.take(np.flatnonzero(category == name)), name)

    def _write_category(self, block: RowBlock, category: str) -> None:
        kind = {"operator": "ops", "hip_runtime": "launches"}.get(category, "ranges")
        is_mark = category in ("operator", "user_annotation")
        columns: dict[str, Any] = {
            "rank": self.ranks.of(block.ints("pid")),
            "name": self._strings.encode(block.ints("args_id" if is_mark else "apiName_id")),
            "start_ns": block.ints("start"),
            "process": block.ints("pid"),
            "thread": block.ints("tid"),
        }
        if not is_mark:
            columns["args"] = self._strings.encode(block.ints("args_id"), lambda text: json.dumps({"args": text}))
        if kind == "launches":
            columns |= {"api": constant(category, block.rows), "correlation": block.ints("id")}
        elif kind == "ranges":
            columns["category"] = constant(category, block.rows)
        else:
            shapes = self._shapes.encode(block.ints("id"), _shapes)
            columns |= {"sequence_number": self._operators("seq", block.ints("id")), "shapes": shapes}
        if category == "user_annotation":
            write_annotations(self._out, columns, block.ints("end"))
        else:
            self._out.write(kind, columns, block.ints("end"))

    def write_monitor(self) -> None:
        """Write the samples of each device, such as its clock in MHz, as counters."""
        for block in self._blocks("rocpd_monitor"):
            samples = self._out.measured(block, "value")
            columns = {
                "rank": self.ranks.of(np.full(samples.rows, MISSING)),
                "name": samples.texts("monitorType"),
                "start_ns": samples.ints("start"),
                "category": constant("monitor", samples.rows),
                "value": samples.columns["value"],
                "args": samples.arguments(("deviceType", "deviceId")),
            }
            self._out.write("counters", columns, samples.ints("end"))


def _operation_kind(type_: str) -> str:
    return "copy" if _COPY.search(type_) else "kernel" if "Kernel" in type_ else ""


def _stated_stream(arguments: str) -> str | None:
    match = _STREAM.search(arguments)
    return _decimal(match[1]) if match else None


def _decimal(text: str) -> str | None:
    """Return a handle such as 0x7f in decimal digits, and any other text as it is."""
    try:
        return str(int(text, 16)) if text.lower().startswith("0x") and len(text) < 18 else text
    except ValueError:
        return None


#: Names of the profiler's own functions; other names without an interface are ranges of the program.
_OWN = re.compile(r"^rpd|^hcc_|Table::|^Logger|DataSource")


def _category(name: str) -> str:
    """Return the category of a call by its name."""
    if name == _MARKER:
        return "user_annotation"
    plain = name.lstrip("_")
    if plain.startswith(("hip", "hsa", "nccl", "roctx")):
        return conversion.call_kind(plain)[1]
    return OVERHEAD if _OWN.search(plain) else "user_annotation"


def _shapes(text: str) -> str | None:
    """Return shapes if they are a JSON array, as their column requires; else None."""
    try:
        return text if isinstance(json.loads(text), list) else None
    except (ValueError, RecursionError):
        return None
