"""Write a trace as the JSON that ui.perfetto.dev and Chrome's viewer open, and that the Kineto reader reads back.

`export_perfetto` writes a header, the names of processes and threads, the events kind by kind, and arrows from
launches to kernels. Host processes keep their numbers, and each device becomes a process. Columns become JSON text
batch by batch, without a Python object for each number.

A column is written under Kineto's key for it, and ``args`` follow unchanged. Iterations are not written, and links
only as arrows, since reading finds both again by the same rules. Facts without a place in Kineto's format are lost:

- numbers of processes that several ranks share (the higher rank gets another);
- ranks of device properties;
- units of counters, and the kernels that they were measured on;
- events that start at 0 and last 0 ns (Kineto's sign for no time);
- iterations that ``auto`` does not find;
- collectives without a kernel, which become ranges;
- a user's own classes of kernels, and which iterations are the context of a slice.

In a trace of several ranks the arguments of every event name its rank.
"""

import gzip
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profilers.errors import InvalidInputError
from profilers.files import replaced_file
from profilers.ingest.collectives import ANNOTATION, add_collectives
from profilers.readers.common.numbers import IN_WORK_ITEMS
from profilers.readers.kineto.reader import SYNTHETIC_MARK
from profilers.readers.kineto.rows import ARGUMENTS, HOST_KINDS, KIND_OF, direction
from profilers.trace.arrays import MISSING, Bools, Ints, arrow_array, integers
from profilers.trace.columns import lookup
from profilers.trace.kernels import is_collective
from profilers.trace.schema import KINDS
from profilers.trace.trace import Trace, TraceMeta


def single(values: Any) -> pa.Array:
    """Return a chunked or plain array as one plain array."""
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values


def text(values: Any) -> pa.Array:
    """Return values as text."""
    return single(values.cast(pa.string()))


def joined(columns: Sequence[pa.Array], separator: str) -> pa.Array:
    """Return the texts of each row joined by a separator, without nulls; no text may end with the separator.

    Arrow 26 can leave out nulls itself, but returns too few rows if all texts of a row are null.

    Examples
    --------
    >>> joined([pa.array(["a", None]), pa.array([None, None], pa.string()), pa.array(["b", None])], ",").to_pylist()
    ['a,b', '']
    """
    ended = [pc.fill_null(pc.binary_join_element_wise(column, separator, ""), "") for column in columns]
    return pc.utf8_rtrim(pc.binary_join_element_wise(*ended, ""), separator)


def member(key: str, values: pa.Array) -> pa.Array:
    """Return key and value of each row as one text, or null for a null value."""
    return pc.binary_join_element_wise(key, values, "")


def numbers(values: Ints) -> pa.Array:
    """Return whole numbers as text, with null for `MISSING`."""
    return arrow_array(values, values == MISSING).cast(pa.string())


def reals(values: Any) -> pa.Array:
    """Return numbers as text that reads back as the same float64; null for numbers that JSON cannot hold."""
    return pa.array([None if v is None or not np.isfinite(v) else repr(v) for v in values.to_pylist()], pa.string())


