"""Programs of kernels and waits on each rank, and their graph.

A `SyntheticJob` is plain data: the kernels, collectives and waits of each step and rank, with their durations. Hosts
call in order, streams run in order, and the members of a collective start together. `program_graph` says this as a
graph, which the engine times. `replay.workloads.program_trace` writes the events that a profiler would write of it.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from profilers.devices.catalogue import Device
from profilers.errors import InvalidInputError
from profilers.trace.arrays import Ints
from profilers.trace.kernels import CLASSES, classify
from profilers.trace.serving import ServingStep
from replay.calibration.parameters import Parameters
from replay.costs.calls import Call
from replay.costs.demand import isolate
from replay.costs.operators import operator_of
from replay.engine.engine import simulate
from replay.from_trace.index import dtype_of_name
from replay.from_trace.phases import annotated_phase, filled_phases
from replay.from_trace.tasks import dtype_of_inputs, kernel_use, recorded_dtype
from replay.graph.assembly import Assembly
from replay.graph.edit import lane_order, reordered
from replay.graph.graph import (
    COLLECTIVE_KINDS,
    Basis,
    EdgeKind,
    KernelGraph,
    Lane,
    RecordedCall,
    TaskKind,
    hardware_named,
)
from replay.graph.operators import Operator

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
    requests : ServingStep, optional
        Requests of a step of serving, which a further annotation states.
    """

    name: str
    sequence_length: int
    batch: int
    programs: Sequence[Sequence[KernelCall | Wait]]
    launch_ns: int = 8_000
    requests: ServingStep | None = None


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


#: Host time in ns from a call to its launch, of a launch, and of the record of an event.
OPERATOR_NS, LAUNCH_CALL_NS, EVENT_NS = 500, 500, 100
#: Least time from one call to the next, ns: it has to hold the three above.
_MIN_HOST_NS = 1_500
#: Thread that makes all calls.
THREAD = 1


#: Names of element types in the records of operators, where they differ from those of collectives.
_ELEMENT_TYPES = {"Float": "float", "Double": "double"}
#: Writes shapes as profilers do, without spaces.
_COMPACT = json.JSONEncoder(separators=(",", ":"))


def recorded_arguments(kernel: KernelCall, job: SyntheticJob) -> tuple[str, str, str | None]:
    """Return shapes, types and other values of the arguments of a call, as a profiler writes them."""
    shapes = [list(shape) for shape in (kernel.shape, *kernel.operands)]
    dtypes = kernel.types or (job.dtype,) * len(shapes)
    types = [_ELEMENT_TYPES.get(dtype, f"c10::{dtype}") for dtype in dtypes]
    values = json.dumps(kernel.values) if kernel.values else None
    return _COMPACT.encode(shapes), json.dumps(types), values


@dataclass(frozen=True)
class ProgramGraph:
    """The graph of a job's programs, and its tasks by position in the program of a rank: all steps, one after another.

    Parameters
    ----------
    graph : KernelGraph
        The graph, timed as it is when nothing slows anything else. Its durations are isolated.
    begin : sequence of array of int64
        For each rank the task of each item at which it begins: the launch of a kernel, or the call of a wait.
    done : sequence of array of int64
        The task at which the device or the call is done: the kernel, or the return of the wait.
    arrival : sequence of array of int64
        The task at which a rank arrives: a mark for a collective whose ranks meet, else the same as `done`.
    """

    graph: KernelGraph
    begin: Sequence[Ints]
    done: Sequence[Ints]
    arrival: Sequence[Ints]


def program_graph(job: SyntheticJob, device: Device) -> ProgramGraph:
    """Return the graph of a job's programs: hosts call in order, streams run in order, members of a collective meet.

    Parameters
    ----------
    job : SyntheticJob
        Programs of all ranks and steps.
    device : Device
        Device of every rank.

    Raises
    ------
    InvalidInputError
        There is no step, a step has another number of ranks, a call is too short, or ranks wait for one another for
        ever.
    """
    counts = {len(step.programs) for step in job.steps}
    if len(counts) != 1 or 0 in counts:
        raise InvalidInputError("a synthetic job needs at least one step, and as many ranks in each")
    facts, assembly = _ItemTable(job), Assembly()
    programs = [_RankProgram(job, rank, facts) for rank in range(counts.pop())]
    shared = {key for key, size in Counter(key for each in programs for key in each.meets).items() if key and size > 1}
    columns = facts.columns(assembly)
    tasks = [_add_rank(assembly, rank, program, shared, columns) for rank, program in enumerate(programs)]
    _add_meetings(assembly, programs, tasks, shared)
    graph = assembly.graph(replace(hardware_named(device, "trace"), compute_units=device.compute_units))
    graph = replace(
        graph,
        origin=Basis.ASSUMED,
        operators=tuple(facts.operators),
        calls=tuple(facts.calls),
        iterations=tuple(range(len(job.steps))),
        world_size=job.world_size,
    )
    order, row = lane_order(graph), np.empty(len(graph.tasks), np.int64)
    row[order] = np.arange(len(order))
    graph = reordered(graph, order)
    start_ns, end_ns = simulate(graph)
    graph = graph.with_tasks(measured_start_ns=start_ns, measured_end_ns=end_ns)
    begin, done, arrival = ([row[each] for each in of_ranks] for of_ranks in zip(*tasks, strict=True))
    return ProgramGraph(replace(graph, measured_ns=float(end_ns.max())), begin, done, arrival)


