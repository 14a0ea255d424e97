"""C3 and ConCCL's scenarios (arXiv 2412.14335): a matrix product and a collective that run side by side.

A row of `datasets/workloads/c3.toml` becomes a synthetic trace of the two, one after the other on a stream. What-ifs
such as ``change_stream:collectives:new+c3:sp`` put them side by side. `reproduce` returns our published figures.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
import numpy as np

from profilers.errors import InvalidInputError
from profilers.files import read_toml, typed_tables
from profilers.trace.trace import Trace
from replay.calibration.parameters import Parameters
from replay.costs.collectives import fastest, links_of
from replay.costs.products import (
    HardwareTable,
    Product,
    Transfer,
    kernel_columns,
    kernel_units,
    product_ns,
    read_hardware,
)
from replay.studies.workloads import layer_graph, layer_trace, step_ns
from replay.what_ifs import parse_what_if
from replay.workloads.architecture import LARGEST, read_or_shipped
from replay.workloads.program import Collective, KernelCall

Table = TypeVar("Table", bound=msgspec.Struct)
Size = Annotated[int, msgspec.Meta(ge=1, le=LARGEST)]
#: Rounds of workgroups that stay in step where whole waves are asked for: any number.
_WHOLE_WAVES = 1e9
#: Parts of a model whose weights sharded training gathers at once.
WEIGHTS = ("projection", "attention", "matrix", "feedforward", "layer")
#: Published names of policies.
NAMES = {"base": "c3_base", "sp": "c3_sp", "rp": "c3_rp", "sp_rp": "c3_sp_rp", "dma": "conccl", "dma_rp": "conccl_rp"}
#: Which policy has the lower average: in the abstract; and by all averages that are known.
_ABSTRACT = (("c3_base", "c3_sp"), ("c3_sp", "conccl_rp"))
_ALL = (*pairwise(("c3_base", "c3_sp", "conccl", "conccl_rp")), *pairwise(("c3_base", "c3_rp", "conccl")))
_COPIES = {"1kb": 2**10, "64kb": 2**16, "1mb": 2**20, "4mb": 2**22, "16mb": 2**24}
#: Bytes of an element of bf16, and time from one call to the next, ns.
_ELEMENT_BYTES, _CALL_NS = 2, 1_500


class C3ModelTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
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
    """A product and a collective that need not wait for each other."""

    name: str
    product: Product
    transfer: Transfer

    def alone_ns(self, parameters: Parameters) -> tuple[int, int]:
        """Return the durations of the product and of the collective alone, ns."""
        times = product_ns(self.product, parameters), kernel_columns(self.transfer, parameters)["duration_ns"]
        return round(times[0]), round(times[1])

    def trace(self, parameters: Parameters, first: str = "gemm") -> Trace:
        """Return the trace of one after the other, ``"gemm"`` or ``"collectives"`` first, on one device for all."""
        shape, transfer, (product_ns, collective_ns) = self.product, self.transfer, self.alone_ns(parameters)
        elements, ranks = round(transfer.size_bytes / _ELEMENT_BYTES), transfer.topology.n_workers
        product = KernelCall("gemm_bf16", "aten::mm", product_ns, _CALL_NS, shape=(shape.m, shape.k))
        collective = KernelCall(f"ncclDevKernel_{transfer.kind}", transfer.kind, collective_ns, _CALL_NS)
        units, exchange = kernel_units(transfer.kind, parameters), Collective(transfer.kind, elements, "all", ranks)
        calls = [
            replace(product, workgroups=shape.workgroups, operands=((shape.k, shape.n),)),
            replace(collective, workgroups=units, exchange=exchange),
        ]
        return layer_trace(self.name, shape.device, calls if first == "gemm" else calls[::-1], world_size=ranks)


def weight_bytes(model: C3ModelTable, weights: str) -> int:
    """Return the size of one of `WEIGHTS` in bf16."""
    attention, matrix = 2 * model.hidden * (model.hidden + model.key_value), model.hidden * model.feedforward
    whole = model.matrices * matrix
    elements = dict(zip(WEIGHTS, (model.hidden**2, attention, matrix, whole, attention + whole), strict=True))
    if weights not in elements:
        raise InvalidInputError(f"no weights are called {weights!r}; there are {', '.join(WEIGHTS)}")
    return _ELEMENT_BYTES * elements[weights]


def load_scenarios(path: str | Path | None = None) -> Mapping[str, Scenario]:
    """Read scenarios from a TOML file in the layout of `datasets/workloads/c3.toml`, by default that one."""
    return read_or_shipped(_read, path, "workloads/c3.toml")


def _read(file: Path) -> Mapping[str, Scenario]:
    content = read_toml(file, "scenarios")
    _, device, topology = read_hardware(content, HardwareTable, file)
    models = typed_tables(content, "models", C3ModelTable, file)
    products = typed_tables(content, "products", ProductTable, file)
    scenarios = {}
    for name, table in typed_tables(content, "scenarios", ScenarioTable, file).items():
        try:
            product = _named(products, "products", table.product)
            shape, gathered = _named(models, "models", product.model), _named(models, "models", table.model)
            # A gate's matrix and the one that it gates are multiplied at once.
            columns = shape.feedforward * (2 if shape.matrices == 3 else 1)
            transfer = Transfer(table.collective, float(weight_bytes(gathered, table.weights)), topology, device)
            scenarios[name] = Scenario(name, Product(product.tokens, columns, shape.hidden, device), transfer)
        except InvalidInputError as error:
            raise InvalidInputError(f"{file}: scenarios.{name}: {error}") from error
    return scenarios


def _named(tables: Mapping[str, Table], kind: str, name: str) -> Table:
    if name not in tables:
        raise InvalidInputError(f"no {kind}.{name}; there are {', '.join(tables)}")
    return tables[name]


def overlapped(policy: str, first: str = "gemm") -> str:
    """Return the what-if that puts a scenario's product and collective side by side under a policy of `c3`."""
    return f"change_stream:{first}:new+c3:{policy}"


