"""Independent GEMMs of a step, and how many of them to run side by side with which kernels (GOLDYLOC).

`suggest_groups` finds the groups in the graph of an iteration. It runs each kind of group in the engine at every degree
of concurrency, with kernels tuned for it, and keeps the fastest.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import zip_longest
from typing import Any

import numpy as np

from profilers.devices.catalogue import Device
from profilers.trace.kernels import CLASSES
from profilers.trace.trace import Trace
from replay.calibration.parameters import Parameters
from replay.costs.shipped import load_parameters
from replay.gemms.gemm import Gemm, gemm_of_task
from replay.gemms.groups import Group, independent_gemms
from replay.gemms.tuning import DEGREES, GoMix, go_mix
from replay.graph.graph import KernelGraph
from seqpoint.gemm_concurrency import tile_text
from seqpoint.graphs import graph_of

#: Gain below which GEMMs stay one after another: less than the models can tell.
_MIN_GAIN = 0.02
#: Kinds of groups that are searched, those with most time first.
_MOST_KINDS = 64
#: GEMMs of each member of a group.
Members = tuple[tuple[Gemm, ...], ...]
#: Evidence of GEMMs that run side by side already.
_STREAMS = "streams"


@dataclass(frozen=True)
class GemmGroup:
    """Groups of independent GEMMs of equal shapes in a step; times in ns.

    Parameters
    ----------
    members : tuple of tuple of Gemm
        Members of each group in the order in which they run: a GEMM each, or a chain of GEMMs.
    groups : int
        Number of such groups in the step.
    evidence : str
        Weakest evidence that they are independent, one of `replay.gemms.groups.EVIDENCE`.
    time_ns : float
        Isolated durations of all their kernels in the step, as measured.
    degree : int
        Degree of concurrency, as ``concurrent_gemms:DEGREE`` takes it; 1 for one after another.
    tiles : tuple of str
        Tile and split of the kernels at that degree, such as ``128x64`` or ``64x64 split 4``; empty at degree 1.
    is_tuned : bool
        Whether a kernel is another than the one that is fastest alone.
    sequential_ns, concurrent_ns : float
        Modelled time of one group one after another, and at that degree.
    """

    members: Members
    groups: int
    evidence: str
    time_ns: float
    degree: int
    tiles: tuple[str, ...]
    is_tuned: bool
    sequential_ns: float
    concurrent_ns: float

    @property
    def speedup(self) -> float:
        """Modelled speed-up of a group over one after another."""
        return self.sequential_ns / self.concurrent_ns

    @property
    def gain_ns(self) -> float:
        """Measured time in the step that this speed-up would save."""
        return self.time_ns * (1 - 1 / self.speedup)

    @property
    def label(self) -> str:
        """Shapes as text, such as ``3 x 512x512x512 bf16``, with ``>`` between the GEMMs of a chain."""
        counts = Counter(" > ".join(map(str, chain)) for chain in self.members)
        return " + ".join(f"{count} x {shape}" if count > 1 else shape for shape, count in counts.items())

    def to_dict(self) -> dict[str, Any]:
        """Return the groups as JSON with stable keys."""
        names = ("groups", "evidence", "time_ns", "degree", "sequential_ns", "concurrent_ns", "speedup", "gain_ns")
        return {
            "members": [[str(gemm) for gemm in chain] for chain in self.members],
            **{name: getattr(self, name) for name in names},
            "tiles": list(self.tiles),
            "kernels": "go" if self.is_tuned else "default",
        }


@dataclass(frozen=True)
class StepGroups:
    """Independent GEMMs of a step.

    Parameters
    ----------
    iteration : int
        Number of the iteration.
    kernel_ns : float
        Isolated durations of all kernels of the step.
    rows : tuple of GemmGroup
        Groups by shapes, the largest gain first.
    others : mapping of str to int
        Number of GEMM kernels in no group, by reason.
    left_out : int
        Kinds of groups that were not searched, since others have more time.
    """

    iteration: int
    kernel_ns: float
    rows: tuple[GemmGroup, ...]
    others: dict[str, int]
    left_out: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return the groups as JSON with stable keys."""
        return {
            "iteration": self.iteration,
            "kernel_ns": self.kernel_ns,
            "rows": [row.to_dict() for row in self.rows],
            "not_grouped": self.others,
            "left_out": self.left_out,
        }


