"""`chosen_tasks`: what a choice of tasks costs a step: number, time, exposed time, and time on the critical path."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from profilers.trace.arrays import Floats, Ints
from replay.analysis.critical_path import CriticalPath, Part
from replay.analysis.idle import cover
from replay.graph.choice import TaskChoice

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
