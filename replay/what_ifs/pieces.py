"""What T3, FiCCO and fused collectives have in common: pieces of collectives, and what a note says of targets."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from replay.graph import RESOURCES, Basis, KernelGraph
from replay.overlap.targets import Target, Targets
from replay.parameters import Parameters

__all__ = ["ANY_RANKS", "bytes_time", "nothing_to_apply", "ranks_of", "without_units"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
#: Ranks of a collective whose group the trace does not tell.
ANY_RANKS = 8
#: Pieces that anything is cut into.
_FEWEST, _MOST = 2, 64
_CU = RESOURCES.index("cu")


def ranks_of(graph: KernelGraph, targets: Sequence[Target]) -> list[int]:
    """Return into how many pieces each target goes, one a rank of its collective, from 2 to 64; 8 where unknown."""
    ranks = graph.tasks.ranks[[target.collective for target in targets]]
    return [int(np.clip(n if n > 1 else ANY_RANKS, _FEWEST, _MOST)) for n in ranks.tolist()]


def bytes_time(duration_ns: float, parameters: Parameters) -> float:
    """Return what of a collective's time goes with its bytes: all but its latency, which is half of it at most."""
    return duration_ns - min(parameters["collective_latency_ns"], duration_ns / 2)


def without_units(graph: KernelGraph, rows: Ints, durations: Floats, hbm_factor: Floats | float = 1.0) -> KernelGraph:
    """Return `graph` with transfers that use no compute units, take these times, and part of the memory bandwidth."""
    tasks = graph.tasks
    demand, occupies, duration = tasks.demand.copy(), tasks.occupies.copy(), tasks.duration_ns.copy()
    basis, waves = tasks.basis.copy(), tasks.waves.copy()
    demand[rows, _CU], occupies[rows], waves[rows], duration[rows] = 0.0, 0.0, 0.0, durations
    demand[rows, RESOURCES.index("hbm")] *= hbm_factor
    basis[rows] = np.maximum(basis[rows], int(Basis.DERIVED))
    return graph.with_tasks(demand=demand, occupies=occupies, duration_ns=duration, basis=basis, waves=waves)


def nothing_to_apply(graph: KernelGraph, name: str, targets: Targets) -> KernelGraph:
    """Return `graph` as it is, with a note of why nothing was changed."""
    reason = targets.note.removeprefix("0 collectives matched").removeprefix("; ")
    return graph.with_notes([f"{name}: nothing to apply it to: {reason or 'the iteration has no collective'}"])
