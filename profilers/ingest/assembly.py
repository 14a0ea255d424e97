"""Assemble linked recordings into one trace: one clock, one numbering of ranks and ids, iterations, lengths.

What has to be known of all recordings at once (collectives, annotations, extents) is small, and `assemble` holds it.
The other rows are finished one recording and batch at a time (`finished`), so that recordings can be finished in
different processes.

Files stand on one clock by the clock base that they state (`base_shifts`). If matched collectives contradict it, they
give the shift (`collective_shifts`).
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
from profilers.ingest.recording import LinkedRecording, combined_fingerprint
from profilers.trace.arrays import MISSING, Growing, Ints, Narrowed, arrow_array, ends, integers, put, text_codes
from profilers.trace.columns import Lanes, by_lane, lookup, row_slices, sorting
from profilers.trace.schema import KINDS, OWN_RANK
from profilers.trace.trace import Quality, Trace, TraceMeta


def base_shifts(metas: Sequence[TraceMeta]) -> list[int]:
    """Return the shift of each file's times, in ns, that puts all files on the smallest clock base.

    Parameters
    ----------
    metas : sequence of TraceMeta
        Descriptions of the files.

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
    """Return the shift of each rank's times, in ns, if matched collectives contradict its clock.

    A collective ends on no rank before it has begun on all. If most matched collectives of a rank break that against
    the lowest rank, its clock is off. It is then shifted by the median difference of their ends, since a collective
    ends everywhere at about the same time. Other clocks are not shifted: small differences of ends belong to the job.

    Parameters
    ----------
    collectives : Table
        Collectives of all ranks, with ``match_id``.

    Returns
    -------
    mapping of int to int
        Shift by rank; empty if no clock is off.
    """
    rank, match = integers(collectives, "rank"), integers(collectives, "match_id")
    start, end = integers(collectives, "start_ns"), ends(collectives)
    matched = match != MISSING
    reference = int(rank[matched].min()) if matched.any() else 0
    shifts = {}
    for shifted_rank in np.unique(rank[matched]).tolist():
        if shifted_rank == reference:
            continue
        ours, others = _pairs(match, matched & (rank == reference), matched & (rank == shifted_rank))
        apart = (end[ours] <= start[others]) | (end[others] <= start[ours])
        if len(ours) and apart.mean() > 0.5:
            shifts[shifted_rank] = int(np.median(end[ours] - end[others]))
    return shifts


def _pairs(match: Ints, ours: Ints, others: Ints) -> tuple[Ints, Ints]:
    """Return the rows of two ranks that have the same match, pairwise."""
    _, left, right = np.intersect1d(match[ours], match[others], return_indices=True)
    return np.flatnonzero(ours)[left], np.flatnonzero(others)[right]


#: Columns that hold ids of events.
_ID_COLUMNS = ("id", "launch_id", "op_id", "kernel_id", "collective_id")


@dataclass(frozen=True)
class Placement:
    """The ids, ranks, clock and iterations of one recording in the trace.

    Parameters
    ----------
    first_id : int
        Added to its ids.
    own_rank : int
        Rank of the rows that state none.
    shift_ns : mapping of int to int
        Added to the times of each rank.
    spans : mapping of int to Spans
        Iterations by rank.
    """

    first_id: int
    own_rank: int
    shift_ns: Mapping[int, int]
    spans: Mapping[int, Spans]

    def rank(self, rank: int) -> int:
        """Return the rank in the trace of a rank in the recording."""
        return self.own_rank if rank == OWN_RANK else rank

    def put(self, table: pa.Table) -> pa.Table:
        """Return rows of the recording with the ranks, ids and times of the trace."""
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
        """Return the iteration of each row of a placed table, at one time a row."""
        ranks = integers(table, "rank")
        result = np.full(len(ranks), MISSING)
        for rank, spans in self.spans.items():
            of_rank = ranks == rank
            result[of_rank] = spans.at(time[of_rank])
        return result


@dataclass(frozen=True)
class Assembly:
    """A trace without its bulk.

    Parameters
    ----------
    meta : TraceMeta
        Description of the trace; its quality lacks the counts of `finished`.
    placements : sequence of Placement
        One a recording.
    iterations, collectives : Table
        Rows of all ranks.
    next_id : int
        The smallest id above those of all events.
    """

    meta: TraceMeta
    placements: Sequence[Placement]
    iterations: pa.Table
    collectives: pa.Table
    next_id: int


