"""Synthetic traces: the writer of their events, and a small tensor-parallel transformer to try things on.

`write_trace` writes the events that a profiler would write of a `SyntheticJob`. `synthesize` makes the job of a
`TransformerJob`: training steps on the ranks of one tensor-parallel group; `replay.workloads` has whole jobs. Durations
of kernels are a roofline with one efficiency for arithmetic and one for memory; collectives are alpha-beta. Sources:
Megatron tensor parallelism, four all-reduces in each layer and iteration (arXiv 2302.02825); ring all-reduce
2(n-1)a + 2(n-1)/n S/B.
"""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np

from profilers.devices.catalogue import Device, find_device
from profilers.errors import InvalidInputError
from profilers.synthetic.program import Exchange, SyntheticJob, SyntheticStep, Timing, Wait, Work, run_step
from profilers.trace.schema import make_table
from profilers.trace.trace import DeviceProperties, Trace, TraceMeta

#: Host time in ns of an operator before its launch, of a launch, and of the record of an event.
_OPERATOR_NS, _LAUNCH_CALL_NS, _EVENT_NS = 500, 500, 100
#: Least time from one call to the next, ns: it has to hold the three above.
_MIN_HOST_NS = 1_500
_KINDS = ("ops", "launches", "kernels", "collectives", "syncs", "ranges", "iterations")


@dataclass
class _Tables:
    """Rows of each kind of event, and the next ids."""

    rows: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: {kind: [] for kind in _KINDS})
    ids: Iterator[int] = field(default_factory=count)
    matches: dict[tuple[int, str], int] = field(default_factory=dict)
    sequence: dict[tuple[int, str], int] = field(default_factory=dict)

    def match(self, step: int, meets: str) -> int | None:
        """Return the id that all members of a collective share; None without another member."""
        return self.matches.setdefault((step, meets), len(self.matches)) if meets else None

    def next_in(self, rank: int, group: str) -> int:
        """Return the number of collectives that a rank has executed in a group."""
        self.sequence[rank, group] = self.sequence.get((rank, group), -1) + 1
        return self.sequence[rank, group]


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
    events, hosts = _Tables(), [0] * ranks
    free: list[dict[int, int]] = [{} for _ in range(ranks)]
    for number, step in enumerate(job.steps):
        began = list(hosts)
        timings, free = run_step(step, hosts, free)
        for rank, timing in enumerate(timings):
            _Writer(job, step, number, rank, timing, events).write(began[rank])
        hosts = [timing.host_ns for timing in timings]
    filled = {kind: rows for kind, rows in events.rows.items() if rows}
    tables = {kind: make_table(kind, {n: [row[n] for row in rows] for n in rows[0]}) for kind, rows in filled.items()}
    trace = Trace(_meta(job, device, ranks), tables)
    collectives = events.rows["collectives"]
    if not collectives:
        return trace
    matched = sum(row["match_id"] is not None for row in collectives)
    return trace.with_quality({"collectives": len(collectives), "collectives_matched": matched})


def _meta(job: SyntheticJob, device: Device, ranks: int) -> TraceMeta:
    return TraceMeta(
        format="synthetic",
        version=job.version,
        sources=(job.description,),
        ranks=tuple(range(ranks)),
        world_size=job.world_size,
        devices=tuple(DeviceProperties(rank, 0, device.name, device.compute_units) for rank in range(ranks)),
    )


