"""`RpdReader`: rocmProfileData, a SQLite file of operations on devices, calls, and which call made which."""

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
from profilers.readers.rocm.records import (
    Block,
    Join,
    Strings,
    call_kind,
    check_columns,
    check_not_empty,
    constant,
    copy_direction,
    in_blocks,
    kernel_name,
    narrow,
    renamed,
    skip,
    whole_numbers,
    whole_table,
    workgroups,
    write_timed,
)
from profilers.trace.arrays import MISSING, Ints
from profilers.trace.schema import OWN_RANK
from profilers.trace.trace import Quality, TraceMeta

_MINIMUM = {
    "rocpd_op": ("id", "start", "end", "opType_id"),
    "rocpd_api": ("id", "start", "end", "apiName_id"),
    "rocpd_string": ("id", "string"),
}
_AXES = [f"{what}{axis}" for what in ("grid", "workgroup") for axis in "XYZ"]
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
#: How the tool names a range or mark of the program; its text is in the arguments.
_MARKER = "UserMarker"


class RpdReader:
    """RPD files, plain or packed: kernels, copies, calls of HIP, markers, operators of PyTorch, clocks."""

    name = "rpd"

    def sniff(self, head: Head) -> bool:
        """Return whether a database has RPD's tables; rocpd's have other names for the same prefix."""
        return {"rocpd_op", "rocpd_string"} <= set(head.tables)

    def read(self, files: Sequence[Path], sink: Sink) -> TraceMeta:
        """Give the events of one file to `sink`; each process in it that used a GPU is a rank.

        Raises
        ------
        BrokenFileError
            A table lacks a column of the minimum, or no event can be used.
        """
        (path,) = files
        counts: Counter[str] = Counter()
        with open_database(path, sink.limit_bytes) as database:
            for table, wanted in _MINIMUM.items():
                if table != "rocpd_api" or table in database.tables:
                    check_columns(path, table, database.tables.get(table, ()), wanted)
            calls = _Calls(database, counts)
            _write_calls(database, calls, sink, counts)
            _write_operations(database, calls, sink, counts)
            _write_monitor(database, calls, sink, counts)
            version = _version(database)
        check_not_empty(path, counts)
        return TraceMeta(self.name, version, (path.name,), ranks=calls.ranks, quality=Quality(counts))


class _Calls:
    """What is known of calls, by their id: process, name, stream, and the work that they made."""

    def __init__(self, database: Database, counts: Counter[str]) -> None:
        self.strings = Strings.of(database, "rocpd_string", ("id", "string"), counts)
        table = whole_table(database, "rocpd_api", ("id", "pid", "apiName_id", "args_id"), counts)
        self.all = Join(table, "id")
        self.of_operation = Join(whole_table(database, "rocpd_api_ops", ("op_id", "api_id"), counts), "op_id")
        self.kernels = Join(_with_streams(database, "rocpd_kernelapi", _KERNEL_CALL, counts), "api_ptr_id")
        self.copies = Join(_with_streams(database, "rocpd_copyapi", _COPY_CALL, counts), "api_ptr_id")
        self.registers = Join(whole_table(database, "rocpd_kernelcodeobject", ("id", "vgpr"), counts), "id")
        working = whole_table(database, "rocpd_api_ops", ("api_id",), Counter())["api_id"]
        processes = np.unique(self.all("pid", working))
        self._processes = processes[processes != MISSING]
        #: All processes that used a GPU, nothing for one alone.
        self.ranks = tuple(range(len(self._processes))) if len(self._processes) > 1 else ()

    def rank(self, process: Ints) -> Ints:
        """Return the rank of each process; one without work on a GPU belongs to the first."""
        if not self.ranks:
            return np.full(len(process), OWN_RANK)
        at = np.minimum(np.searchsorted(self._processes, process), len(self._processes) - 1)
        return np.where(self._processes[at] == process, at, 0)

    def streams(self, call: Ints) -> Ints:
        """Return the stream of each call: of a kernel, of a copy, or what its arguments say."""
        said = self.strings.encode(self.all("args_id", call), _stream_in).cast(pa.string())
        found = whole_numbers(said)
        for table in (self.copies, self.kernels):
            own = table("stream", call)
            found = np.where(own == MISSING, found, own)
        return found


def _stream_in(text: str) -> str | None:
    found = _STREAM.search(text)
    return _decimal(found[1]) if found else None


def _decimal(text: str) -> str | None:
    """Return a number that is written with 0x, as a handle is, in decimals."""
    try:
        return str(int(text, 16)) if text.lower().startswith("0x") and len(text) < 18 else text
    except ValueError:
        return None


