"""Edges into kernels and copies: the bounds on their starts.

`find_waits` returns waits between streams: recorded, or inferred from calls. `add_starts` adds an edge for each bound
on the start of a row of device work: order on its stream, its launch, waits for other streams. The latest bound binds.
The time from it to the measured start becomes the lag of its edge, so that an unchanged graph replays as measured.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from profilers.trace.arrays import MISSING, Bools, Floats, Ints
from profilers.trace.columns import row_groups
from replay.from_trace.host import HostTasks
from replay.from_trace.window import BRANCHES, Window, WindowWork
from replay.graph.assembly import Assembly
from replay.graph.graph import EdgeKind

#: A task is taken to have waited for a task of another stream that ended at most this long before its start (ns), if it
#: started later than all bounds that are known.
WAIT_NS = 10_000
#: The same limit if the other task ran for at least the share `_COVERED` of the time that the task waited, or if the
#: trace holds no launch of the task.
_COVERED_NS, _COVERED = 25_000, 0.5


def find_waits(window: Window) -> tuple[Ints, Ints, Ints]:
    """Return the waits between streams: row, source and kind of each, sorted, each pair once.

    A row of device work waits for the end of its source. A wait that the measured times contradict is left out.
    """
    recorded, recorded_calls = _recorded_waits(window)
    pairs = {**dict.fromkeys(_inferred_waits(window, recorded_calls), int(EdgeKind.WAIT_INFERRED)), **recorded}
    end, start = window.device_work.end, window.device_work.start
    in_order = sorted((row, source, kind) for (row, source), kind in pairs.items() if end[source] <= start[row])
    row, source, kind = np.array(in_order, dtype=np.int64).reshape(-1, 3).T
    return row, source, kind


def _recorded_waits(window: Window) -> tuple[dict[tuple[int, int], int], set[int]]:
    """Return the waits that the profiler recorded, by (row, source), and the calls that made them.

    If the profiler wrote the waiting stream but not the event, the last event that the same thread recorded is taken.
    It follows the last work that the thread launched.
    """
    syncs, calls, launched = window.index.syncs, window.calls, window.launched()
    waits: dict[tuple[int, int], int] = {}
    recorded_calls: set[int] = set()
    in_window, no_rows = window.device_work.in_window, np.zeros(0, np.int64)
    streams = {stream: rows[in_window[rows]] for stream, rows in window.stream_rows.items()}
    for call, sync in zip(*(side.tolist() for side in syncs.by_call.pairs(calls.id)), strict=True):
        if syncs.kind[sync] != "Stream Wait Event" or syncs.stream[sync] == MISSING:
            continue
        rank = int(calls.rank[call])
        waiting = streams.get((rank, int(syncs.stream[sync])), no_rows)
        waiting = waiting[launched[waiting] >= calls.start[call]][:1]
        source, recorded = int(syncs.source[sync]), int(syncs.recorded_ns[sync])
        if MISSING not in (source, recorded):
            before, kind = streams.get((rank, source), no_rows), EdgeKind.WAIT
            before = before[launched[before] <= recorded - window.origin_ns][-1:]
        else:
            before, kind = _last_recorded(window, call), EdgeKind.WAIT_INFERRED
            if not len(before):
                continue
        recorded_calls.add(call)
        if len(waiting) and len(before) and waiting[0] != before[0]:
            waits[int(waiting[0]), int(before[0])] = int(kind)
    return waits, recorded_calls


def _last_recorded(window: Window, call: int) -> Ints:
    """Return the row that the call's thread launched last before it recorded its latest event; empty without one."""
    calls, device_work = window.calls, window.device_work
    same_thread = (calls.thread == calls.thread[call]) & (calls.rank == calls.rank[call])
    recent = np.flatnonzero(same_thread[:call])[::-1][:64].tolist()
    records = [row for row in recent if "EventRecord" in window.index.calls.names[calls.name[row]]]
    launch, last = device_work.launch, records[0] if records else 0
    launched = np.flatnonzero((launch >= 0) & (launch < last) & device_work.in_window)
    launched = launched[same_thread[launch[launched]]]
    newest = int(np.argmax(launch[launched])) if len(launched) else 0
    return np.asarray(launched[newest : newest + 1])


