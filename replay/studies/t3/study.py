"""Sub-layers without T3, with it, and with its arbitration of memory; T3's published figures (arXiv 2401.16677).

`study` simulates a sub-layer three ways. Closed forms of the paper are checked by simulations of their cases.
`reproduce` returns our figure for each published one.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from profilers.errors import InvalidInputError
from replay.calibration.parameters import Parameters
from replay.costs.kernels import KernelCalibration
from replay.costs.products import with_figure
from replay.engine.timeline import replay
from replay.graph.assembly import Assembly
from replay.graph.graph import SharingPolicy
from replay.studies.t3.ring import (
    Arbitration,
    Ring,
    Run,
    SubLayer,
    System,
    Workload,
    compute_first,
    fused,
    near_memory_reduce_scatter,
    product_of,
    reduce_scatter,
    sequential,
)


@dataclass(frozen=True)
class Outcome:
    """A sub-layer simulated three ways.

    Parameters
    ----------
    sublayer : SubLayer
        Sub-layer that was simulated.
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
        baseline = self.baseline
        shorter = min(baseline.product_ns, baseline.reduced_ns - baseline.product_ns)
        return baseline.gathered_ns / (baseline.gathered_ns - shorter)

    @property
    def movement_saved(self) -> float:
        """Share of the memory traffic that T3 saves."""
        before, after = (sum(run.movement_bytes.values()) for run in (self.baseline, self.t3_mca))
        return 1.0 - after / before


def study(sublayer: SubLayer, system: System, *, parameters: Parameters, gpus: int = 1) -> Outcome:
    """Simulate a sub-layer without and with T3.

    Parameters
    ----------
    sublayer : SubLayer
        Product and number of workers.
    system : System
        GPUs and the links of their ring.
    parameters : Parameters
        `t3_update_cost` and `t3_starvation_share`, and a calibration of kernels.
    gpus : int
        GPUs to simulate: all workers, or 1 that stands for all.

    Raises
    ------
    InvalidInputError
        `gpus` is neither; or as `product_of`, or the parameters are out of range.

    Examples
    --------
    >>> from replay.costs.shipped import load_parameters
    >>> from replay.studies.t3 import find_sublayer, load_workload
    >>> workload = load_workload()
    >>> sublayer = find_sublayer("t_nlg/fc2/8", workload)
    >>> outcome = study(sublayer, workload.system, parameters=load_parameters())
    >>> 1 < outcome.speedup(outcome.t3) < outcome.speedup(outcome.t3_mca) < outcome.ideal_speedup
    True
    """
    if gpus not in (1, sublayer.workers):
        raise InvalidInputError(f"{sublayer.label}: {gpus} GPUs; give 1, which stands for all, or {sublayer.workers}")
    fits = parameters.calibration(KernelCalibration)
    cached, around = (product_of(sublayer, system, share, fits) for share in (1.0, 0.0))
    cost, starvation = parameters["t3_update_cost"], parameters["t3_starvation_share"]
    if not cost >= 1:
        raise InvalidInputError(f"t3_update_cost is {cost}; an update takes no less than a write: give 1 or more")
    baseline = sequential(cached, Ring(system, gpus))
    arbitrations = (Arbitration(), compute_first(starvation))
    return Outcome(sublayer, baseline, *(fused(around, Ring(system, gpus, way), cost) for way in arbitrations))


#: Of a chunk in the comparison of reduce-scatters, large, so that no rounding of a time shows; and of its blocks.
_CHUNK_BYTES, _BLOCK_BYTES = 2.0**33, 2**31


def with_link(system: System, gbps: float) -> System:
    """Return the system with links of another bandwidth, GB/s to one neighbour.

    Examples
    --------
    >>> from replay.studies.t3.ring import load_workload
    >>> with_link(load_workload().system, 150.0).link_ns(1.5e6)
    10000.0
    """
    return replace(system, device=with_figure(system.device, "link_gbps", gbps))


def near_memory_gain(system: System, workers: int) -> float:
    """Return by which share a reduce-scatter on compute units takes longer than one near memory, without latency.

    Parameters
    ----------
    system : System
        GPUs of the ring.
    workers : int
        Number of workers.

    Notes
    -----
    3 L / (B (N - 1)), with L and B the bandwidths of link and memory: the last reduction reads two chunks and writes
    one after all that is sent.
    """
    times = []
    for kind in (reduce_scatter, near_memory_reduce_scatter):
        ring = Ring(replace(system, latency_ns=0.0, block_bytes=_BLOCK_BYTES), 1)
        kind(ring, ring.mark("start"), workers=workers, chunk_bytes=_CHUNK_BYTES)
        times.append(replay(ring.graph()).makespan_ns)
    return times[0] / times[1] - 1.0


