"""What C3 and ConCCL's paper (arXiv 2412.14335) reports, from the paper's own set-up as far as it is public."""

from dataclasses import replace

import numpy as np

from replay.assembly import Assembly
from replay.collectives import Topology
from replay.engine import simulate
from replay.overlap.c3.policies import POLICIES
from replay.overlap.c3.scenario import Outcome, run_scenario
from replay.overlap.c3.workload import Scenario, load_scenarios
from replay.overlap.products import Product, product_columns, product_ns
from replay.overlap.transfers import Transfer, add_copies, kernel_columns
from replay.parameters import Parameters, load_parameters
from replay.policy import SharingPolicy

__all__ = ["crossover_bytes", "reproduce", "share_not_copying", "slowdown_by_units", "sweep"]

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


def sweep(parameters: Parameters | None = None) -> dict[str, dict[str, Outcome]]:
    """Return what comes of every shipped scenario under every policy, by scenario and policy.

    Examples
    --------
    >>> from replay.overlap.c3.workload import load_scenarios
    >>> found = sweep()
    >>> len(found), found["cb1_all_gather_same"]["conccl"].taxonomy
    (30, 'GC-equal')
    """
    known = parameters or load_parameters()
    return {
        name: {policy: run_scenario(scenario, policy, known) for policy in POLICIES}
        for name, scenario in load_scenarios().items()
    }


def reproduce(parameters: Parameters | None = None) -> dict[str, float]:
    """Return our figure for every name in `datasets/published/c3.toml`.

    Examples
    --------
    >>> found = reproduce()
    >>> found["c3_base"] < found["c3_sp"] < found["conccl_rp"]
    True
    """
    known = parameters or load_parameters()
    outcomes = sweep(known)
    means = {
        policy: float(np.mean([each[policy].percent_of_ideal for each in outcomes.values()])) for policy in POLICIES
    }
    products = {scenario.product: None for scenario in load_scenarios().values()}
    compute = [one for one in products if not one.memory_bound]
    memory = [one for one in products if one.memory_bound]
    spared = [replace(one, units=one.units - 8) for one in memory]
    return {
        **{name: means[name] for name in POLICIES if name != "c3_product_first"},
        "best_speedup": max(one.speedup for each in outcomes.values() for one in each.values()),
        "order_abstract": float(sum(means[low] < means[high] for low, high in _ABSTRACT)),
        "order_all": float(sum(means[low] < means[high] for low, high in _ALL)),
        "sp_rp_over_sp": means["c3_sp_rp"] - means["c3_sp"],
        **{
            f"cb_loss_{k}": 100 * (float(np.mean([slowdown_by_units(one, k) for one in compute])) - 1) for k in (32, 64)
        },
        "mb_gain_8": 100
        * max(1 - product_ns(less, known) / product_ns(one, known) for one, less in zip(memory, spared, strict=True)),
        "dma_crossover": crossover_bytes(known) / 2**20,
        **{f"dma_overhead_{name}": 100 * share_not_copying(size, known) for name, size in _COPIES.items()},
    }


def slowdown_by_units(product: Product, fewer: int) -> float:
    """Return how much longer a compute-bound product takes in the engine when `fewer` units are kept from it.

    Examples
    --------
    >>> from profilers.devices import find_device
    >>> round(slowdown_by_units(Product(8192, 8192, 8192, find_device("MI300X")), 64), 2)
    1.29
    """
    share = fewer / product.device.compute_units
    work = Assembly()
    work.tasks("product", work.lane(device=0), {**product_columns(product), "cu_mask": 1})
    sharing = SharingPolicy(partitions=(1 - share, share), quantised=True)
    return float(simulate(work.graph(policy=sharing))[1][0]) / product_ns(product)


def share_not_copying(size_bytes: float, parameters: Parameters | None = None) -> float:
    """Return what share of one copy by a DMA engine to a peer is its command.

    Examples
    --------
    >>> share_not_copying(2**10) > share_not_copying(2**20) > share_not_copying(2**24)
    True
    """
    known = parameters or load_parameters()
    device = next(iter(load_scenarios().values())).product.device
    pair = Topology(2, node_devices=8, fabric="mesh")
    work = Assembly()
    # Of two workers, each sends half of its buffer.
    add_copies(work, work.lane(device=0), Transfer("all_to_all", 2 * size_bytes, pair, device), known)
    return known["dma_command_ns"] / float(simulate(work.graph())[1].max())


def crossover_bytes(parameters: Parameters | None = None) -> float:
    """Return from which size on an all-gather on DMA engines beats one on compute units that is dispatched first.

    Each is beside a compute-bound product that takes as long as it; 0 where DMA engines win beside the shortest of
    these, infinity where they lose beside the longest.
    """
    known = parameters or load_parameters()
    model = next(iter(load_scenarios().values()))
    least = float("inf")
    for step in range(_STEPS, 0, -1):
        product = Product(_SIDE, _SIDE, _DEPTH * step, model.product.device)
        if product.memory_bound:
            break
        transfer = _as_long(model.transfer, product_ns(product, known), known)
        scenario = Scenario("crossover", product, transfer)
        first, dma = (run_scenario(scenario, name, known).concurrent_ns for name in ("c3_sp", "conccl"))
        if dma > first:
            return least
        least = transfer.size_bytes
    return 0.0


def _as_long(transfer: Transfer, wanted_ns: float, known: Parameters) -> Transfer:
    """Return a transfer whose kernel takes this long: by halving, since time grows with size."""
    low, high = 1.0, 2.0**40
    while high / low > 1.001:
        middle = (low * high) ** 0.5
        found = kernel_columns(replace(transfer, size_bytes=middle), known)["duration_ns"]
        low, high = (middle, high) if found < wanted_ns else (low, middle)
    return replace(transfer, size_bytes=low)
