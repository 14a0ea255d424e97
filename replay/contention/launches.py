"""Launches of kernels: what runs beside them, and the alone launches that they are compared with.

`DeviceEvents` has the kernels and copies of a trace as columns, and `Neighbors` the work beside each of them.
`CandidateLaunches` are the launches that are alone or overlapped, with their group. `is_warm_up`, `is_first_touch` and
`split_groups` look for differences that are not contention, and `LaunchTimes` judges which launches can be used.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from profilers.errors import InvalidInputError
from profilers.trace.arrays import MISSING, Bools, Floats, Ints, encode_text, ends, integers_or_missing
from profilers.trace.columns import combinations
from profilers.trace.compiled import compiled
from profilers.trace.kernels import COLLECTIVE
from profilers.trace.trace import Trace

#: Reasons for which a kernel launch is in no pair:
#:
#: - communication: the kernel is a collective, whose time depends on other ranks; `collective_pairs` has these.
#: - computation: the kernel is no collective; `measure_pairs` has these.
#: - unknown wait: it is not known when the last rank started the collective, so its wait cannot be taken out.
#: - no duration: the launch has no duration, or one of 0 ns.
#: - partly overlapped: other work is beside the launch, but not for almost all of its time.
#: - close neighbor: nothing is beside the launch, but work of another stream is less than the least gap away.
#: - warm-up: the launch is of a first iteration whose alone launches take another time than later ones.
#: - first touch: the first launch of its group on its device took longer than the others.
#: - never overlapped: the launch is alone, and so are all others of its group.
#: - never alone: the launch is overlapped, and no launch of its group is alone.
#: - too few alone: the group has alone launches, but too few.
#: - ranks differ: times alone differ between ranks or iterations, and there are too few alone on this one.
#: - scattered alone: the times of the alone launches of the group differ too much.
#: - positions differ: no launch at this position is alone, and times alone differ between positions.
#: - unknown operands: no launch at this position is alone, and launches at others may have other operands.
REASONS = (
    "communication", "computation", "unknown wait", "no duration", "partly overlapped", "close neighbor",
    "warm-up", "first touch", "never overlapped", "never alone", "too few alone", "ranks differ",
    "scattered alone", "positions differ", "unknown operands",
)  # fmt: skip
#: Numbers of the reasons; an undecided launch has none yet, and a launch in use is undecided to the end.
CODE: Mapping[str, int] = MappingProxyType({reason: number for number, reason in enumerate(REASONS)})
UNDECIDED, ALONE, OVERLAPPED = -1, -2, -3
#: Ranks and iterations that differ by more are not pooled, and first iterations that differ by more are warm-up.
_AGREEMENT = 0.1
#: Most first iterations that can be warm-up.
_WARM_UPS = 3
#: Most kernels and copies of a device that are followed at a time; devices run up to 128 kernels at once.
_RESIDENT = 128


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
        Largest scatter of alone launches: half of the range of the central 80 % of their times, over the median of
        the launches that they are compared with.
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
        if not self.max_scatter > 0:
            raise InvalidInputError(f"max_scatter is {self.max_scatter:g}; it must be above 0")
        if self.min_gap_ns < 0:
            raise InvalidInputError(f"min_gap_ns is {self.min_gap_ns}; it must be 0 or more")


@dataclass(frozen=True)
class DeviceEvents:
    """Kernels, then copies, of all devices of a trace: columns of equal length.

    Parameters
    ----------
    id, rank, stream, start_ns, end_ns : array of int64
        Columns of the trace, `MISSING` for null.
    name : array of int64
        Code of the name, an index into `names`.
    device : array of int64
        A number for each device of each rank, in order of rank and device.
    names, classes : array of str
        Names, and their classes; a copy has the class ``""``.
    models : array of str
        Name of each device; empty if unknown.
    is_collective : array of bool
        Whether a kernel is a collective, by its class or because the profiler says so; a row for each kernel.
    """

    id: Ints
    rank: Ints
    stream: Ints
    start_ns: Ints
    end_ns: Ints
    name: Ints
    device: Ints
    names: npt.NDArray[np.object_]
    classes: npt.NDArray[np.object_]
    models: npt.NDArray[np.str_]
    is_collective: Bools

    @classmethod
    def of(cls, trace: Trace) -> "DeviceEvents":
        """Read the columns of a trace."""
        tables = (trace.kernels, trace.copies)
        columns = ("id", "rank", "stream", "start_ns", "device")
        id_, rank, stream, start, device = (
            np.concatenate([integers_or_missing(table, column) for table in tables]) for column in columns
        )
        end = np.concatenate([ends(table) for table in tables])
        (code, names), (of_copy, copies) = (encode_text(table["name"]) for table in tables)
        classes = np.array([*(trace.meta.class_of(name) for name in names), *("" for _ in copies)], object)
        communicates = np.append(classes == COLLECTIVE, False)[code]
        communicates |= integers_or_missing(trace.kernels, "collective_id") != MISSING
        number, firsts = _numbered(rank, device)
        known = {(each.rank, each.device): each.name for each in trace.meta.devices}
        models = np.array([known.get((int(rank[row]), int(device[row])), "") for row in firsts], np.str_)
        name = np.concatenate([code, of_copy + len(names)])
        return cls(
            *(id_, rank, stream, start, end, name, number),
            *(np.concatenate([names, copies]), classes, models, communicates),
        )

    @property
    def kernels(self) -> int:
        """Number of kernels."""
        return len(self.is_collective)


def _numbered(rank: Ints, device: Ints) -> tuple[Ints, Ints]:
    """Return a number for each device of each rank, in order of both, and the first row of each."""
    codes, firsts = combinations(np.stack([rank, device]))
    order = np.lexsort((device[firsts], rank[firsts]))
    number = np.empty(len(order), np.int64)
    number[order] = np.arange(len(order))
    return number[codes], firsts[order]


@dataclass(frozen=True)
class Neighbors:
    """What runs beside each kernel and copy of its device.

    Parameters
    ----------
    order : array of int64
        Rows in order of device, start and id.
    beside_ns : array of int64
        Time with other work beside it.
    partner : array of int64
        Row of the work that is beside it for the longest time, or -1.
    partner_ns : array of int64
        That time.
    is_close : array of bool
        Whether work of another stream is beside it, or less than the least gap away.
    """

    order: Ints
    beside_ns: Ints
    partner: Ints
    partner_ns: Ints
    is_close: Bools

    @classmethod
    def of(cls, events: DeviceEvents, gap_ns: int) -> "Neighbors":
        """Follow the work of each device in order of time."""
        order = np.lexsort((events.id, events.start_ns, events.device))
        columns = [column[order] for column in (events.device, events.stream, events.start_ns, events.end_ns)]
        beside, partner, partner_ns, close = _follow(*columns, gap_ns)
        partner = np.where(partner < 0, -1, order[partner])
        row = np.empty(len(order), np.int64)
        row[order] = np.arange(len(order))
        return cls(order, beside[row], partner[row], partner_ns[row], close[row])


@compiled
def _follow(device, stream, start, end, gap):  # type: ignore[no-untyped-def]
    """Return what `Neighbors` holds, for work in order of device and start."""
    count = len(start)
    beside, partner, longest = np.zeros(count, np.int64), np.full(count, -1), np.zeros(count, np.int64)
    close, covered = np.zeros(count, np.bool_), start.copy()
    active, resident, far = np.empty(_RESIDENT, np.int64), 0, 4 * 10**18
    latest, latest_stream, second = -far, np.int64(0), -far
    for i in range(count):
        if i == 0 or device[i] != device[i - 1]:
            resident, latest, second, latest_stream = 0, -far, -far, stream[i]
        kept = 0
        for k in range(resident):
            if end[active[k]] > start[i]:
                active[kept] = active[k]
                kept += 1
        resident, reach = kept, start[i]
        for k in range(resident):
            j = active[k]
            last = min(end[i], end[j])
            shared = last - start[i]
            reach = max(reach, last)
            if shared > longest[i]:
                longest[i], partner[i] = shared, j
            if shared > longest[j]:
                longest[j], partner[j] = shared, i
            beside[j] += max(last - max(covered[j], start[i]), 0)
            covered[j] = max(covered[j], last)
        beside[i], covered[i] = reach - start[i], reach
        close[i] = (second if stream[i] == latest_stream else latest) > start[i] - gap
        if stream[i] == latest_stream:
            latest = max(latest, end[i])
        elif end[i] > latest:
            latest, second, latest_stream = end[i], latest, stream[i]
        else:
            second = max(second, end[i])
        if end[i] > start[i]:
            if resident == _RESIDENT:
                resident -= 1
                soonest = np.argmin(end[active])
                active[soonest] = active[resident]
            active[resident] = i
            resident += 1
    nearest, nearest_stream, second = far, np.int64(0), far
    for i in range(count - 1, -1, -1):
        if i == count - 1 or device[i] != device[i + 1]:
            nearest, second, nearest_stream = far, far, stream[i]
        close[i] |= (second if stream[i] == nearest_stream else nearest) < end[i] + gap
        if stream[i] != nearest_stream:
            second, nearest_stream = nearest, stream[i]
        nearest = start[i]
    return beside, partner, longest, close


def ordinals(key: Ints, order: Ints) -> tuple[Ints, Ints]:
    """Return how many rows of the same key come before each row, and how many rows have its key.

    Parameters
    ----------
    key : array of int64
        Keys from 0.
    order : array of int64
        All rows, in the order in which they count.

    Examples
    --------
    >>> before, rows = ordinals(np.array([0, 1, 0, 0]), np.array([3, 0, 1, 2]))
    >>> before.tolist(), rows.tolist()
    ([1, 0, 2, 0], [3, 1, 3, 3])
    """
    numbers, before = np.bincount(key), np.empty(len(key), np.int64)
    rows = _by_key(key, order)
    before[rows] = np.arange(len(rows)) - (np.cumsum(numbers) - numbers)[key[rows]]
    return before, numbers[key]


@dataclass(frozen=True)
class CandidateLaunches:
    """Alone and overlapped launches: columns of equal length.

    Parameters
    ----------
    row : array of int64
        Row of the kernel.
    group, device, iteration, start_ns : array of int64
        Group and device of the launch, its iteration and its start.
    duration_ns : array of float64
        Its time.
    position : array of int64
        Code of its position, or -1.
    is_alone, comparable : array of bool
        Whether it is alone, and whether launches at other positions have the same operands.
    """

    row: Ints
    group: Ints
    device: Ints
    iteration: Ints
    start_ns: Ints
    duration_ns: Floats
    position: Ints
    is_alone: Bools
    comparable: Bools

    def select(self, rows: Bools | Ints) -> "CandidateLaunches":
        """Return the launches in `rows`."""
        return CandidateLaunches(**{name: column[rows] for name, column in vars(self).items()})

    @property
    def groups(self) -> int:
        """Number of groups."""
        return int(self.group.max()) + 1 if len(self.group) else 0

    def lane(self, column: Ints) -> Ints:
        """Return the number of each combination of group and `column`, from 0."""
        codes: Ints = combinations(np.stack([self.group, column]))[0].astype(np.int64)
        return codes


def _by_key(key: Ints, rows: Ints) -> Ints:
    """Return rows in order of their key; rows of one key keep their order."""
    return rows[np.argsort(key[rows], kind="stable")]


def quantiles(key: Ints, values: Floats, count: int, shares: Sequence[float]) -> list[Floats]:
    """Return quantiles of the values of each key below `count`; NaN for a key without values."""
    if not len(values):
        return [np.full(count, np.nan) for _ in shares]
    numbers = np.bincount(key, minlength=count)
    ordered = values[_by_key(key, np.argsort(values))]
    first, last = np.cumsum(numbers) - numbers, np.maximum(numbers - 1, 0)
    result = []
    for share in shares:
        low = np.floor(share * last).astype(np.int64)
        below, above = (ordered[np.minimum(first + at, len(ordered) - 1)] for at in (low, np.minimum(low + 1, last)))
        result.append(np.where(numbers > 0, below + (share * last - low) * (above - below), np.nan))
    return result


def _medians(key: Ints, values: Floats, members: Bools, left_out: Bools) -> tuple[Floats, Ints]:
    """Return for each row the median of the members of its key, NaN without any, and the number of members.

    Parameters
    ----------
    key : array of int64
        Keys from 0, or -1 for a row without a key.
    values : array of float64
        Values.
    members : array of bool
        Rows whose values count.
    left_out : array of bool
        Members whose own value does not count for themselves.
    """
    rows = np.flatnonzero(members & (key >= 0))
    numbers = np.bincount(key[rows], minlength=int(key.max(initial=0)) + 1)
    rows = _by_key(key, rows[np.argsort(values[rows])])
    ordered, ahead = np.append(values[rows], np.nan), np.cumsum(numbers) - numbers
    within = np.zeros(len(key), np.int64)
    within[rows] = np.arange(len(rows)) - ahead[key[rows]]
    count: Ints = np.where(key >= 0, numbers[key] - left_out, 0)
    middle = []
    for at in ((count - 1) // 2, count // 2):
        at = at + (left_out & (at >= within))
        middle.append(ordered[np.where(count > 0, ahead[key] + at, len(rows))])
    return (middle[0] + middle[1]) / 2, count


@dataclass(frozen=True)
class AloneTimes:
    """Times alone of launches: columns of equal length.

    Parameters
    ----------
    median_ns : array of float64
        Median of the alone launches that the launch is compared with; NaN without any.
    number : array of int64
        Number of those.
    same_position : array of bool
        Whether they are at the position of the launch; otherwise they are of its group.
    """

    median_ns: Floats
    number: Ints
    same_position: Bools


def alone_times(launches: CandidateLaunches, left_out: Bools) -> AloneTimes:
    """Return the time alone of each launch.

    Parameters
    ----------
    launches : CandidateLaunches
        Alone and overlapped launches.
    left_out : array of bool
        Alone launches whose own time does not count for themselves.
    """
    position = np.where(launches.position >= 0, launches.lane(launches.position), -1)
    by_position, here = _medians(position, launches.duration_ns, launches.is_alone, left_out)
    comparable = np.where(launches.comparable, launches.group, -1)
    by_group, anywhere = _medians(comparable, launches.duration_ns, launches.is_alone, left_out)
    same = here > 0
    return AloneTimes(np.where(same, by_position, by_group), np.where(same, here, anywhere), same)


def _relative(launches: CandidateLaunches) -> Floats:
    """Return the duration of each launch over its time alone."""
    return launches.duration_ns / alone_times(launches, np.zeros(len(launches.row), bool)).median_ns


def is_warm_up(launches: CandidateLaunches) -> Bools:
    """Return the launches of first iterations whose alone launches take another time than in later ones."""
    relative = _relative(launches)
    codes, firsts = combinations(np.stack([launches.device, launches.iteration]))
    rows = launches.is_alone & (launches.iteration != MISSING) & ~np.isnan(relative)
    measured, expected = (
        np.bincount(codes[rows], times[rows], minlength=len(firsts))
        for times in (launches.duration_ns, launches.duration_ns / relative)
    )
    steps = np.flatnonzero(expected)
    device, iteration = launches.device[firsts[steps]], launches.iteration[firsts[steps]]
    steps, device = steps[order := np.lexsort((iteration, device))], device[order]
    warm = np.zeros(len(firsts), bool)
    # A Python loop over devices, 20 us for each.
    for of_device in np.split(steps, np.flatnonzero(np.diff(device)) + 1):
        ratio = measured[of_device] / expected[of_device]
        differs = np.abs(ratio - np.median(ratio)) > _AGREEMENT * np.median(ratio) if len(ratio) else ratio > 0
        leading = min(int(np.argmin(np.append(differs, False))), _WARM_UPS, max(len(of_device) - 2, 0))
        warm[of_device[:leading]] = True
    return warm[codes]


def is_first_touch(launches: CandidateLaunches, options: PairOptions) -> Bools:
    """Return the first launches of a group on a device that took longer than the later ones, alone or overlapped.

    Overlapped launches count only if first launches that are alone take longer in most groups, since contention may
    slow them too.
    """
    lane, relative = launches.lane(launches.device), _relative(launches)
    latest = np.argsort(launches.start_ns, kind="stable")[::-1]
    earliest = np.zeros(int(lane.max(initial=-1)) + 1, np.int64)
    earliest[lane[latest]] = latest
    first = np.zeros(len(lane), bool)
    first[earliest] = True
    known = ~np.isnan(relative)
    later, _ = _medians(2 * lane + launches.is_alone, relative, ~first & known, np.zeros(len(first), bool))
    slow = first & (relative > (1 + options.max_scatter) * later)
    usual = relative[first & known & launches.is_alone]
    return slow & (launches.is_alone | (len(usual) > 0 and float(np.median(usual)) > 1 + _AGREEMENT))


def split_groups(launches: CandidateLaunches, column: Ints, options: PairOptions) -> tuple[CandidateLaunches, Bools]:
    """Return the launches with groups split by a column if that halves the errors of alone times, and those split."""
    split = replace(launches, group=launches.lane(column))
    times = launches.duration_ns
    pooled, apart = (np.abs(times / alone_times(each, each.is_alone).median_ns - 1) for each in (launches, split))
    rows = launches.is_alone & ~np.isnan(apart)
    group, count = launches.group[rows], launches.groups
    number = np.bincount(group, minlength=count)
    before, after = (np.bincount(group, error[rows], minlength=count) for error in (pooled, apart))
    differs = (before > _AGREEMENT / 2 * number) & (after < before / 2) & (number >= options.min_alone)
    of_launch = differs[launches.group]
    group = np.unique(np.where(of_launch, count + split.group, launches.group), return_inverse=True)[1]
    return replace(launches, group=group.astype(np.int64)), of_launch


@dataclass(frozen=True)
class LaunchTimes:
    """Times of launches and of their groups.

    Parameters
    ----------
    alone : AloneTimes
        Times alone of the launches.
    status : array of int8
        Why each launch is not used, as an index into `REASONS`, or `UNDECIDED`.
    n_alone, n_overlapped : array of int64
        Number of alone launches of each group, and of overlapped launches that are used, or of all if none is.
    group_ns, group_scatter, overlapped_ns, ratio : array of float64
        Median time alone of each group, scatter, median time overlapped, and median of times over those alone.
    group_status : array of int8
        Why each group is not used, as an index into `REASONS`, or `UNDECIDED`.
    """

    alone: AloneTimes
    status: npt.NDArray[np.int8]
    n_alone: Ints
    n_overlapped: Ints
    group_ns: Floats
    group_scatter: Floats
    overlapped_ns: Floats
    ratio: Floats
    group_status: npt.NDArray[np.int8]

    @classmethod
    def of(cls, launches: CandidateLaunches, is_split: Bools, options: PairOptions) -> "LaunchTimes":
        """Measure the groups and judge which launches can be used."""
        count, alone, group, times = launches.groups, launches.is_alone, launches.group, launches.duration_ns
        compared = alone_times(launches, alone)
        alone_ns = compared.median_ns
        known = alone & ~np.isnan(alone_ns)
        n_alone, n_known, n_overlapped = (np.bincount(group[rows], minlength=count) for rows in (alone, known, ~alone))
        low, high = quantiles(group[known], (times / alone_ns)[known], count, (0.1, 0.9))
        scatter = (high - low) / 2
        few, never = np.full(count, CODE["too few alone"]), np.full(count, CODE["never alone"])
        few[group[is_split]] = never[group[is_split]] = CODE["ranks differ"]
        cases = [n_overlapped == 0, n_alone == 0, n_known < options.min_alone, scatter > options.max_scatter]
        useless, scattered = (np.full(count, CODE[name]) for name in ("never overlapped", "scattered alone"))
        judged = np.select(cases, [useless, never, few, scattered], UNDECIDED)
        low, median, high = quantiles(group[alone], times[alone], count, (0.1, 0.5, 0.9))
        spread = ((high - low) / 2 / median > options.max_scatter)[group] & ~compared.same_position
        by_launch = np.where(np.isnan(alone_ns), CODE["unknown operands"], CODE["positions differ"])
        by_launch = np.where(~alone & (np.isnan(alone_ns) | spread), by_launch, UNDECIDED)
        status = np.where(judged[group] == UNDECIDED, by_launch, judged[group])
        useful = np.bincount(group[~alone & (status == UNDECIDED)], minlength=count) > 0
        np.maximum.at(judged, group[~alone & ~useful[group]], status[~alone & ~useful[group]])
        status = np.where(alone, judged[group], status)
        shown = ~alone & (~useful[group] | (status == UNDECIDED))
        ratio = times / np.where(np.isnan(alone_ns), median[group], alone_ns)
        (overlapped_ns,) = quantiles(group[shown], times[shown], count, (0.5,))
        (ratio,) = quantiles(group[shown], ratio[shown], count, (0.5,))
        n_overlapped = np.bincount(group[shown], minlength=count)
        return cls(
            *(compared, status.astype(np.int8), n_alone, n_overlapped, median, scatter, overlapped_ns, ratio),
            judged.astype(np.int8),
        )
