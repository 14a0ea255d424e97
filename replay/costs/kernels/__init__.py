"""How long operators take on a device, from their shapes and its data sheet, with an interval."""

from replay.costs.kernels.measurements import MeasuredOperators, read_measurements
from replay.costs.kernels.models import MODELS, Machine, Model, ModelParameter
from replay.costs.kernels.predictor import (
    Fit,
    KernelCalibration,
    Predicted,
    calibrate,
    fit,
    load_calibration,
    predict,
    read_calibration,
    write_calibration,
)

__all__ = [
    "MODELS",
    "Fit",
    "KernelCalibration",
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
