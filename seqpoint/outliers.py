"""Outlying iterations of a run: the warm-up, and single iterations that stalled or were cut short.

An iteration is compared with its neighbours in sequence length or, if lengths are unknown, in time. Its residual is
the logarithm of its value over the median of the neighbours, less the usual growth with the length. Cost grows at most
with the square of the length, so a difference that such growth explains counts as none. Without lengths, the iteration
has to differ from the median of the run as well. `find_outliers` takes an iteration for an outlier if all of these
hold:

- It differs from its neighbours by a factor of 1.5 or more, and by five robust standard deviations: 1.4826 times the
  median of the absolute residuals (Hampel 1974, J. Am. Stat. Assoc. 69, 383).
- A gap separates it from the rest that a smooth tail does not give. The logarithms of the largest values of any smooth
  heavy tail are spaced as an exponential distribution's: the i-th spacing from the top, times i, has the mean excess of
  the values below it (Rényi 1953, Acta Math. Hung. 4, 191; Hill 1975, Ann. Stat. 3, 1163). Their ratio follows an F
  distribution; the gap has to be larger than chance allows at 1 %. A warm-up is tested at up to 5 %: chance seldom puts
  the largest values first.
- Outliers are few: at most a quarter of the run, or three of seven and more, and beside the warm-up at most 5 %, or
  two. Slow iterations that come more often, such as an evaluation every tenth step, are a regular share of the run.
- A run of fewer than eight iterations has one stall at most, one of three has none, and no short iteration is an
  outlier.

If the kinds of iterations are known (`seqpoint.kinds`), each is compared with its kind: its value is taken over the
lower quartile of the kind, which slow ones do not move. So a rare evaluation step is no outlier. A kind that a
recording begins with and never runs again is compared with the most frequent one, as a warm-up may run kernels of its
own. Three iterations may stall then.

The rule decides; the factor of an outlier, which its reason states, is a plain ratio that a reader can compute: its
value over the median of regular iterations of its length, or else of its eight nearest neighbours.
"""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from profilers.trace.arrays import Bools, Floats, Ints, row_blocks

#: Fewest iterations of a run that can be judged; below, every iteration counts. Fewer than `_FEW` tell less.
_FEWEST, _FEW = 3, 8
#: Least factor between an outlier and its neighbours, and least robust standard deviations of its residual.
_LOG_FACTOR, _DEVIATIONS = float(np.log(1.5)), 5.0
#: Standard deviation of a normal distribution over its median absolute deviation.
_NORMAL = 1.4826
#: Chance of a gap in a smooth tail, over all gaps that are tried, and its factor for a warm-up: one of n iterations is
#: first by a chance of 1 / n.
_SIGNIFICANCE, _MOST_FIRST = 0.01, 5
#: Most residuals below the gap that tell the tail, and so many even if they are more than half of the rest.
_BELOW, _BELOW_OF_FEW = 10, 3
#: Largest share of outliers, and of those that are no warm-up; three and two are allowed in a run of eight. If kernels
#: tell the kinds of iterations, three may be stalls: slow ones are no evaluation then.
_MOST, _MOST_STALLED, _ALLOWED, _ALLOWED_STALLED, _ALLOWED_OF_KIND = 0.25, 0.05, 3, 2, 3
#: Quantile of the values of a kind of iterations by which they are scaled.
_USUAL = 0.25
#: Power of the length with which cost grows at most: attention is quadratic.
_MOST_GROWTH = 2.0
#: Fewest and most iterations of a group of neighbours, in length and in time; and the most groups.
_FEWEST_NEIGHBOURS, _MOST_IN_LENGTH, _MOST_IN_TIME, _MOST_GROUPS = 9, 31, 101, 1024
#: Neighbours on each side that an outlier is compared with in its reason, if no other iteration has its length.
_ON_EACH_SIDE = 4
#: Regular iterations with which outliers are compared; of a longer run an even sample.
_MOST_COMPARED = 1 << 20
#: Iterations of a sample of a long run, from which medians and deviations are taken.
_SAMPLE = 1 << 15
#: A value counts as at least this share of its neighbours' median, and a length as at least this long.
_SMALLEST = 1e-3


