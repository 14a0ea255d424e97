"""Programs of kernels and waits on each rank, the times at which they run, and the events of them.

A `SyntheticJob` is plain data: the kernels, collectives and waits of each step and rank, with their durations.
`run_step` times a step: hosts call in order, streams run in order, and the members of a collective start together.
`write_trace` writes the events that a profiler would write of it. `replay.workloads` has whole jobs.
"""

import json
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import count, groupby
from typing import Any

import pyarrow as pa

from profilers.devices.catalogue import Device
from profilers.errors import InvalidInputError
from profilers.trace.schema import make_table
from profilers.trace.trace import DeviceProperties, Trace, TraceMeta

#: Shape of a tensor, or the shapes of a list of tensors.
Shape = tuple[int, ...] | tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Collective:
    """The collective that a `KernelCall` executes.

    Parameters
    ----------
    kind : str
        ``"all_reduce"`` and so on, as `profilers.ingest.collectives` names them.
    elements : int
        Elements of the input and of the output on each rank.
    group : str
        Name of the group of ranks.
    size : int
        Ranks of the group, whether or not all of them are in the trace.
    meets : str
        Key that the members of one collective share; each rank has it once a step. They start together. Empty if no
        other member is in the trace.
    """

    kind: str
    elements: int
    group: str
    size: int
    meets: str = ""


@dataclass(frozen=True)
class KernelCall:
    """A kernel or collective, and the call that launches it.

    Parameters
    ----------
    name, op : str
        Name of the kernel, and of the operator that launches it.
    duration_ns : int
        Duration of the kernel alone; that of a collective counts from the arrival of its last member.
    host_ns : int
        Time on the host from its call to the next call.
    stream : int
        Stream of the kernel.
    shape : tuple of int, or of shapes
        Shape of the operator's input; of a list of tensors, their shapes.
    operands : tuple of tuple of int, or of shapes
        Shapes of its further arguments, such as the right matrix of a product. Without them, FLOP are unknown.
    values : tuple of str
        Arguments that are no tensors, as a profiler writes them, by position; empty for tensors.
    types : tuple of str
        Types of the elements of the arguments, as profilers name them; by default those of the job.
    phase : str
        Phase of the step, such as ``"backward"``; the trace has an annotation around calls of one phase.
    workgroups : int
        Workgroups of the kernel.
    after : tuple of int
        Positions, in the program of the rank, of earlier kernels on other streams for which it waits.
    exchange : Collective, optional
        The collective that it executes; None for a kernel that computes.
    lag_ns : int
        Time from when it could start to its start: a launch that did not overlap, or a wait for another stream.
    """

    name: str
    op: str
    duration_ns: int
    host_ns: int
    stream: int = 7
    shape: Shape = ()
    workgroups: int = 1
    after: tuple[int, ...] = ()
    exchange: Collective | None = None
    operands: tuple[Shape, ...] = ()
    lag_ns: int = 0
    values: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    phase: str = ""

    @property
    def meets(self) -> str:
        """The key of the collective that it executes; empty if no other member is in the trace."""
        return self.exchange.meets if self.exchange else ""


@dataclass(frozen=True)
class Wait:
    """A call in which the host waits for the device.

    Parameters
    ----------
    stream : int, optional
        Stream for which the host waits; by default all streams.
    host_ns : int
        Time on the host from the return of the call to the next call.
    returns_ns : int
        Time from the end of the device work to the return of the call.
    """

    stream: int | None = None
    host_ns: int = 0
    returns_ns: int = 0


@dataclass(frozen=True)
class SyntheticStep:
    """One iteration of a synthetic job.

    Parameters
    ----------
    name : str
        Text of its annotation in the trace.
    sequence_length, batch : int
        Tokens of a sequence, and sequences.
    programs : sequence of sequence of KernelCall or Wait
        Program of each rank, in the order of its calls.
    launch_ns : int
        Time from a call to the start of its kernel, if the kernel waits for nothing else.
    """

    name: str
    sequence_length: int
    batch: int
    programs: Sequence[Sequence[KernelCall | Wait]]
    launch_ns: int = 8_000


@dataclass(frozen=True)
class SyntheticJob:
    """A job that nobody ran, as programs of its ranks.

    Parameters
    ----------
    description, version : str
        Source and version that the trace states.
    steps : sequence of SyntheticStep
        Iterations, all with the same number of ranks.
    world_size : int
        Ranks of the job. The trace may hold one rank for several that do the same.
    dtype : str
        Element type of the operators and collectives, as profilers name it.
    element_bytes : int
        Bytes of an element.
    """

    description: str
    version: str
    steps: Sequence[SyntheticStep]
    world_size: int
    dtype: str = "BFloat16"
    element_bytes: int = 2


