"""T3's published figures (arXiv 2401.16677): the what-ifs `t3` and `t3:mca` on a trace of each sub-layer.

A sub-layer is a product, whose result is reduce-scattered and gathered again over tensor-parallel ranks.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import ceil

import msgspec
import numpy as np

from profilers.devices.catalogue import Device, find_device
from profilers.files import dataset_path, read_toml, typed_table
from profilers.trace.arrays import Floats
from profilers.trace.trace import Trace
from replay.calibration.parameters import Parameters
from replay.costs.kernels import KernelCalibration, predict
from replay.costs.products import cache_bytes
from replay.engine.timeline import replay
from replay.graph.assembly import Assembly
from replay.graph.graph import SharingPolicy
from replay.studies.workloads import layer_graph, layer_trace, step_ns
from replay.what_ifs import parse_what_if
from replay.what_ifs.ring import MOVEMENTS, RingColumns, RingTimes, TiledProduct, ring_pattern
from replay.workloads.program import Collective, KernelCall

#: Models of the main figures, and those of about 500 billion parameters.
_MAIN, _LARGE = ("mega_gpt2", "t_nlg"), ("palm", "mt_nlg")
#: The closed form's link, GB/s: both directions of the ring. Two speed-ups are about the same within this share.
_RING_GBPS, _ABOUT = 150.0, 0.02
_CALL_NS, _STREAM, _TILE = 1500, 7, 128


class T3Model(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A model of the table, with the numbers of tensor-parallel ranks that it runs on."""

    title: str
    hidden: int
    tokens: int
    ranks: tuple[int, ...]
    source: str


