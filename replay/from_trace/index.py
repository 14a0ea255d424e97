"""What the graph of any window needs to know about a trace.

The data type in which a kernel computes, as its name says it.

Which forward operator a backward operator goes with, by the sequence numbers that the framework wrote.

What the profiler recorded of waiting: for each call that waits, on which stream and up to which moment of it.

Launches that waited for room in the launch queue, and what they would have taken without that.

`TraceIndex`: what every graph of a trace is built from, arranged once: by iteration, by time, by call.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from profilers.devices.catalogue import DTYPES
from profilers.errors import InvalidInputError
from profilers.trace.arrays import MISSING, Ints, arrow_array, dense_keys, ends, integers, strings
from profilers.trace.columns import lookup
from profilers.trace.kernels import classify
from profilers.trace.trace import Trace
from replay.graph.graph import Hardware, hardware_of

_INDEX = {name: i for i, name in enumerate(DTYPES)}
#: In kernel names: spelled out, in Tensile's letters (BBS: two bf16 inputs, fp32 sum), in CUTLASS instructions.
_IN_NAME: tuple[tuple[str, str], ...] = (
    ("fp8", r"fp8|e4m3|e5m2|f8f8|F8"),
    ("bf16", r"bf16|bfloat16|BFloat16|_BBS_|_BB_|(?<!_S)_B_B"),
    ("fp16", r"fp16|f16f16|_f16|half|Half|[hs]884|[hs]1688gemm_fp16|h16816|_HHS_|_HH_|hgemm"),
    ("tf32", r"tf32|s1688"),
    ("fp64", r"fp64|f64f64|double|dgemm|_DB_|d884"),
    ("fp32", r"f32f32|sgemm|_SB_|_S_B|float(?!\d)|fp32"),
)
_COMPILED = tuple((_INDEX[name], re.compile(pattern)) for name, pattern in _IN_NAME)


def dtype_of_name(name: str) -> int:
    """Return the index into `DTYPES` of what a kernel's name says, -1 where it says nothing.

    Examples
    --------
    >>> tuple(DTYPES)[dtype_of_name("ampere_sgemm_128x64_nn")]
    'fp32'
    """
    return next((index for index, pattern in _COMPILED if pattern.search(name)), -1)


@dataclass(frozen=True)
class ForwardEnd:
    """The thread on which a forward operator ran, and when it ended, on the trace's clock."""

    thread: int
    end_ns: int


@dataclass(frozen=True)
class BackwardOps:
    """By (rank, thread), its backward operators in order of start: columns start, end, forward thread, forward end."""

    of_thread: Mapping[tuple[int, int], Ints]

    def at(self, place: tuple[int, int], time_ns: int) -> ForwardEnd | None:
        """Return the forward side of the backward operator on a thread at a time; None where none is known."""
        rows = self.of_thread.get(place)
        if rows is None:
            return None
        last = int(np.searchsorted(rows[0], time_ns, side="right")) - 1
        if last < 0 or rows[1, last] < time_ns:
            return None
        return ForwardEnd(int(rows[2, last]), int(rows[3, last]))


def backward_ops(trace: Trace) -> BackwardOps:
    """Return the backward operators of a trace whose forward operator ran on another thread.

    Kineto gives a backward operator the sequence number of its forward operator and a ``Fwd thread id`` other than 0,
    which is the framework's own number and not the system's.
    """
    ops = trace.ops
    rank, thread, number = (integers(ops, name) for name in ("rank", "thread", "sequence_number"))
    logical = integers(ops, "forward_thread")
    numbered = (number != MISSING) & (number >= 0)
    forward = np.flatnonzero(numbered & (logical <= 0))
    backward = np.flatnonzero(numbered & (logical > 0))
    given, wanted = dense_keys((rank[forward], number[forward]), (rank[backward], number[backward]))
    partner = lookup(given, forward, wanted)
    fits = partner != MISSING
    backward, partner = backward[fits], partner[fits]
    apart = thread[backward] != thread[partner]
    backward, partner = backward[apart], partner[apart]
    start, end = integers(ops, "start_ns"), ends(ops)
    rows = np.stack([start[backward], end[backward], thread[partner], end[partner]])
    order = np.lexsort((backward, start[backward], thread[backward], rank[backward]))
    places = np.stack([rank[backward], thread[backward]], axis=1)[order]
    distinct, first = np.unique(places, axis=0, return_index=True)
    parts = np.split(rows[:, order], first[1:], axis=1)
    return BackwardOps({(int(r), int(t)): part for (r, t), part in zip(distinct, parts, strict=False)})


