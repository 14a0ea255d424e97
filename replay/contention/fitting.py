"""Fits of the contention model to recorded scenarios.

`calibrate_contention` searches for the parameters (`BOUNDS`) under which predicted times are closest to the measured
ones. The cost of a point is Huber's loss of the logarithmic errors, plus a prior around the shipped values: the prior
decides where the data do not.

A range holds the fits that leave out a block of linked groups each. The spread of a `ContentionFit` is a conformal
quantile of the errors that these fits left out.
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

from profilers.errors import InvalidInputError
from profilers.trace.arrays import Floats, Ints
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
from replay.contention.search import Point, least_cost, neighbour, prior, values_at
from replay.costs.interference import InterferenceFit

#: Share of the peak below which no work of the recording was memory-bound.
_LEAST_MEMORY_SHARE = 0.2
#: Fitted parameters with their bounds. A fit at a bound shows that the model lacks a mechanism.
BOUNDS: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        "memory_efficiency_shared": (0.3, 1.2),
        "unit_bytes_per_clock": (5.0, 200.0),
        "tile_load_ratio": (0.5, 4.0),
        "l2_share_of_units": (0.2, 2.0),
        "l2_share_product_max": (0.2, 0.95),
        "unit_load_compute": (0.2, 4.0),
        "memory_time_softmax": (0.1, 0.97),
        "memory_time_resident": (0.1, 0.97),
        "kernel_start_ns": (100.0, 8000.0),
        "pressure_host_write": (0.01, 5.0),
        "pressure_host_read": (0.001, 1.0),
        "unit_host_write_gbps": (2.0, 100.0),
        "unit_host_read_gbps": (2.0, 100.0),
    }
)
#: Parameters that are fitted to traces, with their bounds: above 0, so that no draw is negative.
TRACE_BOUNDS: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        "pressure_collective": (0.01, 60.0),
        "pressure_share_waiting": (0.001, 1.0),
        "latency_sensitivity": (0.01, 20.0),
        "spin_weight": (0.1, 10.0),
    }
)
_FITTED = frozenset((*BOUNDS, *TRACE_BOUNDS))
_GROUPS, _SCENARIOS, _TEXT = 100_000, 10**7, 2000
#: Labels and values of an `InterferenceFit`.
_Label = Annotated[str, msgspec.Meta(min_length=1, max_length=20_000)]
_Factor = Annotated[float, msgspec.Meta(ge=0, le=1000)]
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
        Parameters that the recordings determine.
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
        Sensitivities of kernels that were fitted to traces; empty for a fit to recordings.
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
        return fitted_values.with_calibration(self.interference) if self.interference.kernels else fitted_values

    @property
    def digest(self) -> str:
        """SHA-256 of the content, independent of the layout of a file."""
        content = {**vars(self), "ranges": {name: msgspec.structs.asdict(each) for name, each in self.ranges.items()}}
        content["interference"] = dict(self.interference.kernels)
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


class ContentionRanges(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The fit of a calibration file of contention; fields as in `ContentionFit`."""

    parameters: dict[str, FittedRange]
    undetermined: tuple[str, ...]
    spread: Annotated[float, msgspec.Meta(ge=0, lt=10)]
    scenarios: Annotated[int, msgspec.Meta(ge=1, le=_SCENARIOS)]
    groups: Annotated[tuple[_Digest, ...], msgspec.Meta(min_length=1, max_length=_GROUPS)]
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
    facts = dict(fit.ranges), fit.undetermined, fit.spread, fit.scenarios, fit.groups
    content = ContentionRanges(*facts, dict(fit.interference.kernels))
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
    facts = (MappingProxyType(fit.parameters), fit.undetermined, fit.spread, fit.scenarios, fit.groups, content.source)
    interference = InterferenceFit(fit.kernels, content.devices[0])
    return ContentionFit(content.devices[0], *facts, interference)


def _check_range(name: str, fitted: FittedRange) -> None:
    """Check that a parameter is one that is fitted, and that its range is within the bounds."""
    value, low, high = fitted.value, fitted.low, fitted.high
    if name not in _FITTED:
        raise InvalidInputError(f"no parameter {name[:60]!r} is fitted; there are {', '.join(sorted(_FITTED))}")
    least, most = {**BOUNDS, **TRACE_BOUNDS}[name]
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


