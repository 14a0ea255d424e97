"""Concurrent computation and communication: scenarios of C3 and ConCCL, their simulation, and their figures.

A scenario is a matrix product and a collective that run side by side (arXiv 2412.14335). `run_scenario` simulates it
under a policy and returns the share of the ideal speed-up. `reproduce` returns our figure for each published one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, TypeVar

import msgspec
import numpy as np

from profilers.devices.catalogue import Device
from profilers.errors import InvalidInputError
from profilers.files import read_toml, typed_tables
from replay.calibration.parameters import Parameters
from replay.costs.collectives import Topology
from replay.costs.products import (
    HardwareTable,
    Product,
    Transfer,
    add_copies,
    kernel_columns,
    kernel_units,
    product_columns,
    product_ns,
    read_hardware,
)
from replay.engine.engine import simulate
from replay.engine.timeline import Timeline, replay
from replay.graph.assembly import Assembly
from replay.graph.graph import KernelGraph, SharingPolicy, hardware_named
from replay.what_ifs.c3 import PARTITIONS, POLICIES, Policy, find_policy
from replay.workloads.architecture import LARGEST, read_or_shipped

Table = TypeVar("Table", bound=msgspec.Struct)
Size = Annotated[int, msgspec.Meta(ge=1, le=LARGEST)]
#: Parts of a model whose weights sharded training gathers at once.
WEIGHTS = ("projection", "attention", "matrix", "feedforward", "layer")
_ELEMENT_BYTES = 2


class ModelTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The sizes of a transformer's layer in a file of scenarios."""

    hidden: Size
    key_value: Size
    feedforward: Size
    matrices: Size
    source: str


class ProductTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A matrix product of a file of scenarios: tokens through the first feedforward matrix of a model."""

    model: str
    tokens: Size
    source: str


class ScenarioTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A scenario of a file: a product, and the collective of a model's weights."""

    product: str
    collective: str
    model: str
    weights: str
    ratio: float


@dataclass(frozen=True)
class Scenario:
    """A product and a transfer that need not wait for each other.

    Parameters
    ----------
    name : str
        Name of the scenario.
    product : Product
        Matrix product on the compute units.
    transfer : Transfer
        Collective that runs beside it.
    """

    name: str
    product: Product
    transfer: Transfer


def weight_bytes(model: ModelTable, weights: str) -> int:
    """Return the size of one of `WEIGHTS` in bf16.

    Examples
    --------
    >>> weight_bytes(ModelTable(hidden=4, key_value=2, feedforward=8, matrices=3, source=""), "layer")
    288
    """
    hidden, wide = model.hidden, model.feedforward
    attention, matrix = 2 * hidden * (hidden + model.key_value), hidden * wide
    elements = {
        "projection": hidden * hidden,
        "attention": attention,
        "matrix": matrix,
        "feedforward": model.matrices * matrix,
        "layer": attention + model.matrices * matrix,
    }
    return _ELEMENT_BYTES * elements[weights]


def load_scenarios(path: str | Path | None = None) -> Mapping[str, Scenario]:
    """Read scenarios from a TOML file in the layout of `datasets/workloads/c3.toml`, by default that one.

    Raises
    ------
    NotFoundError, InvalidInputError
        There is no such file; or it is no such file: the entry and the key are named.

    Examples
    --------
    >>> scenario = load_scenarios()["cb1_all_gather_half"]
    >>> scenario.product.n, round(scenario.transfer.size_bytes / 1e6)
    (57344, 1208)
    """
    return read_or_shipped(_read, path, "workloads/c3.toml")


def _read(file: Path) -> Mapping[str, Scenario]:
    content = read_toml(file, "scenarios")
    _, device, topology = read_hardware(content, HardwareTable, file)
    models = typed_tables(content, "models", ModelTable, file)
    products = typed_tables(content, "products", ProductTable, file)
    tables = typed_tables(content, "scenarios", ScenarioTable, file)
    scenarios = {}
    for name, table in tables.items():
        try:
            product = _named(products, "products", table.product)
            shape, gathered = _named(models, "models", product.model), _named(models, "models", table.model)
            if table.weights not in WEIGHTS:
                raise InvalidInputError(f"no weights are called {table.weights!r}; there are {', '.join(WEIGHTS)}")
            # A gate's matrix and the one that it gates are multiplied at once.
            columns = shape.feedforward * (2 if shape.matrices == 3 else 1)
            scenarios[name] = Scenario(
                name,
                Product(product.tokens, columns, shape.hidden, device),
                Transfer(table.collective, float(weight_bytes(gathered, table.weights)), topology, device),
            )
        except InvalidInputError as error:
            raise InvalidInputError(f"{file}: scenarios.{name}: {error}") from error
    return MappingProxyType(scenarios)


