"""FiCCO's schedules: a product and its collective in pieces, as a pattern of finer tasks (arXiv 2512.10236).

A `Schedule` says how the product and the transfer are cut and ordered. A `SchedulePlan` is a `CoupledProduct` under a
schedule: its pieces, its steps of transfer, and their costs. `pattern_of` returns the plan as a `SplicePattern`. Pieces
cost more than the whole: rows of their operands lie as far apart as before (`distance_factor`), and each fills fewer
waves.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from math import ceil
from types import MappingProxyType
from typing import Any

import numpy as np

from profilers.errors import InvalidInputError, NotFoundError
from profilers.trace.arrays import Ints
from profilers.trace.kernels import CLASSES
from replay.calibration.parameters import Parameters
from replay.costs.collectives import Topology
from replay.costs.kernels import predict
from replay.costs.kernels.models import MODELS
from replay.costs.kernels.predictor import KernelCalibration
from replay.costs.products import (
    SHARPNESS,
    Product,
    Transfer,
    copy_columns,
    kernel_columns,
    predicted_s,
    product_columns,
    product_ns,
    with_boundless_memory,
    with_figure,
)
from replay.graph.graph import TaskKind, hardware_named, peer_link
from replay.what_ifs.splice import COLLECTIVE_STREAM, KERNEL_STREAM, PatternBuilder, SplicePattern, task_budget


@dataclass(frozen=True)
class Schedule:
    """How a transfer and its product are cut, and in what order the pieces go.

    Parameters
    ----------
    name : str
        Name of the schedule.
    transfer : str
        Unit of the transfer: the ``"whole"`` collective, ``"shards"`` (one peer's at a time), or ``"pieces"`` of the
        shards of all peers.
    shape : str
        Shape of a piece: ``"1D"`` (whole rows of the operand or result), or ``"2D"`` (a shard's rows, and part of the
        depth; of a result, part of its columns).
    order : str
        ``"uniform"`` (a step takes its piece of each shard, the local one too), or ``"heterogeneous"`` (the whole
        local shard apart: first if data arrive, last if they leave).
    kernels : str
        Kernels of a step: ``"fused"`` (one for all peers' pieces), or ``"unfused"`` (one for each, on a stream of its
        own).
    """

    name: str
    transfer: str = "pieces"
    shape: str = "1D"
    order: str = "uniform"
    kernels: str = "fused"


#: By name: two baselines, then the schedules of the paper.
SCHEDULES: Mapping[str, Schedule] = MappingProxyType(
    {
        schedule.name: schedule
        for schedule in (
            Schedule("serial", transfer="whole"),
            Schedule("shards", transfer="shards", order="heterogeneous"),
            Schedule("uniform_fused_1d"),
            Schedule("hetero_fused_1d", order="heterogeneous"),
            Schedule("hetero_unfused_1d", order="heterogeneous", kernels="unfused"),
            Schedule("uniform_fused_2d", shape="2D"),
        )
    }
)
#: Schedules of arXiv 2512.10236.
STUDIED = tuple(name for name, schedule in SCHEDULES.items() if schedule.transfer == "pieces")
#: Schedules that the chooser chooses from.
CANDIDATES = ("serial", *STUDIED)
#: Carriers of the bytes: copies of DMA engines, or a kernel on compute units.
CARRIERS = ("dma", "units")
#: Collectives that bring an operand, and the one that sends a result.
GATHERING, SCATTERING = ("all_gather", "all_to_all"), "reduce_scatter"
#: Name of the mark that waits for ranks which come late; it takes no time of its own.
LATE = "late ranks"
_FABRICS = ("mesh", "switch", "ring")


@dataclass(frozen=True)
class CoupledProduct:
    """The matrix product of one device, and the collective that brings its left operand or sends its result.

    Parameters
    ----------
    product : Product
        The product of one device. Its m rows are gathered or exchanged, or are reduced and scattered.
    collective : str
        One of `GATHERING`, or `SCATTERING`; on a ring ``"all_gather"``.
    topology : Topology
        A mesh, a switch or a ring of two or more devices of one node.
    size_bytes : float
        One device's whole buffer; by default the left operand, or the result.

    Raises
    ------
    InvalidInputError
        There is no such collective or fabric here, or the product has too few rows for the pieces.

    Examples
    --------
    >>> from profilers.devices import find_device
    >>> product = Product(16384, 2048, 131072, find_device("MI300X"))
    >>> coupled = CoupledProduct(product, "all_gather", Topology(8, fabric="mesh"))
    >>> coupled.peers, round(coupled.transfer.size_bytes / 1e9, 2)
    (7, 4.29)
    """

    product: Product
    collective: str
    topology: Topology
    size_bytes: float = 0.0

    def __post_init__(self) -> None:
        devices, fabric = self.topology.n_workers, self.topology.fabric
        if devices < 2 or self.topology.nodes > 1 or fabric not in _FABRICS:
            raise InvalidInputError(f"pieces go between two or more devices of one node: {', '.join(_FABRICS)}")
        known = GATHERING[:1] if fabric == "ring" else (*GATHERING, SCATTERING)
        if self.collective not in known:
            raise InvalidInputError(f"{self.collective!r} on a {fabric}: give one of {', '.join(known)}")
        if self.product.m < devices**2:
            raise InvalidInputError(f"{self.product.m} rows: pieces for {devices} devices need {devices**2} or more")
        whole = self.product.operand_bytes[2 if self.sends else 0]
        object.__setattr__(self, "size_bytes", self.size_bytes or whole)

    @property
    def sends(self) -> bool:
        """Whether the collective sends the result."""
        return self.collective == SCATTERING

    @property
    def peers(self) -> int:
        """Other devices of the group."""
        return self.topology.n_workers - 1

    @property
    def transfer(self) -> Transfer:
        """The whole collective."""
        return Transfer(self.collective, self.size_bytes, self.topology, self.product.device)


#: So small a cost that it is none; parameters are carried over by their logarithms.
_NONE = 1e-12


@lru_cache(maxsize=4096)
def distance_factor(product: Product, calibration: KernelCalibration) -> float:
    """Return how many times as long a product takes as if its operands' rows lay close together.

    By the kernel model (`replay.costs.kernels.models`, parameter ``far``), it rises with the length of rows and with
    how many there are. A piece of a product reads rows of the whole's operands, which lie as far apart as before.

    Examples
    --------
    >>> from profilers.devices import find_device
    >>> near, far = (Product(8192, 2048, k, find_device("MI300X")) for k in (512, 131072))
    >>> from replay.costs.kernels import load_calibration
    >>> factors = [distance_factor(product, load_calibration()) for product in (near, far)]
    >>> 1 <= factors[0] < 1.02 < factors[1] < 1.2
    True
    """
    return predicted_s(product, calibration) / predicted_s(product, _without_distance(calibration))


@cache
def _without_distance(calibration: KernelCalibration) -> KernelCalibration:
    at = [parameter.name for parameter in MODELS["matmul"].parameters].index("far")
    fits = {
        key: replace(fit, values=(*fit.values[:at], _NONE, *fit.values[at + 1 :])) if key[0] == "matmul" else fit
        for key, fit in calibration.fits.items()
    }
    return replace(calibration, fits=MappingProxyType(fits))


@dataclass(frozen=True)
class Piece:
    """A product that is part of a larger one.

    Parameters
    ----------
    product : Product
        The part that is computed.
    whole : Product
        The product that it is part of: the rows of its operands are as far apart as those of the whole's.
    sums : bool
        Whether it adds to an earlier result, which it reads before it writes.
    step : int
        Step of the transfer that brings its data, or sends its result; -1 for the local shard.
    peer : int
        Peer whose piece of that step it is, and on whose stream it runs; -1 for all of them, on the first stream.
    """

    product: Product
    whole: Product
    sums: bool = False
    step: int = -1
    peer: int = -1


@dataclass(frozen=True)
class SchedulePlan:
    """A coupled product under a schedule.

    Parameters
    ----------
    coupled : CoupledProduct
        Product and collective.
    schedule : Schedule
        How both are cut and ordered.
    carrier : str
        One of `CARRIERS`. The serial schedule always has its collective on compute units.

    Raises
    ------
    NotFoundError
        There is no such carrier.

    Examples
    --------
    >>> from profilers.devices import find_device
    >>> product = Product(16384, 2048, 131072, find_device("MI300X"))
    >>> coupled = CoupledProduct(product, "all_gather", Topology(8, fabric="mesh"))
    >>> plan = SchedulePlan(coupled, SCHEDULES["hetero_fused_1d"])
    >>> [(piece.product.m, piece.step) for piece in plan.pieces][:3], plan.steps
    ([(2048, -1), (1792, 0), (1792, 1)], 8)
    """

    coupled: CoupledProduct
    schedule: Schedule
    carrier: str = "dma"

    def __post_init__(self) -> None:
        if self.carrier not in CARRIERS:
            raise NotFoundError(f"no carrier is called {self.carrier[:40]!r}; there are {', '.join(CARRIERS)}")

    @property
    def on_units(self) -> bool:
        """Whether kernels on compute units carry the bytes."""
        return self.carrier == "units" or self.schedule.transfer == "whole"

    @property
    def steps(self) -> int:
        """Steps of the transfer: one, one a peer, or one a piece of a shard."""
        return {"whole": 1, "shards": self.coupled.peers}.get(self.schedule.transfer, self.coupled.topology.n_workers)

    @cached_property
    def pieces(self) -> tuple[Piece, ...]:
        """Pieces of the product, in the order in which they are launched. Rows and depth add up to the whole's."""
        whole, n = self.coupled.product, self.coupled.topology.n_workers
        if self.schedule.transfer == "whole":
            return (Piece(whole, whole, step=0),)
        if self.schedule.shape == "2D":
            if self.coupled.sends:
                return tuple(Piece(replace(whole, n=part), whole, step=i) for i, part in _parts(whole.n, n))
            return tuple(Piece(replace(whole, k=part), whole, sums=i > 0, step=i) for i, part in _parts(whole.k, n))
        if self.schedule.order == "uniform":
            return tuple(Piece(replace(whole, m=rows), whole, step=i) for i, rows in _parts(whole.m, n))
        local = ceil(whole.m / n)
        streams = n - 1 if self.schedule.kernels == "unfused" else 1
        remote = tuple(
            Piece(replace(whole, m=rows), whole, step=i // streams, peer=i % streams if streams > 1 else -1)
            for i, rows in _parts(whole.m - local, self.steps * streams)
        )
        local_piece = Piece(replace(whole, m=local), whole)
        return (*remote, local_piece) if self.coupled.sends else (local_piece, *remote)

    @property
    def step_transfer(self) -> Transfer:
        """Transfer of one step.

        A shard goes to one peer: on a mesh over the links to it alone, on a switch or round a ring over all links of
        the device. Pieces go to all peers at once. On a mesh each has links of its own, on a switch they share one. On
        a ring each passes the devices between, and takes as many links as there are hops.

        A reduce-scatter sends as an all-to-all does: kernels add what has arrived.

        Source: arXiv 2512.10236. With P devices, S bytes in all and L bytes/s a pair, a shard takes ``(S / P) / L`` a
        step on a mesh. FiCCO's pieces take ``(S / P) / P / L``.
        """
        whole, topology, device = self.coupled.transfer, self.coupled.topology, self.coupled.product.device
        if self.schedule.transfer == "whole":
            return whole
        kind, n = "all_to_all" if self.coupled.sends else whole.kind, topology.n_workers
        if self.schedule.transfer == "shards":
            pair = Topology(2, node_devices=max(topology.node_devices, n), fabric=topology.fabric)
            return Transfer(kind, 2 * whole.size_bytes / n, pair, device)
        if topology.fabric == "ring":
            device = with_figure(device, "link_gbps", device.value("link_gbps") / ring_hops(n))
        return Transfer(kind, whole.size_bytes / n, topology, device)

    def step_columns(self, parameters: Parameters) -> dict[str, Any]:
        """Return the transfer of one step as columns of a task: a kernel, or copies to all peers at once."""
        transfer = self.step_transfer
        if self.on_units:
            return {**kernel_columns(transfer, parameters), "priority": 1}
        columns: dict[str, Any] = copy_columns(transfer, parameters)
        copies = len(columns["engine"])
        together = {name: min(columns[name] * copies, 1.0) for name in ("hbm", "l2", "footprint", "link")}
        if transfer.topology.fabric == "mesh" and copies < self.coupled.peers:
            together["link_number"] = int(peer_link(1))
        return {**columns, **together, "engine": 0, "kind": TaskKind.COLLECTIVE}

    def transfer_ns(self, parameters: Parameters) -> float:
        """Return how long all steps take alone, without the commands of copies, ns."""
        return self.steps * float(self.step_columns(parameters)["duration_ns"])


def _parts(total: int, count: int) -> Iterator[tuple[int, int]]:
    """Yield numbered sizes that differ by one at most and add up to `total`, without those of 0."""
    sizes = (total * (i + 1) // count - total * i // count for i in range(count))
    return ((i, size) for i, size in enumerate(sizes) if size)


def ring_hops(n_workers: int) -> float:
    """Return how many links, on average, lie between a device of a ring and each other one, the shorter way round.

    Examples
    --------
    >>> round(ring_hops(8), 3)
    2.286
    """
    return sum(min(i, n_workers - i) for i in range(1, n_workers)) / (n_workers - 1)


def piece_ns(piece: Piece, parameters: Parameters) -> float:
    """Return how long a piece takes alone, ns.

    It takes as long as a product of its size whose rows lie as far apart as the whole's (`distance_factor`). A piece
    that adds reads its result first, while it computes; `replay.costs.kernels` times that stream.

    Examples
    --------
    >>> from profilers.devices import find_device
    >>> from replay.costs.shipped import load_parameters
    >>> parameters = load_parameters()
    >>> whole, part = (Product(8192, 8192, k, find_device("MI300X")) for k in (8192, 256))
    >>> first, later = (piece_ns(Piece(part, whole, sums=sums), parameters) for sums in (False, True))
    >>> bool(first < later < 2 * first)
    True
    """
    product, fits = piece.product, parameters.calibration(KernelCalibration)
    apart = distance_factor(piece.whole, fits) / distance_factor(product, fits)
    alone = product_ns(product, parameters) * apart
    if not piece.sums:
        return alone
    arithmetic = min(product_ns(with_boundless_memory(product), parameters) * apart, alone)
    moving = (alone**SHARPNESS - arithmetic**SHARPNESS) ** (1 / SHARPNESS) + _stream_ns(product, 1, fits)[1]
    return float((arithmetic**SHARPNESS + moving**SHARPNESS) ** (1 / SHARPNESS))


def _stream_ns(product: Product, arrays: int, fits: KernelCalibration) -> tuple[float, float]:
    """Return how long a kernel takes that moves so many arrays of the size of the result; and without its start."""
    size = [[product.m * product.n, arrays]]
    stream = predict("elementwise", size, product.device, calibration=fits, dtype=product.dtype)
    return float(stream.seconds[0]) * 1e9, float(stream.seconds[0] - stream.start_s) * 1e9


def piece_columns(piece: Piece, parameters: Parameters) -> dict[str, float]:
    """Return a piece as columns of `replay.graph.assembly.Assembly.tasks`; a result that it reads counts as traffic.

    Examples
    --------
    >>> from profilers.devices import find_device
    >>> from replay.costs.shipped import load_parameters
    >>> product, parameters = Product(8192, 8192, 1024, find_device("MI300X")), load_parameters()
    >>> alone, adding = (piece_columns(Piece(product, product, sums=sums), parameters) for sums in (False, True))
    >>> adding["hbm"] > alone["hbm"] and adding["hit_share"] < alone["hit_share"]
    True
    """
    columns, device = product_columns(piece.product, parameters), piece.product.device
    before, after = columns["duration_ns"], piece_ns(piece, parameters)
    if not piece.sums:
        return {**columns, "duration_ns": after, "hbm": min(columns["hbm"] * before / after, 1.0)}
    read, rate = piece.product.operand_bytes[2], device.memory_bytes_per_s * parameters["memory_efficiency_mixed"]
    memory = columns["hbm"] * before * rate / 1e9
    cached = memory / (1.0 - columns["hit_share"])
    busy = piece_ns(replace(piece, sums=False), parameters) / after
    enough = min(columns["occupies"] * parameters["cu_share_saturating_memory"], columns["cu"])
    return {
        **columns,
        "duration_ns": after,
        "cu": max(columns["cu"] * busy, enough),
        "hbm": min((memory + read) / after * 1e9 / rate, 1.0),
        "hit_share": 1.0 - (memory + read) / (cached + read),
    }


def decomposition_loss(plan: SchedulePlan, parameters: Parameters) -> float:
    """Return DIL, the time of the pieces one after another, alone, over that of the whole product.

    Source: ``sum T_iso(pieces) / T_iso(whole)``, arXiv 2512.10236.
    """
    pieces_ns = sum(piece_ns(piece, parameters) for piece in plan.pieces)
    return float(pieces_ns / product_ns(plan.coupled.product, parameters))


def adding_columns(plan: SchedulePlan, share: float, parameters: Parameters) -> dict[str, float]:
    """Return the kernel that adds what all devices computed of a share of the local shard, as columns of a task.

    It reads as many arrays as there are devices and writes one, on the compute units that saturate memory.

    Parameters
    ----------
    plan : SchedulePlan
        Plan whose collective is a reduce-scatter.
    share : float
        Share of the shard.
    parameters : Parameters
        With a calibration of kernels.
    """
    whole, n = plan.coupled.product, plan.coupled.topology.n_workers
    part = replace(whole, m=max(round(whole.m / n * share), 1))
    seconds = _stream_ns(part, n + 1, parameters.calibration(KernelCalibration))[0] / 1e9
    rate = (n + 1) * part.operand_bytes[2] / seconds
    delivered = whole.device.memory_bytes_per_s * parameters["memory_efficiency_mixed"]
    demand = min(rate / delivered, 1.0)
    units = parameters["cu_share_saturating_memory"]
    columns = {"class_": CLASSES.index("elementwise"), "duration_ns": seconds * 1e9, "priority": 1}
    return {**columns, "cu": units, "occupies": units, "hbm": demand, "l2": demand, "footprint": demand}


def pattern_of(
    plan: SchedulePlan, parameters: Parameters, *, members: int = 1, budget: int = task_budget(1)
) -> SplicePattern:
    """Return the plan as a pattern: products on the kernel's stream (unfused ones on one a peer), and transfers.

    If data arrive, each product waits for the step that brings its data. If they leave, each step waits for the
    products of all members, and kernels on another stream add what has come. Products and steps also wait for those
    before them. The local shard waits for the collective's begin, at which its data are there. A step of copies is one
    task, since they all start together and take as long; their commands are written ahead, one after the other.

    Parameters
    ----------
    plan : SchedulePlan
        Coupled product and schedule.
    parameters : Parameters
        With calibrations of kernels and collectives.
    members : int
        Devices of the group that the pattern has; one stands for all.
    budget : int
        Tasks for each member. If there are more, the steps between the first and the last are joined.
    """
    writer = _ScheduleWriter(plan, parameters, PatternBuilder(members), _blocks(plan, budget))
    steps, products = writer.add_steps(), writer.add_products()
    if not plan.coupled.sends:
        writer.receive(steps, products)
    else:
        writer.send(steps, products)
        if plan.schedule.transfer != "whole":
            writer.add_sums(steps, products)
    return writer.builder.build(hardware_named(plan.coupled.product.device, "user"))


#: Marks of a pattern, and the fewest blocks of steps: the first, the last, and those between.
_MARKS, _FEWEST_BLOCKS = 5, 3


def _blocks(plan: SchedulePlan, budget: int) -> Ints:
    """Return the block of each step; the steps of a block are one task, and so are their products."""
    adding = plan.steps if plan.coupled.sends else 0
    limit = max(int((budget - _MARKS) * plan.steps / (len(plan.pieces) + plan.steps + adding)), _FEWEST_BLOCKS)
    if plan.steps <= limit:
        return np.arange(plan.steps)
    return np.array([0, *(1 + np.arange(plan.steps - 2) * (limit - 2) // (plan.steps - 2)), limit - 1])


#: Products of a plan, shape (members,), by block of steps (-1: the local shard) and peer (-1: all of them).
_Products = dict[tuple[int, int], Ints]
_LOCAL = (-1, -1)


@dataclass
class _ScheduleWriter:
    """Writes the tasks and edges of a plan into a pattern."""

    plan: SchedulePlan
    parameters: Parameters
    builder: PatternBuilder
    blocks: Ints

    def add_steps(self) -> list[Ints]:
        """Add the transfers; return the tasks of each block of steps, shape (members,)."""
        columns, builder = self.plan.step_columns(self.parameters), self.builder
        steps: list[Ints] = []
        ready = builder.mark(LATE, COLLECTIVE_STREAM)
        builder.edges(builder.collective_begin, ready)
        pairs, written = self.plan.step_transfer.topology.n_workers - 1, 0
        command_ns = 0.0 if self.plan.on_units else self.parameters["dma_command_ns"]
        for count in np.bincount(self.blocks).tolist():  # as many as there are devices, at most
            several = {key: columns[key] * count for key in ("duration_ns", "bytes")}
            lanes, name = builder.lanes(COLLECTIVE_STREAM), f"{self.plan.step_transfer.kind} step"
            rows = builder.tasks(name, lanes, {**columns, **several}, scale="transfer")
            # The first step of a block begins when its commands are written; those of later ones are written meanwhile.
            builder.edges(ready, rows, lag_ns=(written + pairs) * command_ns)
            written += count * pairs
            if steps:
                builder.edges(steps[-1], rows)
            steps.append(rows)
        builder.edges(steps[-1], builder.collective_end)
        return steps

    def add_products(self) -> _Products:
        """Add the products, on their streams."""
        grouped: dict[tuple[int, int], list[Piece]] = defaultdict(list)
        for piece in self.plan.pieces:  # at most P squared of them
            grouped[int(self.blocks[piece.step]) if piece.step >= 0 else -1, piece.peer].append(piece)
        alike = {(piece.product, piece.sums): piece for piece in self.plan.pieces}
        columns = {key: piece_columns(piece, self.parameters) for key, piece in alike.items()}
        products: _Products = {}
        last: dict[int, Ints] = {}
        for key, pieces in grouped.items():
            stream = KERNEL_STREAM if key[1] <= 0 else COLLECTIVE_STREAM + key[1]
            several = [columns[piece.product, piece.sums] for piece in pieces]
            joined = {**several[0], "duration_ns": sum(each["duration_ns"] for each in several)}
            products[key] = self.builder.tasks("product", self.builder.lanes(stream), joined, scale="kernel")
            self.builder.edges(last.get(stream, self.builder.kernel_begin), products[key])
            last[stream] = products[key]
        for rows in last.values():
            self.builder.edges(rows, self.builder.kernel_end)
        return products

    def receive(self, steps: list[Ints], products: _Products) -> None:
        """Let products wait for the steps that bring their data."""
        for (block, _), rows in products.items():
            self.builder.edges(self.builder.collective_begin if block < 0 else steps[block], rows)

    def send(self, steps: list[Ints], products: _Products) -> None:
        """Let steps wait for the products of all members, which meet at a mark: that takes fewer edges than pairs."""
        first_lane = self.builder.lanes(COLLECTIVE_STREAM)[:1]
        for block, step in enumerate(steps):
            of_step = [rows for (of_block, _), rows in products.items() if of_block == block]
            if not of_step:  # a result of fewer columns than steps
                continue
            computed = np.concatenate(of_step)
            if self.builder.members > 1:
                meeting = self.builder.tasks("all members computed", first_lane, {"kind": int(TaskKind.MARK)})
                self.builder.edges(computed, meeting)
                computed = meeting
            self.builder.edges(computed, step)

    def add_sums(self, steps: list[Ints], products: _Products) -> None:
        """Add the kernels that add what the steps have brought to the local product."""
        lanes = self.builder.lanes(COLLECTIVE_STREAM + self.plan.coupled.peers + 1)
        last = self.builder.collective_begin
        for block, count in enumerate(np.bincount(self.blocks).tolist()):
            columns = adding_columns(self.plan, count / self.plan.steps, self.parameters)
            rows = self.builder.tasks("add", lanes, columns, scale="transfer")
            for before in (last, steps[block], products.get(_LOCAL, products.get((block, -1), last))):
                self.builder.edges(before, rows)
            last = rows
        self.builder.edges(last, self.builder.collective_end)
