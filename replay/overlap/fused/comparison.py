"""`compare`: the same work as separate kernels and as one fused kernel, both simulated."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from replay.assembly import Assembly
from replay.graph import KernelGraph
from replay.overlap.fused.baseline import add_baseline
from replay.overlap.fused.job import Job
from replay.overlap.fused.persistent import add_fused
from replay.timeline import Timeline, replay

__all__ = ["Comparison", "baseline_graph", "compare", "fused_graph"]


@dataclass(frozen=True)
class Comparison:
    """Two timelines of one job.

    Parameters
    ----------
    job : Job
    baseline, fused : Timeline
    """

    job: Job
    baseline: Timeline
    fused: Timeline

    @property
    def saving(self) -> float:
        """Share of the baseline's time that the fused kernel saves: 1 - T_fused / T_baseline."""
        return 1 - self.fused.makespan_ns / self.baseline.makespan_ns

    @property
    def skew(self) -> float:
        """How much earlier than the last the first rank has all that it needs, over the time of the last; fused."""
        named = self.fused.graph.names.index("received")
        ends = self.fused.end_ns[self.fused.graph.tasks.name == named]
        return float(1 - ends.min() / ends.max())


def compare(job: Job, ranks: Sequence[int] | None = None) -> Comparison:
    """Simulate a job both ways.

    Parameters
    ----------
    job : Job
    ranks : sequence of int, optional
        That are simulated: one, where all do the same, or all of the cluster. By default one where it stands for all.

    Examples
    --------
    >>> from profilers.devices import find_device
    >>> from replay.collectives import Topology
    >>> from replay.overlap.fused import Cluster, embedding
    >>> mi210 = find_device("MI210")
    >>> pair = Cluster(mi210, Topology(2, 1, nics=1))
    >>> found = compare(Job(embedding(mi210, batch=512, tables=32, pooling=20, dim=128), pair))
    >>> 0.2 < found.saving < 0.6
    True
    """
    return Comparison(job, replay(baseline_graph(job, ranks)), replay(fused_graph(job, ranks)))


def baseline_graph(job: Job, ranks: Sequence[int] | None = None) -> KernelGraph:
    """Return a job as separate kernels; `ranks` as in `compare`."""
    work = Assembly()
    add_baseline(work, job, _simulated(job, ranks))
    return work.graph(job.hardware())


def fused_graph(job: Job, ranks: Sequence[int] | None = None) -> KernelGraph:
    """Return a job as one persistent kernel; `ranks` as in `compare`."""
    work = Assembly()
    add_fused(work, job, _simulated(job, ranks))
    return work.graph(job.hardware())


def _simulated(job: Job, ranks: Sequence[int] | None) -> Sequence[int]:
    if ranks is not None:
        return ranks
    return (0,) if job.schedule.is_symmetric() else tuple(np.arange(job.cluster.ranks).tolist())