def _named(tables: Mapping[str, Table], kind: str, name: str) -> Table:
    if name not in tables:
        raise InvalidInputError(f"no {kind}.{name}; there are {', '.join(tables)}")
    return tables[name]


@dataclass(frozen=True)
class Outcome:
    """Result of a scenario under a policy.

    Parameters
    ----------
    scenario : Scenario
        Scenario that was simulated.
    policy : Policy
        Policy that it ran under.
    units : int
        Compute units that were set apart for the collective; 0 for none.
    alone_ns : (float, float)
        The product and the transfer, each alone and on compute units.
    timelines : tuple of Timeline
        Both together, once for each order of dispatch that the policy leaves open.
    chances : tuple of float
        Chance of each of them; 1 together.

    Notes
    -----
    ``S = (Tg + Tc) / T``, ``S_ideal = (Tg + Tc) / max(Tg, Tc)``, ``% of ideal = 100 (S - 1) / (S_ideal - 1)``
    (arXiv 2412.14335). T is the mean over the orders of dispatch.
    """

    scenario: Scenario
    policy: Policy
    units: int
    alone_ns: tuple[float, float]
    timelines: tuple[Timeline, ...]
    chances: tuple[float, ...]

    @property
    def concurrent_ns(self) -> float:
        """Until both are done, when they start together."""
        return sum(chance * line.makespan_ns for chance, line in zip(self.chances, self.timelines, strict=True))

    @property
    def speedup(self) -> float:
        """Over one after the other."""
        return sum(self.alone_ns) / self.concurrent_ns

    @property
    def ideal(self) -> float:
        """The speed-up if the shorter were hidden at no cost."""
        return sum(self.alone_ns) / max(self.alone_ns)

    @property
    def percent_of_ideal(self) -> float:
        """Share of the ideal gain that was reached, %."""
        return 100.0 * (self.speedup - 1.0) / (self.ideal - 1.0)


def run_scenario(
    scenario: Scenario, policy: str | Policy, parameters: Parameters, *, units: int | None = None
) -> Outcome:
    """Simulate a scenario under a policy, on one of its devices: all do the same at the same time.

    Where the order of dispatch is open, the collective comes first with `collective_first_chance`.

    Parameters
    ----------
    scenario : Scenario
        Product and transfer to simulate.
    policy : str or Policy
        One of `replay.what_ifs.c3.POLICIES`, or its name.
    parameters : Parameters
        With calibrations of kernels and collectives.
    units : int, optional
        Compute units to set apart for the collective, where the policy sets some apart; by default as the run-time
        chooses (`chosen_units`).

    Raises
    ------
    NotFoundError, InvalidInputError
        There is no such policy; the units leave the product or the collective none.

    Examples
    --------
    >>> from replay.costs.shipped import load_parameters
    >>> scenario = load_scenarios()["cb1_all_gather_same"]
    >>> first, dma = (run_scenario(scenario, name, load_parameters()) for name in ("c3_sp", "conccl"))
    >>> 1 < first.speedup < dma.speedup < dma.ideal
    True
    """
    chosen = find_policy(policy) if isinstance(policy, str) else policy
    apart = 0
    chances = {chosen.order: 1.0}
    if chosen.partition == "chosen":
        apart = chosen_units(scenario, parameters) if units is None else units
    if chosen.order == "either" and chosen.carrier == "units" and not apart:
        first = parameters["collective_first_chance"]
        chances = {"product": 1.0 - first, "transfer": first}
    graphs = (graph_of(scenario, replace(chosen, order=order), parameters, units=apart) for order in chances)
    alone = (product_ns(scenario.product, parameters), kernel_columns(scenario.transfer, parameters)["duration_ns"])
    return Outcome(scenario, chosen, apart, alone, tuple(replay(graph) for graph in graphs), tuple(chances.values()))


def chosen_units(scenario: Scenario, parameters: Parameters) -> int:
    """Return how many compute units the run-time sets apart for the collective.

    ``argmin_k max(Tg slow_g(N - k), Tc slow_c(k))`` over `PARTITIONS`: a product takes more waves on fewer units, a
    collective slows in proportion below the units that saturate its links.

    Examples
    --------
    >>> from replay.costs.shipped import load_parameters
    >>> chosen_units(load_scenarios()["cb1_all_gather_twice"], load_parameters())
    32
    """
    product, transfer = scenario.product, scenario.transfer
    alone, enough = float(kernel_columns(transfer, parameters)["duration_ns"]), kernel_units(transfer.kind, parameters)
    return min(
        PARTITIONS,
        key=lambda k: (
            max(product_ns(replace(product, units=product.units - k), parameters), alone * max(enough / k, 1.0)),
            k,
        ),
    )


