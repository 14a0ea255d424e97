"""The charts of a report: Bokeh models with what they show, and the script that draws them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import holoviews as hv
from bokeh.embed import components
from bokeh.models import GlyphRenderer, GridPlot, Plot
from bokeh.resources import Resources
from bokeh.themes import Theme

from seqpoint import plots
from seqpoint.held_out import HALF
from seqpoint.report.content import ReportSection, best_row, timeline_name

__all__ = ["FONTS", "Figure", "bokeh_script", "embedded", "section_figures"]

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
        if len(section.selection.table) >= HALF:
            found.append(Figure("baselines", plots.errors_by_points(section.selection)))
            found.append(Figure("baselines", plots.interval_coverage(section.selection)))
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
