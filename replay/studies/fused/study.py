"""Published workloads of fused collectives, and their figures (arXiv 2305.06942).

`load_workloads` reads clusters, sweeps and models. `compare_training` simulates a training step of a recommendation
model whose embeddings and all-to-all are fused. `reproduce` returns our figure for each published one.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise, product
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import msgspec
import numpy as np

from profilers.devices.catalogue import find_device
from profilers.errors import InvalidInputError, NotFoundError, SeqPointError
from profilers.files import read_toml, typed_table, typed_tables
from profilers.trace.arrays import Ints
from replay.calibration.parameters import Parameters
from replay.costs.collectives import Topology
from replay.costs.kernels import KernelCalibration, predict
from replay.engine.timeline import replay
from replay.graph.assembly import Assembly
from replay.graph.graph import EdgeKind, KernelGraph, TaskKind
from replay.graph.operators import DTYPE_BYTES
from replay.studies.fused.comparison import AddJob, Comparison, add_baseline, add_fused, collective_columns, compare
from replay.studies.fused.job import Cluster, Costs, Job, Schedule, Work, embedding, gemm, gemv
from replay.workloads.architecture import checked_size, named_tables, read_or_shipped

_SIZE = DTYPE_BYTES["fp32"]


@dataclass(frozen=True)
class Recommendation:
    """Sizes of a recommendation model in training, FP32.

    Parameters
    ----------
    name : str
        Name of the model.
    batch, tables : int
        Samples and tables of one rank.
    pooling, dim : int
        Rows summed for a sample and table, and elements of a row.
    bottom, top : tuple of int
        Widths of the layers of the two MLPs, the input first.
    source : str
        Where the figures come from, in words.

    Raises
    ------
    InvalidInputError
        A size is no whole number of 1 or more, or an MLP has no layer.
    """

    name: str
    batch: int
    tables: int
    pooling: int
    dim: int
    bottom: tuple[int, ...]
    top: tuple[int, ...]
    source: str

    def __post_init__(self) -> None:
        for size in ("batch", "tables", "pooling", "dim"):
            object.__setattr__(self, size, checked_size(f"{self.name}: {size}", getattr(self, size)))
        for mlp in ("bottom", "top"):
            widths = tuple(checked_size(f"{self.name}: {mlp}", width) for width in getattr(self, mlp))
            if len(widths) < 2:
                raise InvalidInputError(f"{self.name}: {mlp} is {widths}; give the widths of two layers or more")
            object.__setattr__(self, mlp, widths)

    def embeddings(self, cluster: Cluster, parameters: Parameters) -> Work:
        """Return one rank's look-ups for the samples of all ranks.

        Parameters
        ----------
        cluster : Cluster
            Devices that the model runs on.
        parameters : Parameters
            Parameters of the models.
        """
        sizes = {"batch": self.batch * cluster.ranks, "tables": self.tables, "pooling": self.pooling, "dim": self.dim}
        return embedding(cluster.device, parameters, **sizes)


@dataclass
class _Step:
    """A training step under construction: kernels follow each other on the main stream."""

    job: Job
    calibration: KernelCalibration
    assembly: Assembly = field(default_factory=Assembly)

    def kernel(self, name: str, after: Ints, moved_bytes: float, *, hbm: float = 1.0) -> Ints:
        """Append a kernel that streams through memory."""
        task = self.assembly.tasks(
            name,
            self.assembly.lane(device=0),
            {"duration_ns": moved_bytes / self.job.memory_bytes_per_s * 1e9, "cu": 1.0, "hbm": hbm},
        )
        self.assembly.edges(after, task, lag_ns=self.job.costs.launch_ns)
        return task

    def products(self, name: str, shapes: Sequence[Sequence[int]], after: Ints) -> Ints:
        """Append products, one after another; a shape is rows, columns and depth."""
        device, lane = self.job.cluster.device, self.assembly.lane(device=0, stream=2)
        rows = [[1, *shape] for shape in shapes]
        predicted = predict("matmul", rows, device, calibration=self.calibration, dtype="fp32")
        moved = [_SIZE * (m * k + k * n + m * n) for m, n, k in shapes]
        alone = (predicted.seconds - predicted.start_s).clip(1e-9)
        share = [min(b / (self.job.memory_bytes_per_s * s), 1.0) for b, s in zip(moved, alone, strict=True)]
        tasks = self.assembly.tasks(name, lane, {"duration_ns": alone * 1e9, "cu": 1.0, "hbm": share})
        self.assembly.chain(tasks, self.job.costs.launch_ns)
        self.assembly.edges(after, tasks[0], lag_ns=self.job.costs.launch_ns)
        return tasks[-1:]

    def collective(self, job: Job, after: Ints, stream: int) -> Ints:
        """Append a library's collective, on a stream of its own; return when the main stream sees its end."""
        task = self.assembly.tasks(
            job.work.collective, self.assembly.lane(device=0, stream=stream), collective_columns(job)
        )
        self.assembly.edges(after, task, lag_ns=job.costs.sync_ns)
        seen = self.assembly.tasks("waited for", self.assembly.lane(device=0), {"kind": TaskKind.MARK})
        self.assembly.edges(task, seen, lag_ns=job.costs.sync_ns, kind=EdgeKind.WAIT)
        return seen

    def gradients(self, widths: Sequence[int], after: Ints, stream: int) -> None:
        """Append the all-reduce of an MLP's gradients, and the update of its weights."""
        size = _SIZE * sum(a * b for a, b in pairwise(widths))
        units = self.job.cluster.device.compute_units
        gradients = Work("gradients", "all_reduce", size, size, 0.0, 1, units, packed=False)
        reduced = self.collective(replace(self.job, work=gradients), after, stream)
        self.kernel("update", reduced, 3.0 * size)


