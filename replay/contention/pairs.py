"""Contention measured in a trace: launches of the same kernel, alone on their device and beside other work.

`measure_pairs` puts launches of a kernel with the same grid and operands into a group. A launch with nothing beside it
is alone; a launch with other work beside it for almost all of its time is overlapped. An overlapped launch is compared
with the alone launches at its position: the same launch of its group in other iterations and on other ranks. If there
is none, it is compared with the alone launches of its group, provided that the operands are known.

Differences that are not contention are looked for: warm-up, first touch, scatter, ranks and iterations of another
speed. Launches without a pair are counted by reason.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from profilers.trace.activity import last_arrivals
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
from profilers.trace.columns import LaneNumbers, combinations, lookup, row_slices
from profilers.trace.trace import Trace
from replay.contention.launches import (
    ALONE,
    CODE,
    OVERLAPPED,
    REASONS,
    UNDECIDED,
    CandidateLaunches,
    DeviceEvents,
    LaunchTimes,
    Neighbors,
    PairOptions,
    is_first_touch,
    is_warm_up,
    ordinals,
    quantiles,
    split_groups,
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
    *("name", "class", "device", "rank", "iteration", "workgroups", "workgroup_size", "registers", "lds_bytes"),
    *("shapes", "dtypes", "collective", "bytes", "group_size", "n_alone", "n_overlapped"),
    *("alone_ns", "alone_scatter", "overlapped_ns", "ratio", "status"),
)
PARTNER_COLUMNS = (
    *("name", "kind", "class", "collective", "workgroups", "workgroup_size", "registers", "lds_bytes", "bytes", "n"),
)
USED = "used"
#: Least relative difference that makes a group faster or slower than alone, beside its scatter, and the share of the
#: overlapped time in faster groups above which a trace is confounded.
_MARGIN, _FASTER = 0.05, 0.1
#: Largest share of the time of a collective with work beside it on any rank, for it to be alone.
_PEER_SHARE = 0.05
#: Limits of `measure_pairs` and of `collective_pairs`.
KERNEL_OPTIONS = PairOptions()
COLLECTIVE_OPTIONS = PairOptions(min_overlap=0.5)


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
        Measured time, and median time of the alone launches that it is compared with.
    alone_n : array of int64
        Number of these alone launches.
    same_position : array of bool
        Whether they are at the same position of an iteration; otherwise they are all alone launches of the group.
    partner_event : array of int64
        Id of the kernel or copy that was beside the launch for the longest time.
    partner_share, beside_share : array of float64
        Share of the launch's time beside that kernel or copy, and beside any.
    groups : pyarrow.Table
        Groups with overlapped launches, used or not; columns of `GROUP_COLUMNS`. A rank or an iteration is given if
        times alone differ between them. The scatter is half of the range of the central 80 % of times alone, relative
        to the alone launches at the same position.
    partners : pyarrow.Table
        Kinds of work beside launches; columns of `PARTNER_COLUMNS`. Bytes are rounded down to a power of two.
    excluded : mapping of str to int
        Number of launches that are in no pair, by reason (`REASONS`).
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
    alone_n: Ints
    same_position: Bools
    partner: Ints
    partner_event: Ints
    partner_share: Floats
    beside_share: Floats
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


def measure_pairs(trace: Trace, options: PairOptions = KERNEL_OPTIONS) -> ContentionPairs:
    """Return the overlapped launches of a trace, each with its time alone.

    Parameters
    ----------
    trace : Trace
        The trace; columns other than `PAIR_COLUMNS` may be absent.
    options : PairOptions
        Limits for the launches.

    Examples
    --------
    A kernel takes 10 us alone, in three iterations, and 16 us in a fourth, beside a collective:

    >>> from profilers.trace import TraceMeta, make_table
    >>> columns = {"id": range(5), "rank": [0] * 5, "name": [*["gemm"] * 4, "ncclDevKernel"], "workgroups": [108] * 5}
    >>> columns |= {"stream": [7, 7, 7, 7, 20], "start_ns": [0, 20_000, 40_000, 60_000, 59_000]}
    >>> columns |= {"dur_ns": [10_000, 10_000, 10_000, 16_000, 30_000], "iteration": [0, 1, 2, 3, 3]}
    >>> pairs = measure_pairs(Trace(TraceMeta("kineto"), {"kernels": make_table("kernels", columns)}))
    >>> pairs.event.tolist(), pairs.slowdown.tolist(), dict(pairs.excluded)
    ([3], [1.6], {'communication': 1})
    """
    events, (operands, comparable) = DeviceEvents.of(trace), _operands(trace)
    near = Neighbors.of(events, options.min_gap_ns)
    group = _groups(trace, events, (operands, _within_operator(trace, near)))
    reason = np.where(events.is_collective, CODE["communication"], UNDECIDED).astype(np.int8)
    return _pair(
        trace, events, near, _PairChoice(group, comparable, _by_overlap(events, near, reason, options)), options
    )


def collective_pairs(trace: Trace, options: PairOptions = COLLECTIVE_OPTIONS) -> ContentionPairs:
    """Return the collectives of a trace that ran beside other work, each with its time alone.

    The time of a collective counts from when its last rank has started it, so waiting is taken out. What runs beside it
    on one rank slows it on all ranks. So it is overlapped if its ranks in the trace are so on average, and alone if
    none has work beside it for more than a twentieth of the time.

    Parameters
    ----------
    trace : Trace
        The trace; columns other than `PAIR_COLUMNS` may be absent.
    options : PairOptions
        Limits for the launches. By default a collective is overlapped from half of its time on, since computation
        beside it has gaps.
    """
    (events, rows), table = transfers(trace, DeviceEvents.of(trace)), trace.collectives
    row = _rows_of(trace, "collectives", integers_or_missing(trace.kernels, "collective_id"))
    near = Neighbors.of(events, options.min_gap_ns)
    known = [encode_text(table[name])[0] for name in ("collective", "dtype", "group_name")]
    known += [integers_or_missing(table, name) for name in ("bytes", "group_size")]
    group = _groups(trace, events, [np.append(column, MISSING)[row] for column in known])
    reason = np.where(events.is_collective, CODE["unknown wait"], CODE["computation"]).astype(np.int8)
    reason[rows] = _by_peers(events, near, (rows, _taken(table, "match_id", row[rows])), options)
    return _pair(trace, events, near, _PairChoice(group, _taken(table, "bytes", row) > 0, reason), options)


def transfers(trace: Trace, events: DeviceEvents) -> tuple[DeviceEvents, Ints]:
    """Return the events with collectives from the arrival of their last rank on, and the kernels with a known arrival.

    Parameters
    ----------
    trace : Trace
        The trace.
    events : DeviceEvents
        Its kernels and copies.
    """
    row = _rows_of(trace, "collectives", integers_or_missing(trace.kernels, "collective_id"))
    arrived = np.append(last_arrivals(trace), MISSING)[row]
    start = events.start_ns.copy()
    rows = np.flatnonzero(arrived != MISSING)
    start[rows] = np.clip(arrived[rows], start[rows], events.end_ns[rows])
    return replace(events, start_ns=start), rows


def _by_peers(
    events: DeviceEvents, near: Neighbors, rows: tuple[Ints, Ints], options: PairOptions
) -> npt.NDArray[np.int8]:
    """Return why collectives are left out by the overlap on all their ranks, or that they are alone or overlapped.

    Parameters
    ----------
    events : DeviceEvents
        Kernels and copies, collectives from the arrival of their last rank on.
    near : Neighbors
        What runs beside them.
    rows : tuple of array of int64
        Rows of the collectives, and the number that a collective has on all its ranks, or `MISSING`.
    options : PairOptions
        Limits for the launches.
    """
    row, match = rows
    duration, beside = events.end_ns[row] - events.start_ns[row], near.beside_ns[row]
    share = beside / np.maximum(duration, 1)
    peers = np.where(match == MISSING, -1 - np.arange(len(row)), match)
    peers = np.unique(peers, return_inverse=True)[1]
    mean = (np.bincount(peers, share) / np.bincount(peers))[peers] if len(row) else share
    most = np.zeros(len(row))
    np.maximum.at(most, peers, share)
    cases = [duration <= 0, most[peers] <= _PEER_SHARE, (mean >= options.min_overlap) & (beside > 0)]
    return np.select(cases, [CODE["no duration"], ALONE, OVERLAPPED], CODE["partly overlapped"]).astype(np.int8)


#: Columns of a kernel that are equal in a group.
_GRID = ("workgroups", "workgroup_size", "registers", "lds_bytes")


@dataclass(frozen=True)
class _PairChoice:
    """Kernels to pair: columns with a row for each kernel of the trace.

    Parameters
    ----------
    group : array of int64
        Number of the group.
    comparable : array of bool
        Whether launches at other positions have the same operands.
    reason : array of int8
        Why the kernel is left out, as an index into `REASONS`, or `ALONE` or `OVERLAPPED`.
    """

    group: Ints
    comparable: Bools
    reason: npt.NDArray[np.int8]


def _operands(trace: Trace) -> tuple[Ints, Bools]:
    """Return a code for the shapes and types of each kernel's operator, and whether the shapes tell a size."""
    ops, cause = trace.ops, integers_or_missing(trace.kernels, "op_id")
    if not {"shapes", "dtypes"} <= set(ops.schema.names) or not ops.num_rows:
        return np.full(len(cause), MISSING), np.zeros(len(cause), bool)
    (shapes, texts), (types, _) = (encode_text(ops[name]) for name in ("shapes", "dtypes"))
    sized = np.array([*(re.search(r"[0-9]", text) is not None for text in texts), False])
    row = _rows_of(trace, "ops", cause)
    codes: Ints = combinations(np.stack([shapes, types]))[0].astype(np.int64)
    return np.append(codes, MISSING)[row], np.append(sized[shapes], False)[row]