@dataclass(frozen=True, slots=True, eq=False)
class Outliers:
    """Outlying iterations of a run.

    Attributes
    ----------
    rows : ndarray of int64, shape (n_outliers,)
        Their rows in the run, ascending.
    factors : ndarray of float64, shape (n_outliers,)
        Value of each over the median of other iterations that are no outliers: those of its length, or else its
        nearest neighbours in length or time. Growth with the length is not taken off.
    kinds : tuple of str
        ``"warm-up"`` for the first iterations of a recording, else ``"slow"`` or ``"short"``.
    against : tuple of str
        The iterations that each is compared with, for people.
    """

    rows: Ints
    factors: Floats
    kinds: tuple[str, ...]
    against: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def reasons(self) -> tuple[str, ...]:
        """The reason for each, for people; the factor is against the median."""
        return tuple(
            f"{kind}: {factor:.3g} times {against}"
            for kind, factor, against in zip(self.kinds, self.factors.tolist(), self.against, strict=True)
        )

    def others(self, size: int) -> Ints:
        """Return the rows of a run of `size` iterations that are no outliers."""
        return np.delete(np.arange(size), self.rows)


NO_OUTLIERS = Outliers(np.empty(0, np.int64), np.empty(0), (), ())


def counted_text(points: int, outliers: int, run: int | None = None) -> str:
    """Return the words for the iterations whose values an estimate needs.

    Parameters
    ----------
    points : int
        Number of chosen iterations.
    outliers : int
        Number of outlying iterations.
    run : int, optional
        Number of iterations of the run.

    Examples
    --------
    >>> counted_text(4, 4, 64), counted_text(5, 0, 112), counted_text(1, 2)
    ('4 iterations and 4 outliers of 64', '5 of 112 iterations', '1 iteration and 2 outliers')
    """
    if run is not None and not outliers:
        return f"{points} of {run} iterations"
    words = f"{points} iteration{'s' * (points != 1)}"
    if outliers:
        words += f" and {outliers} outlier{'s' * (outliers != 1)}"
    return words if run is None else f"{words} of {run}"


def outliers_text(count: int, share: float) -> str:
    """Return the sentence on the outliers of a run.

    Parameters
    ----------
    count : int
        Number of outlying iterations.
    share : float
        Share of the total that they take.

    Examples
    --------
    >>> outliers_text(4, 0.473)
    'outliers: 4 iterations with 47 % of the total; no point stands for them, and each counts once (--keep-outliers)'
    """
    many = f"{count} iteration{'s' * (count != 1)} with {100 * share:.0f} % of the total"
    return f"outliers: {many}; no point stands for them, and each counts once (--keep-outliers)"


def find_outliers(
    values: Floats, lengths: Floats | None = None, *, begins: Bools | None = None, kinds: Ints | None = None
) -> Outliers:
    """Return the outlying iterations of a run.

    Parameters
    ----------
    values : ndarray of float64, shape (n_iterations,)
        Statistic of each iteration in the order of the run, zero or more.
    lengths : ndarray of float64, shape (n_iterations,), optional
        Sequence length of each iteration, by which neighbours are found; by default neighbours in time.
    begins : ndarray of bool, shape (n_iterations,), optional
        Whether a recording begins with an iteration; by default with the first one alone.
    kinds : ndarray of int64, shape (n_iterations,), optional
        Kind of each iteration, 0 for the most frequent one (`seqpoint.kinds`); by default all are of one kind.

    Returns
    -------
    Outliers
        None of a run of fewer than three iterations.

    Examples
    --------
    >>> find_outliers(np.array([331.0, 33, 32, 34, 33, 32, 31, 33])).reasons
    ('warm-up: 10 times its neighbours in time',)
    """
    n = values.size
    if n < _FEWEST or not values.any():
        return NO_OUTLIERS
    recording = np.zeros(n, dtype=bool) if begins is None else begins.copy()
    recording[0] = True
    if kinds is None:
        return _outliers(values, lengths, recording, _ALLOWED_STALLED)
    if not kinds.any():
        return _outliers(values, lengths, recording, _ALLOWED_OF_KIND)
    scaled, judged = _as_of_one_kind(values, kinds, recording)
    found = _outliers(scaled[judged], None if lengths is None else lengths[judged], recording[judged], _ALLOWED_OF_KIND)
    return replace(found, rows=np.flatnonzero(judged)[found.rows])


