"""`KernelGraph`, the hardware it runs on, and the sharing policy.

`SharingPolicy`: how a device is shared among the tasks that are active on it.

`KernelGraph`: tasks, what they need, and what they wait for, as frozen arrays.

Which catalogue device each device of a trace is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from profilers.devices.catalogue import Device, devices_in_name, find_device
from profilers.errors import InvalidInputError, NotFoundError
from profilers.trace.arrays import Bools, Floats, Ints
from profilers.trace.trace import Trace, TraceMeta
from replay.graph.operators import Operator


@dataclass(frozen=True)
class SharingPolicy:
    """How every device of a graph is shared.

    Parameters
    ----------
    partitions : tuple of float
        Shares of the compute units, at most 1 together; bit k of `Tasks.cu_mask` lets a task run on partition k.
    in_order : bool
        Whether workgroups are dispatched in the order of priority, then of arrival, and whoever comes later gets what
        is left. Otherwise all active tasks of the highest priority get equal parts, up to what they ask, and those of a
        lower one what is left.
    quantised : bool
        Whether fewer compute units cost whole waves, ceil(waves / share) instead of ceil(waves), rather than in
        proportion.
    power_exponent : float
        Above its limit a device lowers its clock to ``power ** (-1 / power_exponent)``: dynamic power goes with
        V^2 f, and V about with f.

    Raises
    ------
    InvalidInputError
        Partitions that are not above zero, more than the device together, or more than 62.
    """

    partitions: tuple[float, ...] = (1.0,)
    in_order: bool = True
    quantised: bool = False
    power_exponent: float = 3.0

    def __post_init__(self) -> None:
        fine = all(0 < share <= 1 for share in self.partitions) and 0 < sum(self.partitions) <= 1 + 1e-9
        if not fine or len(self.partitions) > 62:
            raise InvalidInputError(
                f"partitions {self.partitions}: give at most 62 shares above zero that are at most 1 together"
            )
        if not self.power_exponent >= 1:
            raise InvalidInputError(f"a power exponent of {self.power_exponent}: give 1 or more")


#: What tasks share on one device; a demand is the share of it that the task uses when it runs alone. Compute units are
#: given out in the order of dispatch, the others in equal parts (`replay.engine.sharing`); power beyond 1 lowers the
#: clock.
RESOURCES: tuple[str, ...] = ("cu", "l2", "hbm", "link", "dma", "power")


#: The collectives that `Tasks.collective` counts through.
COLLECTIVE_KINDS: tuple[str, ...] = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "send_recv",
    "barrier",
    "unknown",
)


class TaskKind(IntEnum):
    """What a task is."""

    HOST = 0
    KERNEL = 1
    COPY = 2
    COLLECTIVE = 3
    MARK = 4  #: takes no time: an arrival, a rendezvous, the end of the host's step


class Basis(IntEnum):
    """What a duration rests on."""

    MEASURED = 0
    DERIVED = 1  #: a measured duration scaled by figures that have a source
    ASSUMED = 2  #: a figure that nobody measured or published for this case


class EdgeKind(IntEnum):
    """Why one task waits for another."""

    STREAM = 0  #: order on a stream
    LAUNCH = 1  #: a device task waits for the call that launched it
    HOST = 2  #: order on a host thread
    HANDOFF = 3  #: a thread that goes on when another has finished (autograd); inferred
    WAIT = 4  #: a stream waits for an event of another, as recorded
    WAIT_INFERRED = 5  #: the same, inferred from the order of calls and from times
    SYNC = 6  #: the host waits for the device
    RENDEZVOUS = 7  #: a collective waits for all its ranks
    GRAPH_LAUNCH = 8  #: a device task waits for the call that launched the whole graph it is a node of
    AUTOGRAD = 9  #: a backward thread goes on after the forward operator with its sequence number
    SYNC_INFERRED = 10  #: the host waits for the device; what for is inferred from times
    GAP = 11  #: order on a stream; the pause stands for the host: no launch was recorded, or one call has several parts
    BACKLOG = 12  #: work that was launched before the recording, or waits for such work, keeps its pace
    GRAPH_GAP = 13  #: a pause inside a launched graph: nodes of it that the profiler did not record
    QUEUE = 14  #: a launch waits until the launch queue has room; inferred
    LOADER = 15  #: the host waits for the next batch of the input pipeline; inferred


#: The kinds whose two ends a profiler recorded; the others are inferred from the order of calls and from times.
RECORDED_EDGES: frozenset[EdgeKind] = frozenset(
    {
        EdgeKind.STREAM,
        EdgeKind.LAUNCH,
        EdgeKind.HOST,
        EdgeKind.WAIT,
        EdgeKind.SYNC,
        EdgeKind.RENDEZVOUS,
        EdgeKind.GRAPH_LAUNCH,
        EdgeKind.AUTOGRAD,
    }
)
#: The kinds that join a launch to what it launched, and work to the host that waits for it.
LAUNCH_EDGES: frozenset[EdgeKind] = frozenset({EdgeKind.LAUNCH, EdgeKind.GRAPH_LAUNCH})
SYNC_EDGES: frozenset[EdgeKind] = frozenset({EdgeKind.SYNC, EdgeKind.SYNC_INFERRED})
#: The kinds that are order on a stream, where both ends are on it.
STREAM_EDGES: frozenset[EdgeKind] = frozenset({EdgeKind.STREAM, EdgeKind.GAP, EdgeKind.BACKLOG, EdgeKind.GRAPH_GAP})
#: The kinds whose lag is time of the host, or stands for it.
HOST_TIME_EDGES: frozenset[EdgeKind] = frozenset({EdgeKind.HOST, EdgeKind.HANDOFF, EdgeKind.AUTOGRAD, EdgeKind.GAP})


@dataclass(frozen=True)
class Hardware:
    """What a graph's devices are.

    Parameters
    ----------
    device : Device, optional
        The catalogue's entry; None where the trace does not say.
    known_by : str
        ``"trace"``, ``"file name"``, ``"user"``, ``"what-if"`` or ``"unknown"``.
    compute_units : int
        As the profiler wrote them or the catalogue says; where neither does, an assumption.
    copy_engines : float
    host_link_bytes_per_s : (float, float)
        Into the device and out of it, as measured; 0 where nobody measured it, and then nothing shares it.
    launch_queue : int
        Launches of a rank that can wait for its device before the next one blocks; 0: no limit is known.
    """

    device: Device | None = None
    known_by: str = "unknown"
    compute_units: int = 108
    copy_engines: float = 2.0
    host_link_bytes_per_s: tuple[float, float] = (0.0, 0.0)
    launch_queue: int = 0


#: The number of the lane on which batches of the input pipeline become ready.
LOADER_THREAD = -2


@dataclass(frozen=True)
class Lane:
    """A queue: a stream of a device, or a thread of the host.

    Parameters
    ----------
    rank : int
    device : int, optional
        None for a thread.
    number : int
        Of the stream or thread, as the profiler wrote it; `LOADER_THREAD` for the input pipeline.
    """

    rank: int
    device: int | None
    number: int

    @property
    def label(self) -> str:
        """For people."""
        if self.device is None:
            return f"rank {self.rank} {'loader' if self.number == LOADER_THREAD else f'thread {self.number}'}"
        return f"rank {self.rank} GPU {self.device} stream {self.number}"


#: Stands for a column that is left out.
_ABSENT: Any = np.zeros(0)


def _absent() -> Any:
    return _ABSENT


_DEFAULTS: Mapping[str, float | int | bool] = MappingProxyType(
    {
        "waves": 0.0,
        "priority": 0,
        "cu_mask": -1,
        "interleaved": False,
        "link": -1,
        "engine": -1,
        "footprint": 0.0,
        "hit_share": 0.0,
        "ranks": 0,
    }
)


@dataclass(frozen=True)
class Tasks:
    """Columns of equal length n, one row a task.

    Parameters
    ----------
    kind : array of int64, `TaskKind`
    name : array of int64
        Index into `KernelGraph.names`.
    class_ : array of int64
        Index into `profilers.trace.kernels.CLASSES`; -1 where the task is no kernel.
    lane : array of int64
        Index into `KernelGraph.lanes`; -1 for marks between lanes.
    device : array of int64
        Index into `KernelGraph.devices`; -1 on the host.
    duration_ns : array of float64
        Alone on its device.
    demand : array of float64, shape (n, len(RESOURCES))
        Shares of the device in 0..1 that the task uses when it runs alone.
    release_ns : array of float64
        Not before this time after the graph's origin.
    measured_start_ns, measured_end_ns : array of float64
        From the graph's origin; NaN where nothing was measured.
    basis : array of int64, `Basis`
        What `duration_ns` rests on.
    iteration : array of int64
        Position in `KernelGraph.iterations`; -1 for earlier work that still occupies the device.
    event : array of int64
        The id of the event in the trace; -1 for marks.
    workgroups : array of int64
        0 where unknown.
    bytes : array of int64
        Moved by a copy or collective; 0 where unknown.
    dtype : array of int64
        Index into `tuple(profilers.devices.DTYPES)`; -1 where unknown.
    collective : array of int64
        Index into `COLLECTIVE_KINDS`; -1 where the task is no collective.
    operator : array of int64
        Index into `KernelGraph.operators`: what a kernel computes; -1 where that is not known.
    occupies : array of float64, optional
        Share of the compute units that its workgroups fill where they may, at least what it needs to run at full rate
        (its demand, the default).
    waves : array of float64, optional
        Workgroups over all that the device holds at once; 0 where unknown, and then it has no tail.
    priority : array of int64, optional
        Of its queue; the higher is dispatched first. Workgroups that run already stay.
    cu_mask : array of int64, optional
        The partitions that it may run on, a bit each; -1 for all.
    interleaved : array of bool, optional
        Whether the dispatcher lets it in beside what came before, as the trace shows of tasks that started while
        others ran.
    link, engine : array of int64, optional
        Which link or DMA engine its demand is of; -1: they are one pool, apart from those that are named.
    footprint : array of float64, optional
        Of the last-level cache, as a share of its size.
    hit_share : array of float64, optional
        Of its accesses, below 1, that this cache serves when it runs alone.
    ranks : array of int64, optional
        That take part in a collective; 0 where unknown.
    """

    kind: Ints
    name: Ints
    class_: Ints
    lane: Ints
    device: Ints
    duration_ns: Floats
    demand: Floats
    release_ns: Floats
    measured_start_ns: Floats
    measured_end_ns: Floats
    basis: Ints
    iteration: Ints
    event: Ints
    workgroups: Ints
    bytes: Ints
    dtype: Ints
    collective: Ints
    operator: Ints
    occupies: Floats = field(default_factory=_absent)
    waves: Floats = field(default_factory=_absent)
    priority: Ints = field(default_factory=_absent)
    cu_mask: Ints = field(default_factory=_absent)
    interleaved: Bools = field(default_factory=_absent)
    link: Ints = field(default_factory=_absent)
    engine: Ints = field(default_factory=_absent)
    footprint: Floats = field(default_factory=_absent)
    hit_share: Floats = field(default_factory=_absent)
    ranks: Ints = field(default_factory=_absent)

    def __post_init__(self) -> None:
        defaults = {**_DEFAULTS, "occupies": self.demand[:, RESOURCES.index("cu")].copy() if len(self) else 0.0}
        for name, value in defaults.items():
            if getattr(self, name) is _ABSENT:
                whole = np.asarray(value)
                column = whole if whole.ndim else np.full(len(self), value)
                object.__setattr__(self, name, column)

    def __len__(self) -> int:
        return len(self.kind)

    @property
    def own(self) -> Bools:
        """Which tasks belong to an iteration of the graph, rather than to earlier work."""
        return np.asarray(self.iteration >= 0)


@dataclass(frozen=True)
class Edges:
    """Columns of equal length, one row an edge.

    Parameters
    ----------
    source, target : array of int64
        Rows of the tasks.
    lag_ns : array of float64
        Not negative: `target` starts no earlier than this after `source`.
    from_start : array of bool
        Count the lag from the source's start instead of its end.
    kind : array of int64, `EdgeKind`
    """

    source: Ints
    target: Ints
    lag_ns: Floats
    from_start: Bools
    kind: Ints

    def __len__(self) -> int:
        return len(self.source)

    def select(self, rows: npt.NDArray[Any]) -> "Edges":
        """Return the edges in `rows` (a mask or an index)."""
        return Edges(self.source[rows], self.target[rows], self.lag_ns[rows], self.from_start[rows], self.kind[rows])

    def joined(self, other: "Edges") -> "Edges":
        """Return these edges followed by `other`."""
        pairs = ((getattr(self, n), getattr(other, n)) for n in ("source", "target", "lag_ns", "from_start", "kind"))
        return Edges(*(np.concatenate(pair) for pair in pairs))


@dataclass(frozen=True)
class KernelGraph:
    """Tasks of one or several consecutive iterations on all their ranks, with everything they wait for.

    Parameters
    ----------
    tasks : Tasks
    edges : Edges
    names : sequence of str
        Of tasks; untrusted text.
    lanes : sequence of Lane
    devices : sequence of (rank, device)
    measured_ns : float
        As measured: from the start of the first iteration on the host to the end of the last task.
    hardware : Hardware
    origin : Basis
        What the trace's own durations rest on: `Basis.ASSUMED` where the trace is synthetic.
    notes : sequence of str
        What was assumed or could not be found, for people.
    operators : sequence of Operator
        The distinct ones that `Tasks.operator` counts through.
    policy : SharingPolicy
    iterations : sequence of int
        Numbers of the iterations that `Tasks.iteration` counts through; of a repeated iteration, its number again.
    """

    tasks: Tasks
    edges: Edges
    names: tuple[str, ...]
    lanes: tuple[Lane, ...]
    devices: tuple[tuple[int, int], ...]
    measured_ns: float
    hardware: Hardware = field(default_factory=Hardware)
    origin: Basis = Basis.MEASURED
    notes: tuple[str, ...] = field(default=())
    operators: tuple[Operator, ...] = field(default=())
    policy: SharingPolicy = field(default_factory=SharingPolicy)
    iterations: tuple[int, ...] = (0,)

    def __post_init__(self) -> None:
        n = len(self.tasks)
        edges = self.edges
        if len(edges) and (
            min(edges.source.min(), edges.target.min()) < 0 or max(edges.source.max(), edges.target.max()) >= n
        ):
            raise InvalidInputError("an edge names a task that the graph does not have")
        fine = (edges.lag_ns >= 0) & np.isfinite(edges.lag_ns)
        if not fine.all():
            bad = int(np.flatnonzero(~fine)[0])
            ends = (edges.source[bad], edges.target[bad])
            between = " -> ".join(f"{self.names[self.tasks.name[task]][:60]}, task {task}" for task in ends)
            raise InvalidInputError(
                f"edge {bad} ({between}) has a lag of {edges.lag_ns[bad]} ns; a lag is finite and not negative"
            )
        possible = (self.tasks.duration_ns >= 0) & np.isfinite(self.tasks.duration_ns)
        if not possible.all():
            bad = int(np.flatnonzero(~possible)[0])
            raise InvalidInputError(f"task {bad} has a duration that is negative or not finite")

    def with_tasks(self, **columns: npt.NDArray[Any]) -> "KernelGraph":
        """Return a graph in which the named columns of the tasks are replaced."""
        return replace(self, tasks=replace(self.tasks, **columns))

    def with_durations(self, duration_ns: Floats, basis: Basis) -> "KernelGraph":
        """Return a graph with other durations.

        Parameters
        ----------
        duration_ns : array of float64, shape (n_tasks,)
            Isolated duration of each task.
        basis : Basis
            Basis of the durations that change; a task keeps its own basis if that is less certain.
        """
        changed = duration_ns != self.tasks.duration_ns
        new_basis = np.where(changed, np.maximum(self.tasks.basis, int(basis)), self.tasks.basis)
        return self.with_tasks(duration_ns=duration_ns, basis=new_basis)

    def arrival_of(self, task: int) -> int:
        """Return the mark by which the rank of a collective arrives; the task itself where it has none."""
        tasks, before = self.tasks, task - 1
        marks = before >= 0 and tasks.kind[before] == TaskKind.MARK and tasks.event[before] == tasks.event[task]
        return before if marks else task

    def on_device(self) -> Bools:
        """Return which tasks run on a device and take time there."""
        return np.asarray((self.tasks.device >= 0) & (self.tasks.kind != TaskKind.MARK))

    def with_notes(self, notes: Sequence[str]) -> "KernelGraph":
        """Return a graph with `notes` added."""
        return replace(self, notes=(*self.notes, *notes))


#: Launches that wait before the next one blocks. CUDA: in a trace of an A100, launches block at 966 to 969 waiting
#: kernels, with event records and copies beside them; 1,024 is assumed. HIP: 1,493 waited on an MI300, none blocked.
_LAUNCH_QUEUE = {"NVIDIA": 1024}


def hardware_of(trace: Trace) -> Hardware:
    """Return what the devices of a trace are, and how that is known.

    The profiler's device properties name it; a file without them may carry it in its own name
    (``mi300_rank0.json.gz``), which is a guess and called one.
    """
    named = {properties.name for properties in trace.meta.devices if properties.name}
    found = {device.name: device for name in named if (device := _find(name)) is not None}
    device, known_by = None, "unknown"
    if len(found) == 1:
        device, known_by = next(iter(found.values())), "trace"
    elif not found and (guess := _from_file_names(trace.meta)) is not None:
        device, known_by = guess, "file name"
    written = {p.compute_units for p in trace.meta.devices if p.compute_units}
    base = Hardware(known_by=known_by) if device is None else hardware_named(device, known_by)
    units = written.pop() if len(written) == 1 else base.compute_units
    return replace(base, compute_units=units)


def hardware_named(device: Device, known_by: str) -> Hardware:
    """Return a catalogue's device as the hardware of a graph."""
    engines = device.figures.get("copy_engines")
    return Hardware(
        device,
        known_by,
        device.compute_units,
        engines.value if engines else Hardware().copy_engines,
        launch_queue=_LAUNCH_QUEUE.get(device.vendor, 0),
    )


def _find(name: str) -> Device | None:
    try:
        return find_device(name)
    except NotFoundError:
        return None


def _from_file_names(meta: TraceMeta) -> Device | None:
    """Return the one device that the names of the files say."""
    hits = {device.name: device for source in meta.sources for device in devices_in_name(source)}
    return next(iter(hits.values())) if len(hits) == 1 else None
