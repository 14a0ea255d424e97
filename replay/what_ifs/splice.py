"""Patterns: finer graphs in the place of kernels and their collective.

A what-if that works below kernels builds a `SplicePattern` with a `PatternBuilder`: the stages of a product, the chunks
of a transfer, and what each waits for, on the ranks of one group. `splice` puts patterns in the place of targets. One
pattern serves all groups of the same sizes: its durations are scaled to the traced ones.

    kernel begin ──▶ stages ──────▶ kernel end
                       │ chunk triggers
    collective begin ──▶ chunks ──▶ collective end
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from profilers.errors import InvalidInputError
from profilers.trace.arrays import Bools, Floats, Ints
from replay.engine.timeline import replay
from replay.graph.assembly import Assembly
from replay.graph.graph import (
    LAUNCH_EDGES,
    PLACE_COLUMNS,
    RESOURCES,
    Basis,
    EdgeKind,
    Edges,
    Hardware,
    KernelGraph,
    Lane,
    SharingPolicy,
    TaskKind,
    Tasks,
)
from replay.what_ifs.targets import Target

#: Tasks that all patterns of a graph may have together, and that one pattern may have whatever their number.
_MOST_TASKS, _FEWEST_TASKS = 2**17, 32
#: Streams of the kernel and of the collective in a pattern; further streams are new.
KERNEL_STREAM, COLLECTIVE_STREAM = 0, 1
#: What the duration of a task scales with.
_SCALES = ("nothing", "kernel", "transfer")


def task_budget(n_members: int) -> int:
    """Return how many tasks a pattern may have for each rank, if so many targets are replaced.

    All together have about 130,000, or 32 each if they are many, so that draws of the parameters take
    seconds, and a graph of 64 ranks and 100 layers stays below 2 GB.

    Examples
    --------
    >>> task_budget(1), task_budget(1024), task_budget(10**6)
    (131072, 128, 32)
    """
    return max(_MOST_TASKS // max(n_members, 1), _FEWEST_TASKS)


@dataclass(frozen=True)
class SplicePattern:
    """A finer graph that stands for a kernel and its collective on the ranks of one group.

    Parameters
    ----------
    graph : KernelGraph
        Tasks of all members, a device each. It can run alone.
    kernel_begin, kernel_end, collective_begin, collective_end : array of int64, shape (members,)
        Marks. The kernel may begin; it is over; the collective is launched and all ranks are there, though its data
        need not be computed; it is over.
    scale : array of int64
        What the duration of each task scales with: 0 nothing, 1 the traced kernel, 2 the traced transfer.
    """

    graph: KernelGraph
    kernel_begin: Ints
    kernel_end: Ints
    collective_begin: Ints
    collective_end: Ints
    scale: Ints

    @property
    def members(self) -> int:
        """Ranks of the group."""
        return len(self.kernel_begin)

    def alone_ns(self) -> float:
        """Return how long the pattern takes alone, if kernel and collective may begin at once."""
        return replay(self.graph).makespan_ns


@dataclass
class PatternBuilder:
    """Tasks and edges of a `SplicePattern` under construction.

    Parameters
    ----------
    members : int
        Ranks of the group that are in the graph; 1 stands for all.

    Examples
    --------
    >>> builder = PatternBuilder(1)
    >>> product = builder.tasks("product", builder.lane(0, 0), {"duration_ns": 5e3, "cu": 1.0}, scale="kernel")
    >>> chunk = builder.tasks("chunk", builder.lane(0, 1), {"duration_ns": 2e3, "link": 1.0}, scale="transfer")
    >>> builder.edges(builder.kernel_begin, product)
    >>> builder.edges(product, builder.kernel_end)
    >>> builder.edges(product, chunk, lag_ns=500.0)
    >>> builder.edges(chunk, builder.collective_end)
    >>> builder.build().alone_ns()
    7500.0
    """

    members: int = 1
    assembly: Assembly = field(default_factory=Assembly)
    _scales: list[tuple[Ints, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.kernel_begin = self.mark("kernel begin", KERNEL_STREAM)
        self.kernel_end = self.mark("kernel end", KERNEL_STREAM)
        self.collective_begin = self.mark("collective begin", COLLECTIVE_STREAM)
        self.collective_end = self.mark("collective end", COLLECTIVE_STREAM)

    def lane(self, member: int, stream: int) -> int:
        """Return the number of a stream of a member: 0 of the kernel, 1 of the collective, 2 and more are new."""
        return self.assembly.lane(device=member, stream=stream)

    def lanes(self, stream: int) -> Ints:
        """Return the numbers of a stream of all members, shape (members,)."""
        return np.array([self.lane(member, stream) for member in range(self.members)])

    def mark(self, name: str, stream: int = KERNEL_STREAM) -> Ints:
        """Append a task without duration for each member; return their numbers, shape (members,)."""
        return self.assembly.tasks(name, self.lanes(stream), {"kind": int(TaskKind.MARK)})

    def tasks(self, name: str, lane: npt.ArrayLike, columns: Mapping[str, Any], *, scale: str = "nothing") -> Ints:
        """Append tasks as `Assembly.tasks` does.

        Parameters
        ----------
        name : str
            Name of the tasks.
        lane : int or array of int
            Numbers of streams.
        columns : mapping
            Columns of the tasks.
        scale : str
            What their durations scale with: ``"kernel"``, ``"transfer"`` or ``"nothing"``.
        """
        rows = self.assembly.tasks(name, lane, columns)
        self._scales.append((rows, _SCALES.index(scale)))
        return rows

    def edges(
        self, source: npt.ArrayLike, target: npt.ArrayLike, *, lag_ns: npt.ArrayLike = 0.0, from_start: bool = False
    ) -> None:
        """Let target tasks wait for source tasks, pair by pair; a single task on one side is paired with all."""
        self.assembly.edges(np.ravel(source), np.ravel(target), lag_ns=lag_ns, from_start=from_start)

    def build(self, hardware: Hardware | None = None, policy: SharingPolicy | None = None) -> SplicePattern:
        """Return the pattern.

        Parameters
        ----------
        hardware : Hardware, optional
            Hardware of the pattern alone; `splice` takes that of the graph.
        policy : SharingPolicy, optional
            Policy of the pattern alone; `splice` takes that of the graph.
        """
        graph = self.assembly.graph(hardware, policy)
        scale = np.zeros(len(graph.tasks), np.int64)
        for rows, number in self._scales:
            scale[rows] = number
        marks = (self.kernel_begin, self.kernel_end, self.collective_begin, self.collective_end)
        return SplicePattern(graph, *marks, scale)


@dataclass(frozen=True)
class Splice:
    """A pattern, and the groups of targets in whose place it is put.

    Parameters
    ----------
    pattern : SplicePattern
        The finer graph.
    groups : sequence of sequence of Target
        Groups of as many targets as the pattern has members, in the order of its members.
    kernel_ratio, transfer_ratio : array-like, shape (groups, members), or float
        Factors on the durations of tasks that scale with the kernel, and with the transfer.
    """

    pattern: SplicePattern
    groups: Sequence[Sequence[Target]]
    kernel_ratio: npt.ArrayLike = 1.0
    transfer_ratio: npt.ArrayLike = 1.0

    def __post_init__(self) -> None:
        if any(len(group) != self.pattern.members for group in self.groups):
            raise InvalidInputError(f"a group has another number of ranks than its pattern, {self.pattern.members}")


def splice(graph: KernelGraph, splices: Sequence[Splice], *, drop_launches: bool = False) -> KernelGraph:
    """Return `graph` with patterns in the place of targets.

    The rows of a target's kernels and of its collective become marks at the ends of the pattern, so that tasks which
    wait for them still do. What the computing kernel waited for, the begin of the pattern's kernel waits for; the same
    of the collective, without the data that the target's kernels compute.

    Parameters
    ----------
    graph : KernelGraph
        The graph to change.
    splices : sequence of Splice
        Patterns with their targets; no target twice.
    drop_launches : bool
        Whether collectives and packing kernels wait for no launch, since the kernel does their work.

    Notes
    -----
    A new task has the event of its kernel or collective, so that another what-if sees that it is in pieces. It has
    their phase, priority and assumed factor, and a basis of `Basis.DERIVED` at least.
    """
    shapes = [(each, len(each.groups), each.pattern) for each in splices if each.groups]
    if not shapes:
        return graph
    first, rewired = len(graph.tasks), _Rewiring(graph, drop_launches)
    added, edges, names, lanes = [], [], _Numbers(graph.names), _Numbers(graph.lanes)
    for each, n_groups, pattern in shapes:
        placed = _Placed.of(graph, each, first)
        added.append(placed.tasks(names, lanes))
        edges.append(placed.edges())
        rewired.add(placed)
        first += n_groups * len(pattern.graph.tasks)
    tasks = rewired.marks().joined(*added)
    return replace(
        graph,
        tasks=tasks,
        edges=rewired.edges().joined(*edges),
        names=tuple(names.values),
        lanes=tuple(lanes.values),
    )


class _Numbers:
    """Numbers of distinct names or lanes: those of a graph, and new ones behind them."""

    def __init__(self, values: Sequence[Any]) -> None:
        self.values: list[Any] = list(values)
        self._number: dict[Any, int] = {}
        for number, value in enumerate(values):
            self._number.setdefault(value, number)

    def of(self, value: Any) -> int:
        if value not in self._number:
            self._number[value] = len(self.values)
            self.values.append(value)
        return self._number[value]


@dataclass(frozen=True)
class _Placed:
    """A splice whose tasks have rows in the graph: shape (groups, tasks of the pattern), from `first` on."""

    graph: KernelGraph
    splice: Splice
    first: int
    kernel: Ints  #: row of the computing kernel, shape (groups, members)
    collective: Ints

    @classmethod
    def of(cls, graph: KernelGraph, each: Splice, first: int) -> "_Placed":
        shape = (len(each.groups), each.pattern.members)
        kernel = np.array([[target.kernel for target in group] for group in each.groups], dtype=np.int64)
        collective = np.array([[target.collective for target in group] for group in each.groups], dtype=np.int64)
        return cls(graph, each, first, kernel.reshape(shape), collective.reshape(shape))

    def rows(self, of_pattern: Ints) -> Ints:
        """Return the rows of tasks of the pattern in the graph, shape (groups, len(of_pattern))."""
        offsets = self.first + np.arange(len(self.kernel)) * len(self.splice.pattern.graph.tasks)
        return np.asarray(offsets[:, None] + of_pattern[None, :])

    def tasks(self, names: _Numbers, lanes: _Numbers) -> Tasks:
        """Return the new tasks, group after group."""
        pattern, parents = self.splice.pattern, self.graph.tasks
        new, n = pattern.graph.tasks, len(self.kernel)
        of_kernel = _is_of_kernel(pattern)
        member = new.device
        parent = np.where(of_kernel, self.kernel[:, member], self.collective[:, member]).ravel()
        tiled = new.select(np.tile(np.arange(len(new)), n))
        is_mark, is_transfer = tiled.kind == TaskKind.MARK, tiled.kind == TaskKind.COLLECTIVE
        name = np.array([names.of(text) for text in pattern.graph.names])
        computes = np.tile(of_kernel & (new.demand[:, RESOURCES.index("cu")] > 0), n)
        return replace(
            tiled,
            name=name[tiled.name],
            lane=self._lanes(lanes)[:, new.lane].ravel(),
            device=parents.device[parent],
            duration_ns=tiled.duration_ns * self._ratios()[:, np.arange(len(new))].ravel(),
            iteration=parents.iteration[parent],
            event=np.where(is_mark, -1, parents.event[parent]),
            class_=np.where((tiled.class_ < 0) & computes, parents.class_[parent], tiled.class_),
            collective=np.where(is_transfer & (tiled.collective < 0), parents.collective[parent], tiled.collective),
            ranks=np.where(is_transfer & (tiled.ranks < 1), parents.ranks[parent], tiled.ranks),
            dtype=np.where(is_mark, -1, parents.dtype[parent]),
            priority=tiled.priority + parents.priority[parent],
            cu_mask=np.where(tiled.cu_mask < 0, parents.cu_mask[parent], tiled.cu_mask),
            basis=np.maximum(np.maximum(tiled.basis, int(Basis.DERIVED)), parents.basis[parent]),
            measured_start_ns=np.full(len(tiled), np.nan),
            measured_end_ns=np.full(len(tiled), np.nan),
            sensitivity=np.where(computes, parents.sensitivity[parent], tiled.sensitivity),
            release_ns=tiled.release_ns + self._releases().ravel(),
            phase=parents.phase[parent],
            launched_by=parents.launched_by[parent],
            factor=parents.factor[parent],
        )

    def _ratios(self) -> Floats:
        """Return the factor on the duration of each task, shape (groups, tasks of the pattern)."""
        pattern = self.splice.pattern
        member = pattern.graph.tasks.device
        kernel, transfer = (
            np.broadcast_to(np.asarray(ratio, dtype=np.float64), self.kernel.shape)[:, member]
            for ratio in (self.splice.kernel_ratio, self.splice.transfer_ratio)
        )
        return np.asarray(np.choose(pattern.scale, [np.ones_like(kernel), kernel, transfer]))

    def _releases(self) -> Floats:
        """Return the earliest start of each task: kernel and collective begin no earlier than in the graph."""
        pattern, release = self.splice.pattern, self.graph.tasks.release_ns
        earliest = np.zeros((len(self.kernel), len(pattern.graph.tasks)))
        earliest[:, pattern.kernel_begin] = release[self.kernel]
        earliest[:, pattern.collective_begin] = release[self.collective]
        return earliest

    def _lanes(self, lanes: _Numbers) -> Ints:
        """Return the lane in the graph of each lane of the pattern, shape (groups, lanes of the pattern)."""
        tasks, known = self.graph.tasks, self.graph.lanes
        result = np.empty((len(self.kernel), len(self.splice.pattern.graph.lanes)), np.int64)
        highest: dict[tuple[int, int | None], int] = {}
        for lane in known:
            highest[lane.rank, lane.device] = max(highest.get((lane.rank, lane.device), 0), lane.number)
        for column, lane in enumerate(self.splice.pattern.graph.lanes):
            assert lane.device is not None
            if lane.number == KERNEL_STREAM:
                result[:, column] = tasks.lane[self.kernel[:, lane.device]]
                continue
            of_collective = tasks.lane[self.collective[:, lane.device]]
            if lane.number == COLLECTIVE_STREAM:
                result[:, column] = of_collective
                continue
            distinct, index = np.unique(of_collective, return_inverse=True)
            new = []
            for number in distinct.tolist():
                base = known[number]
                stream = highest[base.rank, base.device] + lane.number - COLLECTIVE_STREAM
                new.append(lanes.of(Lane(base.rank, base.device, stream)))
            result[:, column] = np.array(new)[index]
        return result

    def edges(self) -> Edges:
        """Return the edges of all groups, and those from the pattern's ends to the rows of kernel and collective."""
        pattern = self.splice.pattern
        inner = pattern.graph.edges
        ends = [
            Edges.of(self.rows(marks).ravel(), rows.ravel(), kind=EdgeKind.STREAM)
            for marks, rows in ((pattern.kernel_end, self.kernel), (pattern.collective_end, self.collective))
        ]
        n = len(self.kernel)
        tiled = {name: np.tile(getattr(inner, name), n) for name in ("lag_ns", "from_start", "kind")}
        source, target = (self.rows(column).ravel() for column in (inner.source, inner.target))
        return Edges(source, target, **tiled).joined(*ends)


