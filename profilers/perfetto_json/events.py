"""The file: header, names of processes and threads, events kind by kind and batch by batch, arrows.

What has a column goes under Kineto's key for it, what was kept in ``args`` follows as it was. Iterations are not
written, and links only as arrows: reading finds both again by the same rules. What does not survive a round trip,
because Kineto has no place for it: numbers of processes that several ranks share (the higher rank gets another),
ranks of device properties, units of counters and the kernels that they were measured on, events that start at 0 and
last 0 ns (Kineto's sign for no time), iterations that ``auto`` does not find, and collectives without a kernel, which
become ranges. In a trace of several ranks the arguments of every event name its rank.
"""

import gzip
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profilers.arrays import MISSING, Ints, arrow_array, integers
from profilers.atomic import written_whole
from profilers.columns import lookup
from profilers.errors import InvalidInputError
from profilers.kineto.arguments import HOST_KINDS, KIND_OF
from profilers.perfetto_json.arguments import Arguments
from profilers.perfetto_json.columns import every, joined, member, microseconds, numbers, one, quoted, text
from profilers.perfetto_json.places import Places, find_places
from profilers.schema import KINDS
from profilers.trace import Trace

__all__ = ["export_perfetto"]

_BATCH = 16384
_PLAIN = {"ops": "cpu_op", "kernels": "kernel", "syncs": "cuda_sync", "collectives": "collective"}
_LAUNCHES = [name for name, kind in KIND_OF.items() if kind == "launches"]


def export_perfetto(trace: Trace, path: Path) -> None:
    """Write `trace` to the file `path`, packed where its name ends in ``.gz``; whole or not at all.

    What the PyTorch profiler wrote comes back from this file as it was: `profilers.collect.collect` gives the same
    rows. Of other profilers' traces, columns that Kineto has no argument for are left out.

    Raises
    ------
    InvalidInputError
        The trace has no event, or the file cannot be written.
    """
    loose = trace.collectives.filter(pc.is_null(trace.collectives["kernel_id"]))
    tables = {kind: loose if kind == "collectives" else trace.tables[kind] for kind in KINDS}
    if not any(table.num_rows for table in tables.values()):
        raise InvalidInputError(f"{path}: the trace has no event to write")
    with written_whole(path) as raw, ExitStack() as stack:
        out: Any = raw
        if path.suffix == ".gz":
            out = stack.enter_context(gzip.GzipFile("", "wb", 6, raw, mtime=0))
        _Writing(trace, tables, out).run()


class _Writing:
    """One pass over a trace; every event but the first follows a comma."""

    def __init__(self, trace: Trace, tables: dict[str, pa.Table], out: Any) -> None:
        self._trace = trace
        self._tables = tables
        self._out = out
        self._places = find_places(trace)
        self._arguments = Arguments(trace)
        self._launch_ids, self._launch_rows = integers(trace.launches, "id"), np.arange(trace.launches.num_rows)

    def run(self) -> None:
        """Write the whole file."""
        head = json.dumps(_header(self._trace), separators=(",", ":"))
        names = [json.dumps(event, separators=(",", ":")) for event in _names(self._trace, self._places)]
        self._out.write(f'{head[:-1]},"traceEvents":[\n'.encode() + ",\n".join(names).encode())
        for kind, table in self._tables.items():
            for first in range(0, table.num_rows, _BATCH):
                batch = table.slice(first, _BATCH)
                self._lines(self._events(kind, batch))
                if kind in ("kernels", "copies"):
                    self._lines(self._arrows(batch))
        self._out.write(b"\n]}\n")

    def _lines(self, events: pa.Array) -> None:
        """Write each event after a comma, on a line of its own: the bytes of the array as they are."""
        if len(events):
            lines = pc.binary_join_element_wise(",\n", events, "")
            _, offsets, data = lines.buffers()
            ends = np.frombuffer(offsets, np.int32)[lines.offset : lines.offset + len(lines) + 1]
            self._out.write(memoryview(data)[int(ends[0]) : int(ends[-1])])

    def _events(self, kind: str, batch: pa.Table) -> pa.Array:
        process, thread = self._place(kind, batch)
        parts = [
            member('{"ph":', _phase(kind, batch)),
            member(',"cat":', quoted(_category(kind, batch))),
            member(',"name":', quoted(batch["name"])),
            member(',"pid":', numbers(process)),
            member(',"tid":', numbers(thread)),
            member(',"ts":', microseconds(integers(batch, "start_ns"))),
            member(',"dur":', microseconds(integers(batch, "dur_ns"))),
            member(',"args":{', self._arguments.of(kind, batch)),
            every(batch.num_rows, "}}"),
        ]
        return joined(parts, "")

    def _place(self, kind: str, batch: pa.Table) -> tuple[Ints, Ints]:
        rank = integers(batch, "rank")
        if kind in HOST_KINDS:
            return self._places.process(rank, integers(batch, "process")), integers(batch, "thread")
        if kind == "collectives":
            return np.full(len(rank), MISSING), np.full(len(rank), MISSING)
        stream = integers(batch, "stream")
        return self._places.device(rank, integers(batch, "device")), np.where(stream == MISSING, 0, stream)

    def _arrows(self, batch: pa.Table) -> pa.Array:
        """Return both ends of an arrow from each launch to what it launched."""
        rows = lookup(self._launch_ids, self._launch_rows, integers(batch, "launch_id"))
        batch = batch.filter(pa.array(rows != MISSING))
        launches = self._trace.launches.take(arrow_array(rows[rows != MISSING]))
        flow = member(',"cat":"ac2g","name":"ac2g","id":', numbers(integers(batch, "id")))
        ends = []
        for kind, table, phase in (("launches", launches, '{"ph":"s"'), ("kernels", batch, '{"ph":"f","bp":"e"')):
            process, thread = self._place(kind, table)
            place = [member(',"pid":', numbers(process)), member(',"tid":', numbers(thread))]
            time = member(',"ts":', microseconds(integers(table, "start_ns")))
            ends.append(joined([every(table.num_rows, phase), flow, *place, time, every(table.num_rows, "}")], ""))
        return pa.concat_arrays(ends)


