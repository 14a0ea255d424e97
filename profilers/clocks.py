"""Bring the times of several files onto one clock: by what the files state, and where that fails by collectives."""

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from profilers.arrays import MISSING, Ints, ends, integers
from profilers.errors import InvalidInputError
from profilers.trace import TraceMeta

__all__ = ["base_shifts", "collective_shifts"]


def base_shifts(metas: Sequence[TraceMeta]) -> list[int]:
    """Return what the times of each file are moved by, in ns, so that all stand on the smallest clock base.

    Raises
    ------
    InvalidInputError
        Some files state a clock base and others do not.

    Examples
    --------
    >>> base_shifts([TraceMeta("kineto", clock_base_ns=1000), TraceMeta("kineto", clock_base_ns=400)])
    [600, 0]
    """
    bases = [meta.clock_base_ns for meta in metas]
    if len(set(bases)) > 1 and min(bases) == 0:
        named = ", ".join(f"{m.sources[0]} {m.clock_base_ns}" for m in metas[:4] if m.sources)
        raise InvalidInputError(f"some files state what their clock starts at and some do not: {named}")
    return [base - min(bases) for base in bases]


def collective_shifts(collectives: pa.Table) -> Mapping[int, int]:
    """Return what the times of each rank are moved by, in ns, where matched collectives prove clocks apart.

    A collective ends on no rank before it has begun on all. Where most matched operations of a rank break that
    against the lowest rank, its clock is off; it is then moved by the median difference of their ends, since a
    collective ends everywhere at about the same time. Clocks that agree are left alone: small differences of
    ends are the job's own.

    Parameters
    ----------
    collectives : Table
        With ``match_id``.

    Returns
    -------
    mapping of int to int
        By rank; empty where no clock is off.
    """
    rank, match = integers(collectives, "rank"), integers(collectives, "match_id")
    start, end = integers(collectives, "start_ns"), ends(collectives)
    known = match != MISSING
    reference = int(rank[known].min()) if known.any() else 0
    shifts = {}
    for other in np.unique(rank[known]).tolist():
        if other == reference:
            continue
        ours, theirs = _pairs(match, known & (rank == reference), known & (rank == other))
        apart = (end[ours] <= start[theirs]) | (end[theirs] <= start[ours])
        if len(ours) and apart.mean() > 0.5:
            shifts[other] = int(np.median(end[ours] - end[theirs]))
    return shifts


def _pairs(match: Ints, ours: Ints, theirs: Ints) -> tuple[Ints, Ints]:
    """Return the rows of one and of the other that have the same match."""
    _, left, right = np.intersect1d(match[ours], match[theirs], return_indices=True)
    return np.flatnonzero(ours)[left], np.flatnonzero(theirs)[right]
