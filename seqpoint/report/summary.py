"""The main numbers of a section, in a paragraph and as tiles."""

from dataclasses import dataclass

from profilers.schema import KINDS
from replay.projection import Projection
from seqpoint.describe import Description
from seqpoint.projecting import pace_lines
from seqpoint.report.content import ReportSection, best_row
from seqpoint.report.text import count, duration, interval, percent, quantity
from seqpoint.selecting import SelectionResult

__all__ = ["Tile", "notes", "summary", "tiles"]


@dataclass(frozen=True)
class Tile:
    """One number, what it is, and what it rests on."""

    value: str
    name: str
    detail: str = ""


def summary(section: ReportSection) -> str:
    """Return what was read, where the time goes, what was chosen, and the best what-if."""
    sentences = [_read(section.description), _spent(section.description)]
    if section.selection is not None:
        sentences.append(_chosen(section.selection))
    if section.projection is not None:
        sentences.append(_projected(section.projection))
    return " ".join(sentences)


def tiles(section: ReportSection) -> tuple[Tile, ...]:
    """Return the numbers to see first."""
    description, selection, projection = section.description, section.selection, section.projection
    found = [
        Tile(f"{len(description.iterations):,}", "iterations", count(len(set(description.trace.meta.ranks)), "rank"))
    ]
    if description.steps:
        longest = max(description.steps, key=lambda row: row.step_ns)
        found.append(Tile(duration(longest.step_ns), "per step", f"median of rank {longest.rank}"))
    if description.classes:
        first = description.classes[0]
        found.append(Tile(percent(first.share), f"of kernel time in {first.class_}", duration(first.time_ns)))
    if selection is not None:
        detail = f"estimate the total with an error of {percent(selection.error, 2)}"
        found.append(Tile(f"{len(selection.rows)} of {len(selection.table)}", "iterations chosen", detail))
        found.append(Tile(f"{selection.sequential_reduction:.3g}×", "less to profile", "one after another"))
    best = best_row(projection) if projection is not None else None
    if best is not None:
        where = interval(f"{best.low:.2f}", f"{best.high:.2f}")
        found.append(Tile(f"{best.speedup:.2f}×", "best what-if", f"{where} {' + '.join(best.what_if)}"))
    return tuple(found)


def notes(section: ReportSection) -> tuple[str, ...]:
    """Return what was assumed, left out or could not be found."""
    found = []
    if section.selection is not None and section.selection.without_length:
        found.append(
            f"{count(section.selection.without_length, 'iteration')} without a known length left out of the selection"
        )
    if section.projection is not None:
        lines = section.projection.timelines
        found += [note for name in ("baseline",) if name in lines for note in lines[name].graph.notes]
        found += [line.removeprefix("note: ") for line in pace_lines(section.projection)]
        found += [note for row in section.projection.rows for note in row.notes]
    return tuple(dict.fromkeys(found))


def _read(description: Description) -> str:
    meta = description.trace.meta
    events = sum(description.trace.tables[kind].num_rows for kind in KINDS)
    version = f", {meta.version}" if meta.version else ""
    source = meta.sources[0] if len(meta.sources) == 1 else count(len(meta.sources), "file")
    text = f"{count(events, 'event')} were read from {source} (format {meta.format}{version}): "
    text += f"{count(len(description.iterations), 'iteration')} on {count(len(meta.ranks), 'rank')}"
    names = sorted({row.name for row in description.devices if row.name})
    if description.devices:
        text += f", {count(len(description.devices), 'device')}" + (f" ({', '.join(names)})" if names else "")
    return text + (". Nobody measured these times: the trace is synthetic." if meta.synthetic else ".")


def _spent(description: Description) -> str:
    if not description.classes:
        return "The trace holds no kernels, only work on the host."
    total = sum(row.time_ns for row in description.classes)
    most = ", ".join(f"{row.class_} {percent(row.share)}" for row in description.classes[:3])
    text = f"Kernels took {duration(total)}: {most}."
    spans = sum(row.span_ns for row in description.devices)
    elapsed = sum(row.elapsed_ns for row in description.steps if row.busy_ns is not None)
    if not spans or not elapsed:
        return text
    busy = sum(row.busy_ns or 0.0 for row in description.steps) / elapsed
    exposed = sum(row.exposed_ns for row in description.devices) / spans
    return (
        f"{text} Devices were busy for {percent(busy)} of the steps; "
        f"exposed communication took {percent(exposed)} of the time from the first to the last device work."
    )


def _chosen(selection: SelectionResult) -> str:
    unit, estimate = selection.unit, selection.estimate
    where = interval(quantity(estimate.low, unit), quantity(estimate.high, unit))
    return (
        f"{len(selection.rows)} of {count(len(selection.table), 'iteration')} stand for the run: they estimate its "
        f"total {selection.statistic.replace('_', ' ')} at {quantity(estimate.value, unit)} {where} "
        f"({percent(estimate.confidence, 0)} confidence), against {quantity(selection.measured, unit)} in the trace, "
        f"an error of {percent(selection.error, 2)}."
    )


def _projected(projection: Projection) -> str:
    best = best_row(projection)
    if best is None:
        return f"The steps take {duration(projection.baseline_ns)}; no what-if was asked for."
    where = interval(f"{best.low:.3f}", f"{best.high:.3f}")
    sure = " (the interval holds 1: a gain is not certain)" if best.low <= 1 <= best.high else ""
    return (
        f"The best of {count(len(projection.rows), 'what-if')}, {' + '.join(best.what_if)}, projects a speed-up of "
        f"{best.speedup:.3f} {where}{sure}, from {duration(projection.baseline_ns)} to {duration(best.projected_ns)}."
    )
