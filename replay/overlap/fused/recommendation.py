"""A training step of a recommendation model, whose embeddings and all-to-all can be fused."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from profilers.devices import Device
from profilers.errors import InvalidInputError
from replay.assembly import Assembly, Ints
from replay.durations import predict
from replay.graph import EdgeKind, KernelGraph, TaskKind
from replay.operators import DTYPE_BYTES
from replay.overlap.fused.baseline import add_baseline, collective_columns
from replay.overlap.fused.cluster import Cluster
from replay.overlap.fused.comparison import Comparison
from replay.overlap.fused.costs import Costs
from replay.overlap.fused.job import Job
from replay.overlap.fused.persistent import add_fused
from replay.overlap.fused.schedule import Schedule
from replay.overlap.fused.work import Work, embedding
from replay.sizes import checked_size
from replay.timeline import replay

__all__ = ["Recommendation", "compare_training", "training_graph"]

_SIZE = DTYPE_BYTES["fp32"]
_Add = Callable[[Assembly, Job, Sequence[int]], tuple[Ints, Ints]]


@dataclass(frozen=True)
class Recommendation:
    """Sizes of a recommendation model in training, FP32.

    Parameters
    ----------
    name : str
    batch, tables : int
        Samples and tables of one rank.
    pooling, dim : int
        Rows summed for a sample and table, and elements of a row.
    bottom, top : tuple of int
        Widths of the layers of the two MLPs, the input first.
    source : str

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
    source: str = ""

    def __post_init__(self) -> None:
        for size in ("batch", "tables", "pooling", "dim"):
            object.__setattr__(self, size, checked_size(f"{self.name}: {size}", getattr(self, size)))
        for mlp in ("bottom", "top"):
            widths = tuple(checked_size(f"{self.name}: {mlp}", width) for width in getattr(self, mlp))
            if len(widths) < 2:
                raise InvalidInputError(f"{self.name}: {mlp} is {widths}; give the widths of two layers or more")
            object.__setattr__(self, mlp, widths)

    def embeddings(self, cluster: Cluster) -> Work:
        """Return one rank's look-ups for the samples of all ranks."""
        samples = self.batch * cluster.ranks
        return embedding(cluster.device, batch=samples, tables=self.tables, pooling=self.pooling, dim=self.dim)


@dataclass
class _Step:
    """A training step under construction: kernels follow each other on the main stream."""

    model: Recommendation
    job: Job
    work: Assembly = field(default_factory=Assembly)

    def kernel(self, name: str, after: Ints, moved_bytes: float, *, hbm: float = 1.0) -> Ints:
        """Append a kernel that streams through memory."""
        task = self.work.tasks(
            name,
            self.work.lane(device=0),
            {"duration_ns": moved_bytes / self.job.memory_bytes_per_s * 1e9, "cu": 1.0, "hbm": hbm},
        )
        self.work.edges(after, task, lag_ns=self.job.costs.launch_ns)
        return task

    def products(self, name: str, shapes: Sequence[Sequence[int]], after: Ints) -> Ints:
        """Append products, one after another; a shape is rows, columns and depth."""
        device, lane = self.job.cluster.device, self.work.lane(device=0, stream=2)
        found = predict("matmul", [[1, *shape] for shape in shapes], device, dtype="fp32")
        moved = [_SIZE * (m * k + k * n + m * n) for m, n, k in shapes]
        alone = (found.seconds - found.start_s).clip(1e-9)
        share = [min(b / (self.job.memory_bytes_per_s * s), 1.0) for b, s in zip(moved, alone, strict=True)]
        tasks = self.work.tasks(name, lane, {"duration_ns": alone * 1e9, "cu": 1.0, "hbm": share})
        self.work.chain(tasks, self.job.costs.launch_ns)
        self.work.edges(after, tasks[0], lag_ns=self.job.costs.launch_ns)
        return tasks[-1:]

    def collective(self, job: Job, after: Ints, stream: int) -> Ints:
        """Append a library's collective, on a stream of its own; return when the main stream sees its end."""
        task = self.work.tasks(job.work.collective, self.work.lane(device=0, stream=stream), collective_columns(job))
        self.work.edges(after, task, lag_ns=job.costs.sync_ns)
        seen = self.work.tasks("waited for", self.work.lane(device=0), {"kind": TaskKind.MARK})
        self.work.edges(task, seen, lag_ns=job.costs.sync_ns, kind=EdgeKind.WAIT)
        return seen

    def gradients(self, widths: Sequence[int], after: Ints, stream: int) -> None:
        """Append the all-reduce of an MLP's gradients, and the update of its weights."""
        size = _SIZE * sum(a * b for a, b in pairwise(widths))
        reduced = self.collective(self.job.with_work(_gradient(size, self.job.cluster.device)), after, stream)
        self.kernel("update", reduced, 3.0 * size)


