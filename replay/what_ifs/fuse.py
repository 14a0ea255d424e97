"""What if kernels that follow each other on a stream were one?"""

from dataclasses import fields, replace
from typing import Any

import numpy as np

from profilers.trace.arrays import Bools, Floats, Ints
from replay.calibration.parameters import Parameters
from replay.graph.graph import LAUNCH_EDGES, RESOURCES, STREAM_EDGES, Basis, KernelGraph, TaskKind, Tasks
from replay.what_ifs.what_if import Argument, Recipe, WhatIf, kernel_choice, written

_HBM = RESOURCES.index("hbm")
_NAME = 120


def fuse(kernel: str) -> WhatIf:
    """Chosen kernels that follow each other on a stream are merged: one launch, and no memory traffic between them.

    Two kernels are merged where both are chosen, the second waits for nothing but its stream and its launch, and
    neither the host nor another stream waits for the first. The merged one takes the sum of their times less, at every
    joint, the floor of a kernel (`kernel_floor_ns`) and the time of writing and reading what is passed on; never
    less than the longest of them. Passed on is what one writes and the next reads, where operators are known from
    shapes; otherwise a share (`fused_traffic_share`) of the memory time of the shorter. The call that launched the
    second takes no time any more, and a pause between the two is gone.

    Not modelled: whether the arithmetic can be fused, registers and occupancy of the result, and that the first result
    may be needed later and written all the same (then half of the traffic is saved).

    Source: bytes of operators as in `replay.costs.operators`; the share is assumed: a pointwise kernel writes about
    half of what it moves.

    Raises
    ------
    InvalidInputError
        `kernel` cannot choose kernels.
    """
    choice = kernel_choice("fuse", kernel)

    def transform(graph: KernelGraph, parameters: Parameters) -> KernelGraph:
        before = _joined_to(graph, choice.rows(graph) & (graph.tasks.kind == TaskKind.KERNEL))
        joints = np.flatnonzero(before >= 0)
        note = f"fuse: {len(joints)} of {int(choice.rows(graph).sum())} kernels merged into the one before"
        if not len(joints):
            return graph.with_notes([note])
        return _merged(graph, before, _saved(graph, before, parameters)).with_notes([note])

    return WhatIf(written("fuse", kernel), transform, patterns=choice.patterns)


def _joined_to(graph: KernelGraph, chosen: Bools) -> Ints:
    """Return for each task the one before it that it can be merged into; -1 for none."""
    edges, n = graph.edges, len(graph.tasks)
    on_stream, launch = np.isin(edges.kind, sorted(STREAM_EDGES)), np.isin(edges.kind, sorted(LAUNCH_EDGES))
    order = on_stream & chosen[edges.source] & chosen[edges.target]
    order &= (graph.tasks.lane[edges.source] == graph.tasks.lane[edges.target]) & ~edges.from_start
    order &= graph.tasks.own[edges.source] == graph.tasks.own[edges.target]
    waits = np.bincount(edges.target[~launch], minlength=n)
    needed = np.bincount(edges.source, minlength=n)
    fits = order & (waits[edges.target] == 1) & (needed[edges.source] == 1)
    before = np.full(n, -1)
    before[edges.target[fits]] = edges.source[fits]
    return before


def _saved(graph: KernelGraph, before: Ints, parameters: Parameters) -> Floats:
    """Return what each task's merging into the one before saves, ns."""
    tasks, device = graph.tasks, graph.hardware.device
    second = np.flatnonzero(before >= 0)
    first = before[second]
    full = parameters["hbm_share_memory_bound"]
    memory = tasks.duration_ns * np.minimum(tasks.demand[:, _HBM] / full, 1.0)
    traffic = 2 * parameters["fused_traffic_share"] * np.minimum(memory[first], memory[second])
    if device is not None and graph.operators:
        moved = np.array([(o.bytes_written, o.bytes_read) for o in graph.operators], dtype=np.float64)
        passed = np.minimum(moved[tasks.operator[first], 0], moved[tasks.operator[second], 1])
        known = (tasks.operator[first] >= 0) & (tasks.operator[second] >= 0)
        traffic = np.where(known, 2e9 * passed / (full * device.memory_bytes_per_s), traffic)
    amd = "_amd" if device is not None and device.vendor == "AMD" else ""
    floor = np.minimum(parameters[f"kernel_floor{amd}_ns"], tasks.duration_ns[second])
    saved = np.zeros(len(tasks))
    saved[second] = floor + np.minimum(traffic, tasks.duration_ns[second] - floor)
    return saved


