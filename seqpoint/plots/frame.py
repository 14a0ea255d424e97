"""Common elements of charts: colours, frames, bars, tooltips, and text that is safe to draw."""

import sys
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import holoviews as hv
import holoviews.plotting.bokeh

BLUE, RED, GREY, INK = "#0072B2", "#D55E00", "#777777", "#24292F"
NAME_LENGTH = 90

Chart = Any  # HoloViews has no types
Rows = Any  # a pandas.DataFrame; the docstring of each chart names the columns that it reads


def plain_text(text: object, length: int | None = None) -> str:
    r"""Return untrusted text without control characters, and without marks that Bokeh would read as TeX.

    Parameters
    ----------
    text : object
        The text, or an object to convert to text.
    length : int, optional
        Longest text in characters; longer text is cut and ends in an ellipsis.

    Examples
    --------
    >>> plain_text("a\x1b[31m\u202eb $$x$$")
    'a[31mb $x$'
    """
    visible = "".join(c if c.isprintable() else " " if c.isspace() else "" for c in str(text))
    for mark in ("$$", "\\(", "\\["):
        while mark in visible:
            visible = visible.replace(mark, mark[1:])
    return visible if length is None or len(visible) <= length else visible[: length - 1] + "…"


def hover_tips(*tips: tuple[str, str]) -> dict[str, Any]:
    """Return options for a tooltip of (label, value) pairs; Bokeh escapes the values of columns."""
    return {"tools": ["hover"], "hover_tooltips": list(tips)}


def bars_chart(bars: Chart, title: str, xlabel: str, hover: Mapping[str, Any]) -> Chart:
    """Return horizontal bars with a frame, each in its colour."""
    return bars.opts(
        color="colour",
        line_color=None,
        bar_width=0.72,
        invert_axes=True,
        ylabel=xlabel,
        xlabel="",
        height=96 + 26 * max(len(bars), 1),
        show_legend=False,
        **framed(title),
        **{**hover, "backend": "bokeh"},
    )


def overlay(layers: Sequence[Chart], title: str, labels: tuple[str, str], *, height: int, **look: Any) -> Chart:
    """Return the layers as one chart with a legend, by default above the data."""
    return hv.Overlay(layers).opts(
        xlabel=labels[0],
        ylabel=labels[1],
        height=height,
        **framed(title),
        **{"legend_position": "top", "legend_cols": 7, **look},
        backend="bokeh",
    )


def framed(title: str) -> dict[str, Any]:
    """Return the options of every chart: title, width and tools."""
    _load_into_notebook()
    return {
        "title": title,
        "responsive": True,
        "toolbar": "right",
        "default_tools": ["xpan", "xbox_zoom", "reset", "save"],
        "active_tools": [],
        "hooks": [_finish],
        "fontsize": {"title": "11pt", "labels": "9pt", "xticks": "8pt", "yticks": "8pt", "legend": "8pt"},
    }


@cache
def _load_into_notebook() -> None:
    """Load Bokeh into the notebook that asks for a chart, if any; without it, a notebook shows a chart as text."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if hasattr(shell, "kernel"):
        hv.extension("bokeh", logo=False)


def _finish(plot: Any, _element: Any) -> None:
    """Set the properties of Bokeh that HoloViews has no option for."""
    figure = plot.state
    figure.toolbar.logo = None
    figure.outline_line_color = None
    figure.axis.axis_label_text_font_style = "normal"
    figure.axis.minor_tick_line_color = None
    figure.axis.axis_line_color = "#8C959F"
    figure.axis.major_tick_line_color = "#8C959F"
    figure.xgrid.grid_line_color = "#E6E9ED"
    figure.ygrid.grid_line_color = None
    for legend in figure.legend:
        legend.border_line_color = None
        legend.click_policy = "hide"
        legend.padding, legend.margin, legend.spacing = 2, 4, 8
        legend.glyph_width = legend.glyph_height = 12