def _gradient(size: int, device: Device) -> Work:
    return Work("gradients", "all_reduce", size, size, 0.0, 1, device.compute_units, packed=False)


def _forward(batch: int, widths: Sequence[int]) -> list[tuple[int, int, int]]:
    return [(batch, b, a) for a, b in pairwise(widths)]


def _backward(batch: int, widths: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return the products of the backward pass: gradients of weights and of inputs, from the last layer on."""
    layers = list(pairwise(widths))[::-1]
    return [shape for a, b in layers for shape in ((a, b, batch), (batch, a, b))]


def training_graph(model: Recommendation, job: Job, add: _Add = add_baseline) -> KernelGraph:
    """Return a training step of one rank that stands for all.

    Parameters
    ----------
    model : Recommendation
    job : Job
        Its cluster and costs; the work is the model's embeddings.
    add : callable
        `add_baseline` or `add_fused`: how embeddings and their all-to-all run.

    Notes
    -----
    Forward: embeddings and all-to-all, beside which the bottom MLP runs where compute units are free; interaction; top
    MLP. Backward: the same from the end, all-to-all of the gradients and update of the rows beside the bottom MLP's
    backward pass; gradients of each MLP are summed over the ranks as soon as they are there, on a stream of their own,
    over the same adapters. Interaction reads and writes all pooled rows of the rank's samples, backward twice that;
    what it computes, and activations, are taken to be hidden behind that and the products. The rows' update reads the
    gradient, and reads and writes each row that was looked up.
    """
    step = _Step(model, replace(job, work=model.embeddings(job.cluster)))
    batch, none = model.batch, step.job.costs.launch_ns
    start, exchanged = add(step.work, step.job, (0,))
    bottom = step.products("bottom MLP", _forward(batch, model.bottom), start)
    pooled = float(batch * (model.tables * job.cluster.ranks + 1) * model.dim * _SIZE)
    interaction = step.kernel("interaction", exchanged, 2 * pooled)
    step.work.edges(bottom, interaction, lag_ns=none)
    top = step.products("top MLP", _forward(batch, model.top), interaction)
    top_back = step.products("top MLP backward", _backward(batch, model.top), top)
    step.gradients(model.top, top_back, 3)
    back = step.kernel("interaction backward", top_back, 4 * pooled)
    packed = step.kernel("pack", back, 2 * pooled) if step.job.costs.packs else back
    returned = step.collective(step.job, packed, 1)
    rows = step.job.work.output_bytes
    step.kernel("rows' update", returned, rows * (1 + 2 * model.pooling))
    bottom_back = step.products("bottom MLP backward", _backward(batch, model.bottom), packed)
    step.gradients(model.bottom, bottom_back, 4)
    return step.work.graph(step.job.hardware())


def compare_training(
    model: Recommendation, cluster: Cluster, schedule: Schedule | None = None, costs: Costs | None = None
) -> Comparison:
    """Simulate a training step with separate kernels, and with embeddings and their all-to-all fused.

    Examples
    --------
    >>> from replay.overlap.fused import load_workloads
    >>> known = load_workloads()
    >>> found = compare_training(known.models["benchmark"], known.clusters["scale_out"])
    >>> 0 < found.saving < 0.5
    True
    """
    job = Job(model.embeddings(cluster), cluster, schedule or Schedule(), costs or Costs.of())
    return Comparison(
        job, replay(training_graph(model, job, add_baseline)), replay(training_graph(model, job, add_fused))
    )
