"""Kernels and copies of the devices of a trace, and what runs beside each of them.

`DeviceWork` has the columns, `Neighbors` the time beside other work and the work that is beside for the longest time.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from profilers.trace.arrays import MISSING, Bools, Ints, encode_text, ends, integers_or_missing
from profilers.trace.columns import combinations
from profilers.trace.compiled import compiled
from profilers.trace.kernels import COLLECTIVE
from profilers.trace.trace import Trace

#: Most kernels and copies of a device that are followed at a time; devices run up to 128 kernels at once.
_RESIDENT = 128


@dataclass(frozen=True)
class DeviceWork:
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
    def of(cls, trace: Trace) -> "DeviceWork":
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
    beside_ns : array of int64
        Time with other work beside it.
    partner : array of int64
        Row of the work that is beside it for the longest time, or -1.
    partner_ns : array of int64
        That time.
    is_close : array of bool
        Whether work of another stream is beside it, or less than the least gap away.
    """

    beside_ns: Ints
    partner: Ints
    partner_ns: Ints
    is_close: Bools

    @classmethod
    def of(cls, work: DeviceWork, gap_ns: int) -> "Neighbors":
        """Follow the work of each device in order of time."""
        order = np.lexsort((work.id, work.start_ns, work.device))
        columns = [column[order] for column in (work.device, work.stream, work.start_ns, work.end_ns)]
        beside, partner, partner_ns, close = _follow(*columns, gap_ns)
        partner = np.where(partner < 0, -1, order[partner])
        row = np.empty(len(order), np.int64)
        row[order] = np.arange(len(order))
        return cls(beside[row], partner[row], partner_ns[row], close[row])


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
