"""Pages of HTML: the report on traces, and the charts of contention.

`ReportContent` and `ReportSection` hold the results. `summary`, `tiles` and `notes` give the sentences and numbers of a
section, and the functions named `..._table` its tables.

A page is a single file that never accesses the network. Templates escape all text, since names come from traces. A
content security policy names the digests of the scripts that may run: BokehJS and the script of the charts.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from profilers.files import write_text
from profilers.trace.kernels import CLASSES
from replay.contention.totals import ContentionTime
from replay.projection.evidence import EVIDENCE
from replay.projection.rows import ProjectionRow
from seqpoint import plots
from seqpoint.breakdown import contention_lines, contention_table, limits_table
from seqpoint.characterization import Characterization
from seqpoint.description import Description, row_counts, trace_facts
from seqpoint.notebook import DataFrame, Table, counted, data_frame
from seqpoint.plots.saving import FONTS, drawn, inert, policy_of
from seqpoint.projecting import TraceProjection
from seqpoint.selection.estimate import HALF
from seqpoint.selection.evaluation import coverages_of, errors_of
from seqpoint.selection.selecting import SelectionResult
from seqpoint.units import duration
from seqpoint.validation.contention import ContentionCase, score_by_mechanism, score_order
from seqpoint.validation.contention_traces import NO_CONTENTION, TraceContentionScore


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
    bar = {"parts": [(kind, 100 * row.evidence.share(kind)) for kind in EVIDENCE]}  # the page stacks the parts
    return name, f"{row.speedup:.3f}", interval, duration(row.projected_ns), limits, bar


def contention_block(time: ContentionTime) -> Table:
    """Return the table of the time that contention took in the recording, with its sentences."""
    table, lines = contention_table(time, _RECORDING), contention_lines(time, _RECORDING)
    return replace(table, title=table.title or "Time that contention took", note=prose(lines))


def operator_table(result: Characterization) -> Table:
    """Return the operators by time, with the sentences on all kernels."""
    table = result.text_table()
    return replace(table, note=prose(result.summary()))


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


@dataclass(frozen=True)
class ReportFigure:
    """A chart of a page, as a HoloViews object or as HTML.

    Parameters
    ----------
    block : str
        Name of the block that holds the chart.
    chart : object
        A HoloViews object, or the HTML element that Bokeh fills.
    caption : str
        Text below the chart.
    """

    block: str
    chart: Any
    caption: str = ""


def section_figures(section: ReportSection) -> list[ReportFigure]:
    """Return the charts of a section as HoloViews objects."""
    selection, figures = section.selection, []
    if selection is not None:
        figures.append(ReportFigure("selection", selection.plot()))
        figures.append(ReportFigure("selection", selection.plot_statistic()))
        figures.append(ReportFigure("baselines", selection.plot_baselines()))
        if len(selection.regular) >= HALF:
            counts, errors = errors_of(selection)
            figures.append(ReportFigure("baselines", plots.errors_by_points(errors, counts, selection.statistic)))
            coverages = {name: asdict(coverage) for name, coverage in coverages_of(selection).items()}
            of_selectors = data_frame(list(coverages.values())).set_axis(list(coverages))
            chart = plots.interval_coverage(of_selectors, selection.estimate.confidence)
            figures.append(ReportFigure("baselines", chart))
    if section.description.classes:
        figures.append(ReportFigure("classes", section.description.plot()))
    if section.description.memory:
        figures.append(ReportFigure("memory", section.description.memory_plot()))
    if section.characterization is not None:
        figures += _operator_figures(section.characterization)
    if section.projection is not None:
        figures += _projection_figures(section.projection)
    return figures


def _operator_figures(result: Characterization) -> list[ReportFigure]:
    """Return the treemap of the operators, and the roofline if the device and the FLOP of some operator are known."""
    figures = [ReportFigure("operators", result.plot("treemap"))] if len(result.facts) else []
    if len(result.roofs()) and any(row.flops and row.bytes for row in result.rows("shape")):
        figures.append(ReportFigure("shapes", result.plot("roofline"), "Hover for names and shapes, drag to zoom."))
    return figures


def _projection_figures(projection: TraceProjection) -> list[ReportFigure]:
    figures = [ReportFigure("projection", projection.plot())] if projection.rows else []
    timelines, best = projection.projection.timelines, best_row(projection)
    if "baseline" not in timelines:
        return figures
    if best is None or best.label not in timelines:
        chart = plots.timeline_lanes(timelines["baseline"])
    else:
        chart = projection.plot_timelines(best.label)
    return [*figures, ReportFigure("timeline", chart, _caption(projection.provenance))]


def _caption(provenance: Mapping[str, Any]) -> str:
    chosen = list(provenance.get("iterations") or [])
    which = f"Iteration {chosen[0]}, the first that was" if chosen else "The first iteration that was"
    return (
        f"{which} replayed. Each row is a thread or stream; the dotted line is the end of the step. "
        "Drag to zoom along time, hover for names, click a class to hide it."
    )


def embedded(figures: Sequence[tuple[ReportFigure, Sequence[str]]]) -> tuple[list[str], list[ReportFigure]]:
    """Return BokehJS and the script that draws all charts, and the figures with their HTML elements.

    Parameters
    ----------
    figures : sequence of (ReportFigure, labels)
        Charts as HoloViews objects. Their labels are added to the titles inside, so that saved images show them too.
    """
    if not figures:
        return [], []
    scripts, elements = drawn([(figure.chart, labels) for figure, labels in figures])
    return scripts, [replace(figure, chart=html) for (figure, _), html in zip(figures, elements, strict=True)]


def rendered(template: str, title: str, scripts: Sequence[str], content: Mapping[str, Any]) -> str:
    """Render a template to a page that never accesses the network.

    Parameters
    ----------
    template : str
        Name of a template of this package, which extends ``page.html``.
    title : str
        Title of the page.
    scripts : sequence of str
        The scripts that may run in the page.
    content : mapping
        Variables of the template; text is escaped unless it is `Markup`.
    """
    environment = Environment(
        loader=PackageLoader("seqpoint.reporting"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: value if isinstance(value, Markup) else clean(value),
    )
    safe = inert(scripts)
    return environment.get_template(template).render(
        content,
        title=title,
        version=version("seqpoint"),
        scripts=safe,
        policy=policy_of(safe),
        fonts=Markup(FONTS),
    )


def write_report(content: ReportContent, path: str | Path) -> Path:
    """Write a report as a page of HTML, and return its path; a partly written file is never visible.

    Parameters
    ----------
    content : ReportContent
        Title and sections of the report.
    path : str or Path
        File to write.

    Raises
    ------
    InvalidInputError
        The folder does not exist or may not be written.
    """
    target = Path(path)
    write_text(target, html_page(content))
    return target


def html_page(content: ReportContent) -> str:
    """Return the page of a report; all text in it is escaped, and only its own two scripts may run."""
    figures = [section_figures(section) for section in content.sections]
    pairs = list(zip(content.sections, figures, strict=True))
    scripts, with_html = embedded([(figure, section.labels) for section, of_section in pairs for figure in of_section])
    remaining = iter(with_html)
    views = [_view(section, [next(remaining) for _ in of_section]) for section, of_section in pairs]
    return rendered("report.html", content.title, scripts, {"views": views})


def _view(section: ReportSection, figures: list[ReportFigure]) -> dict[str, Any]:
    """Return the variables of a section in the template."""
    quality = section.description.named_tables()["quality"]
    return {
        "heading": section.heading,
        "labels": section.labels,
        "summary": summary(section),
        "tiles": tiles(section),
        "blocks": _blocks(section, figures),
        "notes": notes(section),
        "quality": quality if quality.rows else replace(quality, note="Nothing was counted."),
        "provenance": Markup(escape(json.dumps(_provenance(section), indent=2, default=str))),
    }


def _blocks(section: ReportSection, figures: list[ReportFigure]) -> list[dict[str, Any]]:
    """Return the blocks of a section that are not empty: a heading with charts and tables."""
    selection, projection, contention = section.selection, section.projection, section.contention
    operators = section.characterization
    of_trace = section.description.named_tables()
    blocks = [
        ("Sequence lengths and chosen iterations", "selection", points_table(selection) if selection else None),
        ("Baselines", "baselines", selection.tables()[-1] if selection else None),
        ("Where the time goes", "classes", of_trace["classes"]),
        ("Operators", "operators", operator_table(operators) if operators else None),
        ("Operators against the roofline", "shapes", operators.text_table("shape") if operators else None),
        ("Steps and devices", "", of_trace["devices"]),
        ("Time by cause", "", operators.ranks_table() if operators else None),
        ("What limits the step", "", limits_table(projection.projection.limits) if projection else None),
        ("Hosts", "", of_trace["host"]),
        ("Communication", "", of_trace["communication"]),
        ("Ranks that others wait for", "", of_trace["late"]),
        ("Contention", "", contention_block(contention) if contention else None),
        ("Copies", "", of_trace["copies"]),
        ("Memory in use", "memory", of_trace["memory"]),
        ("Timeline before and after", "timeline", None),
        ("What-ifs", "projection", projection_table(projection) if projection else None),
    ]
    views = [
        {
            "heading": heading,
            "figures": [figure for figure in figures if figure.block == name],
            "tables": [table] if table and (table.rows or table.note) else [],
        }
        for heading, name, table in blocks
    ]
    return [view for view in views if view["figures"] or view["tables"]]


def _provenance(section: ReportSection) -> dict[str, Any]:
    """Return the facts from which the numbers of a section can be computed again."""
    trace = section.description.trace
    meta, rows = trace.meta, row_counts(trace)
    devices = [asdict(device) for device in meta.devices]
    facts: dict[str, Any] = {
        "seqpoint": version("seqpoint"),
        "trace": {**trace_facts(meta, rows), "format": meta.format, "version": meta.version, "devices": devices},
    }
    if section.selection is not None:
        facts["selection"] = section.selection.to_dict()
    if section.projection is not None:
        facts["projection"] = section.projection.provenance
    return facts


_CONTENTION_TITLE = "Contention: predicted against measured"


def write_contention_charts(
    scores: Sequence[ContentionCase | TraceContentionScore], path: str | Path, notes: Sequence[str] = ()
) -> Path:
    """Write the charts of contention as a page of HTML, and return its path; a partly written file is never visible.

    Parameters
    ----------
    scores : sequence of ContentionCase or TraceContentionScore
        Scenarios of recordings, and scores of traces; at least one.
    path : str or Path
        File to write.
    notes : sequence of str, optional
        Notes on the recordings, shown first.

    Raises
    ------
    InvalidInputError
        There is no score; or the folder does not exist or may not be written.
    """
    target = Path(path)
    write_text(target, contention_page(scores, notes))
    return target


def contention_page(scores: Sequence[ContentionCase | TraceContentionScore], notes: Sequence[str] = ()) -> str:
    """Return the page of contention charts; all text in it is escaped, and only its own two scripts may run.

    Parameters
    ----------
    scores : sequence of ContentionCase or TraceContentionScore
        Scenarios of recordings, and scores of traces; at least one.
    notes : sequence of str, optional
        Notes on the recordings, shown first.

    Raises
    ------
    InvalidInputError
        There is no score.
    """
    cases = [score for score in scores if isinstance(score, ContentionCase)]
    traces = [score for score in scores if isinstance(score, TraceContentionScore)]
    figures = _scenario_figures(cases) if cases or not traces else []
    for trace in traces:
        bars = "Marks are medians, and bars the central 80 % of the kernels."
        kernels = kernel_rows(trace)
        figures.append(ReportFigure("", plots.kernel_slowdowns(kernels, trace.best), "Bands: errors of 10 and 25 %."))
        figures.append(ReportFigure("", plots.slowdowns_by_workgroups(kernels), bars))
    scripts, with_html = embedded([(figure, ()) for figure in figures])
    lines = [*notes, *(_lines(cases) if cases else ()), *map(_trace_line, traces)]
    return rendered("charts.html", _CONTENTION_TITLE, scripts, {"lines": lines, "figures": with_html})


def _trace_line(score: TraceContentionScore) -> str:
    """Return the sentence on the errors of a trace."""
    mean, without = (100 * score.methods[name].mean for name in (score.best, NO_CONTENTION))
    return (
        f"{score.trace} ({score.device or 'unknown device'}): {counted(score.kernels, 'kernel')} beside other "
        f"work, of which {score.slowed:,} are slowed by more than 10 %. Mean error {mean:.1f} % of the time alone "
        f"({score.best}); {without:.1f} % without contention. {score.remark}"
    )


def case_rows(cases: Sequence[ContentionCase]) -> DataFrame:
    """Return scenarios for charts."""
    names = ("scenario", "policy", "mechanism", "measured_ns", "predicted_ns", "free_ns", "error", "spread", "fitted")
    return data_frame([{name: getattr(case, name) for name in names} for case in cases])


def kernel_rows(score: TraceContentionScore) -> DataFrame:
    """Return the kernels of a trace for charts."""
    names = ("measured_ns", "predicted_ns", "alone_ns", "workgroups")
    kinds = {"class": np.array(CLASSES)[score.class_], "partner": np.array(score.partners)[score.partner]}
    return data_frame({name: getattr(score, name) for name in names} | kinds)


def _scenario_figures(cases: Sequence[ContentionCase]) -> list[ReportFigure]:
    """Return the charts of the scenarios of recordings."""
    legend = "Hollow: fitted. Hover for names, click a mechanism to hide it, drag to zoom."
    captions = {
        plots.predicted_against_measured: legend,
        plots.slowdowns_against_measured: "If one task is far shorter than the other, times agree easily.",
        plots.error_by_mechanism: "Errors below the dotted lines are within the spread of repeated takes.",
    }
    return [ReportFigure("", chart(case_rows(cases)), caption) for chart, caption in captions.items()]


def _lines(cases: Sequence[ContentionCase]) -> list[str]:
    """Return sentences on the recordings, the held-out errors and the order of policies."""
    recordings = sorted({f"{case.recording} ({case.device})" for case in cases})
    fitted = sum(case.fitted for case in cases)
    first = f"Recorded: {', '.join(recordings)}. {counted(len(cases), 'scenario')}, {fitted or 'none'} of them fitted."
    held_out = [case for case in cases if not case.fitted]
    if not held_out:
        return [first, "All were fitted, so nothing says how good the predictions are."]
    overall, order = score_by_mechanism(held_out)[-1], score_order(held_out)
    return [
        first,
        f"Not fitted: median error {100 * overall.median:.1f} % of the time until all are done, 90th percentile "
        f"{100 * overall.p90:.1f} %; takes differ by {100 * overall.spread:.1f} % (median), "
        f"{100 * overall.spread_max:.1f} % at most.",
        f"Order of policies: {order.right} of {order.compared} pairs right.",
    ]
