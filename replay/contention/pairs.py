"""Contention measured in a trace: launches of the same kernel, alone on their device and beside other work.

`measure_pairs` puts launches of a kernel with the same grid and operands into a group. A launch with nothing beside it
is alone; a launch with other work beside it for almost all of its time is overlapped. The time of an overlapped launch
and the time of the alone launches of its group that are nearest in time on its device make a pair. Differences that are
not contention are looked for: warm-up, first touch, scatter, ranks of different speed. Launches without a pair are
counted by reason.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from profilers.errors import InvalidInputError
from profilers.trace.arrays import (
    MISSING,
    Bools,
    Floats,
    Ints,
    arrow_array,
    encode_text,
    integers,
    integers_or_missing,
    text_array,
)
from profilers.trace.columns import Lanes, combinations, lookup, row_slices
from profilers.trace.trace import Trace
from replay.contention.neighbors import DeviceWork, Neighbors

#: Reasons for which a kernel launch is in no pair, with what each means.
REASONS: Mapping[str, str] = MappingProxyType(
    {
        "communication": "The kernel is a collective, whose time depends on other ranks.",
        "no duration": "The launch has no duration, or one of 0 ns.",
        "unknown grid": "Neither the grid nor the operator's shapes are known, so launches cannot be compared.",
        "partly overlapped": "Other work is beside the launch, but not for almost all of its time.",
        "close neighbor": "Nothing is beside the launch, but work of another stream is less than the least gap away.",
        "warm-up": "The launch is of a first iteration whose alone launches take another time than later ones.",
        "first touch": "The first launch of its group on its rank took longer than the others.",
        "never overlapped": "The launch is alone, and so are all others of its group.",
        "never alone": "The launch is overlapped, and no launch of its group is alone.",
        "too few alone": "The group has alone launches, but too few.",
        "ranks differ": "Alone launches take another time on other ranks, and there are too few on this rank.",
        "scattered alone": "The times of the alone launches of the group differ too much.",
    }
)
#: Columns of the events that pairs are measured from; a trace may lack the others.
PAIR_COLUMNS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "kernels": (
            *("id", "rank", "name", "start_ns", "dur_ns", "iteration", "device", "stream", "op_id", "workgroups"),
            *("workgroup_size", "registers", "lds_bytes", "graph_node", "collective_id"),
        ),
        "copies": ("id", "rank", "name", "start_ns", "dur_ns", "device", "stream", "bytes", "direction"),
        "collectives": (
            *("id", "rank", "name", "start_ns", "dur_ns", "kernel_id", "collective", "dtype", "bytes", "group_size"),
            *("group_name", "match_id"),
        ),
        "ops": ("id", "shapes", "dtypes"),
    }
)
#: Columns of `ContentionPairs.groups` and of `ContentionPairs.partners`.
GROUP_COLUMNS = (
    *("name", "class", "device", "rank", "workgroups", "workgroup_size", "registers", "lds_bytes", "shapes", "dtypes"),
    *("collective", "bytes", "group_size", "n_alone", "n_overlapped", "alone_ns", "alone_scatter", "overlapped_ns"),
    *("ratio", "status"),
)
PARTNER_COLUMNS = (
    *("name", "kind", "class", "collective", "workgroups", "workgroup_size", "registers", "lds_bytes", "bytes", "n"),
)
USED = "used"
#: Number of alone launches, nearest in time, whose median is the time alone.
_NEAREST = 16
#: Ranks whose medians differ by more are not pooled, and first iterations that differ by more are warm-up.
_AGREEMENT = 0.1
#: Most first iterations that can be warm-up.
_WARM_UPS = 3


@dataclass(frozen=True)
class PairOptions:
    """Limits for the launches of a pair.

    Parameters
    ----------
    min_alone : int
        Least number of alone launches of a group.
    min_overlap : float
        Least share of the time of an overlapped launch with other work beside it.
    max_scatter : float
        Largest scatter of alone launches: half of the range of the central 80 % of their times, over the median.
    min_gap_ns : int
        Least time between an alone launch and the work of other streams.
    """

    min_alone: int = 3
    min_overlap: float = 0.95
    max_scatter: float = 0.25
    min_gap_ns: int = 1000

    def __post_init__(self) -> None:
        if self.min_alone < 2:
            raise InvalidInputError(f"min_alone is {self.min_alone}; a scatter needs 2 alone launches or more")
        if not 0 < self.min_overlap <= 1:
            raise InvalidInputError(f"min_overlap is {self.min_overlap:g}; it must be above 0 and at most 1")
        if not self.max_scatter > 0 or self.min_gap_ns < 0:
            raise InvalidInputError("max_scatter must be above 0, and min_gap_ns 0 or more")


@dataclass(frozen=True)
class ContentionPairs:
    """Overlapped launches of a trace with the time of the same launch alone.

    Arrays have a row for each overlapped launch, in order of rank, device and start.

    Parameters
    ----------
    event : array of int64
        Id of the launch's kernel in the trace.
    rank, iteration : array of int64
        Rank, and iteration or `MISSING`.
    group, partner : array of int64
        Rows of `groups` and of `partners`.
    duration_ns, alone_ns : array of float64
        Measured time, and median time of the alone launches nearest in time.
    partner_event : array of int64
        Id of the kernel or copy that was beside the launch for the longest time.
    partner_share : array of float64
        Share of the launch's time beside that kernel or copy.
    groups : pyarrow.Table
        Groups with overlapped launches, used or not; columns of `GROUP_COLUMNS`. A rank is given if ranks differ.
    partners : pyarrow.Table
        Kinds of work beside launches; columns of `PARTNER_COLUMNS`. Bytes are rounded down to a power of two.
    excluded : mapping of str to int
        Number of launches that are in no pair, by the key of `REASONS`.
    launches, alone : int
        Number of all launches, and of the alone launches of groups in use; the rest is in a row or excluded.
    noise, noise_mean : float
        Relative error of an alone launch predicted from the others: median, and mean weighted by time. NaN if unknown.
    resolution_ns : int
        Largest step that all times of kernels are multiples of; 0 without kernels.
    confounded : str
        Why differences are not contention, in one sentence; empty if nothing speaks against it.
    """

    event: Ints
    rank: Ints
    iteration: Ints
    group: Ints
    duration_ns: Floats
    alone_ns: Floats
    partner: Ints
    partner_event: Ints
    partner_share: Floats
    groups: pa.Table
    partners: pa.Table
    excluded: Mapping[str, int]
    launches: int
    alone: int
    noise: float
    noise_mean: float
    resolution_ns: int
    confounded: str

    @property
    def slowdown(self) -> Floats:
        """Measured time over the time alone, for each overlapped launch."""
        return self.duration_ns / self.alone_ns


def measure_pairs(trace: Trace, options: PairOptions | None = None) -> ContentionPairs:
    """Return the overlapped launches of a trace, each with its time alone.

    Parameters
    ----------
    trace : Trace
        The trace; columns other than `PAIR_COLUMNS` may be absent.
    options : PairOptions, optional
        Limits for the launches.

    Examples
    --------
    A kernel takes 10 us alone, three times, and 16 us beside a collective on another stream:

    >>> from profilers.trace import TraceMeta, make_table
    >>> columns = {"id": range(5), "rank": [0] * 5, "name": [*["gemm"] * 4, "ncclDevKernel"], "workgroups": [108] * 5}
    >>> columns |= {"stream": [7, 7, 7, 7, 20], "start_ns": [0, 20_000, 40_000, 60_000, 59_000]}
    >>> columns |= {"dur_ns": [10_000, 10_000, 10_000, 16_000, 30_000]}
    >>> pairs = measure_pairs(Trace(TraceMeta("kineto"), {"kernels": make_table("kernels", columns)}))
    >>> pairs.event.tolist(), pairs.slowdown.tolist(), dict(pairs.excluded)
    ([3], [1.6], {'communication': 1})
    """
    options = options or PairOptions()
    work, operands = DeviceWork.of(trace), _operands(trace)
    known = (integers_or_missing(trace.kernels, "workgroups") != MISSING) | (operands != MISSING)
    left_out = np.where(work.is_collective, _CODE["communication"], _CODE["unknown grid"])
    reason = np.where(known & ~work.is_collective, _UNDECIDED, left_out).astype(np.int8)
    return _pair(trace, work, _groups(trace, work, operands), reason, options)


_UNDECIDED, _ALONE, _OVERLAPPED = -1, -2, -3
_CODE: Mapping[str, int] = MappingProxyType({reason: number for number, reason in enumerate(REASONS)})
#: Columns of a kernel that are equal in a group.
_GRID = ("workgroups", "workgroup_size", "registers", "lds_bytes")


def _operands(trace: Trace) -> Ints:
    """Return a code for the shapes and types of each kernel's operator; `MISSING` without either."""
    ops, cause = trace.ops, integers_or_missing(trace.kernels, "op_id")
    if not {"shapes", "dtypes"} <= set(ops.schema.names) or not ops.num_rows:
        return np.full(len(cause), MISSING)
    codes = np.stack([encode_text(ops[name])[0] for name in ("shapes", "dtypes")])
    known = (codes >= 0).any(axis=0)
    code: Ints = np.where(known, combinations(codes)[0], MISSING)
    return lookup(integers(ops, "id"), code, cause)


