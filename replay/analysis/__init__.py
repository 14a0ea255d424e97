"""What a timeline says: its critical path, what hides behind what, why devices idle, how two timelines differ."""

from replay.analysis.attribution import Attribution, attribution
from replay.analysis.critical_path import CriticalPath, Part, critical_path
from replay.analysis.difference import Difference, difference
from replay.analysis.exposure import Exposure, exposure
from replay.analysis.idle import IDLE_CAUSES, Idle, idle_by_cause
from replay.analysis.pace import PACE_RESOURCES, Pace, pace
from replay.analysis.slack import slack_ns
from replay.analysis.usage import ResourceUse, resource_steps, resource_use

__all__ = [
    "IDLE_CAUSES",
    "PACE_RESOURCES",
    "Attribution",
    "CriticalPath",
    "Difference",
    "Exposure",
    "Idle",
    "Pace",
    "Part",
    "ResourceUse",
    "attribution",
    "critical_path",
    "difference",
    "exposure",
    "idle_by_cause",
    "pace",
    "resource_steps",
    "resource_use",
    "slack_ns",
]