def microseconds(values: Ints) -> pa.Array:
    """Return times in ns as exact text in us with three decimals; null for `MISSING`.

    Examples
    --------
    >>> microseconds(np.array([1500, -7, MISSING])).to_pylist()
    ['1.500', '-0.007', None]
    """
    missing = values == MISSING
    size = np.abs(np.where(missing, 0, values))
    sign = pc.if_else(pa.array(values < 0), "-", "")
    rest = pc.utf8_lpad(arrow_array(size % 1000).cast(pa.string()), 3, "0")
    texts = pc.binary_join_element_wise(sign, arrow_array(size // 1000).cast(pa.string()), ".", rest, "")
    return pc.if_else(pa.array(missing), pa.scalar(None, pa.string()), texts)


def quoted(values: Any) -> pa.Array:
    """Return texts as JSON; each distinct one is encoded once."""
    encoded = text(values).dictionary_encode()
    return pa.array([json.dumps(word) for word in encoded.dictionary.to_pylist()], pa.string()).take(encoded.indices)


_HOST = ("ops", "launches", "ranges", "counters")
_DEVICE = ("kernels", "copies", "syncs")


class ProcessNumbers:
    """Numbers of processes and devices, distinct over ranks.

    A process keeps its number unless a lower rank has the same. Devices take free numbers.

    Parameters
    ----------
    trace : Trace
        Trace of any number of ranks.

    Attributes
    ----------
    processes, devices : dict of (int, int) to int
        Number by (rank, process), and by (rank, device); process and device can be `MISSING`.
    threads : sequence of (int, int, int)
        Rank, device and stream of every thread of a device.
    """

    def __init__(self, trace: Trace) -> None:
        hosts, self.threads = _distinct(trace, _HOST, "process"), _distinct(trace, _DEVICE, "device", "stream")
        used = {process for _, process in hosts}
        free = (number for number in count() if number not in used)
        self.processes: dict[tuple[int, ...], int] = {}
        taken: set[int] = set()
        for rank, process in hosts:
            if process != MISSING:
                self.processes[rank, process] = next(free) if process in taken else process
                taken.add(process)
        self.devices = {device: next(free) for device in sorted({thread[:2] for thread in self.threads})}


def _distinct(trace: Trace, kinds: tuple[str, ...], *columns: str) -> list[tuple[int, ...]]:
    """Return the distinct rows of rank and some columns in several tables, sorted."""
    distinct: set[tuple[int, ...]] = set()
    for kind in kinds:
        names = ["rank", *columns]
        for row in trace.tables[kind].select(names).group_by(names).aggregate([]).to_pylist():
            distinct.add(tuple(MISSING if row[name] is None else row[name] for name in names))
    return sorted(distinct)


def _mapped(numbers: Mapping[tuple[int, ...], int], first: Ints, second: Ints) -> Ints:
    """Return the number of each pair, or `MISSING`; a Python loop over the distinct pairs."""
    result = np.full(len(first), MISSING)
    for pair in set(zip(first.tolist(), second.tolist(), strict=True)):
        result[(first == pair[0]) & (second == pair[1])] = numbers.get(pair, MISSING)
    return result


#: The argument by which a kernel states its collective.
COLLECTIVE_KEY = "Collective name"
#: Kineto's keys for the columns of a collective.
_KEYS = {
    "collective": COLLECTIVE_KEY,
    "elements_in": "In msg nelems",
    "elements_out": "Out msg nelems",
    "dtype": "dtype",
    "group_name": "Process Group Name",
    "group_size": "Group size",
    "group_ranks": "Process Group Ranks",
}


def collective_facts(trace: Trace) -> dict[int, str]:
    """Return by id of a kernel the arguments from which a reader finds its collective again.

    Kernels whose collectives follow from other exported events are left out. A Python loop over the collectives.

    Parameters
    ----------
    trace : Trace
        The trace to export.
    """
    stored = trace.collectives.filter(pc.is_valid(trace.collectives["kernel_id"]))
    if not stored.num_rows:
        return {}
    derived = _read_again(trace)
    rows = lookup(integers(derived, "kernel_id"), np.arange(derived.num_rows), integers(stored, "kernel_id"))
    names = [*_KEYS, "bytes"]
    derived_facts = derived.select(names).to_pylist()
    facts = {}
    for row, stored_facts in zip(rows.tolist(), stored.select([*names, "kernel_id"]).to_pylist(), strict=True):
        kernel = stored_facts.pop("kernel_id")
        if row == MISSING or derived_facts[row] != stored_facts:
            stated = {key: stored_facts[column] for column, key in _KEYS.items() if stored_facts[column] is not None}
            facts[kernel] = json.dumps(stated, separators=(",", ":"))[1:-1]
    return facts


def _read_again(trace: Trace) -> pa.Table:
    """Return the collectives that a reader of the exported events finds."""
    kernels = _pick(trace.kernels, "name", is_collective)
    called = pa.array(np.unique(integers(kernels, "launch_id")))
    small = {
        "kernels": kernels,
        "ops": _pick(trace.ops, "args", lambda args: f'"{COLLECTIVE_KEY}"' in args),
        "launches": trace.launches.filter(pc.is_in(trace.launches["id"], value_set=called)),
        "ranges": _pick(trace.ranges, "name", lambda name: ANNOTATION.match(name) is not None),
    }
    return add_collectives(Trace(TraceMeta(""), small), first_id=0).collectives


def _pick(table: pa.Table, column: str, accepts: Callable[[str], bool]) -> pa.Table:
    """Return the rows whose text is accepted; `accepts` is called once for each distinct text of a chunk."""
    masks = [
        pa.array([accepts(text) for text in chunk.dictionary.to_pylist()], pa.bool_()).take(chunk.indices)
        for chunk in table[column].chunks
    ]
    return table.filter(pa.chunked_array(masks, pa.bool_()))


class Arguments:
    """The arguments of events under Kineto's keys: columns, derived facts, and the rest of ``args``.

    Parameters
    ----------
    trace : Trace
        The trace to export; if it has several ranks, every event states its rank.
    """

    def __init__(self, trace: Trace) -> None:
        self._several = len(trace.meta.ranks) > 1
        self._facts = collective_facts(trace)
        # The arguments of Kineto's kernels and launches hold the grids from which workgroups are counted.
        self._holds_grids = trace.meta.format == "kineto"
        items = pc.equal(trace.launches["name"].cast(pa.string()), IN_WORK_ITEMS)
        self._in_work_items = integers(trace.launches.filter(items), "id")

    def of(self, kind: str, batch: pa.Table) -> pa.Array:
        """Return the members of the arguments of each event as one text."""
        rest = single(pc.utf8_slice_codeunits(text(batch["args"]), 1, -1))
        rest = pc.if_else(pc.equal(rest, ""), pa.scalar(None, pa.string()), rest)
        members = [*self._typed(kind, batch, rest), *self._derived(kind, batch), rest]
        if self._several:
            rank = np.where(_stating(rest, "rank"), MISSING, integers(batch, "rank"))
            members.append(member('"rank":', numbers(rank)))
        return joined(members, ",")

    def _typed(self, kind: str, batch: pa.Table, rest: pa.Array) -> list[pa.Array]:
        members = []
        for name, argument in ARGUMENTS.get(kind, {}).items():
            column, key = batch[name], argument.keys[0]
            if kind == "counters" and not _stating(rest, "value").any():
                key = "value"  # the first key that Kineto has for a value is that of memory
            members.append(member(f"{json.dumps(key)}:", reals(column) if argument.what == "float" else text(column)))
        return members

    def _derived(self, kind: str, batch: pa.Table) -> list[pa.Array]:
        if kind == "kernels":
            return [self._grid(batch), self._collective(batch)]
        if kind == "copies":
            return [_word(batch, "direction", "kind", direction)]
        if kind == "syncs":
            return [_word(batch, "sync", "cuda_sync_kind", lambda name, args: args.get("cuda_sync_kind", name))]
        return []

    def _grid(self, batch: pa.Table) -> pa.Array:
        """Return a grid with the workgroups of each kernel, in the unit of the call that launched it."""
        groups, size = integers(batch, "workgroups"), integers(batch, "workgroup_size")
        stated = (groups != MISSING) & (size != MISSING)
        if self._holds_grids or not stated.any():
            return pa.nulls(len(groups), pa.string())
        stated &= ~_stating(batch["args"], "grid")
        items = np.isin(integers(batch, "launch_id"), self._in_work_items)
        grid = numbers(np.where(stated, groups * np.where(items, size, 1), MISSING))
        block = numbers(np.where(stated, size, MISSING))
        return pc.binary_join_element_wise('"grid":[', grid, ',1,1],"block":[', block, ",1,1]", "")

    def _collective(self, batch: pa.Table) -> pa.Array:
        """Return the facts of each kernel's collective, unless its arguments state one; a Python loop over kernels."""
        is_stated = _stating(batch["args"], COLLECTIVE_KEY).tolist()
        kernels = zip(integers(batch, "id").tolist(), is_stated, strict=True)
        return pa.array([None if stated else self._facts.get(kernel) for kernel, stated in kernels], pa.string())


def _stating(rest: Any, key: str) -> Bools:
    """Return a flag for each row: whether its arguments have the member `key`."""
    plain = text(rest)
    result = pc.fill_null(pc.match_substring(plain, f'"{key}"'), False).to_numpy(zero_copy_only=False).copy()
    for row in np.flatnonzero(result).tolist():
        result[row] = key in _object(plain[row].as_py())
    return np.asarray(result, bool)


def _object(members: str) -> dict[str, Any]:
    try:
        value = json.loads(members if members.startswith("{") else f"{{{members}}}", strict=False)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _word(batch: pa.Table, column: str, key: str, read: Callable[[str, dict[str, Any]], str]) -> pa.Array:
    """Return the member by which `read` finds the word of a column, if name and arguments lack it; a Python loop."""
    members = []
    for word, name, args in zip(*(text(batch[c]).to_pylist() for c in (column, "name", "args")), strict=True):
        stated = _object(args) if args and f'"{key}"' in args else {}
        needed = word is not None and key not in stated and read(name, stated) != word
        members.append(f"{json.dumps(key)}:{json.dumps(word)}" if needed else None)
    return pa.array(members, pa.string())


_BATCH = 16384
_PLAIN = {"ops": "cpu_op", "kernels": "kernel", "syncs": "cuda_sync", "collectives": "collective"}
_LAUNCHES = [name for name, kind in KIND_OF.items() if kind == "launches"]


def export_perfetto(trace: Trace, path: Path) -> None:
    """Write a trace to a JSON file, whole or not at all; a name that ends in ``.gz`` is compressed.

    A trace of the PyTorch profiler survives the round trip: `profilers.ingest.pipeline.collect` reads the same rows
    from this file. Columns of other profilers without a Kineto argument are left out.

    Parameters
    ----------
    trace : Trace
        The trace to write.
    path : Path
        File to create or replace.

    Raises
    ------
    InvalidInputError
        The trace has no event, or the file cannot be written.
    """
    loose = trace.collectives.filter(pc.is_null(trace.collectives["kernel_id"]))
    tables = {kind: loose if kind == "collectives" else trace.tables[kind] for kind in KINDS}
    if not any(table.num_rows for table in tables.values()):
        raise InvalidInputError(f"{path}: the trace has no event to write")
    with replaced_file(path) as raw, ExitStack() as stack:
        out: Any = raw
        if path.suffix == ".gz":
            out = stack.enter_context(gzip.GzipFile("", "wb", 6, raw, mtime=0))
        processes = ProcessNumbers(trace)
        write_events(out, _header(trace), _names(trace, processes), _PerfettoEvents(trace, tables, processes).batches())


def write_events(
    out: Any, header: Mapping[str, Any], named: Iterable[Mapping[str, Any]], batches: Iterable[pa.Array]
) -> None:
    """Write a document of events to an open file, each event on a line of its own.

    Parameters
    ----------
    out : binary file
        File to write.
    header : mapping
        Members of the document beside its events.
    named : iterable of mapping
        Events that come first, such as the names of processes; one or more.
    batches : iterable of pyarrow.Array
        The others as JSON.
    """
    head = json.dumps(header, separators=(",", ":"))
    names = ",\n".join(json.dumps(event, separators=(",", ":")) for event in named)
    out.write(f'{head[:-1]},"traceEvents":[\n{names}'.encode())
    for events in batches:
        if len(events):
            lines = pc.binary_join_element_wise(",\n", events, "")
            _, offsets, data = lines.buffers()
            ends = np.frombuffer(offsets, np.int32)[lines.offset : lines.offset + len(lines) + 1]
            out.write(memoryview(data)[int(ends[0]) : int(ends[-1])])  # the bytes of the array as they are
    out.write(b"\n]}\n")


class _PerfettoEvents:
    """The events of a trace as JSON, in batches."""

    def __init__(self, trace: Trace, tables: dict[str, pa.Table], processes: ProcessNumbers) -> None:
        self._trace = trace
        self._tables = tables
        self._processes = processes
        self._arguments = Arguments(trace)
        self._launch_ids, self._launch_rows = integers(trace.launches, "id"), np.arange(trace.launches.num_rows)

    def batches(self) -> Iterator[pa.Array]:
        """Yield the events kind by kind, and arrows after kernels and copies."""
        for kind, table in self._tables.items():
            for first in range(0, table.num_rows, _BATCH):
                batch = table.slice(first, _BATCH)
                yield self._events(kind, batch)
                if kind in ("kernels", "copies"):
                    yield self._arrows(batch)

    def _events(self, kind: str, batch: pa.Table) -> pa.Array:
        process, thread = self._thread(kind, batch)
        members = [
            member('{"ph":', _phase(kind, batch)),
            member(',"cat":', quoted(_category(kind, batch))),
            member(',"name":', quoted(batch["name"])),
            member(',"pid":', numbers(process)),
            member(',"tid":', numbers(thread)),
            member(',"ts":', microseconds(integers(batch, "start_ns"))),
            member(',"dur":', microseconds(integers(batch, "dur_ns"))),
            member(',"args":{', self._arguments.of(kind, batch)),
            pa.repeat("}}", batch.num_rows),
        ]
        return joined(members, "")

    def _thread(self, kind: str, batch: pa.Table) -> tuple[Ints, Ints]:
        """Return the process and thread of each event in the file."""
        rank = integers(batch, "rank")
        if kind in HOST_KINDS:
            return _mapped(self._processes.processes, rank, integers(batch, "process")), integers(batch, "thread")
        if kind == "collectives":
            return np.full(len(rank), MISSING), np.full(len(rank), MISSING)
        stream = integers(batch, "stream")
        return _mapped(self._processes.devices, rank, integers(batch, "device")), np.where(stream == MISSING, 0, stream)

    def _arrows(self, batch: pa.Table) -> pa.Array:
        """Return both ends of an arrow from each launch to its kernel or copy."""
        rows = lookup(self._launch_ids, self._launch_rows, integers(batch, "launch_id"))
        batch = batch.filter(pa.array(rows != MISSING))
        launches = self._trace.launches.take(arrow_array(rows[rows != MISSING]))
        flow = member(',"cat":"ac2g","name":"ac2g","id":', numbers(integers(batch, "id")))
        ends = []
        for kind, table, phase in (("launches", launches, '{"ph":"s"'), ("kernels", batch, '{"ph":"f","bp":"e"')):
            process, thread = self._thread(kind, table)
            members = [
                pa.repeat(phase, table.num_rows),
                flow,
                member(',"pid":', numbers(process)),
                member(',"tid":', numbers(thread)),
                member(',"ts":', microseconds(integers(table, "start_ns"))),
                pa.repeat("}", table.num_rows),
            ]
            ends.append(joined(members, ""))
        return pa.concat_arrays(ends)


def _phase(kind: str, batch: pa.Table) -> pa.Array:
    """Return the phase of each event: X, or for counters C, or i without a value."""
    if kind != "counters":
        return pa.repeat('"X"', batch.num_rows)
    return single(pc.if_else(pc.and_(pc.is_null(batch["value"]), pc.is_valid(batch["args"])), '"i"', '"C"'))


#: Categories that the reader takes for another kind of event than a range.
_TAKEN = ["trace", *(category for category, kind in KIND_OF.items() if kind != "ranges")]


def _category(kind: str, batch: pa.Table) -> pa.Array:
    """Return the category by which the reader finds the kind of event."""
    if kind in _PLAIN:
        return pa.repeat(_PLAIN[kind], batch.num_rows)
    if kind == "copies":
        fill = pc.fill_null(pc.equal(text(batch["direction"]), "memset"), False)
        return single(pc.if_else(fill, "gpu_memset", "gpu_memcpy"))
    category = text(batch["api" if kind == "launches" else "category"])
    if kind == "launches":
        return pc.if_else(pc.is_in(category, value_set=pa.array(_LAUNCHES)), category, "cuda_runtime")
    if kind == "counters":
        return category
    return pc.if_else(pc.is_in(pc.utf8_lower(category), value_set=pa.array(_TAKEN)), "range", category)


def _header(trace: Trace) -> dict[str, Any]:
    meta = trace.meta
    devices = dict.fromkeys((d.device, d.name, d.compute_units, d.memory_bytes) for d in meta.devices)
    keys = ("id", "name", "numSms", "totalGlobalMem")
    listed = [{k: v for k, v in zip(keys, row, strict=True) if v is not None} for row in devices]
    job = {"rank": meta.ranks[0] if len(meta.ranks) == 1 else None, "world_size": meta.world_size}
    content: dict[str, Any] = {"schemaVersion": 1, "deviceProperties": listed}
    if stated := {key: value for key, value in job.items() if value is not None}:
        content["distributedInfo"] = stated
    if meta.synthetic:
        content |= SYNTHETIC_MARK
    if meta.clock_base_ns:
        content["baseTimeNanoseconds"] = meta.clock_base_ns
    return {**content, "displayTimeUnit": "ns"}


def _names(trace: Trace, numbers: ProcessNumbers) -> Iterator[dict[str, Any]]:
    """Yield the events that name the trace, processes and streams."""

    def named(fact: str, pid: int, name: str, **thread: int) -> dict[str, Any]:
        return {"ph": "M", "name": fact, "pid": pid, **thread, "ts": 0, "args": {"name": name}}

    models = {(d.rank, d.device): d.name for d in trace.meta.devices}
    yield named("trace_name", 0, "seqpoint")
    for (rank, process), pid in numbers.processes.items():
        yield named("process_name", pid, f"rank {rank}: process {process}")
    for (rank, device), pid in numbers.devices.items():
        label = "unknown device" if device == MISSING else f"device {device} {models.get((rank, device), '')}"
        yield named("process_name", pid, f"rank {rank}: {label.rstrip()}")
    for rank, device, stream in numbers.threads:
        tid = 0 if stream == MISSING else stream
        yield named("thread_name", numbers.devices[rank, device], f"stream {tid}", tid=tid)
