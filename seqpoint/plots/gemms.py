"""Charts of GEMMs: efficiency against waves, and speed-up by size and degree of concurrency."""

from typing import TYPE_CHECKING

import holoviews as hv
import numpy as np
from bokeh.core.properties import value
from bokeh.palettes import interp_palette

from profilers.errors import InvalidInputError
from seqpoint.plots.frame import INK, NAME_LENGTH, Chart, hover_tips, overlay, plain_text
from seqpoint.plots.saving import saveable

if TYPE_CHECKING:
    from seqpoint.gemm_groups import ConcurrentGemms
    from seqpoint.gemm_rows import GemmRow
    from seqpoint.gemm_table import TraceGemms

#: Colours of leading causes, by Okabe and Ito, in the order of their time; further causes share the last one.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#E69F00", "#CC79A7", "#777777")
#: Colours of a map, light enough for dark labels on them.
_HEAT = interp_palette(["#FFFFFF", "#C6DBEF", "#6BAED6"], 64)
#: Least diameter of a mark, and that of the largest share of time, in pixels.
_SMALLEST, _LARGEST = 5.0, 34.0
#: Room below 0 and above the highest mark, as a share of the axis, so that no mark is cut off.
_ROOM = 0.06


@saveable
def gemm_efficiency(gemms: "TraceGemms") -> Chart:
    """Return the chart of efficiency against waves: a mark for each shape, its area the share of the kernel time.

    Parameters
    ----------
    gemms : TraceGemms
        GEMMs of a trace; those of unknown grid or efficiency are left out.

    Returns
    -------
    holoviews.Overlay
        ``Points`` for each leading cause of low efficiency.

    Raises
    ------
    InvalidInputError
        No GEMM has a known grid and efficiency.
    """
    rows = [row for row in gemms.rows if row.grid is not None and row.efficiency is not None]
    if not rows:
        raise InvalidInputError("no GEMM has a known shape, grid and device to draw; name the device with --device")
    by_cause: dict[str, list[GemmRow]] = {}
    for row in rows:
        by_cause.setdefault(row.why[0].name if row.why else "no cause", []).append(row)
    named = sorted(by_cause.items(), key=lambda each: -sum(row.time_ns for row in each[1]))
    last = len(_COLOURS) - 1
    if len(named) > len(_COLOURS):
        named = [*named[:last], ("others", [row for _, members in named[last:] for row in members])]
    largest = max(row.share for row in rows)
    layers = [
        _marks(cause, members, colour, largest) for (cause, members), colour in zip(named, _COLOURS, strict=False)
    ]
    waves = [row.grid.waves for row in rows if row.grid is not None]
    top = max(100.0, *(100 * (row.efficiency or 0.0) for row in rows))
    return overlay(
        layers,
        "Efficiency of GEMMs against waves (area: share of the kernel time; colour: leading cause)",
        ("waves of workgroups", "FLOP/s of the peak (%)"),
        height=420,
        logx=True,
        xlim=(min(waves) / 1.6, max(waves) * 1.6),
        ylim=(-_ROOM * top, (1 + _ROOM) * top),
    )


def _marks(cause: str, rows: "list[GemmRow]", colour: str, largest: float) -> Chart:
    """Return the marks of the shapes with one leading cause."""
    size = [max(_LARGEST * float(np.sqrt(row.share / largest)) if largest else 0.0, _SMALLEST) for row in rows]
    columns = {
        "waves": [row.grid.waves if row.grid else np.nan for row in rows],
        "efficiency": [100 * (row.efficiency or 0.0) for row in rows],
        "size": size,
        "shape": [str(row.gemm) for row in rows],
        "share": [100 * row.share for row in rows],
        "tile": [row.tile for row in rows],
        "why": [plain_text("; ".join(map(str, row.why)), NAME_LENGTH) for row in rows],
    }
    tips = (
        ("shape", "@shape"), ("share of kernel time", "@share{0.0} %"), ("of peak", "@efficiency{0.0} %"),
        ("waves", "@waves{0.00}"), ("tile", "@tile"), ("why", "@why"),
    )  # fmt: skip
    return hv.Points(columns, kdims=["waves", "efficiency"], vdims=list(columns)[2:], label=cause).opts(
        color=colour, size="size", fill_alpha=0.6, line_color=colour, backend="bokeh", **hover_tips(*tips)
    )


@saveable
def concurrency_map(simulated: "ConcurrentGemms") -> Chart:
    """Return the map of speed-ups of GEMMs side by side over one after another, by shape and degree.

    Parameters
    ----------
    simulated : ConcurrentGemms
        Copies of GEMMs side by side.

    Returns
    -------
    holoviews.Overlay
        ``HeatMap`` of speed-ups, and ``Labels`` with them.
    """
    kernels = simulated.kernels
    if not kernels:
        raise InvalidInputError("there is no GEMM to draw; give a shape")
    speedups = [kernel.speedup for kernel in kernels]
    degrees, shapes = [str(kernel.degree) for kernel in kernels], [str(kernel.gemm) for kernel in kernels]
    tips = (
        ("shape", "@shape"), ("side by side", "@degree"), ("speed-up", "@speedup{0.00}"),
        ("with the kernels that are best alone", "@default{0.00}"),
    )  # fmt: skip
    cells = (degrees, shapes, speedups, [kernel.default_speedup for kernel in kernels])
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
        f"Speed-up side by side over one after another on {simulated.device.name} (modelled)",
        ("GEMMs side by side", ""),
        height=110 + 26 * len(set(shapes)),
        show_legend=False,
        invert_yaxis=True,
    )