def graph_of(scenario: Scenario, policy: Policy, parameters: Parameters, *, units: int = 0) -> KernelGraph:
    """Return the graph of a scenario: the product on stream 0, the collective on stream 1, both ready at once.

    Parameters
    ----------
    scenario : Scenario
        Product and transfer to simulate.
    policy : Policy
        Order, partition and carrier of the transfer.
    parameters : Parameters
        With calibrations of kernels and collectives.
    units : int
        Set apart for the collective; 0 for no partition.

    Raises
    ------
    InvalidInputError
        The units leave the product or the collective none.

    Notes
    -----
    Both tasks are ready at once. The one that the policy dispatches first takes all units that it can use; an open
    order counts as the product first. On fewer units a compute-bound product loses whole waves. A memory-bound product
    loses in proportion to the units that it lacks.
    """
    device = scenario.product.device
    whole = device.compute_units
    if not 0 <= units < whole:
        raise InvalidInputError(f"{units} compute units set apart of {whole}; leave the product one at least")
    product = scenario.product
    spared = policy.spared if product.memory_bound else 0
    if units or spared:
        product = replace(product, units=whole - max(units, spared))
    transfer, assembly = scenario.transfer, Assembly()
    lanes = [assembly.lane(device=0, stream=stream) for stream in (0, 1)]
    compute = {**product_columns(product, parameters), "cu_mask": 1 if units else -1}
    kernel = {**kernel_columns(transfer, parameters), "cu_mask": 2 if units else -1}
    fewest = kernel_units(transfer.kind, parameters) < product.workgroups
    transfer_first = policy.order == "transfer" or (policy.order == "fewest workgroups" and fewest)
    for side in ("transfer", "product") if transfer_first else ("product", "transfer"):
        if side == "product":
            assembly.tasks("product", lanes[0], compute)
        elif policy.carrier == "dma":
            add_copies(assembly, lanes[1], transfer, parameters)
        else:
            assembly.tasks(transfer.kind, lanes[1], kernel)
    parts = ((whole - units) / whole, units / whole) if units else (1.0,)
    sharing = SharingPolicy(partitions=parts, quantised=not product.memory_bound)
    return assembly.graph(hardware_named(device, "user"), sharing)


#: Which policy has the lower average: in the abstract; and by all averages that are known.
_ABSTRACT = (("c3_base", "c3_sp"), ("c3_sp", "conccl_rp"))
_ALL = (
    ("c3_base", "c3_sp"),
    ("c3_base", "c3_rp"),
    ("c3_sp", "conccl"),
    ("c3_rp", "conccl"),
    ("conccl", "conccl_rp"),
)
_COPIES = {"1kb": 2**10, "64kb": 2**16, "1mb": 2**20, "4mb": 2**22, "16mb": 2**24}
#: Of the products that transfers are as long as, to find the crossover: rows and columns, and steps of the depth.
_SIDE, _DEPTH, _STEPS = 8192, 64, 96


def sweep(scenarios: Mapping[str, Scenario], parameters: Parameters) -> dict[str, dict[str, Outcome]]:
    """Simulate every scenario under every policy; return outcomes by scenario and policy.

    Examples
    --------
    >>> from replay.costs.shipped import load_parameters
    >>> outcomes = sweep(load_scenarios(), load_parameters())
    >>> len(outcomes), list(outcomes["cb1_all_gather_same"])[0]
    (30, 'c3_product_first')
    """
    return {
        name: {policy: run_scenario(scenario, policy, parameters) for policy in POLICIES}
        for name, scenario in scenarios.items()
    }