def _groups(trace: Trace, work: DeviceWork, details: Ints) -> Ints:
    """Return a number for each kernel, equal for launches of one kernel with one grid and equal details.

    Launches of a node of a captured graph are a group of their own.
    """
    kernels, lanes = trace.kernels, Lanes()
    model = np.unique(work.models, return_inverse=True)[1]
    number = np.empty(kernels.num_rows, np.int64)
    for rows in row_slices(kernels.num_rows):
        block = kernels.slice(rows.start, rows.stop - rows.start)
        grid = [integers_or_missing(block, column) for column in (*_GRID, "graph_node")]
        number[rows] = lanes.of([work.name[rows], details[rows], model[work.device[rows]], *grid])
    return number


@dataclass(frozen=True)
class _Launches:
    """Alone and overlapped launches: columns of equal length.

    Parameters
    ----------
    row : array of int64
        Row of the kernel.
    group, device, iteration, start_ns : array of int64
        Group and device of the launch, its iteration and its start.
    duration_ns : array of float64
        Its time.
    is_alone : array of bool
        Whether it is alone.
    """

    row: Ints
    group: Ints
    device: Ints
    iteration: Ints
    start_ns: Ints
    duration_ns: Floats
    is_alone: Bools

    def select(self, rows: Bools | Ints) -> "_Launches":
        """Return the launches in `rows`."""
        return _Launches(**{name: column[rows] for name, column in vars(self).items()})

    @property
    def groups(self) -> int:
        """Number of groups."""
        return int(self.group.max()) + 1 if len(self.group) else 0

    @property
    def lane(self) -> Ints:
        """Number of each combination of group and device, from 0, in order of both."""
        keys = self.group * (int(self.device.max()) + 1 if len(self.device) else 1) + self.device
        lanes: Ints = np.unique(keys, return_inverse=True)[1].astype(np.int64)
        return lanes