@dataclass(frozen=True)
class RecordedSyncs:
    """Equally long columns, one row a recorded synchronisation that names its call; `MISSING` for unknown.

    Parameters
    ----------
    call : array of int64
        The id of the waiting call, sorted.
    kind : array of str
        ``"Stream Wait Event"``, ``"Event Sync"``, ``"Stream Sync"`` or ``"Context Sync"``.
    stream : array of int64
        That waits (an event wait), or that the host waits for (a stream's synchronisation).
    source : array of int64
        The stream on which the event was recorded.
    recorded_ns : array of int64
        When the call began that recorded the event, on the trace's clock.
    """

    call: Ints
    kind: npt.NDArray[np.object_]
    stream: Ints
    source: Ints
    recorded_ns: Ints

    def of(self, calls: Ints) -> tuple[Ints, Ints]:
        """Return pairs of rows: of `calls` (ids), and here."""
        low, high = (np.searchsorted(self.call, calls, side=side) for side in ("left", "right"))
        times = high - low
        own = np.repeat(np.arange(len(calls)), times)
        return own, np.arange(len(own)) - np.repeat(np.cumsum(times) - times, times) + np.repeat(low, times)


def recorded_syncs(trace: Trace) -> RecordedSyncs:
    """Return the synchronisations of a trace, with the time of the call that recorded their event."""
    syncs, launches = trace.syncs, trace.launches
    call = integers(syncs, "launch_id")
    order = np.argsort(call, kind="stable")
    order = order[call[order] != MISSING]
    records, wanted = dense_keys(
        (integers(launches, "rank"), integers(launches, "correlation")),
        (integers(syncs, "rank"), integers(syncs, "event_correlation")),
    )
    recorded = lookup(records, integers(launches, "start_ns"), wanted)
    recorded = np.where(integers(syncs, "event_correlation") == MISSING, MISSING, recorded)
    stream, source = integers(syncs, "stream"), integers(syncs, "wait_on_stream")
    return RecordedSyncs(call[order], strings(syncs, "sync")[order], stream[order], source[order], recorded[order])


#: Calls that put one piece of work into the launch queue, and block while it is full.
_LAUNCHES = re.compile(r"^(?!.*(?:Graph|HostFunc)).*Launch")
# These limits are chosen, not fitted: of 53 real traces none shows a full queue and none is found; in synthetic jobs
# with queues of 300 to 1024 launches it is (tests/test_steady.py).
#: A launch took long if it took so many times what short launches of its rank take (their 5th percentile).
_TIMES = 3
#: The queue was full if at least `_WAITING` launches waited, and of the launches that found as many waiting as ever, to
#: `_NEARLY`, at least `_SEEN` and the share `_MOST` took long: a queue that is not full blocks none.
_WAITING, _NEARLY, _SEEN, _MOST = 256, 0.99, 8, 0.75
#: The queue was full all along if so many launches waited, and this share of all launches found as many as ever. Then
#: every launch blocked, and none shows what a launch takes: 3 to 6 us in the traces at hand (ns).
_FULL, _ALWAYS, _LAUNCH_NS = 512, 0.5, 5000


