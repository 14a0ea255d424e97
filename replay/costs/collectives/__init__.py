"""How long collectives take, by algorithm and topology: fitted where measured, carried over where not."""

from replay.costs.collectives.algorithms import FABRICS, KINDS, Topology, algorithms_of, fastest, machine_of, phases_of
from replay.costs.collectives.fits import (
    CollectiveCalibration,
    load_collectives,
    read_collective_calibration,
    write_collective_calibration,
)
from replay.costs.collectives.measurements import MeasuredCollectives, read_collectives
from replay.costs.collectives.predictor import calibrate_collectives, predict_collective, scored_rows

__all__ = [
    "FABRICS",
    "KINDS",
    "CollectiveCalibration",
    "MeasuredCollectives",
    "Topology",
    "algorithms_of",
    "calibrate_collectives",
    "fastest",
    "load_collectives",
    "machine_of",
    "phases_of",
    "predict_collective",
    "read_collective_calibration",
    "read_collectives",
    "scored_rows",
    "write_collective_calibration",
]