def _inferred_waits(window: Window, recorded_calls: set[int]) -> set[tuple[int, int]]:
    """Return waits inferred from ``StreamWaitEvent`` calls without recorded streams.

    A launch on another stream than the thread's last launch waits for that launch, as on the way into a collective. A
    launch on the same stream waits for the newest work of every other stream, as after a collective.
    """
    device_work, calls = window.device_work, window.calls
    wait_calls = set(np.flatnonzero(window.calls_named("WaitEvent")).tolist()) - recorded_calls
    if not wait_calls:
        return set()
    rows = np.flatnonzero((device_work.launch >= 0) & device_work.in_window)
    launches = dict(zip(device_work.launch[rows].tolist(), rows.tolist(), strict=True))
    last: dict[tuple[int, int], int] = {}
    newest: dict[int, dict[int, int]] = {}
    waiting: set[tuple[int, int]] = set()
    waits: set[tuple[int, int]] = set()
    for call in sorted(wait_calls | set(launches)):  # in order of start; a Python loop over calls, about 1 us each
        thread = (int(calls.rank[call]), int(calls.thread[call]))
        if call in wait_calls:
            waiting.add(thread)
        if (row := launches.get(call)) is None:
            continue
        newest_of_rank = newest.setdefault(thread[0], {})
        if thread in waiting and thread in last:
            before, stream = last[thread], int(device_work.stream[row])
            sources = [r for s, r in newest_of_rank.items() if s != stream]
            waits |= {(row, source) for source in (sources if device_work.stream[before] == stream else [before])}
        waiting.discard(thread)
        last[thread] = row
        newest_of_rank[int(device_work.stream[row])] = row
    return waits


def just_ended(window: Window, rows: Ints, late: npt.NDArray[np.float64]) -> tuple[Ints, Ints]:
    """Return pairs of a row that started later than its bounds, and the row that it is taken to have waited for.

    That row is on another stream of the device, was launched before it, and ended right before it started. Without a
    launch nothing else in the trace can explain the start, and the longer of the two limits holds.

    Parameters
    ----------
    window : Window
        Window of the rows.
    rows : array of int64
        Rows of device work that started late.
    late : array of float64
        Time from the latest bound of each to its start, in ns.
    """
    device_work, launched = window.device_work, window.launched()
    rank, device, stream, start = device_work.rank, device_work.device, device_work.stream, device_work.start
    by_end = np.argsort(device_work.end, kind="stable")
    ends = device_work.end[by_end]
    low, high = (np.searchsorted(ends, start[rows] - back, side="right") for back in (_COVERED_NS, 0))
    has_candidates = high > low
    pairs: list[tuple[int, int]] = []
    columns_of_rows = (column[has_candidates].tolist() for column in (rows, late, low, high))
    for row, delay, first, last in zip(*columns_of_rows, strict=True):  # work that waited long: about 20 us each
        recent, since = by_end[first:last], int(start[row])
        is_possible = (rank[recent] == rank[row]) & (device[recent] == device[row]) & (stream[recent] != stream[row])
        is_possible &= start[recent] < since
        if device_work.launch[row] >= 0:
            is_possible &= launched[recent] < launched[row]
            is_possible &= (device_work.end[recent] > since - WAIT_NS) | (start[recent] <= since - _COVERED * delay)
        if is_possible.any():
            pairs.append((row, int(recent[is_possible][-1])))
    columns = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return columns[:, 0], columns[:, 1]


