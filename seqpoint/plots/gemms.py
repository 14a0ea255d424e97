"""Charts of GEMMs: efficiency against waves, and speed-up by size and degree of concurrency."""

import holoviews as hv
import numpy as np
from bokeh.core.properties import value
from bokeh.palettes import interp_palette

from profilers.errors import InvalidInputError
from seqpoint.plots.frame import INK, NAME_LENGTH, Chart, Rows, hover_tips, overlay, plain_text
from seqpoint.plots.saving import saveable

#: Colours of leading causes, by Okabe and Ito, in the order of their time; further causes share the last one.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#E69F00", "#CC79A7", "#777777")
#: Colours of a map, light enough for dark labels on them.
_HEAT = interp_palette(["#FFFFFF", "#C6DBEF", "#6BAED6"], 64)
#: Least diameter of a mark, and that of the largest share of time, in pixels.
_SMALLEST, _LARGEST = 5.0, 34.0
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
        _marks(cause, rows[rows.cause == cause], colour, largest)
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


def _marks(cause: str, rows: Rows, colour: str, largest: float) -> Chart:
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
