"""Communication as tables: of devices, and what a what-if does to collectives; the same words in every command."""

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import reduce
from operator import add

from profilers.trace.activity import COMMUNICATION_KEYS, DeviceTimes
from profilers.trace.trace import Trace
from replay.what_ifs import CollectiveEffect
from seqpoint.notebook import Table
from seqpoint.units import duration

#: Rank, number (None if the trace does not number it) and times of a device.
DeviceRow = tuple[int, int | None, DeviceTimes]
_LEGEND = (
    "Waiting: every collective on the device waits for another rank. Transfer: the rest of communication. "
    "Exposed: nothing but collectives is on the device. Hidden: beside other work."
)
#: Keys whose figure is a lower, or an upper, bound while the last rank of some collectives is unknown.
_AT_LEAST, _AT_MOST = ("waiting_ns", "exposed_waiting_ns"), ("transfer_ns", "exposed_transfer_ns")


def device_text(device: int | None) -> str:
    """Return the number of a device for a table; a dash if the trace does not number it."""
    return "-" if device is None else str(device)


def communication_table(title: str, rows: Sequence[DeviceRow], top: int | None = None) -> Table:
    """Return the communication of devices as text; devices without collectives are left out.

    The last row of several devices is their sum.

    Parameters
    ----------
    title : str
        Title that names the span of the figures.
    rows : sequence of (int, int or None, DeviceTimes)
        Rank, number and times of each device.
    top : int, optional
        Most devices that are listed; the sum has all.

    Examples
    --------
    >>> table = communication_table("Communication", [(0, None, DeviceTimes(5e3, 4e3, 3e3, 2e3, 2e3, 2, 1))])
    >>> table.names[2:5], table.rows
    (('communication', 'waiting', 'transfer'),
     [(0, '-', '4 us', '≥ 1 us', '≤ 3 us', '2 us', '2 us', '≥ 0 ns', '≤ 2 us')])
    """
    columns = ("rank", "device", *(key.removesuffix("_ns").replace("_", " ") for key in COMMUNICATION_KEYS))
    rows = [row for row in rows if row[2].collectives]
    cells: list[tuple[object, ...]] = [
        (rank, device_text(device), *_cells(times)) for rank, device, times in rows[:top]
    ]
    if len(rows) > 1:
        cells.append(("all", "", *_cells(reduce(add, (times for *_, times in rows)))))
    return Table(title, columns, cells, note=_LEGEND)


def _cells(times: DeviceTimes) -> list[str]:
    partly = 0 < times.unmatched < times.collectives
    cells = []
    for key, value in times.row().items():
        bound = "" if not partly else "≥ " if key in _AT_LEAST else "≤ " if key in _AT_MOST else ""
        cells.append("-" if value is None else bound + duration(value))
    return cells


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


def effect_tables(effects: Sequence[CollectiveEffect]) -> list[Table]:
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


def _kernels(effects: Sequence[CollectiveEffect]) -> str:
    """Return the most frequent kernel of alike collectives, and how many others there are."""
    (name, _), *others = Counter(effect.kernel[:_LONGEST_NAME] for effect in effects).most_common()
    return f"{name or '-'}{f' and {len(others)} others' if others else ''}"


_EFFECTS = "Before and after: from the begin of the first of kernel and collective to the end of both, one iteration."
