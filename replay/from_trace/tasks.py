"""`build_graph`: consecutive iterations of a trace as a `KernelGraph`.

The device's tasks are added here: kernels and copies on their streams, and collectives, whose ranks meet. A collective
whose ranks are all in the window gets a mark at which all have arrived.
"""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from profilers.errors import InvalidInputError
from profilers.trace.arrays import MISSING, Ints, arrow_array, integers, strings
from profilers.trace.kernels import CLASSES
from profilers.trace.trace import Trace
from replay.calibration.parameters import Parameters
from replay.costs.demand import isolate
from replay.from_trace.draft import Draft, NewEdges, window_dtypes, window_operators
from replay.from_trace.host import HostTasks, add_host, add_returns
from replay.from_trace.index import TraceIndex, index_trace
from replay.from_trace.starts import add_starts
from replay.from_trace.window import Window, clock_notes, open_window
from replay.graph.graph import COLLECTIVE_KINDS, Basis, EdgeKind, Hardware, KernelGraph, Lane, TaskKind


@dataclass(frozen=True)
class Meetings:
    """Collectives that all their ranks take part in, within the window.

    Parameters
    ----------
    rows : list of array of int64
        Rows of device work, one array a collective.
    notes : list of str
        Notes on collectives that were left out, and why.
    """

    rows: list[Ints]
    notes: list[str]

    def times(self, start: Ints) -> Ints:
        """Return when the last rank of each row's collective arrives; `MISSING` for rows of no meeting."""
        meeting_ns = np.full(len(start), MISSING)
        for rows in self.rows:
            meeting_ns[rows] = start[rows].max()
        return meeting_ns


def find_meetings(window: Window) -> Meetings:
    """Return the collectives that all their ranks take part in, and notes on the others.

    A collective with a missing rank is left out, since the trace does not show when that rank arrived. So is a
    collective that one rank ends before another begins it, which only clocks that disagree can show.
    """
    device_work, table = window.device_work, window.trace.collectives
    if not table.num_rows:
        return Meetings([], [])
    table_row = window.index.collectives.find(device_work.collective)
    rows = np.flatnonzero((table_row != MISSING) & device_work.in_window)
    columns = table.select(["match_id", "group_size"]).take(arrow_array(table_row[rows]))
    match, size = integers(columns, "match_id"), integers(columns, "group_size")
    rows, size, match = rows[match != MISSING], size[match != MISSING], match[match != MISSING]
    order = np.argsort(match, kind="stable")
    cuts = np.flatnonzero(np.diff(match[order])) + 1
    meetings, incomplete, disjoint = [], defaultdict[str, int](int), []
    for members, sizes in zip(np.split(rows[order], cuts), np.split(size[order], cuts), strict=True):
        present = set(device_work.rank[members].tolist())
        if not len(members) or len(present) < len(members):
            continue
        if len(present) < sizes.max() and len(window.ranks) > 1:
            incomplete[_describe_missing_ranks(window, int(table_row[members[0]]), present, int(sizes.max()))] += 1
        elif len(members) > 1 and device_work.start[members].max() >= device_work.end[members].min():
            disjoint.append(members)
        elif len(members) > 1:
            meetings.append(members)
    notes = [
        f"{count} collectives {reason}: nobody waits for the others there, and waiting stays part of their measured "
        "time"
        for reason, count in sorted(incomplete.items())
    ]
    return Meetings(meetings, notes + _clock_notes(window, disjoint))


def _describe_missing_ranks(window: Window, row: int, present: set[int], size: int) -> str:
    """Return the words of a note for collectives whose group lacks ranks."""
    text = window.trace.collectives["group_ranks"][row].as_py()
    ranks = json.loads(text) if text else []
    missing = sorted(set(ranks) - present) if isinstance(ranks, list) else []
    listed = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
    detail = f" (missing: rank {listed})" if missing else ""
    return f"of a group of {size} ranks have {len(present)} of them in the trace{detail}"


