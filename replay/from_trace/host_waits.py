"""Waits of the host that no record of a synchronisation shows: full launch queues, and polling.

Every stream has a queue of launched work that has not started. A call that puts a kernel, a copy or a fill into a full
queue blocks until the oldest entry starts. `full_queues` finds these calls. The profiler's own records come first
(CUPTI: "Command Buffer Full"). Without them, the entries of each queue are counted: the queue was full if its length
stands at a plateau, and the calls there are long for their kind. Each launching call takes one entry, a launched graph
too. Work that was launched before the recording takes one until it starts.

A host can also read memory until a kernel has written to it. No call shows that. `polling` finds the time between two
launches, and calls that are long for their kind, that end again and again just after work that was launched before.
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
# the records, the plateau gives 932 of their 991 calls whose work was recorded, and 15 others. Of the ranks without
# records, one has a full queue by its plateau (tests/accuracy/host_causes.csv).
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


#: Queues of a trace without calls.
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
            freeing = device_work["id"][queue.works[np.maximum(started - 1, 0)]]
            freed_by[queue.calls[rows]] = np.where(started > 0, freeing, MISSING)
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


#: A wait by polling is at least this long (ns), and ends at most `_POLL_LAG_NS` after the work, or this share of it.
_POLL_NS, _POLL_LAG_NS, _POLL_LAG_SHARE = 200_000, 60_000, 0.1
#: It is found this often, and in this share of the times after the same kernel, or after it and before the same kernel.
_POLLS, _POLL_SHARE = 3, 0.8
#: Besides, the work waited in its queue for this share of the time, or the times vary, and what follows the work varies
#: by a smaller share of that. Else a host that works for as long as its kernel would be taken for one that polls.
_QUEUED_SHARE, _STEADY_SHARE = 0.5, 0.25
#: The work was launched by one of this many launching calls before.
_POLL_CALLS = 4
#: Calls that fill this share of the time between two launches explain it. So do launches on other threads, from two on.
_EXPLAINED_SHARE, _OTHER_LAUNCHES = 0.2, 2
#: Names of calls that ask whether work is done, and of calls that wait by themselves.
_ASKS, _WAITS = re.compile(r"Query"), re.compile(r"Synchronize|Memcpy(?!.*Async)|Free")
#: A call is long if it takes this many times as long as others of its name.
_POLL_FACTOR = 10


def polling(
    calls: Mapping[str, Ints], names: npt.NDArray[np.object_], device_work: Mapping[str, npt.NDArray[Any]], held: Bools
) -> tuple[Ints, Ints]:
    """Return the work that the host polled for before each call since its last launch, and inside each call.

    Parameters
    ----------
    calls : mapping of str to array
        Columns id, rank, thread, start, end and name, an index into `names`, ordered by start.
    names : array of str
        Distinct names of calls.
    device_work : mapping of str to array
        Columns id, launch_id, end and name of kernels and copies.
    held : array of bool
        Calls that found a launch queue full.

    Returns
    -------
    before, inside : array of int64
        Id of the work, one element a call; `MISSING` without polling.
    """
    before, inside = np.full((2, len(calls["id"])), MISSING)
    row = lookup(calls["id"], np.arange(len(calls["id"])), device_work["launch_id"])
    works = np.flatnonzero(row != MISSING)
    works = works[np.lexsort((device_work["end"][works], row[works]))]
    last = works[np.flatnonzero(np.diff(row[works], append=-1))]  # the last work of each launching call
    launching = row[last]
    for thread in row_groups(calls["rank"][launching], calls["thread"][launching]):  # a few threads
        launches, work = launching[thread], last[thread]
        gaps = np.flatnonzero(_unexplained(calls, _named(_ASKS, names, calls), launching, launches))
        times = calls["end"][launches[gaps]], calls["start"][launches[gaps + 1]]
        before[launches[gaps + 1]] = _polled(device_work, work, gaps, times, device_work["name"][work[gaps + 1]])
        long_calls = _long_calls(calls, held | _named(_WAITS, names, calls), launches[0])
        at = np.searchsorted(launches, long_calls) - 1
        long_calls, at = long_calls[at >= 0], at[at >= 0]
        times = calls["start"][long_calls], calls["end"][long_calls]
        inside[long_calls] = _polled(device_work, work, at, times, calls["name"][long_calls])
    return before, inside


def _named(pattern: re.Pattern[str], names: npt.NDArray[np.object_], calls: Mapping[str, Ints]) -> Bools:
    """Return which calls have a match of a pattern in their name."""
    return np.array([pattern.search(str(name)) is not None for name in names], dtype=bool)[calls["name"]]


def _unexplained(calls: Mapping[str, Ints], asks: Bools, launching: Ints, launches: Ints) -> Bools:
    """Return which times from one launch of a thread to the next are long, and filled by no other call.

    Parameters
    ----------
    calls : mapping of str to array
        As in `polling`.
    asks : array of bool
        Calls that only ask whether work is done.
    launching, launches : array of int64
        Launching calls of all threads, and of this one.
    """
    since, until = calls["end"][launches[:-1]], calls["start"][launches[1:]]
    of_rank = calls["rank"] == calls["rank"][launches[0]]
    is_own = of_rank & (calls["thread"] == calls["thread"][launches[0]])
    own = np.flatnonzero(is_own & ~asks)
    others = launching[of_rank[launching] & ~is_own[launching]]
    filled = _total_within(calls["start"][own], (calls["end"] - calls["start"])[own], since, until)
    n_others = _total_within(calls["start"][others], np.ones(len(others), np.int64), since, until)
    is_open = (filled < _EXPLAINED_SHARE * (until - since)) & (n_others < _OTHER_LAUNCHES)
    return np.asarray(is_open & (until - since >= _POLL_NS))


def _long_calls(calls: Mapping[str, Ints], is_explained: Bools, launch: int) -> Ints:
    """Return the calls on the thread of a launch that are long for their name, and not explained otherwise."""
    of_thread = (calls["rank"] == calls["rank"][launch]) & (calls["thread"] == calls["thread"][launch])
    rows, duration = np.flatnonzero(of_thread & (calls["id"] >= 0)), calls["end"] - calls["start"]
    usual_ns = np.zeros(len(rows))
    for group in row_groups(calls["name"][rows]):  # a few names
        usual_ns[group] = np.median(duration[rows[group]])
    is_long = duration[rows] >= np.maximum(_POLL_FACTOR * usual_ns, _POLL_NS)
    return np.asarray(rows[is_long & ~is_explained[rows]])


def _total_within(start: Ints, amount: Ints, since: Ints, until: Ints) -> Ints:
    """Return the sum of the amounts at starts within each time; `start` ascends."""
    total = np.append(0, np.cumsum(amount))
    low, high = (np.searchsorted(start, times) for times in (since, until))
    return np.asarray(total[np.maximum(high, low)] - total[low])


def _polled(
    device_work: Mapping[str, npt.NDArray[Any]], works: Ints, at: Ints, times: tuple[Ints, Ints], what: Ints
) -> Ints:
    """Return the work that each of some times ended with, again and again; `MISSING` for the others.

    Parameters
    ----------
    device_work : mapping of str to array
        As in `polling`.
    works : array of int64
        Last work of each launching call of the thread.
    at : array of int64
        Position in `works` of the last launch before each time.
    times : (array, array) of int64
        Begin and end of each.
    what : array of int64
        Number of what follows each time.
    """
    (since, until), result, least = times, np.full(len(at), MISSING), np.full(len(at), np.inf)
    for back in range(_POLL_CALLS):
        work = works[np.maximum(at - back, 0)]
        lag = until - device_work["end"][work]
        is_hit = (at >= back) & (device_work["end"][work] > since) & (lag >= 0)
        is_hit &= lag <= np.maximum(_POLL_LAG_NS, _POLL_LAG_SHARE * (until - since))
        name = device_work["name"][work]
        for rows in (*row_groups(name), *row_groups(name, what)):
            hits = rows[is_hit[rows]]
            is_often = len(hits) >= max(_POLLS, _POLL_SHARE * len(rows))
            if is_often and (
                _follows(times, lag, hits) or _was_queued(device_work, work[hits], since[hits], until[hits])
            ):
                better = hits[lag[hits] < least[hits]]
                result[better], least[better] = device_work["id"][work[better]], lag[better]
    return result


def _was_queued(device_work: Mapping[str, npt.NDArray[Any]], works: Ints, since: Ints, until: Ints) -> bool:
    """Return whether works spent most of the time from `since` on in their queues."""
    return bool(np.median((device_work["start"][works] - since) / (until - since)) >= _QUEUED_SHARE)


def _follows(times: tuple[Ints, Ints], lag: Ints, rows: Ints) -> bool:
    """Return whether the times vary much more than what follows the work in them."""
    length = (times[1] - times[0])[rows]
    return bool(np.std(length) > _POLL_LAG_NS and np.std(lag[rows]) <= _STEADY_SHARE * np.std(length))
