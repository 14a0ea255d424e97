"""Scaling what-ifs: chosen tasks, or the host, are faster or slower by a factor; or launches cost next to nothing.

`near_memory` scales kernels by the bandwidth inside the memory.
"""

from dataclasses import replace

import numpy as np

from profilers.errors import InvalidInputError
from replay.calibration.parameters import Parameters
from replay.costs.retiming import arithmetic_tasks, floor_ns
from replay.graph.choice import TaskChoice
from replay.graph.edit import with_host_time
from replay.graph.graph import HOST_TIME_EDGES, LAUNCH_EDGES, RESOURCES, Basis, EdgeKind, KernelGraph, TaskKind
from replay.what_ifs.swap import duration_ns
from replay.what_ifs.what_if import Argument, WhatIf, check_factor, recipe, tasks_argument, what_if_text

_HBM = RESOURCES.index("hbm")


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


@recipe(
    "kernels",
    "near_memory:optimizer",
    tasks_argument("run in the memory"),
    Argument("factor", "bandwidth inside the memory over that outside", "number", default="0"),
)
def near_memory(tasks: str, factor: float = 0.0) -> WhatIf:
    """Run chosen kernels inside the memory, whose banks read and write at FACTOR times the bandwidth outside.

    By default FACTOR is `near_memory_bandwidth` of `datasets/parameters.toml`. A kernel takes its floor
    (`kernel_floor_ns`, a launch) and its time above it, of which the share that waits for memory is divided by FACTOR.
    That share is the kernel's demand of the memory's bandwidth over `hbm_share_memory_bound`. While it runs, no other
    kernel has the memory: it asks for all of its bandwidth.

    Matrix products, convolutions and attention stay on the compute units, and a note counts them.

    Not modelled: whether the operands of one operation lie in one bank, a change between modes of the memory, and the
    arithmetic that its units lack (a square root or a division of an optimizer).

    Source: near-memory optimizers as in the BERT characterisation (arXiv 2104.08335). FACTOR is that of HBM-PIM, whose
    banks work at the same time: derived in arXiv 2311.05034's set-up.

    Raises
    ------
    InvalidInputError, NotFoundError
        `tasks` is no valid choice, or `factor` is neither 0 nor within 1e-6 to 1e6.
    """
    choice = TaskChoice(tasks, kinds=(TaskKind.KERNEL,), allowed=(TaskKind.KERNEL,))
    check_factor("near_memory", factor, zero=True)

    def transform(graph: KernelGraph, parameters: Parameters) -> KernelGraph:
        times, all_chosen = factor or parameters["near_memory_bandwidth"], choice.rows(graph)
        chosen, duration_ns = all_chosen & ~arithmetic_tasks(graph), graph.tasks.duration_ns
        least_ns = np.minimum(floor_ns("kernel", graph.hardware.device, parameters), duration_ns)
        waiting = np.minimum(graph.tasks.demand[:, _HBM] / parameters["hbm_share_memory_bound"], 1.0)
        inside_ns = least_ns + (duration_ns - least_ns) * (1.0 - waiting + waiting / times)
        demand = graph.tasks.demand.copy()
        demand[chosen, _HBM] = 1.0
        changed = graph.with_durations(np.where(chosen, inside_ns, duration_ns), Basis.ASSUMED)
        stay = int((all_chosen & ~chosen).sum())
        note = f"near_memory: {int(chosen.sum())} kernels at {times:g} times the bandwidth"
        return changed.with_tasks(demand=demand).with_notes([note + (f"; {stay} products stay" if stay else "")])

    name = what_if_text("near_memory", tasks, *([factor] if factor else []))
    return WhatIf(name, transform, choices=(choice,), retimes=True)


def _copies_left(graph: KernelGraph, tasks: str) -> str:
    """Return how many memory copies the class of copying kernels leaves out, for a note."""
    n_copies = int((graph.tasks.kind == TaskKind.COPY).sum())
    return f", kernels that copy; {n_copies} memory copies are chosen by copies" if tasks == "copy" and n_copies else ""


def _gap_notes(graph: KernelGraph, name: str) -> list[str]:
    """Return a note on the gaps that are taken for the host, in a graph without a launch; empty if there are none."""
    edges = graph.edges
    gaps_ns = edges.lag_ns[(edges.kind == EdgeKind.GAP) & (edges.lag_ns > 0)]
    if not len(gaps_ns) or np.isin(edges.kind, sorted(LAUNCH_EDGES)).any():
        return []
    return [f"{name}: no launch is recorded; gaps of the device ({len(gaps_ns)}) are assumed to be time of the host"]


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
        return with_host_time(graph.with_tasks(basis=basis), factor).with_notes(_gap_notes(graph, "scale_host"))

    return WhatIf(what_if_text("scale_host", factor), transform)


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
        notes = [note, *_gap_notes(graph, "remove_launch_overhead")]
        return replace(changed, edges=replace(edges, lag_ns=lag_ns)).with_notes(notes)

    return WhatIf(what_if_text("remove_launch_overhead", *([remains] if remains else [])), transform)
