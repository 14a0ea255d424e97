"""Charts of changes with intervals: the speed-ups of what-ifs, and the operators of a comparison."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import holoviews as hv
import numpy as np

from profilers.errors import InvalidInputError
from replay.projection.projection import Projection
from replay.projection.rows import ProjectionRow
from seqpoint.plots.frame import BLUE, GREY, INK, NAME_LENGTH, RED, Chart, hover_tips, overlay, plain_text
from seqpoint.plots.saving import saveable
from seqpoint.units import time_unit

if TYPE_CHECKING:
    from seqpoint.comparison import Comparison

#: Most characters of an operator on the axis; the tooltip has more.
_LABEL_LENGTH = 44


@saveable
def projection_intervals(projection: Projection) -> Chart:
    """Return the chart of the speed-up of each what-if with its interval, from top to bottom.

    A what-if that is not applicable has its row, without a point.

    Parameters
    ----------
    projection : Projection
        The projected what-ifs.

    Returns
    -------
    holoviews.Overlay
        A ``VLine`` at 1, and ``Segments`` and ``Points`` for each verdict.
    """
    rows = projection.rows
    level = {id(row): float(len(rows) - 1 - i) for i, row in enumerate(rows)}
    layers = [hv.VLine(1.0).opts(color=INK, line_width=1, line_dash="dashed", backend="bokeh")]
    for verdict, colour in (("faster", BLUE), ("slower", RED), ("either: the interval holds 1", GREY)):
        chosen = [row for row in rows if row.applied and _verdict(row) == verdict]
        if chosen:
            layers += _intervals(chosen, [level[id(row)] for row in chosen], (verdict, colour))
    ticks = [(level[id(row)], _label(row)) for row in rows]
    lines = sum(max(1, label.count("\n") + 1) for _, label in ticks)
    ends = [1.0, *(end for row in rows if row.applied for end in (row.low, row.high))]
    margin = 0.06 * (max(ends) - min(ends)) or 0.05
    return overlay(
        layers,
        "Projected speed-up, with its interval",
        ("speed-up (1 = as fast as the baseline)", ""),
        height=110 + 26 * len(rows) + 12 * (lines - len(rows)),
        ylim=(-0.6, len(rows) - 0.4),
        xlim=(min(ends) - margin, max(ends) + margin),
        yticks=ticks,
    )


def _label(row: ProjectionRow) -> str:
    return "\n+ ".join(plain_text(step, 40) for step in row.what_if) + ("" if row.applied else "\nnot applicable")


def _verdict(row: ProjectionRow) -> str:
    if row.low > 1:
        return "faster"
    return "slower" if row.high < 1 else "either: the interval holds 1"


def _intervals(rows: Sequence[ProjectionRow], y: Sequence[float], look: tuple[str, str]) -> list[Chart]:
    low, high, value = (np.array([getattr(row, name) for row in rows]) for name in ("low", "high", "speedup"))
    names = [plain_text(" + ".join(row.what_if), NAME_LENGTH) for row in rows]
    hover = hover_tips(
        ("what-if", "@name"), ("speed-up", "@speedup{0.000}"), ("interval", "@low{0.000} to @high{0.000}")
    )
    verdict, colour = look
    return [
        hv.Segments((low, y, high, y)).opts(color=colour, line_width=3, backend="bokeh"),
        hv.Points(
            (value, y, names, low, high),
            kdims=["speedup", "level"],
            vdims=["name", "low", "high"],
            label=verdict,
        ).opts(color=colour, size=10, line_color="white", backend="bokeh", **hover),
    ]


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
    sides, sign = (("before", "after"), 1) if comparison.projection is None else (("measured", "projected"), -1)
    names = [plain_text(f"{row.name} {row.shapes}".strip(), NAME_LENGTH) for row in rows]
    labels = [f"{number}. {plain_text(name, _LABEL_LENGTH)}" for number, name in enumerate(names, 1)]
    change = [sign * row.change_ns / unit.ns for row in rows]
    noise = [(row.noise_ns or 0.0) / unit.ns for row in rows]
    colours = [
        GREY if row.beyond_noise is False else RED if each > 0 else BLUE for row, each in zip(rows, change, strict=True)
    ]
    columns = {
        "operator": labels,
        "change": change,
        "noise": noise,
        "colour": colours,
        "name": names,
        sides[0]: [(row.before_ns if sign > 0 else row.after_ns) / unit.ns for row in rows],
        sides[1]: [(row.after_ns if sign > 0 else row.before_ns) / unit.ns for row in rows],
    }
    tips = (
        ("operator", "@name"), *((side, f"@{side} {unit.name}") for side in sides),
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
    what = "Change" if comparison.projection is None else "Error"
    return overlay(
        layers,
        f"{what} of the time of operators in a step; step time: {comparison.verdict} ({grey})",
        ("", f"{sides[1]} less {sides[0]} ({unit.name})"),
        height=110 + 26 * len(rows),
        invert_axes=True,
        invert_yaxis=True,
        show_legend=False,
    )


def _to_front(plot: Any, _element: Any) -> None:
    """Draw the marks of the noise above the bars."""
    plot.handles["glyph"].level = "overlay"
