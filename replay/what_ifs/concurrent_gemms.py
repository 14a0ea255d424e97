"""Concurrent GEMMs what-if: independent matrix products run side by side, with kernels tuned for it (GOLDYLOC).

`independent_gemms` finds the groups. `_Trials` runs sets of their kernels in the engine, on a device each, and
`_Trials.plan` keeps the degree and the kernels that are fastest. `run_beside` changes the order.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from profilers.devices.catalogue import Device
from profilers.trace.arrays import Bools, Floats, Ints
from replay.calibration.parameters import Parameters
from replay.engine.engine import simulate
from replay.gemms.concurrency import variant_columns
from replay.gemms.gemm import Gemm, gemm_of_task
from replay.gemms.go_kernels import DEGREES, go_kernel
from replay.gemms.groups import Group, Groups, independent_gemms
from replay.graph.graph import RESOURCES, Basis, EdgeKind, Edges, KernelGraph
from replay.what_ifs.beside import Run, run_beside
from replay.what_ifs.targets import UNKNOWN_DEVICE
from replay.what_ifs.what_if import Argument, WhatIf, recipe, what_if_text

_AUTO, _DEFAULT, _GO = "auto", "default", "go"
#: Gain below which nothing changes: the engine's rounding.
_MIN_GAIN: Final = 1e-9
#: Groups that the note names.
_MOST_NAMED: Final = 3
_CU, _L2, _HBM = (RESOURCES.index(name) for name in ("cu", "l2", "hbm"))


@recipe(
    "scheduling",
    "concurrent_gemms:auto:go",
    Argument("degree", "products side by side, or auto", choices=(_AUTO, *map(str, DEGREES)), default=_AUTO),
    Argument("kernels", "default or go: the traced kernels, or kernels tuned for a share of the device",
             choices=(_DEFAULT, _GO), default=_GO),
)  # fmt: skip
def concurrent_gemms(degree: str = _AUTO, kernels: str = _GO) -> WhatIf:
    """Run independent matrix products side by side, on streams of their own.

    Products of one device and one step are independent if sizes, phases and streams say so, or the pattern of query,
    key and value; the note names the evidence of each group. Each group is dealt into sets of DEGREE products, or
    chains of products, set after set. A set begins when its first product would have, and what followed a product on
    the stream waits for it.

    The traced kernels keep their isolated durations, and the engine shares compute units, cache and memory between
    them. With ``go``, a product takes its GO-kernel, the one of the library that is best with DEGREE copies side by
    side, if the set is faster with it. Its duration is the traced one times the ratio of the two kernels' models.
    ``auto`` runs each kind of group in the engine at every degree and keeps the fastest; it changes nothing if the
    step as a whole would take longer.

    Not modelled: the host time of the events by which streams wait for each other; launches stay where they are. Nor
    are buffers that the allocator reuses in the order of one stream.

    Source: GOLDYLOC (arXiv 2409.02227).

    Raises
    ------
    NotFoundError
        `degree` is none of auto, 1, 2, 4, 8 and 16, or `kernels` neither default nor go.
    """

    def transform(graph: KernelGraph, parameters: Parameters) -> KernelGraph:
        groups = independent_gemms(graph)
        if not groups.groups:
            return graph.with_notes([f"concurrent_gemms: nothing to apply it to: {_reason(groups)}"])
        device = graph.hardware.device if kernels == _GO else None
        degrees = DEGREES if degree == _AUTO else (int(degree),)
        plans = _Trials(graph, device, parameters).plans(groups.groups, degrees)
        notes = [_note(graph, groups, plans)]
        if kernels == _GO and device is None:
            notes.append(f"concurrent_gemms: kernels stay as traced: {UNKNOWN_DEVICE[0]}; {UNKNOWN_DEVICE[1]}")
        tuned = _with_variants(graph, plans, parameters)
        changed = run_beside(tuned, [each for plan in plans for each in plan.sets])
        if degree == _AUTO and (slower := _slowdown(graph, changed)) > _MIN_GAIN:
            # What else runs on the device, such as collectives, can lose more than the products gain.
            notes = [f"concurrent_gemms: products stay one after another: the step would take {slower:.2%} longer"]
            return graph.with_notes(notes)
        return changed.with_notes(notes)

    return WhatIf(what_if_text("concurrent_gemms", degree, kernels), transform, retimes=True)


@dataclass(frozen=True)
class _Plan:
    """A group with its degree of concurrency, and whether its kernels are tuned for that degree."""

    group: Group
    degree: int
    tuned: bool

    @property
    def sets(self) -> list[tuple[Run, ...]]:
        """Runs that are side by side, set after set; none if their streams are theirs already."""
        return [] if self.group.evidence == "streams" else self.dealt

    @property
    def dealt(self) -> list[tuple[Run, ...]]:
        """Runs of each set."""
        runs = self.group.runs
        return [runs[first : first + self.degree] for first in range(0, len(runs), self.degree)]


@dataclass(frozen=True)
class _Trials:
    """Trials of groups in the engine; `device` is None if kernels stay as traced."""

    graph: KernelGraph
    device: Device | None
    parameters: Parameters

    def plans(self, groups: Sequence[Group], degrees: Sequence[int]) -> list[_Plan]:
        """Return the degree and the kernels of each group; groups of the same kernels have the same plan."""
        keys = [self._key(group) for group in groups]
        first = dict(reversed(list(zip(keys, groups, strict=True))))
        choices = [
            _Plan(group, degree, tuned)
            for group in first.values()
            for degree in _possible(group, degrees)
            for tuned in ((False, True) if self.device is not None and degree > 1 else (False,))
        ]
        times = self._times_ns(choices)
        best: dict[tuple[object, ...], tuple[float, _Plan]] = {}
        for plan, time in zip(choices, times.tolist(), strict=True):  # the simpler plan comes first, and stays if equal
            key = self._key(plan.group)
            if key not in best or time < best[key][0] * (1 - _MIN_GAIN):
                best[key] = time, plan
        return [replace(best[key][1], group=group) for key, group in zip(keys, groups, strict=True)]

    def _key(self, group: Group) -> tuple[object, ...]:
        tasks, rows = self.graph.tasks, list(group.gemms)
        columns = (tasks.operator[rows], tasks.dtype[rows], tasks.workgroups[rows])
        return (group.evidence == "streams", *(tuple(column.tolist()) for column in columns))

    def _times_ns(self, plans: Sequence[_Plan]) -> Floats:
        """Return the time of each plan: that of its sets, one after another. Each set has a device of its own."""
        is_gemm = _members(self.graph, [plan.group for plan in plans])
        sets = [(number, plan, members) for number, plan in enumerate(plans) for members in plan.dealt]
        runs = [(number, run) for number, (_, _, members) in enumerate(sets) for run in members]
        rows = np.concatenate([run for _, run in runs]).astype(np.int64)
        device = np.repeat([number for number, _ in runs], [len(run) for _, run in runs])
        run_of = np.repeat(np.arange(len(runs)), [len(run) for _, run in runs])
        tuned = np.array([plan.degree if plan.tuned and len(members) > 1 else 1 for _, plan, members in sets])
        tasks = replace(self.graph.tasks.select(rows), device=device, release_ns=np.zeros(len(rows)))
        inside = np.flatnonzero(np.diff(run_of) == 0)
        edges = Edges.of(inside, inside + 1, kind=EdgeKind.STREAM).joined()
        devices = tuple((0, number) for number in range(len(sets)))
        trial = replace(self.graph, tasks=tasks, edges=edges, devices=devices)
        trial = _retuned(trial, np.where(is_gemm[rows], tuned[device], 1), self.parameters)
        ends = np.zeros(len(sets))
        np.maximum.at(ends, device, simulate(trial)[1])
        total = np.bincount([number for number, _, _ in sets], weights=ends, minlength=len(plans))
        return total.astype(np.float64)


def _members(graph: KernelGraph, groups: Sequence[Group]) -> Bools:
    """Return the mask of the GEMM kernels of groups."""
    mask = np.zeros(len(graph.tasks), dtype=bool)
    mask[[row for group in groups for row in group.gemms]] = True
    return mask


def _possible(group: Group, degrees: Sequence[int]) -> list[int]:
    """Return the degrees that a group can have: more than its products are as good as their number."""
    most = next((each for each in DEGREES if each >= len(group.runs)), DEGREES[-1])
    if group.evidence == "streams":
        return [most]
    return sorted({min(each, most) for each in degrees})


def _with_variants(graph: KernelGraph, plans: Sequence[_Plan], parameters: Parameters) -> KernelGraph:
    """Return the graph with the kernels of tuned plans."""
    degree = np.ones(len(graph.tasks), dtype=np.int64)
    for plan in plans:
        for members in plan.dealt if plan.tuned else []:
            if len(members) > 1:
                degree[[row for run in members for row in run]] = plan.degree
    is_gemm = _members(graph, [plan.group for plan in plans])
    return _retuned(graph, np.where(is_gemm, degree, 1), parameters)


def _retuned(graph: KernelGraph, degree: Ints, parameters: Parameters) -> KernelGraph:
    """Return the graph with the kernels for a degree of concurrency; degree 1 keeps a kernel as it is."""
    device = graph.hardware.device
    rows = np.flatnonzero(degree > 1)
    if device is None or not len(rows):
        return graph
    variants: dict[tuple[Gemm, int], _Variant] = {}
    chosen = []
    for row in rows.tolist():  # a Python loop over tuned products, a few us each
        gemm = gemm_of_task(graph, row)
        assert gemm is not None
        key = gemm, int(degree[row])
        if key not in variants:
            variants[key] = _Variant.of(*key, device=device, parameters=parameters)
        chosen.append(variants[key])
    return _with_columns(graph, rows, chosen)


@dataclass(frozen=True)
class _Variant:
    """A GO-kernel, against the kernel that is fastest alone.

    Parameters
    ----------
    is_default : bool
        Whether it is the kernel that is fastest alone.
    time_ratio, memory_ratio, cache_ratio : float
        Its duration, and the bytes that it requests from memory and from the cache, over those of that kernel.
    workgroups : int
        Workgroups.
    occupies, waves, needed, footprint : float
        Share of the units that it fills, waves of workgroups, share of the units with which it runs at full rate, and
        share of the last-level cache that it needs.
    """

    is_default: bool
    time_ratio: float
    memory_ratio: float
    cache_ratio: float
    workgroups: int
    occupies: float
    waves: float
    needed: float
    footprint: float

    @classmethod
    def of(cls, gemm: Gemm, degree: int, *, device: Device, parameters: Parameters) -> "_Variant":
        """Return the GO-kernel of a GEMM."""
        go = go_kernel(gemm, degree, device=device, parameters=_nominal(parameters))
        columns = [
            variant_columns(gemm, each, device=device, parameters=parameters) for each in (go.default, go.variant)
        ]
        default, best = ({name: float(np.ravel(value)[0]) for name, value in each.items()} for each in columns)
        ratio = {name: _ratio(best, default, name) for name in ("hbm", "l2")}
        return cls(
            is_default=go.is_default,
            time_ratio=best["duration_ns"] / default["duration_ns"],
            memory_ratio=ratio["hbm"],
            cache_ratio=ratio["l2"],
            workgroups=int(best["workgroups"]),
            occupies=best["occupies"],
            waves=best["waves"],
            needed=best["cu"],
            footprint=best["footprint"],
        )


def _ratio(best: Mapping[str, float], default: Mapping[str, float], resource: str) -> float:
    """Return the bytes that a kernel takes from a resource over those of the default; 1 if that takes none."""
    sizes = [each[resource] * each["duration_ns"] for each in (best, default)]
    return sizes[0] / sizes[1] if sizes[1] > 0 else 1.0


def _nominal(parameters: Parameters) -> Parameters:
    """Return the parameters at their nominal values, by which a library is tuned."""
    return parameters.with_values([(name, known.value) for name, known in parameters.known.items()])


def _with_columns(graph: KernelGraph, rows: Ints, variants: Sequence[_Variant]) -> KernelGraph:
    """Return the graph with the durations and demands of variants; a default kernel keeps those of the trace."""
    changed = np.array([not variant.is_default for variant in variants])
    rows, variants = rows[changed], [variant for variant in variants if not variant.is_default]
    if not len(rows):
        return graph
    tasks = graph.tasks
    column = {name: np.array([getattr(each, name) for each in variants]) for name in _Variant.__dataclass_fields__}
    demand = tasks.demand.copy()
    demand[rows, _CU] = column["needed"]
    for resource, ratio in ((_HBM, column["memory_ratio"]), (_L2, column["cache_ratio"])):
        demand[rows, resource] = np.minimum(demand[rows, resource] * ratio / column["time_ratio"], 1.0)
    duration = tasks.duration_ns.copy()
    duration[rows] *= column["time_ratio"]
    graph = graph.with_durations(duration, Basis.MODELLED)
    values = {name: getattr(tasks, name).copy() for name in ("occupies", "waves", "workgroups", "footprint")}
    for name, array in values.items():
        array[rows] = column[name]
    return graph.with_tasks(demand=demand, **values)


def _slowdown(graph: KernelGraph, changed: KernelGraph) -> float:
    """Return by which share a changed graph takes longer."""
    before, after = (float(simulate(each)[1].max()) for each in (graph, changed))
    return after / before - 1.0 if before > 0 else 0.0


def _reason(groups: Groups) -> str:
    """Return why no product is in a group."""
    if not groups.others:
        return "the iteration has no GEMM"
    return "; ".join(f"{count} GEMMs: {reason}" for reason, count in groups.others.items())


def _note(graph: KernelGraph, groups: Groups, plans: Sequence[_Plan]) -> str:
    """Return a note that names the groups, and the GEMMs in none."""
    kinds = Counter(
        (_label(graph, plan.group), min(plan.degree, len(plan.group.runs)), plan.tuned, plan.group.evidence)
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


def _label(graph: KernelGraph, group: Group) -> str:
    """Return the shapes of a group, such as ``3 of 512x512x512 bf16``."""
    if len(group.runs) < len(group.gemms):
        first = [str(gemm_of_task(graph, row)) for row in group.gemms if row in group.runs[0]]
        return f"{len(group.runs)} chains such as {', '.join(first)}"
    shapes = Counter(str(gemm_of_task(graph, row)) for row in group.gemms)
    return " + ".join(f"{count} of {shape}" if count > 1 else shape for shape, count in shapes.items())
