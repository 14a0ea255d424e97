"""Pages of HTML: the report on traces, and the charts of contention.

A page is a single file that never accesses the network. Templates escape all text, since names come from traces. A
content security policy names the digests of the scripts that may run: BokehJS and the script of the charts.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from profilers.files import write_text
from profilers.trace.kernels import CLASSES
from seqpoint import plots
from seqpoint.breakdown import limits_table
from seqpoint.characterization import Characterization
from seqpoint.description import row_counts, trace_facts
from seqpoint.notebook import DataFrame, counted, data_frame
from seqpoint.plots.saving import FONTS, drawn, inert, policy_of
from seqpoint.projecting import TraceProjection
from seqpoint.reporting import tables
from seqpoint.selection.estimate import HALF
from seqpoint.selection.evaluation import coverages_of, errors_of
from seqpoint.validation.contention import score_by_mechanism, score_order
from seqpoint.validation.contention_cases import ContentionCase
from seqpoint.validation.contention_traces import NO_CONTENTION, TraceContentionScore


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


def section_figures(section: tables.ReportSection) -> list[ReportFigure]:
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
    timelines, best = projection.projection.timelines, tables.best_row(projection)
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
        finalize=lambda value: value if isinstance(value, Markup) else tables.clean(value),
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


def write_report(content: tables.ReportContent, path: str | Path) -> Path:
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


def html_page(content: tables.ReportContent) -> str:
    """Return the page of a report; all text in it is escaped, and only its own two scripts may run."""
    figures = [section_figures(section) for section in content.sections]
    pairs = list(zip(content.sections, figures, strict=True))
    scripts, with_html = embedded([(figure, section.labels) for section, of_section in pairs for figure in of_section])
    remaining = iter(with_html)
    views = [_view(section, [next(remaining) for _ in of_section]) for section, of_section in pairs]
    return rendered("report.html", content.title, scripts, {"views": views})


def _view(section: tables.ReportSection, figures: list[ReportFigure]) -> dict[str, Any]:
    """Return the variables of a section in the template."""
    quality = section.description.named_tables()["quality"]
    return {
        "heading": section.heading,
        "labels": section.labels,
        "summary": tables.summary(section),
        "tiles": tables.tiles(section),
        "blocks": _blocks(section, figures),
        "notes": tables.notes(section),
        "quality": quality if quality.rows else replace(quality, note="Nothing was counted."),
        "provenance": Markup(escape(json.dumps(_provenance(section), indent=2, default=str))),
    }


def _blocks(section: tables.ReportSection, figures: list[ReportFigure]) -> list[dict[str, Any]]:
    """Return the blocks of a section that are not empty: a heading with charts and tables."""
    selection, projection, contention = section.selection, section.projection, section.contention
    operators = section.characterization
    of_trace = section.description.named_tables()
    blocks = [
        ("Sequence lengths and chosen iterations", "selection", tables.points_table(selection) if selection else None),
        ("Baselines", "baselines", selection.tables()[1] if selection else None),
        ("Where the time goes", "classes", of_trace["classes"]),
        ("Operators", "operators", tables.operator_table(operators) if operators else None),
        ("Operators against the roofline", "shapes", operators.text_table("shape") if operators else None),
        ("Steps and devices", "", of_trace["devices"]),
        ("Time by cause", "", operators.ranks_table() if operators else None),
        ("What limits the step", "", limits_table(projection.projection.limits) if projection else None),
        ("Hosts", "", of_trace["host"]),
        ("Communication", "", of_trace["communication"]),
        ("Ranks that others wait for", "", of_trace["late"]),
        ("Contention", "", tables.contention_block(contention) if contention else None),
        ("Copies", "", of_trace["copies"]),
        ("Memory in use", "memory", of_trace["memory"]),
        ("Timeline before and after", "timeline", None),
        ("What-ifs", "projection", tables.projection_table(projection) if projection else None),
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


def _provenance(section: tables.ReportSection) -> dict[str, Any]:
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
