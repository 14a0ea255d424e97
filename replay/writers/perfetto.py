"""Timelines as JSON for https://ui.perfetto.dev and chrome://tracing: tasks, waits, arrows, and resources in use.

`waits_of` and `arrows_of` work out what a picture shows beside tasks: the time spent waiting, and arrows from the task
that was waited for. `write_perfetto` writes tasks, waits and arrows in batches of events.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from profilers.files import replaced_file
from profilers.readers.kineto.reader import SYNTHETIC_MARK
from profilers.trace.arrays import Floats, Ints, arrow_array
from profilers.writers.perfetto import microseconds, numbers, write_events
from replay.analysis.critical_path import binding_edges
from replay.analysis.idle import resource_use
from replay.engine.timeline import Timeline
from replay.graph.graph import LAUNCH_EDGES, SYNC_EDGES, Basis, EdgeKind, Lane, TaskKind

_SYNC_EDGES = sorted(SYNC_EDGES)
#: Kinds of edges that are drawn as arrows; order on a stream or a thread shows by itself.
_DRAWN_EDGES = sorted(LAUNCH_EDGES | {EdgeKind.HANDOFF, EdgeKind.AUTOGRAD, EdgeKind.WAIT, EdgeKind.WAIT_INFERRED})


@dataclass(frozen=True)
class Waits:
    """Times during which a lane waits: columns of equal length, one row a wait.

    Parameters
    ----------
    mark : array of int64
        Mark of the wait: the return of a call, or a rank's arrival at a collective.
    begin_ns, end_ns : array of float64
        Time of the wait.
    for_device : array of bool
        Whether a call waits for the device; otherwise a rank waits for others.
    """

    mark: Ints
    begin_ns: Floats
    end_ns: Floats
    for_device: npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Arrows:
    """Arrows between tasks: columns of equal length, one row an arrow, ordered by edge.

    Parameters
    ----------
    edge : array of int64
        Edge that the arrow shows.
    source, target : array of int64
        Tasks that it joins; each has a lane.
    begin_ns, end_ns : array of float64
        Times at which it leaves the source and reaches the target.
    """

    edge: Ints
    source: Ints
    target: Ints
    begin_ns: Floats
    end_ns: Floats


def waits_of(timeline: Timeline) -> Waits:
    """Return the waits of calls for the device, and of ranks for each other, that take time."""
    tasks, edges = timeline.graph.tasks, timeline.graph.edges
    is_mark = (tasks.kind == TaskKind.MARK) & (tasks.lane >= 0)
    is_return = np.zeros(len(tasks), dtype=bool)
    is_return[edges.target[np.isin(edges.kind, _SYNC_EDGES)]] = True
    begin, end = timeline.start_ns.copy(), timeline.start_ns.copy()
    host_edges = np.flatnonzero((edges.kind == EdgeKind.HOST) & (is_return & is_mark)[edges.target] & ~edges.from_start)
    since = timeline.end_ns[edges.source[host_edges]] + edges.lag_ns[host_edges]
    begin[edges.target[host_edges]] = np.minimum(since, end[edges.target[host_edges]])
    rendezvous = np.flatnonzero((edges.kind == EdgeKind.RENDEZVOUS) & is_mark[edges.source])
    end[edges.source[rendezvous]] = timeline.start_ns[edges.target[rendezvous]]
    rows = np.flatnonzero(is_mark & (end > begin))
    return Waits(rows, begin[rows], end[rows], is_return[rows])


def arrows_of(timeline: Timeline, waits: Waits) -> Arrows:
    """Return an arrow for each launch, wait, handoff and synchronisation, and from the last rank of a collective.

    Parameters
    ----------
    timeline : Timeline
        Timeline to draw.
    waits : Waits
        Waits of the timeline. A synchronisation that waits has an arrow from the task that let the call return.
    """
    tasks, edges = timeline.graph.tasks, timeline.graph.edges
    is_drawn = (tasks.kind != TaskKind.MARK) & (tasks.lane >= 0)
    waiting = np.zeros(len(tasks), dtype=bool)
    waiting[waits.mark[waits.for_device]] = True
    is_shown = np.isin(edges.kind, _DRAWN_EDGES) & is_drawn[edges.target]
    is_binding = binding_edges(timeline)[edges.target] == np.arange(len(edges))
    is_shown |= np.isin(edges.kind, _SYNC_EDGES) & waiting[edges.target] & is_binding
    source = _last_arrivals(timeline, edges.source.copy())
    from_other_rank = (edges.kind == EdgeKind.RENDEZVOUS) & (source != edges.source) & (source != edges.target)
    rows = np.flatnonzero((is_shown | (from_other_rank & is_drawn[edges.target])) & is_drawn[source])
    source, target = source[rows], edges.target[rows]
    # Each end of an arrow has to lie within its task, whose end does not belong to it.
    begin = np.where(edges.from_start[rows], timeline.start_ns[source], timeline.end_ns[source] - 1)
    begin = np.where(from_other_rank[rows], timeline.start_ns[source], np.maximum(begin, timeline.start_ns[source]))
    end = timeline.start_ns[target] - np.isin(edges.kind[rows], _SYNC_EDGES)
    return Arrows(rows, source, target, begin, end)


def _last_arrivals(timeline: Timeline, source: Ints) -> Ints:
    """Return the sources of edges; for an edge that leaves a rendezvous, the collective of the last rank to arrive."""
    tasks, edges = timeline.graph.tasks, timeline.graph.edges
    is_meeting = (tasks.kind == TaskKind.MARK) & (tasks.lane < 0)
    entering = np.flatnonzero((edges.kind == EdgeKind.RENDEZVOUS) & is_meeting[edges.target])
    entering = entering[np.lexsort((-edges.source[entering], timeline.start_ns[edges.source[entering]]))]
    lane = np.full(len(tasks), -1)
    lane[edges.target[entering]] = tasks.lane[edges.source[entering]]  # of several, the last stays
    leaving = np.flatnonzero((edges.kind == EdgeKind.RENDEZVOUS) & is_meeting[edges.source])
    same_lane = leaving[lane[edges.source[leaving]] == tasks.lane[edges.target[leaving]]]
    last = np.arange(len(tasks))
    last[edges.source[same_lane]] = edges.target[same_lane]
    source[leaving] = last[edges.source[leaving]]
    return source


#: Numbers of processes, and ids of arrows, that each timeline has for itself.
_PROCESSES, _ARROW_IDS = 1_000_000, 1 << 40
#: Points of the curve of each resource in use.
_BINS = 1000
#: Events that are written at a time.
_BATCH = 65_536
_WAIT_NAMES = ("waits for all ranks", "waits for the device")


def write_perfetto(path: Path, timelines: Mapping[str, Timeline]) -> None:
    """Write timelines to a file, some ten thousand events at a time; the whole file or none.

    Each timeline has a process for each rank. A process has a thread for each lane, host threads first, and for
    each device a counter with the share of each resource in use. Tasks and waits are complete events. Arrows (``s`` and
    ``f``) go from each launch to its task, and from a task to the stream, thread or call that waited for it. In a
    collective they go from the last rank to the others. The id of an arrow is the row of its edge.

    Parameters
    ----------
    path : Path
        File to write.
    timelines : mapping of str to Timeline
        Timelines by the names under which they are shown.

    Raises
    ------
    InvalidInputError
        The file cannot be written.
    """
    named = (event for i, (name, line) in enumerate(timelines.items()) for event in _headers(name, line, i))
    batches = (batch for i, line in enumerate(timelines.values()) for batch in _events(line, i))
    with replaced_file(path) as out:
        write_events(out, {"displayTimeUnit": "ns", **SYNTHETIC_MARK}, named, batches)


def _events(timeline: Timeline, group: int) -> Iterator[pa.Array]:
    """Yield the events of a timeline as JSON, in batches."""
    waits = waits_of(timeline)
    yield from _tasks(timeline, group)
    yield from _waits(timeline, waits, group)
    yield from _arrows(timeline, waits, group)
    yield pa.array([json.dumps(counter, separators=(",", ":")) for counter in _counters(timeline, group)], pa.string())


def _headers(name: str, timeline: Timeline, group: int) -> Iterator[dict[str, Any]]:
    """Yield the events that name and order processes and threads."""

    def meta(event: str, lane: Lane, tid: int, **arguments: object) -> dict[str, Any]:
        return {"ph": "M", "name": event, "pid": group * _PROCESSES + lane.rank, "tid": tid, "args": arguments}

    lanes, tasks = timeline.graph.lanes, timeline.graph.tasks
    shown = set(np.unique(tasks.lane[tasks.kind != TaskKind.MARK]).tolist()) - {-1}
    ranks = {lane.rank: lane for lane in lanes}
    for rank, lane in sorted(ranks.items()):
        yield meta("process_name", lane, 0, name=f"{name}: rank {rank}")
        yield meta("process_sort_index", lane, 0, sort_index=group * _PROCESSES + rank)
    devices = [-1 if lane.device is None else lane.device for lane in lanes]
    order = sorted(shown, key=lambda i: (devices[i], lanes[i].number, i))
    for position, lane_number in enumerate(order):
        yield meta("thread_name", lanes[lane_number], lane_number, name=lanes[lane_number].label)
        yield meta("thread_sort_index", lanes[lane_number], lane_number, sort_index=position)


def _tasks(timeline: Timeline, group: int) -> Iterator[pa.Array]:
    """Yield the events of tasks as JSON, in batches."""
    graph, tasks = timeline.graph, timeline.graph.tasks
    names, kinds = _json_texts(graph.names), _json_texts([kind.name.lower() for kind in TaskKind])
    bases = _json_texts([basis.name.lower() for basis in Basis])
    lane_members = [
        "" if lane.device is None else f',"device":{lane.device},"stream":{lane.number}' for lane in graph.lanes
    ]
    lane_arguments = pa.array(lane_members, pa.string())
    start, end = _whole_ns(timeline.start_ns), _whole_ns(timeline.end_ns)
    for rows in _batches(np.flatnonzero((tasks.lane >= 0) & (tasks.kind != TaskKind.MARK))):
        yield _concatenate(
            '{"ph":"X","name":', _take(names, tasks.name[rows]), ',"cat":', _take(kinds, tasks.kind[rows]),
            *_location(timeline, tasks.lane[rows], group), ',"ts":', microseconds(start[rows]),
            ',"dur":', microseconds(end[rows] - start[rows]), ',"args":{"basis":', _take(bases, tasks.basis[rows]),
            ',"event":', numbers(tasks.event[rows]), ',"alone_us":', microseconds(_whole_ns(tasks.duration_ns[rows])),
            _take(lane_arguments, tasks.lane[rows]), "}}",
        )  # fmt: skip


def _waits(timeline: Timeline, waits: Waits, group: int) -> Iterator[pa.Array]:
    """Yield the events of waits as JSON, in batches."""
    names = _json_texts(_WAIT_NAMES)
    begin, end = _whole_ns(waits.begin_ns), _whole_ns(waits.end_ns)
    for rows in _batches(np.arange(len(waits.mark))):
        yield _concatenate(
            '{"ph":"X","name":', _take(names, waits.for_device[rows].astype(np.int64)), ',"cat":"wait"',
            *_location(timeline, timeline.graph.tasks.lane[waits.mark[rows]], group),
            ',"ts":', microseconds(begin[rows]), ',"dur":', microseconds(end[rows] - begin[rows]), "}",
        )  # fmt: skip


def _arrows(timeline: Timeline, waits: Waits, group: int) -> Iterator[pa.Array]:
    """Yield the events of arrows as JSON, in batches."""
    arrows, lane = arrows_of(timeline, waits), timeline.graph.tasks.lane
    kinds = _json_texts([kind.name.lower() for kind in EdgeKind])
    begin, end = _whole_ns(arrows.begin_ns), _whole_ns(arrows.end_ns)
    for rows in _batches(np.arange(len(arrows.edge))):
        kind = _take(kinds, timeline.graph.edges.kind[arrows.edge[rows]])
        flow = (',"name":', kind, ',"cat":', kind, ',"id":', numbers(group * _ARROW_IDS + arrows.edge[rows]))
        for head, task, time in (('{"ph":"s"', arrows.source, begin), ('{"ph":"f","bp":"e"', arrows.target, end)):
            location = _location(timeline, lane[task[rows]], group)
            yield _concatenate(head, *flow, *location, ',"ts":', microseconds(time[rows]), "}")


def _counters(timeline: Timeline, group: int) -> Iterator[dict[str, Any]]:
    """Yield the share of each resource in use, at the times at which one changes; PIM only if a task uses it."""
    use = resource_use(timeline, _BINS)
    has_pim = bool(timeline.graph.tasks.demand[:, use.resources.index("pim")].any())
    shown = [k for k, name in enumerate(use.resources) if name != "pim" or has_pim]
    names = [use.resources[k] for k in shown]
    for d, (rank, device) in enumerate(use.devices):
        shares = np.round(100 * use.use[d][:, shown], 2)
        changed = np.ones(len(shares), dtype=bool)
        changed[1:] = (shares[1:] != shares[:-1]).any(axis=1)
        common = {"ph": "C", "name": f"GPU {device}: % in use", "pid": group * _PROCESSES + rank, "tid": 0}
        for k in np.flatnonzero(changed).tolist():
            values = dict(zip(names, shares[k].tolist(), strict=True))
            yield {**common, "ts": round(float(use.edges_ns[k]) / 1e3, 3), "args": values}


def _location(timeline: Timeline, lane: Ints, group: int) -> tuple[str | pa.Array, ...]:
    """Return the process and thread of events as JSON members."""
    ranks = np.array([group * _PROCESSES + queue.rank for queue in timeline.graph.lanes], dtype=np.int64)
    return ',"pid":', numbers(ranks[lane]), ',"tid":', numbers(lane)


def _whole_ns(times: npt.NDArray[np.float64]) -> Ints:
    """Return times as whole ns."""
    return np.rint(times).astype(np.int64)


def _batches(rows: Ints) -> Iterator[Ints]:
    """Yield the rows in batches."""
    return (rows[first : first + _BATCH] for first in range(0, len(rows), _BATCH))


def _json_texts(texts: Sequence[str]) -> pa.Array:
    """Return each text as JSON."""
    return pa.array([json.dumps(text) for text in texts], pa.string())


def _take(words: pa.Array, index: Ints) -> pa.Array:
    """Return the texts at `index`."""
    return words.take(arrow_array(index))


def _concatenate(*parts: str | pa.Array) -> pa.Array:
    """Return the rows of several columns of text, joined."""
    return pc.binary_join_element_wise(*parts, "")
