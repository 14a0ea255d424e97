"""T3 (arXiv 2401.16677): chunks of a product are reduced near memory and sent on while the product still runs."""

from replay.overlap.t3.chunk_lanes import lanes
from replay.overlap.t3.outcome import MOVEMENTS, Outcome, Run, study
from replay.overlap.t3.tracker import tiles_per_entry, tracked_tiles
from replay.overlap.t3.workload import SubLayer, System, Workload, find_sublayer, load_workload

__all__ = [
    "MOVEMENTS",
    "Outcome",
    "Run",
    "SubLayer",
    "System",
    "Workload",
    "find_sublayer",
    "lanes",
    "load_workload",
    "study",
    "tiles_per_entry",
    "tracked_tiles",
]
