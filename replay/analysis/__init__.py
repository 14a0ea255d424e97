"""What a timeline shows: critical path, exposed communication, idle time, the pace of a step, and differences.

Read `critical_path` first, which most other modules use.
"""

from replay.analysis.critical_path import Attribution, CriticalPath, Part, attribution, critical_path
from replay.analysis.idle import (
    IDLE_CAUSES,
    PACE_RESOURCES,
    Exposure,
    Idle,
    Pace,
    ResourceUse,
    exposure,
    idle_by_cause,
    pace,
    resource_use,
)
from replay.analysis.tasks import ChosenTasks, Difference, chosen_tasks, difference

__all__ = [
    "IDLE_CAUSES",
    "PACE_RESOURCES",
    "Attribution",
    "ChosenTasks",
    "CriticalPath",
    "Difference",
    "Exposure",
    "Idle",
    "Pace",
    "Part",
    "ResourceUse",
    "attribution",
    "chosen_tasks",
    "critical_path",
    "difference",
    "exposure",
    "idle_by_cause",
    "pace",
    "resource_use",
]