def assemble(recordings: Sequence[LinkedRecording], iterations: str, length: str | None) -> Assembly:
    """Place recordings on one clock, ranks and ids, match their collectives, and cut them into iterations.

    Parameters
    ----------
    recordings : sequence of LinkedRecording
        In the order of their files.
    iterations, length : str
        Rules for iterations and sequence lengths, as `profilers.ingest.pipeline.CollectOptions` has them.

    Raises
    ------
    InvalidInputError
        The options do not fit the recordings, or the recordings do not fit each other, or hold the same events.
    """
    placements = _on_one_clock(recordings, _numbered(recordings, iterations == "file"))
    if iterations != "file":  # otherwise each file is an iteration, whatever its clock says
        refuse_same_events(
            [_ranked(recording, placement) for recording, placement in zip(recordings, placements, strict=True)]
        )
    trace, placements = _matched(recordings, placements)
    spans = _spans(recordings, placements, iterations)
    placements = [replace(placement, spans=by_rank) for placement, by_rank in zip(placements, spans, strict=True)]
    table = _iteration_table(spans)
    trace = trace.with_tables(iterations=table)
    trace = add_lengths(_with_annotations(trace, recordings, placements), length)
    meta = _meta(recordings, placements, trace.meta.quality)
    next_id = sum(recording.stage.rows for recording in recordings)
    return Assembly(meta, placements, trace.iterations, trace.collectives, next_id)


def _numbered(recordings: Sequence[LinkedRecording], file_mode: bool) -> list[Placement]:
    """Give each recording its first id and its rank.

    Files that state the same single rank and overlap in time become ranks in their order.
    """
    ranks = [recording.meta.ranks[0] if recording.meta.ranks else 0 for recording in recordings]
    alone = all(set(recording.extents) <= {OWN_RANK, 0} for recording in recordings) and not any(ranks)
    if len(recordings) > 1 and alone and not file_mode and not _follow(recordings):
        ranks = list(range(len(recordings)))
    first = np.cumsum([0, *(recording.stage.rows for recording in recordings)])
    return [Placement(int(first[i]), ranks[i], {}, {}) for i in range(len(recordings))]


def _follow(recordings: Sequence[LinkedRecording]) -> bool:
    """Return whether each recording begins after the one before it has ended."""
    extents = [recording.extents.values() for recording in recordings]
    times = sorted((min(e.start for e in of_ranks), max(e.end for e in of_ranks)) for of_ranks in extents)
    return all(before[1] <= after[0] for before, after in pairwise(times))


def _on_one_clock(recordings: Sequence[LinkedRecording], placements: list[Placement]) -> list[Placement]:
    shifts = base_shifts([recording.meta for recording in recordings])
    return [
        replace(placement, shift_ns={placement.rank(rank): by_ns for rank in recording.extents})
        for recording, placement, by_ns in zip(recordings, placements, shifts, strict=True)
    ]


def _ranked(recording: LinkedRecording, placement: Placement) -> RankedFile:
    """Return a recording to compare with others, under the rank that it states, or else rank 0."""
    rank = recording.meta.ranks[0] if recording.meta.ranks else 0
    by_ns = next(iter(placement.shift_ns.values()), 0)
    stated = replace(placement, first_id=0, own_rank=rank)
    stated = replace(stated, shift_ns={stated.rank(rank): by_ns for rank in recording.extents})
    extents = {stated.rank(rank): extent.shifted(by_ns) for rank, extent in recording.extents.items()}
    assumed = recording.meta.quality["assumed_start"] > 0
    return RankedFile(
        recording.file,
        bool(recording.meta.ranks),
        {} if assumed else extents,
        lambda kind, names: map(stated.put, recording.stage.batches(kind, names)),
    )


def _matched(recordings: Sequence[LinkedRecording], placements: list[Placement]) -> tuple[Trace, list[Placement]]:
    """Match collectives across ranks; shift the clocks of ranks that they contradict."""
    placed = [placement.put(recording.collectives) for recording, placement in zip(recordings, placements, strict=True)]
    table = pa.concat_tables(placed).unify_dictionaries().combine_chunks()
    trace = match_collectives(Trace(TraceMeta(""), {"collectives": table}))
    shifts = collective_shifts(trace.collectives)
    if not shifts:
        return trace, placements
    moved = replace(placements[0], first_id=0, shift_ns=shifts).put(trace.collectives)
    placements = [
        replace(placement, shift_ns={rank: by + shifts.get(rank, 0) for rank, by in placement.shift_ns.items()})
        for placement in placements
    ]
    return trace.with_tables(collectives=moved).with_quality(
        {"clock_shift_max_ns": max(map(abs, shifts.values()))}
    ), placements


