"""The discrete-event engine.

Read `timeline` first: what a replay returns. Then `sharing`: how the tasks that run side by side on a device share its
compute units and bandwidth. `engine` is the loop over events, `layout` the arrays that sharing works on. `steady`
repeats a graph until its period settles.
"""

from replay.engine.engine import simulate
from replay.engine.steady import SteadyState, StepPattern, cycle_of, repeated, steady_states
from replay.engine.timeline import Timeline, replay

__all__ = [
    "SteadyState",
    "StepPattern",
    "Timeline",
    "cycle_of",
    "repeated",
    "replay",
    "simulate",
    "steady_states",
]
