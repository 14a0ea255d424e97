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
#: What a call that waits for the device takes if there is nothing to wait for (ns; an assumption, as any call).
_ISSUE_NS = 1000
#: What waits for all that was launched before, by its name alone.
_WAITS_FOR_ALL = re.compile(r"(?:Device|Ctx|Context)Synchronize")


@dataclass(frozen=True)
class Blocking:
    """By call: the row of the device work that it waits for, -1 for none, and what kind of edge says so.

    `blocked` says whether it was still waiting when that work ended. `issue_ns` is what the call would take with
    nothing to wait for. `calls` and `ended` are pairs: a synchronisation, and work that had to be done before it
    returned but ended earlier than other work that it waited for.
    """

    waits_for: Ints
    kind: Ints
    issue_ns: Ints
    blocked: npt.NDArray[np.bool_]
    calls: Ints
    ended: Ints


@dataclass(frozen=True)
class _Sync:
    """What was recorded of one call: the stream that it waited for, and the work launched up to when; None for all."""

    stream: int | None = None
    until: int | None = None


def blocked_calls(window: Window) -> Blocking:
    """Return for each call the last device work that ends inside it, of what it waits for.

    A recorded synchronisation says which stream, and for an event, up to which moment of it; a device's waits for
    all. For other calls (a copy, a free, a stream's synchronisation of which only the call is there) any work counts.
    A launch that found the launch queue full waits for the last work that ends inside it. A synchronisation that is
    known to wait for a stream waits for the last work launched on it, also if that was done before.
    """
    calls, work = window.calls, window.work
    waits_for, kind = np.full(len(calls), -1), np.full(len(calls), int(EdgeKind.SYNC_INFERRED))
    issue, names = np.full(len(calls), _ISSUE_NS), window.index.calls.names
    can = np.array([_MAY_BLOCK.search(name) is not None for name in names], dtype=bool)
    every = np.array([_WAITS_FOR_ALL.search(name) is not None for name in names], dtype=bool)
    nothing = np.zeros(0, dtype=np.int64)
    if not len(calls) or not len(work):
        return Blocking(waits_for, kind, issue, waits_for >= 0, nothing, nothing)
    kind[every[calls.name]] = int(EdgeKind.SYNC)
    full = calls.unblocked > 0
    kind[full], issue[full] = int(EdgeKind.QUEUE), calls.unblocked[full]
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
    certain = {int(row): recorded.get(int(row), _Sync()) for row in np.flatnonzero(every[calls.name])} | recorded
    pairs = _ended_before(window, certain)
    blocked = waits_for >= 0
    # Of what had ended before, the last stands for what an idle synchronisation waits for.
    order = np.lexsort((work.end[pairs[1]], pairs[0]))
    for call, row in zip(pairs[0][order].tolist(), pairs[1][order].tolist(), strict=True):  # a few a synchronisation
        waits_for[call] = waits_for[call] if blocked[call] else row
    others = pairs[1] != waits_for[pairs[0]]
    return Blocking(waits_for, kind, issue, blocked, pairs[0][others], pairs[1][others])


def _ended_before(window: Window, syncs: dict[int, _Sync]) -> tuple[Ints, Ints]:
    """Return pairs of a synchronisation and the last work launched before it on each stream that it waits for."""
    calls, work, launched = window.calls, window.work, window.launched()
    streams: dict[tuple[int, int], tuple[Ints, Ints]] = {}
    for rank, stream in set(zip(work.rank.tolist(), work.stream.tolist(), strict=True)):
        rows = np.flatnonzero((work.rank == rank) & (work.stream == stream))
        rows = rows[np.argsort(launched[rows], kind="stable")]
        streams[rank, stream] = (rows, launched[rows])
    pairs: list[tuple[int, int]] = []
    for call, sync in sorted(syncs.items()):  # a few streams a synchronisation, 2 us each
        until = int(calls.start[call]) if sync.until is None else min(sync.until, int(calls.start[call]))
        for (rank, stream), (rows, times) in streams.items():
            if rank != calls.rank[call] or sync.stream not in (None, stream):
                continue
            before = int(np.searchsorted(times, until, side="right")) - 1
            if before >= 0 and work.end[rows[before]] <= calls.end[call]:
                pairs.append((call, int(rows[before])))
    columns = np.array(sorted(pairs), dtype=np.int64).reshape(-1, 2)
    return columns[:, 0], columns[:, 1]


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
