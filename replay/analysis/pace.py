"""The pace of a steady state: which resources limit the time of a step, and how much room the others have."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from replay.analysis.critical_path import PATH_CAUSES, CriticalPath, Part, critical_path, path_causes
from replay.engine.steady import SETTLED, SteadyState, room, without
from replay.from_trace.index import LOADER_PREFIX
from replay.graph.graph import KernelGraph, TaskKind

#: What can set the pace, in the order of tables.
PACE_RESOURCES: tuple[str, ...] = ("host", "loader", "device", "communication", "copies", "unexplained")
#: Resources that a slower host makes longer, and resources that a slower device makes longer.
_HOST_AND_DEVICE = (("host",), ("device", "communication", "copies"))
_RESOURCE_OF_CAUSE: Mapping[str, str] = MappingProxyType(
    {
        "kernel": "device",
        "contention": "device",
        "collective": "communication",
        "copy": "copies",
        "host": "host",
        "launch lag": "host",
        "launch queue": "device",
        "loader": "loader",
        "stream lag": "device",
        "wait lag": "device",
        "inferred wait lag": "device",
        "sync lag": "host",
        "rendezvous lag": "communication",
        "gap for the host": "host",
        "backlog": "unexplained",
        "gap in a graph": "device",
        "ready": "device",
        "release": "unexplained",
    }
)


@dataclass(frozen=True)
class Pace:
    """What limits a step, from one completion to the next.

    Parameters
    ----------
    step_ns : float
        The step time.
    by_resource : mapping of str to float
        Time on the critical path of the step by `PACE_RESOURCES`, in ns. The values add up to the step time. Making a
        resource faster shortens the step by its time on the path at most.
    by_rank : mapping of int to float
        Time on the critical path by rank; -1 for meetings of ranks.
    by_iteration : mapping of int to float
        Time on the critical path by iteration: 0 for the step's own, 1 for the next, -1 for the one before.
    host_room, device_room : float
        Share by which hosts, or devices, could become slower without making the step longer; up to 3. Zero if they are
        on the critical path.
    host_bound, device_bound : float
        How many times as fast a cycle would be if hosts, or devices, took no time: the most that can be gained there.
        It is below the time on the critical path if another path is nearly as long.
    """

    step_ns: float
    by_resource: Mapping[str, float]
    by_rank: Mapping[int, float]
    by_iteration: Mapping[int, float]
    host_room: float
    device_room: float
    host_bound: float
    device_bound: float


def pace(state: SteadyState, position: int = 0) -> Pace:
    """Return the pace of one step of a steady state.

    Parameters
    ----------
    state : SteadyState
        Steady state of a window.
    position : int
        Position of the step in the cycle, from 0.
    """
    line = state.at_step(position)
    path = critical_path(line)
    graph = line.graph
    iteration = int(np.searchsorted(line.completions_ns(), line.until_ns)) if state.repeats else 0
    ranks = np.array([*(lane.rank for lane in graph.lanes), -1], dtype=np.int64)
    resources = resources_of(path)
    by_resource = {
        name: float(path.ns[resources == i].sum()) for i, name in enumerate(PACE_RESOURCES) if (resources == i).any()
    }
    on_host, on_device = (
        any(by_resource.get(n, 0.0) > SETTLED * line.span_ns for n in names) for names in _HOST_AND_DEVICE
    )
    return Pace(
        line.span_ns,
        by_resource,
        _sum_by_key(ranks[graph.tasks.lane[path.task]], path.ns),
        _sum_by_key(graph.tasks.iteration[path.task] - iteration, path.ns),
        0.0 if on_host else room(state, on_device=False),
        0.0 if on_device else room(state, on_device=True),
        *(state.period_ns / max(without(state, on_device=side), 1.0) for side in (False, True)),
    )


def _sum_by_key(key: npt.NDArray[np.int64], ns: npt.NDArray[np.float64]) -> dict[int, float]:
    return {int(k): float(ns[key == k].sum()) for k in np.unique(key)}


def resources_of(path: CriticalPath) -> npt.NDArray[np.int64]:
    """Return the resource of every piece of a path, as an index into `PACE_RESOURCES`."""
    of_cause = np.array([PACE_RESOURCES.index(_RESOURCE_OF_CAUSE[cause]) for cause in PATH_CAUSES])
    resources = of_cause[path_causes(path)]
    is_loader = _is_loader(path.timeline.graph)
    is_work = (path.part == Part.WORK) | (path.part == Part.CONTENTION)
    return np.asarray(np.where(is_work & is_loader[path.task], PACE_RESOURCES.index("loader"), resources))


def _is_loader(graph: KernelGraph) -> npt.NDArray[np.bool_]:
    """Return the tasks of the input pipeline."""
    has_prefix = np.array([name.startswith(LOADER_PREFIX) for name in graph.names], dtype=bool)
    return np.asarray(has_prefix[graph.tasks.name] & (graph.tasks.kind == TaskKind.HOST))
