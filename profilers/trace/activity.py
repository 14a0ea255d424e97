"""Busy time and communication of devices: one definition for recorded and for replayed work.

`device_times` measures the work of one device, given as intervals. `times_in_steps` applies it to the steps of a trace,
`times_of_recording` to all of its device work. `last_arrivals` finds when the last rank of each collective started it,
and `late_ranks` which ranks the others waited for.
"""

from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, replace

import numpy as np

from profilers.trace.arrays import MISSING, Bools, Floats, Ints, encode_text, ends, integers, union_length
from profilers.trace.columns import lookup
from profilers.trace.kernels import COLLECTIVE
from profilers.trace.steps import StepTimes
from profilers.trace.trace import Trace

#: Figures of communication, by their keys in JSON; all commands use these and no other.
COMMUNICATION_KEYS = (
    *("communication_ns", "waiting_ns", "transfer_ns", "hidden_ns"),
    *("exposed_ns", "exposed_waiting_ns", "exposed_transfer_ns"),
)


@dataclass(frozen=True)
class DeviceIntervals:
    """Kernels and copies of one device as intervals: arrays of equal length, one row a kernel or copy.

    Parameters
    ----------
    start_ns, end_ns : array of int64 or float64
        Start and end on the device. A collective starts with its kernel, also if it then waits for other ranks.
    arrived_ns : array of int64 or float64
        When the last rank of the group has started the collective; the start for other work, and if unknown.
    is_collective : array of bool
        Whether the row is a collective.
    is_matched : array of bool
        Whether the arrival of the last rank is known.
    """

    start_ns: Ints | Floats
    end_ns: Ints | Floats
    arrived_ns: Ints | Floats
    is_collective: Bools
    is_matched: Bools

    def select(self, rows: Ints | Bools | slice) -> "DeviceIntervals":
        """Return the work in `rows`."""
        return DeviceIntervals(**{name: column[rows] for name, column in vars(self).items()})

    def within(self, first: float, last: float) -> "DeviceIntervals":
        """Return the work between two times, cut at them."""
        inside = self.select((self.end_ns > first) & (self.start_ns < last))
        times = ("start_ns", "end_ns", "arrived_ns")
        return replace(inside, **{name: np.clip(getattr(inside, name), first, last) for name in times})


