"""Transformers and recommendation models: their operators, how they are parallelised, and their training steps."""

from replay.workloads.architecture import (
    Step,
    Tally,
    Timed,
    Transformer,
    backward,
    find_transformer,
    fused,
    load_transformers,
    tally,
    time_operators,
)
from replay.workloads.dlrm import Cluster, Dlrm, dlrm_trace, nodes_of
from replay.workloads.training import OPTIMIZERS, PRECISIONS, Layout, TrainingJob
from replay.workloads.training_fits import (
    MeasuredStep,
    PredictedStep,
    TrainingFit,
    as_measured,
    calibrate_training,
    load_training,
    predict_steps,
    read_steps,
    read_training_fit,
    write_training_fit,
)
from replay.workloads.training_trace import training_trace
from replay.workloads.transformer import TRAINED_STYLES, Pass, forward

__all__ = [
    "OPTIMIZERS",
    "PRECISIONS",
    "TRAINED_STYLES",
    "Cluster",
    "Dlrm",
    "Layout",
    "MeasuredStep",
    "Pass",
    "PredictedStep",
    "Step",
    "Tally",
    "Timed",
    "TrainingFit",
    "TrainingJob",
    "Transformer",
    "as_measured",
    "backward",
    "calibrate_training",
    "dlrm_trace",
    "find_transformer",
    "forward",
    "fused",
    "load_training",
    "load_transformers",
    "nodes_of",
    "predict_steps",
    "read_steps",
    "read_training_fit",
    "tally",
    "time_operators",
    "training_trace",
    "write_training_fit",
]
