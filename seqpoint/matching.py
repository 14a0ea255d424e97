"""Which steps, operators and kernels of two groups of runs correspond to each other, and facts of the groups.

`matched_kinds` pairs kinds of steps. `matched` puts operators with shapes into rows: by name and shapes, else by name,
else by the place in a step. `kernel_totals` sums kernels by name, and `common_share` tells how much two sides share.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from profilers.trace.arrays import MISSING, Bools, Ints
from seqpoint.kinds import StepKernels, find_kinds, kernel_family
from seqpoint.noise import drift_of
from seqpoint.step_sample import StepLaunches, StepSample

#: Ways in which the operators of a row were matched.
BY_SHAPES, BY_NAME, BY_POSITION = "name and shapes", "name", "position"
#: Sides of a kernel or operator that only one side runs.
APPEARED, VANISHED = "appeared", "vanished"
#: Share of the steps in which an operator must occur with the same shapes; else its shapes vary, and its name counts.
REGULAR = 0.5

#: Least likeness of two kinds that are paired though their kernels differ, and largest share of the steps of a side
#: that are left out because the other side has no steps of their kind.
_ALIKE, _MOST_LEFT_OUT = 0.5, 1 / 3

#: Name of an operator, and shapes of its inputs.
Key = tuple[str, str]


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
class KindOfSteps:
    """Steps of one kind on two sides.

    Parameters
    ----------
    before_steps, after_steps : int
        Number of steps.
    before_ns, after_ns : float
        Mean step time.
    before_kernels, after_kernels : float
        Kernels a step and rank; calls of operators if the trace has no kernels.
    """

    before_steps: int
    after_steps: int
    before_ns: float
    after_ns: float
    before_kernels: float
    after_kernels: float


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
    what_if : str
        What-if that the steps were projected with; "" if they were measured.
    drift : float
        Relative change of the step times along a single run, beyond chance; 0 if there is none.
    unmatched : int
        Steps left out because the other side has no steps of their kind, or a side has one alone.
    path_iteration : int, optional
        Number of the typical step of the first run, whose critical path is compared; None if it is unknown.
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
    what_if: str = ""
    drift: float = 0.0
    unmatched: int = 0
    path_iteration: int | None = None

    def __str__(self) -> str:
        steps = f"{self.steps} step{'s' * (self.steps != 1)}" + f" with {self.what_if}" * bool(self.what_if)
        runs = f" of {self.runs} runs" if self.runs > 1 else ""
        ranks = f", {self.ranks} ranks" if self.ranks > 1 else ""
        left_out = f" ({self.outliers} outlier{'s' * (self.outliers != 1)} left out)" if self.outliers else ""
        where = self.device or ("host alone" if self.on_host else "an unknown device")
        return f"{steps}{runs} on {where}{ranks}{left_out}"


def side_of(runs: Sequence[StepSample], outliers: int) -> Side:
    """Return the facts of one side.

    Parameters
    ----------
    runs : sequence of StepSample
        Its runs.
    outliers : int
        Runs of one step that are left out as outliers.
    """
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
        what_if=next((run.projected.what_if for run in runs if run.projected is not None), ""),
        path_iteration=next((run.path_iteration for run in runs if len(run)), None),
        drift=drift_of(runs[0].step_ns) if len(runs) == 1 and runs[0].projected is None else 0.0,
    )


def drifts_of(sides: Sequence[Side], least: float) -> list[str]:
    """Return which sides drift along their run by a share or more, each in a clause."""
    return [
        f"step times {'rise' if side.drift > 0 else 'fall'} by {100 * abs(side.drift):.1f} % along the side {name}"
        for name, side in zip(("before", "after"), sides, strict=True)
        if abs(side.drift) >= least
    ]


def matched_kinds(runs: Sequence[Sequence[StepSample]]) -> list[list[Ints]]:
    """Return the kind of each step of the runs of two sides; -1 for steps of rare kinds that cannot be compared.

    One side alone runs these, or a side has a single step of them, which shows no scatter. Kinds whose kernels differ,
    as with another version of a library, are paired by their operators or classes of kernels. If steps of one side
    alone are more than a third, all steps are of one kind.

    Parameters
    ----------
    runs : pair of sequences of StepSample
        Runs of each side, with at least one step.
    """
    labels = find_kinds([_step_kernels(group) for group in runs])
    alone = [sorted(set(one.tolist()) - set(other.tolist())) for one, other in (labels, labels[::-1])]
    if all(alone):
        pairs = _paired(runs, labels, alone)
        labels[1] = np.array([pairs.get(kind, kind) for kind in labels[1].tolist()], np.int64)
    labels = [np.where(np.isin(one, other), one, MISSING) for one, other in (labels, labels[::-1])]
    if any((label == MISSING).mean() > _MOST_LEFT_OUT for label in labels):
        labels = [np.zeros(len(label), np.int64) for label in labels]
    counts = [Counter(label.tolist()) for label in labels]
    recur = [kind for kind in counts[0] if min(counts[0][kind], counts[1][kind]) > 1]
    often = [np.where(np.isin(label, recur), label, MISSING) for label in labels]
    if all((label == MISSING).mean() <= _MOST_LEFT_OUT for label in often):
        labels = often
    ends = [np.cumsum([len(run) for run in group])[:-1] for group in runs]
    return [np.split(label, end) for label, end in zip(labels, ends, strict=True)]


def _paired(
    runs: Sequence[Sequence[StepSample]], labels: Sequence[Ints], alone: Sequence[Sequence[int]]
) -> dict[int, int]:
    """Return the kind before of kinds after whose kernels differ, the most alike ones first."""
    amounts = [
        [[_amounts(group, label == kind, by) for by in ("operator", "class")] for kind in kinds]
        for group, label, kinds in zip(runs, labels, alone, strict=True)
    ]
    likeness = sorted(
        (-max(map(common_share, amounts[0][i], amounts[1][j])), i, j)
        for i in range(len(alone[0]))
        for j in range(len(alone[1]))
    )
    pairs: dict[int, int] = {}
    is_first = not np.isin(labels[0], labels[1]).any()
    for unlike, i, j in likeness:  # a Python loop over pairs of kinds
        free = alone[0][i] not in pairs.values() and alone[1][j] not in pairs
        if free and (-unlike >= _ALIKE or is_first):
            pairs[alone[1][j]], is_first = alone[0][i], False
    return pairs


def _amounts(runs: Sequence[StepSample], chosen: Bools, by: str) -> dict[str, float]:
    """Return the kernels a step by operator or class, over the chosen steps of all runs."""
    pairs: list[tuple[str, float]] = []
    steps, start = max(int(chosen.sum()), 1), 0
    for run in runs:
        launches, inside = run.launches, chosen[start : start + len(run)]
        names = launches.classes if by == "class" else tuple(name for name, _ in launches.keys)
        codes = launches.kernel if by == "class" else launches.key
        total = np.bincount(codes, launches.count * inside[launches.step], len(names)) / steps
        pairs += zip(names, total.tolist(), strict=True)
        start += len(run)
    return sums(pairs)


def _step_kernels(runs: Sequence[StepSample]) -> StepKernels:
    """Return the kernels of all runs of a side by step; operators of a run without kernels."""
    names: dict[str, int] = {}
    columns, size = [], 0
    for run in runs:
        launches = run.launches
        families = map(kernel_family, launches.kernels, launches.classes)
        texts = [name for name, _ in launches.keys] if run.on_host else list(families)
        code = np.array([names.setdefault(text, len(names)) for text in texts] or [0], np.int64)
        name = code[launches.key if run.on_host else launches.kernel]
        columns.append((launches.step + size, name, launches.count, launches.time_ns))
        size += len(run)
    step, name, count, time = (np.concatenate(column) for column in zip(*columns, strict=True))
    return StepKernels(size, step, name, count, time, tuple(names))


def of_matched_kinds(
    runs: Sequence[Sequence[StepSample]], labels: Sequence[Sequence[Ints]]
) -> tuple[list[list[StepSample]], list[list[Ints]], list[int]]:
    """Return the runs and labels without steps that belong to no matched kind, and their number on each side."""
    kept = [[np.flatnonzero(label != MISSING) for label in of_group] for of_group in labels]
    rows = [[row for row in zip(*group, strict=True) if len(row[2])] for group in zip(runs, labels, kept, strict=True)]
    return (
        [[run if len(at) == len(run) else run.take(at) for run, _, at in group] for group in rows],
        [[label[at] for _, label, at in group] for group in rows],
        [sum(int((label == MISSING).sum()) for label in of_group) for of_group in labels],
    )


def kinds_of_steps(runs: Sequence[Sequence[StepSample]], labels: Sequence[Sequence[Ints]]) -> tuple[KindOfSteps, ...]:
    """Return the kinds of steps of two sides, the most frequent one first.

    Parameters
    ----------
    runs : pair of sequences of StepSample
        Runs of each side.
    labels : pair of sequences of array of int64
        Kind of each step, as `matched_kinds` returns it.
    """
    of_side = [np.concatenate(list(label)) for label in labels]
    times = [np.concatenate([run.step_ns for run in group]) for group in runs]
    counts = [
        np.concatenate([np.bincount(run.launches.step, run.launches.count, len(run)) for run in group])
        for group in runs
    ]
    rows = []
    for kind in sorted({*of_side[0].tolist()} & {*of_side[1].tolist()} - {MISSING}):  # a Python loop over kinds
        chosen = [label == kind for label in of_side]
        means = [float(v[rows].mean()) for values in (times, counts) for v, rows in zip(values, chosen, strict=True)]
        rows.append(KindOfSteps(int(chosen[0].sum()), int(chosen[1].sum()), *means))
    return tuple(sorted(rows, key=lambda row: -(row.before_steps + row.after_steps)))


def matched(runs: Sequence[Sequence[StepSample]]) -> tuple[dict[Key, Key], dict[Key, str]]:
    """Return the row that each operator with shapes belongs to, and how each row was matched, if it was not by name."""
    present = [_steps_with(group) for group in runs]
    steps = [sum(map(len, group)) for group in runs]
    final, how = {}, {}
    for key in {*present[0], *present[1]}:
        regular = all(side[key] >= REGULAR * count for side, count in zip(present, steps, strict=True))
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


def _steps_with(runs: Sequence[StepSample]) -> Counter[Key]:
    """Return in how many steps each key occurs."""
    count: Counter[Key] = Counter()
    for run in runs:
        launches, size = run.launches, len(run.launches.keys)
        keys = np.unique(launches.step * size + launches.key) % max(size, 1)
        for i, number in enumerate(np.bincount(keys, minlength=size).tolist()):
            count[launches.keys[i]] += number
    return count


def _by_position(runs: Sequence[Sequence[StepSample]], final: dict[Key, Key], shared: set[Key]) -> dict[Key, Key]:
    """Return the pairs of rows of one side each that first occur behind the same row, the same distance behind it."""
    places = [_places(group[0].launches, final, shared) for group in runs]
    return {places[0][place]: places[1][place] for place in places[0] if place in places[1]}


def _places(launches: StepLaunches, final: dict[Key, Key], shared: set[Key]) -> dict[tuple[Key, int, int], Key]:
    """Return the rows of one side by place: the last shared row, its occurrence, and the distance behind it."""
    places: dict[tuple[Key, int, int], Key] = {}
    seen, found = Counter[Key](), set[Key]()
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


def sums(pairs: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Return the sum of the numbers of each name."""
    total: dict[str, float] = {}
    for name, number in pairs:
        total[name] = total.get(name, 0.0) + number
    return total


