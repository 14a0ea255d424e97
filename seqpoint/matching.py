"""Which operators and kernels of two groups of runs correspond to each other.

`matched` puts operators with shapes into rows: by name and shapes, else by name, else by the place in a step.
`kernel_totals` sums kernels by name, and `common_share` tells how much two sides share.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from seqpoint.step_sample import Launches, StepSample

#: Ways in which the operators of a row were matched.
BY_SHAPES, BY_NAME, BY_POSITION = "name and shapes", "name", "position"
#: Sides of a kernel or operator that only one side runs.
APPEARED, VANISHED = "appeared", "vanished"
#: Share of the steps in which an operator must occur with the same shapes; else its shapes vary, and its name counts.
REGULAR = 0.5

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


def _places(launches: Launches, final: dict[Key, Key], shared: set[Key]) -> dict[tuple[Key, int, int], Key]:
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


def column_of(launches: Launches, final: dict[Key, Key], number: dict[Key, int]) -> np.ndarray[Any, Any]:
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
