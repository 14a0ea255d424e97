"""How long operators take on a device, from their shapes and its data sheet, with an interval."""

from replay.costs.kernels.machine import Machine
from replay.costs.kernels.measurements import MeasuredOperators, read_measurements
from replay.costs.kernels.models import MODELS
from replay.costs.kernels.predictor import (
    KernelCalibration,
    Predicted,
    calibrate,
    fitted_kind,
    load_calibration,
    predict,
    read_calibration,
    write_calibration,
)

__all__ = [
    "MODELS",
    "KernelCalibration",
    "Machine",
    "MeasuredOperators",
    "Predicted",
    "calibrate",
    "fitted_kind",
    "load_calibration",
    "predict",
    "read_calibration",
    "read_measurements",
    "write_calibration",
]