def _merged(graph: KernelGraph, before: Ints, saved: Floats) -> KernelGraph:
    """Return the graph with every run of joined tasks as one, in the place of its first."""
    tasks = graph.tasks
    head = _heads(before)
    spent = tasks.duration_ns
    total = np.bincount(head, weights=spent - saved, minlength=len(tasks))
    longest = np.zeros(len(tasks))
    np.maximum.at(longest, head, spent)
    merged = np.zeros(len(tasks), dtype=bool)
    merged[head[before >= 0]] = True
    columns: dict[str, Any] = {
        "duration_ns": np.where(merged, np.maximum(total, longest), spent),
        "basis": np.where(merged, int(Basis.ASSUMED), tasks.basis),
        "demand": np.where(merged[:, None], _averaged(tasks.demand, spent, head), tasks.demand),
        "operator": np.where(merged, -1, tasks.operator),
    }
    for name in ("occupies", "waves", "workgroups", "footprint", "hit_share", "priority"):
        most = getattr(tasks, name).copy()
        np.maximum.at(most, head, getattr(tasks, name))
        columns[name] = most
    ends = np.nan_to_num(tasks.measured_end_ns, nan=-np.inf)
    end = ends.copy()
    np.maximum.at(end, head, ends)
    columns["measured_end_ns"] = np.where(np.isnan(tasks.measured_end_ns), np.nan, end)
    names = list(graph.names)
    columns["name"] = _named(tasks, before, names)
    changed = replace(graph, names=tuple(names)).with_tasks(**columns)
    return _without(_unlaunched(changed, before), before >= 0, head)


def _heads(before: Ints) -> Ints:
    """Return the first task of the run that each is in."""
    head = np.where(before >= 0, before, np.arange(len(before)))
    while not np.array_equal(further := head[head], head):  # doubles its reach each time
        head = further
    return head


def _averaged(demand: Floats, weight: Floats, head: Ints) -> Floats:
    total = np.zeros_like(demand)
    np.add.at(total, head, demand * weight[:, None])
    time = np.bincount(head, weights=weight, minlength=len(weight))
    return np.asarray(np.clip(np.where(time[:, None] > 0, total / np.maximum(time, 1e-9)[:, None], demand), 0.0, 1.0))


def _named(tasks: Tasks, before: Ints, names: list[str]) -> Ints:
    """Return the names of the tasks; that of a merged one is of all that it was, appended to `names`."""
    known = {name: i for i, name in enumerate(names)}
    text = {}
    for task in np.flatnonzero(before >= 0).tolist():  # a Python loop over merged kernels, about 1 us each
        text[task] = names[int(tasks.name[task])]
    head = _heads(before)
    joined: dict[int, str] = {}
    for task, name in text.items():
        first = int(head[task])
        joined[first] = f"{joined.get(first, names[int(tasks.name[first])])[:_NAME]} + {name[:_NAME]}"
    column = tasks.name.copy()
    for first, name in joined.items():
        if name not in known:
            known[name] = len(names)
            names.append(name)
        column[first] = known[name]
    return column


def _unlaunched(graph: KernelGraph, before: Ints) -> KernelGraph:
    """Return the graph without the launches of what is merged; a call that launched nothing else takes no time."""
    edges = graph.edges
    launch = np.isin(edges.kind, sorted(LAUNCH_EDGES))
    gone = launch & (before[edges.target] >= 0)
    n = len(graph.tasks)
    left = np.bincount(edges.source[launch & ~gone], minlength=n)
    idle = (np.bincount(edges.source[gone], minlength=n) > 0) & (left == 0) & (graph.tasks.kind == TaskKind.HOST)
    duration = np.where(idle, 0.0, graph.tasks.duration_ns)
    # `remove_launch_overhead` knows a call that launches no more by its basis.
    basis = np.where(idle, int(Basis.ASSUMED), graph.tasks.basis)
    return replace(graph, edges=edges.select(~gone)).with_tasks(duration_ns=duration, basis=basis)


def _without(graph: KernelGraph, gone: Bools, head: Ints) -> KernelGraph:
    """Return the graph without some tasks; what left them leaves their head."""
    number = np.cumsum(~gone) - 1
    edges = graph.edges
    kept = edges.select(~gone[edges.target])
    # "A little after its start" is not known of a part of the merged kernel: then after its end.
    inside = gone[kept.source] & kept.from_start
    moved = replace(
        kept,
        source=number[head[kept.source]],
        target=number[kept.target],
        lag_ns=np.where(inside, 0.0, kept.lag_ns),
        from_start=kept.from_start & ~inside,
    )
    tasks = Tasks(**{one.name: getattr(graph.tasks, one.name)[~gone] for one in fields(Tasks)})
    return replace(graph, tasks=tasks, edges=moved)


RECIPES = (
    Recipe(
        "fuse",
        fuse,
        (Argument("kernel", "class, name, or pattern with * and ?"),),
        "Chosen kernels that follow each other on a stream become one, without the traffic and launches between.",
        "fuse:elementwise",
        "kernels",
    ),
)
