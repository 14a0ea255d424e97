"""Description of a trace: devices, steps, communication, kernels by class, copies, and the quality of the data."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profilers.errors import InvalidInputError
from profilers.trace.activity import DeviceActivity, LateRank, late_ranks, times_in_steps, times_of_recording
from profilers.trace.arrays import MISSING, Ints, integers, numbers, strings
from profilers.trace.quality import NOTE, WARNING, quality_notes
from profilers.trace.steps import StepTimes, step_times
from profilers.trace.trace import Trace, TraceMeta
from replay.from_trace import index_trace
from replay.from_trace.host_causes import HostCauses, host_causes
from replay.graph import used_devices
from seqpoint.breakdown import (
    NO_OPERATOR,
    NO_RANGE,
    PYTHON,
    KernelTime,
    host_sentence,
    host_table,
    host_text,
    host_times,
    kernels_by_name,
    kernels_text,
    operators_by_name,
    operators_text,
    ranges_by_name,
    ranges_text,
)
from seqpoint.communication import DeviceRow, communication_notes, communication_table
from seqpoint.iteration_table import IterationTable, iteration_table
from seqpoint.notebook import DataFrame, Result, Table, by_rank, counted, data_frame, table_of
from seqpoint.units import duration

#: Tables that `describe` adds.
BY = ("kernel", "operator", "range", "host")
#: Share of the steps below which devices are idle, and from which they are busy, in a verdict.
_IDLE, _BUSY = 0.5, 0.9
#: Recordings of ranks that begin further apart than this share of the time of the steps are noted.
_APART = 0.05
#: Most ranks in the table of those that others wait for; the JSON has all.
_MAX_LATE = 8
#: A step that begins later than this share of its latency after its start on the host is noted.
_LATE = 0.1
#: Smallest share of waiting that the verdict names.
_SHOWN = 0.005


@dataclass(frozen=True)
class ClassTime:
    """Number and time of the kernels of a class.

    Parameters
    ----------
    class_ : str
        Class of kernel, such as ``"gemm"``.
    kernels : int
        Number of kernels.
    time_ns : int
        Sum of their durations.
    share : float
        Share of the time of all kernels.
    """

    class_: str
    kernels: int
    time_ns: int
    share: float


@dataclass(frozen=True)
class CopyTime:
    """Number, bytes and time of the copies in a direction.

    Parameters
    ----------
    direction : str
        Direction as the profiler wrote it, such as ``"HtoD"`` or ``"memset"``; "" if it did not.
    copies : int
        Number of copies.
    bytes : int, optional
        Sum of their bytes; None if the trace has none.
    time_ns : int
        Sum of their durations.
    """

    direction: str
    copies: int
    bytes: int | None
    time_ns: int

    @property
    def bytes_per_s(self) -> float | None:
        """Bytes over time; None if either is unknown."""
        return 1e9 * self.bytes / self.time_ns if self.bytes and self.time_ns else None


@dataclass(frozen=True)
class RankSteps:
    """Steps of a device, or of a rank without a device; times in ns.

    Parameters
    ----------
    rank : int
        Rank of the steps.
    device : int, optional
        Number of the device; None for a rank without a device.
    steps : int
        Number of steps.
    elapsed_ns : int
        Sum of the step times: the time from the first completion, or the beginning, to the last.
    step_ns, latency_ns : float
        Median step time, and median latency.
    busy_ns : float, optional
        Part of the elapsed time in which at least one kernel or copy is on the device.
    """

    rank: int
    device: int | None
    steps: int
    elapsed_ns: int
    step_ns: float
    latency_ns: float
    busy_ns: float | None

    @property
    def busy_share(self) -> float | None:
        """Busy time over elapsed time."""
        return None if self.busy_ns is None else self.busy_ns / max(self.elapsed_ns, 1)


@dataclass(frozen=True)
class AllocatedMemory:
    """Memory that the framework's allocator has handed out on a device, after each change.

    Parameters
    ----------
    rank, device : int
        Rank, and number of the device.
    time_ns : array of int64, shape (n,)
        Times of the changes, ascending.
    allocated_bytes : array of int64, shape (n,)
        Bytes in use after each change.
    reserved_bytes : int
        Most bytes that the allocator held; `MISSING` if unknown.
    iteration : int, optional
        Iteration of the peak; None outside of iterations.
    """

    rank: int
    device: int
    time_ns: Ints
    allocated_bytes: Ints
    reserved_bytes: int
    iteration: int | None

    @property
    def peak_bytes(self) -> int:
        """Most bytes in use."""
        return int(self.allocated_bytes.max())

    @property
    def peak_ns(self) -> int:
        """Time from the first change to the first peak."""
        return int(self.time_ns[self.allocated_bytes.argmax()] - self.time_ns[0])

    def row(self) -> dict[str, Any]:
        """Return the peak as JSON with stable keys."""
        return {
            "rank": self.rank,
            "device": self.device,
            "changes": len(self.time_ns),
            "first_bytes": int(self.allocated_bytes[0]),
            "peak_bytes": self.peak_bytes,
            "peak_ns": self.peak_ns,
            "iteration": self.iteration,
            "reserved_bytes": None if self.reserved_bytes == MISSING else self.reserved_bytes,
        }


@dataclass(frozen=True, repr=False)
class Description(Result):
    """Description of a trace.

    Parameters
    ----------
    trace : Trace
        The trace.
    iterations : IterationTable
        Iterations of all ranks, with their statistics.
    classes : tuple of ClassTime
        Time by class of kernel in the whole recording, longest first.
    copies : tuple of CopyTime
        Copies by direction in the whole recording, longest first.
    devices : tuple of DeviceActivity
        Busy time and communication of each device, in the steps of its rank. A trace without iterations has no steps;
        then it is the whole recording.
    steps : tuple of RankSteps
        Steps of each device, or of a rank without a device.
    by : tuple of str
        Further tables to show first, of `BY`.
    memory : tuple of AllocatedMemory
        Memory in use on each device over time, of a trace whose profiler recorded it.
    host : tuple of HostCauses
        Host time of each rank in its steps, by cause; empty without a recorded host.
    """

    heading = "Trace"

    trace: Trace
    iterations: IterationTable
    classes: tuple[ClassTime, ...]
    copies: tuple[CopyTime, ...]
    devices: tuple[DeviceActivity, ...]
    steps: tuple[RankSteps, ...]
    by: tuple[str, ...] = ()
    memory: tuple[AllocatedMemory, ...] = ()
    host: tuple[HostCauses, ...] = ()

    @property
    def covers(self) -> str:
        """What the figures of devices cover: ``"steps"``, or ``"recording"`` for a trace without iterations."""
        return "steps" if self.steps else "recording"

    def table(self, by: str = "step") -> DataFrame:
        """Return a row for each rank and device, with its steps, or for what `by` names; times in ns.

        Parameters
        ----------
        by : str
            ``"step"``; ``"class"`` of kernels; ``"kernel"`` or ``"operator"`` by name, or ``"range"`` of the program,
            each with its kernels, longest first; or ``"host"``, the operators, calls and Python functions by self time.

        Raises
        ------
        InvalidInputError
            There is no such table.
        """
        if by not in _ROWS:
            raise InvalidInputError(f"by {by!r}: there is no such table; choose of {', '.join(_ROWS)}")
        rows = _ROWS[by](self)
        return data_frame([row | {"name": row["name"] or _UNNAMED[by]} for row in rows] if by in _UNNAMED else rows)

    def communication(self) -> DataFrame:
        """Return the busy time and the communication of each device; times in ns."""
        return data_frame(self.to_dict()["devices"])

    def verdict(self) -> str:
        """Return a sentence on whether hosts or devices set the pace; "" for a trace without devices or steps.

        A device that waits for other ranks is busy, but does not set the pace: that time is left out.
        """
        rows = [row for row in self.devices if self.steps and row.elapsed_ns]
        if not rows:
            return ""
        busy = [row.busy_share for row in rows]
        waiting = [(row.times.exposed_waiting_ns or 0.0) / row.elapsed_ns for row in rows]
        working = [a - b for a, b in zip(busy, waiting, strict=True)]
        shares = f"the device is busy {_range(busy)}" if len(rows) == 1 else f"devices are busy {_range(busy)}"
        apart = f" ({_range(waiting)} waiting for other ranks)" if max(waiting) >= _SHOWN else ""
        late = "; `seqpoint analyze --stragglers` shows whom the ranks wait for" if apart else ""
        unknown = any(row.times.unmatched for row in rows)
        if max(working) < _IDLE:
            cause = "the host sets the pace (its calls, its input or its waits; `seqpoint analyze` tells them apart)"
        elif min(working) >= _BUSY:
            cause = "devices set the pace, by kernels, copies, or collectives"
            cause += " that wait for other ranks" if unknown else ""
        else:
            cause = "either may hold the steps up, which a replay tells (`seqpoint advise`)"
        return f"{shares} of the steps{apart}: {cause}{late}".capitalize()

    def named_tables(self) -> dict[str, Table]:
        """Return the devices, their communication, the kernels by class, the copies and the counts of the reader."""
        where = "in the steps" if self.steps else "in the whole recording, which has no iteration"
        classes = {"class~": "{class_}", "kernels": "{kernels}", "time": "{time_ns:time}", "share %": "{share:.1%}"}
        return {
            "devices": self._steps_text() if self.steps else self._recording_text(),
            "classes": table_of("Kernels by class, whole recording", classes, self.classes),
            "communication": communication_table(f"Communication {where}", self._device_rows()),
            "late": _late_text(late_ranks(self.trace)),
            "host": host_table(self.host),
            "copies": _copies_text(self.copies),
            "memory": _memory_text(self.memory),
            "quality": quality_table(self.trace.meta, row_counts(self.trace)),
        }

    def tables(self) -> tuple[Table, ...]:
        """Return the tables that were asked for, else all that have rows; the counts of the reader come last."""
        if self.by:
            texts: Mapping[str, Callable[[], list[Table]]] = {
                "kernel": lambda: [kernels_text(self.trace)],
                "operator": lambda: [operators_text(self.trace)],
                "range": lambda: [ranges_text(self.trace)],
                "host": lambda: host_text(self.trace),
            }
            return tuple(table for name in self.by for table in texts[name]())
        named = self.named_tables()
        return tuple(table for table in named.values() if table.rows)

    def notes(self) -> list[str]:
        """Return notes on collectives whose waiting is unknown for some ranks, and on the recording."""
        notes = [*communication_notes(self._device_rows(), self.trace), *_recording_notes(self.trace)]
        notes += _begin_notes(step_times(self.trace))
        return [*notes, *cost_notes(self.trace)]

    def closing(self) -> list[str]:
        """Return warnings and notes; beside the tables that were asked for, the causes of host time."""
        quality = quality_notes(self.trace.meta.quality, row_counts(self.trace))
        told = {
            name: [
                f"{name}: {each.meaning}: {each.n:,}; {each.consequence}" for each in quality if each.severity == name
            ]
            for name in (WARNING, NOTE)
        }
        lines = [] if self.by else [*told[WARNING], *super().closing(), *told[NOTE]]
        return [*lines, *([host_sentence(self.host)] if "host" in self.by else [])]

    def device_name(self, row: DeviceActivity) -> str:
        """Return the name of a device as the profiler wrote it; "" if it did not."""
        names = {(device.rank, device.device): device.name for device in self.trace.meta.devices}
        common_name = names[min(names)] if len(set(names.values())) == 1 else ""
        return names.get((row.rank, -1 if row.device is None else row.device), common_name)

    def _device_rows(self) -> list[DeviceRow]:
        return [(row.rank, row.device, row.times) for row in self.devices]

    def _steps_text(self) -> Table:
        columns = {
            "rank": "{rank}", "device": "{device}", "steps": "{steps}", "elapsed": "{elapsed_ns:time}",
            "median step": "{step_ns:time}", "median latency": "{latency_ns:time}", "busy": "{busy_ns:time}",
            "busy %": "{busy_share:.1%}",
        }  # fmt: skip
        note = (
            "Steps add up to the elapsed time. Latency counts from the start of the iteration on the host. "
            "Busy: at least one kernel or copy is on the device."
        )
        table = table_of("Devices in the steps, each from one completion to the next", columns, self.steps, note=note)
        return by_rank(table, [row.busy_share for row in self.steps])

    def _recording_text(self) -> Table:
        columns = {
            "rank": "{rank}", "device": "{device}", "span": "{span_ns:time}", "busy": "{times.busy_ns:time}",
            "busy %": "{busy_share:.1%}",
        }  # fmt: skip
        title = "Devices in the whole recording, which has no iteration: from their first to their last work"
        return by_rank(table_of(title, columns, self.devices), [row.busy_share for row in self.devices])

    def plot(self) -> Any:
        """Return the chart of the time in kernels by class, as a HoloViews object."""
        from seqpoint.plots import class_breakdown

        return class_breakdown(self.table("class"))

    def memory_plot(self) -> Any:
        """Return the chart of the memory in use over time, as a HoloViews object.

        Raises
        ------
        InvalidInputError
            The trace has no events of memory.
        """
        from seqpoint.plots import allocated_memory

        rows = {f"rank {row.rank}, device {row.device}": row for row in self.memory}
        return allocated_memory({name: (row.time_ns, row.allocated_bytes) for name, row in rows.items()})

    def to_dict(self) -> dict[str, Any]:
        """Return what `seqpoint describe --json` prints."""
        meta, iterations = self.trace.meta, self.iterations
        ranks = iterations.rank.tolist()
        return {
            **trace_facts(meta, row_counts(self.trace)),
            "format": meta.format,
            "synthetic": meta.synthetic,
            "devices_cover": self.covers,
            "devices": [self._device_facts(row) for row in self.devices],
            "device_names": self.device_names(),
            "kernel_classes": _ROWS["class"](self),
            "late_ranks": [asdict(row) for row in late_ranks(self.trace)],
            "copies": [{**asdict(row), "bytes_per_s": row.bytes_per_s} for row in self.copies],
            "memory": [row.row() for row in self.memory],
            "host": [row.to_dict() for row in self.host],
            "iterations_per_rank": {str(rank): ranks.count(rank) for rank in sorted(set(ranks))},
            "found_by": sorted(set(iterations.found_by)),
            "steps": _ROWS["step"](self),
            "verdict": self.verdict(),
            **self._facts_by(),
            "notes": self.notes(),
        }

    def _facts_by(self) -> dict[str, Any]:
        """Return the rows of the tables by kernel, operator and range and of the host that were asked for."""
        facts: dict[str, Any] = {f"{by}s": _ROWS[by](self) for by in BY if by in self.by and by != "host"}
        if "host" in self.by:
            rows = _ROWS["host"](self)
            facts["host_operators"] = [row for row in rows if row["kind"] != PYTHON]
            facts["python_functions"] = [row for row in rows if row["kind"] == PYTHON]
        return facts

    def _device_facts(self, row: DeviceActivity) -> dict[str, Any]:
        times = {"elapsed_ns": row.elapsed_ns, "span_ns": row.span_ns, "busy_ns": row.times.busy_ns}
        counts = {"collectives": row.times.collectives, "unmatched_collectives": row.times.unmatched}
        facts = {"rank": row.rank, "device": row.device, "name": self.device_name(row), **times}
        return {**facts, "busy_share": row.busy_share, **row.times.row(), **counts}

    def device_names(self) -> list[str]:
        """Return the names of the devices that did the work."""
        return sorted({device.name for device in used_devices(self.trace) if device.name})

    def summary(self) -> list[str]:
        """Return what sets the pace, and the facts of the trace in two sentences."""
        meta, table = self.trace.meta, self.iterations
        label = " (synthetic: nobody measured these times)" if meta.synthetic else ""
        names = self.device_names() or ["not named in the trace"]
        ranks = counted(len(meta.ranks), "rank") + (f" of {meta.world_size}" if meta.world_size else "")
        found_by = ", ".join(sorted(set(table.found_by)))
        return [
            *filter(None, [self.verdict()]),
            f"{meta.format}{label}: {counted(len(meta.sources), 'file')}, {ranks}, devices: {', '.join(names)}",
            f"{counted(len(table), 'iteration')} over all ranks, found by {found_by}",
        ]


def _range(shares: Sequence[float]) -> str:
    """Return the least and the largest share in per cent."""
    low, high = (f"{100 * share:.0f}" for share in (min(shares), max(shares)))
    return f"{low} %" if low == high else f"{low} to {high} %"


def _row(row: Any) -> dict[str, Any]:
    """Return a row of a table as JSON."""
    return {name.rstrip("_"): value for name, value in asdict(row).items()}


#: Rows of a description as JSON, by what each is of.
_ROWS: Mapping[str, Callable[[Description], list[dict[str, Any]]]] = MappingProxyType(
    {
        "step": lambda shown: [{**asdict(row), "busy_share": row.busy_share} for row in shown.steps],
        "class": lambda shown: [_row(row) for row in shown.classes],
        "kernel": lambda shown: [_row(row) for row in kernels_by_name(shown.trace)],
        "operator": lambda shown: [_row(row) for row in operators_by_name(shown.trace)],
        "range": lambda shown: [_row(row) for row in ranges_by_name(shown.trace)],
        "host": lambda shown: [_row(row) for row in host_times(shown.trace)],
    }
)
#: Names of the rows of kernels without an operator or a range.
_UNNAMED: Mapping[str, str] = MappingProxyType({"operator": NO_OPERATOR, "range": NO_RANGE})


def row_counts(trace: Trace) -> dict[str, int]:
    """Return the number of rows of each table of a trace."""
    return {kind: table.num_rows for kind, table in trace.tables.items()}


def quality_table(meta: TraceMeta, rows: Mapping[str, int]) -> Table:
    """Return the counts of the reader as text, each with what follows from it, the most severe first.

    Parameters
    ----------
    meta : TraceMeta
        The meta data of the trace.
    rows : mapping of str to int
        Number of rows of each table.
    """
    notes = quality_notes(meta.quality, rows)
    cells = [(note.severity, note.count, note.n, note.meaning, f"{note.consequence}; {note.advice}") for note in notes]
    counts = {name: sum(note.severity == name for note in notes) for name in (WARNING, NOTE)}
    title = "Quality of the data: " + ", ".join(
        f"{n or 'no'} {name}{'' if n == 1 else 's'}" for name, n in counts.items()
    )
    return Table(title, ("severity~", "count~", "n", "meaning~", "what follows~"), cells, verbose=True)


def trace_facts(meta: TraceMeta, rows: Mapping[str, int]) -> dict[str, Any]:
    """Return the facts of a trace as JSON with stable keys.

    Parameters
    ----------
    meta : TraceMeta
        The meta data of the trace.
    rows : mapping of str to int
        Number of rows of each table.
    """
    return {
        "sources": list(meta.sources),
        "ranks": list(meta.ranks),
        "world_size": meta.world_size,
        "iterations": rows["iterations"],
        "events": {kind: count for kind, count in rows.items() if kind != "iterations"},
        "quality": dict(meta.quality.counts),
        "quality_notes": [asdict(note) for note in quality_notes(meta.quality, rows)],
        "fingerprint": meta.fingerprint,
        "context": list(meta.context),
    }


def describe(trace: Trace, by: Sequence[str] = ()) -> Description:
    """Return the description of a trace: devices, steps, communication, kernels by class, copies, and iterations.

    Parameters
    ----------
    trace : Trace
        The trace to describe.
    by : sequence of str
        Further tables to show first, of `BY`.

    Raises
    ------
    InvalidInputError
        There is no such table.
    """
    if unknown := [name for name in by if name not in BY]:
        raise InvalidInputError(f"by {unknown[0]!r}: there is no such table; choose of {', '.join(BY)}")
    chosen = tuple(dict.fromkeys(by))
    steps = step_times(trace).without(trace.meta.context)
    devices = times_in_steps(trace, steps) if len(steps) else times_of_recording(trace)
    asked = trace.without_context()
    tables = (iteration_table(trace), _classes(asked), _copies(asked), devices, _steps(steps, devices))
    return Description(asked, *tables, chosen, device_memory(asked), host_causes(index_trace(trace)))


def _steps(steps: StepTimes, devices: Sequence[DeviceActivity]) -> tuple[RankSteps, ...]:
    rows = []
    for rank in np.unique(steps.rank).tolist():
        of_rank = steps.rank == rank
        step, latency = float(np.median(steps.step_ns[of_rank])), float(np.median(steps.latency_ns[of_rank]))
        common = (int(of_rank.sum()), int(steps.step_ns[of_rank].sum()), step, latency)
        of_devices = [RankSteps(rank, d.device, *common, d.times.busy_ns) for d in devices if d.rank == rank]
        rows += of_devices or [RankSteps(rank, None, *common, None)]
    return tuple(rows)


def _classes(trace: Trace) -> tuple[ClassTime, ...]:
    """Return the kernels by class, longest first: sums over the kernels by name."""
    by_class: dict[str, list[KernelTime]] = {}
    for row in kernels_by_name(trace):
        by_class.setdefault(row.class_, []).append(row)
    counts = {
        name: (sum(row.kernels for row in rows), sum(row.time_ns for row in rows)) for name, rows in by_class.items()
    }
    total = max(sum(time_ns for _, time_ns in counts.values()), 1)
    classes = [ClassTime(name, count, time_ns, time_ns / total) for name, (count, time_ns) in counts.items()]
    return tuple(sorted(classes, key=lambda row: (-row.time_ns, row.class_)))


def _recording_notes(trace: Trace) -> list[str]:
    """Return a note if ranks begin to record so far apart that others may wait for the recording alone."""
    steps = step_times(trace)
    _, first, rank = np.unique(steps.rank, return_index=True, return_inverse=True)
    if len(first) < 2:
        return []
    apart_ns, elapsed_ns = int(np.ptp(steps.start_ns[first])), int(np.bincount(rank, weights=steps.step_ns).max())
    if not _APART * elapsed_ns < apart_ns < elapsed_ns:
        return []
    last = steps.rank[first[np.argmax(steps.start_ns[first])]]
    return [
        f"recordings of ranks begin up to {duration(apart_ns)} apart, that of rank {last} last: in the first "
        "collectives, ranks may wait for the recording alone"
    ]


def _begin_notes(steps: StepTimes) -> list[str]:
    """Return a note on each step that begins long after its start on the host, since its devices were busy before."""
    late = steps.begin_ns - steps.start_ns
    rows = np.flatnonzero(~steps.follows & (late > _LATE * np.maximum(steps.latency_ns, 1)))
    return [
        f"rank {steps.rank[row]}: the step of iteration {steps.iteration[row]} begins {duration(float(late[row]))} "
        "after its start on the host, when the device is free of earlier work"
        for row in rows[:_MAX_LATE].tolist()
    ]


def cost_notes(trace: Trace) -> list[str]:
    """Return a note on what the recording cost the host, if that is 5 % of its time or more."""
    from replay.costs.host import cost_facts, cost_note, recording_cost
    from replay.costs.shipped import load_parameters

    parameters = load_parameters()
    cost = recording_cost(trace, parameters)
    return [] if cost is None else [cost_note(cost_facts(cost, parameters))]


def _late_text(rows: Sequence[LateRank]) -> Table:
    columns = {
        "rank": "{rank}", "collectives started last": "{collectives}", "others wait, added up": "{waited_ns:time}",
    }  # fmt: skip
    return table_of("Ranks that others wait for, whole recording", columns, rows)


def _copies_text(copies: Sequence[CopyTime]) -> Table:
    columns = {
        "direction~": "{c.direction}", "copies": "{c.copies}", "bytes": "{c.bytes:,}", "time": "{c.time_ns:time}",
        "GB/s": "{gbps:.3g}",
    }  # fmt: skip
    rows = [
        {"c": replace(row, direction=row.direction or "unknown"), "gbps": row.bytes_per_s and row.bytes_per_s / 1e9}
        for row in copies
    ]
    return table_of("Copies by direction, whole recording", columns, rows)


def _memory_text(rows: Sequence[AllocatedMemory]) -> Table:
    columns = {
        "rank": "{rank}", "device": "{device}", "peak MiB": "{peak:,.1f}", "peak after": "{peak_ns:time}",
        "iteration": "{iteration}", "first MiB": "{first:,.1f}", "reserved MiB": "{reserved:,.1f}",
    }  # fmt: skip
    cells = [
        {"peak": each["peak_bytes"] / 2**20, "first": each["first_bytes"] / 2**20,
         "reserved": None if each["reserved_bytes"] is None else each["reserved_bytes"] / 2**20} | each
        for each in (row.row() for row in rows)
    ]  # fmt: skip
    return table_of("Memory in use on devices, by the framework's allocator", columns, cells)


#: Name of the events of memory in PyTorch's traces, and the device type of a host in them.
_MEMORY, _HOST = "[memory]", 0


def device_memory(trace: Trace) -> tuple[AllocatedMemory, ...]:
    """Return the memory in use on each device over time; nothing for a trace without such events.

    PyTorch's profiler writes an event for each change, with the total after it, if it was told to profile memory.
    Traces of 2021 and before have no totals; their events are left out.
    """
    table = trace.counters
    events = table.filter(pc.equal(table["name"].cast(pa.string()), _MEMORY))
    if not events.num_rows:
        return ()
    texts = events["args"].cast(pa.string())
    keys = ("Device Type", "Device Id", "Total Allocated", "Total Reserved")
    type_, device, allocated, reserved = (_argument(texts, key) for key in keys)
    rank, start = integers(events, "rank"), integers(events, "start_ns")
    iteration = integers(events, "iteration")
    known = (type_ != MISSING) & (type_ != _HOST) & (device != MISSING) & (allocated != MISSING)
    rows = []
    for one_rank, one_device in np.unique(np.column_stack([rank[known], device[known]]), axis=0).tolist():
        of_device = np.flatnonzero(known & (rank == one_rank) & (device == one_device))
        of_device = of_device[np.argsort(start[of_device], kind="stable")]
        at_peak = int(iteration[of_device[allocated[of_device].argmax()]])
        common = (start[of_device], allocated[of_device], int(reserved[of_device].max()))
        rows.append(AllocatedMemory(one_rank, one_device, *common, None if at_peak == MISSING else at_peak))
    return tuple(rows)


def _argument(texts: pa.ChunkedArray, key: str) -> Ints:
    """Return a whole number of the arguments of events, which are JSON; `MISSING` where there is none."""
    found = pc.extract_regex(texts, rf'"{key}": ?(?P<number>-?[0-9]{{1,18}})[,}}]')
    return numbers(pc.struct_field(found, "number").cast(pa.int64()), MISSING)


def _copies(trace: Trace) -> tuple[CopyTime, ...]:
    directions = strings(trace.copies, "direction")
    duration, size = (integers(trace.copies, name) for name in ("dur_ns", "bytes"))
    rows = []
    for direction in set(directions):
        of_direction = directions == direction
        bytes_, times = size[of_direction], duration[of_direction]
        known = bytes_ != MISSING
        total = int(bytes_[known].sum()) if known.any() else None
        rows.append(CopyTime(direction or "", int(of_direction.sum()), total, int(times[times != MISSING].sum())))
    return tuple(sorted(rows, key=lambda row: (-row.time_ns, row.direction)))
