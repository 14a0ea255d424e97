"""The report as one page of HTML.

Scripts of a page: only those written into it may run, and none may end the element that it stands in.

The charts of a report: Bokeh models with what they show, and the script that draws them.

Templates to pages: all text escaped, and no script but ours.

The page: sections made of blocks of charts and tables, in one file that asks the network for nothing.

A page of charts of works side by side, in one file that asks the network for nothing.
"""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import holoviews as hv
from bokeh.embed import components
from bokeh.models import GlyphRenderer, GridPlot, Plot
from bokeh.resources import Resources
from bokeh.themes import Theme
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from profilers.files import write_text
from seqpoint import __version__, plots
from seqpoint.reporting import tables
from seqpoint.reporting.tables import (
    ReportContent,
    ReportSection,
    Tile,
    best_row,
    clean,
    count,
    notes,
    summary,
    tiles,
    timeline_name,
)
from seqpoint.selection.evaluation import HALF, coverages_of, errors_of
from seqpoint.validation.contention import score_by_mechanism, score_order
from seqpoint.validation.contention_cases import ContentionCase


def inert(script: str) -> Markup:
    """Return a script that cannot end the element it stands in."""
    return Markup(script.replace("</script", "<\\/script").replace("<!--", "<\\!--"))


def policy_of(scripts: Sequence[Markup]) -> str:
    """Return a content security policy: these scripts by their digests, and no network."""
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests) or "'none'"
    rules = (
        "default-src 'none'",
        f"script-src {allowed}",
        "style-src 'unsafe-inline'",
        "img-src data: blob:",
        "font-src data:",
        "base-uri 'none'",
        "form-action 'none'",
    )
    return "; ".join(rules)


FONTS = "Inter, system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
_TEXT = {
    "Title": ("text_font",),
    "Axis": ("axis_label_text_font", "major_label_text_font"),
    "Legend": ("label_text_font",),
    "LabelSet": ("text_font",),
    "Text": ("text_font",),
}
_THEME = {"attrs": {model: dict.fromkeys(names, FONTS) for model, names in _TEXT.items()}}


@dataclass(frozen=True)
class Figure:
    """A chart, before or after it became HTML.

    Parameters
    ----------
    block : str
        The heading that it stands under.
    chart : object
        A HoloViews object, or the HTML element that Bokeh fills.
    caption : str
    """

    block: str
    chart: Any
    caption: str = ""


def section_figures(section: ReportSection) -> list[Figure]:
    """Return the charts of a section as HoloViews objects."""
    found = []
    if section.selection is not None:
        found.append(Figure("selection", plots.length_histogram(section.selection)))
        found.append(Figure("selection", plots.statistic_by_length(section.selection)))
        found.append(Figure("baselines", plots.baseline_errors(section.selection)))
        if len(section.selection.iterations) >= HALF:
            counts, errors = errors_of(section.selection)
            found.append(Figure("baselines", plots.errors_by_points(errors, counts, section.selection.statistic)))
            found.append(
                Figure(
                    "baselines",
                    plots.interval_coverage(coverages_of(section.selection), section.selection.estimate.confidence),
                )
            )
    if section.description.classes:
        found.append(Figure("classes", plots.class_breakdown(section.description)))
    if section.projection is not None:
        found += _projection_figures(section)
    return found


def _projection_figures(section: ReportSection) -> list[Figure]:
    projection = section.projection
    if projection is None:
        return []
    found = [Figure("projection", plots.projection_intervals(projection))] if projection.rows else []
    lines, best = projection.timelines, best_row(projection)
    name = timeline_name(best) if best is not None else ""
    if "baseline" not in lines:
        return found
    if name not in lines:
        return [*found, Figure("timeline", plots.timeline_lanes(lines["baseline"]), _caption(projection.provenance))]
    names = ("Before (baseline)", f"After ({name})")
    chart = plots.before_after(lines["baseline"], lines[name], names)
    return [*found, Figure("timeline", chart, _caption(projection.provenance))]


def _caption(provenance: Mapping[str, Any]) -> str:
    chosen = list(provenance.get("iterations") or [])
    which = f"Iteration {chosen[0]}, the first that was" if chosen else "The first iteration that was"
    return (
        f"{which} replayed. A row a thread or stream; the dotted line is the end of the step. "
        "Drag to zoom along time, hover for names, click a class to hide it."
    )


