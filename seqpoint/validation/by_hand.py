"""Figures of a trace by plain arithmetic on its tables, for the audit.

These functions read the columns of the tables alone. They share no code with what they check.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from profilers.trace.arrays import Bools, Ints
from profilers.trace.kernels import COLLECTIVE
from profilers.trace.trace import Trace

#: Iterations further apart than this share of their median duration do not follow each other.
_FAR = 0.2


def frame(table: pa.Table, *names: str) -> pd.DataFrame:
    """Return columns of whole numbers: -1 in place of nulls, and 0 in place of an unknown duration or size."""
    filled = {name: 0 if name in ("dur_ns", "bytes") else -1 for name in names}
    return pd.DataFrame({name: table[name].fill_null(missing).to_numpy() for name, missing in filled.items()})


def texts(table: pa.Table, name: str) -> list[str]:
    """Return a column of texts, "" in place of nulls."""
    return [value or "" for value in table[name].to_pylist()]


def device_work(trace: Trace) -> pd.DataFrame:
    """Return the kernels and then the copies of a trace, with their ends."""
    columns = ("id", "rank", "device", "iteration", "start_ns", "dur_ns")
    work = pd.concat([frame(table, *columns) for table in (trace.kernels, trace.copies)], ignore_index=True)
    return work.assign(end_ns=work.start_ns + work.dur_ns)


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
    work = device_work(trace)
    classes = {name: trace.meta.class_of(name) == COLLECTIVE for name in set(texts(trace.kernels, "name"))}
    work["collective"] = [*(classes[name] for name in texts(trace.kernels, "name")), *[False] * len(trace.copies)]
    arrivals = _arrivals(trace)
    work["arrival"] = np.maximum(work.start_ns, [arrivals.get(event, -1) for event in work.id])
    result = {}
    for rank, device in sorted(set(zip(work["rank"].tolist(), work.device.tolist(), strict=True))):
        rows = work[(work["rank"] == rank) & (work.device == device)]
        window = _window(trace, rank, work.end_ns[(work["rank"] == rank) & (work.iteration >= 0)])
        first, last = window or (int(rows.start_ns.min()), int(rows.end_ns.max()))
        first = last - elapsed_ns[rank] if window and elapsed_ns else first
        start, end, arrival = (rows[name].clip(first, last).to_numpy() for name in ("start_ns", "end_ns", "arrival"))
        result[rank, device] = _swept(start, end, arrival, rows.collective.to_numpy(), elapsed_ns=last - first)
    return result


def _window(trace: Trace, rank: int, ends_ns: "pd.Series[int]") -> tuple[int, int] | None:
    """Return the start of the first iteration of a rank, and its last completion; None without an iteration."""
    iterations = frame(trace.iterations, "rank", "start_ns", "dur_ns")
    iterations = iterations[iterations["rank"] == rank]
    if iterations.empty:
        return None
    host_end = int((iterations.start_ns + iterations.dur_ns).max())
    return int(iterations.start_ns.min()), max(host_end, 0 if ends_ns.empty else int(ends_ns.max()))


def _arrivals(trace: Trace) -> dict[int, int]:
    """Return when the last rank starts each collective, by id of its kernel; only those whose ranks are all there.

    A collective that one rank ends before another begins it has clocks that disagree, so its last rank is unknown.
    """
    table = frame(trace.collectives, "kernel_id", "match_id", "rank", "start_ns", "dur_ns", "group_size")
    table = table.assign(end_ns=table.start_ns + table.dur_ns)[table.match_id >= 0]
    groups = table.groupby("match_id")
    ranks, last = groups["rank"].transform("nunique"), groups.start_ns.transform("max")
    whole = (ranks == groups["rank"].transform("size")) & (ranks >= groups.group_size.transform("max").clip(lower=2))
    known = whole & (last < groups.end_ns.transform("min"))
    return dict(zip(table.kernel_id[known], last[known], strict=True))


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


def collectives_by_hand(trace: Trace, iteration: int) -> list[Any]:
    """Return the collectives of an iteration on all ranks: named tuples of columns of the trace, and two more.

    `transfer_ns` is the duration of the rank which started last: that of the exchange itself. `matched` tells whether
    every rank of the group is in the trace.
    """
    columns = ("kernel_id", "dur_ns", "bytes", "group_size", "match_id", "iteration")
    table = frame(trace.collectives, *columns).assign(dtype=texts(trace.collectives, "dtype"))
    durations, is_known = table.groupby("match_id").dur_ns, table.match_id >= 0
    table["transfer_ns"] = durations.transform("min").where(is_known, table.dur_ns)
    table["matched"] = is_known & (durations.transform("size") == table.group_size)
    return list(table[(table.iteration == iteration) & (table.kernel_id >= 0)].itertuples(index=False))


def kernel_times(trace: Trace, iteration: int | None = None) -> dict[str, int]:
    """Return the summed durations of kernels by class, ns, of one iteration or of all."""
    kernels = frame(trace.kernels, "dur_ns", "iteration").assign(name=texts(trace.kernels, "name"))
    kernels = kernels if iteration is None else kernels[kernels.iteration == iteration]
    class_of = {name: trace.meta.class_of(name) for name in kernels.name.unique()}
    times = kernels.dur_ns.groupby(kernels.name.map(class_of)).sum()
    return dict(zip(times.index, times, strict=True))


def step_times(trace: Trace, rank: int) -> dict[int, int]:
    """Return the time from one completion of a rank to the next, ns, by iteration; the first counts from its start.

    It is empty if iterations lie far apart, so that they do not follow each other.
    """
    steps = frame(trace.iterations, "rank", "iteration", "start_ns", "dur_ns")
    steps = steps[steps["rank"] == rank].sort_values("start_ns", kind="stable")
    host_end, work = steps.start_ns + steps.dur_ns, device_work(trace)
    if ((steps.start_ns - host_end.shift()) > _FAR * steps.dur_ns.median()).any():
        return {}
    last = work[work["rank"] == rank].groupby("iteration").end_ns.max()
    device_end = np.array([last.get(number, 0) for number in steps.iteration], dtype=np.int64)
    end = host_end.clip(lower=device_end).cummax()
    before = end.shift(fill_value=steps.start_ns.min() if len(steps) else 0)
    return dict(zip(steps.iteration, end - before, strict=True))


def lone_kernels(trace: Trace, iteration: int) -> Mapping[int, int]:
    """Return the durations, by id, of the kernels of an iteration that no other device work touches in time."""
    work = device_work(trace).sort_values("start_ns", kind="stable")
    of_device = work.groupby(["rank", "device"])
    before = of_device.end_ns.cummax().groupby([work["rank"], work.device]).shift(fill_value=-1)
    after = of_device.start_ns.shift(-1, fill_value=np.iinfo(np.int64).max)
    free = (before <= work.start_ns) & (work.end_ns <= after) & (work.iteration == iteration)
    lone = work[free & (work.index < trace.kernels.num_rows)]
    return dict(zip(lone.id, lone.dur_ns, strict=True))


def waiting_share(trace: Trace, rank: int) -> float:
    """Return the share of the recording in which the host of a rank waits in calls; 1 without a recorded host.

    A synchronisation waits for all of its time. Other calls that launched device work wait for what they take beyond
    short calls of their name, the 5th percentile.
    """
    calls = frame(trace.launches, "id", "rank", "start_ns", "dur_ns").assign(name=texts(trace.launches, "name"))
    calls = calls[calls["rank"] == rank]
    elapsed = (calls.start_ns + calls.dur_ns).max() - calls.start_ns.min() if len(calls) else 0
    if not elapsed:
        return 1.0
    synchronises = calls.name.str.contains("Synchronize")
    launched = np.isin(calls.id, pd.concat([frame(t, "launch_id") for t in (trace.kernels, trace.copies)]).launch_id)
    short = calls.groupby("name").dur_ns.transform(lambda times: times.quantile(0.05))
    beyond = (calls.dur_ns - short)[launched & ~synchronises].clip(lower=0)
    return float(min((calls.dur_ns[synchronises].sum() + beyond.sum()) / elapsed, 1.0))


def copies_by_direction(trace: Trace, iteration: int) -> pd.DataFrame:
    """Return the number and the bytes of the copies of an iteration, in columns of these names, by direction."""
    copies = frame(trace.copies, "iteration", "bytes").assign(direction=texts(trace.copies, "direction"))
    return copies[copies.iteration == iteration].groupby("direction").bytes.agg(["count", "sum"])


def row_counts(trace: Trace) -> dict[str, Any]:
    """Return the number of rows of every table, and of matched collectives."""
    counts = {kind: table.num_rows for kind, table in trace.tables.items()}
    return counts | {"matched collectives": int((frame(trace.collectives, "match_id").match_id >= 0).sum())}
