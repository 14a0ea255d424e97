"""Finding the iterations of a recording.

Iterations of a trace without markers: the period of its sequence of kernels.

A kernel that runs once an iteration cuts the sequence into iterations that hold the same kernels as often. Each
kernel whose name recurs evenly is tried as such a cut, and each cut is judged by how many kernels it takes to
write the sequence down with it: one typical iteration, what every iteration has more or less than that, and what
lies outside (the idea of minimum description length, Rissanen 1978, Automatica 14, 465). Layers that repeat inside
of an iteration lose, since what stands between the iterations has to be written again each time. A trace that holds
nothing but one pass through many equal layers cannot be told from as many iterations.

Cut a trace into iterations, and say how each was found.

In this order: the profiler's own steps (``ProfilerStep#N``); an annotation a serving engine or a user writes
for each step; the recurring annotation of a data loader or optimiser; the period of the sequence of kernels; and
if nothing recurs, the whole trace is one iteration. Device work belongs to the iteration whose host code launched
it, wherever it runs in time; what has no launch in the trace belongs to an iteration only if both its neighbours on
its stream do.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from profilers.errors import InvalidInputError
from profilers.trace.arrays import MISSING, Ints, ends, integers, strings
from profilers.trace.compiled import compiled
from profilers.trace.schema import make_table

#: Fewer iterations are no period.
_MIN_ITERATIONS = 3
#: Share of a typical iteration's kernels that an iteration holds; a piece with fewer is none.
_WHOLE = 0.8
#: Share of the kernels of all iterations that have to be those of a typical one.
_ALIKE = 0.9
#: Share of all kernels that have to lie inside of iterations: the layers of a single iteration hold less.
_INSIDE = 0.8
#: Counts of symbols that are tried, and symbols of each.
_CUTS, _EACH = 64, 4
#: Kernels in which a cut is looked for; pieces times names that it may have.
_WINDOW, _CELLS = 1 << 18, 1 << 24
#: Names with numbers below need no new ones.
_DENSE = 1 << 12

Codes = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Period:
    """A sequence of kernels that repeats.

    Parameters
    ----------
    first, end : array of int64, shape (n_iterations,)
        Positions of the first kernel of each iteration, and of the one after its last.
    alike : float
        Share of the kernels of these iterations that a typical one has too, 0.9 to 1.
    inside : float
        Share of all kernels that are in these iterations, 0.8 to 1.
    """

    first: Ints
    end: Ints
    alike: float
    inside: float

    @property
    def confidence(self) -> float:
        """Share of all kernels that the period explains: how sure it is."""
        return self.alike * self.inside


def find_period(names: Ints) -> Period | None:
    """Return the iterations in a sequence of kernels, None where it has no period.

    Neither durations nor gaps are looked at, so a slow first iteration changes nothing; one that runs other kernels
    besides (tuning, compilation) is still one, and what holds less than 0.8 of the typical kernels is none.

    Parameters
    ----------
    names : array of int64, shape (n,)
        A number for the name of each kernel, in the order in which they were launched.

    Examples
    --------
    >>> period = find_period(np.array([9, 1, 2, 2, 3, 1, 2, 2, 3, 1, 2, 2, 3]))
    >>> period.first.tolist(), period.end.tolist(), period.alike
    ([1, 5, 9], [5, 9, 13], 1.0)
    """
    if len(names) < 2 * _MIN_ITERATIONS:
        return None
    dense = names.min() >= 0 and names.max() < _DENSE
    codes = (names if dense else np.unique(names, return_inverse=True)[1]).astype(np.int32)
    for symbols in (codes, _pairs(codes)):
        if (best := _best(codes[:_WINDOW], symbols[:_WINDOW])) is not None:
            found = _cut(codes, np.flatnonzero(symbols == best))
            return None if found is None else found[1]
    return None


def _pairs(codes: Codes) -> Codes:
    """Return a number for each kernel and the one before it, for sequences of which every name comes twice."""
    width = int(codes.max()) + 1
    pairs = codes.astype(np.int64) * (width + 1)
    pairs[1:] += codes[:-1]
    pairs[0] += width
    return np.unique(pairs, return_inverse=True)[1].astype(np.int32)


def _best(codes: Codes, symbols: Codes) -> int | None:
    """Return the symbol with which each iteration begins, None where there is none."""
    tried = [(symbol, _cut(codes, np.flatnonzero(symbols == symbol))) for symbol in _candidates(symbols)]
    good = [(cut[0], int(cut[1].first[0]), symbol) for symbol, cut in tried if cut is not None]
    return min(good)[2] if good else None


def _candidates(symbols: Codes) -> list[int]:
    """Return symbols that may begin an iteration: of those that come equally often a few, the first to come.

    What an iteration holds once comes equally often, and one of it is as good a cut as the other. How often more
    symbols come is tried first.
    """
    counts = np.bincount(symbols)
    able = np.flatnonzero((counts >= _MIN_ITERATIONS) & (2 * counts <= len(symbols)))
    first = np.full(len(counts), len(symbols))
    np.minimum.at(first, symbols, np.arange(len(symbols)))
    by_count: dict[int, list[int]] = {}
    for symbol in able[np.argsort(first[able], kind="stable")].tolist():
        by_count.setdefault(int(counts[symbol]), []).append(symbol)
    tried = sorted(by_count.values(), key=lambda one: (-len(one), -counts[one[0]]))[:_CUTS]
    return [symbol for one in tried for symbol in one[:_EACH]]


def _cut(codes: Codes, first: Ints) -> tuple[float, Period] | None:
    """Return what it costs to write the sequence down with these cuts, in kernels, and the iterations they make."""
    width = int(codes.max()) + 1
    end = np.append(first[1:], len(codes))
    if len(first) * width > _CELLS or not _even(end - first, len(codes)):
        return None
    table = _contents(codes, first, width)
    typical = np.floor(np.median(table, axis=0)).astype(np.int32)
    size = int(typical.sum())
    common = np.minimum(table, typical).sum(axis=1)
    length = end - first
    whole = (common >= _WHOLE * size) & (size > 0)
    if whole.sum() < _MIN_ITERATIONS:
        return None
    alike = float(common[whole].sum() / np.maximum(length[whole], size).sum())
    inside = float(length[whole].sum() / len(codes))
    if alike < _ALIKE or inside < _INSIDE:
        return None
    cost = float(first[0] + size + np.minimum(length + size - 2 * common, length).sum())
    return cost, Period(first[whole], end[whole], alike, inside)


def _even(length: Ints, kernels: int) -> bool:
    """Return whether pieces of about the same length hold most kernels, as they must where their contents are alike."""
    middle = np.median(length)
    near = length[(length >= _WHOLE * _ALIKE * middle) & (length * _WHOLE * _ALIKE <= middle)]
    return bool(len(near) >= _MIN_ITERATIONS and near.sum() >= _INSIDE * _ALIKE * kernels)


def _contents(codes: Codes, first: Ints, width: int) -> Codes:
    """Return how often each piece holds each name, shape (n_pieces, n_names)."""
    start = np.zeros(len(codes) - first[0], np.int64)
    start[first - first[0]] = width
    cells = np.cumsum(start) - width + codes[first[0] :]
    return np.bincount(cells, minlength=len(first) * width).reshape(-1, width).astype(np.int32)


#: How iterations were found: none was, or in the kernels alone.
WHOLE_TRACE, KERNEL_SEQUENCE = "whole trace", "kernel sequence"
#: The category of ranges that a user or framework wrote around code on the host.
ANNOTATIONS = "user_annotation"
_STEP = re.compile(r"^ProfilerStep#(\d+)")
#: Annotations of which each occurrence is one step: serving engines, and the plain word.
_WHOLE_STEP = re.compile(r"^(execute_\S*\d|step\[|iteration\b|train_step\b|training_step\b)", re.IGNORECASE)
#: Steps of one loop that overlap by no more than this do so by rounding (ns).
_ROUNDING_NS = 1000
#: Annotations that recur once a step, whose starts cut the trace.
_ONCE_A_STEP = ("enumerate(DataLoader)", "Optimizer.zero_grad", "Optimizer.step")


@dataclass(frozen=True)
class Extent:
    """When the events of one rank begin and end, and when its host's do, in ns.

    Parameters
    ----------
    start, end : int
        Of all its events.
    host_end : int
        Of its operators and launches; 0 where it has none.
    """

    start: int
    end: int
    host_end: int

    def __or__(self, other: "Extent") -> "Extent":
        return Extent(min(self.start, other.start), max(self.end, other.end), max(self.host_end, other.host_end))

    def shifted(self, by_ns: int) -> "Extent":
        """Return the extent on a clock that shows `by_ns` more."""
        return Extent(self.start + by_ns, self.end + by_ns, self.host_end + by_ns)


@dataclass(frozen=True)
class Spans:
    """Iterations of one rank: sorted, disjoint, half-open.

    Parameters
    ----------
    rank : int
    number, start, end : array of int64, shape (n,)
        Times in ns.
    names : sequence of str
    found_by : str
    """

    rank: int
    number: Ints
    names: Sequence[str]
    start: Ints
    end: Ints
    found_by: str

    def at(self, time: Ints) -> Ints:
        """Return the iteration at each time, `MISSING` outside of all."""
        place = np.searchsorted(self.start, time, side="right") - 1
        inside = (place >= 0) & (time < self.end[place])
        return np.where(inside, self.number[place], MISSING)

    def table(self) -> pa.Table:
        """Return the rows of the table ``iterations``."""
        return make_table(
            "iterations",
            {
                "rank": [self.rank] * len(self.number),
                "iteration": self.number,
                "name": list(self.names),
                "start_ns": self.start,
                "dur_ns": self.end - self.start,
                "found_by": [self.found_by] * len(self.number),
            },
        )


def is_mark(name: str) -> bool:
    """Return whether an operator of this name is a step: in files of 2021 steps stand among the operators."""
    return name.startswith("ProfilerStep#")


def find_iterations(marks: pa.Table, rank: int, extent: Extent, pattern: str | None = None) -> Spans:
    """Cut the time of one rank into iterations.

    Parameters
    ----------
    marks : Table
        ``name``, ``start_ns`` and ``dur_ns`` of the annotations of this rank's host.
    rank : int
    extent : Extent
        Of this rank.
    pattern : str, optional
        Regular expression: every annotation whose name matches is one iteration.

    Raises
    ------
    InvalidInputError
        `pattern` is no regular expression, or nothing matches it.
    """
    if pattern is not None:
        wanted = annotation_pattern(pattern)
        found = _each(marks, lambda name: wanted.search(name) is not None, "annotation", rank)
        if found is None:
            raise InvalidInputError(
                f"rank {rank}: no annotation with a duration matches {pattern!r}; `seqpoint describe` lists them"
            )
        return found
    return (
        _each(marks, lambda name: _STEP.match(name) is not None, "ProfilerStep", rank)
        or _each(marks, lambda name: _WHOLE_STEP.match(name) is not None, "annotation", rank)
        or _between(marks, rank, extent)
        or one_iteration(rank, extent, 0, WHOLE_TRACE, WHOLE_TRACE)
    )


def one_iteration(rank: int, extent: Extent, number: int, name: str, found_by: str) -> Spans:
    """Return the whole time of a rank as a single iteration."""
    # A file name can hold bytes that are no text.
    label = name.encode("utf-8", "replace").decode("utf-8")
    end = max(extent.end, extent.start + 1)
    return Spans(rank, np.array([number]), [label], np.array([extent.start]), np.array([end]), found_by)


def periodic(rank: int, period: Period, times: Ints, extent: Extent) -> Spans:
    """Return the iterations that recur in the kernels of a rank, which lie in the order of `times`."""
    end = np.append(times, max(extent.end, extent.start + 1))[period.end]
    names = [f"period {i}" for i in range(len(period.first))]
    found_by = f"{KERNEL_SEQUENCE} ({100 * period.confidence:.0f} %)"
    return Spans(rank, np.arange(len(names)), names, times[period.first], end, found_by)


def caused_iterations(spans: Spans, start: Ints, cause: Ints) -> Ints:
    """Return the iteration of kernels or copies of one rank: that of the call that caused them, at `cause`.

    Where the cause is `MISSING`, so is the iteration; unless the iteration is all that there is.
    """
    result = np.where(cause == MISSING, MISSING, spans.at(cause))
    if spans.found_by.startswith((WHOLE_TRACE, "file", KERNEL_SEQUENCE)):
        result = np.where(result == MISSING, spans.at(start), result)
    return result


def fill_from_neighbours(rows: npt.NDArray[Any], launched: npt.NDArray[np.bool_], iteration: Ints) -> None:
    """Give work without a launch the iteration of its neighbours on the stream, where both have the same.

    Parameters
    ----------
    rows : array of int
        Those of one stream, in the order of their starts.
    launched : array of bool
        Whether the launch of each row is in the trace.
    iteration : array of int64
        Changed where it is `MISSING`.
    """
    _fill(rows, launched, iteration, MISSING)


@compiled
def _fill(rows: Any, launched: Any, iteration: Any, missing: Any) -> None:
    before = -1
    for i in range(len(rows)):
        if not launched[rows[i]]:
            continue
        if before >= 0 and iteration[rows[before]] == iteration[rows[i]]:
            for j in range(before + 1, i):
                if iteration[rows[j]] == missing:
                    iteration[rows[j]] = iteration[rows[i]]
        before = i


def annotation_pattern(pattern: str) -> re.Pattern[str]:
    """Return the compiled pattern.

    Raises
    ------
    InvalidInputError
        It is no regular expression.
    """
    try:
        return re.compile(pattern)
    except re.error as error:
        raise InvalidInputError(f"{pattern!r} is no regular expression: {error}") from error


def _each(marks: pa.Table, wanted: Callable[[str], bool], found_by: str, rank: int) -> Spans | None:
    """Take every annotation that is wanted as one iteration; of two that overlap, the longer."""
    names = strings(marks, "name")
    rows = np.array([i for i, name in enumerate(names) if wanted(name)], dtype=np.int64)
    if not len(rows):
        return None
    start, end = integers(marks, "start_ns")[rows], ends(marks)[rows]
    kept = _disjoint(start, end)
    if not kept:
        return None
    rows, start, end = rows[kept], start[kept], end[kept]
    chosen = [str(names[row]) for row in rows]
    return Spans(rank, _numbers(chosen), chosen, start, end, found_by)


def _disjoint(start: Ints, end: Ints) -> list[int]:
    """Return, in order of time, the rows that remain when of two that overlap the shorter goes.

    Two that overlap by less than `_ROUNDING_NS` follow each other: the start of the later is moved.
    """
    kept: list[int] = []
    for row in np.lexsort((-end, start)).tolist():  # a Python loop over iterations
        if end[row] <= start[row]:
            continue
        if kept and 0 < end[kept[-1]] - start[row] <= _ROUNDING_NS and end[row] > end[kept[-1]]:
            start[row] = end[kept[-1]]
        if kept and start[row] < end[kept[-1]]:
            if end[row] - start[row] > end[kept[-1]] - start[kept[-1]]:
                kept[-1] = row
            continue
        kept.append(row)
    return kept


def _numbers(names: Sequence[str]) -> Ints:
    """Return the steps' own numbers where they are given and distinct, else 0, 1, 2, ..."""
    given = [_STEP.match(name) for name in names]
    numbers = [int(m.group(1)) for m in given if m is not None and len(m.group(1)) < 10]
    distinct = len(set(numbers)) == len(names)
    return np.array(numbers if distinct else range(len(names)), dtype=np.int64)


def _between(marks: pa.Table, rank: int, extent: Extent) -> Spans | None:
    """Cut at the starts of the first annotation that recurs once a step; the last ends with the host."""
    names = strings(marks, "name")
    for prefix in _ONCE_A_STEP:
        rows = np.array([i for i, name in enumerate(names) if name.startswith(prefix)], dtype=np.int64)
        if len(rows) > 1:
            start = np.sort(integers(marks, "start_ns")[rows])
            last = max(extent.host_end, int(start[-1]) + 1)
            label = [f"{prefix} {i}" for i in range(len(rows))]
            return Spans(rank, np.arange(len(rows)), label, start, np.append(start[1:], last), prefix)
    return None
