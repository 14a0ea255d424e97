"""Cut a trace into iterations, and say how each was found.

`find_iterations` looks for marks in this order: the profiler's own steps (``ProfilerStep#N``); an annotation that a
serving engine or a user writes for each step; the recurring annotation of a data loader or optimiser; outermost
annotations that recur. Without marks, `find_period` looks for the period in the sequence of kernels, unless annotations
of layers show that this is a layer (`is_layer`). If nothing recurs, the whole trace is one iteration.
Several files of a rank that do not overlap in time are separate recordings: no iteration reaches from one into the
next, and without marks or a period inside them each is one iteration.

A kernel that runs once an iteration cuts the sequence into iterations that hold the same kernels equally often. Each
kernel whose name recurs evenly is tried as a cut. A cut is judged by the number of kernels that it takes to write the
sequence down: one typical iteration, the differences of each iteration from it, and the kernels outside. This is the
idea of minimum description length (Rissanen 1978, Automatica 14, 465). Layers that repeat inside an iteration lose,
since the kernels between the iterations have to be written again each time. A trace of a single pass through many
equal layers cannot be told from as many iterations without annotations.

A kernel or copy belongs to the iteration of the call that launched it, wherever it runs in time. Without a launch in
the trace, it belongs to an iteration if both its neighbours on the stream do.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from profilers.errors import InvalidInputError
from profilers.trace.arrays import MISSING, Ints, encode_text, ends, integers, strings
from profilers.trace.columns import row_groups, user_ranges
from profilers.trace.compiled import compiled
from profilers.trace.schema import KERNEL_SEQUENCE, WHOLE_TRACE, make_table

#: Smallest number of iterations that is a period.
_MIN_ITERATIONS = 3
#: Least share of a typical iteration's kernels that an iteration holds.
_WHOLE = 0.8
#: Least share of the kernels of all iterations that a typical iteration holds too.
_ALIKE = 0.9
#: Least share of all kernels inside iterations; the layers of a single iteration hold less.
_INSIDE = 0.8
#: Numbers of occurrences that are tried, and symbols of each.
_CUTS, _EACH = 64, 4
#: Kernels in which a cut is looked for, and the largest table of (pieces, names).
_WINDOW, _CELLS = 1 << 18, 1 << 24
#: Names with numbers below this are not numbered again.
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
        """Share of all kernels that the period explains."""
        return self.alike * self.inside


def find_period(names: Ints) -> Period | None:
    """Return the iterations in a sequence of kernels, or None if it has no period.

    Durations and gaps are not used, so a slow first iteration changes nothing. An iteration may run other kernels
    besides (tuning, compilation). A piece with less than 0.8 of the typical kernels is no iteration.

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
            cut = _cut(codes, np.flatnonzero(symbols == best))
            return None if cut is None else cut[1]
    return None


def _pairs(codes: Codes) -> Codes:
    """Return a number for each pair of a kernel and its predecessor, for sequences in which every name comes twice."""
    width = int(codes.max()) + 1
    pairs = codes.astype(np.int64) * (width + 1)
    pairs[1:] += codes[:-1]
    pairs[0] += width
    return np.unique(pairs, return_inverse=True)[1].astype(np.int32)


def _best(codes: Codes, symbols: Codes) -> int | None:
    """Return the symbol with which each iteration begins, or None if no symbol cuts the sequence well."""
    tried = [(symbol, _cut(codes, np.flatnonzero(symbols == symbol))) for symbol in _candidates(symbols)]
    good = [(cut[0], int(cut[1].first[0]), symbol) for symbol, cut in tried if cut is not None]
    return min(good)[2] if good else None


