"""Dispatch what-ifs: another priority, a partition of the compute units, or another order of dispatch."""

from dataclasses import replace

import numpy as np

from profilers.errors import InvalidInputError
from replay.calibration.parameters import Parameters
from replay.graph.choice import TaskChoice
from replay.graph.graph import KernelGraph
from replay.what_ifs.what_if import Argument, WhatIf, recipe, tasks_argument, unknown_name, what_if_text

_ORDERS = ("fair", "in_order")
_HIGHEST_LEVEL = 100
_TASKS = tasks_argument("change")


@recipe(
    "scheduling",
    "change_priority:collectives:1",
    _TASKS,
    Argument("level", "-100 to 100; a higher level is dispatched first", "whole"),
)
def change_priority(tasks: str, level: int) -> WhatIf:
    """Dispatch chosen tasks with another priority.

    A higher LEVEL is dispatched first; every other task has level 0. Waiting workgroups are taken in the order of
    priority.

    Not modelled: the end of a running workgroup. A higher priority takes compute units at once, where hardware waits
    for a workgroup to finish. Hardware has few levels (CUDA and HIP streams have three); here any level counts.

    Source: dispatch by priority, as in C3 (arXiv 2412.14335); `replay.engine.sharing` has the rules.

    Raises
    ------
    InvalidInputError
        `tasks` is no valid choice, or the level is outside -100 to 100.
    """
    choice = TaskChoice(tasks)
    if not -_HIGHEST_LEVEL <= level <= _HIGHEST_LEVEL:
        raise InvalidInputError(f"a priority of {level}: give a level from {-_HIGHEST_LEVEL} to {_HIGHEST_LEVEL}")

    def transform(graph: KernelGraph, _parameters: Parameters) -> KernelGraph:
        chosen = choice.rows(graph)
        priority = np.where(chosen, level, graph.tasks.priority)
        return graph.with_tasks(priority=priority).with_notes([f"change_priority: {int(chosen.sum())} tasks"])

    return WhatIf(what_if_text("change_priority", tasks, level), transform, choices=(choice,))


@recipe(
    "scheduling",
    "partition:collectives:0.1",
    _TASKS,
    Argument("share", "share of the compute units, between 0 and 1", "number"),
)
def partition(tasks: str, share: float) -> WhatIf:
    """Reserve a share of the compute units for chosen tasks; all other tasks run on the rest.

    Neither side uses units that the other leaves idle. A second partition takes its share from the rest of the first.

    Not modelled: a kernel that is tuned for the whole device may choose another grid on a part of it.

    Source: compute-unit masks, as in C3 and ConCCL (arXiv 2412.14335); `replay.engine.sharing` has the rules.

    Raises
    ------
    InvalidInputError
        `tasks` is no valid choice, or the share is not between 0 and 1. When applied: the share, or the rest, is less
        than one compute unit.
    """
    choice = TaskChoice(tasks)
    if not 0 < share < 1:
        raise InvalidInputError(f"a partition of {share:g} of the compute units: give a share between 0 and 1")

    def transform(graph: KernelGraph, _parameters: Parameters) -> KernelGraph:
        chosen = choice.rows(graph)
        if not chosen.any():
            return graph.with_notes(["partition: no task is chosen, so nothing changes"])
        common, *reserved = graph.policy.partitions
        if common - share <= 1e-9:
            raise InvalidInputError(
                f"a share of {share:g} of the compute units leaves none of the {common:g} for the rest"
            )
        units = graph.hardware.compute_units
        if min(share, common - share) * units < 1 - 1e-9:
            raise InvalidInputError(
                f"a share of {share:g} of the {units} compute units leaves {share * units:.3g} for chosen tasks and "
                f"{(common - share) * units:.3g} for the rest; each needs one at least"
            )
        # Bit 0 stands for the units of all tasks that no partition reserves any for.
        common_mask = graph.tasks.cu_mask & ((1 << (1 + len(reserved))) - 1)
        mask = np.where(chosen, 1 << (1 + len(reserved)), common_mask)
        policy = replace(graph.policy, partitions=(common - share, *reserved, share))
        note = f"partition: {int(chosen.sum())} tasks on {share:g} of the compute units"
        return replace(graph.with_tasks(cu_mask=mask), policy=policy).with_notes([note])

    return WhatIf(what_if_text("partition", tasks, share), transform, choices=(choice,))


@recipe(
    "scheduling",
    "cu_order:fair",
    Argument("order", "how compute units are given out", choices=_ORDERS),
)
def cu_order(order: str) -> WhatIf:
    """Give out compute units in the order of dispatch (``in_order``), or in equal parts (``fair``).

    With ``in_order``, a kernel that is dispatched later gets the units that earlier ones leave. Devices dispatch so,
    and traces are replayed so. With ``fair``, all active kernels get equal parts, each up to its demand. That is the
    bound of a scheduler that interleaves kernels perfectly.

    Not modelled: the cache misses that interleaving adds, beyond the cache footprints in `replay.engine.sharing`.

    Source: the two policies that C3 compares (arXiv 2412.14335).

    Raises
    ------
    NotFoundError
        `order` is neither ``in_order`` nor ``fair``.
    """
    if order not in _ORDERS:
        raise unknown_name("cu_order has no order", order, _ORDERS)

    def transform(graph: KernelGraph, _parameters: Parameters) -> KernelGraph:
        return replace(graph, policy=replace(graph.policy, in_order=order == "in_order"))

    return WhatIf(what_if_text("cu_order", order), transform)
