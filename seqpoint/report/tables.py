"""The tables of a report."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from replay.projection import Projection, ProjectionRow
from seqpoint.describe import Description, DeviceActivity
from seqpoint.report.content import best_row
from seqpoint.report.text import duration, interval, percent, quantity
from seqpoint.selecting import SelectionResult

__all__ = [
    "Shares",
    "Table",
    "baselines_table",
    "classes_table",
    "devices_table",
    "points_table",
    "projection_table",
    "quality_table",
    "steps_table",
]


@dataclass(frozen=True)
class Shares:
    """What a projected time rests on, shown as a stacked bar."""

    measured: float
    derived: float
    assumed: float

    @property
    def parts(self) -> tuple[tuple[str, float], ...]:
        """(name, share in per cent) of each part."""
        return ("measured", 100 * self.measured), ("derived", 100 * self.derived), ("assumed", 100 * self.assumed)


@dataclass(frozen=True)
class Table:
    """Cells with a heading.

    Parameters
    ----------
    title : str
    columns : tuple of str
        One that ends in a tilde is text, the others are numbers, set to the right.
    rows : tuple of tuple of (str or Shares)
    marked : int
        The row to highlight; -1 for none.
    note : str
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str | Shares, ...], ...]
    marked: int = -1
    note: str = field(default="")

    @property
    def names(self) -> tuple[str, ...]:
        """What stands over each column."""
        return tuple(name.rstrip("~") for name in self.columns)

    @property
    def kinds(self) -> tuple[str, ...]:
        """``"text"`` or ``"number"`` for each column."""
        return tuple("text" if name.endswith("~") else "number" for name in self.columns)


def points_table(selection: SelectionResult) -> Table:
    """Return the chosen iterations."""
    table, values = selection.table, selection.table.statistic(selection.statistic)
    chosen = zip(selection.rows.tolist(), selection.weights.tolist(), selection.bin_edges.tolist(), strict=True)
    rows = tuple(
        (
            str(table.iteration[row]),
            str(table.rank[row]),
            f"{table.sequence_length[row]:g}",
            f"{weight:g}",
            f"{low:.4g} – {high:.4g}" if high > low else f"{low:.4g}",
            quantity(float(values[row]), selection.unit),
        )
        for row, weight, (low, high) in chosen
    )
    name = selection.statistic.replace("_", " ")
    return Table("Chosen iterations", ("iteration", "rank", "length", "weight", "lengths in bin", name), rows)


def baselines_table(selection: SelectionResult) -> Table:
    """Return the error of SeqPoint and of the baselines."""
    found = [("seqpoint", len(selection.rows), selection.estimate.value, selection.error)]
    found += [(b.name, b.points, b.estimate, b.error) for b in selection.baselines]
    rows = tuple((name, str(n), quantity(value, selection.unit), percent(error, 2)) for name, n, value, error in found)
    note = f"Total in the trace: {quantity(selection.measured, selection.unit)}."
    return Table("Against the baselines", ("selector~", "points", "estimated total", "error"), rows, 0, note)


def classes_table(description: Description) -> Table:
    """Return the time in kernels by class."""
    found = description.classes
    rows = tuple((row.class_, f"{row.kernels:,}", duration(row.time_ns), percent(row.share)) for row in found)
    return Table("Kernels by class", ("class~", "kernels", "time", "share"), rows)


def devices_table(description: Description) -> Table:
    """Return what each device did."""
    columns = ("rank", "device", "name~", "span", "busy", "busy, of span", "communication", "exposed", "overlapped")
    note = "Exposed: a collective and nothing else runs. Overlapped: other work runs beside it."
    return Table("Devices", columns, tuple(_device(row) for row in description.devices), note=note)


def steps_table(description: Description) -> Table:
    """Return the step times of each rank, and how busy its device is in them."""
    columns = ("rank", "device", "steps", "elapsed", "step time", "latency", "busy")
    rows = tuple(
        (
            str(row.rank),
            "none" if row.device is None else "unknown" if row.device < 0 else str(row.device),
            f"{row.steps:,}",
            duration(row.elapsed_ns),
            duration(row.step_ns),
            duration(row.latency_ns),
            "" if row.busy_ns is None else percent(row.busy_ns / row.elapsed_ns if row.elapsed_ns else 0.0),
        )
        for row in description.steps
    )
    note = (
        "A step lasts from the completion of the iteration before to its own, so steps add up to the elapsed time. "
        "Latency counts from the start of the iteration on the host. Step time and latency are medians."
    )
    return Table("Steps", columns, rows, note=note)


def _device(row: DeviceActivity) -> tuple[str, ...]:
    times = (row.communication_ns, row.exposed_ns, row.overlapped_ns)
    return (
        str(row.rank),
        "unknown" if row.device < 0 else str(row.device),
        row.name or "unknown",
        duration(row.span_ns),
        duration(row.busy_ns),
        percent(row.busy_ns / row.span_ns if row.span_ns else 0.0),
        *(duration(time) if time else "0" for time in times),
    )


def projection_table(projection: Projection) -> Table:
    """Return the what-ifs, the best one marked."""
    best = best_row(projection)
    rows = tuple(_what_if(row) for row in projection.rows)
    confidence = percent(float(projection.provenance.get("confidence", 0.9)), 0)
    known = "synthesised" if projection.provenance.get("synthetic") else "measured"
    note = (
        f"Baseline: {duration(projection.baseline_ns)}, the {known} step times. Projected: these, times the ratio "
        "of two steady states, with and without the what-if. "
        f"Interval: central {confidence} over the ranges of the parameters. "
        "Measured, derived, assumed: what the durations of the tasks rest on."
    )
    columns = ("what-if~", "speed-up", "interval", "projected time", "rests on~")
    return Table("What-ifs", columns, rows, -1 if best is None else projection.rows.index(best), note)


def _what_if(row: ProjectionRow) -> tuple[str | Shares, ...]:
    return (
        " + ".join(row.what_if),
        f"{row.speedup:.3f}",
        interval(f"{row.low:.3f}", f"{row.high:.3f}"),
        duration(row.projected_ns),
        Shares(row.measured_share, row.derived_share, row.assumed_share),
    )


def quality_table(description: Description) -> Table:
    """Return what the reader counted."""
    rows: Sequence[tuple[str, int, str]] = tuple(description.trace.meta.quality.rows())
    found = tuple((name, f"{n:,}", meaning) for name, n, meaning in rows)
    note = "" if found else "Nothing was counted."
    return Table("What the reader counted", ("count~", "number", "meaning~"), found, note=note)
