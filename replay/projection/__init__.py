"""Speed-ups of what-ifs, with intervals and provenance.

Read `projection` first. `sweep` runs the draws of parameters in threads, `provenance` records what numbers rest on.
"""

from replay.projection.projection import Projection, ProjectionOptions, ProjectionRow, StepWindow, project

__all__ = ["Projection", "ProjectionOptions", "ProjectionRow", "StepWindow", "project"]