def _candidates(symbols: Codes) -> list[int]:
    """Return the symbols to try as the begin of an iteration.

    All kernels that an iteration holds once occur equally often, and each is as good a cut as another. So a few
    symbols of each number of occurrences are tried, the earliest first. Numbers that more symbols share come first.
    """
    counts = np.bincount(symbols)
    recurring = np.flatnonzero((counts >= _MIN_ITERATIONS) & (2 * counts <= len(symbols)))
    first = np.full(len(counts), len(symbols))
    np.minimum.at(first, symbols, np.arange(len(symbols)))
    by_count: dict[int, list[int]] = {}
    for symbol in recurring[np.argsort(first[recurring], kind="stable")].tolist():
        by_count.setdefault(int(counts[symbol]), []).append(symbol)
    tried = sorted(by_count.values(), key=lambda symbols: (-len(symbols), -counts[symbols[0]]))[:_CUTS]
    return [symbol for equally_often in tried for symbol in equally_often[:_EACH]]


def _cut(codes: Codes, first: Ints) -> tuple[float, Period] | None:
    """Return the description length of the sequence with these cuts, in kernels, and the iterations between them."""
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
    """Return whether pieces of about equal length hold most kernels, as pieces with equal contents do."""
    middle = np.median(length)
    near = length[(length >= _WHOLE * _ALIKE * middle) & (length * _WHOLE * _ALIKE <= middle)]
    return bool(len(near) >= _MIN_ITERATIONS and near.sum() >= _INSIDE * _ALIKE * kernels)


def _contents(codes: Codes, first: Ints, width: int) -> Codes:
    """Return the occurrences of each name in each piece, shape (n_pieces, n_names)."""
    start = np.zeros(len(codes) - first[0], np.int64)
    start[first - first[0]] = width
    cells = np.cumsum(start) - width + codes[first[0] :]
    return np.bincount(cells, minlength=len(first) * width).reshape(-1, width).astype(np.int32)


#: Value of ``found_by`` if a file without marks is one of several recordings of its rank.
SEPARATE_FILE = "file (separate recordings)"
_STEP = re.compile(r"^ProfilerStep#(\d+)")
#: Annotations whose occurrences are steps: those of serving engines, and plain words.
_WHOLE_STEP = re.compile(
    r"^(execute_\S*\d|step\[|(?:prefill|decode)\[|\[Executor\] _forward_step \d)"
    r"|^(iteration\b|train_step\b|training_step\b|[^#]*#step_num=\d)"
    r"|^(epoch\W*\d+\W+)?(train(ing)?[\s_-]*)?(step|iter(ation)?)[\s_#:=-]*\d+\W*$",
    re.IGNORECASE,
)
#: Steps by the clock of a device whose calls on the host are unknown, such as a TPU; and how they were found.
_DEVICE_STEP, _BY_DEVICE = re.compile(r"^device step \d"), "device steps"
#: Annotations of one of several equal parts of a step, with its number.
_LAYER = re.compile(
    r"(layer|block|stage|encoder|decoder|expert|head|micro[\s_-]?batch|\bmb|\bh)s?[\s_.:#(\[-]*\d|^FSDP::\w+ \(",
    re.IGNORECASE,
)
#: Annotations that PyTorch writes for each collective.
_COLLECTIVE = re.compile(r"(nccl|rccl|gloo|mpi|ucc):")
_NUMBER = re.compile(r"\d+")
#: Value of ``found_by`` of iterations between outermost annotations that recur.
_RECURRING = "recurring annotations"
#: Least share of the host's time in such iterations, and largest ratio of most of their times to the median.
_COVERED, _UNEVEN = 0.5, 2.0
#: Share of the iterations in which an annotated layer is seen, on average, below which an iteration is no step.
_SEEN = 0.5
#: Largest overlap of successive steps that is taken for rounding, in ns.
_ROUNDING_NS = 1000
#: Annotations that recur once a step; their starts cut the trace.
_ONCE_A_STEP = ("enumerate(DataLoader)", "Optimizer.zero_grad", "Optimizer.step")


@dataclass(frozen=True)
class Extent:
    """The time that the events of one rank take up, in ns.

    Parameters
    ----------
    start, end : int
        Start of the first and end of the last event.
    host_end : int
        End of the last operator or launch; 0 without any.
    """

    start: int
    end: int
    host_end: int

    def __or__(self, other: "Extent") -> "Extent":
        return Extent(min(self.start, other.start), max(self.end, other.end), max(self.host_end, other.host_end))

    def shifted(self, by_ns: int) -> "Extent":
        """Return the extent on a clock that is `by_ns` ahead."""
        return Extent(self.start + by_ns, self.end + by_ns, self.host_end + by_ns)


