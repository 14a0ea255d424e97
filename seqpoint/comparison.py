"""What changed between two traces or groups of runs, where, and whether it is more than noise.

`compare_samples` compares steps that `seqpoint.step_sample` measured. The result has a verdict on the step time, the
change of each part of a step, the change of each operator, and the kernels that appeared or vanished.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from profilers.trace.arrays import Floats
from seqpoint.noise import Changes, changes_of, paired_changes_of
from seqpoint.notebook import TOP, DataFrame, Table, as_html, data_frame, table_of
from seqpoint.step_sample import PARTS, Launches, StepSample, aligned, part_name, without_outlying_runs
from seqpoint.units import duration

#: Confidence level of the intervals, and the smallest change that counts as one.
CONFIDENCE, LEAST = 0.99, 0.005
#: Share of the steps in which an operator must occur with the same shapes; else its shapes vary, and its name counts.
_REGULAR = 0.5
#: Below this likeness, two sides are different jobs. Real traces of one job, eager and compiled, or on two vendors'
#: devices, have 0.92 to 1; those of different jobs at most 0.54.
_ALIKE = 0.7
#: Most characters of an operator and of a kernel in a table.
_OPERATOR_LENGTH, _KERNEL_LENGTH = 48, 64

FASTER, SLOWER, SAME, UNKNOWN = "faster", "slower", "no difference beyond noise", "cannot tell"
BY_SHAPES, BY_NAME, BY_POSITION = "name and shapes", "name", "position"
APPEARED, VANISHED = "appeared", "vanished"

#: Tables of the JSON.
_TABLES = ("parts", "path", "operators", "kernels")

_Key = tuple[str, str]


@dataclass(frozen=True)
class Change:
    """Time a step, before and after; times in ns.

    Parameters
    ----------
    name : str
        Operator, kernel without an operator, or part of a step; untrusted text.
    before_ns, after_ns : float
        Mean time a step.
    noise_ns : float, optional
        Half-width of the interval of the change; None if each side has one step.
    beyond_noise : bool, optional
        Whether the change is beyond the noise and not tiny; None if the noise is unknown.
    """

    name: str
    before_ns: float
    after_ns: float
    noise_ns: float | None
    beyond_noise: bool | None

    @property
    def change_ns(self) -> float:
        """After less before."""
        return self.after_ns - self.before_ns

    @property
    def ratio(self) -> float | None:
        """Change over the time before; None without time before."""
        return self.change_ns / self.before_ns if self.before_ns else None

    def to_dict(self) -> dict[str, Any]:
        """Return the change as JSON with stable keys."""
        return {**asdict(self), "change_ns": self.change_ns, "change": self.ratio}


@dataclass(frozen=True)
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


@dataclass(frozen=True)
class KernelOfOneSide:
    """Kernel that only one side runs.

    Parameters
    ----------
    kernel : str
        Its name; untrusted text.
    class_ : str
        Its class.
    side : str
        ``"appeared"`` or ``"vanished"``.
    kernels : float
        Number a step.
    time_ns : float
        Time a step.
    """

    kernel: str
    class_: str
    side: str
    kernels: float
    time_ns: float

    def to_dict(self) -> dict[str, Any]:
        """Return the kernel as JSON with stable keys."""
        return {name.removesuffix("_"): value for name, value in asdict(self).items()}


@dataclass(frozen=True)
class Side:
    """Facts of one side.

    Parameters
    ----------
    runs, steps : int
        Number of runs and of their steps that are compared.
    outliers : int
        Steps or runs of one step left out as outliers.
    ranks : int
        Most ranks of a run.
    same_ranks : bool
        Whether all runs have the same ranks.
    device : str, optional
        Names of the devices; None if unknown.
    length : float, optional
        Mean sequence length; None if unknown.
    all_ns : float
        Mean step time with outliers.
    on_host : bool
        Whether no run has device work.
    synthetic : bool
        Whether a run was synthesised.
    """

    runs: int
    steps: int
    outliers: int
    ranks: int
    same_ranks: bool
    device: str | None
    length: float | None
    all_ns: float
    on_host: bool
    synthetic: bool

    def __str__(self) -> str:
        steps = f"{self.steps} step{'s' * (self.steps != 1)}"
        runs = f" of {self.runs} runs" if self.runs > 1 else ""
        ranks = f", {self.ranks} ranks" if self.ranks > 1 else ""
        left_out = f" ({self.outliers} outlier{'s' * (self.outliers != 1)} left out)" if self.outliers else ""
        where = self.device or ("host alone" if self.on_host else "an unknown device")
        return f"{steps}{runs} on {where}{ranks}{left_out}"


@dataclass(frozen=True)
class Comparison:
    """Two traces or groups of runs, compared.

    Parameters
    ----------
    verdict : str
        ``"faster"``, ``"slower"``, ``"no difference beyond noise"`` or ``"cannot tell"``: the step time after.
    reason : str
        Why nothing can be told; else "".
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
    operators : tuple of OperatorChange
        Changes beyond noise first, the largest first.
    kernels : tuple of KernelOfOneSide
        Kernels that appeared or vanished, most time first.
    before, after : Side
        Facts of the sides.
    """

    verdict: str
    reason: str
    step: Change
    confidence: float
    unit: str
    likeness: float
    parts: tuple[Change, ...]
    path: tuple[Change, ...]
    operators: tuple[OperatorChange, ...]
    kernels: tuple[KernelOfOneSide, ...]
    before: Side
    after: Side

    def slower_by(self, limit: float) -> bool:
        """Return whether the step is slower beyond noise, and by more than a share of the step time before.

        Parameters
        ----------
        limit : float
            The share, such as 0.02.
        """
        return self.verdict == SLOWER and (self.step.ratio or 0.0) > limit

    def table(self) -> DataFrame:
        """Return a row for each operator; times in ns a step."""
        return data_frame([row.to_dict() for row in self.operators])

    def plot(self, top: int = TOP) -> Any:
        """Return the chart of the largest changes by operator, as a HoloViews object."""
        from seqpoint.plots.comparison import changes_by_operator

        return changes_by_operator(self, top)

    def to_dict(self) -> dict[str, Any]:
        """Return what `seqpoint compare --json` prints."""
        return {
            **{name: getattr(self, name) for name in ("verdict", "reason", "confidence", "unit", "likeness")},
            "step": self.step.to_dict(),
            "before": asdict(self.before),
            "after": asdict(self.after),
            **{
                name: [row.to_dict() for row in getattr(self, name)]
                for name in ("parts", "path", "operators", "kernels")
            },
            "notes": list(self.notes()),
        }

    def summary(self) -> list[str]:
        """Return the verdict with the step times, and the facts of the sides."""
        step, lines = self.step, [f"before: {self.before}", f"after: {self.after}"]
        if not (self.before.steps and self.after.steps):
            return [f"{self.verdict}: {self.reason}", *lines]
        times = f"step time {duration(step.before_ns)} to {duration(step.after_ns)}"
        change = "" if step.ratio is None else f", {100 * step.ratio:+.2f} %"
        if step.noise_ns is not None and step.before_ns:
            noise = 100 * step.noise_ns / step.before_ns
            change += f" (noise {noise:.2f} % from {self.unit}, at {100 * self.confidence:g} %)"
        return [f"{self.verdict}{': ' * bool(self.reason)}{self.reason}", times + change, *lines]

    def notes(self) -> tuple[str, ...]:
        """Return notes on what the figures do and do not tell."""
        notes, sides = [], (self.before, self.after)
        if self.unit != "runs" and self.step.noise_ns is not None:
            notes.append(
                "the noise is the scatter of steps within one run; several runs a side also show how runs differ"
            )
        if self.before.device != self.after.device:
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
        elif self._share(BY_SHAPES) < _REGULAR:
            notes.append("most operators match by name alone: shapes differ or vary, as with another batch or length")
        lengths = [side.length for side in sides if side.length is not None]
        if len(lengths) == 2 and abs(lengths[1] - lengths[0]) > LEAST * lengths[0]:
            notes.append(f"the mean sequence lengths differ: {lengths[0]:.4g} and {lengths[1]:.4g}")
        if self.before.outliers or self.after.outliers:
            with_all = " to ".join(duration(side.all_ns) for side in sides)
            notes.append(f"outlying steps, such as the warm-up, are left out; with them the mean is {with_all}")
        return tuple(notes)

    def _share(self, matched_by: str) -> float:
        """Return the share of the time of the operators in rows that were matched in one way."""
        times = [(row.matched_by == matched_by, row.before_ns + row.after_ns) for row in self.operators]
        return sum(time for fits, time in times if fits) / max(sum(time for _, time in times), 1e-9)

    def tables(self, top: int = TOP) -> tuple[Table, ...]:
        """Return the tables of text: parts of the step, operators, and kernels of one side.

        Parameters
        ----------
        top : int
            Most rows of each.
        """
        times = {
            "before": "{row.before_ns:time}", "after": "{row.after_ns:time}", "change": "{change}",
            "noise": "{row.noise_ns:time}", "of step %": "{of_step:+.2%}", "clear~": "{clear}",
        }  # fmt: skip
        path = {"cause~": "{name}", **{name: times[name] for name in ("before", "after", "change", "of step %")}}
        what, number = ("host operator", "calls") if self.before.on_host else ("operator", "kernels")
        operators = {f"{what}~": "{name}", **times, number: "{kernels}"}
        only = {
            "side~": "{side}", "kernel~": "{kernel}", "class~": "{class_}", "kernels": "{kernels:.4g}",
            "time": "{time_ns:time}",
        }  # fmt: skip
        changed = [row for row in self.operators if row.change_ns or row.before_kernels != row.after_kernels]
        shown = [{**asdict(row), "kernel": _cut(row.kernel, _KERNEL_LENGTH)} for row in self.kernels[:top]]
        tables = (
            table_of("Parts of a step, largest change first", {"part~": "{name}", **times}, self._cells(self.parts)),
            table_of("Critical path of a typical step by cause", path, self._cells(self.path)),
            table_of(f"Operators by change of their time a step{_more(changed, top)}", operators,
                     self._cells(changed[:top])),
            table_of(f"Kernels that appeared or vanished{_more(self.kernels, top)}", only, shown),
        )  # fmt: skip
        return tuple(table for table in tables if table.rows)

    def _cells(self, rows: Sequence[Change]) -> list[dict[str, Any]]:
        cells = []
        for row in rows:
            name, kernels = row.name, ""
            if isinstance(row, OperatorChange):
                how = _HOW.get(row.matched_by, "")
                shapes = row.shapes.replace(",[]", "").replace("[]", "")
                name = _cut(f"{row.name} {shapes}".strip(), _OPERATOR_LENGTH - len(how)) + how
                counts = dict.fromkeys(f"{count:.4g}" for count in (row.before_kernels, row.after_kernels))
                kernels = " to ".join(counts)
            of_step = row.change_ns / self.step.before_ns if self.step.before_ns else None
            clear = {None: "-", True: "yes", False: "no"}[row.beyond_noise]
            cells.append({"row": row, "name": name, "change": _signed(row.change_ns), "of_step": of_step,
                          "clear": clear, "kernels": kernels})  # fmt: skip
        return cells

    def _repr_html_(self) -> str:
        tables = {table.title: table.frame() for table in self.tables()}
        return as_html("Comparison", [*self.summary(), *self.notes()], tables)


#: What the name of an operator is followed by, by the way that it was matched.
_HOW = {APPEARED: " (appeared)", VANISHED: " (vanished)", BY_POSITION: " (same position)"}


def _more(rows: Sequence[object], top: int) -> str:
    return f": {top} of {len(rows)} (--top shows more)" if len(rows) > top else ""


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 3] + "..."


def _signed(ns: float) -> str:
    return f"{'+' if ns > 0 else '-' if ns < 0 else ''}{duration(abs(ns))}"


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
    groups, outliers = zip(*(without_outlying_runs(list(runs)) for runs in (before, after)), strict=True)
    sides = [_side(runs, dropped) for runs, dropped in zip(groups, outliers, strict=True)]
    runs = [[run for run in group if len(run)] for group in groups]
    if not all(runs):
        which = " and ".join(name for name, group in zip(("before", "after"), runs, strict=True) if not group)
        reason = f"no steps {which}; read the traces with --iterations (see docs/traces.md)"
        nothing = Change("step", 0.0, 0.0, None, None)
        return Comparison(UNKNOWN, reason, nothing, confidence, "steps", 0.0, (), (), (), (), *sides)
    pair = aligned(runs[0][0], runs[1][0]) if len(runs[0]) == len(runs[1]) == 1 else None
    runs = runs if pair is None else [[run] for run in pair]
    change = partial(_changes, runs, is_aligned=pair is not None, confidence=confidence)
    (step,) = _rows(change(lambda run: run.step_ns[:, None]), ("step",), least)
    on_host = all(side.on_host for side in sides)
    changed = change(lambda run: run.parts_ns)
    parts = _rows(changed, [part_name(part, on_host) for part in PARTS], least)
    operators = _operators(runs, change, least)
    likeness = _likeness(runs, operators, on_host)
    verdict, reason = _verdict(step, operators, likeness >= _ALIKE or same_job)
    shown = sorted((row for row in parts if abs(row.before_ns) + abs(row.after_ns) >= 1), key=_by_change)
    return Comparison(
        verdict=verdict,
        reason=reason,
        step=step,
        confidence=confidence,
        unit=changed.unit,
        likeness=likeness,
        parts=tuple(shown),
        path=_path(runs[0][0], runs[1][0]),
        operators=operators,
        kernels=_of_one_side(runs),
        before=sides[0],
        after=sides[1],
    )


def _path(before: StepSample, after: StepSample) -> tuple[Change, ...]:
    """Return the change of each cause on the critical paths of two runs, if both are known."""
    if not (before.path_ns and after.path_ns):
        return ()
    causes = dict.fromkeys((*before.path_ns, *after.path_ns))
    rows = (Change(name, before.path_ns.get(name, 0.0), after.path_ns.get(name, 0.0), None, None) for name in causes)
    return tuple(sorted(rows, key=_by_change))


def _verdict(step: Change, operators: Sequence[OperatorChange], alike: bool) -> tuple[str, str]:
    """Return the verdict on the step time, and the reason if it cannot be told."""
    if not step.change_ns and not any(row.change_ns for row in operators):
        return SAME, "the steps are identical"
    if not alike:
        return UNKNOWN, "the sides run different operators (--same-job judges their step times all the same)"
    if step.noise_ns is None:
        return UNKNOWN, "one step a side shows no noise; compare several steps or runs"
    if not step.beyond_noise:
        return SAME, ""
    return (SLOWER if step.change_ns > 0 else FASTER), ""


def _changes(
    runs: Sequence[Sequence[StepSample]],
    columns: Callable[[StepSample], Floats],
    *,
    is_aligned: bool,
    confidence: float,
) -> Changes:
    """Return the changes of some columns of the runs."""
    before, after = ([columns(run) for run in group] for group in runs)
    return paired_changes_of(before[0], after[0], confidence) if is_aligned else changes_of(before, after, confidence)


def _rows(changes: Changes, names: Sequence[str], least: float) -> list[Change]:
    """Return a row for each column."""
    beyond, noise = changes.beyond(least), changes.noise
    return [
        Change(name, float(changes.before[i]), float(changes.after[i]), *_known(noise[i], beyond[i]))
        for i, name in enumerate(names)
    ]


def _known(noise: float, beyond: bool) -> tuple[float | None, bool | None]:
    return (None, None) if np.isnan(noise) else (float(noise), bool(beyond))


def _by_change(row: Change) -> tuple[bool, float, str]:
    """Return the sort key of a row: changes beyond noise first, the largest first."""
    return row.beyond_noise is False, -abs(row.change_ns), row.name


def _side(runs: Sequence[StepSample], outliers: int) -> Side:
    names = sorted({run.hardware.device.name for run in runs if run.hardware.device is not None})
    lengths = [run.length for run in runs if len(run)]
    length = float(np.mean(lengths)) if lengths else float("nan")
    return Side(
        runs=len(runs),
        steps=sum(map(len, runs)),
        outliers=outliers + sum(run.outliers for run in runs),
        ranks=max((len(run.ranks) for run in runs), default=0),
        same_ranks=len({run.ranks for run in runs}) <= 1,
        device=", ".join(names) or None,
        length=None if np.isnan(length) else length,
        all_ns=float(np.mean([run.all_ns for run in runs])) if runs else 0.0,
        on_host=all(run.on_host for run in runs),
        synthetic=any(run.synthetic for run in runs),
    )


def _operators(
    runs: Sequence[Sequence[StepSample]], change: Callable[[Callable[[StepSample], Floats]], Changes], least: float
) -> tuple[OperatorChange, ...]:
    """Return the changes of the operators, matched by name and shapes, else by name, else by position."""
    final, how = _matched(runs)
    keys = sorted(set(final.values()))
    number = {key: i for i, key in enumerate(keys)}
    columns = {id(run): _column_of(run.launches, final, number) for group in runs for run in group}

    def summed(run: StepSample, values: Floats) -> Floats:
        total = np.zeros((len(run), len(keys)))
        np.add.at(total, (run.launches.step, columns[id(run)]), values)
        return total

    times = change(lambda run: summed(run, run.launches.time_ns))
    counts = change(lambda run: summed(run, run.launches.count))
    kernels = [_top_kernels(group, columns) for group in runs]
    rows = []
    for i, (key, row) in enumerate(zip(keys, _rows(times, [name for name, _ in keys], least), strict=True)):
        counted = {"before_kernels": float(counts.before[i]), "after_kernels": float(counts.after[i])}
        way = APPEARED if not counted["before_kernels"] else VANISHED if not counted["after_kernels"] else BY_NAME
        names = {"before_kernel": kernels[0].get(i, ""), "after_kernel": kernels[1].get(i, "")}
        facts: dict[str, Any] = {**vars(row), **counted, **names}
        rows.append(OperatorChange(shapes=key[1], matched_by=how.get(key, way), **facts))
    return tuple(sorted(rows, key=lambda row: (*_by_change(row), row.shapes)))


def _column_of(launches: Launches, final: dict[_Key, _Key], number: dict[_Key, int]) -> np.ndarray[Any, Any]:
    """Return the column of each row of `launches`."""
    of_key = np.array([number[final[key]] for key in launches.keys] or [0], np.int64)
    return of_key[launches.key]


def _top_kernels(runs: Sequence[StepSample], columns: dict[int, Any]) -> dict[int, str]:
    """Return the name of the kernel with most time of each column."""
    total: Counter[tuple[int, str]] = Counter()
    for run in runs:
        pairs, group = np.unique(np.stack([columns[id(run)], run.launches.kernel]), axis=1, return_inverse=True)
        times = np.bincount(group.ravel(), weights=run.launches.time_ns, minlength=pairs.shape[1])
        for (column, kernel), time in zip(pairs.T.tolist(), times.tolist(), strict=True):
            total[column, run.launches.kernels[kernel]] += time
    ordered = sorted(total.items(), key=lambda item: (item[1], item[0]))
    return {column: name for (column, name), _ in ordered}


def _matched(runs: Sequence[Sequence[StepSample]]) -> tuple[dict[_Key, _Key], dict[_Key, str]]:
    """Return the row that each operator with shapes belongs to, and how each row was matched, if it was not by name."""
    present = [_steps_with(group) for group in runs]
    steps = [sum(map(len, group)) for group in runs]
    final, how = {}, {}
    for key in {*present[0], *present[1]}:
        regular = all(side[key] >= _REGULAR * count for side, count in zip(present, steps, strict=True))
        final[key] = key if regular else (key[0], "")
        if regular:
            how[key] = BY_SHAPES if key[1] else BY_NAME
    names = [{final[key] for key in side} for side in present]
    pairs = _by_position(runs, final, names[0] & names[1])
    for one, other in pairs.items():
        row = (f"{one[0]} -> {other[0]}", "")
        how[row] = BY_POSITION
        for key, of in final.items():
            if of in (one, other):
                final[key] = row
    return final, how


def _steps_with(runs: Sequence[StepSample]) -> Counter[_Key]:
    """Return in how many steps each key occurs."""
    count: Counter[_Key] = Counter()
    for run in runs:
        pairs = np.unique(np.stack([run.launches.step, run.launches.key]), axis=1)
        for i, number in enumerate(np.bincount(pairs[1], minlength=len(run.launches.keys)).tolist()):
            count[run.launches.keys[i]] += number
    return count


def _by_position(runs: Sequence[Sequence[StepSample]], final: dict[_Key, _Key], shared: set[_Key]) -> dict[_Key, _Key]:
    """Return the pairs of rows of one side each that first occur behind the same row, the same distance behind it."""
    places = [_places(group[0].launches, final, shared) for group in runs]
    return {places[0][place]: places[1][place] for place in places[0] if place in places[1]}


def _places(launches: Launches, final: dict[_Key, _Key], shared: set[_Key]) -> dict[tuple[_Key, int, int], _Key]:
    """Return the rows of one side by place: the last shared row, its occurrence, and the distance behind it."""
    places: dict[tuple[_Key, int, int], _Key] = {}
    seen, found = Counter[_Key](), set[_Key]()
    last, distance = ("", ""), 0
    for number in launches.sequence.tolist():  # a Python loop over the kernels of a step, under 1 us each
        row = final[launches.keys[number]]
        distance += 1
        if row in shared:
            last, distance = row, 0
            seen[row] += 1
        elif row not in found:
            found.add(row)
            places[last, seen[last], distance] = row
    return places


def _likeness(runs: Sequence[Sequence[StepSample]], rows: Sequence[OperatorChange], on_host: bool) -> float:
    """Return the kernels a step that both sides run over those of either, by operator or by class of kernel.

    A compiler renames operators but leaves most classes. Without kernels there are operators alone.
    """
    by_operator = [
        _sums((row.name, getattr(row, side)) for row in rows) for side in ("before_kernels", "after_kernels")
    ]
    totals = [_kernel_totals(group) for group in runs]
    by_class = [_sums((row[0], row[1] / steps) for row in kernels.values()) for kernels, steps in totals]
    return max(_common(*by_operator), 0.0 if on_host else _common(*by_class))


def _sums(pairs: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Return the sum of the numbers of each name."""
    total: dict[str, float] = {}
    for name, number in pairs:
        total[name] = total.get(name, 0.0) + number
    return total


