"""Which forward operator a backward operator goes with, by the sequence numbers that the framework wrote."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from profilers.arrays import MISSING, dense_keys, ends, integers
from profilers.columns import lookup
from profilers.trace import Trace

__all__ = ["BackwardOps", "ForwardEnd", "backward_ops"]

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class ForwardEnd:
    """The thread on which a forward operator ran, and when it ended, on the trace's clock."""

    thread: int
    end_ns: int


@dataclass(frozen=True)
class BackwardOps:
    """By (rank, thread), its backward operators in order of start: columns start, end, forward thread, forward end."""

    of_thread: Mapping[tuple[int, int], Ints]

    def at(self, place: tuple[int, int], time_ns: int) -> ForwardEnd | None:
        """Return the forward side of the backward operator on a thread at a time; None where none is known."""
        rows = self.of_thread.get(place)
        if rows is None:
            return None
        last = int(np.searchsorted(rows[0], time_ns, side="right")) - 1
        if last < 0 or rows[1, last] < time_ns:
            return None
        return ForwardEnd(int(rows[2, last]), int(rows[3, last]))


def backward_ops(trace: Trace) -> BackwardOps:
    """Return the backward operators of a trace whose forward operator ran on another thread.

    Kineto gives a backward operator the sequence number of its forward operator and a ``Fwd thread id`` other than 0,
    which is the framework's own number and not the system's.
    """
    ops = trace.ops
    rank, thread, number = (integers(ops, name) for name in ("rank", "thread", "sequence_number"))
    logical = integers(ops, "forward_thread")
    numbered = (number != MISSING) & (number >= 0)
    forward = np.flatnonzero(numbered & (logical <= 0))
    backward = np.flatnonzero(numbered & (logical > 0))
    given, wanted = dense_keys((rank[forward], number[forward]), (rank[backward], number[backward]))
    partner = lookup(given, forward, wanted)
    fits = partner != MISSING
    backward, partner = backward[fits], partner[fits]
    apart = thread[backward] != thread[partner]
    backward, partner = backward[apart], partner[apart]
    start, end = integers(ops, "start_ns"), ends(ops)
    rows = np.stack([start[backward], end[backward], thread[partner], end[partner]])
    order = np.lexsort((backward, start[backward], thread[backward], rank[backward]))
    places = np.stack([rank[backward], thread[backward]], axis=1)[order]
    distinct, first = np.unique(places, axis=0, return_index=True)
    parts = np.split(rows[:, order], first[1:], axis=1)
    return BackwardOps({(int(r), int(t)): part for (r, t), part in zip(distinct, parts, strict=False)})
