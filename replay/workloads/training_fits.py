"""Costs of training fitted to measured steps, and predicted times of training steps.

Measured steps come in the layout of vTrain's published measurements, one step a row. `calibrate_training` fits the
costs of host and optimizer to a share of them. `predict_steps` predicts any job, with an interval and a breakdown.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from hashlib import sha256
from math import exp, hypot
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
import numpy.typing as npt
import scipy

from profilers.devices.catalogue import Device
from profilers.errors import InvalidInputError
from profilers.files import dataset_path
from profilers.trace.arrays import Floats
from replay.calibration.files import CalibrationFile, CalibrationLayout
from replay.calibration.parameters import Parameters
from replay.calibration.tables import Row, measured_count, measured_rows, measured_seconds
from replay.workloads.architecture import Transformer
from replay.workloads.training import (
    PRIORS,
    BreakDown,
    JobLoad,
    Layout,
    TrainingCosts,
    TrainingJob,
    job_loads,
    step_time,
)

_TIME = "iteration time (ms)"
#: Whole numbers of 1 or more, then the measured time.
_COUNTS = (
    "# GPUs",
    "global batch",
    "micro batch",
    "hidden size",
    "attention heads",
    "# layers",
    "sequence length",
    "tensor parallelism",
    "data parallelism",
    "pipeline parallelism",
)
#: Columns of a table of measured steps.
COLUMNS = (*_COUNTS, _TIME)
#: Of GPT-2, 50257 filled up.
VOCABULARY = 51200
_FEEDFORWARD = 4
#: Of a number, at most; and characters that a message repeats.
_DIGITS, _SHOWN = 6, 40


@dataclass(frozen=True)
class MeasuredStep:
    """A measured training step.

    Parameters
    ----------
    job : TrainingJob
        Training job that was measured.
    seconds : float
        Measured time of a step, s.
    source : str
        File and row.
    """

    job: TrainingJob
    seconds: float
    source: str

    @property
    def configuration(self) -> str:
        """Its numbers, in the order of the columns."""
        job, model, layout = self.job, self.job.model, self.job.layout
        batch = (job.global_batch, job.micro_batch)
        sizes = (model.hidden, model.heads, model.layers, job.length)
        split = (layout.tensor, layout.data, layout.pipeline)
        return ",".join(map(str, (layout.devices, *batch, *sizes, *split)))

    @property
    def digest(self) -> str:
        """What tells this measurement from others."""
        return sha256(f"{self.configuration},{self.seconds:.9f}".encode()).hexdigest()[:10]


def read_steps(path: str | Path, node_devices: int = 8) -> list[MeasuredStep]:
    """Read measured steps from a CSV file, or from every fitting one in a folder.

    Parameters
    ----------
    path : str or Path
        CSV file of measured steps, or a folder of such files.
    node_devices : int
        Devices of a node, where a job has more than that.

    Raises
    ------
    NotFoundError, InvalidInputError
        There is no such file; a column is missing; there is no row; or a row cannot be: it is named, with
        what is accepted.
    """
    return measured_rows(path, COLUMNS, lambda where, row: _step_of(where, row, node_devices))


def _step_of(where: str, row: Row, node_devices: int) -> MeasuredStep:
    devices, batch, micro, hidden, heads, layers, length, *split = (
        measured_count(row, name, _DIGITS) for name in _COUNTS
    )
    layout = Layout(split[0], split[1], split[2], node_devices)
    if layout.devices != devices:
        raise InvalidInputError(
            f"tensor {layout.tensor} x data {layout.data} x pipeline {layout.pipeline} parallelism is "
            f"{layout.devices}, not the {devices} of # GPUs"
        )
    model = Transformer("gpt", "megatron", layers, hidden, heads, _FEEDFORWARD * hidden, VOCABULARY)
    return MeasuredStep(TrainingJob(model, length, batch, micro, layout), measured_seconds(row, _TIME), where)


def chosen_part(measured: Sequence[MeasuredStep], share: float) -> list[MeasuredStep]:
    """Return a share of the measurements, chosen by a hash of their configurations: no time is looked at.

    Examples
    --------
    >>> chosen_part([], 0.1)
    []
    """
    order = sorted(measured, key=lambda one: (sha256(one.configuration.encode()).hexdigest(), one.seconds))
    return order[: int(len(measured) * share)]


#: A figure of a calibration file above zero.
_Positive = Annotated[float, msgspec.Meta(gt=0)]


@dataclass(frozen=True)
class TrainingFit:
    """Costs, and how far what they predict is off.

    Parameters
    ----------
    device : str
        Name in the catalogue.
    devices : int
        Largest number of devices that was measured, all in one node.
    costs : TrainingCosts
        Fitted costs of host and optimizer.
    recompute : bool
        Whether the measured runs run layers' forward pass again: the way that explains them better.
    spread : float
        Of the logarithm of the measured time over that predicted without it, nine in ten are below this.
    digests : tuple of str
        Of the measurements that were fitted.
    source : str
        Measurements that were fitted, in words.
    """

    device: str
    devices: int
    costs: TrainingCosts
    recompute: bool
    spread: float
    digests: tuple[str, ...] = ()
    source: str = ""


class TrainingCostsFit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The fit of a calibration file of training; fields as in `TrainingFit`."""

    devices: Annotated[int, msgspec.Meta(ge=1)]
    costs: dict[str, _Positive]
    recompute: bool
    spread: _Positive
    digests: tuple[str, ...]


