"""FiCCO: a product and the transfer that it waits for, cut into pieces (arXiv 2512.10236).

A `Schedule` says how product and transfer are cut and ordered. A `Scenario` is a product whose left operand is gathered
from, or exchanged with, all devices. Pieces cost more than the whole: rows of their operands lie as far apart as before
(`distance_factor`), and each fills fewer waves. `run_schedule` simulates a scenario and returns what cutting costs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType

import msgspec
import numpy as np

from profilers.devices.catalogue import Device
from profilers.errors import InvalidInputError, NotFoundError
from profilers.files import read_toml, typed_tables
from profilers.trace.arrays import Bools, Ints, union_length
from replay.calibration.parameters import Parameters
from replay.costs.collectives import Topology
from replay.costs.kernels import predict
from replay.costs.kernels.models import MODELS
from replay.costs.kernels.predictor import KernelCalibration
from replay.costs.products import (
    SHARPNESS,
    HardwareTable,
    Product,
    Transfer,
    add_copies,
    kernel_columns,
    predicted_s,
    product_columns,
    product_ns,
    read_hardware,
    with_boundless_memory,
    with_figure,
)
from replay.engine.timeline import Timeline, replay
from replay.graph.assembly import Assembly
from replay.graph.graph import KernelGraph, SharingPolicy, TaskKind, hardware_named
from replay.workloads.architecture import LARGEST, checked_size, read_or_shipped


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
        Shape of a piece: ``"1D"`` (whole rows of the left operand), or ``"2D"`` (a block: a shard's rows, and part of
        the depth).
    order : str
        ``"uniform"`` (a step takes its piece of each shard, the local one too), or ``"heterogeneous"`` (the whole
        local shard first).
    kernels : str
        Kernels of a step: ``"fused"`` (one for all peers' pieces), or ``"unfused"`` (one for each, on a stream of its
        own).
    """

    name: str
    transfer: str = "pieces"
    shape: str = "1D"
    order: str = "uniform"
    kernels: str = "fused"


#: By name: two baselines, then those that the paper studies.
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
#: Those of arXiv 2512.10236.
STUDIED = tuple(name for name, one in SCHEDULES.items() if one.transfer == "pieces")
#: What the chooser chooses from.
CANDIDATES = ("serial", *STUDIED)


def find_schedule(name: str) -> Schedule:
    """Return a schedule by name.

    Raises
    ------
    NotFoundError
        There is no schedule of that name; the message lists them.

    Examples
    --------
    >>> find_schedule("uniform_fused_2d").shape
    '2D'
    """
    if name not in SCHEDULES:
        raise NotFoundError(f"no schedule is called {name[:40]!r}; there are {', '.join(SCHEDULES)}")
    return SCHEDULES[name]


#: Collectives that a product can wait for.
COLLECTIVES = ("all_gather", "all_to_all")
_FABRICS = ("mesh", "switch", "ring")


class GatheringTable(HardwareTable, frozen=True, forbid_unknown_fields=True):
    """The devices of a file of scenarios, and the collective that their products wait for."""

    dtype: str
    collective: str


class SizesTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The sizes of a scenario's product in a file of scenarios."""

    m: int
    n: int
    k: int
    source: str


