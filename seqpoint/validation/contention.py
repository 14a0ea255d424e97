"""Compare predicted times of kernels side by side with those measured in PATH.

PATH is a trace or a recording, or a folder of them. In a trace, kernels that ran beside other work are predicted from
the same kernels alone: with the shipped parameters, and with fits to the other ranks, classes or kernels of the trace.
A recording is what `python -m benchmarks.gpu --output DIR` writes; without PATH, those that the project ships. A
scenario of a recording is held out if no scenario of the same works on such a device was fitted.

\b
seqpoint validate contention job.trace
seqpoint validate contention rank0.json.gz --calibration mine.json
seqpoint validate contention recording/
seqpoint validate contention recording/ --refit --plot contention.html
seqpoint validate contention recording/ --calibration mine.json --gate
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import combinations, product
from operator import itemgetter
from pathlib import Path
from types import MappingProxyType

import numpy as np

from replay import contention
from replay.calibration.parameters import Parameters
from replay.contention.fitting import chosen_part
from replay.contention.reading import TABLE
from seqpoint.notebook import Table, table_of
from seqpoint.validation.contention_traces import score_contention, trace_content, trace_rows, trace_tables
from seqpoint.validation.published import published_figures
from seqpoint.validation.replay import NamedFiles, opened_traces, read_sources, trace_source
from seqpoint.validation.suites import (
    Progress,
    Suite,
    SuiteOptions,
    SuiteResult,
    ValidationRow,
    followed,
    grouped,
    summary_row,
)

ALL = "all"
#: Scenarios in the table of the largest errors, and characters of their names.
_WORST, _SHOWN = 12, 34
#: Two policies have no order if their times differ by less than this, or by less than takes do.
_SAME = 0.02
#: Scenarios of a smaller ideal speed-up, less one, are left out: a share of it would be noise.
_LEAST_IDEAL = 0.1
_MEDIAN, _P90, _ORDER, _PAIRS = 0.10, 0.25, 0.90, 300
#: Published figures by carrier: ConCCL without and with reserved units, C3 unmanaged and with priorities.
_PUBLISHED: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"copy engine": ("conccl", "conccl_rp"), "SM copies": ("c3_base", "c3_sp")}
)

#: Number of folds; each is predicted from a fit of the other folds.
FOLDS = 4


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
    recordings: Sequence[contention.ContentionRecording],
    parameters: Parameters,
    fit: contention.ContentionFit | None = None,
) -> list[ContentionCase]:
    """Return every scenario of two members or more, predicted with a fit, or with the shipped parameters.

    A scenario counts as fitted if the fit has seen its group, its kernels, or a group that shares kernels with it.
    """
    cases = []
    for recording in recordings:
        same_device = [r for r in recordings if r.device.name == recording.device.name]
        fitted = _fitted_groups(same_device, fit)
        scenarios = [s for s in recording.scenarios if len(s.members) > 1]
        cases += _cases(recording, scenarios, [s.group in fitted for s in scenarios], parameters, fit)
    return cases


def _fitted_groups(
    recordings: Sequence[contention.ContentionRecording], fit: contention.ContentionFit | None
) -> set[str]:
    """Return the groups of one device that a fit has seen, and the groups that share kernels with them."""
    digests, group_of = set(fit.groups if fit else ()), contention.linked_groups(recordings)
    seen = {group_of[s.group] for r in recordings for s in r.scenarios if not digests.isdisjoint(r.digests_of(s))}
    return {group for group, first in group_of.items() if first in seen}


def refit_contention(
    recordings: Sequence[contention.ContentionRecording], parameters: Parameters, progress: Progress | None = None
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
        fit = contention.calibrate_contention(mine, parameters=parameters, part=fitted)
        for recording, out in chosen_part(mine, held_out):
            cases += _cases(recording, out, [False] * len(out), parameters, fit)
    return cases


def _is_in(fold: int, inside: bool, label: str) -> bool:
    """Return whether a component of groups is inside, or outside, a fold."""
    return (contention.fold_of(label, FOLDS) == fold) == inside


def _cases(
    recording: contention.ContentionRecording,
    scenarios: Sequence[contention.RecordedScenario],
    fitted: Sequence[bool],
    parameters: Parameters,
    fit: contention.ContentionFit | None,
) -> list[ContentionCase]:
    if not scenarios:
        return []
    parameters = fit.parameters(parameters) if fit else parameters
    model = contention.scenario_model(recording, [s.members for s in scenarios])
    ends = model.ends_ns(contention.base_parameters(recording, parameters))
    times, room = model.times_ns(ends), np.exp(fit.spread if fit else parameters["contention_spread"])
    low, high = times / room, times * room
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


@dataclass(frozen=True)
class ContentionScore:
    """Errors of the scenarios of one mechanism, or of all.

    Parameters
    ----------
    mechanism : str
        Resource that the kernels share, such as ``"HBM"``.
    cases : int
        Number of scenarios.
    median, p90 : float
        Median and 90th percentile of the error of the time until all members are done.
    ends : float
        Median error of the ends of members.
    slowdown : float
        Median of `ContentionCase.slowdown_error`.
    serial, free : float
        Median errors of two baselines: members one after the other, and side by side at no cost.
    covered : float
        Share of measured times in their 90 % interval.
    spread, spread_p90, spread_max : float
        Relative difference between takes: the median, the 90th percentile and the largest.
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
    """Number of pairs of policies in which the faster one was predicted.

    Parameters
    ----------
    compared, right : int
        Pairs of policies of one group whose times differ by more than 2 % and by more than takes do, and the number of
        them that are predicted right.
    groups, groups_right : int
        Groups with such a pair, and groups whose pairs are all right.
    """

    compared: int
    right: int
    groups: int
    groups_right: int

    @property
    def share(self) -> float:
        """Share of the compared pairs that are right; 0 without a pair."""
        return self.right / self.compared if self.compared else 0.0