def _within_operator(trace: Trace, near: Neighbors) -> Ints:
    """Return how many kernels the operator of each kernel started before it; 0 for a kernel without an operator."""
    cause = integers_or_missing(trace.kernels, "op_id")
    codes = combinations(cause[None])[0].astype(np.int64)
    return np.where(cause == MISSING, 0, ordinals(codes, near.order[near.order < len(codes)])[0])


def _groups(trace: Trace, events: DeviceEvents, details: Sequence[Ints]) -> Ints:
    """Return a number for each kernel, equal for launches of one kernel with one grid and equal details.

    Launches of a node of a captured graph are a group of their own.
    """
    kernels, lanes = trace.kernels, LaneNumbers()
    model = np.unique(events.models, return_inverse=True)[1]
    number = np.empty(kernels.num_rows, np.int64)
    for rows in row_slices(kernels.num_rows):
        block = kernels.slice(rows.start, rows.stop - rows.start)
        grid = [integers_or_missing(block, column) for column in (*_GRID, "graph_node")]
        known = [column[rows] for column in (events.name, *details)]
        number[rows] = lanes.of([*known, model[events.device[rows]], *grid])
    return number


def _positions(trace: Trace, events: DeviceEvents, near: Neighbors, group: Ints) -> Ints:
    """Return a code for the group of each kernel and the number of launches of it before, in its iteration and device.

    The code is -1 without an iteration, and in iterations that launch the group another number of times than most.
    """
    iteration = integers_or_missing(trace.kernels, "iteration")
    step, firsts = combinations(np.stack([group, events.device[: events.kernels], iteration]))
    before, number = ordinals(step.astype(np.int64), near.order[near.order < events.kernels])
    groups = int(group.max(initial=-1)) + 1
    (usual,) = quantiles(group[firsts], number[firsts].astype(np.float64), groups, [0.5])
    codes = combinations(np.stack([group, before]))[0]
    return np.where((iteration != MISSING) & (number == usual[group]), codes, -1)


