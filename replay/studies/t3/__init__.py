"""T3 (arXiv 2401.16677): chunks of a product are reduced near memory and sent on while the product still runs."""

from replay.studies.t3.ring import SubLayer, System, find_sublayer, load_workload
from replay.studies.t3.study import Outcome, study

__all__ = [
    "Outcome",
    "SubLayer",
    "System",
    "find_sublayer",
    "load_workload",
    "study",
]