class _ItemTable:
    """Distinct kernels and waits of a job, and what a graph says of each."""

    def __init__(self, job: SyntheticJob) -> None:
        self._job = job
        self._numbers: dict[int | tuple[Any, ...], int] = {}
        self._kept: list[KernelCall | Wait] = []  # so that no other object takes the identity of one
        self.items: list[KernelCall | Wait] = []
        self.operators: dict[Operator, int] = {}
        self.calls: dict[RecordedCall, int] = {}

    def number(self, item: KernelCall | Wait) -> int:
        """Return the number of an item; those that differ only in what they wait for share one."""
        if (number := self._numbers.get(id(item))) is None:
            key: tuple[Any, ...] = (item.stream, item.host_ns)
            if isinstance(item, KernelCall):
                exchange = item.exchange and (item.exchange.kind, item.exchange.elements, item.exchange.size)
                key += (item.name, item.op, item.duration_ns, item.lag_ns, item.workgroups, item.phase, exchange)
                key += (item.shape, item.operands, item.values, item.types)
            else:
                key += (item.returns_ns,)
            number = self._numbers.setdefault(key, len(self.items))
            if number == len(self.items):
                self.items.append(item)
            self._numbers[id(item)] = number
            self._kept.append(item)
        return number

    def timing(self) -> Ints:
        """Return by number of item whether it is a kernel, its stream, host time, lag, and time to return."""
        rows = [
            (1, item.stream, item.host_ns, item.lag_ns, 0)
            if isinstance(item, KernelCall)
            else (0, -1 if item.stream is None else item.stream, item.host_ns, 0, item.returns_ns)
            for item in self.items
        ]
        return np.array(rows, dtype=np.int64).reshape(-1, 5).T

    def columns(self, assembly: Assembly) -> dict[str, npt.NDArray[Any]]:
        """Return the columns of the tasks of kernels by number of item; waits have those of the first kernel."""
        kernels = {number: item for number, item in enumerate(self.items) if isinstance(item, KernelCall)}
        rows = [self._row(kernel) for kernel in kernels.values()]
        of_item = np.zeros(len(self.items), dtype=np.int64)
        of_item[list(kernels)] = np.arange(len(rows))
        columns = {name: np.array([row[name] for row in rows])[of_item] for name in (rows[0] if rows else ())}
        for name in ("name", "launched_by") if rows else ():
            columns[name] = assembly.number_names(np.arange(len(of_item)), columns[name].tolist())
        return columns

    def _row(self, kernel: KernelCall) -> dict[str, Any]:
        texts = recorded_arguments(kernel, self._job)
        recorded: RecordedCall = (kernel.op, *texts)
        exchange = kernel.exchange
        class_, dtype, operator, computes = _facts_of(kernel.name, recorded if exchange is None else None)
        number = -1 if operator is None else self.operators.setdefault(operator, len(self.operators))
        if exchange is not None:
            dtype = recorded_dtype(self._job.dtype, dtype)
        known = exchange is not None and exchange.kind in COLLECTIVE_KINDS
        return {
            "name": kernel.name,
            "launched_by": kernel.op,
            "duration_ns": float(kernel.duration_ns),
            "kind": int(TaskKind.KERNEL if exchange is None else TaskKind.COLLECTIVE),
            "class_": class_,
            "workgroups": kernel.workgroups,
            "dtype": dtype,
            "operator": number if computes else -1,
            "memory_operator": -1 if computes else number,
            "call": self.calls.setdefault(recorded, len(self.calls)),
            "phase": annotated_phase(kernel.phase),
            "bytes": 0 if exchange is None else exchange.elements * self._job.element_bytes,
            "ranks": 0 if exchange is None else exchange.size,
            "collective": -1 if exchange is None else COLLECTIVE_KINDS.index(exchange.kind if known else "unknown"),
        }


