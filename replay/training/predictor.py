"""Predict the time of a training step, with an interval and where the time goes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp, hypot

from profilers.devices import Device
from replay.training.costs import BreakDown, step_time
from replay.training.fits import TrainingFit, load_training
from replay.training.job import TrainingJob
from replay.training.loads import job_loads

__all__ = ["PredictedStep", "as_measured", "predict_steps"]

#: Spread of the logarithm that a device which was not measured, or more devices, add: of 55 runs of whole transformers
#: on devices that were left out (`tests/accuracy/models.csv`), nine in ten err by less.
_CARRIED = 0.2


@dataclass(frozen=True)
class PredictedStep:
    """A training step, predicted.

    Parameters
    ----------
    job : TrainingJob
    parts : BreakDown
        Where its time goes; `parts.total_s` is the time.
    low_s, high_s : float
        Interval that is meant to hold nine in ten.
    basis : str
        ``"fitted"`` where the device was measured with as many devices or more, else ``"carried"``.
    """

    job: TrainingJob
    parts: BreakDown
    low_s: float
    high_s: float
    basis: str

    @property
    def seconds(self) -> float:
        """Time of the step."""
        return self.parts.total_s


def predict_steps(jobs: Sequence[TrainingJob], device: Device, fit: TrainingFit | None = None) -> list[PredictedStep]:
    """Predict training steps.

    Parameters
    ----------
    jobs : sequence of TrainingJob
    device : Device
    fit : TrainingFit, optional
        By default the shipped one. Host costs are taken as they are on any device.

    Raises
    ------
    InvalidInputError
        The catalogue lacks a figure of the device.

    Examples
    --------
    >>> from profilers.devices import find_device
    >>> from replay.jobs import Transformer
    >>> from replay.training import Layout
    >>> model = Transformer("gpt", "megatron", 24, 2048, 16, 8192, 51200)
    >>> jobs = [TrainingJob(model, 1024, batch, 8, Layout(2, 1, 4)) for batch in (16, 128)]
    >>> short, long = predict_steps(jobs, find_device("A100-SXM4-80GB"))
    >>> short.parts.bubble_s / short.seconds > 2 * long.parts.bubble_s / long.seconds
    True
    """
    known = fit or load_training()
    found = []
    for job, load in zip(jobs, job_loads(jobs, device), strict=True):
        parts = step_time(load, known.costs)
        own = device.name == known.device and job.layout.devices <= known.devices
        factor = exp(known.spread if own else hypot(known.spread, _CARRIED))
        basis = "fitted" if own else "carried"
        found.append(PredictedStep(job, parts, parts.total_s / factor, parts.total_s * factor, basis))
    return found


def as_measured(jobs: Sequence[TrainingJob], fit: TrainingFit) -> list[TrainingJob]:
    """Return the jobs with layers recomputed, or not, as in the runs that were fitted."""
    return [replace(job, recompute=fit.recompute) for job in jobs]
