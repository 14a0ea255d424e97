"""Costs of training fitted to measured steps, and predicted times of training steps.

Measured steps come in the layout of vTrain's published measurements, one step a row. `calibrate_training` fits the
costs to a share of them, `calibrate_systems` to the tables of many systems: costs that all share, and factors of each
device. What a job asks for, such as its attention or precision, changes its work and never these costs.
`predict_steps` predicts any job, with an interval and a breakdown. `plan_order` says how sure the order of predicted
plans is: what their predictions share cancels in the ratio of two.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from hashlib import sha256
from math import exp, hypot, log
from pathlib import Path
from statistics import NormalDist
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


class DeviceFactors(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a device differs from the shared costs.

    Parameters
    ----------
    products, links : float
        Time of matrix products, and of collectives, over that by the shared costs.
    narrow : float
        Time of products in fewer than 16 bits, over that by the factor of the others.
    """

    products: _Positive = 1.0
    links: _Positive = 1.0
    narrow: _Positive = 1.0


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
        Fitted costs of host and optimizer, shared by all devices.
    recompute : bool
        Whether layers run their forward pass again in the measured runs whose table does not say, as explains them
        better.
    spread : float
        Bound on the absolute logarithm of measured over predicted time, for nine in ten steps that were left out.
    digests : tuple of str
        Digests of the measurements that were fitted.
    source : str
        Measurements that were fitted, in words.
    others : tuple of str
        Further devices that were measured.
    factors : mapping of str to DeviceFactors
        Factors by device; those of an empty name hold for any other.
    spreads : mapping of str to float
        Spreads of devices with 50 cases or more; `spread` holds for the others.
    """

    device: str
    devices: int
    costs: TrainingCosts
    recompute: bool
    spread: float
    digests: tuple[str, ...] = ()
    source: str = ""
    others: tuple[str, ...] = ()
    factors: Mapping[str, DeviceFactors] = field(default_factory=dict)
    spreads: Mapping[str, float] = field(default_factory=dict)

    def factors_of(self, device: Device) -> DeviceFactors:
        """Return the factors of a device: its own, or the geometric mean of those of its design.

        Another device takes the factor of products of the measured one that is nearest in FLOP per joule: where that
        is high, the power limit slows products in a job, which are in bursts when they are measured alone.
        """
        if device.name in self.factors:
            return self.factors[device.name]
        known = {find_device(name): each for name, each in self.factors.items() if name}
        alike = [each for other, each in known.items() if other.design == device.design]
        if alike:
            values = np.exp(np.log([msgspec.structs.astuple(each) for each in alike]).mean(axis=0))
            return DeviceFactors(*values.tolist())
        others = self.factors.get("", DeviceFactors())
        if not known or not device.figures.keys() >= _FLOP_PER_JOULE:
            return others
        nearest = min(known, key=lambda other: abs(_flop_per_joule(other) - _flop_per_joule(device)))
        return DeviceFactors(known[nearest].products, others.links, others.narrow)

    def costs_of(self, job: TrainingJob, device: Device) -> TrainingCosts:
        """Return the costs of a job on a device."""
        return _costs_of(job, self.costs, self.factors_of(device))


def _costs_of(job: TrainingJob, shared: TrainingCosts, factors: DeviceFactors) -> TrainingCosts:
    """Return the costs of a job. CUDA graphs hold all calls of a micro-batch, so that none waits."""
    products = shared.products * factors.products * (factors.narrow if job.precision in NARROW else 1.0)
    costs = replace(shared, products=products, links=shared.links * factors.links)
    return replace(costs, **dict.fromkeys(_CAPTURED, 0.0)) if job.cuda_graphs else costs


#: Figures of a device that say how much it computes for its power.
_FLOP_PER_JOULE = {"fp16_tflops", "power_w"}


def _flop_per_joule(device: Device) -> float:
    """Return the logarithm of the FLOP in 16 bits for each joule at the power limit, in 1e12."""
    return log(device.value("fp16_tflops") / device.value("power_w"))


#: Host times of calls that a graph holds.
_CAPTURED = ("forward_call_s", "backward_call_s", "collective_call_s", "micro_batch_s")


class TrainingCostsFit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The fit of a calibration file of training; fields as in `TrainingFit`."""

    devices: Annotated[int, msgspec.Meta(ge=1)]
    costs: dict[str, _Positive]
    recompute: bool
    spread: _Positive
    digests: tuple[str, ...]
    factors: dict[str, DeviceFactors] = {}
    spreads: dict[str, _Positive] = {}


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
    spreads = {name: round(each, 4) for name, each in fit.spreads.items()}
    factors = {
        name: DeviceFactors(*(float(f"{value:.5g}") for value in msgspec.structs.astuple(each)))
        for name, each in fit.factors.items()
    }
    content = TrainingCostsFit(fit.devices, costs, fit.recompute, round(fit.spread, 4), fit.digests, factors, spreads)
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
    for name in filter(None, fit.factors):
        find_device(name)  # a name that it does not know is refused
    first, *others = content.devices
    return TrainingFit(
        first, fit.devices, TrainingCosts(**fit.costs), fit.recompute, fit.spread, fit.digests, content.source,
        tuple(others), fit.factors, fit.spreads,
    )  # fmt: skip


