"""What the profiler recorded of waiting: for each call that waits, on which stream and up to which moment of it."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from profilers.arrays import MISSING, dense_keys, integers, strings
from profilers.columns import lookup
from profilers.trace import Trace

__all__ = ["RecordedSyncs", "recorded_syncs"]

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class RecordedSyncs:
    """Equally long columns, one row a recorded synchronisation that names its call; `MISSING` for unknown.

    Parameters
    ----------
    call : array of int64
        The id of the waiting call, sorted.
    kind : array of str
        ``"Stream Wait Event"``, ``"Event Sync"``, ``"Stream Sync"`` or ``"Context Sync"``.
    stream : array of int64
        That waits (an event wait), or that the host waits for (a stream's synchronisation).
    source : array of int64
        The stream on which the event was recorded.
    recorded_ns : array of int64
        When the call began that recorded the event, on the trace's clock.
    """

    call: Ints
    kind: npt.NDArray[np.object_]
    stream: Ints
    source: Ints
    recorded_ns: Ints

    def of(self, calls: Ints) -> tuple[Ints, Ints]:
        """Return pairs of rows: of `calls` (ids), and here."""
        low, high = (np.searchsorted(self.call, calls, side=side) for side in ("left", "right"))
        times = high - low
        own = np.repeat(np.arange(len(calls)), times)
        return own, np.arange(len(own)) - np.repeat(np.cumsum(times) - times, times) + np.repeat(low, times)


def recorded_syncs(trace: Trace) -> RecordedSyncs:
    """Return the synchronisations of a trace, with the time of the call that recorded their event."""
    syncs, launches = trace.syncs, trace.launches
    call = integers(syncs, "launch_id")
    order = np.argsort(call, kind="stable")
    order = order[call[order] != MISSING]
    records, wanted = dense_keys(
        (integers(launches, "rank"), integers(launches, "correlation")),
        (integers(syncs, "rank"), integers(syncs, "event_correlation")),
    )
    recorded = lookup(records, integers(launches, "start_ns"), wanted)
    recorded = np.where(integers(syncs, "event_correlation") == MISSING, MISSING, recorded)
    stream, source = integers(syncs, "stream"), integers(syncs, "wait_on_stream")
    return RecordedSyncs(call[order], strings(syncs, "sync")[order], stream[order], source[order], recorded[order])