@dataclass(frozen=True)
class Scenario:
    """A product of m x k by k x n over P devices, each with m / P rows of the left operand, n / P columns of the right.

    Each device gathers the left operand, or receives as many rows of its own in an all-to-all, and multiplies it with
    its columns.

    Parameters
    ----------
    name : str
        Name of the scenario.
    m, n, k : int
        Sizes of the whole product; m a multiple of P squared, n and k of P.
    device : Device
        Device of every worker.
    topology : Topology
        A mesh, a switch or a ring of one node.
    dtype : str
        Data type of the product, one of `profilers.devices.DTYPES`.
    collective : str
        One of `COLLECTIVES`; on a ring ``"all_gather"``.

    Raises
    ------
    InvalidInputError
        A size is not the multiple that pieces need, or there is no such collective or fabric here.
    """

    name: str
    m: int
    n: int
    k: int
    device: Device
    topology: Topology
    dtype: str = "bf16"
    collective: str = "all_gather"

    def __post_init__(self) -> None:
        peers = self.topology.n_workers
        if peers < 2 or self.topology.nodes > 1 or self.topology.fabric not in _FABRICS:
            raise InvalidInputError(f"a scenario is of two or more devices of one node: {', '.join(_FABRICS)}")
        if self.collective not in COLLECTIVES or (self.topology.fabric, self.collective) == ("ring", "all_to_all"):
            raise InvalidInputError(
                f"{self.collective!r} on a {self.topology.fabric}; give one of {', '.join(COLLECTIVES)}, on a ring an "
                "all_gather"
            )
        for size, value, of in (("m", self.m, peers**2), ("n", self.n, peers), ("k", self.k, peers)):
            if checked_size(size, value, LARGEST) % of:
                raise InvalidInputError(f"{size} = {value}: pieces for {peers} devices need a multiple of {of}")

    @property
    def peers(self) -> int:
        """Other devices."""
        return self.topology.n_workers - 1

    @property
    def product(self) -> Product:
        """Product of one device."""
        return Product(self.m, self.n // self.topology.n_workers, self.k, self.device, self.dtype)

    @property
    def transfer(self) -> Transfer:
        """The collective that the product waits for."""
        return Transfer(self.collective, self.product.operand_bytes[0], self.topology, self.device)


def load_scenarios(path: str | Path | None = None) -> Mapping[str, Scenario]:
    """Read scenarios from a TOML file in the layout of `datasets/workloads/ficco.toml`, by default that one.

    Raises
    ------
    NotFoundError, InvalidInputError
        There is no such file; or it is no such file: the entry and the key are named.

    Examples
    --------
    >>> scenario = load_scenarios()["g1"]
    >>> scenario.product.n, round(scenario.transfer.size_bytes / 1e9, 2)
    (2048, 4.29)
    """
    return read_or_shipped(_read, path, "workloads/ficco.toml")


def _read(file: Path) -> Mapping[str, Scenario]:
    content = read_toml(file, "scenarios")
    table, device, topology = read_hardware(content, GatheringTable, file)
    scenarios = {}
    for name, size in typed_tables(content, "scenarios", SizesTable, file).items():
        try:
            sizes = (size.m, size.n, size.k)
            scenarios[name] = Scenario(name, *sizes, device, topology, table.dtype, table.collective)
        except InvalidInputError as error:
            raise InvalidInputError(f"{file}: scenarios.{name}: {error}") from error
    return MappingProxyType(scenarios)


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
        Where its operands lie: their rows are as far apart as those of the whole's.
    sums : bool
        Whether it adds to an earlier result, which it reads before it writes.
    step : int
        Step of the transfer that it waits for; -1 for data that are local from the start.
    peer : int
        Whose piece of that step it waits for, and on whose stream it runs; -1 for all of them, on the first stream.
    """

    product: Product
    whole: Product
    sums: bool = False
    step: int = -1
    peer: int = -1


def pieces_of(scenario: Scenario, schedule: Schedule) -> tuple[Piece, ...]:
    """Return the products of a schedule in the order in which they are launched.

    Examples
    --------
    >>> from replay.studies.ficco import find_schedule
    >>> from replay.studies.ficco import load_scenarios
    >>> scenario = load_scenarios()["g1"]
    >>> [(piece.product.m, piece.step) for piece in pieces_of(scenario, find_schedule("hetero_fused_1d"))][:3]
    [(2048, -1), (1792, 0), (1792, 1)]
    """
    whole, n = scenario.product, scenario.topology.n_workers
    if schedule.transfer == "whole":
        return (Piece(whole, whole, step=0),)
    local, fine = replace(whole, m=whole.m // n), replace(whole, m=whole.m // n**2)
    if schedule.transfer == "shards":
        return (Piece(local, whole), *(Piece(local, whole, step=i) for i in range(n - 1)))
    if schedule.shape == "2D":
        deep = replace(whole, k=whole.k // n)
        return tuple(Piece(deep, whole, sums=i > 0, step=i) for i in range(n))
    if schedule.order == "uniform":
        return tuple(Piece(local, whole, step=i) for i in range(n))
    if schedule.kernels == "unfused":
        pairs = ((i, peer) for i in range(n) for peer in range(n - 1))
        return (Piece(local, whole), *(Piece(fine, whole, step=i, peer=peer) for i, peer in pairs))
    remote = replace(whole, m=fine.m * (n - 1))
    return (Piece(local, whole), *(Piece(remote, whole, step=i) for i in range(n)))


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
    stream = predict("elementwise", [[product.m * product.n, 1]], product.device, calibration=fits, dtype=product.dtype)
    result_ns = float(stream.seconds[0] - stream.start_s) * 1e9
    moving = (alone**SHARPNESS - arithmetic**SHARPNESS) ** (1 / SHARPNESS) + result_ns
    return float((arithmetic**SHARPNESS + moving**SHARPNESS) ** (1 / SHARPNESS))


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
        return {**columns, "duration_ns": after, "hbm": columns["hbm"] * before / after}
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


def decomposition_loss(scenario: Scenario, schedule: Schedule, parameters: Parameters) -> float:
    """Return DIL, the time of the pieces one after another, alone, over that of the whole product.

    Source: ``sum T_iso(pieces) / T_iso(whole)``, arXiv 2512.10236.

    Examples
    --------
    >>> from replay.costs.shipped import load_parameters
    >>> scenario = load_scenarios()["g3"]
    >>> fused, unfused = (find_schedule(f"hetero_{name}_1d") for name in ("fused", "unfused"))
    >>> losses = [decomposition_loss(scenario, schedule, load_parameters()) for schedule in (fused, unfused)]
    >>> bool(1 < losses[0] < losses[1])
    True
    """
    pieces = pieces_of(scenario, schedule)
    alike = {(piece.product, piece.sums): piece for piece in pieces}
    times = {key: piece_ns(piece, parameters) for key, piece in alike.items()}
    return sum(times[piece.product, piece.sums] for piece in pieces) / product_ns(scenario.product, parameters)


def steps_of(scenario: Scenario, schedule: Schedule) -> int:
    """Return the number of steps in which a schedule's data arrive: one, one a peer, or one a piece of a shard.

    Examples
    --------
    >>> from replay.studies.ficco import find_schedule
    >>> from replay.studies.ficco import load_scenarios
    >>> scenario = load_scenarios()["g1"]
    >>> [steps_of(scenario, find_schedule(name)) for name in ("serial", "shards", "uniform_fused_2d")]
    [1, 7, 8]
    """
    return {"whole": 1, "shards": scenario.peers}.get(schedule.transfer, scenario.topology.n_workers)


def step_transfer(scenario: Scenario, schedule: Schedule) -> Transfer:
    """Return the transfer of one step.

    A shard goes to one peer: on a mesh over the links to it alone, on a switch or round a ring over all links of the
    device. Pieces go to all peers at once. On a mesh each has links of its own, on a switch they share one. On a ring
    each passes the devices between, and takes as many links as there are hops.

    Source: arXiv 2512.10236. With P devices, S bytes in all and L bytes/s a pair, a shard takes ``(S / P) / L`` a step
    on a mesh. FiCCO's pieces take ``(S / P) / P / L``.

    Examples
    --------
    >>> from replay.studies.ficco import find_schedule
    >>> from replay.studies.ficco import load_scenarios
    >>> scenario = load_scenarios()["g1"]
    >>> shards, pieces = (step_transfer(scenario, find_schedule(name)) for name in ("shards", "uniform_fused_1d"))
    >>> round(shards.sent_bytes / 2**20), round(pieces.sent_bytes / 2**20)
    (512, 448)
    """
    whole, topology = scenario.transfer, scenario.topology
    n = topology.n_workers
    if schedule.transfer == "whole":
        return whole
    if schedule.transfer == "shards":
        pair = Topology(2, node_devices=max(topology.node_devices, n), fabric=topology.fabric)
        return Transfer(whole.kind, 2 * whole.size_bytes / n, pair, whole.device)
    device = whole.device
    if topology.fabric == "ring":
        device = with_figure(device, "link_gbps", device.value("link_gbps") / ring_hops(n))
    return Transfer(whole.kind, whole.size_bytes / n, topology, device)


def ring_hops(n_workers: int) -> float:
    """Return how many links, on average, lie between a device of a ring and each other one, the shorter way round.

    Examples
    --------
    >>> round(ring_hops(8), 3)
    2.286
    """
    return sum(min(i, n_workers - i) for i in range(1, n_workers)) / (n_workers - 1)


#: Carriers of the bytes: copies of DMA engines, or a kernel on compute units.
CARRIERS = ("dma", "units")
_PRODUCT = "product"


@dataclass(frozen=True)
class Outcome:
    """Result of a scenario under a schedule.

    Parameters
    ----------
    scenario : Scenario
        Scenario that was simulated.
    schedule : Schedule
        Schedule that it ran under.
    product_ns, transfer_ns : float
        Whole and alone, the transfer as a kernel on compute units.
    decomposition_loss : float
        DIL, ``sum T_iso(pieces) / T_iso(whole)``.
    timeline : Timeline
        Timeline of one device; all do the same at the same time.

    Notes
    -----
    ``S = (Tg + Tc) / T``, ``S_ideal = (Tg + Tc) / max(Tg, Tc)`` (arXiv 2512.10236, 2412.14335).
    """

    scenario: Scenario
    schedule: Schedule
    product_ns: float
    transfer_ns: float
    decomposition_loss: float
    timeline: Timeline

    @property
    def serial_ns(self) -> float:
        """The collective on compute units, then the product."""
        return self.product_ns + self.transfer_ns

    @property
    def speedup(self) -> float:
        """Over one after the other."""
        return self.serial_ns / self.timeline.makespan_ns

    @property
    def ideal(self) -> float:
        """The speed-up if the shorter were hidden at no cost."""
        return self.serial_ns / max(self.product_ns, self.transfer_ns)

    @cached_property
    def contention_loss(self) -> float:
        """CIL: how long products were active, over that if transfers used nothing but time.

        For products that run one after another that is ``sum T_overlapped / sum T_iso``.
        """
        products = _is_product(self.timeline.graph)
        return _active_ns(self.timeline, products) / _active_ns(
            _without_demands(self.timeline.graph, ~products), products
        )

    @cached_property
    def transfers_alone_ns(self) -> float:
        """When the last transfer is done if products used nothing."""
        products = _is_product(self.timeline.graph)
        quiet = _without_demands(self.timeline.graph, products)
        return float(quiet.end_ns[~products].max())


def run_schedule(
    scenario: Scenario, schedule: str | Schedule, parameters: Parameters, *, carrier: str = "dma"
) -> Outcome:
    """Simulate a scenario under a schedule, on one of its devices: all do the same at the same time.

    Parameters
    ----------
    scenario : Scenario
        Product and transfer to simulate.
    schedule : str or Schedule
        One of `replay.studies.ficco.SCHEDULES`, or its name. The serial one always has its collective on
        compute units.
    parameters : Parameters
        With calibrations of kernels and collectives.
    carrier : str
        One of `CARRIERS`.

    Raises
    ------
    NotFoundError, InvalidInputError
        There is no such schedule or carrier.

    Examples
    --------
    >>> from replay.costs.shipped import load_parameters
    >>> scenario, parameters = load_scenarios()["g11"], load_parameters()
    >>> serial, fine = (run_schedule(scenario, name, parameters) for name in ("serial", "hetero_fused_1d"))
    >>> round(serial.speedup, 9), bool(1.3 < fine.speedup < fine.ideal)
    (1.0, True)
    """
    chosen = find_schedule(schedule) if isinstance(schedule, str) else schedule
    return Outcome(
        scenario,
        chosen,
        product_ns(scenario.product, parameters),
        float(kernel_columns(scenario.transfer, parameters)["duration_ns"]),
        decomposition_loss(scenario, chosen, parameters),
        replay(graph_of(scenario, chosen, parameters, carrier=carrier)),
    )


def makespan_ns(scenario: Scenario, schedule: str, parameters: Parameters) -> float:
    """Return how long a scenario takes under a schedule, ns, its transfers on DMA engines, and nothing else.

    Examples
    --------
    >>> from replay.costs.shipped import load_parameters
    >>> scenario, parameters = load_scenarios()["g4"], load_parameters()
    >>> outcome = run_schedule(scenario, "serial", parameters)
    >>> makespan_ns(scenario, "serial", parameters) == outcome.timeline.makespan_ns
    True
    """
    return replay(graph_of(scenario, find_schedule(schedule), parameters)).makespan_ns


def best_schedule(outcomes: dict[str, Outcome]) -> str:
    """Return the name of the fastest; of equal ones, the first.

    Raises
    ------
    InvalidInputError
        There is none.
    """
    if not outcomes:
        raise InvalidInputError("no outcome to choose from; run a schedule first")
    return min(outcomes, key=lambda name: outcomes[name].timeline.makespan_ns)


def graph_of(scenario: Scenario, schedule: Schedule, parameters: Parameters, *, carrier: str = "dma") -> KernelGraph:
    """Return the graph of a scenario: products on stream 0 (unfused ones on one a peer), transfers on the last stream.

    Each product waits for the step that brings its data, and for the one before it on its stream; each step for the
    one before it. Transfers never wait for products: their data have a place in memory. Products that run one at
    a time lose whole waves where kernels that communicate take units from them; where they run side by side,
    workgroups of one fill the gaps in the waves of another.

    Parameters
    ----------
    scenario : Scenario
        Product and transfer to simulate.
    schedule : Schedule
        How product and transfer are cut and ordered.
    parameters : Parameters
        With calibrations of kernels and collectives.
    carrier : str
        One of `CARRIERS`; kernels that communicate are dispatched first.

    Raises
    ------
    InvalidInputError
        There is no such carrier.
    """
    if carrier not in CARRIERS:
        raise InvalidInputError(f"no carrier is called {carrier[:40]!r}; there are {', '.join(CARRIERS)}")
    assembly = Assembly()
    arrivals = _add_steps(assembly, scenario, schedule, (parameters, carrier))
    _add_products(assembly, pieces_of(scenario, schedule), arrivals, parameters)
    alone = schedule.kernels == "fused" and not scenario.product.memory_bound
    sharing = SharingPolicy(quantised=alone)
    return assembly.graph(hardware_named(scenario.device, "user"), sharing)


def _add_steps(assembly: Assembly, scenario: Scenario, schedule: Schedule, how: tuple[Parameters, str]) -> list[Ints]:
    """Return the tasks of each step after which its data are there."""
    parameters, carrier = how
    lane = assembly.lane(device=0, stream=scenario.topology.n_workers)
    transfer, steps = step_transfer(scenario, schedule), steps_of(scenario, schedule)
    if carrier == "units" or schedule.transfer == "whole":
        kernel = {**kernel_columns(transfer, parameters), "priority": 1}
        kernels = [assembly.tasks(transfer.kind, lane, kernel) for _ in range(steps)]
        assembly.chain(np.concatenate(kernels))
        return kernels
    added = [add_copies(assembly, lane, transfer, parameters) for _ in range(steps)]
    for (commands, copies), (next_commands, next_copies) in pairwise(added):
        # Commands are written ahead; an engine takes up its next copy when it is done with one.
        assembly.edges(commands[-1], next_commands[0])
        assembly.edges(copies, next_copies)
    return [copies for _, copies in added]


def _add_products(assembly: Assembly, pieces: tuple[Piece, ...], arrivals: list[Ints], parameters: Parameters) -> None:
    alike = {(piece.product, piece.sums): piece for piece in pieces}
    columns = {key: piece_columns(piece, parameters) for key, piece in alike.items()}
    last: dict[int, Ints] = {}
    for piece in pieces:  # at most P squared of them
        stream = max(piece.peer, 0)
        task = assembly.tasks(_PRODUCT, assembly.lane(device=0, stream=stream), columns[piece.product, piece.sums])
        if piece.step >= 0:
            came = arrivals[piece.step]
            assembly.edges(came[[piece.peer]] if piece.peer >= 0 and len(came) > 1 else came, task)
        if stream in last:
            assembly.edges(last[stream], task)
        last[stream] = task


def _is_product(graph: KernelGraph) -> Bools:
    return np.asarray(graph.tasks.kind == TaskKind.KERNEL, dtype=np.bool_)


def _without_demands(graph: KernelGraph, rows: Bools) -> Timeline:
    """Run a graph in which some tasks take their time and nothing else."""
    tasks = graph.tasks
    return replay(
        graph.with_tasks(
            demand=np.where(rows[:, None], 0.0, tasks.demand),
            occupies=np.where(rows, 0.0, tasks.occupies),
            pressure=np.where(rows, 0.0, tasks.pressure),
            footprint=np.where(rows, 0.0, tasks.footprint),
        )
    )


def _active_ns(timeline: Timeline, rows: Bools) -> float:
    return float(union_length(timeline.start_ns[rows], timeline.end_ns[rows]))
