"""Scaling what-ifs: chosen tasks, or the host, are faster or slower by a factor."""

from dataclasses import replace

import numpy as np

from replay.calibration.parameters import Parameters
from replay.graph.choice import TaskChoice
from replay.graph.graph import Basis, KernelGraph, TaskKind
from replay.what_ifs.what_if import Argument, WhatIf, check_factor, recipe, tasks_argument, what_if_text


@recipe(
    "kernels",
    "scale_kernels:gemm:0.5",
    replace(tasks_argument("scale"), older_name="class"),
    Argument("factor", "new duration over old", "number"),
)
def scale_kernels(tasks: str, factor: float) -> WhatIf:
    """Scale the isolated duration of chosen tasks by FACTOR.

    TASKS is any choice of tasks on devices. ``all``, and choices that say nothing of the kind of task (``rank=0``),
    stand for kernels and collectives. Copies are chosen by ``copies``, a direction (``copies=DtoH``), a name or an
    operator. Demands stay as they are, and so does how much tasks slow each other.

    Not modelled: the reason for the change. FACTOR is an assumption, and the scaled durations are marked as assumed.

    Raises
    ------
    InvalidInputError, NotFoundError
        `tasks` is no valid choice, or `factor` is neither 0 nor within 1e-6 to 1e6.
    """
    choice = TaskChoice(tasks, kinds=(TaskKind.KERNEL, TaskKind.COLLECTIVE))
    check_factor("scale_kernels", factor, zero=True)

    def transform(graph: KernelGraph, _parameters: Parameters) -> KernelGraph:
        chosen = choice.rows(graph)
        note = f"scale_kernels:{tasks}: {int(chosen.sum())} tasks{_copies_left(graph, tasks)}"
        return graph.with_factor(chosen, factor, Basis.ASSUMED).with_notes([note])

    return WhatIf(what_if_text("scale_kernels", tasks, factor), transform, choices=(choice,))


def _copies_left(graph: KernelGraph, tasks: str) -> str:
    """Return how many memory copies the class of copying kernels leaves out, for a note."""
    n_copies = int((graph.tasks.kind == TaskKind.COPY).sum())
    return f", kernels that copy; {n_copies} memory copies are chosen by copies" if tasks == "copy" and n_copies else ""


@recipe("host", "scale_host:0.5", Argument("factor", "new host time over old", "number"))
def scale_host(factor: float) -> WhatIf:
    """Scale host calls, and the host time between them, by FACTOR.

    Time in which the host waits for a device does not change.

    Not modelled: the lag from a call to its kernel, which stays, and the reason why the host is faster.

    Raises
    ------
    InvalidInputError
        `factor` is neither 0 nor within 1e-6 to 1e6.
    """
    check_factor("scale_host", factor, zero=True)

    def transform(graph: KernelGraph, _parameters: Parameters) -> KernelGraph:
        is_scaled = (graph.tasks.kind == TaskKind.HOST) & (factor != 1.0)
        basis = np.where(is_scaled, int(Basis.ASSUMED), graph.tasks.basis)
        return graph.with_tasks(basis=basis).with_host_time(factor)

    return WhatIf(what_if_text("scale_host", factor), transform)
