"""C3 what-if: collectives beside kernels are dispatched first, get their own compute units, or run on DMA engines.

`POLICIES` holds the policies of C3 and ConCCL (arXiv 2412.14335) as data, for `replay.studies.c3`. The what-if `c3`
applies them to the collectives of a trace.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from profilers.errors import NotFoundError
from replay.calibration.parameters import Parameters
from replay.engine.timeline import Timeline
from replay.engine.timeline import replay as replay_graph
from replay.graph.graph import KernelGraph, TaskKind
from replay.what_ifs.dispatch import change_priority, partition
from replay.what_ifs.dma import dma_collectives
from replay.what_ifs.what_if import Argument, WhatIf, recipe, unknown_name

#: Numbers of compute units that a partition may reserve for the collective.
PARTITIONS = (8, 16, 32, 64, 128)


@dataclass(frozen=True)
class Policy:
    """A policy by which a matrix product and a collective share a device.

    Parameters
    ----------
    name : str
        Key in `POLICIES`.
    carrier : str
        Engine that moves the bytes of the collective: ``"units"`` (a kernel) or ``"dma"`` (copies on DMA engines).
    order : str
        Side that is dispatched first: ``"product"``, ``"transfer"``, ``"fewest workgroups"``, or ``"either"`` (no set
        order).
    partition : str
        Partition of the compute units: ``"none"``, or ``"chosen"`` among `PARTITIONS` by the run-time's rule.
    spared : int
        Number of compute units that memory-bound products leave idle.
    """

    name: str
    carrier: str = "units"
    order: str = "either"
    partition: str = "none"
    spared: int = 0


#: Policies by name, in the order of the paper. The first one is not in it: the worst order of dispatch.
POLICIES: Mapping[str, Policy] = MappingProxyType(
    {
        policy.name: policy
        for policy in (
            Policy("c3_product_first", order="product"),
            Policy("c3_base"),
            Policy("c3_sp", order="fewest workgroups"),
            Policy("c3_rp", partition="chosen"),
            Policy("c3_sp_rp", order="fewest workgroups", partition="chosen"),
            Policy("conccl", carrier="dma"),
            Policy("conccl_rp", carrier="dma", spared=8),
        )
    }
)


def find_policy(name: str) -> Policy:
    """Return the policy of that name.

    Raises
    ------
    NotFoundError
        There is no such policy; the message lists them.

    Examples
    --------
    >>> find_policy("conccl").carrier
    'dma'
    """
    if name not in POLICIES:
        raise NotFoundError(f"no policy is called {name!r}; there are {', '.join(POLICIES)}")
    return POLICIES[name]


_MODES = ("sp", "rp", "sp_rp", "dma", "dma_rp")
#: Compute units of MI300X, the device on which C3 tries `PARTITIONS`.
_C3_UNITS = 304
#: Times and shares that differ by less are equal.
_ROUNDING = 1e-6


@recipe(
    "communication",
    "c3:sp_rp",
    Argument("policy", "how collectives get compute units", choices=_MODES),
)
def c3(policy: str) -> WhatIf:
    """Dispatch collectives that run beside other tasks by a policy of C3 or ConCCL.

    - ``sp`` (schedule prioritisation): collectives are dispatched first.
    - ``rp`` (resource partitioning): collectives get their own 8, 16, 32, 64 or 128 of 304 compute units, or none. The
      fastest replay decides.
    - ``sp_rp``: both.
    - ``dma`` (ConCCL): collectives without arithmetic run on DMA engines.
    - ``dma_rp``: as ``dma``, and the other collectives as ``rp``.

    Not modelled: caches that memory-bound kernels use better on fewer compute units. The paper's last policy gains from
    that as well. A collective that the trace shows beside other tasks already got its compute units from the
    dispatcher.

    Source: C3 and ConCCL (arXiv 2412.14335).

    Raises
    ------
    NotFoundError
        There is no such policy.
    """
    if policy not in _MODES:
        raise unknown_name("c3 has no policy", policy, _MODES)
    mechanisms = policy.split("_")

    def transform(graph: KernelGraph, parameters: Parameters) -> KernelGraph:
        if not _has_overlap(replay_graph(graph)):
            reason = "no collective runs beside other work of its device"
            return graph.with_notes([f"c3:{policy}: nothing to apply it to: {reason}"])
        if "sp" in mechanisms:
            graph = change_priority("collectives", 1)(graph, parameters)
        if "dma" in mechanisms:
            graph = dma_collectives()(graph, parameters)
        return _best_partition(graph, parameters, policy) if "rp" in mechanisms else graph

    return WhatIf(f"c3:{policy}", transform)


def _has_overlap(timeline: Timeline) -> bool:
    """Tell whether a collective runs, or waits for compute units, while another task runs on its device."""
    tasks = timeline.graph.tasks
    start = np.where(tasks.kind == TaskKind.COLLECTIVE, timeline.arrivals_ns(), timeline.start_ns)
    times = replace(timeline, start_ns=np.minimum(start, timeline.end_ns)).device_times()
    hidden_transfer = (t.transfer_ns - t.exposed_transfer_ns for t in times)
    return any(ns > _ROUNDING for ns in hidden_transfer)


def _best_partition(graph: KernelGraph, parameters: Parameters, policy: str) -> KernelGraph:
    """Return `graph` with the partition for collectives whose replay ends first, or without any."""
    tasks = graph.tasks
    on_units = (tasks.kind == TaskKind.COLLECTIVE) & (tasks.occupies > 0)
    if not on_units.any():
        return graph.with_notes([f"c3:{policy}: no collective is left on compute units, so none are set aside"])
    units = graph.hardware.compute_units
    by_share = {}
    for count in PARTITIONS:
        share = max(round(units * count / _C3_UNITS), 1) / units
        if share < 1 - _ROUNDING:
            by_share[share] = partition("collectives", share)(graph, parameters)
    if not by_share:
        return graph.with_notes([f"c3:{policy}: the device has too few compute units to set any aside"])
    by_share[0.0] = graph
    best = min(by_share, key=lambda share: (replay_graph(by_share[share]).makespan_ns, share))
    if not best:
        return graph.with_notes([f"c3:{policy}: no partition that is tried ends sooner than sharing all compute units"])
    note = f"c3:{policy}: {round(best * units)} of {units} compute units for collectives"
    return replace(by_share[best], notes=(*graph.notes, note))
