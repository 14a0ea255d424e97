"""Jobs of a fused kernel: cluster, costs, work and schedule.

A `Cluster` is devices in nodes, with the links of a node and the adapters between nodes. `Costs` are launches,
packing, synchronisation and messages. `Work` is what one rank computes, as bytes, time of arithmetic and workgroups. A
`Schedule` orders the slices of a persistent kernel. A `Job` joins them, with the times that both ways to run it share.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from profilers.devices.catalogue import Device
from profilers.errors import InvalidInputError
from profilers.trace.arrays import Floats, Ints
from profilers.trace.kernels import CLASSES, classify
from replay.calibration.parameters import Parameters
from replay.costs.collectives import Topology, algorithms_of, fastest, machine_of, phases_of
from replay.costs.collectives.algorithms import PROTOCOLS
from replay.costs.kernels import KernelCalibration, predict
from replay.graph.graph import Hardware
from replay.graph.operators import DTYPE_BYTES
from replay.workloads.architecture import checked_size


@dataclass(frozen=True)
class Cluster:
    """A group of ranks, one a device, that exchange their results.

    The ranks are the same for each other: a destination is told by its offset, which is its node and device counted
    from those of the sender, in a circle. Offset 0 is the sender itself.

    Parameters
    ----------
    device : Device
        Device of every rank.
    topology : Topology
        All nodes, fabric ``"mesh"`` or ``"switch"``.
    adapter_bytes_per_s : float
        What one network adapter sends, one way, after headers.

    Raises
    ------
    InvalidInputError
        Another fabric, or an adapter that sends nothing.

    Examples
    --------
    >>> from profilers.devices import find_device
    >>> nodes = Cluster(find_device("MI210"), Topology(8, 4, fabric="mesh", nics=4), 23.5e9)
    >>> nodes.ranks, nodes.network_offsets.tolist(), nodes.peer_offsets.tolist()
    (8, [4, 5, 6, 7], [1, 2, 3])
    >>> int(nodes.receiver(6, 5))
    3
    """

    device: Device
    topology: Topology
    adapter_bytes_per_s: float = 23.5e9

    def __post_init__(self) -> None:
        if self.topology.fabric not in ("mesh", "switch"):
            raise InvalidInputError(f"devices joined in a {self.topology.fabric!r}; give 'mesh' or 'switch'")
        if not self.adapter_bytes_per_s > 0:
            raise InvalidInputError(f"adapters of {self.adapter_bytes_per_s} bytes/s; give more than none")

    @property
    def ranks(self) -> int:
        """Devices of all nodes."""
        return self.topology.n_workers

    @property
    def devices_per_node(self) -> int:
        """Devices of one node."""
        return self.topology.devices_per_node

    @property
    def peer_offsets(self) -> Ints:
        """The other devices of the node."""
        return np.arange(1, self.devices_per_node)

    @property
    def network_offsets(self) -> Ints:
        """The devices of other nodes."""
        return np.arange(self.devices_per_node, self.ranks)

    @property
    def network_link(self) -> int:
        """The number, among the links of a device, of its part of the adapters."""
        return max(self.devices_per_node - 1, 1)

    def links(self, offsets: npt.ArrayLike) -> Ints:
        """Return the link that carries what goes to each offset."""
        to = np.asarray(offsets, dtype=np.int64)
        inside = to - 1 if self.topology.fabric == "mesh" else np.zeros_like(to)
        return np.where(to >= self.devices_per_node, self.network_link, inside)

    def bytes_per_s(self, offsets: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Return the bandwidth of the link to each offset."""
        far = np.asarray(offsets) >= self.devices_per_node
        # To one peer of the node, over a switch to all of them together; over the adapters if all devices send.
        peer = machine_of(self.device, self.topology).peer
        return np.where(far, self.topology.nics_used * self.adapter_bytes_per_s / self.devices_per_node, peer)

    def exchange_seconds(self, size: float) -> float:
        """Return the time in which the busiest link of a device carries `size` bytes to every other device."""
        others = np.arange(1, self.ranks)
        return float(np.bincount(self.links(others), size / self.bytes_per_s(others), minlength=1).max())

    def receiver(self, rank: int, offsets: npt.ArrayLike) -> Ints:
        """Return the rank at each offset from `rank`."""
        return self._turned(rank, np.asarray(offsets, dtype=np.int64), 1)

    def offset(self, rank: int, receivers: npt.ArrayLike) -> Ints:
        """Return the offset from `rank` to each receiver."""
        return self._turned(rank, np.asarray(receivers, dtype=np.int64), -1)

    def _turned(self, rank: int, to: Ints, way: int) -> Ints:
        """Return nodes and devices of `to`, plus or minus those of `rank`, in a circle."""
        each = self.devices_per_node
        node = (to // each + way * (rank // each)) % self.topology.nodes
        return np.asarray(node * each + (to % each + way * (rank % each)) % each)


@dataclass(frozen=True)
class Costs:
    """Overheads of both ways to compute and exchange, in ns unless said otherwise.

    Parameters
    ----------
    launch_ns : float
        Time from when a kernel could start to its first work.
    sync_ns : float
        From one stream to another: an event that is recorded and waited for.
    packs : float
        How often a separate kernel reads and writes the buffer before it is sent: 1, or 0 where its layout fits.
    library : float
        Share of a communication library's latencies that a collective pays: 1, or 0 for none.
    put_ns : float
        From the end of a put to the receiver's sight of its flag.
    store_ns : float
        The same of stores to a peer of the node.
    issue_ns : float
        The adapter's time for a put beside its bytes.
    occupancy_loss : float
        Share of the resident workgroups that the fused kernel lacks, below 1.
    store_share : float
        Bandwidth that stores of workgroups reach over a link in a node, over that of a library's copies.
    memory_share : float
        Share of the peak memory bandwidth that streaming kernels reach.
    collective_unit_share : float
        Share of the compute units that a library's collective holds.

    Raises
    ------
    InvalidInputError
        A time or count is negative, or a share is not within its range.
    """

    launch_ns: float
    sync_ns: float
    packs: float
    library: float
    put_ns: float
    store_ns: float
    issue_ns: float
    occupancy_loss: float
    store_share: float
    memory_share: float
    collective_unit_share: float

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value >= 0 or value == float("inf"):
                raise InvalidInputError(f"{name} is {value}; it must be finite and not negative")
        if self.occupancy_loss >= 1:
            raise InvalidInputError(f"an occupancy loss of {self.occupancy_loss}; it must be below 1")
        for name in ("store_share", "memory_share"):
            if not 0 < getattr(self, name) <= 1:
                raise InvalidInputError(f"{name} is {getattr(self, name)}; it must be above 0, and at most 1")

    @classmethod
    def of(cls, parameters: Parameters) -> "Costs":
        """Return the costs that the parameters give.

        Parameters
        ----------
        parameters : Parameters
            Parameters of the models.

        Notes
        -----
        A put or store with its flag costs as much as a step of a ring with a flag for every 4 bytes: NCCL's LL
        protocol (`replay.costs.collectives.algorithms.PROTOCOLS`). The other figures are in
        `datasets/parameters.toml`.

        Examples
        --------
        >>> from replay.costs.shipped import load_parameters
        >>> Costs.of(load_parameters()).occupancy_loss
        0.125
        """
        steps = PROTOCOLS["LL"].step_s
        return cls(
            launch_ns=parameters["kernel_floor_amd_ns"],
            sync_ns=parameters["stream_sync_ns"],
            packs=1.0,
            library=1.0,
            put_ns=steps["network"] * 1e9,
            store_ns=steps["device"] * 1e9,
            issue_ns=parameters["put_issue_ns"],
            occupancy_loss=parameters["persistent_occupancy_loss"],
            store_share=parameters["store_link_share"],
            memory_share=parameters["hbm_share_memory_bound"],
            collective_unit_share=parameters["cu_share_collective"],
        )

    def without_overheads(self) -> "Costs":
        """Return costs of computing and carrying bytes alone; the loss of occupancy stays."""
        nothing = dict.fromkeys(("launch_ns", "sync_ns", "packs", "library", "put_ns", "store_ns", "issue_ns"), 0.0)
        return replace(self, **nothing, store_share=1.0)


#: What fuses with the computation before it.
COLLECTIVES = ("all_to_all", "all_reduce")
_ITEMS, _WAVE = 256, 64  # work-items of a workgroup, and of a wave of AMD devices
_INDEX_BYTES = 8
_TILE = 128


@dataclass(frozen=True)
class Work:
    """Computation of one rank, and the collective that exchanges its result.

    Parameters
    ----------
    name : str
        Name of the kernel.
    collective : str
        One of `COLLECTIVES`.
    moved_bytes : float
        To and from memory, the output among them.
    output_bytes : float
        Size of the whole result, with the part of the rank itself.
    arithmetic_ns : float
        Time of its arithmetic, if memory is not the limit.
    workgroups, resident : int
        In all, and at once on the device.
    packed : bool
        Whether a library's collective needs the result in another layout first.

    Raises
    ------
    InvalidInputError
        There is no such collective, or a size is not above zero.
    """

    name: str
    collective: str
    moved_bytes: float
    output_bytes: float
    arithmetic_ns: float
    workgroups: int
    resident: int
    packed: bool = True

    @property
    def class_(self) -> int:
        """The class of its kernel, by its name: an index into `profilers.trace.kernels.CLASSES`."""
        return CLASSES.index(classify(self.name))

    def __post_init__(self) -> None:
        if self.collective not in COLLECTIVES:
            raise InvalidInputError(f"{self.name}: no collective {self.collective!r}; give {' or '.join(COLLECTIVES)}")
        if not (0 < self.output_bytes <= self.moved_bytes and self.arithmetic_ns >= 0):
            raise InvalidInputError(
                f"{self.name}: output {self.output_bytes} of {self.moved_bytes} bytes moved, arithmetic "
                f"{self.arithmetic_ns} ns; an output is above zero and is itself moved, a time is not negative"
            )
        if min(self.workgroups, self.resident) < 1:
            raise InvalidInputError(f"{self.name}: {self.workgroups} workgroups, {self.resident} at once; give 1 each")

    def seconds(self, device: Device, memory_share: float) -> float:
        """Return its time alone: of arithmetic or of memory, whichever is longer."""
        return max(self.arithmetic_ns * 1e-9, self.moved_bytes / (device.memory_bytes_per_s * memory_share))


def embedding(device: Device, parameters: Parameters, *, batch: int, tables: int, pooling: int, dim: int) -> Work:
    """Return pooled look-ups of one rank's tables for the samples of all ranks, exchanged all to all.

    Parameters
    ----------
    device : Device
        Device of the rank.
    parameters : Parameters
        `work_items_per_unit_max` limits the resident workgroups.
    batch : int
        Samples of all ranks together.
    tables : int
        Number of tables of one rank.
    pooling : int
        Rows that are summed for a sample and table.
    dim : int
        Elements of a row, FP32.

    Notes
    -----
    Memory carries every row that is summed, its index (8 bytes), and the sum. A wave works on one row of up to 128
    elements, two an item; a workgroup has four waves.

    Examples
    --------
    >>> from profilers.devices import find_device
    >>> from replay.costs.shipped import load_parameters
    >>> work = embedding(find_device("MI210"), load_parameters(), batch=512, tables=32, pooling=20, dim=128)
    >>> work.output_bytes, work.workgroups, work.resident
    (8388608, 4096, 832)
    """
    sizes = {"batch": batch, "tables": tables, "pooling": pooling, "dim": dim}
    batch, tables, pooling, dim = (checked_size(name, size) for name, size in sizes.items())
    rows, width = batch * tables, dim * DTYPE_BYTES["fp32"]
    moved = rows * pooling * (width + _INDEX_BYTES) + rows * width
    waves = rows * max(-(-dim // (2 * _WAVE)), 1)
    name = f"embedding {batch}|{tables}|{pooling}|{dim}"
    return Work(
        name, "all_to_all", moved, rows * width, 0.0, -(-waves * _WAVE // _ITEMS), _resident(device, parameters)
    )


def _resident(device: Device, parameters: Parameters) -> int:
    return device.compute_units * int(parameters["work_items_per_unit_max"]) // _ITEMS


def gemv(device: Device, parameters: Parameters, *, batch: int, n: int, k: int) -> Work:
    """Return a product of a few rows with one rank's part of a weight matrix, summed over the ranks.

    Parameters
    ----------
    device : Device
        Device of the rank.
    parameters : Parameters
        `work_items_per_unit_max` limits the resident workgroups.
    batch, n, k : int
        Rows, columns of the result, and the rank's part of the depth; 16-bit elements.

    Notes
    -----
    Memory carries the weights; a wave computes one column, so a workgroup four.

    Examples
    --------
    >>> from profilers.devices import find_device
    >>> from replay.costs.shipped import load_parameters
    >>> gemv(find_device("MI210"), load_parameters(), batch=1, n=8192, k=2048).moved_bytes
    33574912
    """
    batch, n, k = checked_size("batch", batch), checked_size("n", n), checked_size("k", k)
    size = DTYPE_BYTES["bf16"]
    moved, output = size * (n * k + batch * (n + k)), size * batch * n
    groups = -(-n * _WAVE // _ITEMS)
    return Work(
        f"gemv {batch}|{n}|{k}", "all_reduce", moved, output, 0.0, groups, _resident(device, parameters), packed=False
    )


def gemm(device: Device, calibration: KernelCalibration, *, m: int, n: int, k: int) -> Work:
    """Return the last product of one rank's experts, whose rows go back to the ranks of their tokens.

    Parameters
    ----------
    device : Device
        Device of the rank.
    calibration : Calibration
        Fits of kernels that the product is timed by.
    m, n, k : int
        Tokens that the rank's experts have, hidden size, depth; BF16.

    Notes
    -----
    Time by `replay.costs.kernels`, without the start that the launch counts; a workgroup a tile of 128 x 128, one a
    compute unit.

    Examples
    --------
    >>> from profilers.devices import find_device
    >>> from replay.costs.kernels import load_calibration
    >>> gemm(find_device("MI210"), load_calibration(), m=4096, n=4096, k=14336).workgroups
    1024
    """
    m, n, k = checked_size("m", m), checked_size("n", n), checked_size("k", k)
    predicted = predict("matmul", [[1, m, n, k]], device, calibration=calibration, dtype="bf16")
    size = DTYPE_BYTES["bf16"]
    arithmetic = max(float(predicted.seconds[0]) - predicted.start_s, 0.0) * 1e9
    groups = -(-m // _TILE) * -(-n // _TILE)
    moved, output = size * (m * k + k * n + m * n), size * m * n
    return Work(f"gemm {m}|{n}|{k}", "all_to_all", moved, output, arithmetic, groups, device.compute_units)


#: Orders of the logical workgroups.
ORDERS: Mapping[str, str] = MappingProxyType(
    {
        "remote_first": "what other nodes wait for, then what peers of the node wait for, then the rank's own",
        "local_first": "the rank's own, then as remote_first",
        "ascending": "by the receiver's rank, the same on every rank: a kernel that knows nothing of what it sends",
    }
)
_MOST_PARTS = 2**14


@dataclass(frozen=True)
class Schedule:
    """How a fused kernel cuts its work.

    Parameters
    ----------
    order : str
        One of `ORDERS`.
    parts : int
        Slices for each destination; never more than it has workgroups.
    variation : float
        Standard deviation of the logarithm of a slice's work.
    seed : int
        Seed of the variation.

    Raises
    ------
    InvalidInputError
        There is no such order, or a number is out of range.
    """

    order: str = "remote_first"
    parts: int = 8
    variation: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise InvalidInputError(f"no order {self.order!r}; there are {', '.join(ORDERS)}")
        object.__setattr__(self, "parts", checked_size("parts", self.parts, _MOST_PARTS))
        if not 0 <= self.variation <= 3:
            raise InvalidInputError(f"a variation of {self.variation}; give 0 to 3")

    def is_symmetric(self) -> bool:
        """Whether one rank stands for all: each computes the same amounts, at the same places in its order."""
        return self.order != "ascending" and self.variation == 0


@dataclass(frozen=True)
class Slices:
    """The slices of one rank in the order in which it computes them.

    Parameters
    ----------
    offset : array of int64
        Offset of the destination from the sender (`Cluster`).
    part : array of int64
        Which of the destination's slices.
    work : array of float64
        Share of the whole, 1 together where nothing varies.
    """

    offset: Ints
    part: Ints
    work: Floats

    def __len__(self) -> int:
        return len(self.offset)


def slices_of(cluster: Cluster, schedule: Schedule, rank: int, workgroups: int) -> Slices:
    """Return the slices of `rank`, in order.

    Parameters
    ----------
    cluster : Cluster
        Devices, and the links between them.
    schedule : Schedule
        Order and number of the slices.
    rank : int
        Number of the rank.
    workgroups : int
        Workgroups of the whole operator: no slice is smaller than one.

    Notes
    -----
    Destinations of a kind take turns, so that their links carry equal amounts; in the ascending order each is done at
    once.

    Examples
    --------
    >>> from profilers.devices import find_device
    >>> from replay.costs.collectives import Topology
    >>> pair = Cluster(find_device("MI210"), Topology(2, 1, nics=1))
    >>> slices_of(pair, Schedule(parts=2), 0, 64).offset.tolist()
    [1, 1, 0, 0]
    """
    parts = min(schedule.parts, max(workgroups // cluster.ranks, 1))
    each = np.arange(parts)
    if schedule.order == "ascending":
        offset = np.repeat(cluster.offset(rank, np.arange(cluster.ranks)), parts)
        part = np.tile(each, cluster.ranks)
    else:
        kinds = [cluster.network_offsets, cluster.peer_offsets]
        local = np.zeros(1, np.int64)
        groups = [local, *kinds] if schedule.order == "local_first" else [*kinds, local]
        offset = np.concatenate([np.tile(group, parts) for group in groups])
        part = np.concatenate([np.repeat(each, len(group)) for group in groups])
    return Slices(offset, part, _work(schedule, rank, offset * parts + part))


def _work(schedule: Schedule, rank: int, slices: Ints) -> Floats:
    """Return each slice's share of the work; it is the slice's own, whatever the order, and one on average."""
    n = len(slices)
    drawn = np.random.default_rng((schedule.seed, rank)).standard_normal(n)
    spread = schedule.variation
    return np.exp(spread * drawn[slices] - spread**2 / 2) / n


@dataclass(frozen=True)
class Job:
    """Work of every rank of a cluster, and the collective behind it.

    Parameters
    ----------
    work : Work
        Work of one rank.
    cluster : Cluster
        Devices and links that it runs on.
    schedule : Schedule, optional
        Order of the fused kernel's slices.
    costs : Costs
        Costs beside computing and carrying bytes.
    shots : int, optional
        Exchanges of a fused all-reduce. With 1, each rank sends all to all others, and each sums. With 2, each rank
        owns a part, sums it and sends it on. By default the faster of the two without computation to hide it.

    Raises
    ------
    InvalidInputError
        There are other shots.
    """

    work: Work
    cluster: Cluster
    schedule: Schedule = field(default_factory=Schedule)
    costs: Costs = field(kw_only=True)
    shots: int = 0

    def __post_init__(self) -> None:
        if self.shots not in (0, 1, 2):
            raise InvalidInputError(f"{self.shots} shots; give 1, 2, or 0 to choose by size")

    @property
    def memory_bytes_per_s(self) -> float:
        """Memory bandwidth that streaming kernels reach."""
        return self.cluster.device.memory_bytes_per_s * self.costs.memory_share

    @property
    def compute_ns(self) -> float:
        """The computation alone on its device, with all the workgroups that fit."""
        return self.work.seconds(self.cluster.device, self.costs.memory_share) * 1e9

    @property
    def memory_demand(self) -> float:
        """Share of the bandwidth that streaming kernels reach, while it computes."""
        return min(self.work.moved_bytes / (self.memory_bytes_per_s * self.compute_ns * 1e-9), 1.0)

    @property
    def memory_bound(self) -> bool:
        """Whether memory, rather than arithmetic, limits the computation."""
        return self.work.moved_bytes / self.memory_bytes_per_s * 1e9 >= self.work.arithmetic_ns

    @property
    def wire_ns(self) -> float:
        """Time in which the busiest link of a device carries the collective, by the algorithm that sends least."""
        topology, kind = self.cluster.topology, self.work.collective
        if self.cluster.ranks == 1:
            return 0.0
        machine = machine_of(self.cluster.device, topology, self.cluster.adapter_bytes_per_s)
        times = [
            sum(phase.volume / machine.of(phase) for phase in phases_of(kind, name, topology))
            for name in algorithms_of(kind, topology)
        ]
        return min(times) * self.work.output_bytes * 1e9

    @property
    def collective_ns(self) -> float:
        """A library's collective, with the share of its latencies that `Costs.library` says."""
        machine = machine_of(self.cluster.device, self.cluster.topology, self.cluster.adapter_bytes_per_s)
        size = np.array([self.work.output_bytes], dtype=np.float64)
        with_all = fastest(self.work.collective, self.cluster.topology, machine, size)[0][0] * 1e9
        return self.wire_ns + self.costs.library * max(float(with_all) - self.wire_ns, 0.0)

    @property
    def pack_ns(self) -> float:
        """A kernel that reads and writes the whole output."""
        packs = self.costs.packs if self.work.packed and self.cluster.ranks > 1 else 0.0
        return packs * 2 * self.work.output_bytes / self.memory_bytes_per_s * 1e9

    @property
    def in_one_shot(self) -> bool:
        """Whether a fused all-reduce sends everything to everyone, rather than in two shots."""
        if self.work.collective != "all_reduce" or self.shots:
            return self.shots == 1 and self.work.collective == "all_reduce"
        size, cluster, costs = self.work.output_bytes, self.cluster, self.costs
        latency = costs.put_ns if cluster.topology.nodes > 1 else costs.store_ns
        latency += costs.issue_ns * len(cluster.network_offsets) * self.schedule.parts
        once = latency + cluster.exchange_seconds(size) * 1e9
        return once <= 2 * (latency + cluster.exchange_seconds(size / cluster.ranks) * 1e9)

    def slices(self, rank: int) -> Slices:
        """Return the slices of a rank in the fused kernel, in order."""
        if self.in_one_shot:  # every rank needs all of it, in an order that is the same on all
            part = np.arange(min(self.schedule.parts, self.work.workgroups))
            return Slices(np.zeros_like(part), part, _work(self.schedule, rank, part))
        return slices_of(self.cluster, self.schedule, rank, self.work.workgroups)

    def hardware(self) -> Hardware:
        """Return the hardware of its graphs."""
        return Hardware(self.cluster.device, "user", self.cluster.device.compute_units)
