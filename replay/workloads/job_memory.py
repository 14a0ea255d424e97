"""Memory of a training job on a device: weights, gradients, optimizer, activations, buffers; and whether it fits.

`job_memory` counts the bytes of a pipeline stage when most are in use: all micro-batches in flight are kept, and the
loss or the backward pass of a layer runs. `memory_by_stage` lists the stages. `memory_share` and `fits` compare the
bytes with the memory of a device. `kv_cache_bytes` is for inference.

Sources: states of mixed precision, Megatron-LM, docs/source/api-guide/dist_optimizer.md, and arXiv 1910.02054, section
3; activations of a layer arXiv 2205.05198, sections 4 and 5; flash attention, which keeps its result and a sum for
each row, arXiv 2205.14135; micro-batches in flight arXiv 2104.04473 (1F1B, interleaved), 2401.10241 (zero bubble);
adapters arXiv 2106.09685; chosen and shared experts arXiv 2405.04434.

With flash attention a layer keeps ``34 s b h / t`` bytes, and ``4 a s b / t`` for the sums. Without sequence
parallelism ``10 s b h`` of these are not shared (arXiv 2205.05198, equation 2). Logits take ``4 s b v / t`` bytes, and
``2 s b v / t`` with the fused loss of Llama's style. Zero bubble keeps on stage i what the gradients of weights need
(``32 s b h``) of i micro-batches more. Buffers hold the gradients of a layer's activations, one array of each weight's
shape, and in ZeRO 3 the weights of two layers, as in Transformer Engine.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil
from types import MappingProxyType
from typing import Any, NamedTuple

from profilers.devices.catalogue import Device
from profilers.errors import InvalidInputError
from replay.workloads.architecture import Transformer
from replay.workloads.decoder import DecoderPass, padded_vocabulary
from replay.workloads.jobs import SHARDINGS, Layout, TrainingJob
from replay.workloads.transformer import embedding_block, head_block, layer_block

#: Bytes of a parameter's gradient, and of its optimizer's state, by precision. The state holds two moments in FP32; of
#: 16 bits it has an FP32 copy of the weight too, and in FP16 one of the gradient. BF16 gradients add up in FP32; in
#: narrower types they add up in BF16, as in NeMo's performance recipes (``grad_reduce_in_fp32=False``).
_STATES = MappingProxyType(
    {"fp32": (4, 8), "tf32": (4, 8), "fp16": (2, 16), "bf16": (4, 12), "fp8": (2, 12), "nvfp4": (2, 12)}
)
#: Bytes of the two moments that 8 bits save (arXiv 2110.02861; scales of blocks of 2,048 are left out).
_SAVED_BY_8_BITS = 6
#: Bytes of an element that a product of weights takes, where these are fewer than the others' (4 bits and scales).
_NARROW = MappingProxyType({"fp8": 1.0, "nvfp4": 0.5625})
_PARTS = ("weights", "gradients", "optimizer", "activations", "buffers")
_FP32_BYTES, _MASK_BYTES = 4, 1
#: Share of the tokens that BERT predicts, as in `replay.workloads.transformer`.
_PREDICTED = 5 / 32
#: Stage of ZeRO in which weights are gathered for each layer: for the one that runs, and for the next.
GATHERED = 3
#: Bytes that PyTorch's allocator reserves for each that it hands out: the mean of 13 of 19 runs on B200, which a hash
#: chose (`seqpoint.validation.job_memory.fit_reserved`).
RESERVED = 1.056
#: Share of the catalogue's memory, in GiB for GB, that a process can allocate: PyTorch's messages of memory that ran
#: out show allocations up to it. Drivers report 0.933 (B200) to 0.996 (H100, H200) of it in MLPerf Training's system
#: files.
USABLE = 0.985
#: Error of the allocated bytes, as a share: runs on B200 and of MLPerf Training err by 0.4 and 4.4 % on average.
ERROR = 0.03
#: What a job does on a device: it fits; it may run out of memory; it does not fit.
FITS = ("fits", "tight", "does not fit")


@dataclass(frozen=True)
class JobMemory:
    """Bytes of a rank at its peak.

    Parameters
    ----------
    weights : int
        Weights in the precision of the computation.
    gradients : int
        Accumulated gradients.
    optimizer : int
        Moments, and FP32 copies.
    activations : int
        Results that the backward pass needs, of all micro-batches in flight; logits among them.
    buffers : int
        Arrays of the backward pass: gradients of activations, of the weights of a layer, and gathered weights.
    stage : int
        Pipeline stage of the rank.
    """

    weights: int
    gradients: int
    optimizer: int
    activations: int
    buffers: int
    stage: int = 0

    @property
    def total(self) -> int:
        """Sum of the parts: what PyTorch counts as allocated."""
        return sum(getattr(self, name) for name in _PARTS)

    @property
    def reserved(self) -> int:
        """Bytes that the allocator takes from the device for `total`."""
        return round(RESERVED * self.total)

    @property
    def interval(self) -> tuple[float, float]:
        """Bytes that the job needs at least and at most: without fragmentation, and as the allocator reserves them."""
        return (1 - ERROR) * self.total, (1 + ERROR) * self.reserved

    def content(self) -> dict[str, int]:
        """Return the bytes by part as JSON with stable keys."""
        parts = {f"{name}_bytes": getattr(self, name) for name in (*_PARTS, "total", "reserved")}
        return {"stage": self.stage} | parts


class _Kept(NamedTuple):
    """Bytes of a token in a part of a layer, on a rank.

    Results from forward to backward pass, what the gradients of weights alone need, and the largest arrays of the
    backward pass beyond those that it frees.
    """

    kept: float
    of_weights: float
    working: float


class _Weights(NamedTuple):
    """Elements of the parameters on a rank, of embedding, output layer, a layer without and a layer with experts.

    Those of experts are apart: those of a layer, and of one expert.
    """

    embedding: int
    head: int
    dense: int
    sparse: int
    experts: int
    expert: int


@lru_cache(maxsize=4096)
def _weights(model: Transformer, length: int, tensor: int, expert: int, *, shared: bool) -> _Weights:
    """Count the weights of the blocks whose time is predicted."""
    run = DecoderPass(1, length, training=True, ranks=tensor, expert=expert)
    dense, layer = layer_block(model, run, dense=True), layer_block(model, run)
    of_expert = layer.expert_weights * expert // model.experts
    outer = embedding_block(model, run).weights, head_block(model, run, shared=shared).weights
    return _Weights(*outer, dense.weights, layer.weights - layer.expert_weights, layer.expert_weights, of_expert)


def job_memory(job: TrainingJob, stage: int | None = None) -> JobMemory:
    """Return the memory of a rank of a pipeline stage.

    Parameters
    ----------
    job : TrainingJob
        The job.
    stage : int, optional
        Pipeline stage; by default the one that needs most.

    Raises
    ------
    InvalidInputError
        There is no such stage.

    Notes
    -----
    Without recomputation and with plain attention, L layers keep ``L s b h (34 + 5 a s / h) / t`` bytes of a
    micro-batch, and the output layer ``4 s b h (1 + v / h) / t`` (arXiv 2205.05198, equations 2 and 5).

    Examples
    --------
    >>> from replay.workloads.jobs import training_job
    >>> memory = job_memory(training_job({"layers": 4, "precision": "bf16"}))
    >>> memory.gradients // memory.weights, memory.optimizer // memory.weights
    (2, 6)
    """
    stages = job.layout.pipeline
    if stage is None:
        # A stage needs no more than the one before it, unless that one has fewer layers, or more without experts.
        candidates = {0, min(1, stages - 1) if job.layout.count_ends else 0, stages - 1}
        if job.model.experts > 1:
            sparse = min(-(-job.model.dense_layers * stages // job.model.layers), stages - 1)
            candidates |= {max(sparse - 1, 0), sparse}
        kinds = _kinds(job)
        return max((_stage_memory(job, each, kinds) for each in sorted(candidates)), key=lambda each: each.total)
    if not 0 <= stage < stages:
        raise InvalidInputError(f"no pipeline stage {stage}; the job has stages 0 to {stages - 1}")
    return _stage_memory(job, stage, _kinds(job))


def embedding_bytes(job: TrainingJob, stage: int = 0) -> int:
    """Return the bytes of the weights of an embedding that no product reads, as they are in `JobMemory.weights`.

    An output layer on the same rank that shares the embedding's weights reads them; then they are 0.

    Examples
    --------
    >>> from replay.workloads.jobs import training_job
    >>> job = training_job({"model": "llama31_8b", "precision": "bf16"})
    >>> embedding_bytes(job) == 2 * 128256 * 4096
    True
    """
    layout = job.layout
    own, alone = (
        _weights(job.model, job.length, layout.tensor, layout.expert, shared=shared)
        for shared in (layout.pipeline == 1, False)
    )
    if stage > 0 or own.head < alone.head:
        return 0
    return ceil(own.embedding * job.element_bytes / (layout.data * layout.context if job.sharding >= GATHERED else 1))


def memory_by_stage(job: TrainingJob) -> tuple[JobMemory, ...]:
    """Return the memory of a rank of each pipeline stage, in order."""
    kinds = _kinds(job)
    return tuple(_stage_memory(job, stage, kinds) for stage in range(job.layout.pipeline))


class _Kinds(NamedTuple):
    """Weights of a rank, and activations of a layer without and of one with experts."""

    weights: _Weights
    dense: _Kept
    sparse: _Kept


def _kinds(job: TrainingJob) -> _Kinds:
    layout = job.layout
    count = _weights(job.model, job.length, layout.tensor, layout.expert, shared=layout.pipeline == 1)
    dense = _layer(job, sparse=False)
    return _Kinds(count, dense, _layer(job, sparse=True) if job.model.experts > 1 else dense)


def _stage_memory(job: TrainingJob, stage: int, kinds: _Kinds) -> JobMemory:
    layout, size, count = job.layout, job.element_bytes, kinds.weights
    first, last = stage == 0, stage == layout.pipeline - 1
    dense, sparse = _layers(job, stage)
    held = dense * count.dense + sparse * count.sparse + first * count.embedding + last * count.head
    experts = sparse * count.experts
    replicas = layout.data * layout.context
    largest = max(count.dense if dense else 0, count.sparse + count.expert if sparse else 0)
    head, working = _head(job) if last else (0.0, 0.0)
    kept, of_layers = _activations(job, stage, [(dense, kinds.dense), (sparse, kinds.sparse)])
    written = 0 if job.adapter_rank else largest + last * count.head
    buffers = size * written + max(working, of_layers - head)
    if job.sharding == GATHERED and replicas > 1:
        buffers += 2 * size * max(count.dense if dense else 0, count.sparse + count.experts if sparse else 0)
    return JobMemory(*_states(job, held, experts, dense + sparse), round(kept + head), round(buffers), stage)


def _gradient_and_state(job: TrainingJob) -> tuple[int, int]:
    """Return the bytes of a parameter's gradient, and of its optimizer's state."""
    gradient, state = _STATES[job.precision]
    return gradient, 0 if job.offload else state - _SAVED_BY_8_BITS * (job.optimizer == "adam8bit")


def _states(job: TrainingJob, held: int, experts: int, layers: int) -> tuple[int, int, int]:
    """Return the bytes of weights, gradients and optimizer; experts are shared by the ranks that have the same ones.

    Of adapters, the model's own weights are stored alone, in the type of its products; adapters are on the products of
    attention.
    """
    layout, model = job.layout, job.model
    replicas = layout.data * layout.context
    gradient, state = _gradient_and_state(job)

    def share(bytes_: float, least: int, elements: int = held, of_experts: int = experts) -> int:
        ranks, others = (replicas, replicas // layout.expert) if job.sharding >= least else (1, 1)
        return ceil(elements * bytes_ / ranks) + ceil(of_experts * bytes_ / others)

    if not job.adapter_rank:
        return share(job.element_bytes, 3), share(gradient, 2), share(state, 1)
    columns = 2 * model.hidden + 2 * (model.heads + model.key_value_heads) * model.width
    added = layers * job.adapter_rank * columns // layout.tensor
    frozen = share(_taken(job), 3) + share(job.element_bytes, 3, added, 0)
    return frozen, share(gradient, 2, added, 0), share(state, 1, added, 0)


def _layers(job: TrainingJob, stage: int) -> tuple[int, int]:
    """Return how many layers of a stage have no experts, and how many have them, as `TrainingJob.chunk_layers`."""
    layout, model = job.layout, job.model
    chunks, ends = layout.pipeline * layout.chunks, layout.count_ends
    even = (model.layers + 2 * ends) // chunks
    held = even * layout.chunks - ends * ((stage == 0) + (stage == layout.pipeline - 1))
    if model.experts == 1:
        return held, 0
    dense = 0
    for chunk in range(stage, chunks, layout.pipeline):
        left = model.dense_layers - (chunk * even - (ends if chunk else 0))
        if left <= 0:
            break
        dense += min(left, even - ends * ((chunk == 0) + (chunk == chunks - 1)))
    return dense, held - dense


def _activations(job: TrainingJob, stage: int, layers: Sequence[tuple[int, _Kept]]) -> tuple[float, float]:
    """Return what the layers of a stage keep, and the largest arrays of the backward pass of one."""
    tokens, hidden, between = _tokens(job), job.model.hidden, _between(job)
    running = _in_flight(job, stage)
    present = [each for each in layers if each[0]]
    if job.recompute:
        inputs = sum(number for number, _ in present) * hidden * job.element_bytes / between * running
        kept = inputs + max((layer.kept for _, layer in present), default=0.0)
    else:
        delayed = _delayed(job, stage)
        kept = sum(number * (layer.kept * running + layer.of_weights * delayed) for number, layer in present)
    if stage == 0 and _drops(job.model):
        kept += hidden * _MASK_BYTES / between * running
    return tokens * kept, tokens * max((layer.working for _, layer in present), default=0.0)


def _tokens(job: TrainingJob) -> int:
    """Tokens of a micro-batch on a rank."""
    return job.micro_batch * (job.length // job.layout.context)


def _between(job: TrainingJob) -> int:
    """Ranks that share the tokens between the blocks of a layer."""
    return job.layout.tensor if job.layout.sequence_parallel else 1


def _drops(model: Transformer) -> bool:
    return model.style in ("megatron", "bert")


def _in_flight(job: TrainingJob, stage: int) -> float:
    """Return the micro-batches whose activations all layers of a stage keep.

    An interleaved schedule keeps ``2 (p - stage - 1) + (v - 1) p + 1`` chunks, each of one v-th of the layers; of the
    first stage these are ``p v (1 + (p - 1) / (p v))``.
    """
    layout = job.layout
    behind = layout.pipeline - stage - 1
    if layout.chunks > 1:
        chunks = 2 * behind + (layout.chunks - 1) * layout.pipeline + 1
        return min(chunks, layout.chunks * job.micro_batches) / layout.chunks
    return min(behind + 1, job.micro_batches)


def _delayed(job: TrainingJob, stage: int) -> int:
    """Return the micro-batches whose gradients of weights wait: as many as stages before (arXiv 2401.10241, 2.3)."""
    if job.layout.schedule != "zero_bubble":
        return 0
    return min(stage, job.micro_batches - min(job.layout.pipeline - stage, job.micro_batches))


def _layer(job: TrainingJob, *, sparse: bool) -> _Kept:
    """Return the bytes of a token in a layer, with experts or without."""
    size, hidden, between = job.element_bytes, job.model.hidden, _between(job)
    taken = _taken(job)
    # Inputs of two normalisations and of the products after them, unless these have no gradient of weights; masks of
    # two dropouts.
    inputs = taken if job.adapter_rank else 2 * taken
    outer = (2 * size + inputs) * hidden + (2 * _MASK_BYTES * hidden if _drops(job.model) else 0)
    gradients = 2 * size * hidden / between
    attention, feedforward = _attention(job), _feedforward(job)
    if sparse:
        feedforward = _experts(job)
    return _Kept(
        outer / between + attention.kept + feedforward.kept,
        2 * (taken + size) * hidden / between + attention.of_weights + feedforward.of_weights,
        gradients + max(feedforward.working, attention.working - feedforward.kept),
    )


def _taken(job: TrainingJob) -> float:
    """Bytes of an element that a product of weights takes."""
    return _NARROW.get(job.precision, job.element_bytes)


def _attention(job: TrainingJob) -> _Kept:
    """Queries, keys, values and the result, which the product after it takes; scores unless attention is one kernel."""
    model, size, taken, ranks = job.model, job.element_bytes, _taken(job), job.layout.tensor
    heads, width = max(model.heads // ranks, 1), model.width
    result = heads * width
    if model.key_rank:
        inner = 2 * heads * (width + model.rotary_width) + result
        ranked = model.query_rank + model.key_rank
        products = (inner + ranked) * size + ranked * taken
        kept = size * (inner + ranked) + taken * ranked
    else:
        inner = result + 2 * max(model.key_value_heads // ranks, 1) * width
        products = kept = size * inner
    kept += size * result + (taken * result if taken < size else 0)
    if job.attention != "plain" or model.key_rank:
        # Context-parallel ranks exchange heads for tokens and keep the result before and after (Transformer Engine).
        return _Kept(
            kept + _FP32_BYTES * heads + (size * result if job.layout.context > 1 else 0),
            products + taken * result,
            0.0,
        )
    scores = heads * job.length
    if job.selective_recompute:  # of one layer at a time: scores, their softmax and its gradient
        return _Kept(kept, products + taken * result, 3 * size * scores)
    softmax = scores * (2 * size + _MASK_BYTES if _drops(model) else size)
    return _Kept(kept + softmax, products + taken * result, size * scores)


def _feedforward(job: TrainingJob, wide: int = 0, rows: int = 1) -> _Kept:
    """Return the bytes between the two products of a feed-forward layer, of a size and for some rows a token."""
    inner = max((wide or job.model.feedforward) // job.layout.tensor, 1) * rows
    first = job.element_bytes * inner * (2 if job.model.style == "llama" else 1)
    taken = _taken(job) * inner
    return _Kept(first if job.adapter_rank else first + taken, first + taken, first)


def _experts(job: TrainingJob) -> _Kept:
    """Tokens in the order of experts, the layers of all chosen and shared experts, and the router's scores in FP32.

    Tokens choose experts evenly. Backward, the gradients of tokens are in memory before and after their exchange.
    """
    model, chosen = job.model, job.model.experts_per_token
    routed = _feedforward(job, model.expert_size, chosen)
    shared = _feedforward(job, model.shared_experts * model.expert_size) if model.shared_experts else _Kept(0, 0, 0)
    sent = _taken(job) * chosen * model.hidden
    scores = 2 * _FP32_BYTES * model.experts / _between(job)
    returned = job.element_bytes * chosen * model.hidden
    return _Kept(
        routed.kept + shared.kept + sent + scores,
        routed.of_weights + shared.of_weights + sent + returned,
        max(routed.working + 2 * returned, shared.working),
    )


def _head(job: TrainingJob) -> tuple[float, float]:
    """Return what the output layer keeps, and the arrays of its backward pass.

    In Megatron-LM's and BERT's style the loss is computed from FP32 logits, whose gradient is converted. In Llama's it
    is fused: the gradient takes the place of the logits.
    """
    model, size, between = job.model, job.element_bytes, _between(job)
    tokens, local = _tokens(job), padded_vocabulary(job.model, job.layout.tensor) // job.layout.tensor
    masked = tokens * _PREDICTED if model.style == "bert" else tokens
    fused = not _drops(model)
    kept = 2 * size * tokens * model.hidden / between + masked * local * (size if fused else _FP32_BYTES)
    working = size * tokens * model.hidden * (1 + (between > 1)) + (0 if fused else size * masked * local)
    return kept, working


def usable_bytes(device: Device) -> float:
    """Return the bytes of a device's memory that a process can allocate.

    Raises
    ------
    InvalidInputError
        The catalogue does not know the memory of the device.
    """
    return USABLE * device.value("memory_gb") * 2**30


def memory_share(memory: JobMemory, device: Device) -> float:
    """Return the reserved bytes as a share of the usable memory of a device.

    Examples
    --------
    >>> from profilers.devices.catalogue import find_device
    >>> from replay.workloads.jobs import training_job
    >>> round(memory_share(job_memory(training_job({})), find_device("A100-SXM4-80GB")), 2)
    0.53
    """
    return memory.reserved / usable_bytes(device)


def memory_fit(memory: JobMemory, device: Device) -> str:
    """Return whether memory fits on a device, one of `FITS`.

    It fits if the most that it may need is usable, and does not if the least is not. Between them it is tight: it runs
    if the allocator wastes little.

    Examples
    --------
    >>> from profilers.devices.catalogue import find_device
    >>> [memory_fit(JobMemory(size << 30, 0, 0, 0, 0), find_device("A100-SXM4-80GB")) for size in (60, 77, 90)]
    ['fits', 'tight', 'does not fit']
    """
    least, most = memory.interval
    usable = usable_bytes(device)
    return FITS[0] if most <= usable else FITS[1] if least <= usable else FITS[2]


def fits(job: TrainingJob, device: Device) -> bool:
    """Return whether the stage of a job that needs most memory fits on a device, tight or not."""
    return memory_fit(job_memory(job), device) != FITS[2]


def parameter_bytes(job: TrainingJob) -> str:
    """Return what a parameter takes, in words: weight, gradient and optimizer, and the ranks that share them.

    Examples
    --------
    >>> from replay.workloads.jobs import training_job
    >>> parameter_bytes(training_job({"precision": "bf16", "data": 8, "sharding": 1}))
    'a parameter takes 2 bytes of weight, 4 of gradient, 12 of optimizer (optimizer shared by 8 ranks)'
    """
    gradient, state = _gradient_and_state(job)
    weight = _NARROW.get(job.precision, job.element_bytes)
    shared = ("", "optimizer", "optimizer and gradients", "all")[job.sharding]
    notes = ["on the host"] * job.offload
    notes += [f"{shared} shared by {job.layout.data} ranks"] * (job.sharding > 0 and job.layout.data > 1)
    where = f" ({'; '.join(notes)})" if notes else ""
    return f"a parameter takes {weight:g} bytes of weight, {gradient} of gradient, {state} of optimizer{where}"


def fitting_changes(job: TrainingJob, device: Device) -> list[tuple[str, int | str, JobMemory]]:
    """Return the changes that make a job fit on a device, each alone: its key, its value and the memory then.

    Attention in one kernel is tried first, then recomputation, each stage of sharding, and more tensor-parallel ranks,
    at most 64. Of the stages and of the numbers of ranks, the least that fits is taken.

    Examples
    --------
    >>> from profilers.devices.catalogue import find_device
    >>> from replay.workloads.jobs import training_job
    >>> job = training_job({"layers": 32, "hidden": 4096, "heads": 32, "data": 8, "recompute": True})
    >>> [(key, value) for key, value, _ in fitting_changes(job, find_device("A100-SXM4-80GB"))]
    [('sharding', 1), ('tensor', 2)]
    """
    ranks = [job.layout.tensor * 2**power for power in range(1, _MOST_RANKS.bit_length())]
    tried: list[tuple[str, int | str]] = [
        *([("attention", "flash")] if job.attention == "plain" else []),
        *([] if job.recompute else [("recompute", True)]),
        *(("sharding", stage) for stage in SHARDINGS if stage > job.sharding),
        *(("tensor", number) for number in ranks if number <= _MOST_RANKS),
    ]
    fitting: dict[str, tuple[str, int | str, JobMemory]] = {}
    for key, value in tried:
        try:
            layout = {"layout": replace(job.layout, tensor=int(value))} if key == "tensor" else {}
            change: dict[str, Any] = layout or {key: value}
            memory = job_memory(replace(job, **change))
        except InvalidInputError:  # ranks that do not divide a size
            continue
        if key not in fitting and memory_fit(memory, device) == FITS[0]:
            fitting[key] = (key, value, memory)
    return list(fitting.values())


#: Most tensor-parallel ranks that are tried to make a job fit.
_MOST_RANKS = 64


def kv_cache_bytes(model: Transformer, tokens: int, layout: Layout | None = None, element_bytes: int = 2) -> int:
    """Return the bytes of keys and values that a rank holds in inference; of latent attention, the compressed ones.

    Parameters
    ----------
    model : Transformer
        The model.
    tokens : int
        Tokens of all sequences.
    layout : Layout, optional
        How the model is split: stages share layers, tensor-parallel ranks heads of keys, context-parallel ranks tokens.
    element_bytes : int
        Bytes of an element.

    Examples
    --------
    >>> kv_cache_bytes(Transformer("m", "megatron", 80, 8192, 64, 28672, 32000, kv_heads=8), 4096) / 2**30
    1.25
    """
    split = layout or Layout()
    if model.key_rank:
        elements = model.key_rank + model.rotary_width
    else:
        elements = 2 * max(model.key_value_heads // split.tensor, 1) * model.width
    layers = -(-model.layers // split.pipeline)
    return layers * elements * -(-tokens // split.context) * element_bytes
