"""Fitting the contention model to recordings of works side by side, and its calibration file.

The cost is the negative logarithm of the posterior of measured times, in the unit cube of the parameters. The search
starts from many points, since the engine's times are no smooth function of a parameter. `ContentionFit` holds the
fitted ranges, the parameters that the recordings do not determine, and the spread on scenarios that were left out.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

import msgspec
import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares  # type: ignore[import-untyped, unused-ignore]
from scipy.stats import qmc

from profilers.errors import InvalidInputError
from profilers.trace.arrays import Floats
from replay.calibration.files import CalibrationFile, CalibrationLayout
from replay.calibration.parameters import Parameters
from replay.contention.prediction import (
    Lineup,
    ScenarioModel,
    as_measured,
    ceilings_of,
    hardware_of_recording,
    scenario_model,
)
from replay.contention.recording import ContentionRecording, RecordedMember, RecordedScenario, fold_of, kin_of

#: Step of a derivative: wide, since times have kinks.
_STEP = 0.01


def spread_points(count: int, axes: int) -> Floats:
    """Return points that fill the unit cube evenly (Sobol), the same each time.

    Examples
    --------
    >>> spread_points(4, 2).shape
    (4, 2)
    """
    return np.asarray(qmc.Sobol(axes, scramble=False).random(2 * count)[count:], dtype=np.float64)


def least_residuals(residuals: Callable[[Floats], Floats], start: Floats, *, rounds: int = 8) -> Floats:
    """Return where in the unit cube the sum of squares is least near `start`, by its derivatives, in so many rounds.

    Examples
    --------
    >>> least_residuals(lambda x: x - np.array([0.3, 0.8]), np.array([0.5, 0.5])).round(3).tolist()
    [0.3, 0.8]
    """
    inside = np.clip(start, 1e-6, 1 - 1e-6)
    found = least_squares(
        lambda x: residuals(np.clip(x, 0.0, 1.0)),
        inside,
        bounds=(0.0, 1.0),
        diff_step=_STEP / np.maximum(inside, 0.1),
        max_nfev=rounds,
    )
    return np.asarray(np.clip(found.x, 0.0, 1.0), dtype=np.float64)


def least_cost(
    cost: Callable[[Floats], float], start: Floats, *, step: float = 0.25, least: float = 0.015
) -> tuple[Floats, float]:
    """Return where in the unit cube a cost is least, by steps along each axis that are halved where none helps.

    Parameters
    ----------
    cost : callable
        Of a point.
    start : array of float64, shape (n,)
        Within 0 to 1.
    step, least : float
        The first and the last width of a step.

    Returns
    -------
    (array of float64, float)
        The point, and its cost.

    Notes
    -----
    Compass search: Kolda, Lewis and Torczon, SIAM Review 45 (2003), 385. Deterministic: axes are taken in order, up
    before down.

    Examples
    --------
    >>> found, least = least_cost(lambda x: float(abs(x[0] - 0.3) + abs(x[1] - 0.8)), np.array([0.5, 0.5]))
    >>> bool(abs(found[0] - 0.3) < 0.02), bool(abs(found[1] - 0.8) < 0.02)
    (True, True)
    """
    at, found = np.clip(start, 0.0, 1.0), cost(np.clip(start, 0.0, 1.0))
    while step >= least:
        moved = False
        for axis in range(len(at)):
            for way in (step, -step):
                tried = at.copy()
                tried[axis] = np.clip(at[axis] + way, 0.0, 1.0)
                if tried[axis] != at[axis] and (new := cost(tried)) < found:
                    at, found, moved = tried, new, True
                    break
        if not moved:
            step /= 2
    return at, found


#: What is fitted, and within what: wide enough that an end of it says that the model lacks something.
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
#: What is chosen rather than fitted: 1 or 0.
CHOICES = ("dispatch_in_order", "dispatch_whole_waves")
_GROUPS, _SCENARIOS, _TEXT = 100_000, 10**7, 2000
_Digest = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{16}\Z")]


@dataclass(frozen=True)
class FittedRange:
    """A fitted parameter; `low` to `high` is believed to hold it nine times in ten."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class ContentionFit:
    """What was fitted, and to what.

    Parameters
    ----------
    device : str
        That was recorded.
    ranges : mapping of str to FittedRange
        Parameters that the recordings determined. A choice is 0 or 1 and has no width.
    undetermined : tuple of str
        Those that kept their shipped value and range, since the recordings do not tell.
    spread : float
        Of nine in ten scenarios that were left out of a fit, the logarithm of measured over predicted time is within
        this.
    scenarios : int
        That were fitted.
    groups : tuple of str
        Digests of what was fitted (`ContentionRecording.digests_of`).
    source : str
        Recordings that were fitted, in words.
    """

    device: str
    ranges: Mapping[str, FittedRange]
    undetermined: tuple[str, ...]
    spread: float
    scenarios: int
    groups: tuple[str, ...]
    source: str

    def parameters(self, base: Parameters) -> Parameters:
        """Return parameters with the fitted values and ranges in place of those of `base`; draws are from those.

        Parameters
        ----------
        base : Parameters
            Parameters that were not fitted.
        """
        new = {
            name: replace(
                base.known[name],
                value=one.value,
                low=one.low,
                high=one.high,
                certainty="fitted",
                source=f"works side by side on {self.device}: {self.source}",
            )
            for name, one in self.ranges.items()
        }
        merged = {**base.known, **new}
        values = {**base.values, **{name: one.value for name, one in self.ranges.items()}}
        return replace(base, known=MappingProxyType(merged), values=MappingProxyType(values))

    @property
    def digest(self) -> str:
        """SHA-256 of all of it, however the file is laid out."""
        content = {**asdict(replace(self, ranges={})), "ranges": {n: asdict(r) for n, r in sorted(self.ranges.items())}}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


class RangeRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A fitted parameter, as a calibration file holds it."""

    value: float
    low: float
    high: float


class ContentionRanges(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The fit of a calibration file of contention; fields as in `ContentionFit`."""

    parameters: dict[str, RangeRow]
    undetermined: tuple[str, ...]
    spread: Annotated[float, msgspec.Meta(ge=0, lt=10)]
    scenarios: Annotated[int, msgspec.Meta(ge=1, le=_SCENARIOS)]
    groups: Annotated[tuple[_Digest, ...], msgspec.Meta(min_length=1, max_length=_GROUPS)]


def write_contention_fit(path: Path, fit: ContentionFit) -> None:
    """Write a calibration of contention, whole or not at all.

    Parameters
    ----------
    path : Path
        JSON file to write or replace.
    fit : ContentionFit
        Fit to write.
    """
    ranges = {name: RangeRow(fitted.value, fitted.low, fitted.high) for name, fitted in fit.ranges.items()}
    content = ContentionRanges(ranges, fit.undetermined, fit.spread, fit.scenarios, fit.groups)
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
    if unknown := sorted(set(fit.undetermined) - {*BOUNDS, *CHOICES}):
        raise ValueError(f"no parameter {unknown[0][:60]!r} is fitted")
    if len(set(fit.undetermined)) != len(fit.undetermined):
        raise ValueError("undetermined names a parameter twice")
    ranges = {name: _range(name, row) for name, row in fit.parameters.items()}
    facts = (MappingProxyType(ranges), fit.undetermined, fit.spread, fit.scenarios, fit.groups, content.source)
    return ContentionFit(content.devices[0], *facts)


def _range(name: str, row: RangeRow) -> FittedRange:
    value, low, high = row.value, row.low, row.high
    if name in CHOICES:
        if value not in (0.0, 1.0) or not low == value == high:
            raise InvalidInputError(f"{name} is {value:g}, from {low:g} to {high:g}; it is 0 or 1")
        return FittedRange(value, low, high)
    if name not in BOUNDS:
        raise InvalidInputError(f"no parameter {name[:60]!r} is fitted; there are {', '.join((*BOUNDS, *CHOICES))}")
    least, most = BOUNDS[name]
    if not least <= low <= value <= high <= most:
        raise InvalidInputError(
            f"{name} is {value:g}, from {low:g} to {high:g}; in that order, they must be within {least:g} to {most:g}"
        )
    return FittedRange(value, low, high)


_LAYOUT = CalibrationLayout("contention", ContentionRanges, _fit_of)