def _pair(
    trace: Trace, work: DeviceWork, group: Ints, reason: npt.NDArray[np.int8], options: PairOptions
) -> ContentionPairs:
    """Return the pairs among the kernels that have no reason yet to be left out."""
    near = Neighbors.of(work, options.min_gap_ns)
    reason = _by_overlap(work, near, reason, options)
    excluded = {name: int((reason == code).sum()) for name, code in _CODE.items()}
    launches = _candidates(trace, work, group, reason)
    for name, chosen in (("warm-up", _warm_up), ("first touch", _first_touch)):
        dropped = chosen(launches, options)
        excluded[name], launches = int(dropped.sum()), launches.select(~dropped)
    launches, is_split = _split_by_device(launches, options)
    times = _GroupTimes.of(launches, is_split, options)
    status = times.status[launches.group]
    for name, code in _CODE.items():
        excluded[name] += int((status == code).sum())
    used = launches.select(status == _UNDECIDED)
    alone_ns = _alone_times(used, times.alone_ns, options.min_alone)
    noise, noise_mean = _errors(used.duration_ns[used.is_alone], alone_ns[used.is_alone])
    order = np.lexsort((work.id[used.row], used.start_ns, used.device))
    order = order[~used.is_alone[order]]
    pairs, partner = used.select(order), near.partner[used.row[order]]
    in_table = np.flatnonzero(times.n_overlapped)
    partner_row, partners = _partner_table(trace, work, partner)
    return ContentionPairs(
        event=work.id[pairs.row],
        rank=work.rank[pairs.row],
        iteration=pairs.iteration,
        group=np.searchsorted(in_table, pairs.group),
        duration_ns=pairs.duration_ns,
        alone_ns=alone_ns[order],
        partner=partner_row,
        partner_event=work.id[partner],
        partner_share=near.partner_ns[pairs.row] / pairs.duration_ns,
        groups=_group_table(trace, work, launches, times),
        partners=partners,
        excluded=MappingProxyType({name: count for name, count in excluded.items() if count}),
        launches=work.kernels,
        alone=int(used.is_alone.sum()),
        noise=noise,
        noise_mean=noise_mean,
        resolution_ns=_resolution(trace),
        confounded="",
    )


