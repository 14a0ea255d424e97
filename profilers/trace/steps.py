"""`step_times`: when the iterations of each rank complete, and how long each step takes."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from profilers.trace.arrays import MISSING, Bools, Ints, dense_keys, ends, integers, strings, union_length
from profilers.trace.columns import lookup
from profilers.trace.trace import Trace

_FAR_PAST, _FAR_FUTURE = int(np.iinfo(np.int64).min), int(np.iinfo(np.int64).max)


@dataclass(frozen=True)
class StepTimes:
    """Columns of equal length, one row an iteration of a rank, ordered by (rank, start).

    The step time of an iteration is the time between the completion of the iteration before it and its own
    completion. Step times of consecutive iterations add up to the elapsed time.

    Parameters
    ----------
    rank, iteration : array of int64
    start_ns : array of int64
        When the host starts the iteration, on the trace's clock.
    completion_ns : array of int64
        When the last device work and the last host code of the iteration, and of those before it, are done.
    begin_ns : array of int64
        When the step begins: the completion of the iteration before. For an iteration that follows no other, the
        start on the host or, if that is later, the end of the work of no iteration that its streams did before.
    follows : array of bool
        Whether the trace holds the iteration before. Recordings in separate files (``--iterations file``), and
        iterations whose numbers have a gap between them, follow no other.
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
        """From the start of each iteration on the host to its completion: what it waits in queues counts."""
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


def step_times(trace: Trace) -> StepTimes:
    """Return when the iterations of each rank of `trace` complete.

    Device work that overlaps the next iteration delays the completion of its own iteration, and is counted once.
    """
    table = trace.iterations
    order = np.lexsort((integers(table, "iteration"), integers(table, "start_ns"), integers(table, "rank")))
    rank, number, start = (integers(table, name)[order] for name in ("rank", "iteration", "start_ns"))
    by_file = np.array([(text or "").startswith("file") for text in strings(table, "found_by")], dtype=bool)[order]
    follows = np.zeros(len(rank), dtype=bool)
    follows[1:] = (rank[1:] == rank[:-1]) & (number[1:] == number[:-1] + 1) & ~by_file[1:] & ~by_file[:-1]
    activity, alone = _device_work(trace), ~follows
    completion = np.maximum(ends(table)[order], _last_ends(activity, rank, number))
    begin = start.copy()
    begin[alone] = np.maximum(start[alone], _backlog_ends(activity, rank[alone], number[alone]))
    for row in np.flatnonzero(follows).tolist():  # once an iteration of a rank
        completion[row] = max(completion[row], completion[row - 1])
        begin[row] = completion[row - 1]
    return StepTimes(rank, number, start, completion, np.minimum(begin, completion), follows)


def job_steps(steps: StepTimes) -> StepTimes:
    """Return the steps of the job: an iteration completes when it has on the last of its ranks.

    The rows are ordered by start and have rank -1. An iteration follows another if it does on each of its ranks. One
    that follows no other takes as long as it does on the rank where it takes longest, whatever the clocks of ranks.
    """
    if not len(steps):
        return steps
    numbers, group = np.unique(steps.iteration, return_inverse=True)
    start = np.full(len(numbers), np.iinfo(np.int64).max)
    completion, longest = (np.full(len(numbers), _FAR_PAST) for _ in range(2))
    follows = np.ones(len(numbers), dtype=bool)
    np.minimum.at(start, group, steps.start_ns)
    np.maximum.at(completion, group, steps.completion_ns)
    np.maximum.at(longest, group, steps.step_ns)
    np.logical_and.at(follows, group, steps.follows)
    order = np.lexsort((numbers, start))
    numbers, start, completion, longest = (column[order] for column in (numbers, start, completion, longest))
    begin, follows = completion - longest, follows[order]
    follows[1:] &= numbers[1:] == numbers[:-1] + 1
    for row in np.flatnonzero(follows[1:]).tolist():  # once an iteration
        completion[row + 1] = max(completion[row + 1], completion[row])
        begin[row + 1] = completion[row]
    rank = np.full(len(numbers), -1)
    return StepTimes(rank, numbers, start, completion, np.minimum(begin, completion), follows)


