"""`Job`: some work on a cluster, with what everything costs; the times and demands that both ways to run it share."""

from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from profilers.errors import InvalidInputError
from replay.collectives import algorithms_of, fastest, machine_of, phases_of
from replay.graph import Hardware
from replay.overlap.fused.cluster import Cluster
from replay.overlap.fused.costs import Costs
from replay.overlap.fused.schedule import Schedule, Slices, common_slices, slices_of
from replay.overlap.fused.work import Work

__all__ = ["Job"]

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Job:
    """Work of every rank of a cluster, and the collective behind it.

    Parameters
    ----------
    work : Work
    cluster : Cluster
    schedule : Schedule, optional
        Of the fused kernel.
    costs : Costs, optional
        By default those of the shipped parameters.
    shots : int, optional
        Of a fused all-reduce: 1, each rank sends all to all others, and each sums; 2, each rank owns a part, sums it
        and sends it on. By default what takes less time by size, where no computation hides it.

    Raises
    ------
    InvalidInputError
        There are other shots.
    """

    work: Work
    cluster: Cluster
    schedule: Schedule = field(default_factory=Schedule)
    costs: Costs = field(default_factory=Costs.of)
    shots: int = 0

    def __post_init__(self) -> None:
        if self.shots not in (0, 1, 2):
            raise InvalidInputError(f"{self.shots} shots; give 1, 2, or 0 to choose by size")

    @property
    def memory_bytes_per_s(self) -> float:
        """What streaming kernels reach."""
        return self.cluster.device.memory_bytes_per_s * self.costs.memory_share

    @property
    def compute_ns(self) -> float:
        """The computation alone on its device, with all the workgroups that fit."""
        return self.work.seconds(self.cluster.device, self.costs.memory_share) * 1e9

    @property
    def memory_demand(self) -> float:
        """Share of the bandwidth that streaming kernels reach, while it computes."""
        return min(self.work.moved_bytes / (self.memory_bytes_per_s * self.compute_ns * 1e-9), 1.0)

    @property
    def memory_bound(self) -> bool:
        """Whether memory, rather than arithmetic, limits the computation."""
        return self.work.moved_bytes / self.memory_bytes_per_s * 1e9 >= self.work.arithmetic_ns

    @property
    def wire_ns(self) -> float:
        """What the busiest link of a device takes to carry the collective by the algorithm that sends least."""
        topology, kind = self.cluster.topology, self.work.collective
        if self.cluster.ranks == 1:
            return 0.0
        machine = machine_of(self.cluster.device, topology, self.cluster.adapter_bytes_per_s)
        times = [
            sum(phase.volume / machine.of(phase) for phase in phases_of(kind, name, topology))
            for name in algorithms_of(kind, topology)
        ]
        return min(times) * self.work.output_bytes * 1e9

    @property
    def collective_ns(self) -> float:
        """A library's collective, with the share of its latencies that `Costs.library` says."""
        machine = machine_of(self.cluster.device, self.cluster.topology, self.cluster.adapter_bytes_per_s)
        size = np.array([self.work.output_bytes], dtype=np.float64)
        with_all = fastest(self.work.collective, self.cluster.topology, machine, size)[0][0] * 1e9
        return self.wire_ns + self.costs.library * max(float(with_all) - self.wire_ns, 0.0)

    @property
    def pack_ns(self) -> float:
        """A kernel that reads and writes the whole output."""
        packs = self.costs.packs if self.work.packed and self.cluster.ranks > 1 else 0.0
        return packs * 2 * self.work.output_bytes / self.memory_bytes_per_s * 1e9

    @property
    def in_one_shot(self) -> bool:
        """Whether a fused all-reduce sends everything to everyone, rather than in two shots."""
        if self.work.collective != "all_reduce" or self.shots:
            return self.shots == 1 and self.work.collective == "all_reduce"
        size, cluster, costs = self.work.output_bytes, self.cluster, self.costs
        latency = costs.put_ns if cluster.topology.nodes > 1 else costs.store_ns
        latency += costs.issue_ns * len(cluster.network_offsets) * self.schedule.parts
        once = latency + cluster.exchange_seconds(size) * 1e9
        return once <= 2 * (latency + cluster.exchange_seconds(size / cluster.ranks) * 1e9)

    def slices(self, rank: int) -> Slices:
        """Return what a rank computes in the fused kernel, slice after slice."""
        if self.in_one_shot:
            return common_slices(self.schedule, rank, self.work.workgroups)
        return slices_of(self.cluster, self.schedule, rank, self.work.workgroups)

    def with_work(self, work: Work) -> "Job":
        """Return the same of other work."""
        return replace(self, work=work)

    def hardware(self) -> Hardware:
        """Return what the devices of its graphs are."""
        return Hardware(self.cluster.device, "user", self.cluster.device.compute_units)
