"""`Window`: the events of consecutive iterations as arrays, on one clock that starts with the first of them.

`clock_notes` says where clocks disagree, of ranks or of host and device: how often, by how much, and where.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from profilers.trace.arrays import MISSING, Ints, ends, integers
from profilers.trace.columns import lookup
from profilers.trace.trace import Trace
from replay.from_trace.index import SortedRows, TraceIndex

_NEVER = int(np.iinfo(np.int64).max)
_FAR_PAST = int(np.iinfo(np.int64).min)
#: Rows of a stream before a row among which work that runs beside it is looked for.
BRANCHES = 256


@dataclass(frozen=True)
class WindowWork:
    """Kernels and copies of a window, ordered by (rank, device, stream, start, id): columns of equal length.

    `launch` is the row of `WindowCalls`, -1 if the launch is not in the window. `iteration` is the position in
    `Window.iterations`, -1 for work of none of them. `name` is an index into the names of the index, `direction` into
    `COPY_DIRECTIONS`, `phase` into `PHASES`, and `launched_by` into the names of operators. `opens` marks the first row
    of a stream in the trace. Times are ns after the window's origin.
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
    direction: Ints
    collective: Ints
    name: Ints
    workgroups: Ints
    threads: Ints
    registers: Ints
    lds_bytes: Ints
    bytes: Ints
    launched_by: Ints
    phase: Ints
    opens: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.id)

    @property
    def in_window(self) -> npt.NDArray[np.bool_]:
        """Mask of the rows that belong to an iteration of the window."""
        return self.iteration >= 0

    def queue_starts(self) -> npt.NDArray[np.bool_]:
        """Return the mask of rows that are the first of their stream in the window."""
        first = np.ones(len(self), dtype=bool)
        keys = np.stack([self.rank, self.device, self.stream])
        first[1:] = (keys[:, 1:] != keys[:, :-1]).any(axis=0)
        return first

    def stream_free_ns(self) -> Ints:
        """Return when the stream of each row is done with the row before; the far past for the first row."""
        return np.where(self.queue_starts(), _FAR_PAST, np.roll(self.end, 1))


@dataclass(frozen=True)
class WindowCalls:
    """Calls of the runtime and of the input pipeline, ordered by (start, id): columns of equal length.

    A job without devices has its outermost operators instead. `name` is an index into the names of the index,
    `iteration` the position in `Window.iterations`. `unblocked` is how long a call that found its launch queue full
    would have taken otherwise, in ns; 0 for other calls. `freed_by` is the row of device work whose start freed an
    entry for it, -1 for other calls. `polled_before` and `polled_inside` are the rows of the work for which the host
    polled since the launch before, and inside the call; -1 without polling.
    """

    id: Ints
    rank: Ints
    thread: Ints
    start: Ints
    end: Ints
    name: Ints
    iteration: Ints
    unblocked: Ints
    freed_by: Ints
    polled_before: Ints
    polled_inside: Ints

    def __len__(self) -> int:
        return len(self.id)


@dataclass(frozen=True)
class HostStep:
    """One iteration on the host of one rank; times in ns after the window's origin."""

    rank: int
    iteration: int  #: position in `Window.iterations`
    start: int
    end: int


@dataclass(frozen=True)
class Window:
    """Events of consecutive iterations on all their ranks.

    Parameters
    ----------
    index : TraceIndex
        Index of the trace.
    device_work : WindowWork
        Kernels and copies.
    calls : WindowCalls
        Host calls.
    iterations : tuple of int
        Numbers of the iterations, in order.
    steps : tuple of HostStep
        Iterations on the host of each rank, ordered by (rank, start).
    origin_ns : int
        Earliest start of a step on the host or of device work, over all ranks, on the trace's clock.
    """

    index: TraceIndex
    device_work: WindowWork
    calls: WindowCalls
    iterations: tuple[int, ...]
    steps: tuple[HostStep, ...]
    origin_ns: int

    @property
    def trace(self) -> Trace:
        """Trace that the window is cut from."""
        return self.index.trace

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ranks with an iteration in the window."""
        return tuple(dict.fromkeys(step.rank for step in self.steps))

    def begin_of(self, rank: int) -> int:
        """Return the start of a rank's first step on the host, ns after the origin; 0 for a rank without a step."""
        return next((step.start for step in self.steps if step.rank == rank), 0)

    @cached_property
    def stream_rows(self) -> dict[tuple[int, int], Ints]:
        """Rows of device work by (rank, stream)."""
        streams = np.stack([self.device_work.rank, self.device_work.stream], axis=1)
        distinct, index = np.unique(streams, axis=0, return_inverse=True)
        return {(r, s): np.flatnonzero(index.ravel() == i) for i, (r, s) in enumerate(distinct.tolist())}

    def calls_named(self, pattern: str) -> npt.NDArray[np.bool_]:
        """Return the mask of calls that have a match of a regular expression in their name."""
        has_pattern = [re.search(pattern, str(name)) is not None for name in self.index.calls.names]
        return np.array(has_pattern, dtype=bool)[self.calls.name]

    def launched(self) -> Ints:
        """Return the launch time of each row of device work, ns after the origin; the far past if unknown."""
        launch = self.device_work.launch
        if not len(self.calls):
            return np.full(len(launch), _FAR_PAST)
        return np.where(launch >= 0, self.calls.start[launch], _FAR_PAST)


