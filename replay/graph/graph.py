"""`KernelGraph`: tasks, the edges that they wait for, the hardware that they run on, and the sharing policy.

A graph holds frozen arrays: `Tasks` with one row a task, `Edges` with one row an edge. What-ifs return new graphs. Read
`Tasks` first. `hardware_of` finds the catalogue's entry for the devices of a trace.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from profilers.devices.catalogue import Device, devices_in_name, find_device
from profilers.errors import InvalidInputError, NotFoundError
from profilers.trace.arrays import Bools, Floats, Ints, integers
from profilers.trace.kernels import CLASSES, COLLECTIVE
from profilers.trace.trace import DeviceProperties, Trace
from replay.calibration.parameters import Parameters
from replay.graph.columns import HOST_TIME_EDGES as HOST_TIME_EDGES
from replay.graph.columns import LAUNCH_EDGES as LAUNCH_EDGES
from replay.graph.columns import RECORDED_EDGES as RECORDED_EDGES
from replay.graph.columns import RESOURCES as RESOURCES
from replay.graph.columns import STREAM_EDGES as STREAM_EDGES
from replay.graph.columns import SYNC_EDGES as SYNC_EDGES
from replay.graph.columns import TASK_COLUMNS
from replay.graph.columns import Basis as Basis
from replay.graph.columns import EdgeKind as EdgeKind
from replay.graph.columns import TaskKind as TaskKind
from replay.graph.operators import Operator

#: Call of an operator as it was recorded: its name, then shapes, types and other arguments as JSON; None if absent.
RecordedCall = tuple[str | None, str | None, str | None, str | None]


@dataclass(frozen=True)
class SharingPolicy:
    """Policy by which the active tasks of a device share it; the same for every device of a graph.

    Parameters
    ----------
    partitions : tuple of float
        Sizes of the partitions as shares of the compute units, at most 1 together. Bit k of `Tasks.cu_mask` lets a task
        run on partition k.
    in_order : bool
        Whether workgroups are dispatched in the order of priority, then of arrival, so that later tasks get the units
        that are left. Otherwise all active tasks of the highest priority get equal shares, up to their demand, and
        tasks of a lower priority get the rest.
    waiting_pressure : float
        Pressure of a collective that waits for its peers, as a share of its pressure while it transfers.
    deferred_share : float
        Share of the memory bandwidth that deferring tasks (`Tasks.defers`) get together at least, while others ask for
        all of it. Beyond that they get what the others leave. 0: nothing defers, and all tasks are served alike.
    power_exponent : float
        Above its power limit a device lowers its clock to ``power ** (-1 / power_exponent)``. Dynamic power is
        proportional to V^2 f, and V about proportional to f.

    Raises
    ------
    InvalidInputError
        Partitions that are not above zero, more than the device together, or more than 62; a share outside 0 to 1.
    """

    partitions: tuple[float, ...] = (1.0,)
    in_order: bool = True
    waiting_pressure: float = 1.0
    spin_weight: float = 2.4
    deferred_share: float = 0.0
    power_exponent: float = 3.0

    def __post_init__(self) -> None:
        valid = all(0 < share <= 1 for share in self.partitions) and 0 < sum(self.partitions) <= 1 + 1e-9
        if not valid or len(self.partitions) > 62:
            raise InvalidInputError(
                f"partitions {self.partitions}: give at most 62 shares above zero that are at most 1 together"
            )
        if not self.power_exponent >= 1:
            raise InvalidInputError(f"a power exponent of {self.power_exponent}: give 1 or more")
        if not 0 <= self.deferred_share < 1:
            raise InvalidInputError(
                f"a share of {self.deferred_share} of the memory for deferring tasks: give 0 or more, below 1"
            )


#: Numbers of the links from the host and to it; `peer_link` numbers the others.
FROM_HOST, TO_HOST = 0, 1


def peer_link(offset: npt.ArrayLike) -> Ints:
    """Return the number of the link from a device to its peer at an offset, 1 or more.

    A link belongs to a pair of devices in one direction: `Tasks.device` sends, and the number names the receiver. The
    network of a node's devices is a link of its own, numbered behind the peers.

    Examples
    --------
    >>> peer_link([1, 7]).tolist()
    [2, 8]
    """
    return np.asarray(offset, dtype=np.int64) + TO_HOST


#: Directions of copies, as the column ``direction`` of a trace spells them: H is the host, D a device, P a peer.
COPY_DIRECTIONS: tuple[str, ...] = ("HtoD", "DtoH", "DtoD", "PtoP", "HtoH", "memset")
#: Kinds of collectives; `Tasks.collective` is an index into them.
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


#: Phases of a training step; `Tasks.phase` is an index into them.
PHASES: tuple[str, ...] = ("forward", "backward", "optimizer")
_COLLECTIVE_CLASS = CLASSES.index(COLLECTIVE)


@dataclass(frozen=True)
class Network:
    """Nodes of a job, and the network between them.

    Parameters
    ----------
    devices_per_node : int
        Devices of a node.
    adapters : int
        Network adapters of a node; 0 for the number that the catalogue gives for the device.
    adapter_gbps : float
        Bandwidth of an adapter, one way, GB/s; 0 for the catalogue's.
    """

    devices_per_node: int = 8
    adapters: int = 0
    adapter_gbps: float = 0.0


class ChangedMemory(Protocol):
    """Choices of what-ifs on caches and DRAM, which an annex makes; two that are equal choose the same."""

    def moved(
        self, graph: "KernelGraph", move: Callable[["KernelGraph"], "KernelGraph"], parameters: Parameters
    ) -> "KernelGraph":
        """Return a graph that `move` takes to other hardware, where these choices hold again."""


@dataclass(frozen=True)
class Hardware:
    """Hardware of a graph's devices.

    Parameters
    ----------
    device : Device, optional
        Entry of the catalogue; None if the trace does not name its device.
    known_by : str
        Source of `device`: ``"trace"``, ``"file name"``, ``"user"``, ``"what-if"`` or ``"unknown"``.
    compute_units : int
        Number of compute units, by the profiler or the catalogue; 108 is assumed if neither has it.
    copy_engines : float
        Number of copy engines; 2 is assumed if the catalogue does not have it.
    host_link_bytes_per_s : (float, float)
        Measured bandwidth of the link to the host, into the device and out of it. 0 if it was not measured; then no
        task shares it.
    launch_queue : int
        Launches of a rank that can wait for its device before the next launch blocks; 0 if no limit is known.
    network : Network
        Nodes of the job, and the network between them.
    traced : Hardware, optional
        Hardware of the trace; None if no what-if has changed it.
    base : Device, optional
        Entry of the catalogue that `device` is, before `factors`; None if no what-if has changed the hardware.
    factors : tuple of (str, float)
        Factors that what-ifs set on figures of `base`, by the names of `replay.costs.hardware`, in the order of names.
    memory : ChangedMemory, optional
        Choices of what-ifs on caches and DRAM; None if no what-if has made any.
    """

    device: Device | None = None
    known_by: str = "unknown"
    compute_units: int = 108
    copy_engines: float = 2.0
    host_link_bytes_per_s: tuple[float, float] = (0.0, 0.0)
    launch_queue: int = 0
    network: Network = field(default_factory=Network)
    traced: "Hardware | None" = None
    base: Device | None = None
    factors: tuple[tuple[str, float], ...] = ()
    memory: ChangedMemory | None = None

    @property
    def original(self) -> "Hardware":
        """Hardware of the trace."""
        return self.traced or self

    def factor(self, name: str) -> float:
        """Return the factor that what-ifs set on a figure; 1 if none did."""
        return dict(self.factors).get(name, 1.0)


#: Prefix of the names of the host's waits for a batch of PyTorch's input pipeline.
LOADER_PREFIX = "enumerate(DataLoader)"
#: Number of the lane on which batches of the input pipeline become ready.
LOADER_THREAD = -2
#: Number of the stream of a device on which its memory processes.
PIM_STREAM = -3


@dataclass(frozen=True)
class Lane:
    """A queue: a stream of a device, or a thread of the host.

    Parameters
    ----------
    rank : int
        Rank of the process.
    device : int, optional
        Number of the device; None for a thread.
    number : int
        Number of the stream or thread, as the profiler wrote it; `LOADER_THREAD` for the input pipeline, `PIM_STREAM`
        for processing in memory.
    """

    rank: int
    device: int | None
    number: int

    @property
    def label(self) -> str:
        """Name of the queue for tables and charts."""
        if self.device is None:
            return f"rank {self.rank} {'loader' if self.number == LOADER_THREAD else f'thread {self.number}'}"
        stream = "PIM" if self.number == PIM_STREAM else f"stream {self.number}"
        return f"rank {self.rank} GPU {self.device} {stream}"


#: Columns of what a workgroup takes of a compute unit, as shares of its limits.
UNIT_COLUMNS = ("unit_threads", "unit_registers", "unit_shared", "unit_slots")
#: Columns of how the workgroups of a task run on their units; 0 for a task that uses none.
PLACE_COLUMNS = ("start_ns", "in_rounds", "stays", "spins", "unit_compute", "unit_bandwidth", "memory_part")
#: Value of a column that is left out, until `Tasks` fills in its default.
_ABSENT: Any = None


@dataclass(frozen=True)
class Tasks:
    """Tasks of a graph: columns of equal length n, one row a task. `TASK_COLUMNS` says what each column holds.

    `demand` has the shape (n, len(RESOURCES)). A column that is left out has the default of the table.
    """

    kind: Ints = _ABSENT
    name: Ints = _ABSENT
    class_: Ints = _ABSENT
    lane: Ints = _ABSENT
    device: Ints = _ABSENT
    duration_ns: Floats = _ABSENT
    start_ns: Floats = _ABSENT
    demand: Floats = _ABSENT
    release_ns: Floats = _ABSENT
    measured_start_ns: Floats = _ABSENT
    measured_end_ns: Floats = _ABSENT
    basis: Ints = _ABSENT
    iteration: Ints = _ABSENT
    event: Ints = _ABSENT
    workgroups: Ints = _ABSENT
    bytes: Ints = _ABSENT
    dtype: Ints = _ABSENT
    collective: Ints = _ABSENT
    operator: Ints = _ABSENT
    occupies: Floats = _ABSENT
    waves: Floats = _ABSENT
    priority: Ints = _ABSENT
    cu_mask: Ints = _ABSENT
    interleaved: Bools = _ABSENT
    in_rounds: Bools = _ABSENT
    stays: Bools = _ABSENT
    spreads: Bools = _ABSENT
    spins: Floats = _ABSENT
    unit_threads: Floats = _ABSENT
    unit_registers: Floats = _ABSENT
    unit_shared: Floats = _ABSENT
    unit_slots: Floats = _ABSENT
    unit_compute: Floats = _ABSENT
    unit_bandwidth: Floats = _ABSENT
    memory_part: Floats = _ABSENT
    pressure: Floats = _ABSENT
    sensitivity: Floats = _ABSENT
    defers: Floats = _ABSENT
    link: Ints = _ABSENT
    engine: Ints = _ABSENT
    footprint: Floats = _ABSENT
    hit_share: Floats = _ABSENT
    ranks: Ints = _ABSENT
    direction: Ints = _ABSENT
    launched_by: Ints = _ABSENT
    phase: Ints = _ABSENT
    factor: Floats = _ABSENT
    memory_operator: Ints = _ABSENT
    call: Ints = _ABSENT
    sent_elements: Ints = _ABSENT
    received_elements: Ints = _ABSENT

    def __post_init__(self) -> None:
        for name, column in TASK_COLUMNS.items():
            if getattr(self, name) is _ABSENT and name != "occupies":
                # A read-only view of one value: columns that no graph of a job uses take no memory.
                values = np.broadcast_to(np.asarray(column.default, column.dtype), len(self))
                object.__setattr__(self, name, values.copy() if column.engine == "always" else values)
        if self.occupies is _ABSENT:
            demand_cu = self.demand[:, RESOURCES.index("cu")].copy() if len(self) else np.zeros(0)
            object.__setattr__(self, "occupies", demand_cu)

    def __len__(self) -> int:
        return len(self.kind)

    def select(self, rows: npt.NDArray[Any]) -> "Tasks":
        """Return the tasks in `rows` (a mask or an index)."""
        index = _index(rows)
        return Tasks(**{name: chosen_rows(column, index) for name, column in vars(self).items()})

    def joined(self, *others: "Tasks") -> "Tasks":
        """Return these tasks followed by `others`. A column that is one value in all of them stays a view of it."""
        blocks, columns = (self, *others), {}
        for name in vars(self):
            parts = [getattr(block, name) for block in blocks]
            is_view = all(part.strides[0] == 0 and len(part) for part in parts)
            if is_view and all(part[0] == parts[0][0] for part in parts):
                columns[name] = np.broadcast_to(parts[0][0], sum(map(len, blocks)))
            else:
                columns[name] = np.concatenate(parts)
        return Tasks(**columns)

    @property
    def in_iteration(self) -> Bools:
        """Mask of the tasks that belong to an iteration of the graph; the others are earlier work."""
        return np.asarray(self.iteration >= 0)


def _index(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return rows (a mask or an index) as an index: columns are taken by it twice as fast as by a mask."""
    return np.flatnonzero(rows) if rows.dtype == bool else rows


