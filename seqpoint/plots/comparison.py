"""Chart of a comparison: the change of each operator, with its noise."""

from typing import TYPE_CHECKING, Any

import holoviews as hv

from profilers.errors import InvalidInputError
from seqpoint.plots.frame import BLUE, GREY, INK, NAME_LENGTH, RED, Chart, hover_tips, overlay, plain_text
from seqpoint.plots.saving import saveable
from seqpoint.units import time_unit

if TYPE_CHECKING:
    from seqpoint.comparison import Comparison

#: Most characters of an operator on the axis; the tooltip has more.
_LABEL_LENGTH = 44


@saveable
def changes_by_operator(comparison: "Comparison", top: int = 20) -> Chart:
    """Return bars of the change of each operator: red for longer, blue for shorter, grey within the noise.

    Parameters
    ----------
    comparison : Comparison
        The comparison.
    top : int
        Most operators.

    Returns
    -------
    holoviews.Overlay
        ``Bars`` of the changes, the largest on top, and ``ErrorBars`` of their noise.

    Raises
    ------
    InvalidInputError
        No operator changed.
    """
    rows = [row for row in comparison.operators if row.change_ns][:top]
    if not rows:
        raise InvalidInputError("no operator changed, so there is nothing to draw")
    unit = time_unit(max(abs(row.change_ns) for row in rows))
    names = [plain_text(f"{row.name} {row.shapes}".strip(), NAME_LENGTH) for row in rows]
    labels = [f"{number}. {plain_text(name, _LABEL_LENGTH)}" for number, name in enumerate(names, 1)]
    change = [row.change_ns / unit.ns for row in rows]
    noise = [(row.noise_ns or 0.0) / unit.ns for row in rows]
    colours = [GREY if row.beyond_noise is False else RED if row.change_ns > 0 else BLUE for row in rows]
    columns = {
        "operator": labels,
        "change": change,
        "noise": noise,
        "colour": colours,
        "name": names,
        "before": [row.before_ns / unit.ns for row in rows],
        "after": [row.after_ns / unit.ns for row in rows],
    }
    tips = (
        ("operator", "@name"), ("before", f"@before {unit.name}"), ("after", f"@after {unit.name}"),
        ("change", f"@change {unit.name}"), ("noise", f"@noise {unit.name}"),
    )  # fmt: skip
    bars = hv.Bars(columns, kdims=["operator"], vdims=list(columns)[1:]).opts(
        color="colour", line_color=None, bar_width=0.72, backend="bokeh", **hover_tips(*tips)
    )
    layers = [bars]
    if comparison.step.noise_ns is not None:
        errors = hv.ErrorBars((labels, change, noise), kdims=["operator"], vdims=["change", "noise"])
        layers.append(errors.opts(line_color=INK, hooks=[_to_front], backend="bokeh"))
    grey = "grey: within the noise" if len(layers) > 1 else "noise unknown"
    return overlay(
        layers,
        f"Change of the time of operators in a step; step time: {comparison.verdict} ({grey})",
        ("", f"after less before ({unit.name})"),
        height=110 + 26 * len(rows),
        invert_axes=True,
        invert_yaxis=True,
        show_legend=False,
    )


def _to_front(plot: Any, _element: Any) -> None:
    """Draw the marks of the noise above the bars."""
    plot.handles["glyph"].level = "overlay"
