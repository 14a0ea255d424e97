"""Collectives across ranks: who takes part, who is missing, and the meeting that all wait for."""

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from profilers.arrays import MISSING, integers
from replay.build.draft import Draft, NewEdges
from replay.build.window import Window
from replay.graph import EdgeKind, TaskKind

__all__ = ["Meetings", "add_meetings", "find_meetings"]

Ints = npt.NDArray[np.int64]


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
