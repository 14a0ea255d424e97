"""Charts of traces: kernels by class, and timelines."""

from typing import Any

import holoviews as hv
import numpy as np

from replay.timeline import Timeline
from seqpoint.describe import Description
from seqpoint.lanes import Lanes, lanes_of
from seqpoint.palette import CLASS_COLOURS
from seqpoint.plots.frame import INK, NAME_LENGTH, bars_chart, hover_tips, overlay, plain_text
from seqpoint.units import TimeUnit, time_unit

__all__ = ["before_after", "class_breakdown", "timeline_lanes"]

Chart = Any  # HoloViews has no types


def class_breakdown(description: Description) -> Chart:
    """Return the time in kernels by class, longest first, the share of all in the label.

    Returns
    -------
    holoviews.Bars
    """
    classes = description.classes[::-1]
    unit = time_unit(max((row.time_ns for row in classes), default=0))
    rows = [
        (
            f"{row.class_}  {100 * row.share:.1f} %",
            row.time_ns / unit.ns,
            row.kernels,
            CLASS_COLOURS[row.class_],
        )
        for row in classes
    ]
    tips = hover_tips(("class", "@class"), ("time", f"@time{{0,0.[000]}} {unit.name}"), ("kernels", "@kernels{0,0}"))
    bars = hv.Bars(rows, kdims=["class"], vdims=["time", "kernels", "colour"])
    title = "Time in kernels by class, all ranks"
    return bars_chart(bars, title, f"time ({unit.name})", tips)


def timeline_lanes(timeline: Timeline, *, limit: int = 8000) -> Chart:
    """Return a timeline, one row a stream or thread, tasks coloured by class of kernel.

    Parameters
    ----------
    timeline : Timeline
    limit : int
        Of rectangles. Where there are more tasks, neighbours of a class are merged, and the title says so.

    Returns
    -------
    holoviews.Overlay
        One ``Rectangles`` a class; times in the unit on the axis.
    """
    return _lanes_chart(timeline, "timeline", (time_unit(timeline.makespan_ns), limit))


def before_after(
    before: Timeline, after: Timeline, names: tuple[str, str] = ("before", "after"), *, limit: int = 8000
) -> Chart:
    """Return two timelines one above the other, on one axis of time.

    Parameters
    ----------
    before, after : Timeline
    names : pair of str
        For the titles.
    limit : int
        Of rectangles in each.

    Returns
    -------
    holoviews.Layout
        Of two charts as `timeline_lanes` returns them.
    """
    unit = time_unit(max(before.makespan_ns, after.makespan_ns))
    charts = [_lanes_chart(line, name, (unit, limit)) for line, name in zip((before, after), names, strict=True)]
    return hv.Layout(charts).cols(1).opts(shared_axes=True, merge_tools=False, backend="bokeh")


def _lanes_chart(timeline: Timeline, name: str, how: tuple[TimeUnit, int]) -> Chart:
    unit, limit = how
    lanes = lanes_of(timeline, limit=limit)
    end = timeline.makespan_ns / unit.ns
    number = len(lanes.lanes)
    present = [label for label in CLASS_COLOURS if label in set(lanes.label)]
    layers = [_rectangles(lanes, label, unit) for label in present]
    layers.append(hv.VLine(end).opts(color=INK, line_width=1, line_dash="dotted", backend="bokeh"))
    ticks = [(number - 1.0 - i, lane.label) for i, lane in enumerate(lanes.lanes)]
    return overlay(
        layers,
        f"{plain_text(name, NAME_LENGTH)}: {end:.4g} {unit.name}{_fine_print(lanes)}",
        (f"time from the start of the step ({unit.name})", ""),
        height=120 + 17 * number,
        ylim=(-0.7, number - 0.3),
        yticks=ticks,
    )


def _rectangles(lanes: Lanes, label: str, unit: TimeUnit) -> Chart:
    mine = np.flatnonzero(np.array(lanes.label, dtype=object) == label)
    middle = len(lanes.lanes) - 1.0 - lanes.lane[mine]
    columns = (
        lanes.start_ns[mine] / unit.ns,
        middle - 0.4,
        lanes.end_ns[mine] / unit.ns,
        middle + 0.4,
        [plain_text(lanes.name[i], NAME_LENGTH) for i in mine.tolist()],
        lanes.busy_ns[mine] / unit.ns,
        lanes.tasks[mine],
    )
    hover = hover_tips(
        ("name", "@name"),
        ("class", label),
        ("start", f"@left{{0,0.[000000]}} {unit.name}"),
        ("duration", f"@duration{{0,0.[000000]}} {unit.name}"),
        ("tasks", "@tasks"),
    )
    colour = CLASS_COLOURS[label]
    return hv.Rectangles(columns, vdims=["name", "duration", "tasks"], label=label).opts(
        fill_color=colour, line_color=colour, line_width=0.5, backend="bokeh", **hover
    )


def _fine_print(lanes: Lanes) -> str:
    """Return what a reader must know of a chart that does not show every task."""
    facts = []
    if lanes.merged:
        facts.append(f"{int(lanes.tasks.sum()):,} tasks merged into {len(lanes):,} rectangles by class")
    if lanes.left_out:
        facts.append(f"the {lanes.left_out:,} shortest not shown")
    if lanes.lanes_left_out:
        facts.append(f"{lanes.lanes_left_out:,} lanes with the least work not shown")
    return f" ({'; '.join(facts)})" if facts else ""
