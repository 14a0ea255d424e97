"""What tasks cost a step: those of a choice (`chosen_tasks`), and all of two timelines by label (`difference`)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from profilers.trace.arrays import Floats, Ints
from replay.analysis.critical_path import (
    LABELS,
    Attribution,
    CriticalPath,
    Part,
    attribution,
    critical_path,
    task_labels,
)
from replay.analysis.idle import cover
from replay.engine.timeline import Timeline
from replay.graph.choice import TaskChoice
from replay.graph.graph import TaskKind

_KINDS = tuple(kind.name.lower() for kind in TaskKind)


@dataclass(frozen=True)
class DifferenceRow:
    """Tasks of one label, before and after.

    Parameters
    ----------
    label : str
        Class of kernel, kind of task, or name of a stream or thread.
    before_ns, after_ns : float
        Sum of the tasks' times; of a collective with its wait for other ranks.
    before_count, after_count : int
        Number of tasks.
    before_exposed_ns, after_exposed_ns : float
        Time during which only tasks of this label are active on a device, summed over devices; zero on the host.
    """

    label: str
    before_ns: float
    after_ns: float
    before_count: int
    after_count: int
    before_exposed_ns: float
    after_exposed_ns: float

    @property
    def change_ns(self) -> float:
        """After less before."""
        return self.after_ns - self.before_ns


@dataclass(frozen=True)
class Difference:
    """Difference of two timelines of the same work.

    Parameters
    ----------
    before_ns, after_ns : float
        Lengths of the timelines' intervals.
    by_class, by_kind, by_lane : tuple of DifferenceRow
        Tasks by class of kernel, by kind of task, and by stream or thread; the largest change first.
    path_by_cause, path_by_class : mapping of str to float
        Change of the time on the critical path by cause and by class, in ns. The values of each add up to the change
        of the interval's length.
    """

    before_ns: float
    after_ns: float
    by_class: tuple[DifferenceRow, ...]
    by_kind: tuple[DifferenceRow, ...]
    by_lane: tuple[DifferenceRow, ...]
    path_by_cause: dict[str, float]
    path_by_class: dict[str, float]


def difference(before: Timeline, after: Timeline) -> Difference:
    """Return the difference between two timelines.

    They need not have the same tasks: tasks are compared by class of kernel, by kind, and by the name of their stream
    or thread.
    """
    paths = [attribution(critical_path(line)) for line in (before, after)]
    return Difference(
        before.span_ns,
        after.span_ns,
        _rows(before, after, LABELS, [task_labels(line.graph) for line in (before, after)]),
        _rows(before, after, _KINDS, [line.graph.tasks.kind for line in (before, after)]),
        _by_lane(before, after),
        _changes(paths, "by_cause"),
        _changes(paths, "by_class"),
    )


def _by_lane(before: Timeline, after: Timeline) -> tuple[DifferenceRow, ...]:
    lanes = tuple(dict.fromkeys((*before.graph.lanes, *after.graph.lanes)))
    number = {lane: i for i, lane in enumerate(lanes)}
    labels = []
    for line in (before, after):
        numbers = np.array([*(number[lane] for lane in line.graph.lanes), -1], dtype=np.int64)
        labels.append(numbers[line.graph.tasks.lane])
    return _rows(before, after, tuple(lane.label for lane in lanes), labels)


def _rows(before: Timeline, after: Timeline, names: Sequence[str], labels: list[Ints]) -> tuple[DifferenceRow, ...]:
    """Return a row for each label that has tasks in either timeline, the largest change first."""
    sides = [_totals(line, label, len(names)) for line, label in zip((before, after), labels, strict=True)]
    rows = [
        DifferenceRow(names[i], *(column[i].item() for pair in zip(*sides, strict=True) for column in pair))
        for i in np.flatnonzero(sides[0][1] + sides[1][1]).tolist()
    ]
    return tuple(sorted(rows, key=lambda row: (-abs(row.change_ns), row.label)))


def _totals(line: Timeline, label: Ints, labels: int) -> tuple[Floats, Ints, Floats]:
    """Return time, count and exposed time by label, for the iterations' tasks in the interval."""
    tasks = line.graph.tasks
    line = replace(line, start_ns=line.on_device_since()[0])
    inside = (line.end_ns >= line.begin_ns) & (line.start_ns <= line.until_ns)
    line = line.clipped()
    rows = np.flatnonzero(tasks.in_iteration & inside & (tasks.kind != TaskKind.MARK) & (label >= 0))
    time = np.bincount(label[rows], weights=(line.end_ns - line.start_ns)[rows], minlength=labels)
    count = np.bincount(label[rows], minlength=labels).astype(np.int64)
    exposed = cover(line, line.graph.on_device() & (label >= 0), label, labels)[1]
    return time.astype(np.float64), count, np.asarray(exposed.sum(axis=0))