#: What the suite reads: recordings, and traces by name with their files.
_Sources = tuple[Sequence[contention.ContentionRecording], Sequence[NamedFiles]]


@dataclass(frozen=True)
class PercentOfIdeal:
    """Share of the ideal gain that transfers beside kernels reached.

    Parameters
    ----------
    carrier : str
        Carrier of the transfers: compute units or DMA engines.
    cases : int
        Number of scenarios.
    measured, predicted : float
        Mean shares in %.
    published : mapping of str to float
        Figures in % by their names in `datasets/published/c3.toml`, for other kernels on another device.
    """

    carrier: str
    cases: int
    measured: float
    predicted: float
    published: Mapping[str, float]


def score_by_mechanism(cases: Sequence[ContentionCase]) -> list[ContentionScore]:
    """Return a score for each mechanism that occurs, then a score of all; nothing without a case."""
    groups = {name: [case for case in cases if case.mechanism == name] for name in contention.MECHANISMS}
    return [_score(name, members) for name, members in ({**groups, ALL: list(cases)}).items() if members]


def _score(name: str, cases: Sequence[ContentionCase]) -> ContentionScore:
    errors, spreads = [case.error for case in cases], [case.spread for case in cases]
    ends = [error for case in cases for error in case.end_errors]
    slowdowns = [case.slowdown_error for case in cases if not np.isnan(case.slowdown_error)]
    serial, free = (
        float(np.median([abs(getattr(case, which) / case.measured_ns - 1) for case in cases]))
        for which in ("serial_ns", "free_ns")
    )
    time = (float(np.median(errors)), float(np.quantile(errors, 0.9)), float(np.median(ends)))
    slowdown, covered = float(np.median(slowdowns or [0.0])), float(np.mean([case.covered for case in cases]))
    takes = (float(np.median(spreads)), float(np.quantile(spreads, 0.9)), max(spreads))
    return ContentionScore(name, len(cases), *time, slowdown, serial, free, covered, *takes)


def score_order(cases: Sequence[ContentionCase]) -> OrderScore:
    """Return the share of pairs of policies whose order is predicted; equal predictions count as wrong."""
    groups = grouped(cases, lambda case: (case.recording, case.group))
    verdicts = [right for right in map(_verdicts, groups.values()) if right]
    pairs, correct = sum(map(len, verdicts)), sum(map(sum, verdicts))
    return OrderScore(pairs, correct, len(verdicts), sum(map(all, verdicts)))


def _verdicts(cases: Sequence[ContentionCase]) -> list[bool]:
    """Return, for every two policies that differ, whether the predicted order is the measured one."""
    verdicts = []
    for first, second in combinations(cases, 2):
        measured_ns = first.measured_ns - second.measured_ns
        apart = abs(measured_ns) / min(first.measured_ns, second.measured_ns)
        if first.policy != second.policy and apart > max(_SAME, first.spread, second.spread):
            verdicts.append(measured_ns * (first.predicted_ns - second.predicted_ns) > 0)
    return verdicts