class _ScenarioErrors:
    """Errors of the chosen scenarios of recordings by the point of a search; what was predicted once is kept."""

    def __init__(self, chosen: Chosen, parameters: Parameters) -> None:
        labels = linked_groups([recording for recording, _ in chosen])
        self.parts = [_measured_of(*each, labels, parameters) for each in chosen if each[1]]
        self.base = self.parts[0].base
        self._known: dict[Point, tuple[Floats, ...]] = {}

    def errors(self, at: Point) -> tuple[Floats, ...]:
        """Return the logarithmic errors of the rows of each part."""
        if at not in self._known:
            values = values_at(at, BOUNDS, self.base).items()
            self._known[at] = tuple(part.errors(part.base.with_values(values)) for part in self.parts)
        return self._known[at]

    def cost(self, at: Point, folds: frozenset[int]) -> float:
        """Return the cost of a point by the rows of some folds: Huber's loss of the errors, and the prior."""
        cost = prior(at)
        for part, errors in zip(self.parts, self.errors(at), strict=True):
            kept = np.isin(part.fold, list(folds))
            cost += float((part.weight * _huber(errors / _SIGMA))[kept].sum())
        return cost


@dataclass(frozen=True)
class _Measured:
    """The measured times of one recording, with the model that predicts them.

    Rows are the times of lineups (scenarios, then single works on fewer units), then the ends of members.

    Parameters
    ----------
    model : ScenarioModel
        Model of the lineups.
    base : Parameters
        Parameters that are not fitted.
    log_ns, weight : array of float64
        Logarithms of the measured times, and weights of the rows.
    fold : array of int64
        Fold of each row.
    scenarios : int
        Number of scenarios: the first rows.
    """

    model: ScenarioModel
    base: Parameters
    log_ns: Floats
    weight: Floats
    fold: Ints
    scenarios: int

    def errors(self, parameters: Parameters) -> Floats:
        """Return the logarithmic error of each row."""
        ends = self.model.ends_ns(parameters)
        return np.asarray(np.log(np.concatenate([self.model.times_ns(ends), ends])) - self.log_ns)


def _huber(errors: Floats) -> Floats:
    """Return Huber's loss of errors."""
    size = np.abs(errors)
    return np.where(size < _OUTLIER, 0.5 * size * size, _OUTLIER * (size - 0.5 * _OUTLIER))


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


def _measured_of(
    recording: ContentionRecording,
    scenarios: Sequence[RecordedScenario],
    labels: Mapping[str, str],
    parameters: Parameters,
) -> _Measured:
    """Return the measured times of chosen scenarios, and of their works on fewer compute units."""
    fold_of_work: dict[str, int] = {}
    folds = [fold_of(f"left out: {labels[scenario.group]}", _BLOCKS) for scenario in scenarios]
    for scenario, fold in zip(scenarios, folds, strict=True):
        fold_of_work |= {member.work: fold for member in scenario.members}
    slower = [
        RecordedMember(work, recording.launches_alone(work, units), units=units)
        for work in sorted(fold_of_work)
        for units in recording.units_alone(work)
    ]
    alone_ns = [recording.alone_ns(member.work, member.launches, member.units) for member in slower]
    lineups: list[Lineup] = [*(scenario.members for scenario in scenarios), *((member,) for member in slower)]
    members = [len(lineup) for lineup in lineups]
    fold_of_lineup = np.array([*folds, *(fold_of_work[member.work] for member in slower)])
    ends = [*(end for scenario in scenarios for end in scenario.ends_ns), *alone_ns]
    times = [*(scenario.measured_ns for scenario in scenarios), *alone_ns]
    # The ends of a scenario share one weight; the end of a single work is its time, so it has weight 0.
    of_times = np.repeat([1.0, _WEIGHT], [len(scenarios), len(slower)])
    of_ends = np.repeat(np.where(of_times == 1.0, _WEIGHT / np.array(members), 0.0), members)
    return _Measured(
        scenario_model(recording, lineups),
        base_parameters(recording, parameters),
        np.log([*times, *ends]),
        np.concatenate([of_times, of_ends]),
        np.concatenate([fold_of_lineup, np.repeat(fold_of_lineup, members)]),
        len(scenarios),
    )


