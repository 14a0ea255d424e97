"""Figures of a trace by plain arithmetic on its tables, for the audit.

These functions read the columns of the tables alone. They share no code with what they check.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from profilers.trace.arrays import Bools, Ints
from profilers.trace.kernels import COLLECTIVE
from profilers.trace.trace import Trace

#: Iterations further apart than this share of their median duration do not follow each other.
_FAR = 0.2


def column(table: pa.Table, name: str, missing: int = -1) -> Ints:
    """Return a column of whole numbers, with `missing` in place of nulls."""
    return np.asarray(table[name].fill_null(missing).to_numpy(), dtype=np.int64)


def texts(table: pa.Table, name: str) -> list[str]:
    """Return a column of texts, "" in place of nulls."""
    return [value or "" for value in table[name].to_pylist()]


@dataclass(frozen=True)
class Spans:
    """Time during which certain work runs, by a sweep over all starts and ends.

    Parameters
    ----------
    edges_ns : array of int64, shape (n,)
        Every start and end, ascending.
    """

    edges_ns: Ints

    def running(self, start_ns: Ints, end_ns: Ints) -> Ints:
        """Return how many intervals hold each gap between two edges."""
        change = np.zeros(len(self.edges_ns), dtype=np.int64)
        np.add.at(change, np.searchsorted(self.edges_ns, start_ns), 1)
        np.add.at(change, np.searchsorted(self.edges_ns, end_ns), -1)
        return np.cumsum(change)[:-1]

    def time_ns(self, during: Bools) -> int:
        """Return the length of the gaps that are chosen."""
        return int(np.diff(self.edges_ns)[during].sum())


@dataclass(frozen=True)
class DeviceByHand:
    """Busy time and communication of a device of one rank, in ns.

    Parameters
    ----------
    elapsed_ns : int
        From the start of the first iteration to the last completion.
    busy_ns, communication_ns, exposed_ns : int
        Time with any work; with a collective; with nothing but collectives.
    waiting_ns, exposed_waiting_ns : int
        Parts of these in which every collective waits for another rank.
    """

    elapsed_ns: int
    busy_ns: int
    communication_ns: int
    exposed_ns: int
    waiting_ns: int
    exposed_waiting_ns: int


def devices_by_hand(trace: Trace, elapsed_ns: Mapping[int, int] | None = None) -> dict[tuple[int, int], DeviceByHand]:
    """Return the busy time and the communication of each device, by rank and device.

    Parameters
    ----------
    trace : Trace
        The trace.
    elapsed_ns : mapping of int to int, optional
        Time by rank up to its last completion that counts; by default from the start of its first iteration. Without
        iterations, the whole recording counts.
    """
    tables = (trace.kernels, trace.copies)
    ranks, devices, start, number = (
        np.concatenate([column(t, name) for t in tables]) for name in ("rank", "device", "start_ns", "iteration")
    )
    end = start + np.concatenate([column(t, "dur_ns", 0) for t in tables])
    classes = {name: trace.meta.class_of(name) == COLLECTIVE for name in set(texts(trace.kernels, "name"))}
    collective = np.array([*(classes[name] for name in texts(trace.kernels, "name")), *[False] * len(trace.copies)])
    arrival = np.maximum(start, _arrivals(trace, np.concatenate([column(t, "id") for t in tables])))
    result = {}
    for rank, device in sorted(set(zip(ranks.tolist(), devices.tolist(), strict=True))):
        rows = (ranks == rank) & (devices == device)
        window = _window(trace, rank, end[(ranks == rank) & (number >= 0)])
        first, last = window or (int(start[rows].min()), int(end[rows].max()))
        first = last - elapsed_ns[rank] if window and elapsed_ns else first
        cut = [np.clip(times[rows], first, last) for times in (start, end, arrival)]
        result[rank, device] = _swept(cut[0], cut[1], cut[2], collective[rows], elapsed_ns=last - first)
    return result


def _window(trace: Trace, rank: int, ends_ns: Ints) -> tuple[int, int] | None:
    """Return the start of the first iteration of a rank, and its last completion; None without an iteration."""
    of_rank = column(trace.iterations, "rank") == rank
    if not of_rank.any():
        return None
    start = column(trace.iterations, "start_ns")[of_rank]
    host_end = start + column(trace.iterations, "dur_ns")[of_rank]
    return int(start.min()), max(int(host_end.max()), int(ends_ns.max(initial=0)))


def _arrivals(trace: Trace, ids: Ints) -> Ints:
    """Return when the last rank starts the collective of each kernel; -1 if it is none, or not all ranks are there.

    A collective that one rank ends before another begins it has clocks that disagree, so its last rank is unknown.
    """
    groups: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    sizes: dict[int, int] = defaultdict(lambda: 2)
    table = trace.collectives
    columns = [column(table, name).tolist() for name in ("match_id", "rank", "start_ns", "dur_ns", "group_size")]
    for match, rank, start, duration, size in zip(*columns, strict=True):
        groups[match].append((rank, start, start + duration))
        sizes[match] = max(sizes[match], size)
    last = {}
    for match, members in groups.items():
        ranks, starts, ends = zip(*members, strict=True)
        whole = len(set(ranks)) == len(ranks) >= sizes[match]
        if match >= 0 and whole and max(starts) < min(ends):
            last[match] = max(starts)
    by_kernel = {
        kernel: last[match]
        for kernel, match in zip(column(table, "kernel_id").tolist(), columns[0], strict=True)
        if match in last
    }
    return np.array([by_kernel.get(event, -1) for event in ids.tolist()], dtype=np.int64)


def _swept(start: Ints, end: Ints, arrival: Ints, collective: Bools, *, elapsed_ns: int) -> DeviceByHand:
    spans = Spans(np.unique(np.concatenate([start, end, arrival])))
    busy = spans.running(start, end) > 0
    talks = spans.running(start[collective], end[collective]) > 0
    moves = spans.running(np.minimum(arrival, end)[collective], end[collective]) > 0
    other = spans.running(start[~collective], end[~collective]) > 0
    return DeviceByHand(
        elapsed_ns,
        spans.time_ns(busy),
        spans.time_ns(talks),
        spans.time_ns(talks & ~other),
        spans.time_ns(talks & ~moves),
        spans.time_ns(talks & ~moves & ~other),
    )


@dataclass(frozen=True)
class CollectiveByHand:
    """A collective of one rank.

    Parameters
    ----------
    event : int
        Id of its kernel.
    duration_ns, transfer_ns : int
        Its duration, and that of the rank which started last: the duration of the exchange itself.
    bytes, ranks : int
        Bytes and ranks; 0 if unknown.
    matched : bool
        Whether every rank of its group is in the trace.
    dtype : str
        Data type, as the profiler wrote it.
    """

    event: int
    duration_ns: int
    transfer_ns: int
    bytes: int
    ranks: int
    matched: bool
    dtype: str


def collectives_by_hand(trace: Trace, iteration: int) -> list[CollectiveByHand]:
    """Return the collectives of an iteration on all ranks."""
    table = trace.collectives
    names = ("kernel_id", "dur_ns", "bytes", "group_size", "match_id", "iteration")
    rows = list(zip(*(column(table, name).tolist() for name in names), texts(table, "dtype"), strict=True))
    of_group: dict[int, list[int]] = defaultdict(list)
    for _, duration, _, _, match, _, _ in rows:
        of_group[match].append(duration)
    return [
        CollectiveByHand(
            event, duration, min(of_group[match]) if match >= 0 else duration, max(bytes_, 0), max(ranks, 0),
            match >= 0 and len(of_group[match]) == ranks, dtype,
        )
        for event, duration, bytes_, ranks, match, number, dtype in rows if number == iteration and event >= 0
    ]  # fmt: skip


def kernel_times(trace: Trace, iteration: int | None = None) -> dict[str, int]:
    """Return the summed durations of kernels by class, ns, of one iteration or of all."""
    times: dict[str, int] = defaultdict(int)
    class_of = {name: trace.meta.class_of(name) for name in set(texts(trace.kernels, "name"))}
    names, duration = texts(trace.kernels, "name"), column(trace.kernels, "dur_ns", 0).tolist()
    for name, ns, number in zip(names, duration, column(trace.kernels, "iteration").tolist(), strict=True):
        if iteration is None or number == iteration:
            times[class_of[name]] += ns
    return dict(times)


def step_times(trace: Trace, rank: int) -> dict[int, int]:
    """Return the time from one completion of a rank to the next, ns, by iteration; the first counts from its start.

    It is empty if iterations lie far apart, so that they do not follow each other.
    """
    rows = np.flatnonzero(column(trace.iterations, "rank") == rank)
    number, start = (column(trace.iterations, name)[rows] for name in ("iteration", "start_ns"))
    end = dict(zip(number.tolist(), (start + column(trace.iterations, "dur_ns")[rows]).tolist(), strict=True))
    for table in (trace.kernels, trace.copies):
        ends_ns = column(table, "start_ns") + column(table, "dur_ns", 0)
        of_rank = column(table, "rank") == rank
        for iteration, moment in zip(column(table, "iteration")[of_rank].tolist(), ends_ns[of_rank], strict=True):
            if iteration in end:
                end[iteration] = max(end[iteration], int(moment))
    order = np.argsort(start, kind="stable")
    gaps = start[order][1:] - (start + column(trace.iterations, "dur_ns")[rows])[order][:-1]
    if len(gaps) and gaps.max() > _FAR * np.median(column(trace.iterations, "dur_ns")[rows]):
        return {}
    times, before = {}, int(start.min()) if len(start) else 0
    for iteration in number[order].tolist():
        times[iteration] = max(end[iteration] - before, 0)
        before = max(before, end[iteration])
    return times


def lone_kernels(trace: Trace, iteration: int) -> Mapping[int, int]:
    """Return the durations, by id, of the kernels of an iteration that no other device work touches in time."""
    tables = (trace.kernels, trace.copies)
    start, rank, device, event, number = (
        np.concatenate([column(t, name) for t in tables]) for name in ("start_ns", "rank", "device", "id", "iteration")
    )
    duration = np.concatenate([column(t, "dur_ns", 0) for t in tables])
    lone: dict[int, int] = {}
    for key in sorted(set(zip(rank.tolist(), device.tolist(), strict=True))):
        rows = np.flatnonzero((rank == key[0]) & (device == key[1]))
        rows = rows[np.argsort(start[rows], kind="stable")]
        end = start[rows] + duration[rows]
        before = np.concatenate([[-1], np.maximum.accumulate(end)[:-1]])
        after = np.concatenate([start[rows][1:], [np.iinfo(np.int64).max]])
        free = (before <= start[rows]) & (end <= after) & (number[rows] == iteration)
        lone |= dict(zip(event[rows[free]].tolist(), duration[rows[free]].tolist(), strict=True))
    kernels = set(column(trace.kernels, "id").tolist())
    return {event: ns for event, ns in lone.items() if event in kernels}


def copies_by_direction(trace: Trace, iteration: int) -> dict[str, tuple[int, int]]:
    """Return the number and the bytes of the copies of an iteration by direction."""
    copies: dict[str, tuple[int, int]] = {}
    numbers, sizes = column(trace.copies, "iteration").tolist(), column(trace.copies, "bytes", 0).tolist()
    for number, size, direction in zip(numbers, sizes, texts(trace.copies, "direction"), strict=True):
        if number == iteration:
            count, total = copies.get(direction, (0, 0))
            copies[direction] = (count + 1, total + size)
    return copies


def row_counts(trace: Trace) -> dict[str, Any]:
    """Return the number of rows of every table, and of matched collectives."""
    counts = {kind: table.num_rows for kind, table in trace.tables.items()}
    return counts | {"matched collectives": int((column(trace.collectives, "match_id") >= 0).sum())}
