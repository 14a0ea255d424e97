"""From the rows of an export's tables to rows of the kinds of event, whole columns at a time."""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from profilers.readers.nsys.tables import Processes, StringIds, named, process_of, whole_numbers
from profilers.trace.arrays import MISSING, Ints
from profilers.trace.columns import Spelling

Columns = dict[str, Any]

_PID = (1 << 24) - 1
#: Every time lies below, so that differences and sums fit int64.
_TIME_LIMIT = 1 << 61
#: What CUPTI writes where there is no stream or no event.
_NONE = (1 << 32) - 1
_NARROW = 1 << 31
#: ``cudaLaunchKernel_v7000``: the version of the interface, which other profilers leave out.
_VERSION = re.compile(r"_v\d{4,}$")
#: CUPTI's numbers, in the words of Kineto.
_DIRECTIONS = {
    **{1: "HtoD", 2: "DtoH", 3: "HtoA", 4: "AtoH", 5: "AtoA", 6: "AtoD", 7: "DtoA", 8: "DtoD", 9: "HtoH", 10: "PtoP"},
    **{11: "HtoD", 12: "DtoH", 13: "DtoD"},
}
_MEMORIES = {0: "Pageable", 1: "Pinned", 2: "Device", 3: "Array", 4: "Managed", 5: "Device Static", 6: "Managed Static"}
_SYNCS = {1: "Event Sync", 2: "Stream Wait Event", 3: "Stream Sync", 4: "Context Sync"}
_DRIVER_CLASSES = (1, 13)
#: NVTX events that are intervals: push-pop, start-end, and the same of the extended interface.
_INTERVALS = (59, 60, 70, 71)


@dataclass(frozen=True)
class Batch:
    """Rows of one table, with times that can be used.

    Parameters
    ----------
    columns : mapping of str to array
        As `profilers.readers.nsys.tables.Tables.read` gives them.
    start, duration : array of int64
        In ns; a duration may be `MISSING`.
    """

    columns: Mapping[str, Any]
    start: Ints
    duration: Ints

    def ints(self, name: str) -> Ints:
        """Return a column as int64, `MISSING` where there is no integer."""
        return whole_numbers(self.columns[name])


@dataclass(frozen=True)
class Context:
    """What the rows of all tables need: texts, ranks, and where losses are counted."""

    strings: StringIds
    processes: Processes
    counts: Counter[str]
    spellings: dict[str, Spelling] = field(default_factory=dict)


def timed(columns: Mapping[str, Any], counts: Counter[str]) -> Batch:
    """Return the rows whose times can be used; count the others."""
    start, end = whole_numbers(columns["start"]), whole_numbers(columns["end"])
    known = (start > -_TIME_LIMIT) & (start < _TIME_LIMIT) & ((start != 0) | (end != 0))  # CUPTI: 0 and 0 is unknown
    ended = (end > -_TIME_LIMIT) & (end < _TIME_LIMIT)
    duration = np.where(known & ended, np.where(ended, end, 0) - np.where(known, start, 0), MISSING)
    backwards = (duration < 0) & (duration != MISSING)
    counts["dropped_no_time"] += int((~known).sum())
    counts["dropped_negative"] += int(backwards.sum())
    counts["missing_duration"] += int((known & ~ended).sum())
    good = known & ~backwards
    if good.all():
        return Batch(columns, start, duration)
    return Batch({name: chosen(values, good) for name, values in columns.items()}, start[good], duration[good])


def chosen(values: Any, rows: npt.NDArray[np.bool_]) -> Any:
    """Return the rows of a column of which `rows` is true."""
    return values[rows] if isinstance(values, np.ndarray) else values.filter(pa.array(rows))


def arguments(names: Sequence[str]) -> Spelling:
    """Return what spells the values of columns as a JSON object: grid and block as lists, without nulls."""

    def spell(row: tuple[int | None, ...]) -> str | None:
        found: dict[str, Any] = {}
        for name, value in zip(names, row, strict=True):
            if value is not None and name[:-1] in ("grid", "block"):
                found.setdefault(name[:-1], []).append(value)
            elif value is not None:
                found[name] = value
        return json.dumps(found, separators=(",", ":")) if found else None

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
    """Return rows of ``kernels``."""
    encode = context.strings.encode
    names = encode(batch.columns["demangledName"])
    if names.null_count:
        names = _named(context, names, encode(batch.columns["shortName"]), encode(batch.columns["mangledName"]))
    static, dynamic = batch.ints("staticSharedMemory"), batch.ints("dynamicSharedMemory")
    grid, block = (_product([batch.ints(f"{what}{axis}") for axis in "XYZ"]) for what in ("grid", "block"))
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
    """Return rows of ``kernels`` from launches of CUDA graphs, each one piece of work.

    This is all that ``--cuda-graph-trace=graph``, the default of the profiler, records of what a graph runs.
    """
    name = context.spellings.setdefault("graph", Spelling(_graph_name))
    return {
        **_device_columns(batch, context),
        "name": name.encode([batch.ints("graphId")]),
        "args": _args(batch, context, "graphs", GRAPH_ARGS),
    }


