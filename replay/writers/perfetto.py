"""A timeline as JSON for Perfetto.

What a picture of a timeline shows beside its tasks: time spent waiting, and arrows from what was waited for.

Timelines as JSON for https://ui.perfetto.dev and chrome://tracing: tasks, waits, arrows, and resources in use.
"""

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from profilers.files import written_whole
from profilers.trace.arrays import Floats, Ints, arrow_array
from profilers.writers.perfetto import microseconds, numbers
from replay.analysis.critical_path import binding_edges
from replay.analysis.idle import resource_use
from replay.engine.timeline import Timeline
from replay.graph.graph import LAUNCH_EDGES, SYNC_EDGES, Basis, EdgeKind, Lane, TaskKind

_SYNCS = sorted(SYNC_EDGES)
#: Order on a stream or a thread shows by itself.
_SHOWN = sorted(LAUNCH_EDGES | {EdgeKind.HANDOFF, EdgeKind.AUTOGRAD, EdgeKind.WAIT, EdgeKind.WAIT_INFERRED})


@dataclass(frozen=True)
class Waits:
    """Columns of equal length, one row a span in which a lane waits.

    Parameters
    ----------
    mark : array of int64
        The mark that stands for it: a call that returns, or a rank's arrival at a collective.
    begin_ns, end_ns : array of float64
    for_device : array of bool
        Whether a call waits for the device, rather than a rank for others.
    """

    mark: Ints
    begin_ns: Floats
    end_ns: Floats
    for_device: npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Arrows:
    """Columns of equal length, one row an arrow, ordered by edge.

    Parameters
    ----------
    edge : array of int64
    source, target : array of int64
        The tasks that it joins, of which each has a lane.
    begin_ns, end_ns : array of float64
        Where it leaves the source, and reaches the target.
    """

    edge: Ints
    source: Ints
    target: Ints
    begin_ns: Floats
    end_ns: Floats


def waits_of(timeline: Timeline) -> Waits:
    """Return when calls wait for the device, and ranks for each other, where that takes time.

    Parameters
    ----------
    timeline : Timeline
    """
    tasks, edges = timeline.graph.tasks, timeline.graph.edges
    mark = (tasks.kind == TaskKind.MARK) & (tasks.lane >= 0)
    returns = np.zeros(len(tasks), dtype=bool)
    returns[edges.target[np.isin(edges.kind, _SYNCS)]] = True
    begin, end = timeline.start_ns.copy(), timeline.start_ns.copy()
    issued = np.flatnonzero((edges.kind == EdgeKind.HOST) & (returns & mark)[edges.target] & ~edges.from_start)
    since = timeline.end_ns[edges.source[issued]] + edges.lag_ns[issued]
    begin[edges.target[issued]] = np.minimum(since, end[edges.target[issued]])
    meets = np.flatnonzero((edges.kind == EdgeKind.RENDEZVOUS) & mark[edges.source])
    end[edges.source[meets]] = timeline.start_ns[edges.target[meets]]
    rows = np.flatnonzero(mark & (end > begin))
    return Waits(rows, begin[rows], end[rows], returns[rows])


def arrows_of(timeline: Timeline, waits: Waits) -> Arrows:
    """Return an arrow for each launch, wait, handing over and synchronisation, and from the last rank to the others.

    Parameters
    ----------
    timeline : Timeline
    waits : Waits
        Of the same timeline: a synchronisation has an arrow from what let the call return, where it waits.
    """
    tasks, edges = timeline.graph.tasks, timeline.graph.edges
    drawn = (tasks.kind != TaskKind.MARK) & (tasks.lane >= 0)
    waiting = np.zeros(len(tasks), dtype=bool)
    waiting[waits.mark[waits.for_device]] = True
    plain = np.isin(edges.kind, _SHOWN) & drawn[edges.target]
    binds = binding_edges(timeline)[edges.target] == np.arange(len(edges))
    plain |= np.isin(edges.kind, _SYNCS) & waiting[edges.target] & binds
    source = _last_rank(timeline, edges.source.copy())
    others = (edges.kind == EdgeKind.RENDEZVOUS) & (source != edges.source) & (source != edges.target)
    rows = np.flatnonzero((plain | (others & drawn[edges.target])) & drawn[source])
    source, target = source[rows], edges.target[rows]
    # Each end has to lie in the span of its task, whose end is no part of it.
    left = np.where(edges.from_start[rows], timeline.start_ns[source], timeline.end_ns[source] - 1)
    left = np.where(others[rows], timeline.start_ns[source], np.maximum(left, timeline.start_ns[source]))
    reached = timeline.start_ns[target] - np.isin(edges.kind[rows], _SYNCS)
    return Arrows(rows, source, target, left, reached)


