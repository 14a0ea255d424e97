"""Relative re-timing: a traced duration times the ratio of what models say of two devices or data types."""

from replay.retiming.capability import Capability, capability
from replay.retiming.modelled import modelled_seconds
from replay.retiming.tasks import above_floor, retimed, retyped

__all__ = ["Capability", "above_floor", "capability", "modelled_seconds", "retimed", "retyped"]
