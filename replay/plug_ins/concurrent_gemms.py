"""Concurrent GEMMs what-if: independent matrix products run side by side, with kernels tuned for it (GOLDYLOC).

`independent_gemms` finds the groups, `plan_groups` chooses the degree and the kernels of each. `_with_sets` gives the
kernels their durations and shares of the device, and `run_beside` changes the order.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from profilers.trace.arrays import Floats
from replay.calibration.parameters import Parameters
from replay.engine.engine import simulate
from replay.gemms.gemm import gemm_of_task
from replay.gemms.groups import Groups, UnorderedGemms, independent_gemms
from replay.gemms.planning import MIN_GAIN, STREAMS, GroupPlan, KernelSet, plan_groups
from replay.gemms.tuning import DEGREES
from replay.graph.edit import in_lane_order
from replay.graph.graph import PLACE_COLUMNS, RESOURCES, UNIT_COLUMNS, Basis, KernelGraph
from replay.what_ifs.beside import run_beside
from replay.what_ifs.targets import UNKNOWN_DEVICE
from replay.what_ifs.what_if import Argument, WhatIf, recipe, what_if_text

_AUTO, _PREDICTED, _DEFAULT, _GO = "auto", "predicted", "default", "go"
#: Slowdown of a step that counts: above the engine's rounding.
_MIN_SLOWDOWN: Final = 1e-9
#: Groups that the note names.
_MOST_NAMED: Final = 3
_CU, _L2, _HBM = (RESOURCES.index(name) for name in ("cu", "l2", "hbm"))


@recipe(
    "scheduling",
    "concurrent_gemms:auto:go",
    Argument("degree", "products side by side, auto, or predicted", choices=(_AUTO, _PREDICTED, *map(str, DEGREES)),
             default=_AUTO),
    Argument("kernels", "default or go: the traced kernels, or kernels tuned for a share of the device",
             choices=(_DEFAULT, _GO), default=_GO),
)  # fmt: skip
def concurrent_gemms(degree: str = _AUTO, kernels: str = _GO) -> WhatIf:
    """Run independent matrix products side by side, on streams of their own.

    Products of one device and one step are independent if sizes, phases and streams say so, or the pattern of query,
    key and value; the note names the evidence of each group. Each group is dealt into sets of DEGREE products, or
    chains of products, set after set. A set begins when its first product would have, and what followed a product on
    the stream waits for it.

    The engine runs each kind of set by itself, cut into slices of a wave, with the traced kernels. Its products then
    get such shares of the device that the set takes that time if they all start together. A product alone keeps its
    time. With ``go``, a set takes its GO-kernels, those of the library that are best side by side, if it is faster
    with them. Durations are the traced ones times the ratio of the two kernels' models.

    ``auto`` takes the degree of least time for each kind of group, or 1 if none gains 2 %. Products that the host
    launches too far apart to meet keep their kernels, and nothing changes if the step would take longer. It judges the
    step as the what-ifs before it leave it, so name those that change the host first. ``predicted`` takes the degree
    that a logistic regression on the sizes gives, as hardware would, and judges nothing.

    Not modelled: the host time of the events by which streams wait for each other; launches stay where they are. Nor
    are buffers that the allocator reuses in the order of one stream.

    Source: GOLDYLOC (arXiv 2409.02227).

    Raises
    ------
    NotFoundError
        `degree` is none of auto, predicted, 1, 2, 4, 8 and 16, or `kernels` neither default nor go.
    """

    def transform(graph: KernelGraph, parameters: Parameters) -> KernelGraph:
        graph = in_lane_order(graph)
        groups = independent_gemms(graph)
        if not groups.groups:
            return graph.with_notes([f"concurrent_gemms: nothing to apply it to: {_reason(groups)}"])
        tuned, device = kernels == _GO, graph.hardware.device
        number = None if degree in (_AUTO, _PREDICTED) else int(degree)
        predicted = degree == _PREDICTED
        plans = plan_groups(
            graph, groups.groups, parameters=parameters, degree=number, predicted=predicted, tuned=tuned
        )
        changed = _applied(graph, plans)
        if degree == _AUTO:
            met = _with_kernels_that_meet(graph, changed, plans)
            changed = changed if met == plans else _applied(graph, plans := met)
        notes = [_note(graph, groups, plans)]
        if device is None and (tuned or predicted):
            kept = "kernels stay as traced" if not predicted else "products stay one after another"
            notes.append(f"concurrent_gemms: {kept}: {UNKNOWN_DEVICE[0]}; {UNKNOWN_DEVICE[1]}")
        if degree == _AUTO and (slower := _slowdown(graph, changed)) > _MIN_SLOWDOWN:
            # What else runs on the device, such as collectives, can lose more than the products gain.
            notes = [f"concurrent_gemms: products stay one after another: the step would take {slower:.2%} longer"]
            return graph.with_notes(notes)
        return changed.with_notes(notes)

    return WhatIf(what_if_text("concurrent_gemms", degree, kernels), transform, retimes=True)


def _applied(graph: KernelGraph, plans: Sequence[GroupPlan]) -> KernelGraph:
    """Return the graph with the kernels and the order of the plans."""
    changed = _with_sets(graph, plans)
    return run_beside(changed, [runs for plan in plans for runs in plan.moves])


def _with_kernels_that_meet(graph: KernelGraph, changed: KernelGraph, plans: Sequence[GroupPlan]) -> list[GroupPlan]:
    """Return the plans without the GO-kernels of sets whose time in the step of `changed` is no gain."""
    start, end = simulate(changed)
    duration = graph.tasks.duration_ns

    def kept(each: KernelSet) -> KernelSet:
        rows = list(each.rows)
        span = float(end[rows].max() - start[rows].min())
        gains = span <= (1 - MIN_GAIN) * float(duration[rows].sum())
        return each if gains or not each.tuned else replace(each, tuned=(), share=1.0)

    return [replace(plan, sets=tuple(map(kept, plan.sets))) for plan in plans]


def _with_sets(graph: KernelGraph, plans: Sequence[GroupPlan]) -> KernelGraph:
    """Return the graph with the kernels of the plans, and the shares of the device that sets leave to each of them."""
    tasks = graph.tasks
    columns = {name: getattr(tasks, name).copy() for name in ("occupies", "waves", "workgroups", "footprint")}
    columns |= {name: getattr(tasks, name).copy() for name in ("interleaved", *UNIT_COLUMNS, *PLACE_COLUMNS)}
    demand, duration = tasks.demand.copy(), tasks.duration_ns.copy()
    changed = False
    for plan in plans:  # a Python loop over sets, about 50 us each
        for each in plan.sets:
            rows = np.array(each.rows)
            if len(rows) == 1 or (plan.group.evidence == STREAMS and not each.tuned):
                continue
            changed = True
            set_ns = each.share * tasks.duration_ns[rows].sum()
            if each.tuned:
                duration[rows] *= [kernel.time_ratio for kernel in each.tuned]
                for resource, name in ((_HBM, "memory_ratio"), (_L2, "cache_ratio")):
                    scale = np.array([getattr(kernel, name) / kernel.time_ratio for kernel in each.tuned])
                    demand[rows, resource] = np.minimum(demand[rows, resource] * scale, 1.0)
                columns["workgroups"][rows] = [kernel.workgroups for kernel in each.tuned]
                columns["footprint"][rows] = [kernel.footprint for kernel in each.tuned]
            share = _share_of_device(duration[rows], set_ns)
            demand[rows, _CU] = columns["occupies"][rows] = share
            columns["waves"][rows], columns["interleaved"][rows] = 0.0, True
            # The share says all that the set does to a kernel.
            for name in PLACE_COLUMNS:
                columns[name][rows] = 0
            for name in UNIT_COLUMNS:
                columns[name][rows] = 1.0
    if not changed:
        return graph
    if not np.array_equal(duration, tasks.duration_ns):
        graph = graph.with_durations(duration, Basis.MODELLED)
    return graph.with_tasks(demand=demand, **columns)


def _share_of_device(duration_ns: Floats, set_ns: float) -> float:
    """Return the share of the device that each kernel of a set takes, so that the set takes `set_ns`.

    With a share o each, m kernels at once run at the rate ``min(1, 1 / (m o))``. So the set takes the sum of
    ``max(1, m o)`` times the difference between one duration and the next shorter one.
    """
    steps = np.sort(duration_ns)
    steps[1:] -= steps[:-1].copy()
    active = np.arange(len(steps), 0, -1)
    share = 1.0
    for most in range(1, len(steps)):  # shares from 1 / (most + 1) to 1 / most
        slowed = active > most
        share = (set_ns - steps[~slowed].sum()) / max(float((steps * active)[slowed].sum()), 1e-9)
        if share >= 1.0 / (most + 1):
            break
    return float(np.clip(share, 1.0 / len(steps), 1.0))


def _slowdown(graph: KernelGraph, changed: KernelGraph) -> float:
    """Return by which share a changed graph takes longer."""
    before, after = (float(simulate(each)[1].max()) for each in (graph, changed))
    return after / before - 1.0 if before > 0 else 0.0


def _reason(groups: Groups) -> str:
    """Return why no product is in a group."""
    if not groups.others:
        return "the iteration has no GEMM"
    return "; ".join(f"{count} GEMMs: {reason}" for reason, count in groups.others.items())


def _note(graph: KernelGraph, groups: Groups, plans: Sequence[GroupPlan]) -> str:
    """Return a note that names the groups, and the GEMMs in none."""
    kinds = Counter(
        (_label(graph, plan.group), min(plan.degree, len(plan.group.runs)), plan.is_tuned, plan.group.evidence)
        for plan in plans
    )
    named = [
        f"{count} x ({label}) {f'{degree} at once' if degree > 1 else 'one after another'}"
        f"{', go kernels' if tuned else ''} (evidence: {evidence})"
        for (label, degree, tuned, evidence), count in kinds.most_common(_MOST_NAMED)
    ]
    more = f"; {len(kinds) - _MOST_NAMED} more kinds of groups" if len(kinds) > _MOST_NAMED else ""
    rest = f"; not grouped: {_reason(groups)}" if groups.others else ""
    n_gemms = sum(len(group.gemms) for group in groups.groups)
    return f"concurrent_gemms: {n_gemms} GEMMs in {len(plans)} groups: {'; '.join(named)}{more}{rest}"


def _label(graph: KernelGraph, group: UnorderedGemms) -> str:
    """Return the shapes of a group, such as ``3 of 512x512x512 bf16``."""
    if len(group.runs) < len(group.gemms):
        first = [str(gemm_of_task(graph, row)) for row in group.gemms if row in group.runs[0]]
        return f"{len(group.runs)} chains such as {', '.join(first)}"
    shapes = Counter(str(gemm_of_task(graph, row)) for row in group.gemms)
    return " + ".join(f"{count} of {shape}" if count > 1 else shape for shape, count in shapes.items())