#: Scenarios of a recording.
Chosen = Sequence[tuple[ContentionRecording, Sequence[RecordedScenario]]]
#: Standard deviation of the logarithm of a time that is expected of a good model, and beyond how many of them an error
#: counts in proportion rather than squared: some scenarios are of a kind that the model does not know.
_SIGMA, _OUTLIER = 0.04, 2.0
#: Of the ends of members, and of single works on fewer units, beside the time until all are done.
_WEIGHT = 0.5
#: Standard deviation of the prior of a parameter that is shipped without a range, as a share of its bounds; of one with
#: a range, that range is taken for central 90 % and is widened: priors decide where data do not.
_PRIOR, _WIDER, _CENTRAL_90 = 0.35, 1.5, 2 * 1.645
#: That of memory's bandwidth, whose value was measured on single works.
_OF_MEMORY = 0.1


@dataclass(frozen=True)
class _Part:
    """What was measured of one recording: logarithms of times by lineup and of ends by member, with weights."""

    model: ScenarioModel
    base: Parameters
    times: Floats
    ends: Floats
    weight_of_times: Floats
    weight_of_ends: Floats


@dataclass(frozen=True)
class Problem:
    """Scenarios to fit.

    Parameters
    ----------
    parts : tuple
        One a recording.
    base : Parameters
        What is not fitted.
    start, prior_widths : array of float64
        Where priors stand, in the unit cube over `replay.contention.fitting.BOUNDS`, and their standard deviations.
    """

    parts: tuple[_Part, ...]
    base: Parameters
    start: Floats
    prior_widths: Floats

    @property
    def count(self) -> int:
        """Lineups with times to fit."""
        return sum(len(part.times) for part in self.parts)

    def cost(self, at: Floats, choices: Mapping[str, float]) -> float:
        """Return minus the logarithm of the posterior, but for a constant."""
        return float(_huber(self.errors(at, choices)).sum() + 0.5 * np.sum(self.prior(at) ** 2))

    def misfit(self, at: Floats, choices: Mapping[str, float]) -> float:
        """Return what of the cost the data make: half the squares of errors, outliers less."""
        return float(_huber(self.errors(at, choices)).sum())

    def residuals(self, at: Floats, choices: Mapping[str, float]) -> Floats:
        """Return errors and, behind them, those of the prior, in standard deviations: outliers drawn in."""
        errors = self.errors(at, choices)
        return np.concatenate((np.sign(errors) * np.sqrt(2 * _huber(errors)), self.prior(at)))

    def prior(self, at: Floats) -> Floats:
        """Return how far a point is from where priors stand, in standard deviations."""
        return np.asarray((at - self.start) / self.prior_widths, dtype=np.float64)

    def errors(self, at: Floats, choices: Mapping[str, float]) -> Floats:
        """Return the weighted errors of times and of ends, in standard deviations."""
        found = []
        for part in self.parts:
            parameters = part.base.with_values([*values_at(at).items(), *choices.items()])
            ends = part.model.ends_ns(parameters)
            times = np.log(part.model.times_ns(ends)) - part.times
            found += [np.sqrt(part.weight_of_times) * times, np.sqrt(part.weight_of_ends) * (np.log(ends) - part.ends)]
        return np.concatenate(found) / _SIGMA


def _huber(errors: Floats) -> Floats:
    z = np.abs(errors)
    return np.where(z < _OUTLIER, 0.5 * z * z, _OUTLIER * (z - 0.5 * _OUTLIER))


def values_at(at: Floats) -> dict[str, float]:
    """Return the values of parameters at a point of the unit cube; what is above zero is spaced by its logarithm."""
    found = {}
    for x, (name, (low, high)) in zip(at.tolist(), BOUNDS.items(), strict=True):
        value = low * (high / low) ** x if low > 0 else low + (high - low) * x
        found[name] = float(min(max(value, low), high))
    return found


def coordinates(parameters: Mapping[str, float]) -> Floats:
    """Return where values of parameters stand in the unit cube; what is beyond a bound stands at it."""
    found = []
    for name, (low, high) in BOUNDS.items():
        value = min(max(parameters[name], low), high)
        found.append(np.log(value / low) / np.log(high / low) if low > 0 else (value - low) / (high - low))
    return np.array(found, dtype=np.float64)


def base_parameters(recording: ContentionRecording, known: Parameters) -> Parameters:
    """Return parameters in which memory delivers what the recording measured, where nobody fitted it yet."""
    if known.known["memory_efficiency_shared"].certainty == "fitted":
        return known
    ceilings = ceilings_of(recording)
    return as_measured(known, hardware_of_recording(recording, ceilings), ceilings)