def _backward(batch: int, widths: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return the products of the backward pass: gradients of weights and of inputs, from the last layer on."""
    layers = list(pairwise(widths))[::-1]
    return [shape for a, b in layers for shape in ((a, b, batch), (batch, a, b))]


def training_graph(
    model: Recommendation, job: Job, parameters: Parameters, *, add: AddJob = add_baseline
) -> KernelGraph:
    """Return a training step of one rank that stands for all.

    Parameters
    ----------
    model : Recommendation
        Model to train.
    job : Job
        Its cluster and costs; the work is the model's embeddings.
    parameters : Parameters
        With a calibration of kernels.
    add : callable
        `add_baseline` or `add_fused`: how embeddings and their all-to-all run.

    Notes
    -----
    Forward: embeddings and all-to-all, beside which the bottom MLP runs where compute units are free; interaction; top
    MLP. Backward: the same from the end, all-to-all of the gradients and update of the rows beside the bottom MLP's
    backward pass; gradients of each MLP are summed over the ranks as soon as they are there, on a stream of their own,
    over the same adapters. Interaction reads and writes all pooled rows of the rank's samples, backward twice that.
    Its arithmetic, and activations, are assumed to be hidden behind that and the products. The rows' update reads the
    gradient, and reads and writes each row that was looked up.
    """
    work = model.embeddings(job.cluster, parameters)
    step = _Step(replace(job, work=work), parameters.calibration(KernelCalibration))
    batch, none = model.batch, step.job.costs.launch_ns
    start, exchanged = add(step.assembly, step.job, (0,))
    bottom = step.products("bottom MLP", [(batch, b, a) for a, b in pairwise(model.bottom)], start)
    pooled = float(batch * (model.tables * job.cluster.ranks + 1) * model.dim * _SIZE)
    interaction = step.kernel("interaction", exchanged, 2 * pooled)
    step.assembly.edges(bottom, interaction, lag_ns=none)
    top = step.products("top MLP", [(batch, b, a) for a, b in pairwise(model.top)], interaction)
    top_back = step.products("top MLP backward", _backward(batch, model.top), top)
    step.gradients(model.top, top_back, 3)
    back = step.kernel("interaction backward", top_back, 4 * pooled)
    packed = step.kernel("pack", back, 2 * pooled) if step.job.costs.packs else back
    returned = step.collective(step.job, packed, 1)
    rows = step.job.work.output_bytes
    step.kernel("rows' update", returned, rows * (1 + 2 * model.pooling))
    bottom_back = step.products("bottom MLP backward", _backward(batch, model.bottom), packed)
    step.gradients(model.bottom, bottom_back, 4)
    return step.assembly.graph(step.job.hardware())


def compare_training(model: Recommendation, cluster: Cluster, *, parameters: Parameters) -> Comparison:
    """Simulate a training step with separate kernels, and with embeddings and their all-to-all fused.

    Parameters
    ----------
    model : Recommendation
        Model to train.
    cluster : Cluster
        Devices that it runs on.
    parameters : Parameters
        With a calibration of kernels; costs are `Costs.of` them.

    Examples
    --------
    >>> from replay.costs.shipped import load_parameters
    >>> from replay.studies.fused import load_workloads
    >>> workloads = load_workloads()
    >>> model, cluster = workloads.models["benchmark"], workloads.clusters["scale_out"]
    >>> comparison = compare_training(model, cluster, parameters=load_parameters())
    >>> 0 < comparison.saving < 0.5
    True
    """
    work = model.embeddings(cluster, parameters)
    job = Job(work, cluster, costs=Costs.of(parameters))
    both = (replay(training_graph(model, job, parameters, add=add)) for add in (add_baseline, add_fused))
    return Comparison(job, *both)


_MOST_CASES = 100_000


class ClusterTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A cluster in a file of workloads; the bandwidth is what one adapter sends, one way."""

    device: str
    fabric: str
    nodes: int
    devices_per_node: int
    adapters_per_node: int
    adapter_gbps: float
    source: str


_Values = Annotated[tuple[int, ...], msgspec.Meta(min_length=1)]
_Shapes = Annotated[tuple[tuple[int, int], ...], msgspec.Meta(min_length=1)]


class EmbeddingSweep(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Values of `embedding` whose combinations are its sweep."""

    batch: _Values
    tables: _Values
    pooling: _Values
    dim: _Values
    source: str


class GemvSweep(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Values of `gemv` whose combinations are its sweep; a shape is n and k."""

    batch: _Values
    shape: _Shapes
    source: str


class GemmSweep(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Values of `gemm` whose combinations are its sweep; a shape is n and k."""

    tokens: _Values
    shape: _Shapes
    source: str


#: The sweeps, and the values that each combines: all keys of its table but the source.
SWEEPS: Mapping[str, type[msgspec.Struct]] = MappingProxyType(
    {"embedding": EmbeddingSweep, "gemv": GemvSweep, "gemm": GemmSweep}
)


@dataclass(frozen=True)
class Workloads:
    """Content of a file of workloads.

    Parameters
    ----------
    clusters : mapping of str to Cluster
        Clusters by name.
    sweeps : mapping of str to tuple of tuple
        By a name of `SWEEPS`: all combinations of its values.
    models : mapping of str to Recommendation
        Models by name.
    """

    clusters: Mapping[str, Cluster]
    sweeps: Mapping[str, tuple[tuple[Any, ...], ...]]
    models: Mapping[str, Recommendation]

    def works(self, sweep: str, cluster: str, parameters: Parameters) -> tuple[Work, ...]:
        """Return the work of every case of a sweep on the devices of a cluster.

        Parameters
        ----------
        sweep, cluster : str
            Names of a sweep and of a cluster.
        parameters : Parameters
            With a calibration of kernels.

        Raises
        ------
        NotFoundError
            There is no such sweep or cluster.

        Examples
        --------
        >>> from replay.costs.shipped import load_parameters
        >>> len(load_workloads().works("embedding", "inter_node", load_parameters()))
        54
        """
        for name, among in ((sweep, self.sweeps), (cluster, self.clusters)):
            if name not in among:
                raise NotFoundError(f"no {name!r}; there are {', '.join(sorted(among))}")
        device, cases = self.clusters[cluster].device, self.sweeps[sweep]
        if sweep == "embedding":
            return tuple(embedding(device, parameters, batch=b, tables=t, pooling=p, dim=d) for b, t, p, d in cases)
        if sweep == "gemv":
            return tuple(gemv(device, parameters, batch=b, n=n, k=k) for b, (n, k) in cases)
        calibration = parameters.calibration(KernelCalibration)
        return tuple(gemm(device, calibration, m=m, n=n, k=k) for m, (n, k) in cases)


def load_workloads(path: str | Path | None = None) -> Workloads:
    """Read a TOML file in the layout of `datasets/workloads/fused.toml`, by default that one.

    Raises
    ------
    NotFoundError, InvalidInputError
        There is no such file; or it is no such file: the table and the key are named.

    Examples
    --------
    >>> load_workloads().clusters["scale_out"].ranks
    128
    """
    return read_or_shipped(_read, path, "workloads/fused.toml")


def _read(file: Path) -> Workloads:
    content = read_toml(file, "workloads")
    clusters = typed_tables(content, "clusters", ClusterTable, file) if "clusters" in content else {}
    models = named_tables(content, "models", Recommendation, file) if "models" in content else {}
    sweeps = content.get("sweeps", {})
    if not isinstance(sweeps, dict):
        raise InvalidInputError(f"{file}: no table [sweeps.NAME]")
    try:
        return Workloads(
            MappingProxyType({name: _cluster(table) for name, table in clusters.items()}),
            MappingProxyType({name: _sweep(name, table, f"{file}: sweeps.{name}") for name, table in sweeps.items()}),
            models,
        )
    except SeqPointError as error:
        raise InvalidInputError(f"{file}: {str(error).removeprefix(f'{file}: ')}") from error


def _cluster(table: ClusterTable) -> Cluster:
    per_node = table.devices_per_node
    topology = Topology(table.nodes * per_node, per_node, fabric=table.fabric, nics=table.adapters_per_node)
    return Cluster(find_device(table.device), topology, table.adapter_gbps * 1e9)


def _sweep(name: str, content: object, where: str) -> tuple[tuple[Any, ...], ...]:
    if name not in SWEEPS:
        raise InvalidInputError(f"{where}: no sweep {name[:40]!r}; there are {', '.join(SWEEPS)}")
    *values, _ = msgspec.structs.astuple(typed_table(content, SWEEPS[name], where))
    if (cases := prod(map(len, values))) > _MOST_CASES:
        raise InvalidInputError(f"{where}: {cases} cases; at most {_MOST_CASES:,}")
    return tuple(product(*values))


#: What is swept where: the figures' names begin so.
_SWEEPS = {
    "inter_node": ("embedding", "inter_node"),
    "intra_node": ("embedding", "intra_node"),
    "gemv": ("gemv", "intra_node"),
    "gemm": ("gemm", "intra_node"),
}
#: Clusters of the sweeps of embeddings.
_CLUSTERS = ("inter_node", "intra_node")
#: Pooling factors along which the peak is looked for, about a square root of 2 apart, and how far it may be from 1.
_POOLING = (1, 2, 3, 4, 6, 8, 11, 16, 23, 32, 45, 64, 91, 128)
_NEAR = 2.0
_ROUNDING = 1e-9
#: What counts as about the same.
_ABOUT = 0.01
#: With fewer waves of workgroups nothing is done before the kernel is.
_LEAST_WAVES = 2.0


def reproduce(parameters: Parameters, workloads: Workloads) -> dict[str, float]:
    """Return the figures of `datasets/published/fused.toml` as the simulation gives them, by name.

    Parameters
    ----------
    parameters : Parameters
        With a calibration of kernels.
    workloads : Workloads
        The published workloads.

    Examples
    --------
    >>> from replay.costs.shipped import load_parameters
    >>> reproduce(load_parameters(), load_workloads())["no_overhead_at_most_half"]
    135.0
    """
    costs, figures = Costs.of(parameters), dict[str, float]()
    bare = costs.without_overheads()
    each = partial(_comparisons, workloads, parameters)
    for name in _SWEEPS:
        savings = np.array([comparison.saving for comparison in each(name, Schedule(), costs)])
        figures |= {f"{name}_average": 100 * float(savings.mean()), f"{name}_largest": 100 * float(savings.max())}
    model, cluster = workloads.models["production"], workloads.clusters["scale_out"]
    figures["training_128_nodes"] = 100 * compare_training(model, cluster, parameters=parameters).saving
    halves = [comparison.saving <= 0.5 for name in _SWEEPS for comparison in each(name, Schedule(), bare)]
    figures["no_overhead_at_most_half"] = float(sum(halves))
    remote, local = (
        np.array([c.fused.makespan_ns for name in _CLUSTERS for c in each(name, Schedule(order), costs)])
        for order in ("remote_first", "local_first")
    )
    figures["remote_first_not_slower"] = float((remote <= local + _ROUNDING).sum())
    figures["remote_first_about_or_over"] = float((remote <= local * (1 + _ABOUT)).sum())
    pipelined = [balance for waves, balance in peaks(workloads, parameters, bare) if waves >= _LEAST_WAVES]
    overhead = [balance for _, balance in peaks(workloads, parameters, costs)]
    for name, balances in (("gain_peaks_at_balance", pipelined), ("gain_peaks_with_overheads", overhead)):
        figures[name] = float(sum(1 / _NEAR <= balance <= _NEAR for balance in balances))
    for order in ("ascending", "remote_first"):
        skews = [comparison.skew for comparison in each("inter_node", Schedule(order), costs)]
        figures[f"skew_{order}"] = 100 * float(np.mean(skews))
    return figures


def _comparisons(
    workloads: Workloads, parameters: Parameters, name: str, schedule: Schedule, costs: Costs
) -> Iterator[Comparison]:
    """Simulate each case of a sweep."""
    sweep, cluster = _SWEEPS[name]
    for work in workloads.works(sweep, cluster, parameters):
        yield compare(Job(work, workloads.clusters[cluster], schedule, costs=costs))


def peaks(workloads: Workloads, parameters: Parameters, costs: Costs) -> Iterator[tuple[float, float]]:
    """Yield the case with the largest saving along pooling factors of 1 to 128.

    A case is the waves of workgroups of its kernel, and T_comp / T_coll of the separate kernels.

    There is one for each batch and number of tables of the sweep of embeddings, on each cluster.

    Parameters
    ----------
    workloads : Workloads
        Sweeps and clusters.
    parameters : Parameters
        Parameters of the models.
    costs : Costs
        Costs beside computing and carrying bytes.
    """
    batches, tables = (sorted({case[i] for case in workloads.sweeps["embedding"]}) for i in (0, 1))
    for cluster in (workloads.clusters[name] for name in _CLUSTERS):
        for batch, table in ((b, t) for b in batches for t in tables):
            works = [
                embedding(cluster.device, parameters, batch=batch, tables=table, pooling=pooling, dim=128)
                for pooling in _POOLING
            ]
            comparisons = [compare(Job(work, cluster, costs=costs)) for work in works]
            best = max(comparisons, key=lambda comparison: comparison.saving).job
            resident = best.work.resident * (1 - costs.occupancy_loss)
            yield best.work.workgroups / resident, best.compute_ns / best.collective_ns
