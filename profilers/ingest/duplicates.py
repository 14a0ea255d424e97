"""Refuse files that hold the same events of a rank, since their times and bytes would count twice.

Two events are the same if they have the same name and begin in the same nanosecond, on the same stream of a device or
the same thread of a process. Files of one rank that follow each other in time are not compared.

A few coincidences prove nothing, since clocks may start at 0 in each file. So two files are refused if more than half
of the events of one of them, in the time of both, are in the other too. Overlapping files that state no rank are
usually different ranks; they are one recording in two formats if they share several events to the nanosecond.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from profilers.errors import InvalidInputError
from profilers.ingest.iterations import Extent
from profilers.trace.arrays import Growing, integers, text_codes

#: Kinds of event that are compared, and the columns that say where an event lies.
_LANES = {"kernels": ("device", "stream"), "copies": ("device", "stream"), "ops": ("process", "thread")}
Keys = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class RankedFile:
    """A file whose ranks and clock are those of the whole trace.

    Parameters
    ----------
    name : str
        Path of the file, for messages.
    states_rank : bool
        Whether the file states its rank; otherwise its events stand under an assumed rank.
    extents : mapping of int to Extent
        Time of the events of each rank; empty if the times are assumed, so that they prove nothing.
    batches : callable
        Returns the rows of a kind of event, with the columns named.
    """

    name: str
    states_rank: bool
    extents: Mapping[int, Extent]
    batches: Callable[[str, Sequence[str]], Iterator[pa.Table]]


def refuse_same_events(files: Sequence[RankedFile]) -> None:
    """Check that no event of a rank is in two files.

    Only files that overlap in time on some rank are read. It takes about 24 bytes for each of their events.

    Parameters
    ----------
    files : sequence of RankedFile
        Files of one trace.

    Raises
    ------
    InvalidInputError
        Two files hold the same events of a rank; the message names both.
    """
    overlapping = _overlapping(files)
    if not overlapping:
        return
    for kind in _LANES:
        for first, second, rank, count in _coincidences([files[number] for number in overlapping], kind):
            pair = files[overlapping[first]], files[overlapping[second]]
            window = pair[0].extents[rank], pair[1].extents[rank]
            least = 1 if pair[0].states_rank or pair[1].states_rank else 2
            if count >= least and 2 * count > min(_count(file, kind, rank, window) for file in pair):
                raise InvalidInputError(
                    f"{pair[0].name} and {pair[1].name} hold the same events ({count} {kind} of rank {rank}), "
                    "which would count twice; leave one of the files out"
                )


def _overlapping(files: Sequence[RankedFile]) -> list[int]:
    """Return the numbers of the files that overlap or touch another file in time on the same rank."""
    spans: dict[int, list[tuple[int, int, int]]] = {}
    for number, file in enumerate(files):
        for rank, extent in file.extents.items():
            spans.setdefault(rank, []).append((extent.start, extent.end, number))
    overlapping: set[int] = set()
    for of_rank in spans.values():
        (_, latest_end, latest), *others = sorted(of_rank)
        for start, end, number in others:
            if start <= latest_end:  # equal: both may hold one event of no duration
                overlapping |= {number, latest}
            if end > latest_end:
                latest_end, latest = end, number
    return sorted(overlapping)


def _coincidences(files: Sequence[RankedFile], kind: str) -> list[tuple[int, int, int, int]]:
    """Return (first file, second file, rank, number of events that are in both), by the numbers of the files."""
    codes: dict[str | None, int] = {}
    keys, owners, ranks = Growing(np.uint64), Growing(np.int32), Growing(np.int32)
    for number, file in enumerate(files):
        for table in file.batches(kind, ("rank", "name", "start_ns", *_LANES[kind])):
            keys.append(_keys(table, kind, codes))
            owners.append(np.full(table.num_rows, number))
            ranks.append(integers(table, "rank"))
    order = np.argsort(keys.values(), kind="stable")
    same = np.flatnonzero(np.diff(keys.values()[order]) == 0)
    before, after = order[same], order[same + 1]
    owner = owners.values()
    apart = owner[before] != owner[after]
    before, after = before[apart], after[apart]
    pairs = np.stack([owner[before], owner[after], ranks.values()[before]], axis=1)
    distinct, counts = np.unique(pairs, axis=0, return_counts=True)
    return [(a, b, rank, count) for (a, b, rank), count in zip(distinct.tolist(), counts.tolist(), strict=True)]


def _keys(table: pa.Table, kind: str, codes: dict[str | None, int]) -> Keys:
    """Return a hash of each event; `codes` takes new names."""
    key = text_codes(table["name"], codes).astype(np.uint64)
    for column in ("rank", "start_ns", *_LANES[kind]):
        key = _mixed(key) ^ integers(table, column).view(np.uint64)
    return _mixed(key)


def _mixed(key: Keys) -> Keys:
    """Return the finaliser of splitmix64 (Steele, Lea and Flood, OOPSLA 2014), which maps one to one."""
    key = (key ^ (key >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    key = (key ^ (key >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return key ^ (key >> np.uint64(31))


def _count(file: RankedFile, kind: str, rank: int, window: tuple[Extent, Extent]) -> int:
    """Return the number of events of a kind of one rank that begin within both extents."""
    start, end = max(extent.start for extent in window), min(extent.end for extent in window)
    count = 0
    for table in file.batches(kind, ("rank", "start_ns")):
        begin = integers(table, "start_ns")
        count += int(((integers(table, "rank") == rank) & (begin >= start) & (begin <= end)).sum())
    return count