def speedups(scenario: Scenario, parameters: Parameters) -> dict[str, float]:
    """Return the speed-up over one after the other by policy, in the order of `NAMES`.

    The product is called first, and `base` leaves that open: with `collective_first_chance` the collective is.
    """
    times = dict(step_ns(scenario.trace(parameters), [overlapped(policy) for policy in NAMES], parameters))
    base, chance = overlapped("base", "collectives"), parameters["collective_first_chance"]
    first = step_ns(scenario.trace(parameters, "collectives"), [base], parameters)[base]
    times[overlapped("base")] = chance * first + (1.0 - chance) * times[overlapped("base")]
    return {name: times["nothing"] / times[overlapped(policy)] for policy, name in NAMES.items()}


def percent_of_ideal(scenario: Scenario, speedup: float, parameters: Parameters) -> float:
    """Return the share of the gain that is left if the shorter of the two is hidden at no cost, %."""
    alone = scenario.alone_ns(parameters)
    return 100.0 * (speedup - 1.0) / (sum(alone) / max(alone) - 1.0)


def reproduce(parameters: Parameters, scenarios: Mapping[str, Scenario]) -> dict[str, float]:
    """Return our figure for every name in `datasets/published/c3.toml`."""
    outcomes, first = [(s, speedups(s, parameters)) for s in scenarios.values()], next(iter(scenarios.values()))
    means = {n: float(np.mean([percent_of_ideal(s, by[n], parameters) for s, by in outcomes])) for n in NAMES.values()}
    gathers = {s.product: s for s in scenarios.values() if s.transfer.kind == "all_gather"}
    compute, memory = ([s for p, s in gathers.items() if p.memory_bound == bound] for bound in (False, True))
    return {
        **means,
        "best_speedup": max(max(by.values()) for _, by in outcomes),
        "order_abstract": float(sum(means[low] < means[high] for low, high in _ABSTRACT)),
        "order_all": float(sum(means[low] < means[high] for low, high in _ALL)),
        "sp_rp_over_sp": means["c3_sp_rp"] - means["c3_sp"],
        **{f"cb_loss_{k}": 100 * float(np.mean([loss(s, k, parameters) for s in compute])) for k in (32, 64)},
        "mb_gain_8": 100 * max(spared_gain(scenario, parameters) for scenario in memory),
        "dma_crossover": crossover_bytes(first, parameters) / 2**20,
        **{f"dma_overhead_{n}": 100 * share_not_copying(first, size, parameters) for n, size in _COPIES.items()},
    }


def loss(scenario: Scenario, fewer: int, parameters: Parameters) -> float:
    """Return the share by which a product takes longer alone with `fewer` units set aside, in whole waves."""
    text = f"partition:collectives:{fewer / scenario.product.device.compute_units}"
    times = step_ns(scenario.trace(parameters), [text], parameters.with_values([("rounds_max", _WHOLE_WAVES)]))
    return (times[text] - times["nothing"]) / scenario.alone_ns(parameters)[0]


def spared_gain(scenario: Scenario, parameters: Parameters) -> float:
    """Return the share by which a product is faster alone once it spares compute units for a collective."""
    graph = layer_graph(scenario.trace(parameters), parameters)
    changed, row = parse_what_if(overlapped("dma_rp"))(graph, parameters), graph.tasks.operator >= 0
    return float(1.0 - changed.tasks.duration_ns[: len(row)][row].sum() / graph.tasks.duration_ns[row].sum())


def share_not_copying(scenario: Scenario, size_bytes: int, parameters: Parameters) -> float:
    """Return the share of one copy by a DMA engine, to a peer of the scenario's node, that is its command."""
    pair = replace(scenario.transfer.topology, n_workers=2, devices_per_node=2)
    # Of two workers, each sends half of its buffer.
    transfer = replace(scenario.transfer, kind="all_to_all", size_bytes=2.0 * size_bytes, topology=pair)
    copy = replace(scenario, transfer=transfer)
    times = step_ns(copy.trace(parameters), ["dma_collectives"], parameters)
    return parameters["dma_command_ns"] / (copy.alone_ns(parameters)[1] + times["dma_collectives"] - times["nothing"])


def crossover_bytes(scenario: Scenario, parameters: Parameters) -> float:
    """Return from which size on an all-gather on DMA engines beats one on compute units that is dispatched first.

    Each is beside a compute-bound product that takes as long as it.
    """
    device, topology, sizes = scenario.product.device, scenario.transfer.topology, np.geomspace(2**16, 2**32, 4096)
    seconds = fastest("all_gather", topology, links_of(device, topology), sizes)[0]
    for depth in range(64, 6145, 64):
        product = Product(8192, 8192, depth, device)
        size = float(np.interp(product_ns(product, parameters) / 1e9, seconds, sizes))
        pair = replace(scenario, product=product, transfer=Transfer("all_gather", size, topology, device))
        _, dma, first = step_ns(pair.trace(parameters), [overlapped("dma"), overlapped("sp")], parameters).values()
        if dma <= first and not product.memory_bound:
            return size
    return float("inf")
