"""`write_trace`: the trace that a profiler would write of a job that nobody ran.

Nobody measured these times; `TraceMeta.synthetic` is true for such a trace, and everything that shows one says so.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count, groupby
from typing import Any

import numpy as np
import pyarrow as pa

from profilers.devices.catalogue import Device
from profilers.trace.schema import make_table
from profilers.trace.trace import DeviceProperties, Trace, TraceMeta
from replay.workloads.program import (
    EVENT_NS,
    LAUNCH_CALL_NS,
    OPERATOR_NS,
    THREAD,
    KernelCall,
    ProgramGraph,
    SyntheticJob,
    SyntheticStep,
    Wait,
    program_graph,
    recorded_arguments,
)

#: Threads of a workgroup.
_WORKGROUP_SIZE = 256
#: Columns of each kind of event after the rank and the iteration, in the order in which `_EventWriter` gives them.
_EVENT_COLUMNS = {
    "ops": ("process", "thread", "id", "name", "start_ns", "dur_ns", "shapes", "dtypes", "concrete_inputs"),
    "launches": ("process", "thread", "id", "name", "start_ns", "dur_ns", "api", "op_id", "correlation"),
    "syncs": ("id", "name", "start_ns", "dur_ns", "sync", "device", "correlation", "launch_id", "stream",
              "wait_on_stream", "event_correlation"),
    "kernels": ("name", "start_ns", "dur_ns", "op_id", "device", "stream", "correlation", "launch_id", "workgroups",
                "workgroup_size", "id", "collective_id"),
    "collectives": ("name", "start_ns", "dur_ns", "op_id", "id", "kernel_id", "collective", "elements_in",
                    "elements_out", "dtype", "bytes", "group_name", "group_size", "match_id", "sequence"),
    "ranges": ("name", "start_ns", "dur_ns", "process", "thread", "id", "category"),
    "iterations": ("name", "start_ns", "dur_ns", "sequence_length", "batch", "found_by", "length_found_by"),
}  # fmt: skip


@dataclass
class _EventRows:
    """Rows of each kind of event, the next id, and the numbers of collectives: across ranks, and in each group.

    `arguments` holds the texts of shapes and types that were written before, by what they say.
    """

    rows: dict[str, list[tuple[Any, ...]]] = field(default_factory=lambda: defaultdict(list))
    ids: Iterator[int] = field(default_factory=count)
    matches: dict[tuple[int, str], int] = field(default_factory=dict)
    sequences: dict[tuple[int, str], Iterator[int]] = field(default_factory=lambda: defaultdict(count))
    arguments: dict[tuple[Any, ...], tuple[str, str, str | None]] = field(default_factory=dict)

    def table(self, kind: str) -> pa.Table:
        """Return the table of a kind of event."""
        names = ("rank", "iteration", *_EVENT_COLUMNS[kind])
        return make_table(kind, dict(zip(names, map(list, zip(*self.rows[kind], strict=True)), strict=True)))


def write_trace(job: SyntheticJob, device: Device) -> Trace:
    """Return the trace of a job: operators, launches, kernels, collectives, waits and iterations of every rank.

    Parameters
    ----------
    job : SyntheticJob
        Programs of all ranks and steps.
    device : Device
        Device that the trace names for every rank.

    Raises
    ------
    InvalidInputError
        There is no step, a step has another number of ranks, or ranks wait for one another for ever.
    """
    program, events = program_graph(job, device), _EventRows()
    ranks = range(len(program.begin))
    first, begin = [0 for _ in ranks], [0 for _ in ranks]
    for number, step in enumerate(job.steps):
        for rank, items in enumerate(step.programs):
            rows = slice(first[rank], first[rank] + len(items))
            times = _ItemTimes.of(program, rank, rows, begin[rank], items)
            _EventWriter(job, step, number, rank, times, events).write()
            first[rank], begin[rank] = rows.stop, times.end
    tables = {kind: events.table(kind) for kind in list(events.rows)}
    meta = TraceMeta(
        format="synthetic",
        version=job.version,
        sources=(job.description,),
        ranks=tuple(ranks),
        world_size=job.world_size,
        devices=tuple(DeviceProperties(rank, 0, device.name, device.compute_units) for rank in ranks),
    )
    trace = Trace(meta, tables)
    matches = trace.collectives["match_id"]
    return trace.with_quality({"collectives": len(matches), "collectives_matched": len(matches) - matches.null_count})


@dataclass(frozen=True)
class _ItemTimes:
    """Times of the items of a rank in a step, ns; `begin` and `end` are those of the step on the host.

    A collective starts when its rank arrives, before the other members do.
    """

    begin: int
    end: int
    called: Sequence[int]
    started: Sequence[int]
    ended: Sequence[int]

    @classmethod
    def of(
        cls, program: ProgramGraph, rank: int, rows: slice, begin: int, items: Sequence[KernelCall | Wait]
    ) -> "_ItemTimes":
        tasks = program.graph.tasks
        start, end = tasks.measured_start_ns, tasks.measured_end_ns
        is_kernel = np.array([isinstance(item, KernelCall) for item in items], dtype=bool)
        called = start[program.begin[rank][rows]] - np.where(is_kernel, OPERATOR_NS, 0)
        started, ended = start[program.arrival[rank][rows]], end[program.done[rank][rows]]
        next_ns = np.where(is_kernel, called, ended) + [item.host_ns for item in items]
        columns = (np.rint(column).astype(np.int64).tolist() for column in (called, started, ended))
        return cls(begin, int(next_ns[-1]) if len(items) else begin, *columns)


@dataclass
class _EventWriter:
    """Writes the events of one step on one rank."""

    job: SyntheticJob
    step: SyntheticStep
    number: int
    rank: int
    times: _ItemTimes
    events: _EventRows
    records: dict[int, tuple[int, int]] = field(default_factory=dict)

    def write(self) -> None:
        program = self.step.programs[self.rank]
        awaited = {source for item in program if isinstance(item, KernelCall) for source in item.after}
        for position, item in enumerate(program):  # a Python loop over kernels, about 5 us each
            if isinstance(item, KernelCall):
                self._launch(position, item, recorded=position in awaited)
            else:
                self._wait(position, item)
        self._annotate(program)
        span = (self.step.name, self.times.begin, self.times.end - self.times.begin)
        self._range(*span)
        if self.step.requests is not None:
            self._range(self.step.requests.annotation(), *span[1:])
        self._add("iterations", *span, self.step.sequence_length, self.step.batch, "annotation", "annotation")

    def _annotate(self, program: Sequence[KernelCall | Wait]) -> None:
        """Write an annotation around successive calls of one phase."""
        calls = [(position, item) for position, item in enumerate(program) if isinstance(item, KernelCall)]
        for phase, group in groupby(calls, key=lambda call: call[1].phase):
            (first, item), *others = group
            last, item = others[-1] if others else (first, item)
            start, end = self.times.called[first], self.times.called[last] + item.host_ns
            if phase:
                self._range(phase, start, end - start)

    def _range(self, name: str, start_ns: int, dur_ns: int) -> None:
        """Write an annotation of the thread that makes all calls."""
        self._add("ranges", name, start_ns, dur_ns, self.rank, THREAD, next(self.events.ids), "user_annotation")

    def _add(self, kind: str, *values: Any) -> None:
        """Add an event of this step and rank, with the values of its columns."""
        self.events.rows[kind].append((self.rank, self.number, *values))

    def _call(self, name: str, start_ns: int, dur_ns: int, op: int | None = None) -> int:
        """Write a call of the runtime and return its id, which is its correlation."""
        call = next(self.events.ids)
        self._add("launches", self.rank, THREAD, call, name, start_ns, dur_ns, "cuda_runtime", op, call)
        return call

    def _sync(self, kind: str, call: int, start_ns: int, *streams: int | None) -> None:
        """Write a wait: of a stream, and if it waits for another, that stream and the event."""
        self._add("syncs", next(self.events.ids), kind, start_ns, 0, kind, 0, call, call, *streams)

    def _arguments(self, kernel: KernelCall) -> tuple[str, str, str | None]:
        """Return shapes, types and other values of the arguments of a call, as text."""
        key = (kernel.shape, kernel.operands, kernel.types, kernel.values)
        if (texts := self.events.arguments.get(key)) is None:
            texts = recorded_arguments(kernel, self.job)
            self.events.arguments[key] = texts
        return texts

    def _launch(self, position: int, kernel: KernelCall, *, recorded: bool) -> None:
        """Write an operator with its waits, its launch and its kernel; `recorded`, with an event after the launch."""
        called, op = self.times.called[position], next(self.events.ids)
        span = (kernel.op, called, max(kernel.host_ns - 1, 1))
        self._add("ops", self.rank, THREAD, op, *span, *self._arguments(kernel))
        for i, source in enumerate(kernel.after):
            stream, record = self.records[source]
            wait = self._call("cudaStreamWaitEvent", called + i, 1)
            self._sync("Stream Wait Event", wait, called + i, kernel.stream, stream, record)
        launch = self._call("cudaLaunchKernel", called + OPERATOR_NS, LAUNCH_CALL_NS, op)
        if recorded:
            record_ns = called + OPERATOR_NS + LAUNCH_CALL_NS + EVENT_NS
            self.records[position] = kernel.stream, self._call("cudaEventRecord", record_ns, EVENT_NS)
        self._kernel(position, kernel, op, launch)

    def _kernel(self, position: int, kernel: KernelCall, op: int, launch: int) -> None:
        start, end = self.times.started[position], self.times.ended[position]
        kernel_id = next(self.events.ids)
        collective = next(self.events.ids) if kernel.exchange else None
        span = (kernel.name, start, end - start, op)
        place, grid = (0, kernel.stream, launch, launch), (kernel.workgroups, None)
        self._add("kernels", *span, *place, *grid, kernel_id, collective)
        if kernel.exchange is None:
            return
        exchange, key = kernel.exchange, (self.number, kernel.exchange.meets)
        match = self.events.matches.setdefault(key, len(self.events.matches)) if exchange.meets else None
        self._add(
            "collectives", *span, collective, kernel_id, exchange.kind, exchange.elements, exchange.elements,
            self.job.dtype, exchange.elements * self.job.element_bytes, exchange.group, exchange.size, match,
            next(self.events.sequences[self.rank, exchange.group])
        )  # fmt: skip

    def _wait(self, position: int, wait: Wait) -> None:
        called, returned = self.times.called[position], self.times.ended[position]
        name = "cudaDeviceSynchronize" if wait.stream is None else "cudaStreamSynchronize"
        call = self._call(name, called, max(returned - called, 1))
        if wait.stream is not None:
            self._sync("Stream Sync", call, called, wait.stream, None, None)