def _common(one: dict[str, float], other: dict[str, float]) -> float:
    """Return the sum of the smaller numbers of each name over that of the larger ones."""
    pairs = [(one.get(name, 0.0), other.get(name, 0.0)) for name in {**one, **other}]
    most = sum(map(max, pairs))
    return sum(map(min, pairs)) / most if most else 1.0


def _of_one_side(runs: Sequence[Sequence[StepSample]]) -> tuple[KernelOfOneSide, ...]:
    """Return the kernels that only one side runs, most time first."""
    sides = [_kernel_totals(group) for group in runs]
    rows = [
        KernelOfOneSide(name, class_, what, count / steps, time / steps)
        for (totals, steps), (others, _), what in zip(sides, reversed(sides), (VANISHED, APPEARED), strict=True)
        for name, (class_, count, time) in totals.items()
        if name not in others
    ]
    return tuple(sorted(rows, key=lambda row: (-row.time_ns, row.kernel)))


def _kernel_totals(runs: Sequence[StepSample]) -> tuple[dict[str, tuple[str, float, float]], int]:
    """Return class, number and time of each kernel by name, and the number of steps."""
    totals: dict[str, tuple[str, float, float]] = {}
    for run in runs:
        launches = run.launches
        sums = [np.bincount(launches.kernel, weights=each) for each in (launches.count, launches.time_ns)]
        for code, (count, time) in enumerate(zip(*(each.tolist() for each in sums), strict=True)):
            if count:
                name, class_ = launches.kernels[code], launches.classes[code]
                _, *before = totals.get(name, (class_, 0.0, 0.0))
                totals[name] = (class_, before[0] + count, before[1] + time)
    return totals, sum(map(len, runs))