def _with_streams(database: Database, table: str, columns: Sequence[str], counts: Counter[str]) -> dict[str, Ints]:
    """Return a whole table, the handles of its streams as numbers."""
    parts = []
    for block in in_blocks(database, table, columns, counts):
        stream = whole_numbers(renamed(block.texts("stream"), _decimal).cast(pa.string()))
        parts.append([stream if name == "stream" else block.ints(name) for name in columns])
    found = [np.concatenate(p) for p in zip(*parts, strict=True)] if parts else [np.empty(0, np.int64)] * len(columns)
    return dict(zip(columns, found, strict=True))


def _write_operations(database: Database, calls: _Calls, sink: Sink, counts: Counter[str]) -> None:
    """Give what ran on devices: copies by their type, kernels by having a name, barriers to nobody.

    What a graph runs is a ``Task`` with the name of its kernel.
    """
    for block in in_blocks(database, "rocpd_op", _OPERATION, counts):
        words = calls.strings.encode(block.ints("opType_id")).cast(pa.string()).fill_null("")
        word = renamed(words, lambda text: "copy" if _COPY.search(text) else "kernel" if "Kernel" in text else "")
        kind = word.cast(pa.string()).to_numpy(zero_copy_only=False)
        call = calls.of_operation("api_id", block.ints("id"))
        described = calls.strings.encode(block.ints("description_id"), lambda text: kernel_name(text) or None)
        named = np.array(described.is_valid().to_numpy(zero_copy_only=False))
        copies, kernels = kind == "copy", (kind == "kernel") | ((kind != "copy") & named)
        skip(counts, int((~copies & ~kernels).sum()))
        for chosen, name, convert in ((copies, "copies", _copies), (kernels, "kernels", _kernels)):
            rows = np.flatnonzero(chosen)
            own = block.take(rows)
            columns = convert(own, call[rows], calls, words.take(pa.array(rows)), counts)
            write_timed(sink, name, {**_placed(own, call[rows], calls), **columns}, own.ints("end"), counts)


def _placed(block: Block, call: Ints, calls: _Calls) -> dict[str, Any]:
    stream = calls.streams(call)
    return {
        "rank": calls.rank(calls.all("pid", call)),
        "start_ns": block.ints("start"),
        "device": block.narrow("gpuId"),
        "stream": stream,
        "queue": block.ints("queueId"),
        "correlation": call,
    }


def _kernels(block: Block, call: Ints, calls: _Calls, _words: pa.Array, counts: Counter[str]) -> dict[str, Any]:
    described = calls.strings.encode(block.ints("description_id"), lambda text: kernel_name(text) or None)
    launched = calls.strings.encode(calls.kernels("kernelName_id", call), kernel_name)
    extents = [calls.kernels(name, call) for name in _AXES]
    caller = calls.strings.encode(calls.all("apiName_id", call)).cast(pa.string()).fill_null("")
    items = np.array(caller.to_numpy(zero_copy_only=False) == IN_WORK_ITEMS, dtype=bool)
    groups, sizes = workgroups(extents[:3], extents[3:], items)
    counts["repaired_work_items"] += int((items & (groups != MISSING)).sum())
    rest = Block(dict(zip(_AXES, extents, strict=True)) | {"scratch": calls.kernels("privateSegmentSize", call)})
    return {
        "name": pa.compute.coalesce(described.cast(pa.string()), launched.cast(pa.string())),
        "workgroups": groups,
        "workgroup_size": sizes,
        "registers": narrow(calls.registers("vgpr", calls.kernels("codeObject_id", call))),
        "lds_bytes": calls.kernels("groupSegmentSize", call),
        "args": rest.arguments(tuple(rest.columns)),
    }


def _copies(_block: Block, call: Ints, calls: _Calls, words: pa.Array, _counts: Counter[str]) -> dict[str, Any]:
    direction = renamed(words, copy_direction).cast(pa.string())
    source, target = calls.copies("srcDevice", call), calls.copies("dstDevice", call)
    between = pa.array((source != target) & np.array(direction.to_numpy(zero_copy_only=False) == "DtoD"))
    peers = pa.compute.if_else(between, "PtoP", direction)
    return {"name": words, "direction": peers.dictionary_encode(), "bytes": calls.copies("size", call)}