@dataclass(frozen=True)
class Iterations:
    """Iterations of one rank: sorted, disjoint, half-open.

    Parameters
    ----------
    rank : int
        Rank of the iterations.
    number, start, end : array of int64, shape (n,)
        Number of each iteration, and its times in ns.
    names : sequence of str
        Name of each iteration, such as its annotation.
    found_by : str
        How the iterations were found.
    recording : int, optional
        Number of the file that holds them, if the rank has several recordings.
    """

    rank: int
    number: Ints
    names: Sequence[str]
    start: Ints
    end: Ints
    found_by: str
    recording: int | None = None

    def __len__(self) -> int:
        return len(self.number)

    def at(self, time: Ints) -> Ints:
        """Return the iteration at each time, or `MISSING` outside the iterations."""
        if not len(self):
            return np.full(len(time), MISSING)
        position = np.searchsorted(self.start, time, side="right") - 1
        inside = (position >= 0) & (time < self.end[position])
        return np.where(inside, self.number[position], MISSING)

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
                "recording": [self.recording] * len(self.number),
            },
        )

    def in_recording(self, extent: "Extent", recording: int) -> "Iterations":
        """Return the iterations that start in a recording; none is longer than the recording.

        Parameters
        ----------
        extent : Extent
            Time of the recording on this rank.
        recording : int
            Its number among the recordings of the rank.
        """
        rows = np.flatnonzero((self.start >= extent.start) & (self.start < extent.end))
        last = extent.host_end if self.found_by in (*_ONCE_A_STEP, _RECURRING) and extent.host_end else extent.end
        start = self.start[rows]
        return replace(
            self,
            number=self.number[rows],
            names=[self.names[row] for row in rows.tolist()],
            start=start,
            end=np.maximum(np.minimum(self.end[rows], last), start + 1),
            recording=recording,
        )


def is_mark(name: str) -> bool:
    """Return whether an operator is a step; files of 2021 have steps among the operators."""
    return name.startswith("ProfilerStep#")


def find_iterations(marks: pa.Table, rank: int, extent: Extent, pattern: str | None = None) -> Iterations:
    """Cut the time of one rank into iterations.

    Parameters
    ----------
    marks : Table
        Annotations on the host of this rank, as rows of ``ranges``.
    rank : int
        Rank to cut.
    extent : Extent
        Time of its events.
    pattern : str, optional
        Regular expression: every annotation whose name matches is one iteration.

    Raises
    ------
    InvalidInputError
        `pattern` is no regular expression, or nothing matches it.
    """
    if pattern is not None:
        expression = annotation_pattern(pattern)
        spans = _each(marks, expression, "annotation", rank)
        if spans is None:
            raise InvalidInputError(
                f"rank {rank}: no annotation with a duration matches {pattern!r}; `seqpoint describe` lists them"
            )
        return spans
    return (
        _each(marks, _STEP, "ProfilerStep", rank)
        or _each(marks, _DEVICE_STEP, _BY_DEVICE, rank)
        or _each(marks, _WHOLE_STEP, "annotation", rank)
        or _between(marks, rank, extent)
        or _recurring(marks, rank, extent)
        or one_iteration(rank, extent, 0, WHOLE_TRACE, WHOLE_TRACE)
    )


def one_iteration(rank: int, extent: Extent, number: int, name: str, found_by: str) -> Iterations:
    """Return the whole time of a rank as a single iteration.

    Parameters
    ----------
    rank : int
        Rank of the iteration.
    extent : Extent
        Time of its events.
    number : int
        Number of the iteration.
    name, found_by : str
        Name of the iteration, and how it was found.
    """
    # A file name can hold bytes that are no text.
    label = name.encode("utf-8", "replace").decode("utf-8")
    end = max(extent.end, extent.start + 1)
    return Iterations(rank, np.array([number]), [label], np.array([extent.start]), np.array([end]), found_by)


