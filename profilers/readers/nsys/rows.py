"""Conversion of an export's tables to columns of the schema, one function for each kind of table.

Each function takes a `Batch` of rows with valid times and the `Context` of the export. CUPTI's numbers become the words
that Kineto uses.
"""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from profilers.readers.common.numbers import INT32_LIMIT
from profilers.readers.nsys.tables import Processes, StringIds, named, process_of, whole_numbers
from profilers.trace.arrays import MISSING, Ints
from profilers.trace.columns import Spelling, constant, taken

Columns = dict[str, Any]

_PID = (1 << 24) - 1
#: Most ns of a time, so that differences and sums of times fit int64.
_TIME_LIMIT = 1 << 61
#: CUPTI's number for no stream and no event.
_NONE = (1 << 32) - 1
#: Version of the interface in names such as ``cudaLaunchKernel_v7000``, which other profilers leave out.
_VERSION = re.compile(r"_v\d{4,}$")
#: Kineto's words by CUPTI's numbers.
_DIRECTIONS = {
    **{1: "HtoD", 2: "DtoH", 3: "HtoA", 4: "AtoH", 5: "AtoA", 6: "AtoD", 7: "DtoA", 8: "DtoD", 9: "HtoH", 10: "PtoP"},
    **{11: "HtoD", 12: "DtoH", 13: "DtoD"},
}
_MEMORIES = {0: "Pageable", 1: "Pinned", 2: "Device", 3: "Array", 4: "Managed", 5: "Device Static", 6: "Managed Static"}
_SYNCS = {1: "Event Sync", 2: "Stream Wait Event", 3: "Stream Sync", 4: "Context Sync"}
_DRIVER_CLASSES = (1, 13)
#: Types of NVTX events that are intervals: push-pop and start-end, of the plain and of the extended interface.
_INTERVALS = (59, 60, 70, 71)


@dataclass(frozen=True)
class Batch:
    """Rows of one table whose times are valid.

    Parameters
    ----------
    columns : mapping of str to array
        Columns as `profilers.readers.nsys.tables.Tables.read` gives them.
    start, duration : array of int64
        Start and duration in ns; a duration may be `MISSING`.
    """

    columns: Mapping[str, Any]
    start: Ints
    duration: Ints

    def ints(self, name: str) -> Ints:
        """Return a column as int64, `MISSING` where a value is no integer."""
        return whole_numbers(self.columns[name])


@dataclass(frozen=True)
class Context:
    """State of an export that the conversion of every table needs.

    Parameters
    ----------
    strings : StringIds
        Texts by number.
    processes : Processes
        Ranks of processes.
    counts : Counter
        Counts of losses, updated.
    spellings : dict of str to Spelling
        Texts made so far, by purpose.
    """

    strings: StringIds
    processes: Processes
    counts: Counter[str]
    spellings: dict[str, Spelling] = field(default_factory=dict)


def timed(columns: Mapping[str, Any], counts: Counter[str]) -> Batch:
    """Return the rows whose times are valid, and count the others.

    Parameters
    ----------
    columns : mapping of str to array
        Columns of the rows, among them ``start`` and ``end`` in ns.
    counts : Counter
        Counts of rows without a start, without an end, and with an end before their start; updated.
    """
    start, end = whole_numbers(columns["start"]), whole_numbers(columns["end"])
    # CUPTI writes 0 and 0 for an unknown time.
    started = (start > -_TIME_LIMIT) & (start < _TIME_LIMIT) & ((start != 0) | (end != 0))
    ended = (end > -_TIME_LIMIT) & (end < _TIME_LIMIT)
    duration = np.where(started & ended, np.where(ended, end, 0) - np.where(started, start, 0), MISSING)
    backwards = (duration < 0) & (duration != MISSING)
    counts["dropped_no_time"] += int((~started).sum())
    counts["dropped_negative"] += int(backwards.sum())
    counts["missing_duration"] += int((started & ~ended).sum())
    valid = started & ~backwards
    if valid.all():
        return Batch(columns, start, duration)
    rows = np.flatnonzero(valid)
    return Batch({name: taken(values, rows) for name, values in columns.items()}, start[rows], duration[rows])


def arguments(names: Sequence[str]) -> Spelling:
    """Return the spelling of the named columns as a JSON object, grid and block as lists, without nulls."""

    def spell(row: tuple[int | None, ...]) -> str | None:
        members: dict[str, Any] = {}
        for name, value in zip(names, row, strict=True):
            if value is not None and name[:-1] in ("grid", "block"):
                members.setdefault(name[:-1], []).append(value)
            elif value is not None:
                members[name] = value
        return json.dumps(members, separators=(",", ":")) if members else None

    return Spelling(spell)


