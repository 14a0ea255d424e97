"""The device's side: streams in order, launches, waits between streams, collectives across ranks."""

import numpy as np
import numpy.typing as npt

from profilers.arrays import MISSING, integers, strings
from profilers.kernels import CLASSES
from replay.build.draft import Draft
from replay.build.dtypes import window_dtypes
from replay.build.host import HostTasks
from replay.build.operators import window_operators
from replay.build.rendezvous import add_meetings, find_meetings
from replay.build.starts import add_starts
from replay.build.window import Window
from replay.graph import COLLECTIVE_KINDS, Lane, TaskKind

__all__ = ["add_device"]

Ints = npt.NDArray[np.int64]
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