def _after_pauses(window: Window, latest: Floats) -> tuple[Ints, Ints]:
    """Return pairs of a row of a rank without launches that starts after a pause, and the work of its device before it.

    Nothing is known of the host. It is taken to have launched the row when the device was done with that work.

    Parameters
    ----------
    window : Window
        The window.
    latest : array of float64
        Latest bound on the start of each row.
    """
    device_work = window.device_work
    unlaunched = ~np.isin(device_work.rank, list(window.index.launching_ranks)) & device_work.in_window
    rows, sources = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for of_device in row_groups(device_work.rank, device_work.device):  # a few devices
        by_end = of_device[np.argsort(device_work.end[of_device], kind="stable")]
        late = of_device[unlaunched[of_device] & (device_work.start[of_device] - latest[of_device] > _PAUSE_NS)]
        position = np.searchsorted(device_work.end[by_end], device_work.start[late], side="right") - 1
        source = by_end[np.maximum(position, 0)]
        known = (position >= 0) & (device_work.end[source] > latest[late])
        known &= device_work.start[source] < device_work.start[late]
        rows.append(late[known])
        sources.append(source[known])
    return np.concatenate(rows), np.concatenate(sources)


#: Time from a launch to its kernel (ns): the assumed one if no kernel was launched into an idle stream, and the
#: longest that counts.
_LAUNCH_NS, _LAUNCH_NS_MAX = 10_000, 100_000
#: Names of calls that launch a graph.
_GRAPH_LAUNCH = "GraphLaunch"
#: A pause up to this long between two tasks of a stream needs no explanation (ns).
_PAUSE_NS = 10_000


class _Bounds(NamedTuple):
    """Bounds on the starts of rows of device work: columns of equal length, one row a bound.

    `source` is a task. `time` is the earliest start that the bound allows, `lag` after the source ends (or starts).
    """

    row: Ints
    source: Ints
    time: Floats
    lag: Floats
    kind: Ints
    from_start: Bools


def add_starts(assembly: Assembly, window: Window, host: HostTasks, tasks: tuple[Ints, Ints]) -> list[str]:
    """Append an edge for each bound on the start of device work; return notes on unexplained waits.

    The time from the latest bound to the measured start becomes the lag of its edge, so that an unchanged graph
    replays as measured. A row without a bound is released at its measured start.
    """
    begin, done = tasks
    device_work = window.device_work
    row, source, kind = find_waits(window)
    waits = _bounds_after_end(row, done[source], device_work.end[source], kind)
    bounds = _concatenate(_stream_bounds(window, tasks), _launch_bounds(window, host), waits)
    latest = np.full(len(device_work), -np.inf)
    np.maximum.at(latest, bounds.row, bounds.time)
    has_bound = np.isfinite(latest)
    delay = np.subtract(device_work.start, np.where(has_bound, latest, 0.0), dtype=np.float64)
    rows = np.flatnonzero((delay > WAIT_NS) & (has_bound | device_work.in_window))
    row, source = just_ended(window, rows, delay[rows])
    inferred = np.full(len(row), int(EdgeKind.WAIT_INFERRED))
    bounds = _concatenate(bounds, _bounds_after_end(row, done[source], device_work.end[source], inferred))
    np.maximum.at(latest, row, device_work.end[source].astype(np.float64))
    paused, before = _after_pauses(window, latest)
    kinds = np.full(len(paused), int(EdgeKind.PAUSE))
    bounds = _concatenate(bounds, _bounds_after_end(paused, done[before], device_work.end[before], kinds))
    unbound = np.setdiff1d(np.flatnonzero(~has_bound), np.concatenate([row, paused]))
    assembly.release(begin[unbound], device_work.start[unbound])
    return _add_edges(assembly, window, bounds, (begin, host))


def _concatenate(*blocks: _Bounds) -> _Bounds:
    """Return several bounds as one table."""
    return _Bounds(*(np.concatenate(columns) for columns in zip(*blocks, strict=True)))


def _bounds_after_end(row: Ints, source: Ints, time: Ints, kind: Ints) -> _Bounds:
    """Return bounds at the ends of their sources, without a lag."""
    return _Bounds(row, source, time.astype(np.float64), np.zeros(len(row)), kind, np.zeros(len(row), dtype=bool))


