"""`Window`: the events of consecutive iterations as arrays, on one clock that starts with the first of them.

`clock_notes` says where clocks disagree, of ranks or of host and device: how often, by how much, and where.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from profilers.trace.arrays import MISSING, Ints, ends, integers
from profilers.trace.columns import lookup
from profilers.trace.trace import Trace
from replay.from_trace.index import SortedRows, TraceIndex

_NEVER = int(np.iinfo(np.int64).max)
_FAR_PAST = int(np.iinfo(np.int64).min)


@dataclass(frozen=True)
class DeviceWork:
    """Kernels and copies of a window, ordered by (rank, device, stream, start, id): columns of equal length.

    `launch` is the row of `Calls`, -1 if the launch is not in the window. `iteration` is the position in
    `Window.iterations`, -1 for work of none of them. `name` is an index into the names of the index. `opens` marks the
    first row of a stream in the whole trace. Times are ns after the window's origin.
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
    workgroups: Ints
    bytes: Ints
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


@dataclass(frozen=True)
class Calls:
    """Calls of the runtime and of the input pipeline, ordered by (start, id): columns of equal length.

    A job without devices has its outermost operators instead. `name` is an index into the names of the index,
    `iteration` the position in `Window.iterations`. `unblocked` is how long a launch that found the launch queue full
    would have taken otherwise, in ns; 0 for other calls.
    """

    id: Ints
    rank: Ints
    thread: Ints
    start: Ints
    end: Ints
    name: Ints
    iteration: Ints
    unblocked: Ints

    def __len__(self) -> int:
        return len(self.id)


@dataclass(frozen=True)
class Step:
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
    device_work : DeviceWork
        Kernels and copies.
    calls : Calls
        Host calls.
    iterations : tuple of int
        Numbers of the iterations, in order.
    steps : tuple of Step
        Iterations on the host of each rank, ordered by (rank, start).
    origin_ns : int
        Earliest start of a step on the host or of device work, over all ranks, on the trace's clock.
    """

    index: TraceIndex
    device_work: DeviceWork
    calls: Calls
    iterations: tuple[int, ...]
    steps: tuple[Step, ...]
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
    wanted_numbers = np.array(iterations, dtype=np.int64)
    rows = np.flatnonzero(np.isin(numbers, wanted_numbers))
    starts, stops, ranks = integers(table, "start_ns")[rows], ends(table)[rows], integers(table, "rank")[rows]
    position = lookup(wanted_numbers, np.arange(len(wanted_numbers)), numbers[rows])
    order = np.lexsort((starts, ranks))
    host_steps = [
        Step(*columns) for columns in zip(*(c[order].tolist() for c in (ranks, position, starts, stops)), strict=True)
    ]
    call_rows = _in_iterations(index.calls.iterations, wanted_numbers)
    all_call_rows = _with_calls_between(index, host_steps, call_rows)
    work_rows = _work_rows(index, wanted_numbers, all_call_rows)
    # Clocks that disagree can put the device's work before the host's step.
    origin = min(int(starts.min()), int(index.device_work.columns["start"][work_rows[0]].min(initial=_NEVER)))
    steps = tuple(Step(s.rank, s.iteration, s.start - origin, s.end - origin) for s in host_steps)
    window_calls = _select_calls(index, all_call_rows, origin)
    return Window(
        index,
        _select_work(index, work_rows, window_calls, (steps, origin)),
        window_calls,
        tuple(iterations),
        steps,
        origin,
    )


def _in_iterations(groups: SortedRows, numbers: Ints) -> tuple[Ints, Ints]:
    """Return the rows of the iterations `numbers` in their own order, and the position of each row's iteration."""
    blocks = [groups.of(number) for number in numbers.tolist()]
    rows = np.concatenate(blocks)
    position = np.repeat(np.arange(len(blocks)), [len(block) for block in blocks])
    order = np.argsort(rows, kind="stable")
    return rows[order], position[order]


def _with_calls_between(
    index: TraceIndex, host_steps: Sequence[Step], call_rows: tuple[Ints, Ints]
) -> tuple[Ints, Ints]:
    """Return the calls of the iterations and of the time between them, with the positions of their iterations.

    A job on the host alone has its outermost operators only.
    """
    rows, position = call_rows
    columns = index.calls.columns
    unassigned = index.calls.iterations.of(MISSING)
    for before, after in pairwise(host_steps):
        if before.rank != after.rank or not len(unassigned):
            continue
        start = columns["start"][unassigned]
        between = unassigned[
            (columns["rank"][unassigned] == after.rank) & (start >= before.end) & (start < after.start)
        ]
        rows = np.concatenate([rows, between])
        position = np.concatenate([position, np.full(len(between), after.iteration)])
    order = np.argsort(rows, kind="stable")
    rows, position = rows[order], position[order]
    if index.on_host_alone:
        outer = _outermost(index, rows)
        return outer, position[np.searchsorted(rows, outer)]
    return rows, position


