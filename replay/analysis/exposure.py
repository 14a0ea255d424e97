"""How much of the communication and of the copies hides behind compute, per device."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from replay.analysis.cover import cover, sweep_of
from replay.graph import TaskKind
from replay.timeline import Timeline

__all__ = ["Exposure", "exposure"]

Floats = npt.NDArray[np.float64]

_COMPUTE, _COMMUNICATION, _COPY = range(3)


@dataclass(frozen=True)
class Exposure:
    """Times of the iterations' own work in ns, one a device, each moment of the timeline's interval counted once.

    Parameters
    ----------
    devices : sequence of (rank, device)
    span_ns : array of float64
        From the start of the first task to the end of the last.
    busy_ns : array of float64
        While any task is active.
    compute_ns, communication_ns, copy_ns : array of float64
        While a kernel, a collective, a copy is active.
    exposed_ns : array of float64
        While collectives are active and nothing else is.
    beside_compute_ns : array of float64
        While a collective and a kernel are both active.
    exposed_copy_ns : array of float64
        While copies are active and nothing else is.
    """

    devices: tuple[tuple[int, int], ...]
    span_ns: Floats
    busy_ns: Floats
    compute_ns: Floats
    communication_ns: Floats
    copy_ns: Floats
    exposed_ns: Floats
    beside_compute_ns: Floats
    exposed_copy_ns: Floats

    @property
    def hidden_ns(self) -> Floats:
        """While a collective and something else are both active."""
        return self.communication_ns - self.exposed_ns


def exposure(timeline: Timeline) -> Exposure:
    """Return what hides behind what on each device.

    A collective of several ranks is active from when all have arrived; the wait before that is idle time of the ranks
    that came early (`replay.analysis.idle`).

    Parameters
    ----------
    timeline : Timeline

    Returns
    -------
    Exposure
    """
    graph, timeline = timeline.graph, timeline.clipped()
    tasks = graph.tasks
    sweep = sweep_of(timeline, graph.on_device() & tasks.own)
    label = np.full(len(tasks), _COMPUTE)
    label[tasks.kind == TaskKind.COLLECTIVE] = _COMMUNICATION
    label[tasks.kind == TaskKind.COPY] = _COPY
    found = cover(sweep, label, 3)
    active, alone = found.active.T, found.alone.T
    first, last = np.full(len(graph.devices), np.inf), np.full(len(graph.devices), -np.inf)
    np.minimum.at(first, tasks.device[sweep.by_start], timeline.start_ns[sweep.by_start])
    np.maximum.at(last, tasks.device[sweep.by_end], timeline.end_ns[sweep.by_end])
    return Exposure(
        graph.devices,
        np.where(last > first, last - first, 0.0),
        found.busy,
        active[_COMPUTE],
        active[_COMMUNICATION],
        active[_COPY],
        alone[_COMMUNICATION],
        active[_COMPUTE] + active[_COMMUNICATION] - (found.busy - alone[_COPY]),
        alone[_COPY],
    )