def _clock_notes(window: Window, groups: list[Ints]) -> list[str]:
    """Return a note on the collectives in `groups`, whose ranks do not meet since their clocks disagree."""
    if not groups:
        return []
    device_work = window.device_work
    gaps = [int(device_work.start[rows].max() - device_work.end[rows].min()) for rows in groups]
    worst = groups[int(np.argmax(gaps))]
    first, last = worst[np.argmin(device_work.end[worst])], worst[np.argmax(device_work.start[worst])]
    name = window.index.device_work.names.text[device_work.name[first]][:60]
    return [
        f"clocks of ranks disagree: {len(groups)} collectives end on one rank before another begins them, by up to "
        f"{max(gaps) / 1e3:.1f} us (rank {device_work.rank[first]} before rank {device_work.rank[last]}, {name}, "
        f"{device_work.end[first] / 1e6:.3f} ms after the start); nobody waits for the others there"
    ]


def add_meetings(draft: Draft, window: Window, meetings: Meetings, tasks: tuple[Ints, Ints]) -> None:
    """Append a mark for each meeting, so that a collective starts on every rank when all ranks have arrived."""
    if not meetings.rows:
        return
    meeting_ns = np.array([window.device_work.start[rows].max() for rows in meetings.rows], dtype=np.float64)
    columns: Mapping[str, object] = {
        "kind": int(TaskKind.MARK),
        "name": draft.name("all ranks have arrived"),
        "measured_start_ns": meeting_ns,
        "measured_end_ns": meeting_ns,
        "iteration": np.array([window.device_work.iteration[rows].max() for rows in meetings.rows]),
    }
    marks = draft.tasks(len(meeting_ns), columns)
    rows = np.concatenate(meetings.rows)
    mark = np.repeat(marks, [len(members) for members in meetings.rows])
    begin, done = tasks
    draft.edges(NewEdges(begin[rows], mark, 0.0, int(EdgeKind.RENDEZVOUS)))
    draft.edges(NewEdges(mark, done[rows], 0.0, int(EdgeKind.RENDEZVOUS)))


_CLASS_INDEX = {name: index for index, name in enumerate(CLASSES)}


def add_device(draft: Draft, window: Window, host: HostTasks) -> Ints:
    """Append the device's tasks and the edges that they wait for; return the task of each row of device work."""
    meetings = find_meetings(window)
    draft.notes.extend(meetings.notes)
    begin, done = _add_tasks(draft, window, meetings.times(window.device_work.start))
    add_starts(draft, window, host, (begin, done))
    add_meetings(draft, window, meetings, (begin, done))
    return done


def _add_tasks(draft: Draft, window: Window, meeting_ns: Ints) -> tuple[Ints, Ints]:
    """Append a task for each row, and before each collective of a meeting a mark for its arrival.

    Return the first and the last task of each row. The wait of a rank before all have arrived is not part of the
    collective's duration.
    """
    device_work = window.device_work
    is_meeting = meeting_ns != MISSING
    rows = np.repeat(np.arange(len(device_work)), 1 + is_meeting)
    is_arrival = np.zeros(len(rows), dtype=bool)
    is_arrival[:-1] = rows[1:] == rows[:-1]
    name = draft.named(device_work.name, window.index.device_work.names.text)[rows]
    if is_meeting.any():
        name[is_arrival] = draft.name("arrives")
    start = np.where(is_meeting, meeting_ns, device_work.start)[rows]
    lane, device = _lanes_and_devices(draft, window)
    columns = {
        name: np.where(is_arrival, default, values[rows])
        for name, (values, default) in _task_columns(draft, window).items()
    }
    numbers = draft.tasks(
        len(rows),
        {
            **columns,
            "name": name,
            "lane": lane[rows],
            "device": device[rows],
            "measured_start_ns": np.where(is_arrival, device_work.start[rows], start),
            "measured_end_ns": np.where(is_arrival, device_work.start[rows], device_work.end[rows]),
            "iteration": device_work.iteration[rows],
            "event": device_work.id[rows],
        },
    )
    done = numbers[~is_arrival]
    begin = done.copy()
    begin[is_meeting] = numbers[is_arrival]
    return begin, done


