"""Synthetic traces: the writer of their events, and a small tensor-parallel transformer to try things on.

`write_trace` writes the events that a profiler would write of a `SyntheticJob`. `synthesize` makes the job of a
`TransformerJob`: training steps on the ranks of one tensor-parallel group; `replay.workloads` has whole jobs. Durations
of kernels are a roofline with one efficiency for arithmetic and one for memory; collectives are alpha-beta. Sources:
Megatron tensor parallelism, four all-reduces in each layer and iteration (arXiv 2302.02825); ring all-reduce
2(n-1)a + 2(n-1)/n S/B.
"""

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import numpy as np

from profilers.devices.catalogue import Device, find_device
from profilers.errors import InvalidInputError
from profilers.synthetic.program import Collective, KernelCall, SyntheticJob, SyntheticStep, Timing, Wait, run_step
from profilers.trace.schema import make_table
from profilers.trace.trace import DeviceProperties, Trace, TraceMeta

#: Host time in ns of an operator before its launch, of a launch, and of the record of an event.
_OPERATOR_NS, _LAUNCH_CALL_NS, _EVENT_NS = 500, 500, 100
#: Least time from one call to the next, ns: it has to hold the three above.
_MIN_HOST_NS = 1_500


@dataclass
class _EventRows:
    """Rows of each kind of event, the next id, and the numbers of collectives: across ranks, and in each group."""

    rows: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))
    ids: Iterator[int] = field(default_factory=count)
    matches: dict[tuple[int, str], int] = field(default_factory=dict)
    sequences: dict[tuple[int, str], Iterator[int]] = field(default_factory=lambda: defaultdict(count))


def write_trace(job: SyntheticJob, device: Device) -> Trace:
    """Return the trace of a job: operators, launches, kernels, collectives, waits and iterations of every rank.

    Parameters
    ----------
    job : SyntheticJob
        Programs of all ranks and steps.
    device : Device
        Device that the trace names for every rank.

    Raises
    ------
    InvalidInputError
        There is no step, a step has another number of ranks, or ranks wait for one another for ever.
    """
    counts = {len(step.programs) for step in job.steps}
    if len(counts) != 1 or 0 in counts:
        raise InvalidInputError("a synthetic job needs at least one step, and as many ranks in each")
    ranks = counts.pop()
    events, hosts = _EventRows(), [0] * ranks
    free: list[dict[int, int]] = [{} for _ in range(ranks)]
    for number, step in enumerate(job.steps):
        timings, free_after = run_step(step, hosts, free)
        for rank, timing in enumerate(timings):
            _Writer(job, step, number, rank, timing, events).write(hosts[rank])
        hosts, free = [timing.host_ns for timing in timings], free_after
    tables = {
        kind: make_table(kind, {name: [row.get(name) for row in rows] for name in set().union(*rows)})
        for kind, rows in events.rows.items()
    }
    meta = TraceMeta(
        format="synthetic",
        version=job.version,
        sources=(job.description,),
        ranks=tuple(range(ranks)),
        world_size=job.world_size,
        devices=tuple(DeviceProperties(rank, 0, device.name, device.compute_units) for rank in range(ranks)),
    )
    collectives = events.rows["collectives"]
    matched = sum(row["match_id"] is not None for row in collectives)
    return Trace(meta, tables).with_quality({"collectives": len(collectives), "collectives_matched": matched})


