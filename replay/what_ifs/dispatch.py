"""What if compute units were given out otherwise: by priority, by partition, or in equal parts?"""

from dataclasses import replace

import numpy as np

from profilers.errors import InvalidInputError
from replay.calibration.parameters import Parameters
from replay.graph.graph import KernelGraph
from replay.what_ifs.what_if import Argument, Recipe, TaskChoice, WhatIf, unknown, written

_ORDERS = ("fair", "in_order")
_HIGHEST = 100


def change_priority(tasks: str, level: int) -> WhatIf:
    """Chosen tasks are dispatched with another priority: the higher first, all others have 0.

    Workgroups that run already stay until they are done; what waits is then taken in the order of priority.

    Not modelled: preemption, and that hardware has few levels (three on CUDA and HIP streams).

    Source: dispatch by priority without preemption, as in C3 (arXiv 2412.14335); `replay.engine.sharing` says how.

    Raises
    ------
    InvalidInputError
        `tasks` can choose none, or the level is beyond -100 to 100.
    """
    choice = TaskChoice(tasks)
    if not -_HIGHEST <= level <= _HIGHEST:
        raise InvalidInputError(f"a priority of {level}: give {-_HIGHEST} to {_HIGHEST}")

    def transform(graph: KernelGraph, _parameters: Parameters) -> KernelGraph:
        rows = choice.rows(graph)
        priority = np.where(rows, level, graph.tasks.priority)
        return graph.with_tasks(priority=priority).with_notes([f"change_priority: {int(rows.sum())} tasks"])

    return WhatIf(written("change_priority", tasks, level), transform, patterns=choice.patterns)


def partition(tasks: str, share: float) -> WhatIf:
    """Chosen tasks have a share of the compute units to themselves, and everything else has the rest.

    Neither uses what the other leaves. Given twice, the second share is taken from what everything else still has.

    Not modelled: that a kernel tuned for the whole device chooses another grid on a part of it.

    Source: CU masks, as in C3 and ConCCL (arXiv 2412.14335); `replay.engine.sharing` says how.

    Raises
    ------
    InvalidInputError
        `tasks` can choose none, or the share is not between 0 and 1; when applied: it or the rest has less than one
        compute unit.
    """
    choice = TaskChoice(tasks)
    if not 0 < share < 1:
        raise InvalidInputError(f"a partition of {share:g} of the compute units: give a share between 0 and 1")

    def transform(graph: KernelGraph, _parameters: Parameters) -> KernelGraph:
        rows = choice.rows(graph)
        if not rows.any():
            return graph.with_notes(["partition: no task is chosen, so nothing changes"])
        first, *others = graph.policy.partitions
        if first - share <= 1e-9:
            raise InvalidInputError(
                f"a share of {share:g} of the compute units leaves none of the {first:g} for the rest"
            )
        units = graph.hardware.compute_units
        if min(share, first - share) * units < 1 - 1e-9:
            raise InvalidInputError(
                f"a share of {share:g} of the {units} compute units leaves {share * units:.3g} for what is chosen and "
                f"{(first - share) * units:.3g} for the rest; each needs one at least"
            )
        # Bit 0 is what everything else runs on.
        rest = graph.tasks.cu_mask & ((1 << (1 + len(others))) - 1)
        mask = np.where(rows, 1 << (1 + len(others)), rest)
        policy = replace(graph.policy, partitions=(first - share, *others, share))
        note = f"partition: {int(rows.sum())} tasks on {share:g} of the compute units"
        return replace(graph.with_tasks(cu_mask=mask), policy=policy).with_notes([note])

    return WhatIf(written("partition", tasks, share), transform, patterns=choice.patterns)


def cu_order(order: str) -> WhatIf:
    """Compute units are given out in the order of dispatch (``in_order``), or in equal parts (``fair``).

    In order, what comes later gets what is left, which is how devices dispatch and how traces are replayed. In equal
    parts, all that is active gets the same up to what it asks: the bound that a perfectly interleaving scheduler has.

    Not modelled: what interleaving costs in caches beyond `replay.engine.sharing`'s footprints.

    Source: the two policies that C3 compares (arXiv 2412.14335).

    Raises
    ------
    NotFoundError
        There is no such order.
    """
    if order not in _ORDERS:
        raise unknown("cu_order has no order", order, _ORDERS)

    def transform(graph: KernelGraph, _parameters: Parameters) -> KernelGraph:
        return replace(graph, policy=replace(graph.policy, in_order=order == "in_order"))

    return WhatIf(written("cu_order", order), transform)


_CHOSEN = Argument("tasks", "all, kernels, collectives, copies, a class, or a name with * and ?")
RECIPES = (
    Recipe(
        "change_priority",
        change_priority,
        (_CHOSEN, Argument("level", "-100 to 100; higher is dispatched first", "whole")),
        "Chosen tasks are dispatched with another priority.",
        "change_priority:collectives:1",
        "scheduling",
    ),
    Recipe(
        "partition",
        partition,
        (_CHOSEN, Argument("share", "of the compute units", "number")),
        "Chosen tasks have a share of the compute units to themselves, everything else the rest.",
        "partition:collectives:0.1",
        "scheduling",
    ),
    Recipe(
        "cu_order",
        cu_order,
        (Argument("order", "how compute units are given out", choices=_ORDERS),),
        "Compute units are given out in the order of dispatch, or in equal parts.",
        "cu_order:fair",
        "scheduling",
    ),
)