def _changes(paths: list[Attribution], by: str) -> dict[str, float]:
    """Return after less before for every label of either path, the largest change first."""
    before, after = (dict(getattr(path, by)) for path in paths)
    change = {name: after.get(name, 0.0) - before.get(name, 0.0) for name in dict.fromkeys((*before, *after))}
    return dict(sorted(change.items(), key=lambda item: (-abs(item[1]), item[0])))


#: Figures of a device, by their keys in JSON.
DEVICE_KEYS = ("count", "time_ns", "waiting_ns", "active_ns", "exposed_ns", "path_ns")


@dataclass(frozen=True)
class ChosenTasks:
    """Chosen tasks of a timeline; arrays have one row a device, times in ns.

    Parameters
    ----------
    text : str
        The choice as it was written.
    devices : sequence of (rank, device)
        The graph's devices.
    count : array of int64
        Number of tasks that end in the timeline's interval.
    time_ns : array of float64
        Their time on the device in the interval, summed over tasks. A collective counts from the arrival of its rank.
    waiting_ns : array of float64
        The part of that time in which collectives wait for other ranks.
    active_ns : array of float64
        Time during which at least one of them is on the device.
    exposed_ns : array of float64
        Time during which nothing else is on the device.
    path_ns : array of float64
        Time of the critical path that is their work, contention included.
    span_ns : float
        Length of the critical path.
    by_name : mapping of str to (int, float)
        Number and time by name of task, the longest first. Names are untrusted text.
    """

    text: str
    devices: tuple[tuple[int, int], ...]
    count: Ints
    time_ns: Floats
    waiting_ns: Floats
    active_ns: Floats
    exposed_ns: Floats
    path_ns: Floats
    span_ns: float
    by_name: dict[str, tuple[int, float]]

    def to_dict(self) -> dict[str, Any]:
        """Return the sums over devices, each device, and each name, as JSON with stable keys."""
        devices = [
            {"rank": rank, "device": device, **{key: getattr(self, key)[i].item() for key in DEVICE_KEYS}}
            for i, (rank, device) in enumerate(self.devices)
        ]
        names = [{"name": name, "count": count, "time_ns": ns} for name, (count, ns) in self.by_name.items()]
        sums = {key: getattr(self, key).sum().item() for key in DEVICE_KEYS}
        return {"tasks": self.text, **sums, "path_share": self.path_share, "devices": devices, "by_name": names}

    @property
    def path_share(self) -> float:
        """Share of the critical path that is work of the chosen tasks."""
        return float(self.path_ns.sum()) / self.span_ns if self.span_ns else 0.0


def chosen_tasks(path: CriticalPath, choice: TaskChoice) -> ChosenTasks:
    """Return what the chosen tasks cost in the interval of a timeline.

    Parameters
    ----------
    path : CriticalPath
        Critical path of the timeline.
    choice : TaskChoice
        The choice.
    """
    timeline = path.timeline
    graph, tasks = timeline.graph, timeline.graph.tasks
    rows, devices = choice.rows(graph), len(graph.devices)
    since = replace(timeline, start_ns=timeline.on_device_since()[0]).clipped()
    time_ns, working = since.end_ns - since.start_ns, timeline.clipped()
    waiting_ns = time_ns - (working.end_ns - working.start_ns)
    ends_inside = rows & (timeline.end_ns > timeline.begin_ns) & (timeline.end_ns <= timeline.until_ns)
    label = rows.astype(np.int64)
    active, alone, _ = cover(since, graph.on_device(), label, 2)
    is_work = np.isin(path.part, (Part.WORK, Part.CONTENTION)) & rows[path.task]
    names: Ints = np.unique(tasks.name[rows & (time_ns > 0)])
    count_of = np.bincount(tasks.name[ends_inside], minlength=len(graph.names))
    time_of = np.bincount(tasks.name[rows], weights=time_ns[rows], minlength=len(graph.names))
    by_name = {graph.names[name]: (int(count_of[name]), float(time_of[name])) for name in names.tolist()}

    def by_device(of: Ints, weights: Floats) -> Floats:
        return np.bincount(of, weights=weights, minlength=devices).astype(np.float64)

    return ChosenTasks(
        choice.text,
        graph.devices,
        np.bincount(tasks.device[ends_inside], minlength=devices).astype(np.int64),
        by_device(tasks.device[rows], time_ns[rows]),
        by_device(tasks.device[rows], waiting_ns[rows]),
        active[:, 1],
        alone[:, 1],
        by_device(tasks.device[path.task[is_work]], path.ns[is_work]),
        float(path.ns.sum()),
        dict(sorted(by_name.items(), key=lambda item: (-item[1][1], item[0]))),
    )
