"""C3 what-if: collectives beside kernels are dispatched first, get their own compute units, or run on DMA engines.

A policy says who gets the compute units and what moves the bytes of collectives (C3 and ConCCL, arXiv 2412.14335).
`replay.studies.c3` applies the same what-if to the paper's scenarios.
"""

from dataclasses import replace

import numpy as np

from profilers.trace.arrays import Bools, Floats
from replay.calibration.parameters import Parameters
from replay.costs.demand import measured_beside
from replay.costs.interference import with_memory_traffic
from replay.engine.timeline import Timeline
from replay.engine.timeline import replay as replay_graph
from replay.graph.graph import RESOURCES, Basis, KernelGraph, TaskKind
from replay.graph.operators import Operator
from replay.what_ifs.dispatch import change_priority, partition
from replay.what_ifs.dma import dma_collectives
from replay.what_ifs.what_if import Argument, WhatIf, recipe, unknown_name

#: Numbers of compute units that a partition may reserve for collectives, and the units of the device on which C3 tries
#: them (MI300X).
PARTITIONS, _C3_UNITS = (8, 16, 32, 64, 128), 304
#: Policies of C3 and ConCCL, in the order of the paper.
POLICIES = ("base", "sp", "rp", "sp_rp", "dma", "dma_rp")
#: Times and shares that differ by less are equal.
_ROUNDING = 1e-6
_CU = RESOURCES.index("cu")
_PRODUCTS = ("matmul", "batched_matmul", "convolution")


@recipe(
    "communication",
    "c3:sp_rp",
    Argument("policy", "how collectives get compute units", choices=POLICIES),
)
def c3(policy: str) -> WhatIf:
    """Run collectives beside other tasks by a policy of C3 or ConCCL.

    - ``base``: in the order of their arrival.
    - ``sp`` (schedule prioritisation): collectives are dispatched first.
    - ``rp`` (resource partitioning): collectives get their own 8, 16, 32, 64 or 128 of 304 compute units. As in the
      paper's run-time, it is the number with which the step would end first without contention for bandwidth. None do
      if the step ends no sooner so.
    - ``sp_rp``: both.
    - ``dma`` (ConCCL): collectives without arithmetic run on DMA engines (`dma_collectives`).
    - ``dma_rp``: as ``dma``, and the other collectives as ``rp``.

    With ``rp``, products bound by memory leave some units idle, which makes them faster (`memory_bound_spared_gain`).
    Collectives that no trace shows beside kernels, or that move to DMA engines, share the way to memory with these
    kernels, and both slow (`memory_efficiency_mixed`). Where the trace shows them beside kernels, contention stays as
    it was fitted to traces.

    Collectives that run beside nothing stay as they are. `change_stream:collectives:new` lets those overlap whose
    result nothing needs soon: ``change_stream:collectives:new+c3:sp``.

    Not modelled: caches that memory-bound kernels use better on fewer compute units, apart from that gain. A collective
    that the trace shows beside other tasks already got its compute units from the dispatcher.

    Source: C3 and ConCCL (arXiv 2412.14335).

    Raises
    ------
    NotFoundError
        There is no such policy.
    """
    if policy not in POLICIES:
        raise unknown_name("c3 has no policy", policy, POLICIES)
    mechanisms, name = policy.split("_"), f"c3:{policy}"

    def transform(graph: KernelGraph, parameters: Parameters) -> KernelGraph:
        timeline = replay_graph(graph)
        if not _has_overlap(timeline):
            reason = "no collective runs beside other work of its device"
            advice = "those that nothing waits for can: change_stream:collectives:new"
            return graph.with_notes([f"{name}: nothing to apply it to: {reason} ({advice})"])
        kernels = _beside_collectives(timeline)
        if "dma" in mechanisms:
            graph = dma_collectives()(graph, parameters)
            kernels = np.append(kernels, np.zeros(len(graph.tasks) - len(kernels), dtype=bool))
        graph = _with_contention(graph, kernels, parameters)
        if "sp" in mechanisms:
            graph = change_priority("collectives", 1)(graph, parameters)
        return _with_own_units(graph, kernels, parameters, name) if "rp" in mechanisms else graph

    return WhatIf(name, transform)


def _has_overlap(timeline: Timeline) -> bool:
    """Tell whether a collective runs, or waits for compute units, while another task runs on its device."""
    times = replace(timeline, start_ns=_ready_ns(timeline)).device_times()
    hidden_transfer = (t.transfer_ns - t.exposed_transfer_ns for t in times)
    return any(ns > _ROUNDING for ns in hidden_transfer)


def _ready_ns(timeline: Timeline) -> Floats:
    """Return the start of each task; of a collective, the time at which it could start if it had compute units."""
    tasks = timeline.graph.tasks
    start = np.where(tasks.kind == TaskKind.COLLECTIVE, timeline.arrivals_ns(), timeline.start_ns)
    return np.minimum(start, timeline.end_ns)


