"""What if the kernels of a class, or the host, were faster or slower?"""

from dataclasses import replace

import numpy as np

from profilers.trace.kernels import CLASSES
from replay.calibration.parameters import Parameters
from replay.graph.graph import HOST_TIME_EDGES, Basis, KernelGraph, TaskKind
from replay.what_ifs.what_if import Argument, Recipe, WhatIf, check_factor, unknown, written


def scale_kernels(class_: str, factor: float) -> WhatIf:
    """Kernels of `class_` (``"all"`` or ``"*"`` for every class) take `factor` times as long, alone.

    Shares of bandwidth and of compute units stay, so how much they slow each other does.

    Not modelled: why they would; the factor is an assumption, and durations that rest on it are marked so.

    Raises
    ------
    NotFoundError
        There is no such class.
    InvalidInputError
        `factor` is neither zero nor within 1e-6 to 1e6.
    """
    class_ = "all" if class_ == "*" else class_
    if class_ != "all" and class_ not in CLASSES:
        raise unknown("no class of kernels is called", class_, ("all", *CLASSES))
    check_factor("scale_kernels", factor, zero=True)

    def transform(graph: KernelGraph, _parameters: Parameters) -> KernelGraph:
        tasks = graph.tasks
        chosen = tasks.class_ >= 0 if class_ == "all" else tasks.class_ == CLASSES.index(class_)
        changed = chosen & (factor != 1.0)
        return graph.with_tasks(
            duration_ns=np.where(chosen, tasks.duration_ns * factor, tasks.duration_ns),
            basis=np.where(changed, int(Basis.ASSUMED), tasks.basis),
        ).with_notes([f"scale_kernels:{class_}: {int(chosen.sum())} tasks"])

    return WhatIf(written("scale_kernels", class_, factor), transform)


def scale_host(factor: float) -> WhatIf:
    """Calls on the host, and the time between them, take `factor` times as long; waiting for devices does not.

    Not modelled: the lag from a call to its kernel, which stays, and why the host would be faster.

    Raises
    ------
    InvalidInputError
        `factor` is neither zero nor within 1e-6 to 1e6.
    """
    check_factor("scale_host", factor, zero=True)

    def transform(graph: KernelGraph, _parameters: Parameters) -> KernelGraph:
        tasks, edges = graph.tasks, graph.edges
        host = tasks.kind == TaskKind.HOST
        between = np.isin(edges.kind, sorted(HOST_TIME_EDGES))
        changed = graph.with_tasks(
            duration_ns=np.where(host, tasks.duration_ns * factor, tasks.duration_ns),
            release_ns=np.where(tasks.device < 0, tasks.release_ns * factor, tasks.release_ns),
            basis=np.where(host & (factor != 1.0), int(Basis.ASSUMED), tasks.basis),
        )
        return replace(changed, edges=replace(edges, lag_ns=np.where(between, edges.lag_ns * factor, edges.lag_ns)))

    return WhatIf(written("scale_host", factor), transform)


RECIPES = (
    Recipe(
        "scale_kernels",
        scale_kernels,
        (
            Argument("class", "all (collectives, too), or a class of kernels"),
            Argument("factor", "of their time", "number"),
        ),
        "Kernels of a class take FACTOR times as long.",
        "scale_kernels:gemm:0.5",
        "kernels",
    ),
    Recipe(
        "scale_host",
        scale_host,
        (Argument("factor", "of the host's time", "number"),),
        "Calls on the host, and the time between them, take FACTOR times as long.",
        "scale_host:0.5",
        "host",
    ),
)