@dataclass(frozen=True)
class DeviceBusy:
    """How long one device works during the steps of its rank, each moment counted once.

    Parameters
    ----------
    rank, device : int
    elapsed_ns : int
        The sum of the step times of the rank.
    busy_ns : float
        While at least one kernel or copy runs, within those steps.
    """

    rank: int
    device: int
    elapsed_ns: int
    busy_ns: float


def busy_in_steps(trace: Trace, steps: StepTimes) -> tuple[DeviceBusy, ...]:
    """Return how long each device of `trace` works during `steps`, ordered by (rank, device)."""
    activity = _device_work(trace)
    rows = []
    for rank, device in sorted(set(zip(activity["rank"].tolist(), activity["device"].tolist(), strict=True))):
        mine = (activity["rank"] == rank) & (activity["device"] == device)
        order = np.argsort(activity["start"][mine], kind="stable")
        start, end = activity["start"][mine][order], activity["end"][mine][order]
        its = steps.rank == rank
        busy, elapsed = 0.0, int(steps.step_ns[its].sum())
        for first, last in _stretches(steps, np.flatnonzero(its)):
            busy += union_length(np.clip(start, first, last), np.clip(end, first, last))
        rows.append(DeviceBusy(rank, -1 if device == MISSING else device, elapsed, busy))
    return tuple(rows)


def _stretches(steps: StepTimes, rows: npt.NDArray[np.intp]) -> list[tuple[int, int]]:
    """Return (begin, completion) of each sequence of consecutive iterations among `rows`."""
    heads = rows[~steps.follows[rows]]
    tails = np.append(rows[np.searchsorted(rows, heads[1:]) - 1], rows[-1:])
    return [(int(steps.begin_ns[a]), int(steps.completion_ns[b])) for a, b in zip(heads, tails, strict=True)]


def _device_work(trace: Trace) -> Mapping[str, Ints]:
    tables = (trace.kernels, trace.copies)
    names = ("rank", "device", "stream", "iteration")
    columns = {name: np.concatenate([integers(t, name) for t in tables]) for name in names}
    start = np.concatenate([integers(t, "start_ns") for t in tables])
    return {**columns, "start": start, "end": np.concatenate([ends(t) for t in tables])}


def _rows_of(activity: Mapping[str, Ints], rank: Ints, number: Ints) -> Ints:
    """Return for each row of device work the row of its iteration; -1 if it belongs to none."""
    keys, known = dense_keys((activity["rank"], activity["iteration"]), (rank, number))
    row = lookup(known, np.arange(len(rank)), keys)
    return np.where((activity["iteration"] == MISSING) | (row == MISSING), -1, row)


def _last_ends(activity: Mapping[str, Ints], rank: Ints, number: Ints) -> Ints:
    """Return when the last device work of each iteration ends; the far past if it has none."""
    last, row = np.full(len(rank), _FAR_PAST), _rows_of(activity, rank, number)
    np.maximum.at(last, row[row >= 0], activity["end"][row >= 0])
    return last


def _backlog_ends(activity: Mapping[str, Ints], rank: Ints, number: Ints) -> Ints:
    """Return until when the streams of each of these iterations had work of no iteration before their own."""
    row, queue = _rows_of(activity, rank, number), _queues(activity)
    backlog, first = np.full(len(rank), _FAR_PAST), np.full((len(rank), int(queue.max(initial=-1)) + 1), _FAR_FUTURE)
    free = np.flatnonzero(activity["iteration"] == MISSING)
    free = free[np.lexsort((activity["start"][free], queue[free]))]
    np.minimum.at(first, (row[row >= 0], queue[row >= 0]), activity["start"][row >= 0])
    for number_of_queue in np.unique(queue[free]).tolist():  # a few streams
        mine = free[queue[free] == number_of_queue]
        start, reach = activity["start"][mine], np.maximum.accumulate(activity["end"][mine])
        uses = np.flatnonzero(first[:, number_of_queue] < _FAR_FUTURE)
        before = np.searchsorted(start, first[uses, number_of_queue])
        ends_at = np.where(before > 0, reach[np.maximum(before - 1, 0)], _FAR_PAST)
        backlog[uses] = np.maximum(backlog[uses], ends_at)
    return backlog


def _queues(activity: Mapping[str, Ints]) -> Ints:
    """Number the streams of all devices and ranks."""
    (device,) = dense_keys((activity["rank"], activity["device"]))
    (stream,) = dense_keys((device, activity["stream"]))
    return np.unique(stream, return_inverse=True)[1]
