"""Fits of the contention model to recorded scenarios.

`calibrate_contention` searches for the parameters (`BOUNDS`, `CHOICES`) under which predicted times are closest to the
measured ones. Parameters are coordinates in the unit cube. The cost of a point is Huber's loss of the logarithmic
errors, plus a Gaussian prior around the shipped values: the prior decides where the data do not. The engine's times are
no smooth function of a parameter, so searches combine wide derivatives (`least_residuals`) and compass steps
(`least_cost`).

Intervals are the wider of two: a profile of the cost, and a jackknife over blocks of linked groups. The spread of a
`ContentionFit` is a conformal quantile of the errors that the jackknife left out.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

import msgspec
import numpy as np
import numpy.typing as npt
import scipy

from profilers.errors import InvalidInputError
from profilers.trace.arrays import Floats
from profilers.trace.kernels import CLASSES
from replay.calibration.files import CalibrationFile, CalibrationLayout
from replay.calibration.parameters import Parameters, conformal_bound
from replay.contention.prediction import (
    Lineup,
    ScenarioModel,
    ceilings_of,
    hardware_of_recording,
    scenario_model,
)
from replay.contention.recording import ContentionRecording, RecordedMember, RecordedScenario, fold_of, linked_groups
from replay.costs.interference import InterferenceFit

#: Share of the peak below which no work of the recording was memory-bound.
_LEAST_MEMORY_SHARE = 0.2
#: Step of a derivative; wide, since predicted times have kinks.
_DERIVATIVE_STEP = 0.01


def least_residuals(residuals: Callable[[Floats], Floats], start: Floats, *, rounds: int = 8) -> Floats:
    """Return the point near `start` with the least sum of squares, by derivatives.

    Parameters
    ----------
    residuals : callable
        Function from a point of the unit cube to its residuals.
    start : array of float64, shape (n,)
        First point, within 0 to 1.
    rounds : int
        Largest number of evaluations, 8 by default; derivatives are extra.

    Examples
    --------
    >>> least_residuals(lambda x: x - np.array([0.3, 0.8]), np.array([0.5, 0.5])).round(3).tolist()
    [0.3, 0.8]
    """
    inside = np.clip(start, 1e-6, 1 - 1e-6)
    result = scipy.optimize.least_squares(
        lambda x: residuals(np.clip(x, 0.0, 1.0)),
        inside,
        bounds=(0.0, 1.0),
        diff_step=_DERIVATIVE_STEP / np.maximum(inside, 0.1),
        max_nfev=rounds,
    )
    return np.asarray(np.clip(result.x, 0.0, 1.0), dtype=np.float64)


def least_cost(
    cost: Callable[[Floats], float], start: Floats, *, step: float = 0.25, least: float = 0.015
) -> tuple[Floats, float]:
    """Return the point of least cost in the unit cube, and its cost, by compass search.

    Parameters
    ----------
    cost : callable
        Function from a point to its cost.
    start : array of float64, shape (n,)
        First point, within 0 to 1.
    step, least : float
        First and last width of a step; a width is halved when no step lowers the cost.

    Returns
    -------
    (array of float64, float)
        The point and its cost.

    Notes
    -----
    Compass search: Kolda, Lewis and Torczon, SIAM Review 45 (2003), 385. It is deterministic: axes are tried in order,
    up before down.

    Examples
    --------
    >>> point, cost = least_cost(lambda x: float(abs(x[0] - 0.3) + abs(x[1] - 0.8)), np.array([0.5, 0.5]))
    >>> bool(abs(point[0] - 0.3) < 0.02), bool(abs(point[1] - 0.8) < 0.02)
    (True, True)
    """
    point, lowest = np.clip(start, 0.0, 1.0), cost(np.clip(start, 0.0, 1.0))
    while step >= least:
        moved = False
        for axis in range(len(point)):
            for offset in (step, -step):
                candidate = point.copy()
                candidate[axis] = np.clip(point[axis] + offset, 0.0, 1.0)
                if candidate[axis] != point[axis] and (candidate_cost := cost(candidate)) < lowest:
                    point, lowest, moved = candidate, candidate_cost, True
                    break
        if not moved:
            step /= 2
    return point, lowest


#: Fitted parameters with their bounds. A fit at a bound shows that the model lacks a mechanism.
BOUNDS: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        "cu_share_saturating_memory": (0.02, 1.0),
        "cu_share_saturating_compute": (0.2, 1.0),
        "cu_share_held_compute": (0.2, 1.0),
        "cu_share_held_memory": (0.1, 1.0),
        "memory_efficiency_shared": (0.3, 1.2),
        "hit_share_compute_bound": (0.02, 0.95),
        "hit_share_memory_bound": (0.01, 0.9),
        "hit_share_resident": (0.0, 0.98),
        "l2_bandwidth_ratio": (1.0, 12.0),
        "workgroups_per_unit_max": (1.0, 64.0),
    }
)
#: Parameters that are 0 or 1, and are chosen instead of fitted.
CHOICES = ("dispatch_in_order", "dispatch_whole_waves")
#: Parameters that are fitted to traces, with their bounds.
TRACE_BOUNDS: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        "extra_round_cost": (0.05, 1.5),
        "lacking_units_cost": (0.0, 1.0),
        "latency_sensitivity": (0.01, 20.0),
        "pressure_share_waiting": (0.0, 1.0),
        "pressure_collective": (0.0, 20.0),
    }
)
_FITTED = frozenset((*BOUNDS, *CHOICES, *TRACE_BOUNDS))
_GROUPS, _SCENARIOS, _TEXT = 100_000, 10**7, 2000
#: Labels and values of an `InterferenceFit`, and its mappings.
_Label = Annotated[str, msgspec.Meta(min_length=1, max_length=20_000)]
_Factor = Annotated[float, msgspec.Meta(ge=0, le=1000)]
_INTERFERENCE = ("pressures", "classes", "kernels")
_Digest = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{16}\Z")]


class FittedRange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A fitted parameter with its central 90 % interval.

    Parameters
    ----------
    value : float
        Fitted value.
    low, high : float
        Ends of the interval.
    """

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class ContentionFit:
    """Fitted parameters of contention, with the recordings they were fitted to.

    Parameters
    ----------
    device : str
        Name of the recorded device.
    ranges : mapping of str to FittedRange
        Parameters that the recordings determine. A choice is 0 or 1, with an interval of no width.
    undetermined : tuple of str
        Parameters that keep their shipped value and range, since the recordings do not determine them.
    spread : float
        Bound on the absolute logarithm of measured over predicted time, for nine in ten scenarios that a fit left out.
    scenarios : int
        Number of fitted scenarios.
    groups : tuple of str
        Digests of the fitted scenarios (`ContentionRecording.digests_of`).
    source : str
        Recordings or traces of the fit, and how many of their scenarios or kernels were fitted.
    interference : InterferenceFit
        Pressures and sensitivities that were fitted to traces; empty for a fit to recordings.
    """

    device: str
    ranges: Mapping[str, FittedRange]
    undetermined: tuple[str, ...]
    spread: float
    scenarios: int
    groups: tuple[str, ...]
    source: str
    interference: InterferenceFit = field(default_factory=InterferenceFit)

    def parameters(self, base: Parameters) -> Parameters:
        """Return parameters with the fitted values and ranges in place of those of `base`.

        Parameters
        ----------
        base : Parameters
            Parameters to change.
        """
        source = f"works side by side on {self.device}: {self.source}"
        known, values = dict(base.known), dict(base.values)
        for name, fitted in self.ranges.items():
            parameter = replace(known[name], value=fitted.value, low=fitted.low, high=fitted.high)
            known[name] = replace(parameter, certainty="fitted", source=source)
            values[name] = fitted.value
        fitted_values = replace(base, known=MappingProxyType(known), values=MappingProxyType(values))
        return fitted_values.with_calibration(self.interference) if self.interference.pressures else fitted_values

    @property
    def digest(self) -> str:
        """SHA-256 of the content, independent of the layout of a file."""
        content = {**vars(self), "ranges": {name: msgspec.structs.asdict(each) for name, each in self.ranges.items()}}
        content["interference"] = {key: dict(getattr(self.interference, key)) for key in _INTERFERENCE}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


