"""`Timeline`: when every task of a graph ran."""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from profilers.trace.arrays import Floats, union_length
from replay.engine.engine import simulate
from replay.graph.graph import EdgeKind, KernelGraph, TaskKind

#: A pause of a stream up to this long between two tasks needs no explanation (ns).
EXPLAINED_NS = 10_000


@dataclass(frozen=True)
class Timeline:
    """The starts and ends of a graph's tasks.

    Parameters
    ----------
    graph : KernelGraph
    start_ns, end_ns : array of float64, one a task
        From the graph's origin.
    interval : (float, float), optional
        The part of the time that an analysis looks at, such as one step of several. By default all of it, up to the
        end of the last task of the graph's iterations.
    """

    graph: KernelGraph
    start_ns: Floats
    end_ns: Floats
    interval: tuple[float, float] | None = None

    @property
    def makespan_ns(self) -> float:
        """When the last task of the graph's iterations is done."""
        own = self.graph.tasks.own
        return float(self.end_ns[own].max()) if own.any() else 0.0

    @property
    def begin_ns(self) -> float:
        """When the interval begins."""
        return self.interval[0] if self.interval else 0.0

    @property
    def until_ns(self) -> float:
        """When the interval ends."""
        return self.interval[1] if self.interval else self.makespan_ns

    @property
    def span_ns(self) -> float:
        """The length of the interval."""
        return self.until_ns - self.begin_ns

    def completions_ns(self) -> Floats:
        """Return when each iteration of the graph, and all before it, are done on all ranks."""
        tasks = self.graph.tasks
        ends = np.zeros(len(self.graph.iterations))
        np.maximum.at(ends, tasks.iteration[tasks.own], self.end_ns[tasks.own])
        return np.asarray(np.maximum.accumulate(ends))

    def arrivals_ns(self) -> Floats:
        """Return when each task had all that it waits for; it starts later where it has to wait for compute units."""
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
        """Return the interval as a timeline of its own that begins at 0, with the tasks active in it."""
        if self.interval is None:
            return self
        tasks, edges = self.graph.tasks, self.graph.edges
        inside = (self.end_ns > self.begin_ns) & (self.start_ns < self.until_ns)
        rows = np.flatnonzero(inside)
        place = np.cumsum(inside) - 1
        columns = {name: getattr(tasks, name)[rows] for name in tasks.__dataclass_fields__}
        kept = edges.select(inside[edges.source] & inside[edges.target])
        kept = replace(kept, source=place[kept.source], target=place[kept.target])
        graph = replace(self.graph, tasks=replace(tasks, **columns), edges=kept)
        line = self.clipped()
        return Timeline(graph, line.start_ns[rows] - self.begin_ns, line.end_ns[rows] - self.begin_ns)

    def busy_ns(self) -> Floats:
        """Return per device how long at least one task was on it during the interval, earlier work included.

        A collective counts from its arrival: while it waits for other ranks, its kernel occupies the device.
        """
        tasks = self.graph.tasks
        rows = self.graph.on_device()
        start = self.start_ns.copy()
        waits = np.flatnonzero(tasks.kind[1:] == TaskKind.COLLECTIVE)
        waits = waits[(tasks.kind[waits] == TaskKind.MARK) & (tasks.event[waits] == tasks.event[waits + 1])]
        start[waits + 1] = self.start_ns[waits]
        line = replace(self, start_ns=start)
        return np.array([line._covered(r) for r in self._rows_of(rows, tasks.device)])

    def communication_ns(self) -> tuple[Floats, Floats]:
        """Return per device how long collectives were active, and how long nothing else was beside them."""
        tasks = self.graph.tasks
        rows = self.graph.on_device() & tasks.own
        all_, compute = rows, rows & (tasks.kind != TaskKind.COLLECTIVE)
        total = [self._covered(r) for r in self._rows_of(rows & ~compute, tasks.device)]
        busy = [self._covered(r) for r in self._rows_of(all_, tasks.device)]
        other = [self._covered(r) for r in self._rows_of(compute, tasks.device)]
        return np.array(total), np.array(busy) - np.array(other)

    def _covered(self, rows: npt.NDArray[np.intp]) -> float:
        """Return how much of the interval tasks cover."""
        start, end = (np.clip(times[rows], self.begin_ns, self.until_ns) for times in (self.start_ns, self.end_ns))
        return union_length(start, end)

    def unexplained_ns(self) -> float:
        """Return how much of a device's time is waiting that no recorded event explains, of the device with the most.

        The device is idle, and what it runs next waits neither for the host nor for other work but for the
        lag that replays the measured start. What-ifs leave such waiting as it is.
        """
        edges, tasks = self.graph.edges, self.graph.tasks
        on_device = (tasks.device[edges.target] >= 0) & tasks.own[edges.target] & (edges.kind != EdgeKind.LAUNCH)
        rows = on_device & (edges.lag_ns > EXPLAINED_NS) & ~edges.from_start
        until, devices = self.start_ns[edges.target[rows]], tasks.device[edges.target[rows]]
        since = np.maximum(until - edges.lag_ns[rows], 0.0)
        each = [union_length(since[devices == d], until[devices == d]) for d in np.unique(devices).tolist()]
        return max(each, default=0.0)

    def _rows_of(self, rows: npt.NDArray[np.bool_], devices: npt.NDArray[np.int64]) -> list[npt.NDArray[np.intp]]:
        return [np.flatnonzero(rows & (devices == d)) for d in range(len(self.graph.devices))]


def replay(graph: KernelGraph) -> Timeline:
    """Run `graph` through the engine.

    Raises
    ------
    InvalidInputError
        Its tasks wait for each other in a circle.
    """
    return Timeline(graph, *simulate(graph))


def measured_timeline(graph: KernelGraph) -> Timeline:
    """Return what was measured, in the form of a replay; tasks that nobody measured take no time at zero."""
    tasks = graph.tasks
    return Timeline(graph, np.nan_to_num(tasks.measured_start_ns), np.nan_to_num(tasks.measured_end_ns))