KERNEL_ARGS = (
    *("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ", "contextId", "greenContextId", "launchType"),
    *("cacheConfig", "staticSharedMemory", "dynamicSharedMemory", "localMemoryPerThread", "localMemoryTotal"),
    *("sharedMemoryExecuted", "sharedMemoryLimitConfig", "graphId", "clusterX", "clusterY", "clusterZ"),
)
COPY_ARGS = ("contextId", "greenContextId", "srcDeviceId", "dstDeviceId", "migrationCause", "copyCount", "graphNodeId")
GRAPH_ARGS = ("graphId", "graphExecId", "contextId", "greenContextId")
FILL_ARGS = ("contextId", "greenContextId", "value", "graphNodeId")
SYNC_ARGS = ("contextId", "greenContextId")
LAUNCH_ARGS = ("returnValue",)
RANGE_ARGS = ("domainId", "category")


def kernels(batch: Batch, context: Context) -> Columns:
    """Return columns of ``kernels``."""
    encode = context.strings.encode
    names = encode(batch.columns["demangledName"])
    if names.null_count:
        names = _with_names(context, names, encode(batch.columns["shortName"]), encode(batch.columns["mangledName"]))
    static, dynamic = batch.ints("staticSharedMemory"), batch.ints("dynamicSharedMemory")
    grid, block = (_product([batch.ints(f"{extent}{axis}") for axis in "XYZ"]) for extent in ("grid", "block"))
    return {
        **_device_columns(batch, context),
        "name": names,
        "workgroups": grid,
        "workgroup_size": _narrow(block),
        "registers": _narrow(batch.ints("registersPerThread")),
        "lds_bytes": _sum(static, dynamic),
        "graph_node": batch.ints("graphNodeId"),
        "args": _args(batch, context, "kernels", KERNEL_ARGS),
    }


def graphs(batch: Batch, context: Context) -> Columns:
    """Return columns of ``kernels`` from launches of CUDA graphs, each graph as one kernel.

    With ``--cuda-graph-trace=graph``, its default, the profiler records nothing else of the work of a graph.
    """
    spelling = Spelling(lambda row: "CUDA graph" if row[0] is None else f"CUDA graph {row[0]}")
    name = context.spellings.setdefault("graph", spelling)
    return {
        **_device_columns(batch, context),
        "name": name.encode([batch.ints("graphId")]),
        "args": _args(batch, context, "graphs", GRAPH_ARGS),
    }


def copies(batch: Batch, context: Context) -> Columns:
    """Return columns of ``copies`` from memory copies."""
    kind = batch.ints("copyKind")
    direction = context.spellings.setdefault("direction", Spelling(lambda row: _direction(row[0])))
    name = context.spellings.setdefault("copy", Spelling(_copy_name))
    return {
        **_device_columns(batch, context),
        "name": name.encode([kind, batch.ints("srcKind"), batch.ints("dstKind")]),
        "direction": direction.encode([kind]),
        "bytes": batch.ints("bytes"),
        "args": _args(batch, context, "copies", COPY_ARGS),
    }


def fills(batch: Batch, context: Context) -> Columns:
    """Return columns of ``copies`` from memory fills."""
    name = context.spellings.setdefault("fill", Spelling(lambda row: f"Memset ({_memory(row[0])})"))
    return {
        **_device_columns(batch, context),
        "name": name.encode([batch.ints("memKind")]),
        "direction": constant("memset", len(batch.start)),
        "bytes": batch.ints("bytes"),
        "args": _args(batch, context, "fills", FILL_ARGS),
    }


def syncs(batch: Batch, context: Context) -> Columns:
    """Return columns of ``syncs``."""
    spelling = context.spellings.setdefault("sync", Spelling(lambda row: _SYNCS.get(row[0] or 0, "Unknown Sync")))
    kind = spelling.encode([batch.ints("syncType")])
    columns = _device_columns(batch, context)
    return {
        **columns,
        "name": kind,
        "sync": kind,
        "stream": _null_if_none(columns["stream"]),
        "event": _null_if_none(batch.ints("eventId")),
        "args": _args(batch, context, "syncs", SYNC_ARGS),
    }


