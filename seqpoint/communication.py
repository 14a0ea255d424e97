"""Communication as tables: of devices, collectives, launches, and what a what-if does to collectives or weights.

The same words in every command.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import reduce
from itertools import groupby
from operator import add
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from profilers.trace.activity import COMMUNICATION_KEYS, DeviceTimes, last_arrivals, late_ranks, times_of_recording
from profilers.trace.arrays import MISSING, Ints, ends, integers, row_keys, strings
from profilers.trace.columns import lookup, row_groups
from profilers.trace.exchanges import DIRECTIONS, UNKNOWN, ExchangeSizes, exchange_directions
from profilers.trace.kernels import COLLECTIVE
from profilers.trace.trace import Trace
from seqpoint.kernel_facts import KernelFacts
from seqpoint.notebook import Table, by_rank
from seqpoint.units import duration

if TYPE_CHECKING:
    from replay.engine.timeline import Timeline
    from replay.what_ifs import CollectiveEffect, LayerQuantization

#: Rank, number (None if the trace does not number it) and times of a device.
DeviceRow = tuple[int, int | None, DeviceTimes]
_LEGEND = (
    "Waiting: every collective on the device waits for another rank. Transfer: the rest of communication. "
    "Exposed: nothing but collectives is on the device. Hidden: beside other work."
)
#: Keys whose figure is a lower, or an upper, bound while the last rank of some collectives is unknown.
_AT_LEAST, _AT_MOST = ("waiting_ns", "exposed_waiting_ns"), ("transfer_ns", "exposed_transfer_ns")
#: Bytes over the bus for a byte of the buffer, with n ranks (nccl-tests, doc/PERFORMANCE.md).
_BUS: Final[Mapping[str, Callable[[int], float]]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1.0,
    "reduce": lambda n: 1.0,
    "send_recv": lambda n: 1.0,
}
_UNITS: Final = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1.0))


def device_text(device: int | None) -> str:
    """Return the number of a device for a table; a dash if the trace does not number it."""
    return "-" if device is None else str(device)


def communication_table(title: str, rows: Sequence[DeviceRow]) -> Table:
    """Return the communication of devices as text; devices without collectives are left out.

    The last row of several devices is their sum; in brief, those with most exposed communication are shown.

    Parameters
    ----------
    title : str
        Title that names the span of the figures.
    rows : sequence of (int, int or None, DeviceTimes)
        Rank, number and times of each device.

    Examples
    --------
    >>> table = communication_table("Communication", [(0, None, DeviceTimes(5e3, 4e3, 3e3, 2e3, 2e3, 2, 1))])
    >>> table.names[2:5], table.rows
    (('communication', 'waiting', 'transfer'),
     [(0, '-', '4 us', '≥ 1 us', '≤ 3 us', '2 us', '2 us', '≥ 0 ns', '≤ 2 us')])
    """
    columns = ("rank", "device", *(key.removesuffix("_ns").replace("_", " ") for key in COMMUNICATION_KEYS))
    rows = [row for row in rows if row[2].collectives]
    cells: list[tuple[object, ...]] = [(rank, device_text(device), *_cells(times)) for rank, device, times in rows]
    if len(rows) > 1:
        cells.append(("all", "", *_cells(reduce(add, (times for *_, times in rows)))))
    return by_rank(Table(title, columns, cells, note=_LEGEND), [times.exposed_ns for *_, times in rows])


def _cells(times: DeviceTimes) -> list[str]:
    partly = 0 < times.unmatched < times.collectives
    cells = []
    for key, value in times.row().items():
        bound = "" if not partly else "≥ " if key in _AT_LEAST else "≤ " if key in _AT_MOST else ""
        cells.append("-" if value is None else bound + duration(value))
    return cells


def communication_rows(timeline: "Timeline") -> list[DeviceRow]:
    """Return the rank, the number and the times of each device in the interval of a timeline."""
    numbered = [(rank, None if device < 0 else device) for rank, device in timeline.graph.devices]
    return [(*device, times) for device, times in zip(numbered, timeline.device_times(), strict=True)]


def communication_facts(timeline: "Timeline") -> list[dict[str, Any]]:
    """Return the busy time and the communication of each device in the interval of a timeline, as JSON."""
    elapsed_ns, facts = float(timeline.span_ns), []
    for rank, device, times in communication_rows(timeline):
        busy = {"busy_ns": times.busy_ns, "busy_share": times.busy_ns / elapsed_ns if elapsed_ns else 0.0}
        counts = {"collectives": times.collectives, "unmatched_collectives": times.unmatched}
        facts.append({"rank": rank, "device": device, "elapsed_ns": elapsed_ns, **busy, **times.row(), **counts})
    return facts


def communication_notes(rows: Sequence[DeviceRow], trace: Trace) -> tuple[str, ...]:
    """Return notes on the collectives whose waiting is unknown, or known for some of their ranks only.

    Parameters
    ----------
    rows : sequence of (int, int or None, DeviceTimes)
        Rank, number and times of each device.
    trace : Trace
        The trace of the collectives.
    """
    unmatched, collectives = (sum(getattr(row[2], name) for row in rows) for name in ("unmatched", "collectives"))
    world, ranks = trace.meta.world_size or 0, len(trace.meta.ranks)
    lines, unnamed = [], trace.collectives["group_size"].null_count
    if unmatched:
        why = "the trace does not show all ranks of their groups on one clock"
        why = f"{world - ranks} of {world} ranks are absent" if world > ranks else why
        counts = f"{unmatched:,} of {collectives:,} collectives"
        lines.append(f"{counts}: {why}, so their waiting is unknown and inside transfer")
    if world > ranks and unnamed and unmatched < collectives:
        absent = f"waiting for the {world - ranks} absent ranks is inside their transfer"
        lines.append(f"{unnamed:,} collectives of the trace do not name their group: {absent}")
    return tuple(lines)


#: Most characters of the name of a kernel in a table.
_LONGEST_NAME = 40


def effect_tables(effects: "Sequence[CollectiveEffect]") -> list[Table]:
    """Return what what-ifs do to collectives, and why nothing to others, as text; alike collectives share a row.

    Parameters
    ----------
    effects : sequence of CollectiveEffect
        Effects of one or more what-ifs. Times are means over the collectives of a row.
    """
    alike: dict[tuple[str, str, int, str], list[CollectiveEffect]] = defaultdict(list)
    for effect in effects:
        alike[effect.what_if, effect.kind, effect.bytes, effect.reason].append(effect)
    applied, missed = [], []
    for (what_if, kind, size, reason), members in alike.items():
        first = (what_if, kind, f"{size / 1e6:.4g} MB" if size else "-", len(members))
        if reason:
            missed.append((*first, reason, members[0].advice or "-"))
            continue
        times = [sum(getattr(each, name) for each in members) / len(members) for name in ("before_ns", "after_ns")]
        applied.append((*first, _kernels(members), *("-" if math.isnan(time) else duration(time) for time in times)))
    columns = ("what-if~", "collective~", "bytes", "n")
    tables = [
        Table("Collectives that change", (*columns, "kernel~", "before", "after"), applied, note=_EFFECTS),
        Table("Collectives that stay", (*columns, "why~", "what helps~"), missed),
    ]
    return [table for table in tables if table.rows]


def _kernels(effects: "Sequence[CollectiveEffect]") -> str:
    """Return the most frequent kernel of alike collectives, and how many others there are."""
    (name, _), *others = Counter(effect.kernel[:_LONGEST_NAME] for effect in effects).most_common()
    return f"{name or '-'}{f' and {len(others)} others' if others else ''}"


def layer_tables(layers: "Sequence[LayerQuantization]") -> list[Table]:
    """Return the times of quantising the weights of layers as text, of the rank that waits longest.

    Passes in which a layer has the same times share a row, and so do layers that follow one another.

    Parameters
    ----------
    layers : sequence of LayerQuantization
        Times of the layers of one or more what-ifs.
    """
    by_rank: dict[tuple[str, int], list[LayerQuantization]] = defaultdict(list)
    for layer in layers:
        by_rank[layer.what_if, layer.rank].append(layer)
    longest: dict[str, list[LayerQuantization]] = {}
    for (what_if, _), members in by_rank.items():
        others = longest.get(what_if, members)
        longest[what_if] = max(others, members, key=lambda each: sum(one.exposed_ns for one in each))
    columns = ("pass~", "layer~", "weights", "T_compute", "T_quantise", "slack", "exposed", "n")
    tables = list[Table]()
    for what_if, members in longest.items():
        rows = [
            (phase, names[0] if len(names) == 1 else f"{names[0]} to {names[-1].removeprefix('layer ')}", *cells)
            for (phase, *cells), names in _alike_layers(members)
        ]
        title = f"Weights quantised by {what_if}, rank {members[0].rank}"
        tables.append(Table(title, columns, rows, note="" if tables else _LAYERS))
    return tables


def _alike_layers(layers: "Sequence[LayerQuantization]") -> list[tuple[tuple[str, ...], list[str]]]:
    """Return cells of rows, and the names of the layers that share them."""
    counts = Counter(((each.phase, each.name), _layer_cells(each)) for each in layers)
    order = {key: number for number, key in enumerate(dict.fromkeys(key for key, _ in counts))}
    rows = sorted(counts.items(), key=lambda item: order[item[0][0]])
    several, seen = Counter(key for key, _ in counts), set[tuple[str, str]]()
    cells = []
    for ((phase, name), times), count in rows:
        turn = "" if several[phase, name] == 1 else ", later" if (phase, name) in seen else ", first"
        seen.add((phase, name))
        cells.append(((phase, *times, str(count)), name + turn))
    alike = groupby(cells, key=lambda each: each[0])
    return [(key, [name for _, name in several]) for key, several in alike]


def _layer_cells(layer: "LayerQuantization") -> tuple[str, ...]:
    times = (layer.compute_ns, layer.quantize_ns, layer.slack_ns, layer.exposed_ns)
    return f"{layer.elements / 1e6:.4g} M", *map(duration, times)


_LAYERS = (
    "T_compute: time beside which the copies can be made. Slack: what is left of it. Exposed: time for which the "
    "layer waits, in the replay. First, later: micro-batches of a step whose times differ."
)
_EFFECTS = "Before and after: from the begin of the first of kernel and collective to the end of both, one iteration."


@dataclass(frozen=True)
class CollectiveRow:
    """Collectives of one kind, size and number of ranks; times in ns.

    Parameters
    ----------
    kind : str
        Kind, such as ``"all_reduce"``.
    bytes : int, optional
        Size of the buffer; None if unknown.
    ranks : int, optional
        Ranks of the group; None if unknown.
    calls : int
        Number of calls, one for each rank.
    time_ns : int
        Sum of their durations.
    median_ns : float
        Median duration.
    transfer_ns : float, optional
        Median time from the start of the last rank; None if no last rank is known.
    waiting_share : float, optional
        Share of the time in which the rank waits for the last one; None if no last rank is known.
    skew_ns : float, optional
        Median over collectives of the time from the start of the first rank to that of the last; None if unknown.
    """

    kind: str
    bytes: int | None
    ranks: int | None
    calls: int
    time_ns: int
    median_ns: float
    transfer_ns: float | None
    waiting_share: float | None
    skew_ns: float | None

    @property
    def bus_bytes_per_s(self) -> float | None:
        """Bytes over the bus a second of transfer, or of the median time if waiting is unknown; None if unknown."""
        if not self.bytes or not self.ranks or self.kind not in _BUS:
            return None
        time = self.median_ns if self.transfer_ns is None else self.transfer_ns
        return 1e9 * self.bytes * _BUS[self.kind](self.ranks) / time if time else None

    @property
    def gb_per_s(self) -> float | None:
        """The same in GB/s."""
        return None if self.bus_bytes_per_s is None else self.bus_bytes_per_s / 1e9

    @property
    def size(self) -> str:
        """Size of the buffer as text; a dash if unknown."""
        if self.bytes is None:
            return "-"
        name, unit = next((name, unit) for name, unit in _UNITS if self.bytes >= unit or unit == 1.0)
        return f"{self.bytes / unit:.4g} {name}"

    def to_dict(self) -> dict[str, Any]:
        """Return the row as JSON with stable keys."""
        return asdict(self) | {"bus_bytes_per_s": self.bus_bytes_per_s}


@dataclass(frozen=True)
class LaunchQueue:
    """Launches of the kernels of a device, and its queue; times in ns.

    Parameters
    ----------
    rank : int
        Rank of the device.
    device : int
        Number of the device; -1 if unknown.
    launches : int
        Number of kernels whose launch is recorded.
    delay_ns : float
        Median time from a launch to the start of its kernel.
    queue : float
        Median number of launched kernels that had not started at a launch.
    longest_queue : int
        Largest such number.
    idle_share : float
        Share of launches that found neither a kernel in the queue nor one on the device.
    gap_share : float
        Share of the time from the first to the last work in which the device has none.
    """

    rank: int
    device: int
    launches: int
    delay_ns: float
    queue: float
    longest_queue: int
    idle_share: float
    gap_share: float


def collective_rows(trace: Trace) -> tuple[CollectiveRow, ...]:
    """Return the collectives of a trace by kind, size and number of ranks, most time first."""
    table = trace.collectives
    if not table.num_rows:
        return ()
    kinds, kind = np.unique(strings(table, "collective").astype(str), return_inverse=True)
    size, ranks, match = (integers(table, name) for name in ("bytes", "group_size", "match_id"))
    start, arrived = integers(table, "start_ns"), last_arrivals(trace)
    time = np.maximum(ends(table) - start, 0)
    known = arrived != MISSING
    waiting = np.where(known, np.clip(arrived - start, 0, time), 0)
    skew = _skews(np.where(known, match, MISSING), start)
    rows = []
    for mine in row_groups(kind, size, ranks):
        matched = mine[known[mine]]
        apart = skew[matched][skew[matched] != MISSING]
        rows.append(
            CollectiveRow(
                kind=str(kinds[kind[mine[0]]]),
                bytes=_known(size[mine[0]]),
                ranks=_known(ranks[mine[0]]),
                calls=len(mine),
                time_ns=int(time[mine].sum()),
                median_ns=float(np.median(time[mine])),
                transfer_ns=float(np.median((time - waiting)[matched])) if len(matched) else None,
                waiting_share=float(waiting[matched].sum() / max(time[matched].sum(), 1)) if len(matched) else None,
                skew_ns=float(np.median(apart)) if len(apart) else None,
            )
        )
    return tuple(sorted(rows, key=lambda row: (-row.time_ns, row.kind, row.bytes or 0)))


def _known(value: int) -> int | None:
    return None if value == MISSING else int(value)


def _skews(match: Ints, start: Ints) -> Ints:
    """Return for one row of each matched collective the time from its first to its last start; else `MISSING`."""
    result = np.full(len(match), MISSING)
    rows = np.flatnonzero(match != MISSING)
    _, first, group = np.unique(match[rows], return_index=True, return_inverse=True)
    early, late = np.full(len(first), np.iinfo(np.int64).max), np.full(len(first), np.iinfo(np.int64).min)
    np.minimum.at(early, group, start[rows])
    np.maximum.at(late, group, start[rows])
    result[rows[first]] = late - early
    return result


@dataclass(frozen=True)
class ExchangeRow:
    """All-to-alls of a group of ranks in one direction: tokens of experts, or rows of embeddings.

    Parameters
    ----------
    group : str
        Name of the group; "" if unknown.
    direction : str
        One of `profilers.trace.exchanges.DIRECTIONS`.
    calls : int
        Number of calls, one for each rank.
    unknown : int
        Calls whose sizes are unknown.
    ranks : tuple of int
        Ranks in the trace.
    sent, received : tuple of int
        Elements of each rank, summed over calls of known sizes.
    imbalance : float, optional
        Elements that the busiest rank of each exchange receives over the mean of its ranks, both summed over exchanges;
        None if some ranks are unknown, or nothing is received.
    """

    group: str
    direction: str
    calls: int
    unknown: int
    ranks: tuple[int, ...]
    sent: tuple[int, ...]
    received: tuple[int, ...]
    imbalance: float | None

    @property
    def shares(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Shares of the ranks in the received and in the sent elements."""
        received, sent = (tuple(n / max(sum(all_), 1) for n in all_) for all_ in (self.received, self.sent))
        return received, sent

    @property
    def lasting(self) -> float | None:
        """Imbalance of the sums: what stays uneven over all exchanges; None as `imbalance`."""
        return None if self.imbalance is None else len(self.ranks) * max(self.shares[0])

    @property
    def busiest(self) -> str | None:
        """Rank that receives most, and its share in per cent; None if all receive as much."""
        share, rank = max(self.shares[0]), self.ranks[int(np.argmax(self.received))]
        return None if share == min(self.shares[0]) else f"{rank}: {100 * share:.0f} %"

    @property
    def histograms(self) -> tuple[str, str]:
        """Received and sent shares of the ranks as bars, a character each."""
        return bars(self.received), bars(self.sent)

    def to_dict(self) -> dict[str, Any]:
        """Return the row as JSON with stable keys."""
        shares = dict(zip(("received_shares", "sent_shares"), self.shares, strict=True))
        return asdict(self) | shares | {"lasting_imbalance": self.lasting}


