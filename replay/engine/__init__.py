"""The discrete-event engine.

Read `timeline` first (what a replay returns), then `engine` (the loop over events) and `sharing` (how tasks that run
side by side share compute units and bandwidth). `layout` is how tasks lie in memory. `steady` repeats a graph until its
period settles.
"""

from replay.engine.engine import simulate
from replay.engine.steady import Pattern, SteadyState, pattern_of, repeated, steady_states
from replay.engine.timeline import Timeline, measured_timeline, replay

__all__ = [
    "Pattern",
    "SteadyState",
    "Timeline",
    "measured_timeline",
    "pattern_of",
    "repeated",
    "replay",
    "simulate",
    "steady_states",
]