def periodic(rank: int, period: Period, times: Ints, extent: Extent) -> Iterations:
    """Return the iterations that recur in the kernels of a rank.

    Parameters
    ----------
    rank : int
        Rank of the kernels.
    period : Period
        Positions of the iterations in the sequence of kernels.
    times : array of int64
        Launch time of each kernel in ns, ascending.
    extent : Extent
        Time of the rank's events.
    """
    end = np.append(times, max(extent.end, extent.start + 1))[period.end]
    names = [f"period {i}" for i in range(len(period.first))]
    found_by = f"{KERNEL_SEQUENCE} ({100 * period.confidence:.0f} %)"
    return Iterations(rank, np.arange(len(names)), names, times[period.first], end, found_by)


def caused_iterations(spans: Iterations, start: Ints, cause: Ints) -> Ints:
    """Return the iterations of kernels or copies of one rank, which are those of the calls that caused them.

    Without a call, the iteration is `MISSING`, unless the iterations cover the device work by their own times.

    Parameters
    ----------
    spans : Spans
        Iterations of the rank.
    start, cause : array of int64
        Start of each kernel or copy, and of the call that caused it (or `MISSING`), in ns.
    """
    result = np.where(cause == MISSING, MISSING, spans.at(cause))
    if spans.found_by.startswith((WHOLE_TRACE, "file", KERNEL_SEQUENCE, _BY_DEVICE)):
        result = np.where(result == MISSING, spans.at(start), result)
    return result


def fill_from_neighbours(rows: npt.NDArray[Any], launched: npt.NDArray[np.bool_], iteration: Ints) -> None:
    """Give kernels or copies without a launch the iteration of their neighbours on the stream, if both agree.

    Parameters
    ----------
    rows : array of int
        Rows of one stream, in the order of their starts.
    launched : array of bool
        Whether the launch of each row is in the trace.
    iteration : array of int64
        Iteration of each row; filled in place if it is `MISSING`.
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
    """Return a compiled regular expression for annotations.

    Parameters
    ----------
    pattern : str
        Regular expression of the user.

    Raises
    ------
    InvalidInputError
        `pattern` is no regular expression.
    """
    try:
        return re.compile(pattern)
    except re.error as error:
        raise InvalidInputError(f"{pattern!r} is no regular expression: {error}") from error


def _each(marks: pa.Table, pattern: re.Pattern[str], found_by: str, rank: int) -> Iterations | None:
    """Return each annotation that matches as one iteration; of two that overlap, the longer."""
    names = strings(marks, "name")
    rows = np.array([i for i, name in enumerate(names) if pattern.search(name)], dtype=np.int64)
    start, end = integers(marks, "start_ns")[rows], ends(marks)[rows]
    kept = _disjoint(start, end)
    if not kept:
        return None
    rows, start, end = rows[kept], start[kept], end[kept]
    chosen = [str(names[row]) for row in rows]
    return Iterations(rank, _numbers(chosen), chosen, start, end, found_by)


def _disjoint(start: Ints, end: Ints) -> list[int]:
    """Return disjoint intervals by row, in order of time; of two that overlap, the longer is kept.

    Intervals that overlap by at most `_ROUNDING_NS` follow each other; the start of the later is moved in place.
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
    """Return the numbers in the names of steps if all are distinct, else 0, 1, 2, ..."""
    matches = [_STEP.match(name) for name in names]
    numbers = [int(m.group(1)) for m in matches if m is not None and len(m.group(1)) < 10]
    distinct = len(set(numbers)) == len(names)
    return np.array(numbers if distinct else range(len(names)), dtype=np.int64)


