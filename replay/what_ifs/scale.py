"""Scaling what-ifs: kernels of one class, or the host, are faster or slower by a factor."""

import numpy as np

from profilers.trace.kernels import CLASSES
from replay.calibration.parameters import Parameters
from replay.graph.graph import Basis, KernelGraph, TaskKind
from replay.what_ifs.what_if import Argument, WhatIf, check_factor, recipe, unknown_name, what_if_text


@recipe(
    "kernels",
    "scale_kernels:gemm:0.5",
    Argument("class", "a class of kernels, or all (with collectives)"),
    Argument("factor", "new duration over old", "number"),
)
def scale_kernels(class_: str, factor: float) -> WhatIf:
    """Scale the isolated duration of all kernels of a class by FACTOR.

    CLASS is a class of kernels, or ``all`` (also ``*``) for every class, collectives included. Demands stay as they
    are, and so does how much kernels slow each other.

    Not modelled: the reason for the change. FACTOR is an assumption, and the scaled durations are marked as assumed.

    Raises
    ------
    NotFoundError
        There is no such class.
    InvalidInputError
        `factor` is neither 0 nor within 1e-6 to 1e6.
    """
    class_ = "all" if class_ == "*" else class_
    if class_ != "all" and class_ not in CLASSES:
        raise unknown_name("no class of kernels is called", class_, ("all", *CLASSES))
    check_factor("scale_kernels", factor, zero=True)

    def transform(graph: KernelGraph, _parameters: Parameters) -> KernelGraph:
        tasks = graph.tasks
        chosen = tasks.class_ >= 0 if class_ == "all" else tasks.class_ == CLASSES.index(class_)
        changed = chosen & (factor != 1.0)
        return graph.with_tasks(
            duration_ns=np.where(chosen, tasks.duration_ns * factor, tasks.duration_ns),
            basis=np.where(changed, int(Basis.ASSUMED), tasks.basis),
        ).with_notes([f"scale_kernels:{class_}: {int(chosen.sum())} tasks"])

    return WhatIf(what_if_text("scale_kernels", class_, factor), transform)


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