def score_ideal(cases: Sequence[ContentionCase]) -> list[PercentOfIdeal]:
    """Return the mean share of the ideal gain of each carrier of transfers, beside the published figures.

    Notes
    -----
    ``100 (S - 1) / (S_ideal - 1)`` with ``S = sum / T`` and ``S_ideal = sum / max`` of the times alone (arXiv
    2412.14335), for two kernels whose ideal is 1.1 or more.
    """
    published = {figure.name: figure.value for figure in published_figures("c3")}
    scores = []
    for carrier, names in _PUBLISHED.items():
        pairs = [c for c in cases if c.carrier == carrier and len(c.alone_ns) == 2]
        gaining = [c for c in pairs if sum(c.alone_ns) / max(c.alone_ns) >= 1 + _LEAST_IDEAL]
        if gaining:
            measured, predicted = (
                float(np.mean([percent_of_ideal(c.alone_ns, getattr(c, which)) for c in gaining]))
                for which in ("measured_ns", "predicted_ns")
            )
            figures = MappingProxyType({name: published[name] for name in names})
            scores.append(PercentOfIdeal(carrier, len(gaining), measured, predicted, figures))
    return scores


def percent_of_ideal(alone_ns: Sequence[float], together_ns: float) -> float:
    """Return the share of the ideal gain over a serial run, in %.

    Examples
    --------
    >>> percent_of_ideal((10.0, 10.0), 15.0)
    33.33333333333333
    """
    speedup, ideal = sum(alone_ns) / together_ns, sum(alone_ns) / max(alone_ns)
    return 100 * (speedup - 1) / (ideal - 1)


def contention_rows(cases: Sequence[ContentionCase]) -> list[ValidationRow]:
    """Return a row for each scenario, then the gated summaries of the scenarios that were not fitted.

    An error is never below the difference between takes: a smaller median or 90th percentile counts as that of the
    spreads.
    """
    rows = [
        ValidationRow(
            c.name, c.measured_ns, c.predicted_ns, c.error, fitted=c.fitted, source=f"{c.recording}, {c.device}"
        )
        for c in cases
    ]
    held, source = [case for case in cases if not case.fitted], "the cases above that were not fitted"
    pairs = ("works side by side, not fitted: number", float(len(held)), float(_PAIRS), True)
    figures = [pairs]
    if held:
        every, time = score_by_mechanism(held)[-1], "time until all are done: "
        figures += [
            (f"{time}median error", max(every.median, every.spread), _MEDIAN, False),
            (f"{time}90th percentile", max(every.p90, every.spread_p90), _P90, False),
            ("order of policies: share right", score_order(held).share, _ORDER, True),
        ]
    return rows + [summary_row(name, ours, limit, least=least, source=source) for name, ours, limit, least in figures]


def _source(file: Path) -> Path | None:
    """Return the recording that a file belongs to, or else its trace."""
    for folder in file.parents[:2]:  # a recording holds traces of its own
        if (folder / TABLE).exists():
            return folder
    return trace_source(file)


def _read(sources: Sequence[Path], options: SuiteOptions) -> _Sources:
    """Return the recordings, and the names and files of the traces."""
    recorded = [source for source in sources if (source / TABLE).exists()]
    recordings = [recording for source in recorded for recording in contention.read_contention(source)]
    return recordings, read_sources([s for s in sources if s not in recorded], options)


def _scored(sources: _Sources, options: SuiteOptions) -> SuiteResult:
    """Score recordings and traces."""
    fit = contention.read_contention_fit(options.calibration) if options.calibration else None
    recordings, traces = sources
    recorded = _scored_recordings(recordings, fit, options) if recordings or not traces else SuiteResult((), {}, ())
    scores = []
    for name, trace in opened_traces(traces, options, "replaying"):
        scores.append(score_contention(name, trace, parameters=options.parameters, fit=fit))
    details = dict(recorded.details) | ({"traces": [trace_content(score) for score in scores]} if traces else {})
    tables, drawn = [*recorded.tables, *trace_tables(scores)], [score for score in scores if score.methods]
    rows = [*recorded.rows, *trace_rows(scores)]
    return SuiteResult(rows, details, tables, [*recorded.scores, *drawn], recorded.notes)


