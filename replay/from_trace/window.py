"""The tasks of a window of iterations, cut from a trace.

The events of consecutive iterations, as arrays on one clock that starts with the first.

Clocks that disagree, of ranks and of host and device: how many times say so, by how much, and where.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from profilers.trace.arrays import MISSING, Ints, ends, integers
from profilers.trace.columns import lookup
from profilers.trace.trace import Trace
from replay.from_trace.index import Groups, TraceIndex

_NEVER = int(np.iinfo(np.int64).max)
_FAR_PAST = int(np.iinfo(np.int64).min)


@dataclass(frozen=True)
class DeviceWork:
    """Kernels and copies, ordered by (rank, device, stream, start, id); columns of equal length.

    `launch` is the row of `Calls`, -1 where the launch is not in the window. `iteration` is the position in
    `Window.iterations`, -1 for work that belongs to none of them. `name` counts through the names of the index,
    `direction` likewise. `opens` marks the first of a stream in the whole trace. Times are int64 ns from the window's
    origin.
    """

    id: Ints
    rank: Ints
    op: Ints
    device: Ints
    stream: Ints
    start: Ints
    end: Ints
    launch: Ints
    iteration: Ints
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

    @property
    def own(self) -> npt.NDArray[np.bool_]:
        """Which rows belong to an iteration of the window."""
        return self.iteration >= 0

    def queue_starts(self) -> npt.NDArray[np.bool_]:
        """Return which rows are the first of their stream."""
        first = np.ones(len(self), dtype=bool)
        keys = np.stack([self.rank, self.device, self.stream])
        first[1:] = (keys[:, 1:] != keys[:, :-1]).any(axis=0)
        return first


@dataclass(frozen=True)
class Calls:
    """Calls of the runtime and of the input pipeline, or on a job without devices outermost operators, by start, id.

    `name` counts through the names of the index, `iteration` is the position in `Window.iterations`. `unblocked` is
    what a launch that found the launch queue full would have taken otherwise, in ns; 0 for other calls.
    """

    id: Ints
    rank: Ints
    process: Ints
    thread: Ints
    op: Ints
    start: Ints
    end: Ints
    name: Ints
    iteration: Ints
    unblocked: Ints

    def __len__(self) -> int:
        return len(self.id)


@dataclass(frozen=True)
class Step:
    """The host's part of one iteration on one rank; times in ns from the window's origin."""

    rank: int
    iteration: int  #: position in `Window.iterations`
    start: int
    end: int


@dataclass(frozen=True)
class Window:
    """Consecutive iterations on all their ranks.

    Parameters
    ----------
    index : TraceIndex
    work : DeviceWork
    calls : Calls
    iterations : tuple of int
        Their numbers, in order.
    steps : tuple of Step
        Ordered by (rank, start).
    origin_ns : int
        The earliest start over the ranks, of the host's step or of the device's work, on the trace's clock.
    """

    index: TraceIndex
    work: DeviceWork
    calls: Calls
    iterations: tuple[int, ...]
    steps: tuple[Step, ...]
    origin_ns: int

    @property
    def trace(self) -> Trace:
        """The trace that the window is of."""
        return self.index.trace

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that take part."""
        return tuple(dict.fromkeys(step.rank for step in self.steps))

    def begin_of(self, rank: int) -> int:
        """Return when the host of a rank starts, ns from the origin; 0 for a rank without an iteration."""
        return next((step.start for step in self.steps if step.rank == rank), 0)

    def launched(self) -> Ints:
        """Return when each row of device work was launched, ns from the origin; the far past where unknown."""
        launch = self.work.launch
        if not len(self.calls):
            return np.full(len(launch), _FAR_PAST)
        return np.where(launch >= 0, self.calls.start[launch], _FAR_PAST)


def open_window(index: TraceIndex, iterations: Sequence[int]) -> Window:
    """Return the events of consecutive `iterations`, and earlier device work that still runs when the first starts.

    What the host does between two iterations, and the device work that it launches there, belongs to the later one.

    Raises
    ------
    InvalidInputError
        The trace lacks an iteration; the message lists those that it has.
    """
    table = index.trace.iterations
    numbers = integers(table, "iteration")
    index.check_iterations(iterations)
    wanted = np.array(iterations, dtype=np.int64)
    rows = np.flatnonzero(np.isin(numbers, wanted))
    starts, stops, ranks = integers(table, "start_ns")[rows], ends(table)[rows], integers(table, "rank")[rows]
    position = lookup(wanted, np.arange(len(wanted)), numbers[rows])
    order = np.lexsort((starts, ranks))
    spans = [
        Step(*columns) for columns in zip(*(c[order].tolist() for c in (ranks, position, starts, stops)), strict=True)
    ]
    called = _in_iterations(index.calls.iterations, wanted)
    calls = _called_between(index, spans, called)
    work = _worked(index, wanted, calls)
    # Clocks that disagree can put the device's work before the host's step.
    origin = min(int(starts.min()), int(index.work.columns["start"][work[0]].min(initial=_NEVER)))
    steps = tuple(Step(s.rank, s.iteration, s.start - origin, s.end - origin) for s in spans)
    chosen = _calls(index, calls, origin)
    return Window(index, _work(index, work, chosen, (steps, origin)), chosen, tuple(iterations), steps, origin)


def _in_iterations(groups: Groups, wanted: Ints) -> tuple[Ints, Ints]:
    """Return the rows of the iterations `wanted` in their own order, and the position of each one's iteration."""
    parts = [groups.of(number) for number in wanted.tolist()]
    rows = np.concatenate(parts)
    position = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    order = np.argsort(rows, kind="stable")
    return rows[order], position[order]


