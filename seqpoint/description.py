"""What is in a trace: devices, iterations, where the time goes, and what the trace can be trusted for."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from profilers.trace.arrays import MISSING, ends, integers, strings, union_length
from profilers.trace.kernels import COLLECTIVE, classify
from profilers.trace.steps import busy_in_steps, step_times
from profilers.trace.trace import Trace, TraceMeta
from seqpoint.iteration_table import IterationTable, iteration_table
from seqpoint.notebook import as_html

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class ClassTime:
    """Kernels of one class: how many, and their time in ns, summed."""

    class_: str
    kernels: int
    time_ns: int
    share: float


@dataclass(frozen=True)
class DeviceActivity:
    """What one device did between its first and its last work; times in ns.

    Parameters
    ----------
    rank, device : int
    name : str
        As the profiler wrote it; "" where it did not.
    span_ns : int
        From the first start to the last end.
    busy_ns : int
        With at least one kernel or copy.
    communication_ns : int
        With at least one collective.
    exposed_ns : int
        With a collective and nothing else.
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
        """With a collective and other work beside it."""
        return self.communication_ns - self.exposed_ns


@dataclass(frozen=True)
class RankSteps:
    """The steps of one device, or of a rank without one; times in ns.

    Parameters
    ----------
    rank : int
    device : int, optional
        None for a rank without a device.
    steps : int
    elapsed_ns : int
        The step times added up: the time from the first completion, or the beginning, to the last.
    step_ns, latency_ns : float
        The median step time, and the median latency.
    busy_ns : float, optional
        Of the elapsed time, while the device has at least one kernel or copy.
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
    """A trace in a page.

    Parameters
    ----------
    trace : Trace
    iterations : IterationTable
    classes : tuple of ClassTime
        By time, longest first.
    devices : tuple of DeviceActivity
    steps : tuple of RankSteps
    """

    trace: Trace
    iterations: IterationTable
    classes: tuple[ClassTime, ...]
    devices: tuple[DeviceActivity, ...]
    steps: tuple[RankSteps, ...]

    def table(self) -> "pd.DataFrame":
        """Return the steps of each rank and device, a row each; times in ns."""
        import pandas as pd

        return pd.DataFrame([asdict(row) for row in self.steps])

    def classes_table(self) -> "pd.DataFrame":
        """Return the kernels by class, longest first; times in ns."""
        import pandas as pd

        return pd.DataFrame(self.to_dict()["kernel_classes"])

    def plot(self) -> Any:
        """Return the chart of the time in kernels by class, as a HoloViews object."""
        from seqpoint.plots import class_breakdown

        return class_breakdown(self)

    def to_dict(self) -> dict[str, Any]:
        """Return what `seqpoint describe --json` prints."""
        meta, iterations = self.trace.meta, self.iterations
        ranks = iterations.rank.tolist()
        return {
            **trace_facts(meta, {kind: table.num_rows for kind, table in self.trace.tables.items()}),
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
        tables = {"Steps, each from one completion to the next": self.table(), "Kernels by class": self.classes_table()}
        return as_html("Trace", self.summary(), tables)


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
        "fingerprint": meta.fingerprint,
    }


def describe(trace: Trace) -> Description:
    """Return what is in `trace`."""
    return Description(trace, iteration_table(trace), _classes(trace), _devices(trace), _steps(trace))


def _steps(trace: Trace) -> tuple[RankSteps, ...]:
    steps = step_times(trace)
    devices = busy_in_steps(trace, steps)
    rows = []
    for rank in np.unique(steps.rank).tolist():
        mine = steps.rank == rank
        step, latency = float(np.median(steps.step_ns[mine])), float(np.median(steps.latency_ns[mine]))
        common = (int(mine.sum()), int(steps.step_ns[mine].sum()), step, latency)
        of_rank = [RankSteps(rank, d.device, *common, d.busy_ns) for d in devices if d.rank == rank]
        rows += of_rank or [RankSteps(rank, None, *common, None)]
    return tuple(rows)


def _classes(trace: Trace) -> tuple[ClassTime, ...]:
    names = strings(trace.kernels, "name")
    known = {name: classify(name) for name in set(names)}
    labels = np.array([known[name] for name in names], dtype=object)
    duration = integers(trace.kernels, "dur_ns")
    duration = np.where(duration == MISSING, 0, duration)
    total = int(duration.sum())
    rows = [
        ClassTime(
            label,
            int(mine.sum()),
            int(duration[mine].sum()),
            float(duration[mine].sum() / total) if total else 0.0,
        )
        for label in sorted(set(known.values()))
        for mine in [labels == label]
    ]
    return tuple(sorted(rows, key=lambda row: (-row.time_ns, row.class_)))


def _devices(trace: Trace) -> tuple[DeviceActivity, ...]:
    names = {(p.rank, p.device): p.name for p in trace.meta.devices}
    same = {p.name for p in trace.meta.devices}
    anyone = same.pop() if len(same) == 1 else ""
    tables = (trace.kernels, trace.copies)
    rank, device = (np.concatenate([integers(t, column) for t in tables]) for column in ("rank", "device"))
    start = np.concatenate([integers(t, "start_ns") for t in tables])
    end = np.concatenate([ends(t) for t in tables])
    kernel_names = strings(trace.kernels, "name")
    known = {name: classify(name) == COLLECTIVE for name in set(kernel_names)}
    communicates = np.zeros(len(rank), dtype=bool)
    communicates[: len(kernel_names)] = [known[name] for name in kernel_names]
    places = sorted(set(zip(rank.tolist(), device.tolist(), strict=True)))
    rows = []
    for place in places:
        mine = (rank == place[0]) & (device == place[1])
        number = -1 if place[1] == MISSING else place[1]
        name = names.get((place[0], number), anyone)
        rows.append(DeviceActivity(place[0], number, name, *_activity(start[mine], end[mine], communicates[mine])))
    return tuple(rows)


def _activity(
    start: npt.NDArray[np.int64], end: npt.NDArray[np.int64], communicates: npt.NDArray[np.bool_]
) -> tuple[int, int, int, int]:
    busy = int(union_length(start, end))
    communication = int(union_length(start[communicates], end[communicates]))
    other = int(union_length(start[~communicates], end[~communicates]))
    return int(end.max() - start.min()), busy, communication, busy - other
