"""The device's side: streams in order, launches, waits between streams, collectives across ranks."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from profilers.arrays import MISSING, integers, strings
from profilers.columns import lookup
from profilers.kernels import CLASSES, classify
from replay.build.draft import Draft
from replay.build.dtypes import window_dtypes
from replay.build.host import HostTasks
from replay.build.operators import window_operators
from replay.build.window import Window
from replay.graph import COLLECTIVE_KINDS, EdgeKind, Lane, TaskKind

__all__ = ["DeviceTasks", "add_device"]

Ints = npt.NDArray[np.int64]

#: A task that starts this soon after another stream's task ends, later than all that it is known to wait for,
#: is taken to have waited for that task (ns).
_WAIT_NS = 10_000
#: Time from a launch to its kernel where none was launched into an idle stream, and above which it is not one.
_LAUNCH_NS, _LAUNCH_NS_MAX = 10_000, 100_000
_CLASS = {name: index for index, name in enumerate(CLASSES)}


@dataclass(frozen=True)
class DeviceTasks:
    """Which task stands for each row of device work: the one that waits, and the one that works."""

    begin: Ints
    done: Ints


class _Bound(NamedTuple):
    """Something that a row of device work waits for, and the earliest start that it allows."""

    time: float
    task: int
    kind: EdgeKind
    lag: float = 0.0
    from_start: bool = False


@dataclass(frozen=True)
class _Waits:
    """By row, the rows of other streams that it waits for; and whether the profiler recorded that."""

    rows: dict[int, set[int]]
    kind: EdgeKind


def add_device(draft: Draft, window: Window, host: HostTasks) -> DeviceTasks:
    """Append the device's tasks and all that they wait for.

    A task's start is the latest of what it waits for; what the trace cannot explain of its measured start
    becomes the lag of the edge that bound it, so that an unchanged graph replays as measured.
    """
    partners = _partners(window)
    begin, done = _add_tasks(draft, window, partners)
    recorded = _recorded_waits(window)
    waits = _Waits(recorded, EdgeKind.WAIT) if recorded else _Waits(_inferred_waits(window), EdgeKind.WAIT_INFERRED)
    launch_lag = _launch_lag(window)
    _add_edges(draft, window, host, (begin, done), (waits, launch_lag))
    _add_rendezvous(draft, window, partners, begin, done)
    return DeviceTasks(begin, done)


def _partners(window: Window) -> dict[int, list[int]]:
    """Return the rows of every collective that several ranks of the window take part in, by match id."""
    table = window.trace.collectives
    match = lookup(integers(table, "id"), integers(table, "match_id"), window.work.collective)
    groups: dict[int, list[int]] = {}
    for row in np.flatnonzero((match != MISSING) & window.work.own).tolist():
        groups.setdefault(int(match[row]), []).append(row)
    work = window.work
    return {
        key: rows
        for key, rows in groups.items()
        if len({int(r) for r in work.rank[rows]}) == len(rows) > 1 and work.start[rows].max() < work.end[rows].min()
    }


def _add_tasks(draft: Draft, window: Window, partners: dict[int, list[int]]) -> tuple[Ints, Ints]:
    work = window.work
    meets = {row: int(work.start[rows].max()) for rows in partners.values() for row in rows}
    size = lookup(integers(window.trace.collectives, "id"), _collective_bytes(window), work.collective)
    ranks = lookup(
        integers(window.trace.collectives, "id"), integers(window.trace.collectives, "group_size"), work.collective
    )
    begin, done = np.zeros(len(work), dtype=np.int64), np.zeros(len(work), dtype=np.int64)
    labels = {name: _CLASS[classify(name)] for name in set(work.name)}
    kinds, dtypes, operators = _collective_kinds(window), window_dtypes(window), window_operators(window)
    for row in range(len(work)):  # a Python loop over device work, about 5 us each
        lane = Lane(int(work.rank[row]), int(work.device[row]), int(work.stream[row]))
        is_collective = work.collective[row] != MISSING
        kind = TaskKind.COPY if work.is_copy[row] else TaskKind.COLLECTIVE if is_collective else TaskKind.KERNEL
        moved = size[row] if is_collective else work.bytes[row]
        about = {
            "class": -1 if work.is_copy[row] else labels[work.name[row]],
            "event": int(work.id[row]),
            "own": int(work.own[row]),
            "workgroups": max(int(work.workgroups[row]), 0),
            "bytes": max(int(moved), 0),
            "dtype": int(dtypes[row]),
            "collective": int(kinds[row]) if is_collective else -1,
            "operator": draft.operator(operators[row]),
            "ranks": max(int(ranks[row]), 0) if is_collective else 0,
        }
        start, end = float(work.start[row]), float(work.end[row])
        if row in meets:
            arrival = {"event": int(work.id[row]), "own": int(work.own[row])}
            begin[row] = draft.task(TaskKind.MARK, "arrives", lane, times=(start, start), row=arrival)
            start = float(meets[row])
        done[row] = draft.task(kind, str(work.name[row]), lane, times=(start, end), row=about)
        begin[row] = begin[row] if row in meets else done[row]
    return begin, done


def _collective_kinds(window: Window) -> Ints:
    table = window.trace.collectives
    index = {name: i for i, name in enumerate(COLLECTIVE_KINDS)}
    other = index["unknown"]
    kinds = np.array([index.get(name, other) for name in strings(table, "collective")], dtype=np.int64)
    found = lookup(integers(table, "id"), kinds, window.work.collective)
    return np.where(found == MISSING, other, found)


def _collective_bytes(window: Window) -> Ints:
    return integers(window.trace.collectives, "bytes")


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


def _recorded_waits(window: Window) -> dict[int, set[int]]:
    """Return, by row of device work, the rows that it waits for through an event, as ``cuda_sync`` recorded."""
    syncs = window.trace.syncs
    chosen = np.flatnonzero([name == "Stream Wait Event" for name in strings(syncs, "sync")])
    columns = [
        integers(syncs, n)[chosen].tolist()
        for n in ("rank", "stream", "wait_on_stream", "event_correlation", "launch_id")
    ]
    call_start = dict(
        zip(
            integers(window.trace.launches, "id").tolist(),
            integers(window.trace.launches, "start_ns").tolist(),
            strict=True,
        )
    )
    recorded = _record_calls(window)
    found: dict[int, set[int]] = {}
    for rank, stream, other, correlation, call in zip(*columns, strict=True):
        record = recorded.get((rank, correlation))
        if MISSING in (stream, other, call) or record is None or call not in call_start:
            continue
        waiting = _first_after(window, (rank, stream), call_start[call] - window.origin_ns)
        before = _last_before(window, (rank, other), record - window.origin_ns)
        if waiting is not None and before is not None and waiting != before:
            found.setdefault(waiting, set()).add(before)
    return found


def _record_calls(window: Window) -> dict[tuple[int, int], int]:
    table = window.trace.launches
    keys = zip(integers(table, "rank").tolist(), integers(table, "correlation").tolist(), strict=True)
    return dict(zip(keys, integers(table, "start_ns").tolist(), strict=True))


def _launched(window: Window) -> Ints:
    """Return when each row was launched, ns from the origin; far in the past where that is unknown."""
    launch = window.work.launch
    return np.where(launch >= 0, window.calls.start[launch], np.iinfo(np.int64).min) if len(window.calls) else launch


def _on_stream(window: Window, place: tuple[int, int]) -> Ints:
    work = window.work
    return np.flatnonzero((work.rank == place[0]) & (work.stream == place[1]) & work.own)


def _first_after(window: Window, place: tuple[int, int], time: int) -> int | None:
    rows = _on_stream(window, place)
    later = rows[_launched(window)[rows] >= time]
    return int(later[0]) if len(later) else None


def _last_before(window: Window, place: tuple[int, int], time: int) -> int | None:
    rows = _on_stream(window, place)
    earlier = rows[_launched(window)[rows] <= time]
    return int(earlier[-1]) if len(earlier) else None


def _inferred_waits(window: Window) -> dict[int, set[int]]:
    """Infer waits from ``StreamWaitEvent`` calls, whose streams the profiler did not write.

    A launch on another stream than the thread's last waits for that last launch (the way into a collective);
    one on the same stream waits for the newest work of every other stream (the way out of it). An edge that
    the measured times contradict is dropped.
    """
    work, calls = window.work, window.calls
    launches = {int(call): row for row, call in enumerate(work.launch) if call >= 0 and work.own[row]}
    last: dict[tuple[int, int], int] = {}
    newest: dict[int, dict[int, int]] = {}
    waiting: set[tuple[int, int]] = set()
    found: dict[int, set[int]] = {}
    for call, name in enumerate(calls.name):  # in order of start; a Python loop over calls, under 1 us each
        thread = (int(calls.rank[call]), int(calls.thread[call]))
        if "WaitEvent" in name:
            waiting.add(thread)
        if (row := launches.get(call)) is None:
            continue
        on_rank = newest.setdefault(thread[0], {})
        if thread in waiting and thread in last:
            before = last[thread]
            others = (
                [before]
                if work.stream[before] != work.stream[row]
                else [r for s, r in on_rank.items() if s != work.stream[row]]
            )
            for other in others:
                if work.end[other] <= work.start[row]:
                    found.setdefault(row, set()).add(other)
        waiting.discard(thread)
        last[thread] = row
        on_rank[int(work.stream[row])] = row
    return found


def _add_edges(
    draft: Draft, window: Window, host: HostTasks, tasks: tuple[Ints, Ints], known: tuple[_Waits, dict[int, float]]
) -> None:
    """Join each row to what it waits for, and give what remains unexplained to the edge that bound it."""
    work, (begin, done) = window.work, tasks
    waits, launch_lag = known
    first = work.queue_starts()
    by_end = np.argsort(work.end, kind="stable")
    for row in range(len(work)):  # a Python loop over device work, about 10 us each
        start = float(work.start[row])
        bounds = [] if first[row] else [_stream_bound(window, row, done)]
        bounds += _launch_bound(window, row, host, launch_lag)
        bounds += [
            _Bound(float(work.end[other]), int(done[other]), waits.kind)
            for other in sorted(waits.rows.get(row, ()))
            if work.end[other] <= work.start[row]  # else the times contradict it
        ]
        late = start - max((bound.time for bound in bounds), default=0.0)
        if bounds and late > _WAIT_NS and (other_row := _just_ended(window, row, by_end)) is not None:
            bounds.append(_Bound(float(work.end[other_row]), int(done[other_row]), EdgeKind.WAIT_INFERRED))
        _join(draft, int(begin[row]), start, bounds)


def _launch_bound(window: Window, row: int, host: HostTasks, launch_lag: dict[int, float]) -> list[_Bound]:
    call = int(window.work.launch[row])
    if call < 0 or host.begin[call] < 0:
        return []
    called, start = float(window.calls.start[call]), float(window.work.start[row])
    if start < called:  # clocks that disagree: what the call says of this start is wrong
        return []
    lag = min(launch_lag.get(int(window.work.rank[row]), 0.0), start - called)
    return [_Bound(called + lag, int(host.begin[call]), EdgeKind.LAUNCH, lag, from_start=True)]


def _stream_bound(window: Window, row: int, done: Ints) -> _Bound:
    """Return what order on the stream asks: after the task before, or, where the two overlap, after its start."""
    work = window.work
    before, start = row - 1, float(work.start[row])
    if work.end[before] <= start:
        return _Bound(float(work.end[before]), int(done[before]), EdgeKind.STREAM)
    lag = start - float(work.start[before])
    return _Bound(start, int(done[before]), EdgeKind.STREAM, lag, from_start=True)


def _join(draft: Draft, task: int, start: float, bounds: list[_Bound]) -> None:
    """Add an edge for each bound; the one that binds gets the delay that remains until the measured start."""
    if not bounds:
        draft.release(task, start)
        return
    binding = max(bounds, key=lambda bound: bound.time)
    for bound in bounds:
        extra = max(start - bound.time, 0.0) if bound is binding else 0.0
        draft.edge(bound.task, task, bound.lag + extra, bound.kind, from_start=bound.from_start)


def _just_ended(window: Window, row: int, by_end: Ints) -> int | None:
    """Return the work of another stream of this device that ended right before `row` started, launched before it."""
    work = window.work
    start = work.start[row]
    low, high = np.searchsorted(work.end[by_end], (start - _WAIT_NS, start), side="right")
    near = by_end[low:high]
    fits = (
        (work.rank[near] == work.rank[row])
        & (work.device[near] == work.device[row])
        & (work.stream[near] != work.stream[row])
    )
    fits &= work.start[near] < start
    if (call := int(work.launch[row])) >= 0:
        launched = np.where(work.launch[near] >= 0, window.calls.start[work.launch[near]], np.iinfo(np.int64).min)
        fits &= launched < window.calls.start[call]
    return int(near[fits][-1]) if fits.any() else None


def _add_rendezvous(draft: Draft, window: Window, partners: dict[int, list[int]], begin: Ints, done: Ints) -> None:
    """Let every rank's part of a collective start when all ranks have arrived."""
    for rows in partners.values():
        met = float(window.work.start[rows].max())
        meeting = draft.task(TaskKind.MARK, "all ranks have arrived", None, times=(met, met), row={})
        for row in rows:
            draft.edge(int(begin[row]), meeting, 0.0, EdgeKind.RENDEZVOUS)
            draft.edge(meeting, int(done[row]), 0.0, EdgeKind.RENDEZVOUS)