@dataclass
class Timing:
    """Times of a rank's program in ns, by position in the program.

    Parameters
    ----------
    host_ns : int
        Time at which the host is free.
    called, returned : dict
        Start of each call, and return of each wait.
    started, ended : dict
        Start and end of each kernel. A collective starts when its rank arrives, before the other members do.
    """

    host_ns: int
    called: dict[int, int] = field(default_factory=dict)
    returned: dict[int, int] = field(default_factory=dict)
    started: dict[int, int] = field(default_factory=dict)
    ended: dict[int, int] = field(default_factory=dict)


@dataclass
class _Rank:
    """State of a rank: its position in the program, and the kernels that were called and have not run.

    A kernel that waits for no other rank runs when it is called, if what it waits for has run; others queue.
    """

    program: Sequence[KernelCall | Wait]
    timing: Timing
    free: dict[int, int]
    launch_ns: int
    shared: Set[str]
    queues: dict[int, deque[int]] = field(default_factory=dict)
    position: int = 0

    def advance(self) -> bool:
        """Run what waits for no other rank, and make all calls up to the next wait; return whether there was any."""
        moved = False
        for queue in self.queues.values():
            while queue and self._run(queue[0]):
                queue.popleft()
                moved = True
        before = self.position
        while self.position < len(self.program) and self._call(self.program[self.position]):
            self.position += 1
        return moved or self.position > before

    def _call(self, item: KernelCall | Wait) -> bool:
        timing, position = self.timing, self.position
        if isinstance(item, KernelCall):
            timing.called[position] = timing.host_ns
            timing.host_ns += item.host_ns
            queue = self.queues.setdefault(item.stream, deque())
            if queue or not self._run(position):
                queue.append(position)
            return True
        if any(queue for stream, queue in self.queues.items() if item.stream in (None, stream)):
            return False
        busy = [end for stream, end in self.free.items() if item.stream in (None, stream)]
        timing.called[position] = timing.host_ns
        timing.returned[position] = max([timing.host_ns, *(end + item.returns_ns for end in busy)])
        timing.host_ns = timing.returned[position] + item.host_ns
        return True

    def _run(self, position: int) -> bool:
        """Run the next kernel of a stream, unless it meets other ranks or what it waits for has not run."""
        kernel = self.kernel(position)
        if kernel.exchange is not None and kernel.exchange.meets in self.shared:
            return False
        ready = self._ready(position, kernel)
        if ready is None:
            return False
        self._finish(position, kernel, ready, ready + kernel.duration_ns)
        return True

    def _ready(self, position: int, kernel: KernelCall) -> int | None:
        """Return when the next kernel of a stream could start; None if a kernel that it waits for has not run."""
        timing = self.timing
        ready = max(timing.called[position] + self.launch_ns, self.free.get(kernel.stream, 0))
        for source in kernel.after:
            ended = timing.ended.get(source)
            if ended is None:
                return None
            ready = max(ready, ended)
        return ready + kernel.lag_ns

    def arrivals(self) -> list[tuple[str, int, int]]:
        """Return the collectives that are next on a stream: key, position, and the time at which each is ready."""
        found = []
        for queue in self.queues.values():
            if queue and (kernel := self.kernel(queue[0])).meets in self.shared:
                ready = self._ready(queue[0], kernel)
                if ready is not None:
                    found.append((kernel.meets, queue[0], ready))
        return found

    def kernel(self, position: int) -> KernelCall:
        """Return the kernel or collective at a position of the program."""
        item = self.program[position]
        assert isinstance(item, KernelCall)
        return item

    def meet(self, position: int, started: int, ended: int) -> None:
        """Record when the collective that is next on its stream ran."""
        kernel = self.kernel(position)
        self._finish(position, kernel, started, ended)
        self.queues[kernel.stream].popleft()

    def _finish(self, position: int, kernel: KernelCall, started: int, ended: int) -> None:
        self.timing.started[position], self.timing.ended[position] = started, ended
        self.free[kernel.stream] = ended


