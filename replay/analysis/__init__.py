"""What a timeline shows: critical path, exposed communication, idle time, pace of a step, stragglers, differences.

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
from replay.analysis.stragglers import (
    OperationBalance,
    Straggler,
    StragglerRun,
    Stragglers,
    TraceBalance,
    attribute_stragglers,
    operation_stragglers,
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
    "OperationBalance",
    "Pace",
    "Part",
    "ResourceUse",
    "Straggler",
    "StragglerRun",
    "Stragglers",
    "TraceBalance",
    "attribute_stragglers",
    "attribution",
    "chosen_tasks",
    "critical_path",
    "difference",
    "exposure",
    "idle_by_cause",
    "operation_stragglers",
    "pace",
    "resource_use",
]
