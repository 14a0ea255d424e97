"""Charts of contention: predicted against measured times and slow-downs, and errors by mechanism.

`kernel_slowdowns` and `slowdowns_by_workgroups` show the kernels of a trace, the others the scenarios of recordings.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import holoviews as hv
import numpy as np

from profilers.errors import InvalidInputError
from profilers.trace.arrays import Bools, Floats
from seqpoint.plots.frame import INK, NAME_LENGTH, Chart, Rows, hover_tips, overlay, plain_text
from seqpoint.plots.saving import saveable
from seqpoint.units import time_unit

#: Okabe and Ito's colours, and markers of about one area, so that mechanisms can be told apart without colour.
_LOOKS: Mapping[str, tuple[str, str, int]] = MappingProxyType(
    {
        "SM": ("#0072B2", "circle", 7),
        "L2": ("#CC79A7", "diamond", 12),
        "HBM": ("#D55E00", "square", 6),
        "copy engine": ("#009E73", "triangle", 8),
        "host link": ("#E69F00", "inverted_triangle", 8),
    }
)
#: Marks of a chart of kernels at most, kinds that have a mark of their own, and the name of the others.
_MOST_MARKS, _MOST_KINDS, _OTHERS = 5000, 4, "others"
#: Room around the marks of logarithmic axes, and the shift between kinds of one number of workgroups.
_ROOM, _SHIFT = 1.1, 1.06
#: Fill of the marks of held-out scenarios, and of fitted ones.
_HELD_OUT_FILL, _FITTED_FILL = 0.85, 0.0
#: Relative errors that the bands show, and the darkness of each band.
_BANDS = ((0.25, 0.10), (0.10, 0.16))
#: Half the width of a mechanism's column of marks.
_HALF_WIDTH = 0.36


@saveable
def predicted_against_measured(cases: Rows) -> Chart:
    """Return the chart of predicted against measured times, with a mark for each scenario, on logarithmic axes.

    Marks of fitted scenarios are hollow.

    Parameters
    ----------
    cases : pandas.DataFrame
        The scenarios, as `seqpoint.validation.contention.ContentionCase` has them; at least one.

    Returns
    -------
    holoviews.Overlay
        ``Area`` for errors of 25 and 10 %, a ``Curve`` of equal times, and ``Points`` for each mechanism.

    Raises
    ------
    InvalidInputError
        There is no scenario.
    """
    _check(cases)
    unit = time_unit(float(cases.measured_ns.median()))
    times = cases[["measured_ns", "predicted_ns"]].to_numpy() / unit.ns
    # A logarithmic axis with some room around all times.
    line = np.asarray(np.geomspace(times.min() / 1.3, times.max() * 1.3, 32))
    title = "Time until all are done, predicted against measured (bands: 10 and 25 %)"
    labels = (f"measured ({unit.name})", f"predicted ({unit.name})")
    return _scatter(cases, times, line, title, labels, logx=True, logy=True)


@saveable
def slowdowns_against_measured(cases: Rows) -> Chart:
    """Return the chart of predicted against measured slow-downs: times over those without contention.

    Parameters
    ----------
    cases : pandas.DataFrame
        The scenarios, as `seqpoint.validation.contention.ContentionCase` has them; at least one.

    Returns
    -------
    holoviews.Overlay
        As `predicted_against_measured`.

    Raises
    ------
    InvalidInputError
        There is no scenario.
    """
    _check(cases)
    slower = cases[["measured_ns", "predicted_ns"]].div(cases.free_ns, axis=0).to_numpy()
    margin = 0.05 * max(float(np.ptp(slower)), 0.1)
    line = np.linspace(slower.min() - margin, slower.max() + margin, 32)
    title = "Slow-down: time over that of the longest alone, predicted against measured"
    return _scatter(cases, slower, line, title, ("measured (1 = side by side at no cost)", "predicted"))


@saveable
def error_by_mechanism(cases: Rows) -> Chart:
    """Return the chart of the error of every scenario by mechanism, with medians of errors and of the spread of takes.

    Medians are those of the held-out scenarios, or of all if all were fitted.

    Parameters
    ----------
    cases : pandas.DataFrame
        The scenarios, as `seqpoint.validation.contention.ContentionCase` has them; at least one.

    Returns
    -------
    holoviews.Overlay
        ``Points`` for each mechanism, and ``Segments`` at the medians.

    Raises
    ------
    InvalidInputError
        There is no scenario.
    """
    _check(cases)
    names = [name for name in _LOOKS if (cases.mechanism == name).any()]
    x = np.zeros(len(cases))
    lines: dict[str, list[tuple[float, float, float, float]]] = {"median error": [], "takes differ (median)": []}
    for i, name in enumerate(names):
        of_mechanism = cases[cases.mechanism == name]
        x[cases.mechanism == name] = i + _HALF_WIDTH * np.linspace(-1, 1, len(of_mechanism) + 2)[1:-1]
        held_out = of_mechanism[~of_mechanism.fitted] if not of_mechanism.fitted.all() else of_mechanism
        for line, y in zip(lines.values(), 100 * held_out[["error", "spread"]].median(), strict=True):
            line.append((i - _HALF_WIDTH, y, i + _HALF_WIDTH, y))
    errors = 100 * cases.error.to_numpy()
    layers = _marks(cases, x, errors)
    for (label, segments), dash in zip(lines.items(), ("solid", "dotted"), strict=True):
        layers.append(
            hv.Segments(segments, label=label).opts(color=INK, line_width=2.5, line_dash=dash, backend="bokeh")
        )
    return overlay(
        layers,
        "Error of the time until all are done, by the resource that is shared",
        ("", "error (%)"),
        height=380,
        xticks=list(enumerate(f"{name} ({(cases.mechanism == name).sum()})" for name in names)),
        xlim=(-0.6, len(names) - 0.4),
        ylim=(-0.03 * max(float(errors.max()), 1.0), 1.08 * max(float(errors.max()), 1.0)),
    )


@saveable
def kernel_slowdowns(kernels: Rows, method: str) -> Chart:
    """Return the chart of predicted against measured slow-downs of a trace's kernels, by class; at most 5,000 marks.

    Parameters
    ----------
    kernels : pandas.DataFrame
        Kernels beside other work: ``measured_ns``, ``predicted_ns``, ``alone_ns``, ``class`` and ``workgroups``.
    method : str
        What predicted them.

    Returns
    -------
    holoviews.Overlay
        ``Area`` for errors of 25 and 10 %, a ``Curve`` of equal slow-downs, and ``Points`` for each class.

    Raises
    ------
    InvalidInputError
        There is no kernel.
    """
    _check(kernels)
    rows = np.linspace(0, len(kernels) - 1, min(len(kernels), _MOST_MARKS)).astype(np.int64)
    shown = kernels.iloc[rows]
    slow = shown[["measured_ns", "predicted_ns"]].div(shown.alone_ns, axis=0).to_numpy()
    line = np.asarray(np.geomspace(slow.min() / _ROOM, slow.max() * _ROOM, 32))
    tips = hover_tips(
        *(("measured", "@x{0.00}"), ("predicted", "@y{0.00}"), ("workgroups", "@workgroups"), ("alone", "@us{0.0} us"))
    )
    layers = _bands(line)
    for look, (name, members) in zip(_LOOKS.values(), _kinds(shown, "class"), strict=False):
        of_kind = shown[members]
        columns = (*slow[members].T, of_kind.workgroups.to_numpy(), of_kind.alone_ns.to_numpy() / 1e3)
        points = hv.Points(columns, kdims=["x", "y"], vdims=["workgroups", "us"], label=name)
        layers.append(points.opts(**_look(look), fill_alpha=0.35, backend="bokeh", **tips))
    title = f"Kernels beside other work, {method}: slow-down, predicted against measured"
    ends = (line[0], line[-1])
    labels = ("measured (1 = as long as alone)", "predicted")
    return overlay(layers, title, labels, height=460, xlim=ends, ylim=ends, logx=True, logy=True)


@saveable
def slowdowns_by_workgroups(kernels: Rows) -> Chart:
    """Return the chart of measured slow-downs by number of workgroups, with a mark for each kind of work beside them.

    Parameters
    ----------
    kernels : pandas.DataFrame
        Kernels beside other work: ``measured_ns``, ``alone_ns``, ``workgroups`` and ``partner``.

    Returns
    -------
    holoviews.Overlay
        ``Segments`` over the central 80 % of the kernels of one grid, and ``Points`` at the medians.

    Raises
    ------
    InvalidInputError
        There is no kernel.
    """
    _check(kernels)
    slow, grids = kernels.measured_ns / kernels.alone_ns, np.maximum(kernels.workgroups, 1)
    tips = hover_tips(("workgroups", "@workgroups"), ("median", "@y{0.00}"), ("kernels", "@n"))
    layers = [hv.HLine(1).opts(color=INK, line_width=1, line_dash="dashed", backend="bokeh")]
    kinds = _kinds(kernels, "partner")
    ends = [1.0, 1.0]
    for number, (mark, (name, members)) in enumerate(zip(_LOOKS.values(), kinds, strict=False)):
        bars, marks = [], []
        for grid in np.unique(grids[members]).tolist():  # some hundred
            chosen = slow[members][grids[members] == grid]
            low, middle, high = np.quantile(chosen, (0.1, 0.5, 0.9)).tolist()
            x = grid * _SHIFT ** (number - (len(kinds) - 1) / 2)
            bars.append((x, low, x, high))
            marks.append((x, middle, grid, len(chosen)))
            ends = [min(ends[0], low), max(ends[1], high)]
        lines = hv.Segments(bars).opts(color=mark[0], line_width=1.2, line_alpha=0.6, backend="bokeh")
        points = hv.Points(marks, kdims=["x", "y"], vdims=["workgroups", "n"], label=plain_text(name, NAME_LENGTH))
        layers += [lines, points.opts(**_look(mark), fill_alpha=0.85, backend="bokeh", **tips)]
    title = "Measured slow-down by number of workgroups, and by the work beside (its workgroups)"
    wide = (grids.min() / 1.5, grids.max() * 1.5)
    look = {"xlim": wide, "ylim": (0.95 * ends[0], 1.05 * ends[1]), "xticks": _ticks(*wide)}
    labels = ("workgroups of the kernel", "time over the time alone")
    return overlay(layers, title, labels, height=460, logx=True, **look)


def _ticks(low: float, high: float) -> list[tuple[float, str]]:
    """Return powers of ten and their thirds as ticks of a logarithmic axis."""
    ticks = [base * 10**power for power in range(7) for base in (1, 3)]
    return [(tick, f"{tick:,}") for tick in ticks if low <= tick <= high]


def _kinds(kernels: Rows, column: str) -> list[tuple[str, Bools]]:
    """Return the names and the rows of the kinds with the most time alone; all others are one kind."""
    kind = kernels[column]
    total = kernels.groupby(kind, sort=False).alone_ns.sum().sort_values(ascending=False, kind="stable")
    order = total[total > 0].index.tolist()
    first = order if len(order) <= _MOST_KINDS + 1 else order[:_MOST_KINDS]
    kinds = [(name or "unknown", (kind == name).to_numpy()) for name in first]
    rest = ~kind.isin(first).to_numpy()
    return [*kinds, (_OTHERS, rest)] if rest.any() else kinds


def _look(look: tuple[str, str, int]) -> dict[str, Any]:
    colour, marker, size = look
    return {"color": colour, "marker": marker, "size": size, "line_width": 0.7}


def _check(cases: Rows) -> None:
    if not len(cases):
        raise InvalidInputError("there is no scenario and no overlapped kernel to show")


def _scatter(cases: Rows, pairs: Floats, line: Floats, title: str, labels: tuple[str, str], **look: Any) -> Chart:
    """Return the chart of pairs of a measured and a predicted value, with bands about the line of equal values."""
    layers = [*_bands(line), *_marks(cases, pairs[:, 0], pairs[:, 1])]
    ends = (line[0], line[-1])
    return overlay(layers, title, labels, height=460, xlim=ends, ylim=ends, **look)


def _bands(x: Floats) -> list[Chart]:
    layers = [
        hv.Area((x, x * (1 - share), x * (1 + share)), kdims=["x"], vdims=["low", "high"]).opts(
            color="#777777", fill_alpha=alpha, line_alpha=0.0, backend="bokeh"
        )
        for share, alpha in _BANDS
    ]
    same = hv.Curve((x, x), kdims=["x"], vdims=["same"])
    return [*layers, same.opts(color=INK, line_width=1, line_dash="dashed", backend="bokeh")]


def _marks(cases: Rows, x: Floats, y: Floats) -> list[Chart]:
    tips = hover_tips(
        ("scenario", "@scenario"), ("policy", "@policy"), ("error", "@error{0.0} %"), ("takes differ", "@spread{0.0} %")
    )
    layers = []
    for name, mark in _LOOKS.items():
        rows = (cases.mechanism == name).to_numpy()
        if not rows.any():
            continue
        of_mechanism = cases[rows]
        columns = (
            x[rows],
            y[rows],
            [plain_text(scenario, NAME_LENGTH) for scenario in of_mechanism.scenario],
            [plain_text(policy, NAME_LENGTH) for policy in of_mechanism.policy],
            (100 * of_mechanism.error).to_numpy(),
            (100 * of_mechanism.spread).to_numpy(),
            np.where(of_mechanism.fitted, _FITTED_FILL, _HELD_OUT_FILL),
        )
        values = ["scenario", "policy", "error", "spread", "full"]
        points = hv.Points(columns, kdims=["x", "y"], vdims=values, label=name)
        layers.append(points.opts(**_look(mark), fill_alpha="full", backend="bokeh", **tips))
    return layers
