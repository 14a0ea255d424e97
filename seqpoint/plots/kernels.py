"""Charts of simulated kernels: what schedulers do over time, and heat maps by compute unit, L2 slice and channel."""

from typing import TYPE_CHECKING, Any

import holoviews as hv
import numpy as np

from profilers.errors import InvalidInputError
from replay.detailed.timing.launches import DOINGS
from seqpoint.plots.frame import Chart, framed, hover_tips, overlay, plain_text
from seqpoint.plots.saving import saveable
from seqpoint.units import time_unit

if TYPE_CHECKING:
    from replay.detailed.timing.launches import LaunchTiming
    from seqpoint.kernel_simulation import SimulatedKernels

#: Colours of what schedulers do, by Okabe and Ito, in the order of `DOINGS`.
_COLOURS = ("#009E73", "#E69F00", "#F0E442", "#0072B2", "#CC79A7", "#D8DEE4")
_NAME_LENGTH = 48
#: Launches of which all charts are shown, the longest first.
_MOST_LAUNCHES = 4


def _longest(simulated: "SimulatedKernels") -> list[int]:
    if not simulated.timings:
        raise InvalidInputError("the launches were not timed; give a device")
    order = sorted(range(len(simulated.timings)), key=lambda n: -simulated.timings[n].seconds)
    return order[:_MOST_LAUNCHES]


@saveable
def kernel_activity(simulated: "SimulatedKernels", launch: int | None = None) -> Chart:
    """Return the chart of what the warp schedulers do over time, as shares that are stacked.

    Parameters
    ----------
    simulated : SimulatedKernels
        Timed launches.
    launch : int, optional
        Launch to show; by default the longest.

    Returns
    -------
    holoviews.Overlay
        ``Area`` for each kind of cycle.

    Raises
    ------
    InvalidInputError
        The launches were not timed.
    """
    number = _longest(simulated)[0] if launch is None else launch
    timing = simulated.timings[number]
    shares = 100 * timing.series / np.maximum(timing.series.sum(axis=1, keepdims=True), 1)
    span_ns, unit = _window(simulated, timing, len(shares))
    edges = np.repeat(np.arange(len(shares) + 1) * span_ns / unit.ns, 2)[1:-1]
    below, layers = np.zeros(len(edges)), []
    for kind, name in enumerate(DOINGS):
        above = below + np.repeat(shares[:, kind], 2)
        area = hv.Area((edges, above, below), vdims=["above", "below"], label=name)
        layers.append(area.opts(color=_COLOURS[kind], line_width=0, backend="bokeh"))
        below = above
    title = f"Warp schedulers over time: {_label(simulated, number)}"
    return overlay(
        layers, title, (f"time ({unit.name})", "share of schedulers (%)"), height=300, ylim=(0, 100),
        xlim=(0, edges[-1]),
    )  # fmt: skip


def _window(simulated: "SimulatedKernels", timing: "LaunchTiming", windows: int) -> tuple[float, Any]:
    """Return the length of a window in ns, and the unit of the time axis."""
    assert simulated.target is not None
    span_ns = 1e9 * timing.span_cycles / simulated.target.core.clock_hz
    return span_ns, time_unit(span_ns * windows)


def _label(simulated: "SimulatedKernels", number: int) -> str:
    return plain_text(f"{simulated.calls[number].entry}, launch {number}", _NAME_LENGTH)


@saveable
def kernel_heat_map(simulated: "SimulatedKernels", what: str, launch: int | None = None) -> Chart:
    """Return a heat map over time.

    Parameters
    ----------
    simulated : SimulatedKernels
        Timed launches.
    what : str
        ``"units"``: share of cycles in which each compute unit's schedulers issue. ``"slices"``: sectors that each
        slice of L2 serves. ``"channels"``: bytes that each channel of the DRAM moves, as a share of its peak.
        ``"rows"``: share of each channel's accesses that hit an open row; empty where there are none.
    launch : int, optional
        Launch to show; by default the longest.

    Returns
    -------
    holoviews.Image
        By time and place.

    Raises
    ------
    InvalidInputError
        The launches were not timed, or nothing moved.
    """
    number = _longest(simulated)[0] if launch is None else launch
    timing, target = simulated.timings[number], simulated.target
    assert target is not None
    dram = target.memory.dram
    if what == "rows":
        accesses = timing.dram.bytes_over_time / dram.access_bytes
        values = timing.dram.row_hits_over_time / np.where(accesses, accesses, np.nan)
        span_ns = 1e9 * timing.dram.window_seconds
        words = ("channel", "% of accesses that hit", "Row hits of DRAM channels over time")
    elif what == "channels":
        values = timing.dram.bytes_over_time / (dram.bandwidth / dram.channels * timing.dram.window_seconds)
        span_ns = 1e9 * timing.dram.window_seconds
        words = ("channel", "% of the channel's peak", "DRAM channels over time")
    else:
        span_ns, _ = _window(simulated, timing, 1)
        if what == "units":
            values = timing.unit_series / (timing.span_cycles * target.core.figures.schedulers)
            words = ("compute unit", "% of cycles that issue", "Compute units over time")
        elif what == "slices":
            values = timing.slice_series * target.memory.l2.line_cycles / 4 / timing.span_cycles
            words = ("slice", "% of the slice's peak", "Slices of L2 over time")
        else:
            raise InvalidInputError(f"no heat map of {what!r:.40}; units, slices, channels or rows")
    if not len(values) or not np.nansum(values):
        raise InvalidInputError(f"nothing moved; there are no {what} to show over time")
    window_ns, unit = _window(simulated, timing, len(timing.series))
    bounds = (0, -0.5, span_ns * len(values) / unit.ns, values.shape[1] - 0.5)
    image = hv.Image(100 * values.T[::-1], bounds=bounds, kdims=["time", "place"], vdims=["busy"])
    return image.opts(
        cmap="viridis", clim=(0, 100 * float(np.nanmax(values))), colorbar=True, clabel=words[1],
        xlabel=f"time ({unit.name})", ylabel=words[0],
        xlim=(0, window_ns * len(timing.series) / unit.ns),
        height=300, **framed(f"{words[2]}: {_label(simulated, number)}"),
        **hover_tips(("time", f"$x{{0.00}} {unit.name}"), (words[0], "$y{0}"), ("busy", "@image{0} %")),
        backend="bokeh",
    )  # fmt: skip


@saveable
def kernel_overview(simulated: "SimulatedKernels") -> Chart:
    """Return the charts of the longest launches below each other.

    Parameters
    ----------
    simulated : SimulatedKernels
        Timed launches.

    Raises
    ------
    InvalidInputError
        The launches were not timed.
    """
    charts = []
    for number in _longest(simulated):
        charts.append(kernel_activity(simulated, number))
        for what in ("units", "slices", "channels", "rows"):
            try:
                charts.append(kernel_heat_map(simulated, what, number))
            except InvalidInputError:
                continue
    return hv.Layout(charts).opts(shared_axes=False, backend="bokeh").cols(1)
