"""Kernels, copies and collectives of the devices, and the finished graph.

Collectives across ranks: who takes part, who is missing, and the meeting that all wait for.

The device's side: streams in order, launches, waits between streams, collectives across ranks.

`build_graph`: consecutive iterations of a trace as a `KernelGraph`.
"""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from profilers.errors import InvalidInputError
from profilers.trace.arrays import MISSING, Ints, integers, strings
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
    """Collectives of which every rank is in the window.

    Parameters
    ----------
    rows : list of array of int64
        Of device work, one array a collective.
    notes : list of str
        Collectives left out, and why.
    """

    rows: list[Ints]
    notes: list[str]

    def times(self, start: Ints) -> Ints:
        """Return for each row of device work when its collective's last rank arrives; `MISSING` for other rows."""
        met = np.full(len(start), MISSING)
        for rows in self.rows:
            met[rows] = start[rows].max()
        return met


def find_meetings(window: Window) -> Meetings:
    """Return the collectives that all their ranks take part in here, and notes of those that they do not.

    A collective with a missing rank is no meeting: when the others would have gone on is not in the trace. Nor is
    one that a rank ends before another begins it, which only clocks that disagree can show.
    """
    work, table = window.work, window.trace.collectives
    if not table.num_rows:
        return Meetings([], [])
    place = window.index.collectives.find(work.collective)
    rows = np.flatnonzero((place != MISSING) & work.own)
    about = table.select(["match_id", "group_size"]).take(place[rows])
    match, size = integers(about, "match_id"), integers(about, "group_size")
    rows, size, match = rows[match != MISSING], size[match != MISSING], match[match != MISSING]
    order = np.argsort(match, kind="stable")
    cuts = np.flatnonzero(np.diff(match[order])) + 1
    met, lacking, apart = [], defaultdict[str, int](int), []
    for part, sizes in zip(np.split(rows[order], cuts), np.split(size[order], cuts), strict=True):
        present = set(work.rank[part].tolist())
        if not len(part) or len(present) < len(part):
            continue
        if len(present) < sizes.max() and len(window.ranks) > 1:
            lacking[_missing(window, int(place[part[0]]), present, int(sizes.max()))] += 1
        elif len(part) > 1 and work.start[part].max() >= work.end[part].min():
            apart.append(part)
        elif len(part) > 1:
            met.append(part)
    notes = [
        f"{count} collectives {what}: nobody waits for the others there, and waiting stays part of their measured time"
        for what, count in sorted(lacking.items())
    ]
    return Meetings(met, notes + _apart(window, apart))


def _missing(window: Window, row: int, present: set[int], size: int) -> str:
    text = window.trace.collectives["group_ranks"][row].as_py()
    ranks = json.loads(text) if text else []
    missing = sorted(set(ranks) - present) if isinstance(ranks, list) else []
    who = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
    named = f" (missing: rank {who})" if missing else ""
    return f"of a group of {size} ranks have {len(present)} of them in the trace{named}"


def _apart(window: Window, groups: list[Ints]) -> list[str]:
    """Say how far the clocks of ranks are apart that do not meet."""
    if not groups:
        return []
    work = window.work
    gaps = [int(work.start[rows].max() - work.end[rows].min()) for rows in groups]
    worst = groups[int(np.argmax(gaps))]
    first, last = worst[np.argmin(work.end[worst])], worst[np.argmax(work.start[worst])]
    name = window.index.work.names.text[work.name[first]][:60]
    return [
        f"clocks of ranks disagree: {len(groups)} collectives end on one rank before another begins them, by up to "
        f"{max(gaps) / 1e3:.1f} us (rank {work.rank[first]} before rank {work.rank[last]}, {name}, "
        f"{work.end[first] / 1e6:.3f} ms after the start); nobody waits for the others there"
    ]


def add_meetings(draft: Draft, window: Window, meetings: Meetings, tasks: tuple[Ints, Ints]) -> None:
    """Let every rank's part of a collective start when all ranks have arrived."""
    if not meetings.rows:
        return
    met = np.array([window.work.start[rows].max() for rows in meetings.rows], dtype=np.float64)
    about: Mapping[str, object] = {
        "kind": int(TaskKind.MARK),
        "name": draft.name("all ranks have arrived"),
        "measured_start_ns": met,
        "measured_end_ns": met,
        "iteration": np.array([window.work.iteration[rows].max() for rows in meetings.rows]),
    }
    marks = draft.tasks(len(met), about)
    rows = np.concatenate(meetings.rows)
    mark = np.repeat(marks, [len(part) for part in meetings.rows])
    begin, done = tasks
    draft.edges(NewEdges(begin[rows], mark, 0.0, int(EdgeKind.RENDEZVOUS)))
    draft.edges(NewEdges(mark, done[rows], 0.0, int(EdgeKind.RENDEZVOUS)))


_CLASS = {name: index for index, name in enumerate(CLASSES)}


def add_device(draft: Draft, window: Window, host: HostTasks) -> Ints:
    """Append the device's tasks and all that they wait for; return which task does the work of each row."""
    meetings = find_meetings(window)
    draft.notes.extend(meetings.notes)
    begin, done = _add_tasks(draft, window, meetings.times(window.work.start))
    add_starts(draft, window, host, (begin, done))
    add_meetings(draft, window, meetings, (begin, done))
    return done


