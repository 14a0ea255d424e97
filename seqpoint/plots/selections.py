"""Charts of selections: lengths, selected iterations, and the errors and intervals of selectors."""

from collections.abc import Mapping, Sequence

import holoviews as hv
import numpy as np

from profilers.trace.arrays import Floats
from seqpoint.plots.frame import BLUE, GREY, INK, RED, Chart, Rows, bars_chart, hover_tips, overlay, plain_text
from seqpoint.plots.saving import saveable
from seqpoint.units import time_unit

#: Most bars of the histogram. Whole lengths that span fewer values get a bar each.
_MAX_BARS = 80
#: Smallest error that a logarithmic axis shows, in per cent.
_MIN_PERCENT = 1e-3
#: Colour and dash of each of `seqpoint.selection.evaluation.SHOWN`.
_LOOKS = (
    (RED, "solid"),
    (RED, "dashed"),
    (BLUE, "solid"),
    ("#009E73", "solid"),
    ("#56B4E9", "dashed"),
    (GREY, "solid"),
    (GREY, "dashed"),
    (INK, "dotted"),
)
#: Width of a label over a point, as a share of the chart.
_LABEL_WIDTH = 0.05
#: Levels that close labels are spread over.
_LEVELS = 4


@saveable
def length_histogram(lengths: Floats, points: Rows, edges: Floats) -> Chart:
    """Return the histogram of sequence lengths, with the edges of the bins and the SeqPoints with their weights.

    Parameters
    ----------
    lengths : array of float64
        Sequence length of each iteration.
    points : pandas.DataFrame
        Selected iterations, with ``iteration``, ``sequence_length`` and ``weight``.
    edges : array of float64
        Edges of the bins of lengths.

    Returns
    -------
    holoviews.Overlay
        ``Histogram``, ``Segments``, ``Points`` and ``Labels``.
    """
    counts, ends = np.histogram(lengths, bins=_bars(lengths))
    top = float(counts.max())
    x = points.sequence_length.to_numpy(dtype=np.float64)
    level = _levels(x, ends)
    y = top * (1.1 + 0.11 * level)
    cuts = np.unique(edges)
    floor = np.zeros(len(cuts))
    texts = [f"×{weight:g}" for weight in points.weight]
    marks = (x, y, points.weight.to_numpy(), points.iteration.to_numpy())
    layers = [
        hv.Histogram((ends, counts), kdims=["length"], vdims=["iterations"], label="iterations").opts(
            fill_color="#9DB7D5", line_color="white", line_width=0.5, backend="bokeh"
        ),
        hv.Segments((cuts, floor, cuts, floor + top * 1.04), label="edge of a bin").opts(
            color=GREY, line_dash="dashed", line_width=1, backend="bokeh"
        ),
        hv.Points(marks, kdims=["length", "at"], vdims=["weight", "iteration"], label="SeqPoint (× its weight)").opts(
            color=RED,
            marker="inverted_triangle",
            size=9,
            backend="bokeh",
            **hover_tips(("iteration", "@iteration"), ("length", "@length"), ("weight", "@weight")),
        ),
        hv.Labels((x, y, texts)).opts(text_font_size="9pt", text_color=INK, yoffset=top * 0.055, backend="bokeh"),
    ]
    title = f"{len(lengths)} iterations by length, {len(x)} chosen"
    ylim = (0.0, top * (1.22 + 0.11 * float(level.max(initial=0))))
    return overlay(layers, title, ("sequence length", "iterations"), height=300, ylim=ylim)