def _errors(measured: Floats, predicted: Floats) -> tuple[float, float]:
    """Return the relative errors of predicted times: median, and mean weighted by time; NaN without any."""
    if not len(measured):
        return float("nan"), float("nan")
    differences = np.abs(measured - predicted)
    return float(np.median(differences / predicted)), float(differences.sum() / predicted.sum())


def _resolution(trace: Trace) -> int:
    """Return the largest step that all times of kernels are multiples of; 0 without kernels."""
    start, duration = (integers(trace.kernels, name) for name in ("start_ns", "dur_ns"))
    return int(np.gcd(np.gcd.reduce(start), np.gcd.reduce(duration[duration > 0], initial=0)))


def _by_overlap(
    work: DeviceWork, near: Neighbors, reason: npt.NDArray[np.int8], options: PairOptions
) -> npt.NDArray[np.int8]:
    """Return why each kernel is left out by its overlap, or that it is alone or overlapped."""
    count, undecided = work.kernels, reason == _UNDECIDED
    duration, beside = (work.end_ns - work.start_ns)[:count], near.beside_ns[:count]
    overlapped = beside >= options.min_overlap * duration
    by_overlap = np.where(beside > 0, _CODE["partly overlapped"], _ALONE)
    by_overlap = np.where((beside == 0) & near.is_close[:count], _CODE["close neighbor"], by_overlap)
    by_overlap = np.where(overlapped, _OVERLAPPED, by_overlap)
    by_overlap = np.where(duration <= 0, _CODE["no duration"], by_overlap)
    return np.where(undecided, by_overlap, reason).astype(np.int8)


def _candidates(trace: Trace, work: DeviceWork, group: Ints, reason: npt.NDArray[np.int8]) -> _Launches:
    """Return the alone and the overlapped launches, their groups numbered from 0."""
    row = np.flatnonzero((reason == _ALONE) | (reason == _OVERLAPPED))
    groups = np.unique(group[row], return_inverse=True)[1].astype(np.int64)
    iteration, start = integers_or_missing(trace.kernels, "iteration")[row], work.start_ns[row]
    duration = (work.end_ns[row] - start).astype(np.float64)
    return _Launches(row, groups, work.device[row], iteration, start, duration, reason[row] == _ALONE)


def _quantiles(key: Ints, values: Floats, count: int, shares: Sequence[float]) -> list[Floats]:
    """Return quantiles of the values of each key below `count`; NaN for a key without values."""
    if not len(values):
        return [np.full(count, np.nan) for _ in shares]
    order = np.lexsort((values, key))
    ordered, numbers = values[order], np.bincount(key, minlength=count)
    first, last = np.cumsum(numbers) - numbers, np.maximum(numbers - 1, 0)
    result = []
    for share in shares:
        low = np.floor(share * last).astype(np.int64)
        below, above = (ordered[np.minimum(first + at, len(ordered) - 1)] for at in (low, np.minimum(low + 1, last)))
        result.append(np.where(numbers > 0, below + (share * last - low) * (above - below), np.nan))
    return result