@lru_cache(4096)
def _facts_of(name: str, call: RecordedCall | None) -> tuple[int, int, Operator | None, bool]:
    """Return the class and the data type of a kernel, its operator, and whether it computes it or moves its data."""
    class_ = classify(name)
    operator = None if call is None else operator_of(Call.of_row(*call))
    use = "" if operator is None else kernel_use(operator.kind, class_)
    dtype = dtype_of_name(name)
    if dtype < 0 and call is not None:
        dtype = dtype_of_inputs(call[2])
    return CLASSES.index(class_), dtype, operator if use else None, use == "computes"


class _RankProgram:
    """The items of a rank over all steps, as arrays with an element an item.

    `stream` is that of a kernel, or that a wait is for, -1 for all. `to_next_ns` is the time from the end of the
    launch, or the return of the wait, to the next call. `after` are pairs of an item and an earlier one that it waits
    for, `meets` the keys of collectives with their items. A call that is too short to hold its launch is an error.
    """

    def __init__(self, job: SyntheticJob, rank: int, table: _ItemTable) -> None:
        numbers, after = list[int](), list[tuple[int, int]]()
        self.meets: dict[tuple[int, str], int] = {}
        for number, step in enumerate(job.steps):
            first = len(numbers)
            for position, item in enumerate(step.programs[rank], first):  # a Python loop over items, 0.3 us each
                numbers.append(table.number(item))
                if isinstance(item, KernelCall):
                    if item.after:
                        after += [(position, first + source) for source in item.after]
                    if item.exchange is not None and item.exchange.meets:
                        self.meets[number, item.exchange.meets] = position
        lengths = [len(step.programs[rank]) for step in job.steps]
        self.number = np.array(numbers, dtype=np.int64)
        self.step = np.repeat(np.arange(len(lengths)), lengths)
        self.ready_ns = np.repeat([step.launch_ns for step in job.steps], lengths)
        self.after = np.array(after, dtype=np.int64).reshape(-1, 2)
        is_kernel, self.stream, host_ns, self.lag_ns, self.returns_ns = table.timing()[:, self.number]
        self.is_kernel = is_kernel > 0
        if (short := self.is_kernel & (host_ns < _MIN_HOST_NS)).any():
            item = table.items[self.number[np.argmax(short)]]
            assert isinstance(item, KernelCall)
            raise InvalidInputError(f"{item.op}: a call takes {item.host_ns} ns; it must be {_MIN_HOST_NS} or more")
        self.to_next_ns = host_ns - np.where(self.is_kernel, OPERATOR_NS + LAUNCH_CALL_NS, 0)


def _add_rank(
    assembly: Assembly,
    rank: int,
    program: _RankProgram,
    shared: Set[tuple[int, str]],
    table: Mapping[str, npt.NDArray[Any]],
) -> tuple[Ints, Ints, Ints]:
    """Append the tasks of a rank and the edges among them; return `begin`, `done` and `arrival` of `ProgramGraph`."""
    is_kernel, step = program.is_kernel, program.step
    is_met = np.zeros(len(is_kernel), dtype=bool)
    is_met[[item for key, item in program.meets.items() if key in shared]] = True
    thread = assembly.number_lane(Lane(rank, None, THREAD))
    names = assembly.number_names(is_kernel.astype(np.int64), ("cudaDeviceSynchronize", "cudaLaunchKernel"))
    host = {"kind": int(TaskKind.HOST), "duration_ns": np.where(is_kernel, float(LAUNCH_CALL_NS), 0.0)}
    begin = assembly.tasks(names, thread, host | {"iteration": step})
    mark = {"kind": int(TaskKind.MARK)}
    done = begin.copy()
    done[~is_kernel] = assembly.tasks("cudaDeviceSynchronize returns", thread, mark | {"iteration": step[~is_kernel]})
    called = done.copy()  # where the host goes on
    streams, stream = np.unique(program.stream[is_kernel], return_inverse=True)
    lanes = np.array([assembly.number_lane(Lane(rank, 0, number)) for number in streams.tolist()], dtype=np.int64)
    lane = np.full(len(is_kernel), -1)
    lane[is_kernel] = lanes[stream] if len(lanes) else 0
    of_kernel = {name: values[program.number[is_kernel]] for name, values in table.items()}
    of_kernel["phase"] = filled_phases(of_kernel["phase"]) if len(table) else np.zeros(0, np.int64)
    name = of_kernel.pop("name", np.zeros(0, np.int64))
    done[is_kernel] = assembly.tasks(name, lane[is_kernel], of_kernel | {"iteration": step[is_kernel]})
    arrival = done.copy()
    arrival[is_met] = assembly.tasks("arrives", lane[is_met], mark | {"iteration": step[is_met]})
    _order_host(assembly, rank, program, (begin, called))
    _order_device(assembly, program, (begin, done, arrival))
    return begin, done, arrival