_LAYOUT = CalibrationLayout("training", TrainingCostsFit, _training_fit_of)


@cache
def load_training() -> TrainingFit:
    """Return the shipped costs.

    Examples
    --------
    >>> "H100-SXM5-80GB" in load_training().factors
    True
    """
    return read_training_fit(dataset_path("fits/training.json"))


#: Share of the measurements that is fitted; `seqpoint validate training` scores the rest.
SHARE = 0.1
#: Measurements that a fit needs at least.
LEAST_STEPS = 20
#: Cases that a fit of several systems needs at least, and a device for a spread of its own.
LEAST_CASES, _MANY = 8, 50
#: Expected standard deviation of the logarithm of a time, given the costs: of one device in a table, and of several.
_NOISE, _NOISE_OF_SYSTEMS = 0.05, 0.12
#: That of what sets designs apart, and devices of one design: as much as systems differ. Both were settled in view of
#: the steps that were left out, within 0.1 to 0.15, where scores hardly change.
_EFFECT = 0.12
_FOLDS, _CONFIDENCE = 6, 0.9
_STEP, _TOLERANCE = 1e-3, 1e-4


class _Case(NamedTuple):
    """A measured step: its load, its time, s, the deviation to expect of the logarithm, its device, and its group.

    Cases of one group have alike errors, so that they are left out together.
    """

    load: JobLoad
    seconds: float
    noise: float
    device: str
    group: tuple[Any, ...]


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
    fits = []
    for recompute in (False, True):
        steps = [replace(step, job=replace(step.job, recompute=recompute), device=device.name) for step in fitted]
        cases = _cases(steps, parameters)
        fits.append((*_fit(cases, {}), recompute, cases))
    theta, _, recompute, cases = min(fits, key=lambda fit: fit[1])
    return TrainingFit(
        device.name,
        max(step.job.layout.devices for step in fitted),
        _costs(theta),
        recompute,
        conformal_bound(_errors(cases, {}), _CONFIDENCE),
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


def calibrate_systems(
    tables: Sequence[Sequence[MeasuredStep]],
    *,
    parameters: Parameters,
    start: TrainingFit | None = None,
    intervals: bool = True,
) -> TrainingFit:
    """Fit costs that all systems share, and factors of each device, to tables of measured steps.

    Of the systems of a table, half are fitted, chosen by `is_fitted_system`; steps that name no system are all fitted.
    Systems that ran the same job on the same device are one case, with the median of their times. A device differs by a
    factor of its design and one of its own, each with a deviation of 0.12. The interval is conformal, as that of
    `calibrate_training`: of cases whose model and device were left out.

    Parameters
    ----------
    tables : sequence of sequence of MeasuredStep
        Steps of any jobs with their devices. Times of a table with one device are expected to vary less.
    parameters : Parameters
        With calibrations of kernels and collectives.
    start : TrainingFit, optional
        A similar fit, from which the search starts.
    intervals : bool
        Whether spreads are computed, which takes six more fits; otherwise they are those of `start`.

    Raises
    ------
    InvalidInputError
        Half of the systems have fewer than 8 cases.
    """
    chosen = [[step for step in table if not step.system or is_fitted_system(step.system)] for table in tables]
    cases = [case for table in chosen for case in _cases(_merged(table), parameters)]
    if len(cases) < LEAST_CASES:
        raise InvalidInputError(f"half of the systems have {len(cases)} cases; at least {LEAST_CASES} are needed")
    fitted = [step for table in chosen for step in table]
    devices = sorted({case.device for case in cases})
    effects = {key: i for i, key in enumerate(sorted({key for case in cases for key in _effects_of(case)}))}
    theta, _ = _fit(cases, effects, None if start is None else _start(start, effects))
    spread, spreads = (start.spread, start.spreads) if start and not intervals else _spreads(cases, effects, theta)
    return TrainingFit(
        devices[0],
        max(step.job.layout.devices for step in fitted),
        _costs(theta),
        recompute=any(step.job.recompute for step in fitted if not step.system),
        spread=spread,
        digests=tuple(sorted(step.digest for step in fitted)),
        source=f"{len(fitted)} of {sum(map(len, tables))} measured steps, of systems chosen by a hash of their names",
        others=tuple(devices[1:]),
        factors={name: _factors(theta, effects, name) for name in ("", *devices)},
        spreads=spreads,
    )


def _merged(steps: Sequence[MeasuredStep]) -> list[MeasuredStep]:
    """Return a step for each job and device, with the median of its times."""
    alike: dict[tuple[str, TrainingJob], list[MeasuredStep]] = {}
    for step in steps:
        alike.setdefault((step.device, step.job), []).append(step)
    return [replace(some[0], seconds=float(np.median([step.seconds for step in some]))) for some in alike.values()]


def _cases(steps: Sequence[MeasuredStep], parameters: Parameters) -> list[_Case]:
    """Return the cases of a table."""
    devices = dict.fromkeys(step.device for step in steps)
    noise = _NOISE if len(devices) == 1 else _NOISE_OF_SYSTEMS
    cases = []
    for name in devices:
        here = [step for step in steps if step.device == name]
        loads = job_loads([step.job for step in here], find_device(name), parameters)
        cases += [
            _Case(load, step.seconds, noise, name, (name, step.job.model.name) if step.system else _shapes(step.job))
            for step, load in zip(here, loads, strict=True)
        ]
    return cases


#: What is fitted beside the costs: a design, a device or, of an empty name, any; and the field of `DeviceFactors`.
_Effect = tuple[str, str]


def _effects_of(case: _Case) -> list[_Effect]:
    """Return the effects that a case depends on."""
    names = _design(case.device), case.device
    effects = [(name, cost) for name in names for cost in ("products", "links")]
    return effects + [(name, "narrow") for name in ("", names[0])] * (case.load.job.precision in NARROW)


def _design(device: str) -> str:
    """Return a name for the design of a device."""
    return " ".join(map(str, find_device(device).design))


def _factors(theta: Floats, effects: Mapping[_Effect, int], device: str) -> DeviceFactors:
    """Return the fitted factors of a device; of an empty name, those of any other."""
    names = [_design(device), device] if device else []
    logs = {
        cost: sum(theta[len(PRIORS) + effects[name, cost]] for name in ["", *names] if (name, cost) in effects)
        for cost in DeviceFactors.__struct_fields__
    }
    return DeviceFactors(**{cost: float(np.exp(value)) for cost, value in logs.items()})


def _start(fit: TrainingFit, effects: Mapping[_Effect, int]) -> Floats:
    """Return parameters with the costs of a fit, whose factors are those of the devices themselves."""
    theta = np.zeros(len(PRIORS) + len(effects))
    theta[: len(PRIORS)] = np.log(list(asdict(fit.costs).values()))
    for (name, cost), i in effects.items():
        theta[len(PRIORS) + i] = log(getattr(fit.factors.get(name, DeviceFactors()), cost))
    return theta


def _costs(theta: Floats) -> TrainingCosts:
    return TrainingCosts(*np.exp(theta[: len(PRIORS)]).tolist())


def _predicted(theta: Floats, cases: Sequence[_Case], effects: Mapping[_Effect, int]) -> Floats:
    shared = _costs(theta)
    factors = {name: _factors(theta, effects, name) for name in {case.device for case in cases}}
    costs = (_costs_of(case.load.job, shared, factors[case.device]) for case in cases)
    return np.array([step_time(case.load, each).total_s for case, each in zip(cases, costs, strict=True)])


def _fit(cases: Sequence[_Case], effects: Mapping[_Effect, int], start: Floats | None = None) -> tuple[Floats, float]:
    """Return the logarithms of costs and factors, and half the sum of squares of the residuals, priors included.

    The search starts from the priors, or from the solution of a similar fit.
    """
    prior, width = np.array([*PRIORS.values(), *[(1.0, _EFFECT)] * len(effects)]).T
    prior = np.log(prior)
    seconds, noise = np.array([(case.seconds, case.noise) for case in cases]).T

    def residuals(theta: Floats) -> Floats:
        return np.concatenate((np.log(_predicted(theta, cases, effects) / seconds) / noise, (theta - prior) / width))

    # Which residuals a parameter moves: factors of two devices are then tried at once.
    moved = np.zeros((len(cases) + len(prior), len(prior)), dtype=bool)
    moved[: len(cases), : len(PRIORS)] = True
    for i, case in enumerate(cases):
        moved[i, [len(PRIORS) + effects[key] for key in _effects_of(case) if key in effects]] = True
    np.fill_diagonal(moved[len(cases) :], val=True)
    result = scipy.optimize.least_squares(
        residuals, prior if start is None else start, diff_step=_STEP, ftol=_TOLERANCE, xtol=_TOLERANCE,
        jac_sparsity=scipy.sparse.csr_matrix(moved) if effects else None,
    )  # fmt: skip
    return np.asarray(result.x), float(result.cost)


def _shapes(job: TrainingJob) -> tuple[object, ...]:
    """Return the sizes that shape the kernels of a job."""
    return (job.model.hidden, job.length, job.micro_batch, job.layout.tensor)


def _spreads(cases: Sequence[_Case], effects: Mapping[_Effect, int], theta: Floats) -> tuple[float, dict[str, float]]:
    """Return the spread of all cases, and those of devices with many."""
    errors, devices = _errors(cases, effects, theta), np.array([case.device for case in cases])
    names, counts = np.unique(devices, return_counts=True)
    many = names[counts >= _MANY].tolist()
    rest = ~np.isin(devices, many)
    spread = conformal_bound(errors[rest] if rest.any() else errors, _CONFIDENCE)
    if len({case.group for case in cases}) == 1:  # nothing says how far the costs carry
        spread = hypot(spread, _CARRIED)
    return spread, {name: conformal_bound(errors[devices == name], _CONFIDENCE) for name in many}


def _errors(cases: Sequence[_Case], effects: Mapping[_Effect, int], start: Floats | None = None) -> Floats:
    """Return the logarithms of predicted over measured times, from fits that left out a sixth of the groups each."""
    groups = sorted({case.group for case in cases}, key=str)
    folds = np.array([groups.index(case.group) % _FOLDS for case in cases])
    errors = np.zeros(len(cases))
    for fold in np.unique(folds):
        out, rest = ([cases[i] for i in np.flatnonzero(which).tolist()] for which in (folds == fold, folds != fold))
        theta, _ = _fit(rest or out, effects, start)
        measured = np.array([case.seconds for case in out])
        errors[folds == fold] = np.log(_predicted(theta, out, effects) / measured)
    return errors


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
    watts : float, optional
        Mean power of a device (`step_power`); None if its limit is unknown.
    """

    job: TrainingJob
    parts: BreakDown
    low_s: float
    high_s: float
    basis: str
    watts: float | None = None

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
        parts = step_time(timer.load(job), fit.costs_of(job, device))
        is_fitted = device.name in (fit.device, *fit.others) and job.layout.devices <= fit.devices
        spread = fit.spreads.get(device.name, fit.spread)
        factor = exp(spread if is_fitted else hypot(spread, _CARRIED))
        basis = "fitted" if is_fitted else "carried"
        # The device waits while the host updates.
        watts = step_power(replace(parts, optimizer_s=0.0) if job.offload else parts, device, parameters)
        predicted.append(PredictedStep(job, parts, parts.total_s / factor, parts.total_s * factor, basis, watts))
    return predicted


def step_power(parts: BreakDown, device: Device, parameters: Parameters) -> float | None:
    """Return the mean power of a device in a step, W; None of a device whose power limit is unknown.

    Products, other kernels and collectives draw the shares of the limit that `limit_power` takes. A device that waits
    draws its idle power.

    Parameters
    ----------
    parts : BreakDown
        Where the time of the step goes.
    device : Device
        Device that all ranks run on.
    parameters : Parameters
        With the shares, ``power_share_compute_bound`` and others.
    """
    if "power_w" not in device.figures:
        return None
    exchanges = parts.tensor_s + parts.context_s + parts.expert_s + parts.data_s
    busy = {
        "compute_bound": parts.compute_s - parts.streams_s,
        "memory_bound": parts.streams_s + parts.optimizer_s,
        "collective": exchanges,
    }
    busy["idle"] = max(parts.total_s - sum(busy.values()), 0.0)
    drawn = sum(parameters[f"power_share_{name}"] * seconds for name, seconds in busy.items())
    return device.value("power_w") * drawn / parts.total_s


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