def problem_of(chosen: Chosen, known: Parameters) -> Problem:
    """Return what is to be fitted: scenarios, and how their works slow down alone on fewer compute units."""
    parts = tuple(_part(recording, scenarios, known) for recording, scenarios in chosen if scenarios)
    base = parts[0].base
    return Problem(parts, base, coordinates(base.values), _prior_widths(base))


def _prior_widths(parameters: Parameters) -> Floats:
    low, high = (
        coordinates({name: getattr(one, end) for name, one in parameters.known.items()}) for end in ("low", "high")
    )
    widths = np.where(high > low, _WIDER * (high - low) / _CENTRAL_90, _PRIOR)
    widths[list(BOUNDS).index("memory_efficiency_shared")] = _OF_MEMORY
    return widths


def _part(recording: ContentionRecording, scenarios: Sequence[RecordedScenario], known: Parameters) -> _Part:
    works = sorted({member.work for one in scenarios for member in one.members})
    slower = [
        (RecordedMember(work, recording.launches_alone(work, units), units=units), units)
        for work in works
        for units in recording.units_alone(work)
    ]
    alone = [recording.alone_ns(member.work, member.launches, units) for member, units in slower]
    lineups: list[Lineup] = [*(one.members for one in scenarios), *((member,) for member, _ in slower)]
    ends = np.array([*(end for one in scenarios for end in one.ends_ns), *alone])
    times = np.array([*(one.measured_ns for one in scenarios), *alone])
    weights = np.repeat([1.0, _WEIGHT], [len(scenarios), len(alone)])
    # A lineup of several counts once for all its members; one of a single work has no other end.
    of_ends = [w for one in scenarios for w in [_WEIGHT / len(one.members)] * len(one.members)]
    return _Part(
        scenario_model(recording, lineups),
        base_parameters(recording, known),
        np.log(times),
        np.log(ends),
        weights,
        np.array([*of_ends, *([0.0] * len(alone))]),
    )


def choices_of(parameters: Parameters) -> dict[str, float]:
    """Return the choices that parameters stand for."""
    return {name: parameters[name] for name in CHOICES}


#: Called with (steps done, steps in all, what).
Progress = Callable[[int, int, str], None]
#: Scenarios that a fit needs at least.
LEAST_SCENARIOS = 12
#: Blocks of kin that are left out in turn, for intervals.
_BLOCKS = 6
#: Half-width of nine in ten of Student's distribution with that many less one.
_T90 = 2.015
_CONFIDENCE = 0.9
#: Points all over that are looked at, and searches from the best of them.
_POINTS, _STARTS, _INSIDE = 64, 3, 0.15
#: The first and last steps of the search near the best.
_NEAR, _ROUNDS = (0.06, 0.015), 5
#: What the misfit has to change by, over a parameter's bounds, for the data to tell it.
_TELLS = 4.0
#: Points of a profile, and by how much the misfit may rise within nine in ten: half the square of 1.645.
_GRID, _DEVIANCE = 21, 1.353
#: Ends of the range of a ceiling that was measured on single works, over its value.
_CEILING = (0.9, 1.05)


@dataclass(frozen=True)
class _Best:
    at: Floats
    choices: dict[str, float]
    told: npt.NDArray[np.bool_]
    told_choices: tuple[str, ...]
    profile: tuple[Floats, Floats]


def chosen_part(recordings: Sequence[ContentionRecording], keep: Callable[[str], bool]) -> Chosen:
    """Return the scenarios of several members whose kin (`replay.contention.recording.kin_of`) is kept."""
    kin = kin_of(recordings)
    return [(one, [s for s in one.scenarios if len(s.members) > 1 and keep(kin[s.group])]) for one in recordings]