def run_step(
    step: SyntheticStep, hosts: Sequence[int], streams: Sequence[Mapping[int, int]]
) -> tuple[list[Timing], list[dict[int, int]]]:
    """Return the times of a step, and the times at which the streams are free after it.

    Parameters
    ----------
    step : SyntheticStep
        Programs of all ranks.
    hosts : sequence of int
        Time at which the host of each rank starts, ns.
    streams : sequence of mapping
        Time at which each stream of each rank is free, ns.

    Returns
    -------
    list of Timing, list of dict
        Times of each rank's program, and the time at which each of its streams is free, ns.

    Raises
    ------
    InvalidInputError
        Ranks wait for one another for ever; the message names the first kernel that does.
    """
    members = Counter(
        item.meets for program in step.programs for item in program if isinstance(item, KernelCall) and item.exchange
    )
    shared = {key for key, size in members.items() if key and size > 1}
    ranks = [
        _Rank(program, Timing(host), dict(free), step.launch_ns, shared)
        for program, host, free in zip(step.programs, hosts, streams, strict=True)
    ]
    moved = True
    while moved:
        moved = False
        arrived: dict[str, list[tuple[int, int, int]]] = {}
        for number, rank in enumerate(ranks):
            moved |= rank.advance()
            for key, position, ready in rank.arrivals():
                arrived.setdefault(key, []).append((number, position, ready))
        for key, arrivals in arrived.items():
            if len(arrivals) == members[key]:
                last_arrival = max(ready for _, _, ready in arrivals)
                for number, position, ready in arrivals:
                    ranks[number].meet(position, ready, last_arrival + ranks[number].kernel(position).duration_ns)
                moved = True
    for number, rank in enumerate(ranks):
        if left := sorted(position for queue in rank.queues.values() for position in queue):
            kernel = rank.kernel(left[0])
            raise InvalidInputError(f"step {step.name!r}: rank {number} waits for ever at work {left[0]}, {kernel}")
    return [rank.timing for rank in ranks], [rank.free for rank in ranks]


#: Host time in ns of an operator before its launch, of a launch, and of the record of an event.
_OPERATOR_NS, _LAUNCH_CALL_NS, _EVENT_NS = 500, 500, 100
#: Names of element types in the records of operators, where they differ from those of collectives.
_ELEMENT_TYPES = {"Float": "float", "Double": "double"}
#: Least time from one call to the next, ns: it has to hold the three above.
_MIN_HOST_NS = 1_500
#: Thread that makes all calls, and threads of a workgroup.
_THREAD, _WORKGROUP_SIZE = 1, 256


#: Columns of each kind of event after the rank and the iteration, in the order in which `_Writer` gives them.
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
    counts = {len(step.programs) for step in job.steps}
    if len(counts) != 1 or 0 in counts:
        raise InvalidInputError("a synthetic job needs at least one step, and as many ranks in each")
    ranks = counts.pop()
    events, hosts = _EventRows(), [0] * ranks
    free: list[dict[int, int]] = [{} for _ in range(ranks)]
    for number, step in enumerate(job.steps):
        timings, free_after = run_step(step, hosts, free)
        for rank, timing in enumerate(timings):
            _Writer(job, step, number, rank, timing, events).write(hosts[rank])
        hosts, free = [timing.host_ns for timing in timings], free_after
    tables = {kind: events.table(kind) for kind in list(events.rows)}
    meta = TraceMeta(
        format="synthetic",
        version=job.version,
        sources=(job.description,),
        ranks=tuple(range(ranks)),
        world_size=job.world_size,
        devices=tuple(DeviceProperties(rank, 0, device.name, device.compute_units) for rank in range(ranks)),
    )
    collectives = events.rows["collectives"]
    match = ("rank", "iteration", *_EVENT_COLUMNS["collectives"]).index("match_id")
    matched = sum(row[match] is not None for row in collectives)
    return Trace(meta, tables).with_quality({"collectives": len(collectives), "collectives_matched": matched})


