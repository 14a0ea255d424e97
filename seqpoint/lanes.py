"""`Lanes`: a timeline as rectangles, one row of them a stream or thread, few enough to draw."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from replay.analysis.labels import HOST, LABELS, MEMCPY, task_labels
from replay.graph import Lane, TaskKind
from replay.timeline import Timeline

__all__ = ["HOST", "MEMCPY", "Lanes", "lanes_of"]

#: The first gap that is closed between neighbours, as a share of the time shown: far below one pixel.
_FIRST_GAP = 1 / 65536
#: The widest gap that is closed: a few pixels.
_LAST_GAP = 1 / 512

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Lanes:
    """Columns of equal length, one row a rectangle, ordered by (lane, start).

    Parameters
    ----------
    lanes : tuple of Lane
        From top to bottom.
    lane : array of int64
        Index into `lanes`.
    label : tuple of str
        Class of kernel, `HOST` or `MEMCPY`.
    name : tuple of str
        Of the longest task in the rectangle; untrusted text.
    start_ns, end_ns : array of float64
    busy_ns : array of float64
        Durations of the tasks in the rectangle, summed.
    tasks : array of int64
        How many tasks the rectangle stands for.
    left_out : int
        Tasks, the shortest ones, that no rectangle stands for.
    lanes_left_out : int
        Lanes with work, those with the least of it, that are not here.
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
        """Whether some rectangle stands for more than one task."""
        return bool((self.tasks > 1).any())


def lanes_of(timeline: Timeline, *, limit: int = 8000, max_lanes: int = 48) -> Lanes:
    """Return the rectangles of a timeline, at most `limit` of them on at most `max_lanes` lanes.

    Where there are more tasks, neighbours of the same lane and class are merged over the narrowest gap that
    brings their number down to `limit`; where that is not enough, the shortest are left out and counted.

    Parameters
    ----------
    timeline : Timeline
    limit, max_lanes : int
    """
    rows, position, shown, dropped = _rows(timeline, max_lanes)
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
    return Lanes(
        shown,
        position[first][keep],
        tuple(LABELS[i] for i in label[first][keep].tolist()),
        tuple(names[i] for i in number[longest][keep].tolist()),
        start[first][keep],
        until[keep],
        busy[keep],
        count[keep],
        int(count.sum() - count[keep].sum()),
        dropped,
    )


def _rows(timeline: Timeline, max_lanes: int) -> tuple[Ints, Ints, tuple[Lane, ...], int]:
    """Return the tasks to show by (lane, start), their lanes' places, the lanes, and how many lanes are not shown."""
    tasks, lanes = timeline.graph.tasks, timeline.graph.lanes
    drawn = np.flatnonzero((tasks.lane >= 0) & (tasks.kind != TaskKind.MARK) & (timeline.end_ns > timeline.start_ns))
    work = np.bincount(tasks.lane[drawn], weights=(timeline.end_ns - timeline.start_ns)[drawn], minlength=len(lanes))
    most = sorted(np.flatnonzero(work > 0).tolist(), key=lambda i: (-work[i], i))
    chosen = sorted(most[:max_lanes], key=lambda i: _place(lanes[i], i))
    place = np.full(len(lanes) + 1, -1, dtype=np.int64)
    place[chosen] = np.arange(len(chosen))
    drawn = drawn[place[tasks.lane[drawn]] >= 0]
    position = place[tasks.lane[drawn]]
    order = np.lexsort((drawn, timeline.start_ns[drawn], position))
    return drawn[order], position[order], tuple(lanes[i] for i in chosen), len(most) - len(chosen)


def _place(lane: Lane, index: int) -> tuple[int, int, int, int]:
    device = -1 if lane.device is None else lane.device
    return lane.rank, device, lane.number, index


def _groups(position: Ints, label: Ints, times: tuple[Floats, Floats], limit: int) -> Ints:
    """Return the rectangle that each task goes into: its own, unless there are more than `limit`."""
    if len(position) <= limit:
        return np.arange(len(position))
    start, end = times
    span = float(end.max() - start.min())
    until = np.append(start[:1], _running_end(position, start, end)[:-1])
    other = (np.diff(position, prepend=-1) != 0) | (np.diff(label, prepend=-1) != 0)
    share = _FIRST_GAP
    while True:
        group = np.cumsum(other | (start - until > share * span)) - 1
        if group[-1] < limit or share >= _LAST_GAP:
            return group
        share *= 2


def _running_end(position: Ints, start: Floats, end: Floats) -> Floats:
    """Return the latest end on the lane so far."""
    shift = position * (float(end.max() - start.min()) + 1.0)
    return np.asarray(np.maximum.accumulate(end + shift) - shift)