def copies(batch: Batch, context: Context) -> Columns:
    """Return rows of ``copies`` from memory copies."""
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
    """Return rows of ``copies`` from memory fills."""
    name = context.spellings.setdefault("fill", Spelling(lambda row: f"Memset ({_memory(row[0])})"))
    return {
        **_device_columns(batch, context),
        "name": name.encode([batch.ints("memKind")]),
        "direction": _constant("memset", len(batch.start)),
        "bytes": batch.ints("bytes"),
        "args": _args(batch, context, "fills", FILL_ARGS),
    }


def syncs(batch: Batch, context: Context) -> Columns:
    """Return rows of ``syncs``."""
    spelling = context.spellings.setdefault("sync", Spelling(lambda row: _SYNCS.get(row[0] or 0, "Unknown Sync")))
    kind = spelling.encode([batch.ints("syncType")])
    columns = _device_columns(batch, context)
    return {
        **columns,
        "name": kind,
        "sync": kind,
        "stream": _without_none(columns["stream"]),
        "event": _without_none(batch.ints("eventId")),
        "args": _args(batch, context, "syncs", SYNC_ARGS),
    }


def launches(batch: Batch, context: Context) -> Columns:
    """Return rows of ``launches``."""
    names = context.strings.encode(batch.columns["nameId"], lambda name: _VERSION.sub("", name))
    columns = _host_columns(batch, context)
    correlation = batch.ints("correlationId")
    caused = context.processes.own(process_of(batch.ints("globalTid")))
    api = context.spellings.setdefault("api", Spelling(_api))
    returned = batch.ints("returnValue")
    return {
        **columns,
        "name": _named(context, names),
        "api": api.encode([batch.ints("eventClass")]),
        "correlation": np.where(caused, correlation, MISSING),
        "args": context.spellings.setdefault("launches", arguments(LAUNCH_ARGS)).encode(
            [np.where(returned == 0, MISSING, returned)]  # only a failure is news
        ),
    }


def ranges(columns: Mapping[str, Any], context: Context) -> Columns:
    """Return rows of ``ranges`` from NVTX events; what is no interval is counted."""
    kind, end = whole_numbers(columns["eventType"]), whole_numbers(columns["end"])
    interval = (np.isin(kind, _INTERVALS) | (kind == MISSING)) & (end != MISSING)
    context.counts["skipped_marker"] += int((~interval).sum())
    if not interval.all():
        columns = {name: chosen(values, interval) for name, values in columns.items()}
    batch = timed(columns, context.counts)
    return {
        **_host_columns(batch, context),
        "name": _range_names(batch, context),
        "category": _constant("user_annotation", len(batch.start)),
        "args": _args(batch, context, "ranges", RANGE_ARGS),
    }


def _range_names(batch: Batch, context: Context) -> pa.DictionaryArray:
    numbered = context.strings.encode(batch.columns["textId"])
    text = batch.columns["text"]
    if isinstance(text, np.ndarray):
        return _named(context, numbered)
    return _named(context, text.cast(pa.string()).dictionary_encode(), numbered)


def _named(context: Context, *choices: pa.DictionaryArray) -> pa.DictionaryArray:
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


def _constant(text: str, count: int) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, dtype=np.int32)), pa.array([text]))


def _product(factors: Sequence[Ints]) -> Ints:
    """Return the product of whole numbers from 1 on; `MISSING` where one is smaller or the product too large."""
    exact = np.ones(len(factors[0]), dtype=np.int64)
    rough = np.ones(len(factors[0]))
    for factor in factors:
        exact, rough = exact * factor, rough * np.where(factor < 1, np.inf, factor)
    return np.where(rough < 1 << 62, exact, MISSING)


def _sum(one: Ints, other: Ints) -> Ints:
    known = (one >= 0) & (other >= 0) & (one < _NARROW) & (other < _NARROW)
    return np.where(known, one + other, MISSING)


def _narrow(values: Ints) -> Ints:
    """Return `values`, `MISSING` where one does not fit int32."""
    return np.where((values >= -_NARROW) & (values < _NARROW), values, MISSING)


def _without_none(values: Ints) -> Ints:
    return np.where(values == _NONE, MISSING, values)


def _direction(kind: int | None) -> str:
    return _DIRECTIONS.get(kind or 0, "unknown")


def _memory(kind: int | None) -> str:
    return _MEMORIES.get(-1 if kind is None else kind, "Unknown")


def _graph_name(row: tuple[int | None, ...]) -> str:
    return "CUDA graph" if row[0] is None else f"CUDA graph {row[0]}"


def _copy_name(row: tuple[int | None, ...]) -> str:
    kind, source, target = row
    name = f"Memcpy {_direction(kind)}"
    return name if source is None or target is None else f"{name} ({_memory(source)} -> {_memory(target)})"


def _api(row: tuple[int | None, ...]) -> str:
    return "cuda_driver" if row[0] in _DRIVER_CLASSES else "cuda_runtime"