def _phase(kind: str, batch: pa.Table) -> pa.Array:
    """Return X; of counters C where they have a value, else the instant that they were."""
    if kind != "counters":
        return every(batch.num_rows, '"X"')
    return one(pc.if_else(pc.and_(pc.is_null(batch["value"]), pc.is_valid(batch["args"])), '"i"', '"C"'))


def _category(kind: str, batch: pa.Table) -> pa.Array:
    """Return the category under which the reader finds the kind again."""
    if kind in _PLAIN:
        return every(batch.num_rows, _PLAIN[kind])
    if kind == "copies":
        fill = pc.fill_null(pc.equal(text(batch["direction"]), "memset"), False)
        return one(pc.if_else(fill, "gpu_memset", "gpu_memcpy"))
    found = text(batch["api" if kind == "launches" else "category"])
    if kind == "launches":
        return pc.if_else(pc.is_in(found, value_set=pa.array(_LAUNCHES)), found, "cuda_runtime")
    if kind == "counters":
        return found
    return pc.if_else(pc.is_in(pc.utf8_lower(found), value_set=pa.array([*KIND_OF, "trace"])), "range", found)


def _header(trace: Trace) -> dict[str, Any]:
    meta = trace.meta
    devices = dict.fromkeys((d.device, d.name, d.compute_units, d.memory_bytes) for d in meta.devices)
    keys = ("id", "name", "numSms", "totalGlobalMem")
    listed = [{k: v for k, v in zip(keys, row, strict=True) if v is not None} for row in devices]
    job = {"rank": meta.ranks[0] if len(meta.ranks) == 1 else None, "world_size": meta.world_size}
    content: dict[str, Any] = {"schemaVersion": 1, "deviceProperties": listed}
    if stated := {key: value for key, value in job.items() if value is not None}:
        content["distributedInfo"] = stated
    if meta.clock_base_ns:
        content["baseTimeNanoseconds"] = meta.clock_base_ns
    return {**content, "displayTimeUnit": "ns"}


def _names(trace: Trace, places: Places) -> Iterator[dict[str, Any]]:
    """Yield the events that name the trace, processes and streams."""

    def named(what: str, pid: int, name: str, **place: int) -> dict[str, Any]:
        return {"ph": "M", "name": what, "pid": pid, **place, "ts": 0, "args": {"name": name}}

    models = {(d.rank, d.device): d.name for d in trace.meta.devices}
    yield named("trace_name", 0, "seqpoint")
    for (rank, process), pid in places.processes.items():
        yield named("process_name", pid, f"rank {rank}: process {process}")
    for (rank, device), pid in places.devices.items():
        label = "unknown device" if device == MISSING else f"device {device} {models.get((rank, device), '')}"
        yield named("process_name", pid, f"rank {rank}: {label.rstrip()}")
    for rank, device, stream in places.threads:
        tid = 0 if stream == MISSING else stream
        yield named("thread_name", places.devices[rank, device], f"stream {tid}", tid=tid)