def _last_rank(timeline: Timeline, source: Ints) -> Ints:
    """Return the sources of edges; those that leave a rendezvous as the collective of the rank that came last."""
    tasks, edges = timeline.graph.tasks, timeline.graph.edges
    meeting = (tasks.kind == TaskKind.MARK) & (tasks.lane < 0)
    into = np.flatnonzero((edges.kind == EdgeKind.RENDEZVOUS) & meeting[edges.target])
    into = into[np.lexsort((-edges.source[into], timeline.start_ns[edges.source[into]]))]
    lane = np.full(len(tasks), -1)
    lane[edges.target[into]] = tasks.lane[edges.source[into]]  # of several, the last stays
    out = np.flatnonzero((edges.kind == EdgeKind.RENDEZVOUS) & meeting[edges.source])
    same = out[lane[edges.source[out]] == tasks.lane[edges.target[out]]]
    last = np.arange(len(tasks))
    last[edges.source[same]] = edges.target[same]
    source[out] = last[edges.source[out]]
    return source


#: Processes of one timeline are numbered from this times its place on; its arrows from `_ARROWS` times it on.
_GROUP, _ARROWS = 1_000_000, 1 << 40
#: Points of a curve of resources in use.
_BINS = 1000
#: Events that are put together before they are written.
_BATCH = 65_536
_WAITS = ("waits for all ranks", "waits for the device")


def perfetto_json(timelines: Mapping[str, Timeline]) -> str:
    """Return the timelines as one JSON text, as `write_perfetto` writes it.

    Parameters
    ----------
    timelines : mapping of str to Timeline
        By the name under which each is shown, such as ``"before"`` and ``"after"``.
    """
    out = io.BytesIO()
    _write(out, timelines)
    return out.getvalue().decode()


def write_perfetto(path: Path, timelines: Mapping[str, Timeline]) -> None:
    """Write the timelines to a file, some ten thousand events at a time; whole or not at all.

    There is a process a rank and timeline, in order, and in it a thread a lane, those of the host first, and a counter
    a device with the share of each resource in use. A task is a complete event, so is the time that a call waits for
    the device, or a rank for the others of a collective. Arrows (``s`` and ``f``) go from each launch to its task, from
    what a stream, thread or call waited for, and from the rank that came last to a collective to the others; the id of
    an arrow is the row of its edge.

    Parameters
    ----------
    path : Path
    timelines : mapping of str to Timeline
        By the name under which each is shown.

    Raises
    ------
    InvalidInputError
        The file cannot be written.
    """
    with written_whole(path) as stream:
        _write(stream, timelines)


def _write(out: Any, timelines: Mapping[str, Timeline]) -> None:
    """Write every event on a line of its own; those that name processes come first, the others follow a comma."""
    places = [place for i, (name, line) in enumerate(timelines.items()) for place in _places(name, line, i)]
    texts = (json.dumps(place, separators=(",", ":")) for place in places)
    out.write(b'{"displayTimeUnit":"ns","traceEvents":[\n' + ",\n".join(texts).encode())
    for i, line in enumerate(timelines.values()):
        waits = waits_of(line)
        for events in (_tasks(line, i), _waits(line, waits, i), _arrows(line, waits, i)):
            for batch in events:
                lines = pc.binary_join_element_wise(",\n", batch, "")
                _, offsets, data = lines.buffers()
                ends = np.frombuffer(offsets, np.int32)[lines.offset : lines.offset + len(lines) + 1]
                out.write(memoryview(data)[int(ends[0]) : int(ends[-1])])
        for counter in _counters(line, i):
            out.write(f",\n{json.dumps(counter, separators=(',', ':'))}".encode())
    out.write(b"\n]}\n")


def _places(name: str, timeline: Timeline, group: int) -> Iterator[dict[str, Any]]:
    """Yield the events that name and order processes and threads."""

    def meta(what: str, lane: Lane, tid: int, **arguments: object) -> dict[str, Any]:
        return {"ph": "M", "name": what, "pid": group * _GROUP + lane.rank, "tid": tid, "args": arguments}

    lanes, tasks = timeline.graph.lanes, timeline.graph.tasks
    shown = set(np.unique(tasks.lane[tasks.kind != TaskKind.MARK]).tolist()) - {-1}
    ranks = {lane.rank: lane for lane in lanes}
    for rank, lane in sorted(ranks.items()):
        yield meta("process_name", lane, 0, name=f"{name}: rank {rank}")
        yield meta("process_sort_index", lane, 0, sort_index=group * _GROUP + rank)
    order = sorted(shown, key=lambda i: (_device(lanes[i]), lanes[i].number, i))
    for place, number in enumerate(order):
        yield meta("thread_name", lanes[number], number, name=lanes[number].label)
        yield meta("thread_sort_index", lanes[number], number, sort_index=place)


