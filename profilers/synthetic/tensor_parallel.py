"""A synthetic trace of a tensor-parallel transformer.

Write the events that a profiler would write of a synthetic job.

Training steps of one tensor-parallel group, with simple modelled times: a small job to try things on.

`replay.workloads` has whole jobs. Durations here are a roofline with one efficiency each for arithmetic and for memory;
collectives are alpha-beta. Sources: Megatron tensor parallelism, four all-reduces a layer and iteration
(arXiv 2302.02825); ring all-reduce 2(n-1)a + 2(n-1)/n S/B.
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

#: Host time of parts of a call, ns: an operator before its launch, a launch, an event's record or wait; and the least
#: time from a call to the next.
_BEFORE_NS, _CALL_NS, _EVENT_NS, _LEAST_NS = 500, 500, 100, 1_500
_KINDS = ("ops", "launches", "kernels", "collectives", "syncs", "ranges", "iterations")


@dataclass
class _Book:
    """Rows by kind, and the numbers that are next."""

    rows: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: {kind: [] for kind in _KINDS})
    ids: Iterator[int] = field(default_factory=count)
    matches: dict[tuple[int, str], int] = field(default_factory=dict)
    sequence: dict[tuple[int, str], int] = field(default_factory=dict)

    def match(self, step: int, meets: str) -> int | None:
        """Return the number of a meeting; None of a work without partner."""
        return self.matches.setdefault((step, meets), len(self.matches)) if meets else None

    def next_in(self, rank: int, group: str) -> int:
        """Return how many collectives of the group a rank has had."""
        self.sequence[rank, group] = self.sequence.get((rank, group), -1) + 1
        return self.sequence[rank, group]


def write_trace(job: SyntheticJob, device: Device) -> Trace:
    """Return the trace of a job: operators, launches, kernels, collectives, waits and iterations of every rank.

    Raises
    ------
    InvalidInputError
        There is no step, a step has another number of ranks, or ranks wait for one another for ever.
    """
    counts = {len(step.programs) for step in job.steps}
    if len(counts) != 1 or 0 in counts:
        raise InvalidInputError("a synthetic job needs at least one step, and as many ranks in each")
    ranks = counts.pop()
    book, hosts = _Book(), [0] * ranks
    free: list[dict[int, int]] = [{} for _ in range(ranks)]
    for number, step in enumerate(job.steps):
        began = list(hosts)
        timings, free = run_step(step, hosts, free)
        for rank, timing in enumerate(timings):
            _Writer(job, step, number, rank, timing, book).write(began[rank])
        hosts = [timing.host_ns for timing in timings]
    tables = {kind: make_table(kind, _columns(found)) for kind, found in book.rows.items() if found}
    found = Trace(_meta(job, device, ranks), tables)
    matched = sum(row["match_id"] is not None for row in book.rows["collectives"])
    if not book.rows["collectives"]:
        return found
    return found.with_quality({"collectives": len(book.rows["collectives"]), "collectives_matched": matched})


def _columns(rows: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    return {name: [row[name] for row in rows] for name in rows[0]}


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
    """Writes one step of one rank."""

    job: SyntheticJob
    step: SyntheticStep
    number: int
    rank: int
    timing: Timing
    book: _Book
    records: dict[int, tuple[int, int]] = field(default_factory=dict)

    def write(self, began_ns: int) -> None:
        program = self.step.programs[self.rank]
        awaited = {other for item in program if isinstance(item, Work) for other in item.after}
        for position, item in enumerate(program):  # a Python loop over works, about 10 us each
            if isinstance(item, Work):
                self._work(position, item, recorded=position in awaited)
            else:
                self._wait(position, item)
        self._close(began_ns)

    def _common(self) -> dict[str, Any]:
        return {"rank": self.rank, "iteration": self.number}

    def _call(self, name: str, start_ns: int, dur_ns: int, op: int | None = None) -> int:
        """Write a call of the runtime, whose correlation is its id."""
        call = next(self.book.ids)
        self.book.rows["launches"].append(
            {**self._common(), "process": self.rank, "thread": 1, "id": call, "name": name, "start_ns": start_ns,
             "dur_ns": dur_ns, "api": "cuda_runtime", "correlation": call, "op_id": op}
        )  # fmt: skip
        return call

    def _sync(self, kind: str, call: int, start_ns: int, **columns: int | None) -> None:
        empty = dict.fromkeys(("stream", "wait_on_stream", "event_correlation"))
        self.book.rows["syncs"].append(
            {**self._common(), **empty, **columns, "id": next(self.book.ids), "name": kind, "start_ns": start_ns,
             "dur_ns": 0, "sync": kind, "device": 0, "correlation": call, "launch_id": call}
        )  # fmt: skip

    def _work(self, position: int, work: Work, *, recorded: bool) -> None:
        called = self.timing.called[position]
        op = next(self.book.ids)
        self.book.rows["ops"].append(
            {**self._common(), "process": self.rank, "thread": 1, "id": op, "name": work.op, "start_ns": called,
             "dur_ns": max(work.host_ns - 1, 1), "shapes": json.dumps([list(work.shape)], separators=(",", ":")),
             "dtypes": json.dumps([f"c10::{self.job.dtype}"])}
        )  # fmt: skip
        if work.host_ns < _LEAST_NS:
            raise InvalidInputError(f"{work.op}: a call takes {work.host_ns} ns; it must be {_LEAST_NS} or more")
        for i, other in enumerate(work.after):
            stream, record = self.records[other]
            waits = self._call("cudaStreamWaitEvent", called + i, 1)
            self._sync("Stream Wait Event", waits, called + i, stream=work.stream, wait_on_stream=stream,
                       event_correlation=record)  # fmt: skip
        launch = self._call("cudaLaunchKernel", called + _BEFORE_NS, _CALL_NS, op)
        if recorded:
            self.records[position] = (
                work.stream,
                self._call("cudaEventRecord", called + _BEFORE_NS + _CALL_NS + _EVENT_NS, _EVENT_NS),
            )
        self._kernel(position, work, op, launch)

    def _kernel(self, position: int, work: Work, op: int, launch: int) -> None:
        start, end = self.timing.started[position], self.timing.ended[position]
        kernel = next(self.book.ids)
        collective = next(self.book.ids) if work.exchange else None
        span = {**self._common(), "name": work.name, "start_ns": start, "dur_ns": end - start, "op_id": op}
        self.book.rows["kernels"].append(
            {**span, "id": kernel, "device": 0, "stream": work.stream, "correlation": launch, "launch_id": launch,
             "workgroups": work.workgroups, "workgroup_size": 256, "collective_id": collective}
        )  # fmt: skip
        if work.exchange is None:
            return
        exchange = work.exchange
        self.book.rows["collectives"].append(
            {**span, "id": collective, "kernel_id": kernel, "collective": exchange.kind,
             "elements_in": exchange.elements, "elements_out": exchange.elements, "dtype": self.job.dtype,
             "bytes": exchange.elements * self.job.element_bytes, "group_name": exchange.group,
             "group_size": exchange.size, "match_id": self.book.match(self.number, exchange.meets),
             "sequence": self.book.next_in(self.rank, exchange.group)}
        )  # fmt: skip

    def _wait(self, position: int, wait: Wait) -> None:
        called, returned = self.timing.called[position], self.timing.returned[position]
        name = "cudaDeviceSynchronize" if wait.stream is None else "cudaStreamSynchronize"
        call = self._call(name, called, max(returned - called, 1))
        if wait.stream is not None:
            self._sync("Stream Sync", call, called, stream=wait.stream)

    def _close(self, began_ns: int) -> None:
        span = {**self._common(), "name": self.step.name, "start_ns": began_ns,
                "dur_ns": self.timing.host_ns - began_ns}  # fmt: skip
        self.book.rows["ranges"].append(
            {**span, "id": next(self.book.ids), "process": self.rank, "thread": 1, "category": "user_annotation"}
        )
        self.book.rows["iterations"].append(
            {**span, "found_by": "annotation", "sequence_length": self.step.sequence_length,
             "length_found_by": "annotation", "batch": self.step.batch}
        )  # fmt: skip


_BYTES = 2  # bf16
_COMPUTE_STREAM, _TP_STREAM, _DP_STREAM = 7, 20, 24
#: Shares of the data sheet that kernels reach, of the order that models.md reports for large shapes.
_COMPUTE_EFFICIENCY, _MEMORY_EFFICIENCY, _LINK_EFFICIENCY = 0.6, 0.75, 0.7
#: Time between two calls, of a step of a ring, of the shortest kernel, and of a wait's return (ns).
_CALL_GAP_NS, _HOP_NS, _FLOOR_NS, _RETURN_NS = 5_000, 3_400, 2_000, 4_000
_TILE = 128
_JITTER = 0.02


@dataclass(frozen=True)
class TransformerJob:
    """Training steps of a transformer on the ranks of one tensor-parallel group.

    Parameters
    ----------
    layers, hidden, heads : int
    batch : int
        Sequences a step.
    sequence_lengths : sequence of int
        Padded length of each step.
    tensor_parallel : int
        Ranks, all in the trace.
    data_parallel : int
        Replicas of the group; the gradient all-reduce over them overlaps the backward pass.
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
class _Part:
    """One kernel or collective of a step, the same on every rank."""

    name: str
    op: str
    flops: float = 0.0
    bytes: float = 0.0
    workgroups: int = 1
    shape: tuple[int, ...] = ()
    stream: int = _COMPUTE_STREAM
    collective: str = ""
    waits: bool = False  #: the compute stream goes on only when this is done


