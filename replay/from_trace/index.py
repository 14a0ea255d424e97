"""`TraceIndex`: a trace arranged once, so that the graph of an iteration costs time in proportion to the iteration.

The index sorts events by iteration, time and call. It also holds facts of the whole trace: data types by kernel name,
the forward operator of each backward operator, and recorded synchronisations.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from profilers.devices.catalogue import DTYPES
from profilers.errors import InvalidInputError
from profilers.trace.arrays import (
    MISSING,
    Ints,
    arrow_array,
    dense_keys,
    encode_text,
    ends,
    integers,
    integers_or_missing,
    row_keys,
    strings,
)
from profilers.trace.columns import lookup
from profilers.trace.exchanges import ExchangeSizes, exchange_sizes
from profilers.trace.serving import ServingSteps, serving_steps
from profilers.trace.trace import Trace
from replay.from_trace.host_waits import NO_QUEUES, FullQueues, full_queues, polling
from replay.from_trace.phases import work_phases
from replay.graph.graph import COPY_DIRECTIONS, LOADER_PREFIX, Hardware, hardware_of

#: Numbers of the data types.
DTYPE_INDEX = {name: i for i, name in enumerate(DTYPES)}
#: Data types in kernel names: spelled out, in Tensile's letters (BBS: two bf16 inputs, fp32 sum), in CUTLASS
#: instructions.
_NAME_PATTERNS: tuple[tuple[str, str], ...] = (
    ("fp8", r"fp8|e4m3|e5m2|f8f8|F8"),
    ("bf16", r"bf16|bfloat16|BFloat16|_BBS_|_BB_|(?<!_S)_B_B"),
    ("fp16", r"fp16|f16f16|_f16|half|Half|[hs]884|[hs]1688gemm_fp16|h16816|_HHS_|_HH_|hgemm"),
    ("tf32", r"tf32|s1688"),
    ("fp64", r"fp64|f64f64|double|dgemm|_DB_|d884"),
    ("fp32", r"f32f32|sgemm|_SB_|_S_B|float(?!\d)|fp32"),
)
_COMPILED_PATTERNS = tuple((DTYPE_INDEX[name], re.compile(pattern)) for name, pattern in _NAME_PATTERNS)


def dtype_of_name(name: str) -> int:
    """Return the data type that a kernel's name tells, as an index into `DTYPES`; -1 if it tells none.

    Examples
    --------
    >>> tuple(DTYPES)[dtype_of_name("ampere_sgemm_128x64_nn")]
    'fp32'
    """
    return next((index for index, pattern in _COMPILED_PATTERNS if pattern.search(name)), -1)


@dataclass(frozen=True)
class SortedRows:
    """Rows of a table sorted by a column of keys, for fast lookups; rows of one key keep their order."""

    keys: Ints
    rows: Ints

    @classmethod
    def by(cls, keys: Ints) -> "SortedRows":
        """Sort the rows of a column of keys."""
        order = np.argsort(keys, kind="stable")
        return cls(keys[order], order)

    def of(self, key: int) -> Ints:
        """Return the rows of one key."""
        low, high = np.searchsorted(self.keys, [key, key + 1])
        return self.rows[low:high]

    def find(self, keys: Ints) -> Ints:
        """Return the row of each key; `MISSING` for a key that the table lacks."""
        if not len(self.keys):
            return np.full(len(keys), MISSING)
        position = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.where((self.keys[position] == keys) & (keys != MISSING), self.rows[position], MISSING)

    def pairs(self, keys: Ints) -> tuple[Ints, Ints]:
        """Return pairs of a position in `keys` and a row with that key."""
        low, high = (np.searchsorted(self.keys, keys, side=side) for side in ("left", "right"))
        counts = high - low
        position = np.repeat(np.arange(len(keys)), counts)
        return position, self.rows[np.arange(len(position)) - np.repeat(np.cumsum(counts) - counts - low, counts)]


def backward_ops(trace: Trace) -> dict[tuple[int, int], Ints]:
    """Return the backward operators of each (rank, thread) whose forward operator ran on another thread.

    Kineto gives a backward operator the sequence number of its forward operator. Its ``Fwd thread id`` is above 0, and
    is the framework's number of the thread, not the system's. The arrays have the rows start, end, forward thread and
    forward end, and a column for each operator in order of start.
    """
    ops = trace.ops
    rank, thread, number = (integers(ops, name) for name in ("rank", "thread", "sequence_number"))
    logical = integers(ops, "forward_thread")
    numbered = (number != MISSING) & (number >= 0)
    forward = np.flatnonzero(numbered & (logical <= 0))
    backward = np.flatnonzero(numbered & (logical > 0))
    forward_key, backward_key = dense_keys((rank[forward], number[forward]), (rank[backward], number[backward]))
    partner = lookup(forward_key, forward, backward_key)
    crosses = (partner != MISSING) & (thread[backward] != thread[np.maximum(partner, 0)])
    backward, partner = backward[crosses], partner[crosses]
    start, end = integers(ops, "start_ns"), ends(ops)
    rows = np.stack([start[backward], end[backward], thread[partner], end[partner]])
    order = np.lexsort((backward, start[backward], thread[backward], rank[backward]))
    threads = np.stack([rank[backward], thread[backward]], axis=1)[order]
    distinct, first = np.unique(threads, axis=0, return_index=True)
    blocks = np.split(rows[:, order], first[1:], axis=1)
    return {(int(r), int(t)): block for (r, t), block in zip(distinct, blocks, strict=False)}


@dataclass(frozen=True)
class RecordedSyncs:
    """Recorded synchronisations: columns of equal length, `MISSING` for unknown.

    Parameters
    ----------
    by_call : SortedRows
        Rows by the id of the waiting call.
    kind : array of str
        ``"Stream Wait Event"``, ``"Event Sync"``, ``"Stream Sync"`` or ``"Context Sync"``.
    stream : array of int64
        Stream that waits for an event, or that the host waits for.
    source : array of int64
        Stream on which the event was recorded.
    recorded_ns : array of int64
        Begin of the call that recorded the event, on the trace's clock.
    """

    by_call: SortedRows
    kind: npt.NDArray[np.object_]
    stream: Ints
    source: Ints
    recorded_ns: Ints


def recorded_syncs(trace: Trace) -> RecordedSyncs:
    """Return the recorded synchronisations of a trace, with the time at which their event was recorded."""
    syncs, launches = trace.syncs, trace.launches
    call, stream, source, event = (
        integers(syncs, name) for name in ("launch_id", "stream", "wait_on_stream", "event_correlation")
    )
    record_key, event_key = dense_keys(
        (integers(launches, "rank"), integers(launches, "correlation")), (integers(syncs, "rank"), event)
    )
    recorded = lookup(record_key, integers(launches, "start_ns"), event_key)
    recorded = np.where(event == MISSING, MISSING, recorded)
    return RecordedSyncs(SortedRows.by(call), strings(syncs, "sync"), stream, source, recorded)


_FIRST, _LAST = int(np.iinfo(np.int64).min), int(np.iinfo(np.int64).max)


@dataclass(frozen=True)
class WorkColumns:
    """Kernels and copies of all ranks, ordered by start.

    Parameters
    ----------
    columns : dict of str to array
        Columns of equal length, in ns on the trace's clock; ``name`` is an index into `names`.
    op_names : array
        Distinct names of operators; the column ``launched_by`` is an index into them, -1 if unknown.
    names, classes, dtypes : array
        Distinct names, and the class and data type that each tells. They are found once a name, since regular
        expressions cost 10 to 30 us each.
    began : array of int64
        Begin of the row's iteration on its rank: the far past without an iteration, the far future if the trace lacks
        that iteration.
    reach : array of int64
        Latest end up to each row; a bisection finds the work that still runs at a time.
    iterations : SortedRows
        Rows by iteration.
    """

    columns: dict[str, npt.NDArray[Any]]
    op_names: npt.NDArray[np.object_]
    names: npt.NDArray[np.object_]
    classes: npt.NDArray[np.object_]
    dtypes: Ints
    began: Ints
    reach: Ints
    iterations: SortedRows

    def running(self, first: int, last: int) -> slice:
        """Return a range of rows that contains all work that ends after `first` and begins before `last`."""
        low = int(np.searchsorted(self.reach, first, side="right"))
        return slice(low, max(low, int(np.searchsorted(self.columns["start"], last))))


@dataclass(frozen=True)
class CallColumns:
    """Calls of the runtime and of the input pipeline, or operators, ordered by (start, id)."""

    columns: dict[str, Ints]
    names: npt.NDArray[np.object_]
    iterations: SortedRows
    queues: FullQueues = NO_QUEUES


@dataclass(frozen=True)
class TraceIndex:
    """A trace, arranged so that building the graph of an iteration costs time in proportion to the iteration.

    Parameters
    ----------
    trace : Trace
        The trace itself.
    device_work : WorkColumns
        Kernels and copies.
    ops : SortedRows
        Rows of the operators by id.
    hardware : Hardware
        Hardware of the devices.
    """

    trace: Trace
    device_work: WorkColumns
    ops: SortedRows
    hardware: Hardware

    @cached_property
    def calls(self) -> CallColumns:
        """Calls of the runtime; on a job without devices, operators."""
        if self.on_host_alone:
            calls = _index_calls(self.trace.ops)
        else:
            calls = _index_calls(self.trace.launches, _loader_calls(self.trace))
        queues = full_queues(self.trace, calls.columns, self.device_work.columns)
        held = queues.unblocked_ns > 0
        before, inside = polling(self.trace, calls.columns, calls.names, self.device_work.columns, held)
        columns = {**calls.columns, "unblocked": queues.unblocked_ns, "freed_by": queues.freed_by}
        columns |= {"polled_before": before, "polled_inside": inside}
        return replace(calls, columns=columns, queues=queues)

    @cached_property
    def serving(self) -> ServingSteps:
        """Steps of serving."""
        return serving_steps(self.trace)

    @cached_property
    def collectives(self) -> SortedRows:
        """Rows of the collectives by id."""
        return SortedRows.by(integers(self.trace.collectives, "id"))

    @cached_property
    def exchanges(self) -> ExchangeSizes:
        """Elements that the all-to-alls move, one row a collective."""
        return exchange_sizes(self.trace)

    @cached_property
    def syncs(self) -> RecordedSyncs:
        """Recorded synchronisations."""
        return recorded_syncs(self.trace)

    @cached_property
    def backward(self) -> Mapping[tuple[int, int], Ints]:
        """Backward operators with their forward operators, as `backward_ops` returns them."""
        return backward_ops(self.trace)

    @cached_property
    def launching_ranks(self) -> frozenset[int]:
        """Ranks with at least one recorded launch; on the others, gaps stand for the host."""
        columns = self.device_work.columns
        return frozenset(np.unique(columns["rank"][columns["launch_id"] != MISSING]).tolist())

    @property
    def on_host_alone(self) -> bool:
        """Whether the trace has no device work; then operators stand for runtime calls."""
        return not len(self.device_work.reach)

    def check_iterations(self, iterations: Sequence[int]) -> None:
        """Raise an error if the trace lacks one of `iterations`, or if its kernels belong to no iteration.

        Raises
        ------
        InvalidInputError
            The trace lacks an iteration; the message names it, and the iterations of the trace. Or no kernel belongs
            to an iteration.
        """
        recorded = np.unique(integers(self.trace.iterations, "iteration")).tolist()
        for number in iterations:
            if number not in recorded:
                first = ", ".join(map(str, recorded[:12]))
                listed = f"{first}, ... {len(recorded)} in all" if len(recorded) > 12 else first or "none"
                raise InvalidInputError(f"the trace has no iteration {number} (it has {listed})")
        work = self.device_work.columns["iteration"]
        if len(work) and (work == MISSING).all():
            raise InvalidInputError(
                f"none of the {len(work)} kernels and copies belongs to an iteration: they join one through the calls "
                "that launched them; ingest with --iterations whole"
            )


def index_trace(trace: Trace) -> TraceIndex:
    """Return the index of a trace, from which `build_graph` builds several graphs faster than from the trace.

    It costs a sort of the events, and regular expressions on each distinct name.
    """
    ops = SortedRows.by(integers(trace.ops, "id"))
    return TraceIndex(trace, _index_device_work(trace), ops, hardware_of(trace))


def _index_device_work(trace: Trace) -> WorkColumns:
    """Return the kernels and copies of a trace, ordered by start."""
    tables = (trace.kernels, trace.copies)
    merged, names = _joined_columns(tables, _WORK_COLUMNS)
    merged |= {name: np.where(merged[name] == MISSING, -1, merged[name]) for name in ("device", "stream")}
    merged["is_copy"] = np.repeat([False, True], [table.num_rows for table in tables])
    codes, directions = encode_text(trace.copies["direction"])
    known = {name: i for i, name in enumerate(COPY_DIRECTIONS)}
    of_code = np.array([*(known.get(text, -1) for text in directions), -1], dtype=np.int64)
    merged["direction"] = np.concatenate([np.full(trace.kernels.num_rows, -1), of_code[codes]])
    op_codes, op_names = encode_text(trace.ops["name"])
    launched_by = lookup(integers(trace.ops, "id"), op_codes, merged["op"])
    merged["launched_by"] = np.where(launched_by == MISSING, -1, launched_by)
    merged["phase"] = work_phases(trace, merged["launch_id"], merged["op"])
    order = np.argsort(merged["start"], kind="stable")
    columns = {name: values[order] for name, values in merged.items()}
    columns["opens"] = np.zeros(len(order), dtype=bool)
    streams = row_keys(columns["rank"], columns["device"], columns["stream"])
    columns["opens"][np.unique(streams, return_index=True)[1]] = True
    classes = np.array([trace.meta.class_of(name) for name in names], dtype=object)
    dtypes = np.array([dtype_of_name(name) for name in names], dtype=np.int64)
    reach = np.maximum.accumulate(columns["end"])
    began = _iteration_begin(trace, columns)
    return WorkColumns(columns, op_names, names, classes, dtypes, began, reach, SortedRows.by(columns["iteration"]))


def _iteration_begin(trace: Trace, columns: dict[str, npt.NDArray[Any]]) -> Ints:
    """Return the begin of each row's iteration on its rank, as `WorkColumns.began`."""
    table = trace.iterations
    work_key, iteration_key = dense_keys(
        (columns["rank"], columns["iteration"]), (integers(table, "rank"), integers(table, "iteration"))
    )
    start = lookup(iteration_key, integers(table, "start_ns"), work_key)
    return np.where(columns["iteration"] == MISSING, _FIRST, np.where(start == MISSING, _LAST, start))


