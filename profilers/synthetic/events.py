"""Write the events that a profiler would write of a synthetic job."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from profilers.devices import Device
from profilers.errors import InvalidInputError
from profilers.schema import make_table
from profilers.synthetic.clock import Timing, run_step
from profilers.synthetic.program import SyntheticJob, SyntheticStep, Wait, Work
from profilers.trace import DeviceProperties, Trace, TraceMeta

__all__ = ["write_trace"]

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
