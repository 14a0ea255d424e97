"""Charts of simulated kernels: what schedulers do over time, and heat maps by compute unit, L2 slice and channel."""

from collections.abc import Sequence
from dataclasses import dataclass

import holoviews as hv
import numpy as np

from profilers.errors import InvalidInputError
from replay.detailed.timing.launches import DOINGS, Target, Timing
from seqpoint.plots.frame import Chart, framed, hover_tips, overlay, plain_text
from seqpoint.plots.saving import saveable, stacked
from seqpoint.units import TimeUnit, time_unit

#: Colours of what schedulers do, by Okabe and Ito, in the order of `DOINGS`.
_COLOURS = ("#009E73", "#E69F00", "#F0E442", "#0072B2", "#CC79A7", "#D8DEE4")
_NAME_LENGTH = 48
#: Launches of which all charts are shown.
_MOST_LAUNCHES = 4


@dataclass(frozen=True)
class TimedLaunch:
    """Launch of a kernel to draw.

    Parameters
    ----------
    entry : str
        Name of the kernel; untrusted text.
    number : int
        Number of the launch.
    timing : Timing
        How long it takes, and what the device does meanwhile.
    target : Target
        Device.
    """

    entry: str
    number: int
    timing: Timing
    target: Target

    @property
    def label(self) -> str:
        """Kernel and number, for a title."""
        return plain_text(f"{self.entry}, launch {self.number}", _NAME_LENGTH)

    def window(self, windows: int) -> tuple[float, TimeUnit]:
        """Return the length of a window in ns, and the unit of an axis of so many."""
        span_ns = 1e9 * self.timing.span_cycles / self.target.core.clock_hz
        return span_ns, time_unit(span_ns * windows)


@saveable
def kernel_activity(launch: TimedLaunch) -> Chart:
    """Return the chart of what the warp schedulers do over time, as shares that are stacked.

    Parameters
    ----------
    launch : TimedLaunch
        Launch to show.

    Returns
    -------
    holoviews.Overlay
        ``Area`` for each kind of cycle.
    """
    timing = launch.timing
    shares = 100 * timing.series / np.maximum(timing.series.sum(axis=1, keepdims=True), 1)
    span_ns, unit = launch.window(len(shares))
    edges = np.repeat(np.arange(len(shares) + 1) * span_ns / unit.ns, 2)[1:-1]
    below, layers = np.zeros(len(edges)), []
    for kind, name in enumerate(DOINGS):
        above = below + np.repeat(shares[:, kind], 2)
        area = hv.Area((edges, above, below), vdims=["above", "below"], label=name)
        layers.append(area.opts(color=_COLOURS[kind], line_width=0, backend="bokeh"))
        below = above
    title = f"Warp schedulers over time: {launch.label}"
    return overlay(
        layers, title, (f"time ({unit.name})", "share of schedulers (%)"), height=300, ylim=(0, 100),
        xlim=(0, edges[-1]),
    )  # fmt: skip


@saveable
def kernel_heat_map(launch: TimedLaunch, what: str) -> Chart:
    """Return a heat map over time.

    Parameters
    ----------
    launch : TimedLaunch
        Launch to show.
    what : str
        ``"units"``: share of cycles in which each compute unit's schedulers issue. ``"slices"``: sectors that each
        slice of L2 serves. ``"channels"``: bytes that each channel of the DRAM moves, as a share of its peak.
        ``"rows"``: share of each channel's accesses that hit an open row; empty where there are none.

    Returns
    -------
    holoviews.Image
        By time and place.

    Raises
    ------
    InvalidInputError
        There is no such heat map, or nothing moved.
    """
    timing, target = launch.timing, launch.target
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
        span_ns, _ = launch.window(1)
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
    window_ns, unit = launch.window(len(timing.series))
    bounds = (0, -0.5, span_ns * len(values) / unit.ns, values.shape[1] - 0.5)
    image = hv.Image(100 * values.T[::-1], bounds=bounds, kdims=["time", "place"], vdims=["busy"])
    return image.opts(
        cmap="viridis", clim=(0, 100 * float(np.nanmax(values))), colorbar=True, clabel=words[1],
        xlabel=f"time ({unit.name})", ylabel=words[0],
        xlim=(0, window_ns * len(timing.series) / unit.ns),
        height=300, **framed(f"{words[2]}: {launch.label}"),
        **hover_tips(("time", f"$x{{0.00}} {unit.name}"), (words[0], "$y{0}"), ("busy", "@image{0} %")),
        backend="bokeh",
    )  # fmt: skip


def kernel_overview(launches: Sequence[TimedLaunch]) -> Chart:
    """Return the charts of the first launches below each other, at most four.

    Parameters
    ----------
    launches : sequence of TimedLaunch
        Launches, at least one.
    """
    charts = []
    for launch in launches[:_MOST_LAUNCHES]:
        charts.append(kernel_activity(launch))
        for what in ("units", "slices", "channels", "rows"):
            try:
                charts.append(kernel_heat_map(launch, what))
            except InvalidInputError:
                continue
    return stacked(charts)
