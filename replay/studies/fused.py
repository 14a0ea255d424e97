"""Fused collectives on their published set-ups: layers as traces, and `fuse_collectives` on them (arXiv 2305.06942).

`load_workloads` reads clusters, sweeps and models. `FusedLayer.fuse` applies the what-if to the trace of a layer.
`reproduce` returns our figure for each published one.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from pathlib import Path
from typing import NamedTuple

import numpy as np

from profilers.errors import InvalidInputError
from profilers.files import read_toml
from profilers.trace.trace import Trace
from replay.calibration.parameters import Parameters
from replay.costs.wire_time import collective_models
from replay.engine.timeline import replay
from replay.graph.graph import TaskKind
from replay.studies.workloads import layer_graph, step_ns
from replay.what_ifs import parse_what_if
from replay.workloads.architecture import named_tables, read_or_shipped
from replay.workloads.dlrm import Cluster, Dlrm, LayerWriter, dlrm_trace
from replay.workloads.program import SyntheticJob, SyntheticStep
from replay.workloads.program_trace import write_trace

_MOST_CASES = 100_000
#: Least time from a call to its kernel.
_LAUNCH_NS = 1_500
#: Parameters that are 0 or 1 without overheads.
_BARE = (
    *((name, 0.0) for name in ("stream_sync_ns", "put_latency_ns", "store_latency_ns", "put_issue_ns")),
    ("store_link_share", 1.0),
)


@dataclass(frozen=True)
class FusedSweep:
    """Layers of several sizes: a kernel, and the collective that exchanges its result.

    Parameters
    ----------
    name : str
        Name of the sweep; ``"embedding"`` is one of look-ups, others are of products.
    collective : str
        ``"all_to_all"`` or ``"all_reduce"``.
    sizes : tuple
        Values of each size, or of several sizes together; all combinations are taken.
    source : str
        Source of the sizes, in words.

    Raises
    ------
    InvalidInputError
        There is no such collective, or there are no combinations, or too many.
    """

    name: str
    collective: str
    sizes: tuple[tuple[int | tuple[int, ...], ...], ...]
    source: str

    def __post_init__(self) -> None:
        count, n_sizes = prod(map(len, self.sizes)), 4 if self.name == "embedding" else 3
        if self.collective not in ("all_to_all", "all_reduce"):
            raise InvalidInputError(f"{self.name}: collective {self.collective!r}; give all_to_all or all_reduce")
        if not (self.sizes and 0 < count <= _MOST_CASES) or len(self.cases[0]) != n_sizes:
            raise InvalidInputError(f"{self.name}: sizes of {count} cases; give 1 to {_MOST_CASES:,} of 4 sizes "
                                    "(embedding) or 3 (products)")  # fmt: skip

    @property
    def cases(self) -> list[tuple[int, ...]]:
        """Sizes of all layers."""
        return [tuple(np.hstack(case).tolist()) for case in product(*self.sizes)]


@dataclass(frozen=True)
class Workloads:
    """Content of a file of workloads: clusters, sweeps and recommendation models by name."""

    clusters: Mapping[str, Cluster]
    sweeps: Mapping[str, FusedSweep]
    models: Mapping[str, Dlrm]


def load_workloads(path: str | Path | None = None) -> Workloads:
    """Read a TOML file in the layout of `datasets/workloads/fused.toml`, by default that one.

    Raises
    ------
    NotFoundError, InvalidInputError
        There is no such file; or it is no such file: the table and the key are named.

    Examples
    --------
    >>> len(load_workloads().sweeps["embedding"].cases)
    54
    """
    return read_or_shipped(_read, path, "workloads/fused.toml")


def _read(file: Path) -> Workloads:
    content = read_toml(file, "workloads of fused kernels")
    tables = (("clusters", Cluster), ("sweeps", FusedSweep), ("models", Dlrm))
    return Workloads(*(named_tables(content, name, layout, file) for name, layout in tables))  # type: ignore[arg-type]


class FusedOutcome(NamedTuple):
    """Times of a layer before and after the what-if, of its kernel and of its collective, ns; waves of the kernel."""

    before_ns: float
    after_ns: float
    compute_ns: float
    collective_ns: float
    waves: float

    @property
    def saving(self) -> float:
        """Share of the time that the fused kernel saves: 1 - T_fused / T_separate."""
        return 1 - self.after_ns / self.before_ns


def what_if_on(cluster: Cluster, order: str = "remote_first") -> str:
    """Return the what-if on a cluster, as it is typed.

    Examples
    --------
    >>> what_if_on(load_workloads().clusters["inter_node"])
    'fuse_collectives:remote_first:1:1:25'
    """
    network = cluster.network
    return f"fuse_collectives:{order}:{network.devices_per_node}:{network.adapters}:{network.adapter_gbps:g}"


@dataclass(frozen=True)
class FusedLayer:
    """A layer of a sweep on a cluster.

    Parameters
    ----------
    cluster : Cluster
        Ranks, their device and their links.
    sweep : FusedSweep
        Sweep of the layer.
    sizes : tuple of int
        One of its cases.
    """

    cluster: Cluster
    sweep: FusedSweep
    sizes: tuple[int, ...]

    def trace(self, parameters: Parameters, *, members: int = 1, is_bare: bool = False) -> Trace:
        """Return the trace of one rank that stands for all, or of all; bare, without packing and pauses of launches."""
        is_lookup, gap_ns = self.sweep.name == "embedding", 0 if is_bare else round(parameters["kernel_floor_amd_ns"])
        writer = LayerWriter(self.cluster, parameters, "fp32" if is_lookup else "bf16", gap_ns)
        if is_lookup:
            batch, tables, pooling, dim = self.sizes
            writer.embedding(batch * tables, pooling, dim)
            size, element = batch * tables * dim * 4, ("Float", 4)
        else:
            m, n, k = self.sizes
            writer.products([(m, n, k)])
            size, element = m * n * 2, ("BFloat16", 2)
        if self.sweep.collective == "all_to_all" and not is_bare:
            writer.pack(size)
        writer.stream("consumer_kernel", "aten::add", 1.0, after=[writer.collective(self.sweep.collective, size)])
        calls = [replace(c, exchange=c.exchange and replace(c.exchange, meets="all")) for c in writer.calls]
        programs = [calls] * members if members > 1 else [writer.calls]
        step = SyntheticStep("layer", 1, 1, programs, max(gap_ns, _LAUNCH_NS))
        return write_trace(SyntheticJob("layer", "study", [step], self.cluster.ranks, *element), writer.device)

    def fuse(self, parameters: Parameters, order: str = "remote_first", *, is_bare: bool = False) -> FusedOutcome:
        """Apply the what-if; bare, without launches, packing, synchronisation and latencies."""
        used = parameters.with_values(_BARE) if is_bare else parameters
        graph = layer_graph(self.trace(used, is_bare=is_bare), used)
        changed, tasks = parse_what_if(what_if_on(self.cluster, order))(graph, used), graph.tasks
        kernel, sent = (int(np.argmax(tasks.kind == kind)) for kind in (TaskKind.KERNEL, TaskKind.COLLECTIVE))
        latency = launch = 0.0
        if is_bare:
            stated = replace(graph, hardware=replace(graph.hardware, network=self.cluster.network))
            latency, launch = float(collective_models(stated, used).latency_ns[sent]), float(_LAUNCH_NS)
        before, after = (replay(each).makespan_ns - launch for each in (graph, changed))
        compute, collective = tasks.duration_ns[[kernel, sent]].tolist()
        return FusedOutcome(before - latency, after, compute, collective - latency, float(tasks.waves[kernel]))

    def skew(self, parameters: Parameters, order: str) -> float:
        """Return how much earlier than the last the first rank has its data, over the time of the last."""
        graph = layer_graph(self.trace(parameters, members=self.cluster.ranks), parameters)
        line = replay(parse_what_if(what_if_on(self.cluster, order))(graph, parameters))
        ends = line.end_ns[line.graph.tasks.name == line.graph.names.index("consumer_kernel")]
        return float(1 - ends.min() / ends.max())


#: Sweep and cluster of the figures, by the beginning of their names; the first two are clusters of embeddings.
_FIGURES = {
    "inter_node": ("embedding", "inter_node"),
    "intra_node": ("embedding", "intra_node"),
    "gemv": ("gemv", "intra_node"),
    "gemm": ("gemm", "intra_node"),
}
#: Pooling factors along which the peak is looked for, about a square root of 2 apart, and how far it may be from 1.
_POOLING = (1, 2, 3, 4, 6, 8, 11, 16, 23, 32, 45, 64, 91, 128)
_NEAR = 2.0
#: Differences that are rounding, and what counts as about the same.
_ROUNDING, _ABOUT = 1e-9, 0.01
#: With fewer waves of workgroups nothing is done before the kernel is.
_LEAST_WAVES = 2.0


def layers(workloads: Workloads, figure: str) -> list[FusedLayer]:
    """Return the layers of a sweep: ``"inter_node"``, ``"intra_node"``, ``"gemv"`` or ``"gemm"``."""
    sweep, cluster = workloads.sweeps[_FIGURES[figure][0]], workloads.clusters[_FIGURES[figure][1]]
    return [FusedLayer(cluster, sweep, sizes) for sizes in sweep.cases]


def reproduce(parameters: Parameters, workloads: Workloads) -> dict[str, float]:
    """Return the figures of `datasets/published/fused.toml` as the what-if gives them, by name.

    Parameters
    ----------
    parameters : Parameters
        With calibrations of kernels and collectives.
    workloads : Workloads
        The published workloads.
    """
    outcomes = {name: [layer.fuse(parameters) for layer in layers(workloads, name)] for name in _FIGURES}
    figures: dict[str, float] = {}
    for name, fused in outcomes.items():
        savings = np.array([outcome.saving for outcome in fused])
        figures |= {f"{name}_average": 100 * float(savings.mean()), f"{name}_largest": 100 * float(savings.max())}
    cluster = workloads.clusters["scale_out"]
    trace = dlrm_trace(workloads.models["production"], cluster, parameters=parameters)
    step, fused_step = step_ns(trace, [what_if_on(cluster)], parameters).values()
    figures["training_128_nodes"] = 100 * (1 - fused_step / step)
    bare = [layer.fuse(parameters, is_bare=True).saving for name in _FIGURES for layer in layers(workloads, name)]
    figures["no_overhead_at_most_half"] = float(sum(saving <= 0.5 for saving in bare))
    both = [layer for name in ("inter_node", "intra_node") for layer in layers(workloads, name)]
    local = np.array([layer.fuse(parameters, "local_first").after_ns for layer in both])
    remote = np.array([outcome.after_ns for name in ("inter_node", "intra_node") for outcome in outcomes[name]])
    figures["remote_first_not_slower"] = float((remote <= local + _ROUNDING).sum())
    figures["remote_first_about_or_over"] = float((remote <= local * (1 + _ABOUT)).sum())
    for name, is_bare, least in (("at_balance", True, _LEAST_WAVES), ("with_overheads", False, 0.0)):
        balances = [best.compute_ns / best.collective_ns for best in _peaks(workloads, parameters, is_bare)
                    if best.waves >= least]  # fmt: skip
        figures[f"gain_peaks_{name}"] = float(sum(1 / _NEAR <= balance <= _NEAR for balance in balances))
    for order in ("ascending", "remote_first"):
        skews = [layer.skew(parameters, order) for layer in layers(workloads, "inter_node")]
        figures[f"skew_{order}"] = 100 * float(np.mean(skews))
    return figures


def _peaks(workloads: Workloads, parameters: Parameters, is_bare: bool) -> Iterator[FusedOutcome]:
    """Yield the largest saving along the pooling factors, for each cluster, batch and number of tables."""
    sweep = workloads.sweeps["embedding"]
    pairs = sorted({case[:2] for case in sweep.cases})
    for cluster, pair in product(("inter_node", "intra_node"), pairs):
        along = [FusedLayer(workloads.clusters[cluster], sweep, (*pair, pooling, 128)) for pooling in _POOLING]
        outcomes = [layer.fuse(parameters, is_bare=is_bare) for layer in along]
        yield max(outcomes, key=lambda outcome: outcome.saving)