def unblocked_ns(
    calls: Mapping[str, Ints], names: npt.NDArray[np.object_], work: Mapping[str, npt.NDArray[Any]]
) -> Ints:
    """Return for each call that found the launch queue full what it would have taken otherwise, in ns; 0 for others.

    Work without a launch that starts before the first other work of its stream was launched before the recording, and
    waits in the queue until then.

    Parameters
    ----------
    calls : mapping of str to array
        Columns id, rank, start, end and name, an index into `names`.
    names : array of str
    work : mapping of str to array
        Columns launch_id, rank, device, stream and start of kernels and copies, ordered by start.
    """
    launches = np.array([_LAUNCHES.search(str(name)) is not None for name in names], dtype=bool)[calls["name"]]
    unblocked = np.zeros(len(calls["id"]), dtype=np.int64)
    row = lookup(calls["id"], np.arange(len(calls["id"])), work["launch_id"])
    for rank in np.unique(calls["rank"]).tolist():
        mine = np.flatnonzero(launches & (calls["rank"] == rank))
        rows = np.flatnonzero(work["rank"] == rank)
        rows = rows[(row[rows] != MISSING) | _before_recording(work, rows, row)]
        if not len(mine) or not len(rows):
            continue
        known = row[rows][row[rows] != MISSING]
        until, took = calls["end"][mine], (calls["end"] - calls["start"])[mine]
        launched = len(rows) - len(known) + np.searchsorted(np.sort(calls["start"][known]), until)
        waiting = launched - np.searchsorted(np.sort(work["start"][rows]), until)
        short = max(int(np.percentile(took, 5)), 1)
        many = (waiting >= _WAITING) & (waiting >= _NEARLY * waiting.max())
        long = took >= _TIMES * short
        if waiting.max() >= _FULL and many.mean() >= _ALWAYS:
            unblocked[mine[many & (took > _LAUNCH_NS)]] = min(short, _LAUNCH_NS)
        elif many.sum() >= _SEEN and long[many].mean() >= _MOST:
            unblocked[mine[long & many]] = short
    return unblocked


def _before_recording(work: Mapping[str, npt.NDArray[Any]], rows: Ints, launch: Ints) -> npt.NDArray[np.bool_]:
    """Return which rows of one rank have no launch and start before the first row of their stream that has one."""
    before = np.zeros(len(rows), dtype=bool)
    places = np.stack([work["device"][rows], work["stream"][rows]], axis=1)
    for number in np.unique(places, axis=0).tolist():  # a few streams
        here = np.flatnonzero((places == number).all(axis=1))
        linked = np.flatnonzero(launch[rows[here]] != MISSING)
        before[here[: linked[0]] if len(linked) else here[:0]] = True
    return before


#: How the time in PyTorch's input pipeline is called in traces.
LOADER_PREFIX = "enumerate(DataLoader)"
_FIRST, _LAST = int(np.iinfo(np.int64).min), int(np.iinfo(np.int64).max)


@dataclass(frozen=True)
class Groups:
    """Rows by a key: the rows of each key in their own order."""

    order: Ints
    keys: Ints

    @classmethod
    def by(cls, keys: Ints) -> "Groups":
        """Arrange the rows of `keys`."""
        order = np.argsort(keys, kind="stable")
        return cls(order, keys[order])

    def of(self, key: int) -> Ints:
        """Return the rows of one key."""
        low, high = np.searchsorted(self.keys, [key, key + 1])
        return self.order[low:high]


@dataclass(frozen=True)
class Keys:
    """The rows of a table by id, sorted once, so that looking some up costs nothing of the others."""

    sorted: Ints
    rows: Ints

    @classmethod
    def of(cls, ids: Ints) -> "Keys":
        """Arrange the ids of a table."""
        order = np.argsort(ids, kind="stable")
        return cls(ids[order], order)

    def find(self, ids: Ints) -> Ints:
        """Return the row of each id, `MISSING` where there is none."""
        if not len(self.sorted):
            return np.full(len(ids), MISSING)
        place = np.minimum(np.searchsorted(self.sorted, ids), len(self.sorted) - 1)
        return np.where((self.sorted[place] == ids) & (ids != MISSING), self.rows[place], MISSING)


@dataclass(frozen=True)
class Names:
    """The distinct names of a trace's device work, with what is known from the name alone.

    `class_` and `dtype` are made once a name, since regular expressions cost 10 to 30 us each.
    """

    text: npt.NDArray[np.object_]
    class_: npt.NDArray[np.object_]
    dtype: Ints


@dataclass(frozen=True)
class WorkColumns:
    """Kernels and copies of all ranks, ordered by start; equally long columns in ns on the trace's clock.

    `began` is when the row's iteration begins on its rank: the far past where it has none, the far future where
    the trace does not have that iteration. `reach` is the latest end so far, so that what still runs at a time
    is found by bisection.
    """

    columns: dict[str, npt.NDArray[Any]]
    names: Names
    directions: npt.NDArray[np.object_]
    began: Ints
    reach: Ints
    iterations: Groups

    def running(self, first: int, last: int) -> slice:
        """Return a range of rows that has all which run at some time after `first` and begin before `last`."""
        low = int(np.searchsorted(self.reach, first, side="right"))
        return slice(low, max(low, int(np.searchsorted(self.columns["start"], last))))


