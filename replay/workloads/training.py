"""Time of a parallel training step.

`Load` holds calls and device time of a part of a training step, before any parameter of training is applied.
`job_loads` makes those of a job. `TrainingCosts` has the few parameters of training that no data sheet gives, and
`step_time` the time of a step from them.

Gradients of replicas are summed after the last micro-batch. Sharded (ZeRO, arXiv 1910.02054; FSDP, arXiv 2304.11277),
each rank updates a share: gradients are reduced to shares, of stages 2 and 3 after each micro-batch, and weights are
gathered after the update, of stage 3 for each pass of each layer instead.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import numpy as np

from profilers.devices.catalogue import Device
from profilers.errors import InvalidInputError
from profilers.trace.arrays import Floats
from replay.calibration.parameters import Parameters
from replay.costs.collectives import CollectiveCalibration, Topology, predict_collective
from replay.graph.operators import Operator, streaming
from replay.workloads.architecture import Step, time_operators
from replay.workloads.decoder import DecoderBlock, DecoderPass, exchange, padded_vocabulary
from replay.workloads.jobs import NARROW, PRECISIONS, InferenceJob, OptimizerPass, TrainingJob
from replay.workloads.schedules import Duration, run_schedule
from replay.workloads.transformer import embedding_block, head_block, layer_block

#: Parameters that one launch of a multi-tensor kernel covers: 320 blocks of 65,536 (NVIDIA Apex, csrc).
_LAUNCH_PARAMETERS = 320 * 65_536
#: A step, and the time that it takes on the device alone, s.
TimedStep = tuple[Step, float]
#: Name of a part of a stage, and the steps of a micro-batch forward and backward.
StagePart = tuple[str, list[TimedStep], list[TimedStep]]


@dataclass(frozen=True)
class Load:
    """Calls and device time of a part of a step.

    Parameters
    ----------
    operators, collectives : int
        Number of operators and collectives that the host calls.
    products_s, streams_s : float
        Time of kernels of matrix units, and of other kernels, each running alone.
    tensor_s, context_s, expert_s : float
        Time of the collectives of each kind of group, beyond what runs beside kernels.
    gradients_s : float
        Time in which replicas gather weights and reduce gradients of this part.
    """

    operators: int = 0
    collectives: int = 0
    products_s: float = 0.0
    streams_s: float = 0.0
    tensor_s: float = 0.0
    context_s: float = 0.0
    expert_s: float = 0.0
    gradients_s: float = 0.0

    @property
    def communication_s(self) -> float:
        """Time of collectives within a replica."""
        return self.tensor_s + self.context_s + self.expert_s

    def __add__(self, other: "Load") -> "Load":
        """Return the load of both."""
        return Load(*(mine + theirs for mine, theirs in zip(vars(self).values(), vars(other).values(), strict=True)))

    def __mul__(self, times: int) -> "Load":
        """Return the load of it so many times."""
        return Load(*(value * times for value in vars(self).values()))


@dataclass(frozen=True)
class PartLoad:
    """A part of the model for one micro-batch, so many times one after the other.

    Parameters
    ----------
    forward, backward : Load
        Loads of one micro-batch in each direction.
    count : int
        How often the part occurs in the stage.
    weights, tensors : int
        Elements of its parameters on a rank, and parameters; of the part once.
    again : Load
        What of the forward pass is run again before the backward pass.
    expert_weights : int
        Elements of its experts' parameters among `weights`.
    of_weights, of_scores : Load
        The part of the backward pass that computes gradients of weights, and of the forward pass that computes scores.
    """

    forward: Load
    backward: Load
    count: int
    weights: int
    tensors: int
    again: Load = Load()
    expert_weights: int = 0
    of_weights: Load = Load()
    of_scores: Load = Load()

    @property
    def total(self) -> Load:
        """All that a micro-batch asks of it."""
        return (self.forward + self.again + self.backward) * self.count


@dataclass(frozen=True)
class StageLoad:
    """A pipeline stage: one micro-batch forward and backward, then what follows the last.

    Parameters
    ----------
    chunks : tuple of tuple of PartLoad
        Parts of each chunk of layers, in forward order.
    reduce_s, gather_s : float
        Sum of its gradients over replicas, whole or to shares; gathering of updated weights.
    update_s : tuple of float
        Time of each pass of the optimizer over its weights; of one on the host, with its copies.
    weights, tensors : int
        Elements of its parameters on a rank, and parameters.
    updated : int
        Elements that the optimizer of a rank updates.
    launches : int
        Kernels of each pass of the optimizer.
    """

    chunks: tuple[tuple[PartLoad, ...], ...]
    reduce_s: float
    gather_s: float
    update_s: tuple[float, ...]
    weights: int
    tensors: int
    updated: int
    launches: int

    @property
    def parts(self) -> tuple[PartLoad, ...]:
        """Parts of all chunks."""
        return tuple(part for chunk in self.chunks for part in chunk)


@dataclass(frozen=True)
class JobLoad:
    """A training step.

    Parameters
    ----------
    job : TrainingJob
        The job.
    stages : tuple of StageLoad
        One for each pipeline stage, in order.
    transfer_s : float
        Time to send activations from one stage to the next; 0 with one stage.
    tied_s : float
        All-reduce of the embedding's gradients between the first and the last stage; 0 of one stage.
    tied_elements : int
        Number of elements of the tied weights whose gradients are summed.
    """

    job: TrainingJob
    stages: tuple[StageLoad, ...]
    transfer_s: float = 0.0
    tied_s: float = 0.0
    tied_elements: int = 0

    @property
    def micro_batches(self) -> int:
        """Micro-batches of a step."""
        return self.job.micro_batches


def _counts(job: TrainingJob, stage: int, chunk: int) -> dict[str, int]:
    """Return the parts of a chunk of a stage in forward order, and how many there are of each."""
    layers, number = job.chunk_layers, chunk * job.layout.pipeline + stage
    dense = min(max(job.model.dense_layers - sum(layers[:number]), 0), layers[number])
    counts = {
        "embedding": int(number == 0),
        "dense": dense,
        "layer": layers[number] - dense,
        "head": int(number == len(layers) - 1),
    }
    return {name: count for name, count in counts.items() if count}


def _block(job: TrainingJob, name: str) -> DecoderBlock:
    layout = job.layout
    run = DecoderPass(job.micro_batch, job.length // layout.context, training=True, size=job.element_bytes,
               ranks=layout.tensor, sequence_parallel=layout.sequence_parallel,
               attention="plain" if job.attention == "plain" else "flash",
               context=layout.context, expert=layout.expert, product_size=int(job.precision in NARROW))  # fmt: skip
    if name == "head":
        block = head_block(job.model, run, shared=job.layout.pipeline == 1)
    elif name == "embedding":
        block = embedding_block(job.model, run)
    else:
        block = layer_block(job.model, run, dense=name == "dense")
    return _with_shards(job, _adapted(block, job.adapter_rank) if job.adapter_rank else block)


def _with_shards(job: TrainingJob, block: DecoderBlock) -> DecoderBlock:
    """Return a block with what replicas that share gradients or weights exchange for it in each micro-batch."""
    if job.sharding < _SHARED_GRADIENTS:
        return block
    shares = [("gradients", block.weights - block.expert_weights), ("experts", block.expert_weights)]
    shares = [(group, elements) for group, elements in shares if elements and job.layout.topology(group).n_workers > 1]
    gather, scatter = (
        tuple(exchange(kind, elements, job.element_bytes, group) for group, elements in shares)
        for kind in ("all_gather", "reduce_scatter")
    )
    if job.sharding == _SHARED_GRADIENTS:
        return replace(block, backward=(*block.backward, *scatter))
    if job.overlap_gradients:  # all of it runs beside the part
        return replace(block, forward=(*gather, *block.forward), backward=(*gather, *scatter, *block.backward))
    return replace(block, forward=(*gather, *block.forward), backward=(*gather, *block.backward, *scatter))


#: Stage of ZeRO from which replicas share gradients.
_SHARED_GRADIENTS = 2


def _adapted(block: DecoderBlock, rank: int) -> DecoderBlock:
    """Return a part whose weights are frozen beside adapters of this rank at each product.

    No gradient of a frozen weight is computed, summed or stored. Products of adapters, some 16 columns wide, are left
    out: they take about a hundredth of the others' time.

    Source: LoRA, arXiv 2106.09685, section 4.
    """
    products = [step.operator.dims for step in block.forward if step.parameters and step.operator.kind == "matmul"]
    return DecoderBlock(
        block.forward,
        tuple(step for step in block.backward if not step.of_weights),
        rank * sum(n + k for _, _, n, k in products),
        2 * len(products),
    )


def timed_steps(
    steps: Sequence[Step], job: TrainingJob | InferenceJob, device: Device, parameters: Parameters
) -> list[TimedStep]:
    """Return the steps with the time that each takes on the device alone, s."""
    seconds = np.zeros(len(steps))
    meetings = [i for i, step in enumerate(steps) if step.collective]
    kernels: dict[str, list[int]] = {}
    for i, step in enumerate(steps):
        if not step.collective:
            kernels.setdefault(_computed_in(step.operator, job.precision), []).append(i)
    for dtype, rows in kernels.items():
        seconds[rows] = _kernel_seconds([steps[i].operator for i in rows], device, parameters, dtype)
    fits = parameters.calibration(CollectiveCalibration)
    for kind, group in sorted({(steps[i].collective, steps[i].group) for i in meetings}):
        alike = [i for i in meetings if (steps[i].collective, steps[i].group) == (kind, group)]
        sizes = [steps[i].operator.bytes_read for i in alike]
        topology = job.layout.topology(group, device)
        if kind == "send_recv":  # to the next rank of a ring
            topology = replace(topology, n_workers=2, devices_per_node=min(topology.devices_per_node, 2))
        seconds[alike] = predict_collective(kind, sizes, topology, device, fits).seconds
    if isinstance(job, TrainingJob) and job.attention == "flash1":
        seconds[[i for i, step in enumerate(steps) if step.operator.kind == "context_attention"]] *= _FIRST_FLASH
    return list(zip(steps, seconds.tolist(), strict=True))


#: Time of FlashAttention and of Triton's kernel over that of FlashAttention-2 (arXiv 2307.08691, abstract: around 2).
_FIRST_FLASH = 2.0
#: Types whose products have kernels with wider operands too, which a library takes where they are faster.
_WIDER = MappingProxyType({"nvfp4": "fp8", "fp8": "bf16"})


def _kernel_seconds(operators: Sequence[Operator], device: Device, parameters: Parameters, dtype: str) -> Floats:
    """Return the times of operators, s, shape (n,): of those in few bits, never more than in more bits."""
    seconds = time_operators(operators, device, parameters=parameters, dtype=dtype).seconds
    if dtype not in _WIDER:
        return seconds
    if _WIDER[dtype] == "bf16":
        operators = [replace(each, bytes_read=2 * each.bytes_read, element_bytes=2) for each in operators]
    return np.minimum(seconds, _kernel_seconds(operators, device, parameters, _WIDER[dtype]))


#: Kinds of operators of matrix units.
MATRIX_KINDS = ("matmul", "context_attention", "generation_attention", "experts")


def _computed_in(operator: Operator, precision: str) -> str:
    """Return the type that an operator computes in: TF32, FP8 and NVFP4 are of matrix products alone."""
    if precision == "tf32":
        return "tf32" if operator.kind in ("matmul", "batched_matmul") else "fp32"
    if precision in NARROW:
        return precision if operator.element_bytes == 1 and operator.kind != "quantization" else "bf16"
    return precision


def inference_parts(
    job: InferenceJob, device: Device, *, parameters: Parameters
) -> list[tuple[str, list[TimedStep], int]]:
    """Return the parts of a step of inference: name, operators with the time of each, s, and how often it is run.

    Logits are those of the last token of each sequence. Times are those of kernels: calls are captured in a graph, as
    inference frameworks do, so that the host costs nothing.

    Parameters
    ----------
    job : InferenceJob
        Step to predict.
    device : Device
        Device that all ranks run on.
    parameters : Parameters
        With calibrations of kernels and collectives.

    Raises
    ------
    InvalidInputError
        The catalogue lacks a figure of the device, or the device does not compute in the job's precision.

    Examples
    --------
    >>> from profilers.devices import find_device
    >>> from replay.costs.shipped import load_parameters
    >>> from replay.workloads import InferenceJob, load_transformers
    >>> job = InferenceJob(load_transformers()["llama31_8b"], "decode", 1, 1024)
    >>> parts = inference_parts(job, find_device("H100"), parameters=load_parameters())
    >>> seconds = sum(count * sum(seconds for _, seconds in steps) for _, steps, count in parts)
    >>> 16e9 / 3.35e12 < seconds < 2 * 16e9 / 3.35e12  # 8 billion weights of two bytes are read
    True
    """
    _check_fp8([job], device)
    is_prefill, layout, model = job.phase == "prefill", job.layout, job.model
    run = DecoderPass(job.sequences, job.prompt if is_prefill else 1, size=job.element_bytes, ranks=layout.tensor,
               attention="flash", expert=layout.expert, product_size=int(job.precision == "fp8"),
               cached=0 if is_prefill else job.keys - 1)  # fmt: skip
    blocks = {
        "embedding": (embedding_block(model, run), 1),
        "dense": (layer_block(model, run, dense=True), model.dense_layers),
        "layer": (layer_block(model, run), model.layers - model.dense_layers),
        "head": (head_block(model, replace(run, length=1), shared=True), 1),
    }
    return [
        # Of the head, the normalisation and the logits: there is no loss.
        (name, timed_steps(block.forward[: _LOGITS if name == "head" else None], job, device, parameters), count)
        for name, (block, count) in blocks.items()
        if count
    ]


#: Operators of a head before the loss.
_LOGITS = 2


def _check_fp8(jobs: Sequence[TrainingJob | InferenceJob], device: Device) -> None:
    """Raise an error if a job computes in 8 bits and the device does not."""
    if any(job.precision == "fp8" for job in jobs) and "fp8_tflops" not in device.figures:
        raise InvalidInputError(f"{device.name} does not compute in fp8: the catalogue has no fp8_tflops; take bf16")


#: Most parts of each kind that a timer keeps.
_TIMED_PARTS = 4096


class JobTimer:
    """Times the parts of jobs on a device; what several jobs, stages or chunks have in common once.

    Parameters
    ----------
    device : Device
        Device that all ranks run on.
    parameters : Parameters
        With calibrations of kernels and collectives.
    """

    def __init__(self, device: Device, parameters: Parameters) -> None:
        self.device = device
        self.parameters = parameters
        kept = lru_cache(_TIMED_PARTS)
        self.steps = kept(self._steps)
        self.part = kept(self._part)
        self.collective = kept(self._collective)
        self.update = kept(self._update)

    def load(self, job: TrainingJob) -> JobLoad:
        """Return the loads of a job.

        Raises
        ------
        InvalidInputError
            The catalogue lacks a figure of the device, or the device does not compute in the job's precision.
        """
        _check_fp8([job], self.device)
        return _job_load(job, self)

    def stage_parts(self, job: TrainingJob, stage: int, chunk: int) -> list[StagePart]:
        """Return the parts of a chunk in forward order: name, and the timed steps of a micro-batch in each direction.

        Parts that are the same share their lists.
        """
        alike, parts = _timing_key(job), list[StagePart]()
        for name, count in _counts(job, stage, chunk).items():
            parts += [(name, *self.steps(alike, name))] * count
        return parts

    def _steps(self, job: TrainingJob, name: str) -> tuple[list[TimedStep], list[TimedStep]]:
        block = _block(job, name)
        return self._timed(block.forward, job), self._timed(block.backward, job)

    def _timed(self, steps: Sequence[Step], job: TrainingJob) -> list[TimedStep]:
        return timed_steps(steps, job, self.device, self.parameters)

    def _part(self, job: TrainingJob, name: str) -> PartLoad:
        block = _block(job, name)
        of_weights = self._timed([step for step in block.backward if step.of_weights], job)
        ahead, back = self.steps(job, name)
        forward, backward, late = (_load(timed) for timed in (ahead, back, of_weights))
        return PartLoad(forward, backward, 1, block.weights, block.tensors, expert_weights=block.expert_weights,
                        of_weights=late, of_scores=_load([step for step in ahead if step[0].of_scores]))  # fmt: skip

    def _collective(self, kind: str, moved: float, topology: Topology) -> float:
        fits = self.parameters.calibration(CollectiveCalibration)
        return float(predict_collective(kind, [moved], topology, self.device, fits).seconds[0])

    def on_host(self, job: TrainingJob, updated: int) -> float:
        """Return the time in which gradients go to the host, its CPUs update, and weights come back, s.

        The ranks of a node share its CPUs. Nothing of it is taken to overlap with the passes.
        """
        copied = 2 * job.element_bytes / (1e9 * self.parameters["host_link_gbps"])
        ranks = min(job.layout.devices, job.layout.node_devices)
        return updated * (copied + 1e-9 * ranks * self.parameters["cpu_update_ns"])

    def _update(self, weights: int, passes: tuple[OptimizerPass, ...], precision: str) -> tuple[float, ...]:
        operators = [
            streaming("optimizer", weights * each.read, weights * each.written, weights, PRECISIONS[precision])
            for each in passes
        ]
        dtype = _computed_in(operators[0], precision)
        return tuple(time_operators(operators, self.device, parameters=self.parameters, dtype=dtype).seconds.tolist())


def _load(timed: Sequence[TimedStep]) -> Load:
    """Return the load of the steps of a part."""
    meets = dict.fromkeys(("tensor", "context", "expert", "gradients"), 0.0)
    products = streams = 0.0
    for i, (step, seconds) in enumerate(timed):
        if step.collective:
            hidden = timed[i + 1][1] if step.overlapped else 0.0
            meets["gradients" if step.group == "experts" else step.group] += max(seconds - hidden, 0.0)
        elif step.operator.kind in MATRIX_KINDS:
            products += seconds
        else:
            streams += seconds
    count = sum(bool(step.collective) for step, _ in timed)
    return Load(len(timed) - count, count, products, streams, *meets.values())


def job_loads(jobs: Sequence[TrainingJob], device: Device, parameters: Parameters) -> list[JobLoad]:
    """Return the loads of each job; parts that several jobs share are timed once.

    Parameters
    ----------
    jobs : sequence of TrainingJob
        Training jobs on one kind of device.
    device : Device
        Device that all ranks run on.
    parameters : Parameters
        With calibrations of kernels and collectives.

    Raises
    ------
    InvalidInputError
        The catalogue lacks a figure of the device, or the device does not compute in the job's precision.
    """
    timer = JobTimer(device, parameters)
    return [timer.load(job) for job in jobs]


def _job_load(job: TrainingJob, timer: JobTimer) -> JobLoad:
    layout = job.layout
    stages = tuple(_stage(job, stage, timer) for stage in range(layout.pipeline))
    if layout.pipeline == 1:
        return JobLoad(job, stages)
    neighbours = layout.topology("pipeline", timer.device)
    transfer = timer.collective("send_recv", float(activation_bytes(job)), neighbours)
    if job.model.style == "llama":  # whose output layer has weights of its own
        return JobLoad(job, stages, transfer)
    elements = padded_vocabulary(job.model, layout.tensor) // layout.tensor * job.model.hidden
    tied = timer.collective("all_reduce", float(elements * job.element_bytes), neighbours)
    return JobLoad(job, stages, transfer, tied, elements)


#: Parts that can be computed again.
_LAYERS = ("layer", "dense")


def _again(job: TrainingJob, name: str, part: PartLoad) -> Load:
    """Return what of the forward pass of a part is run again."""
    if name not in _LAYERS:
        return Load()
    return part.forward if job.recompute else part.of_scores if job.selective_recompute else Load()


def steps_again(job: TrainingJob, name: str, forward: Sequence[TimedStep]) -> list[TimedStep]:
    """Return the steps of the forward pass of a part, such as ``"layer"``, that run again before its backward pass."""
    if name not in _LAYERS or not (job.recompute or job.selective_recompute):
        return []
    return [step for step in forward if job.recompute or step[0].of_scores]


def activation_bytes(job: TrainingJob) -> int:
    """Return the bytes that a rank sends to the next stage for a micro-batch: with sequence parallelism, its share."""
    layout = job.layout
    shares = layout.context * (layout.tensor if layout.sequence_parallel else 1)
    return job.micro_batch * job.length // shares * job.model.hidden * job.element_bytes


def _stage(job: TrainingJob, stage: int, timer: JobTimer) -> StageLoad:
    alike = _timing_key(job)
    chunks = tuple(
        tuple(
            replace(part, count=count, again=_again(job, name, part))
            for name, count in _counts(job, stage, chunk).items()
            for part in [timer.part(alike, name)]
        )
        for chunk in range(job.layout.chunks)
    )
    parts = [part for chunk in chunks for part in chunk]
    weights, tensors, experts = (
        sum(getattr(part, name) * part.count for part in parts) for name in ("weights", "tensors", "expert_weights")
    )
    exchanged = {"all_reduce": 0.0, "reduce_scatter": 0.0, "all_gather": 0.0}
    updated = 0
    for group, elements in (("gradients", weights - experts), ("experts", experts)):
        topology = job.layout.topology(group, timer.device)
        updated += -(-elements // topology.n_workers) if job.sharding else elements
        for kind in _END_OF_STEP[job.sharding] if elements else ():
            exchanged[kind] += timer.collective(kind, float(elements * job.element_bytes), topology)
    # The fitted costs of a launch are those of Adam, whose fit takes a call for each parameter.
    launches = -(-weights // _LAUNCH_PARAMETERS) if job.optimizer == "lamb" else tensors
    return StageLoad(
        chunks,
        exchanged["all_reduce"] + exchanged["reduce_scatter"],
        exchanged["all_gather"],
        (timer.on_host(job, updated),) if job.offload else timer.update(updated, job.optimizer_passes, job.precision),
        weights,
        tensors,
        updated,
        launches,
    )


#: Collectives of replicas after the last micro-batch, by stage of ZeRO.
_END_OF_STEP: Mapping[int, tuple[str, ...]] = MappingProxyType(
    {0: ("all_reduce",), 1: ("reduce_scatter", "all_gather"), 2: ("all_gather",), 3: ()}
)


def _timing_key(job: TrainingJob) -> TrainingJob:
    """Return a job whose parts take as long: fewer layers, one micro-batch, in the same places."""
    stages, layout = min(job.layout.pipeline, 2), job.layout
    # Replicas change a part only if they exchange for it in each micro-batch.
    shares = job.sharding if job.sharding >= _SHARED_GRADIENTS else 0
    data = layout.data if shares else layout.expert
    layout = replace(layout, pipeline=stages, data=data, schedule="1f1b", chunks=1, count_ends=False)
    model = replace(job.model, layers=stages, dense_layers=0)
    return replace(job, model=model, global_batch=job.micro_batch * data, layout=layout, recompute=False,
                   selective_recompute=False, cuda_graphs=False, offload=False, sharding=shares)  # fmt: skip


def _cost(prior: float, spread: float) -> Any:
    """Return a field of `TrainingCosts` with its entry of `PRIORS`."""
    return field(metadata={"prior": (prior, spread)})


@dataclass(frozen=True)
class TrainingCosts:
    """Costs of host and of running together.

    Parameters
    ----------
    forward_call_s, backward_call_s : float
        Host time of an operator.
    collective_call_s : float
        Host time of a collective.
    micro_batch_s, step_s : float
        Host time of each micro-batch, and of each step, whatever the model.
    exchange_s : float
        Host time that an exchange between stages costs.
    products, streams, links : float
        Time that weights' matrix products, other kernels and collectives take in a job, over that of each alone: clocks
        fall under load, caches are shared.
    waiting : float
        Share by which the host of a tensor-parallel group is slower for each doubling of its ranks: each collective
        waits for the last one to call it.
    update_call_s : float
        Host time of the optimizer for each parameter.
    """

    forward_call_s: float = _cost(3e-5, 1.0)
    backward_call_s: float = _cost(2e-5, 1.0)
    collective_call_s: float = _cost(5e-5, 1.0)
    micro_batch_s: float = _cost(1e-3, 1.0)
    step_s: float = _cost(5e-3, 1.0)
    exchange_s: float = _cost(3e-4, 1.0)
    products: float = _cost(1.05, 0.1)
    streams: float = _cost(1.0, 0.03)
    links: float = _cost(1.1, 0.3)
    waiting: float = _cost(0.03, 1.0)
    update_call_s: float = _cost(2e-5, 1.0)

    def kernel_s(self, load: Load) -> float:
        """Return the time of a load's kernels, s, collectives apart."""
        return self.products * load.products_s + self.streams * load.streams_s


