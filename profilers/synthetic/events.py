"""The writer of synthetic traces: the events that a profiler would write of a `SyntheticJob`.

`replay.workloads` has the jobs: training steps of transformers and of recommendation models.
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from profilers.devices.catalogue import Device
from profilers.errors import InvalidInputError
from profilers.synthetic.program import KernelCall, SyntheticJob, SyntheticStep, Timing, Wait, run_step
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
