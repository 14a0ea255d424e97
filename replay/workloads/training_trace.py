"""A training step as a synthetic trace: a program of works and waits for every pipeline stage and tensor rank."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from profilers.devices.catalogue import Device
from profilers.errors import InvalidInputError
from profilers.synthetic import Collective, KernelCall, SyntheticJob, SyntheticStep, Wait, write_trace
from profilers.trace.trace import Trace
from replay.calibration.parameters import Parameters
from replay.costs.collectives import CollectiveCalibration, predict_collective
from replay.graph.operators import Operator
from replay.workloads.architecture import Step
from replay.workloads.jobs import TrainingJob
from replay.workloads.training import (
    JobLoad,
    StagePart,
    TimedStep,
    TrainingCosts,
    activation_bytes,
    host_slowdown,
    job_loads,
    one_forward_one_backward,
    stage_parts,
)
from replay.workloads.training_fits import TrainingFit

#: Kernels and collectives that a trace may have: of more, ask for fewer layers or micro-batches.
MOST_WORKS = 2_000_000
_COMPUTE, _TENSOR, _DATA, _MODEL = 7, 20, 24, 25
#: Streams of what is sent and received, by direction: neither waits for the others.
_SEND, _RECEIVE = {"forward": 26, "backward": 27}, {"forward": 28, "backward": 29}
_TILE, _BLOCK = 128, 2048
#: Type of the elements, as profilers name it, by precision.
_ELEMENTS = {"fp32": "Float", "tf32": "Float", "fp16": "Half", "bf16": "BFloat16"}
_LEAST_CALL_NS, _ENQUEUE_NS = 1_500, 2_000
_TYPES = {2: "Half", 4: "Float"}
#: By kind of operator, the kernel's name; that of a product tells its precision.
_KERNELS = {
    "matmul": "synthetic_gemm_{}_128x128",
    "batched_matmul": "synthetic_batched_gemm_{}_128x128",
    "softmax": "scaled_masked_softmax_kernel",
    "normalization": "layer_norm_kernel",
    "reduction": "reduce_kernel",
    "embedding": "embedding_kernel",
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
}
_SUMMED_IN = {"fp32": "f32", "tf32": "f32", "fp16": "f16", "bf16": "bf16"}


def training_trace(
    job: TrainingJob, device: Device, *, fit: TrainingFit, parameters: Parameters, lengths: Sequence[int] | None = None
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
    lengths = (job.length,) if lengths is None else lengths
    if not lengths:
        raise InvalidInputError("0 steps; a trace has at least one")
    programs = {
        length: _step(replace(job, length=length), device, fit.costs, parameters, len(lengths))
        for length in dict.fromkeys(lengths)
    }
    model, layout = job.model, job.layout
    description = (
        f"synthetic training of {model.name}, {model.layers} layers of {model.hidden}, "
        f"TP {layout.tensor} DP {layout.data} PP {layout.pipeline}, micro-batch {job.micro_batch}"
    )
    steps = [programs[length] for length in lengths]
    element = _ELEMENTS[job.precision]
    return write_trace(SyntheticJob(description, "training", steps, layout.devices, element, job.element_bytes), device)


def _step(job: TrainingJob, device: Device, costs: TrainingCosts, parameters: Parameters, steps: int) -> SyntheticStep:
    """Return an iteration of a job; `steps` is the number of iterations of the trace."""
    load = job_loads([job], device, parameters)[0]
    ranks = job.layout.tensor * job.layout.pipeline
    programs: list[Sequence[KernelCall | Wait]] = []
    for stage in range(job.layout.pipeline):
        parts = stage_parts(job, stage, device, parameters)
        writer = _Stage(job, stage, load, costs, device, parameters)
        works = sum(len(forward) * (1 + job.recompute) + len(backward) for _, forward, backward in parts)
        if works * job.micro_batches * ranks * steps > MOST_WORKS:
            raise InvalidInputError(
                f"{works} kernels of {job.micro_batches} micro-batches on {ranks} ranks in {steps} steps: "
                f"a trace may have {MOST_WORKS:,}; take fewer layers, micro-batches (a smaller global batch) or steps"
            )
        programs += [writer.program(parts, rank) for rank in range(job.layout.tensor)]
    name = f"iteration sequence_length={job.length} batch={job.global_batch}"
    return SyntheticStep(name, job.length, job.global_batch, programs)


@dataclass
class _Stage:
    """Writes the programs of a pipeline stage."""

    job: TrainingJob
    stage: int
    load: JobLoad
    costs: TrainingCosts
    device: Device
    parameters: Parameters

    def program(self, parts: Sequence[StagePart], rank: int) -> list[KernelCall | Wait]:
        """Return the program of one tensor rank for a step."""
        program: list[KernelCall | Wait] = []
        stages, count = self.job.layout.pipeline, self.job.micro_batches
        for way, number in one_forward_one_backward(self.stage, stages, count):
            before = self.stage - (1 if way == "forward" else -1)
            program += self._transfer(way, number, rank, source=before)
            if way == "forward":
                program.append(Wait(host_ns=self._host_ns(self.costs.micro_batch_s)))
                for _, forward, _ in parts:
                    self._steps(program, forward, self.costs.forward_call_s, f"{way} {number}")
            else:
                for name, forward, backward in reversed(parts):
                    if self.job.recompute and name == "layer":
                        self._steps(program, forward, self.costs.forward_call_s, f"again {number}")
                    self._steps(program, backward, self.costs.backward_call_s, f"{way} {number}")
            if stages > 1:
                program += [Wait(), *self._transfer(way, number, rank, source=self.stage)]
        self._close(program, rank)
        return program

    def _host_ns(self, seconds: float) -> int:
        return round(seconds * 1e9 * host_slowdown(self.load, self.costs))

    def _steps(self, program: list[KernelCall | Wait], steps: Sequence[TimedStep], call_s: float, what: str) -> None:
        """Append kernels; a collective waits for the kernel before it, and the kernel after it for the collective."""
        waited, phase = -1, "forward" if what.startswith("forward") else "backward"
        for step, seconds in steps:
            if step.collective:
                meets = f"stage {self.stage} {what} {len(program)}"
                kind = step.collective
                exchange = Collective(kind, step.operator.dims[0], f"tp{self.stage}", self.load.ranks, meets)
                calls = self._host_ns(self.costs.collective_call_s)
                waited = len(program)
                after = (waited - 1,) if waited and isinstance(program[-1], KernelCall) else ()
                program.append(self._collective(exchange, seconds, _TENSOR, calls, after))
                continue
            after = () if waited < 0 else (waited,)
            program.append(replace(self._kernel(step, seconds, self._host_ns(call_s), after), phase=phase))
            waited = -1
        if waited >= 0:  # the next works are other parts of the model, which need what was added up
            program.append(Wait(stream=_TENSOR))

    def _kernel(self, step: Step, seconds: float, host_ns: int, after: tuple[int, ...]) -> KernelCall:
        operator = step.operator
        factor = self.costs.products if operator.kind == "matmul" else self.costs.streams
        name = _KERNELS.get(operator.kind, f"{step.name.rsplit(':', 1)[-1]}_elementwise_kernel")
        op, shapes = _call(step)
        is_other = operator.element_bytes != self.job.element_bytes
        types = (_TYPES[operator.element_bytes],) * len(shapes) if is_other else ()
        return KernelCall(name.format(self.job.precision), op, max(round(1e9 * factor * seconds), 1),
                          max(host_ns, _LEAST_CALL_NS), _COMPUTE, shapes[0], _workgroups(operator), after,
                          operands=tuple(shapes[1:]), types=types)  # fmt: skip

    def _collective(
        self, exchange: Collective, seconds: float, stream: int, host_ns: int, after: tuple[int, ...] = ()
    ) -> KernelCall:
        duration = max(round(1e9 * seconds * self.costs.links), 1)
        name = _COLLECTIVES[exchange.kind].format(_SUMMED_IN[self.job.precision])
        return KernelCall(name, f"nccl:{exchange.kind}", duration,
                    max(host_ns, _LEAST_CALL_NS), stream, (exchange.elements,), 24, after, exchange)  # fmt: skip

    def _transfer(self, way: str, number: int, rank: int, *, source: int) -> list[KernelCall | Wait]:
        """Return what sends activations or gradients from stage `source` its way, or receives them; or nothing."""
        target = source + (1 if way == "forward" else -1)
        if not (min(source, target) >= 0 and max(source, target) < self.job.layout.pipeline):
            return []
        group = f"pp{rank}_{min(source, target)}_{max(source, target)}"
        meets = f"{way} {number} of {rank} from {source} to {target}"
        exchange = Collective("send_recv", activation_bytes(self.job) // self.job.element_bytes, group, 2, meets)
        op, streams = ("nccl:send", _SEND) if source == self.stage else ("nccl:recv", _RECEIVE)
        duration = max(round(1e9 * self.load.transfer_s * self.costs.links), 1)
        shape = (exchange.elements,)
        transfer = KernelCall(
            "ncclDevKernel_SendRecv", op, duration, _ENQUEUE_NS, streams[way], shape, 2, exchange=exchange
        )
        waits = [Wait(stream=streams[way], host_ns=round(1e9 * self.costs.exchange_s))]
        return [transfer, *(waits if op == "nccl:recv" else ())]

    def _close(self, program: list[KernelCall | Wait], rank: int) -> None:
        """Sum gradients over replicas, those of the embedding over two stages; agree on their norm; update."""
        job, load, last = self.job, self.load, self.job.layout.pipeline - 1
        mine = load.stages[self.stage]
        program.append(Wait())
        if job.layout.data > 1:
            exchange = Collective("all_reduce", mine.weights, f"dp{self.stage}_{rank}", job.layout.data)
            program += [self._collective(exchange, mine.reduce_s, _DATA, _ENQUEUE_NS), Wait()]
        if last > 0:
            self._agree(program, rank, last)
        call_ns = max(round(1e9 * self.costs.update_call_s), _LEAST_CALL_NS)
        size = mine.weights // mine.launches
        for update, seconds in zip(job.optimizer_passes, mine.update_s, strict=True):
            lists = (((size,),),) * len(update.lists) or ((size,),)
            call = KernelCall(update.kernel, update.operator, max(round(1e9 * seconds / mine.launches), 1), call_ns,
                              _COMPUTE, lists[0], max(size // _BLOCK, 1), operands=lists[1:],
                              types=tuple(_TYPES[each] for each in update.lists), phase="optimizer")  # fmt: skip
            program += [call] * mine.launches
        program.append(Wait(host_ns=round(1e9 * self.costs.step_s)))

    def _agree(self, program: list[KernelCall | Wait], rank: int, last: int) -> None:
        load, vocabulary = self.load, self.load.tied_elements
        if self.stage in (0, last):
            tied = Collective("all_reduce", vocabulary, f"embedding{rank}", 2, f"embedding of {rank}")
            program += [self._collective(tied, load.tied_s, _MODEL, _ENQUEUE_NS), Wait()]
        norm = Collective("all_reduce", 1, "model", self.job.layout.tensor * (last + 1), "norm")
        topology, fits = self.job.layout.topology("tensor"), self.parameters.calibration(CollectiveCalibration)
        seconds = predict_collective("all_reduce", [4.0], topology, self.device, fits).seconds[0]
        program += [self._collective(norm, float(seconds), _MODEL, _ENQUEUE_NS), Wait()]


def _call(step: Step) -> tuple[str, list[tuple[int, ...]]]:
    """Return the operator that launches a step, and the shapes of its arguments: all that it reads."""
    operator = step.operator
    dims = tuple(operator.dims)
    if operator.kind not in ("matmul", "batched_matmul"):
        forward, is_backward, _ = step.name.partition("_backward")
        name = _BACKWARD.get(forward, step.name) if is_backward else step.name
        if is_backward and forward == "aten::softmax" and operator.kind == "elementwise":
            name = "aten::mul"  # of the result and its gradient
        elements = prod(dims)
        return name, [dims] * max(int(operator.bytes_read / (elements * operator.element_bytes)), 1)
    batch, m, n, k = dims
    if operator.kind == "matmul":
        return "aten::mm", [(m, k), (k, n)]
    return "aten::bmm", [(batch, m, k), (batch, k, n)]


def _workgroups(operator: Operator) -> int:
    if operator.kind in ("matmul", "batched_matmul"):
        batch, rows, columns, _ = operator.dims
        return int(batch * -(-rows // _TILE) * -(-columns // _TILE))
    if operator.kind in ("softmax", "normalization"):
        return int(operator.dims[0])
    return max(int(operator.dims[0]) // _BLOCK, 1)