def _stream_bounds(window: Window, tasks: tuple[Ints, Ints]) -> _Bounds:
    """Return the bounds of stream order: after the end of the previous task, or after its start if the two overlap."""
    device_work, (begin, done) = window.device_work, tasks
    row = np.flatnonzero(~device_work.queue_starts())
    before = row - 1
    in_sequence = device_work.end[before] <= device_work.start[row]
    time = np.where(in_sequence, device_work.end[before], device_work.start[row]).astype(np.float64)
    lag = np.where(in_sequence, 0.0, device_work.start[row] - device_work.start[before])
    source = np.where(in_sequence, done[before], begin[before])
    in_order = _Bounds(row, source, time, lag, np.full(len(row), int(EdgeKind.STREAM)), ~in_sequence)
    joined, branch = _joined_branches(device_work)
    kinds = np.full(len(joined), int(EdgeKind.STREAM))
    return _concatenate(in_order, _bounds_after_end(joined, done[branch], device_work.end[branch], kinds))


def _joined_branches(device_work: WindowWork) -> tuple[Ints, Ints]:
    """Return the rows that start after work beside the row before them has ended, and the last of that work.

    Branches of a graph run beside each other on a stream, and a row behind them may wait for any of them.
    """
    start, end = device_work.start, device_work.end
    rows, branches = [], []
    for queue in np.split(np.arange(len(start)), np.flatnonzero(device_work.queue_starts())[1:]):
        longest = np.maximum.accumulate(end[queue])[:-1]
        beside = queue[1:][(longest > end[queue[:-1]]) | (end[queue[:-1]] > start[queue[1:]])]
        for row in beside.tolist():  # a Python loop over rows beside others, 10 us each
            earlier = np.arange(max(queue[0], row - BRANCHES), row - 1)
            ended = earlier[
                (end[earlier] <= start[row]) & ((end[earlier] > end[row - 1]) | (end[row - 1] > start[row]))
            ]
            if len(ended):
                rows.append(row)
                branches.append(int(ended[end[ended].argmax()]))
    return np.array(rows, np.int64), np.array(branches, np.int64)


def _launch_bounds(window: Window, host: HostTasks) -> _Bounds:
    """Return the bounds of launches. A launch after its work, which only clocks that disagree show, bounds nothing."""
    device_work, calls = window.device_work, window.calls
    row = np.flatnonzero(device_work.launch >= 0)
    call = device_work.launch[row]
    in_order = (host.begin[call] >= 0) & (device_work.start[row] >= calls.start[call])
    row, call = row[in_order], call[in_order]
    lags = _launch_lag(window)
    usual = np.array([lags[rank] for rank in device_work.rank[row].tolist()], dtype=np.float64)
    lag = np.minimum(usual, device_work.start[row] - calls.start[call])
    in_graph = window.calls_named(_GRAPH_LAUNCH)[call]
    kind = np.where(in_graph, int(EdgeKind.GRAPH_LAUNCH), int(EdgeKind.LAUNCH))
    is_staged = _is_staged_copy(window, row, calls.start[call] + lag)
    lag[is_staged] = (device_work.start[row] - calls.start[call])[is_staged]
    kind[is_staged] = int(EdgeKind.GAP)
    return _Bounds(row, host.begin[call], calls.start[call] + lag, lag, kind, np.ones(len(row), dtype=bool))


def _is_staged_copy(window: Window, row: Ints, ready: Floats) -> Bools:
    """Return the mask of rows that are copies from pageable memory, which the host prepares inside their call.

    Parameters
    ----------
    window : Window
        Window of the rows.
    row : array of int64
        Rows of device work with a launch.
    ready : array of float64
        Earliest start that the launch of each allows.
    """
    device_work, calls = window.device_work, window.calls
    pageable = np.array(["Pageable -> Device" in name for name in window.index.device_work.names], dtype=bool)
    start = device_work.start[row]
    idle = start - np.maximum(ready, device_work.stream_free_ns()[row]) > _PAUSE_NS
    return np.asarray(pageable[device_work.name[row]] & idle & (start <= calls.end[device_work.launch[row]]))