def _warm_up(launches: _Launches, options: PairOptions) -> Bools:
    """Return the launches of first iterations whose alone launches take another time than those of their groups."""
    alone = launches.select(launches.is_alone & (launches.iteration != MISSING))
    (median,) = _quantiles(alone.group, alone.duration_ns, launches.groups, [0.5])
    step = np.stack([alone.device, alone.iteration])
    steps, of_step = np.unique(step, axis=1, return_inverse=True)
    measured = np.bincount(of_step, alone.duration_ns, minlength=steps.shape[1])
    ratio = measured / np.bincount(of_step, median[alone.group], minlength=steps.shape[1])
    dropped = np.zeros(len(launches.row), bool)
    # A Python loop over devices, 20 us for each.
    for device in np.unique(steps[0]):
        of_device = np.flatnonzero(steps[0] == device)
        differs = np.abs(ratio[of_device] / np.median(ratio[of_device]) - 1) > _AGREEMENT
        leading = min(int(np.argmin(np.append(differs, False))), _WARM_UPS, max(len(of_device) - 2, 0))
        warm = steps[1][of_device[:leading]]
        dropped |= (launches.device == device) & np.isin(launches.iteration, warm) if leading else False
    return dropped


def _first_touch(launches: _Launches, options: PairOptions) -> Bools:
    """Return the first launches of a group on a device that took longer than the later ones, alone or overlapped."""
    lane, key = launches.lane, 2 * launches.lane + launches.is_alone
    order = np.lexsort((launches.row, launches.start_ns, lane))
    first = np.zeros(len(order), bool)
    first[order[np.flatnonzero(np.diff(lane[order], prepend=-1))]] = True
    later = launches.select(~first)
    (median,) = _quantiles(key[~first], later.duration_ns, int(key.max(initial=-1)) + 1, [0.5])
    return first & (launches.duration_ns > (1 + options.max_scatter) * median[key])


def _split_by_device(launches: _Launches, options: PairOptions) -> tuple[_Launches, Bools]:
    """Return the launches with the groups split whose alone launches differ between devices, and which are split."""
    lane, count = launches.lane, launches.groups
    lanes = int(lane.max(initial=-1)) + 1
    (median,) = _quantiles(lane[launches.is_alone], launches.duration_ns[launches.is_alone], lanes, [0.5])
    enough = np.bincount(lane[launches.is_alone], minlength=lanes) >= options.min_alone
    group_of = np.zeros(lanes, np.int64)
    group_of[lane] = launches.group
    least, most = np.full(count, np.inf), np.zeros(count)
    np.minimum.at(least, group_of[enough], median[enough])
    np.maximum.at(most, group_of[enough], median[enough])
    differs = (most > (1 + _AGREEMENT) * least)[launches.group]
    split = np.unique(np.where(differs, count + lane, launches.group), return_inverse=True)[1]
    is_split = np.zeros(int(split.max(initial=-1)) + 1, bool)
    is_split[split] = differs
    return replace(launches, group=split.astype(np.int64)), is_split


