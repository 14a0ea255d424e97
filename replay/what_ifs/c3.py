"""C3 what-if: collectives beside kernels are dispatched first, get their own compute units, or run on DMA engines.

A policy says who gets the compute units and what moves the bytes of collectives (C3 and ConCCL, arXiv 2412.14335).
`replay.studies.c3` applies the same what-if to the paper's scenarios.
"""

from dataclasses import replace

import numpy as np

from profilers.devices.catalogue import Device
from profilers.trace.arrays import Bools, Ints
from replay.calibration.parameters import Parameters
from replay.costs.demand import measured_beside
from replay.costs.interference import with_memory_traffic
from replay.engine.timeline import Timeline
from replay.engine.timeline import replay as replay_graph
from replay.graph.graph import RESOURCES, Basis, KernelGraph, TaskKind
from replay.graph.operators import Operator
from replay.what_ifs.dispatch import change_priority, partition
from replay.what_ifs.dma import dma_collectives, movable
from replay.what_ifs.targets import Miss, Target, Targets
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
        timeline, kernels = replay_graph(graph), (graph.tasks.kind == TaskKind.KERNEL) & ~graph.collectives()
        overlapped = _partners(timeline, graph.collectives(), graph.on_device() & ~graph.collectives()) >= 0
        if not overlapped.any():
            return graph.with_notes([f"{name}: nothing to apply it to: no collective {_ALONE}"])
        is_new = ~measured_beside(graph)
        if "dma" in mechanisms:
            before, graph = graph, dma_collectives()(graph, parameters)
            is_new |= graph.tasks.engine[: len(kernels)] != before.tasks.engine
        slowed = _partners(timeline, kernels, overlapped & is_new) >= 0
        spared = _partners(timeline, kernels, overlapped) >= 0
        added = len(graph.tasks) - len(kernels)  # commands and copies
        masks = ((is_new, True), (slowed, False), (spared, False))
        is_new, slowed, spared = (np.append(mask, np.full(added, value)) for mask, value in masks)
        graph = _with_contention(graph, is_new, slowed, parameters)
        if policy == "base" and not slowed.any():
            graph = graph.with_notes(
                [f"{name}: nothing to apply it to: every collective that {_ALONE} did so when traced"]
            )
        if "sp" in mechanisms:
            graph = change_priority("collectives", 1)(graph, parameters)
        return _with_own_units(graph, spared, parameters, name) if "rp" in mechanisms else graph

    def targets(graph: KernelGraph, parameters: Parameters) -> Targets:
        overlapped = _targets(graph)
        if policy != "dma":
            return overlapped
        kept = {miss.collective: miss for miss in movable(graph, parameters).misses}
        found = tuple(target for target in overlapped.found if target.collective not in kept)
        on_units = (kept[target.collective] for target in overlapped.found if target.collective in kept)
        return Targets(found, (*overlapped.misses, *on_units))

    return WhatIf(name, transform, targets=targets)


_ALONE = "runs beside other work of its device"
_MOVE = "change_stream:collectives:new lets those overlap whose result nothing needs soon"


def _targets(graph: KernelGraph) -> Targets:
    """Return the collectives that run beside other tasks, each with one of these, and those that do not."""
    partner = _partners(replay_graph(graph), graph.collectives(), graph.on_device() & ~graph.collectives())
    rows = np.flatnonzero((graph.tasks.kind == TaskKind.COLLECTIVE) & graph.tasks.in_iteration)
    chosen = rows[partner[rows] >= 0]
    pairs = zip(chosen.tolist(), partner[chosen].tolist(), strict=True)
    reason = "run beside no other work of their device"
    misses = (Miss(row, reason, _MOVE) for row in rows[partner[rows] < 0].tolist())
    return Targets(tuple(Target(row, (task,), -1) for row, task in pairs), tuple(misses))


def _partners(timeline: Timeline, chosen: Bools, others: Bools) -> Ints:
    """Return for each of `chosen` tasks one of `others` that runs at the same time on the same device; -1 if none does.

    A collective runs from when it could start if it had compute units.
    """
    graph, device, end = timeline.graph, timeline.graph.tasks.device, timeline.end_ns
    start = np.where(graph.collectives(), timeline.arrivals_ns(), timeline.start_ns)
    start, result = np.minimum(start, end), np.full(len(end), -1)
    for number in range(len(graph.devices)):
        rows, other = (np.flatnonzero(mask & (device == number)) for mask in (chosen, others))
        if len(rows) and len(other):
            other = other[np.argsort(start[other], kind="stable")]
            is_last = end[other] >= np.maximum.accumulate(end[other])
            last = other[np.maximum.accumulate(np.where(is_last, np.arange(len(other)), 0))]
            before = np.searchsorted(start[other], end[rows] - _ROUNDING, side="left") - 1
            meets = (before >= 0) & (end[last[before]] > start[rows] + _ROUNDING)
            result[rows[meets]] = last[before[meets]]
    return result


def _with_contention(graph: KernelGraph, is_new: Bools, kernels: Bools, parameters: Parameters) -> KernelGraph:
    """Return `graph` with the contention of collectives that no trace shows beside kernels, and of DMA engines."""
    changed = with_memory_traffic(graph, is_new & graph.collectives(), kernels, parameters)
    if changed is graph or not kernels.any():
        return graph
    note = f"c3: {int(kernels.sum())} kernels share the way to memory with collectives that the trace shows alone"
    return changed.with_notes([note])


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
    free = dict.fromkeys(("pressure", "spins", "memory_part", "unit_compute", "unit_bandwidth"), np.zeros(len(demand)))
    return graph.with_tasks(demand=demand, **free)


def _with_spared_units(graph: KernelGraph, kernels: Bools, parameters: Parameters) -> KernelGraph:
    """Return `graph` in which products bound by memory, beside collectives, leave units idle and are faster for it."""
    tasks, device = graph.tasks, graph.hardware.device
    if device is None or not graph.operators:
        return graph
    is_bound = np.array([_is_memory_bound(operator, device) for operator in graph.operators])
    rows = kernels & (tasks.operator >= 0) & is_bound[tasks.operator]
    left = 1.0 - parameters["memory_bound_spared_units"] / _C3_UNITS
    demand = tasks.demand.copy()
    demand[rows, _CU] = np.minimum(demand[rows, _CU], left)
    changed = graph.with_tasks(demand=demand, occupies=np.where(rows, np.minimum(tasks.occupies, left), tasks.occupies))
    gain = 1.0 - parameters["memory_bound_spared_gain"]
    return changed.with_durations(np.where(rows, tasks.duration_ns * gain, tasks.duration_ns), Basis.MODELLED)


def _is_memory_bound(operator: Operator, device: Device) -> bool:
    """Return whether a product has fewer FLOP for each byte than the peaks of the device."""
    dtype = {1: "fp8", 2: "bf16"}.get(operator.element_bytes, "fp32")
    ridge = device.flops_per_s(dtype) / device.memory_bytes_per_s
    return operator.kind in _PRODUCTS and operator.flops < ridge * operator.bytes_moved