def _launch_lag(window: Window) -> dict[int, float]:
    """Return for each rank the launch lag: the shortest usual time from a call's start to its kernel's start, in ns.

    It is the 5th percentile over work that was launched into an idle stream. Behind other work, the time says nothing
    about launching.
    """
    device_work, calls = window.device_work, window.calls
    rows = np.flatnonzero(device_work.launch >= 0)
    call_start = calls.start[device_work.launch[rows]]
    idle = device_work.stream_free_ns()[rows] <= call_start
    lag, ranks = device_work.start[rows] - call_start, device_work.rank[rows]
    lags = {}
    for rank in np.unique(ranks).tolist():
        into_idle = lag[(ranks == rank) & idle & (lag < _LAUNCH_NS_MAX)]
        lags[rank] = max(float(np.percentile(into_idle, 5)), 0.0) if len(into_idle) else _LAUNCH_NS
    return lags


def _add_edges(
    assembly: Assembly, window: Window, bounds: _Bounds, tasks_and_host: tuple[Ints, HostTasks]
) -> list[str]:
    """Append an edge for each bound. A row's latest bound, the first of equals, gets the rest to the measured start.

    Return a note on each stream whose first work starts late without a reason.
    """
    (begin, host), device_work = tasks_and_host, window.device_work
    start = device_work.start[bounds.row]
    order = np.lexsort((np.arange(len(bounds.row)), -bounds.time, bounds.row))
    binding = np.zeros(len(order), dtype=bool)
    binding[order] = np.concatenate([[True], np.diff(bounds.row[order]) > 0])[: len(order)]
    extra = np.where(binding, np.maximum(start - bounds.time, 0.0), 0.0)
    kind, lag, from_start = _edge_kinds(window, bounds, extra), bounds.lag + extra, bounds.from_start.copy()
    backlog = np.flatnonzero(_is_backlog(window, bounds, host, extra))
    kind[backlog], from_start[backlog] = int(EdgeKind.BACKLOG), False
    lag[backlog] = start[backlog] - host.issued[device_work.launch[bounds.row[backlog]]]
    assembly.edges(bounds.source, begin[bounds.row], lag_ns=lag, kind=kind, from_start=from_start)
    return [
        f"rank {device_work.rank[row]}: GPU {device_work.device[row]} starts its first work on stream "
        f"{device_work.stream[row]} {wait / 1e6:.1f} ms after the launch, and nothing in the trace says "
        "why (work older than the recording, or clocks that disagree); the wait stays as it is"
        for row, wait in zip(bounds.row[backlog].tolist(), lag[backlog].tolist(), strict=True)
    ]


def _edge_kinds(window: Window, bounds: _Bounds, extra: Floats) -> Ints:
    """Return the edge kind of each bound. The kind of a pause on a stream tells the reason of the pause."""
    device_work, call = window.device_work, window.device_work.launch[bounds.row]
    has_pause = (bounds.kind == EdgeKind.STREAM) & ~bounds.from_start & (extra > _PAUSE_NS)
    launching = np.isin(device_work.rank[bounds.row], list(window.index.launching_ranks))
    unlaunched = np.where(launching, int(EdgeKind.BACKLOG), int(EdgeKind.GAP))
    kind = np.where(has_pause & (call < 0), unlaunched, bounds.kind)
    if not len(window.calls):
        return kind
    # A call that copies in pieces prepares each piece on the host.
    same_call = (call >= 0) & (call == device_work.launch[bounds.row - 1])
    in_graph = (call >= 0) & window.calls_named(_GRAPH_LAUNCH)[call]
    kind = np.where(has_pause & same_call, int(EdgeKind.GAP), kind)
    return np.where(has_pause & in_graph, int(EdgeKind.GRAPH_GAP), kind)


def _is_backlog(window: Window, bounds: _Bounds, host: HostTasks, extra: Floats) -> Bools:
    """Return the mask of launch bounds of a stream's first work in the trace, long after its launch had returned."""
    device_work, call = window.device_work, window.device_work.launch[bounds.row]
    waits_for_launch = np.isin(bounds.kind, (EdgeKind.LAUNCH, EdgeKind.GRAPH_LAUNCH)) & (extra > _LAUNCH_NS_MAX)
    is_backlog = waits_for_launch & device_work.opens[bounds.row]
    is_backlog[is_backlog] = device_work.start[bounds.row[is_backlog]] >= host.issued[call[is_backlog]]
    return np.asarray(is_backlog)
