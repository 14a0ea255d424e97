"""Charts of timelines: lanes of tasks, time by class of kernel, and resources in use.

A timeline can have millions of tasks. `lanes_of` merges neighbours of the same lane and class into rectangles, few
enough to draw; the title of a chart says what was merged or left out.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import holoviews as hv
import numpy as np

from profilers.errors import InvalidInputError
from profilers.files import dataset_path, read_toml
from profilers.trace.arrays import Floats, Ints
from replay.analysis.critical_path import LABELS, task_labels
from replay.engine.timeline import Timeline
from replay.graph.graph import Lane, TaskKind
from seqpoint.plots.frame import INK, NAME_LENGTH, Chart, Rows, bars_chart, hover_tips, overlay, plain_text
from seqpoint.plots.saving import saveable
from seqpoint.units import TimeUnit, time_unit

#: Narrowest gap between neighbours that is closed, as a share of the time shown: far below a pixel.
_MIN_GAP = 1 / 65536
#: Widest gap that is closed: a few pixels.
_MAX_GAP = 1 / 512


@dataclass(frozen=True)
class LaneRectangles:
    """Rectangles of a timeline, as columns, ordered by (lane, start).

    Parameters
    ----------
    lanes : tuple of Lane
        The lanes, from top to bottom.
    lane : array of int64
        Index into `lanes` of each rectangle.
    label : tuple of str
        Class of kernel, or one of the other `replay.analysis.critical_path.LABELS`.
    name : tuple of str
        Name of the longest task in the rectangle; untrusted text.
    start_ns, end_ns : array of float64
        Start and end of each rectangle.
    busy_ns : array of float64
        Sum of the durations of the tasks in the rectangle.
    tasks : array of int64
        Number of tasks in the rectangle.
    left_out : int
        Number of tasks, the shortest ones, that are in no rectangle.
    lanes_left_out : int
        Number of lanes, the least busy ones, that are left out.
    """

    lanes: tuple[Lane, ...]
    lane: Ints
    label: tuple[str, ...]
    name: tuple[str, ...]
    start_ns: Floats
    end_ns: Floats
    busy_ns: Floats
    tasks: Ints
    left_out: int = 0
    lanes_left_out: int = 0

    def __len__(self) -> int:
        return len(self.lane)

    @property
    def merged(self) -> bool:
        """Whether a rectangle holds more than one task."""
        return bool((self.tasks > 1).any())


def lanes_of(timeline: Timeline, *, limit: int = 8000, max_lanes: int = 48, rank: int | None = None) -> LaneRectangles:
    """Return the rectangles of a timeline, with at most `limit` rectangles on at most `max_lanes` lanes.

    If there are more tasks, neighbours of the same lane and class are merged over the narrowest gap that brings their
    number down to `limit`. If that is not enough, the shortest are left out and counted.

    Parameters
    ----------
    timeline : Timeline
        The timeline.
    limit : int, default 8000
        Most rectangles.
    max_lanes : int, default 48
        Most lanes; the busiest ones are kept.
    rank : int, optional
        The only rank to show; by default all.
    """
    rows, position, shown, lanes_left_out = _rows(timeline, max_lanes, rank)
    label = task_labels(timeline.graph)[rows]
    start, end = timeline.start_ns[rows], timeline.end_ns[rows]
    group = _groups(position, label, (start, end), limit)
    first = np.flatnonzero(np.diff(group, prepend=-1))
    n = len(first)
    longest = np.lexsort((-(end - start), group))[first]
    names, number = timeline.graph.names, timeline.graph.tasks.name[rows]
    count = np.bincount(group, minlength=n)
    busy = np.bincount(group, weights=end - start, minlength=n).astype(np.float64)
    until = np.maximum.reduceat(end, first) if n else end
    keep = np.sort(np.lexsort((np.arange(n), -busy))[:limit])
    return LaneRectangles(
        shown,
        position[first][keep],
        tuple(LABELS[i] for i in label[first][keep].tolist()),
        tuple(names[i] for i in number[longest][keep].tolist()),
        start[first][keep],
        until[keep],
        busy[keep],
        count[keep],
        int(count.sum() - count[keep].sum()),
        lanes_left_out,
    )


def _rows(timeline: Timeline, max_lanes: int, rank: int | None) -> tuple[Ints, Ints, tuple[Lane, ...], int]:
    """Return the tasks to show by (lane, start), the lane of each, the lanes, and the number of hidden lanes."""
    tasks, lanes = timeline.graph.tasks, timeline.graph.lanes
    drawn = np.flatnonzero((tasks.lane >= 0) & (tasks.kind != TaskKind.MARK) & (timeline.end_ns > timeline.start_ns))
    busy = np.bincount(tasks.lane[drawn], weights=(timeline.end_ns - timeline.start_ns)[drawn], minlength=len(lanes))
    busy = np.where([rank in (None, lane.rank) for lane in lanes], busy, 0.0)
    busiest = sorted(np.flatnonzero(busy > 0).tolist(), key=lambda i: (-busy[i], i))
    ranks = [(lane.rank, -1 if lane.device is None else lane.device, lane.number) for lane in lanes]
    chosen = sorted(busiest[:max_lanes], key=lambda i: (ranks[i], i))
    position_of_lane = np.full(len(lanes) + 1, -1, dtype=np.int64)
    position_of_lane[chosen] = np.arange(len(chosen))
    drawn = drawn[position_of_lane[tasks.lane[drawn]] >= 0]
    position = position_of_lane[tasks.lane[drawn]]
    order = np.lexsort((drawn, timeline.start_ns[drawn], position))
    return drawn[order], position[order], tuple(lanes[i] for i in chosen), len(busiest) - len(chosen)


def _groups(position: Ints, label: Ints, times: tuple[Floats, Floats], limit: int) -> Ints:
    """Return the rectangle of each task; tasks share rectangles only if there are more than `limit`."""
    if len(position) <= limit:
        return np.arange(len(position))
    start, end = times
    span = float(end.max() - start.min())
    shift = position * (span + 1.0)
    running_end = np.maximum.accumulate(end + shift) - shift  # the latest end on the lane so far
    until = np.append(start[:1], running_end[:-1])
    starts_group = (np.diff(position, prepend=-1) != 0) | (np.diff(label, prepend=-1) != 0)
    share = _MIN_GAP
    while True:
        group = np.cumsum(starts_group | (start - until > share * span)) - 1
        if group[-1] < limit or share >= _MAX_GAP:
            return group
        share *= 2


@cache
def class_colours() -> Mapping[str, str]:
    """Return the colour of each class of kernel, of copies and of the host, the same in every chart."""
    return dict(read_toml(dataset_path("colours.toml"), "colours of charts")["classes"])


@saveable
def class_breakdown(classes: Rows) -> Chart:
    """Return the chart of the time in kernels by class, longest first, with shares in the labels.

    Parameters
    ----------
    classes : pandas.DataFrame
        Classes, longest first, with ``class``, ``kernels``, ``time_ns`` and ``share``.

    Returns
    -------
    holoviews.Bars
        A bar for each class.
    """
    columns = (classes[name].tolist() if len(classes) else [] for name in ("class", "share", "time_ns", "kernels"))
    cells = list(zip(*columns, strict=True))[::-1]
    unit = time_unit(max((time_ns for _, _, time_ns, _ in cells), default=0))
    rows = [
        (f"{class_}  {100 * share:.1f} %", time_ns / unit.ns, kernels, class_colours()[class_])
        for class_, share, time_ns, kernels in cells
    ]
    tips = hover_tips(("class", "@class"), ("time", f"@time{{0,0.[000]}} {unit.name}"), ("kernels", "@kernels{0,0}"))
    bars = hv.Bars(rows, kdims=["class"], vdims=["time", "kernels", "colour"])
    title = "Time in kernels by class, all ranks"
    return bars_chart(bars, title, f"time ({unit.name})", tips)


#: Most devices of a chart of memory, and most points of a device: where there are more, the largest of neighbours.
_DEVICES, _POINTS = 8, 2000


@saveable
def allocated_memory(memory: Mapping[str, tuple[Ints, Ints]]) -> Chart:
    """Return the chart of the memory in use over time, a line for each of the first eight devices.

    Parameters
    ----------
    memory : mapping of str to (array of int64, array of int64)
        Times of changes in ns, ascending, and bytes in use after each, by the name of the device.

    Returns
    -------
    holoviews.Overlay
        ``Curve`` for each device, in steps.

    Raises
    ------
    InvalidInputError
        There is no device.
    """
    shown = dict(list(memory.items())[:_DEVICES])
    if not shown:
        raise InvalidInputError("the trace has no events of memory; record it with profile_memory=True")
    start = min(int(times[0]) for times, _ in shown.values())
    unit = time_unit(max(int(times[-1]) for times, _ in shown.values()) - start)
    layers, highest = [], max(int(used.max()) for _, used in shown.values()) / 2**20
    colours = list(class_colours().values())
    for (name, (times, used)), colour in zip(shown.items(), colours, strict=False):
        width = -(-len(times) // _POINTS)
        # The largest of each group of neighbours, at its time.
        largest = [i + int(used[i : i + width].argmax()) for i in range(0, len(times), width)]
        curve = hv.Curve(((times[largest] - start) / unit.ns, used[largest] / 2**20), "time", "MiB", label=name)
        tips = hover_tips(("time", f"@time{{0,0.[000]}} {unit.name}"), ("in use", "@MiB{0,0.[0]} MiB"))
        layers.append(curve.opts(interpolation="steps-post", color=colour, line_width=1.5, **tips, backend="bokeh"))
    more = len(memory) - len(shown)
    title = "Memory in use" + (f", the first {_DEVICES} of {_DEVICES + more} devices" if more else "")
    labels = (f"time from the first change ({unit.name})", "MiB")
    return overlay(layers, title, labels, height=320, ylim=(0, 1.05 * highest))


@saveable
def timeline_lanes(timeline: Timeline, *, limit: int = 8000, rank: int | None = None) -> Chart:
    """Return the chart of a timeline, with a row for each stream or thread, and tasks coloured by class of kernel.

    Parameters
    ----------
    timeline : Timeline
        The timeline.
    limit : int, default 8000
        Most rectangles. If there are more tasks, neighbours of a class are merged, and the title says so.
    rank : int, optional
        The only rank to show; by default all.

    Returns
    -------
    holoviews.Overlay
        ``Rectangles`` for each class; times in the unit on the axis.
    """
    return _lanes_chart(timeline, "timeline", time_unit(timeline.makespan_ns), (limit, rank))


@saveable
def before_after(
    before: Timeline,
    after: Timeline,
    names: tuple[str, str] = ("before", "after"),
    *,
    limit: int = 8000,
    rank: int | None = None,
) -> Chart:
    """Return the charts of two timelines, one above the other, on a common axis of time.

    Parameters
    ----------
    before, after : Timeline
        The timelines.
    names : pair of str
        Names of the timelines in the titles.
    limit : int, default 8000
        Most rectangles of each chart.
    rank : int, optional
        The only rank to show; by default all.

    Returns
    -------
    holoviews.Layout
        Two charts as `timeline_lanes` returns them.
    """
    unit = time_unit(max(before.makespan_ns, after.makespan_ns))
    pairs = zip((before, after), names, strict=True)
    charts = [_lanes_chart(timeline, name, unit, (limit, rank)) for timeline, name in pairs]
    return hv.Layout(charts).cols(1).opts(shared_axes=True, merge_tools=False, backend="bokeh")


def _lanes_chart(timeline: Timeline, name: str, unit: TimeUnit, shown: tuple[int, int | None]) -> Chart:
    lanes = lanes_of(timeline, limit=shown[0], rank=shown[1])
    end = timeline.makespan_ns / unit.ns
    number = len(lanes.lanes)
    present = [label for label in class_colours() if label in set(lanes.label)]
    layers = [_rectangles(lanes, label, unit, name) for label in present]
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


def _rectangles(lanes: LaneRectangles, label: str, unit: TimeUnit, name: str) -> Chart:
    rows = np.flatnonzero(np.array(lanes.label, dtype=object) == label)
    middle = len(lanes.lanes) - 1.0 - lanes.lane[rows]
    columns = (
        lanes.start_ns[rows] / unit.ns,
        middle - 0.4,
        lanes.end_ns[rows] / unit.ns,
        middle + 0.4,
        [plain_text(lanes.name[i], NAME_LENGTH) for i in rows.tolist()],
        lanes.busy_ns[rows] / unit.ns,
        lanes.tasks[rows],
    )
    hover = hover_tips(
        ("name", "@name"),
        ("class", label),
        ("start", f"@left{{0,0.[000000]}} {unit.name}"),
        ("duration", f"@duration{{0,0.[000000]}} {unit.name}"),
        ("tasks", "@tasks"),
    )
    colour = class_colours()[label]
    # Charts in one layout share the axes of equal name: of two timelines that of time, and not that of lanes.
    edges = ["x0", f"y0 {name}", "x1", f"y1 {name}"]
    return hv.Rectangles(columns, kdims=edges, vdims=["name", "duration", "tasks"], label=label).opts(
        fill_color=colour, line_color=colour, line_width=0.5, backend="bokeh", **hover
    )


def _fine_print(lanes: LaneRectangles) -> str:
    """Return a remark on the tasks and lanes that a chart merges or leaves out."""
    facts = []
    if lanes.merged:
        facts.append(f"{int(lanes.tasks.sum()):,} tasks merged into {len(lanes):,} rectangles by class")
    if lanes.left_out:
        facts.append(f"the {lanes.left_out:,} shortest not shown")
    if lanes.lanes_left_out:
        facts.append(f"{lanes.lanes_left_out:,} lanes with the least work not shown")
    return f" ({'; '.join(facts)})" if facts else ""