def _spans(
    recordings: Sequence[LinkedRecording], placements: Sequence[Placement], iterations: str
) -> list[dict[int, Spans]]:
    """Return the iterations of every rank of every recording."""
    extents = [
        {
            placement.rank(rank): extent.shifted(placement.shift_ns[placement.rank(rank)])
            for rank, extent in recording.extents.items()
        }
        for recording, placement in zip(recordings, placements, strict=True)
    ]
    if iterations == "file":
        return [
            {
                rank: one_iteration(rank, extent, number, recordings[number].meta.sources[0], "file")
                for rank, extent in items
            }
            for number, items in enumerate(sorted(by_rank.items()) for by_rank in extents)
        ]
    marks = pa.concat_tables(
        [placement.put(recording.marks) for recording, placement in zip(recordings, placements, strict=True)]
    )
    total: dict[int, Extent] = {}
    for by_rank in extents:
        for rank, extent in by_rank.items():
            total[rank] = total[rank] | extent if rank in total else extent
    pattern = None if iterations == "auto" else iterations
    if iterations == "whole":
        spans = {rank: one_iteration(rank, extent, 0, WHOLE_TRACE, WHOLE_TRACE) for rank, extent in total.items()}
        return [{rank: spans[rank] for rank in by_rank} for by_rank in extents]
    spans = {
        rank: find_iterations(marks.filter(arrow_array(integers(marks, "rank") == rank)), rank, total[rank], pattern)
        for rank in sorted(total)
    }
    for rank in [rank for rank, of_rank in spans.items() if of_rank.found_by == WHOLE_TRACE]:
        spans[rank] = _periodic(recordings, placements, rank, total[rank]) or spans[rank]
    return [{rank: spans[rank] for rank in by_rank} for by_rank in extents]


def _periodic(
    recordings: Sequence[LinkedRecording], placements: Sequence[Placement], rank: int, extent: Extent
) -> Spans | None:
    """Return the iterations that recur in the kernels of a rank, in launch order; None if no period is found."""
    codes: dict[str | None, int] = {}
    names, times = Narrowed(), Growing(np.int64)
    for recording, placement in zip(recordings, placements, strict=True):
        shift = placement.shift_ns.get(rank, 0)
        for table, cause in _caused(recording, placement, "kernels", ("rank", "name", "start_ns")):
            of_rank = integers(table, "rank") == rank
            times.append(np.where(cause == MISSING, integers(table, "start_ns"), cause + shift)[of_rank])
            names.append(text_codes(table["name"], codes)[of_rank])
    launched = times.values()
    order = sorting(launched)
    sequence = names.raw() if order is None else names.raw()[order]
    period = find_period(sequence)
    return None if period is None else periodic(rank, period, launched if order is None else launched[order], extent)


def _caused(
    recording: LinkedRecording, placement: Placement, kind: str, names: Sequence[str]
) -> Iterator[tuple[pa.Table, Ints]]:
    """Yield placed kernels or copies, and the time of the call that caused each, on the clock of the recording."""
    row = 0
    for batch in recording.stage.batches(kind, names):
        rows = slice(row, row + batch.num_rows)
        row = rows.stop
        cause = recording.stage.amended(kind, "cause_ns", rows)
        yield placement.put(batch), np.full(batch.num_rows, MISSING) if cause is None else cause


def _iteration_table(spans: Sequence[Mapping[int, Spans]]) -> pa.Table:
    distinct = {id(of_rank): of_rank for by_rank in spans for of_rank in by_rank.values()}
    tables = [of_rank.table() for of_rank in sorted(distinct.values(), key=lambda of_rank: of_rank.rank)]
    table = pa.concat_tables(tables).unify_dictionaries().combine_chunks()
    keys = list(zip(table["rank"].to_pylist(), table["iteration"].to_pylist(), strict=True))
    if len(set(keys)) != len(keys):
        raise InvalidInputError("two files hold the same iteration of the same rank; ingest them apart")
    return table


def _with_annotations(trace: Trace, recordings: Sequence[LinkedRecording], placements: Sequence[Placement]) -> Trace:
    """Return `trace` with the annotations and operators that can state a sequence length."""
    tables = {}
    for kind, name in (("ranges", "marks"), ("ops", "length_ops")):
        placed = [
            _timed(placement, placement.put(getattr(recording, name)))
            for recording, placement in zip(recordings, placements, strict=True)
        ]
        tables[kind] = pa.concat_tables(placed).unify_dictionaries().combine_chunks()
    return trace.with_tables(**tables)


def _timed(placement: Placement, table: pa.Table) -> pa.Table:
    return put(table, "iteration", placement.iterations(table, integers(table, "start_ns")))