class T3Workload(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The table of sub-layers; the product of a rank is tokens x hidden x (factor * hidden / ranks)."""

    device: str
    latency_ns: float
    source: str
    factors: dict[str, int]
    models: dict[str, T3Model]


@dataclass(frozen=True)
class SubLayer:
    """A product of a sub-layer on one rank, in elements of 2 bytes, and the ring of its collectives."""

    model: str
    label: str
    sizes: tuple[int, int, int]
    ranks: int
    device: Device
    latency_ns: float

    @property
    def result_bytes(self) -> int:
        """Bytes of the whole result, of which every rank has a partial sum."""
        return 2 * self.sizes[0] * self.sizes[1]

    def times_ns(self, parameters: Parameters) -> tuple[int, int, int]:
        """Return how long product, reduce-scatter and all-gather take: by the model of kernels, and of a ring."""
        fits, chunk = parameters.calibration(KernelCalibration), self.result_bytes / self.ranks
        product = predict("matmul", [[1, *self.sizes]], self.device, calibration=fits, dtype="fp16").seconds[0]
        gather = (self.ranks - 1) * (1e9 * chunk / self.device.link_bytes_per_s + self.latency_ns)
        return round(1e9 * product), round(gather + 3e9 * chunk / self.device.memory_bytes_per_s), round(gather)

    def trace(self, parameters: Parameters) -> Trace:
        """Return the trace of one rank that stands for all."""
        (m, n, k), (product_ns, *others) = self.sizes, self.times_ns(parameters)
        tiles = ceil(m / _TILE) * ceil(n / _TILE)
        calls = [KernelCall("gemm", "aten::mm", product_ns, _CALL_NS, _STREAM, (m, k), tiles, operands=((k, n),))]
        for kind, time in zip(("reduce_scatter", "all_gather"), others, strict=True):
            exchange = Collective(kind, m * n, "tensor parallel", self.ranks)
            calls.append(KernelCall(kind, f"c10d::{kind}", time, _CALL_NS, _STREAM, (m, n), exchange=exchange))
        return layer_trace(self.label, self.device, calls, world_size=self.ranks)


@cache
def load_workload() -> Mapping[str, SubLayer]:
    """Return the sub-layers of `datasets/workloads/t3.toml` by label: model, sub-layer and ranks.

    Examples
    --------
    >>> load_workload()["t_nlg/fc2/8"].sizes
    (8192, 4256, 2128)
    """
    file = dataset_path("workloads/t3.toml")
    table = typed_table(read_toml(file, "sub-layers"), T3Workload, str(file))
    sublayers = [
        SubLayer(
            name,
            f"{name}/{kind}/{ranks}",
            (model.tokens, model.hidden, factor * model.hidden // ranks),
            ranks,
            find_device(table.device),
            table.latency_ns,
        )
        for name, model in table.models.items()
        for ranks in model.ranks
        for kind, factor in table.factors.items()
    ]
    return {sublayer.label: sublayer for sublayer in sublayers}


@dataclass(frozen=True)
class T3Outcome:
    """A sub-layer under T3: speed-ups by what-if, and bytes of memory before and after, in the order of `MOVEMENTS`.

    ``"ideal"`` hides the shorter of product and reduce-scatter.
    """

    sublayer: SubLayer
    speedups: Mapping[str, float]
    before_bytes: Floats
    after_bytes: Floats

    @property
    def movement_saved(self) -> float:
        """Share of the memory traffic that T3 saves; the all-gather reads and writes as before."""
        gather = 2 * self.sublayer.result_bytes * (self.sublayer.ranks - 1) / self.sublayer.ranks
        return float(1 - (self.after_bytes.sum() + gather) / (self.before_bytes.sum() + gather))


def study(sublayer: SubLayer, parameters: Parameters) -> T3Outcome:
    """Return what T3 makes of a sub-layer.

    Before, the reduce-scatter of N ranks reads 2 N - 1 parts of the result and writes N.

    Examples
    --------
    >>> from replay.costs.shipped import load_parameters
    >>> speedups = study(load_workload()["t_nlg/fc2/8"], load_parameters()).speedups
    >>> 1 < speedups["t3"] < speedups["t3:mca"] < speedups["ideal"]
    True
    """
    trace, ranks, size = sublayer.trace(parameters), sublayer.ranks, sublayer.result_bytes
    steps = dict(step_ns(trace, ("t3", "t3:mca"), parameters))
    steps["ideal"] = steps["nothing"] - min(sublayer.times_ns(parameters)[:2])
    changed = parse_what_if("t3")(layer_graph(trace, parameters), parameters)
    moved = np.bincount(changed.tasks.name, weights=changed.tasks.bytes).astype(np.float64)
    product = TiledProduct(*sublayer.sizes, ranks, sublayer.device.compute_units, cache_bytes(sublayer.device))
    reads = product.read_bytes(np.array([0, product.stages]), caches_result=True).sum()
    before, after = [reads, size, (2 * ranks - 1) * size / ranks, size], moved[[*map(changed.names.index, MOVEMENTS)]]
    speedups = {text: steps["nothing"] / steps[text] for text in ("t3", "t3:mca", "ideal")}
    return T3Outcome(sublayer, speedups, np.array(before), after)


def near_memory_gain(sublayer: SubLayer) -> float:
    """Return by which share a reduce-scatter on compute units takes longer than one near memory, without latency.

    3 L / (B (N - 1)), with L and B the bandwidths of link and memory: the last reduction reads two chunks and writes
    one after all that is sent.
    """
    product = TiledProduct(*sublayer.sizes, sublayer.ranks, 2**62, 0.0)
    chunk, byte_ns = sublayer.result_bytes / sublayer.ranks, 1e9 / sublayer.device.memory_bytes_per_s
    on_units_ns = (sublayer.ranks - 1) * chunk / _RING_GBPS + 3 * chunk * byte_ns
    times = RingTimes(0.0, on_units_ns, byte_ns, 0.0, 1.0)
    near_memory = ring_pattern(product, times, RingColumns({}, {"link": 1.0}), members=1, budget=2**20)
    return on_units_ns / near_memory.alone_ns() - 1


def speedup_beside_few_units(ideal: float, slower: float, share: float) -> float:
    """Return the speed-up from overlap of a product and an all-reduce that gets a share of the compute units.

    Parameters
    ----------
    ideal : float
        Speed-up where neither slows the other, and the all-reduce is the longer: 1 to 2.
    slower : float
        Time of the all-reduce on those units, over its time alone.
    share : float
        Share of the compute units that it gets; the product has the others.

    Examples
    --------
    >>> round(speedup_beside_few_units(1.67, 1.41, 0.1), 2)
    1.18
    """
    assembly, durations = Assembly(), [(ideal - 1.0) * 1e9, 1e9]
    lanes = [assembly.lane(device=0, stream=stream) for stream in (0, 1)]
    columns = {"duration_ns": durations, "cu": [1.0, min(share * slower, 1.0)], "cu_mask": [1, 2]}
    assembly.tasks("product beside all-reduce", lanes, columns)
    graph = assembly.graph(policy=SharingPolicy(partitions=(1.0 - share, share)))
    return sum(durations) / replay(graph).makespan_ns


def reproduce(parameters: Parameters, workload: Mapping[str, SubLayer]) -> dict[str, float]:
    """Return our figure for each of `datasets/published/t3.toml`."""
    outcomes = [study(each, parameters) for each in workload.values() if each.model in (*_MAIN, *_LARGE)]
    is_main = np.array([outcome.sublayer.model in _MAIN for outcome in outcomes])
    t3, mca, ideal = np.array([list(outcome.speedups.values()) for outcome in outcomes]).T
    moved = np.array([1 - outcome.movement_saved for outcome in outcomes])[is_main]
    figures = {"mca_large_geomean": _gain(mca[~is_main])}
    for name, speedups in (("t3", t3), ("mca", mca), ("ideal", ideal)):
        figures |= {
            f"{name}_geomean": _gain(speedups[is_main]),
            f"{name}_max": 100 * float(speedups[is_main].max() - 1),
        }
    for ranks in (8, 16):
        each = next(outcome for outcome in outcomes if outcome.sublayer.ranks == ranks)
        (_, writes, reads, sums), (_, fewer, less, more) = each.before_bytes, each.after_bytes
        figures |= {f"rs_reads_{ranks}": reads / less, f"writes_{ranks}": 100 * ((fewer + more) / (writes + sums) - 1)}
        figures[f"near_memory_gain_{ranks}"] = 100 * near_memory_gain(each.sublayer)
    means = [1.0, *(np.log(speedups).mean() + 1 for speedups in (t3, mca, ideal))]
    return figures | {
        "movement_geomean": -_gain(moved),
        "movement_max": 100 * float(1 - moved.min()),
        "few_units": speedup_beside_few_units(1.67, 1.41, 8 / outcomes[0].sublayer.device.compute_units),
        "order_of_means": float(means == sorted(set(means))),
        "order_t3_over_sequential": float((t3 > 1).sum()),
        "order_mca_over_t3": float((mca > t3).sum()),
        "order_mca_about_t3_or_over": float((mca > t3 * (1 - _ABOUT)).sum()),
        "order_ideal_about_mca_or_over": float((mca <= ideal * (1 + _ABOUT)).sum()),
    }


def _gain(factors: Floats) -> float:
    """Return the geometric mean of factors, % above 1."""
    return 100 * (float(np.exp(np.mean(np.log(factors)))) - 1)
