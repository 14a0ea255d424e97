"""The pace of a steady state: which resources limit the time of a step, and how much slack the others have."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from replay.analysis.critical_path import PATH_CAUSES, CriticalPath, Part, critical_path, path_causes
from replay.engine.steady import Slack, SteadyState
from replay.from_trace.index import LOADER_PREFIX
from replay.graph.graph import TaskKind

#: Causes of the time on a critical path by the resource that limits it there.
_CAUSES_OF_RESOURCE: Mapping[str, tuple[str, ...]] = {
    "host": ("host", "launch lag", "sync lag", "gap for the host"),
    "loader": ("loader",),
    "device": (
        *("kernel", "contention", "launch queue", "stream lag", "wait lag", "inferred wait lag"),
        *("gap in a graph", "ready"),
    ),
    "communication": ("collective", "rendezvous lag"),
    "copies": ("copy",),
    "unexplained": ("backlog", "release"),
}
#: What can set the pace, in the order of tables.
PACE_RESOURCES: tuple[str, ...] = tuple(_CAUSES_OF_RESOURCE)


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
    slack : Slack
        How much slower hosts and devices could be, and the most that making them faster could gain. The gain is less
        than the time on the critical path if another path is nearly as long.
    """

    step_ns: float
    by_resource: Mapping[str, float]
    by_rank: Mapping[int, float]
    by_iteration: Mapping[int, float]
    slack: Slack


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
    resources = resources_of(path)
    by_resource = {
        name: float(path.ns[resources == i].sum()) for i, name in enumerate(PACE_RESOURCES) if (resources == i).any()
    }
    return Pace(
        line.span_ns,
        by_resource,
        _sum_by_key(graph.ranks()[path.task], path.ns),
        _sum_by_key(graph.tasks.iteration[path.task] - iteration, path.ns),
        state.slack,
    )


def _sum_by_key(key: npt.NDArray[np.int64], ns: npt.NDArray[np.float64]) -> dict[int, float]:
    return {int(k): float(ns[key == k].sum()) for k in np.unique(key)}


def resources_of(path: CriticalPath) -> npt.NDArray[np.int64]:
    """Return the resource of every piece of a path, as an index into `PACE_RESOURCES`."""
    resource = {cause: i for i, causes in enumerate(_CAUSES_OF_RESOURCE.values()) for cause in causes}
    of_cause = np.array([resource[cause] for cause in PATH_CAUSES])
    resources = of_cause[path_causes(path)]
    tasks, names = path.timeline.graph.tasks, path.timeline.graph.names
    has_prefix = np.array([name.startswith(LOADER_PREFIX) for name in names], dtype=bool)
    is_loader = has_prefix[tasks.name] & (tasks.kind == TaskKind.HOST)
    is_work = (path.part == Part.WORK) | (path.part == Part.CONTENTION)
    return np.asarray(np.where(is_work & is_loader[path.task], PACE_RESOURCES.index("loader"), resources))
