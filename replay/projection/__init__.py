"""Speed-ups of what-ifs, with intervals and provenance.

Read `projection` first. `rows` holds what it says of a what-if, `evidence` finds how a projected
time is known. `sweep` runs the draws of parameters in threads, `provenance` records what numbers rest on.
"""

from replay.projection.evidence import EVIDENCE, SIDES, Evidence
from replay.projection.projection import Projection, ProjectionOptions, project
from replay.projection.rows import ProjectionRow
from replay.projection.windows import StepWindow

__all__ = ["EVIDENCE", "SIDES", "Evidence", "Projection", "ProjectionOptions", "ProjectionRow", "StepWindow", "project"]