def launches(batch: Batch, context: Context) -> Columns:
    """Return columns of ``launches`` from calls of the runtime and of the driver."""
    names = context.strings.encode(batch.columns["nameId"], lambda name: _VERSION.sub("", name))
    columns = _host_columns(batch, context)
    correlation = batch.ints("correlationId")
    launched = context.processes.own(process_of(batch.ints("globalTid")))
    spelling = Spelling(lambda row: "cuda_driver" if row[0] in _DRIVER_CLASSES else "cuda_runtime")
    api = context.spellings.setdefault("api", spelling)
    returned = batch.ints("returnValue")
    return {
        **columns,
        "name": _with_names(context, names),
        "api": api.encode([batch.ints("eventClass")]),
        "correlation": np.where(launched, correlation, MISSING),
        "args": context.spellings.setdefault("launches", arguments(LAUNCH_ARGS)).encode(
            [np.where(returned == 0, MISSING, returned)]  # a call that succeeds returns 0
        ),
    }


def ranges(columns: Mapping[str, Any], context: Context) -> Columns:
    """Return columns of ``ranges`` from NVTX events; events that are no intervals are counted."""
    kind, end = whole_numbers(columns["eventType"]), whole_numbers(columns["end"])
    interval = (np.isin(kind, _INTERVALS) | (kind == MISSING)) & (end != MISSING)
    context.counts["skipped_marker"] += int((~interval).sum())
    if not interval.all():
        columns = {name: taken(values, np.flatnonzero(interval)) for name, values in columns.items()}
    batch = timed(columns, context.counts)
    return {
        **_host_columns(batch, context),
        "name": _range_names(batch, context),
        "category": constant("user_annotation", len(batch.start)),
        "args": _args(batch, context, "ranges", RANGE_ARGS),
    }


def _range_names(batch: Batch, context: Context) -> pa.DictionaryArray:
    numbered = context.strings.encode(batch.columns["textId"])
    text = batch.columns["text"]
    if isinstance(text, np.ndarray):
        return _with_names(context, numbered)
    return _with_names(context, text.cast(pa.string()).dictionary_encode(), numbered)


def _with_names(context: Context, *choices: pa.DictionaryArray) -> pa.DictionaryArray:
    """Return the first name of each row, "unknown" and counted for a row without one."""
    names, missing = named(*choices)
    context.counts["missing_name"] += missing
    return names


def _device_columns(batch: Batch, context: Context) -> Columns:
    process = process_of(batch.ints("globalPid"))
    return {
        "rank": context.processes.rank(process),
        "start_ns": batch.start,
        "dur_ns": batch.duration,
        "device": _narrow(batch.ints("deviceId")),
        "stream": batch.ints("streamId"),
        "correlation": batch.ints("correlationId"),
    }


def _host_columns(batch: Batch, context: Context) -> Columns:
    thread = batch.ints("globalTid")
    process = process_of(thread)
    return {
        "rank": context.processes.rank(process),
        "start_ns": batch.start,
        "dur_ns": batch.duration,
        "process": np.where(process == MISSING, MISSING, process & _PID),
        "thread": np.where(thread == MISSING, MISSING, thread & _PID),
    }


def _args(batch: Batch, context: Context, kind: str, names: Sequence[str]) -> pa.DictionaryArray:
    spelling = context.spellings.setdefault(kind, arguments(names))
    return spelling.encode([batch.ints(name) for name in names])


def _product(factors: Sequence[Ints]) -> Ints:
    """Return the product of positive integers; `MISSING` if one is not positive or the product is too large."""
    product = np.ones(len(factors[0]), dtype=np.int64)
    magnitude = np.ones(len(factors[0]))
    for factor in factors:
        product, magnitude = product * factor, magnitude * np.where(factor < 1, np.inf, factor)
    return np.where(magnitude < 1 << 62, product, MISSING)


def _sum(left: Ints, right: Ints) -> Ints:
    fits = (left >= 0) & (right >= 0) & (left < INT32_LIMIT) & (right < INT32_LIMIT)
    return np.where(fits, left + right, MISSING)


def _narrow(values: Ints) -> Ints:
    """Return `values` with `MISSING` for numbers that do not fit int32."""
    return np.where((values >= -INT32_LIMIT) & (values < INT32_LIMIT), values, MISSING)


def _null_if_none(values: Ints) -> Ints:
    return np.where(values == _NONE, MISSING, values)


def _direction(kind: int | None) -> str:
    return _DIRECTIONS.get(kind or 0, "unknown")


def _memory(kind: int | None) -> str:
    return _MEMORIES.get(-1 if kind is None else kind, "Unknown")


def _copy_name(row: tuple[int | None, ...]) -> str:
    kind, source, target = row
    name = f"Memcpy {_direction(kind)}"
    return name if source is None or target is None else f"{name} ({_memory(source)} -> {_memory(target)})"
