"""How long collectives take, by algorithm and topology: fitted where measured, carried over where not."""

from replay.collectives.algorithms import KINDS, Phase, algorithms_of, phases_of
from replay.collectives.calibration import CollectiveCalibration, CollectiveFit
from replay.collectives.fits import load_collectives, read_fits, write_fits
from replay.collectives.limits import least_seconds, least_volume
from replay.collectives.measurements import MeasuredCollectives, read_collectives
from replay.collectives.predictor import (
    PredictedCollectives,
    calibrate_collectives,
    predict_collective,
    scored_rows,
)
from replay.collectives.prior import algorithm_seconds, fastest, machine_of
from replay.collectives.topology import FABRICS, Topology, link_bytes_per_s

__all__ = [
    "FABRICS",
    "KINDS",
    "CollectiveCalibration",
    "CollectiveFit",
    "MeasuredCollectives",
    "Phase",
    "PredictedCollectives",
    "Topology",
    "algorithm_seconds",
    "algorithms_of",
    "calibrate_collectives",
    "fastest",
    "least_seconds",
    "least_volume",
    "link_bytes_per_s",
    "load_collectives",
    "machine_of",
    "phases_of",
    "predict_collective",
    "read_collectives",
    "read_fits",
    "scored_rows",
    "write_fits",
]
