"""Slices of a persistent kernel that sends its own result, as a pattern that stands for a kernel and its collective.

A `Fusion` is a kernel of a traced group of ranks, and the collective that exchanges its result. `fused_pattern` cuts
the kernel into slices, which end with waves of workgroups. Each slice is sent when it is computed: by a put to another
node, by stores to a peer of the node. An all-reduce then sums what came, in one or two shots.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from profilers.devices.catalogue import Device
from profilers.trace.arrays import Floats, Ints
from replay.calibration.parameters import Parameters
from replay.costs.collectives import Topology, algorithms_of, links_of, phases_of
from replay.costs.collectives.algorithms import stated_nic_rate
from replay.graph.graph import Basis, TaskKind, peer_link
from replay.what_ifs.splice import COLLECTIVE_STREAM, KERNEL_STREAM, PatternBuilder, SplicePattern, task_budget

#: Orders of the slices, by what each computes first.
ORDERS: Mapping[str, str] = MappingProxyType(
    {
        "remote_first": "slices for other nodes, then for peers of the node, then the rank's own",
        "local_first": "the rank's own slices, then as remote_first",
        "ascending": "slices in the order of the receivers' ranks, the same on every rank",
    }
)
#: Slices for each receiver, if the kernel has as many workgroups and the graph has room.
_PARTS = 8


@dataclass(frozen=True)
class SliceGroup:
    """The ranks that exchange a result, and the links between them.

    The ranks are the same for each other. A receiver is told by its offset: its node and its device in the node,
    counted from those of the sender, in a circle. Offset 0 is the sender itself.

    Parameters
    ----------
    topology : Topology
        Nodes of the group, with the bandwidth of their adapters.
    device : Device
        Device of every rank.
    store_share : float
        Bandwidth that stores of workgroups reach over a link of a node, over that of a library's copies.

    Examples
    --------
    >>> from profilers.devices import find_device
    >>> group = SliceGroup(Topology(8, 4, fabric="mesh", nics=4, nic_gbps=25.0), find_device("MI210"))
    >>> group.links(np.arange(1, 8)).tolist(), int(group.receiver(6, 5)), group.offset(6, np.array([3])).tolist()
    ([2, 3, 4, 5, 5, 5, 5], 3, [5])
    """

    topology: Topology
    device: Device
    store_share: float = 1.0

    @property
    def ranks(self) -> int:
        """Ranks of the group."""
        return self.topology.n_workers

    def is_far(self, offsets: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        """Return whether each offset leads to another node."""
        return np.asarray(offsets) >= self.topology.devices_per_node

    def links(self, offsets: npt.ArrayLike) -> Ints:
        """Return the link to each offset above 0: of a pair on a mesh, else the switch's; or the device's adapters."""
        to = np.asarray(offsets, dtype=np.int64)
        is_mesh = self.topology.fabric == "mesh"
        near, far = (to, self.topology.node_devices) if is_mesh else (np.ones_like(to), 2)
        return peer_link(np.where(self.is_far(to), far, near))

    def bytes_per_s(self, offsets: npt.ArrayLike) -> Floats:
        """Return the bandwidth to each offset; over the adapters, the part of each device if all of them send."""
        adapters = stated_nic_rate("all_to_all", self.topology, self.device) * self.topology.nics_used
        peer = links_of(self.device, self.topology).peer * self.store_share
        return np.where(self.is_far(offsets), adapters / self.topology.devices_per_node, peer)

    def exchange_ns(self, size: float) -> float:
        """Return the time in which the busiest link of a device carries `size` bytes to every other device."""
        others = np.arange(1, self.ranks)
        seconds = np.bincount(self.links(others), size / self.bytes_per_s(others), minlength=1)
        return 1e9 * float(seconds.max())

    def library_ns(self, kind: str, size: float) -> float:
        """Return the time in which a library's collective carries its bytes, by the algorithm that sends least."""
        links = links_of(self.device, self.topology, stated_nic_rate(kind, self.topology, self.device))
        times = [
            sum(phase.volume / links.of(phase) for phase in phases_of(kind, algorithm, self.topology))
            for algorithm in algorithms_of(kind, self.topology)
        ]
        return 1e9 * min(times) * size

    def receiver(self, rank: int, offsets: Ints) -> Ints:
        """Return the rank at each offset from `rank`."""
        return self._turned(rank, offsets, 1)

    def offset(self, rank: int, receivers: Ints) -> Ints:
        """Return the offset from `rank` to each receiver."""
        return self._turned(rank, receivers, -1)

    def _turned(self, rank: int, to: Ints, sign: int) -> Ints:
        """Return nodes and devices of `to`, plus or minus those of `rank`, in a circle."""
        each, nodes = self.topology.devices_per_node, self.topology.nodes
        node = (to // each + sign * (rank // each)) % nodes
        return np.asarray(node * each + (to % each + sign * (rank % each)) % each)


@dataclass(frozen=True)
class Fusion:
    """A kernel and the collective that exchanges its result, fused.

    Parameters
    ----------
    group : SliceGroup
        The ranks that exchange.
    kind : str
        ``"all_to_all"`` or ``"all_reduce"``.
    size_bytes : float
        The whole result of one rank, with the rank's own part.
    kernel_ns : float
        Duration of the kernel alone.
    workgroups : int
        Workgroups of the kernel; 0 if unknown.
    waves : float
        Workgroups over those that the device holds at once; 0 if unknown.
    demand : mapping of str to float
        Columns of the kernel's demands.
    is_memory_bound : bool
        Whether a kernel that writes less is faster.
    order : str
        One of `ORDERS`.
    members : int
        Ranks at hand; 1 stands for all.
    budget : int
        Tasks that each rank may have.
    """

    group: SliceGroup
    kind: str
    size_bytes: float
    kernel_ns: float
    workgroups: int = 0
    waves: float = 0.0
    demand: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({"cu": 1.0}))
    is_memory_bound: bool = False
    order: str = "remote_first"
    members: int = 1
    budget: int = task_budget(1)

    @cached_property
    def parts(self) -> int:
        """Slices for each receiver."""
        ranks = self.group.ranks
        by_groups = self.workgroups // ranks if self.workgroups else _PARTS
        return int(np.clip(min(_PARTS, by_groups, self.budget // (4 * ranks)), 1, _PARTS))

    @property
    def most_messages(self) -> int:
        """Messages over one link; more are joined."""
        return max(self.budget // (4 * max(self.group.topology.devices_per_node, 1)), 2)


@dataclass(frozen=True)
class Slices:
    """The slices of a rank in the order in which it computes them.

    Parameters
    ----------
    offset : array of int64
        Offset of the receiver.
    part : array of int64
        Which of the receiver's slices.
    share : array of float64
        Share of the kernel, 1 together.
    """

    offset: Ints
    part: Ints
    share: Floats


def slices_of(fusion: Fusion, rank: int = 0) -> Slices:
    """Return the slices of a rank, in order.

    Receivers of a kind take turns, so that their links carry equal amounts. In the ascending order the slices of one
    receiver follow each other.

    Examples
    --------
    >>> from profilers.devices import find_device
    >>> pair = SliceGroup(Topology(2, 1, nics=1, nic_gbps=25.0), find_device("MI210"))
    >>> slices_of(Fusion(pair, "all_to_all", 1e6, 1e3, workgroups=4)).offset.tolist()
    [1, 1, 0, 0]
    """
    parts, ranks, node = np.arange(fusion.parts), fusion.group.ranks, fusion.group.topology.devices_per_node
    if fusion.order == "ascending":
        offset = np.repeat(fusion.group.offset(rank, np.arange(ranks)), len(parts))
        part = np.tile(parts, ranks)
    else:
        local, near, far = np.zeros(1, np.int64), np.arange(1, node), np.arange(node, ranks)
        kinds = [local, far, near] if fusion.order == "local_first" else [far, near, local]
        offset = np.concatenate([np.tile(kind, len(parts)) for kind in kinds])
        part = np.concatenate([np.repeat(parts, len(kind)) for kind in kinds])
    return Slices(offset, part, np.full(len(offset), 1.0 / len(offset)))


def fused_pattern(fusion: Fusion, parameters: Parameters) -> SplicePattern:
    """Return the pattern of a fused kernel: its slices, the puts and stores that send them, and sums.

    Parameters
    ----------
    fusion : Fusion
        Kernel, collective and ranks.
    parameters : Parameters
        Costs of messages, the loss of occupancy, and the share of the memory bandwidth that streams reach.

    Notes
    -----
    Slices are computed one after another. One is done with the wave of its last workgroup; fewer workgroups are
    resident than in a kernel that only computes (`persistent_occupancy_loss`), and the rate falls as much.

    - A put starts when its slice is computed and the put before it has left. The adapter needs `put_issue_ns` and the
      time of the bytes; the receiver sees the flag `put_latency_ns` later.
    - Stores start with the slice. If their link is behind at the end of the slice, the next slice for that link waits,
      since little is buffered. The receiver sees the flag `store_latency_ns` after the last of them. What goes to a
      peer is not written to the rank's own memory.
    - An all-reduce of one shot sends every slice to all ranks, and each sums. One of two shots sends a slice to the
      rank that owns it, which sums it and sends it to all. The one that exchanges faster is taken.

    A message of a rank that stands for all, to an offset, also stands for the message from the opposite offset.
    """
    builder = _Builder(fusion, parameters, PatternBuilder(fusion.members))
    sent = [builder.compute(rank) for rank in range(fusion.members)]
    if fusion.kind == "all_reduce":
        builder.reduce(sent)
    else:
        for messages in sent:
            builder.arrive(messages, builder.pattern.collective_end[:, None])
    return builder.pattern.build()


@dataclass(frozen=True)
class _Messages:
    """Messages of a rank, and the slices that they carry, one row a slice and receiver.

    `task` and `source` are those that send and compute each message; `message` is the message of each row.
    """

    rank: int
    task: Ints
    source: Ints
    message: Ints
    offset: Ints
    part: Ints


@dataclass
class _Builder:
    """Adds the tasks of a fused kernel to a pattern."""

    fusion: Fusion
    parameters: Parameters
    pattern: PatternBuilder
    _local: list[Ints] = field(default_factory=list)  #: tasks that compute the local slices of each rank, part by part

    @property
    def _memory_bytes_per_s(self) -> float:
        """Memory bandwidth that streams reach."""
        return self.fusion.group.device.memory_bytes_per_s * self.parameters["hbm_share_memory_bound"]

    @cached_property
    def _is_one_shot(self) -> bool:
        """Whether an all-reduce sends everything to all ranks at once."""
        fusion, group = self.fusion, self.fusion.group
        if fusion.kind != "all_reduce":
            return False
        far = group.ranks - group.topology.devices_per_node
        latency = self.parameters["put_latency_ns" if far else "store_latency_ns"]
        latency += self.parameters["put_issue_ns"] * far * fusion.parts
        once = latency + group.exchange_ns(fusion.size_bytes)
        return once <= 2 * (latency + group.exchange_ns(fusion.size_bytes / group.ranks))

    def compute(self, rank: int) -> _Messages:
        """Add the slices of a rank and their messages; slices that end with one wave share a task."""
        slices, pattern = slices_of(self.fusion, rank), self.pattern
        if self._is_one_shot:  # every rank needs all of it, in the same order on all ranks
            parts = np.arange(self.fusion.parts)
            slices = Slices(np.zeros_like(parts), parts, np.full(len(parts), 1.0 / len(parts)))
        ends, durations, which = self._waves(slices)
        kept = 1 - self.parameters["persistent_occupancy_loss"]
        demand = {name: value * (kept if name in ("hbm", "l2") else 1.0) for name, value in self.fusion.demand.items()}
        groups = np.ceil(np.diff(ends, prepend=0.0) * self.fusion.workgroups)
        columns = {**demand, "duration_ns": durations, "workgroups": groups, "priority": 1, "basis": Basis.ASSUMED}
        tasks = pattern.tasks("slices", pattern.lane(rank, KERNEL_STREAM), columns, scale="kernel")
        pattern.assembly.chain(tasks)
        pattern.edges(pattern.kernel_begin[rank], tasks[0])
        pattern.edges(tasks[-1], pattern.kernel_end[rank])
        pattern.edges([pattern.collective_begin[rank], tasks[-1]], pattern.collective_end[rank])
        self._local.append(tasks[which[slices.offset == 0]])
        if self._is_one_shot:
            return self._send_to_all(rank, tasks[which], slices)
        sent = slices.offset > 0
        chosen = Slices(slices.offset[sent], slices.part[sent], slices.share[sent])
        return self._send(rank, tasks[which[sent]], chosen)

    def _waves(self, slices: Slices) -> tuple[Floats, Floats, Ints]:
        """Return the share of the kernel that is done with each task, the durations, and the task of each slice."""
        fusion, kept = self.fusion, 1 - self.parameters["persistent_occupancy_loss"]
        done = ends = np.cumsum(slices.share)
        if fusion.workgroups and fusion.waves:
            resident = min(fusion.workgroups / fusion.waves * kept, fusion.workgroups)
            wave = max(int(resident), 1) / fusion.workgroups
            ends = np.minimum(np.ceil(done / wave - 1e-9) * wave, done[-1])
        inside = (slices.offset > 0) & ~fusion.group.is_far(slices.offset)
        unwritten = slices.share * fusion.size_bytes / self._memory_bytes_per_s * 1e9 * fusion.is_memory_bound
        alone = np.maximum(fusion.kernel_ns * slices.share - np.where(inside, unwritten, 0.0), 0.0) / kept
        ends, which = np.unique(ends, return_inverse=True)
        if len(ends) > fusion.budget // 2:  # the first and the last stay
            group = np.arange(len(ends)) * (fusion.budget // 2) // len(ends)
            last = np.append(np.flatnonzero(np.diff(group)), len(ends) - 1)
            ends, which = ends[last], group[which]
        times = np.interp(ends, np.append(0.0, done), np.append(0.0, np.cumsum(alone)))
        return ends, np.maximum(np.diff(times, prepend=0.0), 0.0), which

    def _send_to_all(self, rank: int, tasks: Ints, slices: Slices) -> _Messages:
        """Add messages of each slice to every other rank."""
        others = np.arange(1, self.fusion.group.ranks)
        row = np.repeat(np.arange(len(tasks)), len(others))
        copies = Slices(np.tile(others, len(tasks)), slices.part[row], slices.share[row])
        return self._send(rank, tasks[row], copies)

    def _send(self, rank: int, source: Ints, slices: Slices) -> _Messages:
        """Add puts and stores of slices; too many over one link are joined with those after them."""
        group, pattern = self.fusion.group, self.pattern
        links, link = np.unique(group.links(slices.offset), return_inverse=True)
        message = self._joined(link)
        n = int(message.max(initial=-1)) + 1
        first = np.zeros(n, np.int64)
        first[message[::-1]] = np.arange(len(message))[::-1]
        last = np.zeros(n, np.int64)
        np.maximum.at(last, message, source)
        count = np.bincount(message, minlength=n)
        size = np.bincount(message, slices.share * self.fusion.size_bytes, minlength=n)
        is_far, rate = group.is_far(slices.offset[first]), group.bytes_per_s(slices.offset[first])
        peak = group.device.memory_bytes_per_s * self.parameters["memory_efficiency_shared"]
        columns = {
            "kind": TaskKind.COPY,
            "duration_ns": size / rate * 1e9,
            "bytes": np.round(size),
            "ranks": np.where(is_far, group.ranks, group.topology.devices_per_node),
            "hbm": np.minimum(np.where(is_far, 2.0, 1.0) * rate / peak, 1.0),
            **{"link": 1.0, "link_number": links[link[first]] if n else 0},
        }
        streams = np.array([pattern.lane(rank, COLLECTIVE_STREAM + number) for number in range(len(links))], np.int64)
        none = np.zeros(0, np.int64)
        task = pattern.tasks("send", streams[link[first]], columns, scale="transfer") if n else none
        issue_ns = np.where(is_far, self.parameters["put_issue_ns"] * count, 0.0)
        if n:
            pattern.assembly.edges(last, task, from_start=~is_far, lag_ns=issue_ns)
        self._queue(task, last, (link[first], is_far, issue_ns))
        return _Messages(rank, task, last, message, slices.offset, slices.part)

    def _joined(self, link: Ints) -> Ints:
        """Return the message of each slice, numbered link by link in the order of the slices."""
        order, counts = np.argsort(link, kind="stable"), np.bincount(link)
        position = np.arange(len(link)) - np.repeat(np.cumsum(counts) - counts, counts)
        most = np.minimum(counts, self.fusion.most_messages)
        run = position * most[link[order]] // np.maximum(counts[link[order]], 1)
        message = np.empty(len(link), np.int64)
        message[order] = run + np.repeat(np.cumsum(most) - most, counts)
        return message

    def _queue(self, task: Ints, source: Ints, columns: tuple[Ints, npt.NDArray[np.bool_], Floats]) -> None:
        """Let puts over a link wait for each other, and slices that store wait for a link that is behind."""
        link, is_far, issue_ns = columns
        same = link[:-1] == link[1:]
        before, after = np.flatnonzero(same), np.flatnonzero(same) + 1
        stored = ~is_far[before] & (source[before] != source[after])
        self.pattern.edges(task[before[stored]], source[after[stored]])
        put = is_far[before]
        self.pattern.edges(task[before[put]], task[after[put]], lag_ns=issue_ns[after[put]])

    def arrive(self, sent: _Messages, waiting: Ints) -> None:
        """Let tasks of the receivers wait for the flags of messages.

        `waiting` has one row a member, and a column for each part or one for all.
        """
        if not len(sent.task):
            return
        group, n_parts = self.fusion.group, waiting.shape[1]
        member = np.zeros_like(sent.offset) if self.fusion.members == 1 else group.receiver(sent.rank, sent.offset)
        put_ns, store_ns = self.parameters["put_latency_ns"], self.parameters["store_latency_ns"]
        flag = np.where(group.is_far(sent.offset), put_ns, store_ns)
        target = waiting[member, np.minimum(sent.part, n_parts - 1)]
        rows = np.unique(np.stack([sent.message, target]), axis=1, return_index=True)[1]
        message, target, flag = sent.message[rows], target[rows], flag[rows]
        self.pattern.edges(sent.task[message], target, lag_ns=flag)
        self.pattern.edges(sent.source[message], target, lag_ns=flag)

    def reduce(self, sent: list[_Messages]) -> None:
        """Add the sums of what all ranks sent, and in two shots the messages with the sums.

        The kernel's own workgroups sum, so the sums need memory and no compute units beside the kernel's.
        """
        fusion, pattern = self.fusion, self.pattern
        slices, end = slices_of(fusion), pattern.collective_end
        share = 1.0 / fusion.parts if self._is_one_shot else float(slices.share[0])
        read = (fusion.group.ranks + 1) * share * fusion.size_bytes
        hbm = self.parameters["hbm_share_memory_bound"] / self.parameters["memory_efficiency_shared"]
        columns = {"duration_ns": read / self._memory_bytes_per_s * 1e9, "hbm": min(hbm, 1.0), "bytes": round(read)}
        stream = COLLECTIVE_STREAM + fusion.group.topology.devices_per_node + 1
        sums = []
        for rank, local in enumerate(self._local):
            tasks = pattern.tasks("sum", np.full(len(local), pattern.lane(rank, stream)), columns)
            pattern.edges(local, tasks)
            pattern.assembly.chain(tasks)
            pattern.edges(np.repeat(tasks[-1], 2), [pattern.kernel_end[rank], end[rank]])
            sums.append(tasks)
        for messages, tasks in zip(sent, sums, strict=True):
            self.arrive(messages, np.stack(sums))
            if not self._is_one_shot:
                parts = np.arange(len(tasks))
                again = Slices(np.zeros_like(parts), parts, np.full(len(parts), share))
                self.arrive(self._send_to_all(messages.rank, tasks, again), end[:, None])