def _between(marks: pa.Table, rank: int, extent: Extent) -> Iterations | None:
    """Return the iterations between the starts of an annotation that recurs; the last ends with the host."""
    names = strings(marks, "name")
    for prefix in _ONCE_A_STEP:
        rows = np.array([i for i, name in enumerate(names) if name.startswith(prefix)], dtype=np.int64)
        if len(rows) > 1:
            start = np.sort(integers(marks, "start_ns")[rows])
            last = max(extent.host_end, int(start[-1]) + 1)
            label = [f"{prefix} {i}" for i in range(len(rows))]
            return Iterations(rank, np.arange(len(rows)), label, start, np.append(start[1:], last), prefix)
    return None


def _recurring(marks: pa.Table, rank: int, extent: Extent) -> Iterations | None:
    """Return the iterations between outermost annotations of a thread that recur evenly; the last ends with the host.

    Annotations recur with the same text, or else with other numbers in it; a layer has its number in either case.
    """
    marks = _outermost(marks.take(pa.array(user_ranges(marks))))
    is_kept = [_COLLECTIVE.match(str(name)) is None for name in strings(marks, "name")]  # 2 us an outermost annotation
    marks = marks.filter(pa.array(is_kept, pa.bool_()))
    names, start = [str(name) for name in strings(marks, "name")], integers(marks, "start_ns")
    kinds = [name if _LAYER.search(name) else _NUMBER.sub("#", name) for name in names]
    cut = _recurrence(names)
    cut = _recurrence(kinds) if cut is None else cut
    if cut is None:
        return None
    host_end = max(extent.host_end, int(ends(marks).max()))
    first, end = start[cut[0]], np.append(start, host_end)[cut[1]]
    time = end - first
    later = time[1:]  # the first may have work that comes once
    even = (later <= _UNEVEN * np.median(later)) & (later * _UNEVEN >= np.median(later))
    if time.sum() < _COVERED * (host_end - extent.start) or even.mean() < _WHOLE:
        return None
    return Iterations(rank, np.arange(len(first)), [names[row] for row in cut[0].tolist()], first, end, _RECURRING)


def _outermost(marks: pa.Table) -> pa.Table:
    """Return the annotations of the main thread that are in no other, in order; or of the only thread that has some.

    The main thread of a process has the number of the process.
    """
    process, thread = integers(marks, "process"), integers(marks, "thread")
    rows = np.flatnonzero((process == thread) & (thread != MISSING))
    if not len(rows) and len(threads := row_groups(process, thread)) == 1:
        rows = threads[0]
    start, end = integers(marks, "start_ns"), ends(marks)
    rows = rows[end[rows] > start[rows]]
    rows = rows[np.lexsort((-end[rows], start[rows]))]
    before = np.maximum.accumulate(np.append(MISSING, end[rows]))[:-1]
    return marks.take(pa.array(rows[start[rows] >= before]))


def _recurrence(names: Sequence[str]) -> tuple[Ints, Ints] | None:
    """Return the position of the first annotation of each iteration, and of the one after its last."""
    codes = np.unique(np.array(names, dtype=str), return_inverse=True)[1].astype(np.int64)
    if len(codes) >= _MIN_ITERATIONS and not codes.any():
        return np.arange(len(codes)), np.arange(1, len(codes) + 1)
    period = find_period(codes)
    return None if period is None else (period.first, period.end)


def is_layer(marks: pa.Table, spans: Iterations) -> bool:
    """Return whether iterations that recur in the kernels are layers, as annotations name them.

    A step holds all layers, so each layer is annotated in nearly every step. A layer is annotated once a step.

    Parameters
    ----------
    marks : Table
        Annotations on the host of the rank, as rows of ``ranges``.
    spans : Iterations
        Iterations of the rank.
    """
    codes, texts = encode_text(marks["name"])
    of_layer = np.array([*(_LAYER.search(str(text)) is not None for text in texts), False], dtype=bool)
    iteration = spans.at(integers(marks, "start_ns"))
    rows = of_layer[codes] & (iteration != MISSING)
    seen = np.unique(np.stack([codes[rows], iteration[rows]]), axis=1)
    layers, steps = len(np.unique(seen[0])), len(np.unique(seen[1]))
    return steps >= _WHOLE * len(spans) and seen.shape[1] < _SEEN * layers * steps
