"""Host time by cause: what the host of each rank does, or waits for, during the steps, for all commands."""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from profilers.trace.arrays import MISSING, Ints, ends, integers, strings, union_length
from profilers.trace.columns import lookup, overhead_rows
from profilers.trace.schema import PYTHON_FUNCTION
from replay.from_trace.host_waits import SYNCHRONISES
from replay.from_trace.index import TraceIndex
from replay.graph.graph import LOADER_PREFIX

#: Causes of host time, and what each is. A moment counts for the first that applies on any thread of the rank.
HOST_CAUSES: Mapping[str, str] = MappingProxyType(
    {
        "queue": "Calls that wait for room in a full launch queue.",
        "synchronisation": "Calls that wait for the device.",
        "polling": "Memory is read until device work is done.",
        "allocation": "Calls that allocate or free memory.",
        "loader": "The host waits for its next batch.",
        "profiler": "Overhead that the profiler recorded.",
        "work": "Operators, calls and Python functions, and pauses of up to 1 ms between them.",
        "unexplained": "Longer pauses without any recorded event.",
    }
)
_SYNC, _ALLOCATION = (
    re.compile(f"{SYNCHRONISES}|Memcpy(?!.*(?:Async|WithStream))"),
    re.compile(r"Alloc|Free|HostRegister"),
)
#: Longest pause between events of a rank that counts as work of its program (ns); chosen, not fitted.
_PAUSE_NS = 1_000_000


@dataclass(frozen=True)
class HostCauses:
    """Host time of a rank during its steps, by cause.

    Parameters
    ----------
    rank : int
        The rank.
    steps : int
        Number of its steps.
    elapsed_ns : int
        Time from the start of the first step to the end of the last, on the host.
    cause_ns : mapping of str to int
        Time by `HOST_CAUSES`; it adds up to `elapsed_ns`.
    longest_queue : int
        Most works that waited in a launch queue; the entries of a queue that was full.
    held : int
        Calls that waited for room in a launch queue.
    """

    rank: int
    steps: int
    elapsed_ns: int
    cause_ns: Mapping[str, int]
    longest_queue: int
    held: int

    def to_dict(self) -> dict[str, Any]:
        """Return the row as JSON with stable keys."""
        return asdict(self)

    def share(self, cause: str) -> float:
        """Return the share of a cause in the elapsed time."""
        return self.cause_ns[cause] / self.elapsed_ns if self.elapsed_ns else 0.0


def host_causes(index: TraceIndex) -> tuple[HostCauses, ...]:
    """Return the host time of each rank with recorded calls, by rank.

    Parameters
    ----------
    index : TraceIndex
        Index of a trace with iterations.
    """
    iterations, columns = index.trace.iterations, index.calls.columns
    rank, start, end = integers(iterations, "rank"), integers(iterations, "start_ns"), ends(iterations)
    rows = []
    for number in np.intersect1d(rank, columns["rank"]).tolist():  # a few ranks
        of_rank = rank == number
        begin, until = int(start[of_rank].min()), int(end[of_rank].max())
        spans = _intervals(index, number)
        cause_ns, before, known = {}, 0.0, np.zeros((2, 0), np.int64)
        for cause in list(HOST_CAUSES)[:-1]:
            known = np.concatenate([known, np.clip(spans[cause], begin, until)], axis=1)
            covered = union_length(*known)
            cause_ns[cause] = int(covered - before)
            before = covered
        pauses = int(_short_pauses(known, begin, until))
        cause_ns["work"] += pauses
        cause_ns["unexplained"] = until - begin - int(before) - pauses
        of_calls = columns["rank"] == number
        longest = max((n for (r, _, _), n in index.calls.queues.lengths.items() if r == number), default=0)
        held = int((columns["unblocked"][of_calls] > 0).sum())
        rows.append(HostCauses(number, int(of_rank.sum()), until - begin, cause_ns, longest, held))
    return tuple(rows)


