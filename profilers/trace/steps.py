"""Completions and step times of iterations (`step_times`).

The completion of an iteration is the moment when its work, and that of the iterations before it, is done on hosts and
devices. A step time is the time between successive completions. `job_steps` combines the ranks.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from profilers.trace.arrays import MISSING, Bools, Ints, dense_keys, ends, integers, strings
from profilers.trace.columns import lookup
from profilers.trace.trace import Trace

#: Most iterations in the window of a single iteration.
MAX_SPAN = 16
#: Clocks of ranks are not comparable if an iteration takes this many times its longest step time on any rank.
_CLOCKS_APART = 2
#: First work of an iteration that starts this long (ns) after its launch returned waited for unrecorded work. A launch
#: into an idle stream takes less.
BEHIND_UNRECORDED_NS = 100_000
#: Work that ends this long before the end of a wait (ns), or later, explains it.
_JUST_BEFORE_NS = 10_000
#: A step has begun before such a wait if its work until then takes this share of the wait.
_BEGUN_SHARE = 0.5
_FAR_PAST, _FAR_FUTURE = int(np.iinfo(np.int64).min), int(np.iinfo(np.int64).max)


@dataclass(frozen=True)
class StepTimes:
    """The steps of a trace: columns with one row an iteration of a rank, ordered by (rank, start).

    The step time of an iteration is the time between the completion of the iteration before it and its own
    completion. Step times of consecutive iterations add up to the elapsed time.

    Parameters
    ----------
    rank, iteration : array of int64
        Rank and number of the iteration.
    start_ns : array of int64
        Start of the iteration on the host, on the clock of the trace.
    completion_ns : array of int64
        End of the last device work and host code of the iteration and those before it.
    begin_ns : array of int64
        Begin of the step: the completion of the iteration before. Without an iteration before, it is the start on the
        host, or when the device is free of earlier work, if that is later: of recorded work of no iteration on the
        same streams, or of work that was not recorded, for which the first work of the iteration waits.
    follows : array of bool
        Whether the trace holds the iteration before. Iterations of separate files (``--iterations file``), the first
        of a recording, and those after a gap in the numbers, follow no other.
    """

    rank: Ints
    iteration: Ints
    start_ns: Ints
    completion_ns: Ints
    begin_ns: Ints
    follows: Bools

    def __len__(self) -> int:
        return len(self.rank)

    @property
    def step_ns(self) -> Ints:
        """The step times."""
        return self.completion_ns - self.begin_ns

    @property
    def latency_ns(self) -> Ints:
        """The time from the start of each iteration on the host to its completion, with the time in queues."""
        return self.completion_ns - self.start_ns

    def run_of(self, row: int) -> Ints:
        """Return the rows of the iterations that follow each other without a gap and include `row`."""
        first = row
        while self.follows[first]:
            first -= 1
        last = row
        while last + 1 < len(self) and self.follows[last + 1]:
            last += 1
        return np.arange(first, last + 1)

    def without(self, iterations: Collection[int]) -> "StepTimes":
        """Return the steps of the other iterations; the first step after one that is left out follows no other."""
        kept = ~np.isin(self.iteration, list(iterations))
        follows = self.follows & np.append(True, kept[:-1])[: len(kept)]
        columns = {field.name: getattr(self, field.name)[kept] for field in fields(self)}
        return StepTimes(**{**columns, "follows": follows[kept]})


def step_window(steps: StepTimes, of_job: StepTimes, row: int) -> tuple[int, int]:
    """Return the first and the last row of the window in which a step of the job can be timed.

    The window begins with the earliest iteration that was still running when the iteration started, and holds at least
    the iteration before it. For the first iteration of a recording it holds the next one instead.

    Parameters
    ----------
    steps : StepTimes
        Steps of all ranks.
    of_job : StepTimes
        Steps of the job, as `job_steps` returns them.
    row : int
        Row of the iteration in `of_job`.
    """
    run = of_job.run_of(row)
    if row == run[0]:
        return (row, row + 1) if len(run) > 1 else (row, row)
    of_iteration = steps.iteration == of_job.iteration[row]
    starts = dict(zip(steps.rank[of_iteration].tolist(), steps.start_ns[of_iteration].tolist(), strict=True))
    first = row - 1
    while first > run[0] and row - first < MAX_SPAN - 1:
        before = np.flatnonzero(steps.iteration == of_job.iteration[first - 1])
        pairs = zip(steps.rank[before].tolist(), steps.completion_ns[before].tolist(), strict=True)
        if not any(rank in starts and completion > starts[rank] for rank, completion in pairs):
            break
        first -= 1
    return first, row


def is_file(iterations: pa.Table) -> Bools:
    """Return whether each row of a table of iterations is a file of its own (``--iterations file``).

    Parameters
    ----------
    iterations : Table
        Rows of ``iterations``; the name of such a row is that of its file.
    """
    return np.array([(text or "").startswith("file") for text in strings(iterations, "found_by")], dtype=bool)


def step_times(trace: Trace) -> StepTimes:
    """Return the steps of each rank of a trace.

    Device work that overlaps the next iteration delays the completion of its own iteration, and is counted once.

    Parameters
    ----------
    trace : Trace
        A trace with iterations.
    """
    table = trace.iterations
    order = np.lexsort((integers(table, "iteration"), integers(table, "start_ns"), integers(table, "rank")))
    rank, number, start = (integers(table, name)[order] for name in ("rank", "iteration", "start_ns"))
    by_file, recording = is_file(table)[order], integers(table, "recording")[order]
    follows = np.zeros(len(rank), dtype=bool)
    follows[1:] = (rank[1:] == rank[:-1]) & (number[1:] == number[:-1] + 1) & ~by_file[1:] & ~by_file[:-1]
    follows[1:] &= recording[1:] == recording[:-1]
    activity, alone = _device_work(trace), ~follows
    last_end, row_of = np.full(len(rank), _FAR_PAST), _rows_of(activity, rank, number)
    np.maximum.at(last_end, row_of[row_of >= 0], activity["end"][row_of >= 0])
    completion = np.maximum(ends(table)[order], last_end)
    begin = start.copy()
    begin[alone] = np.maximum(start[alone], _backlog_ends(activity, rank[alone], number[alone]))
    begin[alone] = np.maximum(begin[alone], _unrecorded_ends(trace, activity, rank[alone], number[alone]))
    for row in np.flatnonzero(follows).tolist():  # once an iteration of a rank
        completion[row] = max(completion[row], completion[row - 1])
        begin[row] = completion[row - 1]
    return StepTimes(rank, number, start, completion, np.minimum(begin, completion), follows)


def job_steps(steps: StepTimes) -> StepTimes:
    """Return the steps of the job, in which an iteration completes with the last of its ranks.

    The rows are ordered by start and have rank -1. An iteration follows another if it does so on each of its ranks.
    An iteration that follows no other takes its longest step time on any rank, whatever the clocks of ranks. A single
    iteration, without any neighbour, begins with the first of its ranks instead, unless that takes twice as long.

    Parameters
    ----------
    steps : StepTimes
        Steps of all ranks.
    """
    if not len(steps):
        return steps
    numbers, group = np.unique(steps.iteration, return_inverse=True)
    start = np.full(len(numbers), np.iinfo(np.int64).max)
    completion, longest = (np.full(len(numbers), _FAR_PAST) for _ in range(2))
    begin = np.full(len(numbers), _FAR_FUTURE)
    follows = np.ones(len(numbers), dtype=bool)
    np.minimum.at(start, group, steps.start_ns)
    np.maximum.at(completion, group, steps.completion_ns)
    np.maximum.at(longest, group, steps.step_ns)
    np.minimum.at(begin, group, steps.begin_ns)
    np.logical_and.at(follows, group, steps.follows)
    order = np.lexsort((numbers, start))
    numbers, start, completion, longest = (column[order] for column in (numbers, start, completion, longest))
    begin, follows = begin[order], follows[order]
    follows[1:] &= numbers[1:] == numbers[:-1] + 1
    takes_longest = follows | np.append(follows[1:], False)
    takes_longest |= completion - begin > _CLOCKS_APART * longest
    begin = np.where(takes_longest, completion - longest, begin)
    for row in np.flatnonzero(follows[1:]).tolist():  # once an iteration
        completion[row + 1] = max(completion[row + 1], completion[row])
        begin[row + 1] = completion[row]
    rank = np.full(len(numbers), -1)
    return StepTimes(rank, numbers, start, completion, np.minimum(begin, completion), follows)


def _device_work(trace: Trace) -> Mapping[str, Ints]:
    tables = (trace.kernels, trace.copies)
    names = ("rank", "device", "stream", "iteration")
    columns = {name: np.concatenate([integers(t, name) for t in tables]) for name in (*names, "launch_id")}
    start = np.concatenate([integers(t, "start_ns") for t in tables])
    return {**columns, "start": start, "end": np.concatenate([ends(t) for t in tables])}


def _rows_of(activity: Mapping[str, Ints], rank: Ints, number: Ints) -> Ints:
    """Return the row of the iteration of each kernel or copy, or -1."""
    keys, iteration_keys = dense_keys((activity["rank"], activity["iteration"]), (rank, number))
    row = lookup(iteration_keys, np.arange(len(rank)), keys)
    return np.where((activity["iteration"] == MISSING) | (row == MISSING), -1, row)


def _backlog_ends(activity: Mapping[str, Ints], rank: Ints, number: Ints) -> Ints:
    """Return the end of the work of no iteration that ran on the streams of each iteration before its own work."""
    row, queue = _rows_of(activity, rank, number), _queues(activity)
    backlog, first = np.full(len(rank), _FAR_PAST), np.full((len(rank), int(queue.max(initial=-1)) + 1), _FAR_FUTURE)
    free = np.flatnonzero(activity["iteration"] == MISSING)
    free = free[np.lexsort((activity["start"][free], queue[free]))]
    np.minimum.at(first, (row[row >= 0], queue[row >= 0]), activity["start"][row >= 0])
    for number_of_queue in np.unique(queue[free]).tolist():  # a few streams
        of_queue = free[queue[free] == number_of_queue]
        start, reach = activity["start"][of_queue], np.maximum.accumulate(activity["end"][of_queue])
        uses = np.flatnonzero(first[:, number_of_queue] < _FAR_FUTURE)
        before = np.searchsorted(start, first[uses, number_of_queue])
        ends_at = np.where(before > 0, reach[np.maximum(before - 1, 0)], _FAR_PAST)
        backlog[uses] = np.maximum(backlog[uses], ends_at)
    return backlog


def _unrecorded_ends(trace: Trace, activity: Mapping[str, Ints], rank: Ints, number: Ints) -> Ints:
    """Return when each iteration's rank is done with work that was not recorded; the far past if nothing shows any.

    The first work of a stream shows it, if it starts long after its launch returned while the rank's devices are idle.
    """
    ends_at, row = np.full(len(rank), _FAR_PAST), _rows_of(activity, rank, number)
    order = np.argsort(activity["start"], kind="stable")
    first = order[np.unique(_queues(activity)[order], return_index=True)[1]]
    returned = lookup(integers(trace.launches, "id"), ends(trace.launches), activity["launch_id"][first])
    waited = (row[first] >= 0) & (returned != MISSING)
    waited &= activity["start"][first] > returned + BEHIND_UNRECORDED_NS
    for work, since in zip(first[waited].tolist(), returned[waited].tolist(), strict=True):  # a few streams
        until, own = activity["start"][work], row == row[work]
        if is_behind_unrecorded(activity["start"][own], activity["end"][own], since, until):
            ends_at[row[work]] = max(ends_at[row[work]], until)
    return ends_at


def is_behind_unrecorded(start: npt.NDArray[Any], end: npt.NDArray[Any], since: float, until: float) -> bool:
    """Return whether work waited for work that was not recorded, since no recorded work explains the wait.

    None reaches the end of the wait. What an iteration has run before takes less than half of the wait, or else the
    step has begun already.

    Parameters
    ----------
    start, end : array of float64 or int64
        Recorded device work of the rank in the iteration.
    since, until : float
        Begin and end of the wait.
    """
    before = start < until
    reaches = before & (end > max(since, until - _JUST_BEFORE_NS))
    return not reaches.any() and float((end - start)[before].sum()) < _BEGUN_SHARE * (until - since)


def _queues(activity: Mapping[str, Ints]) -> Ints:
    """Number the streams of all devices and ranks."""
    (device,) = dense_keys((activity["rank"], activity["device"]))
    (stream,) = dense_keys((device, activity["stream"]))
    return np.unique(stream, return_inverse=True)[1]