def common_share(one: dict[str, float], other: dict[str, float]) -> float:
    """Return the sum of the smaller numbers of each name over that of the larger ones."""
    pairs = [(one.get(name, 0.0), other.get(name, 0.0)) for name in {**one, **other}]
    most = sum(map(max, pairs))
    return sum(map(min, pairs)) / most if most else 1.0


def kernel_totals(runs: Sequence[StepSample]) -> tuple[dict[str, tuple[str, float, float]], int]:
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


def column_of(launches: StepLaunches, final: dict[Key, Key], number: dict[Key, int]) -> np.ndarray[Any, Any]:
    """Return the column of each row of `launches`."""
    of_key = np.array([number[final[key]] for key in launches.keys] or [0], np.int64)
    return of_key[launches.key]


def top_kernels(runs: Sequence[StepSample], columns: dict[int, Any]) -> dict[int, str]:
    """Return the name of the kernel with most time of each column."""
    total: Counter[tuple[int, str]] = Counter()
    for run in runs:
        names = run.launches.kernels
        pairs, group = np.unique(columns[id(run)] * len(names) + run.launches.kernel, return_inverse=True)
        times = np.bincount(group, weights=run.launches.time_ns, minlength=len(pairs))
        for pair, time in zip(pairs.tolist(), times.tolist(), strict=True):
            column, kernel = divmod(pair, len(names))
            total[column, names[kernel]] += time
    ordered = sorted(total.items(), key=lambda item: (item[1], item[0]))
    return {column: name for (column, name), _ in ordered}


def kernels_of_one_side(runs: Sequence[Sequence[StepSample]]) -> tuple[KernelOfOneSide, ...]:
    """Return the kernels that only one side runs, most time first."""
    sides = [kernel_totals(group) for group in runs]
    rows = [
        KernelOfOneSide(name, class_, what, count / steps, time / steps)
        for (totals, steps), (others, _), what in zip(sides, reversed(sides), (VANISHED, APPEARED), strict=True)
        for name, (class_, count, time) in totals.items()
        if name not in others
    ]
    return tuple(sorted(rows, key=lambda row: (-row.time_ns, row.kernel)))
