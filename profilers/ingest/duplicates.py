"""Refuse files that hold the same events of a rank: read together, their times and bytes would add up.

Two events are the same if they have the same name, begin in the same nanosecond, and lie on the same stream of a
device or the same thread of a process. Files of one rank that follow each other in time hold no such events, and are
not even looked into. A few coincidences prove nothing where each file has a clock that starts at 0, so two files
are refused once more than half of the events of one of them, where both overlap in time, are in the other too. Files
that state no rank and overlap are usually ranks; they are one recording, as a tool writes it in two formats, if they
share several events to the nanosecond.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from profilers.errors import InvalidInputError
from profilers.ingest.iterations import Extent
from profilers.trace.arrays import Growing, integers
from profilers.trace.columns import text_codes

#: Kinds of event that are compared, and the columns that say where an event lies.
_LANES = {"kernels": ("device", "stream"), "copies": ("device", "stream"), "ops": ("process", "thread")}
Keys = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class RankedFile:
    """A file whose ranks and clock are those of the whole trace.

    Parameters
    ----------
    name : str
        For messages.
    states_rank : bool
        Otherwise a rank is given to it later, and its events stand under the rank that is assumed until then.
    extents : mapping of int to Extent
        By rank; empty if the times in the file are assumed, so that nothing can be said of them.
    batches : callable
        Given a kind of event and names of columns, returns the rows.
    """

    name: str
    states_rank: bool
    extents: Mapping[int, Extent]
    batches: Callable[[str, Sequence[str]], Iterator[pa.Table]]


def refuse_same_events(files: Sequence[RankedFile]) -> None:
    """Check that no event of a rank is in two files.

    Only files that overlap in time on some rank are read. It takes about 24 bytes for each of their events.

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
            one, other = files[overlapping[first]], files[overlapping[second]]
            window = one.extents[rank], other.extents[rank]
            least = 1 if one.states_rank or other.states_rank else 2
            if count >= least and 2 * count > min(_count(one, kind, rank, window), _count(other, kind, rank, window)):
                raise InvalidInputError(
                    f"{one.name} and {other.name} hold the same events ({count} {kind} of rank {rank}), "
                    "which would count twice; leave one of the files out"
                )


def _overlapping(files: Sequence[RankedFile]) -> list[int]:
    """Return the numbers of the files that overlap or touch another one in time on the same rank."""
    spans: dict[int, list[tuple[int, int, int]]] = {}
    for number, file in enumerate(files):
        for rank, extent in file.extents.items():
            spans.setdefault(rank, []).append((extent.start, extent.end, number))
    found: set[int] = set()
    for own in spans.values():
        (_, latest_end, latest), *others = sorted(own)
        for start, end, number in others:
            if start <= latest_end:  # equal: both may hold one event of no duration
                found |= {number, latest}
            if end > latest_end:
                latest_end, latest = end, number
    return sorted(found)


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
    """Return a hash of each event; `codes` takes the names that are new."""
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
    """Return how many events of a kind of one rank begin while both extents last."""
    start, end = max(extent.start for extent in window), min(extent.end for extent in window)
    count = 0
    for table in file.batches(kind, ("rank", "start_ns")):
        begin = integers(table, "start_ns")
        count += int(((integers(table, "rank") == rank) & (begin >= start) & (begin <= end)).sum())
    return count