@saveable
def statistic_by_length(iterations: Rows, points: Rows, statistic: str, unit: str) -> Chart:
    """Return the chart of a statistic by sequence length, with the SeqPoints highlighted.

    Parameters
    ----------
    iterations : pandas.DataFrame
        Iterations, with ``iteration``, ``sequence_length`` and the statistic.
    points : pandas.DataFrame
        Selected iterations, with ``iteration`` and ``weight``.
    statistic, unit : str
        The statistic to draw, and its unit.

    Returns
    -------
    holoviews.Overlay
        ``Scatter`` of all iterations and of the points.
    """
    values, unit = _in_unit(iterations[statistic].to_numpy(), unit)
    x, number = iterations.sequence_length.to_numpy(), iterations.iteration.to_numpy()
    order = np.argsort(number)
    rows = order[np.searchsorted(number, points.iteration, sorter=order)]
    label = f"{statistic.replace('_', ' ')}{f' ({unit})' if unit else ''}"
    shown = (statistic, f"@value{{0,0.[000]}} {unit}")
    hover = hover_tips(("iteration", "@iteration"), ("length", "@length"), shown)
    chosen = hover_tips(("SeqPoint", "iteration @iteration"), ("weight", "@weight"), shown)
    layers = [
        hv.Scatter((x, values, number), kdims=["length"], vdims=["value", "iteration"], label="iteration").opts(
            color=BLUE, alpha=0.45, size=6, line_color=None, backend="bokeh", **hover
        ),
        hv.Scatter(
            (x[rows], values[rows], number[rows], points.weight.to_numpy()),
            kdims=["length"],
            vdims=["value", "iteration", "weight"],
            label="SeqPoint",
        ).opts(color=RED, marker="diamond", size=14, line_color="white", backend="bokeh", **chosen),
    ]
    ylim = (0.0, float(values.max()) * 1.08)
    return overlay(layers, f"{label} by length", ("sequence length", label), height=300, ylim=ylim)


@saveable
def statistic_by_iteration(iterations: Rows, statistic: str, unit: str = "") -> Chart:
    """Return the chart of a statistic over the iterations, with a colour for each rank.

    Parameters
    ----------
    iterations : pandas.DataFrame
        Iterations, with ``rank``, ``iteration``, ``sequence_length`` and the statistic.
    statistic : str
        The statistic to draw.
    unit : str
        Its unit.

    Returns
    -------
    holoviews.Overlay
        A ``Scatter`` for each rank.
    """
    values, unit = _in_unit(iterations[statistic].to_numpy(), unit)
    label = statistic.replace("_", " ") + (f" ({unit})" if unit else "")
    layers = []
    for rank, of_rank in iterations.assign(value=values).groupby("rank"):
        rows = tuple(of_rank[name].to_numpy() for name in ("iteration", "value", "sequence_length"))
        tips = hover_tips(("rank", str(rank)), ("iteration", "@iteration"), ("length", "@length"))
        dots = hv.Scatter(rows, kdims=["iteration"], vdims=["value", "length"], label=f"rank {rank}")
        layers.append(dots.opts(size=5, **tips))
    return overlay(layers, f"{label[:1].upper()}{label[1:]} by iteration", ("iteration", label), height=300)


@saveable
def baseline_errors(rows: Rows, statistic: str) -> Chart:
    """Return the chart of the error of the total by selector, SeqPoint first.

    Parameters
    ----------
    rows : pandas.DataFrame
        The selection, then its baselines, with ``selector``, ``points`` and ``error``.
    statistic : str
        The statistic that is totalled.

    Returns
    -------
    holoviews.Bars
        A bar for each selector.
    """
    chosen = rows.selector.iloc[0]
    cells = [
        (
            f"{name}, {points} point{'s' * (points != 1)}  {100 * error:.2f} %",
            100 * error,
            points,
            RED if name == chosen else "#9DB7D5",
        )
        for name, points, error in rows[["selector", "points", "error"]][::-1].itertuples(index=False)
    ]
    tips = hover_tips(("selector", "@selector"), ("error", "@error{0.[000]} %"), ("points", "@points"))
    bars = hv.Bars(cells, kdims=["selector"], vdims=["error", "points", "colour"])
    return bars_chart(bars, f"Error of the estimated total {statistic.replace('_', ' ')}", "error (%)", tips)


