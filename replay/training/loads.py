"""`Load`: what a part of a training step asks of host and device, before any parameter of training is applied."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from profilers.devices import Device
from replay.collectives import Topology, predict_collective
from replay.jobs.megatron import Block, Shard, embedding_block, head_block, layer_block, padded_vocabulary
from replay.jobs.step import Step
from replay.jobs.timing import time_operators
from replay.operators import streaming
from replay.training.job import TrainingJob

__all__ = [
    "JobLoad",
    "Load",
    "PartLoad",
    "StageLoad",
    "Work",
    "activation_bytes",
    "job_loads",
    "stage_parts",
    "works_of",
]

#: B that Adam with FP32 copies moves a parameter: gradients converted (2 + 4), checked and unscaled (4 + 4), their norm
#: (4), clipped (4 + 4), Adam itself (16 read, 12 written), weights converted (4 + 2), gradients cleared (2).
_OPTIMIZER_BYTES = 62
_SIZE, _DTYPE = 2, "fp16"


@dataclass(frozen=True)
class Work:
    """A step that takes `seconds` on the device alone."""

    step: Step
    seconds: float


@dataclass(frozen=True)
class Load:
    """Calls and device time of a part of a step.

    Parameters
    ----------
    operators, collectives : int
        That the host calls.
    products_s, streams_s, communication_s : float
        Of matrix products, other kernels, and collectives, each running alone.
    """

    operators: int = 0
    collectives: int = 0
    products_s: float = 0.0
    streams_s: float = 0.0
    communication_s: float = 0.0

    def __add__(self, other: "Load") -> "Load":
        """Return the load of both."""
        return Load(
            self.operators + other.operators,
            self.collectives + other.collectives,
            self.products_s + other.products_s,
            self.streams_s + other.streams_s,
            self.communication_s + other.communication_s,
        )

    def __mul__(self, times: int) -> "Load":
        """Return the load of it so many times."""
        return Load(self.operators * times, self.collectives * times, self.products_s * times,
                    self.streams_s * times, self.communication_s * times)  # fmt: skip


@dataclass(frozen=True)
class PartLoad:
    """A part of the model for one micro-batch, so many times one after the other.

    Parameters
    ----------
    forward, backward : Load
    count : int
    again : bool
        Whether the forward pass is run again before the backward pass.
    """

    forward: Load
    backward: Load
    count: int
    again: bool

    @property
    def total(self) -> Load:
        """All that a micro-batch asks of it."""
        return (self.forward * (1 + self.again) + self.backward) * self.count


@dataclass(frozen=True)
class StageLoad:
    """A pipeline stage: one micro-batch forward and backward, then what follows the last.

    Parameters
    ----------
    parts : tuple of PartLoad
        In forward order.
    reduce_s : float
        All-reduce of its gradients over replicas.
    update_s : float
        What the optimizer moves.
    weights, tensors : int
        Elements of its parameters on a rank, and parameters.
    """

    parts: tuple[PartLoad, ...]
    reduce_s: float
    update_s: float
    weights: int
    tensors: int


@dataclass(frozen=True)
class JobLoad:
    """A training step.

    Parameters
    ----------
    stages : tuple of StageLoad
    micro_batches : int
    transfer_s : float
        Of activations from one stage to the next; 0 of one stage.
    tied_s : float
        All-reduce of the embedding's gradients between the first and the last stage; 0 of one stage.
    tied_elements : int
        That it sums up.
    ranks : int
        Of a tensor-parallel group.
    """

    stages: tuple[StageLoad, ...]
    micro_batches: int
    transfer_s: float
    tied_s: float
    tied_elements: int
    ranks: int


def _counts(job: TrainingJob, stage: int) -> dict[str, int]:
    """Return the parts of a stage in forward order, and how many there are of each."""
    layout = job.layout
    first, last = {"embedding": 1} if stage == 0 else {}, {"head": 1} if stage == layout.pipeline - 1 else {}
    return {**first, "layer": job.model.layers // layout.pipeline, **last}


def _block(job: TrainingJob, name: str) -> Block:
    shard = Shard(job.micro_batch, job.length, job.layout.tensor, _SIZE)
    if name == "head":
        return head_block(job.model, shard, shared=job.layout.pipeline == 1)
    return embedding_block(job.model, shard) if name == "embedding" else layer_block(job.model, shard)


def works_of(steps: Sequence[Step], job: TrainingJob, device: Device) -> list[Work]:
    """Return the steps with the time that each takes alone, in 16 bits."""
    seconds = np.zeros(len(steps))
    kernels = [i for i, step in enumerate(steps) if not step.collective]
    meetings = [i for i, step in enumerate(steps) if step.collective]
    if kernels:
        seconds[kernels] = time_operators([steps[i].operator for i in kernels], device, dtype=_DTYPE).seconds
    if meetings:
        sizes = [steps[i].operator.bytes_read for i in meetings]
        seconds[meetings] = predict_collective("all_reduce", sizes, job.layout.topology("tensor"), device).seconds
    return [Work(step, float(s)) for step, s in zip(steps, seconds, strict=True)]


def stage_parts(job: TrainingJob, stage: int, device: Device) -> list[tuple[str, list[Work], list[Work]]]:
    """Return the parts of a stage in forward order: name, and what a micro-batch runs forward and backward."""
    found = []
    for name, count in _counts(job, stage).items():
        block = _block(job, name)
        found += [(name, works_of(block.forward, job, device), works_of(block.backward, job, device))] * count
    return found


@dataclass(frozen=True)
class _Part:
    """A part's loads, elements of its weights, and parameters."""

    forward: Load
    backward: Load
    weights: int
    tensors: int