def _device(lane: Lane) -> int:
    return -1 if lane.device is None else lane.device


def _tasks(timeline: Timeline, group: int) -> Iterator[pa.Array]:
    graph, tasks = timeline.graph, timeline.graph.tasks
    names, kinds = _words(graph.names), _words([kind.name.lower() for kind in TaskKind])
    bases = _words([basis.name.lower() for basis in Basis])
    places = pa.array([_arguments(lane) for lane in graph.lanes], pa.string())
    start, end = _whole(timeline.start_ns), _whole(timeline.end_ns)
    for rows in _batches(np.flatnonzero((tasks.lane >= 0) & (tasks.kind != TaskKind.MARK))):
        yield _joined(
            '{"ph":"X","name":', _taken(names, tasks.name[rows]), ',"cat":', _taken(kinds, tasks.kind[rows]),
            *_place(timeline, tasks.lane[rows], group), ',"ts":', microseconds(start[rows]),
            ',"dur":', microseconds(end[rows] - start[rows]), ',"args":{"basis":', _taken(bases, tasks.basis[rows]),
            ',"event":', numbers(tasks.event[rows]), ',"alone_us":', microseconds(_whole(tasks.duration_ns[rows])),
            _taken(places, tasks.lane[rows]), "}}",
        )  # fmt: skip


def _waits(timeline: Timeline, waits: Waits, group: int) -> Iterator[pa.Array]:
    names = _words(_WAITS)
    begin, end = _whole(waits.begin_ns), _whole(waits.end_ns)
    for rows in _batches(np.arange(len(waits.mark))):
        yield _joined(
            '{"ph":"X","name":', _taken(names, waits.for_device[rows].astype(np.int64)), ',"cat":"wait"',
            *_place(timeline, timeline.graph.tasks.lane[waits.mark[rows]], group),
            ',"ts":', microseconds(begin[rows]), ',"dur":', microseconds(end[rows] - begin[rows]), "}",
        )  # fmt: skip


def _arrows(timeline: Timeline, waits: Waits, group: int) -> Iterator[pa.Array]:
    arrows, lane = arrows_of(timeline, waits), timeline.graph.tasks.lane
    kinds = _words([kind.name.lower() for kind in EdgeKind])
    begin, end = _whole(arrows.begin_ns), _whole(arrows.end_ns)
    for rows in _batches(np.arange(len(arrows.edge))):
        kind = _taken(kinds, timeline.graph.edges.kind[arrows.edge[rows]])
        flow = (',"name":', kind, ',"cat":', kind, ',"id":', numbers(group * _ARROWS + arrows.edge[rows]))
        for head, task, time in (('{"ph":"s"', arrows.source, begin), ('{"ph":"f","bp":"e"', arrows.target, end)):
            place = _place(timeline, lane[task[rows]], group)
            yield _joined(head, *flow, *place, ',"ts":', microseconds(time[rows]), "}")


def _counters(timeline: Timeline, group: int) -> Iterator[dict[str, Any]]:
    """Yield the share of each resource in use, where it changes."""
    use = resource_use(timeline, _BINS)
    for d, (rank, device) in enumerate(use.devices):
        shares = np.round(100 * use.use[d], 2)
        changed = np.ones(len(shares), dtype=bool)
        changed[1:] = (shares[1:] != shares[:-1]).any(axis=1)
        common = {"ph": "C", "name": f"GPU {device}: % in use", "pid": group * _GROUP + rank, "tid": 0}
        for k in np.flatnonzero(changed).tolist():
            values = dict(zip(use.resources, shares[k].tolist(), strict=True))
            yield {**common, "ts": round(float(use.edges_ns[k]) / 1e3, 3), "args": values}


def _arguments(lane: Lane) -> str:
    return "" if lane.device is None else f',"device":{lane.device},"stream":{lane.number}'


def _place(timeline: Timeline, lane: Ints, group: int) -> tuple[str | pa.Array, ...]:
    ranks = np.array([group * _GROUP + one.rank for one in timeline.graph.lanes], dtype=np.int64)
    return ',"pid":', numbers(ranks[lane]), ',"tid":', numbers(lane)


def _whole(times: npt.NDArray[np.float64]) -> Ints:
    return np.rint(times).astype(np.int64)


def _batches(rows: Ints) -> Iterator[Ints]:
    return (rows[first : first + _BATCH] for first in range(0, len(rows), _BATCH))


def _words(texts: Sequence[str]) -> pa.Array:
    """Return each text as JSON."""
    return pa.array([json.dumps(text) for text in texts], pa.string())


def _taken(words: pa.Array, index: Ints) -> pa.Array:
    return words.take(arrow_array(index))


def _joined(*parts: str | pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(*parts, "")
