"""Launch queues: the calls that found theirs full, the work that freed an entry for them, and the size of each queue.

Every stream has a queue of launched work that has not started. A call that puts a kernel, a copy or a fill into a full
queue blocks until the oldest entry starts. `full_queues` finds these calls. The profiler's own records come first
(CUPTI: "Command Buffer Full"). Without them, the entries of each queue are counted: the queue was full if its length
stands at a plateau, and the calls there are long for their kind. Each launching call takes one entry, a launched graph
too. Work that was launched before the recording takes one until it starts.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from profilers.trace.arrays import MISSING, Bools, Ints, ends, integers, strings
from profilers.trace.columns import lookup, row_groups
from profilers.trace.trace import Trace

#: Category of the profiler's records of time that is not the program's, and the name of those of a full launch queue.
OVERHEAD, QUEUE_FULL = "overhead", re.compile(r"command buffer full", re.IGNORECASE)
# The limits below are chosen, not fitted. Of the real traces at hand, five ranks have records of a full queue. Without
# their records, the same calls are found on four of them, and none on ranks whose profiler wrote none
# (tests/test_launch_queue.py).
#: A call is long if it takes this many times as long as short calls of its kind (their 5th percentile), and at least
#: this much longer (ns).
_LONG_FACTOR, _LONG_NS = 3, 2_000
#: Fewest calls of a name that tell how long a call of this kind takes.
_OF_KIND = 8
#: A queue is full if at least `_MIN_LENGTH` works waited, `_MIN_CALLS` long calls found it and left it at one length,
#: up to the share `_WIDTH`, and they took the share `_LONG_SHARE` of the time of all calls that found it so long.
#: Entries that nobody records, such as those of events, change the length by up to 0.3 % in the traces at hand.
_MIN_LENGTH, _MIN_CALLS, _WIDTH, _LONG_SHARE = 256, 8, 0.004, 0.75
#: Long calls look for a plateau above this share of the longest queue.
_NEAR_LONGEST = 0.95
#: The queue was full throughout if this many works waited, and this share of all calls found nearly the longest
#: queue. Then every call blocked, and none shows how long a call takes: 3 to 6 us in the traces at hand (ns).
_ALWAYS_FULL_LENGTH, _ALWAYS_FULL_SHARE, _CALL_NS = 512, 0.5, 5000
#: Calls on other threads that may begin between a call and its record, at most.
_NESTED = 8

#: Rank, device and number of a stream.
Stream = tuple[int, int, int]


@dataclass(frozen=True)
class FullQueues:
    """Calls that found their launch queue full: arrays with one element a call.

    Parameters
    ----------
    unblocked_ns : array of int64
        How long the call would have taken otherwise, in ns; 0 for calls that did not block.
    freed_by : array of int64
        Id of the device work whose start freed the entry; `MISSING` if unknown.
    lengths : mapping of stream to int
        Entries of the queue of each stream that was full; of other streams the most that waited.
    full : frozenset of stream
        Streams whose queue was full.
    """

    unblocked_ns: Ints
    freed_by: Ints
    lengths: Mapping[Stream, int]
    full: frozenset[Stream]


NO_QUEUES = FullQueues(np.zeros(0, np.int64), np.zeros(0, np.int64), {}, frozenset())


@dataclass(frozen=True)
class _Queue:
    """Entries of one stream's queue: launched work in the order of calls, behind work of earlier calls.

    Parameters
    ----------
    calls : array of int64, shape (n,)
        Row of each call, in the order of their starts.
    position : array of int64, shape (n,)
        Number of entries before each call's own.
    starts, works : array of int64, shape (m,)
        Start of each entry's first work, ascending, and its row.
    """

    calls: Ints
    position: Ints
    starts: Ints
    works: Ints

    def started(self, time_ns: Ints) -> Ints:
        """Return how many entries had started at each time."""
        return np.searchsorted(self.starts, time_ns, side="right")

    def length(self, time_ns: Ints) -> Ints:
        """Return how many entries wait at a time of each call, its own included; `time_ns` has a row for every call."""
        return np.asarray(self.position + 1 - self.started(time_ns[self.calls]))


def full_queues(trace: Trace, calls: Mapping[str, Ints], device_work: Mapping[str, npt.NDArray[Any]]) -> FullQueues:
    """Return the calls that found their launch queue full.

    Parameters
    ----------
    trace : Trace
        The trace, for the profiler's records.
    calls : mapping of str to array
        Columns id, rank, start, end and name, the number of a name, ordered by start.
    device_work : mapping of str to array
        Columns id, launch_id, rank, device, stream, start and correlation of kernels and copies, ordered by start.
    """
    recorded = _recorded(trace, calls)
    is_recorded = recorded != MISSING
    blocked, freed_by = is_recorded.copy(), np.full(len(recorded), MISSING)
    until, queues = np.where(is_recorded, recorded, calls["end"]), _queues(calls, device_work)
    launching = np.unique(np.concatenate([np.zeros(0, np.int64), *(queue.calls for queue in queues.values())]))
    is_long = _long(calls, launching)
    lengths: dict[Stream, int] = {}
    full: set[Stream] = set()
    for stream, queue in queues.items():
        if not is_recorded.any():
            blocked[queue.calls] = _held(queue, calls, is_long)
        lengths[stream] = int(queue.length(calls["end"]).max())
        rows = np.flatnonzero(blocked[queue.calls])
        if len(rows):
            started = queue.started(until[queue.calls[rows]])
            lengths[stream] = max(int(np.median(queue.position[rows] + 1 - started)), 1)
            freed_by[queue.calls[rows]] = device_work["id"][queue.works[np.maximum(started - 1, 0)]]
            full.add(stream)
    unqueued = np.flatnonzero(blocked & (freed_by == MISSING))  # its work was not recorded
    freed_by[unqueued] = _last_started(device_work, calls["rank"][unqueued], until[unqueued])
    return FullQueues(_unblocked_ns(calls, launching, blocked), freed_by, lengths, frozenset(full))


def _last_started(device_work: Mapping[str, npt.NDArray[Any]], rank: Ints, time_ns: Ints) -> Ints:
    """Return the id of the work of a rank that started last before each time; `MISSING` without one."""
    result = np.full(len(rank), MISSING)
    for number in np.unique(rank).tolist():  # a few ranks
        rows, asked = np.flatnonzero(device_work["rank"] == number), rank == number
        last = np.searchsorted(device_work["start"][rows], time_ns[asked], side="right") - 1
        ids = device_work["id"][rows]
        result[asked] = np.where(last >= 0, ids[np.maximum(last, 0)], MISSING) if len(rows) else MISSING
    return result


def _recorded(trace: Trace, calls: Mapping[str, Ints]) -> Ints:
    """Return when the profiler's record of a full queue inside each call ends; `MISSING` without a record."""
    table, result = trace.ranges, np.full(len(calls["id"]), MISSING)
    rows = np.flatnonzero(strings(table, "category") == OVERHEAD)
    rows = rows[[QUEUE_FULL.search(str(name)) is not None for name in strings(table.take(rows), "name")]]
    rank, start, end = integers(table, "rank")[rows], integers(table, "start_ns")[rows], ends(table)[rows]
    for number in np.unique(rank).tolist():  # a few ranks
        of_rank = np.flatnonzero(calls["rank"] == number)
        records = rank == number
        first = np.searchsorted(calls["start"][of_rank], start[records], side="right") - 1
        row = np.full(len(first), -1)
        for back in range(_NESTED):
            call = of_rank[np.maximum(first - back, 0)] if len(of_rank) else row
            holds = (row < 0) & (first >= back) & (calls["end"][call] >= end[records])
            row = np.where(holds, call, row)
        np.maximum.at(result, row[row >= 0], end[records][row >= 0])
    return result