def _scored_recordings(
    recordings: Sequence[contention.ContentionRecording], fit: contention.ContentionFit | None, options: SuiteOptions
) -> SuiteResult:
    """Score scenarios with the shipped parameters, a calibration, or fits to the other quarters."""
    if options.refit:
        cases = refit_contention(recordings, options.parameters, options.progress("fitting"))
    else:
        cases = predict_contention(recordings, options.parameters, fit)
    held, notes = [case for case in cases if not case.fitted], notes_on(recordings)
    order, ideal = score_order(held), score_ideal(held)
    details = {
        "scores": [asdict(score) for score in score_by_mechanism(held)],
        "order": asdict(order),
        "percent_of_ideal": [{**vars(score), "published": dict(score.published)} for score in ideal],
        "cases": [asdict(c) | {key: getattr(c, key) for key in ("error", "slowdown_error", "covered")} for c in cases],
        "calibration_sha256": fit.digest if fit else None,
        "notes": notes,
    }
    tables: Sequence[Table | str] = (
        _headline(cases, fit),
        _errors(held),
        _order_line(order),
        *_ideal_tables(ideal),
        _largest(cases),
    )
    return SuiteResult(contention_rows(cases), details, tables, cases, notes)


def _headline(cases: Sequence[ContentionCase], fit: contention.ContentionFit | None) -> str:
    """Return the line above the tables: devices, scenarios, and the number of fitted ones."""
    fitted = sum(case.fitted for case in cases)
    return (
        f"{', '.join(sorted({case.device or 'a device without a name' for case in cases}))}: "
        + f"{len(cases)} scenarios of {len({case.group for case in cases})} groups"
        + (f", by a calibration on {fit.device}" if fit else "")
        + (f"; {fitted} of them were fitted and are in no table" if fitted else "; none was fitted")
    )


def _errors(held: Sequence[ContentionCase]) -> Table:
    """Return the table of errors by mechanism."""
    columns = {
        "mechanism~": "{mechanism}", "n": "{cases}", "median": "{median:.1%}", "90th": "{p90:.1%}",
        "ends": "{ends:.1%}", "slow-\ndown": "{slowdown:.1%}", "one by\none": "{serial:.1%}",
        "free": "{free:.1%}", "held": "{covered:.0%}", "takes": "{spread:.1%}", "at\nmost": "{spread_max:.1%}",
    }  # fmt: skip
    return table_of("Errors of predicted times, in %, of what was not fitted", columns, score_by_mechanism(held))


def _order_line(order: OrderScore) -> str:
    """Return the line on the order of policies."""
    if not order.compared:
        return "order of policies: no two policies of a group differ by more than takes do"
    return (
        f"order of policies: {order.right} of {order.compared} pairs right ({100 * order.share:.0f} %); all right in "
        f"{order.groups_right} of {order.groups} groups"
    )


def _ideal_tables(scores: Sequence[PercentOfIdeal]) -> list[Table]:
    """Return the table of % of ideal, if there are transfers beside kernels."""
    columns = {
        "carrier~": "{s.carrier}", "n": "{s.cases}", "measured": "{s.measured:.0f}", "predicted": "{s.predicted:.0f}",
        "published (arXiv 2412.14335)~": "{published}",
    }  # fmt: skip
    names = [
        {"s": score, "published": ", ".join(f"{name} {value:g}" for name, value in score.published.items())}
        for score in scores
    ]
    title = "% of ideal of transfers beside kernels; published: other works, MI300X"
    return [table_of(title, columns, names)] if scores else []


def _largest(cases: Sequence[ContentionCase]) -> Table:
    """Return the table of the largest errors."""
    columns = {
        "scenario~": "{scenario}", "policy~": "{c.policy}", "fights for~": "{c.mechanism}",
        "us": "{c.measured_ns:.0us}", "ours": "{c.predicted_ns:.0us}", "err %": "{c.error:.0%}",
        "takes": "{c.spread:.1%}",
    }  # fmt: skip
    worst = sorted(cases, key=lambda case: (-case.error, case.name))[:_WORST]
    names = [{"c": case, "scenario": case.scenario[:_SHOWN] + "*" * case.fitted} for case in worst]
    return table_of("The worst (* was fitted)", columns, names, verbose=True)


SUITE = Suite(
    name="contention",
    description=__doc__,
    shipped="measured",
    needs=f"trace (`seqpoint readers` lists formats), or recording of kernels side by side (a folder with {TABLE}); "
    "`python -m benchmarks.gpu --output DIR` makes one on a GPU (docs/contention.md)",
    source=_source,
    read=_read,
    score=_scored,
    options=("calibration", "refit", "iterations"),
    exclusive=("refit", "calibration", "--refit fits anew; give it or --calibration"),
    charts=True,
)