def write_training_fit(path: Path, fit: TrainingFit) -> None:
    """Write a calibration of training, whole or not at all.

    Parameters
    ----------
    path : Path
        JSON file to write or replace.
    fit : TrainingFit
        Costs to write, with five digits.
    """
    costs = {name: float(f"{value:.5g}") for name, value in asdict(fit.costs).items()}
    content = TrainingCostsFit(fit.devices, costs, fit.recompute, round(fit.spread, 4), fit.digests)
    _LAYOUT.write(path, content, devices=[fit.device], source=fit.source)


def read_training_fit(path: str | Path) -> TrainingFit:
    """Read a calibration of training.

    Parameters
    ----------
    path : str or Path
        JSON file that `write_training_fit` wrote.

    Raises
    ------
    NotFoundError, InvalidInputError
        There is no such file, or its content is no calibration of training; the key is named.
    """
    return _LAYOUT.read(path)


def _training_fit_of(content: CalibrationFile[TrainingCostsFit]) -> TrainingFit:
    fit = content.fit
    if len(content.devices) != 1:
        raise ValueError(f"devices has {len(content.devices)} names; costs are fitted to one device")
    if odd := sorted(fit.costs.keys() ^ PRIORS.keys()):
        raise ValueError(f"costs has or lacks {odd[0][:_SHOWN]!r}; the costs are {', '.join(PRIORS)}")
    costs = TrainingCosts(**fit.costs)
    return TrainingFit(content.devices[0], fit.devices, costs, fit.recompute, fit.spread, fit.digests, content.source)


_LAYOUT = CalibrationLayout("training", TrainingCostsFit, _training_fit_of)


@cache
def load_training() -> TrainingFit:
    """Return the shipped costs.

    Examples
    --------
    >>> load_training().device
    'A100-SXM4-80GB'
    """
    return read_training_fit(dataset_path("fits/training.json"))


#: Of the measurements, what is fitted; the rest is for `seqpoint validate training` to score.
SHARE = 0.1
#: Measurements that a fit needs at least.
LEAST_STEPS = 20
#: Standard deviation of the logarithm of a measured time that is expected, beside which priors count.
_NOISE = 0.05
_FOLDS, _CONFIDENCE = 6, 0.9
_STEP = 1e-3


def calibrate_training(
    measured: Sequence[MeasuredStep], device: Device, *, parameters: Parameters, share: float = SHARE
) -> TrainingFit:
    """Fit the costs to a share of measured steps, both with and without recomputed layers; the better is kept.

    The interval is conformal: steps whose kernels have the same shapes are predicted from a fit of the others, a sixth
    of the shapes at a time, and of the m errors in order, the one at ``(m + 1) * 0.9`` is the spread. Steps of the same
    shapes err alike, so that single steps left out would show too little.

    Parameters
    ----------
    measured : sequence of MeasuredStep
        Steps of any jobs on `device`.
    device : Device
        Device that was measured.
    parameters : Parameters
        With calibrations of kernels and collectives.
    share : float
        Share of the steps that is fitted: above 0, at most 1.

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
        loads = job_loads([replace(one.job, recompute=recompute) for one in mine], device, parameters)
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

    found = scipy.optimize.least_squares(off, prior, diff_step=_STEP)
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


#: Spread of the logarithm that a device which was not measured, or more devices, add: of 55 runs of whole transformers
#: on devices that were left out (`tests/accuracy/models.csv`), nine in ten err by less.
_CARRIED = 0.2


@dataclass(frozen=True)
class PredictedStep:
    """A training step, predicted.

    Parameters
    ----------
    job : TrainingJob
        Training job that was predicted.
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


def predict_steps(
    jobs: Sequence[TrainingJob], device: Device, *, fit: TrainingFit, parameters: Parameters
) -> list[PredictedStep]:
    """Predict training steps.

    Parameters
    ----------
    jobs : sequence of TrainingJob
        Training jobs to predict.
    device : Device
        Device that all ranks run on.
    fit : TrainingFit
        Costs of host and optimizer. Those of the host are taken to be the same on any device.
    parameters : Parameters
        With calibrations of kernels and collectives.

    Raises
    ------
    InvalidInputError
        The catalogue lacks a figure of the device.

    Examples
    --------
    >>> from profilers.devices import find_device
    >>> from replay.costs.shipped import load_parameters
    >>> from replay.workloads import Layout, Transformer
    >>> model = Transformer("gpt", "megatron", 24, 2048, 16, 8192, 51200)
    >>> jobs = [TrainingJob(model, 1024, batch, 8, Layout(2, 1, 4)) for batch in (16, 128)]
    >>> device, shipped = find_device("A100-SXM4-80GB"), load_parameters()
    >>> short, long = predict_steps(jobs, device, fit=load_training(), parameters=shipped)
    >>> short.parts.bubble_s / short.seconds > 2 * long.parts.bubble_s / long.seconds
    True
    """
    found = []
    for job, load in zip(jobs, job_loads(jobs, device, parameters), strict=True):
        parts = step_time(load, fit.costs)
        own = device.name == fit.device and job.layout.devices <= fit.devices
        factor = exp(fit.spread if own else hypot(fit.spread, _CARRIED))
        basis = "fitted" if own else "carried"
        found.append(PredictedStep(job, parts, parts.total_s / factor, parts.total_s * factor, basis))
    return found


def as_measured(jobs: Sequence[TrainingJob], fit: TrainingFit) -> list[TrainingJob]:
    """Return the jobs with layers recomputed, or not, as in the runs that were fitted."""
    return [replace(job, recompute=fit.recompute) for job in jobs]
