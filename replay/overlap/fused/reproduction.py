"""What arXiv 2305.06942 reports of fused collectives, from the simulation."""

from collections.abc import Callable, Iterator

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

__all__ = ["peak_balances", "reproduce"]

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
    first = [
        _each(name, costs, Schedule(), _fused_ns) <= _each(name, costs, Schedule("local_first"), _fused_ns) + _ROUNDING
        for name in ("inter_node", "intra_node")
    ]
    found["remote_first_not_slower"] = float(np.concatenate(first).sum())
    found["gain_peaks_at_balance"] = float(sum(1 / _NEAR <= one <= _NEAR for one in peak_balances(costs)))
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


def peak_balances(costs: Costs | None = None) -> Iterator[float]:
    """Yield, for each batch and number of tables of the sweep on each cluster, T_comp / T_coll where most is saved.

    Along pooling factors of 1 to 128; both times are those of the separate kernels.
    """
    known = load_workloads()
    batches, tables = (sorted({case[i] for case in known.sweeps["embedding"]}) for i in (0, 1))
    for where in ("inter_node", "intra_node"):
        cluster = known.clusters[where]
        for batch, table in ((b, t) for b in batches for t in tables):
            works = [embedding(cluster.device, batch=batch, tables=table, pooling=p, dim=128) for p in _POOLING]
            found = [compare(Job(work, cluster, costs=costs or Costs.of())) for work in works]
            best = max(found, key=lambda one: one.saving)
            yield best.job.compute_ns / best.job.collective_ns