@dataclass
class _Writer:
    """Writes the events of one step on one rank."""

    job: SyntheticJob
    step: SyntheticStep
    number: int
    rank: int
    timing: Timing
    events: _EventRows
    records: dict[int, tuple[int, int]] = field(default_factory=dict)

    def write(self, start_ns: int) -> None:
        program = self.step.programs[self.rank]
        awaited = {source for item in program if isinstance(item, KernelCall) for source in item.after}
        for position, item in enumerate(program):  # a Python loop over kernels, about 5 us each
            if isinstance(item, KernelCall):
                self._launch(position, item, recorded=position in awaited)
            else:
                self._wait(position, item)
        self._annotate(program)
        span = (self.step.name, start_ns, self.timing.host_ns - start_ns)
        self._range(*span)
        self._add("iterations", *span, self.step.sequence_length, self.step.batch, "annotation", "annotation")

    def _annotate(self, program: Sequence[KernelCall | Wait]) -> None:
        """Write an annotation around successive calls of one phase."""
        calls = [(position, item) for position, item in enumerate(program) if isinstance(item, KernelCall)]
        for phase, group in groupby(calls, key=lambda call: call[1].phase):
            (first, item), *others = group
            last, item = others[-1] if others else (first, item)
            start, end = self.timing.called[first], self.timing.called[last] + item.host_ns
            if phase:
                self._range(phase, start, end - start)

    def _range(self, name: str, start_ns: int, dur_ns: int) -> None:
        """Write an annotation of the thread that makes all calls."""
        self._add("ranges", name, start_ns, dur_ns, self.rank, _THREAD, next(self.events.ids), "user_annotation")

    def _add(self, kind: str, *values: Any) -> None:
        """Add an event of this step and rank, with the values of its columns."""
        self.events.rows[kind].append((self.rank, self.number, *values))

    def _call(self, name: str, start_ns: int, dur_ns: int, op: int | None = None) -> int:
        """Write a call of the runtime and return its id, which is its correlation."""
        call = next(self.events.ids)
        self._add("launches", self.rank, _THREAD, call, name, start_ns, dur_ns, "cuda_runtime", op, call)
        return call

    def _sync(self, kind: str, call: int, start_ns: int, *streams: int | None) -> None:
        """Write a wait: of a stream, and if it waits for another, that stream and the event."""
        self._add("syncs", next(self.events.ids), kind, start_ns, 0, kind, 0, call, call, *streams)

    def _arguments(self, kernel: KernelCall) -> tuple[str, str, str | None]:
        """Return shapes, types and other values of the arguments of a call, as text."""
        key = (kernel.shape, kernel.operands, kernel.types, kernel.values)
        if (texts := self.events.arguments.get(key)) is None:
            shapes = [list(shape) for shape in (kernel.shape, *kernel.operands)]
            types = [
                _ELEMENT_TYPES.get(dtype, f"c10::{dtype}") for dtype in kernel.types or (self.job.dtype,) * len(shapes)
            ]
            values = json.dumps(kernel.values) if kernel.values else None
            texts = json.dumps(shapes, separators=(",", ":")), json.dumps(types), values
            self.events.arguments[key] = texts
        return texts

    def _launch(self, position: int, kernel: KernelCall, *, recorded: bool) -> None:
        """Write an operator with its waits, its launch and its kernel; `recorded`, with an event after the launch."""
        if kernel.host_ns < _MIN_HOST_NS:
            raise InvalidInputError(f"{kernel.op}: a call takes {kernel.host_ns} ns; it must be {_MIN_HOST_NS} or more")
        called, op = self.timing.called[position], next(self.events.ids)
        span = (kernel.op, called, max(kernel.host_ns - 1, 1))
        self._add("ops", self.rank, _THREAD, op, *span, *self._arguments(kernel))
        for i, source in enumerate(kernel.after):
            stream, record = self.records[source]
            wait = self._call("cudaStreamWaitEvent", called + i, 1)
            self._sync("Stream Wait Event", wait, called + i, kernel.stream, stream, record)
        launch = self._call("cudaLaunchKernel", called + _OPERATOR_NS, _LAUNCH_CALL_NS, op)
        if recorded:
            record_ns = called + _OPERATOR_NS + _LAUNCH_CALL_NS + _EVENT_NS
            self.records[position] = kernel.stream, self._call("cudaEventRecord", record_ns, _EVENT_NS)
        self._kernel(position, kernel, op, launch)

    def _kernel(self, position: int, kernel: KernelCall, op: int, launch: int) -> None:
        start, end = self.timing.started[position], self.timing.ended[position]
        kernel_id = next(self.events.ids)
        collective = next(self.events.ids) if kernel.exchange else None
        span = (kernel.name, start, end - start, op)
        self._add(
            "kernels",
            *span,
            0,
            kernel.stream,
            launch,
            launch,
            kernel.workgroups,
            _WORKGROUP_SIZE,
            kernel_id,
            collective,
        )
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
        called, returned = self.timing.called[position], self.timing.returned[position]
        name = "cudaDeviceSynchronize" if wait.stream is None else "cudaStreamSynchronize"
        call = self._call(name, called, max(returned - called, 1))
        if wait.stream is not None:
            self._sync("Stream Sync", call, called, wait.stream, None, None)
