"""Charts of simulations: times and traffic by cache policy, DRAM over time, and what kernels do over time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap
from types import MappingProxyType
from typing import Any

import holoviews as hv
import numpy as np

from profilers.errors import InvalidInputError
from replay.detailed.timing.launches import DOINGS, LaunchTiming, TimedDevice
from replay.memory.dram import DramCounters
from replay.memory.system import MemorySystem
from seqpoint.plots.frame import INK, Chart, framed, hover_tips, overlay, plain_text
from seqpoint.plots.saving import saveable, stacked
from seqpoint.units import TimeUnit, time_unit

#: Rows of simulated policies, as `seqpoint.memory_simulation.SimulatedMemory.rows` has them.
PolicyRows = Sequence[Mapping[str, Any]]
#: Colour, marker and size of each of the times, and of each level.
_TIMES: Mapping[str, tuple[str, str, int]] = MappingProxyType(
    {
        "compute": ("#009E73", "triangle", 10),
        "caches": ("#E69F00", "square", 8),
        "memory": ("#0072B2", "circle", 9),
    }
)
_LEVELS: Mapping[str, tuple[str, str, int]] = MappingProxyType(
    {
        "L1": ("#009E73", "triangle", 10),
        "L2": ("#E69F00", "square", 8),
        "LLC": ("#CC79A7", "diamond", 12),
        "DRAM reads": ("#0072B2", "circle", 9),
        "DRAM writes": ("#D55E00", "inverted_triangle", 10),
    }
)
#: Colours of policies, by Okabe and Ito, as far as they go.
_POLICIES = ("#24292F", "#999999", "#56B4E9", "#0072B2", "#009E73", "#E69F00", "#D55E00", "#CC79A7")
_NAME_LENGTH = 40
#: Characters of a line below a group of bars.
_TICK_WIDTH = 18


@saveable
def memory_times(rows: PolicyRows, label: str) -> Chart:
    """Return the chart of the time by policy, as bars, with marks for the times of which it is the longest.

    Parameters
    ----------
    rows : sequence of mapping
        A row for each policy, with its times in ns.
    label : str
        Operator, for the title.

    Returns
    -------
    holoviews.Overlay
        ``Rectangles`` for the times, and ``Points`` for compute, caches and memory.
    """
    unit = time_unit(max(row["time_ns"] for row in rows))
    bars = _bars([row["time_ns"] / unit.ns for row in rows])
    values = {name: [row[f"{name}_ns"] / unit.ns for row in rows] for name in _TIMES}
    marks = _marks(rows, values, _TIMES, f"@x{{0.000}} {unit.name}")
    longest = max(row["time_ns"] for row in rows) / unit.ns
    title = f"Time by cache policy: {_label(label)}"
    return _by_policy(
        [bars, *marks], rows, title, f"time ({unit.name}); the longest of three sets it", xlim=(0, 1.05 * longest)
    )


@saveable
def memory_traffic(rows: PolicyRows, label: str, footprint: int) -> Chart:
    """Return the chart of the bytes that each level moves, by policy, on a logarithmic axis.

    Parameters
    ----------
    rows : sequence of mapping
        A row for each policy: the bytes that each level moves, by the names of the levels, and ``policy``.
    label : str
        Operator, for the title.
    footprint : int
        Bytes of the operands.

    Returns
    -------
    holoviews.Overlay
        ``Points`` for the levels of caches, and for reads and writes of the DRAM.
    """
    values = {level: [row[level] / 1e6 for row in rows] for level in _LEVELS if level in rows[0]}
    # A logarithmic axis has no zero.
    shown = {name: [value or np.nan for value in of_level] for name, of_level in values.items()}
    operands = footprint / 1e6
    positive = [operands, *(value for of_level in values.values() for value in of_level if value > 0)]
    layers = [
        hv.VLine(operands).opts(color=INK, line_width=1, line_dash="dashed", backend="bokeh"),
        *_marks(rows, shown, _LEVELS, "@x{0,0.00} MB"),
    ]
    ends = (min(positive) / 1.3, max(positive) * 1.3)
    title = f"Traffic by level: {_label(label)}"
    return _by_policy(
        layers, rows, title, "MB (dashed: bytes of the operands)", logx=True, xlim=ends, xticks=_ticks(*ends)
    )


@saveable
def memory_row_hits(rows: PolicyRows, label: str) -> Chart:
    """Return the chart of the share of DRAM requests that find their row open, by policy.

    Parameters
    ----------
    rows : sequence of mapping
        A row for each policy, with ``row_hit_share``.
    label : str
        Operator, for the title.

    Returns
    -------
    holoviews.Overlay
        ``Rectangles``, and ``Points`` at their ends.
    """
    shares = [100 * row["row_hit_share"] for row in rows]
    marks = _marks(rows, {"memory": shares}, _TIMES, "@x{0.0} %", legend=False)
    return _by_policy(
        [_bars(shares), *marks],
        rows,
        f"Row hits of the DRAM: {_label(label)}",
        "requests that find their row open (%)",
        xlim=(0, 102),
    )


@saveable
def memory_channels(counters: DramCounters, system: MemorySystem, label: str) -> Chart:
    """Return the heat map of DRAM channels over time: bytes moved as a share of the channel's peak.

    Parameters
    ----------
    counters : DramCounters
        Bytes of each channel over time.
    system : MemorySystem
        Device.
    label : str
        Policy and operator, for the title.

    Returns
    -------
    holoviews.Image
        Share in per cent by time and channel, over the simulated waves.

    Raises
    ------
    InvalidInputError
        No request reached the DRAM.
    """
    windows, channels = counters.bytes_over_time.shape
    if not counters.bytes_over_time.sum():
        raise InvalidInputError("no request reached the DRAM; there are no channels to show over time")
    peak_bytes = system.dram.bandwidth / system.dram.channels * counters.window_seconds
    span_ns = 1e9 * windows * counters.window_seconds
    unit = time_unit(span_ns)
    share = 100 * counters.bytes_over_time.T[::-1] / peak_bytes
    image = hv.Image(
        share, bounds=(0, -0.5, span_ns / unit.ns, channels - 0.5), kdims=["time", "channel"], vdims=["busy"]
    )
    return image.opts(
        cmap="viridis",
        clim=(0, 100),
        colorbar=True,
        clabel="% of the channel's peak",
        xlabel=f"time in the DRAM simulation ({unit.name})",
        ylabel="channel",
        height=300,
        **framed(f"DRAM channels over time, {plain_text(label, 100)}"),
        **hover_tips(("time", f"$x{{0.00}} {unit.name}"), ("channel", "$y{0}"), ("of peak", "@image{0} %")),
        backend="bokeh",
    )


@saveable
def memory_times_by_operator(simulated: Sequence[tuple[str, PolicyRows]]) -> Chart:
    """Return the chart of times by operator and policy, relative to the first policy.

    Parameters
    ----------
    simulated : sequence of (str, sequence of mapping)
        Operators, at least one, each with a row for each policy, which has ``policy`` and ``speedup``.

    Returns
    -------
    holoviews.Overlay
        A line at 1, and ``Rectangles`` for each policy.

    Raises
    ------
    InvalidInputError
        There is no operator, or their policies differ.
    """
    policies = {tuple(row["policy"] for row in rows) for _, rows in simulated}
    if len(policies) != 1:
        raise InvalidInputError("to compare operators, simulate each under the same policies")
    (names,) = policies
    width = 0.84 / len(names)
    layers = [hv.HLine(1.0).opts(color=INK, line_width=1, line_dash="dashed", backend="bokeh")]
    highest = 1.0
    for number, name in enumerate(names):
        cells = []
        for place, (label, rows) in enumerate(simulated):
            ratio = 1 / rows[number]["speedup"]
            left = place - 0.42 + number * width
            cells.append((left, 0.0, left + 0.92 * width, ratio, plain_text(label, _NAME_LENGTH), name))
            highest = max(highest, ratio)
        bars = hv.Rectangles(cells, vdims=["operator", "policy"], label=plain_text(name, _NAME_LENGTH))
        tips = hover_tips(("operator", "@operator"), ("policy", "@policy"), ("relative time", "@top{0.000}"))
        look = {"color": _POLICIES[number % len(_POLICIES)], "line_width": 0}
        layers.append(bars.opts(**look, **tips, backend="bokeh"))
    labels = ["\n".join(wrap(plain_text(label, _NAME_LENGTH), _TICK_WIDTH)) for label, _ in simulated]
    return overlay(
        layers,
        f"Time by operator and cache policy, relative to {plain_text(names[0], _NAME_LENGTH)}",
        ("", f"time over that under {plain_text(names[0], _NAME_LENGTH)}"),
        height=380,
        xticks=list(enumerate(labels)),
        xlim=(-0.6, len(labels) - 0.4),
        ylim=(0, 1.05 * highest),
    )


def _label(text: str) -> str:
    return plain_text(text, 60)


def _levels(rows: PolicyRows) -> list[float]:
    """Return the height of each policy, the first on top."""
    return [float(len(rows) - 1 - number) for number in range(len(rows))]


def _bars(values: Sequence[float]) -> Chart:
    """Return pale horizontal bars, a policy each."""
    top = len(values) - 1
    bars = [(0.0, top - number - 0.3, value, top - number + 0.3) for number, value in enumerate(values)]
    return hv.Rectangles(bars).opts(color="#D8DEE4", line_width=0, backend="bokeh")


def _marks(
    rows: PolicyRows,
    values: Mapping[str, Sequence[float]],
    looks: Mapping[str, tuple[str, str, int]],
    tip: str,
    *,
    legend: bool = True,
) -> list[Chart]:
    """Return a mark for each policy and each kind of value."""
    names = [plain_text(row["policy"], _NAME_LENGTH) for row in rows]
    layers = []
    for name, of_kind in values.items():
        colour, marker, size = looks[name]
        columns = (of_kind, _levels(rows), names)
        points = hv.Points(columns, kdims=["x", "y"], vdims=["policy"], label=name if legend else "")
        look = {"color": colour, "marker": marker, "size": size, "line_color": "white", "line_width": 0.7}
        layers.append(points.opts(**look, **hover_tips(("policy", "@policy"), (name, tip)), backend="bokeh"))
    return layers


def _by_policy(layers: Sequence[Chart], rows: PolicyRows, title: str, xlabel: str, **look: Any) -> Chart:
    """Return a chart with a row for each policy."""
    ticks = [(level, plain_text(row["policy"], _NAME_LENGTH)) for level, row in zip(_levels(rows), rows, strict=True)]
    return overlay(
        layers,
        title,
        (xlabel, ""),
        height=118 + 24 * len(rows),
        ylim=(-0.6, len(rows) - 0.4),
        yticks=ticks,
        **look,
    )


def _ticks(low: float, high: float) -> list[tuple[float, str]]:
    """Return powers of ten, twice and five times each, as ticks of a logarithmic axis."""
    ticks = [base * 10.0**power for power in range(-6, 9) for base in (1, 2, 5)]
    return [(tick, f"{tick:,g}") for tick in ticks if low <= tick <= high]


#: Colours of what schedulers do, by Okabe and Ito, in the order of `DOINGS`.
_COLOURS = ("#009E73", "#E69F00", "#F0E442", "#0072B2", "#CC79A7", "#D8DEE4")
_KERNEL_LENGTH = 48
#: Most launches that are drawn.
_MOST_LAUNCHES = 4


@dataclass(frozen=True)
class DrawnLaunch:
    """Launch of a kernel to draw.

    Parameters
    ----------
    entry : str
        Name of the kernel; untrusted text.
    number : int
        Number of the launch.
    timing : LaunchTiming
        How long it takes, and what the device does meanwhile.
    target : TimedDevice
        Device.
    """

    entry: str
    number: int
    timing: LaunchTiming
    target: TimedDevice

    @property
    def label(self) -> str:
        """Kernel and number, for a title."""
        return plain_text(f"{self.entry}, launch {self.number}", _KERNEL_LENGTH)

    def window(self, windows: int) -> tuple[float, TimeUnit]:
        """Return the length of a window in ns, and the unit of an axis of `windows` windows."""
        span_ns = 1e9 * self.timing.span_cycles / self.target.core.clock_hz
        return span_ns, time_unit(span_ns * windows)


@saveable
def kernel_activity(launch: DrawnLaunch) -> Chart:
    """Return the chart of what the warp schedulers do over time, as shares that are stacked.

    Parameters
    ----------
    launch : DrawnLaunch
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
        layers, title, (f"time ({unit.name})", "share of schedulers (%)"), height=300, ylim=(0, 112),
        yticks=list(range(0, 101, 20)), xlim=(0, edges[-1]),
    )  # fmt: skip


@saveable
def kernel_heat_map(launch: DrawnLaunch, what: str) -> Chart:
    """Return a heat map over time.

    Parameters
    ----------
    launch : DrawnLaunch
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


def kernel_overview(launches: Sequence[DrawnLaunch]) -> Chart:
    """Return the charts of the first launches below each other, at most four.

    Parameters
    ----------
    launches : sequence of DrawnLaunch
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