#: Value that a cost is taken for where data do not tell, and the standard deviation of its logarithm.
PRIORS: Mapping[str, tuple[float, float]] = MappingProxyType(
    {cost.name: cost.metadata["prior"] for cost in fields(TrainingCosts)}
)


@dataclass(frozen=True)
class BreakDown:
    """Where the time of a step goes, in s; all but `streams_s` add up to `total_s`.

    Parameters
    ----------
    total_s : float
        Time of the step.
    compute_s : float
        Kernels of the slowest stage.
    streams_s : float
        Those among them that matrix units have no part in.
    tensor_s, context_s, expert_s : float
        Its collectives of tensor-parallel, context-parallel and expert-parallel ranks, as far as they do not overlap.
    host_s : float
        Its device waits for the host's calls.
    bubble_s : float
        Stages wait for one another, and for their exchanges.
    data_s : float
        All-reduce of gradients, of replicas and of the embedding that two stages share.
    optimizer_s : float
        Time of the optimizer's update.
    """

    total_s: float
    compute_s: float
    tensor_s: float
    host_s: float
    bubble_s: float
    data_s: float
    optimizer_s: float
    context_s: float = 0.0
    expert_s: float = 0.0
    streams_s: float = 0.0


def step_time(load: JobLoad, costs: TrainingCosts) -> BreakDown:
    """Return how long a step takes, and where its time goes.

    The schedule of `run_schedule`; then gradients are summed over replicas and the embedding's between first and last
    stage, and the optimizer runs. If the job overlaps them, replicas exchange gradients beside the backward pass of the
    last micro-batch, and weights beside the forward pass of the first.
    """
    layout = load.job.layout
    times = [_chunk_times(load.stages[i], load, costs) for i in range(layout.pipeline)]
    exchange = load.transfer_s * costs.links + costs.exchange_s if layout.pipeline > 1 else 0.0
    in_order = [times[i][chunk] for chunk in range(layout.chunks) for i in range(layout.pipeline)]
    piped = max(run_schedule(in_order, load.micro_batches, exchange, schedule=layout.schedule, chunks=layout.chunks))
    data = costs.links * load.tied_s + max(
        _exposed(stage, load, costs, chunks) for stage, chunks in zip(load.stages, times, strict=True)
    )
    optimizer = max(sum(max(each, costs.update_call_s * stage.launches) for each in stage.update_s)
                    for stage in load.stages)  # fmt: skip
    alone = [run_schedule([_joined(chunks)], load.micro_batches)[0] for chunks in times]
    slowest = alone.index(max(alone))
    parts = load.stages[slowest].parts
    total = sum((part.total for part in parts), Load())
    compute = costs.kernel_s(total) * load.micro_batches
    tensor, context, expert = (
        costs.links * load.micro_batches * each for each in (total.tensor_s, total.context_s, total.expert_s)
    )
    shared = load.micro_batches * sum(_shared_s(each, load, costs) for part in parts for each in _ways(part))
    return BreakDown(
        piped + data + optimizer + costs.step_s,
        compute,
        tensor,
        alone[slowest] - compute - tensor - context - expert - shared + costs.step_s,
        piped - alone[slowest],
        data + shared,
        optimizer,
        context,
        expert,
        costs.streams * total.streams_s * load.micro_batches,
    )


