"""What arXiv 2305.06942 reports of fused collectives, from the simulation."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from replay.overlap.fused.comparison import Comparison, compare
from replay.overlap.fused.costs import Costs
from replay.overlap.fused.job import Job
from replay.overlap.fused.recommendation import compare_training
from replay.overlap.fused.schedule import Schedule
from replay.overlap.fused.work import embedding
from replay.overlap.fused.workloads import load_workloads
from replay.parameters import Parameters

__all__ = ["Peak", "peaks", "reproduce"]

Floats = npt.NDArray[np.float64]

#: What is swept where: the figures' names begin so.
_SWEEPS = {
    "inter_node": ("embedding", "inter_node"),
    "intra_node": ("embedding", "intra_node"),
    "gemv": ("gemv", "intra_node"),
    "gemm": ("gemm", "intra_node"),
}
#: Pooling factors along which the peak is looked for, about a square root of 2 apart, and how far it may be from 1.
_POOLING = (1, 2, 3, 4, 6, 8, 11, 16, 23, 32, 45, 64, 91, 128)
_NEAR = 2.0
_ROUNDING = 1e-9
#: What counts as about the same.
_ABOUT = 0.01
#: With fewer waves of workgroups nothing is done before the kernel is.
_LEAST_WAVES = 2.0


class Peak(NamedTuple):
    """A case in which most is saved: waves of workgroups of the kernel, and T_comp / T_coll of the separate kernels."""

    waves: float
    balance: float

    @property
    def near(self) -> bool:
        """Whether the two times are within a factor of 2 of each other."""
        return 1 / _NEAR <= self.balance <= _NEAR


def reproduce(parameters: Parameters | None = None) -> dict[str, float]:
    """Return the figures of `datasets/published/fused.toml` as the simulation gives them, by name.

    Parameters
    ----------
    parameters : Parameters, optional
        By default the shipped ones.

    Examples
    --------
    >>> reproduce()["no_overhead_at_most_half"]
    135.0
    """
    costs, known = Costs.of(parameters), load_workloads()
    found: dict[str, float] = {}
    for name in _SWEEPS:
        savings = _each(name, costs, Schedule(), lambda one: one.saving)
        found |= {f"{name}_average": 100 * float(savings.mean()), f"{name}_largest": 100 * float(savings.max())}
    training = compare_training(known.models["production"], known.clusters["scale_out"], costs=costs)
    found["training_128_nodes"] = 100 * training.saving
    halves = [_each(name, costs.without_overheads(), Schedule(), lambda one: one.saving) <= 0.5 for name in _SWEEPS]
    found["no_overhead_at_most_half"] = float(np.concatenate(halves).sum())
    orders = [
        np.concatenate([_each(name, costs, Schedule(order), _fused_ns) for name in ("inter_node", "intra_node")])
        for order in ("remote_first", "local_first")
    ]
    found["remote_first_not_slower"] = float((orders[0] <= orders[1] + _ROUNDING).sum())
    found["remote_first_about_or_over"] = float((orders[0] <= orders[1] * (1 + _ABOUT)).sum())
    pipelined = [one for one in peaks(costs.without_overheads()) if one.waves >= _LEAST_WAVES]
    found["gain_peaks_at_balance"] = float(sum(one.near for one in pipelined))
    found["gain_peaks_with_overheads"] = float(sum(one.near for one in peaks(costs)))
    for order in ("ascending", "remote_first"):
        skews = _each("inter_node", costs, Schedule(order), lambda one: one.skew)
        found[f"skew_{order}"] = 100 * float(skews.mean())
    return found


def _fused_ns(one: Comparison) -> float:
    return one.fused.makespan_ns


def _each(name: str, costs: Costs, schedule: Schedule, of: Callable[[Comparison], float]) -> Floats:
    """Return a figure of each case of a sweep."""
    known, (sweep, where) = load_workloads(), _SWEEPS[name]
    cluster = known.clusters[where]
    return np.array([of(compare(Job(work, cluster, schedule, costs))) for work in known.works(sweep, where)])


def peaks(costs: Costs) -> Iterator[Peak]:
    """Yield where most is saved along pooling factors of 1 to 128.

    For each batch and number of tables of the sweep, on each cluster.
    """
    known = load_workloads()
    batches, tables = (sorted({case[i] for case in known.sweeps["embedding"]}) for i in (0, 1))
    for where in ("inter_node", "intra_node"):
        cluster = known.clusters[where]
        for batch, table in ((b, t) for b in batches for t in tables):
            works = [embedding(cluster.device, batch=batch, tables=table, pooling=p, dim=128) for p in _POOLING]
            found = [compare(Job(work, cluster, costs=costs)) for work in works]
            best = max(found, key=lambda one: one.saving).job
            resident = best.work.resident * (1 - costs.occupancy_loss)
            yield Peak(best.work.workgroups / resident, best.compute_ns / best.collective_ns)