def reproduce(parameters: Parameters, scenarios: Mapping[str, Scenario]) -> dict[str, float]:
    """Return our figure for every name in `datasets/published/c3.toml`.

    Parameters
    ----------
    parameters : Parameters
        With calibrations of kernels and collectives.
    scenarios : mapping of str to Scenario
        The published scenarios, by name.

    Examples
    --------
    >>> from replay.costs.shipped import load_parameters
    >>> figures = reproduce(load_parameters(), load_scenarios())
    >>> figures["c3_base"] < figures["c3_sp"] < figures["conccl_rp"]
    True
    """
    outcomes = list(sweep(scenarios, parameters).values())
    first = next(iter(scenarios.values()))
    means = {policy: float(np.mean([each[policy].percent_of_ideal for each in outcomes])) for policy in POLICIES}
    products = dict.fromkeys(scenario.product for scenario in scenarios.values())
    compute = [product for product in products if not product.memory_bound]
    spared = {p: replace(p, units=p.units - 8) for p in products if p.memory_bound}
    slowdowns = {k: [slowdown_by_units(product, k, parameters) for product in compute] for k in (32, 64)}
    gains = [1 - product_ns(fewer, parameters) / product_ns(whole, parameters) for whole, fewer in spared.items()]
    return {
        **{name: means[name] for name in POLICIES if name != "c3_product_first"},
        "best_speedup": max(outcome.speedup for each in outcomes for outcome in each.values()),
        "order_abstract": float(sum(means[low] < means[high] for low, high in _ABSTRACT)),
        "order_all": float(sum(means[low] < means[high] for low, high in _ALL)),
        "sp_rp_over_sp": means["c3_sp_rp"] - means["c3_sp"],
        **{f"cb_loss_{k}": 100 * (float(np.mean(slowdown)) - 1) for k, slowdown in slowdowns.items()},
        "mb_gain_8": 100 * max(gains),
        "dma_crossover": crossover_bytes(first, parameters) / 2**20,
        **{
            f"dma_overhead_{name}": 100 * share_not_copying(size, first.product.device, parameters)
            for name, size in _COPIES.items()
        },
    }


def slowdown_by_units(product: Product, fewer: int, parameters: Parameters) -> float:
    """Return how much longer a compute-bound product takes in the engine when `fewer` units are kept from it.

    Examples
    --------
    >>> from profilers.devices import find_device
    >>> from replay.costs.shipped import load_parameters
    >>> product = Product(8192, 8192, 8192, find_device("MI300X"))
    >>> round(slowdown_by_units(product, 64, load_parameters()), 2)
    1.29
    """
    share = fewer / product.device.compute_units
    assembly = Assembly()
    assembly.tasks("product", assembly.lane(device=0), {**product_columns(product, parameters), "cu_mask": 1})
    sharing = SharingPolicy(partitions=(1 - share, share), quantised=True)
    return float(simulate(assembly.graph(policy=sharing))[1][0]) / product_ns(product, parameters)


def share_not_copying(size_bytes: float, device: Device, parameters: Parameters) -> float:
    """Return the share of one copy by a DMA engine to a peer that is its command.

    Examples
    --------
    >>> from profilers.devices import find_device
    >>> from replay.costs.shipped import load_parameters
    >>> device, parameters = find_device("MI300X"), load_parameters()
    >>> [round(share_not_copying(2.0**size, device, parameters), 3) for size in (10, 20, 24)]
    [0.708, 0.186, 0.015]
    """
    pair = Topology(2, node_devices=8, fabric="mesh")
    assembly = Assembly()
    # Of two workers, each sends half of its buffer.
    add_copies(assembly, assembly.lane(device=0), Transfer("all_to_all", 2 * size_bytes, pair, device), parameters)
    return parameters["dma_command_ns"] / float(simulate(assembly.graph())[1].max())


def crossover_bytes(model: Scenario, parameters: Parameters) -> float:
    """Return from which size on an all-gather on DMA engines beats one on compute units that is dispatched first.

    Parameters
    ----------
    model : Scenario
        Its device and topology are taken.
    parameters : Parameters
        With calibrations of kernels and collectives.

    Returns
    -------
    float
        Bytes.

    Notes
    -----
    Each is beside a compute-bound product that takes as long as it; 0 where DMA engines win beside the shortest of
    these, infinity where they lose beside the longest.
    """
    least = float("inf")
    for step in range(_STEPS, 0, -1):
        product = Product(_SIDE, _SIDE, _DEPTH * step, model.product.device)
        if product.memory_bound:
            break
        transfer = _as_long(model.transfer, product_ns(product, parameters), parameters)
        scenario = Scenario("crossover", product, transfer)
        first, dma = (run_scenario(scenario, name, parameters).concurrent_ns for name in ("c3_sp", "conccl"))
        if dma > first:
            return least
        least = transfer.size_bytes
    return 0.0


def _as_long(transfer: Transfer, target_ns: float, parameters: Parameters) -> Transfer:
    """Return a transfer whose kernel takes this long: by halving, since time grows with size."""
    low, high = 1.0, 2.0**40
    while high / low > 1.001:
        middle = (low * high) ** 0.5
        middle_ns = kernel_columns(replace(transfer, size_bytes=middle), parameters)["duration_ns"]
        low, high = (middle, high) if middle_ns < target_ns else (low, middle)
    return replace(transfer, size_bytes=low)