class _Timer:
    """Times the parts of jobs on a device; what several have in common once."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.part = cache(self._part)
        self.collective = cache(self._collective)
        self.update = cache(self._update)

    def _part(self, job: TrainingJob, name: str) -> _Part:
        block = _block(job, name)
        ahead, back = (_load(works_of(steps, job, self.device)) for steps in (block.forward, block.backward))
        return _Part(ahead, back, block.weights, block.tensors)

    def _collective(self, kind: str, moved: float, topology: Topology) -> float:
        return float(predict_collective(kind, [moved], topology, self.device).seconds[0])

    def _update(self, weights: int) -> float:
        half = weights * _OPTIMIZER_BYTES / 2
        return time_operators([streaming("optimizer", half, half, weights, _SIZE)], self.device, dtype=_DTYPE).total


def job_loads(jobs: Sequence[TrainingJob], device: Device) -> list[JobLoad]:
    """Return what each job asks; parts that several have in common are timed once.

    Raises
    ------
    InvalidInputError
        The catalogue lacks a figure of the device.
    """
    timer = _Timer(device)
    return [_job_load(job, timer) for job in jobs]


def _job_load(job: TrainingJob, timer: _Timer) -> JobLoad:
    layout = job.layout
    stages = tuple(_stage(job, stage, timer) for stage in range(layout.pipeline))
    if layout.pipeline == 1:
        return JobLoad(stages, job.micro_batches, 0.0, 0.0, 0, layout.tensor)
    neighbours = layout.topology("pipeline")
    elements = padded_vocabulary(job.model, layout.tensor) // layout.tensor * job.model.hidden
    transfer = timer.collective("send_recv", float(activation_bytes(job)), neighbours)
    tied = timer.collective("all_reduce", float(elements * _SIZE), neighbours)
    return JobLoad(stages, job.micro_batches, transfer, tied, elements, layout.tensor)


def activation_bytes(job: TrainingJob) -> int:
    """Return the bytes that a rank sends to the next stage for a micro-batch."""
    return job.micro_batch * job.length * job.model.hidden * _SIZE


def _stage(job: TrainingJob, stage: int, timer: _Timer) -> StageLoad:
    counts, alike = _counts(job, stage), _alike(job)
    parts = {name: timer.part(alike, name) for name in counts}
    found = tuple(
        PartLoad(part.forward, part.backward, counts[name], job.recompute and name == "layer")
        for name, part in parts.items()
    )
    weights = sum(part.weights * counts[name] for name, part in parts.items())
    reduced = timer.collective("all_reduce", float(weights * _SIZE), job.layout.topology("data"))
    tensors = sum(part.tensors * counts[name] for name, part in parts.items())
    return StageLoad(found, reduced, timer.update(weights), weights, tensors)


def _alike(job: TrainingJob) -> TrainingJob:
    """Return a job whose parts take as long: fewer layers, one micro-batch, in the same places."""
    stages = min(job.layout.pipeline, 2)
    layout = replace(job.layout, pipeline=stages, data=1)
    return replace(job, model=replace(job.model, layers=stages), global_batch=job.micro_batch, layout=layout,
                   recompute=False)  # fmt: skip


def _load(works: Sequence[Work]) -> Load:
    meetings = [work.seconds for work in works if work.step.collective]
    products = [work.seconds for work in works if work.step.operator.kind == "matmul"]
    together, multiplied = sum(meetings), sum(products)
    streamed = sum(work.seconds for work in works) - together - multiplied
    return Load(len(works) - len(meetings), len(meetings), multiplied, streamed, together)