def _called_between(index: TraceIndex, spans: Sequence[Step], called: tuple[Ints, Ints]) -> tuple[Ints, Ints]:
    """Return the calls of the iterations and of the time between them, with positions; on the host alone, outermost."""
    rows, position = called
    columns = index.calls.columns
    free = index.calls.iterations.of(MISSING)
    for before, after in pairwise(spans):
        if before.rank != after.rank or not len(free):
            continue
        start = columns["start"][free]
        between = free[(columns["rank"][free] == after.rank) & (start >= before.end) & (start < after.start)]
        rows = np.concatenate([rows, between])
        position = np.concatenate([position, np.full(len(between), after.iteration)])
    order = np.argsort(rows, kind="stable")
    rows, position = rows[order], position[order]
    if index.on_host_alone:
        outer = _outermost(index, rows)
        return outer, position[np.searchsorted(rows, outer)]
    return rows, position


def _worked(index: TraceIndex, wanted: Ints, calls: tuple[Ints, Ints]) -> tuple[Ints, Ints]:
    """Return the device work of the iterations and of the calls between them, with positions."""
    rows, position = _in_iterations(index.work.iterations, wanted)
    between = index.calls.columns["iteration"][calls[0]] == MISSING
    if not between.any():
        return rows, position
    free = index.work.iterations.of(MISSING)
    ids, of = index.calls.columns["id"][calls[0][between]], calls[1][between]
    found = lookup(ids, of, index.work.columns["launch_id"][free])
    rows = np.concatenate([rows, free[found != MISSING]])
    position = np.concatenate([position, found[found != MISSING]])
    order = np.argsort(rows, kind="stable")
    return rows[order], position[order]


def _calls(index: TraceIndex, called: tuple[Ints, Ints], origin: int) -> Calls:
    rows, position = called
    columns = index.calls.columns
    start, end = columns["start"][rows] - origin, columns["end"][rows] - origin
    same = {name: columns[name][rows] for name in ("id", "rank", "process", "thread", "name", "unblocked")}
    return Calls(**same, op=columns["op_id"][rows], start=start, end=end, iteration=position)


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


def _work(index: TraceIndex, worked: tuple[Ints, Ints], calls: Calls, when: tuple[tuple[Step, ...], int]) -> DeviceWork:
    steps, origin = when
    columns = index.work.columns
    begin_of: dict[int, int] = {}
    for step in steps:
        begin_of.setdefault(step.rank, step.start + origin)
    own, position = worked
    last = int(columns["end"][own].max(initial=0))
    earlier = np.setdiff1d(_running(index, own, begin_of, last), own)
    rows = np.concatenate([own, earlier])
    chosen = {name: values[rows] for name, values in columns.items()}
    chosen["iteration"] = np.concatenate([position, np.full(len(earlier), -1)])
    # Work that runs when the first iteration starts counts from that moment on.
    begin = _by_rank(chosen["rank"], begin_of, _NEVER)
    is_own = chosen["iteration"] >= 0
    chosen["start"] = np.where(is_own, chosen["start"], np.maximum(chosen["start"], begin)) - origin
    chosen["end"] = chosen["end"] - origin
    order = np.lexsort([chosen[name] for name in ("id", "start", "stream", "device", "rank")])
    chosen = {name: values[order] for name, values in chosen.items()}
    launch = lookup(calls.id, np.arange(len(calls)), chosen.pop("launch_id"))
    return DeviceWork(launch=np.where(launch == MISSING, -1, launch), **chosen)


def _running(index: TraceIndex, own: Ints, begin_of: dict[int, int], last: int) -> Ints:
    """Return the rows of earlier iterations, or of none, that still run when the first begins on their rank."""
    columns = index.work.columns
    near = index.work.running(min(begin_of.values()), last)
    begin = _by_rank(columns["rank"][near], begin_of, _NEVER)
    before = _by_rank(columns["rank"][near], begin_of, _FAR_PAST)
    earlier = (columns["iteration"][near] == MISSING) | (index.work.began[near] < before)
    return np.asarray(near.start + np.flatnonzero(earlier & (columns["end"][near] > begin)), dtype=np.int64)


def _by_rank(ranks: Ints, values: dict[int, int], default: int) -> Ints:
    """Return for every rank its value."""
    keys = np.array(sorted(values), dtype=np.int64)
    found = lookup(keys, np.array([values[key] for key in keys.tolist()], dtype=np.int64), ranks)
    return np.where(found == MISSING, default, found)


#: A start this much before its launch is the resolution of a profiler's clock (ns).
_RESOLUTION_NS = 1000


def clock_notes(window: Window) -> list[str]:
    """Return a note of clocks that were brought together, and one for each rank on which work precedes its launch."""
    work, calls = window.work, window.calls
    shift = window.trace.meta.quality.counts.get("clock_shift_max_ns", 0)
    notes = (
        [f"clocks of ranks disagreed by up to {shift / 1e3:.1f} us; matched collectives brought them together"]
        if shift and len(window.ranks) > 1
        else []
    )
    if not len(calls):
        return notes
    early = np.where((work.launch >= 0) & work.own, calls.start[work.launch] - work.start, 0)
    for rank in np.unique(work.rank).tolist():
        rows = np.flatnonzero((work.rank == rank) & (early > _RESOLUTION_NS))
        if len(rows):
            worst = rows[np.argmax(early[rows])]
            name = window.index.work.names.text[work.name[worst]][:60]
            notes.append(
                f"rank {rank}: the clocks of host and GPU {work.device[worst]} disagree: {len(rows)} kernels or copies "
                f"start before the call that launched them, by up to {early[worst] / 1e3:.1f} us ({name}, "
                f"{work.start[worst] / 1e6:.3f} ms after the start); they wait for their stream alone"
            )
    return notes
