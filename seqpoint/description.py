"""Description of a trace: devices, steps, time by class of kernel, overlap, and the quality of the data."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from profilers.errors import InvalidInputError
from profilers.trace.arrays import MISSING, ends, integers, strings, union_length
from profilers.trace.kernels import COLLECTIVE, classify
from profilers.trace.quality import NOTE, WARNING, quality_notes
from profilers.trace.steps import busy_in_steps, step_times
from profilers.trace.trace import Trace, TraceMeta
from seqpoint.breakdown import TOP, kernels_by_name, kernels_text, operators_by_name, operators_text
from seqpoint.iteration_table import IterationTable, iteration_table
from seqpoint.notebook import DataFrame, Table, as_html, data_frame
from seqpoint.units import duration

#: Tables that `describe` adds.
BY = ("kernel", "operator")
#: Share of the steps below which devices are idle, and from which they are busy, in a verdict.
_IDLE, _BUSY = 0.5, 0.9


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
class DeviceActivity:
    """Activity of a device between its first and its last task; times in ns.

    Parameters
    ----------
    rank, device : int
        Rank, and number of its device; -1 if the trace does not number it.
    name : str
        Name as the profiler wrote it, or "".
    span_ns : int
        Time from the first start to the last end.
    busy_ns : int
        Time with at least one kernel or copy.
    communication_ns : int
        Time with at least one collective.
    exposed_ns : int
        Time with a collective and nothing else.
    """

    rank: int
    device: int
    name: str
    span_ns: int
    busy_ns: int
    communication_ns: int
    exposed_ns: int

    @property
    def overlapped_ns(self) -> int:
        """Time with a collective and another task."""
        return self.communication_ns - self.exposed_ns


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
        Part of the elapsed time in which the device has at least one kernel or copy.
    """

    rank: int
    device: int | None
    steps: int
    elapsed_ns: int
    step_ns: float
    latency_ns: float
    busy_ns: float | None


