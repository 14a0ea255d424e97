"""Score predicted times of training steps against measured ones."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from profilers.devices.catalogue import Device
from replay.costs.shipped import load_parameters
from replay.workloads import MeasuredStep, PredictedStep, TrainingFit, as_measured, predict_steps
from seqpoint.validation.rows import ValidationRow

#: Mean error over all steps that were not fitted: what vTrain's authors claim for their simulator.
_LIMIT = 0.084


@dataclass(frozen=True)
class StepScore:
    """A measured step, predicted.

    Parameters
    ----------
    measured : MeasuredStep
    predicted : PredictedStep
    fitted : bool
        Whether it is one of those that the costs were fitted to.
    """

    measured: MeasuredStep
    predicted: PredictedStep
    fitted: bool

    @property
    def name(self) -> str:
        """What is run."""
        job, layout = self.measured.job, self.measured.job.layout
        return (
            f"{job.model.layers} layers of {job.model.hidden}, {job.global_batch} x {job.length} by {job.micro_batch}, "
            f"TP {layout.tensor} DP {layout.data} PP {layout.pipeline}"
        )

    @property
    def error(self) -> float:
        """``|predicted - measured| / measured``."""
        return abs(self.ratio - 1)

    @property
    def ratio(self) -> float:
        """Predicted over measured."""
        return self.predicted.seconds / self.measured.seconds

    @property
    def covered(self) -> bool:
        """Whether the interval holds what was measured."""
        return self.predicted.low_s <= self.measured.seconds <= self.predicted.high_s


def score_steps(measured: Sequence[MeasuredStep], device: Device, fit: TrainingFit) -> list[StepScore]:
    """Predict every measured step; layers are recomputed, or not, as in the runs that were fitted.

    Raises
    ------
    InvalidInputError
        The catalogue lacks a figure of the device.
    """
    jobs = as_measured([one.job for one in measured], fit)
    predicted = predict_steps(jobs, device, fit=fit, parameters=load_parameters())
    known = set(fit.digests)
    return [StepScore(one, ours, one.digest in known) for one, ours in zip(measured, predicted, strict=True)]


def training_groups(scores: Sequence[StepScore]) -> dict[str, list[StepScore]]:
    """Return the scores by what sets steps apart: hidden size, each parallelism, micro-batch, devices."""
    groups: dict[str, list[StepScore]] = {}
    for one in scores:
        job, layout = one.measured.job, one.measured.job.layout
        parts = {
            "hidden": job.model.hidden,
            "TP": layout.tensor,
            "DP": layout.data,
            "PP": layout.pipeline,
            "micro-batch": job.micro_batch,
            "micro-batches": job.micro_batches,
            "devices": layout.devices,
        }
        for name, value in parts.items():
            groups.setdefault(f"{name} {value}", []).append(one)
    order = {name.rsplit(" ", 1)[0]: i for i, name in reversed(list(enumerate(groups)))}
    return dict(sorted(groups.items(), key=lambda kv: (order[kv[0].rsplit(" ", 1)[0]], int(kv[0].rsplit(" ", 1)[1]))))


def training_rows(scores: Sequence[StepScore]) -> list[ValidationRow]:
    """Return a row a step, then the mean over all that were not fitted."""
    rows = [
        ValidationRow(
            one.name,
            one.measured.seconds,
            one.predicted.seconds,
            one.error,
            fitted=one.fitted,
            source=one.measured.source,
        )
        for one in scores
    ]
    left_out = [one.error for one in scores if not one.fitted]
    if left_out:
        mean = float(np.mean(left_out))
        rows.append(ValidationRow("steps not fitted: mean", None, mean, mean, _LIMIT, source="the cases above"))
    return rows