def _work_rows(index: TraceIndex, numbers: Ints, call_rows: tuple[Ints, Ints]) -> tuple[Ints, Ints]:
    """Return the device work of the iterations and of the calls between them, with positions of iterations."""
    rows, position = _in_iterations(index.device_work.iterations, numbers)
    between = index.calls.columns["iteration"][call_rows[0]] == MISSING
    if not between.any():
        return rows, position
    unassigned = index.device_work.iterations.of(MISSING)
    ids, positions = index.calls.columns["id"][call_rows[0][between]], call_rows[1][between]
    launch_position = lookup(ids, positions, index.device_work.columns["launch_id"][unassigned])
    rows = np.concatenate([rows, unassigned[launch_position != MISSING]])
    position = np.concatenate([position, launch_position[launch_position != MISSING]])
    order = np.argsort(rows, kind="stable")
    return rows[order], position[order]


def _select_calls(index: TraceIndex, call_rows: tuple[Ints, Ints], origin: int) -> Calls:
    """Return the calls of a window."""
    rows, position = call_rows
    columns = {name: values[rows] for name, values in index.calls.columns.items() if name != "process"}
    shifted = {name: columns[name] - origin for name in ("start", "end")}
    return Calls(**{**columns, **shifted, "iteration": position})


def _outermost(index: TraceIndex, rows: Ints) -> Ints:
    """Return the operators of a job on the host alone that are nested in no other operator."""
    names = ("id", "start", "end", "thread", "process", "rank")
    id_, start, end, thread, process, rank = (index.calls.columns[name][rows] for name in names)
    order = np.lexsort((id_, -end, start, thread, process, rank))
    columns = (column[order].tolist() for column in (rank, process, thread, start, end))
    kept: list[int] = []
    until, current_thread = -1, None
    for row, *thread_key, begin, stop in zip(
        order.tolist(), *columns, strict=True
    ):  # operators of one step, < 1 us each
        if thread_key != current_thread or begin >= until:
            kept.append(row)
            until, current_thread = stop, thread_key
    return rows[np.sort(np.array(kept, dtype=np.int64))]


def _select_work(
    index: TraceIndex, work_rows: tuple[Ints, Ints], calls: Calls, timing: tuple[tuple[Step, ...], int]
) -> DeviceWork:
    """Return the device work of a window, the backlog included."""
    steps, origin = timing
    columns = index.device_work.columns
    begin_of: dict[int, int] = {}
    for step in steps:
        begin_of.setdefault(step.rank, step.start + origin)
    window_rows, position = work_rows
    last = int(columns["end"][window_rows].max(initial=0))
    earlier = np.setdiff1d(_still_running(index, begin_of, last), window_rows)
    rows = np.concatenate([window_rows, earlier])
    selected = {name: values[rows] for name, values in columns.items()}
    selected["iteration"] = np.concatenate([position, np.full(len(earlier), -1)])
    # The backlog counts from the start of the first iteration on.
    begin = _by_rank(selected["rank"], begin_of, _NEVER)
    is_own = selected["iteration"] >= 0
    selected["start"] = np.where(is_own, selected["start"], np.maximum(selected["start"], begin)) - origin
    selected["end"] = selected["end"] - origin
    order = np.lexsort([selected[name] for name in ("id", "start", "stream", "device", "rank")])
    selected = {name: values[order] for name, values in selected.items()}
    launch = lookup(calls.id, np.arange(len(calls)), selected.pop("launch_id"))
    return DeviceWork(launch=np.where(launch == MISSING, -1, launch), **selected)


def _still_running(index: TraceIndex, begin_of: dict[int, int], last: int) -> Ints:
    """Return the backlog: rows of earlier iterations, or of none, that run when the first begins on their rank."""
    columns = index.device_work.columns
    near = index.device_work.running(min(begin_of.values()), last)
    begin = _by_rank(columns["rank"][near], begin_of, _NEVER)
    before = _by_rank(columns["rank"][near], begin_of, _FAR_PAST)
    earlier = (columns["iteration"][near] == MISSING) | (index.device_work.began[near] < before)
    return np.asarray(near.start + np.flatnonzero(earlier & (columns["end"][near] > begin)), dtype=np.int64)


def _by_rank(ranks: Ints, values: dict[int, int], default: int) -> Ints:
    """Return the value of each of `ranks`; `default` for a rank without one."""
    keys = np.array(sorted(values), dtype=np.int64)
    value = lookup(keys, np.array([values[key] for key in keys.tolist()], dtype=np.int64), ranks)
    return np.where(value == MISSING, default, value)


#: Resolution of a profiler's clock (ns): a start this much before its launch is no disagreement.
_RESOLUTION_NS = 1000


def clock_notes(window: Window) -> list[str]:
    """Return notes on clocks: how far ranks were aligned, and on which ranks work starts before its launch."""
    device_work, calls = window.device_work, window.calls
    shift = window.trace.meta.quality.counts.get("clock_shift_max_ns", 0)
    notes = (
        [f"clocks of ranks disagreed by up to {shift / 1e3:.1f} us; matched collectives brought them together"]
        if shift and len(window.ranks) > 1
        else []
    )
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
