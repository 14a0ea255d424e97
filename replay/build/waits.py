"""Streams that wait for events of others: as recorded, else inferred from calls, else from times."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from profilers.arrays import MISSING
from replay.build.window import Window
from replay.graph import EdgeKind

__all__ = ["Waits", "find_waits", "just_ended"]

Ints = npt.NDArray[np.int64]

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
