"""The events of one iteration, as arrays on one clock that starts with it."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from profilers.arrays import MISSING, ends, integers
from profilers.columns import lookup
from profilers.errors import InvalidInputError
from profilers.trace import Trace
from replay.build.index import TraceIndex

__all__ = ["Calls", "DeviceWork", "Window", "open_window"]

Ints = npt.NDArray[np.int64]
_NEVER = int(np.iinfo(np.int64).max)
_FAR_PAST = int(np.iinfo(np.int64).min)


@dataclass(frozen=True)
class DeviceWork:
    """Kernels and copies, ordered by (rank, device, stream, start, id); columns of equal length.

    `launch` is the row of `Calls`, -1 where the launch is not in the window. `name` counts through the names of the
    index, `direction` likewise. `opens` marks the first of a stream in the whole trace. Times are int64 ns from the
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
    name: Ints
    direction: Ints
    workgroups: Ints
    workgroup_size: Ints
    bytes: Ints
    opens: npt.NDArray[np.bool_]

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
    """Calls of the runtime, or on a job without devices its outermost operators, ordered by start, id.

    `name` counts through the names of the index.
    """

    id: Ints
    rank: Ints
    process: Ints
    thread: Ints
    op: Ints
    start: Ints
    end: Ints
    name: Ints

    def __len__(self) -> int:
        return len(self.id)


@dataclass(frozen=True)
class Window:
    """One iteration on all its ranks.

    Parameters
    ----------
    index : TraceIndex
    work : DeviceWork
    calls : Calls
    spans : mapping of rank to (start, end)
        Of the host's step, in ns from the origin.
    origin_ns : int
        The earliest start over the ranks, of the host's step or of the device's work, on the trace's clock.
    """

    index: TraceIndex
    work: DeviceWork
    calls: Calls
    spans: dict[int, tuple[int, int]]
    origin_ns: int

    @property
    def trace(self) -> Trace:
        """The trace that the window is of."""
        return self.index.trace

    def launched(self) -> Ints:
        """Return when each row of device work was launched, ns from the origin; the far past where unknown."""
        launch = self.work.launch
        if not len(self.calls):
            return np.full(len(launch), _FAR_PAST)
        return np.where(launch >= 0, self.calls.start[launch], _FAR_PAST)


def open_window(index: TraceIndex, iteration: int) -> Window:
    """Return the events of `iteration`, and earlier device work that still runs when it starts.

    Raises
    ------
    InvalidInputError
        The trace has no such iteration; the message lists those that it has.
    """
    table = index.trace.iterations
    numbers = integers(table, "iteration")
    rows = np.flatnonzero(numbers == iteration)
    if not len(rows):
        raise InvalidInputError(
            f"the trace has no iteration {iteration} (it has {_listed(sorted(set(numbers.tolist())))})"
        )
    starts, stops = integers(table, "start_ns")[rows], ends(table)[rows]
    own = index.work.iterations.of(iteration)
    # Clocks that disagree can put the device's work before the host's step.
    origin = min(int(starts.min()), int(index.work.columns["start"][own].min(initial=_NEVER)))
    ranks = integers(table, "rank")[rows].tolist()
    spans = {rank: (int(a) - origin, int(b) - origin) for rank, a, b in zip(ranks, starts, stops, strict=True)}
    called = index.calls.iterations.of(iteration)
    calls = _calls(index, _outermost(index, called) if index.on_host_alone else called, origin)
    return Window(index, _work(index, iteration, origin, (spans, calls)), calls, spans, origin)


def _listed(numbers: list[int]) -> str:
    text = ", ".join(map(str, numbers[:12]))
    return f"{text}, ... {len(numbers)} in all" if len(numbers) > 12 else text or "none"


def _calls(index: TraceIndex, rows: Ints, origin: int) -> Calls:
    columns = index.calls.columns
    start, end = columns["start"][rows] - origin, columns["end"][rows] - origin
    places = {name: columns[name][rows] for name in ("id", "rank", "process", "thread", "name")}
    return Calls(**places, op=columns["op_id"][rows], start=start, end=end)


def _outermost(index: TraceIndex, rows: Ints) -> Ints:
    """Return the operators of a job on the host alone that stand in no other operator."""
    names = ("id", "start", "end", "thread", "process", "rank")
    id_, start, end, thread, process, rank = (index.calls.columns[name][rows] for name in names)
    order = np.lexsort((id_, -end, start, thread, process, rank))
    columns = (column[order].tolist() for column in (rank, process, thread, start, end))
    kept: list[int] = []
    reach, place = -1, None
    for row, *here, begin, stop in zip(order.tolist(), *columns, strict=True):  # operators of one step, < 1 us each
        if here != place or begin >= reach:
            kept.append(row)
            reach, place = stop, here
    return rows[np.sort(np.array(kept, dtype=np.int64))]


def _work(index: TraceIndex, iteration: int, origin: int, host: tuple[dict[int, tuple[int, int]], Calls]) -> DeviceWork:
    spans, calls = host
    columns = index.work.columns
    own = index.work.iterations.of(iteration)
    begin_of = {rank: begin + origin for rank, (begin, _) in spans.items()}
    last = int(columns["end"][own].max(initial=0))
    rows = np.union1d(own, _running(index, iteration, begin_of, last))
    chosen = {name: values[rows] for name, values in columns.items()}
    is_own = chosen.pop("iteration") == iteration
    # Work that runs when the iteration starts counts from that moment on.
    begin = _by_rank(chosen["rank"], begin_of, _NEVER)
    chosen["start"] = np.where(is_own, chosen["start"], np.maximum(chosen["start"], begin)) - origin
    chosen["end"] = chosen["end"] - origin
    order = np.lexsort([chosen[name] for name in ("id", "start", "stream", "device", "rank")])
    chosen = {name: values[order] for name, values in chosen.items()}
    launch = lookup(calls.id, np.arange(len(calls)), chosen.pop("launch_id"))
    return DeviceWork(launch=np.where(launch == MISSING, -1, launch), own=is_own[order], **chosen)


def _running(index: TraceIndex, iteration: int, begin_of: dict[int, int], last: int) -> Ints:
    """Return the rows of earlier iterations, or of none, that still run when this one begins on their rank."""
    columns = index.work.columns
    near = index.work.running(min(begin_of.values()), last)
    begin = _by_rank(columns["rank"][near], begin_of, _NEVER)
    before = _by_rank(columns["rank"][near], begin_of, _FAR_PAST)
    earlier = (columns["iteration"][near] != iteration) & (
        (columns["iteration"][near] == MISSING) | (index.work.began[near] < before)
    )
    return np.asarray(near.start + np.flatnonzero(earlier & (columns["end"][near] > begin)), dtype=np.int64)


def _by_rank(ranks: Ints, values: dict[int, int], default: int) -> Ints:
    """Return for every rank its value."""
    keys = np.array(sorted(values), dtype=np.int64)
    found = lookup(keys, np.array([values[key] for key in keys.tolist()], dtype=np.int64), ranks)
    return np.where(found == MISSING, default, found)
