"""Charts of what devices have in use over time."""

from typing import Any

import holoviews as hv
import numpy as np

from replay.analysis import resource_use
from replay.timeline import Timeline
from seqpoint.plots.frame import NAME_LENGTH, framed, hover_tips, plain_text
from seqpoint.units import time_unit

__all__ = ["resource_usage"]

Chart = Any  # HoloViews has no types

#: Okabe and Ito's, as far as they can be told from each other as lines, then others that can.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#332288", "#56B4E9", "#666666")
_NAMES = {
    "cu": "compute units",
    "l2": "last-level cache bandwidth",
    "hbm": "memory bandwidth",
    "link": "links",
    "dma": "copy engines",
}


def resource_usage(timeline: Timeline, *, bins: int = 300, max_devices: int = 8) -> Chart:
    """Return the share of each resource in use over time, a chart a device, one above the other on one axis of time.

    Parameters
    ----------
    timeline : Timeline
    bins : int
        Intervals of equal length; each shows its mean.
    max_devices : int
        Those with the most use; the title of the last chart says how many are not shown.

    Returns
    -------
    holoviews.Layout
        Of one ``Overlay`` a device, in it one stepped ``Curve`` a resource that is in use at any time.

    Raises
    ------
    InvalidInputError
        `bins` is not above zero.
    """
    found = resource_use(timeline, bins)
    unit = time_unit(timeline.makespan_ns)
    most = np.argsort(-found.use.sum(axis=(1, 2)), kind="stable")[:max_devices]
    left = len(found.devices) - len(most)
    charts = []
    for place, device in enumerate(sorted(most.tolist())):
        rank, number = found.devices[device]
        more = f" ({left} devices with less use not shown)" if left and place == len(most) - 1 else ""
        layers = [
            _curve(found.edges_ns / unit.ns, 100 * found.use[device, :, i], (name, unit.name, i))
            for i, name in enumerate(found.resources)
            if found.use[device, :, i].any()
        ]
        title = plain_text(f"Resources in use: rank {rank} GPU {number}{more}", NAME_LENGTH)
        charts.append(_framed(layers or [hv.Curve([])], title, f"time from the start of the step ({unit.name})"))
    return hv.Layout(charts).cols(1).opts(shared_axes=True, merge_tools=False, backend="bokeh")


def _curve(edges: Any, percent: Any, about: tuple[str, str, int]) -> Chart:
    """Return a curve that steps at the edges of the intervals."""
    name, unit, place = about
    label = _NAMES.get(name, name)
    x, y = np.repeat(edges, 2)[1:-1], np.repeat(percent, 2)
    hover = hover_tips(("resource", label), ("time", f"@time{{0,0.[000]}} {unit}"), ("in use", "@percent{0.0} %"))
    return hv.Curve((x, y), kdims=["time"], vdims=["percent"], label=label).opts(
        color=_COLOURS[place % len(_COLOURS)], line_width=1.5, backend="bokeh", **hover
    )


def _framed(layers: list[Chart], title: str, xlabel: str) -> Chart:
    return hv.Overlay(layers).opts(
        xlabel=xlabel,
        ylabel="in use (%)",
        height=190,
        ylim=(0, 105),
        legend_position="top",
        legend_cols=8,
        **framed(title),
        backend="bokeh",
    )
