"""Charts of operators: a roofline, a treemap, an icicle of phases and classes, and the efficiency of GEMMs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import holoviews as hv
import numpy as np
from bokeh.core.properties import value
from bokeh.palettes import interp_palette

from profilers.devices.catalogue import Device
from profilers.errors import InvalidInputError
from seqpoint.plots.frame import INK, NAME_LENGTH, Chart, Rows, framed, hover_tips, overlay, plain_text
from seqpoint.plots.saving import saveable
from seqpoint.plots.timelines import class_colours
from seqpoint.units import duration

#: Colours of bounds, by Okabe and Ito.
_BOUNDS: Final = {"compute": "#0072B2", "memory": "#D55E00", "latency": "#E69F00"}
#: Share of the kernel time from which a row is a mark.
_DRAWN: Final = 1e-3
#: Dashes of the roofs of data types.
_DASHES: Final = ("solid", "dashed", "dotted", "dotdash")
#: Diameters of the marks of the smallest and the largest share of time, in pixels.
_SMALLEST, _LARGEST = 5.0, 34.0
#: Share of the time from which a rectangle has its name, and shares of width and height that a character takes.
_NAMED, _CHARACTER, _LINE = 0.012, 0.0075, 0.045
#: Brightness of a colour, of 255, below which a name on it is white.
_DARK: Final = 120
#: Height of the legend above the rectangles, as a share of theirs.
_LEGEND: Final = 0.07


@saveable
def roofline(rows: Rows, device: Device | None, roofs: Mapping[str, float]) -> Chart:
    """Return the roofline of the device with a mark for each operator and shapes, its area the share of the time.

    Parameters
    ----------
    rows : pandas.DataFrame
        Operators with their shapes, as `seqpoint.characterization.WorkRow` has them; those of unknown FLOP or bytes,
        and below 0.1 % of the time, are left out.
    device : Device, optional
        Device that they ran on.
    roofs : mapping of str to float
        Peak of each data type in FLOP/s.

    Returns
    -------
    holoviews.Overlay
        ``Curve`` of the roof of each data type in use, and ``Points`` for what bounds the rows.

    Raises
    ------
    InvalidInputError
        The device is unknown, or no row has FLOP and bytes.
    """
    known = rows[(rows.flops > 0) & (rows.bytes > 0) & (rows.flops_per_s.astype(float) > 0)] if len(rows) else rows
    if device is None or known.empty:
        raise InvalidInputError("no operator has known FLOP on a known device to draw; name the device with --device")
    rows = known[known.share >= _DRAWN] if (known.share >= _DRAWN).any() else known
    intensity, rates = rows.flops / rows.bytes, 1e-12 * rows.flops_per_s.astype(float)
    low, high = intensity.min() / 2, max(float(intensity.max()) * 2, 1e3)
    x = np.geomspace(low, high, 200)
    layers = []
    for (name, peak), dash in zip(roofs.items(), _DASHES, strict=False):
        y = np.minimum(peak, x * device.memory_bytes_per_s) / 1e12
        curve = hv.Curve((x, y), "intensity", "tflops", label=f"roof of {name}")
        layers.append(curve.opts(color=INK, line_width=1.5, line_dash=dash, backend="bokeh"))
    for bound, colour in _BOUNDS.items():
        if (rows.bound == bound).any():
            layers.append(_marks(rows[rows.bound == bound], bound, colour, rows.share.max()))
    drawn = 100 * rows.share.sum()
    top = max(*(peak / 1e12 for peak in roofs.values()), rates.max())
    return overlay(
        layers,
        f"Roofline of {device.name} (a mark for each operator and shapes: {drawn:.0f} % of the kernel time)",
        ("FLOP a byte", "TFLOP/s"),
        height=460,
        logx=True,
        logy=True,
        xlim=(low, high),
        ylim=(rates.min() / 2, top * 2),
    )


def _marks(rows: Rows, bound: str, colour: str, largest: float) -> Chart:
    """Return the marks of rows with one bound."""
    columns = {
        "intensity": (rows.flops / rows.bytes).tolist(),
        "tflops": (1e-12 * rows.flops_per_s.astype(float)).tolist(),
        "size": (_SMALLEST + (_LARGEST - _SMALLEST) * np.sqrt(rows.share / largest)).tolist(),
        "name": [plain_text(name, NAME_LENGTH) for name in rows.name],
        "shapes": [plain_text(shapes, NAME_LENGTH) for shapes in rows.shapes],
        "time": [_time_text(*row) for row in zip(rows.time_ns, rows.share, strict=True)],
        "roof": ["-" if share is None or share != share else f"{100 * share:.0f} %" for share in rows.roof_share],
    }
    points = hv.Points(columns, ["intensity", "tflops"], [*columns][2:], label=f"bound by {bound}")
    tips = hover_tips(("operator", "@name"), ("shapes", "@shapes"), ("time", "@time"), ("of the roof", "@roof"))
    return points.opts(
        color=colour, size="size", alpha=0.6, line_color=INK, line_width=0.5, **{**tips, "backend": "bokeh"}
    )


def _time_text(time_ns: float, share: float) -> str:
    return f"{duration(time_ns)}, {100 * share:.1f} %"


@saveable
def operator_treemap(rows: Rows, classes: Sequence[str]) -> Chart:
    """Return the operators as rectangles whose area is their share of the kernel time, coloured by class.

    Bruls, Huizing and van Wijk, Squarified Treemaps (2000).

    Parameters
    ----------
    rows : pandas.DataFrame
        Operators, most time first, with ``name``, ``class``, ``time_ns`` and ``share``.
    classes : sequence of str
        Classes in the order of the legend.
    """
    rows = rows[rows.share > 0] if len(rows) else rows
    if rows.empty:
        raise InvalidInputError("the trace holds no kernel to draw")
    columns = (rows[name].tolist() for name in ("name", "share", "time_ns", "class"))
    cells = [
        _Cell(box, name, share, time_ns, class_colours()[class_], class_)
        for box, name, share, time_ns, class_ in zip(squarified(rows.share.tolist()), *columns, strict=True)
    ]
    of_class = {class_: [cell for cell in cells if cell.parent == class_] for class_ in classes}
    return _rectangles(of_class, "Operators (area: share of the kernel time; colour: class of kernels)", 480)


@saveable
def phase_icicle(levels: Mapping[tuple[str, ...], float]) -> Chart:
    """Return phases, the classes of their kernels and their operators as rectangles, each as wide as its time.

    Parameters
    ----------
    levels : mapping of tuple of str to float
        Time in ns by path: phase, class and operator; parents come before their children.
    """
    if not levels:
        raise InvalidInputError("the trace holds no kernel to draw")
    total = sum(time for path, time in levels.items() if len(path) == 1)
    cells, offset = [], dict[tuple[str, ...], float]()
    for path, time in levels.items():  # parents come first, and children in the order of their time
        parent, depth = path[:-1], len(path) - 1
        left = offset.get(parent, 0.0)
        offset[parent], offset[path] = left + time / total, left
        fill = class_colours()[path[1]] if depth else "#D9DEE4"
        box = (left, (2 - depth) / 3, left + time / total, (3 - depth) / 3)
        cells.append(_Cell(box, path[-1], time / total, time, fill, " > ".join(path[:-1])))
    return _rectangles({"": cells}, "Phases, classes and operators (width: share of the kernel time)", 340)


Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class _Cell:
    """A rectangle with its text: left, bottom, right and top within 0 to 1."""

    box: Box
    name: str
    share: float
    time_ns: float
    colour: str
    parent: str

    @property
    def label(self) -> str:
        """Name as far as it fits; empty if the rectangle is too small."""
        left, bottom, right, top = self.box
        fits = int((right - left) / _CHARACTER)
        return plain_text(self.name, fits) if fits > 2 and top - bottom > _LINE and self.share > _NAMED else ""

    @property
    def ink(self) -> str:
        """Colour of the name: white on dark rectangles."""
        red, green, blue = (int(self.colour[at : at + 2], 16) for at in (1, 3, 5))
        return INK if 0.2126 * red + 0.7152 * green + 0.0722 * blue > _DARK else "#FFFFFF"


def _rectangles(groups: Mapping[str, Sequence[_Cell]], title: str, height: int) -> Chart:
    """Return rectangles with their names and tooltips; the legend has the names of several groups."""
    boxes = [_boxes(name, cells) for name, cells in groups.items() if cells]
    named = [cell for cells in groups.values() for cell in cells if cell.label]
    texts = hv.Labels(
        {
            "x": [(cell.box[0] + cell.box[2]) / 2 for cell in named],
            "y": [(cell.box[1] + cell.box[3]) / 2 for cell in named],
            "text": [cell.label for cell in named],
            "ink": [cell.ink for cell in named],
        },
        ["x", "y"],
        ["text", "ink"],
    ).opts(text_font=value("sans-serif"), text_font_size="8pt", text_color="ink", backend="bokeh")
    has_legend = len(boxes) > 1
    look = {"xaxis": None, "yaxis": None, "xlim": (0, 1), "ylim": (0, 1.0 + _LEGEND * has_legend), "height": height}
    legend = {"show_legend": has_legend, "legend_position": "top", "legend_cols": 9}
    return hv.Overlay([*boxes, texts]).opts(**look, **legend, **framed(title), backend="bokeh")


def _boxes(label: str, cells: Sequence[_Cell]) -> Chart:
    """Return the rectangles of cells, with a label for the legend."""
    columns = {
        **{name: [cell.box[i] for cell in cells] for i, name in enumerate(("left", "bottom", "right", "top"))},
        "colour": [cell.colour for cell in cells],
        "name": [plain_text(cell.name, NAME_LENGTH) for cell in cells],
        "time": [_time_text(cell.time_ns, cell.share) for cell in cells],
        "of": [plain_text(cell.parent, NAME_LENGTH) for cell in cells],
    }
    tips = hover_tips(("name", "@name"), ("time", "@time"), ("of", "@of"))
    boxes = hv.Rectangles(columns, ["left", "bottom", "right", "top"], ["colour", "name", "time", "of"], label=label)
    return boxes.opts(color="colour", line_color="white", line_width=1, **{**tips, "backend": "bokeh"})


def squarified(shares: Sequence[float]) -> list[Box]:
    """Return rectangles with these areas that fill the unit square, each close to a square.

    Parameters
    ----------
    shares : sequence of float
        Areas above 0 in falling order; they add up to about 1.

    Returns
    -------
    list of (left, bottom, right, top)

    Examples
    --------
    >>> squarified([0.5, 0.25, 0.25])
    [(0.0, 0.0, 0.5, 1.0), (0.5, 0.0, 1.0, 0.5), (0.5, 0.5, 1.0, 1.0)]
    """
    total = sum(shares)
    left, bottom, right, top = 0.0, 0.0, 1.0, 1.0
    boxes: list[Box] = []
    areas = [share / total for share in shares]
    while areas:
        width, height = right - left, top - bottom
        side = max(min(width, height), 1e-12)
        count, best = 1, _worst(areas[:1], side)
        while count < len(areas) and (worse := _worst(areas[: count + 1], side)) <= best:
            count, best = count + 1, worse
        row, areas = areas[:count], areas[count:]
        depth, at = sum(row) / side, 0.0
        for area in row:
            length = area / max(depth, 1e-12)
            if height <= width:
                boxes.append((left, bottom + at, left + depth, bottom + at + length))
            else:
                boxes.append((left + at, bottom, left + at + length, bottom + depth))
            at += length
        if height <= width:
            left += depth
        else:
            bottom += depth
    return boxes


def _worst(row: Sequence[float], side: float) -> float:
    """Return the largest ratio of sides of the rectangles of a row along a side."""
    total = sum(row)
    return max(max(side**2 * area / total**2, total**2 / (side**2 * area)) for area in row)


#: Colours of leading causes, by Okabe and Ito, in the order of their time; further causes share the last one.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#E69F00", "#CC79A7", "#777777")
#: Colours of a map, light enough for dark labels on them.
_HEAT = interp_palette(["#FFFFFF", "#C6DBEF", "#6BAED6"], 64)
#: Room below 0 and above the highest mark, as a share of the axis, so that no mark is cut off.
_ROOM = 0.06


@saveable
def gemm_efficiency(rows: Rows) -> Chart:
    """Return the chart of efficiency against waves: a mark for each shape, its area the share of the kernel time.

    Parameters
    ----------
    rows : pandas.DataFrame
        A row for each shape, with ``shape``, ``time_ns``, ``share``, ``efficiency``, ``waves``, ``tile``, ``cause`` and
        ``why``. Those of unknown waves or efficiency are left out.

    Returns
    -------
    holoviews.Overlay
        ``Points`` for each leading cause of low efficiency.

    Raises
    ------
    InvalidInputError
        No GEMM has a known grid and efficiency.
    """
    rows = rows.dropna(subset=["waves", "efficiency"]) if len(rows) else rows
    if rows.empty:
        raise InvalidInputError("no GEMM has a known shape, grid and device to draw; name the device with --device")
    causes = rows.groupby("cause", sort=False).time_ns.sum().sort_values(ascending=False, kind="stable").index.tolist()
    if len(causes) > len(_COLOURS):
        rest = causes[len(_COLOURS) - 1 :]
        rows, causes = rows.assign(cause=rows.cause.replace(rest, "others")), [*causes[: -len(rest)], "others"]
    largest = float(rows.share.max())
    layers = [
        _shape_marks(cause, rows[rows.cause == cause], colour, largest)
        for cause, colour in zip(causes, _COLOURS, strict=False)
    ]
    waves, top = rows.waves, max(100.0, 100 * float(rows.efficiency.max()))
    return overlay(
        layers,
        "Efficiency of GEMMs against waves (area: share of the kernel time; colour: leading cause)",
        ("waves of workgroups", "FLOP/s of the peak (%)"),
        height=420,
        logx=True,
        xlim=(waves.min() / 1.6, waves.max() * 1.6),
        ylim=(-_ROOM * top, (1 + _ROOM) * top),
    )


def _shape_marks(cause: str, rows: Rows, colour: str, largest: float) -> Chart:
    """Return the marks of the shapes with one leading cause."""
    columns = {
        "waves": rows.waves.tolist(),
        "efficiency": (100 * rows.efficiency).tolist(),
        "size": np.maximum(_LARGEST * np.sqrt(rows.share / (largest or 1.0)), _SMALLEST).tolist(),
        "shape": rows["shape"].tolist(),
        "share": (100 * rows.share).tolist(),
        "tile": rows.tile.tolist(),
        "why": [plain_text(why, NAME_LENGTH) for why in rows.why],
    }
    tips = (
        ("shape", "@shape"), ("share of kernel time", "@share{0.0} %"), ("of peak", "@efficiency{0.0} %"),
        ("waves", "@waves{0.00}"), ("tile", "@tile"), ("why", "@why"),
    )  # fmt: skip
    return hv.Points(columns, kdims=["waves", "efficiency"], vdims=list(columns)[2:], label=cause).opts(
        color=colour, size="size", fill_alpha=0.6, line_color=colour, backend="bokeh", **hover_tips(*tips)
    )


@saveable
def concurrency_map(rows: Rows, device: str) -> Chart:
    """Return the map of speed-ups of GEMMs side by side over one after another, by shape and degree.

    Parameters
    ----------
    rows : pandas.DataFrame
        A row for each shape and degree, with ``gemm``, ``degree``, ``speedup`` and ``default_speedup``.
    device : str
        Name of the device.

    Returns
    -------
    holoviews.Overlay
        ``HeatMap`` of speed-ups, and ``Labels`` with them.
    """
    if rows.empty:
        raise InvalidInputError("there is no GEMM to draw; give a shape")
    speedups, shapes, degrees = rows.speedup.tolist(), rows.gemm.tolist(), rows.degree.astype(str).tolist()
    tips = (
        ("shape", "@shape"), ("side by side", "@degree"), ("speed-up", "@speedup{0.00}"),
        ("with the kernels that are best alone", "@default{0.00}"),
    )  # fmt: skip
    cells = (degrees, shapes, speedups, rows.default_speedup.tolist())
    heat = hv.HeatMap(cells, kdims=["degree", "shape"], vdims=["speedup", "default"]).opts(
        cmap=_HEAT,
        logz=True,
        clabel="speed-up",
        colorbar=True,
        clim=(1.0, max(*speedups, 1.01)),
        backend="bokeh",
        **hover_tips(*tips),
    )
    texts = [f"{speedup:.2f}" for speedup in speedups]
    labels = hv.Labels((degrees, shapes, texts), ["degree", "shape"]).opts(
        text_font_size="8pt", text_font=value("sans-serif"), text_color=INK, backend="bokeh"
    )
    return overlay(
        [heat, labels],
        f"Speed-up side by side over one after another on {device} (modelled)",
        ("GEMMs side by side", ""),
        height=110 + 26 * len(set(shapes)),
        show_legend=False,
        invert_yaxis=True,
    )


#: Most rows of a heat map of ranks, about three pixels each.
_MOST_ROWS = 256


@saveable
def rank_steps(rows: Sequence[tuple[int, Sequence[int], Sequence[float]]]) -> Chart:
    """Return the heat map of the compute time of each rank in each step, over the median of that step.

    Parameters
    ----------
    rows : sequence of (int, sequence of int, sequence of float)
        For each device its rank, the numbers of its steps, and its compute time in each, ns.

    Returns
    -------
    holoviews.Image
        Ranks upwards, steps to the right; white is the median.
    """
    steps = sorted({step for _, numbers, _ in rows for step in numbers})
    if not steps:
        raise InvalidInputError("there is no step to draw; read the trace again with --iterations")
    work = np.full((len(rows), len(steps)), np.nan)
    for row, (_, numbers, times) in enumerate(rows):
        work[row, np.searchsorted(steps, numbers)] = times
    relative = work / np.nanmedian(work, axis=0)
    every = -(-len(rows) // _MOST_ROWS)
    blocks = [relative[row : row + every] for row in range(0, len(rows), every)]
    relative = np.array([np.nanmax(block, axis=0) for block in blocks])
    most, ranks = max(float(np.nanmax(np.abs(relative - 1))), 0.01), [rank for rank, _, _ in rows][::every]
    tips = (("rank", "$y{0}"), ("step", "$x{0}"), ("compute over the median", "@image{0.00}"))
    image = hv.Image((_even(steps), _even(ranks), relative), ["step", "rank"], "compute over the median").opts(
        cmap="coolwarm", clim=(1 - most, 1 + most), colorbar=True, clabel="compute over the median of the step",
        xticks=_ticks(steps), yticks=_ticks(ranks), backend="bokeh", **hover_tips(*tips),
    )  # fmt: skip
    title = f"Compute time of {len(rows):,} devices in each of {len(steps):,} steps, over the median"
    title += f" (a row is the largest of {every} devices)" if every > 1 else ""
    return overlay([image], title, ("step", "rank"), height=max(240, min(900, 120 + 8 * len(ranks))), show_legend=False)


def _even(numbers: Sequence[int]) -> list[int]:
    """Return numbers that an image can be drawn at: themselves if they are evenly spaced, else their order."""
    return list(numbers) if len(set(np.diff(numbers).tolist())) < 2 else list(range(len(numbers)))


def _ticks(numbers: Sequence[int]) -> list[tuple[int, str]]:
    """Return at most 16 ticks: where numbers are drawn, and the numbers."""
    every = max(1, -(-len(numbers) // 16))
    return [(at, str(number)) for at, number in zip(_even(numbers), numbers, strict=True)][::every]
