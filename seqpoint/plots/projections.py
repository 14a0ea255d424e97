"""Charts of projections and of the overlap studies.

Charts of projections: speed-ups with their intervals.

Charts of overlap: speed-ups by scenario, sweeps, and which choice is best where.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import holoviews as hv
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from profilers.errors import InvalidInputError
from replay.projection.projection import Projection, ProjectionRow
from seqpoint.plots.frame import BLUE, GREY, INK, NAME_LENGTH, RED, hover_tips, overlay, plain_text
from seqpoint.units import time_unit

Chart = Any  # HoloViews has no types


def projection_intervals(projection: Projection) -> Chart:
    """Return the speed-up of each what-if with its interval, in their order from top to bottom.

    Returns
    -------
    holoviews.Overlay
        A ``VLine`` at 1, and ``Segments`` and ``Points`` a verdict.
    """
    rows = projection.rows
    place = {id(row): float(len(rows) - 1 - i) for i, row in enumerate(rows)}
    layers = [hv.VLine(1.0).opts(color=INK, line_width=1, line_dash="dashed", backend="bokeh")]
    for verdict, colour in (("faster", BLUE), ("slower", RED), ("either: the interval holds 1", GREY)):
        mine = [row for row in rows if _verdict(row) == verdict]
        if mine:
            layers += _intervals(mine, [place[id(row)] for row in mine], (verdict, colour))
    ticks = [(place[id(row)], _ticks(row.what_if)) for row in rows]
    lines = sum(max(1, label.count("\n") + 1) for _, label in ticks)
    ends = [1.0, *(row.low for row in rows), *(row.high for row in rows)]
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


def _verdict(row: ProjectionRow) -> str:
    if row.low > 1:
        return "faster"
    return "slower" if row.high < 1 else "either: the interval holds 1"


def _ticks(steps: Sequence[str]) -> str:
    return "\n+ ".join(plain_text(step, 40) for step in steps)


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
            kdims=["speedup", "place"],
            vdims=["name", "low", "high"],
            label=verdict,
        ).opts(color=colour, size=10, line_color="white", backend="bokeh", **hover),
    ]


#: Okabe and Ito's colours, and markers, so that series can be told apart without colour.
_LOOKS = (
    ("#0072B2", "circle"),
    ("#D55E00", "square"),
    ("#009E73", "triangle"),
    ("#CC79A7", "diamond"),
    ("#E69F00", "inverted_triangle"),
    ("#56B4E9", "hex"),
    ("#777777", "star"),
    ("#332288", "plus"),
)


def speedup_by_scenario(speedups: Mapping[str, Mapping[str, float]], title: str = "Speed-up by scenario") -> Chart:
    """Return the speed-up of every scenario under every policy, a row a scenario, a mark a policy.

    Parameters
    ----------
    speedups : mapping of str to mapping of str to float
        By scenario, then by policy: the same policies, up to eight.
    title : str

    Returns
    -------
    holoviews.Overlay
        A ``VLine`` at 1, and ``Points`` a policy.

    Raises
    ------
    InvalidInputError
        There is no scenario, more than eight policies, or scenarios differ in theirs.
    """
    names = list(speedups)
    policies = list(speedups[names[0]]) if names else []
    _check(policies, [list(speedups[name]) for name in names])
    place = np.arange(len(names), dtype=np.float64)[::-1]
    shown = [plain_text(name, NAME_LENGTH) for name in names]
    layers = [hv.VLine(1.0).opts(color=INK, line_width=1, line_dash="dashed", backend="bokeh")]
    tips = hover_tips(("scenario", "@scenario"), ("speed-up", "@speedup{0.000}"))
    for policy, (colour, marker) in zip(policies, _LOOKS, strict=False):
        values = np.array([speedups[name][policy] for name in names])
        points = hv.Points(
            (values, place, shown), kdims=["speedup", "place"], vdims=["scenario"], label=plain_text(policy, 40)
        )
        layers.append(points.opts(color=colour, marker=marker, size=9, line_color="white", backend="bokeh", **tips))
    return overlay(
        layers,
        plain_text(title, NAME_LENGTH),
        ("speed-up (1 = one after the other)", ""),
        height=120 + 18 * len(names),
        ylim=(-0.6, len(names) + 0.2),
        yticks=list(zip(place.tolist(), shown, strict=True)),
    )


def sweep_curves(
    x: npt.ArrayLike, curves: Mapping[str, npt.ArrayLike], labels: tuple[str, str], title: str = "Sweep"
) -> Chart:
    """Return curves over one parameter, with a mark at each value that was simulated.

    Parameters
    ----------
    x : array-like, shape (n,)
    curves : mapping of str to array-like, shape (n,)
        Up to eight.
    labels : pair of str
        Of the axes.
    title : str

    Returns
    -------
    holoviews.Overlay
        A ``Curve`` and ``Scatter`` each.

    Raises
    ------
    InvalidInputError
        There is no curve, there are more than eight, or one has another length than `x`.
    """
    at = np.asarray(x, dtype=np.float64)
    values = {name: np.asarray(curve, dtype=np.float64) for name, curve in curves.items()}
    _check(list(values), [])
    layers = []
    for (name, curve), (colour, marker) in zip(values.items(), _LOOKS, strict=False):
        if curve.shape != at.shape:
            raise InvalidInputError(f"the curve {name[:40]!r} has shape {curve.shape}, x has {at.shape}")
        columns, label = (at, curve), plain_text(name, 40)
        axes = {"kdims": ["x"], "vdims": ["value"], "label": label}
        layers.append(hv.Curve(columns, **axes).opts(color=colour, line_width=2, backend="bokeh"))
        marks = hv.Scatter(columns, **axes)
        layers.append(marks.opts(color=colour, marker=marker, size=7, line_color="white", backend="bokeh"))
    return overlay(layers, plain_text(title, NAME_LENGTH), labels, height=360)


def choice_map(
    x: npt.ArrayLike, y: npt.ArrayLike, choice: npt.ArrayLike, labels: tuple[str, str], title: str = "Best choice"
) -> Chart:
    """Return which choice is best over a plane, a mark a point.

    Parameters
    ----------
    x, y : array-like, shape (n,)
        Above zero; both axes are logarithmic.
    choice : array-like of str, shape (n,)
        Up to eight different ones.
    labels : pair of str
        Of the axes.
    title : str

    Returns
    -------
    holoviews.Overlay
        ``Points`` a choice.

    Raises
    ------
    InvalidInputError
        There is no point, there are more than eight choices, or columns differ in length.
    """
    at, up = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    names = np.asarray(choice, dtype=np.str_)
    if not at.shape == up.shape == names.shape:
        raise InvalidInputError(f"x, y and choice have shapes {at.shape}, {up.shape} and {names.shape}")
    found = sorted(set(names.tolist()))
    _check(found, [])
    layers = []
    for name, (colour, marker) in zip(found, _LOOKS, strict=False):
        mine = names == name
        points = hv.Points((at[mine], up[mine]), kdims=["x", "y"], label=f"{plain_text(name, 40)} ({int(mine.sum())})")
        layers.append(points.opts(color=colour, marker=marker, size=7, line_color=None, alpha=0.8, backend="bokeh"))
    return overlay(layers, plain_text(title, NAME_LENGTH), labels, height=420, logx=True, logy=True)


def piece_lanes(pieces: pa.Table, title: str = "Stages and chunks") -> Chart:
    """Return when pieces ran, a row a lane, neighbours in two shades with their number in the tip.

    Parameters
    ----------
    pieces : pyarrow.Table
        Columns `lane`, `number`, `start_ns`, `end_ns`, as `replay.studies.t3.lanes` returns them.
    title : str

    Returns
    -------
    holoviews.Overlay
        ``Rectangles`` a shade.

    Raises
    ------
    InvalidInputError
        There is no piece.
    """
    if not len(pieces):
        raise InvalidInputError("there is no piece to show")
    names = pieces["lane"].to_pylist()
    lanes = list(dict.fromkeys(names))
    start, end, number = (pieces[name].to_numpy() for name in ("start_ns", "end_ns", "number"))
    unit = time_unit(float(end.max()))
    middle = np.array([len(lanes) - 1.0 - lanes.index(name) for name in names])
    tips = hover_tips(
        ("piece", "@number"), ("from", f"@left{{0.000}} {unit.name}"), ("to", f"@right{{0.000}} {unit.name}")
    )
    layers = []
    for odd, (colour, _) in enumerate(_LOOKS[:2]):
        mine = number % 2 == odd
        columns = (start[mine] / unit.ns, middle[mine] - 0.4, end[mine] / unit.ns, middle[mine] + 0.4, number[mine])
        shown = hv.Rectangles(columns, kdims=["left", "bottom", "right", "top"], vdims=["number"])
        layers.append(shown.opts(fill_color=colour, line_color="white", line_width=0.5, backend="bokeh", **tips))
    ticks = [(len(lanes) - 1.0 - i, plain_text(lane, 40)) for i, lane in enumerate(lanes)]
    return overlay(
        layers,
        plain_text(title, NAME_LENGTH),
        (f"time ({unit.name})", ""),
        height=120 + 30 * len(lanes),
        ylim=(-0.7, len(lanes) - 0.3),
        yticks=ticks,
    )


def _check(names: Sequence[str], each: Sequence[Sequence[str]]) -> None:
    if not 1 <= len(names) <= len(_LOOKS):
        raise InvalidInputError(f"a chart shows 1 to {len(_LOOKS)} series, not {len(names)}")
    if any(one != list(names) for one in each):
        raise InvalidInputError("every scenario needs the same policies in the same order")
