"""Contention: predicted slowdowns against measured ones.

Predict works that were measured side by side: with given parameters, or each with a fit that left it out.

Score predicted against measured times of works side by side: by mechanism, by order of policies, by % of ideal.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from types import MappingProxyType

import numpy as np

from replay.contention import (
    MECHANISMS,
    SIMULATED,
    TRANSFERS,
    ContentionFit,
    ContentionRecording,
    RecordedScenario,
    base_parameters,
    calibrate_contention,
    ceilings_of,
    fold_of,
    kin_of,
    mechanism_of,
    scenario_model,
)
from replay.costs.shipped import load_parameters
from replay.projection.provenance import QUANTILES
from replay.studies.published import published_figures
from seqpoint.validation.rows import ValidationRow

#: Called with (steps done, steps in all, what).
Progress = Callable[[int, int, str], None]
#: Parts of which each is predicted from a fit of the others.
FOLDS = 4
#: Of parameters from their ranges, for intervals.
_DRAWS, _SEED = 24, 0


@dataclass(frozen=True)
class ContentionCase:
    """A scenario, predicted.

    Parameters
    ----------
    recording, device, group, scenario, policy, mechanism : str
    carrier : str
        What carries its transfer beside a kernel that computes: ``"copy engine"`` or ``"SM copies"``; else empty.
    measured_ns, predicted_ns, low_ns, high_ns : float
        Until all are done; central 90 % of the prediction.
    alone_ns : tuple of float
        By member: all its launches alone.
    measured_ends_ns, predicted_ends_ns : tuple of float
        By member, from the first start.
    lags_ns : tuple of float
        By member.
    spread : float
        How far takes of it differ; no claim is finer.
    takes : int
    fitted : bool
        Whether its group was fitted on such a device.
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
        """What tells it from others."""
        return f"{self.recording}: {self.scenario} ({self.policy})"

    @property
    def error(self) -> float:
        """``|predicted - measured| / measured`` of the time until all are done."""
        return abs(self.predicted_ns / self.measured_ns - 1)

    @property
    def end_errors(self) -> tuple[float, ...]:
        """The same of each member's end."""
        pairs = zip(self.predicted_ends_ns, self.measured_ends_ns, strict=True)
        return tuple(abs(ours / theirs - 1) for ours, theirs in pairs)

    @property
    def serial_ns(self) -> float:
        """One after the other, in the order of members."""
        end = 0.0
        for lag, alone in zip(self.lags_ns, self.alone_ns, strict=True):
            end = max(end, lag) + alone
        return end

    @property
    def free_ns(self) -> float:
        """Side by side at no cost."""
        return max(lag + alone for lag, alone in zip(self.lags_ns, self.alone_ns, strict=True))

    @property
    def slowdown_error(self) -> float:
        """``|predicted - measured|`` over what lies between the two baselines.

        Where one member is far shorter than the other, the error of the time says little; this one does.
        """
        between = self.serial_ns - self.free_ns
        return abs(self.predicted_ns - self.measured_ns) / between if between > 0 else float("nan")

    @property
    def covered(self) -> bool:
        """Whether the interval holds what was measured."""
        return self.low_ns <= self.measured_ns <= self.high_ns


def notes_on(recordings: Sequence[ContentionRecording]) -> list[str]:
    """Return what recordings are not: of a device, or of more than one take."""
    found = []
    for one in recordings:
        if one.device.architecture == SIMULATED:
            found.append(f"{one.source}: {one.device.name} is simulated; nothing of it was measured")
        if all(scenario.takes == 1 for scenario in one.scenarios):
            found.append(f"{one.source}: one take, so `takes` is how far its repetitions differ (central 80 %)")
    return found


def predict_contention(
    recordings: Sequence[ContentionRecording], fit: ContentionFit | None = None
) -> list[ContentionCase]:
    """Return every scenario of two works or more, predicted with a fit, or with the shipped parameters.

    What was fitted is told by group and by works; all kin of it in these recordings count as fitted too.
    """
    found = []
    for one in recordings:
        fitted = _fitted_groups([other for other in recordings if other.device.name == one.device.name], fit)
        scenarios = [s for s in one.scenarios if len(s.members) > 1]
        found += _cases(one, scenarios, fit, [s.group in fitted for s in scenarios])
    return found


def _fitted_groups(recordings: Sequence[ContentionRecording], fit: ContentionFit | None) -> set[str]:
    """Return the groups of recordings of one device that a fit has seen, or kin of."""
    known, kin = set(fit.groups if fit else ()), kin_of(recordings)
    seen = {kin[s.group] for one in recordings for s in one.scenarios if not known.isdisjoint(one.digests_of(s))}
    return {group for group, first in kin.items() if first in seen}