@dataclass
class _Writer:
    """Writes the events of one step on one rank."""

    job: SyntheticJob
    step: SyntheticStep
    number: int
    rank: int
    timing: Timing
    events: _EventRows
    records: dict[int, tuple[int, int]] = field(default_factory=dict)

    def write(self, start_ns: int) -> None:
        program = self.step.programs[self.rank]
        awaited = {source for item in program if isinstance(item, KernelCall) for source in item.after}
        for position, item in enumerate(program):  # a Python loop over kernels, about 10 us each
            if isinstance(item, KernelCall):
                self._launch(position, item, recorded=position in awaited)
            else:
                self._wait(position, item)
        span = {"name": self.step.name, "start_ns": start_ns, "dur_ns": self.timing.host_ns - start_ns}
        self._add("ranges", {**span, **self._thread(), "category": "user_annotation"})
        tokens = {"sequence_length": self.step.sequence_length, "batch": self.step.batch}
        self._add("iterations", {**span, **tokens, "found_by": "annotation", "length_found_by": "annotation"})

    def _add(self, kind: str, columns: Mapping[str, Any]) -> None:
        """Add an event of this step and rank."""
        self.events.rows[kind].append({"rank": self.rank, "iteration": self.number, **columns})

    def _thread(self) -> dict[str, int]:
        """Return the columns of the thread that makes all calls, and the id of its next event."""
        return {"process": self.rank, "thread": 1, "id": next(self.events.ids)}

    def _call(self, name: str, start_ns: int, dur_ns: int, op: int | None = None) -> int:
        """Write a call of the runtime and return its id, which is its correlation."""
        thread = self._thread()
        call = {"name": name, "start_ns": start_ns, "dur_ns": dur_ns, "api": "cuda_runtime", "op_id": op}
        self._add("launches", {**thread, **call, "correlation": thread["id"]})
        return thread["id"]

    def _sync(self, kind: str, call: int, start_ns: int, **columns: int) -> None:
        wait = {"id": next(self.events.ids), "name": kind, "start_ns": start_ns, "dur_ns": 0, "sync": kind, "device": 0}
        self._add("syncs", {**wait, **columns, "correlation": call, "launch_id": call})

    def _launch(self, position: int, kernel: KernelCall, *, recorded: bool) -> None:
        """Write an operator with its waits, its launch and its kernel; `recorded`, with an event after the launch."""
        if kernel.host_ns < _MIN_HOST_NS:
            raise InvalidInputError(f"{kernel.op}: a call takes {kernel.host_ns} ns; it must be {_MIN_HOST_NS} or more")
        called, thread = self.timing.called[position], self._thread()
        span = {"name": kernel.op, "start_ns": called, "dur_ns": max(kernel.host_ns - 1, 1)}
        shapes = [list(shape) for shape in (kernel.shape, *kernel.operands)]
        types = ["float" if self.job.dtype == "Float" else f"c10::{self.job.dtype}"] * len(shapes)
        arguments = {"shapes": json.dumps(shapes, separators=(",", ":")), "dtypes": json.dumps(types)}
        self._add("ops", {**thread, **span, **arguments})
        for i, source in enumerate(kernel.after):
            stream, record = self.records[source]
            wait = self._call("cudaStreamWaitEvent", called + i, 1)
            streams = {"stream": kernel.stream, "wait_on_stream": stream, "event_correlation": record}
            self._sync("Stream Wait Event", wait, called + i, **streams)
        launch = self._call("cudaLaunchKernel", called + _OPERATOR_NS, _LAUNCH_CALL_NS, thread["id"])
        if recorded:
            record_ns = called + _OPERATOR_NS + _LAUNCH_CALL_NS + _EVENT_NS
            self.records[position] = kernel.stream, self._call("cudaEventRecord", record_ns, _EVENT_NS)
        self._kernel(position, kernel, thread["id"], launch)

    def _kernel(self, position: int, kernel: KernelCall, op: int, launch: int) -> None:
        start, end = self.timing.started[position], self.timing.ended[position]
        kernel_id = next(self.events.ids)
        collective = next(self.events.ids) if kernel.exchange else None
        span = {"name": kernel.name, "start_ns": start, "dur_ns": end - start, "op_id": op}
        stream = {"device": 0, "stream": kernel.stream, "correlation": launch, "launch_id": launch}
        size = {"workgroups": kernel.workgroups, "workgroup_size": 256}
        self._add("kernels", {**span, **stream, **size, "id": kernel_id, "collective_id": collective})
        if kernel.exchange is None:
            return
        exchange, key = kernel.exchange, (self.number, kernel.exchange.meets)
        match = self.events.matches.setdefault(key, len(self.events.matches)) if exchange.meets else None
        self._add(
            "collectives",
            {**span, "id": collective, "kernel_id": kernel_id, "collective": exchange.kind,
             "elements_in": exchange.elements, "elements_out": exchange.elements, "dtype": self.job.dtype,
             "bytes": exchange.elements * self.job.element_bytes, "group_name": exchange.group,
             "group_size": exchange.size, "match_id": match,
             "sequence": next(self.events.sequences[self.rank, exchange.group])},
        )  # fmt: skip

    def _wait(self, position: int, wait: Wait) -> None:
        called, returned = self.timing.called[position], self.timing.returned[position]
        name = "cudaDeviceSynchronize" if wait.stream is None else "cudaStreamSynchronize"
        call = self._call(name, called, max(returned - called, 1))
        if wait.stream is not None:
            self._sync("Stream Sync", call, called, stream=wait.stream)


_BYTES = 2  # bf16
_COMPUTE_STREAM, _TP_STREAM, _DP_STREAM = 7, 20, 24
#: Shares of the data sheet's figures that kernels reach, typical of large shapes.
_COMPUTE_EFFICIENCY, _MEMORY_EFFICIENCY, _LINK_EFFICIENCY = 0.6, 0.75, 0.7
#: Times in ns: from one call to the next, one hop of a ring, the shortest kernel, and the return of a wait.
_CALL_GAP_NS, _HOP_NS, _FLOOR_NS, _RETURN_NS = 5_000, 3_400, 2_000, 4_000
_TILE = 128
_JITTER = 0.02


