"""A training step as a synthetic trace: a program of works and waits for every pipeline stage and tensor rank."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod

from profilers.devices.catalogue import Device
from profilers.errors import InvalidInputError
from profilers.trace.serving import PhaseTokens, ServingStep
from profilers.trace.trace import Trace
from replay.calibration.parameters import Parameters
from replay.graph.operators import Operator
from replay.workloads.architecture import Step
from replay.workloads.jobs import InferenceJob, TrainingJob
from replay.workloads.program import Collective, KernelCall, SyntheticJob, SyntheticStep, Wait
from replay.workloads.program_trace import write_trace
from replay.workloads.schedules import StagePass, schedule_order
from replay.workloads.training import (
    MATRIX_KINDS,
    PRIORS,
    JobLoad,
    JobTimer,
    StagePart,
    TimedStep,
    TrainingCosts,
    activation_bytes,
    host_slowdown,
    inference_parts,
    steps_again,
)
from replay.workloads.training_fits import TrainingFit

#: Kernels and collectives that a trace may have: of more, ask for fewer layers or micro-batches.
MOST_WORKS = 2_000_000
_COMPUTE, _DATA, _MODEL = 7, 24, 25
#: Streams of the collectives of a layer, by group of ranks.
_GROUPS = {"tensor": 20, "context": 21, "expert": 22, "gradients": 24, "experts": 23}
#: Groups of replicas, which share weights or gradients.
_REPLICAS = ("gradients", "experts")
#: Streams of what is sent and received, by direction: neither waits for the others.
_SEND, _RECEIVE = {"forward": 26, "backward": 27}, {"forward": 28, "backward": 29}
_TILE, _BLOCK = 128, 2048
#: Type of the elements, as profilers name it, by precision.
_ELEMENTS = {"fp32": "Float", "tf32": "Float", "fp16": "Half", "bf16": "BFloat16", "fp8": "BFloat16"}
_LEAST_CALL_NS, _ENQUEUE_NS = 1_500, 2_000
_TYPES = {1: "Float8_e4m3fn", 2: "Half", 4: "Float"}
#: By kind of operator, the kernel's name; that of a product tells its precision.
_KERNELS = {
    "matmul": "synthetic_gemm_{}_128x128",
    "batched_matmul": "synthetic_batched_gemm_{}_128x128",
    "softmax": "scaled_masked_softmax_kernel",
    "normalization": "layer_norm_kernel",
    "reduction": "reduce_kernel",
    "embedding": "embedding_kernel",
    "experts": "synthetic_grouped_gemm_{}_128x128",
    "quantization": "quantize_kernel",
}
#: By name of the operator, kernels whose name tells what they compute.
_NAMED = {
    "decode_attention": "flash_fwd_splitkv_kernel",
    "flash_attention": "flash_fwd_kernel",
    "flash_attention_backward": "flash_bwd_kernel",
    "rms_norm": "rms_norm_kernel",
    "rms_norm_backward": "rms_norm_backward_kernel",
}
#: PyTorch's operators of backward passes, by the operator whose gradient they compute.
_BACKWARD = {
    "aten::softmax": "aten::_softmax_backward_data",
    "aten::layer_norm": "aten::native_layer_norm_backward",
    "aten::copy_": "aten::copy_",
    "aten::div": "aten::div",
    "aten::div_": "aten::div",
    "aten::addmm": "aten::sum",
    "aten::embedding": "aten::embedding_dense_backward",
    "aten::index": "aten::index_put_",
    "aten::to": "aten::_to_copy",
}


_COLLECTIVES = {
    "all_reduce": "ncclDevKernel_AllReduce_Sum_{}_RING_LL",
    "all_gather": "ncclDevKernel_AllGather_RING_LL",
    "reduce_scatter": "ncclDevKernel_ReduceScatter_Sum_{}_RING_LL",
    "all_to_all": "ncclDevKernel_SendRecv",
    "send_recv": "ncclDevKernel_SendRecv",
}
_SUMMED_IN = {"fp32": "f32", "tf32": "f32", "fp16": "f16", "bf16": "bf16", "fp8": "bf16"}


def training_trace(
    job: TrainingJob,
    device: Device,
    *,
    fit: TrainingFit,
    parameters: Parameters,
    lengths: Sequence[int] | None = None,
    tensor_ranks: int | None = None,
) -> Trace:
    """Return the trace of training steps, on one of the replicas: they all do the same.

    Ranks are those of Megatron-LM without replicas: rank ``stage * tensor + t``. Durations are the summands of
    `predict_steps`, and a replay of the trace takes the time that it predicts.

    Parameters
    ----------
    job : TrainingJob
        Training job to write.
    device : Device
        Device that all ranks run on.
    fit : TrainingFit
        Costs of host and optimizer.
    parameters : Parameters
        With calibrations of kernels and collectives.
    lengths : sequence of int, optional
        Sequence length of each iteration; by default one iteration of the job's own length.
    tensor_ranks : int, optional
        Tensor-parallel ranks of each stage to write; by default all. They do the same, so that one stands for all.

    Raises
    ------
    InvalidInputError
        There is no step, the trace would be larger than `MOST_WORKS`, or the catalogue lacks a figure of the device.

    Examples
    --------
    >>> from profilers.devices import find_device
    >>> from replay.costs.shipped import load_parameters
    >>> from replay.workloads import Layout, Transformer, load_training
    >>> model = Transformer("gpt", "megatron", 2, 1024, 16, 4096, 51200)
    >>> job, device = TrainingJob(model, 512, 2, 1, Layout(1, 1, 2)), find_device("A100-SXM4-80GB")
    >>> trace = training_trace(job, device, fit=load_training(), parameters=load_parameters())
    >>> trace.meta.synthetic, trace.meta.ranks, trace.iterations.num_rows
    (True, (0, 1), 2)
    """
    timer = JobTimer(device, parameters)
    return write_trace(
        training_program(job, timer, fit.costs_of(job, timer.device), lengths=lengths, tensor_ranks=tensor_ranks),
        device,
    )


def training_program(
    job: TrainingJob,
    timer: JobTimer,
    costs: TrainingCosts,
    *,
    lengths: Sequence[int] | None = None,
    tensor_ranks: int | None = None,
) -> SyntheticJob:
    """Return the programs of training steps; jobs that share a timer share the times of their parts.

    Parameters
    ----------
    job : TrainingJob
        Training job to write.
    timer : JobTimer
        Times of the parts of jobs on the device.
    costs : TrainingCosts
        Costs of host and optimizer.
    lengths : sequence of int, optional
        Sequence length of each iteration; by default one iteration of the job's own length.
    tensor_ranks : int, optional
        Tensor-parallel ranks of each stage to write; by default all. They do the same, so that one stands for all.

    Raises
    ------
    InvalidInputError
        There is no step, the job has more than `MOST_WORKS` kernels, or the catalogue lacks a figure of the device.
    """
    lengths = (job.length,) if lengths is None else lengths
    if not lengths:
        raise InvalidInputError("0 steps; a trace has at least one")
    programs = {
        length: _step(replace(job, length=length), timer, costs, (len(lengths), tensor_ranks))
        for length in dict.fromkeys(lengths)
    }
    model, layout = job.model, job.layout
    description = (
        f"synthetic training of {model.name}, {model.layers} layers of {model.hidden}, "
        f"TP {layout.tensor} DP {layout.data} PP {layout.pipeline}, micro-batch {job.micro_batch}"
    )
    steps = [programs[length] for length in lengths]
    return SyntheticJob(description, "training", steps, layout.devices, _ELEMENTS[job.precision], job.element_bytes)


#: Kernels of inference take as long as each alone, and a graph calls them.
_NO_COSTS = TrainingCosts(**dict.fromkeys(PRIORS, 0.0) | {"products": 1.0, "streams": 1.0, "links": 1.0})


def inference_trace(job: InferenceJob, device: Device, *, parameters: Parameters) -> Trace:
    """Return the trace of a step of inference, with a rank for each tensor-parallel one.

    Parameters
    ----------
    job : InferenceJob
        Step to write.
    device : Device
        Device that all ranks run on.
    parameters : Parameters
        With calibrations of kernels and collectives.

    Raises
    ------
    InvalidInputError
        The catalogue lacks a figure of the device.

    Examples
    --------
    >>> from profilers.devices import find_device
    >>> from replay.costs.shipped import load_parameters
    >>> from replay.workloads import load_transformers
    >>> from replay.workloads import Layout
    >>> job = InferenceJob(load_transformers()["llama31_8b"], "decode", 8, 1024, layout=Layout(2))
    >>> inference_trace(job, find_device("H100"), parameters=load_parameters()).meta.ranks
    (0, 1)
    """
    calls, program = _CallWriter(job, _NO_COSTS), list[KernelCall | Wait]()
    for name, steps, count in inference_parts(job, device, parameters=parameters):
        for number in range(count):
            calls.steps(program, steps, 0.0, f"forward {name} {number}")
    program.append(Wait())
    model, layout = job.model, job.layout
    description = f"synthetic {job.phase} of {model.name}, {job.sequences} sequences, TP {layout.tensor}"
    tokens = job.prompt if job.phase == "prefill" else 1
    name = f"iteration sequence_length={tokens} batch={job.sequences}"
    requests = PhaseTokens.equal(job.sequences, tokens, job.keys)
    serving = ServingStep(requests) if job.phase == "prefill" else ServingStep(decode=requests)
    step = SyntheticStep(name, tokens, job.sequences, [program] * layout.tensor, requests=serving)
    element = _ELEMENTS[job.precision]
    return write_trace(
        SyntheticJob(description, "inference", [step], layout.devices, element, job.element_bytes), device
    )


def _step(job: TrainingJob, timer: JobTimer, costs: TrainingCosts, size: tuple[int, int | None]) -> SyntheticStep:
    """Return an iteration of a job; `size` is the number of iterations of the trace, and of ranks of each stage."""
    load = timer.load(job)
    steps, written = size[0], min(size[1] or job.layout.tensor, job.layout.tensor)
    ranks = written * job.layout.pipeline
    programs: list[Sequence[KernelCall | Wait]] = []
    for stage in range(job.layout.pipeline):
        chunks = [timer.stage_parts(job, stage, chunk) for chunk in range(job.layout.chunks)]
        writer = _Stage(job, stage, load, _CallWriter(job, costs, stage), costs, timer)
        works = _works(job, chunks)
        if works * job.micro_batches * ranks * steps > MOST_WORKS:
            raise InvalidInputError(
                f"{works} kernels of {job.micro_batches} micro-batches on {ranks} ranks in {steps} steps: "
                f"a trace may have {MOST_WORKS:,}; take fewer layers, micro-batches (a smaller global batch) or steps"
            )
        programs += [writer.program(chunks, rank) for rank in range(written)]
    name = f"iteration sequence_length={job.length} batch={job.global_batch}"
    return SyntheticStep(name, job.length, job.global_batch, programs)


def _works(job: TrainingJob, chunks: Sequence[Sequence[StagePart]]) -> int:
    """Return the kernels and collectives of a micro-batch on a rank, of the chunks of a stage."""
    return sum(
        len(forward) + len(steps_again(job, name, forward)) + len(backward)
        for parts in chunks
        for name, forward, backward in parts
    )


def count_works(job: TrainingJob, timer: JobTimer) -> int:
    """Return about how many kernels and collectives a step has on all ranks that `training_program` has.

    Those of the optimizer and of the exchange between stages are left out.
    """
    layout = job.layout
    stages = [
        [timer.stage_parts(job, stage, chunk) for chunk in range(layout.chunks)] for stage in range(layout.pipeline)
    ]
    return sum(_works(job, chunks) for chunks in stages) * job.micro_batches * layout.tensor


@dataclass
class _CallWriter:
    """Writes the kernels and collectives of operators; a kernel that occurs again is the same object.

    `kernels` holds the kernels of timed steps that wait for no other stream, by the step, its host time and phase. Each
    keeps its step, so that no other takes its identity.
    """

    job: TrainingJob | InferenceJob
    costs: TrainingCosts
    stage: int = 0
    kernels: dict[tuple[int, int, str], tuple[TimedStep, KernelCall]] = field(default_factory=dict)

    @property
    def overlaps(self) -> bool:
        """Whether replicas exchange gradients and weights beside kernels."""
        return isinstance(self.job, TrainingJob) and self.job.overlap_gradients

    def host_ns(self, seconds: float) -> int:
        """Return the time of calls on the host, ns."""
        return round(seconds * 1e9 * host_slowdown(self.job.layout.tensor, self.costs))

    def steps(self, program: list[KernelCall | Wait], steps: Sequence[TimedStep], call_s: float, what: str) -> None:
        """Append kernels; a collective waits for the kernel before it, and the kernel after it for the collective.

        Where a collective runs beside the kernel after it, the next kernel but one waits for both. What replicas
        exchange beside the kernels of a part is waited for by the last of them.
        """
        waited: tuple[int, ...] = ()
        beside, shared = -1, list[int]()
        phase = "forward" if what.startswith("forward") else "backward"
        host_ns, calls = self.host_ns(call_s), self.host_ns(self.costs.collective_call_s)
        for timed in steps:
            step, seconds = timed
            if step.collective:
                where = len(program)
                after = (where - 1,) if where and isinstance(program[-1], KernelCall) else ()
                call = self.collective(self._met(step, f"{what} {where}"), seconds, _GROUPS[step.group], calls, after)
                if step.group in _REPLICAS and self.overlaps:
                    program.append(replace(call, after=()))
                    shared.append(where)
                    continue
                program.append(call)
                beside, waited = (where, ()) if step.overlapped else (-1, (where,))
                continue
            kernel = self._known_kernel(timed, host_ns, phase)
            program.append(replace(kernel, after=waited) if waited else kernel)
            waited, beside = ((beside,) if beside >= 0 else ()), -1
        if shared:
            program += [Wait(stream=_GROUPS[group]) for group in _REPLICAS]
        elif steps and steps[-1][0].collective:
            program.append(Wait(stream=_GROUPS[steps[-1][0].group]))

    def _met(self, step: Step, key: str) -> Collective:
        """Return the collective of a step. Ranks of other groups than the tensor-parallel are not in the trace."""
        layout, group, elements = self.job.layout, step.group, step.operator.dims[0]
        if group == "tensor":
            return Collective(step.collective, elements, f"tp{self.stage}", layout.tensor, f"stage {self.stage} {key}")
        return Collective(step.collective, elements, f"{group}{self.stage}", layout.topology(group).n_workers)

    def _known_kernel(self, timed: TimedStep, host_ns: int, phase: str) -> KernelCall:
        key = (id(timed), host_ns, phase)
        if (known := self.kernels.get(key)) is None:
            known = self.kernels[key] = (timed, self._kernel(*timed, host_ns, phase))
        return known[1]

    def _kernel(self, step: Step, seconds: float, host_ns: int, phase: str) -> KernelCall:
        operator = step.operator
        factor = self.costs.products if operator.kind in MATRIX_KINDS else self.costs.streams
        pointwise = f"{step.name.rsplit(':', 1)[-1]}_elementwise_kernel"
        name = _NAMED.get(step.name) or _KERNELS.get(operator.kind, pointwise)
        op, shapes, values = _serving_call(step, self.job) or _call(step)
        is_other = operator.element_bytes != self.job.element_bytes
        types = (_TYPES[operator.element_bytes],) * len(shapes) if is_other else ()
        precision = "bf16" if self.job.precision == "fp8" and operator.element_bytes > 1 else self.job.precision
        return KernelCall(name.format(precision), op, max(round(1e9 * factor * seconds), 1),
                          max(host_ns, _LEAST_CALL_NS), _COMPUTE, shapes[0], _workgroups(operator),
                          operands=tuple(shapes[1:]), types=types, values=values, phase=phase)  # fmt: skip

    def collective(
        self, exchange: Collective, seconds: float, stream: int, host_ns: int, after: tuple[int, ...] = ()
    ) -> KernelCall:
        """Return the kernel of a collective."""
        duration = max(round(1e9 * seconds * self.costs.links), 1)
        name = _COLLECTIVES[exchange.kind].format(_SUMMED_IN[self.job.precision])
        return KernelCall(name, f"nccl:{exchange.kind}", duration,
                    max(host_ns, _LEAST_CALL_NS), stream, (exchange.elements,), 24, after, exchange)  # fmt: skip


@dataclass
class _Stage:
    """Writes the programs of a pipeline stage."""

    job: TrainingJob
    stage: int
    load: JobLoad
    calls: _CallWriter
    costs: TrainingCosts
    timer: JobTimer

    def program(self, chunks: Sequence[Sequence[StagePart]], rank: int) -> list[KernelCall | Wait]:
        """Return the program of one tensor rank for a step."""
        program: list[KernelCall | Wait] = []
        layout, count = self.job.layout, self.job.micro_batches
        passes = schedule_order(layout.schedule, self.stage, layout.pipeline, count, layout.chunks)
        # A stage with chunks does not wait until what it sent before has arrived, nor one for gradients that overlap.
        stream = _COMPUTE if layout.chunks > 1 or self.job.overlap_gradients else None
        last = max(i for i, each in enumerate(passes) if each.way == "backward")
        for i, each in enumerate(passes):
            program += self._transfer(each, rank, receives=True)
            if self.job.overlap_gradients and i == 0:
                program += self._shared("all_gather", rank)
            if self.job.overlap_gradients and i == last:
                program += self._shared("all_reduce" if self.job.sharding == 0 else "reduce_scatter", rank)
            if each.way == "forward":
                program.append(Wait(stream, self.calls.host_ns(self.costs.micro_batch_s / layout.chunks)))
            self._pass(program, chunks[each.chunk], each)
            if layout.pipeline > 1 and each.way != "weights":
                program += [Wait(stream), *self._transfer(each, rank, receives=False)]
        self._close(program, rank)
        return program

    def _pass(self, program: list[KernelCall | Wait], parts: Sequence[StagePart], each: StagePass) -> None:
        """Append the kernels of a micro-batch that passes a chunk."""
        what = f"{each.way} {each.micro_batch} {each.chunk}"
        is_split = self.job.layout.schedule == "zero_bubble"
        if each.way == "forward":
            for _, forward, _ in parts:
                self.calls.steps(program, forward, self.costs.forward_call_s, what)
            return
        for name, forward, backward in reversed(parts):
            if each.way == "backward" and (again := steps_again(self.job, name, forward)):
                self.calls.steps(program, again, self.costs.forward_call_s, f"again {each.micro_batch} {each.chunk}")
            if is_split:
                backward = [step for step in backward if step[0].of_weights == (each.way == "weights")]
            self.calls.steps(program, backward, self.costs.backward_call_s, what)

    def _transfer(self, each: StagePass, rank: int, *, receives: bool) -> list[KernelCall | Wait]:
        """Return what sends the result of a pass to the next stage, or receives its input; or nothing."""
        stages, way = self.job.layout.pipeline, each.way
        turn = {"forward": 1, "backward": -1}.get(way, 0)
        own = each.chunk * stages + self.stage
        source, target = (own - turn, own) if receives else (own, own + turn)
        parts = range(stages * self.job.layout.chunks)
        if not turn or stages == 1 or source not in parts or target not in parts:
            return []
        low, high = sorted((source % stages, target % stages))
        group, number = f"pp{rank}_{low}_{high}", each.micro_batch
        meets = f"{way} {number} of {rank} from {source} to {target}"
        exchange = Collective("send_recv", activation_bytes(self.job) // self.job.element_bytes, group, 2, meets)
        op, streams = ("nccl:recv", _RECEIVE) if receives else ("nccl:send", _SEND)
        duration = max(round(1e9 * self.load.transfer_s * self.costs.links), 1)
        shape = (exchange.elements,)
        transfer = KernelCall(
            "ncclDevKernel_SendRecv", op, duration, _ENQUEUE_NS, streams[way], shape, 2, exchange=exchange
        )
        waits = [Wait(stream=streams[way], host_ns=round(1e9 * self.costs.exchange_s))]
        return [transfer, *(waits if receives else ())]

    def _shared(self, kind: str, rank: int) -> list[KernelCall]:
        """Return what replicas exchange of the weights of a stage after the last micro-batch; or nothing."""
        mine, job = self.load.stages[self.stage], self.job
        seconds = mine.gather_s if kind == "all_gather" else mine.reduce_s
        if not seconds:
            return []
        exchange = Collective(kind, mine.weights, f"dp{self.stage}_{rank}", job.layout.topology("gradients").n_workers)
        return [self.calls.collective(exchange, seconds, _DATA, _ENQUEUE_NS)]

    def _close(self, program: list[KernelCall | Wait], rank: int) -> None:
        """Sum gradients over replicas, those of the embedding over two stages; agree on their norm; update; gather."""
        job, load, last = self.job, self.load, self.job.layout.pipeline - 1
        mine = load.stages[self.stage]
        program.append(Wait())
        if not job.overlap_gradients and mine.reduce_s:
            program += [*self._shared("reduce_scatter" if job.sharding else "all_reduce", rank), Wait()]
        if last > 0:
            self._agree(program, rank, last)
        call_ns = max(round(1e9 * self.costs.update_call_s), _LEAST_CALL_NS)
        size = mine.updated // mine.launches
        passes = () if job.offload else zip(job.optimizer_passes, mine.update_s, strict=True)
        if job.offload:
            program.append(Wait(host_ns=round(1e9 * mine.update_s[0])))
        for update, seconds in passes:
            lists = (((size,),),) * len(update.lists) or ((size,),)
            call = KernelCall(update.kernel, update.operator, max(round(1e9 * seconds / mine.launches), 1), call_ns,
                              _COMPUTE, lists[0], max(size // _BLOCK, 1), operands=lists[1:],
                              types=tuple(_TYPES[each] for each in update.lists), phase="optimizer")  # fmt: skip
            program += [call] * mine.launches
        if not job.overlap_gradients and mine.gather_s:
            program += [Wait(), *self._shared("all_gather", rank)]
        program.append(Wait(host_ns=round(1e9 * self.costs.step_s)))

    def _agree(self, program: list[KernelCall | Wait], rank: int, last: int) -> None:
        load, vocabulary = self.load, self.load.tied_elements
        if self.stage in (0, last) and vocabulary:
            tied = Collective("all_reduce", vocabulary, f"embedding{rank}", 2, f"embedding of {rank}")
            program += [self.calls.collective(tied, load.tied_s, _MODEL, _ENQUEUE_NS), Wait()]
        norm = Collective("all_reduce", 1, "model", self.job.layout.tensor * (last + 1), "norm")
        seconds = self.timer.collective("all_reduce", 4.0, self.job.layout.topology("tensor", self.timer.device))
        program += [self.calls.collective(norm, seconds, _MODEL, _ENQUEUE_NS), Wait()]


#: Name of an operator, shapes of its arguments, and those that are no tensors, as text.
_Call = tuple[str, list[tuple[int, ...]], tuple[str, ...]]


def _attention_call(step: Step) -> _Call:
    """Return the call of flash-attn, shapes and values of its arguments: whether it is causal, and no window.

    Queries that are not the last of all keys count as ones without a mask, over as many pairs.
    """
    sequences, queries, keys, heads, kv_heads, width, _ = step.operator.dims
    is_causal, pairs = keys == queries > 1, queries * keys - queries * (queries - 1) // 2
    asked: tuple[int, ...] = (sequences, queries, heads, width)
    cached: tuple[int, ...] = (sequences, keys if is_causal else max(-(-pairs // queries), 1), kv_heads, width)
    is_backward = step.name.endswith("_backward")
    shapes = [asked] * (1 + is_backward) + [cached] * 2
    values = (*[""] * (11 if is_backward else 5), str(is_causal), "-1")
    return f"flash_attn::_flash_attn_{'backward' if is_backward else 'forward'}", shapes, values


def _call(step: Step) -> _Call:
    """Return the operator that launches a step, and the shapes of its arguments: all that it reads."""
    operator = step.operator
    dims = tuple(operator.dims)
    if operator.kind in ("context_attention", "generation_attention"):
        return _attention_call(step)
    if operator.kind == "experts":
        tokens, hidden, wide, chosen, experts, tensor, ranks = dims[:7]
        return "aten::_grouped_mm", [(tokens * chosen // ranks, hidden), (experts // ranks, hidden, wide // tensor)], ()
    if operator.kind not in ("matmul", "batched_matmul"):
        forward, is_backward, _ = step.name.partition("_backward")
        name = _BACKWARD.get(forward, step.name) if is_backward else step.name
        if is_backward and forward == "aten::softmax" and operator.kind == "elementwise":
            name = "aten::mul"  # of the result and its gradient
        elements = prod(dims)
        return name, [dims] * max(int(operator.bytes_read / (elements * operator.element_bytes)), 1), ()
    batch, m, n, k = dims
    if operator.kind == "matmul":
        return "aten::mm", [(m, k), (k, n)], ()
    return "aten::bmm", [(batch, m, k), (batch, k, n)], ()


def _serving_call(step: Step, job: TrainingJob | InferenceJob) -> _Call | None:
    """Return the call of vLLM for a step of inference, with shapes that tell its work; None if it is PyTorch's."""
    if isinstance(job, TrainingJob):
        return None
    dims, tokens = step.operator.dims, job.sequences * (job.prompt if job.phase == "prefill" else 1)
    if step.operator.kind == "experts":
        _, hidden, inter, chosen, experts, tensor, ranks, _, gated = dims
        first, second = ((1 + gated) * inter // tensor, hidden), (hidden, inter // tensor)
        weights = [(experts // ranks, *each) for each in (first, second)]
        return "vllm::inplace_fused_experts", [(tokens, hidden), *weights, (tokens, chosen)], ()
    if step.name not in ("rms_norm", "silu_and_mul", "rotary"):
        return None
    columns = step.parameters or prod(dims) // tokens
    rows = (prod(dims) // columns, columns)
    calls: dict[str, _Call] = {
        "rms_norm": ("_C::rms_norm", [rows, rows, (columns,)], ()),
        "silu_and_mul": ("_C::silu_and_mul", [rows, (rows[0], 2 * columns)], ()),
        "rotary": ("_C::rotary_embedding", [(tokens,), rows], ()),
    }
    return calls[step.name]


def _workgroups(operator: Operator) -> int:
    if operator.kind in ("matmul", "batched_matmul"):
        batch, rows, columns, _ = operator.dims
        return int(batch * -(-rows // _TILE) * -(-columns // _TILE))
    if operator.kind in ("softmax", "normalization"):
        return int(operator.dims[0])
    if operator.kind in ("context_attention", "generation_attention"):
        sequences, queries, _, heads, *_ = operator.dims
        return int(sequences * heads * -(-queries // _TILE))
    if operator.kind == "experts":
        tokens, hidden, _, chosen, _, _, ranks, *_ = operator.dims
        return int(-(-tokens * chosen // ranks // _TILE) * -(-hidden // _TILE))
    return max(int(operator.dims[0]) // _BLOCK, 1)