@dataclass(frozen=True)
class CallColumns:
    """Calls of the runtime and of the input pipeline, or operators, ordered by (start, id)."""

    columns: dict[str, Ints]
    names: npt.NDArray[np.object_]
    iterations: Groups


@dataclass(frozen=True)
class TraceIndex:
    """A trace, arranged so that the graph of one iteration costs what that iteration holds.

    Parameters
    ----------
    trace : Trace
    work : WorkColumns
    calls : CallColumns
        Of the runtime; on a job without devices, operators.
    ops, collectives : Keys
        Rows of those tables by id.
    syncs : RecordedSyncs
    backward : BackwardOps
    launching_ranks : frozenset of int
        Ranks of which at least one launch was recorded; on the others, gaps stand for the host.
    hardware : Hardware
    """

    trace: Trace
    work: WorkColumns
    calls: CallColumns
    ops: Keys
    collectives: Keys
    syncs: RecordedSyncs
    backward: BackwardOps
    launching_ranks: frozenset[int]
    hardware: Hardware

    @property
    def on_host_alone(self) -> bool:
        """Whether nothing ran on a device, so that operators are the calls."""
        return not len(self.work.reach)

    def check_iterations(self, iterations: Sequence[int]) -> None:
        """Raise an error that names the first of `iterations` that the trace lacks, and those that it has.

        Raises
        ------
        InvalidInputError
        """
        have = np.unique(integers(self.trace.iterations, "iteration")).tolist()
        for number in iterations:
            if number not in have:
                some = ", ".join(map(str, have[:12]))
                listed = f"{some}, ... {len(have)} in all" if len(have) > 12 else some or "none"
                raise InvalidInputError(f"the trace has no iteration {number} (it has {listed})")


def index_trace(trace: Trace) -> TraceIndex:
    """Arrange a trace for `build_graph`: worth it where more than one iteration is built.

    Costs a sort of the events, and a look at each distinct name.
    """
    work = _work(trace)
    calls = _calls(trace.launches, _loader_calls(trace)) if len(work.reach) else _calls(trace.ops)
    hardware = hardware_of(trace)
    queued = unblocked_ns(calls.columns, calls.names, work.columns) if hardware.launch_queue else None
    queued = np.zeros(len(calls.columns["id"]), np.int64) if queued is None else queued
    calls = replace(calls, columns={**calls.columns, "unblocked": queued})
    ranks, launched = work.columns["rank"], work.columns["launch_id"] != MISSING
    return TraceIndex(
        trace,
        work,
        calls,
        Keys.of(integers(trace.ops, "id")),
        Keys.of(integers(trace.collectives, "id")),
        recorded_syncs(trace),
        backward_ops(trace),
        frozenset(np.unique(ranks[launched]).tolist()),
        hardware,
    )


def _work(trace: Trace) -> WorkColumns:
    kernels, copies = trace.kernels, trace.copies
    parts = [_columns(kernels, is_copy=False), _columns(copies, is_copy=True)]
    both = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    (kernel_code, kernel_names), (copy_code, copy_names) = _coded(kernels["name"]), _coded(copies["name"])
    both["name"] = np.concatenate([kernel_code, copy_code + len(kernel_names)])
    direction, directions = _coded(copies["direction"])
    both["direction"] = np.concatenate([np.full(kernels.num_rows, -1), direction])
    order = np.argsort(both["start"], kind="stable")
    columns = {name: values[order] for name, values in both.items()}
    text = np.concatenate([kernel_names, copy_names])
    columns["opens"] = _opens(columns)
    names = _names(text)
    reach = np.maximum.accumulate(columns["end"]) if len(order) else columns["end"]
    return WorkColumns(columns, names, directions, _began(trace, columns), reach, Groups.by(columns["iteration"]))


def _opens(columns: dict[str, npt.NDArray[Any]]) -> npt.NDArray[np.bool_]:
    """Return which rows, in order of start, are the first of their stream in the whole trace."""
    opens = np.zeros(len(columns["id"]), dtype=bool)
    places = np.stack([columns["rank"], columns["device"], columns["stream"]], axis=1)
    opens[np.unique(places, axis=0, return_index=True)[1]] = True
    return opens