@dataclass(frozen=True)
class TransformerJob:
    """Training steps of a transformer on the ranks of one tensor-parallel group.

    Parameters
    ----------
    layers, hidden, heads : int
        Layers, hidden size and attention heads of the model.
    batch : int
        Sequences of a step.
    sequence_lengths : sequence of int
        Padded sequence length of each step, tokens.
    tensor_parallel : int
        Ranks of the tensor-parallel group, which are all in the trace.
    data_parallel : int
        Replicas of the group; their gradient all-reduce overlaps the backward pass.
    """

    layers: int = 12
    hidden: int = 4096
    heads: int = 32
    batch: int = 2
    sequence_lengths: Sequence[int] = (1024, 2048, 1536, 1024, 512, 2048)
    tensor_parallel: int = 4
    data_parallel: int = 8

    def __post_init__(self) -> None:
        sizes = (self.layers, self.hidden, self.heads, self.batch, self.tensor_parallel, self.data_parallel)
        if not self.sequence_lengths or min(*sizes, *self.sequence_lengths) < 1:
            raise InvalidInputError(f"a job needs at least one step and sizes of one or more, not {self}")
        if self.hidden % self.tensor_parallel or self.heads % self.tensor_parallel:
            raise InvalidInputError(
                f"{self.heads} heads of hidden size {self.hidden} do not divide among {self.tensor_parallel} ranks"
            )


@dataclass(frozen=True)
class _Kernel:
    """A kernel or collective of a step, the same on every rank."""

    launch: KernelCall
    flops: float = 0.0
    bytes: float = 0.0
    collective: str = ""
    waits: bool = False  #: whether the compute stream waits for it


def synthesize(job: TransformerJob, device: str | Device, seed: int = 0) -> Trace:
    """Return the trace of `job` on a device, linked, with iterations and collectives.

    Parameters
    ----------
    job : TransformerJob
        Sizes of the model, and its parallelism.
    device : str or Device
        Name in the device catalogue, or a device.
    seed : int
        Seed of the jitter of kernel durations.

    Raises
    ------
    NotFoundError, InvalidInputError
        The device is unknown, or lacks a figure that is needed.

    Examples
    --------
    >>> job = TransformerJob(layers=1, sequence_lengths=(128,))
    >>> synthesize(job, "MI300X").meta.synthetic
    True
    """
    target = find_device(device) if isinstance(device, str) else device
    random = np.random.default_rng(seed)
    steps = [_iteration(job, length, target, random) for length in job.sequence_lengths]
    description = f"synthetic transformer, {job.layers} layers of {job.hidden}, TP {job.tensor_parallel}"
    world = job.tensor_parallel * job.data_parallel
    return write_trace(SyntheticJob(description, f"seed {seed}", steps, world), target)


def _iteration(job: TransformerJob, length: int, device: Device, random: np.random.Generator) -> SyntheticStep:
    """Return a step in which all ranks do the same, and hosts wait for the device at the end to read the loss."""
    programs: list[list[KernelCall | Wait]] = [[] for _ in range(job.tensor_parallel)]
    computed = waited = -1
    for position, kernel in enumerate(_step(job, length)):
        after = computed if kernel.collective else waited
        for rank, program in enumerate(programs):
            jitter = _JITTER * float(random.standard_normal()) * (kernel.launch.stream != _TP_STREAM)
            duration_ns = _duration_ns(job, kernel, device) * (1 + jitter)
            program.append(_work(job, kernel, (rank, position, after), duration_ns))
        if not kernel.collective:
            computed, waited = position, -1
        elif kernel.waits:
            waited = position
    for program in programs:
        program.append(Wait(returns_ns=_RETURN_NS))
    return SyntheticStep(f"iteration sequence_length={length} batch={job.batch}", length, job.batch, programs)


def _work(job: TransformerJob, kernel: _Kernel, order: tuple[int, int, int], duration_ns: float) -> KernelCall:
    """Return a kernel for the program of a rank; `order` is the rank, its position, and the position it waits for."""
    rank, position, after = order
    exchange = None
    if kernel.collective:
        group, meets = ("tp", f"tp {position}") if kernel.launch.stream == _TP_STREAM else (f"dp{rank}", "")
        exchange = Collective(kernel.collective, kernel.launch.shape[0], group, _group_size(job, kernel), meets)
    duration = max(round(duration_ns), 1)
    return replace(kernel.launch, duration_ns=duration, after=() if after < 0 else (after,), exchange=exchange)


