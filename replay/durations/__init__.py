"""How long operators take on a device, from their shapes and its data sheet, with an interval."""

from replay.durations.calibration import (
    Calibration,
    calibrate,
    load_calibration,
    read_calibration,
    write_calibration,
)
from replay.durations.fitting import Fit, fit
from replay.durations.machine import Machine
from replay.durations.measurements import MeasuredOperators, read_measurements
from replay.durations.models import MODELS, Model, ModelParameter
from replay.durations.predictor import Predicted, predict

__all__ = [
    "MODELS",
    "Calibration",
    "Fit",
    "Machine",
    "MeasuredOperators",
    "Model",
    "ModelParameter",
    "Predicted",
    "calibrate",
    "fit",
    "load_calibration",
    "predict",
    "read_calibration",
    "read_measurements",
    "write_calibration",
]