def _pair(
    trace: Trace, events: DeviceEvents, near: Neighbors, choice: _PairChoice, options: PairOptions
) -> ContentionPairs:
    """Return the pairs among the chosen kernels."""
    overlapped = np.zeros(int(choice.group.max(initial=-1)) + 1, bool)
    overlapped[choice.group[choice.reason == OVERLAPPED]] = True
    useless = (choice.reason == ALONE) & ~overlapped[choice.group]
    choice = replace(choice, reason=np.where(useless, np.int8(CODE["never overlapped"]), choice.reason))
    excluded = {name: int((choice.reason == code).sum()) for name, code in CODE.items()}
    launches = _candidates(trace, events, choice, _positions(trace, events, near, choice.group))
    for name, chosen in (("warm-up", is_warm_up), ("first touch", partial(is_first_touch, options=options))):
        dropped = chosen(launches)
        excluded[name], launches = int(dropped.sum()), launches.select(~dropped)
    launches, by_rank = split_groups(launches, launches.device, options)
    launches, by_iteration = split_groups(launches, launches.iteration, options)
    times = LaunchTimes.of(launches, by_rank | by_iteration, options)
    for name, code in CODE.items():
        excluded[name] += int((times.status == code).sum())
    used = times.status == UNDECIDED
    resolution, alone = _resolution(trace), launches.select(used & launches.is_alone)
    noise, noise_mean = _errors(alone.duration_ns, times.alone.median_ns[used & launches.is_alone], resolution)
    order = np.lexsort((events.id[launches.row], launches.start_ns, launches.device))
    order = order[(used & ~launches.is_alone)[order]]
    pairs = launches.select(order)
    shown, groups = _group_table(trace, events, launches, times, (by_rank, by_iteration))
    partner_row, partners = _partner_table(trace, events, near.partner[pairs.row])
    return ContentionPairs(
        event=events.id[pairs.row],
        rank=events.rank[pairs.row],
        iteration=pairs.iteration,
        group=np.searchsorted(shown, pairs.group),
        duration_ns=pairs.duration_ns,
        alone_ns=times.alone.median_ns[order],
        alone_n=times.alone.number[order],
        same_position=times.alone.same_position[order],
        partner=partner_row,
        partner_event=events.id[near.partner[pairs.row]],
        partner_share=near.partner_ns[pairs.row] / pairs.duration_ns,
        beside_share=near.beside_ns[pairs.row] / pairs.duration_ns,
        groups=groups,
        partners=partners,
        excluded=MappingProxyType({name: count for name, count in excluded.items() if count}),
        launches=events.kernels,
        alone=len(alone.row),
        noise=noise,
        noise_mean=noise_mean,
        resolution_ns=resolution,
        confounded=_confounded(times),
    )


