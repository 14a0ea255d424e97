"""Fusion what-if: kernels that follow each other on a stream become one.

`_fusable_predecessor` finds the pairs, `_saved_time` prices each joint, and `_merged` replaces every chain of pairs by
its first kernel.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from profilers.trace.arrays import Bools, Floats, Ints
from profilers.trace.kernels import CLASSES
from replay.calibration.parameters import Parameters
from replay.costs.retiming import floor_ns
from replay.graph.choice import TaskChoice
from replay.graph.edit import without_tasks
from replay.graph.graph import LAUNCH_EDGES, RESOURCES, STREAM_EDGES, Basis, KernelGraph, TaskKind
from replay.what_ifs.what_if import WhatIf, recipe, tasks_argument, what_if_text

_KERNELS = (TaskKind.KERNEL,)
_HBM = RESOURCES.index("hbm")
#: Characters of each name in the name of a merged kernel.
_NAME_LENGTH = 120


@recipe("kernels", "fuse:elementwise", replace(tasks_argument("merge"), older_name="kernel"))
def fuse(tasks: str) -> WhatIf:
    """Merge chosen kernels that follow each other on a stream: one launch, and no memory traffic in between.

    Two kernels merge if three conditions hold. Both are chosen. The second waits only for its stream and its launch.
    Neither the host nor another stream waits for the first.

    The merged kernel takes the sum of the durations, less the savings of each joint, and never less than its longest
    part. A joint saves the floor of a kernel (`kernel_floor_ns`) and the time to write and read the intermediate
    result. If shapes are known, its size is the smaller of the bytes written and the bytes read. Otherwise the saved
    time is a share (`fused_traffic_share`) of the memory time of the shorter kernel, for each of write and read.
    Kernels of one name in an optimizer go through other tensors: such a joint saves the floor alone. The launch of the
    second kernel takes no time, and a pause between the two disappears.

    Not modelled: whether the arithmetic can be fused, and the registers and occupancy of the merged kernel. A later
    kernel may still need the intermediate result. It is then written all the same, and only half of the traffic is
    saved.

    Source: bytes of operators as in `replay.costs.operators`. The share is assumed: a pointwise kernel writes about
    half of the bytes that it moves.

    Raises
    ------
    InvalidInputError
        `tasks` is no valid choice.
    """
    choice = TaskChoice(tasks, kinds=_KERNELS, allowed=_KERNELS)

    def transform(graph: KernelGraph, parameters: Parameters) -> KernelGraph:
        before = _fusable_predecessor(graph, choice.rows(graph))
        joints = np.flatnonzero(before >= 0)
        note = f"fuse: {len(joints)} of {int(choice.rows(graph).sum())} kernels merged into the one before"
        if not len(joints):
            return graph.with_notes([note])
        return _merged(graph, before, _saved_time(graph, before, parameters)).with_notes([note])

    return WhatIf(what_if_text("fuse", tasks), transform, choices=(choice,), retimes=True)


def _fusable_predecessor(graph: KernelGraph, chosen: Bools) -> Ints:
    """Return for each task the predecessor that it can be merged into; -1 for none."""
    edges, n = graph.edges, len(graph.tasks)
    on_stream, launch = np.isin(edges.kind, sorted(STREAM_EDGES)), np.isin(edges.kind, sorted(LAUNCH_EDGES))
    joins = on_stream & chosen[edges.source] & chosen[edges.target]
    joins &= (graph.tasks.lane[edges.source] == graph.tasks.lane[edges.target]) & ~edges.from_start
    joins &= graph.tasks.in_iteration[edges.source] == graph.tasks.in_iteration[edges.target]
    waits = np.bincount(edges.target[~launch], minlength=n)
    dependents = np.bincount(edges.source, minlength=n)
    fusable = joins & (waits[edges.target] == 1) & (dependents[edges.source] == 1)
    before = np.full(n, -1)
    before[edges.target[fusable]] = edges.source[fusable]
    return before


def _saved_time(graph: KernelGraph, before: Ints, parameters: Parameters) -> Floats:
    """Return the time that each task saves by merging into its predecessor, ns."""
    tasks, device = graph.tasks, graph.hardware.device
    second = np.flatnonzero(before >= 0)
    first = before[second]
    memory_bound_share = parameters["hbm_share_memory_bound"]
    memory_ns = tasks.duration_ns * np.minimum(tasks.demand[:, _HBM] / memory_bound_share, 1.0)
    traffic_ns = 2 * parameters["fused_traffic_share"] * np.minimum(memory_ns[first], memory_ns[second])
    if device is not None and graph.operators:
        moved_bytes = np.array([(o.bytes_written, o.bytes_read) for o in graph.operators], dtype=np.float64)
        passed_bytes = np.minimum(moved_bytes[tasks.operator[first], 0], moved_bytes[tasks.operator[second], 1])
        has_shapes = (tasks.operator[first] >= 0) & (tasks.operator[second] >= 0)
        traffic_ns = np.where(
            has_shapes, 2e9 * passed_bytes / (memory_bound_share * device.memory_bytes_per_s), traffic_ns
        )
    # Successive kernels of one name in an optimizer go through other tensors: nothing passes from one to the next.
    is_optimizer = tasks.class_[second] == CLASSES.index("optimizer")
    traffic_ns = np.where(is_optimizer & (tasks.name[first] == tasks.name[second]), 0.0, traffic_ns)
    least_ns = np.minimum(floor_ns("kernel", device, parameters), tasks.duration_ns[second])
    saved = np.zeros(len(tasks))
    saved[second] = least_ns + np.minimum(traffic_ns, tasks.duration_ns[second] - least_ns)
    return saved


def _merged(graph: KernelGraph, before: Ints, saved: Floats) -> KernelGraph:
    """Return the graph with every chain of fusable kernels as one kernel, in the row of its first."""
    tasks = graph.tasks
    head = _chain_heads(before)
    duration_ns = tasks.duration_ns
    total_ns = np.bincount(head, weights=duration_ns - saved, minlength=len(tasks))
    sum_ns = np.bincount(head, weights=duration_ns, minlength=len(tasks))
    merged = np.zeros(len(tasks), dtype=bool)
    merged[head[before >= 0]] = True

    def largest(values: Floats) -> Floats:
        most = values.copy()
        np.maximum.at(most, head, values)
        return most

    def mean(values: Floats) -> Floats:
        total = np.bincount(head, weights=duration_ns * values, minlength=len(tasks))
        return np.where(merged & (sum_ns > 0), total / np.maximum(sum_ns, 1e-9), values)

    columns: dict[str, Any] = {
        "factor": mean(tasks.factor),
        "duration_ns": np.where(merged, np.maximum(total_ns, largest(duration_ns)), duration_ns),
        "basis": np.where(merged, int(Basis.ASSUMED), tasks.basis),
        "demand": np.where(merged[:, None], _weighted_demand(tasks.demand, duration_ns, head), tasks.demand),
        "operator": np.where(merged, -1, tasks.operator),
        "memory_operator": np.where(merged, -1, tasks.memory_operator),
        "sensitivity": mean(tasks.sensitivity),
    }
    for name in ("occupies", "waves", "workgroups", "footprint", "hit_share", "in_rounds", "pressure", "priority"):
        columns[name] = largest(getattr(tasks, name))
    last_end_ns = largest(np.nan_to_num(tasks.measured_end_ns, nan=-np.inf))
    columns["measured_end_ns"] = np.where(np.isnan(tasks.measured_end_ns), np.nan, last_end_ns)
    columns["name"], names = _merged_names(graph, before, head)
    changed = replace(graph, names=names).with_tasks(**columns)
    return without_tasks(_without_launches(changed, before), before >= 0, work_of=head)


def _chain_heads(before: Ints) -> Ints:
    """Return the first task of the chain that each task is in."""
    head = np.where(before >= 0, before, np.arange(len(before)))
    while not np.array_equal(further := head[head], head):  # each pass doubles the steps taken
        head = further
    return head


def _weighted_demand(demand: Floats, weight: Floats, head: Ints) -> Floats:
    """Return the demand of each chain, at its head, as the mean weighted by duration."""
    total = np.zeros_like(demand)
    np.add.at(total, head, demand * weight[:, None])
    time = np.bincount(head, weights=weight, minlength=len(weight))
    return np.asarray(np.clip(np.where(time[:, None] > 0, total / np.maximum(time, 1e-9)[:, None], demand), 0.0, 1.0))


def _merged_names(graph: KernelGraph, before: Ints, head: Ints) -> tuple[Ints, tuple[str, ...]]:
    """Return the name column with the joined names of merged kernels, and all names."""
    tasks, names = graph.tasks, list(graph.names)
    number = {name: i for i, name in enumerate(names)}
    joined: dict[int, str] = {}
    for task in np.flatnonzero(before >= 0).tolist():  # a Python loop over merged kernels, about 1 us each
        first, name = int(head[task]), names[int(tasks.name[task])]
        joined[first] = f"{joined.get(first, names[int(tasks.name[first])])[:_NAME_LENGTH]} + {name[:_NAME_LENGTH]}"
    column = tasks.name.copy()
    for first, name in joined.items():
        if name not in number:
            number[name] = len(names)
            names.append(name)
        column[first] = number[name]
    return column, tuple(names)


def _without_launches(graph: KernelGraph, before: Ints) -> KernelGraph:
    """Return the graph without launches of merged kernels. Calls that launch nothing else take no time."""
    edges = graph.edges
    launch = np.isin(edges.kind, sorted(LAUNCH_EDGES))
    gone = launch & (before[edges.target] >= 0)
    n = len(graph.tasks)
    launches_left = np.bincount(edges.source[launch & ~gone], minlength=n)
    idle = (
        (np.bincount(edges.source[gone], minlength=n) > 0) & (launches_left == 0) & (graph.tasks.kind == TaskKind.HOST)
    )
    duration = np.where(idle, 0.0, graph.tasks.duration_ns)
    # `remove_launch_overhead` recognises such a call by its duration and basis.
    basis = np.where(idle, int(Basis.ASSUMED), graph.tasks.basis)
    return replace(graph, edges=edges.select(~gone)).with_tasks(duration_ns=duration, basis=basis)
