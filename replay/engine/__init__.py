"""The discrete-event engine.

Read `timeline` first: what a replay returns. Then `sharing`: how the tasks that run side by side on a device share its
compute units and bandwidth. `engine` is the loop over events, `layout` the arrays that sharing works on. `steady`
repeats a graph until its period settles.
"""

from replay.engine.engine import simulate
from replay.engine.steady import Pattern, SteadyState, cycle_of, repeated, steady_states
from replay.engine.timeline import Timeline, replay

__all__ = [
    "Pattern",
    "SteadyState",
    "Timeline",
    "cycle_of",
    "repeated",
    "replay",
    "simulate",
    "steady_states",
]