def _errors(measured: Floats, predicted: Floats, resolution_ns: int) -> tuple[float, float]:
    """Return the relative errors of predicted times: median, and mean weighted by time; NaN without any.

    An error counts as a third of the clock's resolution or more: the mean difference of two rounded times.
    """
    rows = ~np.isnan(predicted)
    if not rows.any():
        return float("nan"), float("nan")
    differences = np.maximum(np.abs(measured - predicted)[rows], resolution_ns / 3)
    return float(np.median(differences / predicted[rows])), float(differences.sum() / predicted[rows].sum())


def _confounded(times: LaunchTimes) -> str:
    """Return why the overlapped launches do not measure contention; empty if nothing speaks against it."""
    used = np.flatnonzero((times.group_status == UNDECIDED) & (times.n_overlapped > 0))
    if not len(used):
        return ""
    weight = times.n_overlapped[used] * times.overlapped_ns[used]
    margin = np.maximum(np.nan_to_num(times.group_scatter[used]), _MARGIN)
    shares = (times.ratio[used] < 1 - margin, times.ratio[used] > 1 + margin)
    faster, slower = (float(weight[rows].sum() / weight.sum()) for rows in shares)
    if faster <= max(slower, _FASTER):
        return ""
    return (
        f"Kernels with {faster:.0%} of the overlapped time are faster than alone, and only {slower:.0%} are slower: "
        "clocks or data differ, which is not contention."
    )


def _resolution(trace: Trace) -> int:
    """Return the largest step that all times of kernels are multiples of; 0 without kernels."""
    start, duration = (integers(trace.kernels, name) for name in ("start_ns", "dur_ns"))
    return int(np.gcd(np.gcd.reduce(start), np.gcd.reduce(duration[duration > 0], initial=0)))


def _by_overlap(
    events: DeviceEvents, near: Neighbors, reason: npt.NDArray[np.int8], options: PairOptions
) -> npt.NDArray[np.int8]:
    """Return why each kernel is left out by its overlap, or that it is alone or overlapped."""
    count, undecided = events.kernels, reason == UNDECIDED
    duration, beside = (events.end_ns - events.start_ns)[:count], near.beside_ns[:count]
    overlapped = beside >= options.min_overlap * duration
    by_overlap = np.where(beside > 0, CODE["partly overlapped"], ALONE)
    by_overlap = np.where((beside == 0) & near.is_close[:count], CODE["close neighbor"], by_overlap)
    by_overlap = np.where(overlapped, OVERLAPPED, by_overlap)
    by_overlap = np.where(duration <= 0, CODE["no duration"], by_overlap)
    return np.where(undecided, by_overlap, reason).astype(np.int8)