def _add_tasks(draft: Draft, window: Window, met: Ints) -> tuple[Ints, Ints]:
    """Append a task for each row, before it one for the arrival of each that meets others; return both.

    What a rank's part of a collective waits for before all have arrived is no part of its duration.
    """
    work = window.work
    meets = met != MISSING
    rows = np.repeat(np.arange(len(work)), 1 + meets)
    arrives = np.zeros(len(rows), dtype=bool)
    arrives[:-1] = rows[1:] == rows[:-1]
    name = draft.named(work.name, window.index.work.names.text)[rows]
    if meets.any():
        name[arrives] = draft.name("arrives")
    start = np.where(meets, met, work.start)[rows]
    lane, device = _places(draft, window)
    about = {
        name: np.where(arrives, default, values[rows]) for name, (values, default) in _about(draft, window).items()
    }
    numbers = draft.tasks(
        len(rows),
        {
            **about,
            "name": name,
            "lane": lane[rows],
            "device": device[rows],
            "measured_start_ns": np.where(arrives, work.start[rows], start),
            "measured_end_ns": np.where(arrives, work.start[rows], work.end[rows]),
            "iteration": work.iteration[rows],
            "event": work.id[rows],
        },
    )
    done = numbers[~arrives]
    begin = done.copy()
    begin[meets] = numbers[arrives]
    return begin, done


def _about(draft: Draft, window: Window) -> dict[str, tuple[Ints, int]]:
    """Return the columns that say what each row is, and what an arrival has in their place."""
    work, table = window.work, window.trace.collectives
    place = window.index.collectives.find(work.collective)
    is_collective = work.collective != MISSING
    kind = np.where(
        work.is_copy, int(TaskKind.COPY), np.where(is_collective, int(TaskKind.COLLECTIVE), int(TaskKind.KERNEL))
    )
    of_name = np.array([_CLASS[name] for name in window.index.work.names.class_], dtype=np.int64)
    size, ranks = np.zeros(len(work), dtype=np.int64), np.zeros(len(work), dtype=np.int64)
    if is_collective.any():
        found_at = place != MISSING
        of_rows = table.select(["bytes", "group_size"]).take(place[found_at])
        size[found_at], ranks[found_at] = integers(of_rows, "bytes"), integers(of_rows, "group_size")
    operator = np.full(len(work), -1)
    for row, found in window_operators(window).items():
        operator[row] = draft.operator(found)
    return {
        "kind": (kind, int(TaskKind.MARK)),
        "class_": (np.where(work.is_copy, -1, of_name[work.name]), -1),
        "workgroups": (np.maximum(work.workgroups, 0), 0),
        "bytes": (np.maximum(np.where(is_collective, size, work.bytes), 0).astype(np.int64), 0),
        "dtype": (window_dtypes(window), -1),
        "collective": (np.where(is_collective, _collective_kinds(window, place), -1), -1),
        "operator": (operator, -1),
        "ranks": (np.maximum(ranks, 0), 0),
    }


def _collective_kinds(window: Window, place: Ints) -> Ints:
    """Return the index into `COLLECTIVE_KINDS` of the collective at each place; unknown where there is none."""
    other = COLLECTIVE_KINDS.index("unknown")
    result = np.full(len(place), other)
    known = np.flatnonzero(place != MISSING)
    if not len(known):
        return result
    names = strings(window.trace.collectives.select(["collective"]).take(place[known]), "collective")
    result[known] = [COLLECTIVE_KINDS.index(name) if name in COLLECTIVE_KINDS else other for name in names]
    return result


def _places(draft: Draft, window: Window) -> tuple[Ints, Ints]:
    """Return the lane and the device of each row."""
    work = window.work
    first = work.queue_starts()
    heads = np.flatnonzero(first)
    columns = (work.rank[heads], work.device[heads], work.stream[heads])
    places = [draft.lane(Lane(*place)) for place in zip(*(c.tolist() for c in columns), strict=True)]
    both = np.array(places, dtype=np.int64).reshape(-1, 2)[np.cumsum(first) - 1]
    return both[:, 0], both[:, 1]


def build_graph(
    trace: Trace | TraceIndex,
    iterations: int | Sequence[int],
    hardware: Hardware | None = None,
    *,
    parameters: Parameters,
) -> KernelGraph:
    """Return the graph of one iteration, or of consecutive ones, on all their ranks.

    Host calls are ordered on their threads, kernels and copies on their streams, also from one iteration to the next;
    launches, event waits, synchronisations and collectives join them. Device work of earlier iterations that still
    runs when the first one starts is part of the graph but of none of its iterations. Durations are isolated:
    contention that was measured is taken out, so that replaying the graph puts it back.

    Parameters
    ----------
    trace : Trace or TraceIndex
        The index of a trace, where several graphs are built from it.
    iterations : int or sequence of int
        Consecutive numbers, in order.
    hardware : Hardware, optional
        What the devices are, where the trace does not say.
    parameters : Parameters
        Contention model by which measured durations are isolated.

    Raises
    ------
    InvalidInputError
        The trace lacks one of the iterations, or none is named.
    """
    numbers = (iterations,) if isinstance(iterations, int) else tuple(iterations)
    if not numbers:
        raise InvalidInputError("a graph needs at least one iteration")
    index = trace if isinstance(trace, TraceIndex) else index_trace(trace)
    window = open_window(index, numbers)
    draft = Draft(notes=clock_notes(window))
    host = add_host(draft, window)
    device = add_device(draft, window, host)
    add_returns(draft, window, host, device)
    graph = draft.freeze(hardware or index.hardware, numbers)
    origin = Basis.ASSUMED if index.trace.meta.synthetic else Basis.MEASURED
    return isolate(replace(graph, origin=origin), parameters)