def _loader_calls(trace: Trace) -> pa.Table:
    """Return the host's waits for a batch of PyTorch's input pipeline as calls with negative ids."""
    names = ["rank", "process", "thread", "iteration", "start_ns", "dur_ns", "name"]
    tables: list[pa.Table] = []
    for table in (trace.ops, trace.ranges):
        codes, distinct = encode_text(table["name"])
        is_loader = np.array([*(str(text).startswith(LOADER_PREFIX) for text in distinct), False], dtype=bool)
        rows = np.flatnonzero(is_loader[codes])
        calls = table.select(names).take(arrow_array(rows))
        tables.append(calls.set_column(len(names) - 1, "name", calls["name"].cast(pa.string())))
    joined = pa.concat_tables(tables, promote_options="permissive")
    return joined.append_column("id", arrow_array(-2 - np.arange(joined.num_rows)))


def _index_calls(*tables: pa.Table) -> CallColumns:
    """Return calls from one or more tables, ordered by (start, id)."""
    columns, names = _joined_columns(tables, _CALL_COLUMNS)
    order = np.lexsort((columns["id"], columns["start"]))
    columns = {name: values[order] for name, values in columns.items()}
    return CallColumns(columns, names, SortedRows.by(columns["iteration"]))


#: Columns of device work and of calls in the index, by the column of the trace.
_WORK_COLUMNS = {
    **{name: name for name in ("id", "rank", "iteration", "launch_id", "device", "stream", "workgroups", "bytes")},
    **{"correlation": "correlation", "start_ns": "start", "op_id": "op", "collective_id": "collective"},
    **{"workgroup_size": "threads", "registers": "registers", "lds_bytes": "lds_bytes"},
}
_CALL_COLUMNS = {**{name: name for name in ("id", "rank", "process", "thread", "iteration")}, "start_ns": "start"}


def _joined_columns(
    tables: Sequence[pa.Table], columns: Mapping[str, str]
) -> tuple[dict[str, npt.NDArray[Any]], npt.NDArray[np.object_]]:
    """Return columns of several tables with the ends and the codes of the names, and the name of each code.

    Parameters
    ----------
    tables : sequence of Table
        Tables of a trace; a column that one of them lacks is `MISSING` there.
    columns : mapping of str to str
        New name of each column to join.
    """
    joined = {new: np.concatenate([integers_or_missing(t, name) for t in tables]) for name, new in columns.items()}
    joined["end"] = np.concatenate([ends(table) for table in tables])
    codes, texts = zip(*(encode_text(table["name"]) for table in tables), strict=True)
    first = np.cumsum([0, *map(len, texts[:-1])])
    joined["name"] = np.concatenate([np.where(c < 0, -1, c + offset) for c, offset in zip(codes, first, strict=True)])
    return joined, np.concatenate(texts)