def _ways(part: PartLoad) -> list[Load]:
    """Return the passes of all repetitions of a part for a micro-batch."""
    return [part.forward, part.again, part.backward] * part.count


def _joined(chunks: Sequence[Mapping[str, Duration]]) -> Mapping[str, Duration]:
    """Return the durations of a stage without others: chunk after chunk, and gradients of weights at once."""
    ahead, back = Duration(0.0, 0.0), Duration(0.0, 0.0)
    for each in chunks:
        ahead = ahead.then(each["forward"])
    for each in reversed(chunks):
        back = back.then(each["backward"]).then(each.get("weights", Duration(0.0, 0.0)))
    return {"forward": ahead, "backward": back}


def _exposed(stage: StageLoad, load: JobLoad, costs: TrainingCosts, chunks: Sequence[Mapping[str, Duration]]) -> float:
    """Return the time of a stage's exchanges with replicas after the last micro-batch that nothing hides, s."""
    reduced, gathered = costs.links * stage.reduce_s, costs.links * stage.gather_s
    if not load.job.overlap_gradients:
        return reduced + gathered
    joined = _joined(chunks)
    return max(reduced - joined["backward"].reach_s, 0.0) + max(gathered - joined["forward"].reach_s, 0.0)


def _shared_s(part: Load, load: JobLoad, costs: TrainingCosts) -> float:
    """Return the time in which replicas gather weights or reduce gradients of a part, and nothing hides it, s."""
    shared = costs.links * part.gradients_s
    busy = costs.kernel_s(part) + costs.links * part.communication_s
    return max(shared - busy, 0.0) if load.job.overlap_gradients else shared