def open_window(index: TraceIndex, iterations: Sequence[int]) -> Window:
    """Return the window of consecutive `iterations`, with the backlog that still runs when the first starts.

    Calls between two iterations, and the device work that they launch, belong to the later iteration.

    Raises
    ------
    InvalidInputError
        The trace lacks an iteration; the message lists the iterations of the trace.
    """
    table = index.trace.iterations
    numbers = integers(table, "iteration")
    index.check_iterations(iterations)
    selected_numbers = np.array(iterations, dtype=np.int64)
    rows = np.flatnonzero(np.isin(numbers, selected_numbers))
    starts, stops, ranks = integers(table, "start_ns")[rows], ends(table)[rows], integers(table, "rank")[rows]
    position = lookup(selected_numbers, np.arange(len(selected_numbers)), numbers[rows])
    order = np.lexsort((starts, ranks))
    host_steps = [
        HostStep(*columns)
        for columns in zip(*(c[order].tolist() for c in (ranks, position, starts, stops)), strict=True)
    ]
    call_rows = _call_rows(index, selected_numbers, host_steps)
    work_rows = _work_rows(index, selected_numbers, call_rows)
    # Clocks that disagree can put the device's work before the host's step.
    origin = min(int(starts.min()), int(index.device_work.columns["start"][work_rows[0]].min(initial=_NEVER)))
    steps = tuple(HostStep(s.rank, s.iteration, s.start - origin, s.end - origin) for s in host_steps)
    calls = _select_calls(index, call_rows, origin)
    device_work = _select_work(index, work_rows, calls, (steps, origin))
    waited = {name: getattr(calls, name) for name in ("freed_by", "polled_before", "polled_inside")}
    found = {name: lookup(device_work.id, np.arange(len(device_work)), ids) for name, ids in waited.items()}
    calls = replace(calls, **{name: np.where(each == MISSING, -1, each) for name, each in found.items()})
    return Window(index, device_work, calls, tuple(iterations), steps, origin)


def _in_iterations(groups: SortedRows, numbers: Ints) -> list[tuple[Ints, Ints]]:
    """Return the rows of each of the iterations `numbers`, and the position of the iteration for each row."""
    blocks = [groups.of(number) for number in numbers.tolist()]
    return [(rows, np.full(len(rows), position)) for position, rows in enumerate(blocks)]


def _in_order(blocks: Sequence[tuple[Ints, Ints]]) -> tuple[Ints, Ints]:
    """Return blocks of rows and positions as one, in the order of rows."""
    rows, position = (np.concatenate(side) for side in zip(*blocks, strict=True))
    order = np.argsort(rows, kind="stable")
    return rows[order], position[order]


def _call_rows(index: TraceIndex, numbers: Ints, host_steps: Sequence[HostStep]) -> tuple[Ints, Ints]:
    """Return the calls of the iterations and of the time between them, with the positions of their iterations.

    A job on the host alone has its outermost operators only.
    """
    blocks = _in_iterations(index.calls.iterations, numbers)
    unassigned = index.calls.iterations.of(MISSING)
    start, rank = (index.calls.columns[name][unassigned] for name in ("start", "rank"))
    for before, after in pairwise(host_steps):
        if before.rank == after.rank:
            between = unassigned[(rank == after.rank) & (start >= before.end) & (start < after.start)]
            blocks.append((between, np.full(len(between), after.iteration)))
    rows, position = _in_order(blocks)
    if index.on_host_alone:
        outer = _outermost(index, rows)
        return outer, position[np.searchsorted(rows, outer)]
    return rows, position


def _work_rows(index: TraceIndex, numbers: Ints, call_rows: tuple[Ints, Ints]) -> tuple[Ints, Ints]:
    """Return the device work of the iterations and of the calls between them, with positions of iterations."""
    blocks = _in_iterations(index.device_work.iterations, numbers)
    between = index.calls.columns["iteration"][call_rows[0]] == MISSING
    if between.any():
        unassigned = index.device_work.iterations.of(MISSING)
        ids, positions = index.calls.columns["id"][call_rows[0][between]], call_rows[1][between]
        launch_position = lookup(ids, positions, index.device_work.columns["launch_id"][unassigned])
        is_launched = launch_position != MISSING
        blocks.append((unassigned[is_launched], launch_position[is_launched]))
    return _in_order(blocks)


