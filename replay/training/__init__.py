"""Training steps of a transformer that is split over devices: how long they take, and where the time goes."""

from replay.training.calibration import calibrate_training
from replay.training.costs import PRIORS, BreakDown, TrainingCosts, step_time
from replay.training.fits import TrainingFit, load_training, read_training_fit, write_training_fit
from replay.training.job import Layout, TrainingJob
from replay.training.loads import JobLoad, Load, PartLoad, StageLoad, job_loads
from replay.training.measurements import MeasuredStep, chosen_part, read_steps
from replay.training.predictor import PredictedStep, as_measured, predict_steps
from replay.training.schedule import Duration, StageTime, one_forward_one_backward, run_schedule
from replay.training.trace import training_trace

__all__ = [
    "PRIORS",
    "BreakDown",
    "Duration",
    "JobLoad",
    "Layout",
    "Load",
    "MeasuredStep",
    "PartLoad",
    "PredictedStep",
    "StageLoad",
    "StageTime",
    "TrainingCosts",
    "TrainingFit",
    "TrainingJob",
    "as_measured",
    "calibrate_training",
    "chosen_part",
    "job_loads",
    "load_training",
    "one_forward_one_backward",
    "predict_steps",
    "read_steps",
    "read_training_fit",
    "run_schedule",
    "step_time",
    "training_trace",
    "write_training_fit",
]