def suggest_groups(trace: Trace, iteration: int | None, *, device: str | None) -> StepGroups | None:
    """Return the independent GEMMs of a step with a degree of concurrency; None if the device is unknown.

    Parameters
    ----------
    trace : Trace
        The trace.
    iteration : int or None
        Number of the iteration; by default that of median step time.
    device : str or None
        Device that the trace was recorded on, if the trace does not say.

    Raises
    ------
    NotFoundError, InvalidInputError
        The device or the iteration is unknown, or the trace has no iteration.
    """
    number, graph = graph_of(trace, iteration, device=device)
    if graph.hardware.device is None:
        return None
    found = independent_gemms(graph)
    kinds: dict[tuple[Members, str], list[Group]] = {}
    for group in found.groups:  # a Python loop over groups, some us each
        kinds.setdefault((_members(graph, group), group.evidence), []).append(group)
    times = {key: _time_ns(graph, groups) for key, groups in kinds.items()}
    searched = sorted(kinds, key=lambda key: (-times[key], str(key)))[:_MOST_KINDS]
    tuner = Tuner(graph.hardware.device, load_parameters())
    rows = [tuner.suggestion(*key, len(kinds[key]), times[key]) for key in searched]
    tasks = graph.tasks
    is_kernel = graph.on_device() & tasks.in_iteration & (tasks.class_ >= 0) & (tasks.class_ != _COLLECTIVE)
    ordered = tuple(sorted(rows, key=lambda row: (-row.gain_ns, -row.time_ns, row.label)))
    total = float(tasks.duration_ns[is_kernel].sum())
    return StepGroups(number, total, ordered, dict(found.others), len(kinds) - len(searched))


_COLLECTIVE = CLASSES.index("collective")


def _members(graph: KernelGraph, group: Group) -> Members:
    """Return the GEMMs of each run of a group."""
    rows = set(group.gemms)
    chains = ([gemm_of_task(graph, row) for row in run if row in rows] for run in group.runs)
    return tuple(tuple(gemm for gemm in chain if gemm is not None) for chain in chains)


def _time_ns(graph: KernelGraph, groups: Sequence[Group]) -> float:
    """Return the isolated durations of the kernels of groups."""
    rows = np.unique([row for group in groups for run in group.runs for row in run])
    return float(graph.tasks.duration_ns[rows].sum())


class Tuner:
    """Search of degrees and kernels on a device; sets of equal GEMMs are simulated once.

    Parameters
    ----------
    device : Device
        Device that the GEMMs run on.
    parameters : Parameters
        Parameters of the contention model.
    """

    def __init__(self, device: Device, parameters: Parameters) -> None:
        self._mix = cache(lambda gemms: go_mix(gemms, device=device, parameters=parameters))

    def suggestion(self, members: Members, evidence: str, groups: int, time_ns: float) -> GemmGroup:
        """Return the fastest degree of a group; 1 if it gains too little, or if it is side by side already.

        Parameters
        ----------
        members : tuple of tuple of Gemm
            GEMMs of each member.
        evidence : str
            Evidence that the members are independent.
        groups : int
            Number of such groups in the step.
        time_ns : float
            Measured time of their kernels.
        """
        times = {degree: sum(mix.time_ns for mix in self._mixes(members, degree)) for degree in _degrees(len(members))}
        best = min(times, key=lambda degree: (times[degree], degree))
        if evidence == _STREAMS or times[best] > (1 - _MIN_GAIN) * times[1]:
            best = 1
        mixes = self._mixes(members, best)
        variants = [variant for mix in mixes for variant in mix.variants]
        kernels = tuple(dict.fromkeys(map(tile_text, variants))) if best > 1 else ()
        is_tuned = best > 1 and any(mix.time_ns < mix.default_ns for mix in mixes)
        return GemmGroup(members, groups, evidence, time_ns, best, kernels, is_tuned, times[1], times[best])

    def _mixes(self, members: Members, degree: int) -> list[GoMix]:
        """Return what runs side by side, one after another: of chains, the first GEMMs, then the second ones."""
        sets = (members[first : first + degree] for first in range(0, len(members), degree))
        steps = (each for chains in sets for each in zip_longest(*chains))
        return [self._mix(tuple(gemm for gemm in step if gemm is not None)) for step in steps]


def _degrees(count: int) -> list[int]:
    """Return the degrees for a number of members: up to the first that runs all at once."""
    return [degree for degree in DEGREES if degree == 1 or degree < 2 * count]
