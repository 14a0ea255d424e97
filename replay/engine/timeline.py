"""`Timeline`: when every task of a graph ran."""

from dataclasses import dataclass, replace

import numpy as np

from profilers.trace.activity import DeviceIntervals, DeviceTimes, device_times
from profilers.trace.arrays import Bools, Floats, union_length
from profilers.trace.compiled import compiled
from replay.engine.engine import simulate
from replay.graph.graph import EdgeKind, KernelGraph

#: A pause of a stream up to this long between two tasks needs no explanation (ns).
EXPLAINED_NS = 10_000


@dataclass(frozen=True)
class Timeline:
    """The starts and ends of a graph's tasks.

    Parameters
    ----------
    graph : KernelGraph
        The graph that ran.
    start_ns, end_ns : array of float64, one a task
        Times after the graph's origin.
    interval : (float, float), optional
        Time that analyses look at, such as one step of several. By default from the origin to the end of the last task
        of the graph's iterations.
    """

    graph: KernelGraph
    start_ns: Floats
    end_ns: Floats
    interval: tuple[float, float] | None = None

    @property
    def makespan_ns(self) -> float:
        """End of the last task of the graph's iterations."""
        in_iteration = self.graph.tasks.in_iteration
        return float(self.end_ns[in_iteration].max()) if in_iteration.any() else 0.0

    @property
    def begin_ns(self) -> float:
        """Begin of the interval."""
        return self.interval[0] if self.interval else 0.0

    @property
    def until_ns(self) -> float:
        """End of the interval."""
        return self.interval[1] if self.interval else self.makespan_ns

    @property
    def span_ns(self) -> float:
        """Length of the interval."""
        return self.until_ns - self.begin_ns

    def completions_ns(self) -> Floats:
        """Return the completion of each iteration: when it, and all iterations before it, are done on all ranks."""
        latest = latest_ends(self.graph.tasks.iteration, self.end_ns, len(self.graph.iterations))
        return np.asarray(np.maximum.accumulate(np.maximum(latest, 0.0)))

    def arrivals_ns(self) -> Floats:
        """Return when the edges into each task have fired. A task that waits for compute units starts later."""
        graph = self.graph
        arrival, edges = graph.tasks.release_ns.astype(np.float64), graph.edges
        since = np.where(edges.from_start, self.start_ns[edges.source], self.end_ns[edges.source])
        np.maximum.at(arrival, edges.target, since + edges.lag_ns)
        return arrival

    def clipped(self) -> "Timeline":
        """Return the timeline with every start and end moved into the interval."""
        start, end = (np.clip(times, self.begin_ns, self.until_ns) for times in (self.start_ns, self.end_ns))
        return replace(self, start_ns=start, end_ns=end)

    def cut(self) -> "Timeline":
        """Return the interval as a separate timeline that begins at 0, with the tasks active in it."""
        if self.interval is None:
            return self
        edges = self.graph.edges
        inside = (self.end_ns > self.begin_ns) & (self.start_ns < self.until_ns)
        rows = np.flatnonzero(inside)
        new_row = np.cumsum(inside) - 1
        kept = edges.select(inside[edges.source] & inside[edges.target])
        kept = replace(kept, source=new_row[kept.source], target=new_row[kept.target])
        graph = replace(self.graph, tasks=self.graph.tasks.select(rows), edges=kept)
        clipped = self.clipped()
        return Timeline(graph, clipped.start_ns[rows] - self.begin_ns, clipped.end_ns[rows] - self.begin_ns)

    def on_device_since(self) -> tuple[Floats, Bools]:
        """Return since when each task is on its device, and the mask of collectives with a mark of arrival.

        A collective is on its device since its rank arrived: while it waits for other ranks, its kernel is there.
        """
        marks = self.graph.arrival_marks()
        has_mark = marks >= 0
        return np.where(has_mark, self.start_ns[marks], self.start_ns), has_mark

    def busy_ns(self) -> Floats:
        """Return how long at least one task is on each device during the interval, earlier work included."""
        return replace(self, start_ns=self.on_device_since()[0])._covered_ns(self.graph.on_device())

    def busy_within(self, intervals_ns: Floats) -> Floats:
        """Return how long at least one task is on each device during some intervals, shape (intervals, devices).

        Parameters
        ----------
        intervals_ns : array of float64, shape (n, 2)
            Begin and end of each interval.
        """
        since, tasks = self.on_device_since()[0], self.graph.tasks
        inside = (self.end_ns > intervals_ns[:, 0].min()) & (since < intervals_ns[:, 1].max())
        rows = np.flatnonzero(inside & self.graph.on_device())
        rows = rows[np.argsort(since[rows], kind="stable")]
        busy: Floats = _busy_within(
            since[rows], self.end_ns[rows], tasks.device[rows], intervals_ns, len(self.graph.devices)
        )
        return busy

    def device_times(self) -> tuple[DeviceTimes, ...]:
        """Return the busy time and the communication of each device during the interval."""
        return tuple(device_times(work) for work in self.device_work())

    def device_work(self) -> list[DeviceIntervals]:
        """Return the tasks of each device during the interval, cut at its ends."""
        graph, tasks = self.graph, self.graph.tasks
        since, has_mark = self.on_device_since()
        is_collective = self.graph.collectives()
        is_matched = is_collective & (has_mark | (tasks.ranks == 1))
        work = DeviceIntervals(since, self.end_ns, self.start_ns, is_collective, is_matched)
        on_device = graph.on_device()
        of_devices = (work.select(on_device & (tasks.device == d)) for d in range(len(graph.devices)))
        return [rows.within(self.begin_ns, self.until_ns) for rows in of_devices]

    def _covered_ns(self, rows: Bools) -> Floats:
        """Return for each device the time of the interval that its tasks in the mask `rows` cover."""
        line, device = self.clipped(), self.graph.tasks.device
        of_devices = (rows & (device == d) for d in range(len(self.graph.devices)))
        return np.array([union_length(line.start_ns[mask], line.end_ns[mask]) for mask in of_devices])

    def unexplained_ns(self) -> float:
        """Return the time that a device waits without a recorded reason, for the device that waits longest.

        The device is idle, and its next task waits neither for the host nor for other work, only for the lag that
        replays the measured start. What-ifs leave such waiting as it is.
        """
        edges, tasks = self.graph.edges, self.graph.tasks
        on_device = (
            (tasks.device[edges.target] >= 0) & tasks.in_iteration[edges.target] & (edges.kind != EdgeKind.LAUNCH)
        )
        rows = on_device & (edges.lag_ns > EXPLAINED_NS) & ~edges.from_start
        until, devices = self.start_ns[edges.target[rows]], tasks.device[edges.target[rows]]
        since = np.maximum(until - edges.lag_ns[rows], 0.0)
        each = [union_length(since[devices == d], until[devices == d]) for d in np.unique(devices).tolist()]
        return max(each, default=0.0)


@compiled
def latest_ends(group, end_ns, size):  # type: ignore[no-untyped-def]
    """Return the latest end of each of `size` groups of tasks, -inf for an empty one; a task of group -1 has none."""
    latest = np.full(size, -np.inf)
    for i in range(len(group)):
        if group[i] >= 0:
            latest[group[i]] = max(latest[group[i]], end_ns[i])
    return latest


@compiled
def _busy_within(start, end, device, intervals, n_devices):  # type: ignore[no-untyped-def]
    """Return what `Timeline.busy_within` returns, of tasks in the order of their starts."""
    busy, reach = np.zeros((len(intervals), n_devices)), np.full(n_devices, -np.inf)
    for i in range(len(start)):
        d = device[i]
        since = max(start[i], reach[d])
        if end[i] <= since:
            continue
        for k in range(len(intervals)):
            busy[k, d] += max(min(end[i], intervals[k, 1]) - max(since, intervals[k, 0]), 0.0)
        reach[d] = end[i]
    return busy


def replay(graph: KernelGraph) -> Timeline:
    """Return the timeline of `graph` as the engine runs it.

    Raises
    ------
    InvalidInputError
        Its tasks wait for each other in a circle.
    """
    return Timeline(graph, *simulate(graph))