def _write_calls(database: Database, calls: _Calls, sink: Sink, counts: Counter[str]) -> None:
    """Give calls of HIP, operators of PyTorch, markers, and what the profiler itself spent."""
    operators = _Operators(database, counts)
    for block in in_blocks(database, "rocpd_api", _CALL, counts):
        words = calls.strings.encode(block.ints("apiName_id"), _call_word).cast(pa.string()).fill_null("overhead")
        word = np.array(words.to_numpy(zero_copy_only=False))
        is_operator = (word == "user_annotation") & operators.has(block.ints("id"))
        word = np.where(is_operator, "operator", word)
        for what in np.unique(word).tolist():
            own = block.take(np.flatnonzero(word == what))
            _write_call(own, what, calls, operators, (sink, counts))


def _call_word(name: str) -> str:
    if name == _MARKER:
        return "user_annotation"
    plain = name.lstrip("_")
    return call_kind(plain)[1] if plain.startswith(("hip", "hsa", "nccl", "roctx")) else "overhead"


def _write_call(
    block: Block, what: str, calls: _Calls, operators: "_Operators", out: tuple[Sink, Counter[str]]
) -> None:
    """Give calls of one sort to the sink."""
    kind = {"operator": "ops", "hip_runtime": "launches"}.get(what, "ranges")
    marked = what in ("operator", "user_annotation")
    columns: dict[str, Any] = {
        "rank": calls.rank(block.ints("pid")),
        "name": calls.strings.encode(block.ints("args_id" if marked else "apiName_id")),
        "start_ns": block.ints("start"),
        "process": block.ints("pid"),
        "thread": block.ints("tid"),
    }
    if not marked:
        columns["args"] = calls.strings.encode(block.ints("args_id"), lambda text: json.dumps({"args": text}))
    if kind == "launches":
        columns |= {"api": constant(what, block.rows), "correlation": block.ints("id")}
    elif kind == "ranges":
        columns["category"] = constant(what, block.rows)
    else:
        columns |= operators.columns(block.ints("id"))
    write_timed(out[0], kind, columns, block.ints("end"), out[1])


class _Operators:
    """Which markers are operators of PyTorch, as its autograd profiler marked them."""

    def __init__(self, database: Database, counts: Counter[str]) -> None:
        names = ("api_ptr_id", "seq", "sizes")
        parts, shapes = [], []
        for block in in_blocks(database, "ext_autogradapi", names, counts):
            parts.append([block.ints("api_ptr_id"), block.ints("seq")])
            shapes.append(renamed(block.texts("sizes"), _shapes).cast(pa.string()))
        found = [np.concatenate(p) for p in zip(*parts, strict=True)] if parts else [np.empty(0, np.int64)] * 2
        self._join = Join({"id": found[0], "seq": found[1], "row": np.arange(len(found[0]))}, "id")
        self._shapes = pa.concat_arrays(shapes) if shapes else pa.nulls(0, pa.string())

    def has(self, call: Ints) -> Any:
        """Return whether each call is an operator."""
        return self._join("row", call) != MISSING

    def columns(self, call: Ints) -> dict[str, Any]:
        """Return what is known of calls that are operators."""
        shapes = self._shapes.take(pa.array(self._join("row", call)))
        return {"sequence_number": self._join("seq", call), "shapes": shapes.dictionary_encode()}


def _shapes(text: str) -> str | None:
    """Return shapes where they are a JSON array, as the column asks for."""
    try:
        return text if isinstance(json.loads(text), list) else None
    except (ValueError, RecursionError):
        return None


def _write_monitor(database: Database, calls: _Calls, sink: Sink, counts: Counter[str]) -> None:
    """Give what the tool sampled of each device, as its clock in MHz."""
    names = ("deviceType", "deviceId", "monitorType", "start", "end", "value")
    for block in in_blocks(database, "rocpd_monitor", names, counts):
        values = pa.array([_number(text) for text in block.texts("value").to_pylist()], pa.float64())
        good = np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False))
        skip(counts, block.rows - len(good), "dropped_no_value")
        own = block.take(good)
        columns = {
            "rank": calls.rank(np.full(own.rows, MISSING)),
            "name": own.texts("monitorType"),
            "start_ns": own.ints("start"),
            "category": constant("monitor", own.rows),
            "value": values.take(pa.array(good)),
            "args": own.arguments(("deviceType", "deviceId")),
        }
        write_timed(sink, "counters", columns, own.ints("end"), counts)


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if np.isfinite(value) else None


def _version(database: Database) -> str:
    for block in in_blocks(database, "rocpd_metadata", ("tag", "value"), Counter()):
        pairs = dict(zip(block.texts("tag").to_pylist(), block.texts("value").to_pylist(), strict=True))
        if pairs.get("schema_version"):
            return f"rpd schema {pairs['schema_version']}"
    return "rpd"