def bars(values: Sequence[int], most: int = 32) -> str:
    """Return values of 0 or more as bars of text; of more than `most` values, the largest of each few that adjoin.

    Examples
    --------
    >>> bars([1, 4, 8, 0])
    '▁▄█▁'
    """
    few = -(-len(values) // most)
    largest = [max(values[at : at + few]) for at in range(0, len(values), few)]
    top = max(largest, default=0) or 1
    return "".join("▁▂▃▄▅▆▇█"[max(-(-8 * each // top) - 1, 0)] for each in largest)


def exchange_rows(trace: Trace, sizes: ExchangeSizes) -> tuple[ExchangeRow, ...]:
    """Return the all-to-alls of a trace by group and direction, the most uneven first.

    Parameters
    ----------
    trace : Trace
        The trace.
    sizes : ExchangeSizes
        Sizes of its all-to-alls.
    """
    rows = np.flatnonzero(sizes.is_exchange)
    table, sent, received = trace.collectives.take(rows), sizes.sent[rows], sizes.received[rows]
    match, size, rank = (integers(table, name) for name in ("match_id", "group_size", "rank"))
    size = np.where(size == MISSING, trace.meta.world_size or MISSING, size)
    members = np.unique(match, return_inverse=True, return_counts=True)
    operation = np.where(members[2][members[1]] < size, MISSING, match)
    direction = exchange_directions(operation, sent, received)
    names = strings(table, "group_name"), strings(table, "group_ranks")
    groups = np.unique([f"{name}\n{ranks}" for name, ranks in zip(*names, strict=True)], return_inverse=True)[1]
    found = []
    for mine in row_groups(groups, direction):
        ranks, at = np.unique(rank[mine], return_inverse=True)
        known, busiest = np.minimum(sent[mine], received[mine]) >= 0, defaultdict[int, int](int)
        sums = np.zeros((2, len(ranks)), dtype=np.int64)
        np.add.at(sums.T, at, np.where(known, np.stack([sent[mine], received[mine]]), 0).T)
        for exchange, elements in zip(operation[mine].tolist(), received[mine].tolist(), strict=True):
            busiest[exchange] = max(busiest[exchange], elements)  # all-to-alls, below 1 us each
        is_known = direction[mine[0]] != UNKNOWN and sums[1].any()
        imbalance = float(sum(busiest.values()) * len(ranks) / sums[1].sum()) if is_known else None
        name, unknown = names[0][mine[0]] or "", int((~known).sum())
        totals = tuple(sums[0].tolist()), tuple(sums[1].tolist())
        found.append(
            ExchangeRow(
                name, DIRECTIONS[direction[mine[0]]], len(mine), unknown, tuple(ranks.tolist()), *totals, imbalance
            )
        )
    return tuple(
        sorted(
            found, key=lambda row: (-(row.imbalance or 0.0), -sum(row.received), row.group, row.ranks, row.direction)
        )
    )


def launch_queues(trace: Trace) -> tuple[LaunchQueue, ...]:
    """Return the launches and the queue of each device with recorded launches, by (rank, device)."""
    kernels = trace.kernels
    launched = lookup(
        integers(trace.launches, "id"), integers(trace.launches, "start_ns"), integers(kernels, "launch_id")
    )
    start, end = integers(kernels, "start_ns"), ends(kernels)
    rank, device = integers(kernels, "rank"), integers(kernels, "device")
    gaps = {
        (each.rank, -1 if each.device is None else each.device): 1 - each.times.busy_ns / max(each.span_ns, 1)
        for each in times_of_recording(trace)
    }
    known = np.flatnonzero((launched != MISSING) & (start != MISSING))
    rows = []
    for group in row_groups(rank[known], device[known]):
        mine = known[group]
        at = np.sort(launched[mine])
        before = np.searchsorted(at, at, side="left")
        started = np.searchsorted(np.sort(start[mine]), at, side="left")
        ended = np.searchsorted(np.sort(end[mine]), at, side="left")
        queue = np.maximum(before - started, 0)
        key = int(rank[mine[0]]), -1 if device[mine[0]] == MISSING else int(device[mine[0]])
        rows.append(
            LaunchQueue(
                *key,
                launches=len(mine),
                delay_ns=float(np.median(start[mine] - launched[mine])),
                queue=float(np.median(queue)),
                longest_queue=int(queue.max()),
                idle_share=float((before <= ended).mean()),
                gap_share=float(gaps.get(key, np.nan)),
            )
        )
    return tuple(sorted(rows, key=lambda row: (row.rank, row.device)))


@dataclass(frozen=True)
class RankRow:
    """Time of a device from its first to its last work, by cause, and how its rank holds others up; times in ns.

    The elapsed time is the sum of compute, transfer, waiting, host and idle time.

    Parameters
    ----------
    rank : int
        Rank of the device.
    device : int
        Number of the device; -1 if unknown.
    elapsed_ns : int
        Time from the first to the last work.
    compute_ns : float
        Time with a kernel that is no collective, or a copy, on the device.
    transfer_ns : float
        Time with nothing but collectives on the device, after the last rank has started; all if that is unknown.
    waiting_ns : float, optional
        Time with nothing but collectives that wait for another rank; None if no last rank is known.
    host_ns : int
        Idle time before the call that launches the next work: the device waits for the host.
    idle_ns : float
        Other idle time, such as from a launch to the start of its kernel.
    slowdown : float, optional
        Time of its kernels over that of the median rank, less 1: kernels of one name and grid that run on all ranks, no
        collectives. None with one rank.
    slowest_class : str
        Class of kernels that loses most time against the median rank; "" if none.
    class_slowdown : float, optional
        The same as `slowdown`, for that class.
    late : int
        Collectives that the rank was the last to start.
    waited_ns : int
        Time that the other ranks waited for it in these, summed over ranks.
    """

    rank: int
    device: int
    elapsed_ns: int
    compute_ns: float
    transfer_ns: float
    waiting_ns: float | None
    host_ns: int
    idle_ns: float
    slowdown: float | None
    slowest_class: str
    class_slowdown: float | None
    late: int
    waited_ns: int

    @property
    def slowest(self) -> str:
        """The slowest class and its slowdown in per cent; "" if none is slower."""
        return f"{self.slowest_class} {100 * (self.class_slowdown or 0.0):.1f}" if self.slowest_class else ""


def rank_rows(trace: Trace, facts: KernelFacts) -> tuple[RankRow, ...]:
    """Return the time of each device by cause, and how its rank holds others up, by (rank, device).

    Parameters
    ----------
    trace : Trace
        The trace.
    facts : KernelFacts
        Its kernels.
    """
    host, slow = host_gaps(trace), _slowdowns(facts)
    late = {row.rank: row for row in late_ranks(trace)}
    rows = []
    for each in times_of_recording(trace):
        times, device = each.times, -1 if each.device is None else each.device
        host_ns = host.get((each.rank, device), 0)
        slowdown, slowest, of_class = slow.get(each.rank, (None, "", None))
        rows.append(
            RankRow(
                each.rank,
                device,
                each.span_ns,
                compute_ns=times.busy_ns - times.exposed_ns,
                transfer_ns=times.exposed_transfer_ns,
                waiting_ns=times.exposed_waiting_ns,
                host_ns=host_ns,
                idle_ns=each.span_ns - times.busy_ns - host_ns,
                slowdown=slowdown,
                slowest_class=slowest,
                class_slowdown=of_class,
                late=late[each.rank].collectives if each.rank in late else 0,
                waited_ns=late[each.rank].waited_ns if each.rank in late else 0,
            )
        )
    return tuple(rows)


def host_gaps(trace: Trace) -> dict[tuple[int, int], int]:
    """Return for each (rank, device) the idle time before the call that launches the next work."""
    tables = (trace.kernels, trace.copies)
    rank, device, launch, start = (
        np.concatenate([integers(table, name) for table in tables])
        for name in ("rank", "device", "launch_id", "start_ns")
    )
    end = np.concatenate([ends(table) for table in tables])
    called = lookup(integers(trace.launches, "id"), integers(trace.launches, "start_ns"), launch)
    result = {}
    for group in row_groups(rank, device):
        rows = group[np.argsort(start[group], kind="stable")]
        reach, following = np.maximum.accumulate(end[rows])[:-1], rows[1:]
        until = np.where(called[following] == MISSING, reach, np.minimum(called[following], start[following]))
        key = int(rank[rows[0]]), -1 if device[rows[0]] == MISSING else int(device[rows[0]])
        result[key] = int(np.maximum(until - reach, 0).sum())
    return result


def _slowdowns(facts: KernelFacts) -> dict[int, tuple[float, str, float | None]]:
    """Return the slowdown of each rank against the median, its slowest class, and the slowdown of that class.

    Kernels with the same name and grid are alike; those that do not run on all ranks are left out.
    """
    ranks = np.unique(facts.rank)
    mine = np.flatnonzero(~facts.in_classes((COLLECTIVE,)))
    _, first, kind = np.unique(
        row_keys(facts.name[mine], facts.workgroups[mine]), return_index=True, return_inverse=True
    )
    cell = np.searchsorted(ranks, facts.rank[mine]) * len(first) + kind
    shape, cells = (len(ranks), len(first)), len(ranks) * len(first)
    calls = np.bincount(cell, minlength=cells).reshape(shape)
    time = np.bincount(cell, weights=facts.duration_ns[mine], minlength=cells).reshape(shape)
    common = (calls > 0).all(axis=0)
    if len(ranks) < 2 or not common.any():
        return {}
    mean = time[:, common] / calls[:, common]
    weight, median = calls[:, common].mean(axis=0), np.median(mean, axis=0)
    of_class = facts.class_[mine][first][common]
    typical = np.bincount(of_class, weights=weight * median, minlength=len(facts.classes))
    result: dict[int, tuple[float, str, float | None]] = {}
    for rank, row in zip(ranks.tolist(), weight * mean, strict=True):
        own = np.bincount(of_class, weights=row, minlength=len(typical))
        slowest = int((own - typical).argmax())
        is_slower = own[slowest] > typical[slowest]
        share = float(own[slowest] / typical[slowest] - 1) if is_slower and typical[slowest] else None
        name = facts.classes[slowest] if is_slower else ""
        result[rank] = float(own.sum() / max(typical.sum(), 1.0) - 1), name, share
    return result


#: Waiting for a rank above this share of the time of all devices makes it a straggler.
_STRAGGLES: Final = 0.01
#: A cause explains that a rank is late if it takes at least this share of the mean wait of the others.
_EXPLAINS: Final = 0.2


def straggler_line(rows: Sequence[RankRow]) -> str | None:
    """Return the sentence on the rank that others wait for most, and why; None if they hardly wait.

    Parameters
    ----------
    rows : sequence of RankRow
        Rows of all devices.
    """
    if len({row.rank for row in rows}) < 2:
        return None
    late = max(rows, key=lambda row: row.waited_ns)
    if late.waited_ns < _STRAGGLES * sum(row.elapsed_ns for row in rows):
        return None
    held = late.waited_ns / (len(rows) - 1)
    host = late.host_ns - float(np.median([row.host_ns for row in rows]))
    slower = (late.slowdown or 0.0) * late.compute_ns
    text = f"rank {late.rank} is the straggler: the others wait {duration(held)} each, in {late.late} collectives"
    if host >= max(slower, _EXPLAINS * held):
        return f"{text}; its device waits for the host {duration(host)} longer than the median"
    if slower >= _EXPLAINS * held:
        of_class = f", {late.slowest_class} {100 * (late.class_slowdown or 0.0):.1f} %" if late.slowest_class else ""
        return f"{text}; its kernels take {100 * (late.slowdown or 0.0):.1f} % longer than the median{of_class}"
    return f"{text}; neither its kernels nor its host explain it: it may have begun late, or its clock is apart"
