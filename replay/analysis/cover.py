"""How long tasks of a label are active, and how long they alone, per device: one sweep over a timeline."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from profilers.compiled import compiled
from replay.timeline import Timeline

__all__ = ["Cover", "Sweep", "cover", "sweep_of"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Sweep:
    """Tasks in the order in which they start, and in which they end."""

    timeline: Timeline
    by_start: Ints
    by_end: Ints


@dataclass(frozen=True)
class Cover:
    """Times in ns, each moment counted once.

    Parameters
    ----------
    active : array, shape (devices, labels)
        While at least one task of the label is active.
    alone : array, shape (devices, labels)
        While tasks of the label are active, and none of another.
    busy : array, shape (devices,)
        While any task is active.
    """

    active: Floats
    alone: Floats
    busy: Floats


def sweep_of(timeline: Timeline, rows: npt.NDArray[np.bool_]) -> Sweep:
    """Return the tasks in `rows` that take time, in the orders that a sweep needs."""
    chosen = np.flatnonzero(rows & (timeline.end_ns > timeline.start_ns))
    start, end = timeline.start_ns[chosen], timeline.end_ns[chosen]
    return Sweep(timeline, chosen[np.argsort(start, kind="stable")], chosen[np.argsort(end, kind="stable")])


def cover(sweep: Sweep, label: Ints, labels: int) -> Cover:
    """Return how long each label covers each device.

    Parameters
    ----------
    sweep : Sweep
        Of tasks on devices.
    label : array of int64, one a task of the graph
    labels : int
        How many there are.
    """
    line = sweep.timeline
    devices = len(line.graph.devices)
    orders = (sweep.by_start, sweep.by_end, line.start_ns, line.end_ns)
    return Cover(*_cover(orders, line.graph.tasks.device, label, devices, labels))


@compiled
def _cover(orders, device, label, devices, labels):  # type: ignore[no-untyped-def]
    by_start, by_end, start, end = orders
    active, alone = np.zeros((devices, labels)), np.zeros((devices, labels))
    busy, before = np.zeros(devices), np.zeros(devices)
    count = np.zeros((devices, labels), np.int64)
    since = np.zeros((devices, labels))
    # Of the labels that are active on a device: how many, and the sum of their numbers, which of one is the label.
    many, total = np.zeros(devices, np.int64), np.zeros(devices, np.int64)
    i = 0
    for j in range(len(by_end)):
        while i < len(by_start) and start[by_start[i]] < end[by_end[j]]:
            task = by_start[i]
            d, k, now = device[task], label[task], start[task]
            if many[d] == 1:
                alone[d, total[d]] += now - before[d]
            if many[d] > 0:
                busy[d] += now - before[d]
            before[d] = now
            if count[d, k] == 0:
                many[d] += 1
                total[d] += k
                since[d, k] = now
            count[d, k] += 1
            i += 1
        task = by_end[j]
        d, k, now = device[task], label[task], end[task]
        if many[d] == 1:
            alone[d, total[d]] += now - before[d]
        busy[d] += now - before[d]
        before[d] = now
        count[d, k] -= 1
        if count[d, k] == 0:
            many[d] -= 1
            total[d] -= k
            active[d, k] += now - since[d, k]
    return active, alone, busy
