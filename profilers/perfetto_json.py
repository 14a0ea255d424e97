"""A trace as the JSON that ui.perfetto.dev and Chrome's viewer open, and that the Kineto reader reads back."""

import gzip
import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa

from profilers.arrays import MISSING, integers
from profilers.atomic import written_whole
from profilers.kineto.arguments import ARGUMENTS, HOST_KINDS
from profilers.linking import lookup
from profilers.schema import KINDS
from profilers.trace import Trace

__all__ = ["export_perfetto"]

_CATEGORY: Mapping[str, str] = {"ops": "cpu_op", "kernels": "kernel", "copies": "gpu_memcpy", "syncs": "cuda_sync"}
_FACTS: Mapping[str, str] = {
    "collective": "Collective name",
    "elements_in": "In msg nelems",
    "elements_out": "Out msg nelems",
    "dtype": "dtype",
    "group_name": "Process Group Name",
    "group_size": "Group size",
    "group_ranks": "Process Group Ranks",
}
_ROWS = 16384


def export_perfetto(trace: Trace, path: Path) -> None:
    """Write `trace` to the file `path`, packed where its name ends in ``.gz``; whole or not at all.

    What the PyTorch profiler wrote comes back from this file as it was: `profilers.collect.collect` gives the same
    rows. Of other profilers' traces, columns that Kineto has no argument for are left out. A Python loop over
    events, about 10 us each.

    Raises
    ------
    InvalidInputError
        The file cannot be written.
    """
    with written_whole(path) as raw, ExitStack() as stack:
        out: Any = raw
        if path.suffix == ".gz":
            out = stack.enter_context(gzip.GzipFile(fileobj=raw, mode="wb", compresslevel=6, mtime=0))
        out.write(_header(trace).encode())
        separator = "\n"
        for line in _lines(trace):
            out.write((separator + line).encode("utf-8", "replace"))
            separator = ",\n"
        out.write(b"\n]}\n")


def _header(trace: Trace) -> str:
    meta = trace.meta
    devices = [
        {"id": d.device, "name": d.name, "numSms": d.compute_units, "totalGlobalMem": d.memory_bytes}
        for d in meta.devices
    ]
    header: dict[str, Any] = {"schemaVersion": 1, "deviceProperties": [_present(d) for d in devices]}
    if meta.ranks:
        rank = meta.ranks[0] if len(meta.ranks) == 1 else None
        header["distributedInfo"] = _present({"rank": rank, "world_size": meta.world_size})
    if meta.clock_base_ns:
        header["baseTimeNanoseconds"] = meta.clock_base_ns
    return json.dumps(header)[:-1] + ', "displayTimeUnit": "ms", "traceEvents": ['


def _present(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def _lines(trace: Trace) -> Iterator[str]:
    yield from _flows(trace)
    facts = _facts(trace.collectives)
    for kind in KINDS:
        if kind == "collectives":
            continue
        table = trace.tables[kind]
        for first in range(0, table.num_rows, _ROWS):
            for row in table.slice(first, _ROWS).to_pylist():
                yield _event(kind, row, facts, many=len(trace.meta.ranks) > 1)


def _facts(collectives: pa.Table) -> dict[int, dict[str, Any]]:
    """Return what Kineto writes of a collective, by its kernel."""
    rows = collectives.select(["kernel_id", *_FACTS]).to_pylist()
    return {
        r["kernel_id"]: _present({key: r[name] for name, key in _FACTS.items()})
        for r in rows
        if r["kernel_id"] is not None
    }


def _event(kind: str, row: Mapping[str, Any], facts: Mapping[int, dict[str, Any]], *, many: bool) -> str:
    rest = (row["args"] or "{}")[1:-1]
    own = {} if kind != "kernels" else facts.get(row["id"], {})
    if '"Collective name"' in rest:
        own = {}
    typed = {a.keys[0]: row[a.column] for a in ARGUMENTS[kind] if a.what != "json" and row[a.column] is not None}
    if many and '"rank":' not in rest:
        typed["rank"] = row["rank"]
    if kind in ("kernels", "launches") and row.get("workgroups") and '"grid":' not in rest:
        typed |= {"grid": [row["workgroups"], 1, 1], "block": [row["workgroup_size"] or 1, 1, 1]}
    members = [json.dumps(own | typed)[1:-1], rest]
    members += [
        f'"{a.keys[0]}": {row[a.column]}' for a in ARGUMENTS[kind] if a.what == "json" and row[a.column] is not None
    ]
    args = ", ".join(member for member in members if member)
    head: dict[str, Any] = {"ph": "C" if kind == "counters" else "X", "cat": _category(kind, row), "name": row["name"]}
    if kind in HOST_KINDS:
        head |= _present({"pid": row["process"], "tid": row["thread"]})
    else:
        head |= {"pid": row["device"] or 0, "tid": row["stream"] or 0}
    times = f'"ts": {_us(row["start_ns"])}' + ("" if row["dur_ns"] is None else f', "dur": {_us(row["dur_ns"])}')
    return f"{json.dumps(head)[:-1]}, {times}, " + f'"args": {{{args}}}}}'


def _category(kind: str, row: Mapping[str, Any]) -> str:
    if kind == "copies":
        return "gpu_memset" if row["direction"] == "memset" else "gpu_memcpy"
    return _CATEGORY.get(kind) or str(row["api" if kind == "launches" else "category"] or "unknown")


def _us(ns: int) -> str:
    """Return microseconds with three decimals, exactly."""
    whole, rest = divmod(abs(ns), 1000)
    return f"{'-' if ns < 0 else ''}{whole}.{rest:03d}"


def _flows(trace: Trace) -> Iterator[str]:
    """Yield the arrows from calls to what they launched."""
    launches = trace.launches
    ids, starts = integers(launches, "id"), integers(launches, "start_ns")
    places = {name: integers(launches, name) for name in ("process", "thread")}
    for kind in ("kernels", "copies"):
        table = trace.tables[kind]
        called = integers(table, "launch_id")
        begun = lookup(ids, starts, called)
        where = {name: lookup(ids, values, called) for name, values in places.items()}
        columns = (integers(table, name) for name in ("id", "start_ns", "device", "stream"))
        for number, time, device, stream, start, pid, tid in zip(*columns, begun, *where.values(), strict=True):
            if MISSING in (start, pid, tid, device, stream):
                continue
            common = f'"cat": "ac2g", "name": "ac2g", "id": {number}'
            yield f'{{"ph": "s", {common}, "pid": {pid}, "tid": {tid}, "ts": {_us(int(start))}}}'
            yield f'{{"ph": "f", "bp": "e", {common}, "pid": {device}, "tid": {stream}, "ts": {_us(int(time))}}}'
