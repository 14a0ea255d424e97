"""What if launching cost next to nothing, as with CUDA or HIP graphs?"""

from dataclasses import replace

import numpy as np

from profilers.errors import InvalidInputError
from replay.calibration.parameters import Parameters
from replay.graph.graph import HOST_TIME_EDGES, LAUNCH_EDGES, Basis, EdgeKind, KernelGraph, TaskKind
from replay.what_ifs.swap import duration_ns
from replay.what_ifs.what_if import Argument, Recipe, WhatIf, written


def remove_launch_overhead(remains: str = "") -> WhatIf:
    """Each call that launches, the host's time up to the next one, and the lag to the kernel shrink to a floor.

    That is what graphs of a recorded sequence do (CUDA graphs, HIP graphs). REMAINS (``500ns``, ``1us``) is what stays
    of each; by default `graph_launch_ns` of `datasets/parameters.toml`. What is shorter already stays. Where a trace
    has no calls, the pauses on streams that stand for them shrink. A call whose kernel `fuse` merged into another
    counts as one that launches. The host still waits where it waited for the device, what it does between such a call
    and the next stays as it is, and so does the time before the first launch.

    Not modelled: whether the sequence can be recorded (shapes that change, values that the host reads); the cost of
    recording it; pauses between kernels on a stream that no launch explains.

    Source: an assumption; the share of host-bound time is what the trace shows.

    Raises
    ------
    InvalidInputError
        `remains` is no time.
    """
    fixed = duration_ns(remains) if remains else None
    if remains and fixed is None:
        raise InvalidInputError(f"{remains[:40]!r} is no time; write 500ns or 1us")

    def transform(graph: KernelGraph, parameters: Parameters) -> KernelGraph:
        floor = parameters["graph_launch_ns"] if fixed is None else fixed
        tasks, edges = graph.tasks, graph.edges
        launches = np.zeros(len(tasks), dtype=bool)
        launch = np.isin(edges.kind, sorted(LAUNCH_EDGES))
        launches[edges.source[launch]] = True
        fused = (tasks.duration_ns == 0.0) & (tasks.basis == Basis.ASSUMED)  # whose kernel `fuse` took
        calls = (launches | fused) & (tasks.kind == TaskKind.HOST)
        shorter = np.where(calls, np.minimum(tasks.duration_ns, floor), tasks.duration_ns)
        between = np.isin(edges.kind, sorted(HOST_TIME_EDGES)) & calls[edges.source] & calls[edges.target]
        floored = between | launch | (edges.kind == EdgeKind.GAP)
        lag = np.where(floored, np.minimum(edges.lag_ns, floor), edges.lag_ns)
        changed = graph.with_tasks(
            duration_ns=shorter,
            basis=np.where(shorter < tasks.duration_ns, int(Basis.ASSUMED), tasks.basis),
        )
        note = f"remove_launch_overhead: {int(calls.sum())} calls, {int((lag < edges.lag_ns).sum())} gaps shortened"
        return replace(changed, edges=replace(edges, lag_ns=lag)).with_notes([note])

    return WhatIf(written("remove_launch_overhead", *([remains] if remains else [])), transform)


RECIPES = (
    Recipe(
        "remove_launch_overhead",
        remove_launch_overhead,
        (Argument("remains", "time that stays of each launch and gap", default=""),),
        "Launches and the host's time between them shrink to a floor, as with CUDA or HIP graphs.",
        "remove_launch_overhead:500ns",
        "host",
    ),
)