def _beside_collectives(timeline: Timeline) -> Bools:
    """Return which kernels run while a collective runs, or waits for compute units, on their device."""
    graph, ready = timeline.graph, _ready_ns(timeline)
    tasks = graph.tasks
    result, is_collective = np.zeros(len(tasks), dtype=bool), graph.collectives()
    is_kernel = (tasks.kind == TaskKind.KERNEL) & graph.on_device() & ~is_collective
    for device in range(len(graph.devices)):
        rows, transfers = (np.flatnonzero(mask & (tasks.device == device)) for mask in (is_kernel, is_collective))
        transfers = transfers[np.argsort(ready[transfers], kind="stable")]
        if not len(transfers):
            continue
        until = np.maximum.accumulate(timeline.end_ns[transfers])
        before = np.searchsorted(ready[transfers], timeline.end_ns[rows] - _ROUNDING, side="left") - 1
        result[rows] = (before >= 0) & (until[before] > timeline.start_ns[rows] + _ROUNDING)
    return result


def _with_contention(graph: KernelGraph, kernels: Bools, parameters: Parameters) -> KernelGraph:
    """Return `graph` with the contention of collectives that no trace shows beside kernels, and of DMA engines."""
    tasks = graph.tasks
    is_new = (tasks.kind == TaskKind.COLLECTIVE) & ~measured_beside(graph)[0]
    if not is_new.any():
        return graph
    changed = with_memory_traffic(graph, is_new, kernels, parameters)
    return graph if changed is graph else replace(changed, policy=replace(graph.policy, quantised=True))


def _with_own_units(graph: KernelGraph, kernels: Bools, parameters: Parameters, name: str) -> KernelGraph:
    """Return `graph` with compute units for collectives only, and with units that products bound by memory spare."""
    spared = _with_spared_units(graph, kernels, parameters)
    tasks = graph.tasks
    if not ((tasks.kind == TaskKind.COLLECTIVE) & (tasks.occupies > 0)).any():
        return spared.with_notes([f"{name}: no collective is left on compute units, so none are set aside"])
    units = graph.hardware.compute_units
    counts = {max(round(units * count / _C3_UNITS), 1) for count in PARTITIONS}
    shares = [count / units for count in sorted(counts) if count < units]
    if not shares:
        return graph.with_notes([f"{name}: the device has too few compute units to set any aside"])
    free = _without_contention(spared)
    times = [replay_graph(partition("collectives", share)(free, parameters)).makespan_ns for share in shares]
    share = shares[int(np.argmin(np.round(times)))]
    chosen = partition("collectives", share)(spared, parameters)
    loss = replay_graph(chosen).makespan_ns / replay_graph(graph).makespan_ns - 1.0
    of_units = f"{round(share * units)} of {units} compute units for collectives"
    if loss >= -_ROUNDING:
        return graph.with_notes([f"{name}: no partition is taken; with {of_units} the step takes {loss:.1%} longer"])
    return replace(chosen, notes=(*graph.notes, f"{name}: {of_units}"))


def _without_contention(graph: KernelGraph) -> KernelGraph:
    """Return `graph` as the rule of the run-time sees it: tasks share compute units and nothing else."""
    demand = np.zeros_like(graph.tasks.demand)
    demand[:, _CU] = graph.tasks.demand[:, _CU]
    return graph.with_tasks(demand=demand, pressure=np.zeros(len(demand)))


def _with_spared_units(graph: KernelGraph, kernels: Bools, parameters: Parameters) -> KernelGraph:
    """Return `graph` in which products bound by memory, beside collectives, leave units idle and are faster for it."""
    tasks, device = graph.tasks, graph.hardware.device
    if device is None or not graph.operators:
        return graph
    ridge = device.flops_per_s("bf16") / device.memory_bytes_per_s
    is_bound = np.array([_is_memory_bound(operator, ridge) for operator in graph.operators])
    rows = kernels & (tasks.operator >= 0) & is_bound[tasks.operator]
    left = 1.0 - parameters["memory_bound_spared_units"] / _C3_UNITS
    demand = tasks.demand.copy()
    demand[rows, _CU] = np.minimum(demand[rows, _CU], left)
    changed = graph.with_tasks(demand=demand, occupies=np.where(rows, np.minimum(tasks.occupies, left), tasks.occupies))
    gain = 1.0 - parameters["memory_bound_spared_gain"]
    return changed.with_durations(np.where(rows, tasks.duration_ns * gain, tasks.duration_ns), Basis.MODELLED)


def _is_memory_bound(operator: Operator, ridge: float) -> bool:
    """Return whether a product has fewer FLOP for each byte than the peaks of the device."""
    return operator.kind in _PRODUCTS and operator.flops < ridge * operator.bytes_moved
