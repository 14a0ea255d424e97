"""What changed between two traces or groups of runs, where, and whether it is more than noise.

`compare_samples` compares steps that `seqpoint.step_sample` measured. The result has a verdict on the step time, the
change of each part of a step, the change of each operator, and the kernels that appeared or vanished. Steps that
`seqpoint.projected_steps` projected can be the side before: then the result tells how far the projection is off.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from profilers.trace.arrays import Floats, Ints
from seqpoint.matching import (
    APPEARED,
    BY_NAME,
    BY_POSITION,
    BY_SHAPES,
    REGULAR,
    VANISHED,
    KernelOfOneSide,
    KindOfSteps,
    Side,
    column_of,
    common_share,
    drifts_of,
    kernel_totals,
    kernels_of_one_side,
    kinds_of_steps,
    matched,
    matched_kinds,
    of_matched_kinds,
    side_of,
    sums,
    top_kernels,
)
from seqpoint.noise import Change, Changes, changes_of, paired_changes_of, rows_of
from seqpoint.notebook import TOP, DataFrame, Result, Table, data_frame, table_of
from seqpoint.step_sample import (
    HOST,
    PARTS,
    ProjectedStep,
    StepSample,
    aligned,
    idle_joined,
    mean_projection,
    part_name,
    without_outlying_runs,
)
from seqpoint.units import duration, signed

#: Confidence level of the intervals, and the smallest change that counts as one.
CONFIDENCE, LEAST = 0.99, 0.005
#: Below this likeness, two sides are different jobs. Real traces of one job, eager and compiled, or on two vendors'
#: devices, have 0.92 to 1; those of different jobs at most 0.54.
_ALIKE = 0.7
#: Most characters of an operator and of a kernel in a table.
_OPERATOR_LENGTH, _KERNEL_LENGTH = 52, 52

FASTER, SLOWER, SAME, UNKNOWN = "faster", "slower", "no difference beyond noise", "cannot tell"
AS_PROJECTED, NOT_AS_PROJECTED = "as projected", "not as projected"
#: Part of a step without work on a device, in a host call or not.
IDLE = "idle"

#: Tables of the JSON.
_TABLES = ("parts", "path", "classes", "operators", "kernels")
#: Share of the kernel time in operators of one side from which a note tells it.
_OF_ONE_SIDE = 0.25
#: Share of the projected step by which errors of parts may cancel. Chosen.
_CANCELLED = 0.05
#: Share of the step from which noise would hide a change that anyone looks for. Chosen.
_TELLING = 0.25
#: Share of the host in a critical path from which a step is called host-bound.
_HOST_BOUND = 0.5


@dataclass(frozen=True, kw_only=True)
class OperatorChange(Change):
    """Change of the kernels of an operator.

    Parameters
    ----------
    shapes : str
        Shapes of its inputs; "" if unknown, or if the row holds several.
    matched_by : str
        ``"name and shapes"``, ``"name"``, ``"position"``, ``"appeared"`` or ``"vanished"``.
    before_kernels, after_kernels : float
        Kernels a step and rank; calls if the trace has no kernels.
    before_kernel, after_kernel : str
        Name of the kernel with most time; "" if there is none.
    """

    shapes: str
    matched_by: str
    before_kernels: float
    after_kernels: float
    before_kernel: str
    after_kernel: str


@dataclass(frozen=True, repr=False)
class Comparison(Result):
    """Two traces or groups of runs, compared.

    Parameters
    ----------
    verdict : str
        ``"faster"``, ``"slower"``, ``"no difference beyond noise"`` or ``"cannot tell"``: the step time after. Against
        a projection, ``"as projected"`` says that the step time is within its interval, and the first two that it is
        below or above. ``"not as projected"`` says that it is within, but only because errors of parts cancel.
    reason : str
        Why nothing can be told, a drift along a run, or where the measured step time lies in the interval of a
        projection; else "".
    step : Change
        Step time.
    confidence : float
        Confidence level of the noise.
    unit : str
        ``"steps"``, ``"paired steps"`` or ``"runs"``: whose scatter the noise is.
    likeness : float
        Kernels that both sides run over those of either, matched by operator or by class, whichever gives more.
    parts : tuple of Change
        Parts of a step, the largest change first; their changes add up to that of the step time.
    path : tuple of Change
        Causes of the critical path of a typical step of the first run of each side, the largest change first. They add
        up to that step in the steady state, and their noise is unknown. Empty if a path is unknown.
    classes : tuple of Change
        Kernels by class, the largest change first; times add up to the kernel time of a step and rank.
    operators : tuple of OperatorChange
        Changes beyond noise first, the largest first.
    kernels : tuple of KernelOfOneSide
        Kernels that appeared or vanished, most time first.
    before, after : Side
        Facts of the sides.
    projection : ProjectedStep, optional
        Step time before with its interval, if it was projected.
    kinds : tuple of KindOfSteps
        Kinds of steps by their kernels, which are compared with their like; the most frequent one first.
    device_work : Change, optional
        Time of all kernels in a step of a rank; None for a job without devices.
    """

    heading = "Comparison"

    verdict: str
    reason: str
    step: Change
    confidence: float
    unit: str
    likeness: float
    parts: tuple[Change, ...]
    path: tuple[Change, ...]
    classes: tuple[Change, ...]
    operators: tuple[OperatorChange, ...]
    kernels: tuple[KernelOfOneSide, ...]
    before: Side
    after: Side
    projection: ProjectedStep | None = None
    kinds: tuple[KindOfSteps, ...] = ()
    device_work: Change | None = None

    def slower_by(self, limit: float) -> bool:
        """Return whether a typical step is slower beyond noise, and by more than a share of the step time before.

        Parameters
        ----------
        limit : float
            The share, such as 0.02.
        """
        return self.verdict == SLOWER and _typical(self.step) > limit * self.step.before_ns

    def table(self) -> DataFrame:
        """Return a row for each operator; times in ns a step."""
        return data_frame([row.to_dict() for row in self.operators])

    def plot(self, top: int = TOP) -> Any:
        """Return the chart of the largest changes by operator, as a HoloViews object."""
        from seqpoint.plots.projections import changes_by_operator

        rows = self.table()
        rows = rows[rows.change_ns != 0].head(top) if len(rows) else rows
        sides, title = ("before", "after"), f"of the time of operators in a step; step time: {self.verdict}"
        if self.projection is None:
            return changes_by_operator(rows, sides, f"Change {title}")
        rows = rows.rename(columns={"before_ns": "after_ns", "after_ns": "before_ns"})
        return changes_by_operator(rows, ("measured", "projected"), f"Error {title}")

    def to_dict(self) -> dict[str, Any]:
        """Return what `seqpoint compare --json` prints."""
        return {
            **{name: getattr(self, name) for name in ("verdict", "reason", "confidence", "unit", "likeness")},
            "step": self.step.to_dict(),
            "device_work": self.device_work and self.device_work.to_dict(),
            "before": asdict(self.before),
            "after": asdict(self.after),
            "projection": None if self.projection is None else asdict(self.projection),
            "kinds": [asdict(kind) for kind in self.kinds],
            **{name: [row.to_dict() for row in getattr(self, name)] for name in _TABLES},
            "notes": list(self.notes()),
        }

    def summary(self) -> list[str]:
        """Return the verdict with the step times, and the facts of the sides."""
        step, verdict = self.step, f"{self.verdict}{': ' * bool(self.reason)}{self.reason}"
        names = ("before", "after") if self.projection is None else ("projected", "measured")
        lines = [f"{name}: {side}" for name, side in zip(names, (self.before, self.after), strict=True)]
        if not (self.before.steps and self.after.steps):
            return [verdict, *lines]
        if self.projection is not None:
            return [verdict, *_errors(step, self.classes, self.projection, alike=self.verdict != UNKNOWN), *lines]
        times = f"step time {duration(step.before_ns)} to {duration(step.after_ns)}"
        change = "" if step.ratio is None else f", {100 * step.ratio:+.2f} %"
        if step.noise_ns is not None and step.before_ns:
            noise = 100 * step.noise_ns / step.before_ns
            change += f" (noise {noise:.2f} % from {self.unit}, at {100 * self.confidence:g} %)"
        if (work := self.device_work) is not None and work.ratio is not None and work.beyond_noise is not None:
            change += f"; kernels {duration(work.before_ns)} to {duration(work.after_ns)}, {100 * work.ratio:+.1f} %"
            change += "" if work.beyond_noise else ", within their noise"
        return [verdict, times + change, *lines]

    def notes(self) -> tuple[str, ...]:
        """Return notes on what the figures do and do not tell."""
        notes, sides = self._notes_on_projection(), (self.before, self.after)
        if self.unit != "runs" and self.step.noise_ns is not None and self.projection is None:
            notes.append(
                "the noise is the scatter of steps within one run; several runs a side also show how runs differ"
            )
        if self.before.on_host != self.after.on_host and self.before.steps and self.after.steps:
            name = "before" if self.before.on_host else "after"
            notes.append(f"the side {name} has no device work: its times are the host's, the others the devices'")
        elif self.before.device != self.after.device:
            notes.append(f"the devices differ: {' and '.join(str(side.device or 'unknown') for side in sides)}")
        for name, side in zip(("before", "after"), sides, strict=True):
            if side.synthetic:
                notes.append(f"the side {name} is synthetic: nobody measured its times")
        if self.before.ranks != self.after.ranks:
            notes.append("the numbers of ranks differ; times of operators and kernels are a rank's")
        if not all(side.same_ranks for side in sides):
            notes.append(
                "the runs of a side are of different ranks; read the files of a job together (seqpoint ingest)"
            )
        if self.likeness < _ALIKE:
            notes.append(f"the sides share {100 * self.likeness:.0f} % of their kernels: different jobs?")
        elif self._of_one_side():
            share = 100 * self._share(APPEARED, VANISHED)
            notes.append(f"{share:.0f} % of the kernel time is of operators of one side alone; compare classes instead")
        elif self._share(BY_SHAPES) < REGULAR:
            notes.append("most operators match by name alone: shapes differ or vary, as with another batch or length")
        lengths = [side.length for side in sides if side.length is not None]
        if len(lengths) == 2 and abs(lengths[1] - lengths[0]) > LEAST * lengths[0]:
            notes.append(f"the mean sequence lengths differ: {lengths[0]:.4g} and {lengths[1]:.4g}")
        if self.verdict == SAME and (drifts := drifts_of(sides, LEAST)):
            notes.append(f"{' and '.join(drifts)}; such a drift counts as noise, and hides small changes")
        if self.projection is None and abs(_typical(self.step) - self.step.change_ns) > (self.step.noise_ns or 0.0):
            share = 100 * _typical(self.step) / max(self.step.before_ns, 1.0)
            notes.append(f"a typical step changes by {share:+.2f} %; rare slow or short steps move the means")
        if left_out := sum(side.unmatched for side in sides):
            steps = f"{left_out} step{'s' * (left_out != 1)}"
            notes.append(f"left out of the comparison: {steps} of kinds that a side has not, or has once")
        if self.before.outliers or self.after.outliers:
            with_all = " to ".join(duration(side.all_ns) for side in sides)
            notes.append(f"outlying steps, such as the warm-up, are left out; with them the mean is {with_all}")
        return tuple(notes)

    def _notes_on_projection(self) -> list[str]:
        """Return the notes of the projection, and whether its step or the measured one is host-bound."""
        if self.projection is None or not (self.before.steps and self.after.steps):
            return []
        notes = []
        times = {row.name: (row.before_ns, row.after_ns) for row in self.path}
        totals = (sum(before for before, _ in times.values()), sum(after for _, after in times.values()))
        shares = [ns / max(total, 1e-9) for ns, total in zip(times.get("host", (0.0, 0.0)), totals, strict=True)]
        if max(shares) > _HOST_BOUND:
            text = " and ".join(f"{100 * share:.0f} % of the {name} critical path" for share, name in
                                zip(shares, ("projected", "measured"), strict=True))  # fmt: skip
            notes.append(f"host-bound: the host has {text}, so the step times tell little about the devices")
        return [*notes, *self.projection.notes]

    def _of_one_side(self) -> bool:
        """Return whether operators of one side alone have so much time that classes tell more."""
        return not self.before.on_host and self._share(APPEARED, VANISHED) > _OF_ONE_SIDE

    def _share(self, *matched_by: str) -> float:
        """Return the share of the time of the operators in rows that were matched in some ways."""
        times = [(row.matched_by in matched_by, row.before_ns + row.after_ns) for row in self.operators]
        return sum(time for fits, time in times if fits) / max(sum(time for _, time in times), 1e-9)

    def tables(self) -> tuple[Table, ...]:
        """Return the tables of text: parts of the step, operators, and kernels of one side."""
        projected = self.projection is not None
        times = _ERRORS if projected else _CHANGES
        path = {"cause~": "{name}", **{name: text for name, text in times.items() if name not in ("noise", "clear~")}}
        what, number = ("host operator", "calls") if self.before.on_host else ("operator", "kernels")
        operators = {f"{what}~": "{name}", **times, number: "{kernels}"}
        operators.pop("noise", None)  # leaves room for the names
        only = {
            "side~": "{side}", "kernel~": "{kernel}", "class~": "{class_}", "kernels": "{kernels:.4g}",
            "time": "{time_ns:time}",
        }  # fmt: skip
        changed = [row for row in self.operators if row.change_ns or row.before_kernels != row.after_kernels]
        shown = [{**asdict(row), "kernel": row.kernel.removeprefix("void ")} for row in self.kernels]
        against = ", projected against measured" if projected else ""
        order = against or ", clear changes first, then by size"
        of_steps = f" (iterations {self.before.path_iteration} and {self.after.path_iteration})"
        by_operator = f"Operators{against}" if projected else "Operators by change of their time a step"
        kinds = [asdict(kind) for kind in self.kinds] if len(self.kinds) > 1 else []
        tables = (
            table_of("Kinds of steps by their kernels", _KINDS, kinds),
            table_of(f"Parts of a step{order}", {"part~": "{name}", **times}, self._cells(self.parts)),
            table_of(by_operator, operators, self._cells(changed)),
            table_of(f"Critical path of a typical step by cause{against}{of_steps}", path, self._cells(self.path)),
            table_of(f"Kernels by class{against}", {"class~": "{name}", **times},
                     self._cells(self.classes) if projected or self._of_one_side() else []),
            table_of("Kernels that appeared or vanished", only, [] if projected else shown),
        )  # fmt: skip
        return tuple(table for table in tables if table.rows)

    def _cells(self, rows: Sequence[Change]) -> list[dict[str, Any]]:
        cells = []
        for row in rows:
            name, kernels = row.name, ""
            if isinstance(row, OperatorChange):
                how = _HOW.get(row.matched_by, "")
                if self.projection is not None:
                    how = {APPEARED: " (measured alone)", VANISHED: " (projected alone)"}.get(row.matched_by, how)
                shapes = row.shapes.replace(",[]", "").replace("[]", "").replace("[]", "")
                name = f"{row.name} {shapes}".strip() + how
                counts = dict.fromkeys(f"{count:.4g}" for count in (row.before_kernels, row.after_kernels))
                kernels = " to ".join(counts)
            change_ns, step_ns = row.change_ns, self.step.before_ns
            if self.projection is not None:
                change_ns, step_ns = -change_ns, self.step.after_ns
            clear = {None: "-", True: "yes", False: "no"}[row.beyond_noise]
            of_step = change_ns / step_ns if step_ns else None
            cells.append({"row": row, "name": name, "change": signed(change_ns), "of_step": of_step,
                          "clear": clear, "kernels": kernels, "error": row.error})  # fmt: skip
        return cells


#: Columns of the times of a change, and of the error of a projection.
_CHANGES = {
    "before": "{row.before_ns:time}", "after": "{row.after_ns:time}", "change": "{change}",
    "noise": "{row.noise_ns:time}", "of step %": "{of_step:+.2%}", "clear~": "{clear}",
}  # fmt: skip
_ERRORS = {
    "projected": "{row.before_ns:time}", "measured": "{row.after_ns:time}", "error": "{change}",
    "error %": "{error:+.1%}", "of step %": "{of_step:+.1%}",
}  # fmt: skip
#: Columns of the kinds of steps.
_KINDS = {
    "steps before": "{before_steps}", "steps after": "{after_steps}", "kernels before": "{before_kernels:.4g}",
    "kernels after": "{after_kernels:.4g}", "step before": "{before_ns:time}", "step after": "{after_ns:time}",
}  # fmt: skip
#: What the name of an operator is followed by, by the way that it was matched.
_HOW = {APPEARED: " (appeared)", VANISHED: " (vanished)", BY_POSITION: " (same position)"}


def _errors(step: Change, classes: Sequence[Change], projection: ProjectedStep, *, alike: bool) -> list[str]:
    """Return the projected and measured step and kernel time, in a sentence each, with errors if the jobs are alike."""
    interval = f"{100 * projection.confidence:g} % interval {duration(projection.low_ns)} to"
    interval += f" {duration(projection.high_ns)}"
    kernels = Change("kernels", sum(row.before_ns for row in classes), sum(row.after_ns for row in classes), None, None)
    lines = []
    for name, row, more in (("step", step, f" ({interval})"), ("kernel", kernels, "")):
        error = "" if row.error is None or not alike else f": error {100 * row.error:+.1f} %"
        lines.append(f"{name} time {duration(row.before_ns)} projected{more}, {duration(row.after_ns)} measured{error}")
    return lines


def compare_samples(
    before: Sequence[StepSample],
    after: Sequence[StepSample],
    *,
    same_job: bool = False,
    confidence: float = CONFIDENCE,
    least: float = LEAST,
) -> Comparison:
    """Return what changed from one group of runs to another.

    Parameters
    ----------
    before, after : sequence of StepSample
        Runs of each side.
    same_job : bool
        Whether the step times are judged even if the operators of the sides differ.
    confidence : float
        Confidence level of the intervals.
    least : float
        Smallest change that counts, as a share of the time.
    """
    projection = mean_projection(before)
    groups, outliers = zip(*(without_outlying_runs(list(runs)) for runs in (before, after)), strict=True)
    sides = [side_of(runs, dropped) for runs, dropped in zip(groups, outliers, strict=True)]
    runs = [[run for run in group if len(run)] for group in groups]
    if not all(runs):
        which = " and ".join(name for name, group in zip(("before", "after"), runs, strict=True) if not group)
        reason = f"no steps {which}; read the traces with --iterations (see docs/traces.md)"
        nothing, tables = Change("step", 0.0, 0.0, None, None), ((), (), (), (), ())
        return Comparison(UNKNOWN, reason, nothing, confidence, "steps", 0.0, *tables, sides[0], sides[1])
    pair = _aligned(runs)
    runs = runs if pair is None else [[run] for run in pair]
    labels: list[list[Ints]] | None = None
    kinds: tuple[KindOfSteps, ...] = ()
    if projection is None:
        labels = matched_kinds(runs)
        kinds = kinds_of_steps(runs, labels)
        if pair is None:
            runs, labels, left = of_matched_kinds(runs, labels)
            sides = [replace(side, steps=side.steps - n, unmatched=n) for side, n in zip(sides, left, strict=True)]
    change = partial(_changes, runs, is_aligned=pair is not None, confidence=confidence, kinds=labels)
    (step,) = rows_of(change(lambda run: run.step_ns[:, None]), ("step",), least)
    on_host = all(side.on_host for side in sides)
    changed = change(idle_joined if projection else lambda run: run.parts_ns)
    names = [IDLE if projection and part == HOST else part_name(part, on_host) for part in PARTS]
    parts = [row for row in rows_of(changed, names, least) if abs(row.before_ns) + abs(row.after_ns) >= 1]
    operators = _operators(runs, change, least)
    likeness = _likeness(runs, operators, on_host)
    verdict, reason = _verdict(step, operators, likeness >= _ALIKE or same_job, projection)
    if verdict == AS_PROJECTED and projection is not None and (error := _cancelling(parts, projection)):
        verdict, reason = NOT_AS_PROJECTED, error
    if verdict in (FASTER, SLOWER) and projection is None:
        reason = " and ".join(drifts_of(sides, LEAST))
        reason = reason and f"but {reason}; such a drift alone can make two stretches of a run differ"
    order = partial(_by_change, least_ns=least * step.before_ns) if projection is None else _by_error
    work = () if on_host else rows_of(change(lambda run: _summed(run, 1, np.zeros(1, np.int64))), ("kernels",), least)
    return Comparison(
        verdict=verdict,
        reason=reason,
        step=step,
        confidence=confidence,
        unit=changed.unit,
        likeness=likeness,
        parts=tuple(sorted(parts, key=order)),
        path=_path(runs[0][0], runs[1][0]),
        classes=() if on_host else tuple(sorted(_classes(runs, change, least), key=order)),
        operators=tuple(sorted(operators, key=lambda row: (*order(row), row.shapes))),
        kernels=kernels_of_one_side(runs),
        before=sides[0],
        after=sides[1],
        projection=projection,
        kinds=kinds,
        device_work=next(iter(work), None),
    )


def _aligned(runs: Sequence[Sequence[StepSample]]) -> tuple[StepSample, StepSample] | None:
    """Return one run a side that do the same work step by step, else None."""
    if not len(runs[0]) == len(runs[1]) == 1:
        return None
    before, after = runs[0][0], runs[1][0]
    return aligned(before, after, matched_kinds(runs)[0][0])


def _typical(step: Change) -> float:
    """Return the typical change of the step time, or the change of its mean if there is no noise to tell it by."""
    return step.change_ns if step.shift_ns is None else step.shift_ns


def _path(before: StepSample, after: StepSample) -> tuple[Change, ...]:
    """Return the change of each cause on the critical paths of two runs, if both are known."""
    if not (before.path_ns and after.path_ns):
        return ()
    causes = dict.fromkeys((*before.path_ns, *after.path_ns))
    rows = (Change(name, before.path_ns.get(name, 0.0), after.path_ns.get(name, 0.0), None, None) for name in causes)
    return tuple(sorted(rows, key=_by_error))


def _verdict(
    step: Change, operators: Sequence[OperatorChange], alike: bool, projection: ProjectedStep | None
) -> tuple[str, str]:
    """Return the verdict on the step time, and its reason, if there is one to tell."""
    if alike and projection is not None:
        where, verdict = "is within", AS_PROJECTED
        if not projection.low_ns <= step.after_ns <= projection.high_ns:
            where, verdict = ("is above", SLOWER) if step.after_ns > projection.high_ns else ("is below", FASTER)
        return verdict, f"the measured step time {where} the interval of the projection"
    if not step.change_ns and not any(row.change_ns for row in operators):
        return SAME, "the steps are identical"
    if not alike:
        return UNKNOWN, "the sides run different operators (--same-job judges their step times all the same)"
    if step.noise_ns is None:
        return UNKNOWN, "one step a side shows no noise; compare several steps or runs"
    if not step.beyond_noise:
        share = step.noise_ns / max(step.before_ns, 1.0)
        why = f"noise is {100 * share:.0f} % of the step; record more steps"
        return (SAME, "") if share < _TELLING else (UNKNOWN, why)
    return (SLOWER if _typical(step) > 0 else FASTER), ""


def _cancelling(parts: Sequence[Change], projection: ProjectedStep) -> str:
    """Return what is wrong if errors of parts cancel that are more than 5 % of the step; else ""."""
    errors = [(row.after_ns - row.before_ns, row.name) for row in parts]
    cancelled_ns = (sum(abs(ns) for ns, _ in errors) - abs(sum(ns for ns, _ in errors))) / 2
    if cancelled_ns <= _CANCELLED * projection.step_ns:
        return ""
    (less_ns, less), (more_ns, more) = min(errors), max(errors)
    return (
        "the measured step time is within the interval of the projection, but only since errors cancel: "
        f"{less} {signed(less_ns)}, {more} {signed(more_ns)}"
    )


def _changes(
    runs: Sequence[Sequence[StepSample]],
    columns: Callable[[StepSample], Floats],
    *,
    is_aligned: bool,
    confidence: float,
    kinds: Sequence[Sequence[Ints]] | None,
) -> Changes:
    """Return the changes of some columns of the runs."""
    before, after = ([columns(run) for run in group] for group in runs)
    if is_aligned:
        return paired_changes_of(before[0], after[0], confidence)
    return changes_of(before, after, confidence, kinds=kinds)


def _by_change(row: Change, least_ns: float) -> tuple[bool, float, str]:
    """Return the sort key of a row: changes beyond noise that count in the step first, the largest first."""
    return row.beyond_noise is False or abs(row.change_ns) < least_ns, -abs(row.change_ns), row.name


def _by_error(row: Change) -> tuple[bool, float, str]:
    """Return the sort key of a row against a projection, or of unknown noise: the largest first."""
    return False, -abs(row.change_ns), row.name


def _classes(
    runs: Sequence[Sequence[StepSample]], change: Callable[[Callable[[StepSample], Floats]], Changes], least: float
) -> list[Change]:
    """Return the change of the kernels of each class that occurs."""
    names = sorted({name for group in runs for run in group for name in run.launches.classes})
    number = {name: i for i, name in enumerate(names)}

    def summed(run: StepSample) -> Floats:
        return _summed(run, len(names), np.array([number[name] for name in run.launches.classes] or [0], np.int64))

    return [row for row in rows_of(change(summed), names, least) if row.before_ns or row.after_ns]


def _summed(run: StepSample, columns: int, of_kernel: Ints) -> Floats:
    """Return the time of kernels in each step of a run, by the column of a kernel; one that is alone counts for all."""
    total, launches = np.zeros((len(run), columns)), run.launches
    column = of_kernel[launches.kernel] if len(of_kernel) > 1 else np.zeros(len(launches.kernel), np.int64)
    np.add.at(total, (launches.step, column), launches.time_ns)
    return total


def _operators(
    runs: Sequence[Sequence[StepSample]], change: Callable[[Callable[[StepSample], Floats]], Changes], least: float
) -> list[OperatorChange]:
    """Return the changes of the operators, matched by name and shapes, else by name, else by position."""
    final, how = matched(runs)
    keys = sorted(set(final.values()))
    number = {key: i for i, key in enumerate(keys)}
    columns = {id(run): column_of(run.launches, final, number) for group in runs for run in group}

    def summed(run: StepSample, values: Floats) -> Floats:
        total = np.zeros((len(run), len(keys)))
        np.add.at(total, (run.launches.step, columns[id(run)]), values)
        return total

    times = change(lambda run: summed(run, run.launches.time_ns))
    counts = change(lambda run: summed(run, run.launches.count))
    kernels = [top_kernels(group, columns) for group in runs]
    rows = []
    for i, (key, row) in enumerate(zip(keys, rows_of(times, [name for name, _ in keys], least), strict=True)):
        counted = {"before_kernels": float(counts.before[i]), "after_kernels": float(counts.after[i])}
        way = APPEARED if not counted["before_kernels"] else VANISHED if not counted["after_kernels"] else BY_NAME
        names = {"before_kernel": kernels[0].get(i, ""), "after_kernel": kernels[1].get(i, "")}
        facts: dict[str, Any] = {**vars(row), **counted, **names}
        rows.append(OperatorChange(shapes=key[1], matched_by=how.get(key, way), **facts))
    return rows


def _likeness(runs: Sequence[Sequence[StepSample]], rows: Sequence[OperatorChange], on_host: bool) -> float:
    """Return the kernels a step that both sides run over those of either, by operator or by class of kernel.

    A compiler renames operators but leaves most classes. Without kernels there are operators alone.
    """
    by_operator = [sums((row.name, getattr(row, side)) for row in rows) for side in ("before_kernels", "after_kernels")]
    totals = [kernel_totals(group) for group in runs]
    by_class = [sums((row[0], row[1] / steps) for row in kernels.values()) for kernels, steps in totals]
    return max(common_share(*by_operator), 0.0 if on_host else common_share(*by_class))