def _long(calls: Mapping[str, Ints], launching: Ints) -> Bools:
    """Return which calls are long for launching calls of their name on their rank, or of the rank if it has few."""
    duration = calls["end"] - calls["start"]
    short_ns, result = np.zeros(len(launching), np.int64), np.zeros(len(duration), dtype=bool)
    for columns, fewest in ((("rank",), 1), (("rank", "name"), _OF_KIND)):
        for rows in row_groups(*(calls[column][launching] for column in columns)):  # a few names
            if len(rows) >= fewest:
                short_ns[rows] = max(int(np.percentile(duration[launching[rows]], 5)), 1)
    result[launching] = duration[launching] >= np.maximum(_LONG_FACTOR * short_ns, short_ns + _LONG_NS)
    return result


def _queues(calls: Mapping[str, Ints], device_work: Mapping[str, npt.NDArray[Any]]) -> dict[Stream, _Queue]:
    """Return the launch queue of each stream with a launch in the recording.

    Work that has no launch and starts before all launched work of its stream was launched before the recording. The
    works of one launch, which a launched graph has, are one entry.
    """
    launch = lookup(calls["id"], np.arange(len(calls["id"])), device_work["launch_id"])
    queues = {}
    for rows in row_groups(*(device_work[name] for name in ("rank", "device", "stream"))):  # a few streams
        launched = np.flatnonzero(launch[rows] != MISSING)
        if not len(launched):
            continue
        earlier = rows[: launched[0]]
        numbered = earlier[device_work["correlation"][earlier] != MISSING]
        _, first = np.unique(device_work["correlation"][numbered], return_index=True)
        earlier = np.sort(np.concatenate([np.setdiff1d(earlier, numbered), numbered[first]]))
        own = rows[launched]
        call, first = np.unique(launch[own], return_index=True)  # calls are ordered by start
        works = np.concatenate([earlier, own[first]])
        works = works[np.argsort(device_work["start"][works], kind="stable")]
        stream = tuple(int(device_work[name][rows[0]]) for name in ("rank", "device", "stream"))
        position = len(earlier) + np.arange(len(call))
        queues[stream[0], stream[1], stream[2]] = _Queue(call, position, device_work["start"][works], works)
    return queues


