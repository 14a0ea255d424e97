"""How long collectives take, by algorithm and topology: fitted where measured, carried over where not."""

from replay.costs.collectives.algorithms import (
    FABRICS,
    KINDS,
    NETWORKS,
    Topology,
    algorithms_of,
    fastest,
    links_of,
    phases_of,
    usual_topology,
)
from replay.costs.collectives.fits import (
    LIBRARIES,
    CollectiveCalibration,
    load_collectives,
    read_collective_calibration,
    write_collective_calibration,
)
from replay.costs.collectives.measurements import MeasuredCollectives, System, load_systems, read_collectives
from replay.costs.collectives.predictor import (
    calibrate_collectives,
    has_few_sizes,
    left_out_seconds,
    pooled_groups,
    predict_collective,
    scored_alone,
    scored_rows,
)

__all__ = [
    "FABRICS",
    "KINDS",
    "LIBRARIES",
    "NETWORKS",
    "CollectiveCalibration",
    "MeasuredCollectives",
    "System",
    "Topology",
    "algorithms_of",
    "calibrate_collectives",
    "fastest",
    "has_few_sizes",
    "left_out_seconds",
    "links_of",
    "load_collectives",
    "load_systems",
    "phases_of",
    "pooled_groups",
    "predict_collective",
    "read_collective_calibration",
    "read_collectives",
    "scored_alone",
    "scored_rows",
    "usual_topology",
    "write_collective_calibration",
]
