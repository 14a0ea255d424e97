"""`study`: a sub-layer without T3, with it, and with its arbitration: times, timelines, what memory moves."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from profilers.errors import InvalidInputError
from replay.overlap.t3.arbitration import compute_first, first_come
from replay.overlap.t3.collective import AG_READS, AG_WRITES, RS_READS, RS_WRITES
from replay.overlap.t3.fused import GEMM_READS, GEMM_WRITES, Parts, fused, sequential
from replay.overlap.t3.product import Product, product_of
from replay.overlap.t3.ring import Ring
from replay.overlap.t3.workload import SubLayer, System, load_workload
from replay.parameters import Parameters, load_parameters
from replay.timeline import Timeline, replay

__all__ = ["MOVEMENTS", "Outcome", "Run", "study"]

#: What moves through the memory of a GPU; the names of the tasks that move it.
MOVEMENTS: tuple[str, ...] = (GEMM_READS, GEMM_WRITES, RS_READS, RS_WRITES, AG_READS, AG_WRITES)


@dataclass(frozen=True)
class Run:
    """A sub-layer that was simulated one way.

    Parameters
    ----------
    product : Product
    parts : Parts
        The graph, and its tasks that say when what is over.
    timeline : Timeline
        Of that graph. Lanes: the compute units of each GPU; of its memory, bursts of the product, the link, what is
        read for it, and what comes.
    """

    product: Product
    parts: Parts
    timeline: Timeline

    @property
    def product_ns(self) -> float:
        """When the product is over on the last GPU."""
        return float(self.timeline.end_ns[self.parts.product].max())

    @property
    def reduced_ns(self) -> float:
        """When the reduce-scatter is."""
        return float(self.timeline.end_ns[self.parts.reduced].max())

    @property
    def gathered_ns(self) -> float:
        """When the all-gather is, and all."""
        return float(self.timeline.end_ns[self.parts.gathered].max())

    @property
    def movement_bytes(self) -> Mapping[str, float]:
        """What one GPU reads and writes in its memory, by `MOVEMENTS`."""
        graph = self.timeline.graph
        gpus = len(graph.devices) // 2
        by_name = np.bincount(graph.tasks.name, weights=graph.tasks.bytes, minlength=len(graph.names)) / gpus
        moved = dict(zip(graph.names, by_name.tolist(), strict=True))
        return MappingProxyType({name: moved.get(name, 0.0) for name in MOVEMENTS})


@dataclass(frozen=True)
class Outcome:
    """A sub-layer simulated three ways.

    Parameters
    ----------
    sublayer : SubLayer
    baseline, t3, t3_mca : Run
        One part after the other; overlapped, with memory first come, first served; and with the product first.
    """

    sublayer: SubLayer
    baseline: Run
    t3: Run
    t3_mca: Run

    def speedup(self, run: Run) -> float:
        """Return the time of the baseline over that of a run, all-gather included."""
        return self.baseline.gathered_ns / run.gathered_ns

    @property
    def ideal_speedup(self) -> float:
        """The speed-up if the shorter of product and reduce-scatter took no time: (G + RS + AG) / (max(G, RS) + AG)."""
        one = self.baseline
        shorter = min(one.product_ns, one.reduced_ns - one.product_ns)
        return one.gathered_ns / (one.gathered_ns - shorter)

    @property
    def movement_saved(self) -> float:
        """Share of what memory moves that T3 saves."""
        before, after = (sum(run.movement_bytes.values()) for run in (self.baseline, self.t3_mca))
        return 1.0 - after / before


def study(
    sublayer: SubLayer, system: System | None = None, parameters: Parameters | None = None, gpus: int = 1
) -> Outcome:
    """Simulate a sub-layer without and with T3.

    Parameters
    ----------
    sublayer : SubLayer
    system : System, optional
        By default that of `datasets/workloads/t3.toml`.
    parameters : Parameters, optional
        `t3_update_cost` and `t3_starvation_share` count.
    gpus : int
        To simulate: all workers, or one that stands for all.

    Raises
    ------
    InvalidInputError
        `gpus` is neither; or as `product_of`, or the parameters are out of range.

    Examples
    --------
    >>> from replay.overlap.t3.workload import find_sublayer
    >>> found = study(find_sublayer("t_nlg/fc2/8"))
    >>> 1 < found.speedup(found.t3) < found.speedup(found.t3_mca) < found.ideal_speedup
    True
    """
    if gpus not in (1, sublayer.workers):
        raise InvalidInputError(f"{sublayer.label}: {gpus} GPUs; give 1, which stands for all, or {sublayer.workers}")
    system, known = system or load_workload().system, parameters or load_parameters()
    cached, around = (product_of(sublayer, system, share) for share in (1.0, 0.0))
    cost, starvation = known["t3_update_cost"], known["t3_starvation_share"]
    if not cost >= 1:
        raise InvalidInputError(f"t3_update_cost is {cost}; an update takes no less than a write: give 1 or more")
    runs = [_run(cached, sequential(cached, Ring(system, gpus)))]
    for way in (first_come(), compute_first(starvation)):
        runs.append(_run(around, fused(around, Ring(system, gpus, way), cost)))
    return Outcome(sublayer, *runs)


def _run(product: Product, parts: Parts) -> Run:
    return Run(product, parts, replay(parts.graph))