def refit_contention(
    recordings: Sequence[ContentionRecording], progress: Progress | None = None
) -> list[ContentionCase]:
    """Return every scenario of two works or more, predicted with a fit to those whose works are in other parts.

    Raises
    ------
    InvalidInputError
        As `replay.contention.calibrate_contention`; recordings of one device are fitted together.
    """
    devices = sorted({one.device.name for one in recordings})
    found = []
    for number, device in enumerate(devices):
        mine = [one for one in recordings if one.device.name == device]
        kin = kin_of(mine)
        for fold in range(FOLDS):
            if progress:
                progress(number * FOLDS + fold, len(devices) * FOLDS, device)
            fit = calibrate_contention(mine, parameters=load_parameters(), part=_others(fold))
            for one in mine:
                out = [s for s in one.scenarios if len(s.members) > 1 and fold_of(kin[s.group], FOLDS) == fold]
                found += _cases(one, out, fit, [False] * len(out))
    return found


def _others(fold: int) -> Callable[[str], bool]:
    return lambda kin: fold_of(kin, FOLDS) != fold


def _cases(
    recording: ContentionRecording,
    scenarios: Sequence[RecordedScenario],
    fit: ContentionFit | None,
    fitted: Sequence[bool],
) -> list[ContentionCase]:
    if not scenarios:
        return []
    known = fit.parameters(load_parameters()) if fit else load_parameters()
    model = scenario_model(recording, [s.members for s in scenarios])
    ends = model.ends_ns(base_parameters(recording, known))
    times, random = model.times_ns(ends), np.random.default_rng(_SEED)
    drawn = [base_parameters(recording, known.drawn(random)) for _ in range(_DRAWS)]
    low, high = np.quantile([model.times_ns(model.ends_ns(one)) for one in drawn], QUANTILES, axis=0)
    room = np.exp(fit.spread if fit else 0.0)
    low, high = np.minimum(low, times) / room, np.maximum(high, times) * room
    ceilings = ceilings_of(recording)
    return [
        ContentionCase(
            recording.source,
            recording.device.name,
            s.group,
            s.name,
            s.policy,
            mechanism_of(recording, s, ceilings),
            _carrier(recording, s),
            s.measured_ns,
            float(times[i]),
            float(low[i]),
            float(high[i]),
            tuple(recording.alone_ns(m.work, m.launches) for m in s.members),
            s.ends_ns,
            tuple(ends[model.lineup == i].tolist()),
            tuple(float(m.lag_ns - min(o.lag_ns for o in s.members)) for m in s.members),
            s.spread,
            s.takes,
            fitted[i],
        )
        for i, s in enumerate(scenarios)
    ]


def _carrier(recording: ContentionRecording, scenario: RecordedScenario) -> str:
    kinds = [recording.works[member.work].kind for member in scenario.members]
    carriers = {TRANSFERS[kind] for kind in kinds if kind in TRANSFERS}
    computes = any(kind not in TRANSFERS for kind in kinds)
    return carriers.pop() if computes and len(carriers) == 1 else ""


ALL = "all"
#: Times of two policies that are closer than this, or than takes differ, have no order.
_SAME = 0.02
#: Below this ideal speed-up, less one, a per cent of it is noise.
_LEAST_IDEAL = 0.1
_MEDIAN, _P90, _ORDER, _PAIRS = 0.10, 0.25, 0.90, 300
#: The paper's figures beside carriers: of ConCCL without and with units set aside, of C3 unmanaged and with priorities.
_PUBLISHED: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"copy engine": ("conccl", "conccl_rp"), "SM copies": ("c3_base", "c3_sp")}
)


@dataclass(frozen=True)
class ContentionScore:
    """Errors of the scenarios of one mechanism, or of all.

    Parameters
    ----------
    mechanism : str
    cases : int
    median, p90 : float
        Of the error of the time until all are done.
    ends : float
        Median error of members' ends.
    slowdown : float
        Median of `ContentionCase.slowdown_error`.
    serial, free : float
        Median errors of the two baselines: one after the other, and side by side at no cost.
    covered : float
        Share of measured times in their interval.
    spread, spread_p90, spread_max : float
        How far takes differ: the median, the 90th percentile and the largest.
    """

    mechanism: str
    cases: int
    median: float
    p90: float
    ends: float
    slowdown: float
    serial: float
    free: float
    covered: float
    spread: float
    spread_p90: float
    spread_max: float


@dataclass(frozen=True)
class OrderScore:
    """How often of two policies the faster was told.

    Parameters
    ----------
    compared, right : int
        Pairs of policies of one group whose times differ by more than takes do, and by 2 %.
    groups, groups_right : int
        With such a pair, and with all of theirs right.
    """

    compared: int
    right: int
    groups: int
    groups_right: int

    @property
    def share(self) -> float:
        """Of the pairs that were compared; 0 where there is none."""
        return self.right / self.compared if self.compared else 0.0


@dataclass(frozen=True)
class PercentOfIdeal:
    """What of the ideal gain transfers beside kernels reached.

    Parameters
    ----------
    carrier : str
    cases : int
    measured, predicted : float
        Means, %.
    published : mapping of str to float
        By name of the figure in `datasets/published/c3.toml`, %: of other works on another device.
    """

    carrier: str
    cases: int
    measured: float
    predicted: float
    published: Mapping[str, float]


def score_by_mechanism(cases: Sequence[ContentionCase]) -> list[ContentionScore]:
    """Return a score a mechanism that occurs, and one of all; none of no case."""
    groups = {name: [case for case in cases if case.mechanism == name] for name in MECHANISMS}
    return [_score(name, some) for name, some in ({**groups, ALL: list(cases)}).items() if some]