def calibrate_contention(
    recordings: Sequence[ContentionRecording],
    *,
    parameters: Parameters,
    part: Callable[[str], bool] | None = None,
    progress: Progress | None = None,
) -> ContentionFit:
    """Fit the contention model to a part of the scenarios of recordings of one device.

    Parameters that the data do not determine keep their shipped value and range. A range is the wider of what explains
    the data about as well (profile) and of what fits say that leave out a sixth of the kin in turn (jackknife); the
    spread is of the scenarios that these left out.

    Parameters
    ----------
    recordings : sequence of ContentionRecording
        Recordings of one device.
    parameters : Parameters
        Priors of what is fitted, and the values of what is not.
    part : callable, optional
        Of a group's kin: whether it is fitted. By default one half, by a hash (`replay.contention.recording.fold_of`).
    progress : callable, optional
        Called with (steps done, steps in all, what).

    Raises
    ------
    InvalidInputError
        Recordings are of several devices, or fewer than 12 scenarios of two works or more are to be fitted.
    """
    base, keep = parameters, part or (lambda kin: fold_of(kin, 2) == 0)
    names = sorted({one.device.name for one in recordings})
    if len(names) > 1:
        raise InvalidInputError(f"recordings of {', '.join(names)}; fit each device by itself")
    chosen = chosen_part(recordings, keep)
    count = sum(len(scenarios) for _, scenarios in chosen)
    if count < LEAST_SCENARIOS:
        raise InvalidInputError(
            f"{count} scenarios of two works or more are to be fitted; at least {LEAST_SCENARIOS} are needed"
        )
    problem = problem_of(chosen, base)
    best = _best(problem, progress)
    spread_of_at, errors = _left_out(recordings, keep, base, best)
    device = hardware_of_recording(recordings[0], ceilings_of(recordings[0])).device
    return ContentionFit(
        device.name if device else names[0],
        MappingProxyType(_ranges(best, spread_of_at, recordings[0], base)),
        tuple(name for name, told in zip(BOUNDS, best.told, strict=True) if not told)
        + tuple(name for name in CHOICES if name not in best.told_choices),
        _conformal(errors),
        count,
        tuple(sorted({key for one, scenarios in chosen for s in scenarios for key in one.digests_of(s)})),
        _source(recordings, count),
    )


def _source(recordings: Sequence[ContentionRecording], count: int) -> str:
    every = sum(len(s.members) > 1 for one in recordings for s in one.scenarios)
    return f"{count} of {every} scenarios of {', '.join(one.source for one in recordings)}"


def _best(problem: Problem, progress: Progress | None = None) -> _Best:
    """Return the best fit: first under every choice, then by fine steps under the best of these."""
    shipped = choices_of(problem.base)
    way, tried, told_choices = dict(shipped), {tuple(shipped.values()): _from_many(problem, shipped)}, []
    for number, name in enumerate(CHOICES):
        if progress:
            progress(number, len(CHOICES) + 1, "fitting")
        other = {**way, name: 1.0 - way[name]}
        tried[tuple(other.values())] = _from_many(problem, other)
        gain = problem.cost(tried[tuple(way.values())], way) - problem.cost(tried[tuple(other.values())], other)
        if abs(gain) > _TELLS:
            told_choices.append(name)
        way = other if gain > _TELLS else way
    if progress:
        progress(len(CHOICES), len(CHOICES) + 1, "fitting")
    at = tried[tuple(way.values())]
    everything = np.ones(len(at), dtype=bool)
    at = _near(problem, at, way, everything)
    told = _profile(problem, at, way)[2] > _TELLS
    at = _near(problem, np.where(told, at, problem.start), way, told)
    low, high, _ = _profile(problem, at, way)
    return _Best(at, way, told, tuple(told_choices), (low, high))


def _from_many(problem: Problem, choices: dict[str, float]) -> Floats:
    """Return the best of searches from where priors stand, and from the best of points all over."""
    points = sorted(spread_points(_POINTS, len(problem.start)), key=lambda x: problem.cost(x, choices))
    # At a bound, where many priors stand, a parameter may have no effect and so no derivative.
    starts = [np.clip(problem.start, _INSIDE, 1 - _INSIDE), *points[:_STARTS]]
    found = [least_residuals(lambda x: problem.residuals(x, choices), one) for one in starts]
    return min(found, key=lambda x: problem.cost(x, choices))


def _near(problem: Problem, start: Floats, choices: dict[str, float], free: npt.NDArray[np.bool_]) -> Floats:
    """Return the least cost near `start`, along the free axes only."""
    axes = np.flatnonzero(free)
    if not len(axes):
        return start

    def whole(some: Floats) -> Floats:
        at = start.copy()
        at[axes] = some
        return at

    found = least_residuals(lambda some: problem.residuals(whole(some), choices), start[axes], rounds=_ROUNDS)
    found, _ = least_cost(lambda some: problem.cost(whole(some), choices), found, step=_NEAR[0], least=_NEAR[1])
    return whole(found)


