"""The heap of what happens next."""

from benchmarks.gpu.virtual.board import Board
from profilers.trace.compiled import bare

__all__ = ["pop", "push"]


@bare
def push(s: Board, t, item):  # type: ignore[no-untyped-def]
    """Add an event."""
    b, times, items = s.b[0], s.times, s.items
    k = b.events
    b.events += 1
    while k > 0 and times[(k - 1) // 2] > t:
        times[k], items[k] = times[(k - 1) // 2], items[(k - 1) // 2]
        k = (k - 1) // 2
    times[k], items[k] = t, item


@bare
def pop(s: Board):  # type: ignore[no-untyped-def]
    """Take the earliest event; return when and what."""
    b, times, items = s.b[0], s.times, s.items
    first, what = times[0], items[0]
    b.events -= 1
    n = b.events
    t, item = times[n], items[n]
    k = 0
    while 2 * k + 1 < n:
        child = 2 * k + 1
        child += child + 1 < n and times[child + 1] < times[child]
        if times[child] >= t:
            break
        times[k], items[k] = times[child], items[child]
        k = child
    times[k], items[k] = t, item
    return first, what