def speedup_beside_few_units(ideal: float, slower: float, units_share: float) -> float:
    """Return the speed-up from overlapping a product and an all-reduce where the all-reduce gets few compute units.

    Parameters
    ----------
    ideal : float
        Speed-up where neither slows the other, and the all-reduce is the longer: 1 to 2.
    slower : float
        Time of the all-reduce on those units, over its time alone.
    units_share : float
        Share of the compute units that it gets; the product has the others.

    Examples
    --------
    >>> round(speedup_beside_few_units(1.67, 1.41, 0.1), 2)
    1.18
    """
    reduce_ns = 1e9
    product_ns = (ideal - 1.0) * reduce_ns
    assembly = Assembly()
    lanes = [assembly.lane(device=0, stream=stream) for stream in (0, 1)]
    columns = {
        "duration_ns": [product_ns, reduce_ns],
        "cu": [1.0, min(units_share * slower, 1.0)],
        "cu_mask": [1, 2],
    }
    assembly.tasks("product beside all-reduce", lanes, columns)
    graph = assembly.graph(policy=SharingPolicy(partitions=(1.0 - units_share, units_share)))
    return float(np.divide(product_ns + reduce_ns, replay(graph).makespan_ns))


#: Models of the main figures, and those of about 500 billion parameters.
_MODELS, _LARGE = ("mega_gpt2", "t_nlg"), ("palm", "mt_nlg")
#: The closed forms' link, GB/s: both directions of the ring.
_RING_GBPS = 150.0
#: Nearly the same speed-up.
_ABOUT = 0.02


def reproduce(parameters: Parameters, workload: Workload) -> dict[str, float]:
    """Return our figure for each of `datasets/published/t3.toml`.

    Parameters
    ----------
    parameters : Parameters
        `t3_update_cost` and `t3_starvation_share`, and a calibration of kernels.
    workload : Workload
        The published sub-layers and system.
    """
    outcomes = studied((*_MODELS, *_LARGE), workload, parameters)
    main = [outcome for outcome in outcomes if outcome.sublayer.model in _MODELS]
    large = [outcome for outcome in outcomes if outcome.sublayer.model in _LARGE]
    saved = [outcome.movement_saved for outcome in main]
    speedups = {
        "mca": [outcome.speedup(outcome.t3_mca) for outcome in main],
        "t3": [outcome.speedup(outcome.t3) for outcome in main],
        "ideal": [outcome.ideal_speedup for outcome in main],
        "mca_large": [outcome.speedup(outcome.t3_mca) for outcome in large],
    }
    return {
        **{f"{name}_geomean": _geomean_gain(values) for name, values in speedups.items()},
        **{f"{name}_max": 100 * (max(speedups[name]) - 1) for name in ("mca", "t3", "ideal")},
        "movement_geomean": 100 * (1 - float(np.exp(np.mean(np.log1p(np.negative(saved)))))),
        "movement_max": 100 * max(saved),
        **_closed_forms(main, with_link(workload.system, _RING_GBPS)),
        **_orders(outcomes),
    }


def studied(models: Collection[str], workload: Workload, parameters: Parameters) -> list[Outcome]:
    """Simulate every sub-layer of some models; sub-layers with the same product are simulated once.

    Parameters
    ----------
    models : collection of str
        Names of models.
    workload : Workload
        Sub-layers and system.
    parameters : Parameters
        `t3_update_cost` and `t3_starvation_share`, and a calibration of kernels.
    """
    by_shape: dict[tuple[int, ...], Outcome] = {}
    outcomes = []
    for sublayer in workload.sublayers.values():
        if sublayer.model in models:
            shape = (sublayer.tokens, sublayer.hidden, sublayer.factor, sublayer.workers)
            if shape not in by_shape:
                by_shape[shape] = study(sublayer, workload.system, parameters=parameters)
            outcomes.append(replace(by_shape[shape], sublayer=sublayer))
    return outcomes


def _geomean_gain(speedups: Sequence[float]) -> float:
    """Return the geometric mean of speed-ups, % above 1."""
    return 100 * (float(np.exp(np.mean(np.log(speedups)))) - 1)


def _closed_forms(outcomes: Sequence[Outcome], system: System) -> dict[str, float]:
    forms = {"few_units": speedup_beside_few_units(1.67, 1.41, 8 / system.device.compute_units)}
    for workers in (8, 16):
        outcome = next(outcome for outcome in outcomes if outcome.sublayer.workers == workers)
        before, after = outcome.baseline.movement_bytes, outcome.t3.movement_bytes
        forms[f"rs_reads_{workers}"] = before["RS reads"] / after["RS reads"]
        forms[f"writes_{workers}"] = 100 * (_writes(after) / _writes(before) - 1)
        forms[f"near_memory_gain_{workers}"] = 100 * near_memory_gain(system, workers)
    return forms


def _writes(movement: Mapping[str, float]) -> float:
    return movement["GEMM writes"] + movement["RS writes"]


def _orders(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """Return in how many sub-layers each order holds, and whether all hold of the means."""
    rows = np.array([(1.0, o.speedup(o.t3), o.speedup(o.t3_mca), o.ideal_speedup) for o in outcomes])
    means = np.exp(np.log(rows).mean(axis=0))
    return {
        "order_of_means": float((np.diff(means) > 0).all()),
        "order_t3_over_sequential": float((rows[:, 1] > 1).sum()),
        "order_mca_over_t3": float((rows[:, 2] > rows[:, 1]).sum()),
        "order_mca_about_t3_or_over": float((rows[:, 2] > rows[:, 1] * (1 - _ABOUT)).sum()),
        "order_ideal_about_mca_or_over": float((rows[:, 2] <= rows[:, 3] * (1 + _ABOUT)).sum()),
    }