def _short_pauses(known: Ints, begin: int, until: int) -> int:
    """Return the time between some intervals, in pauses that are short enough to be work."""
    order = np.argsort(known[0], kind="stable")
    reach = np.maximum.accumulate(np.append(begin, known[1][order]))
    pause = np.append(known[0][order], until) - reach
    return int(pause[(pause > 0) & (pause <= _PAUSE_NS)].sum())


def _intervals(index: TraceIndex, rank: int) -> dict[str, Ints]:
    """Return the intervals of each known cause on a rank: rows of starts and of ends."""
    calls, names, trace = index.calls.columns, index.calls.names, index.trace
    mine = np.flatnonzero(calls["rank"] == rank)
    start, end, unblocked = (calls[name][mine] for name in ("start", "end", "unblocked"))
    named = [np.array([pattern.search(str(name)) is not None for name in names], bool)[calls["name"][mine]]
             for pattern in (_SYNC, _ALLOCATION, re.compile(f"^{re.escape(LOADER_PREFIX)}"))]  # fmt: skip
    is_held = unblocked > 0
    waits = np.isin(calls["id"][mine], index.syncs.by_call.keys[_host_waits(index)]) | _waits_for_copy(index, mine)
    inside = (calls["polled_inside"][mine] != MISSING) & ~waits & ~named[0]
    events = [start, end]
    for table in (trace.ops, trace.ranges):
        rows = np.flatnonzero(integers(table, "rank") == rank)
        if table is trace.ranges:
            rows = rows[strings(table, "category")[rows] == PYTHON_FUNCTION]  # annotations hold pauses, too
        events = [np.append(events[0], integers(table, "start_ns")[rows]), np.append(events[1], ends(table)[rows])]
    return {
        "queue": np.stack([start, end - unblocked])[:, is_held],
        "synchronisation": np.stack([start, end])[:, (named[0] | waits) & ~is_held],
        "polling": np.concatenate([np.stack([start, end])[:, inside], _polled(index, mine)], axis=1),
        "allocation": np.stack([start, end])[:, named[1]],
        "loader": np.stack([start, end])[:, named[2]],
        "profiler": _overhead(index, rank),
        "work": np.stack(events),
    }


def _host_waits(index: TraceIndex) -> npt.NDArray[np.bool_]:
    """Return which recorded synchronisations the host waits in, in the order of their calls."""
    return np.asarray(index.syncs.kind[index.syncs.by_call.rows] != "Stream Wait Event")


def _waits_for_copy(index: TraceIndex, mine: Ints) -> npt.NDArray[np.bool_]:
    """Return which calls end after the copy that they launched."""
    calls, work = index.calls.columns, index.device_work.columns
    copies = np.flatnonzero(work["is_copy"])
    copied = lookup(work["launch_id"][copies], work["end"][copies], calls["id"][mine])
    return np.asarray((copied != MISSING) & (copied <= calls["end"][mine]))


def _polled(index: TraceIndex, mine: Ints) -> Ints:
    """Return the intervals of polling before calls: from the launch before on the rank to the end of the work."""
    calls, work = index.calls.columns, index.device_work.columns
    rows = mine[calls["polled_before"][mine] != MISSING]
    until = lookup(work["id"], work["end"], calls["polled_before"][rows])
    launching = mine[np.isin(calls["id"][mine], work["launch_id"])]
    since = calls["end"][launching[np.searchsorted(launching, rows) - 1]]
    return np.stack([since, np.maximum(until, since)])


def _overhead(index: TraceIndex, rank: int) -> Ints:
    """Return the intervals of the profiler's own overhead on a rank: on threads that make calls, or on unknown ones."""
    table, calls = index.trace.ranges, index.calls.columns
    threads = np.unique(calls["thread"][calls["rank"] == rank])
    is_own = np.isin(integers(table, "thread"), threads) | (integers(table, "process") < 0)
    _, rows = overhead_rows(table)
    rows = rows[(integers(table, "rank")[rows] == rank) & is_own[rows]]
    return np.stack([integers(table, "start_ns")[rows], ends(table)[rows]])
