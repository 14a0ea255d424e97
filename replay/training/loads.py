"""`Load`: what a part of a training step asks of host and device, before any parameter of training is applied."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from profilers.devices import Device
from replay.collectives import predict_collective
from replay.jobs.megatron import Block, Shard, embedding_block, head_block, layer_block, padded_vocabulary
from replay.jobs.step import Step
from replay.jobs.timing import time_operators
from replay.training.job import TrainingJob
from replay.operators import streaming

__all__ = ["JobLoad", "Load", "StageLoad", "Work", "block_works", "blocks_of", "job_loads", "works_of"]

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
class StageLoad:
    """A pipeline stage: one micro-batch forward and backward, then what follows the last.

    Parameters
    ----------
    forward, backward : Load
    again : Load
        Layers' forward pass that is run again before the backward pass; empty where activations are kept.
    reduce_s : float
        All-reduce of its gradients over replicas.
    update_s : float
        What the optimizer moves.
    tensors : int
        Parameters that it goes through.
    """

    forward: Load
    backward: Load
    again: Load
    reduce_s: float
    update_s: float
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
    ranks : int
        Of a tensor-parallel group.
    """

    stages: tuple[StageLoad, ...]
    micro_batches: int
    transfer_s: float
    tied_s: float
    ranks: int


def blocks_of(job: TrainingJob, stage: int) -> list[Block]:
    """Return the parts of a stage in forward order: embedding on the first, layers, head on the last."""
    return [_block(job, name) for name in _names(job, stage)]


def _names(job: TrainingJob, stage: int) -> list[str]:
    last = job.layout.pipeline - 1
    layers = ["layer"] * (job.model.layers // job.layout.pipeline)
    return [*["embedding"] * (stage == 0), *layers, *["head"] * (stage == last)]


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


def block_works(job: TrainingJob, name: str, device: Device) -> tuple[list[Work], list[Work]]:
    """Return what a part runs for a micro-batch, forward and backward."""
    block = _block(job, name)
    return works_of(block.forward, job, device), works_of(block.backward, job, device)


def job_loads(jobs: Sequence[TrainingJob], device: Device) -> list[JobLoad]:
    """Return what each job asks; parts that several have in common are timed once.

    Raises
    ------
    InvalidInputError
        The catalogue lacks a figure of the device.
    """
    known: dict[tuple[object, ...], tuple[Load, Load]] = {}
    return [_job_load(job, device, known) for job in jobs]


def _job_load(job: TrainingJob, device: Device, known: dict[tuple[object, ...], tuple[Load, Load]]) -> JobLoad:
    stages = tuple(_stage(job, stage, device, known) for stage in range(job.layout.pipeline))
    moved = float(job.micro_batch * job.length * job.model.hidden * _SIZE) / job.layout.tensor
    tied = float(padded_vocabulary(job.model, job.layout.tensor) // job.layout.tensor * job.model.hidden * _SIZE)
    if job.layout.pipeline == 1:
        return JobLoad(stages, job.micro_batches, 0.0, 0.0, job.layout.tensor)
    neighbours = job.layout.topology("pipeline")
    transfer = predict_collective("send_recv", [moved], neighbours, device).seconds[0]
    between = predict_collective("all_reduce", [tied], neighbours, device).seconds[0]
    return JobLoad(stages, job.micro_batches, float(transfer), float(between), job.layout.tensor)


def _stage(
    job: TrainingJob, stage: int, device: Device, known: dict[tuple[object, ...], tuple[Load, Load]]
) -> StageLoad:
    forward, backward, names = Load(), Load(), _names(job, stage)
    for name in dict.fromkeys(names):
        ahead, back = _block_load(job, name, device, known)
        forward, backward = forward + ahead * names.count(name), backward + back * names.count(name)
    blocks = blocks_of(job, stage)
    weights = sum(block.weights for block in blocks)
    reduced = predict_collective("all_reduce", [float(weights * _SIZE)], job.layout.topology("data"), device)
    updated = time_operators([streaming("optimizer", weights * _OPTIMIZER_BYTES / 2, weights * _OPTIMIZER_BYTES / 2,
                                        weights, _SIZE)], device, dtype=_DTYPE)  # fmt: skip
    tensors = sum(block.tensors for block in blocks)
    again = _block_load(job, "layer", device, known)[0] * names.count("layer") if job.recompute else Load()
    return StageLoad(forward, backward, again, float(reduced.seconds[0]), updated.total, tensors)


def _block_load(
    job: TrainingJob, name: str, device: Device, known: dict[tuple[object, ...], tuple[Load, Load]]
) -> tuple[Load, Load]:
    model, layout = job.model, job.layout
    sizes = (model.hidden, model.heads, model.feedforward, model.vocabulary, job.length, job.micro_batch)
    key = (name, *sizes, layout.tensor, layout.topology("tensor"))
    if key not in known:
        ahead, back = block_works(job, name, device)
        known[key] = _load(ahead), _load(back)
    return known[key]


def _load(works: Sequence[Work]) -> Load:
    meetings = [work.seconds for work in works if work.step.collective]
    products = [work.seconds for work in works if work.step.operator.kind == "matmul"]
    together, multiplied = sum(meetings), sum(products)
    streamed = sum(work.seconds for work in works) - together - multiplied
    return Load(len(works) - len(meetings), len(meetings), multiplied, streamed, together)