@saveable
def errors_by_points(errors: Mapping[str, Sequence[float]], counts: Sequence[int], statistic: str) -> Chart:
    """Return the chart of the error of the total by number of points, on held-out iterations.

    Parameters
    ----------
    errors : mapping of str to sequence of float
        Relative errors of each selector, as `seqpoint.selection.evaluation.errors_of` returns them.
    counts : sequence of int
        Numbers of points that the errors belong to.
    statistic : str
        The statistic that is totalled.

    Returns
    -------
    holoviews.Overlay
        A ``Curve`` for each selector.
    """
    curves = []
    for (name, values), (colour, dash) in zip(errors.items(), _LOOKS, strict=True):
        rows = [(count, max(100 * error, _MIN_PERCENT)) for count, error in zip(counts, values, strict=True)]
        tips = hover_tips(("selector", name), ("points", "@points"), ("error", "@error{0.[000]} %"))
        curve = hv.Curve(rows, kdims=["points"], vdims=["error"], label=name)
        curves.append(curve.opts(color=colour, line_dash=dash, line_width=2.5 if name == "seqpoint" else 1.5, **tips))
    title = f"Error of {statistic.replace('_', ' ')}: chosen on every second iteration, judged on the others"
    return overlay(curves, title, ("points", "error (%)"), height=320, logy=True, xticks=list(counts), yformatter="%g")


@saveable
def interval_coverage(coverages: Rows, confidence: float) -> Chart:
    """Return the chart of the coverage of the intervals of several selectors.

    Parameters
    ----------
    coverages : pandas.DataFrame
        Coverage by selector: ``covered``, ``low``, ``high`` and ``half_width``, as shares; the index names selectors.
    confidence : float
        The nominal confidence level.

    Returns
    -------
    holoviews.Overlay
        ``Scatter`` of the share of 200 resampled epochs, with a row for each selector; ``Segments`` of the interval of
        that share; a ``VLine`` at the nominal confidence.
    """
    named = list(coverages[::-1].itertuples())
    rows = [
        (100 * row.covered, level, row.Index, 100 * row.half_width, RED if "seqpoint" in row.Index else BLUE)
        for level, row in enumerate(named)
    ]
    tips = hover_tips(("selector", "@selector"), ("covered", "@covered{0.0} %"), ("half-width", "@width{0.[000]} %"))
    dots = hv.Scatter(rows, kdims=["covered"], vdims=["level", "selector", "width", "colour"])
    spans = [(100 * row.low, level, 100 * row.high, level) for level, row in enumerate(named)]
    layers = [
        hv.VLine(100 * confidence).opts(color=INK, line_dash="dashed", line_width=1),
        hv.Segments(spans).opts(color=GREY, line_width=2),
        dots.opts(color="colour", size=9, **tips),
    ]
    title = f"Resampled epochs whose total lies in the {100 * confidence:g} % interval"
    ticks = [(level, row.Index) for level, row in enumerate(named)]
    return overlay(layers, title, ("epochs (%)", ""), height=200, yticks=ticks, ylim=(-0.6, len(named) - 0.4))


def _bars(lengths: Floats) -> Floats:
    """Return the edges of the histogram's bars."""
    low, high = float(lengths.min()), float(lengths.max())
    if high - low < _MAX_BARS:
        return np.asarray(np.arange(np.floor(low) - 0.5, np.ceil(high) + 1.0))
    return np.asarray(np.linspace(low, high, _MAX_BARS + 1))


def _levels(x: Floats, edges: Floats) -> Floats:
    """Return for each point the level of its label, so that close labels do not cover each other."""
    level = np.zeros(len(x))
    gap = _LABEL_WIDTH * float(edges[-1] - edges[0])
    previous = -1
    for i in np.argsort(x, kind="stable").tolist():  # a few points
        if previous >= 0 and x[i] - x[previous] < gap:
            level[i] = (level[previous] + 1) % _LEVELS
        previous = i
    return level


def _in_unit(values: Floats, unit: str) -> tuple[Floats, str]:
    if unit != "ns":
        return values, "" if unit == "1" else plain_text(unit)
    best = time_unit(float(values.max()))
    return values / best.ns, best.name
