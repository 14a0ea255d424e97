"""Costs of training fitted to measured steps, and predicted times of training steps.

Measured steps come in the layout of vTrain's published measurements, one step a row. `calibrate_training` fits the
costs of host and optimizer to a share of them. `predict_steps` predicts any job, with an interval and a breakdown.
`plan_order` says how sure the order of predicted plans is: what their predictions share cancels in the ratio of two.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from hashlib import sha256
from math import exp, hypot, log
from pathlib import Path
from statistics import NormalDist
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
import scipy

from profilers.devices.catalogue import Device, find_device
from profilers.errors import InvalidInputError
from profilers.files import dataset_path
from profilers.trace.arrays import Floats
from replay.calibration.files import CalibrationFile, CalibrationLayout
from replay.calibration.parameters import Parameters, conformal_bound
from replay.calibration.tables import Row, measured_count, measured_number, measured_rows
from replay.workloads.architecture import Transformer
from replay.workloads.jobs import NARROW, Layout, TrainingJob
from replay.workloads.training import (
    PRIORS,
    BreakDown,
    JobLoad,
    JobTimer,
    TrainingCosts,
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
#: Vocabulary of GPT-2, 50257, filled up.
VOCABULARY = 51200
_FEEDFORWARD = 4
#: Largest number of digits of a number, and of characters that a message repeats.
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
    device, system, run : str
        Name of the device in the catalogue, of the system that it is in, and of what was run; empty if the table does
        not say.
    """

    job: TrainingJob
    seconds: float
    source: str
    device: str = ""
    system: str = ""
    run: str = ""

    @property
    def configuration(self) -> str:
        """Numbers of the step, in the order of the columns."""
        job, model, layout = self.job, self.job.model, self.job.layout
        sizes = (job.global_batch, job.micro_batch, model.hidden, model.heads, model.layers, job.length)
        return ",".join(map(str, (layout.devices, *sizes, layout.tensor, layout.data, layout.pipeline)))

    @property
    def digest(self) -> str:
        """Digest of numbers and time, by which a fit recognises the measurement."""
        where = f",{self.device},{self.system},{self.run}" if self.system else ""
        return sha256(f"{self.configuration},{self.seconds:.9f}{where}".encode()).hexdigest()[:10]


