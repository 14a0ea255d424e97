"""The discrete-event engine.

Read `timeline` first: what a replay returns. Then `engine`, the loop over events, and `sharing`: how the tasks that run
side by side on a device share its compute units and bandwidth. `layout` has the arrays that sharing works on, with a
sentence on each. `steady` repeats a graph until its period settles. tests/reference_engine.py is a slow second version
of the main rules, which is easier to read.
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