def embedded(figures: Sequence[tuple[Figure, Sequence[str]]]) -> tuple[str, list[Figure]]:
    """Return the script that draws all charts, and the figures with their HTML elements.

    Parameters
    ----------
    figures : sequence of (Figure, labels)
        The labels are added to the titles inside the chart, so that a saved image shows them too.
    """
    if not figures:
        return "", []
    models = {str(i): _model(figure.chart, labels) for i, (figure, labels) in enumerate(figures)}
    script, elements = components(models, wrap_script=False, theme=Theme(json=_THEME))
    done = [Figure(figure.block, elements[str(i)], figure.caption) for i, (figure, _) in enumerate(figures)]
    return str(script), done


def _model(chart: Any, labels: Sequence[str]) -> Any:
    model = hv.render(chart, backend="bokeh")
    for figure in model.select({"type": Plot}):
        figure.title.text += "".join(f"  [{plots.plain_text(label, 40)}]" for label in labels)
    # HoloViews links legends by code in strings, which the page's security policy does not let run.
    for renderer in model.select({"type": GlyphRenderer}):
        renderer.js_property_callbacks = {}
    if isinstance(model, GridPlot):
        model.toolbar.logo = None
    return model


def bokeh_script() -> str:
    """Return BokehJS, without the parts that these charts do not use."""
    resources = Resources(mode="inline", minified=True, components=["bokeh"], log_level="error")
    return "\n".join(resources.js_raw)