def chosen_rows(column: npt.NDArray[Any], rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return rows of a column (a mask or an index); a view of one value stays one."""
    index = _index(rows)
    if column.strides[0] or not len(column):
        return column.take(index, axis=0)
    return np.broadcast_to(column[0], (len(index), *column.shape[1:]))


#: Relative difference up to which two times, or two demands, are the same.
_ROUNDING = 1e-9


def _same_columns(columns: "Tasks | Edges", others: "Tasks | Edges", *, but: Sequence[str] = ()) -> bool:
    """Return whether two tables hold the same columns, up to rounding; columns named in `but` may differ."""
    pairs = ((getattr(columns, name), getattr(others, name)) for name in vars(columns) if name not in but)
    return all(column is twin or _same_column(column, twin) for column, twin in pairs)


def _same_column(column: npt.NDArray[Any], twin: npt.NDArray[Any]) -> bool:
    if column.shape != twin.shape:
        return False
    if column.dtype.kind != "f":
        return bool(np.array_equal(column, twin))
    return bool(np.allclose(column, twin, rtol=_ROUNDING, atol=0.0, equal_nan=True))


def _first_bad_time(ns: Floats) -> int | None:
    """Return the first row whose time is negative or not finite; None if all are valid."""
    if ns.min(initial=0.0) >= 0 and ns.max(initial=0.0) < np.inf:
        return None
    return int(np.argmin((ns >= 0) & np.isfinite(ns)))


_EDGE_TYPES: Mapping[str, type] = {
    **{"source": np.int64, "target": np.int64},
    **{"lag_ns": np.float64, "from_start": np.bool_, "kind": np.int64},
}


@dataclass(frozen=True)
class Edges:
    """Edges of a graph: columns of equal length, one row an edge.

    Parameters
    ----------
    source, target : array of int64
        Rows of the tasks: `target` waits for `source`.
    lag_ns : array of float64
        Least time between the end of `source` and the start of `target`; not negative.
    from_start : array of bool
        Whether the lag counts from the start of `source` instead of its end.
    kind : array of int64, `EdgeKind`
        Reason of the wait.
    """

    source: Ints
    target: Ints
    lag_ns: Floats
    from_start: Bools
    kind: Ints

    @classmethod
    def of(
        cls,
        source: npt.ArrayLike,
        target: npt.ArrayLike,
        *,
        kind: npt.ArrayLike,
        lag_ns: npt.ArrayLike = 0.0,
        from_start: npt.ArrayLike = False,
    ) -> "Edges":
        """Return edges from columns, each an array or one value for all."""
        columns = zip((source, target, lag_ns, from_start, kind), _EDGE_TYPES.values(), strict=True)
        arrays: list[npt.NDArray[Any]] = [np.asarray(column, dtype=type_) for column, type_ in columns]
        sizes = {array.size for array in arrays if array.ndim}
        if len(sizes) != 1:  # to broadcast takes 10 us
            return cls(*np.broadcast_arrays(np.zeros(1), *arrays)[1:])
        (n,) = sizes
        return cls(*(array if array.ndim else np.full(n, array) for array in arrays))

    def __len__(self) -> int:
        return len(self.source)

    def select(self, rows: npt.NDArray[Any]) -> "Edges":
        """Return the edges in `rows` (a mask or an index)."""
        index = _index(rows)
        return Edges(*(getattr(self, name).take(index) for name in _EDGE_TYPES))

    def of_kind(self, kind: EdgeKind) -> "Edges":
        """Return the edges of a kind."""
        return self.select(np.flatnonzero(self.kind == kind))

    def joined(self, *others: "Edges") -> "Edges":
        """Return these edges followed by `others`."""
        blocks = (self, *others)
        return Edges(*(np.concatenate([getattr(block, name) for block in blocks]) for name in _EDGE_TYPES))


@dataclass(frozen=True)
class Storages:
    """Storages of the tensors that an operator reads and writes, as numbers that are unique within a rank.

    Parameters
    ----------
    reads, writes : frozenset of int
        Numbers of the storages. Tensors that share memory, such as views, share a storage.
    """

    reads: frozenset[int]
    writes: frozenset[int]


@dataclass(frozen=True)
class KernelGraph:
    """Tasks of consecutive iterations on all their ranks, with the edges that they wait for.

    Parameters
    ----------
    tasks : Tasks
        One row a task.
    edges : Edges
        One row an edge.
    names : sequence of str
        Distinct names of tasks; untrusted text.
    lanes : sequence of Lane
        Streams and threads.
    devices : sequence of (rank, device)
        Devices of all ranks.
    measured_ns : float
        Measured time from the start of the first iteration on the host to the end of the last task.
    hardware : Hardware
        Hardware of every device.
    origin : Basis
        Basis of the trace's own durations: `Basis.ASSUMED` if the trace is synthetic.
    notes : sequence of str
        Assumptions, and facts that the trace lacks, for people.
    operators : sequence of Operator
        Distinct operators of the kernels.
    policy : SharingPolicy
        Policy by which tasks share a device.
    iterations : sequence of int
        Numbers of the iterations. A repeated iteration has its number again.
    world_size : int
        Ranks of the job, in the graph or not; 0 if the trace does not say.
    storages : mapping of int to Storages
        Storages of the tensors of kernels, by the id of their event; empty without an execution trace.
    calls : sequence of RecordedCall
        Distinct calls of the operators that launched tasks.
    launch_queues : mapping of int to int
        Entries of the launch queue of each lane whose queue was full in the trace; `Hardware.launch_queue` of others.
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
    world_size: int = 0
    storages: Mapping[int, "Storages"] = field(default_factory=dict)
    calls: tuple[RecordedCall, ...] = field(default=())
    launch_queues: Mapping[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        n = len(self.tasks)
        edges = self.edges
        if len(edges) and (
            min(edges.source.min(), edges.target.min()) < 0 or max(edges.source.max(), edges.target.max()) >= n
        ):
            raise InvalidInputError(f"an edge names a task that the graph does not have; tasks are 0 to {n - 1}")
        if (bad := _first_bad_time(edges.lag_ns)) is not None:
            ends = (edges.source[bad], edges.target[bad])
            path = " -> ".join(f"{self.names[self.tasks.name[task]][:60]}, task {task}" for task in ends)
            raise InvalidInputError(
                f"edge {bad} ({path}) has a lag of {edges.lag_ns[bad]} ns; a lag is finite and not negative"
            )
        if (bad := _first_bad_time(self.tasks.duration_ns)) is not None:
            raise InvalidInputError(
                f"task {bad} has a duration of {self.tasks.duration_ns[bad]} ns, which is negative or not finite"
            )

    def replays_like(self, other: "KernelGraph") -> bool:
        """Return whether the graph has the same tasks, edges, hardware and policy as `other`, up to rounding.

        Notes, names and what is known about the origin of figures do not count.
        """
        return (
            self.policy == other.policy
            and replace(self.hardware, known_by="") == replace(other.hardware, known_by="")
            and _same_columns(self.edges, other.edges)
            and _same_columns(self.tasks, other.tasks, but=("basis",))
        )

    def late_recording_ns(self) -> Floats:
        """Return how much later the rank of each task begins to record than the first rank, in ns; shape (n_tasks,).

        A rank begins with its first host call that waits for nothing. What a late rank did before is unknown.
        """
        tasks, ranks = self.tasks, self.ranks()
        waits = np.zeros(len(tasks), dtype=bool)
        waits[self.edges.target] = True
        rows = np.flatnonzero((tasks.device < 0) & (tasks.lane >= 0) & ~waits)
        if not len(rows):
            return np.zeros(len(tasks))
        begin = np.full(int(ranks.max()) + 2, np.inf)
        np.minimum.at(begin, ranks[rows] + 1, tasks.release_ns[rows])
        late = np.where(np.isfinite(begin), begin - begin.min(), 0.0)
        return np.asarray(late[ranks + 1])

    def waits_for_recording(self) -> Bools:
        """Return which tasks are host calls that start as soon as their rank, a late one, begins to record."""
        tasks, late = self.tasks, self.late_recording_ns()
        begins = np.zeros(len(tasks), dtype=bool)
        rows = np.flatnonzero((tasks.device < 0) & (tasks.lane >= 0) & (late > 0) & (tasks.release_ns >= late))
        ranks = self.ranks()[rows]
        for rank in np.unique(ranks).tolist():  # a few ranks
            of_rank = rows[ranks == rank]
            begins[of_rank] = tasks.release_ns[of_rank] == tasks.release_ns[of_rank].min()
        return begins

    def arrival_marks(self) -> Ints:
        """Return for each collective whose ranks meet the mark at which its own rank arrives; -1 for other tasks.

        The mark is on the stream of the collective, and an edge leads from it to the mark of the meeting.
        """
        tasks, edges = self.tasks, self.edges
        rendezvous = edges.of_kind(EdgeKind.RENDEZVOUS)
        if not len(rendezvous):  # a view of one value takes no memory
            return np.broadcast_to(np.int64(-1), len(tasks))
        arrival = np.full(len(tasks), -1)
        is_leaving = tasks.kind[rendezvous.target] == TaskKind.COLLECTIVE
        is_entering = (tasks.kind[rendezvous.source] == TaskKind.MARK) & (tasks.lane[rendezvous.source] >= 0)
        into, out = rendezvous.select(is_entering), rendezvous.select(is_leaving & ~is_entering)
        keys_in = into.target * (len(self.lanes) + 1) + tasks.lane[into.source]
        keys_out = out.source * (len(self.lanes) + 1) + tasks.lane[out.target]
        order = np.argsort(keys_in, kind="stable")
        at = np.searchsorted(keys_in[order], keys_out)
        is_met = at < len(order)
        is_met[is_met] = keys_in[order][at[is_met]] == keys_out[is_met]
        arrival[out.target[is_met]] = into.source[order[at[is_met]]]
        return arrival

    def with_tasks(self, **columns: npt.NDArray[Any]) -> "KernelGraph":
        """Return a copy of the graph with the named task columns replaced."""
        return replace(self, tasks=replace(self.tasks, **columns))

    def with_durations(self, duration_ns: Floats, basis: Basis) -> "KernelGraph":
        """Return a graph with other durations; the time before the first workgroup changes in proportion.

        Parameters
        ----------
        duration_ns : array of float64, shape (n_tasks,)
            Isolated duration of each task.
        basis : Basis
            Basis of the durations that change; a task keeps its own basis if that is less certain.
        """
        changed = duration_ns != self.tasks.duration_ns
        new_basis = np.where(changed, np.maximum(self.tasks.basis, int(basis)), self.tasks.basis)
        old = self.tasks.duration_ns
        ratio = np.divide(duration_ns, old, out=np.ones(len(old)), where=changed & (old > 0))
        return self.with_tasks(duration_ns=duration_ns, basis=new_basis, start_ns=self.tasks.start_ns * ratio)

    def with_factor(self, rows: Bools, factor: float, basis: Basis) -> "KernelGraph":
        """Return a graph in which some durations are multiplied by a factor that nobody modelled.

        Parameters
        ----------
        rows : array of bool, shape (n_tasks,)
            Mask of the tasks.
        factor : float
            New duration over old, 0 or more.
        basis : Basis
            Basis of the durations that change; a task keeps its own basis if that is less certain.
        """
        tasks = self.tasks
        changed = self.with_durations(np.where(rows, tasks.duration_ns * factor, tasks.duration_ns), basis)
        return changed.with_tasks(factor=np.where(rows, tasks.factor * factor, tasks.factor))

    def without_factors(self) -> "KernelGraph":
        """Return a graph with durations as they would be without assumed factors; 0 if a factor is 0."""
        factor, duration_ns = self.tasks.factor, self.tasks.duration_ns
        if (factor == 1.0).all():
            return self
        divided = np.divide(duration_ns, factor, out=np.zeros(len(factor)), where=factor > 0)
        return self.with_tasks(duration_ns=np.where(factor == 1.0, duration_ns, divided))

    def with_factors(self) -> "KernelGraph":
        """Return a graph with the assumed factors applied to durations that are without them."""
        factor = self.tasks.factor
        return self if (factor == 1.0).all() else self.with_tasks(duration_ns=self.tasks.duration_ns * factor)

    def arrivals(self) -> Ints:
        """Return for each task the mark at which its rank arrives; the task itself if it has no such mark."""
        marks = self.arrival_marks()
        return np.where(marks >= 0, marks, np.arange(len(marks)))

    def on_device(self) -> Bools:
        """Return the mask of tasks that run on a device and are no marks."""
        return np.asarray((self.tasks.device >= 0) & (self.tasks.kind != TaskKind.MARK))

    def collectives(self) -> Bools:
        """Return the mask of tasks that are collectives, or kernels of a communication library."""
        kind = self.tasks.kind
        of_library = (kind == TaskKind.KERNEL) & (self.tasks.class_ == _COLLECTIVE_CLASS)
        return np.asarray((kind == TaskKind.COLLECTIVE) | of_library)

    def ranks(self) -> Ints:
        """Return the rank of each task; -1 for marks between ranks."""
        ranks = np.array([*(lane.rank for lane in self.lanes), -1], dtype=np.int64)
        return np.asarray(ranks[self.tasks.lane])

    def with_notes(self, notes: Sequence[str]) -> "KernelGraph":
        """Return a copy of the graph with `notes` added."""
        return replace(self, notes=(*self.notes, *notes))


#: Launches that wait before the next one blocks, by vendor. CUDA: in a trace of an A100, launches block at 966 to 969
#: waiting kernels, with event records and copies beside them; 1,024 is assumed. HIP: 1,493 waited on an MI300, none
#: blocked.
_LAUNCH_QUEUE = {"NVIDIA": 1024}


def hardware_of(trace: Trace) -> Hardware:
    """Return the hardware of a trace's devices.

    The profiler's properties of the devices that ran kernels name the device; idle ones do not count. If one of them is
    not in the catalogue, or they are of several kinds, the device is unknown. For a trace without names, the name of a
    file (``mi300_rank0.json.gz``) is a guess, which `Hardware.known_by` tells.
    """
    properties = used_devices(trace)
    names = {each.name for each in properties if each.name}
    known = [_find_known_device(name) for name in names]
    named_devices = {device.name: device for device in known if device is not None}
    sources = trace.meta.sources
    guesses = {device.name: device for source in sources for device in devices_in_name(source)}
    device, known_by = None, "unknown"
    if len(named_devices) == 1 and None not in known:
        device, known_by = next(iter(named_devices.values())), "trace"
    elif not names and len(guesses) == 1:
        device, known_by = next(iter(guesses.values())), "file name"
    recorded_units = {each.compute_units for each in properties if each.compute_units}
    hardware = Hardware(known_by=known_by) if device is None else hardware_named(device, known_by)
    units = recorded_units.pop() if len(recorded_units) == 1 else hardware.compute_units
    return replace(hardware, compute_units=units)


def used_devices(trace: Trace) -> tuple[DeviceProperties, ...]:
    """Return the properties of the devices with kernels, or else copies; of all if none of these is named.

    Profilers may number devices otherwise in kernels than in properties (Kineto on AMD).

    Parameters
    ----------
    trace : Trace
        Trace with the properties and the work of devices.
    """
    work = trace.kernels if trace.kernels.num_rows else trace.copies
    used = np.unique(np.stack([integers(work, "rank"), integers(work, "device")]), axis=1).T.tolist()
    return tuple(each for each in trace.meta.devices if [each.rank, each.device] in used) or trace.meta.devices


def given_hardware(device: str | None) -> Hardware | None:
    """Return the hardware of the device that a user names.

    Parameters
    ----------
    device : str or None
        Name of a device of the catalogue, or None.

    Returns
    -------
    Hardware or None
        None if no device is named.

    Raises
    ------
    NotFoundError
        The device is unknown.
    """
    return None if device is None else hardware_named(find_device(device), "user")


def hardware_named(device: Device, known_by: str) -> Hardware:
    """Return a device of the catalogue as the hardware of a graph."""
    engines = device.figures.get("copy_engines")
    return Hardware(
        device,
        known_by,
        device.compute_units,
        engines.value if engines else Hardware().copy_engines,
        launch_queue=_LAUNCH_QUEUE.get(device.vendor, 0),
    )


def _find_known_device(name: str) -> Device | None:
    """Return the catalogue's device of that name; None if it has none."""
    try:
        return find_device(name)
    except NotFoundError:
        return None