def host_slowdown(ranks: int, costs: TrainingCosts) -> float:
    """Return how much longer a host takes beside others of its tensor-parallel group."""
    return 1 + costs.waiting * (ranks - 1)


def _chunk_times(stage: StageLoad, load: JobLoad, costs: TrainingCosts) -> list[dict[str, Duration]]:
    """Return the durations of each chunk of a stage, by way."""
    slower, none = host_slowdown(load.job.layout.tensor, costs), Duration(0.0, 0.0)
    is_split = load.job.layout.schedule == "zero_bubble"

    def part_duration(part: Load, call_s: float) -> Duration:
        host = (part.operators * call_s + part.collectives * costs.collective_call_s) * slower
        busy = costs.kernel_s(part) + costs.links * part.communication_s
        return Duration(host, busy + _shared_s(part, load, costs))

    times = []
    for chunk in stage.chunks:
        ahead, back, late = Duration(costs.micro_batch_s / len(stage.chunks) * slower, 0.0), none, none
        for part in chunk:
            ahead = ahead.then(part_duration(part.forward, costs.forward_call_s).times(part.count))
        for part in reversed(chunk):
            inputs = part.backward + part.of_weights * -1 if is_split else part.backward
            each = part_duration(inputs, costs.backward_call_s)
            if part.again.operators:
                each = part_duration(part.again, costs.forward_call_s).then(each)
            back = back.then(each.times(part.count))
            late = late.then(part_duration(part.of_weights, costs.backward_call_s).times(part.count))
        times.append({"forward": ahead, "backward": back} | ({"weights": late} if is_split else {}))
    return times