@dataclass
class _Writer:
    """Writes the events of one step on one rank."""

    job: SyntheticJob
    step: SyntheticStep
    number: int
    rank: int
    timing: Timing
    tables: _Tables
    records: dict[int, tuple[int, int]] = field(default_factory=dict)

    def write(self, began_ns: int) -> None:
        program = self.step.programs[self.rank]
        awaited = {source for item in program if isinstance(item, Work) for source in item.after}
        for position, item in enumerate(program):  # a Python loop over kernels, about 10 us each
            if isinstance(item, Work):
                self._launch(position, item, recorded=position in awaited)
            else:
                self._wait(position, item)
        self._end_iteration(began_ns)

    def _common(self) -> dict[str, Any]:
        return {"rank": self.rank, "iteration": self.number}

    def _call(self, name: str, start_ns: int, dur_ns: int, op: int | None = None) -> int:
        """Write a call of the runtime and return its id, which is its correlation."""
        call = next(self.tables.ids)
        self.tables.rows["launches"].append(
            {**self._common(), "process": self.rank, "thread": 1, "id": call, "name": name, "start_ns": start_ns,
             "dur_ns": dur_ns, "api": "cuda_runtime", "correlation": call, "op_id": op}
        )  # fmt: skip
        return call

    def _sync(self, kind: str, call: int, start_ns: int, **columns: int | None) -> None:
        empty = dict.fromkeys(("stream", "wait_on_stream", "event_correlation"))
        self.tables.rows["syncs"].append(
            {**self._common(), **empty, **columns, "id": next(self.tables.ids), "name": kind, "start_ns": start_ns,
             "dur_ns": 0, "sync": kind, "device": 0, "correlation": call, "launch_id": call}
        )  # fmt: skip

    def _launch(self, position: int, kernel: Work, *, recorded: bool) -> None:
        """Write an operator with its waits, its launch and its kernel; `recorded`, with an event after the launch."""
        called = self.timing.called[position]
        op = next(self.tables.ids)
        self.tables.rows["ops"].append(
            {**self._common(), "process": self.rank, "thread": 1, "id": op, "name": kernel.op, "start_ns": called,
             "dur_ns": max(kernel.host_ns - 1, 1), "shapes": json.dumps([list(kernel.shape)], separators=(",", ":")),
             "dtypes": json.dumps([f"c10::{self.job.dtype}"])}
        )  # fmt: skip
        if kernel.host_ns < _MIN_HOST_NS:
            raise InvalidInputError(f"{kernel.op}: a call takes {kernel.host_ns} ns; it must be {_MIN_HOST_NS} or more")
        for i, source in enumerate(kernel.after):
            stream, record = self.records[source]
            wait = self._call("cudaStreamWaitEvent", called + i, 1)
            self._sync("Stream Wait Event", wait, called + i, stream=kernel.stream, wait_on_stream=stream,
                       event_correlation=record)  # fmt: skip
        launch = self._call("cudaLaunchKernel", called + _OPERATOR_NS, _LAUNCH_CALL_NS, op)
        if recorded:
            self.records[position] = (
                kernel.stream,
                self._call("cudaEventRecord", called + _OPERATOR_NS + _LAUNCH_CALL_NS + _EVENT_NS, _EVENT_NS),
            )
        self._kernel(position, kernel, op, launch)

    def _kernel(self, position: int, kernel: Work, op: int, launch: int) -> None:
        start, end = self.timing.started[position], self.timing.ended[position]
        kernel_id = next(self.tables.ids)
        collective = next(self.tables.ids) if kernel.exchange else None
        span = {**self._common(), "name": kernel.name, "start_ns": start, "dur_ns": end - start, "op_id": op}
        self.tables.rows["kernels"].append(
            {**span, "id": kernel_id, "device": 0, "stream": kernel.stream, "correlation": launch, "launch_id": launch,
             "workgroups": kernel.workgroups, "workgroup_size": 256, "collective_id": collective}
        )  # fmt: skip
        if kernel.exchange is None:
            return
        exchange = kernel.exchange
        self.tables.rows["collectives"].append(
            {**span, "id": collective, "kernel_id": kernel_id, "collective": exchange.kind,
             "elements_in": exchange.elements, "elements_out": exchange.elements, "dtype": self.job.dtype,
             "bytes": exchange.elements * self.job.element_bytes, "group_name": exchange.group,
             "group_size": exchange.size, "match_id": self.tables.match(self.number, exchange.meets),
             "sequence": self.tables.next_in(self.rank, exchange.group)}
        )  # fmt: skip

    def _wait(self, position: int, wait: Wait) -> None:
        called, returned = self.timing.called[position], self.timing.returned[position]
        name = "cudaDeviceSynchronize" if wait.stream is None else "cudaStreamSynchronize"
        call = self._call(name, called, max(returned - called, 1))
        if wait.stream is not None:
            self._sync("Stream Sync", call, called, stream=wait.stream)

    def _end_iteration(self, began_ns: int) -> None:
        span = {**self._common(), "name": self.step.name, "start_ns": began_ns,
                "dur_ns": self.timing.host_ns - began_ns}  # fmt: skip
        self.tables.rows["ranges"].append(
            {**span, "id": next(self.tables.ids), "process": self.rank, "thread": 1, "category": "user_annotation"}
        )
        self.tables.rows["iterations"].append(
            {**span, "found_by": "annotation", "sequence_length": self.step.sequence_length,
             "length_found_by": "annotation", "batch": self.step.batch}
        )  # fmt: skip


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

    name: str
    op: str
    flops: float = 0.0
    bytes: float = 0.0
    workgroups: int = 1
    shape: tuple[int, ...] = ()
    stream: int = _COMPUTE_STREAM
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
    programs: list[list[Work | Wait]] = [[] for _ in range(job.tensor_parallel)]
    computed = waited = -1
    for position, kernel in enumerate(_step(job, length)):
        after = computed if kernel.collective else waited
        for rank, program in enumerate(programs):
            jitter = _JITTER * float(random.standard_normal()) * (kernel.stream != _TP_STREAM)
            duration_ns = _duration_ns(job, kernel, device) * (1 + jitter)
            program.append(_work(job, kernel, (rank, position, after), duration_ns))
        if not kernel.collective:
            computed, waited = position, -1
        elif kernel.waits:
            waited = position
    for program in programs:
        program.append(Wait(returns_ns=_RETURN_NS))
    return SyntheticStep(f"iteration sequence_length={length} batch={job.batch}", length, job.batch, programs)


