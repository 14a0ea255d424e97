"""Plans for independent GEMMs: how many run side by side, and with which kernels (GOLDYLOC, arXiv 2409.02227).

`plan_groups` serves the what-if `concurrent_gemms` and the command `seqpoint gemms`. A plan deals the products of a
group into sets. The engine runs the traced kernels of each set side by side in slices of a wave, and the library's
GO-kernels as well. The degree and the kernels with the least time are kept, or the degree that `DegreePredictor` gives.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Final

import numpy as np

from profilers.trace.arrays import Floats
from replay.calibration.parameters import Parameters
from replay.costs.tiles import tile_of_name
from replay.gemms.concurrency import KernelTimes, sets_ns
from replay.gemms.degrees import load_degree_predictor
from replay.gemms.gemm import Gemm, gemm_of_task, grid_of
from replay.gemms.groups import UnorderedGemms
from replay.gemms.tuning import DEGREES, GoMix, TunedKernel, go_mix, library_share
from replay.graph.graph import KernelGraph

#: Gain below which products stay one after another: less than the models can tell.
MIN_GAIN: Final = 0.02
#: Evidence of products that run side by side already.
STREAMS: Final = "streams"
#: Rows of products that run side by side.
Rows = tuple[int, ...]


@dataclass(frozen=True)
class KernelSet:
    """GEMM kernels side by side.

    Parameters
    ----------
    rows : tuple of int
        Rows of the kernels in the graph, in the order of dispatch.
    share : float
        Time of the set, as a share of the time of its traced kernels one after another.
    tuned : tuple of TunedKernel
        GO-kernel of each; empty if the traced kernels stay.
    """

    rows: Rows
    share: float
    tuned: tuple[TunedKernel, ...] = ()


@dataclass(frozen=True)
class GroupPlan:
    """A group of independent GEMMs with its degree of concurrency.

    Parameters
    ----------
    group : UnorderedGemms
        The group.
    degree : int
        Most runs side by side; 1 for one after another.
    sets : tuple of KernelSet
        Kernels side by side, set after set; a set may have one kernel. Empty at degree 1.
    sequential_ns, time_ns : float
        Time of the traced kernels one after another, and of the sets one after another.
    """

    group: UnorderedGemms
    degree: int
    sets: tuple[KernelSet, ...]
    sequential_ns: float
    time_ns: float

    @property
    def is_tuned(self) -> bool:
        """Whether a set has other kernels than the traced ones."""
        return any(each.tuned for each in self.sets)

    @property
    def moves(self) -> list[tuple[Rows, ...]]:
        """Runs that are side by side, set after set; none if they are on streams of their own already."""
        return [] if self.group.evidence == STREAMS or self.degree == 1 else dealt(self.group, self.degree)


def dealt(group: UnorderedGemms, degree: int) -> list[tuple[Rows, ...]]:
    """Return the runs of a group in sets of `degree`, in their order."""
    return [group.runs[first : first + degree] for first in range(0, len(group.runs), degree)]


def possible_degrees(available: int) -> list[int]:
    """Return the degrees of as many products: up to the first that lets all run at once.

    Examples
    --------
    >>> possible_degrees(3)
    [1, 2, 4]
    """
    return [degree for degree in DEGREES if degree == 1 or degree < 2 * available]


def plan_groups(
    graph: KernelGraph,
    groups: Sequence[UnorderedGemms],
    *,
    parameters: Parameters,
    degree: int | None = None,
    predicted: bool = False,
    tuned: bool = True,
) -> list[GroupPlan]:
    """Return a plan for each group; groups of the same kernels have the same plan.

    Parameters
    ----------
    graph : KernelGraph
        Graph of the groups.
    groups : sequence of UnorderedGemms
        Groups of independent GEMMs, from `independent_gemms`.
    parameters : Parameters
        Parameters of the contention model.
    degree : int, optional
        Degree of every group. By default that with the least time; it is 1 unless another gains `MIN_GAIN`.
    predicted : bool
        Whether `DegreePredictor` gives the degree: the least that it gives for a product of the group. It needs the
        device; without one it gives 1.
    tuned : bool
        Whether a set takes its GO-kernels if it is faster with them. Without a known device, traced kernels stay.

    Notes
    -----
    For a traced kernel stands the kernel of the device's library with as many tiles that is fastest alone. The
    engine gives the time of these kernels side by side over one after another, and that of the GO-kernels over the
    library's fastest ones one after another. Such a share is taken of the measured time of the set. Without a known
    device, or a library kernel with about as many workgroups, the traced kernels are cut into equal waves.
    """
    return _Planner(graph, parameters, tuned).plans(groups, degree, predicted)


@dataclass(frozen=True)
class _Planner:
    graph: KernelGraph
    parameters: Parameters
    tuned: bool

    def plans(self, groups: Sequence[UnorderedGemms], degree: int | None, predicted: bool) -> list[GroupPlan]:
        """Return the plan of each group, as `plan_groups`."""
        keys = [self._key(group) for group in groups]
        alike: dict[object, list[UnorderedGemms]] = {}
        for key, group in zip(keys, groups, strict=True):
            alike.setdefault(key, []).append(group)
        degrees = {key: self._degrees(each[0], degree, predicted) for key, each in alike.items()}
        durations = self.graph.tasks.duration_ns.copy()
        for each in alike.values():
            durations[list(each[0].gemms)] = durations[[group.gemms for group in each]].mean(axis=0)
        best: dict[object, GroupPlan] = {}
        for key, each in alike.items():
            plans = [self._plan(each[0], number, durations) for number in degrees[key]]
            best[key] = _fastest(plans) if len(plans) > 1 else plans[0]
        return [_plan_of(group, best[key], self.graph) for key, group in zip(keys, groups, strict=True)]

    def _key(self, group: UnorderedGemms) -> object:
        """Return what groups with the same plan have in common."""
        tasks, gemms = self.graph.tasks, set(group.gemms)
        runs = [[row for row in run if row in gemms] for run in group.runs]
        columns = (tasks.operator, tasks.dtype, tasks.workgroups, tasks.name)
        return group.evidence == STREAMS, tuple(
            tuple(tuple(column[run].tolist()) for column in columns) for run in runs
        )

    def _degrees(self, group: UnorderedGemms, degree: int | None, predicted: bool) -> list[int]:
        """Return the degrees to try."""
        possible = possible_degrees(len(group.runs))
        if group.evidence == STREAMS:
            return possible[-1:]
        if predicted:
            return [self._predicted(group)]
        return possible if degree is None else [min(degree, possible[-1])]

    def _predicted(self, group: UnorderedGemms) -> int:
        """Return the least degree that the predictor gives for a product of the group."""
        device = self.graph.hardware.device
        gemms = {self._gemm(row) for row in group.gemms}
        if device is None:
            return 1
        return int(load_degree_predictor().choose(list(gemms), len(group.runs), device=device).min())

    def _gemm(self, row: int) -> Gemm:
        gemm = gemm_of_task(self.graph, row)
        assert gemm is not None
        return gemm

    def _tiles(self, row: int, gemm: Gemm) -> int:
        """Return the tiles that a traced kernel computes: its workgroups, unless each of them takes several."""
        tasks = self.graph.tasks
        tile, workgroups = tile_of_name(self.graph.names[tasks.name[row]]), int(tasks.workgroups[row])
        grid = tile and grid_of(gemm, tile, workgroups, units=self.graph.hardware.compute_units)
        return grid.tiles if grid else workgroups

    def _traced_share(self, rows: Rows, durations: Floats) -> float:
        """Return the time of traced kernels side by side over one after another, at most 1."""
        tasks, hardware = self.graph.tasks, self.graph.hardware
        gemms = tuple(map(self._gemm, rows))
        if hardware.device is not None:
            counts = tuple(map(self._tiles, rows, gemms))
            share = library_share(gemms, counts, device=hardware.device, parameters=self._nominal())
            if share is not None:
                return min(share, 1.0)
        kernels = KernelTimes.of_tasks(
            tasks.select(np.array(rows)), durations[list(rows)], units=hardware.compute_units
        )
        alone = float(durations[list(rows)].sum())
        return min(float(sets_ns(kernels, np.arange(len(rows))[None])[0]) / alone, 1.0) if alone > 0 else 1.0

    def _plan(self, group: UnorderedGemms, degree: int, durations: Floats) -> GroupPlan:
        """Return the plan of a group at a degree."""
        sequential = float(durations[list(group.gemms)].sum())
        if degree == 1:
            return GroupPlan(group, 1, (), sequential, sequential)
        sets, total = [], 0.0
        for rows in _sets(group, degree):
            alone = float(durations[list(rows)].sum())
            share = self._traced_share(rows, durations) if len(rows) > 1 else 1.0
            each = KernelSet(rows, share)
            if len(rows) > 1 and self.tuned and self.graph.hardware.device is not None:
                mix = self._mix(tuple(map(self._gemm, rows)))
                if mix.time_ns / mix.sequential_ns < share:
                    each = KernelSet(rows, mix.time_ns / mix.sequential_ns, mix.kernels)
            sets.append(each)
            total += each.share * alone
        return GroupPlan(group, degree, tuple(sets), sequential, total)

    def _mix(self, gemms: tuple[Gemm, ...]) -> GoMix:
        """Return the GO-kernels of products side by side."""
        device = self.graph.hardware.device
        assert device is not None
        return go_mix(gemms, device=device, parameters=self._nominal())

    def _nominal(self) -> Parameters:
        """Return the parameters at their nominal values, by which a library is tuned."""
        return self.parameters.with_values([(name, each.value) for name, each in self.parameters.known.items()])


def _sets(group: UnorderedGemms, degree: int) -> list[Rows]:
    """Return the products that run side by side: of a set of chains, the first of each, then the second ones."""
    if degree == 1:
        return []
    gemms = set(group.gemms)
    sets = []
    for runs in dealt(group, degree):
        chains = [[row for row in run if row in gemms] for run in runs]
        sets += [tuple(row for row in step if row is not None) for step in zip_longest(*chains)]
    return sets


def _fastest(plans: Sequence[GroupPlan]) -> GroupPlan:
    """Return the plan of least time; that of degree 1, which is the first, unless another gains enough."""
    best = min(plans, key=lambda plan: (plan.time_ns, plan.degree))
    return best if best.time_ns <= (1 - MIN_GAIN) * plans[0].time_ns else plans[0]


def _plan_of(group: UnorderedGemms, plan: GroupPlan, graph: KernelGraph) -> GroupPlan:
    """Return the plan for a group of the same kernels, whose durations may differ."""
    duration = graph.tasks.duration_ns
    sets = [replace(each, rows=rows) for each, rows in zip(plan.sets, _sets(group, plan.degree), strict=True)]
    sequential = float(duration[list(group.gemms)].sum())
    time = sum(each.share * float(duration[list(each.rows)].sum()) for each in sets) if sets else sequential
    return GroupPlan(group, plan.degree, tuple(sets), sequential, time)
