"""The processes and threads of a timeline: those of the host as they are, and one process a device."""

from dataclasses import dataclass
from itertools import count

import numpy as np

from profilers.arrays import MISSING, Ints
from profilers.trace import Trace

__all__ = ["Places", "find_places"]

_HOST = ("ops", "launches", "ranges", "counters")
_DEVICE = ("kernels", "copies", "syncs")


@dataclass(frozen=True)
class Places:
    """Numbers of processes, distinct over ranks.

    Parameters
    ----------
    processes, devices : dict of (int, int) to int
        By rank and process, or rank and device, which can be `MISSING`.
    threads : sequence of (int, int, int)
        Rank, device and stream of every thread of a device.
    """

    processes: dict[tuple[int, int], int]
    devices: dict[tuple[int, int], int]
    threads: list[tuple[int, int, int]]

    def process(self, rank: Ints, process: Ints) -> Ints:
        """Return the number of each row's process."""
        return _mapped(self.processes, rank, process)

    def device(self, rank: Ints, device: Ints) -> Ints:
        """Return the number of the process that stands for each row's device."""
        return _mapped(self.devices, rank, device)


def find_places(trace: Trace) -> Places:
    """Number the processes of `trace`.

    A process keeps its number unless a lower rank has the same; devices take what is free.
    """
    hosts, threads = _distinct(trace, _HOST, "process"), _distinct(trace, _DEVICE, "device", "stream")
    used = {process for _, process in hosts}
    free = (number for number in count() if number not in used)
    processes: dict[tuple[int, int], int] = {}
    taken: set[int] = set()
    for rank, process in hosts:
        if process != MISSING:
            processes[rank, process] = next(free) if process in taken else process
            taken.add(process)
    places = sorted({(rank, device) for rank, device, _ in threads})
    return Places(processes, {place: next(free) for place in places}, [(r, d, s) for r, d, s in threads])


def _distinct(trace: Trace, kinds: tuple[str, ...], *columns: str) -> list[tuple[int, ...]]:
    found: set[tuple[int, ...]] = set()
    for kind in kinds:
        table = trace.tables[kind]
        names = [name for name in ("rank", *columns) if name in table.schema.names]
        for row in table.select(names).group_by(names).aggregate([]).to_pylist():
            found.add(tuple(MISSING if row[name] is None else row[name] for name in names))
    return sorted(found)


def _mapped(numbers: dict[tuple[int, int], int], first: Ints, second: Ints) -> Ints:
    """Return the number of each pair, `MISSING` where it has none; a loop over the distinct pairs."""
    result = np.full(len(first), MISSING)
    for pair in set(zip(first.tolist(), second.tolist(), strict=True)):
        result[(first == pair[0]) & (second == pair[1])] = numbers.get(pair, MISSING)
    return result
