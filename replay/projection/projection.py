"""Projections: the speed-up of each what-if, with its interval and its provenance.

`project` takes windows (`replay.projection.windows`) and what-ifs. It computes
the steady state of each window unchanged and under each what-if, with nominal parameters and again with every draw of
the parameters. The draws give the interval. The sum over windows is weighted.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import fsum, isfinite, nan
from typing import Any, NamedTuple

import numpy as np

from profilers.errors import InvalidInputError, SeqPointError
from profilers.trace.arrays import Floats
from profilers.trace.trace import TraceMeta
from replay.analysis.idle import PACE_RESOURCES, pace
from replay.calibration.parameters import Parameters
from replay.costs.hardware import power_shares
from replay.engine.steady import USUAL_CYCLES, Change, SteadyState, unchanged
from replay.engine.timeline import Timeline
from replay.graph.graph import KernelGraph
from replay.projection.evidence import QUANTILES, Evidence, provenance_of, selection_factors, step_evidence
from replay.projection.pacing import Limits, limiting_after, limiting_name, limits_of
from replay.projection.rows import NO_EFFECT, NOTHING_CHANGES, ProjectionRow, joined_notes, work_notes
from replay.projection.sweep import ProgressSteps, jobs_for, sweep
from replay.projection.windows import StepWindow
from replay.what_ifs.registry import SharedParts
from replay.what_ifs.what_if import WhatIf, check_choices, single_steps

#: A longer projected time is a mistake; sums of times up to this are finite.
_LONGEST_NS = 1e100
#: Shorter times count as this long, so that nothing is divided by zero.
_SHORTEST_NS = 1e-9
#: Times that differ by less, relative or in ns, are the same.
_ROUNDING = 1e-9
#: A speed-up this far below 1 is a loss.
_SLOWER = 1e-6
_UNSETTLED = "{}: the time of a step had not settled when it was cut off"
#: What-ifs that change the power of devices, so that a row says what energy they take.
_OF_POWER = ("limit_power", "scale_device")
#: Most iterations that a note names.
_MOST_NAMED = 8
#: A gain or loss of steps above this is not hidden by rounding.
_SHIFT = 0.005
_SHIFTED = (
    "{}: these steps alone are {} times as fast, and the cycle with their neighbours {} times: a step begins when the "
    "one before is complete, which moves too. Project the neighbours as well"
)
_HIDDEN = "these steps take no time: longer work of an earlier step hides them, and what-ifs gain nothing there"


class Replays:
    """Replays of some windows, kept for further projections on the same windows with the same seed.

    It holds the unchanged steps, their limits, and the times of each draw by window and what-if; no replayed graphs but
    the unchanged ones.
    """

    def __init__(self) -> None:
        self.base: _Baseline | None = None
        self.limits: Limits | None = None
        self.drawn: defaultdict[int, _DrawnTimes] = defaultdict(dict)


#: Step time, device time and error by window and what-if, under one draw.
_DrawnTimes = dict[tuple[int, Hashable], tuple[float, float, str]]


@dataclass(frozen=True)
class ProjectionOptions:
    """Options of a projection: how its interval is found.

    Parameters
    ----------
    draws : int
        Number of draws of the parameters from their ranges.
    seed : int
        Seed of the draws.
    progress : callable, optional
        Called with (steps done, steps in all, what) before each step.
    iterations : sequence of int
        Number of the first iteration asked for in each window, for notes that hold for some windows.
    jobs : int
        Number of draws at a time; 0 for one a core, as far as the free memory allows.
    replays : Replays
        What was replayed before of the same windows, with the same parameters and seed.
    """

    draws: int = 32
    seed: int = 0
    progress: Callable[[int, int, str], None] | None = None
    iterations: Sequence[int] = ()
    jobs: int = 0
    replays: Replays = field(default_factory=Replays)


@dataclass(frozen=True)
class Projection:
    """Projections of what-ifs over the same iterations.

    Parameters
    ----------
    baseline_ns : float
        Weighted sum of the step times that speed-ups count from: measured, or replayed if they were not measured.
    measured_ns : float
        Weighted sum of the measured step times.
    steady_ns : float
        Weighted sum of the step times in the unchanged steady state. An iteration that does not repeat, since the trace
        holds no neighbour of it, counts as measured.
    rows : tuple of ProjectionRow
        One row a what-if.
    provenance : mapping
        All that is needed to compute the same numbers again.
    limits : Limits
        What each resource of the steps could gain or lose, with its share of their critical path.
    pace_by_rank : mapping of int to float
        Shares of the critical path of the steps, by rank.
    timelines : mapping of str to Timeline
        Timelines of the first step asked for, in the steady state: ``"baseline"``, and one a what-if by its label.
    """

    baseline_ns: float
    measured_ns: float
    steady_ns: float
    rows: tuple[ProjectionRow, ...]
    provenance: dict[str, Any]
    limits: Limits = field(default_factory=Limits)
    pace_by_rank: dict[int, float] = field(default_factory=dict)
    timelines: dict[str, Timeline] = field(default_factory=dict)

    @property
    def pace(self) -> dict[str, float]:
        """Shares of the critical path of the steps, by `replay.analysis.PACE_RESOURCES`."""
        share = self.limits.share
        return {name: share[of] for name in PACE_RESOURCES if (of := limiting_name(name)) in share and share[of]}

    @property
    def device_busy_share(self) -> float | None:
        """Busy share of the devices during the first step, on average; None without a device."""
        line = self.timelines["baseline"]
        busy = line.busy_ns()
        return float(min(busy.mean() / line.span_ns, 1.0)) if len(busy) and line.span_ns else None


def project(
    windows: Sequence[StepWindow],
    what_ifs: Sequence[WhatIf],
    *,
    meta: TraceMeta,
    parameters: Parameters,
    options: ProjectionOptions | None = None,
) -> Projection:
    """Return the projection of each what-if over the weighted steps of `windows`.

    A projected step time is the measured one times the ratio of two steady states of its window: under the what-if,
    and unchanged. A draw is one run: its parameters give the isolated durations, and every what-if is applied to them.
    The numbers are the same, bit for bit, for any number of threads.

    Parameters
    ----------
    windows : sequence of StepWindow
        Windows of steps, isolated by `parameters`.
    what_ifs : sequence of WhatIf
        What-ifs to project, each on its own.
    meta : TraceMeta
        Metadata of the trace, for the provenance.
    parameters : Parameters
        Nominal parameters, with the calibrations that what-ifs use.
    options : ProjectionOptions, optional
        Draws, seed and jobs.

    Raises
    ------
    SeqPointError
        There is no window, a weight is not above zero, or a what-if cannot be applied or names a kernel that no graph
        has.
    """
    options = options or ProjectionOptions()
    _check_inputs(windows, what_ifs, parameters)
    cycles = max(1 if window.pattern is None else USUAL_CYCLES for window in windows)
    jobs = jobs_for([window.graph for window in windows], options.jobs, cycles=cycles)
    steps = ProgressSteps(1 + len(what_ifs), options.progress)
    steps.next("unchanged steps")
    replays = options.replays
    base = replays.base = replays.base or _Baseline.of(windows, sweep([each.steady for each in windows], jobs, steps))
    runs = [partial(_outcome, what_if, base, parameters, options.iterations, steps) for what_if in what_ifs]
    outcomes = sweep(runs, jobs, steps)
    applied = [what_if for what_if, outcome in zip(what_ifs, outcomes, strict=True) if outcome.applied]
    samples = _drawn(base, applied, parameters, options, jobs=jobs)
    rows, timelines = [], {"baseline": base.first.cut()}
    for what_if, outcome in zip(what_ifs, outcomes, strict=True):
        drawn = next(samples) if outcome.applied else []
        if error := next((sample.error for sample in drawn if sample.error), ""):
            outcome = _Outcome(error=f"{error} (with parameters drawn from their ranges)")
        if not outcome.applied:
            rows.append(_row_without_figures(what_if, outcome, windows, options))
            continue
        drawn = _with_selection_error(drawn, base, outcome, options.seed)
        rows.append(_projection_row(what_if, base, outcome, drawn, options.iterations))
        assert outcome.timeline is not None  # it applies to a window
        timelines[what_if.label] = outcome.timeline
    measured = fsum(window.measured_total_ns for window in windows)
    provenance = provenance_of(
        meta, list(timelines.values()), what_ifs, parameters, draws=options.draws, seed=options.seed
    )
    provenance |= {"step_time": _step_time_kind(windows)}
    totals = (base.total_ns, measured, base.repeated_ns())
    limits = replays.limits = replays.limits or limits_of(
        base.windows, base.states, base.speedup, run=lambda runs: sweep(runs, jobs, steps)
    )
    return Projection(*totals, tuple(rows), provenance, limits, _rank_shares(base), timelines)


def _drawn(
    base: "_Baseline", what_ifs: Sequence[WhatIf], parameters: Parameters, options: ProjectionOptions, *, jobs: int
) -> "Iterator[list[_Sample]]":
    """Return for each what-if its samples under all draws of the parameters."""
    random = np.random.default_rng(options.seed)
    draws = [parameters.drawn(random) for _ in range(options.draws)]
    steps = ProgressSteps((len(what_ifs) + 1) * len(base.windows) * options.draws, options.progress)
    known = [options.replays.drawn[i] for i in range(options.draws)]
    pairs = zip(draws, known, strict=True) if what_ifs else ()
    runs = [partial(_samples_of_draw, base, what_ifs, (draw, steps), of_draw) for draw, of_draw in pairs]
    samples = sweep(runs, jobs, steps)
    return ([of_draw[i] for of_draw in samples] for i in range(len(what_ifs)))


def _rank_shares(base: "_Baseline") -> dict[int, float]:
    """Return the shares of the ranks in the critical path of the steps asked for."""
    ranks, total = defaultdict[int, float](float), 0.0
    for window, state in zip(base.windows, base.states, strict=True):
        for position, weight in zip(window.chosen, window.weights, strict=True):
            step_pace = pace(state, position)
            total += weight * step_pace.step_ns
            for rank, ns in step_pace.by_rank.items():
                ranks[rank] += weight * ns
    return {rank: ns / total for rank, ns in sorted(ranks.items()) if rank >= 0} if total else {}


def _step_time_kind(windows: Sequence[StepWindow]) -> str:
    """Return which kind of step time a projection has, for its provenance."""
    n_single = sum(window.pattern is None for window in windows)
    if not n_single:
        return "between completions"
    return "latency" if n_single == len(windows) else "between completions; latency where an iteration has no neighbour"


@dataclass(frozen=True)
class _Baseline:
    """The unchanged windows: their steady states, and their weighted step times, steady and to count gains from.

    `device_ns` is the weighted time of the steady steps during which a device is busy. `base_device_ns` is the same of
    the steps to count from: it is scaled as the step times are.
    """

    windows: Sequence[StepWindow]
    states: Sequence[SteadyState]
    steady_ns: list[float]
    base_ns: list[float]
    device_ns: list[float]
    base_device_ns: list[float]

    @classmethod
    def of(cls, windows: Sequence[StepWindow], states: Sequence[SteadyState]) -> "_Baseline":
        """Return the baseline of windows, from their unchanged steady states."""
        steady = [window.total_ns(state) for window, state in zip(windows, states, strict=True)]
        base = [window.measured_total_ns or ns for window, ns in zip(windows, steady, strict=True)]
        device = [window.device_ns(state) for window, state in zip(windows, states, strict=True)]
        columns = zip(device, base, steady, strict=True)
        base_device = [ns * of_base / of_steady if of_steady else ns for ns, of_base, of_steady in columns]
        return cls(windows, states, steady, base, device, base_device)

    @property
    def total_ns(self) -> float:
        return fsum(self.base_ns)

    @property
    def first(self) -> Timeline:
        return self.states[0].at_step(self.windows[0].chosen[0])

    def repeated_ns(self) -> float:
        """Return the sum of the steady step times of windows that repeat, and of the base times of the others."""
        columns = zip(self.windows, self.steady_ns, self.base_ns, strict=True)
        return fsum(base if window.pattern is None else steady for window, steady, base in columns)

    def speedup(self, changed_ns: Sequence[float]) -> float:
        """Return how many times as fast the steps are if they take other times in their windows."""
        return self.total_ns / max(_scaled(self.base_ns, changed_ns, self.steady_ns), _SHORTEST_NS)

    def steady_error(self) -> float:
        """Return the share by which the steady state of windows that repeat differs from the measurement."""
        ratio = self.repeated_ns() / self.total_ns if self.total_ns else 1.0
        return max(ratio, 1 / ratio) - 1 if ratio else 0.0


def _scaled(base_ns: Sequence[float], changed: Sequence[float], steady: Sequence[float]) -> float:
    """Return the sum of the base times, each times its changed over its steady time.

    A step that takes no time, since longer work of an earlier step hides it, keeps its base time.
    """
    return fsum(b * c / s if s else b for b, c, s in zip(base_ns, changed, steady, strict=True))


@dataclass(frozen=True)
class _WindowOutcome:
    """One window under a what-if with nominal parameters.

    `times_ns` is the weighted time of its steps by side and basis, `added` are the notes of the what-if alone. `reason`
    says why the what-if changes nothing; empty if it does. `shifted` tells that the steps lose what their cycle does
    not, or gain it. `energies` are those of a device before and after, W times ns, of what-ifs that change its power.
    """

    total_ns: float
    device_ns: float
    times_ns: Floats
    notes: tuple[str, ...]
    added: tuple[str, ...]
    reason: str
    shifted: bool
    energies: tuple[float, float] = (nan, nan)


@dataclass(frozen=True)
class _Outcome:
    """All windows under a what-if with nominal parameters; the error if it cannot be applied.

    `limited_by` names the resources that limit the steps of the longest window then, `timeline` is that of the first
    step asked for.
    """

    windows: tuple[_WindowOutcome, ...] = ()
    error: str = ""
    limited_by: tuple[str, ...] = ()
    timeline: Timeline | None = None

    @property
    def applied(self) -> bool:
        return any(not window.reason for window in self.windows)

    def reason(self, iterations: Sequence[int]) -> str:
        """Return why the what-if is not applicable; empty if it is."""
        if self.error or self.applied:
            return self.error
        added = joined_notes([window.added for window in self.windows], iterations)
        reasons = dict.fromkeys(window.reason for window in self.windows)
        return "; ".join(reasons) + (f" ({'; '.join(added)})" if added else "")


def _outcome(
    what_if: WhatIf, base: _Baseline, nominal: Parameters, iterations: Sequence[int], steps: ProgressSteps
) -> _Outcome:
    """Return the outcome of a what-if under nominal parameters."""
    steps.next(what_if.label)
    outcomes, timeline, longest = list[_WindowOutcome](), None, None
    for i, (window, before, base_ns) in enumerate(zip(base.windows, base.states, base.base_ns, strict=True)):
        try:
            outcome, state = _window_outcome(what_if, window, before, nominal)
        except SeqPointError as error:
            where = f" (iteration {iterations[i]})" if len(base.windows) > 1 and len(iterations) > i else ""
            return _Outcome(error=f"{error}{where}")
        if not base_ns:
            outcome = replace(outcome, notes=(*outcome.notes, _HIDDEN))
        if longest is None or outcome.total_ns > max(each.total_ns for each in outcomes):
            longest = window, state
        timeline = timeline or state.at_step(window.chosen[0]).cut()
        outcomes.append(outcome)
    assert longest is not None  # there is a window
    parameters, (window, state) = nominal.with_values(what_if.parameters), longest
    window = window.isolated(parameters) if what_if.parameters else window
    limited_by = limiting_after(window, state, _BoundWhatIf(what_if, parameters))
    return _Outcome(tuple(outcomes), "", limited_by, timeline)


def _window_outcome(
    what_if: WhatIf, window: StepWindow, before: SteadyState, nominal: Parameters
) -> tuple[_WindowOutcome, SteadyState]:
    """Return the outcome of a what-if in a window, and the steady state that it is of."""
    parameters = nominal.with_values(what_if.parameters)
    window = window.isolated(parameters) if what_if.parameters else window
    change = _BoundWhatIf(what_if, parameters)
    state = window.steady(change)
    total = window.total_ns(state)
    if not total <= _LONGEST_NS:
        raise InvalidInputError(f"what-if {what_if.label[:80]}: a projected time of {total:.3g} ns")
    # A repeated graph would count each kernel once a cycle.
    notes = (state.timeline.graph if window.pattern is None else what_if(window.graph, parameters)).notes
    added, reason = notes[len(window.graph.notes) :], ""
    if not change.applied or _same_times(before.timeline, state.timeline):
        notes, reason = window.graph.notes, NO_EFFECT if change.applied else NOTHING_CHANGES
    if not (state.settled and before.settled):
        notes = (*notes, _UNSETTLED.format(what_if.label))
    gains = (window.total_ns(before) / max(total, _SHORTEST_NS), before.period_ns / max(state.period_ns, _SHORTEST_NS))
    if shifted := _are_opposite(*gains):
        notes = (*notes, _SHIFTED.format(what_if.label, *(f"{gain:.3f}" for gain in gains)))
    times, energies = (window.device_ns(state), _weighted_evidence(window, state)), (nan, nan)
    if any(step.name.partition(":")[0] in _OF_POWER for step in single_steps(what_if)):
        was, now = (timeline_power(each.timeline, parameters) * window.total_ns(each) for each in (before, state))
        energies = was, now
    return _WindowOutcome(total, *times, notes, added, reason, shifted, energies), state


def timeline_power(timeline: Timeline, parameters: Parameters) -> float:
    """Return the mean power of a device, W; NaN if the trace does not say which device, or its limit is unknown.

    Each task draws the share of the limit that `replay.costs.hardware.power_shares` says, a device without any its idle
    power. Tasks side by side draw the sum.

    Parameters
    ----------
    timeline : Timeline
        Times of all tasks.
    parameters : Parameters
        With ``power_share_compute_bound`` and the like.
    """
    graph, busy_ns = timeline.graph, timeline.busy_ns()
    device, limit = graph.hardware.device, graph.hardware.factor("power")
    if device is None or "power_w" not in device.figures or not len(busy_ns) or not timeline.span_ns:
        return nan
    drawn = np.minimum(power_shares(graph, parameters), 1.0) * limit * (timeline.end_ns - timeline.start_ns)
    idle = parameters["power_share_idle"] * float(np.maximum(timeline.span_ns - busy_ns, 0.0).sum())
    return device.value("power_w") * (float(drawn[graph.on_device()].sum()) + idle) / (len(busy_ns) * timeline.span_ns)


def _are_opposite(of_steps: float, of_cycle: float) -> bool:
    """Return whether steps lose what their cycle does not, or gain what it does not."""
    return (of_steps < 1 - _SHIFT and of_cycle > 1 - _ROUNDING) or (of_steps > 1 + _SHIFT and of_cycle < 1 + _ROUNDING)


def _weighted_evidence(window: StepWindow, state: SteadyState) -> Floats:
    """Return the weighted time of the steps asked for by side and basis."""
    tables = step_evidence(state, window.chosen, window.graph, window.pattern)
    times = [w * float(state.step_ns[i]) for w, i in zip(window.weights, window.chosen, strict=True)]
    return np.asarray(np.tensordot(times, np.stack(tables), axes=1), dtype=np.float64)


def _same_times(before: Timeline, after: Timeline) -> bool:
    """Return whether the same tasks start and end at the same times, up to rounding."""
    if len(before.start_ns) != len(after.start_ns):
        return False
    pairs = ((before.start_ns, after.start_ns), (before.end_ns, after.end_ns))
    return all(np.allclose(times, changed, rtol=_ROUNDING, atol=_ROUNDING) for times, changed in pairs)


class _BoundWhatIf:
    """A what-if with its parameters bound, which records whether it changed the graph it was applied to last.

    Parameters
    ----------
    what_if : WhatIf
        The what-if.
    parameters : Parameters
        Parameters of the models.
    """

    def __init__(self, what_if: WhatIf, parameters: Parameters) -> None:
        self._what_if, self._parameters, self.applied = what_if, parameters, False

    def __call__(self, graph: KernelGraph) -> KernelGraph:
        changed = self._what_if(graph, self._parameters)
        self.applied = not changed.replays_like(graph)
        return changed


class _DrawnWhatIf:
    """A what-if with drawn parameters, which reports a step when it is first applied.

    An error is kept in `error`, and the graph stays as it is, so that other what-ifs of the draw go on.

    Parameters
    ----------
    what_if : WhatIf
        The what-if.
    parameters : Parameters
        Drawn parameters of the models.
    steps : ProgressSteps
        Steps of the sweep.
    shared : SharedParts
        Parts that the what-ifs of the draw share.
    """

    def __init__(self, what_if: WhatIf, parameters: Parameters, steps: ProgressSteps, shared: SharedParts) -> None:
        self._what_if, self._parameters, self._steps, self._shared = what_if, parameters, steps, shared
        self._counted, self.error = False, ""

    def __call__(self, graph: KernelGraph) -> KernelGraph:
        if not self._counted:  # a period that settles slowly applies it again
            self._steps.next(self._what_if.label)
            self._counted = True
        try:
            return self._shared.apply(self._what_if, graph, self._parameters)
        except SeqPointError as error:
            self.error = str(error)
            return graph


class _Sample(NamedTuple):
    """A what-if under one draw: step time with the drawn error of the replay, device time, and its error if refused.

    `replayed` is the drawn ratio by the error of the replay alone.
    """

    projected_ns: float
    device_ns: float
    error: str
    replayed: float


def _samples_of_draw(
    base: _Baseline, what_ifs: Sequence[WhatIf], draw: tuple[Parameters, ProgressSteps], known: _DrawnTimes
) -> list[_Sample]:
    """Return a sample of each what-if under one draw of the parameters; one graph at a time is in memory.

    Times that are not in `known` are replayed, and put there.
    """
    parameters, numbers = draw[0], range(len(base.windows))
    for i, (window, nominal) in enumerate(zip(base.windows, base.states, strict=True)):
        missing = {_key(each): each for each in what_ifs if (i, _key(each)) not in known}
        times = _times_of_draw(window, None if (i, "") in known else nominal, missing, draw)
        known.update(((i, key), of_change) for key, of_change in times.items())
    steady, device, _ = zip(*(known[i, ""] for i in numbers), strict=True)
    samples = []
    for each in what_ifs:
        totals, device_totals, errors = zip(*(known[i, _key(each)] for i in numbers), strict=True)
        replayed = 1 + parameters["replay_error"]
        projected = _scaled(base.base_ns, totals, steady) * replayed
        on_device = _scaled(base.base_device_ns, device_totals, device)
        samples.append(_Sample(projected, on_device, next(filter(None, errors), ""), replayed))
    return samples


def _key(what_if: WhatIf) -> Hashable:
    """Return what tells a what-if from others: `Replays` knows times by it."""
    return what_if.name, what_if.parameters


def _times_of_draw(
    window: StepWindow,
    nominal: SteadyState | None,
    what_ifs: Mapping[Hashable, WhatIf],
    draw: tuple[Parameters, ProgressSteps],
) -> dict[Hashable, tuple[float, float, str]]:
    """Return step time, device time and error of a window under one draw, of each what-if by its key.

    The key of the unchanged window is ""; it is there if its nominal state is given.
    """
    (parameters, steps), times = draw, dict[Hashable, tuple[float, float, str]]()
    if nominal is None and not what_ifs:
        return times
    steps.next("durations without contention")
    isolated = window.drawn(parameters)
    # A single iteration replays as measured under any parameters, unless its host is faster without the recording.
    changes: dict[Hashable, Change] = {}
    if nominal is not None and isolated.pattern is None and isolated.recording is None:
        times[""] = window.total_ns(nominal), window.device_ns(nominal), ""
    elif nominal is not None:
        changes[""] = unchanged
    shared = SharedParts([each for each in what_ifs.values() if not each.parameters])
    drawn = {
        key: _DrawnWhatIf(
            each, parameters.with_values(each.parameters), steps, SharedParts([each]) if each.parameters else shared
        )
        for key, each in what_ifs.items()
    }
    changes |= {key: change for key, change in drawn.items() if not what_ifs[key].parameters}
    for i, state in isolated.steady_each(list(changes.values())):
        key = list(changes)[i]
        times[key] = window.total_ns(state), window.device_ns(state), drawn[key].error if key in drawn else ""
        del state  # one graph at a time
    for key in drawn.keys() - changes.keys():
        state = window.drawn(parameters.with_values(what_ifs[key].parameters)).steady(drawn[key])
        times[key] = window.total_ns(state), window.device_ns(state), drawn[key].error
    return times


def _with_selection_error(drawn: "Sequence[_Sample]", base: _Baseline, outcome: _Outcome, seed: int) -> "list[_Sample]":
    """Return the samples with the error of selected steps, which stand for others."""
    totals = zip(outcome.windows, base.steady_ns, strict=True)
    ratios = [window.total_ns / steady if steady else 1.0 for window, steady in totals]
    factors = selection_factors(base.windows, base.base_ns, ratios, draws=len(drawn), seed=seed)
    return [
        sample._replace(projected_ns=sample.projected_ns * factor)
        for sample, factor in zip(drawn, factors.tolist(), strict=True)
    ]


def _check_inputs(windows: Sequence[StepWindow], what_ifs: Sequence[WhatIf], parameters: Parameters) -> None:
    """Raise an error for missing windows, weights not above zero, and choices that fit no task."""
    if not windows:
        raise InvalidInputError("there is no iteration to project; name one that the trace has")
    for window in windows:
        if not all(w > 0 for w in window.weights):
            raise InvalidInputError(f"iterations need weights above zero, not {list(window.weights)}")
    for what_if in what_ifs:
        check_choices(what_if, [window.graph for window in windows], parameters)


def _row_without_figures(
    what_if: WhatIf, outcome: _Outcome, windows: Sequence[StepWindow], options: ProjectionOptions
) -> ProjectionRow:
    """Return the row of a what-if that changes nothing or cannot be applied."""
    notes = joined_notes([window.graph.notes for window in windows], options.iterations)
    return ProjectionRow(what_if.steps, notes=notes, title=what_if.title, reason=outcome.reason(options.iterations))


def _projection_row(
    what_if: WhatIf, base: _Baseline, outcome: _Outcome, samples: "Sequence[_Sample]", iterations: Sequence[int]
) -> ProjectionRow:
    """Return the row of a what-if, from its outcome and its samples under all draws."""
    windows = outcome.windows
    projected = _scaled(base.base_ns, [window.total_ns for window in windows], base.steady_ns)
    on_device = _scaled(base.base_device_ns, [window.device_ns for window in windows], base.device_ns)
    total = max(base.total_ns, _SHORTEST_NS)
    drawn_ns = np.array([*(sample.projected_ns for sample in samples), projected])
    speedups = total / np.maximum(drawn_ns, _SHORTEST_NS)
    (low, high), speedup, off = np.quantile(speedups, QUANTILES), float(speedups[-1]), base.steady_error()
    if any(window.recording for window in base.windows):  # the host as recorded is one end
        recorded = np.quantile([speedup / sample.replayed for sample in samples] or [speedup], QUANTILES)
        low, high = min(low, recorded[0]), max(high, recorded[1])
    was, now = (fsum(side) for side in zip(*(window.energies for window in windows), strict=True))
    energy = now / was if was > 0 else nan
    device_low, device_high = np.quantile([*(sample.device_ns for sample in samples), on_device], QUANTILES)
    return ProjectionRow(
        what_if.steps,
        projected,
        speedup,
        min(float(low), speedup) / (1 + off),
        max(float(high), speedup) * (1 + off),
        Evidence.of(_times_by_basis(base, windows)),
        fsum(base.base_device_ns),
        on_device,
        min(float(device_low), on_device),
        max(float(device_high), on_device),
        notes=(
            *_row_notes(what_if, outcome, (speedup, float(high)), iterations),
            *_energy_note(what_if, energy),
            *work_notes(what_if, [(fsum(each.weights), each.graph) for each in base.windows], base.total_ns, projected),
        ),
        title=what_if.title,
        limited_by=outcome.limited_by,
        energy=energy,
    )


def _energy_note(what_if: WhatIf, energy: float) -> tuple[str, ...]:
    """Return a note on the energy of the steps, if it is known."""
    if not isfinite(energy):
        return ()
    return (f"{what_if.label}: about {energy:.2f} times the energy, by assumed shares of the power limit",)


def _times_by_basis(base: _Baseline, windows: Sequence[_WindowOutcome]) -> Floats:
    """Return the projected time by side and basis; each window is scaled as its steps are."""
    columns = zip(windows, base.base_ns, base.steady_ns, strict=True)
    tables = [window.times_ns * (base_ns / steady if steady else 1.0) for window, base_ns, steady in columns]
    return np.asarray(np.sum(tables, axis=0), dtype=np.float64)


def _row_notes(
    what_if: WhatIf, outcome: _Outcome, gain: tuple[float, float], iterations: Sequence[int]
) -> tuple[str, ...]:
    """Return the notes of a row: those of its graphs, the windows that stay unchanged, and whether it is a loss."""
    notes = list(joined_notes([window.notes for window in outcome.windows], iterations))
    same = [i for i, window in enumerate(outcome.windows) if window.reason]
    if same:
        n, names = (
            len(outcome.windows),
            ", ".join(str(iterations[i]) for i in same[:_MOST_NAMED] if i < len(iterations)),
        )
        named = f" (not of iteration {names}{', ...' * (len(same) > _MOST_NAMED)})" if names else ""
        notes.append(f"{what_if.label}: changes steps of {n - len(same)} of {n} groups of iterations{named}")
    speedup, high = gain
    is_loss = speedup < 1 - _SLOWER and not any(window.shifted for window in outcome.windows)
    if is_loss and not any(step.tokens for step in single_steps(what_if)):
        doubt = "" if high < 1 else ", by less than the interval can tell"
        notes.append(f"{what_if.label}: slower than doing nothing{doubt}")
    return tuple(notes)


def with_provenance(projection: Projection, more: dict[str, Any]) -> Projection:
    """Return `projection` with `more` in its provenance."""
    return replace(projection, provenance={**projection.provenance, **more})