def _group_size(job: TransformerJob, kernel: _Kernel) -> int:
    return job.data_parallel if kernel.launch.stream == _DP_STREAM else job.tensor_parallel


def _kernel(name: str, op: str, workgroups: int, shape: tuple[int, ...], stream: int = _COMPUTE_STREAM) -> KernelCall:
    """Return a kernel whose duration is not known yet."""
    return KernelCall(name, op, 0, _CALL_GAP_NS, stream, shape, workgroups)


def _gemm(op: str, m: int, n: int, k: int) -> _Kernel:
    workgroups = math.ceil(m / _TILE) * math.ceil(n / _TILE)
    launch = _kernel(f"synthetic_gemm_bf16_{_TILE}x{_TILE}", op, workgroups, (m, k))
    return _Kernel(launch, 2.0 * m * n * k, _BYTES * (m * k + k * n + m * n))


def _stream_op(name: str, op: str, elements: int, passes: float) -> _Kernel:
    return _Kernel(_kernel(name, op, max(elements // 2048, 1), (elements,)), 0.0, _BYTES * elements * passes)


def _all_reduce(op: str, elements: int, *, stream: int, waits: bool) -> _Kernel:
    launch = _kernel("ncclDevKernel_AllReduce_synthetic", op, 24, (elements,), stream)
    return _Kernel(launch, 0.0, _BYTES * elements, "all_reduce", waits)


def _step(job: TransformerJob, length: int) -> Iterator[_Kernel]:
    tokens, h, tp = length * job.batch, job.hidden, job.tensor_parallel
    yield _stream_op("embedding_kernel", "aten::embedding", tokens * h, 2)
    for _ in range(job.layers):
        yield from _forward(job, length)
    for _ in range(job.layers):
        yield from _backward(job, length)
        if job.data_parallel > 1:
            yield _all_reduce("gradients", 12 * h * h // tp, stream=_DP_STREAM, waits=False)
    parameters = job.layers * 12 * h * h // tp
    yield _stream_op("multi_tensor_adam_kernel", "aten::_fused_adam_", parameters, 14)


def _forward(job: TransformerJob, length: int) -> Iterator[_Kernel]:
    tokens, h, tp = length * job.batch, job.hidden, job.tensor_parallel
    yield _stream_op("layer_norm_kernel", "aten::layer_norm", tokens * h, 2)
    yield _gemm("aten::linear", tokens, 3 * h // tp, h)
    flops = 4.0 * job.batch * length * length * h / tp
    workgroups, shape = job.batch * job.heads // tp * math.ceil(length / _TILE), (job.batch, length, h // tp)
    attention = _kernel("flash_attention_fwd", "aten::scaled_dot_product_attention", workgroups, shape)
    yield _Kernel(attention, flops, _BYTES * tokens * 4 * h / tp)
    yield _gemm("aten::linear", tokens, h, h // tp)
    yield _all_reduce("tensor parallel", tokens * h, stream=_TP_STREAM, waits=True)
    yield _stream_op("layer_norm_kernel", "aten::layer_norm", tokens * h, 3)
    yield _gemm("aten::linear", tokens, 4 * h // tp, h)
    yield _stream_op("gelu_elementwise_kernel", "aten::gelu", tokens * 4 * h // tp, 2)
    yield _gemm("aten::linear", tokens, h, 4 * h // tp)
    yield _all_reduce("tensor parallel", tokens * h, stream=_TP_STREAM, waits=True)
    yield _stream_op("add_elementwise_kernel", "aten::add", tokens * h, 3)


def _backward(job: TransformerJob, length: int) -> Iterator[_Kernel]:
    """Yield the backward pass of a layer: products run twice, for the gradients of inputs and of weights."""
    for kernel in reversed(list(_forward(job, length))):
        yield kernel
        if kernel.flops and not kernel.collective:
            yield kernel


def _duration_ns(job: TransformerJob, kernel: _Kernel, device: Device) -> float:
    ranks = _group_size(job, kernel)
    if kernel.collective:
        hops = 2 * (ranks - 1)
        rate = device.link_bytes_per_s * _LINK_EFFICIENCY
        return hops * _HOP_NS + hops / ranks * kernel.bytes / rate * 1e9
    arithmetic = kernel.flops / (device.flops_per_s("bf16") * _COMPUTE_EFFICIENCY)
    memory = kernel.bytes / (device.memory_bytes_per_s * _MEMORY_EFFICIENCY)
    return max(arithmetic, memory) * 1e9 + _FLOOR_NS
