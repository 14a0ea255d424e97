"""Putting the parts of a trace together: clocks, ids, iterations, lengths.

Bring the times of several files onto one clock: by what the files state, and where that fails by collectives.

Put parts together: one numbering of ranks, ids and iterations, one clock; then give the finished tables.

What has to be known of all parts at once (collectives, annotations, extents) is small. The bulk is finished a
part and a batch at a time, so parts can be finished in different processes.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pyarrow as pa

from profilers.errors import InvalidInputError
from profilers.ingest.collectives import match_collectives
from profilers.ingest.duplicates import RankedFile, refuse_same_events
from profilers.ingest.iterations import (
    WHOLE_TRACE,
    Extent,
    Spans,
    caused_iterations,
    fill_from_neighbours,
    find_iterations,
    find_period,
    one_iteration,
    periodic,
)
from profilers.ingest.lengths import add_lengths
from profilers.ingest.part import Part, combined_fingerprint
from profilers.trace.arrays import MISSING, Growing, Ints, Narrowed, arrow_array, ends, integers, put
from profilers.trace.columns import Lanes, by_lane, lookup, parts, sorting, text_codes
from profilers.trace.schema import KINDS, OWN_RANK
from profilers.trace.trace import Quality, Trace, TraceMeta


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


_ID_COLUMNS = ("id", "launch_id", "op_id", "kernel_id", "collective_id")


@dataclass(frozen=True)
class Place:
    """How one part fits into the whole.

    Parameters
    ----------
    first_id : int
        What its ids are moved up by.
    own_rank : int
        Of the rows that name none.
    shift_ns : mapping of int to int
        What the times of each rank are moved by.
    spans : mapping of int to Spans
        Iterations by rank.
    """

    first_id: int
    own_rank: int
    shift_ns: Mapping[int, int]
    spans: Mapping[int, Spans]

    def rank(self, rank: int) -> int:
        """Return the final number of a rank of the part."""
        return self.own_rank if rank == OWN_RANK else rank

    def put(self, table: pa.Table) -> pa.Table:
        """Return rows of the part with the ranks, ids and times of the whole."""
        ranks = integers(table, "rank")
        ranks = np.where(ranks == OWN_RANK, self.own_rank, ranks)
        table = put(table, "rank", ranks)
        if self.first_id:
            for column in _ID_COLUMNS:
                if column in table.schema.names:
                    ids = integers(table, column)
                    table = put(table, column, np.where(ids == MISSING, MISSING, ids + self.first_id))
        if any(self.shift_ns.values()):
            shift = np.zeros(len(ranks), dtype=np.int64)
            for rank, by_ns in self.shift_ns.items():
                shift[ranks == rank] = by_ns
            table = put(table, "start_ns", integers(table, "start_ns") + shift)
        return table

    def iterations(self, table: pa.Table, time: Ints) -> Ints:
        """Return the iteration of each row of a placed table at the times given."""
        ranks = integers(table, "rank")
        result = np.full(len(ranks), MISSING)
        for rank, spans in self.spans.items():
            own = ranks == rank
            result[own] = spans.at(time[own])
        return result


@dataclass(frozen=True)
class Assembly:
    """Everything of a trace but its bulk.

    Parameters
    ----------
    meta : TraceMeta
        Its quality lacks what finishing the parts counts.
    places : sequence of Place
        One a part.
    iterations, collectives : Table
    """

    meta: TraceMeta
    places: Sequence[Place]
    iterations: pa.Table
    collectives: pa.Table


def assemble(parts: Sequence[Part], iterations: str, length: str | None) -> Assembly:
    """Decide how `parts` become one trace.

    Parameters
    ----------
    parts : sequence of Part
        In the order of their files.
    iterations, length : str
        See `profilers.ingest.pipeline.CollectOptions`.

    Raises
    ------
    InvalidInputError
        The options do not fit the parts, or the parts do not fit each other, or hold the same events.
    """
    places = _on_one_clock(parts, _numbered(parts, iterations == "file"))
    if iterations != "file":  # there each file is an iteration, whatever its clock says
        refuse_same_events([_ranked(part, place) for part, place in zip(parts, places, strict=True)])
    trace, places = _matched(parts, places)
    spans = _spans(parts, places, iterations)
    places = [replace(place, spans=found) for place, found in zip(places, spans, strict=True)]
    table = _iteration_table(spans)
    trace = trace.with_tables(iterations=table)
    trace = add_lengths(_with_annotations(trace, parts, places), length)
    return Assembly(_meta(parts, places, trace.meta.quality), places, trace.iterations, trace.collectives)


def _numbered(parts: Sequence[Part], file_mode: bool) -> list[Place]:
    """Give each part its first id and its rank.

    Files that claim the same single rank at the same time become ranks in their order.
    """
    ranks = [part.meta.ranks[0] if part.meta.ranks else 0 for part in parts]
    alone = all(set(part.extents) <= {OWN_RANK, 0} for part in parts) and not any(ranks)
    if len(parts) > 1 and alone and not file_mode and not _follow(parts):
        ranks = list(range(len(parts)))
    first = np.cumsum([0, *(part.stage.rows for part in parts)])
    return [Place(int(first[i]), ranks[i], {}, {}) for i in range(len(parts))]


def _follow(parts: Sequence[Part]) -> bool:
    spans = sorted((min(e.start for e in p.extents.values()), max(e.end for e in p.extents.values())) for p in parts)
    return all(before[1] <= after[0] for before, after in pairwise(spans))


def _on_one_clock(parts: Sequence[Part], places: list[Place]) -> list[Place]:
    shifts = base_shifts([part.meta for part in parts])
    return [
        replace(place, shift_ns={place.rank(rank): by_ns for rank in part.extents})
        for part, place, by_ns in zip(parts, places, shifts, strict=True)
    ]


def _ranked(part: Part, place: Place) -> RankedFile:
    """Return a part for comparison with others, under the rank that it has before files are numbered as ranks."""
    rank = part.meta.ranks[0] if part.meta.ranks else 0
    by_ns = next(iter(place.shift_ns.values()), 0)
    stated = replace(place, first_id=0, own_rank=rank)
    stated = replace(stated, shift_ns={stated.rank(rank): by_ns for rank in part.extents})
    extents = {stated.rank(rank): extent.shifted(by_ns) for rank, extent in part.extents.items()}
    assumed = part.meta.quality["assumed_start"] > 0
    return RankedFile(
        part.file,
        bool(part.meta.ranks),
        {} if assumed else extents,
        lambda kind, names: map(stated.put, part.stage.batches(kind, names)),
    )


def _matched(parts: Sequence[Part], places: list[Place]) -> tuple[Trace, list[Place]]:
    """Match collectives across ranks; where they prove the clocks of ranks apart, bring those together."""
    placed = [place.put(part.collectives) for part, place in zip(parts, places, strict=True)]
    table = pa.concat_tables(placed).unify_dictionaries().combine_chunks()
    trace = match_collectives(Trace(TraceMeta(""), {"collectives": table}))
    shifts = collective_shifts(trace.collectives)
    if not shifts:
        return trace, places
    moved = replace(places[0], first_id=0, shift_ns=shifts).put(trace.collectives)
    places = [
        replace(place, shift_ns={rank: by + shifts.get(rank, 0) for rank, by in place.shift_ns.items()})
        for place in places
    ]
    return trace.with_tables(collectives=moved).with_quality(
        {"clock_shift_max_ns": max(map(abs, shifts.values()))}
    ), places


def _spans(parts: Sequence[Part], places: Sequence[Place], iterations: str) -> list[dict[int, Spans]]:
    """Return the iterations of every rank of every part."""
    extents = [
        {place.rank(rank): extent.shifted(place.shift_ns[place.rank(rank)]) for rank, extent in part.extents.items()}
        for part, place in zip(parts, places, strict=True)
    ]
    if iterations == "file":
        return [
            {rank: one_iteration(rank, extent, number, parts[number].meta.sources[0], "file") for rank, extent in own}
            for number, own in enumerate(sorted(found.items()) for found in extents)
        ]
    marks = pa.concat_tables([place.put(part.marks) for part, place in zip(parts, places, strict=True)])
    whole: dict[int, Extent] = {}
    for found in extents:
        for rank, extent in found.items():
            whole[rank] = whole[rank] | extent if rank in whole else extent
    pattern = None if iterations == "auto" else iterations
    if iterations == "whole":
        spans = {rank: one_iteration(rank, extent, 0, WHOLE_TRACE, WHOLE_TRACE) for rank, extent in whole.items()}
        return [{rank: spans[rank] for rank in found} for found in extents]
    spans = {
        rank: find_iterations(marks.filter(arrow_array(integers(marks, "rank") == rank)), rank, whole[rank], pattern)
        for rank in sorted(whole)
    }
    for rank in [rank for rank, found in spans.items() if found.found_by == WHOLE_TRACE]:
        spans[rank] = _periodic(parts, places, rank, whole[rank]) or spans[rank]
    return [{rank: spans[rank] for rank in found} for found in extents]


def _periodic(parts: Sequence[Part], places: Sequence[Place], rank: int, extent: Extent) -> Spans | None:
    """Return the iterations that the kernels of a rank show, in the order in which they were launched."""
    codes: dict[str | None, int] = {}
    names, times = Narrowed(), Growing(np.int64)
    for part, place in zip(parts, places, strict=True):
        shift = place.shift_ns.get(rank, 0)
        for table, cause in _caused(part, place, "kernels", ("rank", "name", "start_ns")):
            own = integers(table, "rank") == rank
            times.append(np.where(cause == MISSING, integers(table, "start_ns"), cause + shift)[own])
            names.append(text_codes(table["name"], codes)[own])
    at = times.values()
    order = sorting(at)
    sequence = names.raw() if order is None else names.raw()[order]
    period = find_period(sequence)
    return None if period is None else periodic(rank, period, at if order is None else at[order], extent)


def _caused(part: Part, place: Place, kind: str, names: Sequence[str]) -> Iterator[tuple[pa.Table, Ints]]:
    """Yield placed kernels or copies with the columns named, and when each was caused in the time of the part."""
    row = 0
    for batch in part.stage.batches(kind, names):
        rows = slice(row, row + batch.num_rows)
        row = rows.stop
        cause = part.stage.amended(kind, "cause_ns", rows)
        yield place.put(batch), np.full(batch.num_rows, MISSING) if cause is None else cause


def _iteration_table(spans: Sequence[Mapping[int, Spans]]) -> pa.Table:
    distinct = {id(one): one for found in spans for one in found.values()}
    tables = [one.table() for one in sorted(distinct.values(), key=lambda one: one.rank)]
    table = pa.concat_tables(tables).unify_dictionaries().combine_chunks()
    keys = list(zip(table["rank"].to_pylist(), table["iteration"].to_pylist(), strict=True))
    if len(set(keys)) != len(keys):
        raise InvalidInputError("two files hold the same iteration of the same rank; ingest them apart")
    return table


def _with_annotations(trace: Trace, parts: Sequence[Part], places: Sequence[Place]) -> Trace:
    """Return `trace` with the annotations and operators that can state a length."""
    tables = {}
    for kind, name in (("ranges", "marks"), ("ops", "length_ops")):
        placed = [(place, place.put(getattr(part, name))) for part, place in zip(parts, places, strict=True)]
        timed = [put(t, "iteration", place.iterations(t, integers(t, "start_ns"))) for place, t in placed]
        tables[kind] = pa.concat_tables(timed).unify_dictionaries().combine_chunks()
    return trace.with_tables(**tables)


def _meta(parts: Sequence[Part], places: Sequence[Place], quality: Quality) -> TraceMeta:
    metas = [part.meta for part in parts]
    sizes = {meta.world_size for meta in metas if meta.world_size is not None}
    devices = [
        replace(device, rank=place.rank(device.rank))
        for meta, place in zip(metas, places, strict=True)
        for device in meta.devices
    ]
    formats = dict.fromkeys(meta.format for meta in metas)
    return replace(
        metas[0],
        format="+".join(formats),
        sources=tuple(name for meta in metas for name in meta.sources),
        ranks=tuple(sorted({rank for place in places for rank in place.spans})),
        world_size=max(sizes, default=None),
        clock_base_ns=min(meta.clock_base_ns for meta in metas),
        devices=tuple(dict.fromkeys(devices)),
        quality=sum((meta.quality for meta in metas), quality),
        fingerprint=combined_fingerprint([meta.fingerprint for meta in metas]),
    )


def finished(part: Part, place: Place, collectives: pa.Table, counts: dict[str, int]) -> Iterator[tuple[str, pa.Table]]:
    """Yield (kind, rows) of one part as they stand in the trace; counts go into `counts` as they arise.

    Parameters
    ----------
    part : Part
    place : Place
    collectives : Table
        Of the whole trace; those of this part are given.
    counts : dict
        Filled with quality counts.
    """
    device = {kind: _device_iterations(part, place, kind) for kind in ("kernels", "copies")}
    counts["no_iteration"] = sum(int((found == MISSING).sum()) for found in device.values())
    ids = integers(collectives, "id")
    own = collectives.filter(arrow_array((ids >= place.first_id) & (ids < place.first_id + part.stage.rows)))
    kernels = np.unique(integers(own, "kernel_id"))
    iterations = np.full(len(kernels), MISSING)
    for kind in KINDS:
        if kind == "collectives":
            continue
        row = 0
        for batch in part.stage.batches(kind):
            rows = slice(row, row + batch.num_rows)
            row += batch.num_rows
            table = place.put(batch)
            found = device[kind][rows] if kind in device else place.iterations(table, integers(table, "start_ns"))
            if kind == "kernels" and len(kernels):
                found_at = lookup(integers(table, "id"), found, kernels)
                iterations = np.where(found_at == MISSING, iterations, found_at)
            yield kind, put(table, "iteration", found)
    if own.num_rows:
        yield "collectives", put(own, "iteration", lookup(kernels, iterations, integers(own, "kernel_id")))


def _device_iterations(part: Part, place: Place, kind: str) -> Ints:
    """Return the iteration of every row of kernels or copies."""
    result, orphans = Growing(np.int64), 0
    for table, cause in _caused(part, place, kind, ("rank", "start_ns", "launch_id")):
        ranks, start = integers(table, "rank"), integers(table, "start_ns")
        found = np.full(len(ranks), MISSING)
        for rank in np.unique(ranks).tolist():
            own = ranks == rank
            moved = cause[own] + place.shift_ns.get(rank, 0)
            cause_ns = np.where(cause[own] == MISSING, MISSING, moved)
            found[own] = caused_iterations(place.spans[rank], start[own], cause_ns)
        result.append(found)
        orphans += int(((integers(table, "launch_id") == MISSING) & (found == MISSING)).sum())
    iterations: Ints = result.values()
    if orphans:
        _fill_orphans(part, place, kind, iterations)
    return iterations


def _fill_orphans(part: Part, place: Place, kind: str, iterations: Ints) -> None:
    """Change the iterations of work without a launch to those of its neighbours."""
    numbers, lanes, starts, launched = Lanes(), Narrowed(), Growing(np.int64), Growing(np.bool_)
    for batch in part.stage.batches(kind, ("rank", "start_ns", "device", "stream", "launch_id")):
        table = place.put(batch)
        lanes.append(numbers.of([integers(table, name) for name in ("rank", "device", "stream")]))
        starts.append(integers(table, "start_ns"))
        launched.append(integers(table, "launch_id") != MISSING)
    start = starts.values()
    for lane in by_lane(lambda: (lanes.part(rows) for rows in parts(len(start)))):
        order = sorting(start[lane])
        fill_from_neighbours(lane if order is None else lane[order], launched.values(), iterations)