@dataclass(frozen=True)
class Description:
    """Description of a trace.

    Parameters
    ----------
    trace : Trace
        The trace.
    iterations : IterationTable
        Iterations of all ranks, with their statistics.
    classes : tuple of ClassTime
        Time by class of kernel, longest first.
    devices : tuple of DeviceActivity
        Activity of each device.
    steps : tuple of RankSteps
        Steps of each device, or of a rank without a device.
    by : tuple of str
        Further tables to show first: ``"kernel"``, ``"operator"`` or both.
    """

    trace: Trace
    iterations: IterationTable
    classes: tuple[ClassTime, ...]
    devices: tuple[DeviceActivity, ...]
    steps: tuple[RankSteps, ...]
    by: tuple[str, ...] = ()

    def table(self) -> DataFrame:
        """Return a row for each rank and device, with its steps; times in ns."""
        return data_frame([asdict(row) for row in self.steps])

    def classes_table(self) -> DataFrame:
        """Return the kernels by class, longest first; times in ns."""
        return data_frame(self.to_dict()["kernel_classes"])

    def kernels_table(self) -> DataFrame:
        """Return the kernels by name, longest total first; times in ns."""
        return data_frame([_row(row) for row in kernels_by_name(self.trace)])

    def operators_table(self) -> DataFrame:
        """Return the operators by name with the kernels that they launched, longest first; times in ns.

        The kernels without an operator have a row whose name is None.
        """
        return data_frame([_row(row) for row in operators_by_name(self.trace)])

    def tables_by(self, top: int = TOP) -> tuple[Table, ...]:
        """Return the tables by kernel or by operator that were asked for, as text.

        Parameters
        ----------
        top : int
            Most rows of each.
        """
        texts = {
            "kernel": lambda: kernels_text(kernels_by_name(self.trace), top),
            "operator": lambda: operators_text(operators_by_name(self.trace), top),
        }
        return tuple(texts[name]() for name in self.by)

    def verdict(self) -> str:
        """Return a sentence on whether hosts or devices set the pace; "" for a trace without devices or steps."""
        busy = [row.busy_ns / row.elapsed_ns for row in self.steps if row.busy_ns is not None and row.elapsed_ns]
        if not busy:
            return ""
        low, high = (f"{100 * share:.0f}" for share in (min(busy), max(busy)))
        shares = f"the device is busy {low} %" if len(busy) == 1 else f"devices are busy {low} to {high} %"
        if max(busy) < _IDLE:
            cause = "the host sets the pace (its calls, its input or its waits; `seqpoint analyze` tells them apart)"
        elif min(busy) >= _BUSY:
            cause = "devices set the pace, by kernels, copies, or collectives that wait for other ranks"
        else:
            cause = "host and devices both hold the steps up (`seqpoint analyze` shows where)"
        return f"{shares} of the steps: {cause}".capitalize()

    def tables(self) -> tuple[Table, Table, Table, Table]:
        """Return the devices, the steps, the kernels by class, and the counts of the reader, as text."""
        devices = [
            (
                row.rank,
                row.device,
                *map(duration, (row.span_ns, row.busy_ns)),
                f"{100 * row.busy_ns / max(row.span_ns, 1):.1f}",
                *map(duration, (row.communication_ns, row.exposed_ns, row.overlapped_ns)),
            )
            for row in self.devices
        ]
        steps = [
            (
                row.rank,
                "-" if row.device is None else row.device,
                row.steps,
                *map(duration, (row.elapsed_ns, row.step_ns, row.latency_ns)),
                "-" if row.busy_ns is None else f"{100 * row.busy_ns / max(row.elapsed_ns, 1):.1f}",
            )
            for row in self.steps
        ]
        classes = [(row.class_, row.kernels, duration(row.time_ns), f"{100 * row.share:.1f}") for row in self.classes]
        return (
            Table(
                "Devices",
                ("rank", "device", "span", "busy", "busy %", "communication", "exposed", "overlapped"),
                devices,
                note="Exposed: a collective and nothing else runs. Overlapped: other work runs beside it.",
            ),
            Table(
                "Steps, each from one completion to the next",
                ("rank", "device", "steps", "elapsed", "median step", "median latency", "busy %"),
                steps,
                note="Steps add up to the elapsed time. Latency counts from the start of the iteration on the host.",
            ),
            Table("Kernels by class", ("class~", "kernels", "time", "share %"), classes),
            quality_table(self.trace.meta, row_counts(self.trace)),
        )

    def plot(self) -> Any:
        """Return the chart of the time in kernels by class, as a HoloViews object."""
        from seqpoint.plots import class_breakdown

        return class_breakdown(self)

    def to_dict(self) -> dict[str, Any]:
        """Return what `seqpoint describe --json` prints."""
        meta, iterations = self.trace.meta, self.iterations
        ranks = iterations.rank.tolist()
        return {
            **trace_facts(meta, row_counts(self.trace)),
            "format": meta.format,
            "synthetic": meta.synthetic,
            "devices": [{**asdict(device), "overlapped_ns": device.overlapped_ns} for device in self.devices],
            "device_names": sorted({device.name for device in meta.devices if device.name}),
            "kernel_classes": [
                {"class": row.class_, "kernels": row.kernels, "time_ns": row.time_ns, "share": row.share}
                for row in self.classes
            ],
            "iterations_per_rank": {str(rank): ranks.count(rank) for rank in sorted(set(ranks))},
            "found_by": sorted(set(iterations.found_by)),
            "steps": [asdict(row) for row in self.steps],
            "verdict": self.verdict(),
            **({"kernels": [_row(row) for row in kernels_by_name(self.trace)]} if "kernel" in self.by else {}),
            **({"operators": [_row(row) for row in operators_by_name(self.trace)]} if "operator" in self.by else {}),
        }

    def summary(self) -> list[str]:
        """Return the facts of the trace in two sentences."""
        meta, table = self.trace.meta, self.iterations
        label = " (synthetic: nobody measured these times)" if meta.synthetic else ""
        names = sorted({device.name for device in meta.devices if device.name}) or ["not named in the trace"]
        ranks = f"{len(meta.ranks)} ranks" + (f" of {meta.world_size}" if meta.world_size else "")
        found_by = ", ".join(sorted(set(table.found_by)))
        return [
            f"{meta.format}{label}: {len(meta.sources)} files, {ranks}, devices: {', '.join(names)}",
            f"{len(table)} iterations over all ranks, found by {found_by}",
        ]

    def _repr_html_(self) -> str:
        by = {"kernel": ("Kernels by name", self.kernels_table), "operator": ("Operators", self.operators_table)}
        tables = {caption: table() for caption, table in (by[name] for name in self.by)} or {
            "Steps, each from one completion to the next": self.table(),
            "Kernels by class": self.classes_table(),
        }
        return as_html("Trace", [*self.summary(), *filter(None, [self.verdict()])], tables)