def read_steps(path: str | Path, node_devices: int = 8) -> list[MeasuredStep]:
    """Read measured steps from a CSV file, or from every fitting one in a folder.

    Parameters
    ----------
    path : str or Path
        CSV file of measured steps, or a folder of such files.
    node_devices : int
        Devices of a node; a job with more devices spans several nodes.

    Raises
    ------
    NotFoundError, InvalidInputError
        There is no such file; a column is missing; there is no row; or a row is refused. The message names the row, and
        says what is accepted.
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
    return MeasuredStep(TrainingJob(model, length, batch, micro, layout), measured_number(row, _TIME) / 1e3, where)


def chosen_part(measured: Sequence[MeasuredStep], share: float) -> list[MeasuredStep]:
    """Return a share of the measurements, chosen by a hash of their configurations, so that no time decides.

    Parameters
    ----------
    measured : sequence of MeasuredStep
        Measurements to choose from.
    share : float
        Share to choose.

    Examples
    --------
    >>> chosen_part([], 0.1)
    []
    """
    order = sorted(measured, key=lambda step: (sha256(step.configuration.encode()).hexdigest(), step.seconds))
    return order[: int(len(measured) * share)]


#: A figure of a calibration file above zero.
_Positive = Annotated[float, msgspec.Meta(gt=0)]


@dataclass(frozen=True)
class TrainingFit:
    """Fitted costs, and how far predictions with them are off.

    Parameters
    ----------
    device : str
        Name in the catalogue.
    devices : int
        Largest number of devices that was measured.
    costs : TrainingCosts
        Fitted costs of host and optimizer.
    recompute : bool
        Whether layers run their forward pass again in the measured runs, as explains them better.
    spread : float
        Bound on the absolute logarithm of measured over predicted time, for nine in ten steps that were left out.
    digests : tuple of str
        Digests of the measurements that were fitted.
    source : str
        Measurements that were fitted, in words.
    others : tuple of str
        Further devices that were measured.
    """

    device: str
    devices: int
    costs: TrainingCosts
    recompute: bool
    spread: float
    digests: tuple[str, ...] = ()
    source: str = ""
    others: tuple[str, ...] = ()


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
    _LAYOUT.write(path, content, devices=[fit.device, *fit.others], source=fit.source)


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
    if not content.devices:
        raise ValueError("devices has no name; costs are fitted to one device or more")
    if odd := sorted(fit.costs.keys() ^ PRIORS.keys()):
        raise ValueError(f"costs has or lacks {odd[0][:_SHOWN]!r}; the costs are {', '.join(PRIORS)}")
    first, *others = content.devices
    return TrainingFit(
        first, fit.devices, TrainingCosts(**fit.costs), fit.recompute, fit.spread, fit.digests, content.source,
        tuple(others),
    )  # fmt: skip


_LAYOUT = CalibrationLayout("training", TrainingCostsFit, _training_fit_of)


#: Shipped costs by what sets the libraries apart: Megatron-LM of 2022 with the scores of attention in memory, and
#: Transformer Engine with flash attention, in 16 bits or with products in fewer.
SHIPPED: Mapping[str, str] = MappingProxyType(
    {"plain": "fits/training.json", "flash": "fits/training_flash.json", "narrow": "fits/training_narrow.json"}
)


def shipped_costs(job: TrainingJob) -> str:
    """Return the key of `SHIPPED` for a job, by its precision and its attention."""
    return "narrow" if job.precision in NARROW else job.attention


def load_training(job: TrainingJob | None = None) -> TrainingFit:
    """Return the shipped costs for a job, by default those of Megatron-LM on A100.

    Parameters
    ----------
    job : TrainingJob, optional
        Its precision and its attention choose the costs, as `SHIPPED` says; the device does not.

    Examples
    --------
    >>> load_training().device
    'A100-SXM4-80GB'
    """
    return _shipped(SHIPPED[shipped_costs(job) if job else "plain"])


@cache
def _shipped(name: str) -> TrainingFit:
    return read_training_fit(dataset_path(name))


#: Share of the measurements that is fitted; `seqpoint validate training` scores the rest.
SHARE = 0.1
#: Measurements that a fit needs at least.
LEAST_STEPS = 20
#: Cases that a fit of several systems needs at least.
LEAST_CASES = 8
#: Expected standard deviation of the logarithm of a measured time, against which priors count.
_NOISE = 0.05
_FOLDS, _CONFIDENCE = 6, 0.9
_STEP, _TOLERANCE = 1e-3, 1e-4


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
    fitted = chosen_part(measured, share)
    if len(fitted) < LEAST_STEPS:
        raise InvalidInputError(
            f"{len(measured)} measured steps, of which a share of {share:g} is {len(fitted)}; "
            f"at least {LEAST_STEPS} are needed: give more, or a larger share"
        )
    seconds = np.array([step.seconds for step in fitted])
    fits = []
    for recompute in (False, True):
        loads = job_loads([replace(step.job, recompute=recompute) for step in fitted], device, parameters)
        fits.append((*_fit(loads, seconds), recompute, loads))
    theta, _, recompute, loads = min(fits, key=lambda fit: fit[1])
    return TrainingFit(
        device.name,
        max(step.job.layout.devices for step in fitted),
        _costs(theta),
        recompute,
        _spread(loads, seconds, [_shapes(step.job) for step in fitted]),
        tuple(sorted(step.digest for step in fitted)),
        f"{len(fitted)} of {len(measured)} measured steps, chosen by a hash of their configurations",
    )


def is_fitted_system(system: str) -> bool:
    """Return whether steps of a system are fitted: of one in two, by a hash of its name.

    Examples
    --------
    >>> [is_fitted_system(f"system {i}") for i in range(4)]
    [True, False, True, True]
    """
    return sha256(system.encode()).digest()[0] % 2 == 0


def calibrate_systems(measured: Sequence[MeasuredStep], *, parameters: Parameters) -> TrainingFit:
    """Fit the costs to the measured steps of half of the systems, chosen by `is_fitted_system`.

    Systems that ran the same job on the same device are one case, with the median of their times. The interval is
    conformal, as that of `calibrate_training`: of cases whose model and device were left out.

    Parameters
    ----------
    measured : sequence of MeasuredStep
        Steps of any jobs with their devices, and systems.
    parameters : Parameters
        With calibrations of kernels and collectives.

    Raises
    ------
    InvalidInputError
        Half of the systems have fewer than 8 cases.
    """
    fitted = [step for step in measured if is_fitted_system(step.system)]
    cases: dict[tuple[str, TrainingJob], list[MeasuredStep]] = {}
    for step in fitted:
        cases.setdefault((step.device, step.job), []).append(step)
    if len(cases) < LEAST_CASES:
        raise InvalidInputError(f"half of the systems have {len(cases)} cases; at least {LEAST_CASES} are needed")
    devices = sorted({device for device, _ in cases})
    loads: list[JobLoad] = []
    seconds: list[float] = []
    keys: list[tuple[object, ...]] = []
    for device in devices:
        here = {job: steps for (name, job), steps in cases.items() if name == device}
        loads += job_loads(list(here), find_device(device), parameters)
        seconds += [float(np.median([step.seconds for step in steps])) for steps in here.values()]
        keys += [(device, job.model.name) for job in here]
    theta, _ = _fit(loads, np.array(seconds), _SYSTEMS)
    spread = _spread(loads, np.array(seconds), keys, _SYSTEMS, theta)
    return TrainingFit(
        devices[0],
        max(step.job.layout.devices for step in fitted),
        _costs(theta),
        recompute=False,
        # Of one model on one device, nothing says how far the costs carry.
        spread=spread if len(set(keys)) > 1 else hypot(spread, _CARRIED),
        digests=tuple(sorted(step.digest for step in fitted)),
        source=f"{len(fitted)} of {len(measured)} measured steps, of systems chosen by a hash of their names",
        others=tuple(devices[1:]),
    )


def _costs(theta: Floats) -> TrainingCosts:
    return TrainingCosts(*np.exp(theta).tolist())


def _predicted(theta: Floats, loads: Sequence[JobLoad]) -> Floats:
    costs = _costs(theta)
    return np.array([step_time(load, costs).total_s for load in loads])


@dataclass(frozen=True)
class _Belief:
    """What a fit knows before: priors of the costs, and the deviation of the logarithm of a time, given the costs."""

    priors: Mapping[str, tuple[float, float]]
    noise: float


_ONE_SYSTEM = _Belief(PRIORS, _NOISE)
#: Of several systems: their kernels differ more than the times of one, and their hosts replay CUDA graphs or run ahead,
#: so that no call costs more than its launch on the device.
_SYSTEMS = _Belief(
    {**PRIORS}
    | {"products": (1.05, 0.2), "forward_call_s": (2e-6, 0.3), "backward_call_s": (2e-6, 0.3), "waiting": (0.01, 0.3)}
    | {"collective_call_s": (5e-6, 0.3), "micro_batch_s": (1e-4, 0.5), "step_s": (2e-3, 0.7)}
    | {"exchange_s": (5e-5, 0.5), "update_call_s": (1e-6, 0.3)},
    0.12,
)


def _fit(
    loads: Sequence[JobLoad], seconds: Floats, belief: _Belief = _ONE_SYSTEM, start: Floats | None = None
) -> tuple[Floats, float]:
    """Return the logarithms of the costs, and half the sum of squares of the residuals, priors included.

    The search starts from the priors, or from the solution of a similar fit.
    """
    prior, width = np.array(list(belief.priors.values())).T
    prior = np.log(prior)

    def residuals(theta: Floats) -> Floats:
        return np.concatenate((np.log(_predicted(theta, loads) / seconds) / belief.noise, (theta - prior) / width))

    result = scipy.optimize.least_squares(
        residuals, prior if start is None else start, diff_step=_STEP, ftol=_TOLERANCE, xtol=_TOLERANCE
    )
    return np.asarray(result.x), float(result.cost)


def _shapes(job: TrainingJob) -> tuple[object, ...]:
    """Return the sizes that shape the kernels of a job."""
    return (job.model.hidden, job.length, job.micro_batch, job.layout.tensor)


def _spread(
    loads: Sequence[JobLoad],
    seconds: Floats,
    shapes: Sequence[tuple[Any, ...]],
    belief: _Belief = _ONE_SYSTEM,
    start: Floats | None = None,
) -> float:
    """Return the spread of predictions from fits that left out a sixth of the shapes of kernels."""
    order = {shape: i for i, shape in enumerate(sorted(set(shapes)))}
    folds = np.array([order[shape] % _FOLDS for shape in shapes])
    errors = []
    for fold in np.unique(folds):
        left_out = np.flatnonzero(folds == fold)
        rest = np.flatnonzero(folds != fold) if len(order) > 1 else left_out
        theta, _ = _fit([loads[i] for i in rest.tolist()], seconds[rest], belief, start)
        errors.append(np.log(_predicted(theta, [loads[i] for i in left_out.tolist()]) / seconds[left_out]))
    return conformal_bound(np.concatenate(errors), _CONFIDENCE)


#: Spread of the logarithm that another device than the measured one, or more devices, add. Nine in ten of 55 runs of
#: whole transformers on devices that were left out err by less (`tests/accuracy/models.csv`).
_CARRIED = 0.2


@dataclass(frozen=True)
class PredictedStep:
    """A training step, predicted.

    Parameters
    ----------
    job : TrainingJob
        Training job that was predicted.
    parts : BreakDown
        Parts of its time; `parts.total_s` is the time.
    low_s, high_s : float
        Ends of an interval that is meant to hold nine in ten.
    basis : str
        ``"fitted"`` if the device was measured with as many devices or more, else ``"carried"``.
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
    jobs: Sequence[TrainingJob],
    device: Device,
    *,
    fit: TrainingFit,
    parameters: Parameters,
    timer: JobTimer | None = None,
) -> list[PredictedStep]:
    """Predict training steps.

    Parameters
    ----------
    jobs : sequence of TrainingJob
        Training jobs to predict.
    device : Device
        Device that all ranks run on.
    fit : TrainingFit
        Costs of host and optimizer. Costs of the host are taken to be the same on any device.
    parameters : Parameters
        With calibrations of kernels and collectives.
    timer : JobTimer, optional
        Times of parts of earlier jobs on this device with these parameters.

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
    predicted, timer = [], timer or JobTimer(device, parameters)
    for job in jobs:
        parts = step_time(timer.load(job), fit.costs)
        is_fitted = device.name in (fit.device, *fit.others) and job.layout.devices <= fit.devices
        factor = exp(fit.spread if is_fitted else hypot(fit.spread, _CARRIED))
        basis = "fitted" if is_fitted else "carried"
        predicted.append(PredictedStep(job, parts, parts.total_s / factor, parts.total_s * factor, basis))
    return predicted


#: Standard deviation of the logarithm of predicted over measured ratios of two plans: Megatron-LM's steps on A100 that
#: the shipped costs were fitted to. `tests/accuracy/plan_order.csv` has the score on the others.
PLAN_SPREAD = 0.11
#: Chance of being faster, from which a plan counts as faster.
_FASTER = 0.9


class PlanOrder(NamedTuple):
    """How sure the fastest of some plans is.

    Parameters
    ----------
    chance : float
        Chance that it is faster than the next one.
    as_fast : int
        Other plans that it is faster than with less than 90 %.
    """

    chance: float
    as_fast: int

    def __str__(self) -> str:
        """Return the chance, and how many plans may be as fast."""
        several = f", {self.as_fast} may be as fast" if self.as_fast > 1 else ""
        return f"{100 * self.chance:.0f} % sure to beat the next{several}"


def likely_faster(first_s: float, second_s: float) -> float:
    """Return the chance that a plan is faster than another one of the same job and device, of their predicted times.

    Examples
    --------
    >>> likely_faster(1.0, 1.0), round(likely_faster(1.0, 1.1), 2)
    (0.5, 0.81)
    """
    return NormalDist(0.0, PLAN_SPREAD).cdf(log(second_s / first_s))


def plan_order(seconds: Sequence[float]) -> PlanOrder | None:
    """Return how sure the fastest of some plans is; None of fewer than two.

    Examples
    --------
    >>> plan_order([1.3, 1.0, 1.05])
    PlanOrder(chance=0.6713..., as_fast=1)
    """
    first, *others = sorted(seconds) or [0.0]
    if not others:
        return None
    chances = [likely_faster(first, other) for other in others]
    return PlanOrder(chances[0], sum(chance < _FASTER for chance in chances))
