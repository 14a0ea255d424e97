"""Content of a report: sections, and the sentences, numbers and tables that show them.

`ReportContent` and `ReportSection` hold the results. `summary`, `tiles` and `notes` give the sentences and numbers of a
section, and the functions named `..._table` its tables. The first functions turn numbers and untrusted text into text
for people.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from replay.contention.totals import ContentionTime
from replay.projection.evidence import EVIDENCE, Evidence
from replay.projection.rows import ProjectionRow
from seqpoint.breakdown import contention_lines, contention_table
from seqpoint.characterization import Characterization
from seqpoint.description import Description
from seqpoint.notebook import MORE, Table
from seqpoint.projecting import TraceProjection
from seqpoint.selection.selecting import SelectionResult
from seqpoint.units import duration


def clean(text: object) -> str:
    r"""Return text without control characters, direction marks and lone surrogates; a line break is a space.

    Examples
    --------
    >>> clean("a\x1b[31m\nb\u202e")
    'a[31m b'
    """
    return "".join(c if c.isprintable() else " " if c.isspace() else "" for c in str(text))


def percent(share: float, digits: int = 1) -> str:
    """Return a share as text in per cent.

    Examples
    --------
    >>> percent(0.1234)
    '12.3 %'
    """
    return f"{100 * share:.{digits}f} %"


SYNTHETIC = "synthetic"
_RECORDING = "in the recording"


@dataclass(frozen=True)
class ReportSection:
    """Section of a report, on a trace.

    Parameters
    ----------
    heading : str
        Heading of the section.
    label : str
        Badge on the section and on every chart and table in it, such as ``"synthetic"``; "" for none.
    description : Description
        Description of the trace.
    selection : SelectionResult, optional
        Selected iterations of the trace.
    projection : TraceProjection, optional
        What-ifs projected on the trace.
    contention : ContentionTime, optional
        Time that contention took from its kernels.
    characterization : Characterization, optional
        Where the time of its kernels goes.
    """

    heading: str
    label: str
    description: Description
    selection: SelectionResult | None = None
    projection: TraceProjection | None = None
    contention: ContentionTime | None = None
    characterization: Characterization | None = None

    @property
    def labels(self) -> tuple[str, ...]:
        """All badges: the label, and ``"synthetic"`` if the trace is."""
        synthetic = SYNTHETIC if self.description.trace.meta.synthetic else ""
        return tuple(dict.fromkeys(text for text in (synthetic, self.label) if text))


@dataclass(frozen=True)
class ReportContent:
    """Content of a report.

    Parameters
    ----------
    title : str
        Title of the page.
    sections : tuple of ReportSection
        Sections, from top to bottom.
    """

    title: str
    sections: tuple[ReportSection, ...]


def best_row(projection: TraceProjection) -> ProjectionRow | None:
    """Return the applied row with the largest speed-up, the first of several; None if there is none."""
    return max((row for row in projection.rows if row.applied), key=lambda row: row.speedup, default=None)


@dataclass(frozen=True)
class ReportTile:
    """A number with its name and a detail, shown at the top of a section."""

    value: str
    name: str
    detail: str = ""


def summary(section: ReportSection) -> str:
    """Return a paragraph on the trace, the selection and the projection: what they say of themselves."""
    results = [result for result in (section.selection, section.projection) if result is not None]
    lines = [line for result in results for line in result.summary()]
    if section.projection is not None and best_row(section.projection) is None:
        lines.append(f"baseline alone: no what-if {'applies to them' if section.projection.rows else 'was asked for'}")
    return " ".join(filter(None, [prose(section.description.summary()), _spent(section.description), prose(lines)]))


def prose(lines: Iterable[str]) -> str:
    """Return lines as sentences.

    Examples
    --------
    >>> prose(["one file", "two kernels"])
    'One file. Two kernels.'
    """
    return " ".join(f"{line[:1].upper()}{line[1:]}." for line in lines if line)


def tiles(section: ReportSection) -> tuple[ReportTile, ...]:
    """Return the main numbers of a section."""
    description, selection, projection = section.description, section.selection, section.projection
    numbers = [
        ReportTile(f"{len(description.iterations):,}", "iterations", f"ranks: {len(set(description.trace.meta.ranks))}")
    ]
    if description.steps:
        longest = max(description.steps, key=lambda row: row.step_ns)
        numbers.append(ReportTile(duration(longest.step_ns), "per step", f"median of rank {longest.rank}"))
    if description.classes:
        first = description.classes[0]
        numbers.append(ReportTile(percent(first.share), f"of kernel time in {first.class_}", duration(first.time_ns)))
    if selection is not None:
        outliers = f"with {len(selection.outliers)} outliers " if len(selection.outliers) else ""
        detail = f"{outliers}estimate the total with an error of {100 * selection.error:.2f} %"
        numbers.append(ReportTile(f"{len(selection.rows)} of {len(selection.iterations)}", "iterations chosen", detail))
        numbers.append(ReportTile(f"{selection.sequential_reduction:.3g}×", "less to profile", "one after another"))
    best = best_row(projection) if projection is not None else None
    if best is not None:
        where = f"[{best.low:.2f}, {best.high:.2f}]"
        numbers.append(ReportTile(f"{best.speedup:.2f}×", "best what-if", f"{where} {' + '.join(best.what_if)}"))
    return tuple(numbers)


def notes(section: ReportSection) -> tuple[str, ...]:
    """Return the notes on a section: assumptions, iterations left out, and notes of graphs and what-ifs."""
    lines = section.description.notes()
    lines += [] if section.selection is None else section.selection.notes()
    lines += [] if section.characterization is None else section.characterization.notes()
    if section.projection is not None:
        baseline = section.projection.projection.timelines.get("baseline")
        lines += [] if baseline is None else baseline.graph.notes
        lines += [line.removeprefix("note: ").removeprefix("note on ") for line in section.projection.notes()]
    return tuple(dict.fromkeys(lines))


def _spent(description: Description) -> str:
    if not description.classes:
        return "The trace holds no kernels, only work on the host."
    total = sum(row.time_ns for row in description.classes)
    most = ", ".join(f"{row.class_} {percent(row.share)}" for row in description.classes[:3])
    text = f"Kernels took {duration(total)}: {most}."
    elapsed = sum(row.elapsed_ns for row in description.devices)
    if not elapsed:
        return text
    times = [row.times for row in description.devices]
    busy, exposed = (sum(getattr(row, name) for row in times) / elapsed for name in ("busy_ns", "exposed_ns"))
    covered = "the steps" if description.covers == "steps" else "the recording"
    text += f" Devices were busy for {percent(busy)} of {covered}; exposed communication took {percent(exposed)}"
    if not exposed:
        return f"{text}."
    if any(row.unmatched for row in times):
        return f"{text}, which contains unknown waiting for other ranks."
    waiting = sum(row.exposed_waiting_ns or 0.0 for row in times) / elapsed
    return f"{text}: {percent(waiting)} waiting for other ranks and {percent(exposed - waiting)} transfer."


@dataclass(frozen=True)
class EvidenceShares:
    """Shares of a projected time by kind of evidence, shown as a stacked bar."""

    evidence: Evidence

    @property
    def parts(self) -> tuple[tuple[str, float], ...]:
        """(kind of evidence, share in per cent) of each kind."""
        return tuple((kind, 100 * self.evidence.share(kind)) for kind in EVIDENCE)


def _with_column(table: Table, heading: str, cells: Iterable[str]) -> Table:
    """Return a table with a column more."""
    rows = [(*row, cell) for row, cell in zip(table.rows, cells, strict=True)]
    return replace(table, columns=(*table.columns, heading), rows=rows)


def points_table(selection: SelectionResult) -> Table:
    """Return the table of the selected iterations, with the lengths of their bins."""
    edges = selection.bin_edges.tolist()
    bins = (f"{low:.4g} – {high:.4g}" if high > low else f"{low:.4g}" for low, high in edges)
    return replace(_with_column(selection.tables()[0], "lengths in bin", bins), title="Chosen iterations")


def _projection_cells(row: ProjectionRow) -> tuple[object, ...]:
    """Return the cells of a what-if; one that is not applicable has its reason in place of figures."""
    name = " + ".join(row.what_if)
    if row.evidence is None:
        return name, "-", "-", "-", "-", f"not applicable: {row.reason}"
    interval = f"[{row.low:.3f}, {row.high:.3f}]"
    limits = " and ".join(row.limited_by)
    return name, f"{row.speedup:.3f}", interval, duration(row.projected_ns), limits, EvidenceShares(row.evidence)


def contention_block(time: ContentionTime) -> Table:
    """Return the table of the time that contention took in the recording, with its sentences."""
    table, lines = contention_table(time, _RECORDING), contention_lines(time, _RECORDING)
    return replace(table, title=table.title or "Time that contention took", note=prose(lines))


def operator_table(result: Characterization) -> Table:
    """Return the operators by time, with the sentences on all kernels."""
    table = result.text_table()
    return replace(table, title=table.title.replace(MORE, ""), note=prose(result.summary()))


def projection_table(projection: TraceProjection) -> Table:
    """Return the table of the what-ifs, with the best highlighted."""
    best = best_row(projection)
    rows = [_projection_cells(row) for row in projection.rows]
    confidence = percent(float(projection.provenance.get("confidence", 0.9)), 0)
    source = "synthesised" if projection.provenance.get("synthetic") else "measured"
    note = (
        f"Baseline: {duration(projection.projection.baseline_ns)}, the {source} step times. "
        "Projected: these, times the ratio of two steady states, with and without the what-if. "
        f"Interval: {confidence}, from the ranges of the parameters and the error of the replay. "
        "Evidence: shares of the projected time, by how each piece of its critical path is known."
    )
    columns = ("what-if~", "speed-up", "interval", "projected time", "limited by~", "evidence~")
    marked = -1 if best is None else projection.rows.index(best)
    return Table("What-ifs", columns, rows, marked=marked, note=note)
