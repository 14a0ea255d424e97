"""Predicted scenarios of contention: with fixed parameters, or each with a fit that left it out."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from operator import itemgetter

import numpy as np

from replay import contention
from replay.contention.fitting import chosen_part
from replay.costs.shipped import load_parameters
from replay.projection.evidence import QUANTILES
from seqpoint.validation.suites import Progress, followed

#: Number of folds; each is predicted from a fit of the other folds.
FOLDS = 4
#: Draws of parameters from their ranges, for intervals.
_DRAWS, _SEED = 24, 0


@dataclass(frozen=True)
class ContentionCase:
    """A scenario with its prediction.

    Parameters
    ----------
    recording, device, group, scenario, policy, mechanism : str
        Name of the recording, its device, the group of scenarios, the scenario, the policy, and the resource that
        the members compete for.
    carrier : str
        Carrier of a transfer beside a kernel that computes: ``"copy engine"`` or ``"SM copies"``; else empty.
    measured_ns, predicted_ns, low_ns, high_ns : float
        Time until all members are done, measured and predicted, with the central 90 % of the prediction.
    alone_ns : tuple of float
        Time of all launches of each member alone.
    measured_ends_ns, predicted_ends_ns : tuple of float
        End of each member, from the first start.
    lags_ns : tuple of float
        Delay of the start of each member.
    spread : float
        Relative difference between its takes; no error is judged below it.
    takes : int
        Number of takes.
    fitted : bool
        Whether its group was fitted on a device of this name.
    """

    recording: str
    device: str
    group: str
    scenario: str
    policy: str
    mechanism: str
    carrier: str
    measured_ns: float
    predicted_ns: float
    low_ns: float
    high_ns: float
    alone_ns: tuple[float, ...]
    measured_ends_ns: tuple[float, ...]
    predicted_ends_ns: tuple[float, ...]
    lags_ns: tuple[float, ...]
    spread: float
    takes: int
    fitted: bool

    @property
    def name(self) -> str:
        """Recording, scenario and policy."""
        return f"{self.recording}: {self.scenario} ({self.policy})"

    @property
    def error(self) -> float:
        """``|predicted - measured| / measured`` of the time until all are done."""
        return abs(self.predicted_ns / self.measured_ns - 1)

    @property
    def end_errors(self) -> tuple[float, ...]:
        """Relative error of the end of each member."""
        pairs = zip(self.predicted_ends_ns, self.measured_ends_ns, strict=True)
        return tuple(abs(ours / theirs - 1) for ours, theirs in pairs)

    @property
    def serial_ns(self) -> float:
        """Time of the members one after the other, in their order."""
        end = 0.0
        for lag, alone in zip(self.lags_ns, self.alone_ns, strict=True):
            end = max(end, lag) + alone
        return end

    @property
    def free_ns(self) -> float:
        """Time of the members side by side at no cost."""
        return max(lag + alone for lag, alone in zip(self.lags_ns, self.alone_ns, strict=True))

    @property
    def slowdown_error(self) -> float:
        """``|predicted - measured|`` over the difference of the two baselines.

        If one member is far shorter than the other, this says more than the error of the time.
        """
        between = self.serial_ns - self.free_ns
        return abs(self.predicted_ns - self.measured_ns) / between if between > 0 else float("nan")

    @property
    def covered(self) -> bool:
        """Whether the interval holds the measured time."""
        return self.low_ns <= self.measured_ns <= self.high_ns


def notes_on(recordings: Sequence[contention.ContentionRecording]) -> list[str]:
    """Return remarks on recordings of a CPU, or of a single take."""
    notes = []
    for recording in recordings:
        source, device = recording.source, recording.device
        if device.is_cpu:
            notes.append(f"{source}: {device.name} is a CPU in place of a GPU; its figures say nothing about a GPU")
        if all(scenario.takes == 1 for scenario in recording.scenarios):
            notes.append(f"{source}: one take, so `takes` is how far its repetitions differ (central 80 %)")
    return notes


def predict_contention(
    recordings: Sequence[contention.ContentionRecording], fit: contention.ContentionFit | None = None
) -> list[ContentionCase]:
    """Return every scenario of two members or more, predicted with a fit, or with the shipped parameters.

    A scenario counts as fitted if the fit has seen its group, its kernels, or a group that shares kernels with it.
    """
    cases = []
    for recording in recordings:
        same_device = [r for r in recordings if r.device.name == recording.device.name]
        fitted = _fitted_groups(same_device, fit)
        scenarios = [s for s in recording.scenarios if len(s.members) > 1]
        cases += _cases(recording, scenarios, fit, [s.group in fitted for s in scenarios])
    return cases


def _fitted_groups(
    recordings: Sequence[contention.ContentionRecording], fit: contention.ContentionFit | None
) -> set[str]:
    """Return the groups of one device that a fit has seen, and the groups that share kernels with them."""
    digests, group_of = set(fit.groups if fit else ()), contention.linked_groups(recordings)
    seen = {group_of[s.group] for r in recordings for s in r.scenarios if not digests.isdisjoint(r.digests_of(s))}
    return {group for group, first in group_of.items() if first in seen}


def refit_contention(
    recordings: Sequence[contention.ContentionRecording], progress: Progress | None = None
) -> list[ContentionCase]:
    """Return every scenario of two members or more, predicted with a fit to the scenarios of other folds.

    Raises
    ------
    InvalidInputError
        As `replay.contention.calibrate_contention`; recordings of one device are fitted together.
    """
    devices = sorted({recording.device.name for recording in recordings})
    cases = []
    for device, fold in followed([*product(devices, range(FOLDS))], progress, itemgetter(0)):
        mine = [recording for recording in recordings if recording.device.name == device]
        fitted, held_out = (partial(_is_in, fold, inside) for inside in (False, True))
        fit = contention.calibrate_contention(mine, parameters=load_parameters(), part=fitted)
        for recording, out in chosen_part(mine, held_out):
            cases += _cases(recording, out, fit, [False] * len(out))
    return cases


def _is_in(fold: int, inside: bool, label: str) -> bool:
    """Return whether a component of groups is inside, or outside, a fold."""
    return (contention.fold_of(label, FOLDS) == fold) == inside


def _cases(
    recording: contention.ContentionRecording,
    scenarios: Sequence[contention.RecordedScenario],
    fit: contention.ContentionFit | None,
    fitted: Sequence[bool],
) -> list[ContentionCase]:
    if not scenarios:
        return []
    parameters = fit.parameters(load_parameters()) if fit else load_parameters()
    model = contention.scenario_model(recording, [s.members for s in scenarios])
    ends = model.ends_ns(contention.base_parameters(recording, parameters))
    times, random = model.times_ns(ends), np.random.default_rng(_SEED)
    drawn = [contention.base_parameters(recording, parameters.drawn(random)) for _ in range(_DRAWS)]
    low, high = np.quantile([model.times_ns(model.ends_ns(values)) for values in drawn], QUANTILES, axis=0)
    room = np.exp(fit.spread if fit else 0.0)
    low, high = np.minimum(low, times) / room, np.maximum(high, times) * room
    ceilings, cases = contention.ceilings_of(recording), []
    for i, s in enumerate(scenarios):
        names = (recording.source, recording.device.name, s.group, s.name, s.policy)
        shared = (contention.mechanism_of(recording, s, ceilings), _carrier(recording, s))
        predicted = (float(times[i]), float(low[i]), float(high[i]))
        alone = tuple(recording.alone_ns(m.work, m.launches) for m in s.members)
        lags = tuple(float(m.lag_ns - min(o.lag_ns for o in s.members)) for m in s.members)
        members = (alone, s.ends_ns, tuple(ends[model.lineup == i].tolist()), lags)
        cases.append(ContentionCase(*names, *shared, s.measured_ns, *predicted, *members, s.spread, s.takes, fitted[i]))
    return cases


def _carrier(recording: contention.ContentionRecording, scenario: contention.RecordedScenario) -> str:
    kinds = [recording.works[member.work].kind for member in scenario.members]
    carriers = {contention.TRANSFERS[kind] for kind in kinds if kind in contention.TRANSFERS}
    computes = any(kind not in contention.TRANSFERS for kind in kinds)
    return carriers.pop() if computes and len(carriers) == 1 else ""
