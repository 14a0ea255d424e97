"""Launch overhead what-if: launches cost next to nothing, as with CUDA or HIP graphs."""

from dataclasses import replace

import numpy as np

from profilers.errors import InvalidInputError
from replay.calibration.parameters import Parameters
from replay.graph.graph import HOST_TIME_EDGES, LAUNCH_EDGES, Basis, EdgeKind, KernelGraph, TaskKind
from replay.what_ifs.swap import duration_ns
from replay.what_ifs.what_if import Argument, WhatIf, recipe, what_if_text


@recipe(
    "host",
    "remove_launch_overhead:500ns",
    Argument("remains", "floor of each launch and gap, such as 500ns", default=""),
)
def remove_launch_overhead(remains: str = "") -> WhatIf:
    """Shrink launches, and the host time between them, to a floor, as CUDA graphs and HIP graphs do.

    Three times shrink: each call that launches, the host time from one such call to the next, and the lag from a call
    to its kernel. REMAINS (``500ns``, ``1us``) is the floor; by default it is `graph_launch_ns` of
    `datasets/parameters.toml`. Times below the floor stay. In a trace without host calls, the pauses on streams that
    stand for them shrink. A call whose kernel `fuse` merged into another still counts as a launch.

    The host still waits for the device where it did. Host time between a launch and any other call stays, and so does
    the time before the first launch.

    Not modelled: whether the sequence can be recorded (changing shapes, values that the host reads), the cost of
    recording, and pauses between kernels that no launch explains.

    Source: an assumption; the trace itself shows the share of host-bound time.

    Raises
    ------
    InvalidInputError
        `remains` is no time.
    """
    least_ns = duration_ns(remains) if remains else None
    if remains and least_ns is None:
        raise InvalidInputError(f"{remains[:40]!r} is no time; write a number with ns, us, ms or s, as in 500ns")

    def transform(graph: KernelGraph, parameters: Parameters) -> KernelGraph:
        floor_ns = parameters["graph_launch_ns"] if least_ns is None else least_ns
        tasks, edges = graph.tasks, graph.edges
        launches = np.zeros(len(tasks), dtype=bool)
        launch = np.isin(edges.kind, sorted(LAUNCH_EDGES))
        launches[edges.source[launch]] = True
        # Calls whose kernel `fuse` merged into another.
        fused = (tasks.duration_ns == 0.0) & (tasks.basis == Basis.ASSUMED)
        calls = (launches | fused) & (tasks.kind == TaskKind.HOST)
        call_ns = np.where(calls, np.minimum(tasks.duration_ns, floor_ns), tasks.duration_ns)
        between = np.isin(edges.kind, sorted(HOST_TIME_EDGES)) & calls[edges.source] & calls[edges.target]
        floored = between | launch | (edges.kind == EdgeKind.GAP)
        lag_ns = np.where(floored, np.minimum(edges.lag_ns, floor_ns), edges.lag_ns)
        changed = graph.with_durations(call_ns, Basis.ASSUMED)
        note = f"remove_launch_overhead: {int(calls.sum())} calls, {int((lag_ns < edges.lag_ns).sum())} gaps shortened"
        return replace(changed, edges=replace(edges, lag_ns=lag_ns)).with_notes([note])

    return WhatIf(what_if_text("remove_launch_overhead", *([remains] if remains else [])), transform)
