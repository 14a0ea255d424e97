"""What a fit of the contention model is judged by: how far predicted times are from measured ones."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from replay.contention.ceilings import as_measured, ceilings_of, hardware_of_recording
from replay.contention.fits import BOUNDS, CHOICES
from replay.contention.prediction import Lineup, ScenarioModel, scenario_model
from replay.contention.recording import ContentionRecording, RecordedMember, RecordedScenario
from replay.parameters import Parameters

__all__ = ["Problem", "base_parameters", "choices_of", "coordinates", "problem_of", "values_at"]

Floats = npt.NDArray[np.float64]
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
        Where priors stand, in the unit cube over `replay.contention.fits.BOUNDS`, and their standard deviations.
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