def _select_calls(index: TraceIndex, call_rows: tuple[Ints, Ints], origin: int) -> WindowCalls:
    """Return the calls of a window."""
    rows, position = call_rows
    columns = {name: values[rows] for name, values in index.calls.columns.items() if name != "process"}
    shifted = {name: columns[name] - origin for name in ("start", "end")}
    return WindowCalls(**{**columns, **shifted, "iteration": position})


def _outermost(index: TraceIndex, rows: Ints) -> Ints:
    """Return the operators of a job on the host alone that are nested in no other operator."""
    names = ("id", "start", "end", "thread", "process", "rank")
    id_, start, end, thread, process, rank = (index.calls.columns[name][rows] for name in names)
    order = np.lexsort((id_, -end, start, thread, process, rank))
    columns = (column[order].tolist() for column in (rank, process, thread, start, end))
    kept: list[int] = []
    until, current_thread = -1, None
    # A Python loop over the operators of the window, less than 1 us each.
    for row, *thread_key, begin, stop in zip(order.tolist(), *columns, strict=True):
        if thread_key != current_thread or begin >= until:
            kept.append(row)
            until, current_thread = stop, thread_key
    return rows[np.sort(np.array(kept, dtype=np.int64))]


def _select_work(
    index: TraceIndex, work_rows: tuple[Ints, Ints], calls: WindowCalls, timing: tuple[tuple[HostStep, ...], int]
) -> WindowWork:
    """Return the device work of a window, the backlog included."""
    steps, origin = timing
    columns, (window_rows, position) = index.device_work.columns, work_rows
    ranks, first = np.unique([step.rank for step in steps], return_index=True)
    begins = np.array([step.start for step in steps])[first] + origin
    # The backlog: rows of earlier iterations, or of none, that run when the first begins on their rank.
    near = index.device_work.running(int(begins.min()), int(columns["end"][window_rows].max(initial=0)))
    begin = lookup(ranks, begins, columns["rank"][near])
    is_earlier = (columns["iteration"][near] == MISSING) | (index.device_work.began[near] < begin)
    is_running = (begin != MISSING) & is_earlier & (columns["end"][near] > begin)
    backlog = np.setdiff1d(near.start + np.flatnonzero(is_running), window_rows)
    rows = np.concatenate([window_rows, backlog])
    selected = {name: values[rows] for name, values in columns.items() if name != "correlation"}
    selected["iteration"] = np.concatenate([position, np.full(len(backlog), -1)])
    # The backlog counts from the start of the first iteration on.
    begin = np.where(selected["iteration"] >= 0, _FAR_PAST, lookup(ranks, begins, selected["rank"]))
    selected["start"] = np.maximum(selected["start"], begin) - origin
    selected["end"] = selected["end"] - origin
    order = np.lexsort([selected[name] for name in ("id", "start", "stream", "device", "rank")])
    selected = {name: values[order] for name, values in selected.items()}
    launch = lookup(calls.id, np.arange(len(calls)), selected.pop("launch_id"))
    return WindowWork(launch=np.where(launch == MISSING, -1, launch), **selected)


#: Resolution of a profiler's clock (ns): a start this much before its launch is no disagreement.
_RESOLUTION_NS = 1000


def clock_notes(window: Window) -> list[str]:
    """Return notes on clocks: how far ranks were aligned, and on which ranks work starts before its launch."""
    device_work, calls = window.device_work, window.calls
    shift = window.trace.meta.quality.counts.get("clock_shift_max_ns", 0)
    notes = []
    if shift and len(window.ranks) > 1:
        notes = [f"clocks of ranks disagreed by up to {shift / 1e3:.1f} us; matched collectives brought them together"]
    if not len(calls):
        return notes
    early = np.where(
        (device_work.launch >= 0) & device_work.in_window, calls.start[device_work.launch] - device_work.start, 0
    )
    for rank in np.unique(device_work.rank).tolist():
        rows = np.flatnonzero((device_work.rank == rank) & (early > _RESOLUTION_NS))
        if len(rows):
            worst = rows[np.argmax(early[rows])]
            name = window.index.device_work.names[device_work.name[worst]][:60]
            notes.append(
                f"rank {rank}: the clocks of host and GPU {device_work.device[worst]} disagree: {len(rows)} kernels "
                f"or copies start before the call that launched them, by up to {early[worst] / 1e3:.1f} us ({name}, "
                f"{device_work.start[worst] / 1e6:.3f} ms after the start); they wait for their stream alone"
            )
    return notes
