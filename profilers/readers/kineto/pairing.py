"""`Begins`: intervals of Chrome's trace format that are two events, a begin and an end.

``B`` and ``E`` nest on their thread: an end closes the innermost begin that is open, or that of its name. ``b`` and
``e`` (also ``S`` and ``F``) belong together by category, id and name. Events may stand in the file in any order.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

from profilers.readers.common.numbers import exact_ns, plain_text

Event = dict[str, Any]

#: Phases that begin and that end an interval; those in capital B and E nest on a thread.
_BEGIN, _END = frozenset("BbS"), frozenset("EeF")
#: Most events that wait for the rest of the file, about 1 KB each.
_MOST = 1 << 18
#: Start of an event, order in the file, whether it is an end, and the event.
_Mark = tuple[int, int, bool, Event]


class Begins:
    """Begins and ends that wait for each other.

    Examples
    --------
    >>> begins = Begins()
    >>> for phase, ts in (("B", 1), ("B", 2), ("E", 4), ("E", 9)):
    ...     begins.add(phase, {"ph": phase, "pid": 1, "tid": 1, "ts": ts})
    >>> [(event["ts"], duration) for event, duration in begins.paired()]
    [(2, 2000), (1, 8000)]
    """

    def __init__(self) -> None:
        self._marks: dict[tuple[str, ...], list[_Mark]] = defaultdict(list)
        self._size = 0
        #: Ends that were joined to their begins, and ends without a begin.
        self.counts: Counter[str] = Counter()

    def takes(self, phase: str) -> bool:
        """Return whether events of a phase begin or end an interval."""
        return phase in _BEGIN or phase in _END

    @property
    def full(self) -> bool:
        """Whether so many events wait that they should be paired."""
        return self._size >= _MOST

    def add(self, phase: str, event: Event) -> None:
        """Take an event."""
        start = exact_ns(event.get("ts"))
        if start is None:
            self.counts["dropped_no_time"] += 1
            return
        names = ("pid", "tid") if phase in "BE" else ("cat", "id", "pid", "name")
        lane = tuple(plain_text(event.get(name)) for name in names)
        self._marks[lane].append((start, self._size, phase in _END, event))
        self._size += 1

    def paired(self) -> Iterator[tuple[Event, int | None]]:
        """Yield each interval as its begin and its duration in ns, None without an end, and forget it.

        If as many events wait as `full` allows, begins without an end wait on, as long as they are few.
        """
        waiting = self.full
        self._size = 0
        for lane, marks in list(self._marks.items()):
            open_: list[_Mark] = []
            for mark in sorted(marks, key=lambda mark: mark[:3]):  # a Python loop over these events, 2 us each
                if not mark[2]:
                    open_.append(mark)
                elif (begin := _closed(open_, plain_text(mark[3].get("name")))) is not None:
                    self.counts["skipped_end"] += 1
                    yield _joined(begin[3], mark[3]), mark[0] - begin[0]
                else:
                    self.counts["dropped_end"] += 1
            if waiting and open_ and self._size + len(open_) < _MOST // 2:
                self._marks[lane] = open_
                self._size += len(open_)
                continue
            del self._marks[lane]
            for _, _, _, event in open_:
                yield event, None


def _closed(open_: list[_Mark], name: str) -> _Mark | None:
    """Remove and return the begin that an end of this name closes: the innermost of the name, else the innermost."""
    same = next((i for i in range(len(open_) - 1, -1, -1) if plain_text(open_[i][3].get("name")) == name), -1)
    return open_.pop(same) if open_ and (same >= 0 or not name) else None


def _joined(begin: Event, end: Event) -> Event:
    """Return a begin with the arguments of its end."""
    ours, theirs = begin.get("args"), end.get("args")
    if not isinstance(theirs, dict):
        return begin
    return {**begin, "args": {**(ours if isinstance(ours, dict) else {}), **theirs}}