def _task_columns(draft: Draft, window: Window) -> dict[str, tuple[Ints, int]]:
    """Return the columns that describe each row, and the value that an arrival has in each."""
    device_work, table = window.device_work, window.trace.collectives
    table_row = window.index.collectives.find(device_work.collective)
    is_collective = device_work.collective != MISSING
    kind = np.where(
        device_work.is_copy, int(TaskKind.COPY), np.where(is_collective, int(TaskKind.COLLECTIVE), int(TaskKind.KERNEL))
    )
    class_of_name = np.array([_CLASS_INDEX[name] for name in window.index.device_work.names.class_], dtype=np.int64)
    size, ranks = np.zeros(len(device_work), dtype=np.int64), np.zeros(len(device_work), dtype=np.int64)
    if is_collective.any():
        has_row = table_row != MISSING
        columns = table.select(["bytes", "group_size"]).take(arrow_array(table_row[has_row]))
        size[has_row], ranks[has_row] = integers(columns, "bytes"), integers(columns, "group_size")
    operator = np.full(len(device_work), -1)
    for row, operator_of_row in window_operators(window).items():
        operator[row] = draft.operator(operator_of_row)
    return {
        "kind": (kind, int(TaskKind.MARK)),
        "class_": (np.where(device_work.is_copy, -1, class_of_name[device_work.name]), -1),
        "workgroups": (np.maximum(device_work.workgroups, 0), 0),
        "bytes": (np.maximum(np.where(is_collective, size, device_work.bytes), 0).astype(np.int64), 0),
        "dtype": (window_dtypes(window), -1),
        "collective": (np.where(is_collective, _collective_kinds(window, table_row), -1), -1),
        "operator": (operator, -1),
        "ranks": (np.maximum(ranks, 0), 0),
    }


def _collective_kinds(window: Window, table_row: Ints) -> Ints:
    """Return the kind of each row's collective, as an index into `COLLECTIVE_KINDS`; unknown without a collective."""
    unknown = COLLECTIVE_KINDS.index("unknown")
    result = np.full(len(table_row), unknown)
    rows = np.flatnonzero(table_row != MISSING)
    if not len(rows):
        return result
    names = strings(window.trace.collectives.select(["collective"]).take(arrow_array(table_row[rows])), "collective")
    result[rows] = [COLLECTIVE_KINDS.index(name) if name in COLLECTIVE_KINDS else unknown for name in names]
    return result


def _lanes_and_devices(draft: Draft, window: Window) -> tuple[Ints, Ints]:
    """Return the numbers of each row's lane and device."""
    device_work = window.device_work
    first = device_work.queue_starts()
    heads = np.flatnonzero(first)
    columns = (device_work.rank[heads], device_work.device[heads], device_work.stream[heads])
    lanes = [draft.lane(Lane(*stream)) for stream in zip(*(c.tolist() for c in columns), strict=True)]
    numbers = np.array(lanes, dtype=np.int64).reshape(-1, 2)[np.cumsum(first) - 1]
    return numbers[:, 0], numbers[:, 1]


def build_graph(
    trace: Trace | TraceIndex,
    iterations: int | Sequence[int],
    hardware: Hardware | None = None,
    *,
    parameters: Parameters,
) -> KernelGraph:
    """Return the graph of one iteration, or of consecutive ones, on all their ranks.

    Host calls are ordered on their threads, kernels and copies on their streams, also from one iteration to the next.
    Launches, event waits, synchronisations and collectives join them. The backlog is part of the graph, and of none of
    its iterations. Durations are isolated: the measured contention is taken out, and a replay puts it back.

    Parameters
    ----------
    trace : Trace or TraceIndex
        A trace; its index if several graphs are built from it.
    iterations : int or sequence of int
        Consecutive numbers of iterations, in order.
    hardware : Hardware, optional
        Hardware of the devices; by default that of the trace.
    parameters : Parameters
        Parameters of the contention model, by which measured durations are isolated.

    Raises
    ------
    InvalidInputError
        The trace lacks one of the iterations, or none is named.
    """
    numbers = (iterations,) if isinstance(iterations, int) else tuple(iterations)
    if not numbers:
        raise InvalidInputError("a graph needs at least one iteration; name one")
    index = trace if isinstance(trace, TraceIndex) else index_trace(trace)
    window = open_window(index, numbers)
    draft = Draft(notes=clock_notes(window))
    host = add_host(draft, window)
    device = add_device(draft, window, host)
    add_returns(draft, window, host, device)
    graph = draft.freeze(hardware or index.hardware, numbers)
    origin = Basis.ASSUMED if index.trace.meta.synthetic else Basis.MEASURED
    return isolate(replace(graph, origin=origin), parameters)
