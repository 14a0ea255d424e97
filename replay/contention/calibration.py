"""Fit the parameters of the contention model to works that were measured side by side."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from profilers.errors import InvalidInputError
from replay.contention.ceilings import ceilings_of, hardware_of_recording
from replay.contention.fits import BOUNDS, CHOICES, ContentionFit, FittedRange
from replay.contention.problem import Chosen, Problem, base_parameters, choices_of, problem_of, values_at
from replay.contention.recording import ContentionRecording
from replay.contention.search import least_cost, least_residuals, spread_points
from replay.contention.splitting import fold_of, kin_of
from replay.parameters import Parameters, load_parameters

__all__ = ["LEAST_SCENARIOS", "calibrate_contention", "chosen_part"]

Floats = npt.NDArray[np.float64]
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
    """Return the scenarios of several members whose kin (`replay.contention.splitting.kin_of`) is kept."""
    kin = kin_of(recordings)
    return [(one, [s for s in one.scenarios if len(s.members) > 1 and keep(kin[s.group])]) for one in recordings]


def calibrate_contention(
    recordings: Sequence[ContentionRecording],
    known: Parameters | None = None,
    *,
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
    known : Parameters, optional
        By default the shipped ones.
    part : callable, optional
        Of a group's kin: whether it is fitted. By default one half, by a hash (`replay.contention.splitting.fold_of`).
    progress : callable, optional

    Raises
    ------
    InvalidInputError
        Recordings are of several devices, or fewer than 12 scenarios of two works or more are to be fitted.
    """
    base, keep = known or load_parameters(), part or (lambda kin: fold_of(kin, 2) == 0)
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
