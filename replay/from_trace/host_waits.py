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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from profilers.trace.arrays import MISSING, Bools, Ints, ends, integers
from profilers.trace.columns import lookup, overhead_rows, row_groups
from profilers.trace.trace import Trace

#: Names of calls that wait for the device and do nothing else: CUDA and HIP, Level Zero through SYCL.
SYNCHRONISES = r"Synchronize|(?:ur|pi)(?:QueueFinish|EventWait|EventsWait)"
# The limits below are chosen, not fitted. Of the real traces at hand, five ranks have records of a full queue. Without
# the records, the plateau gives 978 of their 991 calls whose work was recorded, and their blocked time to 2 %. Of the
# ranks without records, one has a full queue by its plateau (tests/accuracy/host_causes.csv).
#: A call is long if it takes this many times as long as short calls of its kind (their 5th percentile), and at least
#: this much longer (ns).
_LONG_FACTOR, _LONG_NS = 1.5, 1_000
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
    queues = _queues(calls, device_work)
    launching = np.unique(np.concatenate([np.zeros(0, np.int64), *(queue.calls for queue in queues.values())]))
    recorded, is_long = _recorded(trace, calls, launching), _long(calls, launching)
    is_recorded = recorded != MISSING
    blocked, freed_by = is_recorded.copy(), np.full(len(recorded), MISSING)
    until = np.where(is_recorded, recorded, calls["end"])
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


def _recorded(trace: Trace, calls: Mapping[str, Ints], launching: Ints) -> Ints:
    """Return when the profiler's record of a full queue inside each call ends; `MISSING` without a record.

    Of calls inside each other, the record belongs to the one that launched work, if there is one, or to the innermost.
    """
    launches = np.zeros(len(calls["id"]), dtype=bool)
    launches[launching] = True
    table, result = trace.ranges, np.full(len(calls["id"]), MISSING)
    rows, _ = overhead_rows(table)
    rank, start, end = integers(table, "rank")[rows], integers(table, "start_ns")[rows], ends(table)[rows]
    for number in np.unique(rank).tolist():  # a few ranks
        of_rank = np.flatnonzero(calls["rank"] == number)
        records = rank == number
        first = np.searchsorted(calls["start"][of_rank], start[records], side="right") - 1
        row, innermost = np.full((2, len(first)), -1)
        for back in range(_NESTED if len(of_rank) else 0):
            call = of_rank[np.maximum(first - back, 0)]
            holds = (first >= back) & (calls["end"][call] >= end[records])
            row = np.where(holds & (row < 0) & launches[call], call, row)
            innermost = np.where(holds & (innermost < 0), call, innermost)
        row = np.where(row >= 0, row, innermost)
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
        is_enough = held.sum() >= _MIN_CALLS and duration[held].sum() >= _LONG_SHARE * duration[at_level].sum()
        # The next call finds the queue as long. It is shorter behind the last launch of a step that is synchronised.
        if is_enough and np.median(np.append(found[1:], level)[held]) >= _NEAR_LONGEST * level:
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


#: A wait by polling is at least this long (ns). The host goes on at most `_POLL_LAG_NS` after the work.
_POLL_NS, _POLL_LAG_NS = 200_000, 60_000
#: It is found this often, and in this share of the times after the same kernel, or after it and before the same kernel.
_POLLS, _POLL_SHARE = 3, 0.8
#: Besides, the work waited in its queue for this share of the time, or the times vary, and what follows the work varies
#: by a smaller share of that. Else a host that works for as long as its kernel would be taken for one that polls.
_QUEUED_SHARE, _STEADY_SHARE = 0.5, 0.25
#: The work was launched by one of this many launching calls before, or is the last on one of this many streams.
_POLL_CALLS, _POLL_STREAMS = 4, 8
#: Calls that fill this share of the time explain it. So do operators and calls of the thread, from this many on, that
#: begin while the work still runs: a host that polls does nothing else.
_EXPLAINED_SHARE, _EXPLAINED_EVENTS = 0.2, 4
#: Names of calls that ask whether work is done, and of calls that wait by themselves.
_ASKS, _WAITS = re.compile(r"Query"), re.compile(f"{SYNCHRONISES}|Memcpy(?!.*Async)|Free")
#: A call is long if it takes this many times as long as others of its name.
_POLL_FACTOR = 10