@dataclass(frozen=True)
class DeviceTimes:
    """Busy time and communication of a device; each moment counts once. Times in ns.

    Parameters
    ----------
    busy_ns : float
        Time with at least one kernel or copy on the device, a collective that waits for other ranks included.
    communication_ns : float
        Time with at least one collective on the device.
    transfer_ns : float
        Communication after the last rank of the group has started the collective. If that is unknown, all of it.
    exposed_ns, exposed_transfer_ns : float
        Communication, and transfer, while nothing but collectives is on the device.
    collectives, unmatched : int
        Number of collectives, and of those whose last rank is unknown.

    Examples
    --------
    Two collectives, each 100 ns long. The last rank starts the first one after 60 ns, the second at once. A kernel runs
    beside the second:

    >>> starts, arrivals = np.array([0, 100, 100]), np.array([60, 100, 100])
    >>> collective = np.array([True, True, False])
    >>> device_times(DeviceIntervals(starts, np.array([100, 200, 200]), arrivals, collective, collective)).row()
    {'communication_ns': 200.0, 'waiting_ns': 60.0, 'transfer_ns': 140.0, 'hidden_ns': 100.0, 'exposed_ns': 100.0,
     'exposed_waiting_ns': 60.0, 'exposed_transfer_ns': 40.0}
    """

    busy_ns: float = 0.0
    communication_ns: float = 0.0
    transfer_ns: float = 0.0
    exposed_ns: float = 0.0
    exposed_transfer_ns: float = 0.0
    collectives: int = 0
    unmatched: int = 0

    def __add__(self, other: "DeviceTimes") -> "DeviceTimes":
        """Return the times of both together, which do not overlap."""
        return DeviceTimes(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    @property
    def hidden_ns(self) -> float:
        """Communication beside other work of the device."""
        return self.communication_ns - self.exposed_ns

    @property
    def waiting_ns(self) -> float | None:
        """Communication while every collective on the device waits for another rank; None if no last rank is known."""
        return self.communication_ns - self.transfer_ns if self._waiting_known else None

    @property
    def exposed_waiting_ns(self) -> float | None:
        """Waiting while nothing but collectives is on the device; None if no last rank is known."""
        return self.exposed_ns - self.exposed_transfer_ns if self._waiting_known else None

    @property
    def _waiting_known(self) -> bool:
        return not self.collectives or self.unmatched < self.collectives

    def row(self) -> dict[str, float | None]:
        """Return the figures of communication by `COMMUNICATION_KEYS`."""
        return {key: getattr(self, key) for key in COMMUNICATION_KEYS}


def device_times(work: DeviceIntervals) -> DeviceTimes:
    """Return the busy time and the communication of one device.

    Parameters
    ----------
    work : DeviceIntervals
        Kernels and copies of the device.
    """
    start, arrived, end, other = work.start_ns, work.arrived_ns, work.end_ns, ~work.is_collective
    busy, other_ns = union_length(start, end), union_length(start[other], end[other])
    return DeviceTimes(
        busy_ns=busy,
        communication_ns=union_length(start[~other], end[~other]),
        transfer_ns=union_length(arrived[~other], end[~other]),
        exposed_ns=busy - other_ns,
        exposed_transfer_ns=union_length(np.where(other, start, arrived), end) - other_ns,
        collectives=int(work.is_collective.sum()),
        unmatched=int((work.is_collective & ~work.is_matched).sum()),
    )


@dataclass(frozen=True)
class DeviceActivity:
    """Busy time and communication of a device of a trace in a stretch of time.

    Parameters
    ----------
    rank : int
        Rank of the device.
    device : int, optional
        Number of the device; None if the trace does not number it.
    elapsed_ns : int
        Length of the stretch of time: the sum of the step times of the rank, or from the first to the last device work.
    span_ns : int
        Time from the first start to the last end of device work in the recording.
    times : DeviceTimes
        Busy time and communication.
    """

    rank: int
    device: int | None
    elapsed_ns: int
    span_ns: int
    times: DeviceTimes

    @property
    def busy_share(self) -> float:
        """Busy time over elapsed time; 0 if no time elapsed."""
        return self.times.busy_ns / self.elapsed_ns if self.elapsed_ns else 0.0


def times_in_steps(trace: Trace, steps: StepTimes) -> tuple[DeviceActivity, ...]:
    """Return the busy time and the communication of each device in the steps of its rank, by (rank, device).

    Parameters
    ----------
    trace : Trace
        The trace of the devices' work.
    steps : StepTimes
        Steps of all ranks.
    """
    return tuple(
        DeviceActivity(rank, device, int(steps.step_ns[of_rank].sum()), _span(work),
                       sum(_times_within(work, _stretches(steps, of_rank)), DeviceTimes()))
        for rank, device, work, of_rank in _devices_of(trace, steps)
    )  # fmt: skip


def times_by_step(trace: Trace, steps: StepTimes) -> tuple[tuple[DeviceActivity, ...], ...]:
    """Return the busy time and the communication of each device in each step of its rank; they sum to those of all.

    Parameters
    ----------
    trace : Trace
        The trace of the devices' work.
    steps : StepTimes
        Steps of all ranks.
    """
    rows = []
    for rank, device, work, of_rank in _devices_of(trace, steps):
        spans = list(zip(steps.begin_ns[of_rank].tolist(), steps.completion_ns[of_rank].tolist(), strict=True))
        times = zip(spans, _times_within(work, spans), strict=True)
        rows.append(tuple(DeviceActivity(rank, device, b - a, _span(work), each) for (a, b), each in times))
    return tuple(rows)


def _devices_of(trace: Trace, steps: StepTimes) -> Iterator[tuple[int, int | None, DeviceIntervals, Ints]]:
    """Yield the rank, the number and the work of each device, and the rows of the steps of its rank."""
    for rank, device, work in _devices(trace):
        yield rank, device, work, np.flatnonzero(steps.rank == rank)


def _times_within(work: DeviceIntervals, spans: Sequence[tuple[int, int]]) -> list[DeviceTimes]:
    """Return the times of a device in each stretch of time."""
    ordered = work.select(np.argsort(work.start_ns, kind="stable"))
    reach = np.maximum.accumulate(ordered.end_ns)
    rows = [slice(np.searchsorted(reach, a, "right"), np.searchsorted(ordered.start_ns, b)) for a, b in spans]
    return [device_times(ordered.select(each).within(*span)) for each, span in zip(rows, spans, strict=True)]


def times_of_recording(trace: Trace) -> tuple[DeviceActivity, ...]:
    """Return the busy time and the communication of each device from its first to its last work, by (rank, device)."""
    return tuple(
        DeviceActivity(rank, device, _span(work), _span(work), device_times(work))
        for rank, device, work in _devices(trace)
    )


def _span(work: DeviceIntervals) -> int:
    return int(work.end_ns.max() - work.start_ns.min())


def _stretches(steps: StepTimes, rows: Ints) -> list[tuple[int, int]]:
    """Return (begin, completion) of each sequence of consecutive iterations among `rows`."""
    heads = rows[~steps.follows[rows]]
    tails = np.append(rows[np.searchsorted(rows, heads[1:]) - 1], rows[-1:])
    return [(int(steps.begin_ns[a]), int(steps.completion_ns[b])) for a, b in zip(heads, tails, strict=True)]


def _devices(trace: Trace) -> Iterator[tuple[int, int | None, DeviceIntervals]]:
    """Yield the rank, the number and the work of each device."""
    tables = (trace.kernels, trace.copies)
    rank, device = (np.concatenate([integers(t, name) for t in tables]) for name in ("rank", "device"))
    start = np.concatenate([integers(t, "start_ns") for t in tables])
    end = np.concatenate([ends(t) for t in tables])
    communicates, arrived = _collectives(trace)
    none = np.zeros(trace.copies.num_rows, dtype=bool)
    is_collective = np.concatenate([communicates, none])
    arrived = np.concatenate([arrived, np.full(len(none), MISSING)])
    is_matched = arrived != MISSING
    work = DeviceIntervals(
        start, end, np.where(is_matched, np.clip(arrived, start, end), start), is_collective, is_matched
    )
    order = np.lexsort((device, rank))
    starts = np.flatnonzero((np.diff(rank[order]) != 0) | (np.diff(device[order]) != 0)) + 1
    for rows in np.split(order, starts) if len(order) else ():
        first, number = int(rows[0]), int(device[rows[0]])
        yield int(rank[first]), None if number == MISSING else number, work.select(rows)


def _collectives(trace: Trace) -> tuple[Bools, Ints]:
    """Return which kernels are collectives, and when the last rank started each; `MISSING` if unknown."""
    kernels, (codes, names) = trace.kernels, encode_text(trace.kernels["name"])
    is_collective = [trace.meta.class_of(name) == COLLECTIVE for name in names]
    by_name = np.array([*is_collective, False], dtype=bool)[codes]
    collective = integers(kernels, "collective_id")
    arrived = lookup(integers(trace.collectives, "id"), last_arrivals(trace), collective)
    return by_name | (collective != MISSING), np.where(collective == MISSING, MISSING, arrived)


def last_arrivals(trace: Trace) -> Ints:
    """Return when the last rank of its group started each collective of a trace; `MISSING` if that is unknown.

    It is unknown if a rank of the group is not in the trace, unless the trace was read by ranks that stand for the
    others. It is unknown, too, if one rank ends the collective before
    another begins it, which only clocks that disagree can show.

    Parameters
    ----------
    trace : Trace
        Trace with the collectives of all ranks.
    """
    table = trace.collectives
    match, size, rank = (integers(table, name) for name in ("match_id", "group_size", "rank"))
    start, end, arrived = integers(table, "start_ns"), ends(table), np.full(table.num_rows, MISSING)
    alone = (size == 1) | (trace.meta.world_size == 1)
    arrived[alone] = start[alone]
    rows = np.flatnonzero((match != MISSING) & ~alone)
    _, group, members = np.unique(match[rows], return_inverse=True, return_counts=True)
    ranks = np.unique(np.stack([group, rank[rows]]), axis=1)[0]
    distinct = np.bincount(ranks, minlength=len(members))
    largest = np.full(len(members), 0)
    np.maximum.at(largest, group, size[rows])
    last_start, first_end = np.full(len(members), MISSING), np.full(len(members), np.iinfo(np.int64).max)
    np.maximum.at(last_start, group, start[rows])
    np.minimum.at(first_end, group, end[rows])
    if trace.meta.represents_others:
        largest[:] = 0
    known = (members > 1) & (distinct == members) & (members >= largest) & (last_start < first_end)
    arrived[rows] = np.where(known, last_start, MISSING)[group]
    return arrived


@dataclass(frozen=True)
class LateRank:
    """Collectives that a rank was the last to start.

    Parameters
    ----------
    rank : int
        The rank.
    collectives : int
        Number of collectives that the rank was the last to start.
    waited_ns : int
        Time that the other ranks waited for it in these collectives, summed over ranks.
    """

    rank: int
    collectives: int
    waited_ns: int


def late_ranks(trace: Trace) -> tuple[LateRank, ...]:
    """Return the ranks that others waited for in the whole recording, the longest wait first.

    Ranks that start a collective last at the same time count by their order; nobody waits for the later of them.

    Parameters
    ----------
    trace : Trace
        Trace with the collectives of all ranks.
    """
    table, arrived = trace.collectives, last_arrivals(trace)
    match, rank, start = (integers(table, name) for name in ("match_id", "rank", "start_ns"))
    rows = np.flatnonzero((arrived != MISSING) & (match != MISSING))
    _, group = np.unique(match[rows], return_inverse=True)
    order = np.lexsort((rank[rows], -start[rows], group))
    heads = order[np.diff(group[order], prepend=-1) != 0]
    waited = np.bincount(group, weights=arrived[rows] - start[rows], minlength=len(heads)).astype(np.int64)
    last = rank[rows][heads]
    by_rank = (LateRank(r, int((last == r).sum()), int(waited[last == r].sum())) for r in np.unique(last).tolist())
    return tuple(sorted((row for row in by_rank if row.waited_ns), key=lambda row: (-row.waited_ns, row.rank)))