def _row(row: Any) -> dict[str, Any]:
    """Return a row of a table as JSON."""
    return {name.rstrip("_"): value for name, value in asdict(row).items()}


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
    return Table(title, ("severity~", "count~", "n", "meaning~", "what follows~"), cells)


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
    }


def describe(trace: Trace, by: Sequence[str] = ()) -> Description:
    """Return the description of a trace: devices, steps, kernels by class, and iterations.

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
    return Description(trace, iteration_table(trace), _classes(trace), _devices(trace), _steps(trace), chosen)


def _steps(trace: Trace) -> tuple[RankSteps, ...]:
    steps = step_times(trace)
    devices = busy_in_steps(trace, steps)
    rows = []
    for rank in np.unique(steps.rank).tolist():
        of_rank = steps.rank == rank
        step, latency = float(np.median(steps.step_ns[of_rank])), float(np.median(steps.latency_ns[of_rank]))
        common = (int(of_rank.sum()), int(steps.step_ns[of_rank].sum()), step, latency)
        of_devices = [RankSteps(rank, d.device, *common, d.busy_ns) for d in devices if d.rank == rank]
        rows += of_devices or [RankSteps(rank, None, *common, None)]
    return tuple(rows)


def _classes(trace: Trace) -> tuple[ClassTime, ...]:
    names = strings(trace.kernels, "name")
    class_of = {name: classify(name) for name in set(names)}
    classes = np.array([class_of[name] for name in names], dtype=object)
    duration = integers(trace.kernels, "dur_ns")
    duration = np.where(duration == MISSING, 0, duration)
    total = int(duration.sum())
    rows = []
    for class_ in set(class_of.values()):
        of_class = duration[classes == class_]
        time_ns = int(of_class.sum())
        rows.append(ClassTime(class_, len(of_class), time_ns, time_ns / total if total else 0.0))
    return tuple(sorted(rows, key=lambda row: (-row.time_ns, row.class_)))


def _devices(trace: Trace) -> tuple[DeviceActivity, ...]:
    names = {(device.rank, device.device): device.name for device in trace.meta.devices}
    distinct = {device.name for device in trace.meta.devices}
    common_name = distinct.pop() if len(distinct) == 1 else ""
    tables = (trace.kernels, trace.copies)
    ranks, devices = (np.concatenate([integers(t, column) for t in tables]) for column in ("rank", "device"))
    start = np.concatenate([integers(t, "start_ns") for t in tables])
    end = np.concatenate([ends(t) for t in tables])
    kernel_names = strings(trace.kernels, "name")
    is_collective = {name: classify(name) == COLLECTIVE for name in set(kernel_names)}
    communicates = np.zeros(len(ranks), dtype=bool)
    communicates[: len(kernel_names)] = [is_collective[name] for name in kernel_names]
    rows = []
    for rank, device in sorted(set(zip(ranks.tolist(), devices.tolist(), strict=True))):
        on_device = (ranks == rank) & (devices == device)
        number = -1 if device == MISSING else device
        activity = _activity(start[on_device], end[on_device], communicates[on_device])
        rows.append(DeviceActivity(rank, number, names.get((rank, number), common_name), *activity))
    return tuple(rows)


def _activity(
    start: npt.NDArray[np.int64], end: npt.NDArray[np.int64], communicates: npt.NDArray[np.bool_]
) -> tuple[int, int, int, int]:
    """Return the span of a device, and its busy, communication and exposed time."""
    busy = int(union_length(start, end))
    communication = int(union_length(start[communicates], end[communicates]))
    without_communication = int(union_length(start[~communicates], end[~communicates]))
    return int(end.max() - start.min()), busy, communication, busy - without_communication