def _meta(recordings: Sequence[LinkedRecording], placements: Sequence[Placement], quality: Quality) -> TraceMeta:
    metas = [recording.meta for recording in recordings]
    sizes = {meta.world_size for meta in metas if meta.world_size is not None}
    devices = [
        replace(device, rank=placement.rank(device.rank))
        for meta, placement in zip(metas, placements, strict=True)
        for device in meta.devices
    ]
    formats = dict.fromkeys(meta.format for meta in metas)
    return replace(
        metas[0],
        format="+".join(formats),
        sources=tuple(name for meta in metas for name in meta.sources),
        ranks=tuple(sorted({rank for placement in placements for rank in placement.spans})),
        world_size=max(sizes, default=None),
        clock_base_ns=min(meta.clock_base_ns for meta in metas),
        devices=tuple(dict.fromkeys(devices)),
        quality=sum((meta.quality for meta in metas), quality),
        fingerprint=combined_fingerprint([meta.fingerprint for meta in metas]),
    )


def finished(
    recording: LinkedRecording, placement: Placement, collectives: pa.Table, counts: dict[str, int]
) -> Iterator[tuple[str, pa.Table]]:
    """Yield (kind, rows) of one recording as they stand in the trace.

    Parameters
    ----------
    recording : LinkedRecording
        The recording to finish.
    placement : Placement
        Its ids, ranks, clock and iterations in the trace.
    collectives : Table
        Matched collectives, of which those of this recording are yielded.
    counts : dict
        Takes quality counts while rows are yielded.
    """
    device = {kind: _device_iterations(recording, placement, kind) for kind in ("kernels", "copies")}
    counts["no_iteration"] = sum(int((of_kind == MISSING).sum()) for of_kind in device.values())
    ids = integers(collectives, "id")
    recorded = collectives.filter(
        arrow_array((ids >= placement.first_id) & (ids < placement.first_id + recording.stage.rows))
    )
    kernels = np.unique(integers(recorded, "kernel_id"))
    iterations = np.full(len(kernels), MISSING)
    for kind in KINDS:
        if kind == "collectives":
            continue
        row = 0
        for batch in recording.stage.batches(kind):
            rows = slice(row, row + batch.num_rows)
            row += batch.num_rows
            table = placement.put(batch)
            iteration = (
                device[kind][rows] if kind in device else placement.iterations(table, integers(table, "start_ns"))
            )
            if kind == "kernels" and len(kernels):
                iteration_of_kernel = lookup(integers(table, "id"), iteration, kernels)
                iterations = np.where(iteration_of_kernel == MISSING, iterations, iteration_of_kernel)
            yield kind, put(table, "iteration", iteration)
    if recorded.num_rows:
        yield "collectives", put(recorded, "iteration", lookup(kernels, iterations, integers(recorded, "kernel_id")))


def _device_iterations(recording: LinkedRecording, placement: Placement, kind: str) -> Ints:
    """Return the iteration of every kernel or copy of a recording."""
    result, orphans = Growing(np.int64), 0
    for table, cause in _caused(recording, placement, kind, ("rank", "start_ns", "launch_id")):
        ranks, start = integers(table, "rank"), integers(table, "start_ns")
        of_batch = np.full(len(ranks), MISSING)
        for rank in np.unique(ranks).tolist():
            of_rank = ranks == rank
            shifted = cause[of_rank] + placement.shift_ns.get(rank, 0)
            cause_ns = np.where(cause[of_rank] == MISSING, MISSING, shifted)
            of_batch[of_rank] = caused_iterations(placement.spans[rank], start[of_rank], cause_ns)
        result.append(of_batch)
        orphans += int(((integers(table, "launch_id") == MISSING) & (of_batch == MISSING)).sum())
    iterations: Ints = result.values()
    if orphans:
        _fill_orphans(recording, placement, kind, iterations)
    return iterations


def _fill_orphans(recording: LinkedRecording, placement: Placement, kind: str, iterations: Ints) -> None:
    """Give kernels and copies without a launch the iteration of their neighbours, in place."""
    numbers, lanes, starts, launched = Lanes(), Narrowed(), Growing(np.int64), Growing(np.bool_)
    for batch in recording.stage.batches(kind, ("rank", "start_ns", "device", "stream", "launch_id")):
        table = placement.put(batch)
        lanes.append(numbers.of([integers(table, name) for name in ("rank", "device", "stream")]))
        starts.append(integers(table, "start_ns"))
        launched.append(integers(table, "launch_id") != MISSING)
    start = starts.values()
    for lane in by_lane(lambda: (lanes.part(rows) for rows in row_slices(len(start)))):
        order = sorting(start[lane])
        fill_from_neighbours(lane if order is None else lane[order], launched.values(), iterations)