def _outliers(values: Floats, lengths: Floats | None, recording: Bools, allowed: int) -> Outliers:
    """Return the outliers of iterations of one kind, of which `allowed` may be stalls in a short run."""
    n = values.size
    if n < _FEWEST:
        return NO_OUTLIERS
    neighbours = _Neighbours.of(values, lengths)
    keys = np.arange(n, dtype=np.float64) if lengths is None or not neighbours.by_length else lengths
    above, below = (
        _of_tail(tail, neighbours.threshold, recording, allowed) for tail in _tails(values, keys, neighbours)
    )
    below = below if n >= _FEW else (NO_OUTLIERS.rows, NO_OUTLIERS.factors)
    rows = np.concatenate((above[0], below[0]))
    order = np.argsort(rows)
    rows, is_slow = rows[order], (order < len(above[0]))
    if not len(rows):
        return NO_OUTLIERS
    first = _warm_up(rows, recording) & is_slow
    names = ("warm-up" if w else "slow" if s else "short" for w, s in zip(first, is_slow, strict=True))
    usual, alike = _usual(values, keys, rows)
    near = "its neighbours in " + ("length" if neighbours.by_length else "time")
    against = ("others of its length" if same else near for same in alike.tolist())
    return Outliers(rows, _factors(values[rows], usual), tuple(names), tuple(against))


def _as_of_one_kind(values: Floats, kinds: Ints, recording: Bools) -> tuple[Floats, Bools]:
    """Return the values scaled as if all were of the most frequent kind, and which iterations can be judged.

    Kinds of fewer than three iterations cannot.
    """
    begins = np.flatnonzero(recording)
    leading = np.zeros(len(kinds), dtype=bool)
    for begin, end in zip(begins.tolist(), [*begins[1:].tolist(), len(kinds)], strict=True):  # a loop over recordings
        changes = np.flatnonzero(kinds[begin:end] != kinds[begin])
        leading[begin : begin + int(changes[0]) if len(changes) else begin] = True
    again = np.bincount(kinds, ~leading) > 0
    of = np.where(again[kinds], kinds, 0)
    counts, usual = np.bincount(of), np.empty(len(kinds))
    for kind in np.flatnonzero(counts).tolist():  # a Python loop over kinds
        among = kinds == kind
        usual[of == kind] = np.quantile(values[among], _USUAL, method="lower")
    scaled = np.divide(values * usual[of == 0][0], usual, out=values.copy(), where=usual > 0)
    return np.asarray(scaled), np.asarray(counts[of] >= _FEWEST)


def _factors(values: Floats, usual: Floats) -> Floats:
    """Return each value over its usual value; infinity if that is zero."""
    return np.divide(values, usual, out=np.full_like(values, np.inf), where=usual > 0)


def _usual(values: Floats, keys: Floats, rows: Ints) -> tuple[Floats, Bools]:
    """Return the median value of regular iterations with the key of each outlier, or else of its nearest neighbours.

    The second array tells which outliers have regular iterations of the same key.
    """
    regular = np.delete(np.arange(values.size), rows)
    if regular.size > _MOST_COMPARED:
        regular = regular[np.linspace(0, regular.size - 1, _MOST_COMPARED).round().astype(np.int64)]
    order = regular[np.argsort(keys[regular], kind="stable")]
    key, value = keys[order], values[order]
    first, last = (np.searchsorted(key, keys[rows], side) for side in ("left", "right"))
    width = min(2 * _ON_EACH_SIDE, key.size)
    begin = np.clip(first - _ON_EACH_SIDE, 0, key.size - width)
    usual = np.median(value[begin[:, None] + np.arange(width)], axis=1)
    alike = last > first
    starts, at, which = np.unique(first[alike], return_index=True, return_inverse=True)
    groups = zip(starts.tolist(), last[alike][at].tolist(), strict=True)  # a Python loop over the keys of outliers
    usual[alike] = np.array([np.median(value[start:end]) for start, end in groups])[which] if len(starts) else 0.0
    return usual, alike