@dataclass(frozen=True)
class _GroupTimes:
    """Times of the launches of each group.

    Parameters
    ----------
    n_alone, n_overlapped : array of int64
        Number of alone and of overlapped launches.
    alone_ns, alone_scatter, overlapped_ns : array of float64
        Median time alone, half of the range of the central 80 % over it, and median time overlapped.
    status : array of int8
        Why the group is not used, as an index into `REASONS`, or `_UNDECIDED`.
    is_split : array of bool
        Whether the group is of one device, since devices differ.
    """

    n_alone: Ints
    n_overlapped: Ints
    alone_ns: Floats
    alone_scatter: Floats
    overlapped_ns: Floats
    status: npt.NDArray[np.int8]
    is_split: Bools

    @classmethod
    def of(cls, launches: _Launches, is_split: Bools, options: PairOptions) -> "_GroupTimes":
        """Measure the groups and judge whether they can be used."""
        count, alone = launches.groups, launches.is_alone
        group, times = launches.group, launches.duration_ns
        n_alone, n_overlapped = (np.bincount(group[rows], minlength=count) for rows in (alone, ~alone))
        low, median, high = _quantiles(group[alone], times[alone], count, (0.1, 0.5, 0.9))
        (overlapped,) = _quantiles(group[~alone], times[~alone], count, (0.5,))
        scatter = (high - low) / 2 / median
        few: Ints = np.where(is_split, _CODE["ranks differ"], _CODE["too few alone"])
        cases = [n_overlapped == 0, n_alone == 0, n_alone < options.min_alone, scatter > options.max_scatter]
        whole = (_CODE[name] * np.ones(count, np.int64) for name in ("never overlapped", "never alone"))
        codes = [*whole, few, np.full(count, _CODE["scattered alone"])]
        status = np.select(cases, codes, _UNDECIDED).astype(np.int8)
        return cls(n_alone, n_overlapped, median, scatter, overlapped, status, is_split)


