"""Charts of projections and of overlap studies: speed-ups with intervals, sweeps, choices, and lanes of pieces."""

from collections.abc import Sequence

import holoviews as hv
import numpy as np

from replay.projection.projection import Projection
from replay.projection.rows import ProjectionRow
from seqpoint.plots.frame import BLUE, GREY, INK, NAME_LENGTH, RED, Chart, hover_tips, overlay, plain_text
from seqpoint.plots.saving import saveable


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