class ContentionRanges(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The fit of a calibration file of contention; fields as in `ContentionFit`."""

    parameters: dict[str, FittedRange]
    undetermined: tuple[str, ...]
    spread: Annotated[float, msgspec.Meta(ge=0, lt=10)]
    scenarios: Annotated[int, msgspec.Meta(ge=1, le=_SCENARIOS)]
    groups: Annotated[tuple[_Digest, ...], msgspec.Meta(min_length=1, max_length=_GROUPS)]
    pressures: dict[_Label, _Factor] = {}
    classes: dict[_Label, _Factor] = {}
    kernels: dict[_Label, _Factor] = {}


def write_contention_fit(path: Path, fit: ContentionFit) -> None:
    """Write a calibration of contention, whole or not at all.

    Parameters
    ----------
    path : Path
        JSON file to write or replace.
    fit : ContentionFit
        Fit to write.
    """
    labels = {key: dict(getattr(fit.interference, key)) for key in _INTERFERENCE}
    content = ContentionRanges(dict(fit.ranges), fit.undetermined, fit.spread, fit.scenarios, fit.groups, **labels)
    _LAYOUT.write(path, content, devices=[fit.device], source=fit.source)


def read_contention_fit(path: str | Path) -> ContentionFit:
    """Read a calibration of contention.

    Parameters
    ----------
    path : str or Path
        JSON file that `write_contention_fit` wrote.

    Raises
    ------
    NotFoundError, InvalidInputError
        There is no such file, or its content is no calibration of contention; the key is named.
    """
    return _LAYOUT.read(path)


def _fit_of(content: CalibrationFile[ContentionRanges]) -> ContentionFit:
    fit = content.fit
    if len(content.devices) != 1 or max(len(text) for text in (*content.devices, content.source)) > _TEXT:
        raise ValueError(f"devices is one name, and source a text, of at most {_TEXT} characters")
    if unknown := sorted(set(fit.undetermined) - _FITTED):
        raise ValueError(f"no parameter {unknown[0][:60]!r} is fitted")
    if len(set(fit.undetermined)) != len(fit.undetermined):
        raise ValueError("undetermined names a parameter twice")
    for name, fitted in fit.parameters.items():
        _check_range(name, fitted)
    if unheard := sorted(set(fit.classes) - set(CLASSES)):
        raise ValueError(f"no class of kernels is called {unheard[0][:60]!r}; there are {', '.join(CLASSES)}")
    facts = (MappingProxyType(fit.parameters), fit.undetermined, fit.spread, fit.scenarios, fit.groups, content.source)
    interference = InterferenceFit(**{key: getattr(fit, key) for key in _INTERFERENCE}, device=content.devices[0])
    return ContentionFit(content.devices[0], *facts, interference)


def _check_range(name: str, fitted: FittedRange) -> None:
    """Check that a parameter is one that is fitted, and that its range is within the bounds."""
    value, low, high = fitted.value, fitted.low, fitted.high
    if name not in _FITTED:
        raise InvalidInputError(f"no parameter {name[:60]!r} is fitted; there are {', '.join(sorted(_FITTED))}")
    if name in CHOICES and (value not in (0.0, 1.0) or not low == value == high):
        raise InvalidInputError(f"{name} is {value:g}, from {low:g} to {high:g}; it is 0 or 1")
    least, most = {**BOUNDS, **TRACE_BOUNDS}.get(name, (0.0, 1.0))
    if not least <= low <= value <= high <= most:
        raise InvalidInputError(
            f"{name} is {value:g}, from {low:g} to {high:g}; in that order, they must be within {least:g} to {most:g}"
        )


_LAYOUT = CalibrationLayout("contention", ContentionRanges, _fit_of)


#: Scenarios of a recording.
Chosen = Sequence[tuple[ContentionRecording, Sequence[RecordedScenario]]]
#: Expected standard deviation of logarithmic errors, and the number of deviations beyond which the loss is linear.
#: Some scenarios are of a kind that the model lacks.
_SIGMA, _OUTLIER = 0.04, 2.0
#: Weight of the ends of members, and of single works on fewer units; the time until all are done has weight 1.
_WEIGHT = 0.5
#: Standard deviation of the prior of a parameter that is shipped without a range, as a share of its bounds. A shipped
#: range counts as central 90 % and is widened.
_PRIOR, _WIDER, _CENTRAL_90 = 0.35, 1.5, 2 * 1.645
#: Standard deviation of the prior of the memory bandwidth, which was measured on single works.
_MEMORY_PRIOR = 0.1


@dataclass(frozen=True)
class _Measured:
    """The measured times of one recording, with the model that predicts them.

    Parameters
    ----------
    model : ScenarioModel
        Model of the lineups: scenarios, then single works on fewer units.
    base : Parameters
        Parameters that are not fitted.
    times, ends : array of float64
        Logarithms of the time of each lineup, and of the end of each member.
    weight_of_times, weight_of_ends : array of float64
        Weights of those.
    """

    model: ScenarioModel
    base: Parameters
    times: Floats
    ends: Floats
    weight_of_times: Floats
    weight_of_ends: Floats

    def errors(self, at: Floats, choices: Mapping[str, float]) -> tuple[Floats, Floats]:
        """Return the logarithmic errors of times and of ends at a point of the unit cube."""
        ends = self.model.ends_ns(self.base.with_values([*values_at(at).items(), *choices.items()]))
        return np.log(self.model.times_ns(ends)) - self.times, np.log(ends) - self.ends


@dataclass(frozen=True)
class Problem:
    """A fit to solve: measured times, and the prior of the parameters.

    Parameters
    ----------
    parts : tuple
        Measured times, one entry per recording.
    base : Parameters
        Parameters that are not fitted.
    start, prior_widths : array of float64
        Means and standard deviations of the prior, in the unit cube over `BOUNDS`.
    """

    parts: tuple[_Measured, ...]
    base: Parameters
    start: Floats
    prior_widths: Floats

    def cost(self, at: Floats, choices: Mapping[str, float]) -> float:
        """Return the negative logarithm of the posterior, up to a constant."""
        return self.misfit(at, choices) + float(0.5 * np.sum(self.prior(at) ** 2))

    def misfit(self, at: Floats, choices: Mapping[str, float]) -> float:
        """Return the part of the cost that comes from the data: Huber's loss of the errors."""
        return float(_huber(self.errors(at, choices)).sum())

    def residuals(self, at: Floats, choices: Mapping[str, float]) -> Floats:
        """Return residuals whose half squares add up to the cost: errors, then deviations from the prior."""
        errors = self.errors(at, choices)
        return np.concatenate((np.sign(errors) * np.sqrt(2 * _huber(errors)), self.prior(at)))

    def prior(self, at: Floats) -> Floats:
        """Return the deviations of a point from the mean of the prior, in standard deviations."""
        return np.asarray((at - self.start) / self.prior_widths, dtype=np.float64)

    def errors(self, at: Floats, choices: Mapping[str, float]) -> Floats:
        """Return the weighted errors of times and ends, in standard deviations."""
        errors = []
        for measured in self.parts:
            times, ends = measured.errors(at, choices)
            errors += [np.sqrt(measured.weight_of_times) * times, np.sqrt(measured.weight_of_ends) * ends]
        return np.concatenate(errors) / _SIGMA


def _huber(errors: Floats) -> Floats:
    """Return Huber's loss of errors."""
    size = np.abs(errors)
    return np.where(size < _OUTLIER, 0.5 * size * size, _OUTLIER * (size - 0.5 * _OUTLIER))


def values_at(at: Floats) -> dict[str, float]:
    """Return the parameter values at a point of the unit cube; bounds above zero are spaced by the logarithm."""
    values = {}
    for x, (name, (low, high)) in zip(at.tolist(), BOUNDS.items(), strict=True):
        value = low * (high / low) ** x if low > 0 else low + (high - low) * x
        values[name] = float(min(max(value, low), high))
    return values


def coordinates(parameters: Mapping[str, float]) -> Floats:
    """Return the point of the unit cube for parameter values; values out of bounds are clipped."""
    point = []
    for name, (low, high) in BOUNDS.items():
        value = min(max(parameters[name], low), high)
        point.append(np.log(value / low) / np.log(high / low) if low > 0 else (value - low) / (high - low))
    return np.array(point, dtype=np.float64)


def base_parameters(recording: ContentionRecording, parameters: Parameters) -> Parameters:
    """Return parameters in which memory delivers its measured bandwidth, unless that was fitted already.

    Parameters
    ----------
    recording : ContentionRecording
        Recording that shows the bandwidth.
    parameters : Parameters
        Parameters to change.
    """
    if parameters.known["memory_efficiency_shared"].certainty == "fitted":
        return parameters
    ceilings = ceilings_of(recording)
    device = hardware_of_recording(recording, ceilings).device
    share = ceilings.memory_bytes_per_s / device.memory_bytes_per_s if device else 0.0
    if share < _LEAST_MEMORY_SHARE:  # no work shows the bandwidth
        return parameters
    return parameters.with_values([("memory_efficiency_shared", min(share, 1.0))])


def problem_of(chosen: Chosen, parameters: Parameters) -> Problem:
    """Return the problem of fitting chosen scenarios, and their works on fewer compute units."""
    measured = tuple(_measured_of(recording, scenarios, parameters) for recording, scenarios in chosen if scenarios)
    base = measured[0].base
    low, high = (coordinates({name: getattr(base.known[name], end) for name in BOUNDS}) for end in ("low", "high"))
    widths = np.where(high > low, _WIDER * (high - low) / _CENTRAL_90, _PRIOR)
    widths[list(BOUNDS).index("memory_efficiency_shared")] = _MEMORY_PRIOR
    return Problem(measured, base, coordinates(base.values), widths)


def _measured_of(
    recording: ContentionRecording, scenarios: Sequence[RecordedScenario], parameters: Parameters
) -> _Measured:
    """Return the measured times of chosen scenarios, and of their works on fewer compute units."""
    slower = [
        RecordedMember(work, recording.launches_alone(work, units), units=units)
        for work in sorted({member.work for scenario in scenarios for member in scenario.members})
        for units in recording.units_alone(work)
    ]
    alone_ns = [recording.alone_ns(member.work, member.launches, member.units) for member in slower]
    lineups: list[Lineup] = [*(scenario.members for scenario in scenarios), *((member,) for member in slower)]
    ends = np.array([*(end for scenario in scenarios for end in scenario.ends_ns), *alone_ns])
    times = np.array([*(scenario.measured_ns for scenario in scenarios), *alone_ns])
    weights = np.repeat([1.0, _WEIGHT], [len(scenarios), len(alone_ns)])
    # The ends of a scenario share one weight; the end of a single work is its time, so it has weight 0.
    members = [len(scenario.members) for scenario in scenarios]
    end_weights = np.array([*np.repeat([_WEIGHT / count for count in members], members), *([0.0] * len(alone_ns))])
    model, base = scenario_model(recording, lineups), base_parameters(recording, parameters)
    return _Measured(model, base, np.log(times), np.log(ends), weights, end_weights)


#: Function that is called with the number of steps done, the number of all steps, and a verb for the current step.
Progress = Callable[[int, int, str], None]
#: Fewest scenarios of a fit.
LEAST_SCENARIOS = 12
#: Blocks of linked groups that the jackknife leaves out in turn.
_BLOCKS = 6
#: Student's t of a central 90 % interval, with one degree of freedom less than blocks.
_T90 = 2.015
_CONFIDENCE = 0.9
#: Points that a search tries all over the cube, searches from the best of them, and distance of starts from the bounds.
_POINTS, _STARTS, _INSIDE = 64, 3, 0.15
#: First and last step of the search near the best point, and evaluations of the search by derivatives.
_NEAR_STEPS, _ROUNDS = (0.06, 0.015), 5
#: Change of the misfit over a parameter's bounds that counts as determined by the data.
_DETERMINED = 4.0
#: Points of a profile, and rise of the misfit at the ends of a 90 % interval: half the square of 1.645.
_GRID, _DEVIANCE = 21, 1.353
#: Ends of the range of the measured memory bandwidth, over its value.
_CEILING = (0.9, 1.05)


@dataclass(frozen=True)
class _Best:
    """The best fit of a problem.

    Parameters
    ----------
    at : array of float64
        Point in the unit cube.
    choices : dict of str to float
        Values of the choices.
    determined : array of bool
        Whether the data determine each parameter.
    determined_choices : tuple of str
        Choices that the data determine.
    profile : (array of float64, array of float64)
        Ends of the interval of each parameter, with the others fixed.
    """

    at: Floats
    choices: dict[str, float]
    determined: npt.NDArray[np.bool_]
    determined_choices: tuple[str, ...]
    profile: tuple[Floats, Floats]


def chosen_part(recordings: Sequence[ContentionRecording], keep: Callable[[str], bool]) -> Chosen:
    """Return the scenarios of two members or more whose groups are kept.

    Parameters
    ----------
    recordings : sequence of ContentionRecording
        Recordings to choose from.
    keep : callable
        Function from the label of a group (`replay.contention.recording.linked_groups`) to whether it is kept.
    """
    labels = linked_groups(recordings)
    return [
        (recording, [s for s in recording.scenarios if len(s.members) > 1 and keep(labels[s.group])])
        for recording in recordings
    ]


def calibrate_contention(
    recordings: Sequence[ContentionRecording],
    *,
    parameters: Parameters,
    part: Callable[[str], bool] | None = None,
    progress: Progress | None = None,
) -> ContentionFit:
    """Fit the contention model to a part of the scenarios of recordings of one device.

    Parameters that the data do not determine keep their shipped value and range. A range is the wider of a profile of
    the cost and a jackknife, which leaves out a sixth of the groups in turn. The spread comes from the scenarios that
    the jackknife left out.

    Parameters
    ----------
    recordings : sequence of ContentionRecording
        Recordings of one device.
    parameters : Parameters
        Parameters to start from: priors of what is fitted, values of what is not.
    part : callable, optional
        Function from the label of a group (`replay.contention.recording.linked_groups`) to whether it is fitted. By
        default it selects one half, by a hash (`replay.contention.recording.fold_of`).
    progress : callable, optional
        Function that is called at each step, as `Progress` describes.

    Raises
    ------
    InvalidInputError
        Recordings are of several devices, or fewer than 12 scenarios of two works or more are to be fitted.
    """
    keep = part or (lambda label: fold_of(label, 2) == 0)
    names = sorted({recording.device.name for recording in recordings})
    if len(names) > 1:
        raise InvalidInputError(f"recordings of {', '.join(names)}; fit each device by itself")
    chosen = chosen_part(recordings, keep)
    count = sum(len(scenarios) for _, scenarios in chosen)
    if count < LEAST_SCENARIOS:
        raise InvalidInputError(
            f"{count} scenarios of two works or more are to be fitted; at least {LEAST_SCENARIOS} are needed"
        )
    best = _best_fit(problem_of(chosen, parameters), progress or (lambda done, steps, verb: None))
    standard_errors, errors = _jackknife(recordings, keep, parameters, best)
    device = hardware_of_recording(recordings[0], ceilings_of(recordings[0])).device
    undetermined = [name for name, determined in zip(BOUNDS, best.determined, strict=True) if not determined]
    total = sum(len(s.members) > 1 for recording in recordings for s in recording.scenarios)
    return ContentionFit(
        device.name if device else names[0],
        MappingProxyType(_ranges(best, standard_errors, recordings[0], parameters)),
        (*undetermined, *(name for name in CHOICES if name not in best.determined_choices)),
        conformal_bound(errors, _CONFIDENCE) if len(errors) else float(np.log(2.0)),
        count,
        tuple(sorted({key for recording, scenarios in chosen for s in scenarios for key in recording.digests_of(s)})),
        f"{count} of {total} scenarios of {', '.join(recording.source for recording in recordings)}",
    )


def _best_fit(problem: Problem, progress: Progress) -> _Best:
    """Return the best fit: a search under each value of the choices, then small steps under the best values."""
    choices = {name: problem.base[name] for name in CHOICES}
    at, determined_choices = _searched(problem, choices), []
    for number, name in enumerate(CHOICES):
        progress(number, len(CHOICES) + 1, "fitting")
        flipped = {**choices, name: 1.0 - choices[name]}
        flipped_at = _searched(problem, flipped)
        gain = problem.cost(at, choices) - problem.cost(flipped_at, flipped)
        if abs(gain) > _DETERMINED:
            determined_choices.append(name)
        if gain > _DETERMINED:
            at, choices = flipped_at, flipped
    progress(len(CHOICES), len(CHOICES) + 1, "fitting")
    at = _refined(problem, at, choices, np.ones(len(at), dtype=bool))
    determined = _profile(problem, at, choices)[2] > _DETERMINED
    at = _refined(problem, np.where(determined, at, problem.start), choices, determined)
    low, high, _ = _profile(problem, at, choices)
    return _Best(at, choices, determined, tuple(determined_choices), (low, high))


def _searched(problem: Problem, choices: dict[str, float]) -> Floats:
    """Return the best point of several searches: from the prior, and from the best of evenly spread points."""
    # The second part of Sobol's sequence, without its first point, a corner of the cube.
    sobol = scipy.stats.qmc.Sobol(len(problem.start), scramble=False).random(2 * _POINTS)[_POINTS:]
    points = sorted(sobol, key=lambda x: problem.cost(x, choices))
    # Many priors are at a bound, where a parameter may have no effect and so no derivative.
    starts = [np.clip(problem.start, _INSIDE, 1 - _INSIDE), *points[:_STARTS]]
    results = [least_residuals(lambda x: problem.residuals(x, choices), start) for start in starts]
    return min(results, key=lambda x: problem.cost(x, choices))


def _refined(problem: Problem, start: Floats, choices: dict[str, float], free: npt.NDArray[np.bool_]) -> Floats:
    """Return the point of least cost near `start`, along the free axes."""
    axes = np.flatnonzero(free)
    if not len(axes):
        return start

    def full_point(free_values: Floats) -> Floats:
        point = start.copy()
        point[axes] = free_values
        return point

    first, last = _NEAR_STEPS
    values = least_residuals(lambda x: problem.residuals(full_point(x), choices), start[axes], rounds=_ROUNDS)
    values, _ = least_cost(lambda x: problem.cost(full_point(x), choices), values, step=first, least=last)
    return full_point(values)


def _profile(problem: Problem, at: Floats, choices: dict[str, float]) -> tuple[Floats, Floats, Floats]:
    """Return the interval of each parameter with the others fixed, and the largest rise of the misfit."""
    lowest, grid = problem.misfit(at, choices), np.linspace(0.0, 1.0, _GRID)
    count = sum(len(measured.times) for measured in problem.parts)
    allowed = _DEVIANCE * max(1.0, 2 * lowest / max(count, 1))
    low, high, largest_rise = at.copy(), at.copy(), np.zeros(len(at))
    for axis in range(len(at)):
        rises = np.zeros(_GRID)
        for i, x in enumerate(grid.tolist()):
            point = at.copy()
            point[axis] = x
            rises[i] = problem.misfit(point, choices) - lowest
        largest_rise[axis] = rises.max()
        below, above = (rises > allowed) & (grid < at[axis]), (rises > allowed) & (grid > at[axis])
        low[axis] = min(grid[below].max() if below.any() else 0.0, at[axis])
        high[axis] = max(grid[above].min() if above.any() else 1.0, at[axis])
    return low, high, largest_rise


def _jackknife(
    recordings: Sequence[ContentionRecording], keep: Callable[[str], bool], parameters: Parameters, best: _Best
) -> tuple[Floats, Floats]:
    """Return standard errors from fits without one block of groups each, and logarithmic errors of the blocks."""
    points, errors = [], [np.zeros(0)]
    for block in range(_BLOCKS):
        kept, left_out = (chosen_part(recordings, partial(_keeps, keep, block, inside)) for inside in (False, True))
        if not any(scenarios for _, scenarios in left_out) or not any(scenarios for _, scenarios in kept):
            continue
        at = _refined(problem_of(kept, parameters), best.at, best.choices, best.determined)
        points.append(at)
        for measured in problem_of(left_out, parameters).parts:
            errors.append(measured.errors(at, best.choices)[0][measured.weight_of_times == 1.0])
    k = max(len(points), 1)
    deviations = np.array(points) - np.mean(points, axis=0) if points else np.zeros((1, len(best.at)))
    return np.sqrt((k - 1) / k * np.sum(deviations**2, axis=0)), np.concatenate(errors)


def _keeps(keep: Callable[[str], bool], block: int, inside: bool, label: str) -> bool:
    """Return whether a group is kept, and is inside or outside a block of the jackknife."""
    return keep(label) and (fold_of(f"left out: {label}", _BLOCKS) == block) == inside


def _ranges(
    best: _Best, errors: Floats, recording: ContentionRecording, parameters: Parameters
) -> dict[str, FittedRange]:
    """Return the fitted range of each determined parameter; `errors` are standard errors in the unit cube."""
    width = _T90 * errors + _NEAR_STEPS[1]
    low = np.clip(np.minimum(best.at - width, best.profile[0]), 0.0, 1.0)
    high = np.clip(np.maximum(best.at + width, best.profile[1]), 0.0, 1.0)
    values = [values_at(point) for point in (best.at, low, high)]
    ranges = {
        name: _rounded_range(*(each[name] for each in values))
        for name, is_determined in zip(BOUNDS, best.determined, strict=True)
        if is_determined
    }
    ceiling = base_parameters(recording, parameters)["memory_efficiency_shared"]
    if "memory_efficiency_shared" not in ranges and ceiling != parameters["memory_efficiency_shared"]:
        ends = [float(np.clip(ceiling * share, *BOUNDS["memory_efficiency_shared"])) for share in (1.0, *_CEILING)]
        ranges["memory_efficiency_shared"] = _rounded_range(*ends)
    for name in best.determined_choices:
        ranges[name] = FittedRange(*[best.choices[name]] * 3)
    return ranges


def _rounded_range(*ends: float) -> FittedRange:
    """Return the range of a value, a low and a high end, each with five digits."""
    return FittedRange(*(float(f"{end:.5g}") for end in ends))