def _score(name: str, cases: Sequence[ContentionCase]) -> ContentionScore:
    errors, spreads = [case.error for case in cases], [case.spread for case in cases]
    measured = np.array([case.measured_ns for case in cases])
    serial, free = (np.array([getattr(case, which) for case in cases]) for which in ("serial_ns", "free_ns"))
    slowdowns = [case.slowdown_error for case in cases if not np.isnan(case.slowdown_error)]
    return ContentionScore(
        name,
        len(cases),
        float(np.median(errors)),
        float(np.quantile(errors, 0.9)),
        float(np.median([one for case in cases for one in case.end_errors])),
        float(np.median(slowdowns)) if slowdowns else 0.0,
        float(np.median(np.abs(serial / measured - 1))),
        float(np.median(np.abs(free / measured - 1))),
        float(np.mean([case.covered for case in cases])),
        float(np.median(spreads)),
        float(np.quantile(spreads, 0.9)),
        max(spreads),
    )


def score_order(cases: Sequence[ContentionCase]) -> OrderScore:
    """Return how often the faster of two policies of a group was told; what is predicted the same counts as wrong."""
    groups: dict[tuple[str, str], list[ContentionCase]] = {}
    for case in cases:
        groups.setdefault((case.recording, case.group), []).append(case)
    verdicts = [_verdicts(mine) for mine in groups.values()]
    told = [mine for mine in verdicts if mine]
    return OrderScore(sum(map(len, told)), sum(sum(mine) for mine in told), len(told), sum(all(mine) for mine in told))


def _verdicts(cases: Sequence[ContentionCase]) -> list[bool]:
    """Return for every two policies that differ whether the prediction has them in the measured order."""
    found = []
    for one, other in combinations(cases, 2):
        apart = abs(one.measured_ns - other.measured_ns) / min(one.measured_ns, other.measured_ns)
        if one.policy != other.policy and apart > max(_SAME, one.spread, other.spread):
            measured, predicted = one.measured_ns - other.measured_ns, one.predicted_ns - other.predicted_ns
            found.append(measured * predicted > 0)
    return found


def score_ideal(cases: Sequence[ContentionCase]) -> list[PercentOfIdeal]:
    """Return the mean % of ideal of each carrier of transfers, measured and predicted, beside what C3's paper says.

    Notes
    -----
    ``100 (S - 1) / (S_ideal - 1)`` with ``S = sum / T`` and ``S_ideal = sum / max`` of the times alone (arXiv
    2412.14335); of two works whose ideal is 1.1 or more.
    """
    published = {figure.name: figure.value for figure in published_figures("c3")}
    found = []
    for carrier, names in _PUBLISHED.items():
        mine = [c for c in cases if c.carrier == carrier and len(c.alone_ns) == 2 and _ideal(c) >= 1 + _LEAST_IDEAL]
        if mine:
            measured, predicted = (
                float(np.mean([percent_of_ideal(c.alone_ns, getattr(c, which)) for c in mine]))
                for which in ("measured_ns", "predicted_ns")
            )
            figures = MappingProxyType({name: published[name] for name in names})
            found.append(PercentOfIdeal(carrier, len(mine), measured, predicted, figures))
    return found


def _ideal(case: ContentionCase) -> float:
    return sum(case.alone_ns) / max(case.alone_ns)


def percent_of_ideal(alone_ns: Sequence[float], together_ns: float) -> float:
    """Return what of the ideal gain over one after the other was reached, %.

    Examples
    --------
    >>> percent_of_ideal((10.0, 10.0), 15.0)
    33.33333333333333
    """
    speedup, ideal = sum(alone_ns) / together_ns, sum(alone_ns) / max(alone_ns)
    return 100 * (speedup - 1) / (ideal - 1)


def contention_rows(cases: Sequence[ContentionCase]) -> list[ValidationRow]:
    """Return a row a scenario, then those that are gated, over what was not fitted.

    No figure is given finer than takes differ: where the median or the 90th percentile of errors is below that of the
    spreads, the spread stands.
    """
    rows = [
        ValidationRow(
            c.name, c.measured_ns, c.predicted_ns, c.error, fitted=c.fitted, source=f"{c.recording}, {c.device}"
        )
        for c in cases
    ]
    left = [case for case in cases if not case.fitted]
    source = "the cases above that were not fitted"

    def gated(name: str, ours: float, limit: float, *, least: bool) -> ValidationRow:
        return ValidationRow(name, None, ours, ours, limit, least, source=source)

    rows.append(gated("works side by side, not fitted: number", float(len(left)), _PAIRS, least=True))
    if left:
        every, order = score_by_mechanism(left)[-1], score_order(left)
        rows.append(
            gated("time until all are done: median error", max(every.median, every.spread), _MEDIAN, least=False)
        )
        rows.append(
            gated("time until all are done: 90th percentile", max(every.p90, every.spread_p90), _P90, least=False)
        )
        rows.append(gated("order of policies: share right", order.share, _ORDER, least=True))
    return rows
