"""GEMMs side by side: the independent ones of a step with their plan, and copies of chosen sizes (GOLDYLOC).

`suggest_groups` finds the groups in the graph of an iteration, and takes the plan that the what-if `concurrent_gemms`
takes for each kind of group: `replay.gemms.planning.plan_groups`. `simulate_gemms` needs no trace.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from profilers.devices.catalogue import Device
from profilers.errors import InvalidInputError
from profilers.trace.kernels import CLASSES
from profilers.trace.trace import Trace
from replay.costs.shipped import load_parameters
from replay.gemms.gemm import Gemm, Variants, gemm_of_task
from replay.gemms.groups import UnorderedGemms, independent_gemms
from replay.gemms.planning import STREAMS, GroupPlan, plan_groups
from replay.gemms.tuning import DEGREES, GoKernel, go_kernels
from replay.graph.graph import KernelGraph
from seqpoint.graphs import graph_of
from seqpoint.notebook import DataFrame, Result, data_frame

#: Kinds of groups that are searched, those with most time first.
_MOST_KINDS = 64
#: GEMMs of each member of a group.
Members = tuple[tuple[Gemm, ...], ...]


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
        Members side by side; 1 for one after another.
    tiles : tuple of str
        Tile and split of the GO-kernels, such as ``128x64`` or ``64x64 split 4``; empty if the traced kernels stay.
    is_tuned : bool
        Whether the group takes GO-kernels.
    sequential_ns, concurrent_ns : float
        Time of their GEMMs in the step one after another, as measured, and at that degree, as modelled.
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
        return self.sequential_ns / self.concurrent_ns if self.concurrent_ns else 1.0

    @property
    def gain_ns(self) -> float:
        """Measured time of kernels in the step that this would save."""
        return self.sequential_ns - self.concurrent_ns

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
    kinds: dict[tuple[Members, str], list[UnorderedGemms]] = {}
    for group in found.groups:  # a Python loop over groups, some us each
        kinds.setdefault((_members(graph, group), group.evidence), []).append(group)
    times = {key: _time_ns(graph, groups) for key, groups in kinds.items()}
    searched = sorted(kinds, key=lambda key: (-times[key], str(key)))[:_MOST_KINDS]
    chosen = [group for key in searched for group in kinds[key]]
    plans = {id(plan.group): plan for plan in plan_groups(graph, chosen, parameters=load_parameters())}
    rows = [_row(*key, [plans[id(group)] for group in kinds[key]], times[key]) for key in searched]
    tasks = graph.tasks
    is_kernel = graph.on_device() & tasks.in_iteration & (tasks.class_ >= 0) & (tasks.class_ != _COLLECTIVE)
    ordered = tuple(sorted(rows, key=lambda row: (-row.gain_ns, -row.time_ns, row.label)))
    total = float(tasks.duration_ns[is_kernel].sum())
    return StepGroups(number, total, ordered, dict(found.others), len(kinds) - len(searched))


def _row(members: Members, evidence: str, plans: Sequence[GroupPlan], time_ns: float) -> GemmGroup:
    """Return the row of the groups of a kind."""
    first = plans[0]  # those of a kind have the same plan, if the grids of their kernels are the same
    variants = [kernel.variant for plan in plans for each in plan.sets for kernel in each.tuned]
    is_beside = first.degree > 1 and evidence != STREAMS
    tiles = tuple(dict.fromkeys(map(tile_text, variants))) if is_beside else ()
    sequential, time = (sum(getattr(plan, name) for plan in plans) for name in ("sequential_ns", "time_ns"))
    degree = min(first.degree, len(members)) if is_beside else 1
    counts = evidence, time_ns, degree, tiles, is_beside and first.is_tuned
    return GemmGroup(members, len(plans), *counts, sequential, time if is_beside else sequential)


_COLLECTIVE = CLASSES.index("collective")


def _members(graph: KernelGraph, group: UnorderedGemms) -> Members:
    """Return the GEMMs of each run of a group."""
    rows = set(group.gemms)
    chains = ([gemm_of_task(graph, row) for row in run if row in rows] for run in group.runs)
    return tuple(tuple(gemm for gemm in chain if gemm is not None) for chain in chains)


def _time_ns(graph: KernelGraph, groups: Sequence[UnorderedGemms]) -> float:
    """Return the isolated durations of the kernels of groups."""
    rows = np.unique([row for group in groups for run in group.runs for row in run])
    return float(graph.tasks.duration_ns[rows].sum())


#: Dimensions of a shape without and with a batch.
_N_DIMS = (3, 4)


@dataclass(frozen=True, repr=False)
class ConcurrentGemms(Result):
    """Copies of GEMMs side by side, each with the kernel that is best at its degree of concurrency.

    Parameters
    ----------
    device : Device
        Device that they run on.
    kernels : tuple of GoKernel
        Kernels by GEMM, then by degree.
    """

    heading = "GEMMs side by side"

    device: Device
    kernels: tuple[GoKernel, ...]

    def table(self) -> DataFrame:
        """Return a row for each GEMM and degree; times in ns."""
        return data_frame(self.to_dict()["rows"])

    def plot(self) -> Any:
        """Return the map of speed-ups over one after another, by size and degree, as a HoloViews object."""
        from seqpoint.plots.operators import concurrency_map

        return concurrency_map(self.table(), self.device.name)

    def to_dict(self) -> dict[str, Any]:
        """Return the device and the rows as JSON with stable keys."""
        return {"device": self.device.name, "rows": [_facts(kernel) for kernel in self.kernels]}

    def summary(self) -> list[str]:
        """Return how often the kernel that is best alone is not the best side by side, in a sentence."""
        together = [kernel for kernel in self.kernels if kernel.degree > 1]
        other = sum(not kernel.is_default for kernel in together)
        return [
            f"on {self.device.name}, another kernel than the one that is fastest alone is the fastest side by side "
            f"{other} of {len(together)} times (modelled)"
        ]


def tile_text(variant: Variants) -> str:
    """Return tile and split of one variant as text, such as ``64x32 split 4``."""
    split = int(variant.global_split[0])
    return f"{variant.tile_m[0]}x{variant.tile_n[0]}{f' split {split}' if split > 1 else ''}"


def _facts(kernel: GoKernel) -> dict[str, Any]:
    return {
        "gemm": str(kernel.gemm),
        "degree": kernel.degree,
        "speedup": kernel.speedup,
        "default_speedup": kernel.default_speedup,
        "tile": tile_text(kernel.variant),
        "default_tile": tile_text(kernel.default),
        "time_ns": kernel.time_ns,
        "default_ns": kernel.default_ns,
        "sequential_ns": kernel.sequential_ns,
    }


def simulate_gemms(
    shapes: Sequence[Sequence[int]], device: Device, *, dtype: str, degrees: Sequence[int] = DEGREES
) -> ConcurrentGemms:
    """Return copies of GEMMs side by side on a device.

    Parameters
    ----------
    shapes : sequence of sequence of int
        m, n and k of each GEMM, or batch, m, n and k.
    device : Device
        Device that they run on.
    dtype : str
        Data type, such as ``"fp16"``.
    degrees : sequence of int
        Copies side by side.

    Raises
    ------
    InvalidInputError
        A shape has not three or four sizes of 1 or more, a degree is below 1, or there is no such type.
    """
    gemms = []
    for shape in shapes:
        if len(shape) not in _N_DIMS:
            raise InvalidInputError(f"a GEMM of {tuple(shape)}: give m, n and k, or batch, m, n and k")
        batch, m, n, k = map(int, shape if len(shape) == _N_DIMS[1] else (1, *shape))
        gemms.append(Gemm(m, n, k, batch, dtype))
    kernels = go_kernels(gemms, list(degrees), device=device, parameters=load_parameters())
    return ConcurrentGemms(device, tuple(kernels))