def _order_host(assembly: Assembly, rank: int, program: _RankProgram, tasks: tuple[Ints, Ints]) -> None:
    """Append the order of the calls of a rank, and a mark at the end of each step."""
    begin, called = tasks
    before_launch = np.where(program.is_kernel, OPERATOR_NS, 0)
    last = np.flatnonzero(np.append(np.diff(program.step) > 0, True))
    lane = assembly.number_lane(Lane(rank, None, 0))
    columns = {"kind": int(TaskKind.MARK), "iteration": program.step[last]}
    marks = assembly.tasks("end of the step on the host", lane, columns)
    assembly.edges(called[last], marks, lag_ns=program.to_next_ns[last], kind=EdgeKind.HOST)
    first = last[:-1] + 1
    assembly.edges(marks[:-1], begin[first], lag_ns=before_launch[first], kind=EdgeKind.HOST)
    later = np.setdiff1d(np.arange(1, len(begin)), first)
    lag_ns = program.to_next_ns[later - 1] + before_launch[later]
    assembly.edges(called[later - 1], begin[later], lag_ns=lag_ns, kind=EdgeKind.HOST)
    start = assembly.tasks("start of the job on the host", lane, {"kind": int(TaskKind.MARK)})
    assembly.edges(start, begin[:1], lag_ns=before_launch[:1], kind=EdgeKind.HOST)


def _order_device(assembly: Assembly, program: _RankProgram, tasks: tuple[Ints, Ints, Ints]) -> None:
    """Append launches, the order of each stream, waits for other streams, and the host's waits for streams."""
    begin, done, arrival = tasks
    lag_ns = program.lag_ns
    kernels, waits = np.flatnonzero(program.is_kernel), np.flatnonzero(~program.is_kernel)
    ready_ns = program.ready_ns[kernels] - OPERATOR_NS + lag_ns[kernels]
    assembly.edges(begin[kernels], arrival[kernels], lag_ns=ready_ns, kind=EdgeKind.LAUNCH, from_start=True)
    item, source = program.after.T
    assembly.edges(done[source], arrival[item], lag_ns=lag_ns[item], kind=EdgeKind.WAIT)
    assembly.edges(begin[waits], done[waits], kind=EdgeKind.HOST)
    for stream in np.unique(program.stream[kernels]).tolist():  # a few streams
        queue = kernels[program.stream[kernels] == stream]
        assembly.edges(done[queue[:-1]], arrival[queue[1:]], lag_ns=lag_ns[queue[1:]])
        waiting = waits[np.isin(program.stream[waits], (-1, stream))]
        newest = np.searchsorted(queue, waiting) - 1
        waiting, newest = waiting[newest >= 0], queue[newest[newest >= 0]]
        assembly.edges(done[newest], done[waiting], lag_ns=program.returns_ns[waiting], kind=EdgeKind.SYNC)


def _add_meetings(
    assembly: Assembly,
    programs: Sequence[_RankProgram],
    tasks: Sequence[tuple[Ints, Ints, Ints]],
    shared: Set[tuple[int, str]],
) -> None:
    """Append a mark for each collective of several ranks, which all of them have reached before it starts."""
    keys = sorted(shared)
    if not keys:
        return
    met = assembly.tasks("all ranks have arrived", -1, {"kind": int(TaskKind.MARK), "iteration": [s for s, _ in keys]})
    mark_of = dict(zip(keys, met.tolist(), strict=True))
    for program, (_, done, arrival) in zip(programs, tasks, strict=True):
        pairs = [(mark_of[key], item) for key, item in program.meets.items() if key in mark_of]
        mark, item = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
        assembly.edges(arrival[item], mark, kind=EdgeKind.RENDEZVOUS)
        assembly.edges(mark, done[item], kind=EdgeKind.RENDEZVOUS)


def step_graph(job: SyntheticJob, device: Device, parameters: Parameters) -> KernelGraph:
    """Return the graph of a job to replay under what-ifs: with demands, by which tasks side by side slow each other.

    Durations of tasks that run side by side are those that return the job's timeline under the same sharing.

    Parameters
    ----------
    job : SyntheticJob
        Programs of all ranks and steps.
    device : Device
        Device of every rank.
    parameters : Parameters
        Parameters of the contention model.
    """
    return isolate(program_graph(job, device).graph, parameters)
