"""Fit the costs of training to measured steps."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

from profilers.devices import Device
from profilers.errors import InvalidInputError
from replay.training.costs import PRIORS, TrainingCosts, step_time
from replay.training.fits import TrainingFit
from replay.training.loads import JobLoad, job_loads
from replay.training.measurements import MeasuredStep, chosen_part

__all__ = ["LEAST_STEPS", "SHARE", "calibrate_training"]

Floats = npt.NDArray[np.float64]
#: Of the measurements, what is fitted; the rest is for `seqpoint validate training` to score.
SHARE = 0.1
#: Measurements that a fit needs at least.
LEAST_STEPS = 20
#: Standard deviation of the logarithm of a measured time that is expected, beside which priors count.
_NOISE = 0.05
_FOLDS, _CONFIDENCE = 6, 0.9
_STEP = 1e-3


def calibrate_training(measured: Sequence[MeasuredStep], device: Device, share: float = SHARE) -> TrainingFit:
    """Fit the costs to a share of measured steps, both with and without recomputed layers; the better is kept.

    The interval is conformal: steps whose kernels have the same shapes are predicted from a fit of the others, a sixth
    of the shapes at a time, and of the m errors in order, the one at ``(m + 1) * 0.9`` is the spread. Steps of the same
    shapes err alike, so that single steps left out would show too little.

    Parameters
    ----------
    measured : sequence of MeasuredStep
    device : Device
    share : float
        Above 0, at most 1.

    Raises
    ------
    InvalidInputError
        The share is no share, or is of fewer than 20 steps.
    """
    if not 0 < share <= 1:
        raise InvalidInputError(f"share is {share}; it must be above 0 and at most 1")
    mine = chosen_part(measured, share)
    if len(mine) < LEAST_STEPS:
        raise InvalidInputError(
            f"{len(measured)} measured steps, of which a share of {share:g} is {len(mine)}; "
            f"at least {LEAST_STEPS} are needed: give more, or a larger share"
        )
    seconds = np.array([one.seconds for one in mine])
    tried = []
    for recompute in (False, True):
        loads = job_loads([replace(one.job, recompute=recompute) for one in mine], device)
        tried.append((*_fit(loads, seconds), recompute, loads))
    theta, _, recompute, loads = min(tried, key=lambda one: one[1])
    return TrainingFit(
        device.name,
        max(one.job.layout.devices for one in mine),
        _costs(theta),
        recompute,
        _spread(loads, seconds, _folds(mine)),
        tuple(sorted(one.digest for one in mine)),
        f"{len(mine)} of {len(measured)} measured steps, chosen by a hash of their configurations",
    )


def _costs(theta: Floats) -> TrainingCosts:
    return TrainingCosts(*np.exp(theta).tolist())


def _predicted(theta: Floats, loads: Sequence[JobLoad]) -> Floats:
    costs = _costs(theta)
    return np.array([step_time(load, costs).total_s for load in loads])


def _fit(loads: Sequence[JobLoad], seconds: Floats) -> tuple[Floats, float]:
    """Return the logarithms of the costs, and the sum of squares that is left, priors included."""
    prior = np.log([value for value, _ in PRIORS.values()])
    spread = np.array([width for _, width in PRIORS.values()])

    def off(theta: Floats) -> Floats:
        return np.concatenate((np.log(_predicted(theta, loads) / seconds) / _NOISE, (theta - prior) / spread))

    found = least_squares(off, prior, diff_step=_STEP)
    return np.asarray(found.x), float(found.cost)


def _folds(measured: Sequence[MeasuredStep]) -> npt.NDArray[np.int64]:
    """Return the sixth that each step belongs to: all steps whose kernels have the same shapes to one."""
    shapes = [(one.job.model.hidden, one.job.length, one.job.micro_batch, one.job.layout.tensor) for one in measured]
    order = sorted(set(shapes))
    return np.array([order.index(shape) % _FOLDS for shape in shapes], dtype=np.int64)


def _spread(loads: Sequence[JobLoad], seconds: Floats, fold: npt.NDArray[np.int64]) -> float:
    errors = []
    for part in np.unique(fold):
        rest, left = np.flatnonzero(fold != part), np.flatnonzero(fold == part)
        if len(rest) == 0:
            rest = left
        theta, _ = _fit([loads[i] for i in rest.tolist()], seconds[rest])
        errors.append(np.abs(np.log(_predicted(theta, [loads[i] for i in left.tolist()]) / seconds[left])))
    among = np.sort(np.concatenate(errors))
    return float(among[min(int(np.ceil((len(among) + 1) * _CONFIDENCE)) - 1, len(among) - 1)])