def _profile(problem: Problem, at: Floats, choices: dict[str, float]) -> tuple[Floats, Floats, Floats]:
    """Return between where each parameter explains the data about as well, others fixed, and by how much it can not."""
    least, grid = problem.misfit(at, choices), np.linspace(0.0, 1.0, _GRID)
    allowed = _DEVIANCE * max(1.0, 2 * least / max(problem.count, 1))
    low, high, most = at.copy(), at.copy(), np.zeros(len(at))
    for axis in range(len(at)):
        rises = np.zeros(_GRID)
        for i, x in enumerate(grid.tolist()):
            tried = at.copy()
            tried[axis] = x
            rises[i] = problem.misfit(tried, choices) - least
        most[axis] = rises.max()
        below, above = (rises > allowed) & (grid < at[axis]), (rises > allowed) & (grid > at[axis])
        low[axis] = min(grid[below].max() if below.any() else 0.0, at[axis])
        high[axis] = max(grid[above].min() if above.any() else 1.0, at[axis])
    return low, high, most


def _left_out(
    recordings: Sequence[ContentionRecording], keep: Callable[[str], bool], known: Parameters, best: _Best
) -> tuple[Floats, Floats]:
    """Return the standard errors of the fit by leaving out blocks of kin, and the errors (logarithms) of these."""
    found, errors = [], [np.zeros(0)]
    for block in range(_BLOCKS):
        rest = chosen_part(recordings, partial(_outside, keep, block))
        out = chosen_part(recordings, partial(_inside, keep, block))
        if not any(scenarios for _, scenarios in out) or not any(scenarios for _, scenarios in rest):
            continue
        at = _near(problem_of(rest, known), best.at, best.choices, best.told)
        found.append(at)
        for part in problem_of(out, known).parts:
            model, parameters = part.model, part.base.with_values([*values_at(at).items(), *best.choices.items()])
            times = np.log(model.times_ns(model.ends_ns(parameters))) - part.times
            errors.append(times[part.weight_of_times == 1.0])
    k = max(len(found), 1)
    deviations = np.array(found) - np.mean(found, axis=0) if found else np.zeros((1, len(best.at)))
    return np.sqrt((k - 1) / k * np.sum(deviations**2, axis=0)), np.concatenate(errors)


def _inside(keep: Callable[[str], bool], block: int, kin: str) -> bool:
    return keep(kin) and fold_of(f"left out: {kin}", _BLOCKS) == block


def _outside(keep: Callable[[str], bool], block: int, kin: str) -> bool:
    return keep(kin) and fold_of(f"left out: {kin}", _BLOCKS) != block


def _conformal(errors: Floats) -> float:
    """Return what nine in ten errors are within, with room for their number."""
    if not len(errors):
        return float(np.log(2.0))
    among = np.sort(np.abs(errors))
    return float(among[min(int(np.ceil((len(among) + 1) * _CONFIDENCE)) - 1, len(among) - 1)])


def _ranges(best: _Best, errors: Floats, recording: ContentionRecording, known: Parameters) -> dict[str, FittedRange]:
    found = {}
    values = values_at(best.at)
    width = _T90 * errors + _NEAR[1]
    low = values_at(np.clip(np.minimum(best.at - width, best.profile[0]), 0.0, 1.0))
    high = values_at(np.clip(np.maximum(best.at + width, best.profile[1]), 0.0, 1.0))
    for name, told in zip(BOUNDS, best.told, strict=True):
        if told:
            found[name] = FittedRange(_short(values[name]), _short(low[name]), _short(high[name]))
    ceiling = base_parameters(recording, known)["memory_efficiency_shared"]
    if "memory_efficiency_shared" not in found and ceiling != known["memory_efficiency_shared"]:
        within = [float(np.clip(ceiling * share, *BOUNDS["memory_efficiency_shared"])) for share in (1.0, *_CEILING)]
        found["memory_efficiency_shared"] = FittedRange(*(_short(each) for each in within))
    for name in best.told_choices:
        found[name] = FittedRange(best.choices[name], best.choices[name], best.choices[name])
    return found


def _short(value: float) -> float:
    return float(f"{value:.5g}")