def synthesize(job: TransformerJob, device: str | Device, seed: int = 0) -> Trace:
    """Return the trace of `job` on a catalogue device, linked, with iterations and collectives.

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
    """All ranks run the same, and their hosts wait for the device at the end, as a loop that reads its loss does."""
    programs: list[list[Work | Wait]] = [[] for _ in range(job.tensor_parallel)]
    computed = waited = -1
    for position, part in enumerate(_step(job, length)):
        after = computed if part.collective else waited
        for rank, program in enumerate(programs):
            jitter = _JITTER * float(random.standard_normal()) * (part.stream != _TP_STREAM)
            program.append(_work(job, part, (rank, position, after), _duration_ns(job, part, device) * (1 + jitter)))
        if not part.collective:
            computed, waited = position, -1
        elif part.waits:
            waited = position
    for program in programs:
        program.append(Wait(returns_ns=_RETURN_NS))
    return SyntheticStep(f"iteration sequence_length={length} batch={job.batch}", length, job.batch, programs)


def _work(job: TransformerJob, part: _Part, place: tuple[int, int, int], duration_ns: float) -> Work:
    rank, position, after = place
    tensor = part.stream == _TP_STREAM
    exchange = None
    if part.collective:
        group, meets = ("tp", f"tp {position}") if tensor else (f"dp{rank}", "")
        exchange = Exchange(part.collective, part.shape[0], group, _ranks(job, part), meets)
    return Work(
        part.name,
        part.op,
        max(round(duration_ns), 1),
        _CALL_GAP_NS,
        part.stream,
        part.shape,
        part.workgroups,
        () if after < 0 else (after,),
        exchange,
    )


def _ranks(job: TransformerJob, part: _Part) -> int:
    return job.data_parallel if part.stream == _DP_STREAM else job.tensor_parallel


def _gemm(op: str, m: int, n: int, k: int) -> _Part:
    moved = _BYTES * (m * k + k * n + m * n)
    groups = math.ceil(m / _TILE) * math.ceil(n / _TILE)
    return _Part(f"synthetic_gemm_bf16_{_TILE}x{_TILE}", op, 2.0 * m * n * k, moved, groups, (m, k))


def _stream_op(name: str, op: str, elements: int, passes: float) -> _Part:
    return _Part(name, op, 0.0, _BYTES * elements * passes, max(elements // 2048, 1), (elements,))


def _all_reduce(op: str, elements: int, *, stream: int, waits: bool) -> _Part:
    return _Part(
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


def _step(job: TransformerJob, length: int) -> Iterator[_Part]:
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


def _forward(job: TransformerJob, length: int) -> Iterator[_Part]:
    tokens, h, tp = length * job.batch, job.hidden, job.tensor_parallel
    yield _stream_op("layer_norm_kernel", "aten::layer_norm", tokens * h, 2)
    yield _gemm("aten::linear", tokens, 3 * h // tp, h)
    flops = 4.0 * job.batch * length * length * h / tp
    yield _Part("flash_attention_fwd", "aten::scaled_dot_product_attention", flops,
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


def _backward(job: TransformerJob, length: int) -> Iterator[_Part]:
    """Twice the arithmetic of the forward pass: gradients of inputs and of weights."""
    for work in reversed(list(_forward(job, length))):
        if work.collective or not work.flops:
            yield work
            continue
        yield work
        yield work


def _duration_ns(job: TransformerJob, work: _Part, device: Device) -> float:
    ranks = _ranks(job, work)
    if work.collective:
        hops = 2 * (ranks - 1)
        rate = device.link_bytes_per_s * _LINK_EFFICIENCY
        return hops * _HOP_NS + hops / ranks * work.bytes / rate * 1e9
    arithmetic = work.flops / (device.flops_per_s("bf16") * _COMPUTE_EFFICIENCY)
    memory = work.bytes / (device.memory_bytes_per_s * _MEMORY_EFFICIENCY)
    return max(arithmetic, memory) * 1e9 + _FLOOR_NS
