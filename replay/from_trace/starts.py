"""What the start of a kernel waits for.

Streams that wait for events of others: as recorded, else inferred from calls, else from times.

Why each row of device work started when it did: its bounds, which of them bound, and what no bound explains.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from profilers.trace.arrays import MISSING, Bools, Floats, Ints
from replay.from_trace.draft import Draft, NewEdges
from replay.from_trace.host import HostTasks
from replay.from_trace.window import Window
from replay.graph.graph import EdgeKind

#: A task that starts this soon after another stream's task ends, later than all that it is known to wait for,
#: is taken to have waited for that task (ns).
WAIT_NS = 10_000
#: The same where the other task ran for at least `_COVERED` of the time that the task waited.
_COVERED_NS, _COVERED = 25_000, 0.5


@dataclass(frozen=True)
class Waits:
    """Pairs of rows of device work: `row` waits for the end of `other`; sorted, each pair once."""

    row: Ints
    other: Ints
    kind: Ints


def find_waits(window: Window) -> Waits:
    """Return what rows wait for on other streams; a wait that the measured times contradict is left out."""
    recorded, told = _recorded(window)
    pairs = {**dict.fromkeys(_inferred(window, told), int(EdgeKind.WAIT_INFERRED)), **recorded}
    end, start = window.work.end, window.work.start
    kept = sorted((row, other, kind) for (row, other), kind in pairs.items() if end[other] <= start[row])
    columns = np.array(kept, dtype=np.int64).reshape(-1, 3)
    return Waits(columns[:, 0], columns[:, 1], columns[:, 2])


class _Streams:
    """Rows of each stream in order, with the times at which they were launched."""

    def __init__(self, window: Window) -> None:
        work = window.work
        self._launched = window.launched()
        rows = np.flatnonzero(work.own)
        self._rows: dict[tuple[int, int], Ints] = {}
        places = np.stack([work.rank[rows], work.stream[rows]], axis=1)
        distinct, place = np.unique(places, axis=0, return_inverse=True)
        for number, (rank, stream) in enumerate(distinct.tolist()):
            self._rows[rank, stream] = rows[place.ravel() == number]

    def first_after(self, place: tuple[int, int], time: int) -> int | None:
        """Return the first row of a stream that was launched at a time or later."""
        rows = self._rows.get(place, np.zeros(0, np.int64))
        later = rows[self._launched[rows] >= time]
        return int(later[0]) if len(later) else None

    def last_before(self, place: tuple[int, int], time: int) -> int | None:
        """Return the last row of a stream that was launched at a time or before."""
        rows = self._rows.get(place, np.zeros(0, np.int64))
        earlier = rows[self._launched[rows] <= time]
        return int(earlier[-1]) if len(earlier) else None


def _recorded(window: Window) -> tuple[dict[tuple[int, int], int], set[int]]:
    """Return the waits that the profiler recorded, and the calls that they are of.

    Where it wrote the waiting stream and not which event, the event is taken to be the last that the same thread
    recorded, after the last work that it launched.
    """
    syncs, calls = window.index.syncs, window.calls
    streams: _Streams | None = None
    found: dict[tuple[int, int], int] = {}
    told: set[int] = set()
    for call, sync in zip(*(side.tolist() for side in syncs.of(calls.id)), strict=True):
        if syncs.kind[sync] != "Stream Wait Event" or syncs.stream[sync] == MISSING:
            continue
        streams = streams or _Streams(window)
        rank = int(calls.rank[call])
        waiting = streams.first_after((rank, int(syncs.stream[sync])), int(calls.start[call]))
        source, recorded = int(syncs.source[sync]), int(syncs.recorded_ns[sync])
        if MISSING not in (source, recorded):
            before, kind = streams.last_before((rank, source), recorded - window.origin_ns), EdgeKind.WAIT
        else:
            before, kind = _last_recorded(window, call), EdgeKind.WAIT_INFERRED
        if before is None and kind is EdgeKind.WAIT_INFERRED:
            continue
        told.add(call)
        if None not in (waiting, before) and waiting != before:
            found[int(waiting or 0), int(before or 0)] = int(kind)
    return found, told


def _last_recorded(window: Window, call: int) -> int | None:
    """Return the row that a thread launched last before it last recorded an event, earlier than a call."""
    calls, work = window.calls, window.work
    mine = np.flatnonzero((calls.thread[:call] == calls.thread[call]) & (calls.rank[:call] == calls.rank[call]))
    records = [row for row in mine[::-1][:64].tolist() if "EventRecord" in window.index.calls.names[calls.name[row]]]
    if not records:
        return None
    launched = np.flatnonzero((work.launch >= 0) & (work.launch < records[0]) & work.own)
    launched = launched[calls.thread[work.launch[launched]] == calls.thread[call]]
    launched = launched[calls.rank[work.launch[launched]] == calls.rank[call]]
    return int(launched[np.argmax(work.launch[launched])]) if len(launched) else None


def _inferred(window: Window, told: set[int]) -> set[tuple[int, int]]:
    """Infer waits from ``StreamWaitEvent`` calls, of which the profiler did not write the streams.

    A launch on another stream than the thread's last waits for that last launch (the way into a collective);
    one on the same stream waits for the newest work of every other stream (the way out of it).
    """
    work, calls = window.work, window.calls
    is_wait = np.array(["WaitEvent" in name for name in window.index.calls.names], dtype=bool)
    asked = set(np.flatnonzero(is_wait[calls.name]).tolist()) - told if len(calls) else set()
    if not asked:
        return set()
    rows = np.flatnonzero((work.launch >= 0) & work.own)
    launches = dict(zip(work.launch[rows].tolist(), rows.tolist(), strict=True))
    last: dict[tuple[int, int], int] = {}
    newest: dict[int, dict[int, int]] = {}
    waiting: set[tuple[int, int]] = set()
    found: set[tuple[int, int]] = set()
    for call in sorted(asked | set(launches)):  # in order of start; a Python loop over calls, about 1 us each
        thread = (int(calls.rank[call]), int(calls.thread[call]))
        if call in asked:
            waiting.add(thread)
        if (row := launches.get(call)) is None:
            continue
        on_rank = newest.setdefault(thread[0], {})
        if thread in waiting and thread in last:
            before, stream = last[thread], int(work.stream[row])
            others = [r for s, r in on_rank.items() if s != stream]
            found |= {(row, other) for other in (others if work.stream[before] == stream else [before])}
        waiting.discard(thread)
        last[thread] = row
        on_rank[int(work.stream[row])] = row
    return found


def just_ended(window: Window, rows: Ints, late: npt.NDArray[np.float64]) -> tuple[Ints, Ints]:
    """Return pairs of rows: one that started later than all that it is known to wait for, and what it waited for.

    That is the work of another stream of its device, launched before it, which ended right before it started.

    Parameters
    ----------
    rows : array of int64
    late : array of float64
        By how much each started too late, in ns.
    """
    work, launched = window.work, window.launched()
    by_end = np.argsort(work.end, kind="stable")
    ends = work.end[by_end]
    low, high = (np.searchsorted(ends, work.start[rows] - back, side="right") for back in (_COVERED_NS, 0))
    some = high > low
    pairs: list[tuple[int, int]] = []
    asked = (column[some].tolist() for column in (rows, late, low, high))
    for row, delay, first, last in zip(*asked, strict=True):  # work that waited long: about 20 us each
        near, start = by_end[first:last], int(work.start[row])
        fits = (work.rank[near] == work.rank[row]) & (work.device[near] == work.device[row])
        fits &= (work.stream[near] != work.stream[row]) & (work.start[near] < start)
        fits &= (work.end[near] > start - WAIT_NS) | (work.start[near] <= start - _COVERED * delay)
        if work.launch[row] >= 0:
            fits &= launched[near] < launched[row]
        if fits.any():
            pairs.append((row, int(near[fits][-1])))
    columns = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return columns[:, 0], columns[:, 1]


#: Time from a launch to its kernel where none was launched into an idle stream, and above which it is not one.
_LAUNCH_NS, _LAUNCH_NS_MAX = 10_000, 100_000
#: A pause up to this long between two tasks of a stream is the device's own (ns).
_PAUSE_NS = 10_000
_NAMES = ("row", "source", "time", "lag", "kind", "from_start")


@dataclass(frozen=True)
class _Bounds:
    """What rows of device work wait for: equally long columns, one row a bound.

    `source` is a task; `time` is the earliest start that it allows, and `lag` how long that is after the source
    ends, or starts.
    """

    row: Ints
    source: Ints
    time: Floats
    lag: Floats
    kind: Ints
    from_start: Bools


def add_starts(draft: Draft, window: Window, host: HostTasks, tasks: tuple[Ints, Ints]) -> None:
    """Join each row to what it waits for, and give what remains unexplained to the edge that bound it.

    A task's start is the latest of what it waits for; what the trace cannot explain of its measured start
    becomes the lag of the edge that bound it, so that an unchanged graph replays as measured.
    """
    begin, done = tasks
    work = window.work
    bounds = _joined([_stream_bounds(window, tasks), _launch_bounds(window, host), _wait_bounds(window, done)])
    latest = np.full(len(work), -np.inf)
    np.maximum.at(latest, bounds.row, bounds.time)
    bound = np.isfinite(latest)
    late = np.where(bound, work.start - np.where(bound, latest, 0.0), 0.0)
    rows = np.flatnonzero(late > WAIT_NS)
    row, other = just_ended(window, rows, late[rows])
    inferred = np.full(len(row), int(EdgeKind.WAIT_INFERRED))
    bounds = _joined([bounds, _after(row, done[other], work.end[other], inferred)])
    _join(draft, window, bounds, (begin, host))
    alone = np.flatnonzero(~bound)
    draft.release(begin[alone], work.start[alone].astype(np.float64))


def _joined(parts: list[_Bounds]) -> _Bounds:
    return _Bounds(*(np.concatenate([getattr(part, name) for part in parts]) for name in _NAMES))


def _after(row: Ints, source: Ints, time: Ints, kind: Ints) -> _Bounds:
    """Return bounds that end when their source does."""
    return _Bounds(row, source, time.astype(np.float64), np.zeros(len(row)), kind, np.zeros(len(row), dtype=bool))


def _stream_bounds(window: Window, tasks: tuple[Ints, Ints]) -> _Bounds:
    """Return what order on the stream asks: after the task before, or, where the two overlap, after its start."""
    work, (begin, done) = window.work, tasks
    row = np.flatnonzero(~work.queue_starts())
    before = row - 1
    apart = work.end[before] <= work.start[row]
    time = np.where(apart, work.end[before], work.start[row]).astype(np.float64)
    lag = np.where(apart, 0.0, work.start[row] - work.start[before])
    source = np.where(apart, done[before], begin[before])
    return _Bounds(row, source, time, lag, np.full(len(row), int(EdgeKind.STREAM)), ~apart)


def _launch_bounds(window: Window, host: HostTasks) -> _Bounds:
    """Return that work comes after its launch; where clocks contradict that, the call says nothing of its start."""
    work, calls = window.work, window.calls
    row = np.flatnonzero(work.launch >= 0)
    call = work.launch[row]
    fits = (host.begin[call] >= 0) & (work.start[row] >= calls.start[call])
    row, call = row[fits], call[fits]
    lags = _launch_lag(window)
    usual = np.array([lags[rank] for rank in work.rank[row].tolist()], dtype=np.float64)
    lag = np.minimum(usual, work.start[row] - calls.start[call])
    kind = np.full(len(row), int(EdgeKind.LAUNCH))
    if len(row):
        kind[_graph_calls(window)[call]] = int(EdgeKind.GRAPH_LAUNCH)
    staged = _staged(window, row, calls.start[call] + lag)
    lag[staged] = (work.start[row] - calls.start[call])[staged]
    kind[staged] = int(EdgeKind.GAP)
    return _Bounds(row, host.begin[call], calls.start[call] + lag, lag, kind, np.ones(len(row), dtype=bool))


def _staged(window: Window, row: Ints, ready: Floats) -> Bools:
    """Return which rows are copies from pageable memory that the host prepares inside their call.

    Parameters
    ----------
    row : array of int64
        Rows of device work with a launch.
    ready : array of float64
        The earliest start that the launch allows.
    """
    work, calls = window.work, window.calls
    pageable = np.array(["Pageable -> Device" in name for name in window.index.work.names.text], dtype=bool)
    ended = np.where(work.queue_starts(), np.iinfo(np.int64).min, np.roll(work.end, 1))[row]
    start = work.start[row]
    idle = start - np.maximum(ready, ended) > _PAUSE_NS
    return np.asarray(pageable[work.name[row]] & idle & (start <= calls.end[work.launch[row]]))


def _launch_lag(window: Window) -> dict[int, float]:
    """Return per rank the shortest usual time from a call's start to its kernel's, in ns.

    The 5th percentile over the work that was launched into an idle stream; behind a queue the time says
    nothing about launching.
    """
    work, calls = window.work, window.calls
    known = np.flatnonzero(work.launch >= 0)
    called = calls.start[work.launch[known]]
    before = np.where(work.queue_starts(), np.iinfo(np.int64).min, np.roll(work.end, 1))[known]
    lag, idle, ranks = work.start[known] - called, before <= called, work.rank[known]
    lags = {}
    for rank in np.unique(ranks).tolist():
        into_idle = lag[(ranks == rank) & idle & (lag < _LAUNCH_NS_MAX)]
        lags[rank] = max(float(np.percentile(into_idle, 5)), 0.0) if len(into_idle) else _LAUNCH_NS
    return lags


def _wait_bounds(window: Window, done: Ints) -> _Bounds:
    waits = find_waits(window)
    return _after(waits.row, done[waits.other], window.work.end[waits.other], waits.kind)


def _join(draft: Draft, window: Window, bounds: _Bounds, ends: tuple[Ints, HostTasks]) -> None:
    """Add an edge for each bound; the latest of a row, first among equals, gets the delay until the measured start."""
    begin, host = ends
    start = window.work.start[bounds.row]
    order = np.lexsort((np.arange(len(bounds.row)), -bounds.time, bounds.row))
    binding = np.zeros(len(order), dtype=bool)
    binding[order] = np.concatenate([[True], np.diff(bounds.row[order]) > 0])[: len(order)]
    extra = np.where(binding, np.maximum(start - bounds.time, 0.0), 0.0)
    kind, lag, from_start = _paused(window, bounds, extra), bounds.lag + extra, bounds.from_start.copy()
    behind = np.flatnonzero(_behind(window, bounds, host, extra))
    kind[behind], from_start[behind] = int(EdgeKind.BACKLOG), False
    lag[behind] = start[behind] - host.issued[window.work.launch[bounds.row[behind]]]
    draft.edges(NewEdges(bounds.source, begin[bounds.row], lag, kind, from_start))
    for row, wait in zip(bounds.row[behind].tolist(), lag[behind].tolist(), strict=True):
        draft.notes.append(
            f"rank {window.work.rank[row]}: GPU {window.work.device[row]} starts its first work on stream "
            f"{window.work.stream[row]} {wait / 1e6:.1f} ms after the launch, and nothing in the trace says "
            "why (work older than the recording, or clocks that disagree); the wait stays as it is"
        )


def _paused(window: Window, bounds: _Bounds, extra: Floats) -> Ints:
    """Return the kinds of bounds, where a pause on a stream is named by what it stands for."""
    work, call = window.work, window.work.launch[bounds.row]
    paused = (bounds.kind == EdgeKind.STREAM) & ~bounds.from_start & (extra > _PAUSE_NS)
    launching = np.isin(work.rank[bounds.row], list(window.index.launching_ranks))
    unlaunched = np.where(launching, int(EdgeKind.BACKLOG), int(EdgeKind.GAP))
    kind = np.where(paused & (call < 0), unlaunched, bounds.kind)
    if not len(window.calls):
        return kind
    # One call that copies in pieces prepares each on the host.
    same_call = (call >= 0) & (call == work.launch[bounds.row - 1])
    in_graph = (call >= 0) & _graph_calls(window)[call]
    kind = np.where(paused & same_call, int(EdgeKind.GAP), kind)
    return np.where(paused & in_graph, int(EdgeKind.GRAPH_GAP), kind)


def _behind(window: Window, bounds: _Bounds, host: HostTasks, extra: Floats) -> Bools:
    """Return which bounds are of the first work of a stream in the trace, long after its launch had returned."""
    work, call = window.work, window.work.launch[bounds.row]
    launched = np.isin(bounds.kind, (EdgeKind.LAUNCH, EdgeKind.GRAPH_LAUNCH)) & (extra > _LAUNCH_NS_MAX)
    late = launched & work.opens[bounds.row]
    late[late] = work.start[bounds.row[late]] >= host.issued[call[late]]
    return np.asarray(late)


def _graph_calls(window: Window) -> Bools:
    """Return which calls launch a graph."""
    graphs = np.array(["GraphLaunch" in name for name in window.index.calls.names], dtype=bool)
    return np.asarray(graphs[window.calls.name])