def rendered(template: str, title: str, scripts: Sequence[str], content: Mapping[str, Any]) -> str:
    """Return a page that asks the network for nothing.

    Parameters
    ----------
    template : str
        Of this package; it extends ``page.html``.
    title : str
    scripts : sequence of str
        All that may run in it.
    content : mapping
        What the template shows; text in it is escaped unless it is `Markup`.
    """
    environment = Environment(
        loader=PackageLoader("seqpoint.reporting"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: value if isinstance(value, Markup) else clean(value),
    )
    harmless = [inert(text) for text in scripts if text]
    return environment.get_template(template).render(
        content,
        title=title,
        version=__version__,
        scripts=harmless,
        policy=policy_of(harmless),
        fonts=Markup(FONTS),
    )


@dataclass(frozen=True)
class _Block:
    """A heading with charts and tables."""

    heading: str
    figures: tuple[Figure, ...]
    tables: tuple[tables.Table, ...]


@dataclass(frozen=True)
class _View:
    """A section as the template shows it."""

    heading: str
    labels: tuple[str, ...]
    summary: str
    tiles: tuple[Tile, ...]
    blocks: tuple[_Block, ...]
    notes: tuple[str, ...]
    quality: tables.Table
    provenance: Markup


def write_report(content: ReportContent, path: str | Path) -> Path:
    """Write a report and return where it is; a reader never sees half a file.

    Parameters
    ----------
    content : ReportContent
    path : str or Path

    Raises
    ------
    InvalidInputError
        The folder does not exist or may not be written.
    """
    target = Path(path)
    write_text(target, html_page(content))
    return target


def html_page(content: ReportContent) -> str:
    """Return the page. All text in it is escaped, and only the two scripts written here may run in it."""
    found = [section_figures(section) for section in content.sections]
    labelled = [(figure, s.labels) for s, mine in zip(content.sections, found, strict=True) for figure in mine]
    script, done = embedded(labelled)
    rest = iter(done)
    placed = [[next(rest) for _ in mine] for mine in found]
    views = [_view(section, figures) for section, figures in zip(content.sections, placed, strict=True)]
    return rendered("report.html", content.title, (bokeh_script(), script) if script else (), {"views": views})


def _view(section: ReportSection, figures: list[Figure]) -> _View:
    return _View(
        section.heading,
        section.labels,
        summary(section),
        tiles(section),
        tuple(block for block in _blocks(section, figures) if block.figures or block.tables),
        notes(section),
        tables.quality_table(section.description),
        Markup(escape(json.dumps(_provenance(section), indent=2, default=str))),
    )


def _blocks(section: ReportSection, figures: list[Figure]) -> list[_Block]:
    description, selection, projection = section.description, section.selection, section.projection
    classes = tables.classes_table(description) if description.classes else None
    devices = tables.devices_table(description) if description.devices else None
    steps = tables.steps_table(description) if description.steps else None
    points = tables.points_table(selection) if selection else None
    baselines = tables.baselines_table(selection) if selection else None
    what_ifs = tables.projection_table(projection) if projection else None

    def block(heading: str, name: str, table: tables.Table | None) -> _Block:
        mine = tuple(figure for figure in figures if figure.block == name)
        return _Block(heading, mine, () if table is None else (table,))

    return [
        block("Sequence lengths and chosen iterations", "selection", points),
        block("Baselines", "baselines", baselines),
        block("Where the time goes", "classes", classes),
        block("Steps", "", steps),
        block("Devices", "", devices),
        block("Timeline before and after", "timeline", None),
        block("What-ifs", "projection", what_ifs),
    ]


def _provenance(section: ReportSection) -> dict[str, Any]:
    """Return all that is needed to make the section's numbers again."""
    meta, selection = section.description.trace.meta, section.selection
    found: dict[str, Any] = {
        "seqpoint": __version__,
        "trace": {
            "format": meta.format,
            "version": meta.version,
            "sources": list(meta.sources),
            "fingerprint": meta.fingerprint,
            "ranks": list(meta.ranks),
            "world_size": meta.world_size,
            "devices": [asdict(device) for device in meta.devices],
        },
    }
    if selection is not None:
        found["selection"] = {
            "statistic": selection.statistic,
            "unit": selection.unit,
            "iterations": selection.iterations.iteration[selection.rows].tolist(),
            "weights": selection.weights.tolist(),
            "measured": selection.measured,
            "estimate": [selection.estimate.value, selection.estimate.low, selection.estimate.high],
            "confidence": selection.estimate.confidence,
        }
    if section.projection is not None:
        found["projection"] = section.projection.provenance
    return found


_TITLE = "Works side by side: predicted against measured"


def write_contention_charts(cases: Sequence[ContentionCase], path: str | Path, notes: Sequence[str] = ()) -> Path:
    """Write the charts of scenarios and return where they are; a reader never sees half a file.

    Parameters
    ----------
    cases : sequence of ContentionCase
    path : str or Path
    notes : sequence of str, optional
        On the recordings, shown first.

    Raises
    ------
    InvalidInputError
        There is no scenario; or the folder does not exist or may not be written.
    """
    target = Path(path)
    write_text(target, contention_page(cases, notes))
    return target


def contention_page(cases: Sequence[ContentionCase], notes: Sequence[str] = ()) -> str:
    """Return the page. All text in it is escaped, and only the two scripts written here may run in it.

    Raises
    ------
    InvalidInputError
        There is no scenario.
    """
    held = "Hollow: fitted. Hover for names, click a mechanism to hide it, drag to zoom."
    figures = [
        Figure("", plots.predicted_against_measured(cases), held),
        Figure("", plots.slowdowns_against_measured(cases), "Where one work is far shorter, times agree easily."),
        Figure("", plots.error_by_mechanism(cases), "Nothing is known finer than the dotted lines."),
    ]
    script, done = embedded([(figure, ()) for figure in figures])
    return rendered(
        "charts.html", _TITLE, (bokeh_script(), script), {"lines": [*notes, *_lines(cases)], "figures": done}
    )


def _lines(cases: Sequence[ContentionCase]) -> list[str]:
    """Return what the charts are of, in words."""
    recordings = sorted({f"{case.recording} ({case.device})" for case in cases})
    fitted = sum(case.fitted for case in cases)
    first = f"Recorded: {', '.join(recordings)}. {count(len(cases), 'scenario')}, {fitted or 'none'} of them fitted."
    held = [case for case in cases if not case.fitted]
    if not held:
        return [first, "All were fitted, so nothing says how good the predictions are."]
    every, order = score_by_mechanism(held)[-1], score_order(held)
    return [
        first,
        f"Not fitted: median error {100 * every.median:.1f} % of the time until all are done, 90th percentile "
        f"{100 * every.p90:.1f} %; takes differ by {100 * every.spread:.1f} % (median), "
        f"{100 * every.spread_max:.1f} % at most.",
        f"Order of policies: {order.right} of {order.compared} pairs right.",
    ]
