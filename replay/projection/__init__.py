"""Speed-ups of what-ifs, with intervals and provenance."""

from replay.projection.projection import Projection, ProjectionOptions, ProjectionRow, StepWindow, project

__all__ = ["Projection", "ProjectionOptions", "ProjectionRow", "StepWindow", "project"]