def _is_of_kernel(pattern: SplicePattern) -> Bools:
    """Return which tasks of a pattern belong to the kernel: its marks, and those that scale with it."""
    of_kernel = pattern.scale == _SCALES.index("kernel")
    of_kernel[pattern.kernel_begin] = of_kernel[pattern.kernel_end] = True
    return np.asarray(of_kernel)


class _Rewiring:
    """The old rows and edges of a graph, as splices change them."""

    def __init__(self, graph: KernelGraph, drop_launches: bool) -> None:
        self._graph, self._drop = graph, drop_launches
        n, self._arrival = len(graph.tasks), graph.arrivals()
        #: Row that takes over the edges into a task, and those that count from its start.
        self._begin = np.arange(n)
        #: Number of the target that a task belongs to, and its role: 1 kernel, 2 packing, 3 arrival or collective.
        self._target, self._role = np.full(n, -1), np.zeros(n, np.int64)
        self._count = 0

    def add(self, placed: _Placed) -> None:
        """Take note of a splice."""
        pattern = placed.splice.pattern
        self._begin[placed.kernel] = placed.rows(pattern.kernel_begin)
        self._begin[placed.collective] = placed.rows(pattern.collective_begin)
        for group in placed.splice.groups:
            for target in group:
                arrival = int(self._arrival[target.collective])
                for role, rows in ((1, [target.kernel]), (2, target.packing), (3, [arrival, target.collective])):
                    self._target[list(rows)], self._role[list(rows)] = self._count, role
                self._count += 1

    def marks(self) -> Tasks:
        """Return the old tasks; kernels and collectives of targets take no time and use nothing."""
        tasks = self._graph.tasks
        gone = (self._role > 0) & (tasks.kind != TaskKind.MARK)
        zero = {name: np.where(gone, 0, getattr(tasks, name)) for name in _USED}
        return replace(
            tasks,
            **zero,
            kind=np.where(gone, int(TaskKind.MARK), tasks.kind),
            demand=np.where(gone[:, None], 0.0, tasks.demand),
            release_ns=np.where(gone & (self._role != 2), 0.0, tasks.release_ns),
        )

    def edges(self) -> Edges:
        """Return the old edges, without those inside a target, and with those into it at its begin."""
        edges, role, target = self._graph.edges, self._role, self._target
        source_role, target_role = role[edges.source], role[edges.target]
        inside = (target[edges.source] >= 0) & (target[edges.source] == target[edges.target])
        # The pattern says when a collective may send what a kernel computed, and a kernel read what came.
        computed = inside & (source_role < 3) & (target_role == 3)
        received = inside & (source_role > 1) & (target_role == 1)
        dropped = computed | received
        if self._drop:
            dropped |= (target_role > 1) & np.isin(edges.kind, sorted(LAUNCH_EDGES))
        moved = replace(
            edges,
            source=np.where(edges.from_start, self._begin[edges.source], edges.source),
            target=self._begin[edges.target],
        )
        return moved.select(~dropped)


#: Columns of a task that uses nothing.
_USED = (
    *("duration_ns", "occupies", "waves", "workgroups", "bytes", "pressure"),
    *("footprint", "hit_share", *PLACE_COLUMNS),
)
