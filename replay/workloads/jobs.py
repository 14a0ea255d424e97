"""Training jobs: a transformer, its batch, and how it is split over devices.

A job is a few sizes. `training_job` makes one from a flat table of them, such as a file of `read_job` holds, and
`job_sizes` returns the table of a job. `edit_job` changes one size, and what follows from it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from profilers.devices.catalogue import Device
from profilers.errors import InvalidInputError
from profilers.files import read_toml
from replay.costs.collectives import Topology, usual_topology
from replay.graph.choice import unknown_name
from replay.workloads.architecture import Transformer, checked_size, find_transformer, load_transformers
from replay.workloads.transformer import TRAINED_STYLES

#: Orders in which pipeline stages run their micro-batches.
SCHEDULES: Mapping[str, str] = MappingProxyType(
    {
        "1f1b": "one forward, one backward (PipeDream-Flush, arXiv 2006.09503)",
        "interleaved": "1f1b with several chunks of layers in each stage (Megatron-LM, arXiv 2104.04473)",
        "zero_bubble": "1f1b whose weights' gradients fill the bubbles (ZB-H1, arXiv 2401.10241)",
    }
)
#: How attention is computed: operator by operator, with the scores in memory; in one kernel as of FlashAttention-2
#: (arXiv 2307.08691); or in one of the first such kernels, of 2022 and 2023 (arXiv 2205.14135, and Triton's).
ATTENTIONS = ("plain", "flash", "flash1")
#: Stages of ZeRO (arXiv 1910.02054): what data-parallel ranks share: nothing, optimizer, gradients too, weights too.
SHARDINGS = (0, 1, 2, 3)
#: Of one kind of parallelism, and devices of a node.
_MOST_RANKS = 2**20
#: Micro-batches of all stages, which the schedule goes through one by one.
_MOST_SCHEDULED = 2**20


@dataclass(frozen=True)
class Layout:
    """How a job is split.

    Ranks of a tensor-parallel group are neighbours, then those of a context-parallel group, then replicas, then
    pipeline stages, as in Megatron-LM. The experts of a layer are shared by neighbours among context-parallel ranks and
    replicas.

    Parameters
    ----------
    tensor, data, pipeline : int
        Ranks that share a layer; replicas of the model; stages, each with as many layers.
    node_devices : int
        Devices of a node.
    sequence_parallel : bool
        Whether tensor-parallel ranks share the tokens between the blocks of a layer (arXiv 2205.05198).
    context : int
        Ranks that share the tokens of a sequence.
    expert : int
        Ranks that share the experts of a layer; they divide ``context * data``.
    schedule : str
        One of `SCHEDULES`.
    chunks : int
        Chunks of layers in a stage: 2 or more if the schedule is interleaved, else 1.
    count_ends : bool
        Whether the embedding and the output layer count as a layer each where stages share the layers, so that the
        first and the last stage have one less: Llama 3 405B has 126 layers on 16 stages (arXiv 2407.21783, section
        3.3).
    node_adapters : int
        Network adapters of a node; 0 for those of the device's usual node in the catalogue.

    Raises
    ------
    InvalidInputError
        One is no whole number, below one (adapters: 0) or above 2^20. The schedule is unknown, or does not go with the
        chunks or stages. The ranks that share experts do not divide the others.

    Examples
    --------
    >>> Layout(4, 2, 2).devices, Layout(4, 2, 2).topology("data").nodes, Layout(4, 2, 2).topology("pipeline").link
    (16, 1, 'network')
    """

    tensor: int = 1
    data: int = 1
    pipeline: int = 1
    node_devices: int = 8
    sequence_parallel: bool = False
    context: int = 1
    expert: int = 1
    schedule: str = "1f1b"
    chunks: int = 1
    count_ends: bool = False
    node_adapters: int = 0

    def __post_init__(self) -> None:
        if self.node_adapters:
            object.__setattr__(self, "node_adapters", checked_size("node_adapters", self.node_adapters, _MOST_RANKS))
        for name in ("tensor", "data", "pipeline", "node_devices", "context", "expert", "chunks"):
            object.__setattr__(self, name, checked_size(name, getattr(self, name), _MOST_RANKS))
        if self.schedule not in SCHEDULES:
            raise InvalidInputError(f"no schedule {self.schedule!r:.40}; there are {', '.join(SCHEDULES)}")
        if (self.chunks > 1) != (self.schedule == "interleaved"):
            raise InvalidInputError(
                f"schedule {self.schedule} with {self.chunks} chunks a stage: interleaved takes 2 or more, others 1"
            )
        if self.chunks > 1 and self.pipeline == 1:
            raise InvalidInputError(
                f"{self.chunks} chunks of one stage: an interleaved schedule needs 2 stages or more"
            )
        if self.data * self.context % self.expert:
            raise InvalidInputError(
                f"{self.expert} ranks that share experts do not divide {self.data} replicas of {self.context} "
                "context-parallel ranks"
            )

    @property
    def devices(self) -> int:
        """Devices of the job."""
        return self.tensor * self.context * self.data * self.pipeline

    def topology(self, group: str, device: Device | None = None) -> Topology:
        """Return where the ranks of a group are, and their share of the network adapters of a node.

        Groups that run side by side share the adapters.

        Parameters
        ----------
        group : str
            ``"tensor"``, ``"context"``, ``"data"``, ``"expert"``, or ``"pipeline"`` for two neighbours; ``"gradients"``
            for the ranks that sum the gradients of the same weights: replicas and context-parallel ranks; ``"experts"``
            for those that sum the gradients of the same experts.
        device : Device, optional
            Device whose usual node has the adapters of the catalogue. Without one, nothing is known of them.
        """
        replicas = self.context * self.data
        stride, size = {
            "tensor": (1, self.tensor),
            "context": (self.tensor, self.context),
            "expert": (self.tensor, self.expert),
            "gradients": (self.tensor, replicas),
            "experts": (self.tensor * self.expert, replicas // self.expert),
            "data": (self.tensor * self.context, self.data),
            "pipeline": (self.tensor * replicas, min(self.pipeline, 2)),
        }[group]
        node = self.node_devices
        here = max(min(size, node // stride), 1)
        while size % here:
            here -= 1
        groups = max(min(stride, node), 1)
        whole = Topology(size, here, max(node, here))
        if device is not None:
            whole = usual_topology(whole, device)
        if self.node_adapters and whole.nodes > 1:
            whole = replace(whole, nics=self.node_adapters)
        share = min(whole.nics / groups, 1.0)  # of an adapter that several groups share
        return replace(whole, nics=max(1, whole.nics // groups), nic_gbps=whole.nic_gbps * share)


#: Bytes of an element in each precision that a job may train in.
#: In ``"fp8"`` the products of weights alone are in 8 bits, in ``"nvfp4"`` in 4; activations and weights stay in 16
#: (arXiv 2209.05433, 2509.25149).
PRECISIONS: Mapping[str, int] = MappingProxyType({"fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "fp8": 2, "nvfp4": 2})
#: Those whose products of weights are in fewer than 16 bits.
NARROW = ("fp8", "nvfp4")


@dataclass(frozen=True)
class OptimizerPass:
    """One pass of the optimizer over the parameters.

    Parameters
    ----------
    kernel, operator : str
        Name of its kernel, and of the operator that launches it.
    read, written : int
        Bytes that it reads and writes for each parameter.
    lists : tuple of int
        Bytes of an element of each list of tensors that is its argument.
    """

    kernel: str
    operator: str
    read: int
    written: int
    lists: tuple[int, ...] = ()


def _adam(read: int, written: int) -> OptimizerPass:
    return OptimizerPass("multi_tensor_adam_kernel", "aten::_fused_adam_", read, written)


def _apex(name: str, read: int, written: int, lists: tuple[int, ...]) -> OptimizerPass:
    return OptimizerPass(f"multi_tensor_{name}_kernel", f"amp_C::multi_tensor_{name}", read, written, lists)


_LAMB = (
    _apex("l2norm", 4, 0, (4,)),
    _apex("lamb_stage1", 16, 12, (4, 4, 4, 4)),
    *[_apex("l2norm", 4, 0, (4,))] * 2,
    _apex("lamb_stage2", 8, 4, (4, 4)),
)
#: Passes of each optimizer by name and bytes of an element of activations: 4, or 2 with FP32 copies of the weights.
#: Adam as Megatron-LM runs it, here one pass: norm of the gradients (4), clipping (4 + 4), Adam (16 read, 12 written),
#: gradients cleared (4). With FP32 copies: gradients converted (2 + 4), checked and unscaled (4 + 4), weights converted
#: (4 + 2), 2 to clear. With moments in 8 bits (arXiv 2110.02861), 6 fewer are read and written. LAMB (arXiv 1904.00962)
#: as NVIDIA Apex runs it: norm of the gradients; moments, and the update in the gradients' place; norms of weights and
#: updates; weights. With FP32 copies, both are converted.
OPTIMIZERS: Mapping[str, Mapping[int, tuple[OptimizerPass, ...]]] = MappingProxyType(
    {
        "adam": {4: (_adam(24, 20),), 2: (_adam(31, 31),)},
        "adam8bit": {4: (_adam(18, 14),), 2: (_adam(25, 25),)},
        "lamb": {4: _LAMB, 2: (_apex("scale", 2, 4, (2, 4)), *_LAMB, _apex("scale", 4, 2, (4, 2)))},
    }
)


#: Sizes of a model that tensor-parallel ranks share.
_SHARED = ("heads", "feedforward", "hidden")


@dataclass(frozen=True)
class TrainingJob:
    """One training step of a transformer.

    Parameters
    ----------
    model : Transformer
        Sizes of the transformer.
    length : int
        Tokens of a sequence.
    global_batch, micro_batch : int
        Sequences of a step, and of a pass through a stage.
    layout : Layout
        How it is split over devices.
    recompute : bool
        Whether the forward pass of a layer is run again before its backward pass, instead of keeping activations.
    precision : str
        One of `PRECISIONS`. ``"fp16"`` and ``"bf16"`` are mixed precision, with FP32 copies of the weights (arXiv
        1710.03740); in ``"tf32"`` matrix products alone are in TF32.
    optimizer : str
        One of `OPTIMIZERS`.
    attention : str
        One of `ATTENTIONS`.
    sharding : int
        One of `SHARDINGS`: what replicas share. 3 is fully sharded data parallelism (FSDP).
    overlap_gradients : bool
        Whether replicas exchange gradients and weights beside the kernels of a step.
    adapter_rank : int
        Rank of the adapters that are trained in place of the weights (LoRA, arXiv 2106.09685); 0 trains the weights.
    selective_recompute : bool
        Whether attention's scores alone are computed again, which takes little time and the most memory off a layer
        (arXiv 2205.05198). It changes nothing of attention in one kernel, nor where all is computed again.
    offload : bool
        Whether the optimizer's states are in the memory of the host, whose CPUs update them (ZeRO-Offload, arXiv
        2101.06840).
    cuda_graphs : bool
        Whether graphs hold the calls of a micro-batch, so that no kernel waits for the host.

    Raises
    ------
    InvalidInputError
        The style, precision, optimizer, attention or sharding is unknown. Sizes are no whole numbers, below one, too
        large, or do not divide: micro-batches and replicas the batch, chunks and stages the layers, tensor-parallel
        ranks the heads, context-parallel ones the tokens, ranks that share experts the experts.

    Examples
    --------
    >>> model = Transformer("gpt", "megatron", 24, 2048, 16, 8192, 51200)
    >>> TrainingJob(model, 1024, 64, 4, Layout(2, 2, 2)).micro_batches
    8
    """

    model: Transformer
    length: int
    global_batch: int
    micro_batch: int
    layout: Layout = Layout()
    recompute: bool = False
    precision: str = "fp16"
    optimizer: str = "adam"
    attention: str = "plain"
    sharding: int = 0
    overlap_gradients: bool = False
    adapter_rank: int = 0
    selective_recompute: bool = False
    offload: bool = False
    cuda_graphs: bool = False

    def __post_init__(self) -> None:
        if self.offload and self.optimizer != "adam":
            raise InvalidInputError(f"offload of optimizer {self.optimizer!r:.40}: CPUs update by adam alone")
        if self.adapter_rank:
            checked_size("adapter_rank", self.adapter_rank)
        choices = {"precision": PRECISIONS, "optimizer": OPTIMIZERS, "attention": ATTENTIONS, "sharding": SHARDINGS}
        for name, known in choices.items():
            if getattr(self, name) not in known:
                listed = ", ".join(map(str, known))
                raise InvalidInputError(f"no {name} {getattr(self, name)!r:.40}; there are {listed}")
        if self.model.style not in TRAINED_STYLES:
            raise InvalidInputError(
                f"{self.model.name}: style {self.model.style}; styles that train here are {', '.join(TRAINED_STYLES)}"
            )
        if self.model.style == "bert" and self.layout.sequence_parallel:
            raise InvalidInputError(f"{self.model.name}: BERT has no sequence parallelism; Megatron-LM's style has")
        for name in ("length", "global_batch", "micro_batch"):
            object.__setattr__(self, name, checked_size(name, getattr(self, name)))
        layout, model = self.layout, self.model
        if self.global_batch % (self.micro_batch * layout.data):
            raise InvalidInputError(
                f"{layout.data} replicas of micro-batches of {self.micro_batch} do not divide "
                f"a batch of {self.global_batch}"
            )
        ends = 2 * layout.count_ends
        if (model.layers + ends) % (layout.pipeline * layout.chunks):
            chunks = f" of {layout.chunks} chunks" if layout.chunks > 1 else ""
            raise InvalidInputError(
                f"{layout.pipeline} stages{chunks} do not divide {model.layers} layers"
                f"{' with both ends' if ends else ''}; {divisors((model.layers + ends) // layout.chunks)} stages do"
            )
        if layout.chunks > 1 and self.micro_batches % layout.pipeline:
            raise InvalidInputError(
                f"an interleaved schedule needs a multiple of {layout.pipeline} micro-batches, not {self.micro_batches}"
            )
        if layout.pipeline * self.micro_batches > _MOST_SCHEDULED:
            raise InvalidInputError(
                f"{self.micro_batches} micro-batches through {layout.pipeline} stages; at most {_MOST_SCHEDULED:,} "
                "in all are scheduled: take a smaller batch, larger micro-batches or more replicas"
            )
        if self.element_bytes > PRECISIONS["fp16"] and (self.attention != "plain" or model.experts > 1):
            raise InvalidInputError(
                f"flash attention and experts run in 16 bits, not in {self.precision}; take fp16, bf16 or fp8"
            )
        self._check_shares()

    def _check_shares(self) -> None:
        """Raise an error if ranks do not divide what they share."""
        layout, model = self.layout, self.model
        shared = [
            ("tensor-parallel", layout.tensor, {size: getattr(model, size) for size in _SHARED}),
            ("context-parallel", layout.context, {"length": self.length}),
            ("expert-parallel", layout.expert, {"experts": model.experts}),
        ]
        for kind, ranks, sizes in shared:
            for name, size in sizes.items():
                if size % ranks:
                    raise InvalidInputError(
                        f"{ranks} {kind} ranks do not divide {name} of {size}; {divisors(size)} ranks do"
                    )

    @property
    def chunk_layers(self) -> tuple[int, ...]:
        """Layers of each chunk in order of the model: the first chunk of each stage, then the second."""
        chunks, ends = self.layout.pipeline * self.layout.chunks, 2 * self.layout.count_ends
        even = (self.model.layers + ends) // chunks
        return tuple(even - self.layout.count_ends * ((i == 0) + (i == chunks - 1)) for i in range(chunks))

    @property
    def micro_batches(self) -> int:
        """Micro-batches of a replica."""
        return self.global_batch // (self.micro_batch * self.layout.data)

    @property
    def element_bytes(self) -> int:
        """Bytes of an element of weights and activations."""
        return PRECISIONS[self.precision]

    @property
    def optimizer_passes(self) -> tuple[OptimizerPass, ...]:
        """Passes of the optimizer over the parameters, in order."""
        return OPTIMIZERS[self.optimizer][self.element_bytes]


#: Phases of inference: all tokens of the prompts at once, or one new token of each sequence.
PHASES = ("prefill", "decode")


@dataclass(frozen=True)
class InferenceJob:
    """One step of inference: the prompts of a batch, or the next token of each sequence.

    Parameters
    ----------
    model : Transformer
        Sizes of the transformer, of style ``"llama"`` or ``"megatron"``.
    phase : str
        One of `PHASES`.
    sequences, prompt : int
        Sequences of the batch, and tokens of each prompt.
    generated : int
        Tokens that each sequence has generated before this step; 0 in a prefill.
    layout : Layout
        How it is split over devices: tensor-parallel ranks, and ranks that share experts, as many as replicas.
    precision : str
        ``"fp16"``, ``"bf16"`` or ``"fp8"``.

    Raises
    ------
    InvalidInputError
        The phase, style or precision is none of these, sizes are no whole numbers or do not divide, or the layout has
        stages, context-parallel ranks or replicas beyond those that share experts.

    Examples
    --------
    >>> model = load_transformers()["llama31_8b"]
    >>> InferenceJob(model, "decode", 8, 1024, 100).keys
    1125
    """

    model: Transformer
    phase: str
    sequences: int
    prompt: int
    generated: int = 0
    layout: Layout = Layout()
    precision: str = "bf16"

    def __post_init__(self) -> None:
        choices = (("phase", PHASES), ("precision", ("fp16", "bf16", "fp8")))
        for name, known in choices:
            if (value := getattr(self, name)) not in known:
                raise InvalidInputError(f"inference has no {name} {value!r:.40}; there are {', '.join(known)}")
        if self.model.style not in ("llama", "megatron"):
            raise InvalidInputError(f"{self.model.name}: inference takes styles llama and megatron")
        for name in ("sequences", "prompt"):
            object.__setattr__(self, name, checked_size(name, getattr(self, name)))
        checked_size("generated", self.generated + 1)
        if self.phase == "prefill" and self.generated:
            raise InvalidInputError("a prefill comes before the first generated token; take phase decode")
        layout = self.layout
        if layout.pipeline * layout.context > 1 or layout.data != layout.expert:
            raise InvalidInputError(
                "inference is split over tensor-parallel ranks, and experts over as many ranks as replicas"
            )
        # Ranks divide what they share as in training.
        TrainingJob(self.model, self.prompt, layout.data, 1, layout, precision=self.precision)

    @property
    def keys(self) -> int:
        """Tokens that the last token of a sequence attends to."""
        return self.prompt + self.generated + (self.phase == "decode")

    @property
    def element_bytes(self) -> int:
        """Bytes of an element of weights and activations."""
        return PRECISIONS[self.precision]


#: Most divisors that a message lists.
_LISTED = 12


def divisors(number: int) -> str:
    """Return the divisors of a number as text, for messages; of many, the smallest.

    Examples
    --------
    >>> divisors(12)
    '1, 2, 3, 4, 6 or 12'
    """
    found = [each for each in range(1, min(number, _MOST_RANKS) + 1) if number % each == 0]
    if len(found) > _LISTED:
        return f"{', '.join(map(str, found[:_LISTED]))} ..."
    return " or ".join(filter(None, [", ".join(map(str, found[:-1])), str(found[-1])]))


#: Sizes of a job whose table names no model, and that of a model.
_DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {"name": "gpt", "style": "megatron", "layers": 24, "hidden": 2048, "heads": 16, "vocabulary": 51200}
)
_OF_MODEL = tuple(each.name for each in fields(Transformer) if each.name != "source")
_OF_LAYOUT = tuple(each.name for each in fields(Layout))
_OF_JOB = tuple(each.name for each in fields(TrainingJob) if each.name not in ("model", "layout"))
#: Keys of the flat table of a job.
SIZES = (*_OF_MODEL, *_OF_LAYOUT, *_OF_JOB)


def job_sizes(job: TrainingJob) -> dict[str, Any]:
    """Return the flat table of a job: `SIZES` and their values.

    Examples
    --------
    >>> sizes = job_sizes(training_job({"hidden": 1024, "tensor": 2}))
    >>> sizes["hidden"], sizes["feedforward"], sizes["tensor"], sizes["schedule"]
    (1024, 4096, 2, '1f1b')
    """
    parts = ((job.model, _OF_MODEL), (job.layout, _OF_LAYOUT), (job, _OF_JOB))
    return {name: getattr(part, name) for part, names in parts for name in names}


def training_job(sizes: Mapping[str, Any], models: Mapping[str, Transformer] | None = None) -> TrainingJob:
    """Return the job of a flat table.

    Parameters
    ----------
    sizes : mapping
        Values of `SIZES`. ``"model"`` names a model of `models`, whose sizes hold where the table gives none; without
        it the model is a GPT of 24 layers of 2048. A hidden size without ``"feedforward"`` takes four times that.
        Defaults of a batch: length 1024, global batch 64, micro-batch 4.
    models : mapping of str to Transformer, optional
        Models by name; by default the shipped ones.

    Raises
    ------
    NotFoundError, InvalidInputError
        A key is unknown, there is no such model, or the sizes make no job.
    """
    unknown = sorted(set(sizes) - {*SIZES, "model"})
    if unknown:
        raise InvalidInputError(str(unknown_name("a job has no size called", unknown[0], ["model", *SIZES])))
    model: dict[str, Any] = dict(_DEFAULTS)
    if "model" in sizes:
        found = find_transformer(sizes["model"], load_transformers() if models is None else models)
        model = {name: getattr(found, name) for name in _OF_MODEL}
        if found.style not in TRAINED_STYLES:
            model |= {"style": "megatron", "experts": 1}
    if "hidden" in sizes or "feedforward" not in model:
        model["feedforward"] = 4 * sizes.get("hidden", model["hidden"])
    model |= {name: sizes[name] for name in _OF_MODEL if name in sizes}
    batch: dict[str, Any] = {"length": 1024, "global_batch": 64, "micro_batch": 4}
    batch |= {name: sizes[name] for name in _OF_JOB if name in sizes}
    layout = {name: sizes[name] for name in _OF_LAYOUT if name in sizes}
    try:
        return TrainingJob(Transformer(**model), layout=Layout(**layout), **batch)
    except TypeError as error:  # such as text where a number is compared
        raise InvalidInputError(f"the sizes make no job: {error}") from error


def read_job(path: str | Path) -> TrainingJob:
    """Read a job from the table ``[job]`` of a TOML file.

    Parameters
    ----------
    path : str or Path
        File with the keys of `training_job`.

    Raises
    ------
    NotFoundError, InvalidInputError
        There is no such file, it has no such table, or the table makes no job; the message names the file.
    """
    content = read_toml(Path(path), "a job")
    table = content.get("job")
    if not isinstance(table, Mapping):
        raise InvalidInputError(
            f"{path}: no table [job]; it has sizes such as model, length, global_batch, tensor (docs/training.md)"
        )
    try:
        return training_job(table)
    except InvalidInputError as error:
        raise InvalidInputError(f"{path}: {error}") from error


def _batch_of(job: TrainingJob, data: int, micro: int) -> int:
    """Return the global batch of other replicas or micro-batches: each replica runs as many micro-batches."""
    return job.micro_batches * data * micro


def _hidden(job: TrainingJob, hidden: int) -> dict[str, Any]:
    """Heads keep their width, and the feed-forward layer its ratio."""
    model = job.model
    names = ("heads", "kv_heads", "feedforward", "expert_feedforward")
    sizes = {name: getattr(model, name) * hidden for name in names}
    for name, scaled in sizes.items():
        if scaled % model.hidden:
            raise InvalidInputError(
                f"hidden {hidden}: {name} of {getattr(model, name)} for {model.hidden} do not scale to a whole number; "
                f"take a multiple of {model.width}"
            )
    return {"hidden": hidden} | {name: scaled // model.hidden for name, scaled in sizes.items()}


#: Edits of a job by name: the sizes that change, for a new number.
EDITS: Mapping[str, Callable[[TrainingJob, int], dict[str, Any]]] = MappingProxyType(
    {
        "tensor_parallel": lambda job, ranks: {"tensor": ranks},
        "data_parallel": lambda job, ranks: {"data": ranks, "global_batch": _batch_of(job, ranks, job.micro_batch)},
        "pipeline_parallel": lambda job, stages: {"pipeline": stages},
        "expert_parallel": lambda job, ranks: {"expert": ranks},
        "context_parallel": lambda job, ranks: {"context": ranks},
        "micro_batch": lambda job, size: {"micro_batch": size, "global_batch": _batch_of(job, job.layout.data, size)},
        "sequence_length": lambda job, tokens: {"length": tokens},
        "layers": lambda job, layers: {"layers": layers},
        "hidden": _hidden,
    }
)


def edit_job(job: TrainingJob, edit: str, number: int, **others: Any) -> TrainingJob:
    """Return a job with one size changed, and what follows from it.

    Parameters
    ----------
    job : TrainingJob
        The job.
    edit : str
        One of `EDITS`. ``"data_parallel"`` and ``"micro_batch"`` keep the micro-batches of a replica, so that the
        global batch grows; ``"hidden"`` keeps the width of a head and the ratio of the feed-forward layer.
    number : int
        The new size.
    **others
        Further values of `SIZES`, such as ``schedule="interleaved", chunks=2``.

    Raises
    ------
    InvalidInputError
        There is no such edit, or the sizes make no job; the message says what does.

    Examples
    --------
    >>> job = edit_job(training_job({"hidden": 1024}), "hidden", 2048)
    >>> job.model.heads, job.model.feedforward
    (32, 8192)
    """
    if edit not in EDITS:
        raise InvalidInputError(f"no edit {edit!r:.40}; there are {', '.join(EDITS)}")
    checked_size(edit, number)
    return training_job(job_sizes(job) | EDITS[edit](job, number) | others)