def _names(text: npt.NDArray[np.object_]) -> Names:
    class_ = np.empty(len(text), object)
    class_[:] = [classify(name) for name in text]
    return Names(text, class_, np.array([dtype_of_name(name) for name in text], dtype=np.int64))


def _columns(table: pa.Table, *, is_copy: bool) -> dict[str, npt.NDArray[Any]]:
    n = table.num_rows
    absent = np.full(n, MISSING)
    place = {name: integers(table, name) for name in ("device", "stream")}
    return {
        **{name: integers(table, name) for name in ("id", "rank", "iteration", "launch_id")},
        "op": integers(table, "op_id"),
        **{name: np.where(values == MISSING, -1, values) for name, values in place.items()},
        "start": integers(table, "start_ns"),
        "end": ends(table),
        "is_copy": np.full(n, is_copy),
        "collective": absent if is_copy else integers(table, "collective_id"),
        "workgroups": absent if is_copy else integers(table, "workgroups"),
        "workgroup_size": absent if is_copy else integers(table, "workgroup_size"),
        "bytes": integers(table, "bytes") if is_copy else absent,
    }


def _began(trace: Trace, columns: dict[str, npt.NDArray[Any]]) -> Ints:
    table = trace.iterations
    own, given = dense_keys(
        (columns["rank"], columns["iteration"]), (integers(table, "rank"), integers(table, "iteration"))
    )
    found = lookup(given, integers(table, "start_ns"), own)
    return np.where(columns["iteration"] == MISSING, _FIRST, np.where(found == MISSING, _LAST, found))


def _loader_calls(trace: Trace) -> pa.Table:
    """Return the times at which the host asks PyTorch's input pipeline for a batch; ids are negative."""
    names = ["rank", "process", "thread", "iteration", "start_ns", "dur_ns", "name"]
    tables: list[pa.Table] = []
    for table in (trace.ops, trace.ranges):
        codes, distinct = _coded(table["name"])
        loads = np.array([*(str(text).startswith(LOADER_PREFIX) for text in distinct), False], dtype=bool)
        rows = np.flatnonzero(loads[codes])
        chosen = table.select(names).take(arrow_array(rows))
        tables.append(chosen.set_column(len(names) - 1, "name", chosen["name"].cast(pa.string())))
    found = pa.concat_tables(tables, promote_options="permissive")
    return found.append_column("id", arrow_array(-2 - np.arange(found.num_rows)))


def _calls(*tables: pa.Table) -> CallColumns:
    known = [name for name in ("id", "rank", "process", "thread", "op_id", "iteration")
             if name in tables[0].schema.names]  # fmt: skip
    columns = {name: np.concatenate([_integers(part, name) for part in tables]) for name in known}
    columns["start"] = np.concatenate([integers(part, "start_ns") for part in tables])
    columns["end"] = np.concatenate([ends(part) for part in tables])
    columns.setdefault("op_id", columns["id"])
    coded = [_coded(part["name"]) for part in tables]
    before = np.cumsum([0, *(len(text) for _, text in coded)])
    columns["name"] = np.concatenate(
        [np.where(codes < 0, -1, codes + at) for (codes, _), at in zip(coded, before, strict=False)]
    )
    text = np.concatenate([text for _, text in coded])
    order = np.lexsort((columns["id"], columns["start"]))
    columns = {name: values[order] for name, values in columns.items()}
    return CallColumns(columns, text, Groups.by(columns["iteration"]))


def _integers(table: pa.Table, name: str) -> Ints:
    return integers(table, name) if name in table.schema.names else np.full(table.num_rows, MISSING)


def _coded(column: pa.ChunkedArray) -> tuple[Ints, npt.NDArray[np.object_]]:
    """Return the codes of a text column, -1 for null, and the texts that they stand for."""
    if not len(column):
        return np.zeros(0, np.int64), np.empty(0, object)
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    whole = column.unify_dictionaries()
    texts = whole.chunk(0).dictionary.to_pylist()
    codes = integers(pa.table({"code": pa.chunked_array([chunk.indices for chunk in whole.chunks])}), "code")
    values = np.empty(len(texts), object)
    values[:] = texts
    return np.where(codes == MISSING, -1, codes), values