def polling(
    trace: Trace,
    calls: Mapping[str, Ints],
    names: npt.NDArray[np.object_],
    device_work: Mapping[str, npt.NDArray[Any]],
    held: Bools,
) -> tuple[Ints, Ints]:
    """Return the work that the host polled for before each call since its last launch, and inside each call.

    Parameters
    ----------
    trace : Trace
        The trace, for its operators.
    calls : mapping of str to array
        Columns id, rank, thread, start, end and name, an index into `names`, ordered by start.
    names : array of str
        Distinct names of calls.
    device_work : mapping of str to array
        Columns id, launch_id, stream, start, end and name of kernels and copies.
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
    launches = _StreamLaunches(row[last], last, _first_starts(row, device_work))
    asks, waits = _named(_ASKS, names, calls), held | _named(_WAITS, names, calls)
    for rank in np.unique(calls["rank"][launches.call]).tolist():  # a few ranks
        of_rank = launches.select(calls["rank"][launches.call] == rank)
        threads = np.unique(calls["thread"][of_rank.call]).tolist()
        gaps = [_gaps(trace, calls, device_work, of_rank, thread, asks) for thread in threads]
        _put_polled(before, device_work, gaps)
        _put_polled(
            inside, device_work, [_long_calls(calls, device_work, of_rank, thread, waits) for thread in threads]
        )
    return before, inside


@dataclass(frozen=True)
class _StreamLaunches:
    """Launching calls, ordered by start: the row of each, of its last work, and the start of its first work."""

    call: Ints
    work: Ints
    first_start: Ints

    def select(self, rows: npt.NDArray[Any]) -> "_StreamLaunches":
        """Return the launches in `rows`."""
        return _StreamLaunches(self.call[rows], self.work[rows], self.first_start[rows])


@dataclass(frozen=True)
class _SyncTimes:
    """Times in which a host may have polled, each once for each work that it may have polled for: equal columns.

    `call` is the row of the call that follows, or that is the time itself; `slot` numbers how the work was chosen, and
    `what` names what follows. `is_idle` tells whether the host did nothing else while the work ran.
    """

    call: Ints
    slot: Ints
    what: Ints
    since: Ints
    until: Ints
    work: Ints
    first_start: Ints
    is_idle: Bools


def _first_starts(row: Ints, device_work: Mapping[str, npt.NDArray[Any]]) -> Ints:
    """Return the start of the first work of each launching call, ordered by its row."""
    works = np.flatnonzero(row != MISSING)
    works = works[np.lexsort((device_work["start"][works], row[works]))]
    first = works[np.flatnonzero(np.diff(row[works], prepend=-1))]
    return np.asarray(device_work["start"][first])


def _named(pattern: re.Pattern[str], names: npt.NDArray[np.object_], calls: Mapping[str, Ints]) -> Bools:
    """Return which calls have a match of a pattern in their name."""
    return np.array([pattern.search(str(name)) is not None for name in names], dtype=bool)[calls["name"]]


def _candidates(device_work: Mapping[str, npt.NDArray[Any]], launches: _StreamLaunches, at: Ints) -> list[Ints]:
    """Return for each slot the launch whose work the host may have polled for at each time; -1 for none.

    Parameters
    ----------
    device_work : mapping of str to array
        As in `polling`.
    launches : _StreamLaunches
        Launches of a thread.
    at : array of int64
        Position in `launches` of the last one before each time.
    """
    slots = [at - back for back in range(_POLL_CALLS)]
    stream = device_work["stream"][launches.work]
    for number in np.unique(stream)[:_POLL_STREAMS].tolist():
        positions = np.flatnonzero(stream == number)
        latest = np.searchsorted(positions, at, side="right") - 1
        slots.append(np.where(latest >= 0, positions[np.maximum(latest, 0)], -1))
    return slots


def _gaps(
    trace: Trace,
    calls: Mapping[str, Ints],
    device_work: Mapping[str, npt.NDArray[Any]],
    launches: _StreamLaunches,
    thread: int,
    asks: Bools,
) -> _SyncTimes:
    """Return the long times from a launch of a thread to the next launch on any thread of its rank."""
    own = launches.select(calls["thread"][launches.call] == thread)
    following = np.searchsorted(launches.call, own.call) + 1
    is_last = following == len(launches.call)
    following = np.minimum(following, len(launches.call) - 1)
    since, target = calls["end"][own.call], launches.call[following]
    of_thread = (calls["rank"] == calls["rank"][own.call[0]]) & (calls["thread"] == thread) & ~asks
    filled = _total_within(calls["start"][of_thread], (calls["end"] - calls["start"])[of_thread],
                           since, calls["start"][target])  # fmt: skip
    length = calls["start"][target] - since
    at = np.flatnonzero(~is_last & (length >= _POLL_NS) & (filled < _EXPLAINED_SHARE * length))
    ops = (integers(trace.ops, "rank") == calls["rank"][own.call[0]]) & (integers(trace.ops, "thread") == thread)
    events = np.sort(np.concatenate([calls["start"][of_thread], integers(trace.ops, "start_ns")[ops]]))
    what = device_work["name"][launches.work[following]]
    blocks = []
    for slot, position in enumerate(_candidates(device_work, own, at)):
        until = device_work["end"][own.work[np.maximum(position, 0)]]
        n_events = np.searchsorted(events, until) - np.searchsorted(events, since[at], side="right")
        times = target[at], what[at], since[at], calls["start"][target[at]], n_events < _EXPLAINED_EVENTS
        blocks.append(_times(own, slot, position, *times))
    return _joined(blocks)


def _long_calls(
    calls: Mapping[str, Ints],
    device_work: Mapping[str, npt.NDArray[Any]],
    launches: _StreamLaunches,
    thread: int,
    is_explained: Bools,
) -> _SyncTimes:
    """Return the calls of a thread that are long for their name, and not explained otherwise."""
    own = launches.select(calls["thread"][launches.call] == thread)
    of_thread = (calls["rank"] == calls["rank"][own.call[0]]) & (calls["thread"] == thread)
    rows, duration = np.flatnonzero(of_thread & (calls["id"] >= 0)), calls["end"] - calls["start"]
    usual_ns = np.zeros(len(rows))
    for group in row_groups(calls["name"][rows]):  # a few names
        usual_ns[group] = np.median(duration[rows[group]])
    rows = rows[(duration[rows] >= np.maximum(_POLL_FACTOR * usual_ns, _POLL_NS)) & ~is_explained[rows]]
    blocks = []
    for slot, position in enumerate(_candidates(device_work, own, np.searchsorted(own.call, rows) - 1)):
        times = rows, calls["name"][rows], calls["start"][rows], calls["end"][rows], np.ones(len(rows), dtype=bool)
        blocks.append(_times(own, slot, position, *times))
    return _joined(blocks)


def _times(
    launches: _StreamLaunches,
    slot: int,
    position: Ints,
    call: Ints,
    what: Ints,
    since: Ints,
    until: Ints,
    is_idle: Bools,
) -> _SyncTimes:
    """Return the times that have a launch in a slot, at a position in `launches`; -1 for none."""
    known = position >= 0
    at, slots = position[known], np.full(known.sum(), slot)
    work, first_start = launches.work[at], launches.first_start[at]
    return _SyncTimes(call[known], slots, what[known], since[known], until[known], work, first_start, is_idle[known])


def _joined(blocks: Sequence[_SyncTimes]) -> _SyncTimes:
    """Return several blocks of times as one."""
    return _SyncTimes(*(np.concatenate([getattr(each, field.name) for each in blocks]) for field in fields(_SyncTimes)))


def _total_within(start: Ints, amount: Ints, since: Ints, until: Ints) -> Ints:
    """Return the sum of the amounts at starts within each time; `start` ascends."""
    total = np.append(0, np.cumsum(amount))
    low, high = (np.searchsorted(start, times) for times in (since, until))
    return np.asarray(total[np.maximum(high, low)] - total[low])


def _put_polled(result: Ints, device_work: Mapping[str, npt.NDArray[Any]], blocks: Sequence[_SyncTimes]) -> None:
    """Write the work that times ended with, again and again, to `result`, the nearest one, by the row of the call."""
    times = _joined(blocks)
    end, name = device_work["end"][times.work], device_work["name"][times.work]
    lag, length = times.until - end, times.until - times.since
    is_hit = times.is_idle & (end > times.since) & (lag >= 0) & (lag <= _POLL_LAG_NS)
    waited = (times.first_start - times.since) / np.maximum(length, 1)
    least = np.full(len(result), np.inf)
    for rows in (*row_groups(times.slot, name), *row_groups(times.slot, name, times.what)):
        hits = rows[is_hit[rows]]
        if len(hits) < max(_POLLS, _POLL_SHARE * len(rows)):
            continue
        varies = np.std(length[hits]) > _POLL_LAG_NS and np.std(lag[hits]) <= _STEADY_SHARE * np.std(length[hits])
        if varies or np.median(waited[hits]) >= _QUEUED_SHARE:
            better = hits[lag[hits] < least[times.call[hits]]]
            result[times.call[better]] = device_work["id"][times.work[better]]
            least[times.call[better]] = lag[better]
