"""What of a scenario can be known before anything runs, for choosing a schedule."""

from collections.abc import Mapping
from dataclasses import replace
from math import ceil, log2
from types import MappingProxyType

from replay.collectives import machine_of
from replay.overlap.ficco.workload import Scenario
from replay.overlap.products import Product

__all__ = ["FEATURES", "features_of"]

#: By name.
FEATURES: Mapping[str, str] = MappingProxyType(
    {
        "log_m": "log2 of the rows of the gathered operand",
        "log_n": "log2 of the columns of the whole product",
        "log_k": "log2 of the depth",
        "m_over_k": "log2 of rows over depth",
        "otb": "log2 of FLOP per byte of one device's product, 2 m n k over its bytes",
        "mt": "log2 of elements of one device's operands and result, m k + n k + m n",
        "transfer_over_product": "log2 of the transfer's time over the product's, by rates of links and arithmetic",
        "local_waves": "share of whole waves that the product with the local shard fills",
        "remote_waves": "the same of the fused product of a step with all peers' pieces",
        "fine_waves": "the same of the product with one peer's piece",
        "fine_tiles": "log2 of the workgroups of the product with one peer's piece over the compute units",
    }
)


def features_of(scenario: Scenario) -> dict[str, float]:
    """Return the features of a scenario, by the names of `FEATURES`.

    Source: operation to byte ratio, memory traffic, and rows against depth are what the heuristic of FiCCO
    (arXiv 2512.10236) goes by.

    Examples
    --------
    >>> from replay.overlap.ficco.workload import load_scenarios
    >>> found = features_of(load_scenarios()["g1"])
    >>> found["log_m"], found["m_over_k"], round(2 ** found["otb"])
    (14.0, -3.0, 1796)
    """
    whole, n = scenario.product, scenario.topology.n_workers
    fine = replace(whole, m=whole.m // n**2)
    transfer = scenario.transfer.sent_bytes / machine_of(scenario.device, scenario.topology).port
    elements = whole.m * whole.k + whole.k * whole.n + whole.m * whole.n
    return {
        "log_m": log2(scenario.m),
        "log_n": log2(scenario.n),
        "log_k": log2(scenario.k),
        "m_over_k": log2(scenario.m / scenario.k),
        "otb": log2(whole.flops / sum(whole.operand_bytes)),
        "mt": log2(elements),
        "transfer_over_product": log2(transfer * scenario.device.flops_per_s(scenario.dtype) / whole.flops),
        "local_waves": _filled(replace(whole, m=whole.m // n)),
        "remote_waves": _filled(replace(whole, m=fine.m * (n - 1))),
        "fine_waves": _filled(fine),
        "fine_tiles": log2(fine.workgroups / fine.device.compute_units),
    }


def _filled(product: Product) -> float:
    waves = product.workgroups / product.device.compute_units
    return waves / ceil(waves)