def _held(queue: _Queue, calls: Mapping[str, Ints], is_long: Bools) -> Bools:
    """Return which calls of a queue it held up, as its length and their durations tell."""
    rows, none = queue.calls, np.zeros(len(queue.calls), dtype=bool)
    length, found, long_calls = queue.length(calls["end"]), queue.length(calls["start"]), is_long[rows]
    duration = (calls["end"] - calls["start"])[rows]
    deep = np.flatnonzero(long_calls & (length >= max(_MIN_LENGTH, _NEAR_LONGEST * length.max())))
    if len(deep) >= _MIN_CALLS:
        level = _median_by_time(length[deep], duration[deep])
        at_level = found > (1 - _WIDTH) * level
        held = long_calls & at_level & (length >= (1 - _WIDTH) * level)
        if held.sum() >= _MIN_CALLS and duration[held].sum() >= _LONG_SHARE * duration[at_level].sum():
            return np.asarray(held)
    is_deep = length >= _NEAR_LONGEST * length.max()
    if length.max() >= _ALWAYS_FULL_LENGTH and is_deep.mean() >= _ALWAYS_FULL_SHARE:
        return np.asarray(is_deep & (duration > _CALL_NS))
    return none


def _median_by_time(length: Ints, duration: Ints) -> int:
    """Return the length of the queue at which half of the time of some calls passed."""
    order = np.argsort(length, kind="stable")
    passed = np.cumsum(duration[order])
    return int(length[order][np.searchsorted(passed, passed[-1] / 2)])


def _unblocked_ns(calls: Mapping[str, Ints], launching: Ints, blocked: Bools) -> Ints:
    """Return how long each blocked call would have taken otherwise: the median of others of its name; 0 for others.

    If too few calls of its name did not block, all launching calls of its rank tell. If these are few, too, the queue
    was full throughout, and the time of a call is assumed.
    """
    duration, result = calls["end"] - calls["start"], np.full(len(blocked), _CALL_NS)
    chosen = np.union1d(launching, np.flatnonzero(blocked))
    for columns in (("rank",), ("rank", "name")):
        for group in row_groups(*(calls[column][chosen] for column in columns)):  # a few names
            free = chosen[group][~blocked[chosen[group]]]
            if len(free) >= _OF_KIND:
                result[chosen[group]] = int(np.median(duration[free]))
    return np.where(blocked, np.clip(result, 1, np.maximum(duration, 1)), 0)