#: Function that is called with the number of steps done, the number of all steps, and a verb for the current step.
Progress = Callable[[int, int, str], None]
#: Fewest scenarios of a fit.
LEAST_SCENARIOS = 12
#: Blocks of linked groups that the jackknife leaves out in turn.
_BLOCKS = 6
_CONFIDENCE = 0.9
#: A parameter is determined by the data if the cost rises by this much this many powers away.
_DETERMINED, _AWAY = 4.0, 4
#: Ends of the range of the measured memory bandwidth, over its value.
_CEILING = (0.9, 1.05)


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

    Parameters that the data do not determine keep their shipped value and range. A range holds the fits that leave out
    a sixth of the groups each, and the spread comes from the scenarios that they left out.

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
    predictions, every, step = _ScenarioErrors(chosen, parameters), frozenset(range(_BLOCKS)), progress or _silent
    step(0, _BLOCKS + 1, "fitting")
    best = least_cost(partial(predictions.cost, folds=every), len(BOUNDS))
    points, errors = [best], [np.zeros(0)]
    for block in sorted(every):
        step(block + 1, _BLOCKS + 1, "fitting")
        left_out = [part.fold[: part.scenarios] == block for part in predictions.parts]
        if any(mask.any() for mask in left_out) and not all(mask.all() for mask in left_out):
            points.append(least_cost(partial(predictions.cost, folds=every - {block}), len(BOUNDS), best))
            found = predictions.errors(points[-1])
            errors += [each[: len(mask)][mask] for each, mask in zip(found, left_out, strict=True)]
    determined = _determined(best, lambda at: predictions.cost(at, every) - prior(at))
    left_out_errors = np.concatenate(errors)
    device = hardware_of_recording(recordings[0], ceilings_of(recordings[0])).device
    total = sum(len(s.members) > 1 for recording in recordings for s in recording.scenarios)
    return ContentionFit(
        device.name if device else names[0],
        MappingProxyType(_ranges(points, determined, predictions.base, parameters)),
        tuple(name for name in BOUNDS if name not in determined),
        conformal_bound(left_out_errors, _CONFIDENCE) if len(left_out_errors) else float(np.log(2.0)),
        count,
        tuple(sorted({key for recording, scenarios in chosen for s in scenarios for key in recording.digests_of(s)})),
        f"{count} of {total} scenarios of {', '.join(recording.source for recording in recordings)}",
    )


def _silent(done: int, steps: int, verb: str) -> None:
    """Show no progress."""


def _determined(best: Point, misfit: Callable[[Point], float]) -> set[str]:
    """Return the parameters for which the data alone make a difference, up or down from the best fit."""
    lowest = misfit(best)
    return {
        name
        for axis, name in enumerate(BOUNDS)
        if any(misfit(neighbour(best, axis, away)) - lowest > _DETERMINED for away in (_AWAY, -_AWAY))
    }


def _ranges(
    points: Sequence[Point], determined: set[str], base: Parameters, parameters: Parameters
) -> dict[str, FittedRange]:
    """Return the range of each determined parameter: a power beyond those of all fits, the first of which is best."""
    low, high = (tuple(each + step for each in end) for end, step in ((np.min(points, 0), -1), (np.max(points, 0), 1)))
    values, lows, highs = (values_at(point, BOUNDS, base) for point in (points[0], low, high))
    ranges = {name: FittedRange(values[name], lows[name], highs[name]) for name in BOUNDS if name in determined}
    ceiling = base["memory_efficiency_shared"]
    if "memory_efficiency_shared" not in ranges and ceiling != parameters["memory_efficiency_shared"]:
        ends = [float(np.clip(ceiling * share, *BOUNDS["memory_efficiency_shared"])) for share in (1.0, *_CEILING)]
        ranges["memory_efficiency_shared"] = _rounded_range(*ends)
    return ranges


def _rounded_range(*ends: float) -> FittedRange:
    """Return the range of a value, a low and a high end, each with five digits."""
    return FittedRange(*(float(f"{end:.5g}") for end in ends))