def _alone_times(launches: _Launches, pooled_ns: Floats, least: int) -> Floats:
    """Return the time alone of each launch: the median of the other alone launches nearest in time on its device.

    With fewer than `least` of them on the device it is the median of the group on all devices.
    """
    lane, alone = launches.lane, launches.is_alone
    order = np.lexsort((launches.row, launches.start_ns, lane))
    counts = np.bincount(lane[alone], minlength=int(lane.max(initial=-1)) + 1)
    values = launches.duration_ns[order[alone[order]]]
    before = np.empty(len(order), np.int64)
    before[order] = np.cumsum(alone[order]) - alone[order]
    last = np.cumsum(counts)[lane]
    first, width = last - counts[lane], _NEAREST + alone
    low = np.clip(before - _NEAREST // 2, first, np.maximum(last - width, first))
    high, result = np.minimum(low + width, last), pooled_ns[launches.group]
    for rows in row_slices(len(order)):
        here = np.flatnonzero(counts[lane[rows]] >= least) + rows.start
        result[here] = _window_medians(values, low[here], high[here], np.where(alone[here], before[here], -1))
    return result


def _window_medians(values: Floats, low: Ints, high: Ints, without: Ints) -> Floats:
    """Return the median of the values in rows `low` to `high` except one; -1 leaves none out."""
    row = low[:, None] + np.arange(_NEAREST + 1)
    counts = (row < high[:, None]) & (row != without[:, None])
    block = np.where(counts, values[np.minimum(row, len(values) - 1)], np.inf)
    block.sort(axis=1)
    number, line = counts.sum(axis=1), np.arange(len(low))
    medians: Floats = (block[line, (number - 1) // 2] + block[line, number // 2]) / 2
    return medians


def _rows_of(trace: Trace, kind: str, ids: Ints) -> Ints:
    """Return the rows of events of a kind by their ids; -1 for an id that the kind lacks."""
    keys = integers(trace.tables[kind], "id")
    rows = lookup(keys, np.arange(len(keys)), ids)
    return np.where(rows == MISSING, -1, rows)


def _taken(table: pa.Table, column: str, rows: Ints) -> Ints:
    """Return rows of an integer column; `MISSING` for row -1."""
    return np.append(integers_or_missing(table, column), MISSING)[rows]


def _texts(table: pa.Table, column: str, rows: Ints) -> pa.Array:
    """Return rows of a text column; null for row -1."""
    if column not in table.schema.names:
        return pa.nulls(len(rows), pa.string())
    taken = table[column].take(arrow_array(rows, rows < 0))
    return taken.cast(pa.string()).combine_chunks()


@dataclass(frozen=True)
class _Source:
    """Rows of the tables that tell kernels and copies apart; -1 where there is none.

    Parameters
    ----------
    kernel, copy, collective, op : array of int64
        Row of the kernel, the copy, the collective of the kernel, and its operator.
    """

    kernel: Ints
    copy: Ints
    collective: Ints
    op: Ints

    @classmethod
    def of(cls, trace: Trace, rows: Ints) -> "_Source":
        """Find the rows for rows of a `DeviceWork`."""
        count = trace.kernels.num_rows
        kernel, copy = np.where(rows < count, rows, -1), np.where(rows < count, -1, rows - count)
        collective, op = (_taken(trace.kernels, column, kernel) for column in ("collective_id", "op_id"))
        return cls(kernel, copy, _rows_of(trace, "collectives", collective), _rows_of(trace, "ops", op))


def _group_table(trace: Trace, work: DeviceWork, launches: _Launches, times: _GroupTimes) -> pa.Table:
    """Return the groups with overlapped launches."""
    shown = np.flatnonzero(times.n_overlapped)
    first = np.zeros(launches.groups, np.int64)
    first[launches.group[::-1]] = np.arange(len(launches.row))[::-1]
    row = launches.row[first[shown]]
    source = _Source.of(trace, row)
    rank = np.where(times.is_split[shown], work.rank[row], MISSING)
    numbers = {column: _taken(trace.kernels, column, source.kernel) for column in _GRID}
    numbers |= {column: _taken(trace.collectives, column, source.collective) for column in ("bytes", "group_size")}
    numbers |= {"rank": rank, "n_alone": times.n_alone[shown], "n_overlapped": times.n_overlapped[shown]}
    columns: dict[str, Any] = {name: arrow_array(values, values == MISSING) for name, values in numbers.items()}
    columns |= {
        "name": text_array(work.names[work.name[row]].tolist()),
        "class": text_array(work.classes[work.name[row]].tolist()),
    }
    columns |= {"device": text_array(work.models[work.device[row]].tolist())}
    columns |= {column: _texts(trace.ops, column, source.op) for column in ("shapes", "dtypes")}
    columns |= {"collective": _texts(trace.collectives, "collective", source.collective)}
    measured = {column: getattr(times, column)[shown] for column in ("alone_ns", "alone_scatter", "overlapped_ns")}
    measured["ratio"] = measured["overlapped_ns"] / measured["alone_ns"]
    columns |= {name: arrow_array(values, np.isnan(values)) for name, values in measured.items()}
    reasons = [*REASONS, USED]
    columns["status"] = text_array([reasons[code] for code in times.status[shown]])
    return pa.table({name: columns[name] for name in GROUP_COLUMNS})


def _partner_table(trace: Trace, work: DeviceWork, partner: Ints) -> tuple[Ints, pa.Table]:
    """Return the row of each partner in the table of partners, and the table."""
    rows, of_row = np.unique(partner, return_inverse=True)
    source = _Source.of(trace, rows)
    numbers = {column: _taken(trace.kernels, column, source.kernel) for column in _GRID}
    carried = _taken(trace.copies, "bytes", source.copy)
    carried = np.where(source.copy < 0, _taken(trace.collectives, "bytes", source.collective), carried)
    numbers["bytes"] = np.where(carried > 0, 1 << (np.frexp(np.maximum(carried, 1))[1].astype(np.int64) - 1), carried)
    collective = np.append(encode_text(trace.collectives["collective"])[0], -1)[source.collective]
    codes, first = combinations(np.stack([work.name[rows], collective, *numbers.values()]))
    name, source = work.name[rows[first]], _Source.of(trace, rows[first])
    communicates = np.append(work.is_collective, False)[source.kernel]
    kind = np.where(source.copy >= 0, "copy", np.where(communicates, "collective", "kernel"))
    columns: dict[str, Any] = {key: arrow_array(n[first], n[first] == MISSING) for key, n in numbers.items()}
    columns |= {"name": text_array(work.names[name].tolist()), "class": text_array(work.classes[name].tolist())}
    columns |= {"kind": text_array(kind.tolist()), "n": arrow_array(np.bincount(codes[of_row], minlength=len(first)))}
    columns["collective"] = _texts(trace.collectives, "collective", source.collective)
    table = pa.table({key: columns[key] for key in PARTNER_COLUMNS})
    return codes[of_row].astype(np.int64), table
