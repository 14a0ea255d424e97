"""Calls that wait for the device: which work each waited for, as recorded or as times tell."""

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from profilers.arrays import MISSING
from replay.build.window import Window
from replay.graph import EdgeKind

__all__ = ["Blocking", "blocked_calls"]

Ints = npt.NDArray[np.int64]

#: Calls that can wait for the device; whether one did shows by device work that ends inside it.
_MAY_BLOCK = re.compile(r"Synchronize|Memcpy|Free")
#: Calls that put one piece of work into the launch queue, and block while it is full.
_LAUNCHES = re.compile(r"^(?!.*(?:Graph|HostFunc)).*Launch")
#: A launch blocked if it took so many times the median of its rank, and so long (ns), while so many launches waited.
_BLOCKED_TIMES, _BLOCKED_NS, _BLOCKED_WAITING = 10, 100_000, 256
#: What waits for all that was launched before, by its name alone.
_WAITS_FOR_ALL = re.compile(r"(?:Device|Ctx|Context)Synchronize")


@dataclass(frozen=True)
class Blocking:
    """By call: the row of the device work that it waited for, -1 for none, and what kind of edge says so."""

    waits_for: Ints
    kind: Ints


@dataclass(frozen=True)
class _Sync:
    """What was recorded of one call: the stream that it waited for, and the work launched up to when; None for all."""

    stream: int | None = None
    until: int | None = None


def blocked_calls(window: Window) -> Blocking:
    """Return for each call the last device work that ends inside it, of what it waits for.

    A recorded synchronisation says which stream, and for an event, up to which moment of it; a device's waits for
    all. For other calls (a copy, a free, a stream's synchronisation of which only the call is there) any work counts.
    A launch that took long while many others waited for the device found the launch queue full.
    """
    calls, work = window.calls, window.work
    waits_for, kind = np.full(len(calls), -1), np.full(len(calls), int(EdgeKind.SYNC_INFERRED))
    names = window.index.calls.names
    can = np.array([_MAY_BLOCK.search(name) is not None for name in names], dtype=bool)
    every = np.array([_WAITS_FOR_ALL.search(name) is not None for name in names], dtype=bool)
    if not len(calls) or not len(work):
        return Blocking(waits_for, kind)
    kind[every[calls.name]] = int(EdgeKind.SYNC)
    full = _queue_full(window)
    kind[full] = int(EdgeKind.QUEUE)
    recorded = _recorded(window)
    kind[list(recorded)] = int(EdgeKind.SYNC)
    order = np.argsort(work.end, kind="stable")
    end, rank, stream, launched = work.end[order], work.rank[order], work.stream[order], window.launched()[order]
    chosen = np.flatnonzero(can[calls.name] | full)
    low, high = (np.searchsorted(end, at[chosen], side="right") for at in (calls.start, calls.end))
    some = high > low
    for row, first, last in zip(chosen[some].tolist(), low[some].tolist(), high[some].tolist(), strict=True):
        # A Python loop over calls inside which work ends, about 10 us each.
        fits = (rank[first:last] == calls.rank[row]) & (launched[first:last] <= calls.start[row])
        sync = recorded.get(row, _Sync())
        if sync.stream is not None:
            fits &= stream[first:last] == sync.stream
        if sync.until is not None:
            fits &= launched[first:last] <= sync.until
        if fits.any():
            waits_for[row] = order[first + int(np.flatnonzero(fits)[-1])]
    return Blocking(waits_for, kind)


def _queue_full(window: Window) -> npt.NDArray[np.bool_]:
    """Return which calls are launches that waited for room in the launch queue, as far as their times tell."""
    calls, work = window.calls, window.work
    names = np.array([_LAUNCHES.search(name) is not None for name in window.index.calls.names], dtype=bool)
    full, took = np.zeros(len(calls), dtype=bool), calls.end - calls.start
    for rank in window.ranks:
        launches = np.flatnonzero((calls.rank == rank) & names[calls.name])
        rows = np.flatnonzero((work.rank == rank) & (work.launch >= 0))
        if not len(launches) or not len(rows):
            continue
        launched, started = np.sort(calls.start[work.launch[rows]]), np.sort(work.start[rows])
        until = calls.end[launches]
        waiting = np.searchsorted(launched, until) - np.searchsorted(started, until)
        long = max(_BLOCKED_TIMES * float(np.median(took[launches])), _BLOCKED_NS)
        full[launches] = (took[launches] >= long) & (waiting >= _BLOCKED_WAITING)
    return full


def _recorded(window: Window) -> dict[int, _Sync]:
    """Return what was recorded, by the row of the call; a call of which no stream was recorded is left out."""
    syncs = window.index.syncs
    found: dict[int, _Sync] = {}
    for call, row in zip(*(side.tolist() for side in syncs.of(window.calls.id)), strict=True):
        kind, stream, source = syncs.kind[row], int(syncs.stream[row]), int(syncs.source[row])
        if kind == "Context Sync":
            found[call] = _Sync()
        elif kind == "Stream Sync" and max(stream, source) >= 0:
            found[call] = _Sync(stream if stream >= 0 else source)
        elif kind == "Event Sync" and source >= 0 and syncs.recorded_ns[row] != MISSING:
            found[call] = _Sync(source, int(syncs.recorded_ns[row]) - window.origin_ns)
    return found
