"""Ways to run a product and a collective side by side, as data.

What if collectives beside other work were dispatched first, or elsewhere? (C3 and ConCCL, arXiv 2412.14335)
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
from replay.what_ifs.what_if import Argument, Recipe, WhatIf, unknown

#: Compute units that a partition can have for the collective.
PARTITIONS = (8, 16, 32, 64, 128)


@dataclass(frozen=True)
class Policy:
    """How a product and a collective share a device.

    Parameters
    ----------
    name : str
    carrier : str
        What moves the collective's bytes: ``"units"`` (a kernel) or ``"dma"`` (copies on DMA engines).
    order : str
        What is dispatched first: ``"product"``, ``"transfer"``, ``"fewest workgroups"``, or ``"either"`` as it
        happens.
    partition : str
        Of the compute units: ``"none"``, or ``"chosen"`` among `PARTITIONS` by the run-time's rule.
    spared : int
        Compute units that memory-bound products leave idle.
    """

    name: str
    carrier: str = "units"
    order: str = "either"
    partition: str = "none"
    spared: int = 0


#: By name, in the order in which the paper brings them; before them, what order can cost at most.
POLICIES: Mapping[str, Policy] = MappingProxyType(
    {
        one.name: one
        for one in (
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
    """Return a policy by name.

    Raises
    ------
    NotFoundError
        There is none of that name; those that are there are listed.

    Examples
    --------
    >>> find_policy("conccl").carrier
    'dma'
    """
    if name not in POLICIES:
        raise NotFoundError(f"no policy is called {name!r}; there are {', '.join(POLICIES)}")
    return POLICIES[name]


_POLICIES = ("sp", "rp", "sp_rp", "dma", "dma_rp")
#: Compute units of the device on which C3 tries `PARTITIONS`: MI300X.
_OF = 304
_SOME = 1e-6


def c3(policy: str) -> WhatIf:
    """Collectives that run beside other work are dispatched by another policy.

    - ``sp``: first (schedule prioritisation).
    - ``rp``: on compute units of their own, 8, 16, 32, 64 or 128 of 304, or none: whichever ends first in a replay.
    - ``sp_rp``: both.
    - ``dma``: by DMA engines, those without arithmetic (ConCCL); ``dma_rp``: and the others as ``rp``.

    Not modelled: caches that memory-bound kernels use better on fewer compute units, from which the paper's last policy
    gains as well; a collective that the trace shows beside other work was let in by the dispatcher already.

    Source: C3 and ConCCL (arXiv 2412.14335).

    Raises
    ------
    NotFoundError
        There is no such policy.
    """
    if policy not in _POLICIES:
        raise unknown("c3 has no policy", policy, _POLICIES)
    return WhatIf(f"c3:{policy}", _Policy(policy))


class _Policy:
    def __init__(self, name: str) -> None:
        self._parts = name.split("_")

    def __call__(self, graph: KernelGraph, parameters: Parameters) -> KernelGraph:
        before = replay_graph(graph)
        if not _beside(before):
            reason = "no collective runs beside other work of its device"
            return graph.with_notes([f"c3:{'_'.join(self._parts)}: nothing to apply it to: {reason}"])
        if "sp" in self._parts:
            graph = change_priority("collectives", 1)(graph, parameters)
        if "dma" in self._parts:
            graph = dma_collectives()(graph, parameters)
        return _best_partition(graph, parameters, "_".join(self._parts)) if "rp" in self._parts else graph


def _beside(timeline: Timeline) -> bool:
    """Return whether a collective runs, or waits for compute units, while something else runs on its device."""
    tasks = timeline.graph.tasks
    start = np.where(tasks.kind == TaskKind.COLLECTIVE, timeline.arrivals_ns(), timeline.start_ns)
    total, exposed = replace(timeline, start_ns=np.minimum(start, timeline.end_ns)).communication_ns()
    return bool((total - exposed > _SOME).any())


def _best_partition(graph: KernelGraph, parameters: Parameters, policy: str) -> KernelGraph:
    tasks = graph.tasks
    on_units = (tasks.kind == TaskKind.COLLECTIVE) & (tasks.occupies > 0)
    if not on_units.any():
        return graph.with_notes([f"c3:{policy}: no collective is left on compute units, so none are set aside"])
    units = graph.hardware.compute_units
    tried = {}
    for count in PARTITIONS:
        share = max(round(units * count / _OF), 1) / units
        if share < 1 - _SOME:
            tried[share] = partition("collectives", share)(graph, parameters)
    if not tried:
        return graph.with_notes([f"c3:{policy}: the device has too few compute units to set any aside"])
    tried[0.0] = graph
    best = min(tried, key=lambda share: (replay_graph(tried[share]).makespan_ns, share))
    if not best:
        return graph.with_notes([f"c3:{policy}: no partition that is tried ends sooner than sharing all compute units"])
    note = f"c3:{policy}: {round(best * units)} of {units} compute units for collectives"
    return replace(tried[best], notes=(*graph.notes, note))


RECIPES = (
    Recipe(
        "c3",
        c3,
        (Argument("policy", "how collectives get their compute units", choices=_POLICIES),),
        "Collectives beside other work go first, have compute units of their own, or go by DMA (C3, ConCCL).",
        "c3:sp_rp",
        "communication",
    ),
)