@dataclass(frozen=True, slots=True, eq=False)
class _Neighbours:
    """Groups of neighbours in length or time: the median key, ascending, and the median value of each.

    Values are expected to grow with a power of the length, `growth`. `middle` is the median value of the run, and
    `threshold` the least residual of an outlier.
    """

    by_length: bool
    keys: Floats
    values: Floats
    growth: float
    middle: float
    threshold: float = 0.0

    @classmethod
    def of(cls, values: Floats, lengths: Floats | None) -> "_Neighbours":
        """Return the groups of a run, from a sample of a long one."""
        rows = np.unique(np.linspace(0, values.size - 1, min(values.size, _SAMPLE)).round().astype(np.int64))
        by_length = lengths is not None and float(np.ptp(lengths)) > 0
        keys = lengths[rows] if lengths is not None and by_length else rows.astype(np.float64)
        order = np.argsort(keys, kind="stable")
        key, value = keys[order], values[rows][order]
        most = _MOST_IN_LENGTH if by_length else _MOST_IN_TIME
        width = min(order.size, int(np.clip(order.size // 4, _FEWEST_NEIGHBOURS, most)))
        starts = np.unique(np.linspace(0, order.size - width, _MOST_GROUPS).round().astype(np.int64))
        members = starts[:, None] + np.arange(width)
        medians = np.median(key[members], axis=1), np.median(value[members], axis=1)
        groups = cls(by_length, *medians, _growth(key, value) if by_length else 0.0, float(np.median(value)))
        deviation = _NORMAL * float(np.median(np.abs(groups.residuals(key, value)[0])))
        return replace(groups, threshold=max(_LOG_FACTOR, _DEVIATIONS * deviation))

    def residuals(self, keys: Floats, values: Floats) -> tuple[Floats, Floats]:
        """Return the residual of each value, and a second one, which an outlier needs as well.

        The second is what remains whatever the growth with the length; among neighbours in time, the residual against
        the whole run.
        """
        expected, longer = self._expected(keys)
        residual = _log_ratio(values, expected)
        if not self.by_length:
            return residual, _log_ratio(values, np.full(1, self.middle))
        most = _MOST_GROWTH * longer
        explained = np.clip(residual, np.minimum(most, 0.0), np.maximum(most, 0.0))
        return residual - self.growth * longer, residual - explained

    def _expected(self, keys: Floats) -> tuple[Floats, Floats]:
        """Return the median value of the nearest group of each key, and the logarithm of the key over the group's."""
        last = float(keys.max())
        if (
            0 <= keys.min() <= last < keys.size - 1 and (keys == (whole := keys.astype(np.int32))).all()
        ):  # each length once
            expected, longer = self._expected(np.arange(last + 1) + 0.0)
            return expected[whole], longer[whole]
        nearest = np.searchsorted((self.keys[:-1] + self.keys[1:]) / 2, keys)
        return self.values[nearest], _log_keys(keys) - _log_keys(self.keys)[nearest]


def _log_ratio(values: Floats, expected: Floats) -> Floats:
    ratio = np.divide(values, expected, out=np.ones_like(values), where=expected > 0)
    return np.asarray(np.log(np.maximum(ratio, _SMALLEST)), dtype=np.float64)


def _log_keys(keys: Floats) -> Floats:
    return np.asarray(np.log(np.maximum(keys, _SMALLEST)), dtype=np.float64)


def _growth(lengths: Floats, values: Floats) -> float:
    """Return the power of the length with which values grow: the median slope over pairs of iterations (Theil, Sen)."""
    half = lengths.size // 2
    grown = _log_keys(values[half : 2 * half]) - _log_keys(values[:half])
    longer = _log_keys(lengths[half : 2 * half]) - _log_keys(lengths[:half])
    apart = longer > 0
    return float(np.clip(np.median(grown[apart] / longer[apart]), 0.0, _MOST_GROWTH)) if apart.any() else 0.0


def _of_tail(tail: tuple[Ints, Floats], threshold: float, recording: Bools, allowed: int) -> tuple[Ints, Floats]:
    """Return the outliers among the rows with the largest residuals, and their residuals."""
    rows, residuals = tail
    n = recording.size
    spacings = np.arange(1, residuals.size) * -np.diff(residuals)
    most = max(int(n * _MOST), min(_ALLOWED, (n - 1) // 2))
    candidates = min(int(np.count_nonzero(residuals > threshold)), most)
    counts = np.arange(candidates, 0, -1).tolist()
    stalled = [count - int(_warm_up(np.sort(rows[:count]), recording).sum()) for count in counts]
    level_first = _SIGNIFICANCE * min(n, _MOST_FIRST) / max(stalled.count(0), 1)
    for count, other in zip(counts, stalled, strict=True):  # a Python loop over candidates
        level = _SIGNIFICANCE / candidates if other else level_first
        if _are_few(other, n, allowed) and _is_separated(spacings, count, n, level):
            return rows[:count], residuals[:count]
    return NO_OUTLIERS.rows, NO_OUTLIERS.factors


def _tails(values: Floats, keys: Floats, neighbours: _Neighbours) -> list[tuple[Ints, Floats]]:
    """Return the rows with the largest residuals and those with the smallest, each with their size, largest first.

    These are the rows beyond the threshold, and some that are nearest to it.
    """
    kept: list[list[tuple[Ints, Floats]]] = [[], []]
    for block in row_blocks(values.size):
        both = neighbours.residuals(keys[block], values[block])
        for of_sign, sized in zip(kept, (np.minimum(*both), -np.maximum(*both)), strict=True):
            rows = _largest(sized, neighbours.threshold)
            of_sign.append((block.start + rows, sized[rows]))
    tails = []
    for of_sign in kept:
        row, size = (np.concatenate(column) for column in zip(*of_sign, strict=True))
        order = np.lexsort((row, -size))
        tails.append((row[order], size[order]))
    return tails


def _largest(sizes: Floats, threshold: float) -> Ints:
    """Return the rows with sizes above a threshold, and some of the largest below."""
    above = np.flatnonzero(sizes > threshold)
    rows = np.arange(sizes.size)
    if sizes.size > _SAMPLE:  # the largest of a part of the rows bound those of all
        part = np.partition(sizes[:_SAMPLE], -above.size - _BELOW - 1 if above.size + _BELOW < _SAMPLE else 0)
        least = part[-above.size - _BELOW - 1] if above.size + _BELOW < _SAMPLE else -np.inf
        rows = np.flatnonzero(sizes >= least)
    count = min(above.size + _BELOW + 1, rows.size)
    return rows[np.argpartition(sizes[rows], -count)[-count:]]


def _is_separated(spacings: Floats, count: int, n: int, level: float) -> bool:
    """Return whether a gap behind the `count` largest of `n` residuals is larger than chance allows at a level."""
    below = min(_BELOW, spacings.size - count, max((n - count) // 2, _BELOW_OF_FEW))
    if below < 1:
        return False
    usual = float(spacings[count : count + below].mean())
    return bool(spacings[count - 1] > usual * below * (level ** (-1 / below) - 1))


def _warm_up(rows: npt.NDArray[np.integer], recording: Bools) -> Bools:
    """Return whether each outlier, ascending, is the first of a recording, or follows one that is."""
    first = recording[rows]
    for i in range(1, len(rows)):  # a Python loop over outliers
        first[i] |= first[i - 1] and rows[i] == rows[i - 1] + 1
    return np.asarray(first, dtype=bool)


def _are_few(stalled: int, n: int, allowed: int) -> bool:
    """Return whether outliers that are no warm-up are few enough in a run of `n` iterations."""
    return stalled <= max(allowed if n >= _FEW else n > _FEWEST, _MOST_STALLED * n)
