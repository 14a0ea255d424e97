"""Charts of projections and of overlap studies: speed-ups with intervals, sweeps, choices, and lanes of pieces."""

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
    """Return the chart of the speed-up of each what-if with its interval, from top to bottom.

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
        chosen = [row for row in rows if _verdict(row) == verdict]
        if chosen:
            layers += _intervals(chosen, [level[id(row)] for row in chosen], (verdict, colour))
    ticks = [(level[id(row)], _ticks(row.what_if)) for row in rows]
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
            kdims=["speedup", "level"],
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
    """Return the chart of speed-ups, with a row for each scenario and a mark for each policy.

    Parameters
    ----------
    speedups : mapping of str to mapping of str to float
        Speed-ups by scenario, then by policy: the same policies for every scenario, up to eight.
    title : str
        Title of the chart.

    Returns
    -------
    holoviews.Overlay
        A ``VLine`` at 1, and ``Points`` for each policy.

    Raises
    ------
    InvalidInputError
        There is no scenario, there are more than eight policies, or scenarios have different policies.
    """
    names = list(speedups)
    policies = list(speedups[names[0]]) if names else []
    _check(policies, [list(speedups[name]) for name in names])
    levels = np.arange(len(names), dtype=np.float64)[::-1]
    shown = [plain_text(name, NAME_LENGTH) for name in names]
    layers = [hv.VLine(1.0).opts(color=INK, line_width=1, line_dash="dashed", backend="bokeh")]
    tips = hover_tips(("scenario", "@scenario"), ("speed-up", "@speedup{0.000}"))
    for policy, (colour, marker) in zip(policies, _LOOKS, strict=False):
        values = np.array([speedups[name][policy] for name in names])
        points = hv.Points(
            (values, levels, shown), kdims=["speedup", "level"], vdims=["scenario"], label=plain_text(policy, 40)
        )
        layers.append(points.opts(color=colour, marker=marker, size=9, line_color="white", backend="bokeh", **tips))
    return overlay(
        layers,
        plain_text(title, NAME_LENGTH),
        ("speed-up (1 = one after the other)", ""),
        height=120 + 18 * len(names),
        ylim=(-0.6, len(names) + 0.2),
        yticks=list(zip(levels.tolist(), shown, strict=True)),
    )


def sweep_curves(
    x: npt.ArrayLike, curves: Mapping[str, npt.ArrayLike], labels: tuple[str, str], title: str = "Sweep"
) -> Chart:
    """Return the chart of curves over a parameter, with a mark at each simulated value.

    Parameters
    ----------
    x : array-like, shape (n,)
        Values of the parameter.
    curves : mapping of str to array-like, shape (n,)
        Curves by name, up to eight.
    labels : pair of str
        Labels of the axes.
    title : str
        Title of the chart.

    Returns
    -------
    holoviews.Overlay
        A ``Curve`` and a ``Scatter`` for each curve.

    Raises
    ------
    InvalidInputError
        There is no curve, there are more than eight, or one has another length than `x`.
    """
    parameter = np.asarray(x, dtype=np.float64)
    values = {name: np.asarray(curve, dtype=np.float64) for name, curve in curves.items()}
    _check(list(values), [])
    layers = []
    for (name, curve), (colour, marker) in zip(values.items(), _LOOKS, strict=False):
        if curve.shape != parameter.shape:
            raise InvalidInputError(f"the curve {name[:40]!r} has shape {curve.shape}, x has {parameter.shape}")
        columns, label = (parameter, curve), plain_text(name, 40)
        axes = {"kdims": ["x"], "vdims": ["value"], "label": label}
        layers.append(hv.Curve(columns, **axes).opts(color=colour, line_width=2, backend="bokeh"))
        marks = hv.Scatter(columns, **axes)
        layers.append(marks.opts(color=colour, marker=marker, size=7, line_color="white", backend="bokeh"))
    return overlay(layers, plain_text(title, NAME_LENGTH), labels, height=360)


def choice_map(
    x: npt.ArrayLike, y: npt.ArrayLike, choice: npt.ArrayLike, labels: tuple[str, str], title: str = "Best choice"
) -> Chart:
    """Return the chart of the best choice over a plane, with a mark for each point.

    Parameters
    ----------
    x, y : array-like, shape (n,)
        Coordinates of the points, above zero; both axes are logarithmic.
    choice : array-like of str, shape (n,)
        Best choice at each point, up to eight different ones.
    labels : pair of str
        Labels of the axes.
    title : str
        Title of the chart.

    Returns
    -------
    holoviews.Overlay
        ``Points`` for each choice.

    Raises
    ------
    InvalidInputError
        There is no point, there are more than eight choices, or columns differ in length.
    """
    columns = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    names = np.asarray(choice, dtype=np.str_)
    if not columns[0].shape == columns[1].shape == names.shape:
        shapes = f"{columns[0].shape}, {columns[1].shape} and {names.shape}"
        raise InvalidInputError(f"x, y and choice have shapes {shapes}")
    choices = sorted(set(names.tolist()))
    _check(choices, [])
    layers = []
    for name, (colour, marker) in zip(choices, _LOOKS, strict=False):
        rows = names == name
        label = f"{plain_text(name, 40)} ({int(rows.sum())})"
        points = hv.Points((columns[0][rows], columns[1][rows]), kdims=["x", "y"], label=label)
        layers.append(points.opts(color=colour, marker=marker, size=7, line_color=None, alpha=0.8, backend="bokeh"))
    return overlay(layers, plain_text(title, NAME_LENGTH), labels, height=420, logx=True, logy=True)


def piece_lanes(pieces: pa.Table, title: str = "Stages and chunks") -> Chart:
    """Return the timeline of stages and chunks, with a row for each lane and neighbours in two shades.

    Parameters
    ----------
    pieces : pyarrow.Table
        Columns `lane`, `number`, `start_ns`, `end_ns`, as `replay.studies.t3.lanes` returns them.
    title : str
        Title of the chart.

    Returns
    -------
    holoviews.Overlay
        ``Rectangles`` for each shade.

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
        rows = number % 2 == odd
        columns = (start[rows] / unit.ns, middle[rows] - 0.4, end[rows] / unit.ns, middle[rows] + 0.4, number[rows])
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


def _check(names: Sequence[str], scenarios: Sequence[Sequence[str]]) -> None:
    if not 1 <= len(names) <= len(_LOOKS):
        raise InvalidInputError(f"a chart shows 1 to {len(_LOOKS)} series, not {len(names)}")
    if any(policies != list(names) for policies in scenarios):
        raise InvalidInputError("every scenario needs the same policies in the same order")
