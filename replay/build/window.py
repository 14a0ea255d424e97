"""The events of one iteration, as arrays on one clock that starts with it."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from profilers.arrays import MISSING, ends, integers, strings
from profilers.columns import lookup
from profilers.errors import InvalidInputError
from profilers.trace import Trace

__all__ = ["Calls", "DeviceWork", "Window", "open_window"]

Ints = npt.NDArray[np.int64]
_NEVER = int(np.iinfo(np.int64).max)


@dataclass(frozen=True)
class DeviceWork:
    """Kernels and copies, ordered by (rank, device, stream, start, id); columns of equal length.

    `launch` is the row of `Calls`, -1 where the launch is not in the window. Times are int64 ns from the
    window's origin.
    """

    id: Ints
    rank: Ints
    op: Ints
    device: Ints
    stream: Ints
    start: Ints
    end: Ints
    launch: Ints
    own: npt.NDArray[np.bool_]
    is_copy: npt.NDArray[np.bool_]
    collective: Ints
    name: npt.NDArray[np.object_]
    direction: npt.NDArray[np.object_]
    workgroups: Ints
    workgroup_size: Ints
    bytes: Ints

    def __len__(self) -> int:
        return len(self.id)

    def queue_starts(self) -> npt.NDArray[np.bool_]:
        """Return which rows are the first of their stream."""
        first = np.ones(len(self), dtype=bool)
        keys = np.stack([self.rank, self.device, self.stream])
        first[1:] = (keys[:, 1:] != keys[:, :-1]).any(axis=0)
        return first


@dataclass(frozen=True)
class Calls:
    """Calls of the runtime, or on a job without devices its outermost operators, ordered by start, id."""

    id: Ints
    rank: Ints
    process: Ints
    thread: Ints
    start: Ints
    end: Ints
    name: npt.NDArray[np.object_]

    def __len__(self) -> int:
        return len(self.id)


@dataclass(frozen=True)
class Window:
    """One iteration on all its ranks.

    Parameters
    ----------
    trace : Trace
    work : DeviceWork
    calls : Calls
    spans : mapping of rank to (start, end)
        Of the host's step, in ns from the origin.
    origin_ns : int
        The earliest start over the ranks, of the host's step or of the device's work, on the trace's clock.
    """

    trace: Trace
    work: DeviceWork
    calls: Calls
    spans: dict[int, tuple[int, int]]
    origin_ns: int


def open_window(trace: Trace, iteration: int) -> Window:
    """Return the events of `iteration`, and earlier device work that still runs when it starts.

    Raises
    ------
    InvalidInputError
        The trace has no such iteration; the message lists those that it has.
    """
    rows = trace.iterations.filter(pc.equal(trace.iterations["iteration"], iteration))
    if not rows.num_rows:
        have = sorted(set(integers(trace.iterations, "iteration").tolist()))
        raise InvalidInputError(f"the trace has no iteration {iteration} (it has {_listed(have)})")
    starts, stops = integers(rows, "start_ns"), ends(rows)
    origin = min(int(starts.min()), _first_work(trace, iteration))
    ranks = integers(rows, "rank").tolist()
    spans = {rank: (int(a) - origin, int(b) - origin) for rank, a, b in zip(ranks, starts, stops, strict=True)}
    own = trace.launches.filter(pc.equal(trace.launches["iteration"], iteration))
    calls = _calls(own, origin) if _has_device_work(trace) else _outermost(trace, iteration, origin)
    return Window(trace, _work(trace, iteration, origin, (spans, calls)), calls, spans, origin)


def _first_work(trace: Trace, iteration: int) -> int:
    """Return when the iteration's device work begins, which clocks that disagree can put before the host's step."""
    tables = (trace.kernels, trace.copies)
    own = (table.filter(pc.equal(table["iteration"], iteration)) for table in tables)
    return min((int(integers(table, "start_ns").min()) for table in own if table.num_rows), default=_NEVER)


def _listed(numbers: list[int]) -> str:
    text = ", ".join(map(str, numbers[:12]))
    return f"{text}, ... {len(numbers)} in all" if len(numbers) > 12 else text or "none"


def _has_device_work(trace: Trace) -> bool:
    return bool(trace.kernels.num_rows or trace.copies.num_rows)


def _calls(table: pa.Table, origin: int) -> Calls:
    table = table.sort_by([("start_ns", "ascending"), ("id", "ascending")])
    places = {name: integers(table, name) for name in ("id", "rank", "process", "thread")}
    start, end = integers(table, "start_ns") - origin, ends(table) - origin
    return Calls(**places, start=start, end=end, name=strings(table, "name"))


def _outermost(trace: Trace, iteration: int, origin: int) -> Calls:
    """Return the operators of a job on the host alone that stand in no other operator."""
    table = trace.ops.filter(pc.equal(trace.ops["iteration"], iteration))
    calls = _calls(table, origin)
    order = np.lexsort((calls.id, -calls.end, calls.start, calls.thread, calls.process, calls.rank))
    keys = np.stack([calls.rank, calls.process, calls.thread])[:, order]
    start, end = calls.start[order], calls.end[order]
    kept: list[int] = []
    reach, key = -1, None
    for i, row in enumerate(order.tolist()):  # a Python loop over the operators of one iteration, under 1 us each
        here = (int(keys[0, i]), int(keys[1, i]), int(keys[2, i]))
        if here != key or start[i] >= reach:
            kept.append(row)
            reach, key = int(end[i]), here
    return _take(calls, np.sort(np.array(kept, dtype=np.int64)))


def _take(calls: Calls, rows: Ints) -> Calls:
    names = ("id", "rank", "process", "thread", "start", "end", "name")
    return Calls(*(getattr(calls, name)[rows] for name in names))


def _work(trace: Trace, iteration: int, origin: int, host: tuple[dict[int, tuple[int, int]], Calls]) -> DeviceWork:
    spans, calls = host
    parts = [_columns(trace.kernels, origin, is_copy=False), _columns(trace.copies, origin, is_copy=True)]
    both = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    own = both["iteration"] == iteration
    begin = np.array([spans.get(rank, (_NEVER, 0))[0] for rank in both["rank"].tolist()], dtype=np.int64)
    last = int(both["end"][own].max()) if own.any() else 0
    earlier = (both["iteration"] == MISSING) | _before(trace, iteration, both)
    running = ~own & earlier & (both["end"] > begin) & (both["start"] < last)
    # Work that runs when the iteration starts counts from that moment on.
    both["start"] = np.where(own, both["start"], np.maximum(both["start"], begin))
    keep = np.flatnonzero(own | running)
    keep = keep[np.lexsort([both[name][keep] for name in ("id", "start", "stream", "device", "rank")])]
    chosen = {name: values[keep] for name, values in both.items()}
    launch = lookup(calls.id, np.arange(len(calls)), chosen.pop("launch_id"))
    chosen.pop("iteration")
    return DeviceWork(launch=np.where(launch == MISSING, -1, launch), own=own[keep], **chosen)


def _before(trace: Trace, iteration: int, both: dict[str, npt.NDArray[Any]]) -> npt.NDArray[np.bool_]:
    """Return which rows belong to an iteration that starts before `iteration` does on the same rank."""
    table = trace.iterations
    places = zip(integers(table, "rank").tolist(), integers(table, "iteration").tolist(), strict=True)
    start = dict(zip(places, integers(table, "start_ns").tolist(), strict=True))
    own = {rank: time for (rank, number), time in start.items() if number == iteration}
    early = {place for place, time in start.items() if place[0] in own and time < own[place[0]]}
    pairs = zip(both["rank"].tolist(), both["iteration"].tolist(), strict=True)
    return np.fromiter((pair in early for pair in pairs), dtype=bool, count=len(both["rank"]))


def _columns(table: pa.Table, origin: int, *, is_copy: bool) -> dict[str, npt.NDArray[Any]]:
    n = table.num_rows
    absent = np.full(n, MISSING)
    nothing = np.full(n, None, dtype=object)
    return {
        **{name: integers(table, name) for name in ("id", "rank", "iteration", "launch_id")},
        "op": integers(table, "op_id"),
        **{
            name: np.where(integers(table, name) == MISSING, -1, integers(table, name)) for name in ("device", "stream")
        },
        "start": integers(table, "start_ns") - origin,
        "end": ends(table) - origin,
        "is_copy": np.full(n, is_copy),
        "collective": absent if is_copy else integers(table, "collective_id"),
        "name": strings(table, "name"),
        "direction": strings(table, "direction") if is_copy else nothing,
        "workgroups": absent if is_copy else integers(table, "workgroups"),
        "workgroup_size": absent if is_copy else integers(table, "workgroup_size"),
        "bytes": integers(table, "bytes") if is_copy else absent,
    }