def _work(job: TransformerJob, kernel: _Kernel, order: tuple[int, int, int], duration_ns: float) -> Work:
    """Return a kernel for the program of a rank; `order` is the rank, its position, and the position it waits for."""
    rank, position, after = order
    exchange = None
    if kernel.collective:
        group, meets = ("tp", f"tp {position}") if kernel.stream == _TP_STREAM else (f"dp{rank}", "")
        exchange = Exchange(kernel.collective, kernel.shape[0], group, _group_size(job, kernel), meets)
    return Work(
        kernel.name,
        kernel.op,
        max(round(duration_ns), 1),
        _CALL_GAP_NS,
        kernel.stream,
        kernel.shape,
        kernel.workgroups,
        () if after < 0 else (after,),
        exchange,
    )


def _group_size(job: TransformerJob, kernel: _Kernel) -> int:
    return job.data_parallel if kernel.stream == _DP_STREAM else job.tensor_parallel


def _gemm(op: str, m: int, n: int, k: int) -> _Kernel:
    moved = _BYTES * (m * k + k * n + m * n)
    groups = math.ceil(m / _TILE) * math.ceil(n / _TILE)
    return _Kernel(f"synthetic_gemm_bf16_{_TILE}x{_TILE}", op, 2.0 * m * n * k, moved, groups, (m, k))


def _stream_op(name: str, op: str, elements: int, passes: float) -> _Kernel:
    return _Kernel(name, op, 0.0, _BYTES * elements * passes, max(elements // 2048, 1), (elements,))


def _all_reduce(op: str, elements: int, *, stream: int, waits: bool) -> _Kernel:
    return _Kernel(
        "ncclDevKernel_AllReduce_synthetic",
        op,
        0.0,
        _BYTES * elements,
        24,
        (elements,),
        stream,
        "all_reduce",
        waits,
    )


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
    yield _Kernel("flash_attention_fwd", "aten::scaled_dot_product_attention", flops,
                _BYTES * tokens * 4 * h / tp, job.batch * job.heads // tp * math.ceil(length / _TILE),
                (job.batch, length, h // tp))  # fmt: skip
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
