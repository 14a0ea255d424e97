"""`Begins`: intervals of Chrome's trace format that are two events, a begin and an end.

``B`` and ``E`` nest on their thread: an end closes the innermost begin that is open, or that of its name. ``b`` and
``e`` (also ``S`` and ``F``) belong together by category, id and name. Events may stand in the file in any order.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

from profilers.readers.common.numbers import exact_ns, identity, plain_text

#: A decoded event.
Event = dict[str, Any]
#: Phases that begin and that end an interval; those in capital B and E nest on a thread.
_BEGIN, _END = frozenset("BbS"), frozenset("EeF")
#: Most events that wait for the rest of the file, about 1 KB each.
_MOST = 1 << 18
#: Start of an event, order in the file, and the event.
_Mark = tuple[int, int, Event]


class _Open:
    """The begins of one thread or id that are open, by name and in the order of their starts."""

    def __init__(self) -> None:
        self._by_name: dict[str, list[_Mark]] = defaultdict(list)
        self._names: list[str] = []  # of each begin; one that was closed by its name stays until it is last

    def add(self, mark: _Mark) -> None:
        """Add a begin."""
        name = plain_text(mark[2].get("name"))
        self._by_name[name].append(mark)
        self._names.append(name)

    def close(self, name: str) -> _Mark | None:
        """Remove and return the begin that an end closes: the innermost of its name, or of any without a name."""
        if not name:
            while self._names and not self._by_name[self._names[-1]]:
                self._names.pop()
            name = self._names[-1] if self._names else ""
        marks = self._by_name.get(name) or self._by_name.get("")
        return marks.pop() if marks else None

    def rest(self) -> list[_Mark]:
        """Return the begins that are open, in the order of the file."""
        return sorted((mark for marks in self._by_name.values() for mark in marks), key=lambda mark: mark[1])


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
        self._marks: dict[tuple[Any, ...], tuple[list[_Mark], list[_Mark]]] = defaultdict(lambda: ([], []))
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
        self._marks[_lane(phase, event)][phase in _END].append((start, self._size, event))
        self._size += 1

    def paired(self) -> Iterator[tuple[Event, int | None]]:
        """Yield each interval as its begin and its duration in ns, None without an end, and forget it.

        If as many events wait as `full` allows, begins without an end wait on, as long as they are few.
        """
        waiting = self.full
        self._size = 0
        for lane, (begins, ends) in list(self._marks.items()):
            open_ = _Open()
            yield from self._pairs(sorted(begins, key=_time), sorted(ends, key=_time), open_)
            rest = open_.rest()
            if waiting and rest and self._size + len(rest) < _MOST // 2:
                self._marks[lane] = (rest, [])
                self._size += len(rest)
                continue
            del self._marks[lane]
            for _, _, event in rest:
                yield event, None

    def _pairs(self, begins: list[_Mark], ends: list[_Mark], open_: _Open) -> Iterator[tuple[Event, int]]:
        """Yield the intervals of one thread or id; what began earlier ends before what begins at the same time."""
        following = 0
        for end in ends:  # a Python loop over these events, 3 us each
            while following < len(begins) and begins[following][0] < end[0]:
                open_.add(begins[following])
                following += 1
            name = plain_text(end[2].get("name"))
            begin = open_.close(name)
            if begin is None and following < len(begins) and begins[following][0] == end[0]:
                open_.add(begins[following])
                following += 1
                begin = open_.close(name)
            self.counts["dropped_end" if begin is None else "skipped_end"] += 1
            if begin is not None:
                yield _joined(begin[2], end[2]), end[0] - begin[0]
        for begin in begins[following:]:
            open_.add(begin)


def _time(mark: _Mark) -> tuple[int, int]:
    return mark[:2]


def _lane(phase: str, event: Event) -> tuple[Any, ...]:
    """Return the thread of a begin or end that nests, or the id of another, which may be local to its process."""
    if phase in "BE":
        pid, tid = (identity(event.get(name)) for name in ("pid", "tid"))
        return pid, tid
    scoped = event.get("id2")
    local = scoped.get("local") if isinstance(scoped, dict) else None
    number = scoped.get("global", local) if isinstance(scoped, dict) else event.get("id")
    process = identity(event.get("pid")) if local is not None else None
    return *(plain_text(event.get(name)) for name in ("cat", "scope")), plain_text(number), process


def _joined(begin: Event, end: Event) -> Event:
    """Return a begin with the arguments of its end."""
    ours, theirs = begin.get("args"), end.get("args")
    if not isinstance(theirs, dict):
        return begin
    return {**begin, "args": {**(ours if isinstance(ours, dict) else {}), **theirs}}