def _candidates(trace: Trace, events: DeviceEvents, choice: _PairChoice, position: Ints) -> CandidateLaunches:
    """Return the alone and the overlapped launches, their groups numbered from 0."""
    row = np.flatnonzero((choice.reason == ALONE) | (choice.reason == OVERLAPPED))
    numbers = np.zeros(int(choice.group.max(initial=-1)) + 1, np.int64)
    numbers[choice.group[row]] = 1
    start = events.start_ns[row]
    return CandidateLaunches(
        row=row,
        group=(np.cumsum(numbers) - 1)[choice.group[row]],
        device=events.device[row],
        iteration=integers_or_missing(trace.kernels, "iteration")[row],
        start_ns=start,
        duration_ns=(events.end_ns[row] - start).astype(np.float64),
        position=position[row],
        is_alone=choice.reason[row] == ALONE,
        comparable=choice.comparable[row],
    )


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
class _LaunchColumns:
    """Rows of launches in the tables of a trace; -1 if a table has none.

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
    def of(cls, trace: Trace, rows: Ints) -> "_LaunchColumns":
        """Find the rows for rows of a `DeviceEvents`."""
        count = trace.kernels.num_rows
        kernel, copy = np.where(rows < count, rows, -1), np.where(rows < count, -1, rows - count)
        collective, op = (_taken(trace.kernels, column, kernel) for column in ("collective_id", "op_id"))
        return cls(kernel, copy, _rows_of(trace, "collectives", collective), _rows_of(trace, "ops", op))


def _group_table(
    trace: Trace, events: DeviceEvents, launches: CandidateLaunches, times: LaunchTimes, splits: Sequence[Bools]
) -> tuple[Ints, pa.Table]:
    """Return the groups with overlapped launches, and their table."""
    shown = np.flatnonzero(times.n_overlapped)
    first = np.zeros(launches.groups, np.int64)
    first[launches.group[::-1]] = np.arange(len(launches.row))[::-1]
    first = first[shown]
    row = launches.row[first]
    source = _LaunchColumns.of(trace, row)
    numbers = {column: _taken(trace.kernels, column, source.kernel) for column in _GRID}
    numbers |= {column: _taken(trace.collectives, column, source.collective) for column in ("bytes", "group_size")}
    numbers |= {"rank": np.where(splits[0][first], events.rank[row], MISSING)}
    numbers |= {"iteration": np.where(splits[1][first], launches.iteration[first], MISSING)}
    numbers |= {"n_alone": times.n_alone[shown], "n_overlapped": times.n_overlapped[shown]}
    columns: dict[str, Any] = {name: arrow_array(values, values == MISSING) for name, values in numbers.items()}
    for name, column in (("name", events.names), ("class", events.classes)):
        columns[name] = text_array(column[events.name[row]].tolist())
    columns |= {column: _texts(trace.ops, column, source.op) for column in ("shapes", "dtypes")}
    columns |= {"collective": _texts(trace.collectives, "collective", source.collective)}
    columns |= {"device": text_array(events.models[events.device[row]].tolist())}
    measured = {"alone_ns": times.group_ns, "alone_scatter": times.group_scatter}
    measured |= {"overlapped_ns": times.overlapped_ns, "ratio": times.ratio}
    columns |= {name: arrow_array(values[shown], np.isnan(values[shown])) for name, values in measured.items()}
    columns["status"] = text_array([[*REASONS, USED][code] for code in times.group_status[shown]])
    return shown, pa.table({name: columns[name] for name in GROUP_COLUMNS})


def _partner_table(trace: Trace, events: DeviceEvents, partner: Ints) -> tuple[Ints, pa.Table]:
    """Return the row of each partner in the table of partners, and the table."""
    rows, of_row = np.unique(partner, return_inverse=True)
    source = _LaunchColumns.of(trace, rows)
    numbers = {column: _taken(trace.kernels, column, source.kernel) for column in _GRID}
    carried = _taken(trace.copies, "bytes", source.copy)
    carried = np.where(source.copy < 0, _taken(trace.collectives, "bytes", source.collective), carried)
    numbers["bytes"] = np.where(carried > 0, 1 << (np.frexp(np.maximum(carried, 1))[1].astype(np.int64) - 1), carried)
    collective = np.append(encode_text(trace.collectives["collective"])[0], -1)[source.collective]
    codes, first = combinations(np.stack([events.name[rows], collective, *numbers.values()]))
    name, source = events.name[rows[first]], _LaunchColumns.of(trace, rows[first])
    communicates = np.append(events.is_collective, False)[source.kernel]
    kind = np.where(source.copy >= 0, "copy", np.where(communicates, "collective", "kernel"))
    columns: dict[str, Any] = {key: arrow_array(n[first], n[first] == MISSING) for key, n in numbers.items()}
    columns |= {"name": text_array(events.names[name].tolist()), "class": text_array(events.classes[name].tolist())}
    columns |= {"kind": text_array(kind.tolist()), "n": arrow_array(np.bincount(codes[of_row], minlength=len(first)))}
    columns["collective"] = _texts(trace.collectives, "collective", source.collective)
    table = pa.table({key: columns[key] for key in PARTNER_COLUMNS})
    return codes[of_row].astype(np.int64), table
